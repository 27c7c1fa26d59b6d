//! Runs on the wire.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

/// A job by id and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobRef {
    pub id: i64,
    pub name: String,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Scheduled,
    Blocked,
    Queued,
    Running,
    Waiting,
    Cancelling,
    Succeeded,
    Failed,
    TimedOut,
    Cancelled,
    Dead,
    Expired,
    Skipped,
}

impl Status {
    pub const fn is_ended(self) -> bool {
        match self {
            Self::Scheduled | Self::Blocked | Self::Queued | Self::Running | Self::Waiting | Self::Cancelling => false,
            Self::Succeeded
            | Self::Failed
            | Self::TimedOut
            | Self::Cancelled
            | Self::Dead
            | Self::Expired
            | Self::Skipped => true,
        }
    }
}

/// How a dead letter was dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadState {
    /// It waits for somebody.
    Open,
    /// A new run was made of it.
    Redriven,
    /// Somebody put it away.
    Discarded,
    /// In a filter: whichever.
    All,
}

/// A run that used up its attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    #[serde(flatten)]
    pub run: Run,
    /// How long ago it died, in milliseconds.
    pub age_ms: u64,
    pub state: DeadState,
    /// Who dealt with it, and when; nobody where its job has it made again by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_at: Option<Timestamp>,
}

/// One execution of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    pub id: Uuid,
    pub job: JobRef,
    /// The version of the job it was made from.
    pub version: i32,
    pub status: Status,
    pub priority: u8,
    pub trigger: Trigger,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// None where it is the job's or the schedule's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<Value>,
    pub created_at: Timestamp,
    pub ready_at: Timestamp,
    /// It expires unless it is started by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// It ends as `timed_out` then, whatever it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Attempts that failed. The one under way is the next.
    pub attempts_used: u16,
    /// Workers that vanished with it.
    pub losses: u16,
    pub fence: i32,
    /// The run that this is a step of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Uuid>,
    /// Who executes it by a written lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Cancel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub progress: Option<Value>,
    /// Of a dead letter whose job has it made again by itself: the run that follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follower: Option<Follower>,
}

/// A run that was made of a dead letter by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Follower {
    pub run: Uuid,
    /// When it is to start.
    pub at: Timestamp,
}

/// What made a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Trigger {
    /// schedule, manual, api, webhook, job, backfill, redrive or retry.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
}

/// A cancel that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancel {
    pub at: Timestamp,
    pub grace_until: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// timeout, `http_status`, `connection_refused`, … as docs/job.md lists.
    pub kind: String,
    /// The HTTP status, where the target gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub message: String,
}

/// Ask for a run of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerRequest {
    /// The job's default where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Not before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::instant::read_opt")]
    pub run_at: Option<Timestamp>,
    /// From 1, the most urgent, to 10; the job's own where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10)]
    pub priority: Option<u8>,
    /// Runs that must end before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub after: Vec<Uuid>,
    /// Kept with the run's trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
}

/// A run that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunMade {
    pub id: Uuid,
    pub status: Status,
}

/// Ask a run to stop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000)]
    pub reason: Option<String>,
    /// How long its worker may take to stop, such as `30s`; the job's own
    /// where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<String>,
}

/// What became of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelAnswer {
    /// It has ended as cancelled.
    Cancelled,
    /// It was asked to stop and will answer.
    Asked,
    /// It had been asked before.
    AlreadyAsked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelResult {
    pub id: Uuid,
    pub answer: CancelAnswer,
}

/// Make a new run of one that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// Of the job's newest version, not of the one that the run was made from.
    #[serde(default)]
    pub latest: bool,
    /// Although it was made again before.
    #[serde(default)]
    pub again: bool,
}

/// Something that happened to a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunEvent {
    pub at: Timestamp,
    /// `created`, `attempt_failed`, `ended`, …
    pub event: String,
    /// In words.
    pub text: String,
    /// What else is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<Value>,
}

/// A line that an attempt wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    pub attempt: u16,
    pub at: Timestamp,
    /// stdout, stderr or log.
    pub stream: String,
    pub text: String,
}

/// Why something waits or did not happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// The first reason in words: what holds now.
    pub answer: String,
    /// All that is known; those after the first come to bear once it is gone.
    pub reasons: Vec<Reason>,
}

/// One reason, for people and for programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reason {
    /// `paused`, `slot`, `no_worker`, `rate_limit`, `place`, …
    pub code: String,
    /// In words.
    pub text: String,
    /// The numbers and times behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<Value>,
}
