//! From enqueued to ended.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use jiff::Timestamp;
use rota_core::{
    ids::RunId,
    run::NewRun,
    run::{Status, Verdict},
    store::{Pause, PauseTarget, TenantPut, Tier},
};
use rota_engine::{JobRef, Made, Options, RunAsk, making};
use serde_json::json;

use crate::{
    bed::*,
    faulty::{Fate, Faulty, Kind, Line, Parcel, Untapped},
};

/// The whole way of an ordinary run: one write to make it, one to settle it.
#[tokio::test]
async fn an_owned_run_is_made_executed_and_settled_in_two_writes() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("hello", "noop")).await;
    let before = bed.faults.writes.load(Ordering::SeqCst);
    let ask = RunAsk::of(bed.tenant, JobRef::Name("hello".into())).with_payload(json!({ "n": 1 }));
    let Made::Run { id, status } = node.ask(&bed, ask).await else { panic!("it was not made") };
    assert_eq!(status, Status::Queued);
    bed.go(5);
    assert_eq!(node.work().await, 1);
    assert_eq!(bed.faults.writes.load(Ordering::SeqCst) - before, 2);
    let record = bed.record(id).await;
    assert_eq!(record.run.state.status(), ended(Verdict::Succeeded));
    assert_eq!(record.started_at, Some(at(5)));
    assert_eq!(record.output.as_deref(), Some("{\"seen\":{\"n\":1}}"));
    assert_eq!(bed.work.calls_of(id), 1);
}

#[tokio::test]
async fn many_runs_are_settled_in_few_batches() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("hello", "noop")).await;
    for _ in 0..500 {
        node.enqueue(&bed, "hello").await;
    }
    let before = node.node.stats.settle_batches.get();
    node.work().await;
    assert_eq!(node.node.stats.ended_as(Verdict::Succeeded), 500);
    assert!(node.node.stats.settle_batches.get() - before <= 3);
    assert_eq!(bed.work.count(), 500);
}

/// Runs that an API node makes are found by their notice.
#[tokio::test]
async fn a_run_that_others_made_is_found_by_its_notice() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let api = bed.builder(Options { schedules: false, executes: false, ..Options::default() }).node();
    let api = Hands::new(api);
    bed.save(&node.node, job("hello", "noop")).await;
    let id = api.enqueue(&bed, "hello").await;
    assert_eq!(node.work().await, 0, "nobody has told it yet");
    node.look().await;
    assert_eq!(node.work().await, 1);
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
    assert_eq!(bed.store.notices(&node.node.territory.parts(), 10).await.unwrap(), []);
}

/// The store has a run in hand as ready until it is settled; a look must not
/// bring it a second time.
#[tokio::test]
async fn a_run_in_hand_is_not_started_again_by_a_look() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("long", "wait")).await;
    let id = node.enqueue(&bed, "long").await;
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    bed.clock.wait_for_sleepers(1).await;
    for _ in 0..3 {
        node.beat_for(&bed, 30_000).await;
        node.look().await;
        node.dispatch().await;
        node.let_run().await;
    }
    assert_eq!(bed.work.calls_of(id), 1);
    bed.work.open();
    node.drain().await;
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
}

/// A tenant with a mountain of runs must not delay another's first.
#[tokio::test]
async fn tenants_take_turns() {
    let bed = Bed::new().await;
    let mut node = bed.node_with(Options { slots: 10, dispatch_batch: 10, ..Options::default() }).await;
    bed.save(&node.node, job("hello", "noop")).await;
    for _ in 0..100 {
        node.enqueue(&bed, "hello").await;
    }
    let put =
        rota_core::store::TenantPut { name: "small".into(), tier: rota_core::store::Tier::Unlimited, quotas: None };
    let small = bed.store.put_tenants(&[put], at(0)).await.unwrap()[0];
    let document = rota_core::job::JobDocument::from_value(job("hello", "noop")).unwrap();
    let expect = rota_core::store::Expect::Anything;
    rota_engine::definitions::save_job(&node.node, small, &document, None, expect, &node.node.write(at(0)))
        .await
        .unwrap();
    bed.go(1);
    let Made::Run { id, .. } = node.ask(&bed, RunAsk::of(small, JobRef::Name("hello".into()))).await else {
        panic!("it was not made")
    };
    node.work().await;
    let place = bed.work.order().iter().position(|run| *run == id).unwrap();
    assert!(place < 10, "it was number {place}");
}

#[tokio::test]
async fn a_higher_priority_starts_first() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("low", "noop")).await;
    bed.save(&node.node, with(job("high", "noop"), json!({ "priority": 1 }))).await;
    let low = node.enqueue(&bed, "low").await;
    let high = node.enqueue(&bed, "high").await;
    node.work().await;
    assert_eq!(bed.work.order(), [high, low]);
}

#[tokio::test]
async fn a_delayed_run_starts_when_its_time_has_come() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("hello", "noop")).await;
    node.promote().await;
    let ask = RunAsk::of(bed.tenant, JobRef::Name("hello".into())).at(at(2_500));
    let Made::Run { id, status } = node.ask(&bed, ask).await else { panic!("it was not made") };
    assert_eq!(status, Status::Scheduled);
    node.beat_for(&bed, 2_499).await;
    let report = node.promote().await;
    assert_eq!((report.done, report.next_at), (0, Some(at(2_500))));
    node.beat_for(&bed, 1).await;
    assert_eq!(node.promote().await.done, 1);
    node.work().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
}

/// Lanes that only some nodes can execute are leased in writing.
#[tokio::test]
async fn a_claimed_lane_is_leased_executed_and_settled() {
    let bed = Bed::new().await;
    let options = Options { traits: vec!["gpu".into()], ..Options::default() };
    let mut node = bed.node_with(options).await;
    let mut plain = Hands::new(bed.builder(Options::default()).node());
    bed.save(&node.node, with(job("hello", "noop"), json!({ "requires": ["gpu"] }))).await;
    let id = node.enqueue(&bed, "hello").await;
    plain.lead().await;
    plain.look().await;
    plain.claim().await;
    assert_eq!(bed.work.count(), 0, "it does not offer what the job requires");
    node.claim().await;
    node.drain().await;
    assert_eq!(bed.status(id).await, Status::Running);
    node.settle().await;
    assert_eq!(bed.status(id).await, ended(Verdict::Succeeded));
    assert_eq!(bed.work.calls_of(id), 1);
}

/// What does not fit in memory waits in the store and is read in order.
#[tokio::test]
async fn a_backlog_larger_than_memory_drains() {
    let bed = Bed::new().await;
    let options = Options { backlog_max: 32, slots: 8, dispatch_batch: 8, ..Options::default() };
    let mut node = bed.node_with(options).await;
    bed.save(&node.node, job("hello", "noop")).await;
    for _ in 0..200 {
        bed.go(1);
        node.enqueue(&bed, "hello").await;
    }
    for _ in 0..100 {
        node.lead().await;
        node.work().await;
        node.look().await;
        if node.node.stats.ended_in_all() == 200 {
            break;
        }
    }
    assert_eq!(node.node.stats.ended_as(Verdict::Succeeded), 200);
    assert_eq!(bed.work.count(), 200, "each was executed once");
}

#[tokio::test]
async fn an_unknown_job_and_a_bad_key_are_answers() {
    let bed = Bed::new().await;
    let node = bed.node().await;
    let keyed = json!({ "concurrency": { "limit": 1, "key": "{{ payload.account }}" } });
    bed.save(&node.node, with(job("keyed", "noop"), keyed)).await;
    assert_eq!(node.ask(&bed, RunAsk::of(bed.tenant, JobRef::Name("nobody".into()))).await, Made::NoJob);
    let made = node.ask(&bed, RunAsk::of(bed.tenant, JobRef::Name("keyed".into()))).await;
    assert!(matches!(&made, Made::BadKey(why) if why.contains("payload.account")), "{made:?}");
}

/// A run that waits for a run that does not exist would start at once, whatever its caller
/// meant; another tenant's run does not exist.
#[tokio::test]
async fn a_run_does_not_wait_for_what_its_tenant_does_not_have() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("plain", "noop")).await;
    let ended = node.enqueue(&bed, "plain").await;
    node.dispatch().await;
    node.settle().await;
    let put = TenantPut { name: "other".into(), tier: Tier::Unlimited, quotas: None };
    let other = bed.store.put_tenants(&[put], bed.now()).await.unwrap()[0];
    let plain = RunAsk::of(bed.tenant, JobRef::Name("plain".into()));
    let planned = making::plan(&node.node, vec![plain], bed.now()).await.unwrap().remove(0).unwrap();
    let theirs = NewRun { tenant: other, ..planned };
    bed.store.enqueue(&node.node.write(bed.now()), std::slice::from_ref(&theirs), &[]).await.unwrap();
    let ask =
        |after: &[RunId]| RunAsk { after: after.to_vec(), ..RunAsk::of(bed.tenant, JobRef::Name("plain".into())) };
    assert!(matches!(node.ask(&bed, ask(&[ended])).await, Made::Run { .. }), "it has ended, so nothing is waited for");
    let nobody = RunId(uuid::Uuid::from_u64_pair(9, 9));
    for strange in [theirs.id, nobody] {
        let Made::OutOfBounds(problems) = node.ask(&bed, ask(&[ended, strange])).await else { panic!("it was made") };
        let told: Vec<_> = problems.iter().map(|problem| (problem.path.as_str(), problem.code)).collect();
        assert_eq!(told, [("after[1]", "unknown_run")]);
    }
}

/// Each run that is named is looked for, so there is a bound on them all together.
#[tokio::test]
async fn what_is_asked_for_together_waits_for_a_bounded_number_of_runs() {
    let bed = Bed::new().await;
    let node = bed.node().await;
    bed.save(&node.node, job("plain", "noop")).await;
    let ask = |n: u64| RunAsk {
        after: (0..100).map(|m| RunId(uuid::Uuid::from_u64_pair(n, m))).collect(),
        ..RunAsk::of(bed.tenant, JobRef::Name("plain".into()))
    };
    let asks = (0..=making::WAITED_FOR_MAX as u64 / 100).map(ask).collect();
    let planned = making::plan(&node.node, asks, bed.now()).await.unwrap();
    let code = |planned: &Result<NewRun, Made>| match planned {
        Err(Made::OutOfBounds(problems)) => problems[0].code,
        other => panic!("{other:?}"),
    };
    let (last, looked_for) = planned.split_last().unwrap();
    assert!(looked_for.iter().all(|planned| code(planned) == "unknown_run"), "as far as was looked");
    assert_eq!(code(last), "out_of_bounds", "it does not say of these that they do not exist");
}

/// The API was not the only way in: what came by the inbox was as large as it liked.
#[tokio::test]
async fn a_run_that_says_more_than_it_may_is_refused_whichever_way_it_came_in() {
    let bed = Bed::new().await;
    let node = bed.node().await;
    bed.save(&node.node, job("plain", "noop")).await;
    let ask = |labels: usize| RunAsk {
        labels: (0..labels).map(|n| (format!("k{n}"), String::new())).collect(),
        ..RunAsk::of(bed.tenant, JobRef::Name("plain".into()))
    };
    assert!(matches!(node.ask(&bed, ask(64)).await, Made::Run { .. }));
    let made = node.ask(&bed, ask(65)).await;
    assert!(matches!(&made, Made::OutOfBounds(problems) if problems[0].path == "labels"), "{made:?}");
}

/// A store that takes its time for claims: short runs end meanwhile.
#[derive(Default)]
struct SlowClaims {
    polls: AtomicUsize,
}

impl Line for SlowClaims {
    fn fate(&self, what: &'static str, _: Kind) -> Fate {
        if what != "claim" {
            return Fate::Through;
        }
        self.polls.store(0, Ordering::SeqCst);
        Fate::Late { arrives_at: None, answered_at: Some(at(0)) }
    }

    fn post(&self, _: Timestamp, parcel: Parcel) {
        parcel();
    }

    fn has_come(&self, _: Timestamp) -> bool {
        self.polls.fetch_add(1, Ordering::SeqCst) > 50
    }
}

const SLOTS: usize = 4;

/// A node of few slots for a claimed lane, on such a store.
async fn slow_claims(bed: &mut Bed) -> Hands {
    let (inner, way) = (Arc::clone(&bed.faults.inner), Arc::new(SlowClaims::default()));
    bed.store = Arc::new(Faulty::over(inner, way, Arc::new(Untapped)));
    let traits = vec!["gpu".into()];
    let node = bed.node_with(Options { traits, slots: SLOTS, dispatch_batch: SLOTS, ..Options::default() }).await;
    for handler in ["noop", "wait"] {
        bed.save(&node.node, with(job(handler, handler), json!({ "requires": ["gpu"] }))).await;
    }
    node
}

/// The store is waited for in place, which uses up a task's turn.
async fn make(bed: &Bed, node: &Hands, job: &str, count: usize) -> Vec<RunId> {
    let mut made = Vec::with_capacity(count);
    for _ in 0..count {
        made.push(node.enqueue(bed, job).await);
        tokio::task::yield_now().await;
    }
    made
}

async fn claim_and_run(node: &mut Hands) {
    node.claim().await;
    assert!(node.node.executing.running() <= SLOTS, "more attempts than slots");
    node.let_run().await;
    node.settle().await;
}

/// Runs with written leases, and those that nobody has.
async fn leased_and_queued(bed: &Bed) -> (usize, usize) {
    let runs = bed.runs().await;
    let count = |status| runs.iter().filter(|record| record.run.state.status() == status).count();
    (count(Status::Running), count(Status::Queued))
}

/// Slots of short runs do not stand empty while a claim is written; no more than
/// these are ever under way, and long runs are not claimed ahead.
#[tokio::test]
async fn short_runs_are_claimed_ahead_of_their_slots() {
    let mut bed = Bed::new().await;
    let mut node = slow_claims(&mut bed).await;
    make(&bed, &node, "noop", 200).await;
    for _ in 0..200 {
        claim_and_run(&mut node).await;
    }
    assert_eq!((bed.work.count(), node.node.stats.ended_in_all()), (200, 200));
    let claims = node.node.stats.claims.get();
    assert!(claims < 20, "{claims} claims for 50 times the slots");
    bed.go(10_000);
    make(&bed, &node, "wait", 20).await;
    for _ in 0..10 {
        claim_and_run(&mut node).await;
        bed.go(20);
    }
    assert_eq!(leased_and_queued(&bed).await, (SLOTS, 20 - SLOTS));
}

/// Runs that turn out to be long keep what was claimed ahead from starting: it goes
/// back, for others to have, at no cost.
#[tokio::test]
async fn what_was_claimed_ahead_and_finds_no_slot_is_given_back() {
    for paused in [false, true] {
        let mut bed = Bed::new().await;
        let mut node = slow_claims(&mut bed).await;
        make(&bed, &node, "noop", 40).await;
        for _ in 0..40 {
            claim_and_run(&mut node).await;
        }
        let long = make(&bed, &node, "wait", 20).await;
        claim_and_run(&mut node).await;
        let (leased, queued) = leased_and_queued(&bed).await;
        assert!(leased > SLOTS, "nothing was claimed ahead");
        assert_eq!((leased + queued, bed.work.count()), (20, 40 + SLOTS));
        if paused {
            let pause = Pause { since: bed.now(), ..Pause::default() };
            let queue = PauseTarget::Queue(bed.tenant, "default".into());
            bed.store.set_pauses(&node.node.write(bed.now()), &[queue], Some(&pause)).await.unwrap();
            node.look().await;
            bed.work.open();
            node.drain().await;
        } else {
            bed.go(1_000);
        }
        claim_and_run(&mut node).await;
        assert_eq!(bed.work.count(), 40 + SLOTS, "paused: {paused}");
        let left = if paused { 0 } else { SLOTS };
        assert_eq!(leased_and_queued(&bed).await, (left, 20 - SLOTS), "paused: {paused}");
        for run in long {
            let run = bed.record(run).await.run;
            assert_eq!((run.attempts_used, run.losses), (0, 0));
        }
    }
}

/// When a process dies, all that it had in hand have lost it, and are to blame alike:
/// while there are such runs, no more are taken in hand than can be started.
#[tokio::test]
async fn runs_that_lost_a_worker_are_not_claimed_ahead() {
    let mut bed = Bed::new().await;
    let mut node = slow_claims(&mut bed).await;
    let mut dying = Hands::new(bed.builder(Options { traits: vec!["gpu".into()], ..Options::default() }).node());
    make(&bed, &node, "noop", 40).await;
    dying.lead().await;
    dying.claim().await;
    assert_eq!(leased_and_queued(&bed).await, (40, 0));
    // The leases run out, and what was lost comes back after a delay.
    for _ in 0..60 {
        node.beat_for(&bed, 500).await;
        node.heartbeat().await;
        node.reap().await;
        node.promote().await;
        tokio::task::yield_now().await;
    }
    assert_eq!(leased_and_queued(&bed).await, (0, 40));
    for _ in 0..100 {
        claim_and_run(&mut node).await;
    }
    assert_eq!(node.node.stats.ended_in_all(), 40);
    let claims = node.node.stats.claims.get();
    assert!(claims >= 40 / SLOTS as u64, "{claims} claims");
}
