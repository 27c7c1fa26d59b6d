//! A store that can be told to be away, or to lose the answer of its next
//! write after having done it.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    dispatch::{Pair, Window},
    fire::Cursor,
    ids::{JobId, LaneId, NodeId, Partition, RunId, ScheduleId, TenantId, WorkerId},
    lane::{Lane, LaneKey, LaneMode},
    order::OrderKey,
    rate::Taken,
    rollup::Rollup,
    run::{CancelAsk, Lease, NewRun, Run},
    store::*,
};

pub struct Faulty {
    inner: Arc<dyn Store>,
    away: AtomicBool,
    lose: AtomicUsize,
    pub writes: AtomicUsize,
    /// Requests as another's transaction would have left them.
    inbox: Mutex<Vec<InboxItem>>,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            away: AtomicBool::new(false),
            lose: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            inbox: Mutex::default(),
        }
    }

    /// Puts a request into the inbox; its port has no way to.
    pub fn put_inbox(&self, at: Timestamp, body: &str) {
        let mut inbox = self.inbox.lock().unwrap();
        let id = inbox.len() as i64 + 1;
        inbox.push(InboxItem { id, at, body: body.into() });
    }

    pub fn inbox_len(&self) -> usize {
        self.inbox.lock().unwrap().len()
    }

    /// Nothing is answered while it is away.
    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }

    /// The next writes happen, and their answers are lost.
    pub fn lose_answers(&self, count: usize) {
        self.lose.store(count, Ordering::SeqCst);
    }

    fn here(&self) -> Result<(), StoreError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::NotApplied { what: "be there", source: "away".into() });
        }
        Ok(())
    }

    async fn write<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.here()?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        let answer = work.await?;
        let lost = self.lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if lost {
            return Err(StoreError::OutcomeUnknown { what: "tell", source: "the answer was lost".into() });
        }
        Ok(answer)
    }
}

#[async_trait]
impl JobStore for Faulty {
    async fn put_tenants(&self, tenants: &[TenantPut], now: Timestamp) -> Result<Vec<TenantId>, StoreError> {
        self.here()?;
        self.inner.put_tenants(tenants, now).await
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        self.here()?;
        self.inner.tenants().await
    }

    async fn lanes(&self, keys: &[LaneKey], mode: LaneMode) -> Result<Vec<Lane>, StoreError> {
        self.here()?;
        self.inner.lanes(keys, mode).await
    }

    async fn all_lanes(&self) -> Result<Vec<Lane>, StoreError> {
        self.here()?;
        self.inner.all_lanes().await
    }

    async fn turn_lane(&self, lane: LaneId, mode: LaneMode) -> Result<Lane, StoreError> {
        self.here()?;
        self.inner.turn_lane(lane, mode).await
    }

    async fn put_jobs(&self, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
        self.write(self.inner.put_jobs(write, jobs)).await
    }

    async fn delete_jobs(&self, write: &Write, jobs: &[JobId]) -> Result<Vec<Guarded>, StoreError> {
        self.write(self.inner.delete_jobs(write, jobs)).await
    }

    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Option<JobRecord>>, StoreError> {
        self.here()?;
        self.inner.jobs(ids).await
    }

    async fn find_jobs(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<JobRecord>>, StoreError> {
        self.here()?;
        self.inner.find_jobs(names).await
    }

    async fn list_jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        self.here()?;
        self.inner.list_jobs(query).await
    }

    async fn job_versions(&self, job: JobId, limit: u32) -> Result<Vec<JobVersion>, StoreError> {
        self.here()?;
        self.inner.job_versions(job, limit).await
    }

    async fn job_document(&self, job: JobId, version: i32) -> Result<Option<String>, StoreError> {
        self.here()?;
        self.inner.job_document(job, version).await
    }

    async fn reserve_schedules(&self, count: u32) -> Result<ScheduleId, StoreError> {
        self.here()?;
        self.inner.reserve_schedules(count).await
    }

    async fn put_schedules(&self, write: &Write, schedules: &[SchedulePut]) -> Result<Vec<ScheduleSaved>, StoreError> {
        self.write(self.inner.put_schedules(write, schedules)).await
    }

    async fn delete_schedules(&self, write: &Write, schedules: &[ScheduleId]) -> Result<Vec<Guarded>, StoreError> {
        self.write(self.inner.delete_schedules(write, schedules)).await
    }

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<ScheduleRecord>>, StoreError> {
        self.here()?;
        self.inner.schedules(ids).await
    }

    async fn find_schedules(&self, names: &[(JobId, String)]) -> Result<Vec<Option<ScheduleRecord>>, StoreError> {
        self.here()?;
        self.inner.find_schedules(names).await
    }

    async fn list_schedules(&self, query: &ScheduleQuery) -> Result<SchedulePage, StoreError> {
        self.here()?;
        self.inner.list_schedules(query).await
    }

    async fn cursors(&self, schedules: &[ScheduleId]) -> Result<Vec<Option<Cursor>>, StoreError> {
        self.here()?;
        self.inner.cursors(schedules).await
    }

    async fn skips(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<SkipRecord>, StoreError> {
        self.here()?;
        self.inner.skips(schedule, before, limit).await
    }

    async fn set_pauses(
        &self,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, StoreError> {
        self.write(self.inner.set_pauses(write, targets, pause)).await
    }

    async fn pauses(&self) -> Result<Pauses, StoreError> {
        self.here()?;
        self.inner.pauses().await
    }

    async fn put_calendars(&self, calendars: &[CalendarPut], now: Timestamp) -> Result<(), StoreError> {
        self.here()?;
        self.inner.put_calendars(calendars, now).await
    }

    async fn calendars(&self, tenant: TenantId) -> Result<Vec<Calendar>, StoreError> {
        self.here()?;
        self.inner.calendars(tenant).await
    }
}

#[async_trait]
impl RunStore for Faulty {
    async fn due(&self, parts: &[Partition], until: Timestamp, limit: u32) -> Result<Vec<DueCursor>, StoreError> {
        self.here()?;
        self.inner.due(parts, until, limit).await
    }

    async fn live_of(&self, schedules: &[ScheduleId]) -> Result<Vec<Vec<LiveRun>>, StoreError> {
        self.here()?;
        self.inner.live_of(schedules).await
    }

    async fn fire(&self, write: &Write, pauses_revision: i64, items: &[FireItem]) -> Result<Vec<Fired>, StoreError> {
        self.write(self.inner.fire(write, pauses_revision, items)).await
    }

    async fn enqueue(&self, write: &Write, runs: &[NewRun], inbox: &[i64]) -> Result<Vec<Enqueued>, StoreError> {
        let answers = self.write(self.inner.enqueue(write, runs, &[])).await;
        if answers.is_ok() {
            self.inbox.lock().unwrap().retain(|item| !inbox.contains(&item.id));
        }
        answers
    }

    async fn inbox(&self, limit: u32) -> Result<Vec<InboxItem>, StoreError> {
        self.here()?;
        Ok(self.inbox.lock().unwrap().iter().take(limit as usize).cloned().collect())
    }

    async fn promote(&self, write: &Write, parts: &[Partition], limit: u32) -> Result<Promoted, StoreError> {
        self.write(self.inner.promote(write, parts, limit)).await
    }

    async fn ready_pairs(&self, lanes: &[LaneId]) -> Result<Vec<(Pair, OrderKey)>, StoreError> {
        self.here()?;
        self.inner.ready_pairs(lanes).await
    }

    async fn claim(&self, write: &Write, claim: &Claim) -> Result<Vec<Run>, StoreError> {
        self.write(self.inner.claim(write, claim)).await
    }

    async fn own(&self, parts: &[Partition], windows: &[Window]) -> Result<Vec<Vec<Run>>, StoreError> {
        self.here()?;
        self.inner.own(parts, windows).await
    }

    async fn inherited(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        self.here()?;
        self.inner.inherited(parts, limit).await
    }

    async fn notices(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        self.here()?;
        self.inner.notices(parts, limit).await
    }

    async fn clear_notices(&self, seen: &[(Partition, RunId)]) -> Result<(), StoreError> {
        self.here()?;
        self.inner.clear_notices(seen).await
    }

    async fn lease_owned(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        asks: &[OwnLease],
    ) -> Result<Vec<Guarded>, StoreError> {
        self.write(self.inner.lease_owned(write, worker, until, asks)).await
    }

    async fn mark_running(&self, write: &Write, marks: &[RunningMark]) -> Result<Vec<Guarded>, StoreError> {
        self.write(self.inner.mark_running(write, marks)).await
    }

    async fn settle(&self, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        self.write(self.inner.settle(write, settlements)).await
    }

    async fn extend(
        &self,
        worker: WorkerId,
        until: Timestamp,
        held: &[Lease],
        now: Timestamp,
    ) -> Result<Extended, StoreError> {
        self.here()?;
        self.inner.extend(worker, until, held, now).await
    }

    async fn progress(&self, reports: &[(Lease, String)]) -> Result<Vec<Guarded>, StoreError> {
        self.here()?;
        self.inner.progress(reports).await
    }

    async fn request_cancel(
        &self,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<Vec<CancelAnswer>, StoreError> {
        self.write(self.inner.request_cancel(write, runs, ask)).await
    }

    async fn release(&self, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError> {
        self.write(self.inner.release(write, worker)).await
    }

    async fn reap(&self, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError> {
        self.write(self.inner.reap(write, reap)).await
    }

    async fn sweep(&self, write: &Write, limit: u32) -> Result<Vec<Reaped>, StoreError> {
        self.write(self.inner.sweep(write, limit)).await
    }

    async fn wake(&self, write: &Write, runs: &[RunId]) -> Result<Vec<Guarded>, StoreError> {
        self.write(self.inner.wake(write, runs)).await
    }

    async fn recount_slots(&self, write: &Write) -> Result<u32, StoreError> {
        self.write(self.inner.recount_slots(write)).await
    }
}

#[async_trait]
impl HistoryStore for Faulty {
    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Option<RunRecord>>, StoreError> {
        self.here()?;
        self.inner.runs(ids).await
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<RunPage, StoreError> {
        self.here()?;
        self.inner.list_runs(query).await
    }

    async fn rollups(&self, job: JobId, from_hour: i64, to_hour: i64) -> Result<Vec<(i64, Rollup)>, StoreError> {
        self.here()?;
        self.inner.rollups(job, from_hour, to_hour).await
    }

    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        self.here()?;
        self.inner.append_logs(chunks).await
    }

    async fn logs(&self, query: &LogQuery) -> Result<Vec<LogChunk>, StoreError> {
        self.here()?;
        self.inner.logs(query).await
    }

    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        self.here()?;
        self.inner.tend(tend).await
    }
}

#[async_trait]
impl LeaseStore for Faulty {
    async fn beat(&self, beat: &NodeBeat, now: Timestamp) -> Result<Guarded, StoreError> {
        self.here()?;
        self.inner.beat(beat, now).await
    }

    async fn nodes(&self, now: Timestamp) -> Result<Vec<Node>, StoreError> {
        self.here()?;
        self.inner.nodes(now).await
    }

    async fn leave(&self, node: NodeId) -> Result<(), StoreError> {
        self.here()?;
        self.inner.leave(node).await
    }

    async fn partitions(&self) -> Result<Vec<PartitionLease>, StoreError> {
        self.here()?;
        self.inner.partitions().await
    }

    async fn take_partitions(
        &self,
        node: NodeId,
        parts: &[Partition],
        now: Timestamp,
    ) -> Result<Vec<Option<Epoch>>, StoreError> {
        self.here()?;
        self.inner.take_partitions(node, parts, now).await
    }

    async fn give_partitions(&self, node: NodeId, parts: &[(Partition, Epoch)]) -> Result<Vec<Guarded>, StoreError> {
        self.here()?;
        self.inner.give_partitions(node, parts).await
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        self.here()?;
        self.inner.time().await
    }

    async fn take_tokens(&self, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError> {
        self.here()?;
        self.inner.take_tokens(asks, now).await
    }
}

impl Store for Faulty {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
}
