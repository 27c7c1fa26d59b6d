//! Leases: which nodes live, which partitions they hold, who may spend tokens.
//!
//! All of it on the connections kept back, so that a heartbeat never waits
//! behind a bulk load. Locks go from partitions to nodes.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    rate::{Bucket, Taken},
    store::{RateStore, StoreError, TokenAsk},
};

use super::{
    PostgresStore,
    fault::Fault,
    tx::{Param, Tx},
};
use crate::codec::{micros, time};

impl PostgresStore {
    pub(super) async fn spend(&self, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, Fault> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        let mut keys: Vec<&str> = asks.iter().map(|ask| ask.key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        let tx = Tx::on(&self.leases).await?;
        let mut buckets: HashMap<String, Bucket> = HashMap::with_capacity(keys.len());
        // Upkeep may remove a full bucket between the two statements.
        while buckets.len() < keys.len() {
            let params: [Param<'_>; 1] = [&keys];
            let answers = tx
                .pipe(&[
                    (
                        // A bucket that was full long ago is a full bucket.
                        "INSERT INTO bucket (key, full_at) SELECT key, 0 FROM unnest($1::text[]) u (key) \
                         ORDER BY key COLLATE \"C\" ON CONFLICT DO NOTHING",
                        &params,
                    ),
                    ("SELECT key, full_at FROM bucket WHERE key = ANY($1) ORDER BY key FOR UPDATE", &params),
                ])
                .await?;
            for row in &answers[1] {
                buckets.insert(row.try_get(0)?, Bucket { full_at: time(row.try_get(1)?)? });
            }
        }
        let mut taken = Vec::with_capacity(asks.len());
        for ask in asks {
            let (bucket, answer) = ask.decide(buckets.get(&ask.key).copied(), now);
            buckets.insert(ask.key.clone(), bucket);
            taken.push(answer);
        }
        let names: Vec<&str> = buckets.keys().map(String::as_str).collect();
        let full: Vec<i64> = buckets.values().map(|bucket| micros(bucket.full_at)).collect();
        let sql = "UPDATE bucket b SET full_at = u.full_at FROM unnest($1::text[], $2::bigint[]) u (key, full_at) \
                   WHERE b.key = u.key AND b.full_at <> u.full_at";
        tx.rows(sql, &[&names, &full]).await?;
        tx.commit().await?;
        Ok(taken)
    }
}

#[async_trait]
impl RateStore for PostgresStore {
    async fn take_tokens(&self, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError> {
        tried!("take tokens", self.spend(asks, now))
    }
}
