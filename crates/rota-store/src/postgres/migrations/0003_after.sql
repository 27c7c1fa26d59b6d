-- Which jobs start after which: the names of those they wait for, and the ends
-- that count, a bit for each verdict.
CREATE TABLE after_edge (
    downstream bigint   NOT NULL,
    tenant     int      NOT NULL,
    ends       smallint NOT NULL,
    upstream   text     COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, upstream, downstream)
);
CREATE INDEX after_edge_downstream ON after_edge (downstream);

-- Ends that were waited for and have not led to a run yet. Held: looked at, and
-- others are still to come.
CREATE TABLE after_end (
    downstream bigint   NOT NULL,
    at         bigint   NOT NULL,
    run        uuid     NOT NULL,
    verdict    smallint NOT NULL,
    held       bool     NOT NULL DEFAULT false,
    upstream   text     COLLATE "C" NOT NULL,
    PRIMARY KEY (downstream, run)
);
CREATE INDEX after_end_new ON after_end (at, run) WHERE NOT held;
