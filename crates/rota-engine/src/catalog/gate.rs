//! Which runs may start on this node, as of the last look.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use rota_core::{
    dispatch::Pair,
    ids::LaneId,
    lane::{Lane, LaneMode},
    store::{Pause, PauseTarget},
};

/// Which pairs may start runs on this node.
#[derive(Debug, Default)]
pub struct Gate {
    pub(super) lanes: HashMap<LaneId, Lane>,
    /// Lanes whose runs this node can execute.
    pub(super) able: HashSet<LaneId>,
    pub(super) pauses: HashMap<PauseTarget, Pause>,
}

impl Gate {
    /// Whether a run of this pair may start at `now`.
    pub fn open(&self, pair: Pair, now: Timestamp) -> bool {
        self.able.contains(&pair.lane) && self.is_running(pair, now)
    }

    /// Whether nobody has paused this pair, whoever may execute it.
    pub fn is_running(&self, pair: Pair, now: Timestamp) -> bool {
        if self.pauses.is_empty() {
            return true;
        }
        let queue = self.lanes.get(&pair.lane).map(|lane| lane.key.queue.clone()).unwrap_or_default();
        let targets = [PauseTarget::Tenant(pair.tenant), PauseTarget::Queue(pair.tenant, queue)];
        !targets.iter().any(|target| self.pauses.get(target).is_some_and(|pause| pause.holds(now)))
    }

    /// Every lane that is known here.
    pub fn lanes(&self) -> &HashMap<LaneId, Lane> {
        &self.lanes
    }

    pub fn mode(&self, lane: LaneId) -> Option<LaneMode> {
        self.lanes.get(&lane).map(|lane| lane.mode)
    }

    /// The lanes of a mode whose runs this node can execute.
    pub fn able(&self, mode: LaneMode) -> Vec<LaneId> {
        let mut lanes: Vec<_> = self.able.iter().copied().filter(|lane| self.mode(*lane) == Some(mode)).collect();
        lanes.sort_unstable();
        lanes
    }
}
