//! Changes that are decided on the row itself, inside its transaction: cancel,
//! promote, wake, release, reap, sweep.

use crate::codec::sql::{CANCELLING, CLAIMED_LANE, NOT_EXECUTED, QUEUED, SCHEDULED};
use const_format::formatcp;
use rota_core::{
    ids::{Partition, RunId, WorkerId},
    run::{CancelAsk, Change, Refusal, Run, Slots},
    store::{CancelAnswer, Guarded, Promoted, Reap, Reaped, StoreError, Woken, Write},
};
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};

use super::{
    SqliteStore,
    apply::Work,
    failed,
    follow::{woken_again, woken_ids},
    history,
    insert::cancel_one,
    once::once,
    own::guarded,
    rows::{Live, live_row, live_rows, select_run, uuid_at},
    writer::Urgency,
};
use crate::{
    codec::{micros, time_opt},
    kept::{self, Kept},
};

impl SqliteStore {
    pub(super) async fn do_request_cancel(
        &self,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<Vec<CancelAnswer>, StoreError> {
        let (write, runs, ask) = (write.clone(), runs.to_vec(), ask.clone());
        self.writer
            .write("cancel runs", Urgency::Prompt, move |connection| {
                once(
                    connection,
                    &write,
                    kept::json,
                    |_, kept| kept::json_again(kept),
                    |connection| {
                        let mut work = Work::new(connection, &write);
                        let answers =
                            runs.iter().map(|id| cancel(&mut work, *id, &ask)).collect::<Result<Vec<_>, _>>()?;
                        work.done_unnamed()?;
                        Ok(answers)
                    },
                )
            })
            .await
    }

    pub(super) async fn do_promote(
        &self,
        write: &Write,
        parts: &[Partition],
        limit: u32,
    ) -> Result<Promoted, StoreError> {
        let (write, parts) = (write.clone(), parts.to_vec());
        self.writer
            .write("promote delayed runs", Urgency::Prompt, move |connection| {
                once(connection, &write, kept_promoted, promoted_again, |connection| {
                    promote(connection, &write, &parts, limit as usize)
                })
            })
            .await
    }

    pub(super) async fn do_wake(&self, write: &Write, runs: &[RunId]) -> Result<Vec<Guarded>, StoreError> {
        let (write, runs) = (write.clone(), runs.to_vec());
        let count = runs.len();
        self.writer
            .write("wake runs", Urgency::Prompt, move |connection| {
                guarded(connection, &write, count, |connection| {
                    let mut work = Work::new(connection, &write);
                    let mut answers = Vec::with_capacity(runs.len());
                    for id in &runs {
                        let row = live_row(connection, id.0)?;
                        let changed = row.map(|row| decide(&mut work, &row, Run::wake)).transpose()?.flatten();
                        answers.push(if changed.is_some() { Guarded::Applied } else { Guarded::Stale });
                    }
                    work.done_unnamed()?;
                    Ok(answers)
                })
            })
            .await
    }

    pub(super) async fn do_release(&self, write: &Write, worker: WorkerId) -> Result<Vec<Woken>, StoreError> {
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

    pub(super) async fn do_reap(&self, write: &Write, reap: &Reap) -> Result<Vec<Reaped>, StoreError> {
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

    pub(super) async fn do_sweep(&self, write: &Write, limit: u32) -> Result<Vec<Reaped>, StoreError> {
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

/// Applies what `choose` decides on a live run; none where it refuses.
fn decide(
    work: &mut Work<'_>,
    row: &Live,
    choose: impl FnOnce(&Run) -> Result<Change, Refusal>,
) -> Result<Option<Reaped>, StoreError> {
    decide_counted(work, row, Slots::ToCount, choose)
}

fn decide_counted(
    work: &mut Work<'_>,
    row: &Live,
    slots: Slots,
    choose: impl FnOnce(&Run) -> Result<Change, Refusal>,
) -> Result<Option<Reaped>, StoreError> {
    let mut run = row.run.clone();
    let Ok(change) = choose(&run) else { return Ok(None) };
    work.change(row, &run, &change, slots)?;
    run.apply(&change);
    Ok(Some(Reaped { id: run.id, job: run.job, tenant: run.tenant, status: run.state.status() }))
}

fn cancel(work: &mut Work<'_>, id: RunId, ask: &CancelAsk) -> Result<CancelAnswer, StoreError> {
    let Some(row) = work.row(id.0)? else {
        let ended = history::table_of(work.connection, id.0)?.is_some();
        return Ok(if ended { CancelAnswer::Ended } else { CancelAnswer::NotFound });
    };
    let run = row.run;
    if !cancel_one(work, &run, ask)? {
        return Ok(CancelAnswer::AlreadyAsked);
    }
    let gone = work.row(id.0)?.is_none();
    Ok(if gone { CancelAnswer::Cancelled } else { CancelAnswer::Asked })
}

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

fn held_by(connection: &Connection, worker: WorkerId, limit: usize) -> Result<Vec<Live>, StoreError> {
    let sql = select_run("WHERE run.holder = ?1 ORDER BY run.id");
    live_rows(connection, &sql, [worker.0.as_bytes()], limit, |_| true)
}

fn drop_holder(connection: &Connection, worker: WorkerId) -> Result<(), StoreError> {
    connection
        .prepare_cached("DELETE FROM holder WHERE worker = ?1")
        .and_then(|mut delete| delete.execute([worker.0.as_bytes()]))
        .map_err(failed)?;
    Ok(())
}

fn reap_runs(connection: &Connection, write: &Write, reap: Reap) -> Result<Vec<Reaped>, StoreError> {
    let gone: Vec<WorkerId> = {
        let sql = "SELECT worker FROM holder WHERE until < ?1 ORDER BY worker";
        let mut select = connection.prepare_cached(sql).map_err(failed)?;
        let rows = select.query_map([micros(reap.before)], |row| uuid_at(row, 0).map(WorkerId)).map_err(failed)?;
        rows.collect::<Result<_, _>>().map_err(failed)?
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
