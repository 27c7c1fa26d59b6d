//! The API: a file per noun, and all of them as one router and one description.

mod audit;
pub mod bulk;
mod calendars;
mod dead;
mod events;
mod jobs;
mod queues;
mod rows;
mod runs;
mod schedules;
mod session;
mod tenants;
mod tokens;
mod users;
mod workers;

use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use rota_api::{PauseRequest, problem::Code};
use rota_core::store::{Pause, PauseTarget};
use rota_engine::Own;
use serde::{Deserialize, Serialize};
use utoipa::{
    OpenApi,
    openapi::{
        Content, Ref, RefOr, Response as Described,
        path::Operation,
        response::ResponseBuilder,
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};
use utoipa_swagger_ui::SwaggerUi;

use crate::{
    Node,
    access::{COOKIE, JobExecute, May, audit::kept},
    problem::Problem,
};

/// The two ways to say who asks, as the description names them.
const BEARER: &str = "bearer";
const SESSION: &str = "session";

/// The description's own head.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Rota",
        description = "Runs jobs on time, once, and keeps a record of what happened.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    components(schemas(rota_api::problem::Problem))
)]
struct Head;

/// Every route of the API, its description, and the pages that explain it.
pub fn router() -> Router<Node> {
    let (router, description) = parts();
    router
        .merge(SwaggerUi::new("/docs").url("/api/v1/openapi.json", description))
        .route("/api/v1/schema/job", get(job_schema))
        .route("/docs/problems", get(async || markdown(rota_api::problem::reference())))
        .route("/docs/problems/{code}", get(explain))
}

/// The shape of a job document, for editors; it tells nobody anything of the jobs
/// that are here, so it is answered without a login.
async fn job_schema() -> Response {
    ([(header::CONTENT_TYPE, "application/schema+json")], rota_api::job::SCHEMA).into_response()
}

/// The description, as it is served.
#[cfg(test)]
pub fn description() -> utoipa::openapi::OpenApi {
    parts().1
}

/// The routes, and their description with what holds for all of them.
fn parts() -> (Router<Node>, utoipa::openapi::OpenApi) {
    let (router, mut description) = described().split_for_parts();
    refusals(&mut description);
    credentials(&mut description);
    (router, description)
}

fn markdown(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], text).into_response()
}

async fn explain(axum::extract::Path(code): axum::extract::Path<String>) -> Result<Response, Problem> {
    let code = Code::ALL.iter().find(|known| known.as_str() == code).ok_or_else(|| Problem::no_such("code"))?;
    Ok(markdown(format!("# {} {}\n\n`{}`\n\n{}\n", code.status(), code.title(), code.as_str(), code.about())))
}

fn described() -> OpenApiRouter<Node> {
    let api = OpenApiRouter::new()
        .routes(routes!(jobs::list, jobs::create))
        .routes(routes!(jobs::read, jobs::replace, jobs::patch, jobs::delete))
        .routes(routes!(jobs::versions))
        .routes(routes!(jobs::trigger))
        .routes(routes!(jobs::pause))
        .routes(routes!(jobs::resume))
        .routes(routes!(jobs::job_schedules))
        .routes(routes!(jobs::stats))
        .routes(routes!(jobs::check))
        .routes(routes!(runs::of_job))
        .routes(routes!(runs::newest_of_job))
        .routes(routes!(runs::list))
        .routes(routes!(runs::read))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::retry))
        .routes(routes!(runs::why))
        .routes(routes!(runs::events))
        .routes(routes!(runs::logs))
        .routes(routes!(dead::list))
        .routes(routes!(dead::discard))
        .routes(routes!(dead::discard_many))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::read))
        .routes(routes!(schedules::show_next))
        .routes(routes!(schedules::show_next_of))
        .routes(routes!(schedules::why))
        .routes(routes!(schedules::skips))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
        .routes(routes!(schedules::backfill))
        .routes(routes!(bulk::runs))
        .routes(routes!(bulk::jobs))
        .routes(routes!(bulk::cancel))
        .routes(routes!(bulk::redrive))
        .routes(routes!(bulk::pause))
        .routes(routes!(bulk::resume))
        .routes(routes!(events::follow))
        .routes(routes!(calendars::list))
        .routes(routes!(calendars::read, calendars::save))
        .routes(routes!(queues::list))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .merge(workers::router());
    OpenApiRouter::with_openapi(Head::openapi()).nest(rota_api::PREFIX, api.merge(access()))
}

/// Who may ask, and what they changed.
fn access() -> OpenApiRouter<Node> {
    OpenApiRouter::new()
        .routes(routes!(tokens::create, tokens::list))
        .routes(routes!(tokens::read, tokens::revoke))
        .routes(routes!(users::create, users::list))
        .routes(routes!(users::read, users::change, users::delete))
        .routes(routes!(session::create, session::delete))
        .routes(routes!(session::read))
        .routes(routes!(audit::list))
        .routes(routes!(tenants::list))
        .routes(routes!(tenants::read, tenants::put))
        .routes(routes!(rows::list))
        .routes(routes!(rows::read, rows::discard))
}

/// Every operation, with its path.
fn operations(description: &mut utoipa::openapi::OpenApi) -> impl Iterator<Item = (&str, &mut Operation)> {
    description.paths.paths.iter_mut().flat_map(|(path, item)| {
        let methods = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        methods.into_iter().flatten().map(|operation| (path.as_str(), operation))
    })
}

/// Every operation may be refused with a problem document.
fn refusals(description: &mut utoipa::openapi::OpenApi) {
    let problem = |text: &str| -> RefOr<Described> {
        let content = Content::builder().schema(Some(Ref::from_schema_name("Problem"))).build();
        RefOr::T(ResponseBuilder::new().description(text).content("application/problem+json", content).build())
    };
    for (_, operation) in operations(description) {
        for (status, text) in [
            ("401", "Not logged in: the token or session is missing, unknown, expired or revoked."),
            ("403", "The caller does not have the permission for this."),
            ("429", "The tenant's rate is used up; `Retry-After` says when to try again."),
            (
                "503",
                "The store does not answer, or the node is starting, draining or busy; `Retry-After` says when to try again.",
            ),
            ("default", "The request failed; `code` says why."),
        ] {
            operation.responses.responses.insert(status.to_owned(), problem(text));
        }
    }
}

/// How a caller says who it is. Where a node asks for no login, nothing need be said.
fn credentials(description: &mut utoipa::openapi::OpenApi) {
    let token = "An API token (`rota token create`), or a JWT if the node accepts them.";
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(token)).build();
    let session = ApiKeyValue::with_description(COOKIE, "The cookie that a login with a password sets.");
    let components = description.components.get_or_insert_default();
    components.add_security_scheme(BEARER, SecurityScheme::Http(bearer));
    components.add_security_scheme(SESSION, SecurityScheme::ApiKey(ApiKey::Cookie(session)));
    let nothing = SecurityRequirement::default;
    for (path, operation) in operations(description) {
        let by = |name: &str| SecurityRequirement::new::<_, [&str; 0], _>(name, []);
        let logs_in = operation.operation_id.as_deref() == Some("create") && path.ends_with("/session");
        operation.security = Some(if logs_in { vec![nothing()] } else { vec![by(BEARER), by(SESSION), nothing()] });
    }
}

/// A list that has no filters.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NoFilter {}

const NOTE_BYTES_MAX: usize = 1_000;

/// A pause as it is asked for, now.
pub fn pause_of(may: &May<JobExecute>, request: PauseRequest) -> Result<Pause, Problem> {
    let now = may.view.now();
    let mut problems = Vec::new();
    let mut wrong =
        |path: &str, message: String| problems.push(rota_core::problem::Problem::new(path, "out_of_bounds", message));
    if request.until.is_some_and(|until| until <= now) {
        wrong("until", "is in the past".to_owned());
    }
    if request.note.as_ref().is_some_and(|note| note.len() > NOTE_BYTES_MAX || note.contains('\0')) {
        wrong("note", format!("may have at most {NOTE_BYTES_MAX} bytes, without NUL"));
    }
    if !problems.is_empty() {
        return Err(Problem::bad_document("the request", problems));
    }
    let by = Some(may.caller.who.clone());
    Ok(Pause { since: now, until: request.until, note: request.note, by, ..Pause::default() })
}

async fn pause(
    may: &May<JobExecute>,
    target: Own<PauseTarget>,
    before: Option<Pause>,
    request: PauseRequest,
) -> Result<StatusCode, Problem> {
    let pause = pause_of(may, request)?;
    let (action, _, object) = named(&target);
    match may.view.pause(&[target], &pause).await?.first() {
        Some(true) => {
            may.changed(action, object, before.as_ref().and_then(kept), kept(&pause));
            Ok(StatusCode::NO_CONTENT)
        }
        _ => Err(Problem::no_such("object")),
    }
}

/// Pausing, resuming and what it is done to, as the audit log names them.
fn named(target: &PauseTarget) -> (&'static str, &'static str, String) {
    match target {
        PauseTarget::Tenant(tenant) => ("tenant.pause", "tenant.resume", format!("tenant/{tenant}")),
        PauseTarget::Queue(_, queue) => ("queue.pause", "queue.resume", format!("queue/{queue}")),
        PauseTarget::Job(job) => ("job.pause", "job.resume", format!("job/{job}")),
        PauseTarget::Schedule(schedule) => ("schedule.pause", "schedule.resume", format!("schedule/{schedule}")),
    }
}

/// What is not paused stays so, and that is no mistake.
async fn resume(may: &May<JobExecute>, target: Own<PauseTarget>, before: Option<Pause>) -> Result<StatusCode, Problem> {
    let (_, action, object) = named(&target);
    may.view.resume(&[target]).await?;
    may.changed(action, object, before.as_ref().and_then(kept), None);
    Ok(StatusCode::NO_CONTENT)
}
