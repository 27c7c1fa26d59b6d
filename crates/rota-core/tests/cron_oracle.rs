//! Compares the cron search with a slow one that shares none of its ideas.
//!
//! The oracle has its own matcher (a closure-like check of one broken-down
//! time), and finds instants by walking: interval patterns minute by minute
//! through real instants, fixed times minute by minute through the local
//! clock, each hit resolved by jiff. It looks at the days around the clock
//! changes of many zones, where every past mistake was.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its case should panic")]

use std::collections::BTreeSet;

use jiff::{
    SignedDuration, Timestamp,
    civil::{Date, DateTime, Weekday},
    tz::{AmbiguousOffset, TimeZone},
};
use rota_core::{
    cron::{Cron, DstPolicy, zone},
    schedule::{Fold, Gap},
};

const ZONES: [&str; 41] = [
    "UTC",
    "America/New_York",
    "America/Los_Angeles",
    "America/St_Johns",
    "America/Havana",
    "America/Sao_Paulo",
    "America/Santiago",
    "America/Asuncion",
    "America/Caracas",
    "America/Nuuk",
    "America/Scoresbysund",
    "America/Godthab",
    "America/Halifax",
    "America/Phoenix",
    "Atlantic/Azores",
    "Europe/London",
    "Europe/Berlin",
    "Europe/Dublin",
    "Europe/Moscow",
    "Europe/Istanbul",
    "Europe/Chisinau",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/El_Aaiun",
    "Africa/Windhoek",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Tehran",
    "Asia/Gaza",
    "Asia/Beirut",
    "Asia/Pyongyang",
    "Asia/Ho_Chi_Minh",
    "Australia/Lord_Howe",
    "Australia/Adelaide",
    "Antarctica/Troll",
    "Antarctica/Casey",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kwajalein",
    "Pacific/Norfolk",
    "Pacific/Tongatapu",
];

const YEARS: [i16; 8] = [1986, 2007, 2011, 2015, 2024, 2025, 2037, 2151];

/// An expression, whether it follows elapsed time, and what it means.
struct Case {
    text: &'static str,
    interval: bool,
    matches: fn(DateTime) -> bool,
}

fn case(text: &'static str, interval: bool, matches: fn(DateTime) -> bool) -> Case {
    Case { text, interval, matches }
}

fn cases() -> Vec<Case> {
    vec![
        case("*/15 * * * *", true, |t| t.minute() % 15 == 0),
        case("7 * * * *", true, |t| t.minute() == 7),
        case("*/20 0-3 * * *", true, |t| t.minute() % 20 == 0 && t.hour() <= 3),
        case("30 1/2 * * *", true, |t| t.minute() == 30 && t.hour() % 2 == 1),
        case("* 2 * * SUN", true, |t| t.hour() == 2 && t.weekday() == Weekday::Sunday),
        case("0 0 * * *", false, |t| t.hour() == 0 && t.minute() == 0),
        case("0 2 * * *", false, |t| t.hour() == 2 && t.minute() == 0),
        case("30 1,2 * * *", false, |t| (1..=2).contains(&t.hour()) && t.minute() == 30),
        case("15,45 0-3 * * *", false, |t| t.hour() <= 3 && [15, 45].contains(&t.minute())),
        case("30 23-1 * * *", false, |t| (t.hour() == 23 || t.hour() <= 1) && t.minute() == 30),
        case("0 3 * * FRI-MON", false, |t| {
            t.hour() == 3 && t.minute() == 0 && t.weekday().to_monday_zero_offset() % 4 == 0
                || t.hour() == 3 && t.minute() == 0 && t.weekday().to_monday_zero_offset() >= 4
        }),
        case("59 23 L * *", false, |t| t.hour() == 23 && t.minute() == 59 && t.day() == t.days_in_month()),
        case("5 2 * * 0#2", false, |t| t.hour() == 2 && t.minute() == 5 && is_nth_sunday(t.date(), 2)),
        case("5 2 * * SUNL", false, |t| {
            t.hour() == 2 && t.minute() == 5 && t.weekday() == Weekday::Sunday && t.day() + 7 > t.days_in_month()
        }),
        case("0 9 30W * *", false, |t| t.hour() == 9 && t.minute() == 0 && is_nearest_weekday(t.date(), 30)),
        case("0 9 9 * SUN", false, |t| {
            t.hour() == 9 && t.minute() == 0 && (t.day() == 9 || t.weekday() == Weekday::Sunday)
        }),
    ]
}

fn is_nth_sunday(date: Date, nth: i8) -> bool {
    date.nth_weekday_of_month(nth, Weekday::Sunday).is_ok_and(|found| found == date)
}

/// Tries the days at growing distance until one is a weekday of that month.
fn is_nearest_weekday(date: Date, day: i8) -> bool {
    let Ok(wanted) = Date::new(date.year(), date.month(), day) else { return false };
    let saturday_back = if wanted.weekday() == Weekday::Saturday { [0, -1, 1, 2] } else { [0, 1, -1, -2] };
    let found = saturday_back.iter().find_map(|distance| {
        let tried = wanted.checked_add(jiff::Span::new().days(*distance)).ok()?;
        let works = tried.weekday().to_monday_zero_offset() < 5;
        (works && tried.month() == wanted.month()).then_some(tried)
    });
    found == Some(date)
}

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

/// Real instants, minute by minute, with what the local clock shows.
fn walk_instants(zone: &TimeZone, window: (Timestamp, Timestamp)) -> Vec<(Timestamp, DateTime)> {
    let from = window.0 + MINUTE;
    let minutes = std::iter::successors(Some(from), |at| Some(*at + MINUTE));
    minutes.take_while(|at| *at <= window.1).map(|at| (at, zone.to_datetime(at))).collect()
}

/// Local times, minute by minute, with room for a day that is left out.
fn walk_locals(zone: &TimeZone, window: (Timestamp, Timestamp)) -> Vec<DateTime> {
    let day = SignedDuration::from_hours(26);
    let from = zone.to_datetime(window.0).checked_sub(day).unwrap();
    let end = zone.to_datetime(window.1).checked_add(day).unwrap();
    let minutes = std::iter::successors(Some(from), |local| local.checked_add(MINUTE).ok());
    minutes.take_while(|local| *local <= end).collect()
}

fn expected(case: &Case, walked: &Walked, zone: &TimeZone, policy: DstPolicy) -> BTreeSet<Timestamp> {
    if case.interval {
        return walked.instants.iter().filter(|(_, local)| (case.matches)(*local)).map(|(at, _)| *at).collect();
    }
    let hits = walked.locals.iter().filter(|local| (case.matches)(**local));
    hits.flat_map(|local| resolve(*local, zone, policy)).collect()
}

struct Walked {
    instants: Vec<(Timestamp, DateTime)>,
    locals: Vec<DateTime>,
}

fn resolve(local: DateTime, zone: &TimeZone, policy: DstPolicy) -> Vec<Timestamp> {
    match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } => vec![offset.to_timestamp(local).unwrap()],
        AmbiguousOffset::Gap { after, .. } => match policy.gap {
            Gap::Skip => vec![],
            Gap::Shift => {
                let mut at = after.to_timestamp(local).unwrap();
                while zone.to_offset(at) != after {
                    at += MINUTE;
                }
                vec![at]
            }
        },
        AmbiguousOffset::Fold { before, after } => {
            let first = before.to_timestamp(local).unwrap();
            let last = after.to_timestamp(local).unwrap();
            match policy.fold {
                Fold::First => vec![first],
                Fold::Last => vec![last],
                Fold::Both => vec![first, last],
            }
        }
    }
}

/// A window of two days around each clock change of a year, or its first days.
fn windows(zone: &TimeZone, year: i16) -> Vec<(Timestamp, Timestamp)> {
    let start: Timestamp = format!("{year:04}-01-01T00:00:00Z").parse().unwrap();
    let end: Timestamp = format!("{:04}-01-01T00:00:00Z", year + 1).parse().unwrap();
    let around = |at: Timestamp| (at - SignedDuration::from_hours(23), at + SignedDuration::from_hours(25));
    let changes = zone.following(start).map(|change| change.timestamp());
    let mut found: Vec<_> = changes.take_while(|at| *at < end).map(around).collect();
    if found.is_empty() {
        found.push((start, start + SignedDuration::from_hours(36)));
    }
    found
}

fn policies(interval: bool) -> Vec<DstPolicy> {
    let all = Gap::ALL.iter().flat_map(|gap| Fold::ALL.iter().map(|fold| DstPolicy { gap: *gap, fold: *fold }));
    if interval { vec![DstPolicy::default(), DstPolicy { gap: Gap::Skip, fold: Fold::Last }] } else { all.collect() }
}

#[test]
fn a_slow_walk_finds_the_same_instants() {
    let cases: Vec<_> = cases().into_iter().map(|case| (Cron::parse(case.text, b"").unwrap(), case)).collect();
    let mut compared = 0;
    for name in ZONES {
        let zone = zone(name).unwrap();
        for window in YEARS.iter().flat_map(|year| windows(&zone, *year)) {
            let walked = Walked { instants: walk_instants(&zone, window), locals: walk_locals(&zone, window) };
            for (cron, case) in &cases {
                for policy in policies(case.interval) {
                    let mut expected = expected(case, &walked, &zone, policy);
                    expected.retain(|at| window.0 < *at && *at <= window.1);
                    let found: BTreeSet<_> = cron.instants(window.0, window.1, &zone, policy).collect();
                    assert_eq!(found, expected, "{} in {name} from {} {policy:?}", case.text, window.0);
                    assert!(cron.instants(window.0, window.1, &zone, policy).is_sorted_by(|a, b| a < b));
                    compared += found.len();
                }
            }
        }
    }
    assert!(compared > 100_000, "only {compared} instants were compared");
}

/// A line of the table of another program's answers.
#[derive(serde::Deserialize)]
struct Row {
    expr: String,
    tz: String,
    after: Timestamp,
    next: Vec<Timestamp>,
}

/// Answers of Python's cronsim 2.8, which follows Debian's cron, with the zones
/// of tzdata 2026f: random expressions asked within two days of a clock change.
/// Of 9,000 such questions 34 were answered differently; in each of them
/// cronsim answered with a time before the one asked for, or met a change by
/// half an hour or at midnight and left the pattern, so the table holds a
/// sample of the others.
#[test]
fn another_program_gives_the_same_answers() {
    let table = include_str!("fixtures/cronsim.ndjson");
    for line in table.lines() {
        let row: Row = serde_json::from_str(line).unwrap();
        let cron = Cron::parse(&row.expr, b"").unwrap();
        let zone = zone(&row.tz).unwrap();
        let instants = cron.instants(row.after, Timestamp::MAX, &zone, DstPolicy::default());
        assert_eq!(instants.take(row.next.len()).collect::<Vec<_>>(), row.next, "{line}");
    }
    assert_eq!(table.lines().count(), 120);
}
