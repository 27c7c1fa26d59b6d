//! Logs: chunks of lines, by day, kept as long as the runs they are of.
//!
//! A day goes whole. What is in it of runs that stay, because they live or ended on a
//! later day, is moved aside first.

use async_trait::async_trait;
use rota_core::store::{LogChunk, LogQuery, LogStore, StoreError};
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
        let attempts: Vec<i16> = chunks.iter().map(|chunk| crate::codec::small(chunk.attempt)).collect();
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
            query.after.map_or((-1_i16, i32::MIN), |(attempt, seq)| (crate::codec::small(attempt), seq));
        let attempt = query.attempt.map(crate::codec::small);
        let limit = i64::from(query.limit.clamp(1, PAGE_MAX));
        // Not both: while a day goes, what was moved aside is there twice.
        let of = |table: &str| {
            format!(
                "(SELECT attempt, seq, at, lines FROM {table} WHERE run = $1 AND (attempt, seq) > ($2, $3) \
                 AND ($4::smallint IS NULL OR attempt = $4) ORDER BY attempt, seq LIMIT $5)"
            )
        };
        let sql = format!("{} UNION {} ORDER BY attempt, seq LIMIT $5", of("log"), of("log_kept"));
        let rows = self.read(&sql, &[&query.run.0, &after_attempt, &after_seq, &attempt, &limit]).await?;
        let mut chunks = Vec::with_capacity(rows.len());
        for row in rows {
            let (attempt, seq): (i16, i32) = (row.try_get(0)?, row.try_get(1)?);
            let Some(at) =
                self.notes.readable("log", format_args!("{}/{attempt}/{seq}", query.run), time(row.try_get(2)?))
            else {
                continue;
            };
            let attempt = attempt.max(0) as u16;
            chunks.push(LogChunk { run: query.run, attempt, seq, at, lines: row.try_get(3)? });
        }
        Ok(chunks)
    }
}

#[async_trait]
impl LogStore for PostgresStore {
    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        tried!("append logs", self.save_logs(chunks))
    }

    async fn logs(&self, query: &LogQuery) -> Result<Vec<LogChunk>, StoreError> {
        tried!("read logs", self.logs_of(query))
    }
}
