//! Runs: listed, read, followed, stopped, made again.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use rota_api::{
    bulk::RunsFilter,
    page::Page,
    problem::Code,
    run::{CancelAnswer, CancelRequest, CancelResult, LogLine, RetryRequest, Run, RunEvent, RunMade, Why},
};
use rota_core::{
    duration::Span,
    ids::{JobId, RunId, ScheduleId},
    run::{RunState, Verdict},
    store::{self, LogChunk, RunQuery, RunRecord},
};
use rota_engine::{Cancel, Made, Own, Redrive, View};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::IntoParams;
use uuid::Uuid;

use super::jobs::{JobPath, find, job_ref, made_run};
use crate::{
    access::{May, RunCancel, RunRead, audit::kept},
    body::{Body, aside},
    problem::Problem,
    query::{Id, Include, Including, Listing, Paging},
    wire::{self, Names},
};

/// Labels that one filter may name.
const LABELS_MAX: usize = 10;
/// Longest grace that a cancel may ask for.
const GRACE_MAX: Span = Span::secs(3_600);
const REASON_BYTES_MAX: usize = 1_000;

/// What the store is asked. None where the filter names a job that is not
/// there: then there are no runs.
pub async fn query<P>(filter: &RunsFilter, may: &May<P>) -> Result<RunQuery, Problem> {
    let job = match &filter.job {
        None => None,
        // A name that is spelled wrong must not look like a job that has no runs.
        Some(job) => Some(find(&may.view, &job_ref(job)).await?.id),
    };
    if filter.label.len() > LABELS_MAX {
        return Err(Problem::bad_parameter("label", format!("may have at most {LABELS_MAX} labels")));
    }
    let labels = filter.label.iter().map(|label| match label.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Problem::bad_parameter("label", "must be written key=value")),
    });
    Ok(RunQuery {
        tenant: None,
        job,
        tag: filter.tag.clone(),
        schedule: filter.schedule.map(ScheduleId),
        statuses: filter.status.iter().copied().map(wire::status_of_wire).collect(),
        begun: Vec::new(),
        labels: labels.collect::<Result<_, _>>()?,
        from: filter.from,
        to: filter.to,
        // What is older than the tenant's history is there and not shown.
        ended_from: may.quotas.history_from(may.view.now()),
        now: Some(may.view.now()),
        after: None,
        limit: 0,
    })
}

/// List runs.
///
/// Without their payloads and outputs, unless `include` asks for them. A page ends after
/// 1 MiB, with a next one.
#[utoipa::path(get, path = "/runs", tag = "runs", params(RunsFilter, Including, Paging), responses((status = OK, body = Page<Run>)))]
pub async fn list(may: May<RunRead>, listing: Listing<RunsFilter, true>) -> Result<Json<Page<Run>>, Problem> {
    let query = query(&listing.filter, &may).await?;
    page(&may.view, &listing, query).await
}

/// List the runs of a job.
///
/// As `GET /runs` does.
#[utoipa::path(get, path = "/jobs/{job}/runs", tag = "runs", params(("job" = String, Path, description = "The id or the name of the job"), RunsFilter, Including, Paging),
    responses((status = OK, body = Page<Run>)))]
pub async fn of_job(
    may: May<RunRead>,
    JobPath(job): JobPath,
    listing: Listing<RunsFilter, true>,
) -> Result<Json<Page<Run>>, Problem> {
    let record = find(&may.view, &job_ref(&job)).await?;
    if listing.filter.job.is_some() {
        return Err(Problem::bad_parameter("job", "the job is already given in the address; leave this filter out"));
    }
    let query = query(&listing.filter, &may).await?;
    page(&may.view, &listing, RunQuery { job: Some(record.id), ..query }).await
}

/// Read the newest run of a job.
///
/// The one that was created last, live or ended. The answer is 404 if the job has no runs.
#[utoipa::path(get, path = "/jobs/{job}/runs/newest", tag = "runs", params(("job" = String, Path, description = "The id or the name of the job")),
    responses((status = OK, body = Run)))]
pub async fn newest_of_job(may: May<RunRead>, JobPath(job): JobPath) -> Result<Json<Run>, Problem> {
    let record = find(&may.view, &job_ref(&job)).await?;
    let query = RunQuery { job: Some(record.id), ..query(&RunsFilter::default(), &may).await? };
    let newest = may.view.newest_run(query).await?.ok_or_else(|| Problem::no_such("run"))?;
    shown_whole(&may.view, newest).await
}

async fn page(view: &View, listing: &Listing<RunsFilter, true>, query: RunQuery) -> Result<Json<Page<Run>>, Problem> {
    // An empty page may have a next one.
    let mut filling = listing.filling(1)?;
    while let Some((after, limit)) = filling.wanted() {
        let page = view.list_runs(RunQuery { after, limit, ..query.clone() }).await?;
        // As values they may be eighty times as large.
        if filling.is_too_much(bytes_of(&page.items, listing.include)) {
            continue;
        }
        let bytes = bytes_of(&page.items, listing.include);
        let runs = shown(view, page.items, listing.include).await?;
        aside(bytes, || filling.take(runs, page.next));
    }
    Ok(Json(listing.filled(filling)))
}

/// Bytes of what may be large of these runs, and is shown.
pub fn bytes_of(runs: &[Own<RunRecord>], include: Include) -> usize {
    let length = |text: Option<&str>, shown: bool| text.filter(|_| shown).map_or(0, str::len);
    let bytes = runs.iter().map(|record| {
        length(record.run.payload.as_deref(), include.payload) + length(record.output.as_deref(), include.output)
    });
    bytes.sum()
}

/// A run without what may be large and was not asked for.
fn as_listed(mut record: RunRecord, include: Include) -> RunRecord {
    if !include.payload {
        record.run.payload = None;
    }
    if !include.output {
        record.output = None;
    }
    record
}

/// Runs as they are answered.
pub async fn shown(view: &View, runs: Vec<Own<RunRecord>>, include: Include) -> Result<Vec<Run>, Problem> {
    let names = names(view, runs.iter().map(|record| record.run.job)).await?;
    let one = |record: Own<RunRecord>| wire::run(as_listed(record.into_inner(), include), &names);
    Ok(aside(bytes_of(&runs, include), || runs.into_iter().map(one).collect()))
}

/// The names of jobs.
pub async fn names(view: &View, jobs: impl Iterator<Item = JobId>) -> Result<Names, Problem> {
    Ok(view.jobs(jobs).await?.into_iter().map(|(id, record)| (id, record.name)).collect())
}

/// A single run, with all that it has.
async fn shown_whole(view: &View, run: Own<RunRecord>) -> Result<Json<Run>, Problem> {
    let shown = shown(view, vec![run], Include::EVERYTHING).await?.pop();
    shown.map(Json).ok_or_else(|| Problem::no_such("run"))
}

/// The caller's own run. One that ended before the tenant's history begins is not
/// there.
pub async fn find_run<P>(may: &May<P>, run: Uuid) -> Result<Own<RunRecord>, Problem> {
    let found = may.view.run(RunId(run)).await?;
    let from = may.quotas.history_from(may.view.now());
    let is_over = |record: &RunRecord| match record.run.state {
        RunState::Finished { at, .. } => from.is_some_and(|from| at < from),
        _ => false,
    };
    found.filter(|record| !is_over(record)).ok_or_else(|| Problem::no_such("run"))
}

/// Read a run.
#[utoipa::path(get, path = "/runs/{run}", tag = "runs", params(("run" = Uuid, Path)), responses((status = OK, body = Run)))]
pub async fn read(may: May<RunRead>, Id(run): Id<Uuid>) -> Result<Json<Run>, Problem> {
    let record = find_run(&may, run).await?;
    shown_whole(&may.view, record).await
}

/// Cancel a run.
///
/// The run ends at once if no attempt is in flight. Otherwise the attempt is told to stop,
/// and after the grace the run is cancelled without it. Fails with a conflict if the run has
/// ended.
#[utoipa::path(post, path = "/runs/{run}/cancel", tag = "runs", params(("run" = Uuid, Path)), request_body = CancelRequest,
    responses((status = OK, body = CancelResult)))]
pub async fn cancel(
    may: May<RunCancel>,
    Id(run): Id<Uuid>,
    Body(request): Body<CancelRequest>,
) -> Result<Json<CancelResult>, Problem> {
    let record = find_run(&may, run).await?;
    let cancel = cancel_of(&may.caller.who, request)?;
    let answer = match may.view.cancel(&record, &cancel).await? {
        store::CancelAnswer::Cancelled => CancelAnswer::Cancelled,
        store::CancelAnswer::Asked => CancelAnswer::Asked,
        store::CancelAnswer::AlreadyAsked => CancelAnswer::AlreadyAsked,
        store::CancelAnswer::Ended => return Err(Problem::new(Code::RunEnded, "the run has already ended")),
        store::CancelAnswer::NotFound => return Err(Problem::no_such("run")),
    };
    let before = json!({ "status": wire::status(record.run.state.status()) });
    let after = json!({ "answer": answer, "reason": cancel.reason });
    may.changed("run.cancel", format_args!("run/{run}"), Some(before), Some(after));
    Ok(Json(CancelResult { id: run, answer }))
}

/// What a caller asks of runs that are to stop.
pub fn cancel_of(who: &str, request: CancelRequest) -> Result<Cancel, Problem> {
    let wrong = |path: &str, message: String| {
        Problem::bad_document("the request", vec![rota_core::problem::Problem::new(path, "out_of_bounds", message)])
    };
    let parsed = |text: String| text.parse::<Span>().map_err(|error| wrong("grace", error.to_string()));
    let grace = request.grace.map(parsed).transpose()?;
    if grace.is_some_and(|grace| grace > GRACE_MAX) {
        return Err(wrong("grace", format!("may be at most {GRACE_MAX}")));
    }
    if request.reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES_MAX || reason.contains('\0')) {
        return Err(wrong("reason", format!("may have at most {REASON_BYTES_MAX} bytes, without NUL")));
    }
    Ok(Cancel { by: Some(who.to_owned()), reason: request.reason, grace })
}

/// Retry a run.
///
/// Creates a new run with the same payload and labels, of the same version of the job or
/// of its newest. Only a run that has ended can be retried, and only once unless `again`
/// is set: retry the new run instead.
#[utoipa::path(post, path = "/runs/{run}/retry", tag = "runs", params(("run" = Uuid, Path)), request_body = RetryRequest,
    responses((status = ACCEPTED, body = RunMade)))]
pub async fn retry(
    may: May<RunCancel>,
    Id(run): Id<Uuid>,
    Body(request): Body<RetryRequest>,
) -> Result<Response, Problem> {
    let record = find_run(&may, run).await?;
    if !matches!(record.run.state, RunState::Finished { .. }) {
        return Err(Problem::new(Code::RunLive, "the run has not ended; wait for its end, or cancel it first"));
    }
    if matches!(record.run.state, RunState::Finished { verdict: Verdict::Dead, .. }) {
        may.has_dead_letters()?;
    }
    let how =
        Redrive { by: Some(may.caller.who.clone()), latest: request.latest, again: request.again, dry_run: false };
    let made = may.view.redrive(&record, &how).await?.ok_or_else(|| Problem::no_such("run"))?;
    if let Made::Duplicate { of } = made {
        let detail = format!("the run was already retried as {of}: retry that one, or set `again`");
        return Err(Problem::new(Code::Duplicate, detail));
    }
    let made = made_run(made, may.view.now())?;
    may.changed("run.retry", format_args!("run/{run}"), None, kept(&made));
    Ok((StatusCode::ACCEPTED, Json(made)).into_response())
}

/// Why a run waits.
///
/// In words and data, computed from the same facts as the decision itself: the limit it
/// reached, the pause and its note, the trait that no worker offers, its place in the queue.
#[utoipa::path(get, path = "/runs/{run}/why", tag = "runs", params(("run" = Uuid, Path)), responses((status = OK, body = Why)))]
pub async fn why(may: May<RunRead>, Id(run): Id<Uuid>) -> Result<Json<Why>, Problem> {
    let record = find_run(&may, run).await?;
    Ok(Json(wire::why(&may.view.why_run(&record).await?)))
}

/// What happened to a run.
///
/// Oldest first; limited like the run's trail.
#[utoipa::path(get, path = "/runs/{run}/events", tag = "runs", params(("run" = Uuid, Path)),
    responses((status = OK, body = Vec<RunEvent>)))]
pub async fn events(may: May<RunRead>, Id(run): Id<Uuid>) -> Result<Json<Vec<RunEvent>>, Problem> {
    let record = find_run(&may, run).await?;
    Ok(Json(wire::events(&record)))
}

#[derive(Clone, Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogFilter {
    /// Only the lines of this attempt.
    attempt: Option<u16>,
}

/// The log of a run.
///
/// Lines in the order in which they were written, page by page. While the run is live,
/// the last page has a `next` too: use it later to get the lines written since. A run that
/// has ended has its complete log.
#[utoipa::path(get, path = "/runs/{run}/logs", tag = "runs", params(("run" = Uuid, Path), LogFilter, Paging),
    responses((status = OK, body = Page<LogLine>)))]
pub async fn logs(
    may: May<RunRead>,
    Id(run): Id<Uuid>,
    listing: Listing<LogFilter>,
) -> Result<Json<Page<LogLine>>, Problem> {
    let record = find_run(&may, run).await?;
    let after: Option<(u16, i32)> = listing.cursor()?;
    // A chunk holds many lines.
    let limit = listing.limit.min(100);
    let chunks = may.view.logs(&record, listing.filter.attempt, after, limit).await?;
    let full = chunks.len() >= limit as usize;
    // Read before the lines: they are all there when a run has ended.
    let open = !matches!(record.run.state, RunState::Finished { .. });
    let last = chunks.last().map(|chunk| (chunk.attempt, chunk.seq)).or(after).unwrap_or((0, -1));
    let lines = chunks.iter().flat_map(lines_of).collect();
    Ok(Json(listing.page(lines, (full || open).then_some(&last))))
}

fn lines_of(chunk: &LogChunk) -> impl Iterator<Item = LogLine> {
    #[derive(Deserialize)]
    struct Stored {
        at: jiff::Timestamp,
        stream: String,
        text: String,
    }
    chunk.lines.lines().filter_map(|line| serde_json::from_str::<Stored>(line).ok()).map(|line| LogLine {
        attempt: chunk.attempt,
        at: line.at,
        stream: line.stream,
        text: line.text,
    })
}
