//! The stages on the real store, pass by pass.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod bed;
mod faulty;

mod cancel;
mod dispatch;
mod driver;
mod execute;
mod fire;
mod lead;
mod limits;
mod poison;
mod unknown;
