//! Failure: how an attempt failed, in words that policies can decide on.
//!
//! The kinds are a closed list, so that a policy, a filter and a chart all mean
//! the same thing by `timeout`. Names are stored and shown, and never change.
//!
//! Success, cancellation and the verdict of a run are the state machine's.

use serde::{Deserialize, Serialize};

use crate::{choice::choices, duration::Span};

choices! {
    /// What kind of thing went wrong in an attempt.
    ErrorKind {
        /// The attempt outlived its time.
        Timeout = "timeout",
        /// The target answered with a status that was not expected.
        HttpStatus = "http_status",
        ConnectionRefused = "connection_refused",
        ConnectionReset = "connection_reset",
        Dns = "dns",
        Tls = "tls",
        /// The installation's egress policy forbids the target.
        EgressDenied = "egress_denied",
        /// A command ended with a code other than the expected ones.
        ExitCode = "exit_code",
        /// A command was ended by a signal that was not ours.
        Signal = "signal",
        Panic = "panic",
        /// The worker vanished with the attempt.
        Lost = "lost",
        /// The input, or a template over it, can never do.
        InvalidInput = "invalid_input",
        /// A handler said that it failed.
        Handler = "handler",
        Sql = "sql",
        File = "file",
        Sftp = "sftp",
        /// It returned more than is kept.
        OutputTooLarge = "output_too_large",
    }
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    pub kind: ErrorKind,
    /// The HTTP status, where the target gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub message: String,
    #[serde(default, skip_serializing_if = "RetryAdvice::is_by_policy")]
    pub advice: RetryAdvice,
}

/// What the failing side said about trying again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryAdvice {
    /// Nothing: the job's policy decides.
    #[default]
    ByPolicy,
    /// Not before this long: `Retry-After`, or a handler's own word.
    After(Span),
    /// It will not get better.
    Never,
}

impl RetryAdvice {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    fn is_by_policy(&self) -> bool {
        *self == Self::ByPolicy
    }
}

impl Failure {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, status: None, message: message.into(), advice: RetryAdvice::ByPolicy }
    }

    /// An answer with a status that was not expected.
    pub fn http(status: u16, message: impl Into<String>) -> Self {
        Self { status: Some(status), ..Self::new(ErrorKind::HttpStatus, message) }
    }

    #[must_use]
    pub fn advising(self, advice: RetryAdvice) -> Self {
        Self { advice, ..self }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Stored rows and policies name kinds: a renamed one would orphan both.
    #[test]
    fn names_of_error_kinds_never_change() {
        let names: Vec<_> = ErrorKind::ALL.iter().map(|kind| serde_json::to_value(kind).unwrap()).collect();
        let frozen = json!([
            "timeout",
            "http_status",
            "connection_refused",
            "connection_reset",
            "dns",
            "tls",
            "egress_denied",
            "exit_code",
            "signal",
            "panic",
            "lost",
            "invalid_input",
            "handler",
            "sql",
            "file",
            "sftp",
            "output_too_large"
        ]);
        assert_eq!(json!(names), frozen);
        for kind in ErrorKind::ALL {
            assert_eq!(json!(kind), json!(kind.as_str()));
        }
    }

    #[test]
    fn failure_round_trips_and_leaves_out_what_was_not_said() {
        let plain = Failure::new(ErrorKind::Dns, "no such host");
        assert_eq!(json!(plain), json!({ "kind": "dns", "message": "no such host" }));
        let told = Failure::http(503, "away").advising(RetryAdvice::After(Span::secs(7)));
        let text = json!({ "kind": "http_status", "status": 503, "message": "away", "advice": { "after": "7s" } });
        assert_eq!(json!(told), text);
        for failure in [plain, told.clone(), told.advising(RetryAdvice::Never)] {
            assert_eq!(serde_json::from_value::<Failure>(json!(failure)).unwrap(), failure);
        }
    }
}
