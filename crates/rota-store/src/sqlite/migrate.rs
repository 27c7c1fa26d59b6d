//! Brings a file's schema up to date, one numbered step at a time, each in a
//! transaction of its own.

use std::path::Path;

use rusqlite::Connection;

use super::OpenError;

const STEPS: &[&str] = &[
    include_str!("migrations/0001_first.sql"),
    include_str!("migrations/0002_workers.sql"),
    include_str!("migrations/0003_after.sql"),
    include_str!("migrations/0004_access.sql"),
    include_str!("migrations/0005_dead.sql"),
];

/// The newest schema that this release knows.
pub const fn known() -> i64 {
    STEPS.len() as i64
}

pub fn up(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(sqlite)?;
    let known = STEPS.len() as i64;
    if found > known {
        return Err(OpenError::Newer { path: path.to_owned(), found, known });
    }
    for (step, sql) in STEPS.iter().enumerate().skip(found as usize) {
        let batch = format!("BEGIN IMMEDIATE; {sql}; PRAGMA user_version = {}; COMMIT;", step + 1);
        connection.execute_batch(&batch).map_err(sqlite)?;
    }
    Ok(())
}
