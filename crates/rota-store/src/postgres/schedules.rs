//! Schedules and their cursors.
//!
//! Every edit rewrites the cursor under the new revision, so that a fire planned
//! before it finds nothing, and waits for a fire that is under way.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    fire::{Cursor, Progress},
    ids::{Partition, RunId, ScheduleId},
    store::{
        DueCursor, Guarded, ReviewPage, ScheduleChanges, ScheduleGuard, SchedulePut, ScheduleSaved, StoreError, Write,
    },
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    PostgresStore,
    fault::Fault,
    fire::write_cursors,
    once::Once,
    own::numbers,
    skips::{self, Skip},
    tx::{Ending, Param, Tx},
};
use crate::{
    codec::{micros, time, time_opt},
    definition::abandoned,
    filter::parts_from,
    kept,
    review::review,
};

async fn save_once(tx: Arc<Tx>, puts: &[SchedulePut]) -> Result<(Vec<ScheduleSaved>, Ending), Fault> {
    let answers = put(&tx, puts).await?;
    let plain = answers.iter().all(|answer| *answer == ScheduleSaved::Saved { revision: 1 });
    let answer = if plain { None } else { kept::json(&answers)? };
    let idle = !answers.iter().any(|answer| matches!(answer, ScheduleSaved::Saved { .. }));
    Ok((answers, Ending { answer, idle, ..Ending::default() }))
}

/// Saves schedules of jobs that are there, each by itself.
pub(super) async fn put(tx: &Tx, puts: &[SchedulePut]) -> Result<Vec<ScheduleSaved>, Fault> {
    let mut answers = vec![ScheduleSaved::Stale; puts.len()];
    let live = hold_jobs(tx, puts).await?;
    let (made, edited): (Vec<usize>, Vec<usize>) =
        (0..puts.len()).filter(|n| live.contains(&puts[*n].job.0)).partition(|n| puts[*n].guard.is_none());
    insert(tx, puts, &made, &mut answers).await?;
    edit(tx, puts, &edited, &mut answers).await?;
    let saved = |n: &usize| matches!(answers[*n], ScheduleSaved::Saved { .. });
    let revision = |n: usize| match answers[n] {
        ScheduleSaved::Saved { revision } => revision,
        ScheduleSaved::Stale => 0,
    };
    let winners: Vec<usize> = (0..puts.len()).filter(saved).collect();
    let cursors = winners.iter().filter_map(|n| {
        let put = &puts[*n];
        Some((put.id.0, part_of(put.id.0), revision(*n), put.stored.cursor?))
    });
    write_cursors(tx, cursors).await?;
    let mut skipped = Vec::new();
    for put in winners.iter().map(|n| &puts[*n]) {
        let fired = put.stored.behind.fired;
        skipped.extend(put.skips.iter().map(|range| Skip { schedule: put.id.0, range: *range, fired }));
    }
    skips::record(tx, &skipped).await?;
    Ok(answers)
}

/// The jobs among these that are there, kept from being deleted meanwhile.
async fn hold_jobs(tx: &Tx, puts: &[SchedulePut]) -> Result<HashSet<i64>, Fault> {
    let mut jobs: Vec<i64> = puts.iter().map(|put| put.job.0).collect();
    jobs.sort_unstable();
    jobs.dedup();
    let rows = tx.rows("SELECT id FROM job WHERE id = ANY($1) AND NOT deleted ORDER BY id FOR SHARE", &[&jobs]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

pub(super) fn part_of(schedule: i64) -> i16 {
    i16::from(Partition::of_schedule(ScheduleId(schedule)).0)
}

async fn insert(tx: &Tx, puts: &[SchedulePut], made: &[usize], answers: &mut [ScheduleSaved]) -> Result<(), Fault> {
    if made.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = made.iter().map(|n| puts[*n].id.0).collect();
    let jobs: Vec<i64> = made.iter().map(|n| puts[*n].job.0).collect();
    let tenants: Vec<i32> = made.iter().map(|n| puts[*n].tenant.0).collect();
    let parts: Vec<i16> = ids.iter().map(|id| part_of(*id)).collect();
    let enabled: Vec<bool> = made.iter().map(|n| puts[*n].enabled).collect();
    let names: Vec<&str> = made.iter().map(|n| puts[*n].name.as_str()).collect();
    let specs: Vec<&str> = made.iter().map(|n| puts[*n].spec.as_str()).collect();
    let sql = "INSERT INTO schedule (id, job, tenant, revision, part, enabled, name, spec) \
               SELECT u.id, u.job, u.tenant, 1, u.part, u.enabled, u.name, u.spec \
               FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::smallint[], $5::bool[], $6::text[], $7::text[]) \
                    u (id, job, tenant, part, enabled, name, spec) \
               ON CONFLICT DO NOTHING RETURNING id";
    let rows = tx.rows(sql, &[&ids, &jobs, &tenants, &parts, &enabled, &names, &specs]).await?;
    let mut saved: HashSet<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    for n in made {
        if saved.remove(&puts[*n].id.0) {
            answers[*n] = ScheduleSaved::Saved { revision: 1 };
        }
    }
    Ok(())
}

/// Locks schedules that are not deleted, with their cursors.
async fn lock(tx: &Tx, ids: &[i64]) -> Result<HashMap<i64, ScheduleGuard>, Fault> {
    let mut known = HashMap::with_capacity(ids.len());
    if ids.is_empty() {
        return Ok(known);
    }
    let parts: Vec<i16> = ids.iter().map(|id| part_of(*id)).collect();
    let answers = tx
        .pipe(&[
            (
                "SELECT id, revision, fired, decided_to, armed_by FROM schedule WHERE id = ANY($1) AND NOT deleted \
                 ORDER BY id FOR UPDATE",
                &[&ids],
            ),
            (LOCK_CURSORS, &[&parts, &ids]),
        ])
        .await?;
    for row in &answers[0] {
        let id: i64 = row.try_get(0)?;
        // Nobody can have read a schedule whose progress cannot be read: no guard is like it.
        let guard = ScheduleGuard {
            revision: row.try_get(1)?,
            cursor: None,
            behind: tx.notes.readable_part("schedule", id, progress(row, 2)).unwrap_or_default(),
            armed_by: row.try_get::<_, Option<Uuid>>(4)?.map(RunId),
        };
        known.insert(id, guard);
    }
    for row in &answers[1] {
        let id: i64 = row.try_get(0)?;
        if let Some(schedule) = known.get_mut(&id) {
            schedule.cursor = tx.notes.readable("cursor", id, cursor(row));
        }
    }
    Ok(known)
}

const LOCK_CURSORS: &str = "SELECT c.schedule, c.planned_at, c.due_at, c.fired \
     FROM unnest($1::smallint[], $2::bigint[]) u (part, id) \
     JOIN cursor c ON c.part = u.part AND c.schedule = u.id FOR UPDATE OF c";

const DELETE_CURSORS: &str = "DELETE FROM cursor c USING unnest($1::smallint[], $2::bigint[]) u (part, schedule) \
     WHERE c.part = u.part AND c.schedule = u.schedule";

fn cursor(row: &Row) -> Result<Cursor, Fault> {
    Ok(Cursor {
        planned_at: time(row.try_get(1)?)?,
        due_at: time(row.try_get(2)?)?,
        fired: row.try_get::<_, i64>(3)?.max(0) as u64,
    })
}

/// Takes the cursors of schedules away, whatever is in them.
async fn delete_cursors(tx: &Tx, schedules: &[i64]) -> Result<(), Fault> {
    if schedules.is_empty() {
        return Ok(());
    }
    let parts: Vec<i16> = schedules.iter().map(|id| part_of(*id)).collect();
    tx.rows(DELETE_CURSORS, &[&parts, &schedules]).await?;
    for id in schedules {
        tx.notes.gone("cursor", id);
    }
    Ok(())
}

async fn edit(tx: &Tx, puts: &[SchedulePut], edited: &[usize], answers: &mut [ScheduleSaved]) -> Result<(), Fault> {
    if edited.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = edited.iter().map(|n| puts[*n].id.0).collect();
    let mut known = lock(tx, &ids).await?;
    let taken = taken_names(tx, puts, edited).await?;
    let mut won: Vec<&SchedulePut> = Vec::new();
    for n in edited {
        let put = &puts[*n];
        let Some(found) = known.remove(&put.id.0) else { continue };
        if put.guard == Some(found) && !taken.contains(&put.id.0) {
            answers[*n] = ScheduleSaved::Saved { revision: found.revision + 1 };
            won.push(put);
        }
    }
    delete_cursors(tx, &won.iter().map(|put| put.id.0).collect::<Vec<_>>()).await?;
    write_edits(tx, &won).await
}

/// Schedules whose new name another of the same job has.
async fn taken_names(tx: &Tx, puts: &[SchedulePut], edited: &[usize]) -> Result<HashSet<i64>, Fault> {
    let ids: Vec<i64> = edited.iter().map(|n| puts[*n].id.0).collect();
    let jobs: Vec<i64> = edited.iter().map(|n| puts[*n].job.0).collect();
    let names: Vec<&str> = edited.iter().map(|n| puts[*n].name.as_str()).collect();
    let sql = "SELECT u.id FROM unnest($1::bigint[], $2::bigint[], $3::text[]) u (id, job, name) \
               JOIN schedule s ON s.job = u.job AND s.name = u.name AND NOT s.deleted AND s.id <> u.id";
    let rows = tx.rows(sql, &[&ids, &jobs, &names]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

async fn write_edits(tx: &Tx, won: &[&SchedulePut]) -> Result<(), Fault> {
    let ids: Vec<i64> = won.iter().map(|put| put.id.0).collect();
    let enabled: Vec<bool> = won.iter().map(|put| put.enabled).collect();
    let names: Vec<&str> = won.iter().map(|put| put.name.as_str()).collect();
    let specs: Vec<&str> = won.iter().map(|put| put.spec.as_str()).collect();
    let waits: Vec<bool> = won.iter().map(|put| put.stored.waits_for_run).collect();
    let fired: Vec<i64> = won.iter().map(|put| put.stored.behind.fired as i64).collect();
    let decided: Vec<Option<i64>> = won.iter().map(|put| put.stored.behind.decided_to.map(micros)).collect();
    let sql = "UPDATE schedule s SET revision = s.revision + 1, enabled = u.enabled, name = u.name, spec = u.spec, \
                   fired = u.fired, decided_to = u.decided_to, armed_by = CASE WHEN u.waits THEN s.armed_by END \
               FROM unnest($1::bigint[], $2::bool[], $3::text[], $4::text[], $5::bool[], $6::bigint[], $7::bigint[]) \
                    u (id, enabled, name, spec, waits, fired, decided_to) WHERE s.id = u.id";
    tx.rows(sql, &[&ids, &enabled, &names, &specs, &waits, &fired, &decided]).await?;
    Ok(())
}

/// Ends schedules. What they owed up to now is recorded as deleted.
pub(super) async fn end(tx: &Tx, ids: &[i64], now: Timestamp) -> Result<(), Fault> {
    let known = lock(tx, ids).await?;
    let live: Vec<i64> = known.keys().copied().collect();
    if live.is_empty() {
        return Ok(());
    }
    delete_cursors(tx, &live).await?;
    let sql = "UPDATE schedule SET deleted = true, deleted_at = $2, armed_by = NULL, revision = revision + 1 \
               WHERE id = ANY($1) RETURNING id, spec";
    let mut skipped = Vec::new();
    for row in tx.rows(sql, &[&live, &micros(now)]).await? {
        let id: i64 = row.try_get(0)?;
        let Some(cursor) = known.get(&id).and_then(|known| known.cursor) else { continue };
        let owed = abandoned(ScheduleId(id), row.try_get(1)?, cursor, now);
        skipped.extend(owed.map(|range| Skip { schedule: id, range, fired: cursor.fired }));
    }
    skips::record(tx, &skipped).await
}

fn progress(row: &Row, from: usize) -> Result<Progress, Fault> {
    Ok(Progress { fired: row.try_get::<_, i64>(from)?.max(0) as u64, decided_to: time_opt(row.try_get(from + 1)?)? })
}

impl PostgresStore {
    pub(super) async fn review_of(
        &self,
        parts: &[Partition],
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<ReviewPage, Fault> {
        let parts = numbers(&parts_from(parts, after));
        let behind = after.map(|after| (part_of(after.0), after.0));
        let (part, id) = (behind.map(|behind| behind.0), behind.map(|behind| behind.1));
        let most = i64::from(limit);
        // One partition after the other, and no further than the limit.
        let sql = "SELECT x.id, x.revision FROM unnest($1::smallint[]) p (part) CROSS JOIN LATERAL (\
                       SELECT s.id, s.revision FROM schedule s WHERE s.part = p.part AND s.enabled AND NOT s.deleted \
                       AND s.id > CASE WHEN p.part = $2::smallint THEN $3::bigint ELSE -9223372036854775808 END \
                       ORDER BY s.id LIMIT $4) x LIMIT $4";
        let mut enabled = Vec::new();
        for row in self.read(sql, &[&parts, &part, &id, &most]).await? {
            enabled.push((row.try_get(0)?, Some(row.try_get(1)?)));
        }
        let sql = "SELECT x.schedule, x.part, x.revision, x.planned_at, x.due_at, x.fired \
                   FROM unnest($1::smallint[]) p (part) CROSS JOIN LATERAL (\
                       SELECT * FROM cursor c WHERE c.part = p.part \
                       AND c.schedule > CASE WHEN p.part = $2::smallint THEN $3::bigint ELSE -9223372036854775808 END \
                       ORDER BY c.schedule LIMIT $4) x LIMIT $4";
        let mut armed = Vec::new();
        for row in self.read(sql, &[&parts, &part, &id, &most]).await? {
            armed.push((row.try_get(0)?, self.due_cursor(&row)?));
        }
        Ok(review(&enabled, &armed, limit as usize))
    }
}

/// What a cursor must still be like, over `u` with it as read.
macro_rules! as_read {
    () => {
        "c.part = u.part AND c.schedule = u.id AND c.due_at = u.due_at AND c.planned_at = u.planned_at \
         AND c.fired = u.fired AND c.revision = u.revision"
    };
}

const WAKE: &str = concat!(
    "UPDATE cursor c SET due_at = u.wake_at \
     FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::int[], $7::bigint[]) \
          WITH ORDINALITY u (part, id, due_at, planned_at, fired, revision, wake_at, n) \
     WHERE u.wake_at IS NOT NULL AND ",
    as_read!(),
    " RETURNING u.n"
);

const TAKE_AWAY: &str = concat!(
    "DELETE FROM cursor c \
     USING unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::int[], $7::bigint[]) \
           WITH ORDINALITY u (part, id, due_at, planned_at, fired, revision, wake_at, n) \
     WHERE u.wake_at IS NULL AND ",
    as_read!(),
    " RETURNING u.n"
);

async fn wake_once(tx: Arc<Tx>, cursors: &[(DueCursor, Option<Timestamp>)]) -> Result<(Vec<Guarded>, Ending), Fault> {
    let column = |read: fn(&DueCursor) -> i64| cursors.iter().map(|(due, _)| read(due)).collect::<Vec<i64>>();
    let parts: Vec<i16> = cursors.iter().map(|(due, _)| i16::from(due.part.0)).collect();
    let revisions: Vec<i32> = cursors.iter().map(|(due, _)| due.revision).collect();
    let schedules = column(|due| due.schedule.0);
    let due = column(|due| micros(due.cursor.due_at));
    let planned = column(|due| micros(due.cursor.planned_at));
    let fired = column(|due| due.cursor.fired as i64);
    let at: Vec<Option<i64>> = cursors.iter().map(|(_, at)| at.map(micros)).collect();
    let params: [Param<'_>; 7] = [&parts, &schedules, &due, &planned, &fired, &revisions, &at];
    let mut answers = vec![Guarded::Stale; cursors.len()];
    for rows in tx.pipe(&[(WAKE, &params), (TAKE_AWAY, &params)]).await? {
        for row in rows {
            answers[row.try_get::<_, i64>(0)? as usize - 1] = Guarded::Applied;
        }
    }
    let idle = answers.iter().all(|answer| *answer == Guarded::Stale);
    let answer = kept::guarded(&answers);
    Ok((answers, Ending { answer, idle, ..Ending::default() }))
}

#[async_trait]
impl ScheduleChanges for PostgresStore {
    async fn put_schedules(&self, write: &Write, schedules: &[SchedulePut]) -> Result<Vec<ScheduleSaved>, StoreError> {
        match self.once(write, "save schedules", |tx| save_once(tx, schedules)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(Some(kept)) => kept::json_again(Some(&kept)),
            Once::Known(None) => Ok(vec![ScheduleSaved::Saved { revision: 1 }; schedules.len()]),
        }
    }

    async fn review(
        &self,
        parts: &[Partition],
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<ReviewPage, StoreError> {
        tried!("review schedules", self.review_of(parts, after, limit))
    }

    async fn wake_at(
        &self,
        write: &Write,
        cursors: &[(DueCursor, Option<Timestamp>)],
    ) -> Result<Vec<Guarded>, StoreError> {
        let count = cursors.len();
        match self.once(write, "wake schedules", |tx| wake_once(tx, cursors)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::guarded_again(kept.as_deref(), count),
        }
    }
}
