//! Runs on their way: made, promoted, claimed, owned, settled.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{DueCursor, Epoch, Request, Standing, StoreError, Write};
use crate::{
    after::JobEnd,
    dispatch::{Pair, Share, Window},
    fire::{Cursor, SkipRange},
    ids::{JobId, LaneId, Partition, RunId, ScheduleId, TenantId, WorkerId},
    order::OrderKey,
    run::{CancelAsk, Change, Finish, Lease, NewRun, Run, Status, Verdict},
};

/// A run that ended by a write that was not its own settlement: cancelled
/// before it began, displaced, expired, or past its grace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRun {
    pub id: RunId,
    pub job: JobId,
    pub tenant: TenantId,
    pub verdict: Verdict,
    pub at: Timestamp,
    /// The run that follows by itself, and when it will be ready.
    pub follower: Option<(RunId, Timestamp)>,
}

impl EndedRun {
    pub fn of(run: &Run, finish: &Finish) -> Self {
        let follower = finish.follower.as_ref().map(|new| (new.id, new.ready_at));
        let Run { id, job, tenant, .. } = *run;
        Self { id, job, tenant, verdict: finish.verdict, at: finish.ended_at, follower }
    }
}

/// Where a store says which runs ended by a write, whatever the write was for.
/// To be read once the write is answered; asked again under the same write, the
/// runs named are those that ended when it was done.
#[derive(Clone, Debug, Default)]
pub struct Ends(Arc<Mutex<Vec<EndedRun>>>);

impl Ends {
    /// Says who ended, in place of what a try that came to nothing said.
    pub fn put(&self, ended: Vec<EndedRun>) {
        *self.0.lock() = ended;
    }

    /// Reads what was said, which is then said no more.
    pub fn take(&self) -> Vec<EndedRun> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The answer to one guarded item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarded {
    Applied,
    /// The guard no longer holds; nothing was changed.
    Stale,
    /// The run was asked to stop meanwhile, and this is no answer to that;
    /// nothing was changed. Settle it as one that was asked to stop.
    CancelAsked,
}

/// By what right a run is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// As the owner of its partition, at this epoch.
    Owner(Epoch),
    /// By a written lease.
    Lease,
}

/// A change to a run that someone executes.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub lease: Lease,
    pub part: Partition,
    pub by: By,
    pub change: Change,
}

/// What settling brought.
#[derive(Clone, Debug)]
pub struct Settled {
    /// One for each settlement.
    pub answers: Vec<Guarded>,
    pub woken: Vec<Woken>,
}

/// A run that became ready by what others did: admitted to a slot, joined,
/// promoted.
#[derive(Clone, Debug, PartialEq)]
pub struct Woken {
    pub run: Run,
    /// It lies in a partition that the writing node holds, and in an owned
    /// lane: the node keeps it in memory. Otherwise its owner was left a
    /// notice, or it is there to be claimed.
    pub handed: bool,
}

/// What became of a run to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enqueued {
    /// It is there. `handed` as in [`Woken`].
    Made { status: Status, handed: bool },
    /// Another run under the same unique key stands in its way.
    Duplicate { of: RunId },
    /// Its concurrency key has no room.
    Full,
    /// The request that asks had made this run before, in this state.
    Again { of: RunId, status: Status, handed: bool },
}

impl Enqueued {
    /// As kept under a request key: whoever asks again names other runs, and
    /// must be told of the first ones.
    #[must_use]
    pub fn kept_for(self, run: RunId) -> Self {
        match self {
            Self::Made { status, handed } => Self::Again { of: run, status, handed },
            Self::Duplicate { .. } | Self::Full | Self::Again { .. } => self,
        }
    }

    /// As told to someone who asks for `run`: the same write, asked again
    /// because its answer was lost, is answered as it would have been.
    #[must_use]
    pub fn told_for(self, run: RunId) -> Self {
        match self {
            Self::Again { of, status, handed } if of == run => Self::Made { status, handed },
            Self::Made { .. } | Self::Duplicate { .. } | Self::Full | Self::Again { .. } => self,
        }
    }

    /// Why there is no run, in a word.
    pub fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Made { .. } | Self::Again { .. } => None,
            Self::Duplicate { .. } => Some("unique"),
            Self::Full => Some("overlap"),
        }
    }
}

/// One schedule's due instants, planned and to be committed together.
#[derive(Clone, Debug)]
pub struct FireItem {
    /// The cursor as read: the guard.
    pub due: DueCursor,
    pub job: JobId,
    /// The job's revision as read: the guard against an edit or pause since.
    pub job_revision: i32,
    pub next: Option<Cursor>,
    /// Where one of the runs is refused.
    pub next_if_refused: Option<Cursor>,
    /// A run of an `after_finish` schedule re-arms it when it ends.
    pub runs: Vec<FireRun>,
    pub skips: Vec<SkipRange>,
    /// Earlier runs of this schedule to ask to stop.
    pub cancel: Vec<RunId>,
    pub cancel_ask: Option<CancelAsk>,
}

/// A run of a schedule, to be made by firing.
pub type FireRun = NewRun;

/// What became of a schedule's due instants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fired {
    /// Committed: one answer per run. A run that was refused is recorded as
    /// skipped.
    Fired(Vec<Enqueued>),
    /// Someone else fired it, or it was edited, paused or deleted since it was
    /// read. Nothing was changed: read it again.
    Stale,
}

/// A live run of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRun {
    pub id: RunId,
    pub status: Status,
    pub planned_at: Option<Timestamp>,
}

/// What promoting brought.
#[derive(Clone, Debug)]
pub struct Promoted {
    pub woken: Vec<Woken>,
    /// How many left `scheduled`, those that now wait for a slot included.
    pub moved: usize,
    /// When the next delayed run of these partitions is ready.
    pub next_at: Option<Timestamp>,
}

/// A worker asks for runs of claimed lanes.
#[derive(Clone, Debug)]
pub struct Claim {
    pub worker: WorkerId,
    /// Until when the worker's leases hold.
    pub until: Timestamp,
    pub shares: Vec<Share>,
    /// No more than this over all shares.
    pub most: u32,
}

/// An owner leases a run of its partition in writing, because it may be what
/// killed the owner before.
#[derive(Clone, Copy, Debug)]
pub struct OwnLease {
    pub lease: Lease,
    pub part: Partition,
    pub epoch: Epoch,
}

/// A run that its partition's owner executes: the owner says so because it takes long,
/// or keeps it by a written lease when it gives the partition away.
#[derive(Clone, Copy, Debug)]
pub struct RunningMark {
    pub lease: Lease,
    pub part: Partition,
    pub epoch: Epoch,
    pub started_at: Timestamp,
}

/// The answer to a worker that extends its leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Leases in its list that are not its own any more.
    pub lost: Vec<RunId>,
    /// Runs it was asked to stop.
    pub cancelling: Vec<RunId>,
    /// Leases the store has for it that are not in its list.
    pub unlisted: Vec<Lease>,
}

/// The answer to a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelAnswer {
    /// It has ended as cancelled.
    Cancelled,
    /// It was asked to stop and will answer.
    Asked,
    AlreadyAsked,
    /// It had ended before.
    Ended,
    NotFound,
}

/// What to reap.
#[derive(Clone, Copy, Debug)]
pub struct Reap {
    /// Workers whose leases ran out before this are gone.
    pub before: Timestamp,
    pub losses_max: u16,
    pub limit: u32,
}

/// A run that was taken from a vanished worker, or whose time ran out.
#[derive(Clone, Debug, PartialEq)]
pub struct Reaped {
    pub id: RunId,
    pub job: JobId,
    pub tenant: TenantId,
    /// As it stands after.
    pub status: Status,
}

/// The ends that jobs wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobEnds {
    /// By the job that waits, in the order they came.
    pub ends: Vec<JobEnd>,
    /// Whether any job waits for another at all.
    pub waited_for: bool,
}

/// What becomes of the ends that one job has waited for.
#[derive(Clone, Debug)]
pub struct FollowEnds {
    pub downstream: JobId,
    /// The job's revision as read: the guard against an edit or pause since.
    pub job_revision: i32,
    /// Runs whose ends are taken away, and those whose ends are kept for later:
    /// the guard, all of them must still be written down.
    pub used: Vec<RunId>,
    pub held: Vec<RunId>,
    /// One that is refused is kept as skipped.
    pub runs: Vec<NewRun>,
    /// Runs to be kept as skipped at once, and why.
    pub skips: Vec<(NewRun, String)>,
}

/// What became of the ends that a job has waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Followed {
    /// Committed: one answer per run.
    Done(Vec<Enqueued>),
    /// Someone else did it, or the job was changed since it was read. Nothing
    /// was changed: read it again.
    Stale,
}

/// A request to enqueue, written inside a caller's own transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct InboxItem {
    pub id: i64,
    pub at: Timestamp,
    /// JSON: tenant, job, payload, labels, `run_at`, key.
    pub body: String,
}

/// What is due, and the runs it leads to.
#[async_trait]
pub trait FireStore: Send + Sync {
    /// Cursors due up to `until` in these partitions, earliest first.
    async fn due(&self, parts: &[Partition], until: Timestamp, limit: u32) -> Result<Vec<DueCursor>, StoreError>;

    /// The live runs of each schedule, the oldest `limit` of each, for its overlap policy.
    async fn live_of(&self, schedules: &[ScheduleId], limit: u32) -> Result<Vec<Vec<LiveRun>>, StoreError>;

    /// Commits runs, recorded skips and the advanced cursor of each item whose
    /// cursor, revision and pauses are still as read. `pauses_revision` is of
    /// the pauses of tenants and queues the plan knew.
    async fn fire(&self, write: &Write, pauses_revision: i64, items: &[FireItem]) -> Result<Vec<Fired>, StoreError>;
}

/// New runs of whoever asks for them.
#[async_trait]
pub trait EnqueueStore: Send + Sync {
    /// Makes runs: admits them to their slots, holds them to their unique keys.
    /// `inbox` rows are consumed in the same transaction.
    async fn enqueue(&self, write: &Write, runs: &[NewRun], inbox: &[i64]) -> Result<Vec<Enqueued>, StoreError>;
}

/// What waits, looked at and left as it is.
#[async_trait]
pub trait QueueStore: Send + Sync {
    /// Whether a write under this request's key was done before, and is answered as it
    /// was. Another body under the same key is an error, as for a write.
    async fn is_answered(&self, request: &Request, now: Timestamp) -> Result<bool, StoreError>;

    /// Requests waiting in the inbox, oldest first.
    async fn inbox(&self, limit: u32) -> Result<Vec<InboxItem>, StoreError>;

    /// When the queued run that waits longest became ready. Looks at every queued
    /// run: for those who watch, now and then.
    async fn oldest_queued(&self) -> Result<Option<Timestamp>, StoreError>;

    /// What stands before a live run; nothing for one that is not live.
    async fn standing(&self, run: RunId) -> Result<Standing, StoreError>;
}

/// Jobs that start after others.
#[async_trait]
pub trait FollowStore: Send + Sync {
    /// Ends that jobs wait for and that nobody has looked at, the oldest `limit`
    /// of them, with those that are held for the same jobs. An end is written
    /// down by whatever ends a run, in the same transaction, for each job that
    /// waits for it then.
    async fn job_ends(&self, limit: u32) -> Result<JobEnds, StoreError>;

    /// Makes the runs that ends have led to, and takes the ends away, for each
    /// item whose ends and job are still as read.
    async fn follow_ends(&self, write: &Write, items: &[FollowEnds]) -> Result<Vec<Followed>, StoreError>;
}

/// Delayed runs whose time has come.
#[async_trait]
pub trait PromoteStore: Send + Sync {
    /// Makes delayed runs ready whose time has come, in partitions that the
    /// writing node holds.
    async fn promote(&self, write: &Write, parts: &[Partition], limit: u32) -> Result<Promoted, StoreError>;
}

/// Runs of claimed lanes, for the workers that ask.
#[async_trait]
pub trait ClaimStore: Send + Sync {
    /// The (lane, tenant) pairs that have ready runs, with their first key.
    /// Walks the index once; meant for a look now and then.
    async fn ready_pairs(&self, lanes: &[LaneId]) -> Result<Vec<(Pair, OrderKey)>, StoreError>;

    /// Leases runs of claimed lanes to workers, in order within each share: the first
    /// claim is served first. Each run says who holds it. Asking again under the same
    /// write returns the same runs.
    async fn claim(&self, write: &Write, claims: &[Claim]) -> Result<Vec<Run>, StoreError>;
}

/// Runs of owned lanes, for the nodes that hold their partitions.
#[async_trait]
pub trait OwnStore: Send + Sync {
    /// Reads ready runs of owned lanes in `parts`, each window in order.
    async fn own(&self, parts: &[Partition], windows: &[Window]) -> Result<Vec<Vec<Run>>, StoreError>;

    /// Runs of owned lanes in `parts` that a former owner had marked running,
    /// or that were asked to stop: what a new owner must look at first.
    async fn inherited(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError>;

    /// Runs that others made ready, or asked to stop, in these partitions.
    async fn notices(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError>;

    /// Clears notices that were seen.
    async fn clear_notices(&self, seen: &[(Partition, RunId)]) -> Result<(), StoreError>;

    /// Leases runs of its own partitions in writing.
    async fn lease_owned(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        asks: &[OwnLease],
    ) -> Result<Vec<Guarded>, StoreError>;

    /// Marks runs that their owner executes.
    async fn mark_running(&self, write: &Write, marks: &[RunningMark]) -> Result<Vec<Guarded>, StoreError>;

    /// Turns attempts that an owner has in flight into written leases of `worker`, as
    /// [`Run::lease_running`] decides: the fence stays, so that the attempt goes on and is
    /// settled by its lease, whoever owns the partition by then. A run that was asked to
    /// stop is leased all the same.
    async fn lease_running(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        attempts: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError>;
}

/// The ends of attempts.
#[async_trait]
pub trait SettleStore: Send + Sync {
    /// Applies each settlement whose right still holds.
    ///
    /// Answers in the order asked. A stale item is news for its caller, not a
    /// failure of the batch. The change, its history, its slot, its joins and
    /// its schedule's re-arming commit together, and so does the run that
    /// follows a dead one.
    async fn settle(&self, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError>;
}

/// What the holders of leases say meanwhile.
#[async_trait]
pub trait ExtendStore: Send + Sync {
    /// Extends all leases of a worker, and compares its list with the store's.
    async fn extend(
        &self,
        worker: WorkerId,
        until: Timestamp,
        held: &[Lease],
        now: Timestamp,
    ) -> Result<Extended, StoreError>;

    /// Stores the progress (JSON) of runs under their leases.
    async fn progress(&self, reports: &[(Lease, String)]) -> Result<Vec<Guarded>, StoreError>;
}

/// Wishes about runs that are under way.
#[async_trait]
pub trait CancelStore: Send + Sync {
    /// Asks runs to stop, as [`Run::request_cancel`] decides.
    async fn request_cancel(
        &self,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<Vec<CancelAnswer>, StoreError>;

    /// Opens the wait of parked runs.
    async fn wake(&self, write: &Write, runs: &[RunId]) -> Result<Vec<Guarded>, StoreError>;
}

/// Runs whose holder is gone, and those that waited too long.
#[async_trait]
pub trait ReapStore: Send + Sync {
    /// Hands back everything that a worker holds, at no cost.
    async fn release(&self, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError>;

    /// Settles as lost what vanished workers held, as [`Run::lose`] decides.
    async fn reap(&self, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError>;

    /// Ends or wakes what has waited long enough: start deadlines, graces,
    /// sleeps. Runs that only their owner may touch are left to it.
    async fn sweep(&self, write: &Write, limit: u32) -> Result<Vec<Reaped>, StoreError>;
}

/// The counters of slots.
#[async_trait]
pub trait SlotStore: Send + Sync {
    /// Puts right the counters of slots that do not fit the live runs, and
    /// answers how many that were.
    async fn recount_slots(&self, write: &Write) -> Result<u32, StoreError>;
}

/// Runs that wait for others.
#[async_trait]
pub trait JoinStore: Send + Sync {
    /// Opens the joins of runs that wait for others which are gone, and answers
    /// how many ties were wrong.
    async fn mend_joins(&self, write: &Write) -> Result<u32, StoreError>;
}
