//! Between the taking of a run and the start of its attempt.
//!
//! A run on its way needs its job's version, a token where its rate is limited,
//! a written lease where it is a suspect, and, where it has lost workers before,
//! a process to itself. The first two are the same for runs of remote workers, which come
//! this way by the `assign` stage: [`Pipeline`]. What cannot be had yet holds the run here, in hand: the
//! store still has it as ready, or leased to this node, and nobody else will
//! start it.

mod ends;
mod pipeline;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    run::Hold,
    store::{By, Guarded, OwnLease, StoreError, Write},
};

use self::ends::{cancelled, put_off, unreadable};
pub(crate) use self::{
    ends::overdue,
    pipeline::{Able, LeasedRun, Pipeline, Startable},
};
use crate::{
    catalog::JobVersion,
    node::Node,
    outbox::{End, Ended},
    planted::{self, Bug},
    runs::{Begin, TakenRun},
    stages::is_unknown,
    supervise::{self, Start, running},
};

/// A run of this node that waits for nothing but its start.
type AbleRun = Able<TakenRun>;

/// Leases asked for whose answer was lost.
struct PendingLeases {
    write: Write,
    until: Timestamp,
    /// The uptime when they were first asked for.
    began: Duration,
    runs: Vec<AbleRun>,
    /// The one run has the process to itself.
    alone: bool,
}

/// A run whose right may be over is looked at again after this.
const UNSURE_FOR: Span = Span::millis(250);

pub struct Launch {
    node: Arc<Node>,
    pipeline: Pipeline<TakenRun>,
    pending: Option<PendingLeases>,
}

impl Launch {
    pub fn new(node: Arc<Node>) -> Self {
        Self { pipeline: Pipeline::new(Arc::clone(&node)), node, pending: None }
    }

    /// How many more runs may be started now.
    pub fn room(&self) -> usize {
        if self.is_shut() { 0 } else { self.free().min(self.node.options.dispatch_batch) }
    }

    /// Slots that nothing is executed in.
    pub fn free(&self) -> usize {
        self.node.options.slots.saturating_sub(self.node.executing.running())
    }

    /// Whether nothing may be taken in hand, whatever is free.
    pub fn is_shut(&self) -> bool {
        let (options, executing) = (&self.node.options, &self.node.executing);
        let waiting = self.pipeline.len() + self.pending.as_ref().map_or(0, |asked| asked.runs.len());
        !options.executes
            || executing.is_reserved(self.node.clock.now())
            || self.node.rights.is_extension_late()
            || executing.unsettled() >= options.unsettled_max
            || waiting >= options.dispatch_batch * 4
    }

    /// The clock was set: what waits for its turn asks for it again.
    pub fn stepped(&mut self, now: Timestamp) {
        self.pipeline.stepped(now);
    }

    pub fn next_at(&self) -> Option<Timestamp> {
        [self.pipeline.next_at(), self.node.executing.apart_at()].into_iter().flatten().min()
    }

    /// Goes on with what was held back.
    pub async fn go_on(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        self.end_cancelled(now);
        let mut done = 0;
        if let Some(asked) = self.pending.take() {
            done += self.ask_for_leases(asked, now).await?;
        }
        if let Some(alone) = self.node.executing.next_alone(now) {
            done += self.start_alone(alone, now).await?;
        }
        let mut due = self.pipeline.take_due(now);
        due.retain(|taken| self.is_ours(taken));
        done += self.start(due, now).await?;
        Ok(done)
    }

    /// Whether a run that waited here may still be started by this node. One
    /// whose lease or partition was lost meanwhile is let go of.
    pub fn is_ours(&self, taken: &TakenRun) -> bool {
        let lease = taken.run.lease();
        let right = match taken.by {
            By::Owner(epoch) => self.node.territory.held(taken.run.part).is_some_and(|held| held.epoch == epoch),
            By::Lease => true,
        };
        let right = right || planted::is(Bug::BegunUnchecked);
        if !right {
            self.node.drop_in_flight([lease]);
        }
        right && self.node.runs.in_flight(taken.run.id) == Some(lease)
    }

    /// Starts runs that were taken in hand; answers how many.
    pub async fn start(&mut self, taken: Vec<TakenRun>, now: Timestamp) -> Result<usize, StoreError> {
        let taken = self.pipeline.without_overdue(taken, now);
        if taken.is_empty() {
            return Ok(0);
        }
        let able = self.pipeline.with_versions(taken, now).await?;
        // Before it costs a token; and when it begins, since the store may have been slow.
        let able = self.without_unsure(able, now);
        let able = self.pipeline.with_tokens(able, now).await?;
        let able = self.without_those_apart(able, now);
        let (suspects, able): (Vec<AbleRun>, Vec<AbleRun>) = able.into_iter().partition(|able| is_suspect(&able.taken));
        let mut done = self.begin(able, now);
        if !suspects.is_empty() {
            done += self.ask_for_leases(self.asked(suspects, false, now), now).await?;
        }
        Ok(done)
    }

    fn asked(&self, runs: Vec<AbleRun>, alone: bool, now: Timestamp) -> PendingLeases {
        let (until, began) = (self.node.options.run_lease.after(now), self.node.clock.uptime());
        PendingLeases { write: self.node.write(now), until, began, runs, alone }
    }

    /// Sets apart what must be executed alone. It is not leased while it waits:
    /// a death of the one before it would count against it.
    fn without_those_apart(&mut self, able: Vec<AbleRun>, now: Timestamp) -> Vec<AbleRun> {
        let alone_from = self.node.options.alone_from;
        let (apart, able): (Vec<AbleRun>, Vec<AbleRun>) =
            able.into_iter().partition(|able| able.taken.run.losses >= alone_from);
        let mut ended = Vec::new();
        for Able { taken, .. } in apart {
            if taken.by == By::Lease && self.node.executing.is_reserved(now) {
                ended.push(put_off(&self.node, taken, now));
            } else {
                self.node.executing.set_apart(taken);
                self.node.wake.dispatch.notify_one();
            }
        }
        self.node.post(ended);
        able
    }

    /// Leases suspects in writing, so that a process that dies of one of them
    /// names it.
    async fn ask_for_leases(&mut self, asked: PendingLeases, now: Timestamp) -> Result<usize, StoreError> {
        let leases: Vec<OwnLease> = asked.runs.iter().filter_map(own_lease).collect();
        let node = Arc::clone(&self.node);
        let answers = match node.store.lease_owned(&asked.write, node.worker, asked.until, &leases).await {
            Ok(answers) => {
                node.rights.leased(asked.began);
                answers
            }
            Err(error) => {
                if is_unknown(&error) {
                    self.pending = Some(asked);
                } else {
                    asked.runs.into_iter().for_each(|able| self.pipeline.hold(able.taken, now));
                }
                return Err(error);
            }
        };
        let mut able = Vec::with_capacity(answers.len());
        let mut ended = Vec::new();
        for (mut one, answer) in asked.runs.into_iter().zip(answers) {
            let run = &mut one.taken.run;
            match (answer, run.claim(node.worker, asked.write.now)) {
                (Guarded::Applied, Ok(change)) => {
                    run.apply(&change);
                    node.runs.leased(run.lease());
                    one.taken.by = By::Lease;
                    able.push(one);
                }
                (Guarded::CancelAsked, _) => ended.push(cancelled(one.taken, now)),
                // Another's by now.
                (Guarded::Applied | Guarded::Stale, _) => node.drop_in_flight([run.lease()]),
            }
        }
        node.post(ended);
        if asked.alone && node.executing.must_wait() {
            // The answer was so late that others have begun.
            for able in able {
                node.executing.set_apart(able.taken);
            }
            return Ok(0);
        }
        Ok(self.begin(able, now))
    }

    /// Holds back `exclusive` runs while the right to them may be over: another node may be
    /// about to begin them.
    fn without_unsure(&mut self, able: Vec<AbleRun>, now: Timestamp) -> Vec<AbleRun> {
        let (node, uptime) = (&self.node, self.node.clock.uptime());
        let is_sure =
            |able: &AbleRun| !able.job.document.is_exclusive() || uptime < node.rights.hold_until(able.taken.by);
        let (able, unsure): (Vec<AbleRun>, Vec<AbleRun>) = able.into_iter().partition(is_sure);
        for unsure in unsure {
            self.pipeline.hold(unsure.taken, UNSURE_FOR.after(now));
        }
        able
    }

    /// Begins attempts, but for those that must be alone.
    fn begin(&mut self, able: Vec<AbleRun>, now: Timestamp) -> usize {
        let able = self.without_unsure(able, now);
        let begun = self.node.runs.begin(able.iter().map(|able| &able.taken), &self.node.territory, now);
        let mut starts = Vec::with_capacity(able.len());
        let mut ended = Vec::new();
        for (Able { taken, job }, begun) in able.into_iter().zip(begun) {
            match begun {
                Begin::Go => starts.push(start_of(&self.node, taken, job, now)),
                Begin::Cancelled => ended.push(cancelled(taken, now)),
                Begin::Gone => {}
            }
        }
        self.node.post(ended);
        let count = starts.len();
        if count > 0 {
            supervise::start(&self.node, starts);
        }
        count
    }

    async fn start_alone(&mut self, taken: TakenRun, now: Timestamp) -> Result<usize, StoreError> {
        if !self.is_ours(&taken) {
            return Ok(0);
        }
        let version = match self.node.catalog.version(taken.run.job, taken.run.version).await {
            Ok(version) => version,
            Err(error) => {
                self.node.executing.set_apart(taken);
                return Err(error);
            }
        };
        match version {
            Some(job) if taken.by == By::Lease => Ok(self.begin(vec![Able { taken, job }], now)),
            Some(job) => self.ask_for_leases(self.asked(vec![Able { taken, job }], true, now), now).await,
            None => {
                let by = taken.by;
                self.node.post(vec![unreadable(taken.into_running(now), by, now)]);
                Ok(0)
            }
        }
    }

    /// Ends what was asked to stop while it was held.
    fn end_cancelled(&mut self, now: Timestamp) {
        let cancels = self.node.runs.cancels(self.pipeline.held_runs());
        if cancels.is_empty() {
            return;
        }
        let held = self.pipeline.take_picked(|run| cancels.contains_key(run));
        let ended = held.into_iter().map(|taken| cancelled(taken, now)).collect();
        self.node.post(ended);
    }

    /// Gives back everything in hand that was not started.
    pub fn hand_back(&mut self, now: Timestamp) {
        let held = self.pipeline.take_all();
        let pending = self.pending.take().into_iter().flat_map(|asked| asked.runs).map(|able| able.taken);
        let all: Vec<TakenRun> = held.chain(pending).chain(self.node.executing.take_apart()).collect();
        self.give_back(all, now);
    }

    /// Gives back runs that were not started.
    pub fn give_back(&self, runs: impl IntoIterator<Item = TakenRun>, now: Timestamp) {
        let mut ended = Vec::new();
        for taken in runs {
            match taken.by {
                // It lies queued in the store, where its next owner finds it.
                By::Owner(_) => self.node.drop_in_flight([taken.run.lease()]),
                By::Lease => ended.push(Ended::decided(taken.run, By::Lease, End::HandedBack, now)),
            }
        }
        self.node.post(ended);
    }
}

/// Whether a process may have died of it, so that the next death must name it.
fn is_suspect(taken: &TakenRun) -> bool {
    (taken.suspect || taken.run.losses > 0) && taken.by != By::Lease && !planted::is(Bug::SuspectNotLeased)
}

fn own_lease(able: &AbleRun) -> Option<OwnLease> {
    let By::Owner(epoch) = able.taken.by else { return None };
    Some(OwnLease { lease: able.taken.run.lease(), part: able.taken.run.part, epoch })
}

fn start_of(node: &Node, taken: TakenRun, job: Arc<JobVersion>, now: Timestamp) -> Start {
    let hold = match taken.by {
        By::Owner(_) => Hold::Owned,
        By::Lease => Hold::Leased(node.worker),
    };
    Start { run: running(taken.run, hold, now), by: taken.by, job }
}
