-- The oldest schema whose release may still read and write this database. A later step
-- that takes away what an older release needs raises it. (There is no step 17: from here on
-- both stores number their steps alike.)
CREATE TABLE compatibility (oldest bigint NOT NULL);
INSERT INTO compatibility (oldest) VALUES (18);
