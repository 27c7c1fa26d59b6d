//! The port, method by method. Each role's work is in the file named after it.

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    dispatch::{Pair, Window},
    ids::{JobId, LaneId, NodeId, Partition, RunId, ScheduleId, TenantId, WorkerId},
    lane::{Lane, LaneKey, LaneMode},
    order::OrderKey,
    rate::Taken,
    rollup::Rollup,
    run::{CancelAsk, Lease, NewRun, Run},
    store::{
        Calendar, CalendarPut, CancelAnswer, Claim, DeadMark, Deletion, Discarded, DueCursor, Enqueued, Epoch,
        Extended, FireItem, Fired, FollowEnds, Followed, Guarded, HistoryStore, InboxItem, JobEnds, JobPage, JobPut,
        JobQuery, JobRecord, JobSaved, JobStore, JobVersion, LeaseStore, LiveRun, LogChunk, LogQuery, Node, NodeBeat,
        OpenDead, OwnLease, PartitionLease, Pause, PauseTarget, Pauses, Promoted, Reap, Reaped, Request, ReviewPage,
        RunPage, RunQuery, RunRecord, RunStore, RunningMark, SchedulePage, SchedulePut, ScheduleQuery, ScheduleRecord,
        ScheduleSaved, Settled, Settlement, SkipRecord, Standing, Store, StoreError, Tenant, TenantPut, Tend, Tended,
        TokenAsk, UnreadableRow, Woken, Worker, WorkerBeat, Write,
    },
};

use super::SqliteStore;

impl Store for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }
}

#[async_trait]
impl JobStore for SqliteStore {
    async fn put_tenants(&self, tenants: &[TenantPut], now: Timestamp) -> Result<Vec<TenantId>, StoreError> {
        self.do_put_tenants(tenants, now).await
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        self.do_tenants().await
    }

    async fn lanes(&self, keys: &[LaneKey], mode: LaneMode) -> Result<Vec<Lane>, StoreError> {
        self.do_lanes(keys, mode).await
    }

    async fn all_lanes(&self) -> Result<Vec<Lane>, StoreError> {
        self.do_all_lanes().await
    }

    async fn turn_lane(&self, lane: LaneId, mode: LaneMode) -> Result<Lane, StoreError> {
        self.do_turn_lane(lane, mode).await
    }

    async fn put_jobs(&self, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
        self.do_put_jobs(write, jobs).await
    }

    async fn delete_jobs(&self, write: &Write, jobs: &[Deletion]) -> Result<Vec<Guarded>, StoreError> {
        self.do_delete_jobs(write, jobs).await
    }

    async fn deletions(&self, limit: u32) -> Result<Vec<(Timestamp, Deletion)>, StoreError> {
        self.do_deletions(limit).await
    }

    async fn forget_deletions(&self, jobs: &[JobId], now: Timestamp) -> Result<(), StoreError> {
        self.do_forget_deletions(jobs, now).await
    }

    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Option<JobRecord>>, StoreError> {
        self.do_jobs(ids).await
    }

    async fn find_jobs(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<JobRecord>>, StoreError> {
        self.do_find_jobs(names).await
    }

    async fn list_jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        self.do_list_jobs(query).await
    }

    async fn job_versions(&self, job: JobId, limit: u32) -> Result<Vec<JobVersion>, StoreError> {
        self.do_job_versions(job, limit).await
    }

    async fn job_document(&self, job: JobId, version: i32) -> Result<Option<String>, StoreError> {
        self.do_job_document(job, version).await
    }

    async fn count_due(&self, seconds: &[Timestamp], most: u64) -> Result<Vec<u64>, StoreError> {
        self.do_count_due(seconds, most).await
    }

    async fn count_schedules(&self, tenant: TenantId, most: u64) -> Result<u64, StoreError> {
        self.do_count_schedules(tenant, most).await
    }

    async fn reserve_schedules(&self, count: u32) -> Result<ScheduleId, StoreError> {
        self.do_reserve_schedules(count).await
    }

    async fn put_schedules(&self, write: &Write, schedules: &[SchedulePut]) -> Result<Vec<ScheduleSaved>, StoreError> {
        self.do_put_schedules(write, schedules).await
    }

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<ScheduleRecord>>, StoreError> {
        self.do_schedules(ids).await
    }

    async fn find_schedules(&self, names: &[(JobId, String)]) -> Result<Vec<Option<ScheduleRecord>>, StoreError> {
        self.do_find_schedules(names).await
    }

    async fn list_schedules(&self, query: &ScheduleQuery) -> Result<SchedulePage, StoreError> {
        self.do_list_schedules(query).await
    }

    async fn cursors(&self, schedules: &[ScheduleId]) -> Result<Vec<Option<DueCursor>>, StoreError> {
        self.do_cursors(schedules).await
    }

    async fn review(
        &self,
        parts: &[Partition],
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<ReviewPage, StoreError> {
        self.do_review(parts, after, limit).await
    }

    async fn wake_at(
        &self,
        write: &Write,
        cursors: &[(DueCursor, Option<Timestamp>)],
    ) -> Result<Vec<Guarded>, StoreError> {
        self.do_wake_at(write, cursors).await
    }

    async fn skips(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<SkipRecord>, StoreError> {
        self.do_skips(schedule, before, limit).await
    }

    async fn set_pauses(
        &self,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, StoreError> {
        self.do_set_pauses(write, targets, pause).await
    }

    async fn pauses(&self) -> Result<Pauses, StoreError> {
        self.do_pauses().await
    }

    async fn put_calendars(&self, calendars: &[CalendarPut], now: Timestamp) -> Result<(), StoreError> {
        self.do_put_calendars(calendars, now).await
    }

    async fn calendars(&self, tenant: TenantId) -> Result<Vec<Calendar>, StoreError> {
        self.do_calendars(tenant).await
    }
}

#[async_trait]
impl RunStore for SqliteStore {
    async fn due(&self, parts: &[Partition], until: Timestamp, limit: u32) -> Result<Vec<DueCursor>, StoreError> {
        self.do_due(parts, until, limit).await
    }

    async fn live_of(&self, schedules: &[ScheduleId], limit: u32) -> Result<Vec<Vec<LiveRun>>, StoreError> {
        self.do_live_of(schedules, limit).await
    }

    async fn fire(&self, write: &Write, pauses_revision: i64, items: &[FireItem]) -> Result<Vec<Fired>, StoreError> {
        self.do_fire(write, pauses_revision, items).await
    }

    async fn enqueue(&self, write: &Write, runs: &[NewRun], inbox: &[i64]) -> Result<Vec<Enqueued>, StoreError> {
        self.do_enqueue(write, runs, inbox).await
    }

    async fn job_ends(&self, limit: u32) -> Result<JobEnds, StoreError> {
        self.do_job_ends(limit).await
    }

    async fn follow_ends(&self, write: &Write, items: &[FollowEnds]) -> Result<Vec<Followed>, StoreError> {
        self.do_follow_ends(write, items).await
    }

    async fn is_answered(&self, request: &Request, now: Timestamp) -> Result<bool, StoreError> {
        self.do_is_answered(request, now).await
    }

    async fn inbox(&self, limit: u32) -> Result<Vec<InboxItem>, StoreError> {
        self.do_inbox(limit).await
    }

    async fn promote(&self, write: &Write, parts: &[Partition], limit: u32) -> Result<Promoted, StoreError> {
        self.do_promote(write, parts, limit).await
    }

    async fn oldest_queued(&self) -> Result<Option<Timestamp>, StoreError> {
        self.do_oldest_queued().await
    }

    async fn ready_pairs(&self, lanes: &[LaneId]) -> Result<Vec<(Pair, OrderKey)>, StoreError> {
        self.do_ready_pairs(lanes).await
    }

    async fn claim_each(&self, write: &Write, claims: &[Claim]) -> Result<Vec<Run>, StoreError> {
        self.do_claim_each(write, claims).await
    }

    async fn own(&self, parts: &[Partition], windows: &[Window]) -> Result<Vec<Vec<Run>>, StoreError> {
        self.do_own(parts, windows).await
    }

    async fn inherited(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        self.do_inherited(parts, limit).await
    }

    async fn notices(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        self.do_notices(parts, limit).await
    }

    async fn clear_notices(&self, seen: &[(Partition, RunId)]) -> Result<(), StoreError> {
        self.do_clear_notices(seen).await
    }

    async fn lease_owned(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        asks: &[OwnLease],
    ) -> Result<Vec<Guarded>, StoreError> {
        self.do_lease_owned(write, worker, until, asks).await
    }

    async fn mark_running(&self, write: &Write, marks: &[RunningMark]) -> Result<Vec<Guarded>, StoreError> {
        self.do_mark_running(write, marks).await
    }

    async fn lease_running(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        attempts: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError> {
        self.do_lease_running(write, worker, until, attempts).await
    }

    async fn settle(&self, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        self.do_settle(write, settlements).await
    }

    async fn extend(
        &self,
        worker: WorkerId,
        until: Timestamp,
        held: &[Lease],
        _now: Timestamp,
    ) -> Result<Extended, StoreError> {
        self.do_extend(worker, until, held).await
    }

    async fn progress(&self, reports: &[(Lease, String)]) -> Result<Vec<Guarded>, StoreError> {
        self.do_progress(reports).await
    }

    async fn request_cancel(
        &self,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<Vec<CancelAnswer>, StoreError> {
        self.do_request_cancel(write, runs, ask).await
    }

    async fn release(&self, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError> {
        self.do_release(write, worker).await
    }

    async fn reap(&self, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError> {
        self.do_reap(write, reap).await
    }

    async fn sweep(&self, write: &Write, limit: u32) -> Result<Vec<Reaped>, StoreError> {
        self.do_sweep(write, limit).await
    }

    async fn wake(&self, write: &Write, runs: &[RunId]) -> Result<Vec<Guarded>, StoreError> {
        self.do_wake(write, runs).await
    }

    async fn recount_slots(&self, write: &Write) -> Result<u32, StoreError> {
        self.do_recount_slots(write).await
    }

    async fn mend_joins(&self, write: &Write) -> Result<u32, StoreError> {
        self.do_mend_joins(write).await
    }
}

#[async_trait]
impl HistoryStore for SqliteStore {
    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Option<RunRecord>>, StoreError> {
        self.do_runs(ids).await
    }

    async fn standing(&self, run: RunId) -> Result<Standing, StoreError> {
        self.do_standing(run).await
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<RunPage, StoreError> {
        self.do_list_runs(query).await
    }

    async fn rollups(&self, job: JobId, from_hour: i64, to_hour: i64) -> Result<Vec<(i64, Rollup)>, StoreError> {
        self.do_rollups(job, from_hour, to_hour).await
    }

    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        self.do_append_logs(chunks).await
    }

    async fn logs(&self, query: &LogQuery) -> Result<Vec<LogChunk>, StoreError> {
        self.do_logs(query).await
    }

    async fn open_dead(&self, most: u32) -> Result<OpenDead, StoreError> {
        self.do_open_dead(most).await
    }

    async fn dead_marks(&self, runs: &[RunId]) -> Result<Vec<Option<DeadMark>>, StoreError> {
        self.do_dead_marks(runs).await
    }

    async fn discard(&self, runs: &[RunId], by: &str, now: Timestamp) -> Result<Vec<bool>, StoreError> {
        self.do_discard(runs, by, now).await
    }

    async fn unreadable(&self) -> Result<Vec<UnreadableRow>, StoreError> {
        self.do_unreadable().await
    }

    fn note_definition(&self, table: &'static str, key: &str, broken: Option<&str>) {
        self.notes.note_definition(table, key, broken);
    }

    async fn raw_row(&self, table: &str, key: &str) -> Result<Option<serde_json::Value>, StoreError> {
        self.do_raw_row(table, key).await
    }

    async fn discard_row(&self, table: &str, key: &str) -> Result<Discarded, StoreError> {
        self.do_discard_row(table, key).await
    }

    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        self.do_tend(tend).await
    }
}

#[async_trait]
impl LeaseStore for SqliteStore {
    async fn beat(&self, beat: &NodeBeat, _now: Timestamp) -> Result<Guarded, StoreError> {
        self.do_beat(beat).await
    }

    async fn nodes(&self, now: Timestamp) -> Result<Vec<Node>, StoreError> {
        self.do_nodes(now).await
    }

    async fn leave(&self, node: NodeId) -> Result<(), StoreError> {
        self.do_leave(node).await
    }

    async fn partitions(&self) -> Result<Vec<PartitionLease>, StoreError> {
        self.do_partitions().await
    }

    async fn take_partitions(
        &self,
        node: NodeId,
        parts: &[Partition],
        now: Timestamp,
    ) -> Result<Vec<Option<Epoch>>, StoreError> {
        self.do_take_partitions(node, parts, now).await
    }

    async fn give_partitions(&self, node: NodeId, parts: &[(Partition, Epoch)]) -> Result<Vec<Guarded>, StoreError> {
        self.do_give_partitions(node, parts).await
    }

    async fn beat_workers(&self, beats: &[WorkerBeat], now: Timestamp) -> Result<Vec<bool>, StoreError> {
        self.do_beat_workers(beats, now).await
    }

    async fn workers(
        &self,
        tenant: Option<TenantId>,
        after: Option<WorkerId>,
        limit: u32,
    ) -> Result<Vec<Worker>, StoreError> {
        self.do_workers(tenant, after, limit).await
    }

    async fn drain_worker(&self, tenant: Option<TenantId>, worker: WorkerId) -> Result<bool, StoreError> {
        self.do_drain_worker(tenant, worker).await
    }

    async fn forget_workers(&self, workers: &[WorkerId]) -> Result<(), StoreError> {
        self.do_forget_workers(workers).await
    }

    async fn take_tokens(&self, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError> {
        self.do_take_tokens(asks, now).await
    }
}
