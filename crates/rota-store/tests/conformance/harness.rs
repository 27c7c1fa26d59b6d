//! A fresh store for each case, and the few moves that every case makes.
//!
//! A harness has a tenant, a job, an owned and a claimed lane. Times are
//! milliseconds after a fixed instant and always handed in; ids are counted, so
//! a case does the same thing each time it runs.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use rota_core::{
    dispatch::{Pair, Share, Window},
    duration::Span,
    fire::{Cursor, Stored},
    ids::{BatchId, JobId, LaneId, NodeId, PARTITIONS, Partition, RunId, ScheduleId, TenantId, WorkerId},
    job::{
        failure::{ErrorKind, Failure},
        retry::RetryRule,
    },
    lane::{LaneKey, LaneMode},
    order::{OrderKey, Priority},
    run::{CancelAsk, Change, Labels, NewRun, Outcome, Run, RunState, SettlePolicy, Source, Status, Trigger},
    slot::{SlotAsk, SlotKey, WhenFull},
    store::{
        By, CancelAnswer, Claim, Deletion, Ends, Enqueued, Epoch, Expect, Guarded, JobPut, JobSaved, NodeBeat, Reap,
        Reaped, Request, RunQuery, RunRecord, SchedulePut, ScheduleSaved, SchedulesPut, Settled, Settlement, Store,
        StoreError, TenantPut, Tier, Write,
    },
};
use uuid::Uuid;

use crate::place::Place;

/// A store to hold to the promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    SqliteMemory,
    SqliteFile,
    Postgres,
}

pub struct Harness {
    pub backend: Backend,
    pub store: Arc<dyn Store>,
    pub place: Place,
    next: AtomicU64,
    pub tenant: TenantId,
    pub job: JobId,
    /// A lane whose runs the owner of their partition executes.
    pub owned: LaneId,
    /// A lane whose runs are leased in writing.
    pub claimed: LaneId,
}

/// So many milliseconds after the beginning of a case: a Monday, 10:00 UTC.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_767_607_200_000 + millis).unwrap()
}

/// How long a worker's lease lasts here.
pub const LEASE_MS: i64 = 6_000;

/// A job goes, and all its runs.
pub fn deletion(job: JobId) -> Deletion {
    let ask = CancelAsk { by: Some("ann".into()), reason: None, grace: Span::secs(5) };
    Deletion { job, ask, keep_running: false }
}

impl Harness {
    pub async fn open(backend: Backend) -> Self {
        Self::at(backend, Place::open(backend).await).await
    }

    /// As it stands beside a later release, during an upgrade.
    pub async fn open_extended(backend: Backend) -> Self {
        Self::at(backend, Place::open_extended(backend).await).await
    }

    /// A database as a schema left it; none where a store cannot be handed one.
    pub async fn open_frozen(backend: Backend, schema: i64) -> Option<Self> {
        let (place, store) = Place::open_frozen(backend, &crate::frozen::folder(schema)).await?;
        let tenant = store.tenants().await.unwrap().iter().find(|tenant| tenant.name == "acme").unwrap().id;
        let job = store.find_jobs(&[(tenant, "report".into())]).await.unwrap().remove(0).unwrap().id;
        let lane =
            async |handler, mode| store.lanes(&[LaneKey::new("default", handler, &[])], mode).await.unwrap()[0].id;
        let owned = lane(None, LaneMode::Owned).await;
        let claimed = lane(Some("remote"), LaneMode::Claimed).await;
        // Past all the names that the sample was given.
        let next = AtomicU64::new(1 << 32);
        Some(Self { backend, store, place, next, tenant, job, owned, claimed })
    }

    async fn at(backend: Backend, (place, store): (Place, Arc<dyn Store>)) -> Self {
        let mut harness = Self {
            backend,
            store,
            place,
            next: AtomicU64::new(1),
            tenant: TenantId(0),
            job: JobId(0),
            owned: LaneId(0),
            claimed: LaneId(0),
        };
        harness.tenant = harness.tenant("acme").await;
        harness.job = harness.job("report").await;
        harness.owned = harness.lane(None, LaneMode::Owned).await;
        harness.claimed = harness.lane(Some("remote"), LaneMode::Claimed).await;
        harness
    }

    pub async fn close(self) {
        drop(self.store);
        self.place.close().await;
    }

    /// Another way into the same store, as another node has it: on PostgreSQL
    /// connections and caches of its own.
    pub async fn second(&self) -> Arc<dyn Store> {
        self.place.second(&self.store).await
    }

    // --- names -----------------------------------------------------------------

    fn uuid(&self) -> Uuid {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        // Shaped like version 7, rising with every call.
        Uuid::from_u64_pair(0x0199_0000_0000_7000 | ((n >> 32) & 0xfff), 0x8000_0000_0000_0000 | n)
    }

    pub fn run_id(&self) -> RunId {
        RunId(self.uuid())
    }

    pub fn worker(&self) -> WorkerId {
        WorkerId(self.uuid())
    }

    pub fn node_id(&self) -> NodeId {
        NodeId(self.uuid())
    }

    pub fn write(&self, now: Timestamp) -> Write {
        Write {
            batch: BatchId(self.uuid()),
            now,
            node: None,
            generation: 0,
            request: None,
            ends: Ends::default(),
            dry_run: false,
        }
    }

    pub fn write_of(&self, node: NodeId, now: Timestamp) -> Write {
        Write { node: Some(node), ..self.write(now) }
    }

    pub fn write_keyed(&self, key: &str, body: u8, now: Timestamp, expires_at: Timestamp) -> Write {
        let request = Request { tenant: self.tenant, key: key.into(), fingerprint: [body; 32], expires_at };
        Write { request: Some(request), ..self.write(now) }
    }

    // --- definitions -------------------------------------------------------------

    pub async fn tenant(&self, name: &str) -> TenantId {
        let put = TenantPut { name: name.into(), tier: Tier::Unlimited, quotas: None };
        self.store.put_tenants(&[put], at(0)).await.unwrap()[0]
    }

    pub async fn lane(&self, handler: Option<&str>, mode: LaneMode) -> LaneId {
        self.store.lanes(&[LaneKey::new("default", handler, &[])], mode).await.unwrap()[0].id
    }

    pub fn job_put(&self, name: &str, document: &str) -> JobPut {
        let mut hash = [0_u8; 32];
        for (n, byte) in document.bytes().enumerate() {
            hash[n % 32] = hash[n % 32].wrapping_mul(31).wrapping_add(byte);
        }
        JobPut {
            tenant: self.tenant,
            name: name.into(),
            document: document.into(),
            hash,
            queue: "default".into(),
            tags: vec!["reporting".into()],
            enabled: true,
            by: Some("ann".into()),
            expect: Expect::Anything,
            after: None,
            schedules: None,
        }
    }

    pub async fn save(&self, put: JobPut, now: Timestamp) -> JobSaved {
        self.store.put_jobs(&self.write(now), &[put]).await.unwrap().remove(0)
    }

    pub async fn job(&self, name: &str) -> JobId {
        match self.save(self.job_put(name, "{\"v\":1}"), at(0)).await {
            JobSaved::Saved { id, .. } => id,
            JobSaved::Conflict { .. } | JobSaved::Refused(_) => panic!("the job `{name}` could not be made"),
        }
    }

    /// The job as it is stored, to be saved again with these schedules.
    pub async fn with_schedules(&self, saved: Vec<SchedulePut>, ended: &[ScheduleId]) -> JobPut {
        let job = self.store.jobs(&[self.job]).await.unwrap().remove(0).unwrap();
        let schedules = SchedulesPut { seen: Some(job.revision), saved, ended: ended.to_vec() };
        JobPut { schedules: Some(schedules), ..self.job_put(&job.name, &job.document) }
    }

    pub async fn end_schedules(&self, ended: &[ScheduleId], now: Timestamp) {
        let put = self.with_schedules(Vec::new(), ended).await;
        assert!(matches!(self.save(put, now).await, JobSaved::Saved { changed: false, .. }));
    }

    pub async fn schedule_put(&self, name: &str) -> SchedulePut {
        SchedulePut {
            id: self.store.reserve_schedules(1).await.unwrap(),
            job: self.job,
            tenant: self.tenant,
            name: name.into(),
            spec: "{\"every\":\"1m\"}".into(),
            enabled: true,
            stored: armed(Some(cursor(at(0), 0))),
            skips: Vec::new(),
            guard: None,
        }
    }

    pub async fn save_schedule(&self, put: &SchedulePut, now: Timestamp) -> ScheduleSaved {
        self.store.put_schedules(&self.write(now), std::slice::from_ref(put)).await.unwrap()[0]
    }

    pub async fn cursors(&self, schedules: &[ScheduleId]) -> Vec<Option<Cursor>> {
        let due = self.store.cursors(schedules).await.unwrap();
        due.into_iter().map(|due| due.map(|due| due.cursor)).collect()
    }

    /// A schedule that is due at the beginning.
    pub async fn schedule(&self, name: &str) -> ScheduleId {
        let put = self.schedule_put(name).await;
        assert!(matches!(self.save_schedule(&put, at(0)).await, ScheduleSaved::Saved { .. }));
        put.id
    }

    // --- runs --------------------------------------------------------------------

    /// A run to be made, ready at the beginning.
    pub fn new_run(&self, lane: LaneId) -> NewRun {
        NewRun {
            id: self.run_id(),
            tenant: self.tenant,
            job: self.job,
            version: 1,
            lane,
            part: Partition(7),
            priority: Priority::default(),
            ready_at: at(0),
            expires_at: None,
            deadline_at: None,
            trigger: Trigger::plain(Source::Api),
            labels: Labels::new(),
            payload: None,
            slot: None,
            unique: None,
            once: None,
            parent: None,
            after: Vec::new(),
            follows: false,
            rearms: false,
            redrive: None,
        }
    }

    /// A run of the claimed lane under a concurrency key.
    pub fn keyed(&self, key: i64, limit: u32) -> NewRun {
        NewRun { slot: Some(slot(key, limit)), ..self.new_run(self.claimed) }
    }

    pub async fn enqueue(&self, runs: &[NewRun], now: Timestamp) -> Vec<Enqueued> {
        let answers = self.store.enqueue(&self.write(now), runs, &[]).await.unwrap();
        assert_eq!(answers.len(), runs.len(), "one answer per run");
        answers
    }

    /// Enqueues one run and answers its id; it must have been made.
    pub async fn make(&self, run: NewRun, now: Timestamp) -> RunId {
        let id = run.id;
        let answer = self.enqueue(&[run], now).await.remove(0);
        assert!(matches!(answer, Enqueued::Made { .. }), "{answer:?}");
        id
    }

    /// That many plain runs of a lane, in order.
    pub async fn make_many(&self, lane: LaneId, count: usize, now: Timestamp) -> Vec<RunId> {
        let runs: Vec<_> = (0..count).map(|_| self.new_run(lane)).collect();
        let answers = self.enqueue(&runs, now).await;
        assert!(answers.iter().all(|answer| matches!(answer, Enqueued::Made { .. })), "{answers:?}");
        runs.iter().map(|run| run.id).collect()
    }

    pub async fn record(&self, id: RunId) -> RunRecord {
        self.store.runs(&[id]).await.unwrap().remove(0).unwrap_or_else(|| panic!("there is no run {id}"))
    }

    pub async fn status(&self, id: RunId) -> Status {
        self.record(id).await.run.state.status()
    }

    pub async fn statuses(&self, ids: &[RunId]) -> Vec<Status> {
        let records = self.store.runs(ids).await.unwrap();
        records.into_iter().map(|record| record.expect("the run is there").run.state.status()).collect()
    }

    // --- claimed lanes -----------------------------------------------------------

    pub fn claim_of(&self, worker: WorkerId, most: u32, now: Timestamp) -> Claim {
        let pair = Pair { lane: self.claimed, tenant: self.tenant };
        Claim { worker, until: plus(now, LEASE_MS), shares: vec![Share { pair, low: OrderKey::MIN, runs: most }], most }
    }

    pub async fn claim(&self, worker: WorkerId, most: u32, now: Timestamp) -> Vec<Run> {
        self.store.claim(&self.write(now), &[self.claim_of(worker, most, now)]).await.unwrap()
    }

    /// Makes a run of the claimed lane and leases it.
    pub async fn leased(&self, now: Timestamp) -> (WorkerId, Run) {
        let id = self.make(NewRun { ready_at: now, ..self.new_run(self.claimed) }, now).await;
        let worker = self.worker();
        let run = self.claim(worker, 1, now).await.remove(0);
        assert_eq!(run.id, id);
        (worker, run)
    }

    pub async fn settle_all(&self, settlements: &[Settlement], now: Timestamp) -> Settled {
        let settled = self.store.settle(&self.write(now), settlements).await.unwrap();
        assert_eq!(settled.answers.len(), settlements.len(), "one answer per settlement");
        settled
    }

    pub async fn settle(&self, run: &Run, outcome: Outcome, now: Timestamp) -> Guarded {
        self.settle_all(&[by_lease(run, outcome, now)], now).await.answers[0]
    }

    pub async fn succeed(&self, run: &Run, now: Timestamp) {
        assert_eq!(self.settle(run, succeeded(), now).await, Guarded::Applied);
    }

    // --- owned lanes -------------------------------------------------------------

    /// A live node that holds `parts`.
    pub async fn owner_of(&self, parts: &[Partition], now: Timestamp) -> Owner {
        let node = self.node_id();
        self.beat(node, plus(now, 3_600_000), now).await;
        let epochs = self.store.take_partitions(node, parts, now).await.unwrap();
        let epochs = parts.iter().zip(epochs).map(|(part, epoch)| (*part, epoch.expect("the partition is free")));
        Owner { node, epochs: epochs.collect() }
    }

    /// A live node that holds every partition.
    pub async fn owner(&self, now: Timestamp) -> Owner {
        self.owner_of(&Partition::all().collect::<Vec<_>>(), now).await
    }

    pub async fn beat(&self, node: NodeId, until: Timestamp, now: Timestamp) -> Guarded {
        let beat = NodeBeat { node, name: "node".into(), info: "{}".into(), until };
        self.store.beat(&beat, now).await.unwrap()
    }

    /// The first ready runs of the owned lane, as their owner reads them.
    pub async fn own(&self, parts: &[Partition], limit: u32) -> Vec<Run> {
        let pair = Pair { lane: self.owned, tenant: self.tenant };
        self.store.own(parts, &[Window { pair, after: None, limit }]).await.unwrap().remove(0)
    }

    /// Settles runs as the owner of their partitions.
    pub async fn settle_as(&self, owner: &Owner, ends: &[Settlement], now: Timestamp) -> Settled {
        self.store.settle(&self.write_of(owner.node, now), ends).await.unwrap()
    }

    // --- cancel, reap, sweep -------------------------------------------------------

    pub async fn cancel(&self, id: RunId, now: Timestamp) -> CancelAnswer {
        self.store.request_cancel(&self.write(now), &[id], &ask()).await.unwrap()[0]
    }

    pub async fn reap(&self, before: Timestamp, now: Timestamp) -> Vec<Reaped> {
        self.store.reap(&self.write(now), &Reap { before, losses_max: 3, limit: 1_000 }).await.unwrap()
    }

    pub async fn sweep(&self, now: Timestamp) -> Vec<Reaped> {
        self.store.sweep(&self.write(now), 1_000).await.unwrap()
    }

    // --- lists ---------------------------------------------------------------------

    /// All runs that a query finds, page by page.
    pub async fn list(&self, query: RunQuery) -> Vec<RunRecord> {
        let mut query = query;
        let mut found = Vec::new();
        for _ in 0..10_000 {
            let page = self.store.list_runs(&query).await.unwrap();
            assert!(page.runs.len() <= query.limit.max(1) as usize, "a page holds no more than asked for");
            found.extend(page.runs);
            match page.next {
                Some(next) => query.after = Some(next),
                None => return found,
            }
        }
        panic!("the list has no end");
    }
}

/// A node and the partitions it holds.
pub struct Owner {
    pub node: NodeId,
    pub epochs: BTreeMap<Partition, Epoch>,
}

impl Owner {
    pub fn epoch(&self, part: Partition) -> Epoch {
        self.epochs[&part]
    }

    pub fn parts(&self) -> Vec<Partition> {
        self.epochs.keys().copied().collect()
    }

    /// Executes a run that lies queued in one of its partitions.
    pub fn executes(&self, run: &Run, outcome: Outcome, now: Timestamp) -> Settlement {
        let mut run = run.clone();
        if run.state == RunState::Queued {
            let mark = run.mark_running(run.lease(), now).unwrap();
            run.apply(&mark);
        }
        let by = By::Owner(self.epoch(run.part));
        Settlement { by, ..by_lease(&run, outcome, now) }
    }
}

pub fn all_parts() -> Vec<Partition> {
    let parts: Vec<_> = Partition::all().collect();
    assert_eq!(parts.len(), PARTITIONS);
    parts
}

pub fn plus(from: Timestamp, millis: i64) -> Timestamp {
    from.saturating_add(jiff::SignedDuration::from_millis(millis)).unwrap()
}

pub fn ask() -> CancelAsk {
    CancelAsk { by: Some("ann".into()), reason: Some("not needed".into()), grace: Span::secs(30) }
}

/// A schedule with this cursor, and nothing behind it.
pub fn armed(cursor: Option<Cursor>) -> Stored {
    Stored { cursor, ..Stored::default() }
}

pub fn cursor(planned_at: Timestamp, fired: u64) -> Cursor {
    Cursor { planned_at, due_at: planned_at, fired }
}

pub fn slot(key: i64, limit: u32) -> SlotAsk {
    SlotAsk { key: SlotKey(key), limit, when_full: WhenFull::Queue, max_queued: None, grace: Span::secs(30) }
}

pub fn succeeded() -> Outcome {
    Outcome::Succeeded { output: None }
}

/// A failure that is retried: one second later, no jitter, three attempts.
pub fn failed() -> Outcome {
    Outcome::Failed(Failure::new(ErrorKind::ConnectionRefused, "nobody there"))
}

/// A failure that is not retried.
pub fn broken() -> Outcome {
    Outcome::Failed(Failure::new(ErrorKind::InvalidInput, "nonsense"))
}

pub fn policy() -> SettlePolicy {
    let retry =
        RetryRule { max_attempts: Some(3), initial: Some(Span::secs(1)), jitter: Some(0.0), ..RetryRule::default() };
    SettlePolicy { retry: retry.policy(), losses_max: 3 }
}

/// What the run's executor asks the store for, decided as production does.
pub fn change(run: &Run, outcome: Outcome, now: Timestamp) -> Change {
    run.settle(run.lease(), outcome, &policy(), 0.5, now).unwrap()
}

pub fn by_lease(run: &Run, outcome: Outcome, now: Timestamp) -> Settlement {
    Settlement { lease: run.lease(), part: run.part, by: By::Lease, change: change(run, outcome, now) }
}

/// Two things that must be the same, compared as they print; what differs is
/// shown line by line.
pub fn assert_same(found: &impl Debug, expected: &impl Debug, what: &str) {
    let (found, expected) = (format!("{found:#?}"), format!("{expected:#?}"));
    if found == expected {
        return;
    }
    let (found, expected): (Vec<_>, Vec<_>) = (found.lines().collect(), expected.lines().collect());
    let gone: Vec<_> = expected.iter().filter(|line| !found.contains(line)).collect();
    let new: Vec<_> = found.iter().filter(|line| !expected.contains(line)).collect();
    panic!("{what} differs\nexpected: {gone:#?}\nfound: {new:#?}\nall that was found: {}", found.join("\n"));
}

pub fn not_applied<T: Debug>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::NotApplied { .. }))
}
