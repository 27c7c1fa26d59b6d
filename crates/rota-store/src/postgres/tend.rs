//! Tend: upkeep, a slice at a time.
//!
//! One node tends at a time (an advisory lock that is tried, never waited for);
//! the others are told that there is nothing to do.

use std::{
    collections::{BTreeMap, HashSet},
    sync::atomic::{AtomicI64, Ordering},
};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    duration::Span,
    fire::PUT_OFF_MAX,
    ids::JobId,
    rollup::Rollup,
    store::{DeadMark, Pause, StoreError, Tend, Tended, UpkeepStore, Worker},
};
use uuid::Uuid;

use super::{
    PostgresStore,
    days::{DAILY, DAY_MICROS, day_of},
    fault::Fault,
    line::Line,
    tx::{Param, Tx},
};
use crate::{
    codec::{from_json, micros, oldest_id, time},
    rollup,
};

/// Deltas folded in one slice: about 10 ms of work.
const FOLD_MAX: i64 = 16;
/// Rows purged of each kind in one slice.
const PURGE_MAX: i64 = 1_000;
/// Tables without an index on time are looked through this often.
const PURGE_EVERY: Span = Span::secs(60);
/// So many dead rows lie in the table of live runs before they are cleared away:
/// about one to two seconds of a busy store.
pub(super) const DEAD_MAX: i64 = 50_000;
/// Days made ahead of the present one.
const DAYS_AHEAD: i64 = 3;
/// Versions of jobs that a slice decides about, jobs whose roll-ups it looks at, deleted
/// jobs that it drops, and runs whose logs it looks at.
const VERSIONS_MAX: i64 = 100;
const ROLLUPS_MAX: i64 = 500;
const JOBS_MAX: i64 = 10;
const LOGS_MAX: i64 = 100;
/// A node's clock may be behind that of the one that made a run by less than this.
const SKEW_MAX: Span = Span::secs(3_600);

/// The time before which rows go.
type Before = fn(&Tend) -> Timestamp;

/// What goes by age alone: at most `$2` rows from before `$1`.
const SLICES: [(&str, Before); 15] = [
    (
        "DELETE FROM schedule WHERE id = ANY(ARRAY(SELECT id FROM schedule WHERE deleted AND deleted_at < $1 \
         LIMIT $2)) AND deleted",
        Tend::deleted_before,
    ),
    (
        "DELETE FROM notice WHERE (part, run) IN (SELECT n.part, n.run FROM notice n \
         LEFT JOIN run r ON r.id = n.run WHERE r.id IS NULL LIMIT $2) AND $1::bigint IS NOT NULL",
        |tend| tend.now,
    ),
    (
        "DELETE FROM node WHERE id = ANY(ARRAY(SELECT id FROM node WHERE until < $1 LIMIT $2)) AND until < $1 \
         AND NOT EXISTS (SELECT 1 FROM partition p WHERE p.node = node.id)",
        |tend| Worker::KEPT.before(tend.now),
    ),
    (
        "DELETE FROM open_dead WHERE run = ANY(ARRAY(SELECT run FROM open_dead WHERE ended_at < $1 LIMIT $2)) \
         AND ended_at < $1",
        |tend| tend.history_keep.before(tend.now),
    ),
    (
        "DELETE FROM dead_mark WHERE run = ANY(ARRAY(SELECT run FROM dead_mark WHERE at < $1 LIMIT $2)) AND at < $1",
        |tend| DeadMark::KEPT_BEYOND.before(tend.history_keep.before(tend.now)),
    ),
    (
        "DELETE FROM session WHERE digest = ANY(ARRAY(SELECT digest FROM session WHERE expires_at <= $1 LIMIT $2)) \
         AND expires_at <= $1",
        |tend| tend.now,
    ),
    ("DELETE FROM audit WHERE ctid = ANY(ARRAY(SELECT ctid FROM audit WHERE at < $1 LIMIT $2)) AND at < $1", |tend| {
        tend.audit_keep.before(tend.now)
    }),
    (
        "DELETE FROM token WHERE id = ANY(ARRAY(SELECT id FROM token WHERE least(revoked_at, expires_at) < $1 \
         LIMIT $2)) AND least(revoked_at, expires_at) < $1",
        |tend| tend.audit_keep.before(tend.now),
    ),
    // Ids of batches are by age, so the first ones are the oldest.
    ("DELETE FROM batch WHERE id = ANY(ARRAY(SELECT id FROM batch ORDER BY id LIMIT $2)) AND at < $1", |tend| {
        tend.batches_keep.before(tend.now)
    }),
    (
        "DELETE FROM skip WHERE ctid = ANY(ARRAY(SELECT ctid FROM skip WHERE to_at < $1 LIMIT $2)) AND to_at < $1",
        |tend| tend.skips_keep.before(tend.now),
    ),
    (
        "DELETE FROM request WHERE (tenant, key) IN ( \
             SELECT tenant, key FROM request WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2) \
         AND expires_at <= $1",
        |tend| tend.now,
    ),
    (
        "DELETE FROM unique_key WHERE key = ANY(ARRAY(SELECT key FROM unique_key WHERE until <= $1 LIMIT $2)) \
         AND until <= $1",
        |tend| tend.now,
    ),
    (
        "DELETE FROM bucket WHERE key = ANY(ARRAY(SELECT key FROM bucket WHERE full_at <= $1 LIMIT $2)) \
         AND full_at <= $1",
        |tend| tend.now,
    ),
    (
        "DELETE FROM slot WHERE key = ANY(ARRAY(SELECT key FROM slot WHERE held = 0 AND waiting = 0 LIMIT $2 \
         FOR UPDATE SKIP LOCKED)) AND held = 0 AND waiting = 0 AND $1::bigint IS NOT NULL",
        |tend| tend.now,
    ),
    (
        "DELETE FROM worker WHERE id = ANY(ARRAY(SELECT id FROM worker WHERE until < $1 LIMIT $2)) AND until < $1",
        |tend| Worker::KEPT.before(tend.now),
    ),
];

/// When this process last purged, and whether it found more than it took.
#[derive(Debug, Default)]
pub(super) struct Tending {
    purged_at: AtomicI64,
    summarised_at: AtomicI64,
    /// The job at which the walk through roll-ups is.
    rollups_at: AtomicI64,
    /// The run at which the walk through logs that were moved aside is.
    logs_at: Mutex<Uuid>,
    /// Dead rows that the last clearing had to leave, because someone may still
    /// see them.
    dead_left: AtomicI64,
}

impl PostgresStore {
    pub(super) async fn tend_slice(&self, tend: &Tend) -> Result<Tended, Fault> {
        let now = micros(tend.now);
        for ahead in 0..=DAYS_AHEAD {
            self.have_day(now.saturating_add(ahead * DAY_MICROS)).await?;
        }
        let mut tended = Tended::default();
        self.fold(&mut tended).await?;
        self.clear(DEAD_MAX).await?;
        let due = |last: &AtomicI64| {
            let last = last.load(Ordering::Relaxed);
            now.saturating_sub(last).saturating_abs() >= PURGE_EVERY.as_millis() as i64 * 1_000
        };
        if due(&self.tending.purged_at) {
            let mut purge = Tended::default();
            self.purge(tend, &mut purge).await?;
            if !purge.more {
                self.tending.purged_at.store(now, Ordering::Relaxed);
            }
            tended.purged += purge.purged;
            tended.more |= purge.more;
        }
        if due(&self.tending.summarised_at) {
            tended.indexed += self.summarise(now).await?;
            self.tending.summarised_at.store(now, Ordering::Relaxed);
        }
        Ok(tended)
    }

    /// Adds the oldest deltas to the roll-ups.
    async fn fold(&self, tended: &mut Tended) -> Result<(), Fault> {
        let tx = Tx::on(&self.work).await?;
        let lock = "SELECT pg_try_advisory_xact_lock(hashtextextended('rota upkeep of ' || current_schema(), 0))";
        let mine: bool = tx.rows(lock, &[]).await?.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false);
        if !mine {
            return tx.commit().await;
        }
        let sql = "DELETE FROM rollup_delta WHERE ctid = ANY(ARRAY(SELECT ctid FROM rollup_delta LIMIT $1)) RETURNING body, at";
        let rows = tx.rows(sql, &[&FOLD_MAX]).await?;
        let mut sums: BTreeMap<(JobId, i64), Rollup> = BTreeMap::new();
        for row in &rows {
            let (delta, at): (_, i64) = (rollup::decode(row.try_get(0)?), row.try_get(1)?);
            for (key, delta) in tx.notes.readable("rollup_delta", at, delta).unwrap_or_default() {
                sums.entry(key).or_default().merge(&delta);
            }
        }
        if !sums.is_empty() {
            add_rollups(&tx, sums).await?;
        }
        tx.commit().await?;
        tended.folded += rows.len() as u64;
        tended.more |= rows.len() as i64 >= FOLD_MAX;
        Ok(())
    }

    async fn purge(&self, tend: &Tend, tended: &mut Tended) -> Result<(), Fault> {
        for (sql, before) in SLICES {
            let gone = self.execute(sql, &[&micros(before(tend)), &PURGE_MAX]).await?;
            tended.purged += gone;
            tended.more |= gone as i64 >= PURGE_MAX;
        }
        self.drop_jobs(tend, tended).await?;
        self.drop_versions(tend, tended).await?;
        self.drop_rollups(tend, tended).await?;
        tended.purged += self.drop_pauses(tend).await?;
        tended.purged += self.drop_days(micros(tend.history_before())).await?;
        self.drop_kept_logs(tended).await?;
        Ok(())
    }

    /// Drops the jobs that were deleted longest ago, with what is left of them. Their
    /// schedules and skips go by their own age.
    async fn drop_jobs(&self, tend: &Tend, tended: &mut Tended) -> Result<(), Fault> {
        let tx = Tx::on(&self.work).await?;
        let sql = "SELECT id FROM job WHERE deleted AND deletion IS NULL AND updated_at < $1 ORDER BY updated_at \
                   LIMIT $2 FOR UPDATE SKIP LOCKED";
        let rows = tx.rows(sql, &[&micros(tend.deleted_before()), &JOBS_MAX]).await?;
        let jobs: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        if jobs.is_empty() {
            return tx.commit().await;
        }
        let (mut purged, mut all) = (0, true);
        for (table, column) in [("rollup", "job"), ("job_version", "job"), ("after_end", "downstream")] {
            let sql = format!(
                "WITH gone AS (DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} \
                 WHERE {column} = ANY($1) LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone"
            );
            let count = count(&tx.rows(&sql, &[&jobs, &PURGE_MAX]).await?)?;
            all &= count < PURGE_MAX;
            purged += count;
        }
        if all {
            tx.rows("DELETE FROM job WHERE id = ANY($1) AND deleted", &[&jobs]).await?;
            purged += jobs.len() as i64;
        }
        tx.commit().await?;
        tended.purged += purged.max(0) as u64;
        tended.more = true;
        Ok(())
    }

    /// Drops versions of jobs that nothing uses. The runs that may use one are those that
    /// have lived for long. A run that is made again of an old version meanwhile says so
    /// in its row.
    async fn drop_versions(&self, tend: &Tend, tended: &mut Tended) -> Result<(), Fault> {
        let before = micros(tend.versions_before());
        let sql = "SELECT job, version FROM job_version WHERE unused_since < $1 ORDER BY unused_since LIMIT $2";
        let rows = self.read(sql, &[&before, &VERSIONS_MAX]).await?;
        let versions: Vec<(i64, i32)> =
            rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, Fault>>()?;
        if versions.is_empty() {
            return Ok(());
        }
        let jobs: Vec<i64> = versions.iter().map(|(job, _)| *job).collect();
        let sql = "SELECT DISTINCT job, version FROM run WHERE id < $1 AND job = ANY($2)";
        let old = oldest_id(tend.old_runs_before());
        let rows = self.read(sql, &[&old, &jobs]).await?;
        let used: HashSet<(i64, i32)> =
            rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, Fault>>()?;
        let (used, unused): (Vec<_>, Vec<_>) = versions.iter().partition(|version| used.contains(version));
        let apart = |versions: Vec<(i64, i32)>| -> (Vec<i64>, Vec<i32>) { versions.into_iter().unzip() };
        let ((used_jobs, used), (jobs, unused)) = (apart(used), apart(unused));
        let sql = "UPDATE job_version v SET unused_since = $4 FROM unnest($1::bigint[], $2::int[]) u (job, version) \
                   WHERE v.job = u.job AND v.version = u.version AND v.unused_since < $3";
        self.execute(sql, &[&used_jobs, &used, &before, &micros(tend.now)]).await?;
        let sql = "DELETE FROM job_version v USING unnest($1::bigint[], $2::int[]) u (job, version) \
                   WHERE v.job = u.job AND v.version = u.version AND v.unused_since < $3";
        tended.purged += self.execute(sql, &[&jobs, &unused, &before]).await?;
        tended.more |= versions.len() as i64 == VERSIONS_MAX;
        Ok(())
    }

    /// Walks through the jobs that have roll-ups, and drops the hours that are too old.
    async fn drop_rollups(&self, tend: &Tend, tended: &mut Tended) -> Result<(), Fault> {
        let sql = "WITH RECURSIVE walk AS ((SELECT job FROM rollup WHERE job > $1 ORDER BY job LIMIT 1) UNION ALL \
                       SELECT (SELECT r.job FROM rollup r WHERE r.job > w.job ORDER BY r.job LIMIT 1) \
                       FROM walk w WHERE w.job IS NOT NULL) \
                   SELECT job FROM walk WHERE job IS NOT NULL LIMIT $2";
        let place = self.tending.rollups_at.load(Ordering::Relaxed);
        let rows = self.read(sql, &[&place, &ROLLUPS_MAX]).await?;
        let jobs: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let sql = "DELETE FROM rollup WHERE ctid = ANY(ARRAY(SELECT ctid FROM rollup WHERE job = ANY($1) AND hour < $2 \
                   LIMIT $3)) AND hour < $2";
        let purged = self.execute(sql, &[&jobs, &tend.rollups_before(), &PURGE_MAX]).await?;
        tended.purged += purged;
        if purged as i64 >= PURGE_MAX {
            tended.more = true;
        } else {
            let last = jobs.last().filter(|_| jobs.len() as i64 == ROLLUPS_MAX);
            self.tending.rollups_at.store(last.copied().unwrap_or(0), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Drops pauses of tenants and queues that ended long ago. What they covered must be
    /// decided: a schedule whose cursor is behind one would catch up with it.
    async fn drop_pauses(&self, tend: &Tend) -> Result<u64, Fault> {
        let old = |pause: &Pause| pause.until.filter(|until| *until < tend.pauses_before());
        let mut ended: Vec<((i32, String, String), Timestamp)> = Vec::new();
        for row in self.read("SELECT tenant, queue, body FROM pause", &[]).await? {
            let (tenant, queue, body): (i32, String, String) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let pause = self.notes.readable("pause", format_args!("{tenant}/{queue}"), from_json::<Pause>(&body));
            if let Some(until) = pause.as_ref().and_then(old) {
                ended.push(((tenant, queue, body), until));
            }
        }
        if ended.is_empty() {
            return Ok(0);
        }
        let sql = "SELECT min(c.due_at) FROM partition p CROSS JOIN LATERAL \
                   (SELECT due_at FROM cursor WHERE part = p.part ORDER BY due_at LIMIT 1) c";
        let first: Option<i64> = self.read(sql, &[]).await?.first().map(|row| row.try_get(0)).transpose()?.flatten();
        ended.retain(|(_, until)| first.is_none_or(|first| first > micros(PUT_OFF_MAX.after(*until))));
        let tenants: Vec<i32> = ended.iter().map(|((tenant, ..), _)| *tenant).collect();
        let queues: Vec<&str> = ended.iter().map(|((_, queue, _), _)| queue.as_str()).collect();
        let bodies: Vec<&str> = ended.iter().map(|((.., body), _)| body.as_str()).collect();
        // As read: one that was set again meanwhile stays.
        let sql = "DELETE FROM pause p USING unnest($1::int[], $2::text[], $3::text[]) u (tenant, queue, body) \
                   WHERE p.tenant = u.tenant AND p.queue = u.queue AND p.body = u.body";
        self.execute(sql, &[&tenants, &queues, &bodies]).await
    }

    /// Walks through the logs that were moved aside, and drops those of runs that are gone.
    async fn drop_kept_logs(&self, tended: &mut Tended) -> Result<(), Fault> {
        let place = *self.tending.logs_at.lock();
        let sql = "SELECT DISTINCT run FROM log_kept WHERE run > $1 ORDER BY run LIMIT $2";
        let rows = self.read(sql, &[&place, &LOGS_MAX]).await?;
        let runs: Vec<Uuid> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let full = runs.len() as i64 == LOGS_MAX;
        let last = runs.last().copied().filter(|_| full).unwrap_or_default();
        tended.more |= full;
        *self.tending.logs_at.lock() = last;
        if runs.is_empty() {
            return Ok(());
        }
        let sql = "SELECT id FROM run WHERE id = ANY($1) UNION ALL SELECT id FROM history WHERE id = ANY($1)";
        let rows = self.read(sql, &[&runs]).await?;
        let stay: HashSet<Uuid> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let gone: Vec<Uuid> = runs.into_iter().filter(|run| !stay.contains(run)).collect();
        tended.purged += self.execute("DELETE FROM log_kept WHERE run = ANY($1)", &[&gone]).await?;
        Ok(())
    }

    async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, Fault> {
        let client = self.work.get().await?;
        let statement = client.prepare(sql).await?;
        Ok(client.within(client.execute(&statement, params)).await??)
    }

    /// Clears away what ended runs left in the table of live ones, once it is
    /// `most` rows or a quarter of the table.
    ///
    /// The server does so too, but looks only once a minute: by then a busy
    /// store has put millions of rows through the table, and every index on it
    /// has grown to hold them. Nobody waits for this, and if someone else is at
    /// it there is nothing to do. The table keeps its pages: giving them back
    /// would need it alone for a moment.
    pub(super) async fn clear(&self, most: i64) -> Result<bool, Fault> {
        let client = self.upkeep.get().await?;
        let sql = "SELECT pg_stat_get_dead_tuples('run'::regclass), pg_stat_get_live_tuples('run'::regclass)";
        let counts = client.prepare(sql).await?;
        let row = client.within(client.query_one(&counts, &[])).await??;
        let (dead, live): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let left = self.tending.dead_left.fetch_min(dead, Ordering::Relaxed).min(dead);
        if dead - left < most.max(live / 4) {
            return Ok(false);
        }
        client.within(client.batch_execute("VACUUM (TRUNCATE off, SKIP_LOCKED, PARALLEL 0) run")).await??;
        let dead: i64 = client.within(client.query_one(&counts, &[])).await??.try_get(0)?;
        self.tending.dead_left.store(dead, Ordering::Relaxed);
        Ok(true)
    }

    /// Drops the days that ended before `before`. A day is detached first, which
    /// waits for its readers and blocks no one; the empty name is then dropped.
    async fn drop_days(&self, before: i64) -> Result<u64, Fault> {
        let client = self.upkeep.get().await?;
        let lock = "SELECT pg_try_advisory_lock(hashtextextended('rota days going of ' || current_schema(), 0))";
        let mine: bool = client.within(client.query_one(lock, &[])).await??.try_get(0)?;
        if !mine {
            return Ok(0);
        }
        let dropped = drop_days_on(&client, before).await;
        let unlock = "SELECT pg_advisory_unlock(hashtextextended('rota days going of ' || current_schema(), 0))";
        client.within(client.query(unlock, &[])).await??;
        if dropped.as_ref().is_ok_and(|count| *count > 0) {
            self.days.forget();
        }
        dropped
    }

    /// Tells the index by id of the pages that were filled since, so that a run
    /// is found without reading the day.
    async fn summarise(&self, now: i64) -> Result<u64, Fault> {
        let client = self.upkeep.get().await?;
        let sql = "SELECT coalesce(sum(brin_summarize_new_values(i.inhrelid)), 0)::bigint FROM pg_inherits i \
                   JOIN pg_index x ON x.indexrelid = i.inhrelid JOIN pg_class t ON t.oid = x.indrelid \
                   WHERE i.inhparent = 'history_id'::regclass AND t.relname >= $1";
        let since = super::days::table_of("history", day_of(now) - 1)?;
        let row = client.within(client.query_one(sql, &[&since])).await??;
        Ok(row.try_get::<_, i64>(0)?.max(0) as u64)
    }
}

async fn drop_days_on(client: &Line, before: i64) -> Result<u64, Fault> {
    let mut dropped = 0;
    let oldest_kept = day_of(before);
    for daily in DAILY {
        // A day that was detached and not dropped has no parent any more.
        let sql = "SELECT c.relname, i.inhdetachpending FROM pg_class c \
                   LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = $1::text::regclass \
                   WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' \
                   AND c.relname ~ concat('^', $1::text, '_[0-9]{8}$') AND c.relname < $2 ORDER BY c.relname LIMIT 4";
        let limit = super::days::table_of(daily, oldest_kept)?;
        let params: [Param<'_>; 2] = [&daily, &limit];
        for row in client.within(client.query(sql, &params)).await?? {
            let (table, pending): (String, Option<bool>) = (row.try_get(0)?, row.try_get(1)?);
            if daily == "log" {
                keep_logs(client, &table).await?;
            }
            let how = pending.map(|pending| if pending { "FINALIZE" } else { "CONCURRENTLY" });
            let detach = how.map(|how| format!("ALTER TABLE {daily} DETACH PARTITION {table} {how}"));
            for step in detach.into_iter().chain([format!("DROP TABLE {table}")]) {
                client.within(client.batch_execute(&step)).await??;
            }
            dropped += 1;
        }
    }
    Ok(dropped)
}

/// Moves aside what a day of logs holds of runs that stay: they were made before the day
/// ended, and live or are in history.
async fn keep_logs(client: &Line, table: &str) -> Result<(), Fault> {
    let last = format!("SELECT max(at) FROM {table}");
    let last: Option<i64> = client.within(client.query_one(&last, &[])).await??.try_get(0)?;
    let Some(last) = last else { return Ok(()) };
    let made_before = oldest_id(SKEW_MAX.after(time(last)?));
    let sql = format!(
        "INSERT INTO log_kept (at, run, seq, attempt, lines) SELECT at, run, seq, attempt, lines FROM {table} \
         WHERE run IN (SELECT id FROM run WHERE id < $1 UNION ALL SELECT id FROM history WHERE id < $1) \
         ON CONFLICT DO NOTHING"
    );
    client.within(client.execute(&sql, &[&made_before])).await??;
    Ok(())
}

fn count(rows: &[tokio_postgres::Row]) -> Result<i64, Fault> {
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(0))
}

/// Adds to roll-ups, row by row in key order. Only the holder of the upkeep
/// lock comes here, so what is read is still so when it is written.
async fn add_rollups(tx: &Tx, mut sums: BTreeMap<(JobId, i64), Rollup>) -> Result<(), Fault> {
    let jobs: Vec<i64> = sums.keys().map(|(job, _)| job.0).collect();
    let hours: Vec<i64> = sums.keys().map(|(_, hour)| *hour).collect();
    let sql = "SELECT r.job, r.hour, r.body FROM unnest($1::bigint[], $2::bigint[]) u (job, hour) \
               JOIN rollup r ON r.job = u.job AND r.hour = u.hour";
    for row in tx.rows(sql, &[&jobs, &hours]).await? {
        let (job, hour): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        // Counts that cannot be read are replaced by those that come.
        let known = rollup::decode_one(row.try_get(2)?);
        if let Some(known) = tx.notes.readable("rollup", format_args!("{job}/{hour}"), known) {
            sums.entry((JobId(job), hour)).or_default().merge(&known);
        }
    }
    let bodies: Vec<Vec<u8>> = sums.values().map(rollup::encode_one).collect();
    let sql = "INSERT INTO rollup (job, hour, body) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) \
               ON CONFLICT (job, hour) DO UPDATE SET body = excluded.body";
    tx.rows(sql, &[&jobs, &hours, &bodies]).await?;
    Ok(())
}

#[async_trait]
impl UpkeepStore for PostgresStore {
    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        tried!("tend the store", self.tend_slice(tend))
    }
}
