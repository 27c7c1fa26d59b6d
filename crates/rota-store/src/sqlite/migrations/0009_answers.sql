-- A kept answer may be long, and a table without row ids reads the whole of a row
-- that does not fit its page whenever it compares keys.

DROP TABLE batch;
CREATE TABLE batch (seq INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, at INTEGER NOT NULL, answer BLOB);

ALTER TABLE request RENAME TO request_before;
DROP INDEX request_expires;
CREATE TABLE request (
    tenant INTEGER NOT NULL,
    key TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    answer BLOB,
    PRIMARY KEY (tenant, key)
);
INSERT INTO request SELECT tenant, key, fingerprint, expires_at, answer FROM request_before;
DROP TABLE request_before;
CREATE INDEX request_expires ON request (expires_at);
