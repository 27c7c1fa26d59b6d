//! Reap: what vanished workers held is lost, what they hand back is ready
//! again, and what has waited long enough ends or wakes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::{
    ids::{RunId, WorkerId},
    run::{Change, RunState, Slots, Status},
    store::{Reap, ReapStore, Reaped, StoreError, Woken, Write},
};
use uuid::Uuid;

use super::{
    PostgresStore,
    apply::apply,
    change::{decide, lock_runs},
    fault::Fault,
    follow::Aftermath,
    once::Once,
    rows::{Locked, RUN, ids, locked},
    tx::{Ending, Tx},
};
use crate::{
    codec::{
        micros,
        sql::{CANCELLING, CLAIMED_LANE, NOT_EXECUTED, QUEUED},
    },
    kept,
};

/// So many workers are looked at in one go.
const WORKERS_MAX: i64 = 64;

/// Runs that a sweep may touch: the others are their owner's alone.
const OVERDUE: &str = formatcp!(
    "SELECT r.id FROM run r WHERE r.due_at <= $1 AND (r.status IN ({NOT_EXECUTED}) \
     OR (r.status = {CANCELLING} AND r.holder IS NOT NULL) \
     OR (r.status = {QUEUED} AND EXISTS (SELECT 1 FROM lane l WHERE l.id = r.lane AND l.mode = {CLAIMED_LANE}))) \
     ORDER BY r.due_at LIMIT $2"
);

impl PostgresStore {
    async fn reap_once(&self, tx: Arc<Tx>, write: &Write, reap: &Reap) -> Result<(Vec<Reaped>, Ending), Fault> {
        let sql = "SELECT worker FROM holder WHERE until < $1 ORDER BY worker LIMIT $2 FOR UPDATE SKIP LOCKED";
        let workers = ids(&tx.rows(sql, &[&micros(reap.before), &WORKERS_MAX]).await?)?;
        if workers.is_empty() {
            return Ok((Vec::new(), Ending { idle: true, ..Ending::default() }));
        }
        let sql = formatcp!("SELECT {RUN} FROM run r WHERE r.holder = ANY($1) ORDER BY r.id LIMIT $2 FOR UPDATE");
        let rows = tx.rows(sql, &[&workers, &i64::from(reap.limit)]).await?;
        let rows: Vec<Locked> = rows.iter().filter_map(|row| locked(&tx.notes, row)).collect();
        let changes = decide(rows, |row| row.run.lose(reap.losses_max, write.now));
        let mut after = Aftermath::default();
        let reaped = self.changed(&tx, write, &changes, &mut after).await?;
        tx.rows(
            "DELETE FROM holder h WHERE h.worker = ANY($1) AND NOT EXISTS (SELECT 1 FROM run r WHERE r.holder = h.worker)",
            &[&workers],
        )
        .await?;
        after.changed = true;
        let ending = after.ending(kept::reaped(&reaped)?);
        Ok((reaped, ending))
    }

    async fn sweep_once(&self, tx: Arc<Tx>, write: &Write, limit: u32) -> Result<(Vec<Reaped>, Ending), Fault> {
        // Found first and locked second, so that slots can be locked before the
        // runs that wait for them.
        let found = ids(&tx.rows(OVERDUE, &[&micros(write.now), &i64::from(limit)]).await?)?;
        let rows = lock_runs(&tx, &found).await?;
        let modes = self.modes(rows.iter().map(|row| row.run.lane)).await?;
        let claimed = |row: &Locked| modes.get(&row.run.lane) == Some(&rota_core::lane::LaneMode::Claimed);
        let now = write.now;
        let due = |row: &Locked| row.run.due_at().is_some_and(|at| at <= now);
        let rows = rows
            .into_iter()
            .filter(due)
            .filter(|row| match row.run.state {
                RunState::Queued => claimed(row),
                RunState::Cancelling { hold, .. } => matches!(hold, Some(rota_core::run::Hold::Leased(_))),
                RunState::Running { .. } | RunState::Finished { .. } => false,
                RunState::Scheduled | RunState::Blocked(_) | RunState::Waiting { .. } => true,
            })
            .collect();
        let changes = decide(rows, |row| row.run.overdue(now));
        let mut after = Aftermath::default();
        let swept = self.changed(&tx, write, &changes, &mut after).await?;
        let ending = after.ending(kept::reaped(&swept)?);
        Ok((swept, ending))
    }

    /// Applies changes to locked runs, with all that follows, and says how each
    /// stands after.
    async fn changed(
        &self,
        tx: &Tx,
        write: &Write,
        changes: &[(Locked, Change)],
        after: &mut Aftermath,
    ) -> Result<Vec<Reaped>, Fault> {
        apply(tx, write.now, changes, Slots::ToCount, after).await?;
        self.follow(tx, write.now, after).await?;
        // A loss may free a slot and take it again at once: told as it stands.
        let queued: HashSet<RunId> = after.effects.ready.keys().copied().collect();
        self.tell(tx, None, after).await?;
        Ok(changes
            .iter()
            .map(|(row, change)| {
                let mut run = row.run.clone();
                run.apply(change);
                let status = if queued.contains(&run.id) { Status::Queued } else { run.state.status() };
                Reaped { id: run.id, job: run.job, tenant: run.tenant, status }
            })
            .collect())
    }

    async fn release_once(&self, tx: Arc<Tx>, write: &Write, worker: WorkerId) -> Result<(Vec<Woken>, Ending), Fault> {
        let sql = formatcp!("SELECT {RUN} FROM run r WHERE r.holder = $1 ORDER BY r.id FOR UPDATE");
        let mut answers =
            tx.pipe(&[("DELETE FROM holder WHERE worker = $1", &[&worker.0]), (sql, &[&worker.0])]).await?;
        let rows = answers.pop().unwrap_or_default();
        let rows: Vec<Locked> = rows.iter().filter_map(|row| locked(&tx.notes, row)).collect();
        let changes = decide(rows, |row| row.run.hand_back(row.run.lease(), false, write.now));
        let mut after = Aftermath { changed: true, ..Aftermath::default() };
        apply(&tx, write.now, &changes, Slots::ToCount, &mut after).await?;
        self.follow(&tx, write.now, &mut after).await?;
        let woken = self.tell(&tx, write.node, &mut after).await?;
        let kept: Vec<(Uuid, i32, bool)> =
            woken.iter().map(|woken| (woken.run.id.0, woken.run.fence.0, woken.handed)).collect();
        let ending = after.ending(kept::json(&kept)?);
        Ok((woken, ending))
    }
}

#[async_trait]
impl ReapStore for PostgresStore {
    async fn release(&self, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError> {
        match self.once(write, "release a worker's runs", |tx| self.release_once(tx, write, worker)).await? {
            Once::New(woken, _) => Ok(woken),
            Once::Known(kept) => {
                let kept: Vec<(Uuid, i32, bool)> = kept::json_again(kept.as_deref())?;
                let places: Vec<(Uuid, i32)> = kept.iter().map(|(id, fence, _)| (*id, *fence)).collect();
                let handed: HashMap<Uuid, bool> = kept.iter().map(|(id, _, handed)| (*id, *handed)).collect();
                let runs = self.reread(&places, "release a worker's runs").await?;
                Ok(runs.into_iter().map(|run| Woken { handed: handed[&run.id.0], run }).collect())
            }
        }
    }

    async fn reap(&self, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError> {
        match self.once(write, "reap runs", |tx| self.reap_once(tx, write, reap)).await? {
            Once::New(reaped, _) => Ok(reaped),
            Once::Known(kept) => kept::reaped_again(kept.as_deref()),
        }
    }

    async fn sweep(&self, write: &Write, limit: u32) -> Result<Vec<Reaped>, StoreError> {
        match self.once(write, "sweep runs", |tx| self.sweep_once(tx, write, limit)).await? {
            Once::New(reaped, _) => Ok(reaped),
            Once::Known(kept) => kept::reaped_again(kept.as_deref()),
        }
    }
}
