//! The registry of workers.

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::{TenantId, WorkerId},
    store::{StoreError, Worker, WorkerBeat, WorkerStore},
};

use crate::{
    codec::{worker_info, worker_info_text},
    engine::{Engine, Row, SqlStore, Way, values},
    filter::PAGE_MAX,
};

/// A worker of another tenant under the same id changes nothing.
const BEAT: &str = "INSERT INTO worker (id, tenant, name, info, began_at, seen_at, until, draining) \
     VALUES ($1, $2, $3, $4, $5, $5, $6, $7) \
     ON CONFLICT (id) DO UPDATE SET name = excluded.name, info = excluded.info, seen_at = excluded.seen_at, \
         until = excluded.until, draining = excluded.draining \
     WHERE worker.tenant IS NOT DISTINCT FROM excluded.tenant RETURNING drain_asked";

#[async_trait]
impl<E: Engine> WorkerStore for SqlStore<E> {
    async fn beat_workers(&self, beats: &[WorkerBeat], now: Timestamp) -> Result<Vec<bool>, StoreError> {
        let row = |beat: &WorkerBeat| {
            let WorkerBeat { worker, tenant, name, info, until, draining } = beat;
            Ok((*worker, values![*worker, *tenant, name, worker_info_text(info)?, now, *until, *draining]))
        };
        let rows = beats.iter().map(row).collect::<Result<_, StoreError>>()?;
        let answers = self.change_in_order(Way::Leases, "record workers", BEAT, rows).await?;
        answers.iter().map(|rows| rows.first().map_or(Ok(false), |row| row.bool(0))).collect()
    }

    async fn workers(
        &self,
        tenant: Option<TenantId>,
        after: Option<WorkerId>,
        limit: u32,
    ) -> Result<Vec<Worker>, StoreError> {
        let sql = "SELECT id, tenant, name, info, began_at, seen_at, until, draining, drain_asked FROM worker \
                   WHERE (id > $1 OR $1 IS NULL) AND (tenant = $2 OR tenant IS NULL OR $2 IS NULL) ORDER BY id LIMIT $3";
        let rows = self.find("read workers", sql, values![after, tenant, limit.clamp(1, PAGE_MAX)]).await?;
        let mut workers = Vec::with_capacity(rows.len());
        for row in &rows {
            workers.extend(self.readable("worker", row.uuid(0)?, worker(row)));
        }
        Ok(workers)
    }

    async fn drain_worker(&self, tenant: Option<TenantId>, worker: WorkerId) -> Result<bool, StoreError> {
        let sql = "UPDATE worker SET drain_asked = true WHERE id = $1 AND (tenant = $2 OR $2 IS NULL) RETURNING 1";
        let answers = self.change_each(Way::Leases, "drain a worker", sql, vec![values![worker, tenant]]).await?;
        Ok(answers.iter().any(|rows| !rows.is_empty()))
    }

    async fn forget_workers(&self, workers: &[WorkerId]) -> Result<(), StoreError> {
        let rows = workers.iter().map(|worker| values![*worker]).collect();
        self.change_each(Way::Leases, "forget workers", "DELETE FROM worker WHERE id = $1", rows).await.map(drop)
    }
}

fn worker(row: &Row) -> Result<Worker, StoreError> {
    Ok(Worker {
        worker: WorkerId(row.uuid(0)?),
        tenant: row.opt(1, Row::int)?.map(TenantId),
        name: row.text(2)?,
        info: worker_info(row.str(3)?)?,
        began_at: row.time(4)?,
        seen_at: row.time(5)?,
        until: row.time(6)?,
        draining: row.bool(7)?,
        drain_asked: row.bool(8)?,
    })
}
