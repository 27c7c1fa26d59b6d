//! Who is let in, asked of every route there is.
//!
//! The routes are taken from the API's own description, so that a new one is asked
//! about without a line here. Each test asks a real engine on a real store, without
//! a socket.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, Response, StatusCode, header, request::Builder},
    routing::post,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rota_core::{
    access::{Permissions, Role, SecretDigest},
    ids::{TokenId, UserId, WorkerId},
    store::{AuditQuery, Store, TenantPut, Tier, Token, UserPut, UserWish, WorkerBeat, WorkerInfo},
};
use rota_engine::{Engine, Event, Options, executors::HandlerError};
use rota_store::sqlite::{self, SqliteStore};
use serde_json::{Value, json};
use tower::ServiceExt;

use tokio::sync::Notify;

use super::*;
use crate::{Bounds, Hosts, bounds, router, routes};

/// A node with two tenants, and tokens in one of them.
struct Bed {
    router: Router,
    engine: Engine,
    ours: TenantId,
    theirs: TenantId,
    tokens: BTreeMap<&'static str, String>,
}

/// In memory, and no stage at work but those that a node needs to be one.
async fn bed_with(options: AccessOptions, store: Arc<dyn Store>) -> Bed {
    bounded(options, store, Bounds::default()).await
}

async fn bounded(options: AccessOptions, store: Arc<dyn Store>, bounds: Bounds) -> Bed {
    let engine = Engine::builder(store)
        .options(Options { sole: true, ..Options::default() })
        .handler("h", |_| async { Ok(json!(null)) })
        .handler("bad", |_| async { Err(HandlerError::new("it broke")) })
        .start()
        .await
        .unwrap();
    let put = |name: &str, tier| TenantPut { name: name.into(), tier, quotas: None };
    let puts = [put("default", Tier::Unlimited), put("theirs", Tier::Unlimited), put("small", Tier::Free)];
    let tenants = engine.store().put_tenants(&puts, engine.now()).await.unwrap();
    let node = Node::new(Access::new(options).unwrap(), bounds);
    node.started(engine.clone(), tenants[0]);
    let router = router(node, Hosts::default());
    let mut bed = Bed { router, engine, ours: tenants[0], theirs: tenants[1], tokens: BTreeMap::new() };
    for role in Role::ALL {
        let token = bed.token(role.as_str(), bed.ours, role.permissions(), false).await;
        bed.tokens.insert(role.as_str(), token);
    }
    let nothing = bed.token("nothing", bed.ours, Permissions::default(), false).await;
    let boss = bed.token("boss", bed.ours, Role::Admin.permissions(), true).await;
    let stranger = bed.token("stranger", bed.theirs, Role::Admin.permissions(), false).await;
    let small = bed.token("small", tenants[2], Role::Viewer.permissions(), false).await;
    bed.tokens.extend([("nothing", nothing), ("boss", boss), ("stranger", stranger), ("small", small)]);
    bed
}

async fn bed() -> Bed {
    let options = AccessOptions { login: Login::Required, ..AccessOptions::default() };
    bed_with(options, Arc::new(SqliteStore::memory().unwrap())).await
}

type Answer = (StatusCode, header::HeaderMap, Value);

impl Bed {
    async fn token(&self, name: &str, tenant: TenantId, permissions: Permissions, installation: bool) -> String {
        self.token_until(name, tenant, permissions, installation, None).await
    }

    async fn token_until(
        &self,
        name: &str,
        tenant: TenantId,
        permissions: Permissions,
        installation: bool,
        expires_at: Option<Timestamp>,
    ) -> String {
        let secret = new_secret(SecretKind::Token);
        let token = Token {
            id: TokenId::new(self.engine.node().random.as_ref(), self.engine.now()),
            tenant,
            installation,
            name: name.into(),
            digest: secret.digest(),
            permissions,
            created_at: self.engine.now(),
            created_by: "test".into(),
            expires_at,
            revoked_at: None,
            last_used_at: None,
        };
        self.engine.store().put_tokens(&[token]).await.unwrap();
        secret.expose().to_owned()
    }

    async fn user(&self, name: &str, password: &str, role: Role) {
        let put = UserPut {
            id: UserId::new(self.engine.node().random.as_ref(), self.engine.now()),
            tenant: self.ours,
            name: name.into(),
            role,
            installation: false,
            password: Some(hash_password(password).unwrap()),
            wish: UserWish::New,
        };
        self.engine.store().put_users(&[put], self.engine.now()).await.unwrap();
    }

    async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn ask(&self, request: Builder, body: Option<&Value>) -> Answer {
        let request = request.header(header::HOST, "localhost:7070");
        let request = match body {
            Some(body) => request
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::CONTENT_LENGTH, body.to_string().len())
                .body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        let response = self.send(request.unwrap()).await;
        let (status, headers) = (response.status(), response.headers().clone());
        // A feed has no end to wait for; that it began is the answer.
        if headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream") {
            return (status, headers, Value::Null);
        }
        let bytes = to_bytes(response.into_body(), 1 << 24).await.unwrap();
        (status, headers, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn with(&self, token: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let request = Request::builder().method(method).uri(path);
        self.ask(request.header(header::AUTHORIZATION, format!("Bearer {token}")), body).await
    }

    async fn by(&self, who: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.with(&self.tokens[who].clone(), method, path, body).await
    }

    async fn audit(&self, tenant: TenantId) -> Vec<(String, String, String)> {
        let page = self.engine.store().list_audit(&AuditQuery::of(tenant, 1_000)).await.unwrap();
        page.entries.into_iter().map(|entry| (entry.who, entry.action, entry.object)).collect()
    }

    async fn close(self) {
        self.engine.stop(rota_core::duration::Span::millis(1)).await.unwrap();
    }
}

/// Every operation of the description: method, path with its parameters filled in.
fn operations(fill: impl Fn(&str) -> String) -> Vec<(String, String)> {
    let described = serde_json::to_value(routes::description()).unwrap();
    let mut found = vec![("GET".to_owned(), "/metrics".to_owned())];
    for (path, item) in described["paths"].as_object().unwrap() {
        let filled: Vec<String> = path
            .split('/')
            .map(|part| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                Some(name) => fill(name),
                None => part.to_owned(),
            })
            .collect();
        for method in item.as_object().unwrap().keys() {
            found.push((method.to_uppercase(), filled.join("/")));
        }
    }
    assert!(found.len() > 40, "the description lists the routes: {}", found.len());
    found
}

fn nowhere(parameter: &str) -> String {
    match parameter {
        "run" | "id" => "01990000-0000-7000-8000-000000000000".into(),
        "schedule" => "999999".into(),
        _ => "nothing-of-that-name".into(),
    }
}

/// Logging in is how one becomes known.
const OPEN: [(&str, &str); 1] = [("POST", "/api/v1/session")];
/// To be known is enough.
const KNOWN: [(&str, &str); 2] = [("GET", "/api/v1/whoami"), ("DELETE", "/api/v1/session")];
/// Answers that are looks, although they need a body.
const LOOKS: [(&str, &str); 2] = [("POST", "/api/v1/check"), ("POST", "/api/v1/preview")];

fn is_in(list: &[(&str, &str)], method: &str, path: &str) -> bool {
    list.contains(&(method, path))
}

/// A route that forgets to ask would answer strangers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_asks_who_is_there_and_whether_they_may() {
    let bed = bed().await;
    for (method, path) in operations(nowhere) {
        let what = format!("{method} {path}");
        if is_in(&OPEN, &method, &path) {
            continue;
        }
        let request = || Request::builder().method(method.as_str()).uri(path.as_str());
        let (status, headers, problem) = bed.ask(request(), Some(&json!({}))).await;
        assert_eq!((status, problem["code"].as_str()), (StatusCode::UNAUTHORIZED, Some("unauthenticated")), "{what}");
        assert_eq!(headers[header::WWW_AUTHENTICATE], "Bearer", "{what}");
        for wrong in ["rota_", "Basic YTpi", "a.b.c", new_secret(SecretKind::Token).expose()] {
            let (status, ..) = bed.with(wrong, &method, &path, Some(&json!({}))).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{what} {wrong}");
        }
        let known = is_in(&KNOWN, &method, &path);
        let (status, _, problem) = bed.by("nothing", &method, &path, Some(&json!({}))).await;
        assert_eq!(status == StatusCode::FORBIDDEN, !known, "{what}: {status} {problem}");
        // What is missing is named, and decides for every role.
        let needs = problem["detail"].as_str().unwrap_or_default().strip_prefix("this requires the permission ");
        let needs: Option<Permission> = needs.map(|name| name.parse().unwrap());
        assert_eq!(needs.is_some(), !known, "{what}: {problem}");
        let installation =
            path == "/metrics" || ["/api/v1/tenants", "/api/v1/rows"].iter().any(|start| path.starts_with(start));
        for role in Role::ALL {
            let (status, _, problem) = bed.by(role.as_str(), &method, &path, Some(&json!({}))).await;
            assert_ne!(status, StatusCode::UNAUTHORIZED, "{what} {role}");
            let may = needs.is_none_or(|needs| role.permissions().holds(needs)) && !installation;
            assert_eq!(status == StatusCode::FORBIDDEN, !may, "{what} {role}: {problem}");
        }
        let looks = method == "GET" || known || is_in(&LOOKS, &method, &path);
        if let Some(needs) = needs.filter(|_| !looks) {
            assert!(!Role::Viewer.permissions().holds(needs), "{what} changes something and a viewer may");
        }
        let (status, ..) = bed.by("boss", &method, &path, Some(&json!({}))).await;
        assert!(status != StatusCode::FORBIDDEN && status != StatusCode::UNAUTHORIZED, "{what}: {status}");
    }
    bed.close().await;
}

/// `?dry_run=true` on a request that reads it in the body was ignored, and the act was done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_nobody_reads_is_refused_before_anything_is_done() {
    let bed = bed().await;
    for (method, path) in operations(nowhere) {
        if method == "GET" || is_in(&OPEN, &method, &path) || is_in(&KNOWN, &method, &path) {
            continue;
        }
        let asked = format!("{path}?dry_run=true");
        let (status, _, problem) = bed.by("boss", &method, &asked, Some(&json!({}))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{method} {path}: {problem}");
    }
    let (status, ..) = bed.by("admin", "DELETE", "/api/v1/jobs/none?keep_running=true", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "where a query is read it is");
    bed.close().await;
}

/// Another tenant's objects do not exist, by whatever name they are asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tenants_objects_are_not_found_anywhere() {
    let bed = bed().await;
    let job = json!({ "name": "report", "queue": "ledger", "steps": [{ "id": "s", "handler": { "name": "embargo" } }],
        "schedules": [{ "name": "daily", "cron": "0 0 1 1 *" }] });
    let (status, _, saved) = bed.by("stranger", "POST", "/api/v1/jobs", Some(&job)).await;
    assert_eq!(status, StatusCode::CREATED, "{saved}");
    let (_, _, made) = bed.by("stranger", "POST", "/api/v1/jobs/report/trigger", None).await;
    let (_, _, schedules) = bed.by("stranger", "GET", "/api/v1/schedules", None).await;
    let user = json!({ "name": "zoe", "password": "long enough", "role": "viewer" });
    assert_eq!(bed.by("stranger", "POST", "/api/v1/users", Some(&user)).await.0, StatusCode::CREATED);
    let token = json!({ "name": "ci", "role": "viewer" });
    let (_, _, token) = bed.by("stranger", "POST", "/api/v1/tokens", Some(&token)).await;
    let calendar = json!({ "name": "holidays", "mode": "exclude", "weekdays": ["SUN"] });
    let (status, _, answer) = bed.by("stranger", "PUT", "/api/v1/calendars/holidays", Some(&calendar)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let worker = "01990000-0000-7000-8000-000000000001";
    let beat = WorkerBeat {
        worker: WorkerId(worker.parse().unwrap()),
        tenant: Some(bed.theirs),
        name: "mule".into(),
        info: WorkerInfo::default(),
        until: Span::secs(3_600).after(bed.engine.now()),
        draining: false,
    };
    bed.engine.store().beat_workers(&[beat], bed.engine.now()).await.unwrap();
    let (run, schedule) = (made["id"].as_str().unwrap().to_owned(), schedules["items"][0]["id"].to_string());
    let token_id = token["token"]["id"].as_str().unwrap().to_owned();
    // All of it is there, for those whose it is.
    for path in [
        format!("jobs/{}", saved["id"]),
        format!("runs/{run}"),
        format!("schedules/{schedule}"),
        format!("tokens/{token_id}"),
        "users/zoe".to_owned(),
        "calendars/holidays".to_owned(),
    ] {
        let (status, _, answer) = bed.by("stranger", "GET", &format!("/api/v1/{path}"), None).await;
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
    }
    let (_, _, workers) = bed.by("stranger", "GET", "/api/v1/workers", None).await;
    assert!(workers.to_string().contains("mule"), "{workers}");
    let fill = |parameter: &str| match parameter {
        "job" => saved["id"].to_string(),
        "run" => run.clone(),
        "schedule" => schedule.clone(),
        "id" => token_id.clone(),
        "calendar" => "holidays".into(),
        "name" => "zoe".into(),
        // A queue is a name that each tenant may use; there is nothing to find.
        other => nowhere(other),
    };
    let mut asked = 0;
    let named = operations(str::to_owned);
    for ((method, path), (_, template)) in operations(fill).into_iter().zip(named) {
        let tells = |name: &str| template.split('/').any(|part| part == name);
        let names_theirs = ["job", "run", "schedule", "id", "calendar", "name"].into_iter().any(tells);
        let path = if tells("workers") { path.replace(&token_id, worker) } else { path };
        if !names_theirs || template.starts_with("/api/v1/tenants") || method == "PUT" {
            continue;
        }
        let body = match path.rsplit('/').next() {
            Some("backfill") => json!({ "from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z" }),
            _ => json!({}),
        };
        // An administrator of ours, and one who names the other tenant outright.
        let (status, _, answer) = bed.by("admin", &method, &path, Some(&body)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}: {answer}");
        let request = Request::builder().method(method.as_str()).uri(path.as_str());
        let request = request.header(header::AUTHORIZATION, format!("Bearer {}", bed.tokens["admin"]));
        let (status, ..) = bed.ask(request.header("x-tenant-id", "theirs"), Some(&body)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path} under another tenant's name");
        asked += 1;
    }
    assert!(asked > 15, "{asked}");
    let path = format!("/api/v1/jobs/{}", saved["id"]);
    assert_eq!(bed.by("admin", "PUT", &path, Some(&job)).await.0, StatusCode::NOT_FOUND);
    // Lists hold nothing of theirs, and nothing of theirs was changed.
    for noun in
        ["jobs", "runs", "schedules", "users", "calendars", "audit", "tokens", "workers", "queues", "dead-letters"]
    {
        let (_, _, page) = bed.by("admin", "GET", &format!("/api/v1/{noun}"), None).await;
        let text = page.to_string();
        assert!(
            !["report", "daily", "zoe", "holidays", "stranger", "mule", "ledger", "embargo"]
                .iter()
                .any(|name| text.contains(name)),
            "{text}"
        );
    }
    let (status, _, read) = bed.by("stranger", "GET", "/api/v1/jobs/report", None).await;
    assert_eq!((status, &read["pause"]), (StatusCode::OK, &Value::Null), "{read}");
    assert_eq!(bed.by("stranger", "GET", "/api/v1/users/zoe", None).await.0, StatusCode::OK);
    bed.close().await;
}

/// What a tenant has, each with the tenant's mark in its name; and what identifies it.
struct Marked {
    mark: &'static str,
    ids: BTreeMap<&'static str, String>,
}

impl Marked {
    /// Makes one of each for whoever asks.
    async fn of(bed: &Bed, who: &str, mark: &'static str) -> Self {
        let named = |what: &str| format!("{what}-{mark}");
        let job = json!({
            "name": named("job"), "description": named("description"), "tags": [named("tag")], "queue": named("queue"),
            "concurrency": { "key": named("slot"), "limit": 1 }, "retry": { "max_attempts": 1 },
            "steps": [{ "id": "only", "handler": { "name": "bad", "payload": { "text": named("argument") } } }],
            "schedules": [{ "name": named("schedule"), "cron": "0 0 1 1 *", "calendars": [named("calendar")],
                "labels": { "of": named("label") } }],
        });
        let calendar = json!({ "name": named("calendar"), "mode": "exclude", "weekdays": ["SUN"] });
        let path = format!("/api/v1/calendars/{}", named("calendar"));
        assert_eq!(bed.by(who, "PUT", &path, Some(&calendar)).await.0, StatusCode::OK);
        let made = async |path: &str, body: Value| {
            let (status, _, answer) = bed.by(who, "POST", &format!("/api/v1/{path}"), Some(&body)).await;
            assert!(status.is_success(), "{path}: {answer}");
            answer
        };
        let job = made("jobs", job).await;
        let trigger = json!({ "payload": { "text": named("payload") }, "labels": { "of": named("label") },
            "metadata": { "note": named("metadata") } });
        let run = made(&format!("jobs/{}/trigger", named("job")), trigger).await;
        made("users", json!({ "name": named("user"), "password": "long enough", "role": "viewer" })).await;
        let token = made("tokens", json!({ "name": named("token"), "role": "viewer" })).await;
        made(&format!("queues/{}/pause", named("queue")), json!({ "note": named("note") })).await;
        made(&format!("queues/{}/resume", named("queue")), json!({})).await;
        let worker = uuid::Uuid::from_u128(u128::from(mark.as_bytes()[0])).to_string();
        let hello = json!({ "id": worker, "name": named("worker"), "version": named("version"), "slots": 1,
            "queues": [named("queue")], "traits": [named("trait")], "handlers": [named("handler")] });
        made("workers/sync", json!({ "worker": hello, "free": 0 })).await;
        let (_, _, schedules) = bed.by(who, "GET", "/api/v1/schedules", None).await;
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let ids = BTreeMap::from([
            ("job", text(&job["id"])),
            ("run", text(&run["id"])),
            ("schedule", text(&schedules["items"][0]["id"])),
            ("token", text(&token["token"]["id"])),
            ("worker", worker),
            ("queue", named("queue")),
            ("calendar", named("calendar")),
            ("name", named("user")),
        ]);
        Self { mark, ids }
    }

    fn fill(&self, parameter: &str, path: &str) -> String {
        let what = match parameter {
            "id" if path.contains("/workers/") => "worker",
            "id" => "token",
            other => other,
        };
        self.ids.get(what).cloned().unwrap_or_else(|| nowhere(parameter))
    }

    /// Every operation, about what is this one's.
    fn operations(&self) -> Vec<(String, String)> {
        let fill = |path: &str| {
            let parts = path.split('/').map(|part| {
                let parameter = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
                parameter.map_or_else(|| part.to_owned(), |parameter| self.fill(parameter, path))
            });
            parts.collect::<Vec<_>>().join("/")
        };
        let templates = operations(|parameter| format!("{{{parameter}}}"));
        templates.into_iter().map(|(method, path)| (method, fill(&path))).collect()
    }

    /// Whether an answer tells of what is this one's. A caller's own words in a refusal are
    /// not news to it.
    fn is_told_in(&self, answer: &str, asked: &str) -> bool {
        let random = ["run", "token", "worker"].map(|what| &self.ids[what]);
        let told = |word: &str| answer.replace(asked, "").contains(word);
        told(self.mark) || random.into_iter().any(|id| !asked.contains(id.as_str()) && told(id))
    }
}

/// Whatever is asked, by whatever name, no answer, header, event or refusal tells one tenant
/// of what another has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_tells_of_what_another_tenant_has() {
    let bed = bed().await;
    let feed = Request::get("/api/v1/events").header(header::HOST, "localhost:7070");
    let feed = feed.header(header::AUTHORIZATION, format!("Bearer {}", bed.tokens["admin"]));
    let mut heard = bed.send(feed.body(Body::empty()).unwrap()).await.into_body().into_data_stream();
    let theirs = Marked::of(&bed, "stranger", "zqxtheirs").await;
    let ours = Marked::of(&bed, "admin", "wvkours").await;
    // Ours come last: all that is heard until then is heard.
    let mut events = String::new();
    while !events.contains(&ours.ids["run"]) {
        let more = tokio::time::timeout(std::time::Duration::from_mins(1), futures_util::StreamExt::next(&mut heard));
        let more = more.await.expect("an event of ours").unwrap().unwrap();
        events.push_str(std::str::from_utf8(&more).unwrap());
    }
    assert!(!theirs.is_told_in(&events, ""), "{events}");
    drop(heard);
    let (mut asked, mut found) = (0, BTreeSet::new());
    for about in [&ours, &theirs] {
        for (method, path) in about.operations() {
            if path == "/api/v1/events" || (method == "DELETE" && path == "/api/v1/session") {
                continue;
            }
            // What is changed about ours may stay as it is.
            if about.mark == ours.mark && method != "GET" {
                continue;
            }
            let request = Request::builder().method(method.as_str()).uri(path.as_str());
            let request = request.header(header::AUTHORIZATION, format!("Bearer {}", bed.tokens["admin"]));
            let body = (method != "GET").then(|| json!({}));
            let (status, headers, answer) = bed.ask(request, body.as_ref()).await;
            let told = format!("{headers:?} {answer}");
            let own_words = path.split('/').find(|part| part.contains(theirs.mark)).unwrap_or_default();
            assert!(!theirs.is_told_in(&told, own_words), "{method} {path}: {status} {told}");
            if ours.is_told_in(&told, "") {
                found.insert(path);
            }
            asked += 1;
        }
    }
    assert!(asked > 80, "{asked}");
    assert!(found.len() > 15, "what is ours is told to us: {found:?}");
    bed.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_is_chosen_by_those_who_speak_for_the_installation_alone() {
    let bed = bed().await;
    let theirs = bed.theirs.to_string();
    for (who, asked, expected) in [
        ("boss", None, Ok("default")),
        ("boss", Some("theirs"), Ok("theirs")),
        ("boss", Some(theirs.as_str()), Ok("theirs")),
        ("boss", Some("nobody"), Err(StatusCode::NOT_FOUND)),
        ("admin", None, Ok("default")),
        ("admin", Some("default"), Ok("default")),
        ("admin", Some("theirs"), Err(StatusCode::NOT_FOUND)),
        ("admin", Some(theirs.as_str()), Err(StatusCode::NOT_FOUND)),
        ("admin", Some("nobody"), Err(StatusCode::NOT_FOUND)),
        ("stranger", Some("default"), Err(StatusCode::NOT_FOUND)),
    ] {
        let request =
            Request::get("/api/v1/whoami").header(header::AUTHORIZATION, format!("Bearer {}", bed.tokens[who]));
        let request = asked.iter().fold(request, |request, asked| request.header("x-tenant-id", *asked));
        let (status, _, body) = bed.ask(request, None).await;
        let found = if status == StatusCode::OK { Ok(body["tenant"]["name"].as_str().unwrap()) } else { Err(status) };
        assert_eq!(found, expected, "{who} {asked:?}");
    }
    bed.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_or_expired_token_is_refused_at_once() {
    let bed = bed().await;
    let (status, _, made) =
        bed.by("admin", "POST", "/api/v1/tokens", Some(&json!({ "name": "ci", "permissions": ["job:read"] }))).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let (secret, id) = (made["secret"].as_str().unwrap(), made["token"]["id"].as_str().unwrap());
    assert_eq!(bed.with(secret, "GET", "/api/v1/jobs", None).await.0, StatusCode::OK);
    assert_eq!(bed.with(secret, "GET", "/api/v1/runs", None).await.0, StatusCode::FORBIDDEN);
    assert_eq!(bed.by("admin", "DELETE", &format!("/api/v1/tokens/{id}"), None).await.0, StatusCode::NO_CONTENT);
    assert_eq!(bed.with(secret, "GET", "/api/v1/jobs", None).await.0, StatusCode::UNAUTHORIZED);
    let past = bed.engine.now().saturating_sub(SignedDuration::from_secs(1)).unwrap();
    let later = bed.engine.now().saturating_add(SignedDuration::from_hours(1)).unwrap();
    for (end, status) in [(past, StatusCode::UNAUTHORIZED), (later, StatusCode::OK)] {
        let token = bed.token_until("t", bed.ours, Role::Viewer.permissions(), false, Some(end)).await;
        assert_eq!(bed.with(&token, "GET", "/api/v1/jobs", None).await.0, status);
    }
    bed.close().await;
}

/// An administrator of a tenant must not become one of the installation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gives_away_more_than_they_have() {
    let bed = bed().await;
    for (path, body) in [
        ("/api/v1/tokens", json!({ "name": "up", "role": "admin", "installation": true })),
        ("/api/v1/users", json!({ "name": "up", "password": "long enough", "role": "viewer", "installation": true })),
    ] {
        assert_eq!(bed.by("admin", "POST", path, Some(&body)).await.0, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(bed.by("boss", "POST", path, Some(&body)).await.0, StatusCode::CREATED, "{path}");
    }
    // Nor take over somebody who is one.
    let mine = json!({ "password": "of my choice" });
    assert_eq!(bed.by("admin", "PATCH", "/api/v1/users/up", Some(&mine)).await.0, StatusCode::NOT_FOUND);
    assert_eq!(bed.by("admin", "DELETE", "/api/v1/users/up", None).await.0, StatusCode::NOT_FOUND);
    let (_, _, page) = bed.by("boss", "GET", "/api/v1/tokens", None).await;
    let theirs = page["items"].as_array().unwrap().iter().find(|token| token["name"] == "up").unwrap();
    let path = format!("/api/v1/tokens/{}", theirs["id"].as_str().unwrap());
    assert_eq!(bed.by("admin", "DELETE", &path, None).await.0, StatusCode::NOT_FOUND);
    let (_, _, page) = bed.by("admin", "GET", "/api/v1/tokens", None).await;
    assert!(page["items"].as_array().unwrap().iter().all(|token| token["installation"] == false), "{page}");
    bed.close().await;
}

fn login(user: &str, password: &str) -> Value {
    json!({ "user": user, "password": password })
}

fn cookie_of(headers: &header::HeaderMap) -> String {
    headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_begins_with_a_password_and_ends_with_logging_out() {
    let bed = bed().await;
    bed.user("ann", "correct horse", Role::Editor).await;
    let session = || Request::post("/api/v1/session");
    for wrong in [
        login("ann", "wrong horse"),
        login("bob", "correct horse"),
        json!({ "user": "ann", "password": "correct horse", "tenant": "theirs" }),
    ] {
        let (status, headers, problem) = bed.ask(session(), Some(&wrong)).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert_eq!(problem["detail"], "the user name or the password is wrong");
        assert!(!headers.contains_key(header::SET_COOKIE));
    }
    let (status, headers, who) = bed.ask(session(), Some(&login("ann", "correct horse"))).await;
    assert_eq!((status, &who["who"], &who["via"]), (StatusCode::OK, &json!("ann"), &json!("session")));
    let set = headers[header::SET_COOKIE].to_str().unwrap();
    for flag in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(set.contains(flag), "{set}");
    }
    assert!(!set.contains("Secure"), "a browser drops a secure cookie of plain http on this machine: {set}");
    assert!(!who.to_string().contains(&cookie_of(&headers)[13..]));
    let cookie = cookie_of(&headers);
    let get = |path: &str| Request::get(path).header(header::COOKIE, format!("a=b; {cookie}; c=d"));
    assert_eq!(bed.ask(get("/api/v1/jobs"), None).await.0, StatusCode::OK);
    assert_eq!(bed.ask(get("/api/v1/tokens"), None).await.0, StatusCode::FORBIDDEN);
    // A cookie is no token.
    let secret = cookie.split_once('=').unwrap().1;
    assert_eq!(bed.with(secret, "GET", "/api/v1/jobs", None).await.0, StatusCode::UNAUTHORIZED);
    // A role that is taken away is gone with the next request.
    bed.by("admin", "PATCH", "/api/v1/users/ann", Some(&json!({ "role": "viewer" }))).await;
    let delete =
        || Request::delete("/api/v1/jobs/x").header(header::COOKIE, &cookie).header("sec-fetch-site", "same-origin");
    assert_eq!(bed.ask(delete(), None).await.0, StatusCode::FORBIDDEN);
    let out =
        Request::delete("/api/v1/session").header(header::COOKIE, &cookie).header("sec-fetch-site", "same-origin");
    let (status, headers, _) = bed.ask(out, None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert!(headers[header::SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(bed.ask(get("/api/v1/jobs"), None).await.0, StatusCode::UNAUTHORIZED);
    bed.close().await;
}

/// A page of another site makes a browser send the cookie along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cookie_changes_nothing_unless_a_page_of_ours_asks() {
    let bed = bed().await;
    bed.user("ann", "correct horse", Role::Admin).await;
    let (_, headers, _) = bed.ask(Request::post("/api/v1/session"), Some(&login("ann", "correct horse"))).await;
    let cookie = cookie_of(&headers);
    for (n, (site, origin, admitted)) in [
        (None, None, false),
        (Some("same-origin"), None, true),
        (Some("same-origin"), Some("http://localhost:7070"), true),
        (None, Some("http://localhost:7070"), true),
        (None, Some("http://LOCALHOST:7070"), true),
        (Some("cross-site"), Some("http://localhost:7070"), false),
        (Some("same-site"), None, false),
        (Some("none"), None, false),
        // Ours by name, and another page's port.
        (None, Some("http://localhost:9999"), false),
        (None, Some("https://attacker.example"), false),
        (None, Some("null"), false),
    ]
    .into_iter()
    .enumerate()
    {
        let request = Request::post("/api/v1/tokens").header(header::COOKIE, &cookie);
        let request = site.iter().fold(request, |request, site| request.header("sec-fetch-site", *site));
        let request = origin.iter().fold(request, |request, origin| request.header(header::ORIGIN, *origin));
        let body = json!({ "name": format!("t{n}"), "role": "viewer" });
        let (status, _, answer) = bed.ask(request, Some(&body)).await;
        let expected = if admitted { StatusCode::CREATED } else { StatusCode::FORBIDDEN };
        assert_eq!(status, expected, "{site:?} {origin:?}: {answer}");
        if !admitted {
            assert_eq!(answer["code"], "wrong_origin");
        }
    }
    // Nor does a page of another site log somebody in.
    let foreign = Request::post("/api/v1/session").header("sec-fetch-site", "cross-site");
    assert_eq!(bed.ask(foreign, Some(&login("ann", "correct horse"))).await.0, StatusCode::FORBIDDEN);
    bed.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_are_refused_before_they_are_compared() {
    let bed = bed().await;
    bed.user("ann", "correct horse", Role::Viewer).await;
    let guess = async |user: &str, last: u8| {
        let peer = Peer(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        bed.ask(Request::post("/api/v1/session").extension(peer), Some(&login(user, "wrong horse"))).await
    };
    let mut found = Vec::new();
    for _ in 0..12 {
        found.push(guess("ann", 1).await.0);
    }
    assert_eq!(found.iter().filter(|status| **status == StatusCode::UNAUTHORIZED).count(), 10, "{found:?}");
    assert_eq!(found[11], StatusCode::TOO_MANY_REQUESTS);
    let peer = Peer(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    let right = Request::post("/api/v1/session").extension(peer);
    let (status, headers, _) = bed.ask(right, Some(&login("ann", "correct horse"))).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "the right password is a guess too");
    assert!(headers[header::RETRY_AFTER].to_str().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(guess("ann", 2).await.0, StatusCode::UNAUTHORIZED, "from elsewhere one may still try");
    bed.close().await;
}

/// 400 logins with names of 1 MB cost 520 MB that stayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_nobody_can_have_is_refused_before_it_is_counted() {
    let bed = bed().await;
    let peer = Peer(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    let ask = async |name: &str| {
        bed.ask(Request::post("/api/v1/session").extension(peer), Some(&login(name, "wrong horse"))).await
    };
    for name in [&"x".repeat(1_000_000), &"x".repeat(101), "", "ann lee", "17"] {
        // More often than an address may guess: none of it counts.
        for _ in 0..20 {
            let (status, _, problem) = ask(name).await;
            assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("bad_request")), "{problem}");
            assert_eq!(problem["errors"][0]["path"], "user");
        }
    }
    assert_eq!(ask("ann").await.0, StatusCode::UNAUTHORIZED);
    bed.close().await;
}

const SECRET: &[u8] = b"a secret of at least thirty-two bytes, for tests";
/// Made for these tests, and used nowhere else.
const RSA_PRIVATE: &[u8] = include_bytes!("test_keys/rsa.pem");
const RSA_PUBLIC: &[u8] = include_bytes!("test_keys/rsa.pub.pem");

fn jwt_options(algorithms: &[&str], keys: JwtKeys) -> JwtOptions {
    JwtOptions {
        algorithms: algorithms.iter().map(ToString::to_string).collect(),
        keys,
        issuer: Some("https://login.example".into()),
        audience: Some("rota".into()),
        tenant_claim: Some("tenant".into()),
        role_claim: "role".into(),
        permissions_claim: "permissions".into(),
    }
}

fn claims(now: Timestamp) -> Value {
    json!({ "sub": "ann", "iss": "https://login.example", "aud": ["other", "rota"], "exp": now.as_second() + 600,
        "tenant": "default", "role": "editor" })
}

fn changed(mut claims: Value, name: &str, value: Value) -> Value {
    match value {
        Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
        value => claims[name] = value,
    }
    claims
}

fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.", part(header), part(claims))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_jwt_gives_what_it_claims_and_a_forged_one_nothing() {
    let jwt = Some(jwt_options(&["HS256", "HS512"], JwtKeys::Secret(SECRET.to_vec())));
    let options = AccessOptions { login: Login::Required, jwt, ..AccessOptions::default() };
    let bed = bed_with(options, Arc::new(SqliteStore::memory().unwrap())).await;
    let now = bed.engine.now();
    let sign =
        |header: &Header, claims: &Value, key: &[u8]| encode(header, claims, &EncodingKey::from_secret(key)).unwrap();
    let hs = |claims: &Value| sign(&Header::new(Algorithm::HS256), claims, SECRET);
    let good = hs(&claims(now));
    let (status, _, who) = bed.with(&good, "GET", "/api/v1/whoami", None).await;
    assert_eq!(
        (status, &who["who"], &who["installation"]),
        (StatusCode::OK, &json!("jwt:ann"), &json!(false)),
        "{who}"
    );
    assert_eq!(bed.with(&good, "GET", "/api/v1/jobs", None).await.0, StatusCode::OK);
    assert_eq!(bed.with(&good, "GET", "/api/v1/tokens", None).await.0, StatusCode::FORBIDDEN);
    let with = |name: &str, value: Value| hs(&changed(claims(now), name, value));
    for (token, permissions) in [
        (with("role", json!(null)), json!([])),
        (with("role", json!(["viewer", "nonsense"])), json!(["job:read", "run:read"])),
        (with("role", json!("god")), json!([])),
        (
            hs(&changed(
                changed(claims(now), "role", json!(null)),
                "permissions",
                json!("job:read run:cancel nonsense"),
            )),
            json!(["job:read", "run:cancel"]),
        ),
    ] {
        assert_eq!(bed.with(&token, "GET", "/api/v1/whoami", None).await.2["permissions"], permissions);
    }
    let boss = with("role", json!("installation_admin"));
    assert_eq!(bed.with(&boss, "GET", "/api/v1/tenants", None).await.0, StatusCode::OK);
    let kid = |kid: &str| Header { kid: Some(kid.into()), ..Header::new(Algorithm::HS256) };
    let mut tampered = good.clone().into_bytes();
    let middle = good.find('.').unwrap() + 20;
    tampered[middle] = if tampered[middle] == b'A' { b'B' } else { b'A' };
    let none = json!({ "alg": "none", "typ": "JWT" });
    let signature = good.rsplit_once('.').unwrap().1;
    let refused = [
        ("none", unsigned(&none, &claims(now))),
        ("None", unsigned(&json!({ "alg": "None" }), &claims(now))),
        ("none with a signature", format!("{}{signature}", unsigned(&none, &claims(now)))),
        ("no signature", good.rsplit_once('.').unwrap().0.to_owned() + "."),
        ("two parts", good.rsplit_once('.').unwrap().0.to_owned()),
        ("four parts", format!("{good}.x")),
        ("tampered", String::from_utf8(tampered).unwrap()),
        (
            "another secret",
            sign(&Header::new(Algorithm::HS256), &claims(now), b"another secret of thirty-two bytes or more"),
        ),
        ("an empty secret", sign(&Header::new(Algorithm::HS256), &claims(now), b"")),
        ("an algorithm that is not listed", sign(&Header::new(Algorithm::HS384), &claims(now), SECRET)),
        ("another issuer", with("iss", json!("https://attacker.example"))),
        ("no issuer", with("iss", json!(null))),
        ("another audience", with("aud", json!("other"))),
        ("no audience", with("aud", json!(null))),
        ("an audience that begins alike", with("aud", json!("rota-other"))),
        ("expired", with("exp", json!(now.as_second() - 61))),
        ("no end", with("exp", json!(null))),
        ("an end that is a text", with("exp", json!("2999999999"))),
        ("an end beyond all calendars", with("exp", json!(1e308))),
        ("an end that overflows", with("exp", json!(u64::MAX))),
        ("an end in the year 10000", with("exp", json!(253_402_300_800_i64))),
        ("a beginning before all calendars", with("nbf", json!(-1e308))),
        ("a beginning that overflows", with("nbf", json!(i64::MIN))),
        ("a beginning in the year 10000", with("nbf", json!(253_402_300_800_i64))),
        ("a beginning that is a text", with("nbf", json!("0"))),
        ("not yet", with("nbf", json!(now.as_second() + 300))),
        ("another tenant that is none", with("tenant", json!("nobody"))),
        ("no tenant", with("tenant", json!(null))),
        ("a list of tenants", with("tenant", json!(["default"]))),
        ("nobody", with("sub", json!(null))),
        ("an empty name", with("sub", json!(""))),
        ("extensions", {
            let head = URL_SAFE_NO_PAD.encode(json!({ "alg": "HS256", "crit": ["b64"], "b64": false }).to_string());
            let body = URL_SAFE_NO_PAD.encode(claims(now).to_string());
            let message = format!("{head}.{body}");
            let signature =
                jsonwebtoken::crypto::sign(message.as_bytes(), &EncodingKey::from_secret(SECRET), Algorithm::HS256);
            format!("{message}.{}", signature.unwrap())
        }),
        ("huge", with("padding", json!("x".repeat(20_000)))),
        ("a huge key name", sign(&kid(&"k".repeat(300)), &claims(now), SECRET)),
        ("nonsense", "..".into()),
        ("nonsense in parts", "é.é.é".into()),
        ("an API token with dots", format!("{}.a.b", new_secret(SecretKind::Token).expose())),
    ];
    for (what, token) in refused {
        let request = Request::get("/api/v1/whoami").header(
            header::AUTHORIZATION,
            header::HeaderValue::from_bytes(format!("Bearer {token}").as_bytes()).unwrap(),
        );
        let (status, _, problem) = bed.ask(request, None).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{what}");
        assert_eq!(problem["detail"], "the token or session is unknown, expired or revoked", "{what}");
    }
    bed.close().await;
}

/// The public key is no secret: who signs with it by HMAC is nobody.
#[tokio::test]
async fn a_public_key_is_not_taken_for_a_secret() {
    let now = Timestamp::from_second(1_760_000_000).unwrap();
    let jwt = Jwt::new(jwt_options(&["RS256"], JwtKeys::Pem(RSA_PUBLIC.to_vec()))).unwrap();
    let rsa = EncodingKey::from_rsa_pem(RSA_PRIVATE).unwrap();
    let good = encode(&Header::new(Algorithm::RS256), &claims(now), &rsa).unwrap();
    assert_eq!(jwt.verify(&good, now).await.unwrap().subject, "ann");
    let trimmed = RSA_PUBLIC.trim_ascii_end();
    for key in [RSA_PUBLIC, trimmed] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let forged = encode(&Header::new(algorithm), &claims(now), &EncodingKey::from_secret(key)).unwrap();
            assert!(jwt.verify(&forged, now).await.is_err(), "{algorithm:?}");
        }
    }
    // Of the same kind and not listed.
    for algorithm in [Algorithm::RS512, Algorithm::PS256] {
        let other = encode(&Header::new(algorithm), &claims(now), &rsa).unwrap();
        assert!(jwt.verify(&other, now).await.is_err(), "{algorithm:?}");
    }
    // Times are judged by the clock that is handed in.
    let later = |seconds: i64| Timestamp::from_second(1_760_000_000 + seconds).unwrap();
    assert!(jwt.verify(&good, later(659)).await.is_ok() && jwt.verify(&good, later(660)).await.is_err());
}

/// A login server with one key, that counts how often it is asked.
struct LoginServer {
    url: String,
    asked: Arc<std::sync::atomic::AtomicUsize>,
    works: Arc<std::sync::atomic::AtomicBool>,
}

async fn login_server() -> LoginServer {
    use std::sync::atomic::Ordering::SeqCst;
    let jwk =
        jsonwebtoken::jwk::Jwk::from_encoding_key(&EncodingKey::from_rsa_pem(RSA_PRIVATE).unwrap(), Algorithm::RS256);
    let mut key = serde_json::to_value(jwk.unwrap()).unwrap();
    key["kid"] = json!("k1");
    key["use"] = json!("sig");
    let set = json!({ "keys": [key, { "kty": "oct", "kid": "shared", "k": "c2VjcmV0" }] });
    let (asked, works) = (Arc::new(0.into()), Arc::new(true.into()));
    let (counted, working): (Arc<std::sync::atomic::AtomicUsize>, Arc<std::sync::atomic::AtomicBool>) =
        (Arc::clone(&asked), Arc::clone(&works));
    let app = Router::new().route(
        "/keys",
        axum::routing::get(async move || {
            counted.fetch_add(1, SeqCst);
            if working.load(SeqCst) {
                (StatusCode::OK, set.to_string())
            } else {
                (StatusCode::BAD_GATEWAY, String::new())
            }
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let service = hyper_util::service::TowerToHyperService::new(app);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let io = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service.clone()));
        }
    });
    LoginServer { url, asked, works }
}

#[tokio::test]
async fn keys_are_fetched_seldom_and_kept_when_the_login_server_is_away() {
    use std::sync::atomic::Ordering::SeqCst;
    let server = login_server().await;
    let start = 1_760_000_000;
    let at = |seconds: i64| Timestamp::from_second(start + seconds).unwrap();
    let jwt = Jwt::new(jwt_options(&["RS256"], JwtKeys::Set(server.url.clone()))).unwrap();
    let rsa = EncodingKey::from_rsa_pem(RSA_PRIVATE).unwrap();
    let token = |kid: Option<&str>, algorithm| {
        let header = Header { kid: kid.map(str::to_owned), ..Header::new(algorithm) };
        encode(&header, &changed(claims(at(0)), "exp", json!(start + 100_000)), &rsa).unwrap()
    };
    let good = token(Some("k1"), Algorithm::RS256);
    assert!(jwt.verify(&good, at(0)).await.is_ok());
    assert!(jwt.verify(&token(None, Algorithm::RS256), at(1)).await.is_ok(), "the only key needs no name");
    // Names that are paths, addresses or SQL are names of no key, and do not
    // become requests.
    let tricks = [
        "k2",
        "../../../dev/null",
        "/dev/null",
        "https://attacker.example/keys",
        "' OR '1'='1",
        "k1'--",
        "shared",
        "",
        "k1\0",
    ];
    for kid in tricks {
        assert!(jwt.verify(&token(Some(kid), Algorithm::RS256), at(2)).await.is_err(), "{kid}");
    }
    assert_eq!(server.asked.load(SeqCst), 1, "within half a minute it is not asked again");
    for _ in 0..5 {
        assert!(jwt.verify(&token(Some("k2"), Algorithm::RS256), at(40)).await.is_err());
    }
    assert_eq!(server.asked.load(SeqCst), 2);
    // A key of the set that is a secret is not used, whoever knows it.
    let header = Header { kid: Some("shared".into()), ..Header::new(Algorithm::HS256) };
    let forged = encode(&header, &claims(at(0)), &EncodingKey::from_secret(b"secret")).unwrap();
    assert!(jwt.verify(&forged, at(100)).await.is_err());
    // Away for hours: who has logged in works on.
    server.works.store(false, SeqCst);
    assert!(jwt.verify(&token(Some("k2"), Algorithm::RS256), at(5_000)).await.is_err());
    assert!(jwt.verify(&good, at(9_000)).await.is_ok());
}

/// The layer is around every route: a change that its route does not name is
/// written down all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_that_says_nothing_of_its_change_is_audited_all_the_same() {
    let bed = bed().await;
    let access = Access::new(AccessOptions { login: Login::Required, ..AccessOptions::default() });
    let node = Node::new(access.unwrap(), Bounds::default());
    node.started(bed.engine.clone(), bed.ours);
    let app: Router = Router::new()
        .route("/api/v1/things/{id}", post(async |_: May<JobWrite>| "done"))
        .route("/api/v1/looks", post(async |may: May<JobRead>| may.changed_nothing()))
        .route("/api/v1/refusals", post(async |_: May<JobWrite>| Problem::no_such("thing")))
        .layer(axum::middleware::from_fn_with_state(node.clone(), audit::keep))
        .with_state(node);
    for (path, status) in [("things/7", 200), ("looks", 200), ("refusals", 404)] {
        let request = Request::post(format!("/api/v1/{path}"))
            .header(header::AUTHORIZATION, format!("Bearer {}", bed.tokens["editor"]));
        assert_eq!(app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status(), status);
    }
    let expected = ("token:editor".to_owned(), "POST /api/v1/things/{id}".to_owned(), "things/7".to_owned());
    assert_eq!(bed.audit(bed.ours).await, [expected]);
    bed.close().await;
}

/// Whoever hung up between a change and its entry in the audit log left none, and a change
/// of several writes ended half-way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_carried_out_and_audited_although_whoever_asked_hangs_up() {
    let bed = bed().await;
    let access = Access::new(AccessOptions { login: Login::Required, ..AccessOptions::default() });
    let node = Node::new(access.unwrap(), Bounds { requests_max: 1, ..Bounds::default() });
    node.started(bed.engine.clone(), bed.ours);
    let (begun, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let change = {
        let (begun, gate) = (Arc::clone(&begun), Arc::clone(&gate));
        post(async move |may: May<JobWrite>| {
            begun.notify_one();
            gate.notified().await;
            may.changed("thing.change", "thing/7", None, None);
        })
    };
    let app: Router = Router::new()
        .route("/api/v1/things", change)
        .layer(axum::middleware::from_fn_with_state(node.clone(), audit::keep))
        .layer(axum::middleware::from_fn_with_state(node.clone(), bounds::admit))
        .with_state(node.clone());
    let request = || {
        let request =
            Request::post("/api/v1/things").header(header::AUTHORIZATION, format!("Bearer {}", bed.tokens["editor"]));
        request.body(Body::empty()).unwrap()
    };
    let asking = tokio::spawn(app.clone().oneshot(request()));
    begun.notified().await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    let limit = std::time::Duration::from_secs(30);
    let other = tokio::time::timeout(limit, app.oneshot(request())).await;
    let other = other.expect("the next one finds no place").unwrap();
    assert_eq!(other.status(), StatusCode::SERVICE_UNAVAILABLE, "what goes on keeps its place");
    gate.notify_one();
    let place = tokio::time::timeout(limit, Arc::clone(node.requests()).acquire_owned()).await;
    drop(place.expect("the change ends and gives its place back").unwrap());
    let expected = ("token:editor".to_owned(), "thing.change".to_owned(), "thing/7".to_owned());
    assert_eq!(bed.audit(bed.ours).await, [expected]);
    bed.close().await;
}

/// Each change with its name, what was and what is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_audited_with_before_and_after() {
    let bed = bed().await;
    let job = |every: &str| {
        json!({ "name": "report", "steps": [{ "id": "s", "handler": { "name": "h" } }],
        "schedules": [{ "name": "daily", "every": every }] })
    };
    let mut done: Vec<(&str, String)> = Vec::new();
    let (_, _, saved) = bed.by("editor", "POST", "/api/v1/jobs", Some(&job("1h"))).await;
    let object = format!("job/{}", saved["id"]);
    done.push(("job.save", object.clone()));
    bed.by("editor", "PUT", "/api/v1/jobs/report", Some(&job("1h"))).await;
    bed.by("editor", "PUT", "/api/v1/jobs/report", Some(&job("2h"))).await;
    done.push(("job.save", object.clone()));
    bed.by("editor", "POST", "/api/v1/check", Some(&job("2h"))).await;
    bed.by("editor", "POST", "/api/v1/jobs/report/pause", Some(&json!({ "note": "why" }))).await;
    done.push(("job.pause", object.clone()));
    bed.by("editor", "POST", "/api/v1/jobs/report/resume", None).await;
    done.push(("job.resume", object.clone()));
    let later = json!({ "run_at": "2999-01-01T00:00:00Z" });
    let (status, _, made) = bed.by("editor", "POST", "/api/v1/jobs/report/trigger", Some(&later)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{made}");
    done.push(("job.trigger", object.clone()));
    let run = format!("run/{}", made["id"].as_str().unwrap());
    bed.by("editor", "POST", &format!("/api/v1/{}/cancel", run.replace("run/", "runs/")), Some(&json!({}))).await;
    done.push(("run.cancel", run));
    bed.by("editor", "POST", "/api/v1/bulk/pause", Some(&json!({ "filter": {}, "dry_run": true }))).await;
    let (status, _, answer) = bed.by("editor", "DELETE", "/api/v1/jobs/report", None).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    done.push(("job.delete", object));
    let expected: Vec<_> = done
        .iter()
        .rev()
        .map(|(action, object)| ("token:editor".to_owned(), (*action).to_owned(), object.clone()))
        .collect();
    assert_eq!(bed.audit(bed.ours).await, expected);
    let (_, _, page) = bed.by("admin", "GET", "/api/v1/audit?action=job.save", None).await;
    let (newer, older) = (&page["items"][0], &page["items"][1]);
    assert_eq!(older["before"], Value::Null);
    assert_eq!(older["after"], newer["before"], "what is before is what was after");
    assert_eq!(newer["after"]["document"]["schedules"][0]["every"], "2h");
    assert_eq!(newer["after"]["version"], 2);
    bed.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_asks_too_often_is_told_when_to_come_back() {
    let bed = bed().await;
    let mut refused = None;
    for n in 0..200 {
        let (status, headers, problem) = bed.by("small", "GET", "/api/v1/jobs", None).await;
        if status != StatusCode::OK {
            refused = Some((n, status, headers, problem));
            break;
        }
    }
    let (n, status, headers, problem) = refused.expect("20 at once and 10 a second are not 200");
    assert!(n >= 20, "{n}");
    assert_eq!((status, problem["code"].as_str()), (StatusCode::TOO_MANY_REQUESTS, Some("too_many_requests")));
    assert_eq!(headers[header::RETRY_AFTER], "1");
    assert_eq!(bed.by("viewer", "GET", "/api/v1/jobs", None).await.0, StatusCode::OK, "others are not touched");
    bed.close().await;
}

/// What is open needs no login, and what is presented counts even there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_login_everybody_is_the_administrator_unless_they_say_otherwise() {
    let admin = "a-token-of-more-than-32-characters-for-tests";
    let options = AccessOptions { admin: Some(SecretDigest::of(admin)), ..AccessOptions::default() };
    let bed = bed_with(options, Arc::new(SqliteStore::memory().unwrap())).await;
    let (status, _, who) = bed.ask(Request::get("/api/v1/whoami"), None).await;
    assert_eq!((status, &who["who"], &who["via"]), (StatusCode::OK, &json!("anonymous"), &json!("open")));
    assert_eq!(bed.ask(Request::get("/metrics"), None).await.0, StatusCode::OK);
    assert_eq!(bed.by("viewer", "GET", "/api/v1/tokens", None).await.0, StatusCode::FORBIDDEN);
    let old = Request::get("/api/v1/jobs")
        .header(header::COOKIE, format!("{COOKIE}={}", new_secret(SecretKind::Session).expose()));
    assert_eq!(bed.ask(old, None).await.0, StatusCode::OK, "a browser sends old cookies along");
    assert_eq!(bed.with("rota_nonsense", "GET", "/api/v1/jobs", None).await.0, StatusCode::UNAUTHORIZED);
    let (_, _, who) = bed.with(admin, "GET", "/api/v1/whoami", None).await;
    assert_eq!((&who["who"], &who["installation"]), (&json!("token:ROTA_ADMIN_TOKEN"), &json!(true)));
    bed.close().await;
}

/// A log that a test can read.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whoever reads the log, the store's files or an answer can log in as nobody.
#[tokio::test]
async fn no_secret_is_in_the_store_the_log_or_an_answer() {
    let log = Captured::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let directory = std::env::temp_dir().join(format!("rota-access-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir_all(&directory).unwrap();
    let store = SqliteStore::open(&directory.join("rota.db"), sqlite::Options::default()).await.unwrap();
    let jwt = Some(jwt_options(&["HS256"], JwtKeys::Secret(SECRET.to_vec())));
    let options = AccessOptions { login: Login::Required, jwt, ..AccessOptions::default() };
    let bed = bed_with(options, Arc::new(store)).await;
    let mut secrets: BTreeSet<String> = bed.tokens.values().cloned().collect();
    let (_, _, made) =
        bed.by("admin", "POST", "/api/v1/tokens", Some(&json!({ "name": "ci", "role": "viewer" }))).await;
    secrets.insert(made["secret"].as_str().unwrap().to_owned());
    let user = json!({ "name": "ann", "password": "correct horse battery", "role": "admin" });
    bed.by("admin", "POST", "/api/v1/users", Some(&user)).await;
    secrets.insert("correct horse battery".to_owned());
    let (_, headers, _) = bed.ask(Request::post("/api/v1/session"), Some(&login("ann", "correct horse battery"))).await;
    let cookie = cookie_of(&headers);
    secrets.insert(cookie.split_once('=').unwrap().1.to_owned());
    bed.ask(Request::post("/api/v1/session"), Some(&login("ann", "a wrong password of hers"))).await;
    secrets.insert("a wrong password of hers".to_owned());
    let forged =
        encode(&Header::new(Algorithm::HS256), &claims(bed.engine.now()), &EncodingKey::from_secret(b"x")).unwrap();
    bed.with(&forged, "GET", "/api/v1/jobs", None).await;
    secrets.insert(forged);
    let patch = json!({ "password": "another long password" });
    bed.by("admin", "PATCH", "/api/v1/users/ann", Some(&patch)).await;
    secrets.insert("another long password".to_owned());
    let mut answers = String::new();
    for path in ["tokens", "users", "audit", "whoami", "users/ann", "jobs"] {
        answers.push_str(&bed.by("admin", "GET", &format!("/api/v1/{path}"), None).await.2.to_string());
    }
    assert!(answers.contains("token:admin") && answers.contains("user.change"), "{answers}");
    assert!(!answers.contains("argon2"), "a hash is nobody's business: {answers}");
    bed.close().await;
    let mut kept = log.0.lock().unwrap().clone();
    assert!(!kept.is_empty());
    for file in std::fs::read_dir(&directory).unwrap() {
        kept.extend(std::fs::read(file.unwrap().path()).unwrap());
    }
    assert!(kept.windows(7).any(|bytes| bytes == b"argon2i"), "the store's files were read");
    for secret in secrets {
        // Without its prefix, which is no secret.
        let bytes = secret.trim_start_matches("rota_session_").trim_start_matches("rota_").as_bytes();
        assert!(!answers.contains(&secret), "an answer holds a secret");
        assert!(!kept.windows(bytes.len()).any(|window| window == bytes), "the log or the store holds a secret");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

/// A bed whose feeds look again often, and are few.
async fn bed_of_feeds() -> Bed {
    let options = AccessOptions { login: Login::Required, ..AccessOptions::default() };
    let recheck_time = std::time::Duration::from_millis(20);
    let bounds = Bounds { recheck_time, feeds_max: 3, tenant_feeds_max: 2, ..Bounds::default() };
    bounded(options, Arc::new(SqliteStore::memory().unwrap()), bounds).await
}

impl Bed {
    async fn follow(&self, credentials: (header::HeaderName, String)) -> Response<Body> {
        let request = Request::get("/api/v1/events").header(header::HOST, "localhost:7070");
        self.send(request.header(credentials.0, credentials.1).body(Body::empty()).unwrap()).await
    }

    async fn follow_as(&self, token: &str) -> Response<Body> {
        self.follow((header::AUTHORIZATION, format!("Bearer {token}"))).await
    }
}

/// Returns when the feed has ended.
async fn until_it_ends(feed: Response<Body>) {
    assert_eq!(feed.status(), StatusCode::OK);
    let ends = to_bytes(feed.into_body(), 1 << 24);
    tokio::time::timeout(std::time::Duration::from_mins(2), ends).await.expect("the feed ends").unwrap();
}

/// Whoever was shut out must not go on listening on a feed begun before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_ends_with_what_its_caller_proved() {
    let bed = bed_of_feeds().await;
    // A token that is revoked.
    let (_, _, made) =
        bed.by("admin", "POST", "/api/v1/tokens", Some(&json!({ "name": "ci", "role": "viewer" }))).await;
    let feed = bed.follow_as(made["secret"].as_str().unwrap()).await;
    let other = bed.follow_as(&bed.tokens["viewer"]).await;
    let path = format!("/api/v1/tokens/{}", made["token"]["id"].as_str().unwrap());
    assert_eq!(bed.by("admin", "DELETE", &path, None).await.0, StatusCode::NO_CONTENT);
    until_it_ends(feed).await;
    // A token that expires.
    let soon = bed.engine.now() + SignedDuration::from_millis(300);
    let token = bed.token_until("brief", bed.ours, Role::Viewer.permissions(), false, Some(soon)).await;
    until_it_ends(bed.follow_as(&token).await).await;
    // A session that is logged out.
    bed.user("ann", "long enough", Role::Viewer).await;
    let login = json!({ "user": "ann", "password": "long enough" });
    let (status, headers, _) = bed.ask(Request::post("/api/v1/session"), Some(&login)).await;
    assert_eq!(status, StatusCode::OK);
    let cookie = headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    let feed = bed.follow((header::COOKIE, cookie.clone())).await;
    let logout =
        Request::delete("/api/v1/session").header(header::COOKIE, cookie).header("sec-fetch-site", "same-origin");
    assert_eq!(bed.ask(logout, None).await.0, StatusCode::NO_CONTENT);
    until_it_ends(feed).await;
    // Nobody else was told to go: what happens next is heard.
    bed.by(
        "editor",
        "POST",
        "/api/v1/jobs",
        Some(&json!({ "name": "j", "steps": [{ "id": "s", "handler": { "name": "h" } }] })),
    )
    .await;
    let mut heard = other.into_body().into_data_stream();
    let mut text = String::new();
    while !text.contains("event: job_saved") {
        let next = futures_util::StreamExt::next(&mut heard);
        let next = tokio::time::timeout(std::time::Duration::from_mins(2), next).await.expect("the feed goes on");
        text.push_str(std::str::from_utf8(&next.unwrap().unwrap()).unwrap());
    }
    bed.close().await;
}

impl Bed {
    /// A token of its own with a role, and where to revoke it.
    async fn made_token(&self, name: &str, role: &str) -> (String, String) {
        let request = json!({ "name": name, "role": role });
        let (_, _, made) = self.by("admin", "POST", "/api/v1/tokens", Some(&request)).await;
        let path = format!("/api/v1/tokens/{}", made["token"]["id"].as_str().unwrap());
        (made["secret"].as_str().unwrap().to_owned(), path)
    }
}

/// A stream of lines and a worker that waits last as long as a feed does. The bounds are
/// the usual ones: a second is enough to be shut out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_exchanges_end_with_what_their_caller_proved() {
    assert!(Bounds::default().recheck_time * 2 <= std::time::Duration::from_secs(1));
    let bed = bed().await;
    let job = json!({ "name": "j", "steps": [{ "id": "s", "handler": { "name": "h" } }] });
    assert_eq!(bed.by("editor", "POST", "/api/v1/jobs", Some(&job)).await.0, StatusCode::CREATED);
    // A stream whose lines are waited for.
    let (secret, path) = bed.made_token("stream", "operator").await;
    let (lines, mut sent) = tokio::sync::mpsc::channel::<Result<String, std::io::Error>>(1);
    let body = futures_util::stream::poll_fn(move |context| sent.poll_recv(context));
    let request = Request::post("/api/v1/bulk/runs")
        .header(header::HOST, "localhost:7070")
        .header(header::AUTHORIZATION, format!("Bearer {secret}"))
        .header(header::CONTENT_TYPE, "application/x-ndjson");
    let response = bed.send(request.body(Body::from_stream(body)).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    lines.send(Ok("{\"job\":\"j\"}\n".to_owned())).await.unwrap();
    assert_eq!(bed.by("admin", "DELETE", &path, None).await.0, StatusCode::NO_CONTENT);
    let ended = to_bytes(response.into_body(), 1 << 20);
    let ended = tokio::time::timeout(std::time::Duration::from_secs(20), ended).await.expect("it ends").unwrap();
    let told: Value = serde_json::from_slice(&ended).unwrap();
    assert_eq!((&told["line"], &told["error"]["code"]), (&json!(1), &json!("unauthenticated")), "{told}");
    let runs = bed.by("editor", "GET", "/api/v1/runs", None).await.2;
    assert_eq!(runs["items"], json!([]), "what came before was done afterwards");
    // A worker that waits for attempts; its role is enough, and then it is not.
    let (secret, path) = bed.made_token("worker", "operator").await;
    let worker = json!({ "id": WorkerId::new(bed.engine.node().random.as_ref(), bed.engine.now()).0, "name": "w",
        "version": "1", "queues": [], "traits": [], "handlers": ["far"], "kinds": [], "slots": 1 });
    let exchange = json!({ "worker": worker, "free": 1, "wait_ms": 20_000 });
    let waiting = bed.with(&secret, "POST", "/api/v1/workers/sync", Some(&exchange));
    let revoking = async {
        while bed.engine.node().remote.workers() == 0 {
            tokio::task::yield_now().await;
        }
        bed.by("admin", "DELETE", &path, None).await
    };
    let (waited, revoked) = tokio::join!(waiting, revoking);
    assert_eq!((waited.0, revoked.0), (StatusCode::UNAUTHORIZED, StatusCode::NO_CONTENT), "{}", waited.2);
    bed.close().await;
}

/// Feeds hold memory and a connection each for as long as their clients like.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feeds_are_bounded_for_a_tenant_and_for_the_node() {
    let bed = bed_of_feeds().await;
    let code = async |response: Response<Body>| {
        let body = to_bytes(response.into_body(), 1 << 16).await.unwrap();
        serde_json::from_slice::<Value>(&body).unwrap()["code"].as_str().unwrap().to_owned()
    };
    let first = bed.follow_as(&bed.tokens["viewer"]).await;
    let second = bed.follow_as(&bed.tokens["viewer"]).await;
    assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));
    let refused = bed.follow_as(&bed.tokens["editor"]).await;
    assert!(refused.status() == StatusCode::TOO_MANY_REQUESTS && refused.headers().contains_key(header::RETRY_AFTER));
    assert_eq!(code(refused).await, "too_many_requests");
    let theirs = bed.follow_as(&bed.tokens["stranger"]).await;
    assert_eq!(theirs.status(), StatusCode::OK, "another tenant is not touched");
    let refused = bed.follow_as(&bed.tokens["stranger"]).await;
    assert!(refused.status() == StatusCode::SERVICE_UNAVAILABLE && refused.headers().contains_key(header::RETRY_AFTER));
    assert_eq!(code(refused).await, "busy");
    drop((first, second));
    assert_eq!(bed.follow_as(&bed.tokens["editor"]).await.status(), StatusCode::OK, "a place is free again");
    bed.close().await;
}

/// The ids of dead letters, as they are listed.
async fn dead(bed: &Bed, query: &str) -> Vec<String> {
    let (status, _, page) = bed.by("viewer", "GET", &format!("/api/v1/dead-letters{query}"), None).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

/// A dead letter waits for somebody until somebody has dealt with it, and never
/// comes back; history keeps it all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_open_until_it_is_made_again_or_put_away() {
    let bed = bed().await;
    let job = json!({ "name": "bad", "retry": { "max_attempts": 1 }, "steps": [{ "id": "s", "handler": { "name": "bad" } }] });
    assert_eq!(bed.by("editor", "POST", "/api/v1/jobs", Some(&job)).await.0, StatusCode::CREATED);
    let mut events = bed.engine.subscribe();
    let mut until_dead = async |count: usize| {
        for _ in 0..count {
            while !matches!(events.recv().await.unwrap(), Event::RunEnded { .. }) {}
        }
    };
    for _ in 0..3 {
        assert_eq!(bed.by("operator", "POST", "/api/v1/jobs/bad/trigger", None).await.0, StatusCode::ACCEPTED);
    }
    until_dead(3).await;
    let open = dead(&bed, "").await;
    assert_eq!(open.len(), 3);
    // One is put away, by whoever may; twice is once.
    let discard = format!("/api/v1/dead-letters/{}/discard", open[0]);
    for _ in 0..2 {
        assert_eq!(bed.by("operator", "POST", &discard, None).await.0, StatusCode::NO_CONTENT);
    }
    assert_eq!(dead(&bed, "").await, open[1..]);
    let (_, _, page) = bed.by("viewer", "GET", "/api/v1/dead-letters?state=discarded&job=bad", None).await;
    let item = &page["items"][0];
    assert_eq!((&item["id"], &item["settled_by"]), (&json!(open[0]), &json!("token:operator")), "{page}");
    assert!(item["age_ms"].is_u64() && item["settled_at"].is_string() && item["failure"].is_object(), "{item}");
    // One is made again, and its child dies in its place.
    let retry = format!("/api/v1/runs/{}/retry", open[1]);
    let (status, _, child) = bed.by("operator", "POST", &retry, None).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    until_dead(1).await;
    let child = child["id"].as_str().unwrap().to_owned();
    assert_eq!(dead(&bed, "").await, [child.clone(), open[2].clone()]);
    assert_eq!(dead(&bed, "?state=redriven").await, [open[1].clone()]);
    let (status, _, problem) =
        bed.by("operator", "POST", &format!("/api/v1/dead-letters/{}/discard", open[1]), None).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::CONFLICT, Some("conflict")), "{problem}");
    // The rest by a filter, counted first.
    let mut many = json!({ "filter": { "job": "bad" }, "dry_run": true });
    let (_, _, counted) = bed.by("operator", "POST", "/api/v1/bulk/discard", Some(&many)).await;
    assert_eq!((&counted["matched"], &counted["done"]), (&json!(2), &json!(2)), "{counted}");
    assert_eq!(dead(&bed, "").await.len(), 2);
    many["dry_run"] = json!(false);
    let (_, _, done) = bed.by("operator", "POST", "/api/v1/bulk/discard", Some(&many)).await;
    assert_eq!((&done["matched"], &done["done"]), (&json!(2), &json!(2)), "{done}");
    assert_eq!(dead(&bed, "").await, Vec::<String>::new());
    assert_eq!(dead(&bed, "?state=all").await.len(), 4);
    // What was put away is not made again with others, and what was made again not twice.
    let (_, _, done) = bed.by("operator", "POST", "/api/v1/bulk/redrive", Some(&json!({ "filter": {} }))).await;
    assert_eq!((&done["matched"], &done["done"]), (&json!(1), &json!(0)), "{done}");
    let (_, _, made) =
        bed.by("editor", "POST", "/api/v1/jobs", Some(&json!({ "name": "good", "steps": job["steps"] }))).await;
    assert_eq!(made["version"], 1, "{made}");
    let later = json!({ "run_at": "2100-01-01T00:00:00Z" });
    let (_, _, live) = bed.by("operator", "POST", "/api/v1/jobs/good/trigger", Some(&later)).await;
    let path = format!("/api/v1/dead-letters/{}/discard", live["id"].as_str().unwrap());
    assert_eq!(bed.by("operator", "POST", &path, None).await.0, StatusCode::CONFLICT, "it is no dead letter");
    let audit = bed.audit(bed.ours).await;
    for (action, object) in [("dead.discard", format!("run/{}", open[0])), ("dead.discard_many", "runs".to_owned())] {
        assert!(audit.contains(&("token:operator".into(), action.into(), object)), "{action}: {audit:?}");
    }
    bed.close().await;
}

/// Whoever reads the description must learn how to be known, and what being unknown
/// is answered with.
#[test]
fn the_description_says_how_a_caller_is_known() {
    let described = serde_json::to_value(routes::description()).unwrap();
    let schemes = &described["components"]["securitySchemes"];
    assert_eq!((&schemes["bearer"]["type"], &schemes["bearer"]["scheme"]), (&json!("http"), &json!("bearer")));
    assert_eq!((&schemes["session"]["in"], &schemes["session"]["name"]), (&json!("cookie"), &json!(COOKIE)));
    for (path, item) in described["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let what = format!("{method} {path}: {operation}");
            let open = is_in(&OPEN, &method.to_uppercase(), path);
            let ways: Vec<String> = operation["security"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|way| way.as_object().unwrap().keys().cloned())
                .collect();
            assert_eq!(ways, if open { vec![] } else { vec!["bearer", "session"] }, "{what}");
            for status in ["401", "403", "429", "503", "default"] {
                let content = &operation["responses"][status]["content"]["application/problem+json"];
                assert_eq!(content["schema"]["$ref"], "#/components/schemas/Problem", "{what}");
            }
        }
    }
}
