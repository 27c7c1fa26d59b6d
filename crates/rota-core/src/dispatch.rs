//! Dispatch: which ready run starts next.
//!
//! Tenants share by weighted fair queueing ([`FairShare`]): whoever has had the
//! least for its weight is next, and one who comes late starts level with the
//! others instead of catching up on its absence. Within a tenant the smallest
//! order key is next. Owned lanes take runs one by one out of a [`Backlog`] in
//! memory; claimed lanes ask a [`ClaimPlan`] how many runs of each (lane,
//! tenant) pair to lease in one statement. Both use the same shares.
//!
//! Memory is bounded: of each pair the backlog holds the first runs in order
//! and remembers where it was cut; what lies beyond waits in the store.
//!
//! Nothing here reads the store or knows workers; a closed lane (paused, no
//! room) is a predicate handed in.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap},
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

/// Virtual time one run costs a tenant of weight 1.
const COST: u64 = 1 << 20;

/// Who has had how much, relative to weight.
#[derive(Debug, Default)]
pub struct FairShare {
    /// The virtual time of the last start.
    clock: u64,
    tags: HashMap<TenantId, u64>,
    weights: HashMap<TenantId, u32>,
}

impl FairShare {
    /// Sets a tenant's weight; unknown tenants weigh 1.
    pub fn weigh(&mut self, tenant: TenantId, weight: u32) {
        self.weights.insert(tenant, weight.clamp(1, 1_000));
    }

    /// When, in virtual time, the tenant's next run would start.
    fn tag(&self, tenant: TenantId) -> u64 {
        self.tags.get(&tenant).copied().unwrap_or(0).max(self.clock)
    }

    fn charge(&mut self, tenant: TenantId, runs: u64) {
        let start = self.tag(tenant);
        let weight = u64::from(self.weights.get(&tenant).copied().unwrap_or(1));
        self.clock = start;
        self.tags.insert(tenant, start + runs * COST / weight);
        self.forget_the_level();
    }

    /// A tenant whose tag the clock has passed is as good as new.
    fn forget_the_level(&mut self) {
        if self.tags.len() > 1_024 && self.tags.len().is_power_of_two() {
            let clock = self.clock;
            self.tags.retain(|_, tag| *tag > clock);
        }
    }
}

/// What the store holds of a pair beyond what is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    /// Nothing: memory is complete.
    Nothing,
    /// Runs after this place (or all of them) may be in the store only.
    After(Option<Place>),
}

#[derive(Debug)]
struct PairQueue {
    ready: BTreeSet<Place>,
    beyond: Beyond,
}

/// A stretch of a pair's runs to be read from the store, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub pair: Pair,
    pub after: Option<Place>,
    pub limit: u32,
}

/// The ready runs of owned lanes, in memory.
#[derive(Debug)]
pub struct Backlog {
    shares: FairShare,
    tenants: HashMap<TenantId, BTreeMap<LaneId, PairQueue>>,
    pairs: usize,
    len: usize,
    runs_max: usize,
}

/// A pair may keep so many whatever the others hold.
const PAIR_MIN: usize = 16;

impl Backlog {
    /// A backlog that holds about `runs_max` runs at most.
    pub fn new(runs_max: usize) -> Self {
        Self { shares: FairShare::default(), tenants: HashMap::new(), pairs: 0, len: 0, runs_max }
    }

    pub fn shares(&mut self) -> &mut FairShare {
        &mut self.shares
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn pair_max(&self) -> usize {
        (self.runs_max / self.pairs.max(1)).max(PAIR_MIN)
    }

    /// Offers a run that is ready in the store. False means it is left there,
    /// to be read when its turn is near.
    pub fn offer(&mut self, pair: Pair, place: Place) -> bool {
        let pair_max = self.pair_max();
        let queue = self.queue(pair);
        match queue.beyond {
            Beyond::After(edge) if edge.is_none_or(|edge| place > edge) => return false,
            Beyond::Nothing if queue.ready.len() >= pair_max => {
                let edge = queue.ready.last().copied();
                queue.beyond = Beyond::After(edge);
                if edge.is_none_or(|edge| place > edge) {
                    return false;
                }
            }
            Beyond::Nothing | Beyond::After(_) => {}
        }
        if queue.ready.insert(place) {
            self.len += 1;
        }
        true
    }

    /// Says that the store may hold runs of this pair that memory does not:
    /// after a takeover, or when a look is due.
    pub fn doubt(&mut self, pair: Pair) {
        let queue = self.queue(pair);
        queue.beyond = Beyond::After(None);
    }

    /// Which stretches are worth reading now: of pairs that were cut and have
    /// run down to half of what they may hold.
    pub fn wanted(&self) -> Vec<Window> {
        let limit = self.pair_max();
        let mut windows = Vec::new();
        for (tenant, lanes) in &self.tenants {
            for (lane, queue) in lanes {
                if let Beyond::After(after) = queue.beyond
                    && queue.ready.len() <= limit / 2
                {
                    let pair = Pair { lane: *lane, tenant: *tenant };
                    windows.push(Window { pair, after, limit: limit as u32 });
                }
            }
        }
        windows.sort_by_key(|window| window.pair);
        windows
    }

    /// Takes in what was read for `window`: fewer than its limit means there
    /// is nothing beyond.
    pub fn read(&mut self, window: &Window, places: &[Place]) {
        let queue = self.queue(window.pair);
        if queue.beyond != Beyond::After(window.after) {
            return;
        }
        queue.beyond =
            if places.len() < window.limit as usize { Beyond::Nothing } else { Beyond::After(places.last().copied()) };
        let added = places.iter().filter(|place| queue.ready.insert(**place)).count();
        self.len += added;
    }

    /// Forgets a run that ended or went elsewhere.
    pub fn remove(&mut self, pair: Pair, place: &Place) -> bool {
        let removed = self.queue(pair).ready.remove(place);
        self.len -= usize::from(removed);
        removed
    }

    /// Takes up to `most` runs, fairly, of pairs that `open` lets through.
    pub fn take(&mut self, most: usize, mut open: impl FnMut(Pair) -> bool) -> Vec<(Pair, Place)> {
        let mut taken = Vec::with_capacity(most.min(self.len));
        let mut turn: BinaryHeap<Reverse<(u64, TenantId)>> =
            self.tenants.keys().map(|tenant| Reverse((self.shares.tag(*tenant), *tenant))).collect();
        while taken.len() < most
            && let Some(Reverse((_, tenant))) = turn.pop()
        {
            let Some((pair, place)) = self.first(tenant, &mut open) else { continue };
            self.remove(pair, &place);
            self.shares.charge(tenant, 1);
            turn.push(Reverse((self.shares.tag(tenant), tenant)));
            taken.push((pair, place));
        }
        self.drop_empty();
        taken
    }

    /// How many runs start before `place`, as far as memory knows.
    pub fn ahead_of(&self, pair: Pair, place: &Place) -> usize {
        self.tenants
            .get(&pair.tenant)
            .and_then(|lanes| lanes.get(&pair.lane))
            .map_or(0, |queue| queue.ready.range(..place).count())
    }

    fn first(&self, tenant: TenantId, open: &mut impl FnMut(Pair) -> bool) -> Option<(Pair, Place)> {
        let lanes = self.tenants.get(&tenant)?;
        lanes
            .iter()
            .filter_map(|(lane, queue)| Some((Pair { lane: *lane, tenant }, *queue.ready.first()?)))
            .filter(|(pair, _)| open(*pair))
            .min_by_key(|(_, place)| *place)
    }

    fn queue(&mut self, pair: Pair) -> &mut PairQueue {
        let lanes = self.tenants.entry(pair.tenant).or_default();
        lanes.entry(pair.lane).or_insert_with(|| {
            self.pairs += 1;
            PairQueue { ready: BTreeSet::new(), beyond: Beyond::Nothing }
        })
    }

    fn drop_empty(&mut self) {
        let mut dropped = 0;
        self.tenants.retain(|_, lanes| {
            lanes.retain(|_, queue| {
                let keep = !queue.ready.is_empty() || queue.beyond != Beyond::Nothing;
                dropped += usize::from(!keep);
                keep
            });
            !lanes.is_empty()
        });
        self.pairs -= dropped;
    }
}

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
    pairs: BTreeMap<Pair, OrderKey>,
}

impl ClaimPlan {
    pub fn shares(&mut self) -> &mut FairShare {
        &mut self.shares
    }

    /// A run with this key is ready.
    pub fn note(&mut self, pair: Pair, key: OrderKey) {
        let low = self.pairs.entry(pair).or_insert(key);
        *low = (*low).min(key);
    }

    /// Replaces all that is known by the result of a full look.
    pub fn looked(&mut self, pairs: impl IntoIterator<Item = (Pair, OrderKey)>) {
        self.pairs = pairs.into_iter().collect();
    }

    /// Shares `most` leases over the pairs that `open` lets through: one each
    /// for as many as fit, then by weight.
    pub fn shares_of(&self, most: u32, mut open: impl FnMut(Pair) -> bool) -> Vec<Share> {
        let mut tenants: BTreeMap<TenantId, Vec<Pair>> = BTreeMap::new();
        for pair in self.pairs.keys().filter(|pair| open(**pair)) {
            tenants.entry(pair.tenant).or_default().push(*pair);
        }
        let mut turn: BinaryHeap<Reverse<(u64, TenantId)>> =
            tenants.keys().map(|tenant| Reverse((self.shares.tag(*tenant), *tenant))).collect();
        let mut served: HashMap<TenantId, usize> = HashMap::new();
        let mut runs: BTreeMap<Pair, u32> = BTreeMap::new();
        for _ in 0..most {
            let Some(Reverse((tag, tenant))) = turn.pop() else { break };
            let pairs = &tenants[&tenant];
            let count = served.entry(tenant).or_default();
            *runs.entry(pairs[*count % pairs.len()]).or_default() += 1;
            *count += 1;
            let weight = u64::from(self.shares.weights.get(&tenant).copied().unwrap_or(1));
            turn.push(Reverse((tag + COST / weight, tenant)));
        }
        runs.into_iter().map(|(pair, runs)| Share { pair, low: self.pairs[&pair], runs }).collect()
    }

    /// Takes in what a share brought: the keys leased, in order. A pair that
    /// gave less than its share is drained until someone notes it again.
    pub fn claimed(&mut self, share: &Share, keys: &[OrderKey]) {
        if !keys.is_empty() {
            self.shares.charge(share.pair.tenant, keys.len() as u64);
        }
        if keys.len() < share.runs as usize {
            self.pairs.remove(&share.pair);
        } else if let (Some(last), Some(low)) = (keys.last(), self.pairs.get_mut(&share.pair)) {
            // Equal keys may remain, so the last one is not passed.
            *low = (*low).max(*last);
        }
    }

    pub fn is_idle(&self) -> bool {
        self.pairs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn pair(tenant: i32) -> Pair {
        Pair { lane: LaneId(1), tenant: TenantId(tenant) }
    }

    fn place(n: u64) -> Place {
        (OrderKey(n as i64), RunId(Uuid::from_u64_pair(0, n)))
    }

    fn counts(taken: &[(Pair, Place)]) -> BTreeMap<i32, usize> {
        let mut counts = BTreeMap::new();
        for (pair, _) in taken {
            *counts.entry(pair.tenant.0).or_default() += 1;
        }
        counts
    }

    /// One tenant's long queue must not delay another's first run.
    #[test]
    fn a_newcomer_is_served_at_once() {
        let mut backlog = Backlog::new(100_000);
        for n in 0..50_000 {
            backlog.offer(pair(1), place(n));
        }
        backlog.take(10_000, |_| true);
        backlog.offer(pair(2), place(1_000_000));
        let next: Vec<i32> = backlog.take(2, |_| true).iter().map(|(pair, _)| pair.tenant.0).collect();
        assert!(next.contains(&2), "{next:?}");
    }

    #[test]
    fn shares_follow_the_weights() {
        let mut backlog = Backlog::new(100_000);
        for (tenant, weight) in [(1, 1), (2, 3), (3, 10)] {
            backlog.shares().weigh(TenantId(tenant), weight);
            for n in 0..5_000 {
                backlog.offer(pair(tenant), place(u64::from(tenant as u32) * 1_000_000 + n));
            }
        }
        let counts = counts(&backlog.take(1_400, |_| true));
        assert_eq!(counts, BTreeMap::from([(1, 100), (2, 300), (3, 1_000)]));
    }

    #[test]
    fn within_a_tenant_the_order_key_decides_across_lanes() {
        let mut backlog = Backlog::new(100);
        for n in [5, 1, 4, 2, 3] {
            let lane = LaneId(if n % 2 == 0 { 1 } else { 2 });
            backlog.offer(Pair { lane, tenant: TenantId(1) }, place(n));
        }
        let keys: Vec<i64> = backlog.take(9, |_| true).iter().map(|(_, place)| place.0.0).collect();
        assert_eq!(keys, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_closed_pair_is_passed_over_and_kept() {
        let mut backlog = Backlog::new(100);
        backlog.offer(pair(1), place(1));
        backlog.offer(pair(2), place(2));
        assert_eq!(counts(&backlog.take(9, |pair| pair.tenant.0 == 2)), BTreeMap::from([(2, 1)]));
        assert_eq!(counts(&backlog.take(9, |_| true)), BTreeMap::from([(1, 1)]));
    }

    /// Every run is taken once and in order, however small the memory.
    #[test]
    fn what_does_not_fit_is_read_back_in_order() {
        let all: Vec<Place> = (0..5_000).map(place).collect();
        let mut backlog = Backlog::new(100);
        let kept = all.iter().filter(|place| backlog.offer(pair(1), **place)).count();
        assert_eq!(kept, 100);
        let mut taken = Vec::new();
        while taken.len() < all.len() {
            let got = backlog.take(7, |_| true);
            assert!(!got.is_empty() || !backlog.wanted().is_empty(), "stuck after {}", taken.len());
            taken.extend(got.into_iter().map(|(_, place)| place));
            for window in backlog.wanted() {
                let start = all.partition_point(|place| window.after.is_some_and(|after| *place <= after));
                let stretch: Vec<Place> = all[start..].iter().copied().take(window.limit as usize).collect();
                backlog.read(&window, &stretch);
            }
            assert!(backlog.len() <= 200);
        }
        assert_eq!(taken, all);
        assert!(backlog.is_empty());
    }

    /// An older run that arrives while the pair is cut must not be lost.
    #[test]
    fn an_older_run_is_kept_though_the_pair_was_cut() {
        let mut backlog = Backlog::new(16);
        for n in 100..200 {
            backlog.offer(pair(1), place(n));
        }
        assert!(backlog.offer(pair(1), place(1)));
        assert!(!backlog.offer(pair(1), place(150)));
        assert_eq!(backlog.take(1, |_| true)[0].1, place(1));
    }

    #[test]
    fn every_pair_gets_one_before_weights_count() {
        let mut plan = ClaimPlan::default();
        plan.shares().weigh(TenantId(1), 10);
        for tenant in 1..=50 {
            plan.note(pair(tenant), OrderKey(i64::from(tenant)));
        }
        let shares = plan.shares_of(200, |_| true);
        assert_eq!(shares.len(), 50);
        assert_eq!(shares.iter().map(|share| share.runs).sum::<u32>(), 200);
        assert!(shares[0].runs > shares[1].runs);
    }

    /// A low-water key that never fell would hide a promoted run for ever.
    #[test]
    fn an_older_key_lowers_the_low_water_mark() {
        let mut plan = ClaimPlan::default();
        plan.note(pair(1), OrderKey(500));
        let share = plan.shares_of(1, |_| true)[0];
        plan.claimed(&share, &[OrderKey(700)]);
        assert_eq!(plan.shares_of(1, |_| true)[0].low, OrderKey(700));
        plan.note(pair(1), OrderKey(100));
        assert_eq!(plan.shares_of(1, |_| true)[0].low, OrderKey(100));
    }

    #[test]
    fn a_drained_pair_is_not_asked_again_until_noted() {
        let mut plan = ClaimPlan::default();
        plan.note(pair(1), OrderKey(1));
        let share = plan.shares_of(10, |_| true)[0];
        plan.claimed(&share, &[OrderKey(1)]);
        assert!(plan.is_idle());
        plan.note(pair(1), OrderKey(2));
        assert!(!plan.is_idle());
    }
}
