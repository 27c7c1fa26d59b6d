//! What only the embedded store promises: one process per file, durability, and
//! a writer whose groups stand or fall piece by piece.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{path::PathBuf, sync::Arc};

use jiff::Timestamp;
use rota_core::{
    ids::{BatchId, RunId, TenantId},
    store::{Ends, EnqueueStore, Pause, PauseStore, PauseTarget, RunStore, TenantPut, TenantStore, Tier, Write},
};
use rota_store::sqlite::{OpenError, Options, SqliteStore};
use uuid::Uuid;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("rota-store-{}", Uuid::now_v7()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("rota.db")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

async fn open(folder: &Folder) -> Result<SqliteStore, OpenError> {
    SqliteStore::open(&folder.file(), Options::default()).await
}

fn tenant(name: &str) -> TenantPut {
    TenantPut { name: name.into(), tier: Tier::Free, quotas: None }
}

fn write(now: Timestamp) -> Write {
    Write {
        batch: BatchId(Uuid::now_v7()),
        now,
        node: None,
        generation: 0,
        request: None,
        ends: Ends::default(),
        dry_run: false,
    }
}

/// Others on the machine must not read payloads and digests beside the node.
#[tokio::test]
async fn a_new_database_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new();
    let store = open(&folder).await.unwrap();
    store.put_tenants(&[tenant("a")], Timestamp::UNIX_EPOCH).await.unwrap();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder.0).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        names.push(name);
    }
    names.sort();
    assert_eq!(names, ["rota.db", "rota.db-shm", "rota.db-wal", "rota.db.lock"]);
}

/// Two processes on one file would each believe they own every partition.
#[tokio::test]
async fn a_second_opener_is_refused_and_told_why() {
    let folder = Folder::new();
    let first = open(&folder).await.unwrap();
    let Err(refused) = open(&folder).await else { panic!("opened twice") };
    assert!(matches!(refused, OpenError::InUse(_)), "{refused:?}");
    assert!(refused.to_string().contains("in use by another rota process"), "{refused}");
    drop(first);
    open(&folder).await.unwrap();
}

/// An answer must mean that it is on disk.
#[tokio::test]
async fn what_was_answered_is_there_after_reopening() {
    let folder = Folder::new();
    let store = open(&folder).await.unwrap();
    let ids = store.put_tenants(&[tenant("a"), tenant("b")], Timestamp::UNIX_EPOCH).await.unwrap();
    drop(store);
    let store = open(&folder).await.unwrap();
    let found: Vec<TenantId> = store.tenants().await.unwrap().into_iter().map(|tenant| tenant.id).collect();
    assert_eq!(found, ids);
}

/// Whoever stops it and copies the one file has everything, and no long log is left
/// lying about.
#[tokio::test]
async fn a_store_that_is_closed_leaves_no_log_beside_its_file() {
    let folder = Folder::new();
    let store = open(&folder).await.unwrap();
    store.put_tenants(&[tenant("a")], Timestamp::UNIX_EPOCH).await.unwrap();
    // So that a reader's connection is open, too.
    store.tenants().await.unwrap();
    let log = folder.file().with_extension("db-wal");
    assert!(log.exists(), "{} is where the log is", log.display());
    drop(store);
    assert!(!log.exists());
}

/// An older binary could undo what it does not know of.
#[tokio::test]
async fn a_file_is_refused_once_a_later_release_says_that_this_one_may_not_use_it() {
    let folder = Folder::new();
    drop(open(&folder).await.unwrap());
    let connection = rusqlite::Connection::open(folder.file()).unwrap();
    connection.pragma_update(None, "user_version", 9_999).unwrap();
    drop(open(&folder).await.unwrap());
    connection.execute("UPDATE compatibility SET oldest = 9998", []).unwrap();
    drop(connection);
    let Err(refused) = open(&folder).await else { panic!("opened a newer file") };
    assert!(matches!(refused, OpenError::Newer { found: 9_999, .. }), "{refused:?}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let folder = Folder::new();
    std::fs::write(folder.file(), "this is not a database, whatever its name says").unwrap();
    let Err(refused) = open(&folder).await else { panic!("opened a text file") };
    assert!(matches!(refused, OpenError::Sqlite { .. }), "{refused:?}");
}

/// Writes that are committed together must not fail together.
#[tokio::test]
async fn a_failing_write_takes_no_other_along() {
    let folder = Folder::new();
    let store = Arc::new(open(&folder).await.unwrap());
    let now = Timestamp::UNIX_EPOCH;
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                if n % 4 == 0 {
                    // There is no such row in the inbox, so this one fails.
                    store.enqueue(&write(now), &[], &[n]).await.is_ok()
                } else {
                    store.put_tenants(&[tenant(&format!("t{n}"))], now).await.is_ok()
                }
            })
        })
        .collect();
    let mut good = 0;
    for task in tasks {
        good += usize::from(task.await.unwrap());
    }
    assert_eq!(good, 48);
    assert_eq!(store.tenants().await.unwrap().len(), 48);
}

/// Readers work beside the writer and see whole commits.
#[tokio::test]
async fn a_reader_sees_commits_whole() {
    let folder = Folder::new();
    let store = Arc::new(open(&folder).await.unwrap());
    let tenants = store.put_tenants(&[tenant("a"), tenant("b")], Timestamp::UNIX_EPOCH).await.unwrap();
    let targets: Vec<PauseTarget> = tenants.into_iter().map(PauseTarget::Tenant).collect();
    let pause = Pause { since: Timestamp::UNIX_EPOCH, ..Pause::default() };
    let writing = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for n in 0..200 {
                let pause = (n % 2 == 0).then_some(&pause);
                store.set_pauses(&write(Timestamp::UNIX_EPOCH), &targets, pause).await.unwrap();
            }
        })
    };
    while !writing.is_finished() {
        let seen = store.pauses().await.unwrap().pauses.len();
        assert!(seen == 0 || seen == 2, "half a commit was seen");
    }
    writing.await.unwrap();
    assert_eq!(store.runs(&[RunId(Uuid::nil())]).await.unwrap(), [None]);
}
