//! Nodes, partitions and tokens.

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    rate::{Bucket, Taken},
    store::{RateStore, StoreError, TokenAsk},
};
use rusqlite::{Connection, params};

use super::{
    SqliteStore,
    rows::{change, first},
    writer::Urgency,
};
use crate::codec::{micros, time_opt};

fn take_tokens(connection: &Connection, ask: &TokenAsk, now: Timestamp) -> Result<Taken, StoreError> {
    let full_at: Option<i64> =
        first(connection, "SELECT full_at FROM bucket WHERE key = ?1", [&ask.key], |row| row.get(0))?;
    let bucket = time_opt(full_at)?.map(|full_at| Bucket { full_at });
    let (bucket, taken) = ask.decide(bucket, now);
    change(
        connection,
        "INSERT OR REPLACE INTO bucket (key, full_at) VALUES (?1, ?2)",
        params![ask.key, micros(bucket.full_at)],
    )?;
    Ok(taken)
}

#[async_trait]
impl RateStore for SqliteStore {
    async fn take_tokens(&self, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError> {
        let asks = asks.to_vec();
        self.writer
            .write("take tokens", Urgency::Prompt, move |connection| {
                asks.iter().map(|ask| take_tokens(connection, ask, now)).collect()
            })
            .await
    }
}
