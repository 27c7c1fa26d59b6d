//! Clients with sockets of their own, who do what no library does: say half of
//! what they have to say, read nothing, come in crowds. Each ends by a bound, and
//! whoever behaves is answered meanwhile.
//!
//! Bounds are short here, and nothing sleeps: whoever waits for a state asks again.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use axum::{Router, middleware::from_fn_with_state};
use rota_core::{
    duration::Span,
    ids::{JobId, RunId},
    job::JobDocument,
    store::{Expect, TenantPut, Tier},
};
use rota_engine::{Event, Options};
use rota_store::sqlite::SqliteStore;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::{Notify, oneshot},
    task::JoinHandle,
    time::timeout,
};
use tower::ServiceExt;

use super::*;

/// Longer than anything takes on a busy machine; a test that gets here fails.
const DEADLINE: Duration = Duration::from_mins(2);
/// So short that a test can wait for it to pass.
const SHORT: Duration = Duration::from_millis(300);
/// How long a client waits for a word before it goes on.
const MOMENT: Duration = Duration::from_millis(10);

/// A node that is served on threads of its own, as `rota serve` does.
struct Bed {
    engine: Engine,
    tenant: TenantId,
    node: Node,
    address: SocketAddr,
    api: Option<Runtime>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<io::Result<()>>,
}

async fn bed(bounds: Bounds) -> Bed {
    let engine = Engine::builder(Arc::new(SqliteStore::memory().unwrap()))
        .options(Options { sole: true, ..Options::default() })
        .handler("h", |_| async { Ok(Value::Null) })
        .start()
        .await
        .unwrap();
    let put = TenantPut { name: "default".into(), tier: Tier::Unlimited, quotas: None };
    let tenant = engine.store().put_tenants(&[put], engine.now()).await.unwrap()[0];
    let node = Node::new(Access::default(), bounds);
    node.started(engine.clone(), tenant);
    let server = Server::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = server.address();
    let api = threads(1, || {}).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = api.spawn(server.serve(node.clone(), Hosts::default(), async { drop(stopped.await) }));
    Bed { engine, tenant, node, address, api: Some(api), stop, serving }
}

impl Bed {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// From another address of this machine.
    async fn connect_from(&self, last: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// A connection whose request goes on.
    async fn follow_from(&self, last: u8) -> TcpStream {
        let mut stream = self.connect_from(last).await;
        stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        assert!(heard(&mut stream).await.starts_with("HTTP/1.1 200 "));
        stream
    }

    /// The whole answer to a request on a connection of its own; empty where it was
    /// cut off.
    async fn ask(&self, head: &str) -> String {
        self.ask_from(1, head).await
    }

    async fn ask_from(&self, last: u8, head: &str) -> String {
        let mut stream = self.connect_from(last).await;
        let request = format!("{head}\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        if stream.write_all(request.as_bytes()).await.is_ok() {
            drop(stream.read_to_end(&mut answer).await);
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn is_served(&self, path: &str) -> bool {
        self.ask(&format!("GET {path} HTTP/1.1")).await.starts_with("HTTP/1.1 200 ")
    }

    /// Asks until it is answered well.
    async fn until_served(&self, path: &str) {
        let asking = async { while !self.is_served(path).await {} };
        timeout(DEADLINE, asking).await.expect("it is served again");
    }

    async fn close(mut self) {
        drop(self.stop);
        self.serving.await.unwrap().unwrap();
        self.api.take().unwrap().shutdown_background();
        self.engine.stop(Span::millis(1)).await.unwrap();
    }
}

/// The next that the other end says.
async fn heard(stream: &mut TcpStream) -> String {
    let mut said = [0; 4_096];
    let count = timeout(DEADLINE, stream.read(&mut said)).await.expect("it says something").unwrap();
    String::from_utf8_lossy(&said[..count]).into_owned()
}

/// What the other end says until it says no more.
async fn rest(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    drop(timeout(DEADLINE, stream.read_to_end(&mut said)).await.expect("the connection ends"));
    String::from_utf8_lossy(&said).into_owned()
}

/// Says it a letter at a time, until the other end has heard enough.
async fn trickle(stream: &mut TcpStream, letter: u8) -> String {
    let mut said = Vec::new();
    let trickling = async {
        let mut heard = [0; 4096];
        loop {
            // Whoever is not listened to any more may still be told why.
            let sent = stream.write_all(&[letter]).await;
            match timeout(MOMENT, stream.read(&mut heard)).await {
                Ok(Ok(0) | Err(_)) => return,
                Ok(Ok(count)) => said.extend_from_slice(&heard[..count]),
                Err(_) if sent.is_err() => return,
                Err(_) => {}
            }
        }
    };
    timeout(DEADLINE, trickling).await.expect("it is given up");
    String::from_utf8_lossy(&said).into_owned()
}

/// The API's threads are not the engine's: with all of them stuck, nobody is
/// answered, and runs are made, executed and settled all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_go_on_while_every_thread_of_the_api_is_stuck() {
    let bed = bed(Bounds::default()).await;
    assert!(bed.is_served("/healthz").await);
    let (begun, has_begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    bed.api.as_ref().unwrap().spawn(async move {
        begun.send(()).unwrap();
        // A handler as bad as can be: it blocks its thread.
        released.recv().ok();
    });
    tokio::task::block_in_place(|| has_begun.recv()).unwrap();
    let mut asking = Box::pin(bed.is_served("/healthz"));
    assert!(timeout(MOMENT, &mut asking).await.is_err(), "somebody answers: the thread is not stuck");
    let mut events = bed.engine.subscribe();
    let job = json!({ "name": "j", "steps": [{ "id": "s", "handler": { "name": "h" } }],
        "schedules": [{ "name": "often", "every": "1s" }] });
    let job = JobDocument::from_value(job).unwrap();
    bed.engine.save_job(bed.tenant, &job, None, Expect::Anything).await.unwrap();
    let (mut fired, mut ended) = (false, false);
    while !(fired && ended) {
        match timeout(DEADLINE, events.recv()).await.expect("the engine goes on").unwrap() {
            Event::ScheduleFired { .. } => fired = true,
            Event::RunEnded { .. } => ended = true,
            _ => {}
        }
    }
    assert!(timeout(MOMENT, &mut asking).await.is_err(), "the thread was not stuck meanwhile");
    drop(release);
    assert!(asking.await, "who waited is answered");
    bed.close().await;
}

/// A tenant's schema may take long to evaluate, as often as the tenant likes; whoever watches
/// the node must not take it for dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_answered_while_every_thread_of_the_api_evaluates() {
    let bed = bed(Bounds::default()).await;
    // Alternatives that double with each level: given up, after as many steps as there may be.
    let mut defs: serde_json::Map<String, Value> = (0..30)
        .map(|n| {
            let next = json!({ "$ref": format!("#/$defs/a{}", n + 1) });
            (format!("a{n}"), json!({ "anyOf": [next.clone(), { "allOf": [next] }] }))
        })
        .collect();
    defs.insert("a30".into(), json!({ "type": "object" }));
    let job = json!({ "name": "j", "steps": [{ "id": "s", "handler": { "name": "h" } }],
        "input": { "schema": { "$ref": "#/$defs/a0", "$defs": defs } } });
    let job = JobDocument::from_value(job).unwrap();
    bed.engine.save_job(bed.tenant, &job, None, Expect::Anything).await.unwrap();
    let ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut health = bed.connect().await;
    health.write_all(ask).await.unwrap();
    assert!(heard(&mut health).await.starts_with("HTTP/1.1 200 "));
    let trigger = "POST /api/v1/jobs/j/trigger HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                   Content-Type: application/json\r\nContent-Length: 18\r\n\r\n{\"payload\":\"text\"}";
    let mut evaluating = Vec::new();
    for _ in 0..16 {
        let mut stream = bed.connect().await;
        stream.write_all(trigger.as_bytes()).await.unwrap();
        evaluating.push(tokio::spawn(async move { rest(&mut stream).await }));
    }
    health.write_all(ask).await.unwrap();
    assert!(heard(&mut health).await.starts_with("HTTP/1.1 200 "));
    let done = evaluating.iter().filter(|evaluation| evaluation.is_finished()).count();
    assert!(done < evaluating.len(), "health waited for evaluations");
    for evaluation in evaluating {
        let said = evaluation.await.unwrap();
        assert!(said.contains("steps"), "{said}");
    }
    bed.close().await;
}

/// What is in work is bounded, and who comes too late is told when to come again;
/// health is told always.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_those_in_work_are_refused_with_503() {
    let bed = bed(Bounds { requests_max: 2, ..Bounds::default() }).await;
    let (arrived, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let parked = {
        let (arrived, gate) = (Arc::clone(&arrived), Arc::clone(&gate));
        get(async move || {
            arrived.notify_one();
            gate.notified().await;
        })
    };
    let slow = Router::new()
        .route("/slow", parked)
        .layer(from_fn_with_state(bed.node.clone(), bounds::admit))
        .with_state(bed.node.clone());
    let ask = || Request::get("/slow").body(Body::empty()).unwrap();
    let first = tokio::spawn(slow.clone().oneshot(ask()));
    arrived.notified().await;
    assert!(bed.is_served("/api/v1/jobs").await, "there is room for one more");
    let second = tokio::spawn(slow.oneshot(ask()));
    arrived.notified().await;
    let refused = bed.ask("GET /api/v1/jobs HTTP/1.1").await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\"code\":\"busy\""), "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    assert!(bed.is_served("/healthz").await);
    assert!(bed.is_served("/metrics").await);
    gate.notify_waiters();
    for answered in [first, second] {
        assert_eq!(answered.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    assert!(bed.is_served("/api/v1/jobs").await);
    bed.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_beyond_the_bound_is_told_so() {
    let bed = bed(Bounds { connections_max: 1, ..Bounds::default() }).await;
    let only = bed.follow_from(1).await;
    let refused = bed.ask("GET /api/v1/jobs HTTP/1.1").await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\"code\":\"busy\""), "{refused}");
    drop(only);
    bed.until_served("/api/v1/jobs").await;
    bed.close().await;
}

/// 1,024 idle connections from one address shut out everybody for 40 seconds, a
/// balancer that asks for health included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_shut_nobody_out() {
    let bounds = Bounds { connections_max: 8, address_connections_max: 6, ..Bounds::default() };
    let bed = bed(Bounds { first_head_time: 10 * DEADLINE, head_time: 10 * DEADLINE, ..bounds }).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(bed.connect_from(2).await);
        assert!(bed.is_served("/api/v1/jobs").await, "after {}", idle.len());
    }
    assert_eq!(rest(&mut idle[0]).await, "", "the oldest makes room");
    // From many addresses, each with less than its share.
    for last in 3..40 {
        idle.push(bed.connect_from(last).await);
        assert!(bed.is_served("/api/v1/jobs").await, "after {}", idle.len());
        assert!(bed.is_served("/healthz").await);
    }
    bed.close().await;
}

/// Whoever keeps its connections at work has its share and no more, and is told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_has_no_more_connections_than_its_share() {
    let bed = bed(Bounds { connections_max: 6, address_connections_max: 3, ..Bounds::default() }).await;
    let mut following = Vec::new();
    for _ in 0..3 {
        following.push(bed.follow_from(2).await);
    }
    let refused = bed.ask_from(2, "GET /api/v1/jobs HTTP/1.1").await;
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    assert!(refused.contains("\"code\":\"too_many_connections\"") && refused.contains("retry-after: 1"), "{refused}");
    assert!(bed.ask_from(2, "GET /healthz HTTP/1.1").await.starts_with("HTTP/1.1 200 "));
    assert!(bed.is_served("/api/v1/jobs").await, "others have their room");
    drop(following);
    let again = async { while !bed.ask_from(2, "GET /api/v1/jobs HTTP/1.1").await.starts_with("HTTP/1.1 200 ") {} };
    timeout(DEADLINE, again).await.expect("there is room again");
    bed.close().await;
}

/// A node whose every connection is at work must not be taken for dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_told_when_no_connection_is_left() {
    let bed = bed(Bounds { connections_max: 3, address_connections_max: 3, reserve_max: 4, ..Bounds::default() }).await;
    let mut following = Vec::new();
    for last in 2..5 {
        following.push(bed.follow_from(last).await);
    }
    let mut idle = Vec::new();
    for last in 10..40 {
        // They ask for nothing, and hold what is kept back for health.
        idle.push(bed.connect_from(last).await);
        for path in ["/healthz", "/readyz", "/metrics"] {
            assert!(bed.is_served(path).await, "{path} after {}", idle.len());
        }
    }
    let refused = bed.ask("POST /api/v1/jobs HTTP/1.1").await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\"code\":\"busy\""), "{refused}");
    bed.close().await;
}

/// Whoever opens a connection says at once what for; whoever has asked may pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_connection_that_says_nothing_is_closed_soon() {
    let bed = bed(Bounds { first_head_time: SHORT, head_time: 10 * DEADLINE, ..Bounds::default() }).await;
    let mut kept = bed.connect().await;
    let ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    kept.write_all(ask).await.unwrap();
    assert!(heard(&mut kept).await.starts_with("HTTP/1.1 200 "));
    let mut silent = bed.connect().await;
    let mut half = bed.connect().await;
    half.write_all(b"GET /healthz HTTP/1.1\r\nHost: local").await.unwrap();
    assert_eq!((rest(&mut silent).await, rest(&mut half).await), (String::new(), String::new()));
    kept.write_all(ask).await.unwrap();
    assert!(heard(&mut kept).await.starts_with("HTTP/1.1 200 "), "one that has asked was closed too");
    bed.close().await;
}

/// A proxy that takes a lone line feed for a part of a header would see another request
/// than this node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_line_feed_in_a_head_is_refused() {
    let bed = bed(Bounds::default()).await;
    let good = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for bad in [
        "GET /healthz HTTP/1.1\nHost: localhost\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\n",
        "\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        let mut stream = bed.connect().await;
        stream.write_all(format!("{good}{bad}{good}").as_bytes()).await.unwrap();
        let said = rest(&mut stream).await;
        assert_eq!((said.matches("HTTP/1.1 200 ").count(), said.matches("HTTP/1.1 400 ").count()), (1, 1), "{said}");
    }
    // After a body of unknown length nothing more is looked at, so nothing more is answered.
    let mut stream = bed.connect().await;
    let chunked =
        "POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na\n\r\n0\r\n\r\n";
    stream.write_all(format!("{chunked}{good}").as_bytes()).await.unwrap();
    let said = rest(&mut stream).await;
    assert!(said.starts_with("HTTP/1.1 405 ") && !said.contains("HTTP/1.1 200 "), "{said}");
    bed.close().await;
}

/// A proxy that believes one of two lines would see a body where this node sees a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_length_is_said_in_two_ways_is_refused() {
    let bed = bed(Bounds::default()).await;
    let good = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let chunks = "5\r\nabcde\r\n0\r\n\r\n";
    let padded = format!("Content-Length: {}5", " ".repeat(80));
    for lines in [
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "content-length: 0\r\nX: y\r\ntransfer-encoding: Chunked",
        "Content-Length: 5\r\nTransfer-Encoding: identity",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        &padded,
    ] {
        let mut stream = bed.connect().await;
        let bad = format!("POST /healthz HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n\r\n{chunks}");
        stream.write_all(format!("{good}{bad}{good}").as_bytes()).await.unwrap();
        let said = rest(&mut stream).await;
        let count = |status: &str| said.matches(&format!("HTTP/1.1 {status} ")).count();
        assert_eq!((count("200"), count("400"), said.matches("HTTP/1.1 ").count()), (1, 1, 2), "{lines}: {said}");
    }
    // The same length said twice is one length.
    let mut stream = bed.connect().await;
    let twice = "POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nabcde";
    let last = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(format!("{twice}{last}").as_bytes()).await.unwrap();
    let said = rest(&mut stream).await;
    assert!(said.starts_with("HTTP/1.1 405 ") && said.contains("HTTP/1.1 200 "), "{said}");
    bed.close().await;
}

/// What comes behind it may be somebody else's, by what a proxy made of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_with_two_hosts_is_the_last_of_its_connection() {
    let bed = bed(Bounds::default()).await;
    let good = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let bad = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n";
    let mut stream = bed.connect().await;
    stream.write_all(format!("{good}{bad}{good}").as_bytes()).await.unwrap();
    let said = rest(&mut stream).await;
    assert_eq!((said.matches("HTTP/1.1 200 ").count(), said.matches("HTTP/1.1 400 ").count()), (1, 1), "{said}");
    bed.close().await;
}

/// Slowloris: a head that never ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_comes_a_letter_at_a_time_is_given_up() {
    let bed = bed(Bounds { head_time: SHORT, ..Bounds::default() }).await;
    let mut slow = bed.connect().await;
    slow.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").await.unwrap();
    let said = tokio::join!(trickle(&mut slow, b'x'), bed.until_served("/api/v1/jobs")).0;
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 408 "), "{said}");
    bed.close().await;
}

/// A body that never ends is given up, and others are served meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_comes_a_letter_at_a_time_is_given_up() {
    let bed = bed(Bounds { body_time: SHORT, requests_max: 2, ..Bounds::default() }).await;
    let mut slow = bed.connect().await;
    let head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{\"name\": \"";
    slow.write_all(head).await.unwrap();
    let said = tokio::join!(trickle(&mut slow, b'x'), bed.until_served("/api/v1/jobs")).0;
    assert!(said.starts_with("HTTP/1.1 408 ") && said.contains("\"code\":\"slow_body\""), "{said}");
    bed.close().await;
}

/// With room for one request alone, everybody else is answered while a body is waited
/// for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_still_coming_takes_nobodys_place() {
    let bed = bed(Bounds { requests_max: 1, ..Bounds::default() }).await;
    let mut slow = bed.connect().await;
    let head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{\"name\": \"";
    slow.write_all(head).await.unwrap();
    for _ in 0..50 {
        assert!(bed.is_served("/api/v1/jobs").await);
    }
    drop(slow);
    bed.close().await;
}

/// A stream may go on for ever, but a line of it must come in time; what came
/// before is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_a_stream_that_never_ends_is_given_up() {
    let bed = bed(Bounds { body_time: SHORT, ..Bounds::default() }).await;
    let job = json!({ "name": "j", "steps": [{ "id": "s", "handler": { "name": "h" } }] });
    let job = JobDocument::from_value(job).unwrap();
    bed.engine.save_job(bed.tenant, &job, None, Expect::Anything).await.unwrap();
    let mut slow = bed.connect().await;
    let head = "POST /api/v1/bulk/runs HTTP/1.1\r\nHost: localhost\r\n\
                Content-Type: application/x-ndjson\r\nContent-Length: 100000\r\n\r\n";
    slow.write_all(format!("{head}{{\"job\": \"j\"}}\n{{\"job\": \"").as_bytes()).await.unwrap();
    let said = tokio::join!(trickle(&mut slow, b'x'), bed.until_served("/api/v1/jobs")).0;
    assert!(said.contains("\"line\":1,\"id\":") && said.contains("\"code\":\"slow_body\""), "{said}");
    bed.close().await;
}

/// A stream is in work while its lines are being written, and waits for its place like
/// everybody else. How many there are is bounded too, for each holds a batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_a_request_in_work_while_it_works() {
    let bed = bed(Bounds { requests_max: 1, streams_max: 1, ..Bounds::default() }).await;
    let job = json!({ "name": "j", "steps": [{ "id": "s", "handler": { "name": "h" } }] });
    let job = JobDocument::from_value(job).unwrap();
    bed.engine.save_job(bed.tenant, &job, None, Expect::Anything).await.unwrap();
    let head = "POST /api/v1/bulk/runs HTTP/1.1\r\nContent-Type: application/x-ndjson";
    let line = "{\"job\": \"j\"}\n";
    let mut stream = bed.connect().await;
    let length = line.len();
    stream
        .write_all(format!("{head}\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    assert!(heard(&mut stream).await.starts_with("HTTP/1.1 200 "));
    assert!(bed.is_served("/api/v1/jobs").await, "it waits for its client and takes nobody's place");
    let refused = bed.ask(head).await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\"code\":\"busy\""), "{refused}");
    let only = Arc::clone(bed.node.requests()).acquire_owned().await.unwrap();
    stream.write_all(line.as_bytes()).await.unwrap();
    let mut hearing = Box::pin(heard(&mut stream));
    assert!(timeout(SHORT, &mut hearing).await.is_err(), "it worked without a place");
    drop(only);
    assert!(hearing.await.contains("\"line\":1,\"id\""));
    bed.until_served("/api/v1/jobs").await;
    let again = async { while !bed.ask(head).await.starts_with("HTTP/1.1 200 ") {} };
    timeout(DEADLINE, again).await.expect("a place among the streams is free again");
    bed.close().await;
}

/// A client that asks and asks, and reads nothing, holds its connection for a
/// bounded time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_its_answer_is_given_up() {
    let bed = bed(Bounds { reading_time: SHORT, connections_max: 1, ..Bounds::default() }).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut deaf = socket.connect(bed.address).await.unwrap();
    let asked = "GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
    deaf.write_all(asked.as_bytes()).await.unwrap();
    // Until it is being answered it would make room for others.
    deaf.readable().await.unwrap();
    // It holds the only connection; when that is free again, it was given up.
    bed.until_served("/api/v1/jobs").await;
    let said = rest(&mut deaf).await;
    assert!(said.matches("HTTP/1.1 200 OK").count() < 200, "all was answered: nothing was shown");
    bed.close().await;
}

/// A feed that nobody reads must not be kept for ever, whatever happens meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_never_reads_is_given_up() {
    let bed = bed(Bounds { reading_time: SHORT, connections_max: 1, ..Bounds::default() }).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut deaf = socket.connect(bed.address).await.unwrap();
    deaf.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    deaf.readable().await.unwrap();
    let happening = async {
        while !bed.is_served("/api/v1/jobs").await {
            for _ in 0..1_000 {
                let run = RunId::new(bed.engine.node().random.as_ref(), bed.engine.now());
                bed.engine.node().events.emit(|| Event::RunParked { run, job: JobId(1), tenant: bed.tenant });
            }
        }
    };
    timeout(DEADLINE, happening).await.expect("the follower is given up");
    assert!(rest(&mut deaf).await.starts_with("HTTP/1.1 200 OK"));
    bed.close().await;
}
