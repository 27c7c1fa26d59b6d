//! One store in memory, a clock that is turned by hand, and nodes whose passes
//! are called by hand: the order of events in a test is the order of its lines.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{JobId, NodeId, Partition, RunId, ScheduleId, TenantId},
    job::JobDocument,
    ports::{Clock, Seeded},
    run::{CancelAsk, Status, Verdict},
    store::{
        CancelAnswer, Deletion, Expect, NodeBeat, RunQuery, RunRecord, ScheduleQuery, SkipRecord, Store, TenantPut,
        Tier,
    },
};
use rota_engine::{
    Engine, Handle, JobRef, Made, Options, RunAsk,
    clock::TestClock,
    definitions::{self, Saved},
    executors::{Call, HandlerError},
    hints::LocalHints,
    making,
    node::Node,
    stages::{
        PassReport, Stage, admit::Admit, chain::Chain, claim::Claim, dispatch::Dispatch, fire::Fire,
        heartbeat::Heartbeat, lead::Lead, look::Look, promote::Promote, reap::Reap, scan::Scan, settle::Settle,
        sweep::Sweep, upkeep::Upkeep, withdraw::Withdraw,
    },
};
use rota_store::sqlite::SqliteStore;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::faulty::Faulty;

/// So many milliseconds after the beginning of a test: a Monday, 10:00 UTC.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_767_607_200_000 + millis).unwrap()
}

/// What the handlers of all nodes did, and what they are told.
#[derive(Default)]
pub struct Work {
    pub calls: Mutex<Vec<(RunId, u16)>>,
    pub going: AtomicUsize,
    pub most: AtomicUsize,
    /// Handlers named `wait` end when this is raised.
    pub gate: watch::Sender<u64>,
    pub begun: Notify,
}

impl Work {
    pub fn calls_of(&self, run: RunId) -> usize {
        self.calls.lock().unwrap().iter().filter(|(id, _)| *id == run).count()
    }

    pub fn count(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    pub fn order(&self) -> Vec<RunId> {
        self.calls.lock().unwrap().iter().map(|(id, _)| *id).collect()
    }

    /// Lets all that wait come to an end.
    pub fn open(&self) {
        self.gate.send_modify(|count| *count += 1);
    }

    /// Returns when so many handlers are under way.
    pub async fn wait_for_going(&self, count: usize) {
        loop {
            let begun = self.begun.notified();
            if self.going.load(Ordering::SeqCst) >= count {
                return;
            }
            begun.await;
        }
    }
}

/// A handler is under way as long as this lives.
struct Going(Arc<Work>);

impl Going {
    fn begin(work: &Arc<Work>, call: &Call) -> Self {
        work.calls.lock().unwrap().push((call.run(), call.attempt));
        let going = work.going.fetch_add(1, Ordering::SeqCst) + 1;
        work.most.fetch_max(going, Ordering::SeqCst);
        work.begun.notify_waiters();
        work.begun.notify_one();
        Self(Arc::clone(work))
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.0.going.fetch_sub(1, Ordering::SeqCst);
    }
}

pub struct Bed {
    pub store: Arc<dyn Store>,
    /// The store itself, to break what it holds.
    sqlite: Arc<SqliteStore>,
    /// The same store, to be told what to do wrong.
    pub faults: Arc<Faulty>,
    pub clock: Arc<TestClock>,
    pub hints: Arc<LocalHints>,
    pub work: Arc<Work>,
    pub tenant: TenantId,
    seeds: AtomicUsize,
}

impl Bed {
    pub async fn new() -> Self {
        let sqlite = Arc::new(SqliteStore::memory().unwrap());
        let faults = Arc::new(Faulty::new(Arc::clone(&sqlite) as Arc<dyn Store>));
        let store = Arc::clone(&faults) as Arc<dyn Store>;
        let put = TenantPut { name: "acme".into(), tier: Tier::Unlimited, quotas: None };
        let tenant = store.put_tenants(&[put], at(0)).await.unwrap()[0];
        Self {
            store,
            sqlite,
            faults,
            clock: Arc::new(TestClock::new(at(0))),
            hints: Arc::default(),
            work: Arc::default(),
            tenant,
            seeds: AtomicUsize::new(1),
        }
    }

    /// Breaks what is stored.
    pub async fn sql(&self, sql: &str) {
        self.sqlite.execute_raw(sql).await.unwrap();
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn go(&self, millis: u64) -> Timestamp {
        self.clock.advance(Span::millis(millis))
    }

    pub fn builder(&self, options: Options) -> rota_engine::Builder {
        self.builder_without_clock(options).clock(Arc::clone(&self.clock) as Arc<dyn Clock>)
    }

    /// With the system's clock, on some machine.
    pub fn builder_on(&self, options: Options, clock: Arc<rota_engine::clock::SystemClock>) -> rota_engine::Builder {
        self.builder_without_clock(options).system_clock(clock)
    }

    fn builder_without_clock(&self, options: Options) -> rota_engine::Builder {
        let seed = self.seeds.fetch_add(1, Ordering::Relaxed) as u64;
        let work = || Arc::clone(&self.work);
        let (noop, wait, polite, fail, refuse, later, panic) = (work(), work(), work(), work(), work(), work(), work());
        Engine::builder(Arc::clone(&self.store))
            .options(options)
            .random(Arc::new(Seeded::new(seed)))
            .hints(Arc::clone(&self.hints) as Arc<dyn rota_core::ports::Hints>)
            .handler("noop", move |call: Call| {
                let going = Going::begin(&noop, &call);
                async move {
                    drop(going);
                    Ok(json!({ "seen": call.payload }))
                }
            })
            .handler("wait", move |call: Call| {
                let going = Going::begin(&wait, &call);
                let mut gate = wait.gate.subscribe();
                async move {
                    call.log("waiting");
                    gate.changed().await?;
                    drop(going);
                    Ok(Value::Null)
                }
            })
            .handler("polite", move |call: Call| {
                let going = Going::begin(&polite, &call);
                async move {
                    call.cancelled().asked().await;
                    drop(going);
                    Err(HandlerError::new("told to stop"))
                }
            })
            .handler("fail", move |call: Call| {
                drop(Going::begin(&fail, &call));
                async move { Err(HandlerError::retry_after("not now", Span::secs(1))) }
            })
            .handler("refuse", move |call: Call| {
                drop(Going::begin(&refuse, &call));
                async move { Err(HandlerError::never_again("never")) }
            })
            .handler("later", move |call: Call| {
                drop(Going::begin(&later, &call));
                async move {
                    if call.attempt == 1 {
                        Err(HandlerError::retry_after("once more", Span::secs(5)))
                    } else {
                        Ok(Value::Null)
                    }
                }
            })
            .handler("panic", move |call: Call| {
                drop(Going::begin(&panic, &call));
                async move { panic!("out of luck") }
            })
    }

    /// A node with partitions, led and looked through once.
    pub async fn node(&self) -> Hands {
        self.node_with(Options::default()).await
    }

    pub async fn node_with(&self, options: Options) -> Hands {
        let mut hands = Hands::new(self.builder(options).node());
        hands.lead().await;
        hands.look().await;
        hands
    }

    pub async fn save(&self, node: &Arc<Node>, document: Value) -> Saved {
        let document = JobDocument::from_value(document).unwrap();
        definitions::save_job(node, self.tenant, &document, None, Expect::Anything, &node.write(self.now()))
            .await
            .unwrap()
    }

    pub async fn record(&self, run: RunId) -> RunRecord {
        self.store.runs(&[run]).await.unwrap().remove(0).unwrap_or_else(|| panic!("there is no run {run}"))
    }

    pub async fn status(&self, run: RunId) -> Status {
        self.record(run).await.run.state.status()
    }

    /// All runs, oldest first.
    pub async fn runs(&self) -> Vec<RunRecord> {
        let query = RunQuery { tenant: Some(self.tenant), limit: 1_000, ..RunQuery::default() };
        let mut runs = Vec::new();
        let mut query = query;
        loop {
            let page = self.store.list_runs(&query).await.unwrap();
            runs.extend(page.runs);
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        runs.sort_by_key(|record| record.run.id);
        runs
    }

    /// The instants that runs were made for, in milliseconds.
    pub async fn planned(&self) -> Vec<i64> {
        let mut planned: Vec<i64> = self
            .runs()
            .await
            .iter()
            .filter_map(|record| record.run.trigger.planned_at)
            .map(|planned| planned.as_millisecond() - at(0).as_millisecond())
            .collect();
        planned.sort_unstable();
        planned
    }

    pub async fn schedule(&self, saved: Saved, name: &str) -> ScheduleId {
        let query = ScheduleQuery { job: Some(saved.job), limit: 100, ..ScheduleQuery::default() };
        let found = self.store.list_schedules(&query).await.unwrap().schedules;
        found.iter().find(|schedule| schedule.name == name).expect("the job has the schedule").id
    }

    pub async fn skips(&self, schedule: ScheduleId) -> Vec<SkipRecord> {
        let mut skips = self.store.skips(schedule, None, 100).await.unwrap();
        skips.reverse();
        skips
    }

    /// Another node takes the partition of a run, and its owner does not hear of it.
    pub async fn take_from(&self, owner: &Node, run: RunId) -> Partition {
        let part = self.record(run).await.run.part;
        let epoch = owner.territory.held(part).unwrap().epoch;
        self.store.give_partitions(owner.id, &[(part, epoch)]).await.unwrap();
        let node = NodeId::new(&Seeded::new(1), self.now());
        let until = Span::secs(3).after(self.now());
        let beat = NodeBeat { node, name: "another".into(), info: "{}".into(), until };
        self.store.beat(&beat, self.now()).await.unwrap();
        assert_ne!(self.store.take_partitions(node, &[part], self.now()).await.unwrap(), [None]);
        part
    }

    pub async fn cancel(&self, run: RunId) -> CancelAnswer {
        let ask = CancelAsk { by: Some("ann".into()), reason: None, grace: Span::secs(30) };
        let write = rota_core::store::Write {
            batch: rota_core::ids::BatchId::new(
                &Seeded::new(self.seeds.fetch_add(1, Ordering::Relaxed) as u64),
                self.now(),
            ),
            now: self.now(),
            node: None,
            generation: 0,
            request: None,
            ends: rota_core::store::Ends::default(),
            dry_run: false,
        };
        self.store.request_cancel(&write, &[run], &ask).await.unwrap()[0]
    }
}

/// A job goes, and all its runs.
pub fn deletion(job: JobId) -> Deletion {
    let ask = CancelAsk { by: None, reason: None, grace: Span::secs(1) };
    Deletion { job, ask, keep_running: false }
}

pub fn ended(verdict: Verdict) -> Status {
    Status::Ended(verdict)
}

/// A job of one step by a handler.
pub fn job(name: &str, handler: &str) -> Value {
    json!({ "name": name, "steps": [{ "id": "s", "handler": { "name": handler } }] })
}

/// `extra` laid over `base`.
pub fn with(mut base: Value, extra: Value) -> Value {
    let extra: BTreeMap<String, Value> = serde_json::from_value(extra).unwrap();
    base.as_object_mut().unwrap().extend(extra);
    base
}

/// A node and all its stages, each pass called by hand.
pub struct Hands {
    pub node: Arc<Node>,
    pub lead: Lead,
    pub look: Look,
    pub fire: Fire,
    pub promote: Promote,
    pub admit: Admit,
    pub dispatch: Dispatch,
    pub claim: Claim,
    pub heartbeat: Heartbeat,
    pub settle: Settle,
    pub reap: Reap,
    pub sweep: Sweep,
    pub scan: Scan,
    pub upkeep: Upkeep,
    pub chain: Chain,
    pub withdraw: Withdraw,
}

macro_rules! passes {
    ($($name:ident),*) => {$(
        pub async fn $name(&mut self) -> PassReport {
            let now = self.node.clock.now();
            self.$name.pass(now).await.unwrap()
        }
    )*};
}

impl Hands {
    pub fn new(node: Arc<Node>) -> Self {
        let of = || Arc::clone(&node);
        Self {
            lead: Lead::new(of()),
            look: Look::new(of()),
            fire: Fire::new(of()),
            promote: Promote::new(of()),
            admit: Admit::new(of()),
            dispatch: Dispatch::new(of()),
            claim: Claim::new(of()),
            heartbeat: Heartbeat::new(of()),
            settle: Settle::new(of()),
            reap: Reap::new(of()),
            sweep: Sweep::new(of()),
            scan: Scan::new(of()),
            upkeep: Upkeep::new(of()),
            chain: Chain::new(of()),
            withdraw: Withdraw::new(of()),
            node,
        }
    }

    passes!(
        lead, look, fire, promote, admit, dispatch, claim, heartbeat, settle, reap, sweep, scan, upkeep, chain,
        withdraw
    );

    /// What people ask this node for.
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.node))
    }

    /// Enqueues one run of a job.
    pub async fn enqueue(&self, bed: &Bed, job: &str) -> RunId {
        match self.ask(bed, RunAsk::of(bed.tenant, JobRef::Name(job.into()))).await {
            Made::Run { id, .. } => id,
            other => panic!("{job}: {other:?}"),
        }
    }

    pub async fn ask(&self, bed: &Bed, ask: RunAsk) -> Made {
        let now = bed.now();
        let planned = making::plan(&self.node, vec![ask], now).await.unwrap().remove(0);
        let run = match planned {
            Ok(run) => run,
            Err(made) => return made,
        };
        let write = self.node.write(now);
        let answers = bed.store.enqueue(&write, std::slice::from_ref(&run), &[]).await.unwrap();
        let id = run.id;
        making::take_made(&self.node, &write, vec![run], &answers);
        match answers[0] {
            rota_core::store::Enqueued::Made { status, .. } => Made::Run { id, status },
            rota_core::store::Enqueued::Duplicate { of } => Made::Duplicate { of },
            rota_core::store::Enqueued::Full => Made::Full,
            rota_core::store::Enqueued::Again { of, status, .. } => Made::Run { id: of, status },
        }
    }

    /// Starts what is ready and waits until all of it is settled. For handlers
    /// that end by themselves.
    pub async fn work(&mut self) -> usize {
        let mut done = 0;
        loop {
            let started = self.dispatch().await.done + self.claim().await.done;
            self.drain().await;
            let settled = self.settle().await.done;
            if started + settled == 0 {
                return done;
            }
            done += settled;
        }
    }

    /// Returns when no attempt is under way.
    pub async fn drain(&self) {
        for _ in 0..1_000_000 {
            if self.node.executing.running() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("attempts that should have ended are still under way");
    }

    /// Lets whatever was begun come as far as it can by itself, so that what
    /// must not have begun would be seen.
    pub async fn let_run(&self) {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    /// Ends all attempts as the death of their process would: without a word.
    pub async fn abort_all(&self) {
        self.node.executing.forget_all();
        self.drain().await;
    }

    /// Has cancels found and answered, until nothing moves.
    pub async fn drain_cancelled(&mut self) {
        for _ in 0..3 {
            self.look().await;
            self.settle().await;
            self.let_run().await;
            self.settle().await;
            self.dispatch().await;
        }
    }

    /// Beats for as long as `millis` say, in steps of a second.
    pub async fn beat_for(&mut self, bed: &Bed, millis: u64) {
        let mut left = millis;
        while left > 0 {
            let step = left.min(1_000);
            bed.go(step);
            self.lead().await;
            left -= step;
        }
    }
}
