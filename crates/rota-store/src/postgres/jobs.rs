//! Jobs, and what they stand among: tenants, lanes, pauses, calendars.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use rota_core::{
    ids::JobId,
    store::{Deletion, Expect, Guarded, JobChanges, JobPut, JobSaved, SchedulePut, ScheduleSaved, StoreError, Write},
};

use super::{
    PostgresStore, after,
    fault::Fault,
    once::Once,
    schedules,
    tx::{Ending, Tx},
};
use crate::{codec::micros, definition, kept};

/// A job as locked.
#[derive(Clone)]
struct Known {
    id: i64,
    version: i32,
    revision: i32,
    hash: Vec<u8>,
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

#[async_trait]
impl JobChanges for PostgresStore {
    async fn put_jobs(&self, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
        match self.once(write, "save jobs", |tx| save_jobs_once(tx, write, jobs)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::json_again(kept.as_deref()),
        }
    }

    async fn delete_jobs(&self, write: &Write, jobs: &[Deletion]) -> Result<Vec<Guarded>, StoreError> {
        match self.once(write, "delete jobs", |tx| remove_jobs_once(tx, write, jobs)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::guarded_again(kept.as_deref(), jobs.len()),
        }
    }
}
