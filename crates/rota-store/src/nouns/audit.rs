//! What was changed by whom.

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::{
    ids::{AuditId, TenantId},
    store::{AuditCursor, AuditEntry, AuditPage, AuditQuery, AuditStore, StoreError},
};

use crate::{
    engine::{Engine, Row, SqlStore, Way, cut, values},
    filter::{LOOK_MAX, PAGE_MAX},
};

const ENTRY: &str = "a.tenant, a.at, a.id, a.who, a.action, a.object, a.before, a.after, a.address";

/// The entries of a time, behind a place, newest first.
const PLACE: &str = "FROM audit a WHERE a.tenant = $1 AND a.at >= $2 AND a.at < $3 \
     AND ((a.at, a.id) < ($4, $5) OR $4 IS NULL) ORDER BY a.at DESC, a.id DESC";

/// As many of them as are looked at, and of these the ones that are wanted.
const LIST: &str = formatcp!(
    "SELECT {ENTRY} FROM (SELECT {ENTRY} {PLACE} LIMIT $6) a WHERE (a.who = $7 OR $7 IS NULL) \
     AND (a.action = $8 OR $8 IS NULL) AND (a.object = $9 OR $9 IS NULL) ORDER BY a.at DESC, a.id DESC LIMIT $10"
);

#[async_trait]
impl<E: Engine> AuditStore for SqlStore<E> {
    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        let sql = "INSERT INTO audit (tenant, at, id, who, action, object, before, after, address) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING";
        let row = |entry: &AuditEntry| {
            let AuditEntry { id, at, tenant, who, action, object, before, after, address } = entry;
            values![*tenant, *at, *id, who, action, object, before, after, address]
        };
        let rows = entries.iter().map(row).collect();
        self.change_each(Way::Work, "add to the audit log", sql, rows).await.map(drop)
    }

    async fn list_audit(&self, query: &AuditQuery) -> Result<AuditPage, StoreError> {
        let limit = query.limit.clamp(1, PAGE_MAX);
        let (from, to) = (query.from.map_or(i64::MIN, crate::codec::micros), query.to.map(crate::codec::micros));
        let (after_at, after_id) = (query.after.map(|after| after.at), query.after.map(|after| after.id));
        let place = values![query.tenant, from, to.unwrap_or(i64::MAX), after_at, after_id];
        let mut key = place.clone();
        key.extend(values![LOOK_MAX as i64, &query.who, &query.action, &query.object, limit + 1]);
        let mut rows = self.find("read the audit log", LIST, key).await?;
        let more = cut(&mut rows, limit as usize);
        let mut entries = Vec::with_capacity(rows.len());
        for row in &rows {
            entries.extend(self.readable("audit", row.uuid(2)?, entry(row)));
        }
        if more && let Some(last) = entries.last() {
            let next = Some(AuditCursor { at: last.at, id: last.id });
            return Ok(AuditPage { entries, next });
        }
        // What was looked at may not have been all there is.
        let mut key = place;
        key.extend(values![LOOK_MAX as i64 - 1]);
        let sql = formatcp!("SELECT a.at, a.id {PLACE} LIMIT 2 OFFSET $6");
        let next = match self.find("read the audit log", sql, key).await?.as_slice() {
            [last, _] => Some(AuditCursor { at: last.time(0)?, id: AuditId(last.uuid(1)?) }),
            _ => None,
        };
        Ok(AuditPage { entries, next })
    }
}

fn entry(row: &Row) -> Result<AuditEntry, StoreError> {
    Ok(AuditEntry {
        tenant: TenantId(row.int(0)?),
        at: row.time(1)?,
        id: AuditId(row.uuid(2)?),
        who: row.text(3)?,
        action: row.text(4)?,
        object: row.text(5)?,
        before: row.opt(6, Row::text)?,
        after: row.opt(7, Row::text)?,
        address: row.opt(8, Row::text)?,
    })
}
