//! One file per command.

pub mod bench;
pub mod config;
pub mod cron;
pub mod serve;
pub mod token;
