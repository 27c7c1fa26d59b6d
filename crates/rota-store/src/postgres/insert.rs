//! Insert: runs are made, admitted to their slots, held to their unique keys,
//! and tied to the runs they wait for.
//!
//! The rows that decide are locked first (runs that are waited for, unique
//! keys, slots by key); [`Slot::enter`] and [`NewRun::first_state`] decide in
//! the order asked; all runs are then written by one statement. A batch without
//! any of these goes straight to that statement.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{RunId, ScheduleId, TenantId},
    lane::LaneMode,
    order::OrderKey,
    run::{Block, CancelAsk, NewRun, Run, RunState, Slots as Count, Status, UniqueAsk, keep_newest},
    slot::Entry,
    store::{EnqueueStore, Enqueued, StoreError, Write},
};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{
    PostgresStore,
    apply::apply,
    change::decide,
    dead,
    fault::Fault,
    finish::empty_if_null,
    follow::Aftermath,
    once::Once,
    rows::{Locked, RUN, locked},
    slots::{self, Slots},
    tx::{Ending, Late, Param, Tx, params},
};
use crate::{
    codec::{
        columns_of, extra_text, flag, micros, source_code,
        sql::{BLOCKED, HOLDING},
    },
    kept,
};

impl PostgresStore {
    async fn enqueue_once(
        &self,
        tx: Arc<Tx>,
        write: &Write,
        runs: &[NewRun],
        inbox: &[i64],
    ) -> Result<(Vec<Enqueued>, Ending), Fault> {
        let mut after = Aftermath { changed: true, ..Aftermath::default() };
        let runs: Vec<&NewRun> = runs.iter().collect();
        let answers = self.insert(&tx, write, &runs, &mut after).await?;
        let made = runs.iter().zip(&answers).filter(|(_, answer)| matches!(answer, Enqueued::Made { .. }));
        after.late.extend(dead::mark_redriven(write.now, made.map(|(run, _)| *run)));
        let kept = if write.request.is_some() {
            let named: Vec<_> = answers.iter().zip(runs).map(|(answer, run)| answer.kept_for(run.id)).collect();
            kept::enqueued(&named)
        } else {
            kept::enqueued(&answers)
        };
        if !inbox.is_empty() {
            let taken = tx.rows("DELETE FROM inbox WHERE id = ANY($1) RETURNING 1", &[&inbox]).await?;
            if taken.len() < inbox.len() {
                let source = "a row of the inbox was taken by another".into();
                return Err(StoreError::NotApplied { what: "enqueue runs", source }.into());
            }
        }
        let ending = after.ending(kept);
        Ok((answers, ending))
    }

    /// Makes runs inside a transaction, with all that follows.
    pub(super) async fn insert(
        &self,
        tx: &Tx,
        write: &Write,
        runs: &[&NewRun],
        after: &mut Aftermath,
    ) -> Result<Vec<Enqueued>, Fault> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let mut plan = Plan::new(runs, write);
        let modes = self.modes(runs.iter().map(|run| run.lane)).await?;
        let owned = |run: &NewRun| modes.get(&run.lane) == Some(&LaneMode::Owned);
        plan.lock_needed(tx).await?;
        plan.take_unique(tx).await?;
        let held = plan.write_free(tx, owned).await?;
        plan.decide();
        let mut answers = plan.answers(&held, owned);
        let rest = plan.rest(&held, owned);
        if plan.has_aftermath() {
            tx.now(&rest).await?;
            self.insert_follow(tx, write, &mut plan, &mut answers, after).await?;
        } else {
            after.late.extend(rest);
        }
        Ok(answers)
    }

    /// What new runs do to others: those they displace, those they ask to stop,
    /// those a raised limit lets in.
    async fn insert_follow(
        &self,
        tx: &Tx,
        write: &Write,
        plan: &mut Plan<'_>,
        answers: &mut [Enqueued],
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        for (key, replaced) in &plan.replaced {
            let sql = formatcp!(
                "SELECT {RUN} FROM run r WHERE r.slot = $1 AND r.status = {BLOCKED} AND NOT r.id = ANY($2) ORDER BY r.id FOR UPDATE"
            );
            let rows = tx.rows(sql, &[key, &replaced.keep]).await?;
            let rows: Vec<Locked> = rows.iter().filter_map(|row| locked(&tx.notes, row)).collect();
            let changes = decide(rows, |row| row.run.displace(replaced.by, write.now));
            apply(tx, write.now, &changes, Count::Counted, after).await?;
        }
        if !plan.stopped.is_empty() {
            let sql = formatcp!(
                "SELECT {RUN} FROM run r WHERE r.slot = ANY($1) AND r.slot IS NOT NULL AND r.status IN ({HOLDING}) \
                   ORDER BY r.id FOR UPDATE"
            );
            let keys: Vec<i64> = plan.stopped.keys().copied().collect();
            let rows = tx.rows(sql, &[&keys]).await?;
            let rows = rows.iter().filter_map(|row| locked(&tx.notes, row)).collect();
            let grace = |run: &Run| run.slot.and_then(|claim| plan.stopped.get(&claim.key.0)).copied();
            let ask = |run: &Run| CancelAsk::by_newer_run(grace(run).unwrap_or(Span::secs(0)));
            self.cancel_locked(tx, write, rows, ask, after).await?;
        }
        after.room.extend(plan.room());
        self.follow(tx, write.now, after).await?;
        self.answer_admitted(tx, write, plan, answers, after).await
    }

    /// A new run that was let in at once is answered as ready, and one whose last
    /// need an earlier one of the batch ended as delayed; everyone else's owner is told.
    async fn answer_admitted(
        &self,
        tx: &Tx,
        write: &Write,
        plan: &Plan<'_>,
        answers: &mut [Enqueued],
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let places: HashMap<RunId, usize> = plan.runs.iter().enumerate().map(|(n, run)| (run.id, n)).collect();
        let (own, others): (Vec<Run>, Vec<Run>) =
            after.take_ready().into_iter().partition(|run| places.contains_key(&run.id));
        for woken in self.hand_over(tx, write.node, &own).await? {
            answers[places[&woken.run.id]] = Enqueued::Made { status: Status::Queued, handed: woken.handed };
        }
        let after_an_end = |place: &&usize| plan.ends_from.is_some_and(|first| **place > first);
        for place in after.effects.delayed.iter().filter_map(|id| places.get(id)).filter(after_an_end) {
            answers[*place] = Enqueued::Made { status: Status::Scheduled, handed: false };
        }
        after.effects.ready = others.into_iter().map(|run| (run.id, run)).collect();
        self.tell(tx, None, after).await?;
        Ok(())
    }
}

/// Runs that a newer one displaces: all that wait under its key but these.
struct Replaced {
    by: RunId,
    keep: Vec<Uuid>,
}

/// A batch of runs on its way into the store.
struct Plan<'a> {
    runs: &'a [&'a NewRun],
    write: &'a Write,
    /// Live runs that some of these wait for.
    live: HashMap<RunId, TenantId>,
    /// The last live ones of schedules whose runs follow one another.
    last: HashMap<ScheduleId, Vec<RunId>>,
    /// Which run stands in the way of which.
    duplicates: HashMap<usize, RunId>,
    /// Unique keys that are ours to give, and in whose name they were taken.
    unique_for: BTreeMap<i64, usize>,
    /// Which run has each.
    unique_by: HashMap<i64, (usize, UniqueAsk)>,
    slots: Slots,
    states: Vec<Option<RunState>>,
    /// Runs without a slot, a unique key or needs.
    free: Vec<bool>,
    replaced: BTreeMap<i64, Replaced>,
    /// Keys whose holders are asked to stop, and how long they have.
    stopped: BTreeMap<i64, Span>,
    /// The first run of the batch that displaces others or asks them to stop.
    ends_from: Option<usize>,
}

/// Whether a run asks nothing of anyone.
fn is_free(run: &NewRun) -> bool {
    run.slot.is_none() && run.unique_keys().next().is_none() && run.after.is_empty() && !run.follows
}

/// The live runs of schedules that no other of their runs waits for, read when these
/// are locked.
async fn read_last(
    tx: &Tx,
    schedules: &[i64],
    locked: &HashMap<ScheduleId, Vec<RunId>>,
) -> Result<HashMap<ScheduleId, Vec<RunId>>, Fault> {
    let sql = "SELECT r.schedule, r.id FROM run r WHERE r.schedule = ANY($1) AND r.schedule IS NOT NULL \
               AND NOT EXISTS (SELECT 1 FROM need n JOIN run w ON w.id = n.waiter \
                               WHERE n.needed = r.id AND w.schedule = r.schedule) \
               ORDER BY r.id";
    let lock = "SELECT 1 FROM run WHERE id = ANY($1) ORDER BY id FOR UPDATE";
    let locked: Vec<Uuid> = locked.values().flatten().map(|id| id.0).collect();
    let found = tx.pipe(&[(lock, &[&locked]), (sql, &[&schedules])]).await?;
    let mut last: HashMap<ScheduleId, Vec<RunId>> = HashMap::new();
    for row in &found[1] {
        last.entry(ScheduleId(row.try_get(0)?)).or_default().push(RunId(row.try_get(1)?));
    }
    Ok(last)
}

impl<'a> Plan<'a> {
    fn new(runs: &'a [&'a NewRun], write: &'a Write) -> Self {
        Self {
            runs,
            write,
            live: HashMap::new(),
            last: HashMap::new(),
            duplicates: HashMap::new(),
            unique_for: BTreeMap::new(),
            unique_by: HashMap::new(),
            slots: Slots::new(),
            states: vec![None; runs.len()],
            free: runs.iter().map(|run| is_free(run)).collect(),
            replaced: BTreeMap::new(),
            stopped: BTreeMap::new(),
            ends_from: None,
        }
    }

    /// Locks the runs that are waited for, and marks them.
    async fn lock_needed(&mut self, tx: &Tx) -> Result<(), Fault> {
        let mut needed: Vec<Uuid> = self.runs.iter().flat_map(|run| run.after.iter().map(|id| id.0)).collect();
        self.find_last(tx).await?;
        needed.extend(self.last.values().flatten().map(|id| id.0));
        if needed.is_empty() {
            return Ok(());
        }
        needed.sort_unstable();
        needed.dedup();
        let mark = flag::NEEDED;
        let answers = tx
            .pipe(&[
                ("SELECT id, tenant FROM run WHERE id = ANY($1) ORDER BY id FOR UPDATE", &[&needed]),
                ("UPDATE run SET flags = flags | $2 WHERE id = ANY($1) AND flags & $2 = 0", &[&needed, &mark]),
            ])
            .await?;
        for row in &answers[0] {
            self.live.insert(RunId(row.try_get(0)?), TenantId(row.try_get(1)?));
        }
        Ok(())
    }

    /// Finds the runs that new ones of their schedules follow, and locks them. While a
    /// lock is waited for, its run may end and leave its place to another, so they are
    /// read until those that are locked are those that are found.
    async fn find_last(&mut self, tx: &Tx) -> Result<(), Fault> {
        let mut schedules: Vec<i64> =
            self.runs.iter().filter(|run| run.follows).filter_map(|run| Some(run.trigger.schedule?.0)).collect();
        schedules.sort_unstable();
        schedules.dedup();
        if schedules.is_empty() {
            return Ok(());
        }
        loop {
            let found = read_last(tx, &schedules, &self.last).await?;
            let same = found == self.last;
            self.last = found;
            if same {
                return Ok(());
            }
        }
    }

    /// Takes unique keys, in the name of the first run that asks for each. An
    /// expired key is free.
    async fn take_unique(&mut self, tx: &Tx) -> Result<(), Fault> {
        let mut first: BTreeMap<i64, (usize, UniqueAsk)> = BTreeMap::new();
        for (n, run) in self.runs.iter().enumerate() {
            for ask in run.unique_keys() {
                first.entry(ask.key.0).or_insert((n, ask));
            }
        }
        if first.is_empty() {
            return Ok(());
        }
        let keys: Vec<i64> = first.keys().copied().collect();
        let ids: Vec<Uuid> = first.values().map(|(n, _)| self.runs[*n].id.0).collect();
        let untils: Vec<i64> = first.values().map(|(_, ask)| micros(ask.until)).collect();
        let answers = tx
            .pipe(&[
                (TAKE_UNIQUE, &[&keys, &ids, &untils, &micros(self.write.now)]),
                ("SELECT key, run FROM unique_key WHERE key = ANY($1)", &[&keys]),
            ])
            .await?;
        for row in &answers[1] {
            let (key, holder): (i64, Uuid) = (row.try_get(0)?, row.try_get(1)?);
            if self.runs[first[&key].0].id.0 != holder {
                first.remove(&key);
                let asks = |n: &usize| self.runs[*n].unique_keys().any(|ask| ask.key.0 == key);
                self.duplicates.extend((0..self.runs.len()).filter(asks).map(|n| (n, RunId(holder))));
            }
        }
        self.unique_for = first.into_iter().map(|(key, (n, _))| (key, n)).collect();
        Ok(())
    }

    /// Decides over every run in the order asked, as if each came by itself.
    fn decide(&mut self) {
        let batch: HashMap<RunId, usize> = self.runs.iter().enumerate().map(|(n, run)| (run.id, n)).collect();
        for n in 0..self.runs.len() {
            if !self.free[n] {
                self.decide_one(n, &batch);
            }
        }
    }

    fn decide_one(&mut self, n: usize, batch: &HashMap<RunId, usize>) {
        let run = self.runs[n];
        if let Some((first, _)) = run.unique_keys().find_map(|ask| self.unique_by.get(&ask.key.0)) {
            self.duplicates.insert(n, self.runs[*first].id);
        }
        if self.duplicates.contains_key(&n) {
            return;
        }
        let needs = self.needs(n, batch);
        let ask = run.enters_now(needs, self.write.now);
        let entry = ask.and_then(|ask| self.slots.get_mut(&ask.key.0).map(|slot| slot.enter(ask)));
        if let (Some(ask), Some(entry)) = (ask, entry) {
            if matches!(entry, Entry::WaitsAlone | Entry::WaitsForCancel) {
                self.ends_from = Some(self.ends_from.map_or(n, |first| first.min(n)));
            }
            match entry {
                Entry::WaitsAlone => {
                    drop(self.replaced.insert(ask.key.0, Replaced { by: run.id, keep: vec![run.id.0] }));
                }
                Entry::WaitsForCancel => drop(self.stopped.entry(ask.key.0).or_insert(ask.grace)),
                Entry::Holds | Entry::Waits | Entry::Refused => {}
            }
            if entry != Entry::WaitsAlone
                && let Some(replaced) = self.replaced.get_mut(&ask.key.0)
            {
                replaced.keep.push(run.id.0);
            }
        }
        self.states[n] = run.first_state(needs, entry, self.write.now);
        if self.states[n].is_some() {
            self.unique_by.extend(run.unique_keys().map(|ask| (ask.key.0, (n, ask))));
        }
    }

    /// How many runs this one waits for: live ones, and those made before it in
    /// its own batch.
    fn needs(&self, n: usize, batch: &HashMap<RunId, usize>) -> u32 {
        self.needed(n, batch).len() as u32
    }

    fn needed(&self, n: usize, batch: &HashMap<RunId, usize>) -> BTreeSet<RunId> {
        let run = self.runs[n];
        let mut needed: BTreeSet<RunId> = run.after.iter().copied().filter(|id| self.is_ours(n, *id, batch)).collect();
        if let Some(schedule) = run.trigger.schedule.filter(|_| run.follows) {
            match self.made_before(n, schedule) {
                Some(before) => drop(needed.insert(before)),
                None => needed.extend(self.last_live(schedule)),
            }
        }
        keep_newest(&mut needed);
        needed
    }

    /// The run of a schedule that this batch makes last before another of it.
    fn made_before(&self, n: usize, schedule: ScheduleId) -> Option<RunId> {
        let same = |at: &usize| self.states[*at].is_some() && self.runs[*at].trigger.schedule == Some(schedule);
        (0..n).rev().find(same).map(|at| self.runs[at].id)
    }

    fn last_live(&self, schedule: ScheduleId) -> impl Iterator<Item = RunId> {
        self.last.get(&schedule).into_iter().flatten().copied().filter(|id| self.live.contains_key(id))
    }

    /// Whether a run may wait for this one: it lives, or is made before it in its own batch,
    /// and is not another tenant's.
    fn is_ours(&self, n: usize, needed: RunId, batch: &HashMap<RunId, usize>) -> bool {
        let tenant = self.runs[n].tenant;
        let ours = |at: usize| self.states[at].is_some() && self.runs[at].tenant == tenant;
        let before = batch.get(&needed).is_some_and(|at| *at < n && ours(*at));
        before || self.live.get(&needed) == Some(&tenant)
    }

    fn made(&self) -> impl Iterator<Item = (&'a NewRun, &RunState)> {
        self.runs.iter().zip(&self.states).filter_map(|(run, state)| Some((*run, state.as_ref()?)))
    }

    /// Writes the runs that ask nothing of anyone, and locks the slots that the
    /// others ask for, in one round trip: slots are locked for as short as can
    /// be. Answers which partitions the writing node holds.
    async fn write_free(&mut self, tx: &Tx, owned: impl Fn(&NewRun) -> bool) -> Result<Vec<i16>, Fault> {
        let mut asked = BTreeMap::new();
        let mut parts: Vec<i16> = Vec::new();
        for (n, run) in self.runs.iter().enumerate() {
            if self.free[n] {
                self.states[n] = run.first_state(0, None, self.write.now);
            }
            // One that waits for a live run, or is not made at all, asks for no
            // slot, and must not make one with its limit either.
            let waits = self.duplicates.contains_key(&n) || self.waits_for_live(run);
            if let Some(ask) = run.enters_now(u32::from(waits), self.write.now) {
                asked.entry(ask.key.0).or_insert(ask.limit);
            }
            let part = i16::from(run.part.0);
            if run.ready_at <= self.write.now && parts.last() != Some(&part) && owned(run) {
                parts.push(part);
            }
        }
        parts.sort_unstable();
        parts.dedup();
        let columns = self.columns(|n| self.free[n]);
        let (node, now) = (self.write.node.map(|node| node.0), micros(self.write.now));
        let insert = columns.params(&parts, &node, &now);
        let (slots, held) = slots::lock_after(tx, Some((INSERT, &insert[..])), &asked).await?;
        self.slots = slots;
        Ok(held.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
    }

    fn waits_for_live(&self, run: &NewRun) -> bool {
        let follows = run.trigger.schedule.filter(|_| run.follows);
        follows.is_some_and(|schedule| self.last_live(schedule).next().is_some())
            || run.after.iter().any(|id| self.live.get(id) == Some(&run.tenant))
    }

    /// What is left to write: the other runs, the counters of their slots, what
    /// they wait for, and notices of runs in others' partitions.
    fn rest(&self, held: &[i16], owned: impl Fn(&NewRun) -> bool) -> Vec<Late> {
        let mut rest = Vec::new();
        let columns = self.columns(|n| !self.free[n]);
        if !columns.ids.is_empty() {
            let (node, now) = (self.write.node.map(|node| node.0), micros(self.write.now));
            rest.push(Late { sql: INSERT, params: columns.into_params(node, now) });
        }
        let counters = slots::Counters::of(&self.slots);
        if !counters.keys.is_empty() {
            let params = params![counters.keys, counters.limits, counters.held, counters.waiting];
            rest.push(Late { sql: slots::WRITE, params });
        }
        let (needed, waiters) = self.ties();
        if !needed.is_empty() {
            rest.push(Late { sql: TIE, params: params![needed, waiters] });
        }
        let (parts, ids) = self.unheld(held, owned);
        if !ids.is_empty() {
            rest.push(Late { sql: NOTICE, params: params![parts, ids] });
        }
        let (keys, ids, untils) = self.unique_left();
        if !keys.is_empty() {
            rest.push(Late { sql: LEAVE_UNIQUE, params: params![keys, ids, untils] });
        }
        rest
    }

    /// Runs that are made, as columns.
    fn columns(&self, wanted: impl Fn(usize) -> bool) -> Columns<'a> {
        let waited_for: HashSet<RunId> = self.runs.iter().flat_map(|run| run.after.iter().copied()).collect();
        let chained: HashSet<ScheduleId> =
            self.runs.iter().filter(|run| run.follows).filter_map(|run| run.trigger.schedule).collect();
        let mut columns = Columns::default();
        for (n, run) in self.runs.iter().enumerate().filter(|(n, _)| wanted(*n)) {
            if let Some(state) = &self.states[n] {
                let followed = run.trigger.schedule.is_some_and(|schedule| chained.contains(&schedule));
                columns.push(run, state, followed || waited_for.contains(&run.id));
            }
        }
        columns.thin();
        columns
    }

    /// Who waits for whom: live runs, or made with this batch.
    fn ties(&self) -> (Vec<Uuid>, Vec<Uuid>) {
        let mut ties = (Vec::new(), Vec::new());
        if self.runs.iter().all(|run| run.after.is_empty() && !run.follows) {
            return ties;
        }
        let batch: HashMap<RunId, usize> = self.runs.iter().enumerate().map(|(n, run)| (run.id, n)).collect();
        for (n, run) in self.runs.iter().enumerate() {
            if matches!(self.states[n], Some(RunState::Blocked(Block::Needs(_)))) {
                for needed in self.needed(n, &batch) {
                    ties.0.push(needed.0);
                    ties.1.push(run.id.0);
                }
            }
        }
        ties
    }

    /// Unique keys that were taken in the name of a run that was not made, and
    /// the run that has each instead, if any.
    fn unique_left(&self) -> (Vec<i64>, Vec<Option<Uuid>>, Vec<Option<i64>>) {
        let mut left = (Vec::new(), Vec::new(), Vec::new());
        for (key, first) in &self.unique_for {
            let taken = self.unique_by.get(key);
            if taken.is_none_or(|(n, _)| n != first) {
                left.0.push(*key);
                left.1.push(taken.map(|(n, _)| self.runs[*n].id.0));
                left.2.push(taken.map(|(_, ask)| micros(ask.until)));
            }
        }
        left
    }

    fn answers(&self, held: &[i16], owned: impl Fn(&NewRun) -> bool) -> Vec<Enqueued> {
        let mut answers = Vec::with_capacity(self.runs.len());
        for (n, (run, state)) in self.runs.iter().zip(&self.states).enumerate() {
            answers.push(match (state, self.duplicates.get(&n)) {
                (Some(state), _) => {
                    let here = *state == RunState::Queued && held.contains(&i16::from(run.part.0));
                    Enqueued::Made { status: state.status(), handed: here && owned(run) }
                }
                (None, Some(of)) => Enqueued::Duplicate { of: *of },
                (None, None) => Enqueued::Full,
            });
        }
        answers
    }

    /// Ready runs of owned lanes in others' partitions.
    fn unheld(&self, held: &[i16], owned: impl Fn(&NewRun) -> bool) -> (Vec<i16>, Vec<Uuid>) {
        let ready = self.made().filter(|(_, state)| **state == RunState::Queued).map(|(run, _)| run);
        let part = |run: &NewRun| i16::from(run.part.0);
        ready.filter(|run| !held.contains(&part(run)) && owned(run)).map(|run| (part(run), run.id.0)).unzip()
    }

    /// Keys whose new limit lets in someone who waits.
    fn room(&self) -> impl Iterator<Item = i64> {
        let room = |slot: &rota_core::slot::Slot| slot.held < slot.limit && slot.waiting > 0;
        self.slots.iter().filter(move |(_, slot)| room(slot)).map(|(key, _)| *key)
    }

    fn has_aftermath(&self) -> bool {
        !self.replaced.is_empty() || !self.stopped.is_empty() || self.room().next().is_some()
    }
}

/// Makes the runs that follow those that have died by themselves, with their ends.
pub(super) fn make_followers(now: Timestamp, runs: &[NewRun]) -> Vec<Late> {
    if runs.is_empty() {
        return Vec::new();
    }
    let mut columns = Columns::default();
    for run in runs {
        columns.push(run, &RunState::Scheduled, false);
    }
    columns.thin();
    let asked = || runs.iter().flat_map(|run| run.unique_keys().map(|ask| (run.id.0, ask)));
    let keys: Vec<i64> = asked().map(|(_, ask)| ask.key.0).collect();
    let ids: Vec<Uuid> = asked().map(|(id, _)| id).collect();
    let untils: Vec<i64> = asked().map(|(_, ask)| micros(ask.until)).collect();
    let mut late = vec![
        Late { sql: INSERT, params: columns.into_params(None, micros(now)) },
        Late { sql: TAKE_UNIQUE, params: params![keys, ids, untils, micros(now)] },
    ];
    late.extend(dead::mark_redriven(now, runs));
    late
}

const NOTICE: &str =
    "INSERT INTO notice (part, run) SELECT * FROM unnest($1::smallint[], $2::uuid[]) ON CONFLICT DO NOTHING";

const TAKE_UNIQUE: &str = "INSERT INTO unique_key AS k (key, run, until) \
     SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::bigint[]) u (key, run, until) ORDER BY key \
     ON CONFLICT (key) DO UPDATE SET run = excluded.run, until = excluded.until WHERE k.until <= $4";

/// Gives unique keys to the run that was made, or to nobody.
const LEAVE_UNIQUE: &str = "WITH u AS ( \
         SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::bigint[]) u (key, run, until)), \
     gone AS (DELETE FROM unique_key k USING u WHERE k.key = u.key AND u.run IS NULL) \
     UPDATE unique_key k SET run = u.run, until = u.until FROM u WHERE k.key = u.key AND u.run IS NOT NULL";

/// Ties runs to those they wait for.
const TIE: &str =
    "INSERT INTO need (needed, waiter) SELECT * FROM unnest($1::uuid[], $2::uuid[]) ON CONFLICT DO NOTHING";

/// Writes runs and answers which of the partitions in `$1` the node `$2` holds,
/// locked against a take-over until the commit.
const INSERT: &str = "
WITH held AS MATERIALIZED (
    SELECT part FROM partition WHERE part = ANY($1::smallint[]) AND node = $2::uuid ORDER BY part FOR SHARE
), made AS (
    INSERT INTO run (id, job, order_key, ready_at, created_at, expires_at, schedule, planned_at, slot, due_at, tenant,
                     version, lane, fence, slot_limit, part, status, flags, attempt, losses, source, step, pending,
                     parent, payload, extra, item)
    SELECT id, job, order_key, ready_at, $3, expires_at, schedule, planned_at, slot, due_at, tenant,
           version, lane, 0, slot_limit, part, status, flags, 0, 0, source, step, pending,
           parent, payload, extra, item
    FROM unnest($4::uuid[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[],
                $11::bigint[], $12::bigint[], $13::int[], $14::int[], $15::int[], $16::int[], $17::smallint[],
                $18::smallint[], $19::smallint[], $20::smallint[], $21::smallint[], $22::smallint[], $23::uuid[],
                $24::text[], $25::text[], $26::int[])
         u (id, job, order_key, ready_at, expires_at, schedule, planned_at, slot, due_at, tenant, version, lane,
            slot_limit, part, status, flags, source, step, pending, parent, payload, extra, item)
)
SELECT part FROM held";

/// New runs as columns. A column of nothing but nulls is sent empty.
#[derive(Default)]
struct Columns<'a> {
    ids: Vec<Uuid>,
    jobs: Vec<i64>,
    orders: Vec<i64>,
    ready: Vec<i64>,
    expires: Vec<Option<i64>>,
    schedules: Vec<Option<i64>>,
    planned: Vec<Option<i64>>,
    slots: Vec<Option<i64>>,
    due: Vec<Option<i64>>,
    tenants: Vec<i32>,
    versions: Vec<i32>,
    lanes: Vec<i32>,
    limits: Vec<Option<i32>>,
    parts: Vec<i16>,
    statuses: Vec<i16>,
    flags: Vec<i16>,
    sources: Vec<i16>,
    steps: Vec<Option<i16>>,
    pending: Vec<Option<i16>>,
    parents: Vec<Option<Uuid>>,
    payloads: Vec<Option<Cow<'a, str>>>,
    extras: Vec<Option<String>>,
    items: Vec<Option<i32>>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, run: &'a NewRun, state: &RunState, needed: bool) {
        let own = if run.rearms { flag::REARMS } else { 0 } | if needed { flag::NEEDED } else { 0 };
        // A new run has not ended, so its state has columns.
        let Some(columns) = columns_of(state, run.due_at(), own) else { return };
        self.ids.push(run.id.0);
        self.jobs.push(run.job.0);
        self.orders.push(OrderKey::new(run.ready_at, run.priority).0);
        self.ready.push(micros(run.ready_at));
        self.expires.push(run.expires_at.map(micros));
        self.schedules.push(run.trigger.schedule.map(|schedule| schedule.0));
        self.planned.push(run.trigger.planned_at.map(micros));
        self.slots.push(run.slot.map(|ask| ask.key.0));
        self.due.push(columns.due_at);
        self.tenants.push(run.tenant.0);
        self.versions.push(run.version);
        self.lanes.push(run.lane.0);
        self.limits.push(run.slot.map(|ask| ask.limit.min(i32::MAX as u32) as i32));
        self.parts.push(i16::from(run.part.0));
        self.statuses.push(columns.status);
        self.flags.push(columns.flags);
        self.sources.push(source_code(run.trigger.source));
        self.steps.push(run.parent.map(|parent| parent.step));
        self.pending.push(columns.pending);
        self.parents.push(run.parent.map(|parent| parent.run.0));
        self.payloads.push(run.payload.as_deref().map(Cow::Borrowed));
        self.extras.push(extra_text(run));
        self.items.push(run.parent.and_then(|parent| parent.item).map(u32::cast_signed));
    }

    fn thin(&mut self) {
        for column in [&mut self.expires, &mut self.schedules, &mut self.planned, &mut self.slots, &mut self.due] {
            empty_if_null(column);
        }
        for column in [&mut self.steps, &mut self.pending] {
            empty_if_null(column);
        }
        empty_if_null(&mut self.limits);
        empty_if_null(&mut self.parents);
        empty_if_null(&mut self.payloads);
        empty_if_null(&mut self.extras);
        empty_if_null(&mut self.items);
    }

    /// The same columns, to be sent later.
    fn into_params(self, node: Option<Uuid>, now: i64) -> Vec<Box<dyn ToSql + Sync + Send>> {
        let payloads: Vec<Option<String>> = self.payloads.into_iter().map(|text| text.map(Cow::into_owned)).collect();
        let no_parts: Vec<i16> = Vec::new();
        params![
            no_parts,
            node,
            now,
            self.ids,
            self.jobs,
            self.orders,
            self.ready,
            self.expires,
            self.schedules,
            self.planned,
            self.slots,
            self.due,
            self.tenants,
            self.versions,
            self.lanes,
            self.limits,
            self.parts,
            self.statuses,
            self.flags,
            self.sources,
            self.steps,
            self.pending,
            self.parents,
            payloads,
            self.extras,
            self.items
        ]
    }

    #[allow(clippy::ref_option, reason = "the driver binds a reference to what it sends")]
    fn params<'b>(&'b self, parts: &'b Vec<i16>, node: &'b Option<Uuid>, now: &'b i64) -> [Param<'b>; 26] {
        [
            parts,
            node,
            now,
            &self.ids,
            &self.jobs,
            &self.orders,
            &self.ready,
            &self.expires,
            &self.schedules,
            &self.planned,
            &self.slots,
            &self.due,
            &self.tenants,
            &self.versions,
            &self.lanes,
            &self.limits,
            &self.parts,
            &self.statuses,
            &self.flags,
            &self.sources,
            &self.steps,
            &self.pending,
            &self.parents,
            &self.payloads,
            &self.extras,
            &self.items,
        ]
    }
}

#[async_trait]
impl EnqueueStore for PostgresStore {
    async fn enqueue(&self, write: &Write, runs: &[NewRun], inbox: &[i64]) -> Result<Vec<Enqueued>, StoreError> {
        if runs.is_empty() && inbox.is_empty() {
            return Ok(Vec::new());
        }
        match self.once(write, "enqueue runs", |tx| self.enqueue_once(tx, write, runs, inbox)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => {
                let answers = kept::enqueued_again(kept.as_deref(), runs.len())?;
                Ok(answers.iter().zip(runs).map(|(answer, run)| answer.told_for(run.id)).collect())
            }
        }
    }
}
