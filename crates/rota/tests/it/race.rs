//! Two wishes at the same moment, on each store: one of them was first, and what
//! was answered is what is stored.

use std::{collections::HashMap, sync::Arc};

use rota_core::{
    duration::Span,
    ids::{JobId, RunId, ScheduleId, TenantId},
    job::JobDocument,
    ports::{Clock as _, Seeded},
    run::{Status, Verdict},
    store::{CancelAnswer, Expect, Pause, PauseTarget, RunQuery, ScheduleQuery, Store, TenantPut, Tier},
};
use rota_engine::{
    Cancel, Engine, JobRef, Made, Options, RunAsk,
    clock::TestClock,
    definitions,
    executors::Call,
    node::Node,
    stages::{Stage as _, fire::Fire, lead::Lead, look::Look},
};
use rota_store::{
    postgres::{self, PostgresStore},
    sqlite::{self, SqliteStore},
};
use serde_json::{Value, json};

use crate::node::Place;

async fn on_sqlite<F: Future>(test: impl FnOnce(Arc<dyn Store>) -> F) {
    let place = Place::in_memory();
    let store = SqliteStore::open(&place.path("rota.db"), sqlite::Options::default()).await.unwrap();
    test(Arc::new(store)).await;
}

async fn on_postgres<F: Future>(test: impl FnOnce(Arc<dyn Store>) -> F) {
    let url = std::env::var("ROTA_TEST_POSTGRES")
        .expect("ROTA_TEST_POSTGRES names no server: run `make test`, or `eval \"$(scripts/services env)\"` first");
    let schema = Some(format!("t_{}", uuid::Uuid::now_v7().simple()));
    let options = postgres::Options { schema, ..postgres::Options::default() };
    let store = Arc::new(PostgresStore::open(&url, options).await.unwrap());
    test(Arc::clone(&store) as Arc<dyn Store>).await;
    store.drop_schema().await.unwrap();
}

async fn tenant(store: &Arc<dyn Store>) -> TenantId {
    let put = TenantPut { name: "acme".into(), tier: Tier::Unlimited, quotas: None };
    store.put_tenants(&[put], jiff::Timestamp::UNIX_EPOCH).await.unwrap()[0]
}

fn document(text: Value) -> JobDocument {
    JobDocument::from_value(text).unwrap()
}

/// A cancel that meets the end of its run, a thousand times: one verdict each,
/// the one that the answer promised.
async fn cancel_and_completion(store: Arc<dyn Store>) {
    const RUNS: usize = 1_000;
    const AT_ONCE: usize = 50;
    let engine = Engine::builder(Arc::clone(&store))
        .handler("note", |call: Call| async move {
            // Some end at once, others a few turns later.
            for _ in 0..call.payload["turns"].as_u64().unwrap_or_default() {
                tokio::task::yield_now().await;
            }
            Ok(Value::Null)
        })
        .start()
        .await
        .unwrap();
    let tenant = tenant(&store).await;
    let job = json!({ "name": "note", "steps": [{ "id": "s", "handler": { "name": "note" } }] });
    engine.save_job(tenant, &document(job), None, Expect::Anything).await.unwrap();
    let mut seen: HashMap<String, usize> = HashMap::new();
    for first in (0..RUNS).step_by(AT_ONCE) {
        let mut events = engine.subscribe();
        let ask = |n: usize| {
            RunAsk::of(tenant, JobRef::Name("note".into())).with_payload(json!({ "turns": n % 7 * (first / AT_ONCE) }))
        };
        let made = engine.enqueue((0..AT_ONCE).map(ask).collect()).await.unwrap();
        let ids: Vec<RunId> =
            made.iter().map(|made| if let Made::Run { id, .. } = made { *id } else { panic!("{made:?}") }).collect();
        let stop = Cancel::default();
        let mut answers = Vec::new();
        for some in ids.chunks(5) {
            answers.extend(engine.cancel(some, &stop).await.unwrap());
        }
        let records = loop {
            let records = store.runs(&ids).await.unwrap();
            let ended = |record: &rota_core::store::RunRecord| matches!(record.run.state.status(), Status::Ended(_));
            if records.iter().flatten().all(ended) {
                break records;
            }
            drop(events.recv().await);
        };
        for ((id, answer), record) in ids.iter().zip(answers).zip(records) {
            let status = record.unwrap().run.state.status();
            let fits = match answer {
                CancelAnswer::Cancelled => status == Status::Ended(Verdict::Cancelled),
                CancelAnswer::Ended => status == Status::Ended(Verdict::Succeeded),
                CancelAnswer::Asked => {
                    matches!(status, Status::Ended(Verdict::Cancelled | Verdict::Succeeded))
                }
                CancelAnswer::AlreadyAsked | CancelAnswer::NotFound => false,
            };
            assert!(fits, "{id} was answered {answer:?} and is {status:?}");
            *seen.entry(format!("{answer:?}")).or_default() += 1;
        }
    }
    assert!(seen.len() > 1, "there was no race: {seen:?}");
    engine.stop(Span::secs(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_that_meets_completion_is_answered_as_it_is_stored_on_sqlite() {
    on_sqlite(cancel_and_completion).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_that_meets_completion_is_answered_as_it_is_stored_on_postgres() {
    on_postgres(cancel_and_completion).await;
}

/// A node whose time is turned by hand.
struct Turned {
    store: Arc<dyn Store>,
    clock: Arc<TestClock>,
    node: Arc<Node>,
    lead: Lead,
    fire: Fire,
    tenant: TenantId,
}

impl Turned {
    async fn new(store: Arc<dyn Store>) -> Self {
        let clock = Arc::new(TestClock::new("2026-01-05T10:00:00.001Z".parse().unwrap()));
        let node = Engine::builder(Arc::clone(&store))
            .options(Options::default())
            .clock(Arc::clone(&clock) as Arc<dyn rota_core::ports::Clock>)
            .random(Arc::new(Seeded::new(7)))
            .handler("note", |_: Call| async { Ok(Value::Null) })
            .node();
        let tenant = tenant(&store).await;
        let (mut lead, mut look) = (Lead::new(Arc::clone(&node)), Look::new(Arc::clone(&node)));
        lead.pass(clock.now()).await.unwrap();
        look.pass(clock.now()).await.unwrap();
        Self { lead, fire: Fire::new(Arc::clone(&node)), store, clock, node, tenant }
    }

    /// Saves a job with these schedules.
    async fn save_with(&self, name: &str, schedules: Value) -> JobId {
        let job =
            json!({ "name": name, "schedules": schedules, "steps": [{ "id": "s", "handler": { "name": "note" } }] });
        let (job, now) = (document(job), self.clock.now());
        let saved =
            definitions::save_job(&self.node, self.tenant, &job, None, Expect::Anything, &self.node.write(now)).await;
        saved.unwrap().job
    }

    /// Saves a job with one schedule, of this edition.
    async fn save(&self, name: &str, edition: u32) -> ScheduleId {
        let schedule = json!({ "name": "s", "every": "10s", "overlap": "allow", "payload": { "edition": edition } });
        let job = self.save_with(name, json!([schedule])).await;
        let query = ScheduleQuery { job: Some(job), limit: 1, ..ScheduleQuery::default() };
        self.store.list_schedules(&query).await.unwrap().schedules[0].id
    }

    /// How many runs of the schedule the first edition made.
    async fn made(&self, schedule: ScheduleId) -> usize {
        let query = RunQuery { schedule: Some(schedule), limit: 1_000, ..RunQuery::default() };
        let runs = self.store.list_runs(&query).await.unwrap().runs;
        let old = |payload: &str| payload.contains("\"edition\":1");
        runs.iter().filter(|record| record.run.payload.as_deref().is_some_and(old)).count()
    }

    /// On to the next instant, with the node's word kept.
    async fn turn(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.clock.advance(Span::secs(1));
            self.lead.pass(self.clock.now()).await.unwrap();
        }
    }

    /// Changes a schedule in the very moment in which it fires, and answers how
    /// many runs of its first edition there were when the change was
    /// acknowledged.
    async fn race(&mut self, change: Change, schedule: ScheduleId, name: &str, fire_first: bool) -> usize {
        let now = self.clock.now();
        let mut fire = std::mem::replace(&mut self.fire, Fire::new(Arc::clone(&self.node)));
        let changed = async {
            match change {
                Change::Pause => {
                    let write = self.node.write(now);
                    let pause = Pause { since: now, ..Pause::default() };
                    self.store
                        .set_pauses(&write, &[PauseTarget::Schedule(schedule)], Some(&pause))
                        .await
                        .map(drop)
                        .unwrap();
                }
                Change::Edit => drop(self.save(name, 2).await),
                Change::Delete => drop(self.save_with(name, json!([])).await),
            }
            self.made(schedule).await
        };
        let (fired, made) = if fire_first {
            tokio::join!(fire.pass(now), changed)
        } else {
            let (made, fired) = tokio::join!(changed, fire.pass(now));
            (fired, made)
        };
        fired.unwrap();
        self.fire = fire;
        made
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Pause,
    Edit,
    Delete,
}

/// No instant after an acknowledged change fires by the old definition.
async fn change_and_fire(store: Arc<dyn Store>) {
    let mut turned = Turned::new(store).await;
    let mut before = HashMap::new();
    for round in 0..60 {
        let change = [Change::Pause, Change::Edit, Change::Delete][round % 3];
        let name = format!("job-{round}");
        let schedule = turned.save(&name, 1).await;
        turned.fire.doubt();
        turned.fire.pass(turned.clock.now()).await.unwrap();
        turned.turn(10).await;
        let made = turned.race(change, schedule, &name, round % 2 == 0).await;
        *before.entry((change as u8, made)).or_insert(0) += 1;
        for _ in 0..3 {
            turned.fire.doubt();
            while turned.fire.pass(turned.clock.now()).await.unwrap().more {}
            turned.turn(5).await;
        }
        assert_eq!(turned.made(schedule).await, made, "{change:?} in round {round}");
    }
    let (early, late) = (before.keys().any(|(_, made)| *made == 0), before.keys().any(|(_, made)| *made > 0));
    assert!(early && late, "there was no race: {before:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fires_by_a_definition_that_was_changed_before_on_sqlite() {
    on_sqlite(change_and_fire).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fires_by_a_definition_that_was_changed_before_on_postgres() {
    on_postgres(change_and_fire).await;
}
