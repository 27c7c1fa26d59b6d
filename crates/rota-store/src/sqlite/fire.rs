//! Firing: due cursors, and the commit of what they owed.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::LazyLock,
};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    fire::{Cursor, Progress, SkipRange},
    ids::{Partition, ScheduleId},
    run::Run,
    store::{DueCursor, Enqueued, FireItem, FireStore, Fired, LiveRun, StoreError, Write},
};
use rusqlite::{Connection, params};
use uuid::Uuid;

use super::{
    SqliteStore,
    apply::Work,
    failed,
    insert::{cancel_one, make},
    once::once,
    rows::{change, first, live_rows, select_run, text_at},
    writer::Urgency,
};
use crate::{
    codec::{micros, skip_reason_code, time},
    fired::leaves,
    kept,
    unreadable::readable,
};

/// Reads a little of each partition, and more only where that did not do: a
/// partition that gave all it was asked for may hold more, and what comes after
/// its last cursor is not yet known to be next.
fn due(connection: &Connection, parts: &[Partition], until: i64, limit: usize) -> Result<Vec<DueCursor>, StoreError> {
    let sql = "SELECT part, due_at, schedule, planned_at, fired, revision FROM cursor \
         WHERE part = ?1 AND due_at <= ?2 ORDER BY due_at, schedule LIMIT ?3";
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let place = |due: &DueCursor| (due.cursor.due_at, due.schedule);
    let first = (Timestamp::MIN, ScheduleId(i64::MIN));
    // Partitions hold about as many each: a little more than their share will do.
    let mut each = limit / parts.len().max(1) * 3 / 2 + 16;
    loop {
        let mut found: Vec<DueCursor> = Vec::new();
        let mut known_to = None;
        for part in parts {
            let (mut looked, mut last) = (0, first);
            let mut rows = select.query(params![part.0, until, each as i64]).map_err(failed)?;
            while let Some(row) = rows.next().map_err(failed)? {
                looked += 1;
                if let Some(due) = readable("cursor", text_at(row, 2), due_cursor(row)) {
                    last = place(&due);
                    found.push(due);
                }
            }
            if looked == each {
                known_to = Some(known_to.map_or(last, |known: (Timestamp, ScheduleId)| last.min(known)));
            }
        }
        found.sort_unstable_by_key(place);
        let sure = known_to.map_or(found.len(), |known| found.partition_point(|due| place(due) <= known));
        if known_to.is_none() || sure >= limit || each >= limit {
            found.truncate(limit);
            return Ok(found);
        }
        each = (each * 4).min(limit);
    }
}

pub fn due_cursor(row: &rusqlite::Row<'_>) -> Result<DueCursor, StoreError> {
    Ok(DueCursor {
        part: Partition(row.get(0).map_err(failed)?),
        schedule: ScheduleId(row.get(2).map_err(failed)?),
        revision: row.get(5).map_err(failed)?,
        cursor: Cursor {
            due_at: time(row.get(1).map_err(failed)?)?,
            planned_at: time(row.get(3).map_err(failed)?)?,
            fired: row.get::<_, i64>(4).map_err(failed)?.max(0) as u64,
        },
    })
}

static LIVE_OF: LazyLock<String> =
    LazyLock::new(|| select_run("WHERE run.schedule = ?1 AND run.status < 100 ORDER BY run.id"));

fn live_of(connection: &Connection, schedule: ScheduleId, limit: u32) -> Result<Vec<LiveRun>, StoreError> {
    let found = live_rows(connection, &LIVE_OF, [schedule.0], limit as usize, |_| true)?;
    let of = |run: Run| LiveRun { id: run.id, status: run.state.status(), planned_at: run.trigger.planned_at };
    Ok(found.into_iter().map(|live| of(live.run)).collect())
}

fn fire(
    connection: &Connection,
    write: &Write,
    pauses_revision: i64,
    items: &[FireItem],
) -> Result<Vec<Fired>, StoreError> {
    if super::meta(connection, "pauses_revision")? != pauses_revision {
        return Ok(vec![Fired::Stale; items.len()]);
    }
    let mut work = Work::new(connection, write);
    let mut jobs = Jobs::default();
    let mut answers = items.iter().map(|item| one(&mut work, &mut jobs, item)).collect::<Result<Vec<_>, _>>()?;
    let mut made = Vec::new();
    for (item, answer) in items.iter().zip(&mut answers) {
        if let Fired::Fired(runs) = answer {
            made.extend(item.runs.iter().map(|run| run.id).zip(runs));
        }
    }
    work.done_made(&mut made)?;
    Ok(answers)
}

fn one(work: &mut Work<'_>, jobs: &mut Jobs, item: &FireItem) -> Result<Fired, StoreError> {
    let version = jobs.version(work.connection, item.job.0, item.job_revision)?;
    let Some(version) = version else { return Ok(Fired::Stale) };
    if !take_cursor(work.connection, item)? {
        return Ok(Fired::Stale);
    }
    if let Some(ask) = &item.cancel_ask {
        for id in &item.cancel {
            if let Some(row) = work.row(id.0)? {
                cancel_one(work, &row.run, ask)?;
            }
        }
        // What they leave goes to those who have waited, before the new ones come.
        work.follow()?;
    }
    let mut answers = Vec::with_capacity(item.runs.len());
    for run in &item.runs {
        let answer = make(work, run, version)?;
        if run.rearms && matches!(answer, Enqueued::Made { .. }) {
            arm_by(work.connection, item.due.schedule, run.id.0)?;
        }
        answers.push(answer);
    }
    let leaves = leaves(item, &answers);
    for (skip, made_before) in &leaves.skips {
        record_skip(work.connection, item.due.schedule, *made_before, skip)?;
    }
    match leaves.next {
        Some(next) => put_cursor(work.connection, item.due.part, item.due.schedule, item.due.revision, &next)?,
        None => keep_progress(work.connection, item.due.schedule, &leaves.progress)?,
    }
    Ok(Fired::Fired(answers))
}

/// Revisions and versions of jobs that are there, each read once in a transaction.
#[derive(Default)]
struct Jobs(HashMap<i64, Option<(i32, i32)>>);

impl Jobs {
    /// The job's current version, if it is at this revision.
    fn version(&mut self, connection: &Connection, job: i64, revision: i32) -> Result<Option<i32>, StoreError> {
        let found = match self.0.entry(job) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(entry) => {
                let sql = "SELECT revision, version FROM job WHERE id = ?1 AND deleted = 0";
                let found = first(connection, sql, [job], |row| Ok((row.get(0)?, row.get(1)?)))?;
                *entry.insert(found)
            }
        };
        Ok(found.filter(|(current, _)| *current == revision).map(|(_, version)| version))
    }
}

/// Takes the cursor away, if it is as it was read. Every edit, pause and deletion of
/// its schedule changes it or takes it away.
fn take_cursor(connection: &Connection, item: &FireItem) -> Result<bool, StoreError> {
    let sql = "DELETE FROM cursor WHERE part = ?1 AND due_at = ?2 AND schedule = ?3 AND planned_at = ?4 \
         AND revision = ?5 AND fired = ?6";
    let due = &item.due;
    let as_read = params![
        due.part.0,
        micros(due.cursor.due_at),
        due.schedule.0,
        micros(due.cursor.planned_at),
        due.revision,
        due.cursor.fired as i64,
    ];
    let taken = change(connection, sql, as_read)?;
    Ok(taken == 1)
}

/// Keeps what is behind a schedule that has no cursor any more.
fn keep_progress(connection: &Connection, schedule: ScheduleId, behind: &Progress) -> Result<(), StoreError> {
    change(
        connection,
        "UPDATE schedule SET fired = ?2, decided_to = ?3 WHERE id = ?1",
        params![schedule.0, behind.fired as i64, behind.decided_to.map(micros)],
    )?;
    Ok(())
}

/// Arms a schedule that has no cursor.
pub fn put_cursor(
    connection: &Connection,
    part: Partition,
    schedule: ScheduleId,
    revision: i32,
    cursor: &Cursor,
) -> Result<(), StoreError> {
    let sql = "INSERT OR IGNORE INTO cursor (part, due_at, schedule, planned_at, fired, revision) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let row =
        params![part.0, micros(cursor.due_at), schedule.0, micros(cursor.planned_at), cursor.fired as i64, revision];
    change(connection, sql, row)?;
    Ok(())
}

fn arm_by(connection: &Connection, schedule: ScheduleId, run: Uuid) -> Result<(), StoreError> {
    change(connection, "UPDATE schedule SET armed_by = ?2 WHERE id = ?1", params![schedule.0, run.as_bytes()])?;
    Ok(())
}

/// Records a skip. One that goes on where the schedule's latest ended, for the
/// same reason and with nothing fired between, lengthens it.
pub fn record_skip(
    connection: &Connection,
    schedule: ScheduleId,
    made_before: u64,
    skip: &SkipRange,
) -> Result<(), StoreError> {
    let (reason, fired) = (skip.reason.as_str(), made_before as i64);
    let sql = "UPDATE skip SET to_at = ?2, count = count + ?3 WHERE schedule = ?1 \
         AND from_at = (SELECT max(from_at) FROM skip WHERE schedule = ?1) \
         AND reason IN (?4, ?7) AND fired = ?5 AND to_at < ?6";
    // A later release writes the code.
    let code = skip_reason_code(skip.reason);
    let row = params![schedule.0, micros(skip.to), skip.count as i64, reason, fired, micros(skip.from), code];
    let lengthened = change(connection, sql, row)?;
    if lengthened == 0 {
        let sql = "INSERT INTO skip (schedule, from_at, to_at, count, reason, fired) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
             ON CONFLICT (schedule, from_at) DO UPDATE SET to_at = max(to_at, excluded.to_at), \
             count = count + excluded.count";
        let row = params![schedule.0, micros(skip.from), micros(skip.to), skip.count as i64, reason, fired];
        change(connection, sql, row)?;
    }
    Ok(())
}

#[async_trait]
impl FireStore for SqliteStore {
    async fn due(&self, parts: &[Partition], until: Timestamp, limit: u32) -> Result<Vec<DueCursor>, StoreError> {
        let parts = parts.to_vec();
        self.read("find due schedules", move |connection| due(connection, &parts, micros(until), limit as usize)).await
    }

    async fn live_of(&self, schedules: &[ScheduleId], limit: u32) -> Result<Vec<Vec<LiveRun>>, StoreError> {
        let schedules = schedules.to_vec();
        self.read("find a schedule's live runs", move |connection| {
            schedules.iter().map(|schedule| live_of(connection, *schedule, limit)).collect()
        })
        .await
    }

    async fn fire(&self, write: &Write, pauses_revision: i64, items: &[FireItem]) -> Result<Vec<Fired>, StoreError> {
        let (write, items) = (write.clone(), items.to_vec());
        self.writer
            .write("fire schedules", Urgency::Prompt, move |connection| {
                once(
                    connection,
                    &write,
                    |answers: &Vec<Fired>| kept::fired(answers),
                    |_, kept| kept::fired_again(kept, &items),
                    |connection| fire(connection, &write, pauses_revision, &items),
                )
            })
            .await
    }
}
