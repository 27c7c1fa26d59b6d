-- When a run's first attempt began, once that one is over. Null where `started_at` says it,
-- and in rows that the release before writes.
ALTER TABLE run ADD COLUMN first_started_at bigint;
ALTER TABLE history ADD COLUMN first_started_at bigint;

-- Of a step that is executed for each item of a list: which one.
ALTER TABLE run ADD COLUMN item int;
ALTER TABLE history ADD COLUMN item int;
