//! What the deciding code is handed by the world: time, chance, wake-ups, and
//! those who do the work.
//!
//! Each port is as small as its users need and is held as `Arc<dyn ...>`, so
//! that a test or the simulator puts its own in place. The store, the largest
//! of them, has a module of its own.
//!
//! Nothing here waits or spawns: implementations live where a runtime is.

mod executor;
mod random;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;

pub(crate) use self::random::uuid_of;
pub use self::{
    executor::{Attempt, Context, Executor, Progress, Reports, Stream},
    random::{Random, Seeded},
};
use crate::{choice::choices, duration::Span};

/// The only source of time, waiting included.
///
/// Clocks are set now and then, by seconds or by hours, either way. Instants are
/// waited for by [`Clock::sleep_until`], and come by the clock as it is set then;
/// spans by [`Clock::sleep`] and [`Clock::uptime`], which setting the clock does
/// not touch. Whoever remembers instants only for their distance from a moment
/// asks [`Clock::steps`] whether they still mean that.
#[async_trait]
pub trait Clock: Send + Sync {
    /// The time, or a little before it: never an instant that has not come.
    fn now(&self) -> Timestamp;

    /// The latest that it may be, where the time is known within bounds only.
    fn latest(&self) -> Timestamp {
        self.now()
    }

    /// Returns when [`Clock::now`] has reached `at`; at once if it has.
    async fn sleep_until(&self, at: Timestamp);

    /// How long ago some moment was: it only goes on.
    fn uptime(&self) -> Duration {
        self.now().duration_since(Timestamp::UNIX_EPOCH).unsigned_abs()
    }

    /// Returns when so long has passed.
    async fn sleep(&self, span: Span) {
        self.sleep_until(span.after(self.now())).await;
    }

    /// How often the clock was set, by so much that somebody must know.
    fn steps(&self) -> u64 {
        0
    }

    /// Returns when the clock was set more often than `seen`.
    async fn stepped(&self, _seen: u64) {
        std::future::pending::<()>().await;
    }
}

choices! {
    /// Which looks a hint may bring forward.
    Topic {
        /// Schedules were saved, resumed or re-armed: there may be an earlier
        /// instant than the one waited for.
        Schedules = "schedules",
        /// Runs became ready, or were asked to stop.
        Ready = "ready",
        /// Runs were made for later.
        Delayed = "delayed",
        /// Requests lie in the inbox.
        Inbox = "inbox",
        /// Runs ended that other jobs may wait for.
        Ends = "ends",
        /// Partitions are free to be taken, or a node came that some of them fall to.
        Partitions = "partitions",
        /// Somebody follows what happens, on whichever node: it is worth telling.
        Followers = "followers",
    }
}

/// Wake-ups that carry no truth: each may be lost, repeated or late, and costs
/// only latency, because whoever is woken looks in the store, and looks now
/// and then without being woken.
pub trait Hints: Send + Sync {
    /// Says that a look is worth while. Never waits.
    fn wake(&self, topic: Topic);

    /// Listens from now on: what is said between two calls of
    /// [`Listener::heard`] is heard at the second.
    fn listen(&self, topic: Topic) -> Box<dyn Listener>;
}

/// One who waits for hints of one topic.
#[async_trait]
pub trait Listener: Send {
    /// Returns when the topic was woken since the last call, however often.
    async fn heard(&mut self);
}

/// Carries to other nodes what happened on this one, for people to see. As
/// little a truth as a hint: lines may be lost, and then a gap is heard.
pub trait Relay: Send + Sync {
    /// Tells the others one line. Never waits; what there is no room for is left
    /// out, and they hear of a gap.
    fn tell(&self, line: String);

    /// Something was left out before it came here.
    fn miss(&self);

    /// Hears what others tell from now on.
    fn hear(&self) -> Box<dyn News>;
}

/// What another node tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Line(Arc<str>),
    /// Something was missed: whoever shows what others do looks again.
    Gap,
}

/// One who hears what other nodes tell.
#[async_trait]
pub trait News: Send {
    async fn next(&mut self) -> Heard;
}
