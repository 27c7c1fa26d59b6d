//! Quotas: each of them on each way in. A way in that forgot one would be the way
//! around it.

use axum::http::{Method, header};
use rota_core::{
    duration::Span,
    ids::TenantId,
    job::JobDocument,
    quota::Tiers,
    run::Status,
    store::{Expect, Tier},
};
use rota_engine::{Engine, Event, JobRef, Made, Options, RunAsk, clock::TestClock, definitions::SaveError};
use rota_store::sqlite::SqliteStore;
use serde_json::{Value, json};
use std::{fmt::Debug, path::PathBuf, sync::Arc};

use crate::bed::{Answer, Bed, job};

/// What somebody got: the code, and the places that were named.
type Got = (String, Vec<String>);

fn got(answer: &Answer) -> Got {
    if answer.status.is_success() {
        return ("ok".to_owned(), Vec::new());
    }
    (answer.problem().1, answer.paths())
}

fn got_line(line: &Value) -> Got {
    let Some(error) = line.get("error") else { return ("ok".to_owned(), Vec::new()) };
    let paths = error["errors"].as_array().map(|errors| errors.iter().map(|one| text(&one["path"])).collect());
    (text(&error["code"]), paths.unwrap_or_default())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

fn ok() -> Got {
    ("ok".to_owned(), Vec::new())
}

fn code(code: &str, paths: &[&str]) -> Got {
    (code.to_owned(), paths.iter().map(ToString::to_string).collect())
}

fn large() -> Value {
    json!({ "text": "x".repeat(1_000) })
}

fn document(name: &str, more: &Value) -> Value {
    let mut document = job(name, "hello");
    for (key, value) in more.as_object().unwrap() {
        document[key] = value.clone();
    }
    document
}

/// The ways by which a job is saved. `rota apply`, imports and programs that have
/// Rota inside them save through one of these.
#[derive(Clone, Copy, Debug)]
enum Saving {
    Post,
    Put,
    Patch,
    Bulk,
    Engine,
}

impl Saving {
    const ALL: [Self; 5] = [Self::Post, Self::Put, Self::Patch, Self::Bulk, Self::Engine];

    async fn save(self, bed: &Bed, name: &str, more: &Value) -> Got {
        let document = document(name, more);
        match self {
            Self::Post => got(&bed.post("/jobs", document).await),
            Self::Put => got(&bed.put(&format!("/jobs/{name}"), document).await),
            Self::Patch => {
                bed.job(name, "hello").await;
                got(&bed.send_json(Method::PATCH, &format!("/jobs/{name}"), more, &[]).await)
            }
            Self::Bulk => {
                let answer = bed
                    .send(Method::POST, "/bulk/jobs", &[("content-type", "application/x-ndjson")], document.to_string())
                    .await;
                got_line(&answer.lines()[0])
            }
            Self::Engine => {
                let document = JobDocument::from_value(document).unwrap();
                let tenant = tenant(&bed.engine).await;
                let saved = bed.engine.save_jobs(tenant, &[&document], None, Expect::Anything).await.unwrap();
                match saved.into_iter().next().unwrap() {
                    Ok(_) => ok(),
                    Err(SaveError::OverQuota { refusals, .. }) => {
                        let paths = refusals.into_iter().map(|refusal| refusal.path).collect();
                        ("quota_exceeded".to_owned(), paths)
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

async fn tenant(engine: &Engine) -> TenantId {
    engine.store().tenants().await.unwrap()[0].id
}

#[tokio::test]
async fn every_way_of_saving_a_job_is_held_to_every_quota() {
    let every = |span: &str| json!({ "schedules": [{ "name": "s", "every": span }] });
    let three = json!({ "schedules": [
        { "name": "a", "every": "1h" }, { "name": "b", "every": "1h" }, { "name": "c", "every": "1h" },
    ] });
    for (quotas, more, path) in [
        (json!({ "best_priority": 8 }), json!({ "priority": 7 }), "priority"),
        (json!({ "max_retries": 3 }), json!({ "retry": { "max_attempts": 5 } }), "retry.max_attempts"),
        (json!({ "dead_letters": false }), json!({ "dead": { "redrive_after": "1h" } }), "dead"),
        (json!({ "shortest_interval": "1m" }), every("30s"), "schedules[0].every"),
        (
            json!({ "shortest_interval": "1m" }),
            json!({ "schedules": [{ "name": "s", "cron": "*/20 * * * * *" }] }),
            "schedules[0].cron",
        ),
        (
            json!({ "shortest_interval": "1m" }),
            json!({ "schedules": [{ "name": "s", "after_finish": "30s" }] }),
            "schedules[0].after_finish",
        ),
        (
            json!({ "payload_bytes": "1KB" }),
            json!({ "schedules": [{ "name": "s", "every": "1h", "payload": large() }] }),
            "schedules[0].payload",
        ),
        (json!({ "payload_bytes": "1KB" }), json!({ "input": { "default": large() } }), "input.default"),
        (json!({ "active_schedules": 2 }), three, "schedules"),
    ] {
        let bed = Bed::new().await;
        for way in Saving::ALL {
            let name = format!("{way:?}").to_lowercase();
            let refused = format!("{name}-refused");
            bed.limit(quotas.clone()).await;
            let checked = bed.post("/check", document(&refused, &more)).await;
            assert_eq!((checked.problem().1.as_str(), checked.paths()), ("quota_exceeded", vec![path.to_owned()]));
            let answer = way.save(&bed, &refused, &more).await;
            assert_eq!(answer, code("quota_exceeded", &[path]), "{way:?} {quotas}");
            let stored = bed.get(&format!("/jobs/{refused}")).await;
            match way {
                Saving::Patch => assert_eq!(stored.ok()["version"], 1, "{quotas}"),
                _ => assert_eq!(stored.status, 404, "{way:?} {quotas}: nothing was saved"),
            }
            bed.limit(json!({})).await;
            assert_eq!(way.save(&bed, &name, &more).await, ok(), "{way:?} {quotas}");
        }
    }
}

/// A tenant at its limit may still change what it has.
#[tokio::test]
async fn schedules_are_counted_as_they_come_and_go() {
    let bed = Bed::new().await;
    bed.limit(json!({ "active_schedules": 2 })).await;
    let with = |count: usize, span: &str| {
        let one = |n| json!({ "name": format!("s{n}"), "every": span });
        json!({ "schedules": (0..count).map(one).collect::<Vec<_>>() })
    };
    assert_eq!(Saving::Put.save(&bed, "a", &with(2, "1h")).await, ok());
    assert_eq!(Saving::Put.save(&bed, "a", &with(2, "2h")).await, ok());
    assert_eq!(Saving::Put.save(&bed, "b", &with(1, "1h")).await, code("quota_exceeded", &["schedules"]));
    assert_eq!(Saving::Put.save(&bed, "a", &with(1, "2h")).await, ok());
    assert_eq!(Saving::Put.save(&bed, "b", &with(1, "1h")).await, ok());
    let off = json!({ "schedules": [{ "name": "s", "every": "1h", "enabled": false }] });
    assert_eq!(Saving::Put.save(&bed, "c", &off).await, ok(), "what is not enabled does not count");
    let detail = bed.put("/jobs/d", document("d", &with(1, "1h"))).await.json()["detail"].to_string();
    assert!(detail.contains("the tenant's quota active_schedules is 2"), "{detail}");
}

/// A store in a file, so that somebody can write into its inbox in a transaction of
/// their own.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("rota-quotas-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("rota.db")
    }

    async fn bed(&self) -> Bed {
        let store = SqliteStore::open(&self.file(), rota_store::sqlite::Options::default()).await.unwrap();
        Bed::on(Arc::new(store)).await
    }

    fn put_inbox(&self, bodies: &[Value]) {
        let mut connection = rusqlite::Connection::open(self.file()).unwrap();
        connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
        let own = connection.transaction().unwrap();
        for body in bodies {
            own.execute("INSERT INTO inbox (at, body) VALUES (0, ?1)", [body.to_string()]).unwrap();
        }
        own.commit().unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// The ways by which somebody makes runs. All but the inbox wait for an answer: what
/// is over the rate there is made for later, and told by what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Making {
    Trigger,
    Bulk,
    Engine,
    Retry,
    Redrive,
    Inbox,
}

impl Making {
    const ALL: [Self; 6] = [Self::Trigger, Self::Bulk, Self::Engine, Self::Retry, Self::Redrive, Self::Inbox];

    /// Makes runs of the job `mail`, or again such as have ended.
    async fn make(self, bed: &Bed, place: &Place, request: &Value, ended: &[String]) -> Vec<Got> {
        match self {
            Self::Inbox => {
                let mut events = bed.engine.subscribe();
                let mut body = json!({ "tenant": "default", "job": "mail" });
                body["payload"] = request["payload"].clone();
                place.put_inbox(&vec![body; ended.len()]);
                bed.engine.node().hints.wake(rota_core::ports::Topic::Inbox);
                let mut all = Vec::new();
                while all.len() < ended.len() {
                    match events.recv().await.unwrap() {
                        Event::RunMade { status: Status::Scheduled, .. } => all.push(later()),
                        Event::RunMade { .. } => all.push(ok()),
                        Event::RequestRefused { why, .. } => {
                            all.push(code("quota_exceeded", &[why.split(':').next().unwrap()]));
                        }
                        _ => {}
                    }
                }
                all
            }
            Self::Redrive => {
                let filter = json!({ "filter": { "status": ["failed"] }, "again": true });
                let answer = bed.post("/bulk/redrive", filter).await;
                must_say_when(&answer);
                if !answer.status.is_success() {
                    return vec![got(&answer); ended.len()];
                }
                // It stops where the rate is used up, and says that there is more.
                let done = answer.json();
                let count = |field: &str| done[field].as_u64().unwrap() as usize;
                let rest = if done["more"] == true { code("too_many_requests", &[""]) } else { left() };
                let rest = std::iter::repeat_n(rest, count("matched") - count("done"));
                std::iter::repeat_n(ok(), count("done")).chain(rest).collect()
            }
            Self::Trigger => {
                let mut all = Vec::new();
                for _ in ended {
                    let answer = bed.post("/jobs/mail/trigger", request.clone()).await;
                    must_say_when(&answer);
                    all.push(got(&answer));
                }
                all
            }
            Self::Bulk => {
                let mut line = request.clone();
                line["job"] = json!("mail");
                let lines = format!("{line}\n").repeat(ended.len());
                bed.send(Method::POST, "/bulk/runs", &[("content-type", "application/x-ndjson")], lines)
                    .await
                    .lines()
                    .iter()
                    .map(got_line)
                    .collect()
            }
            Self::Engine => {
                let mut ask = RunAsk::of(tenant(&bed.engine).await, JobRef::Name("mail".to_owned()));
                ask.payload = request.get("payload").cloned();
                ask.priority = request.get("priority").map(|level| serde_json::from_value(level.clone()).unwrap());
                let made = bed.engine.enqueue(vec![ask; ended.len()]).await.unwrap();
                made.into_iter().map(got_made).collect()
            }
            Self::Retry => {
                let mut all = Vec::new();
                for run in ended {
                    let answer = bed.post(&format!("/runs/{run}/retry"), json!({ "again": true })).await;
                    must_say_when(&answer);
                    all.push(got(&answer));
                }
                all
            }
        }
    }
}

fn later() -> Got {
    code("later", &[])
}

/// Of many at once, one that was left as it was.
fn left() -> Got {
    code("left", &[])
}

fn must_say_when(answer: &Answer) {
    let late = answer.status == 429;
    assert_eq!(answer.headers.contains_key(header::RETRY_AFTER), late, "{}", answer.text);
    assert!(!late || answer.text.contains("runs_per_minute"), "{}", answer.text);
}

fn got_made(made: Made) -> Got {
    match made {
        Made::Run { .. } => ok(),
        Made::OverQuota(refusal) => {
            let code = if refusal.retry_at.is_some() { "too_many_requests" } else { "quota_exceeded" };
            (code.to_owned(), vec![refusal.path])
        }
        other => panic!("{other:?}"),
    }
}

/// Three runs that ended, made while nothing was limited.
async fn three_ended(bed: &Bed, request: &Value) -> Vec<String> {
    bed.limit(json!({})).await;
    bed.job("mail", "fail").await;
    let mut ended = Vec::new();
    for _ in 0..3 {
        let run = bed.trigger("mail", request.clone()).await;
        bed.ended(&run).await;
        ended.push(run);
    }
    ended
}

#[tokio::test]
async fn every_way_of_making_runs_is_held_to_every_quota() {
    let over = || code("too_many_requests", &[""]);
    let refused = |path: &str| vec![code("quota_exceeded", &[path]); 3];
    for (quotas, request, expected) in [
        (json!({ "runs_per_minute": 1 }), json!({}), vec![ok(), ok(), over()]),
        (json!({ "payload_bytes": "1KB" }), json!({ "payload": large() }), refused("payload")),
        (json!({ "best_priority": 8 }), json!({ "priority": 7 }), refused("priority")),
    ] {
        for way in Making::ALL {
            let place = Place::new();
            let bed = place.bed().await;
            let ended = three_ended(&bed, &request).await;
            bed.limit(quotas.clone()).await;
            let answers = way.make(&bed, &place, &request, &ended).await;
            if way == Making::Inbox && answers.contains(&later()) {
                assert_eq!(answers, [ok(), ok(), later()], "{quotas}");
                one_waits_for_the_quota(&bed, way).await;
                continue;
            }
            let made_again = matches!(way, Making::Retry | Making::Redrive);
            if request.get("priority").is_some() && (made_again || way == Making::Inbox) {
                // Nobody wrote it now: it is made with the best that is allowed.
                assert_eq!(answers, vec![ok(); 3], "{way:?} {quotas}");
                let runs = bed.get("/runs?limit=3").await.ok();
                assert!(runs["items"].as_array().unwrap().iter().all(|run| run["priority"] == 8), "{runs}");
                continue;
            }
            let mut expected = expected.clone();
            if way == Making::Redrive {
                expected.iter_mut().filter(|got| got.0 == "quota_exceeded").for_each(|got| *got = left());
            }
            assert_eq!(answers, expected, "{way:?} {quotas}");
        }
    }
}

#[tokio::test]
async fn a_redrive_by_filter_stops_where_the_rate_is_used_up() {
    let bed = Bed::new().await;
    three_ended(&bed, &json!({})).await;
    bed.limit(json!({ "runs_per_minute": 1 })).await;
    let filter = json!({ "filter": { "status": ["failed"] } });
    let done = bed.post("/bulk/redrive", filter.clone()).await.ok();
    assert_eq!((&done["done"], &done["more"]), (&json!(2), &json!(true)));
    let answer = bed.post("/bulk/redrive", filter).await;
    assert_eq!(answer.problem(), (429, "too_many_requests".to_owned()));
    must_say_when(&answer);
}

/// Waits until so many events were told.
async fn wait_for(events: &mut tokio::sync::broadcast::Receiver<Event>, count: usize, wanted: impl Fn(&Event) -> bool) {
    for _ in 0..count {
        loop {
            let event = events.recv().await.unwrap();
            if wanted(&event) {
                break;
            }
        }
    }
}

/// The one run that waits for later, and that it says why.
async fn one_waits_for_the_quota(bed: &Bed, of: impl Debug) {
    let waiting = bed.get("/runs?status=scheduled").await.ok();
    let waiting = waiting["items"].as_array().unwrap();
    assert_eq!(waiting.len(), 1, "{of:?}: {waiting:?}");
    let why = bed.get(&format!("/runs/{}/why", text(&waiting[0]["id"]))).await.ok();
    let reason = &why["reasons"][0];
    assert_eq!((&reason["code"], &reason["data"]["limit"]), (&json!("quota"), &json!(1)), "{why}");
    assert_eq!(reason["data"]["quota"], "runs_per_minute", "{why}");
}

#[tokio::test]
async fn a_schedule_over_the_rate_fires_later_and_says_why() {
    let bed = Bed::new().await;
    bed.limit(json!({ "runs_per_minute": 1 })).await;
    let mut events = bed.engine.subscribe();
    let one = |n| json!({ "name": format!("s{n}"), "at": "2026-01-01T00:00:00Z", "catch_up": { "window": "9y" } });
    bed.put("/jobs/mail", document("mail", &json!({ "schedules": [one(0), one(1), one(2)] }))).await.ok();
    wait_for(&mut events, 2, |event| matches!(event, Event::ScheduleFired { .. })).await;
    let schedules = bed.get("/jobs/mail/schedules").await.ok();
    let mut codes = Vec::new();
    for schedule in schedules["items"].as_array().unwrap() {
        let why = bed.get(&format!("/schedules/{}/why", schedule["id"])).await.ok();
        codes.push(text(&why["reasons"][0]["code"]));
    }
    codes.sort();
    assert_eq!(codes, ["over", "over", "quota"]);
}

/// What a caller writes beside its request is its own, and speaks for nobody else.
#[tokio::test]
async fn a_caller_cannot_make_a_run_look_delayed_by_a_quota() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let at = "2100-01-01T00:00:00Z";
    let forged = json!({ "quota": { "name": "runs_per_minute", "limit": 1, "until": at }, "delay": { "until": at } });
    let run = bed.trigger("mail", json!({ "run_at": at, "metadata": forged })).await;
    let why = bed.get(&format!("/runs/{run}/why")).await.ok();
    assert_eq!(why["reasons"][0]["code"], "not_yet", "{why}");
    assert_eq!(bed.get(&format!("/runs/{run}")).await.ok()["trigger"]["metadata"], forged, "it is kept as it was");
}

#[tokio::test]
async fn a_backfill_over_the_rate_is_made_for_later() {
    let bed = Bed::new().await;
    bed.limit(json!({ "runs_per_minute": 1 })).await;
    let daily = json!({ "schedules": [{ "name": "daily", "cron": "0 0 * * *" }] });
    bed.put("/jobs/mail", document("mail", &daily)).await.ok();
    let schedule = bed.get("/jobs/mail/schedules").await.ok()["items"][0]["id"].clone();
    let range = json!({ "from": "2025-01-01T00:00:00Z", "to": "2025-01-04T00:00:00Z" });
    let done = bed.post(&format!("/schedules/{schedule}/backfill"), range).await.ok();
    assert_eq!(done["runs"], 3);
    one_waits_for_the_quota(&bed, "backfill").await;
}

#[tokio::test]
async fn what_comes_after_others_over_the_rate_is_made_for_later() {
    let bed = Bed::new().await;
    bed.job("load", "hello").await;
    let load = bed.get("/jobs/load").await.ok()["id"].as_i64().unwrap();
    let after = json!({ "triggers": { "after": { "jobs": ["load"] } } });
    for name in ["report", "mail"] {
        bed.put(&format!("/jobs/{name}"), document(name, &after)).await.ok();
    }
    let mut events = bed.engine.subscribe();
    bed.limit(json!({ "runs_per_minute": 1 })).await;
    bed.trigger("load", json!({})).await;
    // The run before them counts as well, so that the second comes late.
    wait_for(&mut events, 2, |event| matches!(event, Event::RunMade { job, .. } if job.0 != load)).await;
    one_waits_for_the_quota(&bed, "after").await;
}

#[tokio::test]
async fn a_tier_without_dead_letters_neither_sees_nor_redrives_them() {
    let bed = Bed::new().await;
    let mut once = job("mail", "die");
    once["retry"] = json!({ "max_attempts": 1 });
    bed.put("/jobs/mail", once).await.ok();
    let run = bed.trigger("mail", json!({})).await;
    assert_eq!(bed.ended(&run).await["status"], "dead");
    assert_eq!(bed.get("/dead-letters").await.ok()["items"].as_array().unwrap().len(), 1);
    bed.limit(json!({ "dead_letters": false })).await;
    let expected = (403, "not_in_tier".to_owned());
    assert_eq!(bed.get("/dead-letters").await.problem(), expected);
    assert_eq!(bed.post(&format!("/runs/{run}/retry"), json!({})).await.problem(), expected);
    for filter in [json!({}), json!({ "status": ["dead"] }), json!({ "status": ["failed", "dead"] })] {
        let answer = bed.post("/bulk/redrive", json!({ "filter": filter })).await;
        assert_eq!(answer.problem(), expected, "{filter}");
    }
    bed.post("/bulk/redrive", json!({ "filter": { "status": ["failed"] } })).await.ok();
    bed.limit(json!({})).await;
    bed.post(&format!("/runs/{run}/retry"), json!({})).await.ok();
}

#[tokio::test]
async fn what_is_older_than_the_tenants_history_is_not_shown() {
    let clock = Arc::new(TestClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
    let store = Arc::new(SqliteStore::memory().unwrap());
    let bed = Bed::of(Engine::builder(store).clock(Arc::clone(&clock) as Arc<dyn rota_core::ports::Clock>)).await;
    bed.job("mail", "hello").await;
    let ended = bed.trigger("mail", json!({})).await;
    bed.ended(&ended).await;
    let waiting = bed.trigger("mail", json!({ "run_at": "2100-01-01T00:00:00Z" })).await;
    clock.advance(Span::secs(2 * 86_400));
    for (quotas, shown) in [(json!({}), 2), (json!({ "history_days": 3 }), 2), (json!({ "history_days": 1 }), 1)] {
        bed.limit(quotas.clone()).await;
        for path in ["/runs", "/jobs/mail/runs"] {
            let runs = bed.get(path).await.ok();
            assert_eq!(runs["items"].as_array().unwrap().len(), shown, "{path} {quotas}");
        }
        let found = bed.get(&format!("/runs/{ended}")).await.status;
        assert_eq!(found, if shown == 2 { 200 } else { 404 }, "{quotas}");
        bed.get(&format!("/runs/{waiting}")).await.ok();
    }
}

/// A tenant that could have as many as it liked would fill the store, and lanes that are for
/// all tenants together.
#[tokio::test]
async fn what_a_tenant_may_have_so_many_of_is_refused_beyond_it() {
    let bed = Bed::new().await;
    bed.limit(json!({ "jobs": 2, "calendars": 1, "tokens": 1, "users": 1, "workers": 1 })).await;
    let none = json!({});
    assert_eq!(Saving::Put.save(&bed, "a", &none).await, ok());
    assert_eq!(Saving::Put.save(&bed, "b", &none).await, ok());
    for way in [Saving::Post, Saving::Put, Saving::Bulk, Saving::Engine] {
        assert_eq!(way.save(&bed, "c", &none).await, code("quota_exceeded", &[""]), "{way:?}");
    }
    assert_eq!(Saving::Put.save(&bed, "a", &json!({ "priority": 7 })).await, ok(), "it may change what it has");
    bed.send_json(Method::DELETE, "/jobs/b", &Value::Null, &[]).await;
    assert_eq!(Saving::Put.save(&bed, "c", &none).await, ok());

    let calendar = |name: &str| json!({ "name": name, "mode": "exclude", "dates": ["2030-12-25"] });
    bed.put("/calendars/one", calendar("one")).await.ok();
    bed.put("/calendars/one", calendar("one")).await.ok();
    assert_eq!(bed.put("/calendars/two", calendar("two")).await.problem(), (422, "limit_reached".to_owned()));

    let token = json!({ "name": "ci", "role": "viewer" });
    let made = bed.post("/tokens", token.clone()).await.ok();
    let refused = bed.post("/tokens", token.clone()).await;
    assert_eq!(refused.problem(), (422, "quota_exceeded".to_owned()));
    assert!(refused.text.contains("the tenant's quota tokens is 1"), "{}", refused.text);
    bed.send_json(Method::DELETE, &format!("/tokens/{}", text(&made["token"]["id"])), &Value::Null, &[]).await;
    bed.post("/tokens", token).await.ok();

    let user = |name: &str| json!({ "name": name, "role": "viewer", "password": "correct horse battery" });
    bed.post("/users", user("ann")).await.ok();
    assert_eq!(bed.post("/users", user("bob")).await.problem(), (422, "quota_exceeded".to_owned()));
    bed.send_json(Method::PATCH, "/users/ann", &json!({ "role": "editor" }), &[]).await.ok();

    let sync = async |last: u8| {
        let worker = json!({ "id": format!("00000000-0000-7000-8000-0000000000{last:02}"), "name": "w", "slots": 1 });
        bed.post("/workers/sync", json!({ "worker": worker, "free": 0 })).await
    };
    sync(1).await.ok();
    sync(1).await.ok();
    assert_eq!(sync(2).await.status, 429);
}

/// Each save keeps a version and an entry in the audit log, and a lane stays for ever.
#[tokio::test]
async fn what_a_day_allows_is_refused_beyond_it_and_comes_back() {
    let bed = Bed::new().await;
    // Two pieces a day, in bursts of four.
    bed.limit(json!({ "definition_bytes_per_day": "2KiB" })).await;
    let with = |priority: u8| json!({ "priority": priority });
    for priority in 1..=4 {
        assert_eq!(Saving::Put.save(&bed, "a", &with(priority)).await, ok());
    }
    assert_eq!(Saving::Put.save(&bed, "a", &with(4)).await, ok(), "what is not changed costs nothing");
    for way in [Saving::Post, Saving::Put, Saving::Bulk] {
        assert_eq!(way.save(&bed, "b", &with(5)).await, code("too_many_requests", &[""]), "{way:?}");
    }
    let refused = bed.put("/jobs/a", document("a", &with(5))).await;
    assert!(refused.text.contains("definition_bytes_per_day is 2048, in bursts of up to 4096"), "{}", refused.text);
    let wait: u64 = refused.headers[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!((40_000..=43_200).contains(&wait), "{wait}");
    let checked = bed.post("/check", document("b", &with(5))).await;
    assert_eq!(checked.problem(), (429, "too_many_requests".to_owned()), "a dry run is refused as the save is");
    let calendar = json!({ "name": "one", "mode": "exclude", "dates": ["2030-12-25"] });
    assert_eq!(bed.put("/calendars/one", calendar).await.problem().1, "too_many_requests");

    let bed = Bed::new().await;
    bed.limit(json!({ "new_lanes_per_day": 1 })).await;
    let on = |queue: &str| json!({ "queue": queue });
    for (name, queue) in [("a", "one"), ("b", "two"), ("c", "one")] {
        assert_eq!(Saving::Put.save(&bed, name, &on(queue)).await, ok(), "{queue}");
    }
    let refused = bed.put("/jobs/d", document("d", &on("three"))).await;
    assert_eq!(refused.problem(), (429, "too_many_requests".to_owned()));
    assert!(refused.text.contains("new_lanes_per_day is 1, in bursts of up to 2"), "{}", refused.text);
    assert_eq!(Saving::Put.save(&bed, "d", &on("two")).await, ok(), "a lane that is there costs nothing");
}

#[tokio::test]
async fn a_tenants_own_rate_of_requests_counts() {
    let bed = Bed::new().await;
    bed.limit(json!({ "api_requests_per_s": 1 })).await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(bed.get("/jobs").await);
    }
    let late = answers.iter().find(|answer| answer.status == 429).expect("three at once are one too many");
    assert!(late.json()["detail"].as_str().unwrap().contains("api_requests_per_s is 1"), "{}", late.text);
}

#[tokio::test]
async fn quotas_that_cannot_be_read_are_refused_by_their_names() {
    let bed = Bed::new().await;
    let quotas = json!({ "runs_per_minute": 0, "retries": 3 });
    let answer = bed.put("/tenants/other", json!({ "tier": "free", "quotas": quotas })).await;
    assert_eq!(answer.problem(), (422, "bad_document".to_owned()));
    assert_eq!(answer.paths(), ["quotas.retries", "quotas.runs_per_minute"]);
    let found = bed.get("/tenants/other").await;
    assert_eq!(found.problem(), (404, "not_found".to_owned()), "nothing was saved");
}

/// What is sent again because an answer was lost makes no run: it must not be told to
/// come back later, or to come back at all.
#[tokio::test]
async fn a_request_that_is_sent_again_is_answered_whatever_the_rate() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    bed.limit(json!({ "runs_per_minute": 1 })).await;
    let trigger = async |key: &str, payload: i64| {
        let body = json!({ "payload": payload });
        bed.send_json(Method::POST, "/jobs/mail/trigger", &body, &[("idempotency-key", key)]).await
    };
    let first = trigger("a", 1).await.ok();
    trigger("b", 1).await.ok();
    assert_eq!(trigger("c", 1).await.problem(), (429, "too_many_requests".to_owned()));
    assert_eq!(trigger("a", 1).await.ok(), first);
    assert_eq!(trigger("a", 2).await.status, 422, "another body under the same key");
    assert_eq!(bed.get("/runs").await.ok()["items"].as_array().unwrap().len(), 2);
}

/// How many requests of a node's callers pass, of so many at once.
async fn passed(bed: &Bed, requests: usize) -> usize {
    let mut passed = 0;
    for _ in 0..requests {
        let answer = bed.get("/jobs").await;
        assert!(answer.status.is_success() || answer.status == 429, "{}", answer.text);
        passed += usize::from(answer.status.is_success());
    }
    passed
}

/// Behind a balancer over two nodes a tenant must not have twice its rate.
#[tokio::test]
async fn two_nodes_together_allow_the_requests_of_one() {
    let clock = Arc::new(TestClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
    let store = Arc::new(SqliteStore::memory().unwrap());
    let node = async || {
        let store = Arc::clone(&store) as Arc<dyn rota_core::store::Store>;
        let builder = Engine::builder(store).clock(Arc::clone(&clock) as Arc<dyn rota_core::ports::Clock>);
        Bed::with(builder, Options::default()).await
    };
    let nodes = [node().await, node().await];
    nodes[0].limit(json!({ "api_requests_per_s": 8 })).await;
    let both = async || {
        let mut all = 0;
        for n in 0..30 {
            all += passed(&nodes[n % 2], 1).await;
        }
        all
    };
    assert_eq!(both().await, 16, "a burst of twice the rate");
    for second in 1..=3 {
        clock.advance(Span::secs(1));
        assert_eq!(both().await, 8, "in second {second}");
    }
    clock.advance(Span::secs(60));
    assert_eq!(passed(&nodes[1], 30).await, 16, "one node may have all of it");
}

/// An installation's own word on a tier holds wherever the tier's does.
#[tokio::test]
async fn what_an_installation_says_of_a_tier_counts() {
    let own = json!({ "best_priority": 2, "api_requests_per_s": 1_000, "dead_letters": true });
    let tiers = Tiers::default().with(Tier::Free, &own).unwrap();
    let store = Arc::new(SqliteStore::memory().unwrap());
    let bed = Bed::with(Engine::builder(store), Options { sole: true, tiers, ..Options::default() }).await;
    bed.put("/tenants/default", json!({ "tier": "free" })).await.ok();
    assert_eq!(Saving::Put.save(&bed, "a", &json!({ "priority": 2 })).await, ok());
    assert_eq!(Saving::Put.save(&bed, "b", &json!({ "priority": 1 })).await, code("quota_exceeded", &["priority"]));
    let often = json!({ "schedules": [{ "name": "s", "every": "30s" }] });
    let refused = code("quota_exceeded", &["schedules[0].every"]);
    assert_eq!(Saving::Put.save(&bed, "c", &often).await, refused, "the rest is as in the table");
    bed.get("/dead-letters").await.ok();
    bed.put("/tenants/default", json!({ "tier": "free", "quotas": { "best_priority": 9 } })).await.ok();
    assert_eq!(Saving::Put.save(&bed, "d", &json!({ "priority": 8 })).await, code("quota_exceeded", &["priority"]));
}
