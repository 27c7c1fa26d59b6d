//! `rota run`: executions, listed, followed, stopped, made again.

mod enqueue;
mod follow;
mod many;
mod read;

use clap::{Args, Subcommand};
use rota_api::run::RetryRequest;

pub use self::{
    follow::follow,
    many::{RunFilterArgs, redrive, retry},
    read::{list, show},
};
use crate::{
    failure::Failure,
    printer::Printer,
    session::{ListArgs, Noun, WatchArgs},
};

pub type RunArgs = Noun<Command>;

#[derive(Subcommand)]
pub enum Command {
    /// List runs: live ones first, then ended ones, latest first
    List(ListRunsArgs),
    /// Show a run
    Show(OneRunArgs),
    /// Print the log of a run
    Logs(LogsArgs),
    /// Show what happened to a run
    Events(OneRunArgs),
    /// Explain why a run waits
    Why(OneRunArgs),
    /// Wait for the end of a run, or of a job's newest or first run; exit with 0 if it succeeded, otherwise with 1
    Wait(WaitArgs),
    /// Cancel runs, by their ids, by the name of a job, or by a filter
    Cancel(CancelArgs),
    /// Retry runs that have ended
    Retry {
        /// Their ids, or the names of jobs for their newest runs
        #[arg(required = true, value_name = "RUN|JOB")]
        runs: Vec<String>,
        /// Use the job's newest version, not the one of the run
        #[arg(long)]
        latest: bool,
        /// Even if they were redriven before
        #[arg(long)]
        again: bool,
    },
    /// Create many runs from a stream of JSON objects, one per line: `{"job": …}` and what a trigger takes
    Enqueue {
        /// The file; - for standard input
        #[arg(value_name = "FILE")]
        file: std::path::PathBuf,
    },
}

#[derive(Args)]
pub struct ListRunsArgs {
    #[command(flatten)]
    filter: RunFilterArgs,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Args)]
pub struct OneRunArgs {
    #[command(flatten)]
    run: RunName,
    #[command(flatten)]
    watch: WatchArgs,
}

/// A run, or the newest one of a job.
#[derive(Args)]
pub struct RunName {
    /// The run's id, or a job's name for its newest run
    #[arg(value_name = "RUN|JOB")]
    pub run: String,
}

#[derive(Args)]
pub struct LogsArgs {
    #[command(flatten)]
    run: RunName,
    /// Continue until the run ends
    #[arg(short, long)]
    follow: bool,
    /// Only the lines of this attempt
    #[arg(long, value_name = "N")]
    attempt: Option<u16>,
    /// Show the time, the attempt and the stream of each line
    #[arg(short, long)]
    details: bool,
}

#[derive(Args)]
pub struct WaitArgs {
    #[command(flatten)]
    run: RunName,
    /// Give up after this time, with exit code 1
    #[arg(long, value_name = "DURATION")]
    timeout: Option<rota_core::duration::Span>,
}

#[derive(Args)]
pub struct CancelArgs {
    /// Their ids, or the names of jobs for their newest runs; if none are given, all that the filter finds
    #[arg(value_name = "RUN|JOB")]
    runs: Vec<String>,
    /// A note for people
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// How long attempts may take to stop [default: the job's own]
    #[arg(long, value_name = "DURATION")]
    grace: Option<String>,
    #[command(flatten)]
    filter: RunFilterArgs,
    /// Every live run of the tenant
    #[arg(long, conflicts_with = "runs")]
    all: bool,
    /// Only show how many would be changed
    #[arg(long, conflicts_with = "runs")]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub fn run(args: RunArgs, printer: &mut Printer) -> Result<(), Failure> {
    args.run(printer, async |session, command| match command {
        Command::List(args) => read::list(session, "runs", &args, None).await,
        Command::Show(args) => read::show(session, &args).await,
        Command::Logs(args) => follow::logs(session, &args).await,
        Command::Events(args) => read::events(session, &args).await,
        Command::Why(args) => read::why(session, &args).await,
        Command::Wait(args) => follow::wait(session, &args).await,
        Command::Cancel(args) => many::cancel(session, &args).await,
        Command::Retry { runs, latest, again } => {
            let runs = read::find_all(&session.client, runs).await?;
            many::retry(session, &runs, RetryRequest { latest, again }).await
        }
        Command::Enqueue { file } => enqueue::enqueue(session, &file).await,
    })
}
