//! Jobs on the wire.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Pause, problem::FieldError, schedule::Upcoming};

/// The JSON Schema of the job document, for editors and for programs that create
/// documents. A test compares it with the types that read them.
pub const SCHEMA: &str = include_str!("job.schema.json");

/// A job, at its newest version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    pub id: i64,
    pub name: String,
    /// Increases by one with every changed document; the `ETag` of the job.
    pub version: i32,
    pub queue: String,
    pub tags: Vec<String>,
    /// If false, its schedules do not fire.
    pub enabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// True if it was deleted; only its history is left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// The job document, as docs/job.md describes it.
    #[schema(value_type = Object)]
    pub document: Value,
}

/// The result of saving a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobSaved {
    pub id: i64,
    pub name: String,
    pub version: i32,
    /// False if the document is unchanged, so that no version was created.
    pub changed: bool,
    /// Warnings for the author.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<FieldError>,
    /// A second in which very many schedules are due, among them this job's; also a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_second: Option<HotSecond>,
}

/// A second in which very many schedules are due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HotSecond {
    pub at: Timestamp,
    /// The number of schedules of all tenants that are due in it, as far as they were counted.
    pub schedules: u64,
    /// True if there are more than were counted.
    pub more: bool,
}

/// What a document would do, without saving it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobChecked {
    pub name: String,
    /// The version that saving it would change, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i32>,
    /// True if saving it would create a new version.
    pub changes: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<FieldError>,
    /// The next instants of each schedule.
    pub schedules: Vec<SchedulePreview>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SchedulePreview {
    pub name: String,
    /// In words, such as "at 09:00, Monday to Friday".
    pub description: String,
    pub next: Vec<Upcoming>,
}

/// One of a job's versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobVersion {
    pub version: i32,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[schema(value_type = Object)]
    pub document: Value,
}

/// Hourly statistics of a job's runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobStats {
    pub from: Timestamp,
    pub to: Timestamp,
    pub total: Stats,
    pub hours: Vec<HourStats>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HourStats {
    pub at: Timestamp,
    #[serde(flatten)]
    pub stats: Stats,
}

/// Ended runs, counted as they settled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    pub runs: u64,
    pub succeeded: u64,
    pub failed: u64,
    pub timed_out: u64,
    pub cancelled: u64,
    pub dead: u64,
    pub expired: u64,
    pub skipped: u64,
    pub attempts: u64,
    pub losses: u64,
    /// The share that succeeded of the runs that were to be executed; null if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<f64>,
    /// Milliseconds executing.
    pub duration: Spread,
    /// Milliseconds from ready to started.
    pub start_delay: Spread,
}

/// Upper bounds of quantiles; buckets are powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Spread {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<u64>,
    pub max_ms: u64,
}
