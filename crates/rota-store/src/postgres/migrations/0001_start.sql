-- The first schema. Times are microseconds since the epoch, ids of runs are
-- UUID v7, codes are those of `codec.rs`. Columns stand widest first, so that
-- no row loses bytes to padding; a null costs one bit.

CREATE TABLE meta (
    one             bool   PRIMARY KEY DEFAULT true CHECK (one),
    pauses_revision bigint NOT NULL DEFAULT 1
);
INSERT INTO meta DEFAULT VALUES;

CREATE TABLE tenant (
    id         int      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at bigint   NOT NULL,
    tier       smallint NOT NULL,
    name       text     COLLATE "C" NOT NULL UNIQUE,
    quotas     text
);

-- Pauses of a tenant (an empty queue) or of one of its queues.
CREATE TABLE pause (
    tenant int  NOT NULL,
    queue  text COLLATE "C" NOT NULL,
    body   text NOT NULL,
    PRIMARY KEY (tenant, queue)
);

CREATE TABLE lane (
    id       int      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    mode     smallint NOT NULL,
    retired  bool     NOT NULL DEFAULT false,
    queue    text     COLLATE "C" NOT NULL,
    handler  text     COLLATE "C",
    requires text[]   COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX lane_open ON lane (queue, coalesce(handler, ''), (handler IS NULL), requires) WHERE NOT retired;

CREATE TABLE job (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    tenant     int    NOT NULL,
    version    int    NOT NULL,
    revision   int    NOT NULL,
    enabled    bool   NOT NULL,
    deleted    bool   NOT NULL DEFAULT false,
    name       text   COLLATE "C" NOT NULL,
    queue      text   COLLATE "C" NOT NULL,
    hash       bytea  NOT NULL,
    tags       text[] COLLATE "C" NOT NULL,
    pause      text
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX job_name ON job (tenant, name) WHERE NOT deleted;
CREATE INDEX job_tags ON job USING gin (tags);

CREATE TABLE job_version (
    job      bigint NOT NULL,
    at       bigint NOT NULL,
    version  int    NOT NULL,
    document text   NOT NULL,
    by_whom  text,
    PRIMARY KEY (job, version)
);

CREATE SEQUENCE schedule_id;

CREATE TABLE schedule (
    id              bigint   PRIMARY KEY,
    job             bigint   NOT NULL,
    after_finish_ms bigint,
    -- Runs made so far and the last instant decided, while no cursor is there
    -- to say it.
    fired           bigint   NOT NULL DEFAULT 0,
    decided_to      bigint,
    tenant          int      NOT NULL,
    revision        int      NOT NULL,
    part            smallint NOT NULL,
    enabled         bool     NOT NULL,
    deleted         bool     NOT NULL DEFAULT false,
    armed_by        uuid,
    name            text     COLLATE "C" NOT NULL,
    spec            text     NOT NULL,
    pause           text
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX schedule_name ON schedule (job, name) WHERE NOT deleted;
CREATE INDEX schedule_tenant ON schedule (tenant, id) WHERE NOT deleted;

-- What changes at every fire, in a narrow table with one key.
CREATE TABLE cursor (
    due_at     bigint   NOT NULL,
    schedule   bigint   NOT NULL,
    planned_at bigint   NOT NULL,
    fired      bigint   NOT NULL,
    revision   int      NOT NULL,
    part       smallint NOT NULL,
    PRIMARY KEY (part, due_at, schedule)
);

CREATE TABLE skip (
    schedule bigint   NOT NULL,
    from_at  bigint   NOT NULL,
    to_at    bigint   NOT NULL,
    count    bigint   NOT NULL,
    fired    bigint   NOT NULL,
    reason   smallint NOT NULL,
    PRIMARY KEY (schedule, from_at)
);

CREATE TABLE calendar (
    tenant   int  NOT NULL,
    revision int  NOT NULL,
    name     text COLLATE "C" NOT NULL,
    spec     text NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- Live runs only: a run that ends moves to history.
CREATE TABLE run (
    id         uuid     NOT NULL,
    job        bigint   NOT NULL,
    order_key  bigint   NOT NULL,
    ready_at   bigint   NOT NULL,
    created_at bigint   NOT NULL,
    expires_at bigint,
    started_at bigint,
    schedule   bigint,
    planned_at bigint,
    slot       bigint,
    due_at     bigint,
    tenant     int      NOT NULL,
    version    int      NOT NULL,
    lane       int      NOT NULL,
    fence      int      NOT NULL,
    slot_limit int,
    part       smallint NOT NULL,
    status     smallint NOT NULL,
    flags      smallint NOT NULL,
    attempt    smallint NOT NULL,
    losses     smallint NOT NULL,
    source     smallint NOT NULL,
    step       smallint,
    pending    smallint,
    parent     uuid,
    holder     uuid,
    payload    text,
    extra      text,
    cancel     text,
    progress   text,
    trail      text,
    PRIMARY KEY (id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 1);
CREATE INDEX run_ready ON run (lane, tenant, order_key, id) WHERE status = 2;
CREATE INDEX run_slot ON run (slot, order_key, id) WHERE status = 1;
-- Who holds a slot, for those who are asked to stop and for recounting.
CREATE INDEX run_holding ON run (slot) WHERE slot IS NOT NULL AND status IN (2, 3, 4, 5);
CREATE INDEX run_delayed ON run (part, ready_at) WHERE status = 0;
CREATE INDEX run_schedule ON run (schedule) WHERE schedule IS NOT NULL;
CREATE INDEX run_holder ON run (holder) WHERE holder IS NOT NULL;
CREATE INDEX run_due ON run (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX run_parent ON run (parent) WHERE parent IS NOT NULL;
-- What a new owner must look at first; few rows are ever in it.
CREATE INDEX run_inherited ON run (part) WHERE holder IS NULL AND status IN (3, 5);

-- `waiter` waits for the end of `needed`.
CREATE TABLE need (
    needed uuid NOT NULL,
    waiter uuid NOT NULL,
    PRIMARY KEY (needed, waiter)
);

-- The owner of `part` is to look at `run`.
CREATE TABLE notice (
    run  uuid     NOT NULL,
    part smallint NOT NULL,
    PRIMARY KEY (part, run)
);

CREATE TABLE slot (
    key     bigint PRIMARY KEY,
    lim     int    NOT NULL,
    held    int    NOT NULL,
    waiting int    NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE unique_key (
    key   bigint PRIMARY KEY,
    until bigint NOT NULL,
    run   uuid   NOT NULL
);

-- Ended runs by the day of their end; partitions are made ahead, or on demand.
CREATE TABLE history (
    id         uuid     NOT NULL,
    job        bigint   NOT NULL,
    ended_at   bigint   NOT NULL,
    order_key  bigint   NOT NULL,
    ready_at   bigint   NOT NULL,
    created_at bigint   NOT NULL,
    started_at bigint,
    expires_at bigint,
    schedule   bigint,
    planned_at bigint,
    slot       bigint,
    tenant     int      NOT NULL,
    version    int      NOT NULL,
    lane       int      NOT NULL,
    fence      int      NOT NULL,
    slot_limit int,
    part       smallint NOT NULL,
    verdict    smallint NOT NULL,
    attempt    smallint NOT NULL,
    losses     smallint NOT NULL,
    source     smallint NOT NULL,
    step       smallint,
    parent     uuid,
    payload    text,
    extra      text,
    cancel     text,
    progress   text,
    trail      text,
    failure    text,
    output     text
) PARTITION BY RANGE (ended_at);
CREATE INDEX history_job ON history (job, ended_at, id);
CREATE INDEX history_tenant ON history (tenant, ended_at, id);
CREATE INDEX history_dead ON history (ended_at, id) WHERE verdict = 4;
CREATE INDEX history_id ON history USING brin (id uuid_minmax_multi_ops)
    WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE log (
    at      bigint   NOT NULL,
    run     uuid     NOT NULL,
    seq     int      NOT NULL,
    attempt smallint NOT NULL,
    lines   text     NOT NULL,
    PRIMARY KEY (run, attempt, seq, at)
) PARTITION BY RANGE (at);

-- A worker with written leases: one row, however many runs it holds.
CREATE TABLE holder (
    worker uuid   PRIMARY KEY,
    until  bigint NOT NULL
) WITH (fillfactor = 50);
-- No index on `until`: it would cost every heartbeat its heap-only update, and
-- workers are few.

CREATE TABLE batch (
    id     uuid   PRIMARY KEY,
    at     bigint NOT NULL,
    answer bytea
);

CREATE TABLE request (
    tenant      int    NOT NULL,
    key         text   COLLATE "C" NOT NULL,
    expires_at  bigint NOT NULL,
    fingerprint bytea  NOT NULL,
    answer      bytea,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX request_expires ON request (expires_at);

-- What each settled batch adds to the roll-ups, folded later. Already compact.
CREATE TABLE rollup_delta (
    at   bigint NOT NULL,
    body bytea  NOT NULL
);
ALTER TABLE rollup_delta ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE rollup (
    job  bigint NOT NULL,
    hour bigint NOT NULL,
    body bytea  NOT NULL,
    PRIMARY KEY (job, hour)
) WITH (fillfactor = 70);

CREATE TABLE bucket (
    full_at bigint NOT NULL,
    key     text   COLLATE "C" PRIMARY KEY
) WITH (fillfactor = 50);

CREATE TABLE node (
    id     uuid   PRIMARY KEY,
    until  bigint NOT NULL,
    name   text   NOT NULL,
    info   text   NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE partition (
    epoch bigint   NOT NULL DEFAULT 0,
    part  smallint PRIMARY KEY,
    node  uuid
) WITH (fillfactor = 50);
INSERT INTO partition (part) SELECT generate_series(0, 255);

CREATE TABLE inbox (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at   bigint NOT NULL,
    body text   NOT NULL
);

CREATE TABLE event (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      bigint NOT NULL,
    tenant  int    NOT NULL,
    subject text   COLLATE "C" NOT NULL,
    kind    text   COLLATE "C" NOT NULL,
    by_whom text,
    data    text
);
CREATE INDEX event_subject ON event (subject, at);

-- Asks for a run from inside the caller's own transaction, in any language.
-- The request commits or vanishes with it; a scheduler admits it soon after.
CREATE FUNCTION rota_enqueue(
    job     text,
    payload jsonb       DEFAULT NULL,
    tenant  text        DEFAULT 'default',
    labels  jsonb       DEFAULT NULL,
    run_at  timestamptz DEFAULT NULL,
    key     text        DEFAULT NULL
) RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    INSERT INTO inbox (at, body)
    VALUES (
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        (jsonb_strip_nulls(jsonb_build_object('tenant', tenant, 'job', job, 'labels', labels, 'key', key,
            'run_at', to_char(run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
        -- Nulls inside the payload are the caller's own and stay.
        || CASE WHEN payload IS NULL THEN '{}' ELSE jsonb_build_object('payload', payload) END)::text
    )
    RETURNING id
$$;
