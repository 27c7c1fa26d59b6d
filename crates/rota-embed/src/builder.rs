//! From an address to a Rota at work.

use std::{fmt, pin::Pin, sync::Arc};

use rota_core::{
    ports::{Clock as _, Executor, Hints},
    store::{TenantPut, Tier},
};
use rota_engine::{
    Engine, Options,
    clock::SystemClock,
    executors::{
        Call, HandlerError,
        command::{CommandExecutor, CommandOptions},
        http::{HttpExecutor, HttpOptions},
    },
};
use rota_store::postgres;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    Error, Rota,
    rota::{Inbox, TENANT},
    store::{self, Opened, Place},
};

type Answer = Pin<Box<dyn Future<Output = Result<Value, HandlerError>> + Send>>;
type Function = Box<dyn Fn(Call) -> Answer + Send + Sync>;

/// Gathers what a Rota is made of; see [`Rota::open`].
#[must_use = "nothing is opened before `start`"]
pub struct Builder {
    address: String,
    options: Options,
    postgres: postgres::Options,
    handlers: Vec<(String, Function)>,
    executors: Vec<Arc<dyn Executor>>,
}

impl Builder {
    pub(crate) fn new(address: String) -> Self {
        let alone = address.starts_with("sqlite:");
        let options = Options {
            // The lock beside the file keeps every other process out.
            sole: alone,
            // Other programs may share a database and have other handlers, so
            // their runs are claimed by those who have them. A lane keeps its
            // mode for ever: this is the one that is never wrong.
            handlers_everywhere: alone,
            ..Options::default()
        };
        Self { address, options, postgres: postgres::Options::default(), handlers: Vec::new(), executors: Vec::new() }
    }

    /// An async function that executes steps by name, in place of a former one
    /// of that name.
    ///
    /// A payload that is no `P` fails its run as `invalid_input`, which is not
    /// tried again. What the function answers is the run's output. Its error
    /// may say whether and when to try again; `?` makes one of every error.
    pub fn handler<P, T, R>(
        mut self,
        name: impl Into<String>,
        function: impl Fn(Call, P) -> R + Send + Sync + 'static,
    ) -> Self
    where
        P: DeserializeOwned,
        T: Serialize,
        R: Future<Output = Result<T, HandlerError>> + Send + 'static,
    {
        let called = move |call: Call| -> Answer {
            match call.payload_as::<P>() {
                Ok(payload) => {
                    let answer = function(call, payload);
                    Box::pin(async move { output(&answer.await?) })
                }
                Err(error) => Box::pin(std::future::ready(Err(error))),
            }
        };
        self.handlers.push((name.into(), Box::new(called)));
        self
    }

    /// Executes `http` steps. By default they reach public addresses only.
    pub fn http(self, options: HttpOptions) -> Self {
        self.executor(Arc::new(HttpExecutor::new(options)))
    }

    /// Executes `command` steps, as far as the policy allows.
    pub fn commands(self, options: CommandOptions) -> Self {
        self.executor(Arc::new(CommandExecutor::new(options)))
    }

    /// Executes steps of another kind.
    pub fn executor(mut self, executor: Arc<dyn Executor>) -> Self {
        self.executors.push(executor);
        self
    }

    /// The PostgreSQL schema that holds Rota's tables; made if it is not there.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.postgres.schema = Some(name.into());
        self
    }

    /// Connections to PostgreSQL for work, besides the few kept for leases.
    pub fn connections(mut self, most: usize) -> Self {
        self.postgres.work_connections = most;
        self
    }

    /// Changes how the engine behaves: attempts at once, leases, retention.
    pub fn options(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// Opens the store, making what it needs on the way, and starts everything.
    pub async fn start(self) -> Result<Rota, Error> {
        let place = Place::parse(&self.address).ok_or(Error::Address)?;
        let inbox = matches!(place, Place::Postgres(_)).then(|| Inbox::of(self.postgres.schema.as_deref()));
        let Opened { store, hints } = store::open(place, self.postgres).await?;
        let put = TenantPut { name: TENANT.to_owned(), tier: Tier::Unlimited, quotas: None };
        // Before the engine starts: a refusal then leaves nothing at work.
        let tenants = store.put_tenants(&[put], SystemClock::new().now()).await?;
        let mut builder = Engine::builder(store).options(self.options);
        if let Some(hints) = hints {
            builder = builder.hints(Arc::clone(&hints) as Arc<dyn Hints>).relay(hints);
        }
        for (name, function) in self.handlers {
            builder = builder.handler(name, function);
        }
        for executor in self.executors {
            builder = builder.executor(executor);
        }
        // A slice in, one answer per item out: the tenant's own is the first.
        Ok(Rota::new(builder.start().await?, tenants[0], inbox))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the address, which may hold a password.
        let names: Vec<&String> = self.handlers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Builder").field("handlers", &names).finish_non_exhaustive()
    }
}

fn output(answer: &impl Serialize) -> Result<Value, HandlerError> {
    serde_json::to_value(answer)
        .map_err(|error| HandlerError::never_again(format!("its result cannot be written as JSON: {error}")))
}
