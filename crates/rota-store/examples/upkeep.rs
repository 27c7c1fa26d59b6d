//! Measures how long upkeep holds the writer of a large SQLite file.
//!
//! `cargo run --release -p rota-store --example upkeep -- FILE RUNS SKIPS` fills a new
//! file with finished runs over five days and with skips, then lets three of the days and
//! all skips go while a writer asks for its turn every few milliseconds. It prints how
//! long the slices took, by name, before their commits, and how long the writer waited.
//! The file is deleted afterwards.

#![allow(clippy::print_stdout, reason = "what it prints is its answer")]

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    duration::Span,
    ids::NodeId,
    store::{NodeBeat, NodeStore, Tend, UpkeepStore},
};
use rota_store::{
    RawLoad,
    sqlite::{Options, SqliteStore, raw_loop},
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const DAYS: u64 = 5;
const GOING: i64 = 3;

fn at(day: i64) -> Result<Timestamp, jiff::Error> {
    Timestamp::from_second(1_767_607_200 + day * 86_400)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let usage = "usage: upkeep FILE RUNS SKIPS";
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(runs), Some(skips)) = (args.next(), args.next(), args.next()) else {
        return Err(usage.into());
    };
    let path = Path::new(&path);
    fill(path, runs.parse()?, skips.parse()?).await?;
    measure(path).await?;
    for end in ["", "-wal", "-shm", ".lock"] {
        drop(std::fs::remove_file(format!("{}{end}", path.display())));
    }
    Ok(())
}

async fn fill(path: &Path, runs: u64, skips: u64) -> Result<(), Failure> {
    drop(SqliteStore::open(path, Options::default()).await?);
    let started = Instant::now();
    for day in 0..DAYS {
        let load = RawLoad { runs: runs / DAYS, batch: 1_000, claimed: false, mixed: true, payload: 200 };
        raw_loop(path, load, at(day as i64)?)?;
        println!("{} runs after {:.0?}", (day + 1) * (runs / DAYS), started.elapsed());
    }
    let connection = rusqlite::Connection::open(path)?;
    let sql = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
         INSERT INTO skip (schedule, from_at, to_at, count, reason, fired) \
         SELECT (i * 7919) % 100000, ?2 + i, ?2 + i, 1, 'overlap', 1 FROM n";
    connection.execute(sql, rusqlite::params![skips as i64, at(0)?.as_microsecond()])?;
    println!("{skips} skips after {:.0?}", started.elapsed());
    Ok(())
}

async fn measure(path: &Path) -> Result<(), Failure> {
    let store = Arc::new(SqliteStore::open(path, Options::default()).await?);
    let slices: Arc<Mutex<BTreeMap<&'static str, Vec<Duration>>>> = Arc::default();
    let told = Arc::clone(&slices);
    store.tell_slices(move |name, took| {
        told.lock().entry(name).or_default().push(took);
    });
    let done = Arc::new(AtomicBool::new(false));
    let probe = tokio::spawn(probe(Arc::clone(&store), Arc::clone(&done)));
    let (now, day) = (at(DAYS as i64)?, Span::secs(86_400));
    let keep = Span::secs(86_400 * (DAYS - GOING as u64));
    let tend = Tend { now, history_keep: keep, skips_keep: day, batches_keep: day, audit_keep: day };
    let started = Instant::now();
    let (mut passes, mut purged) = (0, 0);
    loop {
        let tended = store.tend(&tend).await?;
        (passes, purged) = (passes + 1, purged + tended.purged);
        if !tended.more {
            break;
        }
    }
    println!("{passes} passes took {:.0?} and deleted {purged} rows", started.elapsed());
    done.store(true, Ordering::Relaxed);
    let waits = probe.await??;
    println!("{:24} {:>9} {:>9} {:>9} {:>9}", "slice", "count", "p50", "p99", "longest");
    for (name, times) in slices.lock().iter_mut() {
        line(name, times);
    }
    line("(a write beside it)", &mut waits.clone());
    Ok(())
}

/// Asks for the writer's turn again and again, and answers how long each took.
async fn probe(store: Arc<SqliteStore>, done: Arc<AtomicBool>) -> Result<Vec<Duration>, Failure> {
    let node = NodeId(uuid::Uuid::now_v7());
    let mut waits = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let now = at(DAYS as i64)?;
        let beat = NodeBeat { node, name: "probe".into(), info: "{}".into(), until: now };
        let started = Instant::now();
        store.beat(&beat, now).await?;
        waits.push(started.elapsed());
        tokio::task::yield_now().await;
    }
    Ok(waits)
}

fn line(name: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1))).copied();
    let text = |time: Option<Duration>| format!("{:.2?}", time.unwrap_or_default());
    println!("{name:24} {:>9} {:>9} {:>9} {:>9}", times.len(), text(at(50)), text(at(99)), text(times.last().copied()));
}
