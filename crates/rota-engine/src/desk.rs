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
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;
use rota_core::{
    dispatch::{Backlog, Pair, Place, Window},
    ids::{PARTITIONS, Partition, RunId, TenantId},
    run::{CancelRequest, Lease, Run},
    store::By,
};

use crate::territory::{Held, Territory};

/// Leases settled last that are remembered: a second's worth at full speed.
const RECENT_MAX: usize = 65_536;

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
    /// It was asked to stop.
    pub cancel: Option<CancelRequest>,
    /// The same run, ready again under a later fence: the answer to its
    /// settlement has yet to be heard, and another stage was quicker.
    next: Option<Box<Known>>,
}

#[derive(Debug, Default)]
struct Recent {
    order: VecDeque<Lease>,
    leases: HashSet<Lease>,
}

impl Recent {
    fn push(&mut self, lease: Lease) {
        if !self.leases.insert(lease) {
            return;
        }
        self.order.push_back(lease);
        if self.order.len() > RECENT_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.leases.remove(&first);
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
    /// Flights of each partition that hold it: those by right of its epoch.
    owned: Box<[u32; PARTITIONS]>,
    recent: Recent,
    cancels: usize,
}

#[derive(Debug)]
pub struct Desk(Mutex<Papers>);

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
        Self(Mutex::new(Papers {
            backlog: Backlog::new(runs_max),
            known: HashMap::new(),
            deadlines: BTreeSet::new(),
            flying: HashMap::new(),
            owned: Box::new([0; PARTITIONS]),
            recent: Recent::default(),
            cancels: 0,
        }))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Papers) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Offers runs that are ready in the store. Answers how many were kept;
    /// the others are read when their turn is near.
    pub fn offer(&self, runs: impl IntoIterator<Item = Known>) -> usize {
        self.with(|papers| runs.into_iter().filter_map(|known| papers.offer(known).then_some(())).count())
    }

    /// Takes up to `most` runs to be executed, fairly, of the pairs that `open`
    /// lets through and the partitions held. The territory is looked at under
    /// the desk's lock: whoever finds no flight in a partition that is to be
    /// given away may rely on none being begun.
    pub fn take(&self, most: usize, territory: &Territory, open: impl FnMut(Pair) -> bool) -> Vec<Ready> {
        self.with(|papers| {
            let held = territory.table();
            let taken = papers.backlog.take(most, open);
            taken.into_iter().filter_map(|(_, (_, id))| papers.fly_known(id, &held)).collect()
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
            if papers.flying.contains_key(&run.id) || papers.recent.leases.contains(&run.lease()) {
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
                if matches!(flight.by, By::Owner(_)) {
                    papers.owned[usize::from(flight.part.0)] -= 1;
                }
                (flight.lease, flight.by) = (lease, By::Lease);
            }
        });
    }

    /// Lets go of runs that were settled: whoever still sees one as ready under
    /// that lease has looked before. True where one of them is ready again.
    #[must_use]
    pub fn land(&self, leases: impl IntoIterator<Item = Lease>) -> bool {
        self.with(|papers| {
            let mut again = false;
            for lease in leases {
                papers.recent.push(lease);
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

    /// A run of an owned lane was asked to stop.
    pub fn cancel(&self, run: &Run, territory: &Territory) -> Option<CancelFound> {
        self.with(|papers| {
            if let Some(flight) = papers.flying.get_mut(&run.id) {
                papers.cancels += usize::from(flight.cancel.is_none());
                flight.cancel.clone_from(&run.cancel);
                return Some(CancelFound::Flying);
            }
            if papers.recent.leases.contains(&run.lease()) {
                return None;
            }
            let by = By::Owner(territory.held(run.part)?.epoch);
            papers.forget_known(run.id);
            papers.fly(run, by);
            Some(CancelFound::Here(by))
        })
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
        self.with(|papers| {
            if papers.cancels == 0 {
                return HashMap::new();
            }
            runs.filter_map(|id| Some((*id, papers.flying.get(id)?.cancel.clone()?))).collect()
        })
    }

    /// Partitions went to others: forgets their ready runs, and answers the
    /// flights that are void by it.
    pub fn forget_parts(&self, parts: &[Partition]) -> Vec<Lease> {
        self.with(|papers| {
            let gone = |part: Partition| parts.contains(&part);
            let ready: Vec<RunId> =
                papers.known.values().filter(|known| gone(known.run.part)).map(|known| known.run.id).collect();
            for id in ready {
                papers.forget_known(id);
            }
            let void = |flight: &&Flight| gone(flight.part) && matches!(flight.by, By::Owner(_));
            papers.flying.values().filter(void).map(|flight| flight.lease).collect()
        })
    }

    /// How many flights need their partition to be kept.
    pub fn owned_flights(&self, part: Partition) -> u32 {
        self.with(|papers| papers.owned[usize::from(part.0)])
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
        !self.flying.contains_key(&run.id) && !self.recent.leases.contains(&run.lease())
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
        self.fly(&run, by);
        Some(Ready { run, by, suspect })
    }

    fn fly(&mut self, run: &Run, by: By) {
        if matches!(by, By::Owner(_)) {
            self.owned[usize::from(run.part.0)] += 1;
        }
        let cancel = run.cancel.clone();
        self.cancels += usize::from(cancel.is_some());
        let flight = Flight {
            lease: run.lease(),
            by,
            part: run.part,
            pair: pair_of(run),
            place: place_of(run),
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
        if matches!(flight.by, By::Owner(_)) {
            self.owned[usize::from(flight.part.0)] -= 1;
        }
        self.cancels -= usize::from(flight.cancel.is_some());
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
        run::{Labels, NewRun, RunState, Source, Trigger},
        store::Epoch,
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
        assert_eq!((offer(&desk, &run), desk.owned_flights(Partition(7))), (0, 1), "it flies");
        assert!(!desk.land([run.lease()]));
        assert_eq!((offer(&desk, &run), desk.owned_flights(Partition(7))), (0, 0), "it was settled");
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
            assert_eq!(desk.owned_flights(Partition(7)), 0);
        }
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
