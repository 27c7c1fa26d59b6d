//! Remote workers: what this node remembers of those that speak to it.
//!
//! A worker speaks in exchanges ([`exchange`]), to any node, and to another one
//! the next time. What is remembered here is a hint: who waits for work, what
//! it was given, which of its reports are on their way to be settled. The truth
//! is in the store's leases; a node that has forgotten everything reads it
//! there and goes on.
//!
//! All workers of a node share one [`ClaimPlan`], so that order, fairness and
//! pauses are decided as for the node's own lanes; the `assign` stage claims for
//! all that wait in one write.

mod exchange;
mod output;
mod sessions;
mod wait;

use std::{
    collections::HashSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use rota_core::{
    dispatch::ClaimPlan,
    duration::Span,
    ids::{TenantId, WorkerId},
    lane::{LaneKey, Offered},
    limits::LimitReached,
    ports::{Attempt, Progress, Stream},
    run::{Labels, Lease, Report, Trigger},
};

pub use self::{exchange::exchange, sessions::ReportAck};
pub(crate) use self::{
    exchange::{cancel_unheard, hand_back, outgoing},
    sessions::{Sessions, Waiting},
};

/// Most attempts of one answer.
pub const ATTEMPTS_MAX: u32 = 1_000;
/// Bytes of payloads and steps in one answer after which no more is put in.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// What a worker can execute. Each list is sorted and without repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Empty for all.
    pub queues: Vec<String>,
    pub traits: Vec<String>,
    pub handlers: Vec<String>,
    /// Built-in kinds of steps.
    pub kinds: Vec<String>,
}

impl Offer {
    /// Whether the runs of a lane may be for this worker.
    pub fn takes(&self, key: &LaneKey) -> bool {
        let Self { queues, traits, handlers, kinds } = self;
        Offered { queues, traits, handlers, built_in: !kinds.is_empty() }.takes(key)
    }
}

/// Who a worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub worker: WorkerId,
    /// Whose runs it may have.
    pub tenant: TenantId,
    pub name: String,
    pub version: String,
    pub offer: Offer,
    /// Attempts it may have under way.
    pub slots: u32,
    /// It takes no more work.
    pub draining: bool,
}

/// A line that an attempt wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub at: Timestamp,
    pub stream: Stream,
    pub text: String,
}

/// Log lines of one attempt. `seq` rises, so that a piece that is sent again is
/// kept once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPiece {
    pub lease: Lease,
    pub seq: u32,
    pub lines: Vec<Line>,
}

/// What a worker says.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub hello: Hello,
    /// How many attempts it would take now.
    pub free: u32,
    /// How long it would wait for them.
    pub wait: Option<Span>,
    /// All it holds, but for what it reports.
    pub leases: Vec<Lease>,
    pub finished: Vec<(Lease, Report)>,
    pub progress: Vec<(Lease, Progress)>,
    pub logs: Vec<LogPiece>,
    /// It speaks no more after this.
    pub leaving: bool,
}

impl Exchange {
    /// Whether it brings news of attempts.
    fn says_something(&self) -> bool {
        !(self.finished.is_empty() && self.progress.is_empty() && self.logs.is_empty())
    }

    /// What the worker has or had in hand: another node handed it over.
    fn known_leases(&self) -> HashSet<Lease> {
        self.leases.iter().copied().chain(self.finished.iter().map(|(lease, _)| *lease)).collect()
    }
}

/// An attempt to be executed.
#[derive(Clone, Debug)]
pub struct Work {
    pub attempt: Attempt,
    pub job_name: String,
    pub step_id: String,
    pub labels: Labels,
    pub trigger: Trigger,
    /// How long it may take.
    pub timeout: Option<Span>,
    pub cancelable: bool,
    /// It may have killed workers: nothing is to be executed beside it.
    pub alone: bool,
}

/// A run was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    pub lease: Lease,
    pub grace_until: Timestamp,
}

/// What a worker is told.
#[derive(Clone, Debug, Default)]
pub struct ExchangeAnswer {
    pub attempts: Vec<Work>,
    /// One for each report.
    pub reports: Vec<ReportAck>,
    pub stops: Vec<Stop>,
    /// Not its own any more: nothing it does for them counts.
    pub lost: Vec<Lease>,
    /// It was asked to take no more work, to finish and to leave.
    pub drain: bool,
    /// This node goes: another one has work.
    pub elsewhere: bool,
}

/// Why a node does not deal with a worker.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("the store did not do it")]
    Store(#[from] rota_core::store::StoreError),
    #[error("the worker's id is another tenant's")]
    Foreign,
    #[error(transparent)]
    LimitReached(#[from] LimitReached),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Remote {
    sessions: Mutex<Sessions>,
    plan: Mutex<ClaimPlan>,
    /// Workers that speak to this node.
    count: AtomicUsize,
    /// Reports that the store has not answered for.
    settling: AtomicUsize,
}

impl Remote {
    pub(crate) fn sessions(&self) -> SessionsGuard<'_> {
        SessionsGuard { remote: self, sessions: self.sessions.lock() }
    }

    pub(crate) fn plan<T>(&self, work: impl FnOnce(&mut ClaimPlan) -> T) -> T {
        work(&mut self.plan.lock())
    }

    /// Whether any worker speaks to this node.
    pub fn is_used(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Workers that speak to this node.
    pub fn workers(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether nothing is on its way from or to a worker, and none is kept for a run that
    /// is to be alone: for tests and the simulator.
    pub fn is_at_rest(&self, now: Timestamp) -> bool {
        self.sessions().is_at_rest(now)
    }

    /// Whether reports wait for the store's answer.
    pub(crate) fn is_settling(&self) -> bool {
        self.settling.load(Ordering::Relaxed) > 0
    }
}

/// The sessions under their lock; their numbers are put right when it is let
/// go of.
pub(crate) struct SessionsGuard<'r> {
    remote: &'r Remote,
    sessions: MutexGuard<'r, Sessions>,
}

impl std::ops::Deref for SessionsGuard<'_> {
    type Target = Sessions;

    fn deref(&self) -> &Sessions {
        &self.sessions
    }
}

impl std::ops::DerefMut for SessionsGuard<'_> {
    fn deref_mut(&mut self) -> &mut Sessions {
        &mut self.sessions
    }
}

impl Drop for SessionsGuard<'_> {
    fn drop(&mut self) {
        self.remote.count.store(self.sessions.len(), Ordering::Relaxed);
        self.remote.settling.store(self.sessions.settling(), Ordering::Relaxed);
    }
}
