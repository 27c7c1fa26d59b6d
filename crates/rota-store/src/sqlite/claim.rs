//! Claiming: written leases for workers, and their extension.

use std::sync::LazyLock;

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::{
    dispatch::Pair,
    ids::{LaneId, TenantId, WorkerId},
    lane::LaneMode,
    order::OrderKey,
    run::{Change, Run, Slots},
    store::{Claim, ClaimStore, Guarded, StoreError, Write},
};
use rusqlite::{Connection, OptionalExtension, ToSql, params};
use uuid::Uuid;

use super::{
    SqliteStore,
    apply::Work,
    failed,
    many::Many,
    once::once,
    rows::{change, live_row, live_rows, select_run},
    writer::Urgency,
};
use crate::{
    codec::{
        micros,
        sql::{QUEUED, RUNNING},
    },
    kept,
};

/// Walks from tenant to tenant through the index of ready runs.
fn pairs_of(connection: &Connection, lane: LaneId, pairs: &mut Vec<(Pair, OrderKey)>) -> Result<(), StoreError> {
    let sql = formatcp!(
        "SELECT tenant, order_key FROM run WHERE status = {QUEUED} AND lane = ?1 AND tenant > ?2 \
         ORDER BY tenant, order_key LIMIT 1"
    );
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let mut tenant = i32::MIN;
    loop {
        let found: Option<(i32, i64)> = select
            .query_row(params![lane.0, tenant], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .map_err(failed)?;
        let Some((next, key)) = found else { return Ok(()) };
        pairs.push((Pair { lane, tenant: TenantId(next) }, OrderKey(key)));
        tenant = next;
    }
}

/// The runs of a claim whose answer was lost, as far as its leases still hold.
fn restored(connection: &Connection, kept: Option<&[u8]>) -> Result<Vec<Run>, StoreError> {
    let leases = kept::leases_again(kept.unwrap_or_default())?;
    let mut runs = Vec::with_capacity(leases.len());
    for lease in leases {
        if let Some(row) = live_row(connection, lease.run.0)?
            && row.fence == lease.fence.0
            && row.holder.is_some()
        {
            runs.push(row.run);
        }
    }
    Ok(runs)
}

pub fn put_holder(connection: &Connection, worker: WorkerId, until: jiff::Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO holder (worker, until) VALUES (?1, ?2) \
         ON CONFLICT (worker) DO UPDATE SET until = max(until, excluded.until)";
    change(connection, sql, params![worker.0.as_bytes(), micros(until)])?;
    Ok(())
}

static READY: LazyLock<String> = LazyLock::new(|| {
    select_run(formatcp!(
        "WHERE run.status = {QUEUED} AND run.lane = ?1 AND run.tenant = ?2 AND run.order_key >= ?3 \
         ORDER BY run.order_key, run.id"
    ))
});

fn claim_runs(connection: &Connection, write: &Write, claim: &Claim) -> Result<Vec<Run>, StoreError> {
    let mut work = Work::new(connection, write);
    let mut claimed: Vec<Run> = Vec::new();
    for share in &claim.shares {
        let room = (claim.most as usize).saturating_sub(claimed.len()).min(share.runs as usize);
        if room == 0 || work.mode(share.pair.lane.0)? != LaneMode::Claimed {
            continue;
        }
        let key = params![share.pair.lane.0, share.pair.tenant.0, share.low.0];
        for row in live_rows(connection, &READY, key, room, |_| true)? {
            let mut run = row.run;
            if let Ok(change) = run.claim(claim.worker, write.now) {
                run.apply(&change);
                claimed.push(run);
            }
        }
    }
    // A worker that asks in vain, as an idle one does all day, writes nothing.
    if !claimed.is_empty() {
        take(connection, &claimed, claim.worker, write)?;
        put_holder(connection, claim.worker, claim.until)?;
    }
    Ok(claimed)
}

/// The one move that happens to every claimed run has a statement of its own.
static TAKE: LazyLock<Many> = LazyLock::new(|| {
    let head = formatcp!(
        "UPDATE OR FAIL run SET status = {RUNNING}, fence = fence + 1, holder = ?, started_at = ?, due_at = NULL \
         WHERE status = {QUEUED} AND id IN ("
    );
    Many::new(head, "?", ")")
});

fn take(connection: &Connection, runs: &[Run], worker: WorkerId, write: &Write) -> Result<(), StoreError> {
    // In the order of their rows, so that neighbours are changed together.
    let mut ids: Vec<Uuid> = runs.iter().map(|run| run.id.0).collect();
    ids.sort_unstable();
    let first: [&dyn ToSql; 2] = [worker.0.as_bytes(), &micros(write.now)];
    TAKE.execute_with(connection, &first, &ids, |values, id| values.put(id.as_bytes())).map_err(failed)
}

/// Leases one run in writing, whatever its lane.
pub fn lease_in_writing(work: &mut Work<'_>, run: &Run, worker: WorkerId) -> Result<Guarded, StoreError> {
    let Ok(change @ Change::Move(_)) = run.claim(worker, work.now) else {
        return Ok(if run.cancel.is_some() { Guarded::CancelAsked } else { Guarded::Stale });
    };
    let Some(row) = work.row(run.id.0)? else { return Ok(Guarded::Stale) };
    work.change(&row, run, &change, Slots::ToCount)?;
    Ok(Guarded::Applied)
}

#[async_trait]
impl ClaimStore for SqliteStore {
    async fn ready_pairs(&self, lanes: &[LaneId]) -> Result<Vec<(Pair, OrderKey)>, StoreError> {
        let lanes = lanes.to_vec();
        self.read("look for ready runs", move |connection| {
            let mut pairs = Vec::new();
            for lane in &lanes {
                pairs_of(connection, *lane, &mut pairs)?;
            }
            Ok(pairs)
        })
        .await
    }

    async fn claim(&self, write: &Write, claims: &[Claim]) -> Result<Vec<Run>, StoreError> {
        let (write, claims) = (write.clone(), claims.to_vec());
        self.writer
            .write("claim runs", Urgency::Prompt, move |connection| {
                once(
                    connection,
                    &write,
                    |runs: &Vec<Run>| Ok(Some(kept::leases(runs.iter().map(Run::lease)))),
                    restored,
                    |connection| {
                        let mut claimed = Vec::new();
                        for claim in &claims {
                            claimed.extend(claim_runs(connection, &write, claim)?);
                        }
                        Ok(claimed)
                    },
                )
            })
            .await
    }
}
