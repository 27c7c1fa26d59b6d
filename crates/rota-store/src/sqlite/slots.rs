//! Recounting slots: counters that do not fit the live runs are put right.

use std::collections::BTreeMap;

use rota_core::store::{StoreError, Write};
use rusqlite::Connection;

use super::{SqliteStore, apply::Work, failed, writer::Urgency};
use crate::codec::status;

impl SqliteStore {
    pub(super) async fn do_recount_slots(&self, write: &Write) -> Result<u32, StoreError> {
        let write = write.clone();
        self.writer.write("recount slots", Urgency::Patient, move |connection| recount(connection, &write)).await
    }
}

fn recount(connection: &Connection, write: &Write) -> Result<u32, StoreError> {
    let mut work = Work::new(connection, write);
    let mut wrong = 0;
    for (key, (held, waiting)) in counts(connection)? {
        let slot = work.slot(key, None)?;
        if (slot.held, slot.waiting) != (held, waiting) {
            (slot.held, slot.waiting) = (held, waiting);
            work.look_at_slot(key);
            wrong += 1;
        }
    }
    work.done_unnamed()?;
    Ok(wrong)
}

/// What the live runs say each key holds and waits for, and the keys that the
/// counters know but no run does.
fn counts(connection: &Connection) -> Result<BTreeMap<i64, (u32, u32)>, StoreError> {
    let mut counts: BTreeMap<i64, (u32, u32)> = BTreeMap::new();
    let mut select = connection.prepare_cached("SELECT key FROM slot").map_err(failed)?;
    for key in select.query_map([], |row| row.get(0)).map_err(failed)? {
        counts.insert(key.map_err(failed)?, (0, 0));
    }
    let sql = "SELECT slot, status, count(*) FROM run WHERE slot IS NOT NULL GROUP BY slot, status";
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let mut rows = select.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let code: i16 = row.get(1).map_err(failed)?;
        let count: u32 = row.get(2).map_err(failed)?;
        let entry = counts.entry(row.get(0).map_err(failed)?).or_default();
        match code {
            status::SCHEDULED | status::NEEDS => {}
            status::BLOCKED => entry.1 += count,
            _ => entry.0 += count,
        }
    }
    Ok(counts)
}
