//! Moves what the write-ahead log holds into the file, beside the writer.
//!
//! A checkpoint inside a commit makes everyone wait while tens of megabytes
//! are written and synced, leases included. Here a thread with a connection of
//! its own does that while the writer goes on. The log can begin anew only when
//! nothing is left to move, and a busy writer always leaves something; so when
//! little is left the writer is told, and moves that itself.
//!
//! Nothing here is needed for what is committed to last: the log alone is.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rusqlite::{Connection, DEFAULT_NAME, wal::CheckpointMode};

/// A log of so many pages is worth moving.
const BEGIN: usize = 4_000;

/// So few pages are left to the writer.
const REST: usize = 500;

/// A writer faster than the disk is told after so many rounds all the same.
const ROUNDS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nobody: the log is short, or was moved up to this length.
    Nobody,
    /// The thread is to move, or is moving.
    Thread,
    /// The writer is to move the rest.
    Writer,
    Closed,
}

struct Shared {
    turn: Mutex<Turn>,
    ready: Condvar,
    /// The length of the log in pages, as of the last commit.
    pages: AtomicUsize,
}

impl Shared {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock()
    }
}

/// The writer's side.
pub struct Checkpointer {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
    /// How long the log was when it was last moved as a whole, while it has
    /// not begun anew: a reader may hold it back.
    moved: usize,
}

impl Checkpointer {
    /// Starts the thread for the file that `writer` writes to.
    pub fn start(path: &Path, writer: &mut Connection) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let connection = Connection::open(path)?;
        connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;")?;
        let shared =
            Arc::new(Shared { turn: Mutex::new(Turn::Nobody), ready: Condvar::new(), pages: AtomicUsize::new(0) });
        let counted = Arc::clone(&shared);
        // Takes the place of the checkpoint inside a commit.
        writer.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages: i32| {
            counted.pages.store(pages.max(0) as usize, Ordering::Relaxed);
            Ok(())
        }))?;
        let theirs = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("rota-sqlite-checkpoint".into()).spawn(move || run(&theirs, &connection))?;
        Ok(Self { shared, thread: Some(thread), moved: 0 })
    }

    /// What a commit may call for.
    pub fn committed(&mut self, writer: &Connection) {
        let pages = self.shared.pages.load(Ordering::Relaxed);
        if pages < self.moved {
            self.moved = 0;
        }
        if pages < self.moved + BEGIN {
            return;
        }
        let mut turn = self.shared.turn();
        match *turn {
            Turn::Nobody => {
                *turn = Turn::Thread;
                self.shared.ready.notify_one();
            }
            Turn::Writer => {
                move_pages(writer);
                self.moved = pages;
                *turn = Turn::Nobody;
            }
            Turn::Thread | Turn::Closed => {}
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        *self.shared.turn() = Turn::Closed;
        self.shared.ready.notify_one();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the SQLite checkpointer panicked");
        }
    }
}

fn run(shared: &Shared, connection: &Connection) {
    loop {
        let mut turn = shared.turn();
        while !matches!(*turn, Turn::Thread | Turn::Closed) {
            shared.ready.wait(&mut turn);
        }
        if *turn == Turn::Closed {
            return;
        }
        drop(turn);
        for _ in 0..ROUNDS {
            let moved = move_pages(connection);
            let left = shared.pages.load(Ordering::Relaxed).saturating_sub(moved);
            if left < REST || *shared.turn() == Turn::Closed {
                break;
            }
        }
        let mut turn = shared.turn();
        if *turn == Turn::Thread {
            *turn = Turn::Writer;
        }
    }
}

/// Moves what can be moved without making anyone wait, and answers how many
/// pages of the log are moved now.
fn move_pages(connection: &Connection) -> usize {
    match connection.wal_checkpoint_v2(DEFAULT_NAME, CheckpointMode::PASSIVE) {
        Ok((_, moved)) => moved.max(0) as usize,
        Err(error) => {
            tracing::warn!(%error, "moving the SQLite log into the file");
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log that never began anew would grow until the disk is full.
    #[test]
    fn the_log_begins_anew_under_a_writer_that_never_rests() {
        let dir = std::env::temp_dir().join(format!("rota-checkpoint-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("file.db");
        let mut writer = Connection::open(&path).unwrap();
        writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB)").unwrap();
        let mut checkpointer = Checkpointer::start(&path, &mut writer).unwrap();
        let mut longest = 0;
        loop {
            writer.execute("INSERT INTO t (body) VALUES (zeroblob(1000000))", []).unwrap();
            checkpointer.committed(&writer);
            let pages = checkpointer.shared.pages.load(Ordering::Relaxed);
            if pages < longest {
                break;
            }
            longest = pages;
            assert!(longest < 100 * BEGIN, "the log grows and grows");
        }
        drop(checkpointer);
        drop(writer);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
