//! A stream of lines to a server, and its answer for each, as they come.
//!
//! Memory does not grow with the stream: the file is read as the server takes it,
//! and answers are told as they arrive.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::stream;
use indicatif::{ProgressBar, ProgressStyle};
use rota_api::problem::Problem;
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::{failure::Failure, printer::Output, session::Session};

const CHUNK_BYTES: usize = 64 << 10;
/// Refusals that are told in words; the rest is counted.
const REFUSALS_TOLD: u64 = 20;

/// What a server says of one line.
pub trait Answered: Serialize + DeserializeOwned {
    /// From 1.
    fn line(&self) -> u64;
    fn problem(&self) -> Option<&Problem>;
}

/// Sends a file, or standard input where the path is `-`.
pub async fn send<T: Answered>(
    session: &mut Session<'_>,
    path: &[&str],
    file: &Path,
    done: &str,
) -> Result<(), Failure> {
    let (reader, bytes) = open(file).await?;
    let bar = progress(bytes);
    let sent = Arc::new(AtomicU64::new(0));
    let mut answers = session.client.lines(path, chunks(reader, bar.clone(), Arc::clone(&sent))).await?;
    let mut tally = Tally::default();
    while let Some(answer) = answers.next::<T>().await? {
        tell(session, &answer, &mut tally, &bar)?;
    }
    bar.finish_and_clear();
    told(session, &tally, sent.load(Ordering::Relaxed), done)
}

#[derive(Default)]
struct Tally {
    answered: u64,
    refused: u64,
}

fn tell<T: Answered>(
    session: &mut Session<'_>,
    answer: &T,
    tally: &mut Tally,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    tally.answered += 1;
    match session.output {
        Output::Json => session.printer.json_line(answer)?,
        // A list of YAML's, an item a line.
        Output::Yaml => {
            session.printer.text("- ")?;
            session.printer.json_line(answer)?;
        }
        Output::Table => {}
    }
    let Some(problem) = answer.problem() else { return Ok(()) };
    tally.refused += 1;
    if session.output == Output::Table && tally.refused <= REFUSALS_TOLD {
        let words = format!("line {}: {problem} [{}]", answer.line(), problem.code);
        bar.suspend(|| session.printer.note(&crate::printer::plain(&words)))?;
    }
    Ok(())
}

fn told(session: &mut Session<'_>, tally: &Tally, sent: u64, done: &str) -> Result<(), Failure> {
    let good = tally.answered - tally.refused;
    if session.output == Output::Table {
        if tally.refused > REFUSALS_TOLD {
            session.printer.note(&format!("and {} more", tally.refused - REFUSALS_TOLD))?;
        }
        session.printer.line(&format!("{good} {done}"))?;
    }
    if tally.answered < sent {
        let message = format!("error: {} of {sent} lines got no answer; {good} were {done}", sent - tally.answered);
        return Err(Failure::NotSo { message });
    }
    if tally.refused > 0 {
        return Err(Failure::NotSo { message: format!("error: {} of {sent} lines were refused", tally.refused) });
    }
    Ok(())
}

type Reader = Box<dyn AsyncRead + Send + Unpin>;

async fn open(file: &Path) -> Result<(Reader, Option<u64>), Failure> {
    if file == Path::new("-") {
        return Ok((Box::new(tokio::io::stdin()), None));
    }
    let unreadable =
        |error: io::Error| Failure::bad_input("unreadable", format!("cannot read {}: {error}", file.display()));
    let opened = tokio::fs::File::open(file).await.map_err(unreadable)?;
    let bytes = opened.metadata().await.map_err(unreadable)?.len();
    Ok((Box::new(opened), Some(bytes)))
}

/// Hidden where standard error is no terminal.
fn progress(bytes: Option<u64>) -> ProgressBar {
    let (bar, form) = match bytes {
        Some(bytes) => (ProgressBar::new(bytes), "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} {bytes_per_sec}"),
    };
    bar.set_style(ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// The file piece by piece, with the lines in it that are not empty counted.
fn chunks(
    reader: Reader,
    bar: ProgressBar,
    sent: Arc<AtomicU64>,
) -> impl futures_util::Stream<Item = io::Result<Vec<u8>>> + Send + 'static {
    stream::try_unfold((reader, Counter { lines: sent, open: false }), move |(mut reader, mut counter)| {
        let bar = bar.clone();
        async move {
            let mut chunk = vec![0; CHUNK_BYTES];
            let read = reader.read(&mut chunk).await?;
            if read == 0 {
                return Ok(None);
            }
            chunk.truncate(read);
            counter.count(&chunk);
            bar.inc(read as u64);
            Ok(Some((chunk, (reader, counter))))
        }
    })
}

/// Counts lines that hold something.
struct Counter {
    lines: Arc<AtomicU64>,
    /// The line being read has been counted.
    open: bool,
}

impl Counter {
    fn count(&mut self, chunk: &[u8]) {
        for byte in chunk {
            match byte {
                b'\n' => self.open = false,
                byte if !self.open && !byte.is_ascii_whitespace() => {
                    self.open = true;
                    self.lines.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_hold_something_are_counted_across_pieces() {
        let lines = Arc::new(AtomicU64::new(0));
        let mut counter = Counter { lines: Arc::clone(&lines), open: false };
        for chunk in ["{\"a\"", ":1}\n\n  \n{}", "\n", "x"] {
            counter.count(chunk.as_bytes());
        }
        assert_eq!(lines.load(Ordering::Relaxed), 3);
    }
}
