//! Events: a live feed of what happens, on this node and on the others.
//!
//! The feed has a bounded memory and no past. A client that fell behind, or a
//! node that may have missed what others did, is told `reset`: read again what
//! you show, then go on listening. A comment every few seconds keeps proxies from
//! closing a quiet feed and finds clients that are gone.
//!
//! A feed lasts longer than a request, and what its caller proved may not: the feed of a
//! token or session that was revoked or has expired ends within a second. Feeds are
//! bounded, on the node and for a tenant.

use std::convert::Infallible;

use axum::{
    extract::State,
    http::request::Parts,
    response::{
        IntoResponse, Response,
        sse::{Event as Sent, KeepAlive, Sse},
    },
};
use futures_util::stream;
use rota_core::ids::JobId;
use rota_engine::{Event, FeedItem, OwnFeed};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::IntoParams;
use uuid::Uuid;

use super::jobs::{find, job_ref};
use crate::{
    Node,
    access::{May, Recheck, RunRead},
    bounds::FeedPlace,
    problem::Problem,
    query::Query,
};

/// Which events to receive.
#[derive(Clone, Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventFilter {
    /// Only those of this job, by id or name.
    job: Option<String>,
    /// Only those of this run.
    run: Option<Uuid>,
    /// Only those of this kind, such as `run_ended`; may be repeated.
    #[serde(default)]
    #[param(style = Form, explode)]
    kind: Vec<String>,
}

struct Feed {
    recheck: Recheck,
    /// Given back with the feed.
    _place: FeedPlace,
    events: OwnFeed,
    job: Option<JobId>,
    filter: EventFilter,
}

/// Follow events as they happen.
///
/// Server-sent events: `run_made`, `run_started`, `run_retried`, `run_parked`,
/// `run_ended`, `run_lost`, `schedule_fired`, `instants_skipped`, `job_saved`,
/// `paused`, `resumed`; and `reset` if some may have been missed: read the data again.
#[utoipa::path(get, path = "/events", tag = "events", params(EventFilter),
    responses((status = OK, body = String, content_type = "text/event-stream")))]
pub async fn follow(
    may: May<RunRead>,
    State(node): State<Node>,
    asked: Parts,
    Query(filter): Query<EventFilter>,
) -> Result<Response, Problem> {
    let tenant = may.caller.tenant;
    let job = match &filter.job {
        Some(job) => Some(find(&may.view, &job_ref(job)).await?.id),
        None => None,
    };
    let place = FeedPlace::take(&node, tenant)?;
    let events = may.view.follow();
    let every = node.bounds().feed_time;
    let recheck = Recheck::begin::<RunRead>(node, asked, tenant);
    let feed = Feed { recheck, _place: place, events, job, filter };
    let stream = stream::unfold(feed, |mut feed| async move {
        let sent = feed.next().await?;
        Some((Ok::<_, Infallible>(sent), feed))
    });
    let alive = KeepAlive::new().interval(every).text("alive");
    Ok(Sse::new(stream).keep_alive(alive).into_response())
}

impl Feed {
    /// The next event that this client is to hear of; none when the engine is gone,
    /// or its caller may not follow it any more.
    async fn next(&mut self) -> Option<Sent> {
        loop {
            let told = tokio::select! {
                told = self.events.next() => told?,
                () = self.recheck.due() => {
                    if !self.recheck.holds().await {
                        return None;
                    }
                    continue;
                }
            };
            let event = match told {
                FeedItem::Here(event) | FeedItem::There(event) => event,
                FeedItem::Reset => return Some(reset()),
            };
            if !event.is_news() {
                continue;
            }
            if let Some(sent) = self.sent(&event) {
                return Some(sent);
            }
        }
    }

    fn sent(&self, event: &Event) -> Option<Sent> {
        let Ok(Value::Object(told)) = serde_json::to_value(event) else { return None };
        let (kind, data) = told.into_iter().next()?;
        if !self.filter.kind.is_empty() && !self.filter.kind.contains(&kind) {
            return None;
        }
        if self.job.is_some_and(|job| data["job"] != job.0) {
            return None;
        }
        if self.filter.run.is_some_and(|run| data["run"] != run.to_string()) {
            return None;
        }
        Some(Sent::default().event(kind).data(data.to_string()))
    }
}

fn reset() -> Sent {
    Sent::default().event("reset").data("{}")
}
