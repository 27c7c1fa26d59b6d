//! What must hold however long it takes and however much there is.

use std::sync::atomic::Ordering;

use jiff::SignedDuration;
use rota_core::{
    ids::TenantId,
    job::JobDocument,
    run::{Status, Verdict},
    store::{Expect, RunQuery, TenantPut, Tier},
};
use rota_engine::{JobRef, Options, RunAsk, definitions, making, stages::Stage};
use serde_json::{Value, json};

use crate::bed::*;

fn gpu() -> Options {
    Options { traits: vec!["gpu".into()], ..Options::default() }
}

/// A job in an owned lane, or in a claimed one.
fn long(leased: bool) -> Value {
    if leased { with(job("long", "wait"), json!({ "requires": ["gpu"] })) } else { job("long", "wait") }
}

/// All that keeps and takes leases, once on each node.
async fn watch(nodes: &mut [&mut Hands]) {
    for node in nodes {
        node.lead().await;
        node.heartbeat().await;
        node.look().await;
        node.promote().await;
        node.reap().await;
        node.sweep().await;
        node.scan().await;
        node.dispatch().await;
        node.claim().await;
        node.let_run().await;
        node.settle().await;
    }
}

/// A lease is the worker's, not the run's: a run that outlasts ten of them must
/// not be given to another while its worker lives.
#[tokio::test]
async fn a_run_ten_leases_long_runs_once() {
    for leased in [false, true] {
        let bed = Bed::new().await;
        let (mut first, mut second) = (bed.node_with(gpu()).await, bed.node_with(gpu()).await);
        bed.save(&first.node, with(long(leased), json!({ "timeout": "5m" }))).await;
        let id = first.enqueue(&bed, "long").await;
        first.dispatch().await;
        first.claim().await;
        bed.work.wait_for_going(1).await;
        bed.clock.wait_for_sleepers(1).await;
        for _ in 0..120 {
            bed.go(500);
            watch(&mut [&mut first, &mut second]).await;
        }
        assert_eq!(bed.status(id).await, Status::Running, "leased: {leased}");
        bed.work.open();
        first.drain().await;
        first.settle().await;
        let record = bed.record(id).await;
        assert_eq!((record.run.state.status(), record.run.losses), (ended(Verdict::Succeeded), 0), "leased: {leased}");
        assert_eq!(bed.work.calls_of(id), 1, "leased: {leased}");
    }
}

/// A process that stood still past its leases, on a machine that had no time
/// for it, must not bury its own attempts when it goes on.
#[tokio::test]
async fn a_node_that_stood_still_extends_its_leases_before_it_reaps() {
    let bed = Bed::new().await;
    let mut node = bed.node_with(gpu()).await;
    bed.save(&node.node, long(true)).await;
    let id = node.enqueue(&bed, "long").await;
    node.claim().await;
    bed.work.wait_for_going(1).await;
    bed.go(30_000);
    node.lead().await;
    assert_eq!(node.reap().await.done, 0);
    node.heartbeat().await;
    node.reap().await;
    bed.work.open();
    node.drain().await;
    node.settle().await;
    let record = bed.record(id).await;
    assert_eq!((record.run.state.status(), record.run.losses), (ended(Verdict::Succeeded), 0));
    assert_eq!(bed.work.calls_of(id), 1);
}

/// A clock that is set ahead by a year makes all history too old at once. Whoever puts it
/// right within the hour must not find it gone.
#[tokio::test]
async fn a_clock_that_is_set_ahead_makes_nothing_old_until_it_is_believed() {
    async fn tend(bed: &Bed, node: &mut Hands) -> usize {
        node.lead().await;
        while node.upkeep().await.more {}
        bed.runs().await.len()
    }
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("hello", "noop")).await;
    node.enqueue(&bed, "hello").await;
    node.work().await;
    assert_eq!(tend(&bed, &mut node).await, 1);
    let year = SignedDuration::from_hours(24 * 400);
    for (step, why) in [(year, "set ahead"), (-year, "put right"), (year, "set again")] {
        bed.clock.step(step);
        assert_eq!(tend(&bed, &mut node).await, 1, "{why}");
    }
    bed.go(3_599_000);
    assert_eq!(tend(&bed, &mut node).await, 1, "not believed yet");
    bed.go(1_000);
    assert_eq!(tend(&bed, &mut node).await, 0, "it has been so for an hour");
}

/// If every node gave its attempts up when it cannot extend, half a minute
/// without the database would end the work of a fleet; and if one were thought
/// dead for it, that work would be done twice.
#[tokio::test]
async fn half_a_minute_without_the_store_ends_nothing_and_repeats_nothing() {
    for leased in [false, true] {
        let bed = Bed::new().await;
        let (mut first, mut second) = (bed.node_with(gpu()).await, bed.node_with(gpu()).await);
        bed.save(&first.node, long(leased)).await;
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(first.enqueue(&bed, "long").await);
        }
        first.dispatch().await;
        first.claim().await;
        bed.work.wait_for_going(4).await;
        bed.clock.wait_for_sleepers(4).await;
        bed.go(1_500);
        watch(&mut [&mut first, &mut second]).await;
        bed.faults.set_away(true);
        for second_away in 0..30 {
            bed.go(1_000);
            for node in [&mut first, &mut second] {
                let now = bed.now();
                assert!(node.lead.pass(now).await.is_err());
                node.reap.pass(now).await.ok();
                node.heartbeat.pass(now).await.ok();
                node.look.pass(now).await.ok();
                node.dispatch.pass(now).await.ok();
                node.claim.pass(now).await.ok();
                node.settle.pass(now).await.ok();
            }
            if second_away == 15 {
                // Half of the way through, all that is under way ends.
                bed.work.open();
                first.drain().await;
            }
        }
        bed.faults.set_away(false);
        // The one that does nothing is back first, and may not take over.
        for _ in 0..20 {
            watch(&mut [&mut second, &mut first]).await;
            bed.go(500);
        }
        for id in ids {
            let record = bed.record(id).await;
            let found = (record.run.state.status(), record.run.losses, bed.work.calls_of(id));
            assert_eq!(found, (ended(Verdict::Succeeded), 0, 1), "leased: {leased}");
        }
    }
}

/// A thousand schedules that fire every minute, and a day of downtime: a million
/// runs would be a second outage.
#[tokio::test]
async fn a_day_of_downtime_makes_as_many_runs_as_catch_up_says() {
    const SCHEDULES: usize = 1_000;
    // Without `overlap: allow` the second instant meets the first one's run.
    for (mode, overlap, each) in
        [("latest", "allow", 1), ("none", "allow", 1), ("all", "skip", 1), ("latest", "skip", 1)]
    {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        bed.go(1);
        let rules = json!({ "catch_up": { "mode": mode, "window": "2d" }, "overlap": overlap });
        save_many(&bed, &node, SCHEDULES, "1m", &rules).await;
        bed.go(86_400_000);
        node.lead().await;
        while node.fire().await.more {}
        let made = node.node.stats.fired.get();
        let skipped = node.node.stats.skipped.get();
        assert_eq!(made, (SCHEDULES * each) as u64, "{mode}, {overlap}");
        assert_eq!(made + skipped, (SCHEDULES * 1_440) as u64, "each instant has an end: {mode}, {overlap}");
    }
}

/// Who asks for every instant gets every instant, but never in one write that
/// holds up everybody else's.
#[tokio::test]
async fn catching_up_with_everything_is_done_in_bounded_writes() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    let rules = json!({ "catch_up": { "mode": "all", "window": "2d" }, "overlap": "allow" });
    save_many(&bed, &node, 100, "1m", &rules).await;
    bed.go(86_400_000);
    node.lead().await;
    let seen = |node: &crate::bed::Hands| (node.node.stats.fired.get(), node.node.stats.store_batches.get());
    for pass in 0..3 {
        let before = seen(&node);
        node.fire().await;
        let after = seen(&node);
        let (made, writes) = (after.0 - before.0, after.1 - before.1);
        assert!(made > 0 && made <= writes * 2_000, "pass {pass} made {made} runs by {writes} writes");
    }
}

/// Ten thousand schedules due in the same second, with the options of a real
/// node: all queued, each once.
#[tokio::test]
async fn ten_thousand_schedules_of_one_second_are_all_queued_once() {
    const SCHEDULES: usize = 10_000;
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.go(1);
    save_many(&bed, &node, SCHEDULES, "1h", &json!({})).await;
    node.beat_for(&bed, 3_599_999).await;
    let mut passes = 0;
    while node.fire().await.more {
        passes += 1;
        assert!(passes < 100, "it comes to an end");
    }
    assert_eq!(node.node.stats.fired.get(), SCHEDULES as u64);
    let mut seen = std::collections::BTreeSet::new();
    let mut query = RunQuery { limit: 1_000, ..RunQuery::default() };
    loop {
        let page = bed.store.list_runs(&query).await.unwrap();
        for record in page.runs {
            assert_eq!(record.run.trigger.planned_at, Some(at(3_600_000)));
            assert!(seen.insert(record.run.trigger.schedule), "{:?} fired twice", record.run.trigger.schedule);
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen.len(), SCHEDULES);
    node.look().await;
    assert_eq!(node.node.stats.backlog.get(), SCHEDULES as i64, "and handed over");
}

/// Jobs of a hundred schedules each, all of the same instants.
async fn save_many(bed: &Bed, node: &Hands, count: usize, every: &str, rules: &Value) {
    for first in (0..count).step_by(100) {
        let schedule = |n| with(json!({ "name": format!("s{n}"), "every": every, "anchor": at(0) }), rules.clone());
        let schedules: Vec<Value> = (first..(first + 100).min(count)).map(schedule).collect();
        let document = with(job(&format!("job-{first}"), "noop"), json!({ "schedules": schedules }));
        bed.save(&node.node, document).await;
    }
}

/// One tenant's mountain must not be felt by another: its one run a second
/// starts as soon as it would on an idle node, whatever lies before it.
#[tokio::test]
async fn a_hundred_thousand_runs_of_one_tenant_do_not_delay_another() {
    const MOUNTAIN: usize = 100_000;
    let bed = Bed::new().await;
    let mut node = bed.node_with(Options { slots: 50, dispatch_batch: 50, ..Options::default() }).await;
    bed.save(&node.node, job("mountain", "noop")).await;
    let small = tenant(&bed, &node, "small").await;
    enqueue_many(&bed, &node, MOUNTAIN).await;
    bed.go(1);
    for second in 0..20 {
        let before = bed.work.count();
        let made = node.ask(&bed, RunAsk::of(small, JobRef::Name("one".into()))).await;
        let rota_engine::Made::Run { id, .. } = made else { panic!("{made:?}") };
        // One round of as many starts as there are slots.
        node.dispatch().await;
        node.drain().await;
        let place = bed.work.order()[before..].iter().position(|run| *run == id);
        assert!(place.is_some_and(|place| place < 50), "in second {second} it was not among the first 50: {place:?}");
        node.settle().await;
        bed.go(1_000);
        node.lead().await;
        node.look().await;
    }
    assert!(bed.work.count() <= 20 * 50, "the mountain is still there");
}

async fn tenant(bed: &Bed, node: &Hands, name: &str) -> TenantId {
    let put = TenantPut { name: name.into(), tier: Tier::Unlimited, quotas: None };
    let tenant = bed.store.put_tenants(&[put], bed.now()).await.unwrap()[0];
    let document = JobDocument::from_value(job("one", "noop")).unwrap();
    definitions::save_job(&node.node, tenant, &document, None, Expect::Anything, &node.node.write(bed.now()))
        .await
        .unwrap();
    tenant
}

async fn enqueue_many(bed: &Bed, node: &Hands, count: usize) {
    let ask = || RunAsk::of(bed.tenant, JobRef::Name("mountain".into()));
    for _ in 0..count / 1_000 {
        let planned = making::plan(&node.node, (0..1_000).map(|_| ask()).collect(), bed.now()).await.unwrap();
        let runs: Vec<_> = planned.into_iter().map(Result::unwrap).collect();
        let write = node.node.write(bed.now());
        let answers = bed.store.enqueue(&write, &runs, &[]).await.unwrap();
        making::take_made(&node.node, &write, runs, &answers);
    }
    assert_eq!(bed.work.going.load(Ordering::SeqCst), 0);
}
