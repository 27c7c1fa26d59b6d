//! Jobs, listed and shown.

use std::io;

use jiff::Timestamp;
use rota_api::{job::Job, run::Run, schedule::Schedule};
use rota_client::Query;

use super::{ListJobsArgs, ShowArgs};
use crate::{
    clock,
    commands::shown,
    failure::Failure,
    printer::Printer,
    session::Session,
    table::{Cell, Table},
    times, yaml,
};

/// Runs that are shown with a job.
const RUNS_SHOWN: usize = 5;
/// Schedules that are shown with a job: as many as a job may have.
const SCHEDULES_SHOWN: usize = 100;

pub async fn list(session: &mut Session<'_>, args: &ListJobsArgs) -> Result<(), Failure> {
    let mut query = Query::new();
    query.extend(args.tag.clone().map(|tag| ("tag", tag)));
    query.extend(args.queue.clone().map(|queue| ("queue", queue)));
    query.extend(args.prefix.clone().map(|prefix| ("prefix", prefix)));
    query.extend(args.enabled.map(|enabled| ("enabled", enabled.to_string())));
    session.list(&args.list, &["jobs"], &query, jobs).await
}

fn jobs(jobs: &[Job], now: Timestamp, printer: &mut Printer) -> io::Result<()> {
    if jobs.is_empty() {
        return printer.note("no jobs; `rota job create` creates one");
    }
    let mut table = Table::new(&["JOB", "STATE", "WHEN", "QUEUE", "TAGS", "VERSION", "SAVED"])
        .narrowed(&["VERSION", "SAVED", "TAGS", "QUEUE"], "WHEN");
    for job in jobs {
        table.row([
            job.name.clone().into(),
            shown::state(job.enabled, job.pause.is_some()),
            when(job).into(),
            job.queue.clone().into(),
            job.tags.join(" ").into(),
            Cell::number(job.version),
            times::from_now(job.updated_at, now).into(),
        ]);
    }
    printer.table(table)
}

/// Its schedules as they are written, in short.
fn when(job: &Job) -> String {
    let schedules = job.document["schedules"].as_array().map(Vec::as_slice).unwrap_or_default();
    let one = |schedule: &serde_json::Value| {
        let kinds = ["cron", "every", "after_finish", "at"];
        let found = kinds.iter().find_map(|kind| Some((*kind, schedule[*kind].as_str()?)));
        found.map_or_else(String::new, |(kind, value)| match kind {
            "cron" => value.to_owned(),
            "after_finish" => format!("{value} after its end"),
            kind => format!("{kind} {value}"),
        })
    };
    match schedules {
        [] => "by hand".to_owned(),
        [schedule] => one(schedule),
        [first, rest @ ..] => format!("{} (+{})", one(first), rest.len()),
    }
}

pub async fn show(session: &mut Session<'_>, args: &ShowArgs) -> Result<(), Failure> {
    let job = args.job.as_str();
    if args.document {
        let job: Job = session.client.get(&["jobs", job], &[]).await?;
        return Ok(session.printer.text(&yaml::document(&job.document)?)?);
    }
    session
        .watched(&args.watch, async |session| {
            let client = session.client.clone();
            let job: Job = client.get(&["jobs", job], &[]).await?;
            let id = job.id.to_string();
            let (schedules, _) = client.list(&["jobs", &id, "schedules"], &[], SCHEDULES_SHOWN).await?;
            let (runs, _) = client.list(&["jobs", &id, "runs"], &[], RUNS_SHOWN).await?;
            session.answer(&job, |printer| whole(&job, &schedules, &runs, printer))
        })
        .await
}

fn whole(job: &Job, schedules: &[Schedule], runs: &[Run], printer: &mut Printer) -> io::Result<()> {
    let now = clock::now();
    let mut fields = Table::fields();
    fields.field("job", format!("{} (id {}, version {})", job.name, job.id, job.version));
    fields.field("about", job.document["description"].as_str().unwrap_or_default());
    fields.field("state", if job.deleted { "deleted".into() } else { shown::state(job.enabled, job.pause.is_some()) });
    fields.field("pause", shown::pause(job.pause.as_ref(), now));
    fields.field("queue", job.queue.as_str());
    fields.field("tags", job.tags.join(" "));
    fields.field("does", steps(job));
    fields.field("saved", times::from_now(job.updated_at, now));
    printer.table(fields)?;
    if !schedules.is_empty() {
        printer.line("")?;
        shown::schedules(schedules, now, printer)?;
    }
    if !runs.is_empty() {
        printer.line("")?;
        shown::runs(runs, now, printer)?;
    }
    Ok(())
}

/// Its steps by id and kind.
fn steps(job: &Job) -> String {
    const KINDS: [&str; 10] = ["http", "sql", "file", "sftp", "command", "handler", "job", "sleep", "approval", "wait"];
    let steps = job.document["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let one = |step: &serde_json::Value| {
        let kind = KINDS.iter().find(|kind| step.get(**kind).is_some()).copied().unwrap_or("?");
        format!("{} ({kind})", step["id"].as_str().unwrap_or_default())
    };
    steps.iter().map(one).collect::<Vec<_>>().join(", ")
}
