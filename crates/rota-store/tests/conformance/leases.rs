//! Partitions and nodes: one live holder each, fenced by an epoch that rises.

use rota_core::{
    ids::{PARTITIONS, Partition},
    store::{Epoch, Guarded},
};

use crate::harness::*;

/// All partitions are there from the start, held by nobody.
pub async fn every_partition_is_there_from_the_start(h: &Harness) {
    let parts = h.store.partitions().await.unwrap();
    assert_eq!(parts.len(), PARTITIONS);
    assert!(parts.iter().zip(Partition::all()).all(|(lease, part)| lease.part == part && lease.node.is_none()));
}

/// A node that has not said that it lives holds nothing.
pub async fn a_node_that_has_not_beaten_takes_nothing(h: &Harness) {
    let node = h.node_id();
    assert_eq!(h.store.take_partitions(node, &[Partition(1)], at(0)).await.unwrap(), [None]);
    h.beat(node, at(1_000), at(0)).await;
    assert_eq!(h.store.take_partitions(node, &[Partition(1)], at(2_000)).await.unwrap(), [None], "its word ran out");
    assert!(h.store.take_partitions(node, &[Partition(1)], at(500)).await.unwrap()[0].is_some());
}

/// Two live holders of one partition would both execute its runs.
pub async fn a_live_nodes_partition_is_not_taken(h: &Harness) {
    let first = h.owner_of(&[Partition(1), Partition(2)], at(0)).await;
    let other = h.node_id();
    h.beat(other, at(60_000), at(0)).await;
    let taken = h.store.take_partitions(other, &[Partition(2), Partition(3)], at(1)).await.unwrap();
    assert_eq!(taken[0], None);
    assert!(taken[1].is_some());
    let parts = h.store.partitions().await.unwrap();
    assert_eq!((parts[1].node, parts[2].node, parts[3].node), (Some(first.node), Some(first.node), Some(other)));
    assert_eq!(parts[1].epoch, first.epoch(Partition(1)));
}

/// Taking what one holds keeps the epoch, else a node would fence itself.
pub async fn taking_again_keeps_the_epoch(h: &Harness) {
    let owner = h.owner_of(&[Partition(1)], at(0)).await;
    let again = h.store.take_partitions(owner.node, &[Partition(1), Partition(1)], at(1)).await.unwrap();
    assert_eq!(again, [Some(owner.epoch(Partition(1))); 2]);
}

/// A vanished node's partitions go on with a raised epoch.
pub async fn a_lapsed_nodes_partition_is_taken_with_a_raised_epoch(h: &Harness) {
    let old = h.node_id();
    h.beat(old, at(3_000), at(0)).await;
    let epoch = h.store.take_partitions(old, &[Partition(9)], at(0)).await.unwrap()[0].unwrap();
    let new = h.node_id();
    h.beat(new, at(60_000), at(0)).await;
    assert_eq!(h.store.take_partitions(new, &[Partition(9)], at(2_999)).await.unwrap(), [None]);
    let raised = h.store.take_partitions(new, &[Partition(9)], at(3_001)).await.unwrap()[0].unwrap();
    assert!(raised > epoch);
    assert_eq!(h.store.partitions().await.unwrap()[9].node, Some(new));
}

/// A node that was away must learn that it was replaced.
pub async fn a_late_beat_after_a_takeover_is_stale(h: &Harness) {
    let old = h.node_id();
    h.beat(old, at(3_000), at(0)).await;
    h.store.take_partitions(old, &[Partition(1), Partition(2)], at(0)).await.unwrap();
    let new = h.owner_of(&[Partition(1)], at(4_000)).await;
    assert_eq!(h.beat(old, at(8_000), at(5_000)).await, Guarded::Stale);
    let taken = h.store.take_partitions(old, &[Partition(1), Partition(3)], at(5_000)).await.unwrap();
    assert_eq!(taken[0], None, "what another holds stays there");
    assert!(taken[1].is_some(), "it takes anew what it wants to hold");
    assert_eq!(h.beat(old, at(9_000), at(6_000)).await, Guarded::Applied, "and lives on");
    assert_eq!(h.store.partitions().await.unwrap()[1].node, Some(new.node));
}

/// A late beat that nobody used is only late.
pub async fn a_late_beat_without_a_takeover_is_applied(h: &Harness) {
    let node = h.node_id();
    h.beat(node, at(3_000), at(0)).await;
    let epoch = h.store.take_partitions(node, &[Partition(1)], at(0)).await.unwrap()[0];
    assert_eq!(h.beat(node, at(9_000), at(6_000)).await, Guarded::Applied);
    assert_eq!(h.store.take_partitions(node, &[Partition(1)], at(6_000)).await.unwrap(), [epoch]);
}

/// Shutdown must not cost the others the time of a lapse.
pub async fn leaving_frees_everything_at_once(h: &Harness) {
    let first = h.owner_of(&[Partition(1), Partition(2)], at(0)).await;
    h.store.leave(first.node).await.unwrap();
    assert_eq!(h.store.nodes(at(1)).await.unwrap(), []);
    let next = h.owner_of(&[Partition(1), Partition(2)], at(1)).await;
    assert!(next.epoch(Partition(1)) > first.epoch(Partition(1)));
    h.store.leave(h.node_id()).await.unwrap();
}

/// Handing over is by epoch: what was lost meanwhile is not given away.
pub async fn giving_is_guarded_by_the_epoch(h: &Harness) {
    let owner = h.owner_of(&[Partition(1), Partition(2)], at(0)).await;
    let epoch = owner.epoch(Partition(1));
    let other = h.node_id();
    h.beat(other, at(60_000), at(0)).await;
    assert_eq!(h.store.give_partitions(other, &[(Partition(1), epoch)]).await.unwrap(), [Guarded::Stale]);
    let wrong = Epoch(epoch.0 + 1);
    let asks = [(Partition(1), wrong), (Partition(1), epoch), (Partition(3), Epoch(0))];
    let given = h.store.give_partitions(owner.node, &asks).await.unwrap();
    assert_eq!(given, [Guarded::Stale, Guarded::Applied, Guarded::Stale]);
    let parts = h.store.partitions().await.unwrap();
    assert_eq!((parts[1].node, parts[2].node), (None, Some(owner.node)));
    let taken = h.store.take_partitions(other, &[Partition(1)], at(1)).await.unwrap()[0].unwrap();
    assert!(taken > epoch, "changing hands raises the epoch");
}

/// Only nodes whose word holds are nodes.
pub async fn nodes_are_those_whose_word_holds(h: &Harness) {
    let (a, b) = (h.node_id(), h.node_id());
    h.beat(a, at(1_000), at(0)).await;
    h.beat(b, at(5_000), at(0)).await;
    let mut names: Vec<_> = h.store.nodes(at(500)).await.unwrap().iter().map(|node| node.node).collect();
    names.sort();
    assert_eq!(names, [a, b]);
    let left = h.store.nodes(at(2_000)).await.unwrap();
    assert_eq!(left.iter().map(|node| (node.node, node.until)).collect::<Vec<_>>(), [(b, at(5_000))]);
    assert_eq!((left[0].name.as_str(), left[0].info.as_str()), ("node", "{}"));
    h.beat(b, at(9_000), at(2_000)).await;
    assert_eq!(h.store.nodes(at(2_000)).await.unwrap()[0].until, at(9_000));
}

/// Nodes that rush for a dead one's partitions get each once.
pub async fn racing_takers_get_each_partition_once(h: &Harness) {
    let second = h.second().await;
    let parts = all_parts();
    let mut takers = tokio::task::JoinSet::new();
    for n in 0..4 {
        let node = h.node_id();
        h.beat(node, at(60_000), at(0)).await;
        let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
        let mut parts = parts.clone();
        if n > 1 {
            parts.reverse();
        }
        takers.spawn(async move {
            let taken = store.take_partitions(node, &parts, at(1)).await.unwrap();
            (node, parts.into_iter().zip(taken).filter_map(|(part, epoch)| Some((part, epoch?))).collect::<Vec<_>>())
        });
    }
    let mut holders = std::collections::BTreeMap::new();
    for (node, taken) in takers.join_all().await {
        for (part, epoch) in taken {
            assert_eq!(holders.insert(part, (node, epoch)), None, "{part:?} has two holders");
        }
    }
    assert_eq!(holders.len(), PARTITIONS);
    for lease in h.store.partitions().await.unwrap() {
        assert_eq!(holders[&lease.part], (lease.node.unwrap(), lease.epoch));
    }
}
