//! Why: gathers the facts that [`rota_core::why`] answers from.

use rota_core::{
    calendar,
    fire::{self, Allowance, Input, Live, QUEUE_MAX},
    ids::{Partition, TenantId},
    lane::{Lane, LaneMode},
    quota::run_bucket,
    run::{Run, Status},
    store::{Pause, PauseTarget, RunRecord, ScheduleRecord, StoreError, TokenAsk, Worker},
    why::{self, Level, Reason, RunFacts, ScheduleFacts},
};

use crate::{
    Handle,
    catalog::{JobVersion, ScheduleFound},
    making::rate_key,
    node::Node,
    render::Scope,
};

/// Workers read in one go.
const WORKERS: u32 = 500;

impl Handle {
    /// Why a run stands where it stands; the first reason holds now.
    pub async fn why_run(&self, record: &RunRecord) -> Result<Vec<Reason>, StoreError> {
        let (node, run) = (self.node(), &record.run);
        let standing = node.store.standing(run.id).await?;
        let lane = node.store.all_lanes().await?.into_iter().find(|lane| lane.id == run.lane);
        let queue = lane.as_ref().map_or("", |lane| lane.key.queue.as_str());
        let pauses = wide_pauses(node, run.tenant, queue).await?;
        let error = record.failure.as_ref().map(|failure| failure.message.as_str());
        let facts = RunFacts {
            run,
            trail: &record.trail,
            error,
            standing: &standing,
            pauses: &pauses,
            lane: lane.as_ref().map(|lane| &lane.key),
            offered: offered(node, run, lane.as_ref()).await?,
            rate_until: rate_until(self, record).await?,
            elsewhere: lane.as_ref().is_some_and(|lane| lane.mode == LaneMode::Owned)
                && node.territory.held(run.part).is_none(),
            alone: run.losses >= node.options.alone_from,
        };
        Ok(why::run(&facts, self.now()))
    }

    /// Why a schedule does what it does next. None where it cannot be read.
    pub async fn why_schedule(&self, record: &ScheduleRecord) -> Result<Option<Vec<Reason>>, StoreError> {
        let (node, now) = (self.node(), self.now());
        let found = node.catalog.schedules(&[(record.id, record.revision)]).await?.pop();
        let Some(ScheduleFound::Here(entry)) = found else { return Ok(None) };
        let Some(job) = node.catalog.jobs(&[record.job]).await?.pop().flatten() else { return Ok(None) };
        let mut pauses = wide_pauses(node, record.tenant, &job.record.queue).await?;
        pauses.extend(job.record.pause.clone().map(|pause| (Level::Job, pause)));
        pauses.extend(record.pause.clone().map(|pause| (Level::Schedule, pause)));
        let spans: Vec<fire::Pause> = pauses.iter().flat_map(|(_, pause)| pause.spans()).collect();
        let live = node.store.live_of(&[record.id], QUEUE_MAX as u32).await?.pop().unwrap_or_default();
        let waiting = live.iter().filter(|run| run.status == Status::Blocked).count() as u64;
        let names = &entry.spec.calendars;
        let all = node.catalog.calendars(record.tenant, names, now).await?;
        let no_calendar = names.iter().find(|name| !all.contains_key(*name)).map(String::as_str);
        let calendars = calendar::named(names, &all).unwrap_or_default();
        let cursor = node.store.cursors(&[record.id]).await?.pop().flatten().map(|due| due.cursor);
        let allowance = allowance(node, record.tenant, now).await?;
        let input = cursor.map(|cursor| Input {
            schedule: &entry.schedule,
            id: record.id,
            cursor,
            pauses: &spans,
            live: Live { active: live.len() as u64 - waiting, waiting },
            calendars: &calendars,
            allowance,
        });
        let scheduler = is_held(node, record.part).await?;
        let skipped = node.store.skips(record.id, None, 1).await?.pop();
        let facts = ScheduleFacts {
            schedule: &entry.schedule,
            input,
            fired: cursor.map_or(record.progress.fired, |cursor| cursor.fired),
            enabled: entry.spec.enabled,
            job_enabled: job.record.enabled,
            own_run_lives: entry.spec.after_finish.is_some() && !live.is_empty(),
            pauses: &pauses,
            no_calendar,
            scheduler,
            skipped: skipped.map(|skip| skip.range),
        };
        Ok(Some(why::schedule(&facts, now)))
    }
}

/// The pauses of a tenant and one of its queues.
async fn wide_pauses(node: &Node, tenant: TenantId, queue: &str) -> Result<Vec<(Level, Pause)>, StoreError> {
    let stored = node.store.pauses().await?.pauses;
    let ours = stored.into_iter().filter_map(|(target, pause)| match target {
        PauseTarget::Tenant(of) if of == tenant => Some((Level::Tenant, pause)),
        PauseTarget::Queue(of, name) if of == tenant && name == queue => Some((Level::Queue, pause)),
        _ => None,
    });
    Ok(ours.collect())
}

/// Whether a node holds a partition.
async fn is_held(node: &Node, part: Partition) -> Result<bool, StoreError> {
    let owners = node.store.partitions().await?;
    Ok(owners.iter().any(|lease| lease.part == part && lease.node.is_some()))
}

/// Whether somebody who lives can execute the runs of a lane.
async fn offered(node: &Node, run: &Run, lane: Option<&Lane>) -> Result<bool, StoreError> {
    let Some(lane) = lane else { return Ok(false) };
    // Whoever holds its partition executes a run of an owned lane.
    if node.is_able(&lane.key) || (lane.mode == LaneMode::Owned && is_held(node, run.part).await?) {
        return Ok(true);
    }
    let now = node.clock.now();
    let mut after = None;
    loop {
        let workers = node.store.workers(Some(run.tenant), after, WORKERS).await?;
        let lives = |worker: &Worker| worker.until >= now && !worker.draining && !worker.drain_asked;
        if workers.iter().any(|worker| lives(worker) && worker.info.offers(&lane.key)) {
            return Ok(true);
        }
        match workers.last() {
            Some(last) if workers.len() >= WORKERS as usize => after = Some(last.worker),
            _ => return Ok(false),
        }
    }
}

/// What firing would be told of the tenant's rate of runs.
async fn allowance(node: &Node, tenant: TenantId, now: jiff::Timestamp) -> Result<Option<Allowance>, StoreError> {
    let Some(rate) = node.catalog.quotas(tenant).and_then(|quotas| quotas.run_rate()) else { return Ok(None) };
    // Asking for none tells when the next one will be there, and takes nothing.
    let ask = TokenAsk { key: run_bucket(tenant), rate, want: 0, ahead: false };
    let taken = node.store.take_tokens(&[ask], now).await?;
    let more_at = taken.first().map_or(now, |taken| taken.next_at);
    Ok(Some(Allowance { per_minute: rate.runs, runs: u64::from(more_at <= now), more_at }))
}

/// When the rate of a run's job lets it start, if it does not now.
async fn rate_until(engine: &Handle, record: &RunRecord) -> Result<Option<jiff::Timestamp>, StoreError> {
    let (node, run) = (engine.node(), &record.run);
    if run.state.status() != Status::Queued {
        return Ok(None);
    }
    let Some(job) = node.catalog.version(run.job, run.version).await? else { return Ok(None) };
    let Some(rate) = job.rate else { return Ok(None) };
    let Some(key) = key_of(node, &job, record) else { return Ok(None) };
    // Asking for none tells when the next one will be there, and takes nothing.
    let asked = node.store.take_tokens(&[TokenAsk { key, rate, want: 0, ahead: false }], engine.now()).await?;
    Ok(asked.first().map(|taken| taken.next_at).filter(|at| *at > engine.now()))
}

fn key_of(node: &Node, job: &JobVersion, record: &RunRecord) -> Option<String> {
    let payload = record.run.payload.as_deref().map(serde_json::from_str).transpose().ok()?;
    let scope = Scope {
        payload: payload.as_ref().unwrap_or(&job.payload),
        labels: &record.run.labels,
        vars: &job.document.vars,
        run: &serde_json::Value::Null,
    };
    rate_key(node, job, record.run.tenant, &scope).ok()
}
