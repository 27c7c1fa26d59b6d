//! Concurrent histories: many real tasks on one store, every call recorded with
//! its beginning and its end, and the record checked afterwards.
//!
//! A call may have taken effect anywhere between its two marks, so a history is
//! wrong only where no choice of instants explains it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use rota_core::{
    ids::{BatchId, NodeId, Partition, RunId, WorkerId},
    run::{Change, Fence, NewRun, Outcome, Run, Status},
    slot::SlotKey,
    store::{
        By, CancelAnswer, Claim, Ends, Enqueued, Epoch, Guarded, NodeBeat, Reap, RunQuery, Settlement, Store, Write,
    },
};
use uuid::Uuid;

use crate::harness::*;

/// What a call did, as its caller was told.
#[derive(Clone, Copy, Debug)]
enum Event {
    Leased {
        fence: Fence,
        key: Option<SlotKey>,
    },
    /// Given up under this fence; with the status it then had.
    Settled {
        fence: Fence,
        status: Status,
    },
    /// Taken from whoever held it.
    Lost {
        status: Status,
    },
    Cancelled,
    Swept {
        status: Status,
    },
    Took {
        part: Partition,
        epoch: Epoch,
    },
    Executed {
        part: Partition,
        epoch: Epoch,
    },
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    began: u64,
    ended: u64,
    run: RunId,
    event: Event,
}

/// What the tasks share: the order of calls, the time, and the record.
struct Stage {
    order: AtomicU64,
    clock: AtomicI64,
    ids: AtomicU64,
    over: AtomicBool,
    record: Mutex<Vec<Mark>>,
}

impl Stage {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            order: AtomicU64::new(0),
            clock: AtomicI64::new(0),
            ids: AtomicU64::new(1),
            over: AtomicBool::new(false),
            record: Mutex::new(Vec::new()),
        })
    }

    fn tick(&self) -> u64 {
        self.order.fetch_add(1, Ordering::SeqCst)
    }

    /// Time passes with every call, by a millisecond.
    fn now(&self) -> Timestamp {
        at(self.clock.fetch_add(1, Ordering::SeqCst))
    }

    fn write(&self, node: Option<NodeId>, now: Timestamp) -> Write {
        let n = self.ids.fetch_add(1, Ordering::SeqCst);
        Write {
            batch: BatchId(Uuid::from_u64_pair(0x0199_ffff_0000_7000, 1 << 63 | n)),
            now,
            node,
            generation: 0,
            request: None,
            ends: Ends::default(),
            dry_run: false,
        }
    }

    fn note(&self, began: u64, marks: impl IntoIterator<Item = (RunId, Event)>) {
        let ended = self.tick();
        let marks = marks.into_iter().map(|(run, event)| Mark { began, ended, run, event });
        self.record.lock().unwrap().extend(marks);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

fn after(run: &Run, change: &Change) -> Status {
    let mut run = run.clone();
    run.apply(change);
    run.state.status()
}

/// Claims and settles; every fifth lease is forgotten, as a dying worker does.
async fn work(stage: Arc<Stage>, store: Arc<dyn Store>, claim: Claim, rounds: usize) {
    for round in 0..rounds {
        let now = stage.now();
        let claim = Claim { until: plus(now, 40), ..claim.clone() };
        let began = stage.tick();
        let runs = store.claim(&stage.write(None, now), std::slice::from_ref(&claim)).await.unwrap();
        let leased = |run: &Run| (run.id, Event::Leased { fence: run.fence, key: run.slot.map(|slot| slot.key) });
        stage.note(began, runs.iter().map(leased));
        let now = stage.now();
        let outcome = |n: usize| match n % 4 {
            0 | 1 => succeeded(),
            2 => failed(),
            _ => broken(),
        };
        let kept = runs.iter().enumerate().filter(|(n, _)| (round + n) % 5 != 0);
        let ends: Vec<(Run, Settlement)> =
            kept.map(|(n, run)| (run.clone(), by_lease(run, outcome(round + n), now))).collect();
        let began = stage.tick();
        let settlements: Vec<_> = ends.iter().map(|(_, end)| end.clone()).collect();
        let answers = store.settle(&stage.write(None, now), &settlements).await.unwrap().answers;
        let applied = ends.iter().zip(answers).filter(|(_, answer)| *answer == Guarded::Applied);
        stage.note(
            began,
            applied
                .map(|((run, end), _)| (run.id, Event::Settled { fence: run.fence, status: after(run, &end.change) })),
        );
    }
}

/// Reaps, sweeps and promotes until the others are done.
async fn tend(stage: Arc<Stage>, store: Arc<dyn Store>, node: NodeId) {
    let parts = all_parts();
    while !stage.is_over() {
        let now = stage.now();
        let began = stage.tick();
        let reap = Reap { before: now, losses_max: 3, limit: 100 };
        let reaped = store.reap(&stage.write(Some(node), now), &reap).await.unwrap();
        stage.note(began, reaped.iter().map(|reaped| (reaped.id, Event::Lost { status: reaped.status })));
        let began = stage.tick();
        let swept = store.sweep(&stage.write(Some(node), now), 100).await.unwrap();
        stage.note(began, swept.iter().map(|swept| (swept.id, Event::Swept { status: swept.status })));
        store.promote(&stage.write(Some(node), now), &parts, 100).await.unwrap();
        // A second and a half of backoff passes in no time here.
        stage.clock.fetch_add(100, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
}

async fn cancel(stage: Arc<Stage>, store: Arc<dyn Store>, runs: Vec<RunId>) {
    for id in runs {
        let now = stage.now();
        let began = stage.tick();
        let answer = store.request_cancel(&stage.write(None, now), &[id], &ask()).await.unwrap()[0];
        stage.note(began, (answer == CancelAnswer::Cancelled).then_some((id, Event::Cancelled)));
    }
}

fn ends_run(event: &Event) -> Option<Status> {
    let status = match event {
        Event::Settled { status, .. } | Event::Lost { status } | Event::Swept { status } => *status,
        Event::Cancelled => Status::Ended(rota_core::run::Verdict::Cancelled),
        Event::Leased { .. } | Event::Took { .. } | Event::Executed { .. } => return None,
    };
    matches!(status, Status::Ended(_)).then_some(status)
}

fn by_run(record: &[Mark]) -> BTreeMap<RunId, Vec<Mark>> {
    let mut runs: BTreeMap<RunId, Vec<Mark>> = BTreeMap::new();
    for mark in record {
        runs.entry(mark.run).or_default().push(*mark);
    }
    runs
}

/// Leases of one run never overlap, and their fences grow.
fn check_leases(marks: &[Mark]) {
    let mut leases: Vec<_> = marks
        .iter()
        .filter_map(|mark| if let Event::Leased { fence, .. } = mark.event { Some((fence, *mark)) } else { None })
        .collect();
    leases.sort_by_key(|(fence, _)| *fence);
    for pair in leases.windows(2) {
        let ((first, former), (second, latter)) = (pair[0], pair[1]);
        assert!(first < second, "one fence twice: {marks:#?}");
        assert!(former.began < latter.ended, "an older fence was given later: {marks:#?}");
        let given_up = marks.iter().any(|mark| {
            let gives = match mark.event {
                Event::Settled { fence, .. } => fence == first,
                Event::Lost { .. } => true,
                _ => false,
            };
            gives && mark.began < latter.ended
        });
        assert!(given_up, "leased again while it was held: {marks:#?}");
        for mark in marks {
            if let Event::Settled { fence, .. } = mark.event
                && fence == first
            {
                assert!(mark.began < latter.ended, "settled under a lease that was replaced: {marks:#?}");
            }
        }
    }
}

/// At no instant are more runs surely held under a key than its limit. A run is
/// surely held from the end of the call that leased it to the beginning of the
/// next call that took the lease away.
fn check_slots(runs: &BTreeMap<RunId, Vec<Mark>>, limit: usize) {
    let mut edges: BTreeMap<SlotKey, Vec<(u64, i64)>> = BTreeMap::new();
    for marks in runs.values() {
        for mark in marks {
            let Event::Leased { fence, key: Some(key) } = mark.event else { continue };
            let left = marks.iter().filter_map(|other| match other.event {
                Event::Settled { fence: of, .. } if of == fence => Some(other.began),
                // It may have been this lease that was taken away.
                Event::Lost { .. } | Event::Swept { .. } if other.ended > mark.began => Some(other.began),
                _ => None,
            });
            let until = left.min().unwrap_or(mark.ended);
            if until > mark.ended {
                edges.entry(key).or_default().extend([(mark.ended, 1), (until, -1)]);
            }
        }
    }
    for (key, mut edges) in edges {
        edges.sort_unstable();
        let mut held = 0;
        for (_, change) in edges {
            held += change;
            assert!(held <= limit as i64, "{held} hold {key:?}, whose limit is {limit}");
        }
    }
}

/// Workers, cancellers, a reaper and makers at once: each run has one verdict,
/// the one that somebody was told; leases never overlap; no key overflows.
pub async fn a_concurrent_history_has_an_explanation(h: &Harness) {
    let stage = Stage::new();
    let second = h.second().await;
    let store = |n: usize| if n.is_multiple_of(2) { h.store.clone() } else { second.clone() };
    let node = h.owner(at(0)).await.node;
    h.beat(node, plus(at(0), 1_000_000_000), at(0)).await;
    const LIMIT: usize = 2;
    let runs: Vec<NewRun> = (0..120_i64)
        .map(|n| match n % 3 {
            0 => h.new_run(h.claimed),
            key => h.keyed(key, LIMIT as u32),
        })
        .collect();
    let ids: Vec<_> = runs.iter().map(|run| run.id).collect();
    let mut players = tokio::task::JoinSet::new();
    for (n, chunk) in runs.chunks(30).enumerate() {
        let (stage, store, runs) = (stage.clone(), store(n), chunk.to_vec());
        players.spawn(async move {
            for runs in runs.chunks(6) {
                let now = stage.now();
                let runs: Vec<_> = runs.iter().map(|run| NewRun { ready_at: now, ..run.clone() }).collect();
                let made = store.enqueue(&stage.write(None, now), &runs, &[]).await.unwrap();
                assert!(made.iter().all(|answer| matches!(answer, Enqueued::Made { .. })));
            }
        });
    }
    for n in 0..4 {
        let claim = h.claim_of(WorkerId(Uuid::from_u64_pair(9, n as u64 + 1)), 4, at(0));
        players.spawn(work(stage.clone(), store(n), claim, 25));
    }
    players.spawn(cancel(stage.clone(), store(1), ids.iter().copied().step_by(4).collect()));
    let tending = tokio::spawn(tend(stage.clone(), store(1), node));
    players.join_all().await;
    // Whoever comes last drains the rest, so that every run has its end. Each
    // time another worker, because one that goes on claiming keeps its leases.
    let live = [Status::Scheduled, Status::Blocked, Status::Queued, Status::Running, Status::Cancelling];
    let waiting = RunQuery { statuses: live.to_vec(), limit: 1_000, ..Default::default() };
    let mut rounds = 0;
    while !h.list(waiting.clone()).await.is_empty() {
        rounds += 1;
        assert!(rounds < 2_000, "the rest does not drain: {:#?}", h.list(waiting).await);
        work(stage.clone(), store(0), h.claim_of(h.worker(), 100, at(0)), 1).await;
    }
    stage.over.store(true, Ordering::SeqCst);
    tending.await.unwrap();
    let record = stage.record.lock().unwrap().clone();
    let runs = by_run(&record);
    for id in ids {
        let marks = runs.get(&id).map(Vec::as_slice).unwrap_or_default();
        let ends: Vec<_> = marks.iter().filter_map(|mark| ends_run(&mark.event)).collect();
        assert_eq!(ends.len(), 1, "one verdict: {marks:#?}");
        assert_eq!(h.status(id).await, ends[0], "as somebody was told: {marks:#?}");
        check_leases(marks);
    }
    check_slots(&runs, LIMIT);
    crate::slots::nothing_to_repair(h).await;
}

/// Takes partitions as the others' word runs out, and executes what lies there.
async fn own(stage: Arc<Stage>, store: Arc<dyn Store>, h: Own, rounds: usize) {
    let mut epochs: BTreeMap<Partition, Epoch> = BTreeMap::new();
    for round in 0..rounds {
        let now = stage.now();
        // A node's word is short, so that the others often take over.
        let beat = NodeBeat { node: h.node, name: "n".into(), info: "{}".into(), until: plus(now, 6) };
        if round % 3 != 2 {
            store.beat(&beat, now).await.unwrap();
        }
        let now = stage.now();
        let began = stage.tick();
        let taken = store.take_partitions(h.node, &h.parts, now).await.unwrap();
        let taken: Vec<_> = h.parts.iter().copied().zip(taken).filter_map(|(part, e)| Some((part, e?))).collect();
        stage.note(
            began,
            taken.iter().map(|(part, epoch)| (RunId(Uuid::nil()), Event::Took { part: *part, epoch: *epoch })),
        );
        epochs.extend(taken);
        // What it took once it believes to hold, until it is told otherwise.
        let held: Vec<_> = epochs.keys().copied().collect();
        let runs = store.own(&held, &[h.window]).await.unwrap().remove(0);
        tokio::task::yield_now().await;
        let now = stage.now();
        let ends: Vec<_> = runs
            .iter()
            .enumerate()
            .map(|(n, run)| {
                let mut run = run.clone();
                let mark = run.mark_running(run.lease(), now).unwrap();
                run.apply(&mark);
                let outcome = if n % 3 == 2 { Outcome::Succeeded { output: Some("1".into()) } } else { succeeded() };
                Settlement { by: By::Owner(epochs[&run.part]), ..by_lease(&run, outcome, now) }
            })
            .collect();
        let began = stage.tick();
        let answers = store.settle(&stage.write(Some(h.node), now), &ends).await.unwrap().answers;
        let applied = ends.iter().zip(&answers).filter(|(_, answer)| **answer == Guarded::Applied);
        stage.note(
            began,
            applied.map(|(end, _)| (end.lease.run, Event::Executed { part: end.part, epoch: epochs[&end.part] })),
        );
        for (end, answer) in ends.iter().zip(&answers) {
            if *answer == Guarded::Stale {
                epochs.remove(&end.part);
            }
        }
    }
}

struct Own {
    node: NodeId,
    parts: Vec<Partition>,
    window: rota_core::dispatch::Window,
}

/// Owners that take each other's partitions all the time: each run is settled
/// once, and never by an owner who had been replaced before it asked.
pub async fn owners_that_replace_each_other_settle_each_run_once(h: &Harness) {
    let stage = Stage::new();
    let second = h.second().await;
    let parts: Vec<_> = (0..4).map(Partition).collect();
    let pair = rota_core::dispatch::Pair { lane: h.owned, tenant: h.tenant };
    let window = rota_core::dispatch::Window { pair, after: None, limit: 8 };
    let runs: Vec<_> = (0..150).map(|n| NewRun { part: Partition(n % 4), ..h.new_run(h.owned) }).collect();
    h.enqueue(&runs, at(0)).await;
    let mut players = tokio::task::JoinSet::new();
    for n in 0..3 {
        let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
        let own_of = Own { node: h.node_id(), parts: parts.clone(), window };
        players.spawn(own(stage.clone(), store, own_of, 40));
    }
    players.join_all().await;
    let record = stage.record.lock().unwrap().clone();
    let mut ended = 0;
    for (run, marks) in by_run(&record).into_iter().filter(|(run, _)| run.0 != Uuid::nil()) {
        assert_eq!(marks.len(), 1, "{run} was settled once: {marks:#?}");
        ended += 1;
        let Event::Executed { part, epoch } = marks[0].event else { panic!("{marks:?}") };
        for other in &record {
            if let Event::Took { part: of, epoch: newer } = other.event
                && of == part
                && newer > epoch
            {
                assert!(other.ended > marks[0].began, "a replaced owner settled {run}: {other:?}, {marks:?}");
            }
        }
    }
    assert!(ended > 0, "somebody executed something");
    let done = RunQuery {
        statuses: vec![Status::Ended(rota_core::run::Verdict::Succeeded)],
        limit: 1_000,
        ..Default::default()
    };
    assert_eq!(h.list(done).await.len(), ended, "what was told is what is stored");
}
