//! Schedules and their cursors.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::LazyLock,
};

use jiff::Timestamp;
use rota_core::{
    fire::{Cursor, Progress, SkipRange},
    ids::{JobId, Partition, RunId, ScheduleId, TenantId},
    store::{
        ScheduleGuard, SchedulePage, SchedulePut, ScheduleQuery, ScheduleRecord, ScheduleSaved, SchedulesPut,
        SkipRecord, StoreError, UnarmedPage, Write,
    },
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    SqliteStore, bump_meta, failed,
    fire::{reason, record_skip},
    many::Many,
    once::once,
    rows::uuid_opt,
    writer::Urgency,
};
use crate::{
    abandoned::abandoned,
    codec::{from_json, micros, time, time_opt, without_nul},
    filter::{PAGE_MAX, parts_from},
    kept::{self, Kept},
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

    /// There is no index by tenant: this reads the table up to the last one that
    /// counts, beside the writer. Those who ask remember the answer for a while.
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

    pub(super) async fn do_cursors(&self, schedules: &[ScheduleId]) -> Result<Vec<Option<Cursor>>, StoreError> {
        let schedules = schedules.to_vec();
        self.read("find cursors", move |connection| {
            let found = find_cursors(connection, &schedules)?;
            Ok(schedules.iter().map(|id| found.get(id).copied()).collect())
        })
        .await
    }

    pub(super) async fn do_unarmed(
        &self,
        parts: &[Partition],
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<UnarmedPage, StoreError> {
        let parts = parts_from(parts, after);
        self.read("look for unarmed schedules", move |connection| unarmed(connection, &parts, after, limit)).await
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
                let range = SkipRange {
                    from: time(row.get(0).map_err(failed)?)?,
                    to: time(row.get(1).map_err(failed)?)?,
                    count: row.get::<_, i64>(2).map_err(failed)?.max(0) as u64,
                    reason: reason(&row.get::<_, String>(3).map_err(failed)?)?,
                };
                skips.push(SkipRecord { schedule, range });
            }
            Ok(skips)
        })
        .await
    }
}

/// The cursors of schedules, found in one walk through each partition.
fn find_cursors(connection: &Connection, schedules: &[ScheduleId]) -> Result<HashMap<ScheduleId, Cursor>, StoreError> {
    let mut parts: BTreeMap<Partition, HashSet<ScheduleId>> = BTreeMap::new();
    for id in schedules {
        parts.entry(Partition::of_schedule(*id)).or_default().insert(*id);
    }
    let sql = "SELECT schedule, planned_at, due_at, fired FROM cursor WHERE part = ?1";
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let mut found = HashMap::new();
    for (part, wanted) in parts {
        let mut rows = select.query([part.0]).map_err(failed)?;
        let mut left = wanted.len();
        while left > 0
            && let Some(row) = rows.next().map_err(failed)?
        {
            let id = ScheduleId(row.get(0).map_err(failed)?);
            if wanted.contains(&id) {
                let cursor = Cursor {
                    planned_at: time(row.get(1).map_err(failed)?)?,
                    due_at: time(row.get(2).map_err(failed)?)?,
                    fired: row.get::<_, i64>(3).map_err(failed)?.max(0) as u64,
                };
                found.insert(id, cursor);
                left -= 1;
            }
        }
    }
    Ok(found)
}

fn unarmed(
    connection: &Connection,
    parts: &[Partition],
    after: Option<ScheduleId>,
    limit: u32,
) -> Result<UnarmedPage, StoreError> {
    let enabled =
        "SELECT id FROM schedule WHERE part = ?1 AND id > ?2 AND enabled = 1 AND deleted = 0 ORDER BY id LIMIT ?3";
    let mut enabled = connection.prepare_cached(enabled).map_err(failed)?;
    let mut armed = connection.prepare_cached("SELECT schedule FROM cursor WHERE part = ?1").map_err(failed)?;
    let mut page = UnarmedPage::default();
    let mut left = limit as usize;
    for part in parts {
        let behind = after.filter(|after| Partition::of_schedule(*after) == *part).map_or(i64::MIN, |after| after.0);
        let ids = enabled.query_map(params![part.0, behind, left as i64], |row| row.get(0)).map_err(failed)?;
        let ids: Vec<i64> = ids.collect::<Result<_, _>>().map_err(failed)?;
        let Some(last) = ids.last() else { continue };
        let cursors = armed.query_map([part.0], |row| row.get(0)).map_err(failed)?;
        let cursors: HashSet<i64> = cursors.collect::<Result<_, _>>().map_err(failed)?;
        page.schedules.extend(ids.iter().filter(|id| !cursors.contains(id)).map(|id| ScheduleId(*id)));
        left -= ids.len();
        if left == 0 {
            page.next = Some(ScheduleId(*last));
            break;
        }
    }
    Ok(page)
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
    rows.next().map_err(failed)?.map(record).transpose()
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
            Some(guard) if guard.cursor == cursors.get(&put.id).copied() => update(connection, put, guard)?,
            Some(_) => ScheduleSaved::Stale,
        };
        if let (ScheduleSaved::Saved { revision }, Some(cursor)) = (&saved, put.cursor) {
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
    let sql = "INSERT INTO schedule (id, job, tenant, part, revision, enabled, after_finish_ms, name, spec) \
         VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING";
    let part = Partition::of_schedule(put.id);
    let row = params![
        put.id.0,
        put.job.0,
        put.tenant.0,
        part.0,
        put.enabled,
        put.after_finish_ms.map(|ms| ms as i64),
        put.name,
        put.spec
    ];
    let made = connection.prepare_cached(sql).and_then(|mut insert| insert.execute(row)).map_err(failed)?;
    if made == 0 {
        return Ok(ScheduleSaved::Stale);
    }
    for skip in &put.skips {
        record_skip(connection, put.id, put.behind.fired, skip)?;
    }
    Ok(NEW)
}

fn update(connection: &Connection, put: &SchedulePut, guard: &ScheduleGuard) -> Result<ScheduleSaved, StoreError> {
    let sql = "UPDATE schedule SET revision = revision + 1, enabled = ?3, after_finish_ms = ?4, name = ?5, spec = ?6, \
         fired = ?7, decided_to = ?8, armed_by = CASE WHEN ?4 IS NULL OR ?9 THEN NULL ELSE armed_by END \
         WHERE id = ?1 AND revision = ?2 AND fired = ?10 AND decided_to IS ?11 AND deleted = 0 AND NOT EXISTS \
           (SELECT 1 FROM schedule AS other WHERE other.job = schedule.job AND other.name = ?5 \
              AND other.deleted = 0 AND other.id <> ?1)";
    let row = params![
        put.id.0,
        guard.revision,
        put.enabled,
        put.after_finish_ms.map(|ms| ms as i64),
        put.name,
        put.spec,
        put.behind.fired as i64,
        put.behind.decided_to.map(micros),
        put.cursor.is_some(),
        guard.behind.fired as i64,
        guard.behind.decided_to.map(micros),
    ];
    let changed = connection.prepare_cached(sql).and_then(|mut update| update.execute(row)).map_err(failed)?;
    if changed == 0 {
        return Ok(ScheduleSaved::Stale);
    }
    if let Some(old) = &guard.cursor {
        drop_cursor(connection, Partition::of_schedule(put.id), put.id, old)?;
    }
    for skip in &put.skips {
        record_skip(connection, put.id, put.behind.fired, skip)?;
    }
    Ok(ScheduleSaved::Saved { revision: guard.revision + 1 })
}

fn drop_cursor(
    connection: &Connection,
    part: Partition,
    schedule: ScheduleId,
    cursor: &Cursor,
) -> Result<(), StoreError> {
    connection
        .prepare_cached("DELETE FROM cursor WHERE part = ?1 AND due_at = ?2 AND schedule = ?3")
        .and_then(|mut delete| delete.execute(params![part.0, micros(cursor.due_at), schedule.0]))
        .map_err(failed)?;
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
    let sql = "UPDATE schedule SET deleted = 1, revision = revision + 1, armed_by = NULL \
         WHERE id = ?1 AND deleted = 0 RETURNING spec";
    for id in ids {
        let spec: Option<String> = connection
            .prepare_cached(sql)
            .and_then(|mut update| update.query_row([id.0], |row| row.get(0)).optional())
            .map_err(failed)?;
        if let (Some(spec), Some(cursor)) = (spec, cursors.get(id)) {
            drop_cursor(connection, Partition::of_schedule(*id), *id, cursor)?;
            if let Some(owed) = abandoned(*id, &spec, *cursor, now) {
                record_skip(connection, *id, cursor.fired, &owed)?;
            }
        }
    }
    Ok(())
}

/// Sets or lifts a schedule's pause and raises its revision, on the schedule
/// and on its cursor.
pub fn set_pause(connection: &Connection, id: ScheduleId, pause: Option<&str>) -> Result<bool, StoreError> {
    let sql =
        "UPDATE schedule SET pause = ?2, revision = revision + 1 WHERE id = ?1 AND deleted = 0 RETURNING revision";
    let revision: Option<i32> = connection
        .prepare_cached(sql)
        .and_then(|mut update| update.query_row(params![id.0, pause], |row| row.get(0)).optional())
        .map_err(failed)?;
    let Some(revision) = revision else { return Ok(false) };
    if let Some(cursor) = find_cursors(connection, &[id])?.get(&id) {
        let part = Partition::of_schedule(id);
        connection
            .prepare_cached("UPDATE cursor SET revision = ?4 WHERE part = ?1 AND due_at = ?2 AND schedule = ?3")
            .and_then(|mut update| update.execute(params![part.0, micros(cursor.due_at), id.0, revision]))
            .map_err(failed)?;
    }
    Ok(true)
}

fn list(connection: &Connection, query: &ScheduleQuery) -> Result<SchedulePage, StoreError> {
    let limit = query.limit.clamp(1, PAGE_MAX) as usize;
    let sql = format!(
        "SELECT {SCHEDULE} FROM schedule WHERE deleted = 0 AND id > ?1 AND (?2 IS NULL OR tenant = ?2) \
           AND (?3 IS NULL OR job = ?3) AND (?4 IS NULL OR enabled = ?4) ORDER BY id LIMIT ?5"
    );
    let key = params![
        query.after.map_or(i64::MIN, |after| after.0),
        query.tenant.map(|tenant| tenant.0),
        query.job.map(|job| job.0),
        query.enabled,
        limit as i64 + 1,
    ];
    let mut select = connection.prepare_cached(&sql).map_err(failed)?;
    let mut rows = select.query(key).map_err(failed)?;
    let mut schedules = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        schedules.push(record(row)?);
    }
    let more = schedules.len() > limit;
    schedules.truncate(limit);
    let next = if more { schedules.last().map(|last| last.id) } else { None };
    Ok(SchedulePage { schedules, next })
}
