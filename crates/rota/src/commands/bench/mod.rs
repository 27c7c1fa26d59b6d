//! `rota bench`: measures this machine, in ratios to a raw loop in the same
//! run, because machines are noisy and absolute figures travel badly.

mod abuse;
mod bulk;
mod callbacks;
mod drive;
mod engine;
mod flow;
mod load;
mod remote;
mod schedules;
mod scratch;
mod target;

use std::{
    io,
    sync::atomic::AtomicU64,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use rota_core::{lane::LaneMode, store::Store};
use rota_store::RawLoad;
use serde::Serialize;

use self::{
    drive::{Pipeline, Seat, Task},
    load::Load,
    target::Target,
};
use crate::{
    clock,
    failure::Failure,
    printer::{Output, Printer},
};

#[derive(Subcommand)]
pub enum Command {
    /// Drive the store alone: create, own or claim, settle
    Store(StoreArgs),
    /// Drive the whole engine: create, execute, settle
    Engine(engine::EngineArgs),
    /// Drive workers in other processes over HTTP
    Remote(remote::RemoteArgs),
    /// Create runs in bulk through the API
    Bulk(bulk::BulkArgs),
    /// Drive HTTP calls, from enqueue to history
    Callbacks(callbacks::CallbacksArgs),
    #[command(hide = true)]
    RemoteWorker(remote::WorkerArgs),
    /// Attack a node with everything that one tenant may send, all at once
    Abuse(abuse::AbuseArgs),
    /// Load schedules in bulk, and find the due ones among them
    Schedules(schedules::SchedulesArgs),
}

/// Where something is measured, and how the answer is written.
#[derive(Args)]
struct PlaceArgs {
    /// sqlite:PATH or postgres://… [default: a new SQLite file on disk, deleted
    /// afterwards]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// How runs are made, and how many there were before.
#[derive(Args)]
struct BatchArgs {
    /// Runs per batch
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: u64,
    /// Load this many finished runs into history before measuring; published
    /// figures use 10,000,000
    #[arg(long, value_name = "N", default_value_t = 0)]
    history: u64,
}

/// What is measured, and under which load.
#[derive(Args)]
struct LoadArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// How many runs to process
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    #[command(flatten)]
    batches: BatchArgs,
    /// Use only one tenant on one queue, and no other features
    #[arg(long)]
    plain: bool,
    /// Lease runs in writing, as for remote workers
    #[arg(long)]
    claimed: bool,
}

/// Payloads that figures are given for.
const PAYLOAD_BYTES: u64 = 200;

#[derive(Args)]
pub struct StoreArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Pipelines that work in parallel [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    parallel: Option<u64>,
    /// Bytes of each run's payload; published figures use 200
    #[arg(long, value_name = "BYTES", default_value_t = PAYLOAD_BYTES,
          value_parser = clap::value_parser!(u64).range(11..=1_000_000))]
    payload: u64,
}

/// What a measurement of the store found.
#[derive(Serialize)]
struct Report {
    store: &'static str,
    lanes: &'static str,
    load: &'static str,
    runs: u64,
    batch: u64,
    payload: u64,
    history: u64,
    parallel: u64,
    runs_per_s: u64,
    raw_runs_per_s: u64,
    /// Of the raw loop with the same writes.
    raw_share: f64,
    /// Without tenants, queues, keys and failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    plain_runs_per_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plain_share: Option<f64>,
    /// Write-ahead log on PostgreSQL; all that is written to files on SQLite.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_run: Option<u64>,
}

pub fn run(command: Command, printer: &mut Printer) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Store(args) => store(args, printer).await,
            Command::Engine(args) => engine::run(args, printer).await,
            Command::Remote(args) => remote::run(args, printer).await,
            Command::Bulk(args) => bulk::run(args, printer).await,
            Command::Callbacks(args) => callbacks::run(args, printer).await,
            Command::RemoteWorker(args) => remote::work(args).await,
            Command::Abuse(args) => abuse::run(args, printer).await,
            Command::Schedules(args) => schedules::run(args, printer).await,
        }
    })
}

async fn store(args: StoreArgs, printer: &mut Printer) -> Result<(), Failure> {
    let target = Target::parse(args.load.place.store.as_deref(), printer)?;
    let report = measure(&target, &args).await?;
    target.clean()?;
    Ok(printer.answer(args.load.place.output, &report, |printer| print(&report, printer))?)
}

/// Times of one load, summed over its rounds.
#[derive(Default)]
struct Times {
    store: &'static str,
    raw: Duration,
    plain: Duration,
    mixed: Duration,
    /// Written under the mixed load.
    bytes: Option<u64>,
}

/// The speed of a machine that is shared changes within seconds: what is compared
/// takes turns, in rounds of this size.
const ROUND: u64 = 100_000;

/// The sizes of the rounds in which so many runs are put through; none is a small rest.
fn rounds(runs: u64) -> impl Iterator<Item = u64> {
    let mut left = runs;
    std::iter::from_fn(move || {
        let size = if left < 2 * ROUND { left } else { ROUND };
        left -= size;
        (size > 0).then_some(size)
    })
}

async fn measure(target: &Target, args: &StoreArgs) -> Result<Report, Failure> {
    let parallel = args.parallel.unwrap_or(target.default_parallel());
    let history = fill(target, args.load.batches.history).await?;
    let (runs, plain) = (args.load.runs, args.load.plain);
    let mut times = Times::default();
    for size in rounds(runs) {
        round(target, args, size, parallel, &mut times).await?;
    }
    let best = if plain { times.plain } else { times.mixed };
    let rate = |took| flow::rate(runs, took);
    Ok(Report {
        store: times.store,
        lanes: if args.load.claimed { "claimed" } else { "owned" },
        load: if plain { "plain" } else { "mixed" },
        runs,
        batch: args.load.batches.batch,
        payload: args.payload,
        history,
        parallel,
        runs_per_s: rate(best),
        raw_runs_per_s: rate(times.raw),
        raw_share: share(times.raw, best),
        plain_runs_per_s: (!plain).then(|| rate(times.plain)),
        plain_share: (!plain).then(|| share(times.plain, times.mixed)),
        bytes_per_run: times.bytes.map(|bytes| bytes / runs),
    })
}

async fn round(target: &Target, args: &StoreArgs, runs: u64, parallel: u64, times: &mut Times) -> Result<(), Failure> {
    let LoadArgs { claimed, plain, batches: BatchArgs { batch, .. }, .. } = args.load;
    let mode = if claimed { LaneMode::Claimed } else { LaneMode::Owned };
    let payload = args.payload as usize;
    times.raw += target.raw(RawLoad { runs, batch, claimed, mixed: !plain, payload }, parallel).await?;
    let opened = target.open().await?;
    let store = opened.as_ref();
    times.store = store.kind();
    let drive = |mixed| drive_all(store, Drive { mixed, mode, runs, batch, parallel, payload });
    times.plain += drive(false).await?;
    if plain {
        return Ok(());
    }
    let before = target.bytes_written(store).await?;
    times.mixed += drive(true).await?;
    let after = target.bytes_written(store).await?;
    let written = after.zip(before).map(|(after, before)| after - before);
    times.bytes = written.map(|written| times.bytes.unwrap_or(0) + written);
    Ok(())
}

/// How fast `other` was, as a share of `best`.
fn share(best: Duration, other: Duration) -> f64 {
    (best.as_secs_f64() / other.as_secs_f64() * 1_000.0).round() / 1_000.0
}

/// Brings the history up to `wanted` runs by putting runs through the store.
async fn fill(target: &Target, wanted: u64) -> Result<u64, Failure> {
    let opened = target.open().await?;
    let there = target.history(opened.as_ref()).await?;
    if there < wanted {
        let bar = bar(wanted - there, "runs into history");
        let (runs, mode, payload) = (wanted - there, LaneMode::Owned, PAYLOAD_BYTES as usize);
        let drive = Drive { mixed: true, mode, runs, batch: 2_000, parallel: 2, payload };
        drive_with(opened.as_ref(), drive, |n| bar.inc(n)).await?;
        bar.finish_and_clear();
    }
    Ok(there.max(wanted))
}

#[derive(Clone, Copy)]
struct Drive {
    mixed: bool,
    mode: LaneMode,
    runs: u64,
    batch: u64,
    parallel: u64,
    payload: usize,
}

async fn drive_all(store: &dyn Store, drive: Drive) -> Result<Duration, Failure> {
    drive_with(store, drive, |_| {}).await
}

async fn drive_with(store: &dyn Store, drive: Drive, progress: impl Fn(u64)) -> Result<Duration, Failure> {
    let seat = Seat::take(store).await.context("joining the store")?;
    let load = Load::prepare(store, &drive, clock::now()).await.context("preparing the load")?;
    let left = AtomicU64::new(drive.runs);
    let each = drive.runs.div_ceil(drive.parallel);
    let started = Instant::now();
    let pipelines = (0..drive.parallel).map(|n| {
        let runs = n * each..((n + 1) * each).min(drive.runs);
        let place = (n as usize, drive.parallel as usize);
        let task = Task { mode: drive.mode, batch: drive.batch as usize, runs, place };
        Pipeline::new(store, &seat, &load, &left, &task).run(&progress)
    });
    tokio::select! {
        ended = futures_util::future::try_join_all(pipelines) => ended.map(drop),
        failed = drive::tend(store) => failed.map(|never| match never {}),
    }
    .context("driving the store")?;
    Ok(started.elapsed())
}

/// A progress bar; on a terminal only.
fn bar(length: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(length).with_message(what);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} {msg} ({per_sec}, {eta} left)") {
        bar.set_style(style);
    }
    bar
}

fn print(report: &Report, printer: &mut Printer) -> io::Result<()> {
    printer.line(&format!(
        "{} on {}, {} lanes, {} runs in batches of {}, payloads of {} bytes, {} finished runs before, {} in parallel",
        report.load,
        report.store,
        report.lanes,
        report.runs,
        report.batch,
        report.payload,
        report.history,
        report.parallel
    ))?;
    printer.line(&format!("  {:>9} runs/s", report.runs_per_s))?;
    printer.line(&format!(
        "  {:>9} runs/s by a raw loop with the same writes: share {:.2}",
        report.raw_runs_per_s, report.raw_share
    ))?;
    if let (Some(rate), Some(share)) = (report.plain_runs_per_s, report.plain_share) {
        printer.line(&format!("  {rate:>9} runs/s with one tenant and nothing else: share {share:.2}"))?;
    }
    if let Some(bytes) = report.bytes_per_run {
        printer.line(&format!("  {bytes:>9} bytes written per run"))?;
    }
    Ok(())
}
