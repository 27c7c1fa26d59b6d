//! Schedules: previewed, paused, explained, backfilled.

use serde_json::{Value, json};

use crate::bed::{Bed, job};

async fn scheduled(bed: &Bed, schedule: Value) -> Value {
    let mut document = job("mail", "hello");
    document["schedules"] = json!([schedule]);
    bed.put("/jobs/mail", document).await.ok();
    bed.get("/jobs/mail/schedules").await.ok()["items"][0].clone()
}

#[tokio::test]
async fn a_preview_shows_the_clock_change() {
    let bed = Bed::new().await;
    let schedule =
        scheduled(&bed, json!({ "name": "nightly", "cron": "0 2 * * *", "timezone": "America/New_York" })).await;
    let path = format!("/schedules/{}/preview?n=2&after=2025-03-08T12:00:00Z", schedule["id"]);
    let next = bed.get(&path).await.ok();
    assert_eq!(
        (&next[0]["planned_at"], &next[1]["planned_at"]),
        (&json!("2025-03-09T07:00:00Z"), &json!("2025-03-10T06:00:00Z"))
    );
    assert!(next[0]["note"].as_str().unwrap().contains("does not exist"), "{next}");
    let free = bed
        .post("/preview?n=1&after=2025-03-08T12:00:00Z", json!({ "cron": "0 2 * * *", "timezone": "America/New_York" }))
        .await
        .ok();
    assert_eq!(free[0], next[0]);
    let bad = bed.post("/preview", json!({ "cron": "0 0 30 2 *" })).await;
    assert_eq!((bad.problem().0, bad.paths()), (422, vec!["cron".to_owned()]));
}

#[tokio::test]
async fn a_paused_schedule_says_so() {
    let bed = Bed::new().await;
    let schedule = scheduled(&bed, json!({ "name": "yearly", "cron": "0 0 1 1 *" })).await;
    let path = |what: &str| format!("/schedules/{}/{what}", schedule["id"]);
    let why = bed.get(&path("why")).await.ok();
    assert_eq!((&why["reasons"][0]["code"], &why["reasons"][0]["data"]["at"]), (&json!("next"), &schedule["next_at"]));
    bed.post(&path("pause"), json!({ "note": "freeze" })).await.ok();
    let why = bed.get(&path("why")).await.ok();
    assert_eq!(why["answer"], "the schedule is paused by anonymous: freeze");
    bed.post(&path("resume"), json!({})).await.ok();
    assert_eq!(bed.get(&path("why")).await.ok()["reasons"][0]["code"], "next");
    let past = bed.post(&path("pause"), json!({ "until": "2001-01-01T00:00:00Z" })).await;
    assert_eq!((past.problem().0, past.paths()), (422, vec!["until".to_owned()]));
    bed.post("/jobs/mail/pause", json!({})).await.ok();
    assert_eq!(bed.get(&path("why")).await.ok()["answer"], "its job is paused by anonymous");
}

#[tokio::test]
async fn a_backfill_counts_runs_once_and_again_when_asked() {
    let bed = Bed::new().await;
    let payload = json!({ "day": "{{ schedule.planned_at | date }}" });
    let schedule = scheduled(&bed, json!({ "name": "daily", "cron": "0 0 * * *", "payload": payload })).await;
    let path = format!("/schedules/{}/backfill", schedule["id"]);
    let range = json!({ "from": "2025-01-01T00:00:00Z", "to": "2025-01-11T00:00:00Z" });
    let with = |field: &str| {
        let mut range = range.clone();
        range[field] = json!(true);
        range
    };
    let counted = bed.post(&path, with("dry_run")).await.ok();
    assert_eq!(counted, json!({ "planned": 10, "fired_before": 0, "runs": 10, "dry_run": true }));
    assert_eq!(bed.get("/runs").await.ok()["items"], json!([]), "nothing was made");
    assert_eq!(bed.post(&path, range.clone()).await.ok()["runs"], 10);
    let second = bed.post(&path, range.clone()).await.ok();
    assert_eq!((&second["runs"], &second["fired_before"]), (&json!(0), &json!(10)));
    let counted = bed.post(&path, with("dry_run")).await.ok();
    assert_eq!(counted, json!({ "planned": 10, "fired_before": 10, "runs": 0, "dry_run": true }), "as the act says");
    assert_eq!(bed.post(&path, with("again")).await.ok()["runs"], 10);
    let runs = bed.get("/runs?include=payload").await.ok()["items"].clone();
    assert_eq!(runs.as_array().unwrap().len(), 20);
    let first =
        runs.as_array().unwrap().iter().find(|run| run["trigger"]["planned_at"] == "2025-01-03T00:00:00Z").unwrap();
    assert_eq!((&first["payload"]["day"], &first["trigger"]["source"]), (&json!("2025-01-03"), &json!("backfill")));
    for (body, place) in [
        (json!({ "from": "2025-01-02T00:00:00Z", "to": "2025-01-01T00:00:00Z" }), "from"),
        (json!({ "from": "2025-01-02T00:00:00Z", "to": "2999-01-01T00:00:00Z" }), "to"),
    ] {
        assert_eq!(bed.post(&path, body).await.paths(), [place]);
    }
}

/// What stands in the way of a run stands in the way of counting it.
#[tokio::test]
async fn a_dry_run_of_a_backfill_counts_what_would_be_made() {
    let bed = Bed::new().await;
    let mut document = job("mail", "hello");
    document["schedules"] = json!([{ "name": "daily", "cron": "0 0 * * *", "payload": { "to": "ann" } }]);
    document["unique"] = json!({ "by": ["payload.to"], "within": "1h" });
    document["input"] = json!({ "schema": { "required": ["to"] } });
    bed.put("/jobs/mail", document).await.ok();
    let id = bed.get("/jobs/mail/schedules").await.ok()["items"][0]["id"].clone();
    let path = format!("/schedules/{id}/backfill");
    // More than are made in one transaction.
    let range =
        |dry_run: bool| json!({ "from": "2020-01-01T00:00:00Z", "to": "2023-01-01T00:00:00Z", "dry_run": dry_run });
    let counted = bed.post(&path, range(true)).await.ok();
    assert_eq!(bed.get("/runs").await.ok()["items"], json!([]), "nothing was made");
    let made = bed.post(&path, range(false)).await.ok();
    for field in ["planned", "fired_before", "runs"] {
        assert_eq!(counted[field], made[field], "{field}: {counted} {made}");
    }
    assert_eq!(bed.post(&path, range(true)).await.ok()["runs"], bed.post(&path, range(false)).await.ok()["runs"]);
}

/// What is not made is told of, with the reason.
#[tokio::test]
async fn a_backfill_says_what_it_was_refused() {
    let bed = Bed::new().await;
    let mut document = job("tick", "hello");
    document["input"] = json!({ "schema": { "properties": { "day": { "const": "2025-01-02" } } } });
    let payload = json!({ "day": "{{ schedule.planned_at | date }}" });
    document["schedules"] = json!([{ "name": "daily", "cron": "0 0 * * *", "payload": payload }]);
    bed.put("/jobs/tick", document).await.ok();
    let schedule = bed.get("/jobs/tick/schedules").await.ok()["items"][0]["id"].clone();
    let range = json!({ "from": "2025-01-01T00:00:00Z", "to": "2025-01-04T00:00:00Z" });
    let done = bed.post(&format!("/schedules/{schedule}/backfill"), range).await.ok();
    assert_eq!((&done["planned"], &done["runs"], &done["refused"]), (&json!(3), &json!(1), &json!(2)), "{done}");
    assert!(done["refusal"].as_str().unwrap().contains("payload.day"), "{done}");
}

/// A misspelt calendar would let its schedule fire on every day that it was to keep out.
#[tokio::test]
async fn a_calendar_that_is_not_there_is_refused_with_its_place() {
    let bed = Bed::new().await;
    bed.put("/calendars/weekends", json!({ "name": "weekends", "weekdays": ["SAT", "SUN"] })).await.ok();
    let mut document = job("daily", "hello");
    document["schedules"] = json!([{ "name": "daily", "cron": "0 0 * * *", "calendars": ["weekends", "weekend"] }]);
    for path in ["/jobs", "/check"] {
        let answer = bed.post(path, document.clone()).await;
        assert_eq!(answer.problem().0, 422, "{path}");
        assert_eq!(answer.paths(), ["schedules[0].calendars[1]"], "{path}");
        assert!(
            answer.text.contains("the calendar `weekend` does not exist") && answer.text.contains("first"),
            "{}",
            answer.text
        );
    }
    let answer = bed.post("/preview", document["schedules"][0].clone()).await;
    assert_eq!(answer.paths(), ["calendars[1]"]);
    bed.put("/calendars/weekend", json!({ "name": "weekend", "weekdays": ["SUN"] })).await.ok();
    bed.post("/jobs", document).await.ok();
}

#[tokio::test]
async fn calendars_are_saved_and_keep_days_out() {
    let bed = Bed::new().await;
    let calendar = json!({ "name": "weekends", "mode": "exclude", "weekdays": ["SAT", "SUN"] });
    bed.put("/calendars/weekends", calendar.clone()).await.ok();
    assert_eq!(bed.get("/calendars").await.ok()["items"].as_array().unwrap().len(), 1);
    let schedule = scheduled(&bed, json!({ "name": "daily", "cron": "0 0 * * *", "calendars": ["weekends"] })).await;
    // The 3rd is a Friday.
    let next = bed.get(&format!("/schedules/{}/preview?n=2&after=2025-01-02T12:00:00Z", schedule["id"])).await.ok();
    assert_eq!(
        (&next[0]["planned_at"], &next[1]["planned_at"]),
        (&json!("2025-01-03T00:00:00Z"), &json!("2025-01-06T00:00:00Z"))
    );
    assert_eq!(bed.put("/calendars/other", calendar).await.paths(), ["name"]);
    assert_eq!(bed.get("/calendars/nobody").await.problem().0, 404);
}

/// Whatever is paused, a schedule under it is shown as paused, with no next instant that
/// would not fire; and as on again when it was resumed.
#[tokio::test]
async fn a_schedule_under_a_pause_is_shown_as_paused() {
    let bed = Bed::new().await;
    let mut document = job("mail", "hello");
    document["schedules"] = json!([{ "name": "yearly", "cron": "0 0 1 1 *" }]);
    bed.put("/jobs/mail", document).await.ok();
    let listed = async || bed.get("/schedules").await.ok()["items"][0].clone();
    let first = listed().await;
    assert!(first["next_at"].is_string() && first.get("paused_by").is_none(), "{first}");
    let own = format!("/schedules/{}", first["id"]);
    for (path, level) in [("/jobs/mail", "job"), ("/queues/default", "queue"), (own.as_str(), "schedule")] {
        bed.post(&format!("{path}/pause"), json!({})).await;
        let shown = listed().await;
        assert_eq!((&shown["paused_by"], shown.get("next_at")), (&json!(level), None), "{shown}");
        assert_eq!(bed.get(&own).await.ok(), shown);
        assert_eq!(bed.get("/jobs/mail/schedules").await.ok()["items"][0], shown);
        let why = bed.get(&format!("{own}/why")).await.ok();
        assert_eq!(
            (&why["reasons"][0]["code"], &why["reasons"][0]["data"]["level"]),
            (&json!("paused"), &json!(level))
        );
        bed.post(&format!("{path}/pause"), json!({ "until": "2100-01-01T00:30:00Z" })).await;
        assert_eq!(listed().await["next_at"], "2101-01-01T00:00:00Z", "{level}");
        bed.post(&format!("{path}/resume"), json!({})).await;
        assert_eq!(listed().await, first, "{level}");
        assert_eq!(bed.get(&format!("{own}/why")).await.ok()["reasons"][0]["code"], "next", "{level}");
    }
}
