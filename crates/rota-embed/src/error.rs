//! What can go wrong, for those who branch on it.

use rota_core::{ids::RunId, problem::Problem, quota::Refusal, store::StoreError};
use rota_engine::{EngineError, definitions::SaveError};
use rota_store::{postgres, sqlite};

use crate::store::OpenError;

/// Why Rota did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    // The address itself may hold a password.
    #[error("the address of the store must be sqlite:PATH, sqlite::memory: or postgres://…")]
    Address,
    #[error("cannot open the SQLite store")]
    Sqlite(#[from] sqlite::OpenError),
    #[error("cannot open the PostgreSQL store")]
    Postgres(#[from] postgres::OpenError),
    #[error("the store did not complete the request")]
    Store(#[from] StoreError),
    #[error("the job was not saved")]
    Save(#[from] SaveError),
    /// Everything that is wrong with a job document.
    #[error("the job document is not valid: {}", told(.0))]
    Document(Vec<Problem>),
    #[error("the payload cannot be written as JSON")]
    Payload(#[source] serde_json::Error),
    #[error("there is no job `{0}`")]
    NoJob(String),
    #[error("the job `{0}` has `triggers.manual: false`: only its schedules and other jobs can start it")]
    NotManual(String),
    /// Its concurrency key has no room, and its policy is to refuse.
    #[error("the job `{0}` accepts no more runs now: all slots of its concurrency key are taken")]
    Full(String),
    #[error("a key of the job `{job}` cannot be computed from the payload: {why}")]
    Key { job: String, why: String },
    /// The tenant's quotas do not allow it, or not now.
    #[error("a run of the job `{job}` was not created: {refusal}")]
    Quota { job: String, refusal: Box<Refusal> },
    #[error("there is no run {0}")]
    NoRun(RunId),
    /// The run had not ended when this Rota stopped; it goes on when another
    /// one opens the store.
    #[error("Rota stopped before the run {0} had ended")]
    Stopped(RunId),
    #[error("only a store on PostgreSQL has an inbox for other transactions")]
    NoInbox,
    /// The caller's transaction has failed with it, as PostgreSQL has it.
    #[error("the request could not be written in the caller's transaction")]
    Inbox(#[source] tokio_postgres::Error),
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Sqlite(error) => error.into(),
            OpenError::Postgres(error) => error.into(),
        }
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(error) => Self::Store(error),
            EngineError::Save(error) => Self::Save(error),
            EngineError::LimitReached(reached) => Self::Save(SaveError::LimitReached(reached)),
            EngineError::OverQuota { refusal, now } => {
                Self::Save(SaveError::OverQuota { refusals: vec![refusal], now })
            }
        }
    }
}

fn told(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
