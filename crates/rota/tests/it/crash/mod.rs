//! Processes that die: around every write, with their server, one by one. What
//! the jobs did is then held against what was planned.

mod callers;
mod cluster;
mod load;
mod poison;
mod scene;
mod server;
mod sweep;
