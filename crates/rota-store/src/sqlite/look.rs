//! A look at a file that changes nothing: neither made nor brought up to date.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::{OpenError, migrate};
use crate::Look;

/// What the file at `path` is; it must be there.
pub fn look(path: &Path) -> Result<Look, OpenError> {
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    let schema: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(sqlite)?;
    let oldest = migrate::oldest(&connection).map_err(sqlite)?;
    Ok(Look { schema: Some(schema).filter(|schema| *schema > 0), known: migrate::known(), oldest, clock: None })
}
