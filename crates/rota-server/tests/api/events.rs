//! The live feed.

use axum::{
    body::{Body, BodyDataStream},
    http::{Request, header},
};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::bed::Bed;

struct Feed {
    chunks: BodyDataStream,
    text: String,
}

impl Feed {
    async fn of(bed: &Bed, query: &str) -> Self {
        let request = Request::get(format!("/api/v1/events{query}")).header(header::HOST, "localhost");
        let response = bed.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        Self { chunks: response.into_body().into_data_stream(), text: String::new() }
    }

    /// The next event and its data.
    async fn next(&mut self) -> (String, Value) {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let frame: String = self.text.drain(..end + 2).collect();
                let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let told = field("event: ").zip(field("data: "));
                if let Some((event, data)) = told {
                    return (event, serde_json::from_str(&data).unwrap());
                }
                continue;
            }
            let chunk = self.chunks.next().await.unwrap().unwrap();
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

#[tokio::test]
async fn what_happens_is_told_as_it_happens() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    bed.job("post", "hello").await;
    let mut feed = Feed::of(&bed, "?job=mail&kind=run_made&kind=run_ended").await;
    bed.trigger("post", json!({})).await;
    let run = bed.trigger("mail", json!({})).await;
    let (event, data) = feed.next().await;
    assert_eq!((event.as_str(), &data["run"]), ("run_made", &json!(run)), "other jobs are left out");
    let (event, data) = feed.next().await;
    assert_eq!((event.as_str(), &data["run"], &data["verdict"]), ("run_ended", &json!(run), &json!("succeeded")));
}

/// A client that missed something must know, or it shows what is not so.
#[tokio::test]
async fn a_client_that_fell_behind_is_told_to_read_again() {
    let bed = Bed::new().await;
    bed.job("mail", "hello").await;
    let mut feed = Feed::of(&bed, "?kind=run_ended").await;
    let later = json!({ "job": "mail", "run_at": "2100-01-01T00:00:00Z" }).to_string() + "\n";
    let lines = [("content-type", "application/x-ndjson")];
    for _ in 0..20 {
        bed.send(axum::http::Method::POST, "/bulk/runs?refused_only=true", &lines, later.repeat(1_000)).await;
    }
    let mut event = feed.next().await.0;
    while event != "reset" {
        event = feed.next().await.0;
    }
}

#[tokio::test]
async fn a_feed_of_what_is_not_there_is_refused() {
    let bed = Bed::new().await;
    assert_eq!(bed.get("/events?job=nobody").await.problem().0, 404);
    assert_eq!(bed.get("/events?run=nonsense").await.problem().0, 400);
    assert_eq!(bed.get("/events?nonsense=1").await.problem().0, 400);
}
