//! What the handlers of all processes did, written down by themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use rota_core::{duration::Span, ids::RunId, ports::Clock, run::Lease};
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

/// An attempt that a process began.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub number: u64,
    pub lease: Lease,
    pub process: usize,
}

/// An attempt is under way until this is dropped.
struct UnderWay {
    ledger: Arc<Ledger>,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.ledger.write(|pages| pages.under_way.remove(&self.number));
    }
}

#[derive(Debug, Default)]
pub struct Pages {
    /// What was begun and nobody has looked at.
    pub begun: Vec<Start>,
    starts: u64,
    /// Attempts under way, by their number.
    pub under_way: BTreeSet<u64>,
    pub said: BTreeMap<RunId, Vec<(u16, Said)>>,
    /// Processes that a run is about to kill, and by which.
    pub doomed: BTreeMap<usize, RunId>,
    pub deaths: BTreeMap<RunId, usize>,
    pub dead: BTreeSet<usize>,
    /// Processes that stand still.
    frozen: BTreeSet<usize>,
    /// Attempts of `exclusive` jobs that are under way, by process.
    alone: BTreeMap<RunId, Vec<(usize, u16)>>,
    /// Two of them, at the same time.
    pub together: Option<String>,
}

impl Pages {
    fn compare(&mut self, run: RunId) {
        let Some(attempts) = self.alone.get(&run) else { return };
        let is_going = |process: &usize| !self.dead.contains(process) && !self.frozen.contains(process);
        let going: Vec<_> = attempts.iter().filter(|(process, _)| is_going(process)).collect();
        if going.len() > 1 && self.together.is_none() {
            self.together = Some(format!("exclusive attempts of run {run} are under way at once: {going:?}"));
        }
    }
}

/// An attempt of an `exclusive` job, as long as it is under way.
struct Going {
    ledger: Arc<Ledger>,
    run: RunId,
    attempt: (usize, u16),
}

impl Drop for Going {
    fn drop(&mut self) {
        self.ledger.write(|pages| {
            if let Some(attempts) = pages.alone.get_mut(&self.run) {
                attempts.retain(|attempt| *attempt != self.attempt);
            }
        });
    }
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

    fn begun(self: &Arc<Self>, process: usize, call: &Call) -> UnderWay {
        let number = self.write(|pages| {
            pages.starts += 1;
            let number = pages.starts;
            pages.begun.push(Start { number, lease: call.lease, process });
            pages.under_way.insert(number);
            number
        });
        UnderWay { ledger: Arc::clone(self), number }
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
        let _under_way = self.begun(process, &call);
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

    /// The same, for a job that is `exclusive`.
    pub async fn alone(
        self: Arc<Self>,
        process: usize,
        clock: Arc<dyn Clock>,
        call: Call,
    ) -> Result<Value, HandlerError> {
        let (run, attempt) = (call.run(), (process, call.attempt));
        self.write(|pages| {
            pages.alone.entry(run).or_default().push(attempt);
            pages.compare(run);
        });
        let going = Going { ledger: Arc::clone(&self), run, attempt };
        let answer = self.act(process, clock, call).await;
        drop(going);
        answer
    }

    /// A process stands still, or goes on.
    pub fn freeze(&self, process: usize, frozen: bool) {
        self.write(|pages| {
            if frozen {
                pages.frozen.insert(process);
                return;
            }
            pages.frozen.remove(&process);
            for run in pages.alone.keys().copied().collect::<Vec<_>>() {
                pages.compare(run);
            }
        });
    }

    /// A handler that kills its process.
    pub async fn poison(self: Arc<Self>, process: usize, call: Call) -> Result<Value, HandlerError> {
        let _under_way = self.begun(process, &call);
        self.write(|pages| pages.doomed.insert(process, call.run()));
        std::future::pending().await
    }
}
