//! Slots: the right to run under a concurrency key.
//!
//! A key has one row with its limit, how many hold a slot and how many wait.
//! The store locks the rows it needs in key order, asks [`Slot::enter`] for
//! each run that comes, [`Slot::shift`] for those that go, and
//! [`Slot::admit`] for how many waiting runs may now hold one. Every exit from
//! a holding state leaves in its own transaction, so no slot can leak.
//!
//! Which waiting run is admitted is the store's to find (the first in order);
//! rate limits are in [`crate::rate`].

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    choice::choices,
    duration::Span,
    ids::{JobId, TenantId},
    run::SlotUse,
};

/// A concurrency key, as a number: the first eight bytes of a SHA-256 over
/// tenant, job and the rendered key. A cryptographic hash, because the key is
/// made of a tenant's own data and must not be steerable onto another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotKey(pub i64);

impl SlotKey {
    pub fn new(tenant: TenantId, job: JobId, rendered: &str) -> Self {
        Self(digest(b"slot", tenant, job, rendered))
    }
}

/// A key of `unique`, hashed like a [`SlotKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UniqueKey(pub i64);

impl UniqueKey {
    pub fn new(tenant: TenantId, job: JobId, rendered: &str) -> Self {
        Self(digest(b"unique", tenant, job, rendered))
    }
}

fn digest(kind: &[u8], tenant: TenantId, job: JobId, rendered: &str) -> i64 {
    let mut hash = Sha256::new();
    hash.update(kind);
    hash.update(tenant.0.to_le_bytes());
    hash.update(job.0.to_le_bytes());
    hash.update(rendered.as_bytes());
    let bytes = hash.finalize();
    i64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]])
}

choices! {
    /// What becomes of a run that finds every slot of its key taken.
    #[derive(Default)]
    WhenFull {
        /// It waits, unless `max_queued` already wait.
        #[default]
        Queue = "queue",
        /// It is left out, and that is recorded.
        Skip = "skip",
        /// Its maker is refused.
        Reject = "reject",
        /// It waits, and takes the place of all that waited.
        Replace = "replace",
        /// It waits, and those that hold a slot are asked to stop.
        CancelRunning = "cancel_running",
    }
}

/// What a run asks of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotAsk {
    pub key: SlotKey,
    pub limit: u32,
    pub when_full: WhenFull,
    /// How many may wait; none means no bound.
    pub max_queued: Option<u32>,
    /// How long those have to stop that it asks to, where it does.
    pub grace: Span,
}

/// One key's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub limit: u32,
    pub held: u32,
    pub waiting: u32,
}

/// The answer to a run that wants a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It holds a slot.
    Holds,
    /// It waits its turn.
    Waits,
    /// It waits, and all that waited before it are to be displaced.
    WaitsAlone,
    /// It waits, and all that hold a slot are to be asked to stop.
    WaitsForCancel,
    /// There is no room for it.
    Refused,
}

/// What changes of runs do to the counters of their key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    pub held: i32,
    pub waiting: i32,
}

impl Shift {
    /// Of a run that used its slot as `from` says, and now as `to` does.
    pub fn between(from: SlotUse, to: SlotUse) -> Self {
        let of = |kind: SlotUse| i32::from(to == kind) - i32::from(from == kind);
        Self { held: of(SlotUse::Holds), waiting: of(SlotUse::Waits) }
    }

    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { held: self.held.saturating_add(other.held), waiting: self.waiting.saturating_add(other.waiting) }
    }
}

impl Slot {
    pub const fn empty(limit: u32) -> Self {
        Self { limit, held: 0, waiting: 0 }
    }

    /// Lets a new run in, or says what becomes of it.
    ///
    /// The newest asker's limit holds from now on, so an edited job takes
    /// effect at its next run.
    pub fn enter(&mut self, ask: &SlotAsk) -> Entry {
        self.limit = ask.limit;
        if self.held < self.limit && self.waiting == 0 {
            self.held += 1;
            return Entry::Holds;
        }
        match ask.when_full {
            WhenFull::Queue if ask.max_queued.is_some_and(|most| self.waiting >= most) => Entry::Refused,
            WhenFull::Skip | WhenFull::Reject => Entry::Refused,
            WhenFull::Queue => {
                self.waiting += 1;
                Entry::Waits
            }
            WhenFull::Replace => {
                self.waiting = 1;
                Entry::WaitsAlone
            }
            WhenFull::CancelRunning => {
                self.waiting += 1;
                Entry::WaitsForCancel
            }
        }
    }

    /// Lets a run back in after a backoff: it was admitted once and is never
    /// refused now, but it waits its turn.
    pub fn reenter(&mut self) -> Entry {
        if self.held < self.limit && self.waiting == 0 {
            self.held += 1;
            Entry::Holds
        } else {
            self.waiting += 1;
            Entry::Waits
        }
    }

    /// Runs that hold a slot or wait for one did something else.
    pub fn shift(&mut self, shift: Shift) {
        self.held = self.held.saturating_add_signed(shift.held);
        self.waiting = self.waiting.saturating_add_signed(shift.waiting);
    }

    /// How many of the waiting may hold a slot now, as of this answer.
    pub fn admit(&mut self) -> u32 {
        let room = self.limit.saturating_sub(self.held).min(self.waiting);
        self.held += room;
        self.waiting -= room;
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: Shift = Shift { held: -1, waiting: 0 };

    fn ask(limit: u32, when_full: WhenFull, max_queued: Option<u32>) -> SlotAsk {
        SlotAsk { key: SlotKey(1), limit, when_full, max_queued, grace: Span::secs(30) }
    }

    #[test]
    fn when_full_is_obeyed() {
        let full = Slot { limit: 2, held: 2, waiting: 3 };
        for (when_full, max_queued, entry, waiting) in [
            (WhenFull::Queue, None, Entry::Waits, 4),
            (WhenFull::Queue, Some(4), Entry::Waits, 4),
            (WhenFull::Queue, Some(3), Entry::Refused, 3),
            (WhenFull::Skip, None, Entry::Refused, 3),
            (WhenFull::Reject, None, Entry::Refused, 3),
            (WhenFull::Replace, None, Entry::WaitsAlone, 1),
            (WhenFull::CancelRunning, None, Entry::WaitsForCancel, 4),
        ] {
            let mut slot = full;
            assert_eq!(slot.enter(&ask(2, when_full, max_queued)), entry, "{when_full:?} {max_queued:?}");
            assert_eq!((slot.held, slot.waiting), (2, waiting), "{when_full:?} {max_queued:?}");
        }
    }

    #[test]
    fn a_free_slot_is_taken_whatever_the_policy() {
        for when_full in WhenFull::ALL {
            let mut slot = Slot::empty(1);
            assert_eq!(slot.enter(&ask(1, when_full, Some(0))), Entry::Holds);
        }
    }

    /// No more hold it than may, although nobody waits yet.
    #[test]
    fn as_many_hold_it_as_its_limit_says() {
        let (mut slot, ask) = (Slot::empty(2), ask(2, WhenFull::Queue, None));
        assert_eq!([(); 4].map(|()| slot.enter(&ask)), [Entry::Holds, Entry::Holds, Entry::Waits, Entry::Waits]);
        assert_eq!((slot.held, slot.waiting), (2, 2));
    }

    /// Keys are stored: another digest would let in what an earlier release keeps out.
    #[test]
    fn a_key_is_of_its_kind_tenant_job_and_text_and_stays_what_it_is() {
        let key = |tenant, job, text| SlotKey::new(TenantId(tenant), JobId(job), text).0;
        assert_eq!(key(1, 2, "a"), 8_878_593_788_312_063_428);
        let keys = [key(1, 2, "a"), key(2, 1, "a"), key(1, 2, "b"), key(2, 2, "a"), key(1, 3, "a")];
        let unique = UniqueKey::new(TenantId(1), JobId(2), "a").0;
        for (n, one) in keys.iter().enumerate() {
            assert!(!keys[..n].contains(one) && *one != unique, "{n}");
        }
    }

    /// A lowered limit must drain to the new one, not keep the old for ever.
    #[test]
    fn a_lowered_limit_is_reached_as_holders_leave() {
        let mut slot = Slot { limit: 5, held: 5, waiting: 9 };
        slot.limit = 3;
        for held in [4, 3] {
            slot.shift(GONE);
            assert_eq!((slot.admit(), slot.held), (0, held));
        }
        slot.shift(GONE);
        assert_eq!((slot.admit(), slot.held, slot.waiting), (1, 3, 8));
    }

    #[test]
    fn a_raised_limit_admits_those_who_wait() {
        let mut slot = Slot { limit: 1, held: 1, waiting: 2 };
        assert_eq!(slot.enter(&ask(4, WhenFull::Queue, None)), Entry::Waits);
        assert_eq!((slot.admit(), slot.held, slot.waiting), (3, 4, 0));
    }
}
