//! Fire: what a schedule owes now.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Why a planned instant made no run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    Overlap,
    CatchUp,
    Paused,
    Calendar,
    Quota,
    Unique,
    Edited,
    Deleted,
    Ended,
}

/// Planned instants in a row that made no run, for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkipRange {
    pub from: Timestamp,
    pub to: Timestamp,
    pub count: u64,
    pub reason: SkipReason,
}

/// What the store keeps of a schedule's progress, in a narrow row of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The next instant owed: its identity.
    pub planned_at: Timestamp,
    /// When to wake for it.
    pub due_at: Timestamp,
    /// Runs made so far.
    pub fired: u64,
}
