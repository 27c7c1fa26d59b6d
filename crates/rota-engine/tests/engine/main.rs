//! The stages on the real store, pass by pass.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::too_many_lines, reason = "a test tells its whole story in one place")]
#![allow(clippy::wildcard_imports, reason = "every case uses most of the bed")]
#![allow(clippy::items_after_statements, reason = "short names belong where they are used")]

mod bed;
mod faulty;

mod cancel;
mod chain;
mod clock;
mod dispatch;
mod driver;
mod endurance;
mod events;
mod execute;
mod fire;
mod handover;
mod lead;
mod limits;
mod poison;
mod quotas;
mod remote;
mod scan;
mod simulation;
mod unknown;
mod unreadable;
