//! Chance, handed in: the ids that nodes make, and the jitter of retries.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use uuid::{Builder, Uuid};

/// A source of random bits. Seeded in tests, so that a failure can be repeated.
pub trait Random: Send + Sync {
    /// 64 bits, each as likely set as not.
    fn bits(&self) -> u64;
}

impl dyn Random + '_ {
    /// A number in `[0, 1)`, such as a jitter.
    pub fn unit(&self) -> f64 {
        // The 53 bits that a float holds.
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// An id of version 7: sorted by the microsecond of its making and
    /// then by chance.
    pub fn uuid(&self, now: Timestamp) -> Uuid {
        uuid_of(self.bits(), now)
    }
}

/// An id of version 7 made at `now`, its random part out of these bits.
pub(crate) fn uuid_of(bits: u64, now: Timestamp) -> Uuid {
    let micros = now.as_microsecond().max(0) as u64;
    // The part of a millisecond, as a fraction of 12 bits, stands where
    // the version 7 layout has its first random bits.
    let fraction = (micros % 1_000) * 4_096 / 1_000;
    let mut rest = [0; 10];
    rest[..2].copy_from_slice(&(fraction as u16).to_be_bytes());
    rest[2..].copy_from_slice(&bits.to_be_bytes());
    Builder::from_unix_timestamp_millis(micros / 1_000, &rest).into_uuid()
}

/// The same bits for the same seed (`SplitMix64`). Not for secrets.
#[derive(Debug)]
pub struct Seeded(AtomicU64);

impl Seeded {
    pub const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Random for Seeded {
    fn bits(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut mixed = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_microsecond(1_763_000_000_000_000 + micros).unwrap()
    }

    /// The reference values of `SplitMix64`: a seed printed by one release must
    /// repeat its failure on the next.
    #[test]
    fn the_same_seed_gives_the_same_bits_for_ever() {
        let bits: Vec<u64> = {
            let seeded = Seeded::new(1_234_567);
            (0..3).map(|_| seeded.bits()).collect()
        };
        assert_eq!(bits, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn ids_sort_by_the_time_of_their_making() {
        let random: &dyn Random = &Seeded::new(7);
        let ids: Vec<Uuid> = [0, 1, 2, 500, 999, 1_000, 1_001, 5_000_000].map(|micros| random.uuid(at(micros))).into();
        assert!(ids.is_sorted(), "{ids:?}");
        assert!(ids.iter().all(|id| id.get_version_num() == 7 && id.get_variant() == uuid::Variant::RFC4122));
        assert_eq!(ids[7].as_u64_pair().0 >> 16, 1_763_000_005_000);
    }

    #[test]
    fn ids_of_one_moment_differ() {
        let random: &dyn Random = &Seeded::new(7);
        let ids: std::collections::BTreeSet<Uuid> = (0..10_000).map(|_| random.uuid(at(0))).collect();
        assert_eq!(ids.len(), 10_000);
    }

    #[test]
    fn a_unit_is_at_least_zero_and_below_one() {
        struct Fixed(u64);
        impl Random for Fixed {
            fn bits(&self) -> u64 {
                self.0
            }
        }
        let [least, most]: [&dyn Random; 2] = [&Fixed(0), &Fixed(u64::MAX)];
        assert!(least.unit().to_bits() == 0 && (0.999..1.0).contains(&most.unit()));
    }
}
