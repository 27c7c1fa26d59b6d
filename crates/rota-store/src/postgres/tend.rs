//! Tend: upkeep, a slice at a time.
//!
//! One node tends at a time (an advisory lock that is tried, never waited for);
//! the others are told that there is nothing to do.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicI64, Ordering},
};

use rota_core::{
    duration::Span,
    ids::JobId,
    rollup::Rollup,
    store::{DeadMark, Tend, Tended, Worker},
};

use super::{
    PostgresStore,
    days::{DAILY, DAY_MICROS, day_of},
    fault::Fault,
    line::Line,
    tx::{Param, Tx},
};
use crate::{codec::micros, rollup};

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

/// When this process last purged, and whether it found more than it took.
#[derive(Debug, Default)]
pub(super) struct Tending {
    purged_at: AtomicI64,
    summarised_at: AtomicI64,
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
            let before = tended.more;
            self.purge(tend, &mut tended).await?;
            if tended.more == before {
                self.tending.purged_at.store(now, Ordering::Relaxed);
            }
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
        let sql =
            "DELETE FROM rollup_delta WHERE ctid = ANY(ARRAY(SELECT ctid FROM rollup_delta LIMIT $1)) RETURNING body";
        let rows = tx.rows(sql, &[&FOLD_MAX]).await?;
        let mut sums: BTreeMap<(JobId, i64), Rollup> = BTreeMap::new();
        for row in &rows {
            for (key, delta) in rollup::decode(row.try_get(0)?)? {
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
        let (now, batches) = (micros(tend.now), micros(tend.batches_keep.before(tend.now)));
        let skips = micros(tend.skips_keep.before(tend.now));
        let workers = micros(Worker::KEPT.before(tend.now));
        let audit = micros(tend.audit_keep.before(tend.now));
        let history = micros(tend.history_keep.before(tend.now));
        let marks = micros(DeadMark::KEPT_BEYOND.before(tend.history_keep.before(tend.now)));
        let slices: [(&str, &i64); 12] = [
            (
                "DELETE FROM open_dead WHERE run = ANY(ARRAY(SELECT run FROM open_dead WHERE ended_at < $1 LIMIT $2)) \
                 AND ended_at < $1",
                &history,
            ),
            (
                "DELETE FROM dead_mark WHERE run = ANY(ARRAY(SELECT run FROM dead_mark WHERE at < $1 LIMIT $2)) AND at < $1",
                &marks,
            ),
            (
                "DELETE FROM session WHERE digest = ANY(ARRAY(SELECT digest FROM session WHERE expires_at <= $1 LIMIT $2)) \
                 AND expires_at <= $1",
                &now,
            ),
            (
                "DELETE FROM audit WHERE ctid = ANY(ARRAY(SELECT ctid FROM audit WHERE at < $1 LIMIT $2)) AND at < $1",
                &audit,
            ),
            (
                "DELETE FROM token WHERE id = ANY(ARRAY(SELECT id FROM token WHERE least(revoked_at, expires_at) < $1 \
                 LIMIT $2)) AND least(revoked_at, expires_at) < $1",
                &audit,
            ),
            // Ids of batches are by age, so the first ones are the oldest.
            (
                "DELETE FROM batch WHERE id = ANY(ARRAY(SELECT id FROM batch ORDER BY id LIMIT $2)) AND at < $1",
                &batches,
            ),
            (
                "DELETE FROM skip WHERE ctid = ANY(ARRAY(SELECT ctid FROM skip WHERE to_at < $1 LIMIT $2)) AND to_at < $1",
                &skips,
            ),
            (
                "DELETE FROM request WHERE (tenant, key) IN ( \
                     SELECT tenant, key FROM request WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2) \
                 AND expires_at <= $1",
                &now,
            ),
            (
                "DELETE FROM unique_key WHERE key = ANY(ARRAY(SELECT key FROM unique_key WHERE until <= $1 LIMIT $2)) \
                 AND until <= $1",
                &now,
            ),
            (
                "DELETE FROM bucket WHERE key = ANY(ARRAY(SELECT key FROM bucket WHERE full_at <= $1 LIMIT $2)) \
                 AND full_at <= $1",
                &now,
            ),
            (
                "DELETE FROM slot WHERE key = ANY(ARRAY(SELECT key FROM slot WHERE held = 0 AND waiting = 0 LIMIT $2 \
                 FOR UPDATE SKIP LOCKED)) AND held = 0 AND waiting = 0 AND $1::bigint IS NOT NULL",
                &now,
            ),
            (
                "DELETE FROM worker WHERE id = ANY(ARRAY(SELECT id FROM worker WHERE until < $1 LIMIT $2)) AND until < $1",
                &workers,
            ),
        ];
        for (sql, before) in slices {
            let params: [Param<'_>; 2] = [before, &PURGE_MAX];
            let gone = self.execute(sql, &params).await?;
            tended.purged += gone;
            tended.more |= gone as i64 >= PURGE_MAX;
        }
        tended.purged += self.drop_days(micros(tend.history_keep.before(tend.now))).await?;
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
        let sql = "SELECT c.relname, i.inhdetachpending FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
                   WHERE i.inhparent = $1::text::regclass AND c.relname < $2 ORDER BY c.relname LIMIT 4";
        let limit = super::days::table_of(daily, oldest_kept)?;
        let params: [Param<'_>; 2] = [&daily, &limit];
        for row in client.within(client.query(sql, &params)).await?? {
            let (table, pending): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
            let how = if pending { "FINALIZE" } else { "CONCURRENTLY" };
            for step in [format!("ALTER TABLE {daily} DETACH PARTITION {table} {how}"), format!("DROP TABLE {table}")] {
                client.within(client.batch_execute(&step)).await??;
            }
            dropped += 1;
        }
    }
    Ok(dropped)
}

/// Adds to roll-ups, row by row in key order. Only the holder of the upkeep
/// lock comes here, so what is read is still so when it is written.
async fn add_rollups(tx: &Tx, mut sums: BTreeMap<(JobId, i64), Rollup>) -> Result<(), Fault> {
    let jobs: Vec<i64> = sums.keys().map(|(job, _)| job.0).collect();
    let hours: Vec<i64> = sums.keys().map(|(_, hour)| *hour).collect();
    let sql = "SELECT r.job, r.hour, r.body FROM unnest($1::bigint[], $2::bigint[]) u (job, hour) \
               JOIN rollup r ON r.job = u.job AND r.hour = u.hour";
    for row in tx.rows(sql, &[&jobs, &hours]).await? {
        let key = (JobId(row.try_get(0)?), row.try_get(1)?);
        sums.entry(key).or_default().merge(&rollup::decode_one(row.try_get(2)?)?);
    }
    let bodies: Vec<Vec<u8>> = sums.values().map(rollup::encode_one).collect();
    let sql = "INSERT INTO rollup (job, hour, body) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) \
               ON CONFLICT (job, hour) DO UPDATE SET body = excluded.body";
    tx.rows(sql, &[&jobs, &hours, &bodies]).await?;
    Ok(())
}
