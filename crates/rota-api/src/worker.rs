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

/// Who a worker is, and what it can execute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerHello {
    /// Made by the worker when it starts.
    pub id: Uuid,
    /// For people, such as the host's name.
    #[schema(max_length = 200)]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 200)]
    pub version: String,
    /// Queues to take work from; all where it is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 200)]
    pub queues: Vec<String>,
    /// What it has that jobs may require.
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
    /// Attempts it may have under way at once.
    pub slots: u32,
    /// It takes no more work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// What a worker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SyncRequest {
    pub worker: WorkerHello,
    /// How many attempts it would take now.
    #[serde(default)]
    pub free: u32,
    /// How long it would wait for them, or for other news; at most 25000. One
    /// that holds leases is answered within a third of a lease time.
    #[serde(default)]
    pub wait_ms: u64,
    /// All attempts under way, but for those in `finished`. They are extended
    /// by this.
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
    /// This is its last word: it is taken off the list of workers.
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
    /// It was not finished; another worker may begin anew, at no cost.
    HandedBack,
    /// Its target is known to be down: later, at no cost of an attempt.
    Deferred,
}

/// A report of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Finished {
    pub run: Uuid,
    pub fence: i32,
    pub outcome: AttemptOutcome,
    /// Of a success, if it has any; at most 64 KB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output: Option<Value>,
    /// Of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<AttemptError>,
    /// Of a deferral: not before this.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::instant::read_opt")]
    pub until: Option<Timestamp>,
    /// Of a deferral: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Why an attempt failed, and whether trying again makes sense.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttemptError {
    /// `handler` where it is left out; `timeout`, `invalid_input`, … as
    /// docs/job.md lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub message: String,
    /// The HTTP status, where a target gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Not before so many milliseconds have passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// False where it will not get better; the job's policy decides otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<bool>,
}

/// How far an attempt has come.
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
    /// Rises by one within the attempt, from 0; a piece that is sent again is
    /// kept once.
    pub seq: u32,
    pub lines: Vec<LogText>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogText {
    /// When the server heard it, where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// `stdout` where it is left out; `stderr`, `system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    pub text: String,
}

/// What a worker is told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SyncAnswer {
    /// To be executed. One that the worker has already, by run and fence, is
    /// to be ignored.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// One for each of `finished`, in the same order.
    #[serde(default)]
    pub reports: Vec<ReportAnswer>,
    /// To be stopped.
    #[serde(default)]
    pub cancel: Vec<CancelOrder>,
    /// Not the worker's any more: to be broken off, and not to be reported.
    #[serde(default)]
    pub lost: Vec<LeaseRef>,
    /// Somebody asked it to take no more work, to finish and to leave.
    #[serde(default)]
    pub drain: bool,
    /// So long a lease holds after an exchange; a worker that holds any is to
    /// be heard of three times as often.
    #[serde(default)]
    pub lease_ms: u64,
    /// The node goes: the next exchange is to wait so long, and may go to
    /// another node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportStatus {
    /// What was reported is what stands.
    Applied,
    /// The lease is not the run's any more; the report changed nothing.
    Stale,
    /// The server has it, and the store has not answered yet: report it again.
    Pending,
}

impl ReportStatus {
    /// What a request of its own would have been answered with.
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
    /// How long it may take to stop; then its run is cancelled without it.
    pub grace_ms: u64,
}

/// One try at a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    pub run: Uuid,
    /// To be sent with everything that is said of this attempt.
    pub fence: i32,
    /// From 1.
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
    /// What to do, of a built-in kind: the step as in the job's document, its
    /// templates rendered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub spec: Option<Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What made the run.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_at: Option<Timestamp>,
    /// How long it may take. The worker stops it then and reports a failure of
    /// kind `timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// False where a cancel is not to stop it.
    #[serde(default = "yes")]
    pub cancelable: bool,
    /// The same for every try at this run: for targets that do a thing once.
    pub idempotency_key: String,
    /// It may have killed workers before: nothing is to be executed beside it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
}

fn yes() -> bool {
    true
}

/// Whether a worker works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    Active,
    /// It takes no more work, or was asked to.
    Draining,
    /// Nothing was heard of it for a while.
    Dead,
}

/// A worker, built in or remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    pub id: Uuid,
    pub name: String,
    pub state: WorkerState,
    /// It is part of a node.
    pub built_in: bool,
    pub version: String,
    /// The node it is part of, or that it last talked to.
    pub node: String,
    /// All where it is empty.
    pub queues: Vec<String>,
    pub traits: Vec<String>,
    pub handlers: Vec<String>,
    pub kinds: Vec<String>,
    /// Attempts it may have under way.
    pub slots: u32,
    /// Attempts it has under way.
    pub busy: u32,
    pub began_at: Timestamp,
    pub seen_at: Timestamp,
}
