//! The handle that everybody else holds.

use std::{
    hash::{BuildHasher, Hasher},
    sync::{Arc, atomic::Ordering},
};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{RunId, TenantId, WorkerId},
    job::JobDocument,
    ports::{Clock, Executor, Hints, Random, Relay, Seeded, Topic},
    rate::Rate,
    run::{CancelAsk, NewRun, RunState, Source, Trigger},
    store::{
        CancelAnswer, Deletion, Enqueued, Expect, Guarded, Pause, PauseTarget, Request, RunCursor, RunPage, RunPlace,
        RunQuery, RunRecord, Store, StoreError, Write,
    },
};
use serde_json::json;
use tokio::sync::broadcast;

use crate::{
    clock::SystemClock,
    definitions::{self, SaveError, Saved},
    driver::Driver,
    events::{Event, Feed},
    executors::{Call, Executors, HandlerError, Handlers},
    hints::LocalHints,
    making::{self, JobRef, Made, Redrive, RunAsk, take_made},
    node::{Node, Parts},
    options::Options,
    quota,
    remote::{self, Answer, Exchange, ExchangeError},
    stats::Stats,
};

/// Runs read or written in one go.
const MANY: u32 = 1_000;
/// A write whose answer was lost is asked again so often.
const ASKS: u32 = 6;

/// Why the engine did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the store did not do it")]
    Store(#[from] StoreError),
    #[error("the job was not saved")]
    Save(#[from] SaveError),
}

/// What became of a wish to stop many runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CancelledMany {
    /// Live runs that were found.
    pub found: u64,
    /// Those that ended by it, or were asked to stop; the others had been asked
    /// before, or ended meanwhile.
    pub asked: u64,
    /// There are more than were to be found.
    pub more: bool,
}

/// Puts an engine together.
pub struct Builder {
    store: Arc<dyn Store>,
    options: Options,
    clock: Option<Arc<dyn Clock>>,
    system_clock: Option<Arc<SystemClock>>,
    random: Option<Arc<dyn Random>>,
    hints: Option<Arc<dyn Hints>>,
    relay: Option<Arc<dyn Relay>>,
    handlers: Handlers,
    executors: Vec<Arc<dyn Executor>>,
}

impl Builder {
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Self { options, ..self }
    }

    /// Another clock than the system's.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// The system's clock on another machine than this: it follows the store's.
    #[must_use]
    pub fn system_clock(self, clock: Arc<SystemClock>) -> Self {
        Self { system_clock: Some(clock), ..self }
    }

    #[must_use]
    pub fn random(self, random: Arc<dyn Random>) -> Self {
        Self { random: Some(random), ..self }
    }

    /// Hints that reach other processes.
    #[must_use]
    pub fn hints(self, hints: Arc<dyn Hints>) -> Self {
        Self { hints: Some(hints), ..self }
    }

    /// Carries what happens to the followers of other nodes, and what happens
    /// there to those of this one.
    #[must_use]
    pub fn relay(self, relay: Arc<dyn Relay>) -> Self {
        Self { relay: Some(relay), ..self }
    }

    /// The executor of another kind of step.
    #[must_use]
    pub fn executor(mut self, executor: Arc<dyn Executor>) -> Self {
        self.executors.push(executor);
        self
    }

    /// A function that executes steps by name.
    #[must_use]
    pub fn handler<F, R>(self, name: impl Into<String>, function: F) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<serde_json::Value, HandlerError>> + Send + 'static,
    {
        Self { handlers: self.handlers.with(name, function), ..self }
    }

    /// The node alone, for those who call its stages themselves.
    pub fn node(self) -> Arc<Node> {
        let (clock, system_clock) = if let Some(clock) = self.clock {
            (clock, None)
        } else {
            let system = self.system_clock.unwrap_or_default();
            (Arc::clone(&system) as Arc<dyn Clock>, Some(system))
        };
        let mut executors = Executors::new(self.handlers);
        for executor in self.executors {
            executors = executors.with(executor);
        }
        Arc::new(Node::new(Parts {
            store: self.store,
            clock,
            system_clock,
            random: self.random.unwrap_or_else(|| Arc::new(Seeded::new(seed()))),
            hints: self.hints.unwrap_or_else(|| Arc::new(LocalHints::default())),
            relay: self.relay,
            executors,
            options: self.options,
        }))
    }

    /// Joins the store and starts everything.
    pub async fn start(self) -> Result<Engine, StoreError> {
        let handle = Handle::new(self.node());
        let driver = Arc::new(Driver::start(Arc::clone(&handle.node)).await?);
        Ok(Engine { handle, driver })
    }
}

fn made_of(id: RunId, answer: &Enqueued) -> Made {
    match answer {
        Enqueued::Made { status, .. } => Made::Run { id, status: *status },
        Enqueued::Duplicate { of } => Made::Duplicate { of: *of },
        Enqueued::Full => Made::Full,
        Enqueued::Again { of, status, .. } => Made::Run { id: *of, status: *status },
    }
}

/// A seed of the process's own: the standard library draws it from the system.
fn seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

/// An engine at work. Clones are the same engine.
#[derive(Clone)]
pub struct Engine {
    handle: Handle,
    driver: Arc<Driver>,
}

impl std::ops::Deref for Engine {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Engine {
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        Builder {
            store,
            options: Options::default(),
            clock: None,
            system_clock: None,
            random: None,
            hints: None,
            relay: None,
            handlers: Handlers::default(),
            executors: Vec::new(),
        }
    }

    /// Returns when this engine has broken down, with the stage that did: it does
    /// nothing more, and the process had better end.
    pub async fn broken(&self) -> &'static str {
        self.driver.broken().await
    }

    /// Drains and leaves: attempts under way may take up to `limit`.
    pub async fn stop(&self, limit: Span) -> Result<(), EngineError> {
        Ok(self.driver.stop(limit).await?)
    }
}

/// All that can be asked of a node, whoever turns its stages.
#[derive(Clone)]
pub struct Handle {
    node: Arc<Node>,
}

impl Handle {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node }
    }

    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.node.store
    }

    pub fn stats(&self) -> &Stats {
        &self.node.stats
    }

    /// What happens from now on, on this node and on those it has a relay to.
    pub fn follow(&self) -> Feed {
        let feed = self.node.events.follow();
        self.node.hints.wake(Topic::Followers);
        feed
    }

    /// What happens on this node from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.node.events.subscribe()
    }

    /// Saves a job with its schedules.
    pub async fn save_job(
        &self,
        tenant: TenantId,
        document: &JobDocument,
        by: Option<String>,
        expect: Expect,
    ) -> Result<Saved, EngineError> {
        self.save_job_once(tenant, document, by, expect, None).await
    }

    /// As [`Engine::save_job`], answered the same when asked again under the
    /// same key.
    pub async fn save_job_once(
        &self,
        tenant: TenantId,
        document: &JobDocument,
        by: Option<String>,
        expect: Expect,
        request: Option<Request>,
    ) -> Result<Saved, EngineError> {
        let write = Write { request, ..self.node.write(self.node.clock.now()) };
        Ok(definitions::save_job(&self.node, tenant, document, by, expect, &write).await?)
    }

    /// What saving a job would answer. Nothing is saved.
    pub async fn check_job(
        &self,
        tenant: TenantId,
        document: &JobDocument,
        expect: Expect,
    ) -> Result<Saved, EngineError> {
        let write = Write { dry_run: true, ..self.node.write(self.node.clock.now()) };
        Ok(definitions::save_job(&self.node, tenant, document, None, expect, &write).await?)
    }

    /// Deletes a job: its schedules end, what has not started is cancelled, and
    /// what runs is asked to stop unless it is to be kept. History stays. Answers
    /// how many runs that were; none where there is no such job.
    ///
    /// The deletion is remembered with what it asks of the runs: whoever dies before all
    /// of them were asked leaves the rest to the scanner.
    pub async fn delete_job(&self, deletion: &Deletion) -> Result<Option<u64>, EngineError> {
        let write = self.node.write(self.node.clock.now());
        let jobs = std::slice::from_ref(deletion);
        let gone = self.until_known(|| self.node.store.delete_jobs(&write, jobs)).await?;
        if gone != [Guarded::Applied] {
            return Ok(None);
        }
        self.node.catalog.forget_job(deletion.job);
        self.node.hints.wake(Topic::Schedules);
        Ok(Some(self.stop_deleted(deletion).await?))
    }

    /// Stops the runs of a deleted job, as far as they are to be; answers how many
    /// were told.
    pub(crate) async fn stop_deleted(&self, deletion: &Deletion) -> Result<u64, StoreError> {
        let query = RunQuery { job: Some(deletion.job), statuses: deletion.stops(), ..RunQuery::default() };
        Ok(self.stop_all(query, &deletion.ask, u64::MAX).await?.asked)
    }

    /// Asks the live runs that `query` finds to stop, up to `most` of them. They are
    /// counted as they are asked, so what is answered is what was done.
    pub async fn cancel_all(&self, query: RunQuery, ask: &CancelAsk, most: u64) -> Result<CancelledMany, EngineError> {
        Ok(self.stop_all(query, ask, most).await?)
    }

    async fn stop_all(&self, query: RunQuery, ask: &CancelAsk, most: u64) -> Result<CancelledMany, StoreError> {
        let mut query = query;
        let mut done = CancelledMany::default();
        loop {
            query.limit = u32::try_from(most - done.found).unwrap_or(MANY).min(MANY);
            let page = self.node.store.list_runs(&query).await?;
            let runs: Vec<RunId> = page.runs.iter().map(|record| record.run.id).collect();
            done.found += runs.len() as u64;
            if !runs.is_empty() {
                let answers = self.stop_runs(&runs, ask).await?;
                let hit = |answer: &&CancelAnswer| matches!(answer, CancelAnswer::Cancelled | CancelAnswer::Asked);
                done.asked += answers.iter().filter(hit).count() as u64;
            }
            match page.next {
                // What ended is beyond the live ones, and there is nothing to stop.
                Some(next @ RunCursor { place: RunPlace::Live(_), .. }) if done.found < most => {
                    query.after = Some(next);
                }
                next => {
                    done.more = next.is_some_and(|next| matches!(next.place, RunPlace::Live(_)));
                    return Ok(done);
                }
            }
        }
    }

    /// Saves jobs with their schedules; they may start after each other, whatever
    /// their order. One answer for each.
    pub async fn save_jobs(
        &self,
        tenant: TenantId,
        documents: &[&JobDocument],
        by: Option<String>,
        expect: Expect,
    ) -> Result<Vec<Result<Saved, SaveError>>, EngineError> {
        Ok(definitions::save_jobs(&self.node, tenant, documents, by, expect, &self.node.write(self.node.clock.now()))
            .await?)
    }

    /// A run as it stands: the store hears a little later that an attempt of an owned lane
    /// has begun, and whoever executes it knows.
    pub async fn run(&self, id: RunId) -> Result<Option<RunRecord>, EngineError> {
        let mut found = self.node.store.runs(&[id]).await?.pop().flatten();
        self.node.executing.correct(found.iter_mut());
        Ok(found)
    }

    /// A page of runs as they stand; see [`run`](Self::run).
    pub async fn list_runs(&self, query: &RunQuery) -> Result<RunPage, EngineError> {
        let mut page = self.node.store.list_runs(query).await?;
        self.node.executing.correct(page.runs.iter_mut());
        Ok(page)
    }

    /// Makes runs, all in one transaction.
    pub async fn enqueue(&self, asks: Vec<RunAsk>) -> Result<Vec<Made>, EngineError> {
        self.enqueue_once(asks, None).await
    }

    /// As [`Engine::enqueue`], answered the same when asked again under the
    /// same key.
    pub async fn enqueue_once(&self, asks: Vec<RunAsk>, request: Option<Request>) -> Result<Vec<Made>, EngineError> {
        let now = self.node.clock.now();
        let mut planned = making::plan(&self.node, asks, now).await?;
        let before = request.as_ref().map(|_| planned.clone());
        quota::refuse_over_rate(&self.node, &mut planned, now).await?;
        if let (Some(request), Some(before)) = (&request, before)
            && before != planned
            && self.node.store.is_answered(request, now).await?
        {
            // It makes no run, so no rate stands in its way.
            planned = before;
        }
        self.make(planned, Write { request, ..self.node.write(now) }).await
    }

    pub(crate) async fn make(
        &self,
        planned: Vec<Result<NewRun, Made>>,
        write: Write,
    ) -> Result<Vec<Made>, EngineError> {
        let mut runs = Vec::with_capacity(planned.len());
        // What is refused already, each in its place.
        let refused: Vec<Option<Made>> = planned.into_iter().map(|one| one.map(|run| runs.push(run)).err()).collect();
        let answers = if runs.is_empty() {
            Vec::new()
        } else {
            self.until_known(|| self.node.timed(runs.len(), self.node.store.enqueue(&write, &runs, &[]))).await?
        };
        let mut told = runs.iter().map(|run| run.id).zip(&answers);
        let made = refused.into_iter().map(|refused| match refused {
            Some(made) => made,
            None => told.next().map_or(Made::Full, |(id, answer)| made_of(id, answer)),
        });
        let made = made.collect();
        if !write.dry_run {
            self.node.stats.enqueued.add(runs.len());
            take_made(&self.node, &write, runs, &answers);
        }
        Ok(made)
    }

    /// Takes a token of a tenant's rate of requests, counted for all nodes together,
    /// or says when there will be one.
    pub async fn take_request(&self, tenant: TenantId, rate: Rate) -> Result<Result<(), Timestamp>, EngineError> {
        Ok(quota::take_request(&self.node, tenant, rate, self.node.clock.now()).await?)
    }

    /// One run of a job, now.
    pub async fn trigger(&self, tenant: TenantId, job: JobRef) -> Result<Made, EngineError> {
        let ask = RunAsk { trigger: Trigger::plain(Source::Manual), ..RunAsk::of(tenant, job) };
        Ok(self.enqueue(vec![ask]).await?.pop().unwrap_or(Made::NoJob))
    }

    /// Asks runs to stop.
    pub async fn cancel(&self, runs: &[RunId], ask: &CancelAsk) -> Result<Vec<CancelAnswer>, EngineError> {
        Ok(self.stop_runs(runs, ask).await?)
    }

    async fn stop_runs(&self, runs: &[RunId], ask: &CancelAsk) -> Result<Vec<CancelAnswer>, StoreError> {
        let write = self.node.write(self.node.clock.now());
        let answers = self.until_known(|| self.node.store.request_cancel(&write, runs, ask)).await?;
        self.node.ended_by(&write);
        self.node.cancel_asked.store(true, Ordering::Relaxed);
        self.node.bells.execute.notify_one();
        if self.node.remote.is_used() {
            self.node.remote.sessions().cancel_asked(runs);
        }
        self.node.hints.wake(Topic::Ready);
        Ok(answers)
    }

    /// Hears a remote worker out and answers it; waits as long as it wishes.
    pub async fn exchange(&self, exchange: Exchange) -> Result<Answer, ExchangeError> {
        remote::exchange(&self.node, exchange).await
    }

    /// Asks a worker to take no more work, to finish and to leave. False where
    /// the tenant has no such worker.
    pub async fn drain_worker(&self, tenant: Option<TenantId>, worker: WorkerId) -> Result<bool, EngineError> {
        let known = self.node.store.drain_worker(tenant, worker).await?;
        if known {
            self.node.remote.sessions().ask_to_drain(worker);
        }
        Ok(known)
    }

    /// Pauses schedules, jobs, queues or tenants, or gives a pause that is in force
    /// another end. False where there is no such target.
    pub async fn pause(&self, targets: &[PauseTarget], pause: &Pause) -> Result<Vec<bool>, EngineError> {
        self.set_pauses(targets, Some(pause), |target| Event::Paused { target }).await
    }

    /// Lifts pauses: what they covered is recorded as paused, and schedules
    /// that sleep because of them wake up. False where nothing was paused.
    pub async fn resume(&self, targets: &[PauseTarget]) -> Result<Vec<bool>, EngineError> {
        self.set_pauses(targets, None, |target| Event::Resumed { target }).await
    }

    async fn set_pauses(
        &self,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
        event: fn(PauseTarget) -> Event,
    ) -> Result<Vec<bool>, EngineError> {
        let write = self.node.write(self.node.clock.now());
        let done = self.until_known(|| self.node.store.set_pauses(&write, targets, pause)).await?;
        self.changed_pauses(targets, &done, event);
        Ok(done)
    }

    fn changed_pauses(&self, targets: &[PauseTarget], done: &[bool], event: fn(PauseTarget) -> Event) {
        for (target, _) in targets.iter().zip(done).filter(|(_, done)| **done) {
            self.node.events.tell(|| event(target.clone()));
        }
        for target in targets {
            if let PauseTarget::Job(job) = target {
                self.node.catalog.forget_job(*job);
            }
        }
        for topic in [Topic::Schedules, Topic::Ready] {
            self.node.hints.wake(topic);
        }
    }

    /// Makes new runs of runs that ended. A run is made again once: asked a second
    /// time, the answer is the run that was made of it, which is the one to look
    /// at. None for a run that is not there or still lives.
    pub async fn redrive(&self, runs: &[RunId], how: &Redrive) -> Result<Vec<Option<Made>>, EngineError> {
        let now = self.node.clock.now();
        let mut planned = Vec::with_capacity(runs.len());
        for record in self.node.store.runs(runs).await? {
            let ended = record.filter(|record| matches!(record.run.state, RunState::Finished { .. }));
            planned.push(match ended {
                Some(record) => Some(making::again(&self.node, &record.run, how, now).await?),
                None => None,
            });
        }
        let known: Vec<bool> = planned.iter().map(Option::is_some).collect();
        let mut planned: Vec<_> = planned.into_iter().flatten().collect();
        quota::refuse_over_rate(&self.node, &mut planned, now).await?;
        if how.dry_run {
            quota::give_back(&self.node, planned.iter().filter_map(|one| one.as_ref().ok()), now);
        }
        let write = Write { dry_run: how.dry_run, ..self.node.write(now) };
        let mut made = self.make(planned, write).await?.into_iter();
        Ok(known.into_iter().map(|known| if known { made.next() } else { None }).collect())
    }

    /// Puts dead letters away, in somebody's name. False for one that was made again.
    pub async fn discard(&self, runs: &[RunId], by: &str) -> Result<Vec<bool>, EngineError> {
        let now = self.node.clock.now();
        Ok(self.until_known(|| self.node.store.discard(runs, by, now)).await?)
    }

    /// Asks until the answer is known, or gives up.
    async fn until_known<T, F>(&self, ask: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut asked = 1;
        loop {
            match ask().await {
                Err(StoreError::OutcomeUnknown { .. }) if asked < ASKS => {
                    let wait = Span::millis(20 << asked);
                    asked += 1;
                    self.node.clock.sleep(wait).await;
                }
                answer => return answer,
            }
        }
    }

    /// Reads the tenants and their quotas anew: somebody changed one. Other nodes
    /// see it with their next full look.
    pub async fn tenants_changed(&self) -> Result<(), EngineError> {
        self.node.catalog.read_tenants().await?;
        Ok(())
    }

    pub fn now(&self) -> Timestamp {
        self.node.clock.now()
    }

    /// A status page of this engine, JSON.
    pub fn describe(&self) -> serde_json::Value {
        let stats = self.stats();
        json!({
            "node": self.node.id,
            "partitions": stats.partitions.get(),
            "executing": stats.executing.get(),
            "backlog": stats.backlog.get(),
            "ended": stats.ended_in_all(),
            "findings": stats.findings.get(),
        })
    }
}
