//! Many at once.

use axum::{body::Body, http::Method};
use serde_json::{Value, json};

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
    assert_eq!(counted, json!({ "matched": 2_497, "done": 0, "more": false, "dry_run": true }));
    assert_eq!(bed.post("/bulk/cancel", cancel(false)).await.ok()["done"], 2_497);
    assert_eq!(bed.post("/bulk/cancel", cancel(true)).await.ok()["matched"], 0);
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

#[tokio::test]
async fn dead_letters_are_redriven_by_filter() {
    let bed = Bed::new().await;
    let mut document = job("mail", "fail");
    document["retry"] = json!({ "max_attempts": 1 });
    bed.put("/jobs/mail", document).await.ok();
    let run = bed.trigger("mail", json!({})).await;
    bed.ended(&run).await;
    let dry = json!({ "filter": { "status": ["failed"] }, "dry_run": true });
    let counted = bed.post("/bulk/redrive", dry).await.ok();
    assert_eq!(counted, json!({ "matched": 1, "done": 0, "more": false, "dry_run": true }));
    assert_eq!(bed.get("/runs").await.ok()["items"].as_array().unwrap().len(), 1, "nothing was made");
    assert_eq!(bed.post("/bulk/redrive", json!({ "filter": { "status": ["failed"] } })).await.ok()["done"], 1);
    let twice = bed.post("/bulk/redrive", json!({ "filter": { "status": ["failed"] } })).await.ok();
    assert_eq!(twice["done"], twice["matched"].as_u64().unwrap() - 1, "the first one was made again already: {twice}");
    assert_eq!(bed.post("/bulk/redrive", json!({ "filter": {} })).await.ok()["matched"], 0, "none is dead");
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
    assert_eq!(redrive(true, false).await["matched"], 1);
    assert_eq!(redrive(false, false).await["done"], 1);
    assert_eq!(redrive(true, false).await, json!({ "matched": 0, "done": 0, "more": false, "dry_run": true }));
    assert_eq!(redrive(true, true).await["matched"], 1, "unless it is to be made once more");
    assert_eq!(redrive(false, true).await["done"], 1);
}

#[tokio::test]
async fn a_stream_must_say_what_it_is() {
    let bed = Bed::new().await;
    let answer = bed.send(Method::POST, "/bulk/runs", &[("content-type", "text/csv")], "a,b").await;
    assert_eq!(answer.problem(), (415, "unsupported_media_type".to_owned()));
    let huge = "x".repeat(2 << 20);
    let answers = bed.send(Method::POST, "/bulk/runs", &LINES, huge).await.lines();
    assert_eq!((answers.len(), &answers[0]["error"]["code"]), (1, &json!("too_large")));
}
