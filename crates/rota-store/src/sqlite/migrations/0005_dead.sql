-- What somebody did about runs that had ended as dead letters. History rows never
-- change, so it stands beside them; it goes a little after they do.

CREATE TABLE dead_mark (
    run BLOB PRIMARY KEY,
    at INTEGER NOT NULL,
    fate INTEGER NOT NULL,
    by_whom TEXT
) WITHOUT ROWID;
CREATE INDEX dead_mark_at ON dead_mark (at);
