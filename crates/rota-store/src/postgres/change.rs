//! Change: rows are locked, pure code decides over each, all is written.

use crate::codec::sql::BLOCKED;
use const_format::formatcp;
use std::{collections::HashSet, sync::Arc};

use rota_core::{
    ids::RunId,
    run::{Change, Refusal, Slots},
    store::{Guarded, StoreError, Write},
};
use uuid::Uuid;

use super::{
    PostgresStore,
    apply::apply,
    fault::Fault,
    follow::Aftermath,
    once::Once,
    row::{Locked, RUN, locked},
    tx::{Ending, Tx},
};
use crate::kept;

/// Locks the slots that any of these runs wait for. Whoever admits holds the
/// slot first and the waiting run second; so must whoever ends one.
pub(super) const SLOTS_FIRST: &str = formatcp!(
    "SELECT 1 FROM slot WHERE key = ANY(ARRAY( \
     SELECT slot FROM run WHERE id = ANY($1::uuid[]) AND status = {BLOCKED})) ORDER BY key FOR UPDATE"
);

/// Locks these runs, in order, with those they wait for: whoever ends one of those
/// locks them in the same order, and one that ends while it waits passes its ties on.
pub(super) async fn lock_runs(tx: &Tx, ids: &[Uuid]) -> Result<Vec<Locked>, Fault> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let sql = formatcp!(
        "SELECT {RUN} FROM run r WHERE r.id = ANY(ARRAY(SELECT unnest($1::uuid[]) \
          UNION SELECT needed FROM need WHERE waiter = ANY($1))) ORDER BY r.id FOR UPDATE"
    );
    let needs = "SELECT r.id FROM need n JOIN run r ON r.id = n.needed WHERE n.waiter = ANY($1)";
    loop {
        let answers = tx.pipe(&[(SLOTS_FIRST, &[&ids]), (sql, &[&ids]), (needs, &[&ids])]).await?;
        let mut rows: Vec<Locked> = answers[1].iter().filter_map(|row| locked(&tx.notes, row)).collect();
        let held: HashSet<Uuid> = answers[1].iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let needed: HashSet<Uuid> = answers[2].iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        if needed.is_subset(&held) {
            let wanted: HashSet<Uuid> = ids.iter().copied().collect();
            rows.retain(|row| wanted.contains(&row.run.id.0));
            return Ok(rows);
        }
        // One of those waited for ended while its lock was waited for, and passed on its ties.
    }
}

/// Asks `decide` of each row and keeps the changes.
pub(super) fn decide(
    rows: Vec<Locked>,
    mut decide: impl FnMut(&Locked) -> Result<Change, Refusal>,
) -> Vec<(Locked, Change)> {
    rows.into_iter()
        .filter_map(|row| {
            let change = decide(&row).ok()?;
            Some((row, change))
        })
        .collect()
}

impl PostgresStore {
    pub(super) async fn wake_all(&self, write: &Write, runs: &[RunId]) -> Result<Vec<Guarded>, StoreError> {
        match self.once(write, "wake runs", |tx| self.wake_once(tx, write, runs)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::guarded_again(kept.as_deref(), runs.len()),
        }
    }

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
