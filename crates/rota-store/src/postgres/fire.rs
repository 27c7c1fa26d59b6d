//! Fire: due instants become runs, and the cursor moves on, in one commit.
//!
//! The guard is the cursor as it was read, with the revisions of its schedule,
//! its job, and the pauses. Edits of a schedule rewrite its cursor; edits of a
//! job, and pauses, are held off by a share lock until the commit. So whoever
//! has had an edit acknowledged sees no run of the old version made after it.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    fire::{Cursor, Progress},
    ids::{Partition, RunId, ScheduleId},
    run::{CancelAsk, NewRun},
    store::{DueCursor, Enqueued, FireItem, FireStore, Fired, LiveRun, StoreError, Write},
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    PostgresStore,
    change::lock_runs,
    fault::Fault,
    follow::Aftermath,
    once::Once,
    own::numbers,
    rows::status_of,
    skips::{self, Skip},
    tx::{Ending, Param, Tx},
};
use crate::{
    codec::{micros, time, time_opt},
    fired::leaves,
    kept, unreadable,
};

/// An item that passed its guard.
#[derive(Clone, Copy)]
struct Won {
    item: usize,
    version: i32,
}

impl PostgresStore {
    async fn fire_once(
        &self,
        tx: Arc<Tx>,
        write: &Write,
        pauses_revision: i64,
        items: &[FireItem],
    ) -> Result<(Vec<Fired>, Ending), Fault> {
        let mut won = guard(&tx, pauses_revision, items).await?;
        won.sort_by_key(|won| won.item);
        let mut after = Aftermath { changed: !won.is_empty(), ..Aftermath::default() };
        self.stop_earlier(&tx, write, items, &won, &mut after).await?;
        let runs: Vec<Cow<'_, NewRun>> =
            won.iter().flat_map(|won| items[won.item].runs.iter().map(|run| current(run, won.version))).collect();
        let runs: Vec<&NewRun> = runs.iter().map(AsRef::as_ref).collect();
        let made = self.insert(&tx, write, &runs, &mut after).await?;
        let mut answers = vec![Fired::Stale; items.len()];
        let mut rest = made.as_slice();
        for won in &won {
            let (own, others) = rest.split_at(items[won.item].runs.len());
            rest = others;
            answers[won.item] = Fired::Fired(own.to_vec());
        }
        let effects = effects(items, &won, &answers);
        skips::record(&tx, &effects.skips).await?;
        effects.write(&tx).await?;
        let ending = after.ending(kept::fired(&answers)?);
        Ok((answers, ending))
    }

    /// Asks the earlier runs of schedules that say so to stop.
    async fn stop_earlier(
        &self,
        tx: &Tx,
        write: &Write,
        items: &[FireItem],
        won: &[Won],
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let mut asks: Vec<(&CancelAsk, Vec<Uuid>)> = Vec::new();
        for item in won.iter().map(|won| &items[won.item]) {
            let Some(ask) = &item.cancel_ask else { continue };
            let ids = item.cancel.iter().map(|run| run.0);
            match asks.iter_mut().find(|(known, _)| *known == ask) {
                Some((_, known)) => known.extend(ids),
                None => asks.push((ask, ids.collect())),
            }
        }
        for (ask, ids) in asks.iter().filter(|(_, ids)| !ids.is_empty()) {
            let rows = lock_runs(tx, ids).await?;
            self.cancel_locked(tx, write, rows, |_| CancelAsk::clone(ask), after).await?;
        }
        if !asks.is_empty() {
            self.follow(tx, write.now, after).await?;
            self.tell(tx, None, after).await?;
        }
        Ok(())
    }
}

/// The run at the job's current version.
fn current(run: &NewRun, version: i32) -> Cow<'_, NewRun> {
    if run.version == version { Cow::Borrowed(run) } else { Cow::Owned(NewRun { version, ..run.clone() }) }
}

const HOLD_PAUSES: &str = "SELECT 1 FROM meta FOR SHARE";

const HOLD_JOBS: &str = "SELECT 1 FROM job WHERE id = ANY(ARRAY( \
     SELECT DISTINCT job FROM schedule WHERE id = ANY($1::bigint[]))) ORDER BY id FOR SHARE";

/// What an item must still find, over `u` with the cursor as read.
macro_rules! as_read {
    () => {
        "c.part = u.part AND c.due_at = u.due_at AND c.schedule = u.schedule AND c.planned_at = u.planned_at \
         AND c.fired = u.fired AND c.revision = u.revision AND s.id = u.schedule AND s.revision = u.revision AND NOT s.deleted \
         AND j.id = s.job AND j.revision = u.job_revision AND NOT j.deleted \
         AND (SELECT pauses_revision FROM meta) = $1"
    };
}

const ADVANCE: &str = concat!(
    "UPDATE cursor c SET due_at = u.next_due, planned_at = u.next_planned, fired = u.next_fired \
     FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::int[], $7::int[], $8::bigint[], \
                 $9::bigint[], $10::bigint[], $11::bigint[]) \
          WITH ORDINALITY u (part, due_at, schedule, planned_at, revision, job_revision, fired, \
                             next_due, next_planned, next_fired, n), schedule s, job j WHERE ",
    as_read!(),
    " RETURNING u.n, j.version"
);

const USE_UP: &str = concat!(
    "DELETE FROM cursor c \
     USING unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::int[], $7::int[], $8::bigint[]) \
           WITH ORDINALITY u (part, due_at, schedule, planned_at, revision, job_revision, fired, n), schedule s, job j WHERE ",
    as_read!(),
    " RETURNING u.n, j.version"
);

/// Cursors as read, in columns.
#[derive(Default)]
struct AsRead {
    items: Vec<usize>,
    parts: Vec<i16>,
    due: Vec<i64>,
    schedules: Vec<i64>,
    planned: Vec<i64>,
    revisions: Vec<i32>,
    job_revisions: Vec<i32>,
    fired: Vec<i64>,
    next_due: Vec<i64>,
    next_planned: Vec<i64>,
    next_fired: Vec<i64>,
}

impl AsRead {
    fn push(&mut self, n: usize, item: &FireItem) {
        self.items.push(n);
        self.parts.push(i16::from(item.due.part.0));
        self.due.push(micros(item.due.cursor.due_at));
        self.schedules.push(item.due.schedule.0);
        self.planned.push(micros(item.due.cursor.planned_at));
        self.revisions.push(item.due.revision);
        self.job_revisions.push(item.job_revision);
        self.fired.push(item.due.cursor.fired as i64);
        if let Some(next) = &item.next {
            self.next_due.push(micros(next.due_at));
            self.next_planned.push(micros(next.planned_at));
            self.next_fired.push(next.fired as i64);
        }
    }

    fn params<'a>(&'a self, pauses: &'a i64) -> Vec<Param<'a>> {
        let mut params: Vec<Param<'a>> = vec![pauses, &self.parts, &self.due, &self.schedules, &self.planned];
        params.extend([&self.revisions as Param<'a>, &self.job_revisions, &self.fired]);
        if !self.next_due.is_empty() {
            params.extend([&self.next_due as Param<'a>, &self.next_planned, &self.next_fired]);
        }
        params
    }
}

/// Takes the cursors that are still as read, and moves or removes them.
async fn guard(tx: &Tx, pauses_revision: i64, items: &[FireItem]) -> Result<Vec<Won>, Fault> {
    let (mut advance, mut use_up) = (AsRead::default(), AsRead::default());
    // Of a schedule that is named twice the first word counts.
    let mut named = HashSet::with_capacity(items.len());
    for (n, item) in items.iter().enumerate().filter(|(_, item)| named.insert(item.due.schedule)) {
        if item.next.is_some() { &mut advance } else { &mut use_up }.push(n, item);
    }
    let schedules: Vec<i64> = items.iter().map(|item| item.due.schedule.0).collect();
    let (on, up) = (advance.params(&pauses_revision), use_up.params(&pauses_revision));
    let jobs: [Param<'_>; 1] = [&schedules];
    let mut statements = vec![(HOLD_PAUSES, &[][..]), (HOLD_JOBS, &jobs[..])];
    let mut groups = Vec::new();
    for (sql, params, group) in [(ADVANCE, &on, &advance.items), (USE_UP, &up, &use_up.items)] {
        if !group.is_empty() {
            statements.push((sql, &params[..]));
            groups.push(group);
        }
    }
    let answers = tx.pipe(&statements).await?;
    let mut won = Vec::with_capacity(items.len());
    for (rows, group) in answers[2..].iter().zip(groups) {
        for row in rows {
            let n = row.try_get::<_, i64>(0)? as usize - 1;
            won.push(Won { item: group[n], version: row.try_get(1)? });
        }
    }
    Ok(won)
}

/// What firing leaves besides runs.
#[derive(Default)]
struct Effects {
    skips: Vec<Skip>,
    /// Schedule and the run whose end arms it again.
    armed: Vec<(i64, Uuid)>,
    /// Schedules without a cursor, and what is behind them.
    behind: Vec<(i64, Progress)>,
    /// Schedules that armed no run and wait from now on.
    waiting: Vec<(i64, i16, i32, Cursor)>,
    /// Cursors that counted on runs which were refused.
    recounted: Vec<(i16, i64, Cursor)>,
}

fn effects(items: &[FireItem], won: &[Won], answers: &[Fired]) -> Effects {
    let mut effects = Effects::default();
    for won in won {
        let (item, Fired::Fired(made)) = (&items[won.item], &answers[won.item]) else { continue };
        effects.add(item, made);
    }
    effects
}

impl Effects {
    fn add(&mut self, item: &FireItem, made: &[Enqueued]) {
        let schedule = item.due.schedule.0;
        let part = i16::from(item.due.part.0);
        let leaves = leaves(item, made);
        let skip = |(range, fired)| Skip { schedule, range, fired };
        self.skips.extend(leaves.skips.into_iter().map(skip));
        match (item.next, leaves.next) {
            (Some(planned), Some(next)) if planned != next => self.recounted.push((part, schedule, next)),
            (Some(_), _) => {}
            (None, Some(next)) => self.waiting.push((schedule, part, item.due.revision, next)),
            (None, None) => self.behind.push((schedule, leaves.progress)),
        }
        let arms = |(run, answer): &(&NewRun, &Enqueued)| run.rearms && matches!(answer, Enqueued::Made { .. });
        let last = item.runs.iter().zip(made).rfind(arms);
        self.armed.extend(last.map(|(run, _)| (schedule, run.id.0)));
    }

    async fn write(&self, tx: &Tx) -> Result<(), Fault> {
        if !self.armed.is_empty() {
            let (schedules, runs): (Vec<i64>, Vec<Uuid>) = self.armed.iter().copied().unzip();
            let sql = "UPDATE schedule s SET armed_by = u.run \
                       FROM unnest($1::bigint[], $2::uuid[]) u (id, run) WHERE s.id = u.id";
            tx.rows(sql, &[&schedules, &runs]).await?;
        }
        self.write_behind(tx).await?;
        self.write_recounted(tx).await?;
        write_cursors(tx, self.waiting.iter().copied()).await
    }

    async fn write_behind(&self, tx: &Tx) -> Result<(), Fault> {
        if self.behind.is_empty() {
            return Ok(());
        }
        let schedules: Vec<i64> = self.behind.iter().map(|(id, _)| *id).collect();
        let fired: Vec<i64> = self.behind.iter().map(|(_, progress)| progress.fired as i64).collect();
        let decided: Vec<Option<i64>> =
            self.behind.iter().map(|(_, progress)| progress.decided_to.map(micros)).collect();
        let sql = "UPDATE schedule s SET fired = u.fired, decided_to = u.decided_to \
                   FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) u (id, fired, decided_to) WHERE s.id = u.id";
        tx.rows(sql, &[&schedules, &fired, &decided]).await?;
        Ok(())
    }

    async fn write_recounted(&self, tx: &Tx) -> Result<(), Fault> {
        if self.recounted.is_empty() {
            return Ok(());
        }
        let parts: Vec<i16> = self.recounted.iter().map(|(part, _, _)| *part).collect();
        let schedules: Vec<i64> = self.recounted.iter().map(|(_, id, _)| *id).collect();
        let due: Vec<i64> = self.recounted.iter().map(|(_, _, cursor)| micros(cursor.due_at)).collect();
        let fired: Vec<i64> = self.recounted.iter().map(|(_, _, cursor)| cursor.fired as i64).collect();
        let sql = "UPDATE cursor c SET fired = u.fired \
                   FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[]) u (part, due_at, schedule, fired) \
                   WHERE c.part = u.part AND c.due_at = u.due_at AND c.schedule = u.schedule";
        tx.rows(sql, &[&parts, &due, &schedules, &fired]).await?;
        Ok(())
    }
}

/// Writes cursors of schedules that have none.
pub(super) async fn write_cursors(
    tx: &Tx,
    cursors: impl IntoIterator<Item = (i64, i16, i32, Cursor)>,
) -> Result<(), Fault> {
    let (mut schedules, mut parts, mut revisions) = (Vec::new(), Vec::new(), Vec::new());
    let (mut due, mut planned, mut fired) = (Vec::new(), Vec::new(), Vec::new());
    for (schedule, part, revision, cursor) in cursors {
        schedules.push(schedule);
        parts.push(part);
        revisions.push(revision);
        due.push(micros(cursor.due_at));
        planned.push(micros(cursor.planned_at));
        fired.push(cursor.fired as i64);
    }
    if schedules.is_empty() {
        return Ok(());
    }
    // In the order of the index, so that a bulk load fills pages one by one. Where a
    // cursor stands already, such as one that cannot be read, it stays: the scanner
    // compares it with what its schedule implies.
    let sql = "INSERT INTO cursor (part, due_at, schedule, planned_at, fired, revision) \
               SELECT * FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::int[]) \
                             u (part, due_at, schedule, planned_at, fired, revision) ORDER BY part, due_at, schedule \
               ON CONFLICT DO NOTHING";
    tx.rows(sql, &[&parts, &due, &schedules, &planned, &fired, &revisions]).await?;
    Ok(())
}

const DUE: &str = "SELECT c.schedule, c.part, c.revision, c.planned_at, c.due_at, c.fired \
     FROM unnest($1::smallint[]) p (part), LATERAL (SELECT * FROM cursor \
         WHERE part = p.part AND due_at <= $2 ORDER BY due_at, schedule LIMIT $3) c";

fn due_cursor(row: &Row) -> Result<DueCursor, Fault> {
    let part: i16 = row.try_get(1)?;
    let cursor = Cursor {
        planned_at: time(row.try_get(3)?)?,
        due_at: time(row.try_get(4)?)?,
        fired: row.try_get::<_, i64>(5)?.max(0) as u64,
    };
    Ok(DueCursor {
        schedule: ScheduleId(row.try_get(0)?),
        part: Partition(part as u8),
        revision: row.try_get(2)?,
        cursor,
    })
}

impl PostgresStore {
    /// The earliest cursors of many partitions. Each partition gives its first
    /// few; what lies beyond the end of one that gave all it was asked for is
    /// left for a second look, so the order over all of them is true.
    pub(super) async fn due_cursors(
        &self,
        parts: &[Partition],
        until: Timestamp,
        limit: u32,
    ) -> Result<Vec<DueCursor>, Fault> {
        let parts = numbers(parts);
        let limit = limit.max(1) as usize;
        let mut each = limit.div_ceil(parts.len().max(1)) + 8;
        loop {
            let rows = self.read(DUE, &[&parts, &micros(until), &(each as i64)]).await?;
            let mut due: Vec<DueCursor> = Vec::with_capacity(rows.len());
            let mut counts: HashMap<i16, (usize, Timestamp)> = HashMap::new();
            for row in &rows {
                let read = self.due_cursor(row)?;
                let last = counts.entry(row.try_get(1)?).or_insert((0, Timestamp::MIN));
                *last = (last.0 + 1, read.map_or(last.1, |due| last.1.max(due.cursor.due_at)));
                due.extend(read);
            }
            let edge = counts.values().filter(|(count, _)| *count >= each).map(|(_, last)| *last).min();
            due.sort_by_key(|cursor| (cursor.cursor.due_at, cursor.schedule));
            if let Some(edge) = edge {
                due.retain(|cursor| cursor.cursor.due_at <= edge);
            }
            if edge.is_none() || due.len() >= limit || each >= limit {
                due.truncate(limit);
                return Ok(due);
            }
            each = (each * 4).min(limit);
        }
    }

    pub(super) async fn live_runs(&self, schedules: &[ScheduleId], limit: u32) -> Result<Vec<Vec<LiveRun>>, Fault> {
        let ids: Vec<i64> = schedules.iter().map(|schedule| schedule.0).collect();
        let sql = "SELECT u.schedule, r.id, r.status, r.planned_at FROM unnest($1::bigint[]) u (schedule), \
                   LATERAL (SELECT id, status, planned_at FROM run WHERE run.schedule = u.schedule \
                     AND run.schedule IS NOT NULL AND status < 100 ORDER BY id LIMIT $2) r";
        let mut found: HashMap<i64, Vec<LiveRun>> = HashMap::new();
        for row in self.read(sql, &[&ids, &i64::from(limit)]).await? {
            let id: Uuid = row.try_get(1)?;
            let read = || -> Result<LiveRun, Fault> {
                let (status, planned_at) = (status_of(row.try_get(2)?)?, time_opt(row.try_get(3)?)?);
                Ok(LiveRun { id: RunId(id), status, planned_at })
            };
            match read() {
                Ok(live) => found.entry(row.try_get(0)?).or_default().push(live),
                Err(fault) => self.notes.note(unreadable::RUN, id, fault),
            }
        }
        Ok(ids.iter().map(|id| found.get(id).cloned().unwrap_or_default()).collect())
    }
}

impl PostgresStore {
    /// None where it cannot be read.
    pub(super) fn due_cursor(&self, row: &Row) -> Result<Option<DueCursor>, Fault> {
        let schedule: i64 = row.try_get(0)?;
        Ok(self.notes.readable("cursor", schedule, due_cursor(row)))
    }
}

#[async_trait]
impl FireStore for PostgresStore {
    async fn due(&self, parts: &[Partition], until: Timestamp, limit: u32) -> Result<Vec<DueCursor>, StoreError> {
        tried!("read due cursors", self.due_cursors(parts, until, limit))
    }

    async fn live_of(&self, schedules: &[ScheduleId], limit: u32) -> Result<Vec<Vec<LiveRun>>, StoreError> {
        tried!("read the live runs of schedules", self.live_runs(schedules, limit))
    }

    async fn fire(&self, write: &Write, pauses_revision: i64, items: &[FireItem]) -> Result<Vec<Fired>, StoreError> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        match self.once(write, "fire schedules", |tx| self.fire_once(tx, write, pauses_revision, items)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::fired_again(kept.as_deref(), items),
        }
    }
}
