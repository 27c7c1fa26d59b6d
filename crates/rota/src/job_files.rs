//! Job documents in files: read, checked as a whole, and saved.
//!
//! Every document is read and checked before the first one is saved, so that a
//! mistake in one of them leaves everything as it was. A document that did not
//! change makes no new version. A file that is gone deletes nothing: a job ends
//! when somebody says so.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use rota_core::{
    calendar::Calendar,
    ids::TenantId,
    job::{JobDocument, after_cycle, flow, read},
    problem::Problem,
    store::{CalendarPut, Expect},
};
use rota_engine::{Engine, EngineError, definitions::SaveError};
use serde_json::Value;

use crate::{documents, failure::Failure};

/// A document and the file it stands in.
#[derive(Debug)]
pub struct JobFile {
    pub path: PathBuf,
    pub document: JobDocument,
}

/// What a directory holds.
#[derive(Debug, Default)]
pub struct Documents {
    pub calendars: Vec<Calendar>,
    pub jobs: Vec<JobFile>,
}

/// Reads every document of a directory, in the order of the files' names.
pub fn read_directory(directory: &Path) -> Result<Documents, Failure> {
    Ok(Documents { calendars: read_calendars(directory)?, jobs: read_files(files(directory)?)? })
}

/// Reads every document of files and directories; `-` is standard input.
pub fn read_paths(paths: &[PathBuf]) -> Result<Vec<JobFile>, Failure> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            found.extend(files(path)?);
        } else {
            found.push(path.clone());
        }
    }
    read_files(found)
}

/// Reads the calendars of a directory of jobs: the documents of `calendars` in it.
pub fn read_calendars(directory: &Path) -> Result<Vec<Calendar>, Failure> {
    let directory = directory.join("calendars");
    let mut calendars = Vec::new();
    for path in if directory.is_dir() { files(&directory)? } else { Vec::new() } {
        let bad = |why: String| Failure::bad_input("bad_calendar", format!("{}: {why}", path.display()));
        for value in documents::values(&path)? {
            let calendar: Calendar = serde_json::from_value(value).map_err(|error| bad(error.to_string()))?;
            if let Some(problem) = calendar.validate().first() {
                return Err(bad(problem.to_string()));
            }
            calendars.push(calendar);
        }
    }
    Ok(calendars)
}

fn read_files(files: Vec<PathBuf>) -> Result<Vec<JobFile>, Failure> {
    let mut problems = Vec::new();
    let mut jobs = Vec::new();
    for path in files {
        match read_file(&path) {
            Ok(documents) => {
                jobs.extend(documents.into_iter().map(|document| JobFile { path: path.clone(), document }));
            }
            Err(found) => problems.extend(found.iter().map(|problem| format!("{}: {problem}", path.display()))),
        }
    }
    problems.extend(twice(&jobs));
    problems.extend(in_a_circle(&jobs));
    if problems.is_empty() { Ok(jobs) } else { Err(Failure::bad_input("bad_job", told(&problems))) }
}

fn told(problems: &[String]) -> String {
    match problems {
        [one] => format!("a job document is invalid: {one}"),
        many => format!("job documents are invalid:\n  {}", many.join("\n  ")),
    }
}

/// The files of a directory that hold documents, by name.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |error: std::io::Error| {
        Failure::bad_input("bad_config", format!("jobs: cannot read {}: {error}", directory.display()))
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && is_document(&path) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn is_document(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml" || extension == "json")
}

fn read_file(path: &Path) -> Result<Vec<JobDocument>, Vec<Problem>> {
    let read = if path == Path::new("-") { standard_input() } else { fs::read(path) };
    let text = read.map_err(|error| vec![Problem::new("", "unreadable", error.to_string())])?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let values: Vec<Value> = if is_json { read::json(&text).map(|value| vec![value]) } else { read::yaml_file(&text) }
        .map_err(|problem| vec![problem])?;
    let several = values.len() > 1;
    let mut documents = Vec::with_capacity(values.len());
    let mut problems = Vec::new();
    for (n, value) in values.into_iter().enumerate() {
        match JobDocument::from_value(value) {
            Ok(document) => documents.push(document),
            Err(found) if several => {
                let named = |mut problem: Problem| {
                    problem.message = format!("{} (document {})", problem.message, n + 1);
                    problem
                };
                problems.extend(found.into_iter().map(named));
            }
            Err(found) => problems.extend(found),
        }
    }
    if problems.is_empty() { Ok(documents) } else { Err(problems) }
}

fn standard_input() -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text)?;
    Ok(text)
}

/// A name that two documents claim would be whoever's comes last.
fn twice(jobs: &[JobFile]) -> Vec<String> {
    let mut first: BTreeMap<&str, &Path> = BTreeMap::new();
    let mut problems = Vec::new();
    for JobFile { path, document } in jobs {
        if let Some(other) = first.insert(&document.name, path) {
            problems.push(format!(
                "{}: name: the job `{}` is also defined in {}",
                path.display(),
                document.name,
                other.display()
            ));
        }
    }
    problems
}

/// Jobs that would start each other for ever.
fn in_a_circle(jobs: &[JobFile]) -> Option<String> {
    let edges = jobs.iter().flat_map(|JobFile { document, .. }| {
        document.after_jobs().iter().map(|after| (document.name.as_str(), after.as_str()))
    });
    let cycle = after_cycle(edges)?;
    let path = &jobs.iter().find(|job| Some(&job.document.name.as_str()) == cycle.first())?.path;
    Some(format!("{}: triggers.after.jobs: jobs start each other: {}", path.display(), flow::written(&cycle)))
}

/// So often saving is tried while the store does not take it.
const TRIES: u32 = 5;
const TRY_AFTER: Duration = Duration::from_millis(200);

/// Saves calendars that are not as they are stored.
pub async fn save_calendars(engine: &Engine, tenant: TenantId, calendars: &[Calendar]) -> anyhow::Result<()> {
    let stored = if calendars.is_empty() { Vec::new() } else { engine.store().calendars(tenant).await? };
    for calendar in calendars {
        let (name, spec) = (calendar.name.clone(), serde_json::to_value(calendar)?.to_string());
        if !stored.iter().any(|stored| stored.name == name && stored.spec == spec) {
            let saved = engine.save_calendar(CalendarPut { tenant, name, spec }).await;
            saved.with_context(|| format!("cannot save the calendar `{}`", calendar.name))?;
            tracing::info!(name = calendar.name, "saved a calendar");
        }
    }
    Ok(())
}

/// Saves documents, and tells the log of those that changed.
pub async fn save(engine: &Engine, tenant: TenantId, jobs: &[JobFile]) -> anyhow::Result<()> {
    let documents: Vec<&JobDocument> = jobs.iter().map(|job| &job.document).collect();
    let by = Some("rota serve".to_owned());
    let mut tries = 0;
    let answers = loop {
        tries += 1;
        match engine.save_jobs(tenant, &documents, by.clone(), Expect::Anything).await {
            // A connection that broke is not the end of a node that has just begun, and
            // saving the same again changes nothing.
            Err(EngineError::Save(SaveError::Store(error))) if tries < TRIES => {
                tracing::warn!(%error, "the jobs were not saved; trying again");
                tokio::time::sleep(TRY_AFTER * tries).await;
            }
            answers => break answers.context("cannot save the jobs")?,
        }
    };
    for (JobFile { path, document }, saved) in jobs.iter().zip(answers) {
        let saved =
            saved.with_context(|| format!("cannot save the job `{}` from {}", document.name, path.display()))?;
        if saved.changed {
            tracing::info!(job = %saved.job, name = %document.name, version = saved.version, "saved a job");
        } else {
            tracing::debug!(job = %saved.job, name = %document.name, version = saved.version, "a job is unchanged");
        }
    }
    Ok(())
}
