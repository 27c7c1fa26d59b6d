//! Schedules and their cursors as they are stored.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    fire::{Cursor, Progress, SkipRange},
    ids::{JobId, Partition, RunId, ScheduleId, TenantId},
    store::{DueCursor, SchedulePage, ScheduleQuery, ScheduleRecord, ScheduleStore, SkipRecord, StoreError},
};

use crate::{
    codec::{skip_reason, skip_reason_named},
    engine::{Dialect, Engine, Row, SqlStore, Way, bound, cut, values},
    filter::PAGE_MAX,
};

const SCHEDULE: &str = "SELECT s.id, s.job, s.tenant, s.name, s.part, s.revision, s.spec, s.enabled, s.pause, \
     s.armed_by, s.deleted, s.fired, s.decided_to FROM schedule s";

/// How many are due in a second, with a seek for each partition: the key begins with it.
const DUE_SQLITE: &str = "SELECT count(*) FROM (SELECT 1 FROM partition p CROSS JOIN cursor c ON c.part = p.part \
     AND c.due_at >= $1 AND c.due_at < $1 + 1000000 LIMIT $2)";
const DUE_POSTGRES: &str = "SELECT count(*) FROM (SELECT 1 FROM partition p, LATERAL ( \
     SELECT 1 FROM cursor c WHERE c.part = p.part AND c.due_at >= $1 AND c.due_at < $1 + 1000000 LIMIT $2) due \
     LIMIT $2) counted";

#[async_trait]
impl<E: Engine> ScheduleStore for SqlStore<E> {
    async fn count_due(&self, seconds: &[Timestamp], most: u64) -> Result<Vec<u64>, StoreError> {
        let sql = E::DIALECT.either(DUE_SQLITE, DUE_POSTGRES);
        let keys = seconds.iter().map(|second| values![*second, as_limit(most)]).collect();
        let found = self.find_each("count due schedules", sql, keys).await?;
        found.iter().map(|rows| rows.first().map_or(Ok(0), |row| row.count(0))).collect()
    }

    async fn reserve_schedules(&self, count: u32) -> Result<ScheduleId, StoreError> {
        let count = i64::from(count.max(1));
        let statements = match E::DIALECT {
            Dialect::Sqlite => vec![bound(
                "UPDATE meta SET value = value + $1 WHERE key = 'schedule_id' RETURNING value",
                values![count],
            )],
            // `nextval` and `setval` are two steps; the lock makes them one.
            Dialect::Postgres => vec![
                bound(
                    "SELECT pg_advisory_xact_lock(hashtextextended('rota schedule ids of ' || current_schema(), 0))",
                    values![],
                ),
                bound("SELECT setval('schedule_id', nextval('schedule_id') + $1 - 1)", values![count]),
            ],
        };
        let answers = self.change_all(Way::Patient, "reserve ids of schedules", statements).await?;
        let last: i64 = answers.last().and_then(|rows| rows.first()).map_or(Ok(0), |row| row.int(0))?;
        Ok(ScheduleId(last - count + 1))
    }

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<ScheduleRecord>>, StoreError> {
        let sql = format!("{SCHEDULE} WHERE {}", E::DIALECT.any("s.id", 1));
        let rows = self.find("read schedules", sql, values![ids.iter().map(|id| id.0).collect::<Vec<i64>>()]).await?;
        let found: Vec<ScheduleRecord> = rows.iter().filter_map(|row| self.schedule(row)).collect();
        let places: HashMap<ScheduleId, &ScheduleRecord> = found.iter().map(|found| (found.id, found)).collect();
        Ok(ids.iter().map(|id| places.get(id).copied().cloned()).collect())
    }

    async fn list_schedules(&self, query: &ScheduleQuery) -> Result<SchedulePage, StoreError> {
        // The filter that has an index is written out, so that a plan made for all queries
        // alike can still use it.
        let (filter, value) = match (query.job, query.tenant) {
            (Some(job), _) => ("s.job = $3", job.0),
            (None, Some(tenant)) => (E::DIALECT.either("s.tenant = $3", "s.tenant = $3::bigint::int"), tenant.0.into()),
            (None, None) => (E::DIALECT.either("$3 IS NOT NULL", "$3::bigint IS NOT NULL"), 0),
        };
        let sql = format!(
            "{SCHEDULE} WHERE {} AND {filter} AND s.id > $1 AND (s.tenant = $2 OR $2 IS NULL) \
             AND (s.enabled = $4 OR $4 IS NULL) ORDER BY s.id LIMIT $5",
            E::DIALECT.not("s.deleted")
        );
        let limit = query.limit.clamp(1, PAGE_MAX);
        let after = query.after.map_or(i64::MIN, |after| after.0);
        let mut rows =
            self.find("list schedules", sql, values![after, query.tenant, value, query.enabled, limit + 1]).await?;
        let more = cut(&mut rows, limit as usize);
        let next = rows.last().filter(|_| more).map(|row| row.int(0).map(ScheduleId)).transpose()?;
        Ok(SchedulePage { schedules: rows.iter().filter_map(|row| self.schedule(row)).collect(), next })
    }

    async fn cursors(&self, schedules: &[ScheduleId]) -> Result<Vec<Option<DueCursor>>, StoreError> {
        let sql =
            "SELECT schedule, part, revision, planned_at, due_at, fired FROM cursor WHERE part = $1 AND schedule = $2";
        let keys = schedules.iter().map(|id| values![Partition::of_schedule(*id), *id]).collect();
        let found = self.find_each("read cursors", sql, keys).await?;
        let read = |rows: &Vec<Row>| rows.first().and_then(|row| self.readable("cursor", row.shown(0), cursor(row)));
        Ok(found.iter().map(read).collect())
    }

    async fn skips(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<SkipRecord>, StoreError> {
        let sql = "SELECT from_at, to_at, count, reason FROM skip WHERE schedule = $1 AND from_at < $2 \
                   ORDER BY from_at DESC LIMIT $3";
        let before = before.map_or(i64::MAX, crate::codec::micros);
        let rows = self.find("read skips", sql, values![schedule, before, limit.min(PAGE_MAX)]).await?;
        let key = |row: &Row| format!("{schedule}/{}", row.shown(0));
        let ranges = rows.iter().filter_map(|row| self.readable("skip", key(row), skip(row)));
        Ok(ranges.map(|range| SkipRecord { schedule, range }).collect())
    }
}

pub(super) fn as_limit(most: u64) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

impl<E: Engine> SqlStore<E> {
    /// None where it cannot be read.
    fn schedule(&self, row: &Row) -> Option<ScheduleRecord> {
        self.readable("schedule", row.shown(0), schedule(row))
    }
}

fn schedule(row: &Row) -> Result<ScheduleRecord, StoreError> {
    Ok(ScheduleRecord {
        id: ScheduleId(row.int(0)?),
        job: JobId(row.int(1)?),
        tenant: TenantId(row.int(2)?),
        name: row.text(3)?,
        part: Partition(row.int(4)?),
        revision: row.int(5)?,
        spec: row.text(6)?,
        enabled: row.bool(7)?,
        pause: row.opt(8, Row::json)?,
        armed_by: row.opt(9, Row::uuid)?.map(RunId),
        deleted: row.bool(10)?,
        progress: Progress { fired: row.count(11)?, decided_to: row.opt(12, Row::time)? },
    })
}

fn cursor(row: &Row) -> Result<DueCursor, StoreError> {
    Ok(DueCursor {
        schedule: ScheduleId(row.int(0)?),
        part: Partition(row.int(1)?),
        revision: row.int(2)?,
        cursor: Cursor { planned_at: row.time(3)?, due_at: row.time(4)?, fired: row.count(5)? },
    })
}

/// A stretch of instants. Why they were skipped is a code, or a name, which is what a release
/// of schema 18 reads in SQLite.
fn skip(row: &Row) -> Result<SkipRange, StoreError> {
    let reason = row.code(3).map_or_else(|| row.str(3).and_then(skip_reason_named), skip_reason)?;
    Ok(SkipRange { from: row.time(0)?, to: row.time(1)?, count: row.count(2)?, reason })
}
