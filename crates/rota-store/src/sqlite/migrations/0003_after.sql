-- Which jobs start after which: the names of those they wait for, and the ends
-- that count, a bit for each verdict.
CREATE TABLE after_edge (
    tenant INTEGER NOT NULL,
    upstream TEXT NOT NULL,
    downstream INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    PRIMARY KEY (tenant, upstream, downstream)
) WITHOUT ROWID;
CREATE INDEX after_edge_downstream ON after_edge (downstream);

-- Ends that were waited for and have not led to a run yet. Held: looked at, and
-- others are still to come.
CREATE TABLE after_end (
    downstream INTEGER NOT NULL,
    run BLOB NOT NULL,
    upstream TEXT NOT NULL,
    verdict INTEGER NOT NULL,
    at INTEGER NOT NULL,
    held INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (downstream, run)
) WITHOUT ROWID;
CREATE INDEX after_end_new ON after_end (at, run) WHERE held = 0;
