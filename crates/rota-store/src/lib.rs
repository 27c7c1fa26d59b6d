//! Rota's stores behind the port of `rota-core`: SQLite in one file, and
//! PostgreSQL for a cluster. Same semantics, same file names, one conformance
//! suite.

mod abandoned;
mod codec;
pub mod failpoint;
mod filter;
mod fired;
pub mod postgres;
pub mod sqlite;

/// What a store's raw loop is to do.
#[derive(Clone, Copy, Debug)]
pub struct RawLoad {
    pub runs: u64,
    pub batch: u64,
    /// Whether each run is leased in writing before it is moved to history.
    pub claimed: bool,
}
