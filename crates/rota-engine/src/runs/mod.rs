//! The ready runs of this node's partitions, and those in its hands.
//!
//! A run is ready (in the queue), in flight (taken and not yet settled) or
//! neither. What is in flight is never offered again under the same lease, and neither
//! is what was settled a moment ago: a look that began before a settlement
//! still sees the run as ready. What is offered under a later one waits until
//! the former is over: a retry may be promoted before its settlement's answer
//! is heard.

mod recent;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicUsize, Ordering},
};

use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    dispatch::{Pair, Place, Window},
    ids::{Partition, RunId, TenantId},
    run::{CancelRequest, Hold, Lease, Run, RunState},
    store::{By, RunRecord},
};

pub use self::table::{Begin, Handover, OwnedAttempt, pair_of};
use self::table::{InFlight, Table, place_of};
use crate::{
    planted::{self, Bug},
    territory::Territory,
};

/// A ready run.
#[derive(Clone, Debug)]
pub struct ReadyRun {
    pub run: Run,
    /// A former owner may have died of it: it is leased in writing.
    pub suspect: bool,
}

/// A run taken to be executed, with the right to it.
#[derive(Clone, Debug)]
pub struct TakenRun {
    pub run: Run,
    pub by: By,
    pub suspect: bool,
}

/// See the module.
#[derive(Debug)]
pub struct LocalRuns {
    table: Mutex<Table>,
    /// [`Table::cancels`], for those who only ask whether there are any.
    cancels: AtomicUsize,
}

/// What the owner does about a run that was asked to stop.
#[derive(Debug, PartialEq)]
pub enum CancelFound {
    /// It is under way here, and must be told.
    InFlight,
    /// Nobody has started it: it is in this node's hands now, to be ended.
    Here(By),
}

impl LocalRuns {
    pub fn new(runs_max: usize) -> Self {
        Self { table: Mutex::new(Table::new(runs_max)), cancels: AtomicUsize::new(0) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.lock();
        let done = work(&mut table);
        self.cancels.store(table.cancels, Ordering::Relaxed);
        done
    }

    /// Offers runs that were ready in the store when somebody asked in this generation of
    /// the territory. Answers how many were kept; the others are read when their turn is
    /// near. Runs of a partition that was taken since may be over, so they are read again.
    pub fn offer(&self, runs: impl IntoIterator<Item = ReadyRun>, asked_in: u64, territory: &Territory) -> usize {
        self.with(|table| {
            let held = territory.table();
            let mut kept = 0;
            for ready in runs {
                match held[usize::from(ready.run.part.0)] {
                    Some(held) if held.since(asked_in) => kept += usize::from(table.offer(ready)),
                    Some(_) => table.backlog.doubt(pair_of(&ready.run)),
                    None => {}
                }
            }
            kept
        })
    }

    /// Takes up to `most` runs to be executed, fairly, of the pairs that `open`
    /// lets through and the partitions held.
    pub fn take(&self, most: usize, territory: &Territory, open: impl FnMut(Pair) -> bool) -> Vec<TakenRun> {
        self.with(|table| {
            let held = territory.table();
            let taken = table.backlog.take(most, open);
            taken.into_iter().filter_map(|(_, (_, id))| table.take_ready(id, &held)).collect()
        })
    }

    /// Runs that this node executes by the right of their partition, or has executed and
    /// not settled: the store may have them as queued.
    pub fn begun(&self) -> Vec<RunId> {
        self.with(|table| {
            let begun = table.in_flight.values().filter(|one| one.begun_at.is_some() && one.by != By::Lease);
            begun.map(|one| one.lease.run).collect()
        })
    }

    /// Shows runs as running that this node executes, or has executed and not settled,
    /// although the store has not heard of it yet. Answers those that were settled since
    /// they were read.
    pub fn correct<'r>(&self, records: impl Iterator<Item = &'r mut RunRecord>) -> Vec<RunId> {
        let queued: Vec<&mut RunRecord> = records.filter(|record| record.run.state == RunState::Queued).collect();
        if queued.is_empty() {
            return Vec::new();
        }
        self.with(|table| {
            let mut settled = Vec::new();
            for record in queued {
                let lease = record.run.lease();
                let one = table.in_flight.get(&lease.run).filter(|one| one.lease == lease);
                if let Some(started_at) = one.and_then(|one| one.begun_at) {
                    record.run.state = RunState::Running { hold: Hold::Owned, started_at };
                    record.started_at = Some(started_at);
                } else if table.recent.contains(&lease) {
                    settled.push(lease.run);
                }
            }
            settled
        })
    }

    /// Takes the ready runs that must not be started any more.
    pub fn take_expired(&self, now: Timestamp, most: usize, territory: &Territory) -> Vec<TakenRun> {
        self.with(|table| {
            let held = territory.table();
            let mut expired = Vec::new();
            while expired.len() < most
                && let Some((at, id)) = table.deadlines.first().copied()
                && at <= now
            {
                table.deadlines.pop_first();
                if let Some(ready) = table.ready.get(&id) {
                    let (pair, place) = (pair_of(&ready.run), place_of(&ready.run));
                    table.backlog.remove(pair, &place);
                    expired.extend(table.take_ready(id, &held));
                }
            }
            expired
        })
    }

    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.with(|table| table.deadlines.first().map(|(at, _)| *at))
    }

    /// Takes runs in hand that did not come from the backlog: claimed ones, and
    /// those of a former owner. False for one that is in hand already.
    pub fn add(&self, run: &Run, by: By) -> bool {
        self.with(|table| {
            let refused = matches!(by, By::Owner(epoch) if table.refused.contains(&(run.lease(), epoch)));
            if refused || table.in_flight.contains_key(&run.id) || table.recent.contains(&run.lease()) {
                return false;
            }
            table.forget_ready(run.id);
            table.add(run, by);
            true
        })
    }

    /// As [`LocalRuns::add`], for a run whose former attempt is ready to be over: the
    /// store gave it out under a later fence before its settlement's answer was
    /// heard.
    pub fn replace(&self, run: &Run, by: By) -> bool {
        self.with(|table| {
            let former = table.in_flight.get(&run.id).map(|one| one.lease);
            let Some(former) = former.filter(|lease| lease.fence < run.fence) else { return false };
            table.recent.push(former, ());
            table.end(former);
            table.forget_ready(run.id);
            table.add(run, by);
            true
        })
    }

    /// The run is held by a written lease from now on.
    pub fn leased(&self, lease: Lease) {
        self.with(|table| {
            if let Some(one) = table.in_flight.get_mut(&lease.run) {
                (one.lease, one.by) = (lease, By::Lease);
            }
        });
    }

    /// Begins attempts at runs in hand, and says of each whether it may. The territory is
    /// looked at under this lock: whoever asks for the attempts in flight of a
    /// partition that is to be given away may rely on none being begun after.
    pub fn begin<'r>(
        &self,
        runs: impl Iterator<Item = &'r TakenRun>,
        territory: &Territory,
        now: Timestamp,
    ) -> Vec<Begin> {
        self.with(|table| {
            let held = territory.table();
            runs.map(|ready| table.begin(ready, &held, now)).collect()
        })
    }

    /// Attempts in flight by right of these partitions' epochs, up to `most` that nobody
    /// has asked to keep: from now on somebody has.
    pub fn begin_handover(&self, parts: &[Partition], most: usize) -> Vec<OwnedAttempt> {
        self.with(|table| {
            let mut asked = Vec::new();
            for one in table.in_flight.values_mut() {
                let By::Owner(epoch) = one.by else { continue };
                if asked.len() < most
                    && one.begun_at.is_some()
                    && one.handover == Handover::No
                    && parts.contains(&one.part)
                {
                    one.handover = Handover::Asked;
                    asked.push(OwnedAttempt { lease: one.lease, part: one.part, epoch });
                }
            }
            table.handovers += asked.len();
            // In an order that does not change from one run of a test to the next.
            asked.sort_unstable_by_key(|one| one.lease.run);
            asked
        })
    }

    /// What came of asking to keep attempts.
    pub fn set_handover(&self, leases: impl IntoIterator<Item = Lease>, handover: Handover) {
        self.with(|table| {
            for lease in leases {
                let Some(one) = table.in_flight.get_mut(&lease.run).filter(|one| one.lease == lease) else {
                    continue;
                };
                table.handovers -= usize::from(one.handover != Handover::No);
                table.handovers += usize::from(handover != Handover::No);
                one.handover = handover;
                if handover == Handover::Leased {
                    one.by = By::Lease;
                }
            }
        });
    }

    /// Whether the attempt under this lease is kept.
    pub fn handover(&self, lease: Lease) -> Handover {
        self.with(|table| table.handover_of(lease))
    }

    /// The same of many, in order; nothing where nobody has asked to keep any.
    pub fn handovers(&self, leases: impl Iterator<Item = Lease>) -> Vec<Handover> {
        self.with(|table| {
            if table.handovers == 0 { Vec::new() } else { leases.map(|lease| table.handover_of(lease)).collect() }
        })
    }

    /// Lets go of runs that were settled: whoever still sees one as ready under
    /// that lease has looked before. True where one of them is ready again.
    #[must_use]
    pub fn settled(&self, leases: impl IntoIterator<Item = Lease>) -> bool {
        self.with(|table| {
            let mut again = false;
            for lease in leases {
                if !planted::is(Bug::LandedForgotten) {
                    table.recent.push(lease, ());
                }
                again |= table.end(lease);
            }
            again
        })
    }

    /// Lets go of a run that was not settled: whoever finds it ready may have it.
    #[must_use]
    pub fn drop_in_flight(&self, leases: impl IntoIterator<Item = Lease>) -> bool {
        self.with(|table| leases.into_iter().fold(false, |again, lease| table.end(lease) | again))
    }

    /// The store refused to settle, mark or lease these: no other attempt is made by the
    /// same right.
    pub fn refuse(&self, refused: impl IntoIterator<Item = (Lease, By)>) {
        self.with(|table| {
            for (lease, by) in refused {
                if let By::Owner(epoch) = by {
                    table.refused.push((lease, epoch), ());
                }
            }
        });
    }

    /// A run of an owned lane was asked to stop.
    pub fn cancel(&self, run: &Run, territory: &Territory) -> Option<CancelFound> {
        self.with(|table| {
            if let Some(one) = table.in_flight.get_mut(&run.id) {
                table.cancels += usize::from(one.cancel.is_none());
                one.cancel.clone_from(&run.cancel);
                return Some(CancelFound::InFlight);
            }
            if table.recent.contains(&run.lease()) {
                return None;
            }
            if let RunState::Cancelling { hold: Some(Hold::Leased(_)), .. } = run.state {
                // Whoever holds it hears of it when it extends its lease.
                return None;
            }
            let by = By::Owner(territory.held(run.part)?.epoch);
            table.forget_ready(run.id);
            table.add(run, by);
            Some(CancelFound::Here(by))
        })
    }

    /// Runs were asked to stop by a caller of this node: none of them begins here any
    /// more. What is ready is left to the notice that came with the request, and what is
    /// on its way is found when it would begin.
    pub fn ask_to_stop(&self, runs: impl IntoIterator<Item = RunId>, request: &CancelRequest) {
        self.with(|table| {
            for run in runs {
                table.asked.push(run, request.clone());
                table.forget_ready(run);
                if let Some(one) = table.in_flight.get_mut(&run) {
                    table.cancels += usize::from(one.cancel.is_none());
                    one.cancel.get_or_insert_with(|| request.clone());
                }
            }
        });
    }

    /// Whether a caller of this node asked it to stop.
    pub fn is_asked_to_stop(&self, run: RunId) -> bool {
        self.with(|table| table.asked.contains(&run))
    }

    /// Marks a run in flight as asked to stop. False where there is none.
    pub fn note_cancel(&self, run: RunId, request: CancelRequest) -> bool {
        self.with(|table| match table.in_flight.get_mut(&run) {
            Some(one) => {
                table.cancels += usize::from(one.cancel.is_none());
                one.cancel.get_or_insert(request);
                true
            }
            None => false,
        })
    }

    /// The cancel requests of these runs, if any of those in hand has one.
    pub fn cancels<'r>(&self, runs: impl Iterator<Item = &'r RunId>) -> HashMap<RunId, CancelRequest> {
        if self.cancels.load(Ordering::Relaxed) == 0 {
            return HashMap::new();
        }
        self.with(|table| runs.filter_map(|id| Some((*id, table.in_flight.get(id)?.cancel.clone()?))).collect())
    }

    /// Partitions went to others: forgets their ready runs, and answers the
    /// attempts that are void by it. Of an attempt that was asked to be kept the answer
    /// will tell.
    pub fn forget_parts(&self, parts: &[Partition]) -> Vec<Lease> {
        self.with(|table| {
            let gone = |part: Partition| parts.contains(&part);
            let ready: Vec<RunId> =
                table.ready.values().filter(|ready| gone(ready.run.part)).map(|ready| ready.run.id).collect();
            for id in ready {
                table.forget_ready(id);
            }
            for one in table.in_flight.values_mut().filter(|one| gone(one.part)) {
                one.next = None;
            }
            let void =
                |one: &&InFlight| gone(one.part) && matches!(one.by, By::Owner(_)) && one.handover != Handover::Asked;
            let mut leases: Vec<Lease> = table.in_flight.values().filter(void).map(|one| one.lease).collect();
            leases.sort_unstable_by_key(|lease| lease.run);
            leases
        })
    }

    /// Written leases in hand.
    pub fn leases(&self) -> Vec<Lease> {
        self.with(|table| {
            let leased = table.in_flight.values().filter(|one| one.by == By::Lease);
            leased.map(|one| one.lease).collect()
        })
    }

    pub fn in_flight(&self, run: RunId) -> Option<Lease> {
        self.with(|table| table.in_flight.get(&run).map(|one| one.lease))
    }

    pub fn len(&self) -> usize {
        self.with(|table| table.backlog.len())
    }

    pub fn is_low(&self) -> bool {
        self.with(|table| table.backlog.is_low())
    }

    pub fn weigh(&self, weights: &[(TenantId, u32)]) {
        self.with(|table| {
            for (tenant, weight) in weights {
                table.backlog.shares().weigh(*tenant, *weight);
            }
        });
    }

    pub fn reopen(&self) {
        self.with(|table| table.backlog.reopen());
    }

    pub fn doubt(&self, pairs: impl IntoIterator<Item = Pair>) {
        self.with(|table| {
            for pair in pairs {
                table.backlog.doubt(pair);
            }
        });
    }

    pub fn wanted(&self) -> Vec<Window> {
        self.with(|table| table.backlog.wanted())
    }

    /// Takes in what was read for a window, when somebody asked in this generation of the
    /// territory: as with [`LocalRuns::offer`].
    pub fn read(&self, window: &Window, mut runs: Vec<ReadyRun>, asked_in: u64, territory: &Territory) {
        self.with(|table| {
            let (held, found) = (territory.table(), runs.len());
            runs.retain(|ready| held[usize::from(ready.run.part.0)].is_some_and(|held| held.since(asked_in)));
            let old = runs.len() < found;
            let places: Vec<Place> = runs.iter().map(|ready| place_of(&ready.run)).collect();
            let stays: HashSet<RunId> =
                runs.iter().filter(|ready| !table.may_be_offered(&ready.run)).map(|ready| ready.run.id).collect();
            if table.backlog.read(window, &places, |place| stays.contains(&place.1)) {
                for ready in runs {
                    if stays.contains(&ready.run.id) {
                        table.keep_next(ready);
                    } else {
                        table.keep(ready);
                    }
                }
            }
            if old {
                table.backlog.doubt(window.pair);
            }
        });
    }
}
