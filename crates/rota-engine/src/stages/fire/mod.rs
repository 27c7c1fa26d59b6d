//! Fire: turns schedules that have come due into queued runs.
//!
//! A pass holds the cursors of the next minute in memory, asks
//! [`fire::plan`](rota_core::fire::plan) what each due one owes, and commits
//! runs, skips and new cursors in batches, the next of them planned while one is
//! written. The commit is guarded by the cursor,
//! the revisions and the pauses as read: two nodes that overlap for a moment
//! still make each run once, and a schedule that was edited, paused or deleted
//! meanwhile is read again instead of fired.
//!
//! What a tenant's rate of runs does not allow yet stays owed: its cursor is put
//! off, one after the other at the rate, so that each is written about once.
//!
//! Memory is only for being on time. What it does not hold (a schedule saved a
//! moment ago on another node) is found by a hint, or by the look that every
//! second brings.

mod budget;
mod cursors;
mod plan;
mod write;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream::FuturesUnordered};
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    fire::QUEUE_MAX,
    ids::{JobId, ScheduleId, TenantId},
    quota::Quotas,
    rate::Rate,
    schedule::Overlap,
    store::{DueCursor, Enqueued, FireItem, Fired, StoreError},
};

pub(crate) use self::plan::payload_of;
use self::{
    budget::{Budget, Turns},
    cursors::Cursors,
    plan::{Knowledge, Unfireable},
    write::{Commit, Written, beside, write},
};
use super::{PassReport, Stage, is_unknown};
use crate::{
    catalog::{JobEntry, ScheduleEntry, ScheduleFound},
    events::{Event, Finding},
    making::take_made,
    node::Node,
    quota::{self, Want},
};

/// Broken schedules that are remembered, so that each is told of once.
const BROKEN_MAX: usize = 10_000;
/// Batches of one pass.
const BATCHES_MAX: usize = 16;
/// Batches that are written at once: the store has the next one at hand when it
/// is done with one.
const WRITES_MAX: usize = 3;
/// When nothing could be fired that was due, the next try waits this long.
const STUCK_WAIT: Span = Span::millis(50);

pub struct Fire {
    node: Arc<Node>,
    cursors: Cursors,
    /// Commits whose answers were lost.
    pending: Vec<Commit>,
    /// Schedules that were reported as broken.
    broken: HashSet<ScheduleId>,
    /// Schedules whose job was not there when they were to be fired.
    jobless: HashSet<ScheduleId>,
    turns: Turns,
}

impl Fire {
    pub fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            cursors: Cursors::new(),
            pending: Vec::new(),
            broken: HashSet::new(),
            jobless: HashSet::new(),
            turns: Turns::default(),
        }
    }

    async fn look(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let options = &self.node.options;
        let parts = self.node.territory.parts();
        let generation = self.node.territory.generation();
        self.node.read_pauses().await?;
        let until = options.horizon.after(now);
        let found =
            if parts.is_empty() { Vec::new() } else { self.node.store.due(&parts, until, options.cursors_max).await? };
        let covered_to = match found.last() {
            Some(last) if found.len() >= options.cursors_max as usize => last.cursor.due_at,
            _ => until,
        };
        self.cursors.looked(found, covered_to, generation, options.look_every.after(now));
        Ok(())
    }

    async fn know(&self, entries: &[(DueCursor, Arc<ScheduleEntry>)], now: Timestamp) -> Result<Knowledge, StoreError> {
        let (node, catalog) = (&self.node, &self.node.catalog);
        let mut ids: Vec<JobId> = entries.iter().map(|(_, entry)| entry.record.job).collect();
        ids.sort_unstable();
        ids.dedup();
        let jobs: HashMap<JobId, Arc<JobEntry>> =
            ids.iter().copied().zip(catalog.jobs(&ids).await?).filter_map(|(id, job)| Some((id, job?))).collect();
        let versions: Vec<_> = jobs.iter().map(|(id, job)| (*id, &job.version.terms.lane)).collect();
        let keys: Vec<_> = versions.iter().map(|(_, key)| *key).collect();
        let lanes = catalog.lanes(&keys, |key| node.lane_mode(key), |key| node.is_able(key)).await?;
        let lanes = versions.iter().zip(lanes).filter_map(|((id, _), lane)| Some((*id, lane?))).collect();
        let overlapping: Vec<ScheduleId> = entries
            .iter()
            .filter(|(_, entry)| entry.spec.overlap != Overlap::Allow)
            .map(|(due, _)| due.schedule)
            .collect();
        let live = match overlapping.as_slice() {
            [] => Vec::new(),
            some => node.store.live_of(some, QUEUE_MAX as u32).await?,
        };
        let mut names: HashMap<TenantId, HashSet<&String>> = HashMap::new();
        for (_, entry) in entries.iter().filter(|(_, entry)| !entry.spec.calendars.is_empty()) {
            names.entry(entry.record.tenant).or_default().extend(&entry.spec.calendars);
        }
        let mut calendars = HashMap::new();
        for (tenant, names) in names {
            calendars.insert(tenant, catalog.calendars(tenant, names, now).await?);
        }
        let live = overlapping.into_iter().zip(live).collect();
        let (pauses, part) = (catalog.pauses(), node.partition_for_new());
        let quotas = catalog.quotas_of(entries.iter().map(|(_, entry)| entry.record.tenant));
        Ok(Knowledge { jobs, lanes, live, calendars, quotas, pauses, part })
    }

    /// What each tenant that has a rate may make now: a run for each of its
    /// schedules that are due, if there is room.
    async fn budgets(
        &self,
        entries: &[(DueCursor, Arc<ScheduleEntry>)],
        quotas: &HashMap<TenantId, Arc<Quotas>>,
        now: Timestamp,
    ) -> Result<HashMap<TenantId, Budget>, StoreError> {
        let rates = quotas.iter().filter_map(|(tenant, quotas)| Some((*tenant, quotas.run_rate()?)));
        let want = |(tenant, rate): (TenantId, Rate)| {
            let due = entries.iter().filter(|(_, entry)| entry.record.tenant == tenant).count();
            Want { tenant, rate, runs: due as u32 }
        };
        let wants: Vec<Want> = rates.map(want).collect();
        let taken = if wants.is_empty() { Vec::new() } else { quota::take(&self.node, &wants, now).await? };
        let budgets = wants.iter().zip(taken);
        Ok(budgets.map(|(want, taken)| (want.tenant, self.turns.budget(want, taken, now))).collect())
    }

    /// Plans what was taken; what cannot be planned now is left to a new look.
    async fn plan(&mut self, taken: Vec<DueCursor>, now: Timestamp) -> Result<Option<Commit>, StoreError> {
        if taken.is_empty() {
            return Ok(None);
        }
        let planned = self.plan_taken(taken, now).await;
        // What was taken from memory must be read again.
        if planned.is_err() {
            self.cursors.doubt();
        }
        planned
    }

    async fn plan_taken(&mut self, taken: Vec<DueCursor>, now: Timestamp) -> Result<Option<Commit>, StoreError> {
        let wanted: Vec<(ScheduleId, i32)> = taken.iter().map(|due| (due.schedule, due.revision)).collect();
        let found = self.node.catalog.schedules(&wanted).await?;
        let mut entries = Vec::with_capacity(taken.len());
        let (mut items, mut of) = (Vec::with_capacity(taken.len()), Vec::with_capacity(taken.len()));
        for (due, found) in taken.into_iter().zip(found) {
            match found {
                ScheduleFound::Here(entry) => entries.push((due, entry)),
                ScheduleFound::Changed => self.cursors.doubt(),
                // It has no job revision to be guarded by, and nothing to fire.
                ScheduleFound::Broken(why) => self.report_broken(due.schedule, why),
            }
        }
        let known = self.know(&entries, now).await?;
        let mut budgets = self.budgets(&entries, &known.quotas, now).await?;
        let mut runs = 0;
        for (due, entry) in &entries {
            // Many that catch up together would make a transaction of millions.
            if runs >= self.node.options.fire_batch {
                self.cursors.put_back(*due);
                continue;
            }
            let tenant = entry.record.tenant;
            let allowance = budgets.get(&tenant).map(Budget::allowance);
            match known.item(&self.node, *due, entry, allowance, now) {
                Ok(item) => {
                    runs += item.runs.len();
                    if let Some(budget) = budgets.get_mut(&tenant) {
                        self.turns.charge(budget, tenant, &item, now);
                    }
                    items.push(item);
                    of.push((entry.record.job, entry.record.tenant));
                }
                Err(Unfireable::NoJob) => self.without_job(due.schedule),
                Err(Unfireable::NoCalendar(why)) => self.report_broken(due.schedule, why),
            }
        }
        for (tenant, budget) in budgets {
            self.node.meter.give_back(tenant, budget.left, now);
        }
        if items.is_empty() {
            return Ok(None);
        }
        Ok(Some(Commit { write: self.node.write(now), pauses_revision: known.pauses.revision, items, of }))
    }

    /// Its job was deleted a moment ago, so that the next look does not find it; or, where
    /// it does, the job cannot be read.
    fn without_job(&mut self, schedule: ScheduleId) {
        if self.jobless.len() >= BROKEN_MAX {
            self.jobless.clear();
        }
        if self.jobless.insert(schedule) {
            self.cursors.doubt();
        } else {
            self.report_broken(schedule, "its job cannot be read".into());
        }
    }

    fn report_broken(&mut self, schedule: ScheduleId, why: String) {
        if self.broken.len() >= BROKEN_MAX {
            self.broken.clear();
        }
        if !self.broken.insert(schedule) {
            return;
        }
        tracing::error!(%schedule, why, "a schedule cannot be fired");
        self.node.events.emit(|| Event::Found(Finding::ScheduleBroken { schedule, why }));
    }

    fn take_answers(&mut self, Written { commit, answers }: Written) -> Result<usize, StoreError> {
        match answers {
            Ok(answers) => Ok(self.take_fired(commit, answers)),
            Err(error) => {
                self.cursors.doubt();
                if is_unknown(&error) {
                    self.pending.push(commit);
                }
                Err(error)
            }
        }
    }

    /// Asks again for the answers that were lost.
    async fn ask_again(&mut self) -> Result<(), StoreError> {
        let mut failed = None;
        for commit in std::mem::take(&mut self.pending) {
            let written = write(Arc::clone(&self.node), commit).await;
            failed = self.take_answers(written).err().or(failed);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Fires what is due, batch by batch, the next of them planned while others
    /// are written: how many schedules were taken from memory, and how many fired.
    async fn fire_due(&mut self, now: Timestamp) -> Result<(usize, usize), StoreError> {
        let mut writing = FuturesUnordered::new();
        let (mut wanted, mut done, mut batches) = (0, 0, 0);
        let mut failed = None;
        loop {
            let goes_on = writing.len() < WRITES_MAX && batches < BATCHES_MAX && !self.cursors.is_doubted();
            let taken = if goes_on { self.cursors.take(self.node.options.fire_batch, now) } else { Vec::new() };
            let mut written = Vec::new();
            if taken.is_empty() {
                let Some(next) = writing.next().await else { break };
                written.push(next);
            } else {
                (wanted, batches) = (wanted + taken.len(), batches + 1);
                match beside(self.plan(taken, now), &mut writing, &mut written).await {
                    Ok(commit) => writing.extend(commit.map(|commit| write(Arc::clone(&self.node), commit))),
                    Err(error) => failed = Some(error),
                }
            }
            for written in written {
                match self.take_answers(written) {
                    Ok(fired) => done += fired,
                    Err(error) => failed = Some(error),
                }
            }
        }
        failed.map_or(Ok((wanted, done)), Err)
    }

    fn take_fired(&mut self, commit: Commit, answers: Vec<Fired>) -> usize {
        // How late it was at worst: the time is known within bounds.
        let committed_at = self.node.clock.latest();
        let (mut made, mut made_answers) = (Vec::new(), Vec::new());
        let (mut done, mut stops) = (0, HashSet::new());
        for ((item, of), answer) in commit.items.into_iter().zip(commit.of).zip(answers) {
            let Fired::Fired(answers) = answer else {
                self.node.catalog.forget(item.due.schedule);
                self.cursors.doubt();
                continue;
            };
            done += 1;
            self.count(&item, of, &answers, committed_at);
            self.cursors.fired(&item, &answers);
            if !item.cancel.is_empty() {
                stops.insert(of.1);
            }
            made.extend(item.runs);
            made_answers.extend(answers);
        }
        self.node.asked_to_stop(&stops);
        take_made(&self.node, &commit.write, made, &made_answers);
        done
    }

    fn count(&self, item: &FireItem, of: (JobId, TenantId), answers: &[Enqueued], committed_at: Timestamp) {
        let stats = &self.node.stats;
        let (schedule, (job, tenant)) = (item.due.schedule, of);
        let mut skipped: u64 = item.skips.iter().map(|skip| skip.count).sum();
        for (run, answer) in item.runs.iter().zip(answers) {
            let Enqueued::Made { .. } = answer else {
                skipped += 1;
                continue;
            };
            stats.fired.add(1);
            stats.lateness.add(run.ready_at.duration_until(committed_at));
            let id = run.id;
            let planned_at = run.trigger.planned_at.unwrap_or(run.ready_at);
            self.node.events.emit(|| Event::ScheduleFired { schedule, job, tenant, planned_at, run: id });
        }
        if skipped > 0 {
            stats.skipped.add(skipped as usize);
            self.node.events.emit(|| Event::InstantsSkipped { schedule, job, tenant, count: skipped });
        }
    }
}

#[async_trait]
impl Stage for Fire {
    fn name(&self) -> &'static str {
        "fire"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        self.ask_again().await?;
        if self.cursors.must_look(self.node.territory.generation(), now) {
            self.look(now).await?;
        }
        let (wanted, done) = self.fire_due(now).await?;
        let stuck = wanted > 0 && done == 0;
        let more = !stuck && (self.cursors.is_doubted() || self.cursors.may_be_due(now));
        let next = self.cursors.next_at().into_iter().chain([self.cursors.look_at()]).min().filter(|_| !stuck);
        Ok(PassReport { done, more, next_at: Some(next.unwrap_or_else(|| STUCK_WAIT.after(now))) })
    }

    fn doubt(&mut self) {
        self.cursors.doubt();
    }

    fn stepped(&mut self, _now: Timestamp) {
        self.cursors.doubt();
        self.turns.clear();
    }
}
