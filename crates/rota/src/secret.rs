//! Secrets given to a command: in a file, on standard input or typed unseen, and
//! never as an argument, which others see in the list of processes.

use std::{
    fs::File,
    io::{Read, stdin},
    path::Path,
};

use anyhow::Context as _;
use inquire::{Password, PasswordDisplayMode};

use crate::{failure::Failure, session::not_answered};

/// A secret is short; what is longer is some other file.
const BYTES_MAX: u64 = 16 << 10;

/// For flags that take a secret from standard input, and from there alone.
pub fn only_dash(text: &str, file_flag: &str) -> Result<String, String> {
    if text == "-" {
        return Ok(text.to_owned());
    }
    // What was given may be the secret, so it is not repeated.
    Err(format!("give `-` and the value on standard input, or use {file_flag}"))
}

pub fn from_file(what: &str, path: &Path) -> Result<String, Failure> {
    let opened = File::open(path).map_err(|error| {
        Failure::bad_input("unreadable", format!("cannot read the {what} in {}: {error}", path.display()))
    })?;
    read(what, opened)
}

pub fn from_stdin(what: &str) -> Result<String, Failure> {
    read(what, stdin().lock())
}

/// The text without the end of its line.
fn read(what: &str, from: impl Read) -> Result<String, Failure> {
    let mut text = String::new();
    from.take(BYTES_MAX).read_to_string(&mut text).with_context(|| format!("cannot read the {what}"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Asks whoever sits there; what is typed is not shown.
pub fn typed(question: &str, twice: bool) -> Result<String, Failure> {
    let asked = Password::new(question).with_display_mode(PasswordDisplayMode::Hidden);
    let asked = if twice { asked } else { asked.without_confirmation() };
    asked.prompt().map_err(not_answered)
}
