//! `rota doctor`: whether a node could run well here, and what to do if not.
//!
//! It takes the settings of `rota serve`, so it looks at what that would use. It
//! changes nothing: no file is made, no schema brought up to date.

mod checks;

use std::io;

use clap::Args;
use serde::Serialize;

use crate::{
    config::{self, Flags},
    failure::Failure,
    printer::{Output, Printer},
    session::block_on,
    table::{Cell, Table, Tone},
};

#[derive(Args)]
#[command(after_help = "Exit codes: 0 no problems (there may be warnings); 1 there are problems.")]
pub struct DoctorArgs {
    #[command(flatten)]
    flags: Flags,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    Good,
    Warning,
    Wrong,
}

/// What one check found.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub grade: Grade,
    pub found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    pub fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, grade: Grade::Good, found: found.into(), advice: None }
    }

    pub fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, grade: Grade::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    pub fn wrong(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, grade: Grade::Wrong, found: found.into(), advice: Some(advice.into()) }
    }
}

pub fn run(args: &DoctorArgs, printer: &mut Printer) -> Result<(), Failure> {
    let mut findings = Vec::new();
    match config::load(&args.flags) {
        Ok(config) => {
            findings.extend(checks::configuration(&config));
            block_on(async {
                findings.extend(checks::port(&config).await);
                findings.extend(checks::store(&config).await);
                Ok(())
            })?;
            findings.extend(checks::data(&config));
            findings.push(checks::files(&config));
        }
        Err(Failure::BadInput { message, .. }) => {
            findings.push(Finding::wrong(
                "configuration",
                message,
                "correct it; `rota config show` prints the values in force",
            ));
        }
        Err(failure) => return Err(failure),
    }
    findings.extend(checks::contexts());
    printer.answer(args.output, &findings, |printer| drawn(&findings, printer))?;
    let wrong = findings.iter().filter(|finding| finding.grade == Grade::Wrong).count();
    match wrong {
        0 => Ok(()),
        1 => Err(Failure::NotSo { message: "1 problem found".to_owned() }),
        n => Err(Failure::NotSo { message: format!("{n} problems found") }),
    }
}

fn drawn(findings: &[Finding], printer: &mut Printer) -> io::Result<()> {
    let mut table = Table::fields();
    for finding in findings {
        let (word, tone) = match finding.grade {
            Grade::Good => ("good", Tone::Good),
            Grade::Warning => ("warning", Tone::Busy),
            Grade::Wrong => ("wrong", Tone::Bad),
        };
        let advice = finding.advice.as_ref().map(|advice| format!("\n→ {advice}")).unwrap_or_default();
        table.row([Cell::toned(word, tone), finding.check.into(), format!("{}{advice}", finding.found).into()]);
    }
    printer.table(table)
}
