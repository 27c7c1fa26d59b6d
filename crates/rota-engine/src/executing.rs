//! How many attempts are under way, and how to reach those that take a while.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use rota_core::{
    dispatch::{Doors, Start},
    ids::{Partition, RunId},
    run::Lease,
    store::By,
};
use tokio::sync::{Notify, watch};

use crate::runs::TakenRun;

/// Why an attempt is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its run was cancelled: it may use its grace.
    Cancelled { grace_until: Timestamp },
    /// Its run is not ours any more: nothing it does counts.
    Lost,
    /// The node stops.
    HandBack,
}

/// An attempt that did not end at once.
#[derive(Debug)]
pub(crate) struct Slow {
    pub lease: Lease,
    pub part: Partition,
    pub by: By,
    pub started_at: Timestamp,
    /// The store knows that it runs.
    pub marked: bool,
    /// It must not go on when the store cannot be reached.
    pub exclusive: bool,
    pub stop: watch::Sender<Option<Why>>,
}

/// Suspects, each to be executed with nothing beside it.
#[derive(Debug, Default)]
struct Apart {
    waiting: VecDeque<TakenRun>,
    doors: Doors,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Executing {
    running: AtomicUsize,
    unsettled: AtomicUsize,
    slow: Mutex<HashMap<RunId, Slow>>,
    apart: Mutex<Apart>,
    draining: AtomicBool,
    /// Notified when attempts end or are settled, for one who waits for the last.
    pub(crate) moved: Notify,
}

impl Executing {
    /// Attempts under way.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Attempts under way, or ended and not yet settled.
    pub fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self, count: usize) {
        self.running.fetch_add(count, Ordering::Relaxed);
        self.unsettled.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn end(&self, count: usize) {
        self.running.fetch_sub(count, Ordering::Relaxed);
        self.moved.notify_waiters();
    }

    pub(crate) fn settle(&self, count: usize) {
        self.unsettled.fetch_sub(count, Ordering::Relaxed);
    }

    /// Nothing new is started from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn slow<T>(&self, work: impl FnOnce(&mut HashMap<RunId, Slow>) -> T) -> T {
        work(&mut self.slow.lock())
    }

    /// Tells an attempt to stop. False where it is not reachable (any more).
    pub(crate) fn stop(&self, run: RunId, why: Why) -> bool {
        self.slow(|slow| {
            let Some(slow) = slow.get(&run) else { return false };
            slow.stop.send_if_modified(|told| {
                // Who is lost stays lost.
                let news = *told != Some(why) && *told != Some(Why::Lost);
                if news {
                    *told = Some(why);
                }
                news
            });
            true
        })
    }

    /// The attempt under this lease is not ours any more. A later attempt at its run is.
    pub(crate) fn lose(&self, lease: Lease) {
        if self.started_at(lease).is_some() {
            self.stop(lease.run, Why::Lost);
        }
    }

    /// When the attempt under this lease began, if it is under way.
    pub(crate) fn started_at(&self, lease: Lease) -> Option<Timestamp> {
        self.slow(|slow| slow.get(&lease.run).filter(|slow| slow.lease == lease).map(|slow| slow.started_at))
    }

    /// The attempt under this lease is held by it from now on, and no longer by right of
    /// its partition.
    pub(crate) fn leased(&self, lease: Lease) {
        self.slow(|slow| {
            if let Some(slow) = slow.get_mut(&lease.run).filter(|slow| slow.lease == lease) {
                (slow.by, slow.marked) = (By::Lease, true);
            }
        });
    }

    /// Tells all attempts that `which` picks; answers how many.
    pub(crate) fn stop_all(&self, why: Why, which: impl Fn(&Slow) -> bool) -> usize {
        self.slow(|slow| {
            let picked: Vec<&Slow> = slow.values().filter(|slow| which(slow)).collect();
            for slow in &picked {
                slow.stop.send_replace(Some(why));
            }
            picked.len()
        })
    }

    /// Drops all attempts under way unannounced, as the death of their
    /// process would: for tests and the simulator.
    pub fn forget_all(&self) {
        self.stop_all(Why::Lost, |_| true);
    }

    fn apart(&self) -> MutexGuard<'_, Apart> {
        self.apart.lock()
    }

    /// Sets a suspect aside until it can be executed alone.
    pub(crate) fn set_apart(&self, ready: TakenRun) {
        self.apart().waiting.push_back(ready);
    }

    /// Whether nothing is started, for the sake of a suspect that is under way or waits.
    pub(crate) fn is_reserved(&self, now: Timestamp) -> bool {
        let Apart { waiting, doors } = &mut *self.apart();
        doors.look(!waiting.is_empty(), self.unsettled() > 0, now) != Start::Anything
    }

    /// The suspect whose turn it is.
    pub(crate) fn next_alone(&self, now: Timestamp) -> Option<TakenRun> {
        let Apart { waiting, doors } = &mut *self.apart();
        let busy = self.unsettled() > 0;
        if doors.look(!waiting.is_empty(), busy, now) != Start::Suspect {
            return None;
        }
        doors.take(busy, now);
        waiting.pop_front()
    }

    /// Whether the suspect whose turn it is must wait after all: others have begun.
    pub(crate) fn must_wait(&self) -> bool {
        self.unsettled() > 0 && !self.apart().doors.lets_in_beside_others()
    }

    /// When suspects or those they hold up are to be looked at again.
    pub(crate) fn apart_at(&self) -> Option<Timestamp> {
        let apart = self.apart();
        apart.doors.next_at(!apart.waiting.is_empty())
    }

    /// The clock was set: nobody waits by the old one.
    pub(crate) fn stepped(&self) {
        self.apart().doors = Doors::default();
    }

    pub(crate) fn take_apart(&self) -> Vec<TakenRun> {
        self.apart().waiting.drain(..).collect()
    }
}
