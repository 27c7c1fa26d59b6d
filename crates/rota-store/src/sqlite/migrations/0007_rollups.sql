-- Roll-ups are packed as they are in PostgreSQL. Those that were kept as text are
-- counted anew from here on.

DROP TABLE rollup_delta;
DROP TABLE rollup;
CREATE TABLE rollup_delta (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE rollup (job INTEGER NOT NULL, hour INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, hour)) WITHOUT ROWID;
