//! How many requests a tenant's callers may send, by its tier, and how many tries a
//! login may take.
//!
//! Requests are counted for all nodes together, by the engine's meter; tries on each
//! node by itself, before anybody is known to whom they could be counted.

use std::{collections::HashMap, hash::Hash};

use jiff::Timestamp;
use parking_lot::Mutex;
use rota_api::problem::Code;
use rota_core::{
    ids::TenantId,
    quota::Quotas,
    rate::{Bucket, Rate},
};
use rota_engine::Engine;

use crate::problem::Problem;

/// Buckets kept in a table.
const BUCKETS_MAX: usize = 10_000;
/// Bytes of a key and its bucket, at most: a table has at most some 2 MB.
const BUCKET_BYTES_MAX: usize = 128;
/// Buckets evicted at once from a full table, so that not every newcomer searches it.
const EVICTED: usize = BUCKETS_MAX / 10;

/// Token buckets by key, bounded in number and, as keys have a fixed size, in bytes.
///
/// When the table is full the fullest buckets are evicted, for a full bucket is the
/// same as none. Nobody is refused for it. Somebody who wants a bucket evicted that is
/// nearly empty has to empty 10,000 others further than it.
pub struct Buckets<K>(Mutex<HashMap<K, Bucket>>);

impl<K> Default for Buckets<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash> Buckets<K> {
    /// Takes one token, or says when there will be one.
    pub fn take(&self, key: K, rate: Rate, now: Timestamp) -> Result<(), Timestamp> {
        const { assert!(size_of::<(K, Bucket)>() <= BUCKET_BYTES_MAX) };
        let mut buckets = self.0.lock();
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(&key) {
            evict(&mut buckets, now);
        }
        let (bucket, taken) = rate.take(buckets.get(&key).copied(), 1, now);
        buckets.insert(key, bucket);
        if taken.tokens == 1 { Ok(()) } else { Err(taken.next_at) }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// Evicts those that are full, and of the others the fullest.
fn evict<K: Eq + Hash>(buckets: &mut HashMap<K, Bucket>, now: Timestamp) {
    let mut instants: Vec<Timestamp> = buckets.values().map(|bucket| bucket.full_at).collect();
    let (_, last, _) = instants.select_nth_unstable(EVICTED.min(buckets.len() - 1));
    let last = *last;
    // Many buckets may be full at the same instant.
    let mut room = EVICTED;
    buckets.retain(|_, bucket| {
        let goes = bucket.full_at <= now || (bucket.full_at <= last && room > 0);
        room -= usize::from(goes && room > 0);
        !goes
    });
}

/// Counts a request against the rate of the tenant it is about.
pub async fn count(engine: &Engine, tenant: TenantId, quotas: &Quotas) -> Result<(), Problem> {
    let Some(rate) = quotas.api_rate() else { return Ok(()) };
    engine.take_request(tenant, rate).await?.map_err(|next_at| {
        let detail = format!("the tenant's quota api_requests_per_s is {}", rate.runs);
        too_many(detail, next_at, engine.now())
    })
}

/// Refused until `next_at`.
pub fn too_many(detail: impl Into<String>, next_at: Timestamp, now: Timestamp) -> Problem {
    // Rounded up: whoever comes back too early is refused again.
    let millis = now.duration_until(next_at).as_millis().max(1) as u64;
    Problem::new(Code::TooMany, detail).retry_after(millis.div_ceil(1_000))
}

#[cfg(test)]
mod tests {
    use rota_core::duration::Span;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_760_000_000_000 + millis).unwrap()
    }

    #[test]
    fn a_refused_asker_is_told_when_to_come_back() {
        let problem = too_many("x", at(1_500), at(0));
        assert_eq!((problem.document().status, problem.seconds()), (429, Some(2)));
        assert_eq!(too_many("x", at(0), at(0)).seconds(), Some(1));
    }

    /// An attacker with many names must not fill the memory.
    #[test]
    fn buckets_are_bounded_and_full_ones_go() {
        let buckets = Buckets::<usize>::default();
        let rate = Rate { runs: 1, per: Span::secs(1) };
        assert!((0..BUCKETS_MAX).all(|key| buckets.take(key, rate, at(0)).is_ok()));
        assert_eq!(buckets.len(), BUCKETS_MAX);
        assert!(buckets.take(BUCKETS_MAX, rate, at(5_000)).is_ok());
        assert_eq!(buckets.len(), 1);
    }

    /// Nor must one who fills it lock the others out, or be forgotten in the crowd.
    #[test]
    fn newcomers_find_room_in_a_full_table_and_empty_buckets_stay() {
        let buckets = Buckets::<usize>::default();
        let rate = Rate { runs: 2, per: Span::secs(1) };
        assert_eq!((0..10).filter(|_| buckets.take(0, rate, at(0)).is_ok()).count(), 4);
        for key in 1..5 * BUCKETS_MAX {
            assert!(buckets.take(key, rate, at(0)).is_ok(), "{key}");
            assert!(buckets.len() <= BUCKETS_MAX);
        }
        assert!(buckets.take(0, rate, at(0)).is_err(), "the emptiest bucket was evicted");
    }
}
