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
    let error = become_program(args);
    // Whether or not anybody reads it, it ends in the same way.
    printer.note(&format!("{error:#}")).unwrap_or_default();
    Ok(kill_process(getpid(), Signal::KILL).map_err(anyhow::Error::from)?)
}

/// Comes back only with the reason why it could not.
fn become_program(args: &LimitedArgs) -> anyhow::Error {
    if let Err(error) = take_on(args) {
        return error.context("cannot set a limit");
    }
    let (program, arguments) = (&args.program[0], &args.program[1..]);
    let error = std::process::Command::new(program).args(arguments).exec();
    anyhow::anyhow!("{} could not be started: {error}", program.display())
}

fn take_on(args: &LimitedArgs) -> anyhow::Result<()> {
    let limits = [(Resource::As, &args.memory), (Resource::Cpu, &args.cpu), (Resource::Nproc, &args.processes)];
    for (resource, text) in limits.into_iter().filter(|(_, text)| *text != "-") {
        let most: u64 = text.parse()?;
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}
