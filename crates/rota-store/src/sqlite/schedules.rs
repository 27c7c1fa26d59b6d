//! Schedules and their cursors.

use std::{collections::HashMap, sync::LazyLock};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    fire::Cursor,
    ids::{JobId, Partition, ScheduleId},
    store::{
        DueCursor, Guarded, ReviewPage, ScheduleChanges, ScheduleGuard, SchedulePut, ScheduleSaved, SchedulesPut,
        StoreError, Write,
    },
};
use rusqlite::{Connection, Row, params};

use super::{
    SqliteStore, failed,
    fire::{due_cursor, record_skip},
    many::Many,
    once::once,
    own::guarded,
    rows::{all, change, first, text_at},
    writer::Urgency,
};
use crate::{
    codec::{micros, without_nul},
    definition::abandoned,
    filter::parts_from,
    kept::{self, Kept},
    review::review,
    unreadable::{gone, readable, readable_part},
};

/// The cursors of schedules.
fn find_cursors(
    connection: &Connection,
    schedules: &[ScheduleId],
) -> Result<HashMap<ScheduleId, DueCursor>, StoreError> {
    let sql =
        "SELECT part, due_at, schedule, planned_at, fired, revision FROM cursor WHERE part = ?1 AND schedule = ?2";
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let mut found = HashMap::with_capacity(schedules.len());
    for id in schedules {
        let mut rows = select.query(params![Partition::of_schedule(*id).0, id.0]).map_err(failed)?;
        if let Some(row) = rows.next().map_err(failed)? {
            found.extend(readable("cursor", id, due_cursor(row)).map(|due| (*id, due)));
        }
    }
    Ok(found)
}

fn page(
    connection: &Connection,
    parts: &[Partition],
    after: Option<ScheduleId>,
    limit: usize,
) -> Result<ReviewPage, StoreError> {
    let sql = "SELECT id, revision FROM schedule WHERE part = ?1 AND id > ?2 AND enabled = 1 AND deleted = 0 \
         ORDER BY id LIMIT ?3";
    let enabled = of_parts(connection, sql, parts, after, limit, |row| {
        let id = row.get(0).ok()?;
        Some((id, readable_part("schedule", id, row.get(1))))
    })?;
    let sql = "SELECT part, due_at, schedule, planned_at, fired, revision FROM cursor WHERE part = ?1 AND schedule > ?2 \
         ORDER BY schedule LIMIT ?3";
    let armed = of_parts(connection, sql, parts, after, limit, |row| {
        let read = readable("cursor", text_at(row, 2), due_cursor(row));
        Some((row.get(2).ok()?, read))
    })?;
    Ok(review(&enabled, &armed, limit))
}

/// What a query finds in one partition after the other, up to `limit`.
fn of_parts<T>(
    connection: &Connection,
    sql: &str,
    parts: &[Partition],
    after: Option<ScheduleId>,
    limit: usize,
    read: fn(&Row<'_>) -> Option<T>,
) -> Result<Vec<T>, StoreError> {
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let mut found = Vec::new();
    for part in parts {
        let behind = after.filter(|after| Partition::of_schedule(*after) == *part).map_or(i64::MIN, |after| after.0);
        let mut rows = select.query(params![part.0, behind, (limit - found.len()) as i64]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            found.extend(read(row));
        }
        if found.len() >= limit {
            break;
        }
    }
    Ok(found)
}

fn wake_at(connection: &Connection, due: &DueCursor, at: Option<Timestamp>) -> Result<Guarded, StoreError> {
    let sql = match at {
        Some(_) => {
            "UPDATE cursor SET due_at = ?7 WHERE part = ?1 AND schedule = ?2 AND due_at = ?3 AND planned_at = ?4 \
             AND fired = ?5 AND revision = ?6"
        }
        None => {
            "DELETE FROM cursor WHERE part = ?1 AND schedule = ?2 AND due_at = ?3 AND planned_at = ?4 AND fired = ?5 \
             AND revision = ?6 AND ?7 IS NULL"
        }
    };
    let DueCursor { schedule, part, revision, cursor } = due;
    let row = params![
        part.0,
        schedule.0,
        micros(cursor.due_at),
        micros(cursor.planned_at),
        cursor.fired as i64,
        revision,
        at.map(micros),
    ];
    let moved = change(connection, sql, row)?;
    Ok(if moved == 1 { Guarded::Applied } else { Guarded::Stale })
}

/// The answer to a schedule that was not there before.
const NEW: ScheduleSaved = ScheduleSaved::Saved { revision: 1 };

/// The plain answer, all new, is stored as nothing.
fn kept(answers: &[ScheduleSaved]) -> Result<Kept, StoreError> {
    if answers.iter().all(|answer| *answer == NEW) { Ok(None) } else { kept::json(answers) }
}

fn put_all(connection: &Connection, puts: &[SchedulePut]) -> Result<Vec<ScheduleSaved>, StoreError> {
    for put in puts {
        without_nul("save schedules", [put.name.as_str(), &put.spec])?;
    }
    let edited: Vec<ScheduleId> = puts.iter().filter(|put| put.guard.is_some()).map(|put| put.id).collect();
    let cursors = find_cursors(connection, &edited)?;
    let mut answers = Vec::with_capacity(puts.len());
    let mut armed = Vec::with_capacity(puts.len());
    for put in puts {
        let saved = match &put.guard {
            None => insert(connection, put)?,
            Some(guard) if guard.cursor == cursors.get(&put.id).map(|due| due.cursor) => {
                update(connection, put, guard)?
            }
            Some(_) => ScheduleSaved::Stale,
        };
        if let (ScheduleSaved::Saved { revision }, Some(cursor)) = (&saved, put.stored.cursor) {
            armed.push((Partition::of_schedule(put.id), put.id, *revision, cursor));
        }
        answers.push(saved);
    }
    put_cursors(connection, armed)?;
    Ok(answers)
}

static CURSORS: LazyLock<Many> = LazyLock::new(|| {
    let head = "INSERT OR FAIL INTO cursor (part, due_at, schedule, planned_at, fired, revision) VALUES ";
    Many::new(head, "(?, ?, ?, ?, ?, ?)", "")
});

/// Arms schedules in the order of their keys: a bulk load touches each page of
/// the table once, instead of one page for each schedule.
fn put_cursors(
    connection: &Connection,
    mut armed: Vec<(Partition, ScheduleId, i32, Cursor)>,
) -> Result<(), StoreError> {
    armed.sort_unstable_by_key(|(part, schedule, _, cursor)| (*part, cursor.due_at, *schedule));
    CURSORS
        .execute(connection, &armed, |values, (part, schedule, revision, cursor)| {
            values.put(part.0)?;
            values.put(micros(cursor.due_at))?;
            values.put(schedule.0)?;
            values.put(micros(cursor.planned_at))?;
            values.put(cursor.fired as i64)?;
            values.put(revision)
        })
        .map_err(failed)
}

fn insert(connection: &Connection, put: &SchedulePut) -> Result<ScheduleSaved, StoreError> {
    let sql = "INSERT INTO schedule (id, job, tenant, part, revision, enabled, name, spec) \
         VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7) ON CONFLICT DO NOTHING";
    let part = Partition::of_schedule(put.id);
    let row = params![put.id.0, put.job.0, put.tenant.0, part.0, put.enabled, put.name, put.spec];
    let made = change(connection, sql, row)?;
    if made == 0 {
        return Ok(ScheduleSaved::Stale);
    }
    for skip in &put.skips {
        record_skip(connection, put.id, put.stored.behind.fired, skip)?;
    }
    Ok(NEW)
}

fn update(connection: &Connection, put: &SchedulePut, guard: &ScheduleGuard) -> Result<ScheduleSaved, StoreError> {
    let sql = "UPDATE schedule SET revision = revision + 1, enabled = ?3, name = ?4, spec = ?5, fired = ?6, \
         decided_to = ?7, armed_by = CASE WHEN ?8 THEN armed_by END \
         WHERE id = ?1 AND revision = ?2 AND fired = ?9 AND decided_to IS ?10 AND armed_by IS ?11 AND deleted = 0 \
           AND NOT EXISTS (SELECT 1 FROM schedule AS other WHERE other.job = schedule.job AND other.name = ?4 \
              AND other.deleted = 0 AND other.id <> ?1)";
    let row = params![
        put.id.0,
        guard.revision,
        put.enabled,
        put.name,
        put.spec,
        put.stored.behind.fired as i64,
        put.stored.behind.decided_to.map(micros),
        put.stored.waits_for_run,
        guard.behind.fired as i64,
        guard.behind.decided_to.map(micros),
        guard.armed_by.map(|run| run.0.into_bytes()),
    ];
    let changed = change(connection, sql, row)?;
    if changed == 0 {
        return Ok(ScheduleSaved::Stale);
    }
    drop_cursor(connection, put.id)?;
    for skip in &put.skips {
        record_skip(connection, put.id, put.stored.behind.fired, skip)?;
    }
    Ok(ScheduleSaved::Saved { revision: guard.revision + 1 })
}

/// Takes a schedule's cursor away, whatever is in it.
fn drop_cursor(connection: &Connection, schedule: ScheduleId) -> Result<(), StoreError> {
    change(
        connection,
        "DELETE FROM cursor WHERE part = ?1 AND schedule = ?2",
        params![Partition::of_schedule(schedule).0, schedule.0],
    )?;
    gone("cursor", schedule);
    Ok(())
}

/// Saves and ends schedules of a job that is saved with them.
pub fn put_of_job(
    connection: &Connection,
    job: JobId,
    schedules: &SchedulesPut,
    now: Timestamp,
) -> Result<(), StoreError> {
    delete_all(connection, &schedules.ended, now)?;
    let puts: Vec<SchedulePut> = schedules.saved.iter().map(|put| SchedulePut { job, ..put.clone() }).collect();
    if put_all(connection, &puts)?.contains(&ScheduleSaved::Stale) {
        return Err(StoreError::Moved { what: "save jobs" });
    }
    Ok(())
}

/// Ends the schedules of a deleted job.
pub fn delete_of_job(connection: &Connection, job: JobId, now: Timestamp) -> Result<(), StoreError> {
    let ids: Vec<ScheduleId> = {
        let sql = "SELECT id FROM schedule WHERE job = ?1 AND deleted = 0";
        all(connection, sql, [job.0], |row| row.get(0).map(ScheduleId))?
    };
    delete_all(connection, &ids, now)
}

/// Ends schedules. What they owed up to now is recorded as deleted.
fn delete_all(connection: &Connection, ids: &[ScheduleId], now: Timestamp) -> Result<(), StoreError> {
    let cursors = find_cursors(connection, ids)?;
    let sql = "UPDATE schedule SET deleted = 1, deleted_at = ?2, revision = revision + 1, armed_by = NULL \
         WHERE id = ?1 AND deleted = 0 RETURNING spec";
    for id in ids {
        let spec: Option<String> = first(connection, sql, [id.0, micros(now)], |row| row.get(0))?;
        let Some(spec) = spec else { continue };
        drop_cursor(connection, *id)?;
        if let Some(DueCursor { cursor, .. }) = cursors.get(id)
            && let Some(owed) = abandoned(*id, &spec, *cursor, now)
        {
            record_skip(connection, *id, cursor.fired, &owed)?;
        }
    }
    Ok(())
}

#[async_trait]
impl ScheduleChanges for SqliteStore {
    async fn put_schedules(&self, write: &Write, schedules: &[SchedulePut]) -> Result<Vec<ScheduleSaved>, StoreError> {
        let (write, schedules) = (write.clone(), schedules.to_vec());
        self.writer
            .write("save schedules", Urgency::Patient, move |connection| {
                once(
                    connection,
                    &write,
                    |answers: &Vec<ScheduleSaved>| kept(answers),
                    |_, kept| kept.map_or_else(|| Ok(vec![NEW; schedules.len()]), |kept| kept::json_again(Some(kept))),
                    |connection| put_all(connection, &schedules),
                )
            })
            .await
    }

    async fn review(
        &self,
        parts: &[Partition],
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<ReviewPage, StoreError> {
        let parts = parts_from(parts, after);
        self.read("review schedules", move |connection| page(connection, &parts, after, limit as usize)).await
    }

    async fn wake_at(
        &self,
        write: &Write,
        cursors: &[(DueCursor, Option<Timestamp>)],
    ) -> Result<Vec<Guarded>, StoreError> {
        let (write, cursors) = (write.clone(), cursors.to_vec());
        let count = cursors.len();
        self.writer
            .write("wake schedules", Urgency::Prompt, move |connection| {
                guarded(connection, &write, count, |connection| {
                    cursors.iter().map(|(due, at)| wake_at(connection, due, *at)).collect()
                })
            })
            .await
    }
}
