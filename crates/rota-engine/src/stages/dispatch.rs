//! Dispatch: starts the ready runs of owned lanes, out of memory.
//!
//! A pass takes as many runs from the ready queue as there is room for, fairly and in
//! order, and sends them on their way. Nothing is written for an ordinary run:
//! the partition's epoch is its fence. Nothing is started once this node's lease
//! is about to run out, because another may own the partition soon.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::store::StoreError;

use super::{PassReport, Stage};
use crate::{
    launch::{Launch, overdue},
    node::Node,
    outbox::Ended,
};

pub struct Dispatch {
    node: Arc<Node>,
    launch: Launch,
}

impl Dispatch {
    pub fn new(node: Arc<Node>) -> Self {
        Self { launch: Launch::new(Arc::clone(&node)), node }
    }

    /// Ends what was not started by its deadline. Only the owner may, and it
    /// does so although the run may be paused and never taken.
    fn expire(&self, now: Timestamp) -> usize {
        let expired = self.node.runs.take_expired(now, self.node.options.dispatch_batch, &self.node.territory);
        let ended: Vec<Ended> = expired.into_iter().filter_map(|ready| overdue(&ready.run, ready.by, now)).collect();
        let count = ended.len();
        self.node.post(ended);
        count
    }

    fn next_at(&self) -> Option<Timestamp> {
        [self.launch.next_at(), self.node.runs.next_deadline()].into_iter().flatten().min()
    }
}

#[async_trait]
impl Stage for Dispatch {
    fn name(&self) -> &'static str {
        "dispatch"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        if self.node.executing.is_draining() {
            self.launch.hand_back(now);
            return Ok(PassReport::idle());
        }
        let mut done = self.expire(now);
        done += self.launch.go_on(now).await?;
        if self.node.rights.owns_until() < self.node.clock.uptime() {
            return Ok(PassReport { done, more: false, next_at: Some(self.node.options.heartbeat_every.after(now)) });
        }
        let room = self.launch.room();
        let gate = self.node.catalog.gate();
        let taken = self.node.runs.take(room, &self.node.territory, |pair| gate.open(pair, now));
        let full = room > 0 && taken.len() >= room;
        if self.node.runs.is_low() {
            self.node.wake.look.notify_one();
        }
        done += self.launch.start(taken, now).await?;
        Ok(PassReport { done, more: full, next_at: self.next_at() })
    }

    fn stepped(&mut self, now: Timestamp) {
        self.launch.stepped(now);
    }
}
