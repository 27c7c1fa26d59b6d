-- Dead letters that nobody has dealt with, so that they can be counted however long
-- history is. A row comes with the run's end and goes with its mark or its day.

CREATE TABLE open_dead (
    run BLOB PRIMARY KEY,
    ended_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX open_dead_ended ON open_dead (ended_at);
