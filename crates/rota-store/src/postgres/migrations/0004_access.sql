-- Who may ask, and what they changed. No secret is here: digests of tokens and
-- sessions, and argon2 hashes of passwords.

CREATE TABLE token (
    id           uuid     PRIMARY KEY,
    created_at   bigint   NOT NULL,
    expires_at   bigint,
    revoked_at   bigint,
    last_used_at bigint,
    tenant       int      NOT NULL,
    installation bool     NOT NULL,
    digest       bytea    NOT NULL UNIQUE,
    name         text     NOT NULL,
    permissions  text     NOT NULL,
    created_by   text     NOT NULL
);
CREATE INDEX token_tenant ON token (tenant, id);

CREATE TABLE person (
    id           uuid   PRIMARY KEY,
    created_at   bigint NOT NULL,
    updated_at   bigint NOT NULL,
    tenant       int    NOT NULL,
    installation bool   NOT NULL,
    name         text   COLLATE "C" NOT NULL,
    role         text   NOT NULL,
    password     text   NOT NULL,
    UNIQUE (tenant, name)
);

CREATE TABLE session (
    person     uuid   NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    digest     bytea  PRIMARY KEY
);
CREATE INDEX session_person ON session (person);
CREATE INDEX session_expires ON session (expires_at);

CREATE TABLE audit (
    id      uuid   NOT NULL,
    at      bigint NOT NULL,
    tenant  int    NOT NULL,
    who     text   NOT NULL,
    action  text   NOT NULL,
    object  text   NOT NULL,
    before  text,
    after   text,
    address text,
    PRIMARY KEY (tenant, at, id)
);
CREATE INDEX audit_at ON audit (at);
