//! Promote: delayed runs whose time has come become ready, or wait for a slot.

use std::{collections::BTreeMap, sync::Arc};

use rota_core::{
    ids::Partition,
    run::Change,
    store::{Promoted, StoreError, Woken, Write},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    PostgresStore,
    fault::Fault,
    once::{Once, json_kept, json_known},
    row::{Locked, locked, run_columns},
    settle::{Aftermath, apply, reenter},
    slots,
    tx::{Ending, Tx},
};
use crate::codec::{micros, time_opt};

/// What is kept of the answer.
#[derive(Serialize, Deserialize)]
struct Kept {
    woken: Vec<(Uuid, i32, bool)>,
    moved: usize,
    next_at: Option<i64>,
}

impl PostgresStore {
    pub(super) async fn promote_all(
        &self,
        write: &Write,
        parts: &[Partition],
        limit: u32,
    ) -> Result<Promoted, StoreError> {
        let what = "promote delayed runs";
        match self.once(write, what, |tx| self.promote_once(tx, write, parts, limit)).await? {
            Once::New(promoted, _) => Ok(promoted),
            Once::Known(kept) => {
                let kept: Kept = json_known(kept.as_deref())?;
                let places: Vec<(Uuid, i32)> = kept.woken.iter().map(|(id, fence, _)| (*id, *fence)).collect();
                let runs = self.reread(&places, what).await?;
                let handed = |id| kept.woken.iter().any(|(woken, _, handed)| *woken == id && *handed);
                let woken = runs.into_iter().map(|run| Woken { handed: handed(run.id.0), run }).collect();
                Ok(Promoted { woken, moved: kept.moved, next_at: time_opt(kept.next_at)? })
            }
        }
    }

    async fn promote_once(
        &self,
        tx: Arc<Tx>,
        write: &Write,
        parts: &[Partition],
        limit: u32,
    ) -> Result<(Promoted, Ending), Fault> {
        let mut parts: Vec<i16> = parts.iter().map(|part| i16::from(part.0)).collect();
        // Begin elsewhere each time, so that one long partition starves none.
        let start = write.batch.0.as_bytes()[15] as usize % parts.len().max(1);
        parts.rotate_left(start);
        let rows = tx.rows(DELAYED, &[&parts, &write.node.map(|n| n.0), &micros(write.now), &i64::from(limit)]).await?;
        let mut rows: Vec<Locked> = rows.iter().map(locked).collect::<Result<_, _>>()?;
        // Whoever was ready first enters first, whatever its partition.
        rows.sort_by_key(|row| (row.run.ready_at, row.run.id));
        let mut asked = BTreeMap::new();
        for claim in rows.iter().filter_map(|row| row.run.slot) {
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
        apply(&tx, write.now, &changes, true, &mut after).await?;
        slots::write(&tx, &entered).await?;
        let woken = self.tell(&tx, write.node, &mut after).await?;
        let next = tx.rows(NEXT, &[&parts]).await?;
        let next_at: Option<i64> = next.first().map(|row| row.try_get(0)).transpose()?.flatten();
        let kept = Kept {
            woken: woken.iter().map(|woken| (woken.run.id.0, woken.run.fence.0, woken.handed)).collect(),
            moved: changes.len(),
            next_at,
        };
        let ending = after.ending(json_kept(&kept)?);
        Ok((Promoted { woken, moved: changes.len(), next_at: time_opt(next_at)? }, ending))
    }
}

/// Due runs of the partitions that the node holds, locked; no more rows are
/// read than taken.
const DELAYED: &str = concat!(
    "WITH held AS MATERIALIZED (SELECT part FROM partition \
         WHERE part = ANY($1::smallint[]) AND node = $2 ORDER BY part FOR SHARE) \
     SELECT ",
    run_columns!(),
    " FROM unnest($1::smallint[]) p (part), LATERAL (SELECT * FROM run \
         WHERE status = 0 AND part = p.part AND ready_at <= $3 ORDER BY ready_at LIMIT $4 FOR UPDATE SKIP LOCKED) r \
     WHERE p.part = ANY(ARRAY(SELECT part FROM held)) LIMIT $4"
);

const NEXT: &str = "SELECT min(x.ready_at) FROM unnest($1::smallint[]) p (part), LATERAL ( \
     SELECT ready_at FROM run WHERE status = 0 AND part = p.part ORDER BY ready_at LIMIT 1) x";
