//! The order in which ready runs start, as one static number.
//!
//! Each minute of waiting is worth one priority level, so comparing
//! `waited / 60 s - priority` at any moment gives the same order as comparing
//! `ready_at + priority x 60 s` once and for all. That is why aging needs no
//! rewriting of rows and one index serves.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How urgent a run is: 1 is the highest, 10 the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

/// What one priority level is worth, in microseconds of waiting.
const LEVEL_MICROS: i64 = 60_000_000;

impl Priority {
    pub const HIGHEST: Self = Self(1);
    pub const LOWEST: Self = Self(10);

    /// The priority `n`, if it is one.
    pub const fn new(n: u8) -> Option<Self> {
        if n >= 1 && n <= 10 { Some(Self(n)) } else { None }
    }

    pub const fn get(self) -> u8 {
        self.0
    }

    /// So many levels more urgent, as far as that goes.
    #[must_use]
    pub const fn raised(self, levels: u8) -> Self {
        if self.0 > levels { Self(self.0 - levels) } else { Self::HIGHEST }
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(5)
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> Self {
        priority.0
    }
}

impl TryFrom<u8> for Priority {
    type Error = &'static str;

    fn try_from(n: u8) -> Result<Self, Self::Error> {
        Self::new(n).ok_or("a priority must be a number from 1 (most urgent) to 10 (least urgent)")
    }
}

/// Smaller starts earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OrderKey(pub i64);

impl OrderKey {
    pub const MIN: Self = Self(i64::MIN);
    pub const MAX: Self = Self(i64::MAX);

    pub fn new(ready_at: Timestamp, priority: Priority) -> Self {
        Self(ready_at.as_microsecond() + i64::from(priority.0) * LEVEL_MICROS)
    }

    /// The priority that, with `ready_at`, gave this key. The stores keep the
    /// key and the instant, and so need no column for the priority.
    pub fn priority(self, ready_at: Timestamp) -> Priority {
        let levels = (self.0 - ready_at.as_microsecond()) / LEVEL_MICROS;
        Priority(levels.clamp(1, 10) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_minute_of_waiting_is_worth_one_level() {
        let at = |s: i64| Timestamp::from_second(s).unwrap();
        let low_early = OrderKey::new(at(0), Priority::new(6).unwrap());
        let high_late = OrderKey::new(at(61), Priority::new(5).unwrap());
        let high_soon = OrderKey::new(at(59), Priority::new(5).unwrap());
        assert!(low_early < high_late, "a minute of waiting makes up for one level");
        assert!(high_soon < low_early, "less than a minute does not");
    }

    #[test]
    fn raising_stops_at_the_highest() {
        assert_eq!((Priority::LOWEST.raised(2).get(), Priority::default().raised(9)), (8, Priority::HIGHEST));
    }

    #[test]
    fn priority_is_read_back_from_key_and_instant() {
        let ready_at = Timestamp::from_microsecond(1_763_000_000_123_456).unwrap();
        for n in 1..=10 {
            let priority = Priority::new(n).unwrap();
            assert_eq!(OrderKey::new(ready_at, priority).priority(ready_at), priority);
        }
    }
}
