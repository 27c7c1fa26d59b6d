//! Remote workers: exchanges against stages that are called by hand.

use std::{sync::Arc, task::Poll};

use rota_core::{
    dispatch::{Pair, Share},
    duration::Span,
    ids::{RunId, TenantId, WorkerId},
    job::failure::{ErrorKind, Failure},
    order::OrderKey,
    run::{Lease, Outcome, Report, Status, Verdict},
    store::{CancelAnswer, Claim, LogQuery, TenantPut, Tier},
};
use rota_engine::{
    Cancel,
    node::Node,
    remote::{self, Exchange, ExchangeAnswer, Hello, Line, LogPiece, Offer, ReportAck},
    stages::{Stage, assign::Assign},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::bed::*;

/// A node, and the stage that serves remote workers.
struct Far {
    hands: Hands,
    assign: Assign,
}

impl Far {
    async fn new(bed: &Bed) -> Self {
        let hands = bed.node().await;
        let assign = Assign::new(Arc::clone(&hands.node));
        Self { hands, assign }
    }

    fn begin(&self, exchange: Exchange) -> JoinHandle<ExchangeAnswer> {
        let node = Arc::clone(&self.hands.node);
        tokio::spawn(async move { remote::exchange(&node, exchange).await.unwrap() })
    }

    /// Turns the stages that an exchange waits for, once.
    async fn turn(&mut self) {
        let now = self.hands.node.clock.now();
        tokio::task::yield_now().await;
        self.assign.pass(now).await.unwrap();
        self.hands.settle().await;
    }

    /// Turns them until the exchange is answered.
    async fn answered(&mut self, waiting: JoinHandle<ExchangeAnswer>) -> ExchangeAnswer {
        for _ in 0..10_000 {
            if waiting.is_finished() {
                return waiting.await.unwrap();
            }
            self.turn().await;
        }
        panic!("an exchange that should be answered is not");
    }

    async fn exchange(&mut self, exchange: Exchange) -> ExchangeAnswer {
        let waiting = self.begin(exchange);
        self.answered(waiting).await
    }

    /// Turns them as often as an answer could need, and sees that there is none.
    async fn unanswered(&mut self, waiting: &JoinHandle<ExchangeAnswer>) {
        for _ in 0..20 {
            self.turn().await;
        }
        assert!(!waiting.is_finished());
    }
}

fn hello(bed: &Bed, worker: u64) -> Hello {
    Hello {
        worker: WorkerId(uuid::Uuid::from_u64_pair(1, worker)),
        tenant: bed.tenant,
        name: format!("worker {worker}"),
        version: "1".into(),
        offer: Offer { handlers: vec!["far".into()], ..Offer::default() },
        slots: 10,
        draining: false,
    }
}

/// Wants so many attempts, and waits for them.
fn wants(bed: &Bed, worker: u64, free: u32) -> Exchange {
    Exchange {
        hello: hello(bed, worker),
        free,
        wait: Some(Span::secs(20)),
        leases: Vec::new(),
        finished: Vec::new(),
        progress: Vec::new(),
        logs: Vec::new(),
        leaving: false,
    }
}

/// Only says what became of an attempt.
fn says(bed: &Bed, worker: u64, lease: Lease, report: Report) -> Exchange {
    Exchange { wait: None, finished: vec![(lease, report)], ..wants(bed, worker, 0) }
}

fn succeeded(output: &Value) -> Report {
    Report::Outcome(Outcome::Succeeded { output: Some(output.to_string().into()) })
}

fn failed(message: &str) -> Report {
    Report::Outcome(Outcome::Failed(Failure::new(ErrorKind::Handler, message)))
}

async fn far_job(bed: &Bed, node: &Arc<Node>, rules: Value) {
    bed.save(node, with(job("far", "far"), rules)).await;
}

/// Makes a run and has it handed to a worker.
async fn given(bed: &Bed, far: &mut Far, worker: u64) -> Lease {
    let id = far.hands.enqueue(bed, "far").await;
    let answer = far.exchange(wants(bed, worker, 1)).await;
    let lease = answer.attempts[0].attempt.lease;
    assert_eq!(lease.run, id);
    lease
}

#[tokio::test]
async fn a_run_that_no_node_can_execute_is_executed_by_a_remote_worker() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({ "timeout": "1m", "input": { "default": { "n": 7 } } })).await;
    let waiting = far.begin(wants(&bed, 1, 5));
    far.unanswered(&waiting).await;
    let id = far.hands.enqueue(&bed, "far").await;
    let answer = far.answered(waiting).await;
    let work = &answer.attempts[0];
    assert_eq!((answer.attempts.len(), work.attempt.lease.run, work.attempt.number), (1, id, 1));
    assert_eq!(
        (work.job_name.as_str(), &work.attempt.payload, work.timeout),
        ("far", &json!({ "n": 7 }), Some(Span::secs(60)))
    );
    assert_eq!(bed.status(id).await, Status::Running);
    let answer = far.exchange(says(&bed, 1, work.attempt.lease, succeeded(&json!([1])))).await;
    assert_eq!(answer.reports, [ReportAck::Applied]);
    let record = bed.record(id).await;
    assert_eq!((record.run.state.status(), record.output.as_deref()), (ended(Verdict::Succeeded), Some("[1]")));
}

/// A worker whose answer was lost reports again, perhaps to a node that has
/// never heard of it: it must learn what stands, and nothing may happen twice.
#[tokio::test]
async fn a_report_made_again_is_told_as_the_first_one_was() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({ "retry": { "max_attempts": 2, "initial": "1s", "jitter": 0.0 } }))
        .await;
    let lease = given(&bed, &mut far, 1).await;
    assert_eq!(far.exchange(says(&bed, 1, lease, failed("broken"))).await.reports, [ReportAck::Applied]);
    let mut other = Far::new(&bed).await;
    for node in [&mut far, &mut other] {
        assert_eq!(node.exchange(says(&bed, 1, lease, failed("broken"))).await.reports, [ReportAck::Applied]);
        assert_eq!(node.exchange(says(&bed, 1, lease, succeeded(&json!(1)))).await.reports, [ReportAck::Stale]);
        assert_eq!(node.exchange(says(&bed, 1, lease, Report::HandedBack)).await.reports, [ReportAck::Stale]);
    }
    let record = bed.record(lease.run).await;
    assert_eq!((record.run.state.status(), record.run.attempts_used, record.trail.len()), (Status::Scheduled, 1, 1));
    bed.go(1_000);
    far.hands.lead().await;
    far.hands.promote().await;
    let second = far.exchange(wants(&bed, 1, 1)).await.attempts[0].attempt.lease;
    assert!(second.fence > lease.fence);
    assert_eq!(far.exchange(says(&bed, 1, second, succeeded(&json!(2)))).await.reports, [ReportAck::Applied]);
    for node in [&mut far, &mut other] {
        assert_eq!(node.exchange(says(&bed, 1, second, succeeded(&json!(2)))).await.reports, [ReportAck::Applied]);
        assert_eq!(node.exchange(says(&bed, 1, second, failed("late"))).await.reports, [ReportAck::Stale]);
        assert_eq!(node.exchange(says(&bed, 1, lease, failed("broken"))).await.reports, [ReportAck::Applied]);
    }
    assert_eq!(bed.record(lease.run).await.output.as_deref(), Some("2"));
}

/// A worker that was presumed dead must not settle the attempt that replaced
/// its own, and must hear that its own is lost.
#[tokio::test]
async fn a_lost_lease_is_told_and_counts_for_nothing() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let old = given(&bed, &mut far, 1).await;
    far.hands.beat_for(&bed, 7_000).await;
    assert_eq!(far.hands.reap().await.done, 1);
    far.hands.beat_for(&bed, 1_000).await;
    far.hands.promote().await;
    let new = far.exchange(wants(&bed, 2, 1)).await.attempts[0].attempt.lease;
    assert_eq!(new.run, old.run);
    let answer = far.exchange(Exchange { leases: vec![old], ..wants(&bed, 1, 0) }).await;
    assert_eq!(answer.lost, [old]);
    assert_eq!(far.exchange(says(&bed, 1, old, succeeded(&json!("old")))).await.reports, [ReportAck::Stale]);
    assert_eq!(bed.status(new.run).await, Status::Running);
    assert_eq!(far.exchange(says(&bed, 2, new, succeeded(&json!("new")))).await.reports, [ReportAck::Applied]);
    assert_eq!(bed.record(new.run).await.output.as_deref(), Some("\"new\""));
}

/// The worker never heard of the attempt, and the store thinks it has it.
#[tokio::test]
async fn an_attempt_whose_handing_over_was_not_heard_is_handed_over_again() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let lease = given(&bed, &mut far, 1).await;
    // Two looks apart, so that what is only on its way is not given out twice.
    for _ in 0..2 {
        let waiting = far.begin(wants(&bed, 1, 1));
        far.unanswered(&waiting).await;
        far.hands.beat_for(&bed, 2_000).await;
        assert_eq!(far.answered(waiting).await.attempts.len(), 0, "its list was made before");
    }
    let answer = far.exchange(wants(&bed, 1, 1)).await;
    assert_eq!(answer.attempts[0].attempt.lease, lease);
    assert_eq!(far.exchange(says(&bed, 1, lease, succeeded(&json!(1)))).await.reports, [ReportAck::Applied]);
}

/// A worker that takes no notice of what it is handed, and goes on saying that it lives,
/// must not hold a run for ever.
#[tokio::test]
async fn an_attempt_that_its_worker_ignores_is_lost_in_the_end() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let lease = given(&bed, &mut far, 1).await;
    let mut again = 0;
    for second in 0..60 {
        let answer = far.exchange(Exchange { wait: None, ..wants(&bed, 1, 1) }).await;
        again += answer.attempts.iter().filter(|work| work.attempt.lease == lease).count();
        far.hands.beat_for(&bed, 1_000).await;
        let losses = bed.record(lease.run).await.run.losses;
        if losses > 0 {
            assert!((1..=3).contains(&again), "handed over again {again} times in {second} s");
            assert_eq!(losses, 1);
            return;
        }
    }
    panic!("after a minute {:?}, handed over again {again} times", bed.status(lease.run).await);
}

/// `applied` means that what was reported stands: of two reports of one attempt that
/// contradict each other, in one exchange, one does.
#[tokio::test]
async fn of_two_contradictory_reports_the_first_stands() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let lease = given(&bed, &mut far, 1).await;
    let (good, bad) = (succeeded(&json!(1)), failed("no"));
    let finished = vec![(lease, good.clone()), (lease, bad), (lease, good)];
    let answer = far.exchange(Exchange { finished, ..wants(&bed, 1, 0) }).await;
    assert_eq!(answer.reports, [ReportAck::Applied, ReportAck::Stale, ReportAck::Applied]);
    assert_eq!(bed.status(lease.run).await, ended(Verdict::Succeeded));
}

/// The leases of a worker are extended together: what it ignores is not kept by what it does.
#[tokio::test]
async fn an_ignored_attempt_is_lost_although_its_worker_has_others() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let (ignored, kept) = (given(&bed, &mut far, 1).await, given(&bed, &mut far, 1).await);
    for _ in 0..60 {
        far.exchange(Exchange { leases: vec![kept], wait: None, ..wants(&bed, 1, 2) }).await;
        far.hands.beat_for(&bed, 1_000).await;
        assert_eq!(far.hands.reap().await.done, 0, "it speaks");
        if bed.record(ignored.run).await.run.losses > 0 {
            assert_eq!(bed.record(kept.run).await.run.losses, 0);
            return;
        }
    }
    panic!("after a minute {:?}", bed.status(ignored.run).await);
}

/// A node may die with the answer: the next one finds the lease, though the worker
/// knows of none, and before it runs out.
#[tokio::test]
async fn what_a_node_that_died_handed_over_in_vain_is_handed_over_by_the_next() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let lease = given(&bed, &mut far, 1).await;
    let mut next = Far::new(&bed).await;
    let waiting = next.begin(wants(&bed, 1, 1));
    next.unanswered(&waiting).await;
    next.hands.beat_for(&bed, 2_000).await;
    assert_eq!(next.answered(waiting).await.attempts.len(), 0, "its list was made before");
    assert_eq!(next.exchange(wants(&bed, 1, 1)).await.attempts[0].attempt.lease, lease);
}

/// A worker that speaks to several nodes: what one of them handed over after another
/// was given the worker's list is not unheard of, and must not come a second time.
#[tokio::test]
async fn what_another_node_handed_over_meanwhile_is_not_handed_over_again() {
    let bed = Bed::new().await;
    let (mut one, mut two) = (Far::new(&bed).await, Far::new(&bed).await);
    far_job(&bed, &one.hands.node.clone(), json!({})).await;
    let first = given(&bed, &mut one, 1).await;
    let waiting = one.begin(Exchange { leases: vec![first], ..wants(&bed, 1, 1) });
    one.unanswered(&waiting).await;
    bed.go(100);
    let second = given(&bed, &mut two, 1).await;
    for _ in 0..5 {
        bed.go(400);
        one.assign.doubt();
        one.turn().await;
    }
    let answer = one.answered(waiting).await;
    assert_eq!(answer.attempts.len(), 0, "the worker has {second:?}, and its list is older");
    assert_eq!(answer.lost, []);
    // It has come to its end, and the next list is right not to have it.
    assert_eq!(two.exchange(says(&bed, 1, second, succeeded(&json!(1)))).await.reports, [ReportAck::Applied]);
    let answer = one.exchange(Exchange { leases: vec![first], wait: None, ..wants(&bed, 1, 1) }).await;
    assert_eq!(answer.attempts.len(), 0);
}

/// A store that is slow answers with what was leased since it was asked. That has not been
/// unheard of for as long as the question took.
#[tokio::test]
async fn what_was_leased_before_a_late_answer_is_not_handed_over_again_at_once() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let id = far.hands.enqueue(&bed, "far").await;
    let run = bed.record(id).await.run;
    bed.faults.set_hung(true);
    let asked = far.begin(Exchange { wait: None, ..wants(&bed, 1, 0) });
    far.hands.let_run().await;
    bed.go(1_900);
    // Another node leases the run, and its answer is on its way.
    let share = Share { pair: Pair { lane: run.lane, tenant: run.tenant }, low: OrderKey::MIN, runs: 1 };
    let (worker, until) = (hello(&bed, 1).worker, Span::secs(6).after(bed.now()));
    let claim = Claim { worker, until, shares: vec![share], most: 1 };
    let leased = bed.faults.inner.claim(&far.hands.node.write(bed.now()), &[claim]).await.unwrap();
    assert_eq!(leased.len(), 1);
    bed.faults.set_hung(false);
    far.answered(asked).await;
    let ask = || Exchange { wait: None, ..wants(&bed, 1, 1) };
    far.hands.beat_for(&bed, 200).await;
    assert_eq!(far.exchange(ask()).await.attempts.len(), 0, "it was leased 0.2 s ago");
    far.hands.beat_for(&bed, 2_000).await;
    assert_eq!(far.exchange(ask()).await.attempts[0].attempt.lease, leased[0].lease());
}

/// A worker that hangs up while the store is slow is not held up with its next report.
#[tokio::test]
async fn an_exchange_that_is_broken_off_leaves_no_report_behind() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let lease = given(&bed, &mut far, 1).await;
    let mut other = Far::new(&bed).await;
    let node = Arc::clone(&other.hands.node);
    let report = || says(&bed, 1, lease, succeeded(&json!(1)));
    {
        let mut broken_off = Box::pin(remote::exchange(&node, report()));
        let begun = std::future::poll_fn(|context| Poll::Ready(broken_off.as_mut().poll(context))).await;
        assert!(begun.is_pending(), "the store is asked for a lease that this node does not know");
    }
    assert_eq!(other.exchange(report()).await.reports, [ReportAck::Applied]);
    assert_eq!(bed.status(lease.run).await, ended(Verdict::Succeeded));
}

/// A run that lost its worker twice, and may have been the reason.
async fn suspect(bed: &Bed, far: &mut Far) -> RunId {
    let lease = given(bed, far, 7).await;
    for lost in 1..=2 {
        far.hands.beat_for(bed, 20_000).await;
        assert_eq!(far.hands.reap().await.done, 1);
        far.hands.beat_for(bed, 1_000).await;
        far.hands.promote().await;
        if lost < 2 {
            assert_eq!(far.exchange(wants(bed, 7, 1)).await.attempts[0].attempt.lease.run, lease.run);
        }
    }
    assert_eq!(bed.record(lease.run).await.run.losses, 2);
    lease.run
}

/// Each gets its turn by itself as soon as its worker has nothing else in hand, and
/// whoever reports meanwhile is answered at once.
#[tokio::test]
async fn runs_that_are_to_be_alone_get_their_turn_beside_others() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let first = suspect(&bed, &mut far).await;
    let busy = far.hands.enqueue(&bed, "far").await;
    // Both are claimed together: the ordinary one is handed over, the other waits.
    let answer = far.exchange(wants(&bed, 1, 4)).await;
    assert_eq!(answer.attempts.iter().map(|work| work.attempt.lease.run).collect::<Vec<_>>(), [busy]);
    let held = answer.attempts[0].attempt.lease;
    let others: Vec<RunId> = vec![far.hands.enqueue(&bed, "far").await, far.hands.enqueue(&bed, "far").await];
    bed.go(500);
    let answer = far.exchange(Exchange { leases: vec![held], wait: None, ..wants(&bed, 1, 3) }).await;
    assert_eq!(answer.attempts.len(), 0, "nothing more is given out before it");
    let report = Exchange { finished: vec![(held, succeeded(&json!(1)))], ..wants(&bed, 1, 4) };
    let answer = far.exchange(report).await;
    assert_eq!(answer.reports, [ReportAck::Applied], "at once, and not when the store has been waited for");
    let answer = if answer.attempts.is_empty() { far.exchange(wants(&bed, 1, 4)).await } else { answer };
    let alone: Vec<_> = answer.attempts.iter().map(|work| (work.attempt.lease.run, work.alone)).collect();
    assert_eq!(alone, [(first, true)]);
    let alone = answer.attempts[0].attempt.lease;
    let answer = far.exchange(Exchange { leases: vec![alone], wait: None, ..wants(&bed, 1, 3) }).await;
    assert_eq!(answer.attempts.len(), 0, "nothing is given out beside it");
    let report = Exchange { finished: vec![(alone, succeeded(&json!(1)))], ..wants(&bed, 1, 4) };
    let answer = far.exchange(report).await;
    assert_eq!(answer.reports, [ReportAck::Applied]);
    let answer = if answer.attempts.is_empty() { far.exchange(wants(&bed, 1, 4)).await } else { answer };
    assert_eq!(answer.attempts.iter().map(|work| work.attempt.lease.run).collect::<Vec<_>>(), others);
    assert_eq!(bed.record(others[0]).await.run.losses, 0);
}

/// A run that waits at one node until its worker has nothing else in hand is not unheard
/// of. Handed over by another node under the same lease, it would be executed there and
/// given back here, and a run that kills its workers would never be counted as lost.
#[tokio::test]
async fn what_one_node_holds_back_is_not_handed_over_by_another() {
    let bed = Bed::new().await;
    let (mut one, mut two) = (Far::new(&bed).await, Far::new(&bed).await);
    far_job(&bed, &one.hands.node.clone(), json!({})).await;
    let suspect = suspect(&bed, &mut one).await;
    let busy = one.hands.enqueue(&bed, "far").await;
    let answer = one.exchange(wants(&bed, 1, 4)).await;
    let held = answer.attempts[0].attempt.lease;
    assert_eq!((answer.attempts.len(), held.run), (1, busy), "the other one waits");
    let waiting = bed.record(suspect).await.run.lease();
    for _ in 0..3 {
        let asks = Exchange { leases: vec![held], wait: None, ..wants(&bed, 1, 3) };
        assert_eq!(two.exchange(asks).await.attempts.len(), 0, "it is held back by the first node");
        bed.go(1_500);
    }
    let report = Exchange { finished: vec![(held, succeeded(&json!(1)))], ..wants(&bed, 1, 4) };
    let answer = one.exchange(report).await;
    let answer = if answer.attempts.is_empty() { one.exchange(wants(&bed, 1, 4)).await } else { answer };
    let alone: Vec<_> = answer.attempts.iter().map(|work| (work.attempt.lease, work.alone)).collect();
    assert_eq!(alone, [(waiting, true)]);
}

/// A node that no longer waits for a worker settles its attempt itself. The worker must
/// not take that for the answer to its own report: its result would be gone, and it would
/// believe that it counts.
#[tokio::test]
async fn what_a_node_decided_is_no_answer_to_a_report() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({ "timeout": "1s", "retry": { "max_attempts": 1 } })).await;
    let lease = given(&bed, &mut far, 1).await;
    for _ in 0..4 {
        far.hands.beat_for(&bed, 2_000).await;
        let asks = far.begin(Exchange { leases: vec![lease], wait: None, ..wants(&bed, 1, 0) });
        // Nothing is settled meanwhile.
        if asks.await.unwrap().lost == [lease] {
            break;
        }
    }
    let answer = far.exchange(says(&bed, 1, lease, succeeded(&json!(1)))).await;
    assert_eq!(answer.reports, [ReportAck::Stale]);
    assert_eq!(bed.status(lease.run).await, ended(Verdict::Dead));
}

/// Sub-second for a worker that waits: on this node at once, of another node's
/// doing with the next hint.
#[tokio::test]
async fn a_cancel_reaches_a_worker_that_waits() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let lease = given(&bed, &mut far, 1).await;
    let waiting = far.begin(Exchange { leases: vec![lease], ..wants(&bed, 1, 0) });
    far.unanswered(&waiting).await;
    bed.cancel(lease.run).await;
    bed.go(400);
    far.assign.doubt();
    let answer = far.answered(waiting).await;
    assert_eq!((answer.stops.len(), answer.stops[0].lease), (1, lease));
    assert!(answer.lost.is_empty());
    assert_eq!(
        far.exchange(says(&bed, 1, lease, Report::Outcome(Outcome::Cancelled))).await.reports,
        [ReportAck::Applied]
    );
    assert_eq!(bed.status(lease.run).await, ended(Verdict::Cancelled));
}

/// A worker keeps what it has to say next until it hears that the last was
/// taken in: one that waited for work meanwhile would report its end late.
#[tokio::test]
async fn who_says_something_is_answered_though_nothing_is_new() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let lease = given(&bed, &mut far, 1).await;
    let waits = || Exchange { leases: vec![lease], ..wants(&bed, 1, 3) };
    let waiting = far.begin(waits());
    far.unanswered(&waiting).await;
    let line = Line { at: bed.now(), stream: rota_core::ports::Stream::Stdout, text: "half done".into() };
    let said = Exchange { logs: vec![LogPiece { lease, seq: 0, lines: vec![line] }], ..waits() };
    assert!(far.exchange(said).await.attempts.is_empty());
    assert!(far.answered(waiting).await.attempts.is_empty());
    let progress = rota_core::ports::Progress { percent: Some(50), ..rota_core::ports::Progress::default() };
    assert!(far.exchange(Exchange { progress: vec![(lease, progress)], ..waits() }).await.attempts.is_empty());
}

/// A commit for each of a thousand polls would be all that a store does.
#[tokio::test]
async fn one_claim_serves_all_who_wait() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let waiting: Vec<_> = (1..=3).map(|worker| far.begin(wants(&bed, worker, 2))).collect();
    for one in &waiting {
        far.unanswered(one).await;
    }
    let before = far.hands.node.stats.claims.get();
    let mut made = Vec::new();
    for _ in 0..6 {
        made.push(far.hands.enqueue(&bed, "far").await);
    }
    let mut runs: Vec<RunId> = Vec::new();
    for one in waiting {
        let answer = far.answered(one).await;
        assert_eq!(answer.attempts.len(), 2, "in turn, not all to the first");
        runs.extend(answer.attempts.iter().map(|work| work.attempt.lease.run));
    }
    runs.sort_unstable();
    made.sort_unstable();
    assert_eq!(runs, made);
    assert_eq!(far.hands.node.stats.claims.get() - before, 1);
}

#[tokio::test]
async fn another_tenants_worker_gets_and_settles_nothing() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let put = TenantPut { name: "other".into(), tier: Tier::Unlimited, quotas: None };
    let other: TenantId = bed.store.put_tenants(&[put], bed.now()).await.unwrap()[0];
    let lease = given(&bed, &mut far, 1).await;
    far.hands.enqueue(&bed, "far").await;
    let foreign =
        |exchange: Exchange| Exchange { hello: Hello { tenant: other, ..exchange.hello.clone() }, ..exchange };
    let waiting = far.begin(foreign(wants(&bed, 2, 5)));
    far.unanswered(&waiting).await;
    drop(waiting);
    assert_eq!(far.exchange(foreign(says(&bed, 3, lease, succeeded(&json!(0))))).await.reports, [ReportAck::Stale]);
    let node = Arc::clone(&far.hands.node);
    let stolen = remote::exchange(&node, foreign(wants(&bed, 1, 5))).await;
    assert!(matches!(stolen, Err(remote::ExchangeError::Foreign)));
    assert_eq!(bed.status(lease.run).await, Status::Running);
    // Nor does it say how far the run is, or write into its log.
    let progress = rota_core::ports::Progress { percent: Some(99), ..rota_core::ports::Progress::default() };
    let line = Line { at: bed.now(), stream: rota_core::ports::Stream::Stdout, text: "theirs".into() };
    let says = Exchange {
        progress: vec![(lease, progress)],
        logs: vec![LogPiece { lease, seq: 0, lines: vec![line] }],
        wait: None,
        ..foreign(wants(&bed, 4, 0))
    };
    assert_eq!(far.exchange(says).await.lost, [lease, lease], "told as of any run that is not its own");
    assert_eq!(bed.record(lease.run).await.progress, None);
    let query = LogQuery { run: lease.run, attempt: None, after: None, limit: 10 };
    assert_eq!(bed.store.logs(&query).await.unwrap(), []);
}

/// Somebody who says hello under a new id each time must not fill the memory; workers that
/// are known go on.
#[tokio::test]
async fn a_tenant_has_no_more_workers_at_a_node_than_the_limit() {
    let bed = Bed::new().await;
    let far = Far::new(&bed).await;
    let node = Arc::clone(&far.hands.node);
    let most = node.options.limits.tenant_workers as u64;
    let hello = async |worker: u64, tenant: TenantId| {
        let asked = wants(&bed, worker, 0);
        let asked = Exchange { hello: Hello { tenant, ..asked.hello.clone() }, wait: None, ..asked };
        remote::exchange(&node, asked).await
    };
    for worker in 1..=most {
        hello(worker, bed.tenant).await.unwrap();
    }
    assert!(matches!(hello(most + 1, bed.tenant).await, Err(remote::ExchangeError::LimitReached(_))));
    assert_eq!(node.remote.workers() as u64, most);
    hello(1, bed.tenant).await.unwrap();
    let put = TenantPut { name: "other".into(), tier: Tier::Unlimited, quotas: None };
    let other: TenantId = bed.store.put_tenants(&[put], bed.now()).await.unwrap()[0];
    hello(most + 2, other).await.unwrap();
}

/// A worker that hangs and goes on saying that it lives must not hold a run for
/// ever.
#[tokio::test]
async fn an_attempt_that_its_worker_does_not_stop_times_out_all_the_same() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({ "timeout": "10s", "retry": { "max_attempts": 1 } })).await;
    let lease = given(&bed, &mut far, 1).await;
    let held = || Exchange { leases: vec![lease], wait: None, ..wants(&bed, 1, 0) };
    for _ in 0..7 {
        far.hands.beat_for(&bed, 2_000).await;
        assert!(far.exchange(held()).await.lost.is_empty());
        assert_eq!(far.hands.reap().await.done, 0, "its leases are extended");
    }
    far.hands.beat_for(&bed, 2_000).await;
    far.exchange(held()).await;
    far.hands.settle().await;
    let record = bed.record(lease.run).await;
    assert_eq!(record.failure.map(|failure| failure.kind), Some(ErrorKind::Timeout));
    assert_eq!(far.exchange(held()).await.lost, [lease], "told with the next exchange, whenever that is");
}

/// A server that is stopped and started again, or stood still, is no reason to presume
/// its workers dead: nobody was there whom they could have told that they live.
#[tokio::test]
async fn a_node_that_was_away_presumes_nobody_dead_for_a_lease_time() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let lease = given(&bed, &mut far, 1).await;
    let held = || Exchange { leases: vec![lease], wait: None, ..wants(&bed, 1, 0) };
    for standing in [false, true] {
        bed.go(9_000);
        if !standing {
            far = Far::new(&bed).await;
        }
        assert_eq!(far.hands.reap().await.done, 0, "it does not know yet that it was away: {standing}");
        far.hands.lead().await;
        far.hands.beat_for(&bed, 1_000).await;
        assert_eq!(far.hands.reap().await.done, 0, "standing still: {standing}");
        assert_eq!(far.exchange(held()).await.lost, []);
        far.hands.beat_for(&bed, 5_000).await;
        assert_eq!(far.hands.reap().await.done, 0, "it has spoken");
        far.exchange(held()).await;
    }
    far.hands.beat_for(&bed, 8_000).await;
    assert_eq!(far.hands.reap().await.done, 1, "one that is silent beside a node that is there is gone");
}

/// A node that has told a worker to drop an attempt, and dies before it has ended it,
/// would leave a lease that the worker does not list and no node ends.
#[tokio::test]
async fn a_worker_is_told_to_drop_an_attempt_only_when_the_store_has_its_end() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({ "timeout": "10s", "retry": { "max_attempts": 1 } })).await;
    let lease = given(&bed, &mut far, 1).await;
    let held = || Exchange { leases: vec![lease], wait: None, ..wants(&bed, 1, 0) };
    for _ in 0..8 {
        far.hands.beat_for(&bed, 2_000).await;
        // Nothing is settled by this node from here on.
        let answer = remote::exchange(&far.hands.node, held()).await.unwrap();
        assert_eq!(answer.lost, [], "the store has no end of it");
    }
    drop(far);
    let mut next = Far::new(&bed).await;
    next.exchange(held()).await;
    next.hands.settle().await;
    assert_eq!(bed.record(lease.run).await.failure.map(|failure| failure.kind), Some(ErrorKind::Timeout));
    next.hands.beat_for(&bed, 2_000).await;
    assert_eq!(next.exchange(held()).await.lost, [lease]);
}

#[tokio::test]
async fn a_run_over_its_rate_is_handed_over_when_there_is_a_token() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({ "rate_limit": { "runs": 1, "per": "10s" } })).await;
    for _ in 0..3 {
        far.hands.enqueue(&bed, "far").await;
    }
    let leases =
        |answer: &ExchangeAnswer| -> Vec<Lease> { answer.attempts.iter().map(|work| work.attempt.lease).collect() };
    let first = leases(&far.exchange(wants(&bed, 1, 5)).await);
    assert_eq!(first.len(), 2, "the burst");
    let held = |leases: &[Lease]| Exchange { leases: leases.to_vec(), wait: None, ..wants(&bed, 1, 3) };
    for _ in 0..4 {
        far.hands.beat_for(&bed, 2_000).await;
        let answer = far.exchange(held(&first)).await;
        assert_eq!((leases(&answer).len(), answer.lost.len()), (0, 0));
    }
    far.hands.beat_for(&bed, 2_000).await;
    assert_eq!(leases(&far.exchange(held(&first)).await).len(), 1);
    assert_eq!(far.hands.reap().await.done, 0, "what was held back was held");
}

#[tokio::test]
async fn what_attempts_say_is_kept_under_their_lease_alone() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let lease = given(&bed, &mut far, 1).await;
    let stale = Lease { fence: rota_core::run::Fence(lease.fence.0 - 1), ..lease };
    let piece = |lease, seq, text: &str| LogPiece {
        lease,
        seq,
        lines: vec![Line { at: bed.now(), stream: rota_core::ports::Stream::Stdout, text: text.into() }],
    };
    let word = |lease, percent| {
        (lease, rota_core::ports::Progress { percent: Some(percent), ..rota_core::ports::Progress::default() })
    };
    let logs = vec![piece(lease, 0, "first"), piece(stale, 0, "forged"), piece(lease, 1, "second")];
    let words = Exchange {
        logs,
        progress: vec![word(lease, 50), word(stale, 99)],
        wait: None,
        leases: vec![lease],
        ..wants(&bed, 1, 0)
    };
    for _ in 0..2 {
        let answer = far.exchange(words.clone()).await;
        assert!(answer.lost.contains(&stale) && !answer.lost.contains(&lease), "{:?}", answer.lost);
    }
    let query = LogQuery { run: lease.run, attempt: None, after: None, limit: 10 };
    let lines: String = bed.store.logs(&query).await.unwrap().into_iter().map(|chunk| chunk.lines).collect();
    assert_eq!(lines.lines().count(), 2, "each once: {lines}");
    assert!(lines.contains("first") && lines.contains("second"));
    assert_eq!(bed.record(lease.run).await.progress.as_deref(), Some("{\"percent\":50}"));
}

#[tokio::test]
async fn a_worker_that_is_to_drain_gets_no_more_and_is_told() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let waiting = far.begin(wants(&bed, 1, 5));
    far.unanswered(&waiting).await;
    assert!(bed.store.drain_worker(Some(bed.tenant), hello(&bed, 1).worker).await.unwrap());
    bed.go(2_000);
    let answer = far.answered(waiting).await;
    assert!(answer.drain && answer.attempts.is_empty());
    far.hands.enqueue(&bed, "far").await;
    assert!(far.exchange(wants(&bed, 1, 5)).await.attempts.is_empty());
    let left = far.exchange(Exchange { leaving: true, wait: None, ..wants(&bed, 1, 0) }).await;
    assert!(left.attempts.is_empty());
    let listed = bed.store.workers(None, None, 10).await.unwrap();
    assert_eq!(listed.iter().filter(|worker| !worker.info.built_in).count(), 0, "it has left");
}

/// A run whose attempt is in the mail of a worker whose connection broke.
async fn in_the_mail(bed: &Bed, far: &mut Far) -> RunId {
    let waiting = far.begin(wants(bed, 1, 1));
    far.unanswered(&waiting).await;
    let id = far.hands.enqueue(bed, "far").await;
    let now = far.hands.node.clock.now();
    while far.hands.node.stats.started.get() == 0 {
        far.assign.pass(now).await.unwrap();
    }
    waiting.abort();
    assert!(waiting.await.is_err());
    assert_eq!(bed.status(id).await, Status::Running);
    id
}

/// An attempt that waits to be fetched must not be handed to a worker after its cancel was
/// answered: nobody has begun it.
#[tokio::test]
async fn an_attempt_in_the_mail_is_not_handed_over_after_its_cancel() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let id = in_the_mail(&bed, &mut far).await;
    let ask = Cancel { by: None, reason: None, grace: Some(Span::secs(30)) };
    assert_eq!(far.hands.handle().cancel(&[id], &ask).await.unwrap(), [CancelAnswer::Asked]);
    let waiting = far.begin(wants(&bed, 1, 1));
    far.unanswered(&waiting).await;
    assert_eq!(bed.status(id).await, Status::Ended(Verdict::Cancelled));
    waiting.abort();
}

/// A worker filled its slots elsewhere meanwhile. Kept for it, the attempt would be taken
/// for lost by another node and be handed over there as well.
#[tokio::test]
async fn an_attempt_in_the_mail_of_a_worker_without_room_goes_back() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({})).await;
    let id = in_the_mail(&bed, &mut far).await;
    let waiting = far.begin(wants(&bed, 1, 0));
    far.unanswered(&waiting).await;
    assert_eq!(bed.status(id).await, Status::Running, "it may have room in a moment");
    bed.go(1_000);
    far.turn().await;
    assert_eq!(bed.status(id).await, Status::Queued);
    let answer = far.exchange(wants(&bed, 2, 1)).await;
    assert_eq!(answer.attempts[0].attempt.lease.run, id, "another worker gets it");
    waiting.abort();
}

/// One that is leased and waits for a token of its rate neither.
#[tokio::test]
async fn an_attempt_held_for_its_rate_is_not_handed_over_after_its_cancel() {
    let bed = Bed::new().await;
    let mut far = Far::new(&bed).await;
    far_job(&bed, &far.hands.node.clone(), json!({ "rate_limit": { "runs": 1, "per": "10s" } })).await;
    for _ in 0..3 {
        far.hands.enqueue(&bed, "far").await;
    }
    let given = far.exchange(wants(&bed, 1, 3)).await.attempts;
    let given: Vec<Lease> = given.iter().map(|work| work.attempt.lease).collect();
    let held = bed.runs().await.into_iter().map(|record| record.run.id);
    let held: Vec<RunId> = held.filter(|id| given.iter().all(|lease| lease.run != *id)).collect();
    assert_eq!((given.len(), held.len()), (2, 1));
    assert_eq!(bed.status(held[0]).await, Status::Running, "it is leased");
    let ask = Cancel { by: None, reason: None, grace: Some(Span::secs(30)) };
    assert_eq!(far.hands.handle().cancel(&held, &ask).await.unwrap(), [CancelAnswer::Asked]);
    for _ in 0..6 {
        far.hands.beat_for(&bed, 2_000).await;
        let answer = far.exchange(Exchange { leases: given.clone(), wait: None, ..wants(&bed, 1, 3) }).await;
        assert!(answer.attempts.is_empty(), "it was handed over after its cancel");
    }
    far.turn().await;
    assert_eq!(bed.status(held[0]).await, Status::Ended(Verdict::Cancelled));
}
