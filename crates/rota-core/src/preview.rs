//! What a schedule will do next, for people: instants with their local time,
//! and a word where a clock change or a calendar had a say.
//!
//! It is the same arithmetic that fires, so a preview cannot promise what will
//! not happen. Days that calendars exclude are left out in one step each.
//!
//! It knows nothing of runs: an `after_finish` schedule has no preview.

use jiff::{Timestamp, Zoned};

use crate::{
    calendar::{Calendar, all_allow},
    cron::DstNote,
    ids::ScheduleId,
    timing::{Schedule, before},
};

/// Most instants in one preview.
pub const PREVIEW_MAX: usize = 1_000;
/// Most excluded days passed over while looking for an allowed one.
const EXCLUDED_DAYS_MAX: usize = 4_000;

/// One instant to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upcoming {
    pub planned_at: Timestamp,
    /// Jitter included.
    pub due_at: Timestamp,
    /// The planned instant on the schedule's clock.
    pub local: Zoned,
    pub note: Option<DstNote>,
    /// Calendars left out days between the instant before and this one.
    pub after_excluded_days: bool,
}

/// The next `count` instants strictly after `after` that calendars allow.
pub fn preview(
    schedule: &Schedule,
    id: ScheduleId,
    calendars: &[&Calendar],
    after: Timestamp,
    count: usize,
) -> Vec<Upcoming> {
    let mut upcoming = Vec::new();
    let mut after = after;
    let mut excluded_days = 0;
    let mut after_excluded_days = false;
    while upcoming.len() < count.min(PREVIEW_MAX) && excluded_days < EXCLUDED_DAYS_MAX {
        let Some((planned_at, note)) = schedule.next_noted(after) else { break };
        let local = planned_at.to_zoned(schedule.zone().clone());
        if !all_allow(calendars.iter().copied(), local.date()) {
            // A clock set back over midnight comes to a day a second time.
            after = before(schedule.midnight_after(local.date())).max(planned_at);
            (excluded_days, after_excluded_days) = (excluded_days + 1, true);
            continue;
        }
        let due_at = schedule.due_at(id, planned_at);
        upcoming.push(Upcoming { planned_at, due_at, local, note, after_excluded_days });
        (after, after_excluded_days) = (planned_at, false);
    }
    upcoming
}

/// The instants from `from` up to, not including, `to` that calendars allow; none
/// where there are more than `most`.
pub fn between(
    schedule: &Schedule,
    calendars: &[&Calendar],
    from: Timestamp,
    to: Timestamp,
    most: usize,
) -> Option<Vec<Timestamp>> {
    let mut found = Vec::new();
    let mut after = before(from);
    while let Some(next) = schedule.next(after).filter(|next| *next < to) {
        let date = schedule.date(next);
        after = next;
        if all_allow(calendars.iter().copied(), date) {
            found.push(next);
        } else {
            after = before(schedule.midnight_after(date)).max(next);
        }
        if found.len() > most {
            return None;
        }
    }
    Some(found)
}

/// A note in words.
pub fn describe_note(note: DstNote) -> String {
    match note {
        DstNote::Shifted { from } => {
            format!("{} does not exist that day: moved to the end of the gap", from.strftime("%H:%M:%S"))
        }
        DstNote::Skipped { missing } => {
            format!("skipped before this: {} does not exist", missing.strftime("%Y-%m-%d %H:%M:%S"))
        }
        DstNote::FirstPass => "this local time occurs twice: first pass".to_owned(),
        DstNote::SecondPass => "this local time occurs twice: second pass".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schedule(document: serde_json::Value) -> Schedule {
        Schedule::compile(&serde_json::from_value(document).unwrap(), b"").unwrap()
    }

    fn shown(schedule: &Schedule, calendars: &[&Calendar], after: &str, count: usize) -> Vec<String> {
        let upcoming = preview(schedule, ScheduleId(1), calendars, after.parse().unwrap(), count);
        let line = |item: &Upcoming| {
            let note = item.note.map(describe_note).unwrap_or_default();
            let mark = if item.after_excluded_days { "*" } else { "" };
            format!("{} {} {mark}{note}", item.planned_at, item.local.strftime("%a %H:%M")).trim().to_owned()
        };
        upcoming.iter().map(line).collect()
    }

    #[test]
    fn a_preview_shows_local_time_and_clock_changes() {
        let daily = schedule(json!({ "cron": "30 2 * * *", "timezone": "America/New_York" }));
        assert_eq!(
            shown(&daily, &[], "2025-03-08T00:00:00Z", 3),
            [
                "2025-03-08T07:30:00Z Sat 02:30",
                "2025-03-09T07:00:00Z Sun 03:00 02:30:00 does not exist that day: moved to the end of the gap",
                "2025-03-10T06:30:00Z Mon 02:30",
            ]
        );
        let skipping = schedule(json!({ "cron": "30 2 * * *", "timezone": "America/New_York", "gap": "skip" }));
        assert_eq!(
            shown(&skipping, &[], "2025-03-08T12:00:00Z", 1),
            ["2025-03-10T06:30:00Z Mon 02:30 skipped before this: 2025-03-09 02:30:00 does not exist"]
        );
        let both = schedule(json!({ "cron": "30 1 * * *", "timezone": "America/New_York", "fold": "both" }));
        assert_eq!(
            shown(&both, &[], "2025-11-02T00:00:00Z", 2),
            [
                "2025-11-02T05:30:00Z Sun 01:30 this local time occurs twice: first pass",
                "2025-11-02T06:30:00Z Sun 01:30 this local time occurs twice: second pass",
            ]
        );
    }

    #[test]
    fn excluded_days_are_left_out_and_marked() {
        let weekend: Calendar =
            serde_json::from_value(json!({ "name": "weekend", "weekdays": ["SAT", "SUN"] })).unwrap();
        let hourly = schedule(json!({ "every": "12h", "calendars": ["weekend"] }));
        assert_eq!(
            shown(&hourly, &[&weekend], "2025-01-03T00:00:00Z", 2),
            ["2025-01-03T12:00:00Z Fri 12:00", "2025-01-06T00:00:00Z Mon 00:00 *"]
        );
        let nothing: Calendar =
            serde_json::from_value(json!({ "name": "past", "mode": "include", "dates": ["2020-01-01"] })).unwrap();
        assert!(shown(&hourly, &[&nothing], "2025-01-03T00:00:00Z", 2).is_empty());
    }

    /// One minute into 7 November 2010 the clocks of St. John's went back to
    /// the evening before, a day that is excluded.
    #[test]
    fn a_day_that_comes_twice_is_passed_twice() {
        let saturday: Calendar = serde_json::from_value(json!({ "name": "sat", "weekdays": ["SAT"] })).unwrap();
        let half = schedule(json!({ "cron": "*/30 * * * *", "timezone": "America/St_Johns", "calendars": ["sat"] }));
        assert_eq!(
            shown(&half, &[&saturday], "2010-11-06T12:00:00Z", 2),
            [
                "2010-11-07T02:30:00Z Sun 00:00 *this local time occurs twice: first pass",
                "2010-11-07T03:30:00Z Sun 00:00 *this local time occurs twice: second pass",
            ]
        );
    }

    #[test]
    fn the_end_of_a_schedule_ends_its_preview() {
        let ending = schedule(json!({ "every": "1h", "ends_at": "2025-01-01T02:00:00Z" }));
        assert_eq!(shown(&ending, &[], "2025-01-01T00:00:00Z", 5).len(), 2);
        assert!(shown(&schedule(json!({ "after_finish": "1h" })), &[], "2025-01-01T00:00:00Z", 5).is_empty());
    }
}
