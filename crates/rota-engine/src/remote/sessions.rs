//! The workers that speak to this node, and what each was given.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    duration::Span,
    ids::{LaneId, RunId, TenantId, WorkerId},
    lane::LaneMode,
    limits::{Limited, Limits},
    run::{Lease, Run},
    store::{Guarded, WorkerBeat, WorkerInfo},
};
use tokio::sync::Notify;

use super::{ANSWER_BYTES_MAX, ATTEMPTS_MAX, ExchangeError, Hello, Offer, Work};
use crate::catalog::{Gate, JobVersion};

/// What nobody fetched for so long goes back: before another node can take it for
/// lost and hand it over again.
const OUTGOING_KEPT: Span = Span::secs(1);
/// An attempt that its worker does not list is handed over again this often. After that it
/// is lost: a worker that ignores what it is given would otherwise keep it for ever.
pub(crate) const REDELIVERIES_MAX: u8 = 3;
/// A worker that has said nothing for so long is forgotten.
const SESSION_KEPT: Span = Span::secs(12);

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportAck {
    /// What was reported is what stands.
    Applied,
    /// The lease is not the run's any more, and what was reported counts for
    /// nothing.
    Stale,
    /// This node has it and the store has not answered: to be reported again.
    Pending,
}

/// The answers to the reports of one exchange.
#[derive(Debug)]
pub(crate) struct PendingAcks {
    acks: Mutex<Vec<Option<ReportAck>>>,
    left: AtomicUsize,
    notify: Arc<Notify>,
}

impl PendingAcks {
    pub fn new(count: usize, notify: Arc<Notify>) -> Self {
        Self { acks: Mutex::new(vec![None; count]), left: AtomicUsize::new(count), notify }
    }

    pub fn acknowledge(&self, at: usize, ack: ReportAck) {
        let mut all = self.acks.lock();
        if all[at].replace(ack).is_none() && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.notify.notify_waiters();
        }
    }

    pub fn is_done(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    pub fn read(&self) -> Vec<ReportAck> {
        let all = self.acks.lock();
        all.iter().map(|ack| ack.unwrap_or(ReportAck::Pending)).collect()
    }
}

/// An attempt that is leased to a worker and not yet handed to it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub assigned: Assigned,
    pub work: Work,
    /// About how much it adds to an answer.
    pub bytes: usize,
    /// It has been leased since then, or longer.
    pub put_at: Timestamp,
}

/// An attempt that a worker has.
#[derive(Clone, Debug)]
pub(crate) struct Assigned {
    pub run: Run,
    pub job: Arc<JobVersion>,
    pub deadline_at: Option<Timestamp>,
    pub log_bytes: usize,
}

/// Workers that offer the same for the same tenant.
#[derive(Debug)]
pub(crate) struct OfferGroup {
    pub tenant: TenantId,
    pub offer: Offer,
    /// The claimed lanes it takes, and among how many lanes they were looked
    /// for: lanes are only added.
    lanes: Mutex<(usize, Arc<HashSet<LaneId>>)>,
}

impl OfferGroup {
    pub fn lanes(&self, gate: &Gate) -> Arc<HashSet<LaneId>> {
        let mut lanes = self.lanes.lock();
        if lanes.0 != gate.lanes().len() {
            let mine = gate.lanes().values().filter(|lane| lane.mode == LaneMode::Claimed);
            let mine = mine.filter(|lane| self.offer.takes(&lane.key)).map(|lane| lane.id);
            *lanes = (gate.lanes().len(), Arc::new(mine.collect()));
        }
        Arc::clone(&lanes.1)
    }
}

#[derive(Debug)]
struct OpenPoll {
    number: u64,
    free: u32,
    /// Work was looked for since it began.
    looked: bool,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub hello: Hello,
    group: Arc<OfferGroup>,
    seen_at: Timestamp,
    listed: usize,
    poll: Option<OpenPoll>,
    polls: u64,
    outgoing: VecDeque<Outgoing>,
    /// Leased to it, and held back for their rate.
    pub held: HashSet<Lease>,
    pub assigned: HashMap<RunId, Assigned>,
    /// Leases that the store had for it and its list had not, at the last look.
    /// Since when.
    pub unlisted_since: HashMap<Lease, Timestamp>,
    /// How often each of those was handed over again.
    pub redelivered: HashMap<Lease, u8>,
    pub extended_at: Option<Timestamp>,
    /// Somebody may have asked one of its runs to stop.
    pub compare: bool,
    pub drain_asked: bool,
    /// A run that is to be executed with nothing beside it: it is held until the worker
    /// has nothing else in hand, then its, and for so long nothing is given out beside it.
    pub alone: Option<(Lease, Timestamp)>,
    pub notify: Arc<Notify>,
}

impl Session {
    fn room(&self, now: Timestamp) -> u32 {
        let open = !self.hello.draining && !self.drain_asked && !self.is_reserved(now);
        let poll = self.poll.as_ref().filter(|_| open);
        poll.map_or(0, |poll| poll.free.min(ATTEMPTS_MAX).saturating_sub(self.outgoing.len() as u32))
    }

    /// Whether the store may know of leases that were handed over in vain, by a
    /// node that has gone since, or are just being handed over.
    pub fn may_not_have_heard(&self) -> bool {
        self.extended_at.is_none() || !self.unlisted_since.is_empty()
    }

    /// Whether a list that was made then can tell of leases that have not been listed since
    /// before `long_ago`.
    pub fn is_to_be_judged(&self, listed_at: Timestamp, long_ago: Timestamp) -> bool {
        self.unlisted_since.values().any(|since| *since < listed_at && *since <= long_ago)
    }

    /// Whether it has nothing in hand but this.
    pub fn is_free_for(&self, lease: Lease) -> bool {
        let else_held = self.held.iter().any(|held| *held != lease);
        self.listed == 0 && self.outgoing.is_empty() && self.assigned.is_empty() && !else_held
    }

    /// Whether it waits for a run that is to be alone, or has it.
    pub fn is_reserved(&self, now: Timestamp) -> bool {
        self.alone.is_some_and(|(lease, until)| now < until && self.holds(lease))
    }

    /// Whether it has a run that is to be alone.
    pub fn has_alone(&self, now: Timestamp) -> bool {
        self.is_reserved(now) && self.alone.is_some_and(|(lease, _)| !self.held.contains(&lease))
    }

    pub fn put(&mut self, outgoing: Outgoing) {
        self.outgoing.push_back(outgoing);
        self.notify.notify_waiters();
    }

    /// What is leased to it and has not been handed over.
    pub fn kept_leases(&self) -> impl Iterator<Item = Lease> {
        self.outgoing.iter().map(|outgoing| outgoing.assigned.run.lease()).chain(self.held.iter().copied())
    }

    pub fn drop_kept(&mut self, lost: &HashSet<Lease>) {
        self.outgoing.retain(|outgoing| !lost.contains(&outgoing.assigned.run.lease()));
        self.held.retain(|lease| !lost.contains(lease));
    }

    /// Takes an attempt out of its outgoing queue.
    pub fn take_unheard(&mut self, run: RunId) -> Option<Assigned> {
        let place = self.outgoing.iter().position(|outgoing| outgoing.assigned.run.id == run)?;
        self.outgoing.remove(place).map(|outgoing| outgoing.assigned)
    }

    /// Forgets an attempt that was not handed over. False where it was, or is not known.
    pub fn forget_unheard(&mut self, lease: Lease) -> bool {
        self.held.remove(&lease) || self.take_unheard(lease.run).is_some()
    }

    pub fn count_redelivery(&mut self, lease: Lease) {
        let times = self.redelivered.entry(lease).or_default();
        *times = times.saturating_add(1);
    }

    /// Whether it was handed this often enough, and took no notice.
    pub fn ignores(&self, lease: Lease) -> bool {
        self.redelivered.get(&lease).is_some_and(|times| *times >= REDELIVERIES_MAX)
    }

    /// An attempt whose deadline passed before then, once: whoever asks ends it.
    pub fn take_overdue(&mut self, lease: Lease, before: Timestamp) -> Option<Assigned> {
        let assigned = self.assigned.get_mut(&lease.run).filter(|assigned| assigned.run.lease() == lease)?;
        assigned.deadline_at.take_if(|at| *at <= before)?;
        Some(assigned.clone())
    }

    pub fn holds(&self, lease: Lease) -> bool {
        self.assigned.get(&lease.run).is_some_and(|assigned| assigned.run.lease() == lease)
            || self.kept_leases().any(|kept| kept == lease)
    }
}

/// A worker that waits, for the one who claims.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub worker: WorkerId,
    pub room: u32,
    pub group: Arc<OfferGroup>,
}

/// How a poll stands.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct PollState {
    pub superseded: bool,
    pub outgoing: bool,
    pub looked: bool,
    pub drain: bool,
    /// Since when the store has had leases that it does not list.
    pub unlisted_since: Option<Timestamp>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_worker: HashMap<WorkerId, Session>,
    groups: HashMap<(TenantId, Offer), Arc<OfferGroup>>,
    settling: HashMap<Lease, Vec<(Arc<PendingAcks>, usize)>>,
    /// Something is offered that was not before.
    new_offers: bool,
}

impl Sessions {
    pub fn len(&self) -> usize {
        self.by_worker.len()
    }

    pub fn settling(&self) -> usize {
        self.settling.len()
    }

    /// Whether nothing is being settled or kept for anybody.
    pub fn is_at_rest(&self, now: Timestamp) -> bool {
        let idle = |session: &Session| session.kept_leases().next().is_none() && !session.is_reserved(now);
        self.settling.is_empty() && self.by_worker.values().all(idle)
    }

    pub fn get_mut(&mut self, worker: WorkerId) -> Option<&mut Session> {
        self.by_worker.get_mut(&worker)
    }

    fn group(&mut self, hello: &Hello) -> Arc<OfferGroup> {
        let key = (hello.tenant, hello.offer.clone());
        let new = || OfferGroup {
            tenant: hello.tenant,
            offer: hello.offer.clone(),
            lanes: Mutex::new((usize::MAX, Arc::default())),
        };
        let new_offers = &mut self.new_offers;
        Arc::clone(self.groups.entry(key).or_insert_with(|| {
            *new_offers = true;
            Arc::new(new())
        }))
    }

    /// Whether something is offered that was not when this was last asked.
    pub fn take_new_offers(&mut self) -> bool {
        std::mem::take(&mut self.new_offers)
    }

    /// A worker speaks. One that is known is always let in, as long as it is of this tenant.
    pub fn register(
        &mut self,
        hello: &Hello,
        listed: usize,
        limits: &Limits,
        now: Timestamp,
    ) -> Result<Arc<Notify>, ExchangeError> {
        match self.by_worker.get(&hello.worker) {
            Some(session) if session.hello.tenant != hello.tenant => return Err(ExchangeError::Foreign),
            Some(_) => {}
            None => {
                let theirs = self.by_worker.values().filter(|session| session.hello.tenant == hello.tenant);
                limits.allow(Limited::TenantWorkers, theirs.count(), 1)?;
            }
        }
        let group = self.group(hello);
        let session = self.by_worker.entry(hello.worker).or_insert_with(|| Session {
            hello: hello.clone(),
            group: Arc::clone(&group),
            seen_at: now,
            listed: 0,
            poll: None,
            polls: 0,
            outgoing: VecDeque::new(),
            held: HashSet::new(),
            assigned: HashMap::new(),
            unlisted_since: HashMap::new(),
            redelivered: HashMap::new(),
            extended_at: None,
            compare: false,
            drain_asked: false,
            alone: None,
            notify: Arc::default(),
        });
        session.hello.clone_from(hello);
        session.group = group;
        session.seen_at = session.seen_at.max(now);
        session.listed = listed;
        Ok(Arc::clone(&session.notify))
    }

    /// A worker waits for news, and for so many attempts. Whoever of it waited
    /// before does not any more.
    pub fn begin_poll(&mut self, worker: WorkerId, free: u32) -> u64 {
        let Some(session) = self.by_worker.get_mut(&worker) else { return 0 };
        session.polls += 1;
        session.poll = Some(OpenPoll { number: session.polls, free, looked: false });
        session.notify.notify_waiters();
        session.polls
    }

    pub fn end_poll(&mut self, worker: WorkerId, number: u64, now: Timestamp) {
        if let Some(session) = self.by_worker.get_mut(&worker) {
            session.seen_at = session.seen_at.max(now);
            if session.poll.as_ref().is_some_and(|poll| poll.number == number) {
                session.poll = None;
            }
        }
    }

    pub fn poll_state(&self, worker: WorkerId, number: u64, now: Timestamp) -> PollState {
        let Some(session) = self.by_worker.get(&worker) else {
            return PollState { superseded: true, outgoing: false, looked: true, drain: false, unlisted_since: None };
        };
        let poll = session.poll.as_ref().filter(|poll| poll.number == number);
        PollState {
            superseded: poll.is_none(),
            outgoing: poll.is_some_and(|poll| poll.free > 0) && !session.outgoing.is_empty(),
            // Where there is no room nothing is looked for.
            looked: poll.is_none_or(|poll| poll.looked || poll.free == 0) || session.is_reserved(now),
            drain: session.drain_asked,
            unlisted_since: session.unlisted_since.values().min().copied(),
        }
    }

    /// Hands over what is outgoing to a worker, as far as it wants it; nothing that it has or had
    /// in hand.
    pub fn fetch(&mut self, worker: WorkerId, number: u64, known: &HashSet<Lease>) -> Vec<Work> {
        let Some(session) = self.by_worker.get_mut(&worker) else { return Vec::new() };
        session.drop_kept(known);
        let Some(poll) = session.poll.as_ref().filter(|poll| poll.number == number) else { return Vec::new() };
        let (mut work, mut bytes) = (Vec::new(), 0);
        while work.len() < poll.free.min(ATTEMPTS_MAX) as usize
            && bytes < ANSWER_BYTES_MAX
            && let Some(outgoing) = session.outgoing.pop_front()
        {
            bytes += outgoing.bytes;
            session.assigned.insert(outgoing.assigned.run.id, outgoing.assigned);
            work.push(outgoing.work);
        }
        work
    }

    /// Those who wait, least busy first, and marks them as looked for.
    pub fn waiting(&mut self, now: Timestamp) -> Vec<Waiting> {
        let mut waiting: Vec<(usize, Waiting)> = Vec::new();
        for (worker, session) in &self.by_worker {
            let room = session.room(now);
            if room > 0 {
                let busy = session.assigned.len() + session.outgoing.len();
                waiting.push((busy, Waiting { worker: *worker, room, group: Arc::clone(&session.group) }));
            }
        }
        waiting.sort_unstable_by_key(|(busy, waiting)| (*busy, waiting.worker));
        waiting.into_iter().map(|(_, waiting)| waiting).collect()
    }

    /// Work was looked for, for everybody who was waiting.
    pub fn looked(&mut self, waiting: &[Waiting]) {
        for worker in waiting.iter().map(|waiting| waiting.worker) {
            if let Some(session) = self.by_worker.get_mut(&worker)
                && let Some(poll) = &mut session.poll
                && !poll.looked
            {
                poll.looked = true;
                session.notify.notify_waiters();
            }
        }
    }

    pub fn groups(&self) -> impl Iterator<Item = &Arc<OfferGroup>> {
        self.groups.values()
    }

    /// Forgets workers that are silent, and answers what is to go back: what
    /// nobody fetched.
    pub fn forget_silent(&mut self, now: Timestamp) -> Vec<Assigned> {
        let mut back = Vec::new();
        for session in self.by_worker.values_mut() {
            // Who waits and has room fetches it at once.
            if session.poll.as_ref().is_none_or(|poll| poll.free == 0) {
                let (old, young): (VecDeque<Outgoing>, VecDeque<Outgoing>) =
                    session.outgoing.drain(..).partition(|outgoing| OUTGOING_KEPT.after(outgoing.put_at) <= now);
                session.outgoing = young;
                back.extend(old.into_iter().map(|outgoing| outgoing.assigned));
            }
        }
        self.by_worker.retain(|_, session| session.poll.is_some() || SESSION_KEPT.after(session.seen_at) > now);
        self.drop_groups();
        back
    }

    fn drop_groups(&mut self) {
        self.groups.retain(|_, group| Arc::strong_count(group) > 1);
    }

    /// Whether something outgoing has lain there since then: its leases may have run out, or another
    /// node may have handed it over.
    pub fn has_old_outgoing(&mut self, worker: WorkerId, before: Timestamp) -> bool {
        let Some(session) = self.by_worker.get_mut(&worker) else { return false };
        let old = session.outgoing.iter().any(|outgoing| outgoing.put_at <= before);
        session.compare |= old;
        old
    }

    /// Takes back what a worker has not fetched.
    pub fn take_outgoing(&mut self, worker: WorkerId) -> Vec<Assigned> {
        let outgoing = self.by_worker.get_mut(&worker).map(|session| std::mem::take(&mut session.outgoing));
        outgoing.into_iter().flatten().map(|outgoing| outgoing.assigned).collect()
    }

    /// A worker leaves.
    pub fn remove(&mut self, worker: WorkerId) {
        if let Some(session) = self.by_worker.remove(&worker) {
            session.notify.notify_waiters();
        }
        self.drop_groups();
    }

    /// The node goes: everybody is told, and what was not fetched goes back.
    pub fn drain(&mut self) -> Vec<Assigned> {
        let mut back = Vec::new();
        for session in self.by_worker.values_mut() {
            back.extend(session.outgoing.drain(..).map(|outgoing| outgoing.assigned));
            session.notify.notify_waiters();
        }
        back
    }

    /// The clock was set: who was seen lately was seen now, and everybody compares
    /// their leases.
    pub fn stepped(&mut self, now: Timestamp) {
        for session in self.by_worker.values_mut() {
            session.seen_at = now;
            session.extended_at = session.extended_at.map(|_| Timestamp::MIN);
            session.outgoing.iter_mut().for_each(|outgoing| outgoing.put_at = now);
            session.alone = None;
            session.unlisted_since.clear();
            session.compare = true;
            session.notify.notify_waiters();
        }
    }

    /// Runs were asked to stop: those who may hold one compare their leases. Answers
    /// those that no worker has heard of, which none will.
    pub fn cancel_asked(&mut self, runs: &[RunId]) -> Vec<Assigned> {
        let mut unheard = Vec::new();
        for session in self.by_worker.values_mut() {
            unheard.extend(runs.iter().filter_map(|run| session.take_unheard(*run)));
            if runs
                .iter()
                .any(|run| session.assigned.contains_key(run) || session.held.iter().any(|held| held.run == *run))
            {
                session.compare = true;
                session.notify.notify_waiters();
            }
        }
        unheard
    }

    /// Something changed elsewhere: those who wait and hold something compare
    /// their leases, unless they just did.
    pub fn doubt(&mut self, before: Timestamp, whose: impl Fn(TenantId) -> bool) {
        for session in self.by_worker.values_mut().filter(|session| whose(session.hello.tenant)) {
            let long_ago = session.extended_at.is_none_or(|at| at <= before);
            let holds_any = !session.assigned.is_empty() || session.kept_leases().next().is_some();
            if session.poll.is_some() && holds_any && long_ago {
                session.compare = true;
                session.notify.notify_waiters();
            }
        }
    }

    pub fn heartbeats(&self, node: &str, until: Timestamp, now: Timestamp) -> Vec<WorkerBeat> {
        let lives = |session: &&Session| session.poll.is_some() || SESSION_KEPT.after(session.seen_at) > now;
        let beat = |session: &Session| {
            let Hello { worker, tenant, name, version, offer, slots, draining } = &session.hello;
            let busy = session.assigned.len().max(session.listed) as u32;
            let info = WorkerInfo {
                version: version.clone(),
                node: node.to_owned(),
                built_in: false,
                queues: offer.queues.clone(),
                traits: offer.traits.clone(),
                handlers: offer.handlers.clone(),
                kinds: offer.kinds.clone(),
                slots: *slots,
                busy,
            };
            WorkerBeat {
                worker: *worker,
                tenant: Some(*tenant),
                name: name.clone(),
                info,
                until,
                draining: *draining || session.drain_asked,
            }
        };
        self.by_worker.values().filter(lives).map(beat).collect()
    }

    /// A worker was asked to drain.
    pub fn ask_to_drain(&mut self, worker: WorkerId) {
        if let Some(session) = self.by_worker.get_mut(&worker)
            && !session.drain_asked
        {
            session.drain_asked = true;
            session.notify.notify_waiters();
        }
    }

    /// A report is on its way. True where it is the first of its lease; later
    /// ones hear the same answer.
    pub fn begin_settling(&mut self, lease: Lease, answers: &Arc<PendingAcks>, at: usize) -> bool {
        let waiting = self.settling.entry(lease).or_default();
        waiting.push((Arc::clone(answers), at));
        waiting.len() == 1
    }

    /// What is known of an attempt that its worker reports, and is then known
    /// no more.
    pub fn take_assigned(&mut self, worker: WorkerId, lease: Lease) -> Option<Assigned> {
        let session = self.by_worker.get_mut(&worker)?;
        session.assigned.get(&lease.run).filter(|assigned| assigned.run.lease() == lease)?;
        session.assigned.remove(&lease.run)
    }

    /// A report was not sent on after all, or the store answered for it.
    pub fn acknowledge(&mut self, lease: Lease, ack: ReportAck) {
        for (answers, at) in self.settling.remove(&lease).into_iter().flatten() {
            answers.acknowledge(at, ack);
        }
    }

    pub fn settled(&mut self, answers: impl Iterator<Item = (Lease, Guarded)>) {
        for (lease, answer) in answers {
            match answer {
                Guarded::Applied => self.acknowledge(lease, ReportAck::Applied),
                Guarded::Stale => self.acknowledge(lease, ReportAck::Stale),
                // It is decided again, and answered then.
                Guarded::CancelAsked => {}
            }
        }
    }

    /// Attempts ended otherwise than by their workers' reports: those who have one compare
    /// their leases with their next exchange, and those who wait do at once.
    pub fn ended(&mut self, leases: &[Lease]) {
        for session in self.by_worker.values_mut() {
            let has =
                |lease: &Lease| session.assigned.get(&lease.run).is_some_and(|assigned| assigned.run.lease() == *lease);
            if leases.iter().any(has) {
                session.compare = true;
                session.notify.notify_waiters();
            }
        }
    }

    /// Whether a report of this lease is on its way.
    pub fn is_settling(&self, lease: Lease) -> bool {
        self.settling.contains_key(&lease)
    }
}
