//! Rows that cannot be read: set aside, listed, shown, discarded.

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::store::{Discarded, StoreError, UnreadableRow, UnreadableStore};
use serde_json::Value;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{
    Postgres, PostgresStore,
    fault::Fault,
    rows::{RUN, run_row},
    tx::{Param, Tx},
};
use crate::{
    codec::{RunRow, status},
    failpoint,
    unreadable::{
        self, KeyPart, Kind, LISTED_MAX, NAMED, Named, kept_because, read_again, reason_of, shown, unknown_status,
    },
};

impl Postgres {
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
        let sql = formatcp!("SELECT {RUN} FROM run r WHERE r.id = ANY($1) ORDER BY r.id FOR UPDATE");
        let mut broken: Vec<Uuid> = Vec::new();
        for row in tx.rows(sql, &[&runs]).await? {
            let row = run_row(&row)?;
            if status::is_unknown(row.status) {
                self.notes.keep_unknown([row.id], true);
            } else if row.status < status::SET_ASIDE && row.run().is_err() {
                broken.push(row.id);
            }
        }
        let sql = "UPDATE run SET status = status + 100, holder = NULL, due_at = NULL WHERE id = ANY($1)";
        tx.pipe(&[(sql, &[&broken]), ("DELETE FROM notice WHERE run = ANY($1)", &[&broken])]).await?;
        tx.commit().await
    }
}

impl PostgresStore {
    pub(super) async fn rows_set_aside(&self) -> Result<Vec<UnreadableRow>, Fault> {
        let sql = formatcp!("SELECT {RUN} FROM run r WHERE r.status >= 100 ORDER BY r.id LIMIT $1");
        let mut found = Vec::new();
        for row in self.read(sql, &[&(LISTED_MAX as i64)]).await? {
            let row = run_row(&row)?;
            let key = row.id.to_string();
            found.push(UnreadableRow {
                table: unreadable::RUN.to_owned(),
                key,
                reason: reason_of(as_it_was(row).run()),
            });
        }
        let sql = "SELECT id FROM run WHERE id = ANY($1) AND status NOT BETWEEN 0 AND 6 AND status < 100 ORDER BY id";
        let rows = self.read(sql, &[&self.notes.unknown()]).await?;
        let unknown: Vec<Uuid> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        found.extend(unknown.iter().map(unknown_status));
        self.notes.keep_unknown(unknown, false);
        found.extend(self.notes.list());
        found.truncate(LISTED_MAX);
        Ok(found)
    }

    pub(super) async fn row_as_it_is(&self, table: &str, key: &str) -> Result<Option<Value>, Fault> {
        let Some(named) = named(table) else { return Ok(None) };
        let Some(key_parts) = params(named, key) else { return Ok(None) };
        let sql = format!("SELECT {}::text FROM {table} r WHERE {} LIMIT 1", columns_of(table), is_key(named));
        let rows = self.read(&sql, &as_params(&key_parts)).await?;
        let text: Option<String> = rows.first().map(|row| row.try_get(0)).transpose()?;
        if text.is_none() {
            self.notes.gone(named.table, key);
        }
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()).map(shown))
    }
}

/// The tables that only this store names so.
const OWN: &[Named] = &[
    Named { table: "pause", columns: &[("tenant", Kind::Number), ("queue", Kind::Text)] },
    Named { table: "rollup_delta", columns: &[("at", Kind::Number)] },
];

fn named(table: &str) -> Option<Named> {
    NAMED.iter().chain(OWN).find(|named| named.table == table).copied()
}

/// `r.a = $1 AND r.b = $2`, with numbers of any width.
fn is_key(named: Named) -> String {
    let column = |(n, (column, kind)): (usize, &(&str, Kind))| match kind {
        Kind::Number => format!("r.{column} = ${}::bigint", n + 1),
        Kind::Id | Kind::Text => format!("r.{column} = ${}", n + 1),
    };
    named.columns.iter().enumerate().map(column).collect::<Vec<_>>().join(" AND ")
}

/// The document of a job is in the row of its version.
fn columns_of(table: &str) -> &'static str {
    match table {
        "job" => {
            "(to_jsonb(r) || jsonb_build_object('document', \
               (SELECT v.document FROM job_version v WHERE v.job = r.id AND v.version = r.version)))"
        }
        _ => "to_jsonb(r)",
    }
}

/// The parts of a key; none where one is not of its column's type.
fn params(named: Named, key: &str) -> Option<Vec<Box<dyn ToSql + Sync + Send>>> {
    let param = |(part, (_, kind)): (KeyPart<'_>, &(&str, Kind))| -> Option<Box<dyn ToSql + Sync + Send>> {
        match (part, kind) {
            (KeyPart::Id(id), _) => Some(Box::new(id)),
            (KeyPart::Number(number), _) => Some(Box::new(number)),
            (KeyPart::Text(text), Kind::Text) => Some(Box::new(text.to_owned())),
            (KeyPart::Text(_), Kind::Id | Kind::Number) => None,
        }
    };
    named.parts(key)?.into_iter().zip(named.columns).map(param).collect()
}

fn as_params(parts: &[Box<dyn ToSql + Sync + Send>]) -> Vec<Param<'_>> {
    parts.iter().map(|part| -> Param<'_> { &**part }).collect()
}

/// A row as it was before it was set aside.
fn as_it_was(row: RunRow) -> RunRow {
    RunRow { status: row.status - status::SET_ASIDE, ..row }
}

#[async_trait]
impl UnreadableStore for PostgresStore {
    async fn unreadable(&self) -> Result<Vec<UnreadableRow>, StoreError> {
        self.set_aside().await;
        tried!("list rows that cannot be read", self.rows_set_aside())
    }

    fn note_definition(&self, table: &'static str, key: &str, broken: Option<&str>) {
        self.notes.note_definition(table, key, broken);
    }

    async fn raw_row(&self, table: &str, key: &str) -> Result<Option<serde_json::Value>, StoreError> {
        tried!("read a row as it is", self.row_as_it_is(table, key))
    }

    async fn discard_row(&self, table: &str, key: &str) -> Result<Discarded, StoreError> {
        if let Some(why) = kept_because(table) {
            return Ok(Discarded::Refused(why));
        }
        let Some(named) = named(table) else { return Ok(Discarded::NotFound) };
        let Some(key_parts) = params(named, key) else { return Ok(Discarded::NotFound) };
        let mut sql = format!("DELETE FROM {table} r WHERE {}", is_key(named));
        if table == unreadable::RUN {
            sql += " AND status NOT BETWEEN 0 AND 6";
        } else {
            read_again(self, table, &named.parts(key).unwrap_or_default()).await?;
            if !self.notes.is_noted(named.table, key) {
                return Ok(Discarded::NotFound);
            }
        }
        sql += " RETURNING 1";
        let delete = async { self.write_alone(&self.work, &sql, &as_params(&key_parts)).await };
        let gone = failpoint::named("discard a row", delete).await.map_err(|fault| fault.told("discard a row"))?;
        self.notes.gone(named.table, key);
        Ok(if gone.is_empty() { Discarded::NotFound } else { Discarded::Gone })
    }
}
