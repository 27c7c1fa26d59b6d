//! Render: fills in the templates of a step when an attempt starts.
//!
//! A template that is one expression yields its value, so `"{{ payload.n }}"` in
//! a JSON body stays a number; any other yields text. A value that is missing is
//! an error that names the path, the last key of it included, and `null` has no
//! text. Conditions (`if`) are expressions without braces.
//!
//! Templates are written by tenants and over payloads of their callers, so
//! every one is bounded: its source, its steps (fuel), its nesting, its output, and
//! how much it reads and copies on the way ([`budget`]). What cannot be bounded from
//! outside the template engine is taken away from it (see [`sandbox`]).
//!
//! This module knows no clock, no store and no secret: it is handed the values
//! that were fixed when the run was made.

mod budget;
mod filters;
mod kinds;
mod sandbox;
mod value;

use std::sync::Arc;

use minijinja::{Value as Template, value::Serde};
use rota_core::{
    job::{
        failure::{ErrorKind, Failure},
        step::StepKind,
        template::has_tags,
    },
    run::Outcome,
};
use serde::Serialize;
use serde_json::Value;

use self::sandbox::Sandbox;

/// Why a template could not be filled in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RenderError {
    message: String,
}

impl RenderError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }

    /// The same, with the field it happened in.
    fn at(self, field: &str) -> Self {
        Self { message: format!("{field}: {}", self.message) }
    }
}

/// The same input would fail the same way, so nothing is tried again.
impl From<RenderError> for Failure {
    fn from(error: RenderError) -> Self {
        Self::new(ErrorKind::InvalidInput, error.message)
    }
}

impl From<RenderError> for Outcome {
    fn from(error: RenderError) -> Self {
        Self::Failed(error.into())
    }
}

/// What templates start from: `payload`, `labels`, `vars` and the other roots.
#[derive(Clone, Debug, Default)]
pub struct Values {
    roots: Vec<(&'static str, Template)>,
}

impl Values {
    pub fn new() -> Self {
        Self::default()
    }

    /// These values and one more root, such as `payload`.
    #[must_use]
    pub fn with(mut self, root: &'static str, value: impl Serialize) -> Self {
        self.roots.push((root, Template::from(Serde(value))));
        self
    }

    fn context(&self) -> Template {
        Template::from_pairs(self.roots.iter().map(|(root, value)| (*root, value.clone())))
    }
}

/// Fills in templates. Cheap to clone; compiled templates are kept and shared.
#[derive(Clone, Default)]
pub struct Renderer {
    sandbox: Arc<Sandbox>,
}

impl Renderer {
    pub fn new() -> Self {
        Self::default()
    }

    /// The step as it is to be executed.
    ///
    /// `values` is only asked for when there is something to fill in.
    pub fn step(&self, kind: &StepKind, values: impl Fn() -> Values) -> Result<StepKind, RenderError> {
        budget::within(|| kinds::render(kind, &mut self.rendering(&values)))
    }

    /// A JSON value with every text in it filled in, such as a schedule's payload.
    pub fn value(&self, value: &Value, values: &Values) -> Result<Value, RenderError> {
        budget::within(|| self.rendering(|| values.clone()).value("", value))
    }

    /// A text, such as a concurrency key.
    pub fn text(&self, text: &str, values: &Values) -> Result<String, RenderError> {
        budget::within(|| self.rendering(|| values.clone()).text("", text))
    }

    /// Whether an expression, written without braces, is true.
    pub fn condition(&self, expression: &str, values: &Values) -> Result<bool, RenderError> {
        budget::within(|| self.sandbox.condition(expression, &values.context()))
    }

    fn rendering<F: FnOnce() -> Values>(&self, values: F) -> Rendering<'_, F> {
        Rendering { sandbox: &self.sandbox, values: Late::Not(Some(values)) }
    }
}

/// Values that are made when the first template asks for them.
enum Late<F> {
    Not(Option<F>),
    Made(Template),
}

/// One step being filled in.
struct Rendering<'a, F> {
    sandbox: &'a Sandbox,
    values: Late<F>,
}

impl<F: FnOnce() -> Values> Rendering<'_, F> {
    fn context(&mut self) -> Template {
        if let Late::Not(make) = &mut self.values {
            let made = make.take().map_or_else(Values::new, |make| make());
            self.values = Late::Made(made.context());
        }
        match &self.values {
            Late::Made(context) => context.clone(),
            Late::Not(_) => Template::UNDEFINED,
        }
    }

    /// A field that is text whatever its template yields.
    fn text(&mut self, field: &str, text: &str) -> Result<String, RenderError> {
        match self.fill(text) {
            Ok(Filled::Plain) => Ok(text.to_owned()),
            Ok(Filled::Text(text)) => Ok(text),
            Ok(Filled::Value(value)) => value::text_of(value).map_err(|error| named(error, field)),
            Err(error) => Err(named(error, field)),
        }
    }

    fn optional(&mut self, field: &str, text: Option<&String>) -> Result<Option<String>, RenderError> {
        text.map(|text| self.text(field, text)).transpose()
    }

    /// A field that is JSON: each text in it may become any value.
    fn value(&mut self, field: &str, value: &Value) -> Result<Value, RenderError> {
        Ok(match value {
            Value::String(text) => match self.fill(text).map_err(|error| named(error, field))? {
                Filled::Plain => value.clone(),
                Filled::Text(text) => Value::String(text),
                Filled::Value(value) => value,
            },
            Value::Array(items) => {
                let items = items.iter().enumerate();
                let filled = items.map(|(index, item)| self.value(&format!("{field}[{index}]"), item));
                Value::Array(filled.collect::<Result<_, _>>()?)
            }
            Value::Object(fields) => {
                let filled = fields.iter().map(|(key, value)| Ok((key.clone(), self.value(&join(field, key), value)?)));
                Value::Object(filled.collect::<Result<_, RenderError>>()?)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        })
    }

    fn fill(&mut self, text: &str) -> Result<Filled, RenderError> {
        if !has_tags(text) {
            return Ok(Filled::Plain);
        }
        let context = self.context();
        self.sandbox.fill(text, &context)
    }
}

/// What became of a text.
enum Filled {
    /// It had no tags.
    Plain,
    Text(String),
    Value(Value),
}

fn named(error: RenderError, field: &str) -> RenderError {
    if field.is_empty() { error } else { error.at(field) }
}

fn join(field: &str, key: &str) -> String {
    if field.is_empty() { key.to_owned() } else { format!("{field}.{key}") }
}

#[cfg(test)]
mod tests;
