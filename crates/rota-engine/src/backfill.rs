//! Backfill: runs for instants of a schedule that lie in the past.
//!
//! The instants are those that firing would have planned, calendars included.
//! One that made a run is left out, as far as history reaches; so is one that an
//! earlier backfill made, which a key remembers for a year. Policies of the job
//! hold as for any run, and what the tenant's rate does not allow yet is made for
//! later; `overlap` and `catch_up` are about firing and have no say.
//!
//! A dry run makes the same runs and the store undoes them, so that what it counts is
//! what would be made.

use std::collections::HashSet;

use jiff::Timestamp;
use rota_core::{
    calendar::named,
    duration::Span,
    ids::{JobId, RunId, ScheduleId},
    preview::between,
    run::{NewRun, Source, Trigger, UniqueAsk},
    slot::UniqueKey,
    store::{RunQuery, StoreError, Write},
};
use serde_json::json;

use crate::{
    EngineError, Handle, JobRef, Made, RunAsk,
    catalog::{JobEntry, ScheduleEntry, ScheduleFound},
    definitions::told,
    making,
    node::Node,
    quota,
    stages::fire::payload_of,
};

/// Most instants of one backfill.
pub const INSTANTS_MAX: usize = 10_000;
/// Runs made in one transaction.
const BATCH: usize = 1_000;
/// Pages of earlier runs that are looked through.
const PAGES_MAX: usize = 1_000;
/// How long an instant that was backfilled is remembered.
const REMEMBERED: Span = Span::secs(365 * 86_400);

/// Somebody wants past instants run.
#[derive(Clone, Debug)]
pub struct Ask {
    pub schedule: ScheduleId,
    /// Inclusive.
    pub from: Timestamp,
    /// Exclusive.
    pub to: Timestamp,
    /// Also those that made a run already.
    pub again: bool,
    pub dry_run: bool,
    pub by: Option<String>,
}

/// What a backfill did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub planned: u64,
    pub fired_before: u64,
    pub runs: u64,
    /// Instants whose run was refused, and why the first of them was.
    pub refused: u64,
    pub refusal: Option<String>,
}

impl Done {
    /// Counts an instant; `before` is whether a backfill has made its run already.
    fn count(&mut self, made: &Made, before: bool) {
        match made {
            Made::Run { .. } => self.runs += 1,
            Made::Duplicate { .. } if before => self.fired_before += 1,
            Made::Duplicate { .. } => {
                self.refused += 1;
                // Not by its id: that of a dry run is never made.
                self.refusal.get_or_insert_with(|| "another run has the same `unique` key".to_owned());
            }
            Made::Full
            | Made::NoJob
            | Made::NotManual
            | Made::OutOfBounds(_)
            | Made::BadKey(_)
            | Made::OverQuota(_) => {
                self.refused += 1;
                self.refusal.get_or_insert_with(|| made.to_string());
            }
        }
    }
}

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("must be before `to`")]
    Empty,
    #[error("is in the future; a backfill is for the past")]
    Future,
    #[error("the range has more than {INSTANTS_MAX} instants; split it")]
    TooMany,
    #[error("the job has had too many runs since then to find those of the range; use a later start")]
    TooMuchHistory,
    #[error("a schedule with `after_finish` has no instants in the past")]
    NoInstants,
    #[error("the schedule {0} does not exist or cannot be read")]
    NoSchedule(String),
    #[error("the payload for {at} cannot be rendered: {why}")]
    BadPayload { at: Timestamp, why: String },
}

impl Refusal {
    /// The field that is wrong.
    pub const fn path(&self) -> &'static str {
        match self {
            Self::Empty | Self::TooMuchHistory => "from",
            Self::Future | Self::TooMany => "to",
            Self::NoInstants | Self::NoSchedule(_) | Self::BadPayload { .. } => "",
        }
    }
}

impl Handle {
    /// Makes runs for past instants of a schedule.
    pub async fn backfill(&self, ask: Ask) -> Result<Result<Done, Refusal>, EngineError> {
        let node = self.node();
        let now = self.now();
        if ask.from >= ask.to {
            return Ok(Err(Refusal::Empty));
        }
        if ask.to > now {
            return Ok(Err(Refusal::Future));
        }
        let (entry, job) = match read(node, ask.schedule).await? {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let instants = match instants(node, &entry, &ask, now).await? {
            Ok(instants) => instants,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let fired = if ask.again { Ok(HashSet::new()) } else { fired(node, job.record.id, &ask).await? };
        let fired = match fired {
            Ok(fired) => fired,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let wanted: Vec<Timestamp> = instants.iter().copied().filter(|at| !fired.contains(at)).collect();
        let mut done = Done {
            planned: instants.len() as u64,
            fired_before: (instants.len() - wanted.len()) as u64,
            ..Done::default()
        };
        let asks = wanted.iter().map(|at| run_ask(node, &entry, &job, &ask, *at)).collect::<Result<Vec<_>, _>>();
        let asks = match asks {
            Ok(asks) => asks,
            Err(refusal) => return Ok(Err(refusal)),
        };
        // What one batch would make must be in the way of the next.
        let batch = if ask.dry_run { INSTANTS_MAX } else { BATCH };
        for (asks, instants) in asks.chunks(batch).zip(wanted.chunks(batch)) {
            let made = self.make_backfill(&ask, asks.to_vec(), instants, now).await?;
            let before = self.backfilled_before(&made, instants).await?;
            for (made, before) in made.iter().zip(before) {
                done.count(made, before);
            }
        }
        Ok(Ok(done))
    }

    /// For each instant, whether the run that stands in its way is one that was made for it.
    /// Another one stands there by the job's own `unique`.
    async fn backfilled_before(&self, made: &[Made], instants: &[Timestamp]) -> Result<Vec<bool>, StoreError> {
        let in_the_way = |made: &Made| match made {
            Made::Duplicate { of } => Some(*of),
            _ => None,
        };
        let ids: Vec<RunId> = made.iter().filter_map(in_the_way).collect();
        let mut found = if ids.is_empty() { Vec::new() } else { self.node().store.runs(&ids).await? }.into_iter();
        let made_now = |of: RunId| made.iter().any(|made| matches!(made, Made::Run { id, .. } if *id == of));
        let mut before = Vec::with_capacity(made.len());
        for (made, at) in made.iter().zip(instants) {
            let Some(of) = in_the_way(made) else {
                before.push(false);
                continue;
            };
            // One whose history has gone is remembered for its instant alone.
            before.push(found.next().flatten().map_or_else(
                || !made_now(of),
                |record| record.run.trigger.source == Source::Backfill && record.run.trigger.planned_at == Some(*at),
            ));
        }
        Ok(before)
    }

    async fn make_backfill(
        &self,
        ask: &Ask,
        asks: Vec<RunAsk>,
        instants: &[Timestamp],
        now: Timestamp,
    ) -> Result<Vec<Made>, EngineError> {
        let node = self.node();
        let mut planned = making::plan(node, asks, now).await?;
        if !ask.dry_run {
            let runs = planned.iter_mut().filter_map(|one| one.as_mut().ok()).collect();
            quota::delay_over_rate(node, runs, now).await?;
        }
        let named = planned.into_iter().zip(instants).map(|(run, at)| {
            run.map(|run| {
                let key = format!("backfill/{}/{}", ask.schedule, at.as_microsecond());
                let key = UniqueKey::new(run.tenant, run.job, &key);
                let remembered = (!ask.again).then(|| UniqueAsk { key, until: REMEMBERED.after(now) });
                NewRun { once: remembered, ..run }
            })
        });
        self.make(named.collect(), Write { dry_run: ask.dry_run, ..node.write(now) }).await
    }
}

type FoundSchedule = (std::sync::Arc<ScheduleEntry>, std::sync::Arc<JobEntry>);

async fn read(node: &Node, schedule: ScheduleId) -> Result<Result<FoundSchedule, Refusal>, StoreError> {
    let unread = |why: &str| Ok(Err(Refusal::NoSchedule(why.to_owned())));
    let record = node.store.schedules(&[schedule]).await?.pop().flatten();
    let Some(record) = record.filter(|record| !record.deleted) else { return unread("it was deleted") };
    let entry = match node.catalog.schedules(&[(schedule, record.revision)]).await?.pop() {
        Some(ScheduleFound::Here(entry)) => entry,
        Some(ScheduleFound::Broken(why)) => return unread(&why),
        Some(ScheduleFound::Changed) | None => return unread("it is being changed"),
    };
    match node.catalog.jobs(&[record.job]).await?.pop().flatten() {
        Some(job) => Ok(Ok((entry, job))),
        None => unread("its job was deleted"),
    }
}

async fn instants(
    node: &Node,
    entry: &ScheduleEntry,
    ask: &Ask,
    now: Timestamp,
) -> Result<Result<Vec<Timestamp>, Refusal>, StoreError> {
    if entry.spec.after_finish.is_some() {
        return Ok(Err(Refusal::NoInstants));
    }
    let names = &entry.spec.calendars;
    let all = node.catalog.calendars(entry.record.tenant, names, now).await?;
    let calendars = match named(names, &all) {
        Ok(calendars) => calendars,
        Err(missing) => return Ok(Err(Refusal::NoSchedule(told(&missing)))),
    };
    let found = between(&entry.schedule, &calendars, ask.from, ask.to, INSTANTS_MAX);
    Ok(found.ok_or(Refusal::TooMany))
}

/// The instants of the range that made a run, as far as history reaches.
async fn fired(node: &Node, job: JobId, ask: &Ask) -> Result<Result<HashSet<Timestamp>, Refusal>, StoreError> {
    let mut query = RunQuery {
        job: Some(job),
        schedule: Some(ask.schedule),
        from: Some(ask.from),
        limit: 1_000,
        ..RunQuery::default()
    };
    let mut found = HashSet::new();
    for _ in 0..PAGES_MAX {
        let page = node.store.list_runs(&query).await?;
        let planned = page.runs.iter().filter_map(|record| record.run.trigger.planned_at);
        found.extend(planned.filter(|at| (ask.from..ask.to).contains(at)));
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(Ok(found)),
        }
    }
    Ok(Err(Refusal::TooMuchHistory))
}

fn run_ask(node: &Node, entry: &ScheduleEntry, job: &JobEntry, ask: &Ask, at: Timestamp) -> Result<RunAsk, Refusal> {
    let payload = payload_of(node, job, entry, at);
    let payload = payload.map_err(|error| Refusal::BadPayload { at, why: error.to_string() })?;
    // Not as the schedule's own run, which its next instant would wait for.
    let metadata = json!({ "schedule": ask.schedule, "schedule_name": entry.spec.name });
    let trigger = Trigger {
        planned_at: Some(at),
        by: ask.by.clone(),
        metadata: Some(metadata),
        ..Trigger::plain(Source::Backfill)
    };
    let labels = entry.spec.labels.clone();
    Ok(RunAsk { payload, labels, trigger, ..RunAsk::of(entry.record.tenant, JobRef::Id(job.record.id)) })
}
