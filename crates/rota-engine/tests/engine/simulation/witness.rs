//! The witness: sees every change where the store makes it, and knows what may
//! not be.
//!
//! It keeps the last known state of each run and compares it with the next: each
//! step is a step of the state diagram, fences, attempts and losses only grow,
//! within their limits, and what has ended stays as it ended. Of each right that
//! was used (an epoch, a fence, a cursor) it knows whether it still held.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
};

use jiff::Timestamp;
use rota_core::{
    dispatch::{Pair, Window},
    duration::Span,
    fire::Cursor,
    ids::{BatchId, JobId, LaneId, NodeId, Partition, RunId, ScheduleId, WorkerId},
    job::{JobDocument, document::After},
    order::{OrderKey, Priority},
    rate::Taken,
    run::{Block, CancelAsk, Fence, Hold, Lease, NewRun, Run, RunState, SlotUse, Status, Verdict},
    slot::{SlotKey, UniqueKey},
    store::*,
};
use rota_engine::events::Finding;
use serde_json::Value;

use super::{
    books::Book,
    ledger::{Ledger, Said},
    people::Acts,
    planted::{Bug, Planted},
    tenants::Rates,
    weather::Weather,
};
use crate::faulty::{Tap, wait};

/// So many vanished workers make a run a dead letter.
pub const LOSSES_MAX: u16 = 3;
/// A run kills at most so many processes: one that no lease names, those that
/// are counted, and one that dies before its lease is known to be refused.
const DEATHS_MAX: usize = LOSSES_MAX as usize + 2;

/// What is known of a job.
pub struct JobSeen {
    name: String,
    version: i32,
    after: Option<After>,
    attempts_max: u32,
    slots: Option<u32>,
    deleted: bool,
    /// As it was saved last.
    pub document: JobDocument,
}

/// What is known of a run.
struct RunSeen {
    run: Option<Run>,
    record: Option<RunRecord>,
    job: JobId,
}

#[derive(Default)]
pub struct Seen {
    /// What people did.
    pub acts: Acts,
    pub rates: Rates,
    pub jobs: BTreeMap<JobId, JobSeen>,
    runs: BTreeMap<RunId, RunSeen>,
    live: BTreeSet<RunId>,
    batches: HashSet<BatchId>,
    parts: Option<Vec<PartitionLease>>,
    epochs: BTreeMap<Partition, Epoch>,
    /// Whom these leases were given to in writing, and when.
    leases: HashMap<Lease, (WorkerId, Timestamp)>,
    /// Who settled what an owner executed.
    settled: HashMap<Lease, NodeId>,
    /// When the rights of these leases came to their end.
    over: HashMap<Lease, Timestamp>,
    holders: HashMap<WorkerId, Timestamp>,
    pub pauses: BTreeMap<PauseTarget, Pause>,
    /// When a pause of a tenant or a queue was last changed: the scanner wakes what slept
    /// because of it, a little later.
    pub wide_changed_at: Option<Timestamp>,
    unique: HashMap<UniqueKey, Timestamp>,
    pub books: BTreeMap<ScheduleId, Book>,
    /// Ends that jobs come after, and whether they did.
    ends: BTreeMap<(JobId, RunId), bool>,
    wrong: Option<String>,
}

/// See the module.
pub struct Witness {
    pub store: Arc<dyn Store>,
    pub planted: Planted,
    pub weather: Arc<Weather>,
    ledger: Arc<Ledger>,
    seen: Mutex<Seen>,
}

impl Seen {
    pub fn wrong(&mut self, what: impl Into<String>) {
        if self.wrong.is_none() {
            self.wrong = Some(what.into());
        }
    }

    /// Whether the write is new; asked again, it answers as it did.
    fn is_news(&mut self, write: &Write) -> bool {
        self.batches.insert(write.batch)
    }

    /// Whether the write was done before.
    pub fn knows(&self, write: &Write) -> bool {
        self.batches.contains(&write.batch)
    }

    fn judge(&mut self, judged: Result<(), String>) {
        if let Err(wrong) = judged {
            self.wrong(wrong);
        }
    }

    pub fn finished(&self) -> impl Iterator<Item = &Run> {
        let ended = |run: &&Run| matches!(run.state, RunState::Finished { .. });
        self.runs.values().filter_map(|known| known.run.as_ref()).filter(ended)
    }

    /// The end of a run, as the jobs see it that come after it.
    fn ended(&mut self, run: RunId, job: JobId, verdict: Verdict) {
        let Some(upstream) = self.jobs.get(&job).filter(|job| !job.deleted) else { return };
        let waits = |job: &JobSeen| {
            !job.deleted && job.after.as_ref().is_some_and(|after| after.waits_for(&upstream.name, verdict))
        };
        let owed = self.jobs.iter().filter(|(_, job)| waits(job)).map(|(id, _)| ((*id, run), false));
        self.ends.extend(owed.collect::<Vec<_>>());
    }

    fn saved(&mut self, put: &SchedulePut, now: Timestamp) {
        self.books.entry(put.id).and_modify(|book| book.put(put, now)).or_insert_with(|| Book::new(put));
    }
}

impl Witness {
    pub fn new(store: Arc<dyn Store>, weather: Arc<Weather>, ledger: Arc<Ledger>, bug: Option<Bug>) -> Self {
        Self { store, planted: Planted::new(bug), weather, ledger, seen: Mutex::default() }
    }

    pub fn with<T>(&self, work: impl FnOnce(&mut Seen) -> T) -> T {
        work(&mut self.seen.lock().unwrap())
    }

    /// What was seen that may not be.
    pub fn verdict(&self) -> Result<(), String> {
        let killer = |(run, deaths): (&RunId, &usize)| (*deaths > DEATHS_MAX).then_some((*run, *deaths));
        if let Some((run, deaths)) = self.ledger.read(|pages| pages.deaths.iter().find_map(killer)) {
            return Err(format!("run {run} has killed {deaths} processes"));
        }
        // Where clocks are off by more than is known of them, nothing can be exclusive.
        let together = self.ledger.write(|pages| pages.together.take());
        if let Some(together) = together
            && self.weather.measures
            && !self.weather.started_as_the_clock_was_set()
        {
            return Err(together);
        }
        self.with(|seen| seen.wrong.clone()).map_or(Ok(()), Err)
    }

    /// Another saw something that may not be.
    pub fn accuse(&self, what: String) {
        self.with(|seen| seen.wrong(what));
    }

    /// Whom a lease was given to in writing.
    pub fn holder(&self, lease: Lease) -> Option<WorkerId> {
        self.with(|seen| seen.leases.get(&lease).map(|(worker, _)| *worker))
    }

    pub fn leased_at(&self, lease: Lease) -> Option<Timestamp> {
        self.with(|seen| seen.leases.get(&lease).map(|(_, at)| *at))
    }

    /// When the run was no longer under this lease.
    pub fn over_at(&self, lease: Lease) -> Option<Timestamp> {
        self.with(|seen| seen.over.get(&lease).copied())
    }

    pub fn run(&self, run: RunId) -> Option<Run> {
        self.with(|seen| seen.runs.get(&run)?.run.clone())
    }

    pub fn record(&self, run: RunId) -> Option<RunRecord> {
        wait(self.store.runs(&[run])).unwrap().pop().flatten()
    }

    /// Runs that ended, with their jobs; none that kills who executes it.
    pub fn ended(&self) -> Vec<(JobId, RunId)> {
        self.with(|seen| {
            let harmless = |run: &&Run| seen.jobs.get(&run.job).is_some_and(|job| job.name != "poison");
            seen.finished().filter(harmless).map(|run| (run.job, run.id)).collect()
        })
    }

    /// Those of them that are dead letters.
    pub fn dead(&self) -> Vec<(JobId, RunId)> {
        let ended = self.ended();
        self.with(|seen| {
            let is_dead = |run: &RunId| {
                let run = seen.runs.get(run).and_then(|known| known.run.as_ref());
                run.is_some_and(|run| run.state.status() == Status::Ended(Verdict::Dead))
            };
            ended.into_iter().filter(|(_, run)| is_dead(run)).collect()
        })
    }

    /// The scanner found what cannot be, and put it right. It must never have to.
    pub fn found(&self, finding: &Finding) {
        let excused = match finding {
            // A schedule is asleep where nobody was there to wake it after its queue or
            // tenant was resumed.
            Finding::ScheduleOverdue { .. } | Finding::RunOwnerless { .. } | Finding::ScheduleAsleep { .. } => {
                self.weather.was_stormy()
            }
            _ => false,
        };
        if !excused {
            self.with(|seen| seen.wrong(format!("the scanner found {finding:?}")));
        }
    }

    /// A node has left in order: nothing is leased to its worker any more.
    pub fn left(&self, worker: WorkerId) {
        self.look("leave");
        self.with(|seen| {
            let held = |run: &Run| match run.state {
                RunState::Running { hold, .. } => hold == Hold::Leased(worker),
                RunState::Cancelling { hold, .. } => hold == Some(Hold::Leased(worker)),
                _ => false,
            };
            let live = seen.live.iter().filter_map(|id| seen.runs.get(id)?.run.as_ref());
            let left: Vec<RunId> = live.filter(|run| held(run)).map(|run| run.id).collect();
            if !left.is_empty() {
                seen.wrong(format!("{worker} has left, and holds {left:?}"));
            }
        });
    }

    pub fn live(&self) -> Vec<RunId> {
        self.with(|seen| seen.live.iter().copied().collect())
    }

    /// An end that a job should have come after and did not yet.
    pub fn owed(&self) -> Option<(JobId, RunId)> {
        let open = |seen: &Seen, downstream: &JobId| seen.jobs.get(downstream).is_some_and(|job| !job.deleted);
        self.with(|seen| {
            let mut owed = seen.ends.iter().filter(|(_, done)| !**done).map(|(end, _)| *end);
            owed.find(|(downstream, _)| open(seen, downstream))
        })
    }

    pub fn runs_made(&self) -> usize {
        self.with(|seen| seen.runs.len())
    }

    pub fn paused(&self) -> Vec<PauseTarget> {
        let now = self.weather.store_now();
        let holds = |pause: &Pause| pause.until.is_none_or(|until| until > now);
        self.with(|seen| {
            seen.pauses.iter().filter(|(_, pause)| holds(pause)).map(|(target, _)| target.clone()).collect()
        })
    }

    pub fn job_of(&self, schedule: ScheduleId) -> Option<JobId> {
        self.with(|seen| seen.books.get(&schedule).map(|book| book.job))
    }

    pub fn schedules(&self) -> Vec<ScheduleId> {
        self.with(|seen| seen.books.iter().filter(|(_, book)| !book.deleted).map(|(id, _)| *id).collect())
    }

    /// The runs' own rows, live ones, after a change.
    fn look(&self, after: &str) {
        self.look_at(&self.live(), after);
        // Those that came with the death of another, before anything happens to them.
        let unseen = |seen: &Seen, id: &RunId| seen.runs.get(id).is_some_and(|known| known.run.is_none());
        let followers = self.with(|seen| seen.live.iter().copied().filter(|id| unseen(seen, id)).collect::<Vec<_>>());
        self.look_at(&followers, after);
        self.with(|seen| check_slots(seen, after));
    }

    /// What is said to have changed nothing is seen to by the next look.
    fn look_if(&self, changed: bool, after: &str) {
        if changed {
            self.look(after);
        }
    }

    fn look_at(&self, ids: &[RunId], after: &str) {
        let records = wait(self.store.runs(ids)).unwrap();
        self.with(|seen| {
            for (id, record) in ids.iter().zip(records) {
                match record {
                    Some(record) => self.step(seen, *id, record, after),
                    None => seen.wrong(format!("run {id} is gone after {after}")),
                }
            }
        });
    }

    fn step(&self, seen: &mut Seen, id: RunId, record: RunRecord, after: &str) {
        let Some(known) = seen.runs.get(&id) else { return };
        let Some(job) = seen.jobs.get(&known.job) else { return };
        let now = &record.run;
        let told =
            || format!("run {id} after {after}: {:?} to {:?}", known.run.as_ref().map(|run| &run.state), now.state);
        let mut wrong = None;
        if !may_step(known.run.as_ref(), now) {
            wrong = Some(format!("{} is no step of the diagram", told()));
        }
        if let Some(before) = &known.run
            && (now.fence < before.fence || now.attempts_used < before.attempts_used || now.losses < before.losses)
        {
            wrong = Some(format!("{}: fence, attempts or losses went down", told()));
        }
        let live = !matches!(now.state, RunState::Finished { .. });
        let (used, most) = (u32::from(now.attempts_used), job.attempts_max);
        if used > most || (live && used >= most) || now.losses > LOSSES_MAX || (live && now.losses >= LOSSES_MAX) {
            wrong = Some(format!("{}: {used} attempts of {most} and {} losses", told(), now.losses));
        }
        if let RunState::Finished { verdict, .. } = now.state {
            let said = self.ledger.read(|pages| pages.said.get(&id).cloned().unwrap_or_default());
            let ok = match verdict {
                Verdict::Succeeded => said.iter().any(|(_, said)| *said == Said::Done),
                Verdict::Failed => said.iter().any(|(_, said)| *said == Said::Never),
                Verdict::Dead => used == most || now.losses == LOSSES_MAX,
                Verdict::TimedOut | Verdict::Cancelled | Verdict::Expired | Verdict::Skipped => true,
            };
            if !ok {
                wrong = Some(format!("{}: its handlers said {said:?}, {used} attempts of {most}", told()));
            }
            if now.cancel.is_some() && !verdict.answers_a_cancel() {
                wrong = Some(format!("{}: it was asked to stop", told()));
            }
            seen.live.remove(&id);
            seen.ended(id, now.job, verdict);
            // From its end on it is there, and must be found by the next look.
            if let Some((follower, _)) = now.followed_by() {
                seen.runs.insert(follower, RunSeen { run: None, record: None, job: now.job });
                seen.live.insert(follower);
            }
        }
        let known = seen.runs.get_mut(&id).unwrap();
        if let Some(before) = known.run.as_ref().map(Run::lease).filter(|before| *before != now.lease() || !live) {
            seen.over.entry(before).or_insert(self.weather.now());
        }
        if known.run.as_ref() != Some(&record.run) {
            let (status, fence) = (record.run.state.status(), record.run.fence.0);
            self.weather.note(|| format!("run {id} is {status:?} at fence {fence} by {after}"));
        }
        known.run = Some(record.run.clone());
        known.record = Some(record);
        if let Some(wrong) = wrong {
            seen.wrong(wrong);
        }
    }

    fn made(&self, seen: &mut Seen, write: &Write, run: &NewRun) {
        if seen.runs.contains_key(&run.id) {
            seen.wrong(format!("run {} was made twice", run.id));
        }
        seen.runs.insert(run.id, RunSeen { run: None, record: None, job: run.job });
        seen.live.insert(run.id);
        let acted = seen.acts.made(write, run);
        seen.judge(acted);
        seen.rates.clock_steps = self.weather.store_clock.forward();
        let rated = seen.rates.made(run, self.weather.elapsed());
        seen.judge(rated);
        if let Some(ask) = &run.unique {
            // A key whose time is over by any clock may be gone.
            let latest = write.now.max(self.weather.latest_ever());
            if seen.unique.get(&ask.key).is_some_and(|until| *until > latest) {
                seen.wrong(format!("run {} was made although another has its unique key", run.id));
            }
            seen.unique.insert(ask.key, ask.until);
        }
    }

    fn fired(&self, seen: &mut Seen, write: &Write, item: &FireItem, run: &NewRun) {
        self.made(seen, write, run);
        let schedule = item.due.schedule;
        let planned_at = run.trigger.planned_at.unwrap();
        let job = seen.jobs.get(&run.job).unwrap();
        let Some(book) = seen.books.get_mut(&schedule) else { return };
        *book.fired.entry(planned_at).or_default() += 1;
        book.fired_at.insert(planned_at, self.weather.store_now());
        let count = book.fired[&planned_at];
        let payload: Value = run.payload.as_deref().map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
        let mut wrong = None;
        if count > 1 {
            wrong = Some(format!("schedule {schedule}: the instant {planned_at} made {count} runs"));
        }
        if planned_at > self.weather.latest() {
            wrong = Some(format!("schedule {schedule} fired {planned_at} before it came"));
        }
        if payload != *book.payload() || book.deleted || job.deleted {
            wrong = Some(format!("schedule {schedule} fired {planned_at} by a definition that had been changed"));
        }
        let targets = [
            PauseTarget::Schedule(schedule),
            PauseTarget::Job(run.job),
            PauseTarget::Tenant(run.tenant),
            PauseTarget::Queue(run.tenant, job.document.queue_name().to_owned()),
        ];
        let covers = |pause: &Pause| pause.since <= planned_at && pause.until.is_none_or(|until| planned_at < until);
        if targets.iter().filter_map(|target| seen.pauses.get(target)).any(covers) {
            wrong = Some(format!("schedule {schedule} fired {planned_at}, which is inside a pause"));
        }
        if let Some(wrong) = wrong {
            seen.wrong(wrong);
        }
    }

    fn parts(&self, seen: &mut Seen) -> Vec<PartitionLease> {
        let store = &self.store;
        seen.parts.get_or_insert_with(|| wait(store.partitions()).unwrap()).clone()
    }

    /// The right of an owner was accepted: it must have been the right one.
    fn accepted(&self, seen: &mut Seen, write: &Write, lease: Lease, right: (Partition, By), what: &str) {
        let current = seen.runs.get(&lease.run).and_then(|known| known.run.as_ref()).map(|run| run.fence);
        if current.is_some_and(|fence| fence != lease.fence) {
            seen.wrong(format!(
                "{what} of run {} under fence {:?} was accepted at {current:?}",
                lease.run, lease.fence
            ));
        }
        let (part, By::Owner(epoch)) = right else { return };
        let held = self.parts(seen)[usize::from(part.0)];
        if self.planted.bug != Some(Bug::EpochNotRaised) && held.epoch != epoch {
            seen.wrong(format!("{what} under {epoch:?} was accepted where partition {part:?} is at {:?}", held.epoch));
        }
        if write.node.is_some_and(|node| held.node != Some(node)) {
            seen.wrong(format!("{what} by {:?} was accepted where {:?} holds {part:?}", write.node, held.node));
        }
    }

    fn leased(&self, seen: &mut Seen, lease: Lease, worker: WorkerId, before: Fence) {
        let state =
            seen.runs.get(&lease.run).and_then(|known| known.run.as_ref()).map(|run| (run.state.clone(), run.fence));
        if let Some((state, fence)) = state
            && (state != RunState::Queued || fence != before)
        {
            seen.wrong(format!("run {} was leased under {:?} while {state:?} at {fence:?}", lease.run, lease.fence));
        }
        if let Some((other, _)) = seen.leases.insert(lease, (worker, self.weather.now())) {
            seen.wrong(format!("run {} was leased twice under {:?}: to {other} and {worker}", lease.run, lease.fence));
        }
    }

    /// What was promised by a clock that was set since says nothing.
    fn held(&self, seen: &mut Seen, worker: WorkerId, until: Timestamp) {
        if self.weather.store_clock.was_set_lately(self.weather.now()) {
            seen.holders.clear();
            return;
        }
        let held = seen.holders.entry(worker).or_insert(until);
        *held = (*held).max(until);
    }

    fn epochs(seen: &mut Seen, taken: &[Partition], epochs: &[Option<Epoch>], before: &[PartitionLease], by: NodeId) {
        for (part, epoch) in taken.iter().zip(epochs) {
            let Some(epoch) = epoch else { continue };
            let was = before[usize::from(part.0)];
            let last = seen.epochs.insert(*part, *epoch);
            if last.is_some_and(|last| *epoch < last || (*epoch == last && was.node != Some(by))) {
                seen.wrong(format!("partition {part:?} was taken at {epoch:?} after {last:?}"));
            }
        }
        seen.parts = None;
    }

    /// Everything that ended is as it ended, and the store's own counters fit.
    pub fn review(&self, write: &Write) {
        let ended: Vec<(RunId, RunRecord)> = self.with(|seen| {
            let ended = seen.runs.iter().filter(|(id, _)| !seen.live.contains(id));
            ended.filter_map(|(id, known)| Some((*id, known.record.clone()?))).collect()
        });
        let ids: Vec<RunId> = ended.iter().map(|(id, _)| *id).collect();
        let now = wait(self.store.runs(&ids)).unwrap();
        self.with(|seen| {
            for ((id, then), now) in ended.iter().zip(now) {
                if now.as_ref() != Some(then) {
                    seen.wrong(format!("run {id} ended as {:?} and is now {now:?}", then.run.state));
                }
            }
        });
        let leaked = wait(self.store.recount_slots(write)).unwrap();
        if leaked > 0 {
            self.with(|seen| seen.wrong(format!("{leaked} slots do not fit the live runs")));
        }
        let stuck = wait(self.store.mend_joins(write)).unwrap();
        if stuck > 0 {
            self.with(|seen| seen.wrong(format!("{stuck} joins should have opened")));
        }
        self.review_dead(false);
    }

    /// Every instant has one end, and every schedule that is on and not paused has
    /// decided what its definition planned up to a moment ago, or its run lives that it
    /// counts from. When all is at rest no run lives, and everything is paused.
    pub fn balance(&self, now: Timestamp, at_rest: bool) {
        let ids: Vec<ScheduleId> = self.with(|seen| seen.books.keys().copied().collect());
        let cursors = wait(self.store.cursors(&ids)).unwrap();
        let records = wait(self.store.schedules(&ids)).unwrap();
        for ((id, due), record) in ids.iter().zip(cursors).zip(records) {
            let cursor = due.map(|due| due.cursor);
            let armed_by = record.as_ref().and_then(|record| record.armed_by);
            let implied = record.as_ref().map_or(Ok(()), |record| self.implied(record, due, now));
            let rated = record.as_ref().is_some_and(|record| self.with(|seen| seen.rates.is_limited(record.tenant)));
            let skips = wait(self.store.skips(*id, None, 10_000)).unwrap();
            let owner = self.owner(*id, now);
            self.with(|seen| {
                let book = &seen.books[id];
                let paused = seen.is_paused(*id, now);
                let lives = armed_by.is_some_and(|run| seen.live.contains(&run));
                // Whoever has decided an instant owes the next one.
                let late = |cursor: Cursor| {
                    let at = if rated { cursor.due_at } else { cursor.planned_at };
                    !at_rest && Span::secs(5).after(at) < now
                };
                let standing = match cursor {
                    Some(_) if book.deleted || !book.enabled => Err("is off, and armed"),
                    None if book.deleted || !book.enabled => Ok(()),
                    None if book.is_after_finish() && lives => Ok(()),
                    None => Err("is not armed"),
                    Some(_) if paused => Ok(()),
                    Some(cursor) if late(cursor) => Err("is overdue"),
                    Some(cursor) if Span::secs(3_700).after(self.weather.latest_ever()) < cursor.due_at => {
                        Err("sleeps for too long")
                    }
                    Some(_) => Ok(()),
                };
                let standing = standing.map_err(|what| format!("schedule {id} of {owner:?} {what}: {cursor:?}"));
                let judged = book.balance(*id, cursor, &skips).and(standing).and(implied);
                seen.judge(judged);
            });
        }
    }

    /// Who holds the partition of a schedule.
    fn owner(&self, schedule: ScheduleId, now: Timestamp) -> Option<String> {
        let part = Partition::of_schedule(schedule);
        let owner = wait(self.store.partitions()).unwrap()[usize::from(part.0)].node;
        let nodes = wait(self.store.nodes(now)).unwrap();
        nodes.into_iter().find(|node| Some(node.node) == owner).map(|node| node.name)
    }
}

fn check_slots(seen: &mut Seen, after: &str) {
    let mut held: HashMap<SlotKey, (u32, JobId)> = HashMap::new();
    for id in &seen.live {
        let Some(run) = seen.runs.get(id).and_then(|known| known.run.as_ref()) else { continue };
        if let (Some(slot), SlotUse::Holds) = (&run.slot, run.state.slot_use()) {
            held.entry(slot.key).or_insert((0, run.job)).0 += 1;
        }
    }
    for (key, (count, job)) in held {
        let limit = seen.jobs.get(&job).and_then(|job| job.slots);
        if limit.is_some_and(|limit| count > limit) {
            seen.wrong(format!(
                "{count} runs hold the slot {key:?} of job {job}, whose limit is {limit:?}, after {after}"
            ));
        }
    }
}

/// The state diagram, as steps that one write may take.
fn may_step(before: Option<&Run>, now: &Run) -> bool {
    let to = now.state.status();
    let Some(before) = before else {
        // Made and displaced in one batch, by a run behind it.
        let displaced = matches!(to, Status::Cancelling | Status::Ended(Verdict::Skipped | Verdict::Cancelled));
        return displaced || matches!(to, Status::Scheduled | Status::Blocked | Status::Queued);
    };
    if before.state == now.state {
        return true;
    }
    let fence_rose = now.fence > before.fence;
    let unheld = [Verdict::Cancelled, Verdict::Expired, Verdict::Skipped, Verdict::TimedOut];
    let unstarted = unheld.into_iter().any(|verdict| to == Status::Ended(verdict));
    match &before.state {
        RunState::Scheduled => matches!(to, Status::Queued | Status::Blocked) || unstarted,
        RunState::Blocked(Block::Needs(_)) => {
            matches!(to, Status::Scheduled | Status::Queued | Status::Blocked) || unstarted
        }
        RunState::Blocked(Block::Slot) => to == Status::Queued || unstarted,
        RunState::Queued => match to {
            Status::Running | Status::Cancelling | Status::Ended(_) => true,
            Status::Scheduled | Status::Waiting => fence_rose,
            Status::Queued | Status::Blocked => false,
        },
        RunState::Running { .. } => match to {
            Status::Cancelling | Status::Ended(_) => true,
            Status::Scheduled | Status::Waiting | Status::Queued => fence_rose,
            Status::Running => !fence_rose && became_leased(&before.state, &now.state),
            Status::Blocked => false,
        },
        RunState::Waiting { .. } => matches!(to, Status::Queued | Status::Waiting) || unstarted,
        RunState::Cancelling { .. } => match to {
            Status::Ended(verdict) => verdict.answers_a_cancel(),
            _ => !fence_rose && became_leased(&before.state, &now.state),
        },
        RunState::Finished { .. } => false,
    }
}

/// An owner gave the partition away and kept the attempt.
fn became_leased(before: &RunState, now: &RunState) -> bool {
    let leased = |state: &RunState| match state {
        RunState::Running { hold, .. } => matches!(hold, Hold::Leased(_)),
        RunState::Cancelling { hold, .. } => matches!(hold, Some(Hold::Leased(_))),
        _ => false,
    };
    before.status() == now.status() && !leased(before) && leased(now)
}

impl Tap for Witness {
    fn put_jobs(&self, store: &dyn Store, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
        let ended = jobs.iter().flat_map(|put| &put.schedules).flat_map(|schedules| schedules.ended.iter().copied());
        let ended: Vec<ScheduleId> = ended.collect();
        let cursors = wait(store.cursors(&ended))?;
        let answers = self.planted.put_jobs(store, write, jobs)?;
        if write.dry_run {
            return Ok(answers);
        }
        let cursors = cursors.into_iter().map(|due| due.map(|due| due.cursor));
        let mut owed: HashMap<ScheduleId, Option<Cursor>> = ended.into_iter().zip(cursors).collect();
        let mut saved = Vec::new();
        self.with(|seen| {
            let news = seen.is_news(write);
            for (put, answer) in jobs.iter().zip(&answers) {
                let JobSaved::Saved { id, version, .. } = answer else { continue };
                let document: JobDocument = serde_json::from_str(&put.document).unwrap();
                let terms = document.run_terms(Priority::HIGHEST);
                let slots = document.concurrency.as_ref().map(|concurrency| concurrency.limit);
                let attempts_max = terms.retry.max_attempts();
                let known = seen.jobs.get(id).map_or(0, |job| job.version);
                let version = known.max(*version);
                let (name, after) = (document.name.clone(), put.after.clone());
                let judged = seen.rates.saved(put);
                seen.judge(judged);
                seen.jobs.insert(*id, JobSeen { name, version, after, attempts_max, slots, deleted: false, document });
                let Some(schedules) = put.schedules.as_ref().filter(|_| news) else { continue };
                for ended in &schedules.ended {
                    if let Some(book) = seen.books.get_mut(ended).filter(|book| !book.deleted) {
                        book.end(owed.remove(ended).flatten(), write.now);
                        book.deleted = true;
                    }
                }
                for put in &schedules.saved {
                    seen.saved(&SchedulePut { job: *id, ..put.clone() }, write.now);
                    saved.push(put.id);
                }
            }
        });
        self.armed(&saved, write.now);
        Ok(answers)
    }

    fn delete_jobs(&self, store: &dyn Store, write: &Write, deleted: &[Deletion]) -> Result<Vec<Guarded>, StoreError> {
        let jobs: Vec<JobId> = deleted.iter().map(|deletion| deletion.job).collect();
        let schedules: Vec<ScheduleId> = self.with(|seen| {
            let of_jobs = seen.books.iter().filter(|(_, book)| jobs.contains(&book.job) && !book.deleted);
            of_jobs.map(|(id, _)| *id).collect()
        });
        let cursors = wait(store.cursors(&schedules))?;
        let answers = wait(store.delete_jobs(write, deleted))?;
        self.with(|seen| {
            if !seen.is_news(write) {
                return;
            }
            for (job, answer) in jobs.iter().zip(&answers) {
                if *answer == Guarded::Applied {
                    seen.jobs.get_mut(job).unwrap().deleted = true;
                    for (id, cursor) in schedules.iter().zip(&cursors) {
                        let book = seen.books.get_mut(id).unwrap();
                        if book.job == *job {
                            book.end(cursor.map(|due| due.cursor), write.now);
                            book.deleted = true;
                        }
                    }
                }
            }
        });
        self.look("delete_jobs");
        Ok(answers)
    }

    fn put_schedules(
        &self,
        store: &dyn Store,
        write: &Write,
        schedules: &[SchedulePut],
    ) -> Result<Vec<ScheduleSaved>, StoreError> {
        let answers = wait(store.put_schedules(write, schedules))?;
        self.with(|seen| {
            if !seen.is_news(write) {
                return;
            }
            for (put, answer) in schedules.iter().zip(&answers) {
                if matches!(answer, ScheduleSaved::Saved { .. }) {
                    seen.saved(put, write.now);
                }
            }
        });
        Ok(answers)
    }

    fn set_pauses(
        &self,
        store: &dyn Store,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, StoreError> {
        let covered = self.with(|seen| seen.covered_by(targets));
        let answers = self.planted.set_pauses(store, write, targets, pause, &covered)?;
        if targets.iter().any(|target| matches!(target, PauseTarget::Tenant(_) | PauseTarget::Queue(..))) {
            self.with(|seen| seen.wide_changed_at = Some(self.weather.now()));
        }
        self.awake(targets, write.now);
        self.with(|seen| {
            if !seen.is_news(write) {
                return;
            }
            for (target, done) in targets.iter().zip(&answers) {
                match pause {
                    Some(pause) if *done => drop(seen.pauses.insert(target.clone(), pause.clone())),
                    None if *done => drop(seen.pauses.remove(target)),
                    _ => {}
                }
            }
        });
        Ok(answers)
    }

    fn ready_pairs(&self, store: &dyn Store, lanes: &[LaneId]) -> Result<Vec<(Pair, OrderKey)>, StoreError> {
        let pairs = wait(store.ready_pairs(lanes))?;
        Ok(if self.planted.bug == Some(Bug::NoticesLost) { Vec::new() } else { pairs })
    }

    fn own(&self, store: &dyn Store, parts: &[Partition], windows: &[Window]) -> Result<Vec<Vec<Run>>, StoreError> {
        Ok(wait(store.own(parts, windows))?
            .into_iter()
            .map(|runs| self.planted.read(runs, self.weather.store_now()))
            .collect())
    }

    fn inherited(&self, store: &dyn Store, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        Ok(self.planted.read(wait(store.inherited(parts, limit))?, self.weather.store_now()))
    }

    fn notices(&self, store: &dyn Store, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        let runs = self.planted.read(wait(store.notices(parts, limit))?, self.weather.store_now());
        Ok(if self.planted.bug == Some(Bug::NoticesLost) { Vec::new() } else { runs })
    }

    fn beat(&self, store: &dyn Store, beat: &NodeBeat, now: Timestamp) -> Result<Guarded, StoreError> {
        self.planted.beat(store, beat, now)
    }

    fn pauses(&self, store: &dyn Store) -> Result<Pauses, StoreError> {
        self.planted.pauses(store)
    }

    fn inbox(&self, _: &dyn Store, limit: u32) -> Result<Vec<InboxItem>, StoreError> {
        Ok(self.inbox_rows(limit))
    }

    fn discard(&self, store: &dyn Store, runs: &[RunId], by: &str, now: Timestamp) -> Result<Vec<bool>, StoreError> {
        let answers = wait(store.discard(runs, by, now))?;
        self.put_away(runs, &answers);
        Ok(answers)
    }

    fn take_tokens(&self, store: &dyn Store, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError> {
        self.planted.take_tokens(store, asks, now)
    }

    fn enqueue(
        &self,
        store: &dyn Store,
        write: &Write,
        runs: &[NewRun],
        inbox: &[i64],
    ) -> Result<Vec<Enqueued>, StoreError> {
        if write.dry_run {
            return self.dry(runs, || self.planted.enqueue(store, write, runs));
        }
        self.may_take(write, inbox)?;
        let answers = self.planted.enqueue(store, write, runs)?;
        self.with(|seen| {
            if seen.is_news(write) {
                self.take_rows(seen, inbox);
                for (run, answer) in runs.iter().zip(&answers) {
                    if matches!(answer, Enqueued::Made { .. }) {
                        self.made(seen, write, run);
                    }
                }
            }
        });
        self.look("enqueue");
        Ok(answers)
    }

    fn fire(
        &self,
        store: &dyn Store,
        write: &Write,
        pauses_revision: i64,
        items: &[FireItem],
    ) -> Result<Vec<Fired>, StoreError> {
        let answers = self.planted.fire(store, write, pauses_revision, items)?;
        let is_news = self.with(|seen| seen.is_news(write));
        self.with(|seen| {
            if !is_news {
                return;
            }
            for (item, answer) in items.iter().zip(&answers) {
                let Fired::Fired(made) = answer else { continue };
                let spec = seen.books.get(&item.due.schedule).map(|book| book.spec.clone());
                seen.judge(spec.map_or(Ok(()), |spec| Rates::fired(write, item, &spec)));
                for (run, answer) in item.runs.iter().zip(made) {
                    if matches!(answer, Enqueued::Made { .. }) {
                        self.fired(seen, write, item, run);
                    }
                }
            }
        });
        self.look("fire");
        self.with(|seen| {
            let news = items.iter().flat_map(|item| &item.runs).filter(|run| is_news && seen.live.contains(&run.id));
            let old = news.into_iter().find(|run| {
                let made = seen.runs.get(&run.id).and_then(|known| known.run.as_ref()).map(|run| run.version);
                made.is_some_and(|version| version != seen.jobs[&run.job].version)
            });
            if let Some(run) = old.map(|run| run.id) {
                seen.wrong(format!("run {run} was fired by an old version of its job"));
            }
        });
        Ok(answers)
    }

    fn follow_ends(&self, store: &dyn Store, write: &Write, items: &[FollowEnds]) -> Result<Vec<Followed>, StoreError> {
        let answers = self.planted.follow_ends(store, write, items)?;
        self.with(|seen| {
            if !seen.is_news(write) {
                return;
            }
            for (item, answer) in items.iter().zip(&answers) {
                let Followed::Done(made) = answer else { continue };
                for run in &item.used {
                    let wrong = match seen.ends.insert((item.downstream, *run), true) {
                        Some(false) => continue,
                        Some(true) => "a second time",
                        None => "although it waits for no such end",
                    };
                    seen.wrong(format!("job {} came after run {run} {wrong}", item.downstream));
                }
                for (run, answer) in item.runs.iter().zip(made) {
                    if matches!(answer, Enqueued::Made { .. }) {
                        self.made(seen, write, run);
                    }
                }
            }
        });
        self.look("follow_ends");
        Ok(answers)
    }

    fn promote(
        &self,
        store: &dyn Store,
        write: &Write,
        parts: &[Partition],
        limit: u32,
    ) -> Result<Promoted, StoreError> {
        let promoted = wait(store.promote(write, parts, limit))?;
        self.look_if(promoted.moved > 0, "promote");
        Ok(promoted)
    }

    fn claim(&self, store: &dyn Store, write: &Write, claims: &[Claim]) -> Result<Vec<Run>, StoreError> {
        let runs = self.planted.claim(store, write, claims)?;
        self.with(|seen| {
            if !seen.is_news(write) {
                return;
            }
            for run in &runs {
                let RunState::Running { hold: Hold::Leased(worker), .. } = run.state else { continue };
                self.leased(seen, run.lease(), worker, Fence(run.fence.0 - 1));
                // One who asks in vain writes nothing, and holds no longer for it.
                let until = claims.iter().find(|claim| claim.worker == worker).map(|claim| claim.until);
                self.held(seen, worker, until.unwrap_or(Timestamp::MIN));
            }
        });
        self.look_if(!runs.is_empty(), "claim");
        Ok(runs)
    }

    fn lease_owned(
        &self,
        store: &dyn Store,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        asks: &[OwnLease],
    ) -> Result<Vec<Guarded>, StoreError> {
        let answers = self.planted.lease_owned(store, write, worker, until, asks)?;
        self.with(|seen| {
            if !seen.is_news(write) {
                return;
            }
            for (ask, _) in asks.iter().zip(&answers).filter(|(_, answer)| **answer == Guarded::Applied) {
                self.accepted(seen, write, ask.lease, (ask.part, By::Owner(ask.epoch)), "a lease");
                let lease = Lease { fence: ask.lease.fence.next(), ..ask.lease };
                self.leased(seen, lease, worker, ask.lease.fence);
                self.held(seen, worker, until);
            }
        });
        self.look("lease_owned");
        Ok(answers)
    }

    fn mark_running(
        &self,
        store: &dyn Store,
        write: &Write,
        marks: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError> {
        let answers = self.planted.mark_running(store, write, marks)?;
        self.with(|seen| {
            if !seen.is_news(write) {
                return;
            }
            for (mark, answer) in marks.iter().zip(&answers) {
                if *answer == Guarded::Applied {
                    self.accepted(seen, write, mark.lease, (mark.part, By::Owner(mark.epoch)), "a mark");
                }
            }
        });
        self.look("mark_running");
        Ok(answers)
    }

    fn lease_running(
        &self,
        store: &dyn Store,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        attempts: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError> {
        let answers = self.planted.lease_running(store, write, worker, until, attempts)?;
        self.with(|seen| {
            if !seen.is_news(write) {
                return;
            }
            for (one, _) in attempts.iter().zip(&answers).filter(|(_, answer)| **answer == Guarded::Applied) {
                self.accepted(seen, write, one.lease, (one.part, By::Owner(one.epoch)), "a lease of an attempt");
                if let Some((other, _)) = seen.leases.insert(one.lease, (worker, self.weather.now())) {
                    seen.wrong(format!("an attempt at run {} was leased to {other} and to {worker}", one.lease.run));
                }
                self.held(seen, worker, until);
            }
        });
        self.look("lease_running");
        Ok(answers)
    }

    fn settle(&self, store: &dyn Store, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let settled = self.planted.settle(store, write, settlements)?;
        self.with(|seen| {
            if !seen.is_news(write) {
                return;
            }
            // In the order of the runs: that of a batch is nobody's concern, and may differ.
            let answered = settlements.iter().zip(&settled.answers);
            let mut refused: Vec<Lease> =
                answered.filter(|(_, answer)| **answer != Guarded::Applied).map(|(item, _)| item.lease).collect();
            refused.sort_unstable_by_key(|lease| lease.run);
            for lease in refused {
                self.weather.note(|| format!("the end of {} at fence {} is refused", lease.run, lease.fence.0));
            }
            for (item, answer) in settlements.iter().zip(&settled.answers) {
                if *answer == Guarded::Applied {
                    self.accepted(seen, write, item.lease, (item.part, item.by), "a settlement");
                }
                let By::Owner(_) = item.by else { continue };
                let applied = *answer == Guarded::Applied;
                let before = seen.settled.get(&item.lease).copied();
                if before.is_some() && before == write.node {
                    seen.wrong(format!("{:?} is settled again by {:?} under another batch", item.lease, write.node));
                } else if applied && let Some(node) = write.node {
                    seen.settled.insert(item.lease, node);
                }
            }
        });
        self.look("settle");
        Ok(settled)
    }

    fn extend(
        &self,
        store: &dyn Store,
        worker: WorkerId,
        until: Timestamp,
        held: &[Lease],
        now: Timestamp,
    ) -> Result<Extended, StoreError> {
        let extended = self.planted.extend(store, worker, until, held, now)?;
        self.with(|seen| self.held(seen, worker, until));
        Ok(extended)
    }

    fn request_cancel(
        &self,
        store: &dyn Store,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<Vec<CancelAnswer>, StoreError> {
        let answers = wait(store.request_cancel(write, runs, ask))?;
        let news = self.with(|seen| seen.is_news(write));
        self.look("request_cancel");
        self.with(|seen| {
            for (run, answer) in runs.iter().zip(&answers).filter(|_| news) {
                let status = seen.runs.get(run).and_then(|known| known.run.as_ref()).map(|run| run.state.status());
                let ok = match answer {
                    CancelAnswer::Cancelled => status == Some(Status::Ended(Verdict::Cancelled)),
                    CancelAnswer::Asked | CancelAnswer::AlreadyAsked => status == Some(Status::Cancelling),
                    CancelAnswer::Ended => matches!(status, Some(Status::Ended(_))),
                    CancelAnswer::NotFound => status.is_none(),
                };
                if !ok {
                    seen.wrong(format!("a cancel of run {run} was answered {answer:?} and it is {status:?}"));
                }
            }
        });
        Ok(answers)
    }

    fn release(&self, store: &dyn Store, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError> {
        let woken = self.planted.release(store, write, worker)?;
        self.with(|seen| {
            if seen.is_news(write) {
                // It holds nothing any more; what a late claim gives it is as long as that says.
                seen.holders.remove(&worker);
            }
        });
        self.look("release");
        Ok(woken)
    }

    fn reap(&self, store: &dyn Store, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError> {
        let reaped = self.planted.reap(store, write, reap)?;
        self.with(|seen| {
            if !seen.is_news(write) {
                return;
            }
            let latest = self.weather.latest();
            if self.weather.store_clock.was_set_lately(self.weather.now()) {
                seen.holders.clear();
            }
            for one in &reaped {
                let Some(run) = seen.runs.get(&one.id).and_then(|known| known.run.as_ref()) else { continue };
                let hold = match run.state {
                    RunState::Running { hold, .. } => Some(hold),
                    RunState::Cancelling { hold, .. } => hold,
                    _ => None,
                };
                let Some(Hold::Leased(worker)) = hold else { continue };
                let until = seen.holders.get(&worker).copied();
                if until.is_some_and(|until| until > latest) {
                    seen.wrong(format!("run {} was reaped while its lease holds until {until:?}", one.id));
                }
            }
        });
        self.look_if(!reaped.is_empty(), "reap");
        Ok(reaped)
    }

    fn sweep(&self, store: &dyn Store, write: &Write, limit: u32) -> Result<Vec<Reaped>, StoreError> {
        let swept = wait(store.sweep(write, limit))?;
        self.look_if(!swept.is_empty(), "sweep");
        Ok(swept)
    }

    fn recount_slots(&self, store: &dyn Store, write: &Write) -> Result<u32, StoreError> {
        let leaked = wait(store.recount_slots(write))?;
        if leaked > 0 {
            self.with(|seen| seen.wrong(format!("{leaked} slots did not fit the live runs")));
        }
        Ok(leaked)
    }

    fn mend_joins(&self, store: &dyn Store, write: &Write) -> Result<u32, StoreError> {
        let stuck = wait(store.mend_joins(write))?;
        if stuck > 0 {
            self.with(|seen| seen.wrong(format!("{stuck} joins should have opened")));
        }
        Ok(stuck)
    }

    fn take_partitions(
        &self,
        store: &dyn Store,
        node: NodeId,
        parts: &[Partition],
        now: Timestamp,
    ) -> Result<Vec<Option<Epoch>>, StoreError> {
        let before = self.with(|seen| self.parts(seen));
        let epochs = self.planted.take_partitions(store, node, parts, now)?;
        self.with(|seen| Self::epochs(seen, parts, &epochs, &before, node));
        Ok(epochs)
    }

    fn give_partitions(
        &self,
        store: &dyn Store,
        node: NodeId,
        parts: &[(Partition, Epoch)],
    ) -> Result<Vec<Guarded>, StoreError> {
        self.with(|seen| seen.parts = None);
        wait(store.give_partitions(node, parts))
    }

    fn leave(&self, store: &dyn Store, node: NodeId) -> Result<(), StoreError> {
        self.with(|seen| seen.parts = None);
        wait(store.leave(node))
    }
}
