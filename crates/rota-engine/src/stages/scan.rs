//! Scan: looks for what cannot be, puts it right, and says so.
//!
//! Schedules that nobody fired in time; `after_finish` schedules whose run ended
//! without arming them; slots whose counters do not fit the live runs. The
//! gauge of findings reads 0 as long as everything else works.
//!
//! A pass looks at a page of schedules and goes on from there at the next, so
//! that ten million of them cost no more than a few.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    fire::{Progress, rearm},
    ids::{RunId, ScheduleId},
    ports::Topic,
    run::RunState,
    schedule::ScheduleSpec,
    store::{ScheduleGuard, SchedulePut, ScheduleQuery, ScheduleRecord, ScheduleSaved, StoreError},
    timing::Schedule,
};

use super::{PassReport, Stage};
use crate::{
    events::{Event, Finding},
    node::Node,
};

/// Schedules looked at in one pass.
const PAGE: u32 = 1_000;
/// Overdue cursors named in one pass.
const OVERDUE_MAX: u32 = 100;
/// Slots are recounted at every so many passes: it looks at every live run.
const RECOUNT_EVERY: u32 = 10;

pub struct Scan {
    node: Arc<Node>,
    after: Option<ScheduleId>,
    passes: u32,
}

impl Scan {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, after: None, passes: 0 }
    }

    fn found(&self, finding: Finding) {
        tracing::warn!(?finding, "found what cannot be");
        self.node.events.tell(|| Event::Found(finding));
    }

    async fn overdue(&self, now: Timestamp) -> Result<usize, StoreError> {
        let parts = self.node.territory.parts();
        let before = self.node.options.overdue_after.before(now);
        let overdue = self.node.store.due(&parts, before, OVERDUE_MAX).await?;
        for due in &overdue {
            self.found(Finding::ScheduleOverdue { schedule: due.schedule, due_at: due.cursor.due_at });
        }
        self.node.stats.overdue.set(overdue.len());
        if !overdue.is_empty() {
            self.node.hints.wake(Topic::Schedules);
        }
        Ok(overdue.len())
    }

    /// Arms the `after_finish` schedules of a page whose run has ended.
    async fn unarmed(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let query = ScheduleQuery { after: self.after, limit: PAGE, ..ScheduleQuery::default() };
        let page = self.node.store.list_schedules(&query).await?;
        self.after = page.next;
        let armed: Vec<(ScheduleRecord, RunId)> =
            page.schedules.into_iter().filter_map(|record| Some((record.clone(), record.armed_by?))).collect();
        if armed.is_empty() {
            return Ok(0);
        }
        let runs: Vec<RunId> = armed.iter().map(|(_, run)| *run).collect();
        let records = self.node.store.runs(&runs).await?;
        let mut repaired = 0;
        for ((schedule, _), run) in armed.iter().zip(records) {
            let ended_at = match run.map(|record| record.run.state) {
                None => now,
                Some(RunState::Finished { at, .. }) => at,
                Some(_) => continue,
            };
            repaired += usize::from(self.arm(schedule, ended_at, now).await?);
        }
        Ok(repaired)
    }

    async fn arm(&self, record: &ScheduleRecord, ended_at: Timestamp, now: Timestamp) -> Result<bool, StoreError> {
        // Its run may have just ended, and armed it, after the page was read.
        if self.node.store.cursors(&[record.id]).await?.pop().flatten().is_some() {
            return Ok(false);
        }
        let Ok(spec) = serde_json::from_str::<ScheduleSpec>(&record.spec) else { return Ok(false) };
        let Ok(schedule) = Schedule::compile(&spec, &record.id.seed()) else { return Ok(false) };
        let behind: Progress = record.progress;
        let Some(cursor) = rearm(&schedule, record.id, behind, ended_at) else { return Ok(false) };
        let put = SchedulePut {
            id: record.id,
            job: record.job,
            tenant: record.tenant,
            name: record.name.clone(),
            spec: record.spec.clone(),
            enabled: record.enabled,
            after_finish_ms: spec.after_finish.map(rota_core::duration::Span::as_millis),
            cursor: Some(cursor),
            skips: Vec::new(),
            guard: Some(ScheduleGuard { revision: record.revision, cursor: None }),
        };
        let saved = self.node.store.put_schedules(&self.node.write(now), &[put]).await?;
        let repaired = matches!(saved.first(), Some(ScheduleSaved::Saved { .. }));
        if repaired {
            self.found(Finding::ScheduleUnarmed { schedule: record.id });
            self.node.hints.wake(Topic::Schedules);
        }
        Ok(repaired)
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
        }
        if self.node.territory.is_steward() {
            done += self.unarmed(now).await?;
            if self.passes.is_multiple_of(RECOUNT_EVERY) {
                done += self.slots(now).await?;
            }
            self.passes = self.passes.wrapping_add(1);
        }
        self.node.stats.findings.set(done);
        Ok(PassReport { done, more: false, next_at })
    }
}
