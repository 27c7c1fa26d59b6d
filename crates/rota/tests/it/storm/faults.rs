//! What befalls processes and the ways between them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::{
    chance::{Chance, Over},
    world::{NODES, Seat, WORKERS, World},
};
use crate::proxy::Direction::{ToClient, ToServer};

/// Every fault, by the name that turns it on and off, and whom it befalls.
pub const FAULTS: [(&str, Befalls); 15] = [
    ("kill-node", Befalls::Nodes),
    ("stop-node", Befalls::Nodes),
    ("drain-node", Befalls::Nodes),
    ("cut-database", Befalls::Nodes),
    ("stall-database", Befalls::Nodes),
    ("delay-database", Befalls::Nodes),
    ("half-cut-database", Befalls::Nodes),
    ("restart-database", Befalls::Database),
    ("kill-worker", Befalls::Workers),
    ("stop-worker", Befalls::Workers),
    ("drain-worker", Befalls::Workers),
    ("hang-up", Befalls::Workers),
    ("stall-worker", Befalls::Workers),
    ("delay-worker", Befalls::Workers),
    ("half-cut-worker", Befalls::Workers),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Befalls {
    Nodes,
    Workers,
    Database,
}

/// Now and then nothing new happens for a while: what goes wrong then has no excuse.
const ROUND: Duration = Duration::from_secs(30);
const CALM: Duration = Duration::from_secs(10);

/// A machine that had no time for the storm itself for so long had none for others.
const STARVED: Duration = Duration::from_secs(1);

pub struct Faults<'w> {
    world: &'w mut World,
    chance: Chance,
    on: Vec<(&'static str, Befalls)>,
    /// Whom something befalls, until when.
    under_way: BTreeMap<Seat, Instant>,
    pub count: BTreeMap<&'static str, usize>,
}

impl<'w> Faults<'w> {
    pub fn new(world: &'w mut World, seed: u64, names: &BTreeSet<String>) -> Self {
        let on = FAULTS.into_iter().filter(|(name, _)| names.contains(*name)).collect();
        Self { world, chance: Chance::new(seed, 1), on, under_way: BTreeMap::new(), count: BTreeMap::new() }
    }

    /// Lets things happen for so long, and then everything be well again.
    pub fn rage(&mut self, length: Duration) {
        let (begun, pause) = (Instant::now(), Over::default());
        let (mut next, mut last) = (begun, begun);
        while begun.elapsed() < length {
            self.end_what_is_over(Instant::now());
            self.world.tend();
            if last.elapsed() > STARVED {
                self.world.starved(last.elapsed());
            }
            last = Instant::now();
            let into_round = Duration::from_millis((begun.elapsed().as_millis() % ROUND.as_millis()) as u64);
            if into_round >= CALM && Instant::now() >= next {
                self.begin();
                next = Instant::now() + self.chance.millis(300, 2_500);
            }
            pause.within(Duration::from_millis(50));
        }
        self.under_way.clear();
        self.world.mend();
    }

    fn end_what_is_over(&mut self, now: Instant) {
        let over: Vec<Seat> =
            self.under_way.iter().filter(|(_, until)| **until <= now).map(|(seat, _)| *seat).collect();
        for seat in over {
            self.under_way.remove(&seat);
            if seat != Seat::Database {
                self.world.way(seat).mend();
                self.world.signal(seat, Signal::CONT);
            }
            self.world.healed(seat);
        }
    }

    fn begin(&mut self) {
        if self.on.is_empty() {
            return;
        }
        let (name, befalls) = *self.chance.pick(&self.on);
        let seat = match befalls {
            Befalls::Nodes => Seat::Node(self.chance.below(NODES)),
            Befalls::Workers => Seat::Worker(self.chance.below(WORKERS)),
            Befalls::Database => Seat::Database,
        };
        if self.under_way.contains_key(&seat) {
            return;
        }
        *self.count.entry(name).or_default() += 1;
        self.world.hurt(name, seat);
        let lasts = self.befall(name, seat);
        self.under_way.insert(seat, Instant::now() + lasts);
    }

    /// Has something happen, and answers how long it lasts.
    fn befall(&mut self, name: &str, seat: Seat) -> Duration {
        let lasts = self.chance.millis(200, 6_000);
        match name {
            "kill-node" | "kill-worker" => self.world.signal(seat, Signal::KILL),
            "drain-node" | "drain-worker" => self.world.signal(seat, Signal::TERM),
            "stop-node" | "stop-worker" => self.world.signal(seat, Signal::STOP),
            "cut-database" => self.world.way(seat).cut(),
            "stall-database" | "stall-worker" => self.world.way(seat).hold(&[ToServer, ToClient]),
            "delay-database" | "delay-worker" => self.world.way(seat).slow(self.chance.millis(20, 400)),
            "half-cut-database" | "half-cut-worker" => {
                let direction = *self.chance.pick(&[ToServer, ToClient]);
                self.world.way(seat).hold(&[direction]);
            }
            "hang-up" => self.world.way(seat).hang_up(),
            "restart-database" => self.world.restart_database(),
            other => unreachable!("{other} is not in the list"),
        }
        match name {
            // It is back at once, and takes its time to find its feet.
            "kill-node" | "drain-node" | "kill-worker" | "drain-worker" | "restart-database" | "hang-up" => {
                Duration::from_secs(4)
            }
            _ => lasts,
        }
    }
}
