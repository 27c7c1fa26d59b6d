//! Durations as people write them: `90s`, `10m`, `1h 30m`, `7d`.
//!
//! A [`Span`] is a whole, positive number of milliseconds, bounded by ten
//! years, so that arithmetic on instants cannot overflow. Days are 24 hours:
//! calendar arithmetic belongs to schedules, not to time-outs.

use std::{fmt, str::FromStr};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A length of time in whole milliseconds, from 1 ms up to ten years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

/// Ten years, in milliseconds.
const MILLIS_MAX: u64 = 10 * 366 * 86_400 * 1_000;

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a duration: write a number and a unit such as 500ms, 30s, 10m, 1h 30m or 7d (more than 0, at most 10 years)"
)]
pub struct BadSpan(String);

impl Span {
    /// The span of `n` milliseconds, clamped into the allowed range.
    pub const fn millis(n: u64) -> Self {
        if n == 0 {
            Self(1)
        } else if n > MILLIS_MAX {
            Self(MILLIS_MAX)
        } else {
            Self(n)
        }
    }

    pub const LONGEST: Self = Self(MILLIS_MAX);

    /// The span of `n` seconds, clamped into the allowed range.
    pub const fn secs(n: u64) -> Self {
        Self::millis(n.saturating_mul(1_000))
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }

    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1_000.0
    }

    pub const fn signed(self) -> SignedDuration {
        SignedDuration::from_millis(self.0 as i64)
    }

    /// `at + self`, or the last representable instant.
    pub fn after(self, at: Timestamp) -> Timestamp {
        at.saturating_add(self.signed()).unwrap_or(Timestamp::MAX)
    }

    /// `at - self`, or the first representable instant.
    pub fn before(self, at: Timestamp) -> Timestamp {
        at.saturating_sub(self.signed()).unwrap_or(Timestamp::MIN)
    }
}

impl FromStr for Span {
    type Err = BadSpan;

    fn from_str(text: &str) -> Result<Self, BadSpan> {
        let bad = || BadSpan(text.chars().take(64).collect());
        let mut total: u64 = 0;
        let mut rest = text.trim();
        if rest.is_empty() || text.len() > 64 {
            return Err(bad());
        }
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
            rest = rest[digits..].trim_start();
            let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
            let unit: u64 = match &rest[..letters] {
                "ms" => 1,
                "s" | "sec" | "secs" | "second" | "seconds" => 1_000,
                "m" | "min" | "mins" | "minute" | "minutes" => 60_000,
                "h" | "hr" | "hrs" | "hour" | "hours" => 3_600_000,
                "d" | "day" | "days" => 86_400_000,
                "w" | "week" | "weeks" => 7 * 86_400_000,
                "y" | "year" | "years" => 365 * 86_400_000,
                _ => return Err(bad()),
            };
            rest = rest[letters..].trim_start();
            total = number.checked_mul(unit).and_then(|n| n.checked_add(total)).ok_or_else(bad)?;
        }
        if total == 0 || total > MILLIS_MAX { Err(bad()) } else { Ok(Self(total)) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0;
        let mut first = true;
        for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
            let n = left / size;
            left %= size;
            if n > 0 {
                write!(f, "{}{n}{unit}", if first { "" } else { " " })?;
                first = false;
            }
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_span_round_trip() {
        for (text, millis, shown) in [
            ("90s", 90_000, "1m 30s"),
            ("10m", 600_000, "10m"),
            ("1h30m", 5_400_000, "1h 30m"),
            (" 7 days ", 604_800_000, "7d"),
            ("1y", 31_536_000_000, "365d"),
            ("250ms", 250, "250ms"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.as_millis(), span.to_string().as_str()), (millis, shown), "{text}");
            assert_eq!(span.to_string().parse(), Ok(span));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", " ", "0s", "10", "-5s", "5 fortnights", "1.5h", "99999999999999999999s", "٣s", "s", "11y", "1h -5m"]
        {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
