//! Each write once: a batch that was applied is answered as it was then.
//!
//! The batch's row commits with its effects. Asked again, the store finds the
//! row and restores the answer; a plain answer is stored as nothing. A request
//! key does the same for a caller's own caller, for as long as the key lives.

use jiff::Timestamp;
use rota_core::store::{Request, StoreError, Write};
use rusqlite::{Connection, OptionalExtension, params};

use super::{SqliteStore, failed};
use crate::codec::micros;

/// What was stored of an answer; a plain one needs nothing.
struct Kept(Option<String>);

/// Runs `work` unless this write was applied before; then `restore` makes its
/// answer from what `store` kept of it.
pub fn once<T>(
    connection: &Connection,
    write: &Write,
    store: impl FnOnce(&T) -> Option<String>,
    restore: impl FnOnce(&Connection, Option<&str>) -> Result<T, StoreError>,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    if let Some(request) = &write.request
        && let Some(kept) = known_request(connection, request, write.now)?
    {
        return restore(connection, kept.0.as_deref());
    }
    if let Some(kept) = known_batch(connection, write)? {
        return restore(connection, kept.0.as_deref());
    }
    let answer = work(connection)?;
    let kept = store(&answer);
    connection
        .prepare_cached("INSERT INTO batch (id, at, answer) VALUES (?1, ?2, ?3)")
        .and_then(|mut insert| insert.execute(params![write.batch.0.as_bytes(), micros(write.now), kept]))
        .map_err(failed)?;
    if let Some(request) = &write.request {
        remember_request(connection, request, kept.as_deref())?;
    }
    Ok(answer)
}

fn known_batch(connection: &Connection, write: &Write) -> Result<Option<Kept>, StoreError> {
    connection
        .prepare_cached("SELECT answer FROM batch WHERE id = ?1")
        .and_then(|mut select| select.query_row([write.batch.0.as_bytes()], |row| row.get(0).map(Kept)).optional())
        .map_err(failed)
}

impl SqliteStore {
    pub(super) async fn do_is_answered(&self, request: &Request, now: Timestamp) -> Result<bool, StoreError> {
        let request = request.clone();
        self.read("look for a request", move |connection| Ok(known_request(connection, &request, now)?.is_some())).await
    }
}

fn known_request(connection: &Connection, request: &Request, now: Timestamp) -> Result<Option<Kept>, StoreError> {
    let sql = "SELECT fingerprint, answer FROM request WHERE tenant = ?1 AND key = ?2 AND expires_at > ?3";
    let found: Option<([u8; 32], Option<String>)> = connection
        .prepare_cached(sql)
        .and_then(|mut select| {
            let key = params![request.tenant.0, request.key, micros(now)];
            select.query_row(key, |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
        .map_err(failed)?;
    match found {
        Some((fingerprint, _)) if fingerprint != request.fingerprint => Err(StoreError::RequestDiffers),
        Some((_, answer)) => Ok(Some(Kept(answer))),
        None => Ok(None),
    }
}

fn remember_request(connection: &Connection, request: &Request, answer: Option<&str>) -> Result<(), StoreError> {
    let sql =
        "INSERT OR REPLACE INTO request (tenant, key, fingerprint, expires_at, answer) VALUES (?1, ?2, ?3, ?4, ?5)";
    let row = params![request.tenant.0, request.key, request.fingerprint, micros(request.expires_at), answer];
    connection.prepare_cached(sql).and_then(|mut insert| insert.execute(row)).map_err(failed)?;
    Ok(())
}
