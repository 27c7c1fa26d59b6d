//! The stages, one verb per file, in the order work flows.
//!
//! A stage is one pass that takes nothing but the time: a hint may bring it
//! forward but never tells it what to do. A pass has no loop around it and
//! never sleeps; a pass that was refused by the store leaves everything as it
//! was, or remembers the one write whose answer it must ask for again.

pub mod admit;
pub mod assign;
pub mod chain;
pub mod claim;
pub mod dispatch;
pub mod fire;
pub mod forward;
pub mod heartbeat;
pub mod lead;
pub mod look;
pub mod measure;
pub mod promote;
pub mod reap;
pub mod scan;
pub mod settle;
pub mod sweep;
pub mod upkeep;
pub mod withdraw;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::store::StoreError;

/// What a pass did, and when the next one is worth while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassReport {
    /// How many things it moved on.
    pub done: usize,
    /// There is more to do at once.
    pub more: bool,
    /// When to come again if nobody calls before.
    pub next_at: Option<Timestamp>,
}

impl PassReport {
    /// Nothing to do until somebody calls.
    pub fn idle() -> Self {
        Self::default()
    }

    /// Nothing more until `at`.
    pub fn until(at: Timestamp) -> Self {
        Self { next_at: Some(at), ..Self::default() }
    }
}

/// One verb of the engine.
#[async_trait]
pub trait Stage: Send {
    fn name(&self) -> &'static str;

    /// One pass at `now`.
    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError>;

    /// A hint was heard: what this stage remembers of the store may be out of
    /// date.
    fn doubt(&mut self) {}

    /// The clock was set: it is `now`. Instants that are remembered only for their
    /// distance from a moment that has passed mean nothing any more, and what they
    /// put off is done now. Instants that were planned stay what they are.
    fn stepped(&mut self, _now: Timestamp) {
        self.doubt();
    }
}

/// Whether a write may have happened although it failed: then it must be asked
/// again under its own name before anything else.
pub(crate) fn is_unknown(error: &StoreError) -> bool {
    matches!(error, StoreError::OutcomeUnknown { .. })
}
