//! What the tests of the executors share: an attempt, a clock that stands
//! still, and a log that is kept.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    task::{Poll, Waker},
};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::{JobId, RunId, TenantId},
    job::{failure::Failure, step::Step},
    ports::{Attempt, Clock, Context, Progress, Reports, Stream},
    run::{Fence, Lease, Outcome},
};
use serde_json::{Value, json};

pub const RUN: &str = "00000000-0000-7000-8000-000000000007";

/// An attempt at a step written as in a document, such as `{"http": {...}}`.
pub fn attempt(kind: &Value) -> Attempt {
    let mut step = kind.clone();
    step["id"] = json!("s");
    let step: Step = serde_json::from_value(step).unwrap();
    Attempt {
        lease: Lease { run: RunId(RUN.parse().unwrap()), fence: Fence(3) },
        number: 2,
        tenant: TenantId(1),
        job: JobId(42),
        version: 1,
        step: step.kind,
        payload: Value::Null,
        deadline_at: None,
        traceparent: None,
    }
}

/// Stands still until it is moved; nobody who sleeps by it ever wakes.
#[derive(Default)]
pub struct StillClock(AtomicI64);

impl StillClock {
    pub const START: i64 = 1_763_000_000;

    pub fn move_by(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

#[async_trait]
impl Clock for StillClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(Self::START + self.0.load(Ordering::Relaxed)).unwrap()
    }

    async fn sleep_until(&self, _: Timestamp) {
        std::future::pending::<()>().await;
    }
}

/// Keeps what is reported.
#[derive(Default)]
pub struct Kept {
    pub lines: Mutex<Vec<(Stream, String)>>,
    pub said: tokio::sync::Notify,
}

impl Kept {
    pub fn texts(&self, stream: Stream) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|(of, _)| *of == stream).map(|(_, text)| text.clone()).collect()
    }
}

impl Reports for Kept {
    fn log(&self, stream: Stream, text: &str) {
        self.lines.lock().unwrap().push((stream, text.to_owned()));
        self.said.notify_one();
    }

    fn progress(&self, _: Progress) {}
}

pub struct World {
    pub clock: Arc<StillClock>,
    pub log: Arc<Kept>,
    pub context: Context,
}

pub fn world() -> World {
    let (clock, log) = (Arc::new(StillClock::default()), Arc::new(Kept::default()));
    let context = Context { clock: Arc::<StillClock>::clone(&clock), reports: Arc::<Kept>::clone(&log) };
    World { clock, log, context }
}

pub fn output(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Succeeded { output: Some(output) } => serde_json::from_str(output).unwrap(),
        other => panic!("{other:?}"),
    }
}

pub fn failure(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

/// What a future answers without waiting, if it does.
pub fn at_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
