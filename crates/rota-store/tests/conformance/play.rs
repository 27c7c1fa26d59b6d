//! Random play: the same operations on the model and on a store must give the
//! same answers and end in the same state.
//!
//! A play is a seed. `ROTA_SEED=7` plays that one and compares everything after
//! each step; `ROTA_LONG=1` plays many more. A play that fails prints its seed
//! and its last steps.

use std::{collections::BTreeMap, fmt::Debug};

use jiff::Timestamp;
use rota_core::{
    dispatch::{Pair, Share},
    duration::Span,
    ids::{NodeId, Partition, RunId, ScheduleId, TenantId, WorkerId},
    lane::LaneMode,
    order::{OrderKey, Priority},
    run::{
        Change, Lease, NewRun, Outcome, Parent, Redrive, Run, RunState, Source, TrailEntry, TrailKind, Trigger,
        UniqueAsk, WaitFor,
    },
    slot::{SlotAsk, SlotKey, UniqueKey, WhenFull},
    store::{
        By, Claim, DueCursor, Epoch, FireItem, NodeBeat, OwnLease, Reap, Reaped, RunQuery, RunningMark, ScheduleSaved,
        Settlement, Woken, Write,
    },
};

use crate::{
    harness::*,
    model::{Model, ModelSchedule},
};

/// A small generator of numbers (`SplitMix64`): seeded, the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<'t, T>(&mut self, of: &'t [T]) -> Option<&'t T> {
        if of.is_empty() { None } else { Some(&of[self.below(of.len())]) }
    }
}

/// Who settles: under a written lease, or by a right to a partition.
#[derive(Clone, Copy, Debug)]
enum Right {
    Lease,
    Owner(usize),
}

#[derive(Clone, Debug)]
enum Op {
    Enqueue(Option<NodeId>, Vec<NewRun>),
    Fire(Option<NodeId>, Box<FireItem>),
    Claim(Claim),
    Settle(Option<NodeId>, Vec<(Lease, Partition, Right, Change)>),
    Mark(NodeId, Lease, Partition, usize),
    LeaseOwned(NodeId, WorkerId, Lease, Partition, usize),
    LeaseRunning(NodeId, WorkerId, Lease, Partition, usize),
    Cancel(Vec<RunId>),
    Promote(NodeId, u32),
    Wake(RunId),
    Release(Option<NodeId>, WorkerId),
    Reap,
    Sweep,
    Beat(NodeId, Timestamp),
    Take(NodeId, Partition),
    Give(usize),
    Leave(NodeId),
}

/// A right to a partition, as the model and as the store number it.
#[derive(Clone, Copy)]
struct Taken {
    node: NodeId,
    part: Partition,
    model: Epoch,
    store: Epoch,
}

/// An answer: what must be the same when asked again, and what may shrink.
#[derive(PartialEq, Debug)]
struct Answer {
    lasting: String,
    fleeting: String,
}

fn lasting(of: &impl Debug) -> Answer {
    Answer { lasting: format!("{of:?}"), fleeting: String::new() }
}

fn woken_ids(woken: &[Woken]) -> Vec<(RunId, bool)> {
    let mut ids: Vec<_> = woken.iter().map(|woken| (woken.run.id, woken.handed)).collect();
    ids.sort();
    ids
}

fn sorted(mut reaped: Vec<Reaped>) -> Vec<Reaped> {
    reaped.sort_by_key(|reaped| reaped.id);
    reaped
}

struct Play<'h> {
    h: &'h Harness,
    dice: Dice,
    model: Model,
    now: Timestamp,
    tenants: Vec<TenantId>,
    nodes: Vec<NodeId>,
    workers: Vec<WorkerId>,
    rights: Vec<Taken>,
    /// Runs as someone who executes them saw them, fresh or long stale.
    views: Vec<(Run, Right)>,
    guards: BTreeMap<ScheduleId, (DueCursor, i32)>,
    pauses: i64,
    last: Option<(Write, Op, String)>,
    told: Seed,
}

const PARTS: [Partition; 3] = [Partition(1), Partition(2), Partition(3)];

impl<'h> Play<'h> {
    async fn new(h: &'h Harness, seed: u64) -> Self {
        let mut model = Model::default();
        model.lanes.insert(h.owned, LaneMode::Owned);
        model.lanes.insert(h.claimed, LaneMode::Claimed);
        let mut guards = BTreeMap::new();
        let job = h.store.jobs(&[h.job]).await.unwrap().remove(0).unwrap();
        for (name, after_finish_ms) in [("every", None), ("after", Some(2_000))] {
            let mut put = h.schedule_put(name).await;
            if let Some(ms) = after_finish_ms {
                put.spec = format!("{{\"after_finish\":\"{ms}ms\"}}");
            }
            assert!(matches!(h.save_schedule(&put, at(0)).await, ScheduleSaved::Saved { .. }));
            let due = crate::fire::due_of(h, put.id).await;
            guards.insert(put.id, (due, job.revision));
            let schedule = ModelSchedule { cursor: put.stored.cursor, after_finish_ms, armed_by: None, fired: 0 };
            model.schedules.insert(put.id, schedule);
        }
        Self {
            h,
            dice: Dice(seed),
            model,
            now: at(0),
            tenants: vec![h.tenant, h.tenant("other").await],
            nodes: (0..3).map(|_| h.node_id()).collect(),
            workers: (0..3).map(|_| h.worker()).collect(),
            rights: Vec::new(),
            views: Vec::new(),
            guards,
            pauses: h.store.pauses().await.unwrap().revision,
            last: None,
            told: Seed(seed, Vec::new()),
        }
    }

    // --- making up operations ---------------------------------------------------------

    fn node(&mut self) -> NodeId {
        *self.dice.pick(&self.nodes).unwrap()
    }

    /// Mostly one that holds a partition.
    fn holder(&mut self) -> NodeId {
        let holders: Vec<_> = self.model.parts.values().filter_map(|held| held.node).collect();
        if self.dice.chance(85) && !holders.is_empty() { *self.dice.pick(&holders).unwrap() } else { self.node() }
    }

    fn some_node(&mut self) -> Option<NodeId> {
        if self.dice.chance(80) { Some(self.holder()) } else { None }
    }

    fn any_run(&mut self) -> Option<RunId> {
        let ids: Vec<_> = self.model.runs.keys().copied().collect();
        self.dice.pick(&ids).copied()
    }

    fn live_where(&mut self, keep: impl Fn(&Run) -> bool) -> Option<Run> {
        let runs: Vec<_> = self.model.live().filter(|run| keep(run)).cloned().collect();
        self.dice.pick(&runs).cloned()
    }

    fn new_run(&mut self) -> NewRun {
        let lane = if self.dice.chance(50) { self.h.owned } else { self.h.claimed };
        let mut run = self.h.new_run(lane);
        run.tenant = *self.dice.pick(&self.tenants).unwrap();
        run.part = *self.dice.pick(&PARTS).unwrap();
        run.priority = Priority::new(1 + self.dice.below(10) as u8).unwrap();
        run.ready_at = self.now;
        if self.dice.chance(25) {
            run.ready_at = plus(self.now, self.dice.below(4_000) as i64);
        }
        if self.dice.chance(20) {
            run.expires_at = Some(plus(self.now, self.dice.below(6_000) as i64));
        }
        if self.dice.chance(20) {
            run.deadline_at = Some(plus(self.now, self.dice.below(9_000) as i64));
        }
        if self.dice.chance(50) {
            run.slot = Some(self.slot());
        }
        if self.dice.chance(15) {
            let until = plus(self.now, 1 + self.dice.below(5_000) as i64);
            run.unique = Some(UniqueAsk { key: UniqueKey(self.dice.below(2) as i64), until });
        }
        for _ in 0..if self.dice.chance(25) { 1 + self.dice.below(3) } else { 0 } {
            run.after.extend(self.any_run());
        }
        if let Some(ask) = &mut run.slot
            && (run.ready_at > self.now || !run.after.is_empty())
        {
            // It asks later; until then its limit is nobody's business.
            ask.limit = 2;
        }
        if self.dice.chance(15) {
            let parent = self.live_where(|run| matches!(run.state, RunState::Running { .. }));
            run.parent =
                parent.map(|parent| Parent { run: parent.id, step: 0, item: (parent.fence.0 % 2 == 0).then_some(7) });
        }
        if self.dice.chance(30) {
            let (after, left) = (Span::millis(1 + self.dice.below(3_000) as u64), 1 + self.dice.below(2) as u16);
            let (start_within, end_within) = (self.dice.chance(20), self.dice.chance(20));
            let (start_within, end_within) =
                (start_within.then_some(Span::secs(2)), end_within.then_some(Span::secs(3)));
            run.redrive = Some(Redrive { after, left, start_within, end_within });
        }
        run
    }

    fn slot(&mut self) -> SlotAsk {
        let policies = [WhenFull::Queue, WhenFull::Queue, WhenFull::Skip, WhenFull::Replace, WhenFull::CancelRunning];
        SlotAsk {
            key: SlotKey(self.dice.below(2) as i64),
            limit: 1 + self.dice.below(3) as u32,
            when_full: *self.dice.pick(&policies).unwrap(),
            max_queued: self.dice.chance(30).then(|| self.dice.below(4) as u32),
            grace: Span::secs(30),
        }
    }

    fn outcome(&mut self) -> Outcome {
        let later = plus(self.now, self.dice.below(3_000) as i64);
        match self.dice.below(10) {
            0..=3 => Outcome::Succeeded { output: self.dice.chance(50).then(|| "{\"n\":1}".into()) },
            4 | 5 => failed(),
            6 => broken(),
            7 => Outcome::Cancelled,
            8 => Outcome::Deferred { until: later, reason: "down".into() },
            _ => {
                let on = match self.dice.below(3) {
                    0 => WaitFor::Sleep,
                    1 => WaitFor::Callback,
                    _ => WaitFor::Children(1 + self.dice.below(2) as u32),
                };
                Outcome::Parked { on, until: self.dice.chance(60).then_some(later) }
            }
        }
    }

    /// A run that someone executes, as they see it: now, or some time ago.
    fn view(&mut self) -> Option<(Run, Right)> {
        if self.dice.chance(25)
            && let Some(view) = self.dice.pick(&self.views).cloned()
        {
            return Some(view);
        }
        let owned = self.h.owned;
        let run = self.live_where(|run| match run.state {
            RunState::Running { .. } | RunState::Cancelling { .. } => true,
            RunState::Queued => run.lane == owned,
            _ => false,
        })?;
        let right = self.right_to(run.part);
        let leased = matches!(
            run.state,
            RunState::Running { hold: rota_core::run::Hold::Leased(_), .. }
                | RunState::Cancelling { hold: Some(rota_core::run::Hold::Leased(_)), .. }
        );
        let right = if leased == self.dice.chance(3) { Right::Owner(right?) } else { Right::Lease };
        self.views.push((run.clone(), right));
        Some((run, right))
    }

    /// A right to this partition, mostly the latest.
    fn right_to(&mut self, part: Partition) -> Option<usize> {
        let rights: Vec<_> = (0..self.rights.len()).filter(|n| self.rights[*n].part == part).collect();
        if self.dice.chance(85) { rights.last().copied() } else { self.dice.pick(&rights).copied() }
    }

    fn settlement(&mut self) -> Option<(Lease, Partition, Right, Change)> {
        let (mut run, right) = self.view()?;
        if let RunState::Queued = run.state {
            let mark = run.mark_running(run.lease(), self.now).unwrap();
            run.apply(&mark);
        }
        let outcome = self.outcome();
        Some((run.lease(), run.part, right, change(&run, outcome, self.now)))
    }

    fn fire(&mut self) -> Option<Op> {
        let schedules: Vec<_> = self.model.schedules.keys().copied().collect();
        let id = *self.dice.pick(&schedules)?;
        let after = self.model.schedules[&id].after_finish_ms.is_some();
        let (due, job_revision) = self.guards[&id];
        let cursor_now = self.model.schedules[&id].cursor;
        // Sometimes a plan that was made long ago.
        let read = if self.dice.chance(15) { due.cursor } else { cursor_now? };
        let mut run = self.new_run();
        run.trigger =
            Trigger { schedule: Some(id), planned_at: Some(read.planned_at), ..Trigger::plain(Source::Schedule) };
        run.rearms = after;
        run.follows = self.dice.chance(70);
        let cancel = self.live_where(|run| run.trigger.schedule == Some(id)).map(|run| run.id);
        let next = cursor(plus(read.planned_at, 1_000), read.fired + 1);
        let item = FireItem {
            due: DueCursor { cursor: read, ..due },
            job: self.h.job,
            job_revision,
            next: (!after).then_some(next),
            next_if_refused: Some(next),
            runs: vec![run],
            skips: Vec::new(),
            cancel: cancel.into_iter().filter(|_| self.dice.chance(40)).collect(),
            cancel_ask: Some(ask()),
        };
        Some(Op::Fire(self.some_node(), Box::new(item)))
    }

    fn op(&mut self) -> Option<Op> {
        Some(match self.dice.below(100) {
            0..=19 => {
                let count = 1 + self.dice.below(4);
                let mut runs: Vec<_> = (0..count).map(|_| self.new_run()).collect();
                let ends_others = |run: &NewRun| {
                    run.slot.is_some_and(|ask| matches!(ask.when_full, WhenFull::Replace | WhenFull::CancelRunning))
                };
                if count > 1 && runs.iter().any(ends_others) {
                    // Whether a run sees what its own batch ends as ended or as
                    // about to is the store's to choose.
                    for run in &mut runs {
                        run.after.clear();
                    }
                }
                Op::Enqueue(self.some_node(), runs)
            }
            20..=25 => self.fire()?,
            26..=33 => {
                let share =
                    |tenant, runs| Share { pair: Pair { lane: self.h.claimed, tenant }, low: OrderKey::MIN, runs };
                let shares = vec![share(self.tenants[0], 2), share(self.tenants[1], 2)];
                let worker = *self.dice.pick(&self.workers)?;
                Op::Claim(Claim { worker, until: plus(self.now, 3_000), shares, most: 3 })
            }
            34..=62 => {
                let count = 1 + self.dice.below(3);
                let ends: Vec<_> = (0..count).filter_map(|_| self.settlement()).collect();
                Op::Settle(self.some_node(), ends)
            }
            63..=65 => {
                let owned = self.h.owned;
                let run = match self.live_where(|run| run.lane == owned && run.state == RunState::Queued) {
                    Some(run) if self.dice.chance(80) => run,
                    _ => self.live_where(|run| run.lane == owned)?,
                };
                let right = self.right_to(run.part)?;
                let node = self.rights[right].node;
                match self.dice.below(10) {
                    0..=4 => Op::Mark(node, run.lease(), run.part, right),
                    5..=6 => Op::LeaseOwned(node, *self.dice.pick(&self.workers)?, run.lease(), run.part, right),
                    _ => Op::LeaseRunning(node, *self.dice.pick(&self.workers)?, run.lease(), run.part, right),
                }
            }
            66..=71 => {
                let count = 1 + self.dice.below(2);
                Op::Cancel((0..count).filter_map(|_| self.any_run()).collect())
            }
            // All that is due: which come first of several partitions under a
            // limit is the store's to choose.
            72..=79 => Op::Promote(self.holder(), 1_000),
            80..=82 => match self.live_where(|run| matches!(run.state, RunState::Waiting { .. })) {
                Some(run) => Op::Wake(run.id),
                None => Op::Wake(self.any_run()?),
            },
            83 => Op::Release(self.some_node(), *self.dice.pick(&self.workers)?),
            84..=86 => Op::Reap,
            87..=89 => Op::Sweep,
            90..=94 => Op::Beat(self.node(), plus(self.now, 12_000)),
            95..=97 => Op::Take(self.node(), *self.dice.pick(&PARTS)?),
            98 => Op::Give(self.dice.below(self.rights.len().max(1))),
            _ => Op::Leave(self.node()),
        })
    }

    // --- applying them ------------------------------------------------------------------

    fn on_model(&mut self, op: &Op) -> Answer {
        let now = self.now;
        let model = &mut self.model;
        match op {
            Op::Enqueue(node, runs) => lasting(&model.enqueue(*node, now, runs)),
            Op::Fire(node, item) => lasting(&model.fire(*node, now, item)),
            Op::Claim(claim) => Answer { lasting: String::new(), fleeting: format!("{:#?}", model.claim(now, claim)) },
            Op::Settle(node, ends) => {
                let ends: Vec<_> = ends.iter().map(|end| settlement(end, |n| self.rights[n].model)).collect();
                let (answers, woken) = model.settle(*node, now, &ends);
                Answer { lasting: format!("{answers:?}"), fleeting: format!("{woken:?}") }
            }
            Op::Mark(_, lease, part, right) => {
                let epoch = self.rights[*right].model;
                lasting(&[model.mark_running(now, &RunningMark { lease: *lease, part: *part, epoch, started_at: now })])
            }
            Op::LeaseOwned(_, worker, lease, part, right) => {
                let ask = OwnLease { lease: *lease, part: *part, epoch: self.rights[*right].model };
                lasting(&[model.lease_owned(now, *worker, plus(now, 3_000), &ask)])
            }
            Op::LeaseRunning(_, worker, lease, part, right) => {
                let epoch = self.rights[*right].model;
                let attempt = RunningMark { lease: *lease, part: *part, epoch, started_at: now };
                lasting(&[model.lease_running(now, *worker, plus(now, 3_000), &attempt)])
            }
            Op::Cancel(ids) => lasting(&model.request_cancel(now, ids, &ask())),
            Op::Promote(node, limit) => {
                let (moved, woken) = model.promote(*node, now, &PARTS, *limit as usize);
                Answer { lasting: format!("{moved}"), fleeting: format!("{woken:?}") }
            }
            Op::Wake(id) => lasting(&[model.wake(now, *id)]),
            Op::Release(node, worker) => {
                Answer { lasting: String::new(), fleeting: format!("{:?}", model.release(*node, now, *worker)) }
            }
            Op::Reap => lasting(&sorted(model.reap(now, &Reap { before: now, losses_max: 3, limit: 1_000 }))),
            Op::Sweep => lasting(&sorted(model.sweep(now))),
            Op::Beat(node, until) => lasting(&model.beat(*node, *until)),
            Op::Take(node, part) => {
                let taken = model.take(*node, *part, now);
                if let Some(epoch) = taken {
                    self.rights.push(Taken { node: *node, part: *part, model: epoch, store: Epoch(-1) });
                }
                lasting(&taken.is_some())
            }
            Op::Give(right) => match self.rights.get(*right) {
                Some(right) => lasting(&[model.give(right.node, right.part, right.model)]),
                None => lasting(&()),
            },
            Op::Leave(node) => {
                model.leave(*node);
                lasting(&())
            }
        }
    }

    async fn on_store(&mut self, op: &Op, write: &Write) -> Answer {
        let now = write.now;
        let store = &self.h.store;
        match op {
            Op::Enqueue(_, runs) => lasting(&store.enqueue(write, runs, &[]).await.unwrap()),
            Op::Fire(_, item) => {
                let fired = store.fire(write, self.pauses, std::slice::from_ref(&**item)).await.unwrap();
                lasting(&fired[0])
            }
            Op::Claim(claim) => {
                let runs = store.claim(write, std::slice::from_ref(claim)).await.unwrap();
                Answer { lasting: String::new(), fleeting: format!("{runs:#?}") }
            }
            Op::Settle(_, ends) => {
                let ends: Vec<_> = ends.iter().map(|end| settlement(end, |n| self.rights[n].store)).collect();
                let settled = store.settle(write, &ends).await.unwrap();
                let fleeting = format!("{:?}", woken_ids(&settled.woken));
                Answer { lasting: format!("{:?}", settled.answers), fleeting }
            }
            Op::Mark(_, lease, part, right) => {
                let epoch = self.rights[*right].store;
                let mark = RunningMark { lease: *lease, part: *part, epoch, started_at: now };
                lasting(&store.mark_running(write, &[mark]).await.unwrap())
            }
            Op::LeaseOwned(_, worker, lease, part, right) => {
                let ask = OwnLease { lease: *lease, part: *part, epoch: self.rights[*right].store };
                lasting(&store.lease_owned(write, *worker, plus(now, 3_000), &[ask]).await.unwrap())
            }
            Op::LeaseRunning(_, worker, lease, part, right) => {
                let epoch = self.rights[*right].store;
                let attempt = RunningMark { lease: *lease, part: *part, epoch, started_at: now };
                lasting(&store.lease_running(write, *worker, plus(now, 3_000), &[attempt]).await.unwrap())
            }
            Op::Cancel(ids) => lasting(&store.request_cancel(write, ids, &ask()).await.unwrap()),
            Op::Promote(_, limit) => {
                let promoted = store.promote(write, &PARTS, *limit).await.unwrap();
                let fleeting = format!("{:?}", woken_ids(&promoted.woken));
                Answer { lasting: format!("{}", promoted.moved), fleeting }
            }
            Op::Wake(id) => lasting(&store.wake(write, &[*id]).await.unwrap()),
            Op::Release(_, worker) => {
                let woken = store.release(write, *worker).await.unwrap();
                Answer { lasting: String::new(), fleeting: format!("{:?}", woken_ids(&woken)) }
            }
            Op::Reap => {
                let reap = Reap { before: now, losses_max: 3, limit: 1_000 };
                lasting(&sorted(store.reap(write, &reap).await.unwrap()))
            }
            Op::Sweep => lasting(&sorted(store.sweep(write, 1_000).await.unwrap())),
            Op::Beat(node, until) => {
                let beat = NodeBeat { node: *node, name: "n".into(), info: "{}".into(), until: *until };
                lasting(&store.beat(&beat, now).await.unwrap())
            }
            Op::Take(node, part) => {
                let taken = store.take_partitions(*node, &[*part], now).await.unwrap()[0];
                if let (Some(epoch), Some(right)) = (taken, self.rights.last_mut()) {
                    right.store = epoch;
                }
                lasting(&taken.is_some())
            }
            Op::Give(right) => match self.rights.get(*right) {
                Some(right) => lasting(&store.give_partitions(right.node, &[(right.part, right.store)]).await.unwrap()),
                None => lasting(&()),
            },
            Op::Leave(node) => {
                store.leave(*node).await.unwrap();
                lasting(&())
            }
        }
    }

    /// Begins with every partition held.
    async fn begin(&mut self) {
        for (node, part) in self.nodes.clone().into_iter().zip(PARTS) {
            for op in [Op::Beat(node, plus(self.now, 12_000)), Op::Take(node, part)] {
                let expected = self.on_model(&op);
                assert_eq!(self.on_store(&op, &self.h.write(self.now)).await, expected, "{op:#?}");
            }
        }
    }

    async fn step(&mut self) {
        let jump = if self.dice.chance(3) { 8_000 } else { 400 };
        self.now = plus(self.now, self.dice.below(jump) as i64);
        if self.dice.chance(12)
            && let Some((write, op, before)) = self.last.take()
        {
            let again = self.on_store(&op, &write).await;
            assert_eq!(again.lasting, before, "asked again: {op:#?}");
            return;
        }
        let Some(op) = self.op() else { return };
        let node = match &op {
            Op::Enqueue(node, _) | Op::Fire(node, _) | Op::Settle(node, _) | Op::Release(node, _) => *node,
            Op::Mark(node, ..) | Op::LeaseOwned(node, ..) | Op::LeaseRunning(node, ..) | Op::Promote(node, _) => {
                Some(*node)
            }
            _ => None,
        };
        let write = Write { node, ..self.h.write(self.now) };
        self.told.1.push(format!("{:?}: {op:#?}", self.now));
        let expected = self.on_model(&op);
        let answer = self.on_store(&op, &write).await;
        assert_eq!(answer, expected, "{op:#?}");
        let repeatable = !matches!(op, Op::Beat(..) | Op::Take(..) | Op::Give(_) | Op::Leave(_));
        self.last = repeatable.then_some((write, op, answer.lasting));
    }

    // --- comparing ------------------------------------------------------------------------

    async fn compare(&self) {
        let ids: Vec<_> = self.model.runs.keys().copied().collect();
        let stored = self.h.store.runs(&ids).await.unwrap();
        for (id, record) in ids.iter().zip(stored) {
            let known = &self.model.runs[id];
            let record = record.unwrap_or_else(|| panic!("{id} is gone; the model has {known:#?}"));
            // Of one that has ended nobody asks any more whether it had begun before.
            let ended = matches!(known.run.state, RunState::Finished { .. });
            assert_same(&record.run, &Run { started: known.run.started && !ended, ..known.run.clone() }, "a run");
            let started_at = known.run.state.started_at().or(known.started_at);
            assert_eq!(record.started_at, started_at, "start of {id}");
            assert_eq!((&record.failure, &record.output), (&known.failure, &known.output), "end of {id}");
            assert_same(&unattributed(record.trail), &unattributed(known.trail.clone()), "a trail");
        }
        let listed = self.h.list(RunQuery { limit: 1_000, ..Default::default() }).await;
        assert_eq!(listed.len(), ids.len(), "the list holds every run once");
        assert_eq!(self.h.store.recount_slots(&self.h.write(self.now)).await.unwrap(), 0, "slots fit the live runs");
        self.compare_notices().await;
        let schedules: Vec<_> = self.model.schedules.keys().copied().collect();
        let cursors = self.h.cursors(&schedules).await;
        let expected: Vec<_> = self.model.schedules.values().map(|schedule| schedule.cursor).collect();
        assert_eq!(cursors, expected, "cursors");
        for lease in self.h.store.partitions().await.unwrap() {
            let node = self.model.parts.get(&lease.part).and_then(|held| held.node);
            assert_eq!(lease.node, node, "holder of {:?}", lease.part);
        }
    }

    async fn compare_notices(&self) {
        let seen = self.h.store.notices(&PARTS, 10_000).await.unwrap();
        let mut seen: Vec<_> = seen.iter().map(|run| (run.part, run.id)).collect();
        seen.sort();
        let live: Vec<_> = self.model.live().map(|run| run.id).collect();
        let expected: Vec<_> = self.model.notices.iter().filter(|(_, id)| live.contains(id)).copied().collect();
        assert_eq!(seen, expected, "notices");
    }
}

fn settlement(
    (lease, part, right, change): &(Lease, Partition, Right, Change),
    epoch: impl Fn(usize) -> Epoch,
) -> Settlement {
    let by = match right {
        Right::Lease => By::Lease,
        Right::Owner(n) => By::Owner(epoch(*n)),
    };
    Settlement { lease: *lease, part: *part, by, change: change.clone() }
}

/// A trail without the name of who displaced the run: of several newcomers in
/// one batch, each store may name another.
fn unattributed(mut trail: Vec<TrailEntry>) -> Vec<TrailEntry> {
    for entry in &mut trail {
        if let TrailKind::Displaced { by } = &mut entry.kind {
            *by = RunId(uuid::Uuid::nil());
        }
    }
    trail
}

/// Says which seed failed when a play panics, and what was done last.
struct Seed(u64, Vec<String>);

impl Drop for Seed {
    #[allow(clippy::print_stderr, reason = "a play that fails must say which it was")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let last = self.1.len().saturating_sub(3);
            eprintln!("{}", self.1[last..].join("\n"));
            eprintln!("the play of seed {} failed; ROTA_SEED={} plays it again", self.0, self.0);
        }
    }
}

/// Plays so many steps on a store, and leaves it as it is then.
pub async fn some(h: &Harness, seed: u64, steps: usize) {
    let mut play = Play::new(h, seed).await;
    play.begin().await;
    for _ in 0..steps {
        play.step().await;
    }
    play.compare().await;
}

/// A difference between the stores, or between a store and its promise, that
/// nobody thought to write a case for.
pub async fn a_store_agrees_with_the_model(h: &Harness) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seeds, every) = match (number("ROTA_SEED"), number("ROTA_LONG")) {
        (Some(seed), _) => (seed..=seed, 1),
        (None, Some(_)) => (1..=300, 20),
        (None, None) => (1..=10, 20),
    };
    for seed in seeds {
        let harness = Harness::open(h.backend).await;
        let mut play = Play::new(&harness, seed).await;
        play.begin().await;
        for step in 0..160 {
            play.step().await;
            if step % every == 0 {
                play.compare().await;
            }
        }
        play.compare().await;
        drop(play);
        harness.close().await;
    }
}
