//! Making runs: unique keys, what they wait for, slots, and the row.

use std::collections::BTreeSet;

use rota_core::{
    ids::RunId,
    lane::LaneMode,
    order::OrderKey,
    run::{CancelAsk, NewRun, Run, RunState},
    slot::{Entry, SlotAsk},
    store::{Enqueued, StoreError, Write},
};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::{
    SqliteStore,
    apply::{Work, notify_owner},
    failed,
    once::once,
    rows::{live_rows, select_run},
    writer::Urgency,
};
use crate::codec::{self, columns_of, extra_text, flag, micros, source_code};

impl SqliteStore {
    pub(super) async fn do_enqueue(
        &self,
        write: &Write,
        runs: &[NewRun],
        inbox: &[i64],
    ) -> Result<Vec<Enqueued>, StoreError> {
        let (write, runs, inbox) = (write.clone(), runs.to_vec(), inbox.to_vec());
        let count = runs.len();
        self.writer
            .write("enqueue runs", Urgency::Prompt, move |connection| {
                once(
                    connection,
                    &write,
                    |answers: &Vec<Enqueued>| stored(answers),
                    |_, kept| restored(kept, count),
                    |connection| enqueue(connection, &write, &runs, &inbox),
                )
            })
            .await
    }
}

fn enqueue(
    connection: &Connection,
    write: &Write,
    runs: &[NewRun],
    inbox: &[i64],
) -> Result<Vec<Enqueued>, StoreError> {
    for id in inbox {
        let gone = connection
            .prepare_cached("DELETE FROM inbox WHERE id = ?1")
            .and_then(|mut delete| delete.execute([id]))
            .map_err(failed)?;
        if gone == 0 {
            return Err(super::not_applied("enqueue runs", format!("inbox row {id} was taken by another")));
        }
    }
    let mut work = Work::new(connection, write);
    let mut answers = runs.iter().map(|run| make(&mut work, run, run.version)).collect::<Result<Vec<_>, _>>()?;
    work.done_made(&mut runs.iter().map(|run| run.id).zip(&mut answers).collect::<Vec<_>>())?;
    Ok(answers)
}

/// The plain answer, all made and handed over, is stored as nothing.
fn stored(answers: &[Enqueued]) -> Option<String> {
    let plain = Enqueued::Made { status: rota_core::run::Status::Queued, handed: true };
    if answers.iter().all(|answer| *answer == plain) { None } else { serde_json::to_string(answers).ok() }
}

fn restored(kept: Option<&str>, count: usize) -> Result<Vec<Enqueued>, StoreError> {
    let plain = Enqueued::Made { status: rota_core::run::Status::Queued, handed: true };
    match kept {
        None => Ok(vec![plain; count]),
        Some(text) => serde_json::from_str(text).map_err(|error| codec::corrupt("a stored answer", error)),
    }
}

/// Makes one run of this version of its job.
pub fn make(work: &mut Work<'_>, new: &NewRun, version: i32) -> Result<Enqueued, StoreError> {
    codec::without_nul("enqueue runs", new.payload.as_deref())?;
    if let Some(of) = standing_in_the_way(work, new)? {
        return Ok(Enqueued::Duplicate { of });
    }
    let needs = count_needs(work, new)?;
    let entry = match new.enters_now(needs, work.now) {
        Some(ask) => {
            let entry = work.slot(ask.key.0, Some(ask.limit as i32))?.enter(ask);
            work.look_at_slot(ask.key.0);
            make_room(work, new, ask, entry)?;
            Some(entry)
        }
        None => None,
    };
    let Some(state) = new.first_state(needs, entry, work.now) else { return Ok(Enqueued::Full) };
    if needs > 0 {
        insert_needs(work, new)?;
    }
    if let Some(unique) = new.unique {
        let sql = "INSERT OR REPLACE INTO unique_key (key, run, until) VALUES (?1, ?2, ?3)";
        let row = params![unique.key.0, new.id.0.as_bytes(), micros(unique.until)];
        work.connection.prepare_cached(sql).and_then(|mut put| put.execute(row)).map_err(failed)?;
    }
    insert_row(work, new, version, &state)?;
    let queued = state == RunState::Queued;
    let handed = queued && work.handed(new.id.0, new.lane.0, i16::from(new.part.0))?;
    Ok(Enqueued::Made { status: state.status(), handed })
}

fn standing_in_the_way(work: &Work<'_>, new: &NewRun) -> Result<Option<RunId>, StoreError> {
    let Some(unique) = new.unique else { return Ok(None) };
    work.connection
        .prepare_cached("SELECT run FROM unique_key WHERE key = ?1 AND until > ?2")
        .and_then(|mut select| {
            let key = params![unique.key.0, micros(work.now)];
            select.query_row(key, |row| Ok(RunId(super::rows::uuid_at(row, 0)?))).optional()
        })
        .map_err(failed)
}

/// Marks those it waits for that still live, and counts them.
fn count_needs(work: &Work<'_>, new: &NewRun) -> Result<u16, StoreError> {
    let mut live = 0;
    // A need that is named twice ends once.
    let named: BTreeSet<&RunId> = new.after.iter().collect();
    for needed in named {
        live += work
            .connection
            .prepare_cached("UPDATE run SET flags = flags | 1 WHERE id = ?1")
            .and_then(|mut update| update.execute([needed.0.as_bytes()]))
            .map_err(failed)?;
    }
    u16::try_from(live).map_err(|_| super::not_applied("enqueue runs", "a run waits for too many others"))
}

fn insert_needs(work: &Work<'_>, new: &NewRun) -> Result<(), StoreError> {
    let sql = "INSERT OR IGNORE INTO need (needed, waiter) SELECT id, ?2 FROM run WHERE id = ?1";
    for needed in &new.after {
        let row = params![needed.0.as_bytes(), new.id.0.as_bytes()];
        work.connection.prepare_cached(sql).and_then(|mut insert| insert.execute(row)).map_err(failed)?;
    }
    Ok(())
}

/// What a newcomer's policy does to those that were there before it.
fn make_room(work: &mut Work<'_>, new: &NewRun, ask: &SlotAsk, entry: Entry) -> Result<(), StoreError> {
    match entry {
        Entry::Holds | Entry::Waits | Entry::Refused => Ok(()),
        Entry::WaitsAlone => {
            let sql = select_run("WHERE run.status = 1 AND run.slot = ?1 ORDER BY run.order_key, run.id");
            for row in live_rows(work.connection, &sql, [ask.key.0], usize::MAX, |_| true)? {
                let run = row.clone().run()?;
                // The counter was set by the newcomer; each one displaced
                // takes itself off it again.
                work.slot(ask.key.0, None)?.waiting += 1;
                if let Ok(change) = run.displace(new.id, work.now) {
                    work.change(&row, &run, &change)?;
                }
            }
            Ok(())
        }
        Entry::WaitsForCancel => {
            let sql = select_run("WHERE run.slot = ?1 AND run.status IN (2, 3, 4)");
            let cancel = CancelAsk::by_newer_run();
            for row in live_rows(work.connection, &sql, [ask.key.0], usize::MAX, |_| true)? {
                cancel_one(work, &row.run()?, &cancel)?;
            }
            Ok(())
        }
    }
}

/// Asks one run to stop. True where that changed anything.
pub fn cancel_one(work: &mut Work<'_>, run: &Run, ask: &CancelAsk) -> Result<bool, StoreError> {
    let mode = work.mode(run.lane.0)?;
    let Ok(change) = run.request_cancel(ask, mode, work.now) else { return Ok(false) };
    let Some(row) = super::rows::live_row(work.connection, run.id.0)? else { return Ok(false) };
    work.change(&row, run, &change)?;
    let told_by_owner = mode == LaneMode::Owned && row.holder.is_none();
    if matches!(change, rota_core::run::Change::Move(_)) && told_by_owner {
        notify_owner(work.connection, row.part, row.id)?;
    }
    Ok(true)
}

fn insert_row(work: &mut Work<'_>, new: &NewRun, version: i32, state: &RunState) -> Result<(), StoreError> {
    let flags = if new.rearms { flag::REARMS } else { 0 };
    let Some(columns) = columns_of(state, new.expires_at, flags) else {
        return Err(codec::corrupt("a new run that has ended", new.id));
    };
    let sql = "INSERT INTO run (id, tenant, job, version, lane, part, status, flags, order_key, ready_at, created_at, \
         attempt, losses, fence, source, schedule, planned_at, expires_at, due_at, slot, slot_limit, parent, step, \
         pending, payload, extra) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 0, 0, 0, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, \
         ?21, ?22, ?23)";
    let values = params![
        new.id.0.as_bytes(),
        new.tenant.0,
        new.job.0,
        version,
        new.lane.0,
        new.part.0,
        columns.status,
        columns.flags,
        OrderKey::new(new.ready_at, new.priority).0,
        micros(new.ready_at),
        micros(work.now),
        source_code(new.trigger.source),
        new.trigger.schedule.map(|id| id.0),
        new.trigger.planned_at.map(micros),
        new.expires_at.map(micros),
        columns.due_at,
        new.slot.map(|ask| ask.key.0),
        new.slot.map(|ask| ask.limit),
        new.parent.map(|parent| Uuid::into_bytes(parent.run.0)),
        new.parent.map(|parent| parent.step),
        columns.pending,
        new.payload.as_deref(),
        extra_text(&new.labels, &new.trigger),
    ];
    let insert = match &mut work.insert {
        Some(insert) => insert,
        kept => kept.insert(work.connection.prepare_cached(sql).map_err(failed)?),
    };
    insert.execute(values).map_err(failed)?;
    Ok(())
}
