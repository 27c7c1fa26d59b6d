//! Reading rows, and the small conversions between the domain and SQLite.

use std::{ops::Deref, sync::LazyLock};

use rota_core::{run::Run, store::StoreError};
use rusqlite::{Connection, OptionalExtension, Params, Row, types::ValueRef};
use uuid::Uuid;

use super::failed;
use crate::{
    codec::{RunRow, status},
    unreadable,
};

/// The columns of [`RunRow`], in the order [`run_row`] reads them.
pub const RUN: &str = "run.id, run.tenant, run.job, run.version, run.lane, run.part, run.status, run.flags, \
     run.order_key, run.ready_at, run.created_at, run.expires_at, run.started_at, run.attempt, run.losses, run.fence, \
     run.source, run.schedule, run.planned_at, run.slot, run.slot_limit, run.parent, run.step, run.pending, \
     run.holder, run.due_at, run.payload, run.extra, run.cancel, run.first_started_at, run.item";

/// How many columns [`RUN`] has.
pub const RUN_LEN: usize = 31;

/// Where [`run_row`] has the status.
pub const STATUS: usize = 6;

pub fn run_row(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    Ok(RunRow {
        id: uuid_at(row, 0)?,
        tenant: row.get(1)?,
        job: row.get(2)?,
        version: row.get(3)?,
        lane: row.get(4)?,
        part: row.get(5)?,
        status: row.get(STATUS)?,
        flags: row.get(7)?,
        order_key: row.get(8)?,
        ready_at: row.get(9)?,
        created_at: row.get(10)?,
        expires_at: row.get(11)?,
        started_at: row.get(12)?,
        attempt: row.get(13)?,
        losses: row.get(14)?,
        fence: row.get(15)?,
        source: row.get(16)?,
        schedule: row.get(17)?,
        planned_at: row.get(18)?,
        slot: row.get(19)?,
        slot_limit: row.get(20)?,
        parent: uuid_opt(row, 21)?,
        step: row.get(22)?,
        pending: row.get(23)?,
        holder: uuid_opt(row, 24)?,
        due_at: row.get(25)?,
        payload: row.get(26)?,
        extra: row.get(27)?,
        cancel: row.get(28)?,
        first_started_at: row.get(29)?,
        item: row.get(30)?,
    })
}

/// Carries out one statement, and answers how many rows it changed.
pub fn change(connection: &Connection, sql: &str, values: impl Params) -> Result<usize, StoreError> {
    connection.prepare_cached(sql).and_then(|mut statement| statement.execute(values)).map_err(failed)
}

/// Whether a statement finds a row.
pub fn exists(connection: &Connection, sql: &str, values: impl Params) -> Result<bool, StoreError> {
    connection.prepare_cached(sql).and_then(|mut statement| statement.exists(values)).map_err(failed)
}

/// The first row that a statement finds.
pub fn first<T>(
    connection: &Connection,
    sql: &str,
    values: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, StoreError> {
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_row(values, read).optional())
        .map_err(failed)
}

/// All rows that a statement finds.
pub fn all<T>(
    connection: &Connection,
    sql: &str,
    values: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(failed)?;
    let rows = statement.query_map(values, read).map_err(failed)?;
    rows.collect::<Result<_, _>>().map_err(failed)
}

pub fn uuid_at(row: &Row<'_>, index: usize) -> rusqlite::Result<Uuid> {
    row.get::<_, [u8; 16]>(index).map(Uuid::from_bytes)
}

pub fn uuid_opt(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<Uuid>> {
    Ok(row.get::<_, Option<[u8; 16]>>(index)?.map(Uuid::from_bytes))
}

/// What a column holds, in text; for the key of a row that cannot be read.
pub fn text_at(row: &Row<'_>, index: usize) -> String {
    match row.get_ref(index) {
        Ok(ValueRef::Integer(number)) => number.to_string(),
        Ok(ValueRef::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        _ => "?".to_owned(),
    }
}

/// A live run, and its row.
#[derive(Clone)]
pub struct Live {
    pub row: RunRow,
    pub run: Run,
}

impl Deref for Live {
    type Target = RunRow;

    fn deref(&self) -> &RunRow {
        &self.row
    }
}

/// A live run; none where its row cannot be read, or was set aside for that.
pub fn live(row: &Row<'_>) -> Option<Live> {
    let read = || -> Result<Option<Live>, StoreError> {
        if row.get::<_, i16>(STATUS).map_err(failed)? >= status::SET_ASIDE {
            return Ok(None);
        }
        let row = run_row(row).map_err(failed)?;
        Ok(Some(Live { run: row.run()?, row }))
    };
    let key = || uuid_at(row, 0).map_or_else(|_| "?".to_owned(), |id| id.to_string());
    read().unwrap_or_else(|error| {
        unreadable::note(unreadable::RUN, key(), error);
        None
    })
}

/// Live runs that a query finds, at most `limit` of those that can be read and that
/// `keep` lets through; the query is not read further than needed.
pub fn live_rows(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    limit: usize,
    keep: impl Fn(&RunRow) -> bool,
) -> Result<Vec<Live>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(failed)?;
    let mut rows = statement.query(params).map_err(failed)?;
    let mut found = Vec::new();
    while found.len() < limit
        && let Some(row) = rows.next().map_err(failed)?
    {
        found.extend(live(row).filter(|live| keep(live)));
    }
    Ok(found)
}

static BY_ID: LazyLock<String> = LazyLock::new(|| select_run("WHERE run.id = ?1"));

pub fn live_row(connection: &Connection, id: Uuid) -> Result<Option<Live>, StoreError> {
    Ok(live_rows(connection, &BY_ID, [id.as_bytes()], 1, |_| true)?.pop())
}

/// `SELECT <run columns> FROM run <rest>`.
pub fn select_run(rest: &str) -> String {
    format!("SELECT {RUN} FROM run {rest}")
}

pub fn runs(found: Vec<Live>) -> Vec<Run> {
    found.into_iter().map(|live| live.run).collect()
}
