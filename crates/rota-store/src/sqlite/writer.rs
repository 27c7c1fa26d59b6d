//! The one writer: a thread that owns the writing connection.
//!
//! Work queues up and is committed in groups: at once when the writer is idle,
//! together with whatever else has come while a commit was in flight. A group
//! is cut after about 10 ms of work. Leases and settlements go before bulk
//! loads and upkeep; guests have a queue of their own, and take turns with the
//! node's stages. An answer leaves only after its commit.
//!
//! A group in which one piece of work fails is rolled back and done again piece
//! by piece, so that a failure takes nobody along. Work can therefore be run
//! twice; savepoints would spare that, and cost every group instead.

use std::{
    collections::VecDeque,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rota_core::store::StoreError;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{checkpoint::Checkpointer, history::Indexer, not_applied, unreadable::set_aside};
use crate::{
    failpoint::{self, Moment},
    guests::is_guest,
    unreadable::{self, Notes},
};

/// A group is committed after so much work.
const GROUP_TIME: Duration = Duration::from_millis(10);
/// So long the stages' own work joins it still: under load their next batches are
/// there by then, and touch the same pages. Nobody else is kept waiting for them.
const GROUP_TIME_MAX: Duration = Duration::from_millis(40);

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

/// A piece of work, and the one who waits for its answer.
trait Work: Send {
    /// Does it; true when it went well.
    fn run(&mut self, connection: &Connection) -> bool;
    /// Where it changed something, this is a point to die at.
    fn pass(&self, moment: Moment);
    /// Answers, after the commit or with the reason why there was none.
    fn answer(self: Box<Self>, failed: Option<&str>);
}

struct Piece<T, F> {
    what: &'static str,
    work: F,
    changed: bool,
    result: Option<Result<T, StoreError>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: Fn(&Connection) -> Result<T, StoreError> + Send> Work for Piece<T, F> {
    fn run(&mut self, connection: &Connection) -> bool {
        let before = connection.total_changes();
        let result = (self.work)(connection);
        self.changed = connection.total_changes() != before;
        let good = result.is_ok();
        self.result = Some(result);
        good
    }

    fn pass(&self, moment: Moment) {
        if self.changed {
            failpoint::pass(self.what, moment);
        }
    }

    fn answer(self: Box<Self>, failed: Option<&str>) {
        let answer = match (self.result, failed) {
            (Some(Err(error)), _) => Err(error),
            (_, Some(reason)) => Err(not_applied(self.what, reason.to_owned())),
            (Some(done), None) => done,
            (None, None) => Err(not_applied(self.what, "it was not tried")),
        };
        // A caller that went away does not want its answer.
        drop(self.answer.send(answer));
    }
}

#[derive(Default)]
struct Queue {
    prompt: VecDeque<Box<dyn Work>>,
    guests: VecDeque<Box<dyn Work>>,
    patient: VecDeque<Box<dyn Work>>,
    /// A guest is next, if one waits.
    guest_next: bool,
    closed: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.prompt.is_empty() && self.guests.is_empty() && self.patient.is_empty()
    }

    /// What joins a group that is so old.
    fn pop_after(&mut self, elapsed: Duration) -> Option<Box<dyn Work>> {
        if elapsed < GROUP_TIME {
            self.pop()
        } else if elapsed < GROUP_TIME_MAX && self.guests.is_empty() {
            self.prompt.pop_front()
        } else {
            None
        }
    }

    /// Stages and guests take turns: a stage waits for one guest at most, however
    /// many there are, and a busy node still answers.
    fn pop(&mut self) -> Option<Box<dyn Work>> {
        let guest_next = std::mem::replace(&mut self.guest_next, false);
        if guest_next && let Some(work) = self.guests.pop_front() {
            return Some(work);
        }
        if let Some(work) = self.prompt.pop_front() {
            self.guest_next = true;
            return Some(work);
        }
        self.guests.pop_front().or_else(|| self.patient.pop_front())
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
    notes: Arc<Notes>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Writer {
    /// `checkpointer` is there for a file, and not in memory.
    pub fn start(
        connection: Connection,
        checkpointer: Option<Checkpointer>,
        notes: Arc<Notes>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (theirs, for_thread) = (Arc::clone(&shared), Arc::clone(&notes));
        let thread = thread::Builder::new().name("rota-sqlite-writer".into()).spawn(move || {
            unreadable::note_on_thread(&for_thread);
            let written = panic::catch_unwind(AssertUnwindSafe(|| run(&theirs, connection, checkpointer)));
            if written.is_err() {
                end_the_process();
            }
        })?;
        Ok(Self { shared, notes, thread: Mutex::new(Some(thread)) })
    }

    /// Runs `work` in the next group and answers after its commit. A live run that it
    /// could not read is set aside before the next one meets it.
    pub async fn write<T: Send + 'static>(
        &self,
        what: &'static str,
        urgency: Urgency,
        work: impl Fn(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let answer = self.queue(what, urgency, work).await;
        self.set_aside().await;
        answer
    }

    /// Sets aside the live runs that could not be read since this was last done. Where
    /// that fails, whoever meets them next does it.
    pub async fn set_aside(&self) {
        if self.notes.take_fresh() {
            let runs = self.notes.take_runs();
            let notes = Arc::clone(&self.notes);
            let work = move |connection: &Connection| set_aside(connection, &notes, &runs);
            if let Err(error) = self.queue("set rows aside", Urgency::Prompt, work).await {
                tracing::warn!(%error, "setting aside rows that cannot be read");
            }
        }
    }

    async fn queue<T: Send + 'static>(
        &self,
        what: &'static str,
        urgency: Urgency,
        work: impl Fn(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, receive) = oneshot::channel();
        let piece = Box::new(Piece { what, work, changed: false, result: None, answer });
        {
            let mut queue = self.shared.queue.lock();
            if queue.closed {
                return Err(not_applied(what, "the store is closed"));
            }
            match urgency {
                Urgency::Prompt if is_guest() => queue.guests.push_back(piece),
                Urgency::Prompt => queue.prompt.push_back(piece),
                Urgency::Patient => queue.patient.push_back(piece),
            }
        }
        self.shared.ready.notify_one();
        match receive.await {
            Ok(answer) => answer,
            // Every piece is answered, unless the writer panicked. Whether this one was
            // committed is not known then, and the process is about to end: nobody is told
            // anything, and nobody gets to go on.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Writer {
    /// Commits what is queued and closes the file before the process goes on.
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.ready.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the SQLite writer panicked");
        }
    }
}

/// A writer that panicked, as its message on the standard error tells, leaves everybody
/// waiting for answers and a transaction that nobody ends. What was committed is safe, so
/// the process ends, and whoever started it starts it again.
#[expect(clippy::print_stderr, reason = "the last word of a process whose log may not be written any more")]
fn end_the_process() -> ! {
    tracing::error!("the SQLite writer panicked: the process ends, and what was committed is safe");
    eprintln!("rota: the SQLite writer panicked; the process ends, and what was committed is safe");
    std::process::abort()
}

fn run(shared: &Shared, connection: Connection, checkpointer: Option<Checkpointer>) {
    let mut writing = Writing { connection: &connection, indexer: Indexer::default(), checkpointer };
    while let Some(first) = writing.wait(shared) {
        writing.group(shared, first);
    }
    // Before the connection, so that the last one to close is the writer's.
    drop(writing);
    if let Err((_, error)) = connection.close() {
        tracing::warn!(%error, "closing the SQLite file");
    }
}

/// The writing thread at work.
struct Writing<'c> {
    connection: &'c Connection,
    indexer: Indexer,
    checkpointer: Option<Checkpointer>,
}

impl Writing<'_> {
    /// The next piece of work; none when the store is closed and all is done.
    /// An idle writer brings the history's indexes up to date.
    fn wait(&mut self, shared: &Shared) -> Option<Box<dyn Work>> {
        let mut queue = shared.queue.lock();
        loop {
            if let Some(work) = queue.pop() {
                return Some(work);
            }
            if queue.closed {
                return None;
            }
            let idle = shared.ready.wait_for(&mut queue, IDLE);
            if idle.timed_out() && queue.is_empty() {
                drop(queue);
                self.idle_slice();
                queue = shared.queue.lock();
            }
        }
    }

    fn idle_slice(&mut self) {
        let done = match self.indexer.is_due(self.connection, true) {
            Ok(false) => return,
            Ok(true) => begin(self.connection)
                .and_then(|()| self.indexer.slice(self.connection))
                .and_then(|_| commit(self.connection)),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "bringing the history's indexes up to date");
            self.roll_back();
        }
    }

    fn group(&mut self, shared: &Shared, first: Box<dyn Work>) {
        let started = Instant::now();
        let mut done: Vec<Box<dyn Work>> = Vec::new();
        let mut next = Some(first);
        let mut good = begin(self.connection).is_ok();
        while let Some(mut work) = next.take() {
            good = good && work.run(self.connection);
            done.push(work);
            if good {
                let mut queue = shared.queue.lock();
                next = queue.pop_after(started.elapsed());
            }
        }
        if good {
            let failed = self.finish(&done).err().map(|error| error.to_string());
            for work in done {
                work.answer(failed.as_deref());
            }
            self.committed();
            return;
        }
        self.roll_back();
        for work in done {
            self.alone(work);
        }
    }

    /// Commits what was done, with a slice of indexing where that is due.
    fn finish(&mut self, work: &[Box<dyn Work>]) -> rusqlite::Result<()> {
        let indexed = match self.indexer.is_due(self.connection, false) {
            Ok(true) => self.indexer.slice(self.connection).map(drop),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        for work in work {
            work.pass(Moment::Written);
        }
        indexed.and_then(|()| commit(self.connection)).inspect_err(|_| self.roll_back())?;
        for work in work {
            work.pass(Moment::Committed);
        }
        Ok(())
    }

    /// Does one piece of work in a transaction of its own.
    fn alone(&mut self, work: Box<dyn Work>) {
        let mut alone = [work];
        let done = begin(self.connection).and_then(|()| {
            if alone[0].run(self.connection) {
                self.finish(&alone)
            } else {
                self.roll_back();
                Ok(())
            }
        });
        let [work] = alone;
        work.answer(done.err().map(|error| error.to_string()).as_deref());
        self.committed();
    }

    /// After the answers, so that nobody waits for it but who comes next.
    fn committed(&mut self) {
        if let Some(checkpointer) = &mut self.checkpointer {
            checkpointer.committed(self.connection);
        }
    }

    fn roll_back(&mut self) {
        self.indexer.forget();
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "rolling back");
        }
    }
}

fn begin(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
}

fn commit(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("COMMIT")?.execute([]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Work for Named {
        fn run(&mut self, _: &Connection) -> bool {
            true
        }

        fn pass(&self, _: Moment) {}

        fn answer(self: Box<Self>, _: Option<&str>) {
            self.1.lock().push(self.0);
        }
    }

    const DIES: &str = "ROTA_TEST_WRITER_PANICS";

    /// In a process of its own: the one that dies.
    #[tokio::test]
    async fn the_process_whose_writer_panics() {
        if std::env::var_os(DIES).is_none() {
            return;
        }
        let writer = Writer::start(Connection::open_in_memory().unwrap(), None, Arc::default()).unwrap();
        let work = |_: &Connection| -> Result<(), StoreError> { panic!("a bug in the store") };
        drop(writer.write("panic", Urgency::Prompt, work).await);
        println!("still here");
    }

    /// Nobody may wait for a writer that is gone, and nobody start again beside a
    /// transaction that it left open.
    #[test]
    fn a_writer_that_panics_ends_its_process_and_says_so() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "sqlite::writer::tests::the_process_whose_writer_panics", "--nocapture"]);
        let output = child.env(DIES, "1").output().unwrap();
        assert!(!output.status.success());
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!out.contains("still here"), "{out}");
        assert!(error.contains("the SQLite writer panicked; the process ends"), "{error}");
    }

    /// A commit that is put off for the stages keeps nobody else waiting, and not for ever.
    #[test]
    fn only_the_stages_own_work_joins_an_old_group() {
        let mut queue = Queue::default();
        let work = || Box::new(Named("work", Arc::default()));
        queue.patient.push_back(work());
        assert!(queue.pop_after(GROUP_TIME).is_none(), "patient work waits for the next");
        queue.prompt.extend([work() as Box<dyn super::Work>, work(), work()]);
        assert!(queue.pop_after(GROUP_TIME).is_some());
        assert!(queue.pop_after(GROUP_TIME_MAX).is_none(), "it is committed some time");
        queue.guests.push_back(work());
        assert!(queue.pop_after(GROUP_TIME).is_none(), "a guest waits");
        assert!(queue.pop_after(Duration::ZERO).is_some());
    }

    /// A flood of requests must not stand between a stage and its commit, nor a busy
    /// node leave requests without an answer.
    #[test]
    fn stages_and_guests_take_turns() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut queue = Queue::default();
        let named = |name| Box::new(Named(name, Arc::clone(&order)));
        for _ in 0..5 {
            queue.guests.push_back(named("guest"));
        }
        queue.patient.push_back(named("upkeep"));
        for _ in 0..3 {
            queue.prompt.push_back(named("stage"));
        }
        while let Some(work) = queue.pop() {
            work.answer(None);
        }
        let expected = ["stage", "guest", "stage", "guest", "stage", "guest", "guest", "guest", "upkeep"];
        assert_eq!(*order.lock(), expected);
        assert!(queue.is_empty());
    }
}
