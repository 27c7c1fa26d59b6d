//! Runs on their way: made, promoted, claimed, owned, settled.

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{DueCursor, Epoch, StoreError, Write};
use crate::{
    dispatch::{Pair, Share, Window},
    fire::{Cursor, SkipRange},
    ids::{LaneId, Partition, RunId, ScheduleId, WorkerId},
    order::OrderKey,
    run::{CancelAsk, Change, Lease, NewRun, Run, Status},
};

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
}

/// One schedule's due instants, planned and to be committed together.
#[derive(Clone, Debug)]
pub struct FireItem {
    /// The cursor as read: the guard.
    pub due: DueCursor,
    /// The job's revision as read: the guard against an edit or pause since.
    pub job_revision: i32,
    pub next: Option<Cursor>,
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

/// An owner says that a run it executes takes long.
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
    /// As it stands after.
    pub status: Status,
}

/// A request to enqueue, written inside a caller's own transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct InboxItem {
    pub id: i64,
    pub at: Timestamp,
    /// JSON: tenant, job, payload, labels, `run_at`, key.
    pub body: String,
}

#[async_trait]
pub trait RunStore: Send + Sync {
    /// Cursors due up to `until` in these partitions, earliest first.
    async fn due(&self, parts: &[Partition], until: Timestamp, limit: u32) -> Result<Vec<DueCursor>, StoreError>;

    /// The live runs of each schedule, for its overlap policy.
    async fn live_of(&self, schedules: &[ScheduleId]) -> Result<Vec<Vec<LiveRun>>, StoreError>;

    /// Commits runs, recorded skips and the advanced cursor of each item whose
    /// cursor, revision and pauses are still as read. `pauses_revision` is of
    /// the pauses of tenants and queues the plan knew.
    async fn fire(&self, write: &Write, pauses_revision: i64, items: &[FireItem]) -> Result<Vec<Fired>, StoreError>;

    /// Makes runs: admits them to their slots, holds them to their unique keys.
    /// `inbox` rows are consumed in the same transaction.
    async fn enqueue(&self, write: &Write, runs: &[NewRun], inbox: &[i64]) -> Result<Vec<Enqueued>, StoreError>;

    /// Requests waiting in the inbox, oldest first.
    async fn inbox(&self, limit: u32) -> Result<Vec<InboxItem>, StoreError>;

    /// Makes delayed runs ready whose time has come, in partitions that the
    /// writing node holds.
    async fn promote(&self, write: &Write, parts: &[Partition], limit: u32) -> Result<Promoted, StoreError>;

    /// The (lane, tenant) pairs that have ready runs, with their first key.
    /// Walks the index once; meant for a look now and then.
    async fn ready_pairs(&self, lanes: &[LaneId]) -> Result<Vec<(Pair, OrderKey)>, StoreError>;

    /// Leases runs of claimed lanes to a worker, in order within each share.
    /// Asking again under the same write returns the same runs.
    async fn claim(&self, write: &Write, claim: &Claim) -> Result<Vec<Run>, StoreError> {
        self.claim_each(write, std::slice::from_ref(claim)).await
    }

    /// As [`RunStore::claim`], for many workers in one write: the first is
    /// served first. Each run says who holds it.
    async fn claim_each(&self, write: &Write, claims: &[Claim]) -> Result<Vec<Run>, StoreError>;

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

    /// Applies each settlement whose right still holds.
    ///
    /// Answers in the order asked. A stale item is news for its caller, not a
    /// failure of the batch. The change, its history, its slot, its joins and
    /// its schedule's re-arming commit together.
    async fn settle(&self, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError>;

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

    /// Asks runs to stop, as [`Run::request_cancel`] decides.
    async fn request_cancel(
        &self,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<Vec<CancelAnswer>, StoreError>;

    /// Hands back everything that a worker holds, at no cost.
    async fn release(&self, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError>;

    /// Settles as lost what vanished workers held, as [`Run::lose`] decides.
    async fn reap(&self, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError>;

    /// Ends or wakes what has waited long enough: start deadlines, graces,
    /// sleeps. Runs that only their owner may touch are left to it.
    async fn sweep(&self, write: &Write, limit: u32) -> Result<Vec<Reaped>, StoreError>;

    /// Opens the wait of parked runs.
    async fn wake(&self, write: &Write, runs: &[RunId]) -> Result<Vec<Guarded>, StoreError>;

    /// Puts right the counters of slots that do not fit the live runs, and
    /// answers how many that were.
    async fn recount_slots(&self, write: &Write) -> Result<u32, StoreError>;
}
