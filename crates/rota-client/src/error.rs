//! Why a request did not do what it was to do.

use rota_api::problem::Problem;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Says itself what is wrong with the address.
    #[error("{0}")]
    BadAddress(String),
    #[error("the token is empty or contains invalid characters")]
    BadToken,
    #[error("the tenant's name contains characters that cannot be sent")]
    BadTenant,
    #[error("an idempotency key may contain only visible ASCII characters")]
    BadKey,
    #[error("the request cannot be written as JSON: {0}")]
    BadBody(String),
    /// Nobody answered, or the answer broke off.
    #[error("{address} does not answer: {why}")]
    Unreachable {
        address: String,
        why: String,
        /// Whether the request may have reached the server, and been done.
        sent: bool,
    },
    /// The server refused it.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// An answer as Rota gives none: something in between spoke, or it is no Rota.
    #[error("{address} answered {status} without a problem document; check that it is a Rota server")]
    Strange {
        address: String,
        status: u16,
        /// The beginning of what it said.
        said: String,
    },
    #[error(
        "the answer of {address} cannot be understood ({why}); check that it is a Rota server, and not older than this client"
    )]
    BadAnswer { address: String, why: String },
}

impl Error {
    /// Whether asking again may help.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused(problem) => passes(problem.status),
            Self::Strange { status, .. } => passes(*status),
            Self::BadAddress(_)
            | Self::BadToken
            | Self::BadTenant
            | Self::BadKey
            | Self::BadBody(_)
            | Self::BadAnswer { .. } => false,
        }
    }

    /// Whether the server refused what was asked, rather than who asked or when.
    pub fn is_about_the_request(&self) -> bool {
        match self {
            Self::Refused(problem) => matches!(problem.status, 400 | 413 | 422),
            // Something in between may have a bound of its own.
            Self::Strange { status, .. } => *status == 413,
            _ => false,
        }
    }

    /// Whether it certainly did not reach the server.
    pub fn was_not_sent(&self) -> bool {
        matches!(self, Self::Unreachable { sent: false, .. })
    }

    /// The server's refusal.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// The code of the server's refusal.
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_ref())
    }

    /// Whether the server says that there is no such thing.
    pub fn is_not_found(&self) -> bool {
        self.problem().is_some_and(|problem| problem.status == 404)
    }
}

const fn passes(status: u16) -> bool {
    matches!(status, 429 | 500..=599)
}
