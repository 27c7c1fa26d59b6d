//! Settling: the end of attempts, applied under their guard.
//!
//! What ends goes to history in one statement, with the right to do so in its `WHERE`
//! ([`finish`](super::finish)); the few that go on are locked and decided on. What follows
//! is done in the same transaction ([`follow`](super::follow)).

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    ids::{LaneId, NodeId, Partition, RunId},
    lane::LaneMode,
    run::{Change, Hold, Run, RunState, Slots, TRAIL_BYTES_MAX},
    store::{By, Epoch, Guarded, PartitionStore, SettleStore, Settled, Settlement, StoreError, Woken, Write},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    PostgresStore, after,
    apply::apply_moves,
    fault::Fault,
    finish::{End, FINISH, Finishes, Guard, OWNED_PARTS, Right, confirm, finish, finished},
    follow::{Aftermath, NOTIFY},
    once::Once,
    rows::{Locked, RUN, locked, runs},
    tx::{Bound, Ending, Late, Param, Tx, params},
};
use crate::{codec::micros, kept};

/// What is kept of a settlement's answer, unless all applied and none woke.
#[derive(Serialize, Deserialize)]
struct Kept {
    answers: Option<String>,
    woken: Vec<(Uuid, i32)>,
}

impl PostgresStore {
    async fn settle_once(
        &self,
        tx: Arc<Tx>,
        write: &Write,
        settlements: &[Settlement],
    ) -> Result<((Settled, HashSet<LaneId>), Ending), Fault> {
        let mut after = Aftermath::default();
        let mut answers = vec![Guarded::Stale; settlements.len()];
        let mut left: Vec<usize> = (0..settlements.len()).collect();
        // A run that is named twice is settled twice, in order: the second word
        // finds what the first one did, or left to it.
        while !left.is_empty() {
            let mut named = HashSet::with_capacity(left.len());
            let (round, later): (Vec<usize>, Vec<usize>) =
                left.into_iter().partition(|n| named.insert(settlements[*n].lease.run));
            settle_round(&tx, write.now, settlements, &round, &mut answers, &mut after).await?;
            left = later;
        }
        self.follow(&tx, write.now, &mut after).await?;
        let (woken, lanes) = self.tell_late(write.node, &mut after).await?;
        let settled = Settled { answers, woken };
        let ending = after.ending(kept(&settled)?);
        Ok(((settled, lanes), ending))
    }

    /// Tells the owners of what woke with the commit; whom the writing node's
    /// own partitions hold is known from that statement's rows.
    async fn tell_late(
        &self,
        node: Option<NodeId>,
        after: &mut Aftermath,
    ) -> Result<(Vec<Woken>, HashSet<LaneId>), Fault> {
        let queued = after.take_ready();
        let modes = self.modes(queued.iter().map(|run| run.lane)).await?;
        let owned: HashSet<LaneId> =
            modes.into_iter().filter(|(_, mode)| *mode == LaneMode::Owned).map(|(lane, _)| lane).collect();
        let (mut parts, mut ids): (Vec<i16>, Vec<Uuid>) = (Vec::new(), Vec::new());
        for run in queued.iter().filter(|run| owned.contains(&run.lane)) {
            parts.push(i16::from(run.part.0));
            ids.push(run.id.0);
        }
        if !ids.is_empty() {
            let params = params![parts, ids, node.map(|node| node.0)];
            after.late.insert(0, Late { sql: NOTIFY, params });
        }
        Ok((queued.into_iter().map(|run| Woken { run, handed: false }).collect(), owned))
    }

    /// The answer given before, with the woken runs that are as they were then.
    /// A node that holds a woken run's partition now is handed it again; one
    /// that does not any more need not be.
    async fn settled_before(&self, write: &Write, kept: Option<&[u8]>, count: usize) -> Result<Settled, StoreError> {
        let Some(kept) = kept else {
            return Ok(Settled { answers: vec![Guarded::Applied; count], woken: Vec::new() });
        };
        let kept: Kept = kept::json_again(Some(kept))?;
        let answers = kept::guarded_again(kept.answers.as_deref().map(str::as_bytes), count)?;
        let mut found = self.reread(&kept.woken, "settle runs").await?;
        found.retain(|run| run.state == RunState::Queued);
        let told = |fault: Fault| fault.told("settle runs");
        let modes = self.modes(found.iter().map(|run| run.lane)).await.map_err(told)?;
        let held = self.partitions().await?;
        let holds = |run: &Run| held[usize::from(run.part.0)].node == write.node && write.node.is_some();
        let handed = |run: &Run| modes.get(&run.lane) == Some(&LaneMode::Owned) && holds(run);
        let woken = found.into_iter().map(|run| Woken { handed: handed(&run), run }).collect();
        Ok(Settled { answers, woken })
    }

    /// Live runs that still have the fence they were answered with, in the
    /// order asked.
    pub(super) async fn reread(&self, places: &[(Uuid, i32)], what: &'static str) -> Result<Vec<Run>, StoreError> {
        let ids: Vec<Uuid> = places.iter().map(|(id, _)| *id).collect();
        let sql = formatcp!("SELECT {RUN} FROM run r WHERE r.id = ANY($1)");
        let rows = self.read(sql, &[&ids]).await.map_err(|fault| fault.told(what))?;
        let mut found: HashMap<RunId, Run> = runs(&self.notes, &rows).into_iter().map(|run| (run.id, run)).collect();
        Ok(places
            .iter()
            .filter_map(|(id, fence)| found.remove(&RunId(*id)).filter(|run| run.fence.0 == *fence))
            .collect())
    }
}

fn kept(settled: &Settled) -> Result<kept::Kept, StoreError> {
    let answers = kept::guarded(&settled.answers).map(|letters| String::from_utf8_lossy(&letters).into_owned());
    if answers.is_none() && settled.woken.is_empty() {
        return Ok(None);
    }
    let woken = settled.woken.iter().map(|woken| (woken.run.id.0, woken.run.fence.0)).collect();
    kept::json(&Kept { answers, woken })
}

/// Settles runs that are named once each.
async fn settle_round(
    tx: &Tx,
    now: Timestamp,
    settlements: &[Settlement],
    round: &[usize],
    answers: &mut [Guarded],
    after: &mut Aftermath,
) -> Result<(), Fault> {
    let (owned, leased): (Vec<usize>, Vec<usize>) =
        round.iter().partition(|n| matches!(settlements[**n].by, By::Owner(_)));
    for (guard, group) in [(Guard::Owner, owned), (Guard::Lease, leased)] {
        if !group.is_empty() {
            tx.now(&std::mem::take(&mut after.owed)).await?;
            Settling { tx, now, guard, settlements, answers, after }.settle(&group).await?;
        }
    }
    Ok(())
}

/// The settlements of a write while those of one kind of right are applied. Groups of them
/// are named by their places.
struct Settling<'a> {
    tx: &'a Tx,
    now: Timestamp,
    guard: Guard,
    settlements: &'a [Settlement],
    answers: &'a mut [Guarded],
    after: &'a mut Aftermath,
}

impl<'a> Settling<'a> {
    /// The finishes in one statement, with which the rows of the few moves are locked and
    /// read. What the moves come to is owed.
    async fn settle(&mut self, group: &[usize]) -> Result<(), Fault> {
        let mut right = Right::of(group.iter().filter_map(|n| self.claim(*n)));
        let (mut finishes, mut moves): (Vec<usize>, Vec<usize>) =
            group.iter().partition(|n| matches!(self.settlements[**n].change, Change::Finish(_)));
        finishes.retain(|n| self.rightful(*n, &right));
        let asked = right.len();
        let (rows, found) = self.first(&mut right, &moves, &finishes).await?;
        if found == 0 && asked > 0 && !finishes.is_empty() {
            // It may be that one partition was lost: leave it out and settle the
            // rest.
            confirm(self.tx, &mut right).await?;
            finishes.retain(|n| self.rightful(*n, &right));
            if right.len() < asked {
                self.finish(&right, &finishes).await?;
            }
        }
        moves.retain(|n| self.rightful(*n, &right));
        self.apply(&moves, rows).await?;
        let missed: Vec<usize> = finishes.into_iter().filter(|n| self.answers[*n] != Guarded::Applied).collect();
        self.explain(&missed).await
    }

    /// The partition that an owner claims; a lease claims none.
    fn claim(&self, n: usize) -> Option<(Partition, Epoch)> {
        match self.settlements[n].by {
            By::Owner(epoch) => Some((self.settlements[n].part, epoch)),
            By::Lease => None,
        }
    }

    fn rightful(&self, n: usize, right: &BTreeMap<i16, i64>) -> bool {
        self.claim(n).is_none_or(|(part, epoch)| right.get(&i16::from(part.0)) == Some(&epoch.0))
    }

    /// In one round trip: locks the rows of moves and answers them, drops the
    /// partitions that are not the claimant's any more, and moves the finishes to
    /// history; answers how many of those were found.
    async fn first(
        &mut self,
        right: &mut BTreeMap<i16, i64>,
        moves: &[usize],
        finishes: &[usize],
    ) -> Result<(Vec<Locked>, usize), Fault> {
        if moves.is_empty() {
            return Ok((Vec::new(), self.finish(right, finishes).await?));
        }
        let asked = Right::from(right);
        let ids: Vec<Uuid> = moves.iter().map(|n| self.settlements[*n].lease.run.0).collect();
        let lock = formatcp!("SELECT {RUN} FROM run r WHERE r.id = ANY($1) ORDER BY r.id FOR UPDATE");
        let (owned, locked_ids): ([Param<'_>; 2], [Param<'_>; 1]) = ([&asked.parts, &asked.epochs], [&ids]);
        let mut statements: Vec<Bound<'_>> = vec![(OWNED_PARTS, &owned), (lock, &locked_ids)];
        let ended = self.ends(finishes);
        let (columns, parts) = (Finishes::of(&ended)?, self.parts(finishes));
        let (leased, most) = (self.guard.leased(), TRAIL_BYTES_MAX as i32);
        let params = columns.params(&asked, &leased, &most, &parts);
        if !ended.is_empty() {
            statements.extend([(FINISH, &params[..]), (after::WAITED_FOR, &[][..])]);
        }
        let brought = self.tx.pipe(&statements).await?;
        let held: Vec<i16> = brought[0].iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        right.retain(|part, _| held.contains(part));
        let rows = brought[1].iter().filter_map(|row| locked(&self.tx.notes, row)).collect();
        let found = match &brought[2..] {
            [ended_rows, waited_for] => {
                self.after.heed(waited_for)?;
                let found = finished(ended_rows, &ended, self.after)?;
                self.applied(finishes, &found)
            }
            _ => 0,
        };
        Ok((rows, found))
    }

    /// Moves finishes to history, and answers how many were found.
    async fn finish(&mut self, right: &BTreeMap<i16, i64>, group: &[usize]) -> Result<usize, Fault> {
        let ends = self.ends(group);
        if ends.is_empty() {
            return Ok(0);
        }
        let parts = self.parts(group);
        let found = finish(self.tx, &Right::from(right), self.guard, &ends, &parts, self.after).await?;
        Ok(self.applied(group, &found))
    }

    fn ends(&self, group: &[usize]) -> Vec<End<'a>> {
        let finish = |settlement: &'a Settlement| match &settlement.change {
            Change::Finish(finish) => Some((settlement.lease.run, settlement.lease.fence.0, finish)),
            Change::Move(_) => None,
        };
        group.iter().filter_map(|n| finish(&self.settlements[*n])).collect()
    }

    /// The partitions that an owner names; a lease names none.
    fn parts(&self, group: &[usize]) -> Vec<i16> {
        match self.guard {
            Guard::Owner => group.iter().map(|n| i16::from(self.settlements[*n].part.0)).collect(),
            Guard::Lease | Guard::Locked => Vec::new(),
        }
    }

    /// Answers those that were found, and says how many they are.
    fn applied(&mut self, group: &[usize], found: &[bool]) -> usize {
        for (n, _) in group.iter().zip(found).filter(|(_, found)| **found) {
            self.answers[*n] = Guarded::Applied;
        }
        found.iter().filter(|found| **found).count()
    }

    /// Decides on moves by the rows that were locked, and applies those that may be.
    async fn apply(&mut self, moves: &[usize], rows: Vec<Locked>) -> Result<(), Fault> {
        let mut found: HashMap<RunId, Locked> = rows.into_iter().map(|row| (row.run.id, row)).collect();
        let mut changes = Vec::with_capacity(moves.len());
        for n in moves {
            let settlement = &self.settlements[*n];
            let Some(row) = found.remove(&settlement.lease.run) else { continue };
            let rightful = row.run.fence == settlement.lease.fence && allowed(&row.run, self.guard, settlement.part);
            self.answers[*n] = match (rightful, &row.run.cancel) {
                (false, _) => Guarded::Stale,
                (true, Some(_)) => Guarded::CancelAsked,
                (true, None) => {
                    changes.push((row, settlement.change.clone()));
                    Guarded::Applied
                }
            };
        }
        apply_moves(self.tx, self.now, &changes, Slots::ToCount, self.after).await
    }

    /// Says of finishes that did not apply whether they are stale, or no answer to
    /// a cancel.
    async fn explain(&mut self, missed: &[usize]) -> Result<(), Fault> {
        if missed.is_empty() {
            return Ok(());
        }
        let ids: Vec<Uuid> = missed.iter().map(|n| self.settlements[*n].lease.run.0).collect();
        let leased = self.guard == Guard::Lease;
        let sql =
            "SELECT id, fence, part FROM run WHERE id = ANY($1) AND cancel IS NOT NULL AND (holder IS NOT NULL) = $2";
        let rows = self.tx.rows(sql, &[&ids, &leased]).await?;
        let mut asked = HashMap::with_capacity(rows.len());
        for row in rows {
            asked.insert(row.try_get::<_, Uuid>(0)?, (row.try_get::<_, i32>(1)?, row.try_get::<_, i16>(2)?));
        }
        for n in missed {
            let Settlement { lease, part, .. } = &self.settlements[*n];
            let Some((fence, lies_in)) = asked.get(&lease.run.0) else { continue };
            if *fence == lease.fence.0 && (leased || *lies_in == i16::from(part.0)) {
                self.answers[*n] = Guarded::CancelAsked;
            }
        }
        Ok(())
    }
}

/// Whether a settler of this kind may change the run, its fence apart.
fn allowed(run: &Run, guard: Guard, part: Partition) -> bool {
    let (executed, leased) = match run.state {
        RunState::Queued => (true, false),
        RunState::Running { hold, .. } => (true, matches!(hold, Hold::Leased(_))),
        RunState::Cancelling { hold, .. } => (true, matches!(hold, Some(Hold::Leased(_)))),
        RunState::Scheduled | RunState::Blocked(_) | RunState::Waiting { .. } | RunState::Finished { .. } => {
            (false, false)
        }
    };
    match guard {
        Guard::Lease => leased,
        Guard::Owner => executed && !leased && run.part == part,
        Guard::Locked => true,
    }
}

#[async_trait]
impl SettleStore for PostgresStore {
    async fn settle(&self, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        if settlements.is_empty() {
            return Ok(Settled { answers: Vec::new(), woken: Vec::new() });
        }
        let what = "settle runs";
        for settlement in settlements {
            if let Change::Finish(finish) = &settlement.change {
                self.have_day(micros(finish.ended_at)).await.map_err(|fault| fault.told(what))?;
            }
        }
        match self.once(write, what, |tx| self.settle_once(tx, write, settlements)).await? {
            Once::New((mut settled, owned), late) => {
                // What woke is handed over where the last statement found its
                // partition held.
                let held = late.first().map_or(&[][..], Vec::as_slice);
                let held: Vec<i16> = held.iter().filter_map(|row| row.try_get(0).ok()).collect();
                for woken in settled.woken.iter_mut().filter(|woken| owned.contains(&woken.run.lane)) {
                    woken.handed = held.contains(&i16::from(woken.run.part.0));
                }
                Ok(settled)
            }
            Once::Known(kept) => self.settled_before(write, kept.as_deref(), settlements.len()).await,
        }
    }
}
