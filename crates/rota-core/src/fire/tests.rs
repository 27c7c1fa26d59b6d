use std::{collections::BTreeMap, time::Instant};

use serde_json::{Value, json};

use super::*;

const ID: ScheduleId = ScheduleId(7);

fn schedule(document: Value) -> Schedule {
    let text = document.to_string();
    let spec = serde_json::from_value(document).unwrap();
    Schedule::compile(&spec, b"seed").unwrap_or_else(|problems| panic!("{text}: {problems:?}"))
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A time of 1 January 2025.
fn clock(text: &str) -> Timestamp {
    at(&format!("2025-01-01T{text}Z"))
}

fn owing(planned_at: Timestamp) -> Cursor {
    Cursor { planned_at, due_at: planned_at, fired: 0 }
}

fn input(schedule: &Schedule, cursor: Cursor) -> Input<'_> {
    Input { schedule, id: ID, cursor, pauses: &[], live: Live::default(), calendars: &[], allowance: None }
}

fn stored(cursor: Cursor) -> Stored {
    Stored { cursor: Some(cursor), ..Stored::default() }
}

fn around(pauses: &[Pause]) -> Around<'_> {
    Around { last_run: LastRun::None, pauses, rated: false }
}

/// Runs by their time, `>` for behind and `!` for replacing; skips by reason.
fn shown(plan: &Plan) -> (String, String) {
    let run = |run: &PlannedRun| {
        let mark = match run.start {
            Start::Free => "",
            Start::Behind => ">",
            Start::Replacing => "!",
        };
        format!("{mark}{}", run.planned_at.strftime("%H:%M"))
    };
    let skip = |skip: &SkipRange| {
        format!("{} {}-{} x{}", skip.reason, skip.from.strftime("%H:%M"), skip.to.strftime("%H:%M"), skip.count)
    };
    let runs: Vec<_> = plan.runs.iter().map(run).collect();
    let skips: Vec<_> = plan.skips.iter().map(skip).collect();
    (runs.join(" "), skips.join(", "))
}

#[test]
fn an_instant_fires_on_time_and_the_next_is_armed() {
    let hourly = schedule(json!({ "cron": "0 * * * *" }));
    let first = arm(&hourly, ID, Progress::default(), clock("08:30:00")).unwrap();
    assert_eq!(first, owing(clock("09:00:00")));
    assert_eq!(plan(&input(&hourly, first), clock("08:59:59.999")), Plan::waiting(first));
    let done = plan(&input(&hourly, first), clock("09:00:00.004"));
    assert_eq!(shown(&done), ("09:00".to_owned(), String::new()));
    assert_eq!(done.next, Some(Cursor { fired: 1, ..owing(clock("10:00:00")) }));
}

/// Over quota means later, not lost: the instant stays owed until the rate has
/// room, and only its catch-up policy gives it up, with the quota as the reason.
#[test]
fn an_instant_over_the_tenants_rate_is_put_off() {
    let more_at = clock("12:31:00");
    for (document, runs, made, skips, owed) in [
        (json!({ "cron": "0 * * * *" }), 0, "", "catch_up 08:00-11:00 x4", Some("12:00:00")),
        (json!({ "cron": "0 * * * *" }), 1, "12:00", "catch_up 08:00-11:00 x4", None),
        (
            json!({ "cron": "0 * * * *", "catch_up": { "mode": "all" }, "overlap": "allow" }),
            0,
            "",
            "",
            Some("08:00:00"),
        ),
        (
            json!({ "cron": "0 * * * *", "catch_up": { "mode": "all" }, "overlap": "allow" }),
            2,
            "08:00 09:00",
            "",
            Some("10:00:00"),
        ),
        (json!({ "after_finish": "1h" }), 0, "", "", Some("08:00:00")),
        (json!({ "at": "2025-01-01T08:00:00Z" }), 0, "", "", Some("08:00:00")),
    ] {
        let compiled = schedule(document.clone());
        let allowance = Some(Allowance { per_minute: 1, runs, more_at });
        let done = plan(&Input { allowance, ..input(&compiled, owing(clock("08:00:00"))) }, clock("12:30:00"));
        assert_eq!(shown(&done), (made.to_owned(), skips.to_owned()), "{document}");
        let Some(owed) = owed else { continue };
        let put_off = Cursor { planned_at: clock(owed), due_at: more_at, fired: done.fired };
        assert_eq!(done.next, Some(put_off), "{document}");
        let held = Input { allowance, ..input(&compiled, put_off) };
        assert_eq!(held.put_off_until(), Some(more_at), "{document}");
        assert_eq!(plan(&held, clock("12:30:30")), Plan::waiting(put_off), "{document}");
        let room = Some(Allowance { per_minute: 1, runs: 9, more_at });
        let later = plan(&Input { allowance: room, ..held }, clock("12:31:00"));
        assert_eq!(later.runs[0].planned_at, clock(owed), "{document}");
    }
}

#[test]
fn an_instant_that_waited_for_the_rate_too_long_is_skipped_by_the_quota() {
    let put_off = Cursor { due_at: clock("09:30:00"), ..owing(clock("08:00:00")) };
    let allowance = Some(Allowance { per_minute: 1, runs: 9, more_at: clock("12:31:00") });
    for (mode, window, runs, skips) in [
        ("latest", "1y", "12:00", "quota 08:00-11:00 x4"),
        ("all", "2h", "11:00 12:00", "quota 08:00-10:00 x3"),
        ("none", "1y", "", "quota 08:00-12:00 x5"),
    ] {
        let catch_up = json!({ "mode": mode, "window": window });
        let hourly = schedule(json!({ "cron": "0 * * * *", "overlap": "allow", "catch_up": catch_up }));
        let done = plan(&Input { allowance, ..input(&hourly, put_off) }, clock("12:30:00"));
        assert_eq!(shown(&done), (runs.to_owned(), skips.to_owned()), "{mode} {window}");
    }
    let hourly = schedule(json!({ "cron": "0 * * * *", "overlap": "allow" }));
    let pause = Pause { since: clock("08:30:00"), until: Some(clock("09:30:00")) };
    let paused = Input { allowance, pauses: &[pause], ..input(&hourly, put_off) };
    assert_eq!(paused.put_off_until(), None, "it was the pause that put it off");
    assert_eq!(input(&hourly, put_off).put_off_until(), None, "a tenant without a rate waits for none");
}

/// Downtime from 08:00 to 12:30 of an hourly schedule.
#[test]
fn catch_up_and_overlap_decide_what_downtime_owes() {
    let idle = Live::default();
    let busy = Live { active: 1, waiting: 0 };
    let full = Live { active: 1, waiting: 1 };
    for (mode, window, overlap, live, runs, skips) in [
        ("latest", "1y", "skip", idle, "12:00", "catch_up 08:00-11:00 x4"),
        ("latest", "1y", "skip", busy, "", "catch_up 08:00-11:00 x4, overlap 12:00-12:00 x1"),
        ("latest", "1y", "queue_one", busy, ">12:00", "catch_up 08:00-11:00 x4"),
        ("latest", "1y", "queue_one", full, "", "catch_up 08:00-11:00 x4, overlap 12:00-12:00 x1"),
        ("latest", "1y", "cancel_running", busy, "!12:00", "catch_up 08:00-11:00 x4"),
        ("latest", "1y", "allow", full, "12:00", "catch_up 08:00-11:00 x4"),
        ("latest", "20m", "skip", idle, "", "catch_up 08:00-12:00 x5"),
        ("none", "1y", "skip", idle, "", "catch_up 08:00-12:00 x5"),
        ("all", "1y", "allow", idle, "08:00 09:00 10:00 11:00 12:00", ""),
        ("all", "2h", "allow", idle, "11:00 12:00", "catch_up 08:00-10:00 x3"),
        ("all", "1y", "skip", idle, "08:00", "overlap 09:00-12:00 x4"),
        ("all", "1y", "skip", busy, "", "overlap 08:00-12:00 x5"),
        ("all", "1y", "queue_one", idle, "08:00 >09:00", "overlap 10:00-12:00 x3"),
        ("all", "1y", "queue_one", busy, ">08:00", "overlap 09:00-12:00 x4"),
        ("all", "1y", "queue_all", idle, "08:00 >09:00 >10:00 >11:00 >12:00", ""),
        ("all", "1y", "cancel_running", idle, "12:00", "overlap 08:00-11:00 x4"),
        ("all", "1y", "cancel_running", busy, "!12:00", "overlap 08:00-11:00 x4"),
    ] {
        for document in [json!({ "cron": "0 * * * *" }), json!({ "every": "1h" })] {
            let mut document = document;
            document["catch_up"] = json!({ "mode": mode, "window": window });
            document["overlap"] = json!(overlap);
            let hourly = schedule(document.clone());
            let done = plan(&Input { live, ..input(&hourly, owing(clock("08:00:00"))) }, clock("12:30:00"));
            assert_eq!(shown(&done), (runs.to_owned(), skips.to_owned()), "{document} {live:?}");
            assert_eq!(done.next.unwrap().planned_at, clock("13:00:00"));
            assert_eq!(done.fired, done.runs.len() as u64);
        }
    }
}

#[test]
fn a_minute_late_is_on_time_even_without_catch_up() {
    let hourly = schedule(json!({ "cron": "0 * * * *", "catch_up": { "mode": "none" } }));
    assert_eq!(shown(&plan(&input(&hourly, owing(clock("09:00:00"))), clock("09:01:00"))).0, "09:00");
    assert_eq!(shown(&plan(&input(&hourly, owing(clock("09:00:00"))), clock("09:01:01"))).1, "catch_up 09:00-09:00 x1");
}

#[test]
fn a_moment_in_the_past_fires_inside_its_window_and_is_a_skip_outside() {
    for (window, runs, skips) in [("1h", "09:00", ""), ("10m", "", "catch_up 09:00-09:00 x1")] {
        let once = schedule(json!({ "at": "2025-01-01T09:00:00Z", "catch_up": { "window": window } }));
        let first = arm(&once, ID, Progress::default(), clock("09:30:00")).unwrap();
        assert_eq!(first, owing(clock("09:00:00")));
        let done = plan(&input(&once, first), clock("09:30:00"));
        assert_eq!((shown(&done), done.next), ((runs.to_owned(), skips.to_owned()), None));
        // Editing its payload afterwards must not fire it again.
        let behind = Progress { fired: done.fired, decided_to: Some(first.planned_at) };
        assert_eq!(arm(&once, ID, behind, clock("09:31:00")), None);
    }
}

#[test]
fn a_pause_starts_nothing_and_its_instants_are_recorded() {
    let hourly = schedule(json!({ "cron": "0 * * * *" }));
    let held = owing(clock("09:00:00"));
    let open = Pause { since: clock("08:30:00"), until: None };
    let waiting = plan(&Input { pauses: &[open], ..input(&hourly, held) }, clock("09:00:00"));
    assert_eq!((waiting.runs.len(), waiting.skips.len()), (0, 0));
    // It is looked at again within the hour, whatever anybody says.
    let slept = waiting.next.unwrap();
    assert_eq!((slept.planned_at, slept.due_at), (held.planned_at, clock("10:00:00")));
    let slept = plan(&Input { pauses: &[open], ..input(&hourly, slept) }, clock("11:10:00")).next.unwrap();
    assert_eq!((slept.planned_at, slept.due_at), (held.planned_at, clock("12:10:00")));

    // Lifted at 11:30.
    let lifted = Pause { until: Some(clock("11:30:00")), ..open };
    let awake = implied(&hourly, ID, stored(slept), &around(&[lifted]), clock("11:30:00")).unwrap();
    let done = plan(&Input { pauses: &[lifted], ..input(&hourly, awake) }, clock("11:30:00"));
    assert_eq!(shown(&done), (String::new(), "paused 09:00-11:00 x3".to_owned()));
    assert_eq!(done.next, Some(owing(clock("12:00:00"))));

    // Owed before the pause began: decided by catch-up when it is over.
    let late = Pause { since: clock("09:30:00"), until: Some(clock("11:30:00")) };
    let kept = plan(&Input { pauses: &[late], ..input(&hourly, held) }, clock("10:45:00")).next.unwrap();
    assert_eq!(kept.due_at, clock("11:30:00"));
    let done = plan(&Input { pauses: &[late], ..input(&hourly, kept) }, clock("11:30:00"));
    assert_eq!(shown(&done), ("09:00".to_owned(), "paused 10:00-11:00 x2".to_owned()));
}

/// The clocks of people and servers tell nanoseconds.
#[test]
fn a_pause_that_ends_between_two_microseconds_ends() {
    let minutely = schedule(json!({ "cron": "* * * * *" }));
    for until in ["09:04:30.889699889", "09:04:30.889699", "09:04:30.000000001"] {
        let pause = Pause { since: clock("09:00:00.000000001"), until: Some(clock(until)) };
        let input = Input { pauses: &[pause], ..input(&minutely, owing(clock("09:04:00"))) };
        let done = plan(&input, clock("09:08:30"));
        let expected = ("09:08".to_owned(), "paused 09:04-09:04 x1, catch_up 09:05-09:07 x3".to_owned());
        assert_eq!(shown(&done), expected, "{until}");
    }
}

/// A pause of the tenant must not hide what the job's own pause left out, nor
/// end with it.
#[test]
fn pauses_of_job_and_tenant_count_each_for_its_own_time() {
    let all = schedule(json!({ "cron": "0 * * * *", "catch_up": { "mode": "all" }, "overlap": "allow" }));
    let job = Pause { since: clock("08:30:00"), until: Some(clock("09:30:00")) };
    let tenant = Pause { since: clock("10:30:00"), until: Some(clock("12:30:00")) };
    let queue = Pause { since: clock("11:30:00"), until: Some(clock("12:55:00")) };
    let both = Input { pauses: &[tenant, job, queue], ..input(&all, owing(clock("08:00:00"))) };
    assert_eq!(plan(&both, clock("12:00:00")).next.unwrap().due_at, clock("12:55:00"));
    let done = plan(&both, clock("14:00:00"));
    assert_eq!(
        shown(&done),
        ("08:00 10:00 13:00 14:00".to_owned(), "paused 09:00-09:00 x1, paused 11:00-12:00 x2".to_owned())
    );
}

#[test]
fn calendars_skip_whole_days_in_the_schedules_zone() {
    let weekend: Calendar = serde_json::from_value(json!({ "name": "weekend", "weekdays": ["SAT", "SUN"] })).unwrap();
    let calendars = [&weekend];
    let daily = schedule(json!({ "cron": "0 0 * * *", "timezone": "Asia/Tokyo", "catch_up": { "mode": "all" },
        "overlap": "allow", "calendars": ["weekend"] }));
    // Midnight in Tokyo is the day before in UTC: 3 January 15:00Z is Saturday.
    let first = owing(at("2025-01-02T15:00:00Z"));
    let done = plan(&Input { calendars: &calendars, ..input(&daily, first) }, at("2025-01-06T00:00:00Z"));
    let days: Vec<_> = done.runs.iter().map(|run| run.planned_at.to_string()).collect();
    assert_eq!(days, ["2025-01-02T15:00:00Z", "2025-01-05T15:00:00Z"]);
    assert_eq!(
        done.skips,
        [SkipRange {
            from: at("2025-01-03T15:00:00Z"),
            to: at("2025-01-04T15:00:00Z"),
            count: 2,
            reason: SkipReason::Calendar
        }]
    );
}

/// The newest instant that may fire is the one to fire, even when newer ones
/// fall on excluded days; nothing is joined across it.
#[test]
fn the_latest_allowed_instant_fires() {
    let weekend: Calendar = serde_json::from_value(json!({ "name": "weekend", "weekdays": ["SAT", "SUN"] })).unwrap();
    let calendars = [&weekend];
    let beat = schedule(json!({ "every": "12h", "calendars": ["weekend"] }));
    let done = plan(
        &Input { calendars: &calendars, ..input(&beat, owing(at("2024-12-28T00:00:00Z"))) },
        at("2025-01-05T06:00:00Z"),
    );
    assert_eq!(done.runs.len(), 1);
    assert_eq!(done.runs[0].planned_at, at("2025-01-03T12:00:00Z"));
    let skips: Vec<_> = done.skips.iter().map(|skip| (skip.reason, skip.count)).collect();
    assert_eq!(skips, [(SkipReason::Calendar, 4), (SkipReason::CatchUp, 9), (SkipReason::Calendar, 3)]);
}

#[test]
fn a_schedule_ends_with_its_last_run() {
    let three =
        schedule(json!({ "cron": "0 * * * *", "max_runs": 3, "overlap": "allow", "catch_up": { "mode": "all" } }));
    let done = plan(&input(&three, owing(clock("08:00:00"))), clock("12:30:00"));
    assert_eq!(shown(&done), ("08:00 09:00 10:00".to_owned(), "ended 11:00-12:00 x2".to_owned()));
    assert_eq!((done.next, done.fired), (None, 3));
    assert_eq!(arm(&three, ID, Progress { fired: 3, decided_to: None }, clock("13:00:00")), None);

    let once = schedule(json!({ "cron": "0 * * * *", "max_runs": 1 }));
    let done = plan(&input(&once, owing(clock("08:00:00"))), clock("08:00:00"));
    assert_eq!((shown(&done).0.as_str(), done.next, done.fired), ("08:00", None, 1));

    let until_ten = schedule(json!({ "cron": "0 * * * *", "ends_at": "2025-01-01T10:00:00Z" }));
    let done = plan(&input(&until_ten, owing(clock("10:00:00"))), clock("10:00:00"));
    assert_eq!((shown(&done).0.as_str(), done.next), ("10:00", None));
    assert_eq!(arm(&until_ten, ID, Progress::default(), clock("10:00:00.000001")), None);
}

/// What waits for its jitter when the last run is made will never be due.
#[test]
fn an_end_takes_what_waits_for_its_jitter_with_it() {
    let two = schedule(json!({ "every": "1h", "jitter": "59m", "max_runs": 2, "overlap": "allow",
        "catch_up": { "mode": "all" } }));
    let waiting = two.due_at(ID, clock("10:00:00"));
    assert!(waiting > clock("10:00:00"));
    let done = plan(&input(&two, owing(clock("08:00:00"))), before(waiting));
    assert_eq!(shown(&done), ("08:00 09:00".to_owned(), "ended 10:00-10:00 x1".to_owned()));
    assert_eq!(done.next, None);
}

/// A range that went over the run between two skips would count it twice.
#[test]
fn skips_are_not_joined_across_a_run() {
    let only: Calendar =
        serde_json::from_value(json!({ "name": "only", "mode": "include", "dates": ["2025-01-03"] })).unwrap();
    let calendars = [&only];
    let daily = schedule(json!({ "cron": "0 0 * * *" }));
    let held = input(&daily, owing(clock("00:00:00")));
    let done = plan(&Input { calendars: &calendars, ..held }, at("2025-01-05T12:00:00Z"));
    assert_eq!(done.runs.iter().map(|run| run.planned_at).collect::<Vec<_>>(), [at("2025-01-03T00:00:00Z")]);
    assert_eq!(done.skips.iter().map(|skip| skip.count).collect::<Vec<_>>(), [2, 2]);
}

/// Bounds are exact: a pause takes the instant it begins with and leaves the
/// one it ends with, and each is decided once.
#[test]
fn instants_on_a_bound_belong_to_one_side() {
    let all =
        schedule(json!({ "cron": "0 * * * *", "overlap": "allow", "catch_up": { "mode": "all", "window": "4h" } }));
    let pause = Pause { since: clock("10:00:00"), until: Some(clock("12:00:00")) };
    let done = plan(&Input { pauses: &[pause], ..input(&all, owing(clock("08:00:00"))) }, clock("13:00:00"));
    assert_eq!(
        shown(&done),
        ("09:00 12:00 13:00".to_owned(), "catch_up 08:00-08:00 x1, paused 10:00-11:00 x2".to_owned())
    );
}

#[test]
fn a_disabled_schedule_is_not_armed() {
    for kind in [json!({ "every": "1h" }), json!({ "at": "2025-01-01T09:00:00Z" }), json!({ "after_finish": "1h" })] {
        let mut document = kind;
        document["enabled"] = json!(false);
        let off = schedule(document);
        assert_eq!(arm(&off, ID, Progress::default(), clock("08:00:00")), None);
        assert_eq!(rearm(&off, ID, Progress::default(), clock("08:00:00")), None);
        let held = stored(owing(clock("09:00:00")));
        assert_eq!(implied(&off, ID, held, &around(&[]), clock("08:00:00")), None);
        // A cursor that was left to it makes no run, and is its last.
        let left = plan(&input(&off, owing(clock("09:00:00"))), clock("09:00:00"));
        assert_eq!((shown(&left).1.as_str(), left.runs.len(), left.next), ("edited 09:00-09:00 x1", 0, None));
    }
}

/// The scanner asks whether a cursor is where its definition, its last run and the
/// pauses say. A schedule that sleeps for no reason would sleep for ever.
#[test]
fn the_cursor_that_everything_implies() {
    let hourly = schedule(json!({ "cron": "0 * * * *" }));
    let now = clock("09:10:00");
    let (own, day) = (owing(clock("10:00:00")), at("2025-02-01T00:00:00Z"));
    let due = |due_at: Timestamp, planned_at: &str| Cursor { due_at, ..owing(clock(planned_at)) };
    let open = Pause { since: clock("08:30:00"), until: None };
    let until = |text| Pause { until: Some(clock(text)), ..open };
    let (lifted, shortened, paused) = ([until("09:05:00")], [until("09:30:00")], [open]);
    let rated = Around { rated: true, ..around(&[]) };
    for (case, held, around, due_at) in [
        ("in its place", own, around(&[]), own.due_at),
        ("asleep for ever", due(Timestamp::MAX, "09:00:00"), around(&[]), clock("09:00:00")),
        ("asleep for an hour", due(clock("10:05:00"), "09:00:00"), around(&[]), clock("09:00:00")),
        ("a pause was lifted", due(clock("10:05:00"), "09:00:00"), around(&lifted), clock("09:00:00")),
        ("a pause was shortened", due(clock("10:05:00"), "09:00:00"), around(&shortened), clock("09:30:00")),
        ("asleep by an open pause", due(clock("10:05:00"), "09:00:00"), around(&paused), clock("10:05:00")),
        ("asleep by an open pause for ever", due(day, "09:00:00"), around(&paused), clock("10:10:00")),
        ("paused, and its instant is to come", own, around(&paused), own.due_at),
        ("put off by a rate", due(clock("10:05:00"), "09:00:00"), rated, clock("10:05:00")),
        ("put off by a rate for ever", due(day, "09:00:00"), rated, clock("09:00:00")),
        ("paced", due(clock("09:10:01"), "03:00:00"), around(&[]), clock("09:10:01")),
    ] {
        let implied = implied(&hourly, ID, stored(held), &around, now).unwrap();
        assert_eq!(implied, Cursor { due_at, ..held }, "{case}");
    }
    let gone = Stored { behind: Progress { fired: 3, decided_to: Some(clock("10:00:00")) }, ..Stored::default() };
    let armed = implied(&hourly, ID, gone, &around(&[]), now);
    assert_eq!(armed, Some(Cursor { fired: 3, ..owing(clock("11:00:00")) }), "nothing that was decided");
    let loop_ = schedule(json!({ "after_finish": "10m" }));
    for (last_run, expected) in [
        (LastRun::Lives, None),
        (LastRun::Ended(clock("10:05:00")), Some(clock("10:15:00"))),
        (LastRun::None, Some(next_tick(clock("10:00:00")))),
    ] {
        let found = implied(&loop_, ID, gone, &Around { last_run, ..around(&[]) }, now);
        assert_eq!(found.map(|cursor| cursor.planned_at), expected, "{last_run:?}");
    }
}

#[test]
fn jitter_is_stable_and_never_passes_the_next_instant() {
    let jittered = schedule(json!({ "every": "1m", "jitter": "59s" }));
    let mut moved = std::collections::BTreeSet::new();
    let mut planned = clock("00:00:00");
    for _ in 0..500 {
        let next = jittered.next(planned).unwrap();
        let due = jittered.due_at(ID, planned);
        assert!(planned <= due && due < next);
        assert_eq!(due, jittered.due_at(ID, planned));
        moved.insert(due.duration_since(planned).as_secs());
        planned = next;
    }
    assert!(moved.len() > 40, "{moved:?}");
    assert_ne!(jittered.due_at(ID, planned), jittered.due_at(ScheduleId(8), planned));
    // Stored cursors carry these: the hash must never change.
    assert_eq!(jittered.due_at(ID, clock("00:00:00")).to_string(), "2025-01-01T00:00:09.283Z");
}

#[test]
fn an_instant_waits_for_its_jitter() {
    let jittered = schedule(json!({ "every": "1h", "jitter": "50m" }));
    let first = arm(&jittered, ID, Progress::default(), clock("08:30:00")).unwrap();
    assert!(first.due_at > first.planned_at);
    assert_eq!(plan(&input(&jittered, first), before(first.due_at)), Plan::waiting(first));
    let done = plan(&input(&jittered, first), first.due_at);
    assert_eq!((done.runs.len(), done.runs[0].due_at), (1, first.due_at));
    // Planned instants that are not due yet stay owed.
    let late = before(done.next.unwrap().due_at);
    let owed = plan(&input(&jittered, first), late);
    assert_eq!((owed.runs.len(), owed.next.map(|next| next.planned_at)), (1, done.next.map(|next| next.planned_at)));
}

#[test]
fn after_finish_is_armed_by_the_end_of_its_run() {
    let loop_ = schedule(json!({ "after_finish": "10m", "max_runs": 2 }));
    let first = arm(&loop_, ID, Progress::default(), clock("08:00:00")).unwrap();
    assert_eq!(first, owing(clock("08:00:00")));
    let done = plan(&input(&loop_, first), clock("08:00:01"));
    assert_eq!((shown(&done).0.as_str(), done.next, done.fired), ("08:00", None, 1));
    let behind = Progress { fired: done.fired, decided_to: Some(first.planned_at) };
    let second = rearm(&loop_, ID, behind, clock("08:05:00.123456")).unwrap();
    assert_eq!(second, Cursor { fired: 1, ..owing(clock("08:15:00.123456")) });
    let done = plan(&input(&loop_, second), clock("09:00:00"));
    assert_eq!((shown(&done).0.as_str(), done.next, done.fired), ("08:15", None, 2));
    assert_eq!(rearm(&loop_, ID, Progress { fired: 2, decided_to: None }, clock("09:00:00")), None);
    // One that its store refuses to make arms it at once, and counts for nothing.
    assert_eq!(done.next_if_refused, Some(Cursor { fired: 1, ..owing(clock("09:10:00")) }));
    assert_eq!(rearm(&schedule(json!({ "every": "1m" })), ID, Progress::default(), clock("09:00:00")), None);
}

/// What its last run left must not go on after the schedule's end.
#[test]
fn after_finish_ends_when_it_says() {
    let ending = schedule(json!({ "after_finish": "10m", "ends_at": "2025-01-01T08:30:00Z" }));
    let behind = Progress { fired: 1, decided_to: Some(clock("08:00:00")) };
    assert_eq!(rearm(&ending, ID, behind, clock("08:20:00")).unwrap().planned_at, clock("08:30:00"));
    assert_eq!(rearm(&ending, ID, behind, clock("08:20:00.001")), None);
    let beyond = plan(&input(&ending, owing(clock("08:40:00"))), clock("08:40:00"));
    assert_eq!((shown(&beyond), beyond.next), ((String::new(), String::new()), None));
}

/// Turned off and on, or edited otherwise, while its run lives: it counts from that
/// run's end, and is not armed beside it.
#[test]
fn an_edit_leaves_after_finish_to_the_run_that_arms_it() {
    let loop_ = schedule(json!({ "after_finish": "10m" }));
    let off = schedule(json!({ "after_finish": "10m", "enabled": false }));
    let hourly = schedule(json!({ "cron": "0 * * * *" }));
    let behind = Progress { fired: 1, decided_to: Some(clock("08:00:00")) };
    let waits = Stored { behind, waits_for_run: true, ..Stored::default() };
    for (old, new) in [(&loop_, &off), (&off, &loop_), (&loop_, &loop_)] {
        let edited = edit(Some(old), new, ID, waits, &[], clock("08:05:00"));
        assert_eq!(edited, Edited { stored: waits, owed: Vec::new() });
    }
    let edited = edit(Some(&loop_), &hourly, ID, waits, &[], clock("08:05:00")).stored;
    assert_eq!((edited.waits_for_run, edited.cursor.unwrap().planned_at), (false, clock("09:00:00")));
    // Its run ended while it was off: it begins anew.
    let ended = Stored { waits_for_run: false, ..waits };
    let edited = edit(Some(&off), &loop_, ID, ended, &[], clock("09:05:00")).stored;
    assert_eq!(edited.cursor.unwrap().planned_at, clock("09:05:00"));
}

/// A run that is refused does not count, so it is not the last one.
#[test]
fn a_refused_run_is_not_the_last_of_a_schedule() {
    let twice =
        schedule(json!({ "cron": "0 * * * *", "max_runs": 2, "catch_up": { "mode": "all" }, "overlap": "allow" }));
    for (planned, now, fired, next) in
        [("09:00:00", "09:00:00", 1, "10:00:00"), ("09:00:00", "12:30:00", 0, "13:00:00")]
    {
        let held = Cursor { fired, ..owing(clock(planned)) };
        let done = plan(&input(&twice, held), clock(now));
        assert_eq!((done.fired, done.next), (2, None));
        assert_eq!(done.next_if_refused, Some(Cursor { fired: 2, ..owing(clock(next)) }));
    }
}

/// "The next one is made by the last one" is how such schedules die: a skip
/// must arm the next as well as a run's end does.
#[test]
fn after_finish_survives_every_skip() {
    let holiday: Calendar = serde_json::from_value(json!({ "name": "holiday", "dates": ["2025-01-01"] })).unwrap();
    let calendars = [&holiday];
    let loop_ = schedule(json!({ "after_finish": "10m", "catch_up": { "window": "1h" } }));
    let held = owing(clock("08:00:00"));
    let pause = Pause { since: clock("07:00:00"), until: Some(clock("08:30:00")) };
    let busy = Live { active: 1, waiting: 0 };
    let tomorrow = at("2025-01-02T00:00:00Z");
    for (case, now, next) in [
        (Input { pauses: &[pause], ..input(&loop_, held) }, clock("08:30:00"), owing(clock("08:40:00"))),
        (Input { live: busy, ..input(&loop_, held) }, clock("08:00:00"), owing(clock("08:10:00"))),
        (input(&loop_, held), clock("09:00:01"), owing(clock("09:10:01"))),
        (
            Input { calendars: &calendars, ..input(&loop_, held) },
            clock("08:00:00"),
            Cursor { due_at: clock("08:01:00"), ..owing(tomorrow) },
        ),
    ] {
        let done = plan(&case, now);
        assert_eq!((done.runs.len(), done.skips.len(), done.skips[0].count), (0, 1, 1));
        assert_eq!(done.next, Some(next));
    }
}

/// A schedule that waits for a day that its calendars allow must not sleep until then,
/// which may be ten years off, when somebody corrects the calendar.
#[test]
fn after_finish_follows_its_calendars() {
    let never: Calendar =
        serde_json::from_value(json!({ "name": "never", "mode": "include", "dates": ["2020-01-01"] })).unwrap();
    let loop_ = schedule(json!({ "after_finish": "10m" }));
    let calendars = [&never];
    let closed = |cursor| Input { calendars: &calendars, ..input(&loop_, cursor) };
    let skipped = plan(&closed(owing(clock("08:00:00"))), clock("08:00:00"));
    let mut held = skipped.next.unwrap();
    for _ in 0..3 {
        let now = held.due_at;
        assert!(held.planned_at > at("2030-01-01T00:00:00Z"), "{held:?}");
        let looked = plan(&closed(held), now);
        assert_eq!((looked.runs.len(), looked.skips.len()), (0, 0), "one skip, not one for each look");
        held = looked.next.unwrap();
        assert_eq!(held.due_at, now + SignedDuration::from_secs(60));
    }
    let now = held.due_at;
    let open = plan(&input(&loop_, held), now);
    assert_eq!(open.next, Some(owing(now)));
    assert_eq!(plan(&input(&loop_, open.next.unwrap()), now).runs.len(), 1);
}

/// An edit of a schedule that runs an hour after its last run must not make a run now.
#[test]
fn an_edit_leaves_after_finish_to_count_from_its_last_run() {
    let hourly = schedule(json!({ "after_finish": "1h" }));
    let labelled = schedule(json!({ "after_finish": "1h", "labels": { "a": "b" } }));
    let slower = schedule(json!({ "after_finish": "2h" }));
    let faster = schedule(json!({ "after_finish": "1m" }));
    let off = schedule(json!({ "after_finish": "1h", "enabled": false }));
    let held = |fired| stored(Cursor { fired, ..owing(clock("09:00:00")) });
    let edited = |new, fired| {
        let edited = edit(Some(&hourly), new, ID, held(fired), &[], clock("08:10:00"));
        assert_eq!(edited.owed, []);
        edited.stored.cursor.map(|cursor| cursor.planned_at)
    };
    assert_eq!(edited(&labelled, 1), Some(clock("09:00:00")));
    assert_eq!(edited(&slower, 1), Some(clock("10:00:00")));
    assert_eq!(edited(&faster, 1), Some(clock("08:10:00.000001")), "it is due by the new delay");
    assert_eq!(edited(&labelled, 0), Some(clock("08:10:00.000001")), "it has not run yet");
    assert_eq!(edited(&off, 1), None);
    // It waits for a day that its calendars allow, far off: what is edited is decided now.
    let waiting = Cursor { fired: 1, due_at: clock("08:11:00"), ..owing(at("2035-01-01T00:00:00Z")) };
    let edited = edit(Some(&hourly), &labelled, ID, stored(waiting), &[], clock("08:10:00"));
    assert!(edited.stored.cursor.unwrap().planned_at < clock("08:10:01"), "{edited:?}");
}

#[test]
fn a_clock_that_steps_back_fires_nothing_twice() {
    let hourly = schedule(json!({ "cron": "0 * * * *" }));
    let done = plan(&input(&hourly, owing(clock("09:00:00"))), clock("09:00:00"));
    let next = done.next.unwrap();
    assert_eq!(plan(&input(&hourly, next), clock("08:59:00")), Plan::waiting(next));
    // Nor does an edit while the clock is behind.
    let edited = arm(&hourly, ID, Progress::before(next), clock("08:59:00")).unwrap();
    assert_eq!(edited.planned_at, clock("10:00:00"));
}

#[test]
fn abandoned_instants_are_one_range() {
    let minutely = schedule(json!({ "cron": "* * * * *" }));
    let range = abandon(&minutely, owing(clock("08:00:00")), at("2025-01-03T00:00:30Z"), SkipReason::Deleted).unwrap();
    assert_eq!((range.from, range.to, range.count), (clock("08:00:00"), at("2025-01-03T00:00:00Z"), 40 * 60 + 1));
    assert_eq!(abandon(&minutely, owing(clock("08:00:00")), clock("07:59:00"), SkipReason::Edited), None);
}

#[test]
fn a_backlog_is_paced() {
    let minutely =
        schedule(json!({ "cron": "* * * * *", "overlap": "allow", "catch_up": { "mode": "all", "window": "7d" } }));
    let now = at("2025-01-03T00:00:30Z");
    let mut cursor = owing(clock("00:00:00"));
    let mut calls = 0;
    let mut made = 0;
    let mut time = now;
    while cursor.planned_at <= now {
        let done = plan(&input(&minutely, cursor), time);
        assert!(done.runs.len() <= RUNS_MAX && done.skips.is_empty());
        made += done.runs.len();
        calls += 1;
        cursor = done.next.unwrap();
        time = time.max(cursor.due_at);
        if cursor.planned_at <= now {
            assert_eq!(cursor.due_at, now + PACE * calls);
        }
    }
    assert_eq!((made, calls), (2 * 24 * 60 + 1, 3));
}

/// The worst backlogs are counted, not visited.
#[test]
fn ten_years_of_seconds_are_skipped_in_a_moment() {
    let started = Instant::now();
    let now = at("2035-01-01T00:00:00.5Z");
    for document in [
        json!({ "cron": "* * * * * *", "timezone": "America/New_York" }),
        json!({ "every": "1s" }),
        json!({ "cron": "* * * * * *", "timezone": "America/New_York", "catch_up": { "mode": "none" } }),
        json!({ "cron": "* * * * * *", "overlap": "skip", "catch_up": { "mode": "all", "window": "10y" } }),
    ] {
        let every_second = schedule(document.clone());
        let done = plan(&input(&every_second, owing(clock("00:00:00"))), now);
        let decided = done.runs.len() as u64 + done.skips.iter().map(|skip| skip.count).sum::<u64>();
        let seconds = now.as_second() - clock("00:00:00").as_second() + 1;
        assert_eq!((done.runs.len(), decided), (1, seconds as u64), "{document}");
    }
    assert!(started.elapsed().as_secs() < 2, "{:?}", started.elapsed());
}

#[test]
fn a_cursor_of_last_century_is_decided_in_slices() {
    let minutely = schedule(json!({ "cron": "* * * * *" }));
    let now = at("2100-01-01T00:00:30Z");
    let mut cursor = owing(at("1975-01-01T00:00:00Z"));
    let (mut calls, mut decided) = (0, 0);
    while cursor.planned_at <= now {
        let done = plan(&input(&minutely, cursor), now);
        decided += done.runs.len() as u64 + done.skips.iter().map(|skip| skip.count).sum::<u64>();
        cursor = done.next.unwrap();
        calls += 1;
        assert!(calls < 30);
    }
    let minutes = (now.as_second() - at("1975-01-01T00:00:00Z").as_second()) / 60 + 1;
    assert_eq!((decided, calls), (minutes as u64, 12));
}

#[test]
fn reasons_keep_their_codes() {
    let codes: Vec<_> = SkipReason::ALL.iter().map(|reason| (reason.code(), reason.as_str())).collect();
    assert_eq!(
        codes,
        [
            (1, "overlap"),
            (2, "catch_up"),
            (3, "paused"),
            (4, "calendar"),
            (5, "quota"),
            (6, "unique"),
            (7, "edited"),
            (8, "deleted"),
            (9, "ended")
        ]
    );
    for reason in SkipReason::ALL {
        assert_eq!(SkipReason::from_code(reason.code()), Some(reason));
        assert_eq!(reason.as_str().parse(), Ok(reason));
    }
}

/// A small seeded source, so that a failure can be run again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % sides
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len() as u64) as usize].clone()
    }
}

fn random_document(dice: &mut Dice) -> Value {
    let mut document = dice.pick(&[
        json!({ "cron": "*/7 * * * *" }),
        json!({ "cron": "30 1,2 * * *", "timezone": "America/New_York" }),
        json!({ "cron": "15,45 0-3 * * *", "timezone": "America/New_York", "fold": "both", "gap": "skip" }),
        json!({ "cron": "0 */2 * * MON-FRI", "timezone": "Australia/Lord_Howe" }),
        json!({ "every": "13m" }),
        json!({ "every": "5h", "anchor": "2025-03-01T00:00:00.123456789Z" }),
        json!({ "cron": "@every 90m" }),
        json!({ "at": "2025-03-09T12:00:00Z" }),
    ]);
    let window = dice.pick(&["1m", "30m", "5h", "2d", "1y"]);
    let mode = dice.pick(&["latest", "all", "none"]);
    document["catch_up"] = json!({ "window": window, "mode": mode });
    document["overlap"] = json!(dice.pick(&["skip", "queue_one", "queue_all", "cancel_running", "allow"]));
    if dice.roll(2) == 0 && document.get("at").is_none() {
        document["jitter"] = json!(dice.pick(&["10s", "3m"]));
    }
    if dice.roll(4) == 0 {
        document["max_runs"] = json!(dice.roll(20) + 1);
    }
    if dice.roll(4) == 0 {
        document["ends_at"] = json!("2025-03-11T05:00:00Z");
    }
    document
}

/// What became of each instant, and fails when one gets a second end.
#[derive(Default)]
struct Ledger(BTreeMap<Timestamp, &'static str>);

impl Ledger {
    fn record(&mut self, at: Timestamp, end: &'static str, context: &str) {
        let earlier = self.0.insert(at, end);
        assert_eq!(earlier, None, "{at} ended twice, now as {end}: {context}");
    }

    fn add(&mut self, schedule: &Schedule, plan: &Plan, context: &str) {
        for run in &plan.runs {
            self.record(run.planned_at, "run", context);
        }
        assert!(plan.runs.is_sorted_by(|a, b| a.planned_at < b.planned_at), "{context}");
        assert!(plan.skips.is_sorted_by(|a, b| a.to < b.from), "{context}: {:?}", plan.skips);
        for skip in &plan.skips {
            let mut at = schedule.next(before(skip.from));
            assert_eq!(at, Some(skip.from), "{context}");
            let mut count = 0;
            while let Some(instant) = at.filter(|at| *at <= skip.to) {
                self.record(instant, skip.reason.as_str(), context);
                count += 1;
                at = schedule.next(instant);
            }
            assert_eq!((count, self.0.contains_key(&skip.to)), (skip.count, true), "{context}: {skip:?}");
        }
    }
}

/// Whatever the clock, the pauses and the policies do, each planned instant
/// ends once: as a run, as a skip, or as what the cursor still owes.
#[test]
fn every_planned_instant_has_exactly_one_end() {
    let weekend: Calendar = serde_json::from_value(json!({ "name": "weekend", "weekdays": ["SUN"] })).unwrap();
    let start = at("2025-03-08T00:00:00Z");
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..600 {
        let mut dice = Dice(seed);
        let document = random_document(&mut dice);
        let context = format!("seed {seed} {document}");
        let schedule = schedule(document);
        let calendars: Vec<&Calendar> = if dice.roll(2) == 0 { vec![&weekend] } else { vec![] };
        let first = arm(&schedule, ID, Progress::default(), start).unwrap();
        let (mut ledger, mut cursor, mut now) = (Ledger::default(), Some(first), start);
        let mut pauses: Vec<Pause> = Vec::new();
        for _ in 0..30 {
            let Some(owed) = cursor else { break };
            now = step(&mut dice, now);
            pauses.retain(|pause| pause.until.is_some_and(|until| until > owed.planned_at));
            if pauses.len() < 3 && dice.roll(6) == 0 {
                let until = now + SignedDuration::from_mins(dice.roll(600) as i64 + 1);
                pauses.push(Pause { since: now, until: Some(until) });
            }
            let live = Live { active: dice.roll(2), waiting: dice.roll(2) };
            let more_at = now + SignedDuration::from_mins(dice.roll(600) as i64 + 1);
            let allowance = (dice.roll(3) == 0).then(|| Allowance { per_minute: 1, runs: dice.roll(3), more_at });
            let input = Input { allowance, pauses: &pauses, live, calendars: &calendars, ..input(&schedule, owed) };
            let done = plan(&input, now);
            assert_eq!(done, plan(&input, now), "{context}");
            ledger.add(&schedule, &done, &context);
            assert!(done.next.is_none_or(|next| next.planned_at >= owed.planned_at), "{context}");
            assert_eq!(done.fired, owed.fired + done.runs.len() as u64, "{context}");
            cursor = done.next;
        }
        check_tiling(&schedule, &ledger, first, cursor, now, &context);
        for end in ledger.0.values() {
            *ends.entry(end).or_default() += 1;
        }
    }
    for end in ["run", "overlap", "catch_up", "paused", "calendar", "ended", "quota"] {
        assert!(ends.get(end).is_some_and(|count| *count > 20), "{end} was hardly tried: {ends:?}");
    }
}

/// Mostly forwards, by seconds or by days; sometimes back.
fn step(dice: &mut Dice, now: Timestamp) -> Timestamp {
    let scale = 1 << dice.roll(18);
    let amount = dice.roll(scale) as i64 * 1_000 + dice.roll(1_000) as i64;
    let amount = SignedDuration::from_millis(amount);
    let moved = if dice.roll(8) == 0 { now - amount } else { now + amount };
    // On the hour lie many instants, so that bounds meet them.
    if dice.roll(3) == 0 { moved - SignedDuration::from_millis(moved.as_millisecond() % 3_600_000) } else { moved }
}

fn check_tiling(
    schedule: &Schedule,
    ledger: &Ledger,
    first: Cursor,
    owed: Option<Cursor>,
    now: Timestamp,
    context: &str,
) {
    let last = ledger.0.keys().next_back().copied();
    let mut at = Some(first.planned_at);
    while let Some(instant) = at {
        match owed {
            Some(owed) if instant >= owed.planned_at => {
                assert!(last.is_none_or(|last| last < owed.planned_at), "{context}: decided past the cursor");
                return;
            }
            // It ended: what lies after the last call was never planned.
            None if instant > now && last.is_none_or(|last| instant > last) => return,
            _ => assert!(ledger.0.contains_key(&instant), "{context}: {instant} was lost, owed {owed:?}"),
        }
        at = schedule.next(instant);
    }
}

/// An edit by a node whose clock is behind must not plan again what a node
/// ahead of it has fired; one that moves an instant forward must not lose it.
#[test]
fn an_edit_plans_nothing_again_and_leaves_nothing_out() {
    let hourly = schedule(json!({ "cron": "0 * * * *" }));
    let half = schedule(json!({ "cron": "0,30 * * * *" }));
    let held = Cursor { fired: 3, ..owing(clock("10:00:00")) };
    let cursor_at = |now| edit(Some(&hourly), &half, ID, stored(held), &[], clock(now));
    for (now, planned, owed) in [
        // 09:00 was fired by a clock ahead of 08:59:59.
        ("08:59:59", "09:30:00", None),
        ("09:10:00", "09:30:00", None),
        ("10:05:00", "10:30:00", Some("10:00:00")),
    ] {
        let edited = cursor_at(now);
        assert_eq!(edited.stored.cursor, Some(Cursor { fired: 3, ..owing(clock(planned)) }), "{now}");
        assert_eq!(
            edited.owed.first().map(|owed| (owed.from, owed.reason)),
            owed.map(|at| (clock(at), SkipReason::Edited))
        );
    }
}

/// What the first definition decided is not planned again by the third, though
/// the second had no such instant and the third comes by a clock behind.
#[test]
fn a_second_edit_plans_nothing_again_that_the_first_one_ended() {
    let half = schedule(json!({ "cron": "0,30 * * * *" }));
    let quarter = schedule(json!({ "cron": "15,45 * * * *" }));
    let off = schedule(json!({ "cron": "0,30 * * * *", "enabled": false }));
    let held = Cursor { fired: 3, ..owing(clock("10:00:00")) };
    for between in [&quarter, &off] {
        let first = edit(Some(&half), between, ID, stored(held), &[], clock("10:00:01"));
        assert_eq!(first.owed.last().map(|owed| owed.to), Some(clock("10:00:00")));
        assert_eq!(first.stored.behind.fired, 3);
        let second = edit(Some(between), &half, ID, first.stored, &[], clock("09:59:59"));
        assert_eq!(second.stored.cursor, Some(Cursor { fired: 3, ..owing(clock("10:30:00")) }));
        assert!(second.stored.behind.decided_to >= Some(clock("10:00:00")), "{second:?}");
        assert_eq!(second.owed, []);
    }
}

/// A schedule that waits for tomorrow has decided nothing up to then: turned off
/// and on again with a finer rhythm, it goes on at once.
#[test]
fn a_schedule_that_was_off_is_not_held_up_by_the_instant_it_waited_for() {
    let daily = schedule(json!({ "cron": "0 0 * * *" }));
    let off = schedule(json!({ "cron": "0 0 * * *", "enabled": false }));
    let hourly = schedule(json!({ "cron": "0 * * * *" }));
    let tomorrow = daily.next(clock("10:10:00")).unwrap();
    let first = edit(Some(&daily), &off, ID, stored(owing(tomorrow)), &[], clock("10:10:00"));
    let second = edit(Some(&off), &hourly, ID, first.stored, &[], clock("10:20:00"));
    assert_eq!(second.stored.cursor, Some(owing(clock("11:00:00"))));
}

/// A pause must not be rewritten by an edit: what it held ends as paused, and only the rest
/// as edited.
#[test]
fn an_edit_leaves_to_a_pause_what_it_held() {
    let half = schedule(json!({ "every": "30m", "overlap": "allow" }));
    let hourly = schedule(json!({ "every": "1h", "overlap": "allow" }));
    let held = owing(clock("08:00:00"));
    let pause = |since, until: Option<&str>| Pause { since: clock(since), until: until.map(clock) };
    let told = |pauses: &[Pause]| {
        let edited = edit(Some(&half), &hourly, ID, stored(held), pauses, clock("10:10:00"));
        assert_eq!(edited.stored.cursor.unwrap().planned_at, clock("11:00:00"), "{pauses:?}");
        let range = |skip: &SkipRange| (skip.reason, skip.from, skip.to, skip.count);
        edited.owed.iter().map(range).collect::<Vec<_>>()
    };
    let edited = |from, to, count| (SkipReason::Edited, clock(from), clock(to), count);
    let paused = |from, to, count| (SkipReason::Paused, clock(from), clock(to), count);
    assert_eq!(told(&[]), [edited("08:00:00", "10:00:00", 5)]);
    assert_eq!(told(&[pause("07:00:00", None)]), [paused("08:00:00", "10:00:00", 5)]);
    let ended = [pause("08:30:00", Some("09:30:00"))];
    assert_eq!(
        told(&ended),
        [edited("08:00:00", "08:00:00", 1), paused("08:30:00", "09:00:00", 2), edited("09:30:00", "10:00:00", 2)]
    );
    let touching = [pause("08:10:00", Some("09:00:00")), pause("08:50:00", None)];
    assert_eq!(told(&touching), [edited("08:00:00", "08:00:00", 1), paused("08:30:00", "10:00:00", 4)]);
    let loop_ = schedule(json!({ "after_finish": "10m" }));
    let one = edit(Some(&loop_), &loop_, ID, stored(held), &[pause("07:00:00", None)], clock("10:10:00"));
    assert_eq!(one.owed.iter().map(|skip| skip.reason).collect::<Vec<_>>(), [SkipReason::Paused]);
}
