//! Rows that cannot be read: set aside, listed, shown, discarded.

use rota_core::store::{Guarded, UnreadableRow};
use serde_json::Value;
use uuid::Uuid;

use super::{
    PostgresStore,
    fault::Fault,
    row::{run_columns, run_row},
    tx::Tx,
};
use crate::{
    codec::{RunRow, status},
    failpoint,
    unreadable::{HISTORY, LISTED_MAX, RUN, reason_of, unknown_status},
};

impl PostgresStore {
    /// Sets aside the live runs that could not be read since this was last done. Where
    /// that fails, whoever meets them next does it.
    pub(super) async fn set_aside(&self) {
        if self.notes.take_fresh() {
            let done = failpoint::named("set rows aside", self.set_aside_runs(&self.notes.take_runs())).await;
            if let Err(fault) = done {
                let error = fault.told("set rows aside");
                tracing::warn!(%error, "setting aside rows that cannot be read");
            }
        }
    }

    /// Takes live runs that cannot be read out of everybody's way. One of an unknown status
    /// is in nobody's way and stays as it is.
    async fn set_aside_runs(&self, runs: &[Uuid]) -> Result<(), Fault> {
        let tx = Tx::on(&self.work).await?;
        let sql = concat!("SELECT ", run_columns!(), " FROM run r WHERE r.id = ANY($1) ORDER BY r.id FOR UPDATE");
        let mut broken: Vec<Uuid> = Vec::new();
        for row in tx.rows(sql, &[&runs]).await? {
            let row = run_row(&row)?;
            if status::is_unknown(row.status) {
                self.notes.keep_unknown([row.id], true);
            } else if row.status < status::SET_ASIDE && row.run().is_err() {
                broken.push(row.id);
            }
        }
        let sql = "UPDATE run SET status = CASE WHEN status BETWEEN 0 AND 6 THEN status + 100 ELSE 199 END, \
             holder = NULL, due_at = NULL WHERE id = ANY($1)";
        tx.pipe(&[(sql, &[&broken]), ("DELETE FROM notice WHERE run = ANY($1)", &[&broken])]).await?;
        tx.commit().await
    }

    pub(super) async fn rows_set_aside(&self) -> Result<Vec<UnreadableRow>, Fault> {
        let sql = concat!("SELECT ", run_columns!(), " FROM run r WHERE r.status >= 100 ORDER BY r.id LIMIT $1");
        let mut found = Vec::new();
        for row in self.read(sql, &[&(LISTED_MAX as i64)]).await? {
            let row = run_row(&row)?;
            let key = row.id.to_string();
            found.push(UnreadableRow { table: RUN.to_owned(), key, reason: reason_of(as_it_was(row).run()) });
        }
        let sql = "SELECT id FROM run WHERE id = ANY($1) AND status > 6 AND status < 100 ORDER BY id";
        let rows = self.read(sql, &[&self.notes.unknown()]).await?;
        let unknown: Vec<Uuid> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        found.extend(unknown.iter().map(unknown_status));
        self.notes.keep_unknown(unknown, false);
        found.extend(self.notes.list());
        found.truncate(LISTED_MAX);
        Ok(found)
    }

    pub(super) async fn row_as_it_is(&self, table: &str, key: &str) -> Result<Option<Value>, Fault> {
        let (id, number) = (key.parse::<Uuid>(), key.parse::<i64>());
        let rows = match (table, id, number) {
            (RUN, Ok(id), _) => self.read("SELECT to_jsonb(r)::text FROM run r WHERE r.id = $1", &[&id]).await?,
            (HISTORY, Ok(id), _) => {
                self.read("SELECT to_jsonb(r)::text FROM history r WHERE r.id = $1 LIMIT 1", &[&id]).await?
            }
            ("job" | "schedule" | "lane" | "tenant" | "inbox", _, Ok(id)) => {
                let sql = format!("SELECT to_jsonb(r)::text FROM {table} r WHERE r.id = $1::bigint");
                self.read(&sql, &[&id]).await?
            }
            _ => return Ok(None),
        };
        let text: Option<String> = rows.first().map(|row| row.try_get(0)).transpose()?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    pub(super) async fn drop_row(&self, table: &str, key: &str) -> Result<Guarded, Fault> {
        let (RUN, Ok(id)) = (table, key.parse::<Uuid>()) else { return Ok(Guarded::Stale) };
        let sql = "DELETE FROM run WHERE id = $1 AND status > 6 RETURNING id";
        let gone = self.write_alone(&self.work, sql, &[&id]).await?;
        Ok(if gone.is_empty() { Guarded::Stale } else { Guarded::Applied })
    }
}

/// A row as it was before it was set aside.
fn as_it_was(row: RunRow) -> RunRow {
    RunRow { status: row.status - status::SET_ASIDE, ..row }
}
