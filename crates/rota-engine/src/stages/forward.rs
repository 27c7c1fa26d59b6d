//! Forward: sends the events of this node to the others, while somebody follows them.
//!
//! A node that has followers says so now and then, by a hint; the others then
//! send it what happens on them, as far as there is room. Nobody follows most of
//! the time, and then this costs nothing: no event is even made up. It is a
//! reader of the feed like any other, so a run never waits for it.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ports::{Relay, Topic},
    store::StoreError,
};
use tokio::sync::broadcast::{self, error::TryRecvError};

use super::{PassReport, Stage};
use crate::{events::Event, node::Node};

/// A node with followers says so this often.
const ASK_EVERY: Span = Span::secs(10);
/// Followers that were not heard of for this long are gone.
const WANTED_FOR: Span = Span::secs(30);
/// What happened is sent on this often.
const FORWARD_EVERY: Span = Span::millis(100);
/// Events sent on in one pass: more than the relay has room for.
const BATCH: usize = 2_000;

pub struct Forward {
    node: Arc<Node>,
    relay: Arc<dyn Relay>,
    feed: Option<broadcast::Receiver<Event>>,
    /// Somebody said that they follow.
    asked: bool,
    wanted_until: Timestamp,
    asks_at: Timestamp,
}

impl Forward {
    pub fn new(node: Arc<Node>, relay: Arc<dyn Relay>) -> Self {
        Self { node, relay, feed: None, asked: false, wanted_until: Timestamp::MIN, asks_at: Timestamp::MIN }
    }

    /// Sends on what has happened. True when there is more.
    fn send(relay: &dyn Relay, feed: &mut broadcast::Receiver<Event>) -> (usize, bool) {
        for done in 0..BATCH {
            match feed.try_recv() {
                Ok(event) if event.is_news() => match serde_json::to_string(&event) {
                    Ok(line) => relay.tell(line),
                    Err(_) => relay.miss(),
                },
                Ok(_) => {}
                Err(TryRecvError::Lagged(_)) => relay.miss(),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return (done, false),
            }
        }
        (BATCH, true)
    }
}

#[async_trait]
impl Stage for Forward {
    fn name(&self) -> &'static str {
        "forward"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        if self.node.events.is_followed() && now >= self.asks_at {
            self.asks_at = ASK_EVERY.after(now);
            self.node.hints.wake(Topic::Followers);
        }
        if std::mem::take(&mut self.asked) {
            self.wanted_until = WANTED_FOR.after(now);
        }
        if now >= self.wanted_until {
            self.feed = None;
            return Ok(PassReport::until(self.node.options.look_every.after(now)));
        }
        let feed = self.feed.get_or_insert_with(|| self.node.events.subscribe());
        let (done, more) = Self::send(self.relay.as_ref(), feed);
        Ok(PassReport { done, more, next_at: Some(FORWARD_EVERY.after(now)) })
    }

    fn doubt(&mut self) {
        self.asked = true;
    }

    fn stepped(&mut self, _now: Timestamp) {
        // Who was heard of lately is heard of now.
        self.asked = self.feed.is_some();
        (self.asks_at, self.wanted_until) = (Timestamp::MIN, Timestamp::MIN);
    }
}
