use std::time::Instant;

use super::*;

fn cron(text: &str) -> Cron {
    Cron::parse(text, b"seed").unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn policy(gap: Gap, fold: Fold) -> DstPolicy {
    DstPolicy { gap, fold }
}

fn list(text: &str, name: &str, policy: DstPolicy, after: &str, until: &str) -> Vec<String> {
    let zone = zone(name).unwrap();
    cron(text).instants(at(after), at(until), &zone, policy).map(|at| at.to_string()).collect()
}

fn next(text: &str, after: &str) -> String {
    cron(text).next(at(after), &TimeZone::UTC, DstPolicy::default()).map_or("never".to_owned(), |at| at.to_string())
}

/// The examples that the reference page gives.
#[test]
fn documented_clock_changes_hold() {
    let usual = DstPolicy::default();
    let new_york = "America/New_York";
    let spring = ("2025-03-09T00:00:00Z", "2025-03-10T05:00:00Z");
    let autumn = ("2025-11-02T04:00:00Z", "2025-11-02T08:00:00Z");
    assert_eq!(list("0 2 * * *", new_york, usual, spring.0, spring.1), ["2025-03-09T07:00:00Z"]);
    assert_eq!(
        list("0 2 * * *", new_york, policy(Gap::Skip, Fold::First), spring.0, "2025-03-11T00:00:00Z"),
        ["2025-03-10T06:00:00Z"]
    );
    assert_eq!(list("30 1 * * *", new_york, usual, autumn.0, autumn.1), ["2025-11-02T05:30:00Z"]);
    assert_eq!(
        list("30 1 * * *", new_york, policy(Gap::Shift, Fold::Last), autumn.0, autumn.1),
        ["2025-11-02T06:30:00Z"]
    );
    assert_eq!(
        list("15,45 1 * * *", new_york, policy(Gap::Shift, Fold::Both), autumn.0, autumn.1),
        ["2025-11-02T05:15:00Z", "2025-11-02T05:45:00Z", "2025-11-02T06:15:00Z", "2025-11-02T06:45:00Z"]
    );
    assert_eq!(
        list("*/15 * * * *", new_york, usual, "2025-11-02T05:00:00Z", "2025-11-02T07:00:00Z"),
        [
            "2025-11-02T05:15:00Z",
            "2025-11-02T05:30:00Z",
            "2025-11-02T05:45:00Z",
            "2025-11-02T06:00:00Z",
            "2025-11-02T06:15:00Z",
            "2025-11-02T06:30:00Z",
            "2025-11-02T06:45:00Z",
            "2025-11-02T07:00:00Z"
        ]
    );
}

/// Several local times in one gap are one instant, and so is a local time
/// that the gap shifts onto another.
#[test]
fn a_gap_fires_once() {
    let new_york = "America/New_York";
    let day = ("2025-03-09T05:00:00Z", "2025-03-10T03:00:00Z");
    for (text, expected) in [
        ("0,15,30 2 * * *", vec!["2025-03-09T07:00:00Z"]),
        ("0 2,3 * * *", vec!["2025-03-09T07:00:00Z"]),
        ("30 2,14 * * *", vec!["2025-03-09T07:00:00Z", "2025-03-09T18:30:00Z"]),
        ("*/20 2 * * *", vec![]),
    ] {
        assert_eq!(list(text, new_york, DstPolicy::default(), day.0, day.1), expected, "{text}");
    }
}

#[test]
fn unusual_zones_are_right() {
    let usual = DstPolicy::default();
    for (text, zone, after, until, expected) in [
        // Samoa had no 30 December 2011.
        (
            "0 9 * * *",
            "Pacific/Apia",
            "2011-12-29T12:00:00Z",
            "2011-12-31T12:00:00Z",
            &["2011-12-29T19:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T19:00:00Z"][..],
        ),
        // Lord Howe moves by half an hour: 02:00 becomes 02:30, and 02:00 again 01:30.
        (
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2025-10-04T12:00:00Z",
            "2025-10-05T12:00:00Z",
            &["2025-10-04T15:30:00Z"],
        ),
        (
            "45 1 * * *",
            "Australia/Lord_Howe",
            "2025-04-05T12:00:00Z",
            "2025-04-06T12:00:00Z",
            &["2025-04-05T14:45:00Z"],
        ),
        ("0 9 * * *", "Asia/Kathmandu", "2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z", &["2025-01-01T03:15:00Z"]),
        // Cairo springs at midnight: 00:00 does not exist on 25 April 2025.
        (
            "0 0 * * *",
            "Africa/Cairo",
            "2025-04-24T12:00:00Z",
            "2025-04-25T22:00:00Z",
            &["2025-04-24T22:00:00Z", "2025-04-25T21:00:00Z"],
        ),
        ("0 9 * * *", "Africa/Cairo", "2025-04-24T12:00:00Z", "2025-04-25T12:00:00Z", &["2025-04-25T06:00:00Z"]),
        // Morocco leaves summer time for Ramadan: back on 23 February 2025.
        ("30 2 * * *", "Africa/Casablanca", "2025-02-22T12:00:00Z", "2025-02-23T12:00:00Z", &["2025-02-23T01:30:00Z"]),
        ("0 2 * * *", "America/New_York", "2150-03-07T12:00:00Z", "2150-03-08T12:00:00Z", &["2150-03-08T07:00:00Z"]),
    ] {
        assert_eq!(list(text, zone, usual, after, until), expected, "{text} {zone}");
    }
}

#[test]
fn days_and_times_are_found() {
    for (text, after, expected) in [
        ("0 0 29 2 *", "2025-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"),
        ("0 0 L * *", "2024-02-01T00:00:00Z", "2024-02-29T00:00:00Z"),
        ("0 0 L-3 * *", "2025-02-01T00:00:00Z", "2025-02-25T00:00:00Z"),
        ("0 0 15W * *", "2025-06-01T00:00:00Z", "2025-06-16T00:00:00Z"),
        ("0 0 1W * *", "2025-02-01T00:00:00Z", "2025-02-03T00:00:00Z"),
        ("0 0 31W * *", "2025-08-01T00:00:00Z", "2025-08-29T00:00:00Z"),
        ("0 0 31W * *", "2025-09-01T00:00:00Z", "2025-10-31T00:00:00Z"),
        ("0 0 LW * *", "2025-05-01T00:00:00Z", "2025-05-30T00:00:00Z"),
        ("0 0 * * 5L", "2025-01-01T00:00:00Z", "2025-01-31T00:00:00Z"),
        ("0 0 * * fril", "2025-01-01T00:00:00Z", "2025-01-31T00:00:00Z"),
        ("0 0 * * 7L", "2025-01-01T00:00:00Z", "2025-01-26T00:00:00Z"),
        ("0 0 * * 2#3", "2025-01-01T00:00:00Z", "2025-01-21T00:00:00Z"),
        ("0 0 * * MON#5", "2025-01-01T00:00:00Z", "2025-03-31T00:00:00Z"),
        ("0 0 13 * 5", "2025-01-01T00:00:00Z", "2025-01-03T00:00:00Z"),
        ("0 0 13 * 5", "2025-01-11T00:00:00Z", "2025-01-13T00:00:00Z"),
        ("0 0 ? * MON", "2025-01-01T00:00:00Z", "2025-01-06T00:00:00Z"),
        ("0 0 * * 7", "2025-01-01T00:00:00Z", "2025-01-05T00:00:00Z"),
        ("0 0 * * 5-7", "2025-01-04T00:00:00Z", "2025-01-05T00:00:00Z"),
        ("0 0 * * FRI-MON", "2025-01-06T00:00:00Z", "2025-01-10T00:00:00Z"),
        ("0 22-2 * * *", "2025-01-01T02:00:00Z", "2025-01-01T22:00:00Z"),
        ("0 22-2/2 * * *", "2025-01-01T00:00:00Z", "2025-01-01T02:00:00Z"),
        ("0 0 * NOV-FEB *", "2025-02-28T00:00:00Z", "2025-11-01T00:00:00Z"),
        ("0 0 0 1 1 ? 2030", "2025-01-01T00:00:00Z", "2030-01-01T00:00:00Z"),
        ("0 0 0 1 1 ? 2030", "2030-01-01T00:00:00Z", "never"),
        ("59 59 23 31 12 ? 2199", "2025-01-01T00:00:00Z", "2199-12-31T23:59:59Z"),
        ("30 * * * * *", "2025-01-01T00:00:30Z", "2025-01-01T00:01:30Z"),
        ("30 * * * * *", "2025-01-01T00:00:29.999999Z", "2025-01-01T00:00:30Z"),
        ("@every 90s", "2025-01-01T00:00:00Z", "2025-01-01T00:01:30Z"),
        ("@Weekly", "2025-01-01T00:00:00Z", "2025-01-05T00:00:00Z"),
        ("* * * * *", "1969-06-01T00:00:00.5Z", "1970-01-01T00:00:00Z"),
        ("* * * * *", "-005000-06-01T00:00:00Z", "1970-01-01T00:00:00Z"),
        ("* * * * *", "9999-06-01T00:00:00Z", "never"),
    ] {
        assert_eq!(next(text, after), expected, "{text} after {after}");
    }
}

#[test]
fn unusual_but_valid_text_is_accepted() {
    for (text, plain) in [
        ("\t0   9 \t * * *  ", "0 9 * * *"),
        ("00 09 * * *", "0 9 * * *"),
        ("0,0,0 9 * * *", "0 9 * * *"),
        ("0 9 * jan mon", "0 9 * 1 1"),
        ("0/5 * * * *", "*/5 * * * *"),
        ("*/59 * * * *", "0,59 */1 * * *"),
        ("0 9 ? * ?", "0 9 * * *"),
        ("0 9 * * 0-7", "0 9 * * 0-6"),
        ("0 9 * * 7-2", "0 9 * * 0-2"),
        ("0 9 l * *", "0 9 L * *"),
        ("0 9 lw * *", "0 9 LW * *"),
        ("0 9 * * 6-0", "0 9 * * SAT,SUN"),
        ("0 0 9 * * * *", "0 9 * * *"),
        ("0 0 9 * * * 1970-2199/1", "0 9 * * *"),
        ("@MIDNIGHT", "0 0 * * *"),
        ("0 9 * * *\n", "0 9 * * *"),
    ] {
        let after = at("2025-01-01T00:00:00Z");
        let first = |text| {
            let until = at("2026-01-01T00:00:00Z");
            cron(text).instants(after, until, &TimeZone::UTC, DstPolicy::default()).take(200).collect::<Vec<_>>()
        };
        assert_eq!(first(text), first(plain), "{text}");
    }
}

#[test]
fn malformed_text_is_refused_with_a_stable_code() {
    let long = format!("0 9 * * {}", "1,".repeat(510));
    for (text, code) in [
        ("", "cron_empty"),
        ("   ", "cron_empty"),
        (long.as_str(), "cron_too_long"),
        ("0 9 * * ٣", "cron_not_ascii"),
        ("0 9 * * MON–FRI", "cron_not_ascii"),
        ("* * * *", "cron_field_count"),
        ("* * * * * * * *", "cron_field_count"),
        ("60 * * * *", "cron_out_of_range"),
        ("* 24 * * *", "cron_out_of_range"),
        ("* * 0 * *", "cron_out_of_range"),
        ("* * 32 * *", "cron_out_of_range"),
        ("* * * 13 *", "cron_out_of_range"),
        ("* * * 0 *", "cron_out_of_range"),
        ("* * * * 8", "cron_out_of_range"),
        ("99999999999999999999 * * * *", "cron_out_of_range"),
        ("0 0 0 1 1 ? 1969", "cron_out_of_range"),
        ("0 0 0 1 1 ? 2200", "cron_out_of_range"),
        ("* * * * MON#6", "cron_out_of_range"),
        ("* * * * MON#0", "cron_out_of_range"),
        ("* * 32W * *", "cron_out_of_range"),
        ("* * 0W * *", "cron_out_of_range"),
        ("* * L-31 * *", "cron_out_of_range"),
        ("* * L-0 * *", "cron_out_of_range"),
        ("1,,2 * * * *", "cron_empty_item"),
        (",1 * * * *", "cron_empty_item"),
        ("1, * * * *", "cron_empty_item"),
        ("*/0 * * * *", "cron_bad_step"),
        ("*/ * * * *", "cron_bad_step"),
        ("*/61 * * * *", "cron_bad_step"),
        ("*/-5 * * * *", "cron_bad_step"),
        ("*/5/5 * * * *", "cron_bad_step"),
        ("1-5/0 * * * *", "cron_bad_step"),
        ("* * L/2 * *", "cron_bad_step"),
        ("* * 15W/2 * *", "cron_bad_step"),
        ("* * * JANU *", "cron_unknown_name"),
        ("* * * * MONDAY", "cron_unknown_name"),
        ("* * * * FOO", "cron_unknown_name"),
        ("MON * * * *", "cron_unknown_name"),
        ("* * * MON *", "cron_unknown_name"),
        ("L * * * *", "cron_unknown_name"),
        ("1- * * * *", "cron_bad_item"),
        ("-5 * * * *", "cron_bad_item"),
        ("1-2-3 * * * *", "cron_bad_item"),
        ("5x * * * *", "cron_bad_item"),
        ("+5 * * * *", "cron_bad_item"),
        ("1.5 * * * *", "cron_bad_item"),
        ("** * * * *", "cron_bad_item"),
        ("*-5 * * * *", "cron_bad_item"),
        ("* * 1-5W * *", "cron_bad_item"),
        ("* * W * *", "cron_bad_item"),
        ("* * L- * *", "cron_bad_item"),
        ("* * * * MON# ", "cron_bad_item"),
        ("* * * * #2", "cron_bad_item"),
        ("0 9 *\n* * *", "cron_bad_item"),
        ("0 0 0 1 1 ? 2030-2020", "cron_bad_range"),
        ("? * * * *", "cron_not_allowed"),
        ("* * ?,1 * *", "cron_not_allowed"),
        ("* * * * L", "cron_not_allowed"),
        ("0 0 0 1 1 ? H", "cron_not_allowed"),
        ("H(5-2) * * * *", "cron_bad_range"),
        ("H() * * * *", "cron_bad_item"),
        ("H(0-5 * * * *", "cron_bad_item"),
        ("Hx * * * *", "cron_bad_item"),
        ("H(0-99) * * * *", "cron_out_of_range"),
        ("@fortnightly", "cron_unknown_word"),
        ("@reboot", "cron_unknown_word"),
        ("@daily 5", "cron_unknown_word"),
        ("@", "cron_unknown_word"),
        ("@every", "cron_bad_interval"),
        ("@every 0s", "cron_bad_interval"),
        ("@every 10ms", "cron_bad_interval"),
        ("@every 5", "cron_bad_interval"),
        ("0 0 30 2 *", "cron_never_fires"),
        ("0 0 31 4,6,9,11 *", "cron_never_fires"),
        ("0 0 31W 2 *", "cron_never_fires"),
        ("0 0 L-29 2 *", "cron_never_fires"),
        ("0 0 0 29 2 ? 2023", "cron_never_fires"),
        ("0 0 0 29 2 ? 2100", "cron_never_fires"),
    ] {
        match Cron::parse(text, b"") {
            Ok(_) => panic!("accepted: {text:?}"),
            Err(error) => {
                assert_eq!(error.code(), code, "{text:?}: {error}");
                assert!(error.place.end <= text.len().max(1) && error.place.start <= error.place.end, "{text:?}");
            }
        }
    }
}

/// Everything written out is an expression too, and not one that is cut off.
#[test]
fn an_expression_of_1024_bytes_is_taken_and_one_more_is_not() {
    let all = |from: u32, to: u32| (from..=to).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let full = format!("{} {} {} * *", all(0, 59), all(0, 23), all(1, 31));
    assert_eq!(full.len(), 319);
    assert_eq!(next(&full, "2025-01-31T23:59:00Z"), "2025-02-01T00:00:00Z");
    let longest = format!("{}5 * * * *", "5,".repeat(507));
    let longest = format!("{longest}{}", " ".repeat(1_024 - longest.len()));
    assert_eq!(next(&longest, "2025-01-31T23:59:00Z"), "2025-02-01T00:05:00Z");
    assert_eq!(Cron::parse(&format!("{longest} "), b"").unwrap_err().kind, CronErrorKind::TooLong);
}

#[test]
fn errors_point_at_the_item_to_blame() {
    let error = Cron::parse("  0 9 1,40 * *", b"").unwrap_err();
    assert_eq!((error.field, error.place.clone()), (Some(Field::DayOfMonth), 8..10));
    assert_eq!(error.to_string(), "day of month: 40 is not between 1 and 31");
}

/// Any input is answered long before anyone could notice.
#[test]
fn impossible_patterns_are_refused_quickly() {
    let longest = format!("{}1 30 2 ?", "1-59/2,".repeat(144));
    assert!(longest.len() <= EXPRESSION_BYTES_MAX);
    let started = Instant::now();
    for text in ["0 0 30 2 *", "0 0 0 29 2 ? 2023", "* * * 31 2,4,6,9,11 ? *", longest.as_str()] {
        assert!(Cron::parse(text, b"").is_err(), "{text}");
    }
    let rare = cron("0 0 0 29 2 ? 2196");
    let zone = zone("America/New_York").unwrap();
    assert_eq!(rare.next(at("1970-01-01T00:00:00Z"), &zone, DstPolicy::default()), Some(at("2196-02-29T05:00:00Z")));
    assert!(started.elapsed().as_millis() < 200, "{:?}", started.elapsed());
}

#[test]
fn h_is_stable_spreads_and_stays_in_range() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200_u32 {
        let parsed = |text: &str| Cron::parse(text, &seed.to_le_bytes()).unwrap();
        assert_eq!(parsed("H H * * *"), parsed("h h * * *"));
        let minute = |text: &str| {
            let at = parsed(text).next(at("2024-12-31T23:59:59Z"), &TimeZone::UTC, DstPolicy::default()).unwrap();
            (at.as_second() / 60 % 60) as u32
        };
        seen.insert(minute("H * * * *"));
        assert!(minute("H/15 * * * *") < 15);
        assert!((10..20).contains(&minute("H(10-19) * * * *")));
        assert!(minute("H(0-29)/10 * * * *") < 10);
        let day = parsed("0 0 H * *");
        let year = (at("2025-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"));
        assert!(day.instants(year.0, year.1, &TimeZone::UTC, DstPolicy::default()).count() >= 11);
    }
    assert!(seen.len() > 50, "only {} minutes of 60 were used", seen.len());
    // Stored schedules fire at these minutes: the hash must never change.
    let frozen = Cron::parse("H H * * *", b"schedule").unwrap();
    let first = frozen.next(at("2025-01-01T00:00:00Z"), &TimeZone::UTC, DstPolicy::default()).unwrap();
    assert_eq!(first.to_string(), "2025-01-01T01:47:00Z");
}

#[test]
fn counts_by_block_equal_counts_by_instant() {
    let after = at("2025-03-08T17:23:45Z");
    let until = at("2025-11-03T09:12:13Z");
    for name in ["UTC", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Africa/Casablanca"] {
        let zone = zone(name).unwrap();
        for text in ["*/7 * * * *", "30 2,14 * * *", "0 0 1W * *", "15,45 1,2 * * SUN", "*/30 17 3-9 * * *"] {
            for fold in Fold::ALL {
                let policy = policy(Gap::Shift, fold);
                let cron = cron(text);
                let instants: Vec<_> = cron.instants(after, until, &zone, policy).collect();
                let blocks: Vec<_> = cron.blocks(after, until, &zone, policy).unwrap().collect();
                assert_eq!(blocks.iter().map(|block| block.count).sum::<u64>(), instants.len() as u64, "{text} {name}");
                let mut rest = &instants[..];
                for block in blocks {
                    let (head, tail) = rest.split_at(block.count as usize);
                    assert_eq!((head[0], head[head.len() - 1]), (block.first, block.last), "{text} {name}");
                    assert!(head.iter().all(|at| at.to_zoned(zone.clone()).date() == block.date));
                    rest = tail;
                }
            }
        }
    }
}

#[test]
fn notes_say_what_a_clock_change_did() {
    let zone = zone("America/New_York").unwrap();
    let note = |text: &str, policy, after| {
        let cron = cron(text);
        cron.instants(at(after), Timestamp::MAX, &zone, policy).next_noted().unwrap().1
    };
    let missing = jiff::civil::date(2025, 3, 9).at(2, 30, 0, 0);
    let spring = "2025-03-08T12:00:00Z";
    assert_eq!(note("30 2 * * *", DstPolicy::default(), spring), Some(DstNote::Shifted { from: missing }));
    assert_eq!(note("30 2 * * *", policy(Gap::Skip, Fold::First), spring), Some(DstNote::Skipped { missing }));
    assert_eq!(note("30 1 * * *", DstPolicy::default(), "2025-11-01T12:00:00Z"), Some(DstNote::FirstPass));
    assert_eq!(note("30 1 * * *", policy(Gap::Skip, Fold::Last), "2025-11-01T12:00:00Z"), Some(DstNote::SecondPass));
    assert_eq!(note("30 4 * * *", DstPolicy::default(), spring), None);
}

#[test]
fn the_shortest_interval_is_known() {
    for (text, seconds) in [
        ("* * * * *", Some(60)),
        ("* * * * * *", Some(1)),
        ("*/7 * * * *", Some(240)),
        ("0 0,23 * * MON", Some(23 * 3_600)),
        ("0 0,23 * * *", Some(3_600)),
        ("@every 90s", Some(90)),
        ("0 0 0 1 1 ? 2030", None),
    ] {
        assert_eq!(cron(text).shortest_interval(), seconds.map(Span::secs), "{text}");
    }
}

/// No text may panic or hang, whatever it is made of; what is accepted has a
/// sentence and an instant.
#[test]
fn random_text_is_answered() {
    const PIECES: [&str; 32] = [
        "*",
        "?",
        "0",
        "7",
        "59",
        "60",
        "31",
        "L",
        "LW",
        "W",
        "15W",
        "H",
        "H(",
        ")",
        "(0-29)",
        "/",
        "/15",
        "-",
        "-3",
        ",",
        "#",
        "#5",
        "MON",
        "fri",
        "JAN",
        "@",
        "@every ",
        " ",
        " ",
        "\t",
        "2199",
        "99999999999",
    ];
    const FIELDS: [&str; 20] = [
        "*", "*", "?", "0", "7", "*/5", "0/5", "1-5", "9-2", "5-1/2", "3,11", "H", "H/7", "H(1-5)", "L", "L-3", "15W",
        "MON", "5L", "2#3",
    ];
    let mut state: u64 = 1;
    let mut roll = |sides: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % sides
    };
    let zone = zone("America/New_York").unwrap();
    let mut accepted = 0;
    for round in 0..30_000 {
        let text: String = if round % 2 == 0 {
            (0..roll(14)).map(|_| PIECES[roll(PIECES.len())]).collect()
        } else {
            let mut field = || FIELDS[roll(FIELDS.len())];
            format!("{} {} {} {} {}", field(), field(), field(), field(), field())
        };
        if let Ok(cron) = Cron::parse(&text, b"") {
            accepted += 1;
            assert!(!explain(&text, b"").unwrap().is_empty(), "{text}");
            let first = cron.next(Timestamp::MIN, &zone, DstPolicy::default());
            assert!(first.is_some(), "{text}");
            assert_eq!(cron.next(Timestamp::MAX, &zone, DstPolicy::default()), None, "{text}");
        }
    }
    assert!(accepted > 100, "only {accepted} were accepted");
}
