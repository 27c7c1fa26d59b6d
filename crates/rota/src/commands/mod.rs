//! One file per command.

pub mod cron;
