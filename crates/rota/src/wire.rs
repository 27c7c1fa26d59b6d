//! Wire: the one place that chooses store, clock, executors and roles, and puts
//! them together.

use std::{fs, io, os::unix::fs::DirBuilderExt as _, path::Path, sync::Arc};

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::TenantId,
    ports::{Executor, Hints},
    store::{Store, TenantPut, Tier},
};
use rota_embed::store::{self, Opened, Place};
use rota_engine::{
    Engine, Options,
    elsewhere::mark_thread,
    executors::{
        Call, HandlerError,
        command::{CommandExecutor, CommandOptions, CommandPolicy},
        http::{HttpExecutor, HttpOptions},
    },
};
use rota_server::{Access, Bounds, Hosts, Node};
use rota_store::{guests, postgres};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::{
    config::{Config, StoreAddress},
    demo,
};

/// The tenant of an installation that knows only one.
const TENANT: &str = "default";

/// Opens the store, making what it needs on the way.
pub async fn store(config: &Config) -> anyhow::Result<Opened> {
    private_directory(&config.data)?;
    let place = match &config.store {
        StoreAddress::Sqlite(path) => Place::File(path),
        StoreAddress::Postgres(url) => Place::Postgres(url),
    };
    let options = postgres::Options {
        schema: config.schema.clone(),
        work_connections: config.connections,
        ..postgres::Options::default()
    };
    store::open(place, options).await.with_context(|| format!("cannot open the store {}", config.store))
}

/// Makes a directory that only its owner can look into.
fn private_directory(path: &Path) -> anyhow::Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("cannot create the directory {}", path.display()))
}

/// Joins the store and starts everything.
pub async fn engine(config: &Config, opened: Opened) -> anyhow::Result<Engine> {
    let mut builder = Engine::builder(opened.store).options(options(config)).handler(demo::HANDLER, hello);
    if let Some(hints) = opened.hints {
        builder = builder.hints(Arc::clone(&hints) as Arc<dyn Hints>).relay(hints);
    }
    for executor in executors(config)? {
        builder = builder.executor(executor);
    }
    builder.start().await.context("cannot join the store")
}

/// Those who execute the built-in kinds of steps, under this machine's rules.
pub fn executors(config: &Config) -> anyhow::Result<Vec<Arc<dyn Executor>>> {
    let commands = commands(config)?;
    let http = HttpOptions { egress: config.egress.clone(), ..HttpOptions::default() };
    Ok(vec![Arc::new(HttpExecutor::new(http)), Arc::new(CommandExecutor::new(commands))])
}

/// How programs are started here, with the directory that they need.
fn commands(config: &Config) -> anyhow::Result<CommandOptions> {
    let options = &config.commands;
    // Programs are told of it, and may go elsewhere.
    let directory = std::path::absolute(&options.directory).context("cannot find the directory for commands")?;
    let is_new = !directory.exists();
    private_directory(&directory)?;
    match options.user {
        Some(user) => {
            let is_root = rustix::process::geteuid().is_root();
            anyhow::ensure!(is_root, "commands.user is {user}, and only a node that runs as root may change users");
            if is_new {
                std::os::unix::fs::chown(&directory, Some(user.uid), Some(user.gid))
                    .with_context(|| format!("cannot give {} to {user}", directory.display()))?;
            }
        }
        None if options.policy == CommandPolicy::Any => tracing::warn!(
            "programs of any job run as this node's user and can read what it can, its secrets too; \
             set commands.user, or run the worker in a container"
        ),
        None => {}
    }
    let options = CommandOptions { directory, ..options.clone() };
    if options.user.is_some() || options.limits.is_some() {
        // A directory that the user cannot enter would otherwise fail every step.
        options.try_start().map_err(|error| {
            anyhow!(
                "programs cannot be started in {} as commands.user and under the limits: {error}; \
                     set commands.directory to one that the user can enter",
                options.directory.display()
            )
        })?;
    }
    Ok(options)
}

fn options(config: &Config) -> Options {
    let third = |span: Span| Span::millis(span.as_millis() / 3);
    let about = json!({ "version": env!("CARGO_PKG_VERSION"), "roles": config.roles.to_string() });
    Options {
        name: config.name.clone(),
        info: about.to_string(),
        // The lock beside the file keeps every other process out.
        sole: matches!(config.store, StoreAddress::Sqlite(_)),
        schedules: config.roles.scheduler,
        executes: config.roles.worker,
        traits: config.traits.clone(),
        tiers: config.tiers.clone(),
        node_lease: config.node_lease,
        heartbeat_every: third(config.node_lease),
        run_lease: config.run_lease,
        extend_every: third(config.run_lease),
        slots: config.attempts_max,
        history_keep: config.history_keep,
        audit_keep: config.audit_keep,
        ..Options::default()
    }
}

/// The tenant whose jobs are read from files. One that is there is left as it
/// is: somebody may have given it another tier.
pub async fn tenant(store: &dyn Store, now: Timestamp) -> anyhow::Result<TenantId> {
    let known = store.tenants().await.context("cannot read the tenants")?;
    if let Some(tenant) = known.iter().find(|tenant| tenant.name == TENANT) {
        return Ok(tenant.id);
    }
    let put = TenantPut { name: TENANT.to_owned(), tier: Tier::Unlimited, quotas: None };
    let ids = store.put_tenants(&[put], now).await.context("cannot save the tenant")?;
    ids.first().copied().ok_or_else(|| anyhow!("the store did not answer for the tenant"))
}

/// A node that knows its callers as it was told, and bounds them so.
pub fn node(config: &Config) -> anyhow::Result<Node> {
    let access = Access::new(config.access.clone()).map_err(|why| anyhow!(why))?;
    let bounds = Bounds {
        connections_max: config.http_connections,
        address_connections_max: config.http_connections_per_address,
        requests_max: config.http_requests,
        ..Bounds::default()
    };
    Ok(Node::new(access, bounds))
}

/// The threads of the engine, which are its alone.
pub fn engine_threads() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .thread_name("rota-engine")
        .thread_keep_alive(rota_server::IDLE_THREAD_TIME)
        .on_thread_start(mark_thread)
        .enable_all()
        .build()
}

/// The threads of the API: what they ask of the store has its own share of it.
pub fn api_threads(config: &Config) -> io::Result<Runtime> {
    rota_server::threads(config.http_threads, guests::mark_thread)
}

/// Who may be asked for.
pub fn hosts(config: &Config) -> Hosts {
    Hosts { names: config.hosts.clone(), beyond_loopback: !config.listen.ip().is_loopback() }
}

/// Says what kept the server from its address, and what to do.
pub fn not_bound(config: &Config, error: io::Error) -> anyhow::Error {
    let listen = config.listen;
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            anyhow!(
                "cannot listen on {listen}: another process already does; stop it, or choose another address with --listen"
            )
        }
        _ => anyhow!(error).context(format!("cannot listen on {listen}")),
    }
}

/// The handler that every node has: it says hello, and when.
async fn hello(call: Call) -> Result<Value, HandlerError> {
    call.log("hello from Rota");
    Ok(json!({ "said": "hello", "at": call.now() }))
}
