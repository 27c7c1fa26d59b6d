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

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

pub(crate) use self::random::uuid_of;
pub use self::{
    executor::{Attempt, Context, Executor, Progress, Reports, Stream},
    random::{Random, Seeded},
};
use crate::choice::choices;

/// The only source of time, waiting included.
#[async_trait]
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;

    /// Returns when [`Clock::now`] has reached `at`; at once if it has.
    async fn sleep_until(&self, at: Timestamp);
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
