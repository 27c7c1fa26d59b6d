//! `rota limited`: takes on limits and becomes a program. Command steps are started by it
//! where the operator sets limits; nobody calls it by hand.
//!
//! A process can limit itself without a moment in which the program already runs.

use std::os::unix::process::CommandExt as _;

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::failure::Failure;

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

pub fn run(args: &LimitedArgs) -> Result<(), Failure> {
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
    Err(anyhow::anyhow!("{} could not be started: {error}", program.display()).into())
}
