//! YAML as Rota writes it: read back, it is the same value.

use std::io;

use rota_core::schedule::ScheduleSpec;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A value as one document, with its line end.
pub fn written(value: &impl Serialize) -> io::Result<String> {
    let options = serde_saphyr::ser_options! { compact_list_indent: false };
    let mut text = serde_saphyr::to_string_with_options(value, options).map_err(io::Error::other)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// A job's document as people write it: fields in their usual order, and without
/// what a schedule has by default. Read, it is the same document.
pub fn document(document: &Value) -> io::Result<String> {
    let mut lean = document.clone();
    let usual = serde_json::to_value(ScheduleSpec::default()).map_err(io::Error::other)?;
    let schedules = lean.get_mut("schedules").and_then(Value::as_array_mut);
    for schedule in schedules.into_iter().flatten() {
        if let Value::Object(fields) = schedule {
            fields.retain(|name, value| usual.get(name) != Some(value));
        }
    }
    written(&Ordered(&lean))
}

/// The order in which people write fields; others follow by name.
const ORDER: &[&str] = &[
    "name",
    "id",
    "description",
    "enabled",
    "tags",
    "queue",
    "requires",
    "priority",
    "input",
    "vars",
    "timeout",
    "deadline",
    "start_deadline",
    "retry",
    "dead",
    "cancel",
    "concurrency",
    "rate_limit",
    "unique",
    "exclusive",
    "schedules",
    "triggers",
    "steps",
    "notify",
    "cron",
    "every",
    "anchor",
    "after_finish",
    "at",
    "timezone",
    "needs",
    "if",
    "foreach",
    "url",
    "method",
    "program",
    "args",
    "shell",
    "connection",
    "statement",
    "params",
    "read",
    "columns",
    "filter",
    "write",
    "host",
    "port",
    "username",
    "from",
    "to",
    "limit",
    "key",
    "runs",
    "per",
    "by",
    "within",
];

/// A value whose maps are written in the usual order.
struct Ordered<'a>(&'a Value);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(map) => {
                let mut fields: Vec<(&String, &Value)> = map.iter().collect();
                fields.sort_by_key(|(name, _)| ORDER.iter().position(|known| known == name).unwrap_or(ORDER.len()));
                serializer.collect_map(fields.into_iter().map(|(name, value)| (name, Ordered(value))))
            }
            Value::Array(items) => serializer.collect_seq(items.iter().map(Ordered)),
            plain => plain.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use rota_core::job::read;
    use serde_json::json;

    use super::*;

    /// What is exported is applied again: a text that turned into a number on the
    /// way would be another job.
    #[test]
    fn what_is_written_reads_back_as_it_was() {
        let texts = [
            "",
            " ",
            "no",
            "on",
            "null",
            "~",
            "true",
            "1",
            "1.0",
            "0x10",
            "1e3",
            ".inf",
            "5xx",
            "2025-01-01",
            "12:30",
            "- a",
            "a: b",
            "#x",
            "a #b",
            "'",
            "\"",
            "\\",
            "{{ payload.a }}",
            "[a]",
            "*a",
            "&a",
            "!a",
            "%a",
            "@daily",
            "`a",
            "a\nb",
            "a\nb\n",
            "\na",
            "  lead",
            "trail  ",
            "a\n\n\nb\n\n",
            "tab\there",
            "Ångström 漢字 🎉",
            "\u{7f}\u{85}\u{2028}",
            "<<",
            "=",
            "---",
            "...",
            "? a",
            "| a",
            "> a",
            "x\r\ny",
            "\u{feff}",
        ];
        let mut cases: Vec<Value> =
            texts.iter().map(|text| json!({ "text": text, (*text): 1, "list": [text, [text]] })).collect();
        cases.push(json!({ "long": "word ".repeat(60), "words": format!("{}\n{}", "word ".repeat(40), " indented ".repeat(20)) }));
        cases.push(json!({ "numbers": [0, -1, 1.5, 1e300, 9_007_199_254_740_993_u64, i64::MIN], "empty": [{}, [], null, true] }));
        cases.push(json!({ "deep": [[[{ "a": [{ "b": [] }] }]]] }));
        for case in cases {
            let text = written(&case).unwrap();
            assert_eq!(read::yaml(text.as_bytes()).as_ref(), Ok(&case), "{text}");
        }
    }

    #[test]
    fn a_document_keeps_the_order_of_people() {
        let spec = ScheduleSpec { every: Some("1m".parse().unwrap()), ..ScheduleSpec::default() };
        let value = json!({ "steps": [{ "sleep": { "for": "1s" }, "id": "a" }], "name": "x", "schedules": [spec] });
        let text = "name: x\nschedules:\n  - every: 1m\nsteps:\n  - id: a\n    sleep:\n      for: 1s\n";
        assert_eq!(document(&value).unwrap(), text);
    }
}
