//! What stands before a live run, for people who wonder.

use crate::codec::sql::{BLOCKED, QUEUED};
use const_format::formatcp;
use rota_core::{
    ids::RunId,
    slot::Slot,
    store::{Standing, StoreError},
    why::AHEAD_MAX,
};
use rusqlite::{OptionalExtension, params};

use super::{SqliteStore, failed};

/// Both counts stop beyond what is shown.
const SQL: &str = formatcp!(
    "
    SELECT (SELECT count(*) FROM (SELECT 1 FROM run b WHERE b.status = {QUEUED} AND b.lane = r.lane
                AND b.tenant = r.tenant AND b.order_key < r.order_key LIMIT ?2)),
           (SELECT count(*) FROM (SELECT 1 FROM run b WHERE b.slot = r.slot AND b.status = {BLOCKED}
                AND b.order_key < r.order_key LIMIT ?2)),
           s.lim, s.held, s.waiting
    FROM run r LEFT JOIN slot s ON s.key = r.slot
    WHERE r.id = ?1"
);

impl SqliteStore {
    pub(super) async fn do_standing(&self, run: RunId) -> Result<Standing, StoreError> {
        self.read("read what stands before a run", move |connection| {
            let row = connection.prepare_cached(SQL).and_then(|mut select| {
                let read = |row: &rusqlite::Row<'_>| {
                    let limit: Option<u32> = row.get(2)?;
                    let slot = match limit {
                        Some(limit) => Some(Slot { limit, held: row.get(3)?, waiting: row.get(4)? }),
                        None => None,
                    };
                    Ok(Standing { ahead: row.get(0)?, ahead_for_slot: row.get(1)?, slot })
                };
                select.query_row(params![run.0.as_bytes(), AHEAD_MAX + 1], read).optional()
            });
            Ok(row.map_err(failed)?.unwrap_or_default())
        })
        .await
    }
}
