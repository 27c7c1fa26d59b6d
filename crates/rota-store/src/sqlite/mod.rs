//! The embedded store: one SQLite file, one writer, readers beside it.
//!
//! Safe because the file has one owner: a lock beside it refuses a second
//! process, one thread does all the writing, and every commit is synced
//! (`synchronous=FULL`) before its answer leaves. Partition leases, epochs and
//! fences are kept all the same, so that many nodes can share one store in
//! tests and the simulator, with the semantics of a cluster.

mod after;
mod apply;
mod cancel;
mod checkpoint;
mod claim;
mod dead;
mod engine;
mod extend;
mod fire;
mod follow;
mod history;
mod insert;
mod jobs;
mod joins;
mod leases;
mod logs;
mod look;
mod many;
mod migrate;
mod once;
mod own;
mod promote;
mod raw;
mod reap;
mod rows;
mod schedules;
mod settle;
mod slots;
mod tend;
mod unreadable;
mod writer;

use std::{
    error::Error,
    fs::{File, OpenOptions, TryLockError},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use rota_core::store::StoreError;
use rusqlite::{Connection, OpenFlags, config::DbConfig};
use tokio::sync::Semaphore;

use self::{
    checkpoint::Checkpointer,
    rows::first,
    tend::Tending,
    writer::{Urgency, Writer},
};
use crate::{
    engine::SqlStore,
    guests::is_guest,
    unreadable::{Notes, note_on_thread},
};

pub use self::{
    look::look,
    raw::{history_len, raw_loop},
};

/// How the file is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Connections that read beside the writer.
    pub readers: usize,
    /// Memory for the writer's pages, in KiB.
    pub cache_kib: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { readers: 4, cache_kib: 128 * 1024 }
    }
}

/// Why the file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} is in use by another rota process; stop it first, or give this one a file of its own", .0.display())]
    InUse(PathBuf),
    #[error("cannot use {}", .path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("cannot open {} as an SQLite database", .path.display())]
    Sqlite { path: PathBuf, source: rusqlite::Error },
    #[error("{} has schema {found}, and this release knows schemas up to {known}: a later release has changed it so that this one cannot use it; use that release", .path.display())]
    Newer { path: PathBuf, found: i64, known: i64 },
}

/// A store in one SQLite file, or in memory.
pub type SqliteStore = SqlStore<Sqlite>;

/// The file, its one writer and its readers.
pub struct Sqlite {
    // Dropped first: the last connection to close moves the log into the file and
    // removes it, and only the writer's can.
    readers: Option<Arc<Readers>>,
    writer: Writer,
    notes: Arc<Notes>,
    tending: Arc<Tending>,
    _lock: Option<File>,
}

impl SqliteStore {
    /// Opens or makes the file at `path`, for this process alone.
    pub async fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || Self::open_now(&path, options))
            .await
            .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    fn open_now(path: &Path, options: Options) -> Result<Self, OpenError> {
        let lock = lock(path)?;
        let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
        create(path).map_err(|source| OpenError::File { path: path.to_owned(), source })?;
        let mut connection = Connection::open(path).map_err(sqlite)?;
        configure(&connection, options).map_err(sqlite)?;
        migrate::up(&connection, path)?;
        let checkpointer = Checkpointer::start(path, &mut connection)
            .map_err(|source| OpenError::File { path: path.to_owned(), source: std::io::Error::other(source) })?;
        let notes = Arc::<Notes>::default();
        let readers = Readers::new(path.to_owned(), options.readers.max(1), Arc::clone(&notes));
        let writer = Writer::start(connection, Some(checkpointer), Arc::clone(&notes))
            .map_err(|source| OpenError::File { path: path.to_owned(), source })?;
        let readers = Some(Arc::new(readers));
        Ok(SqlStore(Sqlite { readers, writer, notes, tending: Arc::default(), _lock: Some(lock) }))
    }

    /// A store that lives and dies with this value.
    pub fn memory() -> Result<Self, OpenError> {
        let path = PathBuf::from(":memory:");
        let sqlite = |source| OpenError::Sqlite { path: path.clone(), source };
        let connection = Connection::open_in_memory().map_err(sqlite)?;
        configure(&connection, Options::default()).map_err(sqlite)?;
        migrate::up(&connection, &path)?;
        let notes = Arc::<Notes>::default();
        let writer = Writer::start(connection, None, Arc::clone(&notes))
            .map_err(|source| OpenError::File { path: path.clone(), source })?;
        Ok(SqlStore(Sqlite { readers: None, writer, notes, tending: Arc::default(), _lock: None }))
    }

    /// Carries out statements as they are, for tests that break what is stored.
    pub async fn execute_raw(&self, sql: &str) -> Result<(), StoreError> {
        let sql = sql.to_owned();
        self.writer
            .write("carry out a statement", Urgency::Prompt, move |connection| {
                connection.execute_batch(&sql).map_err(failed)
            })
            .await
    }
}

impl Sqlite {
    /// Reads beside the writer; in memory there is only the writer's own
    /// connection to read from.
    async fn read<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl Fn(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Some(readers) = self.readers.clone() else {
            return self.writer.write(what, Urgency::Prompt, work).await;
        };
        let turn = async |permits: &Arc<Semaphore>| {
            Arc::clone(permits).acquire_owned().await.map_err(|error| not_applied(what, error))
        };
        // Guests stand in a queue of their own, and leave a reader to the others.
        let place = if is_guest() { Some(turn(&readers.guests).await?) } else { None };
        let permit = turn(&readers.permits).await?;
        let reading = move || {
            let answer = readers.with(what, work);
            drop((permit, place));
            answer
        };
        let answer = tokio::task::spawn_blocking(reading).await.unwrap_or_else(|error| Err(not_applied(what, error)));
        self.writer.set_aside().await;
        answer
    }
}

/// Creates the file where it is not there. SQLite gives the files beside it, which hold
/// the same data, the mode of this one.
fn create(path: &Path) -> std::io::Result<()> {
    owned().open(path).map(drop)
}

/// How a file is opened that is created for its owner alone.
fn owned() -> OpenOptions {
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600);
    options
}

/// Takes the lock beside the file; it goes with the process.
fn lock(path: &Path) -> Result<File, OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file_error = |source| OpenError::File { path: path.to_owned(), source };
    let file = owned().open(&name).map_err(file_error)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => Err(file_error(source)),
    }
}

fn configure(connection: &Connection, options: Options) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(512);
    steady(connection)?;
    // The page size counts only for a file that is yet to be made.
    connection.execute_batch(&format!(
        "PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
         PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = OFF; \
         PRAGMA cache_size = -{};",
        options.cache_kib
    ))
}

/// A statement's plan must not depend on the values bound to it: it would be
/// prepared again for each.
fn steady(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Connections for readers, made as they are needed.
struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    /// As many as there may be connections.
    permits: Arc<Semaphore>,
    /// As many of them as guests may hold.
    guests: Arc<Semaphore>,
    notes: Arc<Notes>,
}

impl Readers {
    fn new(path: PathBuf, most: usize, notes: Arc<Notes>) -> Self {
        let guests = most.saturating_sub(1).max(1);
        let permits = |most| Arc::new(Semaphore::new(most));
        Self { path, idle: Mutex::default(), permits: permits(most), guests: permits(guests), notes }
    }

    fn with<T>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.connect().map_err(|error| not_applied(what, error))?,
        };
        note_on_thread(&self.notes);
        // One snapshot for all that a read looks at.
        connection.execute_batch("BEGIN").map_err(failed)?;
        let answer = work(&connection);
        connection.execute_batch("COMMIT").map_err(failed)?;
        self.idle.lock().push(connection);
        answer
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.set_prepared_statement_cache_capacity(128);
        steady(&connection)?;
        connection.execute_batch("PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16384;")?;
        Ok(connection)
    }
}

fn not_applied(what: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
    StoreError::NotApplied { what, source: source.into() }
}

/// A statement that failed. Its transaction is rolled back, so nothing of it
/// was applied.
fn failed(error: rusqlite::Error) -> StoreError {
    match error {
        rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..) => {
            StoreError::Corrupt(error.to_string())
        }
        error => not_applied("carry out a statement", error),
    }
}

/// A counter of the store's own.
fn meta(connection: &Connection, key: &str) -> Result<i64, StoreError> {
    first(connection, "SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0))?
        .ok_or_else(|| StoreError::Corrupt(format!("no counter {key}")))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use jiff::Timestamp;
    use rota_core::{
        duration::Span,
        fire::{Cursor, Stored},
        ids::{BatchId, JobId, ScheduleId},
        run::CancelAsk,
        store::{
            Deletion, Ends, Expect, JobChanges, JobPut, JobSaved, JobStore, Pause, PauseStore, PauseTarget,
            ScheduleChanges, SchedulePut, ScheduleQuery, ScheduleStore, SchedulesPut, TenantPut, TenantStore, Tier,
            Write,
        },
    };
    use rusqlite::trace::{TraceEvent, TraceEventCodes};

    use super::*;
    use crate::guests;

    /// However many guests read, and however long, a stage finds a reader.
    #[tokio::test]
    async fn guests_leave_a_reader_to_the_stages() {
        let path = std::env::temp_dir().join(format!("rota-guests-{}.db", uuid::Uuid::now_v7()));
        let options = Options::default();
        let store = Arc::new(SqliteStore::open(&path, options).await.unwrap());
        let api = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(guests::mark_thread)
            .enable_all()
            .build()
            .unwrap();
        let (say, begun) = mpsc::channel();
        let mut gates = Vec::new();
        let reading: Vec<_> = (0..2 * options.readers)
            .map(|_| {
                let (open, gate) = mpsc::channel::<()>();
                gates.push(open);
                let (store, say, gate) = (Arc::clone(&store), say.clone(), Mutex::new(gate));
                api.spawn(async move {
                    let slow = move |_: &Connection| {
                        say.send(()).ok();
                        gate.lock().recv().ok();
                        Ok(())
                    };
                    store.read("read for a guest", slow).await.unwrap();
                })
            })
            .collect();
        for _ in 1..options.readers {
            begun.recv().unwrap();
        }
        assert_eq!(store.read("read for a stage", |_| Ok(7)).await.unwrap(), 7);
        assert!(begun.try_recv().is_err(), "guests took the reader that is kept back");
        drop(gates);
        for read in reading {
            read.await.unwrap();
        }
        api.shutdown_background();
        drop(store);
        for end in ["", "-wal", "-shm", ".lock"] {
            drop(std::fs::remove_file(format!("{}{end}", path.display())));
        }
    }

    /// A store in memory that says which statements it carries out.
    fn traced() -> (SqliteStore, Arc<Mutex<Vec<String>>>) {
        let mut connection = Connection::open_in_memory().unwrap();
        configure(&connection, Options::default()).unwrap();
        migrate::up(&connection, Path::new("x")).unwrap();
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let statements = Arc::clone(&said);
        let hear = move |event: TraceEvent<'_>| {
            if let TraceEvent::Stmt(_, sql) = event {
                statements.lock().push(sql.to_owned());
            }
        };
        connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(hear)).unwrap();
        let notes = Arc::<Notes>::default();
        let writer = Writer::start(connection, None, Arc::clone(&notes)).unwrap();
        (SqlStore(Sqlite { readers: None, writer, notes, tending: Arc::default(), _lock: None }), said)
    }

    fn write(n: u128) -> Write {
        let batch = BatchId(uuid::Uuid::from_u128(n));
        Write { batch, now: NOW, node: None, generation: 0, request: None, ends: Ends::default(), dry_run: false }
    }

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    /// Tables that have a few rows however much is stored.
    const SMALL: [&str; 3] = ["meta", "partition", "history_day"];

    /// Saves, edits, pauses, resumes, wakes and deletes a job and its schedule.
    async fn edit_everything(store: &SqliteStore) {
        let tenant = TenantPut { name: "t".into(), tier: Tier::Unlimited, quotas: None };
        let tenant = store.put_tenants(&[tenant], NOW).await.unwrap()[0];
        let id = store.reserve_schedules(1).await.unwrap();
        let cursor = Cursor { planned_at: NOW, due_at: NOW, fired: 0 };
        let mut schedule = SchedulePut {
            id,
            job: JobId(0),
            tenant,
            name: "s".into(),
            spec: "{\"every\":\"1m\"}".into(),
            enabled: true,
            stored: Stored { cursor: Some(cursor), ..Stored::default() },
            skips: Vec::new(),
            guard: None,
        };
        let put = |n: u8, schedule: &SchedulePut, ended: &[ScheduleId]| JobPut {
            tenant,
            name: "j".into(),
            document: format!("{{\"n\":{n}}}"),
            hash: [n; 32],
            queue: "default".into(),
            tags: vec!["tag".into()],
            enabled: true,
            by: None,
            expect: Expect::Anything,
            after: None,
            schedules: Some(SchedulesPut {
                seen: (n > 1).then_some(i32::from(n) - 1),
                saved: if ended.is_empty() { vec![schedule.clone()] } else { Vec::new() },
                ended: ended.to_vec(),
            }),
        };
        let saved = store.put_jobs(&write(1), &[put(1, &schedule, &[])]).await.unwrap();
        let JobSaved::Saved { id: job, .. } = saved[0] else { panic!("{saved:?}") };
        let record = store.schedules(&[id]).await.unwrap()[0].clone().unwrap();
        schedule.guard = Some(record.guard(Some(cursor)));
        store.put_jobs(&write(2), &[put(2, &schedule, &[])]).await.unwrap();
        let targets = [PauseTarget::Job(job), PauseTarget::Schedule(id), PauseTarget::Queue(tenant, "default".into())];
        store.set_pauses(&write(3), &targets, Some(&Pause::default())).await.unwrap();
        store.set_pauses(&write(4), &targets, None).await.unwrap();
        let due = store.cursors(&[id]).await.unwrap()[0].unwrap();
        store.wake_at(&write(5), &[(due, Some(NOW))]).await.unwrap();
        let of_job = ScheduleQuery { job: Some(job), limit: 10, ..ScheduleQuery::default() };
        assert_eq!(store.list_schedules(&of_job).await.unwrap().schedules.len(), 1);
        let of_tenant = ScheduleQuery { tenant: Some(tenant), limit: 10, ..ScheduleQuery::default() };
        store.list_schedules(&of_tenant).await.unwrap();
        assert_eq!(store.count_held(tenant, rota_core::quota::Held::ActiveSchedules, 10, NOW).await.unwrap(), 1);
        store.find_jobs(&[(tenant, "j".into())]).await.unwrap();
        let record = store.schedules(&[id]).await.unwrap()[0].clone().unwrap();
        schedule.guard = Some(record.guard(store.cursors(&[id]).await.unwrap()[0].map(|due| due.cursor)));
        schedule.job = job;
        store.put_schedules(&write(6), &[schedule.clone()]).await.unwrap();
        let revision = store.jobs(&[job]).await.unwrap()[0].as_ref().unwrap().revision;
        let mut ended = put(7, &schedule, &[id]);
        ended.schedules.as_mut().unwrap().seen = Some(revision);
        store.put_jobs(&write(7), &[ended]).await.unwrap();
        let ask = CancelAsk { by: None, reason: None, grace: Span::secs(1) };
        store.delete_jobs(&write(8), &[Deletion { job, ask, keep_running: false }]).await.unwrap();
        assert!(store.schedules(&[id]).await.unwrap()[0].as_ref().unwrap().deleted);
    }

    /// With millions of schedules, a look through all of them for each edit would hold up
    /// every commit.
    #[tokio::test]
    async fn editing_a_job_or_schedule_walks_through_no_table() {
        let (store, said) = traced();
        edit_everything(&store).await;
        let statements = std::mem::take(&mut *said.lock());
        assert!(statements.len() > 30, "{statements:?}");
        let plans = store.read("explain", move |connection| {
            let mut plans = Vec::new();
            for sql in &statements {
                if sql == "COMMIT" || sql.starts_with("BEGIN") {
                    continue;
                }
                let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).map_err(failed)?;
                let count = explain.parameter_count();
                let rows = explain.query_map(rusqlite::params_from_iter(vec![0; count]), |row| row.get::<_, String>(3));
                for step in rows.map_err(failed)? {
                    plans.push((sql.clone(), step.map_err(failed)?));
                }
            }
            Ok(plans)
        });
        for (sql, step) in plans.await.unwrap() {
            let walked = step.strip_prefix("SCAN ").and_then(|rest| rest.split(' ').next());
            let stored = walked.is_some_and(|table| crate::bounds::of(table).is_some() && !SMALL.contains(&table));
            assert!(!stored, "{sql}: {step}");
        }
    }
}
