//! An API on a real store in memory, asked without a socket.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Method, Request, StatusCode, header},
};
use rota_core::{
    ids::TenantId,
    store::{Store, TenantPut, Tier},
};
use rota_engine::{Builder, Engine, Event, Options};
use rota_server::{Hosts, Node, router};
use rota_store::sqlite::SqliteStore;
use serde_json::{Value, json};
use tower::ServiceExt;

pub struct Bed {
    pub engine: Engine,
    pub router: Router,
}

/// An answer as a client sees it.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The code of a problem, with its status.
    pub fn problem(&self) -> (u16, String) {
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/problem+json", "{}", self.text);
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16(), "{problem}");
        let code = problem["code"].as_str().unwrap().to_owned();
        assert_eq!(problem["type"], format!("/docs/problems/{code}"), "{problem}");
        (self.status.as_u16(), code)
    }

    /// The places that a problem names.
    pub fn paths(&self) -> Vec<String> {
        let errors = self.json()["errors"].as_array().cloned().unwrap_or_default();
        errors.iter().map(|error| error["path"].as_str().unwrap().to_owned()).collect()
    }

    pub fn ok(self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }

    pub fn lines(&self) -> Vec<Value> {
        self.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Bed {
    pub async fn new() -> Self {
        let store = SqliteStore::memory().unwrap();
        Self::on(Arc::new(store)).await
    }

    pub async fn on(store: Arc<dyn Store>) -> Self {
        Self::of(Engine::builder(store)).await
    }

    pub async fn of(builder: Builder) -> Self {
        Self::with(builder, Options { sole: true, ..Options::default() }).await
    }

    pub async fn with(builder: Builder, options: Options) -> Self {
        let engine = builder
            .options(options)
            .handler("hello", async |call: rota_engine::executors::Call| {
                call.log("hello");
                Ok(json!({ "said": "hello" }))
            })
            .handler("fail", async |_| Err(rota_engine::executors::HandlerError::never_again("it broke")))
            .handler("wait", async |_| std::future::pending().await)
            .handler("die", async |_| Err(rota_engine::executors::HandlerError::new("it is tried again")))
            .start()
            .await
            .unwrap();
        let tenant = tenant(&engine, "default").await;
        let node = Node::default();
        node.started(engine.clone(), tenant);
        Self { engine, router: router(node, Hosts::default()) }
    }

    pub async fn ask(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = to_bytes(response.into_body(), 64 << 20).await.unwrap();
        Answer { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let mut request = Request::builder().method(method).uri(format!("/api/v1{path}"));
        request = request.header(header::HOST, "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.ask(request.body(body.into()).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Body::empty()).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send_json(Method::POST, path, &body, &[]).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.send_json(Method::PUT, path, &body, &[]).await
    }

    pub async fn send_json(&self, method: Method, path: &str, body: &Value, headers: &[(&str, &str)]) -> Answer {
        let text = body.to_string();
        let length = text.len().to_string();
        let plain = [("content-type", "application/json"), ("content-length", length.as_str())];
        self.send(method, path, &[&plain, headers].concat(), text).await
    }

    /// Gives the tenant quotas of its own, as whoever runs the installation would.
    pub async fn limit(&self, quotas: Value) {
        self.put("/tenants/default", json!({ "tier": "unlimited", "quotas": quotas })).await.ok();
    }

    /// Saves a job that runs a handler.
    pub async fn job(&self, name: &str, handler: &str) -> Value {
        self.put(&format!("/jobs/{name}"), job(name, handler)).await.ok()
    }

    /// Triggers a job and answers the run's id.
    pub async fn trigger(&self, job: &str, body: Value) -> String {
        let made = self.post(&format!("/jobs/{job}/trigger"), body).await.ok();
        made["id"].as_str().unwrap().to_owned()
    }

    /// Returns when the run is shown so.
    pub async fn shown_as(&self, run: &str, status: &str) {
        loop {
            let mut events = self.engine.subscribe();
            if self.get(&format!("/runs/{run}")).await.ok()["status"] == status {
                return;
            }
            drop(events.recv().await);
        }
    }

    /// The run when it has ended.
    pub async fn ended(&self, run: &str) -> Value {
        let mut events = self.engine.subscribe();
        loop {
            let found = self.get(&format!("/runs/{run}")).await.ok();
            if found.get("ended_at").is_some() {
                return found;
            }
            // Every end is told; one that came before the look is seen by it.
            while !matches!(events.recv().await, Ok(Event::RunEnded { .. }) | Err(_)) {}
        }
    }
}

pub fn job(name: &str, handler: &str) -> Value {
    json!({ "name": name, "steps": [{ "id": "only", "handler": { "name": handler } }] })
}

async fn tenant(engine: &Engine, name: &str) -> TenantId {
    let put = TenantPut { name: name.to_owned(), tier: Tier::Unlimited, quotas: None };
    engine.store().put_tenants(&[put], engine.now()).await.unwrap()[0]
}
