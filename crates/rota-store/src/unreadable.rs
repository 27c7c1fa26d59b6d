//! Rows that cannot be read: left out by every read, and remembered here.
//!
//! A row that holds an unknown code or a broken document must stop nobody. Whoever
//! reads it leaves it out and notes it. Notes are a hint: they are bounded, they die
//! with the process, and a row that is met again is noted again. What is done about
//! a live run among them is written in its row; see [`SET_ASIDE`](crate::codec::status::SET_ASIDE).
//! A live run whose status is unknown is only remembered: a newer version may have written
//! it, and knows what to do with it.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rota_core::store::{StoreError, UnreadableRow};
use uuid::Uuid;

/// The table of live runs.
pub const RUN: &str = "run";
/// Ended runs, in whichever table their day has.
pub const HISTORY: &str = "history";

/// Rows that are remembered; more are left out all the same.
const NOTES_MAX: usize = 100;
/// Rows that are listed at once.
pub const LISTED_MAX: usize = 100;
/// Characters of a reason that are kept: it may repeat what the row holds.
const REASON_CHARS_MAX: usize = 200;

/// The rows that one store could not read, each once.
#[derive(Debug, Default)]
pub struct Notes {
    rows: Mutex<BTreeMap<(&'static str, String), String>>,
    /// Live runs of an unknown status. They are left as they are.
    unknown: Mutex<BTreeSet<Uuid>>,
    /// A live run was noted that nobody has set aside yet.
    fresh: AtomicBool,
}

impl Notes {
    /// Notes a row, and logs it the first time.
    pub fn note(&self, table: &'static str, key: impl Display, reason: impl Display) {
        let mut notes = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (table, key.to_string());
        if table == RUN {
            if place.1.parse().is_ok_and(|id: Uuid| self.is_unknown(id)) {
                return;
            }
            self.fresh.store(true, Ordering::Relaxed);
        }
        // There is room for live runs whatever else there is: they are taken at once.
        let most = if table == RUN { 2 * NOTES_MAX } else { NOTES_MAX };
        if notes.contains_key(&place) || notes.len() >= most {
            return;
        }
        let reason = short(reason);
        tracing::error!(table, key = place.1, reason, "a row cannot be read and is left out; see `rota rows list`");
        notes.insert(place, reason);
    }

    /// What was read; none where it cannot be, which is noted.
    pub fn readable<T, E: Display>(&self, table: &'static str, key: impl Display, read: Result<T, E>) -> Option<T> {
        read.map_err(|error| self.note(table, key, error)).ok()
    }

    /// The rows that were noted, those of live runs apart.
    pub fn list(&self) -> Vec<UnreadableRow> {
        let notes = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |((table, key), reason): (&(&str, String), &String)| UnreadableRow {
            table: (*table).to_owned(),
            key: key.clone(),
            reason: reason.clone(),
        };
        notes.iter().filter(|((table, _), _)| *table != RUN).map(row).collect()
    }

    /// Remembers live runs of an unknown status, in the place of those that were remembered
    /// before or beside them.
    pub fn keep_unknown(&self, runs: impl IntoIterator<Item = Uuid>, beside: bool) {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if !beside {
            unknown.clear();
        }
        unknown.extend(runs);
        while unknown.len() > NOTES_MAX {
            unknown.pop_last();
        }
    }

    fn is_unknown(&self, run: Uuid) -> bool {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner).contains(&run)
    }

    pub fn unknown(&self) -> Vec<Uuid> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// Whether a live run was noted since this was last asked.
    pub fn take_fresh(&self) -> bool {
        self.fresh.load(Ordering::Relaxed) && self.fresh.swap(false, Ordering::Relaxed)
    }

    /// Takes the live runs from the notes, to be set aside: from then on they are named
    /// by their rows.
    pub fn take_runs(&self) -> Vec<Uuid> {
        let mut notes = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = notes.extract_if(.., |(table, _), _| *table == RUN);
        runs.filter_map(|((_, key), _)| key.parse().ok()).collect()
    }
}

fn short(reason: impl Display) -> String {
    reason.to_string().chars().take(REASON_CHARS_MAX).collect()
}

/// Why a row that was set aside cannot be read.
pub fn reason_of<T>(read: Result<T, StoreError>) -> String {
    read.err().map_or_else(|| "it can be read by now".to_owned(), short)
}

/// A live run of an unknown status, as it is listed.
pub fn unknown_status(id: &Uuid) -> UnreadableRow {
    let reason = "its status is unknown: a newer version of Rota may have written it".to_owned();
    UnreadableRow { table: RUN.to_owned(), key: id.to_string(), reason }
}

thread_local! {
    static NOTES: RefCell<Option<Arc<Notes>>> = const { RefCell::new(None) };
}

/// What this thread cannot read is noted there from now on. For stores whose reads
/// run on a thread of their own from beginning to end.
pub fn note_on_thread(notes: &Arc<Notes>) {
    NOTES.with(|current| *current.borrow_mut() = Some(Arc::clone(notes)));
}

/// Notes a row where this thread's store keeps its notes.
pub fn note(table: &'static str, key: impl Display, reason: impl Display) {
    NOTES.with(|current| {
        if let Some(notes) = current.borrow().as_ref() {
            notes.note(table, key, reason);
        }
    });
}

/// [`Notes::readable`] for this thread's store.
pub fn readable<T, E: Display>(table: &'static str, key: impl Display, read: Result<T, E>) -> Option<T> {
    read.map_err(|error| note(table, key, error)).ok()
}
