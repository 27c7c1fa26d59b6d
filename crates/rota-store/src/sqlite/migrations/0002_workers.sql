-- Who works, for people: a row is written every few seconds, and no lease
-- depends on it.
CREATE TABLE worker (
    id BLOB PRIMARY KEY,
    tenant INTEGER,
    name TEXT NOT NULL,
    info TEXT NOT NULL,
    began_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    until INTEGER NOT NULL,
    draining INTEGER NOT NULL,
    drain_asked INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
