//! Views: what one tenant sees, and what may be done in its name.
//!
//! Whoever acts for a tenant holds its [`View`] instead of the engine. Whatever is asked
//! through it is asked for that tenant alone. What a view finds it gives out as [`Own`], which
//! nothing else makes, and whatever is done to one thing takes an `Own`: what belongs to
//! another tenant cannot be named, whatever number a caller sends.

use std::{
    collections::{HashMap, HashSet},
    ops::Deref,
};

use jiff::Timestamp;
use rota_core::{
    access::SecretDigest,
    duration::Span,
    ids::{JobId, RunId, ScheduleId, TenantId, TokenId, UserId, WorkerId},
    job::JobDocument,
    lane::{Lane, LaneKey},
    quota::Held,
    rollup::Rollup,
    run::CancelAsk,
    store::{
        AuditPage, AuditQuery, Calendar, CalendarPut, CancelAnswer, DeadMark, Deletion, DueCursor, Expect, Guarded,
        JobCursor, JobQuery, JobRecord, JobVersion, LogChunk, LogQuery, Pause, PauseTarget, Request, RunCursor,
        RunQuery, RunRecord, ScheduleQuery, ScheduleRecord, SkipRecord, StoreError, Token, TokenPage, TokenQuery, User,
        UserPage, UserPut, UserQuery, UserWish, Worker,
    },
    stored,
    why::Reason,
};

use crate::{
    backfill,
    definitions::Saved,
    engine::{Cancel, CancelledMany, EngineError, Handle, RedrivenMany},
    events::{Event, Feed, FeedItem},
    making::{JobRef, Made, Redrive, RunAsk},
    remote::{Exchange, ExchangeAnswer, ExchangeError, Hello},
};

/// Jobs that are read at once to find out which lanes a tenant uses.
const JOBS: u32 = 1_000;
/// Jobs that are read for it at most.
const JOBS_MAX: usize = 10_000;

/// Something that belongs to the tenant whose view found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own<T>(T);

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Own<T> {
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl Own<JobRecord> {
    /// To be paused, or resumed.
    pub fn target(&self) -> Own<PauseTarget> {
        Own(PauseTarget::Job(self.id))
    }
}

impl Own<ScheduleRecord> {
    /// To be paused, or resumed.
    pub fn target(&self) -> Own<PauseTarget> {
        Own(PauseTarget::Schedule(self.id))
    }
}

/// A page of what belongs to a tenant.
#[derive(Clone, Debug)]
pub struct OwnPage<T, C> {
    pub items: Vec<Own<T>>,
    pub next: Option<C>,
}

impl<T, C> OwnPage<T, C> {
    fn of(items: Vec<T>, next: Option<C>) -> Self {
        Self { items: items.into_iter().map(Own).collect(), next }
    }
}

fn inner<T: Clone>(own: &[Own<T>]) -> Vec<T> {
    own.iter().map(|one| one.0.clone()).collect()
}

fn run_ids(runs: &[Own<RunRecord>]) -> Vec<RunId> {
    runs.iter().map(|record| record.run.id).collect()
}

/// What one tenant sees and does. Clones are the same.
#[derive(Clone)]
pub struct View {
    handle: Handle,
    tenant: TenantId,
}

impl Handle {
    /// What this tenant sees and does.
    pub fn view(&self, tenant: TenantId) -> View {
        View { handle: self.clone(), tenant }
    }
}

impl View {
    pub fn now(&self) -> Timestamp {
        self.handle.now()
    }

    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    fn ours<T>(&self, found: Option<T>, tenant: impl Fn(&T) -> TenantId) -> Option<Own<T>> {
        found.filter(|found| tenant(found) == self.tenant).map(Own)
    }
}

/// Jobs.
impl View {
    /// A job, deleted ones by their ids.
    pub async fn job(&self, job: &JobRef) -> Result<Option<Own<JobRecord>>, StoreError> {
        let store = self.handle.store();
        let found = match job {
            JobRef::Id(id) => store.jobs(&[*id]).await?,
            JobRef::Name(name) if name.contains('\0') => Vec::new(),
            JobRef::Name(name) => store.find_jobs(&[(self.tenant, name.clone())]).await?,
        };
        Ok(self.ours(found.into_iter().next().flatten(), |job| job.tenant))
    }

    /// Those of these jobs that are the tenant's.
    pub async fn jobs(&self, jobs: impl Iterator<Item = JobId>) -> Result<HashMap<JobId, JobRecord>, StoreError> {
        let ids: Vec<JobId> = jobs.collect::<HashSet<_>>().into_iter().collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let found = self.handle.store().jobs(&ids).await?.into_iter().flatten();
        Ok(found.filter(|job| job.tenant == self.tenant).map(|job| (job.id, job)).collect())
    }

    pub async fn list_jobs(&self, query: JobQuery) -> Result<OwnPage<JobRecord, JobCursor>, StoreError> {
        let page = self.handle.store().list_jobs(&JobQuery { tenant: Some(self.tenant), ..query }).await?;
        Ok(OwnPage::of(page.jobs, page.next))
    }

    pub async fn job_versions(&self, job: &Own<JobRecord>, limit: u32) -> Result<Vec<JobVersion>, StoreError> {
        self.handle.store().job_versions(job.id, limit).await
    }

    pub async fn rollups(
        &self,
        job: &Own<JobRecord>,
        from_hour: i64,
        to_hour: i64,
    ) -> Result<Vec<(i64, Rollup)>, StoreError> {
        self.handle.store().rollups(job.id, from_hour, to_hour).await
    }

    /// See [`Handle::save_job_once`].
    pub async fn save_job(
        &self,
        document: &JobDocument,
        by: Option<String>,
        expect: Expect,
        request: Option<Request>,
    ) -> Result<Saved, EngineError> {
        self.handle.save_job_once(self.tenant, document, by, expect, request).await
    }

    /// See [`Handle::check_job`].
    pub async fn check_job(&self, document: &JobDocument, expect: Expect) -> Result<Saved, EngineError> {
        self.handle.check_job(self.tenant, document, expect).await
    }

    /// See [`Handle::delete_job`].
    pub async fn delete_job(
        &self,
        job: &Own<JobRecord>,
        ask: CancelAsk,
        keep_running: bool,
    ) -> Result<Option<u64>, EngineError> {
        self.handle.delete_job(&Deletion { job: job.id, ask, keep_running }).await
    }

    /// The lanes where the tenant's jobs wait, as far as its first 10,000 jobs by name tell;
    /// all, where there is one tenant. Lanes are shared: what other tenants call their queues
    /// and handlers is nobody else's business.
    pub async fn lanes(&self) -> Result<Vec<Lane>, StoreError> {
        let ours = self.lane_keys().await?;
        let mut lanes = self.handle.store().all_lanes().await?;
        lanes.retain(|lane| ours.as_ref().is_none_or(|ours| ours.contains(&lane.key)));
        Ok(lanes)
    }

    async fn lane_keys(&self) -> Result<Option<HashSet<LaneKey>>, StoreError> {
        if self.handle.store().tenants().await?.len() == 1 {
            return Ok(None);
        }
        let mut query = JobQuery { limit: JOBS, ..JobQuery::default() };
        let (mut lanes, mut read_jobs) = (HashSet::new(), 0);
        loop {
            let page = self.list_jobs(query.clone()).await?;
            read_jobs += page.items.len();
            // A document that cannot be read runs nowhere.
            let read = page.items.iter().filter_map(|job| stored::read::<JobDocument>(&job.document).ok());
            lanes.extend(read.map(|document| document.run_lane()));
            match page.next {
                Some(next) if read_jobs < JOBS_MAX => query.after = Some(next),
                _ => return Ok(Some(lanes)),
            }
        }
    }
}

/// Schedules, calendars and pauses.
impl View {
    /// A schedule that was not deleted.
    pub async fn schedule(&self, id: ScheduleId) -> Result<Option<Own<ScheduleRecord>>, StoreError> {
        let found = self.handle.store().schedules(&[id]).await?.into_iter().next().flatten();
        Ok(self.ours(found.filter(|record| !record.deleted), |record| record.tenant))
    }

    pub async fn list_schedules(
        &self,
        query: ScheduleQuery,
    ) -> Result<OwnPage<ScheduleRecord, ScheduleId>, StoreError> {
        let page = self.handle.store().list_schedules(&ScheduleQuery { tenant: Some(self.tenant), ..query }).await?;
        Ok(OwnPage::of(page.schedules, page.next))
    }

    pub async fn cursors(&self, schedules: &[Own<ScheduleRecord>]) -> Result<Vec<Option<DueCursor>>, StoreError> {
        let ids: Vec<ScheduleId> = schedules.iter().map(|record| record.id).collect();
        self.handle.store().cursors(&ids).await
    }

    pub async fn skips(
        &self,
        schedule: &Own<ScheduleRecord>,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<SkipRecord>, StoreError> {
        self.handle.store().skips(schedule.id, before, limit).await
    }

    /// See [`Handle::why_schedule`].
    pub async fn why_schedule(&self, schedule: &Own<ScheduleRecord>) -> Result<Option<Vec<Reason>>, StoreError> {
        self.handle.why_schedule(schedule).await
    }

    /// See [`Handle::backfill`]. The schedule of `ask` is this one.
    pub async fn backfill(
        &self,
        schedule: &Own<ScheduleRecord>,
        ask: backfill::Ask,
    ) -> Result<Result<backfill::Done, backfill::Refusal>, EngineError> {
        self.handle.backfill(backfill::Ask { schedule: schedule.id, ..ask }).await
    }

    pub async fn calendars(&self) -> Result<Vec<Calendar>, StoreError> {
        self.handle.store().calendars(self.tenant).await
    }

    /// See [`Handle::save_calendar`].
    pub async fn save_calendar(&self, name: String, spec: String) -> Result<Option<Calendar>, EngineError> {
        self.handle.save_calendar(CalendarPut { tenant: self.tenant, name, spec }).await
    }

    /// A queue of the tenant, to be paused or resumed.
    pub fn queue(&self, name: String) -> Own<PauseTarget> {
        Own(PauseTarget::Queue(self.tenant, name))
    }

    /// The pauses of the tenant and of its queues.
    pub async fn pauses(&self) -> Result<Vec<(PauseTarget, Pause)>, StoreError> {
        let mut pauses = self.handle.store().pauses().await?.pauses;
        pauses.retain(|(target, _)| match target {
            PauseTarget::Tenant(tenant) | PauseTarget::Queue(tenant, _) => *tenant == self.tenant,
            PauseTarget::Job(_) | PauseTarget::Schedule(_) => false,
        });
        Ok(pauses)
    }

    /// See [`Handle::pause`].
    pub async fn pause(&self, targets: &[Own<PauseTarget>], pause: &Pause) -> Result<Vec<bool>, EngineError> {
        self.handle.pause(&inner(targets), pause).await
    }

    /// See [`Handle::resume`].
    pub async fn resume(&self, targets: &[Own<PauseTarget>]) -> Result<Vec<bool>, EngineError> {
        self.handle.resume(&inner(targets)).await
    }

    /// See [`Handle::check_pauses`].
    pub async fn check_pauses(
        &self,
        targets: &[Own<PauseTarget>],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, EngineError> {
        self.handle.check_pauses(&inner(targets), pause).await
    }
}

/// Runs.
impl View {
    fn own_runs(&self, query: RunQuery) -> RunQuery {
        RunQuery { tenant: Some(self.tenant), ..query }
    }

    /// See [`Handle::run`].
    pub async fn run(&self, id: RunId) -> Result<Option<Own<RunRecord>>, EngineError> {
        Ok(self.ours(self.handle.run(id).await?, |record| record.run.tenant))
    }

    /// See [`Handle::list_runs`].
    pub async fn list_runs(&self, query: RunQuery) -> Result<OwnPage<RunRecord, RunCursor>, EngineError> {
        let page = self.handle.list_runs(&self.own_runs(query)).await?;
        Ok(OwnPage::of(page.runs, page.next))
    }

    /// See [`Handle::newest_run`].
    pub async fn newest_run(&self, query: RunQuery) -> Result<Option<Own<RunRecord>>, EngineError> {
        Ok(self.handle.newest_run(&self.own_runs(query)).await?.map(Own))
    }

    /// Makes runs of the tenant's jobs; see [`Handle::enqueue_once`].
    pub async fn enqueue(&self, asks: Vec<RunAsk>, request: Option<Request>) -> Result<Vec<Made>, EngineError> {
        let asks = asks.into_iter().map(|ask| RunAsk { tenant: self.tenant, ..ask }).collect();
        self.handle.enqueue_once(asks, request).await
    }

    /// See [`Handle::cancel`].
    pub async fn cancel(&self, run: &Own<RunRecord>, cancel: &Cancel) -> Result<CancelAnswer, EngineError> {
        Ok(self.handle.cancel(&[run.run.id], cancel).await?.pop().unwrap_or(CancelAnswer::NotFound))
    }

    /// See [`Handle::cancel_all`].
    pub async fn cancel_all(
        &self,
        query: RunQuery,
        cancel: &Cancel,
        most: u64,
        dry_run: bool,
    ) -> Result<CancelledMany, EngineError> {
        self.handle.cancel_all(self.own_runs(query), cancel, most, dry_run).await
    }

    /// See [`Handle::redrive`].
    pub async fn redrive(&self, run: &Own<RunRecord>, how: &Redrive) -> Result<Option<Made>, EngineError> {
        Ok(self.handle.redrive(&[run.run.id], how).await?.pop().flatten())
    }

    /// See [`Handle::redrive_all`].
    pub async fn redrive_all(&self, query: RunQuery, how: &Redrive, most: u64) -> Result<RedrivenMany, EngineError> {
        self.handle.redrive_all(self.own_runs(query), how, most).await
    }

    /// What was done about runs that had ended.
    pub async fn dead_marks(&self, runs: &[Own<RunRecord>]) -> Result<Vec<Option<DeadMark>>, StoreError> {
        self.handle.store().dead_marks(&run_ids(runs)).await
    }

    /// See [`Handle::discard`].
    pub async fn discard(&self, runs: &[Own<RunRecord>], by: &str) -> Result<Vec<bool>, EngineError> {
        self.handle.discard(&run_ids(runs), by).await
    }

    /// See [`Handle::why_run`].
    pub async fn why_run(&self, run: &Own<RunRecord>) -> Result<Vec<Reason>, StoreError> {
        self.handle.why_run(run).await
    }

    pub async fn logs(
        &self,
        run: &Own<RunRecord>,
        attempt: Option<u16>,
        after: Option<(u16, i32)>,
        limit: u32,
    ) -> Result<Vec<LogChunk>, StoreError> {
        self.handle.store().logs(&LogQuery { run: run.run.id, attempt, after, limit }).await
    }
}

/// Workers, and what happens.
impl View {
    /// Hears one of the tenant's workers out; see [`Handle::exchange`].
    pub async fn exchange(&self, exchange: Exchange) -> Result<ExchangeAnswer, ExchangeError> {
        let hello = Hello { tenant: self.tenant, ..exchange.hello };
        self.handle.exchange(Exchange { hello, ..exchange }).await
    }

    /// For how long a worker may be silent before its attempts go to others.
    pub fn run_lease(&self) -> Span {
        self.handle.node().options.run_lease
    }

    /// The tenant's workers, among those of no tenant.
    pub async fn workers(&self, after: Option<WorkerId>, limit: u32) -> Result<Vec<Worker>, StoreError> {
        self.handle.store().workers(Some(self.tenant), after, limit).await
    }

    /// See [`Handle::drain_worker`].
    pub async fn drain_worker(&self, worker: WorkerId) -> Result<bool, EngineError> {
        self.handle.drain_worker(Some(self.tenant), worker).await
    }

    /// What happens from now on to what is the tenant's.
    pub fn follow(&self) -> OwnFeed {
        OwnFeed { feed: self.handle.follow(), held: None, view: self.clone() }
    }

    /// Whose event it is. What belongs to nobody is how nodes share the work.
    async fn is_ours(&self, event: &Event) -> bool {
        let found = match event {
            Event::Paused { target } | Event::Resumed { target } => match target {
                PauseTarget::Tenant(tenant) | PauseTarget::Queue(tenant, _) => return *tenant == self.tenant,
                PauseTarget::Job(job) => self.job(&JobRef::Id(*job)).await.map(|found| found.is_some()),
                PauseTarget::Schedule(id) => self.schedule(*id).await.map(|found| found.is_some()),
            },
            _ => return event.tenant() == Some(self.tenant),
        };
        found.unwrap_or(false)
    }
}

/// What happens to what is a tenant's.
pub struct OwnFeed {
    feed: Feed,
    /// Read, and nobody has said yet whose it is.
    held: Option<FeedItem>,
    view: View,
}

impl OwnFeed {
    /// What happened next; none once the engine is gone. Nothing is lost where the caller
    /// stops waiting.
    pub async fn next(&mut self) -> Option<FeedItem> {
        loop {
            if self.held.is_none() {
                self.held = Some(self.feed.next().await?);
            }
            let ours = match &self.held {
                Some(FeedItem::Here(event) | FeedItem::There(event)) => self.view.is_ours(event).await,
                Some(FeedItem::Reset) | None => true,
            };
            let item = self.held.take();
            if ours {
                return item;
            }
        }
    }
}

/// Who may ask, and what was changed by whom.
impl View {
    /// Tokens of the tenant, also of those that speak for the installation.
    pub async fn token(&self, id: TokenId) -> Result<Option<Own<Token>>, StoreError> {
        let found = self.handle.store().tokens(&[id]).await?.pop().flatten();
        Ok(self.ours(found, |token| token.tenant))
    }

    pub async fn list_tokens(&self, query: TokenQuery) -> Result<TokenPage, StoreError> {
        self.handle.store().list_tokens(&TokenQuery { tenant: self.tenant, ..query }).await
    }

    /// A new id for a token.
    pub fn token_id(&self) -> TokenId {
        TokenId::new(self.handle.node().random.as_ref(), self.now())
    }

    /// Keeps a new token, as one of the tenant.
    pub async fn put_token(&self, token: Token) -> Result<Own<Token>, EngineError> {
        self.handle.one_more(self.tenant, Held::Tokens).await?;
        let token = Token { tenant: self.tenant, ..token };
        self.handle.store().put_tokens(std::slice::from_ref(&token)).await?;
        Ok(Own(token))
    }

    pub async fn revoke_token(&self, token: &Own<Token>, now: Timestamp) -> Result<(), StoreError> {
        self.handle.store().revoke_tokens(&[token.id], now).await.map(drop)
    }

    pub async fn user(&self, name: &str) -> Result<Option<Own<User>>, StoreError> {
        let found = self.handle.store().users(&[(self.tenant, name.to_owned())]).await?.pop().flatten();
        Ok(self.ours(found, |user| user.tenant))
    }

    pub async fn list_users(&self, query: UserQuery) -> Result<UserPage, StoreError> {
        self.handle.store().list_users(&UserQuery { tenant: self.tenant, ..query }).await
    }

    /// A new id for a user.
    pub fn user_id(&self) -> UserId {
        UserId::new(self.handle.node().random.as_ref(), self.now())
    }

    /// Saves a user, as one of the tenant. False where the wish does not hold.
    pub async fn put_user(&self, put: UserPut) -> Result<bool, EngineError> {
        if put.wish == UserWish::New {
            self.handle.one_more(self.tenant, Held::Users).await?;
        }
        let put = UserPut { tenant: self.tenant, ..put };
        Ok(self.handle.store().put_users(&[put], self.now()).await? == [Guarded::Applied])
    }

    pub async fn delete_user(&self, user: &Own<User>) -> Result<(), StoreError> {
        self.handle.store().delete_users(&[user.id]).await.map(drop)
    }

    /// Ends the session that its holder has shown the secret of.
    pub async fn end_session(&self, digest: SecretDigest) -> Result<(), StoreError> {
        self.handle.store().delete_sessions(&[digest]).await
    }

    pub async fn list_audit(&self, query: AuditQuery) -> Result<AuditPage, StoreError> {
        self.handle.store().list_audit(&AuditQuery { tenant: self.tenant, ..query }).await
    }
}
