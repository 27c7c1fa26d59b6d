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
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use rota_core::{
    ids::{ScheduleId, TokenId, WorkerId},
    store::{Store, StoreError, UnreadableRow},
};
use serde_json::Value;
use uuid::Uuid;

use crate::codec::time;

/// The table of live runs.
pub const RUN: &str = "run";
/// Ended runs, in whichever table their day has.
pub const HISTORY: &str = "history";

/// Rows that are remembered; more are left out all the same.
const NOTES_MAX: usize = 100;
/// Rows that are listed at once.
pub const LISTED_MAX: usize = 100;
/// Rows of a queue that are read to see whether one of them can be read.
const READ_AGAIN_MAX: u32 = 1_000;
/// Characters of a reason that are kept: it may repeat what the row holds.
const REASON_CHARS_MAX: usize = 200;

/// What is known of a row.
#[derive(Debug)]
struct Note {
    reason: String,
    /// The row can be read, and whoever uses what it says cannot understand it.
    is_definition: bool,
    /// It could be read when it was last met. It is remembered all the same, so that one
    /// that is broken again is not logged again.
    is_mended: bool,
}

/// The rows that one store could not read, each once.
#[derive(Debug, Default)]
pub struct Notes {
    rows: Mutex<BTreeMap<(&'static str, String), Note>>,
    /// Some row is remembered: where none is, nobody takes a lock for one that can be read.
    any: AtomicBool,
    /// Live runs of an unknown status. They are left as they are.
    unknown: Mutex<BTreeSet<Uuid>>,
    /// A live run was noted that nobody has set aside yet.
    fresh: AtomicBool,
}

impl Notes {
    /// Notes a row, and logs it the first time.
    pub fn note(&self, table: &'static str, key: impl Display, reason: impl Display) {
        self.put(table, key, reason, false);
    }

    /// Notes whether a definition that was read can be understood.
    pub fn note_definition(&self, table: &'static str, key: impl Display, broken: Option<&str>) {
        match broken {
            Some(reason) => self.put(table, key, reason, true),
            None => self.mend(table, key, |note| note.is_definition),
        }
    }

    fn put(&self, table: &'static str, key: impl Display, reason: impl Display, is_definition: bool) {
        let mut notes = self.rows.lock();
        let place = (table, key.to_string());
        if table == RUN {
            if place.1.parse().is_ok_and(|id: Uuid| self.is_unknown(id)) {
                return;
            }
            self.fresh.store(true, Ordering::Relaxed);
        }
        // There is room for live runs whatever else there is: they are taken at once.
        let most = if table == RUN { 2 * NOTES_MAX } else { NOTES_MAX };
        if let Some(known) = notes.get_mut(&place) {
            *known = Note { reason: short(reason), is_definition, is_mended: false };
            return;
        }
        if notes.len() >= most {
            notes.retain(|_, note| !note.is_mended);
        }
        if notes.len() >= most {
            return;
        }
        let reason = short(reason);
        tracing::error!(table, key = place.1, reason, "a row cannot be read and is left out; see `rota rows list`");
        notes.insert(place, Note { reason, is_definition, is_mended: false });
        self.any.store(true, Ordering::Relaxed);
    }

    /// A row that was noted is gone.
    pub fn gone(&self, table: &'static str, key: impl Display) {
        self.mend(table, key, |_| true);
    }

    /// A row can be read by now, if it was noted for what `is_read` accepts.
    fn mend(&self, table: &'static str, key: impl Display, is_read: impl Fn(&Note) -> bool) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut notes = self.rows.lock();
        if let Some(note) = notes.get_mut(&(table, key.to_string())) {
            note.is_mended |= is_read(note);
        }
    }

    /// Whether a row was noted, and could not be read when it was last met.
    pub fn is_noted(&self, table: &'static str, key: &str) -> bool {
        let notes = self.rows.lock();
        notes.get(&(table, key.to_owned())).is_some_and(|note| !note.is_mended)
    }

    /// What was read; none where it cannot be, which is noted.
    pub fn readable<T, E: Display>(&self, table: &'static str, key: impl Display, read: Result<T, E>) -> Option<T> {
        match read {
            Ok(read) => {
                self.mend(table, key, |note| !note.is_definition);
                Some(read)
            }
            Err(error) => {
                self.note(table, key, error);
                None
            }
        }
    }

    /// As [`Self::readable`], for some columns of a row: the others may be broken.
    pub fn readable_part<T, E: Display>(
        &self,
        table: &'static str,
        key: impl Display,
        read: Result<T, E>,
    ) -> Option<T> {
        read.map_err(|error| self.note(table, key, error)).ok()
    }

    /// The rows that were noted, those of live runs apart.
    pub fn list(&self) -> Vec<UnreadableRow> {
        let notes = self.rows.lock();
        let row = |((table, key), note): (&(&str, String), &Note)| UnreadableRow {
            table: (*table).to_owned(),
            key: key.clone(),
            reason: note.reason.clone(),
        };
        notes.iter().filter(|((table, _), note)| *table != RUN && !note.is_mended).map(row).collect()
    }

    /// Remembers live runs of an unknown status, in the place of those that were remembered
    /// before or beside them.
    pub fn keep_unknown(&self, runs: impl IntoIterator<Item = Uuid>, beside: bool) {
        let mut unknown = self.unknown.lock();
        if !beside {
            unknown.clear();
        }
        unknown.extend(runs);
        while unknown.len() > NOTES_MAX {
            unknown.pop_last();
        }
    }

    fn is_unknown(&self, run: Uuid) -> bool {
        self.unknown.lock().contains(&run)
    }

    pub fn unknown(&self) -> Vec<Uuid> {
        self.unknown.lock().iter().copied().collect()
    }

    /// Whether a live run was noted since this was last asked.
    pub fn take_fresh(&self) -> bool {
        self.fresh.load(Ordering::Relaxed) && self.fresh.swap(false, Ordering::Relaxed)
    }

    /// Takes the live runs from the notes, to be set aside: from then on they are named
    /// by their rows.
    pub fn take_runs(&self) -> Vec<Uuid> {
        let mut notes = self.rows.lock();
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

/// What a column of a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Id,
    Number,
    Text,
}

/// A table whose rows are noted, and the columns that a key is made of, joined by slashes.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    pub table: &'static str,
    pub columns: &'static [(&'static str, Kind)],
}

/// The tables that both stores name alike.
pub const NAMED: &[Named] = {
    use Kind::{Id, Number, Text};
    const fn named(table: &'static str, columns: &'static [(&'static str, Kind)]) -> Named {
        Named { table, columns }
    }
    &[
        named(RUN, &[("id", Id)]),
        named(HISTORY, &[("id", Id)]),
        named("after_end", &[("downstream", Number), ("run", Id)]),
        named("audit", &[("id", Id)]),
        named("calendar", &[("tenant", Number), ("name", Text)]),
        named("cursor", &[("schedule", Number)]),
        named("dead_mark", &[("run", Id)]),
        named("inbox", &[("id", Number)]),
        named("job", &[("id", Number)]),
        named("job_version", &[("job", Number), ("version", Number)]),
        named("lane", &[("id", Number)]),
        named("log", &[("run", Id), ("attempt", Number), ("seq", Number)]),
        named("person", &[("id", Id)]),
        named("rollup", &[("job", Number), ("hour", Number)]),
        named("schedule", &[("id", Number)]),
        named("session", &[("person", Id), ("created_at", Number)]),
        named("skip", &[("schedule", Number), ("from_at", Number)]),
        named("tenant", &[("id", Number)]),
        named("token", &[("id", Id)]),
        named("worker", &[("id", Id)]),
    ]
};

/// What a key says of one column. What is not what it should be is text: so it may be in
/// the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart<'k> {
    Id(Uuid),
    Number(i64),
    Text(&'k str),
}

impl Named {
    /// The parts of a key, a column each; none where it has too few.
    pub fn parts<'k>(&self, key: &'k str) -> Option<Vec<KeyPart<'k>>> {
        let part = |((_, kind), text): (&(&str, Kind), &'k str)| match kind {
            Kind::Id => text.parse().map_or(KeyPart::Text(text), KeyPart::Id),
            Kind::Number => text.parse().map_or(KeyPart::Text(text), KeyPart::Number),
            Kind::Text => KeyPart::Text(text),
        };
        let parts: Vec<KeyPart<'k>> = self.columns.iter().zip(key.splitn(self.columns.len(), '/')).map(part).collect();
        (parts.len() == self.columns.len()).then_some(parts)
    }
}

/// Why rows of a table are not discarded, and what to do instead; none where they are.
pub fn kept_because(table: &str) -> Option<&'static str> {
    Some(match table {
        "job" | "schedule" => {
            "a job and its schedules depend on it: save the job again or delete it, or repair the row in the database"
        }
        "job_version" => "runs may have been created from it: save the job again, and it goes when no run needs it",
        "tenant" => "all that the tenant has depends on it: save the tenant again",
        "lane" => "runs wait in it: repair the row in the database",
        "calendar" => "schedules may refer to it: save the calendar again",
        "person" => "it lets nobody in: save the person again, or delete them",
        "session" => "it lets nobody in, and is deleted when it expires",
        "audit" => "entries of the audit log are deleted only when they are old enough",
        HISTORY | "dead_mark" | "log" | "rollup" | "rollup_delta" => {
            "it is left out everywhere, and is deleted with the history of its time"
        }
        _ => return None,
    })
}

/// Has a row read again, so that its note is true: it may have been repaired, or noted by
/// another node alone.
pub async fn read_again(store: &dyn Store, table: &str, parts: &[KeyPart<'_>]) -> Result<(), StoreError> {
    match (table, parts) {
        ("cursor", [KeyPart::Number(id)]) => drop(store.cursors(&[ScheduleId(*id)]).await?),
        ("token", [KeyPart::Id(id)]) => drop(store.tokens(&[TokenId(*id)]).await?),
        ("worker", [KeyPart::Id(id)]) => {
            let before = WorkerId(Uuid::from_u128(id.as_u128().saturating_sub(1)));
            drop(store.workers(None, Some(before), 1).await?);
        }
        ("skip", [KeyPart::Number(schedule), KeyPart::Number(from)]) => {
            let before = time(from.saturating_add(1)).ok();
            drop(store.skips(ScheduleId(*schedule), before, 1).await?);
        }
        ("pause", _) => drop(store.pauses().await?),
        ("inbox", _) => drop(store.inbox(READ_AGAIN_MAX).await?),
        ("after_end", _) => drop(store.job_ends(READ_AGAIN_MAX).await?),
        _ => {}
    }
    Ok(())
}

/// What a row holds, without what is nobody's business.
pub fn shown(mut columns: Value) -> Value {
    for secret in ["digest", "password"] {
        if let Some(column) = columns.get_mut(secret) {
            *column = "hidden".into();
        }
    }
    columns
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
    NOTES.with(|current| match current.borrow().as_ref() {
        Some(notes) => notes.readable(table, key, read),
        None => read.ok(),
    })
}

/// [`Notes::gone`] for this thread's store.
pub fn gone(table: &'static str, key: impl Display) {
    NOTES.with(|current| {
        if let Some(notes) = current.borrow().as_ref() {
            notes.gone(table, key);
        }
    });
}

/// [`Notes::readable_part`] for this thread's store.
pub fn readable_part<T, E: Display>(table: &'static str, key: impl Display, read: Result<T, E>) -> Option<T> {
    read.map_err(|error| note(table, key, error)).ok()
}
