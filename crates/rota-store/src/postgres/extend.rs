//! What the holders of leases say while their attempts go on.

use std::collections::HashSet;

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    ids::{RunId, WorkerId},
    run::{Fence, Lease},
    store::{ExtendStore, Extended, Guarded, StoreError},
};
use uuid::Uuid;

use super::{PostgresStore, claim::HOLD, fault::Fault};
use crate::codec::{micros, sql::CANCELLING};

impl PostgresStore {
    pub(super) async fn extend_all(
        &self,
        worker: WorkerId,
        until: Timestamp,
        held: &[Lease],
    ) -> Result<Extended, Fault> {
        self.write_alone(&self.leases, HOLD, &[&worker.0, &micros(until)]).await?;
        let sql =
            formatcp!("SELECT id, fence, status = {CANCELLING} FROM run WHERE holder = $1 AND holder IS NOT NULL");
        let rows = super::read_on(&self.leases, sql, &[&worker.0]).await?;
        let mut extended = Extended::default();
        let mut stored = HashSet::with_capacity(rows.len());
        let listed: HashSet<Lease> = held.iter().copied().collect();
        for row in rows {
            let lease = Lease { run: RunId(row.try_get(0)?), fence: Fence(row.try_get(1)?) };
            if !listed.contains(&lease) {
                extended.unlisted.push(lease);
            } else if row.try_get(2)? {
                extended.cancelling.push(lease.run);
            }
            stored.insert(lease);
        }
        extended.lost = held.iter().filter(|lease| !stored.contains(lease)).map(|lease| lease.run).collect();
        extended.cancelling.sort_unstable();
        extended.unlisted.sort_by_key(|lease| lease.run);
        Ok(extended)
    }
}

impl PostgresStore {
    pub(super) async fn report(&self, reports: &[(Lease, String)]) -> Result<Vec<Guarded>, Fault> {
        let ids: Vec<Uuid> = reports.iter().map(|(lease, _)| lease.run.0).collect();
        let fences: Vec<i32> = reports.iter().map(|(lease, _)| lease.fence.0).collect();
        let texts: Vec<&str> = reports.iter().map(|(_, text)| text.as_str()).collect();
        let sql = "UPDATE run r SET progress = u.progress \
                   FROM unnest($1::uuid[], $2::int[], $3::text[]) WITH ORDINALITY u (id, fence, progress, n) \
                   WHERE r.id = ANY(ARRAY[u.id]) AND r.fence = u.fence RETURNING u.n";
        let rows = self.write_alone(&self.work, sql, &[&ids, &fences, &texts]).await?;
        let mut applied = HashSet::with_capacity(rows.len());
        for row in rows {
            let n = row.try_get::<_, i64>(0)? as usize - 1;
            applied.insert(reports[n].0);
        }
        let answer = |lease| if applied.contains(lease) { Guarded::Applied } else { Guarded::Stale };
        Ok(reports.iter().map(|(lease, _)| answer(lease)).collect())
    }
}

#[async_trait]
impl ExtendStore for PostgresStore {
    async fn extend(
        &self,
        worker: WorkerId,
        until: Timestamp,
        held: &[Lease],
        _now: Timestamp,
    ) -> Result<Extended, StoreError> {
        tried!("extend leases", self.extend_all(worker, until, held))
    }

    async fn progress(&self, reports: &[(Lease, String)]) -> Result<Vec<Guarded>, StoreError> {
        tried!("store progress", self.report(reports))
    }
}
