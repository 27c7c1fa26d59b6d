//! A Rota inside a program, on real stores, with the system's clock.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod place;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use rota_core::{
    job::failure::{ErrorKind, RetryAdvice},
    store::RunQuery,
};
use rota_embed::{
    Call, CancelAnswer, Error, Event, FeedItem, HandlerError, Job, Made, Progress, Rota, RunId, RunRecord, Span,
    Verdict,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio_postgres::Client;

use crate::place::Place;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u32,
}

/// Doubles the number of an order.
async fn double(_: Call, order: Order) -> Result<u32, HandlerError> {
    Ok(order.id * 2)
}

async fn doubling(place: &Place) -> Rota {
    let rota = place.open().handler("double", double).start().await.unwrap();
    rota.save(Job::new("double").handler("double")).await.unwrap();
    rota
}

async fn record(rota: &Rota, run: RunId) -> RunRecord {
    rota.run(run).await.unwrap().unwrap()
}

/// Every run there is, live or ended.
async fn all(rota: &Rota) -> Vec<RunRecord> {
    let query = RunQuery { tenant: Some(rota.tenant()), limit: 100, ..RunQuery::default() };
    rota.engine().store().list_runs(&query).await.unwrap().runs
}

/// Prevents: a caller that waits for ever, or hears of another run's end.
#[tokio::test]
async fn wait_returns_the_verdict_on_every_store() {
    for place in Place::every() {
        let rota = doubling(&place).await;
        let run = rota.enqueue("double", Order { id: 21 }).await.unwrap();
        assert_eq!(rota.wait(run).await.unwrap(), Verdict::Succeeded);
        assert_eq!(record(&rota, run).await.output.as_deref(), Some("42"));
        assert_eq!(rota.wait(run).await.unwrap(), Verdict::Succeeded, "an ended run is told of at once");
        rota.stop().await.unwrap();
        drop(rota);
        place.close().await;
    }
}

/// Prevents: a payload that can never do eating up attempts.
#[tokio::test]
async fn payload_of_another_type_is_invalid_input_and_is_not_retried() {
    let rota = doubling(&Place::Memory).await;
    let run = rota.enqueue("double", json!({ "id": "seven" })).await.unwrap();
    assert_eq!(rota.wait(run).await.unwrap(), Verdict::Failed);
    let record = record(&rota, run).await;
    assert_eq!(record.failure.unwrap().kind, ErrorKind::InvalidInput);
    assert_eq!(record.run.attempts_used, 1);
    rota.stop().await.unwrap();
}

/// Prevents: a handler that knows better being asked again, or not at all.
#[tokio::test]
async fn advice_of_an_error_is_followed() {
    let rota = Place::Memory
        .open()
        .handler("hopeless", async |_: Call, (): ()| Err::<(), _>(HandlerError::never_again("gone")))
        .handler("shy", async |call: Call, (): ()| match call.attempt {
            1 => Err(HandlerError::retry_after("later", Span::millis(1))),
            attempt => Ok(attempt),
        })
        .start()
        .await
        .unwrap();
    for name in ["hopeless", "shy"] {
        rota.save(Job::new(name).handler(name).set("retry", json!({ "max_attempts": 3 }))).await.unwrap();
    }
    let hopeless = rota.enqueue("hopeless", ()).await.unwrap();
    assert_eq!(rota.wait(hopeless).await.unwrap(), Verdict::Failed);
    let failure = record(&rota, hopeless).await.failure.unwrap();
    assert_eq!((failure.advice, &*failure.message), (RetryAdvice::Never, "gone"));
    let shy = rota.enqueue("shy", ()).await.unwrap();
    assert_eq!(rota.wait(shy).await.unwrap(), Verdict::Succeeded);
    assert_eq!(record(&rota, shy).await.output.as_deref(), Some("2"));
    rota.stop().await.unwrap();
}

/// Prevents: a long handler that cannot clean up, or that nobody can stop.
#[tokio::test]
async fn cancellation_reaches_the_handler() {
    let (started, mut has_started) = mpsc::unbounded_channel();
    let (told, mut was_told) = mpsc::unbounded_channel();
    let rota = Place::Memory
        .open()
        .handler("patient", move |call: Call, (): ()| {
            let (started, told) = (started.clone(), told.clone());
            async move {
                let mut cancelled = call.cancelled();
                call.progress(Progress { percent: Some(50), ..Progress::default() });
                started.send(call.run()).unwrap();
                cancelled.asked().await;
                told.send(call.run()).unwrap();
                Err::<(), _>(HandlerError::new("stopped half way"))
            }
        })
        .start()
        .await
        .unwrap();
    rota.save(Job::new("patient").handler("patient")).await.unwrap();
    let run = rota.enqueue("patient", ()).await.unwrap();
    assert_eq!(has_started.recv().await, Some(run));
    assert_eq!(rota.cancel(run).await.unwrap(), CancelAnswer::Asked);
    assert_eq!(was_told.recv().await, Some(run));
    assert_eq!(rota.wait(run).await.unwrap(), Verdict::Cancelled);
    assert_eq!(rota.cancel(run).await.unwrap(), CancelAnswer::Ended);
    rota.stop().await.unwrap();
}

/// A Rota whose one run has started, and ends when the gate is opened.
async fn at_the_gate(place: &Place) -> (Rota, RunId, Arc<Notify>) {
    let (started, mut has_started) = mpsc::unbounded_channel();
    let gate = Arc::new(Notify::new());
    let closed = Arc::clone(&gate);
    let slow = move |_: Call, (): ()| {
        let (started, gate) = (started.clone(), Arc::clone(&closed));
        async move {
            started.send(()).unwrap();
            gate.notified().await;
            Ok(())
        }
    };
    let rota = place.open().handler("slow", slow).start().await.unwrap();
    rota.save(Job::new("slow").handler("slow")).await.unwrap();
    let run = rota.enqueue("slow", ()).await.unwrap();
    has_started.recv().await.unwrap();
    (rota, run, gate)
}

/// Prevents: a deployment that throws away work in hand.
#[tokio::test]
async fn stop_drains_what_is_under_way() {
    let place = Place::directory();
    let (rota, run, gate) = at_the_gate(&place).await;
    let later = rota.enqueue_at("slow", (), Span::secs(3_600).after(rota.engine().now())).await.unwrap();
    let opens = async {
        // The stop is well under way when all other partitions are given up.
        while rota.engine().stats().partitions.get() > 1 {
            record(&rota, run).await;
        }
        gate.notify_one();
    };
    let (waited, stopped, ()) = tokio::join!(rota.wait(later), rota.stop(), opens);
    stopped.unwrap();
    assert!(matches!(waited, Err(Error::Stopped(run)) if run == later), "{waited:?}");
    assert_eq!(rota.wait(run).await.unwrap(), Verdict::Succeeded, "it was settled before the node left");
    drop(rota);
    place.close().await;
}

/// Prevents: work that is lost because a stop could not wait for it.
#[tokio::test]
async fn what_a_stop_cuts_short_starts_again_at_the_next_start() {
    let place = Place::directory();
    let (rota, run, _gate) = at_the_gate(&place).await;
    rota.stop_within(Span::millis(0)).await.unwrap();
    let waited = rota.wait(run).await;
    assert!(matches!(waited, Err(Error::Stopped(_))), "{waited:?}");
    drop(rota);
    let attempt = async |call: Call, (): ()| Ok(call.attempt);
    let rota = place.open().handler("slow", attempt).start().await.unwrap();
    assert_eq!(rota.wait(run).await.unwrap(), Verdict::Succeeded);
    assert_eq!(record(&rota, run).await.output.as_deref(), Some("1"), "a stop costs no attempt");
    rota.stop().await.unwrap();
    drop(rota);
    place.close().await;
}

/// Prevents: jobs and schedules that are lost or doubled by a restart.
#[tokio::test]
async fn saved_again_at_the_next_start_a_job_is_the_same() {
    let place = Place::directory();
    let job = || Job::new("nightly").handler("double").cron("night", "30 2 * * *");
    let rota = doubling(&place).await;
    let first = rota.save(job()).await.unwrap();
    rota.stop().await.unwrap();
    drop(rota);
    let rota = doubling(&place).await;
    let second = rota.save(job()).await.unwrap();
    assert!(first.changed && !second.changed);
    assert_eq!((first.job, first.version), (second.job, second.version));
    rota.stop().await.unwrap();
    drop(rota);
    place.close().await;
}

/// Prevents: a schedule that stays words.
#[tokio::test]
async fn schedules_in_code_fire() {
    let rota = doubling(&Place::Memory).await;
    let mut events = rota.subscribe();
    let job = Job::new("often").handler("double").payload(json!({ "id": 1 })).every("often", "1s");
    let saved = rota.save(job).await.unwrap();
    let fired = loop {
        if let Event::ScheduleFired { job, run, .. } = events.recv().await.unwrap() {
            assert_eq!(job, saved.job);
            break run;
        }
    };
    assert_eq!(rota.wait(fired).await.unwrap(), Verdict::Succeeded);
    rota.stop().await.unwrap();
}

/// Prevents: a mistake that is found only when the job should have run.
#[tokio::test]
async fn mistakes_are_told_where_they_are_made() {
    let opened = Rota::open("mysql://rota:secret@db").start().await;
    assert!(matches!(&opened, Err(Error::Address)), "{opened:?}");
    let rota = doubling(&Place::Memory).await;
    let refused = rota.save(Job::new("bad").handler("double").cron("when", "61 * * * *")).await.unwrap_err();
    assert!(refused.to_string().contains("schedules[0].cron"), "{refused}");
    let unknown = rota.enqueue("nobody", ()).await;
    assert!(matches!(&unknown, Err(Error::NoJob(name)) if name == "nobody"), "{unknown:?}");
    let made = rota.enqueue_many("nobody", [1]).await.unwrap();
    assert_eq!(made, [Made::NoJob]);
    rota.stop().await.unwrap();
}

/// Prevents: many runs that cost a transaction each, or come back in disorder.
#[tokio::test]
async fn many_are_answered_in_their_order() {
    let rota = doubling(&Place::Memory).await;
    let made = rota.enqueue_many("double", (0..5).map(|id| Order { id })).await.unwrap();
    for (n, made) in made.iter().enumerate() {
        let Made::Run { id, .. } = made else { panic!("{made:?}") };
        assert_eq!(rota.wait(*id).await.unwrap(), Verdict::Succeeded);
        assert_eq!(record(&rota, *id).await.output.as_deref(), Some(&*(n * 2).to_string()));
    }
    rota.stop().await.unwrap();
}

/// Prevents: a program that shares a database with others failing their runs,
/// because it does not have their handlers.
#[tokio::test]
async fn a_run_goes_to_the_process_that_has_its_handler() {
    let place = Place::schema();
    let able = doubling(&place).await;
    let first = able.enqueue("double", Order { id: 1 }).await.unwrap();
    assert_eq!(able.wait(first).await.unwrap(), Verdict::Succeeded);
    let unable = place.open().start().await.unwrap();
    let made = unable.enqueue_many("double", (2..6).map(|id| Order { id })).await.unwrap();
    for made in made {
        let Made::Run { id, .. } = made else { panic!("{made:?}") };
        assert_eq!(unable.wait(id).await.unwrap(), Verdict::Succeeded);
    }
    unable.stop().await.unwrap();
    able.stop().await.unwrap();
    drop((able, unable));
    place.close().await;
}

/// Asks for a run of `double` in a transaction that commits.
async fn commit(rota: &Rota, client: &mut Client, id: u32, key: Option<&str>) {
    let transaction = client.transaction().await.unwrap();
    rota.enqueue_in(&transaction, "double", Order { id }, key).await.unwrap();
    transaction.commit().await.unwrap();
    rota.look_into_inbox();
}

/// Prevents: a mail about an order that never was, and an order without its
/// mail.
#[tokio::test]
async fn enqueued_in_a_transaction_a_run_commits_or_vanishes_with_it() {
    let place = Place::schema();
    let seen = Arc::new(AtomicU32::new(0));
    let sum = Arc::clone(&seen);
    let count = move |_: Call, order: Order| {
        sum.fetch_add(order.id, Ordering::Relaxed);
        std::future::ready(Ok(()))
    };
    let rota = place.open().handler("double", count).start().await.unwrap();
    rota.save(Job::new("double").handler("double")).await.unwrap();
    let mut events = rota.subscribe();
    let mut client = place.client().await;

    let transaction = client.transaction().await.unwrap();
    rota.enqueue_in(&transaction, "double", Order { id: 100 }, None).await.unwrap();
    transaction.rollback().await.unwrap();
    commit(&rota, &mut client, 1, None).await;

    let ended = loop {
        if let Event::RunEnded { run, .. } = events.recv().await.unwrap() {
            break run;
        }
    };
    assert_eq!(rota.wait(ended).await.unwrap(), Verdict::Succeeded);
    // Requests are admitted in the order of their numbers: had the first one
    // been there, it would have been made into a run before.
    assert_eq!(all(&rota).await.len(), 1);
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    rota.stop().await.unwrap();
    drop(rota);
    place.close().await;
}

/// Prevents: a request that is sent again, because its answer was lost, being
/// done again.
#[tokio::test]
async fn requests_under_one_key_make_one_run() {
    let place = Place::schema();
    let rota = doubling(&place).await;
    let mut events = rota.subscribe();
    let mut client = place.client().await;
    for (id, key) in [(1, Some("order-1")), (1, Some("order-1")), (2, None)] {
        commit(&rota, &mut client, id, key).await;
    }
    // The last request is admitted after the others.
    let mut made = Vec::new();
    while made.last() != Some(&Some("4".to_owned())) {
        if let Event::RunEnded { run, .. } = events.recv().await.unwrap() {
            made.push(record(&rota, run).await.output.map(String::from));
        }
    }
    assert_eq!(all(&rota).await.len(), 2, "{made:?}");
    rota.stop().await.unwrap();
    drop(rota);
    place.close().await;
}

/// Prevents: a page that shows what one node does as if it were all.
#[tokio::test]
async fn one_feed_tells_of_every_node_on_the_database() {
    let place = Place::schema();
    let (here, there) = (doubling(&place).await, doubling(&place).await);
    let mut feed = here.engine().follow();
    let mut asked = Vec::new();
    // The other one begins to tell when it has heard that somebody follows.
    let heard = loop {
        let another = async {
            let run = there.enqueue("double", Order { id: 1 }).await.unwrap();
            there.wait(run).await.unwrap();
            run
        };
        tokio::select! {
            told = feed.next() => if let Some(FeedItem::There(Event::RunMade { run, .. })) = told { break run },
            run = another => asked.push(run),
        }
    };
    assert!(asked.contains(&heard) || there.run(heard).await.unwrap().is_some(), "{heard}");
    for rota in [here, there] {
        rota.stop().await.unwrap();
    }
    place.close().await;
}

/// Prevents: a request nobody will ever read.
#[tokio::test]
async fn only_postgres_has_an_inbox() {
    let place = Place::schema();
    let mut client = place.client().await;
    let transaction = client.transaction().await.unwrap();
    let rota = doubling(&Place::Memory).await;
    let refused = rota.enqueue_in(&transaction, "double", Order { id: 1 }, None).await;
    assert!(matches!(refused, Err(Error::NoInbox)), "{refused:?}");
    rota.stop().await.unwrap();
}
