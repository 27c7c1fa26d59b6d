//! Tenants, lanes, jobs, calendars and pauses.

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    after::AfterRefusal,
    ids::JobId,
    store::{Deletion, Expect, Guarded, JobChanges, JobPut, JobSaved, StoreError, Write},
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{SqliteStore, after, failed, once::once, own::guarded, rows::change, schedules, writer::Urgency};
use crate::{
    codec::{self, micros, to_json},
    definition, kept,
};

fn put_jobs(connection: &Connection, jobs: &[JobPut], now: Timestamp) -> Result<Vec<JobSaved>, StoreError> {
    let refused = after::refused(connection, jobs)?;
    let save = |(put, refused): (&JobPut, Option<AfterRefusal>)| match refused {
        Some(refusal) => Ok(JobSaved::Refused(refusal)),
        None => put_job(connection, put, now),
    };
    jobs.iter().zip(refused).map(save).collect()
}

fn put_job(connection: &Connection, put: &JobPut, now: Timestamp) -> Result<JobSaved, StoreError> {
    let texts = [put.name.as_str(), &put.document, &put.queue];
    codec::without_nul("save jobs", texts.into_iter().chain(put.tags.iter().map(String::as_str)))?;
    let sql = "SELECT id, version, revision, hash FROM job WHERE tenant = ?1 AND name = ?2 AND deleted = 0";
    let found: Option<(i64, i32, i32, Vec<u8>)> = connection
        .prepare_cached(sql)
        .and_then(|mut select| {
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
            select.query_row(params![put.tenant.0, put.name], read).optional()
        })
        .map_err(failed)?;
    let version = found.as_ref().map(|(_, version, _, _)| *version);
    let met = match put.expect {
        Expect::Anything => true,
        Expect::Nothing => version.is_none(),
        Expect::Version(expected) => version == Some(expected),
    };
    if !met {
        return Ok(JobSaved::Conflict { version });
    }
    if put.has_moved(found.as_ref().map(|(_, _, revision, _)| *revision)) {
        return Err(StoreError::Moved { what: "save jobs" });
    }
    let (id, version, revision, changed) = match found {
        Some((id, version, revision, hash)) if hash == put.hash => (id, version, revision, false),
        Some((id, version, revision, _)) => {
            update_job(connection, put, id, version + 1, revision + 1, now)?;
            (id, version + 1, revision + 1, true)
        }
        None => (insert_job(connection, put, now)?, 1, 1, true),
    };
    if let Some(schedules) = &put.schedules {
        schedules::put_of_job(connection, JobId(id), schedules, now)?;
    }
    Ok(JobSaved::Saved { id: JobId(id), version, revision, changed })
}

fn insert_job(connection: &Connection, put: &JobPut, now: Timestamp) -> Result<i64, StoreError> {
    let sql = "INSERT INTO job (tenant, name, version, revision, hash, document, queue, tags, enabled, created_at, \
         updated_at) VALUES (?1, ?2, 1, 1, ?3, ?4, ?5, ?6, ?7, ?8, ?8)";
    let row = params![
        put.tenant.0,
        put.name,
        put.hash,
        put.document,
        put.queue,
        to_json(&put.tags)?,
        put.enabled,
        micros(now)
    ];
    change(connection, sql, row)?;
    let id = connection.last_insert_rowid();
    insert_version(connection, put, id, 1, now)?;
    Ok(id)
}

fn update_job(
    connection: &Connection,
    put: &JobPut,
    id: i64,
    version: i32,
    revision: i32,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE job SET version = ?2, revision = ?3, hash = ?4, document = ?5, queue = ?6, tags = ?7, \
         enabled = ?8, updated_at = ?9 WHERE id = ?1";
    let row = params![
        id,
        version,
        revision,
        put.hash,
        put.document,
        put.queue,
        to_json(&put.tags)?,
        put.enabled,
        micros(now)
    ];
    change(connection, sql, row)?;
    change(
        connection,
        "UPDATE job_version SET unused_since = ?3 WHERE job = ?1 AND version = ?2",
        params![id, version - 1, micros(now)],
    )?;
    let tags = to_json(&put.tags)?;
    change(
        connection,
        "DELETE FROM job_tag WHERE job = ?1 AND tag NOT IN (SELECT value FROM json_each(?2))",
        params![id, tags],
    )?;
    insert_version(connection, put, id, version, now)
}

fn insert_version(
    connection: &Connection,
    put: &JobPut,
    id: i64,
    version: i32,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO job_version (job, version, document, at, by) VALUES (?1, ?2, ?3, ?4, ?5)";
    let row = params![id, version, put.document, micros(now), put.by];
    change(connection, sql, row)?;
    let mut tag =
        connection.prepare_cached("INSERT OR IGNORE INTO job_tag (tag, job) VALUES (?1, ?2)").map_err(failed)?;
    for name in &put.tags {
        tag.execute(params![name, id]).map_err(failed)?;
    }
    after::put_edges(connection, id, Some(put))
}

fn delete_job(connection: &Connection, deletion: &Deletion, now: Timestamp) -> Result<Guarded, StoreError> {
    let job = deletion.job;
    let sql = "UPDATE job SET deleted = 1, revision = revision + 1, updated_at = ?2, deletion = ?3 \
               WHERE id = ?1 AND deleted = 0";
    let row = params![job.0, micros(now), definition::deletion_text(deletion)];
    let gone = change(connection, sql, row)?;
    if gone == 0 {
        return Ok(Guarded::Stale);
    }
    schedules::delete_of_job(connection, job, now)?;
    after::put_edges(connection, job.0, None)?;
    change(connection, "DELETE FROM job_tag WHERE job = ?1", [job.0])?;
    Ok(Guarded::Applied)
}

#[async_trait]
impl JobChanges for SqliteStore {
    async fn put_jobs(&self, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
        let (write, jobs) = (write.clone(), jobs.to_vec());
        self.writer
            .write("save jobs", Urgency::Patient, move |connection| {
                once(
                    connection,
                    &write,
                    |answers: &Vec<JobSaved>| kept::json(answers),
                    |_, kept| kept::json_again(kept),
                    |connection| put_jobs(connection, &jobs, write.now),
                )
            })
            .await
    }

    async fn delete_jobs(&self, write: &Write, jobs: &[Deletion]) -> Result<Vec<Guarded>, StoreError> {
        let (write, jobs) = (write.clone(), jobs.to_vec());
        let count = jobs.len();
        self.writer
            .write("delete jobs", Urgency::Prompt, move |connection| {
                guarded(connection, &write, count, |connection| {
                    jobs.iter().map(|deletion| delete_job(connection, deletion, write.now)).collect()
                })
            })
            .await
    }
}
