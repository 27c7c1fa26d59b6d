//! Read: turns the text of documents into plain values.
//!
//! JSON and YAML 1.2 give the same values: `no`, `on` and `5xx` are text, and
//! only `true` and `false` are truth. What parsers differ on is refused, not
//! guessed: a key written twice, merge keys, application tags, numbers that
//! are not finite.
//!
//! It is safe on text from strangers: size, depth, aliases and what aliases
//! grow to are bounded before memory is spent on them.
//!
//! What the values mean is for [`super::decode`] to say.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, NonFiniteFloatPolicy, Options};

use super::{decode::code_of, path::Shown};
use crate::problem::Problem;

/// Largest document, in bytes of its text.
pub const DOCUMENT_BYTES_MAX: usize = 1 << 20;
/// Largest file of documents, in bytes.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// Most documents in one file.
pub const FILE_DOCUMENTS_MAX: usize = 1_000;
/// Deepest nesting of lists and maps; the document itself is the first level.
pub const DEPTH_MAX: usize = 64;
/// Most nodes that all aliases of a file may stand for together.
const ALIASED_NODES_MAX: usize = 10_000;

/// The value of a JSON document.
pub fn json(text: &[u8]) -> Result<Value, Problem> {
    bounded(text, DOCUMENT_BYTES_MAX)?;
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let Plain(value) = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = Shown(&error.path().to_string()).to_string();
        let message = Shown(&error.inner().to_string()).to_string();
        let code = if error.inner().is_data() { code_of(&message) } else { "syntax" };
        Problem::new(if path == "." { String::new() } else { path }, code, message)
    })?;
    deserializer.end().map_err(|error| Problem::new("", "syntax", error.to_string()))?;
    Ok(value)
}

/// The value of a YAML text that holds exactly one document.
pub fn yaml(text: &[u8]) -> Result<Value, Problem> {
    bounded(text, DOCUMENT_BYTES_MAX)?;
    let mut values = yaml_values(text, DOCUMENT_BYTES_MAX)?;
    match (values.pop(), values.is_empty()) {
        (Some(value), true) => Ok(value),
        (Some(_), false) => Err(Problem::new("", "several_documents", "expected one document, found several")),
        (None, _) => Err(Problem::new("", "empty", "the text contains no document")),
    }
}

/// The values of a YAML file of any number of documents; empty ones are left out.
pub fn yaml_file(text: &[u8]) -> Result<Vec<Value>, Problem> {
    bounded(text, FILE_BYTES_MAX)?;
    let values = yaml_values(text, FILE_BYTES_MAX)?;
    for (index, value) in values.iter().enumerate() {
        if value.to_string().len() > DOCUMENT_BYTES_MAX {
            let message = format!("document {} of the file has more than {DOCUMENT_BYTES_MAX} bytes", index + 1);
            return Err(Problem::new("", "too_large", message));
        }
    }
    Ok(values)
}

fn bounded(text: &[u8], bytes_max: usize) -> Result<(), Problem> {
    if text.len() <= bytes_max {
        return Ok(());
    }
    let message = format!("the text has {} bytes; at most {bytes_max} are allowed", text.len());
    Err(Problem::new("", "too_large", message))
}

fn yaml_values(text: &[u8], bytes_max: usize) -> Result<Vec<Value>, Problem> {
    let text = std::str::from_utf8(text).map_err(|error| Problem::new("", "syntax", error.to_string()))?;
    let values: Vec<Plain> =
        serde_saphyr::from_multiple_with_options(text, yaml_options(bytes_max)).map_err(|error| {
            let message = error.to_string();
            Problem::new("", yaml_code(&error, &message), Shown(&message).to_string())
        })?;
    Ok(values.into_iter().map(|Plain(value)| value).collect())
}

fn yaml_code(error: &serde_saphyr::Error, message: &str) -> &'static str {
    use serde_saphyr::{Error, budget::BudgetBreach};
    match error.without_snippet() {
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => "too_deep",
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => "too_large",
        Error::AliasError { error, .. } => yaml_code(error, message),
        Error::DuplicateMappingKey { .. } => "duplicate_key",
        Error::NonFiniteFloat { .. } => "invalid_value",
        Error::Message { .. } if message.starts_with("too deep") => "too_deep",
        // The rest is a long and growing list of ways not to be YAML.
        _ => "syntax",
    }
}

/// `bytes_max` also holds for what aliases grow to.
fn yaml_options(bytes_max: usize) -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_documents: FILE_DOCUMENTS_MAX,
            max_aliases: ALIASED_NODES_MAX,
            max_anchors: ALIASED_NODES_MAX,
            max_total_scalar_bytes: bytes_max,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: ALIASED_NODES_MAX,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        reject_unsupported_tags: true,
        non_finite_float_policy: NonFiniteFloatPolicy::Reject,
        // The excerpt would carry the document's text into logs.
        with_snippet: false,
    }
}

/// A JSON value without the repairs that [`Value`] makes on the way.
struct Plain(Value);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Level(0).deserialize(deserializer).map(Self)
    }
}

/// How many lists and maps are open around the value to come.
#[derive(Clone, Copy)]
struct Level(usize);

impl Level {
    fn inside<E: de::Error>(self) -> Result<Self, E> {
        if self.0 < DEPTH_MAX {
            Ok(Self(self.0 + 1))
        } else {
            Err(E::custom(format_args!("too deep: lists and maps may be nested at most {DEPTH_MAX} levels")))
        }
    }
}

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a null, true, false, number, text, list or map")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::invalid_value(de::Unexpected::Float(value), &self))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inside = self.inside()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inside)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inside = self.inside()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(inside)?;
            if map.contains_key(&key) {
                return Err(de::Error::custom(format_args!("duplicate key `{}`", key.escape_debug())));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn code(result: Result<Value, Problem>) -> &'static str {
        result.expect_err("refused").code
    }

    /// The Norway problem: a country, a switch and a trigger are not truth values.
    #[test]
    fn yaml_words_are_text() {
        let value = yaml(b"on: [no, yes, on, off, y, NO]\nstatus: [429, 5xx]\ntruth: [true, false]\nnone: [null, ~]\n");
        let same = json!({ "on": ["no", "yes", "on", "off", "y", "NO"], "status": [429, "5xx"],
            "truth": [true, false], "none": [null, null] });
        assert_eq!(value, Ok(same));
    }

    #[test]
    fn yaml_texts_that_look_like_other_things_stay_text() {
        let value = yaml(b"a: 10m\nb: 2025-01-01\nc: '007'\nd: 1.2.3\ne: \"{{ x }}\"\nf: |\n  two\n  lines\n");
        let same =
            json!({ "a": "10m", "b": "2025-01-01", "c": "007", "d": "1.2.3", "e": "{{ x }}", "f": "two\nlines\n" });
        assert_eq!(value, Ok(same));
    }

    #[test]
    fn key_written_twice_is_refused_in_both() {
        assert_eq!(code(yaml(b"a: 1\na: 2\n")), "duplicate_key");
        let problem = json(br#"{ "steps": [{ "a": 1, "a": 2 }] }"#).unwrap_err();
        assert_eq!((problem.path.as_str(), problem.code), ("steps[0]", "duplicate_key"));
    }

    #[test]
    fn depth_is_bounded_in_both() {
        for depth in [DEPTH_MAX + 1, 100_000] {
            let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            assert!(json(text.as_bytes()).is_err(), "{depth}");
            assert!(yaml(text.as_bytes()).is_err(), "{depth}");
            let maps = format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
            assert!(json(maps.as_bytes()).is_err() && yaml(maps.as_bytes()).is_err(), "{depth}");
            assert!(yaml("- ".repeat(depth).as_bytes()).is_err(), "{depth}");
        }
        let deepest = format!("{}{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
        assert!(json(deepest.as_bytes()).is_ok());
        assert_eq!(code(json(format!("[{deepest}]").as_bytes())), "too_deep");
    }

    /// A few hundred bytes must not become gigabytes.
    #[test]
    fn alias_bombs_are_refused() {
        let mut laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
            laughs = format!("{laughs}a{level}: &a{level} [{aliases}]\n");
        }
        assert_eq!(code(yaml(laughs.as_bytes())), "too_large");
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(900_000), vec!["*a"; 2_000].join(", "));
        assert_eq!(code(yaml(long.as_bytes())), "too_large");
        let within = format!("a: &a {}\nb: [{}]\n", "x".repeat(900_000), "*a, *a");
        assert_eq!(code(yaml(within.as_bytes())), "too_large");
        assert_eq!(yaml(b"a: &a [1, 2]\nb: *a\n"), Ok(json!({ "a": [1, 2], "b": [1, 2] })));
    }

    #[test]
    fn what_parsers_differ_on_is_refused() {
        for text in
            ["a: .nan", "a: .inf", "a: 1e999", "a: !custom x", "a: &x { b: 1 }\nc: { <<: *x }", "a: *unknown", "a: [1"]
        {
            assert!(yaml(text.as_bytes()).is_err(), "{text}");
        }
        assert!(yaml(&[0x61, 0x3a, 0x20, 0xff, 0xfe]).is_err());
        for text in ["", "{", "{} {}", "{'a': 1}", "[1e999]", "nul"] {
            assert_eq!(code(json(text.as_bytes())), "syntax", "{text}");
        }
    }

    #[test]
    fn file_holds_several_documents_and_a_document_stands_alone() {
        let file = b"# first\na: 1\n---\na: 2\n---\n# nothing\n---\na: 3\n...\n";
        assert_eq!(yaml_file(file), Ok(vec![json!({ "a": 1 }), json!({ "a": 2 }), json!({ "a": 3 })]));
        assert_eq!(code(yaml(file)), "several_documents");
        assert_eq!(code(yaml(b"# nothing\n")), "empty");
        assert_eq!(yaml_file(b""), Ok(vec![]));
    }

    #[test]
    fn size_is_bounded() {
        let text = vec![b' '; DOCUMENT_BYTES_MAX + 1];
        assert_eq!((code(json(&text)), code(yaml(&text))), ("too_large", "too_large"));
        let file = format!("a: 1\n---\na: {}\n", "x".repeat(DOCUMENT_BYTES_MAX));
        assert_eq!(yaml_file(file.as_bytes()).unwrap_err().code, "too_large");
        assert_eq!(yaml_file(&vec![b' '; FILE_BYTES_MAX + 1]).unwrap_err().code, "too_large");
    }
}
