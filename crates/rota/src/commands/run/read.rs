//! Runs, listed and shown.

use std::io;

use jiff::Timestamp;
use rota_api::{
    job::Job,
    run::{Run, RunEvent, Why},
};
use rota_client::Client;
use uuid::Uuid;

use super::{ListRunsArgs, OneRunArgs, RunName};
use crate::{
    clock,
    commands::shown,
    failure::Failure,
    printer::{Output, Printer},
    session::Session,
    table::{Cell, Table, Tone},
    times,
};

/// Runs of a kind: all of them, or dead letters.
/// Lists runs, or what else is found in the same ways; `more` is asked beside the filter.
pub async fn list(
    session: &mut Session<'_>,
    kind: &str,
    args: &ListRunsArgs,
    more: Option<(&'static str, String)>,
) -> Result<(), Failure> {
    let mut query = args.filter.query(clock::now())?;
    query.extend(more);
    if session.output != Output::Table {
        // Whoever has it read by a program wants all of it.
        query.push(("include", "payload,output".to_owned()));
    }
    session.list(&args.list, &[kind], &query, shown::runs).await
}

impl RunName {
    /// The run's id: as given, or that of the job's newest run.
    pub async fn find(&self, client: &Client) -> Result<String, Failure> {
        let run = self.find_maybe(client).await?;
        run.ok_or_else(|| Failure::not_found(format!("`{}` has no runs yet", self.run)))
    }

    /// As [`Self::find`]; none where the job has not run yet.
    pub async fn find_maybe(&self, client: &Client) -> Result<Option<String>, Failure> {
        if self.run.parse::<Uuid>().is_ok() {
            return Ok(Some(self.run.clone()));
        }
        let newest: Result<Run, _> = client.get(&["jobs", &self.run, "runs", "newest"], &[]).await;
        match newest {
            Ok(run) => Ok(Some(run.id.to_string())),
            Err(error) if error.is_not_found() => self.no_run(client).await,
            Err(error) => Err(error.into()),
        }
    }

    /// Why there is no newest run.
    async fn no_run(&self, client: &Client) -> Result<Option<String>, Failure> {
        match client.get::<Job>(&["jobs", &self.run], &[]).await {
            Ok(_) => Ok(None),
            Err(error) if error.is_not_found() => {
                Err(Failure::not_found(format!("`{}` is neither the id of a run nor the name of a job", self.run)))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The ids of runs that are given by their ids or the names of their jobs.
pub async fn find_all(client: &Client, runs: Vec<String>) -> Result<Vec<String>, Failure> {
    let mut found = Vec::with_capacity(runs.len());
    for run in runs {
        found.push(RunName { run }.find(client).await?);
    }
    Ok(found)
}

pub async fn show(session: &mut Session<'_>, args: &OneRunArgs) -> Result<(), Failure> {
    session
        .watched(&args.watch, async |session| {
            let id = args.run.find(&session.client).await?;
            let run: Run = session.client.get(&["runs", &id], &[]).await?;
            session.answer(&run, |printer| whole(&run, clock::now(), printer))
        })
        .await
}

fn whole(run: &Run, now: Timestamp, printer: &mut Printer) -> io::Result<()> {
    let at = |at: Option<Timestamp>| at.map(|at| format!("{at} ({})", times::from_now(at, now))).unwrap_or_default();
    let labels: Vec<String> = run.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut fields = Table::fields();
    fields.field("run", run.id.to_string());
    fields.field("job", format!("{} (version {})", run.job.name, run.version));
    fields.field("status", shown::status(run.status));
    fields.field("trigger", shown::trigger(run));
    fields.field("labels", labels.join(" "));
    fields.field("payload", shown::json(run.payload.as_ref()));
    fields.field("created", at(Some(run.created_at)));
    let first = run.first_started_at.or(run.started_at);
    fields.field("started", at(first));
    fields.field("last attempt", at(run.started_at.filter(|at| Some(*at) != first)));
    fields.field("ended", at(run.ended_at));
    fields.field("took", shown::duration(run, now));
    fields.field("failed attempts", if run.attempts_used > 0 { run.attempts_used.to_string() } else { String::new() });
    fields.field("lost workers", if run.losses > 0 { run.losses.to_string() } else { String::new() });
    if let Some(failure) = &run.failure {
        let status = failure.status.map(|status| format!(" ({status})")).unwrap_or_default();
        let words = format!("{}{status}: {}", failure.kind, failure.message);
        fields.field("failure", Cell::toned(words, Tone::Bad));
    }
    if let Some(follower) = &run.follower {
        fields.field("redriven", format!("automatically, as {} at {}", follower.run, at(Some(follower.at))));
    }
    if let Some(cancel) = &run.cancel {
        let by = cancel.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        let reason = cancel.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        fields.field("cancel", format!("requested {}{by}{reason}", times::from_now(cancel.at, now)));
    }
    fields.field("progress", shown::json(run.progress.as_ref()));
    fields.field("output", shown::json(run.output.as_ref()));
    printer.table(fields)
}

pub async fn events(session: &mut Session<'_>, args: &OneRunArgs) -> Result<(), Failure> {
    session
        .watched(&args.watch, async |session| {
            let id = args.run.find(&session.client).await?;
            let events: Vec<RunEvent> = session.client.get(&["runs", &id, "events"], &[]).await?;
            session.answer(&events, |printer| {
                let mut table = Table::new(&["AT", "EVENT", "WHAT"]);
                for event in &events {
                    table.row([event.at.to_string().into(), event.event.clone().into(), event.text.clone().into()]);
                }
                printer.table(table)
            })
        })
        .await
}

pub async fn why(session: &mut Session<'_>, args: &OneRunArgs) -> Result<(), Failure> {
    session
        .watched(&args.watch, async |session| {
            let id = args.run.find(&session.client).await?;
            let why: Why = session.client.get(&["runs", &id, "why"], &[]).await?;
            session.answer(&why, |printer| shown::why(&why, printer))
        })
        .await
}
