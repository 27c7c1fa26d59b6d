//! What an engine counts. Plain atomics: whoever serves metrics reads them.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use jiff::{SignedDuration, Timestamp};
use rota_core::run::Verdict;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that comes and goes.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    pub fn set(&self, n: usize) {
        self.0.store(n as i64, Ordering::Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A moment, or none.
#[derive(Debug)]
pub struct Moment(AtomicI64);

/// Stands for none: no clock reads it.
const NEVER: i64 = i64::MIN;

impl Default for Moment {
    fn default() -> Self {
        Self(AtomicI64::new(NEVER))
    }
}

impl Moment {
    pub fn set(&self, at: Option<Timestamp>) {
        self.0.store(at.map_or(NEVER, Timestamp::as_microsecond), Ordering::Relaxed);
    }

    /// How long ago it was; nothing where it is none, or still to come.
    pub fn age(&self, now: Timestamp) -> SignedDuration {
        let at = Some(self.0.load(Ordering::Relaxed)).filter(|at| *at != NEVER);
        let at = at.and_then(|at| Timestamp::from_microsecond(at).ok());
        at.map_or(SignedDuration::ZERO, |at| at.duration_until(now).max(SignedDuration::ZERO))
    }
}

/// Powers of two of a microsecond: bucket `n` holds what took less than
/// `2^n` µs, the last one all that took longer (over half an hour).
pub const BUCKETS: usize = 33;

/// A power of two is counted in so many equal parts: what a quantile says is at most
/// one part in 32 too much.
const PARTS: u64 = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 5;
/// Below [`PARTS`] every microsecond is counted by itself; beyond it come the powers of
/// two that fit into 32 bits.
const PLACES: usize = ((u32::BITS - PARTS_BITS + 1) * PARTS as u32) as usize;

/// How long something took, counted by size.
#[derive(Debug)]
pub struct Histogram {
    counts: [AtomicU64; PLACES],
    sum_micros: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; PLACES], sum_micros: AtomicU64::new(0) }
    }
}

impl Histogram {
    pub fn add(&self, took: SignedDuration) {
        let micros = took.as_micros().clamp(0, i128::from(u32::MAX)) as u64;
        self.counts[place_of(micros)].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// By powers of two.
    pub fn buckets(&self) -> [u64; BUCKETS] {
        let mut buckets = [0; BUCKETS];
        for (place, count) in self.counts.iter().enumerate() {
            let bucket = u64::BITS - last_of(place).leading_zeros();
            buckets[bucket as usize] += count.load(Ordering::Relaxed);
        }
        buckets
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub fn sum_micros(&self) -> u64 {
        self.sum_micros.load(Ordering::Relaxed)
    }

    /// In microseconds, what the given share (0.99) of all took at most.
    pub fn quantile_micros(&self, share: f64) -> u64 {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut upto = 0;
        let found = self.counts.iter().position(|count| {
            upto += count.load(Ordering::Relaxed);
            upto >= wanted
        });
        found.map_or(0, last_of)
    }
}

fn place_of(micros: u64) -> usize {
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(PARTS_BITS + 1);
    (u64::from(shift) * PARTS + (micros >> shift)) as usize
}

/// The most that is counted at a place.
fn last_of(place: usize) -> u64 {
    let place = place as u64;
    let shift = (place / PARTS).saturating_sub(1);
    ((place - shift * PARTS + 1) << shift) - 1
}

/// Everything that an engine counts.
#[derive(Debug, Default)]
pub struct Stats {
    /// Runs made by schedules.
    pub fired: Counter,
    /// Instants that made no run.
    pub skipped: Counter,
    /// From an instant's due time to its commit.
    pub lateness: Histogram,
    /// Runs made by hand, through the API or from the inbox.
    pub enqueued: Counter,
    /// Requests of the inbox that could not be made into runs.
    pub refused: Counter,
    pub promoted: Counter,
    pub started: Counter,
    /// From ready to started.
    pub start_delay: Histogram,
    /// From the start of a run's last attempt to its end.
    pub duration: Histogram,
    /// By verdict, in the order of [`Verdict::ALL`].
    pub ended: [Counter; Verdict::ALL.len()],
    pub retried: Counter,
    /// Settlements that were refused because the right to them was gone.
    pub stale: Counter,
    /// Attempts stopped because their run was no longer ours.
    pub lost: Counter,
    pub reaped: Counter,
    pub swept: Counter,
    pub settle_batches: Counter,
    /// Writes of many items at once: settlements, fires, runs made.
    pub store_batches: Counter,
    /// Items in them.
    pub store_items: Counter,
    /// From such a write to its answer.
    pub store_latency: Histogram,
    /// When the queued run of all nodes that waits longest became ready, as of the
    /// last scan; only the node that looks after all knows.
    pub oldest_queued: Moment,
    /// Dead letters that nobody has dealt with, as far as they are counted, and when
    /// the oldest of them died; known where [`Self::oldest_queued`] is.
    pub dead_open: Gauge,
    pub oldest_dead: Moment,
    pub claims: Counter,
    pub store_errors: Counter,
    pub executing: Gauge,
    pub backlog: Gauge,
    pub partitions: Gauge,
    /// What cannot be and was found at the last scan; reads 0.
    pub findings: Gauge,
    /// Rows of the store that cannot be read and are left out.
    pub unreadable: Gauge,
    pub overdue: Gauge,
    /// Microseconds that the machine's clock was ahead of the time when last measured.
    pub clock_offset: AtomicI64,
    /// Microseconds by which it may have been later than thought.
    pub clock_error: AtomicI64,
    /// How often the clock was set.
    pub clock_steps: Counter,
}

impl Stats {
    pub fn count_end(&self, verdict: Verdict) {
        if let Some(n) = Verdict::ALL.iter().position(|one| *one == verdict) {
            self.ended[n].add(1);
        }
    }

    pub fn ended_as(&self, verdict: Verdict) -> u64 {
        Verdict::ALL.iter().zip(&self.ended).filter(|(one, _)| **one == verdict).map(|(_, count)| count.get()).sum()
    }

    pub fn ended_in_all(&self) -> u64 {
        self.ended.iter().map(Counter::get).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_an_age_once_it_has_come() {
        let at = |second| Timestamp::from_second(second).unwrap_or_default();
        let moment = Moment::default();
        assert_eq!(moment.age(at(10)), SignedDuration::ZERO);
        moment.set(Some(at(4)));
        assert_eq!((moment.age(at(10)), moment.age(at(1))), (SignedDuration::from_secs(6), SignedDuration::ZERO));
        moment.set(None);
        assert_eq!(moment.age(at(10)), SignedDuration::ZERO);
    }

    #[test]
    fn every_length_has_one_place_and_places_keep_their_order() {
        let lengths = (0..5_000).chain((12..32).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1]));
        for micros in lengths.chain([u64::from(u32::MAX)]) {
            let place = place_of(micros);
            assert!(last_of(place) >= micros && last_of(place) <= micros + micros / PARTS, "{micros}");
            assert!(place == 0 || last_of(place - 1) < micros, "{micros}");
        }
        assert_eq!(place_of(u64::from(u32::MAX)), PLACES - 1);
    }

    /// A coarse count would show half of what it was, or twice as much.
    #[test]
    fn a_quantile_is_within_a_thirtieth() {
        let histogram = Histogram::default();
        for micros in [0, 1, 5, 900, 1_000_000] {
            histogram.add(SignedDuration::from_micros(micros));
        }
        assert_eq!(histogram.count(), 5);
        assert_eq!([0.0, 0.4, 0.6, 0.8].map(|share| histogram.quantile_micros(share)), [0, 1, 5, 911]);
        assert_eq!(histogram.quantile_micros(1.0), 1_015_807);
        let skewed = Histogram::default();
        (0..1_000).for_each(|n| skewed.add(SignedDuration::from_micros(if n < 985 { 520 } else { 1_020 })));
        assert_eq!((skewed.quantile_micros(0.5), skewed.quantile_micros(0.99)), (527, 1_023));
    }

    #[test]
    fn buckets_are_powers_of_two() {
        let histogram = Histogram::default();
        for micros in [0, 1, 31, 32, 1_023, 1_024, i64::from(u32::MAX), i64::MAX] {
            histogram.add(SignedDuration::from_micros(micros));
        }
        let mut wanted = [0; BUCKETS];
        for (bucket, count) in [(0, 1), (1, 1), (5, 1), (6, 1), (10, 1), (11, 1), (32, 2)] {
            wanted[bucket] = count;
        }
        assert_eq!(histogram.buckets(), wanted);
    }
}
