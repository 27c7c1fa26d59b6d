//! Saving definitions: a document becomes a job, and its schedules are armed.
//!
//! The same code for the API, the command line and programs that have Rota
//! inside them. A schedule that did not change keeps its cursor; an edited one
//! is armed anew, and what the old one still owed is recorded as edited; one
//! that is no longer written is deleted. A job and its schedules are one write,
//! guarded by what was read, so that a fire in between is noticed, and the save is
//! tried again: no fire ever sees the one without the other.
//!
//! What the tenant's quotas or the limits do not allow is refused before anything is
//! written. A job's lane is there before the job is: none that was saved can fail to run
//! for the number of lanes.
//!
//! To check a document is to save it in a dry run: whatever refuses a save refuses the
//! check.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use rota_core::{
    calendar::named,
    fire::{Cursor, Pause, Progress, Stored, arm, edit},
    heat::{HotSecond, hottest, second_of},
    ids::{JobId, ScheduleId, TenantId},
    job::{JobDocument, unbuilt},
    lane::LaneKey,
    limits::{LimitReached, Limited},
    ports::Topic,
    problem::Problem,
    quota::{Daily, Held, Quotas, Refusal, pieces},
    schedule::ScheduleSpec,
    store::{
        Expect, JobPut, JobRecord, JobSaved, SchedulePut, ScheduleQuery, ScheduleRecord, SchedulesPut, StoreError,
        Write,
    },
    stored,
    timing::Schedule,
};

use crate::{
    catalog::{input_problems, pauses_over},
    events::Event,
    node::Node,
    quota,
};

/// So often a save is tried against schedules that fire meanwhile.
const TRIES: usize = 10;
/// Schedules read in one go.
const PAGE: u32 = 1_000;

/// Why a job was not saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error("the job is not in the state that the save expects: it was created, changed or deleted meanwhile")]
    Conflict { version: Option<i32> },
    #[error("the job is not valid: {}", told(problems))]
    BadDocument { problems: Vec<Problem> },
    #[error("the job exceeds the tenant's quotas: {}", over(refusals))]
    OverQuota { refusals: Vec<Refusal>, now: Timestamp },
    #[error(transparent)]
    LimitReached(#[from] LimitReached),
    #[error("the schedule `{name}` cannot be compiled")]
    BadSchedule { name: String, problems: Vec<Problem> },
    #[error("the schedules of the job kept changing while they were saved")]
    Busy,
    #[error("the store did not save it")]
    Store(#[from] StoreError),
}

pub(crate) fn told(problems: &[Problem]) -> String {
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

/// Saves a job with all its schedules, in one write.
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
    let mut refused: Vec<Option<SaveError>> = documents.iter().map(|document| unfit(document)).collect();
    refuse_without_calendars(node, tenant, documents, &mut refused, write.now).await?;
    refuse_over_quota(node, tenant, documents, &mut refused, write).await?;
    open_lanes(node, tenant, documents, &mut refused, write).await?;
    let fit = documents.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
    let fit: Vec<&JobDocument> = fit.map(|(document, _)| *document).collect();
    let mut answers = Saver { node, tenant, by, expect }.save(&fit, write).await?.into_iter();
    let answer = |refused: Option<SaveError>| match refused {
        Some(refused) => Err(refused),
        None => answers.next().unwrap_or(Err(SaveError::Busy)),
    };
    Ok(refused.into_iter().map(answer).collect())
}

/// What keeps a document from being saved, whatever is stored.
pub fn problems_of(document: &JobDocument) -> Vec<Problem> {
    let mut problems = unbuilt(document);
    problems.extend(input_problems(document));
    problems
}

fn unfit(document: &JobDocument) -> Option<SaveError> {
    let problems = problems_of(document);
    (!problems.is_empty()).then_some(SaveError::BadDocument { problems })
}

/// Refuses the documents whose schedules name calendars that are not there.
async fn refuse_without_calendars(
    node: &Node,
    tenant: TenantId,
    documents: &[&JobDocument],
    refused: &mut [Option<SaveError>],
    now: Timestamp,
) -> Result<(), StoreError> {
    let names: Vec<&String> = documents.iter().flat_map(|one| &one.schedules).flat_map(|one| &one.calendars).collect();
    if names.is_empty() {
        return Ok(());
    }
    let all = node.catalog.calendars(tenant, names, now).await?;
    for (document, refused) in documents.iter().zip(refused).filter(|(_, refused)| refused.is_none()) {
        let mut problems = Vec::new();
        for (index, schedule) in document.schedules.iter().enumerate() {
            let missing = named(&schedule.calendars, &all).err().into_iter().flatten();
            problems.extend(missing.map(|problem| problem.within(&format!("schedules[{index}]"))));
        }
        if !problems.is_empty() {
            *refused = Some(SaveError::BadDocument { problems });
        }
    }
    Ok(())
}

/// Refuses the documents that the tenant's quotas do not allow.
async fn refuse_over_quota(
    node: &Node,
    tenant: TenantId,
    documents: &[&JobDocument],
    refused: &mut [Option<SaveError>],
    write: &Write,
) -> Result<(), StoreError> {
    let Some(quotas) = node.catalog.quotas(tenant) else { return Ok(()) };
    for (document, refused) in documents.iter().zip(refused).filter(|(_, refused)| refused.is_none()) {
        let mut refusals = quotas.document(document);
        if refusals.is_empty() {
            refusals.extend(over_count(node, tenant, document, &quotas, write).await?);
        }
        if !refusals.is_empty() {
            *refused = Some(SaveError::OverQuota { refusals, now: write.now });
        }
    }
    Ok(())
}

/// Why a document is one too many, or too much for its day.
async fn over_count(
    node: &Node,
    tenant: TenantId,
    document: &JobDocument,
    quotas: &Quotas,
    write: &Write,
) -> Result<Option<Refusal>, StoreError> {
    let stored = node.store.find_jobs(&[(tenant, document.name.clone())]).await?.pop().flatten();
    let text = document.canonical_json();
    if stored.as_ref().is_some_and(|stored| stored.document == text) {
        return Ok(None);
    }
    let schedules = more_schedules(node, stored.as_ref(), document).await?;
    for (what, count) in [(Held::Jobs, u64::from(stored.is_none())), (Held::ActiveSchedules, schedules)] {
        let more = quota::More { what, count, now: write.now, dry_run: write.dry_run };
        if let Some(refusal) = quota::more(node, tenant, quotas, more).await? {
            return Ok(Some(refusal));
        }
    }
    quota::daily(node, tenant, quotas, (Daily::DefinitionBytes, pieces(text.len() as u64)), write).await
}

/// Creates the lanes of the documents, and refuses those that would need more than there
/// may be. In a dry run none is created.
async fn open_lanes(
    node: &Node,
    tenant: TenantId,
    documents: &[&JobDocument],
    refused: &mut [Option<SaveError>],
    write: &Write,
) -> Result<(), StoreError> {
    let lanes = documents.iter().map(|document| document.run_lane()).collect();
    let (missing, held) = node.catalog.missing_lanes(lanes, |key| node.is_able(key)).await?;
    let mut new: HashSet<LaneKey> = HashSet::new();
    for (document, refused) in documents.iter().zip(refused).filter(|(_, refused)| refused.is_none()) {
        let lane = document.run_lane();
        if missing.contains(&lane) && !new.contains(&lane) {
            if let Err(reached) = node.options.limits.allow(Limited::Lanes, held, new.len() + 1) {
                *refused = Some(reached.into());
                continue;
            }
            match over_lanes(node, tenant, write).await? {
                Some(refusal) => *refused = Some(SaveError::OverQuota { refusals: vec![refusal], now: write.now }),
                None => drop(new.insert(lane)),
            }
        }
    }
    if !write.dry_run && !new.is_empty() {
        let keys: Vec<&LaneKey> = new.iter().collect();
        node.catalog.lanes(&keys, |key| node.lane_mode(key), |key| node.is_able(key)).await?;
    }
    Ok(())
}

/// Why a tenant may not use a lane that nobody has used before: lanes stay for ever, and there
/// are so many for all tenants together.
async fn over_lanes(node: &Node, tenant: TenantId, write: &Write) -> Result<Option<Refusal>, StoreError> {
    let Some(quotas) = node.catalog.quotas(tenant) else { return Ok(None) };
    quota::daily(node, tenant, &quotas, (Daily::NewLanes, 1), write).await
}

/// How many enabled schedules more the tenant has once the document is saved.
async fn more_schedules(node: &Node, job: Option<&JobRecord>, document: &JobDocument) -> Result<u64, StoreError> {
    let wanted = document.schedules.iter().filter(|spec| spec.enabled && document.is_enabled()).count() as u64;
    if wanted == 0 {
        return Ok(0);
    }
    let Some(job) = job else { return Ok(wanted) };
    let stored = stored_schedules(node, job.id).await?;
    Ok(wanted.saturating_sub(stored.values().filter(|record| record.enabled).count() as u64))
}

/// Who saves documents, and as what.
struct Saver<'a> {
    node: &'a Node,
    tenant: TenantId,
    by: Option<String>,
    expect: Expect,
}

/// What a document does to the schedules that are stored.
struct Draft<'a> {
    document: &'a JobDocument,
    /// The job's revision, if it is there.
    seen: Option<i32>,
    changed: Vec<Changed<'a>>,
    new: Vec<&'a ScheduleSpec>,
    ended: Vec<ScheduleId>,
}

/// A schedule that is there and is to be another.
struct Changed<'a> {
    record: ScheduleRecord,
    cursor: Option<Cursor>,
    /// Those over it until now.
    pauses: Vec<Pause>,
    spec: &'a ScheduleSpec,
}

impl Changed<'_> {
    /// Whether the instant it owes lies in a pause.
    fn is_held(&self) -> bool {
        self.cursor.is_some_and(|cursor| self.pauses.iter().any(|pause| pause.covers(cursor.planned_at)))
    }
}

impl Saver<'_> {
    /// Saves documents in one write. What fires meanwhile is read again.
    async fn save(
        &self,
        documents: &[&JobDocument],
        write: &Write,
    ) -> Result<Vec<Result<Saved, SaveError>>, SaveError> {
        if documents.is_empty() {
            return Ok(Vec::new());
        }
        for _ in 0..TRIES {
            match self.save_as_read(&self.drafts(documents).await?, write).await {
                Err(StoreError::Moved { .. }) => {}
                saved => return Ok(saved?),
            }
        }
        if documents.len() == 1 {
            return Ok(vec![Err(SaveError::Busy)]);
        }
        self.save_apart(documents, write.now).await
    }

    /// Saves documents whose schedules do not stand still long enough for all of them
    /// at once: the new ones together, for they may start after each other and have
    /// nothing that fires; then the others one by one.
    async fn save_apart(
        &self,
        documents: &[&JobDocument],
        now: Timestamp,
    ) -> Result<Vec<Result<Saved, SaveError>>, SaveError> {
        let names: Vec<(TenantId, String)> = documents.iter().map(|one| (self.tenant, one.name.clone())).collect();
        let stored = self.node.store.find_jobs(&names).await?;
        let new = documents.iter().zip(&stored).filter(|(_, job)| job.is_none());
        let new: Vec<&JobDocument> = new.map(|(document, _)| *document).collect();
        let mut made = Vec::new();
        if new.len() < documents.len() {
            made = Box::pin(self.save(&new, &self.node.write(now))).await?;
        }
        let mut made = made.into_iter();
        let mut saved = Vec::with_capacity(documents.len());
        for (document, job) in documents.iter().zip(stored) {
            let made = if job.is_none() { made.next() } else { None };
            saved.push(if let Some(made) = made {
                made
            } else {
                let one = Box::pin(self.save(&[document], &self.node.write(now))).await?;
                one.into_iter().next().unwrap_or(Err(SaveError::Busy))
            });
        }
        Ok(saved)
    }

    async fn drafts<'a>(&self, documents: &[&'a JobDocument]) -> Result<Vec<Draft<'a>>, StoreError> {
        let names: Vec<(TenantId, String)> = documents.iter().map(|one| (self.tenant, one.name.clone())).collect();
        let mut drafts = Vec::with_capacity(documents.len());
        for (document, job) in documents.iter().zip(self.node.store.find_jobs(&names).await?) {
            drafts.push(self.draft(document, job).await?);
        }
        Ok(drafts)
    }

    async fn draft<'a>(&self, document: &'a JobDocument, job: Option<JobRecord>) -> Result<Draft<'a>, StoreError> {
        let mut stored = match &job {
            Some(job) => stored_schedules(self.node, job.id).await?,
            None => HashMap::new(),
        };
        // A queue that it leaves may be paused, and hold schedules that are not changed.
        let moves = job.as_ref().is_some_and(|job| job.queue != document.queue_name());
        let same = |record: &ScheduleRecord, spec: &ScheduleSpec| {
            record.spec == text(spec) && record.enabled == (spec.enabled && document.is_enabled())
        };
        let (mut changed, mut new) = (Vec::new(), Vec::new());
        for spec in &document.schedules {
            match stored.remove(&spec.name) {
                Some(record) if same(&record, spec) && !moves => {}
                Some(record) => changed.push((record, spec)),
                None => new.push(spec),
            }
        }
        let ids: Vec<ScheduleId> = changed.iter().map(|(record, _)| record.id).collect();
        let ended = stored.values().map(|record| record.id).collect();
        let seen = job.as_ref().map(|job| job.revision);
        let Some(job) = job.filter(|_| !ids.is_empty()) else {
            return Ok(Draft { document, seen, changed: Vec::new(), new, ended });
        };
        let (cursors, wide) = (self.node.store.cursors(&ids).await?, self.node.store.pauses().await?);
        let changed = changed.into_iter().zip(cursors).map(|((record, spec), due)| Changed {
            cursor: due.map(|due| due.cursor),
            pauses: pauses_over(&record, &job, &wide),
            record,
            spec,
        });
        let changed = changed.filter(|one| !same(&one.record, one.spec) || one.is_held());
        Ok(Draft { document, seen, changed: changed.collect(), new, ended })
    }

    async fn save_as_read(
        &self,
        drafts: &[Draft<'_>],
        write: &Write,
    ) -> Result<Vec<Result<Saved, SaveError>>, StoreError> {
        let new: usize = drafts.iter().map(|draft| draft.new.len()).sum();
        let mut first = match (new, write.dry_run) {
            (0, _) => 0,
            // Ids that no schedule has.
            (_, true) => -(new as i64),
            (_, false) => self.node.store.reserve_schedules(new as u32).await?.0,
        };
        let (mut puts, mut saved) = (Vec::with_capacity(drafts.len()), Vec::with_capacity(drafts.len()));
        for draft in drafts {
            match self.put_of(draft, first, write.now) {
                Ok(put) => {
                    puts.push(put);
                    saved.push(None);
                }
                Err(refused) => saved.push(Some(Err(refused))),
            }
            first += draft.new.len() as i64;
        }
        let answers = if puts.is_empty() { Vec::new() } else { self.node.store.put_jobs(write, &puts).await? };
        let mut answers = answers.into_iter().zip(&puts);
        for (saved, draft) in saved.iter_mut().zip(drafts).filter(|(saved, _)| saved.is_none()) {
            *saved = Some(match answers.next() {
                Some((JobSaved::Saved { id: job, version, changed, .. }, put)) => {
                    let saved = Saved { job, version, changed, hot: None };
                    Ok(if write.dry_run { saved } else { self.tell(saved, put).await })
                }
                Some((JobSaved::Conflict { version }, _)) => Err(SaveError::Conflict { version }),
                Some((JobSaved::Refused(refusal), _)) => {
                    Err(SaveError::BadDocument { problems: vec![refusal.problem(draft.document.after_jobs())] })
                }
                None => Err(SaveError::Busy),
            });
        }
        Ok(saved.into_iter().map(|saved| saved.unwrap_or(Err(SaveError::Busy))).collect())
    }

    fn put_of(&self, draft: &Draft<'_>, first: i64, now: Timestamp) -> Result<JobPut, SaveError> {
        let document = draft.document;
        let on = document.is_enabled();
        let changed = draft.changed.iter().map(|changed| edited(changed, on, now));
        let new = draft.new.iter().zip(first..).map(|(spec, id)| fresh(ScheduleId(id), self.tenant, spec, on, now));
        let saved = changed.chain(new).collect::<Result<_, _>>()?;
        Ok(JobPut {
            tenant: self.tenant,
            name: document.name.clone(),
            document: document.canonical_json(),
            hash: document.content_hash().0,
            queue: document.queue_name().to_owned(),
            tags: document.tags.clone(),
            enabled: document.is_enabled(),
            by: self.by.clone(),
            expect: self.expect,
            after: document.triggers.as_ref().and_then(|triggers| triggers.after.clone()),
            schedules: Some(SchedulesPut { seen: draft.seen, saved, ended: draft.ended.clone() }),
        })
    }

    /// Tells of a job that was saved, and looks whether it makes a second crowded.
    async fn tell(&self, saved: Saved, put: &JobPut) -> Saved {
        let (node, tenant) = (self.node, self.tenant);
        node.catalog.forget_job(saved.job);
        for topic in [Topic::Schedules, Topic::Ends] {
            node.hints.wake(topic);
        }
        let Saved { job, version, changed, .. } = saved;
        node.events.emit(|| Event::JobSaved { job, tenant, version, changed });
        let cursors = put.schedules.iter().flat_map(|schedules| &schedules.saved).filter_map(|put| put.stored.cursor);
        Saved { hot: hot_second(node, cursors.map(|cursor| cursor.due_at).collect()).await, ..saved }
    }
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

fn compile(spec: &ScheduleSpec, id: ScheduleId, job_enabled: bool) -> Result<Schedule, SaveError> {
    let compiled = Schedule::compile(spec, &id.seed());
    compiled
        .map(|schedule| schedule.of_job(job_enabled))
        .map_err(|problems| SaveError::BadSchedule { name: spec.name.clone(), problems })
}

/// A schedule that is new. The store knows the job that it is saved with.
fn fresh(
    id: ScheduleId,
    tenant: TenantId,
    spec: &ScheduleSpec,
    job_enabled: bool,
    now: Timestamp,
) -> Result<SchedulePut, SaveError> {
    let schedule = compile(spec, id, job_enabled)?;
    let cursor = arm(&schedule, id, Progress::default(), now);
    Ok(SchedulePut {
        id,
        job: JobId(0),
        tenant,
        name: spec.name.clone(),
        spec: text(spec),
        enabled: schedule.is_enabled(),
        stored: Stored { cursor, ..Stored::default() },
        skips: Vec::new(),
        guard: None,
    })
}

/// A schedule that is there, with another definition, or turned on or off by its
/// job: that is an edit like any other.
fn edited(changed: &Changed<'_>, job_enabled: bool, now: Timestamp) -> Result<SchedulePut, SaveError> {
    let Changed { record, cursor, pauses, spec } = changed;
    let old = stored::read::<ScheduleSpec>(&record.spec).ok();
    let old = old.and_then(|old| Schedule::compile(&old, &record.id.seed()).ok());
    let new = compile(spec, record.id, job_enabled)?;
    let edited = edit(old.as_ref(), &new, record.id, record.stored(*cursor), pauses, now);
    Ok(SchedulePut {
        stored: edited.stored,
        skips: edited.owed,
        guard: Some(record.guard(*cursor)),
        ..fresh(record.id, record.tenant, spec, job_enabled, now)?
    })
}
