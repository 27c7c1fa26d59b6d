//! Settling: the end of attempts, applied under their guard.

use std::collections::HashMap;

use rota_core::{
    ids::RunId,
    run::Change,
    store::{By, Guarded, Settled, Settlement, StoreError, Write},
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use super::{
    SqliteStore,
    apply::{Brief, Work, woken_again, woken_ids},
    failed,
    once::once,
    rows::{live_row, uuid_at, uuid_opt},
    writer::Urgency,
};
use crate::codec::{self, status};

/// What a settled batch's answer is restored from.
#[derive(Serialize, Deserialize)]
struct Kept {
    answers: Vec<Guarded>,
    woken: Vec<(RunId, bool)>,
}

impl SqliteStore {
    pub(super) async fn do_settle(&self, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
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

fn kept(settled: &Settled) -> Option<String> {
    if settled.woken.is_empty() && settled.answers.iter().all(|answer| *answer == Guarded::Applied) {
        return None;
    }
    let kept = Kept { answers: settled.answers.clone(), woken: woken_ids(&settled.woken) };
    serde_json::to_string(&kept).ok()
}

fn restored(connection: &Connection, kept: Option<&str>, count: usize) -> Result<Settled, StoreError> {
    let Some(text) = kept else {
        return Ok(Settled { answers: vec![Guarded::Applied; count], woken: Vec::new() });
    };
    let kept: Kept = serde_json::from_str(text).map_err(|error| codec::corrupt("a stored answer", error))?;
    Ok(Settled { answers: kept.answers, woken: woken_again(connection, &kept.woken)? })
}

fn settle(connection: &Connection, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
    let mut work = Work::new(connection, write);
    let mut epochs = Epochs::default();
    let mut answers = Vec::with_capacity(settlements.len());
    let sql = "SELECT id, job, part, status, flags, ready_at, schedule, slot, slot_limit, parent, \
         holder IS NOT NULL, cancel IS NOT NULL FROM run WHERE id = ?1 AND fence = ?2";
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    for settlement in settlements {
        let key = params![settlement.lease.run.0.as_bytes(), settlement.lease.fence.0];
        let row = select.query_row(key, brief).optional().map_err(failed)?;
        let answer = match row {
            Some(row) if epochs.allow(connection, settlement, &row)? => one(&mut work, settlement, &row)?,
            _ => Guarded::Stale,
        };
        answers.push(answer);
    }
    drop(select);
    Ok(Settled { answers, woken: work.done()? })
}

fn brief(row: &Row<'_>) -> rusqlite::Result<Brief> {
    Ok(Brief {
        id: uuid_at(row, 0)?,
        job: row.get(1)?,
        part: row.get(2)?,
        status: row.get(3)?,
        flags: row.get(4)?,
        ready_at: row.get(5)?,
        schedule: row.get(6)?,
        slot: row.get(7)?,
        slot_limit: row.get(8)?,
        parent: uuid_opt(row, 9)?,
        leased: row.get(10)?,
        cancel_asked: row.get(11)?,
    })
}

fn one(work: &mut Work<'_>, settlement: &Settlement, row: &Brief) -> Result<Guarded, StoreError> {
    let answers_a_cancel = match &settlement.change {
        Change::Finish(finish) => finish.verdict.answers_a_cancel(),
        Change::Move(_) => false,
    };
    if row.cancel_asked && !answers_a_cancel {
        return Ok(Guarded::CancelAsked);
    }
    match &settlement.change {
        Change::Finish(finish) => work.finish(row, finish)?,
        Change::Move(_) => {
            let Some(row) = live_row(work.connection, row.id)? else { return Ok(Guarded::Stale) };
            let run = row.clone().run()?;
            work.change(&row, &run, &settlement.change)?;
        }
    }
    Ok(Guarded::Applied)
}

/// The epochs of partitions, read once per transaction.
#[derive(Default)]
pub struct Epochs(HashMap<u8, i64>);

impl Epochs {
    /// Whether the settler still has the right it claims: its partition's
    /// epoch for a run without a written lease, the lease for one with.
    fn allow(&mut self, connection: &Connection, settlement: &Settlement, row: &Brief) -> Result<bool, StoreError> {
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
