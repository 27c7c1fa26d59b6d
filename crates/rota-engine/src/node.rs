//! One node: everything that its stages share.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    dispatch::{ClaimPlan, Pair},
    ids::{BatchId, NodeId, Partition, TenantId, WorkerId},
    lane::{LaneKey, LaneMode},
    order::OrderKey,
    ports::{Clock, Hints, Random, Relay, Topic},
    run::{Lease, Run, Status},
    store::{By, EndedRun, Ends, Store, StoreError, Woken, Write},
};
use tokio::sync::Notify;

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

/// What a node is made of, handed in by whoever puts it together.
pub struct Parts {
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
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub system_clock: Option<Arc<SystemClock>>,
    pub random: Arc<dyn Random>,
    pub renderer: Renderer,
    pub hints: Arc<dyn Hints>,
    pub relay: Option<Arc<dyn Relay>>,
    pub executors: Executors,
    pub options: Options,
    pub catalog: Catalog,
    pub territory: Territory,
    pub stats: Stats,
    pub events: Events,
    pub(crate) runs: LocalRuns,
    pub(crate) outbox: Outbox,
    pub executing: Executing,
    pub(crate) reports: Arc<Gathered>,
    pub(crate) claims: Mutex<ClaimPlan>,
    /// What is in hand of the tenants' quotas.
    pub(crate) meter: Meter,
    /// The workers that speak to this node.
    pub remote: Remote,
    pub(crate) wake: WakeUps,
    outage: Outage,
    /// When the next delayed run is ready, as far as is known here.
    delayed_at: AtomicI64,
    /// Some job starts after another, as far as is known here.
    chained: AtomicBool,
    /// When this node last extended its own leases, or had none.
    extended_at: AtomicI64,
    /// Until when nobody needs to extend them, by the uptime, in microseconds.
    extended_until: AtomicU64,
    /// Until when the store has them at least, by the uptime, in microseconds: as long as
    /// was asked for by the last write that leased or extended.
    leases_until: AtomicU64,
    /// Somebody asked a run to stop: leases are to be compared at once.
    pub(crate) cancel_asked: AtomicBool,
    /// Nobody is presumed dead before then, by the uptime, in microseconds.
    judges_from: AtomicU64,
}

/// Who is told inside the process; as little a truth as a hint.
#[derive(Debug, Default)]
pub struct WakeUps {
    /// Runs are ready, or there is room for more.
    pub dispatch: Notify,
    pub claim: Notify,
    /// The same for remote workers: one of them waits.
    pub assign: Notify,
    pub promote: Notify,
    pub look: Notify,
    /// An attempt marked `exclusive` is under way.
    pub withdraw: Notify,
    /// The node's partitions changed.
    pub fire: Notify,
    pub lead: Notify,
    pub heartbeat: Notify,
    /// Attempts have ended.
    pub settle: Notify,
    /// Pauses were changed, or partitions: schedules may have to be woken.
    pub scan: Notify,
}

/// Whether the store was away, and how long to be careful after its return.
#[derive(Debug)]
struct Outage {
    away: AtomicBool,
    quiet_until: AtomicI64,
    /// When the store was last known to do what it is asked.
    there_at: AtomicI64,
}

impl Node {
    pub fn new(parts: Parts) -> Self {
        let Parts { store, clock, system_clock, random, hints, relay, executors, options } = parts;
        let now = clock.now();
        Self {
            id: NodeId::new(random.as_ref(), now),
            worker: WorkerId::new(random.as_ref(), now),
            catalog: Catalog::new(Arc::clone(&store), &options),
            territory: Territory::default(),
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
            outage: Outage {
                away: AtomicBool::new(false),
                quiet_until: AtomicI64::new(i64::MIN),
                there_at: AtomicI64::new(i64::MIN),
            },
            delayed_at: AtomicI64::new(i64::MAX),
            chained: AtomicBool::new(false),
            extended_at: AtomicI64::new(now.as_microsecond()),
            extended_until: AtomicU64::new(u64::MAX),
            leases_until: AtomicU64::new(0),
            cancel_asked: AtomicBool::new(false),
            judges_from: AtomicU64::new(0),
            store,
            clock,
            system_clock,
            random,
            hints,
            relay,
            renderer: Renderer::new(),
            executors,
            options,
        }
    }

    /// A new write of this node.
    pub fn write(&self, now: Timestamp) -> Write {
        Write {
            batch: BatchId::new(self.random.as_ref(), now),
            now,
            node: Some(self.id),
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
            for wake_up in [&self.wake.dispatch, &self.wake.claim, &self.wake.assign, &self.wake.scan] {
                wake_up.notify_one();
            }
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
        self.cancel_asked.store(true, Ordering::Relaxed);
        self.wake.heartbeat.notify_one();
        if self.remote.is_used() {
            // Whoever compared before the write was done has not seen it.
            self.remote.sessions().doubt(self.clock.now(), |tenant| tenants.contains(&tenant));
        }
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

    /// Whether any job starts after another.
    pub(crate) fn chained(&self, chained: bool) {
        self.chained.store(chained, Ordering::Relaxed);
    }

    /// Runs ended: jobs that wait for them may be due.
    pub(crate) fn ends_came(&self) {
        if self.chained.load(Ordering::Relaxed) {
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
    pub(crate) fn woken(&self, woken: Vec<Woken>) {
        let (handed, others): (Vec<Woken>, Vec<Woken>) = woken.into_iter().partition(|woken| woken.handed);
        self.ready(handed.into_iter().map(|woken| woken.run));
        self.ready_elsewhere(others.iter().map(|woken| &woken.run));
    }

    /// Runs that were handed to this node.
    pub(crate) fn ready(&self, runs: impl Iterator<Item = Run>) {
        let offered = self.runs.offer(runs.map(|run| ReadyRun { run, suspect: false }));
        if offered > 0 {
            self.wake.dispatch.notify_one();
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
        let at = ready_at.as_microsecond();
        if at < self.delayed_at.fetch_min(at, Ordering::Relaxed) {
            self.wake.promote.notify_one();
        }
    }

    /// When the next delayed run is ready, as far as this node was told; asked
    /// by the one who is about to look, and forgotten with it.
    pub(crate) fn take_delayed(&self) -> Option<Timestamp> {
        let at = self.delayed_at.swap(i64::MAX, Ordering::Relaxed);
        (at != i64::MAX).then(|| Timestamp::from_microsecond(at).unwrap_or(Timestamp::MAX))
    }

    pub(crate) fn peek_delayed(&self) -> Option<Timestamp> {
        let at = self.delayed_at.load(Ordering::Relaxed);
        (at != i64::MAX).then(|| Timestamp::from_microsecond(at).unwrap_or(Timestamp::MAX))
    }

    /// The store did not answer.
    pub(crate) fn store_went_away(&self) {
        self.outage.away.store(true, Ordering::Relaxed);
    }

    /// The store answered.
    pub(crate) fn store_is_there(&self, now: Timestamp) {
        self.outage.there_at.store(now.as_microsecond(), Ordering::Relaxed);
        if self.outage.away.swap(false, Ordering::Relaxed) {
            self.be_quiet(now);
        }
    }

    /// This node has just come, or stood still for longer than others wait for it. Whoever
    /// spoke to it had nobody to extend their leases, and gets a lease time to do so.
    pub(crate) fn was_away(&self) {
        self.judges_from.store(self.lease_from(self.clock.uptime()), Ordering::Relaxed);
    }

    /// Whether it has been there for long enough to presume others dead.
    pub(crate) fn may_judge(&self) -> bool {
        let uptime = self.clock.uptime();
        // Until it has spoken to the store again it does not know that it was away.
        Duration::from_micros(self.judges_from.load(Ordering::Relaxed)) <= uptime && self.territory.word_holds(uptime)
    }

    fn be_quiet(&self, now: Timestamp) {
        let quiet = self.options.node_lease.max(self.options.run_lease).after(now);
        self.outage.quiet_until.store(quiet.as_microsecond(), Ordering::Relaxed);
    }

    /// Whether the store did not answer when it was last asked.
    pub fn is_store_away(&self) -> bool {
        self.outage.away.load(Ordering::Relaxed)
    }

    /// Whether the store is away, or was until less than a lease time ago, or the
    /// clock was set then: then others could not renew their leases either, and nobody is presumed dead.
    pub fn is_quiet(&self, now: Timestamp) -> bool {
        self.outage.away.load(Ordering::Relaxed)
            || now.as_microsecond() < self.outage.quiet_until.load(Ordering::Relaxed)
    }

    /// Whether the store is known to have answered somebody after `at`.
    pub(crate) fn store_was_there_after(&self, at: Timestamp) -> bool {
        at.as_microsecond() < self.outage.there_at.load(Ordering::Relaxed)
    }

    /// This node's own leases are extended, or there are none: asked for at `now`, and
    /// so long after the moment that uptime counts from.
    pub(crate) fn extended(&self, now: Timestamp, began: Duration) {
        self.extended_until.store(self.lease_from(began), Ordering::Relaxed);
        self.extended_at.store(now.as_microsecond(), Ordering::Relaxed);
    }

    /// The store has leases of this node's worker, which were first asked for when the
    /// uptime was `began`. To be called before anything is done by their right: an answer
    /// may come after they have run out.
    pub(crate) fn leased(&self, began: Duration) {
        self.leases_until.fetch_max(self.lease_from(began), Ordering::Relaxed);
    }

    fn lease_from(&self, began: Duration) -> u64 {
        let until = began + Duration::from_millis(self.options.run_lease.as_millis());
        u64::try_from(until.as_micros()).unwrap_or(u64::MAX)
    }

    /// Whether it was so long ago that this node extended its leases that it must do so
    /// before it takes more.
    pub(crate) fn is_extension_late(&self) -> bool {
        let until = Duration::from_micros(self.extended_until.load(Ordering::Relaxed));
        until.saturating_sub(self.withdraw_margin()) < self.clock.uptime()
    }

    /// Whether this node stood still for so long that its own leases may have
    /// run out, and is back to tell.
    pub(crate) fn must_extend_first(&self, now: Timestamp) -> bool {
        let at = Timestamp::from_microsecond(self.extended_at.load(Ordering::Relaxed)).unwrap_or(Timestamp::MIN);
        now >= self.options.run_lease.after(at) && !self.runs.leases().is_empty()
    }

    /// Until when this node may count on a right to a run, by the uptime.
    pub(crate) fn holds_until(&self, by: By) -> Duration {
        match by {
            By::Owner(_) => self.owns_until(),
            By::Lease => self.leases_until(),
        }
    }

    /// Until when it may count on what it owns: a little less than its lease holds.
    pub(crate) fn owns_until(&self) -> Duration {
        self.territory.word_until().saturating_sub(self.withdraw_margin())
    }

    /// Until when it may count on what it leased.
    fn leases_until(&self) -> Duration {
        Duration::from_micros(self.leases_until.load(Ordering::Relaxed)).saturating_sub(self.withdraw_margin())
    }

    fn withdraw_margin(&self) -> Duration {
        Duration::from_millis(self.options.withdraw_margin.as_millis())
    }

    /// The clock was set. What everybody promised until some instant by the old one
    /// is promised anew by the new one, and nobody is presumed dead meanwhile.
    pub(crate) fn stepped(&self, now: Timestamp) {
        self.be_quiet(now);
        // By a clock that was ahead it would have been there after whatever comes.
        self.outage.there_at.store(i64::MIN, Ordering::Relaxed);
        self.meter.stepped();
        self.catalog.stepped();
        self.executing.stepped();
        self.remote.sessions().stepped(now);
    }
}
