//! Claim: runs of claimed lanes are leased to workers, in writing.
//!
//! One statement takes each share in order, passing over rows that others are
//! about to take. The worker's one row in `holder` says until when all of its
//! leases hold, so extending them is one update however many they are.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::{
    dispatch::Pair,
    ids::{LaneId, TenantId},
    lane::LaneMode,
    order::OrderKey,
    run::Run,
    store::{Claim, ClaimStore, StoreError, Write},
};

use super::{
    PostgresStore,
    fault::Fault,
    once::Once,
    rows::{RUN, runs},
    tx::{Bound, Ending, Late, Param, Tx, params},
};
use crate::{
    codec::{
        micros,
        sql::{QUEUED, RUNNING},
    },
    kept,
};

pub(super) const CLAIM: &str = formatcp!(
    "UPDATE run r SET status = {RUNNING}, fence = fence + 1, holder = $6, started_at = $7, due_at = NULL \
     WHERE r.ctid = ANY(ARRAY( \
         SELECT x.ctid FROM unnest($1::int[], $2::int[], $3::bigint[], $4::bigint[]) s (lane, tenant, n, low), LATERAL ( \
             SELECT t.ctid FROM run t \
             WHERE t.status = {QUEUED} AND t.lane = s.lane AND t.tenant = s.tenant AND t.order_key >= s.low \
             ORDER BY t.order_key, t.id LIMIT s.n FOR UPDATE SKIP LOCKED) x \
         LIMIT $5)) \
     RETURNING {RUN}"
);

/// Says that the worker lives until then; a word once given is not taken back.
pub(super) const HOLD: &str = "INSERT INTO holder AS h (worker, until) VALUES ($1, $2) \
     ON CONFLICT (worker) DO UPDATE SET until = greatest(h.until, excluded.until)";

impl PostgresStore {
    /// All statements travel together; one worker's rows are locked before the
    /// next one looks.
    async fn claim_once(&self, tx: Arc<Tx>, write: &Write, claims: &[Claim]) -> Result<(Vec<Run>, Ending), Fault> {
        let lanes = claims.iter().flat_map(|claim| &claim.shares).map(|share| share.pair.lane);
        let modes = self.modes(lanes).await?;
        let now = micros(write.now);
        let asks: Vec<Ask<'_>> = claims.iter().map(|claim| Ask::new(claim, &modes)).collect();
        let params: Vec<[Param<'_>; 7]> = asks.iter().map(|ask| ask.params(&now)).collect();
        let statements: Vec<Bound<'_>> = params.iter().map(|params| (CLAIM, &params[..])).collect();
        let answers = tx.pipe(&statements).await?;
        let mut claimed = Vec::new();
        let mut ending = Ending::default();
        for (ask, rows) in asks.iter().zip(answers) {
            let found = ask.in_order(runs(&tx.notes, &rows));
            if !found.is_empty() {
                ending.late.push(Late { sql: HOLD, params: params![ask.claim.worker.0, micros(ask.claim.until)] });
                claimed.extend(found);
            }
        }
        ending.answer = Some(kept::leases(claimed.iter().map(Run::lease)));
        Ok((claimed, ending))
    }

    pub(super) async fn pairs(&self, lanes: &[LaneId]) -> Result<Vec<(Pair, OrderKey)>, Fault> {
        let lanes: Vec<i32> = lanes.iter().map(|lane| lane.0).collect();
        // Hops from one tenant to the next in the index instead of reading all.
        let rows = self
            .read(
                formatcp!("WITH RECURSIVE hop AS ( \
                     (SELECT l.lane, f.tenant, f.order_key FROM unnest($1::int[]) l (lane), LATERAL ( \
                         SELECT tenant, order_key FROM run WHERE status = {QUEUED} AND lane = l.lane \
                         ORDER BY tenant, order_key, id LIMIT 1) f) \
                     UNION ALL \
                     SELECT h.lane, n.tenant, n.order_key FROM hop h, LATERAL ( \
                         SELECT tenant, order_key FROM run WHERE status = {QUEUED} AND lane = h.lane AND tenant > h.tenant \
                         ORDER BY tenant, order_key, id LIMIT 1) n) \
                 SELECT lane, tenant, order_key FROM hop ORDER BY lane, tenant"),
                &[&lanes],
            )
            .await?;
        let mut pairs = Vec::with_capacity(rows.len());
        for row in rows {
            let pair = Pair { lane: LaneId(row.try_get(0)?), tenant: TenantId(row.try_get(1)?) };
            pairs.push((pair, OrderKey(row.try_get(2)?)));
        }
        Ok(pairs)
    }
}

/// One worker's claim, as parameters.
struct Ask<'c> {
    claim: &'c Claim,
    lanes: Vec<i32>,
    tenants: Vec<i32>,
    counts: Vec<i64>,
    lows: Vec<i64>,
    most: i64,
}

impl<'c> Ask<'c> {
    fn new(claim: &'c Claim, modes: &HashMap<LaneId, LaneMode>) -> Self {
        let shares: Vec<_> =
            claim.shares.iter().filter(|share| modes.get(&share.pair.lane) == Some(&LaneMode::Claimed)).collect();
        Self {
            claim,
            lanes: shares.iter().map(|share| share.pair.lane.0).collect(),
            tenants: shares.iter().map(|share| share.pair.tenant.0).collect(),
            counts: shares.iter().map(|share| i64::from(share.runs)).collect(),
            lows: shares.iter().map(|share| share.low.0).collect(),
            most: i64::from(claim.most),
        }
    }

    fn params<'a>(&'a self, now: &'a i64) -> [Param<'a>; 7] {
        [&self.lanes, &self.tenants, &self.counts, &self.lows, &self.most, &self.claim.worker.0, now]
    }

    /// Share by share, in order within each.
    fn in_order(&self, mut found: Vec<Run>) -> Vec<Run> {
        let mut places: HashMap<Pair, usize> = HashMap::with_capacity(self.lanes.len());
        for (n, (lane, tenant)) in self.lanes.iter().zip(&self.tenants).enumerate() {
            places.entry(Pair { lane: LaneId(*lane), tenant: TenantId(*tenant) }).or_insert(n);
        }
        found.sort_by_key(|run| {
            let place = places.get(&Pair { lane: run.lane, tenant: run.tenant }).copied();
            (place.unwrap_or(usize::MAX), run.order_key(), run.id)
        });
        found
    }
}

#[async_trait]
impl ClaimStore for PostgresStore {
    async fn ready_pairs(&self, lanes: &[LaneId]) -> Result<Vec<(Pair, OrderKey)>, StoreError> {
        tried!("look for ready runs", self.pairs(lanes))
    }

    async fn claim(&self, write: &Write, claims: &[Claim]) -> Result<Vec<Run>, StoreError> {
        let what = "claim runs";
        match self.once(write, what, |tx| self.claim_once(tx, write, claims)).await? {
            Once::New(runs, _) => Ok(runs),
            Once::Known(kept) => {
                let leases = kept::leases_again(kept.as_deref().unwrap_or_default())?;
                let places: Vec<_> = leases.iter().map(|lease| (lease.run.0, lease.fence.0)).collect();
                self.reread(&places, what).await
            }
        }
    }
}
