//! Rota's engine: fires schedules, dispatches runs, executes and settles them.
//!
//! The core decides and the store applies; what is left is to wait, to spawn
//! and to count, and that is all this crate does. A [`stages`] file is one verb,
//! and a pass of it takes nothing but the time. The [`driver`] is the only loop.
//! [`Engine`] is the handle that everybody else holds.
//!
//! Nothing here is the owner of truth: a process that vanishes between any two
//! lines leaves a store from which the next one goes on.

#![cfg_attr(test, allow(clippy::too_many_lines, reason = "a test tells its whole story in one place"))]

pub mod backfill;
pub mod catalog;
pub mod clock;
pub mod definitions;
pub mod driver;
pub mod elsewhere;
mod engine;
pub mod events;
pub mod executing;
pub mod executors;
pub mod hints;
mod launch;
pub mod making;
pub mod node;
pub mod options;
mod outbox;
#[cfg(not(feature = "planted"))]
mod planted;
#[cfg(feature = "planted")]
pub mod planted;
mod quota;
pub mod remote;
pub mod render;
mod reports;
mod runs;
pub mod stages;
pub mod stats;
mod supervise;
pub mod territory;
mod view;
mod why;

pub use self::{
    engine::{Builder, Cancel, CancelledMany, Engine, EngineError, Handle, RedrivenMany},
    events::{Event, Feed, FeedItem},
    making::{JobRef, Made, Redrive, RunAsk},
    options::Options,
    view::{Own, OwnFeed, OwnPage, View},
};
