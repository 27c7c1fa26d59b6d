//! What happened, for those who want to follow along.
//!
//! A bounded feed: a subscriber that falls behind is told how much it missed
//! and reads the store again. Nothing is made up for a feed that nobody reads.
//!
//! What other nodes do comes by a relay, as lines, and only while somebody
//! follows; a follower that may have missed something is told to look again.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use jiff::Timestamp;
use rota_core::{
    ids::{JobId, Partition, RunId, ScheduleId, TenantId},
    run::{Status, Verdict},
    store::PauseTarget,
};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

/// One change, in the past tense.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
        job: JobId,
        tenant: TenantId,
        status: Status,
    },
    ScheduleFired {
        schedule: ScheduleId,
        job: JobId,
        tenant: TenantId,
        planned_at: Timestamp,
        run: RunId,
    },
    InstantsSkipped {
        schedule: ScheduleId,
        job: JobId,
        tenant: TenantId,
        count: u64,
    },
    /// A job was saved with its schedules; unchanged ones too.
    JobSaved {
        job: JobId,
        tenant: TenantId,
        version: i32,
        changed: bool,
    },
    Paused {
        target: PauseTarget,
    },
    Resumed {
        target: PauseTarget,
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

impl Event {
    /// Whether other nodes' followers want to know: what happened to runs and
    /// definitions, not how the nodes share them.
    pub fn is_news(&self) -> bool {
        match self {
            Self::RunMade { .. }
            | Self::RunStarted { .. }
            | Self::RunRetried { .. }
            | Self::RunParked { .. }
            | Self::RunEnded { .. }
            | Self::RunLost { .. }
            | Self::ScheduleFired { .. }
            | Self::InstantsSkipped { .. }
            | Self::JobSaved { .. }
            | Self::Paused { .. }
            | Self::Resumed { .. }
            | Self::RequestRefused { .. } => true,
            Self::SettlementRefused { .. }
            | Self::PartitionsTaken { .. }
            | Self::PartitionsLost { .. }
            | Self::Found(_) => false,
        }
    }
}

impl Event {
    /// Whose it is, where it says so. A pause names what is paused, and what belongs to nobody
    /// is how nodes share the work.
    pub fn tenant(&self) -> Option<TenantId> {
        match self {
            Self::RunMade { tenant, .. }
            | Self::RunStarted { tenant, .. }
            | Self::RunRetried { tenant, .. }
            | Self::RunParked { tenant, .. }
            | Self::RunEnded { tenant, .. }
            | Self::SettlementRefused { tenant, .. }
            | Self::RunLost { tenant, .. }
            | Self::ScheduleFired { tenant, .. }
            | Self::InstantsSkipped { tenant, .. }
            | Self::JobSaved { tenant, .. } => Some(*tenant),
            Self::Paused { .. }
            | Self::Resumed { .. }
            | Self::PartitionsTaken { .. }
            | Self::PartitionsLost { .. }
            | Self::RequestRefused { .. }
            | Self::Found(_) => None,
        }
    }
}

/// Something that cannot be, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// Nobody fired it in time.
    ScheduleOverdue { schedule: ScheduleId, due_at: Timestamp },
    /// What it says cannot be read.
    ScheduleBroken { schedule: ScheduleId, why: String },
    /// Nothing would ever have fired it; it is armed again. Instants that passed
    /// meanwhile are not made up for: nobody knows which they were.
    ScheduleUnarmed { schedule: ScheduleId },
    /// It slept on although nothing held it any more.
    ScheduleAsleep { schedule: ScheduleId },
    /// A cursor whose schedule is gone.
    CursorStray { schedule: ScheduleId },
    /// Its row says that this node executes it, and nobody here does; it is
    /// settled as lost.
    RunOwnerless { run: RunId },
    /// Counters of slots that did not fit the live runs; they do now.
    SlotsLeaked { count: u32 },
    /// Runs that waited for others which were gone; they wait no more.
    JoinsStuck { count: u32 },
}

/// What a follower is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedItem {
    /// It happened on this node.
    Here(Event),
    /// It happened on another.
    There(Event),
    /// Something was missed: look at the store again.
    Reset,
}

/// All that happens, on this node and on others. Others tell of it only while
/// somebody follows, so the first moments of a feed may know this node alone.
#[derive(Debug)]
pub struct Feed {
    here: broadcast::Receiver<Event>,
    there: broadcast::Receiver<Option<Event>>,
    _counted: Follower,
}

impl Feed {
    /// What happened next; none once the engine is gone.
    pub async fn next(&mut self) -> Option<FeedItem> {
        use broadcast::error::RecvError::{Closed, Lagged};
        let item = tokio::select! {
            here = self.here.recv() => here.map(FeedItem::Here),
            there = self.there.recv() => there.map(|event| event.map_or(FeedItem::Reset, FeedItem::There)),
        };
        match item {
            Ok(item) => Some(item),
            Err(Lagged(_)) => Some(FeedItem::Reset),
            Err(Closed) => None,
        }
    }
}

/// One who follows, for as long as this lives.
#[derive(Debug)]
struct Follower(Arc<AtomicUsize>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The feed's own end.
#[derive(Debug)]
pub struct Events {
    feed: broadcast::Sender<Event>,
    /// What other nodes tell; none for what was missed.
    there: broadcast::Sender<Option<Event>>,
    /// Somebody has listened. Asking the feed itself takes a lock, which is too
    /// much for every run of an engine that nobody follows.
    followed: AtomicBool,
    followers: Arc<AtomicUsize>,
}

impl Events {
    pub fn new(most: usize) -> Self {
        Self {
            feed: broadcast::Sender::new(most.max(1)),
            there: broadcast::Sender::new(most.max(1)),
            followed: AtomicBool::new(false),
            followers: Arc::default(),
        }
    }

    /// Tells those who listen, if there are any.
    pub fn emit(&self, event: impl FnOnce() -> Event) {
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

    /// What happens here and on other nodes.
    pub fn follow(&self) -> Feed {
        self.followers.fetch_add(1, Ordering::Relaxed);
        let counted = Follower(Arc::clone(&self.followers));
        Feed { here: self.subscribe(), there: self.there.subscribe(), _counted: counted }
    }

    /// Whether anybody follows what other nodes do.
    pub fn is_followed(&self) -> bool {
        self.followers.load(Ordering::Relaxed) > 0
    }

    /// Passes on what another node told; none for what was missed of it.
    pub(crate) fn hear(&self, item: impl FnOnce() -> Option<Event>) {
        if self.is_followed() {
            drop(self.there.send(item()));
        }
    }
}
