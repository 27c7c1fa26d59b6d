//! Attempts under way: deadlines, panics, retries, logs.

use std::sync::atomic::Ordering;

use rota_core::{
    duration::Span,
    ids::RunId,
    job::failure::ErrorKind,
    run::{Hold, RunState, Status, Verdict},
    store::{LogQuery, RunQuery},
    why::Reason,
};
use rota_engine::{
    Cancel, Event, Handle, JobRef, Options, RunAsk,
    executors::{Call, HandlerError},
    stages::Stage as _,
};
use serde_json::json;

use crate::bed::*;

#[tokio::test]
async fn an_attempt_that_outlives_its_timeout_is_stopped_and_retried() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let rules = json!({ "timeout": "2s", "retry": { "max_attempts": 2, "initial": "1s", "jitter": 0.0 } });
    bed.save(&node.node, with(job("long", "wait"), rules)).await;
    let id = node.enqueue(&bed, "long").await;
    for _ in 0..2 {
        node.lead().await;
        node.dispatch().await;
        bed.work.wait_for_going(1).await;
        bed.clock.wait_for_sleepers(1).await;
        bed.go(2_000);
        node.drain().await;
        node.settle().await;
        bed.go(1_000);
        node.lead().await;
        node.promote().await;
    }
    let record = bed.record(id).await;
    assert_eq!(record.run.state.status(), ended(Verdict::Dead));
    assert_eq!((record.run.attempts_used, record.failure.unwrap().kind), (2, ErrorKind::Timeout));
}

/// A handler's panic is its own failure, and nobody else's.
#[tokio::test]
async fn a_panic_is_a_failure_of_its_own_run_only() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, with(job("bad", "panic"), json!({ "retry": { "max_attempts": 1 } }))).await;
    bed.save(&node.node, job("good", "noop")).await;
    let bad = node.enqueue(&bed, "bad").await;
    let good: Vec<_> = [node.enqueue(&bed, "good").await, node.enqueue(&bed, "good").await].into();
    node.work().await;
    let record = bed.record(bad).await;
    let failure = record.failure.unwrap();
    assert_eq!((failure.kind, failure.message.as_str()), (ErrorKind::Panic, "out of luck"));
    for id in good {
        assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
    }
}

/// A dead letter whose job says so comes back by itself, so often and no more, and
/// whoever listens hears of each new run.
#[tokio::test]
async fn a_dead_letter_is_made_again_by_itself_as_often_as_its_job_says() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let rules = json!({ "retry": { "max_attempts": 1 }, "dead": { "redrive_after": "10s", "times": 2 } });
    bed.save(&node.node, with(job("fails", "fail"), rules)).await;
    let mut events = node.node.events.subscribe();
    let first = node.enqueue(&bed, "fails").await;
    let mut chain = vec![first];
    for waits in [9_000, 1_000, 9_000, 1_000, 60_000] {
        node.work().await;
        let record = bed.record(chain[chain.len() - 1]).await;
        if let Some((follower, _)) = record.run.followed_by() {
            chain.push(follower);
        }
        node.beat_for(&bed, waits).await;
        node.promote().await;
    }
    let mut made = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let Event::RunMade { run, status: Status::Scheduled, .. } = event {
            made.push(run);
        }
    }
    assert_eq!(made, chain[1..]);
    assert_eq!((chain.len(), bed.runs().await.len()), (3, 3));
    for run in &chain {
        assert_eq!((bed.status(*run).await, bed.work.calls_of(*run)), (ended(Verdict::Dead), 1));
    }
    let starts: Vec<_> = bed.runs().await.iter().map(|record| record.run.ready_at).collect();
    assert_eq!(starts.iter().max(), Some(&at(20_000)), "{starts:?}");
}

#[tokio::test]
async fn a_retryable_failure_is_tried_again_until_its_attempts_are_used() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, with(job("fails", "fail"), json!({ "retry": { "max_attempts": 3 } }))).await;
    let id = node.enqueue(&bed, "fails").await;
    let mut attempts = Vec::new();
    for _ in 0..5 {
        node.work().await;
        attempts.push(bed.work.calls_of(id));
        node.beat_for(&bed, 1_000).await;
        node.promote().await;
    }
    assert_eq!(attempts, [1, 2, 3, 3, 3]);
    let record = bed.record(id).await;
    assert_eq!((record.run.state.status(), record.run.attempts_used), (ended(Verdict::Dead), 3));
    assert_eq!(record.trail.len(), 2, "each failed attempt but the last has left a line");
    assert_eq!(node.node.stats.retried.get(), 2);
}

#[tokio::test]
async fn a_handlers_own_advice_decides_over_its_retries() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("refuses", "refuse")).await;
    bed.save(&node.node, job("later", "later")).await;
    let (refused, later) = (node.enqueue(&bed, "refuses").await, node.enqueue(&bed, "later").await);
    node.work().await;
    assert_eq!(bed.status(refused).await, ended(Verdict::Failed));
    assert_eq!(bed.record(later).await.run.ready_at, at(5_000));
    node.beat_for(&bed, 5_000).await;
    node.promote().await;
    node.work().await;
    assert_eq!(bed.status(later).await, ended(Verdict::Succeeded));
}

/// What lasts is marked, so that a death does not leave it unnamed; its right
/// to settle stays.
#[tokio::test]
async fn an_attempt_that_lasts_is_marked_as_running_and_settles() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("long", "wait")).await;
    let id = node.enqueue(&bed, "long").await;
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.clock.wait_for_sleepers(1).await;
    bed.go(199);
    node.heartbeat().await;
    assert_eq!(bed.status(id).await, Status::Queued);
    bed.go(1);
    node.heartbeat().await;
    assert_eq!(bed.status(id).await, Status::Running);
    bed.work.open();
    node.drain().await;
    node.lead().await;
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
}

/// Two runs of one job and one slot: the one that has begun, and the one that waits.
async fn one_of_two_begins(bed: &Bed, node: &mut Hands) -> (RunId, RunId) {
    bed.save(&node.node, job("long", "wait")).await;
    let runs = [node.enqueue(bed, "long").await, node.enqueue(bed, "long").await];
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.clock.wait_for_sleepers(1).await;
    let begun = bed.work.order()[0];
    (begun, if begun == runs[0] { runs[1] } else { runs[0] })
}

/// The store hears a little later that an attempt has begun, and that it has ended. Whoever
/// asks the node that executes it is not told that it waits: in no list, by no filter, and
/// not between its end and its settlement.
#[tokio::test]
async fn a_run_in_hand_is_shown_as_it_is_and_listed_by_that() {
    let bed = Bed::new().await;
    let mut node = bed.node_with(Options { slots: 1, ..Options::default() }).await;
    let begun_at = bed.now();
    let (id, next) = one_of_two_begins(&bed, &mut node).await;
    bed.go(5);
    let handle = node.handle();
    let listed = async |statuses: &[Status]| {
        let query = RunQuery { statuses: statuses.to_vec(), limit: 9, ..RunQuery::default() };
        let page = handle.list_runs(&query).await.unwrap();
        let mut listed: Vec<_> = page.runs.iter().map(|found| (found.run.id, found.run.state.status())).collect();
        listed.sort_by_key(|(run, _)| *run == next);
        listed
    };
    let (running, queued) = ((id, Status::Running), (next, Status::Queued));
    for over in [false, true] {
        assert_eq!(bed.status(id).await, Status::Queued, "the store has yet to hear of it");
        let shown = handle.run(id).await.unwrap().unwrap();
        assert_eq!(shown.run.state, RunState::Running { hold: Hold::Owned, started_at: begun_at });
        assert_eq!(shown.started_at, Some(begun_at));
        assert!(matches!(handle.why_run(&shown).await.unwrap()[..], [Reason::Running { .. }]));
        assert_eq!(listed(&[]).await, [running, queued]);
        assert_eq!(listed(&[Status::Queued]).await, [queued]);
        assert_eq!(listed(&[Status::Queued, Status::Running]).await, [running, queued]);
        assert_eq!(listed(&[Status::Running]).await, [running], "over: {over}");
        if !over {
            bed.work.open();
            node.drain().await;
        }
    }
    node.settle().await;
    assert_eq!(listed(&[Status::Running, ended(Verdict::Succeeded)]).await, [(id, ended(Verdict::Succeeded))]);
}

/// Whoever stops what waits must not stop what runs.
#[tokio::test]
async fn a_cancel_of_what_is_queued_leaves_what_runs_alone() {
    let bed = Bed::new().await;
    let mut node = bed.node_with(Options { slots: 1, ..Options::default() }).await;
    let (id, next) = one_of_two_begins(&bed, &mut node).await;
    let query = RunQuery { statuses: vec![Status::Queued], ..RunQuery::default() };
    let ask = Cancel { by: None, reason: None, grace: Some(Span::secs(1)) };
    for dry_run in [true, false] {
        let done = node.handle().cancel_all(query.clone(), &ask, 100, dry_run).await.unwrap();
        assert_eq!((done.found, done.asked), (1, 1), "dry run {dry_run}");
        let expected = if dry_run { Status::Queued } else { Status::Cancelling };
        assert_eq!((bed.status(next).await, bed.status(id).await), (expected, Status::Queued));
    }
}

/// A run whose rate does not let it start is in hand, and is not running.
#[tokio::test]
async fn a_run_that_is_held_back_is_shown_as_queued() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, with(job("rated", "wait"), json!({ "rate_limit": { "runs": 1, "per": "1h" } }))).await;
    let runs =
        [node.enqueue(&bed, "rated").await, node.enqueue(&bed, "rated").await, node.enqueue(&bed, "rated").await];
    node.dispatch().await;
    bed.work.wait_for_going(2).await;
    for run in runs {
        let shown = node.handle().run(run).await.unwrap().unwrap().run.state.status();
        let expected = if bed.work.calls_of(run) == 1 { Status::Running } else { Status::Queued };
        assert_eq!(shown, expected);
    }
    assert_eq!(bed.work.count(), 2, "a burst is twice the rate");
}

/// What another node owns may have begun: that it waits is not said.
#[tokio::test]
async fn a_node_that_does_not_own_a_run_does_not_say_that_it_waits() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("long", "wait")).await;
    let id = node.enqueue(&bed, "long").await;
    let other = bed.builder(Options { schedules: false, executes: false, ..Options::default() }).node();
    let other = Handle::new(other);
    let said = async |handle: &Handle| {
        let record = handle.run(id).await.unwrap().unwrap();
        handle.why_run(&record).await.unwrap().remove(0)
    };
    assert_eq!(said(&node.handle()).await, Reason::Place { ahead: 0 });
    assert_eq!(said(&other).await, Reason::PlaceElsewhere { ahead: 0 });
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.clock.wait_for_sleepers(1).await;
    assert_eq!(said(&other).await, Reason::PlaceElsewhere { ahead: 0 });
    bed.go(200);
    node.heartbeat().await;
    assert!(matches!(said(&other).await, Reason::Running { .. }));
}

/// A run ten lease times long with a live worker runs once.
#[tokio::test]
async fn a_leased_attempt_outlives_many_leases() {
    let bed = Bed::new().await;
    let mut node = bed.node_with(Options { traits: vec!["gpu".into()], ..Options::default() }).await;
    bed.save(&node.node, with(job("long", "wait"), json!({ "requires": ["gpu"] }))).await;
    let id = node.enqueue(&bed, "long").await;
    node.claim().await;
    bed.work.wait_for_going(1).await;
    for _ in 0..60 {
        node.beat_for(&bed, 1_000).await;
        node.heartbeat().await;
        assert_eq!(node.reap().await.done, 0);
    }
    assert_eq!(bed.status(id).await, Status::Running);
    bed.work.open();
    node.drain().await;
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
    assert_eq!(bed.work.calls_of(id), 1);
}

#[tokio::test]
async fn log_lines_and_progress_reach_the_store() {
    let bed = Bed::new().await;
    let builder = bed.builder(Options::default()).handler("talk", |call: Call| async move {
        call.log("first");
        call.log("second");
        call.progress(rota_core::ports::Progress { percent: Some(40), ..Default::default() });
        std::future::pending::<()>().await;
        Ok::<_, HandlerError>(serde_json::Value::Null)
    });
    let mut node = Hands::new(builder.node());
    node.lead().await;
    node.look().await;
    bed.save(&node.node, job("talks", "talk")).await;
    let id = node.enqueue(&bed, "talks").await;
    node.dispatch().await;
    bed.clock.wait_for_sleepers(1).await;
    node.heartbeat().await;
    let logs = bed.store.logs(&LogQuery { run: id, attempt: None, after: None, limit: 10 }).await.unwrap();
    let lines: Vec<&str> = logs.iter().flat_map(|chunk| chunk.lines.lines()).collect();
    assert!(lines.len() == 2 && lines[0].contains("first") && lines[1].contains("second"), "{lines:?}");
    assert_eq!(bed.record(id).await.progress.as_deref(), Some("{\"percent\":40}"));
}

/// Whoever reads the log of a run that has ended must not miss its last lines, also
/// where the store was away just then.
#[tokio::test]
async fn a_run_that_has_ended_has_its_whole_log() {
    let bed = Bed::new().await;
    let builder = bed.builder(Options::default()).handler("talk", |call: Call| async move {
        call.log("first");
        call.log("last");
        Ok::<_, HandlerError>(serde_json::Value::Null)
    });
    let mut node = Hands::new(builder.node());
    node.lead().await;
    node.look().await;
    bed.save(&node.node, job("talks", "talk")).await;
    let id = node.enqueue(&bed, "talks").await;
    node.dispatch().await;
    node.drain().await;
    bed.faults.set_away(true);
    assert!(node.settle.pass(bed.now()).await.is_err());
    bed.faults.set_away(false);
    assert_eq!(bed.status(id).await, Status::Queued, "it has not ended yet");
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
    let logs = bed.store.logs(&LogQuery { run: id, attempt: None, after: None, limit: 10 }).await.unwrap();
    let lines: Vec<&str> = logs.iter().flat_map(|chunk| chunk.lines.lines()).collect();
    assert!(lines.len() == 2 && lines[1].contains("last"), "{lines:?}");
}

/// A job that waited too long must not start as if nothing had happened.
#[tokio::test]
async fn a_run_that_was_not_started_by_its_deadline_expires() {
    let bed = Bed::new().await;
    let mut node = bed.node_with(Options { slots: 1, ..Options::default() }).await;
    bed.save(&node.node, job("long", "wait")).await;
    bed.save(&node.node, with(job("hasty", "noop"), json!({ "start_deadline": "10s" }))).await;
    node.enqueue(&bed, "long").await;
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    let id = node.enqueue(&bed, "hasty").await;
    node.beat_for(&bed, 9_999).await;
    node.dispatch().await;
    assert_eq!(bed.status(id).await, Status::Queued);
    node.beat_for(&bed, 1).await;
    node.dispatch().await;
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Expired));
    assert_eq!(bed.work.calls_of(id), 0);
}

/// Has everything done that is to be done, while attempts go on.
async fn turn(node: &mut Hands) {
    node.dispatch().await;
    node.claim().await;
    node.let_run().await;
    node.settle().await;
    node.sweep().await;
}

/// A job's deadline counts from the making of a run over all its attempts and waits.
#[tokio::test]
async fn a_deadline_ends_a_run_in_whatever_it_does() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let limit = |job| with(job, json!({ "deadline": "10s", "timeout": "1h", "retry": { "max_attempts": 50 } }));
    bed.save(&node.node, limit(job("executed", "wait"))).await;
    bed.save(&node.node, limit(job("retried", "fail"))).await;
    bed.save(&node.node, limit(json!({ "name": "asleep", "steps": [{ "id": "s", "sleep": { "for": "1h" } }] }))).await;
    bed.save(&node.node, with(limit(job("unwanted", "noop")), json!({ "requires": ["nobody-has-it"] }))).await;
    let mut ids = Vec::new();
    for name in ["executed", "retried", "asleep", "unwanted"] {
        ids.push(node.enqueue(&bed, name).await);
    }
    for _ in 0..99 {
        turn(&mut node).await;
        node.beat_for(&bed, 100).await;
        node.promote().await;
    }
    assert_eq!(node.node.executing.running(), 1);
    assert_eq!(bed.work.calls_of(ids[1]), 10, "at once, and then every second");
    assert_eq!(bed.status(ids[1]).await, ended(Verdict::TimedOut), "the next would come too late");
    assert_eq!((bed.status(ids[2]).await, bed.status(ids[3]).await), (Status::Waiting, Status::Queued));
    for _ in 0..3 {
        node.beat_for(&bed, 50).await;
        turn(&mut node).await;
    }
    for (id, said) in ids.iter().zip(["deadline", "", "deadline", "deadline"]) {
        let record = bed.record(*id).await;
        assert_eq!(record.run.state.status(), ended(Verdict::TimedOut), "{record:?}");
        assert!(record.failure.as_ref().unwrap().message.contains(said), "{record:?}");
    }
}

/// A run that waits in hand for its rate must not be started after its deadline.
#[tokio::test]
async fn a_run_that_waits_for_its_rate_expires() {
    for requires in [json!([]), json!(["gpu"])] {
        let bed = Bed::new().await;
        let mut node = bed.node_with(Options { traits: vec!["gpu".into()], ..Options::default() }).await;
        let rule = json!({ "start_deadline": "5s", "rate_limit": { "runs": 1, "per": "1h" }, "requires": requires });
        bed.save(&node.node, with(job("limited", "noop"), rule)).await;
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(node.enqueue(&bed, "limited").await);
        }
        for _ in 0..7 {
            node.work().await;
            node.beat_for(&bed, 1_000).await;
        }
        let mut ends = Vec::new();
        for id in &ids {
            ends.push(bed.status(*id).await);
        }
        ends.sort();
        let (ran, late) = (ended(Verdict::Succeeded), ended(Verdict::Expired));
        assert_eq!(ends, [ran, ran, late], "{requires}: the burst is two");
    }
}

/// A step that sleeps holds no worker, and goes on when its time has come.
#[tokio::test]
async fn a_sleeping_run_is_parked_and_ends_when_it_wakes() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, json!({ "name": "nap", "steps": [{ "id": "s", "sleep": { "for": "10s" } }] })).await;
    let id = node.enqueue(&bed, "nap").await;
    node.work().await;
    assert_eq!(bed.status(id).await, Status::Waiting);
    node.beat_for(&bed, 10_000).await;
    assert_eq!(node.sweep().await.done, 1);
    node.look().await;
    node.work().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
}

/// Without the store nobody else can take an attempt, so it goes on; one that
/// must never run twice is stopped before another could begin.
#[tokio::test]
async fn only_exclusive_attempts_stop_when_the_store_is_away() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("plain", "wait")).await;
    bed.save(&node.node, with(job("exclusive", "wait"), json!({ "exclusive": true }))).await;
    let (plain, exclusive) = (node.enqueue(&bed, "plain").await, node.enqueue(&bed, "exclusive").await);
    node.dispatch().await;
    bed.work.wait_for_going(2).await;
    bed.faults.set_away(true);
    let away_at = bed.now();
    let until = async |node: &mut Hands, millis: i64| {
        while bed.now() < away_at + jiff::SignedDuration::from_millis(millis) {
            let now = bed.go(100);
            assert!(node.lead.pass(now).await.is_err());
            drop(node.heartbeat.pass(now).await);
            node.withdraw().await;
            node.let_run().await;
        }
        node.node.executing.running()
    };
    // Its node's lease holds for 3 s; another could begin then.
    assert_eq!(until(&mut node, 2_400).await, 2, "nobody else can have begun it");
    assert_eq!(until(&mut node, 2_500).await, 1, "it is stopped half a second before another could begin");
    assert_eq!(until(&mut node, 40_000).await, 1, "the other goes on");
    bed.faults.set_away(false);
    node.lead().await;
    node.settle().await;
    assert_eq!(bed.status(exclusive).await, Status::Queued, "handed back");
    bed.work.open();
    node.drain().await;
    node.settle().await;
    assert_eq!(bed.status(plain).await, ended(Verdict::Succeeded));
    assert_eq!(bed.work.calls_of(plain), 1);
}

/// What was held back, here for its rate, begins later than it was taken: by then another
/// node may be about to begin it.
#[tokio::test]
async fn an_exclusive_run_does_not_begin_when_the_right_to_it_may_be_over() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let rules = json!({ "exclusive": true, "rate_limit": { "runs": 1, "per": "2s" } });
    bed.save(&node.node, with(job("alone", "noop"), rules)).await;
    for _ in 0..4 {
        node.enqueue(&bed, "alone").await;
    }
    node.lead().await;
    node.work().await;
    let begun = bed.work.count();
    assert!(begun < 4, "some are held back for their rate");
    // Its node's lease holds for 3 s, and is relied on for 2.5 s.
    bed.go(2_600);
    node.dispatch().await;
    node.drain().await;
    assert_eq!(bed.work.count(), begun, "its turn has come, and the right to it may be over");
    node.lead().await;
    bed.go(250);
    node.dispatch().await;
    node.drain().await;
    assert_eq!(bed.work.count(), begun + 1, "the lease was renewed");
}

/// A node whose partition was taken, as after the clock was set, and that has yet to hear of
/// it, finds the run in the store as it was: whoever has the partition begins it, nobody else.
#[tokio::test]
async fn what_the_store_refused_to_mark_is_not_begun_again_by_the_same_right() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("long", "wait")).await;
    // What was there when the partition was taken would be leased before it is begun.
    bed.go(1);
    let id = node.enqueue(&bed, "long").await;
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.clock.wait_for_sleepers(1).await;
    bed.take_from(&node.node, id).await;
    bed.go(1_000);
    node.heartbeat().await;
    node.drain().await;
    node.look.stepped(bed.now());
    node.look().await;
    node.dispatch().await;
    node.let_run().await;
    assert_eq!(bed.work.calls_of(id), 1);
}

/// The answer to a claim may come after the lease that it brings has run out, while the node
/// had nothing else to extend: by then the run may be another's.
#[tokio::test]
async fn an_exclusive_run_does_not_begin_by_a_lease_that_has_run_out() {
    let bed = Bed::new().await;
    let mut node = bed.node_with(Options { traits: vec!["gpu".into()], ..Options::default() }).await;
    bed.save(&node.node, with(job("alone", "noop"), json!({ "exclusive": true, "requires": ["gpu"] }))).await;
    node.enqueue(&bed, "alone").await;
    bed.faults.lose_answers(1);
    assert!(node.claim.pass(bed.now()).await.is_err());
    for _ in 0..6 {
        bed.go(1_000);
        node.lead().await;
        node.heartbeat().await;
    }
    node.claim().await;
    node.drain().await;
    assert_eq!(bed.work.count(), 0, "its lease has run out");
    bed.go(2_000);
    node.lead().await;
    node.heartbeat().await;
    node.claim().await;
    node.drain().await;
    assert_eq!(bed.work.count(), 1, "its lease was extended");
}

/// A store that hangs answers nothing, not even that it cannot: whoever waits for it
/// must not be the one who has to stop what must never run twice.
#[tokio::test]
async fn exclusive_attempts_stop_before_a_takeover_although_the_store_hangs() {
    for leased in [false, true] {
        let bed = Bed::new().await;
        let options = Options { traits: vec!["gpu".into()], ..Options::default() };
        let engine = bed.builder(options.clone()).start().await.unwrap();
        let requires = if leased { json!(["gpu"]) } else { json!([]) };
        let document = with(job("alone", "wait"), json!({ "exclusive": true, "requires": requires }));
        bed.save(engine.node(), document).await;
        engine.enqueue(vec![RunAsk::of(bed.tenant, JobRef::Name("alone".into()))]).await.unwrap();
        bed.work.wait_for_going(1).await;
        for _ in 0..400 {
            bed.go(10);
            tokio::task::yield_now().await;
        }
        bed.faults.set_hung(true);
        let hung_at = bed.now();
        while bed.work.going.load(Ordering::SeqCst) > 0 {
            bed.go(10);
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            assert!(bed.now() < Span::secs(60).after(hung_at), "leased {leased}: it goes on");
        }
        // Another could begin when the right to it has run out.
        let right = if leased { options.run_lease } else { options.node_lease };
        assert!(bed.now() < right.after(hung_at), "leased {leased}: {}", bed.now());
    }
}
