//! Rows that cannot be read: set aside, listed, shown, discarded.

use async_trait::async_trait;
use rota_core::store::{Discarded, StoreError, UnreadableRow, UnreadableStore};
use rusqlite::{
    Connection, Row, params_from_iter,
    types::{self, ValueRef},
};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    SqliteStore, failed, history,
    rows::{STATUS, change, first, run_row, select_run},
    writer::Urgency,
};
use crate::{
    codec::{RunRow, status},
    unreadable::{
        HISTORY, KeyPart, Kind, LISTED_MAX, NAMED, Named, Notes, RUN, kept_because, read_again, reason_of, shown,
        unknown_status,
    },
};

/// Takes live runs that cannot be read out of everybody's way. One of an unknown status is
/// in nobody's way and stays as it is.
pub fn set_aside(connection: &Connection, notes: &Notes, runs: &[Uuid]) -> Result<(), StoreError> {
    for id in runs {
        match standing(connection, *id)? {
            Standing::Fine => continue,
            Standing::Unknown => {
                notes.keep_unknown([*id], true);
                continue;
            }
            Standing::Broken => {}
        }
        let sql = "UPDATE run SET status = status + 100, holder = NULL, due_at = NULL WHERE id = ?1";
        for sql in [sql, "DELETE FROM notice WHERE run = ?1"] {
            change(connection, sql, [id.as_bytes()])?;
        }
    }
    Ok(())
}

/// What is to be done about a live run.
enum Standing {
    /// It can be read, is set aside already, or is gone.
    Fine,
    /// Its status is unknown, or is not even a number.
    Unknown,
    Broken,
}

fn standing(connection: &Connection, id: Uuid) -> Result<Standing, StoreError> {
    let sql = select_run("WHERE run.id = ?1");
    let judge = |row: &Row<'_>| match row.get(STATUS) {
        Ok(code) if code >= status::SET_ASIDE => Standing::Fine,
        Ok(code) if !status::is_unknown(code) => match run_row(row).map_err(failed).and_then(|row| row.run()) {
            Ok(_) => Standing::Fine,
            Err(_) => Standing::Broken,
        },
        Ok(_) | Err(_) => Standing::Unknown,
    };
    let found = first(connection, &sql, [id.as_bytes()], |row| Ok(judge(row)))?;
    Ok(found.unwrap_or(Standing::Fine))
}

/// Those of these live runs that still have an unknown status.
fn still_unknown(connection: &Connection, runs: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
    let mut unknown = Vec::new();
    for id in runs {
        if matches!(standing(connection, *id)?, Standing::Unknown) {
            unknown.push(*id);
        }
    }
    Ok(unknown)
}

/// The live runs that are set aside, and what cannot be read in each.
fn set_aside_runs(connection: &Connection) -> Result<Vec<UnreadableRow>, StoreError> {
    let sql = select_run("WHERE run.status >= 100 ORDER BY run.id LIMIT ?1");
    let mut select = connection.prepare_cached(&sql).map_err(failed)?;
    let mut rows = select.query([LISTED_MAX as i64]).map_err(failed)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let key = super::rows::uuid_at(row, 0).map_or_else(|_| "?".to_owned(), |id| id.to_string());
        let reason = reason_of(run_row(row).map_err(failed).and_then(|row| as_it_was(row).run()));
        found.push(UnreadableRow { table: RUN.to_owned(), key, reason });
    }
    Ok(found)
}

/// A row as it was before it was set aside.
fn as_it_was(row: RunRow) -> RunRow {
    RunRow { status: row.status - status::SET_ASIDE, ..row }
}

/// The tables that only this store names so.
const OWN: &[Named] = &[
    Named { table: "pause", columns: &[("target", Kind::Text)] },
    Named { table: "rollup_delta", columns: &[("id", Kind::Number)] },
];

fn named(table: &str) -> Option<Named> {
    NAMED.iter().chain(OWN).find(|named| named.table == table).copied()
}

/// `a = ?1 AND b = ?2`.
fn is_key(named: Named) -> String {
    let columns = named.columns.iter().enumerate();
    columns.map(|(n, (column, _))| format!("{column} = ?{}", n + 1)).collect::<Vec<_>>().join(" AND ")
}

fn value(part: &KeyPart<'_>) -> types::Value {
    match part {
        KeyPart::Id(id) => types::Value::Blob(id.as_bytes().to_vec()),
        KeyPart::Number(number) => types::Value::Integer(*number),
        KeyPart::Text(text) => types::Value::Text((*text).to_owned()),
    }
}

/// A row's columns by name; ids in text, and other bytes as their number.
fn raw(connection: &Connection, named: Named, key: &str) -> Result<Option<Value>, StoreError> {
    let Some(parts) = named.parts(key) else { return Ok(None) };
    let table = match (named.table, &parts[0]) {
        (HISTORY, KeyPart::Id(id)) => history::table_of(connection, *id)?,
        (HISTORY, _) => None,
        (table, _) => Some(table.to_owned()),
    };
    let Some(table) = table else { return Ok(None) };
    let sql = format!("SELECT * FROM {table} WHERE {}", is_key(named));
    let mut select = connection.prepare(&sql).map_err(failed)?;
    let headings: Vec<String> = select.column_names().map(ToOwned::to_owned).collect();
    let mut rows = select.query(params_from_iter(parts.iter().map(value))).map_err(failed)?;
    let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
    let mut columns = Map::new();
    for (n, name) in headings.into_iter().enumerate() {
        columns.insert(name, plain(row.get_ref(n).map_err(failed)?));
    }
    Ok(Some(shown(Value::Object(columns))))
}

fn plain(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => {
            Uuid::from_slice(bytes).map_or_else(|_| format!("{} bytes", bytes.len()).into(), |id| id.to_string().into())
        }
    }
}

#[async_trait]
impl UnreadableStore for SqliteStore {
    async fn unreadable(&self) -> Result<Vec<UnreadableRow>, StoreError> {
        let unknown = self.notes.unknown();
        let read =
            move |connection: &Connection| Ok((set_aside_runs(connection)?, still_unknown(connection, &unknown)?));
        let (mut found, unknown) = self.read("list rows that cannot be read", read).await?;
        // What is not a number sorts behind all numbers, and so among those that are set aside.
        let is_new = |row: &UnreadableRow| found.iter().all(|known| known.key != row.key);
        let more: Vec<UnreadableRow> = unknown.iter().map(unknown_status).filter(is_new).collect();
        found.extend(more);
        self.notes.keep_unknown(unknown, false);
        found.extend(self.notes.list());
        found.truncate(LISTED_MAX);
        Ok(found)
    }

    fn note_definition(&self, table: &'static str, key: &str, broken: Option<&str>) {
        self.notes.note_definition(table, key, broken);
    }

    async fn raw_row(&self, table: &str, key: &str) -> Result<Option<serde_json::Value>, StoreError> {
        let Some(named) = named(table) else { return Ok(None) };
        let for_read = key.to_owned();
        let found = self.read("read a row as it is", move |connection| raw(connection, named, &for_read)).await?;
        if found.is_none() {
            self.notes.gone(named.table, key);
        }
        Ok(found)
    }

    async fn discard_row(&self, table: &str, key: &str) -> Result<Discarded, StoreError> {
        if let Some(why) = kept_because(table) {
            return Ok(Discarded::Refused(why));
        }
        let Some(named) = named(table) else { return Ok(Discarded::NotFound) };
        let Some(parts) = named.parts(key) else { return Ok(Discarded::NotFound) };
        let mut sql = format!("DELETE FROM {table} WHERE {}", is_key(named));
        if table == RUN {
            sql += " AND status NOT BETWEEN 0 AND 6";
        } else {
            read_again(self, table, &parts).await?;
            if !self.notes.is_noted(named.table, key) {
                return Ok(Discarded::NotFound);
            }
        }
        let for_write = key.to_owned();
        let gone = self
            .writer
            .write("discard a row", Urgency::Prompt, move |connection| {
                let parts = named.parts(&for_write).unwrap_or_default();
                change(connection, &sql, params_from_iter(parts.iter().map(value)))
            })
            .await?;
        self.notes.gone(named.table, key);
        Ok(if gone > 0 { Discarded::Gone } else { Discarded::NotFound })
    }
}
