//! Sweep: ends or wakes what has waited long enough.
//!
//! Start deadlines, graces and sleeps of runs that nobody holds in memory. The
//! runs of owned lanes are left to their owner, who alone knows whether one has
//! begun.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ports::Topic,
    store::{StoreError, Write},
};

use super::{PassReport, Stage, is_unknown};
use crate::node::Node;

pub struct Sweep {
    node: Arc<Node>,
    pending: Option<Write>,
}

impl Sweep {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, pending: None }
    }
}

#[async_trait]
impl Stage for Sweep {
    fn name(&self) -> &'static str {
        "sweep"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let node = &self.node;
        let next_at = Some(node.options.sweep_every.after(now));
        if self.pending.is_none() && !node.territory.is_steward() {
            return Ok(PassReport { next_at, ..PassReport::idle() });
        }
        let write = self.pending.take().unwrap_or_else(|| node.write(now));
        let limit = node.options.sweep_batch;
        let swept = match node.store.sweep(&write, limit).await {
            Ok(swept) => swept,
            Err(error) => {
                if is_unknown(&error) {
                    self.pending = Some(write);
                }
                return Err(error);
            }
        };
        node.stats.swept.add(swept.len());
        node.ended_by(&write);
        if !swept.is_empty() {
            for topic in [Topic::Ready, Topic::Schedules] {
                node.hints.wake(topic);
            }
        }
        Ok(PassReport { done: swept.len(), more: swept.len() >= limit as usize, next_at })
    }
}
