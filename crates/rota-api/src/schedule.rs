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
    /// False where it or its job is turned off.
    pub enabled: bool,
    /// Its own pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// Whose pause keeps it from firing now: `tenant`, `queue`, `job` or `schedule`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<String>,
    /// The next instant that no pause covers; none where it waits for its own run, has
    /// ended, or is paused without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// Runs made so far.
    pub fired: u64,
    /// As written in the job's document.
    #[schema(value_type = Object)]
    pub spec: Value,
}

/// One instant to come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upcoming {
    /// Its identity.
    pub planned_at: Timestamp,
    /// With jitter.
    pub due_at: Timestamp,
    /// On the schedule's own clock, such as `2025-03-09T03:00:00-04:00[America/New_York]`.
    pub local: String,
    /// Where a clock change or a calendar had a say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Planned instants that made no run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Skip {
    pub from: Timestamp,
    pub to: Timestamp,
    pub count: u64,
    pub reason: String,
    /// The reason in words.
    pub why: String,
}

/// Run past instants of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackfillRequest {
    /// The first instant that counts.
    #[serde(deserialize_with = "instant::read")]
    pub from: Timestamp,
    /// The end; an instant there does not count.
    #[serde(deserialize_with = "instant::read")]
    pub to: Timestamp,
    /// Also instants that made a run already.
    #[serde(default)]
    pub again: bool,
    /// Only count.
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
    /// Those left out because they made a run already.
    pub fired_before: u64,
    /// Runs made, or that would be.
    pub runs: u64,
    /// Instants whose run was refused, or would be.
    #[serde(default, skip_serializing_if = "is_none_refused")]
    pub refused: u64,
    /// Why the first of them was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    pub dry_run: bool,
}
