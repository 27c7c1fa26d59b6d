//! The raw loop: the same writes by hand, for a benchmark to be measured
//! against.
//!
//! Inserts runs and moves them to history, counts their slots and their ends and
//! names each batch, in the same tables, in as few commits and round trips, and with
//! dead rows cleared away as often, but with none of the guards, decisions, answers
//! and fairness. Where runs are claimed, they are found by their order and read as a
//! worker needs them, which is what claiming means.

use const_format::formatcp;
use jiff::Timestamp;
use tokio_postgres::{Row, types::ToSql};
use uuid::Uuid;

use super::{OpenError, Options, PostgresStore, fault::Fault, tend::DEAD_MAX};
use crate::{
    codec::{
        micros,
        sql::{QUEUED, RUNNING},
    },
    raw::{RawLoad, RawRun},
};

const INSERT: &str = "
WITH made AS (
    INSERT INTO run (id, job, order_key, ready_at, created_at, tenant, version, lane, fence, part, status, flags,
                     attempt, losses, source, slot, slot_limit, payload)
    SELECT id, job, $2, $2, $2, tenant, 1, lane, 0, $4, 2, 0, 0, 0, 2, slot, slot::int, $3
    FROM unnest($1::uuid[], $5::bigint[], $6::int[], $7::int[], $8::bigint[]) u (id, job, tenant, lane, slot)
), named AS (INSERT INTO batch (id, at) VALUES ($9, $2))
INSERT INTO slot AS s (key, lim, held, waiting) SELECT key, 1, count(*), 0 FROM unnest($8::bigint[]) key
WHERE key IS NOT NULL GROUP BY key ORDER BY key ON CONFLICT (key) DO UPDATE SET held = s.held + excluded.held";

const CLAIM: &str = formatcp!(
    "UPDATE run SET status = {RUNNING}, fence = fence + 1, holder = $2, started_at = $3 \
     WHERE ctid = ANY(ARRAY(SELECT x.ctid FROM generate_series(1, 3) l (lane), LATERAL ( \
         SELECT ctid FROM run WHERE status = {QUEUED} AND lane = l.lane ORDER BY tenant, order_key, id \
         LIMIT $1 FOR UPDATE SKIP LOCKED) x LIMIT $1)) \
     RETURNING id, job, version, attempt, fence, payload"
);

const MOVE: &str = "
WITH ended AS (DELETE FROM run WHERE id = ANY($1::uuid[]) RETURNING *
), kept AS (
    INSERT INTO history (id, job, ended_at, order_key, ready_at, created_at, started_at, tenant, version, lane,
                         fence, part, verdict, attempt, losses, source, slot, slot_limit, payload)
    SELECT id, job, $2, order_key, ready_at, created_at, $2, tenant, version, lane, fence, part, 0, attempt, losses,
           source, slot, slot_limit, payload FROM ended
), counted AS (INSERT INTO rollup_delta (at, body) VALUES ($2, $3)
), named AS (INSERT INTO batch (id, at) VALUES ($4, $2))
INSERT INTO slot AS s (key, lim, held, waiting) SELECT slot, 1, -count(*), 0 FROM ended
WHERE slot IS NOT NULL GROUP BY slot ORDER BY slot ON CONFLICT (key) DO UPDATE SET held = s.held + excluded.held";

fn prepare(fault: Fault) -> OpenError {
    OpenError::Prepare(Box::new(fault.told("run the raw loop")))
}

async fn opened(url: &str, connections: u64) -> Result<PostgresStore, OpenError> {
    PostgresStore::open(url, Options { work_connections: connections as usize, ..Options::default() }).await
}

/// Runs the loop on a store's database, in so many pipelines.
pub async fn raw_loop(url: &str, load: RawLoad, parallel: u64, now: Timestamp) -> Result<(), OpenError> {
    // Each pipeline inserts and settles at once, as the driven store does.
    let store = opened(url, parallel * 3).await?;
    store.have_day(micros(now)).await.map_err(prepare)?;
    let share = |n: u64| RawLoad { runs: load.runs / parallel + u64::from(n < load.runs % parallel), ..load };
    let pipelines = (0..parallel).map(|n| life(&store, share(n), n as i16, now));
    tokio::select! {
        ended = futures_util::future::join_all(pipelines) => ended.into_iter().collect::<Result<(), Fault>>(),
        failed = cleared(&store) => failed,
    }
    .map_err(prepare)
}

/// Clears away dead rows as upkeep does beside the driven store.
async fn cleared(store: &PostgresStore) -> Result<(), Fault> {
    loop {
        store.clear(DEAD_MAX).await?;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}

async fn life(store: &PostgresStore, load: RawLoad, part: i16, now: Timestamp) -> Result<(), Fault> {
    let payload = RawLoad::payload(load.payload);
    let (at, worker, batch) = (micros(now), Uuid::nil(), load.batch as i64);
    let counts = load.counts(now);
    let (mut ready, mut claimed): (Vec<Uuid>, Vec<Uuid>) = (Vec::new(), Vec::new());
    let mut left = load.runs;
    while left > 0 || !ready.is_empty() || !claimed.is_empty() {
        let ids: Vec<Uuid> = (0..load.batch.min(left)).map(|_| Uuid::now_v7()).collect();
        let places: Vec<RawRun> = ids.iter().map(|id| load.place(*id)).collect();
        let jobs: Vec<i64> = places.iter().map(|place| place.job).collect();
        let tenants: Vec<i32> = places.iter().map(|place| place.tenant).collect();
        let lanes: Vec<i32> = places.iter().map(|place| place.lane).collect();
        let slots: Vec<Option<i64>> = places.iter().map(|place| place.slot).collect();
        let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
        let made: [&(dyn ToSql + Sync); 9] = [&ids, &at, &payload, &part, &jobs, &tenants, &lanes, &slots, &first];
        let held: [&(dyn ToSql + Sync); 3] = [&batch, &worker, &at];
        let moved: [&(dyn ToSql + Sync); 4] = [&claimed, &at, &counts, &second];
        let claiming = async { if load.claimed { store.read(CLAIM, &held).await } else { Ok(Vec::new()) } };
        let (inserted, taken, ended): (Answer, Answer, Answer) =
            tokio::join!(store.read(INSERT, &made), claiming, store.read(MOVE, &moved));
        inserted.and(ended)?;
        left -= ids.len() as u64;
        claimed = std::mem::replace(&mut ready, ids);
        if load.claimed {
            claimed = taken?.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        }
    }
    Ok(())
}

type Answer = Result<Vec<Row>, Fault>;

/// How many finished runs a database holds.
pub async fn history_len(url: &str) -> Result<u64, OpenError> {
    number(url, "SELECT count(*) FROM history").await
}

/// Bytes of write-ahead log that the server has written so far.
pub async fn log_bytes(url: &str) -> Result<u64, OpenError> {
    number(url, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").await
}

async fn number(url: &str, sql: &str) -> Result<u64, OpenError> {
    let store = opened(url, 1).await?;
    let rows = store.read(sql, &[]).await.map_err(prepare)?;
    let number: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(|e| prepare(e.into()))?;
    Ok(number.max(0) as u64)
}
