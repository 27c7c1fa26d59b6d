//! Promote: delayed runs whose time has come become ready, or wait for a slot.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::{
    ids::Partition,
    run::{Change, Slots},
    store::{PromoteStore, Promoted, StoreError, Woken, Write},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    PostgresStore,
    apply::apply,
    fault::Fault,
    follow::{Aftermath, reenter},
    once::Once,
    own::numbers,
    rows::{Locked, RUN, locked},
    slots,
    tx::{Ending, Tx},
};
use crate::{
    codec::{micros, sql::SCHEDULED, time_opt},
    kept,
};

/// What is kept of the answer.
#[derive(Serialize, Deserialize)]
struct Kept {
    woken: Vec<(Uuid, i32, bool)>,
    moved: usize,
    next_at: Option<i64>,
}

impl PostgresStore {
    async fn promote_once(
        &self,
        tx: Arc<Tx>,
        write: &Write,
        parts: &[Partition],
        limit: u32,
    ) -> Result<(Promoted, Ending), Fault> {
        let parts = numbers(parts);
        let rows = lock_due(&tx, write, &parts, limit).await?;
        let mut asked = BTreeMap::new();
        for claim in rows.iter().filter_map(|row| row.run.slot) {
            // A key that nobody has used yet begins with its first asker's limit.
            asked.entry(claim.key.0).or_insert(claim.limit);
        }
        let mut entered = slots::lock(&tx, &asked).await?;
        let mut changes: Vec<(Locked, Change)> = Vec::with_capacity(rows.len());
        for row in rows {
            let entry = reenter(&mut entered, &row.run);
            if let Ok(change) = row.run.promote(entry, write.now) {
                changes.push((row, change));
            }
        }
        let mut after = Aftermath::default();
        apply(&tx, write.now, &changes, Slots::Counted, &mut after).await?;
        slots::write(&tx, &entered).await?;
        let woken = self.tell(&tx, write.node, &mut after).await?;
        let next = tx.rows(NEXT, &[&parts]).await?;
        let next_at: Option<i64> = next.first().map(|row| row.try_get(0)).transpose()?.flatten();
        let kept = Kept {
            woken: woken.iter().map(|woken| (woken.run.id.0, woken.run.fence.0, woken.handed)).collect(),
            moved: changes.len(),
            next_at,
        };
        let ending = after.ending(kept::json(&kept)?);
        Ok((Promoted { woken, moved: changes.len(), next_at: time_opt(next_at)? }, ending))
    }
}

/// Locks the earliest due runs of the partitions that the node holds. Each
/// partition gives its first few; only where that is not enough to know the
/// order over all of them is more read.
async fn lock_due(tx: &Tx, write: &Write, parts: &[i16], limit: u32) -> Result<Vec<Locked>, Fault> {
    let limit = limit.max(1) as usize;
    let (node, now) = (write.node.map(|node| node.0), micros(write.now));
    let mut each = limit.div_ceil(parts.len().max(1)) + 8;
    let ids = loop {
        let rows = tx.rows(DELAYED, &[&parts, &node, &now, &(each as i64)]).await?;
        let mut due: Vec<(i64, Uuid)> = Vec::with_capacity(rows.len());
        let mut counts: HashMap<i16, (usize, i64)> = HashMap::new();
        for row in &rows {
            let (part, ready_at): (i16, i64) = (row.try_get(0)?, row.try_get(1)?);
            let last = counts.entry(part).or_insert((0, ready_at));
            *last = (last.0 + 1, last.1.max(ready_at));
            due.push((ready_at, row.try_get(2)?));
        }
        due.sort_unstable();
        let edge = counts.values().filter(|(count, _)| *count >= each).map(|(_, last)| *last).min();
        let sure = edge.map_or(due.len(), |edge| due.partition_point(|(ready_at, _)| *ready_at <= edge));
        if sure >= limit || edge.is_none() || each >= limit {
            due.truncate(limit);
            break due.into_iter().map(|(_, id)| id).collect::<Vec<Uuid>>();
        }
        each = (each * 4).min(limit);
    };
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let sql = formatcp!(
        "SELECT {RUN} FROM run r WHERE r.id = ANY($1) AND r.status = {SCHEDULED} ORDER BY r.ready_at, r.id FOR UPDATE SKIP LOCKED"
    );
    Ok(tx.rows(sql, &[&ids]).await?.iter().filter_map(|row| locked(&tx.notes, row)).collect())
}

pub(super) const DELAYED: &str = formatcp!(
    "WITH held AS MATERIALIZED (SELECT part FROM partition \
         WHERE part = ANY($1::smallint[]) AND node = $2 ORDER BY part FOR SHARE) \
     SELECT p.part, x.ready_at, x.id FROM unnest($1::smallint[]) p (part), LATERAL ( \
         SELECT ready_at, id FROM run WHERE status = {SCHEDULED} AND part = p.part AND ready_at <= $3 \
         ORDER BY ready_at LIMIT $4) x \
     WHERE p.part = ANY(ARRAY(SELECT part FROM held))"
);

pub(super) const NEXT: &str = formatcp!(
    "SELECT min(x.ready_at) FROM unnest($1::smallint[]) p (part), LATERAL ( \
     SELECT ready_at FROM run WHERE status = {SCHEDULED} AND part = p.part ORDER BY ready_at LIMIT 1) x"
);

#[async_trait]
impl PromoteStore for PostgresStore {
    async fn promote(&self, write: &Write, parts: &[Partition], limit: u32) -> Result<Promoted, StoreError> {
        let what = "promote delayed runs";
        match self.once(write, what, |tx| self.promote_once(tx, write, parts, limit)).await? {
            Once::New(promoted, _) => Ok(promoted),
            Once::Known(kept) => {
                let kept: Kept = kept::json_again(kept.as_deref())?;
                let places: Vec<(Uuid, i32)> = kept.woken.iter().map(|(id, fence, _)| (*id, *fence)).collect();
                let runs = self.reread(&places, what).await?;
                let handed = |id| kept.woken.iter().any(|(woken, _, handed)| *woken == id && *handed);
                let woken = runs.into_iter().map(|run| Woken { handed: handed(run.id.0), run }).collect();
                Ok(Promoted { woken, moved: kept.moved, next_at: time_opt(kept.next_at)? })
            }
        }
    }
}
