-- When a run's first attempt began, once that one is over. Null where `started_at` says it,
-- and in rows that the release before writes. (The tables of the days get the columns of
-- history when a file is opened: that release makes days without them.)
ALTER TABLE run ADD COLUMN first_started_at INTEGER;

-- Of a step that is executed for each item of a list: which one.
ALTER TABLE run ADD COLUMN item INTEGER;
