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

/// The status of a run.
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
    /// Nobody has dealt with it yet.
    Open,
    /// A new run was created from it.
    Redriven,
    /// Somebody has discarded it.
    Discarded,
    /// In a filter: any state.
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
    /// Who dealt with it, and when; nobody if its job redrives it automatically.
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
    /// The version of the job that it was created from.
    pub version: i32,
    pub status: Status,
    pub priority: u8,
    pub trigger: Trigger,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Absent if it is the one of the job or the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<Value>,
    pub created_at: Timestamp,
    pub ready_at: Timestamp,
    /// The run expires if it has not started by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The run ends as `timed_out` then, whatever its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// When its first attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_started_at: Option<Timestamp>,
    /// When its latest attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// The number of failed attempts; an attempt in flight is not counted.
    pub attempts_used: u16,
    /// The number of workers lost while executing it.
    pub losses: u16,
    pub fence: i32,
    /// The run of which this run is a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Uuid>,
    /// The worker that executes it under a written lease.
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
    /// For a dead letter that its job redrives automatically: the run that follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follower: Option<Follower>,
}

/// A run that was created automatically from a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Follower {
    pub run: Uuid,
    /// When it starts at the earliest.
    pub at: Timestamp,
}

/// What created a run.
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
    /// W3C trace context of whoever requested the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// A cancel request.
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
    /// The HTTP status, if the target returned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub message: String,
}

/// Request a run of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerRequest {
    /// The job's default if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The run does not start before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::instant::read_opt")]
    pub run_at: Option<Timestamp>,
    /// From 1, the most urgent, to 10; the job's own if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10)]
    pub priority: Option<u8>,
    /// Runs that must end before this one starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub after: Vec<Uuid>,
    /// Stored with the run's trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
}

/// A run that was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunMade {
    pub id: Uuid,
    pub status: Status,
}

/// Cancel a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000)]
    pub reason: Option<String>,
    /// How long its attempt may take to stop, such as `30s`; the job's own if it
    /// is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<String>,
}

/// The answer to a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelAnswer {
    /// The run has ended as cancelled.
    Cancelled,
    /// The attempt was asked to stop; the run is cancelling.
    Asked,
    /// A cancel had been requested before.
    AlreadyAsked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelResult {
    pub id: Uuid,
    pub answer: CancelAnswer,
}

/// Retry a run that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// Use the job's newest version instead of the run's.
    #[serde(default)]
    pub latest: bool,
    /// Retry it even if it was retried or redriven before.
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
    /// Further details.
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

/// Why a run waits, or why a schedule did not fire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// The first reason in words: the one that applies now.
    pub answer: String,
    /// All reasons; those after the first apply once it is gone.
    pub reasons: Vec<Reason>,
}

/// One reason, for people and for programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reason {
    /// `paused`, `slot`, `no_worker`, `rate_limit`, `place`, …
    pub code: String,
    /// In words.
    pub text: String,
    /// The numbers and times of the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<Value>,
}
