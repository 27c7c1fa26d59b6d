//! The API: a file per noun, and all of them as one router and one description.

mod jobs;

use axum::{Json, Router, routing::get};
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::Node;

/// The description's own head.
#[derive(OpenApi)]
#[openapi(info(
    title = "Rota",
    description = "Runs jobs on time, once, and remembers what happened.",
    license(name = "MIT OR Apache-2.0")
))]
struct Head;

/// Every route of the API.
pub fn router() -> Router<Node> {
    let (router, description) = described().split_for_parts();
    // The same answer for as long as the process lives.
    let description = std::sync::Arc::new(description);
    let spec = get(async move || Json(description.as_ref().clone()));
    router.route("/api/v1/openapi.json", spec)
}

fn described() -> OpenApiRouter<Node> {
    OpenApiRouter::with_openapi(Head::openapi())
        .nest(rota_api::PREFIX, OpenApiRouter::new().routes(routes!(jobs::list)))
}
