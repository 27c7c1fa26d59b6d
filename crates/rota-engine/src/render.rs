//! What the engine's templates may refer to.
//!
//! A key is rendered when a run is made, a step when an attempt starts, a
//! schedule's payload when it fires. [`Renderer`] does the rendering; this says
//! from which values.

use std::collections::BTreeMap;

use rota_core::run::Labels;
use serde_json::Value;

use crate::executors::render::{RenderError, Renderer, Values};

/// What a template may refer to.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub payload: &'a Value,
    pub labels: &'a Labels,
    pub vars: &'a BTreeMap<String, Value>,
    /// The run itself: id, attempt, times.
    pub run: &'a Value,
}

impl Scope<'_> {
    pub fn values(&self) -> Values {
        Values::new()
            .with("payload", self.payload)
            .with("labels", self.labels)
            .with("vars", self.vars)
            .with("run", self.run)
    }
}

/// The value that a path such as `payload.account` names.
pub fn reference(renderer: &Renderer, path: &str, scope: &Scope<'_>) -> Result<Value, RenderError> {
    renderer.value(&Value::String(format!("{{{{ {path} }}}}")), &scope.values())
}
