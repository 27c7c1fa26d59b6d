//! Rota's domain, decided in pure code.
//!
//! Everything here is a function of its arguments: time arrives as `now`, ids
//! and jitter from a source handed in, and nothing waits, spawns or does I/O.
//! Stores, engines and servers apply what this crate decides.

#![cfg_attr(test, allow(clippy::too_many_lines, reason = "a test tells its whole story in one place"))]

pub mod access;
pub mod after;
pub mod bytes;
pub mod calendar;
mod choice;
pub mod clock;
pub mod cron;
pub mod dispatch;
pub mod duration;
pub mod evaluation;
pub mod fire;
pub mod heat;
pub mod ids;
pub mod instant;
pub mod job;
pub mod lane;
pub mod limits;
pub mod order;
pub mod ports;
pub mod preview;
pub mod problem;
pub mod quota;
pub mod rate;
pub mod rollup;
pub mod run;
pub mod schedule;
pub mod slot;
pub mod store;
pub mod stored;
pub mod timing;
pub mod trace;
pub mod why;
