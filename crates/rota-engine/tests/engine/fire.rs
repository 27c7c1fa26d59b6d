//! Schedules, from due to fired.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    fire::SkipReason,
    ids::ScheduleId,
    job::JobDocument,
    run::{Status, Verdict},
    store::{Expect, JobPut, JobSaved, Pause, PauseTarget, Store, StoreError, Write},
};
use rota_engine::{
    Event,
    definitions::{self, Saved},
    events::Finding,
    stages::Stage,
};
use serde_json::{Value, json};

use crate::{
    bed::*,
    faulty::{Fate, Faulty, Kind, Line, Parcel, Tap, Untapped, wait},
};

fn every(name: &str, handler: &str, span: &str, extra: Value) -> Value {
    let schedule = with(json!({ "name": "beat", "every": span, "anchor": at(0) }), extra);
    with(job(name, handler), json!({ "schedules": [schedule] }))
}

fn pause_of(bed: &Bed, until: Option<i64>) -> Pause {
    Pause { since: bed.now(), until: until.map(at), ..Pause::default() }
}

#[tokio::test]
async fn a_schedule_fires_at_its_instant_and_not_before() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    bed.save(&node.node, every("tick", "noop", "10s", json!({}))).await;
    let report = node.fire().await;
    assert_eq!((report.done, report.next_at), (0, Some(at(1_001))), "the next look comes first");
    node.beat_for(&bed, 9_998).await;
    assert_eq!(node.fire().await.next_at, Some(at(10_000)), "it wakes at the instant itself");
    node.beat_for(&bed, 1).await;
    assert_eq!(node.fire().await.done, 1);
    assert_eq!(node.work().await, 1, "the run was handed over in memory");
    assert_eq!(bed.planned().await, [10_000]);
    assert_eq!((node.node.stats.lateness.count(), node.node.stats.lateness.quantile_micros(1.0)), (1, 0));
}

/// A payload that speaks of its instant is filled in when that instant fires,
/// in the schedule's own zone; a caller's braces are only text.
#[tokio::test]
async fn a_schedules_payload_is_filled_in_for_its_instant() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    let schedule = json!({
        "timezone": "Pacific/Kiritimati",
        "payload": { "day": "{{ schedule.planned_at | date }}", "plain": 7, "by": "{{ schedule.name }}" },
    });
    bed.save(&node.node, every("tick", "noop", "10s", schedule)).await;
    node.beat_for(&bed, 9_999).await;
    node.fire().await;
    let run = bed.runs().await.remove(0).run;
    let payload: Value = serde_json::from_str(run.payload.as_deref().unwrap()).unwrap();
    assert_eq!(payload, json!({ "day": "2026-01-06", "plain": 7, "by": "beat" }));
}

/// A run whose payload or key cannot be told must not be executed on something
/// else, or without its limit; nor may its instant be lost.
#[tokio::test]
async fn an_instant_whose_payload_or_key_cannot_be_made_fails_on_record() {
    for (rules, schedule, named) in [
        (json!({}), json!({ "payload": { "a": "{{ schedule.nobody }}" } }), "schedule.nobody"),
        (json!({ "concurrency": { "limit": 1, "key": "{{ payload.nobody }}" } }), json!({}), "payload.nobody"),
    ] {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        bed.go(1);
        bed.save(&node.node, with(every("tick", "noop", "10s", schedule), rules)).await;
        node.beat_for(&bed, 9_999).await;
        node.fire().await;
        node.work().await;
        let record = bed.runs().await.remove(0);
        assert_eq!(record.run.state.status(), ended(Verdict::Failed));
        let failure = record.failure.unwrap();
        assert_eq!(failure.kind, rota_core::job::failure::ErrorKind::InvalidInput);
        assert!(failure.message.contains(named), "{}", failure.message);
        assert_eq!((bed.planned().await, bed.work.count()), (vec![10_000], 0));
    }
}

/// Two nodes that overlap for a moment must make each run once.
#[tokio::test]
async fn two_nodes_that_fire_the_same_instant_make_one_run() {
    let bed = Bed::new().await;
    let mut first = bed.node().await;
    bed.go(1);
    bed.save(&first.node, every("tick", "noop", "10s", json!({}))).await;
    let mut second = bed.node().await;
    let table = first.node.territory.table();
    let stolen: Vec<_> =
        rota_core::ids::Partition::all().filter_map(|part| Some((part, table[usize::from(part.0)]?.epoch))).collect();
    second.node.territory.take(&stolen, bed.now());
    first.fire().await;
    second.fire().await;
    first.beat_for(&bed, 9_999).await;
    let done = first.fire().await.done + second.fire().await.done;
    assert_eq!((done, bed.planned().await), (1, vec![10_000]));
}

/// A save by a node whose clock is behind must not plan again what one with a
/// clock ahead has fired.
#[tokio::test]
async fn an_edit_by_a_slow_clock_fires_no_instant_twice() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    bed.save(&node.node, every("tick", "noop", "10s", json!({ "overlap": "allow" }))).await;
    node.beat_for(&bed, 10_000).await;
    node.fire().await;
    assert_eq!(bed.planned().await, [10_000]);
    let edited = every("tick", "noop", "10s", json!({ "overlap": "allow", "payload": { "edition": 2 } }));
    let document = rota_core::job::JobDocument::from_value(edited).unwrap();
    let expect = rota_core::store::Expect::Anything;
    definitions::save_job(&node.node, bed.tenant, &document, None, expect, &node.node.write(at(9_500))).await.unwrap();
    node.fire.doubt();
    node.fire().await;
    assert_eq!(bed.planned().await, [10_000]);
    node.beat_for(&bed, 10_000).await;
    node.fire().await;
    assert_eq!(bed.planned().await, [10_000, 20_000]);
}

/// An owner that fires what it remembers would fire the old time after the edit
/// was acknowledged.
#[tokio::test]
async fn a_schedule_edited_inside_the_horizon_fires_by_its_new_time() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    bed.save(&node.node, every("tick", "noop", "10s", json!({}))).await;
    node.fire().await;
    bed.go(500);
    let saved = bed.save(&node.node, every("tick", "noop", "15s", json!({}))).await;
    node.beat_for(&bed, 9_499).await;
    node.fire().await;
    node.fire().await;
    assert_eq!(bed.planned().await, [0_i64; 0], "nothing fires by the old definition");
    node.beat_for(&bed, 5_000).await;
    node.fire().await;
    assert_eq!(bed.planned().await, [15_000]);
    assert_eq!(bed.skips(bed.schedule(saved, "beat").await).await, []);
}

#[tokio::test]
async fn a_schedule_moved_forward_is_found_by_the_next_look() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    bed.save(&node.node, every("tick", "noop", "30s", json!({}))).await;
    node.fire().await;
    bed.save(&node.node, every("tick", "noop", "2s", json!({}))).await;
    node.beat_for(&bed, 2_000).await;
    assert_eq!(node.fire().await.done, 1);
    assert_eq!(bed.planned().await, [2_000]);
}

/// A payload edit leaves the cursor alone; the run must be of the new version.
#[tokio::test]
async fn a_job_edited_before_the_instant_fires_its_new_version() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    bed.save(&node.node, every("tick", "noop", "10s", json!({}))).await;
    node.beat_for(&bed, 9_999).await;
    node.fire().await;
    node.work().await;
    let edited = with(every("tick", "noop", "10s", json!({})), json!({ "input": { "default": { "v": 2 } } }));
    bed.save(&node.node, edited).await;
    node.beat_for(&bed, 10_000).await;
    node.fire().await;
    node.fire().await;
    node.work().await;
    let versions: Vec<i32> = bed.runs().await.iter().map(|record| record.run.version).collect();
    assert_eq!(versions, [1, 2]);
    assert_eq!(bed.runs().await[1].output.as_deref(), Some("{\"seen\":{\"v\":2}}"));
}

#[tokio::test]
async fn a_deleted_schedule_fires_nothing_that_memory_still_holds() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    bed.save(&node.node, every("tick", "noop", "10s", json!({}))).await;
    node.fire().await;
    bed.save(&node.node, job("tick", "noop")).await;
    node.beat_for(&bed, 9_999).await;
    node.fire().await;
    node.fire().await;
    assert_eq!(bed.planned().await, [0_i64; 0]);
}

/// A pause at each level holds the schedule; resuming records what it covered
/// and fires from then on.
#[tokio::test]
async fn a_pause_at_every_level_holds_a_schedule_until_it_is_lifted() {
    for level in 0..4 {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        bed.go(1);
        let saved = bed.save(&node.node, every("tick", "noop", "10s", json!({}))).await;
        let schedule = bed.schedule(saved, "beat").await;
        node.fire().await;
        let target = target_of(&bed, level, saved, schedule);
        let write = node.node.write(bed.now());
        let targets = [target.clone()];
        assert_eq!(bed.store.set_pauses(&write, &targets, Some(&pause_of(&bed, None))).await.unwrap(), [true]);
        for _ in 0..3 {
            node.beat_for(&bed, 10_000).await;
            node.fire().await;
            node.fire().await;
        }
        assert_eq!(bed.planned().await, [0_i64; 0], "{target:?}");
        bed.go(1);
        assert_eq!(node.handle().resume(&targets).await.unwrap(), [true]);
        assert_eq!(node.handle().resume(&targets).await.unwrap(), [false], "{target:?}: once");
        node.beat_for(&bed, 1_000).await;
        node.look().await;
        assert_eq!(node.scan().await.done, 0, "{target:?}: to wake what slept is nothing to be told of");
        node.fire().await;
        node.fire().await;
        assert_eq!(bed.planned().await, [0_i64; 0], "{target:?}: what the pause covered is not caught up");
        let skips = bed.skips(schedule).await;
        assert_eq!(skips.len(), 1, "{target:?}: {skips:?}");
        assert_eq!((skips[0].range.reason, skips[0].range.count), (SkipReason::Paused, 3), "{target:?}");
        node.beat_for(&bed, 8_999).await;
        node.fire().await;
        assert_eq!(bed.planned().await, [40_000], "{target:?}");
    }
}

/// Whoever edits a job while it is paused must still find that the pause held its
/// instants, and not the edit.
#[tokio::test]
async fn instants_of_a_pause_end_as_paused_whatever_is_edited_later() {
    for level in 0..4 {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        bed.go(1);
        let saved = bed.save(&node.node, every("tick", "noop", "10s", json!({}))).await;
        let schedule = bed.schedule(saved, "beat").await;
        let targets = [target_of(&bed, level, saved, schedule)];
        node.beat_for(&bed, 14_999).await;
        let write = node.node.write(bed.now());
        assert_eq!(bed.store.set_pauses(&write, &targets, Some(&pause_of(&bed, None))).await.unwrap(), [true]);
        node.beat_for(&bed, 30_000).await;
        bed.save(&node.node, every("tick", "noop", "20s", json!({}))).await;
        let skips: Vec<_> =
            bed.skips(schedule).await.iter().map(|skip| (skip.range.reason, skip.range.count)).collect();
        assert_eq!(skips, [(SkipReason::Edited, 1), (SkipReason::Paused, 3)], "{targets:?}");
    }
}

/// A schedule, its job, its queue or its tenant.
fn target_of(bed: &Bed, level: usize, saved: Saved, schedule: ScheduleId) -> PauseTarget {
    match level {
        0 => PauseTarget::Schedule(schedule),
        1 => PauseTarget::Job(saved.job),
        2 => PauseTarget::Queue(bed.tenant, "default".into()),
        _ => PauseTarget::Tenant(bed.tenant),
    }
}

/// Saved with `enabled: false` and a few seconds later with `true`: the job's schedules
/// go on from there, and nothing that lay between is made up for.
#[tokio::test]
async fn a_job_that_is_switched_off_and_on_fires_again() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    let document = |enabled: bool| {
        with(every("tick", "noop", "10s", json!({ "overlap": "allow" })), json!({ "enabled": enabled }))
    };
    let saved = bed.save(&node.node, document(true)).await;
    let schedule = bed.schedule(saved, "beat").await;
    for round in 0..3 {
        let off_at = bed.now();
        bed.save(&node.node, document(false)).await;
        for _ in 0..4 {
            node.beat_for(&bed, 10_000).await;
            node.fire().await;
            node.fire().await;
        }
        assert_eq!(bed.planned().await.len(), round, "off since {off_at}");
        assert_eq!(bed.store.cursors(&[schedule]).await.unwrap(), [None], "nothing sleeps until somebody wakes it");
        assert_eq!(node.scan().await.done, 0);
        bed.save(&node.node, document(true)).await;
        node.beat_for(&bed, 9_999).await;
        node.fire().await;
        node.fire().await;
        assert_eq!(bed.planned().await.len(), round + 1, "on again");
        bed.go(1);
    }
    let skips = bed.skips(schedule).await;
    assert!(skips.iter().all(|skip| skip.range.reason == SkipReason::Edited), "{skips:?}");
}

/// What a job that is off owed when it was switched off has ended, whatever a schedule
/// of it says, and a schedule that is off stays so when its job is on.
#[tokio::test]
async fn a_schedule_fires_only_where_it_and_its_job_are_on() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    let document = |job: bool, own: bool| {
        let schedule = json!({ "name": "beat", "every": "10s", "overlap": "allow", "enabled": own });
        with(super::bed::job("tick", "noop"), json!({ "enabled": job, "schedules": [schedule] }))
    };
    let mut fired = 0;
    for (job, own) in [(false, true), (true, false), (false, false), (true, true), (false, true), (true, true)] {
        bed.save(&node.node, document(job, own)).await;
        node.beat_for(&bed, 10_000).await;
        node.fire().await;
        node.fire().await;
        fired += usize::from(job && own);
        assert_eq!(bed.planned().await.len(), fired, "job {job}, schedule {own}");
        assert_eq!(node.scan().await.done, 0);
    }
}

/// A pause that is given an end, or an earlier one, ends then, and has covered what it
/// covered before.
#[tokio::test]
async fn a_pause_that_is_shortened_ends_when_it_says() {
    for (level, first) in [(0, None), (1, None), (2, None), (3, None), (0, Some(900_000)), (3, Some(900_000))] {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        bed.go(1);
        let saved = bed.save(&node.node, every("tick", "noop", "10s", json!({ "overlap": "allow" }))).await;
        let schedule = bed.schedule(saved, "beat").await;
        let targets = [target_of(&bed, level, saved, schedule)];
        let handle = node.handle();
        assert_eq!(handle.pause(&targets, &pause_of(&bed, first)).await.unwrap(), [true]);
        for _ in 0..2 {
            node.beat_for(&bed, 10_000).await;
            node.fire().await;
            node.fire().await;
        }
        assert_eq!(handle.pause(&targets, &pause_of(&bed, Some(45_000))).await.unwrap(), [true]);
        for _ in 0..40 {
            node.beat_for(&bed, 1_000).await;
            node.look().await;
            assert_eq!(node.scan().await.done, 0, "{targets:?}");
            node.fire().await;
            node.fire().await;
        }
        assert_eq!(bed.planned().await, [50_000, 60_000], "{targets:?}");
        let skips = bed.skips(schedule).await;
        let covered: Vec<_> = skips.iter().map(|skip| (skip.range.reason, skip.range.count)).collect();
        assert_eq!(covered, [(SkipReason::Paused, 4)], "{targets:?}");
    }
}

/// A node that lifts a pause and dies at once: whoever takes over wakes what it held.
#[tokio::test]
async fn schedules_wake_although_the_one_who_lifted_their_pause_has_died() {
    for level in 0..4 {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        bed.go(1);
        let saved = bed.save(&node.node, every("tick", "noop", "10s", json!({}))).await;
        let schedule = bed.schedule(saved, "beat").await;
        let targets = [target_of(&bed, level, saved, schedule)];
        node.handle().pause(&targets, &pause_of(&bed, None)).await.unwrap();
        node.beat_for(&bed, 10_000).await;
        node.fire().await;
        node.fire().await;
        let asleep = bed.store.cursors(&[schedule]).await.unwrap()[0].unwrap().cursor;
        assert!(Span::secs(3_600).before(asleep.due_at) <= bed.now(), "no longer than an hour: {asleep:?}");
        // As the death leaves it, between the one write and anything else.
        bed.store.set_pauses(&node.node.write(bed.now()), &targets, None).await.unwrap();
        drop(node);
        bed.go(5_000);
        let mut heir = bed.node().await;
        heir.look().await;
        heir.scan().await;
        heir.fire().await;
        heir.beat_for(&bed, 5_000).await;
        heir.fire().await;
        heir.fire().await;
        assert_eq!(bed.planned().await, [20_000], "{targets:?}");
    }
}

/// A cursor that sleeps for no reason is found by the scanner, woken, and reported.
#[tokio::test]
async fn the_scanner_wakes_what_sleeps_for_no_reason() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    let saved = bed.save(&node.node, every("tick", "noop", "10s", json!({}))).await;
    let schedule = bed.schedule(saved, "beat").await;
    let due = bed.store.cursors(&[schedule]).await.unwrap()[0].unwrap();
    bed.store.wake_at(&node.node.write(bed.now()), &[(due, Some(Timestamp::MAX))]).await.unwrap();
    let mut events = node.node.events.subscribe();
    node.beat_for(&bed, 20_001).await;
    assert_eq!(node.scan().await.done, 1);
    assert_eq!(events.try_recv().unwrap(), Event::Found(Finding::ScheduleAsleep { schedule }));
    node.fire().await;
    node.fire().await;
    assert_eq!(bed.planned().await, [20_000]);
    assert_eq!(node.scan().await.done, 0);
}

#[tokio::test]
async fn a_pause_with_an_end_lifts_by_itself() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    bed.save(&node.node, every("tick", "noop", "10s", json!({}))).await;
    let pause = pause_of(&bed, Some(25_000));
    let targets = [PauseTarget::Tenant(bed.tenant)];
    bed.store.set_pauses(&node.node.write(bed.now()), &targets, Some(&pause)).await.unwrap();
    for _ in 0..31 {
        node.beat_for(&bed, 1_000).await;
        node.fire().await;
        node.fire().await;
    }
    assert_eq!(bed.planned().await, [30_000]);
}

/// A paused queue holds what is queued, and lets it go afterwards.
#[tokio::test]
async fn a_paused_queue_or_tenant_starts_nothing_until_it_is_lifted() {
    for tenant_wide in [false, true] {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        bed.save(&node.node, job("hello", "noop")).await;
        let queue = PauseTarget::Queue(bed.tenant, "default".into());
        let target = if tenant_wide { PauseTarget::Tenant(bed.tenant) } else { queue };
        let targets = [target];
        bed.store.set_pauses(&node.node.write(bed.now()), &targets, Some(&pause_of(&bed, None))).await.unwrap();
        node.look().await;
        let id = node.enqueue(&bed, "hello").await;
        assert_eq!(node.work().await, 0);
        bed.go(1);
        node.handle().resume(&targets).await.unwrap();
        node.look().await;
        assert_eq!(node.work().await, 1);
        assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
    }
}

/// A job that is taken out of a paused queue must fire at its next instant, and what the
/// pause held is on record as paused.
#[tokio::test]
async fn a_job_that_leaves_a_paused_queue_fires_again() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let beat = every("tick", "noop", "1s", json!({ "overlap": "allow" }));
    let document = |queue: &str| with(beat.clone(), json!({ "queue": queue }));
    let saved = bed.save(&node.node, document("held")).await;
    let schedule = bed.schedule(saved, "beat").await;
    let held = [PauseTarget::Queue(bed.tenant, "held".into())];
    bed.store.set_pauses(&node.node.write(bed.now()), &held, Some(&pause_of(&bed, None))).await.unwrap();
    node.look().await;
    for _ in 0..5 {
        node.beat_for(&bed, 1_000).await;
        node.fire().await;
    }
    assert_eq!(bed.runs().await.len(), 0);
    bed.save(&node.node, document("default")).await;
    for _ in 0..2 {
        node.beat_for(&bed, 1_000).await;
        node.fire().await;
    }
    assert_eq!(bed.runs().await.len(), 2, "one for each second since");
    let skips = bed.skips(schedule).await;
    let skips: Vec<_> = skips.iter().map(|skip| (skip.range.reason, skip.range.count)).collect();
    assert_eq!(skips, [(SkipReason::Paused, 6)]);
}

#[tokio::test]
async fn overlap_policies_are_obeyed() {
    // What becomes of three instants while the first run goes on.
    for (overlap, live, skipped) in
        [("skip", 1, 2), ("queue_one", 2, 1), ("queue_all", 3, 0), ("allow", 3, 0), ("cancel_running", 2, 0)]
    {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        bed.go(1);
        let saved = bed.save(&node.node, every("tick", "wait", "10s", json!({ "overlap": overlap }))).await;
        let schedule = bed.schedule(saved, "beat").await;
        for instant in 1..=3_i64 {
            while bed.now() < at(instant * 10_000) {
                node.beat_for(&bed, 1_000).await;
            }
            node.fire().await;
            node.look().await;
            node.dispatch().await;
            tokio::task::yield_now().await;
            if overlap == "cancel_running" && instant > 1 {
                node.drain_cancelled().await;
            }
        }
        let runs = bed.runs().await;
        let alive = runs.iter().filter(|record| !matches!(record.run.state.status(), Status::Ended(_))).count();
        let skips: u64 = bed.skips(schedule).await.iter().map(|skip| skip.range.count).sum();
        let live = if overlap == "cancel_running" { 1 } else { live };
        assert_eq!((alive, skips), (live, skipped), "{overlap}: {runs:?}");
        if overlap == "cancel_running" {
            let cancelled = runs.iter().filter(|record| record.run.state.status() == ended(Verdict::Cancelled)).count();
            assert_eq!(cancelled, 2);
        }
    }
}

/// A run that waits behind another must start when that one has ended.
#[tokio::test]
async fn a_run_queued_behind_another_starts_when_it_ends() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    bed.save(&node.node, every("tick", "wait", "10s", json!({ "overlap": "queue_one", "ends_at": at(20_000) }))).await;
    for _ in 0..2 {
        node.beat_for(&bed, 10_000).await;
        node.fire().await;
        node.dispatch().await;
        bed.work.wait_for_going(1).await;
    }
    assert_eq!(bed.work.count(), 1);
    bed.work.open();
    node.drain().await;
    node.settle().await;
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    assert_eq!(bed.work.count(), 2);
    bed.work.open();
    node.drain().await;
    node.settle().await;
    assert!(bed.runs().await.iter().all(|record| record.run.state.status() == ended(Verdict::Succeeded)));
}

/// A day of downtime must not make a day's worth of runs.
#[tokio::test]
async fn catch_up_fires_what_its_mode_says() {
    for (mode, fired, skipped) in [("latest", 1, 1_439), ("none", 1, 1_439), ("all", 1_440, 0)] {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        bed.go(1);
        let rules = json!({ "catch_up": { "mode": mode, "window": "2d" }, "overlap": "allow" });
        let saved = bed.save(&node.node, every("tick", "noop", "1m", rules)).await;
        let schedule = bed.schedule(saved, "beat").await;
        bed.go(86_400_000);
        for _ in 0..5 {
            bed.go(1_000);
            node.lead().await;
            node.fire().await;
            node.fire().await;
        }
        let skips: u64 = bed.skips(schedule).await.iter().map(|skip| skip.range.count).sum();
        assert_eq!((bed.planned().await.len(), skips), (fired, skipped), "{mode}");
    }
}

/// "The next one is made by the last one" is how schedules silently die.
#[tokio::test]
async fn an_after_finish_schedule_is_armed_by_the_end_of_its_run_however_it_ends() {
    for handler in ["noop", "refuse"] {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        let schedule = json!({ "name": "beat", "after_finish": "5s" });
        bed.save(&node.node, with(job("tick", handler), json!({ "schedules": [schedule] }))).await;
        for _ in 0..3 {
            node.fire().await;
            assert_eq!(node.work().await, 1, "{handler}");
            node.fire.doubt();
            node.beat_for(&bed, 5_000).await;
        }
        assert_eq!(bed.planned().await, [0, 5_000, 10_000], "{handler}");
    }
}

/// Ten thousand at once are fired in batches, each once.
#[tokio::test]
async fn many_schedules_of_one_instant_all_fire_once() {
    let bed = Bed::new().await;
    let options = rota_engine::Options { fire_batch: 100, cursors_max: 300, ..rota_engine::Options::default() };
    let mut node = bed.node_with(options).await;
    bed.go(1);
    let schedules: Vec<Value> = (0..1_000)
        .map(|n| json!({ "name": format!("beat-{n}"), "every": "10s", "anchor": at(0), "overlap": "allow" }))
        .collect();
    bed.save(&node.node, with(job("tick", "noop"), json!({ "schedules": schedules[..100] }))).await;
    for chunk in 1..10 {
        let name = format!("tick-{chunk}");
        let some = &schedules[chunk * 100..(chunk + 1) * 100];
        bed.save(&node.node, with(job(&name, "noop"), json!({ "schedules": some }))).await;
    }
    node.beat_for(&bed, 9_999).await;
    let mut passes = 0;
    while node.fire().await.more {
        passes += 1;
        assert!(passes < 50, "it comes to an end");
    }
    let planned = bed.planned().await;
    assert!(planned.len() == 1_000 && planned.iter().all(|at| *at == 10_000), "{} fired", planned.len());
}

/// The first write of fires is not answered before six have come, unless nobody sends
/// more of them.
#[derive(Default)]
struct FirstIsSlow {
    fires: AtomicUsize,
    polls: AtomicUsize,
}

impl Line for FirstIsSlow {
    fn fate(&self, what: &'static str, _: Kind) -> Fate {
        let first = what == "fire" && self.fires.fetch_add(1, Ordering::SeqCst) == 0;
        if first { Fate::Late { arrives_at: None, answered_at: Some(Timestamp::MAX) } } else { Fate::Through }
    }

    fn post(&self, _: Timestamp, parcel: Parcel) {
        parcel();
    }

    fn has_come(&self, _: Timestamp) -> bool {
        self.polls.fetch_add(1, Ordering::SeqCst) > 1_000 || self.fires.load(Ordering::SeqCst) >= 6
    }
}

/// While one batch of fires is slow the others go on: no instant is late because of
/// a neighbour's write.
#[tokio::test]
async fn a_slow_write_holds_up_no_other_batch() {
    let mut bed = Bed::new().await;
    let line = Arc::new(FirstIsSlow::default());
    let (inner, way) = (Arc::clone(&bed.faults.inner), Arc::clone(&line) as Arc<dyn Line>);
    bed.store = Arc::new(Faulty::over(inner, way, Arc::new(Untapped)));
    let options = rota_engine::Options { fire_batch: 1, ..rota_engine::Options::default() };
    let mut node = bed.node_with(options).await;
    bed.go(1);
    let schedules: Vec<Value> =
        (0..6).map(|n| json!({ "name": format!("beat-{n}"), "every": "10s", "anchor": at(0) })).collect();
    bed.save(&node.node, with(job("tick", "noop"), json!({ "schedules": schedules }))).await;
    node.beat_for(&bed, 9_999).await;
    node.fire().await;
    assert_eq!(bed.planned().await, [10_000; 6]);
    assert!(line.polls.load(Ordering::SeqCst) < 1_000, "five were written while the first was on its way");
}

/// A store whose busy schedules fire again and again while several jobs are saved.
struct Restless;

impl Tap for Restless {
    fn put_jobs(&self, store: &dyn Store, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
        if jobs.len() > 1 && jobs.iter().any(|job| job.name.starts_with("busy")) {
            return Err(StoreError::Moved { what: "save jobs" });
        }
        wait(store.put_jobs(write, jobs))
    }
}

/// A bulk save is not given up because its schedules never stand still together,
/// and new jobs may still start after each other whatever their order.
#[tokio::test]
async fn jobs_whose_schedules_fire_all_the_time_are_saved_one_by_one() {
    let mut bed = Bed::new().await;
    bed.store = Arc::new(Faulty::tapped(Arc::clone(&bed.faults.inner), Arc::new(Restless)));
    let node = bed.node().await;
    for name in ["busy-a", "busy-b"] {
        bed.save(&node.node, every(name, "noop", "1s", json!({}))).await;
    }
    let documents = [
        every("busy-a", "noop", "2s", json!({})),
        with(job("second", "noop"), json!({ "triggers": { "after": { "jobs": ["first"], "match": "any" } } })),
        every("busy-b", "noop", "1s", json!({})),
        job("first", "noop"),
        with(job("lost", "noop"), json!({ "triggers": { "after": { "jobs": ["nobody"], "match": "any" } } })),
    ];
    let documents = documents.map(|document| JobDocument::from_value(document).unwrap());
    let documents: Vec<&JobDocument> = documents.iter().collect();
    let write = node.node.write(bed.now());
    let saved =
        definitions::save_jobs(&node.node, bed.tenant, &documents, None, Expect::Anything, &write).await.unwrap();
    let told: Vec<_> = saved.iter().map(|one| one.as_ref().ok().map(|saved| (saved.version, saved.changed))).collect();
    assert_eq!(told, [Some((2, true)), Some((1, true)), Some((1, false)), Some((1, true)), None]);
}

/// Whoever deletes a job while its schedule comes due has done nothing wrong, and nobody
/// is told of a schedule that is broken.
#[tokio::test]
async fn a_job_that_is_deleted_as_its_schedule_comes_due_is_no_finding() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let schedules = json!([{ "name": "every", "every": "10s", "anchor": at(5) }]);
    let saved = bed.save(&node.node, with(job("tick", "noop"), json!({ "schedules": schedules }))).await;
    node.fire().await;
    let mut news = node.handle().subscribe();
    bed.go(10_500);
    node.lead().await;
    node.handle().delete_job(&deletion(saved.job)).await.unwrap();
    node.fire().await;
    node.fire().await;
    while let Ok(event) = news.try_recv() {
        assert!(!matches!(event, rota_engine::Event::Found(_)), "{event:?}");
    }
    let runs = bed.runs().await;
    assert!(runs.is_empty(), "{runs:#?}");
}
