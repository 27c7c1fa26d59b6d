//! What the world does to the nodes: chance, time, and the way to the store.
//!
//! Everything is drawn from one seed and happens in one thread, so that a seed
//! is a whole story and can be told again.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use rota_core::{
    duration::Span,
    ports::{Clock, Hints, Listener, Random, Seeded, Topic},
};
use rota_engine::{clock::TestClock, hints::LocalHints};
use tokio::sync::watch;

use super::clocks::{StoreClock, is_step};
use crate::faulty::{Fate, Kind, Line, Parcel};

/// No clock of a node is further off than this.
pub const SKEW_MAX_MS: i64 = 900;

/// What a storm left behind may be found for so long.
const CALM_AFTER_MS: i64 = 30_000;

/// Chance, out of one seed.
pub struct Dice(Seeded);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Seeded::new(seed))
    }

    pub fn below(&self, most: u64) -> u64 {
        self.0.bits() % most.max(1)
    }

    /// From `least` to, not including, `most`.
    pub fn between(&self, least: u64, most: u64) -> u64 {
        least + self.below(most - least)
    }

    pub fn percent(&self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn pick<'t, T>(&self, all: &'t [T]) -> Option<&'t T> {
        if all.is_empty() { None } else { all.get(self.below(all.len() as u64) as usize) }
    }

    pub fn shuffle<T>(&self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// What all nodes of a world are exposed to.
pub struct Weather {
    /// The time that only goes on.
    pub clock: Arc<TestClock>,
    /// The clock that everybody goes by, which anybody may set.
    pub store_clock: StoreClock,
    /// Whether processes measure it.
    pub measures: bool,
    pub dice: Dice,
    stormy: AtomicBool,
    calm_since: AtomicI64,
    away_until: AtomicI64,
    posts: Mutex<BTreeMap<(Timestamp, u64), Parcel>>,
    posted: AtomicU64,
    /// The last of all that is late has come by then, in milliseconds.
    late_until: AtomicI64,
    faults: AtomicUsize,
    /// When a process started last, in microseconds.
    started_at: AtomicI64,
    hints: [AtomicU64; Topic::ALL.len()],
    turns: AtomicU64,
    trace: Mutex<Vec<String>>,
    /// Only the last lines are of interest, unless somebody compares them all.
    pub trace_max: usize,
}

impl Weather {
    pub fn process_starts(&self) {
        self.started_at.store(self.now().as_microsecond(), Ordering::Relaxed);
    }

    /// Whether a process started as the store's clock was set. It cannot know that, and
    /// takes everybody for dead whose word was given by the clock as it was before.
    pub fn started_as_the_clock_was_set(&self) -> bool {
        let lately = Span::secs(6);
        let started_at = Timestamp::from_microsecond(self.started_at.load(Ordering::Relaxed)).unwrap();
        self.store_clock.was_set_within(lately, self.now()) && self.now() < lately.after(started_at)
    }

    pub fn new(seed: u64, now: Timestamp, trace_max: usize) -> Self {
        let dice = Dice::new(seed);
        Self {
            clock: Arc::new(TestClock::new(now)),
            store_clock: StoreClock::default(),
            measures: dice.percent(60),
            dice,
            stormy: AtomicBool::new(false),
            calm_since: AtomicI64::new(0),
            away_until: AtomicI64::new(i64::MIN),
            posts: Mutex::default(),
            posted: AtomicU64::new(0),
            late_until: AtomicI64::new(i64::MIN),
            faults: AtomicUsize::new(0),
            started_at: AtomicI64::new(0),
            hints: [const { AtomicU64::new(0) }; Topic::ALL.len()],
            turns: AtomicU64::new(0),
            trace: Mutex::default(),
            trace_max,
        }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn ahead(&self, millis: i64) -> Timestamp {
        self.now().checked_add(SignedDuration::from_millis(millis)).unwrap()
    }

    /// What the store's clock says.
    pub fn store_now(&self) -> Timestamp {
        self.ahead(self.store_clock.ahead_ms())
    }

    /// The latest that anybody may believe it to be.
    pub fn latest(&self) -> Timestamp {
        let skew = if self.measures { 0 } else { SKEW_MAX_MS };
        self.ahead(self.store_clock.believed_ms(self.now()) + skew)
    }

    /// The same by any clock there ever was.
    pub fn latest_ever(&self) -> Timestamp {
        self.ahead(self.store_clock.most_ms() + SKEW_MAX_MS)
    }

    /// Somebody sets the store's clock.
    pub fn set_store_clock(&self, ahead_ms: i64) {
        self.store_clock.set(ahead_ms, self.now());
        self.fault(|| format!("the store's clock is set {ahead_ms} ms ahead of the time"));
    }

    /// How long the story has lasted.
    pub fn elapsed(&self) -> Span {
        Span::millis((self.now().as_millisecond() - crate::bed::at(0).as_millisecond()) as u64)
    }

    /// Whether there is a storm, or was one a moment ago.
    pub fn was_stormy(&self) -> bool {
        self.stormy.load(Ordering::Relaxed)
            || self.now().as_millisecond() < self.calm_since.load(Ordering::Relaxed) + CALM_AFTER_MS
    }

    pub fn storm(&self, stormy: bool) {
        self.stormy.store(stormy, Ordering::Relaxed);
        if !stormy {
            self.calm_since.store(self.now().as_millisecond(), Ordering::Relaxed);
            self.away_until.store(i64::MIN, Ordering::Relaxed);
        }
    }

    pub fn fault(&self, what: impl FnOnce() -> String) {
        self.faults.fetch_add(1, Ordering::Relaxed);
        self.note(what);
    }

    pub fn faults(&self) -> usize {
        self.faults.load(Ordering::Relaxed)
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        if self.trace_max == 0 {
            return;
        }
        let mut trace = self.trace.lock().unwrap();
        let millis = self.now().as_millisecond() - crate::bed::at(0).as_millisecond();
        trace.push(format!("{millis} {}", what()));
        if trace.len() > 2 * self.trace_max {
            let half = trace.len() - self.trace_max;
            trace.drain(..half);
        }
    }

    pub fn trace(&self) -> Vec<String> {
        self.trace.lock().unwrap().clone()
    }

    /// The store is away for everybody.
    pub fn outage(&self, until: Timestamp) {
        self.away_until.store(until.as_microsecond(), Ordering::Relaxed);
        self.fault(|| "the store goes away".into());
    }

    fn is_away(&self) -> bool {
        self.now().as_microsecond() < self.away_until.load(Ordering::Relaxed)
    }

    /// Does what has arrived by now.
    pub fn deliver(&self) {
        loop {
            let parcel = {
                let mut posts = self.posts.lock().unwrap();
                match posts.first_entry() {
                    Some(first) if first.key().0 <= self.now() => first.remove(),
                    _ => return,
                }
            };
            self.next_turn();
            parcel();
        }
    }

    /// Whether a call, or an answer, is yet to come.
    pub fn is_anything_late(&self) -> bool {
        let awaited = self.now().as_millisecond() <= self.late_until.load(Ordering::Relaxed);
        awaited || !self.posts.lock().unwrap().is_empty()
    }

    /// Somebody gets on.
    pub fn next_turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    pub fn turn(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    pub fn heard(&self, topic: Topic) -> u64 {
        self.hints[topic as usize].load(Ordering::Relaxed)
    }

    fn later(&self) -> Timestamp {
        let millis = if self.dice.percent(70) { self.dice.between(20, 900) } else { self.dice.between(900, 12_000) };
        let at = Span::millis(millis).after(self.now());
        self.late_until.fetch_max(at.as_millisecond(), Ordering::Relaxed);
        at
    }

    fn draw(&self, kind: Kind) -> Fate {
        let roll = self.dice.below(1_000);
        match kind {
            Kind::Read => match roll {
                0..14 => Fate::Refused,
                14..32 => Fate::Late { arrives_at: None, answered_at: Some(self.later()) },
                _ => Fate::Through,
            },
            Kind::Plain | Kind::Named => match roll {
                0..20 => Fate::Refused,
                20..50 => Fate::Unanswered,
                50..66 => Fate::Vanished,
                66..90 => Fate::Late { arrives_at: Some(self.later()), answered_at: None },
                90..115 => Fate::Late { arrives_at: None, answered_at: Some(self.later()) },
                _ => Fate::Through,
            },
        }
    }
}

/// The way between one process and the store.
pub struct Wire {
    pub weather: Arc<Weather>,
    pub process: usize,
    /// The process dies at its so-many-th call from now.
    pub trap: AtomicUsize,
    pub trapped: AtomicBool,
    /// When a call was last sent on its way late, in microseconds.
    late_at: AtomicI64,
}

impl Wire {
    pub fn new(weather: Arc<Weather>, process: usize) -> Self {
        let (trap, trapped, late_at) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicI64::new(i64::MIN));
        Self { weather, process, trap, trapped, late_at }
    }

    /// Whether a call of the process was late that began since then.
    pub fn was_late_since(&self, at: Timestamp) -> bool {
        at.as_microsecond() <= self.late_at.load(Ordering::Relaxed)
    }

    /// Whether the process dies here, at this call.
    fn springs(&self) -> bool {
        let left = self.trap.load(Ordering::Relaxed);
        if left > 0 {
            self.trap.store(left - 1, Ordering::Relaxed);
        }
        left == 1
    }
}

impl Line for Wire {
    fn fate(&self, what: &'static str, kind: Kind) -> Fate {
        if self.springs() {
            self.trapped.store(true, Ordering::Relaxed);
            let now = self.weather.now();
            let arrives_at = if self.weather.dice.percent(50) { Some(now) } else { None };
            return Fate::Late { arrives_at, answered_at: Some(Timestamp::MAX) };
        }
        if self.weather.is_away() {
            return Fate::Refused;
        }
        let stormy = self.weather.stormy.load(Ordering::Relaxed);
        let fate = if stormy { self.weather.draw(kind) } else { Fate::Through };
        if matches!(fate, Fate::Late { .. }) {
            self.late_at.store(self.weather.now().as_microsecond(), Ordering::Relaxed);
        }
        if fate == Fate::Through {
            self.weather.note(|| format!("{} {what}", self.process));
        } else {
            self.weather.fault(|| format!("{} {what} {fate:?}", self.process));
        }
        fate
    }

    fn post(&self, at: Timestamp, parcel: Parcel) {
        let number = self.weather.posted.fetch_add(1, Ordering::Relaxed);
        self.weather.posts.lock().unwrap().insert((at, number), parcel);
    }

    fn has_come(&self, at: Timestamp) -> bool {
        self.weather.now() >= at
    }
}

/// Hints that get lost, for some or for all.
pub struct LossyHints {
    pub weather: Arc<Weather>,
    pub local: LocalHints,
}

impl Hints for LossyHints {
    fn wake(&self, topic: Topic) {
        if self.weather.stormy.load(Ordering::Relaxed) && self.weather.dice.percent(30) {
            self.weather.fault(|| format!("a hint about {topic:?} is lost"));
            return;
        }
        self.weather.hints[topic as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn listen(&self, topic: Topic) -> Box<dyn Listener> {
        self.local.listen(topic)
    }
}

/// The clock of one process: the true one, some way off, and standing still
/// while the process does.
pub struct NodeClock {
    base: Arc<TestClock>,
    skew_ms: AtomicI64,
    steps: AtomicU64,
    stopped: watch::Sender<bool>,
}

impl NodeClock {
    pub fn new(base: Arc<TestClock>, skew_ms: i64) -> Self {
        let (skew_ms, steps) = (AtomicI64::new(skew_ms), AtomicU64::new(0));
        Self { base, skew_ms, steps, stopped: watch::Sender::new(false) }
    }

    pub fn skew(&self, millis: i64) {
        let was = self.skew_ms.swap(millis, Ordering::Relaxed);
        self.steps.fetch_add(u64::from(is_step(millis - was)), Ordering::Relaxed);
    }

    /// Whoever sleeps in a stopped process sleeps on.
    pub fn stop(&self, stopped: bool) {
        self.stopped.send_replace(stopped);
    }

    fn off(&self) -> SignedDuration {
        SignedDuration::from_millis(self.skew_ms.load(Ordering::Relaxed))
    }
}

#[async_trait]
impl Clock for NodeClock {
    fn now(&self) -> Timestamp {
        self.base.now().checked_add(self.off()).unwrap()
    }

    async fn sleep_until(&self, at: Timestamp) {
        loop {
            let wake_at = at.checked_sub(self.off()).unwrap_or(Timestamp::MAX);
            self.base.sleep_until(wake_at).await;
            let mut stopped = self.stopped.subscribe();
            if stopped.wait_for(|stopped| !*stopped).await.is_err() {
                std::future::pending::<()>().await;
            }
            if self.now() >= at {
                return;
            }
        }
    }

    fn uptime(&self) -> Duration {
        self.base.uptime()
    }

    fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}
