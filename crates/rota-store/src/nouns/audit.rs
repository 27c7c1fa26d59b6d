//! What was changed by whom.
//!
//! A page reads at most [`LOOK_MAX`] entries for what is wanted of them, and as many for the
//! place where the next page begins.

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    ids::{AuditId, TenantId},
    store::{AuditCursor, AuditEntry, AuditPage, AuditQuery, AuditStore, StoreError},
};
use uuid::Uuid;

use crate::{
    codec::micros,
    engine::{Engine, Row, SqlStore, Way, cut, values},
    filter::{LOOK_MAX, PAGE_MAX},
};

const ENTRY: &str = "a.tenant, a.at, a.id, a.who, a.action, a.object, a.before, a.after, a.address";

/// The entries of a time, behind a place, newest first: a stretch of the key in both stores.
const PLACE: &str = "FROM audit a WHERE a.tenant = $1 AND a.at >= $2 AND (a.at, a.id) < ($3, $4) \
     ORDER BY a.at DESC, a.id DESC";

/// As many of them as are looked at, and of these the ones that are wanted.
const LIST: &str = formatcp!(
    "SELECT {ENTRY} FROM (SELECT {ENTRY} {PLACE} LIMIT $5) a WHERE (a.who = $6 OR $6 IS NULL) \
     AND (a.action = $7 OR $7 IS NULL) AND (a.object = $8 OR $8 IS NULL) ORDER BY a.at DESC, a.id DESC LIMIT $9"
);

/// The last row that a look examines, and one more if there is one.
const EDGE: &str = formatcp!("SELECT a.at, a.id {PLACE} LIMIT 2 OFFSET $5");

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
        let from = query.from.map_or(i64::MIN, micros);
        // Before the first entry of an instant comes nothing of that instant.
        let to = query.to.map_or((i64::MAX, Uuid::max()), |to| (micros(to), Uuid::nil()));
        let after = query.after.map_or((i64::MAX, Uuid::max()), |after| (micros(after.at), after.id.0));
        let (before_at, before_id) = to.min(after);
        let place = values![query.tenant, from, before_at, before_id];
        let mut key = place.clone();
        key.extend(values![LOOK_MAX as i64, &query.who, &query.action, &query.object, limit + 1]);
        let mut rows = self.find("read the audit log", LIST, key).await?;
        let more = cut(&mut rows, limit as usize);
        let read = |row: &Row| self.readable("audit", row.shown(2), entry(row));
        let entries = rows.iter().filter_map(read).collect();
        if more {
            // Behind the last row, whether or not it can be read.
            return Ok(AuditPage { entries, next: rows.last().and_then(|row| cursor(row, 1)) });
        }
        // What was looked at may not have been all there is.
        let mut key = place;
        key.extend(values![LOOK_MAX as i64 - 1]);
        let next = match self.find("read the audit log", EDGE, key).await?.as_slice() {
            [last, _] => cursor(last, 0),
            _ => None,
        };
        Ok(AuditPage { entries, next })
    }
}

/// The place of a row by its time and id. Rows later than any time go by unread together;
/// behind one that is earlier than any there is nothing that can be read.
fn cursor(row: &Row, at: usize) -> Option<AuditCursor> {
    match row.time(at) {
        Ok(time) => Some(AuditCursor { at: time, id: AuditId(row.uuid(at + 1).unwrap_or_default()) }),
        Err(_) if row.int::<i64>(at).is_ok_and(|at| at > 0) => {
            Some(AuditCursor { at: Timestamp::MAX, id: AuditId(Uuid::max()) })
        }
        Err(_) => None,
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

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, StatementStatus, named_params};

    use super::*;

    /// Steps of the database for a page behind the entry of this number.
    fn steps(connection: &Connection, sql: &str, behind: i64) -> i32 {
        let mut select = connection.prepare(sql).unwrap();
        let mut key =
            named_params! { "$1": 1, "$2": i64::MIN, "$3": behind, "$4": [0_u8; 16], "$5": LOOK_MAX as i64 }.to_vec();
        if sql == LIST {
            key.extend_from_slice(named_params! { "$6": "nobody", "$7": None::<&str>, "$8": None::<&str>, "$9": 101 });
        }
        let rows = select.query_map(key.as_slice(), |_| Ok(())).unwrap();
        assert_eq!(rows.count(), if sql == LIST { 0 } else { 2 });
        select.get_status(StatementStatus::VmStep)
    }

    /// A page far behind was found by reading all entries before it.
    #[test]
    fn a_page_far_behind_reads_no_more_than_the_first() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../sqlite/migrations/0004_access.sql")).unwrap();
        let fill = "WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 60000) \
                    INSERT INTO audit (tenant, at, id, who, action, object) SELECT 1, n / 10, randomblob(16), 'a', 'b', 'c' FROM n";
        connection.execute(fill, []).unwrap();
        for sql in [LIST, EDGE] {
            let (first, behind) = (steps(&connection, sql, i64::MAX), steps(&connection, sql, 2_000));
            assert!(behind <= first + first / 10, "{sql}: {behind} steps, and {first} for the first page");
            // Some for each row that is looked at.
            assert!(first < 40 * LOOK_MAX as i32, "{sql}: {first}");
        }
    }
}
