//! Upkeep: has the store keep itself in order, slice by slice.
//!
//! Roll-ups are folded, indexes put in order, what is too old goes. A slice is
//! short, and the next comes at once only while there is more to do.
//!
//! What is too old is judged by the clock, and as [`Ahead`] has it that is believed later
//! where it was set ahead: for as long as batches are kept.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    clock::Ahead,
    store::{StoreError, Tend},
};

use super::{PassReport, Stage};
use crate::node::Node;

pub struct Upkeep {
    node: Arc<Node>,
    ahead: Ahead,
}

impl Upkeep {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, ahead: Ahead::default() }
    }
}

#[async_trait]
impl Stage for Upkeep {
    fn name(&self) -> &'static str {
        "upkeep"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let options = &self.node.options;
        self.ahead.read(self.node.clock.uptime(), now, options.batches_keep);
        let next_at = Some(options.upkeep_every.after(now));
        if !self.node.territory.is_steward() {
            return Ok(PassReport { next_at, ..PassReport::idle() });
        }
        let ask = Tend {
            now,
            history_keep: self.ahead.kept(options.history_keep),
            skips_keep: self.ahead.kept(options.skips_keep),
            batches_keep: self.ahead.kept(options.batches_keep),
            audit_keep: self.ahead.kept(options.audit_keep),
        };
        let tended = self.node.store.tend(&ask).await?;
        let done = (tended.folded + tended.indexed + tended.purged) as usize;
        Ok(PassReport { done, more: tended.more, next_at })
    }
}
