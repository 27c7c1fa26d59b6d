//! The ready runs of owned lanes, in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{FairShare, Pair, Place};
use crate::ids::{LaneId, TenantId};

/// A pair may keep so many whatever the others hold.
const PAIR_MIN: usize = 16;

/// What the store holds of a pair beyond what is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    /// Nothing: memory is complete.
    Nothing,
    /// Runs after this place (or all of them) may be in the store only.
    After(Option<Place>),
}

impl Beyond {
    fn hides(self, place: Place) -> bool {
        match self {
            Self::Nothing => false,
            Self::After(edge) => edge.is_none_or(|edge| place > edge),
        }
    }
}

/// One pair's runs.
#[derive(Debug)]
struct PairQueue {
    ready: BTreeSet<Place>,
    beyond: Beyond,
    /// A stretch beyond was asked for and has not come.
    asked: bool,
    /// What was offered from beyond since then: the answer may not know it.
    late: BTreeSet<Place>,
    /// Something was turned away, or doubted, since then.
    missed: bool,
    /// What was taken or forgotten since then: the answer may still know it.
    gone: BTreeSet<Place>,
}

impl PairQueue {
    fn new() -> Self {
        Self {
            ready: BTreeSet::new(),
            beyond: Beyond::Nothing,
            asked: false,
            late: BTreeSet::new(),
            missed: false,
            gone: BTreeSet::new(),
        }
    }

    fn len(&self) -> usize {
        self.ready.len() + self.late.len()
    }

    fn is_done(&self) -> bool {
        self.len() == 0 && self.beyond == Beyond::Nothing
    }

    /// Whether the run is kept.
    fn offer(&mut self, place: Place, most: usize) -> bool {
        if self.beyond == Beyond::Nothing && self.ready.len() >= most {
            self.beyond = Beyond::After(self.ready.last().copied());
        }
        if !self.beyond.hides(place) {
            self.ready.insert(place);
            return true;
        }
        let kept = self.asked && self.late.len() < most;
        if kept {
            self.late.insert(place);
        }
        // Before that, the answer will know it: it is in the store already.
        self.missed |= self.asked && !kept;
        kept
    }

    fn remove(&mut self, place: &Place) -> bool {
        if self.asked {
            self.gone.insert(*place);
        }
        self.ready.remove(place) || self.late.remove(place)
    }

    /// Takes in a stretch; fewer than its limit means that the store had no
    /// more when it was read.
    fn read(&mut self, window: &Window, places: &[Place], flying: impl Fn(&Place) -> bool) {
        self.beyond = match places.last() {
            // What was missed may lie before the last place read.
            _ if self.missed => Beyond::After(window.after),
            Some(last) if places.len() >= window.limit as usize => Beyond::After(Some(*last)),
            _ => Beyond::Nothing,
        };
        self.ready.extend(places.iter().filter(|place| !self.gone.contains(place) && !flying(place)));
        let (hidden, known) = std::mem::take(&mut self.late).into_iter().partition(|place| self.beyond.hides(*place));
        self.late = hidden;
        self.ready.extend::<BTreeSet<Place>>(known);
        self.late.retain(|place| !self.ready.contains(place));
        self.forget_asking();
    }

    /// No answer is awaited any more.
    fn forget_asking(&mut self) {
        (self.asked, self.missed) = (false, false);
        self.gone.clear();
    }
}

/// One tenant's lanes, and the first run of each.
#[derive(Debug, Default)]
struct TenantQueue {
    lanes: BTreeMap<LaneId, PairQueue>,
    heads: BTreeSet<(Place, LaneId)>,
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
    tenants: HashMap<TenantId, TenantQueue>,
    /// Tenants whose every run was closed when last asked; not in line.
    closed: HashSet<TenantId>,
    /// Pairs that were cut and ran low.
    low: BTreeSet<Pair>,
    /// Pairs of which a stretch was wanted last.
    asked: Vec<Pair>,
    pairs: usize,
    len: usize,
    runs_max: usize,
}

impl Backlog {
    /// A backlog that holds about `runs_max` runs at most.
    pub fn new(runs_max: usize) -> Self {
        Self {
            shares: FairShare::default(),
            tenants: HashMap::new(),
            closed: HashSet::new(),
            low: BTreeSet::new(),
            asked: Vec::new(),
            pairs: 0,
            len: 0,
            runs_max,
        }
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
        let most = self.pair_max();
        self.change(pair, |queue| queue.offer(place, most))
    }

    /// Says that the store may hold runs of this pair that memory does not:
    /// after a takeover, or when a look is due.
    pub fn doubt(&mut self, pair: Pair) {
        self.change(pair, |queue| {
            queue.beyond = Beyond::After(None);
            queue.missed |= queue.asked;
        });
    }

    /// Whether [`Backlog::wanted`] would name any stretch.
    pub fn is_low(&self) -> bool {
        !self.low.is_empty()
    }

    /// Which stretches are worth reading now: of pairs that were cut and have
    /// run down to half of what they may hold. Answers to an earlier call that
    /// have not come by now are void, and must not be taken in any more.
    pub fn wanted(&mut self) -> Vec<Window> {
        for pair in std::mem::take(&mut self.asked) {
            if let Some(queue) = self.queue(pair) {
                queue.forget_asking();
            }
        }
        let limit = self.pair_max() as u32;
        let low: Vec<Pair> = self.low.iter().copied().collect();
        let mut windows = Vec::with_capacity(low.len());
        for pair in &low {
            if let Some(queue) = self.queue(*pair)
                && let Beyond::After(after) = queue.beyond
            {
                queue.asked = true;
                windows.push(Window { pair: *pair, after, limit });
            }
        }
        self.asked = low;
        windows
    }

    /// Takes in what was read for `window`: fewer than its limit means there
    /// is nothing beyond. A run that was taken and is not yet settled is still
    /// ready in the store: `flying` says which are. False where the answer is
    /// void and nothing was taken in.
    pub fn read(&mut self, window: &Window, places: &[Place], flying: impl Fn(&Place) -> bool) -> bool {
        let awaited =
            self.queue(window.pair).is_some_and(|queue| queue.asked && queue.beyond == Beyond::After(window.after));
        if awaited {
            self.change(window.pair, |queue| queue.read(window, places, flying));
        }
        awaited
    }

    /// Forgets a run that ended or went elsewhere. Also to be told of runs that
    /// were taken, when they have been settled: a stretch that is being read may
    /// still hold them.
    pub fn remove(&mut self, pair: Pair, place: &Place) -> bool {
        self.queue(pair).is_some() && self.change(pair, |queue| queue.remove(place))
    }

    /// Takes up to `most` runs, fairly, of pairs that `open` lets through.
    ///
    /// A tenant with nothing open is set aside until it is offered a run, or
    /// until [`Backlog::reopen`].
    pub fn take(&mut self, most: usize, mut open: impl FnMut(Pair) -> bool) -> Vec<(Pair, Place)> {
        let mut taken = Vec::with_capacity(most.min(self.len));
        while taken.len() < most
            && let Some(tenant) = self.shares.next()
        {
            let Some((pair, place)) = self.first(tenant, &mut open) else {
                self.shares.leave(tenant);
                self.closed.insert(tenant);
                continue;
            };
            self.shares.charge(tenant, 1);
            self.change(pair, |queue| queue.remove(&place));
            taken.push((pair, place));
        }
        taken
    }

    /// What was closed may be open now: a pause was lifted, a lane has room.
    pub fn reopen(&mut self) {
        for tenant in self.closed.drain() {
            self.shares.join(tenant);
        }
    }

    /// How many runs start before `place`, as far as memory knows.
    pub fn ahead_of(&self, pair: Pair, place: &Place) -> usize {
        self.tenants
            .get(&pair.tenant)
            .and_then(|tenant| tenant.lanes.get(&pair.lane))
            .map_or(0, |queue| queue.ready.range(..place).count())
    }

    fn queue(&mut self, pair: Pair) -> Option<&mut PairQueue> {
        self.tenants.get_mut(&pair.tenant)?.lanes.get_mut(&pair.lane)
    }

    fn first(&self, tenant: TenantId, open: &mut impl FnMut(Pair) -> bool) -> Option<(Pair, Place)> {
        let heads = self.tenants.get(&tenant)?.heads.iter();
        let mut firsts = heads.map(|(place, lane)| (Pair { lane: *lane, tenant }, *place));
        firsts.find(|(pair, _)| open(*pair))
    }

    /// Changes one pair, and everything that is known from it.
    fn change<T>(&mut self, pair: Pair, change: impl FnOnce(&mut PairQueue) -> T) -> T {
        let tenant = self.tenants.entry(pair.tenant).or_default();
        let queue = tenant.lanes.entry(pair.lane).or_insert_with(|| {
            self.pairs += 1;
            PairQueue::new()
        });
        let (len, head) = (queue.len(), queue.ready.first().copied());
        let answer = change(queue);
        self.len = self.len + queue.len() - len;
        let (first, done) = (queue.ready.first().copied(), queue.is_done());
        let (cut, ready) = (queue.beyond != Beyond::Nothing, queue.ready.len());
        if head != first {
            head.map(|head| tenant.heads.remove(&(head, pair.lane)));
            first.map(|first| tenant.heads.insert((first, pair.lane)));
        }
        let earlier = first.is_some_and(|first| head.is_none_or(|head| first < head));
        if earlier {
            self.closed.remove(&pair.tenant);
            self.shares.join(pair.tenant);
        } else if tenant.heads.is_empty() {
            self.closed.remove(&pair.tenant);
            self.shares.leave(pair.tenant);
        }
        if done {
            self.forget(pair);
        }
        if cut && ready <= self.pair_max() / 2 {
            self.low.insert(pair)
        } else {
            self.low.remove(&pair)
        };
        answer
    }

    fn forget(&mut self, pair: Pair) {
        self.pairs -= 1;
        if let Some(tenant) = self.tenants.get_mut(&pair.tenant) {
            tenant.lanes.remove(&pair.lane);
            if tenant.lanes.is_empty() {
                self.tenants.remove(&pair.tenant);
            }
        }
    }
}
