//! Where a case's store lives: memory, a directory, or a schema of its own.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use rota_core::{ids::RunId, store::Store};
use rota_store::{
    postgres::{self, PostgresStore},
    sqlite::{self, SqliteStore},
};

use crate::harness::Backend;

pub enum Place {
    Memory { store: Arc<SqliteStore> },
    Directory { path: PathBuf, directory: PathBuf },
    Schema { url: String, schema: String, store: Arc<PostgresStore> },
}

/// Makes a counter wrong: one more is held than there are runs.
const SPOIL_SLOTS: &str = "UPDATE slot SET held = held + 1";

/// Cuts the ties of all runs that wait for others.
const SPOIL_JOINS: &str = "DELETE FROM need";

impl Place {
    pub async fn open(backend: Backend) -> (Self, Arc<dyn Store>) {
        match backend {
            Backend::SqliteMemory => {
                let store = Arc::new(SqliteStore::memory().unwrap());
                (Self::Memory { store: store.clone() }, store)
            }
            Backend::SqliteFile => {
                let directory = new_directory();
                let path = directory.join("rota.db");
                let store = SqliteStore::open(&path, sqlite::Options::default()).await.unwrap();
                (Self::Directory { path, directory }, Arc::new(store))
            }
            Backend::Postgres => {
                let (url, schema) = (server(), new_schema());
                let store = Arc::new(postgres_store(&url, &schema).await);
                (Self::Schema { url, schema, store: store.clone() }, store)
            }
        }
    }

    /// A database that a later release has extended in a way that leaves this one its use:
    /// every table has a column more, and there is a table more.
    pub async fn open_extended(backend: Backend) -> (Self, Arc<dyn Store>) {
        let (mut place, first) = Self::open(backend).await;
        let store: Arc<dyn Store> = match &mut place {
            Self::Memory { .. } => panic!("nobody else uses a store in memory"),
            Self::Directory { path, .. } => {
                drop(first);
                extend_file(path);
                Arc::new(SqliteStore::open(path, sqlite::Options::default()).await.unwrap())
            }
            Self::Schema { url, schema, store } => {
                drop(first);
                store.execute_raw(EXTEND_SCHEMA).await.unwrap();
                *store = Arc::new(postgres_store(url, schema).await);
                store.clone()
            }
        };
        (place, store)
    }

    /// A database as `folder` holds it, brought up to date. None in memory.
    pub async fn open_frozen(backend: Backend, folder: &Path) -> Option<(Self, Arc<dyn Store>)> {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        match backend {
            Backend::SqliteMemory => None,
            Backend::SqliteFile => {
                let directory = new_directory();
                let path = directory.join("rota.db");
                rusqlite::Connection::open(&path).unwrap().execute_batch(&read("sqlite.sql")).unwrap();
                let store = SqliteStore::open(&path, sqlite::Options::default()).await.unwrap();
                Some((Self::Directory { path, directory }, Arc::new(store)))
            }
            Backend::Postgres => {
                let (url, schema) = (server(), new_schema());
                let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
                let talking = tokio::spawn(connection);
                client.batch_execute(&read("postgres.sql").replace(FROZEN_SCHEMA, &schema)).await.unwrap();
                drop(client);
                talking.await.unwrap().unwrap();
                let store = Arc::new(postgres_store(&url, &schema).await);
                Some((Self::Schema { url, schema, store: store.clone() }, store))
            }
        }
    }

    /// Leaves what is stored for `scripts/freeze`: a file, or the name of a schema.
    pub fn freeze(&self, folder: &Path, inventory: &str) {
        match self {
            Self::Memory { .. } => {}
            Self::Directory { path, .. } => {
                let copy = folder.join("sqlite.db");
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
                std::fs::write(folder.join("sqlite.txt"), inventory).unwrap();
            }
            Self::Schema { schema, url, .. } => {
                std::fs::write(folder.join("postgres.txt"), inventory).unwrap();
                std::fs::write(folder.join("postgres.schema"), schema).unwrap();
                let dumped = std::process::Command::new("pg_dump")
                    .args(["--inserts", "--rows-per-insert=50", "--no-owner", "--no-privileges", "--no-comments"])
                    .args([format!("--schema={schema}"), format!("--dbname={url}")])
                    .arg(format!("--file={}", folder.join("postgres.dump").display()))
                    .status();
                assert!(dumped.unwrap().success(), "pg_dump failed");
            }
        }
    }

    pub async fn second(&self, first: &Arc<dyn Store>) -> Arc<dyn Store> {
        match self {
            Self::Memory { .. } | Self::Directory { .. } => first.clone(),
            Self::Schema { url, schema, .. } => Arc::new(postgres_store(url, schema).await),
        }
    }

    pub async fn close(self) {
        match self {
            Self::Memory { .. } => {}
            Self::Directory { directory, .. } => std::fs::remove_dir_all(directory).unwrap(),
            Self::Schema { store, .. } => store.drop_schema().await.unwrap(),
        }
    }

    /// Makes the counters of all slots wrong. False where there is no way in
    /// but the store's own, which does no such thing.
    pub async fn spoil_slots(&self) -> bool {
        self.sql(SPOIL_SLOTS).await
    }

    /// Has all runs wait for nobody. False as with slots.
    pub async fn spoil_joins(&self) -> bool {
        self.sql(SPOIL_JOINS).await
    }

    /// Ties a run to one that never was. False as with slots.
    pub async fn tie_to_nobody(&self, waiter: RunId) -> bool {
        let id = waiter.0.simple();
        let (id, nobody) = match self {
            Self::Schema { .. } => (format!("'{id}'"), format!("'{}'", uuid::Uuid::now_v7())),
            _ => (format!("x'{id}'"), format!("x'{}'", uuid::Uuid::now_v7().simple())),
        };
        let tie = format!("INSERT INTO need (needed, waiter) VALUES ({nobody}, {id})");
        self.sql(&format!("{tie}; UPDATE run SET pending = pending + 1 WHERE id = {id}")).await
    }

    /// Writes a row into the inbox, as a caller's own transaction does.
    pub async fn put_inbox(&self, at: Timestamp, body: &str) -> bool {
        self.sql(&format!("INSERT INTO inbox (at, body) VALUES ({}, '{body}')", at.as_microsecond())).await
    }

    /// Every table and how many rows it has; none where there is no way in but the
    /// store's own.
    pub async fn rows(&self) -> Option<Vec<(String, i64)>> {
        match self {
            Self::Memory { .. } => None,
            Self::Directory { path, .. } => {
                let connection = rusqlite::Connection::open(path).unwrap();
                let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY 1";
                let mut select = connection.prepare(sql).unwrap();
                let tables: Vec<String> =
                    select.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
                let count = |table: &str| {
                    connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
                };
                Some(tables.into_iter().map(|table| (table.clone(), count(&table))).collect())
            }
            Self::Schema { url, schema, .. } => {
                let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
                let talking = tokio::spawn(connection);
                let sql = "SELECT relname::text FROM pg_class WHERE relnamespace = $1::text::regnamespace \
                           AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY 1";
                let mut counted = Vec::new();
                for row in client.query(sql, &[&schema]).await.unwrap() {
                    let table: String = row.get(0);
                    let sql = format!("SELECT count(*) FROM {schema}.{table}");
                    counted.push((table, client.query_one(&sql, &[]).await.unwrap().get(0)));
                }
                drop(client);
                talking.await.unwrap().unwrap();
                Some(counted)
            }
        }
    }

    /// A run's id as the store's own SQL writes it.
    pub fn id(&self, run: RunId) -> String {
        match self {
            Self::Schema { .. } => format!("'{}'", run.0),
            Self::Memory { .. } | Self::Directory { .. } => format!("x'{}'", run.0.simple()),
        }
    }

    /// Breaks what is stored.
    pub async fn sql(&self, sql: &str) -> bool {
        match self {
            Self::Memory { store } => {
                store.execute_raw(sql).await.unwrap();
                true
            }
            Self::Directory { path, .. } => {
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                connection.execute_batch(sql).unwrap();
                true
            }
            Self::Schema { store, .. } => {
                store.execute_raw(sql).await.unwrap();
                true
            }
        }
    }
}

/// Stands for the schema in a sample.
const FROZEN_SCHEMA: &str = "frozen_schema";

fn server() -> String {
    std::env::var("ROTA_TEST_POSTGRES")
        .expect("ROTA_TEST_POSTGRES names no server: run `make test`, or `eval \"$(scripts/services env)\"` first")
}

fn new_schema() -> String {
    format!("t_{}", uuid::Uuid::now_v7().simple())
}

fn new_directory() -> PathBuf {
    let directory = std::env::temp_dir().join(format!("rota-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// No release has had this number yet.
const LATER: i64 = 9_999;

fn extend_file(path: &Path) {
    let connection = rusqlite::Connection::open(path).unwrap();
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'";
    let mut select = connection.prepare(sql).unwrap();
    let tables: Vec<String> = select.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    for table in tables {
        connection.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN later TEXT DEFAULT 'later'")).unwrap();
    }
    connection.execute_batch("CREATE TABLE later (what TEXT)").unwrap();
    connection.pragma_update(None, "user_version", LATER).unwrap();
}

const EXTEND_SCHEMA: &str = "
    INSERT INTO migration (version, checksum) VALUES (9999, 0);
    DO $$ DECLARE t text; BEGIN
        FOR t IN SELECT c.oid::regclass::text FROM pg_class c
            WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        LOOP EXECUTE format('ALTER TABLE %s ADD COLUMN later text DEFAULT ''later''', t); END LOOP;
    END $$;
    CREATE TABLE later (what text)";

/// Few connections: many cases run at once against one server.
async fn postgres_store(url: &str, schema: &str) -> PostgresStore {
    let options = postgres::Options {
        schema: Some(schema.to_owned()),
        work_connections: 4,
        lease_connections: 1,
        ..postgres::Options::default()
    };
    PostgresStore::open(url, options).await.unwrap()
}
