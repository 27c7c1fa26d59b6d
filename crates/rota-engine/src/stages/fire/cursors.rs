//! The cursors of the next minute, in memory.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rota_core::{
    ids::ScheduleId,
    store::{DueCursor, Enqueued, FireItem},
};

/// What a look brought. A hint: each write is guarded by the cursor as it was read.
pub(super) struct Cursors {
    due: BTreeMap<(Timestamp, ScheduleId), DueCursor>,
    /// Memory holds every cursor that was due up to here at the last look.
    covered_to: Timestamp,
    look_at: Timestamp,
    /// Of the partitions that were looked through.
    generation: u64,
    doubted: bool,
}

impl Cursors {
    pub fn new() -> Self {
        Self {
            due: BTreeMap::new(),
            covered_to: Timestamp::MIN,
            look_at: Timestamp::MIN,
            generation: u64::MAX,
            doubted: true,
        }
    }

    /// Something is not as it was read.
    pub fn doubt(&mut self) {
        self.doubted = true;
    }

    pub fn is_doubted(&self) -> bool {
        self.doubted
    }

    pub fn look_at(&self) -> Timestamp {
        self.look_at
    }

    /// When the first of them is due.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.due.keys().next().map(|(at, _)| *at)
    }

    /// Whether something is due at `now`, or may be, for all that is known.
    pub fn may_be_due(&self, now: Timestamp) -> bool {
        self.next_at().unwrap_or(self.covered_to) <= now
    }

    pub fn must_look(&self, generation: u64, now: Timestamp) -> bool {
        let drained = self.due.is_empty() && self.covered_to <= now;
        self.doubted || drained || now >= self.look_at || self.generation != generation
    }

    /// Takes in what a look has found, in the order in which it is due: all up to
    /// `covered_to`.
    pub fn looked(&mut self, found: Vec<DueCursor>, covered_to: Timestamp, generation: u64, look_at: Timestamp) {
        self.due = found.into_iter().map(|due| ((due.cursor.due_at, due.schedule), due)).collect();
        (self.covered_to, self.look_at) = (covered_to, look_at);
        (self.generation, self.doubted) = (generation, false);
    }

    /// Takes up to `most` that are due.
    pub fn take(&mut self, most: usize, now: Timestamp) -> Vec<DueCursor> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(first) = self.due.first_entry()
            && first.key().0 <= now
        {
            taken.push(first.remove());
        }
        taken
    }

    pub fn put_back(&mut self, due: DueCursor) {
        self.due.insert((due.cursor.due_at, due.schedule), due);
    }

    /// The next cursor, if memory is to hold it. The store counts a refused run
    /// differently from the plan; then its own cursor is read.
    pub fn fired(&mut self, item: &FireItem, answers: &[Enqueued]) {
        if answers.iter().any(|answer| !matches!(answer, Enqueued::Made { .. })) {
            self.doubted = true;
        } else if let Some(next) = item.next
            && next.due_at <= self.covered_to
        {
            self.put_back(DueCursor { cursor: next, ..item.due });
        }
    }
}
