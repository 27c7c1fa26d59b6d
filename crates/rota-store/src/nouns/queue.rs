//! What waits, looked at and left as it is: for people who wonder, and for whoever asks
//! again.

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    ids::RunId,
    slot::Slot,
    store::{InboxItem, QueueStore, Request, Standing, StoreError},
    why::AHEAD_MAX,
};

use crate::{
    codec::sql::{BLOCKED, QUEUED},
    engine::{Engine, Row, SqlStore, values},
};

/// Both counts stop beyond what is shown.
const STANDING: &str = formatcp!(
    "SELECT (SELECT count(*) FROM (SELECT 1 FROM run b WHERE b.status = {QUEUED} AND b.lane = r.lane \
                AND b.tenant = r.tenant AND b.order_key < r.order_key LIMIT $2) x), \
            (SELECT count(*) FROM (SELECT 1 FROM run b WHERE b.slot = r.slot AND b.slot IS NOT NULL \
                AND b.status = {BLOCKED} AND b.order_key < r.order_key LIMIT $2) x), \
            s.lim, s.held, s.waiting \
     FROM run r LEFT JOIN slot s ON s.key = r.slot WHERE r.id = $1"
);

#[async_trait]
impl<E: Engine> QueueStore for SqlStore<E> {
    async fn is_answered(&self, request: &Request, now: Timestamp) -> Result<bool, StoreError> {
        let sql = "SELECT fingerprint FROM request WHERE tenant = $1 AND key = $2 AND expires_at > $3";
        let rows = self.find("look for a request", sql, values![request.tenant, &request.key, now]).await?;
        match rows.first() {
            Some(row) if row.bytes(0)? != request.fingerprint => Err(StoreError::RequestDiffers),
            found => Ok(found.is_some()),
        }
    }

    async fn inbox(&self, limit: u32) -> Result<Vec<InboxItem>, StoreError> {
        let rows = self.find("read the inbox", "SELECT id, at, body FROM inbox ORDER BY id LIMIT $1", values![limit]);
        let read = |row: &Row| Ok(InboxItem { id: row.int(0)?, at: row.time(1)?, body: row.text(2)? });
        Ok(rows.await?.iter().filter_map(|row| self.readable("inbox", row.shown(0), read(row))).collect())
    }

    async fn oldest_queued(&self) -> Result<Option<Timestamp>, StoreError> {
        let sql = formatcp!("SELECT min(ready_at) FROM run WHERE status = {QUEUED}");
        let rows = self.find("find the oldest queued run", sql, values![]).await?;
        Ok(rows.first().map(|row| row.opt(0, Row::time)).transpose()?.flatten())
    }

    async fn standing(&self, run: RunId) -> Result<Standing, StoreError> {
        let rows = self.find("read what stands before a run", STANDING, values![run, AHEAD_MAX + 1]).await?;
        let Some(row) = rows.first() else { return Ok(Standing::default()) };
        let slot =
            |row: &Row, at: usize| Ok(Slot { limit: row.int(at)?, held: row.int(at + 1)?, waiting: row.int(at + 2)? });
        Ok(Standing { ahead: row.int(0)?, ahead_for_slot: row.int(1)?, slot: row.opt(2, slot)? })
    }
}
