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
///
/// A pair of which every ready run was told is asked for no more than those:
/// what it cannot give would be missing from the others' shares.
#[derive(Debug, Default)]
pub struct ClaimPlan {
    shares: FairShare,
    tenants: HashMap<TenantId, BTreeMap<LaneId, Known>>,
}

/// What is known of a pair.
#[derive(Clone, Copy, Debug)]
struct Known {
    low: OrderKey,
    /// How many runs were told of; none after a look, which does not count.
    ready: Option<u32>,
    /// How many of these were told of since the pair was last asked, and the lowest
    /// key among them: an answer does not know them.
    fresh: u32,
    fresh_low: OrderKey,
}

/// A tenant's pairs that are open, the lowest key first, and what each has yet
/// to give.
struct Turn {
    pairs: Vec<(LaneId, Known)>,
    at: usize,
}

impl ClaimPlan {
    pub fn shares(&mut self) -> &mut FairShare {
        &mut self.shares
    }

    /// A run with this key is ready.
    pub fn note(&mut self, pair: Pair, key: OrderKey) {
        let known = self.known(pair, key);
        known.low = known.low.min(key);
        known.ready = known.ready.map(|ready| ready.saturating_add(1));
        known.fresh = known.fresh.saturating_add(1);
        known.fresh_low = known.fresh_low.min(key);
    }

    fn known(&mut self, pair: Pair, low: OrderKey) -> &mut Known {
        self.shares.join(pair.tenant);
        let lanes = self.tenants.entry(pair.tenant).or_default();
        lanes.entry(pair.lane).or_insert(Known { low, ready: Some(0), fresh: 0, fresh_low: OrderKey::MAX })
    }

    /// Replaces all that is known by the result of a full look, but for what was told
    /// of since the last claim: the look may have been before it.
    pub fn looked(&mut self, pairs: impl IntoIterator<Item = (Pair, OrderKey)>) {
        let before = std::mem::take(&mut self.tenants);
        for (pair, key) in pairs {
            self.known(pair, key).ready = None;
        }
        for (tenant, lanes) in &before {
            for (lane, Known { fresh, fresh_low, .. }) in lanes.iter().filter(|(_, known)| known.fresh > 0) {
                let known = self.known(Pair { lane: *lane, tenant: *tenant }, *fresh_low);
                *known = Known { low: known.low.min(*fresh_low), ready: None, fresh: *fresh, fresh_low: *fresh_low };
            }
        }
        for tenant in before.keys().filter(|tenant| !self.tenants.contains_key(tenant)) {
            self.shares.leave(*tenant);
        }
    }

    /// Shares `most` leases over the pairs that `open` lets through: one for
    /// each tenant as far as they go, then by weight; within a tenant to the
    /// pairs in turn, beginning where the oldest run may be.
    pub fn shares_of(&mut self, most: u32, mut open: impl FnMut(Pair) -> bool) -> Vec<Share> {
        let turn = |(tag, tenant)| Some(((tag, tenant), self.turn(tenant, &mut open)?));
        let mut waiting = self.shares.line().filter_map(turn).peekable();
        let mut turns: BTreeMap<(u64, TenantId), Turn> = BTreeMap::new();
        let mut shares: BTreeMap<Pair, Share> = BTreeMap::new();
        for _ in 0..most {
            let first = turns.first_key_value().map(|(first, _)| *first);
            turns.extend(waiting.next_if(|(next, _)| first.is_none_or(|first| *next < first)));
            let Some(((tag, tenant), mut turn)) = turns.pop_first() else { break };
            let (lane, low) = turn.next();
            let pair = Pair { lane, tenant };
            shares.entry(pair).or_insert(Share { pair, low, runs: 0 }).runs += 1;
            if !turn.pairs.is_empty() {
                turns.insert((tag + self.shares.cost(tenant), tenant), turn);
            }
        }
        for pair in shares.keys() {
            if let Some(known) = self.tenants.get_mut(&pair.tenant).and_then(|lanes| lanes.get_mut(&pair.lane)) {
                (known.fresh, known.fresh_low) = (0, OrderKey::MAX);
            }
        }
        shares.into_values().collect()
    }

    /// The tenant's pairs that are open, if there are any.
    fn turn(&self, tenant: TenantId, open: &mut impl FnMut(Pair) -> bool) -> Option<Turn> {
        let lanes = self.tenants.get(&tenant)?.iter().filter(|(lane, _)| open(Pair { lane: **lane, tenant }));
        let mut pairs: Vec<_> = lanes.map(|(lane, known)| (*lane, *known)).collect();
        pairs.sort_unstable_by_key(|(lane, known)| (known.low, *lane));
        (!pairs.is_empty()).then_some(Turn { pairs, at: 0 })
    }

    /// Takes in what a share brought: the keys leased, in order. A pair that
    /// gave less than its share, or all that was told of, is drained until
    /// someone notes it again.
    pub fn claimed(&mut self, share: &Share, keys: &[OrderKey]) {
        let Pair { lane, tenant } = share.pair;
        if !keys.is_empty() {
            self.shares.charge(tenant, keys.len() as u64);
        }
        let Some(lanes) = self.tenants.get_mut(&tenant) else { return };
        let Some(known) = lanes.get_mut(&lane) else { return };
        let short = keys.len() < share.runs as usize;
        let left = known.ready.map(|ready| ready.saturating_sub(keys.len() as u32));
        known.ready = if short { Some(known.fresh) } else { left };
        if known.ready == Some(0) {
            lanes.remove(&lane);
        } else if let Some(last) = keys.last() {
            // Equal keys may remain, so the last one is not passed; nor is a lower one
            // that was told of meanwhile.
            known.low = (*last).min(known.fresh_low);
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

/// How many runs to claim beyond the slots that are free: as many as end while a
/// claim is written. `running` were under way after the last one, with `before`
/// claimed ahead, and `ended` of these have ended by the answer to the next. Where
/// all have, the slots stood empty, and it is tried with more.
///
/// Of long runs nothing is claimed ahead, for others to have; nor beside
/// `suspects`, runs that lost a worker before: all that are in hand would be to
/// blame when a process dies of one of them again.
pub fn ahead(before: usize, running: usize, ended: usize, suspects: bool) -> usize {
    match (suspects, ended < running) {
        (true, _) => 0,
        (false, true) => ended,
        (false, false) => before.max(ended).saturating_mul(2),
    }
}

impl Turn {
    /// The pair whose turn it is within the tenant's; one that has given all
    /// it has is out.
    fn next(&mut self) -> (LaneId, OrderKey) {
        let at = self.at % self.pairs.len();
        let (lane, known) = &mut self.pairs[at];
        let next = (*lane, known.low);
        known.ready = known.ready.map(|ready| ready.saturating_sub(1));
        if known.ready == Some(0) {
            self.pairs.remove(at);
            self.at = at;
        } else {
            self.at = at + 1;
        }
        next
    }
}
