//! How a store is opened: the one way of `rota serve`, of benchmarks and of Rota inside a
//! program.

use std::{path::Path, sync::Arc};

use rota_core::store::Store;
use rota_engine::{clock::SystemClock, hints::LocalHints};
use rota_store::{
    postgres::{self, PostgresHints, PostgresStore},
    sqlite::{self, SqliteStore},
};

/// Where a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    Memory,
    File(&'a Path),
    /// A URL.
    Postgres(&'a str),
}

impl<'a> Place<'a> {
    /// `sqlite:PATH`, `sqlite::memory:` or `postgres://…`. None where it is none of them.
    pub fn parse(address: &'a str) -> Option<Self> {
        match address.strip_prefix("sqlite:") {
            Some(":memory:") => Some(Self::Memory),
            Some(path) if !path.is_empty() => Some(Self::File(Path::new(path))),
            None if address.starts_with("postgres://") || address.starts_with("postgresql://") => {
                Some(Self::Postgres(address))
            }
            Some(_) | None => None,
        }
    }
}

/// A store, and what reaches the other nodes on it where there may be any.
pub struct Opened {
    pub store: Arc<dyn Store>,
    pub hints: Option<Arc<PostgresHints>>,
}

/// Why a store was not opened, in the words of the store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Sqlite(#[from] sqlite::OpenError),
    #[error(transparent)]
    Postgres(#[from] postgres::OpenError),
}

/// Opens a store, making what it needs on the way. The options are those of PostgreSQL.
pub async fn open(place: Place<'_>, options: postgres::Options) -> Result<Opened, OpenError> {
    let alone = |store| Opened { store: Arc::new(store), hints: None };
    match place {
        Place::Memory => Ok(alone(SqliteStore::memory()?)),
        Place::File(path) => Ok(alone(SqliteStore::open(path, sqlite::Options::default()).await?)),
        Place::Postgres(url) => {
            let store = PostgresStore::open(url, options).await?;
            let hints = store.hints(Arc::new(LocalHints::default()), Arc::new(SystemClock::new()));
            Ok(Opened { store: Arc::new(store), hints: Some(Arc::new(hints)) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_file_memory_or_a_database() {
        for (address, place) in [
            ("sqlite::memory:", Some(Place::Memory)),
            ("sqlite:a/b.db", Some(Place::File(Path::new("a/b.db")))),
            ("postgres://h/d", Some(Place::Postgres("postgres://h/d"))),
            ("postgresql://h/d", Some(Place::Postgres("postgresql://h/d"))),
            ("sqlite:", None),
            ("mysql://h/d", None),
            ("", None),
        ] {
            assert_eq!(Place::parse(address), place, "{address}");
        }
    }
}
