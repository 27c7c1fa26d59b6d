//! Applies changes to live runs: their rows, and what the core says follows from them.
//!
//! [`Effects`] gathers what follows (slots given back, joins opened, schedules re-armed),
//! and [`follow`](super::follow) writes it in the same transaction, so that whatever ends
//! a run (success, cancel, expiry, loss) has the same consequences.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use rota_core::{
    ids::{NodeId, RunId},
    lane::LaneMode,
    run::{
        Change, Effects, Finish, Move, Run, RunState, Slots, TRAIL_BYTES_MAX, Tie, comes_to_wait, inherited,
        leaves_a_place,
    },
    slot::Slot,
    store::{Ends, StoreError, Write},
};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::{
    failed, history,
    insert::{NewRow, insert_rows, tie},
    rows::{Live, change, exists, first, live_row, live_rows, uuid_at},
};
use crate::codec::{self, RunRow, duties, flag, micros, small, state_columns, status};

/// A transaction's work on runs: what it has read and still has to follow up.
pub struct Work<'c> {
    pub connection: &'c Connection,
    pub now: Timestamp,
    pub(super) node: Option<NodeId>,
    /// The counters of keys, and whether they differ from what is stored.
    pub(super) slots: BTreeMap<i64, (Slot, bool)>,
    /// Keys that may have room for someone who waits.
    pub(super) freed: Vec<i64>,
    pub(super) effects: Effects,
    modes: HashMap<i32, LaneMode>,
    pub(super) held: HashMap<i16, bool>,
    /// Rows to insert, and runs to move to history, when next flushed.
    new: Vec<NewRow>,
    ending: Vec<(Uuid, Finish)>,
    /// Where it is said who ended by this write.
    pub(super) told: Ends,
}

impl<'c> Work<'c> {
    pub fn new(connection: &'c Connection, write: &Write) -> Self {
        Self {
            connection,
            now: write.now,
            node: write.node,
            slots: BTreeMap::new(),
            freed: Vec::new(),
            effects: Effects::default(),
            modes: HashMap::new(),
            held: HashMap::new(),
            new: Vec::new(),
            ending: Vec::new(),
            told: write.ends.clone(),
        }
    }

    /// Applies a change that core decided on for this run.
    pub fn change(&mut self, row: &RunRow, run: &Run, change: &Change, slots: Slots) -> Result<(), StoreError> {
        if matches!(change, Change::Finish(_)) && leaves_a_place(&run.state) {
            self.vacate(row)?;
        }
        let after = self.effects.change(run, duties(row.flags), change, slots);
        match change {
            Change::Finish(finish) => {
                self.ending.push((row.id, finish.clone()));
                self.flush()
            }
            Change::Move(next) => self.moved(row, run, &after, next),
        }
    }

    /// Ends a run whose attempt is settled: its row moves to history, no later than the
    /// next [`Work::flush`].
    pub fn finish(&mut self, run: &rota_core::run::Ending, finish: &Finish) {
        self.effects.end(run, finish, Slots::ToCount);
        self.ending.push((run.id.0, finish.clone()));
    }

    /// Puts a run's row in place, no later than the next [`Work::flush`].
    pub fn insert(&mut self, row: NewRow) {
        self.new.push(row);
    }

    /// Writes rows that were held back to be written together: before anything
    /// reads runs, and before what follows is followed up.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        insert_rows(self.connection, &std::mem::take(&mut self.new))?;
        history::move_runs(self.connection, &std::mem::take(&mut self.ending))
    }

    /// A live run's row, as this transaction has left it.
    pub fn row(&mut self, id: Uuid) -> Result<Option<Live>, StoreError> {
        self.flush()?;
        live_row(self.connection, id)
    }

    /// Live runs' rows that a query finds by one key, at most `limit`.
    pub fn rows(&mut self, sql: &str, key: i64, limit: usize) -> Result<Vec<Live>, StoreError> {
        self.flush()?;
        live_rows(self.connection, sql, [key], limit, |_| true)
    }

    /// A run ends while it waits for others: whoever of its schedule is behind it waits
    /// for them instead.
    fn vacate(&mut self, row: &RunRow) -> Result<(), StoreError> {
        self.flush()?;
        let needed = related(self.connection, "DELETE FROM need WHERE waiter = ?1 RETURNING needed", row.id)?;
        if row.flags & flag::NEEDED == 0 || row.schedule.is_none() {
            return Ok(());
        }
        let sql = "SELECT need.waiter FROM need JOIN run ON run.id = need.waiter \
             WHERE need.needed = ?1 AND run.schedule = (SELECT schedule FROM run WHERE id = ?1)";
        let waiters = related(self.connection, sql, row.id)?;
        let gone = RunId(row.id);
        let ahead: Vec<Tie> = needed.iter().map(|id| Tie { needed: RunId(*id), waiter: gone }).collect();
        let behind: Vec<Tie> = waiters.iter().map(|id| Tie { needed: gone, waiter: RunId(*id) }).collect();
        let ties = inherited(&BTreeSet::from([gone]), &ahead, &behind);
        tie(self.connection, ties.iter().map(|tie| (tie.needed.0, tie.waiter.0)))?;
        for waiter in waiters {
            let more = ties.iter().filter(|tie| tie.waiter.0 == waiter).count() as u32;
            if let Some(row) = self.row(waiter)? {
                let run = row.run.clone();
                if let Ok(change) = run.wait_for_more(more) {
                    self.change(&row, &run, &change, Slots::Counted)?;
                }
            }
        }
        Ok(())
    }

    fn moved(&mut self, row: &RunRow, before: &Run, after: &Run, next: &Move) -> Result<(), StoreError> {
        if row.status == status::BLOCKED && after.state == RunState::Queued {
            // Admission changes nothing else, and a tenth of all runs may need it.
            return self.admitted(row.id);
        }
        let Some(columns) = state_columns(after, row.flags) else {
            return Err(codec::corrupt("a move to an ended state", row.id));
        };
        let sql = "UPDATE run SET status = ?2, flags = ?3, pending = ?4, holder = ?5, started_at = ?6, due_at = ?7, \
             ready_at = ?8, order_key = ?9, attempt = ?10, losses = ?11, fence = ?12, cancel = ?13, first_started_at = ?16, \
             trail = CASE WHEN ?14 IS NULL OR length(coalesce(trail, '')) >= ?15 THEN trail \
                          ELSE coalesce(trail, '') || ?14 END \
             WHERE id = ?1";
        let values = params![
            row.id.as_bytes(),
            columns.status,
            columns.flags,
            columns.pending,
            columns.holder.map(Uuid::into_bytes),
            columns.started_at,
            columns.due_at,
            micros(after.ready_at),
            after.order_key().0,
            small(after.attempts_used),
            small(after.losses),
            after.fence.0,
            codec::cancel_text(after.cancel.as_ref()),
            next.trail.as_ref().map(rota_core::run::TrailEntry::line),
            TRAIL_BYTES_MAX as i64,
            after.first_started_at.map(micros),
        ];
        change(self.connection, sql, values)?;
        if comes_to_wait(before, after).is_some() {
            self.count_children(row.id, before, after)?;
        }
        Ok(())
    }

    fn admitted(&self, run: Uuid) -> Result<(), StoreError> {
        change(self.connection, "UPDATE run SET status = ?2 WHERE id = ?1", params![run.as_bytes(), status::QUEUED])?;
        Ok(())
    }

    /// Children may have ended while their parent was on its way to wait for
    /// them; those it waits for in vain are taken off at once.
    fn count_children(&mut self, parent: Uuid, before: &Run, after: &Run) -> Result<(), StoreError> {
        self.flush()?;
        let live: u32 = self
            .connection
            .prepare_cached("SELECT count(*) FROM run WHERE parent = ?1")
            .and_then(|mut select| select.query_row([parent.as_bytes()], |row| row.get(0)))
            .map_err(failed)?;
        let missed = self.effects.missed(before, after, live.into());
        if missed == 0 {
            return Ok(());
        }
        let Some(row) = self.row(parent)? else { return Ok(()) };
        let run = row.run.clone();
        match run.join(missed, None, self.now) {
            Ok(change) => self.change(&row, &run, &change, Slots::Counted),
            Err(_) => Ok(()),
        }
    }

    /// A key's counters, to be changed in place.
    pub fn slot(&mut self, key: i64, limit: Option<u32>) -> Result<&mut Slot, StoreError> {
        self.shift_slots()?;
        self.counters(key, limit)
    }

    /// Counts what changes did to slots; their keys may have room now.
    pub(super) fn shift_slots(&mut self) -> Result<(), StoreError> {
        for (key, (limit, shift)) in std::mem::take(&mut self.effects.slots) {
            self.counters(key.0, Some(limit))?.shift(shift);
            self.freed.push(key.0);
        }
        Ok(())
    }

    fn counters(&mut self, key: i64, limit: Option<u32>) -> Result<&mut Slot, StoreError> {
        if !self.slots.contains_key(&key) {
            let read = self
                .connection
                .prepare_cached("SELECT lim, held, waiting FROM slot WHERE key = ?1")
                .and_then(|mut select| {
                    let slot = |row: &rusqlite::Row<'_>| {
                        Ok(Slot { limit: row.get(0)?, held: row.get(1)?, waiting: row.get(2)? })
                    };
                    select.query_row([key], slot).optional()
                })
                .map_err(failed)?;
            let slot = read.unwrap_or_else(|| Slot::empty(limit.unwrap_or(1)));
            self.slots.insert(key, (slot, false));
        }
        let entry = self.slots.get_mut(&key).ok_or_else(|| codec::corrupt("a slot", key))?;
        entry.1 = true;
        Ok(&mut entry.0)
    }

    /// Everything that a slot's change may have let in.
    pub fn look_at_slot(&mut self, key: i64) {
        self.freed.push(key);
    }

    /// A lane's mode. Lanes never change theirs.
    pub fn mode(&mut self, lane: i32) -> Result<LaneMode, StoreError> {
        if let Some(mode) = self.modes.get(&lane) {
            return Ok(*mode);
        }
        let code: Option<i16> =
            first(self.connection, "SELECT mode FROM lane WHERE id = ?1", [lane], |row| row.get(0))?;
        let mode = codec::mode(code.ok_or_else(|| super::not_applied("find a lane", format!("no lane {lane}")))?)?;
        self.modes.insert(lane, mode);
        Ok(mode)
    }

    pub fn holds(&mut self, part: i16) -> Result<bool, StoreError> {
        let Some(node) = self.node else { return Ok(false) };
        if let Some(held) = self.held.get(&part) {
            return Ok(*held);
        }
        let held = exists(
            self.connection,
            "SELECT 1 FROM partition WHERE part = ?1 AND node = ?2",
            params![part, node.0.as_bytes()],
        )?;
        self.held.insert(part, held);
        Ok(held)
    }
}

/// Runs that a statement finds by another.
pub(super) fn related(connection: &Connection, sql: &str, run: Uuid) -> Result<Vec<Uuid>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(failed)?;
    let found = statement.query_map([run.as_bytes()], |row| uuid_at(row, 0)).map_err(failed)?;
    found.collect::<Result<_, _>>().map_err(failed)
}
