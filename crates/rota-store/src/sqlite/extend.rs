//! What the holders of leases say while their attempts go on.

use std::collections::HashSet;

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    ids::{RunId, WorkerId},
    run::Lease,
    store::{ExtendStore, Extended, Guarded, StoreError},
};
use rusqlite::{Connection, params};

use super::{SqliteStore, claim::put_holder, failed, writer::Urgency};
use crate::codec::{sql::EXECUTED, status};

fn extend(
    connection: &Connection,
    worker: WorkerId,
    until: jiff::Timestamp,
    held: &[Lease],
) -> Result<Extended, StoreError> {
    put_holder(connection, worker, until)?;
    let mut extended = Extended::default();
    let listed: HashSet<Lease> = held.iter().copied().collect();
    let mut found: HashSet<Lease> = HashSet::new();
    let mut select =
        connection.prepare_cached("SELECT id, fence, status FROM run WHERE holder = ?1 ORDER BY id").map_err(failed)?;
    let mut rows = select.query([worker.0.as_bytes()]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let run = RunId(super::rows::uuid_at(row, 0).map_err(failed)?);
        let lease = Lease { run, fence: rota_core::run::Fence(row.get(1).map_err(failed)?) };
        let code: i16 = row.get(2).map_err(failed)?;
        if !listed.contains(&lease) {
            extended.unlisted.push(lease);
        } else if code == status::CANCELLING {
            extended.cancelling.push(run);
        }
        found.insert(lease);
    }
    extended.lost = held.iter().filter(|lease| !found.contains(lease)).map(|lease| lease.run).collect();
    Ok(extended)
}

#[async_trait]
impl ExtendStore for SqliteStore {
    async fn extend(
        &self,
        worker: WorkerId,
        until: Timestamp,
        held: &[Lease],
        _now: Timestamp,
    ) -> Result<Extended, StoreError> {
        let held = held.to_vec();
        self.writer
            .write("extend leases", Urgency::Prompt, move |connection| extend(connection, worker, until, &held))
            .await
    }

    async fn progress(&self, reports: &[(Lease, String)]) -> Result<Vec<Guarded>, StoreError> {
        let reports = reports.to_vec();
        self.writer
            .write("store progress", Urgency::Prompt, move |connection| {
                let sql =
                    formatcp!("UPDATE run SET progress = ?3 WHERE id = ?1 AND fence = ?2 AND status IN ({EXECUTED})");
                let mut update = connection.prepare_cached(sql).map_err(failed)?;
                reports
                    .iter()
                    .map(|(lease, text)| {
                        let changed =
                            update.execute(params![lease.run.0.as_bytes(), lease.fence.0, text]).map_err(failed)?;
                        Ok(if changed == 0 { Guarded::Stale } else { Guarded::Applied })
                    })
                    .collect()
            })
            .await
    }
}
