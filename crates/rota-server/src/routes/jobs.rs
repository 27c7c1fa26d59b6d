//! Jobs.

use axum::Json;
use rota_api::{job::Job, page::Page};
use rota_core::store::JobQuery;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use crate::{
    access::{JobRead, May},
    problem::Problem,
    query::{Listing, Paging},
    wire,
};

/// Which jobs to list, by name.
#[derive(Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobFilter {
    /// Those that have this tag.
    tag: Option<String>,
    queue: Option<String>,
    /// Those whose names start so.
    prefix: Option<String>,
    enabled: Option<bool>,
}

/// List jobs.
#[utoipa::path(get, path = "/jobs", tag = "jobs", params(JobFilter, Paging), responses((status = OK, body = Page<Job>)))]
pub async fn list(may: May<JobRead>, listing: Listing<JobFilter>) -> Result<Json<Page<Job>>, Problem> {
    let filter = &listing.filter;
    let query = JobQuery {
        tenant: Some(may.caller.tenant),
        tag: filter.tag.clone(),
        queue: filter.queue.clone(),
        prefix: filter.prefix.clone(),
        enabled: filter.enabled,
        after: listing.cursor()?,
        limit: listing.limit,
    };
    let page = may.engine.store().list_jobs(&query).await?;
    let jobs = page.jobs.into_iter().map(wire::job).collect::<Result<_, _>>()?;
    Ok(Json(listing.page(jobs, page.next.as_ref())))
}
