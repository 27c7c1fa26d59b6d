//! The handle of a Rota at work.

use std::sync::Arc;

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{RunId, TenantId},
    job::JobDocument,
    ports::Topic,
    run::{RunState, Verdict},
    store::{CancelAnswer, Expect, RunRecord},
};
use rota_engine::{Cancel, Engine, Event, JobRef, Made, RunAsk, definitions::Saved};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{
    broadcast::{self, error::RecvError},
    watch,
};
use tokio_postgres::Transaction;

use crate::{Builder, Error};

/// The tenant of an installation that knows only one; `rota serve` and the SQL
/// function `rota_enqueue` call it so too.
pub const TENANT: &str = "default";

/// How long attempts under way may take when Rota stops.
const DRAIN: Span = Span::secs(30);

/// How a request gets into the inbox of a store, from outside.
#[derive(Clone, Debug)]
pub struct Inbox {
    sql: Arc<str>,
}

impl Inbox {
    pub fn of(schema: Option<&str>) -> Self {
        // A name with a quote in it was refused when the store was opened.
        let prefix = schema.map(|name| format!("\"{name}\".")).unwrap_or_default();
        let arguments = "job => $1::text, payload => $2::text::jsonb, tenant => $3::text, key => $4::text";
        Self { sql: format!("SELECT {prefix}rota_enqueue({arguments})").into() }
    }
}

/// A Rota at work in this process. Clones are the same Rota.
///
/// Dropping it stops nothing: [`Rota::stop`] does.
#[derive(Clone)]
pub struct Rota {
    engine: Engine,
    tenant: TenantId,
    inbox: Option<Inbox>,
    stopped: Arc<watch::Sender<bool>>,
}

impl Rota {
    /// Rota on the store at this address: `sqlite:PATH`, `sqlite::memory:` or
    /// `postgres://…`. Nothing is opened before [`Builder::start`].
    pub fn open(address: impl Into<String>) -> Builder {
        Builder::new(address.into())
    }

    pub(crate) fn new(engine: Engine, tenant: TenantId, inbox: Option<Inbox>) -> Self {
        Self { engine, tenant, inbox, stopped: Arc::new(watch::Sender::new(false)) }
    }

    /// Saves a job with its schedules: a [`Job`](crate::Job), or the document
    /// as JSON. One that did not change makes no new version, and a schedule
    /// that did not change keeps its place, so a program may save its jobs at
    /// each start.
    pub async fn save(&self, job: impl Into<Value>) -> Result<Saved, Error> {
        let document = JobDocument::from_value(job.into()).map_err(Error::Document)?;
        Ok(self.engine.save_job(self.tenant, &document, None, Expect::Anything).await?)
    }

    /// Makes a run of a job, now. The id is that of the run that does the
    /// work: where the job says that runs are unique, it may be an earlier one.
    ///
    /// A payload of null, as `()` has it, means the job's default.
    pub async fn enqueue(&self, job: &str, payload: impl Serialize) -> Result<RunId, Error> {
        let ask = self.ask(job, payload)?;
        self.make(job, ask).await
    }

    /// As [`Rota::enqueue`], for later.
    pub async fn enqueue_at(&self, job: &str, payload: impl Serialize, run_at: Timestamp) -> Result<RunId, Error> {
        let ask = self.ask(job, payload)?.at(run_at);
        self.make(job, ask).await
    }

    /// Makes a run for each payload, all in one transaction. Answers in their
    /// order; one that is refused takes no other along.
    pub async fn enqueue_many<P: Serialize>(
        &self,
        job: &str,
        payloads: impl IntoIterator<Item = P>,
    ) -> Result<Vec<Made>, Error> {
        let asks: Result<Vec<_>, _> = payloads.into_iter().map(|payload| self.ask(job, payload)).collect();
        Ok(self.engine.enqueue(asks?).await?)
    }

    fn ask(&self, job: &str, payload: impl Serialize) -> Result<RunAsk, Error> {
        let payload = serde_json::to_value(payload).map_err(Error::Payload)?;
        let ask = RunAsk::of(self.tenant, JobRef::Name(job.to_owned()));
        Ok(RunAsk { payload: Some(payload).filter(|payload| !payload.is_null()), ..ask })
    }

    async fn make(&self, job: &str, ask: RunAsk) -> Result<RunId, Error> {
        // One ask has one answer.
        match self.engine.enqueue(vec![ask]).await?.pop().unwrap_or(Made::NoJob) {
            Made::Run { id, .. } | Made::Duplicate { of: id } => Ok(id),
            Made::Full => Err(Error::Full(job.to_owned())),
            Made::NoJob => Err(Error::NoJob(job.to_owned())),
            Made::NotManual => Err(Error::NotManual(job.to_owned())),
            made @ Made::OutOfBounds(_) => Err(Error::Key { job: job.to_owned(), why: made.to_string() }),
            Made::BadKey(why) => Err(Error::Key { job: job.to_owned(), why }),
            Made::OverQuota(refusal) => Err(Error::Quota { job: job.to_owned(), refusal: Box::new(refusal) }),
        }
    }

    /// Asks for a run inside the caller's own transaction, in the database that
    /// holds the store: it commits or vanishes with it. The same request
    /// under the same key makes one run in 24 hours; another one under that key
    /// is refused.
    ///
    /// The run is made within a second of the commit, or at once after
    /// [`Rota::look_into_inbox`]. Whether there is such a job is seen only then:
    /// a request that cannot be made into a run is told of as
    /// [`Event::RequestRefused`], with the number that is answered here.
    ///
    /// In any other language the same is
    /// `SELECT rota_enqueue(job => 'mail', payload => '{"to": "ann"}', key => 'order-17')`.
    pub async fn enqueue_in(
        &self,
        transaction: &Transaction<'_>,
        job: &str,
        payload: impl Serialize + Send,
        key: Option<&str>,
    ) -> Result<i64, Error> {
        let inbox = self.inbox.as_ref().ok_or(Error::NoInbox)?;
        let payload = serde_json::to_string(&payload).map_err(Error::Payload)?;
        let row = transaction.query_one(&*inbox.sql, &[&job, &payload, &TENANT, &key]).await.map_err(Error::Inbox)?;
        Ok(row.get(0))
    }

    /// Looks now for requests that transactions have left, rather than within a
    /// second: worth a call after a commit.
    pub fn look_into_inbox(&self) {
        self.engine.node().hints.wake(Topic::Inbox);
    }

    /// A run, live or ended, with all that is known of it.
    pub async fn run(&self, run: RunId) -> Result<Option<RunRecord>, Error> {
        let found = self.engine.run(run).await?;
        Ok(found.filter(|record| record.run.tenant == self.tenant))
    }

    /// Asks a run to stop. A handler that listens to
    /// [`Call::cancelled`](crate::Call::cancelled) has the grace of its job, 30 seconds
    /// if it has none, to end by itself; one that does not is dropped.
    pub async fn cancel(&self, run: RunId) -> Result<CancelAnswer, Error> {
        Ok(self.engine.cancel(&[run], &Cancel::default()).await?.pop().unwrap_or(CancelAnswer::NotFound))
    }

    /// Returns when a run has ended, and how.
    pub async fn wait(&self, run: RunId) -> Result<Verdict, Error> {
        let mut events = self.subscribe();
        let mut stopped = self.stopped.subscribe();
        let node = self.engine.node();
        loop {
            // Asked before the look, which then sees what the drain settled.
            let is_over = *stopped.borrow_and_update();
            let record = self.run(run).await?.ok_or(Error::NoRun(run))?;
            if let RunState::Finished { verdict, .. } = record.run.state {
                return Ok(verdict);
            }
            if is_over {
                return Err(Error::Stopped(run));
            }
            // Not every end is told of here: another node may have seen to it.
            tokio::select! {
                () = news(&mut events, run) => {}
                // The sender lives as long as `self`.
                _ = stopped.changed() => {}
                () = node.clock.sleep(node.options.look_every) => {}
            }
        }
    }

    /// What happens in this process from now on. A subscriber that falls behind
    /// is told how much it missed.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.engine.subscribe()
    }

    /// The engine itself, for what this handle leaves out: labels, pauses,
    /// redrives, figures.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tenant whose jobs these are, for calls to the engine.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Drains and leaves: nothing new is begun, and attempts under way may take
    /// up to 30 seconds.
    pub async fn stop(&self) -> Result<(), Error> {
        self.stop_within(DRAIN).await
    }

    /// As [`Rota::stop`], with another limit. What is left then is handed back
    /// and starts again when the store is next opened, or elsewhere at once.
    pub async fn stop_within(&self, limit: Span) -> Result<(), Error> {
        let stopped = self.engine.stop(limit).await;
        self.stopped.send_replace(true);
        Ok(stopped?)
    }
}

impl std::fmt::Debug for Rota {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rota").field("node", &self.engine.node().id).finish_non_exhaustive()
    }
}

/// Returns when it is worth looking at this run again.
async fn news(events: &mut broadcast::Receiver<Event>, run: RunId) {
    loop {
        match events.recv().await {
            Ok(Event::RunEnded { run: ended, .. } | Event::RunLost { run: ended, .. }) if ended == run => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
