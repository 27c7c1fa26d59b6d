//! The printer: the only way to standard output and standard error.
//!
//! Output is buffered, so that a long list costs few system calls; whoever
//! reads input line by line flushes before waiting for more. Text that came
//! from outside is shown only when it is plain, so that it cannot move the
//! cursor of a terminal.
//!
//! Colours and the width of a terminal are known here alone: what is piped has
//! neither, and `NO_COLOR` is respected.

use std::{
    borrow::Cow,
    io::{self, BufWriter, IsTerminal, StdoutLock, Write},
    ops::Range,
};

use clap::ValueEnum;
use rota_api::problem::Problem;
use serde::Serialize;

use crate::{
    failure::Failure,
    table::{Table, Tone, terminal_width},
    yaml,
};

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people: tables that fit the terminal, relative times
    #[value(alias = "human")]
    Table,
    Json,
    Yaml,
}

const BUFFER_BYTES: usize = 64 * 1024;

pub struct Printer {
    out: BufWriter<StdoutLock<'static>>,
    /// Somebody looks at a terminal.
    terminal: bool,
    colours: bool,
}

impl Printer {
    pub fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
        Self { out, terminal, colours: terminal && !dumb && !set("NO_COLOR") }
    }

    /// Whether a question would be seen and could be answered.
    pub fn can_ask() -> bool {
        io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Prints a value in the form that was asked for; `table` makes the one for
    /// people.
    pub fn answer<T: Serialize>(
        &mut self,
        output: Output,
        value: &T,
        table: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        match output {
            Output::Table => table(self),
            Output::Json => self.json(value),
            Output::Yaml => self.yaml(value),
        }
    }

    /// Prints one value as YAML.
    pub fn yaml(&mut self, value: &impl Serialize) -> io::Result<()> {
        self.text(&yaml::written(value)?)
    }

    /// Prints a table as wide as the terminal, or as wide as it needs.
    pub fn table(&mut self, table: Table) -> io::Result<()> {
        let text = table.drawn(self.terminal.then(terminal_width), self.colours);
        self.text(&text)
    }

    /// A text in a colour, where there are colours.
    pub fn toned(&self, tone: Tone, text: &str) -> String {
        if self.colours { tone.painted(text) } else { text.to_owned() }
    }

    /// Begins a screen anew, where there is one.
    pub fn clear(&mut self) -> io::Result<()> {
        if self.terminal { self.text("\x1b[H\x1b[2J\x1b[3J") } else { Ok(()) }
    }

    /// Says something beside the answer, on standard error.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        self.out.flush()?;
        io::stderr().lock().write_all(format!("{text}\n").as_bytes())
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
            Failure::NotSo { message } => format!("{message}\n"),
            Failure::Refused(problem) => refused(problem),
            Failure::Unreachable { server, why } => unreachable(server, why),
            Failure::Signal { number } => {
                format!("error: stopped at once after signal {number}; attempts were aborted\n")
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

/// A problem document as people read it: what, where, and what to do.
fn refused(problem: &Problem) -> String {
    let mut text = format!("error: {} [{}]\n", plain(&problem.detail), plain(&problem.code));
    // Where one place is wrong, the sentence has named it.
    let told = matches!(problem.errors.as_slice(), [one] if problem.detail.contains(&one.message));
    for error in problem.errors.iter().filter(|_| !told) {
        let path = if error.path.is_empty() { "(document)" } else { &error.path };
        text.extend([format!("  {}: {}\n", plain(path), plain(&error.message))]);
    }
    if let Some(hint) = hint(&problem.code) {
        text.extend([format!("hint: {hint}\n")]);
    }
    text
}

/// What to do about a refusal, where the command line knows more than the server.
fn hint(code: &str) -> Option<&'static str> {
    Some(match code {
        "unauthenticated" => "log in with `rota login URL`, or set ROTA_TOKEN or --token-file",
        "forbidden" => "an administrator of the tenant can grant the permission; `rota whoami` shows who you are there",
        "precondition_failed" => "somebody has saved it meanwhile: read it again, then repeat your change",
        "run_ended" => "`rota run retry RUN` runs it again",
        "run_live" => "`rota run wait RUN` waits for its end, `rota run cancel RUN` cancels it",
        "wrong_host" => "add the name to the server's `hosts` setting, or use the IP address",
        "store_away" | "not_ready" | "too_slow" | "too_many_requests" => "try again in a moment",
        _ => return None,
    })
}

fn unreachable(server: &str, why: &str) -> String {
    let here = ["127.0.0.1", "localhost", "[::1]"].iter().any(|host| server.contains(host));
    let hint = if here {
        "start a server with `rota serve`, or choose another with --server or `rota login URL`"
    } else {
        "check the address and the network, and that the server is running; `rota context list` lists the contexts"
    };
    format!("error: {} does not answer: {}\nhint: {hint}\n", plain(server), plain(why))
}

/// A text from outside that cannot move the cursor: control characters are shown
/// by their numbers.
pub fn plain(text: &str) -> Cow<'_, str> {
    let bad = |c: char| (c.is_control() && c != '\n' && c != '\t') || ('\u{202a}'..='\u{202e}').contains(&c);
    if !text.contains(bad) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if bad(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}
