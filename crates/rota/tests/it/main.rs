//! The product as its users meet it: real processes, their output and exit
//! codes. One binary, so that it links once.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its case should panic")]

mod books;
mod cluster;
mod cron;
mod node;
mod proxy;
mod serve;
mod token;
