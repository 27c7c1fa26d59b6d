-- The enabled schedules of a partition, for the scanner that looks whether each of
-- them has its cursor.

CREATE INDEX schedule_part ON schedule (part, id) WHERE enabled AND NOT deleted;
