//! The table of the run's state machine: every state x every event.
//!
//! The expected answers are the table in `docs/run-states.md`, so the page that
//! people read is the page that is tested. A missing row, column or cell fails;
//! so does an edge of the diagram that no cell produces, or one it leaves out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeSet, fmt::Write as _};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{JobId, LaneId, Partition, RunId, TenantId, WorkerId},
    job::{
        failure::{ErrorKind, Failure, RetryAdvice},
        retry::RetryRule,
    },
    lane::LaneMode,
    order::Priority,
    run::{
        Block, CancelAsk, CancelRequest, Change, Fence, Hold, Labels, Lease, NewRun, Outcome, Parent, Redrive, Refusal,
        Run, RunState, SettlePolicy, Source, Status, Trigger, Verdict, WAITS_MAX, WaitFor,
    },
    slot::Entry,
};
use uuid::Uuid;

const PAGE: &str = include_str!("../../../docs/run-states.md");

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_760_000_000 + seconds).unwrap()
}

fn now() -> Timestamp {
    at(0)
}

fn worker() -> WorkerId {
    WorkerId(Uuid::from_u64_pair(0, 7))
}

/// A run that was leased once and came back, so that its fence is not the first.
fn run(state: RunState) -> Run {
    let cancel = matches!(state, RunState::Cancelling { .. }).then(|| CancelRequest {
        at: at(-10),
        grace_until: now(),
        by: None,
        reason: None,
    });
    Run {
        id: RunId(Uuid::from_u64_pair(0, 1)),
        tenant: TenantId(1),
        job: JobId(1),
        version: 1,
        lane: LaneId(1),
        part: Partition(3),
        priority: Priority::default(),
        created_at: at(-60),
        ready_at: now(),
        expires_at: Some(now()),
        deadline_at: None,
        trigger: Trigger::plain(Source::Api),
        labels: Labels::new(),
        payload: None,
        slot: None,
        parent: None,
        attempts_used: 1,
        losses: 1,
        started: true,
        first_started_at: None,
        fence: Fence(4),
        cancel,
        redrive: None,
        state,
    }
}

/// The columns of the table.
fn states() -> Vec<(&'static str, Vec<RunState>)> {
    let started_at = at(-5);
    let leased = Hold::Leased(worker());
    let ended = |verdict| RunState::Finished { at: at(-1), verdict };
    let outside = [WaitFor::Callback, WaitFor::Approval, WaitFor::Sleep, WaitFor::Signal];
    vec![
        ("scheduled", vec![RunState::Scheduled]),
        ("blocked (slot)", vec![RunState::Blocked(Block::Slot)]),
        ("blocked (needs)", vec![RunState::Blocked(Block::Needs(2))]),
        ("queued", vec![RunState::Queued]),
        ("running (leased)", vec![RunState::Running { hold: leased, started_at }]),
        ("running (owned)", vec![RunState::Running { hold: Hold::Owned, started_at }]),
        ("waiting", outside.map(|on| RunState::Waiting { on, until: None, started_at }).to_vec()),
        ("waiting (children)", vec![RunState::Waiting { on: WaitFor::Children(2), until: None, started_at }]),
        ("cancelling (leased)", vec![RunState::Cancelling { hold: Some(leased), started_at: Some(started_at) }]),
        ("cancelling (owned)", vec![RunState::Cancelling { hold: Some(Hold::Owned), started_at: Some(started_at) }]),
        ("cancelling (unheld)", vec![RunState::Cancelling { hold: None, started_at: None }]),
        ("ended", Verdict::ALL.map(ended).to_vec()),
    ]
}

type Event = fn(Run) -> Result<Change, Refusal>;

fn settle(run: &Run, outcome: Outcome) -> Result<Change, Refusal> {
    settle_under(run, run.lease(), 3, outcome)
}

fn settle_under(run: &Run, lease: Lease, max_attempts: u32, outcome: Outcome) -> Result<Change, Refusal> {
    let retry = RetryRule { max_attempts: Some(max_attempts), ..RetryRule::default() }.policy();
    run.settle(lease, outcome, &SettlePolicy { retry, losses_max: 3 }, 0.5, now())
}

fn failed(kind: ErrorKind) -> Outcome {
    Outcome::Failed(Failure::new(kind, "it broke"))
}

fn stale(run: &Run) -> Lease {
    Lease { fence: Fence(run.fence.0 - 1), ..run.lease() }
}

fn other_run(run: &Run) -> Lease {
    Lease { run: RunId(Uuid::from_u64_pair(0, 99)), ..run.lease() }
}

fn ask() -> CancelAsk {
    CancelAsk { by: None, reason: None, grace: Span::secs(30) }
}

fn deferred() -> Outcome {
    Outcome::Deferred { until: at(60), reason: "its target is down".into() }
}

fn parked() -> Outcome {
    Outcome::Parked { on: WaitFor::Callback, until: None }
}

fn never_held(run: Run) -> Run {
    Run { fence: Fence::FIRST, attempts_used: 0, losses: 0, started: false, ..run }
}

fn with_deadline(run: Run) -> Run {
    Run { deadline_at: Some(now()), ..run }
}

/// The rows of the table.
fn events() -> Vec<(&'static str, Event)> {
    vec![
        ("claim", |run| run.claim(worker(), now())),
        ("mark running", |run| run.mark_running(run.lease(), now())),
        ("mark running: stale lease", |run| run.mark_running(stale(&run), now())),
        ("lease running", |run| run.lease_running(run.lease(), worker(), now())),
        ("lease running: stale lease", |run| run.lease_running(stale(&run), worker(), now())),
        ("settle: succeeded", |run| settle(&run, Outcome::Succeeded { output: None })),
        ("settle: failed, attempts left", |run| settle(&run, failed(ErrorKind::Dns))),
        ("settle: failed, no attempt left", |run| settle_under(&run, run.lease(), 2, failed(ErrorKind::Dns))),
        ("settle: failed, not retried", |run| settle(&run, failed(ErrorKind::InvalidInput))),
        ("settle: timed out, not retried", |run| {
            let failure = Failure::new(ErrorKind::Timeout, "too long").advising(RetryAdvice::Never);
            settle(&run, Outcome::Failed(failure))
        }),
        ("settle: cancelled", |run| settle(&run, Outcome::Cancelled)),
        ("settle: parked", |run| settle(&run, parked())),
        ("settle: deferred", |run| settle(&run, deferred())),
        ("settle: succeeded, stale lease", |run| {
            settle_under(&run, stale(&run), 3, Outcome::Succeeded { output: None })
        }),
        ("settle: failed, stale lease", |run| settle_under(&run, stale(&run), 3, failed(ErrorKind::Dns))),
        ("settle: cancelled, stale lease", |run| settle_under(&run, stale(&run), 3, Outcome::Cancelled)),
        ("settle: parked, stale lease", |run| settle_under(&run, stale(&run), 3, parked())),
        ("settle: deferred, stale lease", |run| settle_under(&run, stale(&run), 3, deferred())),
        ("settle: lease of another run", |run| {
            settle_under(&run, other_run(&run), 3, Outcome::Succeeded { output: None })
        }),
        ("lose: below the limit", |run| run.lose(3, now())),
        ("lose: at the limit", |run| run.lose(2, now())),
        ("hand back", |run| run.hand_back(run.lease(), true, now())),
        ("hand back: stale lease", |run| run.hand_back(stale(&run), true, now())),
        ("cancel: owned lane", |run| run.request_cancel(&ask(), LaneMode::Owned, now())),
        ("cancel: claimed lane", |run| run.request_cancel(&ask(), LaneMode::Claimed, now())),
        ("grace: not over", |run| run.grace_over(at(-1))),
        ("grace: over", |run| run.grace_over(now())),
        ("promote: early", |run| run.promote(None, at(-1))),
        ("promote: due, no slot", |run| run.promote(None, now())),
        ("promote: due, slot free", |run| run.promote(Some(Entry::Holds), now())),
        ("promote: due, slot taken", |run| run.promote(Some(Entry::Waits), now())),
        ("promote: due, waits alone", |run| run.promote(Some(Entry::WaitsAlone), now())),
        ("promote: due, waits for cancel", |run| run.promote(Some(Entry::WaitsForCancel), now())),
        ("promote: due, slot refused", |run| run.promote(Some(Entry::Refused), now())),
        ("admit", |run| run.admit()),
        ("join: others left", |run| run.join(1, None, now())),
        ("join: last, no slot", |run| run.join(2, None, now())),
        ("join: last, slot free", |run| run.join(2, Some(Entry::Holds), now())),
        ("join: last, slot taken", |run| run.join(2, Some(Entry::Waits), now())),
        ("join: last, delayed", |run| run.join(2, None, at(-1))),
        ("wake", |run| run.wake()),
        ("expire: early", |run| never_held(run).expire(at(-1))),
        ("expire: due", |run| never_held(run).expire(now())),
        ("expire: due, was started", |run| run.expire(now())),
        ("deadline: early", |run| with_deadline(run).deadline_over(at(-1))),
        ("deadline: over", |run| with_deadline(run).deadline_over(now())),
        ("settle: failed, no time left", |run| settle(&with_deadline(run), failed(ErrorKind::Dns))),
        ("lose: no time left", |run| with_deadline(run).lose(3, now())),
        ("displace", |run| run.displace(RunId(Uuid::from_u64_pair(0, 2)), now())),
        ("skip", |run| run.skip("paused", now())),
    ]
}

fn status_name(status: Status) -> String {
    serde_json::to_value(status).unwrap().as_str().unwrap().to_owned()
}

fn cell(run: &Run, event: Event) -> String {
    match event(run.clone()) {
        Ok(change) => {
            let mut after = run.clone();
            after.apply(&change);
            match after.state {
                RunState::Blocked(Block::Slot) => "blocked (slot)".into(),
                RunState::Blocked(Block::Needs(_)) => "blocked (needs)".into(),
                state => status_name(state.status()),
            }
        }
        Err(Refusal::NotRunning) => "· not running".into(),
        Err(Refusal::LeaseLost) => "· lease lost".into(),
        Err(Refusal::Ended) => "· ended".into(),
        Err(Refusal::WrongState) => "· wrong state".into(),
        Err(Refusal::NotYet) => "· not yet".into(),
    }
}

/// The rows of the page's table: the event, and one cell for each state.
fn page_rows() -> (Vec<&'static str>, Vec<(&'static str, Vec<&'static str>)>) {
    let cells = |line: &'static str| line.trim().trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let mut lines =
        PAGE.lines().skip_while(|line| !line.starts_with("| event")).take_while(|line| line.starts_with('|'));
    let head = cells(lines.next().expect("the page has a table of events"));
    let rows = lines.skip(1).map(cells).map(|row| (row[0], row[1..].to_vec())).collect();
    (head[1..].to_vec(), rows)
}

fn table() -> String {
    let states = states();
    let names: Vec<_> = states.iter().map(|(name, _)| *name).collect();
    let mut text = format!("| event | {} |\n|{}\n", names.join(" | "), "---|".repeat(names.len() + 1));
    for (name, event) in events() {
        let cells: Vec<_> = states.iter().map(|(_, of)| cell(&run(of[0].clone()), event)).collect();
        writeln!(text, "| {name} | {} |", cells.join(" | ")).unwrap();
    }
    text
}

/// A cell nobody thought about is where a run gets a second verdict.
#[test]
fn every_event_in_every_state_answers_as_the_page_says() {
    let (columns, rows) = page_rows();
    let states = states();
    assert_eq!(columns, states.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "columns of the page");
    let events = events();
    assert_eq!(
        rows.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        events.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        "rows of the page; the code says:\n{}",
        table()
    );
    for ((name, expected), (_, event)) in rows.iter().zip(&events) {
        assert_eq!(expected.len(), states.len(), "cells of `{name}`");
        for (expected, (state, samples)) in expected.iter().zip(&states) {
            for sample in samples {
                let answer = cell(&run(sample.clone()), *event);
                assert_eq!(answer, *expected, "{name}, in {state} ({sample:?}); the code says:\n{}", table());
            }
        }
    }
}

type Edge = (String, String, String);

fn verb(event: &str) -> &str {
    event.split(':').next().unwrap()
}

fn word(state: &str) -> String {
    state.split(' ').next().unwrap().to_owned()
}

fn born_edges() -> BTreeSet<Edge> {
    let born = |needs, ready_at, entry| {
        let new = NewRun {
            id: RunId(Uuid::from_u64_pair(0, 1)),
            tenant: TenantId(1),
            job: JobId(1),
            version: 1,
            lane: LaneId(1),
            part: Partition(0),
            priority: Priority::default(),
            ready_at,
            expires_at: None,
            deadline_at: None,
            trigger: Trigger::plain(Source::Api),
            labels: Labels::new(),
            payload: None,
            slot: None,
            unique: None,
            once: None,
            parent: None,
            after: Vec::new(),
            follows: false,
            rearms: false,
            redrive: None,
        };
        new.first_state(needs, entry, now())
    };
    let mut edges = BTreeSet::new();
    for needs in [0, 1] {
        for ready_at in [now(), at(1)] {
            for entry in [
                None,
                Some(Entry::Holds),
                Some(Entry::Waits),
                Some(Entry::WaitsAlone),
                Some(Entry::WaitsForCancel),
                Some(Entry::Refused),
            ] {
                if let Some(state) = born(needs, ready_at, entry) {
                    edges.insert(("[*]".into(), status_name(state.status()), "created".into()));
                }
            }
        }
    }
    edges
}

fn table_edges() -> BTreeSet<Edge> {
    let mut edges = born_edges();
    for (name, event) in events() {
        for (state, samples) in states() {
            for sample in samples {
                let next = cell(&run(sample), event);
                if !next.starts_with('·') {
                    edges.insert((word(state), word(&next), verb(name).into()));
                }
            }
        }
    }
    for verdict in Verdict::ALL {
        edges.insert((status_name(Status::Ended(verdict)), "[*]".into(), String::new()));
    }
    edges
}

fn diagram_edges() -> BTreeSet<Edge> {
    let mut edges = BTreeSet::new();
    for line in PAGE.lines().filter(|line| line.contains("-->")) {
        let (from, rest) = line.split_once("-->").unwrap();
        let (to, label) = rest.split_once(':').unwrap_or((rest, ""));
        for verb in label.split(',') {
            edges.insert((from.trim().into(), to.trim().into(), verb.trim().into()));
        }
    }
    edges
}

/// A diagram that is not checked is believed long after it stopped being true.
#[test]
fn the_diagram_shows_the_edges_of_the_table_and_no_other() {
    let (drawn, real) = (diagram_edges(), table_edges());
    let missing: Vec<_> = real.difference(&drawn).collect();
    let invented: Vec<_> = drawn.difference(&real).collect();
    assert!(missing.is_empty() && invented.is_empty(), "not drawn: {missing:?}\nnot real: {invented:?}");
}

/// Whoever held a run before must never hold its current fence again.
#[test]
fn a_fence_rises_whenever_a_holder_comes_or_goes_and_never_falls() {
    for (name, event) in events() {
        for sample in states().into_iter().flat_map(|(_, samples)| samples) {
            let before = run(sample);
            let Ok(Change::Move(next)) = event(before.clone()) else { continue };
            let rises = matches!(verb(name), "claim" | "settle" | "lose" | "hand back");
            let expected = if rises { before.fence.next() } else { before.fence };
            assert_eq!(next.fence, expected, "{name} of {:?}", before.state);
        }
    }
}

/// A loss that cost an attempt would kill runs for their neighbours' crimes.
#[test]
fn counters_and_times_change_only_as_policy_says() {
    for (name, event) in events() {
        for sample in states().into_iter().flat_map(|(_, samples)| samples) {
            let before = run(sample);
            if verb(name) == "expire" {
                continue;
            }
            let Ok(change) = event(before.clone()) else { continue };
            let mut after = before.clone();
            after.apply(&change);
            let failed = name.starts_with("settle: failed") || name.starts_with("settle: timed out");
            assert_eq!(after.attempts_used - before.attempts_used, u16::from(failed), "attempts: {name}");
            let lost = verb(name) == "lose" && matches!(before.state, RunState::Running { .. });
            assert_eq!(after.losses - before.losses, u16::from(lost), "losses: {name}");
            if let Change::Finish(finish) = change {
                assert_eq!(finish.started_at, before.state.started_at(), "start: {name}");
                assert_eq!(finish.ended_at, now(), "end: {name}");
            }
        }
    }
}

/// More than a store can count would be lost on its way there.
#[test]
fn a_run_waits_for_no_more_steps_than_can_be_counted() {
    let running = run(RunState::Running { hold: Hold::Owned, started_at: at(-5) });
    let parked = |steps| settle(&running, Outcome::Parked { on: WaitFor::Children(steps), until: None }).unwrap();
    let Change::Move(most) = parked(WAITS_MAX) else { panic!("as many as can be counted are waited for") };
    assert!(matches!(most.state, RunState::Waiting { on: WaitFor::Children(WAITS_MAX), .. }));
    let Change::Finish(refused) = parked(WAITS_MAX + 1) else { panic!("one more is a failure") };
    let failure = refused.failure.unwrap();
    assert_eq!((refused.verdict, failure.kind), (Verdict::Failed, ErrorKind::InvalidInput));
    assert_eq!(failure.message, "it has 32768 steps to wait for; a run waits for at most 32767");
    let blocked = run(RunState::Blocked(Block::Needs(WAITS_MAX - 1)));
    let Change::Move(more) = blocked.wait_for_more(9).unwrap() else { panic!("it goes on waiting") };
    assert_eq!(more.state, RunState::Blocked(Block::Needs(WAITS_MAX)));
}

/// A run that took three attempts would be shown as if it had taken the last one.
#[test]
fn the_first_start_outlives_its_attempt() {
    let executed = RunState::Running { hold: Hold::Owned, started_at: at(-5) };
    for (known, first) in [(None, at(-5)), (Some(at(-50)), at(-50))] {
        let run = Run { first_started_at: known, ..run(executed.clone()) };
        let parked = Outcome::Parked { on: WaitFor::Callback, until: None };
        let ends = [
            settle(&run, failed(ErrorKind::Dns)),
            settle(&run, parked),
            run.lose(9, now()),
            run.hand_back(run.lease(), true, now()),
        ];
        for change in ends {
            let mut after = run.clone();
            after.apply(&change.unwrap());
            assert_eq!(after.first_start(), Some(first), "{:?}", after.state);
            assert_eq!(after.first_started_at, Some(first), "{:?}", after.state);
        }
        let deferred = settle(&run, Outcome::Deferred { until: at(60), reason: "down".into() }).unwrap();
        let handed_back = run.hand_back(run.lease(), false, now()).unwrap();
        for change in [deferred, handed_back] {
            let mut after = run.clone();
            after.apply(&change);
            assert_eq!(after.first_started_at, known, "one that did not begin is none: {:?}", after.state);
        }
    }
}

/// Nodes' clocks differ, and a pass that was held up goes by the time it began.
#[test]
fn no_run_ends_before_it_was_made_or_started() {
    let (mut early, mut ends) = (0, 0);
    for (_, event) in events() {
        for sample in states().into_iter().flat_map(|(_, samples)| samples) {
            for created_at in [at(-60), at(30)] {
                let redrive = Some(Redrive { after: Span::secs(60), left: 1, start_within: None, end_within: None });
                let mut run = Run { created_at, redrive, ..run(sample.clone()) };
                if let RunState::Running { started_at, .. } = &mut run.state {
                    *started_at = Span::secs(10).after(created_at).max(at(-5));
                }
                let Ok(Change::Finish(finish)) = event(run.clone()) else { continue };
                let began = finish.started_at.unwrap_or(created_at).max(created_at);
                assert_eq!(finish.ended_at, now().max(began), "{:?}", run.state);
                let follower = finish.follower.as_ref().map(|new| (new.id, new.ready_at));
                run.apply(&Change::Finish(finish));
                assert_eq!(follower, run.followed_by(), "what follows is found by the end");
                ends += 1;
                early += usize::from(began > now());
            }
        }
    }
    assert!(early > 0 && early < ends, "both kinds were seen: {early} of {ends}");
}

/// A woken approval, a retry or a lost run must not expire: it was started. One that
/// was handed back or deferred before its attempt began must: it was not.
#[test]
fn a_start_deadline_counts_until_an_attempt_has_begun() {
    let queued = never_held(run(RunState::Queued));
    assert_eq!(queued.due_at(), Some(now()));
    let claim: Event = |run| run.claim(worker(), now());
    let (later, sleep) = (Some(at(5)), WaitFor::Sleep);
    let cases: [(&str, Vec<Event>, bool); 7] = [
        ("parked and woken", vec![|run| settle(&run, parked()), |run| run.wake()], true),
        ("lost", vec![|run| run.lose(3, now())], true),
        ("retried", vec![|run| settle(&run, failed(ErrorKind::Dns))], true),
        ("stopped and handed back", vec![|run| run.hand_back(run.lease(), true, now())], true),
        ("handed back unread", vec![|run| run.hand_back(run.lease(), false, now())], false),
        ("deferred", vec![|run| settle(&run, deferred())], false),
        (
            "deferred after it was stopped",
            vec![|run| run.hand_back(run.lease(), true, now()), |run| run.claim(worker(), now()), |run| {
                settle(&run, deferred())
            }],
            true,
        ),
    ];
    for (case, events, started) in cases {
        let mut run = queued.clone();
        for event in [claim].into_iter().chain(events) {
            run.apply(&event(run.clone()).unwrap());
        }
        assert_eq!((run.started, run.due_at()), (started, (!started).then(now)), "{case}");
        let expired = run.expire(at(10)).map(|_| ());
        assert_eq!(expired, if started { Err(Refusal::NotYet) } else { Ok(()) }, "{case}");
    }
    let waits = Run { state: RunState::Waiting { on: sleep, until: later, started_at: now() }, ..queued };
    assert_eq!(waits.due_at(), later);
}

/// From its creation on, through attempts, backoff and every wait; and no retry is
/// planned that it leaves no time for.
#[test]
fn a_deadline_holds_whatever_a_run_does() {
    let waiting = |until| RunState::Waiting { on: WaitFor::Callback, until, started_at: at(-5) };
    for (state, due_at) in [
        (RunState::Scheduled, Some(at(20))),
        (RunState::Blocked(Block::Slot), Some(at(20))),
        (RunState::Queued, Some(at(20))),
        (waiting(None), Some(at(20))),
        (waiting(Some(at(60))), Some(at(20))),
        (waiting(Some(at(10))), Some(at(10))),
        (RunState::Running { hold: Hold::Owned, started_at: at(-5) }, None),
    ] {
        let run = Run { deadline_at: Some(at(20)), ..run(state.clone()) };
        assert_eq!(run.due_at(), due_at, "{state:?}");
        assert!(run.overdue(at(5)).is_err(), "{state:?}: not yet");
        let Some(_) = due_at else { continue };
        let Ok(Change::Finish(end)) = run.overdue(at(20)) else { panic!("{state:?} goes on after its deadline") };
        assert_eq!((end.verdict, end.ended_at), (Verdict::TimedOut, at(20)));
        assert!(end.failure.unwrap().message.contains("deadline"));
    }
    let woken = Run { deadline_at: Some(at(20)), ..run(waiting(Some(at(10)))) }.overdue(at(10));
    assert!(matches!(woken, Ok(Change::Move(rota_core::run::Move { state: RunState::Queued, .. }))), "{woken:?}");
    let running = |deadline| Run {
        deadline_at: Some(deadline),
        attempts_used: 0,
        ..run(RunState::Running { hold: Hold::Owned, started_at: at(-5) })
    };
    // The first retry comes after a second.
    for (deadline, verdict) in [(at(1), Some(Verdict::TimedOut)), (at(3), None)] {
        let end = match settle(&running(deadline), failed(ErrorKind::Dns)).unwrap() {
            Change::Finish(finish) => Some((finish.verdict, finish.failure.unwrap().kind)),
            Change::Move(_) => None,
        };
        assert_eq!(end, verdict.map(|verdict| (verdict, ErrorKind::Dns)));
    }
    // The last attempt that ran into the deadline: its time was used up.
    let last = settle_under(&running(now()), running(now()).lease(), 1, failed(ErrorKind::Timeout)).unwrap();
    assert!(
        matches!(last, Change::Finish(rota_core::run::Finish { verdict: Verdict::TimedOut, follower: None, .. })),
        "{last:?}"
    );
}

/// A run that is made again by itself, so often.
fn redriven(left: u16) -> Run {
    let redrive = Some(Redrive { after: Span::secs(60), left, start_within: Some(Span::secs(5)), end_within: None });
    let running = RunState::Running { hold: Hold::Owned, started_at: at(-5) };
    Run { redrive, payload: Some("7".into()), ..run(running) }
}

fn follower(change: Change) -> Option<NewRun> {
    let Change::Finish(finish) = change else { panic!("{change:?} is no end") };
    finish.follower.map(|new| *new)
}

/// Whatever made it die, what follows is the same work, later, and knows where it
/// comes from.
#[test]
fn a_run_that_dies_is_followed_by_the_same_work() {
    let run = redriven(2);
    let spent = settle_under(&run, run.lease(), 2, failed(ErrorKind::Handler)).unwrap();
    let lost = run.lose(2, now()).unwrap();
    let new = follower(spent).unwrap();
    assert_eq!(follower(lost), Some(new.clone()), "the same run, whoever works it out");
    assert_ne!(new.id, run.id);
    assert_eq!((new.ready_at, new.expires_at), (at(60), Some(at(65))));
    assert_eq!(new.trigger.redrives(), Some(run.id));
    assert_eq!((new.version, new.part, &new.payload), (run.version, run.part, &run.payload));
    let mut dead = run.clone();
    dead.apply(&run.lose(2, now()).unwrap());
    assert_eq!(dead.followed_by(), Some((new.id, new.ready_at)));
}

/// For ever would be a loop that nobody sees.
#[test]
fn followers_are_as_many_as_the_terms_say() {
    let mut run = redriven(3);
    let mut made = 0;
    while let Some(new) = follower(run.lose(2, now()).unwrap()) {
        made += 1;
        let state = run.state.clone();
        run = Run { losses: 1, ..new.born(state, now()) };
    }
    assert_eq!((made, run.redrive.map(|redrive| redrive.left)), (3, Some(0)));
}

/// What did not die is left as it ended: an error that no retry mends, a cancel, a
/// step, whose flow decides.
#[test]
fn only_a_dead_letter_is_followed() {
    let run = redriven(1);
    for outcome in [Outcome::Succeeded { output: None }, failed(ErrorKind::InvalidInput), Outcome::Cancelled] {
        assert_eq!(follower(settle_under(&run, run.lease(), 2, outcome).unwrap()), None);
    }
    let stopping = RunState::Cancelling { hold: Some(Hold::Owned), started_at: None };
    let asked = Run { state: stopping, ..redriven(1) };
    assert_eq!(follower(settle_under(&asked, asked.lease(), 2, failed(ErrorKind::Handler)).unwrap()), None);
    assert_eq!(follower(asked.lose(2, now()).unwrap()), None);
    let step = Run { parent: Some(Parent { run: run.id, step: 0, item: None }), ..redriven(1) };
    assert_eq!(follower(step.lose(2, now()).unwrap()), None);
}
