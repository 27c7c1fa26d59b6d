//! Recounting slots: counters that do not fit the live runs are put right.

use std::collections::BTreeMap;

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::store::{SlotStore, StoreError, Write};
use rusqlite::Connection;

use super::{SqliteStore, apply::Work, failed, writer::Urgency};
use crate::codec::{sql::COUNTED, status};

fn recount(connection: &Connection, write: &Write) -> Result<u32, StoreError> {
    let mut work = Work::new(connection, write);
    let mut wrong = 0;
    for (key, count) in counts(connection)? {
        let slot = work.slot(key, count.limit.map(|limit| limit.max(0) as u32))?;
        if (slot.held, slot.waiting) != (count.held, count.waiting) {
            (slot.held, slot.waiting) = (count.held, count.waiting);
            work.look_at_slot(key);
            wrong += 1;
        }
    }
    work.done_unnamed()?;
    Ok(wrong)
}

/// What the live runs say of a key.
#[derive(Default)]
struct Count {
    held: u32,
    waiting: u32,
    /// The largest that any of them asked for.
    limit: Option<i32>,
}

/// What the live runs say each key holds and waits for, and the keys that the
/// counters know but no run does.
fn counts(connection: &Connection) -> Result<BTreeMap<i64, Count>, StoreError> {
    let mut counts: BTreeMap<i64, Count> = BTreeMap::new();
    let mut select = connection.prepare_cached("SELECT key FROM slot").map_err(failed)?;
    for key in select.query_map([], |row| row.get(0)).map_err(failed)? {
        counts.insert(key.map_err(failed)?, Count::default());
    }
    // A run that is delayed or waits for others has not asked yet: to make a
    // counter for it here would fix its key's limit before anyone asked.
    let sql = formatcp!(
        "SELECT slot, status, count(*), max(slot_limit) FROM run \
         WHERE slot IS NOT NULL AND status IN ({COUNTED}) GROUP BY slot, status"
    );
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let mut rows = select.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let code: i16 = row.get(1).map_err(failed)?;
        let runs: u32 = row.get(2).map_err(failed)?;
        let count = counts.entry(row.get(0).map_err(failed)?).or_default();
        count.limit = count.limit.max(row.get(3).map_err(failed)?);
        if code == status::BLOCKED {
            count.waiting += runs;
        } else {
            count.held += runs;
        }
    }
    Ok(counts)
}

#[async_trait]
impl SlotStore for SqliteStore {
    async fn recount_slots(&self, write: &Write) -> Result<u32, StoreError> {
        let write = write.clone();
        self.writer.write("recount slots", Urgency::Patient, move |connection| recount(connection, &write)).await
    }
}
