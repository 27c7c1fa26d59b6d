//! `rota bench abuse`: one tenant attacks a node with everything that it may send, all at
//! once, and what the others notice of it is measured.
//!
//! The node is a real one, `rota serve` as a process of its own, with the default
//! configuration but for the two targets of its `http` steps, which are on loopback. The
//! attacker's tenant has no quotas: a tier would hide what the node itself withstands.
//! Attacks, health and a tenant that only wants its schedules to fire come from three
//! addresses of loopback, as they would from three machines. Attacker and node share this
//! machine's processors, so times say less than on two machines, and memory as much.

mod attacks;
mod node;
mod raw;
mod watch;

use std::{collections::BTreeMap, io, sync::Arc, time::Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use rota_client::Client;
use rota_core::duration::Span;
use serde::Serialize;
use serde_json::json;
use tokio::net::TcpListener;

use self::{
    attacks::{Abuser, Tally},
    node::Node,
    watch::{Fires, Health},
};
use super::callbacks::answer_all;
use crate::{
    clock,
    commands::serve::Signals,
    failure::Failure,
    printer::{Output, Printer},
    table::{Cell, Table},
};

/// The bystander's schedules, each of which fires once a second.
const SCHEDULES: usize = 5;
/// What its step is answered.
const DONE: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
/// What a big answer has, just under what an `http` step reads.
const BIG_BYTES: usize = 9_900_000;
/// How long after the last attack its memory is looked at again.
const AFTERWARDS: Span = Span::secs(3);

#[derive(Args)]
pub struct AbuseArgs {
    /// How long to attack
    #[arg(long = "for", value_name = "DURATION", default_value = "60s", value_parser = bounded)]
    time: Span,
    /// Only the attacks whose names contain this text, such as `streams`
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    only: String,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

fn bounded(text: &str) -> Result<Span, String> {
    let time: Span = text.parse().map_err(|error| format!("{error}"))?;
    if (Span::secs(2)..=Span::secs(3_600)).contains(&time) { Ok(time) } else { Err("must be 2s to 1h".into()) }
}

#[derive(Serialize)]
struct Report {
    seconds: f64,
    memory_mb: Memory,
    health: Health,
    fires: Fires,
    attacks: Vec<Attack>,
}

/// What the node had resident, in megabytes of 1,000,000 bytes; null where the system does
/// not say.
#[derive(Serialize)]
struct Memory {
    before: Option<u64>,
    peak: Option<u64>,
    /// A moment after the last attack.
    after: Option<u64>,
}

/// What an attack sent, and how that was answered: by status, or by what happened instead.
#[derive(Serialize)]
struct Attack {
    name: &'static str,
    sent: u64,
    answers: BTreeMap<String, u64>,
}

pub async fn run(args: AbuseArgs, printer: &mut Printer) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let report = tokio::select! {
        report = measure(args.time, &args.only) => report?,
        // The node is a child that does not outlive what it was started for.
        (_, number) = signals.next() => return Err(Failure::Signal { number }),
    };
    Ok(printer.answer(args.output, &report, |printer| print(&report, printer))?)
}

async fn measure(time: Span, only: &str) -> Result<Report, Failure> {
    let cheap = TcpListener::bind(("127.0.0.1", 0)).await.context("binding an address")?;
    let big = TcpListener::bind(("127.0.0.1", 0)).await.context("binding an address")?;
    let targets = [&cheap, &big].map(|target| target.local_addr().map(|address| address.to_string()));
    let [cheap_at, big_at] = targets;
    let (cheap_at, big_at) = (cheap_at.context("asking for the address")?, big_at.context("asking for the address")?);
    let target = tokio::spawn(answer_all(cheap, DONE.into()));
    let big_target = tokio::spawn(answer_all(big, big_answer()));
    let node = Node::start(&[&cheap_at, &big_at]).await?;
    let bystander = node.tenant("bystander").await?;
    watch(&bystander, &cheap_at).await?;
    let abuser = Arc::new(Abuser::prepare(&node, &big_at).await?);
    let before = node.resident_mb("VmRSS:");
    let health = watch::Watch::start(node.address);
    let (begun, started) = (clock::now(), Instant::now());
    let attacks = attacks::attack(&abuser, time, only).await;
    let (ended, took) = (clock::now(), started.elapsed());
    let health = health.end()?;
    clock::sleep(AFTERWARDS).await;
    let fires = watch::fires(&bystander, begun..ended, SCHEDULES).await?;
    let memory_mb = Memory { before, peak: node.resident_mb("VmHWM:"), after: node.resident_mb("VmRSS:") };
    node.end().await?;
    target.abort();
    big_target.abort();
    Ok(Report { seconds: took.as_secs_f64(), memory_mb, health, fires, attacks: attacks.iter().map(shown).collect() })
}

fn big_answer() -> Arc<[u8]> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {BIG_BYTES}\r\n\r\n");
    let mut answer = head.into_bytes();
    answer.resize(answer.len() + BIG_BYTES, b'a');
    answer.into()
}

/// Saves what the bystander wants to have done.
async fn watch(bystander: &Client, target: &str) -> Result<(), Failure> {
    let schedule =
        |n| json!({ "name": format!("s{n}"), "every": "1s", "anchor": "1970-01-01T00:00:00Z", "overlap": "allow" });
    let job = json!({
        "name": "cheap", "steps": [{ "id": "s", "http": { "url": format!("http://{target}/") } }],
        "schedules": (0..SCHEDULES).map(schedule).collect::<Vec<_>>(),
    });
    bystander.save_job(&job).await.map_err(|error| anyhow!("saving the bystander's job: {error}"))?;
    Ok(())
}

fn shown(tally: &Arc<Tally>) -> Attack {
    Attack { name: tally.attack, sent: tally.sent(), answers: tally.answers() }
}

fn print(report: &Report, printer: &mut Printer) -> io::Result<()> {
    let mb = |mb: Option<u64>| mb.map_or_else(|| "unknown".to_owned(), |mb| format!("{mb} MB"));
    let Report { seconds, memory_mb, health, fires, .. } = report;
    printer.line(&format!("{seconds:.0} s of these attacks at once"))?;
    printer.line(&format!(
        "  memory of the node: peak {}, {} before, {} after",
        mb(memory_mb.peak),
        mb(memory_mb.before),
        mb(memory_mb.after)
    ))?;
    printer.line(&format!(
        "  health: {} of {} answered, p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms",
        health.answered, health.asked, health.p50_ms, health.p99_ms, health.max_ms
    ))?;
    printer.line(&format!(
        "  the other tenant's fires: {} of {} missed, late at p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms",
        fires.missed, fires.expected, fires.p50_ms, fires.p99_ms, fires.max_ms
    ))?;
    let mut table = Table::new(&["ATTACK", "SENT", "ANSWERS"]);
    for Attack { name, sent, answers } in &report.attacks {
        let answers: Vec<String> = answers.iter().map(|(answer, count)| format!("{answer}: {count}")).collect();
        table.row(vec![(*name).into(), Cell::number(sent), answers.join(", ").into()]);
    }
    printer.table(table)
}
