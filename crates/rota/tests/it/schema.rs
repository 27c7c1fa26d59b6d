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
    jsonschema::meta::validate(&schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let check = |text: &str| -> Vec<String> {
        let value = read::yaml(text.as_bytes()).unwrap();
        validator.iter_errors(&value).map(|error| format!("{}: {error}", error.instance_path())).collect()
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
