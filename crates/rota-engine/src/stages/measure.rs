//! Measure: compares this node's clock with the one that is the truth.
//!
//! That is the store's clock, so that all nodes of one store agree whatever their
//! machines' clocks say, or the machine's where the store has none of its own. A
//! clock that was set is noticed by the next pass: the time changes at once, and
//! every stage is told (see the driver).
//!
//! What the comparison means is decided in [`rota_core::clock`].

use std::sync::{Arc, atomic::Ordering};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use rota_core::{duration::Span, ports::Clock, store::StoreError};

use super::{PassReport, Stage};
use crate::{clock::SystemClock, node::Node};

/// The clocks are compared so often.
const MEASURE_EVERY: Span = Span::secs(1);

pub struct Measure {
    node: Arc<Node>,
}

impl Measure {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node }
    }
}

/// Compares the clocks now. Whoever is to be judged by the time may follow a clock that was
/// set since this node last looked.
pub(super) async fn measure(node: &Node) -> Result<(), StoreError> {
    let Some(clock) = &node.system_clock else { return Ok(()) };
    let asked = clock.uptime();
    let set_by = match node.store.time().await.inspect_err(|_| clock.hold())? {
        Some(said) => clock.follow_store(asked, said),
        None => clock.follow_machine(),
    };
    node.rights.measured(asked);
    tell(node, clock, set_by);
    if set_by.is_some() {
        // Before anybody compares what was noted by the old clock with the new one.
        node.stepped(clock.now());
    }
    Ok(())
}

fn tell(node: &Node, clock: &SystemClock, set_by: Option<SignedDuration>) {
    let stats = &node.stats;
    stats.clock_offset.store(clock.machine_ahead().as_micros() as i64, Ordering::Relaxed);
    stats.clock_error.store(clock.error().as_micros() as i64, Ordering::Relaxed);
    if let Some(by) = set_by {
        stats.clock_steps.add(1);
        tracing::warn!(seconds = by.as_secs_f64(), "the clock was set; everything is timed anew by it");
    }
}

#[async_trait]
impl Stage for Measure {
    fn name(&self) -> &'static str {
        "measure"
    }

    async fn pass(&mut self, _now: Timestamp) -> Result<PassReport, StoreError> {
        let Some(clock) = &self.node.system_clock else { return Ok(PassReport::idle()) };
        measure(&self.node).await?;
        // By the clock as it is now: it may have been set by this very pass.
        Ok(PassReport::until(MEASURE_EVERY.after(clock.now())))
    }
}
