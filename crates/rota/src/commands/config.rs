//! `rota config`: whether a configuration can be used, and what is in force.

use clap::{Args, Subcommand};

use crate::{
    config::{self, Flags, Source},
    failure::Failure,
    job_files, limits,
    printer::Printer,
};

#[derive(Subcommand)]
pub enum Command {
    /// Check whether the configuration can be used, including the job documents
    Check(ConfigArgs),
    /// Print the values in force and where each comes from, without passwords
    Show(ConfigArgs),
    /// Print the reference page
    Reference,
    /// Print every limit, what happens there and what changes it, as a page
    Limits,
}

#[derive(Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    flags: Flags,
}

pub fn run(command: &Command, printer: &mut Printer) -> Result<(), Failure> {
    match command {
        Command::Check(args) => check(&args.flags, printer),
        Command::Show(args) => show(&args.flags, printer),
        Command::Reference => Ok(printer.text(&config::reference())?),
        Command::Limits => Ok(printer.text(&limits::page())?),
    }
}

fn check(flags: &Flags, printer: &mut Printer) -> Result<(), Failure> {
    let config = config::load(flags)?;
    let documents = config.jobs.as_deref().map(job_files::read_directory).transpose()?;
    printer.line("the configuration is valid")?;
    for name in config::strangers() {
        printer.line(&format!("{name} is set, but there is no such setting"))?;
    }
    if let (Some(documents), Some(directory)) = (documents, &config.jobs) {
        let count = documents.jobs.len();
        printer.line(&format!("job documents in {}: {count}, all valid", directory.display()))?;
    }
    Ok(())
}

/// As a file of settings, so that it can be made one.
fn show(flags: &Flags, printer: &mut Printer) -> Result<(), Failure> {
    let mut section = "";
    for shown in config::show(flags)? {
        let (found, field) = shown.key.split_once('.').unwrap_or(("", shown.key));
        if found != section {
            section = found;
            printer.line(&format!("\n[{section}]"))?;
        }
        let setting = format!("{field} = {}", shown.value);
        match shown.source {
            Source::Default => printer.line(&setting)?,
            source => printer.line(&format!("{setting}  # {source}"))?,
        }
    }
    Ok(())
}
