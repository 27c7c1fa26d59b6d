//! What is noticed beside the attacks: health, and the fires of another tenant.

use std::{
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use jiff::Timestamp;
use rota_api::run::Run;
use rota_client::Client;
use rota_core::duration::Span;
use serde::Serialize;
use tokio::{net::TcpStream, time::timeout};

use super::raw;
use crate::{clock, failure::Failure};

/// Whoever asks for health is not the attacker.
const ADDRESS: [u8; 4] = [127, 0, 0, 2];
const ASKED_EVERY: Span = Span::millis(50);
/// An answer that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(10);
/// What has not started so long after the attacks is missed.
const MISSED_AFTER: Duration = Duration::from_secs(30);
/// Of a bystander's runs, so many are read.
const RUNS_MAX: usize = 100_000;

#[derive(Serialize)]
pub struct Health {
    pub asked: u64,
    pub answered: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// How late the bystander's runs started, of all that were due during the attacks.
#[derive(Serialize)]
pub struct Fires {
    pub expected: usize,
    pub missed: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// Asks for health on a thread of its own, which no attack keeps waiting.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<std::io::Result<Health>>,
}

impl Watch {
    pub fn start(node: SocketAddr) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(ask(node, &stopped)))
        });
        Self { stop, thread }
    }

    pub fn end(self) -> Result<Health, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let health = self.thread.join().map_err(|_| anyhow!("asking for health failed"))?;
        Ok(health?)
    }
}

async fn ask(node: SocketAddr, stop: &AtomicBool) -> Health {
    let (mut times, mut asked) = (Vec::new(), 0);
    let mut open: Option<TcpStream> = None;
    while !stop.load(Ordering::Relaxed) {
        asked += 1;
        let begun = Instant::now();
        open = timeout(PATIENCE, healthy(open.take(), node)).await.ok().flatten();
        if open.is_some() {
            times.push(millis(begun.elapsed()));
        }
        clock::sleep(ASKED_EVERY).await;
    }
    let answered = times.len() as u64;
    let [p50_ms, p99_ms, max_ms] = ranked(times);
    Health { asked, answered, p50_ms, p99_ms, max_ms }
}

/// Asks on this connection or a new one; none where the answer was not 200.
async fn healthy(open: Option<TcpStream>, node: SocketAddr) -> Option<TcpStream> {
    if let Some(mut stream) = open
        && let Ok(200) = raw::ask(&mut stream, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await
    {
        return Some(stream);
    }
    let mut stream = raw::connect(ADDRESS, node).await.ok()?;
    let answer = raw::ask(&mut stream, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    matches!(answer, Ok(200)).then_some(stream)
}

/// How the bystander's schedules, each of which fires at every whole second, did.
///
/// Waits for those that are late: missed is what has not started long after.
pub async fn fires(bystander: &Client, time: Range<Timestamp>, schedules: usize) -> Result<Fires, Failure> {
    let begun = Instant::now();
    loop {
        let fires = fires_now(bystander, &time, schedules).await?;
        if fires.missed == 0 || begun.elapsed() > MISSED_AFTER {
            return Ok(fires);
        }
        clock::sleep(Span::millis(500)).await;
    }
}

async fn fires_now(bystander: &Client, time: &Range<Timestamp>, schedules: usize) -> Result<Fires, Failure> {
    let (runs, _) = bystander.list::<Run>(&["runs"], &[], RUNS_MAX).await?;
    let (first, last) = (time.start.as_second() + 1, time.end.as_second());
    let seconds = usize::try_from(last - first + 1).unwrap_or(0);
    let late = runs.iter().filter_map(|run| {
        let planned = run.trigger.planned_at.filter(|at| (first..=last).contains(&at.as_second()))?;
        let started = run.first_started_at.or(run.started_at)?;
        Some(started.duration_since(planned).as_secs_f64() * 1_000.0)
    });
    let late: Vec<f64> = late.collect();
    let expected = schedules * seconds;
    let missed = expected.saturating_sub(late.len());
    let [p50_ms, p99_ms, max_ms] = ranked(late);
    Ok(Fires { expected, missed, p50_ms, p99_ms, max_ms })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

/// The median, the 99th percentile and the largest.
fn ranked(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    let rank = |share: usize| times.get(times.len() * share / 100).or(times.last()).copied().unwrap_or_default();
    [rank(50), rank(99), rank(100)]
}
