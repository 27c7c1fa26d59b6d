//! `rota job`: definitions, saved, read, triggered, paused, deleted.

mod edit;
mod flags;
mod history;
mod import;
mod read;
mod save;
mod write;

use clap::{Args, Subcommand};

use self::flags::DocumentArgs;
use super::pausing::{self, ManyJobsArgs, PauseArgs};
use crate::{
    failure::Failure,
    printer::Printer,
    session::{ListArgs, Noun, WatchArgs},
};

pub use self::write::{Beside, checked_beside, name_of, warned};

pub type JobArgs = Noun<Command>;

#[derive(Subcommand)]
pub enum Command {
    /// List jobs by name
    List(ListJobsArgs),
    /// Show a job: its schedules and its latest runs
    Show(ShowArgs),
    /// Create a job from flags or a document; fails if it already exists
    Create(WriteArgs),
    /// Create a job, or save a new version of an existing one; flags change only what they name,
    /// a file replaces the whole job
    Save(SaveArgs),
    /// Edit a job's document in $EDITOR
    Edit {
        /// The job, by name or id
        job: String,
    },
    /// Show what saving a document would do, and when its schedules would fire
    Check(DocumentArgs),
    /// Delete jobs: their schedules end, their history stays
    Delete(DeleteArgs),
    /// Run a job now
    Trigger(TriggerArgs),
    /// Pause jobs: their schedules do not fire; queued runs still start
    Pause {
        /// The jobs, by name or id
        jobs: Vec<String>,
        #[command(flatten)]
        pause: PauseArgs,
        #[command(flatten)]
        many: ManyJobsArgs,
    },
    /// Resume jobs: their schedules fire again
    Resume {
        /// The jobs, by name or id
        jobs: Vec<String>,
        #[command(flatten)]
        many: ManyJobsArgs,
    },
    /// List the versions of a job
    Versions {
        /// The job, by name or id
        job: String,
    },
    /// Compare two versions of a job, or the newest with a file
    Diff(DiffArgs),
    /// Show hourly statistics of a job's runs
    Stats(StatsArgs),
    /// Print the JSON Schema of the job document, for editors
    Schema,
    /// Save many jobs from a stream of JSON documents, one per line
    Import(ImportArgs),
}

#[derive(Args)]
pub struct ListJobsArgs {
    /// Only those with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Only those of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only those whose names start with this
    #[arg(long)]
    prefix: Option<String>,
    /// Only those that are enabled, or with `=false` those that are not
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enabled: Option<bool>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Args)]
pub struct ShowArgs {
    /// The job, by name or id
    job: String,
    /// Print only its document, to be edited and saved again
    #[arg(long, conflicts_with = "watch")]
    document: bool,
    #[command(flatten)]
    watch: WatchArgs,
}

#[derive(Args)]
pub struct WriteArgs {
    #[command(flatten)]
    document: DocumentArgs,
    /// Only show what would happen
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct SaveArgs {
    #[command(flatten)]
    write: WriteArgs,
    /// Do not ask for confirmation before schedules are removed that are not in the new version
    #[arg(short, long)]
    yes: bool,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The jobs, by name or id
    #[arg(required = true)]
    jobs: Vec<String>,
    /// Let running attempts continue instead of cancelling them
    #[arg(long)]
    keep_running: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

#[derive(Args)]
pub struct TriggerArgs {
    /// The job, by name or id
    job: String,
    /// The payload as JSON, @FILE to read it from a file, - for standard input
    /// [default: the job's own]
    #[arg(short, long, value_name = "JSON")]
    payload: Option<String>,
    /// A label of the run; may be given several times
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Do not start before this time: an instant, or +2h
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// The priority from 1, the most urgent, to 10 [default: the job's own]
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// Idempotency key: repeated within 24 hours with the same key, the command creates no second run
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Follow its log and wait for its end; exit with 0 if it succeeded, otherwise with 1
    #[arg(short, long)]
    follow: bool,
}

#[derive(Args)]
pub struct DiffArgs {
    /// The job, by name or id
    job: String,
    /// The older version [default: the one before the newest]
    #[arg(conflicts_with = "file")]
    from: Option<i32>,
    /// The newer version [default: the newest]
    #[arg(conflicts_with = "file")]
    to: Option<i32>,
    /// Compare the newest version with this document
    #[arg(short, long, value_name = "FILE")]
    file: Option<std::path::PathBuf>,
}

#[derive(Args)]
pub struct StatsArgs {
    /// The job, by name or id
    job: String,
    /// The start of the range: an instant, or 2d for two days ago [default: a day ago]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// The end of the range [default: now]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

#[derive(Args)]
pub struct ImportArgs {
    /// The file, with one JSON document per line; - for standard input
    #[arg(value_name = "FILE")]
    file: std::path::PathBuf,
}

pub fn run(args: JobArgs, printer: &mut Printer) -> Result<(), Failure> {
    args.run(printer, async |session, command| match command {
        Command::List(args) => read::list(session, &args).await,
        Command::Show(args) => read::show(session, &args).await,
        Command::Create(args) => write::create(session, &args).await,
        Command::Save(args) => save::save(session, &args).await,
        Command::Edit { job } => edit::edit(session, &job).await,
        Command::Check(args) => save::check(session, &args).await,
        Command::Delete(args) => write::delete(session, &args).await,
        Command::Trigger(args) => write::trigger(session, &args).await,
        Command::Pause { jobs, pause, many } => pausing::pause_jobs(session, &jobs, &many, &pause).await,
        Command::Resume { jobs, many } => pausing::resume_jobs(session, &jobs, &many).await,
        Command::Versions { job } => history::versions(session, &job).await,
        Command::Diff(args) => history::diff(session, &args).await,
        Command::Stats(args) => history::stats(session, &args).await,
        Command::Schema => Ok(session.printer.text(rota_api::job::SCHEMA)?),
        Command::Import(args) => import::import(session, &args).await,
    })
}
