//! `rota cron`: what an expression means, and when it fires.
//!
//! Needs no server and no store: the arithmetic is the one that schedules use,
//! so an expression can be tried before it is saved. `next --stdin` answers a
//! stream of questions one line each, in order and in constant memory.

mod listing;
mod stream;

use clap::{Args, Subcommand};
use jiff::{Timestamp, Zoned};
use rota_core::{
    cron::{CronError, explain},
    preview::describe_note,
    schedule::{Fold, Gap},
};
use serde::Serialize;

use self::listing::{Ask, Listing};
use crate::{
    failure::Failure,
    printer::{Output, Printer},
};

#[derive(Subcommand)]
pub enum Command {
    /// List the next instants of an expression
    Next(NextArgs),
    /// Describe an expression in words
    Explain(ExplainArgs),
}

#[derive(Args)]
pub struct NextArgs {
    /// The expression, quoted: "0 9 * * MON-FRI", "@daily", "@every 90s"
    #[arg(value_name = "EXPR", required_unless_present = "stdin")]
    expression: Option<String>,
    /// Time zone, by its IANA name
    #[arg(long = "tz", value_name = "ZONE", default_value = "UTC")]
    zone: String,
    /// Start after this time, such as 2025-03-09T00:00:00Z; without an offset it is a
    /// local time of the zone [default: now]
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// End at this time, inclusive
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// How many instants [default: 5, or all up to --until]
    #[arg(short = 'n', long = "count", value_name = "N")]
    count: Option<usize>,
    /// What to do with a local time that a clock change leaves out
    #[arg(long, value_name = "shift|skip", default_value = "shift")]
    gap: Gap,
    /// What to do with a local time that a clock change repeats
    #[arg(long, value_name = "first|last|both", default_value = "first")]
    fold: Fold,
    /// The text whose hash decides the values of H; a schedule uses its identity
    #[arg(long, value_name = "TEXT", default_value = "")]
    seed: String,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// Answer questions from standard input, one JSON object per line:
    /// {"expr", "tz"?, "after"?, "until"?, "n"?, "gap"?, "fold"?, "seed"?}
    #[arg(
        long,
        conflicts_with_all = ["expression", "zone", "after", "until", "count", "gap", "fold", "seed", "output"]
    )]
    stdin: bool,
}

#[derive(Args)]
pub struct ExplainArgs {
    /// The expression, quoted
    #[arg(value_name = "EXPR")]
    expression: String,
    /// The text whose hash decides the values of H; a schedule uses its identity
    #[arg(long, value_name = "TEXT", default_value = "")]
    seed: String,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

impl NextArgs {
    fn ask<'a>(&'a self, expression: &'a str) -> Ask<'a> {
        Ask {
            expression,
            seed: &self.seed,
            zone: &self.zone,
            after: self.after.as_deref(),
            until: self.until.as_deref(),
            count: self.count,
            default_count: 5,
            gap: self.gap,
            fold: self.fold,
        }
    }
}

/// Runs one `rota cron` command.
pub fn run(command: Command, printer: &mut Printer) -> Result<(), Failure> {
    match command {
        Command::Next(args) if args.stdin => stream::answer_all(printer),
        Command::Next(args) => next(&args, printer),
        Command::Explain(args) => explain_one(&args, printer),
    }
}

fn explain_one(args: &ExplainArgs, printer: &mut Printer) -> Result<(), Failure> {
    let description =
        explain(&args.expression, args.seed.as_bytes()).map_err(|error| blame(&args.expression, &error))?;
    let explanation = Explanation { expr: &args.expression, description };
    Ok(printer.answer(args.output, &explanation, |printer| printer.line(&explanation.description))?)
}

#[derive(Serialize)]
struct Explanation<'a> {
    expr: &'a str,
    description: String,
}

#[derive(Serialize)]
struct Upcoming {
    utc: Timestamp,
    local: Zoned,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    explanation: Explanation<'a>,
    timezone: &'a str,
    after: Timestamp,
    next: Vec<Upcoming>,
}

fn next(args: &NextArgs, printer: &mut Printer) -> Result<(), Failure> {
    let expression = args.expression.as_deref().unwrap_or_default();
    let listing = Listing::new(&args.ask(expression)).map_err(|refused| Failure::BadInput {
        code: refused.code,
        message: refused.message,
        place: refused.place.map(|place| (expression.to_owned(), place)),
    })?;
    let mut instants = listing.instants();
    let upcoming = std::iter::from_fn(|| instants.next_noted()).take(listing.count).map(|(utc, note)| Upcoming {
        utc,
        local: utc.to_zoned(listing.zone.clone()),
        note: note.map(describe_note),
    });
    let description = explain(expression, args.seed.as_bytes()).map_err(|error| blame(expression, &error))?;
    let answer = Answer {
        explanation: Explanation { expr: expression, description },
        timezone: listing.zone.iana_name().unwrap_or(&args.zone),
        after: listing.after,
        next: upcoming.collect(),
    };
    Ok(printer.answer(args.output, &answer, |printer| print_table(&answer, printer))?)
}

fn print_table(answer: &Answer<'_>, printer: &mut Printer) -> std::io::Result<()> {
    printer.line(&format!("{} ({})\n", answer.explanation.description, answer.timezone))?;
    if answer.next.is_empty() {
        return printer.line(&format!("no instant after {}", answer.after));
    }
    printer.line(&format!("{:<21} {:<32} {}", "UTC", "local", "in"))?;
    for item in &answer.next {
        let local = item.local.strftime("%a %Y-%m-%d %H:%M:%S %Z").to_string();
        let distance = distance(answer.after, item.utc);
        let note = item.note.as_ref().map(|note| format!("  ({note})")).unwrap_or_default();
        let utc = item.utc.to_string();
        printer.line(format!("{utc:<21} {local:<32} {distance}{note}").trim_end())?;
    }
    Ok(())
}

/// The two greatest units between two instants: `2d 3h`, `45s`.
fn distance(from: Timestamp, to: Timestamp) -> String {
    // Rounded up, so that an instant still to come is never "0s" away.
    let millis = to.duration_since(from).as_millis().max(0);
    let mut left = (millis + 999) / 1_000;
    let mut parts = Vec::new();
    for (unit, size) in [("y", 365 * 86_400), ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
        if left >= size && parts.len() < 2 {
            parts.push(format!("{}{unit}", left / size));
        } else if !parts.is_empty() {
            break;
        }
        left %= size;
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

fn blame(expression: &str, error: &CronError) -> Failure {
    let place = Some((expression.to_owned(), error.place.clone()));
    Failure::BadInput { code: error.code(), message: error.to_string(), place }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_show_two_units() {
        let from = Timestamp::UNIX_EPOCH;
        for (millis, text) in [
            (1, "1s"),
            (45_000, "45s"),
            (61_000, "1m 1s"),
            (3_600_000, "1h"),
            (3_605_000, "1h"),
            (90_061_000, "1d 1h"),
            (400 * 86_400_000, "1y 35d"),
        ] {
            assert_eq!(distance(from, from + jiff::SignedDuration::from_millis(millis)), text);
        }
    }
}
