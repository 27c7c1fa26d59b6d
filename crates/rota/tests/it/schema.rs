//! The JSON Schema of the job document says what the types that read it say.

use std::collections::BTreeSet;

use rota_core::job::{JobDocument, read};
use serde_json::{Value, json};

use crate::node::ended;

fn schema() -> Value {
    serde_json::from_str(rota_api::job::SCHEMA).unwrap()
}

/// An editor that does not know a field marks it as wrong; one that knows a field
/// that does not exist offers it.
#[test]
fn every_object_of_the_schema_has_the_fields_of_its_type_and_no_others() {
    let schema = schema();
    let mut looked_at = 0;
    let mut places: Vec<(Vec<Step>, &Value)> = vec![(Vec::new(), &schema)];
    while let Some((path, node)) = places.pop() {
        let node = resolved(&schema, node);
        for part in node["oneOf"].as_array().into_iter().chain(node["anyOf"].as_array()).flatten() {
            places.push((path.clone(), part));
        }
        if node["items"].is_object() {
            places.push(([&path[..], &[Step::Item]].concat(), &node["items"]));
        }
        let Some(properties) = node["properties"].as_object() else { continue };
        for (name, below) in properties {
            places.push(([&path[..], &[Step::Field(name.clone())]].concat(), below));
        }
        // One of several shapes: its own fields are those of the shape.
        if path.last().is_some_and(|step| matches!(step, Step::Field(name) if name == "auth")) {
            continue;
        }
        let known: BTreeSet<String> = properties.keys().cloned().collect();
        assert_eq!(fields_of_type(&path), known, "{path:?}");
        assert_eq!(node["additionalProperties"], false, "{path:?}");
        looked_at += 1;
    }
    assert!(looked_at >= 35, "only {looked_at} objects were found");
}

#[derive(Clone, Debug)]
enum Step {
    Field(String),
    Item,
}

fn resolved<'a>(schema: &'a Value, node: &'a Value) -> &'a Value {
    match node["$ref"].as_str() {
        Some(reference) => schema.pointer(reference.trim_start_matches('#')).unwrap(),
        None => node,
    }
}

/// The fields that the type at a place knows, as it says when it meets one that
/// it does not know.
fn fields_of_type(path: &[Step]) -> BTreeSet<String> {
    let mut value = json!({ "no such field": null });
    for step in path.iter().rev() {
        value = match step {
            Step::Field(name) => json!({ name: value }),
            Step::Item => json!([value]),
        };
    }
    let said = serde_json::from_value::<JobDocument>(value).unwrap_err().to_string();
    assert!(said.contains("unknown field `no such field`"), "{path:?}: {said}");
    let expected = said.split("expected").nth(1).unwrap_or_default();
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Every example of the docs passes, and what the reader refuses for its form
/// does not.
#[test]
fn the_examples_of_the_docs_satisfy_the_schema() {
    let schema = schema();
    let check = |text: &str| {
        let value = read::yaml(text.as_bytes()).unwrap();
        let mut wrong = Vec::new();
        validate(&schema, &schema, &value, "", &mut wrong);
        wrong
    };
    let mut examples = 0;
    for text in examples_of_docs() {
        assert_eq!(check(&text), Vec::<String>::new(), "{text}");
        examples += 1;
    }
    assert!(examples > 10, "{examples}");
    let good = "steps: [{ id: a, sleep: { for: 1s } }]";
    for (bad, text) in [
        ("no name", good.to_owned()),
        ("an unknown field", format!("name: x\n{good}\ntiemout: 3s\n")),
        ("two kinds", "name: x\nsteps: [{ id: a, sleep: { for: 1s }, handler: { name: h } }]".to_owned()),
        ("two schedules in one", format!("name: x\n{good}\nschedules: [{{ cron: '@daily', every: 1s }}]\n")),
        ("a bad priority", format!("name: x\n{good}\npriority: 11\n")),
    ] {
        assert!(!check(&text).is_empty(), "{bad}");
    }
}

/// As much of JSON Schema as ours uses, but for `pattern`. A keyword that is not
/// known here fails the test, so that none is passed over in silence.
fn validate(root: &Value, node: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    const SILENT: [&str; 7] = ["$schema", "$defs", "title", "description", "default", "pattern", "maxLength"];
    let matches = |part: &Value| {
        let mut found = Vec::new();
        validate(root, part, value, at, &mut found);
        found.is_empty()
    };
    let number = |limit: &Value| limit.as_f64().unwrap();
    for (keyword, rule) in node.as_object().unwrap() {
        let length = value.as_array().map(Vec::len);
        let fits = match keyword.as_str() {
            "$ref" => {
                validate(root, resolved(root, node), value, at, wrong);
                true
            }
            "type" => match rule.as_str().unwrap() {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64() || value.is_u64(),
                "number" => value.is_number(),
                other => panic!("the type {other}"),
            },
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|found| found >= number(rule)),
            "maximum" => value.as_f64().is_none_or(|found| found <= number(rule)),
            "minItems" => length.is_none_or(|found| found as f64 >= number(rule)),
            "maxItems" => length.is_none_or(|found| found as f64 <= number(rule)),
            "maxProperties" => value.as_object().is_none_or(|found| found.len() as f64 <= number(rule)),
            "required" => {
                let names = rule.as_array().unwrap();
                value.is_object() && names.iter().all(|name| value.get(name.as_str().unwrap()).is_some())
            }
            "oneOf" => rule.as_array().unwrap().iter().filter(|part| matches(part)).count() == 1,
            "anyOf" => rule.as_array().unwrap().iter().any(matches),
            "allOf" => rule.as_array().unwrap().iter().all(matches),
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(root, rule, item, &format!("{at}[{n}]"), wrong);
                }
                true
            }
            "properties" | "additionalProperties" => true,
            other => {
                assert!(SILENT.contains(&other), "the keyword {other}");
                true
            }
        };
        if !fits {
            wrong.push(format!("{at}: {keyword} {rule}"));
        }
    }
    for (name, below) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        match (node["properties"].get(name), &node["additionalProperties"]) {
            (Some(rule), _) | (None, rule @ Value::Object(_)) => validate(root, rule, below, &at, wrong),
            (None, Value::Bool(false)) => wrong.push(format!("{at}: there is no such field")),
            (None, _) => {}
        }
    }
}

/// The YAML of the pages that hold jobs; parts are made whole.
fn examples_of_docs() -> Vec<String> {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let mut found = Vec::new();
    for page in ["job.md", "schedules.md", "serve.md", "quickstart.md", "steps/http.md", "steps/command.md"] {
        let text = std::fs::read_to_string(format!("{docs}/{page}")).unwrap();
        for (n, block) in text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).enumerate() {
            let whole = ["name:", "steps:", "schedules:", "retry:", "concurrency:", "triggers:"];
            if !whole.iter().any(|start| block.lines().any(|line| line.starts_with(start))) {
                continue;
            }
            let mut text = block.to_owned();
            if !text.lines().any(|line| line.starts_with("name:")) {
                text = format!("name: example-{n}\n{text}");
            }
            if !text.lines().any(|line| line.starts_with("steps:")) {
                text.push_str("steps: [{ id: wait, sleep: { for: 1s } }]\n");
            }
            if JobDocument::from_yaml(text.as_bytes()).is_ok() {
                found.push(text);
            }
        }
    }
    found
}

#[test]
fn the_command_prints_the_schema() {
    let (code, text, error) = ended(&["job", "schema"]);
    assert_eq!((code, text.as_str()), (0, rota_api::job::SCHEMA), "{error}");
}
