//! One attempt, as a handler sees it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rota_api::worker::{Attempt, AttemptError};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

use super::in_flight::InFlight;

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Succeeded(Option<Value>),
    Failed(AttemptError),
    Cancelled,
    /// Not finished: another worker may begin anew, at no cost.
    HandedBack,
    /// Its target is known to be down: later, at no cost of an attempt.
    Deferred {
        until: jiff::Timestamp,
        reason: String,
    },
}

/// Why a handler failed, and what it advises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerError(AttemptError);

impl HandlerError {
    /// Failed; the job's policy says whether it is tried again.
    pub fn new(message: impl Into<String>) -> Self {
        Self(AttemptError { kind: None, message: message.into(), status: None, retry_after_ms: None, retry: None })
    }

    /// Failed, and worth another try after this long, attempts permitting.
    pub fn retry_after(message: impl Into<String>, wait: Duration) -> Self {
        let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Self(AttemptError { retry_after_ms: Some(wait), ..Self::new(message).0 })
    }

    /// Failed, and it will not get better.
    pub fn never_again(message: impl Into<String>) -> Self {
        Self(AttemptError { retry: Some(false), ..Self::new(message).0 })
    }

    /// The payload can never do.
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self(AttemptError { kind: Some("invalid_input".into()), ..Self::new(message).0 })
    }

    pub(super) fn into_error(self) -> AttemptError {
        self.0
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

/// One call of a handler. It reads as the [`Attempt`] that it is for.
pub struct Call {
    attempt: Attempt,
    in_flight: Arc<InFlight>,
    stop: watch::Receiver<bool>,
    listens: Arc<AtomicBool>,
}

impl Call {
    pub(super) fn new(
        attempt: Attempt,
        in_flight: Arc<InFlight>,
        stop: watch::Receiver<bool>,
        listens: Arc<AtomicBool>,
    ) -> Self {
        Self { attempt, in_flight, stop, listens }
    }

    /// The payload as a type of the handler's own.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        T::deserialize(&self.attempt.payload)
            .map_err(|error| HandlerError::invalid_input(format!("the payload: {error}")))
    }

    /// A line for the attempt's log.
    pub fn log(&self, text: &str) {
        self.in_flight.log(&self.attempt, "stdout", text);
    }

    /// A line of a stream: `stdout`, `stderr` or `system`.
    pub fn log_to(&self, stream: &str, text: &str) {
        self.in_flight.log(&self.attempt, stream, text);
    }

    /// How far it has come; only the latest report counts.
    pub fn progress(&self, percent: Option<u8>, phase: Option<&str>, message: Option<&str>) {
        self.in_flight.progress(&self.attempt, percent, phase, message);
    }

    /// Learns of the cancelling of this run. From the first call on, the handler is not
    /// dropped when its run is cancelled: it is notified, and has the grace to end.
    pub fn cancelled(&self) -> Cancelled {
        self.listens.store(true, Ordering::Relaxed);
        Cancelled(self.stop.clone())
    }
}

impl std::ops::Deref for Call {
    type Target = Attempt;

    fn deref(&self) -> &Attempt {
        &self.attempt
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Call").field(&self.attempt).finish()
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
            // The attempt is over; nobody will ask any more.
            std::future::pending::<()>().await;
        }
    }
}
