//! The one writer: a thread that owns the writing connection.
//!
//! Work queues up and is committed in groups: at once when the writer is idle,
//! together with whatever else has come while a commit was in flight. A group
//! is cut after about 10 ms of work. Leases and settlements go before bulk
//! loads and upkeep. An answer leaves only after its commit.
//!
//! A failed piece of work is rolled back alone; the rest of its group goes on.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rota_core::store::StoreError;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{history::Indexer, not_applied};

/// A group is committed after so much work.
const GROUP_TIME: Duration = Duration::from_millis(10);

/// After so long without work the writer fills the history's indexes.
const IDLE: Duration = Duration::from_millis(200);

/// What goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Leases, settlements, enqueues.
    Prompt,
    /// Bulk loads and upkeep.
    Patient,
}

type Deliver = Box<dyn FnOnce(Option<&str>) + Send>;
/// Given the connection, or the reason why there is none to be had.
type Work = Box<dyn FnOnce(Result<&Connection, &str>) -> (bool, Deliver) + Send>;

#[derive(Default)]
struct Queue {
    prompt: VecDeque<Work>,
    patient: VecDeque<Work>,
    closed: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.prompt.is_empty() && self.patient.is_empty()
    }

    fn pop(&mut self) -> Option<Work> {
        self.prompt.pop_front().or_else(|| self.patient.pop_front())
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

/// The handle through which work reaches the thread.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Writer {
    pub fn start(connection: Connection) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("rota-sqlite-writer".into()).spawn(move || run(&theirs, connection))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Runs `work` in the next group and answers after its commit.
    pub async fn write<T: Send + 'static>(
        &self,
        what: &'static str,
        urgency: Urgency,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (send, receive) = oneshot::channel();
        let boxed: Work = Box::new(move |connection| {
            let result = match connection {
                Ok(connection) => work(connection),
                Err(reason) => Err(not_applied(what, reason.to_owned())),
            };
            let good = result.is_ok();
            let deliver: Deliver = Box::new(move |failed| {
                let answer = match failed {
                    Some(reason) if good => Err(not_applied(what, reason.to_owned())),
                    _ => result,
                };
                // A caller that went away does not want its answer.
                drop(send.send(answer));
            });
            (good, deliver)
        });
        {
            let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if queue.closed {
                return Err(not_applied(what, "the store is closed"));
            }
            match urgency {
                Urgency::Prompt => queue.prompt.push_back(boxed),
                Urgency::Patient => queue.patient.push_back(boxed),
            }
        }
        self.shared.ready.notify_one();
        receive.await.unwrap_or_else(|_| Err(not_applied(what, "the store's writer has stopped")))
    }
}

impl Drop for Writer {
    /// Commits what is queued and closes the file before the process goes on.
    fn drop(&mut self) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.shared.ready.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the SQLite writer panicked");
        }
    }
}

fn run(shared: &Shared, connection: Connection) {
    while let Some(first) = wait(shared, &connection) {
        group(shared, &connection, first);
    }
    if let Err((_, error)) = connection.close() {
        tracing::warn!(%error, "closing the SQLite file");
    }
}

/// The next piece of work; none when the store is closed and all is done.
/// An idle writer brings the history's indexes up to date.
fn wait(shared: &Shared, connection: &Connection) -> Option<Work> {
    let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(work) = queue.pop() {
            return Some(work);
        }
        if queue.closed {
            return None;
        }
        let (woken, idle) = shared.ready.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
        queue = woken;
        if idle.timed_out() && queue.is_empty() {
            drop(queue);
            idle_slice(connection);
            queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn idle_slice(connection: &Connection) {
    if Indexer::tail(connection) == 0 {
        return;
    }
    let done = begin(connection).and_then(|()| Indexer::slice(connection)).and_then(|_| commit(connection));
    if let Err(error) = done {
        tracing::warn!(%error, "bringing the history's indexes up to date");
        roll_back(connection);
    }
}

fn group(shared: &Shared, connection: &Connection, first: Work) {
    let started = Instant::now();
    let mut answers: Vec<Deliver> = Vec::new();
    let mut next = Some(first);
    if let Err(error) = begin(connection) {
        let reason = error.to_string();
        if let Some(work) = next.take() {
            refuse(work, &reason);
        }
        return;
    }
    while let Some(work) = next.take() {
        answers.extend(one(connection, work, answers.is_empty()));
        if started.elapsed() < GROUP_TIME {
            next = shared.queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
        }
    }
    let indexed = if Indexer::overdue(connection) { Indexer::slice(connection) } else { Ok(0) };
    let failed = indexed.and_then(|_| commit(connection)).err().map(|error| {
        roll_back(connection);
        error.to_string()
    });
    for answer in answers {
        answer(failed.as_deref());
    }
}

/// Runs one piece of work so that its failure leaves no trace. The first of a
/// group needs no savepoint: the whole transaction is its own.
fn one(connection: &Connection, work: Work, alone: bool) -> Option<Deliver> {
    if alone {
        let (good, deliver) = work(Ok(connection));
        if good {
            return Some(deliver);
        }
        roll_back(connection);
        deliver(None);
        if let Err(error) = begin(connection) {
            tracing::error!(%error, "beginning a transaction");
        }
        return None;
    }
    if let Err(error) = connection.execute_batch("SAVEPOINT work") {
        refuse(work, &error.to_string());
        return None;
    }
    let (good, deliver) = work(Ok(connection));
    let end = if good { "RELEASE work" } else { "ROLLBACK TO work; RELEASE work" };
    match connection.execute_batch(end) {
        Ok(()) if good => Some(deliver),
        Ok(()) => {
            deliver(None);
            None
        }
        Err(error) => {
            deliver(Some(&error.to_string()));
            None
        }
    }
}

/// Answers work that cannot be tried.
fn refuse(work: Work, reason: &str) {
    let (_, deliver) = work(Err(reason));
    deliver(None);
}

fn begin(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
}

fn commit(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("COMMIT")?.execute([]).map(drop)
}

fn roll_back(connection: &Connection) {
    if !connection.is_autocommit()
        && let Err(error) = connection.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "rolling back");
    }
}
