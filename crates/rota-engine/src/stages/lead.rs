//! Lead: says that this node lives, and takes the partitions that fall to it.
//!
//! Every live node computes the same owner for each partition (rendezvous
//! hashing), so nobody has to be asked. A node takes what falls to it when it
//! is free or its holder's lease ran out, and gives what falls to another at once.
//! A node that drains gives everything and sends no more heartbeats.
//!
//! Attempts in flight do not go with their partition. Before it is given they become
//! written leases of this node's worker, under the fences they began with: they go on
//! here, are extended and settled like any leased run, and are lost like one if this node
//! vanishes. The next owner leaves them alone.
//!
//! It is safe because taking raises the partition's epoch in the store: what a
//! former owner still does is refused there, whatever it believes. Nothing is begun in a
//! partition that is to be given away, and it is given only when the store has answered
//! for every attempt in it. For one
//! lease time after the store was away nobody is presumed dead, because nobody
//! could renew their lease. Before anybody is, the clocks are compared: a node that has
//! noticed that the store's clock was set back renews its lease by that clock.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::{NodeId, Partition},
    ports::Topic,
    store::{By, Epoch, Guarded, Node as NodeRow, NodeBeat, PartitionLease, RunningMark, StoreError, Write},
};
use xxhash_rust::xxh3::xxh3_64;

use super::{PassReport, Stage, is_unknown, measure::measure};
use crate::{
    events::Event,
    node::Node,
    planted::{self, Bug},
    runs::{Handover, OwnedAttempt},
};

/// Leases for attempts in flight.
struct PendingHandover {
    write: Write,
    marks: Vec<RunningMark>,
    /// The uptime when they were first asked for.
    began: Duration,
}

pub struct Lead {
    node: Arc<Node>,
    joined: bool,
    /// Leases asked for whose answer was lost.
    asked: Option<PendingHandover>,
    /// The uptime of the heartbeat that renewed the node's lease: it counts once the node knows
    /// what is its own.
    renewed: Option<Duration>,
}

impl Lead {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, joined: false, asked: None, renewed: None }
    }

    /// Whether others know of this node.
    pub fn has_joined(&self) -> bool {
        self.joined
    }

    async fn heartbeat(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let options = &self.node.options;
        if options.sole && !self.joined {
            for other in self.node.store.nodes(now).await? {
                self.node.store.leave(other.node).await?;
            }
        }
        // Others judge by the earliest that it may be: so its lease holds for at least
        // its length from here, by time that only goes on.
        let began = self.node.clock.uptime();
        let until = options.node_lease.after(self.node.clock.latest());
        let beat = NodeBeat { node: self.node.id, name: options.name.clone(), info: options.info.clone(), until };
        let known = self.node.store.beat(&beat, now).await?;
        if known == Guarded::Stale && self.joined {
            self.lose(&self.node.territory.parts());
        }
        if !self.joined || !self.node.rights.node_lease_holds() {
            self.node.rights.was_away();
        }
        if !std::mem::replace(&mut self.joined, true) {
            // Others have something to give.
            self.node.hints.wake(Topic::Partitions);
        }
        if self.node.rights.node_lease_holds() {
            self.node.rights.node_lease_renewed(began);
        } else {
            // Others may have taken its partitions meanwhile, and nothing may be begun in those.
            self.renewed = Some(began);
        }
        Ok(())
    }

    async fn share(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let live = self.node.store.nodes(now).await?;
        let stored = self.node.store.partitions().await?;
        self.drop_what_is_not_ours(&stored);
        if let Some(began) = self.renewed.take() {
            self.node.rights.node_lease_renewed(began);
        }
        let falls_to_me = |part: Partition| owner(&live, part) == Some(self.node.id);
        let (keep, give): (Vec<_>, Vec<_>) = Partition::all().partition(|part| falls_to_me(*part));
        self.stay(&keep);
        let taken = self.take(&keep, &stored, &live, now).await?;
        self.give_strays(&give, &stored).await?;
        self.give(&give, now).await?;
        let held = self.node.territory.parts().len();
        self.node.stats.partitions.set(held);
        Ok(taken)
    }

    /// What the store says is not ours (any more), is not.
    fn drop_what_is_not_ours(&self, stored: &[PartitionLease]) {
        let not_ours = |lease: &&PartitionLease| {
            self.node
                .territory
                .held(lease.part)
                .is_some_and(|held| lease.node != Some(self.node.id) || lease.epoch != held.epoch)
        };
        let lost: Vec<Partition> = stored.iter().filter(not_ours).map(|lease| lease.part).collect();
        self.lose(&lost);
    }

    async fn take(
        &self,
        keep: &[Partition],
        stored: &[PartitionLease],
        live: &[NodeRow],
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let alive: HashSet<NodeId> = live.iter().map(|node| node.node).collect();
        let quiet = self.node.rights.is_quiet(now);
        let to_be_had = |part: &Partition| match stored[usize::from(part.0)].node {
            None => true,
            Some(holder) if holder == self.node.id => self.node.territory.held(*part).is_none(),
            Some(holder) => !quiet && !alive.contains(&holder),
        };
        let mut wanted: Vec<Partition> = keep.iter().copied().filter(to_be_had).collect();
        let is_free = |part: &Partition| stored[usize::from(part.0)].node.is_none_or(|holder| holder == self.node.id);
        let mut now = now;
        if !wanted.iter().all(is_free) {
            // Its lease may have been renewed by a clock that was set back meanwhile.
            measure(&self.node).await?;
            now = self.node.clock.now();
            if self.node.rights.is_quiet(now) {
                wanted.retain(is_free);
            }
        }
        if wanted.is_empty() {
            return Ok(0);
        }
        let epochs = self.node.store.take_partitions(self.node.id, &wanted, now).await?;
        let taken: Vec<(Partition, Epoch)> =
            wanted.into_iter().zip(epochs).filter_map(|(part, epoch)| Some((part, epoch?))).collect();
        if !taken.is_empty() {
            self.node.territory.take(&taken, now);
            let parts: Vec<Partition> = taken.iter().map(|(part, _)| *part).collect();
            tracing::info!(node = %self.node.id, count = parts.len(), "took partitions");
            self.node.events.emit(|| Event::PartitionsTaken { parts });
            self.node.wake.owners();
        }
        Ok(taken.len())
    }

    /// What was to be given away and falls to this node again, because the other
    /// went, stays: nothing would be started in it for ever.
    fn stay(&self, keep: &[Partition]) {
        let is_leaving = |part: &Partition| self.node.territory.held(*part).is_some_and(|held| held.leaving);
        let staying: Vec<Partition> = keep.iter().copied().filter(is_leaving).collect();
        if !staying.is_empty() {
            self.node.territory.set_leaving(&staying, false);
            self.node.wake.owners();
        }
    }

    /// Gives away what falls to others.
    async fn give(&mut self, give: &[Partition], now: Timestamp) -> Result<(), StoreError> {
        let held: Vec<Partition> =
            give.iter().copied().filter(|part| self.node.territory.held(*part).is_some()).collect();
        if held.is_empty() {
            return Ok(());
        }
        self.keep_attempts(&held, now).await?;
        self.hand_over(&held).await?;
        self.node.hints.wake(Topic::Partitions);
        Ok(())
    }

    /// Leases the attempts in flight in these partitions, so that they can go without them.
    /// From here on none is begun there.
    async fn keep_attempts(&mut self, parts: &[Partition], now: Timestamp) -> Result<(), StoreError> {
        self.node.territory.set_leaving(parts, true);
        loop {
            let attempts = self.node.runs.begin_handover(parts, self.node.options.settle_batch);
            if attempts.is_empty() {
                return Ok(());
            }
            let mark = |OwnedAttempt { lease, part, epoch }: OwnedAttempt| {
                let started_at = self.node.executing.started_at(lease).unwrap_or(now);
                RunningMark { lease, part, epoch, started_at }
            };
            let mut marks: Vec<RunningMark> = attempts.into_iter().map(mark).collect();
            // In the order of their rows, as others lock them.
            marks.sort_unstable_by_key(|mark| mark.lease.run);
            let asked = PendingHandover { write: self.node.write(now), marks, began: self.node.clock.uptime() };
            self.ask(asked, false).await?;
        }
    }

    /// Asks again for leases whose answer was lost.
    async fn ask_again(&mut self) -> Result<(), StoreError> {
        match self.asked.take() {
            Some(asked) => self.ask(asked, true).await,
            None => Ok(()),
        }
    }

    async fn ask(&mut self, asked: PendingHandover, again: bool) -> Result<(), StoreError> {
        let node = Arc::clone(&self.node);
        let until = node.options.run_lease.after(node.clock.latest());
        match node.store.lease_running(&asked.write, node.worker, until, &asked.marks).await {
            Ok(answers) => {
                node.rights.leased(asked.began);
                self.take_answers(&asked.marks, &answers);
                Ok(())
            }
            Err(error) => {
                if again || is_unknown(&error) {
                    self.asked = Some(asked);
                } else {
                    node.runs.set_handover(asked.marks.iter().map(|mark| mark.lease), Handover::No);
                    node.resume_settling();
                }
                Err(error)
            }
        }
    }

    fn take_answers(&self, marks: &[RunningMark], answers: &[Guarded]) {
        let node = &self.node;
        let of = |applied: bool| {
            let fits = move |(_, answer): &(&RunningMark, &Guarded)| (**answer == Guarded::Applied) == applied;
            marks.iter().zip(answers).filter(fits).map(|(mark, _)| mark).collect::<Vec<&RunningMark>>()
        };
        let (leased, refused) = (of(true), of(false));
        node.runs.set_handover(leased.iter().map(|mark| mark.lease), Handover::Leased);
        for mark in leased {
            node.executing.leased(mark.lease);
        }
        node.runs.set_handover(refused.iter().map(|mark| mark.lease), Handover::Refused);
        node.runs.refuse(refused.iter().map(|mark| (mark.lease, By::Owner(mark.epoch))));
        // One that ended meanwhile is out of reach, and settled.
        for mark in refused {
            node.executing.lose(mark.lease);
        }
        node.resume_settling();
        // Whoever was asked to stop is told by the answer to an extension.
        node.compare_leases();
        node.wake.withdraw.notify_one();
    }

    /// Gives everything to others, and leaves their number: what falls to a node that
    /// sends heartbeats is taken by nobody else.
    async fn drain(&mut self, now: Timestamp) -> Result<(), StoreError> {
        self.ask_again().await?;
        if !self.joined {
            return self.node.store.nodes(now).await.map(drop);
        }
        self.keep_attempts(&self.node.territory.parts(), now).await?;
        self.leave().await?;
        self.joined = false;
        self.node.stats.partitions.set(0);
        Ok(())
    }

    /// A take whose answer was lost left partitions that the store has for this
    /// node and the node has not. Those that fall to it are taken again; nobody
    /// else can have the others for as long as it lives.
    async fn give_strays(&self, give: &[Partition], stored: &[PartitionLease]) -> Result<(), StoreError> {
        let of_part = |part: &Partition| stored[usize::from(part.0)];
        let is_stray =
            |lease: &PartitionLease| lease.node == Some(self.node.id) && self.node.territory.held(lease.part).is_none();
        let strays: Vec<(Partition, Epoch)> =
            give.iter().map(of_part).filter(is_stray).map(|lease| (lease.part, lease.epoch)).collect();
        if !strays.is_empty() {
            self.node.store.give_partitions(self.node.id, &strays).await?;
        }
        Ok(())
    }

    async fn hand_over(&self, parts: &[Partition]) -> Result<(), StoreError> {
        let held: Vec<(Partition, Epoch)> =
            parts.iter().filter_map(|part| Some((*part, self.node.territory.held(*part)?.epoch))).collect();
        if held.is_empty() {
            return Ok(());
        }
        self.node.store.give_partitions(self.node.id, &held).await?;
        self.lose(parts);
        Ok(())
    }

    fn lose(&self, parts: &[Partition]) {
        if parts.is_empty() {
            return;
        }
        self.node.territory.lose(parts);
        for lease in self.node.runs.forget_parts(parts) {
            if !planted::is(Bug::FlightsOutliveTheirPartition) {
                self.node.executing.lose(lease);
            }
        }
        let parts = parts.to_vec();
        tracing::info!(node = %self.node.id, count = parts.len(), "no longer holds partitions");
        self.node.events.emit(|| Event::PartitionsLost { parts });
        self.node.wake.owners();
    }

    /// Leaves: everything that is held is free at once.
    pub async fn leave(&mut self) -> Result<(), StoreError> {
        self.hand_over(&self.node.territory.parts()).await?;
        self.node.store.leave(self.node.id).await?;
        self.node.hints.wake(Topic::Partitions);
        Ok(())
    }
}

/// Who a partition falls to: the live node with the greatest hash.
fn owner(live: &[NodeRow], part: Partition) -> Option<NodeId> {
    let weight = |node: &NodeRow| {
        let mut bytes = node.node.0.as_bytes().to_vec();
        bytes.push(part.0);
        xxh3_64(&bytes)
    };
    live.iter().max_by_key(|node| (weight(node), node.node)).map(|node| node.node)
}

#[async_trait]
impl Stage for Lead {
    fn name(&self) -> &'static str {
        "lead"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        if !self.node.options.schedules {
            self.node.store.nodes(now).await.inspect_err(|_| self.node.rights.store_went_away())?;
            self.node.rights.store_is_there(now);
            return Ok(PassReport::until(self.node.options.heartbeat_every.after(now)));
        }
        if self.node.executing.is_draining() {
            self.drain(now).await.inspect_err(|_| self.node.rights.store_went_away())?;
            self.node.rights.store_is_there(now);
            return Ok(PassReport::until(self.node.options.heartbeat_every.after(now)));
        }
        self.heartbeat(now).await.inspect_err(|_| self.node.rights.store_went_away())?;
        self.node.rights.store_is_there(now);
        self.ask_again().await?;
        let done = self.share(now).await?;
        Ok(PassReport { done, more: false, next_at: Some(self.node.options.heartbeat_every.after(now)) })
    }
}

#[cfg(test)]
mod tests {
    use rota_core::ports::Seeded;

    use super::*;

    fn row(seed: u64) -> NodeRow {
        let now = Timestamp::from_second(1_767_607_200).unwrap();
        NodeRow { node: NodeId::new(&Seeded::new(seed), now), name: String::new(), info: String::new(), until: now }
    }

    /// A node that comes or goes must move its own share and nobody else's.
    #[test]
    fn a_node_that_leaves_moves_only_what_it_had() {
        let nodes = [row(1), row(2), row(3)];
        let before: Vec<_> = Partition::all().map(|part| owner(&nodes, part)).collect();
        let after: Vec<_> = Partition::all().map(|part| owner(&nodes[..2], part)).collect();
        for (before, after) in before.iter().zip(&after) {
            assert!(before == after || *before == Some(nodes[2].node));
        }
        for node in &nodes {
            let share = before.iter().filter(|owner| **owner == Some(node.node)).count();
            assert!((50..=120).contains(&share), "{share} of 256 for one of three");
        }
    }
}
