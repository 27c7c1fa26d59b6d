//! Dead letters: what was done about runs that had ended.

use jiff::Timestamp;
use rota_core::{
    ids::RunId,
    run::NewRun,
    store::{DeadFate, StoreError},
};
use rusqlite::{Connection, params};

use super::{history, rows::change};
use crate::codec::{fate_code, micros, sql::DEAD};

/// Marks the run that a new one is made of again.
pub fn mark_redriven(connection: &Connection, now: Timestamp, new: &NewRun) -> Result<(), StoreError> {
    let Some(from) = new.trigger.redrives() else { return Ok(()) };
    // Its version is in use again, however old it is.
    change(
        connection,
        "UPDATE job_version SET unused_since = ?3 WHERE job = ?1 AND version = ?2 AND unused_since < ?3",
        params![new.job.0, new.version, micros(now)],
    )?;
    let row = params![from.0.as_bytes(), micros(now), fate_code(DeadFate::Redriven), new.trigger.by];
    change(connection, "INSERT OR REPLACE INTO dead_mark (run, at, fate, by_whom) VALUES (?1, ?2, ?3, ?4)", row)?;
    close(connection, from)
}

/// Notes a run that has died and waits for somebody.
pub fn open(connection: &Connection, run: RunId, ended_at: Timestamp) -> Result<(), StoreError> {
    change(
        connection,
        "INSERT OR IGNORE INTO open_dead (run, ended_at) VALUES (?1, ?2)",
        params![run.0.as_bytes(), micros(ended_at)],
    )?;
    Ok(())
}

fn close(connection: &Connection, run: RunId) -> Result<(), StoreError> {
    change(connection, "DELETE FROM open_dead WHERE run = ?1", [run.0.as_bytes()])?;
    Ok(())
}

/// Finds the open ones in history, for a file from before they were noted.
pub fn find_open(connection: &Connection) -> rusqlite::Result<()> {
    let mut days = connection.prepare("SELECT day FROM history_day")?;
    let days: Vec<i64> = days.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for day in days {
        let sql = format!(
            "INSERT OR IGNORE INTO open_dead (run, ended_at) SELECT id, ended_at FROM {} \
             WHERE verdict = {DEAD} AND id NOT IN (SELECT run FROM dead_mark)",
            history::table(day)
        );
        connection.execute(&sql, [])?;
    }
    Ok(())
}
