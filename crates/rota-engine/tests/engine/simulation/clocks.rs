//! Clocks: the store's, which anybody may set by any size, either way, and those of
//! the processes.
//!
//! In most stories a process tells the time as it does in earnest: it has steady time,
//! a clock of its machine that may be hours off, and the store's clock to measure by.
//! In the others nothing is measured: the clocks are off by up to [`SKEW_MAX_MS`]
//! either way, which is more than is known of them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use rota_core::{clock::STEP_MIN, duration::Span, ports::Clock};
use rota_engine::{
    Builder,
    clock::{Machine, SystemClock, TestClock},
};
use tokio::sync::watch;

use super::weather::{Dice, NodeClock, SKEW_MAX_MS};

/// A clock that was set counts as such for so long: by then everybody has measured it and
/// has done what it decided before, whoever was stopped twice meanwhile too.
const KNOWN_AFTER: Span = Span::secs(60);

/// What the store's clock says, ahead of the time that only goes on.
#[derive(Default)]
pub struct StoreClock(Mutex<Settings>);

#[derive(Default)]
struct Settings {
    ahead_ms: i64,
    /// As it was before, each with when it ceased to be.
    before: Vec<(Timestamp, i64)>,
    forward: u64,
}

impl StoreClock {
    fn read<T>(&self, look: impl FnOnce(&Settings) -> T) -> T {
        look(&self.0.lock().unwrap())
    }

    pub fn ahead_ms(&self) -> i64 {
        self.read(|settings| settings.ahead_ms)
    }

    pub fn set(&self, ahead_ms: i64, now: Timestamp) {
        let mut settings = self.0.lock().unwrap();
        let was = std::mem::replace(&mut settings.ahead_ms, ahead_ms);
        settings.before.push((now, was));
        settings.forward += u64::from(was < ahead_ms);
    }

    /// The furthest ahead that it was, ever.
    pub fn most_ms(&self) -> i64 {
        self.read(|settings| settings.before.iter().map(|(_, ahead)| *ahead).fold(settings.ahead_ms, i64::max))
    }

    /// The furthest ahead that anybody may believe it to be.
    pub fn believed_ms(&self, now: Timestamp) -> i64 {
        let recent = |until: &Timestamp| now < KNOWN_AFTER.after(*until);
        self.read(|settings| {
            let before = settings.before.iter().filter(|(until, _)| recent(until)).map(|(_, ahead)| *ahead);
            before.fold(settings.ahead_ms, i64::max)
        })
    }

    pub fn was_set_lately(&self, now: Timestamp) -> bool {
        self.was_set_within(KNOWN_AFTER, now)
    }

    pub fn was_set_within(&self, span: Span, now: Timestamp) -> bool {
        self.read(|settings| settings.before.last().is_some_and(|(until, _)| now < span.after(*until)))
    }

    /// How often it was set ahead.
    pub fn forward(&self) -> u64 {
        self.read(|settings| settings.forward)
    }
}

/// By how much a clock is set: seconds as a rule, and hours now and then.
pub fn step_ms(dice: &Dice) -> i64 {
    let most = match dice.below(10) {
        0..5 => 5_000,
        5..8 => 120_000,
        _ => 3 * 3_600_000,
    };
    dice.between(300, most) as i64 * if dice.percent(50) { 1 } else { -1 }
}

/// The machine of one process.
pub struct SimMachine {
    base: Arc<TestClock>,
    wall_ahead_ms: AtomicI64,
    stopped: watch::Sender<bool>,
}

#[async_trait]
impl Machine for SimMachine {
    fn steady(&self) -> Duration {
        self.base.uptime()
    }

    fn wall(&self) -> Timestamp {
        let ahead = SignedDuration::from_millis(self.wall_ahead_ms.load(Ordering::Relaxed));
        self.base.now().checked_add(ahead).unwrap()
    }

    async fn nap(&self, span: Duration) {
        self.base.sleep_until(self.base.now().checked_add(span).unwrap_or(Timestamp::MAX)).await;
        if self.stopped.subscribe().wait_for(|stopped| !*stopped).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// How one process tells the time.
#[derive(Clone)]
pub enum ProcessClock {
    /// Nothing is measured.
    Off(Arc<NodeClock>),
    Measured {
        machine: Arc<SimMachine>,
        clock: Arc<SystemClock>,
    },
}

impl ProcessClock {
    pub fn new(base: &Arc<TestClock>, dice: &Dice, measures: bool) -> Self {
        if !measures {
            return Self::Off(Arc::new(NodeClock::new(Arc::clone(base), skew_ms(dice))));
        }
        let wall_ahead_ms = AtomicI64::new(step_ms(dice));
        let (base, stopped) = (Arc::clone(base), watch::Sender::new(false));
        let machine = Arc::new(SimMachine { base, wall_ahead_ms, stopped });
        let clock = Arc::new(SystemClock::of(Arc::clone(&machine) as Arc<dyn Machine>));
        Self::Measured { machine, clock }
    }

    pub fn measures(&self) -> bool {
        matches!(self, Self::Measured { .. })
    }

    pub fn of(&self, builder: Builder) -> Builder {
        match self {
            Self::Off(clock) => builder.clock(Arc::clone(clock) as Arc<dyn Clock>),
            Self::Measured { clock, .. } => builder.system_clock(Arc::clone(clock)),
        }
    }

    pub fn port(&self) -> Arc<dyn Clock> {
        match self {
            Self::Off(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            Self::Measured { clock, .. } => Arc::clone(clock) as Arc<dyn Clock>,
        }
    }

    pub fn stop(&self, stopped: bool) {
        match self {
            Self::Off(clock) => clock.stop(stopped),
            Self::Measured { machine, .. } => drop(machine.stopped.send_replace(stopped)),
        }
    }

    /// Somebody sets the clock of its machine; says by how much.
    pub fn set(&self, dice: &Dice) -> i64 {
        match self {
            Self::Off(clock) => {
                let skew = skew_ms(dice);
                clock.skew(skew);
                skew
            }
            Self::Measured { machine, .. } => {
                let ahead = step_ms(dice);
                machine.wall_ahead_ms.store(ahead, Ordering::Relaxed);
                ahead
            }
        }
    }
}

fn skew_ms(dice: &Dice) -> i64 {
    dice.below(2 * SKEW_MAX_MS as u64) as i64 - SKEW_MAX_MS
}

/// Whether a clock that is set by so much tells of it.
pub fn is_step(millis: i64) -> bool {
    millis.abs() * 1_000 >= STEP_MIN
}
