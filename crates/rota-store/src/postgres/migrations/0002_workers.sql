-- Who works, for people: a row is written every few seconds, and no lease
-- depends on it.
CREATE TABLE worker (
    id          uuid    PRIMARY KEY,
    began_at    bigint  NOT NULL,
    seen_at     bigint  NOT NULL,
    until       bigint  NOT NULL,
    tenant      int,
    draining    boolean NOT NULL,
    drain_asked boolean NOT NULL DEFAULT false,
    name        text    NOT NULL,
    info        text    NOT NULL
) WITH (fillfactor = 50);
