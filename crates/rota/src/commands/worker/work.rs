//! The built-in executors as a remote worker of a server elsewhere.
//!
//! It offers the same kinds of steps as a node, under this machine's own rules
//! for what may be started and reached, and the traits it was given. It takes
//! what no node takes for itself: jobs that require one of its traits. SIGTERM
//! or SIGINT drains; a second one leaves at once, and what was under way is
//! found lost when its leases run out.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use clap::Args;
use rota_client::{Call, Client, HandlerError, Outcome as Told, Worker, api::worker::AttemptError};
use rota_core::{
    ids::{JobId, RunId, TenantId},
    job::{
        failure::{Failure as Failed, RetryAdvice},
        step::Step,
    },
    ports::{Attempt, Context, Executor, Progress, Reports, Stream},
    run::{Fence, Lease, Outcome},
    trace::TraceParent,
};
use rota_engine::clock::SystemClock;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::{
    commands::serve::{ECHO_MAX, Signals},
    config::{self, Config, Flags},
    demo,
    failure::Failure,
    logs,
    target::{ServerArgs, Target},
    wire,
};

/// Attempts that a worker may have under way, whatever `attempts_max` says.
const SLOTS_MAX: usize = rota_client::api::worker::LEASES_MAX;

#[derive(Args)]
pub struct WorkArgs {
    /// Take work only from these queues
    #[arg(long = "queue", value_name = "QUEUE")]
    queues: Vec<String>,
    #[command(flatten)]
    flags: Flags,
}

impl WorkArgs {
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.flags.is_empty()
    }
}

pub fn run(server: &ServerArgs, args: &WorkArgs) -> Result<(), Failure> {
    let config = config::load(&args.flags)?;
    let client = Target::of(server)?.client()?;
    logs::start(config.log_format, config.log_level.clone())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let left = runtime.block_on(work(client, &config, &args.queues));
    runtime.shutdown_timeout(Duration::from_secs(1));
    left
}

async fn work(client: Client, config: &Config, queues: &[String]) -> Result<(), Failure> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let server = client.address().to_owned();
    let worker = worker(client, config, queues)?;
    info!(worker = %worker.id(), name = config.name, server, version = env!("CARGO_PKG_VERSION"), "working");
    let (stop, stopped) = oneshot::channel::<()>();
    let working = worker.run(async {
        // Whoever is gone cannot say stop, and means it.
        drop(stopped.await);
    });
    tokio::pin!(working);
    let done = tokio::select! {
        done = &mut working => done,
        (name, _) = signals.next() => {
            info!(signal = name, limit = %config.drain, "draining; a second signal stops at once");
            drop(stop);
            tokio::select! {
                done = &mut working => done,
                (name, number) = signals.next_after(ECHO_MAX) => {
                    warn!(signal = name, "stopping at once");
                    return Err(Failure::Signal { number });
                }
            }
        }
    };
    done?;
    info!("drained");
    Ok(())
}

fn worker(client: Client, config: &Config, queues: &[String]) -> anyhow::Result<Worker> {
    let mut worker = Worker::new(client, &config.name)
        .version(env!("CARGO_PKG_VERSION"))
        .slots(config.attempts_max.min(SLOTS_MAX) as u32)
        .drain_limit(Duration::from_millis(config.drain.as_millis()))
        .handler(demo::HANDLER, hello);
    for queue in queues {
        worker = worker.queue(queue);
    }
    for name in &config.traits {
        worker = worker.with_trait(name);
    }
    let clock = Arc::new(SystemClock::new());
    for executor in wire::executors(config)? {
        let clock = Arc::clone(&clock);
        let kind = executor.kind();
        worker = worker.kind(kind, move |call| execute(Arc::clone(&executor), Arc::clone(&clock), call));
    }
    Ok(worker)
}

async fn hello(call: Call) -> Result<Value, HandlerError> {
    call.log("hello from Rota");
    Ok(json!({ "said": "hello", "worker": true }))
}

/// What an attempt says goes with the worker's next exchange.
struct Said(Arc<Call>);

impl Reports for Said {
    fn log(&self, stream: Stream, text: &str) {
        self.0.log_to(stream.as_str(), text);
    }

    fn progress(&self, progress: Progress) {
        self.0.progress(progress.percent, progress.phase.as_deref(), progress.message.as_deref());
    }
}

async fn execute(executor: Arc<dyn Executor>, clock: Arc<SystemClock>, call: Call) -> Told {
    let step = call.spec.clone().ok_or_else(|| "the attempt does not say what to do".to_owned());
    let step: Result<Step, String> =
        step.and_then(|spec| serde_json::from_value(spec).map_err(|error| error.to_string()));
    let step = match step {
        Ok(step) => step,
        Err(error) => return failed("invalid_input", format!("the step cannot be parsed: {error}")),
    };
    let call = Arc::new(call);
    let attempt = Attempt {
        lease: Lease { run: RunId(call.run), fence: Fence(call.fence) },
        number: call.attempt,
        // A worker deals with one tenant, and does not know its number.
        tenant: TenantId(0),
        job: JobId(call.job.id),
        version: call.version,
        step: step.kind,
        payload: call.payload.clone(),
        deadline_at: call.deadline_at,
        traceparent: call.traceparent.as_deref().and_then(TraceParent::parse),
    };
    let context = Context { clock, reports: Arc::new(Said(call)) };
    match executor.execute(&attempt, &context).await {
        Outcome::Succeeded { output } => {
            Told::Succeeded(output.as_deref().and_then(|text| serde_json::from_str(text).ok()))
        }
        Outcome::Failed(failure) => Told::Failed(error(failure)),
        Outcome::Cancelled => Told::Cancelled,
        Outcome::Deferred { until, reason } => Told::Deferred { until, reason },
        Outcome::Parked { .. } => failed("invalid_input", "a remote worker cannot park a run".to_owned()),
    }
}

fn failed(kind: &str, message: String) -> Told {
    Told::Failed(AttemptError { kind: Some(kind.into()), message, status: None, retry_after_ms: None, retry: None })
}

fn error(failure: Failed) -> AttemptError {
    let (retry_after_ms, retry) = match failure.advice {
        RetryAdvice::ByPolicy => (None, None),
        RetryAdvice::After(wait) => (Some(wait.as_millis()), None),
        RetryAdvice::Never => (None, Some(false)),
    };
    AttemptError {
        kind: Some(failure.kind.as_str().to_owned()),
        message: failure.message,
        status: failure.status,
        retry_after_ms,
        retry,
    }
}
