//! Nonsense: every route, given what it cannot use, answers 4xx with a problem
//! document, and never 5xx.

use axum::{body::Body, http::Method};
use serde_json::{Value, json};

use crate::bed::Bed;

/// Every route of the description, with its methods. A feed never ends, and has
/// its own test.
pub async fn routes(bed: &Bed) -> Vec<(Method, String)> {
    let description = bed.get("/openapi.json").await.ok();
    let paths = description["paths"].as_object().unwrap().clone();
    let methods = paths.into_iter().flat_map(|(path, methods)| {
        let methods: Vec<String> = methods.as_object().unwrap().keys().cloned().collect();
        methods.into_iter().map(move |method| (method.to_uppercase().parse().unwrap(), path.clone()))
    });
    methods.map(|(method, path): (Method, String)| (method, path.replace("/api/v1", ""))).collect()
}

pub fn filled(path: &str, value: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { value } else { part });
    parts.collect::<Vec<_>>().join("/")
}

fn is_refusal(answer: &crate::bed::Answer, what: &str) {
    assert!(answer.status.as_u16() < 500, "{what}: {} {}", answer.status, answer.text);
    if answer.status.is_client_error() {
        answer.problem();
    }
}

#[tokio::test]
async fn no_path_brings_a_route_down() {
    let bed = Bed::new().await;
    for (method, path) in routes(&bed).await.into_iter().filter(|(_, path)| path != "/events") {
        for value in ["0", "-1", "99999999999999999999", "%00", "%FF", "..", "a%2Fb", "'%20OR%201=1--", "%F0%9F%A6%80"]
        {
            let path = filled(&path, value);
            let answer = bed.send(method.clone(), &path, &[], Body::empty()).await;
            is_refusal(&answer, &format!("{method} {path}"));
        }
    }
}

#[tokio::test]
async fn no_query_brings_a_route_down() {
    let bed = Bed::new().await;
    let long = format!("prefix={}", "a".repeat(9_000));
    let queries = [
        "limit=0",
        "limit=-1",
        "limit=1e9",
        "limit=999999999999999999999",
        "after=AAAA",
        "after=",
        "nonsense=1",
        "status=nonsense",
        "status=queued&status=dead",
        "label=x",
        "label=%3Dx",
        "from=yesterday",
        "from=-999999-01-01",
        "tag=%00",
        "prefix=%25%27%3B--",
        "job=%00",
        "job=0",
        "schedule=x",
        "n=0",
        "n=99999999",
        "attempt=99999999",
        &long,
    ];
    for (method, path) in
        routes(&bed).await.into_iter().filter(|(method, path)| *method == Method::GET && path != "/events")
    {
        for query in queries {
            let path = format!("{}?{query}", filled(&path, "1"));
            let answer = bed.send(method.clone(), &path, &[], Body::empty()).await;
            is_refusal(&answer, &path);
            assert!(query != "nonsense=1" || answer.status.is_client_error(), "{path} ignores what it does not know");
        }
    }
}

#[tokio::test]
async fn no_body_brings_a_route_down() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let bodies: [&[u8]; 14] = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"1e400",
        b"{\"name\":\"\\u0000\"}",
        b"{\"name\":\"\\ud800\"}",
        b"\xff\xfe",
        b"\"text\"",
        b"{\"payload\":1e400}",
        b"{\"labels\":{\"a\":1}}",
        b"{\"filter\":{\"status\":[\"x\"]}}",
        b"{\"labels\":{\"\\u0000\":\"\"}}",
        deep.as_bytes(),
    ];
    for (method, path) in routes(&bed).await.into_iter().filter(|(method, _)| *method != Method::GET) {
        for body in bodies {
            for kind in ["application/json", "application/yaml", "application/x-ndjson", "text/plain"] {
                let path = filled(&path, "mail");
                let headers = [("content-type", kind), ("content-length", &body.len().to_string())];
                let answer = bed.send(method.clone(), &path, &headers, body.to_vec()).await;
                let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
                is_refusal(&answer, &format!("{method} {path} {kind} {shown}"));
            }
        }
    }
}

/// An answer that the description does not have cannot be relied on.
#[tokio::test]
async fn every_operation_is_described_with_its_refusals() {
    let bed = Bed::new().await;
    let description = bed.get("/openapi.json").await.ok();
    assert!(description["openapi"].as_str().unwrap().starts_with("3.1"), "{}", description["openapi"]);
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let refusal = &operation["responses"]["default"]["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(refusal, "#/components/schemas/Problem", "{method} {path}");
            assert!(operation["summary"].is_string() && operation["tags"][0].is_string(), "{method} {path}");
            assert_ne!(operation["operationId"], Value::Null, "{method} {path}");
        }
    }
}

/// Serde reads a struct from its values in order too: a filter that is a list
/// would be an empty filter, and cancel everything.
#[tokio::test]
async fn a_list_is_no_filter() {
    let bed = Bed::new().await;
    for route in ["cancel", "redrive", "pause", "resume"] {
        for body in ["{\"filter\":[]}", "{\"filter\":[null,null]}", "[{}]", "{}"] {
            let headers = [("content-type", "application/json")];
            let answer = bed.send(Method::POST, &format!("/bulk/{route}"), &headers, body).await;
            assert_eq!(answer.problem().0, 422, "{route} {body}: {}", answer.text);
        }
    }
    let lines = [("content-type", "application/x-ndjson")];
    let answers = bed.send(Method::POST, "/bulk/runs", &lines, "[\"mail\"]\n").await.lines();
    assert_eq!(answers[0]["error"]["code"], "bad_document");
}

/// Second 60 was read as second 59, and a schedule ran at another time than was
/// written.
#[tokio::test]
async fn a_leap_second_is_refused_wherever_a_time_is_given() {
    let bed = Bed::new().await;
    let leap = "2026-12-31T23:59:60Z";
    let until = json!({ "until": leap });
    let bodies = [
        ("/jobs", json!({ "name": "a", "schedules": [{ "at": leap }], "steps": [{ "id": "a", "handler": "h" }] })),
        ("/check", json!({ "name": "a", "schedules": [{ "at": leap }], "steps": [{ "id": "a", "handler": "h" }] })),
        ("/preview", json!({ "at": leap })),
        ("/jobs/demo/trigger", json!({ "run_at": leap })),
        ("/jobs/demo/pause", until.clone()),
        ("/queues/default/pause", until),
        ("/schedules/1/backfill", json!({ "from": leap, "to": "2027-01-02T00:00:00Z" })),
        ("/schedules/1/backfill", json!({ "from": "2026-01-01T00:00:00Z", "to": leap })),
        ("/bulk/pause", json!({ "filter": {}, "until": leap })),
        ("/bulk/cancel", json!({ "filter": { "from": leap } })),
        ("/bulk/redrive", json!({ "filter": { "to": leap } })),
        ("/tokens", json!({ "name": "a", "expires_at": leap })),
    ];
    for (path, body) in bodies {
        let answer = bed.post(path, body).await;
        assert!(answer.text.contains("a leap second is not supported"), "{path}: {} {}", answer.status, answer.text);
        assert!(answer.status.is_client_error(), "{path}: {}", answer.status);
    }
    for query in ["/runs?from=", "/runs?to=", "/dead-letters?from=", "/audit?to=", "/jobs/demo/stats?from="] {
        let answer = bed.get(&format!("{query}{leap}")).await;
        assert!(answer.text.contains("a leap second is not supported"), "{query}: {} {}", answer.status, answer.text);
    }
}
