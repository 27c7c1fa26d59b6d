//! Days: the partitions of history and logs.
//!
//! Made ahead by opening and upkeep, and on demand by whoever is about to write
//! into a day that this process has not seen yet, so midnight is no event. A
//! day is made as a table of its own and then attached, which blocks nobody.

use std::collections::HashSet;

use jiff::{Timestamp, tz::TimeZone};
use parking_lot::RwLock;

use super::{Postgres, fault::Fault};
use crate::codec::time;

pub(super) const DAY_MICROS: i64 = 86_400_000_000;

/// The tables that are cut by days.
pub(super) const DAILY: [&str; 2] = ["history", "log"];

/// The days this process knows to be there.
#[derive(Debug, Default)]
pub(super) struct Days(RwLock<HashSet<i64>>);

impl Days {
    fn has(&self, day: i64) -> bool {
        self.0.read().contains(&day)
    }

    fn learn(&self, day: i64) {
        self.0.write().insert(day);
    }

    /// Someone dropped a day: look again.
    pub(super) fn forget(&self) {
        self.0.write().clear();
    }
}

/// The day that `micros` lies in.
pub(super) fn day_of(micros: i64) -> i64 {
    micros.div_euclid(DAY_MICROS)
}

/// `history_20251031`.
pub(super) fn table_of(daily: &str, day: i64) -> Result<String, Fault> {
    let at: Timestamp = time(day * DAY_MICROS)?;
    let date = at.to_zoned(TimeZone::UTC).date();
    Ok(format!("{daily}_{:04}{:02}{:02}", date.year(), date.month(), date.day()))
}

impl Postgres {
    /// Makes sure that what happens at `micros` can be written.
    pub(super) async fn have_day(&self, micros: i64) -> Result<(), Fault> {
        let day = day_of(micros);
        if self.days.has(day) {
            return Ok(());
        }
        self.make_day(day).await?;
        self.days.learn(day);
        Ok(())
    }

    async fn make_day(&self, day: i64) -> Result<(), Fault> {
        let (from, to) = (day * DAY_MICROS, (day + 1) * DAY_MICROS);
        let mut steps = Vec::with_capacity(DAILY.len());
        for daily in DAILY {
            let table = table_of(daily, day)?;
            steps.push(format!(
                "IF to_regclass('{table}') IS NULL THEN
                     CREATE TABLE {table} (LIKE {daily} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE);
                     ALTER TABLE {daily} ATTACH PARTITION {table} FOR VALUES FROM ({from}) TO ({to});
                 END IF; "
            ));
        }
        // One maker at a time; the others find it made. The lock is released
        // with the statement's own transaction.
        let lock = "PERFORM pg_advisory_xact_lock(hashtextextended('rota days of ' || current_schema(), 0)); ";
        let client = self.upkeep.get().await?;
        client.within(client.batch_execute(&format!("DO $$ BEGIN {lock}{}END $$", steps.concat()))).await??;
        Ok(())
    }
}
