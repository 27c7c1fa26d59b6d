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
    /// Make a job from flags or a document; one that is there is not touched
    Create(WriteArgs),
    /// Make a job, or save a new version of one that is there; flags change what they name,
    /// a file is the whole job
    Save(SaveArgs),
    /// Edit a job's document in $EDITOR
    Edit {
        /// The job, by name or number
        job: String,
    },
    /// Say what saving a document would do, and when it would fire
    Check(DocumentArgs),
    /// Delete jobs: their schedules end, their history stays
    Delete(DeleteArgs),
    /// Run a job now
    Trigger(TriggerArgs),
    /// Keep jobs from firing; what is queued still runs
    Pause {
        /// The jobs, by name or number
        jobs: Vec<String>,
        #[command(flatten)]
        pause: PauseArgs,
        #[command(flatten)]
        many: ManyJobsArgs,
    },
    /// Let jobs fire again
    Resume {
        /// The jobs, by name or number
        jobs: Vec<String>,
        #[command(flatten)]
        many: ManyJobsArgs,
    },
    /// List the versions of a job
    Versions {
        /// The job, by name or number
        job: String,
    },
    /// Compare two versions of a job, or the newest with a file
    Diff(DiffArgs),
    /// Show what a job's runs did, by the hour
    Stats(StatsArgs),
    /// Print the JSON Schema of the job document, for editors
    Schema,
    /// Save many jobs from a stream, a JSON document a line
    Import(ImportArgs),
}

#[derive(Args)]
pub struct ListJobsArgs {
    /// Those that have this tag
    #[arg(long)]
    tag: Option<String>,
    /// Those of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Those whose names start so
    #[arg(long)]
    prefix: Option<String>,
    /// Only those that are enabled by definition, or with `=false` those that are not
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enabled: Option<bool>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Args)]
pub struct ShowArgs {
    /// The job, by name or number
    job: String,
    /// Print its document alone, to be edited and saved again
    #[arg(long, conflicts_with = "watch")]
    document: bool,
    #[command(flatten)]
    watch: WatchArgs,
}

#[derive(Args)]
pub struct WriteArgs {
    #[command(flatten)]
    document: DocumentArgs,
    /// Only say what would happen
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct SaveArgs {
    #[command(flatten)]
    write: WriteArgs,
    /// Do not ask before schedules end that are not in what is saved
    #[arg(short, long)]
    yes: bool,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The jobs, by name or number
    #[arg(required = true)]
    jobs: Vec<String>,
    /// Let what runs go on; else it is asked to stop
    #[arg(long)]
    keep_running: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

#[derive(Args)]
pub struct TriggerArgs {
    /// The job, by name or number
    job: String,
    /// The payload as JSON, @FILE to read it, - for standard input
    /// [default: the job's own]
    #[arg(short, long, value_name = "JSON")]
    payload: Option<String>,
    /// A label of the run; may be given several times
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Not before this time: an instant, or +2h
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// From 1, the most urgent, to 10 [default: the job's own]
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// Sent again under the same key within 24 hours, no second run is made
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Follow its log and wait for its end; 0 if it succeeded, else 1
    #[arg(short, long)]
    follow: bool,
}

#[derive(Args)]
pub struct DiffArgs {
    /// The job, by name or number
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
    /// The job, by name or number
    job: String,
    /// From then on: an instant, or 2d for two days ago [default: a day ago]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Up to then [default: now]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

#[derive(Args)]
pub struct ImportArgs {
    /// The file, a JSON document a line; - for standard input
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
