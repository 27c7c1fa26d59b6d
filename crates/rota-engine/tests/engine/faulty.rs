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
    quota::Held,
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

/// What a call is given, kept until it is made.
trait Passed {
    type Kept: Lent + Send + 'static;

    fn keep(self) -> Self::Kept;
}

/// What was kept, as a call takes it.
trait Lent {
    type As<'k>
    where
        Self: 'k;

    fn lend(&self) -> Self::As<'_>;
}

impl<T: Clone + Send + 'static> Passed for &[T] {
    type Kept = Vec<T>;

    fn keep(self) -> Vec<T> {
        self.to_vec()
    }
}

impl<T: 'static> Lent for Vec<T> {
    type As<'k> = &'k [T];

    fn lend(&self) -> &[T] {
        self
    }
}

impl Passed for &str {
    type Kept = String;

    fn keep(self) -> String {
        self.to_owned()
    }
}

impl Lent for String {
    type As<'k> = &'k str;

    fn lend(&self) -> &str {
        self
    }
}

impl Passed for Option<&Pause> {
    type Kept = Option<Pause>;

    fn keep(self) -> Option<Pause> {
        self.cloned()
    }
}

impl Lent for Option<Pause> {
    type As<'k> = Option<&'k Pause>;

    fn lend(&self) -> Option<&Pause> {
        self.as_ref()
    }
}

macro_rules! lent {
    ($($type:ty),* $(,)?) => {$(
        impl Passed for &$type {
            type Kept = $type;

            fn keep(self) -> $type {
                self.clone()
            }
        }

        impl Lent for $type {
            type As<'k> = &'k $type;

            fn lend(&self) -> &$type {
                self
            }
        }
    )*};
}

macro_rules! copied {
    ($($type:ty),* $(,)?) => {$(
        impl Passed for $type {
            type Kept = $type;

            fn keep(self) -> $type {
                self
            }
        }

        impl Lent for $type {
            type As<'k> = $type;

            fn lend(&self) -> $type {
                *self
            }
        }
    )*};
}

lent! {
    AuditQuery, CancelAsk, Claim, JobQuery, LogQuery, NodeBeat, Reap, Request, RunQuery, ScheduleQuery, Tend,
    TokenQuery, UserQuery, Write,
}

copied! {
    Held, JobId, LaneId, LaneMode, NodeId, Option<ScheduleId>, Option<TenantId>, Option<Timestamp>,
    Option<WorkerId>, RunId, ScheduleId, TenantId, Timestamp, WorkerId, i32, i64, u32, u64,
}

/// The port, each method once: what a [`Tap`] sees, and how it gets to the store.
macro_rules! port {
    ($($role:ident {
        $($what:ident($($name:ident: $type:ty),*) -> $answer:ty: $kind:ident;)*
    } $(+ { $($by_hand:tt)* })?)*) => {
        /// Sees calls as the store does them; may change them, too.
        pub trait Tap: Send + Sync {
            $($(
                fn $what(&self, store: &dyn Store, $($name: $type),*) -> Result<$answer, StoreError> {
                    wait(store.$what($($name),*))
                }
            )*)*

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
        }

        $(
            #[async_trait]
            impl $role for Faulty {
                $(
                    async fn $what(&self, $($name: $type),*) -> Result<$answer, StoreError> {
                        $(let $name = $name.keep();)*
                        let work = move |store: &dyn Store, tap: &dyn Tap| tap.$what(store, $($name.lend()),*);
                        self.call(stringify!($what), Kind::$kind, work).await
                    }
                )*

                $($($by_hand)*)?
            }
        )*
    };
}

port! {
    TenantStore {
        put_tenants(tenants: &[TenantPut], now: Timestamp) -> Vec<TenantId>: Plain;
        tenants() -> Vec<Tenant>: Read;
        count_held(tenant: TenantId, held: Held, most: u64, now: Timestamp) -> u64: Read;
    }
    LaneStore {
        lanes(keys: &[LaneKey], mode: LaneMode) -> Vec<Lane>: Plain;
        all_lanes() -> Vec<Lane>: Read;
    }
    JobStore {
        deletions(limit: u32) -> Vec<(Timestamp, Deletion)>: Read;
        forget_deletions(jobs: &[JobId], now: Timestamp) -> (): Named;
        jobs(ids: &[JobId]) -> Vec<Option<JobRecord>>: Read;
        find_jobs(names: &[(TenantId, String)]) -> Vec<Option<JobRecord>>: Read;
        list_jobs(query: &JobQuery) -> JobPage: Read;
        job_versions(job: JobId, limit: u32) -> Vec<JobVersion>: Read;
        job_document(job: JobId, version: i32) -> Option<String>: Read;
    }
    ScheduleStore {
        count_due(seconds: &[Timestamp], most: u64) -> Vec<u64>: Read;
        reserve_schedules(count: u32) -> ScheduleId: Plain;
        schedules(ids: &[ScheduleId]) -> Vec<Option<ScheduleRecord>>: Read;
        list_schedules(query: &ScheduleQuery) -> SchedulePage: Read;
        cursors(schedules: &[ScheduleId]) -> Vec<Option<DueCursor>>: Read;
        skips(schedule: ScheduleId, before: Option<Timestamp>, limit: u32) -> Vec<SkipRecord>: Read;
    }
    JobChanges {
        put_jobs(write: &Write, jobs: &[JobPut]) -> Vec<JobSaved>: Named;
        delete_jobs(write: &Write, jobs: &[Deletion]) -> Vec<Guarded>: Named;
    }
    ScheduleChanges {
        put_schedules(write: &Write, schedules: &[SchedulePut]) -> Vec<ScheduleSaved>: Named;
        review(parts: &[Partition], after: Option<ScheduleId>, limit: u32) -> ReviewPage: Read;
        wake_at(write: &Write, cursors: &[(DueCursor, Option<Timestamp>)]) -> Vec<Guarded>: Named;
    }
    PauseStore {
        set_pauses(write: &Write, targets: &[PauseTarget], pause: Option<&Pause>) -> Vec<bool>: Named;
        pauses() -> Pauses: Read;
    }
    CalendarStore {
        put_calendars(calendars: &[CalendarPut], now: Timestamp) -> (): Plain;
        calendars(tenant: TenantId) -> Vec<Calendar>: Read;
    }
    FireStore {
        due(parts: &[Partition], until: Timestamp, limit: u32) -> Vec<DueCursor>: Read;
        live_of(schedules: &[ScheduleId], limit: u32) -> Vec<Vec<LiveRun>>: Read;
        fire(write: &Write, pauses_revision: i64, items: &[FireItem]) -> Vec<Fired>: Named;
    }
    EnqueueStore {
    } + {
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
    }
    QueueStore {
        is_answered(request: &Request, now: Timestamp) -> bool: Read;
        oldest_queued() -> Option<Timestamp>: Read;
        standing(run: RunId) -> Standing: Read;
    } + {
        async fn inbox(&self, limit: u32) -> Result<Vec<InboxItem>, StoreError> {
            self.here()?;
            let by_hand: Vec<InboxItem> = self.inbox.lock().unwrap().iter().take(limit as usize).cloned().collect();
            if !by_hand.is_empty() {
                return Ok(by_hand);
            }
            self.call("inbox", Kind::Read, move |store, tap| tap.inbox(store, limit)).await
        }
    }
    FollowStore {
        job_ends(limit: u32) -> JobEnds: Read;
        follow_ends(write: &Write, items: &[FollowEnds]) -> Vec<Followed>: Named;
    }
    PromoteStore {
        promote(write: &Write, parts: &[Partition], limit: u32) -> Promoted: Named;
    }
    ClaimStore {
        ready_pairs(lanes: &[LaneId]) -> Vec<(Pair, OrderKey)>: Read;
        claim(write: &Write, claims: &[Claim]) -> Vec<Run>: Named;
    }
    OwnStore {
        own(parts: &[Partition], windows: &[Window]) -> Vec<Vec<Run>>: Read;
        inherited(parts: &[Partition], limit: u32) -> Vec<Run>: Read;
        notices(parts: &[Partition], limit: u32) -> Vec<Run>: Read;
        clear_notices(seen: &[(Partition, RunId)]) -> (): Plain;
        lease_owned(write: &Write, worker: WorkerId, until: Timestamp, asks: &[OwnLease]) -> Vec<Guarded>: Named;
        mark_running(write: &Write, marks: &[RunningMark]) -> Vec<Guarded>: Named;
        lease_running(write: &Write, worker: WorkerId, until: Timestamp, attempts: &[RunningMark]) -> Vec<Guarded>: Named;
    }
    SettleStore {
        settle(write: &Write, settlements: &[Settlement]) -> Settled: Named;
    }
    ExtendStore {
        extend(worker: WorkerId, until: Timestamp, held: &[Lease], now: Timestamp) -> Extended: Plain;
        progress(reports: &[(Lease, String)]) -> Vec<Guarded>: Plain;
    }
    CancelStore {
        request_cancel(write: &Write, runs: &[RunId], ask: &CancelAsk) -> Vec<CancelAnswer>: Named;
        wake(write: &Write, runs: &[RunId]) -> Vec<Guarded>: Named;
    }
    ReapStore {
        release(write: &Write, worker: WorkerId) -> Vec<Woken>: Named;
        reap(write: &Write, reap: &Reap) -> Vec<Reaped>: Named;
        sweep(write: &Write, limit: u32) -> Vec<Reaped>: Named;
    }
    SlotStore {
        recount_slots(write: &Write) -> u32: Named;
    }
    JoinStore {
        mend_joins(write: &Write) -> u32: Named;
    }
    RunStore {
        runs(ids: &[RunId]) -> Vec<Option<RunRecord>>: Read;
        list_runs(query: &RunQuery) -> RunPage: Read;
    }
    RollupStore {
        rollups(job: JobId, from_hour: i64, to_hour: i64) -> Vec<(i64, Rollup)>: Read;
    }
    LogStore {
        append_logs(chunks: &[LogChunk]) -> (): Plain;
        logs(query: &LogQuery) -> Vec<LogChunk>: Read;
    }
    DeadStore {
        dead_marks(runs: &[RunId]) -> Vec<Option<DeadMark>>: Read;
        open_dead(most: u32) -> OpenDead: Read;
        discard(runs: &[RunId], by: &str, now: Timestamp) -> Vec<bool>: Plain;
    }
    UnreadableStore {
        unreadable() -> Vec<UnreadableRow>: Read;
        raw_row(table: &str, key: &str) -> Option<serde_json::Value>: Read;
        discard_row(table: &str, key: &str) -> Discarded: Plain;
    } + {
        fn note_definition(&self, table: &'static str, key: &str, broken: Option<&str>) {
            self.inner.note_definition(table, key, broken);
        }
    }
    UpkeepStore {
        tend(tend: &Tend) -> Tended: Plain;
    }
    NodeStore {
        beat(beat: &NodeBeat, now: Timestamp) -> Guarded: Plain;
        nodes(now: Timestamp) -> Vec<Node>: Read;
        leave(node: NodeId) -> (): Plain;
    } + {
        async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
            let own = self.call("time", Kind::Read, move |store, _| wait(store.time())).await?;
            Ok(self.clock.lock().unwrap().as_ref().map(|clock| clock()).or(own))
        }
    }
    PartitionStore {
        partitions() -> Vec<PartitionLease>: Read;
        take_partitions(node: NodeId, parts: &[Partition], now: Timestamp) -> Vec<Option<Epoch>>: Plain;
        give_partitions(node: NodeId, parts: &[(Partition, Epoch)]) -> Vec<Guarded>: Plain;
    }
    WorkerStore {
        beat_workers(beats: &[WorkerBeat], now: Timestamp) -> Vec<bool>: Plain;
        workers(tenant: Option<TenantId>, after: Option<WorkerId>, limit: u32) -> Vec<Worker>: Read;
        drain_worker(tenant: Option<TenantId>, worker: WorkerId) -> bool: Plain;
        forget_workers(workers: &[WorkerId]) -> (): Plain;
    }
    RateStore {
        take_tokens(asks: &[TokenAsk], now: Timestamp) -> Vec<Taken>: Plain;
    }
    TokenStore {
        put_tokens(tokens: &[Token]) -> (): Plain;
        find_tokens(digests: &[SecretDigest]) -> Vec<Option<Token>>: Read;
        tokens(ids: &[TokenId]) -> Vec<Option<Token>>: Read;
        list_tokens(query: &TokenQuery) -> TokenPage: Read;
        revoke_tokens(ids: &[TokenId], now: Timestamp) -> Vec<Guarded>: Plain;
        touch_tokens(uses: &[(TokenId, Timestamp)]) -> (): Plain;
    }
    UserStore {
        put_users(users: &[UserPut], now: Timestamp) -> Vec<Guarded>: Plain;
        users(names: &[(TenantId, String)]) -> Vec<Option<User>>: Read;
        list_users(query: &UserQuery) -> UserPage: Read;
        delete_users(ids: &[UserId]) -> Vec<Guarded>: Plain;
    }
    SessionStore {
        put_sessions(sessions: &[Session]) -> Vec<Guarded>: Plain;
        find_sessions(digests: &[SecretDigest]) -> Vec<Option<(Session, User)>>: Read;
        delete_sessions(digests: &[SecretDigest]) -> (): Plain;
    }
    AuditStore {
        append_audit(entries: &[AuditEntry]) -> (): Plain;
        list_audit(query: &AuditQuery) -> AuditPage: Read;
    }
}

impl Store for Faulty {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
}
