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

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream::FuturesUnordered};
use jiff::Timestamp;
use rota_core::{
    calendar::{Calendar, named},
    duration::Span,
    fire::{self, Allowance, Input, Live, PUT_OFF_MAX, QUEUE_MAX, Start},
    ids::{JobId, LaneId, Partition, ScheduleId, TenantId},
    job::template::has_tags,
    quota::Quotas,
    rate::Rate,
    run::{CancelAsk, NewRun, Source, Status, Trigger},
    schedule::Overlap,
    store::{DueCursor, Enqueued, FireItem, Fired, LiveRun, Pauses, StoreError, Write},
};
use serde_json::{Value, json};

use super::{PassReport, Stage, is_unknown};
use crate::{
    catalog::{JobEntry, ScheduleEntry, ScheduleFound},
    events::{Event, Finding},
    executors::render::{RenderError, Values},
    making::{Blueprint, Keys, Unfit, refused_run, take_made},
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
    due: BTreeMap<(Timestamp, ScheduleId), DueCursor>,
    /// Memory holds every cursor that was due up to here at the last look.
    covered_to: Timestamp,
    look_at: Timestamp,
    generation: u64,
    doubted: bool,
    /// Commits whose answers were lost.
    pending: Vec<Commit>,
    /// Schedules that were reported as broken.
    broken: HashSet<ScheduleId>,
    /// Schedules whose job was not there when they were to be fired.
    jobless: HashSet<ScheduleId>,
    /// Until when each tenant's rate is promised to instants that were put off.
    promised: HashMap<TenantId, Timestamp>,
}

/// What one batch may make of a tenant's runs.
struct Budget {
    rate: Rate,
    left: u32,
    more_at: Timestamp,
}

impl Budget {
    fn allowance(&self) -> Allowance {
        Allowance { per_minute: self.rate.runs, runs: u64::from(self.left), more_at: self.more_at }
    }
}

/// One batch on its way to the store.
struct Commit {
    write: Write,
    pauses_revision: i64,
    items: Vec<FireItem>,
    /// Whose each item is.
    of: Vec<(JobId, TenantId)>,
}

/// All that planning a batch needs.
struct Knowledge {
    jobs: HashMap<JobId, Arc<JobEntry>>,
    lanes: HashMap<JobId, LaneId>,
    live: HashMap<ScheduleId, Vec<LiveRun>>,
    calendars: HashMap<TenantId, Arc<HashMap<String, Calendar>>>,
    /// Of the tenants that have any.
    quotas: HashMap<TenantId, Arc<Quotas>>,
    pauses: Arc<Pauses>,
    part: Partition,
}

impl Fire {
    pub fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            due: BTreeMap::new(),
            covered_to: Timestamp::MIN,
            look_at: Timestamp::MIN,
            generation: u64::MAX,
            doubted: true,
            pending: Vec::new(),
            broken: HashSet::new(),
            jobless: HashSet::new(),
            promised: HashMap::new(),
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
        self.covered_to = match found.last() {
            Some(last) if found.len() >= options.cursors_max as usize => last.cursor.due_at,
            _ => until,
        };
        self.due = found.into_iter().map(|due| ((due.cursor.due_at, due.schedule), due)).collect();
        self.look_at = options.look_every.after(now);
        (self.generation, self.doubted) = (generation, false);
        Ok(())
    }

    fn must_look(&self, now: Timestamp) -> bool {
        let drained = self.due.is_empty() && self.covered_to <= now;
        self.doubted || drained || now >= self.look_at || self.generation != self.node.territory.generation()
    }

    fn take_due(&mut self, now: Timestamp) -> Vec<DueCursor> {
        let mut taken = Vec::new();
        while taken.len() < self.node.options.fire_batch
            && let Some(first) = self.due.first_entry()
            && first.key().0 <= now
        {
            taken.push(first.remove());
        }
        taken
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
        let budget = |(want, taken): (&Want, rota_core::rate::Taken)| {
            (want.tenant, Budget { rate: want.rate, left: taken.tokens, more_at: self.turn(want, taken.next_at, now) })
        };
        Ok(wants.iter().zip(taken).map(budget).collect())
    }

    /// When the next instant of a tenant that is put off has its turn: behind
    /// those that were put off before.
    fn turn(&self, want: &Want, next_at: Timestamp, now: Timestamp) -> Timestamp {
        let promised = self.promised.get(&want.tenant).map(|at| want.rate.after(*at, 1));
        within(promised.map_or(next_at, |at| at.max(next_at)), now)
    }

    /// Takes what an item made off its tenant's budget, and gives the turn that
    /// it was put off to away.
    fn charge(&mut self, budget: &mut Budget, tenant: TenantId, item: &FireItem, now: Timestamp) {
        budget.left = budget.left.saturating_sub(item.runs.len() as u32);
        let put_off = item.next.is_some_and(|next| next.due_at == budget.more_at);
        if put_off && budget.left == 0 {
            self.promised.insert(tenant, budget.more_at);
            budget.more_at = within(budget.rate.after(budget.more_at, 1), now);
        }
    }

    /// Plans what was taken; what cannot be planned now is left to a new look.
    async fn plan(&mut self, taken: Vec<DueCursor>, now: Timestamp) -> Result<Option<Commit>, StoreError> {
        if taken.is_empty() {
            return Ok(None);
        }
        let planned = self.plan_taken(taken, now).await;
        // What was taken from memory must be read again.
        self.doubted |= planned.is_err();
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
                ScheduleFound::Changed => self.doubted = true,
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
                self.due.insert((due.cursor.due_at, due.schedule), *due);
                continue;
            }
            let tenant = entry.record.tenant;
            let allowance = budgets.get(&tenant).map(Budget::allowance);
            match known.item(&self.node, *due, entry, allowance, now) {
                Ok(item) => {
                    runs += item.runs.len();
                    if let Some(budget) = budgets.get_mut(&tenant) {
                        self.charge(budget, tenant, &item, now);
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
            self.doubted = true;
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
                self.doubted = true;
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
            let goes_on = writing.len() < WRITES_MAX && batches < BATCHES_MAX && !self.doubted;
            let taken = if goes_on { self.take_due(now) } else { Vec::new() };
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
                self.doubted = true;
                continue;
            };
            done += 1;
            self.count(&item, of, &answers, committed_at);
            self.remember_next(&item, &answers);
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

    /// The next cursor, if memory is to hold it. The store counts a refused run
    /// differently from the plan; then its own cursor is read.
    fn remember_next(&mut self, item: &FireItem, answers: &[Enqueued]) {
        if answers.iter().any(|answer| !matches!(answer, Enqueued::Made { .. })) {
            self.doubted = true;
        } else if let Some(next) = item.next
            && next.due_at <= self.covered_to
        {
            self.due.insert((next.due_at, item.due.schedule), DueCursor { cursor: next, ..item.due });
        }
    }
}

/// A batch with what the store answered to it.
struct Written {
    commit: Commit,
    answers: Result<Vec<Fired>, StoreError>,
}

async fn write(node: Arc<Node>, commit: Commit) -> Written {
    let writing = node.store.fire(&commit.write, commit.pauses_revision, &commit.items);
    let answers = node.timed(commit.items.len(), writing).await;
    Written { commit, answers }
}

/// Does `work` while others are written.
async fn beside<T>(
    work: impl Future<Output = T>,
    writing: &mut FuturesUnordered<impl Future<Output = Written>>,
    written: &mut Vec<Written>,
) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            // What is to be written comes first: planning is long.
            biased;
            Some(next) = writing.next() => written.push(next),
            done = &mut work => return done,
        }
    }
}

/// A moment to come that a cursor can be put off to. Stores keep microseconds.
fn within(at: Timestamp, now: Timestamp) -> Timestamp {
    let at = at.clamp(Span::millis(1).after(now), PUT_OFF_MAX.after(now));
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

/// Why a schedule that is due is left as it is. What it owes it goes on owing.
enum Unfireable {
    NoJob,
    NoCalendar(String),
}

impl Knowledge {
    fn item(
        &self,
        node: &Node,
        due: DueCursor,
        entry: &ScheduleEntry,
        allowance: Option<Allowance>,
        now: Timestamp,
    ) -> Result<FireItem, Unfireable> {
        let job = self.jobs.get(&entry.record.job).ok_or(Unfireable::NoJob)?;
        let lane = *self.lanes.get(&entry.record.job).ok_or(Unfireable::NoJob)?;
        let pauses = entry.pauses(job, &self.pauses);
        let empty = Vec::new();
        let live = self.live.get(&due.schedule).unwrap_or(&empty);
        let waiting = live.iter().filter(|run| run.status == Status::Blocked).count() as u64;
        let calendars = self.calendars_of(entry)?;
        let input = Input {
            schedule: &entry.schedule,
            id: due.schedule,
            cursor: due.cursor,
            pauses: &pauses,
            live: Live { active: live.len() as u64 - waiting, waiting },
            calendars: &calendars,
            allowance,
        };
        let plan = fire::plan(&input, now);
        let (mut cancel, mut runs) = (HashSet::new(), Vec::with_capacity(plan.runs.len()));
        for planned in &plan.runs {
            if planned.start == Start::Replacing {
                cancel.extend(live.iter().map(|run| run.id));
            }
            let follows = planned.start != Start::Free;
            runs.push(NewRun { follows, ..self.run(node, job, entry, lane, planned, now) });
        }
        let ask = || CancelAsk {
            by: None,
            reason: Some("a newer run of the same schedule".into()),
            grace: job.version.document.cancel_grace(),
        };
        Ok(FireItem {
            due,
            job: job.record.id,
            job_revision: job.record.revision,
            next: plan.next,
            next_if_refused: plan.next_if_refused,
            runs,
            skips: plan.skips,
            cancel_ask: (!cancel.is_empty()).then(ask),
            cancel: cancel.into_iter().collect(),
        })
    }

    fn calendars_of(&self, entry: &ScheduleEntry) -> Result<Vec<&Calendar>, Unfireable> {
        // Those of its tenant were read if it names any.
        let Some(all) = self.calendars.get(&entry.record.tenant) else { return Ok(Vec::new()) };
        named(&entry.spec.calendars, all)
            .map_err(|missing| Unfireable::NoCalendar(missing.first().map(ToString::to_string).unwrap_or_default()))
    }

    fn run(
        &self,
        node: &Node,
        job: &JobEntry,
        entry: &ScheduleEntry,
        lane: LaneId,
        planned: &fire::PlannedRun,
        now: Timestamp,
    ) -> NewRun {
        let trigger = Trigger {
            schedule: Some(entry.record.id),
            planned_at: Some(planned.planned_at),
            ..Trigger::plain(Source::Schedule)
        };
        let payload = payload_of(node, job, entry, planned.planned_at);
        let refused = payload.as_ref().err().map(ToString::to_string);
        let blueprint = Blueprint {
            tenant: entry.record.tenant,
            job: &job.version,
            lane,
            part: self.part,
            quotas: self.quotas.get(&entry.record.tenant).map(|quotas| &**quotas),
            payload: payload.unwrap_or(None),
            labels: entry.spec.labels.clone(),
            ready_at: planned.due_at,
            trigger,
            priority: None,
        };
        let keys = match refused {
            Some(why) => Err(Unfit::Payload(why)),
            None => blueprint.keys(node, now),
        };
        let rearms = entry.spec.after_finish.is_some();
        match keys {
            Ok(keys) => NewRun { rearms, ..blueprint.run(node, keys, now) },
            // The instant is not lost: its run is made, and fails with the reason.
            Err(why) => NewRun { rearms, ..refused_run(blueprint.run(node, Keys::default(), now), &why) },
        }
    }
}

/// A schedule's payload, with what its templates say of this instant.
pub(crate) fn payload_of(
    node: &Node,
    job: &JobEntry,
    entry: &ScheduleEntry,
    planned_at: Timestamp,
) -> Result<Option<Value>, RenderError> {
    let payload = &entry.spec.payload;
    if payload.is_null() || !has_tags(&payload.to_string()) {
        return Ok((!payload.is_null()).then(|| payload.clone()));
    }
    let about = json!({ "name": entry.spec.name, "planned_at": planned_at, "timezone": entry.spec.timezone });
    let values = Values::new()
        .with("schedule", about)
        .with("labels", &entry.spec.labels)
        .with("vars", &job.version.document.vars);
    node.renderer.value(payload, &values).map(Some)
}

#[async_trait]
impl Stage for Fire {
    fn name(&self) -> &'static str {
        "fire"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        self.ask_again().await?;
        if self.must_look(now) {
            self.look(now).await?;
        }
        let (wanted, done) = self.fire_due(now).await?;
        let stuck = wanted > 0 && done == 0;
        let next = self.due.keys().next().map(|(at, _)| *at);
        let known_to = next.unwrap_or(self.covered_to);
        let more = !stuck && (self.doubted || known_to <= now);
        let next = next.into_iter().chain([self.look_at]).min().filter(|_| !stuck);
        Ok(PassReport { done, more, next_at: Some(next.unwrap_or_else(|| STUCK_WAIT.after(now))) })
    }

    fn doubt(&mut self) {
        self.doubted = true;
    }

    fn stepped(&mut self, _now: Timestamp) {
        self.doubted = true;
        self.promised.clear();
    }
}
