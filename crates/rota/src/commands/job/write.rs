//! Jobs, saved, checked, triggered and deleted.

use std::io;

use rota_api::{
    job::{JobChecked, JobSaved},
    problem::FieldError,
    run::{RunMade, TriggerRequest},
};
use rota_client::{Believes, Query};
use serde_json::{Value, json};

use super::{DeleteArgs, TriggerArgs, WriteArgs};
use crate::{
    clock,
    commands::{run, shown},
    documents,
    failure::Failure,
    printer::Printer,
    session::Session,
    table::Tone,
    times,
};

pub async fn create(session: &mut Session<'_>, args: &WriteArgs) -> Result<(), Failure> {
    let documents = args.document.documents()?;
    if args.dry_run {
        return check_all(session, &documents, Believes::Nothing).await;
    }
    let mut saved = Vec::new();
    for document in &documents {
        saved.push(session.client.post_once::<JobSaved>(&["jobs"], document, None).await?);
    }
    told(session, &saved, "created")
}

/// The name that a document gives itself.
pub fn name_of(document: &Value) -> Result<&str, Failure> {
    let name = document["name"].as_str().filter(|name| !name.is_empty());
    name.ok_or_else(|| Failure::bad_input("missing_field", "the document has no `name`".to_owned()))
}

/// Says what became of jobs.
pub fn told(session: &mut Session<'_>, saved: &[JobSaved], what: &str) -> Result<(), Failure> {
    session.answer(&saved, |printer| {
        for job in saved {
            let what = if job.changed { what } else { "unchanged:" };
            printer.line(&format!("{what} {} (id {}, version {})", job.name, job.id, job.version))?;
            warned(&job.warnings, printer)?;
        }
        Ok(())
    })
}

/// Shows what may surprise.
pub fn warned(warnings: &[FieldError], printer: &mut Printer) -> io::Result<()> {
    for warning in warnings {
        printer.note(&format!("warning: {}: {}", warning.path, warning.message))?;
    }
    Ok(())
}

/// Says what saving documents one after the other would do.
pub async fn check_all(session: &mut Session<'_>, documents: &[Value], believes: Believes) -> Result<(), Failure> {
    let mut checked = Vec::new();
    for (n, document) in documents.iter().enumerate() {
        let before: Vec<&str> = documents[..n].iter().filter_map(|document| document["name"].as_str()).collect();
        match checked_beside(session, document, believes, &Beside { jobs: &before, calendars: &[] }).await? {
            Some(job) => checked.push(job),
            None => {
                session.printer.note(&format!("{} starts after a job that is saved before it", name_of(document)?))?;
            }
        }
    }
    session.answer(&checked, |printer| {
        for job in &checked {
            checked_job(job, printer)?;
        }
        Ok(())
    })
}

/// The names of what is saved before a document.
pub struct Beside<'a> {
    pub jobs: &'a [&'a str],
    pub calendars: &'a [String],
}

/// Asks the server what saving a document would do. None where all it lacks is saved
/// before it: the server knows only what it has.
pub async fn checked_beside(
    session: &Session<'_>,
    document: &Value,
    believes: Believes,
    beside: &Beside<'_>,
) -> Result<Option<JobChecked>, Failure> {
    let lacks = |error: &FieldError| {
        let pointer = format!("/{}", error.path.replace(['.', '['], "/").replace(']', ""));
        let Some(name) = document.pointer(&pointer).and_then(Value::as_str) else { return false };
        match error.code.as_str() {
            "unknown_job" => beside.jobs.contains(&name),
            "unknown_calendar" => beside.calendars.iter().any(|calendar| calendar == name),
            _ => false,
        }
    };
    match session.client.post_believing::<JobChecked>(&["check"], document, believes).await {
        Ok(checked) => Ok(Some(checked)),
        Err(error) => match error.problem() {
            Some(problem) if !problem.errors.is_empty() && problem.errors.iter().all(lacks) => Ok(None),
            _ => Err(error.into()),
        },
    }
}

fn checked_job(job: &JobChecked, printer: &mut Printer) -> io::Result<()> {
    let what = match (job.version, job.changes) {
        (None, _) => "would be created".to_owned(),
        (Some(version), true) => format!("would become version {}", version + 1),
        (Some(version), false) => format!("is unchanged, version {version}"),
    };
    printer.line(&format!("{} {what}", job.name))?;
    warned(&job.warnings, printer)?;
    for schedule in &job.schedules {
        let name = if schedule.name.is_empty() { "schedule" } else { &schedule.name };
        printer.line(&format!("\n{}", printer.toned(Tone::Quiet, &format!("{name}: {}", schedule.description))))?;
        shown::upcoming(&schedule.next, clock::now(), printer)?;
    }
    Ok(())
}

pub async fn delete(session: &mut Session<'_>, args: &DeleteArgs) -> Result<(), Failure> {
    let names = args.jobs.join(", ");
    session.confirm(
        args.yes,
        &format!("Delete {names}? Their schedules end, and runs that have not started are cancelled."),
    )?;
    let mut query = Query::new();
    if args.keep_running {
        query.push(("keep_running", "true".to_owned()));
    }
    let mut cancelled = 0;
    for job in &args.jobs {
        let done: Value = session.client.delete(&["jobs", job], &query).await?;
        cancelled += done["cancelled"].as_u64().unwrap_or_default();
    }
    let runs = if cancelled > 0 { format!("; {cancelled} runs were cancelled") } else { String::new() };
    session.done(&json!({ "deleted": args.jobs, "cancelled": cancelled }), format_args!("deleted {names}{runs}"))
}

pub async fn trigger(session: &mut Session<'_>, args: &TriggerArgs) -> Result<(), Failure> {
    let request = trigger_request(args)?;
    let path = ["jobs", &args.job, "trigger"];
    let made: RunMade = session.client.post_once(&path, &request, args.key.as_deref()).await?;
    if !args.follow {
        return session.done(&made, format_args!("{} {}", made.id, shown::word(&made.status)));
    }
    session.printer.note(&format!("run {}", made.id))?;
    run::follow(session, &made.id.to_string()).await
}

fn trigger_request(args: &TriggerArgs) -> Result<TriggerRequest, Failure> {
    Ok(TriggerRequest {
        payload: args.payload.as_deref().map(|given| documents::json_of_flag("payload", given)).transpose()?,
        labels: documents::pairs_of_flag("label", &args.labels)?,
        run_at: times::of_flag("at", args.at.as_deref(), clock::now())?,
        priority: args.priority,
        ..TriggerRequest::default()
    })
}
