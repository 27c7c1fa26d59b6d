//! Asking a run to stop.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Change, Finish, Move, Refusal, Run, RunState, TrailEntry, TrailKind, Verdict};
use crate::{duration::Span, lane::LaneMode};

/// Someone wants a run to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelAsk {
    pub by: Option<String>,
    pub reason: Option<String>,
    /// How long the worker has to stop by itself.
    pub grace: Span,
}

impl CancelAsk {
    /// What a newer run asks of those that hold its concurrency key, where the
    /// key's policy is `cancel_running`.
    pub fn by_newer_run(grace: Span) -> Self {
        let reason = Some("a newer run under the same concurrency key".to_owned());
        Self { by: None, reason, grace }
    }

    /// The request as it is written down.
    pub fn request(&self, now: Timestamp) -> CancelRequest {
        let grace_until = self.grace.after(now);
        CancelRequest { at: now, grace_until, by: self.by.clone(), reason: self.reason.clone() }
    }
}

/// A cancel that was asked for and is not yet answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    pub at: Timestamp,
    pub grace_until: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Run {
    /// Decides how this run is cancelled.
    ///
    /// At once where nobody can be executing it. A queued run of an owned lane
    /// may be in its owner's hands without the row saying so; there the wish is
    /// written down and the owner answers it. Asking twice changes nothing.
    pub fn request_cancel(&self, ask: &CancelAsk, mode: LaneMode, now: Timestamp) -> Result<Change, Refusal> {
        let (hold, started_at) = match self.state {
            RunState::Finished { .. } => return Err(Refusal::Ended),
            RunState::Cancelling { .. } => return Err(Refusal::WrongState),
            RunState::Scheduled | RunState::Blocked(_) | RunState::Waiting { .. } => {
                return Ok(Change::Finish(self.cancelled_at_once(ask, now)));
            }
            RunState::Queued if mode == LaneMode::Claimed => {
                return Ok(Change::Finish(self.cancelled_at_once(ask, now)));
            }
            RunState::Queued => (None, None),
            RunState::Running { hold, started_at } => (Some(hold), Some(started_at)),
        };
        Ok(Change::Move(Move {
            // The worker must still be able to settle: its fence stays good.
            fence: self.fence,
            cancel: Some(ask.request(now)),
            trail: Some(requested(ask, now)),
            ..self.to(RunState::Cancelling { hold, started_at })
        }))
    }

    /// Ends a run whose worker did not stop within its grace.
    pub fn grace_over(&self, now: Timestamp) -> Result<Change, Refusal> {
        match self.state {
            RunState::Cancelling { .. } => {}
            RunState::Finished { .. } => return Err(Refusal::Ended),
            RunState::Scheduled
            | RunState::Blocked(_)
            | RunState::Queued
            | RunState::Running { .. }
            | RunState::Waiting { .. } => return Err(Refusal::WrongState),
        }
        if self.cancel.as_ref().is_some_and(|request| now < request.grace_until) {
            return Err(Refusal::NotYet);
        }
        let trail = Some(TrailEntry { at: now, kind: TrailKind::GraceOver });
        Ok(Change::Finish(Finish { trail, ..self.finish(Verdict::Cancelled, now) }))
    }

    fn cancelled_at_once(&self, ask: &CancelAsk, now: Timestamp) -> Finish {
        Finish { trail: Some(requested(ask, now)), ..self.finish(Verdict::Cancelled, now) }
    }
}

fn requested(ask: &CancelAsk, now: Timestamp) -> TrailEntry {
    let kind = TrailKind::CancelRequested { by: ask.by.clone(), reason: ask.reason.clone() };
    TrailEntry { at: now, kind }
}
