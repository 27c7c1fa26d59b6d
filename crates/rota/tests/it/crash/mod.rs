//! Processes that die: around every write, with their server, one by one. What
//! the jobs did is then held against what was planned.

mod callers;
mod cluster;
mod load;
mod poison;
pub mod scene;
pub mod server;
mod sweep;
