//! Jobs: saved, read, triggered, paused, deleted.

use std::convert::Infallible;

use axum::{
    Json,
    body::Bytes,
    extract::{FromRequestParts, Path},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse, Response},
};
use rota_api::{
    IDEMPOTENCY_KEY, PauseRequest,
    job::{HotSecond, Job, JobChecked, JobSaved, JobStats, JobVersion, SchedulePreview},
    page::Page,
    problem::Code,
    run::{RunMade, TriggerRequest},
    schedule::Schedule,
};
use rota_core::{
    duration::Span,
    ids::{JobId, RunId, ScheduleId, TenantId, number},
    job::{JobDocument, effective::DEFAULT_GRACE},
    order::Priority,
    preview::preview,
    rollup::{Rollup, hour_of},
    run::{CancelAsk, Source, Trigger},
    schedule::ScheduleSpec,
    store::{Expect, JobQuery, JobRecord, Request, ScheduleQuery},
    stored, timing,
    trace::{self, TraceParent},
};
use rota_engine::{JobRef, Made, Own, RunAsk, View};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::schedules;
use crate::{
    Node,
    access::{JobDelete, JobExecute, JobRead, JobWrite, May, audit::kept},
    body::{self, Body, Document},
    problem::{Problem, field_error},
    query::{Listing, Paging, Query},
    wire,
};

/// How long a request key is remembered.
const KEY_KEPT: Span = Span::secs(24 * 3_600);
const KEY_BYTES_MAX: usize = 255;
/// Versions of a job in one answer.
const VERSIONS_MAX: u32 = 100;
/// Instants shown when a document is checked.
const CHECK_SHOWN: usize = 5;
/// Hours of statistics in one answer: 31 days. So much longer than runs are roll-ups kept.
const STATS_HOURS_MAX: i64 = (Rollup::KEPT_BEYOND.as_millis() / 3_600_000) as i64;
const STATS_HOURS: i64 = 24;
/// Someone else's save in between is read again so often.
const PATCH_TRIES: usize = 5;

/// A job in the path: by its number, or by its name.
pub struct JobPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for JobPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<std::collections::HashMap<String, String>>::from_request_parts(parts, state).await;
        let job = path.ok().and_then(|Path(mut path)| path.remove("job"));
        job.map(Self).ok_or_else(|| Problem::no_such("job"))
    }
}

/// A job by number or name. No job is saved under a name that reads as a number; one that
/// has such a name from before is found by its own number.
pub fn job_ref(text: &str) -> JobRef {
    number(text).map_or_else(|| JobRef::Name(text.to_owned()), |id| JobRef::Id(JobId(id)))
}

/// The caller's own job. Another tenant's is not there.
pub async fn find(view: &View, job: &JobRef) -> Result<Own<JobRecord>, Problem> {
    view.job(job).await?.ok_or_else(|| Problem::no_such("job"))
}

/// As [`find`], and it was not deleted.
pub async fn find_live(view: &View, job: &JobRef) -> Result<Own<JobRecord>, Problem> {
    let found = find(view, job).await?;
    if found.deleted { Err(Problem::no_such("job")) } else { Ok(found) }
}

/// A request that is done once, however often it is sent: its key and what it says.
pub struct Once {
    key: Option<String>,
    said: Sha256,
}

impl<S: Send + Sync> FromRequestParts<S> for Once {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let method = Method::from_request_parts(parts, state).await.unwrap_or_default();
        let uri = Uri::from_request_parts(parts, state).await.unwrap_or_default();
        let said = Sha256::new().chain_update(method.as_str()).chain_update(" ").chain_update(uri.path());
        let Some(key) = parts.headers.get(IDEMPOTENCY_KEY) else { return Ok(Self { key: None, said }) };
        let key = key.to_str().ok().filter(|key| !key.is_empty() && key.len() <= KEY_BYTES_MAX);
        let form = format!("an Idempotency-Key must have 1 to {KEY_BYTES_MAX} visible ASCII characters");
        let key = key.ok_or_else(|| Problem::bad_parameter("Idempotency-Key", form))?;
        Ok(Self { key: Some(key.to_owned()), said })
    }
}

impl Once {
    /// The request with this body; none where no key was sent.
    pub fn request(self, view: &View, body: &[u8]) -> Option<Request> {
        let fingerprint = self.said.chain_update("\n").chain_update(body).finalize().into();
        Some(Request { tenant: view.tenant(), key: self.key?, fingerprint, expires_at: KEY_KEPT.after(view.now()) })
    }
}

/// The trace that a request is part of; none where it says none, or what is not valid, or
/// says it twice.
pub struct Traced(Option<TraceParent>);

impl<S: Send + Sync> FromRequestParts<S> for Traced {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let mut said = parts.headers.get_all(trace::HEADER).iter();
        let (first, second) = (said.next(), said.next());
        let text = first.filter(|_| second.is_none()).and_then(|value| value.to_str().ok());
        Ok(Self(text.and_then(TraceParent::parse)))
    }
}

/// Which jobs to list, in the order of their names.
#[derive(Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobFilter {
    /// Only those with this tag.
    tag: Option<String>,
    queue: Option<String>,
    /// Only those whose names start with this.
    prefix: Option<String>,
    enabled: Option<bool>,
}

/// List jobs.
#[utoipa::path(get, path = "/jobs", tag = "jobs", params(JobFilter, Paging), responses((status = OK, body = Page<Job>)))]
pub async fn list(may: May<JobRead>, listing: Listing<JobFilter>) -> Result<Json<Page<Job>>, Problem> {
    let filter = &listing.filter;
    let query = JobQuery {
        tenant: None,
        tag: filter.tag.clone(),
        queue: filter.queue.clone(),
        prefix: filter.prefix.clone(),
        enabled: filter.enabled,
        after: listing.cursor()?,
        limit: listing.limit,
    };
    let page = may.view.list_jobs(query).await?;
    let now = may.view.now();
    let jobs = page.items.into_iter().map(|record| wire::job(record.into_inner(), now)).collect();
    Ok(Json(listing.page(jobs, page.next.as_ref())))
}

/// Create a job.
///
/// The body is a job document in JSON or YAML. If it is not valid, every error in it is
/// listed, and nothing is changed. Fails with a conflict if the name already exists; PUT
/// saves in either case.
#[utoipa::path(post, path = "/jobs", tag = "jobs",
    params(("Idempotency-Key" = Option<String>, Header, description = "If the request is repeated with the same key within 24 hours, it gets the same answer")),
    request_body(content((Object = "application/json"), (Object = "application/yaml"))),
    responses((status = CREATED, body = JobSaved, headers(("ETag" = String)))))]
pub async fn create(may: May<JobWrite>, once: Once, document: Document) -> Result<Response, Problem> {
    let Document { value, bytes } = document;
    let document = read_document(value)?;
    let request = once.request(&may.view, &bytes);
    let saved = save(&may, &document, Expect::Nothing, request).await;
    let saved = saved.map_err(|problem| taken(problem, &document.name))?;
    Ok((StatusCode::CREATED, etag(saved.version), Json(saved)).into_response())
}

fn taken(problem: Problem, name: &str) -> Problem {
    if problem.document().code == Code::PreconditionFailed.as_str() {
        return Problem::new(
            Code::Conflict,
            format!("the job `{name}` already exists; `rota job save`, or PUT, saves a new version of it"),
        );
    }
    problem
}

pub fn read_document(value: Value) -> Result<JobDocument, Problem> {
    JobDocument::from_value(value).map_err(|problems| Problem::bad_document("the job document", problems))
}

async fn save(
    may: &May<JobWrite>,
    document: &JobDocument,
    expect: Expect,
    request: Option<Request>,
) -> Result<JobSaved, Problem> {
    let before = match expect {
        Expect::Nothing => None,
        Expect::Anything | Expect::Version(_) => stored(&may.view, &document.name).await?,
    };
    let by = Some(may.caller.who.clone());
    let saved = may.view.save_job(document, by, expect, request).await?;
    if saved.changed {
        let after = version_kept(saved.version, &document.canonical_json());
        may.changed("job.save", format_args!("job/{}", saved.job), before.as_deref().and_then(record_kept), after);
    } else {
        may.changed_nothing();
    }
    let mut warnings = warnings(document, may.view.now());
    warnings.extend(saved.hot.map(|hot| field_error(hot.warning())));
    Ok(JobSaved {
        id: saved.job.0,
        name: document.name.clone(),
        version: saved.version,
        changed: saved.changed,
        warnings,
        hot_second: saved.hot.map(|hot| HotSecond { at: hot.at, schedules: hot.schedules, more: hot.more }),
    })
}

/// The job of this name, if there is one.
async fn stored(view: &View, name: &str) -> Result<Option<Own<JobRecord>>, Problem> {
    Ok(view.job(&JobRef::Name(name.to_owned())).await?)
}

/// A job as the audit log keeps it.
fn record_kept(record: &JobRecord) -> Option<Value> {
    version_kept(record.version, &record.document)
}

fn version_kept(version: i32, document: &str) -> Option<Value> {
    let document: Value = serde_json::from_str(document).ok()?;
    Some(serde_json::json!({ "version": version, "document": document }))
}

/// What is right and may still surprise.
fn warnings(document: &JobDocument, now: jiff::Timestamp) -> Vec<rota_api::problem::FieldError> {
    let mut found = document.warnings();
    for (n, spec) in document.schedules.iter().enumerate().filter(|(_, spec)| spec.enabled) {
        let compiled = timing::Schedule::compile(spec, &ScheduleId(0).seed());
        if compiled.is_ok_and(|schedule| schedule.is_over(now)) {
            let message = "it has no future instants, so it will not fire";
            found.push(rota_core::problem::Problem::new(format!("schedules[{n}]"), "never_fires", message));
        }
    }
    if !document.is_enabled() && !document.schedules.is_empty() {
        let message = "the job is disabled, so its schedules do not fire";
        found.push(rota_core::problem::Problem::new("enabled", "not_enabled", message));
    }
    found.into_iter().map(field_error).collect()
}

fn etag(version: i32) -> [(header::HeaderName, HeaderValue); 1] {
    // Digits are visible characters.
    let tag = HeaderValue::from_str(&format!("\"{version}\"")).unwrap_or(HeaderValue::from_static("\"\""));
    [(header::ETAG, tag)]
}

/// What `If-Match` and `If-None-Match` say a saver believes.
fn expected(headers: &HeaderMap) -> Result<Expect, Problem> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?").trim());
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (None, None) => Ok(Expect::Anything),
        (None, Some("*")) => Ok(Expect::Nothing),
        (Some(tag), None) => {
            let version = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).and_then(|tag| tag.parse().ok());
            let version = version
                .ok_or_else(|| Problem::bad_parameter("If-Match", "must be the ETag of a version, such as \"3\""))?;
            Ok(Expect::Version(version))
        }
        _ => Err(Problem::bad_parameter("If-None-Match", "must be `*`, and cannot be combined with If-Match")),
    }
}

/// Read a job.
#[utoipa::path(get, path = "/jobs/{job}", tag = "jobs", params(("job" = String, Path, description = "The id or the name of the job")),
    responses((status = OK, body = Job, headers(("ETag" = String)))))]
pub async fn read(may: May<JobRead>, JobPath(job): JobPath) -> Result<Response, Problem> {
    let record = find(&may.view, &job_ref(&job)).await?;
    Ok((etag(record.version), Json(wire::job(record.into_inner(), may.view.now()))).into_response())
}

/// Save a job.
///
/// Creates the job if it does not exist, and a new version if the document differs;
/// the same document again changes nothing. `If-Match` saves only over the given
/// version, `If-None-Match: *` only if the job does not exist.
#[utoipa::path(put, path = "/jobs/{job}", tag = "jobs",
    params(("job" = String, Path, description = "The id or the name of the job"),
        ("If-Match" = Option<String>, Header, description = "The ETag of the version to replace")),
    request_body(content((Object = "application/json"), (Object = "application/yaml"))),
    responses((status = OK, body = JobSaved, headers(("ETag" = String)))))]
pub async fn replace(
    may: May<JobWrite>,
    JobPath(job): JobPath,
    headers: HeaderMap,
    document: Document,
) -> Result<Response, Problem> {
    let document = read_document(document.value)?;
    let name = match job_ref(&job) {
        JobRef::Name(name) => name,
        by_id @ JobRef::Id(_) => find_live(&may.view, &by_id).await?.name.clone(),
    };
    must_be_named(&document, &name)?;
    let saved = save(&may, &document, expected(&headers)?, None).await?;
    Ok((etag(saved.version), Json(saved)).into_response())
}

fn must_be_named(document: &JobDocument, name: &str) -> Result<(), Problem> {
    if document.name == name {
        return Ok(());
    }
    let message =
        format!("the document is named `{}`, but the address says `{name}`; a job cannot be renamed", document.name);
    Err(Problem::bad_document(
        "the job document",
        vec![rota_core::problem::Problem::new("name", "wrong_name", message)],
    ))
}

/// Change parts of a job.
///
/// The body is a JSON merge patch (RFC 7396) of the document: fields that it names are
/// replaced, fields that it sets to null are removed, and the rest stays.
#[utoipa::path(patch, path = "/jobs/{job}", tag = "jobs",
    params(("job" = String, Path, description = "The id or the name of the job"),
        ("If-Match" = Option<String>, Header, description = "The ETag of the version to change")),
    request_body(content((Object = "application/merge-patch+json"), (Object = "application/json"))),
    responses((status = OK, body = JobSaved, headers(("ETag" = String)))))]
pub async fn patch(
    may: May<JobWrite>,
    JobPath(job): JobPath,
    headers: HeaderMap,
    patch: Document,
) -> Result<Response, Problem> {
    let expect = expected(&headers)?;
    let mut tries = 0;
    loop {
        let record = find_live(&may.view, &job_ref(&job)).await?;
        let mut value = wire::json(&record.document)?;
        merge(&mut value, &patch.value);
        let document = read_document(value)?;
        must_be_named(&document, &record.name)?;
        let over = if expect == Expect::Anything { Expect::Version(record.version) } else { expect };
        tries += 1;
        match save(&may, &document, over, None).await {
            // Somebody saved between the look and the save: look again.
            Err(problem)
                if expect == Expect::Anything
                    && tries < PATCH_TRIES
                    && problem.document().code == Code::PreconditionFailed.as_str() => {}
            saved => {
                let saved = saved?;
                return Ok((etag(saved.version), Json(saved)).into_response());
            }
        }
    }
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeleteQuery {
    /// Let running attempts continue instead of cancelling them.
    #[serde(default)]
    keep_running: bool,
}

/// What deleting a job did.
#[derive(Debug, Serialize, ToSchema)]
pub struct Deleted {
    /// Runs that were cancelled or asked to stop.
    cancelled: u64,
}

/// Delete a job.
///
/// Its schedules end, runs that have not started are cancelled, and running ones are asked
/// to stop. Its history stays.
#[utoipa::path(delete, path = "/jobs/{job}", tag = "jobs", params(("job" = String, Path, description = "The id or the name of the job"), DeleteQuery),
    responses((status = OK, body = Deleted)))]
pub async fn delete(
    may: May<JobDelete>,
    JobPath(job): JobPath,
    Query(query): Query<DeleteQuery>,
) -> Result<Json<Deleted>, Problem> {
    let record = find_live(&may.view, &job_ref(&job)).await?;
    let document = stored::read::<JobDocument>(&record.document);
    let grace = document.map_or(DEFAULT_GRACE, |document| document.cancel_grace());
    let by = Some(may.caller.who.clone());
    let ask = CancelAsk { by, reason: Some("its job was deleted".to_owned()), grace };
    let cancelled = may.view.delete_job(&record, ask, query.keep_running).await?;
    let cancelled = cancelled.ok_or_else(|| Problem::no_such("job"))?;
    may.changed("job.delete", format_args!("job/{}", record.id), record_kept(&record), None);
    Ok(Json(Deleted { cancelled }))
}

/// List the versions of a job.
///
/// The newest hundred, newest first.
#[utoipa::path(get, path = "/jobs/{job}/versions", tag = "jobs", params(("job" = String, Path, description = "The id or the name of the job")),
    responses((status = OK, body = Vec<JobVersion>)))]
pub async fn versions(may: May<JobRead>, JobPath(job): JobPath) -> Result<Json<Vec<JobVersion>>, Problem> {
    let record = find(&may.view, &job_ref(&job)).await?;
    let versions = may.view.job_versions(&record, VERSIONS_MAX).await?;
    Ok(Json(versions.into_iter().map(wire::version).collect()))
}

/// Trigger a job.
///
/// Creates a run of its newest version. The answer is 409 if all slots of the job's
/// concurrency key are taken, or if a run with the same unique key exists.
#[utoipa::path(post, path = "/jobs/{job}/trigger", tag = "jobs",
    params(("job" = String, Path, description = "The id or the name of the job"),
        ("Idempotency-Key" = Option<String>, Header, description = "If the request is repeated with the same key within 24 hours, it gets the same answer"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context of version 00: stored with the run, and given to each of its attempts with a span id of its own. One that is not valid is ignored")),
    request_body = TriggerRequest, responses((status = ACCEPTED, body = RunMade)))]
pub async fn trigger(
    may: May<JobExecute>,
    JobPath(job): JobPath,
    once: Once,
    Traced(traceparent): Traced,
    bytes: TriggerBody,
) -> Result<Response, Problem> {
    let record = find_live(&may.view, &job_ref(&job)).await?;
    let request = once.request(&may.view, &bytes.bytes);
    let mut ask = run_ask(may.caller.tenant, JobRef::Id(record.id), bytes.request, Source::Manual, &may.caller.who)?;
    ask.trigger.traceparent = traceparent;
    let made = may.view.enqueue(vec![ask], request).await?;
    let made = made_run(made.into_iter().next().unwrap_or(Made::NoJob), may.view.now())?;
    may.changed("job.trigger", format_args!("job/{}", record.id), None, kept(&made));
    Ok((StatusCode::ACCEPTED, Json(made)).into_response())
}

/// A trigger's request, with the bytes it was read from.
pub struct TriggerBody {
    request: TriggerRequest,
    bytes: Bytes,
}

impl axum::extract::FromRequest<Node> for TriggerBody {
    type Rejection = Problem;

    async fn from_request(request: axum::extract::Request, state: &Node) -> Result<Self, Problem> {
        let empty = request.headers().get(header::CONTENT_LENGTH).is_none_or(|length| length == "0")
            && !request.headers().contains_key(header::TRANSFER_ENCODING);
        if empty {
            return Ok(Self { request: TriggerRequest::default(), bytes: Bytes::new() });
        }
        let Document { value, bytes } = Document::from_request(request, state).await?;
        Ok(Self { request: body::typed(value)?, bytes })
    }
}

/// What somebody asked for over HTTP, as the engine understands it. The engine refuses what is
/// out of bounds; a priority that there is none of is told together with that.
pub fn run_ask(
    tenant: TenantId,
    job: JobRef,
    request: TriggerRequest,
    source: Source,
    who: &str,
) -> Result<RunAsk, Problem> {
    let priority = request.priority.map(|level| Priority::new(level).ok_or(level)).transpose();
    let ask = RunAsk {
        tenant,
        job,
        payload: request.payload,
        labels: request.labels,
        run_at: request.run_at,
        trigger: Trigger { by: Some(who.to_owned()), metadata: request.metadata, ..Trigger::plain(source) },
        priority: None,
        after: request.after.into_iter().map(RunId).collect(),
    };
    match priority {
        Ok(priority) => Ok(RunAsk { priority, ..ask }),
        Err(level) => {
            let wrong = format!("{level} is not from 1 to 10");
            let mut problems = vec![rota_core::problem::Problem::new("priority", "out_of_bounds", wrong)];
            problems.extend(ask.problems());
            Err(Problem::bad_document("the request", problems))
        }
    }
}

/// The run that was made, or why none was.
pub fn made_run(made: Made, now: jiff::Timestamp) -> Result<RunMade, Problem> {
    let why = made.to_string();
    match made {
        Made::Run { id, status } => Ok(RunMade { id: id.0, status: wire::status(status) }),
        Made::Duplicate { .. } => Err(Problem::new(Code::Duplicate, why)),
        Made::Full => Err(Problem::new(Code::Full, why)),
        Made::NoJob => Err(Problem::no_such("job")),
        Made::OutOfBounds(problems) => Err(Problem::bad_document("the request", problems)),
        Made::NotManual => Err(Problem::new(Code::NotManual, why)),
        Made::BadKey(_) => Err(Problem::new(Code::BadPayload, why)),
        Made::OverQuota(refusal) => Err(Problem::over_quota("no run was created", &[refusal], now)),
    }
}

/// Pause a job.
///
/// Its schedules do not fire; queued runs still start.
#[utoipa::path(post, path = "/jobs/{job}/pause", tag = "jobs", params(("job" = String, Path, description = "The id or the name of the job")),
    request_body = PauseRequest, responses((status = NO_CONTENT)))]
pub async fn pause(
    may: May<JobExecute>,
    JobPath(job): JobPath,
    Body(request): Body<PauseRequest>,
) -> Result<StatusCode, Problem> {
    let record = find_live(&may.view, &job_ref(&job)).await?;
    super::pause(&may, record.target(), record.into_inner().pause, request).await
}

/// Resume a job.
///
/// Instants inside the pause are recorded as skipped.
#[utoipa::path(post, path = "/jobs/{job}/resume", tag = "jobs", params(("job" = String, Path, description = "The id or the name of the job")),
    responses((status = NO_CONTENT)))]
pub async fn resume(may: May<JobExecute>, JobPath(job): JobPath) -> Result<StatusCode, Problem> {
    let record = find_live(&may.view, &job_ref(&job)).await?;
    super::resume(&may, record.target(), record.into_inner().pause).await
}

/// List the schedules of a job.
#[utoipa::path(get, path = "/jobs/{job}/schedules", tag = "jobs", params(("job" = String, Path, description = "The id or the name of the job"), Paging),
    responses((status = OK, body = Page<Schedule>)))]
pub async fn job_schedules(
    may: May<JobRead>,
    JobPath(job): JobPath,
    listing: Listing<super::NoFilter>,
) -> Result<Json<Page<Schedule>>, Problem> {
    let record = find(&may.view, &job_ref(&job)).await?;
    let query = ScheduleQuery {
        job: Some(record.id),
        after: listing.cursor()?,
        limit: listing.limit,
        ..ScheduleQuery::default()
    };
    let page = may.view.list_schedules(query).await?;
    let items = schedules::shown(&may.view, page.items).await?;
    Ok(Json(listing.page(items, page.next.as_ref())))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StatsQuery {
    /// From the hour of this instant on; by default a day ago.
    #[serde(default, deserialize_with = "rota_api::instant::read_opt")]
    from: Option<jiff::Timestamp>,
    /// Up to the hour of this instant; by default now.
    #[serde(default, deserialize_with = "rota_api::instant::read_opt")]
    to: Option<jiff::Timestamp>,
}

/// Hourly statistics of a job's runs.
///
/// Runs are counted when they settle. For up to 31 days.
#[utoipa::path(get, path = "/jobs/{job}/stats", tag = "jobs", params(("job" = String, Path, description = "The id or the name of the job"), StatsQuery),
    responses((status = OK, body = JobStats)))]
pub async fn stats(
    may: May<JobRead>,
    JobPath(job): JobPath,
    Query(query): Query<StatsQuery>,
) -> Result<Json<JobStats>, Problem> {
    let record = find(&may.view, &job_ref(&job)).await?;
    let to = hour_of(query.to.unwrap_or_else(|| may.view.now())).saturating_add(1);
    let from = query.from.map_or(to - STATS_HOURS, hour_of);
    if from >= to || to - from > STATS_HOURS_MAX {
        return Err(Problem::bad_parameter("from", format!("must be before `to`, by at most {STATS_HOURS_MAX} hours")));
    }
    let rollups = may.view.rollups(&record, from, to).await?;
    let mut total = Rollup::default();
    for (_, rollup) in &rollups {
        total.merge(rollup);
    }
    let at = |hour: i64| jiff::Timestamp::from_second(hour * 3_600).unwrap_or(jiff::Timestamp::MAX);
    Ok(Json(JobStats {
        from: at(from),
        to: at(to),
        total: wire::stats(&total),
        hours: rollups.iter().map(|(hour, rollup)| wire::hour(*hour, rollup)).collect(),
    }))
}

/// Check a job document.
///
/// Answers what saving it would do and when its schedules would fire, and changes
/// nothing. It refuses what saving would refuse, with the same messages; `If-Match` and
/// `If-None-Match` work as with PUT.
#[utoipa::path(post, path = "/check", tag = "jobs",
    params(("If-Match" = Option<String>, Header, description = "The ETag of the version to replace"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: as a job that does not exist yet")),
    request_body(content((Object = "application/json"), (Object = "application/yaml"))),
    responses((status = OK, body = JobChecked)))]
pub async fn check(may: May<JobRead>, headers: HeaderMap, document: Document) -> Result<Json<JobChecked>, Problem> {
    may.changed_nothing();
    let document = read_document(document.value)?;
    let expect = expected(&headers)?;
    let stored = stored(&may.view, &document.name).await?;
    let saved = may.view.check_job(&document, expect).await;
    let saved = saved.map_err(Problem::from);
    let saved =
        if expect == Expect::Nothing { saved.map_err(|problem| taken(problem, &document.name)) } else { saved }?;
    let calendars = schedules::calendars(&may.view).await?;
    let now = may.view.now();
    let shown = document.schedules.iter().map(|spec| previewed(spec, &calendars, now));
    Ok(Json(JobChecked {
        name: document.name.clone(),
        version: stored.map(|stored| stored.version),
        changes: saved.changed,
        warnings: warnings(&document, now),
        schedules: shown.collect(),
    }))
}

fn previewed(spec: &ScheduleSpec, calendars: &schedules::Calendars, now: jiff::Timestamp) -> SchedulePreview {
    // `H` is spread by the schedule's number, which a new one does not have yet.
    let id = ScheduleId(0);
    let compiled = timing::Schedule::compile(spec, &id.seed()).ok().zip(calendars.of(spec).ok());
    let next = compiled.map(|(schedule, calendars)| preview(&schedule, id, &calendars, now, CHECK_SHOWN));
    let next = next.unwrap_or_default();
    SchedulePreview {
        name: spec.name.clone(),
        description: wire::describe(spec),
        next: next.iter().map(wire::upcoming).collect(),
    }
}

/// One document of a bulk request.
pub async fn save_one(may: &May<JobWrite>, value: Value) -> Result<JobSaved, Problem> {
    save(may, &read_document(value)?, Expect::Anything, None).await
}
