//! Attempts that have ended and wait to be settled.
//!
//! They survive an outage of the store here: nothing leaves before the store
//! has answered for it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use crate::catalog::JobVersion;
use jiff::Timestamp;
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
    /// It took a place among those that execute.
    pub executed: bool,
}

#[derive(Debug, Default)]
pub struct Outbox {
    waiting: Mutex<VecDeque<Ended>>,
}

impl Outbox {
    pub fn push(&self, ended: Vec<Ended>) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).extend(ended);
    }

    /// Takes up to `most`, oldest first, and says how many are left.
    pub fn take(&self, most: usize) -> (Vec<Ended>, usize) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.len().min(most);
        (waiting.drain(..count).collect(), waiting.len())
    }

    pub fn len(&self) -> usize {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
