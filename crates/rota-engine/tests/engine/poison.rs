//! Runs that kill their process.

use jiff::SignedDuration;
use rota_core::run::{Status, Verdict};
use rota_engine::Options;

use crate::bed::*;

/// A node that dies leaves its attempts as they are: dropped unannounced.
async fn die(bed: &Bed, node: Hands) {
    node.abort_all().await;
    drop(node);
    // Its lease and those of its runs run out.
    bed.go(10_000);
}

/// A death that no claim names must not repeat itself without end: what is
/// inherited is leased in writing.
#[tokio::test]
async fn an_inherited_run_is_leased_in_writing_before_it_is_executed() {
    let bed = Bed::new().await;
    let first = bed.node().await;
    bed.save(&first.node, job("long", "wait")).await;
    let inherited = first.enqueue(&bed, "long").await;
    die(&bed, first).await;
    let mut second = bed.node().await;
    bed.go(1);
    let fresh = second.enqueue(&bed, "long").await;
    second.dispatch().await;
    bed.work.wait_for_going(2).await;
    assert_eq!(bed.status(inherited).await, Status::Running, "leased in writing");
    assert_eq!(bed.status(fresh).await, Status::Queued, "no claim is written");
    bed.work.open();
    second.drain().await;
    second.settle().await;
    for id in [inherited, fresh] {
        assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
    }
}

/// The same, where the clock was set back meanwhile: the run was created later than its
/// partition was taken, by what the clock says, and may have killed its owner all the same.
#[tokio::test]
async fn an_inherited_run_is_leased_in_writing_after_the_clock_was_set_back() {
    let bed = Bed::new().await;
    let first = bed.node().await;
    bed.save(&first.node, job("long", "wait")).await;
    let inherited = first.enqueue(&bed, "long").await;
    first.abort_all().await;
    bed.store.leave(first.node.id).await.unwrap();
    drop(first);
    bed.clock.step(SignedDuration::from_hours(-1));
    let mut second = bed.node().await;
    bed.go(1);
    let fresh = second.enqueue(&bed, "long").await;
    second.dispatch().await;
    bed.work.wait_for_going(2).await;
    assert_eq!(bed.status(inherited).await, Status::Running, "leased in writing");
    assert_eq!(bed.status(fresh).await, Status::Queued, "no claim is written");
    bed.work.open();
    second.drain().await;
}

/// What a dead owner had marked as running is a loss, at no cost of an attempt.
#[tokio::test]
async fn a_marked_run_of_a_dead_owner_is_lost_and_comes_back() {
    let bed = Bed::new().await;
    let mut first = bed.node().await;
    bed.save(&first.node, job("long", "wait")).await;
    let id = first.enqueue(&bed, "long").await;
    first.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.go(1_000);
    first.heartbeat().await;
    assert_eq!(bed.status(id).await, Status::Running);
    die(&bed, first).await;
    let mut second = bed.node().await;
    second.settle().await;
    let run = bed.record(id).await.run;
    assert_eq!((run.state.status(), run.losses, run.attempts_used), (Status::Scheduled, 1, 0));
    second.beat_for(&bed, 1_000).await;
    second.promote().await;
    second.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.work.open();
    second.drain().await;
    second.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
}

/// A run that kills every process it is executed in ends as a dead letter after
/// a bounded number of deaths, and its neighbours are whole.
#[tokio::test]
async fn a_poison_run_is_dead_after_few_deaths_and_its_neighbours_are_whole() {
    let bed = Bed::new().await;
    let first = bed.node().await;
    bed.save(&first.node, job("poison", "wait")).await;
    bed.save(&first.node, job("neighbour", "noop")).await;
    let poison = first.enqueue(&bed, "poison").await;
    let neighbours: Vec<_> = {
        let mut all = Vec::new();
        for _ in 0..5 {
            all.push(first.enqueue(&bed, "neighbour").await);
        }
        all
    };
    let mut node = first;
    let mut deaths = 0;
    for _ in 0..20 {
        node.lead().await;
        node.look().await;
        node.reap().await;
        for _ in 0..3 {
            bed.go(1_000);
            node.lead().await;
            node.promote().await;
            node.look().await;
            node.dispatch().await;
            node.let_run().await;
            if bed.work.going.load(std::sync::atomic::Ordering::SeqCst) > 0 {
                break;
            }
            node.settle().await;
        }
        if matches!(bed.status(poison).await, Status::Ended(_)) {
            break;
        }
        if bed.work.going.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            // It kills its process; nothing of this moment is settled.
            deaths += 1;
            let heir = bed.builder(Options::default()).node();
            die(&bed, node).await;
            node = Hands::new(heir);
        }
    }
    let record = bed.record(poison).await;
    assert_eq!((record.run.state.status(), record.run.losses), (ended(Verdict::Dead), 3));
    assert!(deaths <= 4, "{deaths} deaths");
    node.look().await;
    node.work().await;
    for id in neighbours {
        let record = bed.record(id).await;
        assert_eq!(record.run.state.status(), ended(Verdict::Succeeded));
        assert_eq!(record.run.attempts_used, 0);
    }
}

/// One that takes hours, or waits for one that does, holds up nobody for long.
#[tokio::test]
async fn a_suspect_that_does_not_end_holds_up_nobody() {
    let bed = Bed::new().await;
    let options = || Options { alone_from: 1, ..Options::default() };
    let mut first = bed.node_with(options()).await;
    bed.save(&first.node, job("long", "wait")).await;
    let suspect = first.enqueue(&bed, "long").await;
    first.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.go(1_000);
    first.heartbeat().await;
    die(&bed, first).await;
    let mut second = bed.node_with(options()).await;
    second.settle().await;
    bed.go(1);
    let before = second.enqueue(&bed, "long").await;
    second.dispatch().await;
    bed.work.wait_for_going(1).await;
    second.beat_for(&bed, 1_000).await;
    second.promote().await;
    for _ in 0..2 {
        second.dispatch().await;
        second.let_run().await;
    }
    assert_eq!((bed.work.calls_of(before), bed.work.calls_of(suspect)), (1, 1), "it waits for the other");
    let late = second.enqueue(&bed, "long").await;
    for _ in 0..12 {
        second.beat_for(&bed, 1_000).await;
        second.dispatch().await;
        second.let_run().await;
    }
    assert_eq!(bed.work.calls_of(suspect), 2, "it does not wait for ever");
    assert_eq!(bed.work.calls_of(late), 1, "nor do others for it");
    bed.work.open();
}

/// From its second loss on a suspect has the process to itself.
#[tokio::test]
async fn a_run_that_lost_two_workers_is_executed_alone() {
    let bed = Bed::new().await;
    let options = || Options { alone_from: 1, ..Options::default() };
    let mut first = bed.node_with(options()).await;
    bed.save(&first.node, job("long", "wait")).await;
    let suspect = first.enqueue(&bed, "long").await;
    first.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.go(1_000);
    first.heartbeat().await;
    die(&bed, first).await;
    let mut second = bed.node_with(options()).await;
    second.settle().await;
    bed.go(1);
    let others: Vec<_> = [second.enqueue(&bed, "long").await, second.enqueue(&bed, "long").await].into();
    second.dispatch().await;
    bed.work.wait_for_going(2).await;
    second.beat_for(&bed, 1_000).await;
    second.promote().await;
    second.dispatch().await;
    second.dispatch().await;
    second.let_run().await;
    assert_eq!(bed.work.calls_of(suspect), 1, "it waits until nothing is beside it");
    let late = second.enqueue(&bed, "long").await;
    second.dispatch().await;
    second.let_run().await;
    assert_eq!(bed.work.calls_of(late), 0, "and nothing new is begun");
    bed.work.open();
    second.drain().await;
    second.dispatch().await;
    second.let_run().await;
    assert_eq!(bed.work.calls_of(suspect), 1, "the others' outcomes must be safe first");
    second.settle().await;
    second.dispatch().await;
    bed.work.wait_for_going(1).await;
    second.dispatch().await;
    second.let_run().await;
    assert_eq!((bed.work.calls_of(suspect), bed.work.calls_of(late)), (2, 0));
    bed.work.open();
    second.drain().await;
    second.settle().await;
    second.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.work.open();
    second.drain().await;
    second.settle().await;
    for id in others.into_iter().chain([suspect, late]) {
        assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
    }
}

/// A worker that vanished with leased runs is reaped, and only after its lease.
#[tokio::test]
async fn leased_runs_of_a_dead_node_are_reaped_after_their_lease() {
    let bed = Bed::new().await;
    let gpu = || Options { traits: vec!["gpu".into()], ..Options::default() };
    let mut first = bed.node_with(gpu()).await;
    bed.save(&first.node, with(job("long", "wait"), serde_json::json!({ "requires": ["gpu"] }))).await;
    let id = first.enqueue(&bed, "long").await;
    first.claim().await;
    bed.work.wait_for_going(1).await;
    first.abort_all().await;
    drop(first);
    bed.go(5_000);
    let mut second = bed.node_with(gpu()).await;
    assert_eq!(second.reap().await.done, 0);
    second.beat_for(&bed, 5_000).await;
    assert_eq!(second.reap().await.done, 0, "its worker may live, and had nobody to tell");
    second.beat_for(&bed, 1_000).await;
    assert_eq!(second.reap().await.done, 1);
    second.beat_for(&bed, 1_000).await;
    second.promote().await;
    second.claim().await;
    bed.work.wait_for_going(1).await;
    bed.work.open();
    second.drain().await;
    second.settle().await;
    let record = bed.record(id).await;
    assert_eq!((record.run.state.status(), record.run.losses), (ended(Verdict::Succeeded), 1));
}
