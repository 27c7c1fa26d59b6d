//! Steps: the parts of a job, each of exactly one kind.
//!
//! In a document the kind is a field among the others (`http: {...}`); here it
//! is one value, so that no step without a kind or with two can exist. The same
//! holds inside the kinds: one body, one action, one way to log in.
//!
//! What each kind does is the executors' business.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use super::{
    kinds::{Approval, Command, File, Handler, Http, Sftp, Sleep, Sql, SubJob, Wait},
    retry::RetryRule,
};
use crate::duration::Span;

/// A part of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StepFields", into = "StepFields")]
pub struct Step {
    /// Unique in its job, and how templates name it.
    pub id: String,
    pub kind: StepKind,
    /// The steps that must have ended; nothing written means as written.
    pub needs: Option<Vec<String>>,
    /// An expression; the step is skipped where it is not true.
    pub condition: Option<String>,
    pub on_failure: Option<OnFailure>,
    pub foreach: Option<Foreach>,
    /// Runs whatever became of the steps before it.
    pub always: Option<bool>,
    pub timeout: Option<Span>,
    pub retry: Option<RetryRule>,
    pub queue: Option<String>,
    /// In place of the job's.
    pub requires: Option<Vec<String>>,
    pub cancelable: Option<bool>,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum StepKind {
    Http(Box<Http>),
    Sql(Sql),
    File(Box<File>),
    Sftp(Box<Sftp>),
    Command(Command),
    Handler(Handler),
    Job(SubJob),
    Sleep(Sleep),
    Approval(Approval),
    Wait(Wait),
}

impl StepKind {
    pub const NAMES: [&'static str; 10] =
        ["http", "sql", "file", "sftp", "command", "handler", "job", "sleep", "approval", "wait"];

    /// The field of the document that holds it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Sql(_) => "sql",
            Self::File(_) => "file",
            Self::Sftp(_) => "sftp",
            Self::Command(_) => "command",
            Self::Handler(_) => "handler",
            Self::Job(_) => "job",
            Self::Sleep(_) => "sleep",
            Self::Approval(_) => "approval",
            Self::Wait(_) => "wait",
        }
    }

    /// The handler that executes it, where a handler does.
    pub fn handler(&self) -> Option<&str> {
        match self {
            Self::Handler(handler) => Some(&handler.name),
            Self::Http(_)
            | Self::Sql(_)
            | Self::File(_)
            | Self::Sftp(_)
            | Self::Command(_)
            | Self::Job(_)
            | Self::Sleep(_)
            | Self::Approval(_)
            | Self::Wait(_) => None,
        }
    }

    /// Whether it only parks the run, so that no worker ever executes it.
    pub const fn parks(&self) -> bool {
        match self {
            Self::Sleep(_) | Self::Approval(_) | Self::Wait(_) => true,
            Self::Http(_)
            | Self::Sql(_)
            | Self::File(_)
            | Self::Sftp(_)
            | Self::Command(_)
            | Self::Handler(_)
            | Self::Job(_) => false,
        }
    }
}

/// What becomes of the job when a step has failed for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnFailure {
    Stop,
    Continue,
    /// Only then is the named step run.
    Run(String),
}

impl Serialize for OnFailure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Stop => serializer.serialize_str("stop"),
            Self::Continue => serializer.serialize_str("continue"),
            Self::Run(step) => serializer.collect_str(&format_args!("run {step}")),
        }
    }
}

impl<'de> Deserialize<'de> for OnFailure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(OnFailureVisitor)
    }
}

struct OnFailureVisitor;

impl de::Visitor<'_> for OnFailureVisitor {
    type Value = OnFailure;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stop, continue or run <step>")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<OnFailure, E> {
        match (text, text.strip_prefix("run ").map(str::trim)) {
            ("stop", _) => Ok(OnFailure::Stop),
            ("continue", _) => Ok(OnFailure::Continue),
            (_, Some(step)) if !step.is_empty() => Ok(OnFailure::Run(step.to_owned())),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

/// The same step once for each item of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Foreach {
    /// A list, or a template that yields one.
    pub items: Value,
    /// How many run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<u32>,
}

/// A step as it stands in a document, before it is known to have one kind.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepFields {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    needs: Option<Vec<String>>,
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    condition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_failure: Option<OnFailure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    foreach: Option<Foreach>,
    #[serde(skip_serializing_if = "Option::is_none")]
    always: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<RetryRule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requires: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancelable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<Box<Http>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sql: Option<Sql>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<Box<File>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sftp: Option<Box<Sftp>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Command>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handler: Option<Handler>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<SubJob>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sleep: Option<Sleep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<Approval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait: Option<Wait>,
}

impl TryFrom<StepFields> for Step {
    type Error = String;

    fn try_from(fields: StepFields) -> Result<Self, String> {
        let kinds = [
            fields.http.map(StepKind::Http),
            fields.sql.map(StepKind::Sql),
            fields.file.map(StepKind::File),
            fields.sftp.map(StepKind::Sftp),
            fields.command.map(StepKind::Command),
            fields.handler.map(StepKind::Handler),
            fields.job.map(StepKind::Job),
            fields.sleep.map(StepKind::Sleep),
            fields.approval.map(StepKind::Approval),
            fields.wait.map(StepKind::Wait),
        ];
        Ok(Self {
            id: fields.id,
            kind: only_one(kinds)?,
            needs: fields.needs,
            condition: fields.condition,
            on_failure: fields.on_failure,
            foreach: fields.foreach,
            always: fields.always,
            timeout: fields.timeout,
            retry: fields.retry,
            queue: fields.queue,
            requires: fields.requires,
            cancelable: fields.cancelable,
        })
    }
}

fn only_one(kinds: [Option<StepKind>; 10]) -> Result<StepKind, String> {
    let mut written = kinds.into_iter().flatten();
    match (written.next(), written.next()) {
        (Some(kind), None) => Ok(kind),
        (Some(first), Some(second)) => {
            Err(format!("a step must have exactly one kind; this one has `{}` and `{}`", first.name(), second.name()))
        }
        (None, _) => Err(format!("a step must have exactly one kind: {}", StepKind::NAMES.join(", "))),
    }
}

impl From<Step> for StepFields {
    fn from(step: Step) -> Self {
        let mut fields = Self {
            id: step.id,
            needs: step.needs,
            condition: step.condition,
            on_failure: step.on_failure,
            foreach: step.foreach,
            always: step.always,
            timeout: step.timeout,
            retry: step.retry,
            queue: step.queue,
            requires: step.requires,
            cancelable: step.cancelable,
            http: None,
            sql: None,
            file: None,
            sftp: None,
            command: None,
            handler: None,
            job: None,
            sleep: None,
            approval: None,
            wait: None,
        };
        match step.kind {
            StepKind::Http(http) => fields.http = Some(http),
            StepKind::Sql(sql) => fields.sql = Some(sql),
            StepKind::File(file) => fields.file = Some(file),
            StepKind::Sftp(sftp) => fields.sftp = Some(sftp),
            StepKind::Command(command) => fields.command = Some(command),
            StepKind::Handler(handler) => fields.handler = Some(handler),
            StepKind::Job(job) => fields.job = Some(job),
            StepKind::Sleep(sleep) => fields.sleep = Some(sleep),
            StepKind::Approval(approval) => fields.approval = Some(approval),
            StepKind::Wait(wait) => fields.wait = Some(wait),
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(value: Value) -> String {
        serde_json::from_value::<Step>(value).unwrap_err().to_string()
    }

    #[test]
    fn step_has_exactly_one_kind() {
        assert!(refusal(json!({ "id": "a" })).contains("exactly one kind: http, sql,"));
        let two = json!({ "id": "a", "sleep": { "for": "1s" }, "handler": { "name": "h" } });
        assert!(refusal(two).contains("has `handler` and `sleep`"));
    }

    #[test]
    fn failure_words_are_three() {
        for text in ["stop", "continue", "run tidy_up"] {
            let value: OnFailure = serde_json::from_value(json!(text)).unwrap();
            assert_eq!(json!(value), json!(text));
        }
        for text in ["", "run", "run ", "Stop", "runtidy", "retry"] {
            assert!(serde_json::from_value::<OnFailure>(json!(text)).is_err(), "{text}");
        }
    }
}
