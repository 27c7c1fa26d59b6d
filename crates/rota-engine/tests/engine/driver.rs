//! The whole engine, turned by its driver.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    job::JobDocument,
    ports::{Random, Seeded},
    run::{Status, Verdict},
    store::{DeadFate, Expect, Store, TenantPut, Tier},
};
use rota_engine::{
    Cancel, Engine, Event, JobRef, Made, Options, Redrive, RunAsk,
    executors::{Call, HandlerError},
};
use rota_store::sqlite::SqliteStore;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::{
    bed::{Bed, at, job, with},
    faulty::{Fate, Faulty, Kind, Line, Parcel, Untapped},
};

async fn next_end(events: &mut broadcast::Receiver<Event>) -> (rota_core::ids::RunId, Verdict) {
    loop {
        if let Event::RunEnded { run, verdict, .. } = events.recv().await.unwrap() {
            return (run, verdict);
        }
    }
}

struct Whole {
    engine: Engine,
    store: Arc<dyn Store>,
    tenant: rota_core::ids::TenantId,
}

async fn start() -> Whole {
    start_on(Arc::new(SqliteStore::memory().unwrap())).await
}

async fn start_on(store: Arc<dyn Store>) -> Whole {
    let put = TenantPut { name: "acme".into(), tier: Tier::Unlimited, quotas: None };
    let tenant = store.put_tenants(&[put], at(0)).await.unwrap()[0];
    let engine = Engine::builder(Arc::clone(&store))
        .handler("noop", |call: Call| async move { Ok(json!({ "n": call.payload["n"] })) })
        .handler("fail", |_: Call| async move { Err(HandlerError::retry_after("not now", Span::secs(1))) })
        .handler("forever", |_: Call| async move {
            std::future::pending::<()>().await;
            Ok(Value::Null)
        })
        .start()
        .await
        .unwrap();
    Whole { engine, store, tenant }
}

impl Whole {
    async fn save(&self, document: Value) {
        let document = JobDocument::from_value(document).unwrap();
        self.engine.save_job(self.tenant, &document, None, Expect::Anything).await.unwrap();
    }

    fn ask(&self, job: &str) -> RunAsk {
        RunAsk::of(self.tenant, JobRef::Name(job.into()))
    }
}

/// Loses the answer to the first taking of partitions.
#[derive(Default)]
struct FirstTakeLost(AtomicBool);

impl Line for FirstTakeLost {
    fn fate(&self, what: &'static str, _: Kind) -> Fate {
        let lost = what == "take_partitions" && !self.0.swap(true, Ordering::SeqCst);
        if lost { Fate::Unanswered } else { Fate::Through }
    }

    fn post(&self, _: Timestamp, parcel: Parcel) {
        parcel();
    }

    fn has_come(&self, _: Timestamp) -> bool {
        true
    }
}

/// A database that stumbles at that moment ended a node that had joined already.
#[tokio::test]
async fn a_node_that_has_joined_starts_although_it_does_not_know_what_it_took() {
    let lost = Arc::new(FirstTakeLost::default());
    let line = Arc::clone(&lost) as Arc<dyn Line>;
    let store = Faulty::over(Arc::new(SqliteStore::memory().unwrap()), line, Arc::new(Untapped));
    let whole = start_on(Arc::new(store)).await;
    assert!(lost.0.load(Ordering::SeqCst));
    whole.save(job("hello", "noop")).await;
    let mut events = whole.engine.subscribe();
    let made = whole.engine.enqueue(vec![whole.ask("hello").with_payload(json!({ "n": 1 }))]).await.unwrap();
    assert!(matches!(made[0], Made::Run { .. }), "{made:?}");
    assert_eq!(next_end(&mut events).await.1, Verdict::Succeeded);
    whole.engine.stop(Span::secs(1)).await.unwrap();
}

#[tokio::test]
async fn what_is_enqueued_runs_and_ends() {
    let whole = start().await;
    whole.save(job("hello", "noop")).await;
    let mut events = whole.engine.subscribe();
    let asks = (0..100).map(|n| whole.ask("hello").with_payload(json!({ "n": n }))).collect();
    let made = whole.engine.enqueue(asks).await.unwrap();
    assert!(made.iter().all(|made| matches!(made, Made::Run { status: Status::Queued, .. })));
    for _ in 0..100 {
        assert_eq!(next_end(&mut events).await.1, Verdict::Succeeded);
    }
    assert_eq!(whole.engine.stats().ended_as(Verdict::Succeeded), 100);
    whole.engine.stop(Span::secs(1)).await.unwrap();
    assert_eq!(whole.store.nodes(whole.engine.now()).await.unwrap(), [], "it has left");
}

#[tokio::test]
async fn a_schedule_saved_on_a_running_engine_fires() {
    let whole = start().await;
    let mut events = whole.engine.subscribe();
    whole.save(with(job("tick", "noop"), json!({ "schedules": [{ "name": "now", "every": "1s" }] }))).await;
    assert_eq!(next_end(&mut events).await.1, Verdict::Succeeded);
    whole.engine.stop(Span::secs(1)).await.unwrap();
}

#[tokio::test]
async fn a_running_attempt_is_cancelled_through_the_handle() {
    let whole = start().await;
    whole.save(job("forever", "forever")).await;
    let mut events = whole.engine.subscribe();
    let Made::Run { id, .. } = whole.engine.enqueue(vec![whole.ask("forever")]).await.unwrap().remove(0) else {
        panic!("it was not made")
    };
    loop {
        if let Event::RunStarted { run, .. } = events.recv().await.unwrap() {
            assert_eq!(run, id);
            break;
        }
    }
    let ask = Cancel { by: None, reason: None, grace: Some(Span::secs(1)) };
    whole.engine.cancel(&[id], &ask).await.unwrap();
    assert_eq!(next_end(&mut events).await, (id, Verdict::Cancelled));
    whole.engine.stop(Span::secs(1)).await.unwrap();
}

/// What does not end within the limit is handed back at once, and its
/// partitions are free.
#[tokio::test]
async fn a_stop_hands_back_what_does_not_end_in_time() {
    let whole = start().await;
    whole.save(job("forever", "forever")).await;
    let mut events = whole.engine.subscribe();
    let Made::Run { id, .. } = whole.engine.enqueue(vec![whole.ask("forever")]).await.unwrap().remove(0) else {
        panic!("it was not made")
    };
    while !matches!(events.recv().await.unwrap(), Event::RunStarted { .. }) {}
    whole.engine.stop(Span::millis(1)).await.unwrap();
    let record = whole.store.runs(&[id]).await.unwrap().remove(0).unwrap();
    assert_eq!(record.run.state.status(), Status::Queued);
    assert_eq!((record.run.losses, record.run.attempts_used), (0, 0), "at no cost");
    let held = whole.store.partitions().await.unwrap();
    assert!(held.iter().all(|lease| lease.node.is_none()));
}

/// What used up its attempts is made again when a person says so, once; and so is any run
/// that has ended.
#[tokio::test]
async fn a_dead_letter_is_driven_again() {
    let whole = start().await;
    whole.save(with(job("broken", "fail"), json!({ "retry": { "max_attempts": 1 } }))).await;
    whole.save(job("hello", "noop")).await;
    for (name, verdict) in [("broken", Verdict::Dead), ("hello", Verdict::Succeeded)] {
        let mut events = whole.engine.subscribe();
        let Made::Run { id, .. } = whole.engine.trigger(whole.tenant, JobRef::Name(name.into())).await.unwrap() else {
            panic!("it was not made")
        };
        assert_eq!(next_end(&mut events).await, (id, verdict));
        let how = Redrive { by: Some("ann".into()), ..Redrive::default() };
        let made = whole.engine.redrive(&[id], &how).await.unwrap().remove(0);
        let Some(Made::Run { id: again, .. }) = made else { panic!("{made:?}") };
        assert_eq!(next_end(&mut events).await, (again, verdict));
        let record = whole.store.runs(&[again]).await.unwrap().remove(0).unwrap();
        assert_eq!(record.run.trigger.metadata, Some(json!({ "from": id })));
        let twice = whole.engine.redrive(&[id], &how).await.unwrap().remove(0);
        assert!(matches!(twice, Some(Made::Duplicate { of }) if of == again), "{twice:?}");
        let mark = whole.store.dead_marks(&[id]).await.unwrap().remove(0).unwrap();
        assert_eq!((mark.fate, mark.by.as_deref()), (DeadFate::Redriven, Some("ann")), "{name}");
    }
    whole.engine.stop(Span::secs(1)).await.unwrap();
}

/// Settlers, dispatch and looks at work on several threads at once: each run is
/// executed once, under slots, retries and more runs than memory holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn thousands_of_runs_on_several_threads_each_end_once() {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::memory().unwrap());
    let put = TenantPut { name: "acme".into(), tier: Tier::Unlimited, quotas: None };
    let tenant = store.put_tenants(&[put], at(0)).await.unwrap()[0];
    let calls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let options = rota_engine::Options { backlog_max: 500, slots: 64, ..Default::default() };
    let engine = Engine::builder(Arc::clone(&store))
        .options(options)
        .handler("count", move |call: Call| {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            async move {
                if call.payload["n"].as_u64().is_some_and(|n| n % 100 == 0) && call.attempt == 1 {
                    return Err(HandlerError::retry_after("once", Span::millis(5)));
                }
                if call.payload["n"].as_u64().is_some_and(|n| n % 7 == 0) {
                    tokio::task::yield_now().await;
                }
                Ok(Value::Null)
            }
        })
        .start()
        .await
        .unwrap();
    let keyed = json!({ "concurrency": { "limit": 3, "key": "{{ payload.key }}" } });
    for document in [job("plain", "count"), with(job("keyed", "count"), keyed)] {
        let document = JobDocument::from_value(document).unwrap();
        engine.save_job(tenant, &document, None, Expect::Anything).await.unwrap();
    }
    let mut events = engine.subscribe();
    for batch in 0..10_u64 {
        let ask = |n: u64| {
            let name = if n.is_multiple_of(10) { "keyed" } else { "plain" };
            let payload = json!({ "n": batch * 200 + n, "key": n % 4 });
            RunAsk::of(tenant, JobRef::Name(name.into())).with_payload(payload)
        };
        engine.enqueue((0..200).map(ask).collect()).await.unwrap();
    }
    while engine.stats().ended_in_all() < 2_000 {
        // A feed that is read slowly says so, and the counters tell.
        drop(events.recv().await);
    }
    assert_eq!(engine.stats().ended_as(Verdict::Succeeded), 2_000);
    assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), 2_020, "each once, and twenty twice");
    assert_eq!(engine.stats().stale.get(), 0);
    engine.stop(Span::secs(5)).await.unwrap();
}

/// Chance that runs out: whoever asks for more panics.
struct Chance {
    bits: Seeded,
    out: AtomicBool,
}

impl Random for Chance {
    fn bits(&self) -> u64 {
        assert!(!self.out.load(Ordering::SeqCst), "out of chance");
        self.bits.bits()
    }
}

/// A node that goes on without one of its stages accepts work it never ends.
#[tokio::test]
async fn a_stage_that_panics_is_told_of_and_ends_the_engine() {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::memory().unwrap());
    let put = TenantPut { name: "acme".into(), tier: Tier::Unlimited, quotas: None };
    let tenant = store.put_tenants(&[put], at(0)).await.unwrap()[0];
    let chance = Arc::new(Chance { bits: Seeded::new(1), out: AtomicBool::new(false) });
    let theirs = Arc::clone(&chance);
    let engine = Engine::builder(Arc::clone(&store))
        .random(chance)
        .handler("last", move |_: Call| {
            // The settlement needs a name for its batch.
            theirs.out.store(true, Ordering::SeqCst);
            async move { Ok(Value::Null) }
        })
        .start()
        .await
        .unwrap();
    let whole = Whole { engine, store, tenant };
    whole.save(job("last", "last")).await;
    whole.engine.enqueue(vec![whole.ask("last")]).await.unwrap();
    assert!(!whole.engine.broken().await.is_empty());
}

/// A store that hangs must not hold a node that is asked to stop: its supervisor
/// would kill it, and all the attempts that could still have been ended in order.
#[tokio::test]
async fn a_stop_ends_in_time_although_the_store_hangs() {
    let bed = Bed::new().await;
    let engine = bed.builder(Options::default()).start().await.unwrap();
    let document = JobDocument::from_value(job("long", "wait")).unwrap();
    engine.save_job(bed.tenant, &document, None, Expect::Anything).await.unwrap();
    engine.enqueue(vec![RunAsk::of(bed.tenant, JobRef::Name("long".into()))]).await.unwrap();
    bed.work.wait_for_going(1).await;
    bed.faults.set_hung(true);
    let began = bed.now();
    let stopping = engine.stop(Span::secs(7));
    tokio::pin!(stopping);
    let stopped = loop {
        tokio::select! {
            biased;
            stopped = &mut stopping => break stopped,
            () = tokio::task::yield_now() => drop(bed.go(10)),
        }
        assert!(bed.now() < Span::secs(60).after(began), "it hangs with its store");
    };
    assert!(stopped.is_err(), "the store was not told");
    assert!(bed.now() <= Span::secs(13).after(began), "{}", bed.now());
    assert_eq!(engine.node().executing.running(), 0);
}
