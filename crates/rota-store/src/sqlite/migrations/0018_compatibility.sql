-- The oldest schema whose release may still read and write this database. A later step
-- that takes away what an older release needs raises it.
CREATE TABLE compatibility (oldest INTEGER NOT NULL);
INSERT INTO compatibility (oldest) VALUES (18);
