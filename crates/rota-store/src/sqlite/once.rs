//! Each write once: a batch that was applied is answered as it was then.
//!
//! The batch's row commits with its effects. Asked again, the store finds the
//! row and restores the answer; a plain answer is stored as nothing. A request
//! key does the same for a caller's own caller, for as long as the key lives.
//!
//! A dry run does the work in a savepoint and goes back to it: the answer is the real
//! one, and nothing is left of it, its batch's row included.

use jiff::Timestamp;
use rota_core::store::{Request, StoreError, Write};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    failed,
    rows::{change, first},
};
use crate::{codec::micros, kept::Kept};

/// Runs `work` unless this write was applied before; then `restore` makes its
/// answer from what `store` kept of it.
pub fn once<T>(
    connection: &Connection,
    write: &Write,
    store: impl FnOnce(&T) -> Result<Kept, StoreError>,
    restore: impl FnOnce(&Connection, Option<&[u8]>) -> Result<T, StoreError>,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    if write.dry_run {
        return undone(connection, work);
    }
    if let Some(request) = &write.request
        && let Some(kept) = known_request(connection, request, write.now)?
    {
        return restore(connection, kept.as_deref());
    }
    if let Some(kept) = known_batch(connection, write)? {
        return restore(connection, kept.as_deref());
    }
    let answer = work(connection)?;
    let kept = store(&answer)?;
    change(
        connection,
        "INSERT INTO batch (id, at, answer) VALUES (?1, ?2, ?3)",
        params![write.batch.0.as_bytes(), micros(write.now), kept],
    )?;
    if let Some(request) = &write.request {
        remember_request(connection, request, kept.as_deref())?;
    }
    Ok(answer)
}

/// Runs `work` and undoes it.
fn undone<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    connection.execute_batch("SAVEPOINT dry_run").map_err(failed)?;
    let answer = work(connection);
    connection.execute_batch("ROLLBACK TO dry_run; RELEASE dry_run").map_err(failed)?;
    answer
}

/// An answer, be it stored as bytes or as text.
fn kept_at(row: &Row<'_>, index: usize) -> rusqlite::Result<Kept> {
    Ok(row.get_ref(index)?.as_bytes_or_null()?.map(<[u8]>::to_vec))
}

fn known_batch(connection: &Connection, write: &Write) -> Result<Option<Kept>, StoreError> {
    first(connection, "SELECT answer FROM batch WHERE id = ?1", [write.batch.0.as_bytes()], |row| kept_at(row, 0))
}

pub fn known_request(connection: &Connection, request: &Request, now: Timestamp) -> Result<Option<Kept>, StoreError> {
    let sql = "SELECT fingerprint, answer FROM request WHERE tenant = ?1 AND key = ?2 AND expires_at > ?3";
    let found: Option<([u8; 32], Kept)> = connection
        .prepare_cached(sql)
        .and_then(|mut select| {
            let key = params![request.tenant.0, request.key, micros(now)];
            select.query_row(key, |row| Ok((row.get(0)?, kept_at(row, 1)?))).optional()
        })
        .map_err(failed)?;
    match found {
        Some((fingerprint, _)) if fingerprint != request.fingerprint => Err(StoreError::RequestDiffers),
        Some((_, answer)) => Ok(Some(answer)),
        None => Ok(None),
    }
}

fn remember_request(connection: &Connection, request: &Request, answer: Option<&[u8]>) -> Result<(), StoreError> {
    let sql =
        "INSERT OR REPLACE INTO request (tenant, key, fingerprint, expires_at, answer) VALUES (?1, ?2, ?3, ?4, ?5)";
    let row = params![request.tenant.0, request.key, request.fingerprint, micros(request.expires_at), answer];
    change(connection, sql, row)?;
    Ok(())
}
