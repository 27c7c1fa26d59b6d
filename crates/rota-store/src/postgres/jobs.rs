//! Jobs, and what they stand among: tenants, lanes, pauses, calendars.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use rota_core::{
    ids::{JobId, LaneId, ScheduleId, TenantId},
    lane::{Lane, LaneKey, LaneMode},
    store::{
        Calendar, CalendarPut, Deletion, Expect, Guarded, JobCursor, JobPage, JobPut, JobQuery, JobRecord, JobSaved,
        JobVersion, Pause, PauseTarget, Pauses, SchedulePut, ScheduleSaved, StoreError, Tenant, TenantPut, Tier, Write,
    },
    stored,
};
use serde::de::IgnoredAny;
use tokio_postgres::Row;

use super::{
    PostgresStore, after,
    fault::Fault,
    once::Once,
    schedules,
    tx::{Ending, Tx},
};
use crate::{
    codec::{corrupt, micros, mode, mode_code, time, to_json},
    definition,
    filter::{PAGE_MAX, changed_pause},
    kept,
};

const fn tier_code(tier: Tier) -> i16 {
    match tier {
        Tier::Free => 0,
        Tier::Pro => 1,
        Tier::Enterprise => 2,
        Tier::Unlimited => 3,
    }
}

fn tier(code: i16) -> Result<Tier, StoreError> {
    Ok(match code {
        0 => Tier::Free,
        1 => Tier::Pro,
        2 => Tier::Enterprise,
        3 => Tier::Unlimited,
        _ => return Err(corrupt("a tier", code)),
    })
}

pub(super) fn pause(text: Option<&str>) -> Result<Option<Pause>, StoreError> {
    text.map(|text| stored::read(text).map_err(|e| corrupt("a pause", e))).transpose()
}

impl PostgresStore {
    pub(super) async fn save_tenants(&self, tenants: &[TenantPut], now: Timestamp) -> Result<Vec<TenantId>, Fault> {
        // The last word on a name counts, and rows are taken in name order.
        let last: BTreeMap<&str, &TenantPut> = tenants.iter().map(|put| (put.name.as_str(), put)).collect();
        let names: Vec<&str> = last.keys().copied().collect();
        let tiers: Vec<i16> = last.values().map(|put| tier_code(put.tier)).collect();
        let quotas: Vec<Option<&str>> = last.values().map(|put| put.quotas.as_deref()).collect();
        let sql = "INSERT INTO tenant (created_at, name, tier, quotas) \
                   SELECT $4, u.name, u.tier, u.quotas \
                   FROM unnest($1::text[], $2::smallint[], $3::text[]) WITH ORDINALITY u (name, tier, quotas, n) ORDER BY n \
                   ON CONFLICT (name) DO UPDATE SET tier = excluded.tier, quotas = excluded.quotas RETURNING name, id";
        let rows = self.write_alone(&self.work, sql, &[&names, &tiers, &quotas, &micros(now)]).await?;
        let mut ids: HashMap<String, TenantId> = HashMap::with_capacity(rows.len());
        for row in rows {
            ids.insert(row.try_get(0)?, TenantId(row.try_get(1)?));
        }
        let id = |put: &TenantPut| ids.get(&put.name).copied();
        tenants.iter().map(|put| id(put).ok_or_else(|| corrupt("a saved tenant", &put.name).into())).collect()
    }

    pub(super) async fn all_tenants(&self) -> Result<Vec<Tenant>, Fault> {
        let rows = self.read("SELECT id, name, tier, quotas FROM tenant ORDER BY id", &[]).await?;
        let mut tenants = Vec::with_capacity(rows.len());
        for row in rows {
            let id: i32 = row.try_get(0)?;
            let (name, quotas) = (row.try_get(1)?, row.try_get(3)?);
            let tier = self.notes.readable("tenant", id, tier(row.try_get(2)?));
            tenants.extend(tier.map(|tier| Tenant { id: TenantId(id), name, tier, quotas }));
        }
        Ok(tenants)
    }

    pub(super) async fn lanes_of(&self, keys: &[LaneKey], mode: LaneMode) -> Result<Vec<Lane>, Fault> {
        let mut found = HashMap::new();
        // A lane may be retired between the two statements; then again.
        for _ in 0..8 {
            for lane in self.every_lane().await?.into_iter().filter(|lane| !lane.retired) {
                found.insert(lane.key.clone(), lane);
            }
            let missing: Vec<&LaneKey> = keys.iter().filter(|key| !found.contains_key(key)).collect();
            if missing.is_empty() {
                break;
            }
            for key in missing {
                let sql =
                    "INSERT INTO lane (queue, handler, requires, mode) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
                let params: [super::tx::Param<'_>; 4] = [&key.queue, &key.handler, &key.requires, &mode_code(mode)];
                self.write_alone(&self.work, sql, &params).await?;
            }
        }
        let lane = |key: &LaneKey| found.get(key).cloned();
        keys.iter().map(|key| lane(key).ok_or_else(|| corrupt("a lane just made", &key.queue).into())).collect()
    }

    pub(super) async fn every_lane(&self) -> Result<Vec<Lane>, Fault> {
        let rows = self.read("SELECT id, queue, handler, requires, mode, retired FROM lane ORDER BY id", &[]).await?;
        let read = |row: &Row| Ok(self.notes.readable("lane", row.try_get::<_, i32>(0)?, lane(row)));
        rows.iter().map(read).filter_map(Result::transpose).collect()
    }

    pub(super) async fn turn(&self, id: LaneId, to: LaneMode) -> Result<Lane, Fault> {
        let tx = Tx::on(&self.work).await?;
        let columns = "id, queue, handler, requires, mode, retired";
        let rows = tx.rows(&format!("SELECT {columns} FROM lane WHERE id = $1 FOR UPDATE"), &[&id.0]).await?;
        let old = rows.first().map(lane).transpose()?.ok_or_else(|| corrupt("no such lane", id))?;
        let retires = !old.retired && old.mode != to;
        if retires {
            tx.pipe(&[
                ("UPDATE lane SET retired = true WHERE id = $1", &[&id.0]),
                (
                    "INSERT INTO lane (queue, handler, requires, mode) VALUES ($1, $2, $3, $4)",
                    &[&old.key.queue, &old.key.handler, &old.key.requires, &mode_code(to)],
                ),
            ])
            .await?;
        }
        let sql = format!(
            "SELECT {columns} FROM lane WHERE queue = $1 AND handler IS NOT DISTINCT FROM $2 AND requires = $3 \
             AND NOT retired"
        );
        let rows = tx.rows(&sql, &[&old.key.queue, &old.key.handler, &old.key.requires]).await?;
        let open = rows.first().map(lane).transpose()?;
        tx.commit().await?;
        open.ok_or_else(|| corrupt("a retired lane without a successor", id).into())
    }
}

fn lane(row: &Row) -> Result<Lane, Fault> {
    Ok(Lane {
        id: LaneId(row.try_get(0)?),
        key: LaneKey { queue: row.try_get(1)?, handler: row.try_get(2)?, requires: row.try_get(3)? },
        mode: mode(row.try_get(4)?)?,
        retired: row.try_get(5)?,
    })
}

/// A job as locked.
#[derive(Clone)]
struct Known {
    id: i64,
    version: i32,
    revision: i32,
    hash: Vec<u8>,
}

impl PostgresStore {
    pub(super) async fn save_jobs(&self, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
        match self.once(write, "save jobs", |tx| save_jobs_once(tx, write, jobs)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::json_again(kept.as_deref()),
        }
    }

    pub(super) async fn kept_deletions(&self, limit: u32) -> Result<Vec<(Timestamp, Deletion)>, Fault> {
        let sql = "SELECT updated_at, deletion FROM job WHERE deletion IS NOT NULL ORDER BY updated_at LIMIT $1";
        let rows = self.read(sql, &[&i64::from(limit.min(PAGE_MAX))]).await?;
        let rows: Vec<_> =
            rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, Fault>>()?;
        Ok(definition::deletions(rows))
    }

    pub(super) async fn drop_deletions(&self, jobs: &[JobId], now: Timestamp) -> Result<(), Fault> {
        let ids: Vec<i64> = jobs.iter().map(|job| job.0).collect();
        let sql = "UPDATE job SET deletion = NULL, updated_at = $2 WHERE id = ANY($1) AND deletion IS NOT NULL";
        self.write_alone(&self.work, sql, &[&ids, &micros(now)]).await?;
        Ok(())
    }

    pub(super) async fn remove_jobs(&self, write: &Write, jobs: &[Deletion]) -> Result<Vec<Guarded>, StoreError> {
        match self.once(write, "delete jobs", |tx| remove_jobs_once(tx, write, jobs)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::guarded_again(kept.as_deref(), jobs.len()),
        }
    }
}

async fn save_jobs_once(tx: Arc<Tx>, write: &Write, jobs: &[JobPut]) -> Result<(Vec<JobSaved>, Ending), Fault> {
    let refused = after::refused(&tx, jobs).await?;
    let mut answers: Vec<Option<JobSaved>> =
        refused.into_iter().map(|refused| refused.map(JobSaved::Refused)).collect();
    // A name that comes twice is saved twice, in order.
    let mut left: Vec<usize> = (0..jobs.len()).filter(|n| answers[*n].is_none()).collect();
    while !left.is_empty() {
        let mut names = std::collections::HashSet::new();
        let (round, later): (Vec<usize>, Vec<usize>) =
            left.into_iter().partition(|n| names.insert((jobs[*n].tenant, jobs[*n].name.as_str())));
        save_round(&tx, write, jobs, &round, &mut answers).await?;
        left = later;
    }
    let answers: Vec<JobSaved> = answers.into_iter().flatten().collect();
    let written = |(answer, put): (&JobSaved, &JobPut)| match answer {
        JobSaved::Saved { changed, .. } => *changed || put.has_schedules(),
        JobSaved::Conflict { .. } | JobSaved::Refused(_) => false,
    };
    let idle = !answers.iter().zip(jobs).any(written);
    let ending = Ending { answer: kept::json(&answers)?, idle, ..Ending::default() };
    Ok((answers, ending))
}

async fn save_round(
    tx: &Tx,
    write: &Write,
    jobs: &[JobPut],
    round: &[usize],
    answers: &mut [Option<JobSaved>],
) -> Result<(), Fault> {
    let known = lock_names(tx, jobs, round).await?;
    let mut made = Vec::new();
    let mut edited: Vec<(usize, Known)> = Vec::new();
    for n in round {
        let put = &jobs[*n];
        let found = known.get(&(put.tenant.0, put.name.as_str()));
        let version = found.map(|job| job.version);
        let expected = match put.expect {
            Expect::Anything => true,
            Expect::Nothing => found.is_none(),
            Expect::Version(expected) => version == Some(expected),
        };
        match found {
            _ if !expected => answers[*n] = Some(JobSaved::Conflict { version }),
            found if put.has_moved(found.map(|job| job.revision)) => return moved(tx).await,
            None => made.push(*n),
            Some(job) if job.hash == put.hash => {
                let (id, version, revision) = (JobId(job.id), job.version, job.revision);
                answers[*n] = Some(JobSaved::Saved { id, version, revision, changed: false });
            }
            Some(job) => edited.push((*n, job.clone())),
        }
    }
    insert_jobs(tx, write, jobs, &made, answers).await?;
    edit_jobs(tx, write, jobs, &edited, answers).await?;
    let changed = made.iter().copied().chain(edited.iter().map(|(n, _)| *n));
    let saved = changed.filter_map(|n| match &answers[n] {
        Some(JobSaved::Saved { id, .. }) => Some((id.0, &jobs[n])),
        Some(JobSaved::Conflict { .. } | JobSaved::Refused(_)) | None => None,
    });
    after::put_edges(tx, &saved.collect::<Vec<_>>()).await?;
    save_schedules(tx, write, jobs, round, answers).await
}

/// Saves and ends the schedules of jobs that are saved with them.
async fn save_schedules(
    tx: &Tx,
    write: &Write,
    jobs: &[JobPut],
    round: &[usize],
    answers: &[Option<JobSaved>],
) -> Result<(), Fault> {
    let (mut saved, mut ended) = (Vec::new(), Vec::new());
    for n in round {
        if let (Some(JobSaved::Saved { id, .. }), Some(schedules)) = (&answers[*n], &jobs[*n].schedules) {
            saved.extend(schedules.saved.iter().map(|put| SchedulePut { job: *id, ..put.clone() }));
            ended.extend(schedules.ended.iter().map(|schedule| schedule.0));
        }
    }
    // First, so that their names are free.
    schedules::end(tx, &ended, write.now).await?;
    if !saved.is_empty() && schedules::put(tx, &saved).await?.contains(&ScheduleSaved::Stale) {
        return moved(tx).await;
    }
    Ok(())
}

/// Undoes what was done so far: what it was decided by is no longer so.
async fn moved(tx: &Tx) -> Result<(), Fault> {
    tx.roll_back().await?;
    Err(StoreError::Moved { what: "save jobs" }.into())
}

async fn lock_names<'a>(tx: &Tx, jobs: &'a [JobPut], round: &[usize]) -> Result<HashMap<(i32, &'a str), Known>, Fault> {
    let tenants: Vec<i32> = round.iter().map(|n| jobs[*n].tenant.0).collect();
    let names: Vec<&str> = round.iter().map(|n| jobs[*n].name.as_str()).collect();
    let sql = "SELECT u.n, j.id, j.version, j.revision, j.hash \
               FROM unnest($1::int[], $2::text[]) WITH ORDINALITY u (tenant, name, n) \
               JOIN job j ON j.tenant = u.tenant AND j.name = u.name AND NOT j.deleted ORDER BY j.id FOR UPDATE OF j";
    let mut known = HashMap::new();
    for row in tx.rows(sql, &[&tenants, &names]).await? {
        let put = &jobs[round[row.try_get::<_, i64>(0)? as usize - 1]];
        let job =
            Known { id: row.try_get(1)?, version: row.try_get(2)?, revision: row.try_get(3)?, hash: row.try_get(4)? };
        known.insert((put.tenant.0, put.name.as_str()), job);
    }
    Ok(known)
}

/// Tags go over as one JSON text each: arrays of arrays must be rectangular.
fn tags_text(put: &JobPut) -> String {
    serde_json::to_string(&put.tags).unwrap_or_else(|_| "[]".to_owned())
}

const TAGS: &str = "ARRAY(SELECT jsonb_array_elements_text(u.tags::jsonb))";

async fn insert_jobs(
    tx: &Tx,
    write: &Write,
    jobs: &[JobPut],
    made: &[usize],
    answers: &mut [Option<JobSaved>],
) -> Result<(), Fault> {
    if made.is_empty() {
        return Ok(());
    }
    let tenants: Vec<i32> = made.iter().map(|n| jobs[*n].tenant.0).collect();
    let names: Vec<&str> = made.iter().map(|n| jobs[*n].name.as_str()).collect();
    let queues: Vec<&str> = made.iter().map(|n| jobs[*n].queue.as_str()).collect();
    let hashes: Vec<&[u8]> = made.iter().map(|n| jobs[*n].hash.as_slice()).collect();
    let tags: Vec<String> = made.iter().map(|n| tags_text(&jobs[*n])).collect();
    let enabled: Vec<bool> = made.iter().map(|n| jobs[*n].enabled).collect();
    let documents: Vec<&str> = made.iter().map(|n| jobs[*n].document.as_str()).collect();
    let by: Vec<Option<&str>> = made.iter().map(|n| jobs[*n].by.as_deref()).collect();
    // Someone who saves the same new name at the same time makes one of the two
    // fail on the name's index, and that one is asked again.
    let sql = format!(
        "WITH u AS (SELECT * FROM unnest($1::int[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::bool[], \
                                         $7::text[], $8::text[]) \
                    WITH ORDINALITY u (tenant, name, queue, hash, tags, enabled, document, by_whom, n)), \
         j AS (INSERT INTO job (created_at, updated_at, tenant, version, revision, enabled, name, queue, hash, tags) \
               SELECT $9, $9, u.tenant, 1, 1, u.enabled, u.name, u.queue, u.hash, {TAGS} FROM u ORDER BY u.n \
               RETURNING id, tenant, name), \
         v AS (INSERT INTO job_version (job, at, version, document, by_whom) \
               SELECT j.id, $9, 1, u.document, u.by_whom FROM j JOIN u ON u.tenant = j.tenant AND u.name = j.name) \
         SELECT j.id, u.n FROM j JOIN u ON u.tenant = j.tenant AND u.name = j.name"
    );
    let now = micros(write.now);
    let rows = tx.rows(&sql, &[&tenants, &names, &queues, &hashes, &tags, &enabled, &documents, &by, &now]).await?;
    for row in rows {
        let n = made[row.try_get::<_, i64>(1)? as usize - 1];
        let id = JobId(row.try_get(0)?);
        answers[n] = Some(JobSaved::Saved { id, version: 1, revision: 1, changed: true });
    }
    Ok(())
}

async fn edit_jobs(
    tx: &Tx,
    write: &Write,
    jobs: &[JobPut],
    edited: &[(usize, Known)],
    answers: &mut [Option<JobSaved>],
) -> Result<(), Fault> {
    if edited.is_empty() {
        return Ok(());
    }
    let now = micros(write.now);
    let ids: Vec<i64> = edited.iter().map(|(_, job)| job.id).collect();
    let versions: Vec<i32> = edited.iter().map(|(_, job)| job.version + 1).collect();
    let revisions: Vec<i32> = edited.iter().map(|(_, job)| job.revision + 1).collect();
    let queues: Vec<&str> = edited.iter().map(|(n, _)| jobs[*n].queue.as_str()).collect();
    let hashes: Vec<&[u8]> = edited.iter().map(|(n, _)| jobs[*n].hash.as_slice()).collect();
    let tags: Vec<String> = edited.iter().map(|(n, _)| tags_text(&jobs[*n])).collect();
    let enabled: Vec<bool> = edited.iter().map(|(n, _)| jobs[*n].enabled).collect();
    let documents: Vec<&str> = edited.iter().map(|(n, _)| jobs[*n].document.as_str()).collect();
    let by: Vec<Option<&str>> = edited.iter().map(|(n, _)| jobs[*n].by.as_deref()).collect();
    let update = format!(
        "UPDATE job j SET updated_at = $8, version = u.version, revision = u.revision, queue = u.queue, \
                          hash = u.hash, tags = {TAGS}, enabled = u.enabled \
         FROM unnest($1::bigint[], $2::int[], $3::int[], $4::text[], $5::bytea[], $6::text[], $7::bool[]) \
              u (id, version, revision, queue, hash, tags, enabled) WHERE j.id = u.id"
    );
    tx.pipe(&[
        (&update, &[&ids, &versions, &revisions, &queues, &hashes, &tags, &enabled, &now]),
        (
            "INSERT INTO job_version (job, at, version, document, by_whom) \
             SELECT job, $5, version, document, by_whom \
             FROM unnest($1::bigint[], $2::int[], $3::text[], $4::text[]) u (job, version, document, by_whom)",
            &[&ids, &versions, &documents, &by, &now],
        ),
        (
            "UPDATE job_version v SET unused_since = $3 FROM unnest($1::bigint[], $2::int[]) u (job, version) \
             WHERE v.job = u.job AND v.version = u.version - 1",
            &[&ids, &versions, &now],
        ),
    ])
    .await?;
    for (at, (n, job)) in edited.iter().enumerate() {
        let (id, version, revision) = (JobId(job.id), versions[at], revisions[at]);
        answers[*n] = Some(JobSaved::Saved { id, version, revision, changed: true });
    }
    Ok(())
}

async fn remove_jobs_once(tx: Arc<Tx>, write: &Write, jobs: &[Deletion]) -> Result<(Vec<Guarded>, Ending), Fault> {
    let (ids, texts): (Vec<i64>, Vec<String>) =
        jobs.iter().map(|deletion| (deletion.job.0, definition::deletion_text(deletion))).unzip();
    let mut answers = tx
        .pipe(&[
            ("SELECT 1 FROM job WHERE id = ANY($1) ORDER BY id FOR UPDATE", &[&ids]),
            (
                "WITH gone AS (UPDATE job SET deleted = true, revision = revision + 1, updated_at = $2, \
                                              deletion = u.text \
                               FROM unnest($1::bigint[], $3::text[]) u (id, text) \
                               WHERE job.id = u.id AND NOT deleted RETURNING job.id) \
                 SELECT id FROM gone",
                &[&ids, &micros(write.now), &texts],
            ),
        ])
        .await?;
    let rows = answers.pop().unwrap_or_default();
    let mut gone: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    tx.rows("DELETE FROM after_edge WHERE downstream = ANY($1)", &[&gone]).await?;
    let rows = tx.rows("SELECT id FROM schedule WHERE job = ANY($1) AND NOT deleted", &[&gone]).await?;
    let owed: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    schedules::end(&tx, &owed, write.now).await?;
    let answers: Vec<Guarded> = ids
        .iter()
        .map(|id| match gone.iter().position(|gone| gone == id) {
            Some(at) => {
                gone.swap_remove(at);
                Guarded::Applied
            }
            None => Guarded::Stale,
        })
        .collect();
    let ending =
        Ending { answer: kept::guarded(&answers), idle: !answers.contains(&Guarded::Applied), ..Ending::default() };
    Ok((answers, ending))
}

const JOB: &str = "SELECT j.id, j.tenant, j.name, j.version, j.revision, v.document, j.queue, j.tags, j.enabled, \
     j.pause, j.created_at, j.updated_at, j.deleted";

fn job(row: &Row) -> Result<JobRecord, Fault> {
    Ok(JobRecord {
        id: JobId(row.try_get(0)?),
        tenant: TenantId(row.try_get(1)?),
        name: row.try_get(2)?,
        version: row.try_get(3)?,
        revision: row.try_get(4)?,
        document: row.try_get(5)?,
        queue: row.try_get(6)?,
        tags: row.try_get(7)?,
        enabled: row.try_get(8)?,
        pause: pause(row.try_get(9)?)?,
        created_at: time(row.try_get(10)?)?,
        updated_at: time(row.try_get(11)?)?,
        deleted: row.try_get(12)?,
    })
}

impl PostgresStore {
    pub(super) async fn jobs_by_id(&self, ids: &[JobId]) -> Result<Vec<Option<JobRecord>>, Fault> {
        let numbers: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let sql = format!(
            "{JOB} FROM job j JOIN job_version v ON v.job = j.id AND v.version = j.version WHERE j.id = ANY($1)"
        );
        let mut found = HashMap::new();
        for row in self.read(&sql, &[&numbers]).await? {
            if let Some(job) = self.job(&row)? {
                found.insert(job.id, job);
            }
        }
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }

    pub(super) async fn jobs_by_name(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<JobRecord>>, Fault> {
        let tenants: Vec<i32> = names.iter().map(|(tenant, _)| tenant.0).collect();
        let texts: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
        let sql = format!(
            "{JOB}, u.n FROM unnest($1::int[], $2::text[]) WITH ORDINALITY u (tenant, name, n) \
             JOIN job j ON j.tenant = u.tenant AND j.name = u.name AND NOT j.deleted \
             JOIN job_version v ON v.job = j.id AND v.version = j.version"
        );
        let mut answers = vec![None; names.len()];
        for row in self.read(&sql, &[&tenants, &texts]).await? {
            answers[row.try_get::<_, i64>(13)? as usize - 1] = self.job(&row)?;
        }
        Ok(answers)
    }

    pub(super) async fn page_of_jobs(&self, query: &JobQuery) -> Result<JobPage, Fault> {
        let limit = query.limit.clamp(1, PAGE_MAX);
        let tenant = query.tenant.map(|tenant| tenant.0);
        let after = query.after.as_ref();
        let (after_tenant, after_name) =
            (after.map_or(i32::MIN, |cursor| cursor.tenant.0), after.map_or("", |cursor| cursor.name.as_str()));
        let prefix = query.prefix.as_deref().unwrap_or_default();
        // Names are compared by bytes, so those with a prefix are one stretch.
        let sql = format!(
            "{JOB} FROM job j JOIN job_version v ON v.job = j.id AND v.version = j.version \
             WHERE NOT j.deleted AND (j.tenant, j.name) > ($1, $2) AND ($3::int IS NULL OR j.tenant = $3) \
               AND starts_with(j.name, $4) AND ($5::text IS NULL OR j.tags @> ARRAY[$5::text]) \
               AND ($6::text IS NULL OR j.queue = $6) AND ($7::bool IS NULL OR j.enabled = $7) \
             ORDER BY j.tenant, j.name LIMIT $8"
        );
        let most = i64::from(limit) + 1;
        let rows = self
            .read(
                &sql,
                &[&after_tenant, &after_name, &tenant, &prefix, &query.tag, &query.queue, &query.enabled, &most],
            )
            .await?;
        let page = &rows[..rows.len().min(limit as usize)];
        let jobs = page.iter().map(|row| self.job(row)).filter_map(Result::transpose).collect::<Result<_, _>>()?;
        let next = match page.last() {
            Some(last) if rows.len() > page.len() => {
                Some(JobCursor { tenant: TenantId(last.try_get(1)?), name: last.try_get(2)? })
            }
            _ => None,
        };
        Ok(JobPage { jobs, next })
    }

    /// None where it cannot be read.
    fn job(&self, row: &Row) -> Result<Option<JobRecord>, Fault> {
        let id: i64 = row.try_get(0)?;
        Ok(self.notes.readable("job", id, job(row)))
    }

    pub(super) async fn versions_of(&self, job: JobId, limit: u32) -> Result<Vec<JobVersion>, Fault> {
        let sql =
            "SELECT version, document, at, by_whom FROM job_version WHERE job = $1 ORDER BY version DESC LIMIT $2";
        let mut versions = Vec::new();
        for row in self.read(sql, &[&job.0, &i64::from(limit)]).await? {
            let version: i32 = row.try_get(0)?;
            let (document, by) = (row.try_get(1)?, row.try_get(3)?);
            let at = self.notes.readable("job_version", format_args!("{job}/{version}"), time(row.try_get(2)?));
            versions.extend(at.map(|at| JobVersion { version, document, at, by }));
        }
        Ok(versions)
    }

    pub(super) async fn document_of(&self, job: JobId, version: i32) -> Result<Option<String>, Fault> {
        let sql = "SELECT document FROM job_version WHERE job = $1 AND version = $2";
        let rows = self.read(sql, &[&job.0, &version]).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
    }
}

/// The column of a tenant's own pause, where a queue's has its name.
const WHOLE_TENANT: &str = "";

impl PostgresStore {
    pub(super) async fn save_pauses(
        &self,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, StoreError> {
        match self.once(write, "set pauses", |tx| save_pauses_once(tx, write, targets, pause)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::json_again(kept.as_deref()),
        }
    }

    pub(super) async fn all_pauses(&self) -> Result<Pauses, Fault> {
        // One statement, so that the revision belongs to the pauses.
        let rows = self
            .read(
                "SELECT m.pauses_revision, p.tenant, p.queue, p.body FROM meta m LEFT JOIN pause p ON true \
                   ORDER BY p.tenant, p.queue",
                &[],
            )
            .await?;
        let mut pauses = Pauses { revision: 0, pauses: Vec::new() };
        for row in rows {
            pauses.revision = row.try_get(0)?;
            let Some(tenant) = row.try_get::<_, Option<i32>>(1)?.map(TenantId) else { continue };
            let queue: String = row.try_get(2)?;
            let key = format_args!("{}/{queue}", tenant.0);
            let body = self.notes.readable("pause", key, self::pause(row.try_get(3)?)).flatten();
            let target =
                if queue == WHOLE_TENANT { PauseTarget::Tenant(tenant) } else { PauseTarget::Queue(tenant, queue) };
            pauses.pauses.extend(body.map(|body| (target, body)));
        }
        Ok(pauses)
    }

    pub(super) async fn save_calendars(&self, calendars: &[CalendarPut]) -> Result<(), Fault> {
        let last: BTreeMap<(i32, &str), &str> =
            calendars.iter().map(|put| ((put.tenant.0, put.name.as_str()), put.spec.as_str())).collect();
        let tenants: Vec<i32> = last.keys().map(|(tenant, _)| *tenant).collect();
        let names: Vec<&str> = last.keys().map(|(_, name)| *name).collect();
        let specs: Vec<&str> = last.values().copied().collect();
        let sql = "INSERT INTO calendar AS c (tenant, name, spec, revision) \
                   SELECT u.tenant, u.name, u.spec, 1 FROM unnest($1::int[], $2::text[], $3::text[]) u (tenant, name, spec) \
                   ON CONFLICT (tenant, name) DO UPDATE SET spec = excluded.spec, revision = c.revision + 1 \
                   WHERE c.spec <> excluded.spec";
        self.write_alone(&self.work, sql, &[&tenants, &names, &specs]).await?;
        Ok(())
    }

    pub(super) async fn calendars_of(&self, tenant: TenantId) -> Result<Vec<Calendar>, Fault> {
        let sql = "SELECT name, spec, revision FROM calendar WHERE tenant = $1 ORDER BY name";
        let mut calendars = Vec::new();
        for row in self.read(sql, &[&tenant.0]).await? {
            let (name, spec, revision): (String, String, i32) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let read = serde_json::from_str::<IgnoredAny>(&spec);
            if self.notes.readable("calendar", format_args!("{tenant}/{name}"), read).is_some() {
                calendars.push(Calendar { tenant, name, spec, revision });
            }
        }
        Ok(calendars)
    }
}

async fn save_pauses_once(
    tx: Arc<Tx>,
    write: &Write,
    targets: &[PauseTarget],
    pause: Option<&Pause>,
) -> Result<(Vec<bool>, Ending), Fault> {
    let change = |old: Option<Pause>| changed_pause(pause, old, write.now);
    let mut whole: Vec<(i32, &str)> = Vec::new();
    let (mut jobs, mut owed): (Vec<i64>, Vec<i64>) = (Vec::new(), Vec::new());
    for target in targets {
        match target {
            PauseTarget::Tenant(tenant) => whole.push((tenant.0, WHOLE_TENANT)),
            PauseTarget::Queue(tenant, queue) => whole.push((tenant.0, queue)),
            PauseTarget::Job(job) => jobs.push(job.0),
            PauseTarget::Schedule(schedule) => owed.push(schedule.0),
        }
    }
    let whole = pause_whole(&tx, &whole, change).await?;
    let jobs = pause_jobs(&tx, &jobs, change, micros(write.now)).await?;
    let owed = schedules::pause(&tx, &owed, change).await?;
    let is_whole = |tenant: i32, queue: &str| whole.iter().any(|(of, name)| *of == tenant && name == queue);
    let answers: Vec<bool> = targets
        .iter()
        .map(|target| match target {
            PauseTarget::Tenant(tenant) => is_whole(tenant.0, WHOLE_TENANT),
            PauseTarget::Queue(tenant, queue) => is_whole(tenant.0, queue),
            PauseTarget::Job(JobId(job)) => jobs.contains(job),
            PauseTarget::Schedule(ScheduleId(schedule)) => owed.contains(schedule),
        })
        .collect();
    let ending = Ending { answer: kept::json(&answers)?, idle: !answers.contains(&true), ..Ending::default() };
    Ok((answers, ending))
}

/// Changes the pauses of tenants and queues under one revision, and answers which
/// that was done to.
async fn pause_whole(
    tx: &Tx,
    whole: &[(i32, &str)],
    change: impl Fn(Option<Pause>) -> Option<Pause>,
) -> Result<Vec<(i32, String)>, Fault> {
    if whole.is_empty() {
        return Ok(Vec::new());
    }
    let tenants: Vec<i32> = whole.iter().map(|(tenant, _)| *tenant).collect();
    let queues: Vec<&str> = whole.iter().map(|(_, queue)| *queue).collect();
    let answers = tx
        .pipe(&[
            ("SELECT 1 FROM meta FOR UPDATE", &[]),
            (
                "SELECT DISTINCT u.tenant, u.queue, p.body FROM unnest($1::int[], $2::text[]) u (tenant, queue) \
                 JOIN tenant t ON t.id = u.tenant LEFT JOIN pause p ON p.tenant = u.tenant AND p.queue = u.queue",
                &[&tenants, &queues],
            ),
        ])
        .await?;
    let (mut changed, mut bodies) = (Vec::new(), Vec::new());
    for row in &answers[1] {
        let (tenant, queue): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
        // One that cannot be read is replaced.
        let old = tx.notes.readable("pause", format_args!("{tenant}/{queue}"), self::pause(row.try_get(2)?));
        if let Some(pause) = change(old.flatten()) {
            changed.push((tenant, queue));
            bodies.push(to_json(&pause)?);
        }
    }
    if !changed.is_empty() {
        let (tenants, queues): (Vec<i32>, Vec<&str>) =
            changed.iter().map(|(tenant, queue)| (*tenant, queue.as_str())).unzip();
        tx.pipe(&[
            ("UPDATE meta SET pauses_revision = pauses_revision + 1", &[]),
            (
                "INSERT INTO pause (tenant, queue, body) \
                 SELECT * FROM unnest($1::int[], $2::text[], $3::text[]) u (tenant, queue, body) \
                 ON CONFLICT (tenant, queue) DO UPDATE SET body = excluded.body",
                &[&tenants, &queues, &bodies],
            ),
        ])
        .await?;
    }
    Ok(changed)
}

async fn pause_jobs(
    tx: &Tx,
    jobs: &[i64],
    change: impl Fn(Option<Pause>) -> Option<Pause>,
    now: i64,
) -> Result<Vec<i64>, Fault> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let (mut changed, mut bodies) = (Vec::new(), Vec::new());
    let sql = "SELECT id, pause FROM job WHERE id = ANY($1) AND NOT deleted ORDER BY id FOR UPDATE";
    for row in tx.rows(sql, &[&jobs]).await? {
        let id: i64 = row.try_get(0)?;
        let Some(old) = tx.notes.readable_part("job", id, pause(row.try_get(1)?)) else { continue };
        if let Some(pause) = change(old) {
            changed.push(id);
            bodies.push(to_json(&pause)?);
        }
    }
    if !changed.is_empty() {
        let sql = "UPDATE job j SET pause = u.pause, revision = j.revision + 1, updated_at = $3 \
                   FROM unnest($1::bigint[], $2::text[]) u (id, pause) WHERE j.id = u.id";
        tx.rows(sql, &[&changed, &bodies, &now]).await?;
        schedules::wake_of_jobs(tx, &changed).await?;
    }
    Ok(changed)
}
