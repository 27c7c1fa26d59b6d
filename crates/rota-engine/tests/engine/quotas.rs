//! Quotas where nobody waits for an answer: what is over the tenant's rate is
//! made later, and what can never be allowed fails on record.

use rota_core::{
    fire::SkipReason,
    job::failure::ErrorKind,
    run::{Run, Status, Verdict},
    store::{TenantPut, Tier},
};
use rota_engine::definitions::Saved;
use serde_json::{Value, json};

use crate::bed::*;

/// Gives the tenant quotas of its own, as whoever runs the installation would.
async fn limit(bed: &Bed, quotas: Value) {
    let put = TenantPut { name: "acme".into(), tier: Tier::Unlimited, quotas: Some(quotas.to_string()) };
    bed.store.put_tenants(&[put], bed.now()).await.unwrap();
}

/// A job with so many schedules for one moment.
fn crowd(count: usize, catch_up: &Value) -> Value {
    let one = |n| json!({ "name": format!("s{n}"), "at": at(1_000), "overlap": "allow", "catch_up": catch_up });
    with(job("crowd", "noop"), json!({ "schedules": (0..count).map(one).collect::<Vec<_>>() }))
}

async fn reasons(bed: &Bed, saved: Saved, count: usize) -> Vec<SkipReason> {
    let mut reasons = Vec::new();
    for n in 0..count {
        let schedule = bed.schedule(saved, &format!("s{n}")).await;
        reasons.extend(bed.skips(schedule).await.into_iter().map(|skip| skip.range.reason));
    }
    reasons
}

/// One a minute in bursts of two: two instants fire, the third a minute later.
#[tokio::test]
async fn an_instant_over_the_tenants_rate_fires_when_the_rate_has_room() {
    let bed = Bed::new().await;
    limit(&bed, json!({ "runs_per_minute": 1 })).await;
    let mut node = bed.node().await;
    let saved = bed.save(&node.node, crowd(4, &json!({ "window": "1h" }))).await;
    node.beat_for(&bed, 1_000).await;
    node.fire().await;
    assert_eq!(bed.planned().await, [1_000; 2]);
    for (millis, fired) in [(59_000, 2), (1_000, 3), (59_000, 3), (1_000, 4)] {
        node.beat_for(&bed, millis).await;
        node.fire().await;
        assert_eq!(bed.planned().await, vec![1_000; fired], "at {}", bed.now());
    }
    assert_eq!(reasons(&bed, saved, 4).await, [], "over quota means later, not lost");
    assert_eq!(node.work().await, 4);
}

/// Only its own catch-up window ends the wait of an instant.
#[tokio::test]
async fn an_instant_is_skipped_for_the_quota_past_its_catch_up_window() {
    let bed = Bed::new().await;
    limit(&bed, json!({ "runs_per_minute": 1 })).await;
    let mut node = bed.node().await;
    let saved = bed.save(&node.node, crowd(4, &json!({ "window": "90s" }))).await;
    node.beat_for(&bed, 1_000).await;
    node.fire().await;
    for _ in 0..3 {
        node.beat_for(&bed, 60_000).await;
        node.fire().await;
    }
    assert_eq!(bed.planned().await, [1_000; 3]);
    assert_eq!(reasons(&bed, saved, 4).await, [SkipReason::Quota]);
}

/// An instant that could not fire must leave what it did not use to others.
#[tokio::test]
async fn tokens_that_a_batch_did_not_use_are_kept_for_the_next() {
    let bed = Bed::new().await;
    limit(&bed, json!({ "runs_per_minute": 1 })).await;
    let mut node = bed.node().await;
    let slow = json!({ "schedules": [{ "name": "beat", "every": "10s", "anchor": at(0) }] });
    bed.go(1);
    bed.save(&node.node, with(job("slow", "wait"), slow)).await;
    for _ in 0..5 {
        node.beat_for(&bed, 10_000).await;
        node.fire().await;
    }
    assert_eq!(bed.planned().await, [10_000], "its own run lives");
    bed.save(&node.node, crowd(1, &json!({ "window": "1h" }))).await;
    node.beat_for(&bed, 1_000).await;
    node.fire().await;
    assert_eq!(bed.planned().await, [1_000, 10_000]);
}

/// A payload that its tier no longer allows must neither run nor vanish.
#[tokio::test]
async fn an_instant_whose_payload_is_over_the_quota_fails_on_record() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let schedule = json!({ "name": "s", "at": at(1_000), "payload": { "text": "x".repeat(100) } });
    bed.save(&node.node, with(job("large", "noop"), json!({ "schedules": [schedule] }))).await;
    limit(&bed, json!({ "payload_bytes": 50 })).await;
    node.node.catalog.read_tenants().await.unwrap();
    node.beat_for(&bed, 1_000).await;
    node.fire().await;
    node.work().await;
    let record = bed.runs().await.remove(0);
    assert_eq!(record.run.state.status(), ended(Verdict::Failed));
    let failure = record.failure.unwrap();
    assert_eq!(failure.kind, ErrorKind::InvalidInput);
    assert!(failure.message.contains("payload_bytes"), "{}", failure.message);
    assert_eq!((record.run.payload, bed.work.count()), (None, 0));
}

/// A tenant's flood must not stand in the way of those behind it in the inbox.
#[tokio::test]
async fn requests_of_the_inbox_over_the_rate_are_made_for_later() {
    let bed = Bed::new().await;
    limit(&bed, json!({ "runs_per_minute": 1, "payload_bytes": 50 })).await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("echo", "noop")).await;
    let body = |payload: Value| json!({ "tenant": "acme", "job": "echo", "payload": payload }).to_string();
    bed.faults.put_inbox(at(0), &body(json!("x".repeat(100))));
    for n in 0..4 {
        bed.faults.put_inbox(at(0), &body(json!(n)));
    }
    node.admit().await;
    assert_eq!((bed.faults.inbox_len(), node.node.stats.refused.get()), (0, 1), "what is too large is refused");
    let delay = |run: &Run| (run.ready_at, run.trigger.delay.map(|delay| delay.until));
    let mut delays: Vec<_> = bed.runs().await.iter().map(|record| delay(&record.run)).collect();
    delays.sort_unstable();
    let later = |millis| (at(millis), Some(at(millis)));
    assert_eq!(delays, [(at(0), None), (at(0), None), later(60_000), later(120_000)]);
    assert_eq!(node.work().await, 2);
    node.beat_for(&bed, 60_000).await;
    node.promote().await;
    assert_eq!(node.work().await, 1);
}

#[tokio::test]
async fn runs_that_come_after_others_wait_for_the_rate() {
    let bed = Bed::new().await;
    limit(&bed, json!({ "runs_per_minute": 1 })).await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("load", "noop")).await;
    let then = json!({ "triggers": { "after": { "jobs": ["load"], "match": "any" } }, "start_deadline": "10s" });
    let report = bed.save(&node.node, with(job("report", "noop"), then)).await;
    for _ in 0..3 {
        // Made past the engine's own doors, where they are counted.
        node.enqueue(&bed, "load").await;
    }
    node.work().await;
    node.chain().await;
    let made: Vec<_> = bed.runs().await.into_iter().filter(|record| record.run.job == report.job).collect();
    let mut ready: Vec<_> = made.iter().map(|record| (record.run.ready_at, record.run.expires_at)).collect();
    ready.sort_unstable();
    let at_once = (at(0), Some(at(10_000)));
    assert_eq!(ready, [at_once, at_once, (at(60_000), Some(at(70_000)))], "its deadline counts from then");
    assert_eq!(made.iter().filter(|record| record.run.state.status() == Status::Scheduled).count(), 1);
}
