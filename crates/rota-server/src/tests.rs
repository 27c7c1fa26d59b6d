//! Routes and refusals, without a socket and before an engine has started.

mod sockets;

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode, header},
};
use tower::ServiceExt;

use super::*;

async fn ask(request: axum::http::request::Builder) -> (StatusCode, String, String) {
    let response = router(Node::default(), Hosts::default()).oneshot(request.body(Body::empty()).unwrap()).await;
    let response = response.unwrap();
    let kind = response.headers().get(header::CONTENT_TYPE).map_or("", |kind| kind.to_str().unwrap()).to_owned();
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, kind, String::from_utf8(body.to_vec()).unwrap())
}

fn get_of(path: &str) -> axum::http::request::Builder {
    Request::get(path).header(header::HOST, "localhost:7070")
}

#[tokio::test]
async fn a_node_that_starts_lives_and_is_not_ready() {
    assert_eq!(ask(get_of("/healthz")).await.0, StatusCode::OK);
    for path in ["/readyz", "/metrics"] {
        let (status, kind, body) = ask(get_of(path)).await;
        assert_eq!((status, kind.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "application/problem+json"), "{path}");
        assert!(body.contains("the node is starting"), "{body}");
    }
}

#[tokio::test]
async fn what_is_refused_is_refused_with_a_problem_document() {
    let host = |request: axum::http::request::Builder| request.header(header::HOST, "localhost");
    for (request, status, code) in [
        (get_of("/nowhere"), StatusCode::NOT_FOUND, "not_found"),
        (host(Request::post("/healthz")), StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
        (Request::get("/healthz"), StatusCode::MISDIRECTED_REQUEST, "wrong_host"),
        (
            Request::get("/healthz").header(header::HOST, "attacker.example"),
            StatusCode::MISDIRECTED_REQUEST,
            "wrong_host",
        ),
        (get_of("http://attacker.example/healthz"), StatusCode::MISDIRECTED_REQUEST, "wrong_host"),
        (get_of("/healthz").header(header::ORIGIN, "https://attacker.example"), StatusCode::FORBIDDEN, "wrong_origin"),
        (get_of("/healthz").header(header::ORIGIN, "http://localhost:3000"), StatusCode::FORBIDDEN, "wrong_origin"),
        (get_of("/healthz").header(header::HOST, "localhost:7070"), StatusCode::BAD_REQUEST, "bad_request"),
        (get_of("/healthz").header(header::HOST, "attacker.example"), StatusCode::BAD_REQUEST, "bad_request"),
        (get_of("/healthz").header(header::CONTENT_LENGTH, "99999999"), StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
    ] {
        let (found, kind, body) = ask(request).await;
        assert_eq!((found, kind.as_str()), (status, "application/problem+json"), "{body}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((body["code"].as_str(), body["status"].as_u64()), (Some(code), Some(u64::from(status.as_u16()))));
    }
}

/// What a browser gets here must not be framed by a page, nor executed.
#[tokio::test]
async fn every_answer_says_that_browsers_must_not_use_it_otherwise() {
    for path in [
        "/",
        "/healthz",
        "/readyz",
        "/metrics",
        "/docs/",
        "/docs/problems",
        "/api/v1/openapi.json",
        "/api/v1/schema/job",
        "/api/v1/jobs",
        "/nowhere",
        "http://attacker.example/",
    ] {
        let response = router(Node::default(), Hosts::default()).oneshot(get_of(path).body(Body::empty()).unwrap());
        let headers = response.await.unwrap().headers().clone();
        let text = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        assert_eq!(text("x-content-type-options"), "nosniff", "{path}");
        let policy = text("content-security-policy");
        assert!(policy.contains("frame-ancestors 'none'") && policy.starts_with("default-src '"), "{path}: {policy}");
        assert_eq!(policy.starts_with("default-src 'self'"), path.starts_with("/docs"), "{path}: {policy}");
        assert!(!policy.contains("script-src") && !policy.contains("unsafe-eval"), "{policy}");
    }
}
