//! The registry of workers.

use jiff::Timestamp;
use rota_core::{
    ids::{TenantId, WorkerId},
    store::{StoreError, Worker, WorkerBeat},
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{SqliteStore, failed, rows::uuid_at, writer::Urgency};
use crate::{
    codec::{self, micros, time},
    filter::PAGE_MAX,
    unreadable::readable,
};

fn worker(row: &Row<'_>) -> Result<Worker, StoreError> {
    Ok(Worker {
        worker: WorkerId(uuid_at(row, 0).map_err(failed)?),
        tenant: row.get::<_, Option<i32>>(1).map_err(failed)?.map(TenantId),
        name: row.get(2).map_err(failed)?,
        info: codec::worker_info(&row.get::<_, String>(3).map_err(failed)?)?,
        began_at: time(row.get(4).map_err(failed)?)?,
        seen_at: time(row.get(5).map_err(failed)?)?,
        until: time(row.get(6).map_err(failed)?)?,
        draining: row.get(7).map_err(failed)?,
        drain_asked: row.get(8).map_err(failed)?,
    })
}

impl SqliteStore {
    pub(super) async fn do_beat_workers(&self, beats: &[WorkerBeat], now: Timestamp) -> Result<Vec<bool>, StoreError> {
        let beats = beats.to_vec();
        self.writer
            .write("record workers", Urgency::Prompt, move |connection| {
                beats.iter().map(|beat| put(connection, beat, now)).collect()
            })
            .await
    }

    pub(super) async fn do_workers(
        &self,
        tenant: Option<TenantId>,
        after: Option<WorkerId>,
        limit: u32,
    ) -> Result<Vec<Worker>, StoreError> {
        self.read("read workers", move |connection| {
            let sql = "SELECT id, tenant, name, info, began_at, seen_at, until, draining, drain_asked FROM worker \
                 WHERE id > ?1 AND (?2 IS NULL OR tenant IS NULL OR tenant = ?2) ORDER BY id LIMIT ?3";
            let after = after.map(|after| after.0.as_bytes().to_vec()).unwrap_or_default();
            let mut select = connection.prepare_cached(sql).map_err(failed)?;
            let key = params![after, tenant.map(|tenant| tenant.0), limit.clamp(1, PAGE_MAX)];
            let mut rows = select.query(key).map_err(failed)?;
            let mut workers = Vec::new();
            while let Some(row) = rows.next().map_err(failed)? {
                let id = uuid_at(row, 0).map_err(failed)?;
                workers.extend(readable("worker", id, worker(row)));
            }
            Ok(workers)
        })
        .await
    }

    pub(super) async fn do_drain_worker(&self, tenant: Option<TenantId>, worker: WorkerId) -> Result<bool, StoreError> {
        self.writer
            .write("drain a worker", Urgency::Prompt, move |connection| {
                let sql = "UPDATE worker SET drain_asked = 1 WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2)";
                let row = params![worker.0.as_bytes(), tenant.map(|tenant| tenant.0)];
                let changed = connection.prepare_cached(sql).and_then(|mut s| s.execute(row)).map_err(failed)?;
                Ok(changed > 0)
            })
            .await
    }

    pub(super) async fn do_forget_workers(&self, workers: &[WorkerId]) -> Result<(), StoreError> {
        let workers = workers.to_vec();
        self.writer
            .write("forget workers", Urgency::Prompt, move |connection| {
                let mut delete = connection.prepare_cached("DELETE FROM worker WHERE id = ?1").map_err(failed)?;
                for worker in &workers {
                    delete.execute([worker.0.as_bytes()]).map_err(failed)?;
                }
                Ok(())
            })
            .await
    }
}

/// A worker of another tenant under the same id changes nothing.
fn put(connection: &Connection, beat: &WorkerBeat, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "INSERT INTO worker (id, tenant, name, info, began_at, seen_at, until, draining) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7) \
         ON CONFLICT (id) DO UPDATE SET name = excluded.name, info = excluded.info, seen_at = excluded.seen_at, \
             until = excluded.until, draining = excluded.draining \
         WHERE worker.tenant IS excluded.tenant RETURNING drain_asked";
    let info = codec::worker_info_text(&beat.info)?;
    let row = params![
        beat.worker.0.as_bytes(),
        beat.tenant.map(|tenant| tenant.0),
        beat.name,
        info,
        micros(now),
        micros(beat.until),
        beat.draining
    ];
    let asked = connection.prepare_cached(sql).and_then(|mut put| put.query_row(row, |row| row.get(0)).optional());
    Ok(asked.map_err(failed)?.unwrap_or(false))
}
