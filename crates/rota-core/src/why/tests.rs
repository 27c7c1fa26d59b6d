//! One test per reason, and that the first one is what holds now.

use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::{
    ids::{JobId, LaneId, Partition, RunId, ScheduleId, TenantId},
    job::failure::{ErrorKind, Failure},
    order::Priority,
    quota::Delay,
    run::{CancelRequest, Fence, Hold, Labels, Redrive, Source, Trigger},
    schedule::ScheduleSpec,
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_760_000_000 + seconds).unwrap()
}

fn run_in(state: RunState) -> Run {
    Run {
        id: RunId(Uuid::from_u128(1)),
        tenant: TenantId(1),
        job: JobId(1),
        version: 1,
        lane: LaneId(1),
        part: Partition(0),
        priority: Priority::default(),
        created_at: at(-60),
        ready_at: at(30),
        expires_at: None,
        deadline_at: None,
        trigger: Trigger::plain(Source::Api),
        labels: Labels::new(),
        payload: None,
        slot: None,
        parent: None,
        attempts_used: 0,
        losses: 0,
        started: false,
        first_started_at: None,
        fence: Fence(1),
        cancel: None,
        redrive: None,
        state,
    }
}

/// The reasons of a run in `state`, with nothing else in its way.
fn plain(state: RunState) -> Vec<Reason> {
    asked(&run_in(state), |facts| facts)
}

fn asked<'a>(run: &'a Run, change: impl FnOnce(RunFacts<'a>) -> RunFacts<'a>) -> Vec<Reason> {
    static NOTHING: Standing = Standing { ahead: 0, slot: None, ahead_for_slot: 0 };
    let facts = RunFacts {
        run,
        trail: &[],
        error: None,
        standing: &NOTHING,
        pauses: &[],
        lane: None,
        offered: true,
        rate_until: None,
        elsewhere: false,
        alone: false,
    };
    super::run(&change(facts), at(0))
}

fn pause(until: Option<Timestamp>) -> Pause {
    Pause { since: at(-5), until, note: Some("month end".into()), by: Some("ann".into()), ..Pause::default() }
}

#[test]
fn a_delayed_run_says_when_it_is_to_start() {
    assert_eq!(plain(RunState::Scheduled), [Reason::NotYet { at: at(30) }]);
}

/// Whoever meets a dead letter that is made again by itself must not do it too, and
/// whoever meets the new run must find what died.
#[test]
fn a_dead_letter_and_the_run_that_follows_it_name_each_other() {
    let redrive =
        Some(Redrive { after: crate::duration::Span::secs(60), left: 1, start_within: None, end_within: None });
    let dead = RunState::Finished { at: at(-1), verdict: Verdict::Dead };
    let run = Run { redrive, ..run_in(dead) };
    let (follower, start) = run.followed_by().unwrap();
    let reasons = asked(&run, |facts| facts);
    assert_eq!(reasons[1..], [Reason::Follower { run: follower, at: at(59) }]);
    assert_eq!(start, at(59));
    for verdict in Verdict::ALL.into_iter().filter(|verdict| *verdict != Verdict::Dead) {
        let run = Run { redrive, ..run_in(RunState::Finished { at: at(-1), verdict }) };
        assert_eq!(asked(&run, |facts| facts).len(), 1, "{verdict}");
    }
    let new = Run { trigger: Trigger::redrive(run.id, None), ..run_in(RunState::Scheduled) };
    assert_eq!(asked(&new, |facts| facts), [Reason::Redrive { at: at(30), of: run.id }]);
}

#[test]
fn a_retry_says_which_attempt_failed_and_how() {
    let failure = Failure::new(ErrorKind::Dns, "no such host");
    let kind = TrailKind::AttemptFailed { attempt: 2, started_at: None, failure, retry_at: Some(at(30)), fence: None };
    let trail = [TrailEntry { at: at(-1), kind }];
    let run = run_in(RunState::Scheduled);
    let reasons = asked(&run, |facts| RunFacts { trail: &trail, ..facts });
    assert_eq!(reasons, [Reason::Backoff { at: at(30), attempt: 2, error: Some("no such host".into()) }]);
    assert!(reasons[0].text().contains("attempt 2 failed (no such host)"), "{}", reasons[0].text());
}

#[test]
fn a_deferred_run_says_why_it_was_put_off() {
    let kind = TrailKind::Deferred { until: at(30), reason: "the circuit is open".into() };
    let trail = [TrailEntry { at: at(-1), kind }];
    let run = run_in(RunState::Scheduled);
    let reasons = asked(&run, |facts| RunFacts { trail: &trail, ..facts });
    assert_eq!(reasons, [Reason::Deferred { at: at(30), reason: "the circuit is open".into() }]);
}

#[test]
fn a_run_without_a_slot_says_who_has_them() {
    let standing = Standing { ahead: 0, slot: Some(Slot { limit: 5, held: 5, waiting: 9 }), ahead_for_slot: 3 };
    let run = run_in(RunState::Blocked(Block::Slot));
    let reasons = asked(&run, |facts| RunFacts { standing: &standing, ..facts });
    assert_eq!(reasons, [Reason::Slot { limit: 5, held: 5, waiting: 9, ahead: 3 }]);
    assert!(reasons[0].text().contains("5 of 5 slots"), "{}", reasons[0].text());
}

#[test]
fn a_run_that_waits_for_others_says_for_how_many() {
    assert_eq!(plain(RunState::Blocked(Block::Needs(2))), [Reason::Needs { runs: 2 }]);
}

/// Another node may have started it a moment ago: nothing is said that would be wrong then.
#[test]
fn a_queued_run_of_another_node_is_not_said_to_wait() {
    let run = run_in(RunState::Queued);
    for ahead in [0, 7] {
        let standing = Standing { ahead, ..Standing::default() };
        let reasons = asked(&run, |facts| RunFacts { standing: &standing, elsewhere: true, ..facts });
        assert_eq!(reasons, [Reason::PlaceElsewhere { ahead }]);
        let text = reasons[0].text();
        assert!(text.contains("has just") && !text.contains("worker"), "{text}");
    }
}

#[test]
fn a_queued_run_says_its_place_and_stops_counting() {
    let run = run_in(RunState::Queued);
    for (ahead, words) in [(0, "next in its queue"), (7, "7 runs"), (AHEAD_MAX + 1, "1000+ runs")] {
        let standing = Standing { ahead, ..Standing::default() };
        let reasons = asked(&run, |facts| RunFacts { standing: &standing, ..facts });
        assert_eq!(reasons, [Reason::Place { ahead }]);
        assert!(reasons[0].text().contains(words), "{}", reasons[0].text());
    }
}

/// What holds now comes before the place in the queue.
#[test]
fn a_pause_in_force_is_told_first_with_its_note() {
    let run = run_in(RunState::Queued);
    let pauses = [(Level::Queue, pause(None)), (Level::Tenant, pause(Some(at(-1))))];
    let reasons = asked(&run, |facts| RunFacts { pauses: &pauses, ..facts });
    assert_eq!(reasons.len(), 2, "a pause that is over is no reason: {reasons:?}");
    assert_eq!(reasons[0].text(), "its queue is paused by ann: month end");
    assert_eq!(reasons[1], Reason::Place { ahead: 0 });
}

#[test]
fn a_run_that_nobody_can_execute_says_what_is_missing() {
    let run = run_in(RunState::Queued);
    let lane = LaneKey::new("gpu", Some("train"), &["gpu".to_owned()]);
    let reasons = asked(&run, |facts| RunFacts { lane: Some(&lane), offered: false, ..facts });
    let words = "no known worker offers the handler `train` and the traits gpu on the queue `gpu`; start one, or change the job";
    assert_eq!(reasons[0].text(), words);
    let offered = asked(&run, |facts| RunFacts { lane: Some(&lane), ..facts });
    assert_eq!(offered, [Reason::Place { ahead: 0 }]);
}

/// A run that may have killed its process waits for its turn, for seconds and behind
/// others like it: "it is next" would be no answer.
#[test]
fn a_run_that_is_to_be_alone_says_so() {
    let run = Run { losses: 2, ..run_in(RunState::Queued) };
    let reasons = asked(&run, |facts| RunFacts { alone: true, ..facts });
    assert_eq!(reasons, [Reason::Alone { losses: 2 }, Reason::Place { ahead: 0 }]);
    assert!(reasons[0].text().starts_with("its worker was lost 2 times while it was running"), "{}", reasons[0].text());
}

#[test]
fn a_rate_that_is_used_up_says_until_when() {
    let run = run_in(RunState::Queued);
    let reasons = asked(&run, |facts| RunFacts { rate_until: Some(at(3)), ..facts });
    assert_eq!(reasons[0], Reason::RateLimit { at: at(3) });
    let free = asked(&run, |facts| RunFacts { rate_until: Some(at(0)), ..facts });
    assert_eq!(free, [Reason::Place { ahead: 0 }]);
}

/// Over quota means later, and whoever wonders is told by which quota.
#[test]
fn a_run_that_waits_for_its_tenants_quota_says_so() {
    let delay = Some(Delay { until: at(30), runs_per_minute: 100 });
    let trigger = Trigger { delay, ..Trigger::plain(Source::Job) };
    let run = Run { trigger, ..run_in(RunState::Scheduled) };
    let reasons = asked(&run, |facts| facts);
    assert_eq!(reasons, [over_quota(100, at(30))]);
    let words = format!("its tenant's quota runs_per_minute (100) is used up until {}", at(30));
    assert_eq!(reasons[0].text(), words);
    let put_off_again = Run { ready_at: at(40), ..run };
    assert_eq!(asked(&put_off_again, |facts| facts), [Reason::NotYet { at: at(40) }]);
}

#[test]
fn a_run_in_hand_or_over_says_so() {
    let running = RunState::Running { hold: Hold::Owned, started_at: at(-3) };
    assert_eq!(plain(running), [Reason::Running { since: at(-3), attempt: 1 }]);
    let parked = RunState::Waiting { on: WaitFor::Approval, until: Some(at(60)), started_at: at(-3) };
    assert_eq!(plain(parked), [Reason::Parked { on: "approval", until: Some(at(60)) }]);
    let ended = RunState::Finished { at: at(-1), verdict: Verdict::Dead };
    let run = run_in(ended);
    let reasons = asked(&run, |facts| RunFacts { error: Some("exit code 3"), ..facts });
    assert_eq!(reasons[0].text(), format!("it ended as dead at {}: exit code 3", at(-1)));
    let request = CancelRequest { at: at(-2), grace_until: at(28), by: None, reason: None };
    let run = Run { cancel: Some(request), ..run_in(RunState::Cancelling { hold: None, started_at: None }) };
    assert_eq!(asked(&run, |facts| facts), [Reason::Cancelling { since: at(-2), grace_until: at(28) }]);
}

fn compiled(spec: serde_json::Value) -> Schedule {
    let spec: ScheduleSpec = serde_json::from_value(spec).unwrap();
    Schedule::compile(&spec, &ScheduleId(1).seed()).unwrap()
}

fn hourly() -> Schedule {
    compiled(json!({ "every": "1h", "overlap": "skip" }))
}

fn input(schedule: &Schedule, due: Timestamp) -> Input<'_> {
    Input {
        schedule,
        id: ScheduleId(1),
        cursor: Cursor { planned_at: due, due_at: due, fired: 4 },
        pauses: &[],
        live: fire::Live::default(),
        calendars: &[],
        allowance: None,
    }
}

fn schedule_asked<'a>(
    schedule: &'a Schedule,
    input: Option<Input<'a>>,
    change: impl FnOnce(ScheduleFacts<'a>) -> ScheduleFacts<'a>,
) -> Vec<Reason> {
    let facts = ScheduleFacts {
        schedule,
        input,
        fired: 4,
        enabled: true,
        job_enabled: true,
        own_run_lives: false,
        pauses: &[],
        no_calendar: None,
        scheduler: true,
        skipped: None,
    };
    super::schedule(&change(facts), at(0))
}

/// The next full hour after `at(0)`.
fn next_hour() -> Timestamp {
    hourly().next(at(0)).unwrap()
}

#[test]
fn a_schedule_in_order_says_when_it_fires_next() {
    let schedule = hourly();
    let reasons = schedule_asked(&schedule, Some(input(&schedule, next_hour())), |facts| facts);
    assert_eq!(reasons, [Reason::Next { at: next_hour() }]);
}

#[test]
fn a_schedule_or_job_that_is_not_enabled_says_so() {
    let schedule = hourly();
    let off = schedule_asked(&schedule, None, |facts| ScheduleFacts { enabled: false, ..facts });
    assert_eq!(off, [Reason::Disabled { level: Level::Schedule }]);
    let owed = Some(input(&schedule, next_hour()));
    let job = schedule_asked(&schedule, owed, |facts| ScheduleFacts { job_enabled: false, ..facts });
    assert_eq!(job, [Reason::Disabled { level: Level::Job }]);
}

#[test]
fn a_paused_schedule_says_by_whom_and_until_when() {
    let schedule = hourly();
    let pauses = [(Level::Schedule, pause(Some(at(600))))];
    let owed = Some(input(&schedule, next_hour()));
    let reasons = schedule_asked(&schedule, owed, |facts| ScheduleFacts { pauses: &pauses, ..facts });
    assert_eq!(reasons[0].text(), format!("the schedule is paused by ann until {}: month end", at(600)));
}

#[test]
fn a_schedule_that_is_over_says_so() {
    let schedule = hourly();
    assert_eq!(schedule_asked(&schedule, None, |facts| facts), [Reason::Over { fired: 4 }]);
}

#[test]
fn a_schedule_that_waits_for_its_own_run_says_so() {
    let schedule = compiled(json!({ "after_finish": "1h" }));
    let reasons = schedule_asked(&schedule, None, |facts| ScheduleFacts { own_run_lives: true, ..facts });
    assert_eq!(reasons, [Reason::OwnRun]);
}

/// The answer is the planner's own: an instant it would skip is told as such.
#[test]
fn an_instant_that_will_be_skipped_says_why() {
    let schedule = hourly();
    let live = fire::Live { active: 1, waiting: 0 };
    let owed = Input { live, ..input(&schedule, next_hour()) };
    let reasons = schedule_asked(&schedule, Some(owed), |facts| facts);
    assert_eq!(reasons, [Reason::NextSkipped { at: next_hour(), reason: SkipReason::Overlap }]);
}

#[test]
fn an_overdue_schedule_says_whether_anybody_looks_after_it() {
    let schedule = hourly();
    let owed = input(&schedule, at(-600));
    let reasons = schedule_asked(&schedule, Some(owed), |facts| ScheduleFacts { scheduler: false, ..facts });
    assert_eq!(reasons[0], Reason::Overdue { since: at(-600), scheduler: false });
    assert!(reasons[0].text().contains("no scheduler owns its partition"));
}

#[test]
fn the_newest_skips_are_told_with_their_reason() {
    let schedule = hourly();
    let skipped = fire::SkipRange { from: at(-7_200), to: at(-3_600), count: 2, reason: SkipReason::Paused };
    let owed = Some(input(&schedule, next_hour()));
    let reasons = schedule_asked(&schedule, owed, |facts| ScheduleFacts { skipped: Some(skipped), ..facts });
    assert_eq!(reasons.len(), 2);
    assert!(reasons[1].text().contains("2 instants from"), "{}", reasons[1].text());
}

#[test]
fn a_schedule_that_waits_for_its_tenants_quota_says_so() {
    let schedule = hourly();
    let due = next_hour();
    let spent = Some(fire::Allowance { per_minute: 100, runs: 0, more_at: at(30) });
    let put_off = Input {
        allowance: spent,
        cursor: Cursor { due_at: at(20), ..input(&schedule, before_now(due)).cursor },
        ..input(&schedule, due)
    };
    assert_eq!(schedule_asked(&schedule, Some(put_off), |facts| facts), [over_quota(100, at(20))]);
    let due_now = Input { allowance: spent, ..input(&schedule, before_now(due)) };
    let reasons = schedule_asked(&schedule, Some(due_now), |facts| facts);
    assert_eq!(reasons.last(), Some(&over_quota(100, at(30))), "{reasons:?}");
    let to_come = Input { allowance: spent, ..input(&schedule, due) };
    assert_eq!(schedule_asked(&schedule, Some(to_come), |facts| facts), [Reason::Next { at: due }]);
}

/// The hour before.
fn before_now(due: Timestamp) -> Timestamp {
    due.saturating_sub(jiff::SignedDuration::from_hours(1)).unwrap()
}
