//! Own: what the owner of partitions reads, and writes without a claim.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    dispatch::Window,
    ids::{Partition, RunId, WorkerId},
    lane::LaneMode,
    run::{Lease, Run},
    store::{Epoch, Guarded, OwnLease, OwnStore, RunningMark, StoreError, Write},
};
use uuid::Uuid;

use super::{
    PostgresStore,
    claim::HOLD,
    fault::Fault,
    finish::{Right, confirm},
    once::Once,
    rows::{RUN, RUN_LEN, run, runs},
    tx::{Ending, Late, Param, Tx, params},
};
use crate::{
    codec::{
        flag, micros,
        sql::{BEGUN, CANCELLING, EXECUTED, OWNED_LANE, QUEUED, RUNNING},
    },
    failpoint, kept,
};

const OWN: &str = formatcp!(
    "SELECT {RUN}, w.n FROM unnest($2::int[], $3::int[], $4::bigint[], $5::uuid[], $6::bigint[]) \
         WITH ORDINALITY w (lane, tenant, after_key, after_id, most, n), LATERAL ( \
         SELECT * FROM run WHERE status = {QUEUED} AND lane = w.lane AND tenant = w.tenant \
             AND (order_key, id) > (w.after_key, w.after_id) AND part = ANY($1::smallint[]) \
         ORDER BY order_key, id LIMIT w.most) r ORDER BY w.n, r.order_key, r.id"
);

impl PostgresStore {
    pub(super) async fn own_windows(&self, parts: &[Partition], windows: &[Window]) -> Result<Vec<Vec<Run>>, Fault> {
        let modes = self.modes(windows.iter().map(|window| window.pair.lane)).await?;
        let mut places = Vec::new();
        let (mut lanes, mut tenants, mut keys, mut ids, mut most) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (n, window) in windows.iter().enumerate() {
            if modes.get(&window.pair.lane) != Some(&LaneMode::Owned) {
                continue;
            }
            places.push(n);
            lanes.push(window.pair.lane.0);
            tenants.push(window.pair.tenant.0);
            keys.push(window.after.map_or(i64::MIN, |(key, _)| key.0));
            ids.push(window.after.map_or(Uuid::nil(), |(_, id)| id.0));
            most.push(i64::from(window.limit));
        }
        let mut answers = vec![Vec::new(); windows.len()];
        if places.is_empty() {
            return Ok(answers);
        }
        let parts = numbers(parts);
        for row in self.read(OWN, &[&parts, &lanes, &tenants, &keys, &ids, &most]).await? {
            let n: i64 = row.try_get(RUN_LEN)?;
            answers[places[n as usize - 1]].extend(run(&self.notes, &row));
        }
        Ok(answers)
    }

    pub(super) async fn inherited_runs(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, Fault> {
        let sql = formatcp!(
            "SELECT {RUN} FROM run r JOIN lane l ON l.id = r.lane AND l.mode = {OWNED_LANE} \
               WHERE r.part = ANY($1) AND r.holder IS NULL AND r.status IN ({BEGUN}) ORDER BY r.order_key, r.id LIMIT $2"
        );
        Ok(runs(&self.notes, &self.read(sql, &[&numbers(parts), &i64::from(limit)]).await?))
    }

    pub(super) async fn noticed_runs(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, Fault> {
        let sql = formatcp!(
            "SELECT {RUN}, n.part, n.run FROM (SELECT part, run FROM notice WHERE part = ANY($1) LIMIT $2) n \
               LEFT JOIN run r ON r.id = ANY(ARRAY[n.run]) ORDER BY r.order_key, r.id"
        );
        let rows = self.read(sql, &[&numbers(parts), &i64::from(limit)]).await?;
        let mut found = Vec::with_capacity(rows.len());
        let mut ended = Vec::new();
        for row in rows {
            match row.try_get::<_, Option<Uuid>>(0)? {
                Some(_) => found.extend(run(&self.notes, &row)),
                None => ended.push((row.try_get(RUN_LEN)?, row.try_get(RUN_LEN + 1)?)),
            }
        }
        // A run that has ended needs no one's look any more.
        failpoint::named("clear notices", self.drop_notices(ended)).await?;
        Ok(found)
    }

    pub(super) async fn drop_notices(&self, seen: Vec<(i16, Uuid)>) -> Result<(), Fault> {
        if seen.is_empty() {
            return Ok(());
        }
        let (parts, ids): (Vec<i16>, Vec<Uuid>) = seen.into_iter().unzip();
        let sql = "DELETE FROM notice n USING unnest($1::smallint[], $2::uuid[]) u (part, run) \
                   WHERE n.part = ANY(ARRAY[u.part]) AND n.run = ANY(ARRAY[u.run])";
        self.write_alone(&self.work, sql, &[&parts, &ids]).await?;
        Ok(())
    }
}

pub(super) fn numbers(parts: &[Partition]) -> Vec<i16> {
    parts.iter().map(|part| i16::from(part.0)).collect()
}

async fn lease_once(
    tx: Arc<Tx>,
    write: &Write,
    worker: WorkerId,
    until: Timestamp,
    asks: &[OwnLease],
) -> Result<(Vec<Guarded>, Ending), Fault> {
    let claims: Vec<(Lease, Partition, Epoch)> = asks.iter().map(|ask| (ask.lease, ask.part, ask.epoch)).collect();
    let sql = formatcp!(
        "UPDATE run r SET status = {RUNNING}, fence = r.fence + 1, holder = $3, started_at = $4, due_at = NULL \
               FROM unnest($1::uuid[], $2::int[]) WITH ORDINALITY u (id, fence, n) \
               WHERE r.id = ANY(ARRAY[u.id]) AND r.fence = u.fence AND r.status = {QUEUED} RETURNING u.n"
    );
    let answers = owner_writes(&tx, &claims, sql, |_| vec![], &[&worker.0, &micros(write.now)]).await?;
    let any = answers.contains(&Guarded::Applied);
    let mut ending = Ending { answer: kept::guarded(&answers), idle: !any, ..Ending::default() };
    if any {
        ending.late.push(Late { sql: HOLD, params: params![worker.0, micros(until)] });
    }
    Ok((answers, ending))
}

async fn mark_once(tx: Arc<Tx>, marks: &[RunningMark]) -> Result<(Vec<Guarded>, Ending), Fault> {
    let claims: Vec<(Lease, Partition, Epoch)> = marks.iter().map(|mark| (mark.lease, mark.part, mark.epoch)).collect();
    let sql = formatcp!(
        "UPDATE run r SET status = {RUNNING}, flags = r.flags | $4, started_at = u.started_at, due_at = NULL \
               FROM unnest($1::uuid[], $2::int[], $3::bigint[]) WITH ORDINALITY u (id, fence, started_at, n) \
               WHERE r.id = ANY(ARRAY[u.id]) AND r.fence = u.fence AND r.status = {QUEUED} RETURNING u.n"
    );
    let started = |group: &[usize]| group.iter().map(|n| micros(marks[*n].started_at)).collect();
    let answers = owner_writes(&tx, &claims, sql, started, &[&flag::OWNED]).await?;
    let idle = !answers.contains(&Guarded::Applied);
    let ending = Ending { answer: kept::guarded(&answers), idle, ..Ending::default() };
    Ok((answers, ending))
}

/// As [`Run::lease_running`] decides: status, fence and what is due stay those of a run that
/// was asked to stop.
async fn lease_running_once(
    tx: Arc<Tx>,
    worker: WorkerId,
    until: Timestamp,
    attempts: &[RunningMark],
) -> Result<(Vec<Guarded>, Ending), Fault> {
    let claims: Vec<(Lease, Partition, Epoch)> = attempts.iter().map(|one| (one.lease, one.part, one.epoch)).collect();
    let sql = formatcp!(
        "UPDATE run r SET status = CASE r.status WHEN 5 THEN 5 ELSE 3 END, flags = r.flags & ~$4::smallint, \
                   holder = $5, started_at = coalesce(r.started_at, u.started_at), \
                   due_at = CASE r.status WHEN 5 THEN r.due_at END \
               FROM unnest($1::uuid[], $2::int[], $3::bigint[]) WITH ORDINALITY u (id, fence, started_at, n) \
               WHERE r.id = ANY(ARRAY[u.id]) AND r.fence = u.fence AND r.status IN ({EXECUTED}) AND r.holder IS NULL \
               RETURNING u.n"
    );
    let started = |group: &[usize]| group.iter().map(|n| micros(attempts[*n].started_at)).collect();
    let mut answers = owner_writes(&tx, &claims, sql, started, &[&flag::OWNED, &worker.0]).await?;
    for answer in answers.iter_mut().filter(|answer| **answer == Guarded::CancelAsked) {
        // It is leased already, and by another.
        *answer = Guarded::Stale;
    }
    let any = answers.contains(&Guarded::Applied);
    let mut ending = Ending { answer: kept::guarded(&answers), idle: !any, ..Ending::default() };
    if any {
        ending.late.push(Late { sql: HOLD, params: params![worker.0, micros(until)] });
    }
    Ok((answers, ending))
}

/// Runs `sql` for the runs whose partitions are still the writer's, and says
/// of the others why not. `sql` takes ids and fences, then `times` if there are
/// any, then `rest`, and returns the place of each run it wrote.
async fn owner_writes(
    tx: &Tx,
    claims: &[(Lease, Partition, Epoch)],
    sql: &str,
    times: impl Fn(&[usize]) -> Vec<i64>,
    rest: &[Param<'_>],
) -> Result<Vec<Guarded>, Fault> {
    let mut right: BTreeMap<i16, i64> = Right::of(claims.iter().map(|(_, part, epoch)| (*part, *epoch)));
    confirm(tx, &mut right).await?;
    let rightful = |n: &usize| right.get(&i16::from(claims[*n].1.0)) == Some(&claims[*n].2.0);
    let group: Vec<usize> = (0..claims.len()).filter(rightful).collect();
    let mut answers = vec![Guarded::Stale; claims.len()];
    if group.is_empty() {
        return Ok(answers);
    }
    let ids: Vec<Uuid> = group.iter().map(|n| claims[*n].0.run.0).collect();
    let fences: Vec<i32> = group.iter().map(|n| claims[*n].0.fence.0).collect();
    let times = times(&group);
    let mut params: Vec<Param<'_>> = vec![&ids, &fences];
    if !times.is_empty() {
        params.push(&times);
    }
    params.extend(rest);
    for row in tx.rows(sql, &params).await? {
        answers[group[row.try_get::<_, i64>(0)? as usize - 1]] = Guarded::Applied;
    }
    let missed: Vec<usize> = group.into_iter().filter(|n| answers[*n] == Guarded::Stale).collect();
    if missed.is_empty() {
        return Ok(answers);
    }
    let ids: Vec<Uuid> = missed.iter().map(|n| claims[*n].0.run.0).collect();
    let rows =
        tx.rows(formatcp!("SELECT id, fence FROM run WHERE id = ANY($1) AND status = {CANCELLING}"), &[&ids]).await?;
    let mut asked = HashMap::with_capacity(rows.len());
    for row in rows {
        asked.insert(row.try_get::<_, Uuid>(0)?, row.try_get::<_, i32>(1)?);
    }
    for n in missed {
        let lease = claims[n].0;
        if asked.get(&lease.run.0) == Some(&lease.fence.0) {
            answers[n] = Guarded::CancelAsked;
        }
    }
    Ok(answers)
}

#[async_trait]
impl OwnStore for PostgresStore {
    async fn own(&self, parts: &[Partition], windows: &[Window]) -> Result<Vec<Vec<Run>>, StoreError> {
        tried!("read owned runs", self.own_windows(parts, windows))
    }

    async fn inherited(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        tried!("read inherited runs", self.inherited_runs(parts, limit))
    }

    async fn notices(&self, parts: &[Partition], limit: u32) -> Result<Vec<Run>, StoreError> {
        tried!("read notices", self.noticed_runs(parts, limit))
    }

    async fn clear_notices(&self, seen: &[(Partition, RunId)]) -> Result<(), StoreError> {
        tried!("clear notices", self.drop_notices(seen.iter().map(|(part, run)| (i16::from(part.0), run.0)).collect()))
    }

    async fn lease_owned(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        asks: &[OwnLease],
    ) -> Result<Vec<Guarded>, StoreError> {
        match self.once(write, "lease owned runs", |tx| lease_once(tx, write, worker, until, asks)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::guarded_again(kept.as_deref(), asks.len()),
        }
    }

    async fn mark_running(&self, write: &Write, marks: &[RunningMark]) -> Result<Vec<Guarded>, StoreError> {
        match self.once(write, "mark running runs", |tx| mark_once(tx, marks)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::guarded_again(kept.as_deref(), marks.len()),
        }
    }

    async fn lease_running(
        &self,
        write: &Write,
        worker: WorkerId,
        until: Timestamp,
        attempts: &[RunningMark],
    ) -> Result<Vec<Guarded>, StoreError> {
        match self.once(write, "lease running runs", |tx| lease_running_once(tx, worker, until, attempts)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::guarded_again(kept.as_deref(), attempts.len()),
        }
    }
}
