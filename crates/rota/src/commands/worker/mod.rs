//! `rota worker`: works for a server; and the workers that a server knows.

mod registry;
mod work;

use clap::{Args, Subcommand};
use rota_api::worker::WorkerState;

use crate::{
    failure::Failure,
    printer::{Output, Printer},
    session::{ListArgs, Session, SessionArgs, block_on},
    target::ServerArgs,
};

#[derive(Args)]
#[command(
    override_usage = "rota worker [OPTIONS]\n       rota worker <COMMAND>",
    after_help = "Without a command, `rota worker` executes attempts for the server until it is told to stop. \
                  Settings that only a node uses are ignored. It exits with 0 when it has drained, and with \
                  128 and the signal's number after a second signal."
)]
pub struct WorkerArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    work: work::WorkArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// List workers: built-in and remote ones; dead ones are listed for a day
    List {
        /// Only those in this state
        #[arg(long, value_parser = state, value_name = "active|draining|dead")]
        state: Option<WorkerState>,
        #[command(flatten)]
        list: ListArgs,
        #[command(flatten)]
        form: Form,
    },
    /// Ask remote workers to take no more work, finish their attempts, and leave
    Drain {
        /// Their ids, or unique names
        #[arg(required = true, value_name = "WORKER")]
        workers: Vec<String>,
        #[command(flatten)]
        form: Form,
    },
}

#[derive(Args)]
struct Form {
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

fn state(text: &str) -> Result<WorkerState, String> {
    serde_json::from_value(text.into()).map_err(|_| "one of active, draining, dead".to_owned())
}

pub fn run(args: WorkerArgs, printer: &mut Printer) -> Result<(), Failure> {
    let Some(command) = args.command else { return work::run(&args.server, &args.work) };
    if !args.work.is_empty() {
        let message = "these flags are for `rota worker` without a command".to_owned();
        return Err(Failure::bad_input("bad_flags", message));
    }
    let (Command::List { form: Form { output }, .. } | Command::Drain { form: Form { output }, .. }) = command;
    let mut session = Session::open(&SessionArgs { server: args.server, output }, printer)?;
    let session = &mut session;
    block_on(async move {
        match command {
            Command::List { state, list, .. } => registry::list(session, state, &list).await,
            Command::Drain { workers, .. } => registry::drain(session, &workers).await,
        }
    })
}
