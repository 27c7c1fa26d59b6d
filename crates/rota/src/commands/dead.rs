//! `rota dead`: runs that used up their attempts and wait for a person.

use clap::{Args, Subcommand};
use rota_api::{
    bulk::{BulkDiscard, BulkRedrive, RunsFilter},
    run::{DeadState, RetryRequest},
};
use serde_json::json;

use super::{
    bulk::{Asked, Words, bulk},
    run::{self, ListRunsArgs, OneRunArgs, RunFilterArgs},
    shown,
};
use crate::{
    clock,
    failure::Failure,
    printer::Printer,
    session::{Noun, Session},
};

pub type DeadArgs = Noun<Command>;

#[derive(Subcommand)]
pub enum Command {
    /// List dead letters, newest first
    List(ListDeadArgs),
    /// Show a dead letter and why it died
    Show(OneRunArgs),
    /// Redrive dead letters, by their ids or by a filter
    Redrive(RedriveArgs),
    /// Discard dead letters, by their ids or by a filter; history keeps them
    Discard(WhichArgs),
}

#[derive(Args)]
// Every dead letter has the one status.
#[command(mut_arg("status", |status| status.hide(true)))]
pub struct ListDeadArgs {
    /// Only those in this state: open (the default), redriven, discarded or all
    #[arg(long, value_parser = state, help_heading = "Which runs")]
    state: Option<DeadState>,
    #[command(flatten)]
    runs: ListRunsArgs,
}

fn state(text: &str) -> Result<DeadState, String> {
    serde_json::from_value(text.into()).map_err(|_| "one of open, redriven, discarded, all".to_owned())
}

#[derive(Args)]
pub struct RedriveArgs {
    #[command(flatten)]
    which: WhichArgs,
    /// Use the jobs' newest versions, not those of the runs
    #[arg(long)]
    latest: bool,
    /// Even if they were redriven before
    #[arg(long)]
    again: bool,
}

#[derive(Args)]
pub struct WhichArgs {
    /// Their ids; if none are given, all that the filter finds
    #[arg(value_name = "RUN")]
    runs: Vec<String>,
    #[command(flatten)]
    filter: RunFilterArgs,
    /// Every dead letter of the tenant
    #[arg(long, conflicts_with = "runs")]
    all: bool,
    /// Only show how many would be changed
    #[arg(long, conflicts_with = "runs")]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub fn run(args: DeadArgs, printer: &mut Printer) -> Result<(), Failure> {
    args.run(printer, async |session, command| match command {
        Command::List(ListDeadArgs { state, runs }) => {
            let state = state.map(|state| ("state", shown::word(&state)));
            run::list(session, "dead-letters", &runs, state).await
        }
        Command::Show(args) => run::show(session, &args).await,
        Command::Redrive(args) => redrive(session, &args).await,
        Command::Discard(args) => discard(session, &args).await,
    })
}

impl WhichArgs {
    /// What to look for where no ids are named.
    fn found(&self) -> Result<RunsFilter, Failure> {
        let filter = self.filter.filter(clock::now())?;
        if filter == RunsFilter::default() && !self.all {
            let message = "give the ids of runs, or select them with --job, --tag, --from, … or --all".to_owned();
            return Err(Failure::bad_input("nothing_named", message));
        }
        Ok(filter)
    }
}

async fn redrive(session: &mut Session<'_>, args: &RedriveArgs) -> Result<(), Failure> {
    let (which, latest, again) = (&args.which, args.latest, args.again);
    if !which.runs.is_empty() {
        return run::retry(session, &which.runs, RetryRequest { latest, again }).await;
    }
    let request = BulkRedrive { filter: which.found()?, latest, again, dry_run: true };
    run::redrive(session, request, which.dry_run, which.yes).await
}

async fn discard(session: &mut Session<'_>, which: &WhichArgs) -> Result<(), Failure> {
    if which.runs.is_empty() {
        let filter = which.found()?;
        let words = Words { verb: "discard", things: "dead letters", would: "discarded", done: "discarded" };
        let asked = Asked { dry_run: which.dry_run, yes: which.yes };
        return bulk(session, &words, asked, |dry_run| BulkDiscard { filter: filter.clone(), dry_run }).await;
    }
    for run in &which.runs {
        session.client.post::<()>(&["dead-letters", run, "discard"], &()).await?;
    }
    let done: Vec<_> = which.runs.iter().map(|id| json!({ "id": id, "state": "discarded" })).collect();
    session.answer(&done, |printer| which.runs.iter().try_for_each(|run| printer.line(&format!("{run} discarded"))))
}
