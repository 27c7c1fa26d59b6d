//! The product as its users meet it: real processes, their output and exit
//! codes. One binary, so that it links once.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its case should panic")]
#![allow(clippy::too_many_lines, reason = "a test tells its whole story in one place")]

mod abuse;
mod answers;
mod api;
mod books;
mod cli;
mod cluster;
mod crash;
mod cron;
mod node;
mod proxy;
mod quickstart;
mod race;
mod schema;
mod serve;
mod storm;
mod token;
mod workers;
