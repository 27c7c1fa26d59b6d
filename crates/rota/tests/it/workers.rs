//! Remote workers in three languages, as real processes of a real server: the
//! same promises for each.
//!
//! Every attempt writes into a ledger what it does, under its run and process;
//! what the server says must be what the ledger says.

use std::{
    io::{Read, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::node::{Node, Place, ledger, rota};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    /// `rota worker` with a command.
    Rust,
    Python,
    TypeScript,
}

/// What the suite's job does: begins, waits for a gate, ends.
fn job(language: Language) -> Value {
    let script = "echo trace $RUN $TRACEPARENT >> $LEDGER; echo begun $RUN $PPID >> $LEDGER; until [ -e $GATE ]; do sleep 0.02; done; \
         echo ended $RUN $PPID >> $LEDGER; head -c $SIZE /dev/zero | tr '\\0' x; \
         if [ $FAILS = true ]; then head -c $SIZE /dev/zero | tr '\\0' e >&2; exit 3; fi";
    let env = json!({ "RUN": "{{ run.id }}", "LEDGER": "{{ payload.ledger }}", "GATE": "{{ payload.gate }}",
        "SIZE": "{{ payload.size }}", "FAILS": "{{ payload.fails }}" });
    let rules =
        json!({ "name": "suite", "timeout": "5m", "cancel": { "grace": "30s" }, "retry": { "max_attempts": 1 } });
    let step = match language {
        Language::Rust => {
            json!({ "requires": ["suite"], "steps": [{ "id": "s", "command": { "shell": script, "env": env } }] })
        }
        Language::Python | Language::TypeScript => json!({ "steps": [{ "id": "s", "handler": { "name": "suite" } }] }),
    };
    let mut document = rules.as_object().unwrap().clone();
    document.extend(step.as_object().unwrap().clone());
    Value::Object(document)
}

/// The trace that every request of the suite is part of.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A worker as a process of its own; one that a failed test leaves is killed.
struct Worker(Child);

impl Worker {
    fn start(language: Language, place: &Place, server: SocketAddr, name: &str, drain_s: f64) -> Self {
        let url = format!("http://{server}");
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let clients = source.join("../../clients");
        let mut command = match language {
            Language::Rust => {
                let drain = format!("{}ms", (drain_s * 1_000.0) as u64);
                let data = place.text(name);
                rota(&[
                    "worker",
                    "--server",
                    &url,
                    "--name",
                    name,
                    "--traits",
                    "suite",
                    "--commands-policy",
                    "any",
                    "--drain",
                    &drain,
                    "--data",
                    &data,
                    "--attempts-max",
                    "20",
                ])
            }
            Language::Python => {
                let mut command = Command::new(tool("ROTA_TEST_PYTHON"));
                command.env("PYTHONPATH", clients.join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
                command.arg(source.join("tests/it/workers/suite.py"));
                command.args([&url, name, &drain_s.to_string()]);
                command
            }
            Language::TypeScript => {
                let script = compiled(place, &clients.join("typescript"), &source.join("tests/it/workers"));
                let mut command = Command::new("node");
                command.arg(script).args([&url, name, &drain_s.to_string()]);
                command
            }
        };
        let log = || std::fs::File::create(place.path(&format!("{name}.log"))).unwrap();
        Self(command.stdin(Stdio::null()).stdout(log()).stderr(log()).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    fn code(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.0.kill().ok();
            self.0.wait().ok();
        }
    }
}

pub fn tool(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: eval \"$(scripts/services env)\""))
}

/// Checks the types of the client, its example and the suite's worker, and
/// answers the script to run.
fn compiled(place: &Place, client: &Path, suite: &Path) -> std::path::PathBuf {
    let (sources, out) = (place.path("ts"), place.path("js"));
    if !out.join("suite.js").exists() {
        std::fs::create_dir_all(&sources).unwrap();
        for file in ["rota-worker.ts", "example.ts", "tsconfig.json"] {
            std::fs::copy(client.join(file), sources.join(file)).unwrap();
        }
        std::fs::copy(suite.join("suite.ts"), sources.join("suite.ts")).unwrap();
        let config = json!({ "extends": "./tsconfig.json", "files": ["rota-worker.ts", "example.ts", "suite.ts"] });
        place.write("ts/suite.json", &config.to_string());
        place.write("js/package.json", r#"{ "type": "module" }"#);
        let mut tsc = Command::new("node");
        tsc.arg(tool("ROTA_TEST_TSC")).arg("--project").arg(sources.join("suite.json")).arg("--outDir").arg(&out);
        let done = tsc.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }
    out.join("suite.js")
}

/// A server with the suite's job, and what its attempts wrote down.
struct Suite {
    place: Place,
    node: Option<Node>,
    listen: SocketAddr,
    arguments: Vec<String>,
    language: Language,
}

impl Suite {
    fn new(language: Language, arguments: &[&str]) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = free.local_addr().unwrap();
        drop(free);
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let mut suite = Self { place: Place::new(), node: None, listen, arguments, language };
        suite.start();
        let (status, saved) = suite.ask("POST", "/jobs", Some(&job(language)));
        assert!((200..300).contains(&status), "{saved}");
        suite
    }

    fn start(&mut self) {
        let listen = self.listen.to_string();
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).chain(["--listen", &listen]).collect();
        self.node = Some(Node::ready(&self.place, &arguments));
    }

    fn worker(&self, name: &str, drain_s: f64) -> Worker {
        Worker::start(self.language, &self.place, self.listen, name, drain_s)
    }

    /// What a path of the API is answered with.
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect(self.listen).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        write!(
            stream,
            "{method} /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Asks for a run that ends when its gate is opened.
    fn trigger(&self, n: u64, gate: &str) -> String {
        self.trigger_large(n, gate, 0, false)
    }

    /// The same of one that logs, returns or complains with so many bytes.
    fn trigger_large(&self, n: u64, gate: &str, size: usize, fails: bool) -> String {
        let (ledger, gate) = (self.place.text("ledger"), self.place.text(gate));
        let payload = json!({ "n": n, "ledger": ledger, "gate": gate, "size": size, "fails": fails });
        let (status, made) = self.ask("POST", "/jobs/suite/trigger", Some(&json!({ "payload": payload })));
        assert_eq!(status, 202, "{made}");
        made["id"].as_str().unwrap().to_owned()
    }

    fn open(&self, gate: &str) {
        std::fs::File::create(self.place.path(gate)).unwrap();
    }

    fn run(&self, run: &str) -> Value {
        let (status, run) = self.ask("GET", &format!("/runs/{run}"), None);
        assert_eq!(status, 200, "{run}");
        run
    }

    fn is(&self, run: &str, status: &str) -> bool {
        self.run(run)["status"] == status
    }

    /// The processes that wrote this word for a run.
    fn wrote(&self, word: &str, run: &str) -> Vec<String> {
        let start = format!("{word} {run} ");
        let lines = ledger(&self.place.path("ledger"));
        lines.iter().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned).collect()
    }

    fn wait_for(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let mut node = self.node.take().unwrap();
        node.wait_for(what, |_| holds(self));
        self.node = Some(node);
    }

    fn workers(&self) -> Vec<Value> {
        let (_, page) = self.ask("GET", "/workers", None);
        let remote = |worker: &&Value| worker["built_in"] == false;
        page["items"].as_array().unwrap().iter().filter(remote).cloned().collect()
    }
}

/// A signal to stop lets attempts end and takes no more; the registry says so.
fn drains(language: Language) {
    let mut suite = Suite::new(language, &[]);
    let mut worker = suite.worker("one", 30.0);
    let first = suite.trigger(1, "gate");
    suite.wait_for("the attempt to begin", |suite| suite.wrote("begun", &first).len() == 1);
    let [trace] = &suite.wrote("trace", &first)[..] else { panic!("one attempt has one trace") };
    assert!(trace.starts_with(&format!("00-{TRACE}-")) && !trace.contains("00f067aa0ba902b7"), "{trace}");
    suite.wait_for("the worker to be listed", |suite| {
        suite
            .workers()
            .iter()
            .any(|worker| worker["state"] == "active" && worker["name"] == "one" && worker["busy"] == 1)
    });
    worker.signal(Signal::TERM);
    suite.wait_for("the worker to drain", |suite| suite.workers().iter().any(|worker| worker["state"] == "draining"));
    let second = suite.trigger(2, "gate");
    suite.open("gate");
    suite.wait_for("the worker to end", |_| worker.has_ended());
    assert_eq!(worker.code(), Some(0));
    assert!(suite.is(&first, "succeeded"));
    assert_eq!((suite.run(&second)["status"].as_str(), suite.wrote("begun", &second).len()), (Some("queued"), 0));
    assert_eq!(suite.workers(), Vec::<Value>::new(), "it has left");
    // What does not end in time is handed back, at no cost.
    let third = suite.trigger(3, "never");
    let mut hasty = suite.worker("two", 0.2);
    suite.wait_for("the attempt to begin", |suite| suite.wrote("begun", &third).len() == 1);
    hasty.signal(Signal::TERM);
    suite.wait_for("the worker to end", |_| hasty.has_ended());
    let run = suite.run(&third);
    assert_eq!(
        (run["status"].as_str(), run["losses"].as_u64(), run["attempts_used"].as_u64()),
        (Some("queued"), Some(0), Some(0))
    );
    assert!(suite.node.take().unwrap().stop().0.success());
}

/// A cancel reaches a worker that waits, and its attempt ends well within its
/// grace.
fn stops_what_is_cancelled(language: Language) {
    let mut suite = Suite::new(language, &["--leases-run", "2m"]);
    let worker = suite.worker("one", 30.0);
    let run = suite.trigger(1, "never");
    suite.wait_for("the attempt to begin", |suite| suite.wrote("begun", &run).len() == 1);
    let (status, answer) = suite.ask("POST", &format!("/runs/{run}/cancel"), Some(&json!({ "reason": "enough" })));
    assert_eq!(status, 200, "{answer}");
    suite.wait_for("the run to be cancelled", |suite| suite.is(&run, "cancelled"));
    if language != Language::Rust {
        assert_eq!(suite.wrote("stopped", &run).len(), 1);
    }
    assert_eq!(suite.wrote("ended", &run).len(), 0);
    let next = suite.trigger(2, "now");
    suite.open("now");
    suite.wait_for("the worker to go on", |suite| suite.is(&next, "succeeded"));
    drop(worker);
    assert!(suite.node.take().unwrap().stop().0.success());
}

/// A worker that was out of reach for longer than its lease hears that its
/// attempt is lost; what it reports under its old fence counts for nothing.
fn loses_what_another_was_given(language: Language) {
    let mut suite = Suite::new(language, &["--leases-run", "5s"]);
    let first = suite.worker("first", 30.0);
    let run = suite.trigger(1, "gate");
    suite.wait_for("the attempt to begin", |suite| suite.wrote("begun", &run).len() == 1);
    first.signal(Signal::STOP);
    let second = suite.worker("second", 30.0);
    suite.wait_for("another to be given it", |suite| suite.wrote("begun", &run).len() == 2);
    let holder = suite.run(&run);
    assert_eq!(holder["losses"], 1);
    suite.open("gate");
    suite.wait_for("the run to succeed", |suite| suite.is(&run, "succeeded"));
    let settled = suite.run(&run);
    first.signal(Signal::CONT);
    suite.wait_for("the first to come to an end, or be stopped", |suite| {
        language == Language::Rust || suite.wrote("ended", &run).len() + suite.wrote("stopped", &run).len() == 2
    });
    drop(second);
    // The first goes on, and only what counted counts.
    let next = suite.trigger(2, "gate");
    suite.wait_for("the first to work again", |suite| suite.is(&next, "succeeded"));
    assert_eq!(suite.run(&run), settled);
    if language != Language::Rust {
        let pid = settled["output"]["pid"].to_string();
        assert_eq!(suite.wrote("begun", &run)[1], pid, "the second one's word stands");
        assert_ne!(suite.wrote("begun", &run)[0], pid);
    }
    assert!(suite.node.take().unwrap().stop().0.success());
}

/// Workers outlive their server: attempts go on, are reported when it is back,
/// and the books agree.
fn outlives_its_server(language: Language) {
    let mut suite = Suite::new(language, &["--leases-run", "1m"]);
    let worker = suite.worker("one", 30.0);
    let long = suite.trigger(0, "gate");
    suite.wait_for("the attempt to begin", |suite| suite.wrote("begun", &long).len() == 1);
    suite.open("open");
    let mut runs: Vec<String> = (1..=10).map(|n| suite.trigger(n, "open")).collect();
    suite.wait_for("some to end", |suite| !suite.wrote("ended", &runs[0]).is_empty());
    let node = suite.node.take().unwrap();
    node.signal(Signal::KILL);
    assert!(!node.end().0.success());
    suite.open("gate");
    suite.start();
    runs.extend((11..=20).map(|n| suite.trigger(n, "open")));
    for (n, run) in [long.clone()].iter().chain(&runs).enumerate() {
        suite.wait_for("all to succeed", |suite| suite.is(run, "succeeded"));
        let ended = suite.run(run);
        if language != Language::Rust {
            assert_eq!(ended["output"]["n"], json!(n), "{ended}");
        }
        // Never less than once; more than once only where a loss says so.
        let times = suite.wrote("ended", run).len() as u64;
        assert!(times >= 1 && times <= 1 + ended["losses"].as_u64().unwrap(), "{times} times, {ended}");
    }
    assert_eq!((suite.wrote("begun", &long).len(), &suite.run(&long)["losses"]), (1, &json!(0)), "it went on");
    if language != Language::Rust {
        let (_, logs) = suite.ask("GET", &format!("/runs/{long}/logs"), None);
        assert_eq!(logs["items"].as_array().map(Vec::len), Some(1), "{logs}");
    }
    drop(worker);
    assert!(suite.node.take().unwrap().stop().0.success());
}

/// What is too large, or no JSON at all, costs its own attempt and not the worker, nor the
/// next one that would be given the run.
fn outlives_what_is_too_large(language: Language) {
    const SIZE: usize = 2_500_000;
    let mut suite = Suite::new(language, &[]);
    let mut worker = suite.worker("one", 30.0);
    suite.open("open");
    let large = suite.trigger_large(1, "open", SIZE, false);
    let failing = suite.trigger_large(2, "late", SIZE, true);
    let odd = suite.trigger_large(3, "open", 0, language != Language::Rust);
    let plain: Vec<String> = (4..10).map(|n| suite.trigger(n, "open")).collect();
    if language != Language::Rust {
        // While it lasts: what is reported together with an end may not be kept.
        suite.wait_for("progress", |suite| suite.run(&failing)["progress"]["percent"] == json!(100));
        assert_eq!(suite.run(&failing)["progress"]["phase"].as_str().map(str::len), Some(1 << 10));
    }
    suite.open("late");
    let ended = |suite: &Suite, run: &str| !suite.run(run)["ended_at"].is_null();
    for run in [&large, &failing, &odd].into_iter().chain(&plain) {
        suite.wait_for("every run to end", |suite| ended(suite, run));
        let run = suite.run(run);
        assert_eq!(run["losses"], json!(0), "{run}");
    }
    assert!(plain.iter().all(|run| suite.is(run, "succeeded")));
    let (large, failing, odd) = (suite.run(&large), suite.run(&failing), suite.run(&odd));
    if language == Language::Rust {
        assert_eq!((&large["status"], &large["output"]["truncated"]), (&json!("succeeded"), &json!(true)));
    } else {
        assert_eq!((&large["status"], &large["failure"]["kind"]), (&json!("failed"), &json!("output_too_large")));
        assert_eq!(odd["failure"]["kind"], json!("handler"), "{odd}");
        assert!(failing["failure"]["message"].as_str().unwrap().ends_with("[cut]"));
    }
    assert!(failing["failure"]["message"].as_str().unwrap().len() <= 8 << 10);
    let (_, logs) = suite.ask("GET", &format!("/runs/{}/logs", failing["id"].as_str().unwrap()), None);
    assert!(logs["items"].as_array().unwrap().iter().any(|line| {
        let text = line["text"].as_str().unwrap();
        text.len() <= 16 << 10 && text.ends_with("[cut]")
    }));
    assert!(!worker.has_ended(), "it goes on");
    drop(worker);
    assert!(suite.node.take().unwrap().stop().0.success());
}

macro_rules! in_each_language {
    ($($promise:ident),* $(,)?) => {
        mod rust { $(#[test] fn $promise() { super::$promise(super::Language::Rust); })* }
        mod python { $(#[test] fn $promise() { super::$promise(super::Language::Python); })* }
        mod typescript { $(#[test] fn $promise() { super::$promise(super::Language::TypeScript); })* }
    };
}

in_each_language!(
    drains,
    stops_what_is_cancelled,
    loses_what_another_was_given,
    outlives_its_server,
    outlives_what_is_too_large
);
