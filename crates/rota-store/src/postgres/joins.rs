//! Mending joins: a run that waits for others which are gone is counted down.

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::{
    ids::RunId,
    store::{JoinStore, StoreError, Write},
};
use uuid::Uuid;

use super::{
    PostgresStore,
    fault::Fault,
    follow::Aftermath,
    tx::{Param, Tx},
};
use crate::{codec::sql::NEEDS, failpoint};

/// Runs that are waited for and not there. Who ends takes its ties along, so
/// there are none.
const GONE: &str = "SELECT DISTINCT n.needed FROM need n \
     WHERE NOT EXISTS (SELECT 1 FROM run r WHERE r.id = n.needed) LIMIT 1000";

/// Runs that wait for more than they are tied to, and for how many more; all, or
/// those among `$1`.
const UNTIED: &str = formatcp!(
    "SELECT r.id, (r.pending - coalesce(n.ties, 0))::smallint FROM run r \
     LEFT JOIN (SELECT waiter, count(*) AS ties FROM need GROUP BY waiter) n ON n.waiter = r.id \
     WHERE r.status = {NEEDS} AND r.pending > coalesce(n.ties, 0) AND ($1::uuid[] IS NULL OR r.id = ANY($1)) LIMIT 1000"
);

impl PostgresStore {
    pub(super) async fn mend(&self, write: &Write) -> Result<u32, StoreError> {
        self.mend_tried(write).await.map_err(|fault| fault.told("mend joins"))
    }

    async fn mend_tried(&self, write: &Write) -> Result<u32, Fault> {
        let mut after = Aftermath::default();
        for row in self.read(GONE, &[]).await? {
            after.effects.needed.push(RunId(row.try_get(0)?));
        }
        let untied = self.read(UNTIED, &[&None::<Vec<Uuid>>]).await?;
        let untied: Vec<Uuid> = untied.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        if after.effects.needed.is_empty() && untied.is_empty() {
            return Ok(0);
        }
        let tx = Tx::on(&self.work).await?;
        // Counted again with the rows locked: another may have mended them.
        let locked = ("SELECT id FROM run WHERE id = ANY($1) ORDER BY id FOR UPDATE", &[&untied as Param<'_>][..]);
        let found = tx.pipe(&[locked, (UNTIED, &[&Some(&untied)])]).await?;
        for row in &found[1] {
            let more: i16 = row.try_get(1)?;
            after.effects.parents.insert(RunId(row.try_get(0)?), more.max(0).unsigned_abs().into());
        }
        let wrong = (after.effects.needed.len() + after.effects.parents.len()) as u32;
        self.follow(&tx, write.now, &mut after).await?;
        self.hand_over(&tx, None, &after.take_ready()).await?;
        tx.commit().await?;
        Ok(wrong)
    }
}

#[async_trait]
impl JoinStore for PostgresStore {
    async fn mend_joins(&self, write: &Write) -> Result<u32, StoreError> {
        failpoint::named("mend joins", self.mend(write)).await
    }
}
