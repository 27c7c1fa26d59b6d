//! Withdraw: stops `exclusive` attempts before another node could begin them.
//!
//! A node's right to its attempts is renewed in the store: by its heartbeat for what
//! it owns, by extending for what it leased. While the store is away or hangs,
//! nothing is renewed; other attempts go on then, because nobody else can take
//! them as long as nobody can write. An attempt marked `exclusive` must not count
//! on that: it is stopped a little before its right runs out. Nor on rights that are
//! renewed by a clock that nobody has measured for long: it may have been set.
//!
//! It is safe because a pass asks the store nothing and counts by time that only
//! goes on: neither a store that hangs nor a clock that is set can hold it up.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::store::StoreError;

use super::{PassReport, Stage};
use crate::{
    executing::{Slow, Why},
    node::Node,
};

pub struct Withdraw {
    node: Arc<Node>,
}

impl Withdraw {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node }
    }
}

#[async_trait]
impl Stage for Withdraw {
    fn name(&self) -> &'static str {
        "withdraw"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let uptime = self.node.clock.uptime();
        let ends = |slow: &Slow| self.node.rights.hold_until(slow.by);
        let is_over = |slow: &Slow| slow.exclusive && ends(slow) <= uptime;
        let done = self.node.executing.stop_all(Why::HandBack, is_over);
        let next = self.node.executing.slow(|slow| {
            let going = slow.values().filter(|slow| slow.exclusive && !is_over(slow));
            going.map(|slow| ends(slow).saturating_sub(uptime)).min()
        });
        let next_at = next.map(|left| now.checked_add(left).unwrap_or(Timestamp::MAX));
        Ok(PassReport { done, more: false, next_at })
    }
}
