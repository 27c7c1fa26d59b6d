//! Handlers: functions of this process that execute steps by name.
//!
//! A handler is given a [`Call`] and answers with a value, or with an error
//! that may say itself whether and when to try again. One that asks for
//! [`Call::cancelled`] is told when its run is cancelled and may use its grace;
//! one that does not is dropped.

use std::{
    collections::HashMap,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    duration::Span,
    ids::{JobId, RunId, TenantId},
    job::{
        failure::{ErrorKind, Failure, RetryAdvice},
        step::StepKind,
    },
    ports::{Attempt, Context, Executor, Progress, Stream},
    run::{Lease, Outcome},
    trace::TraceParent,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

type Answer = Pin<Box<dyn Future<Output = Result<Value, HandlerError>> + Send>>;
type Function = Box<dyn Fn(Call) -> Answer + Send + Sync>;
type Stops = Arc<Mutex<HashMap<Lease, watch::Sender<bool>>>>;

/// Why a handler failed, and what it advises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerError {
    message: String,
    advice: RetryAdvice,
    kind: ErrorKind,
}

impl HandlerError {
    /// Failed; the job's policy says whether it is tried again.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), advice: RetryAdvice::ByPolicy, kind: ErrorKind::Handler }
    }

    /// Failed, and worth another try after this long, attempts permitting.
    pub fn retry_after(message: impl Into<String>, wait: Span) -> Self {
        Self { advice: RetryAdvice::After(wait), ..Self::new(message) }
    }

    /// Failed, and it will not get better.
    pub fn never_again(message: impl Into<String>) -> Self {
        Self { advice: RetryAdvice::Never, ..Self::new(message) }
    }

    /// The payload can never do.
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::InvalidInput, ..Self::new(message) }
    }
}

/// Not an `Error` itself, so that `?` turns every error into one of these.
impl<E: std::error::Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::new(message)
    }
}

/// One call of a handler.
pub struct Call {
    pub lease: Lease,
    /// From 1.
    pub attempt: u16,
    pub tenant: TenantId,
    pub job: JobId,
    pub payload: Value,
    /// When it will be stopped.
    pub deadline_at: Option<Timestamp>,
    /// The trace it is part of, with a span of its own: for what it calls.
    pub traceparent: Option<TraceParent>,
    context: Context,
    stops: Stops,
    /// Whether there is anything to take back at the end.
    listens: AtomicBool,
}

impl Call {
    pub fn run(&self) -> RunId {
        self.lease.run
    }

    /// The payload as a type of the handler's own.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        T::deserialize(&self.payload).map_err(|error| HandlerError::invalid_input(format!("the payload: {error}")))
    }

    pub fn log(&self, text: &str) {
        self.context.reports.log(Stream::Stdout, text);
    }

    pub fn progress(&self, progress: Progress) {
        self.context.reports.progress(progress);
    }

    pub fn now(&self) -> Timestamp {
        self.context.clock.now()
    }

    /// An ear for the cancelling of this run. From the first call on the
    /// handler is not dropped when its run is cancelled but told, and has its
    /// grace to come to an end.
    pub fn cancelled(&self) -> Cancelled {
        self.listens.store(true, Ordering::Relaxed);
        let mut stops = self.stops.lock();
        let told = stops.entry(self.lease).or_insert_with(|| watch::Sender::new(false)).subscribe();
        Cancelled(told)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if *self.listens.get_mut() {
            self.stops.lock().remove(&self.lease);
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("lease", &self.lease).field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

/// Says when a run was cancelled.
#[derive(Clone, Debug)]
pub struct Cancelled(watch::Receiver<bool>);

impl Cancelled {
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when the run was asked to stop.
    pub async fn asked(&mut self) {
        if self.0.wait_for(|asked| *asked).await.is_err() {
            // The call is over; nobody will ask any more.
            std::future::pending::<()>().await;
        }
    }
}

/// Handlers by name.
#[derive(Default)]
pub struct Handlers {
    functions: HashMap<String, Function>,
    stops: Stops,
}

impl Handlers {
    /// Registers a handler, in place of a former one of that name.
    #[must_use]
    pub fn with<F, R>(mut self, name: impl Into<String>, function: F) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Value, HandlerError>> + Send + 'static,
    {
        self.functions.insert(name.into(), Box::new(move |call| Box::pin(function(call))));
        self
    }

    pub fn has(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.keys().map(String::as_str)
    }
}

#[async_trait]
impl Executor for Handlers {
    fn kind(&self) -> &'static str {
        "handler"
    }

    async fn execute(&self, attempt: &Attempt, context: &Context) -> Outcome {
        let StepKind::Handler(step) = &attempt.step else {
            return failed(HandlerError::invalid_input(format!("a `{}` step is not a handler", attempt.step.name())));
        };
        let Some(function) = self.functions.get(&step.name) else {
            return failed(HandlerError::new(format!("this worker has no handler `{}`", step.name)));
        };
        let call = Call {
            lease: attempt.lease,
            attempt: attempt.number,
            tenant: attempt.tenant,
            job: attempt.job,
            traceparent: attempt.traceparent,
            payload: step.payload.clone().unwrap_or_else(|| attempt.payload.clone()),
            deadline_at: attempt.deadline_at,
            context: context.clone(),
            stops: Arc::clone(&self.stops),
            listens: AtomicBool::new(false),
        };
        match function(call).await {
            Ok(Value::Null) => Outcome::Succeeded { output: None },
            Ok(output) => Outcome::Succeeded { output: Some(output.to_string().into()) },
            Err(error) => failed(error),
        }
    }

    fn ask_to_stop(&self, lease: Lease) -> bool {
        let stops = self.stops.lock();
        stops.get(&lease).map(|stop| stop.send_replace(true)).is_some()
    }
}

fn failed(error: HandlerError) -> Outcome {
    Outcome::Failed(Failure::new(error.kind, error.message).advising(error.advice))
}
