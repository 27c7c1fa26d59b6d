//! Limits of what every node holds as a whole, each at its bound, and lists page by page.

use axum::http::Method;
use rota_core::limits::Limits;
use rota_engine::{Engine, Options};
use rota_store::sqlite::SqliteStore;
use serde_json::{Value, json};

use crate::bed::{Answer, Bed};

async fn limited(limits: Limits) -> Bed {
    let builder = Engine::builder(std::sync::Arc::new(SqliteStore::memory().unwrap()));
    Bed::with(builder, Options { sole: true, limits, ..Options::default() }).await
}

fn in_queue(name: &str, queue: &str) -> Value {
    json!({ "name": name, "queue": queue, "steps": [{ "id": "only", "handler": { "name": "hello" } }] })
}

fn refused(answer: &Answer, words: &str) {
    assert_eq!(answer.problem(), (422, "limit_reached".to_owned()));
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains(words), "{detail}");
}

/// Somebody who saves calendars in a loop must not fill the memory of every node; what
/// exists must stay editable.
#[tokio::test]
async fn a_tenant_has_no_more_calendars_than_the_limit() {
    let bed = limited(Limits { calendars: 2, ..Limits::default() }).await;
    let save = async |name: &str, day: &str| {
        bed.put(&format!("/calendars/{name}"), json!({ "name": name, "weekdays": [day] })).await
    };
    save("a", "SUN").await.ok();
    save("b", "SUN").await.ok();
    refused(&save("c", "SUN").await, "at most 2 calendars");
    save("b", "MON").await.ok();
    assert_eq!(bed.get("/calendars").await.ok()["items"].as_array().unwrap().len(), 2);
}

/// Every node reads all tenants again and again.
#[tokio::test]
async fn an_installation_has_no_more_tenants_than_the_limit() {
    let bed = limited(Limits { tenants: 2, ..Limits::default() }).await;
    let save = async |name: &str| bed.put(&format!("/tenants/{name}"), json!({ "tier": "pro" })).await;
    save("second").await.ok();
    refused(&save("third").await, "at most 2 tenants");
    save("second").await.ok();
    assert_eq!(bed.get("/tenants").await.ok()["items"].as_array().unwrap().len(), 2);
}

/// Every node holds all lanes. A job that would need one too many is refused when it is
/// saved, whichever way: once it is saved it can run.
#[tokio::test]
async fn a_job_that_needs_a_lane_too_many_is_not_saved() {
    let bed = limited(Limits { lanes: 2, ..Limits::default() }).await;
    let count = async || bed.engine.store().all_lanes().await.unwrap().len();
    bed.post("/check", in_queue("a", "first")).await.ok();
    assert_eq!(count().await, 0, "a check creates nothing");
    bed.put("/jobs/a", in_queue("a", "first")).await.ok();
    bed.put("/jobs/b", in_queue("b", "second")).await.ok();
    assert_eq!(count().await, 2, "a job's lane is there before its first run");
    refused(&bed.put("/jobs/c", in_queue("c", "third")).await, "at most 2 combinations of queue");
    refused(&bed.post("/check", in_queue("c", "third")).await, "at most 2");
    let lines = format!("{}\n{}\n", in_queue("c", "third"), in_queue("d", "second"));
    let answer = bed.send(Method::POST, "/bulk/jobs", &[("content-type", "application/x-ndjson")], lines).await;
    assert_eq!(answer.lines()[0]["error"]["code"], "limit_reached");
    assert!(answer.lines()[1].get("error").is_none(), "one that is refused takes no other along: {}", answer.text);
    bed.ended(&bed.trigger("d", json!({})).await).await;
    assert_eq!(count().await, 2);
}

/// Documents of one stream are counted together.
#[tokio::test]
async fn lanes_of_one_stream_are_counted_together() {
    let bed = limited(Limits { lanes: 2, ..Limits::default() }).await;
    let lines = ["a", "b", "c"].map(|name| in_queue(name, name).to_string()).join("\n");
    let answer = bed.send(Method::POST, "/bulk/jobs", &[("content-type", "application/x-ndjson")], lines).await;
    let refused: Vec<bool> = answer.lines().iter().map(|line| line.get("error").is_some()).collect();
    assert_eq!(refused, [false, false, true], "{}", answer.text);
}

/// Queues need not exist to be paused, so their names must not be a way to fill memory.
/// One tenant must not use up what all have, and a tenant can always be paused as a whole.
#[tokio::test]
async fn no_more_queues_are_paused_than_the_limit() {
    let bed = limited(Limits { tenant_pauses: 2, ..Limits::default() }).await;
    let pause = async |queue: &str| bed.post(&format!("/queues/{queue}/pause"), json!({})).await;
    pause("a").await.ok();
    pause("b").await.ok();
    refused(&pause("c").await, "a tenant may have at most 2 queues");
    pause("b").await.ok();
    bed.post("/queues/b/resume", json!({})).await.ok();
    refused(&pause("c").await, "resumed within the last year");
    let bed = limited(Limits { pauses: 1, ..Limits::default() }).await;
    bed.post("/queues/a/pause", json!({})).await.ok();
    refused(&bed.post("/queues/b/pause", json!({})).await, "an installation may have at most 1 queues");
}

/// A node keeps the names of every worker: 2,000 that offer what they like took 300 MB.
#[tokio::test]
async fn what_a_worker_offers_is_bounded_in_bytes() {
    let bed = Bed::new().await;
    let sync = async |length: usize| {
        let names: Vec<String> = (0..100).map(|n| format!("{n:0>length$}")).collect();
        let id = "0198c2a0-0000-7000-8000-000000000000";
        let worker = json!({ "id": id, "name": "w", "slots": 1, "handlers": names });
        bed.post("/workers/sync", json!({ "worker": worker, "leaving": true })).await
    };
    sync(163).await.ok();
    let refused = sync(164).await;
    assert_eq!(refused.problem(), (422, "bad_document".to_owned()));
    assert!(refused.text.contains("16384 bytes"), "{}", refused.text);
}

/// A list that is cut off without a word hides what is behind it.
#[tokio::test]
async fn calendars_and_queues_are_listed_page_by_page() {
    let bed = Bed::new().await;
    let names = ["a", "b", "c"];
    for name in names {
        bed.put(&format!("/calendars/{name}"), json!({ "name": name, "weekdays": ["SUN"] })).await.ok();
        bed.put(&format!("/jobs/{name}"), in_queue(name, name)).await.ok();
    }
    for list in ["/calendars", "/queues"] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        for _ in 0..names.len() {
            let page = bed.get(&format!("{list}?limit=1{after}")).await.ok();
            seen.extend(page["items"].as_array().unwrap().iter().map(|item| item["name"].clone()));
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        assert_eq!(seen, names, "{list}");
    }
}
