//! Statements that both databases share, carried out on PostgreSQL.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::BytesMut;
use futures_util::future::try_join_all;
use rota_core::store::{Store, StoreError, Write};
use serde::{Serialize, de::DeserializeOwned};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

use super::{
    Connections, Postgres, PostgresStore,
    fault::Fault,
    once::Once,
    tx::{Bound, Ending, Param, Tx},
};
use crate::{
    engine::{Answers, Decide, Dialect, Engine, Row, Statement, Value, Way},
    kept,
    unreadable::Notes,
};

impl Store for PostgresStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }
}

#[async_trait]
impl Engine for Postgres {
    const DIALECT: Dialect = Dialect::Postgres;

    fn notes(&self) -> &Notes {
        &self.notes
    }

    async fn find_all(&self, way: Way, what: &'static str, statements: Vec<Statement>) -> Answers {
        tried!(what, found(self.connections(way), &statements))
    }

    async fn change_all(&self, way: Way, what: &'static str, statements: Vec<Statement>) -> Answers {
        tried!(what, changed(self.connections(way), &statements))
    }

    async fn decide_all<T: Send + 'static>(
        &self,
        way: Way,
        what: &'static str,
        look: Vec<Statement>,
        decide: impl Decide<T>,
    ) -> Result<T, StoreError> {
        tried!(what, async {
            let tx = Tx::on(self.connections(way)).await?;
            let (changes, answer) = decide(&tx.notes, &flight(&tx, &look).await?)?;
            flight(&tx, &changes).await?;
            tx.commit().await?;
            Ok(answer)
        })
    }

    async fn decide_once<T: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        write: &Write,
        what: &'static str,
        look: Vec<Statement>,
        decide: impl Decide<T>,
    ) -> Result<T, StoreError> {
        let (look, decide) = (&look, &decide);
        let work = move |tx: Arc<Tx>| async move {
            let (changes, answer) = decide(&tx.notes, &flight(&tx, look).await?)?;
            flight(&tx, &changes).await?;
            let ending = Ending { answer: kept::json(&answer)?, idle: changes.is_empty(), ..Ending::default() };
            Ok((answer, ending))
        };
        match self.once(write, what, work).await? {
            Once::New(answer, _) => Ok(answer),
            Once::Known(kept) => kept::json_again(kept.as_deref()),
        }
    }
}

/// Statements of a transaction, all in one flight.
async fn flight(tx: &Tx, statements: &[Statement]) -> Result<Vec<Vec<Row>>, Fault> {
    let params: Vec<Vec<Param<'_>>> = statements.iter().map(params).collect();
    let bound: Vec<Bound<'_>> =
        statements.iter().zip(&params).map(|(statement, params)| (&*statement.sql, &params[..])).collect();
    let answers = tx.pipe(&bound).await?;
    answers.into_iter().map(|rows| rows.iter().map(row).collect()).collect()
}

impl Postgres {
    fn connections(&self, way: Way) -> &Connections {
        match way {
            Way::Leases => &self.leases,
            Way::Work | Way::Patient => &self.work,
        }
    }
}

/// All in one flight, outside any transaction.
async fn found(pool: &Connections, statements: &[Statement]) -> Result<Vec<Vec<Row>>, Fault> {
    if statements.is_empty() {
        return Ok(Vec::new());
    }
    let line = pool.get().await?;
    let mut prepared = Vec::with_capacity(statements.len());
    for Statement { sql, .. } in statements {
        prepared.push(line.prepare(sql).await?);
    }
    let params: Vec<Vec<Param<'_>>> = statements.iter().map(params).collect();
    let asked = prepared.iter().zip(&params).map(|(statement, params)| line.query(statement, params));
    let answers = line.within(try_join_all(asked)).await??;
    answers.into_iter().map(|rows| rows.iter().map(row).collect()).collect()
}

/// All in one flight, with its commit.
async fn changed(pool: &Connections, statements: &[Statement]) -> Result<Vec<Vec<Row>>, Fault> {
    if statements.is_empty() {
        return Ok(Vec::new());
    }
    let params: Vec<Vec<Param<'_>>> = statements.iter().map(params).collect();
    let bound: Vec<Bound<'_>> =
        statements.iter().zip(&params).map(|(statement, params)| (&*statement.sql, &params[..])).collect();
    let answers = Tx::on(pool).await?.commit_with(&bound).await?;
    answers.into_iter().map(|rows| rows.iter().map(row).collect()).collect()
}

fn params(statement: &Statement) -> Vec<Param<'_>> {
    statement.values.iter().map(|value| -> Param<'_> { value }).collect()
}

fn row(row: &tokio_postgres::Row) -> Result<Row, Fault> {
    let cells = (0..row.len()).map(|column| row.try_get(column));
    Ok(Row(cells.collect::<Result<_, _>>()?))
}

impl<'r> FromSql<'r> for Value {
    fn from_sql(ty: &Type, raw: &'r [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(match *ty {
            Type::BOOL => Self::Bool(bool::from_sql(ty, raw)?),
            Type::INT2 => Self::Int(i16::from_sql(ty, raw)?.into()),
            Type::INT4 => Self::Int(i32::from_sql(ty, raw)?.into()),
            Type::INT8 => Self::Int(i64::from_sql(ty, raw)?),
            Type::TEXT => Self::Text(String::from_sql(ty, raw)?),
            Type::BYTEA => Self::Bytes(raw.to_vec()),
            Type::UUID => Self::Uuid(Uuid::from_sql(ty, raw)?),
            _ => Self::Strange(ty.to_string()),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self::Null)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

impl ToSql for Value {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null | Self::Strange(_) => Ok(IsNull::Yes),
            Self::Int(number) => match *ty {
                Type::INT2 => i16::try_from(*number)?.to_sql(ty, out),
                Type::INT4 => i32::try_from(*number)?.to_sql(ty, out),
                _ => number.to_sql(ty, out),
            },
            Self::Bool(is) => is.to_sql(ty, out),
            Self::Text(text) => text.to_sql(ty, out),
            Self::Bytes(bytes) => bytes.to_sql(ty, out),
            Self::Uuid(id) => id.to_sql(ty, out),
            Self::Ints(numbers) => match *ty {
                Type::INT2_ARRAY => {
                    let numbers: Vec<i16> = numbers.iter().copied().map(i16::try_from).collect::<Result<_, _>>()?;
                    numbers.to_sql(ty, out)
                }
                Type::INT4_ARRAY => {
                    let numbers: Vec<i32> = numbers.iter().copied().map(i32::try_from).collect::<Result<_, _>>()?;
                    numbers.to_sql(ty, out)
                }
                _ => numbers.to_sql(ty, out),
            },
            Self::Texts(texts) => texts.to_sql(ty, out),
            Self::Uuids(ids) => ids.to_sql(ty, out),
        }
    }

    /// That of its place in the statement: what does not fit is refused by the server.
    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
