-- What is behind a schedule counts beside its cursor as well now: it tells what the
-- definitions before the present one decided. What was written here beside a cursor
-- was the last tick before a former one, which may be later than any instant decided.

UPDATE schedule SET decided_to = NULL
WHERE decided_to IS NOT NULL AND id IN (SELECT schedule FROM cursor);
