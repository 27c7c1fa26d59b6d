//! Rows that cannot be read: set aside, listed, shown, discarded.

use rota_core::store::{Guarded, StoreError, UnreadableRow};
use rusqlite::{Connection, OptionalExtension, params, types::ValueRef};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    SqliteStore, failed, history,
    rows::{run_row, select_run},
    writer::Urgency,
};
use crate::{
    codec::{RunRow, status},
    unreadable::{HISTORY, LISTED_MAX, Notes, RUN, reason_of, unknown_status},
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
        let sql = "UPDATE run SET status = CASE WHEN status BETWEEN 0 AND 6 THEN status + 100 ELSE 199 END, \
             holder = NULL, due_at = NULL WHERE id = ?1";
        for sql in [sql, "DELETE FROM notice WHERE run = ?1"] {
            connection.prepare_cached(sql).and_then(|mut set| set.execute([id.as_bytes()])).map_err(failed)?;
        }
    }
    Ok(())
}

/// What is to be done about a live run.
enum Standing {
    /// It can be read, is set aside already, or is gone.
    Fine,
    /// Its status is unknown.
    Unknown,
    Broken,
}

fn standing(connection: &Connection, id: Uuid) -> Result<Standing, StoreError> {
    let sql = select_run("WHERE run.id = ?1");
    let read = connection
        .prepare_cached(&sql)
        .and_then(|mut select| select.query_row([id.as_bytes()], |row| Ok(run_row(row))).optional())
        .map_err(failed)?;
    Ok(match read {
        Some(Err(_)) => Standing::Broken,
        Some(Ok(row)) if status::is_unknown(row.status) => Standing::Unknown,
        Some(Ok(row)) if row.status < status::SET_ASIDE && row.run().is_err() => Standing::Broken,
        None | Some(Ok(_)) => Standing::Fine,
    })
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

impl SqliteStore {
    pub(super) async fn do_unreadable(&self) -> Result<Vec<UnreadableRow>, StoreError> {
        let unknown = self.notes.unknown();
        let read =
            move |connection: &Connection| Ok((set_aside_runs(connection)?, still_unknown(connection, &unknown)?));
        let (mut found, unknown) = self.read("list rows that cannot be read", read).await?;
        found.extend(unknown.iter().map(unknown_status));
        self.notes.keep_unknown(unknown, false);
        found.extend(self.notes.list());
        found.truncate(LISTED_MAX);
        Ok(found)
    }

    pub(super) async fn do_raw_row(&self, table: &str, key: &str) -> Result<Option<Value>, StoreError> {
        let (table, key) = (table.to_owned(), key.to_owned());
        self.read("read a row as it is", move |connection| match place(connection, &table, &key)? {
            Some((table, seq)) => raw(connection, &format!("SELECT * FROM {table} WHERE {seq} = ?1"), &key),
            None => Ok(None),
        })
        .await
    }

    pub(super) async fn do_discard_row(&self, table: &str, key: &str) -> Result<Guarded, StoreError> {
        if table != RUN {
            return Ok(Guarded::Stale);
        }
        let Ok(id) = key.parse::<Uuid>() else { return Ok(Guarded::Stale) };
        self.writer
            .write("discard a row", Urgency::Prompt, move |connection| {
                let gone = connection
                    .prepare_cached("DELETE FROM run WHERE id = ?1 AND status > 6")
                    .and_then(|mut delete| delete.execute([id.as_bytes()]))
                    .map_err(failed)?;
                Ok(if gone == 1 { Guarded::Applied } else { Guarded::Stale })
            })
            .await
    }
}

/// The table that holds a row, and the column of its key; none where there is no such row.
fn place(connection: &Connection, table: &str, key: &str) -> Result<Option<(String, &'static str)>, StoreError> {
    Ok(match table {
        "run" | "job" | "schedule" | "lane" | "tenant" | "inbox" => Some((table.to_owned(), "id")),
        HISTORY => {
            let Ok(id) = key.parse::<Uuid>() else { return Ok(None) };
            history::table_of(connection, id)?.map(|table| (table, "id"))
        }
        _ => None,
    })
}

/// A row's columns by name; ids in text, and other bytes as their number.
fn raw(connection: &Connection, sql: &str, key: &str) -> Result<Option<Value>, StoreError> {
    let mut select = connection.prepare(sql).map_err(failed)?;
    let names: Vec<String> = select.column_names().map(ToOwned::to_owned).collect();
    let mut rows = match (key.parse::<Uuid>(), key.parse::<i64>()) {
        (Ok(id), _) => select.query(params![id.as_bytes()]),
        (_, Ok(number)) => select.query(params![number]),
        _ => return Ok(None),
    }
    .map_err(failed)?;
    let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
    let mut columns = Map::new();
    for (n, name) in names.into_iter().enumerate() {
        columns.insert(name, plain(row.get_ref(n).map_err(failed)?));
    }
    Ok(Some(Value::Object(columns)))
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
