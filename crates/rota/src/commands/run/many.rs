//! Runs, found by a filter, stopped and made again.

use clap::Args;
use jiff::Timestamp;
use rota_api::{
    bulk::{BulkCancel, BulkRedrive, RunsFilter},
    run::{CancelRequest, CancelResult, RetryRequest, RunMade, Status},
};
use rota_client::Query;
use serde_json::{Value, json};

use super::CancelArgs;
use crate::{
    clock,
    commands::{
        bulk::{Asked, Words, bulk},
        shown,
    },
    failure::Failure,
    session::Session,
    times,
};

/// Which runs.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Which runs")]
pub struct RunFilterArgs {
    /// Only those of this job, by name or id
    #[arg(long)]
    job: Option<String>,
    /// Only those of jobs that have this tag now
    #[arg(long)]
    tag: Option<String>,
    /// Only those created by this schedule, by its id
    #[arg(long, value_name = "ID")]
    schedule: Option<i64>,
    /// Only those in this status; may be repeated, or be a list with commas
    #[arg(long, value_parser = status, value_delimiter = ',')]
    status: Vec<Status>,
    /// Only those with this label; may be repeated
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Only those created (live runs) or ended at this time or later: an instant, or 2h for two hours ago
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

fn status(text: &str) -> Result<Status, String> {
    serde_json::from_value(Value::String(text.to_owned())).map_err(|_| {
        "one of scheduled, blocked, queued, running, waiting, cancelling, succeeded, failed, timed_out, cancelled, \
         dead, expired, skipped"
            .to_owned()
    })
}

impl RunFilterArgs {
    pub fn filter(&self, now: Timestamp) -> Result<RunsFilter, Failure> {
        Ok(RunsFilter {
            job: self.job.clone(),
            tag: self.tag.clone(),
            schedule: self.schedule,
            status: self.status.clone(),
            label: self.labels.clone(),
            from: times::of_flag("from", self.from.as_deref(), now)?,
            to: times::of_flag("to", self.to.as_deref(), now)?,
        })
    }

    /// The same as a query.
    pub fn query(&self, now: Timestamp) -> Result<Query<'static>, Failure> {
        let filter = self.filter(now)?;
        let mut query = Query::new();
        query.extend(filter.job.map(|job| ("job", job)));
        query.extend(filter.tag.map(|tag| ("tag", tag)));
        query.extend(filter.schedule.map(|schedule| ("schedule", schedule.to_string())));
        query.extend(filter.status.iter().map(|status| ("status", shown::word(status))));
        query.extend(filter.label.into_iter().map(|label| ("label", label)));
        query.extend(filter.from.map(|from| ("from", from.to_string())));
        query.extend(filter.to.map(|to| ("to", to.to_string())));
        Ok(query)
    }
}

pub async fn cancel(session: &mut Session<'_>, args: &CancelArgs) -> Result<(), Failure> {
    let filter = args.filter.filter(clock::now())?;
    if args.runs.is_empty() {
        return cancel_found(session, args, filter).await;
    }
    if filter != RunsFilter::default() {
        let message = "give ids or a filter, not both".to_owned();
        return Err(Failure::bad_input("bad_flags", message));
    }
    let request = CancelRequest { reason: args.reason.clone(), grace: args.grace.clone() };
    let mut done = Vec::new();
    for run in &super::read::find_all(&session.client, args.runs.clone()).await? {
        done.push(session.client.post::<CancelResult>(&["runs", run, "cancel"], &request).await?);
    }
    session.answer(&done, |printer| {
        done.iter().try_for_each(|done| printer.line(&format!("{} {}", done.id, shown::word(&done.answer))))
    })
}

async fn cancel_found(session: &mut Session<'_>, args: &CancelArgs, filter: RunsFilter) -> Result<(), Failure> {
    if filter == RunsFilter::default() && !args.all {
        let message = "give the ids of runs, or select them with --job, --tag, --status, … or --all".to_owned();
        return Err(Failure::bad_input("nothing_named", message));
    }
    let words = Words { verb: "cancel", things: "runs", would: "cancelled", done: "cancelled, or asked to stop" };
    let asked = Asked { dry_run: args.dry_run, yes: args.yes };
    bulk(session, &words, asked, |dry_run| {
        let (reason, grace) = (args.reason.clone(), args.grace.clone());
        BulkCancel { filter: filter.clone(), reason, grace, dry_run }
    })
    .await
}

pub async fn retry(session: &mut Session<'_>, runs: &[String], request: RetryRequest) -> Result<(), Failure> {
    let mut made = Vec::new();
    for run in runs {
        let new: RunMade = session.client.post(&["runs", run, "retry"], &request).await?;
        made.push(json!({ "run": run, "made": new }));
    }
    session.answer(&made, |printer| {
        made.iter().try_for_each(|made| {
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (old, new, status) = (word(&made["run"]), word(&made["made"]["id"]), word(&made["made"]["status"]));
            printer.line(&format!("{old} retried as {new} {status}"))
        })
    })
}

/// Makes dead letters again by a filter.
pub async fn redrive(session: &mut Session<'_>, request: BulkRedrive, dry_run: bool, yes: bool) -> Result<(), Failure> {
    let words = Words { verb: "redrive", things: "runs", would: "redriven", done: "redriven" };
    bulk(session, &words, Asked { dry_run, yes }, |dry_run| BulkRedrive { dry_run, ..request.clone() }).await
}
