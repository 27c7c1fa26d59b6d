//! Input schemas: what payloads must satisfy, evaluated within a budget.
//!
//! A schema of a few hundred bytes may ask for more work than there is time: alternatives
//! that refer to alternatives double with each level. The library that evaluates them has no
//! budget, but it reads payloads through a port: ours counts each look at a part of the
//! payload, and unwinds out of the whole evaluation when too many were taken. So the same
//! payload is refused on every machine, and nothing goes on behind it. What is a schema and
//! would look at nothing is given a `type` that allows everything.
//!
//! A reference into data (`const`, `enum`, `default`, `examples`) would find schemas that
//! look at nothing, so it is refused.

use std::{
    borrow::Cow,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use jsonschema::{
    JsonType, PatternOptions, ValidationError, Validator,
    json::{Array, Json, Node, NodeIdentity, Object, SerdeJson},
};
use rota_core::evaluation::schemas::{
    NAME_PATTERNS_MAX, PATTERN_BYTES_MAX, PATTERNS_BYTES_MAX, PATTERNS_MAX, STEPS_AT_ONCE, STEPS_MAX, STEPS_PER_BYTE,
};
use serde_json::{Map, Number, Value, json};

use crate::elsewhere::elsewhere;

/// Characters of a schema's complaint that are shown.
const MESSAGE_CHARS_MAX: usize = 500;

/// Keywords whose values are data.
const DATA: [&str; 8] =
    ["const", "enum", "default", "examples", "required", "dependentRequired", "$vocabulary", "discriminator"];
/// Keywords whose values are schemas by name.
const NAMED: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

thread_local! {
    /// What is left of the evaluation under way.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    /// What a byte of text costs in it.
    static PER_BYTE: Cell<u64> = const { Cell::new(0) };
    /// What a part of the payload costs that a complaint carries along.
    static PER_COMPLAINT: Cell<u64> = const { Cell::new(0) };
}

/// Complaints about alternatives hold a copy of what is wrong each, and copies of each other:
/// a payload of a megabyte and 18 levels took a gigabyte.
const STEPS_PER_COMPLAINT: u64 = 8;

/// A schema, ready for use.
#[derive(Debug)]
pub(super) struct Schema {
    validator: Validator<CountedJson>,
    patterns: usize,
}

impl Schema {
    /// Nothing is fetched: a reference to elsewhere is an error.
    pub(super) fn new(schema: &Value) -> Result<Self, String> {
        elsewhere(|| Self::compiled(schema))
    }

    /// Bytes that it keeps, nearly: an ordinary pattern takes some thousands.
    pub(super) fn weight(&self) -> usize {
        self.patterns * (16 << 10)
    }

    fn compiled(schema: &Value) -> Result<Self, String> {
        // What is wrong with it is said of what was written.
        jsonschema::meta::validate(schema).map_err(|error| shown(&error))?;
        let patterns = patterns(schema)?;
        if patterns > PATTERNS_MAX {
            return Err(format!("has {patterns} patterns, and may have {PATTERNS_MAX}"));
        }
        // Linear in the text: what looks around or back is refused.
        let most = PATTERN_BYTES_MAX.min(PATTERNS_BYTES_MAX / patterns.max(1));
        let linear = PatternOptions::regex().size_limit(most);
        let options = jsonschema::options_for::<CountedJson>().with_pattern_options(linear);
        let validator = options.build(&looking(schema)?).map_err(|error| match shown(&error) {
            pattern if pattern.ends_with("is not a \"regex\"") => {
                format!("{pattern}; look-around and back-references are not supported")
            }
            other => other,
        })?;
        Ok(Self { validator, patterns })
    }

    fn within_budget<T>(&self, work: impl Fn() -> T) -> Option<T> {
        PER_BYTE.set(if self.patterns > 0 { STEPS_PER_BYTE } else { 0 });
        within(STEPS_AT_ONCE, &work).or_else(|| elsewhere(|| within(STEPS_MAX, &work)))
    }

    /// What is wrong with a payload: the first thing, with its path.
    pub(super) fn refuses(&self, payload: &Value) -> Option<String> {
        match self.within_budget(|| self.validator.is_valid(Counted(payload))) {
            Some(true) => None,
            Some(false) => Some(self.first_error(payload)),
            None => Some(format!(
                "payload: checking it against input.schema takes more than {STEPS_MAX} steps; send less, or write \
                 the schema with fewer alternatives within alternatives"
            )),
        }
    }

    fn first_error(&self, payload: &Value) -> String {
        PER_COMPLAINT.set(STEPS_PER_COMPLAINT);
        let first = self.within_budget(|| {
            let error = self.validator.iter_errors(Counted(payload)).next()?;
            let path = error.instance_path().to_string().replace('/', ".");
            Some(format!("payload{path}: {}", shown(&error)))
        });
        PER_COMPLAINT.set(0);
        // Telling it apart may take more than finding out that there is something.
        first.flatten().unwrap_or_else(|| "payload: it does not satisfy input.schema".to_owned())
    }
}

/// The message repeats the value, which may be long and is the caller's own.
fn shown(error: &ValidationError<'_>) -> String {
    error.to_string().chars().take(MESSAGE_CHARS_MAX).collect()
}

/// Unwound with when the budget is spent.
struct Spent;

/// None when it would take too long.
fn within<T>(steps: u64, work: impl FnOnce() -> T) -> Option<T> {
    LEFT.set(Some(steps));
    // What is evaluated is only read, and dropped when it unwinds.
    let done = catch_unwind(AssertUnwindSafe(work));
    LEFT.set(None);
    match done {
        Ok(done) => Some(done),
        Err(spent) if spent.is::<Spent>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// A part of a payload that counts whenever it is looked at.
#[derive(Clone, Copy)]
struct Counted<'a>(&'a Value);

/// Payloads as they are, but counted.
struct CountedJson;

impl<'a> Counted<'a> {
    fn read(self) -> &'a Value {
        spend(1);
        self.0
    }
}

fn spend(steps: u64) {
    let Some(left) = LEFT.get() else { return };
    match left.checked_sub(steps) {
        Some(left) => LEFT.set(Some(left)),
        None => resume_unwind(Box::new(Spent)),
    }
}

/// What it costs to compare a value with others.
fn size(value: &Value) -> u64 {
    match value {
        Value::String(text) => 1 + text.len() as u64 / 64,
        Value::Array(items) => 1 + items.iter().map(size).sum::<u64>(),
        Value::Object(fields) => 1 + fields.iter().map(|(_, field)| 1 + size(field)).sum::<u64>(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// What it costs to have a text read from its beginning to its end.
fn spend_for(text: &str) {
    let length = text.len() as u64;
    spend(length / 64 + length * PER_BYTE.get());
}

impl Json for CountedJson {
    type Node<'a> = Counted<'a>;
    type PreparedKey = String;
    type StringBuffer = Value;

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>(buffer: &mut Value, string: &str, work: impl FnOnce(Counted<'_>) -> T) -> T {
        *buffer = Value::String(string.to_owned());
        work(Counted(buffer))
    }
}

impl<'a> Node<'a, CountedJson> for Counted<'a> {
    type Object = Fields<'a>;
    type Array = Items<'a>;
    type Number = &'a Number;

    fn as_object(&self) -> Option<Fields<'a>> {
        self.read().as_object().map(Fields)
    }

    fn as_array(&self) -> Option<Items<'a>> {
        self.read().as_array().map(|items| Items(items))
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        let text = self.read().as_str()?;
        spend_for(text);
        Some(Cow::Borrowed(text))
    }

    fn string_length(&self) -> Option<u64> {
        let text = self.read().as_str()?;
        spend(text.len() as u64 / 64);
        Some(text.chars().count() as u64)
    }

    fn as_number(&self) -> Option<&'a Number> {
        self.read().as_number()
    }

    fn as_boolean(&self) -> Option<bool> {
        self.read().as_bool()
    }

    fn is_null(&self) -> bool {
        self.read().is_null()
    }

    fn json_type(&self) -> JsonType {
        Node::<SerdeJson>::json_type(&self.read())
    }

    fn to_value(&self) -> Cow<'a, Value> {
        if PER_COMPLAINT.get() > 0 {
            spend(PER_COMPLAINT.get() * size(self.0));
        }
        Cow::Borrowed(self.0)
    }

    fn equals_value(&self, expected: &Value) -> bool {
        spend(size(expected));
        Node::<SerdeJson>::equals_value(&self.read(), expected)
    }

    fn identity(&self) -> Option<NodeIdentity> {
        Node::<SerdeJson>::identity(&self.0)
    }
}

struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Object<'a, CountedJson> for Fields<'a> {
    type Node = Counted<'a>;
    type MemberName = &'a str;
    type MembersIter = Members<'a>;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, key: &String) -> Option<Counted<'a>> {
        spend(1);
        self.0.get(key).map(Counted)
    }

    fn members(&self) -> Members<'a> {
        Members(self.0.iter())
    }
}

struct Members<'a>(serde_json::map::Iter<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = (&'a str, Counted<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, value) = self.0.next()?;
        // Names are compared with patterns, too.
        spend(1);
        spend_for(name);
        Some((name.as_str(), Counted(value)))
    }
}

struct Items<'a>(&'a [Value]);

impl<'a> Array<'a, CountedJson> for Items<'a> {
    type Node = Counted<'a>;
    type ElementsIter = std::iter::Map<std::slice::Iter<'a, Value>, fn(&'a Value) -> Counted<'a>>;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn elements(&self) -> Self::ElementsIter {
        self.0.iter().map(Counted)
    }

    fn is_unique(&self) -> bool {
        spend(self.0.iter().map(size).sum());
        Array::<SerdeJson>::is_unique(&self.0)
    }
}

/// The same schema, each part of which looks at the payload.
fn looking(schema: &Value) -> Result<Value, String> {
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Array(items) => return items.iter().map(looking).collect::<Result<_, _>>().map(Value::Array),
        other => return Ok(other.clone()),
    };
    let mut with = Map::new();
    for (name, value) in fields {
        if REFERENCES.contains(&name.as_str()) && value.as_str().is_some_and(finds_data) {
            return Err(format!("`{name}` refers to `{value}`, which is within data and not a schema"));
        }
        let value = match value {
            data if DATA.contains(&name.as_str()) => data.clone(),
            Value::Object(named) if NAMED.contains(&name.as_str()) => {
                let named = named.iter().map(|(name, schema)| Ok((name.clone(), looking(schema)?)));
                Value::Object(named.collect::<Result<_, String>>()?)
            }
            other => looking(other)?,
        };
        with.insert(name.clone(), value);
    }
    with.entry("type").or_insert_with(|| json!(["array", "boolean", "integer", "null", "number", "object", "string"]));
    Ok(Value::Object(with))
}

/// How many patterns a schema has.
fn patterns(schema: &Value) -> Result<usize, String> {
    let mut found = 0;
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                found += match (name.as_str(), value) {
                    ("pattern", Value::String(_)) => 1,
                    ("patternProperties", Value::Object(named)) if named.len() > NAME_PATTERNS_MAX => {
                        return Err(format!("`patternProperties` may have at most {NAME_PATTERNS_MAX} patterns"));
                    }
                    ("patternProperties", Value::Object(named)) => named.len() + patterns(value)?,
                    _ => patterns(value)?,
                };
            }
        }
        Value::Array(items) => {
            for item in items {
                found += patterns(item)?;
            }
        }
        _ => {}
    }
    Ok(found)
}

/// Whether a reference leads into what is data where it stands.
fn finds_data(reference: &str) -> bool {
    let Some((_, pointer)) = reference.split_once("#/") else { return false };
    let pointer = percent_encoding::percent_decode_str(pointer).decode_utf8_lossy();
    let mut is_name = false;
    for part in pointer.split('/') {
        let part = part.replace("~1", "/").replace("~0", "~");
        if !is_name && DATA.contains(&part.as_str()) {
            return true;
        }
        is_name = !is_name && NAMED.contains(&part.as_str());
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(schema: &Value) -> Schema {
        Schema::new(schema).unwrap_or_else(|why| panic!("{schema}: {why}"))
    }

    /// Levels of alternatives, each of which is tried twice by the one above.
    fn doubling(levels: usize, last: &Value) -> Value {
        let mut defs: Map<String, Value> = (0..levels)
            .map(|n| {
                let next = json!({ "$ref": format!("#/$defs/a{}", n + 1) });
                (format!("a{n}"), json!({ "anyOf": [next.clone(), { "allOf": [next] }] }))
            })
            .collect();
        defs.insert(format!("a{levels}"), last.clone());
        json!({ "$ref": "#/$defs/a0", "$defs": defs })
    }

    /// A trigger of a job with such a schema took seconds, and twice as long a level deeper.
    #[test]
    fn alternatives_within_alternatives_are_given_up() {
        for levels in [30, 60] {
            let why = schema(&doubling(levels, &json!({ "type": "object" }))).refuses(&json!("text")).unwrap();
            assert!(why.contains("steps"), "{why}");
        }
        assert_eq!(schema(&doubling(5, &json!({ "type": "string" }))).refuses(&json!("text")), None);
        let written_out = (0..18).fold(json!({ "type": "object" }), |inner, n| {
            json!({ "anyOf": [inner, { "properties": { n.to_string(): { "type": "null" } }, "type": "array" }] })
        });
        assert!(schema(&written_out).refuses(&json!("text")).is_some());
    }

    /// What is wrong was told with copies of the payload within copies.
    #[test]
    fn what_is_wrong_with_a_large_payload_is_not_told_at_any_price() {
        let nested = schema(&(0..18).fold(json!({ "type": "object" }), |inner, n| {
            json!({ "anyOf": [inner, { "properties": { n.to_string(): { "type": "null" } }, "type": "string" }] })
        }));
        let why = nested.refuses(&json!(vec![0; 50_000])).unwrap();
        assert_eq!(why, "payload: it does not satisfy input.schema");
        let why = nested.refuses(&json!([0])).unwrap();
        assert!(why.contains("[0] is not valid"), "{why}");
        let why = schema(&json!({ "type": "object" })).refuses(&json!(vec![0; 50_000])).unwrap();
        assert!(why.starts_with("payload: [0,0,"), "one complaint is no price: {why}");
    }

    /// Depth is the payload's, and whoever sends it chooses it.
    #[test]
    fn recursion_that_doubles_with_the_depth_of_the_payload_is_given_up() {
        let tree = json!({ "anyOf": [
            { "properties": { "a": { "$ref": "#" } }, "required": ["x"] },
            { "properties": { "a": { "$ref": "#" } }, "required": ["y"] },
        ] });
        let deep = (0..100).fold(json!({}), |inner, _| json!({ "a": inner, "z": 1 }));
        assert!(schema(&tree).refuses(&deep).is_some());
    }

    /// One that looked ahead took a second for 4,000 characters and a thread for ever for 60,000.
    #[test]
    fn patterns_are_linear_few_and_counted_by_the_text_they_read() {
        for pattern in ["(?=(a+)+$)b", r"(a)\1", "(a{1000}){1000}"] {
            assert!(Schema::new(&json!({ "pattern": pattern })).is_err(), "{pattern}");
        }
        let many = |count: usize| json!((0..count).map(|n| json!({ "pattern": format!("x{n}$") })).collect::<Vec<_>>());
        assert!(Schema::new(&json!({ "allOf": many(PATTERNS_MAX + 1) })).unwrap_err().contains("patterns"));
        let why = schema(&json!({ "anyOf": many(PATTERNS_MAX) })).refuses(&json!("a".repeat(2_000))).unwrap();
        assert!(why.contains("steps"), "{why}");
        let names =
            |count: usize| -> Map<String, Value> { (0..count).map(|n| (format!("^k.*{n}$"), json!({}))).collect() };
        assert!(Schema::new(&json!({ "patternProperties": names(NAME_PATTERNS_MAX + 1) })).is_err());
        let payload: Map<String, Value> = (0..50_000).map(|n| (format!("k{n}"), json!(1))).collect();
        assert!(schema(&json!({ "patternProperties": names(NAME_PATTERNS_MAX) })).refuses(&json!(payload)).is_some());
        let usual = schema(&json!({ "items": { "type": "string", "pattern": "^[a-z]{2}-[0-9]{4}$", "maxLength": 7 } }));
        assert_eq!(usual.refuses(&json!(vec!["ab-1234"; 5_000])), None);
        let unique = json!({ "allOf": vec![json!({ "uniqueItems": true }); 200] });
        assert!(schema(&unique).refuses(&json!((0..50_000).collect::<Vec<_>>())).unwrap().contains("steps"));
        let large = json!({ "allOf": vec![json!({ "const": (0..5_000).collect::<Vec<_>>() }); 20], "items": {} });
        assert!(schema(&json!({ "items": large })).refuses(&json!(vec![(0..5_000).collect::<Vec<_>>(); 10])).is_some());
        assert_eq!(schema(&json!({ "type": "string" })).refuses(&json!("a".repeat(1 << 20))), None);
    }

    /// A large payload of an ordinary schema is not refused for its size.
    #[test]
    fn thousands_of_rows_are_within_the_budget() {
        let row = json!({ "type": "object", "required": ["id"], "additionalProperties": false,
            "properties": { "id": { "type": "integer" }, "name": { "type": "string", "maxLength": 20 } } });
        let rows = schema(&json!({ "type": "object", "properties": { "rows": { "type": "array", "items": row } } }));
        let payload = |id: Value| json!({ "rows": vec![json!({ "id": id, "name": "x" }); 10_000] });
        assert_eq!(rows.refuses(&payload(json!(1))), None);
        assert_eq!(rows.refuses(&payload(json!("1"))).unwrap(), "payload.rows.0.id: \"1\" is not of type \"integer\"");
    }

    /// What is put in beside what was written must not change what it means.
    #[test]
    fn counting_changes_no_meaning() {
        for (of, good, bad) in [
            (json!({ "const": { "a": 1 } }), json!({ "a": 1 }), json!({})),
            (json!({ "enum": [{ "a": {} }, 1] }), json!({ "a": {} }), json!({ "a": 1 })),
            (json!({ "maxProperties": 1, "minProperties": 1 }), json!({ "a": 1 }), json!({})),
            (json!({ "properties": { "const": { "type": "null" } } }), json!({ "const": null }), json!({ "const": 1 })),
            (json!({ "additionalProperties": false }), json!({}), json!({ "a": 1 })),
            (
                json!({ "unevaluatedProperties": false, "properties": { "a": true } }),
                json!({ "a": 1 }),
                json!({ "b": 1 }),
            ),
            (json!({ "dependentRequired": { "a": ["b"] } }), json!({ "a": 1, "b": 1 }), json!({ "a": 1 })),
            (
                json!({ "$schema": "http://json-schema.org/draft-04/schema#", "dependencies": { "a": ["b"] },
                "properties": { "a": {} } }),
                json!({ "a": 1, "b": 1 }),
                json!({ "a": 1 }),
            ),
            (
                json!({ "$schema": "http://json-schema.org/draft-07/schema#", "definitions": { "n": { "type": "null" } },
                "items": { "$ref": "#/definitions/n" } }),
                json!([null]),
                json!([1]),
            ),
            (
                json!({ "if": { "required": ["a"] }, "then": { "required": ["b"] } }),
                json!({ "a": 1, "b": 1 }),
                json!({ "a": 1 }),
            ),
            (json!({ "prefixItems": [{ "type": "null" }], "items": false }), json!([null]), json!([null, 1])),
            (json!(true), json!(1), Value::Null),
        ] {
            let schema = schema(&of);
            assert_eq!(schema.refuses(&good), None, "{of}");
            assert!(of == json!(true) || schema.refuses(&bad).is_some(), "{of}");
        }
    }

    /// A schema that is hidden where nothing counts.
    #[test]
    fn a_reference_into_data_is_refused() {
        for reference in ["#/const", "#/%63onst", "#/properties/a/enum/0", "#/$defs/default/default"] {
            assert!(
                Schema::new(&json!({ "$ref": reference, "const": {}, "properties": { "a": { "enum": [{}] } },
                "$defs": { "default": { "default": {} } } }))
                .unwrap_err()
                .contains("data"),
                "{reference}"
            );
        }
        let named = json!({ "$ref": "#/properties/const", "properties": { "const": { "type": "object" } } });
        assert_eq!(schema(&named).refuses(&json!({})), None);
        assert!(Schema::new(&json!({ "type": "nonsense" })).is_err());
        assert!(Schema::new(&json!({ "$ref": "https://example.com/schema" })).is_err());
    }
}
