//! Who is alive, who owns which partition, and who may spend which tokens.

use async_trait::async_trait;
use jiff::Timestamp;

use super::{Guarded, StoreError};
use crate::{
    ids::{NodeId, Partition},
    rate::{Rate, Taken},
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
}

#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Records that the node lives until its beat says. Stale when the store
    /// did not know it: it is new, or another node took one of its partitions
    /// after its word ran out. Then it holds nothing and must take anew.
    async fn beat(&self, beat: &NodeBeat, now: Timestamp) -> Result<Guarded, StoreError>;

    /// The nodes whose word holds at `now`.
    async fn nodes(&self, now: Timestamp) -> Result<Vec<Node>, StoreError>;

    /// The node leaves: its partitions are free at once.
    async fn leave(&self, node: NodeId) -> Result<(), StoreError>;

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

    /// What the store's own clock says; none for a store that has no other than
    /// its caller's. For measuring: no statement judges by it.
    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    /// Takes tokens for each ask, as [`Rate::take`] decides.
    async fn take_tokens(&self, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError>;
}
