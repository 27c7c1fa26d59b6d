//! The partitions this node holds.
//!
//! Memory, not truth: the store's epochs decide. What is kept here spares a
//! node work that would be refused.

use jiff::Timestamp;
use parking_lot::RwLock;
use rota_core::{
    ids::{PARTITIONS, Partition},
    store::Epoch,
};

/// One partition as held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub epoch: Epoch,
    /// Runs made before this may have been in a former owner's hands.
    pub taken_at: Timestamp,
    /// To be given away: nothing new is started in it.
    pub leaving: bool,
    /// The generation in which it was taken.
    since: u64,
}

impl Held {
    /// Whether it has been held without a break since `generation`. What was read or
    /// written before it was taken may be over: another node held it in between.
    pub fn since(&self, generation: u64) -> bool {
        self.since <= generation
    }
}

#[derive(Debug)]
struct Map {
    parts: [Option<Held>; PARTITIONS],
    /// Rises with every change, for those who keep something derived.
    generation: u64,
    next: usize,
}

#[derive(Debug)]
pub struct Territory(RwLock<Map>);

impl Default for Territory {
    fn default() -> Self {
        let map = Map { parts: [None; PARTITIONS], generation: 0, next: 0 };
        Self(RwLock::new(map))
    }
}

impl Territory {
    fn read<T>(&self, look: impl FnOnce(&Map) -> T) -> T {
        look(&self.0.read())
    }

    fn write<T>(&self, change: impl FnOnce(&mut Map) -> T) -> T {
        change(&mut self.0.write())
    }

    pub fn held(&self, part: Partition) -> Option<Held> {
        self.read(|map| map.parts[usize::from(part.0)])
    }

    /// What is held, as a table by partition.
    pub fn table(&self) -> [Option<Held>; PARTITIONS] {
        self.read(|map| map.parts)
    }

    pub fn parts(&self) -> Vec<Partition> {
        self.read(|map| Partition::all().filter(|part| map.parts[usize::from(part.0)].is_some()).collect())
    }

    /// Those that are not to be given away.
    pub fn staying(&self) -> Vec<Partition> {
        let stays = |held: Option<Held>| held.is_some_and(|held| !held.leaving);
        self.read(|map| Partition::all().filter(|part| stays(map.parts[usize::from(part.0)])).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.read(|map| map.parts.iter().all(Option::is_none))
    }

    pub fn generation(&self) -> u64 {
        self.read(|map| map.generation)
    }

    /// A partition for what this node makes: one of its own, in turn.
    pub fn pick(&self) -> Option<Partition> {
        self.write(|map| {
            let turn = (1..=PARTITIONS).map(|step| (map.next + step) % PARTITIONS);
            let found = turn.into_iter().find(|n| map.parts[*n].is_some_and(|held| !held.leaving))?;
            map.next = found;
            Some(Partition(found as u8))
        })
    }

    pub fn take(&self, taken: &[(Partition, Epoch)], now: Timestamp) {
        self.write(|map| {
            map.generation += 1;
            for (part, epoch) in taken {
                let place = &mut map.parts[usize::from(part.0)];
                // Nobody else can have held it meanwhile if its epoch is the same.
                let same = place.filter(|held| held.epoch == *epoch);
                let since = same.map_or(map.generation, |held| held.since);
                *place = Some(Held { epoch: *epoch, taken_at: now, leaving: false, since });
            }
        });
    }

    pub fn lose(&self, parts: &[Partition]) {
        self.write(|map| {
            for part in parts {
                map.parts[usize::from(part.0)] = None;
            }
            map.generation += 1;
        });
    }

    pub fn set_leaving(&self, parts: &[Partition], leaving: bool) {
        self.write(|map| {
            for part in parts {
                if let Some(held) = &mut map.parts[usize::from(part.0)] {
                    held.leaving = leaving;
                }
            }
            map.generation += 1;
        });
    }

    /// Whether this node does what one node must do for all.
    pub fn is_steward(&self) -> bool {
        self.held(Partition(0)).is_some()
    }
}
