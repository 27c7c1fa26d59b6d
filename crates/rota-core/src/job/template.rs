//! Templates: finds every text of a job that is rendered, and those left open.
//!
//! The list is the one place that says which texts are templates and which are
//! expressions, so that checking on save and rendering later agree. A statement
//! of SQL is none: its values are bound. Neither are the schema, the default
//! payload and the variables: they are data.
//!
//! The only fault named here is a tag that never closes. Whether an expression
//! parses, and whether the names in it exist, is left to the template engine,
//! which knows its own grammar.

use serde_json::Value;

use super::{document::JobDocument, path::Path};

/// Most templates and expressions in one job.
pub const TEMPLATES_MAX: usize = 5_000;

/// The names that templates start from; `item` only in a `foreach`, `row` only in a filter.
pub const ROOTS: [&str; 10] =
    ["payload", "labels", "vars", "secrets", "steps", "run", "schedule", "webhook", "item", "row"];

/// A text of a document that is rendered when an attempt starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub path: String,
    pub text: String,
    pub kind: TemplateKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateKind {
    /// Text with tags in it.
    Text,
    /// An expression without tags, as in `if`.
    Expression,
}

/// Fields of a step that are never rendered, in the order of the reference.
const PLAIN_STEP_FIELDS: [&str; 8] = ["id", "needs", "on_failure", "always", "timeout", "retry", "queue", "requires"];

/// Every template and expression of a job, each with its path.
pub fn templates(job: &JobDocument) -> Vec<Template> {
    let mut found = Found::default();
    let root = Path::Root;
    if let Some(key) = job.concurrency.as_ref().and_then(|concurrency| concurrency.key.as_ref()) {
        found.text(&root.key("concurrency").key("key"), key);
    }
    if let Some(key) = job.rate_limit.as_ref().and_then(|limit| limit.key.as_ref()) {
        found.text(&root.key("rate_limit").key("key"), key);
    }
    for (index, schedule) in job.schedules.iter().enumerate() {
        found.value(&root.key("schedules").index(index).key("payload"), &schedule.payload);
    }
    if let Some(webhook) = job.triggers.as_ref().and_then(|triggers| triggers.webhook.as_ref()) {
        found.text(&root.key("triggers").key("webhook").key("secret"), &webhook.secret);
    }
    for (index, step) in job.steps.iter().enumerate() {
        found.step(&root.key("steps").index(index), &serde_json::to_value(step).unwrap_or_default());
    }
    found.0
}

#[derive(Default)]
struct Found(Vec<Template>);

impl Found {
    fn step(&mut self, path: &Path, step: &Value) {
        for (field, value) in step.as_object().into_iter().flatten() {
            let path = path.key(field);
            match (field.as_str(), value) {
                ("if", Value::String(text)) => self.push(&path, text, TemplateKind::Expression),
                (plain, _) if PLAIN_STEP_FIELDS.contains(&plain) => {}
                ("sql" | "file", Value::Object(fields)) => {
                    for (inner, value) in fields {
                        self.row_field(&path.key(inner), inner, value);
                    }
                }
                _ => self.value(&path, value),
            }
        }
    }

    fn row_field(&mut self, path: &Path, field: &str, value: &Value) {
        match (field, value) {
            ("statement" | "connection", _) => {}
            ("filter", Value::String(text)) => self.push(path, text, TemplateKind::Expression),
            _ => self.value(path, value),
        }
    }

    fn value(&mut self, path: &Path, value: &Value) {
        match value {
            Value::String(text) => self.text(path, text),
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.value(&path.index(index), item);
                }
            }
            Value::Object(fields) => {
                for (field, value) in fields {
                    self.value(&path.key(field), value);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn text(&mut self, path: &Path, text: &str) {
        if has_tags(text) {
            self.push(path, text, TemplateKind::Text);
        }
    }

    fn push(&mut self, path: &Path, text: &str, kind: TemplateKind) {
        // One more than is allowed, so that whoever counts can tell.
        if self.0.len() <= TEMPLATES_MAX {
            self.0.push(Template { path: path.to_string(), text: text.to_owned(), kind });
        }
    }
}

/// Whether a text is more than itself.
pub fn has_tags(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|tag| text.contains(tag))
}

/// The opening of the first tag that never closes.
pub fn open_tag(text: &str) -> Option<&'static str> {
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let tag = &rest[at..];
        let (opening, length) = match tag.as_bytes().get(1) {
            Some(b'{') => ("{{", expression_length(tag, "}}")),
            Some(b'%') => ("{%", statement_length(tag)),
            Some(b'#') => ("{#", tag.find("#}").map(|end| end + 2)),
            _ => ("{", Some(1)),
        };
        let Some(length) = length else { return Some(opening) };
        rest = &tag[length..];
    }
    None
}

/// Length of a `{%` tag; from `raw` on, everything up to `endraw` is plain text.
fn statement_length(tag: &str) -> Option<usize> {
    let length = expression_length(tag, "%}")?;
    let inside = tag[2..length - 2].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']);
    if inside.trim() == "raw" { Some(length + raw_length(&tag[length..])?) } else { Some(length) }
}

/// Length of plain text with the `{% endraw %}` that ends it.
fn raw_length(text: &str) -> Option<usize> {
    text.match_indices("endraw").find_map(|(at, word)| {
        let before = text[..at].trim_end();
        let after = text[at + word.len()..].trim_start();
        let closing = after.strip_prefix(['-', '+']).unwrap_or(after);
        let opens = ["{%", "{%-", "{%+"].iter().any(|opening| before.ends_with(opening));
        (opens && closing.starts_with("%}")).then(|| text.len() - closing.len() + 2)
    })
}

/// Length of a tag up to its closing, which neither a quoted text nor a map
/// inside the expression can be taken for.
fn expression_length(tag: &str, closing: &str) -> Option<usize> {
    let bytes = tag.as_bytes();
    let (mut at, mut open) = (2, 0_usize);
    while at < bytes.len() {
        if open == 0 && tag[at..].starts_with(closing) {
            return Some(at + 2);
        }
        match bytes[at] {
            quote @ (b'"' | b'\'') => at = quoted_end(bytes, at + 1, quote)?,
            b'{' => open += 1,
            b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        // Only whole characters are compared: a closing is plain ASCII.
        at += 1;
        while at < bytes.len() && !tag.is_char_boundary(at) {
            at += 1;
        }
    }
    None
}

fn quoted_end(bytes: &[u8], mut at: usize, quote: u8) -> Option<usize> {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return Some(at),
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn tags_that_never_close_are_found() {
        for (text, open) in [
            ("plain", None),
            ("{ \"a\": { } }", None),
            ("{{ payload.a }} and {{ vars.b }}", None),
            ("{{ '}}' }}", None),
            (r#"{{ "\"}}" }}"#, None),
            ("{{ {\"a\": {\"b\": 1}} }}", None),
            ("{% if a %}x{% endif %}", None),
            ("{# {{ #}", None),
            ("{% raw %}{{ {% x {% endraw %}", None),
            ("{%- raw -%}{{{%- endraw -%}", None),
            ("{% raw %} endraw {{ {% endraw", Some("{%")),
            ("{% raw %}{{{% endraw %}{{", Some("{{")),
            ("{{ 'é' }}", None),
            ("stray }} is text", None),
            ("{{ payload.a", Some("{{")),
            ("{{ a }} {{ b }", Some("{{")),
            ("{{ 'a }}", Some("{{")),
            ("{% if a }}", Some("{%")),
            ("{# never", Some("{#")),
            ("{% raw %}{{", Some("{%")),
        ] {
            assert_eq!(open_tag(text), open, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_search_panic(text in r#"([{}%#"'\\é -]|raw|endraw){0,40}"#) {
            open_tag(&text);
        }
    }

    /// Each tag is looked at once: no text makes the search slow.
    #[test]
    fn long_text_of_openings_is_searched_in_one_pass() {
        let many = "{%".repeat(500_000);
        assert_eq!(open_tag(&format!("{{% raw %}}{many}%}}")), Some("{%"));
        assert_eq!(open_tag(&"{{ a }}".repeat(150_000)), None);
        assert_eq!(open_tag(&format!("{{{{ {}", "{".repeat(1_000_000))), Some("{{"));
    }

    #[test]
    fn every_rendered_text_is_listed_and_no_other() {
        let job: JobDocument = serde_json::from_value(json!({
            "name": "a", "description": "{{ no }}", "input": { "default": "{{ no }}" }, "vars": { "v": "{{ no }}" },
            "concurrency": { "limit": 1, "key": "{{ payload.a }}" },
            "rate_limit": { "runs": 1, "per": "1m", "key": "{{ payload.b }}" },
            "schedules": [{ "every": "1m", "payload": { "day": ["{{ schedule.planned_at }}", "plain"] } }],
            "triggers": { "webhook": { "secret": "{{ secrets.hook }}" } },
            "steps": [
                { "id": "s", "if": "steps.x", "sql": { "connection": "c", "statement": "'{{1}}'", "params": ["{{ vars.v }}"] } },
                { "id": "f", "file": { "read": { "path": "{{ vars.p }}.csv" }, "filter": "row.a > 0" } },
                { "id": "h", "foreach": { "items": "{{ payload.l }}" }, "http": { "url": "{{ item.url }}" } },
            ],
        }))
        .unwrap();
        let mut paths: Vec<_> = templates(&job).into_iter().map(|found| (found.path, found.kind)).collect();
        paths.sort_by(|a, b| a.0.cmp(&b.0));
        let expected = [
            ("concurrency.key", TemplateKind::Text),
            ("rate_limit.key", TemplateKind::Text),
            ("schedules[0].payload.day[0]", TemplateKind::Text),
            ("steps[0].if", TemplateKind::Expression),
            ("steps[0].sql.params[0]", TemplateKind::Text),
            ("steps[1].file.filter", TemplateKind::Expression),
            ("steps[1].file.read.path", TemplateKind::Text),
            ("steps[2].foreach.items", TemplateKind::Text),
            ("steps[2].http.url", TemplateKind::Text),
            ("triggers.webhook.secret", TemplateKind::Text),
        ];
        assert_eq!(paths, expected.map(|(path, kind)| (path.to_owned(), kind)));
    }
}
