//! What the owner of partitions reads, marks and leases.

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    dispatch::Window,
    ids::{PARTITIONS, Partition, RunId, WorkerId},
    order::OrderKey,
    run::{Lease, Run, Slots},
    store::{Epoch, Guarded, OwnLease, OwnStore, RunningMark, StoreError, Write},
};
use rusqlite::{Connection, params};

use super::{
    SqliteStore,
    apply::Work,
    claim::{lease_in_writing, put_holder},
    failed,
    once::once,
    rows::{live, live_rows, runs, select_run},
    settle::Epochs,
    writer::Urgency,
};
use crate::{
    codec::{
        RunRow,
        sql::{BEGUN, QUEUED},
    },
    kept,
};

/// Which partitions, as a test.
struct Parts([bool; PARTITIONS]);

impl Parts {
    fn new(parts: &[Partition]) -> Self {
        let mut set = [false; PARTITIONS];
        for part in parts {
            set[usize::from(part.0)] = true;
        }
        Self(set)
    }

    fn has(&self, row: &RunRow) -> bool {
        self.0[usize::from(row.part as u8)]
    }
}

/// A write whose answer is a list of guards; all applied is stored as nothing.
pub fn guarded(
    connection: &Connection,
    write: &Write,
    count: usize,
    work: impl FnOnce(&Connection) -> Result<Vec<Guarded>, StoreError>,
) -> Result<Vec<Guarded>, StoreError> {
    let kept = |answers: &Vec<Guarded>| Ok(kept::guarded(answers));
    once(connection, write, kept, |_, kept| kept::guarded_again(kept, count), work)
}

/// Work on runs that an owner holds, one after the other.
struct Owned<'c> {
    work: Work<'c>,
    epochs: Epochs,
    answers: Vec<Guarded>,
}

impl<'c> Owned<'c> {
    fn new(connection: &'c Connection, write: &Write) -> Self {
        Self { work: Work::new(connection, write), epochs: Epochs::default(), answers: Vec::new() }
    }

    /// Does `act` to the run if lease, partition and epoch are current.
    fn each(
        &mut self,
        lease: Lease,
        part: Partition,
        epoch: Epoch,
        act: impl FnOnce(&mut Work<'c>, &Run) -> Result<Guarded, StoreError>,
    ) -> Result<(), StoreError> {
        let answer = match self.work.row(lease.run.0)? {
            Some(row)
                if row.fence == lease.fence.0
                    && row.holder.is_none()
                    && row.part == i16::from(part.0)
                    && self.epochs.current(self.work.connection, part.0)? == epoch.0 =>
            {
                act(&mut self.work, &row.run)?
            }
            _ => Guarded::Stale,
        };
        self.answers.push(answer);
        Ok(())
    }

    fn done(self) -> Result<Vec<Guarded>, StoreError> {
        self.work.done_unnamed()?;
        Ok(self.answers)
    }
}

fn read_window(connection: &Connection, parts: &Parts, window: &Window) -> Result<Vec<Run>, StoreError> {
    let sql = select_run(formatcp!(
        "WHERE run.status = {QUEUED} AND run.lane = ?1 AND run.tenant = ?2 AND (run.order_key, run.id) > (?3, ?4) \
         ORDER BY run.order_key, run.id"
    ));
    let (key, id) = window.after.map_or((OrderKey::MIN, Vec::new()), |(key, id)| (key, id.0.as_bytes().to_vec()));
    let after = params![window.pair.lane.0, window.pair.tenant.0, key.0, id];
    let mut select = connection.prepare_cached(&sql).map_err(failed)?;
    let mut rows = select.query(after).map_err(failed)?;
    let mut found = Vec::new();
    while found.len() < window.limit as usize
        && let Some(row) = rows.next().map_err(failed)?
    {
        found.extend(live(row).filter(|live| parts.has(live)).map(|live| live.run));
    }
    Ok(found)
}

#[async_trait]
impl OwnStore for SqliteStore {
    async fn own(&self, parts: &[Partition], windows: &[Window]) -> Result<Vec<Vec<Run>>, StoreError> {
        let (parts, windows) = (Parts::new(parts), windows.to_vec());
        self.read("read ready runs", move |connection| {
            windows.iter().map(|window| read_window(connection, &parts, window)).collect()
        })
        .await
    }

    async fn inherited(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        let parts = parts.to_vec();
        self.read("read inherited runs", move |connection| {
            let sql = select_run(formatcp!(
                "WHERE run.part = ?1 AND run.status IN ({BEGUN}) AND run.holder IS NULL ORDER BY run.id"
            ));
            let mut found = Vec::new();
            for part in &parts {
                let left = limit as usize - found.len();
                found.extend(live_rows(connection, &sql, [part.0], left, |_| true)?);
            }
            Ok(runs(found))
        })
        .await
    }

    async fn notices(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        let parts = parts.to_vec();
        self.read("read notices", move |connection| {
            let sql = format!(
                "SELECT {} FROM notice JOIN run ON run.id = notice.run WHERE notice.part = ?1 ORDER BY notice.run",
                super::rows::RUN
            );
            let mut found = Vec::new();
            for part in &parts {
                let left = limit as usize - found.len();
                found.extend(live_rows(connection, &sql, [part.0], left, |_| true)?);
            }
            Ok(runs(found))
        })
        .await
    }

    async fn clear_notices(&self, seen: &[(Partition, RunId)]) -> Result<(), StoreError> {
        let seen = seen.to_vec();
        self.writer
            .write("clear notices", Urgency::Prompt, move |connection| {
                let sql = "DELETE FROM notice WHERE part = ?1 AND run = ?2";
                let mut delete = connection.prepare_cached(sql).map_err(failed)?;
                for (part, run) in &seen {
                    delete.execute(params![part.0, run.0.as_bytes()]).map_err(failed)?;
                }
                Ok(())
            })
            .await
    }

    async fn lease_owned(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        asks: &[OwnLease],
    ) -> Result<Vec<Guarded>, StoreError> {
        let (write, asks) = (write.clone(), asks.to_vec());
        let count = asks.len();
        self.writer
            .write("lease owned runs", Urgency::Prompt, move |connection| {
                guarded(connection, &write, count, |connection| {
                    let mut owned = Owned::new(connection, &write);
                    for ask in &asks {
                        owned.each(ask.lease, ask.part, ask.epoch, |work, run| lease_in_writing(work, run, worker))?;
                    }
                    let answers = owned.done()?;
                    if answers.contains(&Guarded::Applied) {
                        put_holder(connection, worker, until)?;
                    }
                    Ok(answers)
                })
            })
            .await
    }

    async fn mark_running(&self, write: &Write, marks: &[RunningMark]) -> Result<Vec<Guarded>, StoreError> {
        let (write, marks) = (write.clone(), marks.to_vec());
        let count = marks.len();
        self.writer
            .write("mark running runs", Urgency::Prompt, move |connection| {
                guarded(connection, &write, count, |connection| {
                    let mut owned = Owned::new(connection, &write);
                    for mark in &marks {
                        owned.each(mark.lease, mark.part, mark.epoch, |work, run| {
                            let Ok(change) = run.mark_running(mark.lease, mark.started_at) else {
                                return Ok(if run.cancel.is_some() { Guarded::CancelAsked } else { Guarded::Stale });
                            };
                            let Some(row) = work.row(run.id.0)? else { return Ok(Guarded::Stale) };
                            work.change(&row, run, &change, Slots::ToCount)?;
                            Ok(Guarded::Applied)
                        })?;
                    }
                    owned.done()
                })
            })
            .await
    }

    async fn lease_running(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        attempts: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError> {
        let (write, attempts) = (write.clone(), attempts.to_vec());
        let count = attempts.len();
        self.writer
            .write("lease running runs", Urgency::Prompt, move |connection| {
                guarded(connection, &write, count, |connection| {
                    let mut owned = Owned::new(connection, &write);
                    for one in &attempts {
                        owned.each(one.lease, one.part, one.epoch, |work, run| {
                            let Ok(change) = run.lease_running(one.lease, worker, one.started_at) else {
                                return Ok(Guarded::Stale);
                            };
                            let Some(row) = work.row(run.id.0)? else { return Ok(Guarded::Stale) };
                            work.change(&row, run, &change, Slots::ToCount)?;
                            Ok(Guarded::Applied)
                        })?;
                    }
                    let answers = owned.done()?;
                    if answers.contains(&Guarded::Applied) {
                        put_holder(connection, worker, until)?;
                    }
                    Ok(answers)
                })
            })
            .await
    }
}
