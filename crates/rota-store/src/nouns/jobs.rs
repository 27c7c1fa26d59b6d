//! Jobs as they are stored.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::{JobId, TenantId},
    store::{Deletion, JobCursor, JobPage, JobQuery, JobRecord, JobStore, JobVersion, StoreError},
};

use crate::{
    definition,
    engine::{Engine, Row, SqlStore, Way, cut, values},
    filter::PAGE_MAX,
};

/// The rows that [`job`] reads. A document is in the job's row, or in that of its version.
const SQLITE: &str = "SELECT j.id, j.tenant, j.name, j.version, j.revision, j.document, j.queue, j.tags, j.enabled, \
     j.pause, j.created_at, j.updated_at, j.deleted FROM job j";
const POSTGRES: &str = "SELECT j.id, j.tenant, j.name, j.version, j.revision, v.document, j.queue, \
     array_to_json(j.tags)::text, j.enabled, j.pause, j.created_at, j.updated_at, j.deleted \
     FROM job j JOIN job_version v ON v.job = j.id AND v.version = j.version";

/// The jobs that have the tag of a query.
const TAGGED_SQLITE: &str = "EXISTS (SELECT 1 FROM job_tag t WHERE t.tag = $5 AND t.job = j.id)";
const TAGGED_POSTGRES: &str = "j.tags @> ARRAY[$5::text]";

#[async_trait]
impl<E: Engine> JobStore for SqlStore<E> {
    async fn deletions(&self, limit: u32) -> Result<Vec<(Timestamp, Deletion)>, StoreError> {
        let sql = "SELECT updated_at, deletion FROM job WHERE deletion IS NOT NULL ORDER BY updated_at LIMIT $1";
        let rows = self.find("read deletions", sql, values![limit.min(PAGE_MAX)]).await?;
        let rows = rows.iter().map(|row| Ok((row.int(0)?, row.text(1)?))).collect::<Result<_, StoreError>>()?;
        Ok(definition::deletions(rows))
    }

    async fn forget_deletions(&self, jobs: &[JobId], now: Timestamp) -> Result<(), StoreError> {
        let sql = "UPDATE job SET deletion = NULL, updated_at = $2 WHERE id = $1 AND deletion IS NOT NULL";
        let rows = jobs.iter().map(|job| (*job, values![*job, now])).collect();
        self.change_in_order(Way::Work, "forget deletions", sql, rows).await.map(drop)
    }

    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Option<JobRecord>>, StoreError> {
        let sql = format!("{} WHERE {}", rows_of::<E>(), E::DIALECT.any("j.id", 1));
        let rows = self.find("read jobs", sql, values![ids.iter().map(|id| id.0).collect::<Vec<i64>>()]).await?;
        let found: Vec<JobRecord> = rows.iter().filter_map(|row| self.job(row)).collect();
        let places: HashMap<JobId, &JobRecord> = found.iter().map(|job| (job.id, job)).collect();
        Ok(ids.iter().map(|id| places.get(id).copied().cloned()).collect())
    }

    async fn find_jobs(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<JobRecord>>, StoreError> {
        let (wanted, open) = (E::DIALECT.any("j.name", 2), E::DIALECT.not("j.deleted"));
        let sql = format!("{} WHERE j.tenant = $1 AND {wanted} AND {open}", rows_of::<E>());
        let mut sought: BTreeMap<TenantId, BTreeSet<&String>> = BTreeMap::new();
        for (tenant, name) in names {
            sought.entry(*tenant).or_default().insert(name);
        }
        // One statement, for callers ask for one tenant.
        let each = sought
            .into_iter()
            .map(|(tenant, names)| values![tenant, names.into_iter().cloned().collect::<Vec<String>>()]);
        let rows = self.find_each("find jobs", sql, each.collect()).await?;
        let found: Vec<JobRecord> = rows.iter().flatten().filter_map(|row| self.job(row)).collect();
        let places: HashMap<(TenantId, &str), &JobRecord> =
            found.iter().map(|job| ((job.tenant, job.name.as_str()), job)).collect();
        Ok(names.iter().map(|(tenant, name)| places.get(&(*tenant, name.as_str())).copied().cloned()).collect())
    }

    async fn list_jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        // Names are compared by bytes, so those with a prefix are one stretch.
        let sql = format!(
            "{} WHERE {} AND (j.tenant, j.name) > ($1, $2) AND (j.tenant = $3 OR $3 IS NULL) \
             AND j.name >= $4 AND substr(j.name, 1, length($4)) = $4 AND ({} OR $5 IS NULL) \
             AND (j.queue = $6 OR $6 IS NULL) AND (j.enabled = $7 OR $7 IS NULL) ORDER BY j.tenant, j.name LIMIT $8",
            rows_of::<E>(),
            E::DIALECT.not("j.deleted"),
            E::DIALECT.either(TAGGED_SQLITE, TAGGED_POSTGRES),
        );
        let limit = query.limit.clamp(1, PAGE_MAX);
        let after = query.after.as_ref();
        let key = values![
            after.map_or(i32::MIN, |after| after.tenant.0),
            after.map_or("", |after| after.name.as_str()),
            query.tenant,
            query.prefix.as_deref().unwrap_or_default(),
            &query.tag,
            &query.queue,
            query.enabled,
            limit + 1,
        ];
        let mut rows = self.find("list jobs", sql, key).await?;
        let more = cut(&mut rows, limit as usize);
        let cursor = |row: &Row| Ok::<_, StoreError>(JobCursor { tenant: TenantId(row.int(1)?), name: row.text(2)? });
        let next = rows.last().filter(|_| more).map(cursor).transpose()?;
        Ok(JobPage { jobs: rows.iter().filter_map(|row| self.job(row)).collect(), next })
    }

    async fn job_versions(&self, job: JobId, limit: u32) -> Result<Vec<JobVersion>, StoreError> {
        let by = E::DIALECT.either("by", "by_whom");
        let sql = format!(
            "SELECT version, document, at, {by} FROM job_version WHERE job = $1 ORDER BY version DESC LIMIT $2"
        );
        let rows = self.find("read a job's versions", sql, values![job, limit.min(PAGE_MAX)]).await?;
        let key = |row: &Row| format!("{job}/{}", row.shown(0));
        Ok(rows.iter().filter_map(|row| self.readable("job_version", key(row), version(row))).collect())
    }

    async fn job_document(&self, job: JobId, version: i32) -> Result<Option<String>, StoreError> {
        let sql = "SELECT document FROM job_version WHERE job = $1 AND version = $2";
        let rows = self.find("read a job's document", sql, values![job, version]).await?;
        rows.first().map(|row| row.text(0)).transpose()
    }
}

fn rows_of<E: Engine>() -> &'static str {
    E::DIALECT.either(SQLITE, POSTGRES)
}

impl<E: Engine> SqlStore<E> {
    /// None where it cannot be read.
    fn job(&self, row: &Row) -> Option<JobRecord> {
        self.readable("job", row.shown(0), job(row))
    }
}

fn job(row: &Row) -> Result<JobRecord, StoreError> {
    Ok(JobRecord {
        id: JobId(row.int(0)?),
        tenant: TenantId(row.int(1)?),
        name: row.text(2)?,
        version: row.int(3)?,
        revision: row.int(4)?,
        document: row.text(5)?,
        queue: row.text(6)?,
        tags: row.json(7)?,
        enabled: row.bool(8)?,
        pause: row.opt(9, Row::json)?,
        created_at: row.time(10)?,
        updated_at: row.time(11)?,
        deleted: row.bool(12)?,
    })
}

fn version(row: &Row) -> Result<JobVersion, StoreError> {
    Ok(JobVersion { version: row.int(0)?, document: row.text(1)?, at: row.time(2)?, by: row.opt(3, Row::text)? })
}
