//! One change of a plan.

use rota_api::job::{Job, JobSaved};
use rota_client::Believes;
use serde::Serialize;
use serde_json::Value;

use crate::{
    commands::{calendar, job::warned},
    difference::{Sides, unified},
    failure::Failure,
    session::Session,
    table::{Cell, Tone},
    yaml,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Create,
    Change,
    Delete,
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Job,
    Calendar,
}

/// What becomes of one job or calendar.
#[derive(Debug, Serialize)]
pub struct Change {
    pub kind: Kind,
    pub name: String,
    pub action: Action,
    /// The version that is stored before, and after it was saved the new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub diff: String,
    #[serde(skip)]
    document: Value,
}

impl Change {
    /// What saving a job's document does to what is stored.
    pub fn of_job(name: &str, document: Value, stored: Option<&Job>) -> Result<Self, Failure> {
        let old = stored.map(|job| yaml::document(&job.document)).transpose()?.unwrap_or_default();
        let same = stored.is_some_and(|job| job.document == document);
        let new = yaml::document(&document)?;
        let version = stored.map(|job| job.version);
        Ok(Self { version, ..Self::between(Kind::Job, name, (&old, stored.is_some()), &new, same, document) })
    }

    pub fn of_calendar(name: &str, document: Value, stored: Option<&Value>) -> Result<Self, Failure> {
        let old = stored.map(yaml::document).transpose()?.unwrap_or_default();
        let same = stored == Some(&document);
        let new = yaml::document(&document)?;
        Ok(Self::between(Kind::Calendar, name, (&old, stored.is_some()), &new, same, document))
    }

    /// A job that no file has any more.
    pub fn of_deleted(job: &Job) -> Result<Self, Failure> {
        let old = yaml::document(&job.document)?;
        let diff = diff(&job.name, (&old, true), ("", false));
        let (name, version) = (job.name.clone(), Some(job.version));
        Ok(Self { kind: Kind::Job, name, action: Action::Delete, version, diff, document: Value::Null })
    }

    fn between(kind: Kind, name: &str, old: (&str, bool), new: &str, same: bool, document: Value) -> Self {
        let action = match (old.1, same) {
            (false, _) => Action::Create,
            (true, false) => Action::Change,
            (true, true) => Action::Keep,
        };
        let diff = if action == Action::Keep { String::new() } else { diff(name, old, (new, true)) };
        Self { kind, name: name.to_owned(), action, version: None, diff, document }
    }

    pub fn document(&self) -> &Value {
        &self.document
    }

    /// Makes it so.
    pub async fn carry_out(&mut self, session: &mut Session<'_>) -> Result<(), Failure> {
        match (self.kind, self.action) {
            (_, Action::Keep) => {}
            (Kind::Calendar, _) => {
                calendar::save(session, &self.document).await?;
            }
            (Kind::Job, Action::Delete) => {
                let _done: Value = session.client.delete(&["jobs", &self.name], &[]).await?;
            }
            (Kind::Job, Action::Create | Action::Change) => {
                let believes = self.version.map_or(Believes::Nothing, Believes::Version);
                let saved: JobSaved = session.client.put(&["jobs", &self.name], &self.document, believes).await?;
                self.version = Some(saved.version);
                warned(&saved.warnings, session.printer)?;
            }
        }
        Ok(())
    }

    /// The change in a word: done, or to be done.
    pub fn word(&self, dry_run: bool) -> Cell {
        let (done, wish, tone) = match self.action {
            Action::Create => ("created", "would be created", Tone::Good),
            Action::Change => ("changed", "would change", Tone::Busy),
            Action::Delete => ("deleted", "would be deleted", Tone::Bad),
            Action::Keep => ("unchanged", "unchanged", Tone::Quiet),
        };
        Cell::toned(if dry_run { wish } else { done }, tone)
    }
}

/// As git shows a file that is not there on one side.
fn diff(name: &str, (old, is_old): (&str, bool), (new, is_new): (&str, bool)) -> String {
    let named = |is: bool, side: &str| if is { format!("{side}/{name}") } else { "/dev/null".to_owned() };
    unified(&Sides {
        old_name: named(is_old, "stored"),
        old: old.to_owned(),
        new_name: named(is_new, "written"),
        new: new.to_owned(),
    })
}
