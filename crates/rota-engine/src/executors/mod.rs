//! Executors: those who turn an attempt into an outcome, one for each kind of step.
//!
//! Each takes an [`Attempt`](rota_core::ports::Attempt) whose templates are
//! rendered and answers with an outcome. To stop one, its future is dropped:
//! the call is given up, the process group is killed.
//!
//! Deadlines, panics, leases and retries are the stage's.

pub mod breaker;
pub mod command;
pub mod egress;
pub mod handler;
pub mod http;
pub mod render;
#[cfg(test)]
mod testing;

use std::{collections::HashMap, sync::Arc};

use rota_core::ports::Executor;

pub use self::handler::{Call, HandlerError, Handlers};

/// The executors of one node.
#[derive(Clone, Default)]
pub struct Executors {
    by_kind: HashMap<&'static str, Arc<dyn Executor>>,
    handlers: Arc<Handlers>,
}

impl Executors {
    /// Executors for these handlers and nothing else.
    pub fn new(handlers: Handlers) -> Self {
        let handlers = Arc::new(handlers);
        let by_kind = HashMap::from([(handlers.kind(), Arc::clone(&handlers) as Arc<dyn Executor>)]);
        Self { by_kind, handlers }
    }

    /// Adds the executor of a kind, in place of a former one.
    #[must_use]
    pub fn with(mut self, executor: Arc<dyn Executor>) -> Self {
        self.by_kind.insert(executor.kind(), executor);
        self
    }

    pub fn get(&self, kind: &str) -> Option<Arc<dyn Executor>> {
        self.by_kind.get(kind).map(Arc::clone)
    }

    pub fn has_handler(&self, name: &str) -> bool {
        self.handlers.has(name)
    }

    pub fn handlers(&self) -> impl Iterator<Item = &str> {
        self.handlers.names()
    }

    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.by_kind.keys().copied()
    }
}
