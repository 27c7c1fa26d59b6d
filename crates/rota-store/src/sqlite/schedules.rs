//! Schedules and their cursors.

use std::{collections::HashMap, sync::LazyLock};

use jiff::Timestamp;
use rota_core::{
    fire::{Cursor, Progress, SkipRange},
    ids::{JobId, Partition, RunId, ScheduleId, TenantId},
    store::{
        DueCursor, Guarded, Pause, ReviewPage, ScheduleGuard, SchedulePage, SchedulePut, ScheduleQuery, ScheduleRecord,
        ScheduleSaved, SchedulesPut, SkipRecord, StoreError, Write,
    },
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    SqliteStore, bump_meta, failed,
    fire::{due_cursor, reason, record_skip},
    many::Many,
    once::once,
    own::guarded,
    rows::{text_at, uuid_opt},
    writer::Urgency,
};
use crate::{
    codec::{from_json, micros, time, time_opt, to_json, without_nul},
    definition::abandoned,
    filter::{PAGE_MAX, parts_from},
    kept::{self, Kept},
    review::review,
    unreadable::{gone, readable, readable_part},
};

impl SqliteStore {
    pub(super) async fn do_reserve_schedules(&self, count: u32) -> Result<ScheduleId, StoreError> {
        self.writer
            .write("reserve ids of schedules", Urgency::Patient, move |connection| {
                let last = bump_meta(connection, "schedule_id", i64::from(count))?;
                Ok(ScheduleId(last - i64::from(count) + 1))
            })
            .await
    }

    pub(super) async fn do_put_schedules(
        &self,
        write: &Write,
        schedules: &[SchedulePut],
    ) -> Result<Vec<ScheduleSaved>, StoreError> {
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

    pub(super) async fn do_schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<ScheduleRecord>>, StoreError> {
        let ids = ids.to_vec();
        self.read("read schedules", move |connection| {
            ids.iter().map(|id| schedule_where(connection, "id = ?1", [id.0])).collect()
        })
        .await
    }

    pub(super) async fn do_find_schedules(
        &self,
        names: &[(JobId, String)],
    ) -> Result<Vec<Option<ScheduleRecord>>, StoreError> {
        let names = names.to_vec();
        self.read("find schedules", move |connection| {
            names
                .iter()
                .map(|(job, name)| {
                    schedule_where(connection, "job = ?1 AND name = ?2 AND deleted = 0", params![job.0, name])
                })
                .collect()
        })
        .await
    }

    pub(super) async fn do_list_schedules(&self, query: &ScheduleQuery) -> Result<SchedulePage, StoreError> {
        let query = query.clone();
        self.read("list schedules", move |connection| list(connection, &query)).await
    }

    pub(super) async fn do_count_schedules(&self, tenant: TenantId, most: u64) -> Result<u64, StoreError> {
        self.read("count schedules", move |connection| {
            let sql = "SELECT count(*) FROM (SELECT 1 FROM schedule WHERE tenant = ?1 AND enabled = 1 AND deleted = 0 \
                 LIMIT ?2)";
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            let mut select = connection.prepare_cached(sql).map_err(failed)?;
            select.query_row(params![tenant.0, most], |row| row.get::<_, i64>(0)).map(|n| n as u64).map_err(failed)
        })
        .await
    }

    pub(super) async fn do_count_due(&self, seconds: &[Timestamp], most: u64) -> Result<Vec<u64>, StoreError> {
        let seconds = seconds.to_vec();
        self.read("count due schedules", move |connection| {
            // A seek for each partition: the key begins with it.
            let sql = "SELECT count(*) FROM (SELECT 1 FROM partition p CROSS JOIN cursor c ON c.part = p.part \
                 AND c.due_at >= ?1 AND c.due_at < ?1 + 1000000 LIMIT ?2)";
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            let mut select = connection.prepare_cached(sql).map_err(failed)?;
            let mut count = |second: &Timestamp| {
                let key = params![micros(*second), most];
                select.query_row(key, |row| row.get::<_, i64>(0)).map(|n| n as u64).map_err(failed)
            };
            seconds.iter().map(&mut count).collect()
        })
        .await
    }

    pub(super) async fn do_cursors(&self, schedules: &[ScheduleId]) -> Result<Vec<Option<DueCursor>>, StoreError> {
        let schedules = schedules.to_vec();
        self.read("find cursors", move |connection| {
            let found = find_cursors(connection, &schedules)?;
            Ok(schedules.iter().map(|id| found.get(id).copied()).collect())
        })
        .await
    }

    pub(super) async fn do_review(
        &self,
        parts: &[Partition],
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<ReviewPage, StoreError> {
        let parts = parts_from(parts, after);
        self.read("review schedules", move |connection| page(connection, &parts, after, limit as usize)).await
    }

    pub(super) async fn do_wake_at(
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

    pub(super) async fn do_skips(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<SkipRecord>, StoreError> {
        self.read("read skips", move |connection| {
            let sql = "SELECT from_at, to_at, count, reason FROM skip WHERE schedule = ?1 AND from_at < ?2 \
                 ORDER BY from_at DESC LIMIT ?3";
            let key = params![schedule.0, before.map_or(i64::MAX, micros), limit.min(PAGE_MAX)];
            let mut select = connection.prepare_cached(sql).map_err(failed)?;
            let mut rows = select.query(key).map_err(failed)?;
            let mut skips = Vec::new();
            while let Some(row) = rows.next().map_err(failed)? {
                let from: i64 = row.get(0).map_err(failed)?;
                let range = readable("skip", format_args!("{schedule}/{from}"), skip_range(row));
                skips.extend(range.map(|range| SkipRecord { schedule, range }));
            }
            Ok(skips)
        })
        .await
    }
}

fn skip_range(row: &Row<'_>) -> Result<SkipRange, StoreError> {
    Ok(SkipRange {
        from: time(row.get(0).map_err(failed)?)?,
        to: time(row.get(1).map_err(failed)?)?,
        count: row.get::<_, i64>(2).map_err(failed)?.max(0) as u64,
        reason: reason(&row.get::<_, String>(3).map_err(failed)?)?,
    })
}

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
    let moved = connection.prepare_cached(sql).and_then(|mut change| change.execute(row)).map_err(failed)?;
    Ok(if moved == 1 { Guarded::Applied } else { Guarded::Stale })
}

/// Has the schedules of a job that sleep wake at their instant.
pub fn wake_of_job(connection: &Connection, job: JobId) -> Result<(), StoreError> {
    let sql = "UPDATE cursor SET due_at = planned_at WHERE due_at <> planned_at AND (part, schedule) IN \
         (SELECT part, id FROM schedule WHERE job = ?1 AND deleted = 0)";
    connection.prepare_cached(sql).and_then(|mut update| update.execute([job.0])).map_err(failed)?;
    Ok(())
}

const SCHEDULE: &str =
    "id, job, tenant, name, part, revision, spec, enabled, pause, armed_by, deleted, fired, decided_to";

fn record(row: &Row<'_>) -> Result<ScheduleRecord, StoreError> {
    let pause: Option<String> = row.get(8).map_err(failed)?;
    Ok(ScheduleRecord {
        id: ScheduleId(row.get(0).map_err(failed)?),
        job: JobId(row.get(1).map_err(failed)?),
        tenant: TenantId(row.get(2).map_err(failed)?),
        name: row.get(3).map_err(failed)?,
        part: Partition(row.get(4).map_err(failed)?),
        revision: row.get(5).map_err(failed)?,
        spec: row.get(6).map_err(failed)?,
        enabled: row.get(7).map_err(failed)?,
        pause: pause.as_deref().map(from_json).transpose()?,
        armed_by: uuid_opt(row, 9).map_err(failed)?.map(RunId),
        deleted: row.get(10).map_err(failed)?,
        progress: Progress {
            fired: row.get::<_, i64>(11).map_err(failed)?.max(0) as u64,
            decided_to: time_opt(row.get(12).map_err(failed)?)?,
        },
    })
}

fn schedule_where(
    connection: &Connection,
    rest: &str,
    key: impl rusqlite::Params,
) -> Result<Option<ScheduleRecord>, StoreError> {
    let sql = format!("SELECT {SCHEDULE} FROM schedule WHERE {rest}");
    let mut select = connection.prepare_cached(&sql).map_err(failed)?;
    let mut rows = select.query(key).map_err(failed)?;
    let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
    Ok(readable("schedule", row.get::<_, i64>(0).map_err(failed)?, record(row)))
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
    let made = connection.prepare_cached(sql).and_then(|mut insert| insert.execute(row)).map_err(failed)?;
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
    let changed = connection.prepare_cached(sql).and_then(|mut update| update.execute(row)).map_err(failed)?;
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
    connection
        .prepare_cached("DELETE FROM cursor WHERE part = ?1 AND schedule = ?2")
        .and_then(|mut delete| delete.execute(params![Partition::of_schedule(schedule).0, schedule.0]))
        .map_err(failed)?;
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
        let mut select = connection.prepare_cached(sql).map_err(failed)?;
        let rows = select.query_map([job.0], |row| row.get(0).map(ScheduleId)).map_err(failed)?;
        rows.collect::<Result<_, _>>().map_err(failed)?
    };
    delete_all(connection, &ids, now)
}

/// Ends schedules. What they owed up to now is recorded as deleted.
fn delete_all(connection: &Connection, ids: &[ScheduleId], now: Timestamp) -> Result<(), StoreError> {
    let cursors = find_cursors(connection, ids)?;
    let sql = "UPDATE schedule SET deleted = 1, deleted_at = ?2, revision = revision + 1, armed_by = NULL \
         WHERE id = ?1 AND deleted = 0 RETURNING spec";
    for id in ids {
        let spec: Option<String> = connection
            .prepare_cached(sql)
            .and_then(|mut update| update.query_row([id.0, micros(now)], |row| row.get(0)).optional())
            .map_err(failed)?;
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

/// Changes a schedule's pause and raises its revision, on the schedule and on its
/// cursor, which wakes at its instant.
pub fn set_pause(
    connection: &Connection,
    id: ScheduleId,
    change: impl FnOnce(Option<Pause>) -> Option<Pause>,
) -> Result<bool, StoreError> {
    let Some(record) = schedule_where(connection, "id = ?1 AND deleted = 0", [id.0])? else { return Ok(false) };
    let Some(pause) = change(record.pause) else { return Ok(false) };
    let sql = "UPDATE schedule SET pause = ?2, revision = revision + 1 WHERE id = ?1";
    let row = params![id.0, to_json(&pause)?];
    connection.prepare_cached(sql).and_then(|mut update| update.execute(row)).map_err(failed)?;
    let sql = "UPDATE cursor SET due_at = planned_at, revision = ?3 WHERE part = ?1 AND schedule = ?2";
    let row = params![record.part.0, id.0, record.revision + 1];
    connection.prepare_cached(sql).and_then(|mut update| update.execute(row)).map_err(failed)?;
    Ok(true)
}

fn list(connection: &Connection, query: &ScheduleQuery) -> Result<SchedulePage, StoreError> {
    let limit = query.limit.clamp(1, PAGE_MAX) as usize;
    // The filter that has an index is written out, so that a plan made for all queries
    // alike can still use it.
    let (filter, value) = match (query.job, query.tenant) {
        (Some(job), _) => ("job = ?3", job.0),
        (None, Some(tenant)) => ("tenant = ?3", i64::from(tenant.0)),
        (None, None) => ("?3 IS NOT NULL", 0),
    };
    let sql = format!(
        "SELECT {SCHEDULE} FROM schedule WHERE deleted = 0 AND {filter} AND id > ?1 AND (?2 IS NULL OR tenant = ?2) \
           AND (?4 IS NULL OR enabled = ?4) ORDER BY id LIMIT ?5"
    );
    let key = params![
        query.after.map_or(i64::MIN, |after| after.0),
        query.tenant.map(|tenant| tenant.0),
        value,
        query.enabled,
        limit as i64 + 1,
    ];
    let mut select = connection.prepare_cached(&sql).map_err(failed)?;
    let mut rows = select.query(key).map_err(failed)?;
    let (mut schedules, mut looked, mut last) = (Vec::new(), 0, None);
    while let Some(row) = rows.next().map_err(failed)? {
        looked += 1;
        if looked > limit {
            return Ok(SchedulePage { schedules, next: last.map(ScheduleId) });
        }
        let id: i64 = row.get(0).map_err(failed)?;
        last = Some(id);
        schedules.extend(readable("schedule", id, record(row)));
    }
    Ok(SchedulePage { schedules, next: None })
}
