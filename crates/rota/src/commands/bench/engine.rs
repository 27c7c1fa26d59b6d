//! `rota bench engine`: the whole engine in one process, from the making of a
//! run to its place in history, with handlers that do nothing.
//!
//! Three figures: how many runs a second go through, beside a raw loop with the same
//! writes, how long a run waits for its start when there is little to do, and how late
//! schedules fire. What happens to runs is logged meanwhile as a node logs it, into a
//! file, and what went through is looked for in history.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use clap::Args;
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{JobId, TenantId},
    job::JobDocument,
    run::{Status, Verdict},
    store::{Expect, RunQuery, Store, TenantPut, Tier},
};
use rota_engine::{Engine, JobRef, Options, RunAsk, executors::HandlerError, stats::Histogram};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    LoadArgs, PAYLOAD_BYTES, RawLoad, fill,
    flow::{rate, read, stop, throughput},
    load::scatter,
    rounds, scratch, share,
    target::Target,
};
use crate::{
    clock,
    config::{LogFormat, LogLevel},
    failure::Failure,
    logs,
    printer::Printer,
};

/// A tenant's jobs; the last of them has a concurrency key.
const JOBS: usize = 10;
/// How long light load and schedules are watched.
const WATCHED_S: u64 = 5;
/// Runs a second of the light load.
const LIGHT: u64 = 100;

#[derive(Args)]
pub struct EngineArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Number of schedules that fire every second, to measure their lateness
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    schedules: u64,
}

#[derive(Serialize)]
struct Report {
    store: &'static str,
    lanes: &'static str,
    load: &'static str,
    runs: u64,
    history: u64,
    runs_per_s: u64,
    raw_runs_per_s: u64,
    /// Of the raw loop with the same writes.
    raw_share: f64,
    /// From enqueue to start at 100 runs a second.
    start_p50_ms: f64,
    start_p99_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fires_per_s: Option<u64>,
    /// From an instant to its commit, the instants spread over the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    lateness_p99_ms: Option<f64>,
    /// The same where all of a second are due at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    together_p99_ms: Option<f64>,
}

pub async fn run(args: EngineArgs, printer: &mut Printer) -> Result<(), Failure> {
    let target = Target::parse(args.load.place.store.as_deref(), printer)?;
    let history = fill(&target, args.load.batches.history).await?;
    let log = scratch::folder().join(format!("rota-bench-{}.log", std::process::id()));
    let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    logs::start_to(Mutex::new(file), false, LogFormat::Pretty, LogLevel::default())?;
    let report = measure(&target, &args, history).await?;
    std::fs::remove_file(&log).with_context(|| format!("cannot delete {}", log.display()))?;
    target.clean()?;
    Ok(printer.answer(args.load.place.output, &report, |printer| print(&report, printer))?)
}

fn print(report: &Report, printer: &mut Printer) -> io::Result<()> {
    printer.line(&format!(
        "{} on {}, {} lanes, {} runs, {} finished runs before",
        report.load, report.store, report.lanes, report.runs, report.history
    ))?;
    printer.line(&format!("  {:>9} runs/s, from enqueue to history, where all were found", report.runs_per_s))?;
    printer.line(&format!(
        "  {:>9} runs/s by a raw loop with the same writes: share {:.2}",
        report.raw_runs_per_s, report.raw_share
    ))?;
    printer.line(&format!(
        "  {:>9} ms from enqueue to start at {LIGHT} a second, p50; {} ms p99",
        report.start_p50_ms, report.start_p99_ms
    ))?;
    if let (Some(fires), Some(late), Some(together)) =
        (report.fires_per_s, report.lateness_p99_ms, report.together_p99_ms)
    {
        printer.line(&format!(
            "  {late:>9} ms late at {fires} fires a second, p99; {together} ms if all are due at once"
        ))?;
    }
    Ok(())
}

async fn measure(target: &Target, args: &EngineArgs, history: u64) -> Result<Report, Failure> {
    let store = target.open().await?;
    let kind = store.kind();
    let options = Options {
        sole: true,
        handlers_everywhere: !args.load.claimed,
        look_every: Span::millis(if args.load.claimed { 100 } else { 1_000 }),
        ..Options::default()
    };
    let engine = start(&store, options.clone()).await?;
    let load = Load::prepare(&engine, !args.load.plain).await?;
    // Light load first: what a heavy one leaves to upkeep is not its own. Each engine
    // counts from nothing.
    light(&engine, &load).await?;
    emptied(&engine).await;
    let start_delay = &engine.stats().start_delay;
    let (start_p50_ms, start_p99_ms) = (millis(start_delay, 0.5), millis(start_delay, 0.99));
    stop(&engine).await?;
    let (mut fires_per_s, mut late) = (None, [None; 2]);
    if args.schedules > 0 {
        for (spread, late) in [true, false].into_iter().zip(&mut late) {
            let engine = start(&store, options.clone()).await?;
            fires_per_s = Some(beats(&engine, &load, args.schedules, spread).await?);
            emptied(&engine).await;
            *late = Some(millis(&engine.stats().lateness, 0.99));
            stop(&engine).await?;
        }
    }
    drop((engine, store));
    let mut times = Times::default();
    for runs in rounds(args.load.runs) {
        round(target, args, &options, &load, runs, &mut times).await?;
    }
    let [lateness_p99_ms, together_p99_ms] = late;
    Ok(Report {
        store: kind,
        lanes: if args.load.claimed { "claimed" } else { "owned" },
        load: if args.load.plain { "plain" } else { "mixed" },
        runs: args.load.runs,
        history,
        runs_per_s: rate(args.load.runs, times.engine),
        raw_runs_per_s: rate(args.load.runs, times.raw),
        raw_share: share(times.raw, times.engine),
        start_p50_ms,
        start_p99_ms,
        fires_per_s,
        lateness_p99_ms,
        together_p99_ms,
    })
}

/// Times of the load, summed over its rounds.
#[derive(Default)]
struct Times {
    raw: Duration,
    engine: Duration,
}

async fn round(
    target: &Target,
    args: &EngineArgs,
    options: &Options,
    load: &Load,
    runs: u64,
    times: &mut Times,
) -> Result<(), Failure> {
    let (claimed, batch) = (args.load.claimed, args.load.batches.batch);
    let raw = RawLoad { runs, batch, claimed, mixed: load.mixed, payload: PAYLOAD_BYTES as usize };
    times.raw += target.raw(raw, target.default_parallel()).await?;
    let store = target.open().await?;
    let engine = start(&store, options.clone()).await?;
    let began = clock::now();
    times.engine += throughput(&engine, runs, batch, |number| load.ask(number)).await?;
    stop(&engine).await?;
    found(store.as_ref(), load, runs, began).await
}

/// Waits until everything that this engine made has ended, so that the next one
/// counts only its own.
async fn emptied(engine: &Engine) {
    let stats = engine.stats();
    while stats.ended_in_all() < stats.fired.get() + stats.enqueued.get() {
        clock::sleep(Span::millis(1)).await;
    }
}

/// How many runs there are, by how they ended and how many attempts had failed before.
type Tally = BTreeMap<(&'static str, u16), u64>;

fn ended(status: Status) -> &'static str {
    if let Status::Ended(verdict) = status { verdict.as_str() } else { "not ended" }
}

/// Reads what went through back from history: a figure counts only runs that are there,
/// as they were to end.
async fn found(store: &dyn Store, load: &Load, runs: u64, began: Timestamp) -> Result<(), Failure> {
    let jobs: HashSet<JobId> = load.jobs.iter().map(|(_, job)| *job).collect();
    let mut query = RunQuery { from: Some(began), limit: 1_000, ..RunQuery::default() };
    let mut tally = Tally::new();
    loop {
        let page = store.list_runs(&query).await.context("reading history")?;
        for record in page.runs.iter().filter(|record| jobs.contains(&record.run.job)) {
            *tally.entry((ended(record.run.state.status()), record.run.attempts_used)).or_default() += 1;
        }
        query.after = page.next;
        if query.after.is_none() {
            return as_expected(&tally, &load.tally(runs));
        }
    }
}

fn as_expected(found: &Tally, wanted: &Tally) -> Result<(), Failure> {
    if found == wanted {
        return Ok(());
    }
    let told = |tally: &Tally| {
        let each = tally.iter().map(|((ended, failures), runs)| format!("{runs} {ended} after {failures} failures"));
        each.collect::<Vec<_>>().join(", ")
    };
    Err(anyhow!("history does not hold what went through: found {}; expected {}", told(found), told(wanted)).into())
}

fn millis(histogram: &Histogram, share: f64) -> f64 {
    histogram.quantile_micros(share) as f64 / 1_000.0
}

async fn start(store: &Arc<dyn Store>, options: Options) -> Result<Engine, Failure> {
    let handler = |call: rota_engine::executors::Call| {
        let fails = call.attempt == 1 && call.payload["fails"] == true;
        async move { if fails { Err(HandlerError::new("told to fail once")) } else { Ok(Value::Null) } }
    };
    let builder = Engine::builder(Arc::clone(store)).options(options).handler("noop", handler);
    let engine = builder.start().await.context("starting the engine")?;
    tokio::spawn(logs::follow(engine.clone()));
    Ok(engine)
}

/// Tenants and jobs to choose from.
struct Load {
    jobs: Vec<(TenantId, JobId)>,
    mixed: bool,
    text: String,
}

impl Load {
    async fn prepare(engine: &Engine, mixed: bool) -> Result<Self, Failure> {
        let tenants = if mixed { 100 } else { 1 };
        let puts: Vec<TenantPut> = (0..tenants)
            .map(|n| TenantPut {
                name: format!("bench-engine-{n}"),
                tier: [Tier::Enterprise, Tier::Unlimited][n % 2],
                // Tiers are there for their weights: nobody is to be held back.
                quotas: Some(json!({ "runs_per_minute": null, "active_schedules": null }).to_string()),
            })
            .collect();
        let tenants = engine.store().put_tenants(&puts, clock::now()).await.context("saving tenants")?;
        let mut jobs = Vec::new();
        for (n, tenant) in tenants.into_iter().enumerate() {
            for job in 0..JOBS {
                let document =
                    document(&format!("bench-{job}"), &format!("bench-{}", (n + job) % 3), mixed && job + 1 == JOBS)?;
                let saved = engine.save_job(tenant, &document, None, Expect::Anything).await.context("saving a job")?;
                jobs.push((tenant, saved.job));
            }
        }
        Ok(Self { jobs, mixed, text: "x".repeat(150) })
    }

    fn ask(&self, number: u64) -> RunAsk {
        let dice = scatter(number);
        let (tenant, job) = self.jobs[(dice % self.jobs.len() as u64) as usize];
        let payload = json!({ "key": (dice >> 32) % 10, "fails": self.fails(number), "text": self.text });
        RunAsk::of(tenant, JobRef::Id(job)).with_payload(payload)
    }

    /// Whether the first attempt of this run fails.
    fn fails(&self, number: u64) -> bool {
        self.mixed && (scatter(number) >> 20).is_multiple_of(100)
    }

    /// How so many runs are to end.
    fn tally(&self, runs: u64) -> Tally {
        let failed = (0..runs).filter(|number| self.fails(*number)).count() as u64;
        let succeeded = Verdict::Succeeded.as_str();
        let ended = [((succeeded, 0), runs - failed), ((succeeded, 1), failed)];
        ended.into_iter().filter(|(_, runs)| *runs > 0).collect()
    }
}

fn document(name: &str, queue: &str, keyed: bool) -> Result<JobDocument, Failure> {
    let mut job = json!({
        "name": name, "queue": queue,
        "retry": { "max_attempts": 4, "backoff": "fixed", "initial": "1ms", "jitter": 0.0 },
        "steps": [{ "id": "s", "handler": { "name": "noop" } }],
    });
    if keyed {
        job["concurrency"] = json!({ "limit": 1, "key": "{{ payload.key }}" });
    }
    read(&job)
}

/// A run every few milliseconds, each by itself.
async fn light(engine: &Engine, load: &Load) -> Result<(), Failure> {
    let plain = Load { jobs: load.jobs.clone(), mixed: false, text: load.text.clone() };
    for number in 0..LIGHT * WATCHED_S {
        engine.enqueue(vec![plain.ask(number)]).await.context("making a run")?;
        clock::sleep(Span::millis(1_000 / LIGHT)).await;
    }
    Ok(())
}

/// Schedules that fire every second, for a while; answers how many fired in one.
/// They are taken away again, so that a later measurement has its peace.
async fn beats(engine: &Engine, load: &Load, schedules: u64, spread: bool) -> Result<u64, Failure> {
    save_beats(engine, load, schedules, |n| if spread { n * 1_000 / schedules } else { 0 }).await?;
    let (before, started) = (engine.stats().fired.get(), Instant::now());
    clock::sleep(Span::secs(WATCHED_S)).await;
    let fired = (engine.stats().fired.get() - before) as f64 / started.elapsed().as_secs_f64();
    forget_beats(engine, load, schedules).await?;
    Ok(fired.round() as u64)
}

/// As many as a job may have.
const BEATS_PER_JOB: u64 = 100;

/// `at` says at which millisecond of every second a schedule fires.
async fn save_beats(engine: &Engine, load: &Load, schedules: u64, at: impl Fn(u64) -> u64) -> Result<(), Failure> {
    for first in (0..schedules).step_by(BEATS_PER_JOB as usize) {
        let numbers = first..schedules.min(first + BEATS_PER_JOB);
        let beat = |n| {
            let anchor = format!("1970-01-01T00:00:00.{:03}Z", at(n));
            json!({ "name": format!("s{n}"), "every": "1s", "anchor": anchor, "overlap": "allow" })
        };
        save_beat(engine, load, first, numbers.map(beat).collect()).await?;
    }
    Ok(())
}

async fn forget_beats(engine: &Engine, load: &Load, schedules: u64) -> Result<(), Failure> {
    for first in (0..schedules).step_by(BEATS_PER_JOB as usize) {
        save_beat(engine, load, first, Vec::new()).await?;
    }
    Ok(())
}

async fn save_beat(engine: &Engine, load: &Load, first: u64, schedules: Vec<Value>) -> Result<(), Failure> {
    let (tenant, _) = load.jobs[0];
    let document = read(&json!({
        "name": format!("bench-beat-{first}"), "schedules": schedules,
        "steps": [{ "id": "s", "handler": { "name": "noop" } }],
    }))?;
    engine.save_job(tenant, &document, None, Expect::Anything).await.context("saving schedules")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rota_store::sqlite::SqliteStore;

    use super::*;

    /// A figure that counts runs which never came to an end would be a lie.
    #[tokio::test]
    async fn what_history_does_not_hold_is_not_measured() {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::memory().unwrap());
        let options = Options { sole: true, handlers_everywhere: true, ..Options::default() };
        let engine = start(&store, options).await.unwrap();
        let load = Load::prepare(&engine, true).await.unwrap();
        let began = clock::now();
        throughput(&engine, 500, 100, |number| load.ask(number)).await.unwrap();
        stop(&engine).await.unwrap();
        found(store.as_ref(), &load, 500, began).await.unwrap();
        let Err(error) = found(store.as_ref(), &load, 501, began).await else { panic!("one run more was found") };
        assert!(format!("{error:?}").contains("found 494 succeeded"), "{error:?}");
    }
}
