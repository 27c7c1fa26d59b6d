//! The raw loop: the same writes by hand, for a benchmark to be measured
//! against.
//!
//! Inserts runs, moves them to history, fills the history's indexes, counts their
//! slots and their ends and names each batch, in the same tables of the same file and
//! in as few commits, with none of the guards, decisions, answers and fairness. Where
//! runs are claimed, they are found by their order and read as a worker needs them,
//! which is what claiming means. Whoever runs it has the file to itself.

use std::{ops::Range, path::Path};

use jiff::Timestamp;
use rusqlite::{Connection, params};
use uuid::Uuid;

use super::{
    OpenError, Options, configure,
    history::{self, Indexer},
    lock,
};
use crate::{
    codec::micros,
    raw::{RawLoad, RawRun},
};

/// Runs the loop on a store's file that nobody else has open.
pub fn raw_loop(path: &Path, load: RawLoad, now: Timestamp) -> Result<(), OpenError> {
    let _lock = lock(path)?;
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let connection = Connection::open(path).map_err(sqlite)?;
    configure(&connection, Options::default()).map_err(sqlite)?;
    connection.execute_batch("PRAGMA wal_autocheckpoint = 8000").map_err(sqlite)?;
    life(&connection, load, now).map_err(sqlite)
}

fn life(connection: &Connection, load: RawLoad, now: Timestamp) -> rusqlite::Result<()> {
    let day = history::day_of(now);
    connection.execute_batch("BEGIN IMMEDIATE")?;
    history::ensure_day(connection, day).map_err(|_| rusqlite::Error::QueryReturnedNoRows)?;
    connection.execute_batch("COMMIT")?;
    let payload = RawLoad::payload(load.payload);
    let (mut ready, mut claimed): (Vec<Uuid>, Vec<Uuid>) = (Vec::new(), Vec::new());
    let mut made = 0;
    let mut indexer = Indexer::default();
    let counts = load.counts(now);
    while made < load.runs || !ready.is_empty() || !claimed.is_empty() {
        let count = load.batch.min(load.runs - made);
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        move_to_history(connection, load, &history::table(day), &claimed, now)?;
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

fn insert(
    connection: &Connection,
    load: RawLoad,
    numbers: Range<u64>,
    payload: &str,
    now: Timestamp,
) -> rusqlite::Result<Vec<Uuid>> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO run (id, tenant, job, version, lane, part, status, flags, order_key, ready_at, created_at, \
         attempt, losses, fence, source, slot, slot_limit, payload) \
         VALUES (?1, ?2, ?3, 1, ?4, ?5, 2, 0, ?6, ?6, ?6, 0, 0, 0, 2, ?8, ?9, ?7)",
    )?;
    let mut enter = connection.prepare_cached(
        "INSERT INTO slot (key, lim, held, waiting) VALUES (?1, 1, 1, 0) \
         ON CONFLICT (key) DO UPDATE SET held = held + 1",
    )?;
    let at = micros(now);
    numbers
        .map(|n| {
            let id = Uuid::now_v7();
            let RawRun { tenant, job, lane, slot } = load.place(id);
            let part = (n / 1_000) as u8;
            insert.execute(params![id.as_bytes(), tenant, job, lane, part, at, payload, slot, slot.map(|_| 1)])?;
            if let Some(key) = slot {
                enter.execute([key])?;
            }
            Ok(id)
        })
        .collect()
}

fn claim(connection: &Connection, count: usize, now: Timestamp) -> rusqlite::Result<Vec<Uuid>> {
    let sql = "SELECT id, job, version, attempt, fence, payload FROM run WHERE status = 2 AND lane = ?1 \
         ORDER BY tenant, order_key, id LIMIT ?2";
    let mut select = connection.prepare_cached(sql)?;
    let sql = "UPDATE run SET status = 3, fence = fence + 1, holder = ?2, started_at = ?3 WHERE id = ?1";
    let mut update = connection.prepare_cached(sql)?;
    let mut runs: Vec<(Uuid, String)> = Vec::with_capacity(count);
    for lane in 1..=3 {
        let read = |row: &rusqlite::Row<'_>| Ok((super::rows::uuid_at(row, 0)?, row.get(5)?));
        for run in select.query_map(params![lane, (count - runs.len()) as i64], read)? {
            runs.push(run?);
        }
    }
    // In the order of their rows, so that neighbours are changed together.
    runs.sort_unstable();
    for (id, _) in &runs {
        update.execute(params![id.as_bytes(), Uuid::nil().as_bytes(), micros(now)])?;
    }
    Ok(runs.into_iter().map(|(id, _)| id).collect())
}

fn move_to_history(
    connection: &Connection,
    load: RawLoad,
    day: &str,
    runs: &[Uuid],
    now: Timestamp,
) -> rusqlite::Result<()> {
    let mut copy = connection.prepare_cached(&format!(
        "INSERT OR FAIL INTO {day} (id, tenant, job, version, lane, part, order_key, ready_at, created_at, started_at, \
         ended_at, verdict, attempt, losses, fence, source, slot, slot_limit, payload) \
         SELECT id, tenant, job, version, lane, part, order_key, ready_at, created_at, ?2, ?2, 0, 0, 0, fence, source, \
         slot, slot_limit, payload FROM run WHERE id = ?1"
    ))?;
    let mut delete = connection.prepare_cached("DELETE FROM run WHERE id = ?1")?;
    let mut leave = connection.prepare_cached("UPDATE slot SET held = held - 1 WHERE key = ?1")?;
    for id in runs {
        copy.execute(params![id.as_bytes(), micros(now)])?;
        delete.execute([id.as_bytes()])?;
        if let Some(key) = load.place(*id).slot {
            leave.execute([key])?;
        }
    }
    Ok(())
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
