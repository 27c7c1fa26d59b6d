-- Times are microseconds since the epoch. Ids of runs, nodes, workers and
-- batches are 16-byte blobs. Codes are those of codec.rs.

CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('pauses_revision', 0), ('schedule_id', 0);

CREATE TABLE tenant (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    tier TEXT NOT NULL,
    quotas TEXT,
    created_at INTEGER NOT NULL
);

CREATE TABLE lane (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    mode INTEGER NOT NULL,
    retired INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX lane_open ON lane (key) WHERE retired = 0;

CREATE TABLE job (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant INTEGER NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    hash BLOB NOT NULL,
    document TEXT NOT NULL,
    queue TEXT NOT NULL,
    tags TEXT NOT NULL,
    enabled INTEGER NOT NULL,
    pause TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX job_name ON job (tenant, name) WHERE deleted = 0;

CREATE TABLE job_version (
    job INTEGER NOT NULL,
    version INTEGER NOT NULL,
    document TEXT NOT NULL,
    at INTEGER NOT NULL,
    by TEXT,
    PRIMARY KEY (job, version)
) WITHOUT ROWID;

CREATE TABLE job_tag (tag TEXT NOT NULL, job INTEGER NOT NULL, PRIMARY KEY (tag, job)) WITHOUT ROWID;

CREATE TABLE schedule (
    id INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    tenant INTEGER NOT NULL,
    part INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    enabled INTEGER NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0,
    after_finish_ms INTEGER,
    armed_by BLOB,
    -- Runs made so far and the last instant decided; kept here only while
    -- there is no cursor to tell.
    fired INTEGER NOT NULL DEFAULT 0,
    decided_to INTEGER,
    name TEXT NOT NULL,
    pause TEXT,
    spec TEXT NOT NULL
);
CREATE UNIQUE INDEX schedule_name ON schedule (job, name) WHERE deleted = 0;

-- Updated at every fire, so it is narrow and its only key is the order in
-- which schedules come due.
CREATE TABLE cursor (
    part INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    schedule INTEGER NOT NULL,
    planned_at INTEGER NOT NULL,
    fired INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (part, due_at, schedule)
) WITHOUT ROWID;

CREATE TABLE skip (
    schedule INTEGER NOT NULL,
    from_at INTEGER NOT NULL,
    to_at INTEGER NOT NULL,
    count INTEGER NOT NULL,
    reason TEXT NOT NULL,
    -- Runs made before it: equal means nothing fired between two ranges.
    fired INTEGER NOT NULL,
    PRIMARY KEY (schedule, from_at)
) WITHOUT ROWID;

CREATE TABLE calendar (
    tenant INTEGER NOT NULL,
    name TEXT NOT NULL,
    spec TEXT NOT NULL,
    revision INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

CREATE TABLE pause (target TEXT PRIMARY KEY, pause TEXT NOT NULL) WITHOUT ROWID;

-- Only what has not ended. What few runs have is in nullable columns at the
-- end of the row.
CREATE TABLE run (
    id BLOB PRIMARY KEY,
    tenant INTEGER NOT NULL,
    job INTEGER NOT NULL,
    version INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    part INTEGER NOT NULL,
    status INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    order_key INTEGER NOT NULL,
    ready_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    losses INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    source INTEGER NOT NULL,
    schedule INTEGER,
    planned_at INTEGER,
    expires_at INTEGER,
    started_at INTEGER,
    due_at INTEGER,
    slot INTEGER,
    slot_limit INTEGER,
    parent BLOB,
    step INTEGER,
    pending INTEGER,
    holder BLOB,
    payload TEXT,
    extra TEXT,
    cancel TEXT,
    progress TEXT,
    trail TEXT
) WITHOUT ROWID;
CREATE INDEX run_queued ON run (lane, tenant, order_key) WHERE status = 2;
-- Who waits for a slot, in order, and who holds one.
CREATE INDEX run_slot ON run (slot, status, order_key) WHERE slot IS NOT NULL;
CREATE INDEX run_scheduled ON run (part, ready_at) WHERE status = 0;
CREATE INDEX run_schedule ON run (schedule) WHERE schedule IS NOT NULL;
CREATE INDEX run_holder ON run (holder) WHERE holder IS NOT NULL;
CREATE INDEX run_due ON run (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX run_parent ON run (parent) WHERE parent IS NOT NULL;
-- What a new owner must look at first: marked running by the former one, or
-- asked to stop.
CREATE INDEX run_inherited ON run (part) WHERE status IN (3, 5) AND holder IS NULL;

CREATE TABLE need (needed BLOB NOT NULL, waiter BLOB NOT NULL, PRIMARY KEY (needed, waiter)) WITHOUT ROWID;
CREATE TABLE notice (part INTEGER NOT NULL, run BLOB NOT NULL, PRIMARY KEY (part, run)) WITHOUT ROWID;
CREATE TABLE slot (
    key INTEGER PRIMARY KEY,
    lim INTEGER NOT NULL,
    held INTEGER NOT NULL,
    waiting INTEGER NOT NULL
);
CREATE TABLE unique_key (key INTEGER PRIMARY KEY, run BLOB NOT NULL, until INTEGER NOT NULL);
CREATE INDEX unique_key_until ON unique_key (until);
CREATE TABLE holder (worker BLOB PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE batch (id BLOB PRIMARY KEY, at INTEGER NOT NULL, answer TEXT) WITHOUT ROWID;
CREATE TABLE request (
    tenant INTEGER NOT NULL,
    key TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    answer TEXT,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX request_expires ON request (expires_at);
CREATE TABLE inbox (id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, body TEXT NOT NULL);

-- The days that have a history table, and up to which row of it the index
-- tables are complete.
CREATE TABLE history_day (day INTEGER PRIMARY KEY, indexed INTEGER NOT NULL DEFAULT 0);
CREATE TABLE rollup_delta (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE rollup (job INTEGER NOT NULL, hour INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (job, hour)) WITHOUT ROWID;
CREATE TABLE log (
    run BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    lines TEXT NOT NULL,
    PRIMARY KEY (run, attempt, seq)
) WITHOUT ROWID;
CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    tenant INTEGER NOT NULL,
    subject TEXT NOT NULL,
    kind TEXT NOT NULL,
    by TEXT,
    data TEXT
);
CREATE INDEX event_subject ON event (subject, at);

CREATE TABLE node (id BLOB PRIMARY KEY, name TEXT NOT NULL, info TEXT NOT NULL, until INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE partition (part INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, node BLOB);
WITH RECURSIVE n(part) AS (SELECT 0 UNION ALL SELECT part + 1 FROM n WHERE part < 255)
INSERT INTO partition SELECT part, 0, NULL FROM n;
CREATE TABLE bucket (key TEXT PRIMARY KEY, full_at INTEGER NOT NULL) WITHOUT ROWID;
