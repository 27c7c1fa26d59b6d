//! Workers on the wire: the one exchange of a remote worker, and the registry.
//!
//! `docs/workers.md` tells the protocol in one page.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::run::JobRef;

/// Attempts that one answer brings at most.
pub const ATTEMPTS_MAX: usize = 1_000;
/// Reports that one exchange may carry.
pub const FINISHED_MAX: usize = 2_000;
/// Leases that a worker may hold.
pub const LEASES_MAX: usize = 5_000;
/// Words of progress, and pieces of log, that one exchange may carry.
pub const WORDS_MAX: usize = 1_000;
/// Bytes of the body of an exchange.
pub const EXCHANGE_BYTES_MAX: usize = 1 << 20;
/// Bytes of an attempt's output; a larger one is a failure.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Bytes of an error's message; the rest is cut off.
pub const MESSAGE_BYTES_MAX: usize = 8 << 10;
/// Bytes of a line of a log; the rest is cut off.
pub const LOG_LINE_BYTES_MAX: usize = 16 << 10;
/// Bytes of a phase, and of a message, of progress; the rest is cut off.
pub const PROGRESS_BYTES_MAX: usize = 1 << 10;
/// Names that a worker may offer, of each kind.
pub const NAMES_MAX: usize = 200;
/// The longest that the server waits before it answers.
pub const WAIT_MS_MAX: u64 = 25_000;

/// The right to one attempt: a run, and the fence it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRef {
    pub run: Uuid,
    pub fence: i32,
}

/// The identity of a worker, and what it can execute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerHello {
    /// Created by the worker when it starts.
    pub id: Uuid,
    /// For people, such as the host's name.
    #[schema(max_length = 200)]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 200)]
    pub version: String,
    /// Queues to take work from; all if it is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 200)]
    pub queues: Vec<String>,
    /// The traits that it offers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 200)]
    pub traits: Vec<String>,
    /// Handlers by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 200)]
    pub handlers: Vec<String>,
    /// Built-in kinds of steps, such as `http`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 200)]
    pub kinds: Vec<String>,
    /// The maximum number of attempts in flight.
    pub slots: u32,
    /// True if it takes no more work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// What a worker sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SyncRequest {
    pub worker: WorkerHello,
    /// The number of attempts that it would take now.
    #[serde(default)]
    pub free: u32,
    /// How long it waits for work or other news, in milliseconds; at most 25000. A worker
    /// that holds leases is answered within a third of a lease time.
    #[serde(default)]
    pub wait_ms: u64,
    /// All attempts in flight, except those in `finished`. This extends their
    /// leases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 5000)]
    pub leases: Vec<LeaseRef>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 2000)]
    pub finished: Vec<Finished>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub progress: Vec<ProgressReport>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub logs: Vec<LogReport>,
    /// This is its last exchange: it is removed from the list of workers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    Succeeded,
    Failed,
    /// It stopped because it was asked to.
    Cancelled,
    /// It was not finished; another worker starts it again, and no attempt is used up.
    HandedBack,
    /// Its target is down; it is tried again later, and no attempt is used up.
    Deferred,
}

/// A report of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Finished {
    pub run: Uuid,
    pub fence: i32,
    pub outcome: AttemptOutcome,
    /// The output of a success, if any; at most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output: Option<Value>,
    /// The error of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<AttemptError>,
    /// For a deferral: the earliest time to try again.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::instant::read_opt")]
    pub until: Option<Timestamp>,
    /// For a deferral: the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Why an attempt failed, and whether it should be retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttemptError {
    /// `handler` if it is left out; `timeout`, `invalid_input`, … as listed in
    /// docs/job.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub message: String,
    /// The HTTP status, if the target returned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Retry after this number of milliseconds at the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// False if a retry would not help; otherwise the job's policy decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<bool>,
}

/// The progress of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgressReport {
    pub run: Uuid,
    pub fence: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 100)]
    pub percent: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Log lines of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogReport {
    pub run: Uuid,
    pub fence: i32,
    /// Increases by one within the attempt, from 0; lines that are sent again are
    /// kept once.
    pub seq: u32,
    pub lines: Vec<LogText>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogText {
    /// The time at which the server received the line, if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// `stdout` if it is left out; `stderr`, `system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    pub text: String,
}

/// What a worker receives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SyncAnswer {
    /// Attempts to execute. Ignore one that the worker already has, by run and
    /// fence.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// One for each of `finished`, in the same order.
    #[serde(default)]
    pub reports: Vec<ReportAnswer>,
    /// Attempts to stop.
    #[serde(default)]
    pub cancel: Vec<CancelOrder>,
    /// No longer the worker's: abort them, and do not report them.
    #[serde(default)]
    pub lost: Vec<LeaseRef>,
    /// True if the worker is asked to take no more work, finish and leave.
    #[serde(default)]
    pub drain: bool,
    /// How long leases hold after an exchange; a worker that holds any must make at least
    /// three exchanges in that time.
    #[serde(default)]
    pub lease_ms: u64,
    /// The node is shutting down: wait this long before the next exchange, which may go to
    /// another node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// The result of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportStatus {
    /// The report is stored.
    Applied,
    /// The lease is no longer the run's current one; the report changed nothing.
    Stale,
    /// The store has not answered yet: send the report again.
    Pending,
}

impl ReportStatus {
    /// The status that a separate request would have been answered with.
    pub const fn code(self) -> u16 {
        match self {
            Self::Applied => 200,
            Self::Stale => 409,
            Self::Pending => 503,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportAnswer {
    pub run: Uuid,
    pub fence: i32,
    pub status: ReportStatus,
    /// 200, 409 or 503.
    pub code: u16,
}

/// Stop an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelOrder {
    pub run: Uuid,
    pub fence: i32,
    /// How long it may take to stop; then its run is cancelled without the worker.
    pub grace_ms: u64,
}

/// One try at a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    pub run: Uuid,
    /// Sent with everything about this attempt.
    pub fence: i32,
    /// Counted from 1.
    pub attempt: u16,
    pub job: JobRef,
    pub version: i32,
    /// The step's id in the job.
    pub step: String,
    /// `handler`, or a built-in kind.
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub payload: Value,
    /// For a built-in kind: the step as in the job's document, with its templates
    /// rendered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub spec: Option<Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What made the run.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_at: Option<Timestamp>,
    /// How long it may take. Then the worker stops it and reports a failure of
    /// kind `timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// False if a cancel must not stop it.
    #[serde(default = "yes")]
    pub cancelable: bool,
    /// The same for every attempt at this run, for targets that support idempotency.
    pub idempotency_key: String,
    /// True if it may have killed workers before: execute nothing else at the same time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// W3C trace context, if the run was requested with one: the same trace, and a span of
    /// this attempt's own, for the requests that it makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

fn yes() -> bool {
    true
}

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    Active,
    /// It takes no more work, or was asked to take none.
    Draining,
    /// It has sent no heartbeat for a while.
    Dead,
}

/// A worker, built in or remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    pub id: Uuid,
    pub name: String,
    pub state: WorkerState,
    /// True if it is part of a node.
    pub built_in: bool,
    pub version: String,
    /// The node that it is part of, or last talked to.
    pub node: String,
    /// All queues if it is empty.
    pub queues: Vec<String>,
    pub traits: Vec<String>,
    pub handlers: Vec<String>,
    pub kinds: Vec<String>,
    /// The maximum number of attempts in flight.
    pub slots: u32,
    /// The number of attempts in flight.
    pub busy: u32,
    pub began_at: Timestamp,
    pub seen_at: Timestamp,
}
