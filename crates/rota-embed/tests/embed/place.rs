//! Where a test's store lives: memory, a directory, or a schema of its own.

use std::path::PathBuf;

use rota_embed::{Builder, Rota};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

pub enum Place {
    Memory,
    Directory(PathBuf),
    Schema { url: String, schema: String },
}

impl Place {
    pub fn every() -> [Self; 3] {
        [Self::Memory, Self::directory(), Self::schema()]
    }

    pub fn directory() -> Self {
        let directory = std::env::temp_dir().join(format!("rota-{}", Uuid::now_v7()));
        std::fs::create_dir_all(&directory).unwrap();
        Self::Directory(directory)
    }

    pub fn schema() -> Self {
        let url = std::env::var("ROTA_TEST_POSTGRES")
            .expect("ROTA_TEST_POSTGRES names no server: run `make test`, or `eval \"$(scripts/services env)\"` first");
        Self::Schema { url, schema: format!("t_{}", Uuid::now_v7().simple()) }
    }

    pub fn open(&self) -> Builder {
        match self {
            Self::Memory => Rota::open("sqlite::memory:"),
            Self::Directory(directory) => Rota::open(format!("sqlite:{}", directory.join("rota.db").display())),
            // Few connections: many tests run at once against one server.
            Self::Schema { url, schema } => Rota::open(url).schema(schema).connections(4),
        }
    }

    /// A connection as a program has its own, to the same database.
    pub async fn client(&self) -> Client {
        let Self::Schema { url, .. } = self else { panic!("only PostgreSQL has other clients") };
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    pub async fn close(self) {
        match &self {
            Self::Memory => {}
            Self::Directory(directory) => std::fs::remove_dir_all(directory).unwrap(),
            Self::Schema { schema, .. } => {
                self.client().await.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await.unwrap();
            }
        }
    }
}
