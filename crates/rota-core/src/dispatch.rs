//! Dispatch: which ready run starts next.
//!
//! Tenants share by weighted fair queueing ([`FairShare`]): whoever has had the
//! least for its weight is next, and one who comes late starts level with the
//! others instead of catching up on its absence. Within a tenant the smallest
//! order key is next. Owned lanes take runs one by one out of a [`Backlog`] in
//! memory; claimed lanes ask a [`ClaimPlan`] how many runs of each (lane,
//! tenant) pair to lease in one statement. Both use the same shares.
//!
//! A call costs what it hands out, not what there is: tenants stand in line by
//! their turn, and only those served move. Memory is bounded too: of each pair
//! the backlog holds the first runs in order and remembers where it was cut;
//! what lies beyond waits in the store.
//!
//! Nothing here reads the store or knows workers; a closed lane (paused, no
//! room) is a predicate handed in.

mod alone;
mod backlog;
mod claims;
mod shares;

pub use self::{
    alone::{APART, Doors, Start, WAIT},
    backlog::{Backlog, Window},
    claims::{ClaimPlan, Share, ahead},
    shares::FairShare,
};
use crate::{
    ids::{LaneId, RunId, TenantId},
    order::OrderKey,
};

/// A run's place in the order: its key, then its id.
pub type Place = (OrderKey, RunId);

/// A (lane, tenant) pair: the unit of fair claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    pub lane: LaneId,
    pub tenant: TenantId,
}

#[cfg(test)]
mod tests;
