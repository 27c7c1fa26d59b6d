//! Settle: decides what becomes of ended attempts, and has the store apply it.
//!
//! A pass takes what has gathered, decides each with [`Run::settle`] and commits
//! all in one batch. While one batch commits the next gathers; several settlers
//! may be at it. The right to settle (an epoch or a lease) is checked by the
//! store: what is not ours any more changes nothing, and that is an answer.
//!
//! What the attempts logged is written first: a run that has ended has its whole log.
//!
//! A batch that the store did not answer for stays here, under its own name,
//! until it does: outcomes survive an outage, and none is applied twice.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    job::{
        failure::{ErrorKind, Failure},
        retry::RetryPolicy,
    },
    ports::Topic,
    run::{CancelRequest, Change, Lease, Outcome, Refusal, Run, RunState, SettlePolicy},
    store::{By, EndedRun, Guarded, Settled, Settlement, StoreError, Write},
};

use super::{PassReport, Stage};
use crate::{
    events::Event,
    node::Node,
    outbox::{End, Ended, Origin},
    planted::{self, Bug},
    runs::Handover,
};

/// A batch that is refused so often, with a heartbeat that the store took between
/// each two, is taken apart.
const TRIES: u32 = 2;
/// A single outcome that is refused so often is to blame. More than for a batch:
/// it is lost by it.
const TRIES_ALONE: u32 = 5;

/// One batch on its way to the store.
struct Batch {
    write: Write,
    ended: Vec<Ended>,
    settlements: Vec<Settlement>,
    /// How often it was refused while the store did what others asked, and when
    /// last.
    refused: Option<(u32, Timestamp)>,
}

/// So often a batch waits for logs that the store refuses. An end is worth more
/// than the lines before it.
const LOG_TRIES: u32 = 3;

pub struct Settle {
    node: Arc<Node>,
    pending: Option<Batch>,
    /// How often in a row the logs were refused.
    logs_refused: u32,
}

impl Settle {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, pending: None, logs_refused: 0 }
    }

    fn gather(&self, now: Timestamp) -> Option<Batch> {
        let (taken, left) = self.node.outbox.take(self.node.options.settle_batch);
        if left > 0 {
            // There is work for another settler.
            self.node.wake.settle.notify_one();
        }
        if taken.is_empty() { None } else { self.decide(taken, now) }
    }

    /// By the right that holds now: an attempt whose partition was given away meanwhile is
    /// settled by its lease, and waits while it is not known whether it has one.
    fn by_right(&self, taken: Vec<Ended>) -> Vec<Ended> {
        let kept = self.node.runs.handovers(taken.iter().map(|ended| ended.run.lease()));
        if kept.is_empty() {
            return taken;
        }
        let (mut rightful, mut held) = (Vec::with_capacity(taken.len()), Vec::new());
        for (mut ended, kept) in taken.into_iter().zip(kept) {
            match kept {
                Handover::Asked => held.push(ended),
                Handover::Leased => {
                    ended.by = By::Lease;
                    rightful.push(ended);
                }
                Handover::No | Handover::Refused => rightful.push(ended),
            }
        }
        self.hold(held);
        rightful
    }

    fn hold(&self, held: Vec<Ended>) {
        let leases: Vec<Lease> = held.iter().map(|ended| ended.run.lease()).collect();
        self.node.outbox.hold(held);
        if leases.iter().any(|lease| self.node.runs.handover(*lease) != Handover::Asked) {
            // The answer came in between, and nobody else resumes these.
            self.node.resume_settling();
        }
    }

    fn decide(&self, taken: Vec<Ended>, now: Timestamp) -> Option<Batch> {
        let taken = self.by_right(taken);
        let cancels = self.node.runs.cancels(taken.iter().map(|ended| &ended.run.id));
        let mut ended = Vec::with_capacity(taken.len());
        let mut settlements = Vec::with_capacity(taken.len());
        for mut one in taken {
            if let Some(request) = cancels.get(&one.run.id) {
                ask_to_stop(&mut one.run, request.clone());
            }
            match self.change(&mut one) {
                Ok(change) => {
                    settlements.push(Settlement { lease: one.run.lease(), part: one.run.part, by: one.by, change });
                    ended.push(one);
                }
                Err(refusal) => {
                    tracing::error!(run = %one.run.id, %refusal, "an ended attempt cannot be settled");
                    self.node.drop_in_flight([one.run.lease()]);
                    self.let_go(std::iter::once(&one));
                    self.tell_workers([(&one, Guarded::Stale)].into_iter());
                }
            }
        }
        (!ended.is_empty()).then(|| Batch { write: self.node.write(now), ended, settlements, refused: None })
    }

    fn change(&self, ended: &mut Ended) -> Result<Change, Refusal> {
        let (run, lease, at) = (&ended.run, ended.run.lease(), ended.at);
        let policy = ended.job.as_ref().map_or(&*NO_RETRY, |job| &job.settle);
        match &mut ended.end {
            // An output may be large; success is never decided twice.
            End::Outcome(Outcome::Succeeded { output }) => {
                run.settle(lease, Outcome::Succeeded { output: output.take() }, policy, 0.5, at)
            }
            End::Outcome(outcome) => run.settle(lease, outcome.clone(), policy, self.node.random.unit(), at),
            End::GraceOver => {
                let cancelled = || run.settle(lease, Outcome::Cancelled, policy, 0.5, at);
                run.grace_over(at).or_else(|_| cancelled())
            }
            End::HandedBack => run.hand_back(lease, false, at),
            End::Stopped => run.hand_back(lease, true, at),
            End::Decided(change) => Ok(change.as_ref().clone()),
        }
    }

    /// Has the logs written of the attempts that are to be settled.
    async fn write_logs(&mut self) -> Result<(), StoreError> {
        match self.node.reports.write_logs(self.node.store.as_ref()).await {
            Err(error) if self.logs_refused < LOG_TRIES => {
                self.logs_refused += 1;
                Err(error)
            }
            Err(error) => {
                tracing::warn!(%error, "runs are settled before their logs are written");
                Ok(())
            }
            Ok(_) => {
                self.logs_refused = 0;
                Ok(())
            }
        }
    }

    async fn commit(&mut self, batch: Batch) -> Result<usize, StoreError> {
        if let Err(error) = self.write_logs().await {
            self.pending = Some(batch);
            return Err(error);
        }
        let write = self.node.store.settle(&batch.write, &batch.settlements);
        match self.node.timed(batch.settlements.len(), write).await {
            Ok(settled) => Ok(self.take_settled(batch, settled)),
            Err(error) => {
                self.keep(batch, &error);
                Err(error)
            }
        }
    }

    /// Keeps a batch for the next pass. Where the store does what others ask and
    /// refuses it again and again, something in it is to blame: it is halved
    /// until that one is found, whose outcome is then replaced by the refusal.
    fn keep(&mut self, mut batch: Batch, error: &StoreError) {
        let now = self.node.clock.now();
        let at_fault = matches!(error, StoreError::NotApplied { .. } | StoreError::Corrupt(_));
        if at_fault && planted::is(Bug::EndDropped) {
            return;
        }
        if !at_fault && planted::is(Bug::SettledUnderAnotherName) {
            batch.write = self.node.write(now);
        }
        if !at_fault || self.node.rights.is_quiet(now) {
            self.pending = Some(Batch { refused: None, ..batch });
            return;
        }
        let refused = match batch.refused {
            None => (1, now),
            Some((times, last)) if self.node.rights.store_was_there_after(last) => (times + 1, now),
            Some(same) => same,
        };
        let tries = if batch.ended.len() > 1 { TRIES } else { TRIES_ALONE };
        if refused.0 < tries {
            self.pending = Some(Batch { refused: Some(refused), ..batch });
            return;
        }
        if batch.ended.len() > 1 {
            let half = batch.ended.len() / 2;
            let rest = batch.ended.split_off(half).into_iter().zip(batch.settlements.split_off(half));
            let decided =
                rest.map(|(ended, settlement)| Ended { end: End::Decided(Box::new(settlement.change)), ..ended });
            self.node.post(decided.collect());
            self.pending = Some(Batch { write: self.node.write(now), refused: None, ..batch });
            return;
        }
        for ended in &mut batch.ended {
            tracing::error!(run = %ended.run.id, %error, "the store refuses how a run ended");
            let failure = Failure::new(ErrorKind::InvalidInput, "the store refused its outcome");
            ended.end = End::Outcome(Outcome::Failed(failure));
            ended.job = None;
        }
        self.pending = self.decide(batch.ended, now);
    }

    fn take_settled(&self, batch: Batch, settled: Settled) -> usize {
        self.node.stats.settle_batches.add(1);
        self.tell_workers(batch.ended.iter().zip(settled.answers.iter().copied()));
        let (mut again, mut refused) = (Vec::new(), Vec::new());
        let mut applied = Vec::with_capacity(batch.ended.len());
        let (mut rearmed, mut over) = (false, false);
        for ((ended, settlement), answer) in batch.ended.into_iter().zip(&batch.settlements).zip(&settled.answers) {
            match answer {
                Guarded::Applied => {
                    rearmed |= self.applied(&ended.run, &settlement.change);
                    over |= matches!(settlement.change, Change::Finish(_));
                    applied.push(ended);
                }
                Guarded::Stale if self.is_kept(settlement) => again.push(as_decided(ended, &settlement.change)),
                Guarded::Stale => {
                    self.node.stats.stale.add(1);
                    let Run { id: run, job, tenant, .. } = ended.run;
                    self.node.events.emit(|| Event::SettlementRefused { run, job, tenant });
                    refused.push(ended);
                }
                Guarded::CancelAsked => again.push(asked_meanwhile(ended)),
            }
        }
        let done = applied.len() + refused.len();
        self.node.settled(applied.iter().map(|ended| ended.run.lease()));
        self.node.runs.refuse(refused.iter().map(|ended| (ended.run.lease(), ended.by)));
        self.node.drop_in_flight(refused.iter().map(|ended| ended.run.lease()));
        self.let_go(applied.iter().chain(&refused));
        self.node.post(again);
        self.node.woken(&batch.write, settled.woken);
        if over {
            self.node.ends_came();
        }
        if rearmed {
            self.node.hints.wake(Topic::Schedules);
        }
        done
    }

    /// Whether an attempt was settled by right of its partition while that was given away:
    /// it is settled again, by its lease.
    fn is_kept(&self, settlement: &Settlement) -> bool {
        let by_owner = matches!(settlement.by, By::Owner(_));
        by_owner && matches!(self.node.runs.handover(settlement.lease), Handover::Asked | Handover::Leased)
    }

    /// Remote workers wait to hear what became of their reports. What this node decided
    /// about an attempt is no answer to them.
    fn tell_workers<'e>(&self, answers: impl Iterator<Item = (&'e Ended, Guarded)> + Clone) {
        if self.node.remote.is_used() {
            let decided = answers.clone().filter(|(ended, _)| ended.origin == Origin::Decided && ended.by == By::Lease);
            let decided: Vec<Lease> = decided.map(|(ended, _)| ended.run.lease()).collect();
            if !decided.is_empty() {
                self.node.remote.sessions().ended(&decided);
            }
        }
        if self.node.remote.is_settling() {
            let reported = answers.filter(|(ended, _)| ended.origin == Origin::Reported);
            self.node.remote.sessions().settled(reported.map(|(ended, answer)| (ended.run.lease(), answer)));
        }
    }

    /// Counts and tells what was applied. True where a schedule was armed.
    fn applied(&self, run: &Run, change: &Change) -> bool {
        let node = &self.node;
        let Run { id, job, tenant, .. } = *run;
        match change {
            Change::Finish(finish) => {
                node.ended(&EndedRun::of(run, finish));
                if let Some(started_at) = run.state.started_at() {
                    node.stats.duration.add(started_at.duration_until(finish.ended_at));
                }
                run.trigger.schedule.is_some_and(|schedule| node.catalog.is_after_finish(schedule))
            }
            Change::Move(next) => {
                match next.state {
                    RunState::Scheduled => {
                        node.stats.retried.add(1);
                        node.delayed(next.ready_at);
                        if node.territory.held(run.part).is_none() {
                            node.hints.wake(Topic::Delayed);
                        }
                        let (attempt, retry_at) = (next.attempts_used, next.ready_at);
                        node.events.emit(|| Event::RunRetried { run: id, job, tenant, attempt, retry_at });
                    }
                    RunState::Waiting { .. } => node.events.emit(|| Event::RunParked { run: id, job, tenant }),
                    RunState::Blocked(_)
                    | RunState::Queued
                    | RunState::Running { .. }
                    | RunState::Cancelling { .. }
                    | RunState::Finished { .. } => {}
                }
                false
            }
        }
    }

    fn let_go<'e>(&self, ended: impl Iterator<Item = &'e Ended>) {
        let executed = ended.filter(|ended| ended.origin == Origin::Executed).count();
        if executed > 0 {
            self.node.executing.settle(executed);
        }
        self.node.executing.moved.notify_waiters();
        if self.node.executing.is_reserved(self.node.clock.now()) {
            self.node.wake.dispatch.notify_one();
        }
    }
}

/// For what nobody will try again.
static NO_RETRY: LazyLock<SettlePolicy> = LazyLock::new(|| SettlePolicy { retry: RetryPolicy::once(), losses_max: 1 });

fn ask_to_stop(run: &mut Run, request: CancelRequest) {
    if let RunState::Running { hold, started_at } = run.state {
        run.state = RunState::Cancelling { hold: Some(hold), started_at: Some(started_at) };
    }
    run.cancel.get_or_insert(request);
}

/// An end whose change is decided. Its output, which may be large, is in the change.
fn as_decided(ended: Ended, change: &Change) -> Ended {
    Ended { end: End::Decided(Box::new(change.clone())), ..ended }
}

/// A run that was asked to stop before its end was known: it is decided again
/// as such.
fn asked_meanwhile(mut ended: Ended) -> Ended {
    let request = CancelRequest { at: ended.at, grace_until: ended.at, by: None, reason: None };
    if let End::Decided(_) = ended.end {
        ended.end = End::Outcome(Outcome::Cancelled);
        if ended.run.state == RunState::Queued {
            ended.run.state = RunState::Cancelling { hold: None, started_at: None };
        }
    }
    ask_to_stop(&mut ended.run, request);
    ended
}

#[async_trait]
impl Stage for Settle {
    fn name(&self) -> &'static str {
        "settle"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let batch = match self.pending.take() {
            Some(batch) => Some(batch),
            None => self.gather(now),
        };
        let Some(batch) = batch else { return Ok(PassReport::idle()) };
        let done = self.commit(batch).await?;
        Ok(PassReport { done, more: self.node.outbox.has_ready(), next_at: None })
    }
}
