//! Runs: where each stands, and every way it may go from there.
//!
//! A [`Run`] is the row as read. Each transition is a named function that takes
//! the run, what happened and `now`, and answers with a [`Change`] or a
//! [`Refusal`]; the store applies changes under their guard. A run that ended
//! has left the live table, and nothing here brings it back: one verdict, for
//! ever.
//!
//! Nothing here knows SQL, leases in other tables, or which worker is free.

mod bounds;
mod cancel;
mod effects;
mod redrive;
mod report;
mod settle;
mod ties;
mod trail;
mod walk;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::{
    bounds::{AFTER_MAX, METADATA_BYTES_MAX, WAITS_MAX, out_of_bounds},
    cancel::{CancelAsk, CancelRequest},
    effects::{Duties, Effects, Ending, Over, Rearm, Slots, comes_to_wait, leaves_a_place},
    redrive::Redrive,
    report::Report,
    settle::{Outcome, SettlePolicy, WaitFor},
    ties::{Tie, inherited, keep_newest},
    trail::{TRAIL_BYTES_MAX, TrailEntry, TrailKind},
};
use crate::{
    choice::choices,
    duration::Span,
    ids::{JobId, LaneId, Partition, RunId, ScheduleId, TenantId, WorkerId},
    job::failure::Failure,
    order::{OrderKey, Priority},
    quota::Delay,
    slot::{Entry, SlotAsk, SlotKey, UniqueKey},
    trace::TraceParent,
};

/// Free metadata, searchable.
pub type Labels = BTreeMap<String, String>;

/// The right to settle one attempt. It only grows: claiming, handing back,
/// retrying and losing a run each raise it, so whoever held the former one can
/// change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub i32);

impl Fence {
    /// Of a run that nobody has held.
    pub const FIRST: Self = Self(0);

    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// A worker's right to a run: the run, and the fence it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    pub run: RunId,
    pub fence: Fence,
}

/// What made a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Schedule,
    Manual,
    Api,
    Webhook,
    Job,
    Backfill,
    Redrive,
    Retry,
}

/// Where a run came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trigger {
    pub source: Source,
    pub schedule: Option<ScheduleId>,
    /// The instant a schedule planned it for: its identity there.
    pub planned_at: Option<Timestamp>,
    pub by: Option<String>,
    /// Where somebody asked for the run it is theirs, and nothing in it is believed.
    pub metadata: Option<serde_json::Value>,
    /// Its tenant's rate allowed it only later.
    pub delay: Option<Delay>,
    /// The trace that whoever asked for the run is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
}

impl Trigger {
    pub fn plain(source: Source) -> Self {
        Self { source, schedule: None, planned_at: None, by: None, metadata: None, delay: None, traceparent: None }
    }
}

/// The run a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Parent {
    pub run: RunId,
    /// The step's place in the job's list of steps.
    pub step: i16,
    /// Of a step that is executed for each item of a list: which one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
}

/// The slot a run holds or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotClaim {
    pub key: SlotKey,
    pub limit: u32,
}

choices! {
    /// How a run ended.
    Verdict {
        Succeeded = "succeeded",
        Failed = "failed",
        TimedOut = "timed_out",
        Cancelled = "cancelled",
        Dead = "dead",
        Expired = "expired",
        Skipped = "skipped",
    }
}

impl Verdict {
    /// Whether this end stands although a cancel was asked for.
    pub const fn answers_a_cancel(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled)
    }
}

/// Where a run stands, in one word, live and ended alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Scheduled,
    Blocked,
    Queued,
    Running,
    Waiting,
    Cancelling,
    #[serde(untagged)]
    Ended(Verdict),
}

impl Status {
    /// Whether somebody may be executing a run of this status: the owner of its partition
    /// starts one that is queued, and says so later.
    pub const fn may_be_executed(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::Cancelling => true,
            Self::Scheduled | Self::Blocked | Self::Waiting | Self::Ended(_) => false,
        }
    }
}

/// Who executes a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hold {
    /// The owner of its partition, who needs no written lease.
    Owned,
    /// A worker whose lease is written.
    Leased(WorkerId),
}

/// What a blocked run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Block {
    Slot,
    /// This many runs before it, at most [`WAITS_MAX`].
    Needs(u32),
}

/// Where a run stands. Each state carries only what is true in that state.
#[derive(Clone, Debug, PartialEq)]
pub enum RunState {
    /// Ready later, at the run's `ready_at`.
    Scheduled,
    Blocked(Block),
    Queued,
    Running {
        hold: Hold,
        started_at: Timestamp,
    },
    /// Parked outside; holds no worker, keeps its slot.
    Waiting {
        on: WaitFor,
        until: Option<Timestamp>,
        started_at: Timestamp,
    },
    /// Asked to stop. Without a hold nobody is known to execute it, but the
    /// owner of its partition may be about to.
    Cancelling {
        hold: Option<Hold>,
        started_at: Option<Timestamp>,
    },
    Finished {
        at: Timestamp,
        verdict: Verdict,
    },
}

/// What a run has to do with its slot in a given state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotUse {
    None,
    Waits,
    Holds,
}

impl RunState {
    pub const fn status(&self) -> Status {
        match self {
            Self::Scheduled => Status::Scheduled,
            Self::Blocked(_) => Status::Blocked,
            Self::Queued => Status::Queued,
            Self::Running { .. } => Status::Running,
            Self::Waiting { .. } => Status::Waiting,
            Self::Cancelling { .. } => Status::Cancelling,
            Self::Finished { verdict, .. } => Status::Ended(*verdict),
        }
    }

    /// Backoff and delay hold no slot; a run parked outside keeps its own.
    pub const fn slot_use(&self) -> SlotUse {
        match self {
            Self::Scheduled | Self::Blocked(Block::Needs(_)) | Self::Finished { .. } => SlotUse::None,
            Self::Blocked(Block::Slot) => SlotUse::Waits,
            Self::Queued | Self::Running { .. } | Self::Waiting { .. } | Self::Cancelling { .. } => SlotUse::Holds,
        }
    }

    pub const fn started_at(&self) -> Option<Timestamp> {
        match self {
            Self::Running { started_at, .. } | Self::Waiting { started_at, .. } => Some(*started_at),
            Self::Cancelling { started_at, .. } => *started_at,
            Self::Scheduled | Self::Blocked(_) | Self::Queued | Self::Finished { .. } => None,
        }
    }
}

/// One execution of a job, as the live table holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub id: RunId,
    pub tenant: TenantId,
    pub job: JobId,
    pub version: i32,
    pub lane: LaneId,
    pub part: Partition,
    pub priority: Priority,
    pub created_at: Timestamp,
    pub ready_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// It must have ended by then, whatever it waits for and however often it is
    /// tried.
    pub deadline_at: Option<Timestamp>,
    pub trigger: Trigger,
    pub labels: Labels,
    /// JSON; none where it equals the schedule's or the job's.
    pub payload: Option<Box<str>>,
    pub slot: Option<SlotClaim>,
    pub parent: Option<Parent>,
    /// Attempts that failed. The one under way is the next.
    pub attempts_used: u16,
    /// Workers that vanished with it. They cost no attempt.
    pub losses: u16,
    /// An attempt at it had begun before the one that may be under way.
    pub started: bool,
    /// When the first attempt began, once that one is over; see [`Run::first_start`].
    pub first_started_at: Option<Timestamp>,
    pub fence: Fence,
    pub cancel: Option<CancelRequest>,
    /// Makes it again by itself if it dies.
    pub redrive: Option<Redrive>,
    pub state: RunState,
}

impl Run {
    pub fn lease(&self) -> Lease {
        Lease { run: self.id, fence: self.fence }
    }

    pub fn order_key(&self) -> OrderKey {
        OrderKey::new(self.ready_at, self.priority)
    }

    /// When somebody must look at this run again, if nothing else happens: its
    /// deadlines, the end of its wait, or of its grace. A run that is executed is
    /// its holder's to end in time.
    pub fn due_at(&self) -> Option<Timestamp> {
        match &self.state {
            RunState::Scheduled | RunState::Blocked(_) | RunState::Queued => self.start_by(),
            RunState::Waiting { until, .. } => [*until, self.deadline_at].into_iter().flatten().min(),
            RunState::Cancelling { .. } => self.cancel.as_ref().map(|request| request.grace_until),
            RunState::Running { .. } | RunState::Finished { .. } => None,
        }
    }

    /// By when the run must be started. It counts until an attempt has begun: one
    /// that was handed back or deferred before that leaves it as it was.
    pub fn start_deadline(&self) -> Option<Timestamp> {
        self.expires_at.filter(|_| !self.started)
    }

    /// By when an attempt must begin, if any is to.
    pub fn start_by(&self) -> Option<Timestamp> {
        [self.start_deadline(), self.deadline_at].into_iter().flatten().min()
    }

    /// Whether it must have ended by `at`.
    pub fn is_over_at(&self, at: Timestamp) -> bool {
        self.deadline_at.is_some_and(|deadline| deadline <= at)
    }

    /// When its first attempt began, that under way included.
    pub fn first_start(&self) -> Option<Timestamp> {
        self.first_started_at.or(self.state.started_at())
    }

    /// This run after `change`.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Finish(finish) => {
                self.attempts_used = finish.attempts_used;
                self.losses = finish.losses;
                self.state = RunState::Finished { at: finish.ended_at, verdict: finish.verdict };
            }
            Change::Move(next) => {
                self.state = next.state.clone();
                self.ready_at = next.ready_at;
                self.attempts_used = next.attempts_used;
                self.losses = next.losses;
                self.started = next.started;
                self.first_started_at = next.first_started_at;
                self.fence = next.fence;
                self.cancel.clone_from(&next.cancel);
            }
        }
    }
}

/// What becomes of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It stays live, as the move says.
    Move(Move),
    /// It ends, and moves to history.
    Finish(Finish),
}

/// Everything that may change while a run lives.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    pub state: RunState,
    pub ready_at: Timestamp,
    pub attempts_used: u16,
    pub losses: u16,
    pub started: bool,
    pub first_started_at: Option<Timestamp>,
    pub fence: Fence,
    pub cancel: Option<CancelRequest>,
    pub trail: Option<TrailEntry>,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    pub verdict: Verdict,
    pub started_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub attempts_used: u16,
    pub losses: u16,
    pub failure: Option<Failure>,
    /// JSON.
    pub output: Option<Box<str>>,
    pub trail: Option<TrailEntry>,
    /// The run that follows by itself, to be made with this end. It begins as
    /// `scheduled`, whatever time it is by then.
    pub follower: Option<Box<NewRun>>,
}

/// Why a transition does not apply. An answer, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    #[error("the run is not being executed")]
    NotRunning,
    #[error("the lease is not the run's current one")]
    LeaseLost,
    #[error("the run has ended")]
    Ended,
    #[error("the state of the run does not allow this")]
    WrongState,
    #[error("it is not time yet")]
    NotYet,
}

/// A run to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRun {
    pub id: RunId,
    pub tenant: TenantId,
    pub job: JobId,
    pub version: i32,
    pub lane: LaneId,
    pub part: Partition,
    pub priority: Priority,
    pub ready_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub deadline_at: Option<Timestamp>,
    pub trigger: Trigger,
    pub labels: Labels,
    pub payload: Option<Box<str>>,
    pub slot: Option<SlotAsk>,
    pub unique: Option<UniqueAsk>,
    /// A second unique key, of whoever makes it: what it is made for is made once.
    pub once: Option<UniqueAsk>,
    pub parent: Option<Parent>,
    /// Runs that must end before it; those that have ended already count as
    /// such.
    pub after: Vec<RunId>,
    /// It starts when the runs of its schedule that were made before it have ended.
    pub follows: bool,
    /// Its end re-arms the `after_finish` schedule that made it.
    pub rearms: bool,
    pub redrive: Option<Redrive>,
}

/// At most one run under `key` may be made until `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueAsk {
    pub key: UniqueKey,
    pub until: Timestamp,
}

impl NewRun {
    /// The keys that no other run may have while they last.
    pub fn unique_keys(&self) -> impl Iterator<Item = UniqueAsk> + use<> {
        self.unique.into_iter().chain(self.once)
    }

    /// When somebody must look at it, as long as it has not started: see
    /// [`Run::due_at`].
    pub fn due_at(&self) -> Option<Timestamp> {
        [self.expires_at, self.deadline_at].into_iter().flatten().min()
    }

    /// Whether the run asks for its slot as it is made. One that is delayed or
    /// waits for others asks when its time has come.
    pub fn enters_now(&self, needs: u32, now: Timestamp) -> Option<&SlotAsk> {
        if needs == 0 && self.ready_at <= now { self.slot.as_ref() } else { None }
    }

    /// The same run without any claim on others, and not ready at `now`, so that
    /// nobody is told of it: for one that is only kept as a record.
    #[must_use]
    pub fn bare(&self, now: Timestamp) -> Self {
        let ready_at = Span::millis(1).after(self.ready_at.max(now));
        Self {
            slot: None,
            unique: None,
            once: None,
            after: Vec::new(),
            follows: false,
            rearms: false,
            ready_at,
            ..self.clone()
        }
    }

    /// The run's first state, given how many it waits for and what its slot
    /// answered; none where there is no room for it.
    pub fn first_state(&self, needs: u32, entry: Option<Entry>, now: Timestamp) -> Option<RunState> {
        if needs > 0 {
            return Some(RunState::Blocked(Block::Needs(needs)));
        }
        if self.ready_at > now {
            return Some(RunState::Scheduled);
        }
        match entry {
            None | Some(Entry::Holds) => Some(RunState::Queued),
            Some(Entry::Waits | Entry::WaitsAlone | Entry::WaitsForCancel) => Some(RunState::Blocked(Block::Slot)),
            Some(Entry::Refused) => None,
        }
    }

    /// The live run this becomes.
    pub fn born(self, state: RunState, now: Timestamp) -> Run {
        Run {
            id: self.id,
            tenant: self.tenant,
            job: self.job,
            version: self.version,
            lane: self.lane,
            part: self.part,
            priority: self.priority,
            created_at: now,
            ready_at: self.ready_at,
            expires_at: self.expires_at,
            deadline_at: self.deadline_at,
            trigger: self.trigger,
            labels: self.labels,
            payload: self.payload,
            slot: self.slot.map(|ask| SlotClaim { key: ask.key, limit: ask.limit }),
            parent: self.parent,
            attempts_used: 0,
            losses: 0,
            started: false,
            first_started_at: None,
            fence: Fence::FIRST,
            cancel: None,
            redrive: self.redrive,
            state,
        }
    }
}
