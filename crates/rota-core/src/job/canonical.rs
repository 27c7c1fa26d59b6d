//! Canonical: one text for one meaning, so that equal documents can be told.
//!
//! The text has no spaces, its keys are sorted and its durations and sizes are
//! in one spelling. What was left out stays out. It does not depend on how maps
//! are kept in memory, and is the same on every machine and release.
//!
//! Defaults are not filled in: writing `enabled: true` is another text than
//! leaving it out. Schedules are the exception; they carry their defaults.

use std::fmt;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::document::JobDocument;

/// A digest of a document's content, for telling whether a save changes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash(pub [u8; 32]);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({self})")
    }
}

impl JobDocument {
    /// The document as one stable line of JSON.
    pub fn canonical_json(&self) -> String {
        canonical(self)
    }

    /// Equal for documents with the same canonical text, and for no others.
    pub fn content_hash(&self) -> ContentHash {
        ContentHash(Sha256::digest(self.canonical_json()).into())
    }
}

fn canonical<T: Serialize>(document: &T) -> String {
    // Documents are plain data with text keys, which always have a JSON form.
    let value = serde_json::to_value(document).unwrap_or_default();
    let mut text = String::new();
    write_sorted(&value, &mut text);
    text
}

fn write_sorted(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            write_list(text, ['{', '}'], entries, |(key, value), text| {
                *text += &Value::from(key.as_str()).to_string();
                text.push(':');
                write_sorted(value, text);
            });
        }
        Value::Array(items) => write_list(text, ['[', ']'], items, write_sorted),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => *text += &value.to_string(),
    }
}

fn write_list<T>(
    text: &mut String,
    around: [char; 2],
    items: impl IntoIterator<Item = T>,
    write: impl Fn(T, &mut String),
) {
    text.push(around[0]);
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        write(item, text);
    }
    text.push(around[1]);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(value: Value) -> JobDocument {
        serde_json::from_value(value).unwrap()
    }

    /// Stored versions are compared by it: a changed text would make a new
    /// version of every job that is saved again.
    #[test]
    fn canonical_text_and_hash_never_change() {
        let job = job(json!({
            "steps": [{ "handler": { "name": "h", "payload": { "b": 1, "a": [true, null, 1.5, "é\n"] } }, "id": "s" }],
            "timeout": "90s", "name": "a", "retry": { "jitter": 0.5, "on": { "status": ["5XX", "429"] } },
        }));
        let text = concat!(
            r#"{"name":"a","retry":{"jitter":0.5,"on":{"status":["5xx",429]}},"#,
            r#""steps":[{"handler":{"name":"h","payload":{"a":[true,null,1.5,"é\n"],"b":1}},"id":"s"}],"#,
            r#""timeout":"1m 30s"}"#
        );
        assert_eq!(job.canonical_json(), text);
        assert_eq!(job.content_hash().to_string(), FROZEN_HASH);
    }

    const FROZEN_HASH: &str = "bc91fe7bba19f28e447eb3df01ca6ee1816566882838abe3f7eef479621afa70";

    #[test]
    fn order_and_spelling_do_not_matter_and_content_does() {
        let steps = json!([{ "id": "s", "handler": { "name": "h" } }]);
        let one = job(json!({ "name": "a", "timeout": "90s", "tags": [], "steps": steps }));
        let same = job(json!({ "steps": steps, "timeout": "1m 30s", "name": "a" }));
        let other = job(json!({ "name": "a", "timeout": "91s", "steps": steps }));
        assert_eq!(one.content_hash(), same.content_hash());
        assert_ne!(one.content_hash(), other.content_hash());
    }
}
