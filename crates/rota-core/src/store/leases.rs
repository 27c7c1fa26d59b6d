//! Who is alive, who owns which partition, and who may spend which tokens.

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Guarded, StoreError};
use crate::{
    duration::Span,
    ids::{NodeId, Partition, TenantId, WorkerId},
    lane::{LaneKey, Offered},
    rate::{Bucket, Rate, Taken},
};

/// The fence of a partition: it rises whenever the partition changes hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

/// A node says that it lives.
#[derive(Clone, Debug)]
pub struct NodeBeat {
    pub node: NodeId,
    pub name: String,
    /// Free information (roles, version, address), JSON.
    pub info: String,
    /// Until when its word holds.
    pub until: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub node: NodeId,
    pub name: String,
    pub info: String,
    pub until: Timestamp,
}

/// Who holds a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionLease {
    pub part: Partition,
    pub epoch: Epoch,
    pub node: Option<NodeId>,
}

/// Someone wants tokens of a rate-limited key.
#[derive(Clone, Debug)]
pub struct TokenAsk {
    pub key: String,
    pub rate: Rate,
    pub want: u32,
    /// Also those that are not there yet.
    pub ahead: bool,
}

impl TokenAsk {
    /// What becomes of the bucket, and what the asker gets.
    pub fn decide(&self, bucket: Option<Bucket>, now: Timestamp) -> (Bucket, Taken) {
        if self.ahead { self.rate.reserve(bucket, self.want, now) } else { self.rate.take(bucket, self.want, now) }
    }
}

/// What a worker offers and how busy it is, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerInfo {
    pub version: String,
    /// The node it is part of, or that it last talked to.
    pub node: String,
    pub built_in: bool,
    /// Empty where it takes all.
    pub queues: Vec<String>,
    pub traits: Vec<String>,
    pub handlers: Vec<String>,
    /// Built-in kinds of steps that it executes.
    pub kinds: Vec<String>,
    /// Attempts it may have under way.
    pub slots: u32,
    /// Attempts it has under way.
    pub busy: u32,
}

impl WorkerInfo {
    /// Whether such a worker can execute the runs of a lane.
    pub fn offers(&self, lane: &LaneKey) -> bool {
        let built_in = self.built_in || !self.kinds.is_empty();
        let Self { queues, traits, handlers, .. } = self;
        Offered { queues, traits, handlers, built_in }.takes(lane)
    }
}

/// A worker says that it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerBeat {
    pub worker: WorkerId,
    /// None where it works for all of them.
    pub tenant: Option<TenantId>,
    pub name: String,
    pub info: WorkerInfo,
    /// It is presumed dead after this.
    pub until: Timestamp,
    /// It takes no more work.
    pub draining: bool,
}

/// A worker as the registry knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    pub worker: WorkerId,
    pub tenant: Option<TenantId>,
    pub name: String,
    pub info: WorkerInfo,
    pub began_at: Timestamp,
    pub seen_at: Timestamp,
    pub until: Timestamp,
    pub draining: bool,
    /// Somebody asked it to drain.
    pub drain_asked: bool,
}

impl Worker {
    /// A worker that died is listed for so long.
    pub const KEPT: Span = Span::secs(86_400);
}

/// Which nodes live.
#[async_trait]
pub trait NodeStore: Send + Sync {
    /// Records that the node lives until its beat says. Stale when the store
    /// did not know it: it is new, or another node took one of its partitions
    /// after its word ran out. Then it holds nothing and must take anew.
    async fn beat(&self, beat: &NodeBeat, now: Timestamp) -> Result<Guarded, StoreError>;

    /// The nodes whose word holds at `now`.
    async fn nodes(&self, now: Timestamp) -> Result<Vec<Node>, StoreError>;

    /// The node leaves: its partitions are free at once.
    async fn leave(&self, node: NodeId) -> Result<(), StoreError>;

    /// What the store's own clock says; none for a store that has no other than
    /// its caller's. For measuring: no statement judges by it.
    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }
}

/// Which partitions they hold.
#[async_trait]
pub trait PartitionStore: Send + Sync {
    /// All 256 partitions, in order.
    async fn partitions(&self) -> Result<Vec<PartitionLease>, StoreError>;

    /// Takes those of `parts` that are free or whose holder's word ran out
    /// before `now`. Each one taken has a raised epoch; one the node holds
    /// already keeps its own; one that a live node holds is `None`. A node that
    /// has not beaten, or whose own word ran out, takes nothing.
    async fn take_partitions(
        &self,
        node: NodeId,
        parts: &[Partition],
        now: Timestamp,
    ) -> Result<Vec<Option<Epoch>>, StoreError>;

    /// Frees partitions that the node holds under these epochs.
    async fn give_partitions(&self, node: NodeId, parts: &[(Partition, Epoch)]) -> Result<Vec<Guarded>, StoreError>;
}

/// The registry of workers.
#[async_trait]
pub trait WorkerStore: Send + Sync {
    /// Records that workers live, and answers for each whether it was asked to
    /// drain. The registry is for people: no lease depends on it.
    async fn beat_workers(&self, beats: &[WorkerBeat], now: Timestamp) -> Result<Vec<bool>, StoreError>;

    /// Workers by id, those of no tenant among every tenant's.
    async fn workers(
        &self,
        tenant: Option<TenantId>,
        after: Option<WorkerId>,
        limit: u32,
    ) -> Result<Vec<Worker>, StoreError>;

    /// Asks a tenant's own worker to drain. False where there is none such.
    async fn drain_worker(&self, tenant: Option<TenantId>, worker: WorkerId) -> Result<bool, StoreError>;

    /// Workers leave.
    async fn forget_workers(&self, workers: &[WorkerId]) -> Result<(), StoreError>;
}

/// Who may spend which tokens.
#[async_trait]
pub trait RateStore: Send + Sync {
    /// Takes tokens for each ask, as [`TokenAsk::decide`] says.
    async fn take_tokens(&self, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError>;
}
