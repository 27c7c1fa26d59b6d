//! Whoever calls may die as well: a program that has Rota inside it, killed
//! around each write that it asks for.
//!
//! The program is this test binary, started again as a process of its own.

use std::{io::Write as _, os::unix::process::ExitStatusExt as _, process::Command, sync::Arc};

use rota_core::{
    duration::Span,
    ids::RunId,
    job::JobDocument,
    lane::{LaneKey, LaneMode},
    ports::Progress,
    run::{CancelAsk, RunState, Status, Verdict},
    store::{
        CalendarPut, CancelAnswer, Deletion, Expect, Pause, PauseTarget, RunRecord, SchedulePut, ScheduleQuery, Store,
        TenantPut, Tier,
    },
};
use rota_engine::{Cancel, Engine, JobRef, Made, Options, RunAsk, executors::Call};
use rota_store::{
    failpoint::{Moment, Origin, VARIABLE, WRITES},
    postgres::{self, PostgresStore},
    sqlite::{self, SqliteStore},
};
use serde_json::json;

use super::{scene::Keeper, server::Server};
use crate::{
    books::block_on,
    node::{Place, ledger},
};

/// Where the program finds its store and its ledger.
const STORE: &str = "ROTA_IT_STORE";
const SCHEMA: &str = "ROTA_IT_SCHEMA";
const LEDGER: &str = "ROTA_IT_LEDGER";
/// So many rounds a program makes that nothing ends.
const ROUNDS: usize = 3;

/// Not a test but the program, where it is told of a store.
#[test]
fn the_program_that_calls() {
    let Ok(store) = std::env::var(STORE) else { return };
    block_on(async {
        let keeper = match std::env::var(SCHEMA) {
            Ok(schema) => Keeper::Postgres { url: store, schema },
            Err(_) => Keeper::Sqlite(store.into()),
        };
        call_everything(&keeper, &std::env::var(LEDGER).unwrap()).await;
    });
}

async fn open(keeper: &Keeper) -> Arc<dyn Store> {
    match keeper {
        Keeper::Sqlite(path) => Arc::new(SqliteStore::open(path, sqlite::Options::default()).await.unwrap()),
        Keeper::Postgres { url, schema } => {
            let options = postgres::Options { schema: Some(schema.clone()), ..postgres::Options::default() };
            Arc::new(PostgresStore::open(url, options).await.unwrap())
        }
    }
}

/// Adds a line in one write, so that no death leaves half of one.
fn note(ledger: &str, line: &str) {
    let mut file = std::fs::File::options().create(true).append(true).open(ledger).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

async fn call_everything(keeper: &Keeper, book: &str) {
    let written = book.to_owned();
    let engine = Engine::builder(open(keeper).await)
        .options(Options {
            sole: matches!(keeper, Keeper::Sqlite(_)),
            traits: vec!["patience".into()],
            node_lease: Span::secs(2),
            ..Options::default()
        })
        .handler("note", move |call: Call| {
            note(&written, &format!("executed {} {}", call.run(), std::process::id()));
            async move { Ok(json!(null)) }
        })
        .handler("linger", |call: Call| async move {
            call.progress(Progress { percent: Some(50), phase: None, message: None });
            call.cancelled().asked().await;
            Ok(json!(null))
        })
        .start()
        .await
        .unwrap();
    let store = Arc::clone(engine.store());
    let put = TenantPut { name: "default".into(), tier: Tier::Unlimited, quotas: None };
    let tenant = store.put_tenants(&[put], engine.now()).await.unwrap()[0];
    // The one before may have died between its pause and its resume.
    let targets = [PauseTarget::Tenant(tenant)];
    engine.resume(&targets).await.unwrap();
    for round in 0..ROUNDS {
        for job in [
            json!({ "name": "note", "steps": [{ "id": "s", "handler": { "name": "note" } }] }),
            json!({ "name": "nap", "schedules": [{ "name": "far", "at": "2100-01-01T00:00:00Z" }],
                "steps": [{ "id": "s", "sleep": { "for": "1h" } }] }),
            // Leased in writing, because not every node has patience.
            json!({ "name": "linger", "requires": ["patience"], "steps": [{ "id": "s", "handler": { "name": "linger" } }] }),
        ] {
            let document = JobDocument::from_value(job).unwrap();
            engine.save_job(tenant, &document, None, Expect::Anything).await.unwrap();
        }
        let asks = ["note", "note", "note", "nap", "linger"].map(|name| RunAsk::of(tenant, JobRef::Name(name.into())));
        let answers = engine.enqueue(asks.into()).await.unwrap();
        let id = |made: &Made| if let Made::Run { id, .. } = made { *id } else { panic!("{made:?}") };
        let ids: Vec<RunId> = answers.iter().map(id).collect();
        for id in &ids {
            note(book, &format!("made {id}"));
        }
        let (short, rest) = ids.split_at(3);
        let (nap, linger) = rest.split_at(1);
        let stop = Cancel { by: None, reason: None, grace: Some(Span::secs(1)) };
        for (id, answer) in short[..2].iter().zip(engine.cancel(&short[..2], &stop).await.unwrap()) {
            note(book, &format!("cancel {id} {answer:?}"));
        }
        until_ended(&engine, short).await;
        // Parked for an hour, and woken.
        until_seen(&engine, nap, "sleeps", |record| record.run.state.status() == Status::Waiting).await;
        let write = || engine.node().write(engine.now());
        store.wake(&write(), nap).await.unwrap();
        engine.cancel(nap, &stop).await.unwrap();
        until_ended(&engine, nap).await;
        // Until its progress is seen; then everything in hand is given back, as
        // by a worker that leaves, and it is started once more.
        until_seen(&engine, linger, "has said how far it is", |record| record.progress.is_some()).await;
        store.release(&write(), engine.node().worker).await.unwrap();
        engine.cancel(linger, &stop).await.unwrap();
        until_ended(&engine, linger).await;
        let pause = Pause { since: engine.now(), ..Pause::default() };
        engine.pause(&targets, &pause).await.unwrap();
        engine.resume(&targets).await.unwrap();
        let naps = store.find_jobs(&[(tenant, "nap".into())]).await.unwrap()[0].as_ref().unwrap().id;
        let query = ScheduleQuery { job: Some(naps), limit: 100, ..ScheduleQuery::default() };
        let mut found = store.list_schedules(&query).await.unwrap().schedules.into_iter();
        let far = found.find(|schedule| schedule.name == "far").unwrap();
        let due = store.cursors(&[far.id]).await.unwrap()[0].unwrap();
        store.wake_at(&write(), &[(due, Some(due.cursor.planned_at))]).await.unwrap();
        let put = SchedulePut::moving(far, Some(due.cursor), Some(due.cursor));
        store.put_schedules(&write(), &[put]).await.unwrap();
        let calendar = CalendarPut { tenant, name: format!("c{round}"), spec: "{}".into() };
        store.put_calendars(&[calendar], engine.now()).await.unwrap();
        let key = LaneKey::new(&format!("lane-{}", uuid::Uuid::now_v7()), None, &[]);
        store.lanes(&[key], LaneMode::Owned).await.unwrap();
        let deletion = Deletion {
            job: naps,
            ask: CancelAsk { by: None, reason: None, grace: Span::secs(1) },
            keep_running: false,
        };
        store.delete_jobs(&write(), &[deletion]).await.unwrap();
    }
    // What those before left lying asleep or waiting to be told.
    let all = made(book);
    let stop = Cancel { by: None, reason: None, grace: Some(Span::secs(1)) };
    let records = store.runs(&all).await.unwrap();
    let notes = store.find_jobs(&[(tenant, "note".into())]).await.unwrap()[0].as_ref().unwrap().id;
    let left = records.iter().flatten().filter(|record| record.run.job != notes).map(|record| record.run.id);
    engine.cancel(&left.collect::<Vec<_>>(), &stop).await.unwrap();
    until_ended(&engine, &all).await;
    engine.stop(Span::secs(10)).await.unwrap();
}

/// The runs that a program was told to be made, this one or those before.
fn made(path: &str) -> Vec<RunId> {
    let lines = ledger(path.as_ref());
    lines.iter().filter_map(|line| line.strip_prefix("made ")).map(|id| RunId(id.parse().unwrap())).collect()
}

async fn until_ended(engine: &Engine, runs: &[RunId]) {
    until_seen(engine, runs, "has ended", |record| matches!(record.run.state, RunState::Finished { .. })).await;
}

/// Waits for what is seen in the store: not everything that brings it about is told as an
/// event. What does not come within the time of an attempt does not come.
async fn until_seen(engine: &Engine, runs: &[RunId], what: &str, holds: impl Fn(&RunRecord) -> bool) {
    let limit = Span::secs(240).after(engine.now());
    loop {
        let records = engine.store().runs(runs).await.unwrap();
        let left: Vec<_> = records.iter().flatten().filter(|record| !holds(record)).collect();
        if left.is_empty() {
            return;
        }
        assert!(engine.now() < limit, "of {} runs none {what}: {:#?}", left.len(), left[0]);
        tokio::task::yield_now().await;
    }
}

/// Runs the program; the point it died at, if any, is in its log.
fn run(place: &Place, keeper: &Keeper, armed: Option<&str>) -> std::process::ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "crash::callers::the_program_that_calls", "--nocapture"]);
    match keeper {
        Keeper::Sqlite(path) => command.env(STORE, path),
        Keeper::Postgres { url, schema } => command.env(STORE, url).env(SCHEMA, schema),
    };
    command.env(LEDGER, place.path("ledger")).envs(armed.map(|armed| (VARIABLE, armed)));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || output.status.signal() == Some(6), "{armed:?}: {said}");
    output.status
}

/// A program dies around each write that it asks for, and the next one finds
/// everything as the first was told.
fn sweep(place: &Place, keeper: &Keeper) {
    for point in WRITES.iter().filter(|point| point.origin == Origin::Caller) {
        for moment in Moment::ALL {
            let armed = point.armed(moment, 1);
            assert_eq!(run(place, keeper, Some(&armed)).signal(), Some(6), "{armed} was not reached");
        }
    }
    assert!(run(place, keeper, None).success());
    audit(place, keeper);
    keeper.forget();
}

fn audit(place: &Place, keeper: &Keeper) {
    let lines = ledger(&place.path("ledger"));
    let books = block_on(async {
        let store = open(keeper).await;
        let ids = made(&place.text("ledger"));
        ids.iter().copied().zip(store.runs(&ids).await.unwrap()).collect::<Vec<_>>()
    });
    for (id, record) in books {
        let record = record.unwrap_or_else(|| panic!("{id} was made, and is not there"));
        let Status::Ended(verdict) = record.run.state.status() else { panic!("{record:?} was left") };
        assert!(matches!(verdict, Verdict::Succeeded | Verdict::Cancelled), "{record:?}");
        let executed = lines.iter().filter(|line| line.starts_with(&format!("executed {id} "))).collect::<Vec<_>>();
        let mut processes = executed.clone();
        processes.dedup();
        assert_eq!(executed.len(), processes.len(), "{id} was executed twice by one process: {executed:?}");
        let answers = lines.iter().filter_map(|line| line.strip_prefix(&format!("cancel {id} ")));
        for answer in answers {
            let told = [CancelAnswer::Cancelled, CancelAnswer::Ended].map(|known| format!("{known:?}") == answer);
            assert!(!told[0] || verdict == Verdict::Cancelled, "{id}: {answer}, and {verdict:?} is stored");
            assert!(!told[1] || verdict == Verdict::Succeeded, "{id}: {answer}, and {verdict:?} is stored");
        }
    }
}

#[test]
fn a_program_may_die_around_each_write_it_asks_for_on_sqlite() {
    let place = Place::in_memory();
    let keeper = Keeper::Sqlite(place.path("rota.db"));
    sweep(&place, &keeper);
}

#[test]
fn a_program_may_die_around_each_write_it_asks_for_on_postgres() {
    let server = Server::start();
    sweep(&Place::in_memory(), &Keeper::postgres(&server));
}
