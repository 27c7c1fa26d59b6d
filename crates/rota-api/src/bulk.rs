//! Many things in one request.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    job::JobSaved,
    problem::Problem,
    run::{Status, TriggerRequest},
};

/// One line of a bulk trigger: the request of a trigger, and the job. Its fields are
/// written out, because an unknown one must be refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerLine {
    /// The job's id or name.
    pub job: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::instant::read_opt")]
    pub run_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10)]
    pub priority: Option<u8>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub after: Vec<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
    /// W3C trace context of version 00; one that is not valid is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl TriggerLine {
    /// The job, what is asked of it, and the trace that this is part of.
    pub fn split(self) -> (String, TriggerRequest, Option<String>) {
        let Self { job, payload, labels, run_at, priority, after, metadata, traceparent } = self;
        (job, TriggerRequest { payload, labels, run_at, priority, after, metadata }, traceparent)
    }
}

/// The result of one line of a bulk trigger: a run or a problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunLine {
    /// Counted from 1.
    pub line: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// The result of one line of a bulk save: a job or a problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobLine {
    /// Counted from 1.
    pub line: u64,
    #[serde(flatten)]
    pub saved: Option<JobSaved>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// A filter of runs; all fields are optional. Lists have live runs first, newest first,
/// then ended runs by their end, latest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RunsFilter {
    /// Only those of this job, by id or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Only those of jobs that have this tag now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Only those created by this schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<i64>,
    /// Only those in one of these statuses; may be repeated in a query.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[param(style = Form, explode)]
    pub status: Vec<Status>,
    /// Only those with all of these labels, each written `key=value`; may be repeated in a
    /// query.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[param(style = Form, explode)]
    pub label: Vec<String>,
    /// Only live runs created, and ended runs that ended, at this instant or later.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::instant::read_opt")]
    pub from: Option<Timestamp>,
    /// Only before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::instant::read_opt")]
    pub to: Option<Timestamp>,
}

/// A filter of jobs; all fields are optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobsFilter {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Only those whose names start with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkCancel {
    /// An empty filter means every live run of the tenant.
    pub filter: RunsFilter,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Such as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<String>,
    /// Do everything, roll it back instead of committing, and answer what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRedrive {
    pub filter: RunsFilter,
    /// Use the jobs' newest versions.
    #[serde(default)]
    pub latest: bool,
    /// Also those that were redriven before.
    #[serde(default)]
    pub again: bool,
    /// Do everything, roll it back instead of committing, and answer what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkDiscard {
    /// An empty filter means every open dead letter of the tenant.
    pub filter: RunsFilter,
    /// Do everything, roll it back instead of committing, and answer what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkPause {
    pub filter: JobsFilter,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::instant::read_opt")]
    pub until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000)]
    pub note: Option<String>,
    /// Do everything, roll it back instead of committing, and answer what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkResume {
    pub filter: JobsFilter,
    /// Do everything, roll it back instead of committing, and answer what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a request by filter did, or what it would do in a dry run; both have the same form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkDone {
    /// How many the filter found.
    pub matched: u64,
    /// How many were changed. The others were left unchanged, because there was nothing to do
    /// or the change was refused.
    pub done: u64,
    /// True if there are more: repeat the request.
    pub more: bool,
    pub dry_run: bool,
}
