//! A store that can be told what to do wrong.
//!
//! By hand: to be away, or to lose the answer of its next write after having
//! done it. By a [`Line`]: each call may be refused, done and not answered for,
//! never arrive, or arrive or be answered late, also long after its caller died.
//! A [`Tap`] sees calls where the store does them, in its own order.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

use tokio::sync::watch;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    access::SecretDigest,
    dispatch::{Pair, Window},
    ids::{JobId, LaneId, NodeId, Partition, RunId, ScheduleId, TenantId, TokenId, UserId, WorkerId},
    lane::{Lane, LaneKey, LaneMode},
    order::OrderKey,
    rate::Taken,
    rollup::Rollup,
    run::{CancelAsk, Lease, NewRun, Run},
    store::*,
};

/// What a call does to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    /// Changes something, and is harmless when asked again.
    Plain,
    /// Changes something under a batch's name.
    Named,
}

/// What becomes of one call on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Through,
    /// Nothing is done, and the caller knows.
    Refused,
    /// It is done, and the answer is lost.
    Unanswered,
    /// It never arrives, and the caller cannot know.
    Vanished,
    /// It arrives, or is answered, later. It arrives although its caller may be
    /// dead by then.
    Late {
        arrives_at: Option<Timestamp>,
        answered_at: Option<Timestamp>,
    },
}

/// A call that is under way, to be done when its time has come.
pub type Parcel = Box<dyn FnOnce() + Send>;

/// The way between one node and the store.
pub trait Line: Send + Sync {
    fn fate(&self, what: &'static str, kind: Kind) -> Fate;

    /// Has the call done at that time.
    fn post(&self, at: Timestamp, parcel: Parcel);

    fn has_come(&self, at: Timestamp) -> bool;
}

/// Sees calls as the store does them; may change them, too.
pub trait Tap: Send + Sync {
    fn put_jobs(&self, store: &dyn Store, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
        wait(store.put_jobs(write, jobs))
    }

    fn delete_jobs(&self, store: &dyn Store, write: &Write, jobs: &[Deletion]) -> Result<Vec<Guarded>, StoreError> {
        wait(store.delete_jobs(write, jobs))
    }

    fn put_schedules(
        &self,
        store: &dyn Store,
        write: &Write,
        schedules: &[SchedulePut],
    ) -> Result<Vec<ScheduleSaved>, StoreError> {
        wait(store.put_schedules(write, schedules))
    }

    fn set_pauses(
        &self,
        store: &dyn Store,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, StoreError> {
        wait(store.set_pauses(write, targets, pause))
    }

    fn fire(
        &self,
        store: &dyn Store,
        write: &Write,
        pauses_revision: i64,
        items: &[FireItem],
    ) -> Result<Vec<Fired>, StoreError> {
        wait(store.fire(write, pauses_revision, items))
    }

    fn pauses(&self, store: &dyn Store) -> Result<Pauses, StoreError> {
        wait(store.pauses())
    }

    fn enqueue(
        &self,
        store: &dyn Store,
        write: &Write,
        runs: &[NewRun],
        inbox: &[i64],
    ) -> Result<Vec<Enqueued>, StoreError> {
        wait(store.enqueue(write, runs, inbox))
    }

    fn inbox(&self, store: &dyn Store, limit: u32) -> Result<Vec<InboxItem>, StoreError> {
        wait(store.inbox(limit))
    }

    fn discard(&self, store: &dyn Store, runs: &[RunId], by: &str, now: Timestamp) -> Result<Vec<bool>, StoreError> {
        wait(store.discard(runs, by, now))
    }

    fn take_tokens(&self, store: &dyn Store, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError> {
        wait(store.take_tokens(asks, now))
    }

    fn follow_ends(&self, store: &dyn Store, write: &Write, items: &[FollowEnds]) -> Result<Vec<Followed>, StoreError> {
        wait(store.follow_ends(write, items))
    }

    fn promote(
        &self,
        store: &dyn Store,
        write: &Write,
        parts: &[Partition],
        limit: u32,
    ) -> Result<Promoted, StoreError> {
        wait(store.promote(write, parts, limit))
    }

    fn ready_pairs(&self, store: &dyn Store, lanes: &[LaneId]) -> Result<Vec<(Pair, OrderKey)>, StoreError> {
        wait(store.ready_pairs(lanes))
    }

    fn claim(&self, store: &dyn Store, write: &Write, claim: &Claim) -> Result<Vec<Run>, StoreError> {
        wait(store.claim(write, claim))
    }

    fn claim_each(&self, store: &dyn Store, write: &Write, claims: &[Claim]) -> Result<Vec<Run>, StoreError> {
        wait(store.claim_each(write, claims))
    }

    fn own(&self, store: &dyn Store, parts: &[Partition], windows: &[Window]) -> Result<Vec<Vec<Run>>, StoreError> {
        wait(store.own(parts, windows))
    }

    fn inherited(&self, store: &dyn Store, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        wait(store.inherited(parts, limit))
    }

    fn notices(&self, store: &dyn Store, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        wait(store.notices(parts, limit))
    }

    fn clear_notices(&self, store: &dyn Store, seen: &[(Partition, RunId)]) -> Result<(), StoreError> {
        wait(store.clear_notices(seen))
    }

    fn lease_owned(
        &self,
        store: &dyn Store,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        asks: &[OwnLease],
    ) -> Result<Vec<Guarded>, StoreError> {
        wait(store.lease_owned(write, worker, until, asks))
    }

    fn mark_running(
        &self,
        store: &dyn Store,
        write: &Write,
        marks: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError> {
        wait(store.mark_running(write, marks))
    }

    fn lease_running(
        &self,
        store: &dyn Store,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        attempts: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError> {
        wait(store.lease_running(write, worker, until, attempts))
    }

    fn settle(&self, store: &dyn Store, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        wait(store.settle(write, settlements))
    }

    fn extend(
        &self,
        store: &dyn Store,
        worker: WorkerId,
        until: Timestamp,
        held: &[Lease],
        now: Timestamp,
    ) -> Result<Extended, StoreError> {
        wait(store.extend(worker, until, held, now))
    }

    fn request_cancel(
        &self,
        store: &dyn Store,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<Vec<CancelAnswer>, StoreError> {
        wait(store.request_cancel(write, runs, ask))
    }

    fn release(&self, store: &dyn Store, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError> {
        wait(store.release(write, worker))
    }

    fn reap(&self, store: &dyn Store, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError> {
        wait(store.reap(write, reap))
    }

    fn sweep(&self, store: &dyn Store, write: &Write, limit: u32) -> Result<Vec<Reaped>, StoreError> {
        wait(store.sweep(write, limit))
    }

    fn wake(&self, store: &dyn Store, write: &Write, runs: &[RunId]) -> Result<Vec<Guarded>, StoreError> {
        wait(store.wake(write, runs))
    }

    fn recount_slots(&self, store: &dyn Store, write: &Write) -> Result<u32, StoreError> {
        wait(store.recount_slots(write))
    }

    fn mend_joins(&self, store: &dyn Store, write: &Write) -> Result<u32, StoreError> {
        wait(store.mend_joins(write))
    }

    fn beat(&self, store: &dyn Store, beat: &NodeBeat, now: Timestamp) -> Result<Guarded, StoreError> {
        wait(store.beat(beat, now))
    }

    fn leave(&self, store: &dyn Store, node: NodeId) -> Result<(), StoreError> {
        wait(store.leave(node))
    }

    fn take_partitions(
        &self,
        store: &dyn Store,
        node: NodeId,
        parts: &[Partition],
        now: Timestamp,
    ) -> Result<Vec<Option<Epoch>>, StoreError> {
        wait(store.take_partitions(node, parts, now))
    }

    fn give_partitions(
        &self,
        store: &dyn Store,
        node: NodeId,
        parts: &[(Partition, Epoch)],
    ) -> Result<Vec<Guarded>, StoreError> {
        wait(store.give_partitions(node, parts))
    }
}

/// Nobody listens.
pub struct Untapped;

impl Tap for Untapped {}

struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for the store in place: no other task runs meanwhile, so that the
/// order of events does not depend on how fast it answers.
pub fn wait<T>(work: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Parked(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    // A task that has done much without a break is told to wait by everything that it
    // asks, until the runtime gets its turn: which it does not here.
    let mut work = std::pin::pin!(tokio::task::unconstrained(work));
    loop {
        match work.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park(),
        }
    }
}

pub struct Faulty {
    pub inner: Arc<dyn Store>,
    away: AtomicBool,
    lose: AtomicUsize,
    hangs: watch::Sender<bool>,
    /// A clock of its own, as a server has.
    clock: Mutex<Option<Box<dyn Fn() -> Timestamp + Send>>>,
    pub writes: AtomicUsize,
    /// Requests as another's transaction would have left them.
    inbox: Mutex<Vec<InboxItem>>,
    line: Option<Arc<dyn Line>>,
    tap: Arc<dyn Tap>,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            away: AtomicBool::new(false),
            lose: AtomicUsize::new(0),
            hangs: watch::Sender::new(false),
            clock: Mutex::default(),
            writes: AtomicUsize::new(0),
            inbox: Mutex::default(),
            line: None,
            tap: Arc::new(Untapped),
        }
    }

    /// The same store as one node reaches it.
    pub fn over(inner: Arc<dyn Store>, line: Arc<dyn Line>, tap: Arc<dyn Tap>) -> Self {
        Self { line: Some(line), tap, ..Self::new(inner) }
    }

    /// The same store with one who sees, and may change, what it does.
    pub fn tapped(inner: Arc<dyn Store>, tap: Arc<dyn Tap>) -> Self {
        Self { tap, ..Self::new(inner) }
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

    /// Nothing is answered while it hangs, not even with a refusal.
    pub fn set_hung(&self, hung: bool) {
        self.hangs.send_replace(hung);
    }

    /// From now on it has a clock of its own.
    pub fn set_clock(&self, clock: impl Fn() -> Timestamp + Send + 'static) {
        *self.clock.lock().unwrap() = Some(Box::new(clock));
    }

    /// The next writes happen, and their answers are lost.
    pub fn lose_answers(&self, count: usize) {
        self.lose.store(count, Ordering::SeqCst);
    }

    fn here(&self) -> Result<(), StoreError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(refused());
        }
        Ok(())
    }

    async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        kind: Kind,
        work: impl FnOnce(&dyn Store, &dyn Tap) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.here()?;
        // The sender lives as long as this store.
        drop(self.hangs.subscribe().wait_for(|hangs| !*hangs).await);
        let (inner, tap) = (Arc::clone(&self.inner), Arc::clone(&self.tap));
        let work = move || work(inner.as_ref(), tap.as_ref());
        let Some(line) = &self.line else {
            // As a store does that others wait for: their tasks get their turn.
            tokio::task::yield_now().await;
            return self.by_hand(kind, work);
        };
        match line.fate(what, kind) {
            Fate::Through => work(),
            Fate::Refused => Err(refused()),
            Fate::Unanswered => work().and_then(|_| Err(unanswered())),
            Fate::Vanished => Err(unanswered()),
            Fate::Late { arrives_at, answered_at } => {
                let answer = match arrives_at {
                    Some(at) => by_post(line.as_ref(), at, work).await,
                    None => work(),
                };
                if let Some(at) = answered_at {
                    come(|| line.has_come(at).then_some(())).await;
                }
                answer
            }
        }
    }

    fn by_hand<T>(&self, kind: Kind, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        if kind != Kind::Named {
            return work();
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        let answer = work()?;
        let lost = self.lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if lost { Err(unanswered()) } else { Ok(answer) }
    }
}

/// Waits for what only the simulator's time brings. Nobody is told when it has
/// come, so whoever waits asks to be polled again.
async fn come<T>(mut found: impl FnMut() -> Option<T>) -> T {
    poll_fn(|context| {
        let found = found();
        if found.is_none() {
            context.waker().wake_by_ref();
        }
        found.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

async fn by_post<T: Send + 'static>(
    line: &dyn Line,
    at: Timestamp,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let answer = Arc::new(Mutex::new(None));
    let told = Arc::clone(&answer);
    line.post(at, Box::new(move || *told.lock().unwrap() = Some(work())));
    come(|| answer.lock().unwrap().take()).await
}

fn refused() -> StoreError {
    StoreError::NotApplied { what: "be there", source: "away".into() }
}

fn unanswered() -> StoreError {
    StoreError::OutcomeUnknown { what: "tell", source: "the answer was lost".into() }
}

#[async_trait]
impl JobStore for Faulty {
    async fn put_tenants(&self, tenants: &[TenantPut], now: Timestamp) -> Result<Vec<TenantId>, StoreError> {
        let tenants = tenants.to_vec();
        self.call("put_tenants", Kind::Plain, move |store, _| wait(store.put_tenants(&tenants, now))).await
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        self.call("tenants", Kind::Read, move |store, _| wait(store.tenants())).await
    }

    async fn lanes(&self, keys: &[LaneKey], mode: LaneMode) -> Result<Vec<Lane>, StoreError> {
        let keys = keys.to_vec();
        self.call("lanes", Kind::Plain, move |store, _| wait(store.lanes(&keys, mode))).await
    }

    async fn all_lanes(&self) -> Result<Vec<Lane>, StoreError> {
        self.call("all_lanes", Kind::Read, move |store, _| wait(store.all_lanes())).await
    }

    async fn turn_lane(&self, lane: LaneId, mode: LaneMode) -> Result<Lane, StoreError> {
        self.call("turn_lane", Kind::Plain, move |store, _| wait(store.turn_lane(lane, mode))).await
    }

    async fn put_jobs(&self, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
        let (write, jobs) = (write.clone(), jobs.to_vec());
        self.call("put_jobs", Kind::Named, move |store, tap| tap.put_jobs(store, &write, &jobs)).await
    }

    async fn delete_jobs(&self, write: &Write, jobs: &[Deletion]) -> Result<Vec<Guarded>, StoreError> {
        let (write, jobs) = (write.clone(), jobs.to_vec());
        self.call("delete_jobs", Kind::Named, move |store, tap| tap.delete_jobs(store, &write, &jobs)).await
    }

    async fn deletions(&self, limit: u32) -> Result<Vec<(Timestamp, Deletion)>, StoreError> {
        self.call("deletions", Kind::Read, move |store, _| wait(store.deletions(limit))).await
    }

    async fn forget_deletions(&self, jobs: &[JobId], now: Timestamp) -> Result<(), StoreError> {
        let jobs = jobs.to_vec();
        self.call("forget_deletions", Kind::Named, move |store, _| wait(store.forget_deletions(&jobs, now))).await
    }

    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Option<JobRecord>>, StoreError> {
        let ids = ids.to_vec();
        self.call("jobs", Kind::Read, move |store, _| wait(store.jobs(&ids))).await
    }

    async fn find_jobs(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<JobRecord>>, StoreError> {
        let names = names.to_vec();
        self.call("find_jobs", Kind::Read, move |store, _| wait(store.find_jobs(&names))).await
    }

    async fn list_jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        let query = query.clone();
        self.call("list_jobs", Kind::Read, move |store, _| wait(store.list_jobs(&query))).await
    }

    async fn job_versions(&self, job: JobId, limit: u32) -> Result<Vec<JobVersion>, StoreError> {
        self.call("job_versions", Kind::Read, move |store, _| wait(store.job_versions(job, limit))).await
    }

    async fn job_document(&self, job: JobId, version: i32) -> Result<Option<String>, StoreError> {
        self.call("job_document", Kind::Read, move |store, _| wait(store.job_document(job, version))).await
    }

    async fn reserve_schedules(&self, count: u32) -> Result<ScheduleId, StoreError> {
        self.call("reserve_schedules", Kind::Plain, move |store, _| wait(store.reserve_schedules(count))).await
    }

    async fn put_schedules(&self, write: &Write, schedules: &[SchedulePut]) -> Result<Vec<ScheduleSaved>, StoreError> {
        let (write, schedules) = (write.clone(), schedules.to_vec());
        self.call("put_schedules", Kind::Named, move |store, tap| tap.put_schedules(store, &write, &schedules)).await
    }

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<ScheduleRecord>>, StoreError> {
        let ids = ids.to_vec();
        self.call("schedules", Kind::Read, move |store, _| wait(store.schedules(&ids))).await
    }

    async fn find_schedules(&self, names: &[(JobId, String)]) -> Result<Vec<Option<ScheduleRecord>>, StoreError> {
        let names = names.to_vec();
        self.call("find_schedules", Kind::Read, move |store, _| wait(store.find_schedules(&names))).await
    }

    async fn count_due(&self, seconds: &[Timestamp], most: u64) -> Result<Vec<u64>, StoreError> {
        let seconds = seconds.to_vec();
        self.call("count_due", Kind::Read, move |store, _| wait(store.count_due(&seconds, most))).await
    }

    async fn count_schedules(&self, tenant: TenantId, most: u64) -> Result<u64, StoreError> {
        self.call("count_schedules", Kind::Read, move |store, _| wait(store.count_schedules(tenant, most))).await
    }

    async fn list_schedules(&self, query: &ScheduleQuery) -> Result<SchedulePage, StoreError> {
        let query = query.clone();
        self.call("list_schedules", Kind::Read, move |store, _| wait(store.list_schedules(&query))).await
    }

    async fn cursors(&self, schedules: &[ScheduleId]) -> Result<Vec<Option<DueCursor>>, StoreError> {
        let schedules = schedules.to_vec();
        self.call("cursors", Kind::Read, move |store, _| wait(store.cursors(&schedules))).await
    }

    async fn review(
        &self,
        parts: &[Partition],
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<ReviewPage, StoreError> {
        let parts = parts.to_vec();
        self.call("review", Kind::Read, move |store, _| wait(store.review(&parts, after, limit))).await
    }

    async fn wake_at(
        &self,
        write: &Write,
        cursors: &[(DueCursor, Option<Timestamp>)],
    ) -> Result<Vec<Guarded>, StoreError> {
        let (write, cursors) = (write.clone(), cursors.to_vec());
        self.call("wake_at", Kind::Named, move |store, _| wait(store.wake_at(&write, &cursors))).await
    }

    async fn skips(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<SkipRecord>, StoreError> {
        self.call("skips", Kind::Read, move |store, _| wait(store.skips(schedule, before, limit))).await
    }

    async fn set_pauses(
        &self,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, StoreError> {
        let (write, targets, pause) = (write.clone(), targets.to_vec(), pause.cloned());
        self.call("set_pauses", Kind::Named, move |store, tap| tap.set_pauses(store, &write, &targets, pause.as_ref()))
            .await
    }

    async fn pauses(&self) -> Result<Pauses, StoreError> {
        self.call("pauses", Kind::Read, move |store, tap| tap.pauses(store)).await
    }

    async fn put_calendars(&self, calendars: &[CalendarPut], now: Timestamp) -> Result<(), StoreError> {
        let calendars = calendars.to_vec();
        self.call("put_calendars", Kind::Plain, move |store, _| wait(store.put_calendars(&calendars, now))).await
    }

    async fn calendars(&self, tenant: TenantId) -> Result<Vec<Calendar>, StoreError> {
        self.call("calendars", Kind::Read, move |store, _| wait(store.calendars(tenant))).await
    }
}

#[async_trait]
impl RunStore for Faulty {
    async fn due(&self, parts: &[Partition], until: Timestamp, limit: u32) -> Result<Vec<DueCursor>, StoreError> {
        let parts = parts.to_vec();
        self.call("due", Kind::Read, move |store, _| wait(store.due(&parts, until, limit))).await
    }

    async fn live_of(&self, schedules: &[ScheduleId], limit: u32) -> Result<Vec<Vec<LiveRun>>, StoreError> {
        let schedules = schedules.to_vec();
        self.call("live_of", Kind::Read, move |store, _| wait(store.live_of(&schedules, limit))).await
    }

    async fn fire(&self, write: &Write, pauses_revision: i64, items: &[FireItem]) -> Result<Vec<Fired>, StoreError> {
        let (write, items) = (write.clone(), items.to_vec());
        self.call("fire", Kind::Named, move |store, tap| tap.fire(store, &write, pauses_revision, &items)).await
    }

    async fn enqueue(&self, write: &Write, runs: &[NewRun], inbox: &[i64]) -> Result<Vec<Enqueued>, StoreError> {
        let taken = inbox.to_vec();
        let by_hand = self.inbox.lock().unwrap().iter().any(|item| taken.contains(&item.id));
        let rows = if by_hand { Vec::new() } else { taken.clone() };
        let (write, runs) = (write.clone(), runs.to_vec());
        let work = move |store: &dyn Store, tap: &dyn Tap| tap.enqueue(store, &write, &runs, &rows);
        let answers = self.call("enqueue", Kind::Named, work).await;
        if answers.is_ok() {
            self.inbox.lock().unwrap().retain(|item| !taken.contains(&item.id));
        }
        answers
    }

    async fn job_ends(&self, limit: u32) -> Result<JobEnds, StoreError> {
        self.call("job_ends", Kind::Read, move |store, _| wait(store.job_ends(limit))).await
    }

    async fn follow_ends(&self, write: &Write, items: &[FollowEnds]) -> Result<Vec<Followed>, StoreError> {
        let (write, items) = (write.clone(), items.to_vec());
        self.call("follow_ends", Kind::Named, move |store, tap| tap.follow_ends(store, &write, &items)).await
    }

    async fn is_answered(&self, request: &Request, now: Timestamp) -> Result<bool, StoreError> {
        let request = request.clone();
        self.call("is_answered", Kind::Read, move |store, _| wait(store.is_answered(&request, now))).await
    }

    async fn inbox(&self, limit: u32) -> Result<Vec<InboxItem>, StoreError> {
        self.here()?;
        let by_hand: Vec<InboxItem> = self.inbox.lock().unwrap().iter().take(limit as usize).cloned().collect();
        if !by_hand.is_empty() {
            return Ok(by_hand);
        }
        self.call("inbox", Kind::Read, move |store, tap| tap.inbox(store, limit)).await
    }

    async fn promote(&self, write: &Write, parts: &[Partition], limit: u32) -> Result<Promoted, StoreError> {
        let (write, parts) = (write.clone(), parts.to_vec());
        self.call("promote", Kind::Named, move |store, tap| tap.promote(store, &write, &parts, limit)).await
    }

    async fn oldest_queued(&self) -> Result<Option<Timestamp>, StoreError> {
        self.call("oldest_queued", Kind::Read, move |store, _| wait(store.oldest_queued())).await
    }

    async fn ready_pairs(&self, lanes: &[LaneId]) -> Result<Vec<(Pair, OrderKey)>, StoreError> {
        let lanes = lanes.to_vec();
        self.call("ready_pairs", Kind::Read, move |store, tap| tap.ready_pairs(store, &lanes)).await
    }

    async fn claim(&self, write: &Write, claim: &Claim) -> Result<Vec<Run>, StoreError> {
        let (write, claim) = (write.clone(), claim.clone());
        self.call("claim", Kind::Named, move |store, tap| tap.claim(store, &write, &claim)).await
    }

    async fn claim_each(&self, write: &Write, claims: &[Claim]) -> Result<Vec<Run>, StoreError> {
        let (write, claims) = (write.clone(), claims.to_vec());
        self.call("claim_each", Kind::Named, move |store, tap| tap.claim_each(store, &write, &claims)).await
    }

    async fn own(&self, parts: &[Partition], windows: &[Window]) -> Result<Vec<Vec<Run>>, StoreError> {
        let (parts, windows) = (parts.to_vec(), windows.to_vec());
        self.call("own", Kind::Read, move |store, tap| tap.own(store, &parts, &windows)).await
    }

    async fn inherited(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        let parts = parts.to_vec();
        self.call("inherited", Kind::Read, move |store, tap| tap.inherited(store, &parts, limit)).await
    }

    async fn notices(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        let parts = parts.to_vec();
        self.call("notices", Kind::Read, move |store, tap| tap.notices(store, &parts, limit)).await
    }

    async fn clear_notices(&self, seen: &[(Partition, RunId)]) -> Result<(), StoreError> {
        let seen = seen.to_vec();
        self.call("clear_notices", Kind::Plain, move |store, tap| tap.clear_notices(store, &seen)).await
    }

    async fn lease_owned(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        asks: &[OwnLease],
    ) -> Result<Vec<Guarded>, StoreError> {
        let (write, asks) = (write.clone(), asks.to_vec());
        self.call("lease_owned", Kind::Named, move |store, tap| tap.lease_owned(store, &write, worker, until, &asks))
            .await
    }

    async fn mark_running(&self, write: &Write, marks: &[RunningMark]) -> Result<Vec<Guarded>, StoreError> {
        let (write, marks) = (write.clone(), marks.to_vec());
        self.call("mark_running", Kind::Named, move |store, tap| tap.mark_running(store, &write, &marks)).await
    }

    async fn lease_running(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        attempts: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError> {
        let (write, attempts) = (write.clone(), attempts.to_vec());
        self.call("lease_running", Kind::Named, move |store, tap| {
            tap.lease_running(store, &write, worker, until, &attempts)
        })
        .await
    }

    async fn settle(&self, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let (write, settlements) = (write.clone(), settlements.to_vec());
        self.call("settle", Kind::Named, move |store, tap| tap.settle(store, &write, &settlements)).await
    }

    async fn extend(
        &self,
        worker: WorkerId,
        until: Timestamp,
        held: &[Lease],
        now: Timestamp,
    ) -> Result<Extended, StoreError> {
        let held = held.to_vec();
        self.call("extend", Kind::Plain, move |store, tap| tap.extend(store, worker, until, &held, now)).await
    }

    async fn progress(&self, reports: &[(Lease, String)]) -> Result<Vec<Guarded>, StoreError> {
        let reports = reports.to_vec();
        self.call("progress", Kind::Plain, move |store, _| wait(store.progress(&reports))).await
    }

    async fn request_cancel(
        &self,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<Vec<CancelAnswer>, StoreError> {
        let (write, runs, ask) = (write.clone(), runs.to_vec(), ask.clone());
        self.call("request_cancel", Kind::Named, move |store, tap| tap.request_cancel(store, &write, &runs, &ask)).await
    }

    async fn release(&self, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError> {
        let write = write.clone();
        self.call("release", Kind::Named, move |store, tap| tap.release(store, &write, worker)).await
    }

    async fn reap(&self, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError> {
        let (write, reap) = (write.clone(), *reap);
        self.call("reap", Kind::Named, move |store, tap| tap.reap(store, &write, &reap)).await
    }

    async fn sweep(&self, write: &Write, limit: u32) -> Result<Vec<Reaped>, StoreError> {
        let write = write.clone();
        self.call("sweep", Kind::Named, move |store, tap| tap.sweep(store, &write, limit)).await
    }

    async fn wake(&self, write: &Write, runs: &[RunId]) -> Result<Vec<Guarded>, StoreError> {
        let (write, runs) = (write.clone(), runs.to_vec());
        self.call("wake", Kind::Named, move |store, tap| tap.wake(store, &write, &runs)).await
    }

    async fn recount_slots(&self, write: &Write) -> Result<u32, StoreError> {
        let write = write.clone();
        self.call("recount_slots", Kind::Named, move |store, tap| tap.recount_slots(store, &write)).await
    }

    async fn mend_joins(&self, write: &Write) -> Result<u32, StoreError> {
        let write = write.clone();
        self.call("mend_joins", Kind::Named, move |store, tap| tap.mend_joins(store, &write)).await
    }
}

#[async_trait]
impl HistoryStore for Faulty {
    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Option<RunRecord>>, StoreError> {
        let ids = ids.to_vec();
        self.call("runs", Kind::Read, move |store, _| wait(store.runs(&ids))).await
    }

    async fn standing(&self, run: RunId) -> Result<Standing, StoreError> {
        self.call("standing", Kind::Read, move |store, _| wait(store.standing(run))).await
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<RunPage, StoreError> {
        let query = query.clone();
        self.call("list_runs", Kind::Read, move |store, _| wait(store.list_runs(&query))).await
    }

    async fn rollups(&self, job: JobId, from_hour: i64, to_hour: i64) -> Result<Vec<(i64, Rollup)>, StoreError> {
        self.call("rollups", Kind::Read, move |store, _| wait(store.rollups(job, from_hour, to_hour))).await
    }

    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        let chunks = chunks.to_vec();
        self.call("append_logs", Kind::Plain, move |store, _| wait(store.append_logs(&chunks))).await
    }

    async fn logs(&self, query: &LogQuery) -> Result<Vec<LogChunk>, StoreError> {
        let query = query.clone();
        self.call("logs", Kind::Read, move |store, _| wait(store.logs(&query))).await
    }

    async fn unreadable(&self) -> Result<Vec<UnreadableRow>, StoreError> {
        self.call("unreadable", Kind::Read, move |store, _| wait(store.unreadable())).await
    }

    fn note_definition(&self, table: &'static str, key: &str, broken: Option<&str>) {
        self.inner.note_definition(table, key, broken);
    }

    async fn raw_row(&self, table: &str, key: &str) -> Result<Option<serde_json::Value>, StoreError> {
        let (table, key) = (table.to_owned(), key.to_owned());
        self.call("raw_row", Kind::Read, move |store, _| wait(store.raw_row(&table, &key))).await
    }

    async fn discard_row(&self, table: &str, key: &str) -> Result<Discarded, StoreError> {
        let (table, key) = (table.to_owned(), key.to_owned());
        self.call("discard_row", Kind::Plain, move |store, _| wait(store.discard_row(&table, &key))).await
    }

    async fn open_dead(&self, most: u32) -> Result<OpenDead, StoreError> {
        self.call("open_dead", Kind::Read, move |store, _| wait(store.open_dead(most))).await
    }

    async fn dead_marks(&self, runs: &[RunId]) -> Result<Vec<Option<DeadMark>>, StoreError> {
        let runs = runs.to_vec();
        self.call("dead_marks", Kind::Read, move |store, _| wait(store.dead_marks(&runs))).await
    }

    async fn discard(&self, runs: &[RunId], by: &str, now: Timestamp) -> Result<Vec<bool>, StoreError> {
        let (runs, by) = (runs.to_vec(), by.to_owned());
        self.call("discard", Kind::Plain, move |store, tap| tap.discard(store, &runs, &by, now)).await
    }

    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        let tend = *tend;
        self.call("tend", Kind::Plain, move |store, _| wait(store.tend(&tend))).await
    }
}

#[async_trait]
impl LeaseStore for Faulty {
    async fn beat(&self, beat: &NodeBeat, now: Timestamp) -> Result<Guarded, StoreError> {
        let beat = beat.clone();
        self.call("beat", Kind::Plain, move |store, tap| tap.beat(store, &beat, now)).await
    }

    async fn nodes(&self, now: Timestamp) -> Result<Vec<Node>, StoreError> {
        self.call("nodes", Kind::Read, move |store, _| wait(store.nodes(now))).await
    }

    async fn leave(&self, node: NodeId) -> Result<(), StoreError> {
        self.call("leave", Kind::Plain, move |store, tap| tap.leave(store, node)).await
    }

    async fn partitions(&self) -> Result<Vec<PartitionLease>, StoreError> {
        self.call("partitions", Kind::Read, move |store, _| wait(store.partitions())).await
    }

    async fn take_partitions(
        &self,
        node: NodeId,
        parts: &[Partition],
        now: Timestamp,
    ) -> Result<Vec<Option<Epoch>>, StoreError> {
        let parts = parts.to_vec();
        self.call("take_partitions", Kind::Plain, move |store, tap| tap.take_partitions(store, node, &parts, now)).await
    }

    async fn give_partitions(&self, node: NodeId, parts: &[(Partition, Epoch)]) -> Result<Vec<Guarded>, StoreError> {
        let parts = parts.to_vec();
        self.call("give_partitions", Kind::Plain, move |store, tap| tap.give_partitions(store, node, &parts)).await
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        let own = self.call("time", Kind::Read, move |store, _| wait(store.time())).await?;
        Ok(self.clock.lock().unwrap().as_ref().map(|clock| clock()).or(own))
    }

    async fn beat_workers(&self, beats: &[WorkerBeat], now: Timestamp) -> Result<Vec<bool>, StoreError> {
        let beats = beats.to_vec();
        self.call("beat_workers", Kind::Plain, move |store, _| wait(store.beat_workers(&beats, now))).await
    }

    async fn workers(
        &self,
        tenant: Option<TenantId>,
        after: Option<WorkerId>,
        limit: u32,
    ) -> Result<Vec<Worker>, StoreError> {
        self.call("workers", Kind::Read, move |store, _| wait(store.workers(tenant, after, limit))).await
    }

    async fn drain_worker(&self, tenant: Option<TenantId>, worker: WorkerId) -> Result<bool, StoreError> {
        self.call("drain_worker", Kind::Plain, move |store, _| wait(store.drain_worker(tenant, worker))).await
    }

    async fn forget_workers(&self, workers: &[WorkerId]) -> Result<(), StoreError> {
        let workers = workers.to_vec();
        self.call("forget_workers", Kind::Plain, move |store, _| wait(store.forget_workers(&workers))).await
    }

    async fn take_tokens(&self, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError> {
        let asks = asks.to_vec();
        self.call("take_tokens", Kind::Plain, move |store, tap| tap.take_tokens(store, &asks, now)).await
    }
}

#[async_trait]
impl AccessStore for Faulty {
    async fn put_tokens(&self, tokens: &[Token]) -> Result<(), StoreError> {
        let tokens = tokens.to_vec();
        self.call("put_tokens", Kind::Plain, move |store, _| wait(store.put_tokens(&tokens))).await
    }

    async fn find_tokens(&self, digests: &[SecretDigest]) -> Result<Vec<Option<Token>>, StoreError> {
        let digests = digests.to_vec();
        self.call("find_tokens", Kind::Read, move |store, _| wait(store.find_tokens(&digests))).await
    }

    async fn tokens(&self, ids: &[TokenId]) -> Result<Vec<Option<Token>>, StoreError> {
        let ids = ids.to_vec();
        self.call("tokens", Kind::Read, move |store, _| wait(store.tokens(&ids))).await
    }

    async fn list_tokens(&self, query: &TokenQuery) -> Result<TokenPage, StoreError> {
        let query = query.clone();
        self.call("list_tokens", Kind::Read, move |store, _| wait(store.list_tokens(&query))).await
    }

    async fn revoke_tokens(&self, ids: &[TokenId], now: Timestamp) -> Result<Vec<Guarded>, StoreError> {
        let ids = ids.to_vec();
        self.call("revoke_tokens", Kind::Plain, move |store, _| wait(store.revoke_tokens(&ids, now))).await
    }

    async fn touch_tokens(&self, uses: &[(TokenId, Timestamp)]) -> Result<(), StoreError> {
        let uses = uses.to_vec();
        self.call("touch_tokens", Kind::Plain, move |store, _| wait(store.touch_tokens(&uses))).await
    }

    async fn put_users(&self, users: &[UserPut], now: Timestamp) -> Result<Vec<Guarded>, StoreError> {
        let users = users.to_vec();
        self.call("put_users", Kind::Plain, move |store, _| wait(store.put_users(&users, now))).await
    }

    async fn users(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<User>>, StoreError> {
        let names = names.to_vec();
        self.call("users", Kind::Read, move |store, _| wait(store.users(&names))).await
    }

    async fn list_users(&self, query: &UserQuery) -> Result<UserPage, StoreError> {
        let query = query.clone();
        self.call("list_users", Kind::Read, move |store, _| wait(store.list_users(&query))).await
    }

    async fn delete_users(&self, ids: &[UserId]) -> Result<Vec<Guarded>, StoreError> {
        let ids = ids.to_vec();
        self.call("delete_users", Kind::Plain, move |store, _| wait(store.delete_users(&ids))).await
    }

    async fn put_sessions(&self, sessions: &[Session]) -> Result<Vec<Guarded>, StoreError> {
        let sessions = sessions.to_vec();
        self.call("put_sessions", Kind::Plain, move |store, _| wait(store.put_sessions(&sessions))).await
    }

    async fn find_sessions(&self, digests: &[SecretDigest]) -> Result<Vec<Option<(Session, User)>>, StoreError> {
        let digests = digests.to_vec();
        self.call("find_sessions", Kind::Read, move |store, _| wait(store.find_sessions(&digests))).await
    }

    async fn delete_sessions(&self, digests: &[SecretDigest]) -> Result<(), StoreError> {
        let digests = digests.to_vec();
        self.call("delete_sessions", Kind::Plain, move |store, _| wait(store.delete_sessions(&digests))).await
    }

    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        let entries = entries.to_vec();
        self.call("append_audit", Kind::Plain, move |store, _| wait(store.append_audit(&entries))).await
    }

    async fn list_audit(&self, query: &AuditQuery) -> Result<AuditPage, StoreError> {
        let query = query.clone();
        self.call("list_audit", Kind::Read, move |store, _| wait(store.list_audit(&query))).await
    }
}

impl Store for Faulty {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
}
