//! Rota's command line: reads arguments, calls a command, sets the exit code.
//!
//! Exit codes: 0 done, 1 failed, 2 the input was wrong, 128 and a signal's number
//! when that made it leave at once.

mod clock;
mod commands;
mod config;
mod demo;
mod failure;
mod job_files;
mod logs;
mod printer;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{failure::Failure, printer::Printer};

/// Fewer page faults and less locking than the system's when many threads
/// allocate small objects.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs jobs on time, once, and remembers what happened.
#[derive(Parser)]
#[command(name = "rota", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure this machine
    #[command(subcommand)]
    Bench(commands::bench::Command),
    /// Check and show the configuration
    #[command(subcommand)]
    Config(commands::config::Command),
    /// Explain cron expressions and list their instants
    #[command(subcommand)]
    Cron(commands::cron::Command),
    /// Run jobs: fire schedules, execute, keep history
    Serve(commands::serve::ServeArgs),
    /// Make, list and revoke tokens, directly in the store
    #[command(subcommand)]
    Token(commands::token::Command),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut printer = Printer::new();
    let done = match cli.command {
        Command::Bench(command) => commands::bench::run(command, &mut printer),
        Command::Config(command) => commands::config::run(&command, &mut printer),
        Command::Cron(command) => commands::cron::run(command, &mut printer),
        Command::Serve(args) => commands::serve::run(&args, &mut printer),
        Command::Token(command) => commands::token::run(&command, &mut printer),
    };
    let done = done.and_then(|()| printer.flush().map_err(Failure::from));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has gone, as in `rota ... | head`: nobody is left to tell.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            printer.failure(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}
