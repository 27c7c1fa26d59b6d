//! One node: everything that its stages share.

mod rights;
mod wake;

use std::{collections::HashSet, sync::Arc};

use futures_util::FutureExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    dispatch::{ClaimPlan, Pair},
    ids::{BatchId, NodeId, Partition, TenantId, WorkerId},
    lane::{LaneKey, LaneMode},
    limits::Limits,
    order::OrderKey,
    ports::{Clock, Hints, Random, Relay, Topic},
    run::{Lease, Run, Status},
    store::{EndedRun, Ends, Store, StoreError, Woken, Write},
};

pub(crate) use self::wake::WorkHints;
pub use self::{rights::Rights, wake::WakeUps};
use crate::{
    catalog::Catalog,
    clock::SystemClock,
    events::{Event, Events},
    executing::Executing,
    executors::{Executors, render::Renderer},
    options::Options,
    outbox::Outbox,
    quota::Meter,
    remote::Remote,
    reports::Gathered,
    runs::{LocalRuns, ReadyRun, pair_of},
    stats::Stats,
    territory::Territory,
};

/// What a node is handed by whoever puts it together.
pub struct Ports {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    /// The same clock, where it can follow the store's.
    pub system_clock: Option<Arc<SystemClock>>,
    pub random: Arc<dyn Random>,
    pub hints: Arc<dyn Hints>,
    /// To other nodes, where there may be any.
    pub relay: Option<Arc<dyn Relay>>,
    pub executors: Executors,
    pub options: Options,
}

/// See the module.
pub struct Node {
    pub id: NodeId,
    /// Under which this node's own attempts are leased in writing.
    pub worker: WorkerId,
    ports: Ports,
    pub renderer: Renderer,
    pub catalog: Catalog,
    pub territory: Territory,
    pub rights: Rights,
    /// Ready runs, and those in flight.
    pub(crate) runs: LocalRuns,
    pub executing: Executing,
    pub(crate) reports: Arc<Gathered>,
    pub(crate) outbox: Outbox,
    pub(crate) claims: Mutex<ClaimPlan>,
    /// What is in hand of the tenants' quotas.
    pub(crate) meter: Meter,
    /// The workers that speak to this node.
    pub remote: Remote,
    pub(crate) wake: WakeUps,
    pub(crate) coming: WorkHints,
    pub stats: Stats,
    pub events: Events,
}

/// `node.store`, `node.clock`: what it was handed is asked for in every other line.
impl std::ops::Deref for Node {
    type Target = Ports;

    fn deref(&self) -> &Ports {
        &self.ports
    }
}

impl Node {
    pub fn new(ports: Ports) -> Self {
        let Ports { store, clock, random, options, .. } = &ports;
        let now = clock.now();
        Self {
            id: NodeId::new(random.as_ref(), now),
            worker: WorkerId::new(random.as_ref(), now),
            catalog: Catalog::new(Arc::clone(store), options),
            territory: Territory::default(),
            rights: Rights::new(Arc::clone(clock), options),
            stats: Stats::default(),
            events: Events::new(options.events_max),
            runs: LocalRuns::new(options.backlog_max),
            outbox: Outbox::default(),
            executing: Executing::default(),
            reports: Arc::new(Gathered::new(options.log_bytes_max)),
            claims: Mutex::default(),
            meter: Meter::default(),
            remote: Remote::default(),
            wake: WakeUps::default(),
            coming: WorkHints::default(),
            renderer: Renderer::new(),
            ports,
        }
    }

    /// The limits that hold for a tenant.
    pub fn limits_of(&self, tenant: TenantId) -> Limits {
        let limits = self.options.limits;
        self.catalog.quotas(tenant).map_or(limits, |quotas| quotas.limits(limits))
    }

    /// A new write of this node.
    pub fn write(&self, now: Timestamp) -> Write {
        Write {
            batch: BatchId::new(self.random.as_ref(), now),
            now,
            node: Some(self.id),
            generation: self.territory.generation(),
            request: None,
            ends: Ends::default(),
            dry_run: false,
        }
    }

    /// Counts and times a write of many items, for those who watch the store.
    pub(crate) async fn timed<T>(
        &self,
        items: usize,
        write: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let began = self.clock.now();
        let answer = write.await;
        self.stats.store_batches.add(1);
        self.stats.store_items.add(items);
        self.stats.store_latency.add(began.duration_until(self.clock.now()));
        answer
    }

    pub(crate) fn claims<T>(&self, work: impl FnOnce(&mut ClaimPlan) -> T) -> T {
        work(&mut self.claims.lock())
    }

    /// Whether this node can execute the runs of a lane.
    pub fn is_able(&self, key: &LaneKey) -> bool {
        let handler = key.handler.as_deref().is_none_or(|name| self.executors.has_handler(name));
        self.options.executes && handler && key.requires.iter().all(|wanted| self.options.traits.contains(wanted))
    }

    /// The mode of a lane that is yet to be made: owned where every node can
    /// execute it.
    pub fn lane_mode(&self, key: &LaneKey) -> LaneMode {
        let everywhere = match &key.handler {
            None => true,
            Some(name) => self.options.handlers_everywhere && self.executors.has_handler(name),
        };
        if everywhere && key.requires.is_empty() { LaneMode::Owned } else { LaneMode::Claimed }
    }

    /// The partition for new runs: this node's own while it has room, so that
    /// they are handed over in memory; else any, so that others help.
    pub fn partition_for_new(&self) -> Partition {
        let room = self.runs.len() < self.options.backlog_max / 2;
        let own = if room && self.options.executes { self.territory.pick() } else { None };
        own.unwrap_or_else(|| Partition((self.random.bits() & 0xff) as u8))
    }

    /// Reads the pauses of tenants and queues. Whoever they concern is called where
    /// they changed.
    pub(crate) async fn read_pauses(&self) -> Result<bool, StoreError> {
        let changed = self.catalog.read_pauses().await?;
        if changed {
            self.runs.reopen();
            self.wake.starters();
            self.wake.scan.notify_one();
        }
        Ok(changed)
    }

    /// A write of this node asked runs to stop that others execute, or this node does: whoever
    /// waits here with some in hand compares leases at once, and so does the node.
    ///
    /// Only workers of these tenants: nobody makes the others ask the store.
    pub(crate) fn asked_to_stop(&self, tenants: &HashSet<TenantId>) {
        if tenants.is_empty() {
            return;
        }
        self.compare_leases();
        if self.remote.is_used() {
            // Whoever compared before the write was done has not seen it.
            self.remote.sessions().doubt(self.clock.now(), |tenant| tenants.contains(&tenant));
        }
    }

    /// Somebody asked a run to stop: the next extension tells, and it is due at once.
    pub(crate) fn compare_leases(&self) {
        self.coming.ask_to_cancel();
        self.wake.heartbeat.notify_one();
    }

    /// Whether somebody in the process called for a scan since this was last asked: for
    /// those who turn stages by hand.
    pub fn take_call_to_scan(&self) -> bool {
        self.wake.scan.notified().now_or_never().is_some()
    }

    /// Tells and counts a run's end: the one place that does, whatever ended it.
    pub(crate) fn ended(&self, ended: &EndedRun) {
        self.stats.count_end(ended.verdict);
        let EndedRun { id: run, job, tenant, verdict, at, follower } = *ended;
        self.events.emit(|| Event::RunEnded { run, job, tenant, verdict, at });
        if let Some((run, ready_at)) = follower {
            self.delayed(ready_at);
            self.events.emit(|| Event::RunMade { run, job, tenant, status: Status::Scheduled });
        }
    }

    /// The same for the runs that ended by a write besides those it settled.
    pub(crate) fn ended_by(&self, write: &Write) {
        let ends = write.ends.take();
        for ended in &ends {
            self.ended(ended);
        }
        if !ends.is_empty() {
            self.ends_came();
        }
    }

    /// Runs ended: jobs that wait for them may be due.
    pub(crate) fn ends_came(&self) {
        if self.coming.is_chained() {
            self.hints.wake(Topic::Ends);
        }
    }

    /// Attempts that ended, or runs whose end is decided: to be settled.
    pub(crate) fn post(&self, ended: Vec<crate::outbox::Ended>) {
        if !ended.is_empty() {
            self.outbox.push(ended);
            self.wake.settle.notify_one();
        }
    }

    /// It is known by what right ended attempts are settled that were put aside for it.
    pub(crate) fn resume_settling(&self) {
        self.outbox.resume();
        self.wake.settle.notify_one();
    }

    /// Takes in runs that a write of this node made ready.
    pub(crate) fn woken(&self, write: &Write, woken: Vec<Woken>) {
        let (handed, others): (Vec<Woken>, Vec<Woken>) = woken.into_iter().partition(|woken| woken.handed);
        self.ready(write, handed.into_iter().map(|woken| woken.run));
        self.ready_elsewhere(others.iter().map(|woken| &woken.run));
    }

    /// Runs that were handed to this node by a write.
    pub(crate) fn ready(&self, write: &Write, runs: impl Iterator<Item = Run>) {
        let ready = runs.map(|run| ReadyRun { run, suspect: false });
        if self.runs.offer(ready, write.generation, &self.territory) > 0 {
            self.wake.dispatch.notify_one();
        }
        if self.runs.is_low() {
            self.wake.look.notify_one();
        }
    }

    /// Lets go of runs that were settled.
    pub(crate) fn settled(&self, leases: impl IntoIterator<Item = Lease>) {
        if self.runs.settled(leases) {
            self.wake.dispatch.notify_one();
        }
    }

    /// Lets go of runs that were not settled.
    pub(crate) fn drop_in_flight(&self, leases: impl IntoIterator<Item = Lease>) {
        if self.runs.drop_in_flight(leases) {
            self.wake.dispatch.notify_one();
        }
    }

    /// Whether a written lease for an attempt under way was asked for and not answered. For
    /// tests that watch by what right attempts go on.
    #[cfg(feature = "planted")]
    pub fn is_handover_pending(&self, lease: Lease) -> bool {
        self.runs.handover(lease) == crate::runs::Handover::Asked
    }

    /// Runs that are ready for others, or to be claimed.
    pub(crate) fn ready_elsewhere<'r>(&self, runs: impl Iterator<Item = &'r Run>) {
        let gate = self.catalog.gate();
        let mut any = false;
        let claimed: Vec<(Pair, OrderKey)> = runs
            .inspect(|_| any = true)
            .filter(|run| gate.mode(run.lane) == Some(LaneMode::Claimed))
            .map(|run| (pair_of(run), run.order_key()))
            .collect();
        if !claimed.is_empty() {
            self.claims(|claims| claimed.iter().for_each(|(pair, key)| claims.note(*pair, *key)));
            self.wake.claim.notify_one();
            if self.remote.is_used() {
                self.remote.plan(|plan| claimed.iter().for_each(|(pair, key)| plan.note(*pair, *key)));
                self.wake.assign.notify_one();
            }
        }
        if any {
            self.hints.wake(Topic::Ready);
        }
    }

    /// A run will be ready later.
    pub(crate) fn delayed(&self, ready_at: Timestamp) {
        if self.coming.delay(ready_at) {
            self.wake.promote.notify_one();
        }
    }

    /// The clock was set: what was noted by the old one is noted anew.
    pub(crate) fn stepped(&self, now: Timestamp) {
        self.rights.stepped(now);
        self.meter.stepped();
        self.catalog.stepped();
        self.executing.stepped();
        self.remote.sessions().stepped(now);
    }
}
