//! Dead letters: what was done about runs that had ended.

use crate::codec::sql::DEAD;
use jiff::Timestamp;
use rota_core::{
    ids::RunId,
    run::NewRun,
    store::{DeadFate, DeadMark, OpenDead, StoreError},
};
use rusqlite::{Connection, OptionalExtension, params};

use super::{SqliteStore, failed, history, writer::Urgency};
use crate::{
    codec::{fate, fate_code, micros, time, time_opt},
    unreadable::readable,
};

impl SqliteStore {
    pub(super) async fn do_open_dead(&self, most: u32) -> Result<OpenDead, StoreError> {
        self.read("count dead letters", move |connection| {
            let sql = "SELECT (SELECT count(*) FROM (SELECT 1 FROM open_dead LIMIT ?1)), \
                 (SELECT ended_at FROM open_dead ORDER BY ended_at LIMIT 1)";
            let (count, oldest): (i64, Option<i64>) = connection
                .prepare_cached(sql)
                .and_then(|mut select| select.query_row([most], |row| Ok((row.get(0)?, row.get(1)?))))
                .map_err(failed)?;
            Ok(OpenDead { count: count.max(0) as u64, oldest_at: time_opt(oldest)? })
        })
        .await
    }

    pub(super) async fn do_dead_marks(&self, runs: &[RunId]) -> Result<Vec<Option<DeadMark>>, StoreError> {
        let runs = runs.to_vec();
        self.read("read what became of dead letters", move |connection| {
            runs.iter().map(|run| mark_of(connection, *run)).collect()
        })
        .await
    }

    pub(super) async fn do_discard(&self, runs: &[RunId], by: &str, now: Timestamp) -> Result<Vec<bool>, StoreError> {
        let (runs, by) = (runs.to_vec(), by.to_owned());
        self.writer
            .write("put dead letters away", Urgency::Prompt, move |connection| {
                let sql = "INSERT OR IGNORE INTO dead_mark (run, at, fate, by_whom) VALUES (?1, ?2, ?3, ?4)";
                let discarded = DeadFate::Discarded;
                let mut insert = connection.prepare_cached(sql).map_err(failed)?;
                for run in &runs {
                    insert.execute(params![run.0.as_bytes(), micros(now), fate_code(discarded), by]).map_err(failed)?;
                    close(connection, *run)?;
                }
                let put_away = |run: &RunId| Ok(mark_of(connection, *run)?.is_some_and(|mark| mark.fate == discarded));
                runs.iter().map(put_away).collect()
            })
            .await
    }
}

fn mark_of(connection: &Connection, run: RunId) -> Result<Option<DeadMark>, StoreError> {
    let found: Option<(i16, Option<String>, i64)> = connection
        .prepare_cached("SELECT fate, by_whom, at FROM dead_mark WHERE run = ?1")
        .and_then(|mut select| {
            select.query_row([run.0.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()
        })
        .map_err(failed)?;
    let read = |(code, by, at)| Ok::<_, StoreError>(DeadMark { fate: fate(code)?, by, at: time(at)? });
    Ok(found.and_then(|found| readable("dead_mark", run, read(found))))
}

/// Marks the run that a new one is made of again.
pub fn mark_redriven(connection: &Connection, now: Timestamp, new: &NewRun) -> Result<(), StoreError> {
    let Some(from) = new.trigger.redrives() else { return Ok(()) };
    // Its version is in use again, however old it is.
    connection
        .prepare_cached(
            "UPDATE job_version SET unused_since = ?3 WHERE job = ?1 AND version = ?2 AND unused_since < ?3",
        )
        .and_then(|mut update| update.execute(params![new.job.0, new.version, micros(now)]))
        .map_err(failed)?;
    let row = params![from.0.as_bytes(), micros(now), fate_code(DeadFate::Redriven), new.trigger.by];
    connection
        .prepare_cached("INSERT OR REPLACE INTO dead_mark (run, at, fate, by_whom) VALUES (?1, ?2, ?3, ?4)")
        .and_then(|mut put| put.execute(row))
        .map_err(failed)?;
    close(connection, from)
}

/// Notes a run that has died and waits for somebody.
pub fn open(connection: &Connection, run: RunId, ended_at: Timestamp) -> Result<(), StoreError> {
    connection
        .prepare_cached("INSERT OR IGNORE INTO open_dead (run, ended_at) VALUES (?1, ?2)")
        .and_then(|mut insert| insert.execute(params![run.0.as_bytes(), micros(ended_at)]))
        .map_err(failed)?;
    Ok(())
}

fn close(connection: &Connection, run: RunId) -> Result<(), StoreError> {
    connection
        .prepare_cached("DELETE FROM open_dead WHERE run = ?1")
        .and_then(|mut delete| delete.execute([run.0.as_bytes()]))
        .map_err(failed)?;
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
