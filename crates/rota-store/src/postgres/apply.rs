//! Applies changes to live runs: their rows, and what the core says follows from them.
//!
//! [`Effects`](rota_core::run::Effects) gathers what follows (slots given back, joins
//! opened, schedules re-armed), and [`follow`](super::follow) writes it in the same
//! transaction, so that whatever ends a run has the same consequences.

use std::collections::{BTreeSet, HashMap};

use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    ids::RunId,
    run::{Change, Run, Slots, TRAIL_BYTES_MAX, Tie, TrailEntry, WAITS_MAX, comes_to_wait, inherited, leaves_a_place},
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    fault::Fault,
    finish::{End, empty_if_null, finish_locked},
    follow::Aftermath,
    rows::Locked,
    tx::{Late, Tx, params},
};
use crate::codec::{cancel_text, duties, micros, small, state_columns};

pub(super) const MOVE: &str = "UPDATE run r SET status = u.status, flags = u.flags, pending = u.pending, holder = u.holder, \
     started_at = u.started_at, due_at = u.due_at, ready_at = u.ready_at, order_key = u.order_key, \
     attempt = u.attempt, losses = u.losses, fence = u.fence, cancel = u.cancel, \
     first_started_at = u.first_started_at, \
     trail = CASE WHEN u.line IS NULL OR octet_length(r.trail) >= $16 THEN r.trail ELSE concat(r.trail, u.line) END \
     FROM unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::smallint[], $5::uuid[], $6::bigint[], $7::bigint[], \
                 $8::bigint[], $9::bigint[], $10::smallint[], $11::smallint[], $12::int[], $13::text[], $14::text[], \
                 $15::bigint[]) \
          u (id, status, flags, pending, holder, started_at, due_at, ready_at, order_key, attempt, losses, fence, \
             cancel, line, first_started_at) \
     WHERE r.id = ANY(ARRAY[u.id])";

/// A locked run on its way to another state.
struct Moved<'a> {
    before: &'a Run,
    after: Run,
    flags: i16,
    line: Option<String>,
}

/// Writes locked runs as they stand after their moves.
fn write_moves(moved: &[Moved<'_>]) -> Late {
    let mut ids = Vec::with_capacity(moved.len());
    let (mut statuses, mut flags, mut pending, mut holders) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut started, mut due, mut ready, mut orders) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut attempts, mut losses, mut fences, mut first) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut cancels, mut lines) = (Vec::new(), Vec::new());
    for Moved { after: run, flags: row_flags, line, .. } in moved {
        let Some(columns) = state_columns(run, *row_flags) else { continue };
        ids.push(run.id.0);
        statuses.push(columns.status);
        flags.push(columns.flags);
        pending.push(columns.pending);
        holders.push(columns.holder);
        started.push(columns.started_at);
        due.push(columns.due_at);
        ready.push(micros(run.ready_at));
        orders.push(run.order_key().0);
        attempts.push(small(run.attempts_used));
        losses.push(small(run.losses));
        fences.push(run.fence.0);
        cancels.push(cancel_text(run.cancel.as_ref()));
        lines.push(line.clone());
        first.push(run.first_started_at.map(micros));
    }
    for column in [&mut cancels, &mut lines] {
        empty_if_null(column);
    }
    empty_if_null(&mut first);
    let most = TRAIL_BYTES_MAX as i32;
    let params = params![
        ids, statuses, flags, pending, holders, started, due, ready, orders, attempts, losses, fences, cancels, lines,
        first, most
    ];
    Late { sql: MOVE, params }
}

/// Applies changes to runs that this transaction has locked.
pub(super) async fn apply(
    tx: &Tx,
    now: Timestamp,
    changes: &[(Locked, Change)],
    slots: Slots,
    after: &mut Aftermath,
) -> Result<(), Fault> {
    apply_moves(tx, now, changes, slots, after).await?;
    tx.now(&std::mem::take(&mut after.owed)).await?;
    let mut ends: Vec<End<'_>> = Vec::new();
    for (row, change) in changes {
        if let Change::Finish(finish) = change {
            after.effects.change(&row.run, duties(row.flags), change, slots);
            ends.push((row.run.id, row.run.fence.0, finish));
        }
    }
    if ends.is_empty() {
        return Ok(());
    }
    vacate(tx, changes).await?;
    finish_locked(tx, &ends, after).await
}

/// Runs end while they wait for others: whoever of their schedules is behind them waits
/// for those instead. The ones ahead are locked (see `lock_runs`), so that none of them
/// ends meanwhile.
async fn vacate(tx: &Tx, changes: &[(Locked, Change)]) -> Result<(), Fault> {
    let vacant =
        |(row, change): &&(Locked, Change)| matches!(change, Change::Finish(_)) && leaves_a_place(&row.run.state);
    let ended: BTreeSet<RunId> = changes.iter().filter(vacant).map(|(row, _)| row.run.id).collect();
    if ended.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = ended.iter().map(|id| id.0).collect();
    let behind = "SELECT n.needed, n.waiter FROM need n JOIN run e ON e.id = n.needed JOIN run w ON w.id = n.waiter \
                  WHERE n.needed = ANY($1) AND w.schedule = e.schedule FOR UPDATE OF w";
    let ahead = "DELETE FROM need WHERE waiter = ANY($1) RETURNING needed, waiter";
    let found = tx.pipe(&[(behind, &[&ids]), (ahead, &[&ids])]).await?;
    let ties = |rows: &[Row]| -> Result<Vec<Tie>, Fault> {
        rows.iter().map(|row| Ok(Tie { needed: RunId(row.try_get(0)?), waiter: RunId(row.try_get(1)?) })).collect()
    };
    let inherited = inherited(&ended, &ties(&found[1])?, &ties(&found[0])?);
    if !inherited.is_empty() {
        let (needed, waiters): (Vec<Uuid>, Vec<Uuid>) =
            inherited.iter().map(|tie| (tie.needed.0, tie.waiter.0)).unzip();
        tx.rows(INHERIT, &[&needed, &waiters]).await?;
    }
    Ok(())
}

/// Ties to runs that are still there, and those who are tied wait for so many more.
const INHERIT: &str = formatcp!(
    "WITH tied AS (INSERT INTO need (needed, waiter) \
         SELECT u.needed, u.waiter FROM unnest($1::uuid[], $2::uuid[]) u (needed, waiter) \
         JOIN run r ON r.id = u.needed ON CONFLICT DO NOTHING RETURNING waiter) \
     UPDATE run r SET pending = least(r.pending + t.more, {WAITS_MAX})::smallint \
     FROM (SELECT waiter, count(*)::int AS more FROM tied GROUP BY waiter) t WHERE r.id = t.waiter"
);

/// The moves among these changes: what follows from them is taken in, and they are owed
/// to the store.
pub(super) async fn apply_moves(
    tx: &Tx,
    now: Timestamp,
    changes: &[(Locked, Change)],
    slots: Slots,
    after: &mut Aftermath,
) -> Result<(), Fault> {
    let mut moved = Vec::new();
    for (row, change) in changes {
        let Change::Move(step) = change else { continue };
        let run = after.effects.change(&row.run, duties(row.flags), change, slots);
        let line = step.trail.as_ref().map(TrailEntry::line);
        moved.push(Moved { before: &row.run, after: run, flags: row.flags, line });
    }
    count_children(tx, now, &mut moved, after).await?;
    if !moved.is_empty() {
        after.changed = true;
        after.owed.push(write_moves(&moved));
    }
    Ok(())
}

/// Steps may have ended while their parent was on its way to wait for them;
/// those it would wait for in vain are taken off at once. The parent is locked,
/// so a step that ends from now on finds it waiting.
async fn count_children(tx: &Tx, now: Timestamp, moved: &mut [Moved<'_>], after: &mut Aftermath) -> Result<(), Fault> {
    let waits = |moved: &&mut Moved<'_>| comes_to_wait(moved.before, &moved.after).is_some();
    let waiting: Vec<&mut Moved<'_>> = moved.iter_mut().filter(waits).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    let parents: Vec<Uuid> = waiting.iter().map(|moved| moved.after.id.0).collect();
    let sql = "SELECT parent, count(*) FROM run WHERE parent = ANY($1) AND parent IS NOT NULL GROUP BY parent";
    let mut live: HashMap<Uuid, i64> = HashMap::new();
    for row in tx.rows(sql, &[&parents]).await? {
        live.insert(row.try_get(0)?, row.try_get(1)?);
    }
    for Moved { before, after: run, flags, .. } in waiting {
        let live = live.get(&run.id.0).copied().unwrap_or(0).max(0) as u64;
        let missed = after.effects.missed(before, run, live);
        if missed > 0
            && let Ok(change) = run.join(missed, None, now)
        {
            *run = after.effects.change(run, duties(*flags), &change, Slots::Counted);
        }
    }
    Ok(())
}
