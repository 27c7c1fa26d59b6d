//! Rota's stores behind the port of `rota-core`: SQLite in one file, and
//! PostgreSQL for a cluster. Same semantics, same file names, one conformance
//! suite.

#![cfg_attr(test, allow(clippy::too_many_lines, reason = "a test tells its whole story in one place"))]

pub mod bounds;
mod codec;
mod definition;
mod engine;
pub mod failpoint;
mod filter;
mod fired;
pub mod guests;
mod kept;
mod nouns;
pub mod postgres;
mod raw;
mod review;
mod rollup;
mod schema;
pub mod sqlite;
mod unreadable;

pub use engine::SqlStore;
pub use raw::RawLoad;

/// What a store is to somebody who only looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The version of its schema; none where Rota has not used it yet.
    pub schema: Option<i64>,
    /// The newest that this release knows.
    pub known: i64,
    /// The oldest schema whose release may use it; none where it does not say.
    pub oldest: Option<i64>,
    /// What its clock says; none where it is this machine's own.
    pub clock: Option<jiff::Timestamp>,
}

impl Look {
    /// Whether this release may use it.
    pub fn may_use(&self) -> bool {
        schema::may_use(self.schema.unwrap_or_default(), self.oldest, self.known)
    }
}
