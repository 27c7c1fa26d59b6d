//! Assign: leases runs of claimed lanes to remote workers.
//!
//! A pass claims for all workers that wait, in one write; what each may have is
//! decided by the same shares as for the node's own lanes. A run that its rate
//! does not allow yet is held here, leased to its worker, and handed over when
//! there is a token. What is ready to go lies in the worker's outgoing queue, where
//! its exchange fetches it.
//!
//! It also says who works, every few seconds and for all workers together.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    dispatch::{APART, Pair, Share, WAIT},
    duration::Span,
    ids::{LaneId, WorkerId},
    run::{Hold, Outcome, Run, RunState},
    store::{By, Claim, StoreError, WorkerBeat, WorkerInfo, Write},
};

use super::{PassReport, Stage, is_unknown};
use crate::{
    catalog::JobVersion,
    launch::{Able, LeasedRun, Pipeline},
    node::Node,
    outbox::{End, Ended, Origin},
    remote::{Waiting, hand_back, outgoing},
    supervise::{emit_started, prepare},
};

/// Who works is said so often.
const HEARTBEAT_EVERY: Span = Span::secs(2);
/// It holds for so long.
const HEARTBEAT_KEPT: Span = Span::secs(7);
/// Other nodes' hints make workers compare their leases no more often.
const COMPARE_EVERY: Span = Span::millis(300);
/// Runs held back for their rate; beyond that nothing is claimed.
const HELD_MAX: usize = 4_000;
/// Whether it has is looked at so often.
const ALONE_LOOK: Span = Span::millis(200);
/// A step of a kind that its worker does not execute is put off for so long.
const PUT_OFF: Span = Span::secs(5);

pub struct Assign {
    node: Arc<Node>,
    look_at: Timestamp,
    heartbeat_at: Timestamp,
    pending: Option<(Write, Vec<Claim>)>,
    pipeline: Pipeline<LeasedRun>,
    /// Leased runs that wait until their worker has nothing else in hand.
    suspects: Vec<LeasedRun>,
    doubts: bool,
}

/// What became of a leased run.
enum Sent {
    /// It is in its worker's outgoing queue.
    On,
    /// It waits until its worker has nothing else in hand.
    Waits(Run),
    Ended(Ended),
}

impl Assign {
    pub fn new(node: Arc<Node>) -> Self {
        let (look_at, heartbeat_at) = (Timestamp::MIN, Timestamp::MIN);
        let pipeline = Pipeline::new(Arc::clone(&node));
        Self { node, look_at, heartbeat_at, pending: None, pipeline, suspects: Vec::new(), doubts: false }
    }

    /// Says who works.
    async fn heartbeat(&mut self, now: Timestamp) -> Result<(), StoreError> {
        if now < self.heartbeat_at {
            return Ok(());
        }
        let node = &self.node;
        let until = HEARTBEAT_KEPT.after(now);
        let mut beats = node.remote.sessions().heartbeats(&node.options.name, until, now);
        if node.options.executes {
            beats.push(own_heartbeat(node, until));
        }
        if !beats.is_empty() {
            let asked = node.store.beat_workers(&beats, now).await?;
            let mut sessions = node.remote.sessions();
            for (beat, _) in beats.iter().zip(asked).filter(|(_, asked)| *asked) {
                sessions.ask_to_drain(beat.worker);
            }
        }
        self.heartbeat_at = HEARTBEAT_EVERY.after(now);
        Ok(())
    }

    async fn look(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let node = &self.node;
        node.catalog.read_lanes(|key| node.is_able(key)).await?;
        let gate = node.catalog.gate();
        let lanes: BTreeSet<LaneId> = {
            let sessions = node.remote.sessions();
            sessions.groups().flat_map(|group| group.lanes(&gate).iter().copied().collect::<Vec<_>>()).collect()
        };
        if !lanes.is_empty() {
            let lanes: Vec<LaneId> = lanes.into_iter().collect();
            let pairs = node.store.ready_pairs(&lanes).await?;
            node.remote.plan(|plan| plan.looked(pairs));
        }
        self.look_at = node.options.look_every.after(now);
        Ok(())
    }

    /// One claim for each worker that can have something.
    fn ask(&self, waiting: &[Waiting], now: Timestamp) -> Vec<Claim> {
        let gate = self.node.catalog.gate();
        let until = self.node.options.run_lease.after(now);
        let mut claims = Vec::new();
        let mut rest: Vec<&Waiting> = waiting.iter().collect();
        while let Some(first) = rest.first() {
            let group = Arc::clone(&first.group);
            let (same, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|one| Arc::ptr_eq(&one.group, &group));
            rest = others;
            let lanes = group.lanes(&gate);
            let most = same.iter().map(|one| one.room).sum();
            let open =
                |pair: Pair| pair.tenant == group.tenant && lanes.contains(&pair.lane) && gate.is_running(pair, now);
            let shares =
                self.node.remote.plan(|plan| if plan.is_idle() { Vec::new() } else { plan.shares_of(most, open) });
            claims.extend(dealt(&same, shares, until));
        }
        claims
    }

    async fn claim(&mut self, write: Write, claims: Vec<Claim>) -> Result<Vec<LeasedRun>, StoreError> {
        let runs = match self.node.store.claim(&write, &claims).await {
            Ok(runs) => runs,
            Err(error) => {
                if is_unknown(&error) {
                    self.pending = Some((write, claims));
                }
                return Err(error);
            }
        };
        self.node.stats.claims.add(1);
        let leased = |run| Some(LeasedRun { worker: holder(&run)?, run });
        let held: Vec<LeasedRun> = runs.into_iter().filter_map(leased).collect();
        let mut keys: BTreeMap<(WorkerId, Pair), Vec<_>> = BTreeMap::new();
        for LeasedRun { worker, run } in &held {
            let pair = Pair { lane: run.lane, tenant: run.tenant };
            keys.entry((*worker, pair)).or_default().push(run.order_key());
        }
        self.node.remote.plan(|plan| {
            for (worker, share) in
                claims.iter().flat_map(|claim| claim.shares.iter().map(|share| (claim.worker, share)))
            {
                plan.claimed(share, keys.get(&(worker, share.pair)).map_or(&[], Vec::as_slice));
            }
        });
        Ok(held)
    }

    /// Sends leased runs on their way; answers how many.
    async fn start(&mut self, mut taken: Vec<LeasedRun>, now: Timestamp) -> Result<usize, StoreError> {
        // Whatever is to be alone comes after what was leased with it.
        taken.sort_by_key(|one| one.run.losses);
        let taken = self.pipeline.without_overdue(taken, now);
        if taken.is_empty() {
            return Ok(0);
        }
        let able = self.pipeline.with_versions(taken, now).await?;
        let able = self.pipeline.with_tokens(able, now).await?;
        let (mut done, mut ended) = (0, Vec::new());
        for Able { taken: LeasedRun { worker, run }, job } in able {
            match self.post(worker, run, job, now) {
                Sent::On => done += 1,
                Sent::Waits(run) => self.suspects.push(LeasedRun { worker, run }),
                Sent::Ended(end) => ended.push(end),
            }
        }
        self.node.stats.started.add(done);
        self.node.post(ended);
        Ok(done)
    }

    /// Puts an attempt into its worker's outgoing queue, or says what became of it instead.
    fn post(&self, worker: WorkerId, run: Run, job: Arc<JobVersion>, now: Timestamp) -> Sent {
        let node = &self.node;
        let end = |run: Run, job, end| {
            Sent::Ended(Ended { run, by: By::Lease, end, at: now, job: Some(job), origin: Origin::Decided })
        };
        if run.cancel.is_some() || node.runs.is_asked_to_stop(run.id) {
            return end(run, job, End::Outcome(Outcome::Cancelled));
        }
        let prepared = match prepare(node, &run, &job, now) {
            Ok(prepared) => prepared,
            Err(outcome) => return end(run, job, End::Outcome(outcome)),
        };
        let kind = prepared.attempt.step.name();
        let mut sessions = node.remote.sessions();
        let Some(session) = sessions.get_mut(worker) else { return end(run, job, End::HandedBack) };
        if prepared.attempt.step.handler().is_none() && !session.hello.offer.kinds.iter().any(|known| known == kind) {
            let reason = format!("the worker {} does not execute steps of kind {kind}", session.hello.name);
            let outcome = Outcome::Deferred { until: PUT_OFF.after(now), reason };
            return end(run, job, End::Outcome(outcome));
        }
        let lease = run.lease();
        let alone = run.losses >= node.options.alone_from;
        let another = session.is_reserved(now) && session.alone.is_none_or(|(alone, _)| alone != lease);
        if session.has_alone(now) || alone && another {
            return end(run, job, End::HandedBack);
        }
        if alone {
            // Nothing more is given out beside it.
            session.alone = Some((lease, APART.after(WAIT.after(now))));
            if !session.is_free_for(lease) && !has_waited(&run, now) {
                session.held.insert(lease);
                return Sent::Waits(run);
            }
        }
        emit_started(node, &run, now);
        // One that was held back for a while may have been lost meanwhile.
        let leased_at = run.state.started_at().unwrap_or(now).min(now);
        let mut outgoing = outgoing(run, job, prepared, leased_at);
        outgoing.work.alone = alone;
        session.put(outgoing);
        Sent::On
    }

    /// Goes on with runs that waited to be alone, or have waited long enough for it.
    async fn go_on_alone(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let mut due = Vec::new();
        for one in std::mem::take(&mut self.suspects) {
            let (worker, run, lease) = (one.worker, &one.run, one.run.lease());
            let mut sessions = self.node.remote.sessions();
            match sessions.get_mut(worker) {
                // Its lease was lost meanwhile.
                Some(session) if !session.held.contains(&lease) => {}
                Some(session) if !session.is_free_for(lease) && !has_waited(run, now) => {
                    self.suspects.push(one);
                }
                Some(session) => {
                    session.held.remove(&lease);
                    due.push(one);
                }
                // It goes back.
                None => due.push(one),
            }
        }
        self.start(due, now).await
    }

    /// Goes on with what was held back.
    async fn go_on(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let mut due = self.pipeline.take_due(now);
        if due.is_empty() {
            return Ok(0);
        }
        {
            let mut sessions = self.node.remote.sessions();
            // One that its worker has lost meanwhile is let go of.
            due.retain(|LeasedRun { worker, run }| {
                sessions.get_mut(*worker).is_none_or(|session| session.held.remove(&run.lease()))
            });
        }
        self.start(due, now).await
    }

    /// Claims for those who wait. True where there may be more.
    async fn assign(&mut self, now: Timestamp) -> Result<(usize, bool), StoreError> {
        let waiting =
            if self.pipeline.len() >= HELD_MAX { Vec::new() } else { self.node.remote.sessions().waiting(now) };
        let asked = match self.pending.take() {
            Some((write, claims)) => (write, claims),
            None => (self.node.write(now), self.ask(&waiting, now)),
        };
        let (write, claims) = asked;
        let most: usize = claims.iter().map(|claim| claim.most as usize).sum();
        let (mut done, mut more) = (0, false);
        if most > 0 {
            let taken = self.claim(write, claims).await?;
            more = taken.len() >= most;
            done = self.start(taken, now).await?;
        }
        self.node.remote.sessions().looked(&waiting);
        Ok((done, more))
    }

    /// Gives back what was not handed over.
    fn give_back(&mut self, now: Timestamp) {
        let back = self.node.remote.sessions().drain();
        hand_back(&self.node, back, now);
        let held = self.pipeline.take_all().chain(std::mem::take(&mut self.suspects));
        let back = held.map(|one| Ended::decided(one.run, By::Lease, End::HandedBack, now));
        self.node.post(back.collect());
    }
}

/// Whether a run that is to be alone waits no longer for its worker to have nothing else
/// in hand. One that was leased in the future was leased before the clock was set.
fn has_waited(run: &Run, now: Timestamp) -> bool {
    let since = run.state.started_at().unwrap_or(run.ready_at);
    now < since || WAIT.after(since) <= now
}

fn holder(run: &Run) -> Option<WorkerId> {
    match run.state {
        RunState::Running { hold: Hold::Leased(worker), .. } => Some(worker),
        RunState::Running { .. }
        | RunState::Scheduled
        | RunState::Blocked(_)
        | RunState::Queued
        | RunState::Waiting { .. }
        | RunState::Cancelling { .. }
        | RunState::Finished { .. } => None,
    }
}

/// Deals shares out to workers, one run at a time and in turn, so that few runs
/// go to many workers.
fn dealt(waiting: &[&Waiting], shares: Vec<Share>, until: Timestamp) -> Vec<Claim> {
    let mut rooms: Vec<u32> = waiting.iter().map(|one| one.room).collect();
    let mut parts: Vec<BTreeMap<Pair, Share>> = vec![BTreeMap::new(); waiting.len()];
    let mut turn = 0;
    for share in shares {
        for _ in 0..share.runs {
            let Some(next) = (0..rooms.len()).map(|n| (turn + n) % rooms.len()).find(|n| rooms[*n] > 0) else { break };
            rooms[next] -= 1;
            turn = next + 1;
            parts[next].entry(share.pair).or_insert(Share { runs: 0, ..share }).runs += 1;
        }
    }
    let dealt = waiting.iter().zip(parts).filter(|(_, part)| !part.is_empty());
    dealt
        .map(|(one, part)| {
            let shares: Vec<Share> = part.into_values().collect();
            let most = shares.iter().map(|share| share.runs).sum();
            Claim { worker: one.worker, until, shares, most }
        })
        .collect()
}

/// What a node says of its own worker.
fn own_heartbeat(node: &Node, until: Timestamp) -> WorkerBeat {
    let mut kinds: Vec<String> = node.executors.kinds().filter(|kind| *kind != "handler").map(Into::into).collect();
    kinds.sort();
    let mut handlers: Vec<String> = node.executors.handlers().map(Into::into).collect();
    handlers.sort();
    let info = WorkerInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        node: node.options.name.clone(),
        built_in: true,
        queues: Vec::new(),
        traits: node.options.traits.clone(),
        handlers,
        kinds,
        slots: node.options.slots as u32,
        busy: node.executing.running() as u32,
    };
    let (worker, name, draining) = (node.worker, node.options.name.clone(), node.executing.is_draining());
    WorkerBeat { worker, tenant: None, name, info, until, draining }
}

#[async_trait]
impl Stage for Assign {
    fn name(&self) -> &'static str {
        "assign"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        if self.node.executing.is_draining() {
            self.give_back(now);
            return Ok(PassReport::idle());
        }
        self.heartbeat(now).await?;
        let holds_any = self.pipeline.len() > 0 || !self.suspects.is_empty();
        if !self.node.remote.is_used() && !holds_any && self.pending.is_none() {
            return Ok(PassReport::until(self.heartbeat_at));
        }
        let silent = self.node.remote.sessions().forget_silent(now);
        hand_back(&self.node, silent, now);
        if std::mem::take(&mut self.doubts) {
            self.node.remote.sessions().doubt(COMPARE_EVERY.before(now), |_| true);
        }
        let mut done = self.go_on(now).await?;
        done += self.go_on_alone(now).await?;
        if self.node.remote.sessions().take_new_offers() || now >= self.look_at {
            self.look(now).await?;
        }
        let (assigned, more) = self.assign(now).await?;
        done += assigned;
        let held_at = self.pipeline.next_at();
        let alone_at = (!self.suspects.is_empty()).then(|| ALONE_LOOK.after(now));
        let next_at = [Some(self.look_at), Some(self.heartbeat_at), held_at, alone_at].into_iter().flatten().min();
        Ok(PassReport { done, more, next_at })
    }

    fn doubt(&mut self) {
        self.look_at = Timestamp::MIN;
        self.doubts = true;
    }

    fn stepped(&mut self, now: Timestamp) {
        (self.look_at, self.heartbeat_at) = (Timestamp::MIN, Timestamp::MIN);
        self.pipeline.stepped(now);
    }
}

#[cfg(test)]
mod tests {
    use rota_core::{ids::TenantId, limits::Limits, order::OrderKey};

    use super::*;
    use crate::remote::Remote;

    /// Ten runs for ten workers must not all go to the first.
    #[test]
    fn runs_are_dealt_out_in_turn_within_each_workers_room() {
        let now = Timestamp::UNIX_EPOCH;
        let remote = Remote::default();
        let mut sessions = remote.sessions();
        for (n, free) in [(1, 5), (2, 1), (3, 5)] {
            let hello = crate::remote::Hello {
                worker: WorkerId(uuid::Uuid::from_u64_pair(0, n)),
                tenant: TenantId(1),
                name: String::new(),
                version: String::new(),
                offer: crate::remote::Offer::default(),
                slots: 9,
                draining: false,
            };
            sessions.register(&hello, 0, &Limits::default(), now).unwrap();
            sessions.begin_poll(hello.worker, free);
        }
        let waiting = sessions.waiting(now);
        let waiting: Vec<&Waiting> = waiting.iter().collect();
        let share = |lane, runs| {
            let pair = Pair { lane: LaneId(lane), tenant: TenantId(1) };
            Share { pair, low: OrderKey::MIN, runs }
        };
        let claims = dealt(&waiting, vec![share(1, 3), share(2, 4)], now);
        let dealt: Vec<(u32, Vec<(i32, u32)>)> = claims
            .iter()
            .map(|claim| (claim.most, claim.shares.iter().map(|share| (share.pair.lane.0, share.runs)).collect()))
            .collect();
        assert_eq!(dealt, [(3, vec![(1, 1), (2, 2)]), (1, vec![(1, 1)]), (3, vec![(1, 1), (2, 2)])]);
    }
}
