//! Look: finds the ready runs that nobody handed to this node.
//!
//! Others leave a notice when they make a run ready, or ask one to stop, in a
//! partition of this node. A partition that was just taken is looked through:
//! what its former owner had marked as running is settled as lost, and what
//! lies queued is read, in order and as far as memory allows. What was there
//! before the taking may be what killed the former owner: it is a suspect, and
//! will be leased in writing before it is executed.
//!
//! A look clears a notice only after it has acted on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    dispatch::ClaimPlan,
    ids::{Partition, RunId},
    lane::LaneMode,
    run::{Outcome, Run, RunState},
    store::{By, Epoch, StoreError},
};

use super::{PassReport, Stage};
use crate::{
    executing::Why,
    node::Node,
    outbox::{End, Ended},
    runs::{CancelFound, ReadyRun},
};

/// Notices and inherited runs read in one go.
const BATCH: u32 = 1_000;

pub struct Look {
    node: Arc<Node>,
    /// Partitions whose former owner's runs have been seen to, by epoch.
    inherited: BTreeMap<Partition, Epoch>,
    generation: u64,
    full_at: Timestamp,
}

impl Look {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, inherited: BTreeMap::new(), generation: 0, full_at: Timestamp::MIN }
    }

    /// Settles as lost what former owners had marked. True when all is seen to.
    async fn inherit(&mut self, now: Timestamp) -> Result<bool, StoreError> {
        let table = self.node.territory.table();
        let held = |part: &Partition| table[usize::from(part.0)].map(|held| held.epoch);
        self.inherited.retain(|part, epoch| held(part) == Some(*epoch));
        let stays = |part: &Partition| table[usize::from(part.0)].is_some_and(|held| !held.leaving);
        let new: Vec<Partition> =
            Partition::all().filter(|part| stays(part) && !self.inherited.contains_key(part)).collect();
        if new.is_empty() {
            return Ok(true);
        }
        let found = self.node.store.inherited(&new, BATCH).await?;
        let all = found.len() < BATCH as usize;
        let mut ended = Vec::new();
        let mut unseen = BTreeSet::new();
        for run in found {
            let Some(by) = held(&run.part).map(By::Owner) else { continue };
            match run.lose(self.node.options.losses_max, now) {
                Ok(change) if self.node.runs.add(&run, by) => {
                    ended.push(Ended::decided(run, by, End::Decided(Box::new(change)), now));
                }
                // This node's own attempt from before is not out of the way yet.
                Ok(_) => drop(unseen.insert(run.part)),
                Err(_) => {}
            }
        }
        self.node.post(ended);
        if all {
            let seen = new.into_iter().filter(|part| !unseen.contains(part));
            self.inherited.extend(seen.filter_map(|part| Some((part, held(&part)?))));
        }
        Ok(all)
    }

    /// Every pair may have runs that memory does not know.
    async fn doubt_all(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let node = Arc::clone(&self.node);
        let generation = node.territory.generation();
        node.catalog.read_lanes(|key| node.is_able(key)).await?;
        let weights = node.catalog.read_tenants().await?;
        node.runs.weigh(&weights);
        let weigh =
            |plan: &mut ClaimPlan| weights.iter().for_each(|(tenant, weight)| plan.shares().weigh(*tenant, *weight));
        node.claims(weigh);
        node.remote.plan(weigh);
        let lanes = node.catalog.gate().able(LaneMode::Owned);
        if !lanes.is_empty() && !node.territory.is_empty() {
            let pairs = node.store.ready_pairs(&lanes).await?;
            node.runs.doubt(pairs.into_iter().map(|(pair, _)| pair));
        }
        node.runs.reopen();
        self.generation = generation;
        self.full_at = node.options.full_look_every.after(now);
        Ok(())
    }

    fn known(&self, run: Run) -> ReadyRun {
        let taken_at = self.node.territory.held(run.part).map(|held| held.taken_at);
        let was_there = taken_at.is_some_and(|taken_at| run.created_at <= taken_at);
        // The clock was set back since it was created, so nobody can say whether it was.
        let is_ahead = run.created_at > self.node.clock.latest();
        ReadyRun { run, suspect: was_there || is_ahead }
    }

    /// Acts on what others left notices of. True when there may be more.
    async fn notices(&mut self, now: Timestamp) -> Result<(usize, bool), StoreError> {
        // Those of a partition that is being given away are left to its next owner.
        let (asked_in, parts) = (self.node.territory.generation(), self.node.territory.staying());
        let found = self.node.store.notices(&parts, BATCH).await?;
        let more = found.len() >= BATCH as usize;
        let gate = self.node.catalog.gate();
        if found.iter().any(|run| gate.mode(run.lane).is_none()) {
            // A lane that another node has opened since.
            let node = &self.node;
            node.catalog.read_lanes(|key| node.is_able(key)).await?;
            node.runs.reopen();
        }
        let mut seen: Vec<(Partition, RunId)> = Vec::with_capacity(found.len());
        let (mut ready, mut ended) = (Vec::new(), Vec::new());
        for run in found {
            let key = (run.part, run.id);
            match run.state {
                RunState::Queued => ready.push(self.known(run)),
                RunState::Cancelling { .. } => ended.extend(self.cancel(run, now)),
                RunState::Scheduled
                | RunState::Blocked(_)
                | RunState::Running { .. }
                | RunState::Waiting { .. }
                | RunState::Finished { .. } => {}
            }
            seen.push(key);
        }
        let done = seen.len();
        if !ready.is_empty() {
            self.node.runs.offer(ready, asked_in, &self.node.territory);
            self.node.wake.dispatch.notify_one();
        }
        self.node.post(ended);
        if !seen.is_empty() {
            self.node.store.clear_notices(&seen).await?;
        }
        Ok((done, more && done > 0))
    }

    /// A run was asked to stop: its attempt is told, or it ends before it began.
    fn cancel(&self, run: Run, now: Timestamp) -> Option<Ended> {
        match self.node.runs.cancel(&run, &self.node.territory)? {
            CancelFound::InFlight => {
                let grace_until = run.cancel.as_ref().map_or(now, |cancel| cancel.grace_until);
                if !self.node.executing.stop(run.id, Why::Cancelled { grace_until }) {
                    // It is on its way to start, or to be settled.
                    self.node.wake.dispatch.notify_one();
                }
                None
            }
            CancelFound::Here(by) => Some(Ended::decided(run, by, End::Outcome(Outcome::Cancelled), now)),
        }
    }

    /// Reads the stretches that have run low.
    async fn read(&mut self) -> Result<usize, StoreError> {
        let windows = self.node.runs.wanted();
        if windows.is_empty() {
            return Ok(0);
        }
        let (asked_in, parts) = (self.node.territory.generation(), self.node.territory.parts());
        let found = self.node.store.own(&parts, &windows).await?;
        let mut done = 0;
        for (window, runs) in windows.iter().zip(found) {
            done += runs.len();
            let runs = runs.into_iter().map(|run| self.known(run)).collect();
            self.node.runs.read(window, runs, asked_in, &self.node.territory);
        }
        if done > 0 {
            self.node.wake.dispatch.notify_one();
        }
        Ok(done)
    }
}

#[async_trait]
impl Stage for Look {
    fn name(&self) -> &'static str {
        "look"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        if !self.node.read_pauses().await? && !self.node.catalog.pauses().pauses.is_empty() {
            // One of them may have run out.
            self.node.runs.reopen();
            self.node.wake.starters();
        }
        let all_inherited = self.inherit(now).await?;
        if now >= self.full_at || self.generation != self.node.territory.generation() {
            self.doubt_all(now).await?;
        }
        let (seen, more) = if self.node.territory.is_empty() { (0, false) } else { self.notices(now).await? };
        let read = self.read().await?;
        self.node.stats.backlog.set(self.node.runs.len());
        let next_at = Some(self.node.options.look_every.after(now));
        // What is being settled as lost would be read again at once.
        let more = more || (read > 0 && self.node.runs.is_low()) || (!all_inherited && self.node.outbox.len() == 0);
        Ok(PassReport { done: seen + read, more, next_at })
    }

    fn stepped(&mut self, _now: Timestamp) {
        self.full_at = Timestamp::MIN;
    }
}
