//! Values of the template engine as JSON and as text, bounded while they are read.
//!
//! The engine's own serialiser would walk a lazy sequence of a hundred million
//! items to the end before anyone could count them.

use minijinja::{Value as Template, value::ValueKind};
use rota_core::evaluation::templates::OUTPUT_BYTES_MAX;
use serde_json::{Map, Number, Value};

use super::RenderError;

/// Levels of lists and maps in a value.
const DEPTH_MAX: usize = 64;

/// What is left of the size that a value may have.
pub(super) struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(OUTPUT_BYTES_MAX)
    }
}

impl Budget {
    fn spend(&mut self, bytes: usize) -> Result<(), RenderError> {
        self.0 = self.0.checked_sub(bytes).ok_or_else(too_long)?;
        Ok(())
    }
}

pub(super) fn too_long() -> RenderError {
    RenderError::new(format!("yields more than {OUTPUT_BYTES_MAX} bytes"))
}

/// A value as JSON.
pub(super) fn json_of(value: &Template) -> Result<Value, RenderError> {
    json_within(value, &mut Budget::default(), 0)
}

fn json_within(value: &Template, budget: &mut Budget, depth: usize) -> Result<Value, RenderError> {
    if depth > DEPTH_MAX {
        return Err(RenderError::new(format!("is nested more than {DEPTH_MAX} levels deep")));
    }
    budget.spend(2)?;
    match value.kind() {
        ValueKind::Undefined => Err(RenderError::new("has no value")),
        ValueKind::None => Ok(Value::Null),
        ValueKind::Bool => Ok(Value::Bool(value.is_true())),
        ValueKind::Number => number(value),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            budget.spend(text.len())?;
            Ok(Value::String(text.to_owned()))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter().map_err(|error| unreadable(&error))? {
                items.push(json_within(&item, budget, depth + 1)?);
            }
            Ok(Value::Array(items))
        }
        ValueKind::Map => map(value, budget, depth),
        kind => Err(RenderError::new(format!("yields {kind}, which cannot be written as JSON"))),
    }
}

fn map(value: &Template, budget: &mut Budget, depth: usize) -> Result<Value, RenderError> {
    let mut fields = Map::new();
    for key in value.try_iter().map_err(|error| unreadable(&error))? {
        let Some(name) = key.as_str() else {
            return Err(RenderError::new("yields a map with a key that is not text"));
        };
        budget.spend(name.len())?;
        let field = value.get_item(&key).map_err(|error| unreadable(&error))?;
        fields.insert(name.to_owned(), json_within(&field, budget, depth + 1)?);
    }
    Ok(Value::Object(fields))
}

fn number(value: &Template) -> Result<Value, RenderError> {
    let whole = value.is_integer();
    let number = if whole {
        value.as_i64().map(Number::from).or_else(|| u64::try_from(value.clone()).ok().map(Number::from))
    } else {
        f64::try_from(value.clone()).ok().and_then(Number::from_f64)
    };
    number.map(Value::Number).ok_or_else(|| RenderError::new("yields a number that cannot be written as JSON"))
}

fn unreadable(error: &minijinja::Error) -> RenderError {
    RenderError::new(error.to_string())
}

/// A value where only text can stand. Lists and maps become their JSON.
pub(super) fn text_of(value: Value) -> Result<String, RenderError> {
    match value {
        Value::Null => Err(RenderError::new("yields null, which cannot be written as text; use `| default(…, true)`")),
        Value::String(text) => Ok(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => Ok(value.to_string()),
    }
}
