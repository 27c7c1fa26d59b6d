//! Brings a file's schema up to date, one numbered step at a time, each in a
//! transaction of its own.

use std::path::Path;

use rusqlite::Connection;

use super::{OpenError, dead, history};
use crate::schema::may_use;

/// Every step, in order. Never edited once released, only added to.
const STEPS: &[(i64, &str)] = &[
    (1, include_str!("migrations/0001_first.sql")),
    (2, include_str!("migrations/0002_workers.sql")),
    (3, include_str!("migrations/0003_after.sql")),
    (4, include_str!("migrations/0004_access.sql")),
    (5, include_str!("migrations/0005_dead.sql")),
    (6, include_str!("migrations/0006_open_dead.sql")),
    (7, include_str!("migrations/0007_rollups.sql")),
    (8, include_str!("migrations/0008_schedule_part.sql")),
    (9, include_str!("migrations/0009_answers.sql")),
    (10, include_str!("migrations/0010_decided.sql")),
    (11, include_str!("migrations/0011_cursor_schedule.sql")),
    (12, include_str!("migrations/0012_started.sql")),
    (13, include_str!("migrations/0013_need_waiter.sql")),
    (14, include_str!("migrations/0014_deletion.sql")),
    (15, include_str!("migrations/0015_upkeep.sql")),
    (16, include_str!("migrations/0016_set_aside.sql")),
    (17, include_str!("migrations/0017_bounds.sql")),
    (18, include_str!("migrations/0018_compatibility.sql")),
    (19, include_str!("migrations/0019_flows.sql")),
];

/// Before this step dead letters were found in history alone.
const OPEN_DEAD: i64 = 6;

/// The newest schema that this release knows.
pub const fn known() -> i64 {
    let (number, _) = STEPS[STEPS.len() - 1];
    number
}

/// The oldest schema whose release may use this file; none where it does not say.
pub fn oldest(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    if !connection.table_exists(None, "compatibility")? {
        return Ok(None);
    }
    connection.query_row("SELECT max(oldest) FROM compatibility", [], |row| row.get(0))
}

pub fn up(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(sqlite)?;
    if !may_use(found, oldest(connection).map_err(sqlite)?, known()) {
        return Err(OpenError::Newer { path: path.to_owned(), found, known: known() });
    }
    if found > known() {
        tracing::info!(
            schema = found,
            known = known(),
            "a later release has extended this file, and this one may use it"
        );
    }
    for (number, sql) in STEPS.iter().filter(|(number, _)| *number > found) {
        connection.execute_batch(&format!("BEGIN IMMEDIATE; {sql};")).map_err(sqlite)?;
        if *number == OPEN_DEAD {
            dead::find_open(connection).map_err(sqlite)?;
        }
        connection.execute_batch(&format!("PRAGMA user_version = {number}; COMMIT;")).map_err(sqlite)?;
    }
    history::extend_days(connection).map_err(sqlite)
}

#[cfg(test)]
mod tests {
    use rota_core::{
        ids::{RunId, TenantId},
        run::Status,
        store::{Enqueued, Request},
    };

    use super::{super::once::known_request, *};
    use crate::kept;

    /// A file as it was before a step.
    fn before(step: i64) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        for (_, sql) in STEPS.iter().filter(|(number, _)| *number < step) {
            connection.execute_batch(sql).unwrap();
        }
        connection.pragma_update(None, "user_version", step - 1).unwrap();
        connection
    }

    /// A file from before open dead letters were noted must not look as if there
    /// were none.
    #[test]
    fn open_dead_letters_of_an_older_file_are_found() {
        let connection = before(OPEN_DEAD);
        history::ensure_day(&connection, 20_000).unwrap();
        for (id, verdict) in [(1, 4), (2, 4), (3, 1)] {
            let sql = "INSERT INTO history_20000 (id, tenant, job, version, lane, part, order_key, ready_at, created_at, \
                 ended_at, verdict, attempt, losses, fence, source) \
                 VALUES (?1, 1, 1, 1, 1, 1, 1, 1, 1, 70 + ?1, ?2, 1, 0, 0, 2)";
            connection.execute(sql, [id, verdict]).unwrap();
        }
        connection.execute("INSERT INTO dead_mark SELECT id, 1, 0, NULL FROM history_20000 WHERE seq = 1", []).unwrap();
        up(&connection, Path::new("x")).unwrap();
        let count = "SELECT count(*), min(ended_at) FROM open_dead";
        let found: (i64, i64) = connection.query_row(count, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(found, (1, 72));
    }

    /// A request sent again after an upgrade is not done a second time.
    #[test]
    fn requests_answered_before_an_upgrade_are_known_after_it() {
        let connection = before(9);
        let now = jiff::Timestamp::from_second(1).unwrap();
        let of = RunId(uuid::Uuid::from_u128(7));
        let again = Enqueued::Again { of, status: Status::Queued, handed: true };
        let text = serde_json::to_string(&[again]).unwrap();
        let sql = "INSERT INTO request (tenant, key, fingerprint, expires_at, answer) VALUES (1, 'k', ?1, 2000000, ?2)";
        connection.execute(sql, rusqlite::params![[3_u8; 32], text]).unwrap();
        up(&connection, Path::new("x")).unwrap();
        let expires_at = jiff::Timestamp::from_second(2).unwrap();
        let request = Request { tenant: TenantId(1), key: "k".into(), fingerprint: [3; 32], expires_at };
        let kept = known_request(&connection, &request, now).unwrap().unwrap();
        assert_eq!(kept::enqueued_again(kept.as_deref(), 1).unwrap(), [again]);
    }

    /// What an edit wrote beside a cursor must not hold up the edit after it.
    #[test]
    fn a_schedule_edited_before_an_upgrade_is_not_held_up_after_it() {
        let connection = before(10);
        for id in [1, 2] {
            let sql = "INSERT INTO schedule (id, job, tenant, part, revision, enabled, fired, decided_to, name, spec) \
                 VALUES (?1, 1, 1, 1, 2, 1, 3, 99, ?1, '{}')";
            connection.execute(sql, [id]).unwrap();
        }
        connection.execute("INSERT INTO cursor VALUES (1, 50, 1, 50, 3, 2)", []).unwrap();
        up(&connection, Path::new("x")).unwrap();
        let mut select = connection.prepare("SELECT fired, decided_to FROM schedule ORDER BY id").unwrap();
        let found = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let found: Vec<(i64, Option<i64>)> = found.collect::<Result<_, _>>().unwrap();
        assert_eq!(found, [(3, None), (3, Some(99))], "one that nothing arms keeps what is behind it");
    }

    /// A release before this one makes days as it knows them; their runs are to be read.
    #[test]
    fn days_that_the_release_before_has_made_get_the_columns_they_lack() {
        const ADDED: [&str; 2] = ["first_started_at", "item"];
        let connection = before(19);
        let day = |day| {
            history::ensure_day(&connection, day).unwrap();
            let table = history::table(day);
            for column in ADDED {
                connection.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN {column}")).unwrap();
            }
            table
        };
        let has = |table: &str| ADDED.iter().all(|column| connection.column_exists(None, table, *column).unwrap());
        let first = day(20_000);
        up(&connection, Path::new("x")).unwrap();
        assert!(has(&first), "a day from before the step");
        let second = day(20_001);
        up(&connection, Path::new("x")).unwrap();
        assert!(has(&second), "a day that was made after it");
    }

    /// What slept until the end of time wakes, and a job that was off has its schedules
    /// off.
    #[test]
    fn schedules_that_slept_before_an_upgrade_wake_after_it() {
        let connection = before(11);
        for (job, enabled) in [(1, 1), (2, 0)] {
            let sql = "INSERT INTO job (id, tenant, name, version, revision, hash, document, queue, tags, enabled, \
                 created_at, updated_at) VALUES (?1, 1, ?1, 1, 1, x'', '{}', 'default', '[]', ?2, 0, 0)";
            connection.execute(sql, [job, enabled]).unwrap();
            let sql = "INSERT INTO schedule (id, job, tenant, part, revision, enabled, name, spec) \
                 VALUES (?1, ?1, 1, 1, 2, 1, 's', '{}')";
            connection.execute(sql, [job]).unwrap();
        }
        for (due, schedule) in [(253_402_207_200_999_999_i64, 1), (50, 2), (60, 2)] {
            connection.execute("INSERT INTO cursor VALUES (1, ?1, ?2, 50, 3, 2)", [due, schedule]).unwrap();
        }
        up(&connection, Path::new("x")).unwrap();
        let sql = "SELECT s.id, s.enabled, c.due_at FROM schedule s JOIN cursor c ON c.schedule = s.id ORDER BY 1";
        let mut select = connection.prepare(sql).unwrap();
        let found = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        let found: Vec<(i64, bool, i64)> = found.collect::<Result<_, _>>().unwrap();
        assert_eq!(found, [(1, true, 50), (2, false, 50)], "each with one cursor");
    }
}
