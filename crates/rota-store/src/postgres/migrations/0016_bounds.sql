-- Whatever goes is found by an index.

-- When a schedule was deleted, and since when nothing uses a version of a job; null
-- while it is the newest.
ALTER TABLE schedule ADD COLUMN deleted_at bigint;
UPDATE schedule s SET deleted_at = coalesce((SELECT j.updated_at FROM job j WHERE j.id = s.job), 0) WHERE s.deleted;
CREATE INDEX schedule_gone ON schedule (deleted_at) WHERE deleted;
CREATE INDEX job_gone ON job (updated_at) WHERE deleted AND deletion IS NULL;
ALTER TABLE job_version ADD COLUMN unused_since bigint;
UPDATE job_version v SET unused_since = next.at FROM job_version next
WHERE next.job = v.job AND next.version = v.version + 1;
CREATE INDEX job_version_unused ON job_version (unused_since) WHERE unused_since IS NOT NULL;

-- Logs of a day that goes whose runs stay: they live, or ended on a later day.
CREATE TABLE log_kept (
    at      bigint   NOT NULL,
    run     uuid     NOT NULL,
    seq     int      NOT NULL,
    attempt smallint NOT NULL,
    lines   text     NOT NULL,
    PRIMARY KEY (run, attempt, seq, at)
);
