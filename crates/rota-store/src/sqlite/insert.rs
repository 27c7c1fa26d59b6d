//! Making runs: unique keys, what they wait for, slots, and the row.

use std::{collections::BTreeSet, sync::LazyLock};

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::{
    ids::RunId,
    order::OrderKey,
    run::{CancelAsk, NewRun, Parent, Run, RunState, Slots, keep_newest},
    slot::{Entry, SlotAsk},
    store::{EnqueueStore, Enqueued, StoreError, Write},
};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::{
    SqliteStore,
    apply::Work,
    dead, failed,
    many::{Many, Values},
    once::once,
    rows::{change, select_run},
    writer::Urgency,
};
use crate::{
    codec::{
        self, columns_of, extra_text, flag, micros, source_code,
        sql::{BLOCKED, HOLDING},
    },
    kept::{self, Kept},
};

fn enqueue(
    connection: &Connection,
    write: &Write,
    runs: &[NewRun],
    inbox: &[i64],
) -> Result<Vec<Enqueued>, StoreError> {
    for id in inbox {
        let gone = change(connection, "DELETE FROM inbox WHERE id = ?1", [id])?;
        if gone == 0 {
            return Err(super::not_applied("enqueue runs", format!("inbox row {id} was taken by another")));
        }
    }
    let mut work = Work::new(connection, write);
    let mut answers = runs.iter().map(|run| make(&mut work, run, run.version)).collect::<Result<Vec<_>, _>>()?;
    work.done_made(&mut runs.iter().map(|run| run.id).zip(&mut answers).collect::<Vec<_>>())?;
    for (run, answer) in runs.iter().zip(&answers) {
        if let Enqueued::Made { .. } = answer {
            dead::mark_redriven(connection, write.now, run)?;
        }
    }
    Ok(answers)
}

fn stored(answers: &[Enqueued], write: &Write, runs: &[NewRun]) -> Kept {
    if write.request.is_none() {
        return kept::enqueued(answers);
    }
    kept::enqueued(&answers.iter().zip(runs).map(|(answer, run)| answer.kept_for(run.id)).collect::<Vec<_>>())
}

fn restored(kept: Option<&[u8]>, runs: &[NewRun]) -> Result<Vec<Enqueued>, StoreError> {
    let answers = kept::enqueued_again(kept, runs.len())?;
    Ok(answers.iter().zip(runs).map(|(answer, run)| answer.told_for(run.id)).collect())
}

/// Makes one run of this version of its job.
pub fn make(work: &mut Work<'_>, new: &NewRun, version: i32) -> Result<Enqueued, StoreError> {
    codec::without_nul("enqueue runs", new.payload.as_deref())?;
    if let Some(of) = standing_in_the_way(work, new)? {
        return Ok(Enqueued::Duplicate { of });
    }
    let needed = needed(work, new)?;
    let needs = needed.len() as u32;
    let entry = match new.enters_now(needs, work.now) {
        Some(ask) => {
            let entry = work.slot(ask.key.0, Some(ask.limit))?.enter(ask);
            work.look_at_slot(ask.key.0);
            make_room(work, new, ask, entry)?;
            Some(entry)
        }
        None => None,
    };
    let Some(state) = new.first_state(needs, entry, work.now) else { return Ok(Enqueued::Full) };
    tie(work.connection, needed.iter().map(|needed| (*needed, new.id.0)))?;
    take_unique(work, new)?;
    let row = new_row(work, new, version, &state)?;
    work.insert(row);
    let queued = state == RunState::Queued;
    let handed = queued && work.handed(new.id, new.lane.0, i16::from(new.part.0))?;
    Ok(Enqueued::Made { status: state.status(), handed })
}

/// Makes the run that follows one that has died by itself, with its end.
pub fn make_follower(work: &mut Work<'_>, new: &NewRun) -> Result<(), StoreError> {
    take_unique(work, new)?;
    let row = new_row(work, new, new.version, &RunState::Scheduled)?;
    work.insert(row);
    dead::mark_redriven(work.connection, work.now, new)
}

fn take_unique(work: &Work<'_>, new: &NewRun) -> Result<(), StoreError> {
    let sql = "INSERT OR REPLACE INTO unique_key (key, run, until) VALUES (?1, ?2, ?3)";
    for unique in new.unique_keys() {
        let row = params![unique.key.0, new.id.0.as_bytes(), micros(unique.until)];
        change(work.connection, sql, row)?;
    }
    Ok(())
}

fn standing_in_the_way(work: &Work<'_>, new: &NewRun) -> Result<Option<RunId>, StoreError> {
    let sql = "SELECT run FROM unique_key WHERE key = ?1 AND until > ?2";
    for unique in new.unique_keys() {
        let mut select = work.connection.prepare_cached(sql).map_err(failed)?;
        let key = params![unique.key.0, micros(work.now)];
        let holder = select.query_row(key, |row| Ok(RunId(super::rows::uuid_at(row, 0)?))).optional();
        if let Some(holder) = holder.map_err(failed)? {
            return Ok(Some(holder));
        }
    }
    Ok(None)
}

/// Those it waits for that still live, which are marked as such.
fn needed(work: &mut Work<'_>, new: &NewRun) -> Result<BTreeSet<Uuid>, StoreError> {
    // A need that is named twice ends once.
    let mut named: BTreeSet<Uuid> = new.after.iter().map(|id| id.0).collect();
    let follows = new.trigger.schedule.filter(|_| new.follows);
    if let Some(schedule) = follows {
        work.flush()?;
        named.extend(last_of_chain(work.connection, schedule.0)?);
    }
    if named.is_empty() {
        return Ok(named);
    }
    work.flush()?;
    // A run waits for runs of its own tenant only.
    let sql = "UPDATE run SET flags = flags | ?2 WHERE id = ?1 AND (tenant = ?3 OR schedule = ?4)";
    let mut update = work.connection.prepare_cached(sql).map_err(failed)?;
    let mut live = BTreeSet::new();
    for id in named {
        if update
            .execute(params![id.as_bytes(), flag::NEEDED, new.tenant.0, follows.map(|schedule| schedule.0)])
            .map_err(failed)?
            == 1
        {
            live.insert(id);
        }
    }
    keep_newest(&mut live);
    Ok(live)
}

/// The live runs of a schedule that no other of its runs waits for.
fn last_of_chain(connection: &Connection, schedule: i64) -> Result<Vec<Uuid>, StoreError> {
    let sql = "SELECT id FROM run WHERE schedule = ?1 AND NOT EXISTS (SELECT 1 FROM need \
         JOIN run AS waiter ON waiter.id = need.waiter WHERE need.needed = run.id AND waiter.schedule = ?1)";
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let found = select.query_map([schedule], |row| super::rows::uuid_at(row, 0)).map_err(failed)?;
    found.collect::<Result<_, _>>().map_err(failed)
}

/// Ties runs to those they wait for.
pub fn tie(connection: &Connection, ties: impl Iterator<Item = (Uuid, Uuid)>) -> Result<(), StoreError> {
    let sql = "INSERT OR IGNORE INTO need (needed, waiter) VALUES (?1, ?2)";
    for (needed, waiter) in ties {
        let row = params![needed.as_bytes(), waiter.as_bytes()];
        change(connection, sql, row)?;
    }
    Ok(())
}

/// What a newcomer's policy does to those that were there before it.
fn make_room(work: &mut Work<'_>, new: &NewRun, ask: &SlotAsk, entry: Entry) -> Result<(), StoreError> {
    match entry {
        Entry::Holds | Entry::Waits | Entry::Refused => Ok(()),
        Entry::WaitsAlone => {
            let sql =
                select_run(formatcp!("WHERE run.status = {BLOCKED} AND run.slot = ?1 ORDER BY run.order_key, run.id"));
            for row in work.rows(&sql, ask.key.0, usize::MAX)? {
                let run = row.run.clone();
                if let Ok(change) = run.displace(new.id, work.now) {
                    // The newcomer has set the counter.
                    work.change(&row, &run, &change, Slots::Counted)?;
                }
            }
            Ok(())
        }
        Entry::WaitsForCancel => {
            let sql = select_run(formatcp!("WHERE run.slot = ?1 AND run.status IN ({HOLDING})"));
            let cancel = CancelAsk::by_newer_run(ask.grace);
            for row in work.rows(&sql, ask.key.0, usize::MAX)? {
                cancel_one(work, &row.run, &cancel)?;
            }
            Ok(())
        }
    }
}

/// Asks one run to stop. True where that changed anything.
pub fn cancel_one(work: &mut Work<'_>, run: &Run, ask: &CancelAsk) -> Result<bool, StoreError> {
    let mode = work.mode(run.lane.0)?;
    let Ok(change) = run.request_cancel(ask, mode, work.now) else { return Ok(false) };
    let Some(row) = work.row(run.id.0)? else { return Ok(false) };
    work.change(&row, run, &change, Slots::ToCount)?;
    Ok(true)
}

/// A row to be inserted.
pub struct NewRow {
    id: Uuid,
    tenant: i32,
    job: i64,
    version: i32,
    lane: i32,
    part: u8,
    status: i16,
    flags: i16,
    order_key: i64,
    ready_at: i64,
    created_at: i64,
    source: i16,
    schedule: Option<i64>,
    planned_at: Option<i64>,
    expires_at: Option<i64>,
    due_at: Option<i64>,
    slot: Option<SlotAsk>,
    parent: Option<Parent>,
    pending: Option<i16>,
    payload: Option<Box<str>>,
    extra: Option<String>,
}

pub fn new_row(work: &Work<'_>, new: &NewRun, version: i32, state: &RunState) -> Result<NewRow, StoreError> {
    let flags = if new.rearms { flag::REARMS } else { 0 };
    let Some(columns) = columns_of(state, new.due_at(), flags) else {
        return Err(codec::corrupt("a new run that has ended", new.id));
    };
    Ok(NewRow {
        id: new.id.0,
        tenant: new.tenant.0,
        job: new.job.0,
        version,
        lane: new.lane.0,
        part: new.part.0,
        status: columns.status,
        flags: columns.flags,
        order_key: OrderKey::new(new.ready_at, new.priority).0,
        ready_at: micros(new.ready_at),
        created_at: micros(work.now),
        source: source_code(new.trigger.source),
        schedule: new.trigger.schedule.map(|id| id.0),
        planned_at: new.trigger.planned_at.map(micros),
        expires_at: new.expires_at.map(micros),
        due_at: columns.due_at,
        slot: new.slot,
        parent: new.parent,
        pending: columns.pending,
        payload: new.payload.clone(),
        extra: extra_text(new),
    })
}

/// OR FAIL spares the statement journal: its whole transaction is undone on an
/// error.
static INSERT: LazyLock<Many> = LazyLock::new(|| {
    Many::new(
        "INSERT OR FAIL INTO run (id, tenant, job, version, lane, part, status, flags, order_key, ready_at, \
         created_at, attempt, losses, fence, source, schedule, planned_at, expires_at, due_at, slot, slot_limit, \
         parent, step, pending, payload, extra, item) VALUES ",
        "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        "",
    )
});

pub fn insert_rows(connection: &Connection, rows: &[NewRow]) -> Result<(), StoreError> {
    let put = |values: &mut Values<'_, '_>, row: &NewRow| {
        values.put(row.id.as_bytes())?;
        values.put(row.tenant)?;
        values.put(row.job)?;
        values.put(row.version)?;
        values.put(row.lane)?;
        values.put(row.part)?;
        values.put(row.status)?;
        values.put(row.flags)?;
        values.put(row.order_key)?;
        values.put(row.ready_at)?;
        values.put(row.created_at)?;
        values.put(row.source)?;
        values.put(row.schedule)?;
        values.put(row.planned_at)?;
        values.put(row.expires_at)?;
        values.put(row.due_at)?;
        values.put(row.slot.map(|ask| ask.key.0))?;
        values.put(row.slot.map(|ask| ask.limit))?;
        values.put(row.parent.map(|parent| Uuid::into_bytes(parent.run.0)))?;
        values.put(row.parent.map(|parent| parent.step))?;
        values.put(row.pending)?;
        values.put(row.payload.as_deref())?;
        values.put(row.extra.as_deref())?;
        values.put(row.parent.and_then(|parent| parent.item).map(u32::cast_signed))
    };
    INSERT.execute(connection, rows, put).map_err(failed)
}

#[async_trait]
impl EnqueueStore for SqliteStore {
    async fn enqueue(&self, write: &Write, runs: &[NewRun], inbox: &[i64]) -> Result<Vec<Enqueued>, StoreError> {
        let (write, runs, inbox) = (write.clone(), runs.to_vec(), inbox.to_vec());
        self.writer
            .write("enqueue runs", Urgency::Prompt, move |connection| {
                once(
                    connection,
                    &write,
                    |answers: &Vec<Enqueued>| Ok(stored(answers, &write, &runs)),
                    |_, kept| restored(kept, &runs),
                    |connection| enqueue(connection, &write, &runs, &inbox),
                )
            })
            .await
    }
}
