//! What is to change, worked out before anything does.

use std::{
    collections::{BTreeSet, HashSet},
    path::{Path, PathBuf},
};

use rota_api::job::Job;
use rota_client::{Believes, Query};
use rota_core::job::JobDocument;
use serde_json::Value;

use super::{
    Wish,
    change::{Action, Change, Kind},
};
use crate::{
    commands::job::{Beside, checked_beside},
    difference,
    failure::Failure,
    job_files::{self, JobFile},
    session::Session,
    table::{Cell, Table},
};

/// Which jobs a prune may delete.
pub enum Scope {
    Tag(String),
    Prefix(String),
}

impl Scope {
    fn holds(&self, document: &JobDocument) -> bool {
        match self {
            Self::Tag(tag) => document.tags.contains(tag),
            Self::Prefix(prefix) => document.name.starts_with(prefix.as_str()),
        }
    }

    fn query(&self) -> Query<'static> {
        match self {
            Self::Tag(tag) => vec![("tag", tag.clone())],
            Self::Prefix(prefix) => vec![("prefix", prefix.clone())],
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Tag(tag) => format!("have the tag `{tag}`"),
            Self::Prefix(prefix) => format!("have a name that starts with `{prefix}`"),
        }
    }
}

pub struct Plan {
    changes: Vec<Change>,
}

impl Plan {
    pub async fn make(session: &Session<'_>, paths: &[PathBuf], scope: Option<&Scope>) -> Result<Self, Failure> {
        let jobs = in_order(job_files::read_paths(paths)?);
        if let Some(scope) = scope {
            all_inside(&jobs, scope)?;
        }
        let mut changes = calendars(session, paths).await?;
        let names: Vec<&str> = jobs.iter().map(|job| job.document.name.as_str()).collect();
        let calendars: Vec<String> = changes.iter().map(|change| change.name.clone()).collect();
        let beside = Beside { jobs: &names, calendars: &calendars };
        for JobFile { path, document } in &jobs {
            let change = job(session, document, &beside).await.map_err(|failure| in_file(failure, path))?;
            changes.push(change);
        }
        if let Some(scope) = scope {
            changes.extend(pruned(session, &jobs, scope).await?);
        }
        Ok(Self { changes })
    }

    pub async fn carry_out(mut self, session: &mut Session<'_>, wish: &Wish) -> Result<(), Failure> {
        let deleted: Vec<&str> = self
            .changes
            .iter()
            .filter(|change| change.action == Action::Delete)
            .map(|change| change.name.as_str())
            .collect();
        if !wish.dry_run && !deleted.is_empty() {
            let question = format!("Delete {} jobs that are not in any file: {}?", deleted.len(), deleted.join(", "));
            session.confirm(wish.yes, &question)?;
        }
        if !wish.dry_run {
            for n in 0..self.changes.len() {
                if let Err(failure) = self.changes[n].carry_out(session).await {
                    let done = self.changes[..n].iter().filter(|change| change.action != Action::Keep).count();
                    let name = &self.changes[n].name;
                    session.printer.note(&format!("`{name}` failed; {done} changes before it have been made"))?;
                    return Err(failure);
                }
            }
        }
        self.tell(session, wish)
    }

    fn tell(&self, session: &mut Session<'_>, wish: &Wish) -> Result<(), Failure> {
        session.answer(&self.changes, |printer| {
            if wish.diff {
                self.changes.iter().try_for_each(|change| difference::print(&change.diff, printer))?;
            }
            let mut table = Table::new(&["", "NAME", "", "VERSION"]);
            for change in &self.changes {
                let kind = if change.kind == Kind::Job { "job" } else { "calendar" };
                let version = change.version.map(|version| version.to_string()).unwrap_or_default();
                let cells =
                    [kind.into(), change.name.as_str().into(), change.word(wish.dry_run), Cell::number(version)];
                table.row(cells);
            }
            printer.table(table)
        })
    }
}

/// A job that starts after others is saved after them, whatever their files are
/// called: the server knows only what it has. A circle is the server's to refuse.
fn in_order(mut jobs: Vec<JobFile>) -> Vec<JobFile> {
    let mut ordered: Vec<JobFile> = Vec::with_capacity(jobs.len());
    while !jobs.is_empty() {
        let names: HashSet<String> = jobs.iter().map(|job| job.document.name.clone()).collect();
        let waits = |job: &JobFile| job.document.after_jobs().iter().any(|after| names.contains(after));
        let (later, free): (Vec<JobFile>, Vec<JobFile>) = jobs.into_iter().partition(waits);
        let stuck = free.is_empty();
        ordered.extend(free);
        jobs = later;
        if stuck {
            ordered.append(&mut jobs);
        }
    }
    ordered
}

/// A document outside the scope would be saved now and never be pruned.
fn all_inside(jobs: &[JobFile], scope: &Scope) -> Result<(), Failure> {
    let outside: Vec<String> = jobs
        .iter()
        .filter(|job| !scope.holds(&job.document))
        .map(|job| format!("{}: `{}`", job.path.display(), job.document.name))
        .collect();
    if outside.is_empty() {
        return Ok(());
    }
    let message =
        format!("with --prune every document must {}; these do not:\n  {}", scope.words(), outside.join("\n  "));
    Err(Failure::bad_input("outside_scope", message))
}

/// `beside` is what stands in all files.
async fn job(session: &Session<'_>, document: &JobDocument, beside: &Beside<'_>) -> Result<Change, Failure> {
    let stored = match session.client.get::<Job>(&["jobs", &document.name], &[]).await {
        Ok(job) => Some(job).filter(|job| !job.deleted && job.name == document.name),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    let value: Value = serde_json::from_str(&document.canonical_json()).map_err(anyhow::Error::from)?;
    let change = Change::of_job(&document.name, value, stored.as_ref())?;
    if change.action != Action::Keep {
        checked_beside(session, change.document(), Believes::Anything, beside).await?;
    }
    Ok(change)
}

/// The server's refusal, with the file it is about.
fn in_file(failure: Failure, path: &Path) -> Failure {
    match failure {
        Failure::Refused(mut problem) => {
            problem.detail = format!("{}: {}", path.display(), problem.detail);
            Failure::Refused(problem)
        }
        failure => failure,
    }
}

/// Calendars before jobs: schedules name them.
async fn calendars(session: &Session<'_>, paths: &[PathBuf]) -> Result<Vec<Change>, Failure> {
    let mut written = Vec::new();
    for path in paths {
        written.extend(job_files::read_calendars(path)?);
    }
    if written.is_empty() {
        return Ok(Vec::new());
    }
    let (stored, _) = session.client.list::<Value>(&["calendars"], &[], usize::MAX).await?;
    let mut changes = Vec::new();
    for calendar in written {
        let value = serde_json::to_value(&calendar).map_err(anyhow::Error::from)?;
        let stored = stored.iter().find(|stored| stored["name"] == calendar.name.as_str());
        changes.push(Change::of_calendar(&calendar.name, value, stored)?);
    }
    Ok(changes)
}

async fn pruned(session: &Session<'_>, jobs: &[JobFile], scope: &Scope) -> Result<Vec<Change>, Failure> {
    let kept: BTreeSet<&str> = jobs.iter().map(|job| job.document.name.as_str()).collect();
    let (stored, _) = session.client.list::<Job>(&["jobs"], &scope.query(), usize::MAX).await?;
    stored.iter().filter(|job| !job.deleted && !kept.contains(job.name.as_str())).map(Change::of_deleted).collect()
}
