//! Finish: runs that ended leave the live table and enter history in one statement.
//!
//! The right to end one is in the `WHERE`: the fence for everyone, and for an owner its
//! partitions' epochs, locked against a take-over until the commit.

use std::collections::BTreeMap;

use const_format::formatcp;
use rota_core::{
    ids::{Partition, RunId},
    run::{Finish, Slots, TRAIL_BYTES_MAX},
    store::Epoch,
};
use tokio_postgres::{Row, types::ToSql};
use uuid::Uuid;

use super::{
    after,
    fault::Fault,
    follow::Aftermath,
    tx::{Param, Tx},
};
use crate::codec::{
    EndingColumns, micros, small,
    sql::{ANSWERS_CANCEL, EXECUTED},
    verdict_code,
};

/// Epochs of partitions, by which an owner's right is checked.
#[derive(Default)]
pub(super) struct Right {
    pub parts: Vec<i16>,
    pub epochs: Vec<i64>,
}

impl Right {
    /// Of these claims; none where one partition is claimed under two epochs.
    pub(super) fn of(claims: impl IntoIterator<Item = (Partition, Epoch)>) -> BTreeMap<i16, i64> {
        let mut right = BTreeMap::new();
        for (part, epoch) in claims {
            let known = right.entry(i16::from(part.0)).or_insert(epoch.0);
            // Two epochs of one partition cannot both be right; the newer may.
            *known = (*known).max(epoch.0);
        }
        right
    }

    pub(super) fn from(right: &BTreeMap<i16, i64>) -> Self {
        Self { parts: right.keys().copied().collect(), epochs: right.values().copied().collect() }
    }
}

/// Of the partitions named, those whose epoch is as claimed, locked until the
/// end of the transaction so that no one takes them over meanwhile.
pub(super) const OWNED_PARTS: &str = "SELECT part FROM partition \
     WHERE part = ANY($1::smallint[]) AND epoch = ($2::bigint[])[array_position($1::smallint[], part)] \
     ORDER BY part FOR SHARE";

/// Drops the partitions that are not the claimant's any more.
pub(super) async fn confirm(tx: &Tx, right: &mut BTreeMap<i16, i64>) -> Result<(), Fault> {
    if right.is_empty() {
        return Ok(());
    }
    let asked = Right::from(right);
    let rows = tx.rows(OWNED_PARTS, &[&asked.parts, &asked.epochs]).await?;
    let held: Vec<i16> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    right.retain(|part, _| held.contains(part));
    Ok(())
}

/// By what right runs are ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    /// Rows this transaction has locked and decided on.
    Locked,
    Owner,
    Lease,
}

impl Guard {
    /// Whether a written lease is needed; none where the rows are locked.
    pub(super) const fn leased(self) -> Option<bool> {
        match self {
            Self::Locked => None,
            Self::Owner => Some(false),
            Self::Lease => Some(true),
        }
    }
}

/// Moves runs to history. `$1, $2` are the owner's partitions and epochs: if
/// one is lost nothing happens at all. `$13` is whether a written lease is
/// needed (null: the rows are locked and decided on). An owner ends only what it
/// may be executing, in the partition it names.
///
/// The slots that this frees are written later, by the [follow-up](super::follow):
/// history is the long part, and others wait for whoever has locked a slot.
///
/// `id = ANY(ARRAY[u.id])` is `id = u.id`, which is all that it means. But the
/// planner can only look such a row up, and neither hash nor sort the table of
/// runs: while that is empty it thinks reading all of it the cheapest, and the
/// plan outlives the moment.
pub(super) const FINISH: &str = formatcp!(
    "
WITH own AS MATERIALIZED (
    SELECT part FROM partition
    WHERE part = ANY($1::smallint[]) AND epoch = ($2::bigint[])[array_position($1::smallint[], part)]
    ORDER BY part FOR SHARE
), ended AS (
    DELETE FROM run r
    USING unnest($3::uuid[], $4::int[], $5::smallint[], $6::bigint[], $7::bigint[], $8::smallint[], $9::smallint[],
                 $10::text[], $11::text[], $12::text[], $15::smallint[])
          WITH ORDINALITY u (id, fence, verdict, ended_at, started_at, attempt, losses, failure, output, line, part, n)
    WHERE r.id = ANY(ARRAY[u.id]) AND r.fence = u.fence
      AND (SELECT count(*) FROM own) = cardinality($1::smallint[])
      AND ($13::bool IS NULL OR ((r.holder IS NOT NULL) = $13 AND (r.cancel IS NULL OR u.verdict IN ({ANSWERS_CANCEL}))
                                 AND ($13 OR (r.part = u.part AND r.status IN ({EXECUTED})))))
    RETURNING u.n, u.verdict, u.ended_at, u.started_at, u.attempt, u.losses, u.failure, u.output, u.line,
              r.id, r.job, r.order_key, r.ready_at, r.created_at, r.expires_at, r.schedule, r.planned_at, r.slot,
              r.tenant, r.version, r.lane, r.fence, r.slot_limit, r.part, r.source, r.step, r.parent, r.payload,
              r.extra, r.cancel, r.progress, r.trail, r.status, r.flags, r.first_started_at, r.item
), kept AS (
    INSERT INTO history (id, job, ended_at, order_key, ready_at, created_at, started_at, expires_at, schedule,
                         planned_at, slot, tenant, version, lane, fence, slot_limit, part, verdict, attempt, losses,
                         source, step, parent, payload, extra, cancel, progress, trail, failure, output,
                         first_started_at, item)
    SELECT id, job, ended_at, order_key, ready_at, created_at, started_at, expires_at, schedule,
           planned_at, slot, tenant, version, lane, fence, slot_limit, part, verdict, attempt, losses,
           source, step, parent, payload, extra, cancel, progress,
           CASE WHEN line IS NULL OR octet_length(trail) >= $14 THEN trail ELSE concat(trail, line) END,
           failure, output, first_started_at, item
    FROM ended
)
SELECT array_agg(n), array_agg(job), array_agg(ready_at), array_agg(flags), array_agg(schedule), array_agg(parent),
       array_agg(slot), array_agg(slot_limit), array_agg(status)
FROM ended"
);

/// Finishes as columns. A column of nothing but nulls stays empty: `unnest`
/// fills it up.
#[derive(Default)]
pub(super) struct Finishes {
    ids: Vec<Uuid>,
    fences: Vec<i32>,
    verdicts: Vec<i16>,
    ended: Vec<i64>,
    started: Vec<Option<i64>>,
    attempts: Vec<i16>,
    losses: Vec<i16>,
    failures: Vec<Option<String>>,
    outputs: Vec<Option<String>>,
    lines: Vec<Option<String>>,
}

impl Finishes {
    pub(super) fn of(finishes: &[End<'_>]) -> Result<Self, Fault> {
        let mut columns = Self::default();
        for &(id, fence, finish) in finishes {
            let failure = finish.failure.as_ref().map(serde_json::to_string).transpose();
            let failure = failure.map_err(|e| crate::codec::corrupt("a failure to store", e))?;
            columns.ids.push(id.0);
            columns.fences.push(fence);
            columns.verdicts.push(verdict_code(finish.verdict));
            columns.ended.push(micros(finish.ended_at));
            columns.started.push(finish.started_at.map(micros));
            columns.attempts.push(small(finish.attempts_used));
            columns.losses.push(small(finish.losses));
            columns.failures.push(failure);
            columns.outputs.push(finish.output.as_deref().map(str::to_owned));
            columns.lines.push(finish.trail.as_ref().map(rota_core::run::TrailEntry::line));
        }
        empty_if_null(&mut columns.failures);
        empty_if_null(&mut columns.outputs);
        empty_if_null(&mut columns.lines);
        empty_if_null(&mut columns.started);
        Ok(columns)
    }

    #[allow(clippy::ref_option, reason = "the driver binds a reference to what it sends")]
    pub(super) fn params<'a>(
        &'a self,
        right: &'a Right,
        leased: &'a Option<bool>,
        most: &'a i32,
        parts: &'a (impl ToSql + Sync),
    ) -> [Param<'a>; 15] {
        [
            &right.parts,
            &right.epochs,
            &self.ids,
            &self.fences,
            &self.verdicts,
            &self.ended,
            &self.started,
            &self.attempts,
            &self.losses,
            &self.failures,
            &self.outputs,
            &self.lines,
            leased,
            most,
            parts,
        ]
    }
}

pub(super) fn empty_if_null<T>(column: &mut Vec<Option<T>>) {
    if column.iter().all(Option::is_none) {
        column.clear();
    }
}

/// One end: whose, and under which fence.
pub(super) type End<'a> = (RunId, i32, &'a Finish);

/// Ends runs that this transaction has locked, and whose consequences are known.
pub(super) async fn finish_locked(tx: &Tx, finishes: &[End<'_>], after: &mut Aftermath) -> Result<(), Fault> {
    after.changed = true;
    send(tx, &Right::default(), Guard::Locked, finishes, &[], after).await.map(drop)
}

/// Ends runs by the right that their settlers claim: for each, whether it was found.
pub(super) async fn finish(
    tx: &Tx,
    right: &Right,
    guard: Guard,
    finishes: &[End<'_>],
    parts: &[i16],
    after: &mut Aftermath,
) -> Result<Vec<bool>, Fault> {
    let rows = send(tx, right, guard, finishes, parts, after).await?;
    finished(&rows, finishes, after)
}

async fn send(
    tx: &Tx,
    right: &Right,
    guard: Guard,
    finishes: &[End<'_>],
    parts: &[i16],
    after: &mut Aftermath,
) -> Result<Vec<Row>, Fault> {
    let columns = Finishes::of(finishes)?;
    let (leased, most) = (guard.leased(), TRAIL_BYTES_MAX as i32);
    let params = columns.params(right, &leased, &most, &parts);
    let mut brought = tx.pipe(&[(FINISH, &params), (after::WAITED_FOR, &[])]).await?;
    after.heed(&brought[1])?;
    Ok(brought.swap_remove(0))
}

/// Takes in what [`FINISH`] brought: for each finish, whether its run was found.
pub(super) fn finished(rows: &[Row], finishes: &[End<'_>], after: &mut Aftermath) -> Result<Vec<bool>, Fault> {
    let mut found = vec![false; finishes.len()];
    let Some(gone) = rows.first().map(Gone::read).transpose()?.flatten() else { return Ok(found) };
    for (row, n) in gone.places.iter().enumerate() {
        let at = *n as usize - 1;
        found[at] = true;
        let (id, _, finish) = finishes[at];
        after.effects.end(&gone.columns(row, id).ending(), finish, Slots::ToCount);
    }
    after.changed = true;
    Ok(found)
}

/// What [`FINISH`] found, by columns: a row of the answer for each run costs
/// both sides more than the rest of what is said of it.
struct Gone {
    /// Places among the finishes, from 1.
    places: Vec<i64>,
    jobs: Vec<i64>,
    ready: Vec<i64>,
    flags: Vec<i16>,
    schedules: Vec<Option<i64>>,
    parents: Vec<Option<Uuid>>,
    slots: Vec<Option<i64>>,
    limits: Vec<Option<i32>>,
    statuses: Vec<i16>,
}

impl Gone {
    /// None where nothing was found.
    fn read(row: &Row) -> Result<Option<Self>, Fault> {
        let Some(places) = row.try_get(0)? else { return Ok(None) };
        Ok(Some(Self {
            places,
            jobs: row.try_get(1)?,
            ready: row.try_get(2)?,
            flags: row.try_get(3)?,
            schedules: row.try_get(4)?,
            parents: row.try_get(5)?,
            slots: row.try_get(6)?,
            limits: row.try_get(7)?,
            statuses: row.try_get(8)?,
        }))
    }

    fn columns(&self, row: usize, id: RunId) -> EndingColumns {
        EndingColumns {
            id: id.0,
            job: self.jobs[row],
            ready_at: self.ready[row],
            schedule: self.schedules[row],
            parent: self.parents[row],
            slot: self.slots[row],
            slot_limit: self.limits[row],
            status: self.statuses[row],
            flags: self.flags[row],
        }
    }
}
