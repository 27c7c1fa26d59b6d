//! What happened, for those who want to follow along.
//!
//! A bounded feed: a subscriber that falls behind is told how much it missed
//! and reads the store again. Nothing is made up for a feed that nobody reads.

use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use rota_core::{
    ids::{JobId, Partition, RunId, ScheduleId, TenantId},
    run::{Status, Verdict},
};
use tokio::sync::broadcast;

/// One change, in the past tense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    RunMade {
        run: RunId,
        job: JobId,
        tenant: TenantId,
        status: Status,
    },
    RunStarted {
        run: RunId,
        job: JobId,
        tenant: TenantId,
        attempt: u16,
        at: Timestamp,
    },
    RunRetried {
        run: RunId,
        job: JobId,
        tenant: TenantId,
        attempt: u16,
        retry_at: Timestamp,
    },
    RunParked {
        run: RunId,
        job: JobId,
        tenant: TenantId,
    },
    RunEnded {
        run: RunId,
        job: JobId,
        tenant: TenantId,
        verdict: Verdict,
        at: Timestamp,
    },
    /// Somebody settled a run that was no longer theirs; nothing was changed.
    SettlementRefused {
        run: RunId,
        job: JobId,
        tenant: TenantId,
    },
    RunLost {
        run: RunId,
        status: Status,
    },
    ScheduleFired {
        schedule: ScheduleId,
        job: JobId,
        planned_at: Timestamp,
        run: RunId,
    },
    InstantsSkipped {
        schedule: ScheduleId,
        count: u64,
    },
    PartitionsTaken {
        parts: Vec<Partition>,
    },
    PartitionsLost {
        parts: Vec<Partition>,
    },
    RequestRefused {
        inbox: i64,
        why: String,
    },
    Found(Finding),
}

/// Something that cannot be, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nobody fired it in time.
    ScheduleOverdue { schedule: ScheduleId, due_at: Timestamp },
    /// What it says cannot be read.
    ScheduleBroken { schedule: ScheduleId, why: String },
    /// Its run had ended without arming it; it is armed again.
    ScheduleUnarmed { schedule: ScheduleId },
    /// Its row says that this node executes it, and nobody here does; it is
    /// settled as lost.
    RunOwnerless { run: RunId },
    /// Counters of slots that did not fit the live runs; they do now.
    SlotsLeaked { count: u32 },
}

/// The feed's own end.
#[derive(Debug)]
pub struct Events {
    feed: broadcast::Sender<Event>,
    /// Somebody has listened. Asking the feed itself takes a lock, which is too
    /// much for every run of an engine that nobody follows.
    followed: AtomicBool,
}

impl Events {
    pub fn new(most: usize) -> Self {
        Self { feed: broadcast::Sender::new(most.max(1)), followed: AtomicBool::new(false) }
    }

    /// Tells those who listen, if there are any.
    pub fn tell(&self, event: impl FnOnce() -> Event) {
        if self.heard() {
            // The last listener may have just gone.
            drop(self.feed.send(event()));
        }
    }

    /// Whether anybody listens.
    pub fn heard(&self) -> bool {
        self.followed.load(Ordering::Relaxed) && self.feed.receiver_count() > 0
    }

    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.followed.store(true, Ordering::Relaxed);
        self.feed.subscribe()
    }
}
