//! Schedules on the wire.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Pause, instant, run::JobRef};

/// When a job is to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    pub id: i64,
    pub job: JobRef,
    pub name: String,
    /// In words.
    pub description: String,
    /// False if it or its job is disabled.
    pub enabled: bool,
    /// Its own pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// What is paused so that it does not fire now: `tenant`, `queue`, `job` or `schedule`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<String>,
    /// The next instant outside every pause; absent if the schedule waits for its own run, has
    /// ended, or is paused without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// The number of runs created so far.
    pub fired: u64,
    /// As written in the job's document.
    #[schema(value_type = Object)]
    pub spec: Value,
}

/// A future instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upcoming {
    /// The planned instant, which identifies the run.
    pub planned_at: Timestamp,
    /// The planned instant plus jitter.
    pub due_at: Timestamp,
    /// In the schedule's time zone, such as `2025-03-09T03:00:00-04:00[America/New_York]`.
    pub local: String,
    /// Present if a clock change or a calendar affected the instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Planned instants that were skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Skip {
    pub from: Timestamp,
    pub to: Timestamp,
    pub count: u64,
    pub reason: String,
    /// The reason in words.
    pub why: String,
}

/// Create runs for past instants of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackfillRequest {
    /// The start of the range, inclusive.
    #[serde(deserialize_with = "instant::read")]
    pub from: Timestamp,
    /// The end of the range, exclusive.
    #[serde(deserialize_with = "instant::read")]
    pub to: Timestamp,
    /// Also instants that already have a run.
    #[serde(default)]
    pub again: bool,
    /// Only count the runs.
    #[serde(default)]
    pub dry_run: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
fn is_none_refused(refused: &u64) -> bool {
    *refused == 0
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Backfilled {
    /// Instants of the schedule in the range.
    pub planned: u64,
    /// Instants left out because they already have a run.
    pub fired_before: u64,
    /// Runs that were created, or would be.
    pub runs: u64,
    /// Instants whose run was refused, or would be.
    #[serde(default, skip_serializing_if = "is_none_refused")]
    pub refused: u64,
    /// Why the first of them was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    pub dry_run: bool,
}
