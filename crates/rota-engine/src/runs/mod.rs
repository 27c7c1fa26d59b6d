//! The ready runs of this node's partitions, and those in its hands.
//!
//! A run is known (ready, in memory), flying (taken and not yet settled) or
//! neither. What flies is never offered again under the same lease, and neither
//! is what was settled a moment ago: a look that began before a settlement
//! still sees the run as ready. What is offered under a later one waits until
//! the flight has landed: a retry may be promoted before its settlement's answer
//! is heard.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    hash::Hash,
    sync::atomic::{AtomicUsize, Ordering},
};

use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    dispatch::{Backlog, Pair, Place, Window},
    ids::{PARTITIONS, Partition, RunId, TenantId},
    run::{CancelRequest, Hold, Lease, Run, RunState},
    store::{By, Epoch, RunRecord},
};

use crate::{
    planted::{self, Bug},
    territory::{Held, Territory},
};

/// Leases settled last that are remembered: a second's worth at full speed.
const RECENT_MAX: usize = 65_536;

/// Runs that this node was asked to stop last, and remembers.
const ASKED_MAX: usize = 4_096;

/// A ready run.
#[derive(Clone, Debug)]
pub struct Known {
    pub run: Run,
    /// A former owner may have died of it: it is leased in writing.
    pub suspect: bool,
}

/// A run taken from the desk, with the right to it.
#[derive(Clone, Debug)]
pub struct Ready {
    pub run: Run,
    pub by: By,
    pub suspect: bool,
}

/// A run in this node's hands.
#[derive(Clone, Debug)]
pub struct Flight {
    pub lease: Lease,
    pub by: By,
    pub part: Partition,
    pair: Pair,
    place: Place,
    /// When its attempt began; none while it is held back, or is not to be executed at all.
    begun_at: Option<Timestamp>,
    kept: Kept,
    /// It was asked to stop.
    pub cancel: Option<CancelRequest>,
    /// The same run, ready again under a later fence: the answer to its
    /// settlement has yet to be heard, and another stage was quicker.
    next: Option<Box<Known>>,
}

/// Whether an attempt is kept although its partition goes to another node: by a written
/// lease under its own fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// Nobody has asked for it.
    #[default]
    No,
    /// The lease was asked for, and the answer is not known yet.
    Asked,
    Leased,
    /// The store has refused: the run was settled meanwhile, or is another's.
    Refused,
}

/// What becomes of a run in hand whose attempt is about to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Go,
    /// It was asked to stop.
    Cancelled,
    /// Its partition went to another node or is about to: it is not in hand any more.
    Gone,
}

/// An attempt in flight by right of its partition's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    pub lease: Lease,
    pub part: Partition,
    pub epoch: Epoch,
}

/// The last so many of something.
#[derive(Debug)]
struct Recent<T> {
    order: VecDeque<T>,
    all: HashSet<T>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { order: VecDeque::new(), all: HashSet::new() }
    }
}

impl<T: Copy + Eq + Hash> Recent<T> {
    fn push(&mut self, one: T) {
        if !self.all.insert(one) {
            return;
        }
        self.order.push_back(one);
        if self.order.len() > RECENT_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.all.remove(&first);
        }
    }

    fn contains(&self, one: &T) -> bool {
        self.all.contains(one)
    }
}

/// Runs that callers of this node asked to stop, whoever has them. A run that was asked
/// once is never asked back, so what is forgotten costs a start that is told to stop.
#[derive(Debug, Default)]
struct Asked {
    order: VecDeque<RunId>,
    requests: HashMap<RunId, CancelRequest>,
}

impl Asked {
    fn push(&mut self, run: RunId, request: CancelRequest) {
        if self.requests.insert(run, request).is_some() {
            return;
        }
        self.order.push_back(run);
        if self.order.len() > ASKED_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.requests.remove(&first);
        }
    }
}

#[derive(Debug)]
struct Papers {
    backlog: Backlog,
    known: HashMap<RunId, Known>,
    /// Known runs by when they must be started, or have ended.
    deadlines: BTreeSet<(Timestamp, RunId)>,
    flying: HashMap<RunId, Flight>,
    recent: Recent<Lease>,
    /// Attempts that the store refused to settle by this right: it is over, whatever the
    /// territory says.
    refused: Recent<(Lease, Epoch)>,
    /// Flights that were asked to stop.
    cancels: usize,
    asked: Asked,
    /// Flights whose attempts are kept, or were asked for.
    kept: usize,
}

#[derive(Debug)]
pub struct Desk {
    papers: Mutex<Papers>,
    /// [`Papers::cancels`], for those who only ask whether there are any.
    cancels: AtomicUsize,
}

pub fn pair_of(run: &Run) -> Pair {
    Pair { lane: run.lane, tenant: run.tenant }
}

fn place_of(run: &Run) -> Place {
    (run.order_key(), run.id)
}

/// What the owner does about a run that was asked to stop.
#[derive(Debug, PartialEq)]
pub enum CancelFound {
    /// It is under way here, and must be told.
    Flying,
    /// Nobody has started it: it is in this node's hands now, to be ended.
    Here(By),
}

impl Desk {
    pub fn new(runs_max: usize) -> Self {
        let papers = Papers {
            backlog: Backlog::new(runs_max),
            known: HashMap::new(),
            deadlines: BTreeSet::new(),
            flying: HashMap::new(),
            recent: Recent::default(),
            refused: Recent::default(),
            cancels: 0,
            asked: Asked::default(),
            kept: 0,
        };
        Self { papers: Mutex::new(papers), cancels: AtomicUsize::new(0) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Papers) -> T) -> T {
        let mut papers = self.papers.lock();
        let done = work(&mut papers);
        self.cancels.store(papers.cancels, Ordering::Relaxed);
        done
    }

    /// Offers runs that are ready in the store. Answers how many were kept;
    /// the others are read when their turn is near.
    pub fn offer(&self, runs: impl IntoIterator<Item = Known>) -> usize {
        self.with(|papers| runs.into_iter().filter_map(|known| papers.offer(known).then_some(())).count())
    }

    /// Takes up to `most` runs to be executed, fairly, of the pairs that `open`
    /// lets through and the partitions held.
    pub fn take(&self, most: usize, territory: &Territory, open: impl FnMut(Pair) -> bool) -> Vec<Ready> {
        self.with(|papers| {
            let held = territory.table();
            let taken = papers.backlog.take(most, open);
            taken.into_iter().filter_map(|(_, (_, id))| papers.fly_known(id, &held)).collect()
        })
    }

    /// Runs that this node executes by the right of their partition, or has executed and
    /// not settled: the store may have them as queued.
    pub fn begun(&self) -> Vec<RunId> {
        self.with(|papers| {
            let begun = papers.flying.values().filter(|flight| flight.begun_at.is_some() && flight.by != By::Lease);
            begun.map(|flight| flight.lease.run).collect()
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
        self.with(|papers| {
            let mut settled = Vec::new();
            for record in queued {
                let lease = record.run.lease();
                let flight = papers.flying.get(&lease.run).filter(|flight| flight.lease == lease);
                if let Some(started_at) = flight.and_then(|flight| flight.begun_at) {
                    record.run.state = RunState::Running { hold: Hold::Owned, started_at };
                    record.started_at = Some(started_at);
                } else if papers.recent.contains(&lease) {
                    settled.push(lease.run);
                }
            }
            settled
        })
    }

    /// Takes the known runs that must not be started any more.
    pub fn take_expired(&self, now: Timestamp, most: usize, territory: &Territory) -> Vec<Ready> {
        self.with(|papers| {
            let held = territory.table();
            let mut expired = Vec::new();
            while expired.len() < most
                && let Some((at, id)) = papers.deadlines.first().copied()
                && at <= now
            {
                papers.deadlines.pop_first();
                if let Some(known) = papers.known.get(&id) {
                    let (pair, place) = (pair_of(&known.run), place_of(&known.run));
                    papers.backlog.remove(pair, &place);
                    expired.extend(papers.fly_known(id, &held));
                }
            }
            expired
        })
    }

    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.with(|papers| papers.deadlines.first().map(|(at, _)| *at))
    }

    /// Takes runs in hand that did not come from the backlog: claimed ones, and
    /// those of a former owner. False for one that is in hand already.
    pub fn fly(&self, run: &Run, by: By) -> bool {
        self.with(|papers| {
            let refused = matches!(by, By::Owner(epoch) if papers.refused.contains(&(run.lease(), epoch)));
            if refused || papers.flying.contains_key(&run.id) || papers.recent.contains(&run.lease()) {
                return false;
            }
            papers.forget_known(run.id);
            papers.fly(run, by);
            true
        })
    }

    /// As [`Desk::fly`], for a run whose former flight is known to be over: the
    /// store gave it out under a later fence before its settlement's answer was
    /// heard.
    pub fn fly_again(&self, run: &Run, by: By) -> bool {
        self.with(|papers| {
            let former = papers.flying.get(&run.id).map(|flight| flight.lease);
            let Some(former) = former.filter(|lease| lease.fence < run.fence) else { return false };
            papers.recent.push(former);
            papers.land(former);
            papers.forget_known(run.id);
            papers.fly(run, by);
            true
        })
    }

    /// The run is held by a written lease from now on.
    pub fn leased(&self, lease: Lease) {
        self.with(|papers| {
            if let Some(flight) = papers.flying.get_mut(&lease.run) {
                (flight.lease, flight.by) = (lease, By::Lease);
            }
        });
    }

    /// Begins attempts at runs in hand, and says of each whether it may. The territory is
    /// looked at under the desk's lock: whoever asks for the attempts in flight of a
    /// partition that is to be given away may rely on none being begun after.
    pub fn begin<'r>(
        &self,
        runs: impl Iterator<Item = &'r Ready>,
        territory: &Territory,
        now: Timestamp,
    ) -> Vec<Begin> {
        self.with(|papers| {
            let held = territory.table();
            runs.map(|ready| papers.begin(ready, &held, now)).collect()
        })
    }

    /// Attempts in flight by right of these partitions' epochs, up to `most` that nobody
    /// has asked to keep: from now on somebody has.
    pub fn keep(&self, parts: &[Partition], most: usize) -> Vec<InFlight> {
        self.with(|papers| {
            let mut asked = Vec::new();
            for flight in papers.flying.values_mut() {
                let By::Owner(epoch) = flight.by else { continue };
                if asked.len() < most
                    && flight.begun_at.is_some()
                    && flight.kept == Kept::No
                    && parts.contains(&flight.part)
                {
                    flight.kept = Kept::Asked;
                    asked.push(InFlight { lease: flight.lease, part: flight.part, epoch });
                }
            }
            papers.kept += asked.len();
            // In an order that does not change from one run of a test to the next.
            asked.sort_unstable_by_key(|one| one.lease.run);
            asked
        })
    }

    /// What came of asking to keep attempts.
    pub fn set_kept(&self, leases: impl IntoIterator<Item = Lease>, kept: Kept) {
        self.with(|papers| {
            for lease in leases {
                let Some(flight) = papers.flying.get_mut(&lease.run).filter(|flight| flight.lease == lease) else {
                    continue;
                };
                papers.kept -= usize::from(flight.kept != Kept::No);
                papers.kept += usize::from(kept != Kept::No);
                flight.kept = kept;
                if kept == Kept::Leased {
                    flight.by = By::Lease;
                }
            }
        });
    }

    /// Whether the attempt under this lease is kept.
    pub fn kept(&self, lease: Lease) -> Kept {
        self.with(|papers| papers.kept_of(lease))
    }

    /// The same of many, in order; nothing where nobody has asked to keep any.
    pub fn all_kept(&self, leases: impl Iterator<Item = Lease>) -> Vec<Kept> {
        self.with(
            |papers| if papers.kept == 0 { Vec::new() } else { leases.map(|lease| papers.kept_of(lease)).collect() },
        )
    }

    /// Lets go of runs that were settled: whoever still sees one as ready under
    /// that lease has looked before. True where one of them is ready again.
    #[must_use]
    pub fn land(&self, leases: impl IntoIterator<Item = Lease>) -> bool {
        self.with(|papers| {
            let mut again = false;
            for lease in leases {
                if !planted::is(Bug::LandedForgotten) {
                    papers.recent.push(lease);
                }
                again |= papers.land(lease);
            }
            again
        })
    }

    /// Lets go of a run that was not settled: whoever finds it ready may have it.
    #[must_use]
    pub fn drop_flights(&self, leases: impl IntoIterator<Item = Lease>) -> bool {
        self.with(|papers| leases.into_iter().fold(false, |again, lease| papers.land(lease) | again))
    }

    /// The store refused to settle, mark or lease these: no other attempt is made by the
    /// same right.
    pub fn refuse(&self, refused: impl IntoIterator<Item = (Lease, By)>) {
        self.with(|papers| {
            for (lease, by) in refused {
                if let By::Owner(epoch) = by {
                    papers.refused.push((lease, epoch));
                }
            }
        });
    }

    /// A run of an owned lane was asked to stop.
    pub fn cancel(&self, run: &Run, territory: &Territory) -> Option<CancelFound> {
        self.with(|papers| {
            if let Some(flight) = papers.flying.get_mut(&run.id) {
                papers.cancels += usize::from(flight.cancel.is_none());
                flight.cancel.clone_from(&run.cancel);
                return Some(CancelFound::Flying);
            }
            if papers.recent.contains(&run.lease()) {
                return None;
            }
            if let RunState::Cancelling { hold: Some(Hold::Leased(_)), .. } = run.state {
                // Whoever holds it hears of it when it extends its lease.
                return None;
            }
            let by = By::Owner(territory.held(run.part)?.epoch);
            papers.forget_known(run.id);
            papers.fly(run, by);
            Some(CancelFound::Here(by))
        })
    }

    /// Runs were asked to stop by a caller of this node: none of them begins here any
    /// more. What is ready is left to the notice that came with the request, and what is
    /// on its way is found when it would begin.
    pub fn ask_to_stop(&self, runs: impl IntoIterator<Item = RunId>, request: &CancelRequest) {
        self.with(|papers| {
            for run in runs {
                papers.asked.push(run, request.clone());
                papers.forget_known(run);
                if let Some(flight) = papers.flying.get_mut(&run) {
                    papers.cancels += usize::from(flight.cancel.is_none());
                    flight.cancel.get_or_insert_with(|| request.clone());
                }
            }
        });
    }

    /// Whether a caller of this node asked it to stop.
    pub fn is_asked_to_stop(&self, run: RunId) -> bool {
        self.with(|papers| papers.asked.requests.contains_key(&run))
    }

    /// Marks a flight as asked to stop. False where there is none.
    pub fn note_cancel(&self, run: RunId, request: CancelRequest) -> bool {
        self.with(|papers| match papers.flying.get_mut(&run) {
            Some(flight) => {
                papers.cancels += usize::from(flight.cancel.is_none());
                flight.cancel.get_or_insert(request);
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
        self.with(|papers| runs.filter_map(|id| Some((*id, papers.flying.get(id)?.cancel.clone()?))).collect())
    }

    /// Partitions went to others: forgets their ready runs, and answers the
    /// flights that are void by it. Of an attempt that was asked to be kept the answer
    /// will tell.
    pub fn forget_parts(&self, parts: &[Partition]) -> Vec<Lease> {
        self.with(|papers| {
            let gone = |part: Partition| parts.contains(&part);
            let ready: Vec<RunId> =
                papers.known.values().filter(|known| gone(known.run.part)).map(|known| known.run.id).collect();
            for id in ready {
                papers.forget_known(id);
            }
            let void =
                |flight: &&Flight| gone(flight.part) && matches!(flight.by, By::Owner(_)) && flight.kept != Kept::Asked;
            let mut leases: Vec<Lease> = papers.flying.values().filter(void).map(|flight| flight.lease).collect();
            leases.sort_unstable_by_key(|lease| lease.run);
            leases
        })
    }

    /// Written leases in hand.
    pub fn leases(&self) -> Vec<Lease> {
        self.with(|papers| {
            let leased = papers.flying.values().filter(|flight| flight.by == By::Lease);
            leased.map(|flight| flight.lease).collect()
        })
    }

    pub fn is_flying(&self, run: RunId) -> Option<Lease> {
        self.with(|papers| papers.flying.get(&run).map(|flight| flight.lease))
    }

    pub fn len(&self) -> usize {
        self.with(|papers| papers.backlog.len())
    }

    pub fn is_low(&self) -> bool {
        self.with(|papers| papers.backlog.is_low())
    }

    pub fn weigh(&self, weights: &[(TenantId, u32)]) {
        self.with(|papers| {
            for (tenant, weight) in weights {
                papers.backlog.shares().weigh(*tenant, *weight);
            }
        });
    }

    pub fn reopen(&self) {
        self.with(|papers| papers.backlog.reopen());
    }

    pub fn doubt(&self, pairs: impl IntoIterator<Item = Pair>) {
        self.with(|papers| {
            for pair in pairs {
                papers.backlog.doubt(pair);
            }
        });
    }

    pub fn wanted(&self) -> Vec<Window> {
        self.with(|papers| papers.backlog.wanted())
    }

    /// Takes in what was read for a window.
    pub fn read(&self, window: &Window, runs: Vec<Known>) {
        self.with(|papers| {
            let places: Vec<Place> = runs.iter().map(|known| place_of(&known.run)).collect();
            let stays: HashSet<RunId> =
                runs.iter().filter(|known| !papers.may_be_offered(&known.run)).map(|known| known.run.id).collect();
            if papers.backlog.read(window, &places, |place| stays.contains(&place.1)) {
                for known in runs {
                    if stays.contains(&known.run.id) {
                        papers.wait_for_landing(known);
                    } else {
                        papers.keep(known);
                    }
                }
            }
        });
    }
}

impl Papers {
    fn may_be_offered(&self, run: &Run) -> bool {
        let flies = self.flying.contains_key(&run.id) && !planted::is(Bug::InFlightOffered);
        !flies && !self.recent.contains(&run.lease())
    }

    fn offer(&mut self, known: Known) -> bool {
        if !self.may_be_offered(&known.run) {
            self.wait_for_landing(known);
            return false;
        }
        let kept = self.backlog.offer(pair_of(&known.run), place_of(&known.run));
        if kept {
            self.keep(known);
        }
        kept
    }

    fn wait_for_landing(&mut self, known: Known) {
        if let Some(flight) = self.flying.get_mut(&known.run.id)
            && flight.lease.fence < known.run.fence
        {
            flight.next = Some(Box::new(known));
        }
    }

    fn keep(&mut self, known: Known) {
        if let Some(at) = known.run.due_at() {
            self.deadlines.insert((at, known.run.id));
        }
        self.known.insert(known.run.id, known);
    }

    fn unkeep(&mut self, id: RunId) -> Option<Known> {
        let known = self.known.remove(&id)?;
        if let Some(at) = known.run.due_at() {
            self.deadlines.remove(&(at, id));
        }
        Some(known)
    }

    fn forget_known(&mut self, id: RunId) {
        if let Some(known) = self.unkeep(id) {
            self.backlog.remove(pair_of(&known.run), &place_of(&known.run));
        }
    }

    /// From known to flying, unless its partition went to another or is about
    /// to: then it is left to the store and its next owner.
    fn fly_known(&mut self, id: RunId, held: &[Option<Held>; PARTITIONS]) -> Option<Ready> {
        let Known { run, suspect } = self.unkeep(id)?;
        let held = held[usize::from(run.part.0)].filter(|held| !held.leaving)?;
        let by = By::Owner(held.epoch);
        if self.refused.contains(&(run.lease(), held.epoch)) {
            return None;
        }
        self.fly(&run, by);
        Some(Ready { run, by, suspect })
    }

    fn begin(&mut self, ready: &Ready, held: &[Option<Held>; PARTITIONS], now: Timestamp) -> Begin {
        let (run, lease) = (&ready.run, ready.run.lease());
        if planted::is(Bug::BegunUnchecked) {
            return Begin::Go;
        }
        let Some(flight) = self.flying.get_mut(&run.id).filter(|flight| flight.lease == lease) else {
            return Begin::Gone;
        };
        let ours = match ready.by {
            By::Owner(epoch) => held[usize::from(run.part.0)].is_some_and(|held| !held.leaving && held.epoch == epoch),
            By::Lease => true,
        };
        if !ours {
            self.land(lease);
            return Begin::Gone;
        }
        if flight.cancel.is_some() {
            return Begin::Cancelled;
        }
        flight.begun_at = Some(now);
        Begin::Go
    }

    fn kept_of(&self, lease: Lease) -> Kept {
        let flight = self.flying.get(&lease.run).filter(|flight| flight.lease == lease);
        flight.map_or(Kept::No, |flight| flight.kept)
    }

    fn fly(&mut self, run: &Run, by: By) {
        let cancel = run.cancel.clone().or_else(|| self.asked.requests.get(&run.id).cloned());
        self.cancels += usize::from(cancel.is_some());
        let flight = Flight {
            lease: run.lease(),
            by,
            part: run.part,
            pair: pair_of(run),
            place: place_of(run),
            begun_at: None,
            kept: Kept::No,
            cancel,
            next: None,
        };
        self.flying.insert(run.id, flight);
    }

    /// The flight under this lease is over. True where its run is ready again.
    fn land(&mut self, lease: Lease) -> bool {
        if self.flying.get(&lease.run).is_none_or(|flight| flight.lease != lease) {
            return false;
        }
        let Some(flight) = self.flying.remove(&lease.run) else { return false };
        self.cancels -= usize::from(flight.cancel.is_some());
        self.kept -= usize::from(flight.kept != Kept::No);
        self.backlog.remove(flight.pair, &flight.place);
        flight.next.is_some_and(|known| self.offer(*known))
    }
}

#[cfg(test)]
mod tests {
    use rota_core::{
        ids::{JobId, LaneId},
        order::Priority,
        ports::Seeded,
        run::{Labels, NewRun, Source, Trigger},
    };

    use super::*;

    fn run() -> Run {
        let now = Timestamp::from_second(1_767_607_200).unwrap();
        let new = NewRun {
            id: RunId::new(&Seeded::new(1), now),
            tenant: TenantId(1),
            job: JobId(1),
            version: 1,
            lane: LaneId(1),
            part: Partition(7),
            priority: Priority::default(),
            ready_at: now,
            expires_at: None,
            deadline_at: None,
            trigger: Trigger::plain(Source::Api),
            labels: Labels::new(),
            payload: None,
            slot: None,
            unique: None,
            once: None,
            parent: None,
            after: Vec::new(),
            follows: false,
            rearms: false,
            redrive: None,
        };
        new.born(RunState::Queued, now)
    }

    fn desk() -> (Desk, Territory) {
        let territory = Territory::default();
        territory.take(&[(Partition(7), Epoch(3))], Timestamp::UNIX_EPOCH);
        (Desk::new(100), territory)
    }

    fn offer(desk: &Desk, run: &Run) -> usize {
        desk.offer([Known { run: run.clone(), suspect: false }])
    }

    /// A look that began before a settlement still sees the run as ready.
    #[test]
    fn what_was_settled_a_moment_ago_is_not_offered_again() {
        let (desk, territory) = desk();
        let run = run();
        assert_eq!(offer(&desk, &run), 1);
        let taken = desk.take(10, &territory, |_| true);
        assert_eq!((taken.len(), taken[0].by), (1, By::Owner(Epoch(3))));
        assert_eq!(offer(&desk, &run), 0, "it flies");
        assert!(!desk.land([run.lease()]));
        assert_eq!(offer(&desk, &run), 0, "it was settled");
        let retried = Run { fence: run.fence.next(), ..run };
        assert_eq!(offer(&desk, &retried), 1, "under a new lease it is another try");
    }

    #[test]
    fn what_was_not_settled_may_be_offered_again() {
        let (desk, territory) = desk();
        let run = run();
        offer(&desk, &run);
        desk.take(10, &territory, |_| true);
        assert!(!desk.drop_flights([run.lease()]));
        assert_eq!(offer(&desk, &run), 1);
    }

    /// Another node took the partition, and this one has yet to hear of it: what it would
    /// do again is the other's to do.
    #[test]
    fn what_the_store_refused_to_settle_is_not_tried_again_by_the_same_right() {
        let (desk, territory) = desk();
        let run = run();
        offer(&desk, &run);
        let taken = desk.take(10, &territory, |_| true);
        desk.refuse(taken.iter().map(|ready| (ready.run.lease(), ready.by)));
        assert!(!desk.drop_flights([run.lease()]));
        offer(&desk, &run);
        assert_eq!(desk.take(10, &territory, |_| true).len(), 0);
        assert!(!desk.fly(&run, By::Owner(Epoch(3))));
        territory.take(&[(Partition(7), Epoch(4))], Timestamp::UNIX_EPOCH);
        offer(&desk, &run);
        assert_eq!(desk.take(10, &territory, |_| true).len(), 1, "the partition is its own again");
    }

    /// A run of a partition that went, or is about to go, is its next owner's.
    #[test]
    fn nothing_is_taken_from_a_partition_that_is_lost_or_leaving() {
        for leaving in [false, true] {
            let (desk, territory) = desk();
            offer(&desk, &run());
            if leaving {
                territory.set_leaving(&[Partition(7)], true);
            } else {
                territory.lose(&[Partition(7)]);
            }
            assert_eq!(desk.take(10, &territory, |_| true).len(), 0);
        }
    }

    /// What is begun after its partition's attempts were asked for would be executed here
    /// and by the next owner.
    #[test]
    fn nothing_is_begun_in_a_partition_that_is_lost_or_leaving() {
        let parts = [Partition(7)];
        for leaving in [false, true] {
            let (desk, territory) = desk();
            offer(&desk, &run());
            let taken = desk.take(10, &territory, |_| true);
            if leaving {
                territory.set_leaving(&parts, true);
            } else {
                territory.lose(&parts);
            }
            assert_eq!(desk.keep(&parts, 10), [], "it has not begun");
            assert_eq!(desk.begin(taken.iter(), &territory, Timestamp::UNIX_EPOCH), [Begin::Gone]);
            assert_eq!(desk.is_flying(taken[0].run.id), None);
        }
    }

    /// An attempt whose lease was asked for is not lost with its partition: the answer tells.
    #[test]
    fn an_attempt_is_asked_for_once_and_kept_by_its_lease() {
        let (desk, territory) = desk();
        let (parts, run) = ([Partition(7)], run());
        offer(&desk, &run);
        let taken = desk.take(10, &territory, |_| true);
        assert_eq!(desk.all_kept([run.lease()].into_iter()), []);
        assert_eq!(desk.begin(taken.iter(), &territory, Timestamp::UNIX_EPOCH), [Begin::Go]);
        let asked = InFlight { lease: run.lease(), part: parts[0], epoch: Epoch(3) };
        assert_eq!((desk.keep(&parts, 10), desk.keep(&parts, 10)), (vec![asked], vec![]));
        assert_eq!(desk.forget_parts(&parts), []);
        desk.set_kept([run.lease()], Kept::No);
        assert_eq!(desk.forget_parts(&parts), [run.lease()], "nobody keeps it");
        assert_eq!(desk.keep(&parts, 10).len(), 1);
        desk.set_kept([run.lease()], Kept::Leased);
        assert_eq!((desk.forget_parts(&parts), desk.leases()), (vec![], vec![run.lease()]));
        assert_eq!(desk.all_kept([run.lease()].into_iter()), [Kept::Leased]);
        assert!(!desk.land([run.lease()]));
        assert_eq!(desk.all_kept([run.lease()].into_iter()), []);
    }

    /// A retry with a short backoff may be promoted before the answer to its
    /// settlement is heard; forgotten, it would wait for the next full look.
    #[test]
    fn a_run_that_is_ready_again_before_its_flight_has_landed_is_not_forgotten() {
        let (desk, run) = (Desk::new(10), run());
        assert!(desk.fly(&run, By::Owner(Epoch(1))));
        let mut again = run.clone();
        again.fence = again.fence.next();
        assert_eq!(desk.offer([Known { run: again.clone(), suspect: false }]), 0, "not beside its own flight");
        assert_eq!(desk.len(), 0);
        assert!(desk.land([run.lease()]));
        assert_eq!(desk.len(), 1);
    }

    #[test]
    fn a_run_claimed_again_before_its_flight_has_landed_flies_under_its_new_lease() {
        let (desk, run) = (Desk::new(10), run());
        assert!(desk.fly(&run, By::Lease));
        assert!(!desk.fly_again(&run, By::Lease), "the same lease is no news");
        let mut again = run.clone();
        again.fence = again.fence.next();
        assert!(!desk.fly(&again, By::Lease) && desk.fly_again(&again, By::Lease));
        assert!(!desk.land([run.lease()]));
        assert_eq!(desk.is_flying(run.id), Some(again.lease()));
    }
}
