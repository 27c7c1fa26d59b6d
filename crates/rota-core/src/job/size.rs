//! Sizes as people write them: `500B`, `64KB`, `1MiB`, or a bare number of bytes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes, at least 1 and at most 1 TB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

const BYTES_MAX: u64 = 1_000_000_000_000;

const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size: write a number and a unit such as 500B, 64KB or 1MiB (more than 0, at most 1000GB)")]
pub struct BadSize(String);

impl Size {
    pub const fn bytes(self) -> u64 {
        self.0
    }

    fn new(bytes: u64) -> Option<Self> {
        (1..=BYTES_MAX).contains(&bytes).then_some(Self(bytes))
    }
}

impl FromStr for Size {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let unit = match text[digits..].trim_start() {
            "" => Some(1),
            written => UNITS.iter().find(|(unit, _)| unit.eq_ignore_ascii_case(written)).map(|(_, bytes)| *bytes),
        };
        let number = text[..digits].parse::<u64>().ok();
        let bytes = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        bytes.and_then(Self::new).ok_or_else(|| BadSize(text.chars().take(64).collect()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The unit that leaves the shortest whole number; bytes always do.
        let fits = UNITS.iter().filter(|(_, bytes)| self.0.is_multiple_of(*bytes));
        match fits.max_by_key(|(_, bytes)| *bytes) {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl de::Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as 500B, 64KB or 1MiB, or a number of bytes")
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
        Size::new(bytes).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(bytes), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_size_round_trip() {
        for (text, bytes, shown) in [
            ("500", 500, "500B"),
            ("64KB", 64_000, "64KB"),
            ("64 kib", 65_536, "64KiB"),
            ("1MiB", 1_048_576, "1MiB"),
            ("1000GB", 1_000_000_000_000, "1000GB"),
            ("1000000B", 1_000_000, "1MB"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, shown), "{text}");
            assert_eq!(size.to_string().parse(), Ok(size));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "0",
            "0KB",
            "-1",
            "1.5MB",
            "1001GB",
            "10XB",
            "KB",
            "99999999999999999999",
            "18446744073709551615GB",
            "٣KB",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
