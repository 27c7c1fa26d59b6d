//! Dead letters: what was done about runs that had ended.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::RunId,
    store::{DeadFate, DeadMark, DeadStore, OpenDead, StoreError},
};
use uuid::Uuid;

use crate::{
    codec::{fate, fate_code},
    engine::{Engine, Row, SqlStore, Way, bound, values},
};

#[async_trait]
impl<E: Engine> DeadStore for SqlStore<E> {
    async fn dead_marks(&self, runs: &[RunId]) -> Result<Vec<Option<DeadMark>>, StoreError> {
        let rows = self.find("read what became of dead letters", marks_of::<E>(), values![uuids(runs)]).await?;
        Ok(self.marks(runs, &rows))
    }

    async fn open_dead(&self, most: u32) -> Result<OpenDead, StoreError> {
        let sql = "SELECT (SELECT count(*) FROM (SELECT 1 FROM open_dead LIMIT $1) counted), \
                   (SELECT ended_at FROM open_dead ORDER BY ended_at LIMIT 1)";
        let rows = self.find("count dead letters", sql, values![most]).await?;
        let Some(row) = rows.first() else { return Ok(OpenDead::default()) };
        Ok(OpenDead { count: row.count(0)?, oldest_at: row.opt(1, Row::time)? })
    }

    async fn discard(&self, runs: &[RunId], by: &str, now: Timestamp) -> Result<Vec<bool>, StoreError> {
        // Rows are taken in one order, whoever writes them.
        let put = format!(
            "INSERT INTO dead_mark (run, at, fate, by_whom) \
             SELECT u.id, CAST($2 AS bigint), CAST($3 AS smallint), CAST($4 AS text) FROM {} u WHERE true ORDER BY u.id \
             ON CONFLICT (run) DO NOTHING",
            E::DIALECT.ids(1)
        );
        let ids = uuids(runs);
        let statements = vec![
            bound(put, values![ids.clone(), now, fate_code(DeadFate::Discarded), by]),
            bound(format!("DELETE FROM open_dead WHERE {}", E::DIALECT.any_id("run", 1)), values![ids.clone()]),
            bound(marks_of::<E>(), values![ids]),
        ];
        let answers = self.change_all(Way::Work, "put dead letters away", statements).await?;
        let marks = self.marks(runs, answers.last().map_or(&[][..], Vec::as_slice));
        Ok(marks.into_iter().map(|mark| mark.is_some_and(|mark| mark.fate == DeadFate::Discarded)).collect())
    }
}

/// Each once.
fn uuids(runs: &[RunId]) -> Vec<Uuid> {
    let mut ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn marks_of<E: Engine>() -> String {
    format!("SELECT run, fate, by_whom, at FROM dead_mark WHERE {}", E::DIALECT.any_id("run", 1))
}

impl<E: Engine> SqlStore<E> {
    /// The mark of each of these runs.
    fn marks(&self, runs: &[RunId], rows: &[Row]) -> Vec<Option<DeadMark>> {
        let read = |row: &Row| {
            let run = self.readable("dead_mark", row.shown(0), row.uuid(0))?;
            let mark = || Ok(DeadMark { fate: fate(row.int(1)?)?, by: row.opt(2, Row::text)?, at: row.time(3)? });
            Some((run, self.readable("dead_mark", row.shown(0), mark())?))
        };
        let found: HashMap<Uuid, DeadMark> = rows.iter().filter_map(read).collect();
        runs.iter().map(|run| found.get(&run.0).cloned()).collect()
    }
}
