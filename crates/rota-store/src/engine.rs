//! What both databases do alike: rows of plain values, found and changed by statements.
//!
//! Whatever is no hot path is written once, in `nouns/`, over this. Each statement is one
//! text for both databases; where they need another one, the text alone differs
//! ([`Dialect`]), and neither what is decided nor how a row is read.
//!
//! Parameters are `$1`, `$2`, … in both. PostgreSQL takes the type of one from the place
//! where it is first used, so `column < $1 OR $1 IS NULL` works and the other order does
//! not.
//!
//! This knows nothing of runs that are on their way: what claims, settles or fires them is
//! written for each database by itself, as set-based as the database likes it.

use std::{borrow::Cow, ops::Deref};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    access::SecretDigest,
    ids::{AuditId, JobId, LaneId, NodeId, Partition, RunId, ScheduleId, TenantId, TokenId, UserId, WorkerId},
    store::{StoreError, Write},
};
use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::{
    codec::{corrupt, from_json, micros, time},
    unreadable::Notes,
};

/// A store in a database of the kind `E`.
pub struct SqlStore<E>(pub(crate) E);

impl<E> Deref for SqlStore<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.0
    }
}

/// Which connections a statement takes, and what goes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// With everything else.
    Work,
    /// Beside everything else: a heartbeat waits behind no bulk load.
    Leases,
    /// Behind everything else.
    Patient,
}

/// One statement and what is bound to it.
#[derive(Clone, Debug)]
pub struct Statement {
    pub sql: Cow<'static, str>,
    pub values: Vec<Value>,
}

/// A statement with its values.
pub fn bound(sql: impl Into<Cow<'static, str>>, values: Vec<Value>) -> Statement {
    Statement { sql: sql.into(), values }
}

/// One column of one row, or one parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Int(i64),
    Bool(bool),
    Text(String),
    Bytes(Vec<u8>),
    Uuid(Uuid),
    /// Lists, for [`Dialect::any`] and [`Dialect::any_id`].
    Ints(Vec<i64>),
    Texts(Vec<String>),
    Uuids(Vec<Uuid>),
    /// Something that no column of ours holds; only read.
    Strange(String),
}

/// The values of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$($crate::engine::Value::from($value)),*] };
}
pub(crate) use values;

macro_rules! from {
    ($($type:ty => |$value:ident| $made:expr),* $(,)?) => {$(
        impl From<$type> for Value {
            fn from($value: $type) -> Self {
                $made
            }
        }
    )*};
}

from! {
    i64 => |n| Self::Int(n),
    i32 => |n| Self::Int(n.into()),
    i16 => |n| Self::Int(n.into()),
    u16 => |n| Self::Int(n.into()),
    u32 => |n| Self::Int(n.into()),
    bool => |is| Self::Bool(is),
    String => |text| Self::Text(text),
    &String => |text| Self::Text(text.clone()),
    &str => |text| Self::Text(text.to_owned()),
    Vec<u8> => |bytes| Self::Bytes(bytes),
    Vec<i64> => |numbers| Self::Ints(numbers),
    Vec<String> => |texts| Self::Texts(texts),
    Vec<Uuid> => |ids| Self::Uuids(ids),
    Uuid => |id| Self::Uuid(id),
    Timestamp => |at| Self::Int(micros(at)),
    SecretDigest => |digest| Self::Bytes(digest.0.to_vec()),
    TenantId => |id| id.0.into(),
    LaneId => |id| id.0.into(),
    JobId => |id| id.0.into(),
    ScheduleId => |id| id.0.into(),
    Partition => |part| Self::Int(part.0.into()),
    RunId => |id| id.0.into(),
    NodeId => |id| id.0.into(),
    WorkerId => |id| id.0.into(),
    TokenId => |id| id.0.into(),
    UserId => |id| id.0.into(),
    AuditId => |id| id.0.into(),
}

impl<T> From<Option<T>> for Value
where
    Self: From<T>,
{
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Self::from)
    }
}

impl<'o> From<&'o Option<String>> for Value {
    fn from(value: &'o Option<String>) -> Self {
        value.as_deref().into()
    }
}

/// A row that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Row(pub Vec<Value>);

impl Row {
    fn at(&self, index: usize) -> &Value {
        self.0.get(index).unwrap_or(&Value::Null)
    }

    fn not(&self, index: usize, what: &str) -> StoreError {
        corrupt(what, format_args!("column {index} holds {:?}", self.at(index)))
    }

    pub fn is_null(&self, index: usize) -> bool {
        *self.at(index) == Value::Null
    }

    /// `read`, unless the column is null.
    pub fn opt<T>(
        &self,
        index: usize,
        read: impl FnOnce(&Self, usize) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        if self.is_null(index) { Ok(None) } else { read(self, index).map(Some) }
    }

    pub fn int<N: TryFrom<i64>>(&self, index: usize) -> Result<N, StoreError> {
        let found = match self.at(index) {
            Value::Int(number) => N::try_from(*number).ok(),
            _ => None,
        };
        found.ok_or_else(|| self.not(index, "a number"))
    }

    /// A number that counts; below zero it is none.
    pub fn count(&self, index: usize) -> Result<u64, StoreError> {
        self.int::<i64>(index).map(|count| count.max(0) as u64)
    }

    pub fn bool(&self, index: usize) -> Result<bool, StoreError> {
        match self.at(index) {
            Value::Bool(is) => Ok(*is),
            Value::Int(number) => Ok(*number != 0),
            _ => Err(self.not(index, "a truth")),
        }
    }

    pub fn str(&self, index: usize) -> Result<&str, StoreError> {
        match self.at(index) {
            Value::Text(text) => Ok(text),
            _ => Err(self.not(index, "a text")),
        }
    }

    /// A code where there is one: a number, also where a column of text holds it.
    pub fn code(&self, index: usize) -> Option<i16> {
        self.int(index).ok().or_else(|| self.str(index).ok()?.parse().ok())
    }

    pub fn text(&self, index: usize) -> Result<String, StoreError> {
        self.str(index).map(str::to_owned)
    }

    pub fn bytes(&self, index: usize) -> Result<&[u8], StoreError> {
        match self.at(index) {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(self.not(index, "bytes")),
        }
    }

    pub fn uuid(&self, index: usize) -> Result<Uuid, StoreError> {
        let found = match self.at(index) {
            Value::Uuid(id) => Some(*id),
            Value::Bytes(bytes) => Uuid::from_slice(bytes).ok(),
            _ => None,
        };
        found.ok_or_else(|| self.not(index, "an id"))
    }

    pub fn time(&self, index: usize) -> Result<Timestamp, StoreError> {
        time(self.int(index)?)
    }

    pub fn json<T: DeserializeOwned>(&self, index: usize) -> Result<T, StoreError> {
        from_json(self.str(index)?)
    }

    /// What a column holds, in text; for the key of a row that cannot be read.
    pub fn shown(&self, index: usize) -> String {
        match self.at(index) {
            Value::Int(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            Value::Uuid(id) => id.to_string(),
            Value::Bytes(bytes) => Uuid::from_slice(bytes).map_or_else(|_| "?".to_owned(), |id| id.to_string()),
            Value::Null | Value::Bool(_) | Value::Ints(_) | Value::Texts(_) | Value::Uuids(_) | Value::Strange(_) => {
                "?".to_owned()
            }
        }
    }
}

/// Where the two databases want another text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    pub const fn either(self, sqlite: &'static str, postgres: &'static str) -> &'static str {
        match self {
            Self::Sqlite => sqlite,
            Self::Postgres => postgres,
        }
    }

    /// The rows found stay as they are until the commit. SQLite has one writer.
    pub const fn for_update(self) -> &'static str {
        self.either("", " FOR UPDATE")
    }

    /// `column` is one of the numbers or texts of the `n`th parameter.
    pub fn any(self, column: &str, n: usize) -> String {
        match self {
            Self::Sqlite => format!("{column} IN (SELECT value FROM json_each(${n}))"),
            Self::Postgres => format!("{column} = ANY(${n})"),
        }
    }

    /// `column` is one of the ids of the `n`th parameter.
    pub fn any_id(self, column: &str, n: usize) -> String {
        match self {
            Self::Sqlite => format!("{column} IN {}", self.ids(n)),
            Self::Postgres => self.any(column, n),
        }
    }

    /// The ids of the `n`th parameter as rows with one column.
    pub fn ids(self, n: usize) -> String {
        match self {
            Self::Sqlite => format!("(SELECT unhex(value) AS id FROM json_each(${n}))"),
            Self::Postgres => format!("(SELECT unnest(${n}::uuid[]) AS id)"),
        }
    }

    /// A column is false; as the indexes of SQLite say it.
    pub fn not(self, column: &str) -> String {
        match self {
            Self::Sqlite => format!("{column} = 0"),
            Self::Postgres => format!("NOT {column}"),
        }
    }
}

/// What each of some statements answers.
pub type Answers = Result<Vec<Vec<Row>>, StoreError>;

/// A database.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    const DIALECT: Dialect;

    /// Where rows are noted that cannot be read.
    fn notes(&self) -> &Notes;

    /// What each statement finds.
    async fn find_all(&self, way: Way, what: &'static str, statements: Vec<Statement>) -> Answers;

    /// Carries out statements in one transaction, each write the same however often it is
    /// made, and answers what they return.
    async fn change_all(&self, way: Way, what: &'static str, statements: Vec<Statement>) -> Answers;

    /// Looks, decides by what it found, and makes the changes, in one transaction.
    async fn decide_all<T: Send + 'static>(
        &self,
        way: Way,
        what: &'static str,
        look: Vec<Statement>,
        decide: impl Decide<T>,
    ) -> Result<T, StoreError>;

    /// The same under the name of a batch: asked again, it answers as it did.
    async fn decide_once<T: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        write: &Write,
        what: &'static str,
        look: Vec<Statement>,
        decide: impl Decide<T>,
    ) -> Result<T, StoreError>;
}

/// What is to be changed, and answered, by what was found. It may be asked more than once.
pub trait Decide<T>:
    Fn(&Notes, &[Vec<Row>]) -> Result<(Vec<Statement>, T), StoreError> + Send + Sync + 'static
{
}

impl<T, F: Fn(&Notes, &[Vec<Row>]) -> Result<(Vec<Statement>, T), StoreError> + Send + Sync + 'static> Decide<T> for F {}

impl<E: Engine> SqlStore<E> {
    /// What one statement finds.
    pub(crate) async fn find(
        &self,
        what: &'static str,
        sql: impl Into<Cow<'static, str>> + Send,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, StoreError> {
        let mut found = self.0.find_all(Way::Work, what, vec![bound(sql, values)]).await?;
        Ok(found.pop().unwrap_or_default())
    }

    /// What one statement finds for each of these values.
    pub(crate) async fn find_each(
        &self,
        what: &'static str,
        sql: impl Into<Cow<'static, str>> + Send,
        each: Vec<Vec<Value>>,
    ) -> Answers {
        let sql = sql.into();
        self.0.find_all(Way::Work, what, each.into_iter().map(|values| bound(sql.clone(), values)).collect()).await
    }

    /// Carries out one statement for each of these values, in one transaction.
    pub(crate) async fn change_each(
        &self,
        way: Way,
        what: &'static str,
        sql: impl Into<Cow<'static, str>> + Send,
        each: Vec<Vec<Value>>,
    ) -> Answers {
        let sql = sql.into();
        self.0.change_all(way, what, each.into_iter().map(|values| bound(sql.clone(), values)).collect()).await
    }

    /// The same, with the rows taken in the order of their keys: two that change the same
    /// ones do not wait for each other crosswise. Answers in the order asked.
    pub(crate) async fn change_in_order<K: Ord + Send>(
        &self,
        way: Way,
        what: &'static str,
        sql: impl Into<Cow<'static, str>> + Send,
        each: Vec<(K, Vec<Value>)>,
    ) -> Answers {
        let mut each: Vec<(usize, (K, Vec<Value>))> = each.into_iter().enumerate().collect();
        each.sort_by(|(_, (one, _)), (_, (other, _))| one.cmp(other));
        let (places, values): (Vec<usize>, Vec<Vec<Value>>) = each.into_iter().map(|(n, (_, row))| (n, row)).unzip();
        let mut answers: Vec<(usize, Vec<Row>)> =
            places.into_iter().zip(self.change_each(way, what, sql, values).await?).collect();
        answers.sort_unstable_by_key(|(n, _)| *n);
        Ok(answers.into_iter().map(|(_, rows)| rows).collect())
    }

    /// What was read of a row; none where it cannot be, which is noted.
    pub(crate) fn readable<T>(
        &self,
        table: &'static str,
        key: impl std::fmt::Display,
        read: Result<T, StoreError>,
    ) -> Option<T> {
        self.0.notes().readable(table, key, read)
    }
}

/// Cuts what was read, one row more than asked for, to a page; true where more follow.
pub fn cut(rows: &mut Vec<Row>, limit: usize) -> bool {
    let more = rows.len() > limit;
    rows.truncate(limit);
    more
}

/// Whether each statement found or changed a row.
pub fn applied(answers: &[Vec<Row>]) -> Vec<rota_core::store::Guarded> {
    use rota_core::store::Guarded::{Applied, Stale};
    answers.iter().map(|rows| if rows.is_empty() { Stale } else { Applied }).collect()
}
