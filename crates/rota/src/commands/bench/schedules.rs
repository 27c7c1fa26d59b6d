//! `rota bench schedules`: loads schedules in bulk and finds the due ones of
//! the next minute among them.

use std::time::Instant;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    fire::{Progress, arm},
    ids::{BatchId, JobId, Partition, ScheduleId, TenantId},
    schedule::ScheduleSpec,
    store::{Ends, Expect, JobPut, JobSaved, SchedulePut, Store, TenantPut, Tier, Write},
    timing::Schedule,
};
use serde::Serialize;
use uuid::Uuid;

use super::{bar, target::Target};
use crate::{
    clock,
    failure::Failure,
    printer::{Output, Printer},
};

/// Schedules per batch.
const BATCH: u64 = 100_000;

#[derive(Args)]
pub struct SchedulesArgs {
    /// sqlite:PATH or postgres://…; a fresh SQLite file that is deleted
    /// afterwards if not given
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// How many schedules to load
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    count: u64,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
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
}

pub async fn run(args: SchedulesArgs, printer: &mut Printer) -> Result<(), Failure> {
    let target = Target::parse(args.store.as_deref())?;
    let opened = target.open().await?;
    let store = opened.as_ref();
    let now = clock::now();
    let started = Instant::now();
    load(store, args.count, now).await?;
    let load_s = started.elapsed().as_secs_f64();
    let report = find(store, args.count, load_s, now).await?;
    drop(opened);
    target.clean()?;
    match args.output {
        Output::Json => printer.json(&report)?,
        Output::Yaml => printer.yaml(&report)?,
        Output::Table => {
            printer.line(&format!(
                "{} schedules on {}: loaded in {:.1} s ({}/s)",
                report.schedules, report.store, report.load_s, report.schedules_per_s
            ))?;
            printer.line(&format!(
                "  {} due in the next minute: the first thousand found in {:.1} ms, all in {:.1} ms",
                report.due, report.due_first_ms, report.due_all_ms
            ))?;
        }
    }
    Ok(())
}

async fn load(store: &dyn Store, count: u64, now: Timestamp) -> Result<(), Failure> {
    let (tenant, job) = definition(store, now).await?;
    let bar = bar(count, "schedules");
    let mut made = 0;
    while made < count {
        let size = BATCH.min(count - made);
        let first = store.reserve_schedules(size as u32).await.context("reserving ids")?;
        let puts = (0..size)
            .map(|n| schedule(tenant, job, ScheduleId(first.0 + n as i64), now))
            .collect::<Result<Vec<_>, _>>()?;
        store.put_schedules(&write(now), &puts).await.context("saving schedules")?;
        made += size;
        bar.inc(size);
    }
    bar.finish_and_clear();
    Ok(())
}

fn write(now: Timestamp) -> Write {
    Write { batch: BatchId(Uuid::now_v7()), now, node: None, request: None, ends: Ends::default() }
}

async fn definition(store: &dyn Store, now: Timestamp) -> Result<(TenantId, JobId), Failure> {
    let tenant = TenantPut { name: "bench".into(), tier: Tier::Unlimited, quotas: None };
    let tenants = store.put_tenants(&[tenant], now).await.context("saving a tenant")?;
    let put = JobPut {
        tenant: tenants[0],
        name: format!("bench-{}", Uuid::now_v7()),
        document: "{}".into(),
        hash: [0; 32],
        queue: "default".into(),
        tags: Vec::new(),
        enabled: true,
        by: None,
        expect: Expect::Nothing,
        after: None,
    };
    match store.put_jobs(&write(now), &[put]).await.context("saving a job")?.pop() {
        Some(JobSaved::Saved { id, .. }) => Ok((tenants[0], id)),
        other => Err(anyhow::anyhow!("the job was not saved: {other:?}").into()),
    }
}

/// One schedule a day, spread over all its minutes.
fn schedule(tenant: TenantId, job: JobId, id: ScheduleId, now: Timestamp) -> Result<SchedulePut, Failure> {
    let name = format!("s{id}");
    let spec: ScheduleSpec = serde_json::from_value(serde_json::json!({ "name": name, "cron": "H H * * *" }))
        .context("making a schedule")?;
    let compiled = Schedule::compile(&spec, &id.seed())
        .map_err(|problems| anyhow::anyhow!("the schedule is refused: {problems:?}"))?;
    Ok(SchedulePut {
        id,
        job,
        tenant,
        name,
        spec: serde_json::to_string(&spec).context("writing a schedule")?,
        enabled: true,
        after_finish_ms: None,
        cursor: arm(&compiled, id, Progress::default(), now),
        skips: Vec::new(),
        guard: None,
    })
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
    })
}
