//! Upkeep in short slices: roll-ups folded, indexes filled, the old dropped.
//!
//! Each slice is a write of its own, so that others get their turn, and small enough to
//! hold the writer for a few milliseconds: so many rows, and so many bytes of those that
//! may be large. What goes by its age is found by an index; where keeping one would cost
//! every heartbeat or every run, the table is walked through a piece at a time, and
//! where the walk is, is kept in memory: one that is lost begins again.
//!
//! Dropping a large table visits every page in one transaction. A day of history is
//! therefore taken from its readers as a whole, emptied in slices, and dropped when empty.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    fire::PUT_OFF_MAX,
    ids::JobId,
    rollup::Rollup,
    store::{DeadMark, Pause, StoreError, Tend, Tended, UpkeepStore, Worker},
};
use rusqlite::{Connection, OptionalExtension, params, params_from_iter, types::Value};

use super::{
    SqliteStore, failed,
    history::{self, GOING},
    rows::{all, change, first},
    writer::Urgency,
};
use crate::{
    codec::{from_json, micros, oldest_id},
    rollup::{self, Rollups},
    unreadable::readable,
};

/// Rows that a slice deletes.
const ROWS: usize = 500;
/// Bytes of theirs; one row more may be larger.
const BYTES: i64 = 2 << 20;
/// Chunks of logs that a slice deletes: 64 KiB each at most.
const CHUNKS: usize = 32;
/// Rows that a slice looks at.
const LOOKED: usize = 1_000;
/// Deltas that a slice folds, and roll-ups that it adds them to.
const DELTAS: i64 = 32;
const KEYS: usize = 500;
/// Versions of jobs that a slice decides about.
const VERSIONS: i64 = 100;

/// Who is told how long slices took.
type Told = Box<dyn Fn(&'static str, Duration) + Send + Sync>;

/// What upkeep remembers between two passes.
#[derive(Default)]
pub struct Tending {
    /// Where the walks are, by table.
    places: Mutex<HashMap<&'static str, Vec<Value>>>,
    told: OnceLock<Told>,
}

impl Tending {
    fn place(&self, table: &'static str) -> Option<Vec<Value>> {
        self.places.lock().get(table).cloned()
    }

    /// None: the walk begins again.
    fn go_on(&self, table: &'static str, place: Option<Vec<Value>>) {
        let mut places = self.places.lock();
        match place {
            Some(place) => places.insert(table, place),
            None => places.remove(table),
        };
    }
}

/// A short piece of upkeep.
type Slice = fn(&Connection, &Tend, &Tending) -> Result<Tended, StoreError>;

const SLICES: [(&str, Slice); 7] = [
    ("fold roll-ups", fold),
    ("index history", index),
    ("let a day go", let_go),
    ("empty a day", empty),
    ("drop old roll-ups", drop_rollups),
    ("drop deleted jobs", drop_jobs),
    ("drop ended pauses", drop_pauses),
];

impl SqliteStore {
    /// Has every slice of upkeep told: its name, and how long it held the writer before
    /// its commit. For measurements.
    pub fn tell_slices(&self, told: impl Fn(&'static str, Duration) + Send + Sync + 'static) {
        if self.tending.told.set(Box::new(told)).is_err() {
            tracing::warn!("slices of upkeep are told to somebody else already");
        }
    }

    async fn slice(
        &self,
        total: &mut Tended,
        name: &'static str,
        slice: impl Fn(&Connection, &Tending) -> Result<Tended, StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let tending = Arc::clone(&self.tending);
        let timed = move |connection: &Connection| {
            let started = Instant::now();
            let done = slice(connection, &tending);
            if let Some(told) = tending.told.get() {
                told(name, started.elapsed());
            }
            done
        };
        let done = self.writer.write("tend the store", Urgency::Patient, timed).await?;
        total.folded += done.folded;
        total.indexed += done.indexed;
        total.purged += done.purged;
        total.more |= done.more;
        Ok(())
    }

    /// Drops versions of jobs that nothing uses. The runs that may use one are those that
    /// have lived for long, which are the first of the table; they are read beside the
    /// writer. A run that is made again of an old version meanwhile says so in its row.
    async fn drop_versions(&self, total: &mut Tended, tend: &Tend) -> Result<(), StoreError> {
        let tend = *tend;
        let found = self.read("find versions that nothing uses", move |connection| unused(connection, &tend)).await?;
        if found.is_empty() {
            return Ok(());
        }
        let more = found.len() as i64 == VERSIONS;
        let drop = move |connection: &Connection, _: &Tending| {
            let mut purged = 0;
            for (job, version, is_used) in &found {
                let sql = if *is_used {
                    "UPDATE job_version SET unused_since = ?4 WHERE job = ?1 AND version = ?2 AND unused_since < ?3"
                } else {
                    "DELETE FROM job_version WHERE job = ?1 AND version = ?2 AND unused_since < ?3 AND ?4 IS NOT NULL"
                };
                let row = params![job, version, micros(tend.versions_before()), micros(tend.now)];
                let changed = change(connection, sql, row)?;
                purged += if *is_used { 0 } else { changed as u64 };
            }
            Ok(Tended { purged, more, ..Tended::default() })
        };
        self.slice(total, "drop unused versions", drop).await
    }
}

/// Versions that were replaced long ago, and whether a run that lives is of each.
fn unused(connection: &Connection, tend: &Tend) -> Result<Vec<(i64, i32, bool)>, StoreError> {
    let sql = "SELECT job, version FROM job_version WHERE unused_since < ?1 ORDER BY unused_since LIMIT ?2";
    let key = params![micros(tend.versions_before()), VERSIONS];
    let candidates: Vec<(i64, i32)> = all(connection, sql, key, |row| Ok((row.get(0)?, row.get(1)?)))?;
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let sought: HashSet<(i64, i32)> = candidates.iter().copied().collect();
    let mut used = HashSet::new();
    let mut select = connection.prepare_cached("SELECT job, version FROM run WHERE id < ?1").map_err(failed)?;
    let old = oldest_id(tend.old_runs_before());
    let mut rows = select.query([old.as_bytes()]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let version = (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
        if sought.contains(&version) {
            used.insert(version);
        }
    }
    Ok(candidates.into_iter().map(|version| (version.0, version.1, used.contains(&version))).collect())
}

fn gone(purged: usize) -> Tended {
    Tended { purged: purged as u64, more: purged >= ROWS, ..Tended::default() }
}

/// Adds the oldest deltas to the roll-ups. One that touches too many of them is cut, and
/// the rest of it folded later.
fn fold(connection: &Connection, _: &Tend, _: &Tending) -> Result<Tended, StoreError> {
    let (deltas, full): (Vec<(i64, Rollups)>, bool) = {
        let sql = "SELECT id, body FROM rollup_delta ORDER BY id LIMIT ?1";
        let mut select = connection.prepare_cached(sql).map_err(failed)?;
        let mut rows = select.query([DELTAS]).map_err(failed)?;
        let (mut deltas, mut keys) = (Vec::new(), 0);
        while keys < KEYS
            && let Some(row) = rows.next().map_err(failed)?
        {
            let id: i64 = row.get(0).map_err(failed)?;
            let delta = rollup::decode(&row.get::<_, Vec<u8>>(1).map_err(failed)?);
            let delta = readable("rollup_delta", id, delta).unwrap_or_default();
            keys += delta.len();
            deltas.push((id, delta));
        }
        (deltas, keys >= KEYS)
    };
    let mut sums: BTreeMap<(JobId, i64), Rollup> = BTreeMap::new();
    let (mut folded, mut cut) = (0, false);
    for (id, mut delta) in deltas {
        let left = delta.keys().copied().nth(KEYS.saturating_sub(sums.len())).map(|key| delta.split_off(&key));
        for (key, added) in delta {
            sums.entry(key).or_default().merge(&added);
        }
        if let Some(left) = left {
            change(connection, "UPDATE rollup_delta SET body = ?2 WHERE id = ?1", params![id, rollup::encode(&left)])?;
            cut = true;
            break;
        }
        change(connection, "DELETE FROM rollup_delta WHERE id = ?1", [id])?;
        folded += 1;
    }
    for ((job, hour), sum) in sums {
        add(connection, job, hour, sum)?;
    }
    Ok(Tended { folded, more: cut || full || folded == DELTAS as u64, ..Tended::default() })
}

fn add(connection: &Connection, job: JobId, hour: i64, mut sum: Rollup) -> Result<(), StoreError> {
    let body: Option<Vec<u8>> =
        first(connection, "SELECT body FROM rollup WHERE job = ?1 AND hour = ?2", params![job.0, hour], |row| {
            row.get(0)
        })?;
    if let Some(body) = body {
        // What cannot be read is begun anew: the counts of an hour, at most.
        let known = readable("rollup", format_args!("{job}/{hour}"), rollup::decode_one(&body));
        if let Some(known) = known {
            sum.merge(&known);
        }
    }
    change(
        connection,
        "INSERT OR REPLACE INTO rollup (job, hour, body) VALUES (?1, ?2, ?3)",
        params![job.0, hour, rollup::encode_one(&sum)],
    )?;
    Ok(())
}

fn index(connection: &Connection, _: &Tend, _: &Tending) -> Result<Tended, StoreError> {
    let (indexed, more) = history::index_some(connection).map_err(failed)?;
    Ok(Tended { indexed, more, ..Tended::default() })
}

/// Takes the oldest day that is past keeping from its readers.
fn let_go(connection: &Connection, tend: &Tend, _: &Tending) -> Result<Tended, StoreError> {
    let more = history::let_go(connection, history::day_of(tend.history_before())).map_err(failed)?;
    Ok(Tended { more, ..Tended::default() })
}

/// Empties the day that goes: its rows with their logs, then its indexes, then itself.
fn empty(connection: &Connection, _: &Tend, _: &Tending) -> Result<Tended, StoreError> {
    if !history::is_going(connection).map_err(failed)? {
        return Ok(Tended::default());
    }
    let mut purged = empty_rows(connection).map_err(failed)?;
    let mut done = purged == Some(0);
    for (end, key) in [("_job", "job, ended_at, id"), ("_end", "ended_at, id"), ("_id", "id")] {
        if done {
            let emptied = empty_index(connection, &format!("{GOING}{end}"), key).map_err(failed)?;
            done = emptied == 0;
            purged = Some(emptied);
        }
    }
    if done {
        let dropped = ["", "_job", "_end", "_id"].map(|end| format!("DROP TABLE {GOING}{end}; "));
        connection.execute_batch(&dropped.concat()).map_err(failed)?;
    }
    Ok(Tended { purged: purged.unwrap_or(0), more: true, ..Tended::default() })
}

/// Deletes the first rows of the day with their logs. None where the logs were too many
/// for one row to go.
fn empty_rows(connection: &Connection) -> rusqlite::Result<Option<u64>> {
    let select = format!("SELECT seq, id FROM {GOING} ORDER BY seq LIMIT ?1");
    let rows: Vec<(i64, [u8; 16])> = connection
        .prepare_cached(&select)?
        .query_map([ROWS as i64], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let mut log = connection.prepare_cached(
        "DELETE FROM log WHERE run = ?1 AND (attempt, seq) IN \
           (SELECT attempt, seq FROM log WHERE run = ?1 ORDER BY attempt, seq LIMIT ?2)",
    )?;
    let mut row = connection.prepare_cached(&format!("DELETE FROM {GOING} WHERE seq = ?1"))?;
    let (mut chunks, mut purged) = (CHUNKS, 0);
    for (seq, id) in &rows {
        chunks -= log.execute(params![id, chunks as i64])?;
        if chunks == 0 {
            return Ok(Some(purged).filter(|purged| *purged > 0));
        }
        row.execute([seq])?;
        purged += 1;
    }
    Ok(Some(purged))
}

/// Deletes the first entries of an index of the day.
fn empty_index(connection: &Connection, name: &str, key: &str) -> rusqlite::Result<u64> {
    let sql = format!("DELETE FROM {name} WHERE ({key}) IN (SELECT {key} FROM {name} ORDER BY {key} LIMIT ?1)");
    connection.prepare_cached(&sql)?.execute([LOOKED as i64]).map(|purged| purged as u64)
}

/// Walks through the jobs that have roll-ups, and drops the hours that are too old.
fn drop_rollups(connection: &Connection, tend: &Tend, tending: &Tending) -> Result<Tended, StoreError> {
    let mut job = match tending.place("rollup").as_deref() {
        Some([Value::Integer(job)]) => *job,
        _ => i64::MIN,
    };
    let mut next =
        connection.prepare_cached("SELECT job FROM rollup WHERE job > ?1 ORDER BY job LIMIT 1").map_err(failed)?;
    let sql = "DELETE FROM rollup WHERE job = ?1 AND hour IN \
         (SELECT hour FROM rollup WHERE job = ?1 AND hour < ?2 LIMIT ?3)";
    let mut delete = connection.prepare_cached(sql).map_err(failed)?;
    let mut purged = 0;
    for _ in 0..LOOKED / 10 {
        let Some(found) = next.query_row([job], |row| row.get(0)).optional().map_err(failed)? else {
            tending.go_on("rollup", None);
            return Ok(gone(purged));
        };
        let most = (ROWS - purged) as i64;
        purged += delete.execute(params![found, tend.rollups_before(), most]).map_err(failed)?;
        if purged >= ROWS {
            return Ok(gone(purged));
        }
        job = found;
        tending.go_on("rollup", Some(vec![Value::Integer(job)]));
    }
    Ok(gone(purged))
}

/// Drops the job that was deleted longest ago, with what is left of it. Its schedules
/// and skips go by their own age.
fn drop_jobs(connection: &Connection, tend: &Tend, _: &Tending) -> Result<Tended, StoreError> {
    let sql =
        "SELECT id FROM job WHERE deleted = 1 AND deletion IS NULL AND updated_at < ?1 ORDER BY updated_at LIMIT 1";
    let job: Option<i64> = first(connection, sql, [micros(tend.deleted_before())], |row| row.get(0))?;
    let Some(job) = job else { return Ok(Tended::default()) };
    let mut left = ROWS;
    for sql in [
        "DELETE FROM rollup WHERE job = ?1 AND hour IN (SELECT hour FROM rollup WHERE job = ?1 LIMIT ?2)",
        "DELETE FROM job_version WHERE job = ?1 AND version IN (SELECT version FROM job_version WHERE job = ?1 LIMIT ?2)",
        "DELETE FROM after_end WHERE downstream = ?1 AND run IN (SELECT run FROM after_end WHERE downstream = ?1 LIMIT ?2)",
        "DELETE FROM job WHERE id = ?1 AND ?2 > 0",
    ] {
        let most = left as i64;
        left -= change(connection, sql, [job, most])?;
    }
    Ok(Tended { purged: (ROWS - left) as u64, more: true, ..Tended::default() })
}

/// Drops pauses of tenants and queues that ended long ago. What they covered must be
/// decided: a schedule whose cursor is behind one would catch up with it.
fn drop_pauses(connection: &Connection, tend: &Tend, _: &Tending) -> Result<Tended, StoreError> {
    let pauses: Vec<(String, Pause)> = {
        let rows: Vec<(String, String)> =
            all(connection, "SELECT target, pause FROM pause", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let read = |(target, pause): (String, String)| {
            let pause = readable("pause", &target, from_json(&pause))?;
            Some((target, pause))
        };
        rows.into_iter().filter_map(read).collect()
    };
    let old = |pause: &Pause| pause.until.filter(|until| *until < tend.pauses_before());
    let mut ended: Vec<(String, Timestamp)> =
        pauses.into_iter().filter_map(|(target, pause)| Some((target, old(&pause)?))).collect();
    if ended.is_empty() {
        return Ok(Tended::default());
    }
    let sql = "SELECT min((SELECT min(c.due_at) FROM cursor c WHERE c.part = p.part AND c.due_at <= ?1)) \
         FROM partition p";
    let first: Option<i64> =
        connection.prepare_cached(sql).and_then(|mut s| s.query_row([i64::MAX], |row| row.get(0))).map_err(failed)?;
    ended.retain(|(_, until)| first.is_none_or(|first| first > micros(PUT_OFF_MAX.after(*until))));
    let mut delete = connection.prepare_cached("DELETE FROM pause WHERE target = ?1").map_err(failed)?;
    for (target, _) in &ended {
        delete.execute([target]).map_err(failed)?;
    }
    Ok(gone(ended.len()))
}

/// A table whose old rows an index finds.
struct Aged {
    table: &'static str,
    keys: &'static str,
    /// Bytes of a row's large values, without reading them.
    bytes: &'static str,
    /// Which rows are old.
    old: &'static str,
}

impl Aged {
    const fn new(table: &'static str, keys: &'static str, old: &'static str) -> Self {
        Self { table, keys, bytes: "0", old }
    }

    fn select(&self) -> String {
        let Self { table, keys, bytes, old } = self;
        format!("SELECT {keys}, {bytes} FROM {table} WHERE {old} LIMIT {ROWS}")
    }

    fn purge(&self, connection: &Connection, before: i64) -> Result<Tended, StoreError> {
        let width = self.keys.split(',').count();
        let mut select = connection.prepare_cached(&self.select()).map_err(failed)?;
        let mut rows = select.query([before]).map_err(failed)?;
        let (mut old, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.next().map_err(failed)? {
            let key: Vec<Value> = (0..width).map(|n| row.get(n)).collect::<Result<_, _>>().map_err(failed)?;
            old.push(key);
            bytes += row.get::<_, i64>(width).map_err(failed)?;
            if bytes >= BYTES {
                break;
            }
        }
        delete(connection, self.table, self.keys, &old)?;
        Ok(Tended { more: bytes >= BYTES || old.len() >= ROWS, ..gone(old.len()) })
    }
}

/// Deletes rows by their keys.
fn delete(connection: &Connection, table: &str, keys: &str, rows: &[Vec<Value>]) -> Result<(), StoreError> {
    let is = keys.split(", ").map(|key| format!("{key} = ?")).collect::<Vec<_>>().join(" AND ");
    let mut delete = connection.prepare_cached(&format!("DELETE FROM {table} WHERE {is}")).map_err(failed)?;
    for key in rows {
        delete.execute(params_from_iter(key)).map_err(failed)?;
    }
    Ok(())
}

/// What goes by its age: a statement each.
fn aged(tend: &Tend) -> [(Aged, i64); 10] {
    let now = micros(tend.now);
    let audit = micros(tend.audit_keep.before(tend.now));
    let history = micros(tend.history_before());
    let marks = micros(DeadMark::KEPT_BEYOND.before(tend.history_before()));
    let entries = "coalesce(octet_length(before), 0) + coalesce(octet_length(after), 0)";
    let answers = "coalesce(length(answer), 0)";
    [
        (Aged::new("session", "digest", "expires_at <= ?1"), now),
        (Aged { bytes: entries, ..Aged::new("audit", "tenant, at, id", "at < ?1") }, audit),
        // In the order of their age, so the first ones are the oldest.
        (
            Aged {
                bytes: answers,
                ..Aged::new("batch", "seq", "seq IN (SELECT seq FROM batch ORDER BY seq LIMIT 500) AND at < ?1")
            },
            micros(tend.batches_keep.before(tend.now)),
        ),
        (Aged { bytes: answers, ..Aged::new("request", "tenant, key", "expires_at <= ?1") }, now),
        (Aged::new("unique_key", "key", "until <= ?1"), now),
        (Aged::new("skip", "schedule, from_at", "to_at < ?1"), micros(tend.skips_keep.before(tend.now))),
        (Aged::new("bucket", "key", "full_at <= ?1"), now),
        (Aged::new("dead_mark", "run", "at < ?1"), marks),
        (Aged::new("open_dead", "run", "ended_at < ?1"), history),
        (
            Aged { bytes: "octet_length(spec)", ..Aged::new("schedule", "id", "deleted = 1 AND deleted_at < ?1") },
            micros(tend.deleted_before()),
        ),
    ]
}

/// A table that is walked through, because an index would cost more than it saves.
struct Walked {
    table: &'static str,
    keys: &'static str,
    /// Which rows go.
    gone: &'static str,
}

impl Walked {
    fn select(&self, from: bool) -> String {
        let Self { table, keys, gone } = self;
        let places = keys.split(',').map(|_| "?").collect::<Vec<_>>().join(", ");
        let from = if from { format!("AND ({keys}) > ({places})") } else { String::new() };
        format!("SELECT {keys}, {gone} FROM {table} WHERE ?1 IS NOT NULL {from} ORDER BY {keys} LIMIT {LOOKED}")
    }

    fn purge(&self, connection: &Connection, tending: &Tending, before: i64) -> Result<Tended, StoreError> {
        let width = self.keys.split(',').count();
        let place = tending.place(self.table);
        let mut select = connection.prepare_cached(&self.select(place.is_some())).map_err(failed)?;
        let values = std::iter::once(Value::Integer(before)).chain(place.into_iter().flatten());
        let mut rows = select.query(params_from_iter(values)).map_err(failed)?;
        let (mut old, mut looked, mut last) = (Vec::new(), 0, None);
        while let Some(row) = rows.next().map_err(failed)? {
            let key: Vec<Value> = (0..width).map(|n| row.get(n)).collect::<Result<_, _>>().map_err(failed)?;
            if row.get::<_, Option<bool>>(width).map_err(failed)?.unwrap_or(false) {
                old.push(key.clone());
            }
            last = Some(key);
            looked += 1;
        }
        delete(connection, self.table, self.keys, &old)?;
        tending.go_on(self.table, last.filter(|_| looked == LOOKED));
        Ok(gone(old.len()))
    }
}

/// Rows that go for another reason than their age, or without an index on it.
fn walked(tend: &Tend) -> [(Walked, i64); 5] {
    let now = micros(tend.now);
    let workers = micros(Worker::KEPT.before(tend.now));
    let ended = "min(coalesce(revoked_at, expires_at), coalesce(expires_at, revoked_at)) < ?1";
    let without_parts = "until < ?1 AND NOT EXISTS (SELECT 1 FROM partition WHERE partition.node = node.id)";
    let of_nothing = "NOT EXISTS (SELECT 1 FROM run WHERE run.id = notice.run)";
    [
        (Walked { table: "token", keys: "id", gone: ended }, micros(tend.audit_keep.before(tend.now))),
        (Walked { table: "notice", keys: "part, run", gone: of_nothing }, now),
        (Walked { table: "worker", keys: "id", gone: "until < ?1" }, workers),
        (Walked { table: "node", keys: "id", gone: without_parts }, workers),
        (Walked { table: "slot", keys: "key", gone: "held = 0 AND waiting = 0" }, now),
    ]
}

#[async_trait]
impl UpkeepStore for SqliteStore {
    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        let tend = *tend;
        let mut total = Tended::default();
        for (name, slice) in SLICES {
            self.slice(&mut total, name, move |connection, tending| slice(connection, &tend, tending)).await?;
        }
        for (aged, before) in aged(&tend) {
            self.slice(&mut total, aged.table, move |connection, _| aged.purge(connection, before)).await?;
        }
        for (walked, before) in walked(&tend) {
            self.slice(&mut total, walked.table, move |connection, tending| walked.purge(connection, tending, before))
                .await?;
        }
        self.drop_versions(&mut total, &tend).await?;
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use rota_core::duration::Span;

    use super::*;

    fn migrated() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        super::super::migrate::up(&connection, std::path::Path::new("x")).unwrap();
        connection
    }

    fn tend() -> Tend {
        let keep = Span::secs(1);
        let now = Timestamp::from_second(100_000_000).unwrap();
        Tend { now, history_keep: keep, skips_keep: keep, batches_keep: keep, audit_keep: keep }
    }

    /// Whatever grows with history, skips or requests is sought by an index: upkeep runs
    /// each second, and holds up the writer for as long as it looks.
    #[test]
    fn upkeep_walks_through_no_table_that_grows() {
        let connection = migrated();
        history::ensure_day(&connection, 1).unwrap();
        let sought = aged(&tend()).map(|(aged, _)| (aged.table, aged.select()));
        let walks = walked(&tend()).map(|(walked, _)| (walked.table, walked.select(true)));
        for (table, sql) in sought.into_iter().chain(walks) {
            let plan = plan(&connection, &sql);
            // The first batches in the order of their age, and 256 partitions.
            let small = |step: &str| step.starts_with("SCAN batch") || step.starts_with("SCAN partition");
            let walks = plan.iter().any(|step| step.starts_with("SCAN") && !small(step));
            assert!(!walks, "{table}: {sql}: {plan:?}");
            assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{table}: {sql}: {plan:?}");
        }
    }

    fn plan(connection: &Connection, sql: &str) -> Vec<String> {
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let count = explain.parameter_count();
        let rows = explain.query_map(params_from_iter(vec![0; count]), |row| row.get(3)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    }

    fn ended(connection: &Connection, day: i64, count: i64, chunks: i64) {
        history::ensure_day(connection, day).unwrap();
        for n in 0..count {
            let sql = format!(
                "INSERT INTO {} (id, tenant, job, version, lane, part, order_key, ready_at, created_at, ended_at, \
                 verdict, attempt, losses, fence, source) VALUES (?1, 1, ?2, 1, 1, 1, 1, 1, 1, ?3, 0, 1, 0, 0, 2)",
                history::table(day)
            );
            let id = uuid::Uuid::from_u128((day * 100_000 + n) as u128);
            connection.execute(&sql, params![id.as_bytes(), n % 7, day * 86_400_000_000 + n]).unwrap();
            for seq in 0..chunks {
                let sql = "INSERT INTO log (run, attempt, seq, at, lines) VALUES (?1, 1, ?2, 1, 'x')";
                connection.execute(sql, params![id.as_bytes(), seq]).unwrap();
            }
        }
    }

    fn count(connection: &Connection, table: &str) -> i64 {
        connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }

    /// A slice that took every log line of a busy day with it would hold the writer for
    /// seconds, and one that left some of them would leave them for ever.
    #[test]
    fn a_day_goes_in_small_slices_with_all_its_logs() {
        let connection = migrated();
        ended(&connection, 1, 1_200, 0);
        ended(&connection, 2, 3, 100);
        while history::index_some(&connection).unwrap().0 > 0 {}
        ended(&connection, 1_157, 5, 2);
        let (tend, tending) = (tend(), Tending::default());
        let mut slices = 0;
        loop {
            let before = connection.total_changes();
            let more = [let_go, empty].iter().any(|slice| slice(&connection, &tend, &tending).unwrap().more);
            assert!(connection.total_changes() - before <= LOOKED as u64 + 10, "a slice is short");
            slices += 1;
            if !more {
                break;
            }
        }
        assert!(slices > 10);
        assert_eq!((count(&connection, "history_day"), count(&connection, "log")), (1, 10), "what is young is kept");
        assert_eq!(
            count(&connection, "sqlite_schema WHERE name LIKE 'going%' OR name LIKE 'history\\_1%' ESCAPE '\\'"),
            4
        );
    }

    /// A run that ends in a day that goes must not be lost, nor keep the writer from
    /// committing.
    #[test]
    fn a_day_that_goes_can_be_begun_anew() {
        let connection = migrated();
        ended(&connection, 1, 600, 0);
        let (tend, tending) = (tend(), Tending::default());
        assert!(let_go(&connection, &tend, &tending).unwrap().more);
        empty(&connection, &tend, &tending).unwrap();
        ended(&connection, 1, 2, 0);
        assert!(!let_go(&connection, &tend, &tending).unwrap().more, "one day goes at a time");
        assert_eq!((count(&connection, "going"), count(&connection, "history_1")), (100, 2));
    }

    /// A batch that touches many jobs is folded in parts, and counts once.
    #[test]
    fn a_delta_of_many_jobs_is_folded_in_slices_and_counted_once() {
        let connection = migrated();
        let one = Rollup { attempts: 1, ..Rollup::default() };
        let delta: Rollups = (0..1_700).map(|job| ((JobId(job), 5), one.clone())).collect();
        for _ in 0..2 {
            let row = [rollup::encode(&delta)];
            connection.execute("INSERT INTO rollup_delta (body) VALUES (?1)", row).unwrap();
        }
        let (tend, tending) = (tend(), Tending::default());
        let mut slices = 1;
        while fold(&connection, &tend, &tending).unwrap().more {
            slices += 1;
            assert!(count(&connection, "rollup") <= slices * KEYS as i64);
        }
        assert!(slices >= 6);
        assert_eq!((count(&connection, "rollup"), count(&connection, "rollup_delta")), (1_700, 0));
        let mut select = connection.prepare("SELECT body FROM rollup").unwrap();
        let bodies = select.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
        assert!(bodies.map(|body| rollup::decode_one(&body.unwrap()).unwrap()).all(|rollup| rollup.attempts == 2));
    }

    /// Deltas of the same jobs fill a slice long before they are many: taken for all, they
    /// would be folded a few a second and grow without bound.
    #[test]
    fn a_slice_that_is_full_of_deltas_asks_for_another() {
        let connection = migrated();
        let delta: Rollups = (0..100).map(|job| ((JobId(job), 5), Rollup::default())).collect();
        for _ in 0..20 {
            let row = [rollup::encode(&delta)];
            connection.execute("INSERT INTO rollup_delta (body) VALUES (?1)", row).unwrap();
        }
        let (tend, tending) = (tend(), Tending::default());
        while fold(&connection, &tend, &tending).unwrap().more {}
        assert_eq!((count(&connection, "rollup"), count(&connection, "rollup_delta")), (100, 0));
    }

    /// Upkeep indexes a few rows of the same day meanwhile. A merge that began anew for
    /// that would never come to its end under load.
    #[test]
    fn a_merge_of_the_writer_goes_on_although_upkeep_indexes_beside_it() {
        let connection = migrated();
        ended(&connection, 1, 5_000, 0);
        let mut indexer = history::Indexer::default();
        assert_eq!(indexer.slice(&connection).unwrap(), 0);
        assert!(history::index_some(&connection).unwrap().0 > 0);
        let mut merged = 0;
        while merged == 0 {
            assert!(indexer.is_due(&connection, true).unwrap());
            merged = indexer.slice(&connection).unwrap();
        }
        assert_eq!(merged, 5_000, "it did not begin anew");
        assert_eq!(["job", "end", "id"].map(|of| count(&connection, &format!("history_1_{of}"))), [5_000; 3]);
        assert!(!indexer.is_due(&connection, true).unwrap());
    }

    /// Large answers must not make a slice long.
    #[test]
    fn what_is_large_goes_a_few_rows_at_a_time() {
        let connection = migrated();
        for n in 0..10 {
            let sql = "INSERT INTO request (tenant, key, fingerprint, expires_at, answer) VALUES (1, ?1, x'', 1, zeroblob(1048576))";
            connection.execute(sql, [n]).unwrap();
        }
        let [.., (request, before), _, _, _, _, _, _] = aged(&tend());
        assert_eq!(request.table, "request");
        let done = request.purge(&connection, before).unwrap();
        assert_eq!((done.purged, done.more, count(&connection, "request")), (2, true, 8));
    }

    /// Where a walk is, it goes on; at the end it begins again.
    #[test]
    fn a_walk_comes_round() {
        let connection = migrated();
        let slot = |key: i64, held: i64| {
            connection
                .execute("INSERT INTO slot (key, lim, held, waiting) VALUES (?1, 1, ?2, 0)", [key, held])
                .unwrap();
        };
        (0..LOOKED as i64 + 10).for_each(|key| slot(key, 1));
        let tending = Tending::default();
        let walk = || {
            let [.., (slots, before)] = walked(&tend());
            slots.purge(&connection, &tending, before).unwrap().purged
        };
        assert_eq!(walk(), 0);
        connection.execute("UPDATE slot SET held = 0 WHERE key IN (5, 1005)", []).unwrap();
        assert_eq!((walk(), walk(), walk()), (1, 1, 0));
        assert_eq!(count(&connection, "slot"), LOOKED as i64 + 8);
    }
}
