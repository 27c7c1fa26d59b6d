//! Jobs: saved, versioned, triggered, deleted.

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use serde_json::{Value, json};

use crate::bed::{Bed, job};

/// Whoever saves the thousandth schedule for one second is told, and how to step aside;
/// it is saved all the same.
#[tokio::test]
async fn a_crowded_second_is_a_warning_on_save() {
    let store = std::sync::Arc::new(rota_store::sqlite::SqliteStore::memory().unwrap());
    let options = rota_engine::Options { sole: true, hot_second: 3, ..rota_engine::Options::default() };
    let bed = Bed::with(rota_engine::Engine::builder(store), options).await;
    let save = async |name: &str, cron: &str| {
        let mut document = job(name, "hello");
        document["schedules"] = json!([{ "name": "yearly", "cron": cron }]);
        bed.put(&format!("/jobs/{name}"), document).await.ok()
    };
    for name in ["a", "b"] {
        let saved = save(name, "0 0 1 1 *").await;
        assert_eq!((saved.get("hot_second"), &saved["changed"]), (None, &json!(true)), "{saved}");
    }
    let third = save("c", "0 0 1 1 *").await;
    assert_eq!(third["hot_second"]["schedules"], 3, "{third}");
    assert!(third["hot_second"]["at"].as_str().unwrap().ends_with("-01-01T00:00:00Z"), "{third}");
    let warning = &third["warnings"][0];
    assert_eq!((&warning["path"], &warning["code"]), (&json!("schedules"), &json!("hot_second")));
    assert!(warning["message"].as_str().unwrap().contains("spread them with `H`"), "{warning}");
    assert_eq!(bed.get("/jobs/c").await.ok()["version"], 1, "it was saved");
    assert_eq!(save("d", "30 0 1 1 *").await.get("hot_second"), None, "another second");
}

/// Whoever writes a secret into a document is told before it is in every version of it.
#[tokio::test]
async fn a_secret_in_the_document_is_a_warning_on_check_and_on_save() {
    let bed = Bed::new().await;
    let http = json!({ "url": "https://ann:secret@a.example/", "headers": { "Authorization": "Bearer abc" } });
    let document = json!({ "name": "call", "steps": [{ "id": "only", "http": http }] });
    let checked = bed.post("/check", document.clone()).await.ok();
    let saved = bed.post("/jobs", document).await.ok();
    for answer in [checked, saved] {
        let warnings = answer["warnings"].as_array().unwrap();
        let found: Vec<(&str, &str)> = warnings
            .iter()
            .map(|warning| (warning["path"].as_str().unwrap(), warning["code"].as_str().unwrap()))
            .collect();
        let code = "secret_in_document";
        assert_eq!(found, [("steps[0].http.url", code), ("steps[0].http.headers.Authorization", code)]);
    }
}

/// A page of another site can send a body that says nothing of itself without asking.
#[tokio::test]
async fn a_body_that_does_not_say_what_it_is_is_refused() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let document = job("other", "hello").to_string();
    for (method, path, body) in [
        (Method::POST, "/jobs", document.as_str()),
        (Method::PUT, "/jobs/other", document.as_str()),
        (Method::POST, "/jobs/mail/trigger", "{}"),
        (Method::POST, "/bulk/cancel", "{}"),
    ] {
        let length = body.len().to_string();
        for kind in [&[][..], &[("content-type", "")], &[("content-type", "text/plain")]] {
            let headers = [kind, &[("content-length", length.as_str())]].concat();
            let answer = bed.send(method.clone(), path, &headers, body.to_owned()).await;
            assert_eq!(answer.problem(), (415, "unsupported_media_type".to_owned()), "{path} {kind:?}");
        }
    }
    bed.send(Method::POST, "/jobs/mail/trigger", &[], Body::empty()).await.ok();
}

/// What was meant for a day that has passed is saved, and not in silence.
#[tokio::test]
async fn a_schedule_with_nothing_left_to_do_is_a_warning() {
    let bed = Bed::new().await;
    let mut document = job("late", "hello");
    document["schedules"] = json!([
        { "name": "daily", "cron": "0 9 * * *" },
        { "name": "past", "at": "2001-01-01T00:00:00Z" },
        { "name": "ended", "every": "1h", "ends_at": "2001-01-01T00:00:00Z" },
        { "name": "ended-too", "after_finish": "1h", "ends_at": "2001-01-01T00:00:00Z" },
        { "name": "off", "at": "2001-01-01T00:00:00Z", "enabled": false },
        { "name": "years", "cron": "0 0 9 1 1 ? 2001" },
    ]);
    let checked = bed.post("/check", document.clone()).await.ok();
    let saved = bed.post("/jobs", document).await.ok();
    for answer in [checked, saved] {
        let warnings = answer["warnings"].as_array().unwrap();
        assert!(warnings.iter().all(|warning| warning["code"] == "never_fires"), "{answer}");
        let places: Vec<&str> = warnings.iter().map(|warning| warning["path"].as_str().unwrap()).collect();
        assert_eq!(places, ["schedules[1]", "schedules[2]", "schedules[3]", "schedules[5]"]);
    }
}

#[tokio::test]
async fn a_job_is_created_read_and_listed() {
    let bed = Bed::new().await;
    let answer = bed.post("/jobs", job("mail", "hello")).await;
    assert_eq!((answer.status, answer.headers["etag"].to_str().unwrap()), (StatusCode::CREATED, "\"1\""));
    let saved = answer.ok();
    let by_name = bed.get("/jobs/mail").await.ok();
    let by_id = bed.get(&format!("/jobs/{}", saved["id"])).await.ok();
    assert_eq!(by_name, by_id);
    assert_eq!(
        (&by_name["name"], &by_name["version"], &by_name["queue"]),
        (&json!("mail"), &json!(1), &json!("default"))
    );
    assert_eq!(bed.get("/jobs?prefix=ma").await.ok()["items"][0], by_name);
    assert_eq!(bed.get("/jobs?prefix=xx").await.ok()["items"], json!([]));
    let again = bed.post("/jobs", job("mail", "fail")).await;
    assert_eq!(again.problem(), (409, "conflict".to_owned()));
    assert_eq!(bed.get("/jobs/mail").await.ok(), by_name, "nothing was changed");
}

/// A job named `1` would stand behind job number 1: whoever deletes the one hits the other.
#[tokio::test]
async fn a_name_that_reads_as_a_number_is_refused() {
    let bed = Bed::new().await;
    let answer = bed.post("/jobs", job("1", "hello")).await;
    assert_eq!((answer.problem().0, answer.paths()), (422, vec!["name".to_owned()]));
    assert!(answer.text.contains("reads as a number"), "{}", answer.text);
    assert_eq!(bed.put("/tenants/+1", json!({ "tier": "free" })).await.status, StatusCode::BAD_REQUEST);
}

/// One number has one spelling: `+1` and `01` are names, and nobody has them.
#[tokio::test]
async fn only_plain_digits_are_read_as_a_number() {
    let bed = Bed::new().await;
    let id = bed.job("mail", "hello").await["id"].to_string();
    assert_eq!(bed.get(&format!("/jobs/{id}")).await.ok()["name"], "mail");
    for spelling in [format!("+{id}"), format!("%20{id}"), format!("{id}%20"), format!("0{id}"), format!("-{id}")] {
        assert_eq!(bed.get(&format!("/jobs/{spelling}")).await.problem().0, 404, "{spelling}");
        assert_eq!(
            bed.get(&format!("/schedules?job={}", spelling.replace('+', "%2B"))).await.problem().0,
            404,
            "{spelling}"
        );
    }
    let tenant =
        async |name: &str| bed.send(Method::GET, "/jobs", &[("x-tenant-id", name)], Body::empty()).await.status;
    assert_eq!(tenant("1").await, StatusCode::OK);
    for spelling in ["+1", "01", "-1"] {
        assert_eq!(tenant(spelling).await, StatusCode::NOT_FOUND, "{spelling}");
    }
}

/// A job that was named so before such names were refused can still be read, triggered
/// and deleted by its number.
#[tokio::test]
async fn a_job_that_has_a_number_for_a_name_is_reached_by_its_own_number() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let tenant = bed.engine.store().tenants().await.unwrap()[0].id;
    let document: rota_core::job::JobDocument = serde_json::from_value(job("1", "hello")).unwrap();
    let saved = bed.engine.save_job(tenant, &document, None, rota_core::store::Expect::Anything).await.unwrap();
    let path = format!("/jobs/{}", saved.job);
    assert_eq!(bed.get(&path).await.ok()["name"], "1");
    assert_eq!(bed.get("/jobs/1").await.ok()["name"], "mail");
    let run = bed.trigger(&saved.job.to_string(), json!({})).await;
    assert_eq!(bed.ended(&run).await["status"], "succeeded");
    bed.send(Method::DELETE, &path, &[], Body::empty()).await.ok();
    assert_eq!(bed.get("/jobs").await.ok()["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_document_in_yaml_is_the_same_document() {
    let bed = Bed::new().await;
    let yaml = "name: mail\nsteps:\n  - id: only\n    handler: { name: hello }\n";
    bed.send(Method::PUT, "/jobs/mail", &[("content-type", "application/yaml")], yaml).await.ok();
    let saved = bed.put("/jobs/mail", job("mail", "hello")).await.ok();
    assert_eq!((&saved["version"], &saved["changed"]), (&json!(1), &json!(false)));
}

/// One answer is enough to repair a document.
#[tokio::test]
async fn every_place_that_is_wrong_is_named() {
    let bed = Bed::new().await;
    let wrong = json!({
        "name": "mail",
        "priority": 11,
        "schedules": [{ "name": "a", "cron": "61 * * * *" }, { "name": "b", "cron": "0 0 30 2 *" }],
        "steps": [{ "id": "only", "handler": { "name": "hello" }, "needs": ["nobody"] }],
    });
    let answer = bed.post("/jobs", wrong).await;
    assert_eq!(answer.problem(), (422, "bad_document".to_owned()));
    let paths = answer.paths();
    for path in ["priority", "schedules[0].cron", "schedules[1].cron", "steps[0].needs[0]"] {
        assert!(paths.iter().any(|found| found == path), "{path} is not in {paths:?}");
    }
    let unknown = bed.post("/jobs", json!({ "name": "mail", "stepps": [] })).await;
    assert_eq!(unknown.problem().0, 422);
    assert_eq!(bed.get("/jobs/mail").await.status, StatusCode::NOT_FOUND);
}

/// The second of two editors must not undo what the first one did.
#[tokio::test]
async fn a_save_over_a_version_that_is_gone_is_refused() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let over = async |tag: &str, handler: &str| {
        bed.send_json(Method::PUT, "/jobs/mail", &job("mail", handler), &[("if-match", tag)]).await
    };
    assert_eq!(over("\"1\"", "fail").await.ok()["version"], 2);
    let late = over("\"1\"", "hello").await;
    assert_eq!(late.problem(), (412, "precondition_failed".to_owned()));
    assert_eq!(bed.get("/jobs/mail").await.ok()["version"], 2);
    assert_eq!(over("1", "hello").await.problem().0, 400, "a tag is quoted");
    let none = bed.send_json(Method::PUT, "/jobs/mail", &job("mail", "hello"), &[("if-none-match", "*")]).await;
    assert_eq!(none.problem().0, 412);
}

#[tokio::test]
async fn a_patch_changes_what_it_names_and_nothing_else() {
    let bed = Bed::new().await;
    let mut document = job("mail", "hello");
    document["tags"] = json!(["a"]);
    document["timeout"] = json!("10m");
    bed.put("/jobs/mail", document).await.ok();
    let patch = json!({ "timeout": null, "description": "sends mail" });
    let saved = bed.send_json(Method::PATCH, "/jobs/mail", &patch, &[]).await.ok();
    assert_eq!(saved["version"], 2);
    let stored = bed.get("/jobs/mail").await.ok()["document"].clone();
    assert_eq!((&stored["description"], &stored["tags"]), (&json!("sends mail"), &json!(["a"])));
    assert!(stored.get("timeout").is_none(), "{stored}");
    let renamed = bed.send_json(Method::PATCH, "/jobs/mail", &json!({ "name": "other" }), &[]).await;
    assert_eq!((renamed.problem().0, renamed.paths()), (422, vec!["name".to_owned()]));
    let versions = bed.get("/jobs/mail/versions").await.ok();
    assert_eq!(versions.as_array().unwrap().iter().map(|v| v["version"].clone()).collect::<Vec<_>>(), [2, 1]);
}

#[tokio::test]
async fn a_triggered_job_runs_and_counts() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let run =
        bed.trigger("mail", json!({ "payload": { "to": "ann" }, "labels": { "scope": "user" }, "priority": 3 })).await;
    let ended = bed.ended(&run).await;
    assert_eq!((&ended["status"], &ended["output"]), (&json!("succeeded"), &json!({ "said": "hello" })));
    assert_eq!((&ended["payload"], &ended["labels"]), (&json!({ "to": "ann" }), &json!({ "scope": "user" })));
    assert_eq!(
        (&ended["job"]["name"], &ended["trigger"]["source"], &ended["priority"]),
        (&json!("mail"), &json!("manual"), &json!(3))
    );
    let stats = bed.get("/jobs/mail/stats").await.ok();
    assert_eq!((&stats["total"]["runs"], &stats["total"]["success_rate"]), (&json!(1), &json!(1.0)));
    assert_eq!(bed.get("/jobs/mail/runs?status=succeeded").await.ok()["items"][0]["id"], json!(run));
}

#[tokio::test]
async fn a_job_that_is_not_to_be_triggered_is_not() {
    let bed = Bed::new().await;
    let mut document = job("mail", "hello");
    document["triggers"] = json!({ "manual": false });
    bed.put("/jobs/mail", document).await.ok();
    assert_eq!(bed.post("/jobs/mail/trigger", json!({})).await.problem(), (409, "not_manual".to_owned()));
    assert_eq!(bed.post("/jobs/nobody/trigger", json!({})).await.problem().0, 404);
    let line = [("content-type", "application/x-ndjson")];
    let answers = bed.send(Method::POST, "/bulk/runs", &line, "{\"job\": \"mail\"}\n").await.lines();
    assert_eq!(answers[0]["error"]["code"], "not_manual", "{answers:?}");
    assert_eq!(bed.get("/runs").await.ok()["items"], json!([]));
}

/// What nobody executes yet would be saved, look well and do nothing.
#[tokio::test]
async fn a_job_that_cannot_be_executed_yet_is_not_saved() {
    let bed = Bed::new().await;
    let mut document = job("mail", "hello");
    document["notify"] = json!([{ "on": ["dead"], "channel": "ops" }]);
    let answer = bed.put("/jobs/mail", document).await;
    assert_eq!(answer.problem(), (422, "bad_document".to_owned()));
    assert_eq!(answer.json()["errors"][0]["code"], "not_supported_yet");
    assert_eq!(bed.get("/jobs/mail").await.status, StatusCode::NOT_FOUND);
}

/// A double click, fifty times at once: one run, and everybody is told which.
#[tokio::test]
async fn one_key_makes_one_run_however_often_it_is_sent() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let key = [("idempotency-key", "order-17")];
    let body = json!({ "payload": { "order": 17 } });
    let asked = (0..50).map(|_| bed.send_json(Method::POST, "/jobs/mail/trigger", &body, &key));
    let answers = futures_util::future::join_all(asked).await;
    let first = answers[0].json()["id"].clone();
    for answer in &answers {
        assert_eq!((answer.status, &answer.json()["id"]), (StatusCode::ACCEPTED, &first), "{}", answer.text);
    }
    assert_eq!(bed.get("/runs").await.ok()["items"].as_array().unwrap().len(), 1);
    let other = bed.send_json(Method::POST, "/jobs/mail/trigger", &json!({}), &key).await;
    assert_eq!(other.problem(), (422, "key_reused".to_owned()));
    let long = "k".repeat(256);
    let bad = bed.send_json(Method::POST, "/jobs/mail/trigger", &body, &[("idempotency-key", &long)]).await;
    assert_eq!(bad.problem().0, 400);
}

#[tokio::test]
async fn a_job_created_under_a_key_is_created_once() {
    let bed = Bed::new().await;
    let key = [("idempotency-key", "k")];
    let first = bed.send_json(Method::POST, "/jobs", &job("mail", "hello"), &key).await.ok();
    let again = bed.send_json(Method::POST, "/jobs", &job("mail", "hello"), &key).await;
    assert_eq!((again.status, again.json()), (StatusCode::CREATED, first));
    let other = bed.send_json(Method::POST, "/jobs", &job("post", "hello"), &key).await;
    assert_eq!(other.problem(), (422, "key_reused".to_owned()));
}

#[tokio::test]
async fn a_deleted_job_takes_along_what_has_not_started() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let later = bed.trigger("mail", json!({ "run_at": "2100-01-01T00:00:00Z" })).await;
    let deleted = bed.send(Method::DELETE, "/jobs/mail", &[], Body::empty()).await.ok();
    assert_eq!(deleted["cancelled"], 1);
    let run = bed.get(&format!("/runs/{later}")).await.ok();
    assert_eq!((&run["status"], &run["job"]["name"]), (&json!("cancelled"), &json!("mail")));
    assert_eq!(bed.get("/jobs/mail").await.problem().0, 404);
    assert_eq!(bed.send(Method::DELETE, "/jobs/mail", &[], Body::empty()).await.problem().0, 404);
}

#[tokio::test]
async fn a_check_says_what_saving_would_do_and_changes_nothing() {
    let bed = Bed::new().await;
    let mut document = job("mail", "hello");
    document["schedules"] = json!([{ "name": "nightly", "cron": "0 2 * * *", "timezone": "America/New_York" }]);
    let checked = bed.post("/check", document.clone()).await.ok();
    assert_eq!((&checked["changes"], checked["schedules"][0]["next"].as_array().unwrap().len()), (&json!(true), 5));
    assert_eq!(bed.get("/jobs/mail").await.status, StatusCode::NOT_FOUND);
    bed.put("/jobs/mail", document.clone()).await.ok();
    assert_eq!(bed.post("/check", document).await.ok()["changes"], false);
}

/// A check that passes what a save refuses is worse than none.
#[tokio::test]
async fn a_check_refuses_what_a_save_refuses_in_the_same_words() {
    let bed = Bed::new().await;
    bed.job("first", "hello").await;
    let with = |name: &str, more: Value| {
        let mut document = job(name, "hello");
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        document
    };
    let after = |jobs: &[&str]| json!({ "triggers": { "after": { "jobs": jobs } } });
    bed.put("/jobs/second", with("second", after(&["first"]))).await.ok();
    let schema = json!({ "input": { "schema": { "type": "object", "required": ["to"] }, "default": {} } });
    for document in [
        with("third", after(&["nobody"])),
        with("first", after(&["second"])),
        with("third", schema),
        with("third", json!({ "schedules": [{ "cron": "0 0 30 2 *" }] })),
    ] {
        let path = format!("/jobs/{}", document["name"].as_str().unwrap());
        let (checked, saved) = (bed.post("/check", document.clone()).await, bed.put(&path, document.clone()).await);
        assert_eq!((checked.status.as_u16(), checked.paths()), (422, saved.paths()), "{document}");
        assert_eq!(checked.json()["detail"], saved.json()["detail"], "{document}");
    }
    let new = [("if-none-match", "*")];
    let checked = bed.send_json(Method::POST, "/check", &job("first", "hello"), &new).await;
    assert_eq!(checked.problem(), (409, "conflict".to_owned()));
    assert_eq!(bed.post("/jobs", job("first", "hello")).await.json()["detail"], checked.json()["detail"]);
    let old = [("if-match", "\"7\"")];
    let checked = bed.send_json(Method::POST, "/check", &job("first", "hello"), &old).await;
    assert_eq!(checked.problem(), (412, "precondition_failed".to_owned()));
}

/// A payload that its job does not expect fails at the caller, not at night.
#[tokio::test]
async fn a_payload_must_satisfy_the_schema_of_its_job() {
    let bed = Bed::new().await;
    let mut document = job("mail", "hello");
    let schema = json!({ "type": "object", "required": ["to"], "properties": { "to": { "type": "string" } } });
    document["input"] = json!({ "schema": schema });
    bed.put("/jobs/mail", document.clone()).await.ok();
    let refused = bed.post("/jobs/mail/trigger", json!({ "payload": { "to": 7 } })).await;
    assert_eq!(refused.problem(), (422, "bad_payload".to_owned()));
    assert!(refused.json()["detail"].as_str().unwrap().starts_with("payload.to: "), "{}", refused.text);
    assert_eq!(bed.post("/jobs/mail/trigger", json!({})).await.problem().0, 422, "none is not enough either");
    bed.post("/jobs/mail/trigger", json!({ "payload": { "to": "ann" } })).await.ok();
    document["input"]["default"] = json!({});
    document["schedules"] = json!([{ "name": "a", "cron": "@daily", "payload": { "to": [] } }]);
    let own = bed.put("/jobs/mail", document.clone()).await;
    assert_eq!(
        (own.problem().0, own.paths()),
        (422, vec!["input.default".to_owned(), "schedules[0].payload".to_owned()])
    );
    document["input"] = json!({ "schema": { "type": "nonsense" } });
    assert_eq!(bed.put("/jobs/mail", document.clone()).await.paths(), ["input.schema"]);
    document["input"] = json!({ "schema": { "$ref": "https://schemas.example/mail.json" } });
    assert_eq!(bed.put("/jobs/mail", document).await.paths(), ["input.schema"], "nothing is fetched");
}
