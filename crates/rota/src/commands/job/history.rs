//! What a job was, and what its runs did.

use std::io;

use jiff::Timestamp;
use rota_api::job::{Job, JobStats, JobVersion, Stats};
use rota_client::Query;
use rota_core::job::JobDocument;

use super::{DiffArgs, StatsArgs};
use crate::{
    clock,
    difference::{self, Sides},
    documents,
    failure::Failure,
    printer::Printer,
    session::Session,
    table::{Cell, Table, Tone},
    times, yaml,
};

pub async fn versions(session: &mut Session<'_>, job: &str) -> Result<(), Failure> {
    let versions: Vec<JobVersion> = session.client.get(&["jobs", job, "versions"], &[]).await?;
    let now = clock::now();
    session.answer(&versions, |printer| {
        let mut table = Table::new(&["VERSION", "SAVED", "AT", "BY"]);
        for version in &versions {
            table.row([
                Cell::number(version.version),
                times::from_now(version.at, now).into(),
                version.at.to_string().into(),
                version.by.clone().unwrap_or_default().into(),
            ]);
        }
        printer.table(table)
    })
}

pub async fn diff(session: &mut Session<'_>, args: &DiffArgs) -> Result<(), Failure> {
    let sides = match &args.file {
        Some(path) => with_file(session, &args.job, path).await?,
        None => between(session, args).await?,
    };
    let text = difference::unified(&sides);
    let same = text.is_empty();
    session.answer(&serde_json::json!({ "from": sides.old_name, "to": sides.new_name, "diff": text }), |printer| {
        if same { printer.note("no difference") } else { difference::print(&text, printer) }
    })
}

async fn with_file(session: &Session<'_>, job: &str, path: &std::path::Path) -> Result<Sides, Failure> {
    let stored: Job = session.client.get(&["jobs", job], &[]).await?;
    let written = documents::value(path)?;
    // Durations and the like are spelled as they are stored, so that only what
    // differs is shown.
    let known = JobDocument::from_value(written.clone()).ok();
    let written = known.and_then(|document| serde_json::to_value(document).ok()).unwrap_or(written);
    Ok(Sides {
        old_name: format!("{} (version {})", stored.name, stored.version),
        old: yaml::document(&stored.document)?,
        new_name: path.display().to_string(),
        new: yaml::document(&written)?,
    })
}

async fn between(session: &Session<'_>, args: &DiffArgs) -> Result<Sides, Failure> {
    let versions: Vec<JobVersion> = session.client.get(&["jobs", &args.job, "versions"], &[]).await?;
    let newest = versions.first().map_or(1, |version| version.version);
    let to = args.to.unwrap_or(newest);
    let from = args.from.unwrap_or(to - 1);
    let found = |number: i32| {
        versions.iter().find(|version| version.version == number).ok_or_else(|| {
            Failure::not_found(format!("`{}` has no version {number} among its newest hundred", args.job))
        })
    };
    let name = |number: i32| format!("{} (version {number})", args.job);
    Ok(Sides {
        old_name: name(from),
        old: yaml::document(&found(from)?.document)?,
        new_name: name(to),
        new: yaml::document(&found(to)?.document)?,
    })
}

pub async fn stats(session: &mut Session<'_>, args: &StatsArgs) -> Result<(), Failure> {
    let now = clock::now();
    let mut query = Query::new();
    query.extend(times::of_flag("from", args.from.as_deref(), now)?.map(|at| ("from", at.to_string())));
    query.extend(times::of_flag("to", args.to.as_deref(), now)?.map(|at| ("to", at.to_string())));
    let stats: JobStats = session.client.get(&["jobs", &args.job, "stats"], &query).await?;
    session.answer(&stats, |printer| hours(&stats, printer))
}

fn hours(stats: &JobStats, printer: &mut Printer) -> io::Result<()> {
    if stats.total.runs == 0 {
        return printer.note(&format!("no run ended from {} to {}", stats.from, stats.to));
    }
    let mut table = Table::new(&["HOUR", "RUNS", "GOOD", "BAD", "RATE", "TOOK P50", "P99", "WAITED P50", "P99"]);
    for hour in &stats.hours {
        table.row(numbers(hour_name(hour.at), &hour.stats));
    }
    table.row(numbers("total".to_owned(), &stats.total));
    printer.table(table)
}

fn hour_name(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:00").to_string()
}

fn numbers(name: String, stats: &Stats) -> [Cell; 9] {
    let bad = stats.failed + stats.timed_out + stats.dead + stats.expired;
    let millis = |bound: Option<u64>| bound.map(times::span).unwrap_or_default();
    let rate = stats.success_rate.map(|rate| format!("{:.1} %", rate * 100.0)).unwrap_or_default();
    [
        name.into(),
        Cell::number(stats.runs),
        Cell::number(stats.succeeded),
        if bad == 0 { Cell::number(bad) } else { Cell::toned(bad.to_string(), Tone::Bad) },
        Cell::number(rate),
        Cell::number(millis(stats.duration.p50_ms)),
        Cell::number(millis(stats.duration.p99_ms)),
        Cell::number(millis(stats.start_delay.p50_ms)),
        Cell::number(millis(stats.start_delay.p99_ms)),
    ]
}
