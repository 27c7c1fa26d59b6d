-- What upkeep seeks by age has an index, and what nobody reads is gone.

DROP TABLE event;
CREATE INDEX skip_to ON skip (to_at);
CREATE INDEX unique_key_until ON unique_key (until);
