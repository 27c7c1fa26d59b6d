//! Statements that both databases share, carried out on SQLite.

use std::sync::Arc;

use async_trait::async_trait;
use rota_core::store::{Store, StoreError, Write};
use rusqlite::{
    Connection, ToSql,
    types::{ToSqlOutput, ValueRef},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{Sqlite, SqliteStore, failed, once::once, writer::Urgency};
use crate::{
    codec::{corrupt, without_nul},
    engine::{Answers, Decide, Dialect, Engine, Row, Statement, Value, Way},
    kept,
    unreadable::Notes,
};

impl Store for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }
}

#[async_trait]
impl Engine for Sqlite {
    const DIALECT: Dialect = Dialect::Sqlite;

    fn notes(&self) -> &Notes {
        &self.notes
    }

    async fn find_all(&self, _: Way, what: &'static str, statements: Vec<Statement>) -> Answers {
        self.read(what, move |connection| carry_out(connection, &statements)).await
    }

    async fn change_all(&self, way: Way, what: &'static str, statements: Vec<Statement>) -> Answers {
        check_texts(what, &statements)?;
        let urgency = match way {
            Way::Work | Way::Leases => Urgency::Prompt,
            Way::Patient => Urgency::Patient,
        };
        self.writer.write(what, urgency, move |connection| carry_out(connection, &statements)).await
    }

    async fn decide_all<T: Send + 'static>(
        &self,
        _: Way,
        what: &'static str,
        look: Vec<Statement>,
        decide: impl Decide<T>,
    ) -> Result<T, StoreError> {
        let notes = Arc::clone(&self.notes);
        let work = move |connection: &Connection| decided(connection, what, &look, &notes, &decide);
        self.writer.write(what, Urgency::Prompt, work).await
    }

    async fn decide_once<T: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        write: &Write,
        what: &'static str,
        look: Vec<Statement>,
        decide: impl Decide<T>,
    ) -> Result<T, StoreError> {
        let (write, notes) = (write.clone(), Arc::clone(&self.notes));
        let work = move |connection: &Connection| {
            let work = |connection: &Connection| decided(connection, what, &look, &notes, &decide);
            once(connection, &write, kept::json, |_, kept| kept::json_again(kept), work)
        };
        self.writer.write(what, Urgency::Prompt, work).await
    }
}

fn decided<T>(
    connection: &Connection,
    what: &'static str,
    look: &[Statement],
    notes: &Notes,
    decide: &impl Decide<T>,
) -> Result<T, StoreError> {
    let (changes, answer) = decide(notes, &carry_out(connection, look)?)?;
    check_texts(what, &changes)?;
    carry_out(connection, &changes)?;
    Ok(answer)
}

fn check_texts(what: &'static str, statements: &[Statement]) -> Result<(), StoreError> {
    let texts = statements.iter().flat_map(|statement| &statement.values).filter_map(|value| match value {
        Value::Text(text) => Some(text.as_str()),
        _ => None,
    });
    without_nul(what, texts)
}

fn carry_out(connection: &Connection, statements: &[Statement]) -> Result<Vec<Vec<Row>>, StoreError> {
    statements.iter().map(|statement| rows(connection, statement)).collect()
}

/// What one statement answers. SQLite numbers `$2`, `$1` in the order of their first use, so
/// they are bound by what they are called.
fn rows(connection: &Connection, statement: &Statement) -> Result<Vec<Row>, StoreError> {
    let mut prepared = connection.prepare_cached(&statement.sql).map_err(failed)?;
    for place in 1..=prepared.parameter_count() {
        let number = prepared.parameter_name(place).and_then(|name| name[1..].parse::<usize>().ok());
        let value = number.and_then(|number| statement.values.get(number.wrapping_sub(1)));
        let value = value.ok_or_else(|| corrupt("a statement without its values", &statement.sql))?;
        prepared.raw_bind_parameter(place, value).map_err(failed)?;
    }
    let columns = prepared.column_count();
    let mut found = prepared.raw_query();
    let mut rows = Vec::new();
    while let Some(row) = found.next().map_err(failed)? {
        let cells = (0..columns).map(|column| row.get_ref(column).map(value)).collect::<Result<_, _>>();
        rows.push(Row(cells.map_err(failed)?));
    }
    Ok(rows)
}

fn value(cell: ValueRef<'_>) -> Value {
    match cell {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Real(number) => Value::Strange(number.to_string()),
        ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Value::Text(text.to_owned()),
            Err(error) => Value::Strange(error.to_string()),
        },
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    }
}

/// A list as `json_each` takes it.
fn json<T: Serialize>(list: &[T]) -> rusqlite::Result<ToSqlOutput<'static>> {
    let text = serde_json::to_string(list).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    Ok(text.into())
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Null | Self::Strange(_) => Ok(rusqlite::types::Null.into()),
            Self::Int(number) => number.to_sql(),
            Self::Bool(is) => is.to_sql(),
            Self::Text(text) => text.to_sql(),
            Self::Bytes(bytes) => bytes.to_sql(),
            Self::Uuid(id) => Ok(id.as_bytes().as_slice().into()),
            Self::Ints(numbers) => json(numbers),
            Self::Texts(texts) => json(texts),
            Self::Uuids(ids) => json(&ids.iter().map(|id| id.simple().to_string()).collect::<Vec<_>>()),
        }
    }
}
