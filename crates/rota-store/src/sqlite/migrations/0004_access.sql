-- Who may ask, and what they changed. No secret is here: digests of tokens and
-- sessions, and argon2 hashes of passwords.

CREATE TABLE token (
    id BLOB PRIMARY KEY,
    tenant INTEGER NOT NULL,
    installation INTEGER NOT NULL,
    name TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE,
    permissions TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    last_used_at INTEGER
) WITHOUT ROWID;
CREATE INDEX token_tenant ON token (tenant, id);

CREATE TABLE person (
    id BLOB PRIMARY KEY,
    tenant INTEGER NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    installation INTEGER NOT NULL,
    password TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (tenant, name)
) WITHOUT ROWID;

CREATE TABLE session (
    digest BLOB PRIMARY KEY,
    person BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX session_person ON session (person);
CREATE INDEX session_expires ON session (expires_at);

CREATE TABLE audit (
    tenant INTEGER NOT NULL,
    at INTEGER NOT NULL,
    id BLOB NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL,
    before TEXT,
    after TEXT,
    address TEXT,
    PRIMARY KEY (tenant, at, id)
) WITHOUT ROWID;
CREATE INDEX audit_at ON audit (at);
