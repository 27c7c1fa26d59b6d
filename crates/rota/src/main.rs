//! Rota's command line: reads arguments, calls a command, sets the exit code.
//!
//! The exit codes are those of [`failure::EXIT_CODES`].

mod clock;
mod commands;
mod config;
mod contexts;
mod demo;
mod difference;
mod documents;
mod failure;
mod job_files;
mod limits;
mod lines;
mod logs;
mod printer;
mod secret;
mod session;
mod table;
mod target;
mod times;
mod wire;
mod yaml;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::{failure::Failure, printer::Printer};

/// Fewer page faults and less locking than the system's when many threads
/// allocate small objects.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs jobs on time, once, and keeps a record of what happened.
#[derive(Parser)]
#[command(name = "rota", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a server's jobs match files
    Apply(commands::apply::ApplyArgs),
    /// List who changed what, and when, with the state before and after
    Audit(commands::audit::AuditArgs),
    /// Measure this machine
    #[command(subcommand)]
    Bench(commands::bench::Command),
    /// Days on which schedules do or do not fire
    Calendar(commands::calendar::CalendarArgs),
    /// Print completions for a shell
    Completions(commands::manual::CompletionsArgs),
    /// Check and show the configuration
    #[command(subcommand)]
    Config(commands::config::Command),
    /// The servers that you have logged in to
    #[command(subcommand)]
    Context(commands::context::Command),
    /// Explain cron expressions and list their instants
    #[command(subcommand)]
    Cron(commands::cron::Command),
    /// Runs that used up their attempts
    Dead(commands::dead::DeadArgs),
    /// Check whether a node could run well here, and say what to do if not
    Doctor(commands::doctor::DoctorArgs),
    /// Write jobs and calendars as files
    Export(commands::export::ExportArgs),
    /// Save what `rota export` wrote
    Import(commands::apply::ImportArgs),
    /// Jobs: what to do, and under which policies
    Job(commands::job::JobArgs),
    #[command(name = commands::limited::LIMITED, hide = true)]
    Limited(commands::limited::LimitedArgs),
    /// Log in to a server, and use it from now on
    Login(commands::context::LoginArgs),
    /// Remove a server and its token
    Logout(commands::context::LogoutArgs),
    /// Print the manual
    Man(commands::manual::ManArgs),
    /// The lanes that workers subscribe to
    Queue(commands::queue::QueueArgs),
    /// Rows of the store that cannot be read
    Rows(commands::rows::RowsArgs),
    /// Runs: executions of jobs
    Run(commands::run::RunArgs),
    /// Schedules: when jobs run
    Schedule(commands::schedule::ScheduleArgs),
    /// Run a node: fire schedules, execute runs, keep history
    Serve(commands::serve::ServeArgs),
    /// Isolated customers, with a tier and quotas
    Tenant(commands::tenant::TenantArgs),
    /// Tokens for the API
    Token(commands::token::TokenArgs),
    /// Users who log in with a password
    User(commands::user::UserArgs),
    /// Show who you are to a server, and what you may do there
    Whoami(commands::context::WhoamiArgs),
    /// Execute attempts for a server as a remote worker; or list and drain workers
    Worker(commands::worker::WorkerArgs),
}

/// All commands, with what every one of them has in common.
fn command_line() -> clap::Command {
    Cli::command().after_long_help(commands::manual::exit_codes())
}

fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&command_line().get_matches()).unwrap_or_else(|error| error.exit());
    let mut printer = Printer::new();
    let done = match cli.command {
        Command::Apply(args) => commands::apply::run(args, &mut printer),
        Command::Audit(args) => commands::audit::run(&args, &mut printer),
        Command::Bench(command) => commands::bench::run(command, &mut printer),
        Command::Calendar(args) => commands::calendar::run(args, &mut printer),
        Command::Completions(args) => commands::manual::completions(&args, command_line(), &mut printer),
        Command::Config(command) => commands::config::run(&command, &mut printer),
        Command::Context(command) => commands::context::run(&command, &mut printer),
        Command::Cron(command) => commands::cron::run(command, &mut printer),
        Command::Dead(args) => commands::dead::run(args, &mut printer),
        Command::Doctor(args) => commands::doctor::run(&args, &mut printer),
        Command::Export(args) => commands::export::run(args, &mut printer),
        Command::Import(args) => commands::apply::import(args, &mut printer),
        Command::Job(args) => commands::job::run(args, &mut printer),
        Command::Limited(args) => commands::limited::run(&args, &mut printer),
        Command::Login(args) => commands::context::login(&args, &mut printer),
        Command::Logout(args) => commands::context::logout(&args, &mut printer),
        Command::Man(args) => commands::manual::man(&args, command_line(), &mut printer),
        Command::Queue(args) => commands::queue::run(args, &mut printer),
        Command::Rows(args) => commands::rows::run(args, &mut printer),
        Command::Run(args) => commands::run::run(args, &mut printer),
        Command::Schedule(args) => commands::schedule::run(args, &mut printer),
        Command::Serve(args) => commands::serve::run(&args, &mut printer),
        Command::Tenant(args) => commands::tenant::run(args, &mut printer),
        Command::Token(args) => commands::token::run(args, &mut printer),
        Command::User(args) => commands::user::run(args, &mut printer),
        Command::Whoami(args) => commands::context::whoami(&args, &mut printer),
        Command::Worker(args) => commands::worker::run(args, &mut printer),
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
