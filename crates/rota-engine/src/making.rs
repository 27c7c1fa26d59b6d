//! Making runs: from what somebody asks for to what the store is given.
//!
//! Enqueueing, the inbox and firing all come through here, so that priority,
//! deadline, slot and unique key of a run do not depend on who made it.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use jiff::Timestamp;
use rota_core::{
    ids::{JobId, LaneId, Partition, RunId, TenantId},
    order::Priority,
    problem::Problem,
    quota::{Quotas, Refusal},
    run::{AFTER_MAX, Labels, NewRun, Run, RunState, Source, Status, Trigger, UniqueAsk, out_of_bounds},
    slot::{SlotAsk, UniqueKey, WhenFull},
    store::{Enqueued, JobRecord, StoreError, Write},
};
use serde_json::Value;

use crate::{
    catalog::JobVersion,
    definitions::told,
    events::Event,
    node::Node,
    render::{Scope, reference},
};

/// So many runs are read at once, with their payloads, to know whose they are.
const READ_AT_ONCE: usize = 16;
/// So many different runs may be waited for by what is asked for together: each is looked
/// for, in history too.
pub const WAITED_FOR_MAX: usize = 1_000;

/// A job, however it is named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum JobRef {
    Id(JobId),
    Name(String),
}

/// Somebody wants a run.
#[derive(Clone, Debug)]
pub struct RunAsk {
    pub tenant: TenantId,
    pub job: JobRef,
    /// None takes the job's default.
    pub payload: Option<Value>,
    pub labels: Labels,
    /// None is now.
    pub run_at: Option<Timestamp>,
    pub trigger: Trigger,
    /// None is the job's own.
    pub priority: Option<Priority>,
    /// Runs that must end before it.
    pub after: Vec<RunId>,
}

impl RunAsk {
    /// A run of a job, now, with its default payload.
    pub fn of(tenant: TenantId, job: JobRef) -> Self {
        Self {
            tenant,
            job,
            payload: None,
            labels: Labels::new(),
            run_at: None,
            trigger: Trigger::plain(Source::Api),
            priority: None,
            after: Vec::new(),
        }
    }

    /// What of it is more than may be said of a run.
    pub fn problems(&self) -> Vec<Problem> {
        out_of_bounds(&self.labels, self.trigger.metadata.as_ref(), self.after.len())
    }

    /// The runs it is to wait for that its tenant does not have (a mistake that would
    /// otherwise start it at once), and those that were not looked for.
    fn unknown_runs(&self, found: &HashMap<RunId, Option<TenantId>>) -> Vec<Problem> {
        let problem = |(n, run): (usize, &RunId)| match found.get(run) {
            Some(Some(tenant)) if *tenant == self.tenant => None,
            Some(_) => Some(Problem::new(format!("after[{n}]"), "unknown_run", format!("there is no run {run}"))),
            None => Some(Problem::new(
                format!("after[{n}]"),
                "out_of_bounds",
                format!(
                    "one request may name at most {WAITED_FOR_MAX} runs to wait for; send the others in a further one"
                ),
            )),
        };
        self.after.iter().take(AFTER_MAX).enumerate().filter_map(problem).collect()
    }

    #[must_use]
    pub fn with_payload(self, payload: Value) -> Self {
        Self { payload: Some(payload), ..self }
    }

    #[must_use]
    pub fn at(self, run_at: Timestamp) -> Self {
        Self { run_at: Some(run_at), ..self }
    }
}

/// What became of an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    Run {
        id: RunId,
        status: Status,
    },
    /// Another run under the same unique key stands in its way.
    Duplicate {
        of: RunId,
    },
    /// Its concurrency key has no room.
    Full,
    /// There is no such job.
    NoJob,
    /// The job says `triggers.manual: false`.
    NotManual,
    /// What the caller says about the run is more than may be said.
    OutOfBounds(Vec<Problem>),
    /// The payload does not satisfy the job's schema, or a key of the job cannot
    /// be made from it.
    BadKey(String),
    /// Its tenant's quotas do not allow it, or not now.
    OverQuota(Refusal),
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run { id, .. } => write!(f, "the run {id}"),
            Self::Duplicate { of } => write!(f, "the run {of} has the same unique key"),
            Self::Full => {
                f.write_str("all slots of the job's concurrency key are taken, and it does not queue another run")
            }
            Self::NoJob => f.write_str("there is no such job"),
            Self::NotManual => f.write_str("the job has `triggers.manual: false`, so it cannot be triggered by hand"),
            Self::OutOfBounds(problems) => f.write_str(&told(problems)),
            Self::BadKey(why) => f.write_str(why),
            Self::OverQuota(refusal) => refusal.fmt(f),
        }
    }
}

/// Why a run cannot be made as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("{0}")]
    Payload(String),
    #[error("{0}")]
    Quota(Refusal),
}

impl From<Unfit> for Made {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Payload(why) => Self::BadKey(why),
            Unfit::Quota(refusal) => Self::OverQuota(refusal),
        }
    }
}

/// What a run is made from, whoever makes it.
pub struct Blueprint<'a> {
    pub tenant: TenantId,
    pub job: &'a JobVersion,
    pub lane: LaneId,
    pub part: Partition,
    /// None where its tenant has none.
    pub quotas: Option<&'a Quotas>,
    pub payload: Option<Value>,
    pub labels: Labels,
    pub ready_at: Timestamp,
    pub trigger: Trigger,
    pub priority: Option<Priority>,
}

impl Blueprint<'_> {
    /// The keys of the run to be made, or why its payload cannot do.
    pub fn keys(&self, node: &Node, now: Timestamp) -> Result<Keys, Unfit> {
        if let Some(refusal) = self.quotas.and_then(|quotas| quotas.run(self.payload.as_ref(), None)) {
            return Err(Unfit::Quota(refusal));
        }
        self.rendered_keys(node, now).map_err(Unfit::Payload)
    }

    fn rendered_keys(&self, node: &Node, now: Timestamp) -> Result<Keys, String> {
        if let Some(why) = self.job.refuses(self.payload.as_ref().unwrap_or(&self.job.payload)) {
            return Err(why);
        }
        let scope = Scope {
            payload: self.payload.as_ref().unwrap_or(&self.job.payload),
            labels: &self.labels,
            vars: &self.job.document.vars,
            run: &Value::Null,
        };
        let slot = slot_ask(node, self.job, self.tenant, &scope)?;
        Ok(Keys { slot, unique: unique_ask(node, self.job, self.tenant, &scope, now)? })
    }

    /// The run to be made.
    pub fn run(self, node: &Node, keys: Keys, now: Timestamp) -> NewRun {
        let job = self.job;
        let payload = self.payload.filter(|payload| *payload != job.payload);
        // A priority that was written before the tenant's tier was changed.
        let best = self.quotas.map_or(Priority::HIGHEST, Quotas::best);
        let priority = self.priority.unwrap_or_else(|| job.document.priority_within(best)).max(best);
        let Keys { slot, unique } = keys;
        NewRun {
            id: RunId::new(node.random.as_ref(), now),
            tenant: self.tenant,
            job: job.job,
            version: job.version,
            lane: self.lane,
            part: self.part,
            priority,
            ready_at: self.ready_at,
            // What is caught up waits from now on.
            expires_at: job.terms.expires_at(self.ready_at.max(now)),
            deadline_at: job.terms.deadline_at(self.ready_at.max(now)),
            trigger: self.trigger,
            labels: self.labels,
            payload: payload.map(|payload| payload.to_string().into()),
            slot,
            unique,
            once: None,
            parent: None,
            after: Vec::new(),
            follows: false,
            rearms: false,
            // What was written before the tenant's tier was changed.
            redrive: job.terms.redrive.filter(|_| self.quotas.is_none_or(|quotas| quotas.dead_letters)),
        }
    }
}

/// What a run is held to besides its own state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keys {
    pub slot: Option<SlotAsk>,
    pub unique: Option<UniqueAsk>,
}

/// In the trigger's metadata of a run that must not be executed: why.
const REFUSED: &str = "refused";

/// A run that is made so that its failure is on record: what it should work on,
/// or a limit it should keep, cannot be told, or is too large to be kept.
pub fn refused_run(run: NewRun, why: &Unfit) -> NewRun {
    let payload = run.payload.clone().filter(|_| !matches!(why, Unfit::Quota(_)));
    let mut metadata = run.trigger.metadata.clone().unwrap_or_else(|| serde_json::json!({}));
    if let Some(fields) = metadata.as_object_mut() {
        fields.insert(REFUSED.to_owned(), why.to_string().into());
    }
    NewRun { payload, trigger: Trigger { metadata: Some(metadata), ..run.trigger.clone() }, ..run }
}

/// Why a run must not be executed, if it must not. Only schedules and other jobs
/// are believed: the metadata of others is their callers' own.
pub fn refusal(trigger: &Trigger) -> Option<&str> {
    let ours = matches!(trigger.source, Source::Schedule | Source::Job);
    let metadata = trigger.metadata.as_ref().filter(|_| ours)?;
    metadata.get(REFUSED)?.as_str()
}

fn slot_ask(node: &Node, job: &JobVersion, tenant: TenantId, scope: &Scope<'_>) -> Result<Option<SlotAsk>, String> {
    let Some(terms) = &job.terms.slot else { return Ok(None) };
    let rendered = match &terms.key {
        Some(template) => node.renderer.text(template, &scope.values()).map_err(|error| error.to_string())?,
        None => String::new(),
    };
    Ok(Some(terms.ask(tenant, job.job, &rendered)))
}

fn unique_ask(
    node: &Node,
    job: &JobVersion,
    tenant: TenantId,
    scope: &Scope<'_>,
    now: Timestamp,
) -> Result<Option<UniqueAsk>, String> {
    let Some(unique) = &job.document.unique else { return Ok(None) };
    let values = unique.by.iter().map(|path| reference(&node.renderer, path, scope)).collect::<Result<Vec<_>, _>>();
    let values = values.map_err(|error| error.to_string())?;
    let key = UniqueKey::new(tenant, job.job, &Value::Array(values).to_string());
    Ok(Some(UniqueAsk { key, until: unique.within.after(now) }))
}

/// The key under which a run counts against its job's rate.
pub fn rate_key(node: &Node, job: &JobVersion, tenant: TenantId, scope: &Scope<'_>) -> Result<String, String> {
    let template = job.document.rate_limit.as_ref().and_then(|limit| limit.key.as_deref());
    let rendered = template.map(|template| node.renderer.text(template, &scope.values())).transpose();
    let rendered = rendered.map_err(|error| error.to_string())?.unwrap_or_default();
    Ok(format!("{tenant}/{}/{rendered}", job.job))
}

/// Each ask as a run to be made, or why it cannot be. Jobs are read anew, so
/// that an edit counts from its acknowledgement on.
pub async fn plan(node: &Node, asks: Vec<RunAsk>, now: Timestamp) -> Result<Vec<Result<NewRun, Made>>, StoreError> {
    let jobs = find_jobs(node, &asks).await?;
    let versions: Vec<Arc<JobVersion>> = jobs.values().map(|(_, version)| Arc::clone(version)).collect();
    let keys: Vec<_> = versions.iter().map(|version| &version.terms.lane).collect();
    let lanes = node.catalog.lanes(&keys, |key| node.lane_mode(key), |key| node.is_able(key)).await?;
    let lanes: HashMap<JobId, LaneId> =
        versions.iter().zip(lanes).filter_map(|(version, lane)| Some((version.job, lane?))).collect();
    let part = node.partition_for_new();
    let quotas = node.catalog.quotas_of(asks.iter().map(|ask| ask.tenant));
    let waited_for = find_waited_for(node, &asks).await?;
    let planned = asks.into_iter().map(|ask| {
        let mut problems = ask.problems();
        problems.extend(ask.unknown_runs(&waited_for));
        if !problems.is_empty() {
            return Err(Made::OutOfBounds(problems));
        }
        let (record, job) = jobs.get(&(ask.tenant, ask.job)).ok_or(Made::NoJob)?;
        let lane = *lanes.get(&record.id).ok_or(Made::NoJob)?;
        if !job.document.is_open_to(ask.trigger.source) {
            return Err(Made::NotManual);
        }
        let quotas = quotas.get(&ask.tenant).map(|quotas| &**quotas);
        if let Some(refusal) = quotas.and_then(|quotas| quotas.run(None, ask.priority)) {
            return Err(Made::OverQuota(refusal));
        }
        let blueprint = Blueprint {
            tenant: ask.tenant,
            job,
            lane,
            part,
            quotas,
            payload: ask.payload,
            labels: ask.labels,
            ready_at: ask.run_at.unwrap_or(now),
            trigger: ask.trigger,
            priority: ask.priority,
        };
        let keys = blueprint.keys(node, now)?;
        Ok(NewRun { after: ask.after, ..blueprint.run(node, keys, now) })
    });
    Ok(planned.collect())
}

/// How runs that ended are made again.
#[derive(Clone, Debug, Default)]
pub struct Redrive {
    pub by: Option<String>,
    /// Of the job's newest version, not of the one they were made from.
    pub latest: bool,
    /// Also those that were made again before.
    pub again: bool,
    /// Only to know what would be made.
    pub dry_run: bool,
}

/// A run that ended, to be made again.
pub async fn again(node: &Node, run: &Run, how: &Redrive, now: Timestamp) -> Result<Result<NewRun, Made>, StoreError> {
    let record = node.store.jobs(&[run.job]).await?.pop().flatten().filter(|record| !record.deleted);
    let Some(record) = record else { return Ok(Err(Made::NoJob)) };
    let version = if how.latest { record.version } else { run.version };
    let Some(job) = node.catalog.version(run.job, version).await? else { return Ok(Err(Made::NoJob)) };
    let lanes = node.catalog.lanes(&[&job.terms.lane], |key| node.lane_mode(key), |key| node.is_able(key)).await?;
    let Some(lane) = lanes.first().copied().flatten() else { return Ok(Err(Made::NoJob)) };
    let quotas = node.catalog.quotas(run.tenant);
    let blueprint = Blueprint {
        tenant: run.tenant,
        job: &job,
        lane,
        part: node.partition_for_new(),
        quotas: quotas.as_deref(),
        payload: run.payload.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        labels: run.labels.clone(),
        ready_at: now,
        trigger: Trigger::redrive(run.id, how.by.clone()),
        priority: Some(run.priority),
    };
    Ok(match blueprint.keys(node, now) {
        // It is the same work: a unique key that it took itself is no obstacle.
        Ok(keys) => {
            let unique = (!how.again).then(|| UniqueAsk::redrive(run.tenant, run.job, run.id, now));
            Ok(blueprint.run(node, Keys { unique, ..keys }, now))
        }
        Err(unfit) => Err(unfit.into()),
    })
}

/// Whose the runs are that others are to wait for, none where there is no such run.
async fn find_waited_for(node: &Node, asks: &[RunAsk]) -> Result<HashMap<RunId, Option<TenantId>>, StoreError> {
    let bounded = asks.iter().flat_map(|ask| ask.after.iter().take(AFTER_MAX));
    let ids: BTreeSet<RunId> = bounded.copied().collect();
    let ids: Vec<RunId> = ids.into_iter().take(WAITED_FOR_MAX).collect();
    let mut found = HashMap::with_capacity(ids.len());
    for some in ids.chunks(READ_AT_ONCE) {
        let records = node.store.runs(some).await?.into_iter();
        let tenants = records.map(|record| record.map(|record| record.run.tenant));
        found.extend(some.iter().copied().zip(tenants));
    }
    Ok(found)
}

type Jobs = HashMap<(TenantId, JobRef), (JobRecord, Arc<JobVersion>)>;

async fn find_jobs(node: &Node, asks: &[RunAsk]) -> Result<Jobs, StoreError> {
    let mut wanted: Vec<(TenantId, JobRef)> = Vec::new();
    for ask in asks {
        // Asks for one job come in a row.
        if wanted.last().is_none_or(|(tenant, job)| (*tenant, job) != (ask.tenant, &ask.job)) {
            wanted.push((ask.tenant, ask.job.clone()));
        }
    }
    wanted.sort_by(|a, b| (a.0, name(&a.1)).cmp(&(b.0, name(&b.1))));
    wanted.dedup();
    let (ids, names): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|(_, job)| matches!(job, JobRef::Id(_)));
    let mut found = Jobs::new();
    let by_id: Vec<JobId> =
        ids.iter().filter_map(|(_, job)| if let JobRef::Id(id) = job { Some(*id) } else { None }).collect();
    let by_name: Vec<(TenantId, String)> = names
        .iter()
        .filter_map(|(tenant, job)| if let JobRef::Name(name) = job { Some((*tenant, name.clone())) } else { None })
        .collect();
    let mut records = if by_id.is_empty() { Vec::new() } else { node.store.jobs(&by_id).await? };
    records.extend(if by_name.is_empty() { Vec::new() } else { node.store.find_jobs(&by_name).await? });
    for (key, record) in ids.into_iter().chain(names).zip(records) {
        let Some(record) = record.filter(|record| !record.deleted && record.tenant == key.0) else { continue };
        if let Some(entry) = node.catalog.keep_job(record.clone()) {
            found.insert(key, (record, Arc::clone(&entry.version)));
        }
    }
    Ok(found)
}

fn name(job: &JobRef) -> (i64, &str) {
    match job {
        JobRef::Id(id) => (id.0, ""),
        JobRef::Name(name) => (i64::MIN, name),
    }
}

/// Takes in what the store answered to runs that this node made: those that
/// were handed over go straight to memory, and those that had to make room for
/// others are told of.
pub fn take_made(node: &Node, write: &Write, runs: Vec<NewRun>, answers: &[Enqueued]) {
    let mut handed = Vec::new();
    let mut elsewhere = Vec::new();
    let mut stops = HashSet::new();
    for (run, answer) in runs.into_iter().zip(answers) {
        let Enqueued::Made { status, handed: ours } = answer else { continue };
        if run.slot.is_some_and(|ask| ask.when_full == WhenFull::CancelRunning) {
            stops.insert(run.tenant);
        }
        let (id, job, tenant) = (run.id, run.job, run.tenant);
        node.events.emit(|| Event::RunMade { run: id, job, tenant, status: *status });
        match status {
            Status::Queued => {
                let run = run.born(RunState::Queued, write.now);
                if *ours { handed.push(run) } else { elsewhere.push(run) }
            }
            Status::Scheduled => {
                node.delayed(run.ready_at);
                if node.territory.held(run.part).is_none() {
                    node.hints.wake(rota_core::ports::Topic::Delayed);
                }
            }
            _ => {}
        }
    }
    node.asked_to_stop(&stops);
    node.ended_by(write);
    node.ready(write, handed.into_iter());
    node.ready_elsewhere(elsewhere.iter());
}
