//! Scan: looks for what cannot be, puts it right, and says so.
//!
//! Schedules that nobody fired in time, and those that nothing will ever fire:
//! they have no cursor, whether or not a run should have left them one. Runs marked
//! as running that nobody executes; slots whose counters do not fit the live runs;
//! runs that wait for others which are gone. The gauge of findings reads 0 as long
//! as everything else works.
//!
//! It also looks how long the oldest queued run waits, for those who watch.
//!
//! A pass looks at a page of its partitions' schedules and goes on from there at
//! the next, so that ten million of them cost no more than a few.

use std::{collections::HashSet, sync::Arc};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    fire,
    ids::{RunId, ScheduleId},
    ports::Topic,
    run::{Lease, Run, RunState},
    schedule::ScheduleSpec,
    store::{By, OpenDead, RunRecord, SchedulePut, ScheduleRecord, ScheduleSaved, StoreError},
    timing::Schedule,
};

use super::{PassReport, Stage};
use crate::{
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
/// Dead letters that are counted for those who watch; more are as many.
const DEAD_COUNTED_MAX: u32 = 100_000;

pub struct Scan {
    node: Arc<Node>,
    after: Option<ScheduleId>,
    passes: u32,
    /// Leases that nobody here had a hand on at the last scan.
    strangers: HashSet<Lease>,
}

impl Scan {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, after: None, passes: 0, strangers: HashSet::new() }
    }

    fn found(&self, finding: Finding) {
        tracing::error!(?finding, "found what cannot be");
        self.node.events.tell(|| Event::Found(finding));
    }

    /// Schedules that nobody fired in time. Those of partitions that were taken only
    /// just now are late because nobody was there, and are being caught up: they are
    /// counted, but nothing is wrong with them.
    async fn overdue(&self, now: Timestamp) -> Result<usize, StoreError> {
        let parts = self.node.territory.parts();
        let before = self.node.options.overdue_after.before(now);
        let mut overdue = self.node.store.due(&parts, before, OVERDUE_MAX).await?;
        self.node.stats.overdue.set(overdue.len());
        if !overdue.is_empty() {
            self.node.hints.wake(Topic::Schedules);
        }
        let table = self.node.territory.table();
        overdue.retain(|due| table[usize::from(due.part.0)].is_some_and(|held| held.taken_at <= before));
        if let Some(first) = overdue.first() {
            let (schedule, due_at) = (first.schedule, first.cursor.due_at);
            tracing::error!(count = overdue.len(), %schedule, %due_at, "nobody fired schedules in time");
        }
        for due in &overdue {
            let (schedule, due_at) = (due.schedule, due.cursor.due_at);
            self.node.events.tell(|| Event::Found(Finding::ScheduleOverdue { schedule, due_at }));
        }
        Ok(overdue.len())
    }

    /// Arms the schedules of a page that should have a cursor and have none.
    async fn unarmed(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let parts = self.node.territory.parts();
        let page = self.node.store.unarmed(&parts, self.after, SCHEDULES).await?;
        self.after = page.next;
        let mut repaired = 0;
        for ids in page.schedules.chunks(RUNS as usize) {
            let records = self.node.store.schedules(ids).await?;
            let records: Vec<ScheduleRecord> = records.into_iter().flatten().collect();
            let runs: Vec<RunId> = records.iter().filter_map(|record| record.armed_by).collect();
            let mut runs = self.node.store.runs(&runs).await?.into_iter();
            for record in &records {
                let ended_at = match record.armed_by.and_then(|_| runs.next()) {
                    None => None,
                    Some(None) => Some(now),
                    Some(Some(RunRecord { run: Run { state: RunState::Finished { at, .. }, .. }, .. })) => Some(at),
                    // It will arm it.
                    Some(Some(_)) => continue,
                };
                repaired += usize::from(self.arm(record, ended_at, now).await?);
            }
        }
        Ok(repaired)
    }

    /// Arms a schedule, from the end of its last run if that should have done it.
    /// Nothing is done to one that has ended.
    async fn arm(
        &self,
        record: &ScheduleRecord,
        ended_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let Ok(spec) = serde_json::from_str::<ScheduleSpec>(&record.spec) else { return Ok(false) };
        let Ok(schedule) = Schedule::compile(&spec, &record.id.seed()) else { return Ok(false) };
        let cursor = match ended_at {
            Some(ended_at) => fire::rearm(&schedule, record.id, record.progress, ended_at),
            None => fire::arm(&schedule, record.id, record.progress, now),
        };
        let Some(cursor) = cursor else { return Ok(false) };
        let put = SchedulePut::moving(record.clone(), &spec, None, cursor);
        let saved = self.node.store.put_schedules(&self.node.write(now), &[put]).await?;
        let repaired = matches!(saved.first(), Some(ScheduleSaved::Saved { .. }));
        if repaired {
            self.found(Finding::ScheduleUnarmed { schedule: record.id });
            self.node.hints.wake(Topic::Schedules);
        }
        Ok(repaired)
    }

    /// Runs of this node's partitions that are marked as running and that
    /// nobody here executes. One that is so twice is not just on its way.
    async fn ownerless(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let marked = self.node.store.inherited(&self.node.territory.parts(), RUNS).await?;
        let strangers: Vec<Run> = marked.into_iter().filter(|run| self.node.desk.is_flying(run.id).is_none()).collect();
        let before = std::mem::replace(&mut self.strangers, strangers.iter().map(Run::lease).collect());
        let mut ended = Vec::new();
        for run in strangers.into_iter().filter(|run| before.contains(&run.lease())) {
            let Some(by) = self.node.territory.held(run.part).map(|held| By::Owner(held.epoch)) else { continue };
            let Ok(change) = run.lose(self.node.options.losses_max, now) else { continue };
            if self.node.desk.fly(&run, by) {
                self.found(Finding::RunOwnerless { run: run.id });
                let end = End::Decided(Box::new(change));
                ended.push(Ended { run, by, end, at: now, job: None, executed: false });
            }
        }
        let count = ended.len();
        self.node.post(ended);
        Ok(count)
    }

    async fn joins(&self, now: Timestamp) -> Result<usize, StoreError> {
        let count = self.node.store.mend_joins(&self.node.write(now)).await?;
        if count > 0 {
            self.found(Finding::JoinsStuck { count });
            self.node.hints.wake(Topic::Ready);
        }
        Ok(count as usize)
    }

    async fn slots(&self, now: Timestamp) -> Result<usize, StoreError> {
        let count = self.node.store.recount_slots(&self.node.write(now)).await?;
        if count > 0 {
            self.found(Finding::SlotsLeaked { count });
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
        let next_at = Some(self.node.options.scan_every.after(now));
        let mut done = 0;
        if !self.node.territory.is_empty() && !self.node.is_quiet(now) {
            done += self.overdue(now).await?;
            done += self.ownerless(now).await?;
            done += self.unarmed(now).await?;
        }
        let (mut oldest, mut dead) = (None, OpenDead::default());
        if self.node.territory.is_steward() {
            oldest = self.node.store.oldest_queued().await?;
            dead = self.node.store.open_dead(DEAD_COUNTED_MAX).await?;
            if self.passes.is_multiple_of(RECOUNT_EVERY) {
                done += self.slots(now).await?;
                done += self.joins(now).await?;
            }
            self.passes = self.passes.wrapping_add(1);
        }
        self.node.stats.oldest_queued.set(oldest);
        self.node.stats.dead_open.set(dead.count as usize);
        self.node.stats.oldest_dead.set(dead.oldest_at);
        self.node.stats.findings.set(done);
        Ok(PassReport { done, more: false, next_at })
    }
}
