//! Skips: planned instants that made no run, recorded as stretches.
//!
//! A schedule that skips for the same reason again and again, with nothing
//! fired in between, has one row that grows, not one per instant.

use std::collections::{BTreeMap, HashMap};

use rota_core::fire::SkipRange;
use tokio_postgres::Row;

use super::{fault::Fault, tx::Tx};
use crate::codec::{micros, skip_reason, skip_reason_code, time};

/// A stretch to record, with the schedule's count of runs when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skip {
    pub schedule: i64,
    pub range: SkipRange,
    pub fired: u64,
}

fn skip(row: &Row) -> Result<Skip, Fault> {
    let range = SkipRange {
        from: time(row.try_get(1)?)?,
        to: time(row.try_get(2)?)?,
        count: row.try_get::<_, i64>(3)?.max(0) as u64,
        reason: skip_reason(row.try_get(4)?)?,
    };
    Ok(Skip { schedule: row.try_get(0)?, range, fired: row.try_get::<_, i64>(5)?.max(0) as u64 })
}

const LATEST: &str = "SELECT k.* FROM unnest($1::bigint[]) u (schedule), LATERAL ( \
     SELECT schedule, from_at, to_at, count, reason, fired FROM skip WHERE schedule = u.schedule \
     ORDER BY from_at DESC LIMIT 1) k";

/// Records stretches, each schedule's in order. The caller holds what
/// serialises the schedule: its cursor, or its own row.
pub(super) async fn record(tx: &Tx, skips: &[Skip]) -> Result<(), Fault> {
    if skips.is_empty() {
        return Ok(());
    }
    let mut schedules: Vec<i64> = skips.iter().map(|skip| skip.schedule).collect();
    schedules.sort_unstable();
    schedules.dedup();
    let mut last: HashMap<i64, Skip> = HashMap::new();
    for row in tx.rows(LATEST, &[&schedules]).await? {
        let (schedule, from): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let known = tx.notes.readable("skip", format_args!("{schedule}/{from}"), skip(&row));
        last.extend(known.map(|known| (schedule, known)));
    }
    let mut written: BTreeMap<(i64, i64), Skip> = BTreeMap::new();
    for new in skips {
        let grown = last.get(&new.schedule).and_then(|known| grown(known, new)).unwrap_or(*new);
        last.insert(new.schedule, grown);
        written.insert((grown.schedule, micros(grown.range.from)), grown);
    }
    let keys: Vec<i64> = written.values().map(|skip| skip.schedule).collect();
    let from: Vec<i64> = written.values().map(|skip| micros(skip.range.from)).collect();
    let to: Vec<i64> = written.values().map(|skip| micros(skip.range.to)).collect();
    let counts: Vec<i64> = written.values().map(|skip| skip.range.count as i64).collect();
    let reasons: Vec<i16> = written.values().map(|skip| skip_reason_code(skip.range.reason)).collect();
    let fired: Vec<i64> = written.values().map(|skip| skip.fired as i64).collect();
    tx.rows(
        "INSERT INTO skip (schedule, from_at, to_at, count, reason, fired) \
         SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::smallint[], $6::bigint[]) \
         ON CONFLICT (schedule, from_at) DO UPDATE SET to_at = excluded.to_at, count = excluded.count, \
             reason = excluded.reason, fired = excluded.fired",
        &[&keys, &from, &to, &counts, &reasons, &fired],
    )
    .await?;
    Ok(())
}

/// The known stretch with the new one added, if they are one.
fn grown(known: &Skip, new: &Skip) -> Option<Skip> {
    if known.range.reason != new.range.reason || known.fired != new.fired || new.range.from <= known.range.to {
        return None;
    }
    let range = SkipRange { to: new.range.to, count: known.range.count + new.range.count, ..known.range };
    Some(Skip { range, ..*known })
}
