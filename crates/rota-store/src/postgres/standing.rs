//! What stands before a live run, for people who wonder.

use crate::codec::sql::{BLOCKED, QUEUED};
use const_format::formatcp;
use rota_core::{ids::RunId, slot::Slot, store::Standing, why::AHEAD_MAX};

use super::{PostgresStore, fault::Fault};

/// Both counts stop beyond what is shown.
const SQL: &str = formatcp!("
    SELECT (SELECT count(*) FROM (SELECT 1 FROM run b WHERE b.status = {QUEUED} AND b.lane = r.lane
                AND b.tenant = r.tenant AND b.order_key < r.order_key LIMIT $2) x),
           (SELECT count(*) FROM (SELECT 1 FROM run b WHERE b.slot = r.slot AND b.slot IS NOT NULL AND b.status = {BLOCKED}
                AND b.order_key < r.order_key LIMIT $2) x),
           s.lim, s.held, s.waiting
    FROM run r LEFT JOIN slot s ON s.key = r.slot
    WHERE r.id = $1");

impl PostgresStore {
    pub(super) async fn standing_of(&self, run: RunId) -> Result<Standing, Fault> {
        let most = i64::from(AHEAD_MAX) + 1;
        let rows = self.read(SQL, &[&run.0, &most]).await?;
        let Some(row) = rows.first() else { return Ok(Standing::default()) };
        let limit: Option<i32> = row.try_get(2)?;
        let slot = match limit {
            Some(limit) => {
                let (held, waiting): (i32, i32) = (row.try_get(3)?, row.try_get(4)?);
                Some(Slot { limit: limit as u32, held: held as u32, waiting: waiting as u32 })
            }
            None => None,
        };
        let (ahead, ahead_for_slot): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        Ok(Standing { ahead: ahead as u32, ahead_for_slot: ahead_for_slot as u32, slot })
    }
}
