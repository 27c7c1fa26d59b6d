//! `rota bench schedules`: loads schedules in bulk, finds the due ones of the
//! next minute among them, and has many of them fire in one second.

use std::{sync::Arc, time::Instant};

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    fire::{Progress, Stored, arm},
    ids::{BatchId, JobId, Partition, ScheduleId, TenantId},
    schedule::ScheduleSpec,
    store::{Ends, Expect, JobPut, JobSaved, SchedulePut, Store, TenantPut, Tier, Write},
    timing::Schedule,
};
use rota_engine::{Engine, Options};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{PlaceArgs, bar, flow, target::Target};
use crate::{clock, failure::Failure, printer::Printer};

/// Schedules per batch.
const BATCH: u64 = 100_000;

#[derive(Args)]
pub struct SchedulesArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// How many schedules to load
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    count: u64,
    /// Load this many more that are due in the same second, and measure the time until
    /// all their runs are queued; nothing is executed
    #[arg(long, value_name = "N", default_value_t = 0)]
    burst: u64,
}

#[derive(Serialize)]
struct Report {
    store: &'static str,
    schedules: u64,
    load_s: f64,
    schedules_per_s: u64,
    /// How many of them are due in the next minute.
    due: usize,
    /// The time to find the first thousand of them.
    due_first_ms: f64,
    due_all_ms: f64,
    /// How many came due in one second, and how long after it the last of their
    /// runs was queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst_s: Option<f64>,
    /// Of this process with the engine at rest on all of these schedules.
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_mb: Option<u64>,
}

pub async fn run(args: SchedulesArgs, printer: &mut Printer) -> Result<(), Failure> {
    let target = Target::parse(args.place.store.as_deref(), printer)?;
    let opened = target.open().await?;
    let store = opened.as_ref();
    let now = clock::now();
    let started = Instant::now();
    let place = definition(store, now).await?;
    load(store, args.count, now, |id| spread(place, id, now)).await?;
    let load_s = started.elapsed().as_secs_f64();
    let mut report = find(store, args.count, load_s, now).await?;
    if args.burst > 0 {
        burst(&opened, place, args.burst, &mut report).await?;
    }
    drop(opened);
    target.clean()?;
    Ok(printer.answer(args.place.output, &report, |printer| {
        printer.line(&format!(
            "{} schedules on {}: loaded in {:.1} s ({}/s)",
            report.schedules, report.store, report.load_s, report.schedules_per_s
        ))?;
        printer.line(&format!(
            "  {} due in the next minute: the first thousand found in {:.1} ms, all in {:.1} ms",
            report.due, report.due_first_ms, report.due_all_ms
        ))?;
        if let (Some(burst), Some(took)) = (report.burst, report.burst_s) {
            printer.line(&format!("  {burst} due in one second: all queued after {took:.1} s"))?;
        }
        if let Some(resident) = report.resident_mb {
            printer.line(&format!("  {resident} MB resident with the engine at rest"))?;
        }
        Ok(())
    })?)
}

async fn load(
    store: &dyn Store,
    count: u64,
    now: Timestamp,
    schedule: impl Fn(ScheduleId) -> Result<SchedulePut, Failure>,
) -> Result<(), Failure> {
    let bar = bar(count, "schedules");
    let mut made = 0;
    while made < count {
        let size = BATCH.min(count - made);
        let first = store.reserve_schedules(size as u32).await.context("reserving ids")?;
        let puts = (0..size).map(|n| schedule(ScheduleId(first.0 + n as i64))).collect::<Result<Vec<_>, _>>()?;
        store.put_schedules(&write(now), &puts).await.context("saving schedules")?;
        made += size;
        bar.inc(size);
    }
    bar.finish_and_clear();
    Ok(())
}

fn write(now: Timestamp) -> Write {
    Write {
        batch: BatchId(Uuid::now_v7()),
        now,
        node: None,
        generation: 0,
        request: None,
        ends: Ends::default(),
        dry_run: false,
    }
}

/// Where the schedules belong.
#[derive(Clone, Copy)]
struct Place {
    tenant: TenantId,
    job: JobId,
}

async fn definition(store: &dyn Store, now: Timestamp) -> Result<Place, Failure> {
    let tenant = TenantPut { name: "bench".into(), tier: Tier::Unlimited, quotas: None };
    let tenants = store.put_tenants(&[tenant], now).await.context("saving a tenant")?;
    let name = format!("bench-{}", Uuid::now_v7());
    let put = JobPut {
        tenant: tenants[0],
        document: json!({ "name": name, "steps": [{ "id": "s", "handler": { "name": "noop" } }] }).to_string(),
        name,
        hash: [0; 32],
        queue: "default".into(),
        tags: Vec::new(),
        enabled: true,
        by: None,
        expect: Expect::Nothing,
        after: None,
        schedules: None,
    };
    match store.put_jobs(&write(now), &[put]).await.context("saving a job")?.pop() {
        Some(JobSaved::Saved { id, .. }) => Ok(Place { tenant: tenants[0], job: id }),
        other => Err(anyhow::anyhow!("the job was not saved: {other:?}").into()),
    }
}

/// One schedule a day, spread over all its minutes.
fn spread(place: Place, id: ScheduleId, now: Timestamp) -> Result<SchedulePut, Failure> {
    schedule(place, id, &json!({ "name": format!("s{id}"), "cron": "H H * * *" }), now)
}

fn schedule(place: Place, id: ScheduleId, spec: &Value, now: Timestamp) -> Result<SchedulePut, Failure> {
    let spec = ScheduleSpec::deserialize(spec).context("making a schedule")?;
    let compiled = Schedule::compile(&spec, &id.seed())
        .map_err(|problems| anyhow::anyhow!("the schedule is refused: {problems:?}"))?;
    Ok(SchedulePut {
        id,
        job: place.job,
        tenant: place.tenant,
        spec: serde_json::to_string(&spec).context("writing a schedule")?,
        name: spec.name,
        enabled: true,
        stored: Stored { cursor: arm(&compiled, id, Progress::default(), now), ..Stored::default() },
        skips: Vec::new(),
        guard: None,
    })
}

/// Loads schedules that all fire at one instant, and watches them do so.
async fn burst(store: &Arc<dyn Store>, place: Place, count: u64, report: &mut Report) -> Result<(), Failure> {
    let now = clock::now();
    // Time enough to load them all, and then some.
    let at = Span::secs(15 + count / 20_000).after(now);
    let at = Timestamp::from_second(at.as_second()).context("choosing an instant")?;
    load(store.as_ref(), count, now, |id| {
        schedule(place, id, &json!({ "name": format!("b{id}"), "at": at.to_string() }), now)
    })
    .await?;
    let options = Options { sole: true, executes: false, ..Options::default() };
    let engine = Engine::builder(Arc::clone(store)).options(options).start().await.context("starting the engine")?;
    if clock::now() >= at {
        return Err(anyhow::anyhow!("loading took so long that the second of the burst went by").into());
    }
    let before = engine.stats().fired.get();
    while clock::now() < Span::secs(1).before(at) {
        clock::sleep(Span::millis(100)).await;
    }
    report.resident_mb = resident_mb();
    while engine.stats().fired.get() < before + count {
        clock::sleep(Span::millis(10)).await;
    }
    let took = clock::now().duration_since(at);
    report.burst = Some(count);
    report.burst_s = Some(took.as_secs_f64());
    flow::stop(&engine).await
}

/// What this process keeps in memory.
fn resident_mb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? / 1_024)
}

async fn find(store: &dyn Store, count: u64, load_s: f64, now: Timestamp) -> Result<Report, Failure> {
    let parts: Vec<Partition> = Partition::all().collect();
    let until = Span::secs(60).after(now);
    let started = Instant::now();
    store.due(&parts, until, 1_000).await.context("finding due schedules")?;
    let first = started.elapsed();
    let started = Instant::now();
    let due = store.due(&parts, until, 1_000_000).await.context("finding due schedules")?;
    Ok(Report {
        store: store.kind(),
        schedules: count,
        load_s,
        schedules_per_s: (count as f64 / load_s) as u64,
        due: due.len(),
        due_first_ms: first.as_secs_f64() * 1_000.0,
        due_all_ms: started.elapsed().as_secs_f64() * 1_000.0,
        burst: None,
        burst_s: None,
        resident_mb: None,
    })
}
