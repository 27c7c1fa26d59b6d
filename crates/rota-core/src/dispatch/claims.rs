//! How many runs of which pair to lease in one statement.

use std::collections::{BTreeMap, HashMap};

use super::{FairShare, Pair};
use crate::{
    ids::{LaneId, TenantId},
    order::OrderKey,
};

/// How many runs of a pair to lease, not looking below `low`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub pair: Pair,
    pub low: OrderKey,
    pub runs: u32,
}

/// The pairs of claimed lanes that may have ready runs, and where to look.
///
/// The low-water key of a pair spares the database the dead entries at the
/// front of its index. Whatever is admitted or promoted with an older key
/// lowers it again, and a full look now and then finds what nobody told of.
#[derive(Debug, Default)]
pub struct ClaimPlan {
    shares: FairShare,
    tenants: HashMap<TenantId, BTreeMap<LaneId, OrderKey>>,
}

/// A tenant's pairs that are open, the lowest key first.
struct Turn {
    pairs: Vec<(OrderKey, LaneId)>,
    served: usize,
}

impl ClaimPlan {
    pub fn shares(&mut self) -> &mut FairShare {
        &mut self.shares
    }

    /// A run with this key is ready.
    pub fn note(&mut self, pair: Pair, key: OrderKey) {
        let low = self.tenants.entry(pair.tenant).or_default().entry(pair.lane).or_insert(key);
        *low = (*low).min(key);
        self.shares.join(pair.tenant);
    }

    /// Replaces all that is known by the result of a full look.
    pub fn looked(&mut self, pairs: impl IntoIterator<Item = (Pair, OrderKey)>) {
        let before = std::mem::take(&mut self.tenants);
        for (pair, key) in pairs {
            self.note(pair, key);
        }
        for tenant in before.keys().filter(|tenant| !self.tenants.contains_key(tenant)) {
            self.shares.leave(*tenant);
        }
    }

    /// Shares `most` leases over the pairs that `open` lets through: one for
    /// each tenant as far as they go, then by weight; within a tenant to the
    /// pairs in turn, beginning where the oldest run may be.
    pub fn shares_of(&self, most: u32, mut open: impl FnMut(Pair) -> bool) -> Vec<Share> {
        let turn = |(tag, tenant)| Some(((tag, tenant), self.turn(tenant, &mut open)?));
        let mut waiting = self.shares.line().filter_map(turn).peekable();
        let mut turns: BTreeMap<(u64, TenantId), Turn> = BTreeMap::new();
        let mut shares: BTreeMap<Pair, Share> = BTreeMap::new();
        for _ in 0..most {
            let first = turns.first_key_value().map(|(first, _)| *first);
            turns.extend(waiting.next_if(|(next, _)| first.is_none_or(|first| *next < first)));
            let Some(((tag, tenant), mut turn)) = turns.pop_first() else { break };
            let (low, lane) = turn.next();
            let pair = Pair { lane, tenant };
            shares.entry(pair).or_insert(Share { pair, low, runs: 0 }).runs += 1;
            turns.insert((tag + self.shares.cost(tenant), tenant), turn);
        }
        shares.into_values().collect()
    }

    /// The tenant's pairs that are open, if there are any.
    fn turn(&self, tenant: TenantId, open: &mut impl FnMut(Pair) -> bool) -> Option<Turn> {
        let lanes = self.tenants.get(&tenant)?.iter().filter(|(lane, _)| open(Pair { lane: **lane, tenant }));
        let mut pairs: Vec<_> = lanes.map(|(lane, low)| (*low, *lane)).collect();
        pairs.sort_unstable();
        (!pairs.is_empty()).then_some(Turn { pairs, served: 0 })
    }

    /// Takes in what a share brought: the keys leased, in order. A pair that
    /// gave less than its share is drained until someone notes it again.
    pub fn claimed(&mut self, share: &Share, keys: &[OrderKey]) {
        let Pair { lane, tenant } = share.pair;
        if !keys.is_empty() {
            self.shares.charge(tenant, keys.len() as u64);
        }
        let Some(lanes) = self.tenants.get_mut(&tenant) else { return };
        if keys.len() < share.runs as usize {
            lanes.remove(&lane);
        } else if let (Some(last), Some(low)) = (keys.last(), lanes.get_mut(&lane)) {
            // Equal keys may remain, so the last one is not passed.
            *low = (*low).max(*last);
        }
        if lanes.is_empty() {
            self.tenants.remove(&tenant);
            self.shares.leave(tenant);
        }
    }

    pub fn is_idle(&self) -> bool {
        self.tenants.is_empty()
    }
}

impl Turn {
    /// The pair whose turn it is within the tenant's.
    fn next(&mut self) -> (OrderKey, LaneId) {
        self.served += 1;
        self.pairs[(self.served - 1) % self.pairs.len()]
    }
}
