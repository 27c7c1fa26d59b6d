//! Saving definitions: a document becomes a job, and its schedules are armed.
//!
//! The same code for the API, the command line and programs that have Rota
//! inside them. A schedule that did not change keeps its cursor; an edited one
//! is armed anew, and what the old one still owed is recorded as edited; one
//! that is no longer written is deleted. Each is guarded by what was read, so
//! that a fire in between is noticed, and the save is tried again.
//!
//! What the tenant's quotas do not allow is refused before anything is written.

use std::collections::HashMap;

use jiff::Timestamp;
use rota_core::{
    fire::{Cursor, Progress, arm, edit, resume as resumed},
    heat::{HotSecond, hottest, second_of},
    ids::{JobId, ScheduleId, TenantId},
    job::JobDocument,
    ports::Topic,
    problem::Problem,
    quota::Refusal,
    schedule::ScheduleSpec,
    store::{
        Expect, JobPut, JobQuery, JobSaved, Pause, PauseTarget, ScheduleGuard, SchedulePut, ScheduleQuery,
        ScheduleRecord, ScheduleSaved, StoreError, Write,
    },
    timing::Schedule,
};

use crate::{catalog::input_problems, events::Event, node::Node, quota};

/// So often a save is tried against schedules that fire meanwhile.
const TRIES: usize = 10;
/// Schedules read or written in one go.
const PAGE: u32 = 1_000;

/// Why a job was not saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error("the job is not as its saver believed: its version is {version:?}")]
    Conflict { version: Option<i32> },
    #[error("the job cannot be used: {}", told(problems))]
    BadDocument { problems: Vec<Problem> },
    #[error("the tenant's quotas do not allow the job: {}", over(refusals))]
    OverQuota { refusals: Vec<Refusal> },
    #[error("the schedule `{name}` cannot be compiled")]
    BadSchedule { name: String, problems: Vec<Problem> },
    #[error("the schedules of the job changed each time they were saved")]
    Busy,
    #[error("the store did not take it")]
    Store(#[from] StoreError),
}

fn told(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn over(refusals: &[Refusal]) -> String {
    refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A job as saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    pub job: JobId,
    pub version: i32,
    pub changed: bool,
    /// A crowded second that schedules of this save are due in.
    pub hot: Option<HotSecond>,
}

/// Saves a job with all its schedules.
///
/// The job's row is one write and its schedules are others. A crash between them
/// leaves the new version with the old schedules, and nobody was told that it was
/// saved: saving it again, under the same request key too, does the rest.
pub async fn save_job(
    node: &Node,
    tenant: TenantId,
    document: &JobDocument,
    by: Option<String>,
    expect: Expect,
    write: &Write,
) -> Result<Saved, SaveError> {
    let saved = save_jobs(node, tenant, &[document], by, expect, write).await?;
    saved.into_iter().next().unwrap_or(Err(SaveError::Busy))
}

/// Saves jobs with all their schedules. They may start after each other,
/// whatever their order. One that is refused leaves the others alone.
pub async fn save_jobs(
    node: &Node,
    tenant: TenantId,
    documents: &[&JobDocument],
    by: Option<String>,
    expect: Expect,
    write: &Write,
) -> Result<Vec<Result<Saved, SaveError>>, SaveError> {
    let mut refused: Vec<Option<SaveError>> = documents.iter().map(|document| bad_input(document)).collect();
    refuse_over_quota(node, tenant, documents, &mut refused, write.now).await?;
    let fit = documents.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
    let puts: Vec<JobPut> = fit.map(|(document, _)| put_of(tenant, document, by.clone(), expect)).collect();
    let mut answers = if puts.is_empty() { Vec::new() } else { node.store.put_jobs(write, &puts).await? }.into_iter();
    let mut saved = Vec::with_capacity(documents.len());
    for (document, refused) in documents.iter().zip(refused) {
        if let Some(refused) = refused {
            saved.push(Err(refused));
            continue;
        }
        saved.push(match answers.next() {
            Some(JobSaved::Saved { id: job, version, changed, .. }) => {
                schedule(node, tenant, document, Saved { job, version, changed, hot: None }, write.now).await
            }
            Some(JobSaved::Conflict { version }) => Err(SaveError::Conflict { version }),
            Some(JobSaved::Refused(refusal)) => {
                Err(SaveError::BadDocument { problems: vec![refusal.problem(document.after_jobs())] })
            }
            None => Err(SaveError::Busy),
        });
    }
    Ok(saved)
}

fn bad_input(document: &JobDocument) -> Option<SaveError> {
    let problems = input_problems(document);
    (!problems.is_empty()).then_some(SaveError::BadDocument { problems })
}

/// Refuses the documents that the tenant's quotas do not allow.
async fn refuse_over_quota(
    node: &Node,
    tenant: TenantId,
    documents: &[&JobDocument],
    refused: &mut [Option<SaveError>],
    now: Timestamp,
) -> Result<(), StoreError> {
    let Some(quotas) = node.catalog.quotas(tenant) else { return Ok(()) };
    for (document, refused) in documents.iter().zip(refused).filter(|(_, refused)| refused.is_none()) {
        let mut refusals = quotas.document(document);
        if refusals.is_empty() && quotas.active_schedules.is_some() {
            let more = more_schedules(node, tenant, document).await?;
            refusals.extend(quota::schedules(node, tenant, &quotas, more, now).await?);
        }
        if !refusals.is_empty() {
            *refused = Some(SaveError::OverQuota { refusals });
        }
    }
    Ok(())
}

/// How many enabled schedules more the tenant has once the document is saved.
async fn more_schedules(node: &Node, tenant: TenantId, document: &JobDocument) -> Result<u64, StoreError> {
    let wanted = document.schedules.iter().filter(|spec| spec.enabled).count() as u64;
    if wanted == 0 {
        return Ok(0);
    }
    let job = node.store.find_jobs(&[(tenant, document.name.clone())]).await?.pop().flatten();
    let Some(job) = job else { return Ok(wanted) };
    let stored = stored_schedules(node, job.id).await?;
    Ok(wanted.saturating_sub(stored.values().filter(|record| record.enabled).count() as u64))
}

fn put_of(tenant: TenantId, document: &JobDocument, by: Option<String>, expect: Expect) -> JobPut {
    JobPut {
        tenant,
        name: document.name.clone(),
        document: document.canonical_json(),
        hash: document.content_hash().0,
        queue: document.queue_name().to_owned(),
        tags: document.tags.clone(),
        enabled: document.is_enabled(),
        by,
        expect,
        after: document.triggers.as_ref().and_then(|triggers| triggers.after.clone()),
    }
}

/// Saves the schedules of a job that is saved.
async fn schedule(
    node: &Node,
    tenant: TenantId,
    document: &JobDocument,
    saved: Saved,
    now: Timestamp,
) -> Result<Saved, SaveError> {
    node.catalog.forget_job(saved.job);
    for _ in 0..TRIES {
        if let Some(due) = save_schedules(node, tenant, saved.job, &document.schedules, now).await? {
            for topic in [Topic::Schedules, Topic::Ends] {
                node.hints.wake(topic);
            }
            let Saved { job, version, changed, .. } = saved;
            node.events.tell(|| Event::JobSaved { job, tenant, version, changed });
            return Ok(Saved { hot: hot_second(node, due).await, ..saved });
        }
    }
    Err(SaveError::Busy)
}

/// Seconds of one save that are looked at.
const SECONDS_MAX: usize = 16;
/// A second's schedules are counted up to so many times what is hot.
const HOT_TIMES: u64 = 10;

/// The most crowded second that something was just saved for. It is only advice:
/// a store that cannot say is not asked again.
async fn hot_second(node: &Node, due: Vec<Timestamp>) -> Option<HotSecond> {
    let mut seconds: Vec<Timestamp> = due.into_iter().map(second_of).collect();
    seconds.sort_unstable();
    seconds.dedup();
    seconds.truncate(SECONDS_MAX);
    if seconds.is_empty() {
        return None;
    }
    let (hot, most) = (node.options.hot_second, node.options.hot_second.saturating_mul(HOT_TIMES));
    let counted = node.store.count_due(&seconds, most).await.ok()?;
    hottest(seconds.into_iter().zip(counted), hot, most)
}

/// When those that were saved are due next; none when some had changed since they
/// were read.
async fn save_schedules(
    node: &Node,
    tenant: TenantId,
    job: JobId,
    specs: &[ScheduleSpec],
    now: Timestamp,
) -> Result<Option<Vec<Timestamp>>, SaveError> {
    let mut stored = stored_schedules(node, job).await?;
    let (mut changed, mut new) = (Vec::new(), Vec::new());
    for spec in specs {
        match stored.remove(&spec.name) {
            Some(record) if record.spec == text(spec) => {}
            Some(record) => changed.push((record, spec)),
            None => new.push(spec),
        }
    }
    let ids: Vec<ScheduleId> = changed.iter().map(|(record, _)| record.id).collect();
    let cursors = if ids.is_empty() { Vec::new() } else { node.store.cursors(&ids).await? };
    let edits = changed.iter().zip(cursors).map(|((record, spec), cursor)| edited(record, cursor, spec, now));
    let mut puts = edits.collect::<Result<Vec<_>, _>>()?;
    let first = if new.is_empty() { 0 } else { node.store.reserve_schedules(new.len() as u32).await?.0 };
    for (n, spec) in new.into_iter().enumerate() {
        puts.push(fresh(ScheduleId(first + n as i64), tenant, job, spec, now)?);
    }
    let gone: Vec<ScheduleId> = stored.values().map(|record| record.id).collect();
    if !gone.is_empty() {
        node.store.delete_schedules(&node.write(now), &gone).await?;
    }
    for chunk in puts.chunks(PAGE as usize) {
        let answers = node.store.put_schedules(&node.write(now), chunk).await?;
        if answers.contains(&ScheduleSaved::Stale) {
            return Ok(None);
        }
    }
    Ok(Some(puts.iter().filter_map(|put| put.cursor).map(|cursor| cursor.due_at).collect()))
}

fn text(spec: &ScheduleSpec) -> String {
    // A spec is plain data with text keys, which always has a JSON form.
    serde_json::to_string(spec).unwrap_or_default()
}

async fn stored_schedules(node: &Node, job: JobId) -> Result<HashMap<String, ScheduleRecord>, StoreError> {
    let mut query = ScheduleQuery { job: Some(job), limit: PAGE, ..ScheduleQuery::default() };
    let mut found = HashMap::new();
    loop {
        let page = node.store.list_schedules(&query).await?;
        found.extend(page.schedules.into_iter().map(|record| (record.name.clone(), record)));
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(found),
        }
    }
}

fn compile(spec: &ScheduleSpec, id: ScheduleId) -> Result<Schedule, SaveError> {
    Schedule::compile(spec, &id.seed()).map_err(|problems| SaveError::BadSchedule { name: spec.name.clone(), problems })
}

fn fresh(
    id: ScheduleId,
    tenant: TenantId,
    job: JobId,
    spec: &ScheduleSpec,
    now: Timestamp,
) -> Result<SchedulePut, SaveError> {
    let schedule = compile(spec, id)?;
    Ok(SchedulePut {
        id,
        job,
        tenant,
        name: spec.name.clone(),
        spec: text(spec),
        enabled: spec.enabled,
        after_finish_ms: spec.after_finish.map(rota_core::duration::Span::as_millis),
        cursor: arm(&schedule, id, Progress::default(), now),
        skips: Vec::new(),
        guard: None,
    })
}

fn edited(
    record: &ScheduleRecord,
    cursor: Option<Cursor>,
    spec: &ScheduleSpec,
    now: Timestamp,
) -> Result<SchedulePut, SaveError> {
    let old = serde_json::from_str::<ScheduleSpec>(&record.spec).ok();
    let old = old.and_then(|old| Schedule::compile(&old, &record.id.seed()).ok());
    let new = compile(spec, record.id)?;
    let edited = edit(old.as_ref(), &new, record.id, cursor, record.progress, now);
    Ok(SchedulePut {
        cursor: edited.cursor,
        skips: edited.owed.into_iter().collect(),
        guard: Some(ScheduleGuard { revision: record.revision, cursor }),
        ..fresh(record.id, record.tenant, record.job, spec, now)?
    })
}

/// Ends pauses now, and wakes the schedules that sleep because of them. False
/// where nothing was paused.
pub async fn resume(node: &Node, targets: &[PauseTarget], now: Timestamp) -> Result<Vec<bool>, StoreError> {
    let mut done = Vec::with_capacity(targets.len());
    for target in targets {
        let Some(pause) = pause_of(node, target).await? else {
            done.push(false);
            continue;
        };
        // Kept with its end, not taken away: the instants inside it are told
        // from those that were missed.
        let ended = Pause { until: Some(pause.until.map_or(now, |until| until.min(now))), ..pause };
        let target = std::slice::from_ref(target);
        done.extend(node.store.set_pauses(&node.write(now), target, Some(&ended)).await?);
        wake(node, &target[0], now).await?;
    }
    Ok(done)
}

async fn pause_of(node: &Node, target: &PauseTarget) -> Result<Option<Pause>, StoreError> {
    Ok(match target {
        PauseTarget::Tenant(_) | PauseTarget::Queue(..) => {
            let all = node.store.pauses().await?.pauses;
            all.into_iter().find(|(of, _)| of == target).map(|(_, pause)| pause)
        }
        PauseTarget::Job(job) => node.store.jobs(&[*job]).await?.pop().flatten().and_then(|job| job.pause),
        PauseTarget::Schedule(id) => node.store.schedules(&[*id]).await?.pop().flatten().and_then(|one| one.pause),
    })
}

/// Gives the schedules under `target` their own waking time back.
async fn wake(node: &Node, target: &PauseTarget, now: Timestamp) -> Result<(), StoreError> {
    let all = ScheduleQuery { limit: PAGE, ..ScheduleQuery::default() };
    match target {
        PauseTarget::Schedule(id) => {
            let records = node.store.schedules(&[*id]).await?.into_iter().flatten().collect();
            wake_page(node, records, now).await
        }
        PauseTarget::Job(job) => wake_all(node, ScheduleQuery { job: Some(*job), ..all }, now).await,
        PauseTarget::Tenant(tenant) => wake_all(node, ScheduleQuery { tenant: Some(*tenant), ..all }, now).await,
        PauseTarget::Queue(tenant, queue) => {
            let mut jobs =
                JobQuery { tenant: Some(*tenant), queue: Some(queue.clone()), limit: PAGE, ..JobQuery::default() };
            loop {
                let page = node.store.list_jobs(&jobs).await?;
                for job in page.jobs {
                    wake_all(node, ScheduleQuery { job: Some(job.id), ..all.clone() }, now).await?;
                }
                match page.next {
                    Some(next) => jobs.after = Some(next),
                    None => return Ok(()),
                }
            }
        }
    }
}

async fn wake_all(node: &Node, mut query: ScheduleQuery, now: Timestamp) -> Result<(), StoreError> {
    loop {
        let page = node.store.list_schedules(&query).await?;
        wake_page(node, page.schedules, now).await?;
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(()),
        }
    }
}

/// A schedule that is fired or changed meanwhile is awake already.
async fn wake_page(node: &Node, records: Vec<ScheduleRecord>, now: Timestamp) -> Result<(), StoreError> {
    let ids: Vec<ScheduleId> = records.iter().map(|record| record.id).collect();
    let cursors = node.store.cursors(&ids).await?;
    let mut puts = Vec::new();
    for (record, cursor) in records.into_iter().zip(cursors) {
        let Some(cursor) = cursor else { continue };
        let Ok(spec) = serde_json::from_str::<ScheduleSpec>(&record.spec) else { continue };
        let Ok(schedule) = Schedule::compile(&spec, &record.id.seed()) else { continue };
        let own = resumed(&schedule, record.id, cursor);
        if own != cursor {
            puts.push(SchedulePut::moving(record, &spec, Some(cursor), own));
        }
    }
    if !puts.is_empty() {
        node.store.put_schedules(&node.write(now), &puts).await?;
    }
    Ok(())
}
