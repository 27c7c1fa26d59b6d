//! The handle that everybody else holds.

mod builder;
mod many;
mod newest;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{RunId, TenantId, WorkerId},
    job::{JobDocument, effective::DEFAULT_GRACE},
    limits::{LimitReached, Limited},
    ports::Topic,
    quota::{Daily, Held, Refusal, pieces},
    rate::Rate,
    run::{CancelAsk, NewRun, Run, RunState, Source, Status, Trigger},
    store::{
        Calendar, CalendarPut, CancelAnswer, Deletion, Discarded, Enqueued, Expect, Guarded, Pause, PauseTarget,
        Request, RunPage, RunQuery, RunRecord, Store, StoreError, Tenant, TenantPut, Write,
    },
};
use serde_json::json;
use tokio::sync::broadcast;

pub use self::{
    builder::Builder,
    many::{CancelledMany, RedrivenMany},
};
use crate::{
    definitions::{self, SaveError, Saved},
    driver::Driver,
    events::{Event, Feed},
    making::{self, JobRef, Made, Redrive, RunAsk, take_made},
    node::Node,
    quota,
    remote::{self, Exchange, ExchangeAnswer, ExchangeError},
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
    #[error(transparent)]
    LimitReached(#[from] LimitReached),
    #[error("{refusal}")]
    OverQuota { refusal: Refusal, now: Timestamp },
}

/// Somebody wants runs to stop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cancel {
    pub by: Option<String>,
    pub reason: Option<String>,
    /// How long an attempt has to stop by itself; what its job says where nothing is asked.
    pub grace: Option<Span>,
}

fn made_of(id: RunId, answer: &Enqueued) -> Made {
    match answer {
        Enqueued::Made { status, .. } => Made::Run { id, status: *status },
        Enqueued::Duplicate { of } => Made::Duplicate { of: *of },
        Enqueued::Full => Made::Full,
        Enqueued::Again { of, status, .. } => Made::Run { id: *of, status: *status },
    }
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
        Builder::new(store)
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
        let found = self.node.store.runs(&[id]).await?.into_iter().flatten().collect();
        Ok(self.as_they_stand(found).await?.pop())
    }

    /// A page of runs as they stand, also where it is asked for by status; see
    /// [`run`](Self::run).
    pub async fn list_runs(&self, query: &RunQuery) -> Result<RunPage, EngineError> {
        Ok(self.page_of_runs(query).await?)
    }

    async fn page_of_runs(&self, query: &RunQuery) -> Result<RunPage, StoreError> {
        let wanted = |status| query.statuses.contains(&status);
        // Where a filter takes queued and running alike, what is known here changes nothing.
        let tells_apart = wanted(Status::Queued) != wanted(Status::Running);
        let begun = if tells_apart { self.node.runs.begun() } else { Vec::new() };
        let mut page = self.node.store.list_runs(&RunQuery { begun, ..query.clone() }).await?;
        page.runs = self.as_they_stand(page.runs).await?;
        page.runs.retain(|record| query.statuses.is_empty() || wanted(record.run.state.status()));
        Ok(page)
    }

    /// What was read from the store, corrected by what this node knows of runs in its
    /// hands. One that was settled after it was read is read again.
    async fn as_they_stand(&self, mut records: Vec<RunRecord>) -> Result<Vec<RunRecord>, StoreError> {
        let settled = self.node.runs.correct(records.iter_mut());
        if settled.is_empty() {
            return Ok(records);
        }
        let again = self.node.store.runs(&settled).await?.into_iter().flatten();
        let mut again: HashMap<RunId, RunRecord> = again.map(|record| (record.run.id, record)).collect();
        self.node.runs.correct(again.values_mut());
        for record in &mut records {
            if let Some(newer) = again.remove(&record.run.id) {
                *record = newer;
            }
        }
        Ok(records)
    }

    /// Makes runs, all in one transaction.
    pub async fn enqueue(&self, asks: Vec<RunAsk>) -> Result<Vec<Made>, EngineError> {
        self.enqueue_once(asks, None).await
    }

    /// As [`Engine::enqueue`], answered the same when asked again under the
    /// same key.
    pub async fn enqueue_once(
        &self,
        mut asks: Vec<RunAsk>,
        request: Option<Request>,
    ) -> Result<Vec<Made>, EngineError> {
        let now = self.node.clock.now();
        if let Some(request) = &request
            && asks.iter().any(|ask| !ask.after.is_empty())
            && self.node.store.is_answered(request, now).await?
        {
            // It makes no run, and what it waited for may be forgotten by now.
            for ask in &mut asks {
                ask.after.clear();
            }
        }
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

    /// Asks runs to stop. One answer for each, in the order asked.
    pub async fn cancel(&self, runs: &[RunId], cancel: &Cancel) -> Result<Vec<CancelAnswer>, EngineError> {
        let records = self.node.store.runs(runs).await?;
        let found = records.iter().flatten().map(|record| &record.run).collect();
        let mut answers = HashMap::with_capacity(runs.len());
        for (ask, runs) in self.cancel_asks(cancel, found).await? {
            let told = self.stop_runs(&runs, &ask, false).await?;
            answers.extend(runs.into_iter().zip(told));
        }
        Ok(runs.iter().map(|run| answers.get(run).copied().unwrap_or(CancelAnswer::NotFound)).collect())
    }

    /// What is asked of each of these runs: how long its attempt has to stop is for the
    /// version of its job to say. A transaction for each length, and mostly there is one.
    async fn cancel_asks(&self, cancel: &Cancel, runs: Vec<&Run>) -> Result<Vec<(CancelAsk, Vec<RunId>)>, StoreError> {
        let mut by_grace: BTreeMap<Span, Vec<RunId>> = BTreeMap::new();
        for run in runs {
            let version = self.node.catalog.version(run.job, run.version).await?;
            // A version that cannot be read says nothing, and its runs can be cancelled all the same.
            let grace = version
                .map_or(cancel.grace.unwrap_or(DEFAULT_GRACE), |version| version.document.grace_for(cancel.grace));
            by_grace.entry(grace).or_default().push(run.id);
        }
        let ask = |grace| CancelAsk { by: cancel.by.clone(), reason: cancel.reason.clone(), grace };
        Ok(by_grace.into_iter().map(|(grace, runs)| (ask(grace), runs)).collect())
    }

    async fn stop_runs(&self, runs: &[RunId], ask: &CancelAsk, dry_run: bool) -> Result<Vec<CancelAnswer>, StoreError> {
        let write = Write { dry_run, ..self.node.write(self.node.clock.now()) };
        let answers = self.until_known(|| self.node.store.request_cancel(&write, runs, ask)).await?;
        if dry_run {
            return Ok(answers);
        }
        self.node.ended_by(&write);
        // Before the answer: whoever was told that a run is to stop does not see this node
        // start it.
        let asked = runs.iter().zip(&answers).filter(|(_, answer)| **answer == CancelAnswer::Asked);
        self.node.runs.ask_to_stop(asked.map(|(run, _)| *run), &ask.request(write.now));
        self.node.compare_leases();
        if self.node.remote.is_used() {
            let unheard = self.node.remote.sessions().cancel_asked(runs);
            remote::cancel_unheard(&self.node, unheard, write.now);
        }
        self.node.hints.wake(Topic::Ready);
        Ok(answers)
    }

    /// Deletes a row that cannot be read. The slot of a live run is given back, and who
    /// waited for it is released.
    pub async fn discard_row(&self, table: &str, key: &str) -> Result<Discarded, EngineError> {
        let node = &self.node;
        let answer = node.store.discard_row(table, key).await?;
        if answer == Discarded::Gone && table == "run" {
            node.store.recount_slots(&node.write(node.clock.now())).await?;
            node.store.mend_joins(&node.write(node.clock.now())).await?;
            node.hints.wake(Topic::Ready);
        }
        Ok(answer)
    }

    /// Hears a remote worker out and answers it; waits as long as it wishes.
    pub async fn exchange(&self, exchange: Exchange) -> Result<ExchangeAnswer, ExchangeError> {
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
        self.allow_pauses(targets).await?;
        self.set_pauses(targets, Some(pause), |target| Event::Paused { target }).await
    }

    /// Lifts pauses: what they covered is recorded as paused, and schedules
    /// that sleep because of them wake up. False where nothing was paused.
    pub async fn resume(&self, targets: &[PauseTarget]) -> Result<Vec<bool>, EngineError> {
        self.set_pauses(targets, None, |target| Event::Resumed { target }).await
    }

    /// What pausing, or without a pause resuming, would answer. Nothing is changed.
    pub async fn check_pauses(&self, targets: &[PauseTarget], pause: Option<&Pause>) -> Result<Vec<bool>, EngineError> {
        if pause.is_some() {
            self.allow_pauses(targets).await?;
        }
        let write = Write { dry_run: true, ..self.node.write(self.node.clock.now()) };
        Ok(self.node.store.set_pauses(&write, targets, pause).await?)
    }

    /// Refuses to pause more queues than there may be. The pause of a whole tenant is never
    /// refused.
    async fn allow_pauses(&self, targets: &[PauseTarget]) -> Result<(), EngineError> {
        let queue_of = |target: &PauseTarget| match target {
            PauseTarget::Queue(tenant, queue) => Some((*tenant, queue.clone())),
            PauseTarget::Tenant(_) | PauseTarget::Job(_) | PauseTarget::Schedule(_) => None,
        };
        let mut new: HashSet<(TenantId, String)> = targets.iter().filter_map(queue_of).collect();
        if new.is_empty() {
            return Ok(());
        }
        let held = self.node.store.pauses().await?.pauses;
        let held: HashSet<(TenantId, String)> = held.iter().filter_map(|(target, _)| queue_of(target)).collect();
        new.retain(|queue| !held.contains(queue));
        let limits = self.node.options.limits;
        limits.allow(Limited::Pauses, held.len(), new.len())?;
        for (tenant, _) in &new {
            let of_tenant = |queues: &HashSet<(TenantId, String)>| queues.iter().filter(|(of, _)| of == tenant).count();
            limits.allow(Limited::TenantPauses, of_tenant(&held), of_tenant(&new))?;
        }
        Ok(())
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
            self.node.events.emit(|| event(target.clone()));
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

    /// Creates or changes a tenant, and answers what was there before. It counts here at
    /// once; other nodes see it with their next full look.
    pub async fn save_tenant(&self, put: TenantPut) -> Result<Option<Tenant>, EngineError> {
        let mut tenants = self.node.store.tenants().await?;
        let held = tenants.len();
        let before = tenants.iter().position(|tenant| tenant.name == put.name).map(|n| tenants.swap_remove(n));
        self.node.options.limits.allow(Limited::Tenants, held, usize::from(before.is_none()))?;
        self.node.store.put_tenants(&[put], self.now()).await?;
        self.node.catalog.read_tenants().await?;
        Ok(before)
    }

    /// Refuses one more of something that the tenant's quotas do not allow.
    pub(crate) async fn one_more(&self, tenant: TenantId, what: Held) -> Result<(), EngineError> {
        let Some(quotas) = self.node.catalog.quotas(tenant) else { return Ok(()) };
        let now = self.now();
        let more = quota::More { what, count: 1, now, dry_run: false };
        let refusal = quota::more(&self.node, tenant, &quotas, more).await?;
        refusal.map_or(Ok(()), |refusal| Err(EngineError::OverQuota { refusal, now }))
    }

    /// Creates or changes a calendar, and answers what was there before. Schedules follow
    /// it within a second.
    pub async fn save_calendar(&self, put: CalendarPut) -> Result<Option<Calendar>, EngineError> {
        let mut calendars = self.node.store.calendars(put.tenant).await?;
        let held = calendars.len();
        let before = calendars.iter().position(|calendar| calendar.name == put.name).map(|n| calendars.swap_remove(n));
        self.node.limits_of(put.tenant).allow(Limited::Calendars, held, usize::from(before.is_none()))?;
        let write = self.node.write(self.now());
        if let Some(quotas) = self.node.catalog.quotas(put.tenant) {
            let cost = (Daily::DefinitionBytes, pieces(put.spec.len() as u64));
            let refusal = quota::daily(&self.node, put.tenant, &quotas, cost, &write).await?;
            refusal.map_or(Ok(()), |refusal| Err(EngineError::OverQuota { refusal, now: write.now }))?;
        }
        self.node.store.put_calendars(&[put], self.now()).await?;
        Ok(before)
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
