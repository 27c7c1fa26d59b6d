//! A remote worker: fetches attempts, executes them and reports their outcomes.
//!
//! One exchange waits for work. As soon as there is something to report, a
//! second one reports it and waits in its place; the server answers the first at once.
//! So at most two are in flight, and everything that ends meanwhile goes together with
//! the next.
//!
//! A report is repeated until the server has answered it; the fence makes it count once. When the server does not answer, attempts go on:
//! nobody else can have them before their leases have run out, and if somebody
//! has, the next answer says so and they are broken off.

mod call;
mod in_flight;

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use rota_api::worker::{Attempt, AttemptError, EXCHANGE_BYTES_MAX, SyncAnswer, SyncRequest, WAIT_MS_MAX, WorkerHello};
use serde_json::Value;
use tokio::sync::watch;
use uuid::Uuid;

pub use self::call::{Call, Cancelled, HandlerError, Outcome};
use self::in_flight::{InFlight, Stop, Update};
use crate::{Client, Error};

type Execution = Pin<Box<dyn Future<Output = Outcome> + Send>>;
type Function = Arc<dyn Fn(Call) -> Execution + Send + Sync>;

/// The wait after the first exchange that failed; it doubles up to the longest.
const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// How long a worker that leaves tries to make its last reports.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// See the module.
pub struct Worker {
    client: Client,
    hello: WorkerHello,
    handlers: HashMap<String, Function>,
    kinds: HashMap<String, Function>,
    drain: Duration,
}

impl Worker {
    /// A worker under a name for people, such as the host's.
    pub fn new(client: Client, name: impl Into<String>) -> Self {
        let hello = WorkerHello {
            id: Uuid::now_v7(),
            name: name.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            queues: Vec::new(),
            traits: Vec::new(),
            handlers: Vec::new(),
            kinds: Vec::new(),
            slots: 10,
            draining: false,
        };
        Self { client, hello, handlers: HashMap::new(), kinds: HashMap::new(), drain: Duration::from_secs(30) }
    }

    pub fn id(&self) -> Uuid {
        self.hello.id
    }

    /// What people are shown as its version; this crate's own if not given.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.hello.version = version.into();
        self
    }

    /// Attempts under way at once; 10 if not given.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.hello.slots = slots.max(1);
        self
    }

    /// Takes work from this queue; from all if none is given.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.hello.queues.push(queue.into());
        self
    }

    /// Has what jobs may require.
    #[must_use]
    pub fn with_trait(mut self, name: impl Into<String>) -> Self {
        self.hello.traits.push(name.into());
        self
    }

    /// How long attempts may take to end when the worker stops; 30 seconds if
    /// not given. What is left is handed back.
    #[must_use]
    pub fn drain_limit(self, drain: Duration) -> Self {
        Self { drain, ..self }
    }

    /// Registers a handler, in place of a former one of that name.
    #[must_use]
    pub fn handler<F, R>(mut self, name: impl Into<String>, function: F) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Value, HandlerError>> + Send + 'static,
    {
        let function: Function = Arc::new(move |call| {
            let going = function(call);
            Box::pin(async move {
                match going.await {
                    Ok(Value::Null) => Outcome::Succeeded(None),
                    Ok(output) => Outcome::Succeeded(Some(output)),
                    Err(error) => Outcome::Failed(error.into_error()),
                }
            })
        });
        self.handlers.insert(name.into(), function);
        self
    }

    /// Executes a built-in kind of step, in place of a former function.
    #[must_use]
    pub fn kind<F, R>(mut self, kind: impl Into<String>, function: F) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.kinds.insert(kind.into(), Arc::new(move |call| Box::pin(function(call))));
        self
    }

    /// Works until `stop`, or until the server asks it to drain; then finishes
    /// what it has, within its limit, and leaves. Fails when the server refuses
    /// it for good.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        self.hello.handlers = self.handlers.keys().cloned().collect();
        self.hello.kinds = self.kinds.keys().cloned().collect();
        let hello = serde_json::to_vec(&self.hello).map_or(0, |json| json.len());
        let room = EXCHANGE_BYTES_MAX.saturating_sub(hello);
        let at_work = AtWork { worker: Arc::new(self), in_flight: Arc::default(), room };
        tokio::pin!(stop);
        let stopped = at_work.work(stop).await;
        let left = at_work.leave().await;
        stopped.and(left)
    }
}

struct AtWork {
    worker: Arc<Worker>,
    in_flight: Arc<InFlight>,
    /// Bytes that an exchange has for reports.
    room: usize,
}

/// An exchange under way.
struct Exchanged {
    update: Update,
    answer: Result<SyncAnswer, Error>,
}

impl AtWork {
    fn request(&self, update: &Update, wait: Duration, free: u32, draining: bool) -> SyncRequest {
        let hello = WorkerHello { draining, ..self.worker.hello.clone() };
        let update = update.clone();
        SyncRequest {
            worker: hello,
            free,
            wait_ms: (wait.as_millis() as u64).min(WAIT_MS_MAX),
            leases: update.leases,
            finished: update.finished,
            progress: update.progress,
            logs: update.logs,
            leaving: false,
        }
    }

    async fn exchange(&self, update: Update, draining: bool) -> Exchanged {
        let wait = Duration::from_millis(WAIT_MS_MAX);
        let free = if draining { 0 } else { update.free };
        let answer = self.worker.client.sync(&self.request(&update, wait, free, draining)).await;
        Exchanged { update, answer }
    }

    /// Exchanges and executes until it is to stop.
    async fn work(&self, mut stop: Pin<&mut impl Future<Output = ()>>) -> Result<(), Error> {
        let mut exchanges = FuturesUnordered::new();
        let (mut reporting, mut failures) = (false, 0_u32);
        // Where set, the next exchange waits for it.
        let mut pause: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(std::future::ready(()));
        let mut paused = false;
        loop {
            let wants = !reporting && (exchanges.is_empty() || self.in_flight.has_reports());
            if wants && !paused && exchanges.len() < 2 {
                // What ends at the same time is reported together.
                tokio::task::yield_now().await;
                let update = self.in_flight.next_update(self.worker.hello.slots, self.room);
                reporting = update.reports() > 0;
                exchanges.push(self.exchange(update, false));
                continue;
            }
            tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                Some(done) = exchanges.next() => {
                    reporting &= done.update.reports() == 0;
                    match self.take(done) {
                        Ok(Some(Next::Drain)) => return Ok(()),
                        Ok(Some(Next::After(wait))) => (pause, paused) = (Box::pin(tokio::time::sleep(wait)), true),
                        Ok(None) => failures = 0,
                        Err(error) if error.is_passing() => {
                            failures += 1;
                            let wait = backoff(failures);
                            tracing::warn!(%error, failures, "an exchange failed; trying again");
                            (pause, paused) = (Box::pin(tokio::time::sleep(wait)), true);
                        }
                        Err(error) => return Err(error),
                    }
                }
                () = &mut pause, if paused => paused = false,
                () = self.in_flight.moved.notified() => {}
            }
        }
    }

    /// Takes in an answer.
    fn take(&self, done: Exchanged) -> Result<Option<Next>, Error> {
        let answer = match done.answer {
            Err(error) if error.is_about_the_request() && self.in_flight.refused(&done.update, &error.to_string()) => {
                return Ok(None);
            }
            answer => answer?,
        };
        for attempt in &answer.attempts {
            self.begin(attempt.clone());
        }
        self.in_flight.acknowledged(&done.update, &answer);
        if answer.drain {
            return Ok(Some(Next::Drain));
        }
        Ok(answer.retry_after_ms.map(|wait| Next::After(Duration::from_millis(wait))))
    }

    fn begin(&self, attempt: Attempt) {
        if let Some(stopped) = self.in_flight.begin(&attempt) {
            tokio::spawn(execute(Arc::clone(&self.worker), Arc::clone(&self.in_flight), attempt, stopped));
        }
    }

    /// Finishes what is in flight, within the limit; hands the rest back; reports all that
    /// is left to report.
    async fn leave(&self) -> Result<(), Error> {
        let finishing = self.report_until(|| self.in_flight.is_idle());
        if tokio::time::timeout(self.worker.drain, finishing).await.is_err() {
            tracing::warn!(attempts = self.in_flight.running(), "handing back attempts that have not ended");
        }
        self.in_flight.hand_back();
        let last = async {
            self.report_until(|| self.in_flight.is_idle() && self.in_flight.is_reported()).await?;
            let leaving = SyncRequest { leaving: true, ..self.request(&Update::default(), Duration::ZERO, 0, true) };
            self.worker.client.sync(&leaving).await.map(drop)
        };
        if let Ok(reported) = tokio::time::timeout(LEAVE_WITHIN, last).await {
            return reported;
        }
        // Its leases run out by themselves.
        tracing::warn!("stopped without an answer to the last reports");
        Ok(())
    }

    /// Goes on exchanging, without taking work, until something holds.
    async fn report_until(&self, done: impl Fn() -> bool) -> Result<(), Error> {
        let mut failures = 0;
        while !done() {
            let update = self.in_flight.next_update(0, self.room);
            let waits = if update.reports() > 0 { Duration::ZERO } else { Duration::from_secs(1) };
            let asked = self.request(&update, waits, 0, true);
            let answer = tokio::select! {
                answer = self.worker.client.sync(&asked) => answer,
                // Something ended: it is reported now, and not when the wait is over.
                () = self.in_flight.moved.notified(), if update.reports() == 0 => continue,
            };
            match self.take(Exchanged { update, answer }) {
                Ok(_) => failures = 0,
                Err(error) if error.is_passing() => {
                    failures += 1;
                    tokio::time::sleep(backoff(failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// What an answer asks for besides its attempts.
enum Next {
    Drain,
    After(Duration),
}

fn backoff(failures: u32) -> Duration {
    (BACKOFF * (1 << failures.saturating_sub(1).min(10))).min(BACKOFF_MAX)
}

/// Executes one attempt, to its end or until it is to stop.
async fn execute(
    worker: Arc<Worker>,
    in_flight: Arc<InFlight>,
    attempt: Attempt,
    mut stopped: watch::Receiver<Option<Stop>>,
) {
    let function = match &attempt.handler {
        Some(name) => worker.handlers.get(name),
        None => worker.kinds.get(&attempt.kind),
    };
    let Some(function) = function else {
        return in_flight.end(&attempt, Some(Outcome::HandedBack));
    };
    let (stop, asked) = watch::channel(false);
    let listens = Arc::new(AtomicBool::new(false));
    let call = Call::new(attempt.clone(), Arc::clone(&in_flight), asked, Arc::clone(&listens));
    let going = AssertUnwindSafe(function(call)).catch_unwind();
    tokio::pin!(going);
    let limit = attempt.timeout_ms.map(Duration::from_millis);
    let deadline = after(limit);
    tokio::pin!(deadline);
    let mut grace = Box::pin(after(None));
    let outcome = loop {
        tokio::select! {
            biased;
            ended = &mut going => break Some(ended.unwrap_or_else(|panic| panicked(panic.as_ref()))),
            stop_asked = next_stop(&mut stopped) => match stop_asked {
                Stop::Lost => break None,
                Stop::HandBack => break Some(Outcome::HandedBack),
                Stop::Cancel { .. } if !attempt.cancelable => {}
                Stop::Cancel { grace_ms } if listens.load(Ordering::Relaxed) => {
                    stop.send_replace(true);
                    grace = Box::pin(after(Some(Duration::from_millis(grace_ms))));
                }
                Stop::Cancel { .. } => break Some(Outcome::Cancelled),
            },
            () = &mut deadline => break Some(timed_out()),
            () = &mut grace => break Some(Outcome::Cancelled),
        }
    };
    in_flight.end(&attempt, outcome);
}

async fn next_stop(stopped: &mut watch::Receiver<Option<Stop>>) -> Stop {
    loop {
        if stopped.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Some(stop) = *stopped.borrow_and_update() {
            return stop;
        }
    }
}

async fn after(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

fn failed(kind: &str, message: String) -> Outcome {
    Outcome::Failed(AttemptError {
        kind: Some(kind.to_owned()),
        message,
        status: None,
        retry_after_ms: None,
        retry: None,
    })
}

fn timed_out() -> Outcome {
    failed("timeout", "it did not end within its time".to_owned())
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Outcome {
    let message = panic.downcast_ref::<&str>().map(ToString::to_string);
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    failed("panic", message.unwrap_or_else(|| "it panicked".to_owned()))
}
