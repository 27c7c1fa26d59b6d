//! What can go wrong, for those who branch on it.

use rota_core::{ids::RunId, problem::Problem, quota::Refusal, store::StoreError};
use rota_engine::{EngineError, definitions::SaveError};
use rota_store::{postgres, sqlite};

/// Why Rota did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    // The address itself may hold a password.
    #[error("the address of the store is none of sqlite:PATH, sqlite::memory: and postgres://…")]
    Address,
    #[error("cannot open the SQLite store")]
    Sqlite(#[from] sqlite::OpenError),
    #[error("cannot open the PostgreSQL store")]
    Postgres(#[from] postgres::OpenError),
    #[error("the store did not do it")]
    Store(#[from] StoreError),
    #[error("the job was not saved")]
    Save(#[from] SaveError),
    /// Everything that is wrong with a job document.
    #[error("the job document cannot be used: {}", told(.0))]
    Document(Vec<Problem>),
    #[error("the payload has no JSON form")]
    Payload(#[source] serde_json::Error),
    #[error("there is no job `{0}`")]
    NoJob(String),
    #[error("the job `{0}` says `triggers.manual: false`: only its schedules and other jobs start it")]
    NotManual(String),
    /// Its concurrency key has no room, and its policy is to refuse.
    #[error("the job `{0}` takes no more runs now")]
    Full(String),
    #[error("a key of the job `{job}` cannot be made from the payload: {why}")]
    Key { job: String, why: String },
    /// The tenant's quotas do not allow it, or not now.
    #[error("a run of the job `{job}` was not made: {refusal}")]
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

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(error) => Self::Store(error),
            EngineError::Save(error) => Self::Save(error),
            EngineError::LimitReached(reached) => Self::Save(SaveError::LimitReached(reached)),
        }
    }
}

fn told(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
