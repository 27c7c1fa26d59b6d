//! A live run's columns, read and written by place.

use rota_core::{run::Run, store::StoreError};
use tokio_postgres::Row;
use uuid::Uuid;

use super::fault::Fault;
use crate::codec::{RunRow, status};

/// The columns of `run` in the order that [`run_row`] reads them.
macro_rules! run_columns {
    () => {
        "r.id, r.tenant, r.job, r.version, r.lane, r.part, r.status, r.flags, r.order_key, r.ready_at, r.created_at, \
         r.expires_at, r.started_at, r.attempt, r.losses, r.fence, r.source, r.schedule, r.planned_at, r.slot, \
         r.slot_limit, r.parent, r.step, r.pending, r.holder, r.due_at, r.payload, r.extra, r.cancel"
    };
}
pub(super) use run_columns;

/// How many columns that is: what a query adds comes after them.
pub(super) const RUN_COLUMNS: usize = 29;

pub(super) fn run_row(row: &Row) -> Result<RunRow, Fault> {
    Ok(RunRow {
        id: row.try_get(0)?,
        tenant: row.try_get(1)?,
        job: row.try_get(2)?,
        version: row.try_get(3)?,
        lane: row.try_get(4)?,
        part: row.try_get(5)?,
        status: row.try_get(6)?,
        flags: row.try_get(7)?,
        order_key: row.try_get(8)?,
        ready_at: row.try_get(9)?,
        created_at: row.try_get(10)?,
        expires_at: row.try_get(11)?,
        started_at: row.try_get(12)?,
        attempt: row.try_get(13)?,
        losses: row.try_get(14)?,
        fence: row.try_get(15)?,
        source: row.try_get(16)?,
        schedule: row.try_get(17)?,
        planned_at: row.try_get(18)?,
        slot: row.try_get(19)?,
        slot_limit: row.try_get(20)?,
        parent: row.try_get(21)?,
        step: row.try_get(22)?,
        pending: row.try_get(23)?,
        holder: row.try_get(24)?,
        due_at: row.try_get(25)?,
        payload: row.try_get(26)?,
        extra: row.try_get(27)?,
        cancel: row.try_get(28)?,
    })
}

pub(super) fn run(row: &Row) -> Result<Run, Fault> {
    Ok(run_row(row)?.run()?)
}

pub(super) fn runs(rows: &[Row]) -> Result<Vec<Run>, Fault> {
    rows.iter().map(run).collect()
}

/// A row that was locked, with what is needed to change it.
#[derive(Clone, Debug)]
pub(super) struct Locked {
    pub run: Run,
    pub flags: i16,
}

pub(super) fn locked(row: &Row) -> Result<Locked, Fault> {
    let row = run_row(row)?;
    let flags = row.flags;
    Ok(Locked { run: row.run()?, flags })
}

pub(super) fn ids(rows: &[Row]) -> Result<Vec<Uuid>, Fault> {
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// The status that a stored code stands for.
pub(super) fn status_of(code: i16) -> Result<rota_core::run::Status, StoreError> {
    use rota_core::run::Status;
    Ok(match code {
        status::SCHEDULED => Status::Scheduled,
        status::BLOCKED | status::NEEDS => Status::Blocked,
        status::QUEUED => Status::Queued,
        status::RUNNING => Status::Running,
        status::WAITING => Status::Waiting,
        status::CANCELLING => Status::Cancelling,
        _ => return Err(crate::codec::corrupt("a status", code)),
    })
}
