//! The store port: the only owner of truth.
//!
//! A role for each noun and verb, all under one [`Store`]. Batch is the only form: slices in, one
//! answer per item out, in the same order. A stale item is an answer, not an
//! error. Every list takes a limit, `now` is always an argument, and what must
//! be atomic is one method.
//!
//! Every write names its batch. A write whose answer was lost
//! ([`StoreError::OutcomeUnknown`]) is asked again under the same [`Write`]:
//! the store finds the batch it already applied and answers as it did then, so
//! nothing happens twice.

mod access;
mod history;
mod jobs;
mod leases;
mod runs;

use std::error::Error;

use jiff::Timestamp;

pub use self::{
    access::{
        AuditCursor, AuditEntry, AuditPage, AuditQuery, AuditStore, Session, SessionStore, Token, TokenPage,
        TokenQuery, TokenStore, User, UserPage, UserPut, UserQuery, UserStore, UserWish,
    },
    history::{
        DeadFate, DeadMark, DeadStore, Discarded, LogChunk, LogQuery, LogStore, OpenDead, RollupStore, RunCursor,
        RunPage, RunPlace, RunQuery, RunRecord, RunStore, Standing, Tend, Tended, TimeRange, UnreadableRow,
        UnreadableStore, UpkeepStore,
    },
    jobs::{
        Calendar, CalendarPut, CalendarStore, Deletion, DueCursor, Expect, JobChanges, JobCursor, JobPage, JobPut,
        JobQuery, JobRecord, JobSaved, JobStore, JobVersion, LaneStore, Pause, PauseStore, PauseTarget, Pauses,
        ReviewPage, ScheduleChanges, ScheduleGuard, SchedulePage, SchedulePut, ScheduleQuery, ScheduleRecord,
        ScheduleSaved, ScheduleStore, SchedulesPut, SkipRecord, Tenant, TenantPut, TenantStore, Tier,
    },
    leases::{
        Epoch, Node, NodeBeat, NodeStore, PartitionLease, PartitionStore, RateStore, TokenAsk, Worker, WorkerBeat,
        WorkerInfo, WorkerStore,
    },
    runs::{
        By, CancelAnswer, CancelStore, Claim, ClaimStore, EndedRun, Ends, EnqueueStore, Enqueued, ExtendStore,
        Extended, FireItem, FireRun, FireStore, Fired, FollowEnds, FollowStore, Followed, Guarded, InboxItem, JobEnds,
        JoinStore, LiveRun, OwnLease, OwnStore, PromoteStore, Promoted, QueueStore, Reap, ReapStore, Reaped,
        RunningMark, SettleStore, Settled, Settlement, SlotStore, Woken,
    },
};
use crate::ids::{BatchId, NodeId, TenantId};

/// One batched write: its name, its time, and who writes.
#[derive(Clone, Debug)]
pub struct Write {
    pub batch: BatchId,
    pub now: Timestamp,
    /// The node that writes. What becomes ready in a partition this node holds
    /// is handed to it in memory; others' owners are left a notice.
    pub node: Option<NodeId>,
    /// Which partitions that node held when it asked, by its own count of changes: what is
    /// handed to it may be over by the time that it hears the answer. Stores ignore it.
    pub generation: u64,
    /// A request key, where the caller's own caller may ask again.
    pub request: Option<Request>,
    /// Where the store says which runs ended by it.
    pub ends: Ends,
    /// It is answered as if it were done, and undone instead of committed.
    pub dry_run: bool,
}

/// A caller's idempotency key: one row per request, whatever its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub tenant: TenantId,
    pub key: String,
    /// Of the request's body, so that a reused key with another body is told.
    pub fingerprint: [u8; 32],
    pub expires_at: Timestamp,
}

/// Why the store did not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was changed; asking again is safe.
    #[error("the store could not {what}")]
    NotApplied { what: &'static str, source: Box<dyn Error + Send + Sync> },
    /// The commit's answer was lost: it may have happened. Ask again under the
    /// same [`Write`].
    #[error("the store may or may not have completed this: {what}")]
    OutcomeUnknown { what: &'static str, source: Box<dyn Error + Send + Sync> },
    /// The request key was used before with another body.
    #[error("the idempotency key was used before with another body")]
    RequestDiffers,
    /// What the write was decided by has changed since it was read. Nothing was
    /// changed: read again, and decide again.
    #[error("the data that this depends on has changed meanwhile: {what}")]
    Moved { what: &'static str },
    /// What is stored cannot be read.
    #[error("the store contains data that cannot be read: {0}")]
    Corrupt(String),
}

/// All roles together; held as `Arc<dyn Store>`.
pub trait Store:
    TenantStore
    + LaneStore
    + CalendarStore
    + PauseStore
    + JobStore
    + ScheduleStore
    + JobChanges
    + ScheduleChanges
    + FireStore
    + EnqueueStore
    + QueueStore
    + FollowStore
    + PromoteStore
    + ClaimStore
    + OwnStore
    + ExtendStore
    + SettleStore
    + CancelStore
    + ReapStore
    + SlotStore
    + JoinStore
    + RunStore
    + RollupStore
    + LogStore
    + DeadStore
    + UnreadableStore
    + UpkeepStore
    + NodeStore
    + PartitionStore
    + WorkerStore
    + RateStore
    + TokenStore
    + UserStore
    + SessionStore
    + AuditStore
{
    /// What to call this store in messages and benchmarks.
    fn kind(&self) -> &'static str;
}
