//! Bugs to be found: each is a store, or a node's talk with it, that does one
//! thing wrong. They are made of rewritten calls and answers of the port, so
//! that nothing of them is in what is shipped. Those of the engine itself are built into
//! it for its tests alone.

use std::{collections::BTreeMap, sync::Mutex};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{BatchId, Partition, RunId, ScheduleId, WorkerId},
    lane::{LaneKey, LaneMode},
    ports::Seeded,
    rate::Taken,
    run::{Change, Finish, NewRun, Run, RunState, Source, Trigger, Verdict},
    slot::{SlotAsk, WhenFull},
    store::*,
};

use crate::faulty::wait;

/// One thing that is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// An owner's settlement is applied whatever its epoch.
    EpochNotChecked,
    /// A worker's settlement is applied whatever its fence.
    FenceNotChecked,
    /// A slot is held on after its run has ended.
    SlotNotReleased,
    /// More runs hold a slot than its limit says.
    LimitIgnored,
    /// A run's end does not arm its `after_finish` schedule.
    RearmLost,
    /// A due cursor is fired although another has fired it.
    CursorNotGuarded,
    /// A definition is fired although it was edited since it was read.
    EditNotGuarded,
    /// Skipped instants are not written down.
    SkipsDropped,
    /// Two workers are given the same run.
    ClaimedTwice,
    /// What a dead owner left is executed without a written lease.
    InheritedNotLeased,
    /// A run that loses its workers does so without end.
    LossesNotCounted,
    /// Whoever is asked to stop is not told.
    CancelIgnored,
    /// A failed attempt ends its run although attempts are left.
    RetryDropped,
    /// Notices are lost, and no look finds what they told of.
    NoticesLost,
    /// A partition is taken over under the old epoch.
    EpochNotRaised,
    /// Leases are judged by a clock that is ten seconds ahead.
    ClockNotOffset,
    /// A settlement is answered for and not applied.
    SettlementForgotten,
    /// A dead run is not followed by the one that its job asks for.
    FollowerDropped,
    /// Ends are answered for, and neither followed nor taken away.
    EndsForgotten,
    /// Ends that another has followed are followed.
    EndsNotGuarded,
    /// Whoever lifts a pause leaves the schedules asleep that it covered.
    ResumeWakesNobody,
    /// A schedule that is switched on again sleeps for an hour.
    ToggleParks,
    /// Nobody hears of the pauses of tenants and queues.
    PausesNotSeen,
    /// The key of a request is not kept.
    RequestKeyNotKept,
    /// A request of the inbox is admitted, and stays there.
    InboxRowKept,
    /// A run that is made again does not name the one it is made of.
    RedriveLinkLost,
    /// A rate has always room.
    RateNotCounted,
    /// A node that leaves does not give back what it leased.
    ReleaseForgotten,
    /// A dry run is the act.
    DryRunDone,
    /// A node's word ends before the node believes it does, so that its attempts are
    /// begun by another while they go on.
    WordCutShort,
    /// The store's clock is read as later than it is.
    TimeAhead,
    /// Something that the engine does wrong by itself.
    InEngine(rota_engine::planted::Bug),
}

impl Bug {
    pub const ALL: [Self; 31] = [
        Self::EpochNotChecked,
        Self::FenceNotChecked,
        Self::SlotNotReleased,
        Self::LimitIgnored,
        Self::RearmLost,
        Self::CursorNotGuarded,
        Self::EditNotGuarded,
        Self::SkipsDropped,
        Self::ClaimedTwice,
        Self::InheritedNotLeased,
        Self::LossesNotCounted,
        Self::CancelIgnored,
        Self::RetryDropped,
        Self::NoticesLost,
        Self::EpochNotRaised,
        Self::ClockNotOffset,
        Self::SettlementForgotten,
        Self::FollowerDropped,
        Self::EndsForgotten,
        Self::EndsNotGuarded,
        Self::ResumeWakesNobody,
        Self::ToggleParks,
        Self::PausesNotSeen,
        Self::RequestKeyNotKept,
        Self::InboxRowKept,
        Self::RedriveLinkLost,
        Self::RateNotCounted,
        Self::ReleaseForgotten,
        Self::DryRunDone,
        Self::WordCutShort,
        Self::TimeAhead,
    ];
}

/// The store with one bug in it, or none.
pub struct Planted {
    pub bug: Option<Bug>,
    names: Seeded,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    slots: BTreeMap<RunId, SlotAsk>,
    claimed: Option<(WorkerId, Vec<Run>)>,
    leaked: usize,
}

impl Planted {
    pub fn new(bug: Option<Bug>) -> Self {
        Self { bug, names: Seeded::new(0xB06), memory: Mutex::default() }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn another(&self, write: &Write) -> Write {
        Write { batch: BatchId::new(&self.names, write.now), ..write.clone() }
    }

    fn current(store: &dyn Store, part: Partition) -> Result<Epoch, StoreError> {
        Ok(wait(store.partitions())?[usize::from(part.0)].epoch)
    }

    fn run(store: &dyn Store, id: RunId) -> Result<Option<Run>, StoreError> {
        Ok(wait(store.runs(&[id]))?.pop().flatten().map(|record| record.run))
    }

    pub fn follow_ends(
        &self,
        store: &dyn Store,
        write: &Write,
        items: &[FollowEnds],
    ) -> Result<Vec<Followed>, StoreError> {
        if self.has(Bug::EndsForgotten) {
            return Ok(items.iter().map(|_| Followed::Done(Vec::new())).collect());
        }
        let mut answers = wait(store.follow_ends(write, items))?;
        for (item, answer) in items.iter().zip(&mut answers) {
            if self.has(Bug::EndsNotGuarded) && *answer == Followed::Stale {
                *answer = Followed::Done(wait(store.enqueue(&self.another(write), &item.runs, &[]))?);
            }
        }
        Ok(answers)
    }

    pub fn settle(&self, store: &dyn Store, write: &Write, items: &[Settlement]) -> Result<Settled, StoreError> {
        let mut items = items.to_vec();
        for item in &mut items {
            self.rewrite(store, item)?;
        }
        if self.has(Bug::SettlementForgotten) && write.batch.0.as_bytes()[15].is_multiple_of(8) {
            return Ok(Settled { answers: vec![Guarded::Applied; items.len()], woken: Vec::new() });
        }
        let settled = wait(store.settle(write, &items))?;
        if self.has(Bug::SlotNotReleased) {
            for item in items.iter().filter(|item| matches!(item.change, Change::Finish(_))) {
                self.leak(store, write, item.lease.run)?;
            }
        }
        Ok(settled)
    }

    fn rewrite(&self, store: &dyn Store, item: &mut Settlement) -> Result<(), StoreError> {
        match (self.bug, &mut item.by, &mut item.change) {
            (Some(Bug::EpochNotChecked | Bug::EpochNotRaised), By::Owner(epoch), _) => {
                *epoch = Self::current(store, item.part)?;
            }
            (Some(Bug::FenceNotChecked), By::Lease, _) => {
                if let Some(run) = Self::run(store, item.lease.run)?
                    && matches!(run.state, RunState::Running { .. } | RunState::Cancelling { .. })
                {
                    item.lease = run.lease();
                }
            }
            (Some(Bug::RetryDropped), _, change) => {
                if let Change::Move(next) = change
                    && next.state == RunState::Scheduled
                    && next.attempts_used > 0
                {
                    *change = Change::Finish(Finish {
                        verdict: Verdict::Failed,
                        started_at: None,
                        ended_at: next.ready_at,
                        attempts_used: next.attempts_used,
                        losses: next.losses,
                        failure: None,
                        output: None,
                        trail: None,
                        follower: None,
                    });
                }
            }
            (Some(Bug::LossesNotCounted), _, Change::Move(next)) => next.losses = 0,
            (Some(Bug::FollowerDropped), _, Change::Finish(finish)) => finish.follower = None,
            _ => {}
        }
        Ok(())
    }

    /// Somebody unknown goes on holding the slot of a run that has ended.
    fn leak(&self, store: &dyn Store, write: &Write, run: RunId) -> Result<(), StoreError> {
        let mut memory = self.memory.lock().unwrap();
        let Some(ask) = memory.slots.remove(&run).filter(|_| memory.leaked < 2) else { return Ok(()) };
        let Some(ended) = Self::run(store, run)? else { return Ok(()) };
        if !matches!(ended.state, RunState::Finished { .. }) {
            return Ok(());
        }
        memory.leaked += 1;
        let nowhere = LaneKey::new("nowhere", Some("nobody"), &[]);
        let lane = wait(store.lanes(&[nowhere], LaneMode::Claimed))?[0].id;
        let write = self.another(write);
        let ghost = NewRun {
            id: RunId::new(&self.names, write.now),
            tenant: ended.tenant,
            job: ended.job,
            version: ended.version,
            lane,
            part: ended.part,
            priority: ended.priority,
            ready_at: write.now,
            expires_at: None,
            deadline_at: None,
            trigger: Trigger::plain(Source::Api),
            labels: ended.labels,
            payload: None,
            slot: Some(SlotAsk { when_full: WhenFull::Queue, max_queued: None, ..ask }),
            unique: None,
            once: None,
            parent: None,
            after: Vec::new(),
            follows: false,
            rearms: false,
            redrive: None,
        };
        wait(store.enqueue(&write, &[ghost], &[])).map(drop)
    }

    fn spoil(&self, runs: &[NewRun]) -> Vec<NewRun> {
        let mut runs = runs.to_vec();
        for run in &mut runs {
            if let Some(ask) = &mut run.slot {
                self.memory.lock().unwrap().slots.insert(run.id, *ask);
                if self.has(Bug::LimitIgnored) {
                    ask.limit += 5;
                }
            }
        }
        runs
    }

    pub fn enqueue(&self, store: &dyn Store, write: &Write, runs: &[NewRun]) -> Result<Vec<Enqueued>, StoreError> {
        let (mut write, mut runs) = (write.clone(), self.spoil(runs));
        if self.has(Bug::RequestKeyNotKept) {
            write.request = None;
        }
        if self.has(Bug::DryRunDone) {
            write.dry_run = false;
        }
        if self.has(Bug::RedriveLinkLost) {
            runs.iter_mut().filter(|run| run.trigger.redrives().is_some()).for_each(|run| run.trigger.metadata = None);
        }
        wait(store.enqueue(&write, &runs, &[]))
    }

    pub fn put_jobs(&self, store: &dyn Store, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
        let mut jobs = jobs.to_vec();
        if self.has(Bug::ToggleParks) {
            let saved = jobs.iter_mut().flat_map(|job| &mut job.schedules).flat_map(|schedules| &mut schedules.saved);
            let edited = saved.filter(|put| put.guard.is_some_and(|guard| guard.cursor.is_none()));
            for cursor in edited.filter_map(|put| put.stored.cursor.as_mut()) {
                cursor.due_at = Span::secs(3_000).after(cursor.due_at);
            }
        }
        wait(store.put_jobs(write, &jobs))
    }

    pub fn set_pauses(
        &self,
        store: &dyn Store,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
        schedules: &[ScheduleId],
    ) -> Result<Vec<bool>, StoreError> {
        let asleep = wait(store.cursors(schedules))?;
        let done = wait(store.set_pauses(write, targets, pause))?;
        if self.has(Bug::ResumeWakesNobody) && pause.is_none() {
            let woken = wait(store.cursors(schedules))?;
            let moved = asleep.iter().flatten().zip(woken.iter().flatten());
            let moved = moved.filter(|(asleep, woken)| woken.cursor.due_at < asleep.cursor.due_at);
            let back: Vec<_> = moved.map(|(asleep, woken)| (*woken, Some(asleep.cursor.due_at))).collect();
            wait(store.wake_at(&self.another(write), &back))?;
        }
        Ok(done)
    }

    pub fn beat(&self, store: &dyn Store, beat: &NodeBeat, now: Timestamp) -> Result<Guarded, StoreError> {
        let mut beat = beat.clone();
        if self.has(Bug::WordCutShort) {
            beat.until = Span::millis(2_500).before(beat.until);
        }
        wait(store.beat(&beat, now))
    }

    /// What the store's clock says.
    pub fn time(&self, now: Timestamp) -> Timestamp {
        if self.has(Bug::TimeAhead) { Span::secs(5).after(now) } else { now }
    }

    pub fn pauses(&self, store: &dyn Store) -> Result<Pauses, StoreError> {
        let mut pauses = wait(store.pauses())?;
        if self.has(Bug::PausesNotSeen) {
            pauses.pauses.clear();
        }
        Ok(pauses)
    }

    pub fn take_tokens(&self, store: &dyn Store, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError> {
        let mut taken = wait(store.take_tokens(asks, now))?;
        if self.has(Bug::RateNotCounted) {
            for (taken, ask) in taken.iter_mut().zip(asks) {
                *taken = Taken { tokens: ask.want, next_at: now };
            }
        }
        Ok(taken)
    }

    pub fn release(&self, store: &dyn Store, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError> {
        if self.has(Bug::ReleaseForgotten) {
            return Ok(Vec::new());
        }
        wait(store.release(write, worker))
    }

    pub fn fire(
        &self,
        store: &dyn Store,
        write: &Write,
        pauses_revision: i64,
        items: &[FireItem],
    ) -> Result<Vec<Fired>, StoreError> {
        let mut items = items.to_vec();
        for item in &mut items {
            item.runs = self.spoil(&item.runs);
            if self.has(Bug::SkipsDropped) {
                item.skips.clear();
            }
            if self.has(Bug::RearmLost) {
                item.runs.iter_mut().for_each(|run| run.rearms = false);
            }
        }
        let mut answers = wait(store.fire(write, pauses_revision, &items))?;
        if self.has(Bug::CursorNotGuarded) || self.has(Bug::EditNotGuarded) {
            for (item, answer) in items.iter().zip(&mut answers).filter(|(_, answer)| **answer == Fired::Stale) {
                if let Some(unguarded) = self.unguarded(store, item)? {
                    let revision = wait(store.pauses())?.revision;
                    *answer = wait(store.fire(&self.another(write), revision, &[unguarded]))?.remove(0);
                }
            }
        }
        Ok(answers)
    }

    /// The same runs, under whatever guard holds now.
    fn unguarded(&self, store: &dyn Store, item: &FireItem) -> Result<Option<FireItem>, StoreError> {
        let id = item.due.schedule;
        let (Some(record), Some(cursor)) =
            (wait(store.schedules(&[id]))?.remove(0), wait(store.cursors(&[id]))?.remove(0))
        else {
            return Ok(None);
        };
        let Some(job) = wait(store.jobs(&[record.job]))?.remove(0) else { return Ok(None) };
        let fired_by_another = cursor.cursor != item.due.cursor;
        if record.deleted || job.deleted || fired_by_another != self.has(Bug::CursorNotGuarded) {
            return Ok(None);
        }
        let due = DueCursor { revision: record.revision, ..cursor };
        Ok(Some(FireItem { due, job_revision: job.revision, ..item.clone() }))
    }

    pub fn claim(&self, store: &dyn Store, write: &Write, claims: &[Claim]) -> Result<Vec<Run>, StoreError> {
        let mut runs = wait(store.claim(write, claims))?;
        if self.has(Bug::ClaimedTwice) {
            let mut memory = self.memory.lock().unwrap();
            if let (Some((worker, others)), [claim]) = (&memory.claimed, claims)
                && *worker != claim.worker
            {
                runs.extend(others.iter().cloned());
            }
            if !runs.is_empty() {
                memory.claimed = claims.first().map(|claim| (claim.worker, runs.clone()));
            }
        }
        Ok(runs)
    }

    pub fn lease_owned(
        &self,
        store: &dyn Store,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        asks: &[OwnLease],
    ) -> Result<Vec<Guarded>, StoreError> {
        let mut asks = asks.to_vec();
        if self.has(Bug::EpochNotRaised) {
            for ask in &mut asks {
                ask.epoch = Self::current(store, ask.part)?;
            }
        }
        wait(store.lease_owned(write, worker, until, &asks))
    }

    pub fn mark_running(
        &self,
        store: &dyn Store,
        write: &Write,
        marks: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError> {
        let mut marks = marks.to_vec();
        if self.has(Bug::EpochNotRaised) {
            for mark in &mut marks {
                mark.epoch = Self::current(store, mark.part)?;
            }
        }
        wait(store.mark_running(write, &marks))
    }

    pub fn lease_running(
        &self,
        store: &dyn Store,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        attempts: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError> {
        let mut attempts = attempts.to_vec();
        if self.has(Bug::EpochNotRaised) {
            for attempt in &mut attempts {
                attempt.epoch = Self::current(store, attempt.part)?;
            }
        }
        wait(store.lease_running(write, worker, until, &attempts))
    }

    pub fn take_partitions(
        &self,
        store: &dyn Store,
        node: rota_core::ids::NodeId,
        parts: &[Partition],
        now: Timestamp,
    ) -> Result<Vec<Option<Epoch>>, StoreError> {
        let epochs = wait(store.take_partitions(node, parts, now))?;
        if self.has(Bug::EpochNotRaised) {
            return Ok(epochs.into_iter().map(|epoch| epoch.map(|_| Epoch(1))).collect());
        }
        Ok(epochs)
    }

    pub fn extend(
        &self,
        store: &dyn Store,
        worker: WorkerId,
        until: Timestamp,
        held: &[rota_core::run::Lease],
        now: Timestamp,
    ) -> Result<Extended, StoreError> {
        let mut extended = wait(store.extend(worker, until, held, now))?;
        if self.has(Bug::CancelIgnored) {
            extended.cancelling.clear();
        }
        Ok(extended)
    }

    pub fn reap(&self, store: &dyn Store, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError> {
        let mut reap = *reap;
        if self.has(Bug::ClockNotOffset) {
            reap.before = Span::secs(10).after(reap.before);
        }
        if self.has(Bug::LossesNotCounted) {
            reap.losses_max = u16::MAX;
        }
        wait(store.reap(write, &reap))
    }

    /// Ready runs as they are read.
    pub fn read(&self, runs: Vec<Run>, now: Timestamp) -> Vec<Run> {
        let mut runs = runs;
        if self.has(Bug::InheritedNotLeased) {
            for run in &mut runs {
                run.created_at = run.created_at.max(now);
            }
        }
        if self.has(Bug::CancelIgnored) {
            runs.retain(|run| !matches!(run.state, RunState::Cancelling { .. }));
        }
        runs
    }
}
