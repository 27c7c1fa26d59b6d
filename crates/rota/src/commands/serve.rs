//! `rota serve`: a node, from its start to its orderly end.
//!
//! The engine and the API have threads of their own: a flood of requests, or a slow
//! one, delays no stage.
//!
//! SIGTERM or SIGINT drains: nothing new is begun, partitions are given up at
//! once, attempts may end within a limit and are then handed back. Health and
//! metrics are answered until the end. A second signal leaves at once: attempts
//! are broken off, and their runs are found by the next owner as after a crash.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use clap::Args;
use rota_core::{ids::TenantId, job::JobDocument};
use rota_engine::Engine;
use rota_server::{Login, Node, Server};
use tokio::{
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    time::timeout,
};
use tracing::{info, warn};

use crate::{
    config::{self, Config, Flags},
    demo,
    failure::Failure,
    job_files::{self, Documents, JobFile},
    logs,
    printer::Printer,
    wire,
};

/// A signal so soon after the first is the same one: `timeout` and some
/// supervisors tell the process, and then its group.
pub(super) const ECHO_MAX: Duration = Duration::from_millis(500);
/// How long the process waits for what was told to end.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// How long the server's last answers may take; it gives them up after 3 s itself, unless
/// something keeps its threads.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 drained after SIGTERM or SIGINT; 1 failed; 2 the configuration or a
job document is invalid; 128 and the signal's number after a second signal.")]
pub struct ServeArgs {
    #[command(flatten)]
    flags: Flags,
}

pub fn run(args: &ServeArgs, printer: &mut Printer) -> Result<(), Failure> {
    let config = config::load(&args.flags)?;
    let mut documents = config.jobs.as_deref().map(job_files::read_directory).transpose()?.unwrap_or_default();
    if config.demo {
        documents.jobs.push(demo_job()?);
    }
    logs::start(config.log_format, config.log_level.clone())?;
    for variable in config::strangers() {
        warn!(variable, "a ROTA_ variable is set that is not a setting");
    }
    let (engine, api) = (wire::engine_threads()?, wire::api_threads(&config)?);
    let left = engine.block_on(serve(&config, &documents, api.handle(), printer));
    // Whoever asks goes before what it is asked of. Attempts that are left are
    // dropped, and their programs killed with them. What still blocks a thread must
    // not keep the process.
    api.shutdown_timeout(LAST_MOMENT);
    engine.shutdown_timeout(LAST_MOMENT);
    match left? {
        Left::Drained => Ok(()),
        Left::AtOnce { number } => Err(Failure::Signal { number }),
    }
}

/// How a node went.
enum Left {
    Drained,
    AtOnce { number: u8 },
}

fn demo_job() -> Result<JobFile, Failure> {
    let document = JobDocument::from_yaml(demo::JOB.as_bytes());
    let document = document.map_err(|problems| anyhow!("the demo job is invalid: {problems:?}"))?;
    Ok(JobFile { path: "--demo".into(), document })
}

async fn serve(config: &Config, documents: &Documents, api: &Handle, printer: &mut Printer) -> anyhow::Result<Left> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let server = Server::bind(config.listen).await.map_err(|error| wire::not_bound(config, error))?;
    let address = server.address();
    let node = wire::node(config)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let answering = api.spawn(server.serve(node.clone(), wire::hosts(config), async {
        // Whoever is gone cannot say stop, and means it.
        drop(stopped.await);
    }));
    let done = tokio::select! {
        started = start(config, documents) => match started {
            Ok((engine, tenant)) => {
                node.started(engine.clone(), tenant);
                greet(config, address, printer)?;
                until_drained(config, engine, &node, &mut signals).await
            }
            Err(error) => Err(error),
        },
        name = signals.next() => {
            info!(signal = name.0, "stopped before it had started");
            Ok(Left::Drained)
        }
    };
    drop(stop);
    // Its threads may be busy with something that does not end.
    if let Ok(ended) = timeout(LAST_ANSWERS, answering).await {
        ended.context("the HTTP server failed")?.context("cannot serve the address")?;
    } else {
        warn!("requests did not end in time, and are abandoned");
    }
    done
}

async fn start(config: &Config, documents: &Documents) -> anyhow::Result<(Engine, TenantId)> {
    let store = wire::store(config).await?;
    let engine = wire::engine(config, store).await?;
    tokio::spawn(logs::follow(engine.clone()));
    let saved = save(&engine, documents).await;
    if saved.is_err() && engine.stop(config.drain).await.is_err() {
        warn!("the node could not leave the store; its partitions become free when its lease has expired");
    }
    saved.map(|tenant| (engine, tenant))
}

async fn save(engine: &Engine, documents: &Documents) -> anyhow::Result<TenantId> {
    let tenant = wire::tenant(engine.store().as_ref(), engine.now()).await?;
    job_files::save_calendars(engine, tenant, &documents.calendars).await?;
    job_files::save(engine, tenant, &documents.jobs).await?;
    Ok(tenant)
}

fn greet(config: &Config, address: SocketAddr, printer: &mut Printer) -> anyhow::Result<()> {
    let (store, roles) = (config.store.to_string(), config.roles.to_string());
    info!(url = %format_args!("http://{address}"), store, roles, version = env!("CARGO_PKG_VERSION"), "serving");
    if !address.ip().is_loopback() && config.access.login == Login::Off {
        warn!("other machines can reach this node, and it requires no login: anybody who can reach it has full access");
    }
    if config.demo {
        printer.text(&format!(
            "
Rota runs the job `demo` every 10 seconds. Where to look:

  rota run list --job demo           its runs (target/release/rota, from a checkout)
  http://{address}/docs/         the API, to try it
  http://{address}/metrics       the metrics of this node, such as rota_runs_ended_total

Jobs of your own: docs/quickstart.md takes ten minutes. Ctrl-C stops.

"
        ))?;
        printer.flush()?;
    }
    Ok(())
}

async fn until_drained(config: &Config, engine: Engine, node: &Node, signals: &mut Signals) -> anyhow::Result<Left> {
    let name = tokio::select! {
        (name, _) = signals.next() => name,
        stage = engine.broken() => anyhow::bail!("the engine failed: its stage `{stage}` panicked; start Rota again, and it continues where it was"),
    };
    info!(signal = name, limit = %config.drain, "draining; a second signal stops at once");
    node.draining();
    tokio::select! {
        stopped = engine.stop(config.drain) => stopped.context("cannot drain")?,
        (name, number) = signals.next_after(ECHO_MAX) => {
            warn!(signal = name, "stopping at once");
            return Ok(Left::AtOnce { number });
        }
    }
    info!("drained");
    Ok(Left::Drained)
}

/// The signals that ask a node to go.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next one, by its name and number.
    pub(super) async fn next(&mut self) -> (&'static str, u8) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 15),
            _ = self.interrupt.recv() => ("SIGINT", 2),
        }
    }

    /// The next one that comes after so long.
    pub(super) async fn next_after(&mut self, quiet: Duration) -> (&'static str, u8) {
        let begun = Instant::now();
        loop {
            let next = self.next().await;
            if begun.elapsed() >= quiet {
                return next;
            }
        }
    }
}
