//! Log lines of attempts, in chunks.

use std::collections::{HashMap, hash_map::Entry};

use async_trait::async_trait;
use rota_core::{
    ids::RunId,
    store::{LogChunk, LogQuery, LogStore, StoreError},
};
use rusqlite::{Connection, Row, params};

use super::{
    SqliteStore, failed, history,
    rows::{exists, text_at, uuid_at},
    writer::Urgency,
};
use crate::{
    codec::{micros, time},
    filter::PAGE_MAX,
    unreadable::readable,
};

fn chunk(row: &Row<'_>) -> Result<LogChunk, StoreError> {
    Ok(LogChunk {
        run: RunId(uuid_at(row, 0).map_err(failed)?),
        attempt: row.get(1).map_err(failed)?,
        seq: row.get(2).map_err(failed)?,
        at: time(row.get(3).map_err(failed)?)?,
        lines: row.get(4).map_err(failed)?,
    })
}

/// Whether a run lives or is in history. Lines of one that is gone would have nothing to
/// go with.
fn is_kept(connection: &Connection, run: RunId) -> Result<bool, StoreError> {
    let lives = exists(connection, "SELECT 1 FROM run WHERE id = ?1", [run.0.as_bytes()])?;
    Ok(lives || history::place_of(connection, run)?.is_some())
}

#[async_trait]
impl LogStore for SqliteStore {
    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        let chunks = chunks.to_vec();
        self.writer
            .write("append logs", Urgency::Prompt, move |connection| {
                let mut known: HashMap<RunId, bool> = HashMap::new();
                let sql = "INSERT OR IGNORE INTO log (run, attempt, seq, at, lines) VALUES (?1, ?2, ?3, ?4, ?5)";
                let mut insert = connection.prepare_cached(sql).map_err(failed)?;
                for chunk in &chunks {
                    let is_kept = match known.entry(chunk.run) {
                        Entry::Occupied(known) => *known.get(),
                        Entry::Vacant(new) => *new.insert(is_kept(connection, chunk.run)?),
                    };
                    if !is_kept {
                        continue;
                    }
                    let row = params![chunk.run.0.as_bytes(), chunk.attempt, chunk.seq, micros(chunk.at), chunk.lines];
                    insert.execute(row).map_err(failed)?;
                }
                Ok(())
            })
            .await
    }

    async fn logs(&self, query: &LogQuery) -> Result<Vec<LogChunk>, StoreError> {
        let query = query.clone();
        self.read("read log lines", move |connection| {
            let sql = "SELECT run, attempt, seq, at, lines FROM log WHERE run = ?1 AND (?2 IS NULL OR attempt = ?2) \
                 AND (attempt, seq) > (?3, ?4) ORDER BY attempt, seq LIMIT ?5";
            let (attempt, seq) = query.after.map_or((-1, i32::MIN), |(attempt, seq)| (i32::from(attempt), seq));
            let key = params![query.run.0.as_bytes(), query.attempt, attempt, seq, query.limit.clamp(1, PAGE_MAX)];
            let mut select = connection.prepare_cached(sql).map_err(failed)?;
            let mut rows = select.query(key).map_err(failed)?;
            let mut chunks = Vec::new();
            while let Some(row) = rows.next().map_err(failed)? {
                chunks.extend(readable(
                    "log",
                    format_args!("{}/{}/{}", query.run, text_at(row, 1), text_at(row, 2)),
                    chunk(row),
                ));
            }
            Ok(chunks)
        })
        .await
    }
}
