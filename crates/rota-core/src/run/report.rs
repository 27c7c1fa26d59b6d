//! What a worker reports of an attempt, and whether it stands.
//!
//! A report whose answer was lost is made again. By then the run has ended or
//! has moved on, and its lease is not the current one any more; the worker must
//! still be told whether its word counted, or it would never know whether its
//! work was in vain. The run's own row and trail say so.

use super::{Fence, Lease, Outcome, RunState, TrailEntry, TrailKind, Verdict};
use crate::{job::failure::Failure, store::RunRecord};

/// How its worker says an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    Outcome(Outcome),
    /// It was not finished: another may begin anew.
    HandedBack,
}

impl Report {
    /// Whether what this says of the attempt under `lease` is what became of
    /// it.
    ///
    /// To be asked where the lease is not the run's current one any more. A
    /// trail that was full keeps no line; then the answer is no.
    pub fn stands(&self, lease: Lease, record: &RunRecord) -> bool {
        let run = &record.run;
        match run.state {
            RunState::Finished { verdict, .. } if run.fence == lease.fence => self.ended_as(verdict, record),
            RunState::Finished { .. }
            | RunState::Scheduled
            | RunState::Blocked(_)
            | RunState::Queued
            | RunState::Running { .. }
            | RunState::Waiting { .. }
            | RunState::Cancelling { .. } => record.trail.iter().any(|entry| self.left(entry, lease.fence)),
        }
    }

    /// Whether this ended a run with that verdict.
    fn ended_as(&self, verdict: Verdict, record: &RunRecord) -> bool {
        let grace_over = record.trail.iter().any(|entry| entry.kind == TrailKind::GraceOver);
        match (self, verdict) {
            // Nobody but its holder can make a run succeed.
            (Self::Outcome(Outcome::Succeeded { .. }), Verdict::Succeeded) => true,
            (Self::Outcome(Outcome::Failed(failure)), Verdict::Failed | Verdict::TimedOut | Verdict::Dead) => {
                same(record.failure.as_ref(), failure)
            }
            (Self::Outcome(Outcome::Failed(failure)), Verdict::Cancelled) => same(record.failure.as_ref(), failure),
            (
                Self::HandedBack
                | Self::Outcome(Outcome::Cancelled | Outcome::Parked { .. } | Outcome::Deferred { .. }),
                Verdict::Cancelled,
            ) => !grace_over,
            (Self::HandedBack | Self::Outcome(_), _) => false,
        }
    }

    /// Whether this left that line in the trail.
    fn left(&self, entry: &TrailEntry, under: Fence) -> bool {
        match (self, &entry.kind) {
            (Self::Outcome(Outcome::Failed(reported)), TrailKind::AttemptFailed { failure, fence, .. }) => {
                *fence == Some(under) && same(Some(failure), reported)
            }
            (Self::HandedBack, TrailKind::HandedBack { fence }) => *fence == Some(under),
            (Self::Outcome(Outcome::Deferred { until, .. }), TrailKind::Deferred { until: stored, .. }) => {
                // One that was over already was taken to be now.
                (*until).max(entry.at) == *stored
            }
            _ => false,
        }
    }
}

/// The advice is not compared: policy may have had its own mind.
fn same(stored: Option<&Failure>, reported: &Failure) -> bool {
    stored.is_some_and(|stored| stored.kind == reported.kind && stored.message == reported.message)
}
