//! Partitions go to others at once; the attempts in flight stay where they are.

use rota_core::{
    ids::RunId,
    run::{Hold, RunState, Status, Verdict},
    store::CancelAnswer,
};
use rota_engine::stages::Stage;
use serde_json::json;

use crate::bed::*;

/// A node with attempts in flight that last until the gate is opened.
async fn busy(bed: &Bed, handler: &str, count: usize) -> (Hands, Vec<RunId>) {
    let mut node = bed.node().await;
    bed.save(&node.node, job("long", handler)).await;
    let mut runs = Vec::new();
    for _ in 0..count {
        runs.push(node.enqueue(bed, "long").await);
    }
    node.dispatch().await;
    bed.work.wait_for_going(count).await;
    bed.clock.wait_for_sleepers(count).await;
    (node, runs)
}

fn held(node: &Hands) -> usize {
    node.node.territory.parts().len()
}

/// Ends all that waits and settles it.
async fn finish(bed: &Bed, node: &mut Hands) {
    bed.work.open();
    node.drain().await;
    node.settle().await;
    node.settle().await;
}

/// Schedules were late by as long as attempts in flight kept their partitions.
#[tokio::test]
async fn a_node_that_drains_gives_everything_in_its_first_pass() {
    let bed = Bed::new().await;
    let (mut leaving, runs) = busy(&bed, "wait", 5).await;
    let waiting = leaving.enqueue(&bed, "long").await;
    leaving.node.executing.drain();
    leaving.lead().await;
    assert_eq!((held(&leaving), leaving.node.stats.partitions.get()), (0, 0));
    let mut next = bed.node().await;
    assert_eq!(held(&next), 256, "nobody waits for its lease to run out");
    for run in &runs {
        let state = bed.record(*run).await.run.state;
        assert!(matches!(state, RunState::Running { hold: Hold::Leased(_), .. }), "{state:?}");
    }

    leaving.dispatch().await;
    next.dispatch().await;
    bed.work.wait_for_going(6).await;
    bed.clock.wait_for_sleepers(6).await;
    finish(&bed, &mut leaving).await;
    next.drain().await;
    next.settle().await;
    for run in runs.iter().chain([&waiting]) {
        assert_eq!((bed.status(*run).await, bed.work.calls_of(*run)), (ended(Verdict::Succeeded), 1));
    }
    assert_eq!((leaving.node.stats.lost.get(), leaving.node.stats.stale.get()), (0, 0));
    leaving.lead().await;
    assert_eq!(bed.store.nodes(bed.now()).await.unwrap().len(), 1, "it sends no more heartbeats");
}

/// A node that joins waited for long attempts of others, and then did not get their partitions.
#[tokio::test]
async fn a_partition_is_given_to_whom_it_falls_although_attempts_are_in_flight_in_it() {
    let bed = Bed::new().await;
    let (mut first, runs) = busy(&bed, "wait", 256).await;
    let mut second = bed.node().await;
    bed.go(1_000);
    first.lead().await;
    second.lead().await;
    assert_eq!(held(&first) + held(&second), 256);
    assert!(held(&second) > 80, "{}", held(&second));
    second.look().await;
    second.dispatch().await;
    first.heartbeat().await;
    finish(&bed, &mut first).await;
    assert_eq!(first.node.stats.ended_as(Verdict::Succeeded), 256);
    assert!(runs.iter().all(|run| bed.work.calls_of(*run) == 1));
}

/// Whatever the node that drains kept must start elsewhere if it dies.
#[tokio::test]
async fn an_attempt_whose_node_dies_after_the_hand_over_is_started_by_another() {
    let bed = Bed::new().await;
    let (mut leaving, runs) = busy(&bed, "wait", 1).await;
    leaving.node.executing.drain();
    leaving.lead().await;
    let mut next = bed.node().await;
    leaving.abort_all().await;
    next.beat_for(&bed, 6_000).await;
    assert_eq!(next.reap().await.done, 0, "its lease holds");
    next.beat_for(&bed, 1_000).await;
    assert_eq!(next.reap().await.done, 1);
    bed.go(1_000);
    next.lead().await;
    next.promote().await;
    next.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.clock.wait_for_sleepers(1).await;
    finish(&bed, &mut next).await;
    let record = bed.record(runs[0]).await;
    assert_eq!((record.run.state.status(), record.run.losses), (ended(Verdict::Succeeded), 1));
    assert_eq!(bed.work.calls_of(runs[0]), 2);
}

/// A cancel goes to the owner of a partition, who has nothing to do with the attempt any more.
#[tokio::test]
async fn a_cancel_reaches_an_attempt_before_and_after_the_hand_over() {
    for before in [true, false] {
        let bed = Bed::new().await;
        let (mut leaving, runs) = busy(&bed, "polite", 1).await;
        if before {
            assert_eq!(bed.cancel(runs[0]).await, CancelAnswer::Asked);
        }
        leaving.node.executing.drain();
        leaving.lead().await;
        let mut next = bed.node().await;
        if !before {
            assert_eq!(bed.cancel(runs[0]).await, CancelAnswer::Asked);
        }
        next.look().await;
        assert_eq!(next.settle().await.done, 0, "it is not the next owner's to end");
        assert_eq!(bed.status(runs[0]).await, Status::Cancelling);
        if !before {
            leaving.heartbeat().await;
            bed.go(2_000);
        }
        leaving.heartbeat().await;
        leaving.drain().await;
        leaving.settle().await;
        assert_eq!((bed.status(runs[0]).await, bed.work.calls_of(runs[0])), (ended(Verdict::Cancelled), 1));
    }
}

/// An answer that was lost says nothing about who holds the attempts: neither may their
/// partition go, nor may they be settled or given up.
#[tokio::test]
async fn a_partition_is_kept_until_the_store_has_answered_for_its_attempts() {
    let bed = Bed::new().await;
    let (mut leaving, runs) = busy(&bed, "wait", 2).await;
    leaving.node.executing.drain();
    bed.faults.lose_answers(1);
    assert!(leaving.lead.pass(bed.now()).await.is_err());
    assert_eq!(held(&leaving), 256);
    bed.go(300);
    leaving.heartbeat().await;
    leaving.let_run().await;
    assert_eq!(leaving.node.executing.running(), 2, "a mark that comes too late stops nobody");
    bed.work.open();
    leaving.drain().await;
    assert_eq!(leaving.settle().await.done, 0, "by what right is not known");
    leaving.lead().await;
    assert_eq!(held(&leaving), 0);
    assert_eq!(leaving.settle().await.done, 2);
    for run in runs {
        assert_eq!((bed.status(run).await, bed.work.calls_of(run)), (ended(Verdict::Succeeded), 1));
    }
    assert_eq!((leaving.node.stats.lost.get(), leaving.node.stats.stale.get()), (0, 0));
}

/// A store that is away leaves everything as it was: the attempts are the owner's.
#[tokio::test]
async fn attempts_that_could_not_be_leased_are_settled_by_their_owner() {
    let bed = Bed::new().await;
    let (mut leaving, runs) = busy(&bed, "wait", 1).await;
    leaving.node.executing.drain();
    bed.faults.set_away(true);
    assert!(leaving.lead.pass(bed.now()).await.is_err());
    bed.work.open();
    leaving.drain().await;
    bed.faults.set_away(false);
    assert_eq!(leaving.settle().await.done, 1);
    assert_eq!(bed.status(runs[0]).await, ended(Verdict::Succeeded));
    leaving.lead().await;
    assert_eq!(held(&leaving), 0);
}

/// An end that is on its way to the store when the partition goes must not be refused there:
/// the run would be executed again.
#[tokio::test]
async fn an_end_that_meets_the_hand_over_is_settled_by_its_lease() {
    let bed = Bed::new().await;
    let (mut leaving, runs) = busy(&bed, "wait", 3).await;
    bed.work.open();
    leaving.drain().await;
    bed.faults.set_away(true);
    assert!(leaving.settle.pass(bed.now()).await.is_err());
    bed.faults.set_away(false);
    leaving.node.executing.drain();
    leaving.lead().await;
    assert_eq!(held(&leaving), 0);
    leaving.settle().await;
    leaving.settle().await;
    for run in runs {
        assert_eq!((bed.status(run).await, bed.work.calls_of(run)), (ended(Verdict::Succeeded), 1));
    }
    assert_eq!(leaving.node.stats.stale.get(), 0);
}

/// A run in hand that waits for a token has not begun: it is the next owner's to start.
#[tokio::test]
async fn a_run_in_hand_that_has_not_begun_goes_with_its_partition() {
    let bed = Bed::new().await;
    let mut leaving = bed.node().await;
    bed.save(&leaving.node, with(job("rated", "noop"), json!({ "rate_limit": { "runs": 1, "per": "10s" } }))).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(leaving.enqueue(&bed, "rated").await);
    }
    leaving.work().await;
    assert_eq!(bed.work.count(), 2, "one waits for a token");
    leaving.node.executing.drain();
    leaving.lead().await;
    leaving.dispatch().await;
    let mut next = bed.node().await;
    next.beat_for(&bed, 11_000).await;
    next.look().await;
    assert_eq!((next.work().await, bed.work.count()), (1, 3));
    for run in runs {
        assert_eq!(bed.status(run).await, ended(Verdict::Succeeded));
    }
}
