-- What is to become of the live runs of a deleted job, until none lives.

ALTER TABLE job ADD COLUMN deletion TEXT;
CREATE INDEX job_deletion ON job (updated_at) WHERE deletion IS NOT NULL;
