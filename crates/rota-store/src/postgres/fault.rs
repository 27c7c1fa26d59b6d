//! Faults: what went wrong inside a transaction, before it is told.
//!
//! A fault knows whether the commit had been sent. Only then may the write have
//! happened; everything earlier rolled back.

use rota_core::store::StoreError;
use tokio_postgres::{Error, error::SqlState};

use super::line::Silence;

#[derive(Debug)]
pub(super) enum Fault {
    /// Before the commit was sent.
    Db(Error),
    Pool(deadpool_postgres::PoolError),
    /// Nothing was heard, before the commit was sent.
    Silent(Silence),
    /// The commit was sent and its answer did not come.
    Lost(Box<dyn std::error::Error + Send + Sync>),
    Store(StoreError),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Db(error)
    }
}

impl From<deadpool_postgres::PoolError> for Fault {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        Self::Pool(error)
    }
}

impl From<Silence> for Fault {
    fn from(silence: Silence) -> Self {
        Self::Silent(silence)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Db(error) => error.fmt(f),
            Self::Pool(error) => error.fmt(f),
            Self::Silent(silence) => silence.fmt(f),
            Self::Lost(source) => source.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl Fault {
    fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Db(error) => error.code(),
            Self::Pool(_) | Self::Silent(_) | Self::Lost(_) | Self::Store(_) => None,
        }
    }

    /// The transaction lost a race and may be tried again as it is.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self.code(), Some(code) if *code == SqlState::T_R_SERIALIZATION_FAILURE
            || *code == SqlState::T_R_DEADLOCK_DETECTED)
    }

    /// Something by that key is there already: the batch, the request, or a run.
    pub(super) fn is_known(&self) -> bool {
        self.code() == Some(&SqlState::UNIQUE_VIOLATION)
    }

    /// The write was decided by what is no longer so.
    pub(super) fn has_moved(&self) -> bool {
        matches!(self, Self::Store(StoreError::Moved { .. }))
    }

    /// History has no partition for that day.
    pub(super) fn lacks_a_day(&self) -> bool {
        self.code() == Some(&SqlState::CHECK_VIOLATION)
    }

    pub(super) fn told(self, what: &'static str) -> StoreError {
        match self {
            Self::Db(error) => StoreError::NotApplied { what, source: Box::new(error) },
            Self::Pool(error) => StoreError::NotApplied { what, source: Box::new(error) },
            Self::Silent(silence) => StoreError::NotApplied { what, source: Box::new(silence) },
            Self::Lost(source) => StoreError::OutcomeUnknown { what, source },
            Self::Store(error) => error,
        }
    }
}

/// Whether the server said that the commit did not happen. Anything else leaves
/// it open: the connection broke, or the server was going down.
pub(super) fn refused(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("40") || code.code().starts_with("23"))
}
