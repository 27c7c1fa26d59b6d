//! Cancelling, wherever the run is.

use rota_core::{
    duration::Span,
    run::{Status, TrailKind, Verdict},
    store::{CancelAnswer, RunQuery},
};
use rota_engine::{Cancel, JobRef, Made, RunAsk, stages::Stage};
use serde_json::json;

use crate::bed::*;

#[tokio::test]
async fn a_queued_run_is_cancelled_by_its_owner_and_never_starts() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("hello", "noop")).await;
    let id = node.enqueue(&bed, "hello").await;
    assert_eq!(bed.cancel(id).await, CancelAnswer::Asked);
    node.look().await;
    node.work().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Cancelled));
    assert_eq!(bed.work.count(), 0);
}

#[tokio::test]
async fn a_running_attempt_is_dropped_and_its_run_cancelled() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("long", "wait")).await;
    let id = node.enqueue(&bed, "long").await;
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    assert_eq!(bed.cancel(id).await, CancelAnswer::Asked);
    node.look().await;
    node.drain().await;
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Cancelled));
    assert_eq!(bed.work.going.load(std::sync::atomic::Ordering::SeqCst), 0, "what it started has ended with it");
}

/// A handler that listens is told, and its own end is what counts.
#[tokio::test]
async fn a_handler_that_listens_may_use_its_grace() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("polite", "polite")).await;
    let id = node.enqueue(&bed, "polite").await;
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.cancel(id).await;
    node.look().await;
    node.drain().await;
    node.settle().await;
    let record = bed.record(id).await;
    assert_eq!(record.run.state.status(), ended(Verdict::Cancelled));
    assert_eq!(record.failure.unwrap().message, "told to stop");
}

/// One that listens and does not stop is ended when its grace is over.
#[tokio::test]
async fn an_attempt_that_outlasts_its_grace_is_ended_with_a_word() {
    let bed = Bed::new().await;
    let builder = bed.builder(rota_engine::Options::default());
    let node = builder.handler("deaf", |call: rota_engine::executors::Call| async move {
        let told = call.cancelled();
        std::future::pending::<()>().await;
        drop(told);
        Ok(serde_json::Value::Null)
    });
    let mut node = Hands::new(node.node());
    node.lead().await;
    node.look().await;
    bed.save(&node.node, job("deaf", "deaf")).await;
    let id = node.enqueue(&bed, "deaf").await;
    node.dispatch().await;
    bed.clock.wait_for_sleepers(1).await;
    bed.cancel(id).await;
    node.look().await;
    // The deadline of five minutes, and the grace.
    bed.clock.wait_for_sleepers(2).await;
    assert_eq!(bed.status(id).await, Status::Cancelling);
    bed.go(30_000);
    node.drain().await;
    node.lead().await;
    node.settle().await;
    let record = bed.record(id).await;
    assert_eq!(record.run.state.status(), ended(Verdict::Cancelled));
    assert!(record.trail.iter().any(|entry| entry.kind == TrailKind::GraceOver), "{:?}", record.trail);
}

/// The answer given must be what is stored: success before the word arrived
/// stands.
#[tokio::test]
async fn success_in_the_same_moment_as_a_cancel_stands() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("hello", "noop")).await;
    let id = node.enqueue(&bed, "hello").await;
    node.dispatch().await;
    node.drain().await;
    assert_eq!(bed.cancel(id).await, CancelAnswer::Asked);
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
}

/// A failure in that moment is not retried: it was asked to stop.
#[tokio::test]
async fn failure_in_the_same_moment_as_a_cancel_is_cancelled_and_not_retried() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("fails", "fail")).await;
    let id = node.enqueue(&bed, "fails").await;
    node.dispatch().await;
    node.drain().await;
    bed.cancel(id).await;
    node.settle().await;
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Cancelled));
    node.look().await;
    assert_eq!(node.work().await, 0);
    assert_eq!(bed.work.calls_of(id), 1);
}

#[tokio::test]
async fn a_run_in_backoff_or_delayed_is_cancelled_at_once() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("fails", "fail")).await;
    let retried = node.enqueue(&bed, "fails").await;
    node.work().await;
    let ask = RunAsk::of(bed.tenant, JobRef::Name("fails".into())).at(at(60_000));
    let Made::Run { id: delayed, .. } = node.ask(&bed, ask).await else { panic!("it was not made") };
    for id in [retried, delayed] {
        assert_eq!(bed.status(id).await, Status::Scheduled);
        assert_eq!(bed.cancel(id).await, CancelAnswer::Cancelled);
        assert_eq!(bed.status(id).await, ended(Verdict::Cancelled));
        assert_eq!(bed.cancel(id).await, CancelAnswer::Ended);
    }
}

/// A leased attempt hears of its cancel when leases are extended.
#[tokio::test]
async fn a_leased_attempt_is_told_by_the_extension_of_its_lease() {
    let bed = Bed::new().await;
    let mut node = bed.node_with(rota_engine::Options { traits: vec!["gpu".into()], ..Default::default() }).await;
    bed.save(&node.node, with(job("long", "wait"), json!({ "requires": ["gpu"] }))).await;
    let id = node.enqueue(&bed, "long").await;
    node.claim().await;
    bed.work.wait_for_going(1).await;
    bed.cancel(id).await;
    bed.go(2_000);
    node.heartbeat().await;
    node.drain().await;
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Cancelled));
}

/// The node that is asked executes the run: the attempt hears of it at once, not when its
/// grace has passed.
#[tokio::test]
async fn a_leased_attempt_of_the_node_that_is_asked_is_told_at_once() {
    let bed = Bed::new().await;
    let mut node = bed.node_with(rota_engine::Options { traits: vec!["gpu".into()], ..Default::default() }).await;
    bed.save(&node.node, with(job("long", "wait"), json!({ "requires": ["gpu"] }))).await;
    let id = node.enqueue(&bed, "long").await;
    node.claim().await;
    bed.work.wait_for_going(1).await;
    assert_eq!(node.handle().cancel(&[id], &ask()).await.unwrap(), [CancelAnswer::Asked]);
    node.heartbeat().await;
    node.drain().await;
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Cancelled));
}

/// Whoever was told that a run is to stop must not see it start afterwards. The owner has
/// it in memory, and its notice is late.
#[tokio::test]
async fn an_owner_that_answered_a_cancel_does_not_start_the_run_from_memory() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("hello", "noop")).await;
    let id = node.enqueue(&bed, "hello").await;
    assert_eq!(node.handle().cancel(&[id], &ask()).await.unwrap(), [CancelAnswer::Asked]);
    node.work().await;
    assert_eq!(bed.work.count(), 0, "it began after the answer");
    node.look().await;
    node.work().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Cancelled));
    assert_eq!(bed.record(id).await.started_at, None);
}

/// The run is in hand and waits for a token of its rate when it is asked to stop.
#[tokio::test]
async fn a_held_run_does_not_start_after_its_cancel_was_answered() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, with(job("rated", "noop"), json!({ "rate_limit": { "runs": 1, "per": "10s" } }))).await;
    for _ in 0..3 {
        node.enqueue(&bed, "rated").await;
    }
    node.work().await;
    let waits = |record: &rota_core::store::RunRecord| record.run.state.status() == Status::Queued;
    let id = bed.runs().await.into_iter().find(waits).unwrap().run.id;
    assert_eq!(node.handle().cancel(&[id], &ask()).await.unwrap(), [CancelAnswer::Asked]);
    node.beat_for(&bed, 20_000).await;
    node.work().await;
    assert_eq!(bed.work.calls_of(id), 0, "it began after the answer");
    assert_eq!(bed.status(id).await, ended(Verdict::Cancelled));
}

/// The run is on its way from the store to its worker's hands when it is asked to stop:
/// the store's answer to the claim is older than the cancel.
#[tokio::test]
async fn a_claim_answered_late_does_not_start_a_run_that_was_asked_to_stop() {
    let bed = Bed::new().await;
    let mut node = bed.node_with(rota_engine::Options { traits: vec!["gpu".into()], ..Default::default() }).await;
    bed.save(&node.node, with(job("hello", "noop"), json!({ "requires": ["gpu"] }))).await;
    let id = node.enqueue(&bed, "hello").await;
    bed.faults.lose_answers(1);
    assert!(node.claim.pass(bed.now()).await.is_err(), "the claim is written, and its answer lost");
    assert_eq!(bed.status(id).await, Status::Running);
    assert_eq!(node.handle().cancel(&[id], &ask()).await.unwrap(), [CancelAnswer::Asked]);
    node.claim().await;
    node.drain().await;
    node.settle().await;
    assert_eq!(bed.work.count(), 0, "it began after the answer");
    assert_eq!(bed.status(id).await, ended(Verdict::Cancelled));
}

/// A cancel that was answered as done is final, whatever an owner still remembers.
#[tokio::test]
async fn a_run_cancelled_in_its_backoff_is_never_started_again() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("fails", "fail")).await;
    let id = node.enqueue(&bed, "fails").await;
    node.work().await;
    assert_eq!(bed.status(id).await, Status::Scheduled);
    assert_eq!(node.handle().cancel(&[id], &ask()).await.unwrap(), [CancelAnswer::Cancelled]);
    node.beat_for(&bed, 60_000).await;
    node.promote().await;
    node.look().await;
    node.work().await;
    assert_eq!(bed.work.calls_of(id), 1);
    assert_eq!(bed.status(id).await, ended(Verdict::Cancelled));
}

/// Asked one by one or by a filter, each attempt has the grace that its own job gives it,
/// unless whoever asks says how long.
#[tokio::test]
async fn a_cancel_that_names_no_grace_gives_each_run_that_of_its_job() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let graced = |name: &str, grace: &str| with(job(name, "wait"), json!({ "cancel": { "grace": grace } }));
    bed.save(&node.node, graced("short", "2s")).await;
    bed.save(&node.node, graced("long", "10m")).await;
    bed.save(&node.node, job("plain", "wait")).await;
    let mut runs = Vec::new();
    for name in ["short", "long", "plain", "long"] {
        runs.push(node.enqueue(&bed, name).await);
    }
    node.dispatch().await;
    bed.work.wait_for_going(4).await;
    let first = node.handle().cancel(&runs[..1], &Cancel::default()).await.unwrap();
    assert_eq!(first, [CancelAnswer::Asked]);
    let many = node.handle().cancel_all(RunQuery::default(), &Cancel::default(), 100, false).await.unwrap();
    assert_eq!((many.found, many.asked), (4, 3), "the first had been asked before");
    for (run, seconds) in runs.iter().zip([2, 600, 30, 600]) {
        let cancel = bed.record(*run).await.run.cancel.expect("it was asked to stop");
        assert_eq!(cancel.at.duration_until(cancel.grace_until).as_secs(), seconds);
    }
}

fn ask() -> Cancel {
    Cancel { by: Some("ann".into()), reason: None, grace: Some(Span::secs(30)) }
}
