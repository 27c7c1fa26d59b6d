//! `rota dead`: runs that used up their attempts and wait for a person.

use clap::{Args, Subcommand};
use rota_api::{
    bulk::{BulkRedrive, RunsFilter},
    run::RetryRequest,
};

use super::run::{self, ListRunsArgs, OneRunArgs, RunFilterArgs};
use crate::{
    clock,
    failure::Failure,
    printer::Printer,
    session::{Noun, Session},
};

pub type DeadArgs = Noun<Command>;

#[derive(Subcommand)]
pub enum Command {
    /// List dead letters, latest first
    List(ListRunsArgs),
    /// Show a dead letter and why it died
    Show(OneRunArgs),
    /// Make dead letters again, by their ids or by a filter
    Redrive(RedriveArgs),
}

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct RedriveArgs {
    /// Their ids; without any, all that the filter finds
    #[arg(value_name = "RUN")]
    runs: Vec<String>,
    /// Of the jobs' newest versions, not of those they were made from
    #[arg(long)]
    latest: bool,
    /// Although they were made again before
    #[arg(long)]
    again: bool,
    #[command(flatten)]
    filter: RunFilterArgs,
    /// Every dead letter of the tenant
    #[arg(long, conflicts_with = "runs")]
    all: bool,
    /// Only count
    #[arg(long, conflicts_with = "runs")]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub fn run(args: DeadArgs, printer: &mut Printer) -> Result<(), Failure> {
    args.run(printer, async |session, command| match command {
        Command::List(args) => run::list(session, "dead-letters", &args).await,
        Command::Show(args) => run::show(session, &args).await,
        Command::Redrive(args) => redrive(session, &args).await,
    })
}

async fn redrive(session: &mut Session<'_>, args: &RedriveArgs) -> Result<(), Failure> {
    if !args.runs.is_empty() {
        return run::retry(session, &args.runs, RetryRequest { latest: args.latest, again: args.again }).await;
    }
    let filter = args.filter.filter(clock::now())?;
    if filter == RunsFilter::default() && !args.all {
        let message = "name runs, or say which with --job, --tag, --from, … or --all".to_owned();
        return Err(Failure::bad_input("nothing_named", message));
    }
    let request = BulkRedrive { filter, latest: args.latest, again: args.again, dry_run: true };
    run::redrive(session, request, args.dry_run, args.yes).await
}
