//! Tend: gives upkeep its slices.
//!
//! Roll-ups are folded, indexes put in order, what is too old goes. A slice is
//! short, and the next comes at once only while there is more to do.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::store::{StoreError, Tend as TendAsk};

use super::{PassReport, Stage};
use crate::node::Node;

pub struct Tend {
    node: Arc<Node>,
}

impl Tend {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node }
    }
}

#[async_trait]
impl Stage for Tend {
    fn name(&self) -> &'static str {
        "tend"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let options = &self.node.options;
        let next_at = Some(options.tend_every.after(now));
        if !self.node.territory.is_steward() {
            return Ok(PassReport { next_at, ..PassReport::idle() });
        }
        let ask = TendAsk {
            now,
            history_keep: options.history_keep,
            skips_keep: options.skips_keep,
            batches_keep: options.batches_keep,
            audit_keep: options.audit_keep,
        };
        let tended = self.node.store.tend(&ask).await?;
        let done = (tended.folded + tended.indexed + tended.purged) as usize;
        Ok(PassReport { done, more: tended.more, next_at })
    }
}
