//! `rota cron next --stdin`: one question per line in, one answer per line out.
//!
//! Answers keep the order of the questions, and a bad line is answered with an
//! error instead of ending the stream, so a caller can pair them up by counting.
//! Memory does not grow with the input: lines and answers are bounded. Output
//! is flushed when no further question has arrived, so that a caller may wait
//! for each answer.

use std::{
    borrow::Cow,
    io::{self, BufRead, BufReader, Read},
};

use rota_core::schedule::{Fold, Gap};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeSeq};

use super::listing::{Ask, Listing};
use crate::{failure::Failure, printer::Printer};

/// Longest question; a real one has about 150 bytes.
const LINE_BYTES_MAX: usize = 16 * 1024;
const BUFFER_BYTES: usize = 64 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question<'a> {
    #[serde(borrow)]
    expr: Cow<'a, str>,
    #[serde(borrow)]
    tz: Option<Cow<'a, str>>,
    #[serde(borrow)]
    after: Option<Cow<'a, str>>,
    #[serde(borrow)]
    until: Option<Cow<'a, str>>,
    n: Option<usize>,
    #[serde(default)]
    gap: Gap,
    #[serde(default)]
    fold: Fold,
    #[serde(borrow)]
    seed: Option<Cow<'a, str>>,
}

#[derive(Serialize)]
struct Refusal {
    error: Problem,
}

#[derive(Serialize)]
struct Problem {
    code: &'static str,
    message: String,
}

fn refuse(code: &'static str, message: String) -> Refusal {
    Refusal { error: Problem { code, message } }
}

/// Answers every line of standard input.
pub fn answer_all(printer: &mut Printer) -> Result<(), Failure> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, io::stdin().lock());
    let mut line = Vec::with_capacity(LINE_BYTES_MAX);
    loop {
        if !input.buffer().contains(&b'\n') {
            printer.flush()?;
        }
        line.clear();
        if (&mut input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.len() > LINE_BYTES_MAX && line.last() != Some(&b'\n') {
            input.skip_until(b'\n')?;
            printer.json_line(&refuse("line_too_long", format!("a line may have at most {LINE_BYTES_MAX} bytes")))?;
            continue;
        }
        answer(&line, printer)?;
    }
}

fn answer(line: &[u8], printer: &mut Printer) -> io::Result<()> {
    // Serde also takes a list for an object, field by field; nobody means that.
    if line.trim_ascii_start().starts_with(b"[") {
        return printer.json_line(&refuse("bad_question", "each line must be a JSON object".to_owned()));
    }
    let question: Question<'_> = match serde_json::from_slice(line) {
        Ok(question) => question,
        Err(error) => return printer.json_line(&refuse(json_code(&error), error.to_string())),
    };
    match Listing::new(&question.ask()) {
        Ok(listing) => printer.json_line(&Answer { next: Next(&listing) }),
        Err(refused) => printer.json_line(&refuse(refused.code, refused.message)),
    }
}

fn json_code(error: &serde_json::Error) -> &'static str {
    if error.is_data() { "bad_question" } else { "bad_json" }
}

impl Question<'_> {
    fn ask(&self) -> Ask<'_> {
        Ask {
            expression: &self.expr,
            seed: self.seed.as_deref().unwrap_or_default(),
            zone: self.tz.as_deref().unwrap_or("UTC"),
            after: self.after.as_deref(),
            until: self.until.as_deref(),
            count: self.n,
            default_count: 1,
            gap: self.gap,
            fold: self.fold,
        }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    next: Next<'a>,
}

/// The instants of a listing, found while they are written.
struct Next<'a>(&'a Listing);

impl Serialize for Next<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for instant in self.0.instants().take(self.0.count) {
            list.serialize_element(&instant)?;
        }
        list.end()
    }
}
