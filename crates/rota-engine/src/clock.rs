//! Clocks: the system's, and one that tests turn by hand.
//!
//! [`SystemClock`] is steady time, which only goes on, plus what it is behind the
//! clock that is the truth: the store's, or the machine's where the store has none
//! of its own. That is measured every second, as [`rota_core::clock`] says, and
//! between two measurements nothing that happens to the machine's clock can move
//! it. Its [`Clock::now`] is the earliest that it may be: what is done when an
//! instant has come is never done before it, and a clock that runs fast buries
//! nobody alive.
//!
//! [`TestClock`] stands still until it is told to go on.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rota_core::{
    clock::{Bounds, DRIFT_PPM, Offset, STEP_MIN, Sample},
    duration::Span,
    ports::Clock,
};
use tokio::sync::{Notify, oneshot, watch};

/// The bounds hold for so long after a measurement, in microseconds: until well
/// after the next is due.
const HOLDS_FOR: i64 = 2_000_000;
/// Who sleeps is woken by a change of this size, in microseconds: the ticks of
/// its timer are no finer.
const NOTICED_FROM: i64 = 1_000;

/// What a machine has to tell the time by.
#[async_trait]
pub trait Machine: Send + Sync {
    /// Since it began to be read; it only goes on.
    fn steady(&self) -> Duration;

    /// What its clock says, which anybody may set.
    fn wall(&self) -> Timestamp;

    /// Returns when so long has passed.
    async fn nap(&self, span: Duration);
}

/// The machine that this process runs on.
#[derive(Debug)]
struct ThisMachine {
    started: Instant,
}

#[async_trait]
impl Machine for ThisMachine {
    fn steady(&self) -> Duration {
        self.started.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is handed")]
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn nap(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }
}

/// Which clock is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Truth {
    Store,
    /// It shares its quartz with the steady one: the two do not drift apart.
    Machine,
}

/// What is known of the clock that is followed.
struct Followed {
    truth: Truth,
    offset: Offset,
}

/// Steady time plus a measured offset.
pub struct SystemClock {
    machine: Arc<dyn Machine>,
    followed: Mutex<Option<Followed>>,
    /// What is added to steady time, in microseconds: the least that it may be.
    least: AtomicI64,
    most: AtomicI64,
    steps: AtomicU64,
    /// Notified whenever `least` changed by enough to matter to who sleeps.
    moved: Notify,
}

impl std::fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SystemClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl SystemClock {
    pub fn new() -> Self {
        Self::of(Arc::new(ThisMachine { started: Instant::now() }))
    }

    /// The clock of another machine, for tests. It begins with what the machine's says.
    pub fn of(machine: Arc<dyn Machine>) -> Self {
        let ahead = machine.wall().as_microsecond() - micros(machine.steady());
        Self {
            machine,
            followed: Mutex::new(None),
            least: AtomicI64::new(ahead),
            most: AtomicI64::new(ahead),
            steps: AtomicU64::new(0),
            moved: Notify::new(),
        }
    }

    fn own(&self) -> i64 {
        micros(self.machine.steady())
    }

    /// Follows the store's clock, which said `said` at some time since `asked`, an
    /// [`Clock::uptime`]. Answers by how much the time was changed where it was set.
    pub fn follow_store(&self, asked: Duration, said: Timestamp) -> Option<SignedDuration> {
        let sample = Sample { asked: micros(asked), heard: self.own(), said: said.as_microsecond() };
        self.follow(Truth::Store, sample)
    }

    /// Follows the machine's clock.
    pub fn follow_machine(&self) -> Option<SignedDuration> {
        let asked = self.own();
        let said = self.machine.wall().as_microsecond();
        self.follow(Truth::Machine, Sample { asked, heard: self.own(), said })
    }

    fn follow(&self, truth: Truth, sample: Sample) -> Option<SignedDuration> {
        let mut followed = self.followed.lock();
        let known = match followed.take() {
            Some(known) if known.truth == truth => known,
            _ => Followed { truth, offset: Offset::new(if truth == Truth::Store { DRIFT_PPM } else { 0 }) },
        };
        let known = followed.insert(known);
        let was_set = known.offset.take(sample);
        self.set(known.offset.bounds(sample.heard + HOLDS_FOR), was_set)
    }

    /// Nothing could be measured: less is known as time goes on.
    pub fn hold(&self) {
        let followed = self.followed.lock();
        let bounds = followed.as_ref().and_then(|known| known.offset.bounds(self.own() + HOLDS_FOR));
        self.set(bounds, false);
    }

    fn set(&self, bounds: Option<Bounds>, was_set: bool) -> Option<SignedDuration> {
        let bounds = bounds?;
        self.most.store(bounds.most, Ordering::Relaxed);
        let by = bounds.least - self.least.swap(bounds.least, Ordering::Relaxed);
        let stepped = was_set && by.abs() >= STEP_MIN;
        if stepped {
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        if by.abs() >= NOTICED_FROM {
            self.moved.notify_waiters();
        }
        stepped.then(|| SignedDuration::from_micros(by))
    }

    /// How far the machine's clock is ahead of this one.
    pub fn machine_ahead(&self) -> SignedDuration {
        self.now().duration_until(self.machine.wall())
    }

    /// By how much it may be later than this clock says.
    pub fn error(&self) -> SignedDuration {
        SignedDuration::from_micros(self.most.load(Ordering::Relaxed) - self.least.load(Ordering::Relaxed))
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        timestamp(self.own() + self.least.load(Ordering::Relaxed))
    }

    fn latest(&self) -> Timestamp {
        timestamp(self.own() + self.most.load(Ordering::Relaxed))
    }

    async fn sleep_until(&self, at: Timestamp) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            let left = self.now().duration_until(at);
            if left <= SignedDuration::ZERO {
                return;
            }
            tokio::select! {
                () = moved => {}
                () = self.machine.nap(left.unsigned_abs()) => {}
            }
        }
    }

    fn uptime(&self) -> Duration {
        self.machine.steady()
    }

    async fn sleep(&self, span: Span) {
        self.machine.nap(Duration::from_millis(span.as_millis())).await;
    }

    fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    async fn stepped(&self, seen: u64) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.steps() > seen {
                return;
            }
            moved.await;
        }
    }
}

/// A clock that is turned by hand.
#[derive(Debug)]
pub struct TestClock {
    inner: Mutex<Sleepers>,
    /// How many sleep; for those who wait until everybody does.
    asleep: watch::Sender<usize>,
    /// How often the clock was set.
    steps: watch::Sender<u64>,
}

#[derive(Debug)]
struct Sleepers {
    now: Timestamp,
    /// How much of what the clock shows has not passed: it was set ahead by this.
    ahead: SignedDuration,
    next: u64,
    waiting: BTreeMap<(Timestamp, u64), oneshot::Sender<()>>,
}

impl TestClock {
    pub fn new(now: Timestamp) -> Self {
        let inner = Sleepers { now, ahead: SignedDuration::ZERO, next: 0, waiting: BTreeMap::new() };
        Self { inner: Mutex::new(inner), asleep: watch::Sender::new(0), steps: watch::Sender::new(0) }
    }

    /// Goes on by so much, and wakes those whose time has come. Answers the
    /// new time.
    pub fn advance(&self, span: Span) -> Timestamp {
        let at = span.after(self.now());
        self.set(at);
        at
    }

    /// Sets the clock, either way, as people and daemons do: no time passes.
    pub fn step(&self, by: SignedDuration) {
        let now = {
            let mut inner = self.inner.lock();
            inner.ahead += by;
            inner.now.checked_add(by).unwrap_or(inner.now)
        };
        self.set(now);
        self.steps.send_modify(|steps| *steps += 1);
    }

    /// Goes on to a time.
    pub fn set(&self, now: Timestamp) {
        let (due, left) = {
            let mut inner = self.inner.lock();
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
        let mut inner = self.inner.lock();
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
        self.inner.lock().now
    }

    async fn sleep_until(&self, at: Timestamp) {
        let woken = {
            let mut inner = self.inner.lock();
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

    fn uptime(&self) -> Duration {
        let inner = self.inner.lock();
        (inner.now.duration_since(Timestamp::UNIX_EPOCH) - inner.ahead).unsigned_abs()
    }

    async fn sleep(&self, span: Span) {
        let until = self.uptime() + Duration::from_millis(span.as_millis());
        loop {
            let seen = self.steps();
            let left = until.saturating_sub(self.uptime());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = self.sleep_until(self.now().checked_add(left).unwrap_or(Timestamp::MAX)) => {}
                () = self.stepped(seen) => {}
            }
        }
    }

    fn steps(&self) -> u64 {
        *self.steps.borrow()
    }

    async fn stepped(&self, seen: u64) {
        // The sender lives as long as this clock.
        drop(self.steps.subscribe().wait_for(|steps| *steps > seen).await);
    }
}

/// A machine whose time goes on by hand, and whose clock is set by hand.
#[derive(Debug)]
pub struct TestMachine {
    /// The time as it is.
    pub time: TestClock,
    began: Timestamp,
    /// What its clock is ahead of that, in microseconds.
    wall_ahead: AtomicI64,
}

impl TestMachine {
    pub fn new(now: Timestamp) -> Self {
        Self { time: TestClock::new(now), began: now, wall_ahead: AtomicI64::new(0) }
    }

    /// Sets its clock so much ahead of the time, or behind it.
    pub fn set_wall(&self, ahead: SignedDuration) {
        self.wall_ahead.store(ahead.as_micros() as i64, Ordering::Relaxed);
    }
}

#[async_trait]
impl Machine for TestMachine {
    fn steady(&self) -> Duration {
        self.time.now().duration_since(self.began).unsigned_abs()
    }

    fn wall(&self) -> Timestamp {
        timestamp(self.time.now().as_microsecond() + self.wall_ahead.load(Ordering::Relaxed))
    }

    async fn nap(&self, span: Duration) {
        self.time.sleep_until(self.time.now().checked_add(span).unwrap_or(Timestamp::MAX)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_767_607_200 + second).unwrap()
    }

    /// What a clock says that is so many seconds ahead of the machine's as it was.
    fn ahead(machine: &TestMachine, seconds: i64) -> Timestamp {
        machine.time.now().checked_add(SignedDuration::from_secs(seconds)).unwrap()
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

    /// What a node does must not begin before its instant by the clock of the store,
    /// however slow which half of the way to it is.
    #[test]
    fn the_time_is_never_ahead_of_the_stores_however_uneven_the_way() {
        for (up, down) in [(400, 0), (0, 400), (200, 200), (5_000, 1)] {
            let toy = Arc::new(TestMachine::new(at(0)));
            let clock = SystemClock::of(Arc::clone(&toy) as Arc<dyn Machine>);
            for _ in 0..20 {
                let asked = clock.uptime();
                toy.time.advance(Span::millis(up));
                let said = ahead(&toy, 3_600);
                toy.time.advance(Span::millis(down));
                clock.follow_store(asked, said);
                for _ in 0..4 {
                    let theirs = ahead(&toy, 3_600);
                    let behind = clock.now().duration_until(theirs);
                    assert!(behind >= SignedDuration::ZERO, "{up} up, {down} down: early by {behind:?}");
                    assert!(behind <= SignedDuration::from_millis(down as i64 + 2), "{up} up, {down} down: {behind:?}");
                    assert!(clock.latest() >= theirs, "{up} up, {down} down");
                    toy.time.advance(Span::millis(250));
                }
            }
        }
    }

    /// Setting a node's own clock is nobody's business where the store has one.
    #[test]
    fn a_machines_clock_does_not_matter_where_the_store_has_one() {
        let toy = Arc::new(TestMachine::new(at(0)));
        let clock = SystemClock::of(Arc::clone(&toy) as Arc<dyn Machine>);
        clock.follow_store(clock.uptime(), ahead(&toy, 0));
        for set in [-300, 300, 86_400, -86_400] {
            toy.set_wall(SignedDuration::from_secs(set));
            toy.time.advance(Span::secs(1));
            assert_eq!(clock.follow_store(clock.uptime(), ahead(&toy, 0)), None);
            let off = clock.now().duration_until(ahead(&toy, 0));
            assert!(off.unsigned_abs() < Duration::from_millis(2), "{set}: {off:?}");
        }
        assert_eq!(clock.steps(), 0);
    }

    /// One who sleeps towards an instant must wake at it when the clock is set, both
    /// when it has come nearer and when it was set back and put right again.
    #[tokio::test]
    async fn sleepers_follow_a_clock_that_is_set() {
        for set in [-300, 300, -7_200, 7_200] {
            let toy = Arc::new(TestMachine::new(at(0)));
            let clock = Arc::new(SystemClock::of(Arc::clone(&toy) as Arc<dyn Machine>));
            clock.follow_machine();
            let sleeper = tokio::spawn({
                let clock = Arc::clone(&clock);
                async move { clock.sleep_until(at(60)).await }
            });
            toy.time.wait_for_sleepers(1).await;
            toy.set_wall(SignedDuration::from_secs(set));
            let by = clock.follow_machine();
            assert_eq!(by, Some(SignedDuration::from_secs(set)));
            clock.stepped(0).await;
            toy.time.advance(Span::secs(10));
            toy.set_wall(SignedDuration::ZERO);
            assert_eq!(clock.follow_machine(), Some(SignedDuration::from_secs(-set)));
            toy.time.set(at(60));
            sleeper.await.unwrap();
            assert_eq!(clock.now(), at(60));
        }
    }

    /// A span is a span, whatever the clock is set to.
    #[tokio::test]
    async fn spans_pass_at_their_own_pace() {
        let clock = Arc::new(TestClock::new(at(0)));
        let sleeper = tokio::spawn({
            let clock = Arc::clone(&clock);
            async move { clock.sleep(Span::secs(10)).await }
        });
        clock.wait_for_sleepers(1).await;
        clock.step(SignedDuration::from_secs(3_600));
        clock.wait_for_sleepers(1).await;
        clock.advance(Span::secs(5));
        clock.step(SignedDuration::from_secs(-7_200));
        clock.wait_for_sleepers(1).await;
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Span::secs(5));
        sleeper.await.unwrap();
    }
}
