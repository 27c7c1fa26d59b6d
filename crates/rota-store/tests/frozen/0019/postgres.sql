
SET check_function_bodies = false;

CREATE SCHEMA frozen_schema;

CREATE FUNCTION frozen_schema.rota_enqueue(job text, payload jsonb DEFAULT NULL::jsonb, tenant text DEFAULT 'default'::text, labels jsonb DEFAULT NULL::jsonb, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, key text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE sql
    SET search_path TO 'frozen_schema'
    AS $$
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

CREATE TABLE frozen_schema.after_edge (
    downstream bigint NOT NULL,
    tenant integer NOT NULL,
    ends smallint NOT NULL,
    upstream text NOT NULL COLLATE pg_catalog."C"
);

CREATE TABLE frozen_schema.after_end (
    downstream bigint NOT NULL,
    at bigint NOT NULL,
    run uuid NOT NULL,
    verdict smallint NOT NULL,
    held boolean DEFAULT false NOT NULL,
    upstream text NOT NULL COLLATE pg_catalog."C"
);

CREATE TABLE frozen_schema.audit (
    id uuid NOT NULL,
    at bigint NOT NULL,
    tenant integer NOT NULL,
    who text NOT NULL,
    action text NOT NULL,
    object text NOT NULL,
    before text,
    after text,
    address text
);

CREATE TABLE frozen_schema.batch (
    id uuid NOT NULL,
    at bigint NOT NULL,
    answer bytea
);

CREATE TABLE frozen_schema.bucket (
    full_at bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C"
)
WITH (fillfactor='50');

CREATE TABLE frozen_schema.calendar (
    tenant integer NOT NULL,
    revision integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    spec text NOT NULL
);

CREATE TABLE frozen_schema.compatibility (
    oldest bigint NOT NULL
);

CREATE TABLE frozen_schema.cursor (
    due_at bigint NOT NULL,
    schedule bigint NOT NULL,
    planned_at bigint NOT NULL,
    fired bigint NOT NULL,
    revision integer NOT NULL,
    part smallint NOT NULL
);

CREATE TABLE frozen_schema.dead_mark (
    run uuid NOT NULL,
    at bigint NOT NULL,
    fate smallint NOT NULL,
    by_whom text
);

CREATE TABLE frozen_schema.history (
    id uuid NOT NULL,
    job bigint NOT NULL,
    ended_at bigint NOT NULL,
    order_key bigint NOT NULL,
    ready_at bigint NOT NULL,
    created_at bigint NOT NULL,
    started_at bigint,
    expires_at bigint,
    schedule bigint,
    planned_at bigint,
    slot bigint,
    tenant integer NOT NULL,
    version integer NOT NULL,
    lane integer NOT NULL,
    fence integer NOT NULL,
    slot_limit integer,
    part smallint NOT NULL,
    verdict smallint NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    source smallint NOT NULL,
    step smallint,
    parent uuid,
    payload text,
    extra text,
    cancel text,
    progress text,
    trail text,
    failure text,
    output text,
    first_started_at bigint,
    item integer
)
PARTITION BY RANGE (ended_at);

CREATE TABLE frozen_schema.history_20260105 (
    id uuid NOT NULL,
    job bigint NOT NULL,
    ended_at bigint NOT NULL,
    order_key bigint NOT NULL,
    ready_at bigint NOT NULL,
    created_at bigint NOT NULL,
    started_at bigint,
    expires_at bigint,
    schedule bigint,
    planned_at bigint,
    slot bigint,
    tenant integer NOT NULL,
    version integer NOT NULL,
    lane integer NOT NULL,
    fence integer NOT NULL,
    slot_limit integer,
    part smallint NOT NULL,
    verdict smallint NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    source smallint NOT NULL,
    step smallint,
    parent uuid,
    payload text,
    extra text,
    cancel text,
    progress text,
    trail text,
    failure text,
    output text,
    first_started_at bigint,
    item integer
);

CREATE TABLE frozen_schema.history_20260106 (
    id uuid NOT NULL,
    job bigint NOT NULL,
    ended_at bigint NOT NULL,
    order_key bigint NOT NULL,
    ready_at bigint NOT NULL,
    created_at bigint NOT NULL,
    started_at bigint,
    expires_at bigint,
    schedule bigint,
    planned_at bigint,
    slot bigint,
    tenant integer NOT NULL,
    version integer NOT NULL,
    lane integer NOT NULL,
    fence integer NOT NULL,
    slot_limit integer,
    part smallint NOT NULL,
    verdict smallint NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    source smallint NOT NULL,
    step smallint,
    parent uuid,
    payload text,
    extra text,
    cancel text,
    progress text,
    trail text,
    failure text,
    output text,
    first_started_at bigint,
    item integer
);

CREATE TABLE frozen_schema.history_20260107 (
    id uuid NOT NULL,
    job bigint NOT NULL,
    ended_at bigint NOT NULL,
    order_key bigint NOT NULL,
    ready_at bigint NOT NULL,
    created_at bigint NOT NULL,
    started_at bigint,
    expires_at bigint,
    schedule bigint,
    planned_at bigint,
    slot bigint,
    tenant integer NOT NULL,
    version integer NOT NULL,
    lane integer NOT NULL,
    fence integer NOT NULL,
    slot_limit integer,
    part smallint NOT NULL,
    verdict smallint NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    source smallint NOT NULL,
    step smallint,
    parent uuid,
    payload text,
    extra text,
    cancel text,
    progress text,
    trail text,
    failure text,
    output text,
    first_started_at bigint,
    item integer
);

CREATE TABLE frozen_schema.history_20260108 (
    id uuid NOT NULL,
    job bigint NOT NULL,
    ended_at bigint NOT NULL,
    order_key bigint NOT NULL,
    ready_at bigint NOT NULL,
    created_at bigint NOT NULL,
    started_at bigint,
    expires_at bigint,
    schedule bigint,
    planned_at bigint,
    slot bigint,
    tenant integer NOT NULL,
    version integer NOT NULL,
    lane integer NOT NULL,
    fence integer NOT NULL,
    slot_limit integer,
    part smallint NOT NULL,
    verdict smallint NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    source smallint NOT NULL,
    step smallint,
    parent uuid,
    payload text,
    extra text,
    cancel text,
    progress text,
    trail text,
    failure text,
    output text,
    first_started_at bigint,
    item integer
);

CREATE TABLE frozen_schema.history_20260109 (
    id uuid NOT NULL,
    job bigint NOT NULL,
    ended_at bigint NOT NULL,
    order_key bigint NOT NULL,
    ready_at bigint NOT NULL,
    created_at bigint NOT NULL,
    started_at bigint,
    expires_at bigint,
    schedule bigint,
    planned_at bigint,
    slot bigint,
    tenant integer NOT NULL,
    version integer NOT NULL,
    lane integer NOT NULL,
    fence integer NOT NULL,
    slot_limit integer,
    part smallint NOT NULL,
    verdict smallint NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    source smallint NOT NULL,
    step smallint,
    parent uuid,
    payload text,
    extra text,
    cancel text,
    progress text,
    trail text,
    failure text,
    output text,
    first_started_at bigint,
    item integer
);

CREATE TABLE frozen_schema.history_20260110 (
    id uuid NOT NULL,
    job bigint NOT NULL,
    ended_at bigint NOT NULL,
    order_key bigint NOT NULL,
    ready_at bigint NOT NULL,
    created_at bigint NOT NULL,
    started_at bigint,
    expires_at bigint,
    schedule bigint,
    planned_at bigint,
    slot bigint,
    tenant integer NOT NULL,
    version integer NOT NULL,
    lane integer NOT NULL,
    fence integer NOT NULL,
    slot_limit integer,
    part smallint NOT NULL,
    verdict smallint NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    source smallint NOT NULL,
    step smallint,
    parent uuid,
    payload text,
    extra text,
    cancel text,
    progress text,
    trail text,
    failure text,
    output text,
    first_started_at bigint,
    item integer
);

CREATE TABLE frozen_schema.holder (
    worker uuid NOT NULL,
    until bigint NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE frozen_schema.inbox (
    id bigint NOT NULL,
    at bigint NOT NULL,
    body text NOT NULL
);

ALTER TABLE frozen_schema.inbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen_schema.inbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE frozen_schema.job (
    id bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    tenant integer NOT NULL,
    version integer NOT NULL,
    revision integer NOT NULL,
    enabled boolean NOT NULL,
    deleted boolean DEFAULT false NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    queue text NOT NULL COLLATE pg_catalog."C",
    hash bytea NOT NULL,
    tags text[] NOT NULL COLLATE pg_catalog."C",
    pause text,
    deletion text
)
WITH (fillfactor='80');

ALTER TABLE frozen_schema.job ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen_schema.job_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE frozen_schema.job_version (
    job bigint NOT NULL,
    at bigint NOT NULL,
    version integer NOT NULL,
    document text NOT NULL,
    by_whom text,
    unused_since bigint
);

CREATE TABLE frozen_schema.lane (
    id integer NOT NULL,
    mode smallint NOT NULL,
    retired boolean DEFAULT false NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    handler text COLLATE pg_catalog."C",
    requires text[] NOT NULL COLLATE pg_catalog."C"
);

ALTER TABLE frozen_schema.lane ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen_schema.lane_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE frozen_schema.log (
    at bigint NOT NULL,
    run uuid NOT NULL,
    seq integer NOT NULL,
    attempt smallint NOT NULL,
    lines text NOT NULL
)
PARTITION BY RANGE (at);

CREATE TABLE frozen_schema.log_20260105 (
    at bigint NOT NULL,
    run uuid NOT NULL,
    seq integer NOT NULL,
    attempt smallint NOT NULL,
    lines text NOT NULL
);

CREATE TABLE frozen_schema.log_20260106 (
    at bigint NOT NULL,
    run uuid NOT NULL,
    seq integer NOT NULL,
    attempt smallint NOT NULL,
    lines text NOT NULL
);

CREATE TABLE frozen_schema.log_20260107 (
    at bigint NOT NULL,
    run uuid NOT NULL,
    seq integer NOT NULL,
    attempt smallint NOT NULL,
    lines text NOT NULL
);

CREATE TABLE frozen_schema.log_20260108 (
    at bigint NOT NULL,
    run uuid NOT NULL,
    seq integer NOT NULL,
    attempt smallint NOT NULL,
    lines text NOT NULL
);

CREATE TABLE frozen_schema.log_20260109 (
    at bigint NOT NULL,
    run uuid NOT NULL,
    seq integer NOT NULL,
    attempt smallint NOT NULL,
    lines text NOT NULL
);

CREATE TABLE frozen_schema.log_20260110 (
    at bigint NOT NULL,
    run uuid NOT NULL,
    seq integer NOT NULL,
    attempt smallint NOT NULL,
    lines text NOT NULL
);

CREATE TABLE frozen_schema.log_kept (
    at bigint NOT NULL,
    run uuid NOT NULL,
    seq integer NOT NULL,
    attempt smallint NOT NULL,
    lines text NOT NULL
);

CREATE TABLE frozen_schema.meta (
    one boolean DEFAULT true NOT NULL,
    pauses_revision bigint DEFAULT 1 NOT NULL,
    CONSTRAINT meta_one_check CHECK (one)
);

CREATE TABLE frozen_schema.migration (
    version integer NOT NULL,
    checksum bigint NOT NULL
);

CREATE TABLE frozen_schema.need (
    needed uuid NOT NULL,
    waiter uuid NOT NULL
);

CREATE TABLE frozen_schema.node (
    id uuid NOT NULL,
    until bigint NOT NULL,
    name text NOT NULL,
    info text NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE frozen_schema.notice (
    run uuid NOT NULL,
    part smallint NOT NULL
);

CREATE TABLE frozen_schema.open_dead (
    run uuid NOT NULL,
    ended_at bigint NOT NULL
);

CREATE TABLE frozen_schema.partition (
    epoch bigint DEFAULT 0 NOT NULL,
    part smallint NOT NULL,
    node uuid
)
WITH (fillfactor='50');

CREATE TABLE frozen_schema.pause (
    tenant integer NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    body text NOT NULL
);

CREATE TABLE frozen_schema.person (
    id uuid NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    tenant integer NOT NULL,
    installation boolean NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    role text NOT NULL,
    password text NOT NULL
);

CREATE TABLE frozen_schema.request (
    tenant integer NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    expires_at bigint NOT NULL,
    fingerprint bytea NOT NULL,
    answer bytea
);

CREATE TABLE frozen_schema.rollup (
    job bigint NOT NULL,
    hour bigint NOT NULL,
    body bytea NOT NULL
)
WITH (fillfactor='70');

CREATE TABLE frozen_schema.rollup_delta (
    at bigint NOT NULL,
    body bytea NOT NULL
);
ALTER TABLE ONLY frozen_schema.rollup_delta ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE frozen_schema.run (
    id uuid NOT NULL,
    job bigint NOT NULL,
    order_key bigint NOT NULL,
    ready_at bigint NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    started_at bigint,
    schedule bigint,
    planned_at bigint,
    slot bigint,
    due_at bigint,
    tenant integer NOT NULL,
    version integer NOT NULL,
    lane integer NOT NULL,
    fence integer NOT NULL,
    slot_limit integer,
    part smallint NOT NULL,
    status smallint NOT NULL,
    flags smallint NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    source smallint NOT NULL,
    step smallint,
    pending smallint,
    parent uuid,
    holder uuid,
    payload text,
    extra text,
    cancel text,
    progress text,
    trail text,
    first_started_at bigint,
    item integer
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='1');

CREATE TABLE frozen_schema.schedule (
    id bigint NOT NULL,
    job bigint NOT NULL,
    fired bigint DEFAULT 0 NOT NULL,
    decided_to bigint,
    tenant integer NOT NULL,
    revision integer NOT NULL,
    part smallint NOT NULL,
    enabled boolean NOT NULL,
    deleted boolean DEFAULT false NOT NULL,
    armed_by uuid,
    name text NOT NULL COLLATE pg_catalog."C",
    spec text NOT NULL,
    pause text,
    deleted_at bigint
)
WITH (fillfactor='90');

CREATE SEQUENCE frozen_schema.schedule_id
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE frozen_schema.session (
    person uuid NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    digest bytea NOT NULL
);

CREATE TABLE frozen_schema.skip (
    schedule bigint NOT NULL,
    from_at bigint NOT NULL,
    to_at bigint NOT NULL,
    count bigint NOT NULL,
    fired bigint NOT NULL,
    reason smallint NOT NULL
);

CREATE TABLE frozen_schema.slot (
    key bigint NOT NULL,
    lim integer NOT NULL,
    held integer NOT NULL,
    waiting integer NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE frozen_schema.tenant (
    id integer NOT NULL,
    created_at bigint NOT NULL,
    tier smallint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    quotas text
);

ALTER TABLE frozen_schema.tenant ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen_schema.tenant_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE frozen_schema.token (
    id uuid NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    last_used_at bigint,
    tenant integer NOT NULL,
    installation boolean NOT NULL,
    digest bytea NOT NULL,
    name text NOT NULL,
    permissions text NOT NULL,
    created_by text NOT NULL
);

CREATE TABLE frozen_schema.unique_key (
    key bigint NOT NULL,
    until bigint NOT NULL,
    run uuid NOT NULL
);

CREATE TABLE frozen_schema.worker (
    id uuid NOT NULL,
    began_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    until bigint NOT NULL,
    tenant integer,
    draining boolean NOT NULL,
    drain_asked boolean DEFAULT false NOT NULL,
    name text NOT NULL,
    info text NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE ONLY frozen_schema.history ATTACH PARTITION frozen_schema.history_20260105 FOR VALUES FROM ('1767571200000000') TO ('1767657600000000');

ALTER TABLE ONLY frozen_schema.history ATTACH PARTITION frozen_schema.history_20260106 FOR VALUES FROM ('1767657600000000') TO ('1767744000000000');

ALTER TABLE ONLY frozen_schema.history ATTACH PARTITION frozen_schema.history_20260107 FOR VALUES FROM ('1767744000000000') TO ('1767830400000000');

ALTER TABLE ONLY frozen_schema.history ATTACH PARTITION frozen_schema.history_20260108 FOR VALUES FROM ('1767830400000000') TO ('1767916800000000');

ALTER TABLE ONLY frozen_schema.history ATTACH PARTITION frozen_schema.history_20260109 FOR VALUES FROM ('1767916800000000') TO ('1768003200000000');

ALTER TABLE ONLY frozen_schema.history ATTACH PARTITION frozen_schema.history_20260110 FOR VALUES FROM ('1768003200000000') TO ('1768089600000000');

ALTER TABLE ONLY frozen_schema.log ATTACH PARTITION frozen_schema.log_20260105 FOR VALUES FROM ('1767571200000000') TO ('1767657600000000');

ALTER TABLE ONLY frozen_schema.log ATTACH PARTITION frozen_schema.log_20260106 FOR VALUES FROM ('1767657600000000') TO ('1767744000000000');

ALTER TABLE ONLY frozen_schema.log ATTACH PARTITION frozen_schema.log_20260107 FOR VALUES FROM ('1767744000000000') TO ('1767830400000000');

ALTER TABLE ONLY frozen_schema.log ATTACH PARTITION frozen_schema.log_20260108 FOR VALUES FROM ('1767830400000000') TO ('1767916800000000');

ALTER TABLE ONLY frozen_schema.log ATTACH PARTITION frozen_schema.log_20260109 FOR VALUES FROM ('1767916800000000') TO ('1768003200000000');

ALTER TABLE ONLY frozen_schema.log ATTACH PARTITION frozen_schema.log_20260110 FOR VALUES FROM ('1768003200000000') TO ('1768089600000000');

INSERT INTO frozen_schema.after_edge VALUES
	(2, 1, 1, 'report');

INSERT INTO frozen_schema.after_end VALUES
	(2, 1767693600010000, '01990000-0000-7000-8000-000000000179', 0, false, 'report');

INSERT INTO frozen_schema.audit VALUES
	('01990000-0000-7000-8000-000000000196', 1767693600000000, 1, 'ann', 'job.save', 'job/report', NULL, '{}', '10.0.0.7');

INSERT INTO frozen_schema.batch VALUES
	('01990000-0000-7000-8000-000000000189', 1767780000000000, '\x71'),
	('01990000-0000-7000-8000-00000000018b', 1767780000000000, '\x0199000000007000800000000000018800000001'),
	('01990000-0000-7000-8000-00000000018c', 1767780000001000, NULL),
	('01990000-0000-7000-8000-00000000018d', 1767693600100000, '\x5b7b227361766564223a7b226964223a312c2276657273696f6e223a322c227265766973696f6e223a322c226368616e676564223a747275657d7d5d'),
	('01990000-0000-7000-8000-00000000018e', 1767693600000000, NULL),
	('01990000-0000-7000-8000-00000000018f', 1767693600001000, '\x5b7b227361766564223a7b227265766973696f6e223a327d7d5d'),
	('01990000-0000-7000-8000-000000000190', 1767693600002000, '\x5b747275652c747275655d'),
	('01990000-0000-7000-8000-000000000191', 1767693600000000, '\x5b7b227361766564223a7b226964223a332c2276657273696f6e223a312c227265766973696f6e223a312c226368616e676564223a747275657d7d5d'),
	('01990000-0000-7000-8000-000000000192', 1767693600003000, NULL),
	('01990000-0000-7000-8000-000000000198', 1767866399900000, '\x71'),
	('01990000-0000-7000-8000-00000000019a', 1767866399900000, '\x0199000000007000800000000000019700000001'),
	('01990000-0000-7000-8000-00000000019c', 1767866399910000, '\x71'),
	('01990000-0000-7000-8000-00000000019d', 1767866399950000, '\x530a3031393930303030303030303730303038303030303030303030303030313965');

INSERT INTO frozen_schema.bucket VALUES
	(1767866400400000, 'rate');

INSERT INTO frozen_schema.calendar VALUES
	(1, 1, 'holidays', '{"dates":[]}');

INSERT INTO frozen_schema.compatibility VALUES
	(18);

INSERT INTO frozen_schema.cursor VALUES
	(1767607204000000, 1, 1767607204000000, 4, 1, 46),
	(1767607254084000, 2, 1767607254084000, 3, 1, 67),
	(1767866400005000, 3, 1767866400005000, 3, 3, 125);

INSERT INTO frozen_schema.dead_mark VALUES
	('01990000-0000-7000-8000-00000000017e', 1767693600040000, 1, 'ann');

INSERT INTO frozen_schema.history_20260105 VALUES
	('01990000-0000-7000-8000-000000000020', 1, 1767607203643000, 1767607681514000, 1767607201514000, 1767607201514000, 1767607203643000, 1767607206294000, NULL, NULL, 1, 1, 1, 1, 0, 2, 2, 1, 1, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"kind":"invalid_input","message":"nonsense"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000001b', 1, 1767607203806000, 1767607261187000, 1767607201187000, 1767607201187000, 1767607203806000, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 2, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000001c', 1, 1767607203853000, 1767607381187000, 1767607201187000, 1767607201187000, 1767607203853000, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 1, 1, 1, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"884ms","left":1}}', NULL, NULL, NULL, '{"kind":"invalid_input","message":"nonsense"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000010', 1, 1767607207097000, 1767607561897000, 1767607201897000, 1767607200204000, 1767607207097000, NULL, NULL, NULL, 0, 1, 1, 1, 1, 1, 1, 2, 2, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"2s 816ms","left":1,"start_within":"2s","end_within":"3s"},"deadline_at":"2026-01-05T10:00:04.194Z"}', NULL, NULL, '{"at":"2026-01-05T10:00:00.897Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:00.897Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:01.897Z","fence":0}
', '{"kind":"invalid_input","message":"nonsense"}', NULL, 1767607200897000, NULL),
	('01990000-0000-7000-8000-000000000035', 1, 1767607207097000, 1767607506664000, 1767607206664000, 1767607205974000, 1767607207097000, 1767607206976000, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 1, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000051', 1, 1767607211388000, 1767607509150000, 1767607209150000, 1767607209150000, 1767607211388000, NULL, 1, 1767607201000000, NULL, 1, 1, 1, 0, NULL, 2, 1, 1, 0, 0, NULL, NULL, NULL, '{"redrive":{"after":"453ms","left":2}}', NULL, NULL, NULL, '{"kind":"invalid_input","message":"nonsense"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000001d', 1, 1767607212203000, 1767607741187000, 1767607201187000, 1767607201187000, NULL, 1767607201359000, NULL, NULL, NULL, 2, 1, 2, 0, NULL, 1, 5, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"13ms","left":2,"start_within":"2s"}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000018', 1, 1767607212831000, 1767607384669000, 1767607204669000, 1767607200774000, NULL, NULL, NULL, NULL, 0, 2, 1, 1, 0, 2, 1, 6, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:12.831Z","event":"displaced","by":"01990000-0000-7000-8000-000000000063"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000036', 1, 1767607212831000, 1767607446416000, 1767607206416000, 1767607205974000, NULL, NULL, NULL, NULL, 0, 2, 1, 1, 0, 2, 3, 6, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:12.831Z","event":"displaced","by":"01990000-0000-7000-8000-000000000063"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000030', 1, 1767607219167000, 1767607387049000, 1767607207049000, 1767607205630000, NULL, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 3, 0, 0, 0, 2, 0, '01990000-0000-7000-8000-000000000027', NULL, '{"deadline_at":"2026-01-05T10:00:08.232Z"}', '{"at":"2026-01-05T10:00:07.732Z","grace_until":"2026-01-05T10:00:37.732Z","by":"ann","reason":"not needed"}', NULL, '{"at":"2026-01-05T10:00:07.732Z","event":"cancel_requested","by":"ann","reason":"not needed"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000053', 1, 1767607219542000, 1767607509532000, 1767607209532000, 1767607209532000, 1767607211536000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 1, 1, 1, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"2s 330ms","left":2}}', NULL, NULL, NULL, '{"kind":"invalid_input","message":"nonsense"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000001f', 1, 1767607219864000, 1767607801514000, 1767607201514000, 1767607201514000, 1767607211536000, NULL, NULL, NULL, 0, 1, 1, 2, 1, 2, 2, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"n":1}', NULL, NULL),
	('01990000-0000-7000-8000-00000000003d', 1, 1767607221019000, 1767607566437000, 1767607206437000, 1767607206437000, 1767607219167000, NULL, NULL, NULL, NULL, 1, 1, 1, 1, NULL, 3, 2, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"2s 32ms","left":1,"end_within":"3s"},"deadline_at":"2026-01-05T10:00:11.242Z"}', NULL, NULL, NULL, '{"kind":"timeout","message":"its deadline passed while it waited"}', NULL, 1767607219167000, NULL),
	('01990000-0000-7000-8000-000000000065', 1, 1767607221019000, 1767607702235000, 1767607222235000, 1767607212831000, NULL, 1767607215866000, NULL, NULL, NULL, 1, 1, 1, 1, NULL, 1, 5, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"2s 795ms","left":2,"start_within":"2s","end_within":"3s"}}', NULL, NULL, '{"at":"2026-01-05T10:00:19.542Z","event":"deferred","until":"2026-01-05T10:00:22.235Z","reason":"down"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000070', 1, 1767607221559000, 1767607280684000, 1767607220684000, 1767607220684000, 1767607221559000, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 3, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000027', 1, 1767607222558000, 1767607564051000, 1767607204051000, 1767607204051000, NULL, NULL, 2, 1767607200000000, 1, 2, 1, 2, 2, 1, 1, 3, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:22.558Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL, 1767607205203000, NULL),
	('01990000-0000-7000-8000-00000000002f', 1, 1767607222682000, 1767607688420000, 1767607208420000, 1767607205630000, NULL, NULL, NULL, NULL, 1, 1, 1, 2, 0, 2, 1, 6, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:22.682Z","event":"displaced","by":"01990000-0000-7000-8000-000000000083"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000066', 1, 1767607222682000, 1767607692831000, 1767607212831000, 1767607212831000, NULL, NULL, NULL, NULL, 1, 1, 1, 1, 0, 3, 2, 6, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"2s 978ms","left":1,"start_within":"2s","end_within":"3s"}}', NULL, NULL, '{"at":"2026-01-05T10:00:22.682Z","event":"displaced","by":"01990000-0000-7000-8000-000000000083"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000007e', 1, 1767607222682000, 1767607642558000, 1767607222558000, 1767607222558000, NULL, 1767607226135000, NULL, NULL, 1, 2, 1, 1, 0, 1, 3, 6, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:22.682Z","event":"displaced","by":"01990000-0000-7000-8000-000000000083"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000080', 1, 1767607224453000, 1767607522558000, 1767607222558000, 1767607222558000, NULL, NULL, NULL, NULL, 0, 1, 1, 1, 0, 2, 3, 6, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:24.453Z","event":"displaced","by":"01990000-0000-7000-8000-000000000093"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000008a', 1, 1767607224453000, 1767607703658000, 1767607223658000, 1767607223658000, NULL, NULL, NULL, NULL, 0, 1, 1, 1, 0, 2, 2, 6, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"54ms","left":2,"end_within":"3s"}}', NULL, NULL, '{"at":"2026-01-05T10:00:24.453Z","event":"displaced","by":"01990000-0000-7000-8000-000000000093"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000008b', 1, 1767607224453000, 1767607283658000, 1767607223658000, 1767607223658000, NULL, NULL, NULL, NULL, 0, 2, 1, 2, 0, 2, 1, 6, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"1s 537ms","left":2,"start_within":"2s"}}', NULL, NULL, '{"at":"2026-01-05T10:00:24.453Z","event":"displaced","by":"01990000-0000-7000-8000-000000000093"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000039', 1, 1767607224694000, 1767607266151000, 1767607206151000, 1767607206151000, NULL, 1767607206580000, NULL, NULL, 0, 2, 1, 1, 1, 3, 2, 0, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"1s 33ms","left":2}}', '{"at":"2026-01-05T10:00:22.558Z","grace_until":"2026-01-05T10:00:52.558Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:22.558Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL, 1767607208115000, NULL),
	('01990000-0000-7000-8000-000000000021', 1, 1767607225109000, 1767607393388000, 1767607213388000, 1767607201514000, 1767607225109000, 1767607203007000, NULL, NULL, NULL, 1, 1, 1, 2, NULL, 3, 0, 2, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:03.853Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:03.853Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:04.853Z","fence":0}
{"at":"2026-01-05T10:00:11.388Z","event":"attempt_failed","attempt":2,"started_at":"2026-01-05T10:00:11.388Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:13.388Z","fence":1}
', NULL, '{"n":1}', 1767607203853000, NULL),
	('01990000-0000-7000-8000-00000000004b', 1, 1767607225440000, 1767607388789000, 1767607208789000, 1767607208789000, 1767607211536000, NULL, NULL, NULL, 1, 2, 1, 2, 1, 1, 3, 3, 0, 0, 2, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:22.558Z","grace_until":"2026-01-05T10:00:52.558Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:22.558Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000004e', 1, 1767607225440000, 1767607692020000, 1767607212020000, 1767607208881000, 1767607220833000, NULL, NULL, NULL, 0, 1, 1, 2, 1, 2, 3, 3, 0, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:00:14.357Z"}', '{"at":"2026-01-05T10:00:22.558Z","grace_until":"2026-01-05T10:00:52.558Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:22.558Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000063', 1, 1767607225440000, 1767607332831000, 1767607212831000, 1767607212831000, 1767607220833000, NULL, NULL, NULL, 0, 1, 1, 2, 1, 3, 3, 3, 0, 0, 2, 0, '01990000-0000-7000-8000-000000000053', NULL, '{"redrive":{"after":"793ms","left":2,"end_within":"3s"}}', '{"at":"2026-01-05T10:00:22.558Z","grace_until":"2026-01-05T10:00:52.558Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:22.558Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000003c', 1, 1767607225529000, 1767607389548000, 1767607209548000, 1767607206437000, 1767607225529000, NULL, NULL, NULL, NULL, 1, 1, 1, 0, NULL, 2, 3, 0, 0, 2, 0, '01990000-0000-7000-8000-000000000027', NULL, '{"redrive":{"after":"878ms","left":2}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000009e', 1, 1767607225636000, 1767607404882000, 1767607224882000, 1767607224882000, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 0, NULL, 2, 3, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:25.636Z","event":"cancel_requested","by":"ann","reason":"not needed"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000083', 1, 1767607225998000, 1767607762682000, 1767607222682000, 1767607222682000, NULL, NULL, NULL, NULL, 1, 1, 1, 1, 0, 3, 1, 6, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"1s 362ms","left":1}}', NULL, NULL, '{"at":"2026-01-05T10:00:25.998Z","event":"displaced","by":"01990000-0000-7000-8000-0000000000a8"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000084', 1, 1767607225998000, 1767607582682000, 1767607222682000, 1767607222682000, NULL, NULL, NULL, NULL, 1, 1, 1, 1, 0, 1, 1, 6, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:25.998Z","event":"displaced","by":"01990000-0000-7000-8000-0000000000a8"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000093', 1, 1767607226748000, 1767607344453000, 1767607224453000, 1767607224453000, NULL, 1767607229121000, 2, 1767607224558000, 0, 1, 1, 1, 0, 3, 1, 3, 0, 0, 0, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:24.785Z","grace_until":"2026-01-05T10:00:54.785Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:24.785Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000071', 1, 1767607227207000, 1767607460684000, 1767607220684000, 1767607220684000, 1767607227207000, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 2, 1, 1, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"887ms","left":2},"deadline_at":"2026-01-05T10:00:28.596Z"}', NULL, NULL, NULL, '{"kind":"invalid_input","message":"nonsense"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000098', 1, 1767607227293000, 1767607765653000, 1767607225653000, 1767607224785000, NULL, NULL, NULL, NULL, 1, 2, 1, 2, 0, 2, 2, 6, 0, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:00:33.363Z"}', NULL, NULL, '{"at":"2026-01-05T10:00:27.293Z","event":"displaced","by":"01990000-0000-7000-8000-0000000000b5"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000012', 1, 1767607227876000, 1767607622094000, 1767607202094000, 1767607200204000, NULL, NULL, NULL, NULL, 1, 1, 1, 1, 1, 2, 1, 3, 0, 0, 2, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:22.558Z","grace_until":"2026-01-05T10:00:52.558Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:00.397Z","event":"deferred","until":"2026-01-05T10:00:02.094Z","reason":"down"}
{"at":"2026-01-05T10:00:22.558Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000ac', 1, 1767607228031000, 1767607346647000, 1767607226647000, 1767607226647000, 1767607228031000, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 1, 0, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"871ms","left":1}}', NULL, NULL, NULL, NULL, '{"n":1}', NULL, NULL),
	('01990000-0000-7000-8000-000000000072', 1, 1767607228031000, 1767607461219000, 1767607221219000, 1767607220684000, 1767607228031000, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 2, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000090', 1, 1767607228596000, 1767607285056000, 1767607225056000, 1767607224213000, NULL, NULL, NULL, NULL, 0, 2, 1, 1, 0, 2, 3, 3, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:28.596Z","event":"cancel_requested","by":"ann","reason":"not needed"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000073', 1, 1767607229841000, 1767607281546000, 1767607221546000, 1767607220684000, NULL, 1767607222266000, NULL, NULL, 0, 2, 1, 2, 0, 2, 1, 5, 0, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:00:23.081Z"}', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000009c', 1, 1767607229841000, 1767607584882000, 1767607224882000, 1767607224882000, NULL, 1767607226307000, NULL, NULL, 0, 2, 1, 2, 0, 3, 1, 5, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000b6', 1, 1767607229841000, 1767607407293000, 1767607227293000, 1767607227293000, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 0, NULL, 3, 2, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"2s 509ms","left":1,"end_within":"3s"},"deadline_at":"2026-01-05T10:00:29.326Z"}', NULL, NULL, NULL, '{"kind":"timeout","message":"its deadline passed while it waited"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000cc', 1, 1767607230757000, 1767607290088000, 1767607230088000, 1767607230088000, 1767607230757000, 1767607235553000, NULL, NULL, 0, 1, 1, 1, 0, 3, 1, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"n":1}', NULL, NULL),
	('01990000-0000-7000-8000-0000000000ae', 1, 1767607230757000, 1767607286647000, 1767607226647000, 1767607226647000, 1767607228905000, NULL, NULL, NULL, NULL, 2, 1, 2, 1, NULL, 1, 1, 1, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:00:33.411Z"}', NULL, NULL, NULL, '{"kind":"invalid_input","message":"nonsense"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000006a', 1, 1767607230932000, 1767607641299000, 1767607221299000, 1767607219430000, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 0, NULL, 1, 3, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:30.932Z","event":"cancel_requested","by":"ann","reason":"not needed"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000c5', 1, 1767607234475000, 1767607529247000, 1767607229247000, 1767607229247000, 1767607230312000, NULL, NULL, NULL, 1, 1, 1, 2, 1, 3, 3, 0, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"2s 436ms","left":1,"start_within":"2s"}}', NULL, NULL, NULL, NULL, '{"n":1}', NULL, NULL),
	('01990000-0000-7000-8000-000000000055', 1, 1767607236585000, 1767607767124000, 1767607227124000, 1767607209702000, 1767607236585000, NULL, NULL, NULL, NULL, 1, 1, 1, 2, NULL, 2, 3, 1, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:19.864Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:19.864Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:20.864Z","fence":0}
{"at":"2026-01-05T10:00:25.55Z","event":"deferred","until":"2026-01-05T10:00:27.124Z","reason":"down"}
', NULL, NULL, 1767607219864000, NULL),
	('01990000-0000-7000-8000-0000000000c6', 1, 1767607242626000, 1767607351057000, 1767607231057000, 1767607229247000, 1767607235129000, NULL, NULL, NULL, NULL, 2, 1, 2, 1, NULL, 2, 0, 0, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:00:32.411Z"}', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000a7', 1, 1767607243292000, 1767607765998000, 1767607225998000, 1767607225998000, 1767607243292000, NULL, NULL, NULL, NULL, 1, 1, 1, 0, NULL, 1, 0, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"1s 431ms","left":1}}', NULL, NULL, NULL, NULL, '{"n":1}', NULL, NULL),
	('01990000-0000-7000-8000-0000000000ea', 1, 1767607243395000, 1767607723098000, 1767607243098000, 1767607243098000, 1767607243395000, NULL, NULL, NULL, 0, 1, 1, 1, 0, 1, 1, 3, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"869ms","left":1}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000f4', 1, 1767607246154000, 1767607424089000, 1767607244089000, 1767607244089000, 1767607246154000, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 2, 0, 0, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:00:47.563Z"}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO frozen_schema.history_20260105 VALUES
	('01990000-0000-7000-8000-00000000007f', 1, 1767607246500000, 1767607777315000, 1767607237315000, 1767607222558000, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 2, NULL, 1, 2, 0, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:00:30.179Z"}', NULL, NULL, '{"at":"2026-01-05T10:00:36.585Z","event":"deferred","until":"2026-01-05T10:00:37.315Z","reason":"down"}
', '{"kind":"timeout","message":"its deadline passed while it waited"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000e2', 1, 1767607246500000, 1767607656230000, 1767607236230000, 1767607235406000, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 0, NULL, 2, 2, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"301ms","left":2},"deadline_at":"2026-01-05T10:00:35.546Z"}', NULL, NULL, NULL, '{"kind":"timeout","message":"its deadline passed while it waited"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000032', 1, 1767607247360000, 1767607753577000, 1767607213577000, 1767607205953000, NULL, NULL, 1, 1767607200000000, NULL, 1, 1, 2, 2, NULL, 1, 3, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:13.077Z","event":"worker_lost","worker":"01990000-0000-7000-8000-000000000008","losses":1}
{"at":"2026-01-05T10:00:47.36Z","event":"cancel_requested","by":"ann","reason":"not needed"}
', NULL, NULL, 1767607207490000, NULL),
	('01990000-0000-7000-8000-00000000008f', 1, 1767607249119000, 1767607764213000, 1767607224213000, 1767607224213000, 1767607247645000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 2, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000108', 1, 1767607249693000, 1767607307491000, 1767607247491000, 1767607247491000, 1767607247645000, NULL, NULL, NULL, 0, 2, 1, 2, 1, 3, 1, 3, 1, 0, 2, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:48.777Z","grace_until":"2026-01-05T10:01:18.777Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:48.777Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', '{"kind":"invalid_input","message":"nonsense"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000085', 1, 1767607250599000, 1767607525210000, 1767607225210000, 1767607222682000, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 0, NULL, 3, 3, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"891ms","left":2}}', NULL, NULL, '{"at":"2026-01-05T10:00:50.599Z","event":"cancel_requested","by":"ann","reason":"not needed"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000b7', 1, 1767607250717000, 1767607827293000, 1767607227293000, 1767607227293000, 1767607247645000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 1, 3, 0, 0, 2, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:50.395Z","grace_until":"2026-01-05T10:01:20.395Z","by":"ann","reason":"not needed"}', NULL, '{"at":"2026-01-05T10:00:50.395Z","event":"cancel_requested","by":"ann","reason":"not needed"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000075', 1, 1767607251084000, 1767607367360000, 1767607247360000, 1767607220821000, NULL, NULL, 1, 1767607202000000, 1, 1, 1, 2, 0, 3, 3, 6, 0, 0, 0, NULL, NULL, NULL, '{"redrive":{"after":"2s 73ms","left":1,"start_within":"2s"}}', NULL, NULL, '{"at":"2026-01-05T10:00:51.084Z","event":"displaced","by":"01990000-0000-7000-8000-00000000011d"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000f7', 1, 1767607251084000, 1767607844599000, 1767607244599000, 1767607244599000, NULL, NULL, 2, 1767607228748000, 1, 2, 1, 1, 0, 1, 1, 6, 0, 0, 0, NULL, NULL, NULL, '{"redrive":{"after":"75ms","left":1}}', NULL, NULL, '{"at":"2026-01-05T10:00:51.084Z","event":"displaced","by":"01990000-0000-7000-8000-00000000011d"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000fa', 1, 1767607251157000, 1767607487612000, 1767607247612000, 1767607245146000, NULL, 1767607249790000, NULL, NULL, NULL, 1, 1, 1, 0, NULL, 1, 5, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000109', 1, 1767607251157000, 1767607671063000, 1767607251063000, 1767607247491000, NULL, 1767607247654000, NULL, NULL, 1, 1, 1, 1, 0, 2, 1, 5, 0, 0, 2, 0, '01990000-0000-7000-8000-000000000015', NULL, '{"redrive":{"after":"1s 521ms","left":1}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000011d', 1, 1767607251631000, 1767607551084000, 1767607251084000, 1767607251084000, NULL, NULL, NULL, NULL, 1, 1, 1, 1, 0, 2, 3, 6, 0, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:00:55.42Z"}', NULL, NULL, '{"at":"2026-01-05T10:00:51.631Z","event":"displaced","by":"01990000-0000-7000-8000-000000000125"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000010e', 1, 1767607252371000, 1767607431511000, 1767607251511000, 1767607248777000, 1767607252371000, NULL, NULL, NULL, NULL, 1, 1, 1, 0, NULL, 3, 3, 0, 0, 2, 0, '01990000-0000-7000-8000-0000000000b7', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000bb', 1, 1767607253283000, 1767607707621000, 1767607227621000, 1767607227621000, NULL, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 3, 0, 0, 0, 2, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:50.599Z","grace_until":"2026-01-05T10:01:20.599Z","by":"ann","reason":"not needed"}', NULL, '{"at":"2026-01-05T10:00:50.599Z","event":"cancel_requested","by":"ann","reason":"not needed"}
', NULL, '{"n":1}', NULL, NULL),
	('01990000-0000-7000-8000-0000000000f1', 1, 1767607253283000, 1767607484089000, 1767607244089000, 1767607244089000, 1767607250972000, NULL, NULL, NULL, 1, 2, 1, 2, 1, 2, 3, 0, 0, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:00:49.639Z"}', '{"at":"2026-01-05T10:00:53.252Z","grace_until":"2026-01-05T10:01:23.252Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:53.252Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000125', 1, 1767607253581000, 1767607371631000, 1767607251631000, 1767607251631000, 1767607251982000, NULL, NULL, NULL, 1, 2, 1, 2, 1, 3, 3, 3, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"458ms","left":2},"deadline_at":"2026-01-05T10:00:57.502Z"}', '{"at":"2026-01-05T10:00:53.252Z","grace_until":"2026-01-05T10:01:23.252Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:53.252Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000130', 1, 1767607254242000, 1767607613252000, 1767607253252000, 1767607253252000, 1767607254242000, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 3, 0, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"888ms","left":1}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000b8', 1, 1767607254242000, 1767607768739000, 1767607228739000, 1767607227293000, 1767607251290000, NULL, NULL, NULL, NULL, 2, 1, 2, 1, NULL, 2, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"n":1}', NULL, NULL),
	('01990000-0000-7000-8000-0000000000f2', 1, 1767607254243000, 1767607309236000, 1767607249236000, 1767607244089000, 1767607253840000, NULL, NULL, NULL, 0, 2, 1, 2, 3, 3, 3, 0, 1, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"1s 314ms","left":2}}', NULL, NULL, '{"at":"2026-01-05T10:00:48.236Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:45.508Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:49.236Z","fence":1}
', NULL, '{"n":1}', 1767607245508000, NULL),
	('01990000-0000-7000-8000-000000000144', 1, 1767607255422000, 1767607314339000, 1767607254339000, 1767607254339000, 1767607255422000, NULL, NULL, NULL, 1, 2, 1, 1, 0, 1, 3, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000104', 1, 1767607255893000, 1767607731084000, 1767607251084000, 1767607247360000, NULL, NULL, 1, 1767607203000000, 0, 1, 1, 2, 0, 1, 3, 6, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:55.893Z","event":"displaced","by":"01990000-0000-7000-8000-000000000150"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000010f', 1, 1767607255893000, 1767607848777000, 1767607248777000, 1767607248777000, NULL, NULL, NULL, NULL, 0, 2, 1, 2, 0, 2, 3, 6, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"2s 261ms","left":2}}', NULL, NULL, '{"at":"2026-01-05T10:00:55.893Z","event":"displaced","by":"01990000-0000-7000-8000-000000000150"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000011c', 1, 1767607255893000, 1767607611084000, 1767607251084000, 1767607251084000, NULL, NULL, NULL, NULL, 0, 1, 1, 1, 0, 1, 1, 6, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:55.893Z","event":"displaced","by":"01990000-0000-7000-8000-000000000150"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000147', 1, 1767607255893000, 1767607674986000, 1767607254986000, 1767607254986000, NULL, NULL, NULL, NULL, 0, 1, 1, 1, 0, 2, 1, 6, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:55.893Z","event":"displaced","by":"01990000-0000-7000-8000-000000000150"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000148', 1, 1767607255928000, 1767607734986000, 1767607254986000, 1767607254986000, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 0, NULL, 1, 3, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:55.928Z","event":"cancel_requested","by":"ann","reason":"not needed"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000c7', 1, 1767607256049000, 1767607292191000, 1767607232191000, 1767607229247000, 1767607253840000, NULL, NULL, NULL, 0, 1, 1, 2, 1, 2, 3, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"n":1}', NULL, NULL),
	('01990000-0000-7000-8000-000000000143', 1, 1767607256619000, 1767607854339000, 1767607254339000, 1767607254339000, 1767607256561000, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 1, 0, 0, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:01:02.577Z"}', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000012f', 1, 1767607257075000, 1767607313252000, 1767607253252000, 1767607253252000, NULL, NULL, NULL, NULL, 1, 2, 1, 1, 0, 1, 1, 3, 1, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:01:01.077Z"}', '{"at":"2026-01-05T10:00:53.269Z","grace_until":"2026-01-05T10:01:23.269Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:53.269Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', '{"kind":"connection_refused","message":"nobody there"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000115', 1, 1767607257178000, 1767607549433000, 1767607249433000, 1767607249433000, 1767607257178000, NULL, NULL, NULL, 0, 1, 1, 1, 0, 1, 3, 3, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"2s 801ms","left":2}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000016', 1, 1767607257182000, 1767607384643000, 1767607204643000, 1767607200774000, 1767607257182000, 1767607201759000, NULL, NULL, NULL, 1, 1, 1, 1, NULL, 3, 3, 1, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"2s 621ms","left":2,"end_within":"3s"}}', NULL, NULL, '{"at":"2026-01-05T10:00:03.643Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:03.643Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:04.643Z","fence":0}
', NULL, NULL, 1767607203643000, NULL),
	('01990000-0000-7000-8000-000000000011', 1, 1767607258250000, 1767607434371000, 1767607254371000, 1767607200204000, 1767607258250000, 1767607202205000, NULL, NULL, NULL, 2, 1, 1, 2, NULL, 3, 0, 2, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"2s 729ms","left":1,"start_within":"2s"}}', NULL, NULL, '{"at":"2026-01-05T10:00:25.529Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:25.529Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:26.529Z","fence":0}
{"at":"2026-01-05T10:00:52.371Z","event":"attempt_failed","attempt":2,"started_at":"2026-01-05T10:00:52.371Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:54.371Z","fence":1}
', NULL, NULL, 1767607225529000, NULL),
	('01990000-0000-7000-8000-0000000000cd', 1, 1767607258404000, 1767607673309000, 1767607253309000, 1767607230088000, 1767607258404000, 1767607230841000, NULL, NULL, NULL, 1, 1, 1, 2, NULL, 3, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:52.943Z","event":"deferred","until":"2026-01-05T10:00:53.309Z","reason":"down"}
', NULL, '{"n":1}', NULL, NULL),
	('01990000-0000-7000-8000-000000000167', 1, 1767607258939000, 1767607858343000, 1767607258343000, 1767607258343000, 1767607258939000, NULL, NULL, NULL, 0, 1, 1, 1, 0, 3, 3, 0, 0, 0, 2, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:00:58.921Z"}', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000151', 1, 1767607259284000, 1767607375893000, 1767607255893000, 1767607255893000, NULL, 1767607261023000, NULL, NULL, 1, 1, 1, 2, 0, 1, 1, 3, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:59.284Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000135', 1, 1767607260180000, 1767607613269000, 1767607253269000, 1767607253269000, 1767607258571000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 2, 0, 0, 0, 2, NULL, NULL, NULL, '{"redrive":{"after":"1s 921ms","left":1,"end_within":"3s"}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000015', 1, 1767607260370000, 1767607790441000, 1767607250441000, 1767607200774000, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 6, NULL, 1, 3, 0, 1, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:10.421Z","event":"worker_lost","worker":"01990000-0000-7000-8000-000000000007","losses":1}
{"at":"2026-01-05T10:00:49.119Z","event":"deferred","until":"2026-01-05T10:00:50.441Z","reason":"down"}
{"at":"2026-01-05T10:01:00.37Z","event":"cancel_requested","by":"ann","reason":"not needed"}
', NULL, NULL, 1767607205203000, NULL);

INSERT INTO frozen_schema.history_20260106 VALUES
	('01990000-0000-7000-8000-000000000179', 1, 1767693600010000, 1767693900000000, 1767693600000000, 1767693600000000, 1767693600000000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 7, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000017e', 1, 1767693600030000, 1767693900020000, 1767693600020000, 1767693600020000, 1767693600020000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 7, 1, 1, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"kind":"invalid_input","message":"nonsense"}', NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000183', 1, 1767693600030000, 1767693900020000, 1767693600020000, 1767693600020000, 1767693600020000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 7, 1, 1, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"kind":"invalid_input","message":"nonsense"}', NULL, NULL, NULL);

INSERT INTO frozen_schema.history_20260107 VALUES
	('01990000-0000-7000-8000-000000000188', 1, 1767780000001000, 1767780300000000, 1767780000000000, 1767780000000000, 1767780000000000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 7, 4, 0, 1, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-07T10:00:00.001Z","event":"worker_lost","worker":"01990000-0000-7000-8000-00000000018a","losses":1}
', '{"kind":"lost","message":"its worker was lost 1 times"}', NULL, NULL, NULL);

INSERT INTO frozen_schema.holder VALUES
	('01990000-0000-7000-8000-000000000008', 1767607259561000),
	('01990000-0000-7000-8000-000000000009', 1767607261571000),
	('01990000-0000-7000-8000-00000000017b', 1767693606000000),
	('01990000-0000-7000-8000-000000000180', 1767693606020000),
	('01990000-0000-7000-8000-000000000185', 1767693606020000),
	('01990000-0000-7000-8000-00000000018a', 1767780006000000),
	('01990000-0000-7000-8000-000000000199', 1767866405900000);

INSERT INTO frozen_schema.inbox OVERRIDING SYSTEM VALUE VALUES
	(1, 1767866400000000, '{}');

INSERT INTO frozen_schema.job OVERRIDING SYSTEM VALUE VALUES
	(2, 1767693600000000, 1767693600000000, 1, 1, 1, true, false, 'then', 'default', '\x7b227468656e223a317d00000000000000000000000000000000000000000000', '{reporting}', NULL, NULL),
	(1, 1767607200000000, 1767693600100000, 1, 2, 2, true, false, 'report', 'default', '\x7b2276223a327d00000000000000000000000000000000000000000000000000', '{reporting}', NULL, NULL),
	(3, 1767693600000000, 1767693600003000, 1, 1, 2, true, true, 'gone', 'default', '\x7b7d000000000000000000000000000000000000000000000000000000000000', '{reporting}', NULL, '{"job":3,"ask":{"by":"ann","reason":null,"grace":"5s"},"keep_running":false}');

INSERT INTO frozen_schema.job_version VALUES
	(2, 1767693600000000, 1, '{"then":1}', 'ann', NULL),
	(1, 1767693600100000, 2, '{"v":2}', 'ann', NULL),
	(1, 1767607200000000, 1, '{"v":1}', 'ann', 1767693600100000),
	(3, 1767693600000000, 1, '{}', 'ann', NULL);

INSERT INTO frozen_schema.lane OVERRIDING SYSTEM VALUE VALUES
	(1, 0, false, 'default', NULL, '{}'),
	(2, 1, false, 'default', 'remote', '{}');

INSERT INTO frozen_schema.log_20260106 VALUES
	(1767693600001000, '01990000-0000-7000-8000-000000000179', 1, 1, '{"n":1}
'),
	(1767693600002000, '01990000-0000-7000-8000-000000000179', 2, 1, '{"n":2}
');

INSERT INTO frozen_schema.meta VALUES
	(true, 2);

INSERT INTO frozen_schema.migration VALUES
	(1, 6756401775548453300),
	(2, -8838256420749421048),
	(3, 3753270549371323949),
	(4, -8294872183396942921),
	(5, 3259654757744313610),
	(6, -3801521706040796375),
	(7, 5436499996882393442),
	(8, 8438725838946309529),
	(9, 5874514175086269663),
	(10, 6360066882472319),
	(11, 5692196871469624279),
	(12, 6426451643972899968),
	(13, 5204505222744457160),
	(14, -831935017266599021),
	(15, 2299594818869694297),
	(16, 6415636786076060362),
	(18, -3165157651478540288),
	(19, -7300162625420700145);

INSERT INTO frozen_schema.need VALUES
	('01990000-0000-7000-8000-000000000017', '01990000-0000-7000-8000-0000000000bd');

INSERT INTO frozen_schema.node VALUES
	('01990000-0000-7000-8000-000000000005', 1767607271631000, 'n', '{}');

INSERT INTO frozen_schema.notice VALUES
	('01990000-0000-7000-8000-00000000003a', 1),
	('01990000-0000-7000-8000-0000000000f3', 2),
	('01990000-0000-7000-8000-000000000134', 2),
	('01990000-0000-7000-8000-000000000149', 1),
	('01990000-0000-7000-8000-000000000017', 1),
	('01990000-0000-7000-8000-00000000016f', 1);

INSERT INTO frozen_schema.open_dead VALUES
	('01990000-0000-7000-8000-000000000188', 1767780000001000);

INSERT INTO frozen_schema.partition VALUES
	(0, 0, NULL),
	(0, 4, NULL),
	(0, 5, NULL),
	(0, 6, NULL),
	(0, 7, NULL),
	(0, 8, NULL),
	(0, 9, NULL),
	(0, 10, NULL),
	(0, 11, NULL),
	(0, 12, NULL),
	(0, 13, NULL),
	(0, 14, NULL),
	(0, 15, NULL),
	(0, 16, NULL),
	(0, 17, NULL),
	(0, 18, NULL),
	(0, 19, NULL),
	(0, 20, NULL),
	(0, 21, NULL),
	(0, 22, NULL),
	(0, 23, NULL),
	(0, 24, NULL),
	(0, 25, NULL),
	(0, 26, NULL),
	(0, 27, NULL),
	(0, 28, NULL),
	(0, 29, NULL),
	(0, 30, NULL),
	(0, 31, NULL),
	(0, 32, NULL),
	(0, 33, NULL),
	(0, 34, NULL),
	(0, 35, NULL),
	(0, 36, NULL),
	(0, 37, NULL),
	(0, 38, NULL),
	(0, 39, NULL),
	(0, 40, NULL),
	(0, 41, NULL),
	(0, 42, NULL),
	(0, 43, NULL),
	(0, 44, NULL),
	(0, 45, NULL),
	(0, 46, NULL),
	(0, 47, NULL),
	(0, 48, NULL),
	(0, 49, NULL),
	(0, 50, NULL),
	(0, 51, NULL),
	(0, 52, NULL);
INSERT INTO frozen_schema.partition VALUES
	(0, 53, NULL),
	(0, 54, NULL),
	(0, 55, NULL),
	(0, 56, NULL),
	(0, 57, NULL),
	(0, 58, NULL),
	(0, 59, NULL),
	(0, 60, NULL),
	(0, 61, NULL),
	(0, 62, NULL),
	(0, 63, NULL),
	(0, 64, NULL),
	(0, 65, NULL),
	(0, 66, NULL),
	(0, 67, NULL),
	(0, 68, NULL),
	(0, 69, NULL),
	(0, 70, NULL),
	(0, 71, NULL),
	(0, 72, NULL),
	(0, 73, NULL),
	(0, 74, NULL),
	(0, 75, NULL),
	(0, 76, NULL),
	(0, 77, NULL),
	(0, 78, NULL),
	(0, 79, NULL),
	(0, 80, NULL),
	(0, 81, NULL),
	(0, 82, NULL),
	(0, 83, NULL),
	(0, 84, NULL),
	(0, 85, NULL),
	(0, 86, NULL),
	(0, 87, NULL),
	(0, 88, NULL),
	(0, 89, NULL),
	(0, 90, NULL),
	(0, 91, NULL),
	(2, 1, NULL),
	(3, 3, '01990000-0000-7000-8000-000000000005'),
	(2, 2, NULL),
	(0, 92, NULL),
	(0, 93, NULL),
	(0, 94, NULL),
	(0, 95, NULL),
	(0, 96, NULL),
	(0, 97, NULL),
	(0, 98, NULL),
	(0, 99, NULL);
INSERT INTO frozen_schema.partition VALUES
	(0, 100, NULL),
	(0, 101, NULL),
	(0, 102, NULL),
	(0, 103, NULL),
	(0, 104, NULL),
	(0, 105, NULL),
	(0, 106, NULL),
	(0, 107, NULL),
	(0, 108, NULL),
	(0, 109, NULL),
	(0, 110, NULL),
	(0, 111, NULL),
	(0, 112, NULL),
	(0, 113, NULL),
	(0, 114, NULL),
	(0, 115, NULL),
	(0, 116, NULL),
	(0, 117, NULL),
	(0, 118, NULL),
	(0, 119, NULL),
	(0, 120, NULL),
	(0, 121, NULL),
	(0, 122, NULL),
	(0, 123, NULL),
	(0, 124, NULL),
	(0, 125, NULL),
	(0, 126, NULL),
	(0, 127, NULL),
	(0, 128, NULL),
	(0, 129, NULL),
	(0, 130, NULL),
	(0, 131, NULL),
	(0, 132, NULL),
	(0, 133, NULL),
	(0, 134, NULL),
	(0, 135, NULL),
	(0, 136, NULL),
	(0, 137, NULL),
	(0, 138, NULL),
	(0, 139, NULL),
	(0, 140, NULL),
	(0, 141, NULL),
	(0, 142, NULL),
	(0, 143, NULL),
	(0, 144, NULL),
	(0, 145, NULL),
	(0, 146, NULL),
	(0, 147, NULL),
	(0, 148, NULL),
	(0, 149, NULL);
INSERT INTO frozen_schema.partition VALUES
	(0, 150, NULL),
	(0, 151, NULL),
	(0, 152, NULL),
	(0, 153, NULL),
	(0, 154, NULL),
	(0, 155, NULL),
	(0, 156, NULL),
	(0, 157, NULL),
	(0, 158, NULL),
	(0, 159, NULL),
	(0, 160, NULL),
	(0, 161, NULL),
	(0, 162, NULL),
	(0, 163, NULL),
	(0, 164, NULL),
	(0, 165, NULL),
	(0, 166, NULL),
	(0, 167, NULL),
	(0, 168, NULL),
	(0, 169, NULL),
	(0, 170, NULL),
	(0, 171, NULL),
	(0, 172, NULL),
	(0, 173, NULL),
	(0, 174, NULL),
	(0, 175, NULL),
	(0, 176, NULL),
	(0, 177, NULL),
	(0, 178, NULL),
	(0, 179, NULL),
	(0, 180, NULL),
	(0, 181, NULL),
	(0, 182, NULL),
	(0, 183, NULL),
	(0, 184, NULL),
	(0, 185, NULL),
	(0, 186, NULL),
	(0, 187, NULL),
	(0, 188, NULL),
	(0, 189, NULL),
	(0, 190, NULL),
	(0, 191, NULL),
	(0, 192, NULL),
	(0, 193, NULL),
	(0, 194, NULL),
	(0, 195, NULL),
	(0, 196, NULL),
	(0, 197, NULL),
	(0, 198, NULL),
	(0, 199, NULL);
INSERT INTO frozen_schema.partition VALUES
	(0, 200, NULL),
	(0, 201, NULL),
	(0, 202, NULL),
	(0, 203, NULL),
	(0, 204, NULL),
	(0, 205, NULL),
	(0, 206, NULL),
	(0, 207, NULL),
	(0, 208, NULL),
	(0, 209, NULL),
	(0, 210, NULL),
	(0, 211, NULL),
	(0, 212, NULL),
	(0, 213, NULL),
	(0, 214, NULL),
	(0, 215, NULL),
	(0, 216, NULL),
	(0, 217, NULL),
	(0, 218, NULL),
	(0, 219, NULL),
	(0, 220, NULL),
	(0, 221, NULL),
	(0, 222, NULL),
	(0, 223, NULL),
	(0, 224, NULL),
	(0, 225, NULL),
	(0, 226, NULL),
	(0, 227, NULL),
	(0, 228, NULL),
	(0, 229, NULL),
	(0, 230, NULL),
	(0, 231, NULL),
	(0, 232, NULL),
	(0, 233, NULL),
	(0, 234, NULL),
	(0, 235, NULL),
	(0, 236, NULL),
	(0, 237, NULL),
	(0, 238, NULL),
	(0, 239, NULL),
	(0, 240, NULL),
	(0, 241, NULL),
	(0, 242, NULL),
	(0, 243, NULL),
	(0, 244, NULL),
	(0, 245, NULL),
	(0, 246, NULL),
	(0, 247, NULL),
	(0, 248, NULL),
	(0, 249, NULL);
INSERT INTO frozen_schema.partition VALUES
	(0, 250, NULL),
	(0, 251, NULL),
	(0, 252, NULL),
	(0, 253, NULL),
	(0, 254, NULL),
	(0, 255, NULL);

INSERT INTO frozen_schema.pause VALUES
	(1, 'slow', '{"since":"2026-01-06T10:00:00Z","note":"moving","by":"ann"}');

INSERT INTO frozen_schema.person VALUES
	('01990000-0000-7000-8000-000000000195', 1767693600000000, 1767693600000000, 1, false, 'ann', 'operator', '$argon2id$');

INSERT INTO frozen_schema.request VALUES
	(1, 'asked', 1768384800000000, '\x0101010101010101010101010101010101010101010101010101010101010101', '\x530a3031393930303030303030303730303038303030303030303030303030313965');

INSERT INTO frozen_schema.rollup VALUES
	(1, 491002, '\x010706001b010602050318050606122c02e7b604d06c0f070019060109010b050c050d050e02efc613bb9a031109080109030a050b040c0a0d090e060f051001'),
	(1, 491026, '\x0107020001010203001e0a05010403000001010003');

INSERT INTO frozen_schema.rollup_delta VALUES
	(1767780000001000, '\x0102d4f83b070104010001010102010101000001010001');

INSERT INTO frozen_schema.run VALUES
	('01990000-0000-7000-8000-000000000097', 1, 1767607407002000, 1767607227002000, 1767607224785000, NULL, NULL, NULL, NULL, 1, NULL, 2, 1, 1, 0, 2, 1, 0, 1, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000029', 1, 1767607788980000, 1767607248980000, 1767607204342000, 1767607210090000, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 4, NULL, 2, 0, 8, 1, 1, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:10.421Z","event":"worker_lost","worker":"01990000-0000-7000-8000-000000000007","losses":1}
{"at":"2026-01-05T10:00:47.98Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:45.508Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:48.98Z","fence":3}
', 1767607205203000, NULL),
	('01990000-0000-7000-8000-00000000011e', 1, 1767607553666000, 1767607253666000, 1767607251084000, NULL, NULL, NULL, NULL, 0, NULL, 1, 1, 1, 0, 2, 2, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000136', 1, 1767607677144000, 1767607257144000, 1767607253269000, NULL, NULL, NULL, NULL, 0, NULL, 1, 1, 2, 0, 2, 1, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000141', 1, 1767607674753000, 1767607254753000, 1767607254339000, NULL, NULL, NULL, NULL, 1, NULL, 2, 1, 2, 0, 2, 1, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000134', 1, 1767607313269000, 1767607253269000, 1767607253269000, NULL, NULL, NULL, NULL, 1, 1767607284339000, 2, 1, 1, 0, 2, 2, 5, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, '{"redrive":{"after":"814ms","left":2}}', '{"at":"2026-01-05T10:00:54.339Z","grace_until":"2026-01-05T10:01:24.339Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:54.339Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL),
	('01990000-0000-7000-8000-000000000149', 1, 1767607438212000, 1767607258212000, 1767607254986000, NULL, NULL, NULL, NULL, 1, NULL, 2, 1, 1, 1, 3, 1, 0, 8, 1, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:57.212Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:57.212Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:58.212Z","fence":0}
', 1767607257212000, NULL),
	('01990000-0000-7000-8000-000000000124', 1, 1767607733418000, 1767607253418000, 1767607251631000, NULL, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 0, NULL, 3, 2, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, '{"redrive":{"after":"1s 575ms","left":2}}', NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000017', 1, 1767607318250000, 1767607258250000, 1767607200774000, NULL, NULL, NULL, NULL, NULL, NULL, 2, 1, 1, 0, NULL, 1, 2, 1, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000137', 1, 1767607613269000, 1767607253269000, 1767607253269000, NULL, 1767693600000000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 2, 3, 0, 0, 0, 2, 0, NULL, '01990000-0000-7000-8000-0000000000e0', '01990000-0000-7000-8000-00000000017b', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000014a', 1, 1767607800370000, 1767607260370000, 1767607254986000, NULL, 1767693600000000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 1, 3, 0, 0, 0, 2, NULL, NULL, NULL, '01990000-0000-7000-8000-00000000017b', NULL, '{"redrive":{"after":"1s 808ms","left":1}}', NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000049', 1, 1767607463144000, 1767607223144000, 1767607208789000, NULL, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 2, NULL, 1, 0, 8, 1, 0, 2, NULL, NULL, NULL, NULL, NULL, '{"redrive":{"after":"1s 133ms","left":1}}', NULL, NULL, '{"at":"2026-01-05T10:00:22.144Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:20.833Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:23.144Z","fence":1}
', 1767607220833000, NULL),
	('01990000-0000-7000-8000-000000000064', 1, 1767607274118000, 1767607214118000, 1767607212831000, NULL, NULL, NULL, NULL, 1, NULL, 1, 1, 1, 0, 2, 1, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000034', 1, 1767607573577000, 1767607213577000, 1767607205974000, NULL, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 2, NULL, 1, 0, 8, 0, 1, 2, NULL, NULL, NULL, NULL, NULL, '{"redrive":{"after":"1s 252ms","left":1}}', NULL, NULL, '{"at":"2026-01-05T10:00:13.077Z","event":"worker_lost","worker":"01990000-0000-7000-8000-000000000008","losses":1}
', 1767607207490000, NULL),
	('01990000-0000-7000-8000-000000000038', 1, 1767607753577000, 1767607213577000, 1767607206151000, NULL, NULL, NULL, NULL, 0, NULL, 1, 1, 2, 2, 3, 1, 0, 8, 0, 1, 2, 0, NULL, '01990000-0000-7000-8000-000000000015', NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:13.077Z","event":"worker_lost","worker":"01990000-0000-7000-8000-000000000008","losses":1}
', 1767607207490000, NULL),
	('01990000-0000-7000-8000-00000000003a', 1, 1767607295741000, 1767607235741000, 1767607206151000, NULL, NULL, NULL, NULL, NULL, NULL, 2, 1, 1, 1, NULL, 1, 0, 8, 1, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:34.741Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:34.741Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:35.741Z","fence":0}
', 1767607234741000, NULL),
	('01990000-0000-7000-8000-00000000004a', 1, 1767607406199000, 1767607226199000, 1767607208789000, NULL, 1767607256049000, NULL, NULL, NULL, 1767607258188000, 2, 1, 1, 3, NULL, 3, 4, 8, 0, 0, 2, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:19.167Z","event":"deferred","until":"2026-01-05T10:00:19.428Z","reason":"down"}
{"at":"2026-01-05T10:00:25.529Z","event":"deferred","until":"2026-01-05T10:00:26.199Z","reason":"down"}
', 1767607256049000, NULL),
	('01990000-0000-7000-8000-0000000000bd', 1, 1767607827621000, 1767607227621000, 1767607227621000, NULL, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 0, NULL, 1, 6, 0, 0, 0, 2, NULL, 1, NULL, NULL, NULL, '{"redrive":{"after":"2s 557ms","left":1,"start_within":"2s"}}', NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000b5', 1, 1767607349031000, 1767607229031000, 1767607227293000, 1767607231663000, NULL, NULL, NULL, 1, NULL, 2, 1, 1, 1, 3, 1, 0, 8, 1, 0, 2, NULL, NULL, NULL, NULL, NULL, '{"redrive":{"after":"359ms","left":2}}', NULL, NULL, '{"at":"2026-01-05T10:00:28.031Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:28.031Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:29.031Z","fence":0}
', 1767607228031000, NULL),
	('01990000-0000-7000-8000-00000000009a', 1, 1767607843850000, 1767607243850000, 1767607224785000, NULL, NULL, NULL, NULL, 0, NULL, 2, 1, 2, 2, 2, 1, 0, 8, 0, 1, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:43.35Z","event":"worker_lost","worker":"01990000-0000-7000-8000-000000000008","losses":1}
', 1767607230435000, NULL),
	('01990000-0000-7000-8000-0000000000a6', 1, 1767607483850000, 1767607243850000, 1767607225998000, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 2, NULL, 1, 0, 8, 0, 1, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:43.35Z","event":"worker_lost","worker":"01990000-0000-7000-8000-000000000009","losses":1}
', 1767607228905000, NULL),
	('01990000-0000-7000-8000-0000000000a8', 1, 1767607663850000, 1767607243850000, 1767607225998000, NULL, NULL, NULL, NULL, 1, NULL, 1, 1, 2, 2, 2, 2, 0, 8, 0, 1, 2, NULL, NULL, NULL, NULL, NULL, '{"redrive":{"after":"2s 365ms","left":2}}', NULL, NULL, '{"at":"2026-01-05T10:00:43.35Z","event":"worker_lost","worker":"01990000-0000-7000-8000-000000000008","losses":1}
', 1767607230312000, NULL),
	('01990000-0000-7000-8000-0000000000b2', 1, 1767607723850000, 1767607243850000, 1767607227155000, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 2, NULL, 2, 0, 8, 0, 1, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:43.35Z","event":"worker_lost","worker":"01990000-0000-7000-8000-000000000007","losses":1}
', 1767607235129000, NULL),
	('01990000-0000-7000-8000-0000000000d4', 1, 1767607723850000, 1767607243850000, 1767607233802000, 1767607233820000, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 2, NULL, 2, 0, 8, 0, 1, 2, 0, NULL, '01990000-0000-7000-8000-0000000000a8', NULL, NULL, '{"redrive":{"after":"1s 106ms","left":2,"end_within":"3s"}}', NULL, NULL, '{"at":"2026-01-05T10:00:43.35Z","event":"worker_lost","worker":"01990000-0000-7000-8000-000000000007","losses":1}
', 1767607235129000, NULL),
	('01990000-0000-7000-8000-0000000000d5', 1, 1767607716137000, 1767607236137000, 1767607233802000, NULL, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 0, NULL, 3, 2, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000df', 1, 1767607657805000, 1767607237805000, 1767607235406000, NULL, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 0, NULL, 3, 2, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000bc', 1, 1767607715095000, 1767607235095000, 1767607227621000, 1767607230104000, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 2, NULL, 1, 0, 9, 1, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:34.095Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:30.435Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:35.095Z","fence":1}
', 1767607230435000, NULL),
	('01990000-0000-7000-8000-0000000000ad', 1, 1767607618266000, 1767607258266000, 1767607226647000, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 4, NULL, 3, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:43.292Z","event":"deferred","until":"2026-01-05T10:00:44.753Z","reason":"down"}
{"at":"2026-01-05T10:00:55.422Z","event":"deferred","until":"2026-01-05T10:00:58.266Z","reason":"down"}
', NULL, NULL),
	('01990000-0000-7000-8000-0000000000e0', 1, 1767607376631000, 1767607256631000, 1767607235406000, NULL, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 2, NULL, 2, 0, 8, 0, 1, 2, NULL, NULL, NULL, NULL, NULL, '{"redrive":{"after":"202ms","left":1}}', NULL, NULL, '{"at":"2026-01-05T10:00:56.131Z","event":"worker_lost","worker":"01990000-0000-7000-8000-000000000009","losses":1}
', 1767607250972000, NULL),
	('01990000-0000-7000-8000-0000000000e1', 1, 1767607657128000, 1767607237128000, 1767607235406000, NULL, NULL, NULL, NULL, 0, NULL, 1, 1, 2, 0, 2, 1, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, '{"redrive":{"after":"326ms","left":2,"start_within":"2s","end_within":"3s"}}', NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000fd', 1, 1767607309616000, 1767607249616000, 1767607245798000, NULL, NULL, NULL, NULL, 1, NULL, 1, 1, 1, 0, 2, 2, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000106', 1, 1767607430907000, 1767607250907000, 1767607247491000, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 0, NULL, 2, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000107', 1, 1767607847491000, 1767607247491000, 1767607247491000, NULL, NULL, NULL, NULL, NULL, 1767607253169000, 1, 1, 1, 0, NULL, 2, 2, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, '{"redrive":{"after":"1s 453ms","left":1,"start_within":"2s","end_within":"3s"},"deadline_at":"2026-01-05T10:00:53.169Z"}', NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000110', 1, 1767607551043000, 1767607251043000, 1767607248777000, NULL, NULL, NULL, NULL, 1, 1767607252870000, 1, 1, 2, 0, 2, 2, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:00:52.87Z"}', NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-0000000000fe', 1, 1767607550119000, 1767607250119000, 1767607245798000, 1767607249684000, NULL, NULL, NULL, NULL, NULL, 1, 1, 1, 1, NULL, 2, 0, 8, 1, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:49.119Z","event":"attempt_failed","attempt":1,"started_at":"2026-01-05T10:00:49.119Z","failure":{"kind":"connection_refused","message":"nobody there"},"retry_at":"2026-01-05T10:00:50.119Z","fence":0}
', 1767607249119000, NULL),
	('01990000-0000-7000-8000-0000000000f3', 1, 1767607604089000, 1767607244089000, 1767607244089000, NULL, NULL, NULL, NULL, 0, 1767607278777000, 2, 1, 1, 0, 3, 2, 5, 1, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:48.777Z","grace_until":"2026-01-05T10:01:18.777Z","reason":"a newer run under the same concurrency key"}', NULL, '{"at":"2026-01-05T10:00:48.777Z","event":"cancel_requested","by":null,"reason":"a newer run under the same concurrency key"}
', NULL, NULL),
	('01990000-0000-7000-8000-00000000014e', 1, 1767607675976000, 1767607255976000, 1767607255893000, NULL, NULL, NULL, NULL, NULL, NULL, 2, 1, 2, 0, NULL, 2, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000015b', 1, 1767607857126000, 1767607257126000, 1767607256825000, NULL, NULL, NULL, NULL, NULL, 1767607262733000, 1, 1, 2, 0, NULL, 1, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, '{"deadline_at":"2026-01-05T10:01:02.733Z"}', NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000168', 1, 1767607380368000, 1767607260368000, 1767607258343000, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 0, NULL, 1, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000015a', 1, 1767607316825000, 1767607256825000, 1767607256825000, NULL, 1767607258571000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 2, 3, 0, 0, 0, 2, NULL, NULL, NULL, '01990000-0000-7000-8000-000000000009', NULL, '{"redrive":{"after":"59ms","left":1,"end_within":"3s"},"deadline_at":"2026-01-05T10:01:05.105Z"}', NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-000000000150', 1, 1767607315893000, 1767607255893000, 1767607255893000, NULL, 1767607258571000, NULL, NULL, 0, NULL, 2, 1, 2, 1, 2, 1, 3, 0, 0, 0, 2, 0, NULL, '01990000-0000-7000-8000-0000000000e0', '01990000-0000-7000-8000-000000000009', NULL, '{"redrive":{"after":"1s 423ms","left":1,"end_within":"3s"}}', NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000016f', 1, 1767607739919000, 1767607259919000, 1767607259284000, NULL, NULL, NULL, NULL, 1, NULL, 2, 1, 1, 1, 2, 1, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"at":"2026-01-05T10:00:59.318Z","event":"deferred","until":"2026-01-05T10:00:59.919Z","reason":"down"}
', NULL, NULL),
	('01990000-0000-7000-8000-000000000197', 1, 1767866699900000, 1767866399900000, 1767866399900000, NULL, 1767866399900000, NULL, NULL, NULL, NULL, 1, 1, 2, 1, NULL, 7, 3, 0, 0, 0, 2, NULL, NULL, NULL, '01990000-0000-7000-8000-000000000199', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01990000-0000-7000-8000-00000000019b', 1, 1767866699910000, 1767866399910000, 1767866399910000, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, 2, 0, NULL, 7, 2, 0, 0, 0, 2, 1, NULL, '01990000-0000-7000-8000-000000000197', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 40000),
	('01990000-0000-7000-8000-00000000019e', 1, 1767866700000000, 1767866400000000, 1767866399950000, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, 1, 0, NULL, 7, 0, 0, 0, 0, 2, NULL, NULL, NULL, NULL, '{"a":1}', '{"labels":{"scope":"user"},"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', NULL, NULL, NULL, NULL, NULL);

INSERT INTO frozen_schema.schedule VALUES
	(1, 1, 0, NULL, 1, 1, 46, true, false, NULL, 'every', '{"every":"1m"}', NULL, NULL),
	(2, 1, 3, 1767607228748000, 1, 1, 67, true, false, NULL, 'after', '{"after_finish":"2000ms"}', NULL, NULL),
	(3, 1, 0, NULL, 1, 3, 125, true, false, NULL, 'daily', '{"every":"1m"}', '{"since":"2026-01-06T10:00:00Z","note":"moving","by":"ann"}', NULL);

INSERT INTO frozen_schema.session VALUES
	('01990000-0000-7000-8000-000000000195', 1767693600000000, 1775383200000000, '\x3f3af1ecebbd1410ab417ec0d27bbfcb5d340e177ae159b59fc8626c2dfd9175');

INSERT INTO frozen_schema.skip VALUES
	(2, 1767607253084000, 1767607253084000, 1, 3, 0),
	(3, 1767693600000000, 1767693660000000, 2, 0, 6);

INSERT INTO frozen_schema.slot VALUES
	(0, 3, 2, 0),
	(1, 2, 1, 0);

INSERT INTO frozen_schema.tenant OVERRIDING SYSTEM VALUE VALUES
	(1, 1767607200000000, 3, 'acme', NULL),
	(2, 1767607200000000, 3, 'other', NULL),
	(3, 1767693600000000, 0, 'small', '{"payload":"2 KB"}');

INSERT INTO frozen_schema.token VALUES
	('01990000-0000-7000-8000-000000000194', 1767693600000000, 1775383200000000, NULL, NULL, 1, false, '\x1b158839f8aa339e89bb50b1603e90ec68e0fd5565fe10a7cb32729fddf7070a', 'ci', '["job:read","run:cancel"]', 'ann');

INSERT INTO frozen_schema.unique_key VALUES
	(77, 1768384800000000, '01990000-0000-7000-8000-00000000019e');

INSERT INTO frozen_schema.worker VALUES
	('01990000-0000-7000-8000-000000000193', 1767866400000000, 1767866400000000, 1767866400009000, 1, false, false, 'w', '{"version":"","node":"","built_in":false,"queues":[],"traits":[],"handlers":["mail"],"kinds":[],"slots":4,"busy":0}');

SELECT pg_catalog.setval('frozen_schema.inbox_id_seq', 1, true);

SELECT pg_catalog.setval('frozen_schema.job_id_seq', 3, true);

SELECT pg_catalog.setval('frozen_schema.lane_id_seq', 2, true);

SELECT pg_catalog.setval('frozen_schema.schedule_id', 3, true);

SELECT pg_catalog.setval('frozen_schema.tenant_id_seq', 3, true);

ALTER TABLE ONLY frozen_schema.after_edge
    ADD CONSTRAINT after_edge_pkey PRIMARY KEY (tenant, upstream, downstream);

ALTER TABLE ONLY frozen_schema.after_end
    ADD CONSTRAINT after_end_pkey PRIMARY KEY (downstream, run);

ALTER TABLE ONLY frozen_schema.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (tenant, at, id);

ALTER TABLE ONLY frozen_schema.batch
    ADD CONSTRAINT batch_pkey PRIMARY KEY (id);

ALTER TABLE ONLY frozen_schema.bucket
    ADD CONSTRAINT bucket_pkey PRIMARY KEY (key);

ALTER TABLE ONLY frozen_schema.calendar
    ADD CONSTRAINT calendar_pkey PRIMARY KEY (tenant, name);

ALTER TABLE ONLY frozen_schema.cursor
    ADD CONSTRAINT cursor_pkey PRIMARY KEY (part, due_at, schedule);

ALTER TABLE ONLY frozen_schema.dead_mark
    ADD CONSTRAINT dead_mark_pkey PRIMARY KEY (run);

ALTER TABLE ONLY frozen_schema.holder
    ADD CONSTRAINT holder_pkey PRIMARY KEY (worker);

ALTER TABLE ONLY frozen_schema.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (id);

ALTER TABLE ONLY frozen_schema.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (id);

ALTER TABLE ONLY frozen_schema.job_version
    ADD CONSTRAINT job_version_pkey PRIMARY KEY (job, version);

ALTER TABLE ONLY frozen_schema.lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (id);

ALTER TABLE ONLY frozen_schema.log
    ADD CONSTRAINT log_pkey PRIMARY KEY (run, attempt, seq, at);

ALTER TABLE ONLY frozen_schema.log_20260105
    ADD CONSTRAINT log_20260105_pkey PRIMARY KEY (run, attempt, seq, at);

ALTER TABLE ONLY frozen_schema.log_20260106
    ADD CONSTRAINT log_20260106_pkey PRIMARY KEY (run, attempt, seq, at);

ALTER TABLE ONLY frozen_schema.log_20260107
    ADD CONSTRAINT log_20260107_pkey PRIMARY KEY (run, attempt, seq, at);

ALTER TABLE ONLY frozen_schema.log_20260108
    ADD CONSTRAINT log_20260108_pkey PRIMARY KEY (run, attempt, seq, at);

ALTER TABLE ONLY frozen_schema.log_20260109
    ADD CONSTRAINT log_20260109_pkey PRIMARY KEY (run, attempt, seq, at);

ALTER TABLE ONLY frozen_schema.log_20260110
    ADD CONSTRAINT log_20260110_pkey PRIMARY KEY (run, attempt, seq, at);

ALTER TABLE ONLY frozen_schema.log_kept
    ADD CONSTRAINT log_kept_pkey PRIMARY KEY (run, attempt, seq, at);

ALTER TABLE ONLY frozen_schema.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (one);

ALTER TABLE ONLY frozen_schema.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);

ALTER TABLE ONLY frozen_schema.need
    ADD CONSTRAINT need_pkey PRIMARY KEY (needed, waiter);

ALTER TABLE ONLY frozen_schema.node
    ADD CONSTRAINT node_pkey PRIMARY KEY (id);

ALTER TABLE ONLY frozen_schema.notice
    ADD CONSTRAINT notice_pkey PRIMARY KEY (part, run);

ALTER TABLE ONLY frozen_schema.open_dead
    ADD CONSTRAINT open_dead_pkey PRIMARY KEY (run);

ALTER TABLE ONLY frozen_schema.partition
    ADD CONSTRAINT partition_pkey PRIMARY KEY (part);

ALTER TABLE ONLY frozen_schema.pause
    ADD CONSTRAINT pause_pkey PRIMARY KEY (tenant, queue);

ALTER TABLE ONLY frozen_schema.person
    ADD CONSTRAINT person_pkey PRIMARY KEY (id);

ALTER TABLE ONLY frozen_schema.person
    ADD CONSTRAINT person_tenant_name_key UNIQUE (tenant, name);

ALTER TABLE ONLY frozen_schema.request
    ADD CONSTRAINT request_pkey PRIMARY KEY (tenant, key);

ALTER TABLE ONLY frozen_schema.rollup
    ADD CONSTRAINT rollup_pkey PRIMARY KEY (job, hour);

ALTER TABLE ONLY frozen_schema.run
    ADD CONSTRAINT run_pkey PRIMARY KEY (id);

ALTER TABLE ONLY frozen_schema.schedule
    ADD CONSTRAINT schedule_pkey PRIMARY KEY (id);

ALTER TABLE ONLY frozen_schema.session
    ADD CONSTRAINT session_pkey PRIMARY KEY (digest);

ALTER TABLE ONLY frozen_schema.skip
    ADD CONSTRAINT skip_pkey PRIMARY KEY (schedule, from_at);

ALTER TABLE ONLY frozen_schema.slot
    ADD CONSTRAINT slot_pkey PRIMARY KEY (key);

ALTER TABLE ONLY frozen_schema.tenant
    ADD CONSTRAINT tenant_name_key UNIQUE (name);

ALTER TABLE ONLY frozen_schema.tenant
    ADD CONSTRAINT tenant_pkey PRIMARY KEY (id);

ALTER TABLE ONLY frozen_schema.token
    ADD CONSTRAINT token_digest_key UNIQUE (digest);

ALTER TABLE ONLY frozen_schema.token
    ADD CONSTRAINT token_pkey PRIMARY KEY (id);

ALTER TABLE ONLY frozen_schema.unique_key
    ADD CONSTRAINT unique_key_pkey PRIMARY KEY (key);

ALTER TABLE ONLY frozen_schema.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (id);

CREATE INDEX after_edge_downstream ON frozen_schema.after_edge USING btree (downstream);

CREATE INDEX after_end_new ON frozen_schema.after_end USING btree (at, run) WHERE (NOT held);

CREATE INDEX audit_at ON frozen_schema.audit USING btree (at);

CREATE UNIQUE INDEX cursor_schedule ON frozen_schema.cursor USING btree (part, schedule);

CREATE INDEX dead_mark_at ON frozen_schema.dead_mark USING btree (at);

CREATE INDEX history_dead ON ONLY frozen_schema.history USING btree (ended_at, id) WHERE (verdict = 4);

CREATE INDEX history_20260105_ended_at_id_idx ON frozen_schema.history_20260105 USING btree (ended_at, id) WHERE (verdict = 4);

CREATE INDEX history_id ON ONLY frozen_schema.history USING brin (id uuid_minmax_multi_ops) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX history_20260105_id_idx ON frozen_schema.history_20260105 USING brin (id uuid_minmax_multi_ops) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX history_job ON ONLY frozen_schema.history USING btree (job, ended_at);

CREATE INDEX history_20260105_job_ended_at_idx ON frozen_schema.history_20260105 USING btree (job, ended_at);

CREATE INDEX history_tenant ON ONLY frozen_schema.history USING btree (tenant, ended_at);

CREATE INDEX history_20260105_tenant_ended_at_idx ON frozen_schema.history_20260105 USING btree (tenant, ended_at);

CREATE INDEX history_20260106_ended_at_id_idx ON frozen_schema.history_20260106 USING btree (ended_at, id) WHERE (verdict = 4);

CREATE INDEX history_20260106_id_idx ON frozen_schema.history_20260106 USING brin (id uuid_minmax_multi_ops) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX history_20260106_job_ended_at_idx ON frozen_schema.history_20260106 USING btree (job, ended_at);

CREATE INDEX history_20260106_tenant_ended_at_idx ON frozen_schema.history_20260106 USING btree (tenant, ended_at);

CREATE INDEX history_20260107_ended_at_id_idx ON frozen_schema.history_20260107 USING btree (ended_at, id) WHERE (verdict = 4);

CREATE INDEX history_20260107_id_idx ON frozen_schema.history_20260107 USING brin (id uuid_minmax_multi_ops) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX history_20260107_job_ended_at_idx ON frozen_schema.history_20260107 USING btree (job, ended_at);

CREATE INDEX history_20260107_tenant_ended_at_idx ON frozen_schema.history_20260107 USING btree (tenant, ended_at);

CREATE INDEX history_20260108_ended_at_id_idx ON frozen_schema.history_20260108 USING btree (ended_at, id) WHERE (verdict = 4);

CREATE INDEX history_20260108_id_idx ON frozen_schema.history_20260108 USING brin (id uuid_minmax_multi_ops) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX history_20260108_job_ended_at_idx ON frozen_schema.history_20260108 USING btree (job, ended_at);

CREATE INDEX history_20260108_tenant_ended_at_idx ON frozen_schema.history_20260108 USING btree (tenant, ended_at);

CREATE INDEX history_20260109_ended_at_id_idx ON frozen_schema.history_20260109 USING btree (ended_at, id) WHERE (verdict = 4);

CREATE INDEX history_20260109_id_idx ON frozen_schema.history_20260109 USING brin (id uuid_minmax_multi_ops) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX history_20260109_job_ended_at_idx ON frozen_schema.history_20260109 USING btree (job, ended_at);

CREATE INDEX history_20260109_tenant_ended_at_idx ON frozen_schema.history_20260109 USING btree (tenant, ended_at);

CREATE INDEX history_20260110_ended_at_id_idx ON frozen_schema.history_20260110 USING btree (ended_at, id) WHERE (verdict = 4);

CREATE INDEX history_20260110_id_idx ON frozen_schema.history_20260110 USING brin (id uuid_minmax_multi_ops) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX history_20260110_job_ended_at_idx ON frozen_schema.history_20260110 USING btree (job, ended_at);

CREATE INDEX history_20260110_tenant_ended_at_idx ON frozen_schema.history_20260110 USING btree (tenant, ended_at);

CREATE INDEX job_deletion ON frozen_schema.job USING btree (updated_at) WHERE (deletion IS NOT NULL);

CREATE INDEX job_gone ON frozen_schema.job USING btree (updated_at) WHERE (deleted AND (deletion IS NULL));

CREATE UNIQUE INDEX job_name ON frozen_schema.job USING btree (tenant, name) WHERE (NOT deleted);

CREATE INDEX job_tags ON frozen_schema.job USING gin (tags);

CREATE INDEX job_version_unused ON frozen_schema.job_version USING btree (unused_since) WHERE (unused_since IS NOT NULL);

CREATE UNIQUE INDEX lane_open ON frozen_schema.lane USING btree (queue, COALESCE(handler, ''::text), ((handler IS NULL)), requires) WHERE (NOT retired);

CREATE INDEX need_waiter ON frozen_schema.need USING btree (waiter);

CREATE INDEX open_dead_ended ON frozen_schema.open_dead USING btree (ended_at);

CREATE INDEX request_expires ON frozen_schema.request USING btree (expires_at);

CREATE INDEX run_delayed ON frozen_schema.run USING btree (part, ready_at) WHERE (status = 0);

CREATE INDEX run_due ON frozen_schema.run USING btree (due_at) WHERE (due_at IS NOT NULL);

CREATE INDEX run_holder ON frozen_schema.run USING btree (holder) WHERE (holder IS NOT NULL);

CREATE INDEX run_holding ON frozen_schema.run USING btree (slot) WHERE ((slot IS NOT NULL) AND (status = ANY (ARRAY[2, 3, 4, 5])));

CREATE INDEX run_inherited ON frozen_schema.run USING btree (part) WHERE ((holder IS NULL) AND (status = ANY (ARRAY[3, 5])));

CREATE INDEX run_parent ON frozen_schema.run USING btree (parent) WHERE (parent IS NOT NULL);

CREATE INDEX run_ready ON frozen_schema.run USING btree (lane, tenant, order_key, id) WHERE (status = 2);

CREATE INDEX run_schedule ON frozen_schema.run USING btree (schedule) WHERE (schedule IS NOT NULL);

CREATE INDEX run_set_aside ON frozen_schema.run USING btree (id) WHERE (status >= 100);

CREATE INDEX run_slot ON frozen_schema.run USING btree (slot, order_key, id) WHERE (status = 1);

CREATE INDEX schedule_gone ON frozen_schema.schedule USING btree (deleted_at) WHERE deleted;

CREATE UNIQUE INDEX schedule_name ON frozen_schema.schedule USING btree (job, name) WHERE (NOT deleted);

CREATE INDEX schedule_part ON frozen_schema.schedule USING btree (part, id) WHERE (enabled AND (NOT deleted));

CREATE INDEX schedule_tenant ON frozen_schema.schedule USING btree (tenant, id) WHERE (NOT deleted);

CREATE INDEX session_expires ON frozen_schema.session USING btree (expires_at);

CREATE INDEX session_person ON frozen_schema.session USING btree (person);

CREATE INDEX skip_to ON frozen_schema.skip USING btree (to_at);

CREATE INDEX token_tenant ON frozen_schema.token USING btree (tenant, id);

CREATE INDEX unique_key_until ON frozen_schema.unique_key USING btree (until);

ALTER INDEX frozen_schema.history_dead ATTACH PARTITION frozen_schema.history_20260105_ended_at_id_idx;

ALTER INDEX frozen_schema.history_id ATTACH PARTITION frozen_schema.history_20260105_id_idx;

ALTER INDEX frozen_schema.history_job ATTACH PARTITION frozen_schema.history_20260105_job_ended_at_idx;

ALTER INDEX frozen_schema.history_tenant ATTACH PARTITION frozen_schema.history_20260105_tenant_ended_at_idx;

ALTER INDEX frozen_schema.history_dead ATTACH PARTITION frozen_schema.history_20260106_ended_at_id_idx;

ALTER INDEX frozen_schema.history_id ATTACH PARTITION frozen_schema.history_20260106_id_idx;

ALTER INDEX frozen_schema.history_job ATTACH PARTITION frozen_schema.history_20260106_job_ended_at_idx;

ALTER INDEX frozen_schema.history_tenant ATTACH PARTITION frozen_schema.history_20260106_tenant_ended_at_idx;

ALTER INDEX frozen_schema.history_dead ATTACH PARTITION frozen_schema.history_20260107_ended_at_id_idx;

ALTER INDEX frozen_schema.history_id ATTACH PARTITION frozen_schema.history_20260107_id_idx;

ALTER INDEX frozen_schema.history_job ATTACH PARTITION frozen_schema.history_20260107_job_ended_at_idx;

ALTER INDEX frozen_schema.history_tenant ATTACH PARTITION frozen_schema.history_20260107_tenant_ended_at_idx;

ALTER INDEX frozen_schema.history_dead ATTACH PARTITION frozen_schema.history_20260108_ended_at_id_idx;

ALTER INDEX frozen_schema.history_id ATTACH PARTITION frozen_schema.history_20260108_id_idx;

ALTER INDEX frozen_schema.history_job ATTACH PARTITION frozen_schema.history_20260108_job_ended_at_idx;

ALTER INDEX frozen_schema.history_tenant ATTACH PARTITION frozen_schema.history_20260108_tenant_ended_at_idx;

ALTER INDEX frozen_schema.history_dead ATTACH PARTITION frozen_schema.history_20260109_ended_at_id_idx;

ALTER INDEX frozen_schema.history_id ATTACH PARTITION frozen_schema.history_20260109_id_idx;

ALTER INDEX frozen_schema.history_job ATTACH PARTITION frozen_schema.history_20260109_job_ended_at_idx;

ALTER INDEX frozen_schema.history_tenant ATTACH PARTITION frozen_schema.history_20260109_tenant_ended_at_idx;

ALTER INDEX frozen_schema.history_dead ATTACH PARTITION frozen_schema.history_20260110_ended_at_id_idx;

ALTER INDEX frozen_schema.history_id ATTACH PARTITION frozen_schema.history_20260110_id_idx;

ALTER INDEX frozen_schema.history_job ATTACH PARTITION frozen_schema.history_20260110_job_ended_at_idx;

ALTER INDEX frozen_schema.history_tenant ATTACH PARTITION frozen_schema.history_20260110_tenant_ended_at_idx;

ALTER INDEX frozen_schema.log_pkey ATTACH PARTITION frozen_schema.log_20260105_pkey;

ALTER INDEX frozen_schema.log_pkey ATTACH PARTITION frozen_schema.log_20260106_pkey;

ALTER INDEX frozen_schema.log_pkey ATTACH PARTITION frozen_schema.log_20260107_pkey;

ALTER INDEX frozen_schema.log_pkey ATTACH PARTITION frozen_schema.log_20260108_pkey;

ALTER INDEX frozen_schema.log_pkey ATTACH PARTITION frozen_schema.log_20260109_pkey;

ALTER INDEX frozen_schema.log_pkey ATTACH PARTITION frozen_schema.log_20260110_pkey;

