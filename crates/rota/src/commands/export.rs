//! `rota export`: a server's jobs and calendars as files, to be kept and applied.
//!
//! Applying what was exported changes nothing. There is no secret in it: documents
//! refer to secrets by name, and a document that holds one is refused when it is
//! saved.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use rota_api::job::Job;
use rota_client::Query;
use serde_json::{Value, json};

use crate::{
    failure::Failure,
    printer::{Output, Printer},
    session::{Session, SessionArgs, block_on},
    yaml,
};

#[derive(Args)]
pub struct ExportArgs {
    #[command(flatten)]
    session: SessionArgs,
    /// The jobs, by name or id [default: all]
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    /// Write one file per job into this directory, and calendars into its subdirectory
    /// `calendars` [default: print jobs to standard output]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only those with this tag
    #[arg(long, conflicts_with = "jobs")]
    tag: Option<String>,
    /// Only those whose names start with this
    #[arg(long, conflicts_with = "jobs")]
    prefix: Option<String>,
}

pub fn run(args: ExportArgs, printer: &mut Printer) -> Result<(), Failure> {
    let mut session = Session::open(&args.session, printer)?;
    let session = &mut session;
    block_on(async move {
        let jobs = jobs(session, &args).await?;
        match &args.dir {
            Some(directory) => {
                let (calendars, _) = session.client.list::<Value>(&["calendars"], &[], usize::MAX).await?;
                to_files(session, directory, &jobs, &calendars)
            }
            None => to_output(session, &jobs),
        }
    })
}

async fn jobs(session: &Session<'_>, args: &ExportArgs) -> Result<Vec<Job>, Failure> {
    if args.jobs.is_empty() {
        let mut query = Query::new();
        query.extend(args.tag.clone().map(|tag| ("tag", tag)));
        query.extend(args.prefix.clone().map(|prefix| ("prefix", prefix)));
        return Ok(session.client.list(&["jobs"], &query, usize::MAX).await?.0);
    }
    let mut jobs = Vec::new();
    for job in &args.jobs {
        jobs.push(session.client.get(&["jobs", job], &[]).await?);
    }
    Ok(jobs)
}

fn to_output(session: &mut Session<'_>, jobs: &[Job]) -> Result<(), Failure> {
    if session.output == Output::Json {
        let documents: Vec<&Value> = jobs.iter().map(|job| &job.document).collect();
        return Ok(session.printer.json(&documents)?);
    }
    for (n, job) in jobs.iter().enumerate() {
        let divider = if n > 0 { "---\n" } else { "" };
        session.printer.text(&format!("{divider}{}", yaml::document(&job.document)?))?;
    }
    Ok(())
}

fn to_files(session: &mut Session<'_>, directory: &Path, jobs: &[Job], calendars: &[Value]) -> Result<(), Failure> {
    for job in jobs {
        write(directory, &job.name, &yaml::document(&job.document)?)?;
    }
    for value in calendars {
        write(&directory.join("calendars"), super::job::name_of(value)?, &yaml::document(value)?)?;
    }
    let told = json!({ "jobs": jobs.len(), "calendars": calendars.len(), "directory": directory });
    let words = format!("{} jobs and {} calendars written to {}", jobs.len(), calendars.len(), directory.display());
    session.done(&told, words)
}

fn write(directory: &Path, name: &str, text: &str) -> Result<(), Failure> {
    // Names have no slash and start with no dot; a server that says otherwise
    // must not choose where files are written.
    if name.contains(['/', '\\', '\0']) || name.starts_with('.') {
        return Err(Failure::Other(anyhow::anyhow!(
            "the server has an object named {name:?}, which cannot be used as a file name"
        )));
    }
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let path = directory.join(format!("{name}.yaml"));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}
