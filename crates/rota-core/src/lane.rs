//! Lanes: where runs wait for someone who can execute them.
//!
//! Queue, handler and required traits resolve to a lane when a run is made
//! ready. A lane keeps its mode for ever; changing how a queue is worked
//! retires its lane and opens another, so no run is ever both owned and
//! claimed, however stale a node's memory.

use serde::{Deserialize, Serialize};

use crate::ids::LaneId;

/// Who may start the runs of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneMode {
    /// The owner of the run's partition, from memory; its epoch is the fence.
    Owned,
    /// Any worker, by a written lease.
    Claimed,
}

/// What tells one lane from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaneKey {
    pub queue: String,
    /// The handler's name, or none for the built-in steps.
    pub handler: Option<String>,
    /// Sorted, without repeats.
    pub requires: Vec<String>,
}

impl LaneKey {
    pub fn new(queue: &str, handler: Option<&str>, requires: &[String]) -> Self {
        let mut requires = requires.to_vec();
        requires.sort();
        requires.dedup();
        Self { queue: queue.into(), handler: handler.map(Into::into), requires }
    }
}

/// What a worker can execute.
#[derive(Clone, Copy, Debug)]
pub struct Offered<'a> {
    /// Empty for all.
    pub queues: &'a [String],
    pub traits: &'a [String],
    pub handlers: &'a [String],
    /// Some built-in kind of step. Lanes do not tell the kinds apart: what a worker
    /// does not execute comes back.
    pub built_in: bool,
}

impl Offered<'_> {
    /// Whether the runs of a lane may be for such a worker.
    pub fn takes(&self, lane: &LaneKey) -> bool {
        let queue = self.queues.is_empty() || self.queues.contains(&lane.queue);
        let work = lane.handler.as_ref().map_or(self.built_in, |name| self.handlers.contains(name));
        queue && work && lane.requires.iter().all(|wanted| self.traits.contains(wanted))
    }
}

/// A lane as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    pub id: LaneId,
    pub key: LaneKey,
    pub mode: LaneMode,
    /// A retired lane drains; new runs go to its successor.
    pub retired: bool,
}
