//! Promote: makes delayed runs and retries ready when their time has come.
//!
//! Only the owner of a partition promotes in it, so what becomes ready is
//! handed over in the answer. The next instant is known from the last pass and
//! from what this node delays itself; others leave a hint.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::Partition,
    store::{StoreError, Write},
};

use super::{PassReport, Stage, is_unknown};
use crate::node::Node;

pub struct Promote {
    node: Arc<Node>,
    last_at: Option<Timestamp>,
    /// When the store's next delayed run is ready, and what it was asked for.
    next_at: Option<Timestamp>,
    generation: u64,
    doubted: bool,
    pending: Option<(Write, Vec<Partition>)>,
}

impl Promote {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, last_at: None, next_at: None, generation: 0, doubted: true, pending: None }
    }

    /// The next instant worth a pass; never two looks within the gap.
    fn due_at(&self, now: Timestamp) -> Timestamp {
        let Some(last_at) = self.last_at else { return now };
        let look = Span::millis(self.node.options.look_every.as_millis() * 5).after(last_at);
        let next = [self.next_at, self.node.coming.next_delayed()].into_iter().flatten().fold(look, Timestamp::min);
        let moved = self.doubted || self.generation != self.node.territory.generation();
        let next = if moved { now } else { next };
        next.max(self.node.options.promote_gap.after(last_at))
    }
}

#[async_trait]
impl Stage for Promote {
    fn name(&self) -> &'static str {
        "promote"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let due_at = self.due_at(now);
        if now < due_at && self.pending.is_none() {
            return Ok(PassReport::until(due_at));
        }
        let generation = self.node.territory.generation();
        let (write, parts) = self.pending.take().unwrap_or_else(|| (self.node.write(now), self.node.territory.parts()));
        if parts.is_empty() {
            (self.generation, self.doubted) = (generation, false);
            return Ok(PassReport::idle());
        }
        let told = self.node.coming.take_delayed();
        let limit = self.node.options.promote_batch;
        let promoted = match self.node.store.promote(&write, &parts, limit).await {
            Ok(promoted) => promoted,
            Err(error) => {
                if let Some(at) = told {
                    self.node.delayed(at);
                }
                if is_unknown(&error) {
                    self.pending = Some((write, parts));
                }
                return Err(error);
            }
        };
        (self.generation, self.doubted) = (generation, false);
        (self.last_at, self.next_at) = (Some(now), promoted.next_at);
        self.node.stats.promoted.add(promoted.moved);
        self.node.woken(&write, promoted.woken);
        let more = promoted.moved >= limit as usize;
        if more {
            self.last_at = None;
        }
        Ok(PassReport { done: promoted.moved, more, next_at: Some(self.due_at(now)) })
    }

    fn doubt(&mut self) {
        self.doubted = true;
    }

    fn stepped(&mut self, _now: Timestamp) {
        (self.last_at, self.doubted) = (None, true);
    }
}
