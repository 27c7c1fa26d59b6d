//! `rota bench callbacks`: jobs whose one step is an HTTP call, on loopback.
//!
//! Whoever is called answers at once and does nothing else, so what is measured is
//! the whole way of a run: made, called, answered, settled, kept in history.

use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use rota_engine::{
    Engine, JobRef, Options, RunAsk,
    executors::{
        egress::{Egress, Reach},
        http::{HttpExecutor, HttpOptions},
    },
};
use serde::Serialize;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{BatchArgs, PlaceArgs, fill, flow, target::Target};
use crate::{failure::Failure, printer::Printer};

#[derive(Args)]
pub struct CallbacksArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// How many runs to process
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    runs: u64,
    #[command(flatten)]
    batches: BatchArgs,
}

#[derive(Serialize)]
struct Report {
    store: &'static str,
    runs: u64,
    history: u64,
    runs_per_s: u64,
}

pub async fn run(args: CallbacksArgs, printer: &mut Printer) -> Result<(), Failure> {
    let target = Target::parse(args.place.store.as_deref(), printer)?;
    let history = fill(&target, args.batches.history).await?;
    let report = measure(&target, &args, history).await?;
    target.clean()?;
    Ok(printer.answer(args.place.output, &report, |printer| {
        printer.line(&format!(
            "{} HTTP calls on {}, {} finished runs before",
            report.runs, report.store, report.history
        ))?;
        printer.line(&format!("  {:>9} runs/s, from enqueue to history", report.runs_per_s))?;
        Ok(())
    })?)
}

async fn measure(target: &Target, args: &CallbacksArgs, history: u64) -> Result<Report, Failure> {
    let store = target.open().await?;
    let kind = store.kind();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("binding an address")?;
    let url = format!("http://{}/", listener.local_addr().context("asking for the address")?);
    let answering = tokio::spawn(answer_all(listener, (*b"HTTP/1.1 204 No Content\r\n\r\n").into()));
    let http = HttpExecutor::new(HttpOptions {
        egress: Egress { reach: Reach::Anything, ..Egress::default() },
        ..HttpOptions::default()
    });
    let builder = Engine::builder(Arc::clone(&store)).options(Options { sole: true, ..Options::default() });
    let engine = builder.executor(Arc::new(http)).start().await.context("starting the engine")?;
    let tenant = flow::tenant(&engine, "bench-callbacks").await?;
    let call = json!({ "url": url, "method": "POST", "json": { "n": "{{ payload.n }}" } });
    let job = json!({ "name": "bench-callbacks", "steps": [{ "id": "s", "http": call }] });
    let job = flow::save(&engine, tenant, &job).await?;
    let ask = |n: u64| RunAsk::of(tenant, JobRef::Id(job)).with_payload(json!({ "n": n, "text": "x".repeat(150) }));
    let took = flow::throughput(&engine, args.runs, args.batches.batch, ask).await?;
    flow::stop(&engine).await?;
    answering.abort();
    Ok(Report { store: kind, runs: args.runs, history, runs_per_s: flow::rate(args.runs, took) })
}

/// Answers everybody the same.
pub async fn answer_all(listener: TcpListener, answer: Arc<[u8]>) {
    while let Ok((line, _)) = listener.accept().await {
        let answer = Arc::clone(&answer);
        // A caller that goes away in the middle is nobody's trouble.
        tokio::spawn(async move { drop(answer_calls(line, &answer).await) });
    }
}

/// Answers every call of a connection, as little as HTTP allows.
async fn answer_calls(mut line: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    line.set_nodelay(true)?;
    let mut heard: Vec<u8> = Vec::with_capacity(4_096);
    loop {
        while let Some(length) = whole(&heard) {
            heard.drain(..length);
            line.write_all(answer).await?;
        }
        if line.read_buf(&mut heard).await? == 0 {
            return Ok(());
        }
    }
}

/// How long the first call in `heard` is, if all of it has come.
fn whole(heard: &[u8]) -> Option<usize> {
    let start = heard.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&heard[..start]).ok()?.to_ascii_lowercase();
    let body: usize =
        text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
    (heard.len() >= start + body).then_some(start + body)
}
