//! Runs whose holder is gone, and those that waited too long.

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::{
    ids::{RunId, WorkerId},
    store::{Reap, ReapStore, Reaped, StoreError, Woken, Write},
};
use rusqlite::Connection;

use super::{
    SqliteStore,
    apply::Work,
    cancel::decide,
    follow::{woken_again, woken_ids},
    once::once,
    rows::{Live, all, change, live_rows, select_run, uuid_at},
    writer::Urgency,
};
use crate::{
    codec::{
        micros,
        sql::{CANCELLING, CLAIMED_LANE, NOT_EXECUTED, QUEUED},
    },
    kept,
};

fn held_by(connection: &Connection, worker: WorkerId, limit: usize) -> Result<Vec<Live>, StoreError> {
    let sql = select_run("WHERE run.holder = ?1 ORDER BY run.id");
    live_rows(connection, &sql, [worker.0.as_bytes()], limit, |_| true)
}

fn drop_holder(connection: &Connection, worker: WorkerId) -> Result<(), StoreError> {
    change(connection, "DELETE FROM holder WHERE worker = ?1", [worker.0.as_bytes()])?;
    Ok(())
}

fn reap_runs(connection: &Connection, write: &Write, reap: Reap) -> Result<Vec<Reaped>, StoreError> {
    let gone: Vec<WorkerId> = {
        let sql = "SELECT worker FROM holder WHERE until < ?1 ORDER BY worker";
        all(connection, sql, [micros(reap.before)], |row| uuid_at(row, 0).map(WorkerId))?
    };
    let mut work = Work::new(connection, write);
    let mut reaped = Vec::new();
    for worker in gone {
        let room = (reap.limit as usize).saturating_sub(reaped.len());
        let rows = held_by(connection, worker, room)?;
        let all = rows.len() < room;
        for row in rows {
            reaped.extend(decide(&mut work, &row, |run| run.lose(reap.losses_max, write.now))?);
        }
        if all {
            drop_holder(connection, worker)?;
        }
    }
    work.done_unnamed()?;
    Ok(reaped)
}

/// Runs that only the owner of their partition may end are left to it.
fn sweep(connection: &Connection, write: &Write, limit: usize) -> Result<Vec<Reaped>, StoreError> {
    let sql = select_run(formatcp!(
        "JOIN lane ON lane.id = run.lane WHERE run.due_at <= ?1 \
         AND (run.status IN ({NOT_EXECUTED}) OR (run.status = {QUEUED} AND lane.mode = {CLAIMED_LANE}) \
              OR (run.status = {CANCELLING} AND run.holder IS NOT NULL)) \
         ORDER BY run.due_at, run.id"
    ));
    let mut work = Work::new(connection, write);
    let mut swept = Vec::new();
    for row in live_rows(connection, &sql, [micros(write.now)], limit, |_| true)? {
        swept.extend(decide(&mut work, &row, |run| run.overdue(write.now))?);
    }
    work.done_unnamed()?;
    Ok(swept)
}

#[async_trait]
impl ReapStore for SqliteStore {
    async fn release(&self, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError> {
        let write = write.clone();
        self.writer
            .write("release a worker's runs", Urgency::Prompt, move |connection| {
                let kept = |woken: &Vec<Woken>| kept::json(&woken_ids(woken));
                let again = |connection: &Connection, kept: Option<&[u8]>| {
                    let ids: Vec<(RunId, bool)> = kept::json_again(kept)?;
                    woken_again(connection, &ids)
                };
                once(connection, &write, kept, again, |connection| {
                    let mut work = Work::new(connection, &write);
                    for row in held_by(connection, worker, usize::MAX)? {
                        decide(&mut work, &row, |run| run.hand_back(run.lease(), false, write.now))?;
                    }
                    drop_holder(connection, worker)?;
                    work.done()
                })
            })
            .await
    }

    async fn reap(&self, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError> {
        let (write, reap) = (write.clone(), *reap);
        self.writer
            .write("reap runs", Urgency::Prompt, move |connection| {
                once(
                    connection,
                    &write,
                    |reaped: &Vec<Reaped>| kept::reaped(reaped),
                    |_, kept| kept::reaped_again(kept),
                    |connection| reap_runs(connection, &write, reap),
                )
            })
            .await
    }

    async fn sweep(&self, write: &Write, limit: u32) -> Result<Vec<Reaped>, StoreError> {
        let write = write.clone();
        self.writer
            .write("sweep runs", Urgency::Prompt, move |connection| {
                once(
                    connection,
                    &write,
                    |reaped: &Vec<Reaped>| kept::reaped(reaped),
                    |_, kept| kept::reaped_again(kept),
                    |connection| sweep(connection, &write, limit as usize),
                )
            })
            .await
    }
}
