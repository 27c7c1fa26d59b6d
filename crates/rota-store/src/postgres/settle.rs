//! Settling, and every other change of a run's state.
//!
//! A finished run leaves the live table and enters history in one statement,
//! which also frees its slot. What follows from that (waiting runs admitted,
//! joins opened, schedules re-armed) is done in the same transaction by
//! [`PostgresStore::follow`], whoever made the change.
//!
//! The right to settle is in the `WHERE`: the fence for everyone, and for an
//! owner its partitions' epochs, locked against a take-over until the commit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use rota_core::{
    fire::Progress,
    ids::{JobId, LaneId, NodeId, Partition, RunId, ScheduleId},
    lane::LaneMode,
    rollup::{Ended, Rollup, hour_of},
    run::{Block, Change, Finish, NewRun, Run, RunState, TRAIL_BYTES_MAX, Tie, Verdict, WaitFor, inherited},
    slot::Entry,
    store::{By, EndedRun, Epoch, Guarded, Settled, Settlement, StoreError, Woken, Write},
};
use serde::{Deserialize, Serialize};
use tokio_postgres::{Row, types::ToSql};
use uuid::Uuid;

use super::{
    PostgresStore, after, dead,
    fault::Fault,
    fire::write_cursors,
    insert::make_followers,
    once::Once,
    row::{Locked, locked, run_columns, runs},
    slots,
    tx::{Bound, Ending, Late, Param, Tx, params},
};
use crate::{
    codec::{cancel_text, flag, micros, state_columns, time, time_opt, verdict_code},
    definition::rearmed,
    kept, rollup,
};

/// What changes leave to be done before the commit, and to be told after it.
#[derive(Default)]
pub(super) struct Aftermath {
    /// Ended runs that others wait for.
    pub needed: Vec<Uuid>,
    /// How many steps of each parent have ended.
    pub parents: HashMap<Uuid, u16>,
    /// Schedule, run and end of ended runs that re-arm.
    pub rearm: Vec<(i64, Uuid, i64)>,
    /// What moves did to slots, not yet written.
    pub shifts: BTreeMap<i64, slots::Shift>,
    /// Keys that may have free slots and someone waiting.
    pub room: BTreeSet<i64>,
    /// Runs that became ready.
    pub queued: Vec<Run>,
    /// Runs that now wait for their time.
    pub delayed: Vec<RunId>,
    /// Runs whose owner is asked to stop them.
    pub stopping: Vec<Run>,
    pub rollups: BTreeMap<(JobId, i64), Rollup>,
    /// Moves that are decided and not yet written: they travel with the slots.
    pub owed: Vec<Late>,
    /// Runs that ended, and whether any job waits for another's end.
    pub over: Vec<after::Over>,
    pub waited_for: bool,
    /// Runs that follow those that have died.
    pub followers: Vec<NewRun>,
    /// Runs that have died and wait for somebody, with their ends.
    pub dead: Vec<(Uuid, i64)>,
    /// Runs that ended otherwise than by being settled.
    pub ends: Vec<EndedRun>,
    /// Statements that can wait for the commit.
    pub late: Vec<Late>,
    /// Anything was written.
    pub changed: bool,
}

impl Aftermath {
    fn count(&mut self, job: i64, ready_at: i64, finish: &Finish) -> Result<(), Fault> {
        let ended = Ended {
            verdict: finish.verdict,
            ready_at: crate::codec::time(ready_at)?,
            started_at: finish.started_at,
            ended_at: finish.ended_at,
            attempts: finish.attempts_used.saturating_add(u16::from(finish.verdict == Verdict::Succeeded)),
            losses: finish.losses,
        };
        self.rollups.entry((JobId(job), hour_of(finish.ended_at))).or_default().add(&ended);
        Ok(())
    }

    /// Whether any job waits for another's end.
    fn heed(&mut self, rows: &[Row]) -> Result<(), Fault> {
        self.waited_for |= rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false);
        Ok(())
    }

    /// How the transaction ends, with this answer to keep.
    pub(super) fn ending(&mut self, answer: Option<Vec<u8>>) -> Ending {
        let delta = (!self.rollups.is_empty()).then(|| rollup::encode(&self.rollups));
        let (late, ends) = (std::mem::take(&mut self.late), std::mem::take(&mut self.ends));
        Ending { answer, delta, ends, idle: !self.changed && late.is_empty(), late }
    }
}

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

    fn from(right: &BTreeMap<i16, i64>) -> Self {
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

/// How finishes are guarded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// Rows this transaction has locked and decided on.
    Locked,
    /// The same, and their slots' counters are right already.
    LockedAndCounted,
    Owner,
    Lease,
}

impl Guard {
    /// Whether a written lease is needed; none where the rows are locked.
    const fn leased(self) -> Option<bool> {
        match self {
            Self::Locked | Self::LockedAndCounted => None,
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
/// The slots that this frees are written later, by [`PostgresStore::follow`]:
/// history is the long part, and others wait for whoever has locked a slot.
///
/// `id = ANY(ARRAY[u.id])` is `id = u.id`, which is all that it means. But the
/// planner can only look such a row up, and neither hash nor sort the table of
/// runs: while that is empty it thinks reading all of it the cheapest, and the
/// plan outlives the moment.
pub(super) const FINISH: &str = "
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
      AND ($13::bool IS NULL OR ((r.holder IS NOT NULL) = $13 AND (r.cancel IS NULL OR u.verdict IN (0, 3))
                                 AND ($13 OR (r.part = u.part AND r.status IN (2, 3, 5)))))
    RETURNING u.n, u.verdict, u.ended_at, u.started_at, u.attempt, u.losses, u.failure, u.output, u.line,
              r.id, r.job, r.order_key, r.ready_at, r.created_at, r.expires_at, r.schedule, r.planned_at, r.slot,
              r.tenant, r.version, r.lane, r.fence, r.slot_limit, r.part, r.source, r.step, r.parent, r.payload,
              r.extra, r.cancel, r.progress, r.trail, r.status, r.flags
), kept AS (
    INSERT INTO history (id, job, ended_at, order_key, ready_at, created_at, started_at, expires_at, schedule,
                         planned_at, slot, tenant, version, lane, fence, slot_limit, part, verdict, attempt, losses,
                         source, step, parent, payload, extra, cancel, progress, trail, failure, output)
    SELECT id, job, ended_at, order_key, ready_at, created_at, started_at, expires_at, schedule,
           planned_at, slot, tenant, version, lane, fence, slot_limit, part, verdict, attempt, losses,
           source, step, parent, payload, extra, cancel, progress,
           CASE WHEN line IS NULL OR octet_length(trail) >= $14 THEN trail ELSE concat(trail, line) END,
           failure, output
    FROM ended
)
SELECT array_agg(n), array_agg(job), array_agg(ready_at), array_agg(flags), array_agg(schedule), array_agg(parent),
       array_agg(slot), array_agg(slot_limit), array_agg(status)
FROM ended";

/// Finishes as columns. A column of nothing but nulls stays empty: `unnest`
/// fills it up.
#[derive(Default)]
struct Finishes {
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
    fn of<'a>(finishes: impl IntoIterator<Item = (Uuid, i32, &'a Finish)>) -> Result<Self, Fault> {
        let mut columns = Self::default();
        for (id, fence, finish) in finishes {
            let failure = finish.failure.as_ref().map(serde_json::to_string).transpose();
            let failure = failure.map_err(|e| crate::codec::corrupt("a failure to store", e))?;
            columns.ids.push(id);
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
    fn params<'a>(
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

/// A count in a two-byte column.
pub(super) fn small(count: u16) -> i16 {
    count.min(i16::MAX as u16) as i16
}

/// Runs [`FINISH`] and takes in what it brought: for each finish, whether its
/// run was found.
async fn finish(
    tx: &Tx,
    right: &Right,
    guard: Guard,
    finishes: &[(Uuid, i32, &Finish)],
    parts: &[i16],
    after: &mut Aftermath,
) -> Result<Vec<bool>, Fault> {
    let columns = Finishes::of(finishes.iter().copied())?;
    let (leased, most) = (guard.leased(), TRAIL_BYTES_MAX as i32);
    let params = columns.params(right, &leased, &most, &parts);
    let brought = tx.pipe(&[(FINISH, &params), (after::WAITED_FOR, &[])]).await?;
    after.heed(&brought[1])?;
    finished(&brought[0], guard, finishes, after)
}

/// Takes in what [`FINISH`] brought.
fn finished(
    rows: &[Row],
    guard: Guard,
    finishes: &[(Uuid, i32, &Finish)],
    after: &mut Aftermath,
) -> Result<Vec<bool>, Fault> {
    let mut found = vec![false; finishes.len()];
    let Some(gone) = rows.first().map(Gone::read).transpose()?.flatten() else { return Ok(found) };
    for (row, n) in gone.places.iter().enumerate() {
        let at = *n as usize - 1;
        found[at] = true;
        gone.take_in(row, &finishes[at], after)?;
        if guard != Guard::LockedAndCounted
            && let Some(key) = gone.slots[row]
        {
            let limit = gone.limits[row].unwrap_or(1).max(0) as u32;
            slots::leave(&mut after.shifts, key, limit, gone.statuses[row]);
        }
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

    fn take_in(&self, row: usize, (id, _, finish): &(Uuid, i32, &Finish), after: &mut Aftermath) -> Result<(), Fault> {
        let (job, flags) = (self.jobs[row], self.flags[row]);
        after.count(job, self.ready[row], finish)?;
        let (verdict, at) = (verdict_code(finish.verdict), micros(finish.ended_at));
        after.over.push(after::Over { job, run: *id, verdict, at });
        if flags & flag::NEEDED != 0 {
            after.needed.push(*id);
        }
        if let Some(parent) = self.parents[row] {
            *after.parents.entry(parent).or_default() += 1;
        }
        if flags & flag::REARMS != 0
            && let Some(schedule) = self.schedules[row]
        {
            after.rearm.push((schedule, *id, micros(finish.ended_at)));
        }
        match &finish.follower {
            Some(new) => after.followers.push(NewRun::clone(new)),
            None if finish.verdict == Verdict::Dead => after.dead.push((*id, at)),
            None => {}
        }
        Ok(())
    }
}

pub(super) const MOVE: &str = "UPDATE run r SET status = u.status, flags = u.flags, pending = u.pending, holder = u.holder, \
     started_at = u.started_at, due_at = u.due_at, ready_at = u.ready_at, order_key = u.order_key, \
     attempt = u.attempt, losses = u.losses, fence = u.fence, cancel = u.cancel, \
     trail = CASE WHEN u.line IS NULL OR octet_length(r.trail) >= $15 THEN r.trail ELSE concat(r.trail, u.line) END \
     FROM unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::smallint[], $5::uuid[], $6::bigint[], $7::bigint[], \
                 $8::bigint[], $9::bigint[], $10::smallint[], $11::smallint[], $12::int[], $13::text[], $14::text[]) \
          u (id, status, flags, pending, holder, started_at, due_at, ready_at, order_key, attempt, losses, fence, \
             cancel, line) \
     WHERE r.id = ANY(ARRAY[u.id])";

/// Writes locked runs as they stand after their moves.
fn write_moves(moved: &[(Run, i16, Option<String>)]) -> Late {
    let mut ids = Vec::with_capacity(moved.len());
    let (mut statuses, mut flags, mut pending, mut holders) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut started, mut due, mut ready, mut orders) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut attempts, mut losses, mut fences) = (Vec::new(), Vec::new(), Vec::new());
    let (mut cancels, mut lines) = (Vec::new(), Vec::new());
    for (run, row_flags, line) in moved {
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
    }
    for column in [&mut cancels, &mut lines] {
        empty_if_null(column);
    }
    let most = TRAIL_BYTES_MAX as i32;
    let params = params![
        ids, statuses, flags, pending, holders, started, due, ready, orders, attempts, losses, fences, cancels, lines,
        most
    ];
    Late { sql: MOVE, params }
}

/// Applies changes to runs that this transaction has locked. `counted` says
/// that their slots' counters are right already.
pub(super) async fn apply(
    tx: &Tx,
    now: Timestamp,
    changes: &[(Locked, Change)],
    counted: bool,
    after: &mut Aftermath,
) -> Result<(), Fault> {
    apply_moves(tx, now, changes, counted, after).await?;
    tx.now(&std::mem::take(&mut after.owed)).await?;
    let mut finishes = Vec::new();
    for (row, change) in changes {
        if let Change::Finish(finish) = change {
            after.ends.push(EndedRun::of(&row.run, finish));
            finishes.push((row.run.id.0, row.run.fence.0, finish));
        }
    }
    if !finishes.is_empty() {
        vacate(tx, changes).await?;
        let guard = if counted { Guard::LockedAndCounted } else { Guard::Locked };
        finish(tx, &Right::default(), guard, &finishes, &[], after).await?;
    }
    Ok(())
}

/// Runs end while they wait for others: whoever of their schedules is behind them waits
/// for those instead. The ones ahead are locked (see `lock_runs`), so that none of them
/// ends meanwhile.
async fn vacate(tx: &Tx, changes: &[(Locked, Change)]) -> Result<(), Fault> {
    let vacant = |(row, change): &&(Locked, Change)| {
        matches!(change, Change::Finish(_)) && matches!(row.run.state, RunState::Blocked(Block::Needs(_)))
    };
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
const INHERIT: &str = "WITH tied AS (INSERT INTO need (needed, waiter) \
         SELECT u.needed, u.waiter FROM unnest($1::uuid[], $2::uuid[]) u (needed, waiter) \
         JOIN run r ON r.id = u.needed ON CONFLICT DO NOTHING RETURNING waiter) \
     UPDATE run r SET pending = r.pending + t.more \
     FROM (SELECT waiter, count(*)::smallint AS more FROM tied GROUP BY waiter) t WHERE r.id = t.waiter";

/// The moves among these changes: what they mean is taken in, and they are owed
/// to the store.
async fn apply_moves(
    tx: &Tx,
    now: Timestamp,
    changes: &[(Locked, Change)],
    counted: bool,
    after: &mut Aftermath,
) -> Result<(), Fault> {
    let mut moved = Vec::new();
    let mut waited = Vec::new();
    for (row, change) in changes {
        let Change::Move(step) = change else { continue };
        let mut run = row.run.clone();
        run.apply(change);
        if !counted {
            slots::shift(&mut after.shifts, &row.run, &run);
        }
        // Only one that comes to wait counts its steps.
        if matches!(row.run.state, RunState::Waiting { .. }) {
            waited.push(run.id);
        }
        moved.push((run, row.flags, step.trail.as_ref().map(rota_core::run::TrailEntry::line)));
    }
    count_children(tx, now, &waited, &mut moved, after).await?;
    if !moved.is_empty() {
        after.changed = true;
        after.owed.push(write_moves(&moved));
    }
    for (run, _, _) in moved {
        match run.state {
            RunState::Queued => after.queued.push(run),
            RunState::Cancelling { .. } => after.stopping.push(run),
            RunState::Scheduled => after.delayed.push(run.id),
            _ => {}
        }
    }
    Ok(())
}

/// Steps may have ended while their parent was on its way to wait for them;
/// those it would wait for in vain are taken off at once. The parent is locked,
/// so a step that ends from now on finds it waiting.
async fn count_children(
    tx: &Tx,
    now: Timestamp,
    waited: &[RunId],
    moved: &mut [(Run, i16, Option<String>)],
    after: &mut Aftermath,
) -> Result<(), Fault> {
    let asked = |run: &Run| match run.state {
        RunState::Waiting { on: WaitFor::Children(asked), .. } if !waited.contains(&run.id) => Some(asked),
        _ => None,
    };
    let parents: Vec<Uuid> =
        moved.iter().filter(|(run, _, _)| asked(run).is_some()).map(|(run, _, _)| run.id.0).collect();
    if parents.is_empty() {
        return Ok(());
    }
    let sql = "SELECT parent, count(*) FROM run WHERE parent = ANY($1) AND parent IS NOT NULL GROUP BY parent";
    let mut live: HashMap<Uuid, i64> = HashMap::new();
    for row in tx.rows(sql, &[&parents]).await? {
        live.insert(row.try_get(0)?, row.try_get(1)?);
    }
    for (run, _, _) in moved {
        let Some(asked) = asked(run) else { continue };
        // What ended before this in the same transaction is not counted as live.
        after.parents.remove(&run.id.0);
        let live = live.get(&run.id.0).copied().unwrap_or(0).clamp(0, i64::from(u16::MAX)) as u16;
        if live < asked
            && let Ok(change) = run.join(asked - live, None, now)
        {
            run.apply(&change);
        }
    }
    Ok(())
}

impl PostgresStore {
    /// Does what follows from changes: writes moves and slots, opens joins,
    /// re-arms schedules, admits those who wait for slots; the runs that follow
    /// dead ones are written with the commit.
    ///
    /// Slots come last and in as few round trips as can be: whoever needs the
    /// same ones waits from the first of them to the commit.
    pub(super) async fn follow(&self, tx: &Tx, now: Timestamp, after: &mut Aftermath) -> Result<(), Fault> {
        let ended = std::mem::take(&mut after.rearm);
        if !ended.is_empty() {
            rearm(tx, &ended).await?;
        }
        if !after.needed.is_empty() || !after.parents.is_empty() {
            slots::apply(tx, after).await?;
            join(tx, now, after).await?;
        }
        after::note(tx, after).await?;
        after.late.extend(make_followers(now, &std::mem::take(&mut after.followers)));
        after.late.extend(dead::note_open(std::mem::take(&mut after.dead)));
        let admitted = slots::apply_and_admit(tx, after).await?;
        after.changed |= !admitted.is_empty();
        after.queued.extend(admitted);
        Ok(())
    }

    /// Tells the owners of runs in owned lanes: `node` in the answer for those
    /// in its partitions, all others by a notice.
    pub(super) async fn hand_over(&self, tx: &Tx, node: Option<NodeId>, runs: &[Run]) -> Result<Vec<Woken>, Fault> {
        let modes = self.modes(runs.iter().map(|run| run.lane)).await?;
        let owned = |run: &Run| modes.get(&run.lane) == Some(&LaneMode::Owned);
        let (mut parts, mut ids) = (Vec::new(), Vec::new());
        for run in runs.iter().filter(|run| owned(run)) {
            parts.push(i16::from(run.part.0));
            ids.push(run.id.0);
        }
        let held = if parts.is_empty() { Vec::new() } else { notify(tx, node, &parts, &ids).await? };
        let handed = |run: &Run| owned(run) && held.contains(&i16::from(run.part.0));
        Ok(runs.iter().map(|run| Woken { handed: handed(run), run: run.clone() }).collect())
    }

    /// The end of a change: what it woke is handed over, what must stop is told
    /// of.
    pub(super) async fn tell(&self, tx: &Tx, node: Option<NodeId>, after: &mut Aftermath) -> Result<Vec<Woken>, Fault> {
        let mut stopping = std::mem::take(&mut after.stopping);
        stopping.retain(|run| holder(run).is_none());
        self.hand_over(tx, None, &stopping).await?;
        let queued = std::mem::take(&mut after.queued);
        self.hand_over(tx, node, &queued).await
    }
}

fn holder(run: &Run) -> Option<Uuid> {
    state_columns(run, 0).and_then(|columns| columns.holder)
}

/// Leaves notices for runs outside the partitions that `node` holds, and
/// answers which those are.
async fn notify(tx: &Tx, node: Option<NodeId>, parts: &[i16], ids: &[Uuid]) -> Result<Vec<i16>, Fault> {
    let rows = tx.rows(NOTIFY, &[&parts, &ids, &node.map(|node| node.0)]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

const NOTIFY: &str = "WITH held AS MATERIALIZED (SELECT part FROM partition \
         WHERE part = ANY($1::smallint[]) AND node = $3 ORDER BY part FOR SHARE), \
     told AS (INSERT INTO notice (part, run) \
         SELECT part, run FROM unnest($1::smallint[], $2::uuid[]) u (part, run) \
         WHERE NOT part = ANY(ARRAY(SELECT part FROM held)) ON CONFLICT DO NOTHING) \
     SELECT part FROM held";

/// Counts down what others waited for. Each waiter is locked before it is read,
/// so of two last siblings the second sees the first's count.
async fn join(tx: &Tx, now: Timestamp, after: &mut Aftermath) -> Result<(), Fault> {
    let mut done: HashMap<Uuid, u16> = std::mem::take(&mut after.parents);
    let needed = std::mem::take(&mut after.needed);
    if !needed.is_empty() {
        for row in tx.rows("DELETE FROM need WHERE needed = ANY($1) RETURNING waiter", &[&needed]).await? {
            *done.entry(row.try_get(0)?).or_default() += 1;
        }
    }
    let waiters: Vec<Uuid> = done.keys().copied().collect();
    // Whatever their status: one that is about to wait is waited for, and seen.
    let sql = concat!("SELECT ", run_columns!(), " FROM run r WHERE r.id = ANY($1) ORDER BY r.id FOR UPDATE");
    let rows = tx.rows(sql, &[&waiters]).await?;
    let waiting: Vec<Locked> = rows.iter().filter_map(|row| locked(&tx.notes, row)).collect();
    let enters = |row: &Locked| row.run.enters_on_join(done[&row.run.id.0], now);
    let mut asked: BTreeMap<i64, u32> = BTreeMap::new();
    for claim in waiting.iter().filter_map(enters) {
        asked.entry(claim.key.0).or_insert(claim.limit);
    }
    let mut entered = slots::lock(tx, &asked).await?;
    let mut changes = Vec::with_capacity(waiting.len());
    for row in waiting {
        let entry = enters(&row).and_then(|_| reenter(&mut entered, &row.run));
        if let Ok(change) = row.run.join(done[&row.run.id.0], entry, now) {
            changes.push((row, change));
        }
    }
    apply(tx, now, &changes, true, after).await?;
    slots::write(tx, &entered).await
}

/// Lets a run back into its slot, if it has one.
pub(super) fn reenter(slots: &mut slots::Slots, run: &Run) -> Option<Entry> {
    run.slot.and_then(|claim| slots.get_mut(&claim.key.0)).map(rota_core::slot::Slot::reenter)
}

/// Arms `after_finish` schedules whose run has ended.
async fn rearm(tx: &Tx, ended: &[(i64, Uuid, i64)]) -> Result<(), Fault> {
    let schedules: Vec<i64> = ended.iter().map(|(schedule, _, _)| *schedule).collect();
    let runs: Vec<Uuid> = ended.iter().map(|(_, run, _)| *run).collect();
    let ends: Vec<i64> = ended.iter().map(|(_, _, at)| *at).collect();
    let sql = "UPDATE schedule s SET armed_by = NULL \
               FROM unnest($1::bigint[], $2::uuid[], $3::bigint[]) u (schedule, run, ended_at) \
               WHERE s.id = u.schedule AND s.armed_by = u.run AND NOT s.deleted \
               RETURNING s.id, s.part, s.revision, s.spec, s.enabled, s.fired, s.decided_to, u.ended_at";
    let mut armed = Vec::new();
    for row in tx.rows(sql, &[&schedules, &runs, &ends]).await? {
        let (id, ended_at): (i64, _) = (row.try_get(0)?, time(row.try_get(7)?)?);
        // The end counts, whatever is wrong with the schedule.
        let Some(decided_to) = tx.notes.readable_part("schedule", id, time_opt(row.try_get(6)?)) else { continue };
        let behind = Progress { fired: row.try_get::<_, i64>(5)?.max(0) as u64, decided_to };
        let next = rearmed(ScheduleId(id), row.try_get(3)?, row.try_get(4)?, behind, ended_at);
        if let Some(next) = next {
            armed.push((id, row.try_get(1)?, row.try_get(2)?, next));
        }
    }
    write_cursors(tx, armed).await
}

/// What is kept of a settlement's answer, unless all applied and none woke.
#[derive(Serialize, Deserialize)]
struct Kept {
    answers: Option<String>,
    woken: Vec<(Uuid, i32)>,
}

impl PostgresStore {
    pub(super) async fn settle_all(&self, write: &Write, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        if settlements.is_empty() {
            return Ok(Settled { answers: Vec::new(), woken: Vec::new() });
        }
        let what = "settle runs";
        for settlement in settlements {
            if let Change::Finish(finish) = &settlement.change {
                self.have_day(micros(finish.ended_at)).await.map_err(|fault| fault.told(what))?;
            }
        }
        match self.once(write, what, |tx| self.settle_once(tx, write, settlements)).await? {
            Once::New((mut settled, owned), late) => {
                // What woke is handed over where the last statement found its
                // partition held.
                let held = late.first().map_or(&[][..], Vec::as_slice);
                let held: Vec<i16> = held.iter().filter_map(|row| row.try_get(0).ok()).collect();
                for woken in settled.woken.iter_mut().filter(|woken| owned.contains(&woken.run.lane)) {
                    woken.handed = held.contains(&i16::from(woken.run.part.0));
                }
                Ok(settled)
            }
            Once::Known(kept) => self.settled_before(write, kept.as_deref(), settlements.len()).await,
        }
    }

    async fn settle_once(
        &self,
        tx: Arc<Tx>,
        write: &Write,
        settlements: &[Settlement],
    ) -> Result<((Settled, HashSet<LaneId>), Ending), Fault> {
        let mut after = Aftermath::default();
        let mut answers = vec![Guarded::Stale; settlements.len()];
        let mut left: Vec<usize> = (0..settlements.len()).collect();
        // A run that is named twice is settled twice, in order: the second word
        // finds what the first one did, or left to it.
        while !left.is_empty() {
            let mut named = HashSet::with_capacity(left.len());
            let (round, later): (Vec<usize>, Vec<usize>) =
                left.into_iter().partition(|n| named.insert(settlements[*n].lease.run));
            settle_round(&tx, write.now, settlements, &round, &mut answers, &mut after).await?;
            left = later;
        }
        self.follow(&tx, write.now, &mut after).await?;
        let (woken, lanes) = self.tell_late(write.node, &mut after).await?;
        let settled = Settled { answers, woken };
        let ending = after.ending(kept(&settled)?);
        Ok(((settled, lanes), ending))
    }

    /// Tells the owners of what woke with the commit; whom the writing node's
    /// own partitions hold is known from that statement's rows.
    async fn tell_late(
        &self,
        node: Option<NodeId>,
        after: &mut Aftermath,
    ) -> Result<(Vec<Woken>, HashSet<LaneId>), Fault> {
        let queued = std::mem::take(&mut after.queued);
        let modes = self.modes(queued.iter().map(|run| run.lane)).await?;
        let owned: HashSet<LaneId> =
            modes.into_iter().filter(|(_, mode)| *mode == LaneMode::Owned).map(|(lane, _)| lane).collect();
        let (mut parts, mut ids): (Vec<i16>, Vec<Uuid>) = (Vec::new(), Vec::new());
        for run in queued.iter().filter(|run| owned.contains(&run.lane)) {
            parts.push(i16::from(run.part.0));
            ids.push(run.id.0);
        }
        if !ids.is_empty() {
            let params = params![parts, ids, node.map(|node| node.0)];
            after.late.insert(0, Late { sql: NOTIFY, params });
        }
        Ok((queued.into_iter().map(|run| Woken { run, handed: false }).collect(), owned))
    }

    /// The answer given before, with the woken runs that are as they were then.
    /// A node that holds a woken run's partition now is handed it again; one
    /// that does not any more need not be.
    async fn settled_before(&self, write: &Write, kept: Option<&[u8]>, count: usize) -> Result<Settled, StoreError> {
        let Some(kept) = kept else {
            return Ok(Settled { answers: vec![Guarded::Applied; count], woken: Vec::new() });
        };
        let kept: Kept = kept::json_again(Some(kept))?;
        let answers = kept::guarded_again(kept.answers.as_deref().map(str::as_bytes), count)?;
        let mut found = self.reread(&kept.woken, "settle runs").await?;
        found.retain(|run| run.state == RunState::Queued);
        let told = |fault: Fault| fault.told("settle runs");
        let modes = self.modes(found.iter().map(|run| run.lane)).await.map_err(told)?;
        let held = self.all_partitions().await.map_err(told)?;
        let holds = |run: &Run| held[usize::from(run.part.0)].node == write.node && write.node.is_some();
        let handed = |run: &Run| modes.get(&run.lane) == Some(&LaneMode::Owned) && holds(run);
        let woken = found.into_iter().map(|run| Woken { handed: handed(&run), run }).collect();
        Ok(Settled { answers, woken })
    }

    /// Live runs that still have the fence they were answered with, in the
    /// order asked.
    pub(super) async fn reread(&self, places: &[(Uuid, i32)], what: &'static str) -> Result<Vec<Run>, StoreError> {
        let ids: Vec<Uuid> = places.iter().map(|(id, _)| *id).collect();
        let sql = concat!("SELECT ", run_columns!(), " FROM run r WHERE r.id = ANY($1)");
        let rows = self.read(sql, &[&ids]).await.map_err(|fault| fault.told(what))?;
        let mut found: HashMap<RunId, Run> = runs(&self.notes, &rows).into_iter().map(|run| (run.id, run)).collect();
        Ok(places
            .iter()
            .filter_map(|(id, fence)| found.remove(&RunId(*id)).filter(|run| run.fence.0 == *fence))
            .collect())
    }
}

fn kept(settled: &Settled) -> Result<kept::Kept, StoreError> {
    let answers = kept::guarded(&settled.answers).map(|letters| String::from_utf8_lossy(&letters).into_owned());
    if answers.is_none() && settled.woken.is_empty() {
        return Ok(None);
    }
    let woken = settled.woken.iter().map(|woken| (woken.run.id.0, woken.run.fence.0)).collect();
    kept::json(&Kept { answers, woken })
}

/// Settles runs that are named once each.
async fn settle_round(
    tx: &Tx,
    now: Timestamp,
    settlements: &[Settlement],
    round: &[usize],
    answers: &mut [Guarded],
    after: &mut Aftermath,
) -> Result<(), Fault> {
    let (owned, leased): (Vec<usize>, Vec<usize>) =
        round.iter().partition(|n| matches!(settlements[**n].by, By::Owner(_)));
    for (guard, group) in [(Guard::Owner, owned), (Guard::Lease, leased)] {
        if !group.is_empty() {
            tx.now(&std::mem::take(&mut after.owed)).await?;
            settle_group(tx, now, guard, settlements, &group, answers, after).await?;
        }
    }
    Ok(())
}

/// Settles those of one kind of right: the finishes in one statement, with which
/// the rows of the few moves are locked and read. What the moves come to is owed.
async fn settle_group(
    tx: &Tx,
    now: Timestamp,
    guard: Guard,
    settlements: &[Settlement],
    group: &[usize],
    answers: &mut [Guarded],
    after: &mut Aftermath,
) -> Result<(), Fault> {
    let claim = |n: usize| match settlements[n].by {
        By::Owner(epoch) => Some((settlements[n].part, epoch)),
        By::Lease => None,
    };
    let mut right = Right::of(group.iter().filter_map(|n| claim(*n)));
    let rightful = |n: usize, right: &BTreeMap<i16, i64>| {
        claim(n).is_none_or(|(part, epoch)| right.get(&i16::from(part.0)) == Some(&epoch.0))
    };
    let (mut finishes, mut moves): (Vec<usize>, Vec<usize>) =
        group.iter().partition(|n| matches!(settlements[**n].change, Change::Finish(_)));
    finishes.retain(|n| rightful(*n, &right));
    let asked = right.len();
    let (rows, found) = settle_first(tx, guard, &mut right, settlements, (&moves, &finishes), answers, after).await?;
    if found == 0 && asked > 0 && !finishes.is_empty() {
        // It may be that one partition was lost: leave it out and settle the
        // rest.
        confirm(tx, &mut right).await?;
        finishes.retain(|n| rightful(*n, &right));
        if right.len() < asked {
            settle_finishes(tx, guard, &right, settlements, &finishes, answers, after).await?;
        }
    }
    moves.retain(|n| rightful(*n, &right));
    settle_moves(tx, now, guard, settlements, &moves, rows, answers, after).await?;
    let missed: Vec<usize> = finishes.into_iter().filter(|n| answers[*n] != Guarded::Applied).collect();
    explain(tx, guard, settlements, &missed, answers).await
}

/// In one round trip: locks the rows of moves and answers them, drops the
/// partitions that are not the claimant's any more, and moves the finishes to
/// history; answers how many of those were found.
async fn settle_first(
    tx: &Tx,
    guard: Guard,
    right: &mut BTreeMap<i16, i64>,
    settlements: &[Settlement],
    (moves, finishes): (&[usize], &[usize]),
    answers: &mut [Guarded],
    after: &mut Aftermath,
) -> Result<(Vec<Locked>, usize), Fault> {
    if moves.is_empty() {
        let found = settle_finishes(tx, guard, right, settlements, finishes, answers, after).await?;
        return Ok((Vec::new(), found));
    }
    let asked = Right::from(right);
    let ids: Vec<Uuid> = moves.iter().map(|n| settlements[*n].lease.run.0).collect();
    let lock = concat!("SELECT ", run_columns!(), " FROM run r WHERE r.id = ANY($1) ORDER BY r.id FOR UPDATE");
    let (owned, locked_ids): ([Param<'_>; 2], [Param<'_>; 1]) = ([&asked.parts, &asked.epochs], [&ids]);
    let mut statements: Vec<Bound<'_>> = vec![(OWNED_PARTS, &owned), (lock, &locked_ids)];
    let ended = finishes_of(settlements, finishes);
    let (columns, parts) = (Finishes::of(ended.iter().copied())?, parts_of(guard, settlements, finishes));
    let (leased, most) = (guard.leased(), TRAIL_BYTES_MAX as i32);
    let params = columns.params(&asked, &leased, &most, &parts);
    if !ended.is_empty() {
        statements.extend([(FINISH, &params[..]), (after::WAITED_FOR, &[][..])]);
    }
    let brought = tx.pipe(&statements).await?;
    let held: Vec<i16> = brought[0].iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    right.retain(|part, _| held.contains(part));
    let rows = brought[1].iter().filter_map(|row| locked(&tx.notes, row)).collect();
    let found = match &brought[2..] {
        [ended_rows, waited_for] => {
            after.heed(waited_for)?;
            note(finishes, &finished(ended_rows, guard, &ended, after)?, answers)
        }
        _ => 0,
    };
    Ok((rows, found))
}

/// Whether a settler of this kind may change the run, its fence apart.
fn allowed(run: &Run, guard: Guard, part: Partition) -> bool {
    let executed = matches!(run.state, RunState::Queued | RunState::Running { .. } | RunState::Cancelling { .. });
    match guard {
        Guard::Lease => holder(run).is_some(),
        Guard::Owner => executed && holder(run).is_none() && run.part == part,
        Guard::Locked | Guard::LockedAndCounted => true,
    }
}

async fn settle_finishes(
    tx: &Tx,
    guard: Guard,
    right: &BTreeMap<i16, i64>,
    settlements: &[Settlement],
    group: &[usize],
    answers: &mut [Guarded],
    after: &mut Aftermath,
) -> Result<usize, Fault> {
    let finishes = finishes_of(settlements, group);
    if finishes.is_empty() {
        return Ok(0);
    }
    let parts = parts_of(guard, settlements, group);
    let found = finish(tx, &Right::from(right), guard, &finishes, &parts, after).await?;
    Ok(note(group, &found, answers))
}

fn finishes_of<'a>(settlements: &'a [Settlement], group: &[usize]) -> Vec<(Uuid, i32, &'a Finish)> {
    let finish = |settlement: &'a Settlement| match &settlement.change {
        Change::Finish(finish) => Some((settlement.lease.run.0, settlement.lease.fence.0, finish)),
        Change::Move(_) => None,
    };
    group.iter().filter_map(|n| finish(&settlements[*n])).collect()
}

/// The partitions that an owner names; a lease names none.
fn parts_of(guard: Guard, settlements: &[Settlement], group: &[usize]) -> Vec<i16> {
    match guard {
        Guard::Owner => group.iter().map(|n| i16::from(settlements[*n].part.0)).collect(),
        Guard::Lease | Guard::Locked | Guard::LockedAndCounted => Vec::new(),
    }
}

/// Answers those that were found, and says how many they are.
fn note(group: &[usize], found: &[bool], answers: &mut [Guarded]) -> usize {
    for (n, _) in group.iter().zip(found).filter(|(_, found)| **found) {
        answers[*n] = Guarded::Applied;
    }
    found.iter().filter(|found| **found).count()
}

#[allow(clippy::too_many_arguments, reason = "one step of `settle_group`, cut out to be read by itself")]
async fn settle_moves(
    tx: &Tx,
    now: Timestamp,
    guard: Guard,
    settlements: &[Settlement],
    group: &[usize],
    rows: Vec<Locked>,
    answers: &mut [Guarded],
    after: &mut Aftermath,
) -> Result<(), Fault> {
    let mut found: HashMap<RunId, Locked> = rows.into_iter().map(|row| (row.run.id, row)).collect();
    let mut changes = Vec::with_capacity(group.len());
    for n in group {
        let settlement = &settlements[*n];
        let Some(row) = found.remove(&settlement.lease.run) else { continue };
        let rightful = row.run.fence == settlement.lease.fence && allowed(&row.run, guard, settlement.part);
        answers[*n] = match (rightful, &row.run.cancel) {
            (false, _) => Guarded::Stale,
            (true, Some(_)) => Guarded::CancelAsked,
            (true, None) => {
                changes.push((row, settlement.change.clone()));
                Guarded::Applied
            }
        };
    }
    apply_moves(tx, now, &changes, false, after).await
}

/// Says of finishes that did not apply whether they are stale, or no answer to
/// a cancel.
async fn explain(
    tx: &Tx,
    guard: Guard,
    settlements: &[Settlement],
    missed: &[usize],
    answers: &mut [Guarded],
) -> Result<(), Fault> {
    if missed.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = missed.iter().map(|n| settlements[*n].lease.run.0).collect();
    let leased = guard == Guard::Lease;
    let rows = tx
        .rows(
            "SELECT id, fence, part FROM run WHERE id = ANY($1) AND cancel IS NOT NULL AND (holder IS NOT NULL) = $2",
            &[&ids, &leased],
        )
        .await?;
    let mut asked = HashMap::with_capacity(rows.len());
    for row in rows {
        asked.insert(row.try_get::<_, Uuid>(0)?, (row.try_get::<_, i32>(1)?, row.try_get::<_, i16>(2)?));
    }
    for n in missed {
        let Settlement { lease, part, .. } = &settlements[*n];
        let Some((fence, lies_in)) = asked.get(&lease.run.0) else { continue };
        if *fence == lease.fence.0 && (leased || *lies_in == i16::from(part.0)) {
            answers[*n] = Guarded::CancelAsked;
        }
    }
    Ok(())
}
