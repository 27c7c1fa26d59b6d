//! Migrations: the schema, step by step.
//!
//! Each step is one file, applied once, in its own transaction, under one
//! advisory lock, so that many nodes may start at once. A database that a later
//! release has used is used where it says that this one may, and otherwise refused.

use deadpool_postgres::Object;
use tokio_postgres::error::SqlState;

use super::open::{OpenError, quoted};
use crate::schema::may_use;

/// Every step, in order. Never edited once released, only added to.
const STEPS: &[(i32, &str)] = &[
    (1, include_str!("migrations/0001_start.sql")),
    (2, include_str!("migrations/0002_workers.sql")),
    (3, include_str!("migrations/0003_after.sql")),
    (4, include_str!("migrations/0004_access.sql")),
    (5, include_str!("migrations/0005_dead.sql")),
    (6, include_str!("migrations/0006_history.sql")),
    (7, include_str!("migrations/0007_open_dead.sql")),
    (8, include_str!("migrations/0008_schedule_part.sql")),
    (9, include_str!("migrations/0009_decided.sql")),
    (10, include_str!("migrations/0010_cursor_schedule.sql")),
    (11, include_str!("migrations/0011_started.sql")),
    (12, include_str!("migrations/0012_need_waiter.sql")),
    (13, include_str!("migrations/0013_deletion.sql")),
    (14, include_str!("migrations/0014_upkeep.sql")),
    (15, include_str!("migrations/0015_set_aside.sql")),
    (16, include_str!("migrations/0016_bounds.sql")),
    (18, include_str!("migrations/0018_compatibility.sql")),
    (19, include_str!("migrations/0019_flows.sql")),
];

/// Names the lock; the schema is added, so that tests do not wait for each
/// other.
const LOCK: &str = "rota migrations of ";

/// How long a step waits for a table that is in use. Everybody else waits behind it.
const LOCK_WAIT: &str = "300ms";
/// The pause before it tries again, in which the others go on.
const PASS: &str = "SELECT pg_sleep(2)";
/// How often it tries: for about five minutes.
const LOCK_TRIES: u32 = 130;

/// The newest schema that this release knows.
pub(super) fn known() -> i64 {
    STEPS.last().map_or(0, |(version, _)| i64::from(*version))
}

/// The oldest schema whose release may use this database; none where it does not say.
pub(super) async fn oldest(client: &Object) -> Result<Option<i64>, tokio_postgres::Error> {
    let there = client.query_one("SELECT to_regclass('compatibility') IS NOT NULL", &[]).await?;
    if !there.get::<_, bool>(0) {
        return Ok(None);
    }
    Ok(client.query_one("SELECT max(oldest) FROM compatibility", &[]).await?.get(0))
}

pub(super) async fn migrate(client: &Object, schema: Option<&str>) -> Result<(), OpenError> {
    let prepare = |e: tokio_postgres::Error| OpenError::Prepare(Box::new(e));
    let lock = format!("{LOCK}{}", schema.unwrap_or_default());
    client.query("SELECT pg_advisory_lock(hashtextextended($1, 0))", &[&lock]).await.map_err(prepare)?;
    let done = apply(client, schema).await;
    client.query("SELECT pg_advisory_unlock(hashtextextended($1, 0))", &[&lock]).await.map_err(prepare)?;
    done
}

async fn apply(client: &Object, schema: Option<&str>) -> Result<(), OpenError> {
    let prepare = |e: tokio_postgres::Error| OpenError::Prepare(Box::new(e));
    let own = schema.map(|schema| format!("CREATE SCHEMA IF NOT EXISTS {}; ", quoted(schema))).unwrap_or_default();
    let first = format!(
        "SET client_min_messages = warning; {own}\
         CREATE TABLE IF NOT EXISTS migration (version int PRIMARY KEY, checksum bigint NOT NULL)"
    );
    client.batch_execute(&first).await.map_err(prepare)?;
    let rows = client.query("SELECT version, checksum FROM migration ORDER BY version", &[]).await.map_err(prepare)?;
    let oldest = oldest(client).await.map_err(prepare)?;
    let mut applied = Vec::with_capacity(rows.len());
    for row in rows {
        let (version, sum): (i32, i64) = (row.get(0), row.get(1));
        if !may_use(i64::from(version), oldest, known()) {
            return Err(OpenError::Newer { found: i64::from(version), known: known() });
        }
        if STEPS.iter().any(|(step, sql)| *step == version && checksum(sql) != sum) {
            return Err(OpenError::Altered { version });
        }
        applied.push(version);
    }
    for (version, sql) in STEPS.iter().filter(|(version, _)| !applied.contains(version)) {
        let sum = checksum(sql);
        let step = format!(
            "BEGIN; SET LOCAL lock_timeout = '{LOCK_WAIT}'; {sql}; \
             INSERT INTO migration (version, checksum) VALUES ({version}, {sum}); COMMIT"
        );
        let mut tries = 0;
        while let Err(source) = client.batch_execute(&step).await {
            client.batch_execute("ROLLBACK").await.map_err(prepare)?;
            tries += 1;
            let in_use = [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED];
            if !source.code().is_some_and(|code| in_use.contains(code)) || tries == LOCK_TRIES {
                return Err(OpenError::Migration { version: *version, source });
            }
            client.batch_execute(PASS).await.map_err(prepare)?;
        }
    }
    Ok(())
}

/// FNV-1a: enough to notice an edited file.
fn checksum(text: &str) -> i64 {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash as i64
}
