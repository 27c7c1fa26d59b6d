//! Times as people say them, in and out.

use jiff::{Timestamp, civil, tz::TimeZone};
use rota_core::{
    duration::Span,
    instant::{self, BadInstant},
};

use crate::failure::Failure;

/// How long ago or how long until: `12s ago`, `in 3m`, `now`.
pub fn from_now(at: Timestamp, now: Timestamp) -> String {
    let millis = at.duration_since(now).as_millis();
    match millis {
        -999..=999 => "now".to_owned(),
        ..=-1_000 => format!("{} ago", span(millis.unsigned_abs() as u64)),
        _ => format!("in {}", span(millis.unsigned_abs() as u64)),
    }
}

/// A length of time in its two greatest units, or in parts of a second.
pub fn span(millis: u64) -> String {
    const UNITS: [(&str, u64); 5] = [("y", 365 * 86_400), ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    if millis < 10_000 {
        return format!("{:.1}s", millis as f64 / 1_000.0);
    }
    let mut left = millis / 1_000;
    let mut parts = Vec::new();
    for (unit, size) in UNITS {
        if left >= size && parts.len() < 2 {
            parts.push(format!("{}{unit}", left / size));
        } else if !parts.is_empty() {
            break;
        }
        left %= size;
    }
    parts.concat()
}

/// An instant as given: an instant with an offset, a local time or day of this
/// machine's zone, or a length of time that counts from now (`2h` is two hours
/// ago, `+2h` is in two hours).
pub fn parse(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    parse_in(text, now, &TimeZone::system())
}

/// The same, with local times of another zone.
pub fn parse_in(text: &str, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, String> {
    if text == "now" {
        return Ok(now);
    }
    if let Some(ahead) = text.strip_prefix('+') {
        return ahead.parse::<Span>().map(|span| span.after(now)).map_err(|error| error.to_string());
    }
    if let Ok(ago) = text.trim_end_matches(" ago").parse::<Span>() {
        return Ok(ago.before(now));
    }
    match instant::parse(text) {
        Ok(instant) => return Ok(instant),
        Err(error @ BadInstant::LeapSecond) => return Err(format!("`{text}`: {error}")),
        Err(BadInstant::Unreadable(_)) => {}
    }
    let local = text.parse::<civil::DateTime>().or_else(|_| text.parse::<civil::Date>().map(Into::into));
    let local = local.ok().and_then(|local| zone.to_timestamp(local).ok());
    local.ok_or_else(|| {
        format!("`{text}` is not a valid time: write 2025-03-09T00:00:00Z, 2025-03-09, 2h (ago), +2h (from now) or now")
    })
}

/// An instant given for a flag.
pub fn of_flag(flag: &str, text: Option<&str>, now: Timestamp) -> Result<Option<Timestamp>, Failure> {
    let parsed = text.map(|text| parse(text, now)).transpose();
    parsed.map_err(|message| Failure::bad_input("bad_time", format!("--{flag}: {message}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_from_now() {
        let now: Timestamp = "2025-03-09T12:00:00Z".parse().unwrap();
        for (text, told) in [
            ("2025-03-09T12:00:00.5Z", "now"),
            ("2025-03-09T11:59:48Z", "12s ago"),
            ("2025-03-09T11:59:55.8Z", "4.2s ago"),
            ("2025-03-09T10:30:00Z", "1h30m ago"),
            ("2025-03-12T12:00:00Z", "in 3d"),
            ("2027-03-09T12:00:00Z", "in 2y"),
        ] {
            assert_eq!(from_now(text.parse().unwrap(), now), told, "{text}");
        }
        assert_eq!(span(42), "42ms");
    }

    #[test]
    fn a_local_time_is_one_of_the_zone_that_is_named() {
        let now: Timestamp = "2025-03-09T12:00:00Z".parse().unwrap();
        let tokyo = TimeZone::get("Asia/Tokyo").unwrap();
        for (text, told) in [
            ("2030-01-01T09:00", "2030-01-01T00:00:00Z"),
            ("2030-01-01", "2029-12-31T15:00:00Z"),
            ("2030-01-01T09:00:00Z", "2030-01-01T09:00:00Z"),
            ("+2h", "2025-03-09T14:00:00Z"),
        ] {
            assert_eq!(parse_in(text, now, &tokyo).unwrap().to_string(), told, "{text}");
        }
    }

    #[test]
    fn an_instant_is_given_as_is_handy() {
        let now: Timestamp = "2025-03-09T12:00:00Z".parse().unwrap();
        for (text, instant) in [
            ("now", "2025-03-09T12:00:00Z"),
            ("2h", "2025-03-09T10:00:00Z"),
            ("90m ago", "2025-03-09T10:30:00Z"),
            ("+1d", "2025-03-10T12:00:00Z"),
            ("2025-01-01T00:00:00+01:00", "2024-12-31T23:00:00Z"),
        ] {
            assert_eq!(parse(text, now), Ok(instant.parse().unwrap()), "{text}");
        }
        for leap in ["2026-12-31T23:59:60Z", "2026-12-31 23:59:60"] {
            assert!(parse(leap, now).unwrap_err().contains("a leap second is not supported"), "{leap}");
        }
        assert!(parse("tomorrow", now).unwrap_err().contains("`tomorrow` is not a valid time"));
    }
}
