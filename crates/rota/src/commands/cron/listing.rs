//! A question about an expression's instants, checked and ready to be listed.
//!
//! Arguments and lines of a stream ask through this one door, so both refuse
//! the same things with the same codes.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use rota_core::{
    cron::{BadZone, Cron, DstPolicy, Instants, zone},
    instant::{self, BadInstant},
    schedule::{Fold, Gap},
};

use crate::clock;

/// Most instants in one answer.
const INSTANTS_MAX: usize = 100_000;

/// A question as asked.
pub struct Ask<'a> {
    pub expression: &'a str,
    pub seed: &'a str,
    pub zone: &'a str,
    pub after: Option<&'a str>,
    pub until: Option<&'a str>,
    pub count: Option<usize>,
    /// When neither a count nor an end is given.
    pub default_count: usize,
    pub gap: Gap,
    pub fold: Fold,
}

/// Why a question has no answer.
pub struct Refused {
    pub code: &'static str,
    pub message: String,
    /// The bytes of the expression to blame.
    pub place: Option<std::ops::Range<usize>>,
}

impl Refused {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), place: None }
    }
}

/// A question that has an answer.
pub struct Listing {
    pub cron: Cron,
    pub zone: TimeZone,
    pub after: Timestamp,
    pub count: usize,
    policy: DstPolicy,
    until: Timestamp,
}

impl Listing {
    pub fn new(ask: &Ask<'_>) -> Result<Self, Refused> {
        let cron = Cron::parse(ask.expression, ask.seed.as_bytes()).map_err(|error| Refused {
            code: error.code(),
            message: error.to_string(),
            place: Some(error.place.clone()),
        })?;
        let zone = zone(ask.zone).map_err(|error| Refused::new(BadZone::CODE, error.to_string()))?;
        let after = ask.after.map_or_else(|| Ok(clock::now()), |text| time(text, &zone))?;
        let until = ask.until.map(|text| time(text, &zone)).transpose()?;
        let count = count(ask, until.is_some())?;
        let policy = DstPolicy { gap: ask.gap, fold: ask.fold };
        let listing = Self { cron, zone, after, count, policy, until: until.unwrap_or(Timestamp::MAX) };
        listing.refuse_too_many(ask)?;
        Ok(listing)
    }

    /// The instants, not yet cut to the count.
    pub fn instants(&self) -> Instants<'_> {
        self.cron.instants(self.after, self.until, &self.zone, self.policy)
    }

    /// A range without a count must not be cut short in silence.
    fn refuse_too_many(&self, ask: &Ask<'_>) -> Result<(), Refused> {
        if ask.until.is_none() || ask.count.is_some() || self.instants().nth(INSTANTS_MAX).is_none() {
            return Ok(());
        }
        let message = format!("the range has more than {INSTANTS_MAX} instants: shorten it, or limit it with --count");
        Err(Refused::new("too_many_instants", message))
    }
}

/// An instant with an offset, or a local time of the zone.
fn time(text: &str, zone: &TimeZone) -> Result<Timestamp, Refused> {
    match instant::parse(text) {
        Ok(instant) => return Ok(instant),
        Err(error @ BadInstant::LeapSecond) => return Err(Refused::new("bad_time", error.to_string())),
        Err(BadInstant::Unreadable(_)) => {}
    }
    let bad = || {
        let shown: String = text.chars().take(64).flat_map(char::escape_debug).collect();
        let message =
            format!("`{shown}` is not a valid time: write 2025-03-09T00:00:00Z, or without the Z for a local time");
        Refused::new("bad_time", message)
    };
    let local: DateTime = text.parse().map_err(|_| bad())?;
    zone.to_timestamp(local).map_err(|_| bad())
}

fn count(ask: &Ask<'_>, bounded: bool) -> Result<usize, Refused> {
    match ask.count {
        Some(count) if (1..=INSTANTS_MAX).contains(&count) => Ok(count),
        Some(_) => Err(Refused::new("bad_count", format!("the count must be between 1 and {INSTANTS_MAX}"))),
        None if bounded => Ok(INSTANTS_MAX),
        None => Ok(ask.default_count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_without_an_offset_are_local() {
        let zone = zone("America/New_York").unwrap();
        for (text, instant) in [
            ("2025-03-09T00:00:00Z", "2025-03-09T00:00:00Z"),
            ("2025-03-09T00:00:00+07:00", "2025-03-08T17:00:00Z"),
            ("2025-03-09T00:00:00", "2025-03-09T05:00:00Z"),
            ("2025-03-09", "2025-03-09T05:00:00Z"),
        ] {
            assert_eq!(time(text, &zone).ok().map(|at| at.to_string()).as_deref(), Some(instant), "{text}");
        }
        assert!(time("yesterday", &zone).is_err());
        for leap in ["2026-12-31T23:59:60Z", "2026-12-31T23:59:60"] {
            assert!(time(leap, &zone).is_err_and(|error| error.message.contains("leap second")), "{leap}");
        }
    }
}
