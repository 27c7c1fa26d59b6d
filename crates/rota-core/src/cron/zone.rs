//! Time zones by their IANA names, and nothing else.
//!
//! Names come from documents and requests, so a name never reaches the file
//! system: zones are looked up in the data compiled into the binary. The names
//! that a machine's own set-up gives a meaning are refused, because a schedule
//! must mean the same on every node.

use jiff::tz::TimeZone;

/// Longest name accepted; the longest real one has 32 bytes.
const NAME_BYTES_MAX: usize = 64;

/// Why a text is not a time zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a time zone: write an IANA name such as Europe/Berlin or UTC")]
pub struct BadZone(String);

impl BadZone {
    pub const CODE: &'static str = "unknown_timezone";
}

/// The zone called `name`, in any case.
pub fn zone(name: &str) -> Result<TimeZone, BadZone> {
    let bad = || BadZone(name.chars().take(NAME_BYTES_MAX).flat_map(char::escape_debug).collect());
    if name.len() > NAME_BYTES_MAX || !is_plain(name) || is_local(name) {
        return Err(bad());
    }
    TimeZone::get(name).map_err(|_| bad())
}

fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '+');
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(plain)
}

/// Names that mean another thing on another machine, or nothing at all.
fn is_local(name: &str) -> bool {
    ["local", "localtime", "posixrules", "Factory", "Etc/Unknown"].iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iana_names_are_found_in_any_case() {
        for name in ["UTC", "utc", "Europe/Berlin", "america/new_york", "Etc/GMT+5", "Asia/Ho_Chi_Minh", "EST5EDT"] {
            assert!(zone(name).is_ok(), "{name}");
        }
        assert_eq!(zone("america/new_york").unwrap().iana_name(), Some("America/New_York"));
    }

    #[test]
    fn paths_local_names_and_nonsense_are_refused() {
        let long = "A".repeat(1_000);
        for name in [
            "",
            " ",
            "local",
            "LOCAL",
            "localtime",
            "Local",
            "../etc/passwd",
            "/etc/localtime",
            "posix/Europe/Berlin",
            "Posix/Europe/Berlin",
            "right/UTC",
            "Europe/../Europe/Berlin",
            "Europe//Berlin",
            "Europe/Berlin ",
            "Europe/Berlin\0",
            "UTC+7",
            "+07:00",
            "EST5EDT,M3.2.0,M11.1.0",
            "Factory",
            "Etc/Unknown",
            "Mars/Olympus",
            "Europе/Berlin",
            "posixrules",
            "tzdata.zi",
            long.as_str(),
        ] {
            assert!(zone(name).is_err(), "{name}");
        }
    }
}
