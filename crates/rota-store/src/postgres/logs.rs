//! Logs: chunks of lines, by day, kept as long as history.

use rota_core::{
    ids::RunId,
    store::{LogChunk, LogQuery},
};
use uuid::Uuid;

use super::{PostgresStore, fault::Fault};
use crate::{
    codec::{micros, time},
    filter::PAGE_MAX,
};

impl PostgresStore {
    pub(super) async fn save_logs(&self, chunks: &[LogChunk]) -> Result<(), Fault> {
        if chunks.is_empty() {
            return Ok(());
        }
        for chunk in chunks {
            self.have_day(micros(chunk.at)).await?;
        }
        match self.save_logs_once(chunks).await {
            Err(fault) if fault.lacks_a_day() => {
                self.days.forget();
                for chunk in chunks {
                    self.have_day(micros(chunk.at)).await?;
                }
                self.save_logs_once(chunks).await
            }
            other => other,
        }
    }

    async fn save_logs_once(&self, chunks: &[LogChunk]) -> Result<(), Fault> {
        let runs: Vec<Uuid> = chunks.iter().map(|chunk| chunk.run.0).collect();
        let attempts: Vec<i16> = chunks.iter().map(|chunk| super::settle::small(chunk.attempt)).collect();
        let places: Vec<i32> = chunks.iter().map(|chunk| chunk.seq).collect();
        let times: Vec<i64> = chunks.iter().map(|chunk| micros(chunk.at)).collect();
        let lines: Vec<&str> = chunks.iter().map(|chunk| chunk.lines.as_str()).collect();
        let sql = "INSERT INTO log (run, attempt, seq, at, lines) \
                   SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::int[], $4::bigint[], $5::text[]) \
                   ON CONFLICT DO NOTHING";
        self.write_alone(&self.work, sql, &[&runs, &attempts, &places, &times, &lines]).await?;
        Ok(())
    }

    pub(super) async fn logs_of(&self, query: &LogQuery) -> Result<Vec<LogChunk>, Fault> {
        let (after_attempt, after_seq) =
            query.after.map_or((-1_i16, i32::MIN), |(attempt, seq)| (super::settle::small(attempt), seq));
        let attempt = query.attempt.map(super::settle::small);
        let limit = i64::from(query.limit.clamp(1, PAGE_MAX));
        let sql = "SELECT attempt, seq, at, lines FROM log WHERE run = $1 AND (attempt, seq) > ($2, $3) \
                   AND ($4::smallint IS NULL OR attempt = $4) ORDER BY attempt, seq LIMIT $5";
        let rows = self.read(sql, &[&query.run.0, &after_attempt, &after_seq, &attempt, &limit]).await?;
        let mut chunks = Vec::with_capacity(rows.len());
        for row in rows {
            chunks.push(LogChunk {
                run: RunId(query.run.0),
                attempt: row.try_get::<_, i16>(0)?.max(0) as u16,
                seq: row.try_get(1)?,
                at: time(row.try_get(2)?)?,
                lines: row.try_get(3)?,
            });
        }
        Ok(chunks)
    }
}
