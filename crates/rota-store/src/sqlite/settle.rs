//! Settling: the end of attempts, applied under their guard.

use std::{collections::HashMap, sync::LazyLock};

use async_trait::async_trait;
use rota_core::{
    ids::RunId,
    run::{Change, Ending, Finish, Slots},
    store::{By, Guarded, SettleStore, Settled, Settlement, StoreError, Write},
};
use rusqlite::{Connection, Row};
use serde::{Deserialize, Serialize};

use super::{
    SqliteStore,
    apply::Work,
    failed,
    follow::{woken_again, woken_ids},
    many::{Many, ROWS},
    once::once,
    rows::{uuid_at, uuid_opt},
    writer::Urgency,
};
use crate::{
    codec::{EndingColumns, RunRow, status},
    kept,
};

/// What a settled batch's answer is restored from.
#[derive(Default, Serialize, Deserialize)]
struct Kept {
    answers: Option<String>,
    woken: Vec<(RunId, bool)>,
}

fn kept(settled: &Settled) -> Result<kept::Kept, StoreError> {
    let answers = kept::guarded(&settled.answers).map(|letters| String::from_utf8_lossy(&letters).into_owned());
    if answers.is_none() && settled.woken.is_empty() {
        return Ok(None);
    }
    kept::json(&Kept { answers, woken: woken_ids(&settled.woken) })
}

fn restored(connection: &Connection, kept: Option<&[u8]>, count: usize) -> Result<Settled, StoreError> {
    let kept = match kept {
        Some(kept) => kept::json_again(Some(kept))?,
        None => Kept::default(),
    };
    let answers = kept::guarded_again(kept.answers.as_deref().map(str::as_bytes), count)?;
    Ok(Settled { answers, woken: woken_again(connection, &kept.woken)? })
}

fn settle(connection: &Connection, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
    let mut work = Work::new(connection, write);
    let mut epochs = Epochs::default();
    let mut answers = vec![Guarded::Stale; settlements.len()];
    for (piece, answers) in settlements.chunks(ROWS).zip(answers.chunks_mut(ROWS)) {
        let mut rows = briefs(connection, piece)?;
        // Ends are written together. What needs a row by itself comes after them: a
        // run that goes on, and one that is named a second time.
        let mut rest = Vec::new();
        for (settlement, answer) in piece.iter().zip(answers) {
            match (&settlement.change, rows.remove(&settlement.lease.run)) {
                (Change::Finish(finish), Some(row)) => *answer = end(&mut work, &mut epochs, settlement, finish, &row)?,
                _ => rest.push((settlement, answer)),
            }
        }
        work.flush()?;
        for (settlement, answer) in rest {
            *answer = alone(&mut work, &mut epochs, settlement)?;
        }
        work.flush()?;
    }
    Ok(Settled { answers, woken: work.done()? })
}

static BRIEFS: LazyLock<Many> = LazyLock::new(|| {
    let head = "SELECT id, job, part, status, flags, ready_at, schedule, slot, slot_limit, parent, fence, \
         holder IS NOT NULL, cancel IS NOT NULL FROM run WHERE id IN (";
    Many::new(head, "?", ")")
});

/// What is there of the runs to be settled.
fn briefs(connection: &Connection, settlements: &[Settlement]) -> Result<HashMap<RunId, Brief>, StoreError> {
    let mut rows = HashMap::with_capacity(settlements.len());
    let take = |row: &Row<'_>| {
        let brief = brief(row)?;
        rows.insert(brief.ending.id, brief);
        Ok(())
    };
    BRIEFS
        .query(connection, settlements, |values, settlement| values.put(settlement.lease.run.0.as_bytes()), take)
        .map_err(failed)?;
    Ok(rows)
}

/// What settling needs to know of a run's row.
struct Brief {
    ending: Ending,
    part: i16,
    status: i16,
    fence: i32,
    leased: bool,
    cancel_asked: bool,
}

impl From<&RunRow> for Brief {
    fn from(row: &RunRow) -> Self {
        let &RunRow { id, job, ready_at, schedule, parent, slot, slot_limit, status, flags, part, fence, .. } = row;
        let columns = EndingColumns { id, job, ready_at, schedule, parent, slot, slot_limit, status, flags };
        let (leased, cancel_asked) = (row.holder.is_some(), row.cancel.is_some());
        Self { ending: columns.ending(), part, status, fence, leased, cancel_asked }
    }
}

fn brief(row: &Row<'_>) -> rusqlite::Result<Brief> {
    let columns = EndingColumns {
        id: uuid_at(row, 0)?,
        job: row.get(1)?,
        status: row.get(3)?,
        flags: row.get(4)?,
        ready_at: row.get(5)?,
        schedule: row.get(6)?,
        slot: row.get(7)?,
        slot_limit: row.get(8)?,
        parent: uuid_opt(row, 9)?,
    };
    Ok(Brief {
        ending: columns.ending(),
        part: row.get(2)?,
        status: columns.status,
        fence: row.get(10)?,
        leased: row.get(11)?,
        cancel_asked: row.get(12)?,
    })
}

fn end(
    work: &mut Work<'_>,
    epochs: &mut Epochs,
    settlement: &Settlement,
    finish: &Finish,
    row: &Brief,
) -> Result<Guarded, StoreError> {
    if !epochs.allow(work.connection, settlement, row)? {
        return Ok(Guarded::Stale);
    }
    if row.cancel_asked && !finish.verdict.answers_a_cancel() {
        return Ok(Guarded::CancelAsked);
    }
    work.finish(&row.ending, finish);
    Ok(Guarded::Applied)
}

/// Settles a run as it is now.
fn alone(work: &mut Work<'_>, epochs: &mut Epochs, settlement: &Settlement) -> Result<Guarded, StoreError> {
    let Some(row) = work.row(settlement.lease.run.0)? else { return Ok(Guarded::Stale) };
    let brief = Brief::from(&row.row);
    if let Change::Finish(finish) = &settlement.change {
        return end(work, epochs, settlement, finish, &brief);
    }
    if !epochs.allow(work.connection, settlement, &brief)? {
        return Ok(Guarded::Stale);
    }
    if brief.cancel_asked {
        return Ok(Guarded::CancelAsked);
    }
    let run = row.run.clone();
    work.change(&row, &run, &settlement.change, Slots::ToCount)?;
    Ok(Guarded::Applied)
}

/// The epochs of partitions, read once per transaction.
#[derive(Default)]
pub struct Epochs(HashMap<u8, i64>);

impl Epochs {
    /// Whether the settler still has the right it claims: the run's fence, and its partition's
    /// epoch for a run without a written lease, the lease for one with.
    fn allow(&mut self, connection: &Connection, settlement: &Settlement, row: &Brief) -> Result<bool, StoreError> {
        if row.fence != settlement.lease.fence.0 {
            return Ok(false);
        }
        match settlement.by {
            By::Lease => Ok(row.leased),
            By::Owner(epoch) => {
                let executed = matches!(row.status, status::QUEUED | status::RUNNING | status::CANCELLING);
                let own = executed && !row.leased && row.part == i16::from(settlement.part.0);
                Ok(own && self.current(connection, settlement.part.0)? == epoch.0)
            }
        }
    }

    pub fn current(&mut self, connection: &Connection, part: u8) -> Result<i64, StoreError> {
        if let Some(epoch) = self.0.get(&part) {
            return Ok(*epoch);
        }
        let epoch = connection
            .prepare_cached("SELECT epoch FROM partition WHERE part = ?1")
            .and_then(|mut select| select.query_row([part], |row| row.get(0)))
            .map_err(failed)?;
        self.0.insert(part, epoch);
        Ok(epoch)
    }
}

#[async_trait]
impl SettleStore for SqliteStore {
    async fn settle(&self, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let (write, settlements) = (write.clone(), settlements.to_vec());
        let count = settlements.len();
        self.writer
            .write("settle runs", Urgency::Prompt, move |connection| {
                once(
                    connection,
                    &write,
                    kept,
                    |connection, kept| restored(connection, kept, count),
                    |connection| settle(connection, &write, &settlements),
                )
            })
            .await
    }
}
