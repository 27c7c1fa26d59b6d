//! Who owns which partition, and what becomes of a former owner.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::Partition,
    run::{Status, Verdict},
};
use rota_engine::{Options, stages::Stage};
use serde_json::json;

use crate::{
    bed::*,
    faulty::{Fate, Faulty, Kind, Line, Parcel, Untapped},
};

fn parts(node: &Hands) -> Vec<Partition> {
    node.node.territory.parts()
}

#[tokio::test]
async fn a_single_node_holds_every_partition() {
    let bed = Bed::new().await;
    let node = bed.node().await;
    assert_eq!(parts(&node).len(), 256);
    assert_eq!(node.node.stats.partitions.get(), 256);
}

/// The whole of a hand-over by rebalancing, and of one by death.
#[tokio::test]
async fn two_nodes_share_partitions_and_takeover_fires_within_a_lease() {
    let bed = Bed::new().await;
    let mut first = bed.node().await;
    let mut second = bed.node().await;
    assert_eq!(parts(&second), [], "nothing is taken from a live node");
    bed.go(1_000);
    first.lead().await;
    second.lead().await;
    let (one, two) = (parts(&first), parts(&second));
    assert_eq!(one.len() + two.len(), 256);
    assert!(one.len() > 80 && two.len() > 80, "{} and {}", one.len(), two.len());
    assert!(one.iter().all(|part| !two.contains(part)));

    // Schedules on both; the first node dies.
    let schedules: Vec<_> = (0..20)
        .map(|n| json!({ "name": format!("s{n}"), "every": "10s", "anchor": at(0), "overlap": "allow" }))
        .collect();
    bed.save(&second.node, with(job("tick", "noop"), json!({ "schedules": schedules }))).await;
    first.fire().await;
    second.fire().await;
    let mut fired_at = None;
    for second_number in 2..=16_u64 {
        bed.go(1_000);
        if second_number < 9 {
            first.lead().await;
        }
        second.lead().await;
        second.look().await;
        second.fire().await;
        if bed.planned().await.len() == 20 && fired_at.is_none() {
            fired_at = Some(second_number);
        }
    }
    // Its lease was last renewed at 8 s and held until 11 s.
    assert_eq!(fired_at, Some(12));
    assert_eq!(bed.planned().await, [10_000; 20]);
    assert_eq!(parts(&second).len(), 256);
}

/// A take whose answer was lost must not leave a partition that its node does
/// not know of and nobody else may take.
#[tokio::test]
async fn partitions_taken_without_an_answer_are_given_to_whom_they_fall() {
    let bed = Bed::new().await;
    let mut first = bed.node().await;
    let mut second = bed.node().await;
    bed.go(1_000);
    first.lead().await;
    second.lead().await;
    let theirs = parts(&second);
    second.lead.leave().await.unwrap();
    bed.store.take_partitions(first.node.id, &theirs, bed.now()).await.unwrap();
    second.lead().await;
    assert_eq!(parts(&second), [], "a live node has them");
    first.lead().await;
    bed.go(1_000);
    second.lead().await;
    assert_eq!(parts(&second), theirs);
}

/// A node that was away and does not know that it is presumed dead must change
/// nothing.
#[tokio::test]
async fn stale_owner_settles_nothing() {
    let bed = Bed::new().await;
    let mut zombie = bed.node().await;
    bed.save(&zombie.node, job("hello", "noop")).await;
    let id = zombie.enqueue(&bed, "hello").await;
    zombie.dispatch().await;
    zombie.drain().await;
    // It stands still for three lease times; another takes over.
    bed.go(9_000);
    let mut heir = bed.node().await;
    assert_eq!(parts(&heir).len(), 256);
    zombie.settle().await;
    assert_eq!(zombie.node.stats.stale.get(), 1);
    assert_eq!(bed.status(id).await, Status::Queued, "its first write changes nothing");
    heir.work().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
    assert_eq!(bed.work.calls_of(id), 2);
    zombie.lead().await;
    assert_eq!(parts(&zombie), [], "it learns that it holds nothing");
    zombie.look().await;
    assert_eq!(zombie.work().await, 0);
}

/// A node that loses a partition and gets it back must find there what it could
/// not settle.
#[tokio::test]
async fn what_was_refused_to_settle_is_executed_again_by_who_owns_it_next() {
    let bed = Bed::new().await;
    let mut first = bed.node().await;
    bed.save(&first.node, job("hello", "noop")).await;
    let id = first.enqueue(&bed, "hello").await;
    first.dispatch().await;
    first.drain().await;
    bed.go(9_000);
    let mut second = bed.node().await;
    first.settle().await;
    second.lead.leave().await.unwrap();
    first.lead().await;
    assert_eq!(parts(&first).len(), 256);
    first.look().await;
    first.work().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
}

/// A node whose lease ran out must not start what another may own.
#[tokio::test]
async fn nothing_is_started_after_the_nodes_lease_ran_out() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("hello", "noop")).await;
    let id = node.enqueue(&bed, "hello").await;
    bed.go(3_001);
    node.dispatch().await;
    node.let_run().await;
    assert_eq!(bed.work.calls_of(id), 0);
    node.lead().await;
    node.work().await;
    assert_eq!(bed.work.calls_of(id), 1);
}

/// A way to the store on which it cannot be read who owns which partition.
#[derive(Default)]
struct Unread(AtomicBool);

impl Line for Unread {
    fn fate(&self, what: &'static str, _: Kind) -> Fate {
        if what == "partitions" && self.0.load(Ordering::SeqCst) { Fate::Refused } else { Fate::Through }
    }

    fn post(&self, _: Timestamp, parcel: Parcel) {
        parcel();
    }

    fn has_come(&self, _: Timestamp) -> bool {
        true
    }
}

/// A node that stood still sends heartbeats again, and others have taken its partitions meanwhile: it
/// begins nothing from memory before it knows what is its own.
#[tokio::test]
async fn a_node_that_was_away_begins_nothing_before_it_knows_what_is_its_own() {
    let mut bed = Bed::new().await;
    let (inner, unread) = (Arc::clone(&bed.faults.inner), Arc::new(Unread::default()));
    bed.store = Arc::new(Faulty::over(inner, Arc::clone(&unread) as Arc<dyn Line>, Arc::new(Untapped)));
    let mut node = bed.node().await;
    bed.save(&node.node, job("hello", "noop")).await;
    let id = node.enqueue(&bed, "hello").await;
    bed.go(3_001);
    let part = bed.take_from(&node.node, id).await;
    unread.0.store(true, Ordering::SeqCst);
    assert!(node.lead.pass(bed.now()).await.is_err());
    node.dispatch().await;
    node.let_run().await;
    assert_eq!(bed.work.calls_of(id), 0);
    unread.0.store(false, Ordering::SeqCst);
    node.lead().await;
    assert!(node.node.rights.node_lease_holds());
    assert_eq!(node.node.territory.held(part), None);
}

/// An attempt whose partition went to another is stopped.
#[tokio::test]
async fn attempts_stop_when_their_partition_is_lost() {
    let bed = Bed::new().await;
    let mut zombie = bed.node().await;
    bed.save(&zombie.node, job("long", "wait")).await;
    zombie.enqueue(&bed, "long").await;
    zombie.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.clock.wait_for_sleepers(1).await;
    bed.go(9_000);
    let _heir = bed.node().await;
    zombie.lead().await;
    zombie.drain().await;
    assert_eq!(zombie.node.stats.lost.get(), 1);
    assert_eq!(zombie.settle().await.done, 0, "there is nothing to settle");
}

/// A run that waits for a token goes with its partition.
#[tokio::test]
async fn a_run_that_waited_in_hand_is_not_started_after_its_partition_was_lost() {
    let bed = Bed::new().await;
    let mut zombie = bed.node().await;
    bed.save(&zombie.node, with(job("rated", "noop"), json!({ "rate_limit": { "runs": 1, "per": "10s" } }))).await;
    for _ in 0..3 {
        zombie.enqueue(&bed, "rated").await;
    }
    zombie.work().await;
    assert_eq!(bed.work.count(), 2, "one waits for a token");
    bed.go(9_000);
    let _heir = bed.node().await;
    zombie.lead().await;
    bed.go(1_000);
    zombie.lead().await;
    zombie.dispatch().await;
    zombie.let_run().await;
    assert_eq!(bed.work.count(), 2);
}

/// Everybody missed their heartbeats while the store was away; nobody has died.
#[tokio::test]
async fn after_an_outage_nobody_is_presumed_dead_for_a_lease_time() {
    let bed = Bed::new().await;
    let mut first = bed.node().await;
    let mut second = bed.node().await;
    bed.go(1_000);
    first.lead().await;
    second.lead().await;
    let (one, two) = (parts(&first), parts(&second));
    bed.faults.set_away(true);
    for _ in 0..30 {
        let now = bed.clock.advance(Span::secs(1));
        assert!(first.lead.pass(now).await.is_err());
        assert!(second.lead.pass(now).await.is_err());
    }
    bed.faults.set_away(false);
    // The first is back a little earlier.
    first.lead().await;
    assert_eq!(parts(&first), one, "it takes nothing over");
    assert!(first.node.rights.is_quiet(bed.now()));
    assert_eq!(first.reap().await.done, 0);
    bed.go(500);
    second.lead().await;
    assert_eq!((parts(&first), parts(&second)), (one, two), "both have what they had");
}

/// A partition that was about to be given to a node that went must be worked on.
#[tokio::test]
async fn what_was_to_be_given_away_stays_when_the_other_goes() {
    let bed = Bed::new().await;
    let mut first = bed.node().await;
    bed.save(&first.node, job("long", "wait")).await;
    for _ in 0..256 {
        first.enqueue(&bed, "long").await;
    }
    first.dispatch().await;
    bed.work.wait_for_going(256).await;
    let mut second = bed.node().await;
    bed.go(1_000);
    bed.faults.lose_answers(1);
    assert!(first.lead.pass(bed.now()).await.is_err());
    let leaving = |node: &Hands| node.node.territory.table().iter().flatten().filter(|held| held.leaving).count();
    assert!(leaving(&first) > 80);
    second.lead.leave().await.unwrap();
    bed.go(1_000);
    first.lead().await;
    assert_eq!((leaving(&first), parts(&first).len()), (0, 256));
    bed.work.open();
    first.drain().await;
    first.settle().await;
    assert_eq!(first.node.stats.ended_as(Verdict::Succeeded), 256);
}

/// The file of a sole process needs nobody's lease to run out.
#[tokio::test]
async fn a_sole_node_takes_over_at_once() {
    let bed = Bed::new().await;
    let _dead = bed.node().await;
    bed.go(10);
    let node = bed.node_with(Options { sole: true, ..Options::default() }).await;
    assert_eq!(parts(&node).len(), 256);
}

/// The way out: everything is free at once, and another node goes on.
#[tokio::test]
async fn a_node_that_leaves_frees_its_partitions_at_once() {
    let bed = Bed::new().await;
    let mut first = bed.node().await;
    first.lead.leave().await.unwrap();
    let second = bed.node().await;
    assert_eq!(parts(&second).len(), 256);
}
