//! The raw loop: the same writes by hand, for a benchmark to be measured
//! against.
//!
//! Inserts runs, moves them to history, fills the history's indexes, counts their
//! slots and their ends and names each batch, in the same tables of the same file, in
//! as few commits, by statements over as many rows and with the log moved into the file
//! beside it, with none of the guards, decisions, answers and fairness. Where
//! runs are claimed, they are found by their order and read as a worker needs them,
//! which is what claiming means. Whoever runs it has the file to itself.

use std::{collections::BTreeMap, ops::Range, path::Path, sync::LazyLock};

use const_format::formatcp;
use jiff::Timestamp;
use rusqlite::{Connection, ToSql, params};
use uuid::Uuid;

use super::{
    OpenError, Options,
    checkpoint::Checkpointer,
    configure,
    history::{self, Indexer},
    lock,
    many::{Many, ROWS},
};
use crate::{
    codec::{
        micros,
        sql::{QUEUED, RUNNING},
    },
    raw::{RawLoad, RawRun},
};

/// Runs the loop on a store's file that nobody else has open.
pub fn raw_loop(path: &Path, load: RawLoad, now: Timestamp) -> Result<(), OpenError> {
    let _lock = lock(path)?;
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let mut connection = Connection::open(path).map_err(sqlite)?;
    configure(&connection, Options::default()).map_err(sqlite)?;
    let mut checkpointer = Checkpointer::start(path, &mut connection)
        .map_err(|source| OpenError::File { path: path.to_owned(), source: std::io::Error::other(source) })?;
    life(&connection, &mut checkpointer, load, now).map_err(sqlite)
}

fn life(
    connection: &Connection,
    checkpointer: &mut Checkpointer,
    load: RawLoad,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let day = history::day_of(now);
    connection.execute_batch("BEGIN IMMEDIATE")?;
    history::ensure_day(connection, day).map_err(|_| rusqlite::Error::QueryReturnedNoRows)?;
    connection.execute_batch("COMMIT")?;
    let (copy, payload) = (copy_into(day), RawLoad::payload(load.payload));
    let (mut ready, mut claimed): (Vec<Uuid>, Vec<Uuid>) = (Vec::new(), Vec::new());
    let mut made = 0;
    let mut indexer = Indexer::default();
    let counts = load.counts(now);
    while made < load.runs || !ready.is_empty() || !claimed.is_empty() {
        let count = load.batch.min(load.runs - made);
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        move_to_history(connection, load, &copy, &claimed, now)?;
        connection.prepare_cached("INSERT INTO rollup_delta (body) VALUES (?1)")?.execute([&counts])?;
        name(connection, now)?;
        claimed = std::mem::take(&mut ready);
        if load.claimed {
            claimed = claim(connection, claimed.len(), now)?;
            name(connection, now)?;
        }
        ready = insert(connection, load, made..made + count, &payload, now)?;
        name(connection, now)?;
        if indexer.is_due(connection, false)? {
            indexer.slice(connection)?;
        }
        connection.prepare_cached("COMMIT")?.execute([])?;
        checkpointer.committed(connection);
        made += count;
    }
    Ok(())
}

fn name(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let id = Uuid::now_v7();
    connection
        .prepare_cached("INSERT INTO batch (id, at) VALUES (?1, ?2)")?
        .execute(params![id.as_bytes(), micros(now)])?;
    Ok(())
}

static INSERT: LazyLock<Many> = LazyLock::new(|| {
    Many::new(
        "INSERT OR FAIL INTO run (id, tenant, job, version, lane, part, status, flags, order_key, ready_at, \
         created_at, attempt, losses, fence, source, slot, slot_limit, payload) VALUES ",
        "(?, ?, ?, 1, ?, ?, 2, 0, ?, ?, ?, 0, 0, 0, 2, ?, ?, ?)",
        "",
    )
});

fn insert(
    connection: &Connection,
    load: RawLoad,
    numbers: Range<u64>,
    payload: &str,
    now: Timestamp,
) -> rusqlite::Result<Vec<Uuid>> {
    let rows: Vec<(u8, Uuid)> = numbers.map(|n| ((n / 1_000) as u8, Uuid::now_v7())).collect();
    let at = micros(now);
    INSERT.execute(connection, &rows, |values, (part, id)| {
        let RawRun { tenant, job, lane, slot } = load.place(*id);
        values.put(id.as_bytes())?;
        values.put(tenant)?;
        values.put(job)?;
        values.put(lane)?;
        values.put(part)?;
        values.put(at)?;
        values.put(at)?;
        values.put(at)?;
        values.put(slot)?;
        values.put(slot.map(|_| 1))?;
        values.put(payload)
    })?;
    let ids: Vec<Uuid> = rows.into_iter().map(|(_, id)| id).collect();
    count_slots(connection, load, &ids, 1)?;
    Ok(ids)
}

static COUNT_SLOTS: LazyLock<Many> = LazyLock::new(|| {
    let tail = " ON CONFLICT (key) DO UPDATE SET held = held + excluded.held";
    Many::new("INSERT INTO slot (key, lim, held, waiting) VALUES ", "(?, 1, ?, 0)", tail)
});

/// Adds `each` to the counter of every slot, for each of these runs that has one.
fn count_slots(connection: &Connection, load: RawLoad, runs: &[Uuid], each: i64) -> rusqlite::Result<()> {
    let mut changes: BTreeMap<i64, i64> = BTreeMap::new();
    for key in runs.iter().filter_map(|id| load.place(*id).slot) {
        *changes.entry(key).or_default() += each;
    }
    let changes: Vec<(i64, i64)> = changes.into_iter().collect();
    COUNT_SLOTS.execute(connection, &changes, |values, (key, change)| {
        values.put(key)?;
        values.put(change)
    })
}

static TAKE: LazyLock<Many> = LazyLock::new(|| {
    let head = formatcp!(
        "UPDATE OR FAIL run SET status = {RUNNING}, fence = fence + 1, holder = ?, started_at = ? WHERE id IN ("
    );
    Many::new(head, "?", ")")
});

fn claim(connection: &Connection, count: usize, now: Timestamp) -> rusqlite::Result<Vec<Uuid>> {
    let sql = formatcp!(
        "SELECT id, job, version, attempt, fence, payload FROM run WHERE status = {QUEUED} AND lane = ?1 \
         ORDER BY tenant, order_key, id LIMIT ?2"
    );
    let mut select = connection.prepare_cached(sql)?;
    let mut runs: Vec<(Uuid, String)> = Vec::with_capacity(count);
    for lane in 1..=3 {
        let read = |row: &rusqlite::Row<'_>| Ok((super::rows::uuid_at(row, 0)?, row.get(5)?));
        for run in select.query_map(params![lane, (count - runs.len()) as i64], read)? {
            runs.push(run?);
        }
    }
    // In the order of their rows, so that neighbours are changed together.
    runs.sort_unstable();
    let (worker, at) = (Uuid::nil(), micros(now));
    let first: [&dyn ToSql; 2] = [worker.as_bytes(), &at];
    TAKE.execute_with(connection, &first, &runs, |values, (id, _)| values.put(id.as_bytes()))?;
    Ok(runs.into_iter().map(|(id, _)| id).collect())
}

fn copy_into(day: i64) -> Many {
    let head = format!(
        "INSERT OR FAIL INTO {} (id, tenant, job, version, lane, part, order_key, ready_at, created_at, started_at, \
         ended_at, verdict, attempt, losses, fence, source, slot, slot_limit, payload) \
         SELECT id, tenant, job, version, lane, part, order_key, ready_at, created_at, column2, column2, 0, 0, 0, \
         fence, source, slot, slot_limit, payload FROM (VALUES ",
        history::table(day)
    );
    Many::new(&head, "(?, ?)", ") CROSS JOIN run ON run.id = column1")
}

fn move_to_history(
    connection: &Connection,
    load: RawLoad,
    copy: &Many,
    runs: &[Uuid],
    now: Timestamp,
) -> rusqlite::Result<()> {
    let at = micros(now);
    // Deleted while their pages are still at hand.
    for piece in runs.chunks(ROWS) {
        copy.execute(connection, piece, |values, id| {
            values.put(id.as_bytes())?;
            values.put(at)
        })?;
        history::DELETE.execute(connection, piece, |values, id| values.put(id.as_bytes()))?;
    }
    count_slots(connection, load, runs, -1)
}

/// How many finished runs a file holds.
pub fn history_len(path: &Path) -> rusqlite::Result<u64> {
    let connection = Connection::open(path)?;
    let mut days = connection.prepare("SELECT day FROM history_day")?;
    let mut total = 0;
    for day in days.query_map([], |row| row.get::<_, i64>(0))? {
        // Each end by itself: both in one query would read the whole table.
        let table = history::table(day?);
        let sql = format!("SELECT coalesce((SELECT max(seq) FROM {table}) - (SELECT min(seq) FROM {table}) + 1, 0)");
        total += connection.query_row(&sql, [], |row| row.get::<_, i64>(0))?.max(0) as u64;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop that left work out would be faster than it may be.
    #[test]
    fn the_raw_loop_puts_every_run_into_history() {
        let dir = std::env::temp_dir().join(format!("rota-raw-{}", Uuid::now_v7()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("raw.db");
        super::super::migrate::up(&Connection::open(&path).unwrap(), &path).unwrap();
        for (claimed, ended) in [(false, 1_234), (true, 2_468)] {
            let load = RawLoad { runs: 1_234, batch: 100, claimed, mixed: true, payload: 200 };
            raw_loop(&path, load, Timestamp::UNIX_EPOCH).unwrap();
            assert_eq!(history_len(&path).unwrap(), ended);
        }
        let connection = Connection::open(&path).unwrap();
        let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(number("SELECT count(*) FROM run"), 0);
        assert!(number("SELECT count(*) FROM slot") > 50);
        assert_eq!(number("SELECT count(*) FROM slot WHERE held <> 0"), 0, "slots that were not given back");
        drop(connection);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
