//! The end of an attempt, and what becomes of its run.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Change, Finish, Hold, Lease, Move, Refusal, Run, RunState, TrailEntry, TrailKind, Verdict, WAITS_MAX};
use crate::{
    duration::Span,
    job::{
        failure::{ErrorKind, Failure},
        retry::RetryPolicy,
    },
};

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// With its output as JSON, if there is any.
    Succeeded {
        output: Option<Box<str>>,
    },
    Failed(Failure),
    /// The executor stopped because it was asked to.
    Cancelled,
    /// It goes on outside, until a signal or a time.
    Parked {
        on: WaitFor,
        until: Option<Timestamp>,
    },
    /// Its target is known to be down: later, at no cost of an attempt.
    Deferred {
        until: Timestamp,
        reason: String,
    },
}

/// What a parked run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    Callback,
    Approval,
    Sleep,
    /// So many of its steps have not ended, at most [`WAITS_MAX`].
    Children(u32),
    Signal,
}

/// The policies that decide over an attempt's end.
#[derive(Clone, Debug, PartialEq)]
pub struct SettlePolicy {
    pub retry: RetryPolicy,
    /// So many lost workers make a run a dead letter.
    pub losses_max: u16,
}

/// A run whose worker vanished comes back after this long, doubled each time.
const LOSS_DELAY: Span = Span::millis(500);

impl Run {
    /// Decides what becomes of this run now that the attempt under `lease` has
    /// ended.
    ///
    /// Refuses any lease but the current one, so a worker that was presumed
    /// dead cannot settle the attempt that replaced its own. `jitter` is a
    /// number from 0 to 1 out of the caller's seeded source.
    pub fn settle(
        &self,
        lease: Lease,
        outcome: Outcome,
        policy: &SettlePolicy,
        jitter: f64,
        now: Timestamp,
    ) -> Result<Change, Refusal> {
        let asked_to_stop = self.executing(lease)?;
        Ok(match outcome {
            Outcome::Succeeded { output } => Change::Finish(Finish { output, ..self.finish(Verdict::Succeeded, now) }),
            Outcome::Cancelled => Change::Finish(self.finish(Verdict::Cancelled, now)),
            Outcome::Failed(failure) if asked_to_stop => Change::Finish(Finish {
                failure: Some(failure),
                attempts_used: self.attempts_used.saturating_add(1),
                ..self.finish(Verdict::Cancelled, now)
            }),
            Outcome::Parked { .. } | Outcome::Deferred { .. } if asked_to_stop => {
                Change::Finish(self.finish(Verdict::Cancelled, now))
            }
            Outcome::Failed(failure) => self.failed(failure, &policy.retry, jitter, now),
            Outcome::Parked { on: WaitFor::Children(steps), .. } if steps > WAITS_MAX => {
                let message = format!("it has {steps} steps to wait for; a run waits for at most {WAITS_MAX}");
                self.failed(Failure::new(ErrorKind::InvalidInput, message), &policy.retry, jitter, now)
            }
            Outcome::Parked { on, until } => {
                // A wait that outlasts the deadline has no other end.
                let until = until.filter(|until| !self.is_over_at(*until));
                let started_at = self.state.started_at().unwrap_or(now);
                Change::Move(self.begun(RunState::Waiting { on, until, started_at }))
            }
            Outcome::Deferred { until, reason } => {
                let until = until.max(now);
                Change::Move(Move {
                    ready_at: until,
                    trail: Some(TrailEntry { at: now, kind: TrailKind::Deferred { until, reason } }),
                    ..self.to(RunState::Scheduled)
                })
            }
        })
    }

    /// Decides what becomes of this run now that its worker is gone.
    ///
    /// A loss costs no attempt: a process that dies with fifty runs does not
    /// name the guilty one. A run that keeps losing its worker ends as a dead
    /// letter.
    pub fn lose(&self, policy_losses_max: u16, now: Timestamp) -> Result<Change, Refusal> {
        let worker = match self.state {
            RunState::Running { hold, .. } => hold,
            RunState::Cancelling { .. } => return Ok(Change::Finish(self.finish(Verdict::Cancelled, now))),
            RunState::Finished { .. } => return Err(Refusal::Ended),
            RunState::Scheduled | RunState::Blocked(_) | RunState::Queued | RunState::Waiting { .. } => {
                return Err(Refusal::NotRunning);
            }
        };
        let losses = self.losses.saturating_add(1);
        let worker = match worker {
            Hold::Leased(worker) => Some(worker),
            Hold::Owned => None,
        };
        let trail = Some(TrailEntry { at: now, kind: TrailKind::WorkerLost { worker, losses } });
        if losses >= policy_losses_max {
            let failure = Failure::new(ErrorKind::Lost, format!("its worker was lost {losses} times"));
            return Ok(Change::Finish(Finish { losses, failure: Some(failure), trail, ..self.dead(now) }));
        }
        let delay = Span::millis(LOSS_DELAY.as_millis() << losses.saturating_sub(1).min(6));
        let ready_at = delay.after(now);
        if self.is_over_at(ready_at) {
            let failure = Failure::new(
                ErrorKind::Lost,
                "its worker was lost, and its deadline leaves no time for another attempt",
            );
            let end = self.finish(Verdict::TimedOut, now);
            return Ok(Change::Finish(Finish { losses, failure: Some(failure), trail, ..end }));
        }
        Ok(Change::Move(Move { ready_at, losses, trail, ..self.begun(RunState::Scheduled) }))
    }

    /// Hands the run back, at no cost. `began` says that its attempt was under way.
    pub fn hand_back(&self, lease: Lease, began: bool, now: Timestamp) -> Result<Change, Refusal> {
        if self.executing(lease)? {
            return Ok(Change::Finish(self.finish(Verdict::Cancelled, now)));
        }
        let trail = Some(TrailEntry { at: now, kind: TrailKind::HandedBack { fence: Some(lease.fence) } });
        let next = if began { self.begun(RunState::Queued) } else { self.to(RunState::Queued) };
        Ok(Change::Move(Move { trail, ..next }))
    }

    /// Whether the run is executed under `lease`, and if so whether it was
    /// asked to stop.
    pub(super) fn executing(&self, lease: Lease) -> Result<bool, Refusal> {
        let asked_to_stop = match self.state {
            RunState::Running { .. } => false,
            RunState::Cancelling { .. } => true,
            RunState::Finished { .. } => return Err(Refusal::Ended),
            RunState::Scheduled | RunState::Blocked(_) | RunState::Queued | RunState::Waiting { .. } => {
                return Err(Refusal::NotRunning);
            }
        };
        if lease == self.lease() { Ok(asked_to_stop) } else { Err(Refusal::LeaseLost) }
    }

    fn failed(&self, failure: Failure, retry: &RetryPolicy, jitter: f64, now: Timestamp) -> Change {
        let attempt = self.attempts_used.saturating_add(1);
        let retryable = retry.retries(&failure);
        let retry_at = retry.delay(u32::from(attempt), jitter, &failure).after(now);
        let more = retryable && u32::from(attempt) < retry.max_attempts();
        if more && !self.is_over_at(retry_at) {
            return self.retried(attempt, failure, retry_at, now);
        }
        let end = match failure.kind {
            // Its time is used up, not its attempts.
            _ if more || self.is_over_at(now) => self.finish(Verdict::TimedOut, now),
            _ if retryable => self.dead(now),
            ErrorKind::Timeout => self.finish(Verdict::TimedOut, now),
            _ => self.finish(Verdict::Failed, now),
        };
        Change::Finish(Finish { attempts_used: attempt, failure: Some(failure), ..end })
    }

    fn retried(&self, attempt: u16, failure: Failure, retry_at: Timestamp, now: Timestamp) -> Change {
        let kind = TrailKind::AttemptFailed {
            attempt,
            started_at: self.state.started_at(),
            failure,
            retry_at: Some(retry_at),
            fence: Some(self.fence),
        };
        Change::Move(Move {
            attempts_used: attempt,
            ready_at: retry_at,
            trail: Some(TrailEntry { at: now, kind }),
            ..self.begun(RunState::Scheduled)
        })
    }

    /// This run in another state, after an attempt that had begun.
    fn begun(&self, state: RunState) -> Move {
        Move { started: true, first_started_at: self.first_start(), ..self.to(state) }
    }

    /// This run in another state, with a raised fence and nothing else changed.
    pub(super) fn to(&self, state: RunState) -> Move {
        Move {
            state,
            ready_at: self.ready_at,
            attempts_used: self.attempts_used,
            losses: self.losses,
            started: self.started,
            first_started_at: self.first_started_at,
            fence: self.fence.next(),
            cancel: self.cancel.clone(),
            trail: None,
        }
    }

    /// The end of a run that is given up, with the one that follows it.
    fn dead(&self, now: Timestamp) -> Finish {
        let finish = self.finish(Verdict::Dead, now);
        Finish { follower: self.follower(finish.ended_at).map(Box::new), ..finish }
    }

    /// The clock of the one who ends it may be behind that of those who made and
    /// started it: no run ends before it began.
    pub(super) fn finish(&self, verdict: Verdict, now: Timestamp) -> Finish {
        let started_at = self.state.started_at();
        Finish {
            verdict,
            started_at,
            ended_at: now.max(started_at.unwrap_or(self.created_at)).max(self.created_at),
            attempts_used: self.attempts_used,
            losses: self.losses,
            failure: None,
            output: None,
            trail: None,
            follower: None,
        }
    }
}
