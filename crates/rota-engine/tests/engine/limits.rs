//! Slots, rates, unique keys, the inbox, the scanner, upkeep.

use rota_core::{
    duration::Span,
    run::{Status, Verdict},
    store::Tend,
};
use rota_engine::{JobRef, Made, RunAsk, stages::Stage};
use serde_json::json;

use crate::bed::*;

fn limited(when_full: &str) -> serde_json::Value {
    with(job("limited", "wait"), json!({ "concurrency": { "limit": 1, "when_full": when_full } }))
}

/// One run holds the slot, another asks: what becomes of either.
#[tokio::test]
async fn a_full_slot_does_what_its_job_says() {
    for when_full in ["queue", "skip", "reject", "replace", "cancel_running"] {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        bed.save(&node.node, limited(when_full)).await;
        let first = node.enqueue(&bed, "limited").await;
        node.dispatch().await;
        bed.work.wait_for_going(1).await;
        let made = node.ask(&bed, RunAsk::of(bed.tenant, JobRef::Name("limited".into()))).await;
        let second = match (when_full, made) {
            ("skip" | "reject", made) => {
                assert_eq!(made, Made::Full, "{when_full}");
                continue;
            }
            (_, Made::Run { id, status }) => {
                assert_eq!(status, Status::Blocked, "{when_full}");
                id
            }
            (_, made) => panic!("{when_full}: {made:?}"),
        };
        let third = node.enqueue(&bed, "limited").await;
        node.look().await;
        if when_full == "replace" {
            assert_eq!(bed.status(second).await, ended(Verdict::Skipped));
        }
        if when_full == "cancel_running" {
            node.drain().await;
            node.settle().await;
            assert_eq!(bed.status(first).await, ended(Verdict::Cancelled));
        }
        while !matches!(bed.status(third).await, Status::Ended(_)) {
            node.look().await;
            node.dispatch().await;
            bed.work.wait_for_going(1).await;
            assert_eq!(bed.work.going.load(std::sync::atomic::Ordering::SeqCst), 1, "never two at once");
            bed.work.open();
            node.drain().await;
            node.settle().await;
        }
        assert_eq!(bed.status(third).await, ended(Verdict::Succeeded), "{when_full}");
        assert_eq!(bed.work.most.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn keys_have_slots_of_their_own() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let rule = json!({ "concurrency": { "limit": 1, "key": "{{ payload.account }}" } });
    bed.save(&node.node, with(job("keyed", "wait"), rule)).await;
    let ask = |account: &str| {
        RunAsk::of(bed.tenant, JobRef::Name("keyed".into())).with_payload(json!({ "account": account }))
    };
    let mut statuses = Vec::new();
    for account in ["a", "b", "a"] {
        let Made::Run { status, .. } = node.ask(&bed, ask(account)).await else { panic!("it was not made") };
        statuses.push(status);
    }
    assert_eq!(statuses, [Status::Queued, Status::Queued, Status::Blocked]);
    node.dispatch().await;
    bed.work.wait_for_going(2).await;
}

/// A rate delays and never loses: twice the rate at once, then at the rate.
#[tokio::test]
async fn a_rate_limit_delays_and_loses_nothing() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, with(job("rated", "noop"), json!({ "rate_limit": { "runs": 2, "per": "10s" } }))).await;
    for _ in 0..6 {
        node.enqueue(&bed, "rated").await;
    }
    node.work().await;
    assert_eq!(bed.work.count(), 4, "the burst is twice the rate");
    let report = node.dispatch().await;
    assert_eq!(report.next_at, Some(at(5_000)), "it knows when the next token is there");
    node.beat_for(&bed, 4_999).await;
    node.work().await;
    assert_eq!(bed.work.count(), 4);
    node.beat_for(&bed, 1).await;
    node.work().await;
    assert_eq!(bed.work.count(), 5);
    node.beat_for(&bed, 5_000).await;
    node.work().await;
    assert_eq!(node.node.stats.ended_as(Verdict::Succeeded), 6);
}

/// A run that waits for a token can be cancelled while it waits.
#[tokio::test]
async fn a_run_that_waits_for_a_token_is_cancelled_at_once() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, with(job("rated", "noop"), json!({ "rate_limit": { "runs": 1, "per": "1h" } }))).await;
    for _ in 0..3 {
        node.enqueue(&bed, "rated").await;
    }
    node.work().await;
    let waiting: Vec<_> =
        bed.runs().await.into_iter().filter(|record| record.run.state.status() == Status::Queued).collect();
    assert_eq!(waiting.len(), 1);
    let id = waiting[0].run.id;
    bed.cancel(id).await;
    node.look().await;
    node.dispatch().await;
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Cancelled));
}

#[tokio::test]
async fn a_unique_key_lets_one_run_through() {
    let bed = Bed::new().await;
    let node = bed.node().await;
    let rule = json!({ "unique": { "by": ["payload.account"], "within": "1h" } });
    bed.save(&node.node, with(job("unique", "noop"), rule)).await;
    let ask = |account: &str| {
        RunAsk::of(bed.tenant, JobRef::Name("unique".into())).with_payload(json!({ "account": account }))
    };
    let Made::Run { id, .. } = node.ask(&bed, ask("a")).await else { panic!("it was not made") };
    assert_eq!(node.ask(&bed, ask("a")).await, Made::Duplicate { of: id });
    assert!(matches!(node.ask(&bed, ask("b")).await, Made::Run { .. }));
}

/// A scanner that finds nothing says 0, and a lost re-arming is put right.
#[tokio::test]
async fn the_scanner_finds_nothing_where_all_is_well() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let schedule = json!({ "name": "beat", "after_finish": "5s" });
    bed.save(&node.node, with(job("tick", "noop"), json!({ "schedules": [schedule] }))).await;
    for _ in 0..3 {
        node.fire().await;
        assert_eq!(node.scan().await.done, 0);
        node.work().await;
        node.fire.doubt();
        node.beat_for(&bed, 5_000).await;
    }
    assert_eq!(node.node.stats.findings.get(), 0);
    node.beat_for(&bed, 60_000).await;
    assert_eq!(node.scan().await.done, 0);
    node.beat_for(&bed, 10_000).await;
    assert_eq!(node.scan().await.done, 1, "nobody fired for a minute");
    assert_eq!(node.node.stats.overdue.get(), 1);
    node.fire().await;
    assert_eq!(node.scan().await.done, 0);
}

/// What came due while nobody was there is late, but nothing is wrong: it is about to
/// be caught up. It would be wrong if it were still so later.
#[tokio::test]
async fn the_scanner_does_not_blame_a_node_that_has_just_come() {
    let bed = Bed::new().await;
    let node = bed.node().await;
    let schedule = json!({ "name": "beat", "every": "1h" });
    bed.save(&node.node, with(job("tick", "noop"), json!({ "schedules": [schedule] }))).await;
    drop(node);
    bed.go(7_200_000);
    let mut node = bed.node().await;
    assert_eq!(node.scan().await.done, 0);
    assert_eq!(node.node.stats.overdue.get(), 1, "those who watch see it");
    node.beat_for(&bed, 10_000).await;
    assert_eq!(node.scan().await.done, 1);
    node.fire().await;
    assert_eq!(node.scan().await.done, 0);
}

/// Those who watch must see dead letters grow old, and see them go.
#[tokio::test]
async fn the_scanner_tells_of_open_dead_letters() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, with(job("fails", "fail"), json!({ "retry": { "max_attempts": 1 } }))).await;
    let run = node.enqueue(&bed, "fails").await;
    node.work().await;
    node.beat_for(&bed, 5_000).await;
    node.scan().await;
    let told = |node: &Hands| (node.node.stats.dead_open.get(), node.node.stats.oldest_dead.age(bed.now()).as_millis());
    assert_eq!(told(&node), (1, 5_000));
    bed.store.discard(&[run], "ann", bed.now()).await.unwrap();
    node.scan().await;
    assert_eq!(told(&node), (0, 0));
}

/// Statistics that are never folded are read batch by batch, more of them every day.
#[tokio::test]
async fn upkeep_folds_what_was_settled() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let saved = bed.save(&node.node, job("hello", "noop")).await;
    node.enqueue(&bed, "hello").await;
    node.work().await;
    while node.upkeep().await.more {}
    let hour = at(0).as_second() / 3_600;
    let rollups = bed.store.rollups(saved.job, hour, hour + 1).await.unwrap();
    assert_eq!(rollups.iter().map(|(_, rollup)| rollup.ended[0]).sum::<u64>(), 1);
    let day = Span::secs(86_400);
    let keep = Tend { now: bed.now(), history_keep: day, skips_keep: day, batches_keep: day, audit_keep: day };
    assert_eq!(bed.store.tend(&keep).await.unwrap().folded, 0, "nothing is left to fold");
}

/// A request of a caller's own transaction becomes a run like any other; one
/// that cannot does not stand in the way.
#[tokio::test]
async fn requests_of_the_inbox_become_runs_and_bad_ones_are_taken_away() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("hello", "noop")).await;
    let good = json!({ "tenant": "acme", "job": "hello", "payload": { "n": 1 }, "labels": { "team": "red" } });
    let keyed = json!({ "tenant": "acme", "job": "hello", "key": "k1" });
    for body in [
        "not json".to_owned(),
        json!({ "tenant": "nobody", "job": "hello" }).to_string(),
        json!({ "tenant": "acme", "job": "nobody" }).to_string(),
        good.to_string(),
        keyed.to_string(),
        keyed.to_string(),
        json!({ "tenant": "acme", "job": "hello", "key": "k1", "payload": 2 }).to_string(),
    ] {
        bed.faults.put_inbox(at(0), &body);
    }
    node.admit().await;
    node.admit().await;
    assert_eq!(bed.faults.inbox_len(), 0);
    assert_eq!(node.node.stats.refused.get(), 4);
    node.work().await;
    let runs = bed.runs().await;
    let teams: Vec<_> = runs.iter().filter_map(|record| record.run.labels.get("team")).collect();
    assert_eq!((runs.len(), teams.len()), (2, 1), "the good one, and the key once: {runs:?}");
    assert!(runs.iter().all(|record| record.run.state.status() == ended(Verdict::Succeeded)));
}

/// A mark without an executor would keep its run for ever. After a take-over it is in order
/// until `look` had its turn: nobody is alarmed, however often the scanner is called.
#[tokio::test]
async fn the_scanner_settles_as_lost_what_nobody_executes() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("long", "wait")).await;
    let id = node.enqueue(&bed, "long").await;
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.clock.wait_for_sleepers(1).await;
    bed.go(1_000);
    node.heartbeat().await;
    assert_eq!(node.scan().await.done, 0, "it is under way");
    node.abort_all().await;
    assert_eq!((node.scan().await.done, node.scan().await.done), (0, 0), "it may be on its way");
    node.beat_for(&bed, 10_000).await;
    assert_eq!(node.scan().await.done, 1);
    node.settle().await;
    assert_eq!(bed.status(id).await, Status::Scheduled);
}
