//! Which runs are ready here, and which are in flight.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use rota_core::{
    dispatch::{Backlog, Pair, Place},
    ids::{PARTITIONS, Partition, RunId},
    run::{CancelRequest, Lease, Run},
    store::{By, Epoch},
};

use super::{ReadyRun, TakenRun, recent::Recent};
use crate::{
    planted::{self, Bug},
    territory::Held,
};

/// Leases settled last that are remembered: a second's worth at full speed.
const SETTLED_MAX: usize = 65_536;
/// Runs that this node was asked to stop last, and remembers.
const ASKED_MAX: usize = 4_096;

/// A run in this node's hands.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) lease: Lease,
    pub(super) by: By,
    pub(super) part: Partition,
    pub(super) pair: Pair,
    pub(super) place: Place,
    /// When its attempt began; none while it is held back, or is not to be executed at all.
    pub(super) begun_at: Option<Timestamp>,
    pub(super) handover: Handover,
    /// It was asked to stop.
    pub(super) cancel: Option<CancelRequest>,
    /// The same run, ready again under a later fence: the answer to its
    /// settlement has yet to be heard, and another stage was quicker.
    pub(super) next: Option<Box<ReadyRun>>,
}

/// Whether an attempt is kept although its partition goes to another node: by a written
/// lease under its own fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handover {
    /// Nobody has asked for it.
    #[default]
    No,
    /// The lease was asked for, and the answer is not ready yet.
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
pub struct OwnedAttempt {
    pub lease: Lease,
    pub part: Partition,
    pub epoch: Epoch,
}

/// See the module. Behind one lock: what is ready and what is in flight change together.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) backlog: Backlog,
    pub(super) ready: HashMap<RunId, ReadyRun>,
    /// Ready runs by when they must be started, or have ended.
    pub(super) deadlines: BTreeSet<(Timestamp, RunId)>,
    pub(super) in_flight: HashMap<RunId, InFlight>,
    pub(super) recent: Recent<Lease>,
    /// Attempts that the store refused to settle by this right: it is over, whatever the
    /// territory says.
    pub(super) refused: Recent<(Lease, Epoch)>,
    /// Runs in flight that were asked to stop.
    pub(super) cancels: usize,
    /// Runs that callers of this node asked to stop, whoever has them. A run that was asked
    /// once is never asked back, so what is forgotten costs a start that is told to stop.
    pub(super) asked: Recent<RunId, CancelRequest>,
    /// Runs in flight whose attempts are kept, or were asked for.
    pub(super) handovers: usize,
}

pub fn pair_of(run: &Run) -> Pair {
    Pair { lane: run.lane, tenant: run.tenant }
}

pub(super) fn place_of(run: &Run) -> Place {
    (run.order_key(), run.id)
}

impl Table {
    pub(super) fn new(runs_max: usize) -> Self {
        Self {
            backlog: Backlog::new(runs_max),
            ready: HashMap::new(),
            deadlines: BTreeSet::new(),
            in_flight: HashMap::new(),
            recent: Recent::new(SETTLED_MAX),
            refused: Recent::new(SETTLED_MAX),
            cancels: 0,
            asked: Recent::new(ASKED_MAX),
            handovers: 0,
        }
    }

    pub(super) fn may_be_offered(&self, run: &Run) -> bool {
        let is_in_flight = self.in_flight.contains_key(&run.id) && !planted::is(Bug::InFlightOffered);
        !is_in_flight && !self.recent.contains(&run.lease())
    }

    pub(super) fn offer(&mut self, ready: ReadyRun) -> bool {
        if !self.may_be_offered(&ready.run) {
            self.keep_next(ready);
            return false;
        }
        let kept = self.backlog.offer(pair_of(&ready.run), place_of(&ready.run));
        if kept {
            self.keep(ready);
        }
        kept
    }

    pub(super) fn keep_next(&mut self, ready: ReadyRun) {
        if let Some(one) = self.in_flight.get_mut(&ready.run.id)
            && one.lease.fence < ready.run.fence
        {
            one.next = Some(Box::new(ready));
        }
    }

    pub(super) fn keep(&mut self, ready: ReadyRun) {
        if let Some(at) = ready.run.due_at() {
            self.deadlines.insert((at, ready.run.id));
        }
        self.ready.insert(ready.run.id, ready);
    }

    fn unkeep(&mut self, id: RunId) -> Option<ReadyRun> {
        let ready = self.ready.remove(&id)?;
        if let Some(at) = ready.run.due_at() {
            self.deadlines.remove(&(at, id));
        }
        Some(ready)
    }

    pub(super) fn forget_ready(&mut self, id: RunId) {
        if let Some(ready) = self.unkeep(id) {
            self.backlog.remove(pair_of(&ready.run), &place_of(&ready.run));
        }
    }

    /// From ready to in flight, unless its partition went to another or is about
    /// to: then it is left to the store and its next owner.
    pub(super) fn take_ready(&mut self, id: RunId, held: &[Option<Held>; PARTITIONS]) -> Option<TakenRun> {
        let ReadyRun { run, suspect } = self.unkeep(id)?;
        let held = held[usize::from(run.part.0)].filter(|held| !held.leaving)?;
        let by = By::Owner(held.epoch);
        if self.refused.contains(&(run.lease(), held.epoch)) {
            return None;
        }
        self.add(&run, by);
        Some(TakenRun { run, by, suspect })
    }

    pub(super) fn begin(&mut self, taken: &TakenRun, held: &[Option<Held>; PARTITIONS], now: Timestamp) -> Begin {
        let (run, lease) = (&taken.run, taken.run.lease());
        if planted::is(Bug::BegunUnchecked) {
            return Begin::Go;
        }
        let Some(one) = self.in_flight.get_mut(&run.id).filter(|one| one.lease == lease) else {
            return Begin::Gone;
        };
        let ours = match taken.by {
            By::Owner(epoch) => held[usize::from(run.part.0)].is_some_and(|held| !held.leaving && held.epoch == epoch),
            By::Lease => true,
        };
        if !ours {
            self.end(lease);
            return Begin::Gone;
        }
        if one.cancel.is_some() {
            return Begin::Cancelled;
        }
        one.begun_at = Some(now);
        Begin::Go
    }

    pub(super) fn handover_of(&self, lease: Lease) -> Handover {
        let one = self.in_flight.get(&lease.run).filter(|one| one.lease == lease);
        one.map_or(Handover::No, |one| one.handover)
    }

    pub(super) fn add(&mut self, run: &Run, by: By) {
        let cancel = run.cancel.clone().or_else(|| self.asked.get(&run.id).cloned());
        self.cancels += usize::from(cancel.is_some());
        let one = InFlight {
            lease: run.lease(),
            by,
            part: run.part,
            pair: pair_of(run),
            place: place_of(run),
            begun_at: None,
            handover: Handover::No,
            cancel,
            next: None,
        };
        self.in_flight.insert(run.id, one);
    }

    /// The attempt under this lease is over. True where its run is ready again.
    pub(super) fn end(&mut self, lease: Lease) -> bool {
        if self.in_flight.get(&lease.run).is_none_or(|one| one.lease != lease) {
            return false;
        }
        let Some(one) = self.in_flight.remove(&lease.run) else { return false };
        self.cancels -= usize::from(one.cancel.is_some());
        self.handovers -= usize::from(one.handover != Handover::No);
        self.backlog.remove(one.pair, &one.place);
        one.next.is_some_and(|ready| self.offer(*ready))
    }
}
