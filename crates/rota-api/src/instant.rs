//! Instants as callers write them.
//!
//! A leap second, such as `23:59:60`, is refused: the library beneath would read it
//! as the second before, which is not what was written. Job documents are held to
//! the same rule by `rota-core`, on which this crate does not depend.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de};

/// What a leap second is answered with.
const LEAP_SECOND: &str = "a leap second is not supported: write second 59, or 00 of the next minute";

/// For `deserialize_with`: an instant.
pub fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    Written::deserialize(from).map(|Written(at)| at)
}

/// For `deserialize_with`: an instant that may be absent.
pub fn read_opt<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(Option::<Written>::deserialize(from)?.map(|Written(at)| at))
}

/// Whether the time of day in a text has 60 for its seconds.
fn is_leap_second(text: &str) -> bool {
    let Some((_, time)) = text.split_once(['T', 't', ' ']) else { return false };
    let time = time.split(|c: char| c != ':' && !c.is_ascii_digit()).next().unwrap_or_default();
    let digits: String = time.split(':').collect();
    digits.len() == 6 && digits.ends_with("60")
}

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
        if is_leap_second(text) {
            return Err(E::custom(LEAP_SECOND));
        }
        text.parse().map(Written).map_err(E::custom)
    }
}
