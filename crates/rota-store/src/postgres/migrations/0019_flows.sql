-- When a run's first attempt began, once that one is over. Null where `started_at` says it,
-- and in rows that the release before writes.
ALTER TABLE run ADD COLUMN first_started_at bigint;
ALTER TABLE history ADD COLUMN first_started_at bigint;
