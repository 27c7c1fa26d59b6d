-- Dead letters that nobody has dealt with, so that they can be counted however long
-- history is. A row comes with the run's end and goes with its mark or its day.

CREATE TABLE open_dead (
    run      uuid   PRIMARY KEY,
    ended_at bigint NOT NULL
);
CREATE INDEX open_dead_ended ON open_dead (ended_at);

INSERT INTO open_dead (run, ended_at)
SELECT h.id, h.ended_at FROM history h
WHERE h.verdict = 4 AND NOT EXISTS (SELECT 1 FROM dead_mark m WHERE m.run = h.id);
