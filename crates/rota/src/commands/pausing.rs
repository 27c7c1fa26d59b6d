//! Pausing and resuming: one by name, or many by a filter.

use clap::Args;
use jiff::Timestamp;
use rota_api::{
    PauseRequest,
    bulk::{BulkPause, BulkResume, JobsFilter},
};
use serde_json::json;

use super::bulk::{Asked, Words, bulk};
use crate::{clock, failure::Failure, session::Session, times};

/// Why and for how long.
#[derive(Args)]
pub struct PauseArgs {
    /// A note for people
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// When the pause ends by itself: an instant, or +2h
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
#[command(next_help_heading = "Several jobs")]
pub struct ManyJobsArgs {
    /// Only those with this tag
    #[arg(long, conflicts_with = "jobs")]
    tag: Option<String>,
    /// Only those of this queue
    #[arg(long, conflicts_with = "jobs")]
    queue: Option<String>,
    /// Only those whose names start with this
    #[arg(long, conflicts_with = "jobs")]
    prefix: Option<String>,
    /// Every job of the tenant
    #[arg(long, conflicts_with_all = ["jobs", "tag", "queue", "prefix"])]
    all: bool,
    /// Only show how many would be changed
    #[arg(long, conflicts_with = "jobs")]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

impl ManyJobsArgs {
    const fn asked(&self) -> Asked {
        Asked { dry_run: self.dry_run, yes: self.yes }
    }

    /// None where jobs are named; wrong where nothing says which.
    fn filter(&self, named: bool) -> Result<Option<JobsFilter>, Failure> {
        let filter = JobsFilter { tag: self.tag.clone(), queue: self.queue.clone(), prefix: self.prefix.clone() };
        if named {
            return Ok(None);
        }
        if filter == JobsFilter::default() && !self.all {
            let message = "name the jobs, or select them with --tag, --queue, --prefix or --all".to_owned();
            return Err(Failure::bad_input("nothing_named", message));
        }
        Ok(Some(filter))
    }
}

/// Pauses one thing after the other.
pub async fn pause(session: &mut Session<'_>, kind: &str, names: &[String], args: &PauseArgs) -> Result<(), Failure> {
    pause_each(session, kind, names, args).await?;
    told(session, "paused", names)
}

pub async fn resume(session: &mut Session<'_>, kind: &str, names: &[String]) -> Result<(), Failure> {
    resume_each(session, kind, names).await?;
    told(session, "resumed", names)
}

/// As [`pause`], of things whose ids are not what they were called by.
pub async fn pause_each(session: &Session<'_>, kind: &str, ids: &[String], args: &PauseArgs) -> Result<(), Failure> {
    let request = args.request()?;
    for id in ids {
        session.client.post::<()>(&[kind, id, "pause"], &request).await?;
    }
    Ok(())
}

pub async fn resume_each(session: &Session<'_>, kind: &str, ids: &[String]) -> Result<(), Failure> {
    for id in ids {
        session.client.post::<()>(&[kind, id, "resume"], &json!({})).await?;
    }
    Ok(())
}

pub fn told(session: &mut Session<'_>, what: &str, names: &[String]) -> Result<(), Failure> {
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
    let words = Words { verb: "pause", things: "jobs", would: "paused", done: "paused" };
    bulk(session, &words, many.asked(), |dry_run| BulkPause {
        filter: filter.clone(),
        until,
        note: note.clone(),
        dry_run,
    })
    .await
}

pub async fn resume_jobs(session: &mut Session<'_>, jobs: &[String], many: &ManyJobsArgs) -> Result<(), Failure> {
    let Some(filter) = many.filter(!jobs.is_empty())? else { return resume(session, "jobs", jobs).await };
    let words = Words { verb: "resume", things: "jobs", would: "resumed", done: "resumed" };
    bulk(session, &words, many.asked(), |dry_run| BulkResume { filter: filter.clone(), dry_run }).await
}
