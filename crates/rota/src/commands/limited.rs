//! `rota limited`: takes on limits and becomes a program. Command steps are started by it
//! where the operator sets limits; nobody calls it by hand.
//!
//! A process can limit itself without a moment in which the program already runs. Where it
//! cannot become the program it ends by a signal: an exit code could be one that the step
//! expects of the program.

use std::os::unix::process::CommandExt as _;

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};

use crate::{failure::Failure, printer::Printer};

/// The command's name.
pub const LIMITED: &str = "limited";

#[derive(clap::Args)]
pub struct LimitedArgs {
    /// Bytes of memory of each process; `-` is no limit
    memory: String,
    /// Seconds of processor time of each process
    cpu: String,
    /// Processes of the user
    processes: String,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<std::ffi::OsString>,
}

pub fn run(args: &LimitedArgs, printer: &mut Printer) -> Result<(), Failure> {
    let limits = [(Resource::As, &args.memory), (Resource::Cpu, &args.cpu), (Resource::Nproc, &args.processes)];
    for (resource, text) in limits {
        if text != "-" {
            let most: u64 =
                text.parse().map_err(|_| Failure::bad_input("bad_limit", format!("`{text}` is not a limit")))?;
            let limit = Rlimit { current: Some(most), maximum: Some(most) };
            setrlimit(resource, limit).map_err(|error| anyhow::anyhow!("cannot set a limit: {error}"))?;
        }
    }
    let Some((program, arguments)) = args.program.split_first() else { return Ok(()) };
    let error = std::process::Command::new(program).args(arguments).exec();
    printer.note(&format!("{} could not be started: {error}", program.display()))?;
    Ok(kill_process(getpid(), Signal::KILL).map_err(anyhow::Error::from)?)
}
