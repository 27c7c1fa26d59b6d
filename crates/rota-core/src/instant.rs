//! Instants as they are written.
//!
//! A leap second, such as `23:59:60`, is refused. No clock here counts it, and to
//! read it as the second before would run something at another time than was
//! written.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de};

/// Why a text is not an instant.
#[derive(Debug, thiserror::Error)]
pub enum BadInstant {
    #[error("{0}")]
    Unreadable(#[from] jiff::Error),
    #[error("a leap second is not supported: write second 59, or 00 of the next minute")]
    LeapSecond,
}

/// Reads an instant with its offset, such as `2030-01-01T09:00:00Z`.
pub fn parse(text: &str) -> Result<Timestamp, BadInstant> {
    if is_leap_second(text) {
        return Err(BadInstant::LeapSecond);
    }
    Ok(text.parse()?)
}

/// Whether the time of day in a text has 60 for its seconds.
pub fn is_leap_second(text: &str) -> bool {
    let Some((_, time)) = text.split_once(['T', 't', ' ']) else { return false };
    let time = time.split(|c: char| c != ':' && !c.is_ascii_digit()).next().unwrap_or_default();
    let digits: String = time.split(':').collect();
    digits.len() == 6 && digits.ends_with("60")
}

/// For `deserialize_with`: an instant that may be absent.
pub fn read_opt<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(Option::<Written>::deserialize(from)?.map(|Written(at)| at))
}

/// An instant as [`parse`] reads it.
struct Written(Timestamp);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Reader)
    }
}

struct Reader;

impl de::Visitor<'_> for Reader {
    type Value = Written;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a timestamp string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Written, E> {
        parse(text).map(Written).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The library beneath reads second 60 as second 59.
    #[test]
    fn a_leap_second_is_refused_however_it_is_written() {
        for text in [
            "2026-12-31T23:59:60Z",
            "2026-12-31 23:59:60.25Z",
            "2026-12-31t23:59:60,5+00:00",
            "2026-12-31T235960Z",
            "2027-01-01T00:59:60+01:00[Europe/Paris]",
        ] {
            assert!(matches!(parse(text), Err(BadInstant::LeapSecond)), "{text}");
        }
    }

    #[test]
    fn sixty_elsewhere_is_no_leap_second() {
        for text in [
            "2026-12-31T23:59:59.60Z",
            "2060-06-06T16:06:06Z",
            "2026-12-31T23:59Z",
            "2026-12-31T23:59:59+00:00",
            "1960-01-01T00:00:00Z",
        ] {
            assert_eq!(parse(text).unwrap(), text.parse::<Timestamp>().unwrap(), "{text}");
        }
        assert!(matches!(parse("60"), Err(BadInstant::Unreadable(_))));
    }
}
