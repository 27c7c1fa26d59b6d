//! The trail: what a run's own row cannot say.
//!
//! A run that goes well writes no events: its times tell its story. A failed
//! attempt, a loss, a cancel request or an operator's act adds one line to the
//! run's trail, which moves to history with the row. So history is complete in
//! itself and can be dropped or archived a day at a time.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Fence, Verdict};
use crate::{
    ids::{RunId, WorkerId},
    job::failure::Failure,
};

/// No more is added to a trail that has grown to this many bytes.
pub const TRAIL_BYTES_MAX: usize = 64 * 1024;

/// One thing that happened to a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrailEntry {
    pub at: Timestamp,
    #[serde(flatten)]
    pub kind: TrailKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TrailKind {
    AttemptFailed {
        attempt: u16,
        started_at: Option<Timestamp>,
        failure: Failure,
        retry_at: Option<Timestamp>,
        /// Under which it was executed, so that its worker can be told what
        /// became of its report although the answer was lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fence: Option<Fence>,
    },
    Deferred {
        until: Timestamp,
        reason: String,
    },
    WorkerLost {
        worker: Option<WorkerId>,
        losses: u16,
    },
    HandedBack {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fence: Option<Fence>,
    },
    CancelRequested {
        by: Option<String>,
        reason: Option<String>,
    },
    GraceOver,
    Displaced {
        by: RunId,
    },
    /// It was never to start; kept so that this is on record.
    Skipped {
        reason: String,
    },
    ParentEnded {
        verdict: Verdict,
    },
}

impl TrailEntry {
    /// One line of JSON, as stored.
    pub fn line(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }

    /// When the attempt began that it speaks of.
    pub fn attempt_started_at(&self) -> Option<Timestamp> {
        match &self.kind {
            TrailKind::AttemptFailed { started_at, .. } => *started_at,
            TrailKind::Deferred { .. }
            | TrailKind::WorkerLost { .. }
            | TrailKind::HandedBack { .. }
            | TrailKind::CancelRequested { .. }
            | TrailKind::GraceOver
            | TrailKind::Displaced { .. }
            | TrailKind::Skipped { .. }
            | TrailKind::ParentEnded { .. } => None,
        }
    }

    /// Reads a stored trail. A line that cannot be read (written by a newer
    /// release) is left out rather than hiding the rest.
    pub fn read(stored: &str) -> Vec<Self> {
        stored.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}
