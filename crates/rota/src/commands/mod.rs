//! One file per command.

pub mod apply;
pub mod audit;
pub mod bench;
pub mod bulk;
pub mod calendar;
pub mod config;
pub mod context;
pub mod cron;
pub mod dead;
pub mod doctor;
pub mod export;
pub mod job;
pub mod limited;
pub mod manual;
pub mod pausing;
pub mod queue;
pub mod rows;
pub mod run;
pub mod schedule;
pub mod serve;
pub mod shown;
pub mod tenant;
pub mod token;
pub mod user;
pub mod worker;
