//! `rota dead`: runs that used up their attempts and wait for a person.

use clap::{Args, Subcommand};
use rota_api::{
    bulk::{BulkRedrive, RunsFilter},
    run::RetryRequest,
};

use super::{
    run::{self, RunFilterArgs, RunName},
    shown,
};
use crate::{
    clock,
    failure::Failure,
    printer::Printer,
    session::{ListArgs, Session, SessionArgs, WatchArgs, block_on},
};

#[derive(Args)]
pub struct DeadArgs {
    #[command(flatten)]
    session: SessionArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List dead letters, latest first
    List {
        #[command(flatten)]
        filter: RunFilterArgs,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show a dead letter and why it died
    Show {
        #[command(flatten)]
        run: RunName,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Make dead letters again, by their ids or by a filter
    Redrive(RedriveArgs),
}

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
struct RedriveArgs {
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
    let mut session = Session::open(&args.session, printer)?;
    let session = &mut session;
    block_on(async move {
        match args.command {
            Command::List { filter, list } => {
                let query = filter.query(clock::now())?;
                session.list(&list, &["dead-letters"], &query, shown::runs).await
            }
            Command::Show { run, watch } => run::show(session, &run, &watch).await,
            Command::Redrive(args) => redrive(session, &args).await,
        }
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
