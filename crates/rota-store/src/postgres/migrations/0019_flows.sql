-- When a run's first attempt began, once that one is over: null where `started_at` says it,
-- and in rows that the release before writes. And of a step that is executed for each item
-- of a list, which item. In the order in which a settlement takes the two tables.
ALTER TABLE run ADD COLUMN first_started_at bigint, ADD COLUMN item int;
ALTER TABLE history ADD COLUMN first_started_at bigint, ADD COLUMN item int;
