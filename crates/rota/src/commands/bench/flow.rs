//! What the benchmarks of a whole node share: runs made as fast as they end, and
//! a server in front of the engine.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use rota_core::{
    duration::Span,
    ids::{JobId, TenantId},
    job::JobDocument,
    store::{Expect, TenantPut, Tier},
};
use rota_engine::{Engine, RunAsk};
use rota_server::{Hosts, Node, Server};
use serde_json::Value;
use tokio::{sync::oneshot, task::JoinHandle};

use super::bar;
use crate::{clock, failure::Failure};

/// Runs that are made and have not ended, at most.
const UNDERWAY_MAX: u64 = 20_000;

/// Makes runs from two sides as fast as they end, and answers how long that took.
pub async fn throughput(
    engine: &Engine,
    runs: u64,
    batch: u64,
    ask: impl Fn(u64) -> RunAsk,
) -> Result<Duration, Failure> {
    let bar = bar(runs, "runs");
    let next = AtomicU64::new(0);
    let started = Instant::now();
    let make = || async {
        loop {
            let first = next.fetch_add(batch, Ordering::Relaxed);
            if first >= runs {
                return Ok::<_, Failure>(());
            }
            while first.saturating_sub(engine.stats().ended_in_all()) > UNDERWAY_MAX {
                clock::sleep(Span::millis(1)).await;
            }
            let asks = (first..runs.min(first + batch)).map(&ask).collect();
            engine.enqueue(asks).await.context("making runs")?;
            bar.inc(batch);
        }
    };
    tokio::try_join!(make(), make())?;
    while engine.stats().ended_in_all() < runs {
        clock::sleep(Span::millis(1)).await;
    }
    bar.finish_and_clear();
    Ok(started.elapsed())
}

/// How many a second.
pub fn rate(count: u64, took: Duration) -> u64 {
    (count as f64 / took.as_secs_f64()) as u64
}

pub async fn tenant(engine: &Engine, name: &str) -> Result<TenantId, Failure> {
    let put = TenantPut { name: name.to_owned(), tier: Tier::Unlimited, quotas: None };
    let tenants = engine.store().put_tenants(&[put], clock::now()).await.context("saving the tenant")?;
    Ok(*tenants.first().ok_or_else(|| anyhow!("the store did not answer for the tenant"))?)
}

pub async fn save(engine: &Engine, tenant: TenantId, job: &Value) -> Result<JobId, Failure> {
    let saved = engine.save_job(tenant, &read(job)?, None, Expect::Anything).await.context("saving a job")?;
    Ok(saved.job)
}

pub fn read(job: &Value) -> Result<JobDocument, Failure> {
    let read = JobDocument::from_json(job.to_string().as_bytes());
    Ok(read.map_err(|problems| anyhow!("the benchmark's own job is refused: {problems:?}"))?)
}

pub async fn stop(engine: &Engine) -> Result<(), Failure> {
    Ok(engine.stop(Span::secs(30)).await.context("stopping the engine")?)
}

/// The API of an engine, on loopback.
pub struct Served {
    pub url: String,
    stop: oneshot::Sender<()>,
    answering: JoinHandle<std::io::Result<()>>,
}

impl Served {
    pub async fn start(engine: &Engine, tenant: TenantId) -> Result<Self, Failure> {
        let server = Server::bind(([127, 0, 0, 1], 0).into()).await.context("binding an address")?;
        let url = format!("http://{}", server.address());
        let node = Node::default();
        node.started(engine.clone(), tenant);
        let (stop, stopped) = oneshot::channel::<()>();
        let answering = tokio::spawn(server.serve(node, Hosts::default(), async {
            // Whoever is gone cannot say stop, and means it.
            drop(stopped.await);
        }));
        Ok(Self { url, stop, answering })
    }

    pub async fn stop(self) -> Result<(), Failure> {
        drop(self.stop);
        Ok(self.answering.await.context("the HTTP server failed")?.context("serving the address")?)
    }
}
