//! Calendars: named sets of days on which schedules do or do not fire.
//!
//! A calendar lists days in four ways (dates, ranges, weekdays, dates of every
//! year); `exclude` means not on them, `include` means only on them. A schedule
//! that names several fires on the days all of them allow. The question is
//! pure and cheap, so it is asked per planned day and never cached.
//!
//! A calendar knows days, not times or zones: the day is the schedule's local
//! one.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    hash::BuildHasher,
    str::FromStr,
};

use jiff::civil::{Date, Weekday};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{choice::choices, problem::Problem, schedule::check_name};

/// Most entries in one list of a calendar.
pub const ENTRIES_MAX: usize = 5_000;

choices! {
    /// What the listed days are for.
    #[derive(Default)]
    CalendarMode {
        /// Nothing fires on them.
        #[default]
        Exclude = "exclude",
        /// Things fire only on them.
        Include = "include",
    }
}

/// A range of days, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DateRange {
    pub from: Date,
    pub to: Date,
}

/// A day of every year, written `12-25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct YearlyDate {
    month: i8,
    day: i8,
}

/// A day of the week, written `SAT` or `saturday`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeekdayName(pub Weekday);

/// A named set of days, as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct Calendar {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default)]
    pub mode: CalendarMode,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub dates: BTreeSet<Date>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<DateRange>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weekdays: Vec<WeekdayName>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub yearly: BTreeSet<YearlyDate>,
}

impl Calendar {
    /// Whether things may fire on this day.
    pub fn allows(&self, date: Date) -> bool {
        self.lists(date) == (self.mode == CalendarMode::Include)
    }

    fn lists(&self, date: Date) -> bool {
        self.weekdays.iter().any(|weekday| weekday.0 == date.weekday())
            || self.yearly.contains(&YearlyDate { month: date.month(), day: date.day() })
            || self.dates.contains(&date)
            || self.ranges.iter().any(|range| range.from <= date && date <= range.to)
    }

    /// Everything that is wrong with this document, each with its path in it.
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        check_name("name", &self.name, &mut problems);
        for (index, range) in self.ranges.iter().enumerate() {
            if range.to < range.from {
                let message = format!("the range ends on {}, before it starts on {}", range.to, range.from);
                problems.push(Problem::new(format!("ranges[{index}]"), "bad_range", message));
            }
        }
        for (path, length) in [
            ("dates", self.dates.len()),
            ("ranges", self.ranges.len()),
            ("weekdays", self.weekdays.len()),
            ("yearly", self.yearly.len()),
        ] {
            if length > ENTRIES_MAX {
                problems.push(Problem::new(
                    path,
                    "too_many_entries",
                    format!("may have at most {ENTRIES_MAX} entries"),
                ));
            }
        }
        if self.is_empty() {
            problems.push(Problem::new("", "empty_calendar", "the calendar lists no days; add at least one"));
        }
        problems
    }

    fn is_empty(&self) -> bool {
        self.dates.is_empty() && self.ranges.is_empty() && self.weekdays.is_empty() && self.yearly.is_empty()
    }
}

/// Whether every one of these calendars allows the day.
pub fn all_allow<'a>(calendars: impl IntoIterator<Item = &'a Calendar>, date: Date) -> bool {
    calendars.into_iter().all(|calendar| calendar.allows(date))
}

/// The calendars of these names, or each that is not there. To go on without one would be
/// to fire on the days that it keeps out.
pub fn named<'a>(
    names: &[String],
    all: &'a HashMap<String, Calendar, impl BuildHasher>,
) -> Result<Vec<&'a Calendar>, Vec<Problem>> {
    let found: Vec<&Calendar> = names.iter().filter_map(|name| all.get(name)).collect();
    if found.len() == names.len() {
        return Ok(found);
    }
    let missing = names.iter().enumerate().filter(|(_, name)| !all.contains_key(*name));
    let problem = |(index, name): (usize, &String)| {
        let message = format!("the calendar `{name}` does not exist or cannot be read; save it first");
        Problem::new(format!("calendars[{index}]"), "unknown_calendar", message)
    };
    Err(missing.map(problem).collect())
}

impl FromStr for YearlyDate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{}` is not a day of the year: write for example 12-25", text.escape_debug());
        let number = |text: &str| {
            let digits = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse::<i8>().ok()).flatten()
        };
        let (month, day) = text.split_once('-').ok_or_else(bad)?;
        let (month, day) = number(month).zip(number(day)).ok_or_else(bad)?;
        // A leap year, so that 29 February can be named.
        Date::new(2000, month, day).map_err(|_| bad())?;
        Ok(Self { month, day })
    }
}

impl fmt::Display for YearlyDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}-{:02}", self.month, self.day)
    }
}

const WEEKDAYS: [(Weekday, &str); 7] = [
    (Weekday::Monday, "monday"),
    (Weekday::Tuesday, "tuesday"),
    (Weekday::Wednesday, "wednesday"),
    (Weekday::Thursday, "thursday"),
    (Weekday::Friday, "friday"),
    (Weekday::Saturday, "saturday"),
    (Weekday::Sunday, "sunday"),
];

impl FromStr for WeekdayName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |name: &str| name.eq_ignore_ascii_case(text) || name[..3].eq_ignore_ascii_case(text);
        let found = WEEKDAYS.iter().find(|(_, name)| named(name));
        found.map(|(weekday, _)| Self(*weekday)).ok_or_else(|| {
            format!("`{}` is not a day of the week: write for example MON or monday", text.escape_debug())
        })
    }
}

impl fmt::Display for WeekdayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.0.to_monday_zero_offset() as usize;
        f.write_str(&WEEKDAYS[index].1[..3].to_ascii_uppercase())
    }
}

/// Serde by the written form.
macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

as_text!(YearlyDate, WeekdayName);

#[cfg(test)]
mod tests {
    use jiff::civil::date;
    use serde_json::json;

    use super::*;

    fn holidays() -> Calendar {
        serde_json::from_value(json!({
            "name": "vn-holidays",
            "dates": ["2025-01-27"],
            "ranges": [{ "from": "2025-01-28", "to": "2025-02-02" }],
            "weekdays": ["sat", "Sunday"],
            "yearly": ["09-02", "02-29"],
        }))
        .unwrap()
    }

    #[test]
    fn listed_days_are_excluded_and_others_are_not() {
        let calendar = holidays();
        assert_eq!(calendar.validate(), []);
        for (day, allowed) in [
            (date(2025, 1, 24), true),
            (date(2025, 1, 25), false),
            (date(2025, 1, 27), false),
            (date(2025, 1, 28), false),
            (date(2025, 1, 30), false),
            (date(2025, 2, 3), true),
            (date(2025, 9, 2), false),
            (date(2026, 9, 2), false),
            (date(2028, 2, 29), false),
            (date(2028, 3, 1), true),
        ] {
            assert_eq!(calendar.allows(day), allowed, "{day}");
            let include = Calendar { mode: CalendarMode::Include, ..calendar.clone() };
            assert_eq!(include.allows(day), !allowed, "{day}");
        }
    }

    #[test]
    fn a_day_needs_the_consent_of_all_calendars() {
        let working = Calendar {
            mode: CalendarMode::Include,
            weekdays: vec![WeekdayName(Weekday::Monday)],
            ..Calendar::default()
        };
        let calendars = [holidays(), working];
        assert!(all_allow(&calendars, date(2025, 2, 3)));
        assert!(!all_allow(&calendars, date(2025, 2, 4)));
        assert!(!all_allow(&calendars, date(2025, 1, 27)));
        assert!(all_allow(&[], date(2025, 1, 27)));
    }

    #[test]
    fn calendars_round_trip_and_refuse_nonsense() {
        let calendar = holidays();
        let text = serde_json::to_string(&calendar).unwrap();
        assert_eq!(serde_json::from_str::<Calendar>(&text).unwrap(), calendar);
        for document in [
            json!({ "name": "x", "yearly": ["13-01"] }),
            json!({ "name": "x", "yearly": ["02-30"] }),
            json!({ "name": "x", "yearly": ["2-3"] }),
            json!({ "name": "x", "weekdays": ["mo"] }),
            json!({ "name": "x", "dates": ["2025-02-30"] }),
            json!({ "name": "x", "days": [] }),
            json!({ "name": "x", "mode": "Exclude" }),
        ] {
            assert!(serde_json::from_value::<Calendar>(document.clone()).is_err(), "{document}");
        }
        let backwards = json!({ "name": "", "ranges": [{ "from": "2025-02-02", "to": "2025-02-01" }] });
        let problems = serde_json::from_value::<Calendar>(backwards).unwrap().validate();
        assert_eq!(problems.iter().map(|problem| problem.path.as_str()).collect::<Vec<_>>(), ["name", "ranges[0]"]);
    }
}
