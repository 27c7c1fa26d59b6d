//! What becomes of everything when a clock is set: back, ahead, and right again.
//!
//! The whole engine with its driver and the system's clock, on a machine whose time
//! goes on by hand: what is the truth is its own clock, or the store's.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use jiff::{SignedDuration, Timestamp};
use rota_core::{
    duration::Span,
    job::{JobDocument, failure::ErrorKind},
    ports::Clock,
    run::{Status, Verdict},
    store::Expect,
};
use rota_engine::{
    Engine, JobRef, Made, Options, RunAsk,
    clock::{Machine, SystemClock, TestMachine},
    stages::{Stage, measure::Measure},
};
use serde_json::{Value, json};

use crate::bed::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Truth {
    Machine,
    Store,
}

/// Sizes of steps, in seconds.
const STEPS: [i64; 8] = [2, 60, 300, 7_200, -2, -60, -300, -7_200];

struct Whole {
    bed: Bed,
    engine: Engine,
    machine: Arc<TestMachine>,
    /// What the store's clock is ahead of the time, in seconds.
    store_ahead: Arc<AtomicI64>,
    truth: Truth,
}

impl Whole {
    async fn start(truth: Truth) -> Self {
        let bed = Bed::new().await;
        let machine = Arc::new(TestMachine::new(at(0)));
        let store_ahead = Arc::new(AtomicI64::new(0));
        if truth == Truth::Store {
            let (machine, ahead) = (Arc::clone(&machine), Arc::clone(&store_ahead));
            let seconds = move || SignedDuration::from_secs(ahead.load(Ordering::Relaxed));
            bed.faults.set_clock(move || machine.time.now().checked_add(seconds()).unwrap());
        }
        let clock = Arc::new(SystemClock::of(Arc::clone(&machine) as Arc<dyn Machine>));
        let options = Options { traits: vec!["gpu".into()], ..Options::default() };
        let engine = bed.builder_on(options, clock).start().await.unwrap();
        Self { bed, engine, machine, store_ahead, truth }
    }

    /// Sets the clock that is the truth so many seconds ahead of the time.
    fn set_clock(&self, ahead: i64) {
        match self.truth {
            Truth::Machine => self.machine.set_wall(SignedDuration::from_secs(ahead)),
            Truth::Store => self.store_ahead.store(ahead, Ordering::Relaxed),
        }
    }

    /// Goes on to a time in small steps, everybody doing what they have to.
    async fn go_to(&self, second: i64) {
        while self.machine.time.now() < at(second * 1_000) {
            self.machine.time.advance(Span::millis(100));
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn save(&self, document: Value) {
        let document = JobDocument::from_value(document).unwrap();
        self.engine.save_job(self.bed.tenant, &document, None, Expect::Anything).await.unwrap();
    }

    async fn enqueue(&self, job: &str) -> rota_core::ids::RunId {
        let ask = RunAsk::of(self.bed.tenant, JobRef::Name(job.into()));
        match self.engine.enqueue(vec![ask]).await.unwrap().remove(0) {
            Made::Run { id, .. } => id,
            other => panic!("{job}: {other:?}"),
        }
    }

    /// The planned instants that have a run, in seconds, and that none has two.
    async fn planned(&self) -> Vec<i64> {
        let planned: Vec<i64> = self.bed.planned().await.iter().map(|millis| millis / 1_000).collect();
        let mut once = planned.clone();
        once.dedup();
        assert_eq!(once, planned, "no instant is fired twice");
        planned
    }
}

fn tick() -> Value {
    let schedule =
        json!({ "name": "t", "every": "10s", "anchor": at(0), "overlap": "allow", "catch_up": { "mode": "all" } });
    with(job("tick", "noop"), json!({ "schedules": [schedule] }))
}

/// A clock that was set back and put right again must not stop the firing for as
/// long as it was set back by.
#[tokio::test]
async fn a_clock_set_back_and_put_right_fires_what_came_meanwhile_at_once() {
    for (truth, back) in [Truth::Machine, Truth::Store]
        .into_iter()
        .flat_map(|truth| STEPS.into_iter().filter(|step| *step < -20).map(move |step| (truth, step)))
    {
        let whole = Whole::start(truth).await;
        whole.save(tick()).await;
        whole.go_to(12).await;
        assert_eq!(whole.planned().await, [0, 10], "{truth:?} {back}");
        whole.set_clock(back);
        whole.go_to(32).await;
        assert_eq!(whole.planned().await, [0, 10], "{truth:?} {back}: their time has not come");
        whole.set_clock(0);
        whole.go_to(34).await;
        assert_eq!(whole.planned().await, [0, 10, 20, 30], "{truth:?} {back}: within two seconds");
        whole.go_to(41).await;
        assert_eq!(whole.planned().await, [0, 10, 20, 30, 40], "{truth:?} {back}");
        assert_eq!(whole.engine.stats().clock_steps.get(), 2, "{truth:?} {back}");
    }
}

/// A clock that was wrong and is put right, for good, is followed within seconds:
/// what it passes over is caught up with, what it comes to again is not repeated.
#[tokio::test]
async fn a_clock_set_for_good_is_followed_within_seconds() {
    for (truth, step) in
        [Truth::Machine, Truth::Store].into_iter().flat_map(|truth| STEPS.into_iter().map(move |step| (truth, step)))
    {
        let whole = Whole::start(truth).await;
        whole.save(tick()).await;
        whole.save(job("later", "later")).await;
        whole.go_to(12).await;
        whole.set_clock(step);
        whole.go_to(14).await;
        let fresh = json!({ "name": "f", "every": "5s", "overlap": "allow" });
        whole.save(with(job("fresh", "noop"), json!({ "schedules": [fresh] }))).await;
        whole.go_to(26).await;
        let planned = whole.bed.planned().await;
        let by_the_clock = (26 + step) * 1_000;
        let fresh = planned.iter().filter(|planned| planned.rem_euclid(10_000) == 5_000).count();
        assert!(fresh >= 1, "{truth:?} {step}: a schedule saved after the step fires: {planned:?}");
        assert!(planned.iter().all(|planned| *planned <= by_the_clock.max(12_000)), "{truth:?} {step}: {planned:?}");
        // What is asked for now is done now, and what is put off for five seconds in five.
        let (plain, later) = (whole.enqueue("tick").await, whole.enqueue("later").await);
        whole.go_to(28).await;
        assert_eq!(whole.bed.status(plain).await, Status::Ended(Verdict::Succeeded), "{truth:?} {step}");
        whole.go_to(33).await;
        assert_eq!(whole.bed.status(later).await, Status::Ended(Verdict::Succeeded), "{truth:?} {step}");
        if step > 0 {
            let last = by_the_clock / 10_000 * 10_000;
            assert!(planned.contains(&last), "{truth:?} {step}: {last} of {planned:?}");
        }
    }
}

/// Nobody loses a lease, a partition or an attempt because a clock was set, and an
/// attempt has the time it was given.
#[tokio::test]
async fn attempts_and_leases_outlive_a_clock_that_is_set() {
    for (truth, step) in
        [Truth::Machine, Truth::Store].into_iter().flat_map(|truth| STEPS.into_iter().map(move |step| (truth, step)))
    {
        let whole = Whole::start(truth).await;
        let once = json!({ "max_attempts": 1 });
        for (name, extra) in [
            ("owned", json!({ "timeout": "1m", "retry": once })),
            ("leased", json!({ "timeout": "1m", "retry": once, "requires": ["gpu"] })),
            ("alone", json!({ "exclusive": true })),
        ] {
            whole.save(with(job(name, "wait"), extra)).await;
        }
        let mut ids = Vec::new();
        for name in ["owned", "leased", "alone"] {
            ids.push(whole.enqueue(name).await);
        }
        whole.go_to(5).await;
        assert_eq!(whole.bed.work.going.load(Ordering::SeqCst), 3);
        whole.set_clock(step);
        whole.go_to(20).await;
        whole.set_clock(0);
        whole.go_to(40).await;
        for id in &ids {
            let record = whole.bed.record(*id).await;
            let seen = (record.run.state.status(), record.run.losses, whole.bed.work.calls_of(*id));
            assert_eq!(seen, (Status::Running, 0, 1), "{truth:?} {step}: {id}");
        }
        assert_eq!(whole.engine.stats().partitions.get(), 256, "{truth:?} {step}");
        // What has a minute has it by time that only goes on.
        whole.go_to(62).await;
        for id in &ids[..2] {
            let failure = whole.bed.record(*id).await.failure.map(|failure| failure.kind);
            assert_eq!(failure, Some(ErrorKind::Timeout), "{truth:?} {step}");
        }
        assert_eq!(whole.bed.status(ids[2]).await, Status::Running, "{truth:?} {step}");
    }
}

/// What happens to a node's own clock is nothing to it where the store has one.
#[tokio::test]
async fn a_machines_clock_is_nothing_to_a_node_whose_store_has_one() {
    for step in STEPS {
        let whole = Whole::start(Truth::Store).await;
        whole.save(tick()).await;
        whole.go_to(12).await;
        whole.machine.set_wall(SignedDuration::from_secs(step));
        whole.go_to(41).await;
        assert_eq!(whole.planned().await, [0, 10, 20, 30, 40], "{step}");
        assert_eq!(whole.engine.stats().clock_steps.get(), 0, "{step}");
        let off = whole.engine.now().duration_until(whole.machine.time.now());
        assert!(off.unsigned_abs() < std::time::Duration::from_millis(10), "{step}: {off:?}");
    }
}

/// A node whose clock is hours off when it starts must not promise anything by it.
#[tokio::test]
async fn the_clock_is_measured_before_anything_is_promised_by_it() {
    let bed = Bed::new().await;
    let machine = Arc::new(TestMachine::new(at(0)));
    machine.set_wall(SignedDuration::from_hours(5));
    let theirs = Arc::clone(&machine);
    bed.faults.set_clock(move || theirs.time.now());
    let clock = Arc::new(SystemClock::of(Arc::clone(&machine) as Arc<dyn Machine>));
    let _engine = bed.builder_on(Options::default(), Arc::clone(&clock)).start().await.unwrap();
    let nodes = bed.store.nodes(at(0)).await.unwrap();
    let soon: Timestamp = at(3_100);
    assert!(nodes.iter().all(|node| node.until <= soon), "{nodes:?}");
    assert!(clock.machine_ahead() > SignedDuration::from_mins(299));
    assert!(clock.latest() >= clock.now());
}

/// A node that starts takes for dead whoever renews its lease by the store's clock as it was
/// before it was set. So a node that has not measured that clock for a lease time, because it
/// stood still or has no answer, must neither begin an `exclusive` attempt nor go on with one.
#[tokio::test]
async fn exclusive_attempts_want_a_clock_that_was_measured_lately() {
    let bed = Bed::new().await;
    let machine = Arc::new(TestMachine::new(at(0)));
    let ahead = Arc::new(AtomicI64::new(0));
    let (theirs, seconds) = (Arc::clone(&machine), Arc::clone(&ahead));
    let seconds = move || SignedDuration::from_secs(seconds.load(Ordering::Relaxed));
    bed.faults.set_clock(move || theirs.time.now().checked_add(seconds()).unwrap());
    let clock = Arc::new(SystemClock::of(Arc::clone(&machine) as Arc<dyn Machine>));
    let mut node = Hands::new(bed.builder_on(Options::default(), Arc::clone(&clock)).node());
    let mut measure = Measure::new(Arc::clone(&node.node));
    measure.pass(clock.now()).await.unwrap();
    node.lead().await;
    node.look().await;
    bed.go(1_000);
    bed.save(&node.node, with(job("alone", "wait"), json!({ "exclusive": true }))).await;
    node.enqueue(&bed, "alone").await;
    // It stands still, and nobody else takes its partitions.
    ahead.store(65, Ordering::Relaxed);
    machine.time.advance(Span::secs(7));
    node.lead().await;
    node.dispatch().await;
    node.let_run().await;
    assert_eq!(bed.work.count(), 0, "it does not know that the clock was set");
    measure.pass(clock.now()).await.unwrap();
    node.lead().await;
    machine.time.advance(Span::millis(500));
    node.dispatch().await;
    bed.work.wait_for_going(1).await;
    node.let_run().await;
    // Its heartbeats are taken, and its measurements are not answered.
    for _ in 0..6 {
        assert_eq!(node.node.executing.running(), 1);
        machine.time.advance(Span::millis(900));
        node.lead().await;
        node.withdraw().await;
        node.let_run().await;
    }
    assert_eq!(node.node.executing.running(), 0);
}

/// One node has noticed that the store's clock was set back, and renews its lease by it. By the
/// time of the other, which has not, that lease ran out long ago: it took the partitions of a
/// live node, whose `exclusive` attempts went on.
#[tokio::test]
async fn nobody_is_presumed_dead_by_a_clock_that_was_not_measured_since() {
    let bed = Bed::new().await;
    let machine = Arc::new(TestMachine::new(at(0)));
    let ahead = Arc::new(AtomicI64::new(0));
    let (theirs, seconds) = (Arc::clone(&machine), Arc::clone(&ahead));
    let seconds = move || SignedDuration::from_secs(seconds.load(Ordering::Relaxed));
    bed.faults.set_clock(move || theirs.time.now().checked_add(seconds()).unwrap());
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let clock = Arc::new(SystemClock::of(Arc::clone(&machine) as Arc<dyn Machine>));
        let node = Hands::new(bed.builder_on(Options::default(), Arc::clone(&clock)).node());
        let mut measure = Measure::new(Arc::clone(&node.node));
        measure.pass(clock.now()).await.unwrap();
        nodes.push((node, measure, clock));
    }
    let held = |node: &Hands| node.node.territory.parts();
    for _ in 0..2 {
        for (node, ..) in &mut nodes {
            node.lead().await;
        }
    }
    let before = held(&nodes[0].0);
    assert!(before.len() > 80, "{before:?}");
    ahead.store(-60, Ordering::Relaxed);
    machine.time.advance(Span::millis(500));
    let (first, measure, clock) = &mut nodes[0];
    measure.pass(clock.now()).await.unwrap();
    first.lead().await;
    machine.time.advance(Span::millis(500));
    nodes[1].0.lead().await;
    nodes[0].0.lead().await;
    assert_eq!(held(&nodes[0].0), before);
    assert_eq!(held(&nodes[1].0).len() + before.len(), 256);
}
