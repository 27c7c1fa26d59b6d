//! Tend: gives upkeep its slices.
//!
//! Roll-ups are folded, indexes put in order, what is too old goes. A slice is
//! short, and the next comes at once only while there is more to do.
//!
//! What is too old is judged by the clock, and a clock that is set ahead makes everything
//! old at once: history, and the batches whose lost answers may still be asked for. By as
//! much as it was set everything is kept for longer, until the clock has stood for as long
//! as batches are kept, or is put right.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use rota_core::{
    duration::Span,
    store::{StoreError, Tend as TendAsk},
};

use super::{PassReport, Stage};
use crate::node::Node;

pub struct Tend {
    node: Arc<Node>,
    /// The uptime and the time of the last pass.
    last: Option<(Duration, Timestamp)>,
    /// By how much the clock was set ahead lately, and the uptime from which it is believed.
    ahead: SignedDuration,
    believed_from: Duration,
}

impl Tend {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, last: None, ahead: SignedDuration::ZERO, believed_from: Duration::ZERO }
    }

    /// How long something is kept, by a clock that may have been set ahead.
    fn kept(&self, keep: Span) -> Span {
        Span::millis(keep.as_millis().saturating_add(u64::try_from(self.ahead.as_millis()).unwrap_or(0)))
    }
}

#[async_trait]
impl Stage for Tend {
    fn name(&self) -> &'static str {
        "tend"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let uptime = self.node.clock.uptime();
        self.last = Some((uptime, now));
        if self.believed_from <= uptime {
            self.ahead = SignedDuration::ZERO;
        }
        let options = &self.node.options;
        let next_at = Some(options.tend_every.after(now));
        if !self.node.territory.is_steward() {
            return Ok(PassReport { next_at, ..PassReport::idle() });
        }
        let ask = TendAsk {
            now,
            history_keep: self.kept(options.history_keep),
            skips_keep: self.kept(options.skips_keep),
            batches_keep: self.kept(options.batches_keep),
            audit_keep: self.kept(options.audit_keep),
        };
        let tended = self.node.store.tend(&ask).await?;
        let done = (tended.folded + tended.indexed + tended.purged) as usize;
        Ok(PassReport { done, more: tended.more, next_at })
    }

    fn stepped(&mut self, now: Timestamp) {
        let uptime = self.node.clock.uptime();
        let Some((then, said)) = self.last.replace((uptime, now)) else { return };
        let Ok(went_on) = SignedDuration::try_from(uptime.saturating_sub(then)) else { return };
        let set_by = said.duration_until(now).saturating_sub(went_on);
        self.ahead = self.ahead.saturating_add(set_by).max(SignedDuration::ZERO);
        if set_by.is_positive() {
            self.believed_from = uptime + Duration::from_millis(self.node.options.batches_keep.as_millis());
        }
    }
}
