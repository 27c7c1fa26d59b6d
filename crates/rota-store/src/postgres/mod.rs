//! The PostgreSQL store.
//!
//! Every method is one transaction of set-based statements under READ
//! COMMITTED: rows are locked and read, pure code decides, and what it decided
//! is written for the whole batch at once. What needs no decision (settling,
//! claiming) is a single guarded statement.
//!
//! Locks are taken in one order, so that batches do not deadlock: pauses, jobs,
//! partitions, the runs that are executed, slots by key, the runs that wait for
//! them. Where two batches meet crosswise all the same, the server ends one and
//! it is run again.
//!
//! Statements run under generic plans: the planner, left to itself, changes its
//! mind about the same settlement between 7,000 and 75,000 runs a second.
//!
//! Nothing here chooses a transition, waits for time, or reads a clock.

/// So often a method that lost a race is run again; each is the same however
/// often it is run.
const TRIES_MAX: u32 = 8;

/// Runs it under its name until it meets no race, and tells what else went wrong.
macro_rules! tried {
    ($what:expr, $call:expr) => {{
        let mut tries = 0;
        loop {
            tries += 1;
            let tried: Result<_, $crate::postgres::fault::Fault> = $crate::failpoint::named($what, $call).await;
            match tried {
                Err(fault) if fault.is_transient() && tries < $crate::postgres::TRIES_MAX => {}
                other => break other.map_err(|fault| fault.told($what)),
            }
        }
    }};
}

mod after;
mod apply;
mod cancel;
mod change;
mod claim;
#[cfg(test)]
mod cut;
mod days;
mod dead;
mod engine;
mod extend;
mod fault;
mod finish;
mod fire;
mod follow;
mod hints;
mod history;
mod insert;
mod jobs;
mod joins;
mod leases;
mod line;
mod logs;
mod look;
mod migrate;
mod once;
mod open;
mod own;
mod promote;
mod raw;
mod reap;
mod rows;
mod schedules;
mod settle;
mod skips;
mod slots;
mod tend;
#[cfg(test)]
mod tests;
mod tx;
mod unreadable;

use std::{collections::HashMap, sync::Arc, time::Duration};

use deadpool_postgres::{Pool, PoolError};
use parking_lot::RwLock;
use rota_core::{ids::LaneId, lane::LaneMode};
use tokio_postgres::Row;

use self::{days::Days, fault::Fault, line::Line, tx::Param};
use crate::{
    codec,
    engine::SqlStore,
    failpoint::{self, Moment},
    guests,
    unreadable::Notes,
};

pub use self::{
    hints::PostgresHints,
    look::look,
    open::{Limits, OpenError, Options},
    raw::{history_len, log_bytes, raw_loop},
};

/// Connections for one purpose.
struct Connections {
    own: Pool,
    /// Those of guests, where they are to have their own: a flood of requests then
    /// queues here, and no stage behind it.
    guests: Option<(Pool, Duration)>,
    /// How long one statement may take.
    limit: Duration,
    notes: Arc<Notes>,
}

impl Connections {
    async fn get(&self) -> Result<Line, PoolError> {
        let guests = self.guests.as_ref().filter(|_| guests::is_guest());
        let (pool, limit) = guests.map_or((&self.own, self.limit), |(pool, limit)| (pool, *limit));
        Ok(Line::new(pool.get().await?, limit))
    }
}

/// Rota's store on PostgreSQL 14 or newer.
pub type PostgresStore = SqlStore<Postgres>;

/// A database, and the connections to it.
pub struct Postgres {
    /// For everything but what is below.
    work: Connections,
    /// Kept back for leases and heartbeats, so that they never queue behind
    /// work.
    leases: Connections,
    /// For what may take its time: migrations, days of history that come and go, and
    /// clearing away.
    upkeep: Connections,
    /// For connections outside the pools.
    address: open::Address,
    schema: Option<String>,
    days: Days,
    /// A lane keeps its mode for ever, so what was read once stays true.
    lane_modes: RwLock<HashMap<LaneId, LaneMode>>,
    tending: tend::Tending,
    /// Rows that could not be read.
    notes: Arc<Notes>,
}

impl Postgres {
    /// One statement outside any transaction, on the work pool.
    async fn read(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        read_on(&self.work, sql, params).await
    }

    /// One statement that commits by itself. If its answer is lost it may have
    /// happened.
    async fn write_alone(&self, pool: &Connections, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        failpoint::pass_named(Moment::Written);
        let rows = read_on(pool, sql, params).await.map_err(|fault| match fault {
            Fault::Db(error) if error.as_db_error().is_none() => Fault::Lost(Box::new(error)),
            Fault::Silent(silence) => Fault::Lost(Box::new(silence)),
            other => other,
        })?;
        failpoint::pass_named(Moment::Committed);
        Ok(rows)
    }

    /// The modes of these lanes; one that does not exist is left out.
    async fn modes(&self, lanes: impl IntoIterator<Item = LaneId>) -> Result<HashMap<LaneId, LaneMode>, Fault> {
        let mut modes = HashMap::new();
        let mut unknown = Vec::new();
        {
            let known = self.lane_modes.read();
            for lane in lanes {
                match known.get(&lane) {
                    Some(mode) => drop(modes.insert(lane, *mode)),
                    None => unknown.push(lane.0),
                }
            }
        }
        if !unknown.is_empty() {
            unknown.sort_unstable();
            unknown.dedup();
            // On the pool kept back: the caller may hold a work connection.
            let sql = "SELECT id, mode FROM lane WHERE id = ANY($1)";
            for row in read_on(&self.leases, sql, &[&unknown]).await? {
                let (lane, mode) = (LaneId(row.try_get(0)?), codec::mode(row.try_get(1)?)?);
                modes.insert(lane, mode);
                self.lane_modes.write().insert(lane, mode);
            }
        }
        Ok(modes)
    }
}

async fn read_on(pool: &Connections, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
    let client = pool.get().await?;
    let statement = client.prepare(sql).await?;
    Ok(client.within(client.query(&statement, params)).await??)
}
