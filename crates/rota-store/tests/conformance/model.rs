//! The pure model: what a store must answer, written for the eye.
//!
//! Everything is in maps, every decision is a function of `rota-core`, every
//! write happens alone. It is slow and knows no SQL, so that it can be read
//! against the port and believed. It leaves out what the random play does not
//! touch: definitions, lists, roll-ups, logs, tokens, upkeep.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    fire::Cursor,
    ids::{LaneId, NodeId, Partition, RunId, ScheduleId, WorkerId},
    job::failure::Failure,
    lane::LaneMode,
    run::{
        CancelAsk, Change, Finish, Hold, NewRun, Refusal, Run, RunState, SlotUse, Status, TRAIL_BYTES_MAX, TrailEntry,
        WaitFor,
    },
    slot::{Entry, Slot, SlotKey, UniqueKey},
    store::{
        By, CancelAnswer, Claim, Enqueued, Epoch, FireItem, Fired, Guarded, OwnLease, Reap, Reaped, RunningMark,
        Settlement,
    },
};

/// What the model knows of a run, live or ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    pub run: Run,
    pub rearms: bool,
    pub started_at: Option<Timestamp>,
    pub failure: Option<Failure>,
    pub output: Option<Box<str>>,
    pub trail: Vec<TrailEntry>,
}

#[derive(Clone, Debug)]
pub struct ModelSchedule {
    pub cursor: Option<Cursor>,
    pub after_finish_ms: Option<u64>,
    pub armed_by: Option<RunId>,
    pub fired: u64,
}

#[derive(Clone, Debug)]
pub struct Held {
    pub epoch: Epoch,
    pub node: Option<NodeId>,
}

/// A run that became ready, and whether the writer was handed it.
pub type WokenId = (RunId, bool);

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub lanes: BTreeMap<LaneId, LaneMode>,
    pub runs: BTreeMap<RunId, Known>,
    /// Who waits for whom.
    needs: BTreeMap<RunId, BTreeSet<RunId>>,
    pub slots: BTreeMap<SlotKey, Slot>,
    unique: BTreeMap<UniqueKey, (RunId, Timestamp)>,
    pub schedules: BTreeMap<ScheduleId, ModelSchedule>,
    pub parts: BTreeMap<Partition, Held>,
    nodes: BTreeMap<NodeId, Timestamp>,
    workers: BTreeMap<WorkerId, Timestamp>,
    pub notices: BTreeSet<(Partition, RunId)>,
}

/// One write: its time, its node, and what it still has to follow up.
struct Work {
    now: Timestamp,
    node: Option<NodeId>,
    freed: Vec<SlotKey>,
    ended: Vec<RunId>,
    woken: Vec<RunId>,
}

impl Work {
    fn new(node: Option<NodeId>, now: Timestamp) -> Self {
        Self { now, node, freed: Vec::new(), ended: Vec::new(), woken: Vec::new() }
    }
}

fn is_live(run: &Run) -> bool {
    !matches!(run.state, RunState::Finished { .. })
}

/// The worker whose written lease the run is under.
fn holder(run: &Run) -> Option<WorkerId> {
    match run.state {
        RunState::Running { hold: Hold::Leased(worker), .. }
        | RunState::Cancelling { hold: Some(Hold::Leased(worker)), .. } => Some(worker),
        _ => None,
    }
}

impl Model {
    pub fn live(&self) -> impl Iterator<Item = &Run> {
        self.runs.values().map(|known| &known.run).filter(|run| is_live(run))
    }

    fn live_run(&self, id: RunId) -> Option<Run> {
        self.runs.get(&id).map(|known| known.run.clone()).filter(is_live)
    }

    fn mode(&self, lane: LaneId) -> LaneMode {
        self.lanes[&lane]
    }

    // --- what follows from a change ----------------------------------------------

    fn change(&mut self, work: &mut Work, id: RunId, change: &Change) {
        let before = self.runs[&id].run.clone();
        let known = self.runs.get_mut(&id).expect("the run is there");
        known.run.apply(change);
        let trail = match change {
            Change::Finish(finish) => {
                known.started_at = finish.started_at.or(before.state.started_at());
                known.failure.clone_from(&finish.failure);
                known.output.clone_from(&finish.output);
                &finish.trail
            }
            Change::Move(next) => &next.trail,
        };
        let written: usize = known.trail.iter().map(|entry| entry.line().len()).sum();
        if written < TRAIL_BYTES_MAX {
            known.trail.extend(trail.clone());
        }
        let after = known.run.clone();
        self.leave_slot(work, &before, &after);
        if after.state == RunState::Queued {
            work.woken.push(id);
        }
        if let Change::Finish(finish) = change {
            self.vacate(work, &before);
            work.ended.push(id);
            self.rearm(id, finish);
            if let Some(new) = &finish.follower {
                self.born(work, NewRun::clone(new), RunState::Scheduled);
            }
        }
        self.count_children(work, &before, &after);
    }

    fn leave_slot(&mut self, work: &mut Work, before: &Run, after: &Run) {
        let Some(claim) = before.slot else { return };
        if after.state.slot_use() != SlotUse::None {
            return;
        }
        let slot = self.slots.entry(claim.key).or_insert(Slot::empty(claim.limit));
        match before.state.slot_use() {
            SlotUse::None => {}
            SlotUse::Waits => slot.waiting = slot.waiting.saturating_sub(1),
            SlotUse::Holds => {
                slot.held = slot.held.saturating_sub(1);
                work.freed.push(claim.key);
            }
        }
    }

    fn rearm(&mut self, id: RunId, finish: &Finish) {
        let known = &self.runs[&id];
        let Some(schedule) = known.run.trigger.schedule.filter(|_| known.rearms) else { return };
        let Some(schedule) = self.schedules.get_mut(&schedule) else { return };
        if schedule.armed_by != Some(id) {
            return;
        }
        schedule.armed_by = None;
        if let Some(delay) = schedule.after_finish_ms {
            let at = Span::millis(delay).after(finish.ended_at);
            schedule.cursor = Some(Cursor { planned_at: at, due_at: at, fired: schedule.fired });
        }
    }

    /// Whoever of its schedule is behind a run that ends while it waits takes its place.
    fn vacate(&mut self, work: &mut Work, ended: &Run) {
        if !matches!(ended.state, RunState::Blocked(rota_core::run::Block::Needs(_))) {
            return;
        }
        let ahead: Vec<RunId> =
            self.needs.iter().filter(|(_, waiters)| waiters.contains(&ended.id)).map(|(id, _)| *id).collect();
        let behind = self.needs.get(&ended.id).cloned().unwrap_or_default();
        let schedule = ended.trigger.schedule;
        let same = |id: &RunId| schedule.is_some() && self.runs[id].run.trigger.schedule == schedule;
        let heirs: Vec<RunId> = behind.into_iter().filter(same).collect();
        for needed in ahead {
            let waiters = self.needs.entry(needed).or_default();
            waiters.remove(&ended.id);
            for heir in &heirs {
                let more = self.needs.entry(needed).or_default().insert(*heir);
                if let Some(change) = self.live_run(*heir).and_then(|run| run.wait_for_more(u32::from(more)).ok()) {
                    self.change(work, *heir, &change);
                }
            }
        }
    }

    /// The live runs of a schedule that no other of its runs waits for.
    fn last_of_chain(&self, schedule: ScheduleId) -> BTreeSet<RunId> {
        let of_schedule = |run: &Run| run.trigger.schedule == Some(schedule);
        let waited_for = |id: RunId| {
            let mut waiters = self.needs.get(&id).into_iter().flatten();
            waiters.any(|waiter| self.live_run(*waiter).is_some_and(|run| of_schedule(&run)))
        };
        self.live().filter(|run| of_schedule(run) && !waited_for(run.id)).map(|run| run.id).collect()
    }

    /// Children that ended before their parent came to wait are not waited for.
    fn count_children(&mut self, work: &mut Work, before: &Run, after: &Run) {
        let RunState::Waiting { on: WaitFor::Children(asked), .. } = after.state else { return };
        if matches!(before.state, RunState::Waiting { .. }) {
            return;
        }
        let children = self.live().filter(|run| run.parent.is_some_and(|parent| parent.run == after.id));
        let live = u32::try_from(children.count()).expect("few children");
        if live < asked
            && let Ok(change) = after.join(asked - live, None, work.now)
        {
            self.change(work, after.id, &change);
        }
    }

    fn follow_up(&mut self, work: &mut Work) {
        loop {
            if let Some(ended) = work.ended.pop() {
                self.join(work, ended);
            } else if let Some(key) = work.freed.pop() {
                self.admit(work, key);
            } else {
                return;
            }
        }
    }

    fn join(&mut self, work: &mut Work, ended: RunId) {
        let mut waiters: Vec<RunId> = self.needs.remove(&ended).unwrap_or_default().into_iter().collect();
        waiters.extend(self.runs[&ended].run.parent.map(|parent| parent.run));
        waiters.sort();
        for waiter in waiters {
            let Some(run) = self.live_run(waiter) else { continue };
            let entry = run
                .enters_on_join(1, work.now)
                .map(|claim| self.slots.entry(claim.key).or_insert(Slot::empty(claim.limit)).reenter());
            if let Ok(change) = run.join(1, entry, work.now) {
                self.change(work, waiter, &change);
            }
        }
    }

    fn admit(&mut self, work: &mut Work, key: SlotKey) {
        let room = self.slots.get_mut(&key).map_or(0, Slot::admit) as usize;
        let mut waiting: Vec<_> = self
            .live()
            .filter(|run| run.slot.is_some_and(|claim| claim.key == key))
            .filter(|run| run.state.slot_use() == SlotUse::Waits)
            .map(|run| (run.order_key(), run.id))
            .collect();
        waiting.sort();
        assert!(room <= waiting.len(), "the counter of {key:?} promises more than there is");
        for (_, id) in &waiting[..room] {
            let change = self.runs[id].run.admit().expect("it waits");
            self.change(work, *id, &change);
        }
    }

    /// What became ready goes to the writer, to its owner's notices, or to
    /// whoever claims it.
    fn hand_over(&mut self, work: &Work) -> Vec<WokenId> {
        let woken: BTreeSet<RunId> = work.woken.iter().copied().collect();
        let queued = woken.into_iter().filter(|id| self.runs[id].run.state == RunState::Queued).collect::<Vec<_>>();
        queued.into_iter().map(|id| (id, self.handed(work.node, id))).collect()
    }

    fn handed(&mut self, node: Option<NodeId>, id: RunId) -> bool {
        let run = &self.runs[&id].run;
        if self.mode(run.lane) == LaneMode::Claimed {
            return false;
        }
        let held = node.is_some() && self.parts.get(&run.part).is_some_and(|held| held.node == node);
        if !held {
            self.notices.insert((run.part, id));
        }
        held
    }

    fn done(&mut self, mut work: Work) -> Vec<WokenId> {
        self.follow_up(&mut work);
        self.hand_over(&work)
    }

    /// For writes whose answer does not name what became ready.
    fn done_unnamed(&mut self, mut work: Work) {
        self.follow_up(&mut work);
        work.node = None;
        self.hand_over(&work);
    }

    // --- making runs -----------------------------------------------------------------

    pub fn enqueue(&mut self, node: Option<NodeId>, now: Timestamp, runs: &[NewRun]) -> Vec<Enqueued> {
        let mut work = Work::new(node, now);
        let mut answers: Vec<_> = runs.iter().map(|run| self.make(&mut work, run.clone())).collect();
        self.done_made(work, runs, &mut answers);
        answers
    }

    /// A new run that was let in at once is answered as ready; everyone else's
    /// owner is told.
    fn done_made(&mut self, mut work: Work, runs: &[NewRun], answers: &mut [Enqueued]) {
        self.follow_up(&mut work);
        for (run, answer) in runs.iter().zip(answers) {
            let ready = |known: &Known| known.run.state == RunState::Queued;
            if work.woken.contains(&run.id) && self.runs.get(&run.id).is_some_and(ready) {
                work.woken.retain(|id| *id != run.id);
                *answer = Enqueued::Made { status: Status::Queued, handed: self.handed(work.node, run.id) };
            }
        }
        work.node = None;
        self.hand_over(&work);
    }

    fn make(&mut self, work: &mut Work, new: NewRun) -> Enqueued {
        if let Some(unique) = new.unique
            && let Some((of, until)) = self.unique.get(&unique.key)
            && *until > work.now
        {
            return Enqueued::Duplicate { of: *of };
        }
        let ours = |id: &RunId| self.live_run(*id).is_some_and(|run| run.tenant == new.tenant);
        let mut needed: BTreeSet<RunId> = new.after.iter().copied().filter(ours).collect();
        if let Some(schedule) = new.trigger.schedule.filter(|_| new.follows) {
            needed.extend(self.last_of_chain(schedule));
        }
        let needs = u32::try_from(needed.len()).expect("few needs");
        let entry = new.enters_now(needs, work.now).copied().map(|ask| {
            let entry = self.slots.entry(ask.key).or_insert(Slot::empty(ask.limit)).enter(&ask);
            work.freed.push(ask.key);
            self.make_room(work, &new, ask.key, entry);
            entry
        });
        let Some(state) = new.first_state(needs, entry, work.now) else { return Enqueued::Full };
        for id in needed {
            self.needs.entry(id).or_default().insert(new.id);
        }
        let (id, status) = (new.id, state.status());
        self.born(work, new, state);
        let handed = status == Status::Queued && self.handed(work.node, id);
        Enqueued::Made { status, handed }
    }

    fn born(&mut self, work: &Work, new: NewRun, state: RunState) {
        if let Some(unique) = new.unique {
            self.unique.insert(unique.key, (new.id, unique.until));
        }
        let (id, rearms) = (new.id, new.rearms);
        let run = new.born(state, work.now);
        let known = Known { run, rearms, started_at: None, failure: None, output: None, trail: Vec::new() };
        assert!(self.runs.insert(id, known).is_none(), "a run is made once");
    }

    fn make_room(&mut self, work: &mut Work, new: &NewRun, key: SlotKey, entry: Entry) {
        let of_key = |run: &&Run| run.slot.is_some_and(|claim| claim.key == key);
        match entry {
            Entry::Holds | Entry::Waits | Entry::Refused => {}
            Entry::WaitsAlone => {
                let waits = |run: &&Run| run.state.slot_use() == SlotUse::Waits;
                let displaced: Vec<_> = self.live().filter(of_key).filter(waits).map(|run| run.id).collect();
                for id in displaced {
                    self.slots.get_mut(&key).expect("it was entered").waiting += 1;
                    let change = self.runs[&id].run.displace(new.id, work.now).expect("it waits");
                    self.change(work, id, &change);
                }
            }
            Entry::WaitsForCancel => {
                let holds = |run: &&Run| run.state.slot_use() == SlotUse::Holds;
                let holders: Vec<_> = self.live().filter(of_key).filter(holds).map(|run| run.id).collect();
                for id in holders {
                    self.cancel_one(work, id, &CancelAsk::by_newer_run(new.slot.expect("it asked for one").grace));
                }
            }
        }
    }

    pub fn fire(&mut self, node: Option<NodeId>, now: Timestamp, item: &FireItem) -> Fired {
        let Some(schedule) = self.schedules.get_mut(&item.due.schedule) else { return Fired::Stale };
        if schedule.cursor != Some(item.due.cursor) {
            return Fired::Stale;
        }
        schedule.cursor = None;
        let delay = schedule.after_finish_ms;
        let mut work = Work::new(node, now);
        if let Some(ask) = &item.cancel_ask {
            for id in &item.cancel {
                self.cancel_one(&mut work, *id, ask);
            }
            // What they leave goes to those who have waited, before the new ones come.
            self.follow_up(&mut work);
        }
        let mut fired = item.due.cursor.fired;
        let mut answers = Vec::new();
        for run in &item.runs {
            let answer = self.make(&mut work, run.clone());
            if matches!(answer, Enqueued::Made { .. }) {
                fired += 1;
                let schedule = self.schedules.get_mut(&item.due.schedule).expect("it was there");
                if delay.is_some() {
                    schedule.armed_by = Some(run.id);
                    schedule.fired = fired;
                }
            }
            answers.push(answer);
        }
        let any_refused = answers.iter().any(|answer| !matches!(answer, Enqueued::Made { .. }));
        // The plan counted on all of its runs.
        let refused = |next: Cursor| Cursor { fired, ..next };
        let next = if any_refused { item.next_if_refused.map(refused) } else { item.next };
        self.schedules.get_mut(&item.due.schedule).expect("it was there").cursor = next;
        self.done_made(work, &item.runs, &mut answers);
        Fired::Fired(answers)
    }

    // --- leases ------------------------------------------------------------------------

    pub fn claim(&mut self, now: Timestamp, claim: &Claim) -> Vec<Run> {
        let mut claimed = Vec::new();
        for share in &claim.shares {
            if self.mode(share.pair.lane) != LaneMode::Claimed {
                continue;
            }
            let room = (claim.most as usize).saturating_sub(claimed.len()).min(share.runs as usize);
            let mut ready: Vec<_> = self
                .live()
                .filter(|run| run.state == RunState::Queued)
                .filter(|run| run.lane == share.pair.lane && run.tenant == share.pair.tenant)
                .map(|run| (run.order_key(), run.id))
                .filter(|(key, _)| *key >= share.low)
                .collect();
            ready.sort();
            for (_, id) in ready.into_iter().take(room) {
                let known = self.runs.get_mut(&id).expect("it is ready");
                known.run.apply(&known.run.claim(claim.worker, now).expect("it is queued"));
                claimed.push(known.run.clone());
            }
        }
        if !claimed.is_empty() {
            let until = self.workers.entry(claim.worker).or_insert(claim.until);
            *until = (*until).max(claim.until);
        }
        claimed
    }

    fn current(&self, part: Partition, epoch: Epoch) -> bool {
        self.parts.get(&part).is_some_and(|held| held.epoch == epoch)
    }

    pub fn lease_owned(&mut self, now: Timestamp, worker: WorkerId, until: Timestamp, ask: &OwnLease) -> Guarded {
        let mut work = Work::new(None, now);
        let Some(run) = self.live_run(ask.lease.run) else { return Guarded::Stale };
        let own = run.part == ask.part && self.current(ask.part, ask.epoch) && holder(&run).is_none();
        match run.claim(worker, now) {
            Ok(change) if own && run.lease() == ask.lease => {
                let known = self.workers.entry(worker).or_insert(until);
                *known = (*known).max(until);
                self.change(&mut work, run.id, &change);
                Guarded::Applied
            }
            Err(_) if own && run.lease() == ask.lease && run.cancel.is_some() => Guarded::CancelAsked,
            _ => Guarded::Stale,
        }
    }

    pub fn lease_running(
        &mut self,
        now: Timestamp,
        worker: WorkerId,
        until: Timestamp,
        attempt: &RunningMark,
    ) -> Guarded {
        let Some(run) = self.live_run(attempt.lease.run) else { return Guarded::Stale };
        if run.part != attempt.part || !self.current(attempt.part, attempt.epoch) {
            return Guarded::Stale;
        }
        let Ok(change) = run.lease_running(attempt.lease, worker, attempt.started_at) else { return Guarded::Stale };
        let known = self.workers.entry(worker).or_insert(until);
        *known = (*known).max(until);
        self.change(&mut Work::new(None, now), run.id, &change);
        Guarded::Applied
    }

    pub fn mark_running(&mut self, now: Timestamp, mark: &RunningMark) -> Guarded {
        let Some(run) = self.live_run(mark.lease.run) else { return Guarded::Stale };
        let own = run.part == mark.part && self.current(mark.part, mark.epoch) && holder(&run).is_none();
        if !own || run.lease() != mark.lease {
            return Guarded::Stale;
        }
        match run.mark_running(mark.lease, mark.started_at) {
            Ok(change) => {
                self.change(&mut Work::new(None, now), run.id, &change);
                Guarded::Applied
            }
            Err(_) if run.cancel.is_some() => Guarded::CancelAsked,
            Err(_) => Guarded::Stale,
        }
    }

    pub fn settle(
        &mut self,
        node: Option<NodeId>,
        now: Timestamp,
        settlements: &[Settlement],
    ) -> (Vec<Guarded>, Vec<WokenId>) {
        let mut work = Work::new(node, now);
        let answers = settlements.iter().map(|settlement| self.settle_one(&mut work, settlement)).collect();
        (answers, self.done(work))
    }

    fn settle_one(&mut self, work: &mut Work, settlement: &Settlement) -> Guarded {
        let Some(run) = self.live_run(settlement.lease.run) else { return Guarded::Stale };
        let entitled = run.lease() == settlement.lease
            && match settlement.by {
                By::Lease => holder(&run).is_some(),
                By::Owner(epoch) => {
                    holder(&run).is_none() && run.part == settlement.part && self.current(run.part, epoch)
                }
            };
        if !entitled {
            return Guarded::Stale;
        }
        let answers_a_cancel = match &settlement.change {
            Change::Finish(finish) => finish.verdict.answers_a_cancel(),
            Change::Move(_) => false,
        };
        if run.cancel.is_some() && !answers_a_cancel {
            return Guarded::CancelAsked;
        }
        self.change(work, run.id, &settlement.change);
        Guarded::Applied
    }

    // --- decided on the row ----------------------------------------------------------------

    fn decide(
        &mut self,
        work: &mut Work,
        id: RunId,
        choose: impl FnOnce(&Run) -> Result<Change, Refusal>,
    ) -> Option<Reaped> {
        let run = self.live_run(id)?;
        let change = choose(&run).ok()?;
        let mut after = run;
        after.apply(&change);
        self.change(work, id, &change);
        Some(Reaped { id, job: after.job, tenant: after.tenant, status: after.state.status() })
    }

    fn cancel_one(&mut self, work: &mut Work, id: RunId, ask: &CancelAsk) -> Option<Change> {
        let run = self.live_run(id)?;
        let mode = self.mode(run.lane);
        let change = run.request_cancel(ask, mode, work.now).ok()?;
        self.change(work, id, &change);
        if matches!(change, Change::Move(_)) && mode == LaneMode::Owned && holder(&run).is_none() {
            self.notices.insert((run.part, id));
        }
        Some(change)
    }

    pub fn request_cancel(&mut self, now: Timestamp, ids: &[RunId], ask: &CancelAsk) -> Vec<CancelAnswer> {
        let mut work = Work::new(None, now);
        let mut answers = Vec::new();
        for id in ids {
            answers.push(match (self.runs.get(id), self.live_run(*id)) {
                (None, _) => CancelAnswer::NotFound,
                (Some(_), None) => CancelAnswer::Ended,
                (Some(_), Some(_)) => match self.cancel_one(&mut work, *id, ask) {
                    Some(Change::Finish(_)) => CancelAnswer::Cancelled,
                    Some(Change::Move(_)) => CancelAnswer::Asked,
                    None => CancelAnswer::AlreadyAsked,
                },
            });
        }
        self.done_unnamed(work);
        answers
    }

    pub fn promote(
        &mut self,
        node: NodeId,
        now: Timestamp,
        parts: &[Partition],
        limit: usize,
    ) -> (usize, Vec<WokenId>) {
        let mut work = Work::new(Some(node), now);
        let mut due: Vec<_> = self
            .live()
            .filter(|run| run.state == RunState::Scheduled && run.ready_at <= now && parts.contains(&run.part))
            .filter(|run| self.parts.get(&run.part).is_some_and(|held| held.node == Some(node)))
            .map(|run| (run.ready_at, run.id))
            .collect();
        due.sort();
        due.truncate(limit);
        for (_, id) in &due {
            let run = &self.runs[id].run;
            let entry = run.slot.map(|claim| self.slots.entry(claim.key).or_insert(Slot::empty(claim.limit)).reenter());
            self.decide(&mut work, *id, |run| run.promote(entry, now));
        }
        (due.len(), self.done(work))
    }

    pub fn wake(&mut self, now: Timestamp, id: RunId) -> Guarded {
        let mut work = Work::new(None, now);
        let woken = self.decide(&mut work, id, Run::wake);
        self.done_unnamed(work);
        if woken.is_some() { Guarded::Applied } else { Guarded::Stale }
    }

    fn held_by(&self, worker: WorkerId) -> Vec<RunId> {
        self.live().filter(|run| holder(run) == Some(worker)).map(|run| run.id).collect()
    }

    pub fn release(&mut self, node: Option<NodeId>, now: Timestamp, worker: WorkerId) -> Vec<WokenId> {
        let mut work = Work::new(node, now);
        for id in self.held_by(worker) {
            self.decide(&mut work, id, |run| run.hand_back(run.lease(), false, now));
        }
        self.workers.remove(&worker);
        self.done(work)
    }

    pub fn reap(&mut self, now: Timestamp, reap: &Reap) -> Vec<Reaped> {
        let mut work = Work::new(None, now);
        let gone: Vec<_> =
            self.workers.iter().filter(|(_, until)| **until < reap.before).map(|(worker, _)| *worker).collect();
        let mut reaped = Vec::new();
        for worker in gone {
            for id in self.held_by(worker) {
                reaped.extend(self.decide(&mut work, id, |run| run.lose(reap.losses_max, now)));
            }
            self.workers.remove(&worker);
        }
        self.done_unnamed(work);
        reaped
    }

    pub fn sweep(&mut self, now: Timestamp) -> Vec<Reaped> {
        let mut work = Work::new(None, now);
        let mut due: Vec<_> = self
            .live()
            .filter(|run| match run.state {
                RunState::Scheduled | RunState::Blocked(_) | RunState::Waiting { .. } => true,
                RunState::Queued => self.mode(run.lane) == LaneMode::Claimed,
                RunState::Cancelling { .. } => holder(run).is_some(),
                RunState::Running { .. } | RunState::Finished { .. } => false,
            })
            .filter_map(|run| Some((run.due_at().filter(|at| *at <= now)?, run.id)))
            .collect();
        due.sort();
        let mut swept = Vec::new();
        for (_, id) in due {
            swept.extend(self.decide(&mut work, id, |run| run.overdue(now)));
        }
        self.done_unnamed(work);
        swept
    }

    // --- partitions ---------------------------------------------------------------------------

    fn lives(&self, node: NodeId, now: Timestamp) -> bool {
        self.nodes.get(&node).is_some_and(|until| *until >= now)
    }

    pub fn beat(&mut self, node: NodeId, until: Timestamp) -> Guarded {
        if self.nodes.insert(node, until).is_some() { Guarded::Applied } else { Guarded::Stale }
    }

    pub fn leave(&mut self, node: NodeId) {
        for held in self.parts.values_mut().filter(|held| held.node == Some(node)) {
            *held = Held { epoch: Epoch(held.epoch.0 + 1), node: None };
        }
        self.nodes.remove(&node);
    }

    pub fn take(&mut self, node: NodeId, part: Partition, now: Timestamp) -> Option<Epoch> {
        if !self.lives(node, now) {
            return None;
        }
        let held = self.parts.entry(part).or_insert(Held { epoch: Epoch(0), node: None }).clone();
        match held.node {
            Some(holder) if holder == node => return Some(held.epoch),
            Some(holder) if self.lives(holder, now) => return None,
            Some(holder) => self.leave(holder),
            None => {}
        }
        let held = self.parts.get_mut(&part).expect("it is there");
        *held = Held { epoch: Epoch(held.epoch.0 + 1), node: Some(node) };
        Some(held.epoch)
    }

    pub fn give(&mut self, node: NodeId, part: Partition, epoch: Epoch) -> Guarded {
        match self.parts.get_mut(&part) {
            Some(held) if held.node == Some(node) && held.epoch == epoch => {
                *held = Held { epoch: Epoch(epoch.0 + 1), node: None };
                Guarded::Applied
            }
            _ => Guarded::Stale,
        }
    }
}
