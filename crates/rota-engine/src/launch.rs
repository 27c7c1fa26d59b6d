//! Between the taking of a run and the start of its attempt.
//!
//! A run on its way needs its job's version, a token where its rate is limited,
//! a written lease where it is a suspect, and, where it has lost workers before,
//! a process to itself. What cannot be had yet holds the run here, in hand: the
//! store still has it as ready, or leased to this node, and nobody else will
//! start it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::RunId,
    job::{
        failure::{ErrorKind, Failure},
        retry::RetryPolicy,
    },
    rate::Taken,
    run::{Hold, Outcome, Run, RunState, SettlePolicy},
    store::{By, Guarded, OwnLease, StoreError, TokenAsk, Write},
};
use serde_json::Value;

use crate::{
    catalog::JobVersion,
    making::rate_key,
    node::Node,
    outbox::{End, Ended, Origin},
    planted::{self, Bug},
    render::Scope,
    runs::{Begin, TakenRun},
    stages::is_unknown,
    supervise::{self, Start, running},
};

/// A run that waits for nothing but its start.
struct Able {
    ready: TakenRun,
    job: Arc<JobVersion>,
}

/// Leases asked for whose answer was lost.
struct PendingLeases {
    write: Write,
    until: Timestamp,
    /// The uptime when they were first asked for.
    began: Duration,
    runs: Vec<Able>,
    /// The one run has the process to itself.
    alone: bool,
}

/// A run whose right may be over is looked at again after this.
const UNSURE_FOR: Span = Span::millis(250);

pub struct Launch {
    node: Arc<Node>,
    /// Runs in hand that may go on at a later time.
    held: BTreeMap<(Timestamp, RunId), TakenRun>,
    pending: Option<PendingLeases>,
}

impl Launch {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, held: BTreeMap::new(), pending: None }
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
        let waiting = self.held.len() + self.pending.as_ref().map_or(0, |asked| asked.runs.len());
        !options.executes
            || executing.is_reserved(self.node.clock.now())
            || self.node.rights.is_extension_late()
            || executing.unsettled() >= options.unsettled_max
            || waiting >= options.dispatch_batch * 4
    }

    /// The clock was set: what waits for its turn asks for it again.
    pub fn stepped(&mut self, now: Timestamp) {
        self.held = std::mem::take(&mut self.held).into_iter().map(|((_, run), ready)| ((now, run), ready)).collect();
    }

    pub fn next_at(&self) -> Option<Timestamp> {
        [self.held.keys().next().map(|(at, _)| *at), self.node.executing.apart_at()].into_iter().flatten().min()
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
        let mut due = Vec::new();
        while let Some(first) = self.held.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        due.retain(|ready| self.is_ours(ready));
        done += self.start(due, now).await?;
        Ok(done)
    }

    /// Whether a run that waited here may still be started by this node. One
    /// whose lease or partition was lost meanwhile is let go of.
    pub fn is_ours(&self, ready: &TakenRun) -> bool {
        let lease = ready.run.lease();
        let right = match ready.by {
            By::Owner(epoch) => self.node.territory.held(ready.run.part).is_some_and(|held| held.epoch == epoch),
            By::Lease => true,
        };
        if !right {
            self.node.drop_in_flight([lease]);
        }
        right && self.node.runs.in_flight(ready.run.id) == Some(lease)
    }

    /// Ends those that must not be started any more.
    fn without_overdue(&self, mut taken: Vec<TakenRun>, now: Timestamp) -> Vec<TakenRun> {
        let mut ended = Vec::new();
        taken.retain(|ready| match overdue(&ready.run, ready.by, now) {
            Some(end) => {
                ended.push(end);
                false
            }
            None => true,
        });
        self.node.post(ended);
        taken
    }

    /// Starts runs that were taken in hand; answers how many.
    pub async fn start(&mut self, taken: Vec<TakenRun>, now: Timestamp) -> Result<usize, StoreError> {
        let taken = self.without_overdue(taken, now);
        if taken.is_empty() {
            return Ok(0);
        }
        let able = self.with_versions(taken, now).await?;
        // Before it costs a token; and when it begins, since the store may have been slow.
        let able = self.without_unsure(able, now);
        let able = self.with_tokens(able, now).await?;
        let able = self.without_those_apart(able, now);
        let (suspects, able): (Vec<Able>, Vec<Able>) = able.into_iter().partition(|able| is_suspect(&able.ready));
        let mut done = self.begin(able, now);
        if !suspects.is_empty() {
            done += self.ask_for_leases(self.asked(suspects, false, now), now).await?;
        }
        Ok(done)
    }

    fn asked(&self, runs: Vec<Able>, alone: bool, now: Timestamp) -> PendingLeases {
        let (until, began) = (self.node.options.run_lease.after(now), self.node.clock.uptime());
        PendingLeases { write: self.node.write(now), until, began, runs, alone }
    }

    /// Sets apart what must be executed alone. It is not leased while it waits:
    /// a death of the one before it would count against it.
    fn without_those_apart(&mut self, able: Vec<Able>, now: Timestamp) -> Vec<Able> {
        let alone_from = self.node.options.alone_from;
        let (apart, able): (Vec<Able>, Vec<Able>) =
            able.into_iter().partition(|able| able.ready.run.losses >= alone_from);
        let mut ended = Vec::new();
        for Able { ready, .. } in apart {
            if ready.by == By::Lease && self.node.executing.is_reserved(now) {
                ended.push(put_off(&self.node, ready, now));
            } else {
                self.node.executing.set_apart(ready);
                self.node.wake.dispatch.notify_one();
            }
        }
        self.node.post(ended);
        able
    }

    /// Holds a run back, no longer than it may be started at all.
    fn hold(&mut self, ready: TakenRun, until: Timestamp) {
        let until = ready.run.start_by().map_or(until, |by| until.min(by));
        self.held.insert((until, ready.run.id), ready);
    }

    async fn with_versions(&mut self, taken: Vec<TakenRun>, now: Timestamp) -> Result<Vec<Able>, StoreError> {
        let mut found = self.node.catalog.versions(taken.iter().map(|ready| (ready.run.job, ready.run.version)));
        let missing: Vec<usize> = (0..found.len()).filter(|n| found[*n].is_none()).collect();
        for n in missing {
            let run = &taken[n].run;
            match self.node.catalog.version(run.job, run.version).await {
                Ok(version) => found[n] = version,
                Err(error) => {
                    for ready in taken {
                        self.hold(ready, now);
                    }
                    return Err(error);
                }
            }
        }
        let mut able = Vec::with_capacity(taken.len());
        let mut ended = Vec::new();
        for (ready, job) in taken.into_iter().zip(found) {
            match job {
                Some(job) => able.push(Able { ready, job }),
                None => ended.push(unreadable(ready, now)),
            }
        }
        self.node.post(ended);
        Ok(able)
    }

    /// Holds back what its rate does not allow yet.
    async fn with_tokens(&mut self, able: Vec<Able>, now: Timestamp) -> Result<Vec<Able>, StoreError> {
        let limited: Vec<(&Run, &JobVersion)> = able.iter().map(|able| (&able.ready.run, &*able.job)).collect();
        let told = match not_before(&self.node, &limited, now).await {
            Ok(told) => told,
            Err(error) => {
                for able in able {
                    self.hold(able.ready, now);
                }
                return Err(error);
            }
        };
        let mut free = Vec::with_capacity(able.len());
        for (able, not_before) in able.into_iter().zip(told) {
            match not_before {
                None => free.push(able),
                Some(at) => self.hold(able.ready, at),
            }
        }
        Ok(free)
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
                    asked.runs.into_iter().for_each(|able| self.hold(able.ready, now));
                }
                return Err(error);
            }
        };
        let mut able = Vec::with_capacity(answers.len());
        let mut ended = Vec::new();
        for (mut one, answer) in asked.runs.into_iter().zip(answers) {
            let run = &mut one.ready.run;
            match (answer, run.claim(node.worker, asked.write.now)) {
                (Guarded::Applied, Ok(change)) => {
                    run.apply(&change);
                    node.runs.leased(run.lease());
                    one.ready.by = By::Lease;
                    able.push(one);
                }
                (Guarded::CancelAsked, _) => ended.push(cancelled(one.ready, now)),
                // Another's by now.
                (Guarded::Applied | Guarded::Stale, _) => node.drop_in_flight([run.lease()]),
            }
        }
        node.post(ended);
        if asked.alone && node.executing.must_wait() {
            // The answer was so late that others have begun.
            for able in able {
                node.executing.set_apart(able.ready);
            }
            return Ok(0);
        }
        Ok(self.begin(able, now))
    }

    /// Holds back `exclusive` runs while the right to them may be over: another node may be
    /// about to begin them.
    fn without_unsure(&mut self, able: Vec<Able>, now: Timestamp) -> Vec<Able> {
        let (node, uptime) = (&self.node, self.node.clock.uptime());
        let is_sure = |able: &Able| !able.job.document.is_exclusive() || uptime < node.rights.hold_until(able.ready.by);
        let (able, unsure): (Vec<Able>, Vec<Able>) = able.into_iter().partition(is_sure);
        for unsure in unsure {
            self.hold(unsure.ready, UNSURE_FOR.after(now));
        }
        able
    }

    /// Begins attempts, but for those that must be alone.
    fn begin(&mut self, able: Vec<Able>, now: Timestamp) -> usize {
        let able = self.without_unsure(able, now);
        let begun = self.node.runs.begin(able.iter().map(|able| &able.ready), &self.node.territory, now);
        let mut starts = Vec::with_capacity(able.len());
        let mut ended = Vec::new();
        for (Able { ready, job }, begun) in able.into_iter().zip(begun) {
            match begun {
                Begin::Go => starts.push(start_of(&self.node, ready, job, now)),
                Begin::Cancelled => ended.push(cancelled(ready, now)),
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

    async fn start_alone(&mut self, ready: TakenRun, now: Timestamp) -> Result<usize, StoreError> {
        if !self.is_ours(&ready) {
            return Ok(0);
        }
        let version = match self.node.catalog.version(ready.run.job, ready.run.version).await {
            Ok(version) => version,
            Err(error) => {
                self.node.executing.set_apart(ready);
                return Err(error);
            }
        };
        match version {
            Some(job) if ready.by == By::Lease => Ok(self.begin(vec![Able { ready, job }], now)),
            Some(job) => self.ask_for_leases(self.asked(vec![Able { ready, job }], true, now), now).await,
            None => {
                self.node.post(vec![unreadable(ready, now)]);
                Ok(0)
            }
        }
    }

    /// Ends what was asked to stop while it was held.
    fn end_cancelled(&mut self, now: Timestamp) {
        let cancels = self.node.runs.cancels(self.held.keys().map(|(_, id)| id));
        if cancels.is_empty() {
            return;
        }
        let keys: Vec<_> = self.held.keys().filter(|(_, id)| cancels.contains_key(id)).copied().collect();
        let ended = keys.iter().filter_map(|key| self.held.remove(key)).map(|ready| cancelled(ready, now)).collect();
        self.node.post(ended);
    }

    /// Gives back everything in hand that was not started.
    pub fn hand_back(&mut self, now: Timestamp) {
        let held = std::mem::take(&mut self.held).into_values();
        let pending = self.pending.take().into_iter().flat_map(|asked| asked.runs).map(|able| able.ready);
        let all: Vec<TakenRun> = held.chain(pending).chain(self.node.executing.take_apart()).collect();
        self.give_back(all, now);
    }

    /// Gives back runs that were not started.
    pub fn give_back(&self, runs: impl IntoIterator<Item = TakenRun>, now: Timestamp) {
        let mut ended = Vec::new();
        for ready in runs {
            match ready.by {
                // It lies queued in the store, where its next owner finds it.
                By::Owner(_) => self.node.drop_in_flight([ready.run.lease()]),
                By::Lease => ended.push(Ended {
                    run: ready.run,
                    by: By::Lease,
                    end: End::HandedBack,
                    at: now,
                    job: None,
                    origin: Origin::Decided,
                }),
            }
        }
        self.node.post(ended);
    }
}

/// When each of these may begin, where its rate does not let it begin now. A
/// token is taken for each that may.
pub(crate) async fn not_before(
    node: &Node,
    runs: &[(&Run, &JobVersion)],
    now: Timestamp,
) -> Result<Vec<Option<Timestamp>>, StoreError> {
    let mut told = vec![None; runs.len()];
    let mut by_key: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (n, (run, job)) in runs.iter().enumerate().filter(|(_, (_, job))| job.rate.is_some()) {
        by_key.entry(rate_key_of(node, run, job)).or_default().push(n);
    }
    if by_key.is_empty() {
        return Ok(told);
    }
    let ask = |(key, limited): (&String, &Vec<usize>)| {
        Some(TokenAsk { key: key.clone(), rate: runs[limited[0]].1.rate?, want: limited.len() as u32, ahead: false })
    };
    let asks: Vec<TokenAsk> = by_key.iter().filter_map(ask).collect();
    let taken = node.store.take_tokens(&asks, now).await?;
    for (limited, Taken { tokens, next_at }) in by_key.into_values().zip(taken) {
        for n in limited.into_iter().skip(tokens as usize) {
            told[n] = Some(next_at.max(Span::millis(1).after(now)));
        }
    }
    Ok(told)
}

fn rate_key_of(node: &Node, run: &Run, job: &JobVersion) -> String {
    let parsed: Option<Value> = run.payload.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let payload = parsed.as_ref().unwrap_or(&job.payload);
    let scope = Scope { payload, labels: &run.labels, vars: &job.document.vars, run: &Value::Null };
    // A key that cannot be made counts with all others that cannot.
    rate_key(node, job, run.tenant, &scope).unwrap_or_else(|_| format!("{}/{}/", run.tenant, run.job))
}

pub(crate) fn is_overdue(run: &Run, now: Timestamp) -> bool {
    run.start_by().is_some_and(|at| at <= now)
}

/// The end of a run in hand whose attempt has not begun and must not begin any more. A
/// lease changes nothing about that.
pub(crate) fn overdue(run: &Run, by: By, now: Timestamp) -> Option<Ended> {
    if !is_overdue(run, now) {
        return None;
    }
    let change = Run { state: RunState::Queued, ..run.clone() }.overdue(now).ok()?;
    let end = End::Decided(Box::new(change));
    Some(Ended { run: run.clone(), by, end, at: now, job: None, origin: Origin::Decided })
}

/// Whether a process may have died of it, so that the next death must name it.
fn is_suspect(ready: &TakenRun) -> bool {
    (ready.suspect || ready.run.losses > 0) && ready.by != By::Lease && !planted::is(Bug::SuspectNotLeased)
}

fn own_lease(able: &Able) -> Option<OwnLease> {
    let By::Owner(epoch) = able.ready.by else { return None };
    Some(OwnLease { lease: able.ready.run.lease(), part: able.ready.run.part, epoch })
}

fn start_of(node: &Node, ready: TakenRun, job: Arc<JobVersion>, now: Timestamp) -> Start {
    let hold = match ready.by {
        By::Owner(_) => Hold::Owned,
        By::Lease => Hold::Leased(node.worker),
    };
    Start { run: running(ready.run, hold, now), by: ready.by, job }
}

/// A run that was asked to stop before it began.
fn cancelled(ready: TakenRun, now: Timestamp) -> Ended {
    let mut run = ready.run;
    run.state = RunState::Cancelling { hold: None, started_at: None };
    Ended { run, by: ready.by, end: End::Outcome(Outcome::Cancelled), at: now, job: None, origin: Origin::Decided }
}

/// A leased suspect that cannot be alone yet, for others are before it: later,
/// at no cost.
fn put_off(node: &Node, ready: TakenRun, now: Timestamp) -> Ended {
    let run = running(ready.run, Hold::Leased(node.worker), now);
    let until = node.options.run_lease.after(now);
    let end = End::Outcome(Outcome::Deferred { until, reason: "it waits to be executed alone".into() });
    Ended { run, by: ready.by, end, at: now, job: None, origin: Origin::Decided }
}

/// A run whose job's version cannot be read can never be executed.
fn unreadable(ready: TakenRun, now: Timestamp) -> Ended {
    unreadable_end(running(ready.run, Hold::Owned, now), ready.by, now)
}

pub(crate) fn unreadable_end(run: Run, by: By, now: Timestamp) -> Ended {
    let failure = Failure::new(ErrorKind::InvalidInput, "the version of its job cannot be read");
    let policy = SettlePolicy { retry: RetryPolicy::once(), losses_max: 1 };
    let change = run.settle(run.lease(), Outcome::Failed(failure), &policy, 0.5, now);
    let end = change.map_or(End::HandedBack, |change| End::Decided(Box::new(change)));
    Ended { run, by, end, at: now, job: None, origin: Origin::Decided }
}
