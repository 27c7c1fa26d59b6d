//! Delayed runs whose time has come.

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::{
    ids::{Partition, RunId},
    run::Slots,
    store::{PromoteStore, Promoted, StoreError, Write},
};
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};

use super::{
    SqliteStore,
    apply::Work,
    cancel::decide_counted,
    failed,
    follow::{woken_again, woken_ids},
    once::once,
    rows::{live_rows, select_run},
    writer::Urgency,
};
use crate::{
    codec::{micros, sql::SCHEDULED, time_opt},
    kept::{self, Kept},
};

#[derive(Serialize, Deserialize, Default)]
struct KeptPromoted {
    woken: Vec<(RunId, bool)>,
    moved: usize,
    next_at: Option<i64>,
}

fn kept_promoted(promoted: &Promoted) -> Result<Kept, StoreError> {
    kept::json(&KeptPromoted {
        woken: woken_ids(&promoted.woken),
        moved: promoted.moved,
        next_at: promoted.next_at.map(micros),
    })
}

fn promoted_again(connection: &Connection, kept: Option<&[u8]>) -> Result<Promoted, StoreError> {
    let kept: KeptPromoted = kept::json_again(kept)?;
    Ok(Promoted { woken: woken_again(connection, &kept.woken)?, moved: kept.moved, next_at: time_opt(kept.next_at)? })
}

fn promote(connection: &Connection, write: &Write, parts: &[Partition], limit: usize) -> Result<Promoted, StoreError> {
    let mut work = Work::new(connection, write);
    let sql = select_run(formatcp!(
        "WHERE run.status = {SCHEDULED} AND run.part = ?1 AND run.ready_at <= ?2 ORDER BY run.ready_at, run.id"
    ));
    let mut due = Vec::new();
    for part in parts {
        if !work.holds(i16::from(part.0))? {
            continue;
        }
        due.extend(live_rows(connection, &sql, params![part.0, micros(write.now)], limit, |_| true)?);
    }
    due.sort_by_key(|row| (row.ready_at, row.id));
    due.truncate(limit);
    let moved = due.len();
    for row in due {
        let entry = match row.run.slot {
            Some(claim) => Some(work.slot(claim.key.0, Some(claim.limit))?.reenter()),
            None => None,
        };
        decide_counted(&mut work, &row, Slots::Counted, |run| run.promote(entry, write.now))?;
    }
    let woken = work.done()?;
    Ok(Promoted { woken, moved, next_at: next_ready(connection, parts)? })
}

fn next_ready(connection: &Connection, parts: &[Partition]) -> Result<Option<jiff::Timestamp>, StoreError> {
    let sql = formatcp!("SELECT min(ready_at) FROM run WHERE status = {SCHEDULED} AND part = ?1");
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let mut next: Option<i64> = None;
    for part in parts {
        let first: Option<i64> = select.query_row([part.0], |row| row.get(0)).optional().map_err(failed)?.flatten();
        next = [next, first].into_iter().flatten().min();
    }
    time_opt(next)
}

#[async_trait]
impl PromoteStore for SqliteStore {
    async fn promote(&self, write: &Write, parts: &[Partition], limit: u32) -> Result<Promoted, StoreError> {
        let (write, parts) = (write.clone(), parts.to_vec());
        self.writer
            .write("promote delayed runs", Urgency::Prompt, move |connection| {
                once(connection, &write, kept_promoted, promoted_again, |connection| {
                    promote(connection, &write, &parts, limit as usize)
                })
            })
            .await
    }
}
