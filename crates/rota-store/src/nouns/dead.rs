//! Dead letters: what was done about runs that had ended.

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::RunId,
    store::{DeadFate, DeadMark, DeadStore, OpenDead, StoreError},
};

use crate::{
    codec::{fate, fate_code},
    engine::{Engine, Row, SqlStore, Way, bound, values},
};

const MARK: &str = "SELECT run, fate, by_whom, at FROM dead_mark WHERE run = $1";

#[async_trait]
impl<E: Engine> DeadStore for SqlStore<E> {
    async fn dead_marks(&self, runs: &[RunId]) -> Result<Vec<Option<DeadMark>>, StoreError> {
        let keys = runs.iter().map(|run| values![*run]).collect();
        let found = self.find_each("read what became of dead letters", MARK, keys).await?;
        Ok(found.iter().map(|rows| self.mark(rows)).collect())
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
        let mut order = runs.to_vec();
        order.sort_unstable();
        order.dedup();
        let put = "INSERT INTO dead_mark (run, at, fate, by_whom) VALUES ($1, $2, $3, $4) ON CONFLICT (run) DO NOTHING";
        let mark = |run: &RunId| {
            [
                bound(put, values![*run, now, fate_code(DeadFate::Discarded), by]),
                bound("DELETE FROM open_dead WHERE run = $1", values![*run]),
            ]
        };
        let statements = order.iter().flat_map(mark).chain(runs.iter().map(|run| bound(MARK, values![*run])));
        let answers = self.change_all(Way::Work, "put dead letters away", statements.collect()).await?;
        let marks = answers[2 * order.len()..].iter().map(|rows| self.mark(rows));
        Ok(marks.map(|mark| mark.is_some_and(|mark| mark.fate == DeadFate::Discarded)).collect())
    }
}

impl<E: Engine> SqlStore<E> {
    fn mark(&self, rows: &[Row]) -> Option<DeadMark> {
        let row = rows.first()?;
        let read = || Ok(DeadMark { fate: fate(row.int(1)?)?, by: row.opt(2, Row::text)?, at: row.time(3)? });
        self.readable("dead_mark", row.shown(0), read())
    }
}
