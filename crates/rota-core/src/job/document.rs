//! The job document: what a person writes, field by field.
//!
//! Each type holds exactly what was written: what was left out stays out, so
//! that a document reads back as it was saved and a default may be made better
//! later. The defaults are functions in `effective`; what the fields mean and
//! how far they may go is in `docs/job.md`.
//!
//! Unknown fields are refused by every type here. What types cannot say (that
//! a step named in `needs` exists) is said by `check`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{retry::RetryRule, step::Step};
use crate::{choice::choices, duration::Span, run::Verdict, schedule::ScheduleSpec, slot::WhenFull};

/// A job: what to do, with what input, under which policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobDocument {
    /// Unique in its tenant.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// False is paused by definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Traits a worker must offer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// From 1, the most urgent, to 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Input>,
    /// Values for templates, over those of the tenant.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<String, Value>,
    /// Of one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// Of the whole run, from its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Span>,
    /// A run that waited longer than this expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_deadline: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead: Option<Dead>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Cancel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<Unique>,
    /// Stops its attempts when the store is out of reach, instead of going on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduleSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triggers: Option<Triggers>,
    pub steps: Vec<Step>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<Notify>,
}

impl JobDocument {
    /// The jobs after which this one starts; with its name, edges for [`super::after_cycle`].
    pub fn after_jobs(&self) -> &[String] {
        self.triggers.as_ref().and_then(|triggers| triggers.after.as_ref()).map_or(&[], |after| &after.jobs)
    }
}

/// What a run is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// A JSON Schema that every payload must satisfy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// The payload of a run that is given none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
}

/// What becomes of a run that used up its attempts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dead {
    /// It is made again, so long after it died.
    pub redrive_after: Span,
    /// How often, until it is left to a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// How long an attempt may take to stop once it is asked to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace: Option<Span>,
}

/// How many runs may hold a slot at once, of the job or of each key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    pub limit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_full: Option<WhenFull>,
    /// Most runs that wait for a slot; only where they queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queued: Option<u32>,
}

/// How many runs may start in a time, of the job or of each key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    pub runs: u32,
    pub per: Span,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Runs alike in these parts within this time are one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unique {
    /// Paths such as `payload.account`.
    pub by: Vec<String>,
    pub within: Span,
}

/// What starts runs besides the schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Triggers {
    /// By hand or through the API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manual: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<After>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// A reference to the secret that signs the calls.
    pub secret: String,
}

/// Starts when runs of other jobs have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    pub jobs: Vec<String>,
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub matching: Option<Match>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<AfterEnd>,
}

choices! {
    /// Of how many jobs the end is awaited.
    Match {
        All = "all",
        Any = "any",
    }
}

choices! {
    /// Which end of the other run counts.
    AfterEnd {
        Succeeded = "succeeded",
        Failed = "failed",
        TimedOut = "timed_out",
        Cancelled = "cancelled",
        Dead = "dead",
        Expired = "expired",
        Skipped = "skipped",
        /// However it ended.
        Ended = "ended",
    }
}

impl AfterEnd {
    pub fn counts(self, verdict: Verdict) -> bool {
        self == Self::Ended || self.as_str() == verdict.as_str()
    }
}

/// Who hears of what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notify {
    pub on: Vec<NotifyOn>,
    /// The name of a channel of the tenant.
    pub channel: String,
}

choices! {
    /// What is worth telling.
    NotifyOn {
        Succeeded = "succeeded",
        Failed = "failed",
        TimedOut = "timed_out",
        Cancelled = "cancelled",
        Dead = "dead",
        Expired = "expired",
        Skipped = "skipped",
        /// It started later than planned.
        Late = "late",
    }
}
