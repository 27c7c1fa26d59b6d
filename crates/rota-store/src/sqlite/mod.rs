//! The embedded store: one SQLite file, one writer, readers beside it.
//!
//! Safe because the file has one owner: a lock beside it refuses a second
//! process, one thread does all the writing, and every commit is synced
//! (`synchronous=FULL`) before its answer leaves. Partition leases, epochs and
//! fences are kept all the same, so that many nodes can share one store in
//! tests and the simulator, with the semantics of a cluster.

mod access;
mod after;
mod apply;
mod cancel;
mod checkpoint;
mod claim;
mod dead;
mod fire;
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
mod port;
mod raw;
mod rows;
mod schedules;
mod settle;
mod slots;
mod standing;
mod tend;
mod workers;
mod writer;

use std::{
    error::Error,
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rota_core::store::StoreError;
use rusqlite::{Connection, OpenFlags, OptionalExtension, config::DbConfig, params};
use tokio::sync::Semaphore;

use self::{
    checkpoint::Checkpointer,
    writer::{Urgency, Writer},
};
pub use self::{
    look::look,
    raw::{history_len, raw_loop},
};
use crate::guests::is_guest;

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
    #[error("{} was written by a newer rota (schema {found}, this one knows {known}); use that version", .path.display())]
    Newer { path: PathBuf, found: i64, known: i64 },
}

/// A store in one SQLite file, or in memory.
pub struct SqliteStore {
    // Dropped first: the last connection to close moves the log into the file and
    // removes it, and only the writer's can.
    readers: Option<Arc<Readers>>,
    writer: Writer,
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
        let mut connection = Connection::open(path).map_err(sqlite)?;
        configure(&connection, options).map_err(sqlite)?;
        migrate::up(&connection, path)?;
        let checkpointer = Checkpointer::start(path, &mut connection)
            .map_err(|source| OpenError::File { path: path.to_owned(), source: std::io::Error::other(source) })?;
        let readers = Readers::new(path.to_owned(), options.readers.max(1));
        let writer = Writer::start(connection, Some(checkpointer))
            .map_err(|source| OpenError::File { path: path.to_owned(), source })?;
        Ok(Self { readers: Some(Arc::new(readers)), writer, _lock: Some(lock) })
    }

    /// A store that lives and dies with this value.
    pub fn memory() -> Result<Self, OpenError> {
        let path = PathBuf::from(":memory:");
        let sqlite = |source| OpenError::Sqlite { path: path.clone(), source };
        let connection = Connection::open_in_memory().map_err(sqlite)?;
        configure(&connection, Options::default()).map_err(sqlite)?;
        migrate::up(&connection, &path)?;
        let writer =
            Writer::start(connection, None).map_err(|source| OpenError::File { path: path.clone(), source })?;
        Ok(Self { readers: None, writer, _lock: None })
    }

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
        tokio::task::spawn_blocking(reading).await.unwrap_or_else(|error| Err(not_applied(what, error)))
    }
}

/// Takes the lock beside the file; it goes with the process.
fn lock(path: &Path) -> Result<File, OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file_error = |source| OpenError::File { path: path.to_owned(), source };
    let file = File::options().create(true).truncate(false).write(true).open(&name).map_err(file_error)?;
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
}

impl Readers {
    fn new(path: PathBuf, most: usize) -> Self {
        let guests = most.saturating_sub(1).max(1);
        let permits = |most| Arc::new(Semaphore::new(most));
        Self { path, idle: Mutex::default(), permits: permits(most), guests: permits(guests) }
    }

    fn with<T>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.connect().map_err(|error| not_applied(what, error))?,
        };
        // One snapshot for all that a read looks at.
        connection.execute_batch("BEGIN").map_err(failed)?;
        let answer = work(&connection);
        connection.execute_batch("COMMIT").map_err(failed)?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
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
    connection
        .prepare_cached("SELECT value FROM meta WHERE key = ?1")
        .and_then(|mut select| select.query_row([key], |row| row.get(0)).optional())
        .map_err(failed)?
        .ok_or_else(|| StoreError::Corrupt(format!("no counter {key}")))
}

/// Raises a counter and answers its new value.
fn bump_meta(connection: &Connection, key: &str, by: i64) -> Result<i64, StoreError> {
    connection
        .prepare_cached("UPDATE meta SET value = value + ?2 WHERE key = ?1 RETURNING value")
        .and_then(|mut update| update.query_row(params![key, by], |row| row.get(0)))
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

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
                        gate.lock().unwrap().recv().ok();
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
}
