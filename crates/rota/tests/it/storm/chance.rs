//! Chance out of a seed, and the waiting between two things.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use jiff::Timestamp;

/// What the machine's clock says.
#[expect(clippy::disallowed_methods, reason = "real processes live by the machine's clock")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// Spreads numbers without a pattern (`SplitMix64`).
pub struct Chance(u64);

impl Chance {
    /// Everybody who draws has a stream of their own.
    pub fn new(seed: u64, who: u64) -> Self {
        let mut chance = Self(seed ^ who.wrapping_mul(0xd134_2543_de82_ef95));
        chance.number();
        chance
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    pub fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        &among[self.below(among.len())]
    }

    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.number() % (to - from + 1))
    }
}

/// Says to everybody that the storm is over; until then they wait for it between two
/// things that they do.
#[derive(Clone, Default)]
pub struct Over(Arc<(Mutex<bool>, Condvar)>);

impl Over {
    pub fn call(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    /// Waits for the end, so long at most; true where it has come.
    pub fn within(&self, limit: Duration) -> bool {
        *self.0.1.wait_timeout_while(self.0.0.lock().unwrap(), limit, |over| !*over).unwrap().0
    }
}
