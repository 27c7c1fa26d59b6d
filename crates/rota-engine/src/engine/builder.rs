//! What an engine is put together from.

use std::{
    hash::{BuildHasher, Hasher},
    sync::Arc,
};

use rota_core::{
    ports::{Clock, Executor, Hints, Random, Relay, Seeded},
    store::{Store, StoreError},
};

use super::{Engine, Handle};
use crate::{
    clock::SystemClock,
    driver::Driver,
    executors::{Call, Executors, HandlerError, Handlers},
    hints::LocalHints,
    node::{Node, Ports},
    options::Options,
};

/// Puts an engine together.
pub struct Builder {
    store: Arc<dyn Store>,
    options: Options,
    clock: Option<Arc<dyn Clock>>,
    system_clock: Option<Arc<SystemClock>>,
    random: Option<Arc<dyn Random>>,
    hints: Option<Arc<dyn Hints>>,
    relay: Option<Arc<dyn Relay>>,
    handlers: Handlers,
    executors: Vec<Arc<dyn Executor>>,
}

impl Builder {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            options: Options::default(),
            clock: None,
            system_clock: None,
            random: None,
            hints: None,
            relay: None,
            handlers: Handlers::default(),
            executors: Vec::new(),
        }
    }

    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Self { options, ..self }
    }

    /// Another clock than the system's.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// The system's clock on another machine than this: it follows the store's.
    #[must_use]
    pub fn system_clock(self, clock: Arc<SystemClock>) -> Self {
        Self { system_clock: Some(clock), ..self }
    }

    #[must_use]
    pub fn random(self, random: Arc<dyn Random>) -> Self {
        Self { random: Some(random), ..self }
    }

    /// Hints that reach other processes.
    #[must_use]
    pub fn hints(self, hints: Arc<dyn Hints>) -> Self {
        Self { hints: Some(hints), ..self }
    }

    /// Carries what happens to the followers of other nodes, and what happens
    /// there to those of this one.
    #[must_use]
    pub fn relay(self, relay: Arc<dyn Relay>) -> Self {
        Self { relay: Some(relay), ..self }
    }

    /// The executor of another kind of step.
    #[must_use]
    pub fn executor(mut self, executor: Arc<dyn Executor>) -> Self {
        self.executors.push(executor);
        self
    }

    /// A function that executes steps by name.
    #[must_use]
    pub fn handler<F, R>(self, name: impl Into<String>, function: F) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<serde_json::Value, HandlerError>> + Send + 'static,
    {
        Self { handlers: self.handlers.with(name, function), ..self }
    }

    /// The node alone, for those who call its stages themselves.
    pub fn node(self) -> Arc<Node> {
        let (clock, system_clock) = if let Some(clock) = self.clock {
            (clock, None)
        } else {
            let system = self.system_clock.unwrap_or_default();
            (Arc::clone(&system) as Arc<dyn Clock>, Some(system))
        };
        let mut executors = Executors::new(self.handlers);
        for executor in self.executors {
            executors = executors.with(executor);
        }
        Arc::new(Node::new(Ports {
            store: self.store,
            clock,
            system_clock,
            random: self.random.unwrap_or_else(|| Arc::new(Seeded::new(seed()))),
            hints: self.hints.unwrap_or_else(|| Arc::new(LocalHints::default())),
            relay: self.relay,
            executors,
            options: self.options,
        }))
    }

    /// Joins the store and starts everything.
    pub async fn start(self) -> Result<Engine, StoreError> {
        let handle = Handle::new(self.node());
        let driver = Arc::new(Driver::start(Arc::clone(&handle.node)).await?);
        Ok(Engine { handle, driver })
    }
}

/// A seed of the process's own: the standard library draws it from the system.
fn seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
