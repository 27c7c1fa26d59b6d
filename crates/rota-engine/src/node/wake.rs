//! Wake-ups inside one process, and what it remembers of work to come. Hints, both: what is
//! missed costs a wait for the next look, and nothing else.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use jiff::Timestamp;
use tokio::sync::Notify;

/// What wakes a stage before its time.
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

impl WakeUps {
    /// Which runs may start has changed.
    pub(crate) fn starters(&self) {
        for wake_up in [&self.dispatch, &self.claim, &self.assign] {
            wake_up.notify_one();
        }
    }

    /// The node's partitions have changed.
    pub(crate) fn owners(&self) {
        for wake_up in [&self.fire, &self.look, &self.promote, &self.scan] {
            wake_up.notify_one();
        }
    }
}

/// What this node was told of work that is to come.
#[derive(Debug)]
pub(crate) struct WorkHints {
    /// When the next delayed run is ready.
    delayed_at: AtomicI64,
    /// Some job starts after another.
    chained: AtomicBool,
    /// Somebody asked a run to stop: leases are to be compared at once.
    cancel_asked: AtomicBool,
}

impl Default for WorkHints {
    fn default() -> Self {
        Self {
            delayed_at: AtomicI64::new(i64::MAX),
            chained: AtomicBool::new(false),
            cancel_asked: AtomicBool::new(false),
        }
    }
}

impl WorkHints {
    /// A run is ready later. True where it is the next.
    pub fn delay(&self, ready_at: Timestamp) -> bool {
        let at = ready_at.as_microsecond();
        at < self.delayed_at.fetch_min(at, Ordering::Relaxed)
    }

    /// When the next delayed run is ready; asked by the one who is about to look, and
    /// forgotten with it.
    pub fn take_delayed(&self) -> Option<Timestamp> {
        instant(self.delayed_at.swap(i64::MAX, Ordering::Relaxed))
    }

    pub fn next_delayed(&self) -> Option<Timestamp> {
        instant(self.delayed_at.load(Ordering::Relaxed))
    }

    pub fn set_chained(&self, chained: bool) {
        self.chained.store(chained, Ordering::Relaxed);
    }

    pub fn is_chained(&self) -> bool {
        self.chained.load(Ordering::Relaxed)
    }

    pub fn ask_to_cancel(&self) {
        self.cancel_asked.store(true, Ordering::Relaxed);
    }

    pub fn take_cancel_asked(&self) -> bool {
        self.cancel_asked.swap(false, Ordering::Relaxed)
    }
}

fn instant(micros: i64) -> Option<Timestamp> {
    (micros != i64::MAX).then(|| Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX))
}
