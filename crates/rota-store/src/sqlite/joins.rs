//! Mending joins: a run that waits for others which are gone is counted down.

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::{
    ids::RunId,
    store::{JoinStore, StoreError, Write},
};
use rusqlite::{Connection, Row};
use uuid::Uuid;

use super::{SqliteStore, apply::Work, failed, rows::uuid_at, writer::Urgency};
use crate::codec::sql::NEEDS;

/// Runs that are waited for and not there. Who ends takes its ties along, so
/// there are none.
const GONE: &str = "SELECT DISTINCT needed FROM need \
     WHERE NOT EXISTS (SELECT 1 FROM run WHERE run.id = need.needed) LIMIT 1000";

/// Runs that wait for more than they are tied to, and for how many more.
const UNTIED: &str = formatcp!(
    "SELECT run.id, run.pending - coalesce(n.ties, 0) FROM run \
     LEFT JOIN (SELECT waiter, count(*) AS ties FROM need GROUP BY waiter) n ON n.waiter = run.id \
     WHERE run.status = {NEEDS} AND run.pending > coalesce(n.ties, 0) LIMIT 1000"
);

fn mend(connection: &Connection, write: &Write) -> Result<u32, StoreError> {
    let gone = list(connection, GONE, |row| uuid_at(row, 0))?;
    let untied: Vec<(Uuid, u32)> = list(connection, UNTIED, |row| Ok((uuid_at(row, 0)?, row.get(1)?)))?;
    let mut work = Work::new(connection, write);
    for needed in &gone {
        work.join(RunId(*needed))?;
    }
    for (waiter, more) in &untied {
        work.count_down(RunId(*waiter), *more)?;
    }
    work.done_unnamed()?;
    Ok((gone.len() + untied.len()) as u32)
}

fn list<T>(
    connection: &Connection,
    sql: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    select.query_map([], read).and_then(Iterator::collect).map_err(failed)
}

#[async_trait]
impl JoinStore for SqliteStore {
    async fn mend_joins(&self, write: &Write) -> Result<u32, StoreError> {
        let write = write.clone();
        self.writer.write("mend joins", Urgency::Patient, move |connection| mend(connection, &write)).await
    }
}
