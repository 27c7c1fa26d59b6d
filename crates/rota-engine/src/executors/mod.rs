//! Executors: those who turn an attempt into an outcome, one for each kind of step.
//!
//! Each takes an [`Attempt`](rota_core::ports::Attempt) whose templates are
//! rendered and answers with an outcome. To stop one, its future is dropped:
//! the call is given up, the process group is killed.
//!
//! Deadlines, panics, leases and retries are the stage's.

pub mod breaker;
pub mod command;
pub mod egress;
pub mod http;
pub mod render;
#[cfg(test)]
mod testing;
