//! Attempts that have ended and wait to be settled.
//!
//! They survive an outage of the store here: nothing leaves before the store
//! has answered for it.

use std::{collections::VecDeque, sync::Arc};

use crate::catalog::JobVersion;
use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    run::{Change, Outcome, Run},
    store::By,
};

/// How a run left its executor's hands.
#[derive(Clone, Debug)]
pub enum End {
    Outcome(Outcome),
    /// It did not stop within its grace and was dropped.
    GraceOver,
    /// It is given back before it began.
    HandedBack,
    /// It was under way, and is given back unfinished.
    Stopped,
    /// The core has decided already: expired, lost.
    Decided(Box<Change>),
}

/// Who says that it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Its attempt, which took a place among those that this node executes.
    Executed,
    /// A remote worker, which waits to hear what became of its report.
    Reported,
    /// This node, which gives it back, or does not wait for its worker any more.
    Decided,
}

/// A run to be settled.
#[derive(Clone, Debug)]
pub struct Ended {
    /// As it was executed: running, or asked to stop.
    pub run: Run,
    pub by: By,
    pub end: End,
    pub at: Timestamp,
    /// None where nothing is left to decide.
    pub job: Option<Arc<JobVersion>>,
    pub origin: Origin,
}

impl Ended {
    /// The end of a run that this node decides about, and no attempt.
    pub fn decided(run: Run, by: By, end: End, at: Timestamp) -> Self {
        Self { run, by, end, at, job: None, origin: Origin::Decided }
    }
}

#[derive(Debug, Default)]
pub struct Outbox(Mutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    ended: VecDeque<Ended>,
    /// By what right these are settled is not known yet.
    held: Vec<Ended>,
}

impl Outbox {
    fn with<T>(&self, work: impl FnOnce(&mut Queues) -> T) -> T {
        work(&mut self.0.lock())
    }

    pub fn push(&self, ended: Vec<Ended>) {
        self.with(|queues| queues.ended.extend(ended));
    }

    /// Takes up to `most`, oldest first, and says how many are left to be taken.
    pub fn take(&self, most: usize) -> (Vec<Ended>, usize) {
        self.with(|queues| {
            let count = queues.ended.len().min(most);
            (queues.ended.drain(..count).collect(), queues.ended.len())
        })
    }

    /// Puts aside attempts whose lease was asked for, until the answer is there.
    pub fn hold(&self, ended: Vec<Ended>) {
        self.with(|queues| queues.held.extend(ended));
    }

    /// The answer is there: what was put aside may be settled.
    pub fn resume(&self) {
        self.with(|queues| queues.ended.extend(std::mem::take(&mut queues.held)));
    }

    /// Whether there is anything to take.
    pub fn has_ready(&self) -> bool {
        self.with(|queues| !queues.ended.is_empty())
    }

    /// How many are to be settled, those put aside among them.
    pub fn len(&self) -> usize {
        self.with(|queues| queues.ended.len() + queues.held.len())
    }
}
