-- A schedule has one cursor, and whoever edits, pauses or looks after it finds that
-- without a walk through its partition.

DELETE FROM cursor c USING cursor other
WHERE other.part = c.part AND other.schedule = c.schedule AND other.due_at < c.due_at;
CREATE UNIQUE INDEX cursor_schedule ON cursor (part, schedule);

-- A job that is off turns its schedules off, which is an edit of them.
UPDATE schedule SET enabled = false WHERE NOT deleted AND job IN (SELECT id FROM job WHERE NOT enabled);

-- No cursor sleeps until the end of time any more. Those that did wake at their
-- instant, and go to sleep again for an hour at most where something holds them.
UPDATE cursor SET due_at = planned_at WHERE due_at > planned_at + 3600000000;

-- The definition says it.
ALTER TABLE schedule DROP COLUMN after_finish_ms;
