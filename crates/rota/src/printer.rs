//! The printer: the only way to standard output and standard error.
//!
//! Output is buffered, so that a long list costs few system calls; whoever
//! reads input line by line flushes before waiting for more. Text that came
//! from outside is shown only when it is plain, so that it cannot move the
//! cursor of a terminal.

use std::{
    io::{self, BufWriter, StdoutLock, Write},
    ops::Range,
};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;

/// The form of an answer.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Human,
    Json,
}

const BUFFER_BYTES: usize = 64 * 1024;

pub struct Printer {
    out: BufWriter<StdoutLock<'static>>,
}

impl Printer {
    pub fn new() -> Self {
        Self { out: BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock()) }
    }

    /// Prints one line.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.write_all(b"\n")
    }

    /// Prints a text that has its own line ends.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())
    }

    /// Prints one value as JSON on one line.
    pub fn json_line(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }

    /// Prints one value as JSON for people.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Says on standard error what went wrong.
    pub fn failure(&mut self, failure: &Failure) {
        let text = match failure {
            Failure::BadInput { code, message, place } => {
                format!("error: {message} [{code}]\n{}", place.as_ref().map_or_else(String::new, pointer))
            }
            Failure::Output(error) => format!("error: cannot read or write: {error}\n"),
            Failure::Other(error) => format!("error: {}\n", chain(error)),
            Failure::Signal { number } => {
                format!("error: left at once after signal {number}; attempts were broken off\n")
            }
        };
        // Nobody is left to hear about a failure to report a failure.
        let _unheard = self.out.flush().and_then(|()| io::stderr().lock().write_all(text.as_bytes()));
    }
}

/// An error and its causes, without those that the one before has repeated.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause);
        }
    }
    text
}

/// The text with a mark under the part to blame.
fn pointer((text, place): &(String, Range<usize>)) -> String {
    let text = text.replace('\t', " ");
    let plain = text.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    if !plain || text.trim().is_empty() || place.end > text.len() {
        return String::new();
    }
    let mark = "^".repeat(place.len().max(1));
    format!("  {text}\n  {}{mark}\n", " ".repeat(place.start))
}
