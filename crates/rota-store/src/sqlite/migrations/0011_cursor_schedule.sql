-- A schedule has one cursor, and whoever edits, pauses or looks after it finds that
-- without a walk through its partition.

DELETE FROM cursor WHERE EXISTS (SELECT 1 FROM cursor AS other WHERE other.part = cursor.part
    AND other.schedule = cursor.schedule AND other.due_at < cursor.due_at);
CREATE UNIQUE INDEX cursor_schedule ON cursor (part, schedule);

-- A job that is off turns its schedules off, which is an edit of them.
UPDATE schedule SET enabled = 0 WHERE deleted = 0 AND job IN (SELECT id FROM job WHERE enabled = 0);

-- No cursor sleeps until the end of time any more. Those that did wake at their
-- instant, and go to sleep again for an hour at most where something holds them.
UPDATE cursor SET due_at = planned_at WHERE due_at > planned_at + 3600000000;

-- `schedule.after_finish_ms` is not read any more: the definition says it.
