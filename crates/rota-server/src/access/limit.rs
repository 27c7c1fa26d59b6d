//! How many requests a tenant's callers may send, by its tier.
//!
//! Counted on each node by itself: behind a balancer over N nodes a tenant may
//! send up to N times as much. This protects a node; what a tenant may *do* is
//! bounded by its quotas, which are counted in the store.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;
use rota_api::problem::Code;
use rota_core::{
    ids::TenantId,
    quota::Quotas,
    rate::{Bucket, Rate},
};

use crate::problem::Problem;

/// Buckets kept; full ones go first, for a full bucket is no bucket.
const BUCKETS_MAX: usize = 10_000;

/// Token buckets by key, bounded.
pub struct Buckets<K>(Mutex<HashMap<K, Bucket>>);

impl<K> Default for Buckets<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Buckets<K> {
    /// Takes one token, or says when there will be one.
    pub fn take(&self, key: K, rate: Rate, now: Timestamp) -> Result<(), Timestamp> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS_MAX {
            buckets.retain(|_, bucket| bucket.full_at > now);
        }
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(&key) {
            // So many askers at once that none can be told apart: all wait.
            return Err(rate.per.after(now));
        }
        let (bucket, taken) = rate.take(buckets.get(&key).copied(), 1, now);
        buckets.insert(key, bucket);
        if taken.tokens == 1 { Ok(()) } else { Err(taken.next_at) }
    }
}

#[derive(Default)]
pub struct Limits(Buckets<TenantId>);

impl Limits {
    pub fn take(&self, tenant: TenantId, quotas: &Quotas, now: Timestamp) -> Result<(), Problem> {
        let Some(rate) = quotas.api_rate() else { return Ok(()) };
        self.0.take(tenant, rate, now).map_err(|next_at| {
            let detail = format!("the tenant's quota api_requests_per_s is {}", rate.runs);
            too_many(detail, next_at, now)
        })
    }
}

/// Refused until `next_at`.
pub fn too_many(detail: impl Into<String>, next_at: Timestamp, now: Timestamp) -> Problem {
    // Rounded up: whoever comes back too early is refused again.
    let millis = now.duration_until(next_at).as_millis().max(1) as u64;
    Problem::new(Code::TooMany, detail).retry_after(millis.div_ceil(1_000))
}

#[cfg(test)]
mod tests {
    use rota_core::{duration::Span, store::Tier};

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_760_000_000_000 + millis).unwrap()
    }

    #[test]
    fn each_tier_has_its_rate_and_a_burst_of_twice_as_much() {
        for (tier, burst) in [(Tier::Free, 20), (Tier::Pro, 200), (Tier::Enterprise, 2_000)] {
            let (limits, quotas) = (Limits::default(), Quotas::of(tier));
            let passed = (0..3_000).filter(|_| limits.take(TenantId(1), &quotas, at(0)).is_ok()).count();
            assert_eq!(passed, burst, "{tier:?}");
            assert!(limits.take(TenantId(2), &quotas, at(0)).is_ok(), "another tenant is not touched");
            let later = (0..3_000).filter(|_| limits.take(TenantId(1), &quotas, at(1_000)).is_ok()).count();
            assert_eq!(later, burst / 2, "{tier:?}");
        }
        let limits = Limits::default();
        assert!((0..100_000).all(|_| limits.take(TenantId(1), &Quotas::NONE, at(0)).is_ok()));
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
        assert!(buckets.take(BUCKETS_MAX, rate, at(0)).is_err());
        assert!(buckets.take(BUCKETS_MAX, rate, at(5_000)).is_ok());
        assert_eq!(buckets.0.lock().unwrap().len(), 1);
    }
}
