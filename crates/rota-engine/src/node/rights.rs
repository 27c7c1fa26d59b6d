//! Until when this node may count on what it owns and has leased, and when it may take
//! others for dead.
//!
//! The store decides who has a right to what. Here is only counted how long a right that
//! was renewed last holds at least, so that nothing is begun after it, and exclusive
//! attempts are stopped before. Rights are counted by the uptime: a clock that is set does
//! not change them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use rota_core::{duration::Span, ports::Clock, store::By};

use crate::options::Options;

/// See the module. Uptimes are kept in microseconds.
pub struct Rights {
    clock: Arc<dyn Clock>,
    node_lease: Span,
    run_lease: Span,
    /// So long before its end a right is not counted on any more.
    margin: Duration,
    /// Until when the node's own lease holds.
    node_lease_until: AtomicU64,
    /// Until when the store has this node's leases of runs at least: as long as was asked for
    /// by the last write that leased or extended.
    leases_until: AtomicU64,
    /// Until when nobody needs to extend them.
    extended_until: AtomicU64,
    /// When this node last extended them, or had none.
    extended_at: AtomicI64,
    /// Until when the clock by which this node renews its rights is as it was measured last;
    /// for ever where nothing is measured.
    measured_until: AtomicU64,
    /// Nobody is presumed dead before this uptime.
    judges_from: AtomicU64,
    outage: Outage,
}

/// Whether the store was away, and how long to be careful after its return.
struct Outage {
    away: AtomicBool,
    quiet_until: AtomicI64,
    /// When the store was last known to do what it is asked.
    there_at: AtomicI64,
}

impl Rights {
    pub(crate) fn new(clock: Arc<dyn Clock>, options: &Options) -> Self {
        Self {
            node_lease: options.node_lease,
            run_lease: options.run_lease,
            margin: duration(options.withdraw_margin),
            node_lease_until: AtomicU64::new(0),
            leases_until: AtomicU64::new(0),
            extended_until: AtomicU64::new(u64::MAX),
            extended_at: AtomicI64::new(clock.now().as_microsecond()),
            measured_until: AtomicU64::new(u64::MAX),
            judges_from: AtomicU64::new(0),
            outage: Outage {
                away: AtomicBool::new(false),
                quiet_until: AtomicI64::new(i64::MIN),
                there_at: AtomicI64::new(i64::MIN),
            },
            clock,
        }
    }

    /// Whether the node's lease holds.
    pub fn node_lease_holds(&self) -> bool {
        self.clock.uptime() <= uptime(&self.node_lease_until)
    }

    /// The node's lease was renewed by a heartbeat that began at this uptime.
    pub(crate) fn node_lease_renewed(&self, began: Duration) {
        self.node_lease_until.store(micros(began + duration(self.node_lease)), Ordering::Relaxed);
    }

    /// This node's leases of runs are extended, or there are none: asked for at `now`, when
    /// the uptime was `began`.
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
        micros(began + duration(self.run_lease))
    }

    /// Whether it was so long ago that this node extended its leases that it must do so
    /// before it takes more.
    pub(crate) fn is_extension_late(&self) -> bool {
        uptime(&self.extended_until).saturating_sub(self.margin) < self.clock.uptime()
    }

    /// Whether this node stood still for so long that its own leases may have run out.
    pub(crate) fn may_have_run_out(&self, now: Timestamp) -> bool {
        let at = Timestamp::from_microsecond(self.extended_at.load(Ordering::Relaxed)).unwrap_or(Timestamp::MIN);
        now >= self.run_lease.after(at)
    }

    /// The clock was measured: asked for when the uptime was `began`.
    pub(crate) fn measured(&self, began: Duration) {
        self.measured_until.store(self.lease_from(began), Ordering::Relaxed);
    }

    /// Until when this node may count on nobody else's having a run, by the uptime. A right
    /// that is renewed by a clock that has been set since is none to a node that starts.
    pub(crate) fn hold_until(&self, by: By) -> Duration {
        let held_until = match by {
            By::Owner(_) => self.owns_until(),
            By::Lease => uptime(&self.leases_until).saturating_sub(self.margin),
        };
        held_until.min(uptime(&self.measured_until).saturating_sub(self.margin))
    }

    /// Until when it may count on what it owns: a little less than its lease holds.
    pub(crate) fn owns_until(&self) -> Duration {
        uptime(&self.node_lease_until).saturating_sub(self.margin)
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

    /// Whether the store did not answer when it was last asked.
    pub fn is_store_away(&self) -> bool {
        self.outage.away.load(Ordering::Relaxed)
    }

    /// Whether the store is known to have answered somebody after `at`.
    pub(crate) fn store_was_there_after(&self, at: Timestamp) -> bool {
        at.as_microsecond() < self.outage.there_at.load(Ordering::Relaxed)
    }

    /// Whether the store is away, or was until less than a lease time ago, or the
    /// clock was set then: then others could not renew their leases either, and nobody is
    /// presumed dead.
    pub fn is_quiet(&self, now: Timestamp) -> bool {
        self.is_store_away() || now.as_microsecond() < self.outage.quiet_until.load(Ordering::Relaxed)
    }

    fn be_quiet(&self, now: Timestamp) {
        let quiet = self.node_lease.max(self.run_lease).after(now);
        self.outage.quiet_until.store(quiet.as_microsecond(), Ordering::Relaxed);
    }

    /// This node has just come, or stood still for longer than others wait for it. Whoever
    /// spoke to it had nobody to extend their leases, and gets a lease time to do so.
    pub(crate) fn was_away(&self) {
        self.judges_from.store(self.lease_from(self.clock.uptime()), Ordering::Relaxed);
    }

    /// Whether it has been there for long enough to presume others dead.
    pub(crate) fn may_judge(&self) -> bool {
        // Until it has spoken to the store again it does not know that it was away.
        uptime(&self.judges_from) <= self.clock.uptime() && self.node_lease_holds()
    }

    /// The clock was set. What everybody promised until some instant by the old one
    /// is promised anew by the new one, and nobody is presumed dead meanwhile.
    pub(crate) fn stepped(&self, now: Timestamp) {
        self.be_quiet(now);
        // By a clock that was ahead it would have been there after whatever comes.
        self.outage.there_at.store(i64::MIN, Ordering::Relaxed);
    }
}

fn duration(span: Span) -> Duration {
    Duration::from_millis(span.as_millis())
}

fn micros(uptime: Duration) -> u64 {
    u64::try_from(uptime.as_micros()).unwrap_or(u64::MAX)
}

fn uptime(micros: &AtomicU64) -> Duration {
    Duration::from_micros(micros.load(Ordering::Relaxed))
}
