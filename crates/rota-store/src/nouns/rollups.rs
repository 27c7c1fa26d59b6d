//! How runs have gone, by the hour.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rota_core::{
    ids::JobId,
    rollup::Rollup,
    store::{RollupStore, StoreError},
};

use crate::{
    engine::{Engine, SqlStore, values},
    rollup,
};

/// One statement, so that a delta is seen folded or unfolded, not both.
const SQLITE: &str = "SELECT hour, body, 0 FROM rollup WHERE job = $1 AND hour >= $2 AND hour < $3 \
     UNION ALL SELECT NULL, body, id FROM rollup_delta";
const POSTGRES: &str = "SELECT hour, body, 0::bigint FROM rollup WHERE job = $1 AND hour >= $2 AND hour < $3 \
     UNION ALL SELECT NULL, body, at FROM rollup_delta";

#[async_trait]
impl<E: Engine> RollupStore for SqlStore<E> {
    async fn rollups(&self, job: JobId, from_hour: i64, to_hour: i64) -> Result<Vec<(i64, Rollup)>, StoreError> {
        let sql = E::DIALECT.either(SQLITE, POSTGRES);
        let mut hours: BTreeMap<i64, Rollup> = BTreeMap::new();
        for row in self.find("read statistics", sql, values![job, from_hour, to_hour]).await? {
            if !row.is_null(0) {
                let hour = row.int(0)?;
                let known = self.readable("rollup", format_args!("{job}/{hour}"), rollup::decode_one(row.bytes(1)?));
                if let Some(known) = known {
                    hours.entry(hour).or_default().merge(&known);
                }
                continue;
            }
            let delta = self.readable("rollup_delta", row.shown(2), rollup::decode(row.bytes(1)?));
            for ((of, hour), delta) in delta.unwrap_or_default() {
                if of == job && (from_hour..to_hour).contains(&hour) {
                    hours.entry(hour).or_default().merge(&delta);
                }
            }
        }
        Ok(hours.into_iter().collect())
    }
}
