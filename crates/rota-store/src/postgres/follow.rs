//! Does what follows from changes, in their transaction.
//!
//! What the core gathered ([`Effects`]) is written set by set: joins are opened, schedules
//! re-armed, slots counted and those who wait for them let in, owners told.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    fire::Progress,
    ids::{NodeId, ScheduleId},
    lane::LaneMode,
    run::{Effects, Rearm, Run, Slots},
    slot::Entry,
    store::Woken,
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    PostgresStore, after,
    apply::apply,
    dead,
    fault::Fault,
    fire::write_cursors,
    insert::make_followers,
    rows::{Locked, RUN, locked},
    slots,
    tx::{Ending, Late, Tx},
};
use crate::{
    codec::{micros, time, time_opt},
    definition::rearmed,
    rollup,
};

/// What changes leave to be done before the commit, and to be told after it.
#[derive(Default)]
pub(super) struct Aftermath {
    pub effects: Effects,
    /// Keys that may have free slots and someone waiting.
    pub room: BTreeSet<i64>,
    /// Moves that are decided and not yet written: they travel with the slots.
    pub owed: Vec<Late>,
    /// Whether any job waits for another's end.
    pub waited_for: bool,
    /// Statements that can wait for the commit.
    pub late: Vec<Late>,
    /// Anything was written.
    pub changed: bool,
}

impl Aftermath {
    /// Whether any job waits for another's end.
    pub(super) fn heed(&mut self, rows: &[Row]) -> Result<(), Fault> {
        self.waited_for |= rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false);
        Ok(())
    }

    /// The runs that became ready, which are then said no more.
    pub(super) fn take_ready(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.effects.ready).into_values().collect()
    }

    /// How the transaction ends, with this answer to keep.
    pub(super) fn ending(&mut self, answer: Option<Vec<u8>>) -> Ending {
        let Effects { rollups, ends, .. } = std::mem::take(&mut self.effects);
        let delta = (!rollups.is_empty()).then(|| rollup::encode(&rollups));
        let late = std::mem::take(&mut self.late);
        Ending { answer, delta, ends, idle: !self.changed && late.is_empty(), late }
    }
}

impl PostgresStore {
    /// Does what follows from changes: writes moves and slots, opens joins,
    /// re-arms schedules, admits those who wait for slots; the runs that follow
    /// dead ones are written with the commit.
    ///
    /// Slots come last and in as few round trips as can be: whoever needs the
    /// same ones waits from the first of them to the commit.
    pub(super) async fn follow(&self, tx: &Tx, now: Timestamp, after: &mut Aftermath) -> Result<(), Fault> {
        rearm(tx, &std::mem::take(&mut after.effects.rearm)).await?;
        if !after.effects.needed.is_empty() || !after.effects.parents.is_empty() {
            slots::apply(tx, after).await?;
            join(tx, now, after).await?;
        }
        after::note(tx, after).await?;
        after.late.extend(make_followers(now, &std::mem::take(&mut after.effects.followers)));
        after.late.extend(dead::note_open(&std::mem::take(&mut after.effects.dead)));
        let admitted = slots::apply_and_admit(tx, after).await?;
        after.changed |= !admitted.is_empty();
        after.effects.ready.extend(admitted.into_iter().map(|run| (run.id, run)));
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
        self.hand_over(tx, None, &std::mem::take(&mut after.effects.stopping)).await?;
        self.hand_over(tx, node, &after.take_ready()).await
    }
}

/// Leaves notices for runs outside the partitions that `node` holds, and
/// answers which those are.
async fn notify(tx: &Tx, node: Option<NodeId>, parts: &[i16], ids: &[Uuid]) -> Result<Vec<i16>, Fault> {
    let rows = tx.rows(NOTIFY, &[&parts, &ids, &node.map(|node| node.0)]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

pub(super) const NOTIFY: &str = "WITH held AS MATERIALIZED (SELECT part FROM partition \
         WHERE part = ANY($1::smallint[]) AND node = $3 ORDER BY part FOR SHARE), \
     told AS (INSERT INTO notice (part, run) \
         SELECT part, run FROM unnest($1::smallint[], $2::uuid[]) u (part, run) \
         WHERE NOT part = ANY(ARRAY(SELECT part FROM held)) ON CONFLICT DO NOTHING) \
     SELECT part FROM held";

/// Counts down what others waited for. Each waiter is locked before it is read,
/// so of two last siblings the second sees the first's count.
async fn join(tx: &Tx, now: Timestamp, after: &mut Aftermath) -> Result<(), Fault> {
    let parents = std::mem::take(&mut after.effects.parents);
    let mut done: HashMap<Uuid, u32> = parents.into_iter().map(|(parent, ended)| (parent.0, ended)).collect();
    let needed: Vec<Uuid> = std::mem::take(&mut after.effects.needed).into_iter().map(|run| run.0).collect();
    if !needed.is_empty() {
        for row in tx.rows("DELETE FROM need WHERE needed = ANY($1) RETURNING waiter", &[&needed]).await? {
            *done.entry(row.try_get(0)?).or_default() += 1;
        }
    }
    let waiters: Vec<Uuid> = done.keys().copied().collect();
    // Whatever their status: one that is about to wait is waited for, and seen.
    let sql = formatcp!("SELECT {RUN} FROM run r WHERE r.id = ANY($1) ORDER BY r.id FOR UPDATE");
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
    apply(tx, now, &changes, Slots::Counted, after).await?;
    slots::write(tx, &entered).await
}

/// Lets a run back into its slot, if it has one.
pub(super) fn reenter(slots: &mut slots::Slots, run: &Run) -> Option<Entry> {
    run.slot.and_then(|claim| slots.get_mut(&claim.key.0)).map(rota_core::slot::Slot::reenter)
}

/// Arms `after_finish` schedules whose run has ended.
async fn rearm(tx: &Tx, ended: &[Rearm]) -> Result<(), Fault> {
    if ended.is_empty() {
        return Ok(());
    }
    let schedules: Vec<i64> = ended.iter().map(|one| one.schedule.0).collect();
    let runs: Vec<Uuid> = ended.iter().map(|one| one.run.0).collect();
    let ends: Vec<i64> = ended.iter().map(|one| micros(one.ended_at)).collect();
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
