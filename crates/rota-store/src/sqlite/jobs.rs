//! Tenants, lanes, jobs, calendars and pauses.

use jiff::Timestamp;
use rota_core::{
    after::AfterRefusal,
    ids::{JobId, LaneId, TenantId},
    lane::{Lane, LaneKey, LaneMode},
    store::{
        Calendar, CalendarPut, Deletion, Expect, Guarded, JobCursor, JobPage, JobPut, JobQuery, JobRecord, JobSaved,
        JobVersion, Pause, PauseTarget, Pauses, StoreError, Tenant, TenantPut, Write,
    },
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::IgnoredAny;

use super::{SqliteStore, after, bump_meta, failed, meta, once::once, own::guarded, schedules, writer::Urgency};
use crate::{
    codec::{self, from_json, micros, mode_code, time, to_json},
    definition,
    filter::{PAGE_MAX, changed_pause},
    kept,
    unreadable::readable,
};

impl SqliteStore {
    pub(super) async fn do_put_tenants(
        &self,
        tenants: &[TenantPut],
        now: Timestamp,
    ) -> Result<Vec<TenantId>, StoreError> {
        let tenants = tenants.to_vec();
        self.writer
            .write("save tenants", Urgency::Prompt, move |connection| {
                let sql = "INSERT INTO tenant (name, tier, quotas, created_at) VALUES (?1, ?2, ?3, ?4) \
                     ON CONFLICT (name) DO UPDATE SET tier = excluded.tier, quotas = excluded.quotas RETURNING id";
                let mut put = connection.prepare_cached(sql).map_err(failed)?;
                tenants
                    .iter()
                    .map(|tenant| {
                        let row = params![tenant.name, to_json(&tenant.tier)?, tenant.quotas, micros(now)];
                        put.query_row(row, |row| row.get(0).map(TenantId)).map_err(failed)
                    })
                    .collect()
            })
            .await
    }

    pub(super) async fn do_tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        self.read("read tenants", |connection| {
            let mut select =
                connection.prepare_cached("SELECT id, name, tier, quotas FROM tenant ORDER BY id").map_err(failed)?;
            let rows = select
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, String>(2)?, row.get(3)?)))
                .map_err(failed)?;
            let read = |row: rusqlite::Result<(i32, String, String, Option<String>)>| {
                let (id, name, tier, quotas) = row.map_err(failed)?;
                let tier = readable("tenant", id, from_json(&tier));
                Ok(tier.map(|tier| Tenant { id: TenantId(id), name, tier, quotas }))
            };
            rows.map(read).filter_map(Result::transpose).collect()
        })
        .await
    }

    pub(super) async fn do_lanes(&self, keys: &[LaneKey], mode: LaneMode) -> Result<Vec<Lane>, StoreError> {
        let keys = keys.to_vec();
        self.writer
            .write("find lanes", Urgency::Prompt, move |connection| {
                keys.iter().map(|key| open_lane(connection, key, mode)).collect()
            })
            .await
    }

    pub(super) async fn do_all_lanes(&self) -> Result<Vec<Lane>, StoreError> {
        self.read("read lanes", |connection| {
            let mut select =
                connection.prepare_cached("SELECT id, key, mode, retired FROM lane ORDER BY id").map_err(failed)?;
            let mut rows = select.query([]).map_err(failed)?;
            let mut lanes = Vec::new();
            while let Some(row) = rows.next().map_err(failed)? {
                lanes.extend(readable("lane", row.get::<_, i64>(0).map_err(failed)?, lane(row)));
            }
            Ok(lanes)
        })
        .await
    }

    pub(super) async fn do_turn_lane(&self, id: LaneId, mode: LaneMode) -> Result<Lane, StoreError> {
        self.writer
            .write("turn a lane", Urgency::Prompt, move |connection| {
                let found = lane_where(connection, "id = ?1", [id.0])?;
                let lane = found.ok_or_else(|| super::not_applied("turn a lane", format!("no lane {id}")))?;
                if lane.mode != mode {
                    connection
                        .prepare_cached("UPDATE lane SET retired = 1 WHERE id = ?1")
                        .and_then(|mut update| update.execute([id.0]))
                        .map_err(failed)?;
                }
                open_lane(connection, &lane.key, mode)
            })
            .await
    }

    pub(super) async fn do_put_jobs(&self, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError> {
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

    pub(super) async fn do_delete_jobs(&self, write: &Write, jobs: &[Deletion]) -> Result<Vec<Guarded>, StoreError> {
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

    pub(super) async fn do_deletions(&self, limit: u32) -> Result<Vec<(Timestamp, Deletion)>, StoreError> {
        self.read("read deletions", move |connection| {
            let sql = "SELECT updated_at, deletion FROM job WHERE deletion IS NOT NULL ORDER BY updated_at LIMIT ?1";
            let mut select = connection.prepare_cached(sql).map_err(failed)?;
            let rows = select.query_map([limit.min(PAGE_MAX)], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
            let rows: Vec<(i64, String)> = rows.collect::<Result<_, _>>().map_err(failed)?;
            Ok(definition::deletions(rows))
        })
        .await
    }

    pub(super) async fn do_forget_deletions(&self, jobs: &[JobId], now: Timestamp) -> Result<(), StoreError> {
        let jobs = jobs.to_vec();
        self.writer
            .write("forget deletions", Urgency::Prompt, move |connection| {
                let sql = "UPDATE job SET deletion = NULL, updated_at = ?2 WHERE id = ?1 AND deletion IS NOT NULL";
                let mut forget = connection.prepare_cached(sql).map_err(failed)?;
                for job in &jobs {
                    forget.execute(params![job.0, micros(now)]).map_err(failed)?;
                }
                Ok(())
            })
            .await
    }

    pub(super) async fn do_jobs(&self, ids: &[JobId]) -> Result<Vec<Option<JobRecord>>, StoreError> {
        let ids = ids.to_vec();
        self.read("read jobs", move |connection| {
            ids.iter().map(|id| job_where(connection, "id = ?1", [id.0])).collect()
        })
        .await
    }

    pub(super) async fn do_find_jobs(
        &self,
        names: &[(TenantId, String)],
    ) -> Result<Vec<Option<JobRecord>>, StoreError> {
        let names = names.to_vec();
        self.read("find jobs", move |connection| {
            names
                .iter()
                .map(|(tenant, name)| {
                    job_where(connection, "tenant = ?1 AND name = ?2 AND deleted = 0", params![tenant.0, name])
                })
                .collect()
        })
        .await
    }

    pub(super) async fn do_list_jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        let query = query.clone();
        self.read("list jobs", move |connection| list(connection, &query)).await
    }

    pub(super) async fn do_job_versions(&self, job: JobId, limit: u32) -> Result<Vec<JobVersion>, StoreError> {
        self.read("read versions", move |connection| {
            let sql = "SELECT version, document, at, by FROM job_version WHERE job = ?1 ORDER BY version DESC LIMIT ?2";
            let mut select = connection.prepare_cached(sql).map_err(failed)?;
            let rows = select
                .query_map(params![job.0, limit.min(PAGE_MAX)], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
                })
                .map_err(failed)?;
            let read = |row: rusqlite::Result<(i32, String, i64, Option<String>)>| {
                let (version, document, at, by) = row.map_err(failed)?;
                let at = readable("job_version", format_args!("{job}/{version}"), time(at));
                Ok(at.map(|at| JobVersion { version, document, at, by }))
            };
            rows.map(read).filter_map(Result::transpose).collect()
        })
        .await
    }

    pub(super) async fn do_job_document(&self, job: JobId, version: i32) -> Result<Option<String>, StoreError> {
        self.read("read a version", move |connection| {
            connection
                .prepare_cached("SELECT document FROM job_version WHERE job = ?1 AND version = ?2")
                .and_then(|mut select| select.query_row(params![job.0, version], |row| row.get(0)).optional())
                .map_err(failed)
        })
        .await
    }

    pub(super) async fn do_set_pauses(
        &self,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, StoreError> {
        let (write, targets, pause) = (write.clone(), targets.to_vec(), pause.cloned());
        self.writer
            .write("set pauses", Urgency::Prompt, move |connection| {
                once(
                    connection,
                    &write,
                    |answers: &Vec<bool>| kept::json(answers),
                    |_, kept| kept::json_again(kept),
                    |connection| {
                        let change = |old: Option<Pause>| changed_pause(pause.as_ref(), old, write.now);
                        targets.iter().map(|target| set_pause(connection, target, change, write.now)).collect()
                    },
                )
            })
            .await
    }

    pub(super) async fn do_pauses(&self) -> Result<Pauses, StoreError> {
        self.read("read pauses", |connection| {
            let revision = meta(connection, "pauses_revision")?;
            let mut select =
                connection.prepare_cached("SELECT target, pause FROM pause ORDER BY target").map_err(failed)?;
            let rows =
                select.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))).map_err(failed)?;
            let mut pauses = rows
                .map(|row| {
                    let (target, pause) = row.map_err(failed)?;
                    let read = || Ok::<_, StoreError>((from_json(&target)?, from_json(&pause)?));
                    Ok(readable("pause", &target, read()))
                })
                .filter_map(Result::transpose)
                .collect::<Result<Vec<(PauseTarget, Pause)>, StoreError>>()?;
            pauses.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(Pauses { revision, pauses })
        })
        .await
    }

    pub(super) async fn do_put_calendars(&self, calendars: &[CalendarPut], now: Timestamp) -> Result<(), StoreError> {
        let calendars = calendars.to_vec();
        self.writer
            .write("save calendars", Urgency::Prompt, move |connection| {
                let sql = "INSERT INTO calendar (tenant, name, spec, revision, updated_at) VALUES (?1, ?2, ?3, 1, ?4) \
                     ON CONFLICT (tenant, name) DO UPDATE SET spec = excluded.spec, revision = revision + 1, \
                     updated_at = excluded.updated_at";
                let mut put = connection.prepare_cached(sql).map_err(failed)?;
                for calendar in &calendars {
                    put.execute(params![calendar.tenant.0, calendar.name, calendar.spec, micros(now)])
                        .map_err(failed)?;
                }
                Ok(())
            })
            .await
    }

    pub(super) async fn do_calendars(&self, tenant: TenantId) -> Result<Vec<Calendar>, StoreError> {
        self.read("read calendars", move |connection| {
            let sql = "SELECT name, spec, revision FROM calendar WHERE tenant = ?1 ORDER BY name";
            let mut select = connection.prepare_cached(sql).map_err(failed)?;
            let rows = select
                .query_map([tenant.0], |row| {
                    Ok(Calendar { tenant, name: row.get(0)?, spec: row.get(1)?, revision: row.get(2)? })
                })
                .map_err(failed)?;
            let read = |row: rusqlite::Result<Calendar>| {
                let calendar = row.map_err(failed)?;
                let key = format!("{tenant}/{}", calendar.name);
                Ok(readable("calendar", key, from_json::<IgnoredAny>(&calendar.spec)).map(|_| calendar))
            };
            rows.map(read).filter_map(Result::transpose).collect()
        })
        .await
    }
}

fn lane(row: &Row<'_>) -> Result<Lane, StoreError> {
    Ok(Lane {
        id: LaneId(row.get(0).map_err(failed)?),
        key: from_json(&row.get::<_, String>(1).map_err(failed)?)?,
        mode: codec::mode(row.get(2).map_err(failed)?)?,
        retired: row.get(3).map_err(failed)?,
    })
}

fn lane_where(connection: &Connection, rest: &str, key: impl rusqlite::Params) -> Result<Option<Lane>, StoreError> {
    let sql = format!("SELECT id, key, mode, retired FROM lane WHERE {rest}");
    let mut select = connection.prepare_cached(&sql).map_err(failed)?;
    let mut rows = select.query(key).map_err(failed)?;
    rows.next().map_err(failed)?.map(lane).transpose()
}

/// The lane that takes new runs for a key; made with `mode` if there is none.
fn open_lane(connection: &Connection, key: &LaneKey, mode: LaneMode) -> Result<Lane, StoreError> {
    let text = to_json(key)?;
    if let Some(lane) = lane_where(connection, "key = ?1 AND retired = 0", [&text])? {
        return Ok(lane);
    }
    connection
        .prepare_cached("INSERT INTO lane (key, mode) VALUES (?1, ?2)")
        .and_then(|mut insert| insert.execute(params![text, mode_code(mode)]))
        .map_err(failed)?;
    let id = LaneId(connection.last_insert_rowid() as i32);
    Ok(Lane { id, key: key.clone(), mode, retired: false })
}

const JOB: &str = "id, tenant, name, version, revision, document, queue, tags, enabled, pause, created_at, updated_at, \
     deleted";

fn job_record(row: &Row<'_>) -> Result<JobRecord, StoreError> {
    let text = |index: usize| row.get::<_, String>(index).map_err(failed);
    let pause: Option<String> = row.get(9).map_err(failed)?;
    Ok(JobRecord {
        id: JobId(row.get(0).map_err(failed)?),
        tenant: TenantId(row.get(1).map_err(failed)?),
        name: text(2)?,
        version: row.get(3).map_err(failed)?,
        revision: row.get(4).map_err(failed)?,
        document: text(5)?,
        queue: text(6)?,
        tags: from_json(&text(7)?)?,
        enabled: row.get(8).map_err(failed)?,
        pause: pause.as_deref().map(from_json).transpose()?,
        created_at: time(row.get(10).map_err(failed)?)?,
        updated_at: time(row.get(11).map_err(failed)?)?,
        deleted: row.get(12).map_err(failed)?,
    })
}

fn job_where(connection: &Connection, rest: &str, key: impl rusqlite::Params) -> Result<Option<JobRecord>, StoreError> {
    let sql = format!("SELECT {JOB} FROM job WHERE {rest}");
    let mut select = connection.prepare_cached(&sql).map_err(failed)?;
    let mut rows = select.query(key).map_err(failed)?;
    let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
    Ok(readable("job", row.get::<_, i64>(0).map_err(failed)?, job_record(row)))
}

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
    connection.prepare_cached(sql).and_then(|mut insert| insert.execute(row)).map_err(failed)?;
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
    connection.prepare_cached(sql).and_then(|mut update| update.execute(row)).map_err(failed)?;
    connection
        .prepare_cached("UPDATE job_version SET unused_since = ?3 WHERE job = ?1 AND version = ?2")
        .and_then(|mut update| update.execute(params![id, version - 1, micros(now)]))
        .map_err(failed)?;
    let tags = to_json(&put.tags)?;
    connection
        .prepare_cached("DELETE FROM job_tag WHERE job = ?1 AND tag NOT IN (SELECT value FROM json_each(?2))")
        .and_then(|mut delete| delete.execute(params![id, tags]))
        .map_err(failed)?;
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
    connection.prepare_cached(sql).and_then(|mut insert| insert.execute(row)).map_err(failed)?;
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
    let gone = connection.prepare_cached(sql).and_then(|mut update| update.execute(row)).map_err(failed)?;
    if gone == 0 {
        return Ok(Guarded::Stale);
    }
    schedules::delete_of_job(connection, job, now)?;
    after::put_edges(connection, job.0, None)?;
    connection
        .prepare_cached("DELETE FROM job_tag WHERE job = ?1")
        .and_then(|mut delete| delete.execute([job.0]))
        .map_err(failed)?;
    Ok(Guarded::Applied)
}

fn list(connection: &Connection, query: &JobQuery) -> Result<JobPage, StoreError> {
    let limit = query.limit.clamp(1, PAGE_MAX) as usize;
    let sql = format!(
        "SELECT {JOB} FROM job WHERE deleted = 0 AND (?1 IS NULL OR tenant = ?1) AND (tenant, name) > (?2, ?3) \
           AND (?4 IS NULL OR (name >= ?4 AND substr(name, 1, length(?4)) = ?4)) AND (?5 IS NULL OR queue = ?5) \
           AND (?6 IS NULL OR enabled = ?6) \
           AND (?7 IS NULL OR EXISTS (SELECT 1 FROM job_tag WHERE job_tag.tag = ?7 AND job_tag.job = job.id)) \
         ORDER BY tenant, name LIMIT ?8"
    );
    let after = query.after.as_ref();
    let key = params![
        query.tenant.map(|tenant| tenant.0),
        after.map_or(i32::MIN, |after| after.tenant.0),
        after.map_or("", |after| after.name.as_str()),
        query.prefix,
        query.queue,
        query.enabled,
        query.tag,
        limit as i64 + 1,
    ];
    let mut select = connection.prepare_cached(&sql).map_err(failed)?;
    let mut rows = select.query(key).map_err(failed)?;
    let (mut jobs, mut looked, mut last) = (Vec::new(), 0, None);
    while let Some(row) = rows.next().map_err(failed)? {
        looked += 1;
        if looked > limit {
            return Ok(JobPage { jobs, next: last });
        }
        let (id, tenant): (i64, _) = (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
        last = Some(JobCursor { tenant: TenantId(tenant), name: row.get(2).map_err(failed)? });
        jobs.extend(readable("job", id, job_record(row)));
    }
    Ok(JobPage { jobs, next: None })
}

fn set_pause(
    connection: &Connection,
    target: &PauseTarget,
    change: impl FnOnce(Option<Pause>) -> Option<Pause>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    match target {
        PauseTarget::Job(job) => {
            let Some(record) = job_where(connection, "id = ?1 AND deleted = 0", [job.0])? else { return Ok(false) };
            let Some(pause) = change(record.pause) else { return Ok(false) };
            let sql = "UPDATE job SET pause = ?2, revision = revision + 1, updated_at = ?3 WHERE id = ?1";
            let row = params![job.0, to_json(&pause)?, micros(now)];
            connection.prepare_cached(sql).and_then(|mut u| u.execute(row)).map_err(failed)?;
            schedules::wake_of_job(connection, *job)?;
            Ok(true)
        }
        PauseTarget::Schedule(schedule) => schedules::set_pause(connection, *schedule, change),
        PauseTarget::Tenant(tenant) | PauseTarget::Queue(tenant, _) => {
            let known = connection
                .prepare_cached("SELECT 1 FROM tenant WHERE id = ?1")
                .and_then(|mut select| select.exists([tenant.0]))
                .map_err(failed)?;
            if known { change_wide(connection, target, change) } else { Ok(false) }
        }
    }
}

/// Changes the pause of a tenant or a queue.
fn change_wide(
    connection: &Connection,
    target: &PauseTarget,
    change: impl FnOnce(Option<Pause>) -> Option<Pause>,
) -> Result<bool, StoreError> {
    let name = to_json(target)?;
    let old: Option<String> = connection
        .prepare_cached("SELECT pause FROM pause WHERE target = ?1")
        .and_then(|mut select| select.query_row([&name], |row| row.get(0)).optional())
        .map_err(failed)?;
    // One that cannot be read is replaced.
    let old = old.and_then(|old| readable("pause", &name, from_json(&old)));
    let Some(pause) = change(old) else { return Ok(false) };
    let row = [name, to_json(&pause)?];
    connection
        .prepare_cached("INSERT OR REPLACE INTO pause (target, pause) VALUES (?1, ?2)")
        .and_then(|mut put| put.execute(row))
        .map_err(failed)?;
    bump_meta(connection, "pauses_revision", 1)?;
    Ok(true)
}
