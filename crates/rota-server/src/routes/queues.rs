//! Queues: the lanes that workers subscribe to.

use std::collections::BTreeMap;

use axum::{Json, http::StatusCode};
use rota_api::{Pause, PauseRequest, page::Page};
use rota_core::store::{self, PauseTarget};
use rota_engine::Own;
use serde::Serialize;
use utoipa::ToSchema;

use super::NoFilter;
use crate::{
    access::{JobExecute, JobRead, May},
    body::Body,
    problem::Problem,
    query::{Id, Listing, Paging},
    wire,
};

/// A queue of the caller's tenant.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Queue {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<Pause>,
    /// Its lanes: a queue, a handler and required traits together.
    lanes: Vec<QueueLane>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct QueueLane {
    /// Absent for the built-in steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    handler: Option<String>,
    requires: Vec<String>,
    /// Whether runs are executed by the owners of partitions, or claimed by workers.
    claimed: bool,
}

/// List queues by name.
///
/// The queues of the caller's tenant are those that its jobs use, and those it has paused. If
/// there are several tenants, those of its first 10,000 jobs by name.
#[utoipa::path(get, path = "/queues", tag = "queues", params(Paging), responses((status = OK, body = Page<Queue>)))]
pub async fn list(may: May<JobRead>, listing: Listing<NoFilter>) -> Result<Json<Page<Queue>>, Problem> {
    let mut queues: BTreeMap<String, Queue> = BTreeMap::new();
    for lane in may.view.lanes().await?.into_iter().filter(|lane| !lane.retired) {
        let queue = queues.entry(lane.key.queue.clone()).or_default();
        queue.lanes.push(QueueLane {
            handler: lane.key.handler,
            requires: lane.key.requires,
            claimed: lane.mode == rota_core::lane::LaneMode::Claimed,
        });
    }
    let now = may.view.now();
    for (target, pause) in may.view.pauses().await? {
        if let PauseTarget::Queue(_, name) = target
            && let Some(pause) = wire::pause(Some(pause), now)
        {
            queues.entry(name).or_default().pause = Some(pause);
        }
    }
    let queues = queues.into_iter().map(|(name, queue)| Queue { name, ..queue }).collect();
    Ok(Json(listing.page_of(queues, |queue| &queue.name)?))
}

/// Pause a queue.
///
/// Its runs do not start, and schedules of its jobs do not fire. A tenant may have at most
/// 1,000 queues that are paused or were resumed within the last year, all tenants together
/// 10,000 (422, `limit_reached`).
#[utoipa::path(post, path = "/queues/{queue}/pause", tag = "queues", params(("queue" = String, Path)),
    request_body = PauseRequest, responses((status = NO_CONTENT)))]
pub async fn pause(
    may: May<JobExecute>,
    Id(queue): Id<String>,
    Body(request): Body<PauseRequest>,
) -> Result<StatusCode, Problem> {
    let target = target(&may, queue)?;
    let before = pause_in_force(&may, &target).await?;
    super::pause(&may, target, before, request).await
}

/// Resume a queue.
#[utoipa::path(post, path = "/queues/{queue}/resume", tag = "queues", params(("queue" = String, Path)),
    responses((status = NO_CONTENT)))]
pub async fn resume(may: May<JobExecute>, Id(queue): Id<String>) -> Result<StatusCode, Problem> {
    let target = target(&may, queue)?;
    let before = pause_in_force(&may, &target).await?;
    super::resume(&may, target, before).await
}

async fn pause_in_force(may: &May<JobExecute>, target: &PauseTarget) -> Result<Option<store::Pause>, Problem> {
    let pauses = may.view.pauses().await?;
    Ok(pauses.into_iter().find(|(paused, _)| paused == target).map(|(_, pause)| pause))
}

fn target(may: &May<JobExecute>, queue: String) -> Result<Own<PauseTarget>, Problem> {
    if queue.is_empty() || queue.len() > rota_core::schedule::NAME_BYTES_MAX || queue.contains('\0') {
        return Err(Problem::no_such("queue"));
    }
    Ok(may.view.queue(queue))
}
