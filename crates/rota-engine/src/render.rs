//! Templates, as the engine asks for them.
//!
//! A key is rendered when a run is made, a step when an attempt starts. The
//! template engine is behind [`Renderer`]; [`Plain`] knows only references such
//! as `{{ payload.account }}`, which is enough for keys and for jobs without
//! templates.

use std::collections::BTreeMap;

use rota_core::{job::step::StepKind, run::Labels};
use serde_json::Value;

/// What a template may refer to.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub payload: &'a Value,
    pub labels: &'a Labels,
    pub vars: &'a BTreeMap<String, Value>,
    /// The run itself: id, attempt, times.
    pub run: &'a Value,
}

pub trait Renderer: Send + Sync {
    /// A text with its tags replaced, or what is wrong with it.
    fn text(&self, template: &str, scope: &Scope<'_>) -> Result<String, String>;

    /// A step with all its templates rendered.
    fn step(&self, step: &StepKind, scope: &Scope<'_>) -> Result<StepKind, String>;
}

/// Replaces references, and refuses everything else.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Renderer for Plain {
    fn text(&self, template: &str, scope: &Scope<'_>) -> Result<String, String> {
        let mut text = String::with_capacity(template.len());
        let mut rest = template;
        while let Some(start) = rest.find("{{") {
            let end = rest[start..].find("}}").ok_or_else(|| format!("`{template}` has a tag that never closes"))?;
            text.push_str(&rest[..start]);
            match reference(rest[start + 2..start + end].trim(), scope)? {
                Value::String(found) => text.push_str(&found),
                found => text.push_str(&found.to_string()),
            }
            rest = &rest[start + end + 2..];
        }
        text.push_str(rest);
        Ok(text)
    }

    fn step(&self, step: &StepKind, scope: &Scope<'_>) -> Result<StepKind, String> {
        let StepKind::Handler(handler) = step else {
            return Err(format!("a step of kind {} needs a template engine", step.name()));
        };
        let mut handler = handler.clone();
        if let Some(payload) = &mut handler.payload {
            self.fill(payload, scope)?;
        }
        Ok(StepKind::Handler(handler))
    }
}

impl Plain {
    fn fill(self, value: &mut Value, scope: &Scope<'_>) -> Result<(), String> {
        match value {
            Value::String(text) if text.contains("{{") => {
                let whole = text.trim().strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
                *value = match whole {
                    Some(path) if !path.contains("{{") => reference(path.trim(), scope)?,
                    _ => Value::String(self.text(text, scope)?),
                };
                Ok(())
            }
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.fill(item, scope)),
            Value::Object(fields) => fields.values_mut().try_for_each(|field| self.fill(field, scope)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }
}

/// The value that a path such as `payload.account` names.
pub fn reference(path: &str, scope: &Scope<'_>) -> Result<Value, String> {
    let mut parts = path.split('.');
    let missing = || format!("`{path}` is not there");
    match parts.next() {
        Some("payload") => find(scope.payload, parts).cloned().ok_or_else(missing),
        Some("run") => find(scope.run, parts).cloned().ok_or_else(missing),
        Some("labels") => {
            let key = parts.collect::<Vec<_>>().join(".");
            scope.labels.get(&key).map(|label| Value::String(label.clone())).ok_or_else(missing)
        }
        Some("vars") => {
            let found = parts.next().and_then(|name| scope.vars.get(name));
            found.and_then(|value| find(value, parts)).cloned().ok_or_else(missing)
        }
        _ => Err(format!("`{path}` is not a reference to the payload, labels, variables or run")),
    }
}

fn find<'v, 'p>(value: &'v Value, mut path: impl Iterator<Item = &'p str>) -> Option<&'v Value> {
    path.try_fold(value, |value, key| match value {
        Value::Array(items) => key.parse::<usize>().ok().and_then(|index| items.get(index)),
        value => value.get(key),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_replaced_and_anything_else_is_refused() {
        let payload = json!({ "account": "a1", "n": 7, "list": [{ "x": true }] });
        let labels = Labels::from([("team".into(), "red".into())]);
        let scope = Scope { payload: &payload, labels: &labels, vars: &BTreeMap::new(), run: &Value::Null };
        for (template, expected) in [
            ("plain", Ok("plain")),
            ("{{ payload.account }}-{{payload.n}}", Ok("a1-7")),
            ("{{ payload.list.0.x }}", Ok("true")),
            ("{{ labels.team }}", Ok("red")),
            ("{{ payload.nobody }}", Err("`payload.nobody` is not there")),
            ("{{ payload", Err("`{{ payload` has a tag that never closes")),
        ] {
            let found = Plain.text(template, &scope);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{template}");
        }
        assert!(Plain.text("{{ payload | upper }}", &scope).is_err());
    }
}
