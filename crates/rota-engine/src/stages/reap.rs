//! Reap: settles as lost what vanished workers held.
//!
//! The state machine decides, in the store's own transaction. A worker has
//! vanished when its lease ran out by the earliest that it may be now, with a
//! margin; after the store was away, the clock was set, or the node itself was away,
//! nobody has, for one lease time: remote workers could not speak. A node that stood
//! still itself, and finds its own leases run out, extends them before it judges
//! anybody: their attempts stood still with it and go on with it.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ports::Topic,
    store::{Reap as ReapAsk, Reaped, StoreError, Write},
};

use super::{PassReport, Stage, is_unknown};
use crate::{events::Event, node::Node};

pub struct Reap {
    node: Arc<Node>,
    pending: Option<(Write, ReapAsk)>,
}

impl Reap {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, pending: None }
    }
}

#[async_trait]
impl Stage for Reap {
    fn name(&self) -> &'static str {
        "reap"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let node = &self.node;
        let next_at = Some(node.options.sweep_every.after(now));
        if self.pending.is_none()
            && (node.rights.is_quiet(now) || !node.rights.may_judge() || !node.territory.is_steward())
        {
            return Ok(PassReport { next_at, ..PassReport::idle() });
        }
        if self.pending.is_none() && node.rights.may_have_run_out(now) && !node.runs.leases().is_empty() {
            node.wake.heartbeat.notify_one();
            return Ok(PassReport::until(node.options.watch_every.after(now)));
        }
        let (write, ask) = self.pending.take().unwrap_or_else(|| {
            let before = node.options.reap_margin.before(now);
            let (losses_max, limit) = (node.options.losses_max, node.options.sweep_batch);
            (node.write(now), ReapAsk { before, losses_max, limit })
        });
        let reaped = match node.store.reap(&write, &ask).await {
            Ok(reaped) => reaped,
            Err(error) => {
                if is_unknown(&error) {
                    self.pending = Some((write, ask));
                }
                return Err(error);
            }
        };
        node.stats.reaped.add(reaped.len());
        for Reaped { id: run, job, tenant, status } in reaped.iter().cloned() {
            node.events.emit(|| Event::RunLost { run, job, tenant, status });
        }
        node.ended_by(&write);
        if !reaped.is_empty() {
            // They come back after a delay, and those who waited for their
            // slots may be ready.
            for topic in [Topic::Delayed, Topic::Ready] {
                node.hints.wake(topic);
            }
        }
        Ok(PassReport { done: reaped.len(), more: reaped.len() >= ask.limit as usize, next_at })
    }
}
