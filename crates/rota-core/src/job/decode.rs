//! Decode: turns plain values into typed documents, or names what does not fit.
//!
//! The types refuse a document at the first thing that does not fit. To name
//! more than that, the offending part is noted, cut out and the rest is read
//! again, as long as what follows cannot be a consequence of the cut.
//!
//! It is bounded: a few rounds, each linear in the document, and messages of a
//! few lines, however long the text they quote.
//!
//! What fits the types may still make no sense; that is for `check`.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use serde_path_to_error::Segment;

use super::path::{Path, Shown};
use crate::problem::Problem;

/// Most problems named in one answer.
pub const PROBLEMS_MAX: usize = 50;
/// Most times that a document is read again after a cut.
const ROUNDS_MAX: usize = 20;
/// Longest key of any map, in bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// Reads a document of type `T`.
pub fn decode<T: DeserializeOwned + Serialize>(mut value: Value) -> Result<T, Vec<Problem>> {
    check_texts(&Path::Root, &value).map_err(|problem| vec![problem])?;
    let mut problems = Vec::new();
    let mut cuts: Vec<String> = Vec::new();
    loop {
        let error = match serde_path_to_error::deserialize::<_, T>(&value) {
            Ok(document) => {
                note_lists_for_maps(&value, &document, &mut problems);
                return if problems.is_empty() { Ok(document) } else { Err(problems) };
            }
            Err(error) => error,
        };
        let fault = Fault::new(error.path(), &error.inner().to_string());
        if cuts.iter().any(|cut| fault.holds(cut)) {
            return Err(problems);
        }
        let cut = fault.cut_out_of(&mut value);
        if cut && !fault.is_unknown_field() {
            cuts.push(fault.problem.path.clone());
        }
        problems.push(fault.problem);
        if !cut || problems.len() == ROUNDS_MAX {
            return Err(problems);
        }
    }
}

/// Notes where a list was taken for a map.
///
/// Serde also reads a struct from its values in order. Nobody writes a document
/// that way on purpose, and its meaning would change with the order of our code.
fn note_lists_for_maps<T: Serialize>(value: &Value, document: &T, problems: &mut Vec<Problem>) {
    match serde_json::to_value(document) {
        Ok(read) => compare(&Path::Root, value, &read, problems),
        Err(error) => problems.push(Problem::new("", "invalid_value", error.to_string())),
    }
}

fn compare(path: &Path, written: &Value, read: &Value, problems: &mut Vec<Problem>) {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => {
            for (key, value) in written {
                if let Some(read) = read.get(key) {
                    compare(&path.key(key), value, read, problems);
                }
            }
        }
        (Value::Array(written), Value::Array(read)) => {
            for (index, (value, read)) in written.iter().zip(read).enumerate() {
                compare(&path.index(index), value, read, problems);
            }
        }
        (Value::Array(_), Value::Object(_)) if problems.len() < PROBLEMS_MAX => {
            problems.push(Problem::new(path.to_string(), "wrong_type", "expected a map, found a list"));
        }
        _ => {}
    }
}

/// One thing that did not fit, and the way to it.
pub(crate) struct Fault {
    problem: Problem,
    /// The keys and indexes down to it; nothing where it cannot be cut out.
    way: Option<Vec<Hop>>,
}

enum Hop {
    Key(String),
    Index(usize),
}

impl Fault {
    pub(crate) fn new(path: &serde_path_to_error::Path, message: &str) -> Self {
        let code = code_of(message);
        let mut way: Vec<Hop> = path.iter().filter_map(hop).collect();
        let whole = way.len() == path.iter().count();
        if let Some(field) = missing_field(message) {
            way.push(Hop::Key(field.to_owned()));
        }
        let cuttable = whole && code != "missing_field" && matches!(way.last(), Some(Hop::Key(_)));
        let problem = Problem::new(written(&way), code, Shown(message).to_string());
        Self { problem, way: cuttable.then_some(way) }
    }

    /// Whether the part at `path` is inside the part this fault is about.
    fn holds(&self, path: &str) -> bool {
        let own = self.problem.path.as_str();
        own.is_empty() || path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }

    pub(crate) fn is_unknown_field(&self) -> bool {
        self.problem.code == "unknown_field"
    }

    pub(crate) fn cut_out_of(&self, value: &mut Value) -> bool {
        let Some((Hop::Key(last), before)) = self.way.as_deref().and_then(<[Hop]>::split_last) else { return false };
        let mut inner = value;
        for hop in before {
            let next = match hop {
                Hop::Key(key) => inner.get_mut(key),
                Hop::Index(index) => inner.get_mut(*index),
            };
            let Some(next) = next else { return false };
            inner = next;
        }
        inner.as_object_mut().is_some_and(|map| map.remove(last).is_some())
    }
}

fn hop(segment: &Segment) -> Option<Hop> {
    match segment {
        Segment::Seq { index } => Some(Hop::Index(*index)),
        // A kind of login and the like is the one key of a map.
        Segment::Map { key } | Segment::Enum { variant: key } => Some(Hop::Key(key.clone())),
        Segment::Unknown => None,
    }
}

fn written(way: &[Hop]) -> String {
    way.iter().fold(String::new(), |path, hop| match hop {
        Hop::Index(index) => format!("{path}[{index}]"),
        Hop::Key(key) if path.is_empty() => key.clone(),
        Hop::Key(key) => format!("{path}.{key}"),
    })
}

/// Refuses what no part of a document may hold, wherever it stands.
fn check_texts(path: &Path, value: &Value) -> Result<(), Problem> {
    match value {
        Value::String(text) => check_text(path, text),
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(index, item)| check_texts(&path.index(index), item))
        }
        Value::Object(map) => map.iter().try_for_each(|(key, item)| {
            let path = path.key(key);
            check_key(&path, key)?;
            check_texts(&path, item)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn check_text(path: &Path, text: &str) -> Result<(), Problem> {
    if !text.contains('\0') {
        return Ok(());
    }
    let message = "text cannot contain the character NUL, which PostgreSQL does not store";
    Err(Problem::new(path.to_string(), "invalid_value", message))
}

/// Keys stand in every path below them, so their length multiplies.
fn check_key(path: &Path, key: &str) -> Result<(), Problem> {
    if key.len() > KEY_BYTES_MAX {
        let message = format!("a key may have at most {KEY_BYTES_MAX} bytes");
        return Err(Problem::new(path.to_string(), "too_long", message));
    }
    check_text(path, key)
}

/// The field that should be there; the path of a missing one ends before it.
fn missing_field(message: &str) -> Option<&str> {
    let rest = message.strip_prefix("missing field `")?;
    rest.split_once('`').map(|(field, _)| field)
}

/// The stable code of a message from a parser.
///
/// Parsers only give text. Their openings are part of serde's documented
/// behaviour, and the tests of this folder hold each one used here.
pub(super) fn code_of(message: &str) -> &'static str {
    for (opening, code) in [
        ("unknown field ", "unknown_field"),
        ("missing field ", "missing_field"),
        ("invalid type: ", "wrong_type"),
        ("invalid length ", "wrong_type"),
        ("unknown variant ", "invalid_value"),
        ("invalid value: ", "invalid_value"),
        ("duplicate ", "duplicate_key"),
        ("too deep", "too_deep"),
    ] {
        if message.starts_with(opening) {
            return code;
        }
    }
    "invalid_value"
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;
    use crate::duration::Span;

    #[derive(Debug, PartialEq, Deserialize, Serialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        name: String,
        inner: Option<Vec<Inner>>,
    }

    #[derive(Debug, PartialEq, Deserialize, Serialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        wait: Span,
        tries: Option<u8>,
    }

    fn faults(value: Value) -> Vec<(String, &'static str)> {
        decode::<Outer>(value).unwrap_err().into_iter().map(|problem| (problem.path, problem.code)).collect()
    }

    fn expected(list: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
        list.iter().map(|(path, code)| ((*path).to_owned(), *code)).collect()
    }

    #[test]
    fn every_unknown_and_bad_field_is_named_in_one_answer() {
        let found = faults(json!({ "nmae": 1, "name": "a", "other": 2,
            "inner": [{ "wait": "1s", "tries": 300 }, { "wait": "1s", "tries": "two", "try": 1 }] }));
        let mut sorted = found.clone();
        sorted.sort();
        let all = [
            ("inner[0].tries", "invalid_value"),
            ("inner[1].tries", "wrong_type"),
            ("inner[1].try", "unknown_field"),
            ("nmae", "unknown_field"),
            ("other", "unknown_field"),
        ];
        assert_eq!(sorted, expected(&all));
    }

    /// One store would refuse what the other took.
    #[test]
    fn text_that_a_store_cannot_hold_is_refused_wherever_it_stands() {
        for (value, path) in [
            (json!({ "name": "a\0" }), "name"),
            (json!({ "name": "a", "inner": [{}, { "deep": [1, "\0"] }] }), "inner[1].deep[1]"),
            (json!({ "a\0b": 1 }), "a\u{fffd}b"),
        ] {
            assert_eq!(faults(value), expected(&[(path, "invalid_value")]));
        }
        let found = faults(json!({ "x".repeat(257): 1 }));
        assert_eq!(found, expected(&[(&"x".repeat(257), "too_long")]));
    }

    /// The answer goes over the wire and into logs.
    #[test]
    fn answer_stays_short_whatever_the_document_holds() {
        let found = decode::<Outer>(json!({ "name": "a", "inner": "x".repeat(100_000) })).unwrap_err();
        assert!(found[0].message.len() < 500);
    }

    /// A field that we cut out must not be reported as missing.
    #[test]
    fn consequences_of_a_cut_are_not_reported() {
        let found = faults(json!({ "name": "a", "inner": [{ "wait": "soon" }] }));
        assert_eq!(found, expected(&[("inner[0].wait", "invalid_value")]));
    }

    #[test]
    fn missing_field_is_named_as_the_place_it_should_be() {
        assert_eq!(
            faults(json!({ "name": "a", "inner": [{ "x": 1 }] })),
            expected(&[("inner[0].x", "unknown_field"), ("inner[0].wait", "missing_field"),])
        );
    }

    /// `cancel: [30s]` must not mean whatever field comes first in our code.
    #[test]
    fn list_is_never_taken_for_a_map() {
        assert_eq!(faults(json!(["a", null])), expected(&[("", "wrong_type")]));
        let found = faults(json!({ "name": "a", "inner": [["1s", 3]] }));
        assert_eq!(found, expected(&[("inner[0]", "wrong_type")]));
    }
}
