//! The attacks: what a tenant may send, as much of it as it can, all at once.
//!
//! Each is a loop that ends with the measurement, and counts how it was answered.

use std::{
    collections::BTreeMap,
    fmt::Display,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, anyhow};
use reqwest::{RequestBuilder, StatusCode, header::CONTENT_TYPE};
use rota_core::duration::Span;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};
use uuid::Uuid;

use super::{node::Node, raw};
use crate::{clock, failure::Failure};

const JSON: &str = "application/json";
/// Where the attacks come from, and where the idle connections do.
const ADDRESS: [u8; 4] = [127, 0, 0, 1];
const IDLE_ADDRESS: [u8; 4] = [127, 0, 0, 3];
const IDLE_CONNECTIONS: usize = 1_024;
/// As many as a node accepts.
const STREAMS: usize = 64;
/// Workers that wait at once, each of them new when it has been answered.
const GHOSTS: usize = 64;
/// Runs with large payloads, which the lists show.
const LISTED: usize = 500;
/// Whoever was refused, or lost its connection, asks again after this.
const PAUSE: Span = Span::millis(20);
/// A slow reader takes a few bytes so often.
const READ_EVERY: Span = Span::millis(500);
/// Nothing is answered later.
const PATIENCE: Duration = Duration::from_secs(40);

/// What an attack sent, and how that was answered.
pub struct Tally {
    pub attack: &'static str,
    sent: AtomicU64,
    answers: Mutex<BTreeMap<String, u64>>,
}

impl Tally {
    fn new(attack: &'static str) -> Arc<Self> {
        Arc::new(Self { attack, sent: AtomicU64::new(0), answers: Mutex::default() })
    }

    fn send(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    fn answer(&self, answer: &(impl Display + ?Sized)) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry(answer.to_string()).or_default() += 1;
    }

    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub fn answers(&self) -> BTreeMap<String, u64> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The tenant that attacks.
pub struct Abuser {
    client: reqwest::Client,
    address: SocketAddr,
    token: String,
}

impl Abuser {
    /// Saves the jobs that attacks trigger, and the runs that they list.
    pub async fn prepare(node: &Node, target: &str) -> Result<Self, Failure> {
        let token = node.token("abuser").await?;
        let builder = reqwest::Client::builder().no_proxy().local_address(Some(ADDRESS.into())).timeout(PATIENCE);
        let client = builder.build().context("making a client")?;
        let abuser = Self { client, address: node.address, token };
        for job in jobs(target) {
            let saved = abuser.json("jobs", job.to_string()).send().await.context("saving a job")?;
            if !saved.status().is_success() {
                let why = saved.text().await.unwrap_or_default();
                return Err(anyhow!("the job `{}` was refused: {why}", job["name"]).into());
            }
        }
        let line = json!({ "job": "kept", "payload": "a".repeat(60_000) });
        let lines = format!("{line}\n").repeat(LISTED);
        let listed = abuser.post("bulk/runs").header(CONTENT_TYPE, "application/x-ndjson").body(lines).send().await;
        let listed = listed.and_then(reqwest::Response::error_for_status).context("creating runs")?;
        listed.bytes().await.context("creating runs")?;
        Ok(abuser)
    }

    fn post(&self, path: &str) -> RequestBuilder {
        self.client.post(format!("http://{}/api/v1/{path}", self.address)).bearer_auth(&self.token)
    }

    fn json(&self, path: &str, body: String) -> RequestBuilder {
        self.post(path).header(CONTENT_TYPE, JSON).body(body)
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("http://{}/api/v1/{path}", self.address)).bearer_auth(&self.token)
    }

    /// The head of a request that is written by hand.
    fn head(&self, method: &str, path: &str) -> String {
        let (address, token) = (self.address, &self.token);
        format!("{method} /api/v1/{path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n")
    }
}

/// What the attacks trigger: calls with big answers, evaluations that would never end, and
/// runs that wait for a worker that never comes.
fn jobs(target: &str) -> [Value; 5] {
    let nobody = json!([{ "id": "s", "handler": { "name": "nobody" } }]);
    let schema = (0..18).fold(json!({ "type": "object" }), |inner, n| {
        json!({ "anyOf": [inner, { "properties": { n.to_string(): { "type": "null" } }, "type": "string" }] })
    });
    let doubled = format!("{{% set a = '{}' %}}{}", "a".repeat(64), "{% set a = a ~ a %}".repeat(11));
    let template = format!("{doubled}{{% for i in range(5000) %}}{{% set b = a|upper|lower|title %}}{{% endfor %}}b");
    let url = format!("http://{target}/");
    let call = json!({ "url": url, "method": "POST", "json": { "a": template } });
    [
        json!({ "name": "big", "steps": [{ "id": "s", "http": { "url": url } }] }),
        json!({ "name": "schema", "steps": nobody, "input": { "schema": schema } }),
        json!({ "name": "template", "steps": [{ "id": "s", "http": call }], "retry": { "max_attempts": 1 } }),
        json!({ "name": "key", "steps": nobody, "concurrency": { "limit": 1, "key": template } }),
        json!({ "name": "kept", "steps": nobody }),
    ]
}

/// Everything at once, for so long.
pub async fn attack(abuser: &Arc<Abuser>, time: Span, only: &str) -> Vec<Arc<Tally>> {
    let mut all =
        Attacks { abuser: Arc::clone(abuser), only: only.to_owned(), tasks: JoinSet::new(), tallies: Vec::new() };
    let nothing = Arc::<str>::from("{}");
    let text = Arc::<str>::from(r#"{"payload":1}"#);
    let list = Arc::<str>::from(json!({ "payload": vec![0; 500_000] }).to_string());
    all.begin("runs with big answers", 2, |to, tally| trigger(to, tally, "big", nothing.clone()));
    all.begin("schemas", 4, |to, tally| trigger(to, tally, "schema", text.clone()));
    all.begin("schemas and large payloads", 64, |to, tally| trigger(to, tally, "schema", list.clone()));
    all.begin("templates of steps", 2, |to, tally| trigger(to, tally, "template", nothing.clone()));
    all.begin("templates of keys", 4, |to, tally| trigger(to, tally, "key", nothing.clone()));
    all.begin("lists of large runs", 8, list_runs);
    all.begin("logins with long names", 2, |to, tally| log_in(to, tally, 1_000_000));
    all.begin("logins with short names", 4, |to, tally| log_in(to, tally, 0));
    all.begin("idle connections", IDLE_CONNECTIONS, idle);
    let (large, short) = (chunk(&large_line()), chunk(&"{}\n".repeat(20_000)));
    all.begin("streams of large lines", STREAMS / 2, |to, tally| stream(to, tally, Arc::clone(&large)));
    all.begin("streams of short lines", STREAMS / 2, |to, tally| stream(to, tally, Arc::clone(&short)));
    all.begin("reports of workers", 4, report);
    all.begin("ghost workers", GHOSTS, haunt);
    all.begin("clients that hang up", 4, hang_up);
    // None of them ends by itself.
    clock::sleep(time).await;
    all.tasks.shutdown().await;
    all.tallies
}

struct Attacks {
    abuser: Arc<Abuser>,
    only: String,
    tasks: JoinSet<()>,
    tallies: Vec<Arc<Tally>>,
}

impl Attacks {
    /// Begins an attack, from so many sides at once.
    fn begin<F>(&mut self, attack: &'static str, sides: usize, how: impl Fn(Arc<Abuser>, Arc<Tally>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if !attack.contains(&self.only) {
            return;
        }
        let tally = Tally::new(attack);
        for _ in 0..sides {
            self.tasks.spawn(how(Arc::clone(&self.abuser), Arc::clone(&tally)));
        }
        self.tallies.push(tally);
    }
}

/// Sends a request, reads all of the answer, and waits a moment where there was none.
async fn ask(tally: &Tally, request: RequestBuilder) {
    tally.send();
    let Ok(answer) = request.send().await else {
        tally.answer("no answer");
        return clock::sleep(PAUSE).await;
    };
    tally.answer(&answer.status().as_u16());
    let refused = answer.status() == StatusCode::SERVICE_UNAVAILABLE;
    // An answer that breaks off has been counted.
    drop(answer.bytes().await);
    if refused {
        clock::sleep(PAUSE).await;
    }
}

async fn trigger(abuser: Arc<Abuser>, tally: Arc<Tally>, job: &'static str, body: Arc<str>) {
    loop {
        ask(&tally, abuser.json(&format!("jobs/{job}/trigger"), body.to_string())).await;
    }
}

async fn list_runs(abuser: Arc<Abuser>, tally: Arc<Tally>) {
    loop {
        ask(&tally, abuser.get("runs?limit=1000&include=payload,output")).await;
    }
}

/// Logs in as somebody who does not exist, without a token.
async fn log_in(abuser: Arc<Abuser>, tally: Arc<Tally>, length: usize) {
    let url = format!("http://{}/api/v1/session", abuser.address);
    loop {
        let user = format!("{}{}", Uuid::now_v7().simple(), "a".repeat(length));
        let login = json!({ "user": user, "password": "guessed" });
        ask(&tally, abuser.client.post(&url).header(CONTENT_TYPE, JSON).body(login.to_string())).await;
    }
}

/// Opens a connection, says nothing, and opens another when it is closed.
async fn idle(abuser: Arc<Abuser>, tally: Arc<Tally>) {
    loop {
        tally.send();
        if let Ok(mut stream) = raw::connect(IDLE_ADDRESS, abuser.address).await {
            drop(stream.read(&mut [0; 1_024]).await);
            tally.answer("closed");
        } else {
            tally.answer("no connection");
        }
        clock::sleep(PAUSE).await;
    }
}

/// A line whose payload is a hundred times as large in memory.
fn large_line() -> String {
    format!("{}\n", json!({ "job": "schema", "payload": vec![0; 500_000] }))
}

/// Lines as a piece of a body.
fn chunk(lines: &str) -> Arc<str> {
    format!("{:x}\r\n{lines}\r\n", lines.len()).into()
}

/// Sends lines without an end, and reads a little of the answers now and then.
async fn stream(abuser: Arc<Abuser>, tally: Arc<Tally>, chunk: Arc<str>) {
    let head =
        abuser.head("POST", "bulk/runs") + "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n";
    loop {
        let ended = send_lines(&abuser, &tally, &head, &chunk).await;
        tally.answer(&ended.map_or_else(|_| "broken off".to_owned(), |status| status.to_string()));
        clock::sleep(PAUSE).await;
    }
}

async fn send_lines(abuser: &Abuser, tally: &Tally, head: &str, chunk: &str) -> io::Result<u16> {
    let mut stream = raw::connect(ADDRESS, abuser.address).await?;
    stream.write_all(head.as_bytes()).await?;
    let (mut answers, mut lines) = stream.split();
    let sending = async {
        loop {
            tally.send();
            if lines.write_all(chunk.as_bytes()).await.is_err() {
                return;
            }
        }
    };
    let reading = async {
        // The status is in the first bytes.
        let mut some = [0; 64];
        let length = answers.read(&mut some).await?;
        let status = raw::status(&some[..length]);
        while answers.read(&mut some).await? > 0 {
            clock::sleep(READ_EVERY).await;
        }
        status
    };
    tokio::join!(sending, reading).1
}

/// Reports what it never had, in exchanges as large as there may be.
async fn report(abuser: Arc<Abuser>, tally: Arc<Tally>) {
    let finished = |_| json!({ "run": Uuid::now_v7(), "fence": 1, "outcome": "succeeded", "output": vec![0; 30_000] });
    let finished: Vec<Value> = (0..14).map(finished).collect();
    let mut worker = ghost();
    loop {
        worker["id"] = json!(Uuid::now_v7());
        ask(&tally, abuser.json("workers/sync", json!({ "worker": worker, "finished": finished }).to_string())).await;
    }
}

/// Waits for work as a worker that nobody has heard of, then as another one.
async fn haunt(abuser: Arc<Abuser>, tally: Arc<Tally>) {
    let mut worker = ghost();
    loop {
        worker["id"] = json!(Uuid::now_v7());
        let exchange = json!({ "worker": worker, "free": 1, "wait_ms": 100 });
        ask(&tally, abuser.json("workers/sync", exchange.to_string())).await;
    }
}

/// A worker that offers as much as it may.
fn ghost() -> Value {
    let names = |kind: &str| (0..200).map(|n| format!("{kind}-{n:0>190}")).collect::<Vec<_>>();
    json!({ "id": Uuid::now_v7(), "name": "ghost", "slots": 1, "queues": names("q"), "traits": names("t"),
            "handlers": names("h") })
}

/// Asks for much, and goes before the answer.
async fn hang_up(abuser: Arc<Abuser>, tally: Arc<Tally>) {
    let request = abuser.head("GET", "runs?limit=1000&include=payload,output") + "\r\n";
    loop {
        if let Ok(mut stream) = raw::connect(ADDRESS, abuser.address).await {
            tally.send();
            drop(stream.write_all(request.as_bytes()).await);
        }
        clock::sleep(PAUSE).await;
    }
}
