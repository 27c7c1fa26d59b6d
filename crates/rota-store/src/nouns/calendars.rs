//! Calendars, by name.

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::TenantId,
    store::{Calendar, CalendarPut, CalendarStore, StoreError},
};
use serde::de::IgnoredAny;

use crate::engine::{Dialect, Engine, SqlStore, Way, values};

/// The same again is no new revision.
const SQLITE: &str = "INSERT INTO calendar (tenant, name, spec, revision, updated_at) VALUES ($1, $2, $3, 1, $4) \
     ON CONFLICT (tenant, name) DO UPDATE SET spec = excluded.spec, revision = calendar.revision + 1, \
         updated_at = excluded.updated_at WHERE calendar.spec <> excluded.spec";
const POSTGRES: &str = "INSERT INTO calendar (tenant, name, spec, revision) VALUES ($1, $2, $3, 1) \
     ON CONFLICT (tenant, name) DO UPDATE SET spec = excluded.spec, revision = calendar.revision + 1 \
     WHERE calendar.spec <> excluded.spec";

#[async_trait]
impl<E: Engine> CalendarStore for SqlStore<E> {
    async fn put_calendars(&self, calendars: &[CalendarPut], now: Timestamp) -> Result<(), StoreError> {
        let row = |put: &CalendarPut| {
            let CalendarPut { tenant, name, spec } = put;
            let mut row = values![*tenant, name, spec];
            if E::DIALECT == Dialect::Sqlite {
                row.extend(values![now]);
            }
            ((*tenant, name.clone()), row)
        };
        let sql = E::DIALECT.either(SQLITE, POSTGRES);
        self.change_in_order(Way::Work, "save calendars", sql, calendars.iter().map(row).collect()).await.map(drop)
    }

    async fn calendars(&self, tenant: TenantId) -> Result<Vec<Calendar>, StoreError> {
        let sql = "SELECT name, spec, revision FROM calendar WHERE tenant = $1 ORDER BY name";
        let rows = self.find("read calendars", sql, values![tenant]).await?;
        let mut calendars = Vec::with_capacity(rows.len());
        for row in &rows {
            let name = row.text(0)?;
            let read = row.json::<IgnoredAny>(1);
            if self.readable("calendar", format_args!("{tenant}/{name}"), read).is_some() {
                calendars.push(Calendar { tenant, name, spec: row.text(1)?, revision: row.int(2)? });
            }
        }
        Ok(calendars)
    }
}
