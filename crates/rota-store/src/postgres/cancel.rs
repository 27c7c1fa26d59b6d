//! Cancel: runs are asked to stop, as the pure code decides.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use rota_core::{
    ids::RunId,
    lane::LaneMode,
    run::{CancelAsk, Change, Refusal, Run, Slots},
    store::{CancelAnswer, CancelStore, Guarded, StoreError, Write},
};
use uuid::Uuid;

use super::{
    PostgresStore,
    apply::apply,
    change::{decide, lock_runs},
    fault::Fault,
    follow::Aftermath,
    once::Once,
    rows::Locked,
    tx::{Ending, Tx},
};
use crate::kept;

const fn asked_again(answer: CancelAnswer) -> CancelAnswer {
    match answer {
        CancelAnswer::Cancelled | CancelAnswer::Ended => CancelAnswer::Ended,
        CancelAnswer::Asked | CancelAnswer::AlreadyAsked => CancelAnswer::AlreadyAsked,
        CancelAnswer::NotFound => CancelAnswer::NotFound,
    }
}

impl PostgresStore {
    async fn cancel_once(
        &self,
        tx: Arc<Tx>,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<(Vec<CancelAnswer>, Ending), Fault> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let rows = lock_runs(&tx, &ids).await?;
        let mut after = Aftermath::default();
        let mut known = self.cancel_locked(&tx, write, rows, |_| ask.clone(), &mut after).await?;
        self.follow(&tx, write.now, &mut after).await?;
        self.tell(&tx, None, &mut after).await?;
        let missing: Vec<RunId> = runs.iter().filter(|run| !known.contains_key(run)).copied().collect();
        for run in self.ended_among(&missing).await? {
            known.insert(run, CancelAnswer::Ended);
        }
        let mut answers = Vec::with_capacity(runs.len());
        for run in runs {
            answers.push(known.get(run).copied().unwrap_or(CancelAnswer::NotFound));
            // Named again, it finds what the first word did.
            known.entry(*run).and_modify(|answer| *answer = asked_again(*answer));
        }
        let ending = after.ending(kept::json(&answers)?);
        Ok((answers, ending))
    }

    /// Asks locked runs to stop, and answers for each.
    pub(super) async fn cancel_locked(
        &self,
        tx: &Tx,
        write: &Write,
        rows: Vec<Locked>,
        ask: impl Fn(&Run) -> CancelAsk,
        after: &mut Aftermath,
    ) -> Result<HashMap<RunId, CancelAnswer>, Fault> {
        let modes = self.modes(rows.iter().map(|row| row.run.lane)).await?;
        let mut known = HashMap::with_capacity(rows.len());
        let mut changes = Vec::with_capacity(rows.len());
        for row in rows {
            // A lane that cannot be found is worked by nobody we know of, so
            // its runs may be in someone's hands.
            let mode = modes.get(&row.run.lane).copied().unwrap_or(LaneMode::Owned);
            let (answer, change) = match row.run.request_cancel(&ask(&row.run), mode, write.now) {
                Ok(change @ Change::Finish(_)) => (CancelAnswer::Cancelled, Some(change)),
                Ok(change @ Change::Move(_)) => (CancelAnswer::Asked, Some(change)),
                Err(Refusal::Ended) => (CancelAnswer::Ended, None),
                Err(_) => (CancelAnswer::AlreadyAsked, None),
            };
            known.insert(row.run.id, answer);
            if let Some(change) = change {
                changes.push((row, change));
            }
        }
        apply(tx, write.now, &changes, Slots::ToCount, after).await?;
        Ok(known)
    }
}

impl PostgresStore {
    async fn wake_once(&self, tx: Arc<Tx>, write: &Write, runs: &[RunId]) -> Result<(Vec<Guarded>, Ending), Fault> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let changes = decide(lock_runs(&tx, &ids).await?, |row| row.run.wake());
        let mut after = Aftermath::default();
        apply(&tx, write.now, &changes, Slots::ToCount, &mut after).await?;
        self.follow(&tx, write.now, &mut after).await?;
        self.tell(&tx, None, &mut after).await?;
        let mut woken: Vec<RunId> = changes.iter().map(|(row, _)| row.run.id).collect();
        let answers: Vec<Guarded> = runs
            .iter()
            .map(|run| match woken.iter().position(|id| id == run) {
                Some(at) => {
                    woken.swap_remove(at);
                    Guarded::Applied
                }
                None => Guarded::Stale,
            })
            .collect();
        let ending = after.ending(kept::guarded(&answers));
        Ok((answers, ending))
    }
}

#[async_trait]
impl CancelStore for PostgresStore {
    async fn request_cancel(
        &self,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<Vec<CancelAnswer>, StoreError> {
        match self.once(write, "cancel runs", |tx| self.cancel_once(tx, write, runs, ask)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::json_again(kept.as_deref()),
        }
    }

    async fn wake(&self, write: &Write, runs: &[RunId]) -> Result<Vec<Guarded>, StoreError> {
        match self.once(write, "wake runs", |tx| self.wake_once(tx, write, runs)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::guarded_again(kept.as_deref(), runs.len()),
        }
    }
}
