//! What an answer promises: one of 2xx is stored, whatever becomes of the node that
//! gave it; one key is one answer, whoever asks for it and wherever.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Barrier},
    time::Duration,
};

use rota_store::postgres::{Options, PostgresStore};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::node::{Node, Place};

/// Longer than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// Where nodes keep what they answer for.
struct Store {
    place: Place,
    /// Its address and schema; none for a file.
    postgres: Option<(String, String)>,
}

impl Store {
    fn sqlite() -> Self {
        Self { place: Place::in_memory(), postgres: None }
    }

    fn postgres() -> Self {
        let url = std::env::var("ROTA_TEST_POSTGRES")
            .expect("ROTA_TEST_POSTGRES names no server: run `make test`, or `eval \"$(scripts/services env)\"` first");
        Self { place: Place::in_memory(), postgres: Some((url, format!("t_{}", uuid::Uuid::now_v7().simple()))) }
    }

    fn node(&self) -> Node {
        match &self.postgres {
            None => Node::ready(&self.place, &[]),
            Some((url, schema)) => {
                let arguments = ["--store", url, "--postgres-schema", schema, "--leases-node", "500ms"];
                Node::ready(&self.place, &arguments)
            }
        }
    }

    fn close(self) {
        let Some((url, schema)) = self.postgres else { return };
        let options = Options { schema: Some(schema), ..Options::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { PostgresStore::open(&url, options).await.unwrap().drop_schema().await.unwrap() });
    }
}

/// The status and the body of an answer.
type Answer = (u16, String);

fn send(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let kind = match path {
        _ if body.is_empty() => "",
        "/bulk/jobs" | "/bulk/runs" => "Content-Type: application/x-ndjson\r\n",
        _ => "Content-Type: application/json\r\n",
    };
    let head = format!("{method} /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}{headers}");
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let chunked = head.contains("transfer-encoding: chunked");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), if chunked { whole(body) } else { body.to_owned() })
}

/// What was sent in chunks.
fn whole(mut chunked: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = chunked.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole.push_str(&rest[..length]);
        chunked = &rest[length + 2..];
    }
    whole
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

/// A node that dies with every answer.
struct Mortal<'s> {
    store: &'s Store,
    node: Option<Node>,
}

impl Mortal<'_> {
    fn node(&mut self) -> SocketAddr {
        let store = self.store;
        self.node.get_or_insert_with(|| store.node()).address()
    }

    /// Asks for a change; the node dies as soon as it has said 2xx.
    fn change(&mut self, method: &str, path: &str, body: &str) -> Value {
        let address = self.node();
        let (status, answer) = send(address, method, path, "", body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        let node = self.node.take().unwrap();
        node.signal(Signal::KILL);
        assert!(!node.end().0.success());
        // A stream of lines is one answer after another.
        let lines: Vec<Value> = answer.lines().map(value).collect();
        if lines.len() == 1 { lines[0].clone() } else { Value::Array(lines) }
    }

    fn read(&mut self, path: &str) -> Value {
        let (status, answer) = send(self.node(), "GET", path, "", "");
        assert_eq!(status, 200, "GET {path}: {answer}");
        value(&answer)
    }

    fn audited(&mut self, action: &str) {
        let page = self.read("/audit?limit=1000");
        let found = page["items"].as_array().unwrap().iter().any(|entry| entry["action"] == action);
        assert!(found, "{action} is not in the audit log: {page}");
    }
}

fn job(name: &str) -> Value {
    json!({ "name": name, "schedules": [{ "name": "rarely", "cron": "0 0 1 1 *" }],
        "steps": [{ "id": "s", "handler": { "name": "hello" } }] })
}

/// A run that does not begin while the test lasts.
const LATER: &str = "2100-01-01T00:00:00Z";

fn what_was_answered_is_there(store: &Store) {
    let mut node = Mortal { store, node: None };
    let text = |value: &Value| value.to_string();
    // Jobs.
    let saved = node.change("POST", "/jobs", &text(&job("a")));
    assert_eq!(node.read("/jobs/a")["id"], saved["id"]);
    node.audited("job.save");
    let mut changed = job("a");
    changed["description"] = "once more".into();
    node.change("PUT", "/jobs/a", &text(&changed));
    assert_eq!(node.read("/jobs/a")["document"]["description"], "once more");
    let patched = node.change("PATCH", "/jobs/a", r#"{"description": "patched"}"#);
    assert_eq!((&patched["version"], &node.read("/jobs/a")["version"]), (&json!(3), &json!(3)));
    let lines = node.change("POST", "/bulk/jobs", &format!("{}\n{}\n", job("b"), job("c")));
    assert!(lines.as_array().unwrap().iter().all(|line| line["error"].is_null()), "{lines}");
    assert_eq!(node.read("/jobs")["items"].as_array().unwrap().len(), 3);
    // Runs.
    let run = |made: &Value| made["id"].as_str().unwrap().to_owned();
    let made = run(&node.change("POST", "/jobs/a/trigger", &text(&json!({ "run_at": LATER }))));
    assert_eq!(node.read(&format!("/runs/{made}"))["status"], "scheduled");
    let line = format!("{}\n", json!({ "job": "b", "run_at": LATER }));
    let lines = node.change("POST", "/bulk/runs", &line.repeat(3));
    for line in lines.as_array().unwrap() {
        assert_eq!(node.read(&format!("/runs/{}", run(line)))["status"], "scheduled");
    }
    node.audited("job.trigger_many");
    node.change("POST", &format!("/runs/{made}/cancel"), r#"{"reason": "not needed"}"#);
    assert_eq!(node.read(&format!("/runs/{made}"))["status"], "cancelled");
    assert!(node.read(&format!("/runs/{made}/events")).to_string().contains("not needed"));
    node.audited("run.cancel");
    let again = run(&node.change("POST", &format!("/runs/{made}/retry"), "{}"));
    assert_eq!(node.read(&format!("/runs/{again}"))["id"], again.as_str());
    let done = node.change("POST", "/bulk/cancel", r#"{"filter": {"job": "b"}}"#);
    assert_eq!(done["done"], 3, "{done}");
    assert_eq!(node.read("/runs?job=b&status=cancelled")["items"].as_array().unwrap().len(), 3);
    let done = node.change("POST", "/bulk/redrive", r#"{"filter": {"job": "b", "status": ["cancelled"]}}"#);
    assert_eq!(done["done"], 3, "{done}");
    assert_eq!(node.read("/runs?job=b")["items"].as_array().unwrap().len(), 6);
    // Pauses.
    node.change("POST", "/jobs/a/pause", r#"{"note": "a while"}"#);
    assert_eq!(node.read("/jobs/a")["pause"]["note"], "a while");
    node.change("POST", "/jobs/a/resume", "");
    // A pause that is over may be shown until its schedules have gone past it.
    let pause = node.read("/jobs/a")["pause"].clone();
    assert!(pause.is_null() || pause["until"].is_string(), "{pause}");
    let schedule = node.read("/jobs/a/schedules")["items"][0]["id"].to_string();
    node.change("POST", &format!("/schedules/{schedule}/pause"), r#"{"note": "hush"}"#);
    assert_eq!(node.read(&format!("/schedules/{schedule}"))["pause"]["note"], "hush");
    node.change("POST", "/queues/default/pause", r#"{"note": "full stop"}"#);
    assert!(node.read("/queues").to_string().contains("full stop"));
    node.change("POST", "/bulk/pause", r#"{"filter": {"prefix": "c"}, "note": "many"}"#);
    assert_eq!(node.read("/jobs/c")["pause"]["note"], "many");
    // Calendars, and who may ask.
    node.change("PUT", "/calendars/holidays", r#"{"name": "holidays", "dates": ["2026-12-25"]}"#);
    assert!(node.read("/calendars/holidays").to_string().contains("2026-12-25"));
    let token = node.change("POST", "/tokens", r#"{"name": "ci", "role": "viewer"}"#);
    let path = format!("/tokens/{}", token["token"]["id"].as_str().unwrap());
    assert_eq!(node.read(&path)["name"], "ci");
    node.change("DELETE", &path, "");
    assert_ne!(node.read(&path)["revoked_at"], Value::Null);
    node.audited("token.revoke");
    node.change("POST", "/users", r#"{"name": "zoe", "password": "long enough", "role": "viewer"}"#);
    assert_eq!(node.read("/users/zoe")["role"], "viewer");
    node.change("PUT", "/tenants/other", r#"{"tier": "pro"}"#);
    assert_eq!(node.read("/tenants/other")["tier"], "pro");
    let path = format!("/jobs/{}", node.read("/jobs/c")["id"]);
    node.change("DELETE", &path, "");
    assert_eq!(node.read(&path)["deleted"], true);
    node.audited("job.delete");
    assert!(node.node.unwrap().stop().0.success());
}

#[test]
fn an_answer_of_2xx_survives_a_kill_on_sqlite() {
    let store = Store::sqlite();
    what_was_answered_is_there(&store);
    store.close();
}

#[test]
fn an_answer_of_2xx_survives_a_kill_on_postgres() {
    let store = Store::postgres();
    what_was_answered_is_there(&store);
    store.close();
}

/// The answers to one request that many send at the same moment, to every node.
fn at_once(nodes: &[Node], key: &str, path: &str, body: &str) -> Vec<Answer> {
    const MANY: usize = 50;
    let together = Arc::new(Barrier::new(MANY));
    let asking: Vec<_> = (0..MANY)
        .map(|number| {
            let (address, together) = (nodes[number % nodes.len()].address(), Arc::clone(&together));
            let (path, body, key) = (path.to_owned(), body.to_owned(), format!("Idempotency-Key: {key}\r\n"));
            std::thread::spawn(move || {
                together.wait();
                send(address, "POST", &path, &key, &body)
            })
        })
        .collect();
    asking.into_iter().map(|asking| asking.join().unwrap()).collect()
}

/// Everybody who asks under one key at the same time is answered the same, by
/// whichever node, and it is done once.
#[test]
fn one_key_from_fifty_callers_on_two_nodes_is_one_answer() {
    let store = Store::postgres();
    let nodes = [store.node(), store.node()];
    let read = |path: &str| value(&send(nodes[0].address(), "GET", path, "", "").1);
    for (path, body, status, made) in [
        ("/jobs", job("a").to_string(), 201, "/jobs"),
        ("/jobs/a/trigger", json!({ "run_at": LATER }).to_string(), 202, "/runs"),
    ] {
        let answers = at_once(&nodes, made, path, &body);
        for answer in &answers {
            assert_eq!(answer, &answers[0], "{path}");
        }
        assert_eq!(answers[0].0, status, "{path}: {}", answers[0].1);
        let page = read(made);
        let items = page["items"].as_array().unwrap();
        assert_eq!(items.len(), 1, "{path}: {page}");
        assert_eq!(items[0]["id"], value(&answers[0].1)["id"], "{path}");
    }
    assert_eq!(read("/jobs/a/versions").to_string().matches("\"version\":").count(), 1);
    for node in nodes {
        assert!(node.stop().0.success());
    }
    store.close();
}
