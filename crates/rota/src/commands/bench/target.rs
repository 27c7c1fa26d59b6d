//! The store that a benchmark measures: where it is, how it is opened, and what
//! can be asked of it besides the port.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use rota_core::store::Store;
use rota_embed::store::{self, Place};
use rota_store::{RawLoad, postgres, sqlite};

use super::scratch;
use crate::{clock, failure::Failure, printer::Printer};

pub enum Target {
    Sqlite {
        path: PathBuf,
        /// Made for this benchmark, and deleted after it.
        ours: bool,
    },
    Postgres {
        url: String,
    },
}

impl Target {
    pub fn parse(url: Option<&str>, printer: &mut Printer) -> Result<Self, Failure> {
        match url {
            None => {
                let path = scratch::folder().join(format!("rota-bench-{}.db", std::process::id()));
                printer.note(&format!("measuring on {}, which is deleted afterwards", path.display()))?;
                Ok(Self::Sqlite { path, ours: true })
            }
            Some(url) => match url.strip_prefix("sqlite:") {
                Some(path) if !path.is_empty() => Ok(Self::Sqlite { path: path.into(), ours: false }),
                _ if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                    Ok(Self::Postgres { url: url.to_owned() })
                }
                _ => Err(Failure::bad_input("bad_store", format!("`{url}` is not sqlite:PATH or postgres://…"))),
            },
        }
    }

    pub fn default_parallel(&self) -> u64 {
        match self {
            Self::Sqlite { .. } | Self::Postgres { .. } => 2,
        }
    }

    pub async fn open(&self) -> Result<Arc<dyn Store>, Failure> {
        let place = match self {
            Self::Sqlite { path, .. } => Place::File(path),
            Self::Postgres { url } => Place::Postgres(url),
        };
        Ok(store::open(place, postgres::Options::default()).await.context("opening the store")?.store)
    }

    /// Runs the raw loop; nobody may have the store open.
    pub async fn raw(&self, load: RawLoad, parallel: u64) -> Result<Duration, Failure> {
        match self {
            Self::Sqlite { path, .. } => {
                let path = path.clone();
                // One commit takes what all pipelines have in flight, as the store's does.
                let load = RawLoad { batch: load.batch * parallel, ..load };
                let started = Instant::now();
                tokio::task::spawn_blocking(move || sqlite::raw_loop(&path, load, clock::now()))
                    .await
                    .context("running the raw loop")?
                    .context("running the raw loop")?;
                Ok(started.elapsed())
            }
            Self::Postgres { url } => {
                let started = Instant::now();
                postgres::raw_loop(url, load, parallel, clock::now()).await.context("running the raw loop")?;
                Ok(started.elapsed())
            }
        }
    }

    /// About how many finished runs there are.
    pub async fn history(&self, _store: &dyn Store) -> Result<u64, Failure> {
        match self {
            Self::Sqlite { path, .. } => {
                Ok(sqlite::history_len(path).map_err(|error| anyhow!(error)).context("counting history")?)
            }
            Self::Postgres { url } => Ok(postgres::history_len(url).await.context("counting history")?),
        }
    }

    /// Bytes written so far: by this process to files, or to the server's log.
    pub async fn bytes_written(&self, _store: &dyn Store) -> Result<Option<u64>, Failure> {
        match self {
            Self::Sqlite { .. } => Ok(written_by_this_process()),
            Self::Postgres { url } => Ok(Some(postgres::log_bytes(url).await.context("reading the log's length")?)),
        }
    }

    pub fn clean(&self) -> Result<(), Failure> {
        match self {
            Self::Sqlite { path, ours: true } => {
                for end in ["", "-wal", "-shm", ".lock"] {
                    remove(path, end)?;
                }
                Ok(())
            }
            Self::Sqlite { ours: false, .. } | Self::Postgres { .. } => Ok(()),
        }
    }
}

fn remove(path: &Path, end: &str) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    match std::fs::remove_file(name) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What the kernel counted; only Linux says.
fn written_by_this_process() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("wchar: "))?.trim().parse().ok()
}
