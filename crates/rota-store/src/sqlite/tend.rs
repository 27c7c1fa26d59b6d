//! Upkeep in short slices: roll-ups folded, indexes filled, the old dropped.
//!
//! Dropping a large table visits every page in one transaction and would hold
//! up the leases; a day is emptied in slices first and dropped when empty.

use std::collections::BTreeMap;

use rota_core::{
    ids::JobId,
    rollup::Rollup,
    store::{DeadMark, StoreError, Tend, Tended, Worker},
};
use rusqlite::{Connection, OptionalExtension, params};

use super::{SqliteStore, failed, history, writer::Urgency};
use crate::{codec::micros, rollup};

/// Rows a slice deletes.
const ROWS: i64 = 1_000;
/// Deltas a slice folds.
const DELTAS: i64 = 32;

/// A short piece of upkeep.
type Slice = fn(&Connection, &Tend) -> Result<Tended, StoreError>;

impl SqliteStore {
    pub(super) async fn do_tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        let tend = *tend;
        let mut total = Tended::default();
        let jobs: [Slice; 3] = [fold, index, purge_history];
        for job in jobs {
            self.tend_slice(&mut total, move |connection| job(connection, &tend)).await?;
        }
        for (sql, before) in purges(&tend) {
            self.tend_slice(&mut total, move |connection| purge(connection, sql, before)).await?;
        }
        Ok(total)
    }

    /// Each slice is a write of its own, so that others get their turn.
    async fn tend_slice(
        &self,
        total: &mut Tended,
        slice: impl Fn(&Connection) -> Result<Tended, StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let done = self.writer.write("tend the store", Urgency::Patient, slice).await?;
        total.folded += done.folded;
        total.indexed += done.indexed;
        total.purged += done.purged;
        total.more |= done.more;
        Ok(())
    }
}

fn purge(connection: &Connection, sql: &str, before: i64) -> Result<Tended, StoreError> {
    let purged =
        connection.prepare_cached(sql).and_then(|mut delete| delete.execute([before, ROWS])).map_err(failed)?;
    Ok(Tended { purged: purged as u64, more: purged as i64 >= ROWS, ..Tended::default() })
}

fn fold(connection: &Connection, _: &Tend) -> Result<Tended, StoreError> {
    let mut sums: BTreeMap<(JobId, i64), Rollup> = BTreeMap::new();
    let mut upto = 0_i64;
    let mut count = 0;
    {
        let sql = "SELECT id, body FROM rollup_delta ORDER BY id LIMIT ?1";
        let mut select = connection.prepare_cached(sql).map_err(failed)?;
        let mut rows = select.query([DELTAS]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            upto = row.get(0).map_err(failed)?;
            count += 1;
            for (key, delta) in rollup::decode(&row.get::<_, Vec<u8>>(1).map_err(failed)?)? {
                sums.entry(key).or_default().merge(&delta);
            }
        }
    }
    for ((job, hour), mut sum) in sums {
        let body: Option<Vec<u8>> = connection
            .prepare_cached("SELECT body FROM rollup WHERE job = ?1 AND hour = ?2")
            .and_then(|mut select| select.query_row(params![job.0, hour], |row| row.get(0)).optional())
            .map_err(failed)?;
        if let Some(body) = body {
            sum.merge(&rollup::decode_one(&body)?);
        }
        let body = rollup::encode_one(&sum);
        connection
            .prepare_cached("INSERT OR REPLACE INTO rollup (job, hour, body) VALUES (?1, ?2, ?3)")
            .and_then(|mut put| put.execute(params![job.0, hour, body]))
            .map_err(failed)?;
    }
    connection
        .prepare_cached("DELETE FROM rollup_delta WHERE id <= ?1")
        .and_then(|mut delete| delete.execute([upto]))
        .map_err(failed)?;
    Ok(Tended { folded: count, more: count == DELTAS as u64, ..Tended::default() })
}

fn index(connection: &Connection, _: &Tend) -> Result<Tended, StoreError> {
    let (indexed, more) = history::index_some(connection).map_err(failed)?;
    Ok(Tended { indexed, more, ..Tended::default() })
}

/// Empties the oldest day that is past keeping, a slice at a time.
fn purge_history(connection: &Connection, tend: &Tend) -> Result<Tended, StoreError> {
    let oldest: Option<i64> = connection
        .prepare_cached("SELECT min(day) FROM history_day")
        .and_then(|mut select| select.query_row([], |row| row.get(0)))
        .map_err(failed)?;
    let Some(day) = oldest else { return Ok(Tended::default()) };
    if day >= history::day_of(tend.history_keep.before(tend.now)) {
        return Ok(Tended::default());
    }
    let name = history::table(day);
    let purged = empty_slice(connection, &name).map_err(failed)?;
    if purged == 0 {
        let sql = format!(
            "DROP TABLE {name}; DROP TABLE {name}_job; DROP TABLE {name}_end; DROP TABLE {name}_id; \
             DELETE FROM history_day WHERE day = {day};"
        );
        connection.execute_batch(&sql).map_err(failed)?;
    }
    Ok(Tended { purged, more: true, ..Tended::default() })
}

/// Deletes the first rows of a day with their logs and index entries.
fn empty_slice(connection: &Connection, name: &str) -> rusqlite::Result<u64> {
    let select = format!("SELECT seq, id, job, ended_at FROM {name} ORDER BY seq LIMIT ?1");
    let rows: Vec<(i64, [u8; 16], i64, i64)> = connection
        .prepare_cached(&select)?
        .query_map([ROWS], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<Result<_, _>>()?;
    let mut log = connection.prepare_cached("DELETE FROM log WHERE run = ?1")?;
    let mut by_job =
        connection.prepare_cached(&format!("DELETE FROM {name}_job WHERE job = ?1 AND ended_at = ?2 AND id = ?3"))?;
    let mut by_end = connection.prepare_cached(&format!("DELETE FROM {name}_end WHERE ended_at = ?1 AND id = ?2"))?;
    let mut by_id = connection.prepare_cached(&format!("DELETE FROM {name}_id WHERE id = ?1"))?;
    let mut row = connection.prepare_cached(&format!("DELETE FROM {name} WHERE seq = ?1"))?;
    for (seq, id, job, ended_at) in &rows {
        log.execute([id])?;
        by_job.execute(params![job, ended_at, id])?;
        by_end.execute(params![ended_at, id])?;
        by_id.execute([id])?;
        row.execute([seq])?;
    }
    Ok(rows.len() as u64)
}

/// What goes by its age, and notices of runs that are gone: a statement each.
fn purges(tend: &Tend) -> [(&'static str, i64); 13] {
    let now = micros(tend.now);
    let batches = micros(tend.batches_keep.before(tend.now));
    let skips = micros(tend.skips_keep.before(tend.now));
    let workers = micros(Worker::KEPT.before(tend.now));
    let audit = micros(tend.audit_keep.before(tend.now));
    let history = micros(tend.history_keep.before(tend.now));
    let marks = micros(DeadMark::KEPT_BEYOND.before(tend.history_keep.before(tend.now)));
    [
        ("DELETE FROM session WHERE digest IN (SELECT digest FROM session WHERE expires_at <= ?1 LIMIT ?2)", now),
        (
            "DELETE FROM audit WHERE (tenant, at, id) IN (SELECT tenant, at, id FROM audit WHERE at < ?1 LIMIT ?2)",
            audit,
        ),
        (
            "DELETE FROM token WHERE id IN (SELECT id FROM token WHERE min(coalesce(revoked_at, expires_at), \
           coalesce(expires_at, revoked_at)) < ?1 LIMIT ?2)",
            audit,
        ),
        ("DELETE FROM batch WHERE seq IN (SELECT seq FROM batch ORDER BY seq LIMIT ?2) AND at < ?1", batches),
        (
            "DELETE FROM request WHERE (tenant, key) IN \
           (SELECT tenant, key FROM request WHERE expires_at <= ?1 LIMIT ?2)",
            now,
        ),
        ("DELETE FROM unique_key WHERE key IN (SELECT key FROM unique_key WHERE until <= ?1 LIMIT ?2)", now),
        (
            "DELETE FROM skip WHERE (schedule, from_at) IN \
           (SELECT schedule, from_at FROM skip WHERE to_at < ?1 LIMIT ?2)",
            skips,
        ),
        (
            "DELETE FROM notice WHERE ?1 IS NOT NULL AND (part, run) IN (SELECT notice.part, notice.run FROM notice \
           LEFT JOIN run ON run.id = notice.run WHERE run.id IS NULL LIMIT ?2)",
            now,
        ),
        (
            "DELETE FROM slot WHERE ?1 IS NOT NULL AND key IN \
           (SELECT key FROM slot WHERE held = 0 AND waiting = 0 LIMIT ?2)",
            now,
        ),
        ("DELETE FROM bucket WHERE key IN (SELECT key FROM bucket WHERE full_at <= ?1 LIMIT ?2)", now),
        ("DELETE FROM worker WHERE id IN (SELECT id FROM worker WHERE until < ?1 LIMIT ?2)", workers),
        ("DELETE FROM dead_mark WHERE run IN (SELECT run FROM dead_mark WHERE at < ?1 LIMIT ?2)", marks),
        ("DELETE FROM open_dead WHERE run IN (SELECT run FROM open_dead WHERE ended_at < ?1 LIMIT ?2)", history),
    ]
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rota_core::duration::Span;

    use super::*;

    /// Whatever grows with history, skips or requests is sought by an index: upkeep runs
    /// each second, and holds up the writer for as long as it looks.
    #[test]
    fn upkeep_walks_through_no_table_that_grows() {
        let connection = Connection::open_in_memory().unwrap();
        super::super::migrate::up(&connection, std::path::Path::new("x")).unwrap();
        let keep = Span::secs(1);
        let tend = Tend {
            now: Timestamp::UNIX_EPOCH,
            history_keep: keep,
            skips_keep: keep,
            batches_keep: keep,
            audit_keep: keep,
        };
        for (sql, before) in purges(&tend) {
            let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let plan = explain.query_map([before, ROWS], |row| row.get::<_, String>(3)).unwrap();
            let plan: Vec<String> = plan.collect::<Result<_, _>>().unwrap();
            for grows in ["skip", "request", "unique_key", "bucket", "audit", "session", "dead_mark", "open_dead"] {
                let walks = plan.iter().any(|step| step == &format!("SCAN {grows}"));
                assert!(!walks, "{sql}: {plan:?}");
            }
        }
    }
}
