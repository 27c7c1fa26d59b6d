//! Documents read from files and standard input, as plain values.

use std::{io::Read as _, path::Path};

use anyhow::Context as _;
use rota_core::job::read;
use serde_json::Value;

use crate::failure::Failure;

/// A text from a file, or from standard input where the path is `-`.
pub fn text(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(bytes);
    }
    match std::fs::read(path) {
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(Failure::bad_input("unreadable", format!("cannot read {}: {error}", path.display()))),
    }
}

/// The documents of a file: one of JSON, or any number of YAML.
pub fn values(path: &Path) -> Result<Vec<Value>, Failure> {
    let bytes = text(path)?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let values = if is_json { read::json(&bytes).map(|value| vec![value]) } else { read::yaml_file(&bytes) };
    let values =
        values.map_err(|problem| Failure::bad_input(problem.code, format!("{}: {problem}", path.display())))?;
    if values.is_empty() {
        return Err(Failure::bad_input("empty", format!("{}: the file contains no document", path.display())));
    }
    Ok(values)
}

/// The one document of a file.
pub fn value(path: &Path) -> Result<Value, Failure> {
    let mut values = values(path)?;
    match (values.pop(), values.is_empty()) {
        (Some(value), true) => Ok(value),
        _ => Err(Failure::bad_input(
            "several_documents",
            format!("{}: expected one document, found several", path.display()),
        )),
    }
}

/// JSON as it is given to a flag: the text itself, `@FILE` or `-`.
pub fn json_of_flag(flag: &str, given: &str) -> Result<Value, Failure> {
    let bytes = match given.strip_prefix('@') {
        Some(path) => text(Path::new(path))?,
        None if given == "-" => text(Path::new("-"))?,
        None => given.as_bytes().to_vec(),
    };
    read::json(&bytes).map_err(|problem| {
        let hint = "expected JSON, such as '{\"account\": 7}' or '\"text\"'; @FILE reads a file";
        Failure::bad_input("bad_json", format!("--{flag}: {}; {hint}", problem.message))
    })
}

/// `key=value` pairs as they are given to a flag.
pub fn pairs_of_flag(flag: &str, given: &[String]) -> Result<std::collections::BTreeMap<String, String>, Failure> {
    let one = |pair: &String| match pair.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Failure::bad_input("bad_flags", format!("--{flag}: `{pair}` must have the form KEY=VALUE"))),
    };
    given.iter().map(one).collect()
}
