//! What the handlers of all processes did, written down by themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use rota_core::{duration::Span, ids::RunId, ports::Clock};
use rota_engine::executors::{Call, HandlerError};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What a handler said at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Done,
    Failed,
    Never,
}

#[derive(Debug, Default)]
pub struct Pages {
    /// Every beginning: the run, its attempt, the process.
    pub begun: Vec<(RunId, u16, usize)>,
    pub said: BTreeMap<RunId, Vec<(u16, Said)>>,
    /// Processes that a run is about to kill, and by which.
    pub doomed: BTreeMap<usize, RunId>,
    pub deaths: BTreeMap<RunId, usize>,
    pub dead: BTreeSet<usize>,
}

/// See the module.
pub struct Ledger {
    seed: u64,
    pages: Mutex<Pages>,
}

/// How an attempt goes.
enum Course {
    Done,
    DoneAfter(u64),
    Failed,
    Again(u64),
    Never,
    /// Ends early when asked to stop, as a failure.
    Polite(u64),
}

impl Ledger {
    pub fn new(seed: u64) -> Self {
        Self { seed, pages: Mutex::default() }
    }

    pub fn read<T>(&self, look: impl FnOnce(&Pages) -> T) -> T {
        look(&self.pages.lock().unwrap())
    }

    pub fn write<T>(&self, change: impl FnOnce(&mut Pages) -> T) -> T {
        change(&mut self.pages.lock().unwrap())
    }

    fn course(&self, run: RunId, attempt: u16) -> Course {
        let mut bytes = run.0.as_bytes().to_vec();
        bytes.extend(attempt.to_le_bytes());
        let chance = xxh3_64_with_seed(&bytes, self.seed);
        let millis = (chance >> 32) % 2_500;
        match chance % 100 {
            0..42 => Course::Done,
            42..60 => Course::DoneAfter(100 + millis),
            60..66 => Course::DoneAfter(4_000 + millis * 2),
            66..80 => Course::Failed,
            80..84 => Course::Never,
            84..90 => Course::Again(300 + millis),
            _ => Course::Polite(1_000 + millis * 3),
        }
    }

    fn begun(&self, process: usize, call: &Call) {
        self.write(|pages| pages.begun.push((call.run(), call.attempt, process)));
    }

    fn say(&self, process: usize, call: &Call, said: Said) {
        self.write(|pages| {
            if !pages.dead.contains(&process) {
                pages.said.entry(call.run()).or_default().push((call.attempt, said));
            }
        });
    }

    /// A handler that behaves as chance has it, the same for the same attempt.
    pub async fn act(
        self: Arc<Self>,
        process: usize,
        clock: Arc<dyn Clock>,
        call: Call,
    ) -> Result<Value, HandlerError> {
        self.begun(process, &call);
        let sleep = |millis| {
            let until = Span::millis(millis).after(clock.now());
            let clock = Arc::clone(&clock);
            async move { clock.sleep_until(until).await }
        };
        let answer = match self.course(call.run(), call.attempt) {
            Course::Done => Ok(Value::Null),
            Course::DoneAfter(millis) => {
                sleep(millis).await;
                Ok(Value::from(millis))
            }
            Course::Failed => Err((Said::Failed, HandlerError::new("no luck"))),
            Course::Again(millis) => Err((Said::Failed, HandlerError::retry_after("not now", Span::millis(millis)))),
            Course::Never => Err((Said::Never, HandlerError::never_again("never"))),
            Course::Polite(millis) => {
                let mut cancelled = call.cancelled();
                tokio::select! {
                    biased;
                    () = cancelled.asked() => Err((Said::Failed, HandlerError::new("told to stop"))),
                    () = sleep(millis) => Ok(Value::Null),
                }
            }
        };
        match answer {
            Ok(value) => {
                self.say(process, &call, Said::Done);
                Ok(value)
            }
            Err((said, error)) => {
                self.say(process, &call, said);
                Err(error)
            }
        }
    }

    /// A handler that kills its process.
    pub async fn poison(self: Arc<Self>, process: usize, call: Call) -> Result<Value, HandlerError> {
        self.begun(process, &call);
        self.write(|pages| pages.doomed.insert(process, call.run()));
        std::future::pending().await
    }
}
