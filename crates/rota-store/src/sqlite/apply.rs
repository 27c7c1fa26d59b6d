//! Applies changes to live runs, with everything that follows from them.
//!
//! A change may free a slot, open a join, re-arm a schedule. All of that
//! happens here, in the transaction of the change itself, so that whatever ends
//! a run (success, cancel, expiry, loss) has the same consequences.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::LazyLock,
};

use jiff::Timestamp;
use rota_core::{
    fire::Progress,
    ids::{JobId, NodeId, Partition, RunId, ScheduleId},
    lane::LaneMode,
    rollup::{Ended, Rollup, hour_of},
    run::{Change, Finish, Move, Run, RunState, SlotUse, Status, TRAIL_BYTES_MAX, Tie, Verdict, WaitFor, inherited},
    slot::Slot,
    store::{EndedRun, Ends, Enqueued, StoreError, Woken, Write},
};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::{
    after, dead, failed,
    fire::put_cursor,
    history,
    insert::{NewRow, insert_rows, make_follower, tie},
    rows::{Live, live_row, live_rows, select_run},
};
use crate::{
    codec::{self, RunRow, flag, micros, state_columns, status, time_opt},
    definition::rearmed,
    rollup,
    unreadable::readable_part,
};

/// What the end of a run needs to know of its row.
#[derive(Clone, Copy)]
pub struct Brief {
    pub id: Uuid,
    pub job: i64,
    pub part: i16,
    pub status: i16,
    pub flags: i16,
    pub ready_at: i64,
    pub schedule: Option<i64>,
    pub slot: Option<i64>,
    pub slot_limit: Option<i32>,
    pub parent: Option<Uuid>,
    pub fence: i32,
    pub leased: bool,
    pub cancel_asked: bool,
}

impl From<&RunRow> for Brief {
    fn from(row: &RunRow) -> Self {
        Self {
            id: row.id,
            job: row.job,
            part: row.part,
            status: row.status,
            flags: row.flags,
            ready_at: row.ready_at,
            schedule: row.schedule,
            slot: row.slot,
            slot_limit: row.slot_limit,
            parent: row.parent,
            fence: row.fence,
            leased: row.holder.is_some(),
            cancel_asked: row.cancel.is_some(),
        }
    }
}

/// A transaction's work on runs: what it has read and still has to follow up.
pub struct Work<'c> {
    pub connection: &'c Connection,
    pub now: Timestamp,
    node: Option<NodeId>,
    slots: BTreeMap<i64, (Slot, bool)>,
    /// Keys that a slot was freed of.
    freed: Vec<i64>,
    /// Runs that ended and others wait for.
    ended: Vec<(Uuid, Option<Uuid>, bool)>,
    rollups: HashMap<(JobId, i64), Rollup>,
    modes: HashMap<i32, LaneMode>,
    held: HashMap<i16, bool>,
    /// Runs that this transaction made ready and has not moved on since.
    woken: BTreeMap<Uuid, Run>,
    /// Rows to insert, and runs to move to history, when next flushed.
    new: Vec<NewRow>,
    ending: Vec<(Uuid, Finish)>,
    /// Runs that this write ended, and where it says so.
    ends: Vec<EndedRun>,
    /// Runs that ended and that other jobs may wait for.
    over: Vec<after::Over>,
    told: Ends,
}

impl<'c> Work<'c> {
    pub fn new(connection: &'c Connection, write: &Write) -> Self {
        Self {
            connection,
            now: write.now,
            node: write.node,
            slots: BTreeMap::new(),
            freed: Vec::new(),
            ended: Vec::new(),
            rollups: HashMap::new(),
            modes: HashMap::new(),
            held: HashMap::new(),
            woken: BTreeMap::new(),
            new: Vec::new(),
            ending: Vec::new(),
            ends: Vec::new(),
            over: Vec::new(),
            told: write.ends.clone(),
        }
    }

    /// Applies a change that core decided on for this run.
    pub fn change(&mut self, row: &RunRow, run: &Run, change: &Change) -> Result<(), StoreError> {
        match change {
            Change::Finish(finish) => {
                self.ends.push(EndedRun::of(run, finish));
                self.finish(&row.into(), finish)?;
                self.flush()
            }
            Change::Move(next) => {
                let mut after = run.clone();
                after.apply(change);
                // Before the move, which may itself lead on to another.
                if after.state == RunState::Queued {
                    self.woken.insert(row.id, after.clone());
                } else {
                    self.woken.remove(&row.id);
                }
                self.moved(row, &after, next)
            }
        }
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

    /// Ends a run: its row moves to history, no later than the next
    /// [`Work::flush`].
    pub fn finish(&mut self, row: &Brief, finish: &Finish) -> Result<(), StoreError> {
        if row.status == status::NEEDS {
            self.vacate(row)?;
        }
        self.ending.push((row.id, finish.clone()));
        self.over.push(after::over(row.job, row.id, finish));
        self.woken.remove(&row.id);
        self.count(row, finish)?;
        self.leave_slot(row)?;
        if row.flags & flag::NEEDED != 0 || row.parent.is_some() {
            self.ended.push((row.id, row.parent, row.flags & flag::NEEDED != 0));
        }
        if row.flags & flag::REARMS != 0 {
            rearm(self.connection, row, finish.ended_at)?;
        }
        match &finish.follower {
            Some(new) => make_follower(self, new),
            None if finish.verdict == Verdict::Dead => dead::open(self.connection, row.id, finish.ended_at),
            None => Ok(()),
        }
    }

    /// A run ends while it waits for others: whoever of its schedule is behind it waits
    /// for them instead.
    fn vacate(&mut self, row: &Brief) -> Result<(), StoreError> {
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
            let more = ties.iter().filter(|tie| tie.waiter.0 == waiter).count() as u16;
            if let Some(row) = self.row(waiter)? {
                let run = row.run.clone();
                if let Ok(change) = run.wait_for_more(more) {
                    self.change(&row, &run, &change)?;
                }
            }
        }
        Ok(())
    }

    fn moved(&mut self, row: &RunRow, after: &Run, next: &Move) -> Result<(), StoreError> {
        if row.status == status::BLOCKED && after.state == RunState::Queued {
            // Admission changes nothing else, and a tenth of all runs may need it.
            return self.admitted(row.id);
        }
        let Some(columns) = state_columns(after, row.flags) else {
            return Err(codec::corrupt("a move to an ended state", row.id));
        };
        let sql = "UPDATE run SET status = ?2, flags = ?3, pending = ?4, holder = ?5, started_at = ?6, due_at = ?7, \
             ready_at = ?8, order_key = ?9, attempt = ?10, losses = ?11, fence = ?12, cancel = ?13, \
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
            after.attempts_used as i16,
            after.losses as i16,
            after.fence.0,
            codec::cancel_text(after.cancel.as_ref()),
            next.trail.as_ref().map(rota_core::run::TrailEntry::line),
            TRAIL_BYTES_MAX as i64,
        ];
        self.connection.prepare_cached(sql).and_then(|mut update| update.execute(values)).map_err(failed)?;
        if after.state.slot_use() == SlotUse::None {
            self.leave_slot(&row.into())?;
        }
        if let RunState::Waiting { on: WaitFor::Children(asked), .. } = after.state
            && row.status != status::WAITING
        {
            self.count_children(row.id, asked)?;
        }
        Ok(())
    }

    fn admitted(&self, run: Uuid) -> Result<(), StoreError> {
        self.connection
            .prepare_cached("UPDATE run SET status = 2 WHERE id = ?1")
            .and_then(|mut update| update.execute([run.as_bytes()]))
            .map_err(failed)?;
        Ok(())
    }

    /// Children may have ended while their parent was on its way to wait for
    /// them; those it waits for in vain are taken off at once.
    fn count_children(&mut self, parent: Uuid, asked: u16) -> Result<(), StoreError> {
        self.flush()?;
        let live: u16 = self
            .connection
            .prepare_cached("SELECT min(count(*), 65535) FROM run WHERE parent = ?1")
            .and_then(|mut select| select.query_row([parent.as_bytes()], |row| row.get(0)))
            .map_err(failed)?;
        // Those that ended in this very transaction are yet to be followed up.
        let joining = self.ended.iter().filter(|(_, of, _)| *of == Some(parent)).count() as u16;
        let live = live.saturating_add(joining);
        if live >= asked {
            return Ok(());
        }
        let Some(row) = self.row(parent)? else { return Ok(()) };
        let run = row.run.clone();
        match run.join(asked - live, None, self.now) {
            Ok(change) => self.change(&row, &run, &change),
            Err(_) => Ok(()),
        }
    }

    fn count(&mut self, row: &Brief, finish: &Finish) -> Result<(), StoreError> {
        let ended = Ended {
            verdict: finish.verdict,
            ready_at: codec::time(row.ready_at)?,
            started_at: finish.started_at,
            ended_at: finish.ended_at,
            attempts: finish.attempts_used + u16::from(finish.verdict == Verdict::Succeeded),
            losses: finish.losses,
        };
        self.rollups.entry((JobId(row.job), hour_of(finish.ended_at))).or_default().add(&ended);
        Ok(())
    }

    /// Gives back what the row held or waited for.
    fn leave_slot(&mut self, row: &Brief) -> Result<(), StoreError> {
        let Some(key) = row.slot else { return Ok(()) };
        match row.status {
            status::SCHEDULED | status::NEEDS => return Ok(()),
            status::BLOCKED => self.slot(key, row.slot_limit)?.give_up(),
            _ => {
                self.slot(key, row.slot_limit)?.leave();
                self.freed.push(key);
            }
        }
        Ok(())
    }

    /// A key's counters, to be changed in place.
    pub fn slot(&mut self, key: i64, limit: Option<i32>) -> Result<&mut Slot, StoreError> {
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
            let slot = read.unwrap_or_else(|| Slot::empty(limit.unwrap_or(1).max(0) as u32));
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

    /// Follows up until nothing more follows, and answers what became ready.
    pub fn done(mut self) -> Result<Vec<Woken>, StoreError> {
        self.follow_up()?;
        self.hand_over()
    }

    fn follow_up(&mut self) -> Result<(), StoreError> {
        self.follow()?;
        self.store_slots()?;
        self.told.put(std::mem::take(&mut self.ends));
        after::note(self.connection, &std::mem::take(&mut self.over))?;
        self.store_rollups()
    }

    /// Opens joins and lets in those who wait, until nothing more follows.
    pub fn follow(&mut self) -> Result<(), StoreError> {
        self.flush()?;
        loop {
            if let Some((run, parent, needed)) = self.ended.pop() {
                self.join(run, parent, needed)?;
            } else if let Some(key) = self.freed.pop() {
                self.admit(key)?;
            } else {
                return Ok(());
            }
        }
    }

    /// As [`Work::done`], for a write that makes runs: one of its own that was
    /// let in at once is answered as ready, everyone else's owner is told.
    pub fn done_made(mut self, made: &mut [(RunId, &mut Enqueued)]) -> Result<(), StoreError> {
        self.follow_up()?;
        for (id, answer) in made {
            if let Some(run) = self.woken.remove(&id.0) {
                let handed = self.handed(id.0, run.lane.0, i16::from(run.part.0))?;
                **answer = Enqueued::Made { status: Status::Queued, handed };
            }
        }
        self.node = None;
        self.held.clear();
        self.hand_over().map(drop)
    }

    /// As [`Work::done`], for a write whose answer does not name what became
    /// ready: the writing node is left a notice like any other owner.
    pub fn done_unnamed(mut self) -> Result<(), StoreError> {
        self.node = None;
        self.held.clear();
        self.done().map(drop)
    }

    fn admit(&mut self, key: i64) -> Result<(), StoreError> {
        let room = self.slot(key, None)?.admit() as usize;
        if room == 0 {
            return Ok(());
        }
        let rows = self.rows(&WAITING, key, room)?;
        // Counters that promise more than there is are put right here.
        let missing = (room - rows.len()) as u32;
        let slot = self.slot(key, None)?;
        slot.held = slot.held.saturating_sub(missing);
        for row in rows {
            let run = row.run.clone();
            let Ok(change) = run.admit() else { continue };
            self.change(&row, &run, &change)?;
        }
        Ok(())
    }

    /// Counts down what waited for a run that has ended.
    pub fn join(&mut self, ended: Uuid, parent: Option<Uuid>, needed: bool) -> Result<(), StoreError> {
        let mut waiters: Vec<Uuid> = parent.into_iter().collect();
        if needed {
            waiters.extend(related(self.connection, "DELETE FROM need WHERE needed = ?1 RETURNING waiter", ended)?);
        }
        waiters.sort();
        for waiter in waiters {
            self.count_down(waiter, 1)?;
        }
        Ok(())
    }

    /// So many of those that a run waits for have ended.
    pub fn count_down(&mut self, waiter: Uuid, ended: u16) -> Result<(), StoreError> {
        let Some(row) = self.row(waiter)? else { return Ok(()) };
        let run = row.run.clone();
        let entry = match run.enters_on_join(ended, self.now) {
            Some(claim) => Some(self.slot(claim.key.0, Some(claim.limit as i32))?.reenter()),
            None => None,
        };
        if let Ok(change) = run.join(ended, entry, self.now) {
            self.change(&row, &run, &change)?;
        }
        Ok(())
    }

    fn store_slots(&mut self) -> Result<(), StoreError> {
        let sql = "INSERT INTO slot (key, lim, held, waiting) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (key) DO UPDATE SET lim = excluded.lim, held = excluded.held, waiting = excluded.waiting";
        let mut put = self.connection.prepare_cached(sql).map_err(failed)?;
        for (key, (slot, changed)) in &self.slots {
            if *changed {
                put.execute(params![key, slot.limit, slot.held, slot.waiting]).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn store_rollups(&mut self) -> Result<(), StoreError> {
        if self.rollups.is_empty() {
            return Ok(());
        }
        let body = rollup::encode(&self.rollups.drain().collect());
        self.connection
            .prepare_cached("INSERT INTO rollup_delta (body) VALUES (?1)")
            .and_then(|mut insert| insert.execute([body]))
            .map_err(failed)?;
        Ok(())
    }

    /// Hands ready runs of owned lanes to the writing node where it holds their
    /// partition, and leaves a notice for their owner where it does not.
    fn hand_over(&mut self) -> Result<Vec<Woken>, StoreError> {
        let mut woken = Vec::with_capacity(self.woken.len());
        for (id, run) in std::mem::take(&mut self.woken) {
            let handed = self.handed(id, run.lane.0, i16::from(run.part.0))?;
            woken.push(Woken { run, handed });
        }
        Ok(woken)
    }

    /// Whether a ready run goes to the writing node's memory; if its lane is
    /// owned by another node, that one is left a notice.
    pub fn handed(&mut self, run: Uuid, lane: i32, part: i16) -> Result<bool, StoreError> {
        if self.mode(lane)? == LaneMode::Claimed {
            return Ok(false);
        }
        let held = self.holds(part)?;
        if !held {
            notify_owner(self.connection, part, run)?;
        }
        Ok(held)
    }

    /// A lane's mode. Lanes never change theirs.
    pub fn mode(&mut self, lane: i32) -> Result<LaneMode, StoreError> {
        if let Some(mode) = self.modes.get(&lane) {
            return Ok(*mode);
        }
        let code: Option<i16> = self
            .connection
            .prepare_cached("SELECT mode FROM lane WHERE id = ?1")
            .and_then(|mut select| select.query_row([lane], |row| row.get(0)).optional())
            .map_err(failed)?;
        let mode = codec::mode(code.ok_or_else(|| super::not_applied("find a lane", format!("no lane {lane}")))?)?;
        self.modes.insert(lane, mode);
        Ok(mode)
    }

    pub fn holds(&mut self, part: i16) -> Result<bool, StoreError> {
        let Some(node) = self.node else { return Ok(false) };
        if let Some(held) = self.held.get(&part) {
            return Ok(*held);
        }
        let held = self
            .connection
            .prepare_cached("SELECT 1 FROM partition WHERE part = ?1 AND node = ?2")
            .and_then(|mut select| select.exists(params![part, node.0.as_bytes()]))
            .map_err(failed)?;
        self.held.insert(part, held);
        Ok(held)
    }
}

static WAITING: LazyLock<String> =
    LazyLock::new(|| select_run("WHERE run.status = 1 AND run.slot = ?1 ORDER BY run.order_key, run.id"));

/// Runs that a statement finds by another.
fn related(connection: &Connection, sql: &str, run: Uuid) -> Result<Vec<Uuid>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(failed)?;
    let found = statement.query_map([run.as_bytes()], |row| super::rows::uuid_at(row, 0)).map_err(failed)?;
    found.collect::<Result<_, _>>().map_err(failed)
}

/// Leaves a notice for the owner of a partition.
pub fn notify_owner(connection: &Connection, part: i16, run: Uuid) -> Result<(), StoreError> {
    connection
        .prepare_cached("INSERT OR IGNORE INTO notice (part, run) VALUES (?1, ?2)")
        .and_then(|mut insert| insert.execute(params![part, run.as_bytes()]))
        .map_err(failed)?;
    Ok(())
}

/// The end of its run arms an `after_finish` schedule again.
fn rearm(connection: &Connection, row: &Brief, ended_at: Timestamp) -> Result<(), StoreError> {
    let Some(schedule) = row.schedule.map(ScheduleId) else { return Ok(()) };
    let sql = "UPDATE schedule SET armed_by = NULL WHERE id = ?1 AND armed_by = ?2 AND deleted = 0 \
         RETURNING revision, spec, enabled, fired, decided_to";
    let mut update = connection.prepare_cached(sql).map_err(failed)?;
    let mut rows = update.query(params![schedule.0, row.id.as_bytes()]).map_err(failed)?;
    let Some(row) = rows.next().map_err(failed)? else { return Ok(()) };
    let read = || -> Result<_, StoreError> {
        let (revision, spec): (i32, String) = (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
        let behind = Progress {
            fired: row.get::<_, i64>(3).map_err(failed)?.max(0) as u64,
            decided_to: time_opt(row.get(4).map_err(failed)?)?,
        };
        let next = rearmed(schedule, &spec, row.get(2).map_err(failed)?, behind, ended_at);
        Ok(next.map(|next| (revision, next)))
    };
    // The end counts, whatever is wrong with the schedule.
    match readable_part("schedule", schedule.0, read()).flatten() {
        Some((revision, next)) => put_cursor(connection, Partition::of_schedule(schedule), schedule, revision, &next),
        None => Ok(()),
    }
}

/// The ids of woken runs, as a lost answer is restored from.
pub fn woken_ids(woken: &[Woken]) -> Vec<(RunId, bool)> {
    woken.iter().map(|woken| (woken.run.id, woken.handed)).collect()
}

/// Woken runs by id, as far as they are still ready.
pub fn woken_again(connection: &Connection, ids: &[(RunId, bool)]) -> Result<Vec<Woken>, StoreError> {
    let mut woken = Vec::new();
    for (id, handed) in ids {
        if let Some(row) = live_row(connection, id.0)?
            && row.status == status::QUEUED
        {
            woken.push(Woken { run: row.run, handed: *handed });
        }
    }
    Ok(woken)
}
