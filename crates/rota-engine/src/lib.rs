//! Rota's engine: the stages of a run, and the executors that do its work.

pub mod executors;
