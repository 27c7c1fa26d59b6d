//! `sleep`, `approval` and `wait`: steps that hold no worker.

use serde::{Deserialize, Serialize};

use super::exactly_one;
use crate::duration::Span;

/// Until a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SleepFields", into = "SleepFields")]
pub enum Sleep {
    For(Span),
    /// An instant, or a template that yields one.
    Until(String),
}

/// Until a person has said yes or no.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The users who may answer; nothing written leaves it to the roles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<String>,
    /// No answer within this time is a time-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Span>,
}

/// Until a signal by token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// Nothing written makes one for each run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// No signal within this time is a time-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Span>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SleepFields {
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    span: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

impl TryFrom<SleepFields> for Sleep {
    type Error = String;

    fn try_from(fields: SleepFields) -> Result<Self, String> {
        exactly_one([("for", fields.span.map(Self::For)), ("until", fields.until.map(Self::Until))])
    }
}

impl From<Sleep> for SleepFields {
    fn from(sleep: Sleep) -> Self {
        match sleep {
            Sleep::For(span) => Self { span: Some(span), until: None },
            Sleep::Until(instant) => Self { span: None, until: Some(instant) },
        }
    }
}
