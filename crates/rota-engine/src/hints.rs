//! Hints inside one process.
//!
//! A topic is a counter that only grows; a listener hears that it has grown
//! since it last heard. Nothing is queued, so nothing can overflow, and a
//! thousand hints between two looks are one.

use async_trait::async_trait;
use rota_core::ports::{Hints, Listener, Topic};
use tokio::sync::watch;

/// Hints between the stages of one process, or of several nodes in one.
#[derive(Debug)]
pub struct LocalHints {
    topics: [watch::Sender<u64>; Topic::ALL.len()],
}

impl Default for LocalHints {
    fn default() -> Self {
        Self { topics: Topic::ALL.map(|_| watch::Sender::new(0)) }
    }
}

impl LocalHints {
    fn topic(&self, topic: Topic) -> &watch::Sender<u64> {
        &self.topics[topic as usize]
    }
}

impl Hints for LocalHints {
    fn wake(&self, topic: Topic) {
        self.topic(topic).send_modify(|count| *count = count.wrapping_add(1));
    }

    fn listen(&self, topic: Topic) -> Box<dyn Listener> {
        Box::new(LocalListener(self.topic(topic).subscribe()))
    }
}

struct LocalListener(watch::Receiver<u64>);

#[async_trait]
impl Listener for LocalListener {
    async fn heard(&mut self) {
        if self.0.changed().await.is_err() {
            // Nobody is left who could say anything.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn what_is_said_between_two_calls_is_heard_once_at_the_second() {
        let hints = LocalHints::default();
        let mut listener = hints.listen(Topic::Ready);
        assert!(listener.heard().now_or_never().is_none());
        hints.wake(Topic::Ready);
        hints.wake(Topic::Ready);
        hints.wake(Topic::Inbox);
        assert!(listener.heard().now_or_never().is_some());
        assert!(listener.heard().now_or_never().is_none());
    }
}
