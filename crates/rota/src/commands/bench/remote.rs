//! `rota bench remote`: runs executed by workers in other processes, over HTTP.
//!
//! This process is the node: it makes runs, leases them in writing, and settles
//! what is reported. The workers are this same program, started anew, with a
//! handler that does nothing. What is measured is the whole way of a run, from
//! its making to its place in history.

use std::{process::Stdio, sync::Arc};

use anyhow::{Context, anyhow};
use clap::Args;
use rota_client::{Client, Worker};
use rota_core::duration::Span;
use rota_engine::{Engine, JobRef, Options, RunAsk};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    BatchArgs, PlaceArgs, fill,
    flow::{self, Served},
    target::Target,
};
use crate::{clock, failure::Failure, printer::Printer};

const JOBS: usize = 10;

#[derive(Args)]
pub struct RemoteArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// How many runs to process
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    runs: u64,
    #[command(flatten)]
    batches: BatchArgs,
    /// Processes that execute
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    workers: u64,
    /// Maximum number of attempts in flight in each process
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    slots: u32,
}

/// A worker of the benchmark; started by it.
#[derive(Args)]
pub struct WorkerArgs {
    #[arg(long)]
    server: String,
    #[arg(long)]
    slots: u32,
}

#[derive(Serialize)]
struct Report {
    store: &'static str,
    runs: u64,
    history: u64,
    workers: u64,
    slots: u32,
    runs_per_s: u64,
    claims: u64,
    settle_batches: u64,
}

pub async fn run(args: RemoteArgs, printer: &mut Printer) -> Result<(), Failure> {
    let target = Target::parse(args.place.store.as_deref(), printer)?;
    let history = fill(&target, args.batches.history).await?;
    let report = measure(&target, &args, history).await?;
    target.clean()?;
    Ok(printer.answer(args.place.output, &report, |printer| {
        printer.line(&format!(
            "{} runs on {}, {} finished runs before, {} worker processes of {} slots",
            report.runs, report.store, report.history, report.workers, report.slots
        ))?;
        printer.line(&format!("  {:>9} runs/s, from enqueue to history", report.runs_per_s))?;
        printer.line(&format!("  {:>9} claims, {} settled batches", report.claims, report.settle_batches))?;
        Ok(())
    })?)
}

/// Executes until its process is told to go.
pub async fn work(args: WorkerArgs) -> Result<(), Failure> {
    let client = Client::new(args.server).map_err(|error| anyhow!(error))?;
    let worker = Worker::new(client, "bench").slots(args.slots).handler("far", |_| async { Ok(Value::Null) });
    let mut stop = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let stopped = async {
        stop.recv().await;
    };
    Ok(worker.run(stopped).await.map_err(|error| anyhow!(error))?)
}

async fn measure(target: &Target, args: &RemoteArgs, history: u64) -> Result<Report, Failure> {
    let store = target.open().await?;
    let kind = store.kind();
    let options = Options { sole: true, ..Options::default() };
    let engine = Engine::builder(Arc::clone(&store)).options(options).start().await.context("starting the engine")?;
    let tenant = flow::tenant(&engine, "bench-remote").await?;
    let served = Served::start(&engine, tenant).await?;
    let mut jobs = Vec::with_capacity(JOBS);
    for n in 0..JOBS {
        let job = json!({
            "name": format!("bench-remote-{n}"), "queue": format!("bench-{}", n % 3),
            "steps": [{ "id": "s", "handler": { "name": "far" } }],
        });
        jobs.push(flow::save(&engine, tenant, &job).await?);
    }
    let mut workers = Vec::new();
    for _ in 0..args.workers {
        workers.push(worker(&served.url, args.slots)?);
    }
    while engine.node().remote.workers() < args.workers as usize {
        clock::sleep(Span::millis(10)).await;
    }
    let took = flow::throughput(&engine, args.runs, args.batches.batch, |number| {
        let job = jobs[(number % jobs.len() as u64) as usize];
        RunAsk::of(tenant, JobRef::Id(job)).with_payload(json!({ "n": number, "text": "x".repeat(150) }))
    })
    .await?;
    let (claims, settle_batches) = (engine.stats().claims.get(), engine.stats().settle_batches.get());
    for mut worker in workers {
        worker.kill().await.context("ending a worker")?;
    }
    flow::stop(&engine).await?;
    served.stop().await?;
    Ok(Report {
        store: kind,
        runs: args.runs,
        history,
        workers: args.workers,
        slots: args.slots,
        runs_per_s: flow::rate(args.runs, took),
        claims,
        settle_batches,
    })
}

fn worker(url: &str, slots: u32) -> Result<tokio::process::Child, Failure> {
    let program = std::env::current_exe().context("finding this program")?;
    let child = tokio::process::Command::new(program)
        .args(["bench", "remote-worker", "--server", url, "--slots", &slots.to_string()])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    Ok(child.context("starting a worker")?)
}
