//! Tenants, by name.

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::TenantId,
    quota::Held,
    store::{StoreError, Tenant, TenantPut, TenantStore, Tier},
};

use super::schedules::as_limit;
use crate::{
    codec::{corrupt, tier, tier_code, to_json},
    engine::{Dialect, Engine, Row, SqlStore, Value, Way, values},
};

#[async_trait]
impl<E: Engine> TenantStore for SqlStore<E> {
    async fn put_tenants(&self, tenants: &[TenantPut], now: Timestamp) -> Result<Vec<TenantId>, StoreError> {
        let sql = "INSERT INTO tenant (name, tier, quotas, created_at) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (name) DO UPDATE SET tier = excluded.tier, quotas = excluded.quotas RETURNING id";
        let row = |put: &TenantPut| {
            let tier = match E::DIALECT {
                Dialect::Sqlite => Value::from(to_json(&put.tier)?),
                Dialect::Postgres => tier_code(put.tier).into(),
            };
            Ok((put.name.clone(), values![&put.name, tier, &put.quotas, now]))
        };
        let rows = tenants.iter().map(row).collect::<Result<_, StoreError>>()?;
        let answers = self.change_in_order(Way::Work, "save tenants", sql, rows).await?;
        let id =
            |rows: &Vec<Row>| rows.first().map_or_else(|| Err(corrupt("a saved tenant", "no row")), |row| row.int(0));
        answers.iter().map(|rows| id(rows).map(TenantId)).collect()
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        let rows =
            self.find("read tenants", "SELECT id, name, tier, quotas FROM tenant ORDER BY id", values![]).await?;
        let mut tenants = Vec::with_capacity(rows.len());
        for row in &rows {
            tenants.extend(self.readable("tenant", row.shown(0), tenant(row)));
        }
        Ok(tenants)
    }

    async fn count_held(&self, tenant: TenantId, what: Held, most: u64, now: Timestamp) -> Result<u64, StoreError> {
        let (on, open) = (E::DIALECT.either("enabled = 1", "enabled"), E::DIALECT.not("deleted"));
        let held = match what {
            Held::ActiveSchedules => format!("schedule WHERE tenant = $1 AND {on} AND {open}"),
            Held::Jobs => format!("job WHERE tenant = $1 AND {open}"),
            Held::Tokens => {
                "token WHERE tenant = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $3)".to_owned()
            }
            Held::Users => "person WHERE tenant = $1".to_owned(),
        };
        let sql = format!("SELECT count(*) FROM (SELECT 1 FROM {held} LIMIT $2) counted");
        let mut key = values![tenant, as_limit(most)];
        if what == Held::Tokens {
            key.extend(values![now]);
        }
        let rows = self.find("count what a tenant has", sql, key).await?;
        rows.first().map_or(Ok(0), |row| row.count(0))
    }
}

fn tenant(row: &Row) -> Result<Tenant, StoreError> {
    Ok(Tenant { id: TenantId(row.int(0)?), name: row.text(1)?, tier: tier_at(row, 2)?, quotas: row.opt(3, Row::text)? })
}

/// A tier: a code, or its name as JSON, which is what a release of schema 18 reads in SQLite.
fn tier_at(row: &Row, index: usize) -> Result<Tier, StoreError> {
    row.code(index).map_or_else(|| row.json(index), tier)
}
