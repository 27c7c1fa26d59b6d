//! The port, each method handed to the file that does it.
//!
//! A method without a [`Write`] is the same however often it is asked for; one
//! that met a deadlock is asked again here.

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

use super::PostgresStore;
use crate::failpoint;

impl Store for PostgresStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }
}

#[async_trait]
impl JobStore for PostgresStore {
    async fn put_tenants(&self, tenants: &[TenantPut], now: Timestamp) -> Result<Vec<TenantId>, StoreError> {
        tried!("save tenants", self.save_tenants(tenants, now))
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        tried!("read tenants", self.all_tenants())
    }

    async fn lanes(&self, keys: &[LaneKey], mode: LaneMode) -> Result<Vec<Lane>, StoreError> {
        tried!("find lanes", self.lanes_of(keys, mode))
    }

    async fn all_lanes(&self) -> Result<Vec<Lane>, StoreError> {
        tried!("read lanes", self.every_lane())
    }

    async fn turn_lane(&self, lane: LaneId, mode: LaneMode) -> Result<Lane, StoreError> {
        tried!("turn a lane", self.turn(lane, mode))
    }

    async fn put_jobs(&self, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
        self.save_jobs(write, jobs).await
    }

    async fn delete_jobs(&self, write: &Write, jobs: &[Deletion]) -> Result<Vec<Guarded>, StoreError> {
        self.remove_jobs(write, jobs).await
    }

    async fn deletions(&self, limit: u32) -> Result<Vec<(Timestamp, Deletion)>, StoreError> {
        tried!("read deletions", self.kept_deletions(limit))
    }

    async fn forget_deletions(&self, jobs: &[JobId], now: Timestamp) -> Result<(), StoreError> {
        tried!("forget deletions", self.drop_deletions(jobs, now))
    }

    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Option<JobRecord>>, StoreError> {
        tried!("read jobs", self.jobs_by_id(ids))
    }

    async fn find_jobs(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<JobRecord>>, StoreError> {
        tried!("find jobs", self.jobs_by_name(names))
    }

    async fn list_jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        tried!("list jobs", self.page_of_jobs(query))
    }

    async fn job_versions(&self, job: JobId, limit: u32) -> Result<Vec<JobVersion>, StoreError> {
        tried!("read a job's versions", self.versions_of(job, limit))
    }

    async fn job_document(&self, job: JobId, version: i32) -> Result<Option<String>, StoreError> {
        tried!("read a job's document", self.document_of(job, version))
    }

    async fn reserve_schedules(&self, count: u32) -> Result<ScheduleId, StoreError> {
        tried!("reserve ids of schedules", self.reserve(count))
    }

    async fn put_schedules(&self, write: &Write, schedules: &[SchedulePut]) -> Result<Vec<ScheduleSaved>, StoreError> {
        self.save_schedules(write, schedules).await
    }

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<ScheduleRecord>>, StoreError> {
        tried!("read schedules", self.schedules_by_id(ids))
    }

    async fn find_schedules(&self, names: &[(JobId, String)]) -> Result<Vec<Option<ScheduleRecord>>, StoreError> {
        tried!("find schedules", self.schedules_by_name(names))
    }

    async fn list_schedules(&self, query: &ScheduleQuery) -> Result<SchedulePage, StoreError> {
        tried!("list schedules", self.page_of_schedules(query))
    }

    async fn count_due(&self, seconds: &[Timestamp], most: u64) -> Result<Vec<u64>, StoreError> {
        tried!("count due schedules", self.number_of_due(seconds, most))
    }

    async fn count_schedules(&self, tenant: TenantId, most: u64) -> Result<u64, StoreError> {
        tried!("count schedules", self.number_of_schedules(tenant, most))
    }

    async fn cursors(&self, schedules: &[ScheduleId]) -> Result<Vec<Option<DueCursor>>, StoreError> {
        tried!("read cursors", self.cursors_of(schedules))
    }

    async fn review(
        &self,
        parts: &[Partition],
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<ReviewPage, StoreError> {
        tried!("review schedules", self.review_of(parts, after, limit))
    }

    async fn wake_at(
        &self,
        write: &Write,
        cursors: &[(DueCursor, Option<Timestamp>)],
    ) -> Result<Vec<Guarded>, StoreError> {
        self.wake_all_at(write, cursors).await
    }

    async fn skips(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<SkipRecord>, StoreError> {
        tried!("read skips", self.skips_of(schedule, before, limit))
    }

    async fn set_pauses(
        &self,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, StoreError> {
        self.save_pauses(write, targets, pause).await
    }

    async fn pauses(&self) -> Result<Pauses, StoreError> {
        tried!("read pauses", self.all_pauses())
    }

    async fn put_calendars(&self, calendars: &[CalendarPut], _now: Timestamp) -> Result<(), StoreError> {
        tried!("save calendars", self.save_calendars(calendars))
    }

    async fn calendars(&self, tenant: TenantId) -> Result<Vec<Calendar>, StoreError> {
        tried!("read calendars", self.calendars_of(tenant))
    }
}

#[async_trait]
impl RunStore for PostgresStore {
    async fn due(&self, parts: &[Partition], until: Timestamp, limit: u32) -> Result<Vec<DueCursor>, StoreError> {
        tried!("read due cursors", self.due_cursors(parts, until, limit))
    }

    async fn live_of(&self, schedules: &[ScheduleId], limit: u32) -> Result<Vec<Vec<LiveRun>>, StoreError> {
        tried!("read the live runs of schedules", self.live_runs(schedules, limit))
    }

    async fn fire(&self, write: &Write, pauses_revision: i64, items: &[FireItem]) -> Result<Vec<Fired>, StoreError> {
        self.fire_all(write, pauses_revision, items).await
    }

    async fn enqueue(&self, write: &Write, runs: &[NewRun], inbox: &[i64]) -> Result<Vec<Enqueued>, StoreError> {
        self.enqueue_all(write, runs, inbox).await
    }

    async fn job_ends(&self, limit: u32) -> Result<JobEnds, StoreError> {
        tried!("read the ends that jobs wait for", self.ends_waited_for(limit))
    }

    async fn follow_ends(&self, write: &Write, items: &[FollowEnds]) -> Result<Vec<Followed>, StoreError> {
        self.follow_all(write, items).await
    }

    async fn is_answered(&self, request: &Request, now: Timestamp) -> Result<bool, StoreError> {
        Ok(self.known_request(request, now, "look for a request").await?.is_some())
    }

    async fn inbox(&self, limit: u32) -> Result<Vec<InboxItem>, StoreError> {
        tried!("read the inbox", self.inbox_items(limit))
    }

    async fn promote(&self, write: &Write, parts: &[Partition], limit: u32) -> Result<Promoted, StoreError> {
        self.promote_all(write, parts, limit).await
    }

    async fn oldest_queued(&self) -> Result<Option<Timestamp>, StoreError> {
        tried!("find the oldest queued run", self.longest_queued())
    }

    async fn ready_pairs(&self, lanes: &[LaneId]) -> Result<Vec<(Pair, OrderKey)>, StoreError> {
        tried!("look for ready runs", self.pairs(lanes))
    }

    async fn claim_each(&self, write: &Write, claims: &[Claim]) -> Result<Vec<Run>, StoreError> {
        self.claim_all(write, claims).await
    }

    async fn own(&self, parts: &[Partition], windows: &[Window]) -> Result<Vec<Vec<Run>>, StoreError> {
        tried!("read owned runs", self.own_windows(parts, windows))
    }

    async fn inherited(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        tried!("read inherited runs", self.inherited_runs(parts, limit))
    }

    async fn notices(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        tried!("read notices", self.noticed_runs(parts, limit))
    }

    async fn clear_notices(&self, seen: &[(Partition, RunId)]) -> Result<(), StoreError> {
        tried!("clear notices", self.drop_notices(seen.iter().map(|(part, run)| (i16::from(part.0), run.0)).collect()))
    }

    async fn lease_owned(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        asks: &[OwnLease],
    ) -> Result<Vec<Guarded>, StoreError> {
        self.lease_all(write, worker, until, asks).await
    }

    async fn mark_running(&self, write: &Write, marks: &[RunningMark]) -> Result<Vec<Guarded>, StoreError> {
        self.mark_all(write, marks).await
    }

    async fn lease_running(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        attempts: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError> {
        self.lease_attempts(write, worker, until, attempts).await
    }

    async fn settle(&self, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        self.settle_all(write, settlements).await
    }

    async fn extend(
        &self,
        worker: WorkerId,
        until: Timestamp,
        held: &[Lease],
        _now: Timestamp,
    ) -> Result<Extended, StoreError> {
        tried!("extend leases", self.extend_all(worker, until, held))
    }

    async fn progress(&self, reports: &[(Lease, String)]) -> Result<Vec<Guarded>, StoreError> {
        tried!("store progress", self.report(reports))
    }

    async fn request_cancel(
        &self,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<Vec<CancelAnswer>, StoreError> {
        self.cancel_all(write, runs, ask).await
    }

    async fn release(&self, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError> {
        self.release_all(write, worker).await
    }

    async fn reap(&self, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError> {
        self.reap_all(write, reap).await
    }

    async fn sweep(&self, write: &Write, limit: u32) -> Result<Vec<Reaped>, StoreError> {
        self.sweep_all(write, limit).await
    }

    async fn wake(&self, write: &Write, runs: &[RunId]) -> Result<Vec<Guarded>, StoreError> {
        self.wake_all(write, runs).await
    }

    async fn recount_slots(&self, write: &Write) -> Result<u32, StoreError> {
        failpoint::named("recount slots", self.recount(write.now)).await
    }

    async fn mend_joins(&self, write: &Write) -> Result<u32, StoreError> {
        failpoint::named("mend joins", self.mend(write)).await
    }
}

#[async_trait]
impl HistoryStore for PostgresStore {
    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Option<RunRecord>>, StoreError> {
        tried!("read runs", self.runs_by_id(ids))
    }

    async fn standing(&self, run: RunId) -> Result<Standing, StoreError> {
        tried!("read what stands before a run", self.standing_of(run))
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<RunPage, StoreError> {
        tried!("list runs", self.page_of_runs(query))
    }

    async fn rollups(&self, job: JobId, from_hour: i64, to_hour: i64) -> Result<Vec<(i64, Rollup)>, StoreError> {
        tried!("read roll-ups", self.rollups_of(job, from_hour, to_hour))
    }

    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        tried!("append logs", self.save_logs(chunks))
    }

    async fn logs(&self, query: &LogQuery) -> Result<Vec<LogChunk>, StoreError> {
        tried!("read logs", self.logs_of(query))
    }

    async fn open_dead(&self, most: u32) -> Result<OpenDead, StoreError> {
        tried!("count dead letters", self.open_letters(most))
    }

    async fn dead_marks(&self, runs: &[RunId]) -> Result<Vec<Option<DeadMark>>, StoreError> {
        tried!("read what became of dead letters", self.marks_of(runs))
    }

    async fn discard(&self, runs: &[RunId], by: &str, now: Timestamp) -> Result<Vec<bool>, StoreError> {
        tried!("put dead letters away", self.put_away(runs, by, now))
    }

    async fn unreadable(&self) -> Result<Vec<UnreadableRow>, StoreError> {
        self.set_aside().await;
        tried!("list rows that cannot be read", self.rows_set_aside())
    }

    fn note_definition(&self, table: &'static str, key: &str, broken: Option<&str>) {
        self.notes.note_definition(table, key, broken);
    }

    async fn raw_row(&self, table: &str, key: &str) -> Result<Option<serde_json::Value>, StoreError> {
        tried!("read a row as it is", self.row_as_it_is(table, key))
    }

    async fn discard_row(&self, table: &str, key: &str) -> Result<Discarded, StoreError> {
        self.drop_row(table, key).await
    }

    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        tried!("tend the store", self.tend_slice(tend))
    }
}

#[async_trait]
impl LeaseStore for PostgresStore {
    async fn beat(&self, beat: &NodeBeat, _now: Timestamp) -> Result<Guarded, StoreError> {
        tried!("record a heartbeat", self.record_beat(beat))
    }

    async fn nodes(&self, now: Timestamp) -> Result<Vec<Node>, StoreError> {
        tried!("read nodes", self.live_nodes(now))
    }

    async fn leave(&self, node: NodeId) -> Result<(), StoreError> {
        tried!("leave", self.forget_node(node))
    }

    async fn partitions(&self) -> Result<Vec<PartitionLease>, StoreError> {
        tried!("read partitions", self.all_partitions())
    }

    async fn take_partitions(
        &self,
        node: NodeId,
        parts: &[Partition],
        now: Timestamp,
    ) -> Result<Vec<Option<Epoch>>, StoreError> {
        tried!("take partitions", self.take(node, parts, now))
    }

    async fn give_partitions(&self, node: NodeId, parts: &[(Partition, Epoch)]) -> Result<Vec<Guarded>, StoreError> {
        tried!("give partitions", self.give(node, parts))
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        tried!("read the clock", self.own_time()).map(Some)
    }

    async fn beat_workers(&self, beats: &[WorkerBeat], now: Timestamp) -> Result<Vec<bool>, StoreError> {
        tried!("record workers", self.record_workers(beats, now))
    }

    async fn workers(
        &self,
        tenant: Option<TenantId>,
        after: Option<WorkerId>,
        limit: u32,
    ) -> Result<Vec<Worker>, StoreError> {
        tried!("read workers", self.registered(tenant, after, limit))
    }

    async fn drain_worker(&self, tenant: Option<TenantId>, worker: WorkerId) -> Result<bool, StoreError> {
        tried!("drain a worker", self.ask_to_drain(tenant, worker))
    }

    async fn forget_workers(&self, workers: &[WorkerId]) -> Result<(), StoreError> {
        tried!("forget workers", self.unregister(workers))
    }

    async fn take_tokens(&self, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError> {
        tried!("take tokens", self.spend(asks, now))
    }
}
