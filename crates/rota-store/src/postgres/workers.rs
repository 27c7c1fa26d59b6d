//! Workers: who they are and whether they live, for people.

use std::collections::HashMap;

use jiff::Timestamp;
use rota_core::{
    ids::{TenantId, WorkerId},
    store::{Worker, WorkerBeat},
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{PostgresStore, fault::Fault};
use crate::{
    codec::{micros, time, worker_info, worker_info_text},
    filter::PAGE_MAX,
};

/// A worker of another tenant under the same id changes nothing.
const BEAT: &str = "INSERT INTO worker AS w (id, tenant, name, info, began_at, seen_at, until, draining) \
     SELECT u.id, u.tenant, u.name, u.info, $7, $7, u.until, u.draining \
     FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::bigint[], $6::boolean[]) \
         u (id, tenant, name, info, until, draining) ORDER BY u.id \
     ON CONFLICT (id) DO UPDATE SET name = excluded.name, info = excluded.info, seen_at = excluded.seen_at, \
         until = excluded.until, draining = excluded.draining \
     WHERE w.tenant IS NOT DISTINCT FROM excluded.tenant RETURNING id, drain_asked";

fn worker(row: &Row) -> Result<Worker, Fault> {
    Ok(Worker {
        worker: WorkerId(row.try_get(0)?),
        tenant: row.try_get::<_, Option<i32>>(1)?.map(TenantId),
        name: row.try_get(2)?,
        info: worker_info(row.try_get(3)?)?,
        began_at: time(row.try_get(4)?)?,
        seen_at: time(row.try_get(5)?)?,
        until: time(row.try_get(6)?)?,
        draining: row.try_get(7)?,
        drain_asked: row.try_get(8)?,
    })
}

impl PostgresStore {
    pub(super) async fn record_workers(&self, beats: &[WorkerBeat], now: Timestamp) -> Result<Vec<bool>, Fault> {
        // One row per worker, or the statement would meet itself.
        let rows: HashMap<Uuid, &WorkerBeat> = beats.iter().map(|beat| (beat.worker.0, beat)).collect();
        let rows: Vec<&WorkerBeat> = rows.into_values().collect();
        let ids: Vec<Uuid> = rows.iter().map(|beat| beat.worker.0).collect();
        let tenants: Vec<Option<i32>> = rows.iter().map(|beat| beat.tenant.map(|tenant| tenant.0)).collect();
        let names: Vec<&str> = rows.iter().map(|beat| beat.name.as_str()).collect();
        let infos: Vec<String> = rows.iter().map(|beat| worker_info_text(&beat.info)).collect::<Result<_, _>>()?;
        let untils: Vec<i64> = rows.iter().map(|beat| micros(beat.until)).collect();
        let draining: Vec<bool> = rows.iter().map(|beat| beat.draining).collect();
        let params: [super::tx::Param<'_>; 7] = [&ids, &tenants, &names, &infos, &untils, &draining, &micros(now)];
        let mut asked: HashMap<Uuid, bool> = HashMap::with_capacity(ids.len());
        for row in self.write_alone(&self.leases, BEAT, &params).await? {
            asked.insert(row.try_get(0)?, row.try_get(1)?);
        }
        Ok(beats.iter().map(|beat| asked.get(&beat.worker.0).copied().unwrap_or(false)).collect())
    }

    pub(super) async fn registered(
        &self,
        tenant: Option<TenantId>,
        after: Option<WorkerId>,
        limit: u32,
    ) -> Result<Vec<Worker>, Fault> {
        let sql = "SELECT id, tenant, name, info, began_at, seen_at, until, draining, drain_asked FROM worker \
             WHERE ($1::uuid IS NULL OR id > $1) AND ($2::int IS NULL OR tenant IS NULL OR tenant = $2) \
             ORDER BY id LIMIT $3";
        let (after, tenant) = (after.map(|after| after.0), tenant.map(|tenant| tenant.0));
        let limit = i64::from(limit.clamp(1, PAGE_MAX));
        let mut workers = Vec::new();
        for row in self.read(sql, &[&after, &tenant, &limit]).await? {
            let id: Uuid = row.try_get(0)?;
            workers.extend(self.notes.readable("worker", id, worker(&row)));
        }
        Ok(workers)
    }

    pub(super) async fn ask_to_drain(&self, tenant: Option<TenantId>, worker: WorkerId) -> Result<bool, Fault> {
        let sql =
            "UPDATE worker SET drain_asked = true WHERE id = $1 AND ($2::int IS NULL OR tenant = $2) RETURNING id";
        let tenant = tenant.map(|tenant| tenant.0);
        Ok(!self.write_alone(&self.leases, sql, &[&worker.0, &tenant]).await?.is_empty())
    }

    pub(super) async fn unregister(&self, workers: &[WorkerId]) -> Result<(), Fault> {
        let ids: Vec<Uuid> = workers.iter().map(|worker| worker.0).collect();
        self.write_alone(&self.leases, "DELETE FROM worker WHERE id = ANY($1)", &[&ids]).await.map(drop)
    }
}
