//! Answers that are lost, and stores that are away.

use rota_core::run::{Status, Verdict};
use rota_engine::stages::Stage;
use serde_json::json;

use crate::bed::*;

/// A settlement whose answer is lost is asked for again, and applied once.
#[tokio::test]
async fn a_settlement_whose_answer_was_lost_is_applied_once() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("fails", "later")).await;
    let id = node.enqueue(&bed, "fails").await;
    node.dispatch().await;
    node.drain().await;
    bed.faults.lose_answers(2);
    for _ in 0..2 {
        assert!(node.settle.pass(bed.now()).await.is_err());
    }
    assert_eq!(node.settle().await.done, 1);
    let record = bed.record(id).await;
    assert_eq!((record.run.attempts_used, record.trail.len()), (1, 1));
    assert_eq!(node.node.stats.stale.get(), 0);
}

/// Outcomes survive an outage, and settle when the store is back.
#[tokio::test]
async fn outcomes_survive_an_outage_of_the_store() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("long", "wait")).await;
    let ids = [node.enqueue(&bed, "long").await, node.enqueue(&bed, "long").await];
    node.dispatch().await;
    bed.work.wait_for_going(2).await;
    bed.clock.wait_for_sleepers(2).await;
    bed.faults.set_away(true);
    bed.work.open();
    node.drain().await;
    for _ in 0..30 {
        bed.go(1_000);
        assert!(node.lead.pass(bed.now()).await.is_err());
        assert!(node.settle.pass(bed.now()).await.is_err());
    }
    bed.faults.set_away(false);
    node.lead().await;
    assert_eq!(node.settle().await.done, 2);
    for id in ids {
        assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
        assert_eq!(bed.work.calls_of(id), 1, "none runs twice");
    }
}

/// An outage that nobody has noticed yet must not be blamed on what was to be
/// settled: a success would become a failure.
#[tokio::test]
async fn an_outcome_is_not_blamed_for_an_outage_between_two_beats() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("hello", "noop")).await;
    let id = node.enqueue(&bed, "hello").await;
    node.dispatch().await;
    node.drain().await;
    bed.faults.set_away(true);
    for _ in 0..10 {
        bed.go(50);
        assert!(node.settle.pass(bed.now()).await.is_err());
    }
    bed.faults.set_away(false);
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
}

/// A fire whose answer is lost makes each run once, and hands it over all the
/// same.
#[tokio::test]
async fn a_fire_whose_answer_was_lost_makes_one_run_and_starts_it() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    let schedule = json!({ "name": "beat", "every": "10s", "anchor": at(0) });
    bed.save(&node.node, with(job("tick", "noop"), json!({ "schedules": [schedule] }))).await;
    node.beat_for(&bed, 9_999).await;
    bed.faults.lose_answers(1);
    assert!(node.fire.pass(bed.now()).await.is_err());
    node.fire().await;
    assert_eq!(bed.planned().await, [10_000]);
    assert_eq!(node.work().await, 1);
}

/// Several batches are on their way at once, and each may be in doubt.
#[tokio::test]
async fn batches_whose_answers_were_lost_together_make_each_run_once() {
    let bed = Bed::new().await;
    let options = rota_engine::Options { fire_batch: 2, ..rota_engine::Options::default() };
    let mut node = bed.node_with(options).await;
    bed.go(1);
    let schedules: Vec<_> =
        (0..6).map(|n| json!({ "name": format!("beat-{n}"), "every": "10s", "anchor": at(0) })).collect();
    bed.save(&node.node, with(job("tick", "noop"), json!({ "schedules": schedules }))).await;
    node.beat_for(&bed, 9_999).await;
    bed.faults.lose_answers(2);
    assert!(node.fire.pass(bed.now()).await.is_err());
    assert_eq!(bed.planned().await.len(), 4, "two batches were done, and their answers lost");
    node.fire().await;
    assert_eq!(bed.planned().await, [10_000; 6]);
    assert_eq!(node.work().await, 6, "all are handed over");
}

/// A promotion whose answer is lost must not leave the run ready and unknown.
#[tokio::test]
async fn a_promotion_whose_answer_was_lost_hands_over_its_runs() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("fails", "later")).await;
    let id = node.enqueue(&bed, "fails").await;
    node.work().await;
    node.beat_for(&bed, 5_000).await;
    bed.faults.lose_answers(1);
    assert!(node.promote.pass(bed.now()).await.is_err());
    node.promote().await;
    node.work().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
}

/// A claim whose answer is lost is asked for again and brings the same runs.
#[tokio::test]
async fn a_claim_whose_answer_was_lost_brings_the_same_runs() {
    let bed = Bed::new().await;
    let gpu = rota_engine::Options { traits: vec!["gpu".into()], ..rota_engine::Options::default() };
    let mut node = bed.node_with(gpu).await;
    bed.save(&node.node, with(job("hello", "noop"), json!({ "requires": ["gpu"] }))).await;
    let id = node.enqueue(&bed, "hello").await;
    bed.faults.lose_answers(1);
    assert!(node.claim.pass(bed.now()).await.is_err());
    assert_eq!(bed.status(id).await, Status::Running);
    node.work().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
    assert_eq!(bed.work.calls_of(id), 1);
}

/// The written lease of a suspect, too, is asked for under its own name.
#[tokio::test]
async fn a_lease_of_a_suspect_whose_answer_was_lost_starts_it_once() {
    let bed = Bed::new().await;
    let first = bed.node().await;
    bed.save(&first.node, job("hello", "noop")).await;
    let id = first.enqueue(&bed, "hello").await;
    drop(first);
    bed.go(10_000);
    let mut second = bed.node().await;
    bed.faults.lose_answers(1);
    assert!(second.dispatch.pass(bed.now()).await.is_err());
    second.work().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
    assert_eq!(bed.work.calls_of(id), 1);
}

/// A mark whose answer is lost must not stop the attempt as lost.
#[tokio::test]
async fn a_mark_whose_answer_was_lost_leaves_the_attempt_alone() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("long", "wait")).await;
    let id = node.enqueue(&bed, "long").await;
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.clock.wait_for_sleepers(1).await;
    bed.go(1_500);
    bed.faults.lose_answers(1);
    assert!(node.heartbeat.pass(bed.now()).await.is_err());
    node.heartbeat().await;
    assert_eq!(node.node.executing.running(), 1);
    bed.work.open();
    node.drain().await;
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
}

/// Nor must one that the store was away for when it was asked for again: the run would be
/// stopped here, and stay running in the store for as long as its owner lives.
#[tokio::test]
async fn a_mark_whose_answer_was_lost_before_an_outage_leaves_the_attempt_alone() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("long", "wait")).await;
    let id = node.enqueue(&bed, "long").await;
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.clock.wait_for_sleepers(1).await;
    bed.go(1_500);
    bed.faults.lose_answers(1);
    assert!(node.heartbeat.pass(bed.now()).await.is_err());
    bed.faults.set_away(true);
    for _ in 0..2 {
        assert!(node.heartbeat.pass(bed.now()).await.is_err());
    }
    bed.faults.set_away(false);
    node.heartbeat().await;
    node.let_run().await;
    assert_eq!(node.node.executing.running(), 1);
    bed.work.open();
    node.drain().await;
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
}
