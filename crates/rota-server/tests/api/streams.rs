//! Many at once.

use axum::{
    body::Body,
    http::{Method, Request, header},
};
use futures_util::StreamExt;
use rota_core::{
    run::{Status, Verdict},
    store::RunQuery,
};
use rota_engine::Redrive;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::bed::{Bed, job};

const LINES: [(&str, &str); 1] = [("content-type", "application/x-ndjson")];

fn lines(values: &[Value]) -> Body {
    values.iter().flat_map(|value| [value.to_string(), "\n".to_owned()]).collect::<String>().into()
}

/// A refused line takes no other along, and each is answered under its number.
#[tokio::test]
async fn each_line_has_its_own_answer_in_order() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let run_at = "2100-01-01T00:00:00Z";
    let mut asked: Vec<Value> = (0..2_500).map(|n| json!({ "job": "mail", "run_at": run_at, "payload": n })).collect();
    asked[3] = json!({ "job": "nobody" });
    asked[1_700] = json!({ "job": "mail", "priority": 99 });
    asked[2_000] = json!({ "job": "mail", "payloaad": 1 });
    let answers = bed.send(Method::POST, "/bulk/runs", &LINES, lines(&asked)).await.lines();
    assert_eq!(
        answers.iter().map(|answer| answer["line"].as_u64().unwrap()).collect::<Vec<_>>(),
        (1..=2_500).collect::<Vec<_>>()
    );
    let refused: Vec<(u64, &str)> = answers
        .iter()
        .filter_map(|answer| Some((answer["line"].as_u64()?, answer["error"]["code"].as_str()?)))
        .collect();
    assert_eq!(refused, [(4, "not_found"), (1_701, "bad_document"), (2_001, "bad_document")]);
    assert!(answers.iter().all(|answer| answer.get("id").is_some() != answer.get("error").is_some()));
    let cancel = |dry_run: bool| json!({ "filter": { "job": "mail", "status": ["scheduled"] }, "dry_run": dry_run });
    let counted = bed.post("/bulk/cancel", cancel(true)).await.ok();
    assert_eq!(counted, json!({ "matched": 2_497, "done": 2_497, "more": false, "dry_run": true }));
    assert_eq!(bed.post("/bulk/cancel", cancel(false)).await.ok()["done"], 2_497);
    assert_eq!(bed.post("/bulk/cancel", cancel(true)).await.ok()["matched"], 0);
}

/// A thousand lines of a megabyte each must not be in memory together.
#[tokio::test]
async fn a_batch_is_bounded_in_bytes_too() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let line = json!({ "job": "mail", "payload": "x".repeat(200_000) }).to_string() + "\n";
    let request = Request::post("/api/v1/bulk/runs")
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/x-ndjson")
        .body(Body::from(line.repeat(50)))
        .unwrap();
    let response = bed.router.clone().oneshot(request).await.unwrap();
    let mut answers = response.into_body().into_data_stream();
    let mut batches = Vec::new();
    // Each batch is answered at once.
    while let Some(answer) = answers.next().await {
        batches.push(String::from_utf8(answer.unwrap().to_vec()).unwrap().lines().count());
    }
    assert_eq!(batches.iter().sum::<usize>(), 50);
    assert!(batches.iter().all(|lines| lines * line.len() <= 1 << 20), "{batches:?}");
}

/// PostgreSQL keeps no NUL: a line that holds one must not take its whole batch along.
#[tokio::test]
async fn a_nul_spoils_only_its_line() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let text = concat!(
        "{\"job\":\"mail\",\"payload\":1}\n",
        "{\"job\":\"mail\",\"payload\":{\"a\":\"\\u0000\"}}\n",
        "{\"job\":\"mail\",\"labels\":{\"a\\u0000\":\"b\"}}\n",
        // An escaped backslash before it: no NUL at all.
        "{\"job\":\"mail\",\"payload\":\"\\\\u0000\"}\n",
    );
    let answers = bed.send(Method::POST, "/bulk/runs", &LINES, text).await.lines();
    let refused: Vec<bool> = answers.iter().map(|answer| answer.get("error").is_some()).collect();
    assert_eq!(refused, [false, true, true, false], "{answers:?}");
}

#[tokio::test]
async fn only_refusals_are_answered_where_that_is_asked() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let text = "{\"job\":\"mail\"}\n\n  \nnonsense\n{\"job\":\"mail\"}";
    let answers = bed.send(Method::POST, "/bulk/runs?refused_only=true", &LINES, text).await.lines();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!((&answers[0]["line"], &answers[0]["error"]["code"]), (&json!(4), &json!("bad_request")));
    assert_eq!(bed.get("/runs").await.ok()["items"].as_array().unwrap().len(), 2, "the last line needs no end");
}

#[tokio::test]
async fn jobs_are_saved_a_line_each_and_paused_by_filter() {
    let bed = Bed::new().await;
    let mut asked: Vec<Value> = (0..5).map(|n| job(&format!("mail-{n}"), "hello")).collect();
    asked.push(json!({ "name": "bad" }));
    let answers = bed.send(Method::POST, "/bulk/jobs", &LINES, lines(&asked)).await.lines();
    assert_eq!((&answers[4]["name"], &answers[4]["version"]), (&json!("mail-4"), &json!(1)));
    assert_eq!(answers[5]["error"]["code"], "bad_document");
    let filter = json!({ "filter": { "prefix": "mail-" }, "note": "freeze" });
    assert_eq!(
        bed.post("/bulk/pause", filter).await.ok(),
        json!({ "matched": 5, "done": 5, "more": false, "dry_run": false })
    );
    assert_eq!(bed.get("/jobs/mail-3").await.ok()["pause"]["note"], "freeze");
    assert_eq!(bed.post("/bulk/resume", json!({ "filter": { "prefix": "mail-" } })).await.ok()["done"], 5);
}

/// Without a status dead letters are meant, and no other run that has ended.
#[tokio::test]
async fn dead_letters_are_redriven_by_filter() {
    let bed = Bed::new().await;
    for (name, handler) in [("dies", "die"), ("fails", "fail"), ("ends", "hello")] {
        let mut document = job(name, handler);
        document["retry"] = json!({ "max_attempts": 1 });
        bed.put(&format!("/jobs/{name}"), document).await.ok();
        let run = bed.trigger(name, json!({})).await;
        bed.ended(&run).await;
    }
    let redrive = async |body: Value| bed.post("/bulk/redrive", body).await.ok();
    let once = json!({ "matched": 1, "done": 1, "more": false, "dry_run": true });
    assert_eq!(redrive(json!({ "filter": {}, "dry_run": true })).await, once);
    assert_eq!(bed.get("/runs").await.ok()["items"].as_array().unwrap().len(), 3, "nothing was made");
    let before = bed.get("/runs?job=dies").await.ok()["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(redrive(json!({ "filter": {} })).await["done"], 1);
    let again = bed.get("/runs?job=dies").await.ok()["items"][0].clone();
    assert_eq!(again["trigger"]["metadata"], json!({ "from": before }));
    let again = again["id"].as_str().unwrap();
    assert_eq!(bed.ended(again).await["status"], "dead");
    let twice = redrive(json!({ "filter": {} })).await;
    assert_eq!((&twice["matched"], &twice["done"]), (&json!(2), &json!(1)), "the first one was made again already");
    assert_eq!(redrive(json!({ "filter": { "status": ["failed"] } })).await["done"], 1, "where it is asked for");
}

/// Each request began with the newest again: where as many as it touches had been made again
/// before, it never came to the others, and planned them all for nothing.
#[tokio::test]
async fn what_was_made_again_stands_in_no_others_way() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let later = json!({ "job": "mail", "run_at": "2100-01-01T00:00:00Z" });
    bed.send(Method::POST, "/bulk/runs", &LINES, lines(&vec![later; 1_001])).await;
    assert_eq!(bed.post("/bulk/cancel", json!({ "filter": {} })).await.ok()["done"], 1_001);
    let query = RunQuery { statuses: vec![Status::Ended(Verdict::Cancelled)], ..RunQuery::default() };
    let how = Redrive::default();
    let redrive = async || {
        let done = bed.engine.redrive_all(query.clone(), &how, 1_000).await.unwrap();
        (done.made, done.more)
    };
    assert_eq!(redrive().await, (1_000, true));
    assert_eq!(redrive().await, (1, false));
    assert_eq!(redrive().await, (0, false));
}

/// Whoever asks first is told what the act then does, with those that it leaves as they
/// are; and asking has changed nothing.
#[tokio::test]
async fn a_dry_run_by_filter_answers_as_the_act_does() {
    let bed = Bed::new().await;
    let both = async |path: &str, mut body: Value| {
        body["dry_run"] = json!(true);
        let mut would = bed.post(path, body.clone()).await.ok();
        assert_eq!(bed.post(path, body.clone()).await.ok(), would, "{path}: the first one changed something");
        body["dry_run"] = json!(false);
        let done = bed.post(path, body).await.ok();
        would["dry_run"] = json!(false);
        assert_eq!(would, done, "{path}");
        (done["matched"].as_u64().unwrap(), done["done"].as_u64().unwrap())
    };
    let mut stubborn = job("mail", "wait");
    stubborn["steps"][0]["cancelable"] = json!(false);
    bed.put("/jobs/mail", stubborn).await.ok();
    let asked = bed.trigger("mail", json!({})).await;
    bed.shown_as(&asked, "running").await;
    bed.post(&format!("/runs/{asked}/cancel"), json!({})).await.ok();
    let running = bed.trigger("mail", json!({})).await;
    bed.shown_as(&running, "running").await;
    for _ in 0..3 {
        bed.trigger("mail", json!({ "run_at": "2100-01-01T00:00:00Z" })).await;
    }
    assert_eq!(both("/bulk/cancel", json!({ "filter": { "status": ["queued"] } })).await, (0, 0), "none waits");
    assert_eq!(both("/bulk/cancel", json!({ "filter": { "status": ["scheduled"] } })).await, (3, 3));
    assert_eq!(both("/bulk/cancel", json!({ "filter": {} })).await, (2, 1), "one had been asked");
    assert_eq!(both("/bulk/cancel", json!({ "filter": {} })).await, (2, 0));
    for name in ["mail-1", "mail-2"] {
        bed.job(name, "hello").await;
    }
    bed.post("/jobs/mail-1/pause", json!({})).await;
    assert_eq!(both("/bulk/resume", json!({ "filter": { "prefix": "mail-" } })).await, (2, 1), "one is not paused");
    assert_eq!(both("/bulk/pause", json!({ "filter": { "prefix": "mail-" } })).await, (2, 2));
    assert!(bed.get("/jobs/mail-2").await.ok()["pause"].is_object());
    let mut deadly = job("deadly", "die");
    deadly["retry"] = json!({ "max_attempts": 1 });
    bed.put("/jobs/deadly", deadly).await.ok();
    for _ in 0..3 {
        let run = bed.trigger("deadly", json!({})).await;
        assert_eq!(bed.ended(&run).await["status"], "dead");
    }
    let letters = bed.get("/dead-letters").await.ok();
    let first = letters["items"][0]["id"].as_str().unwrap();
    bed.post(&format!("/dead-letters/{first}/discard"), json!({})).await;
    bed.job("deadly", "hello").await;
    let latest = json!({ "filter": { "job": "deadly" }, "latest": true });
    assert_eq!(both("/bulk/redrive", latest.clone()).await, (2, 2), "what was discarded stays so");
    assert_eq!(both("/bulk/redrive", latest).await, (2, 0));
    assert_eq!(both("/bulk/discard", json!({ "filter": {} })).await, (0, 0), "somebody dealt with each");
}

/// Whoever is told that 300 wait to be redriven, and redrives none, looks for a fault.
#[tokio::test]
async fn a_dry_run_of_a_redrive_counts_only_what_would_be_made() {
    let bed = Bed::new().await;
    let mut document = job("mail", "fail");
    document["retry"] = json!({ "max_attempts": 1 });
    bed.put("/jobs/mail", document).await.ok();
    let run = bed.trigger("mail", json!({})).await;
    bed.ended(&run).await;
    bed.job("mail", "hello").await;
    let redrive = async |dry_run: bool, again: bool| {
        let request = json!({ "filter": { "status": ["failed"] }, "latest": true, "again": again, "dry_run": dry_run });
        bed.post("/bulk/redrive", request).await.ok()
    };
    assert_eq!(redrive(true, false).await["done"], 1);
    assert_eq!(redrive(false, false).await["done"], 1);
    assert_eq!(redrive(true, false).await, json!({ "matched": 1, "done": 0, "more": false, "dry_run": true }));
    assert_eq!(redrive(true, true).await["done"], 1, "unless it is to be made once more");
    assert_eq!(redrive(false, true).await["done"], 1);
}

#[tokio::test]
async fn a_stream_must_say_what_it_is() {
    let bed = Bed::new().await;
    let answer = bed.send(Method::POST, "/bulk/runs", &[("content-type", "text/csv")], "a,b").await;
    assert_eq!(answer.problem(), (415, "unsupported_media_type".to_owned()));
    let answer = bed.send(Method::POST, "/bulk/runs", &[], "{\"job\": \"mail\"}\n").await;
    assert_eq!(answer.problem(), (415, "unsupported_media_type".to_owned()));
    let huge = "x".repeat(2 << 20);
    let answers = bed.send(Method::POST, "/bulk/runs", &LINES, huge).await.lines();
    assert_eq!((answers.len(), &answers[0]["error"]["code"]), (1, &json!("too_large")));
    // A little too long is too long, also where its end is there already.
    for (length, code) in [(1 << 20, "bad_request"), ((1 << 20) + 1, "too_large")] {
        let line = "x".repeat(length) + "\n";
        let answers = bed.send(Method::POST, "/bulk/runs", &LINES, line).await.lines();
        assert_eq!((answers.len(), &answers[0]["error"]["code"]), (1, &json!(code)), "{length}");
    }
}
