//! Why a command did not do what it was asked, and the exit code that says so.

use std::io;

use rota_api::problem::{Code, Problem};
use rota_client::Error;

/// Every exit code and what it means; the docs and `rota help exit-codes` are
/// made from it.
pub const EXIT_CODES: &[(&str, &str)] = &[
    ("0", "done"),
    ("1", "failed: a run that was waited for did not succeed, a check found problems, or an error occurred"),
    ("2", "the input is invalid: arguments, configuration or a document; trying again does not help"),
    ("3", "not found: there is no such job, run, schedule, worker, user, tenant, token or context"),
    (
        "4",
        "conflict with the current state: a name that already exists, a run that has ended, a version that changed meanwhile",
    ),
    ("5", "the server cannot be reached, is not ready or is too busy: trying again may help"),
    ("6", "not allowed: not logged in, or permission missing"),
    ("128 + n", "stopped at once by signal n"),
];

/// A failure, sorted by what a script would do about it.
#[derive(Debug)]
pub enum Failure {
    /// The arguments or the document are wrong; trying again is useless.
    BadInput {
        code: &'static str,
        message: String,
        /// The text to blame with the bytes of it that are wrong.
        place: Option<(String, std::ops::Range<usize>)>,
    },
    /// Standard input or output failed.
    Output(io::Error),
    /// Something else went wrong on the way.
    Other(anyhow::Error),
    /// It was done, and the answer is no.
    NotSo { message: String },
    /// The server refused, and says why.
    Refused(Box<Problem>),
    /// The server does not answer.
    Unreachable { server: String, why: String },
    /// Made to leave before it was done.
    Signal { number: u8 },
}

impl Failure {
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::BadInput { .. } => 2,
            Self::Output(_) | Self::Other(_) | Self::NotSo { .. } => 1,
            Self::Refused(problem) => of_status(problem.status),
            Self::Unreachable { .. } => 5,
            Self::Signal { number } => 128 + *number,
        }
    }

    /// Whether trying again may help.
    pub const fn is_passing(&self) -> bool {
        self.exit_code() == 5
    }

    /// Something that is not there, and that the server was not asked for.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::refused(Code::NotFound, message)
    }

    /// What a server would refuse so, had it been asked.
    pub fn refused(code: Code, message: impl Into<String>) -> Self {
        Self::Refused(Box::new(Problem::new(code, message)))
    }

    /// Wrong input that has no place to point at.
    pub fn bad_input(code: &'static str, message: String) -> Self {
        Self::BadInput { code, message, place: None }
    }
}

/// What a script does about a refusal with this status.
const fn of_status(status: u16) -> u8 {
    match status {
        401 | 403 => 6,
        404 => 3,
        409 | 412 => 4,
        429 | 503 => 5,
        400..=499 => 2,
        _ => 1,
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::BadAddress(message) => Self::bad_input("bad_server", message),
            Error::BadToken => Self::bad_input("bad_token", error.to_string()),
            Error::BadTenant => Self::bad_input("bad_tenant", format!("--tenant: {error}")),
            Error::BadKey => Self::bad_input("bad_key", format!("--key: {error}")),
            Error::Unreachable { address, why, .. } => Self::Unreachable { server: address, why },
            Error::Refused(problem) => Self::Refused(problem),
            // A proxy that finds nobody behind it.
            Error::Strange { address, status: status @ 502..=504, .. } => {
                Self::Unreachable { server: address, why: format!("something in front of it answers {status}") }
            }
            Error::Strange { ref said, .. } if !said.is_empty() => Self::Other(anyhow::anyhow!("{error}: {said}")),
            Error::Strange { .. } | Error::BadBody(_) | Error::BadAnswer { .. } => Self::Other(error.into()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}
