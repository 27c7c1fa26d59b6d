//! Whatever callers send is answered or refused with a problem document, and never with 500.
//!
//! Bodies, lines, cursors and queries of the corpus are changed as in the fuzzing of the core
//! (`rota-core/tests/fuzz`): most of what comes of it is nearly right. `ROTA_LONG=1` tries a
//! hundred times as many. What once broke something is added to its corpus.

#[path = "../../../rota-core/tests/fuzz/changed.rs"]
mod changed;

use axum::{body::Body, http::Method};
use proptest::{prelude::*, test_runner::TestRunner};
use rota_api::problem::Code;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use self::changed::{changed, config};
use crate::{
    bed::{Answer, Bed},
    nonsense::{filled, routes},
};

/// What JSON and the bodies of requests are made of.
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "null",
    "true",
    "-1",
    "1e400",
    "99999999999999999999",
    "\\u0000",
    "\\ud800",
    "\"run\":",
    "\"payload\":",
    "\"labels\":{}",
    "2100-01-01T00:00:00Z",
    "\u{0}",
    "\u{feff}",
    "\n",
];

fn lines(text: &'static str) -> Vec<&'static str> {
    text.lines().collect()
}

/// Tries changed texts on an API, and answers it when all were answered as they should be.
fn on_bed<S: Strategy>(cases: u32, texts: S, bed: Bed, runtime: &Runtime, each: &impl AsyncFn(&Bed, S::Value)) -> Bed {
    let tried = TestRunner::new(config(cases)).run(&texts, |text| {
        runtime.block_on(each(&bed, text));
        Ok(())
    });
    tried.unwrap();
    bed
}

fn is_answered(answer: &Answer, what: &str) {
    assert_ne!(answer.status.as_u16(), 500, "{what}: {}", answer.text);
    if answer.status.is_client_error() || answer.status.is_server_error() {
        let (_, code) = answer.problem();
        assert!(Code::ALL.iter().any(|known| known.as_str() == code), "{what}: {code} is not in the catalogue");
    }
}

async fn post(bed: &Bed, path: &str, kind: &str, body: String) -> Answer {
    let length = body.len().to_string();
    bed.send(Method::POST, path, &[("content-type", kind), ("content-length", &length)], body).await
}

/// A worker of one tenant reports on runs of another.
#[test]
fn exchanges_of_workers_are_answered_or_refused_and_touch_no_other_tenant() {
    let runtime = Runtime::new().unwrap();
    let (bed, run, before) = runtime.block_on(async {
        let bed = Bed::new().await;
        bed.put("/tenants/other", json!({ "tier": "unlimited" })).await.ok();
        let other = [("x-tenant-id", "other")];
        let job = json!({ "name": "far", "steps": [{ "id": "s", "handler": { "name": "far" } }] });
        bed.send_json(Method::PUT, "/jobs/far", &job, &other).await.ok();
        let made = bed.send_json(Method::POST, "/jobs/far/trigger", &json!({}), &other).await.ok();
        let worker = json!({ "id": uuid::Uuid::now_v7(), "name": "w", "slots": 1, "handlers": ["far"] });
        let exchange = json!({ "worker": worker, "free": 1, "wait_ms": 20_000 });
        let given = bed.send_json(Method::POST, "/workers/sync", &exchange, &other).await.ok();
        assert_eq!(given["attempts"][0]["run"], made["id"], "{given}");
        let run = made["id"].as_str().unwrap().to_owned();
        let before = of_other(&bed, &run).await;
        (bed, run, before)
    });
    let texts = changed(lines(include_str!("corpus/exchanges.txt")), WORDS);
    let bed = on_bed(300, texts, bed, &runtime, &async |bed, text| {
        let answer = post(bed, "/workers/sync", "application/json", text.replace("RUN", &run)).await;
        is_answered(&answer, &text);
        assert!(!answer.status.is_server_error(), "{text}: {}", answer.text);
    });
    assert_eq!(runtime.block_on(of_other(&bed, &run)), before);
}

/// What a report could change of a run.
async fn of_other(bed: &Bed, run: &str) -> [Value; 5] {
    let path = format!("/runs/{run}");
    let run = bed.send(Method::GET, &path, &[("x-tenant-id", "other")], Body::empty()).await.ok();
    ["status", "fence", "progress", "output", "attempts_used"].map(|field| run[field].clone())
}

#[test]
fn each_line_of_a_stream_has_its_own_answer() {
    let runtime = Runtime::new().unwrap();
    let bed = runtime.block_on(async {
        let bed = Bed::new().await;
        bed.job("mail", "hello").await;
        bed
    });
    let texts = prop::collection::vec(changed(lines(include_str!("corpus/lines.txt")), WORDS), 1..20);
    on_bed(100, texts, bed, &runtime, &async |bed, texts| {
        let body = texts.join("\n");
        let answer = post(bed, "/bulk/runs", "application/x-ndjson", body.clone()).await;
        assert!(answer.status.is_success(), "{body}: {}", answer.text);
        let answers = answer.lines();
        let told: Vec<u64> = answers.iter().map(|answer| answer["line"].as_u64().unwrap()).collect();
        let sent = body.split('\n').zip(1..).filter(|(line, _)| !line.as_bytes().trim_ascii().is_empty());
        assert_eq!(told, sent.map(|(_, number)| number).collect::<Vec<u64>>(), "{body}");
        for answer in answers {
            assert_ne!(answer.get("id").is_some(), answer.get("error").is_some(), "{body}: {answer}");
        }
    });
}

#[test]
fn cursors_lead_to_a_page_or_are_refused() {
    let runtime = Runtime::new().unwrap();
    let (bed, cursors) = runtime.block_on(async {
        let bed = Bed::new().await;
        bed.job("mail", "hello").await;
        bed.job("post", "hello").await;
        for _ in 0..3 {
            bed.trigger("mail", json!({ "run_at": "2100-01-01T00:00:00Z" })).await;
        }
        let mut cursors = vec!["AAAA", "", "eyJhIjoxfQ"];
        for list in ["/runs?limit=1", "/jobs?limit=1"] {
            let next = bed.get(list).await.ok()["next"].as_str().unwrap().to_owned();
            cursors.push(Box::leak(next.into_boxed_str()));
        }
        (bed, cursors)
    });
    let texts = changed(cursors, &["A", "=", "-", "_", "+", "/", "%", "\u{0}"]);
    on_bed(500, texts, bed, &runtime, &async |bed, text| {
        let encoded = text.bytes().fold(String::new(), |all, byte| all + &format!("%{byte:02X}"));
        for list in ["/runs", "/jobs"] {
            let answer = bed.get(&format!("{list}?limit=1&after={encoded}")).await;
            if answer.status.is_success() {
                assert!(answer.json()["items"].is_array(), "{text}");
            } else {
                assert_eq!(answer.status.as_u16(), 400, "{text}: {}", answer.text);
                is_answered(&answer, &text);
            }
        }
    });
}

/// Every route of the description, asked with bodies and queries that are nearly right.
#[test]
fn every_refusal_is_a_problem_of_the_catalogue() {
    let runtime = Runtime::new().unwrap();
    let (bed, routes) = runtime.block_on(async {
        let bed = Bed::new().await;
        bed.job("mail", "hello").await;
        let mut routes = routes(&bed).await;
        // A feed has no end, and a worker may ask to wait.
        routes.retain(|(_, path)| !["/events", "/workers/sync"].contains(&path.as_str()));
        (bed, routes)
    });
    let bodies = changed(lines(include_str!("corpus/bodies.txt")), WORDS);
    let queries =
        changed(lines(include_str!("corpus/queries.txt")), &["&", "=", "%", "%00", "+", "1", "limit=", "after="]);
    let routes = prop::sample::select(routes);
    on_bed(1_000, (routes, bodies, queries), bed, &runtime, &async |bed, ((method, path), body, query)| {
        let query: String = query.chars().filter(|c| c.is_ascii_graphic() && !"\"<>`{}|\\^#".contains(*c)).collect();
        let path = format!("{}?{query}", filled(&path, "mail"));
        let what = format!("{method} {path} {body}");
        let kind = if path.starts_with("/bulk/runs") || path.starts_with("/bulk/jobs") {
            "application/x-ndjson"
        } else {
            "application/json"
        };
        let answer = bed.send(method, &path, &[("content-type", kind)], body).await;
        is_answered(&answer, &what);
    });
}
