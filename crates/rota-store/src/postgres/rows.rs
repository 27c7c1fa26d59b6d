//! A live run's columns, read and written by place.

use rota_core::{run::Run, store::StoreError};
use tokio_postgres::Row;
use uuid::Uuid;

use super::fault::Fault;
use crate::{
    codec::{RunRow, status},
    unreadable::{self, Notes},
};

/// The columns of `run` in the order that [`run_row`] reads them.
pub(super) const RUN: &str = "r.id, r.tenant, r.job, r.version, r.lane, r.part, r.status, r.flags, r.order_key, \
     r.ready_at, r.created_at, r.expires_at, r.started_at, r.attempt, r.losses, r.fence, r.source, r.schedule, \
     r.planned_at, r.slot, r.slot_limit, r.parent, r.step, r.pending, r.holder, r.due_at, r.payload, r.extra, r.cancel, \
     r.first_started_at, r.item";

/// How many columns that is: what a query adds comes after them.
pub(super) const RUN_LEN: usize = 31;

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
        first_started_at: row.try_get(29)?,
        item: row.try_get(30)?,
    })
}

/// A live run; none where its row cannot be read, or was set aside for that.
pub(super) fn run(notes: &Notes, row: &Row) -> Option<Run> {
    locked(notes, row).map(|locked| locked.run)
}

/// Those that can be read.
pub(super) fn runs(notes: &Notes, rows: &[Row]) -> Vec<Run> {
    rows.iter().filter_map(|row| run(notes, row)).collect()
}

/// A row that was locked, with what is needed to change it.
#[derive(Clone, Debug)]
pub(super) struct Locked {
    pub run: Run,
    pub flags: i16,
}

/// As [`run`], for a row that was locked.
pub(super) fn locked(notes: &Notes, row: &Row) -> Option<Locked> {
    let read = || -> Result<Option<Locked>, Fault> {
        let row = run_row(row)?;
        if row.status >= status::SET_ASIDE {
            return Ok(None);
        }
        Ok(Some(Locked { run: row.run()?, flags: row.flags }))
    };
    read().unwrap_or_else(|fault| {
        let key = row.try_get::<_, Uuid>(0).map_or_else(|_| "?".to_owned(), |id| id.to_string());
        notes.note(unreadable::RUN, key, fault);
        None
    })
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
