//! Those who turn an attempt into an outcome.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;

use super::Clock;
use crate::{
    choice::choices,
    ids::{JobId, TenantId},
    job::step::StepKind,
    run::{Lease, Outcome},
    trace::TraceParent,
};

/// Executes attempts of one kind of step.
///
/// A failing job is an outcome, not an error. To stop an attempt (its deadline
/// passed, it was cancelled, its lease was lost) the stage drops the future;
/// whatever it started must end with it. A panic is the stage's to catch.
#[async_trait]
pub trait Executor: Send + Sync {
    /// The kind of step, as [`StepKind::name`] calls it.
    fn kind(&self) -> &'static str;

    async fn execute(&self, attempt: &Attempt, context: &Context) -> Outcome;

    /// Asks the attempt under `lease` to stop by itself, because its run was
    /// cancelled. True where it was told and may use its grace; otherwise the
    /// stage drops it at once.
    fn ask_to_stop(&self, _lease: Lease) -> bool {
        false
    }
}

/// One try at a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    pub lease: Lease,
    /// From 1; a lost attempt is tried again under the same number.
    pub number: u16,
    pub tenant: TenantId,
    pub job: JobId,
    pub version: i32,
    /// What to do, its templates rendered.
    pub step: StepKind,
    pub payload: Value,
    /// When the stage will stop it; none for a step that only parks.
    pub deadline_at: Option<Timestamp>,
    /// The trace that its run is part of, with a span of this attempt's own.
    pub traceparent: Option<TraceParent>,
}

/// What an attempt may use while it is under way.
#[derive(Clone)]
pub struct Context {
    pub clock: Arc<dyn Clock>,
    pub reports: Arc<dyn Reports>,
}

choices! {
    /// Where a log line comes from.
    Stream {
        Stdout = "stdout",
        Stderr = "stderr",
        /// Rota itself.
        System = "system",
    }
}

/// How far an attempt has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// From 0 to 100.
    pub percent: Option<u8>,
    pub phase: Option<String>,
    pub message: Option<String>,
}

/// Takes what an attempt tells while it is under way. Neither call waits: both
/// are gathered, bounded and written in batches.
pub trait Reports: Send + Sync {
    fn log(&self, stream: Stream, text: &str);

    fn progress(&self, progress: Progress);
}
