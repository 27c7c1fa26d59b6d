//! Scan: looks for what cannot be, puts it right, and says so.
//!
//! Schedules that nobody fired in time, and those whose cursor is not where their
//! definition, their job, their last run and the pauses put it
//! ([`fire::implied`](rota_core::fire::implied)). Runs marked as running that nobody executes; slots whose counters do not fit the live runs;
//! runs that wait for others which are gone. The gauge of findings reads 0 as long
//! as everything else works.
//!
//! It also looks how long the oldest queued run waits, and counts the rows that the
//! store cannot read, for those who watch.
//!
//! A pass looks at a page of its partitions' schedules and goes on from there at
//! the next, so that ten million of them cost no more than a few. After a take-over,
//! and when pauses of tenants or queues were changed, it walks through all of them at
//! once: that is what wakes the schedules that such a pause had put to sleep.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    fire::{self, Around, LastRun},
    ids::{RunId, ScheduleId},
    ports::Topic,
    run::{Lease, Run, RunState, Status},
    store::{
        By, DueCursor, Guarded, OpenDead, Pauses, RunQuery, RunRecord, SchedulePut, ScheduleRecord, ScheduleSaved,
        StoreError,
    },
};

use super::{PassReport, Stage};
use crate::{
    Handle,
    catalog::{JobEntry, ScheduleEntry},
    events::{Event, Finding},
    node::Node,
    outbox::{End, Ended},
};

/// Schedules looked at in one pass.
const SCHEDULES: u32 = 10_000;
/// Runs looked at in one pass.
const RUNS: u32 = 1_000;
/// Overdue cursors named in one pass.
const OVERDUE_MAX: u32 = 100;
/// Slots are recounted at every so many passes: it looks at every live run.
const RECOUNT_EVERY: u32 = 10;
/// Deletions that are gone on with in one pass.
const DELETIONS: u32 = 100;
/// So long after its deletion a job may get a run from somebody who had read it before.
const DELETION_KEPT: Span = Span::secs(300);
/// Dead letters that are counted for those who watch; more are as many.
const DEAD_COUNTED_MAX: u32 = 100_000;

/// What is wrong with a schedule's cursor.
enum Wrong {
    /// It wakes too late. `late` where it should have woken long ago.
    Asleep { held: DueCursor, until: Timestamp, late: bool },
    /// Its schedule is gone.
    Gone { held: DueCursor },
    /// It should be there and is not, or the other way round, or is of another
    /// revision than its schedule.
    Unlike { put: Box<SchedulePut> },
}

/// A schedule as it was read.
struct Seen {
    record: ScheduleRecord,
    held: Option<DueCursor>,
    /// What became of the run whose end arms it.
    last_run: LastRun,
}

/// A walk through the schedules of this node's partitions.
#[derive(Default)]
struct Walk {
    after: Option<ScheduleId>,
    /// Which partitions and pauses there were when it began.
    begun: Option<(u64, i64)>,
    /// It is to be over soon: partitions are new, or pauses were changed.
    hurried: bool,
}

pub struct Scan {
    node: Arc<Node>,
    walk: Walk,
    whole_at: Timestamp,
    passes: u32,
    /// How much was found since the last whole look began.
    found: usize,
    /// Cursors that were overdue at the last scan, and since when.
    late: HashMap<DueCursor, Timestamp>,
    /// Attempts that nobody here had in hand at the last scan, and since when.
    ownerless: HashMap<Lease, Timestamp>,
}

impl Scan {
    pub fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            walk: Walk::default(),
            whole_at: Timestamp::MIN,
            passes: 0,
            found: 0,
            late: HashMap::new(),
            ownerless: HashMap::new(),
        }
    }

    fn report(&self, finding: Finding) {
        tracing::error!(?finding, "found what cannot be");
        self.node.events.emit(|| Event::Found(finding));
    }

    /// Schedules that nobody fired in time. One that is found so for the first time may
    /// just have been woken, or be caught up with after a downtime: it is counted, and
    /// something is wrong only if it is still so a while later.
    async fn overdue(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let parts = self.node.territory.parts();
        let before = self.node.options.overdue_after.before(now);
        let mut overdue = self.node.store.due(&parts, before, OVERDUE_MAX).await?;
        self.node.stats.overdue.set(overdue.len());
        if !overdue.is_empty() {
            self.node.hints.wake(Topic::Schedules);
        }
        let known = std::mem::take(&mut self.late);
        let since = |due: &DueCursor| known.get(due).copied().unwrap_or(now);
        self.late = overdue.iter().map(|due| (*due, since(due))).collect();
        overdue.retain(|due| since(due) <= before);
        if let Some(first) = overdue.first() {
            let (schedule, due_at) = (first.schedule, first.cursor.due_at);
            tracing::error!(count = overdue.len(), %schedule, %due_at, "nobody fired schedules in time");
        }
        for due in &overdue {
            let (schedule, due_at) = (due.schedule, due.cursor.due_at);
            self.node.events.emit(|| Event::Found(Finding::ScheduleOverdue { schedule, due_at }));
        }
        Ok(overdue.len())
    }

    /// Compares the cursors of a page of schedules with what they should be, and puts
    /// right what differs.
    async fn schedules(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let parts = self.node.territory.parts();
        let page = self.node.store.review(&parts, self.walk.after, SCHEDULES).await?;
        let mut found = 0;
        for ids in page.schedules.chunks(RUNS as usize) {
            found += self.review(ids, now).await?;
        }
        self.walk.after = page.next;
        self.walk.hurried &= page.next.is_some();
        Ok(found)
    }

    async fn review(&self, ids: &[ScheduleId], now: Timestamp) -> Result<usize, StoreError> {
        let (mut moved, mut saved) = (Vec::new(), Vec::new());
        let mut findings = Vec::new();
        for wrong in self.reviewed(ids, now).await? {
            match wrong {
                Wrong::Asleep { held, until, late } => {
                    moved.push((held, Some(until)));
                    findings.push(late.then_some(Finding::ScheduleAsleep { schedule: held.schedule }));
                }
                Wrong::Gone { held } => {
                    moved.push((held, None));
                    findings.push(Some(Finding::CursorStray { schedule: held.schedule }));
                }
                Wrong::Unlike { put } => saved.push(*put),
            }
        }
        let mut done = Vec::new();
        if !moved.is_empty() {
            done = self.node.store.wake_at(&self.node.write(now), &moved).await?;
        }
        if !saved.is_empty() {
            let answers = self.node.store.put_schedules(&self.node.write(now), &saved).await?;
            let unarmed = |put: &SchedulePut| Some(Finding::ScheduleUnarmed { schedule: put.id });
            findings.extend(saved.iter().map(unarmed));
            let is_saved = |answer: &ScheduleSaved| matches!(answer, ScheduleSaved::Saved { .. });
            done.extend(answers.iter().map(|one| if is_saved(one) { Guarded::Applied } else { Guarded::Stale }));
        }
        if !done.is_empty() {
            self.node.hints.wake(Topic::Schedules);
        }
        // What was fired or changed meanwhile is in its place.
        let applied = findings.into_iter().zip(done).filter(|(_, done)| *done == Guarded::Applied);
        let found: Vec<Finding> = applied.filter_map(|(finding, _)| finding).collect();
        let count = found.len();
        for finding in found {
            self.report(finding);
        }
        Ok(count)
    }

    /// What is wrong with the cursors of these schedules.
    async fn reviewed(&self, ids: &[ScheduleId], now: Timestamp) -> Result<Vec<Wrong>, StoreError> {
        let node = &self.node;
        let cursors = node.store.cursors(ids).await?;
        let records = node.store.schedules(ids).await?;
        let known = || records.iter().flatten();
        let jobs = node.catalog.jobs_anew(known().map(|record| record.job)).await?;
        let runs: Vec<RunId> = known().filter_map(|record| record.armed_by).collect();
        let runs: HashMap<RunId, Option<RunRecord>> = runs.iter().copied().zip(node.store.runs(&runs).await?).collect();
        // After the cursors: a pause that put one of them to sleep is known by now, and one
        // that was lifted meanwhile is known to have been lifted a moment ago.
        node.read_pauses().await?;
        let pauses = node.catalog.pauses();
        let mut wrong = Vec::new();
        for (record, held) in records.into_iter().zip(cursors) {
            match (record, held) {
                (Some(record), held) if !record.deleted => {
                    // While its job cannot be read, its cursor says how far it has come.
                    let Some(job) = jobs.get(&record.job) else { continue };
                    let last_run = last_run(&record, &runs, now);
                    wrong.extend(self.compare(Seen { record, held, last_run }, job, &pauses, now));
                }
                (Some(_), Some(held)) => wrong.push(Wrong::Gone { held }),
                (None, Some(held)) if self.is_gone(held.schedule).await? => wrong.push(Wrong::Gone { held }),
                (None, Some(_)) | (_, None) => {}
            }
        }
        Ok(wrong)
    }

    /// Whether there is no such schedule, not even one that cannot be read.
    async fn is_gone(&self, schedule: ScheduleId) -> Result<bool, StoreError> {
        Ok(self.node.store.raw_row("schedule", &schedule.0.to_string()).await?.is_none())
    }

    fn compare(&self, seen: Seen, job: &JobEntry, wide: &Pauses, now: Timestamp) -> Option<Wrong> {
        let Seen { record, held, last_run } = seen;
        let entry = ScheduleEntry::read(record).ok()?;
        let ScheduleEntry { record, schedule, .. } = &entry;
        let pauses = entry.pauses(job, wide);
        let quotas = self.node.catalog.quotas(record.tenant);
        let rated = quotas.is_some_and(|quotas| quotas.run_rate().is_some());
        let stored = record.stored(held.map(|held| held.cursor));
        let around = Around { last_run, pauses: &pauses, rated };
        let implied = fire::implied(schedule, record.id, stored, &around, now);
        match (held, implied) {
            (Some(held), Some(next)) if held.revision == record.revision => {
                // Whoever lifted a pause a moment ago is waking its schedules.
                let since = self.node.options.overdue_after.before(now);
                let lifted = pauses.iter().any(|pause| pause.until.is_some_and(|until| since < until));
                let late = !lifted && next.due_at <= since;
                (held.cursor != next).then_some(Wrong::Asleep { held, until: next.due_at, late })
            }
            (None, None) => None,
            (held, Some(_)) => {
                let put = SchedulePut::moving(record.clone(), held.map(|held| held.cursor), implied);
                Some(Wrong::Unlike { put: Box::new(put) })
            }
            (Some(held), None) => {
                let off = fire::edit(Some(schedule), schedule, record.id, stored, &pauses, now);
                let put = SchedulePut::moving(record.clone(), Some(held.cursor), None);
                Some(Wrong::Unlike { put: Box::new(SchedulePut { stored: off.stored, skips: off.owed, ..put }) })
            }
        }
    }

    /// Runs of this node's partitions that are marked as running and that
    /// nobody here executes. One that has just been found may be on its way, or lie in a
    /// partition that `look` has yet to go through.
    async fn ownerless(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let marked = self.node.store.inherited(&self.node.territory.parts(), RUNS).await?;
        let before = self.node.options.overdue_after.before(now);
        let known = std::mem::take(&mut self.ownerless);
        let since = |run: &Run| known.get(&run.lease()).copied().unwrap_or(now);
        let mut ownerless: Vec<Run> =
            marked.into_iter().filter(|run| self.node.runs.in_flight(run.id).is_none()).collect();
        self.ownerless = ownerless.iter().map(|run| (run.lease(), since(run))).collect();
        ownerless.retain(|run| since(run) <= before);
        let mut ended = Vec::new();
        for run in ownerless {
            let Some(by) = self.node.territory.held(run.part).map(|held| By::Owner(held.epoch)) else { continue };
            let Ok(change) = run.lose(self.node.options.losses_max, now) else { continue };
            if self.node.runs.add(&run, by) {
                self.report(Finding::RunOwnerless { run: run.id });
                ended.push(Ended::decided(run, by, End::Decided(Box::new(change)), now));
            }
        }
        let count = ended.len();
        self.node.post(ended);
        Ok(count)
    }

    /// Goes on with deletions of jobs whose runs were not all stopped, because whoever
    /// deleted them died, or because a run was made at the same moment.
    async fn deletions(&self, now: Timestamp) -> Result<(), StoreError> {
        let mut over = Vec::new();
        for (deleted_at, deletion) in self.node.store.deletions(DELETIONS).await? {
            Handle::new(Arc::clone(&self.node)).stop_deleted(&deletion).await?;
            let live = vec![Status::Scheduled, Status::Blocked, Status::Queued, Status::Running, Status::Waiting];
            let live = RunQuery { job: Some(deletion.job), statuses: live, limit: 1, ..RunQuery::default() };
            let lives = !self.node.store.list_runs(&live).await?.runs.is_empty();
            if !lives && deleted_at <= DELETION_KEPT.before(now) {
                over.push(deletion.job);
            }
        }
        if !over.is_empty() {
            self.node.store.forget_deletions(&over, now).await?;
        }
        Ok(())
    }

    async fn joins(&self, now: Timestamp) -> Result<usize, StoreError> {
        let count = self.node.store.mend_joins(&self.node.write(now)).await?;
        if count > 0 {
            self.report(Finding::JoinsStuck { count });
            self.node.hints.wake(Topic::Ready);
        }
        Ok(count as usize)
    }

    /// Begins a new walk where partitions are new to this node, or pauses were
    /// changed: whoever should have woken schedules may have died before it did.
    fn hurry(&mut self) {
        let here = (self.node.territory.generation(), self.node.catalog.pauses().revision);
        if self.walk.begun != Some(here) {
            self.walk = Walk { after: None, begun: Some(here), hurried: true };
        }
    }

    /// What one node looks at for all, and what is counted for those who watch.
    async fn watch(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let (mut found, mut oldest, mut dead) = (0, None, OpenDead::default());
        if self.node.territory.is_steward() {
            oldest = self.node.store.oldest_queued().await?;
            dead = self.node.store.open_dead(DEAD_COUNTED_MAX).await?;
            self.deletions(now).await?;
            if self.passes.is_multiple_of(RECOUNT_EVERY) {
                found += self.slots(now).await?;
                found += self.joins(now).await?;
            }
            self.passes = self.passes.wrapping_add(1);
        }
        self.node.stats.oldest_queued.set(oldest);
        self.node.stats.dead_open.set(dead.count as usize);
        self.node.stats.oldest_dead.set(dead.oldest_at);
        Ok(found)
    }

    async fn slots(&self, now: Timestamp) -> Result<usize, StoreError> {
        let count = self.node.store.recount_slots(&self.node.write(now)).await?;
        if count > 0 {
            self.report(Finding::SlotsLeaked { count });
            self.node.hints.wake(Topic::Ready);
        }
        Ok(count as usize)
    }
}

#[async_trait]
impl Stage for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let holds_any = !self.node.territory.is_empty();
        if holds_any {
            self.hurry();
        }
        let goes_on = self.walk.hurried && self.walk.after.is_some() && now < self.whole_at;
        let mut done = if goes_on { self.found } else { 0 };
        if holds_any {
            done += self.schedules(now).await?;
        }
        if !goes_on {
            // While the store was away nobody could do better.
            if holds_any && !self.node.rights.is_quiet(now) {
                done += self.overdue(now).await?;
                done += self.ownerless(now).await?;
            }
            done += self.watch(now).await?;
            // Each was logged by whoever met it first.
            self.node.stats.unreadable.set(self.node.store.unreadable().await?.len());
            self.whole_at = self.node.options.scan_every.after(now);
        }
        self.found = done;
        self.node.stats.findings.set(done);
        Ok(PassReport { done, more: holds_any && self.walk.hurried, next_at: Some(self.whole_at) })
    }

    fn stepped(&mut self, _now: Timestamp) {
        self.whole_at = Timestamp::MIN;
        self.late.clear();
        self.ownerless.clear();
    }
}

/// What became of the run whose end arms a schedule.
fn last_run(record: &ScheduleRecord, runs: &HashMap<RunId, Option<RunRecord>>, now: Timestamp) -> LastRun {
    let Some(run) = record.armed_by else { return LastRun::None };
    match runs.get(&run).and_then(Option::as_ref).map(|record| &record.run.state) {
        Some(RunState::Finished { at, .. }) => LastRun::Ended(*at),
        Some(_) => LastRun::Lives,
        None => LastRun::Ended(now),
    }
}
