-- Whatever goes is found by an index, and whatever is edited is found by its key.

-- When a schedule was deleted, and since when nothing uses a version of a job; null
-- while it is the newest.
ALTER TABLE schedule ADD COLUMN deleted_at INTEGER;
UPDATE schedule SET deleted_at = coalesce((SELECT updated_at FROM job WHERE job.id = schedule.job), 0)
WHERE deleted = 1;
CREATE INDEX schedule_gone ON schedule (deleted_at) WHERE deleted = 1;
CREATE INDEX job_gone ON job (updated_at) WHERE deleted = 1 AND deletion IS NULL;
ALTER TABLE job_version ADD COLUMN unused_since INTEGER;
UPDATE job_version SET unused_since = (SELECT after.at FROM job_version AS after
    WHERE after.job = job_version.job AND after.version = job_version.version + 1);
CREATE INDEX job_version_unused ON job_version (unused_since) WHERE unused_since IS NOT NULL;

CREATE INDEX job_tag_job ON job_tag (job);
CREATE INDEX schedule_tenant ON schedule (tenant, id) WHERE deleted = 0;

-- The definition says it.
ALTER TABLE schedule DROP COLUMN after_finish_ms;
