-- That an attempt at a run has begun was inferred from its fence, which handing back
-- and deferring raise as well. It has a bit of its own now; the runs of before keep what
-- was inferred.

UPDATE run SET flags = flags | 8 WHERE fence > 0 AND expires_at IS NOT NULL;
