//! Pausing and resuming: one by name, or many by a filter.

use clap::Args;
use jiff::Timestamp;
use rota_api::{
    PauseRequest,
    bulk::{BulkDone, BulkPause, BulkResume, JobsFilter},
};
use serde_json::json;

use crate::{clock, failure::Failure, session::Session, times};

/// Why and for how long.
#[derive(Args)]
pub struct PauseArgs {
    /// For people who wonder
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// The pause ends by itself then: an instant, or +2h
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

impl PauseArgs {
    pub fn request(&self) -> Result<PauseRequest, Failure> {
        let until: Option<Timestamp> = times::of_flag("until", self.until.as_deref(), clock::now())?;
        Ok(PauseRequest { until, note: self.note.clone() })
    }
}

/// Jobs by name, or by a filter.
#[derive(Args)]
#[command(next_help_heading = "Many at once")]
pub struct ManyJobsArgs {
    /// Those that have this tag
    #[arg(long, conflicts_with = "jobs")]
    tag: Option<String>,
    /// Those of this queue
    #[arg(long, conflicts_with = "jobs")]
    queue: Option<String>,
    /// Those whose names start so
    #[arg(long, conflicts_with = "jobs")]
    prefix: Option<String>,
    /// Every job of the tenant
    #[arg(long, conflicts_with_all = ["jobs", "tag", "queue", "prefix"])]
    all: bool,
    /// Only count
    #[arg(long, conflicts_with = "jobs")]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

impl ManyJobsArgs {
    /// None where jobs are named; wrong where nothing says which.
    fn filter(&self, named: bool) -> Result<Option<JobsFilter>, Failure> {
        let filter = JobsFilter { tag: self.tag.clone(), queue: self.queue.clone(), prefix: self.prefix.clone() };
        if named {
            return Ok(None);
        }
        if filter == JobsFilter::default() && !self.all {
            let message = "name jobs, or say which with --tag, --queue, --prefix or --all".to_owned();
            return Err(Failure::bad_input("nothing_named", message));
        }
        Ok(Some(filter))
    }
}

/// Pauses one thing after the other.
pub async fn pause(session: &mut Session<'_>, kind: &str, names: &[String], args: &PauseArgs) -> Result<(), Failure> {
    let request = args.request()?;
    for name in names {
        session.remote.post::<()>(&[kind, name, "pause"], &request).await?;
    }
    told(session, "paused", names)
}

pub async fn resume(session: &mut Session<'_>, kind: &str, names: &[String]) -> Result<(), Failure> {
    for name in names {
        session.remote.post::<()>(&[kind, name, "resume"], &json!({})).await?;
    }
    told(session, "resumed", names)
}

fn told(session: &mut Session<'_>, what: &str, names: &[String]) -> Result<(), Failure> {
    session.done(&json!({ what: names }), format_args!("{what} {}", names.join(", ")))
}

pub async fn pause_jobs(
    session: &mut Session<'_>,
    jobs: &[String],
    many: &ManyJobsArgs,
    args: &PauseArgs,
) -> Result<(), Failure> {
    let Some(filter) = many.filter(!jobs.is_empty())? else { return pause(session, "jobs", jobs, args).await };
    let PauseRequest { until, note } = args.request()?;
    let mut request = BulkPause { filter, until, note, dry_run: true };
    let found: BulkDone = session.remote.post(&["bulk", "pause"], &request).await?;
    if many.dry_run {
        return counted(session, "would be paused", &found);
    }
    session.confirm(many.yes, &format!("Pause {} jobs?", found.matched))?;
    request.dry_run = false;
    let done: BulkDone = session.remote.post(&["bulk", "pause"], &request).await?;
    counted(session, "paused", &done)
}

pub async fn resume_jobs(session: &mut Session<'_>, jobs: &[String], many: &ManyJobsArgs) -> Result<(), Failure> {
    let Some(filter) = many.filter(!jobs.is_empty())? else { return resume(session, "jobs", jobs).await };
    let mut request = BulkResume { filter, dry_run: true };
    let found: BulkDone = session.remote.post(&["bulk", "resume"], &request).await?;
    if many.dry_run {
        return counted(session, "would be resumed", &found);
    }
    session.confirm(many.yes, &format!("Resume {} jobs?", found.matched))?;
    request.dry_run = false;
    let done: BulkDone = session.remote.post(&["bulk", "resume"], &request).await?;
    counted(session, "resumed", &done)
}

/// Says what a request by filter did.
pub fn counted(session: &mut Session<'_>, what: &str, done: &BulkDone) -> Result<(), Failure> {
    let count = if done.dry_run { done.matched } else { done.done };
    let more = if done.more { "; there are more: ask again" } else { "" };
    let left = if !done.dry_run && done.done < done.matched {
        format!(" of {} found (the others had changed meanwhile)", done.matched)
    } else {
        String::new()
    };
    session.done(done, format_args!("{count} {what}{left}{more}"))
}
