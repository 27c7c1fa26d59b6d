//! Clocks: the system's, and one that tests turn by hand.
//!
//! [`SystemClock`] is monotonic time plus an offset that is measured now and
//! then against the store's clock (or, where the store has none of its own,
//! against the machine's). Between two measurements nothing that happens to the
//! machine's clock can move it, and whoever judges that another's time ran out
//! uses [`SystemClock::earliest`], the lesser of the two: a clock that runs fast
//! must not bury the living.
//!
//! [`TestClock`] stands still until it is told to go on.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use rota_core::{duration::Span, ports::Clock};
use tokio::sync::{oneshot, watch};

/// Waits are cut into pieces of this length, so that a wait begun before the
/// offset was measured does not outlast its correction.
const NAP_MAX: Duration = Duration::from_secs(1);

/// Monotonic time plus a measured offset.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
    /// What the machine's clock said then, in microseconds.
    wall_at_start: i64,
    /// What is added, in microseconds.
    offset: AtomicI64,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl SystemClock {
    pub fn new() -> Self {
        Self { started: Instant::now(), wall_at_start: wall().as_microsecond(), offset: AtomicI64::new(0) }
    }

    /// Follows a clock that said `reference` just now, or the machine's where
    /// there is no other, and answers how far off it was.
    pub fn follow(&self, reference: Option<Timestamp>) -> SignedDuration {
        let off = reference.unwrap_or_else(wall).as_microsecond() - self.now().as_microsecond();
        self.offset.fetch_add(off, Ordering::Relaxed);
        SignedDuration::from_micros(off)
    }

    /// The lesser of this clock and the machine's.
    pub fn earliest(&self) -> Timestamp {
        self.now().min(wall())
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is handed")]
fn wall() -> Timestamp {
    Timestamp::now()
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let passed = self.started.elapsed().as_micros() as i64;
        let micros = self.wall_at_start + passed + self.offset.load(Ordering::Relaxed);
        Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
    }

    async fn sleep_until(&self, at: Timestamp) {
        loop {
            let left = self.now().duration_until(at);
            if left <= SignedDuration::ZERO {
                return;
            }
            tokio::time::sleep(left.unsigned_abs().min(NAP_MAX)).await;
        }
    }
}

/// A clock that is turned by hand.
#[derive(Debug)]
pub struct TestClock {
    inner: Mutex<Sleepers>,
    /// How many sleep; for those who wait until everybody does.
    asleep: watch::Sender<usize>,
}

#[derive(Debug)]
struct Sleepers {
    now: Timestamp,
    next: u64,
    waiting: BTreeMap<(Timestamp, u64), oneshot::Sender<()>>,
}

impl TestClock {
    pub fn new(now: Timestamp) -> Self {
        let inner = Sleepers { now, next: 0, waiting: BTreeMap::new() };
        Self { inner: Mutex::new(inner), asleep: watch::Sender::new(0) }
    }

    /// Goes on by so much, and wakes those whose time has come. Answers the
    /// new time.
    pub fn advance(&self, span: Span) -> Timestamp {
        let at = span.after(self.now());
        self.set(at);
        at
    }

    /// Sets the time; also backwards, as clocks do.
    pub fn set(&self, now: Timestamp) {
        let (due, left) = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.now = now;
            let mut later = inner.waiting.split_off(&(now, u64::MAX));
            std::mem::swap(&mut inner.waiting, &mut later);
            inner.waiting.retain(|_, waker| !waker.is_closed());
            (later, inner.waiting.len())
        };
        self.asleep.send_replace(left);
        for waker in due.into_values() {
            // Whoever went away needs no waking.
            waker.send(()).ok();
        }
    }

    /// When the next sleeper wakes.
    pub fn next_wake(&self) -> Option<Timestamp> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.waiting.retain(|_, waker| !waker.is_closed());
        inner.waiting.keys().next().map(|(at, _)| *at)
    }

    /// Returns when at least `count` sleep.
    pub async fn wait_for_sleepers(&self, count: usize) {
        let mut asleep = self.asleep.subscribe();
        // The sender lives as long as this clock.
        drop(asleep.wait_for(|sleeping| *sleeping >= count).await);
    }
}

#[async_trait]
impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).now
    }

    async fn sleep_until(&self, at: Timestamp) {
        let woken = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            if inner.now >= at {
                return;
            }
            let (waker, woken) = oneshot::channel();
            inner.next += 1;
            let key = (at, inner.next);
            inner.waiting.insert(key, waker);
            self.asleep.send_replace(inner.waiting.len());
            woken
        };
        // An error means the clock is gone, and with it everybody's time.
        drop(woken.await);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_767_607_200 + second).unwrap()
    }

    #[tokio::test]
    async fn sleepers_wake_when_their_time_has_come_and_not_before() {
        let clock = Arc::new(TestClock::new(at(0)));
        let sleep = |until| {
            let clock = Arc::clone(&clock);
            tokio::spawn(async move { clock.sleep_until(until).await })
        };
        let (early, late) = (sleep(at(1)), sleep(at(5)));
        clock.wait_for_sleepers(2).await;
        assert_eq!(clock.next_wake(), Some(at(1)));
        clock.advance(Span::secs(1));
        early.await.unwrap();
        assert!(!late.is_finished());
        clock.set(at(5));
        late.await.unwrap();
        clock.sleep_until(at(3)).await;
    }

    /// A machine whose clock is an hour fast must keep the store's time.
    #[test]
    fn the_system_clock_follows_its_reference() {
        let clock = SystemClock::new();
        let reference = Span::secs(3_600).before(clock.now());
        let off = clock.follow(Some(reference));
        assert!((-3_601..=-3_599).contains(&off.as_secs()), "{off:?}");
        let behind = clock.now().duration_since(reference);
        assert!(behind >= SignedDuration::ZERO && behind < SignedDuration::from_secs(60), "{behind:?}");
        assert!(clock.earliest() <= clock.now());
    }

    #[test]
    fn the_earliest_of_a_clock_that_runs_ahead_is_the_machines() {
        let clock = SystemClock::new();
        clock.follow(Some(Span::secs(3_600).after(clock.now())));
        assert!(clock.earliest() < Span::secs(1_800).before(clock.now()));
    }
}
