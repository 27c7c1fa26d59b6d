//! Whatever the way to the other clock is like, its time is never guessed wrong.

use proptest::prelude::*;

use super::*;

const SECOND: i64 = 1_000_000;
/// What the other clock is ahead in the table.
const AHEAD: i64 = 7_000 * SECOND;

/// Microseconds there and back.
type Way = (i64, i64);

/// One question over a way of `up` and `down` microseconds.
fn asked(at: i64, ahead: i64, (up, down): Way) -> Sample {
    Sample { asked: at, heard: at + up + down, said: at + up + ahead }
}

#[test]
fn the_bounds_are_as_wide_as_the_way_and_the_tightest_of_several_hold() {
    // (what is asked, one way each second; how much too early and too late it may be at the last)
    let table: &[(&str, &[Way], (i64, i64))] = &[
        ("an even way", &[(5_000, 5_000)], (5_000, 5_001)),
        ("slow on the way there", &[(400_000, 1_000)], (1_000, 400_001)),
        ("slow on the way back", &[(1_000, 400_000)], (400_000, 1_001)),
        ("the slow halves of two are not the same", &[(1_000, 400_000), (400_000, 1_000)], (1_000, 201 + 1_001)),
        ("a short way long ago counts for less", &[(10, 10), (90_000, 90_000), (90_000, 90_000)], (436, 437)),
        ("a hung question does no harm", &[(1_000, 1_000), (30 * SECOND, 30 * SECOND)], (13_000, 13_001)),
    ];
    for (what, ways, (behind, ahead)) in table {
        let mut offset = Offset::new(DRIFT_PPM);
        let mut heard = 0;
        for (n, way) in ways.iter().enumerate() {
            let sample = asked(n as i64 * SECOND, AHEAD, *way);
            assert!(!offset.take(sample), "{what}: nothing was set");
            heard = sample.heard;
        }
        let bounds = offset.bounds(heard).unwrap();
        let (early, late) = (AHEAD - bounds.least, bounds.most - AHEAD);
        assert!((early - behind).abs() <= 250 && (late - ahead).abs() <= 250, "{what}: {early} and {late}");
        assert!(bounds.least <= AHEAD && AHEAD <= bounds.most, "{what}: {bounds:?}");
    }
}

/// A clock that was set is followed by the next comparison, whichever way and how far.
#[test]
fn a_step_is_taken_over_at_once() {
    for step in [1, 60, 300, 3_600, 86_400].into_iter().flat_map(|s| [s * SECOND, -s * SECOND]) {
        let mut offset = Offset::new(DRIFT_PPM);
        for n in 0..20 {
            offset.take(asked(n * SECOND, AHEAD, (2_000, 2_000)));
        }
        assert!(offset.take(asked(20 * SECOND, AHEAD + step, (2_000, 2_000))), "{step}");
        let bounds = offset.bounds(20 * SECOND + 4_000).unwrap();
        assert_eq!((bounds.least, bounds.most), (AHEAD + step - 2_000, AHEAD + step + 2_002), "{step}");
        assert!(offset.take(asked(21 * SECOND, AHEAD, (2_000, 2_000))), "{step} and back");
    }
}

/// A step that hides between wide bounds must not make anybody early for long.
#[test]
fn a_step_that_cannot_be_seen_is_forgotten_with_the_window() {
    let mut offset = Offset::new(DRIFT_PPM);
    for n in 0..20 {
        offset.take(asked(n * SECOND, AHEAD, (400_000, 1_000)));
    }
    let stepped = AHEAD - 300_000;
    for n in 20..20 + WINDOW as i64 {
        assert!(!offset.take(asked(n * SECOND, stepped, (400_000, 1_000))));
    }
    let bounds = offset.bounds(28 * SECOND).unwrap();
    assert!(bounds.least <= stepped && stepped <= bounds.most, "{bounds:?}");
}

proptest! {
    /// Never early: whatever the ways are like and however the two drift apart, the
    /// other clock is within the bounds, between comparisons too.
    #[test]
    fn the_other_clock_is_always_within_the_bounds(
        ahead in -4_000_000_000_000_000_i64..4_000_000_000_000_000,
        drift in -DRIFT_PPM..=DRIFT_PPM,
        ways in proptest::collection::vec((0_i64..5 * SECOND, 0_i64..5 * SECOND, 1_i64..20 * SECOND), 1..40),
        later in 0_i64..3_600 * SECOND,
    ) {
        // The other clock as a function of our own, cut to whole microseconds.
        let theirs = |own: i64| own + ahead + (own * drift).div_euclid(1_000_000);
        let mut offset = Offset::new(DRIFT_PPM);
        let mut own = 0;
        for (up, down, pause) in ways {
            let sample = Sample { asked: own, heard: own + up + down, said: theirs(own + up) };
            prop_assert!(!offset.take(sample), "nothing was set");
            for at in [sample.heard, sample.heard + pause / 2, sample.heard + pause, sample.heard + later] {
                let bounds = offset.bounds(at).unwrap();
                prop_assert!(at + bounds.least <= theirs(at), "early by {}", at + bounds.least - theirs(at));
                prop_assert!(theirs(at) <= at + bounds.most, "late by {}", theirs(at) - at - bounds.most);
                prop_assert!(bounds.width() >= 0);
            }
            own = sample.heard + pause;
        }
    }

    /// The bounds are at most as wide as the shortest round trip in the window, and
    /// what may have drifted since.
    #[test]
    fn the_shortest_round_trip_bounds_the_error(
        ways in proptest::collection::vec((0_i64..SECOND, 0_i64..SECOND), 1..WINDOW),
    ) {
        let mut offset = Offset::new(DRIFT_PPM);
        let mut own = 0;
        for way in &ways {
            let sample = asked(own, AHEAD, *way);
            offset.take(sample);
            own = sample.heard + SECOND;
        }
        let shortest = ways.iter().map(|(up, down)| up + down).min().unwrap();
        prop_assert!(offset.bounds(own).unwrap().width() <= shortest + 2 * (own * DRIFT_PPM / 1_000_000 + 2));
    }
}

/// What is old by a clock that was set ahead is not old for an hour, and not once the
/// clock was put right.
#[test]
fn by_as_much_as_a_clock_was_set_ahead_things_are_kept_for_longer() {
    let (hour, day) = (Span::secs(3_600), Span::secs(86_400));
    let mut ahead = Ahead::default();
    // (seconds that pass, by how many the clock is set meanwhile, how much longer things are kept)
    let table = [
        (600, 0, 0),
        (60, 0, 0),
        (60, 86_400, 86_400),
        (60, 0, 86_400),
        (60, -86_400, 0),
        (60, 7_200, 7_200),
        (60, 7_200, 14_400),
        (60, -7_200, 7_200),
        (3_400, 0, 7_200),
        (140, 0, 0),
        (60, -7_200, 0),
        (0, 0, 0),
    ];
    let (mut uptime, mut now) = (Duration::from_secs(7), Timestamp::UNIX_EPOCH);
    assert_eq!(ahead.kept(day), Span::LONGEST);
    ahead.read(uptime, now, hour);
    for passed in [1, 598] {
        assert_eq!(ahead.kept(day), Span::LONGEST, "who has just come cannot know whether the clock is right");
        (uptime, now) = (uptime + Duration::from_secs(passed), now + SignedDuration::from_secs(passed as i64));
        ahead.read(uptime, now, hour);
    }
    assert_eq!(ahead.kept(day), Span::LONGEST);
    for (n, (passed, set_by, longer)) in table.into_iter().enumerate() {
        uptime += Duration::from_secs(passed);
        now += SignedDuration::from_secs(passed as i64 + set_by);
        ahead.read(uptime, now, hour);
        assert_eq!(ahead.kept(day), Span::secs(86_400 + longer), "reading {n}");
    }
}
