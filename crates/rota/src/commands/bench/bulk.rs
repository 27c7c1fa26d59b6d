//! `rota bench bulk`: runs made through the API, a line of NDJSON each.
//!
//! The node executes nothing meanwhile. A run counts when the answer to its line
//! has come, so all of them are durable.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use futures_util::{StreamExt, stream};
use rota_engine::{Engine, Options};
use serde::Serialize;
use serde_json::json;

use super::{
    PlaceArgs,
    flow::{self, Served, rate},
    target::Target,
};
use crate::{failure::Failure, printer::Printer};

/// Lines in one piece of a body.
const PIECE: u64 = 1_000;

#[derive(Args)]
pub struct BulkArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// How many runs to create
    #[arg(long, value_name = "N", default_value_t = 500_000)]
    runs: u64,
    /// Number of requests that send at the same time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    requests: u64,
}

#[derive(Serialize)]
struct Report {
    store: &'static str,
    runs: u64,
    requests: u64,
    runs_per_s: u64,
}

pub async fn run(args: BulkArgs, printer: &mut Printer) -> Result<(), Failure> {
    let target = Target::parse(args.place.store.as_deref(), printer)?;
    let report = measure(&target, &args).await?;
    target.clean()?;
    Ok(printer.answer(args.place.output, &report, |printer| {
        printer.line(&format!(
            "{} runs on {}, one line each, in {} requests",
            report.runs, report.store, report.requests
        ))?;
        printer.line(&format!("  {:>9} runs/s, each of them answered", report.runs_per_s))?;
        Ok(())
    })?)
}

async fn measure(target: &Target, args: &BulkArgs) -> Result<Report, Failure> {
    let store = target.open().await?;
    let kind = store.kind();
    let options = Options { sole: true, executes: false, ..Options::default() };
    let engine = Engine::builder(Arc::clone(&store)).options(options).start().await.context("starting the engine")?;
    let tenant = flow::tenant(&engine, "bench-bulk").await?;
    let job = json!({ "name": "bench-bulk", "steps": [{ "id": "s", "handler": { "name": "noop" } }] });
    flow::save(&engine, tenant, &job).await?;
    let served = Served::start(&engine, tenant).await?;
    let client = reqwest::Client::builder().no_proxy().build().context("making a client")?;
    let url = format!("{}/api/v1/bulk/runs", served.url);
    let share = |n: u64| args.runs / args.requests + u64::from(n < args.runs % args.requests);
    let started = Instant::now();
    let sent = (0..args.requests).map(|n| send(&client, &url, share(n)));
    futures_util::future::try_join_all(sent).await?;
    let runs_per_s = rate(args.runs, started.elapsed());
    served.stop().await?;
    flow::stop(&engine).await?;
    Ok(Report { store: kind, runs: args.runs, requests: args.requests, runs_per_s })
}

/// Sends so many lines, and waits for an answer to each.
async fn send(client: &reqwest::Client, url: &str, runs: u64) -> Result<(), Failure> {
    let line = format!("{}\n", json!({ "job": "bench-bulk", "payload": { "text": "x".repeat(150) } }));
    let piece = |first: u64| Ok::<_, std::io::Error>(line.repeat(PIECE.min(runs - first) as usize));
    let pieces: Vec<_> = (0..runs).step_by(PIECE as usize).map(piece).collect();
    let request = client.post(url).header("content-type", "application/x-ndjson");
    let answer = request.body(reqwest::Body::wrap_stream(stream::iter(pieces))).send().await;
    let answer = answer.and_then(reqwest::Response::error_for_status).context("making runs")?;
    let (mut answers, mut made) = (answer.bytes_stream(), 0);
    let mut left: Vec<u8> = Vec::new();
    while let Some(bytes) = answers.next().await {
        left.extend_from_slice(&bytes.context("reading the answers")?);
        let whole = left.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        for line in left.drain(..whole).as_slice().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if refused(line) {
                return Err(anyhow!("a line was refused: {}", String::from_utf8_lossy(line)).into());
            }
            made += 1;
        }
    }
    if made == runs { Ok(()) } else { Err(anyhow!("{made} of {runs} lines were answered").into()) }
}

fn refused(line: &[u8]) -> bool {
    line.windows(8).any(|part| part == b"\"error\":")
}
