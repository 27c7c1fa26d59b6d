//! Rota's stores behind the port of `rota-core`: SQLite in one file, and
//! PostgreSQL for a cluster. Same semantics, same file names, one conformance
//! suite.

mod abandoned;
mod codec;
mod filter;
mod fired;
pub mod postgres;
pub mod sqlite;
