//! Runs: listed a page at a time, followed, stopped, explained, made again.

use std::collections::BTreeSet;

use axum::http::Method;
use rota_engine::executors::{
    egress::{Egress, Reach},
    http::{HttpExecutor, HttpOptions},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::bed::{Bed, job};

/// Whoever finds the dead letter, or the run that waits, is told of the other.
#[tokio::test]
async fn a_dead_letter_that_is_made_again_by_itself_says_so() {
    let bed = Bed::new().await;
    let mut document = job("mail", "die");
    document["retry"] = json!({ "max_attempts": 1 });
    document["dead"] = json!({ "redrive_after": "1h" });
    bed.put("/jobs/mail", document).await.ok();
    let dead = bed.trigger("mail", json!({ "payload": { "to": "ann" }, "labels": { "scope": "a" } })).await;
    let found = bed.ended(&dead).await;
    let follower = found["follower"]["run"].as_str().unwrap().to_owned();
    let new = bed.get(&format!("/runs/{follower}")).await.ok();
    assert_eq!((&new["status"], &new["ready_at"]), (&json!("scheduled"), &found["follower"]["at"]));
    assert_eq!((&new["trigger"]["source"], &new["trigger"]["metadata"]["from"]), (&json!("redrive"), &json!(dead)));
    assert_eq!((&new["payload"], &new["labels"]), (&found["payload"], &found["labels"]));
    let why = bed.get(&format!("/runs/{dead}/why")).await.ok();
    assert_eq!((&why["reasons"][1]["code"], &why["reasons"][1]["data"]["run"]), (&json!("follower"), &json!(follower)));
    let why = bed.get(&format!("/runs/{follower}/why")).await.ok();
    assert_eq!((&why["reasons"][0]["code"], &why["reasons"][0]["data"]["of"]), (&json!("redrive"), &json!(dead)));
    let events = bed.get(&format!("/runs/{dead}/events")).await.ok();
    assert!(events.as_array().unwrap().iter().any(|event| event["event"] == "redriven"), "{events}");
    assert_eq!(bed.get("/dead-letters").await.ok()["items"], json!([]), "nobody need look at it");
    let redriven = bed.get("/dead-letters?state=redriven").await.ok();
    assert_eq!(redriven["items"][0]["follower"], found["follower"]);
    let answer = bed.post(&format!("/runs/{dead}/retry"), json!({})).await;
    assert_eq!(answer.problem(), (409, "duplicate".to_owned()));
    let stopped = bed.post(&format!("/runs/{follower}/cancel"), json!({})).await.ok();
    assert_eq!(stopped["answer"], "cancelled");
}

/// A list is for looking, and a thousand payloads of a megabyte are no list.
#[tokio::test]
async fn lists_show_payloads_and_outputs_only_where_they_are_asked_for() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    bed.job("dies", "fail").await;
    let run = bed.trigger("mail", json!({ "payload": { "to": "ann" } })).await;
    let dead = bed.trigger("dies", json!({ "payload": { "to": "bob" } })).await;
    for run in [&run, &dead] {
        bed.ended(run).await;
    }
    let whole = bed.get(&format!("/runs/{run}")).await.ok();
    assert_eq!((&whole["payload"]["to"], &whole["output"]["said"]), (&json!("ann"), &json!("hello")));
    for (query, payload, output) in [
        ("", false, false),
        ("&include=payload", true, false),
        ("&include=output", false, true),
        ("&include=output,payload", true, true),
        ("&include=output&include=payload", true, true),
    ] {
        for list in ["/runs?job=mail", "/jobs/mail/runs?limit=10"] {
            let page = bed.get(&format!("{list}{query}")).await.ok();
            let found = &page["items"][0];
            assert_eq!(found["id"], json!(run), "{page}");
            assert_eq!((found.get("payload").is_some(), found.get("output").is_some()), (payload, output), "{query}");
        }
    }
    for bad in ["/runs?include=everything", "/runs?include=", "/jobs?include=payload", "/schedules?include=output"] {
        assert_eq!(bed.get(bad).await.problem(), (400, "bad_request".to_owned()), "{bad}");
    }
}

/// Fewer rows than asked for, and a cursor: each run is still on one page.
#[tokio::test]
async fn a_page_of_runs_is_bounded_in_bytes() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let payload = "x".repeat(300_000);
    let line = json!({ "job": "mail", "run_at": "2100-01-01T00:00:00Z", "payload": payload }).to_string() + "\n";
    let lines = [("content-type", "application/x-ndjson")];
    let made = bed.send(axum::http::Method::POST, "/bulk/runs", &lines, line.repeat(30)).await.lines();
    let made: BTreeSet<String> = made.iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    let (mut seen, mut pages, mut after) = (Vec::new(), 0, String::new());
    loop {
        let answer = bed.get(&format!("/runs?limit=1000&include=payload{after}")).await;
        assert!(answer.text.len() < (1 << 20) + 1_000, "{}", answer.text.len());
        let page = answer.ok();
        seen.extend(page["items"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()));
        pages += 1;
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!((seen.len(), seen.into_iter().collect::<BTreeSet<_>>()), (30, made));
    assert!(pages >= 10, "{pages}");
    assert_eq!(bed.get("/runs?limit=1000").await.ok()["items"].as_array().unwrap().len(), 30, "they fit without it");
}

#[tokio::test]
async fn pages_show_every_run_once() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let mut made = BTreeSet::new();
    for n in 0..25 {
        made.insert(
            bed.trigger("mail", json!({ "run_at": "2100-01-01T00:00:00Z", "labels": { "n": n.to_string() } })).await,
        );
    }
    let (mut found, mut after) = (BTreeSet::new(), String::new());
    loop {
        let page = bed.get(&format!("/runs?limit=10&status=scheduled{after}")).await.ok();
        for run in page["items"].as_array().unwrap() {
            assert!(found.insert(run["id"].as_str().unwrap().to_owned()), "a run came twice");
        }
        let Some(next) = page["next"].as_str() else { break };
        let other = bed.get(&format!("/runs?limit=10&status=queued&after={next}")).await;
        assert_eq!(other.problem(), (400, "bad_cursor".to_owned()), "a cursor belongs to its filters");
        after = format!("&after={next}");
    }
    assert_eq!(found, made);
    let one = bed.get("/runs?label=n%3D7").await.ok();
    assert_eq!(one["items"].as_array().unwrap().len(), 1);
    assert_eq!(bed.get("/runs?limit=1000000000").await.ok()["items"].as_array().unwrap().len(), 25);
}

#[tokio::test]
async fn a_failed_run_tells_how_and_is_made_again() {
    let bed = Bed::new().await;
    bed.job("mail", "fail").await;
    let run = bed.trigger("mail", json!({ "payload": { "n": 1 } })).await;
    let ended = bed.ended(&run).await;
    assert_eq!((&ended["status"], &ended["failure"]["kind"]), (&json!("failed"), &json!("handler")));
    let why = bed.get(&format!("/runs/{run}/why")).await.ok();
    assert_eq!(why["reasons"][0]["code"], "ended");
    assert!(why["answer"].as_str().unwrap().contains("it broke"), "{why}");
    let events = bed.get(&format!("/runs/{run}/events")).await.ok();
    let names: Vec<&str> = events.as_array().unwrap().iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((names.first(), names.last()), (Some(&"created"), Some(&"ended")), "{events}");
    bed.job("mail", "hello").await;
    let same = bed.post(&format!("/runs/{run}/retry"), json!({})).await.ok();
    let again = bed.ended(same["id"].as_str().unwrap()).await;
    assert_eq!((&again["status"], &again["version"]), (&json!("failed"), &json!(1)), "the same version fails again");
    let twice = bed.post(&format!("/runs/{run}/retry"), json!({ "latest": true })).await;
    assert_eq!(twice.problem(), (409, "duplicate".to_owned()));
    assert!(twice.json()["detail"].as_str().unwrap().contains(same["id"].as_str().unwrap()), "{}", twice.text);
    let newest = bed.post(&format!("/runs/{run}/retry"), json!({ "latest": true, "again": true })).await.ok();
    let again = bed.ended(newest["id"].as_str().unwrap()).await;
    assert_eq!((&again["status"], &again["payload"]), (&json!("succeeded"), &json!({ "n": 1 })));
    assert_eq!(again["trigger"]["metadata"]["from"], json!(run));
}

#[tokio::test]
async fn the_log_of_a_run_is_read() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let run = bed.trigger("mail", json!({})).await;
    bed.ended(&run).await;
    let lines = bed.get(&format!("/runs/{run}/logs")).await.ok();
    assert_eq!(lines.get("next"), None, "a run that has ended has its whole log");
    assert_eq!((&lines["items"][0]["text"], &lines["items"][0]["attempt"]), (&json!("hello"), &json!(1)));
}

/// A name that is spelled wrong does not look like a job that has no runs.
#[tokio::test]
async fn a_filter_that_names_no_job_is_refused() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    for list in ["/runs", "/dead-letters"] {
        assert_eq!(bed.get(&format!("{list}?job=mial")).await.problem(), (404, "not_found".to_owned()));
        assert_eq!(bed.get(&format!("{list}?job=mail")).await.ok()["items"], json!([]));
    }
    for act in ["/bulk/cancel", "/bulk/redrive", "/bulk/discard"] {
        let of = |job: &str| json!({ "filter": { "job": job }, "dry_run": true });
        assert_eq!(bed.post(act, of("mial")).await.problem(), (404, "not_found".to_owned()));
        assert_eq!(bed.post(act, of("mail")).await.ok()["matched"], 0);
    }
}

#[tokio::test]
async fn a_cancel_is_answered_with_what_is_stored() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let run = bed.trigger("mail", json!({ "run_at": "2100-01-01T00:00:00Z" })).await;
    let why = bed.get(&format!("/runs/{run}/why")).await.ok();
    assert_eq!(
        (&why["reasons"][0]["code"], &why["reasons"][0]["data"]["at"]),
        (&json!("not_yet"), &json!("2100-01-01T00:00:00Z"))
    );
    let answer = bed.post(&format!("/runs/{run}/cancel"), json!({ "reason": "not needed" })).await.ok();
    assert_eq!(answer, json!({ "id": run, "answer": "cancelled" }));
    assert_eq!(bed.get(&format!("/runs/{run}")).await.ok()["status"], "cancelled");
    let again = bed.post(&format!("/runs/{run}/cancel"), json!({})).await;
    assert_eq!(again.problem(), (409, "run_ended".to_owned()));
    let bad = bed.post(&format!("/runs/{run}/cancel"), json!({ "grace": "soon" })).await;
    assert_eq!((bad.problem().0, bad.paths()), (422, vec!["grace".to_owned()]));
}

/// What nobody can execute must not wait in silence.
#[tokio::test]
async fn a_run_that_waits_says_why() {
    let bed = Bed::new().await;
    bed.job("train", "somewhere-else").await;
    let run = bed.trigger("train", json!({})).await;
    let why = bed.get(&format!("/runs/{run}/why")).await.ok();
    assert_eq!(
        (&why["reasons"][0]["code"], &why["reasons"][0]["data"]["handler"]),
        (&json!("no_worker"), &json!("somewhere-else"))
    );
    bed.post("/queues/default/pause", json!({ "note": "month end" })).await.ok();
    let why = bed.get(&format!("/runs/{run}/why")).await.ok();
    assert_eq!(why["answer"], "its queue is paused by anonymous: month end");
    let queues = bed.get("/queues").await.ok();
    assert_eq!(queues["items"][0]["pause"]["note"], "month end");
    bed.post("/queues/default/resume", json!({})).await.ok();
    let why = bed.get(&format!("/runs/{run}/why")).await.ok();
    assert_eq!(why["reasons"][0]["code"], "no_worker");
}

#[tokio::test]
async fn a_run_without_a_slot_says_so_and_a_full_key_refuses() {
    let bed = Bed::new().await;
    let mut document = job("train", "somewhere-else");
    document["concurrency"] = json!({ "limit": 1, "max_queued": 1 });
    bed.put("/jobs/train", document).await.ok();
    bed.trigger("train", json!({})).await;
    let waits = bed.trigger("train", json!({})).await;
    let why = bed.get(&format!("/runs/{waits}/why")).await.ok();
    assert_eq!((&why["reasons"][0]["code"], &why["reasons"][0]["data"]["limit"]), (&json!("slot"), &json!(1)));
    assert_eq!(bed.post("/jobs/train/trigger", json!({})).await.problem(), (409, "full".to_owned()));
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Answers each request in turn with one of these statuses, and tells its head.
async fn target(statuses: &'static [&'static str]) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        for status in statuses {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            sender.send(String::from_utf8(head).unwrap()).unwrap();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, requests)
}

fn traced(head: &str) -> Option<&str> {
    head.lines().find_map(|line| line.strip_prefix("traceparent: "))
}

/// Whoever follows a request through their systems finds what it caused here, and each
/// attempt by itself.
#[tokio::test]
async fn a_trace_goes_on_to_the_target_of_every_attempt() {
    let egress = Egress { reach: Reach::Public, allow: vec!["127.0.0.0/8".parse().unwrap()] };
    let http = HttpExecutor::new(HttpOptions { egress, ..HttpOptions::default() });
    let store = std::sync::Arc::new(rota_store::sqlite::SqliteStore::memory().unwrap());
    let bed = Bed::of(rota_engine::Engine::builder(store).executor(std::sync::Arc::new(http))).await;
    let (url, mut requests) = target(&["503 Down", "200 OK", "200 OK", "200 OK"]).await;
    let job = json!({ "name": "call", "retry": { "max_attempts": 2, "initial": "10ms", "jitter": 0 },
        "steps": [{ "id": "s", "http": { "url": url } }] });
    bed.put("/jobs/call", job).await.ok();
    let made = bed.send_json(Method::POST, "/jobs/call/trigger", &json!({}), &[("traceparent", CALLER)]).await.ok();
    let run = bed.ended(made["id"].as_str().unwrap()).await;
    assert_eq!((&run["status"], &run["trigger"]["traceparent"]), (&json!("succeeded"), &json!(CALLER)));
    let began = |field: &str| run[field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(began("first_started_at") < began("started_at"), "it has taken two attempts: {run}");
    let heads = [requests.recv().await.unwrap(), requests.recv().await.unwrap()];
    let [first, second] = heads.each_ref().map(|head| traced(head).expect("a traceparent is sent"));
    for sent in [first, second] {
        assert!(sent.starts_with(&format!("00-{TRACE}-")) && sent.ends_with("-01"), "{sent}");
    }
    assert!(first != second && first != CALLER, "each attempt is a span of its own: {first} {second}");

    let line = json!({ "job": "call", "traceparent": CALLER }).to_string();
    let lines = [("content-type", "application/x-ndjson")];
    let made = bed.send(Method::POST, "/bulk/runs", &lines, line).await.lines().remove(0);
    bed.ended(made["id"].as_str().unwrap()).await;
    let head = requests.recv().await.unwrap();
    assert!(traced(&head).unwrap().contains(TRACE), "{head}");

    let upper = CALLER.to_uppercase();
    let made = bed.send_json(Method::POST, "/jobs/call/trigger", &json!({}), &[("traceparent", &upper)]).await.ok();
    let run = bed.ended(made["id"].as_str().unwrap()).await;
    assert_eq!(run["trigger"]["traceparent"], Value::Null, "one that is not valid is ignored");
    assert_eq!(traced(&requests.recv().await.unwrap()), None);
}

/// A remote worker hands the trace on just as well.
#[tokio::test]
async fn a_remote_worker_is_given_the_trace_of_its_attempt() {
    let bed = Bed::new().await;
    bed.job("far", "far").await;
    let made = bed.send_json(Method::POST, "/jobs/far/trigger", &json!({}), &[("traceparent", CALLER)]).await.ok();
    let worker = json!({ "id": uuid::Uuid::from_u128(7), "name": "w", "handlers": ["far"], "slots": 1 });
    let answer = bed.post("/workers/sync", json!({ "worker": worker, "free": 1, "wait_ms": 20_000 })).await.ok();
    let attempt = &answer["attempts"][0];
    assert_eq!(attempt["run"], made["id"]);
    let given = attempt["traceparent"].as_str().unwrap();
    assert!(given.starts_with(&format!("00-{TRACE}-")) && given != CALLER, "{given}");
}

/// Whoever looks at a job by its name wants the run that was just created, however many others
/// wait, and however long others took to end.
#[tokio::test]
async fn the_newest_run_of_a_job_is_the_one_that_was_created_last() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let newest = async || bed.get("/jobs/mail/runs/newest").await;
    assert_eq!(newest().await.problem(), (404, "not_found".to_owned()));
    assert_eq!(bed.get("/jobs/nobody/runs/newest").await.problem(), (404, "not_found".to_owned()));
    let first = bed.trigger("mail", json!({})).await;
    bed.ended(&first).await;
    let found = newest().await.ok();
    assert_eq!((&found["id"], &found["status"]), (&json!(first), &json!("succeeded")), "{found}");
    let line = json!({ "job": "mail", "run_at": "2100-01-01T00:00:00Z" }).to_string() + "\n";
    let lines = [("content-type", "application/x-ndjson")];
    let made = bed.send(axum::http::Method::POST, "/bulk/runs", &lines, line.repeat(450)).await.lines();
    assert_eq!(made.len(), 450);
    let waiting = newest().await.ok()["id"].clone();
    assert!(made.iter().any(|line| line["id"] == waiting), "one of those that wait: {waiting}");
    let last = bed.trigger("mail", json!({})).await;
    bed.ended(&last).await;
    assert_eq!(newest().await.ok()["id"], json!(last));
    // One that was created before it ends later.
    bed.post(&format!("/runs/{}/cancel", waiting.as_str().unwrap()), json!({})).await.ok();
    assert_eq!(newest().await.ok()["id"], json!(last));
    // It is of this job alone.
    bed.job("other", "hello").await;
    let other = bed.trigger("other", json!({})).await;
    bed.ended(&other).await;
    assert_eq!(newest().await.ok()["id"], json!(last));
}
