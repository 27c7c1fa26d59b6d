//! Workers: the exchange of remote ones, and the list of all.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, request::Parts},
};
use rota_api::{
    page::Page,
    problem::Code,
    run::JobRef,
    worker::{
        Attempt, AttemptError, AttemptOutcome, CancelOrder, FINISHED_MAX, Finished, LEASES_MAX, LeaseRef, LogReport,
        NAMES_MAX, ProgressReport, ReportAnswer, ReportStatus, SyncAnswer, SyncRequest, WORDS_MAX, Worker, WorkerHello,
        WorkerState,
    },
};
use rota_core::{
    bytes,
    duration::Span,
    ids::{RunId, TenantId, WorkerId},
    job::{
        failure::{ErrorKind, Failure, RetryAdvice},
        step::{Step, StepKind},
    },
    ports::{Progress, Stream},
    run::{Fence, Lease, Outcome, Report},
    store,
};
use rota_engine::remote::{Exchange, ExchangeAnswer, ExchangeError, Hello, Line, LogPiece, Offer, ReportAck, Work};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use crate::{
    Node,
    access::{self, JobExecute, May, Recheck, RunRead},
    body::Body,
    bounds::Place,
    problem::Problem,
    query::{Id, Listing, Paging},
};

/// A node that goes is not asked again before so many milliseconds.
const ELSEWHERE_MS: u64 = 500;
/// A worker that finds as many others as there may be is asked to come again when those
/// that are gone have been forgotten.
const LIMIT_RETRY_SECONDS: u64 = 10;
/// Characters of a name.
const NAME_MAX: usize = 200;
/// Bytes of all names of a worker: a node keeps them of every worker.
const NAMES_BYTES_MAX: usize = 16 << 10;

pub fn router() -> OpenApiRouter<Node> {
    OpenApiRouter::new().routes(routes!(sync)).routes(routes!(list)).routes(routes!(drain))
}

/// Exchange work.
///
/// The whole protocol of a remote worker: it sends who it is, what it can execute and
/// what it has done, and receives what to do next. Waits up to `wait_ms` for work or other
/// news. See docs/workers.md.
#[utoipa::path(post, path = "/workers/sync", tag = "workers", request_body = SyncRequest,
    responses((status = OK, body = SyncAnswer)))]
pub async fn sync(
    may: May<JobExecute>,
    State(node): State<Node>,
    asked: Parts,
    Body(request): Body<SyncRequest>,
) -> Result<Json<SyncAnswer>, Problem> {
    // Runs say themselves what became of them.
    may.changed_nothing();
    check(&request)?;
    let carries = !(request.finished.is_empty() && request.progress.is_empty() && request.logs.is_empty());
    if !carries && let Some(place) = asked.extensions.get::<Place>() {
        // It waits as long as it likes, with next to nothing in its hands.
        place.leave();
    }
    let leases: Vec<LeaseRef> =
        request.finished.iter().map(|finished| LeaseRef { run: finished.run, fence: finished.fence }).collect();
    let now = may.view.now();
    let mut recheck = Recheck::begin::<JobExecute>(node, asked, may.caller.tenant);
    let answer = tokio::select! {
        answer = may.view.exchange(exchange(request, may.caller.tenant, now)) => answer,
        // As when its connection breaks: what it was to be given goes to others.
        () = recheck.lost() => return Err(access::unknown()),
    };
    let answer = answer.map_err(|error| match error {
        ExchangeError::Store(error) => error.into(),
        ExchangeError::LimitReached(reached) => {
            Problem::new(Code::TooMany, reached.to_string()).retry_after(LIMIT_RETRY_SECONDS)
        }
        ExchangeError::Foreign => {
            Problem::new(Code::Conflict, "the worker's id is used by another worker; generate a new UUID")
        }
    })?;
    let lease = may.view.run_lease();
    Ok(Json(told(answer, &leases, lease, may.view.now())))
}

/// Which workers to list.
#[derive(Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WorkerFilter {
    /// `active`, `draining` or `dead`.
    state: Option<WorkerState>,
}

/// List workers.
///
/// Lists the workers of the tenant, and those built into nodes. A dead worker is listed for
/// a day.
#[utoipa::path(get, path = "/workers", tag = "workers", params(WorkerFilter, Paging),
    responses((status = OK, body = Page<Worker>)))]
pub async fn list(may: May<RunRead>, listing: Listing<WorkerFilter>) -> Result<Json<Page<Worker>>, Problem> {
    let after: Option<WorkerId> = listing.cursor()?;
    let found = may.view.workers(after, listing.limit).await?;
    let full = found.len() >= listing.limit as usize;
    let next = found.last().filter(|_| full).map(|worker| worker.worker);
    let now = may.view.now();
    let workers = found.into_iter().map(|worker| on_the_wire(worker, now));
    let wanted = |worker: &Worker| listing.filter.state.is_none_or(|state| state == worker.state);
    Ok(Json(listing.page(workers.filter(wanted).collect(), next.as_ref())))
}

/// Ask a worker to drain.
///
/// The worker takes no more work, finishes its attempts, and leaves. It is told with its
/// next exchange.
#[utoipa::path(post, path = "/workers/{id}/drain", tag = "workers", params(("id" = Uuid, Path)),
    responses((status = ACCEPTED)))]
pub async fn drain(may: May<JobExecute>, Id(id): Id<Uuid>) -> Result<StatusCode, Problem> {
    if !may.view.drain_worker(WorkerId(id)).await? {
        return Err(Problem::no_such("worker"));
    }
    may.changed("worker.drain", format_args!("worker/{id}"), None, None);
    Ok(StatusCode::ACCEPTED)
}

fn on_the_wire(worker: store::Worker, now: jiff::Timestamp) -> Worker {
    let state = match &worker {
        worker if worker.until < now => WorkerState::Dead,
        worker if worker.draining || worker.drain_asked => WorkerState::Draining,
        _ => WorkerState::Active,
    };
    let info = worker.info;
    Worker {
        id: worker.worker.0,
        name: worker.name,
        state,
        built_in: info.built_in,
        version: info.version,
        node: info.node,
        queues: info.queues,
        traits: info.traits,
        handlers: info.handlers,
        kinds: info.kinds,
        slots: info.slots,
        busy: info.busy,
        began_at: worker.began_at,
        seen_at: worker.seen_at,
    }
}

/// Everything is bounded.
fn check(request: &SyncRequest) -> Result<(), Problem> {
    let hello = &request.worker;
    let lists = [
        ("leases", request.leases.len(), LEASES_MAX),
        ("finished", request.finished.len(), FINISHED_MAX),
        ("progress", request.progress.len(), WORDS_MAX),
        ("logs", request.logs.len(), WORDS_MAX),
        ("worker.queues", hello.queues.len(), NAMES_MAX),
        ("worker.traits", hello.traits.len(), NAMES_MAX),
        ("worker.handlers", hello.handlers.len(), NAMES_MAX),
        ("worker.kinds", hello.kinds.len(), NAMES_MAX),
    ];
    let mut problems: Vec<rota_core::problem::Problem> = lists
        .into_iter()
        .filter(|(_, count, most)| count > most)
        .map(|(path, _, most)| wrong(path, format!("may have at most {most} entries")))
        .collect();
    let names = [("worker.name", &hello.name), ("worker.version", &hello.version)];
    let long = names.into_iter().filter(|(_, name)| name.len() > NAME_MAX || name.contains('\0'));
    problems.extend(
        long.map(|(path, _)| wrong(path, format!("a name may have at most {NAME_MAX} characters, without NUL"))),
    );
    let offered = [&hello.queues, &hello.traits, &hello.handlers, &hello.kinds].into_iter().flatten();
    if offered.clone().any(|name| name.len() > NAME_MAX || name.contains('\0')) {
        problems.push(wrong("worker", format!("a name may have at most {NAME_MAX} characters, without NUL")));
    }
    if offered.map(String::len).sum::<usize>() > NAMES_BYTES_MAX {
        problems.push(wrong("worker", format!("all names together may have at most {NAMES_BYTES_MAX} bytes")));
    }
    if problems.is_empty() { Ok(()) } else { Err(Problem::bad_document("the exchange", problems)) }
}

fn wrong(path: &str, message: String) -> rota_core::problem::Problem {
    rota_core::problem::Problem::new(path.to_owned(), "bad_value", message)
}

fn lease(run: Uuid, fence: i32) -> Lease {
    Lease { run: RunId(run), fence: Fence(fence) }
}

fn exchange(request: SyncRequest, tenant: TenantId, now: jiff::Timestamp) -> Exchange {
    Exchange {
        hello: hello(request.worker, tenant),
        free: request.free,
        wait: (request.wait_ms > 0).then(|| Span::millis(request.wait_ms)),
        leases: request.leases.iter().map(|held| lease(held.run, held.fence)).collect(),
        finished: request.finished.into_iter().map(|one| (lease(one.run, one.fence), report(one))).collect(),
        progress: request.progress.into_iter().map(progress).collect(),
        logs: request.logs.into_iter().map(|piece| piece_of(piece, now)).collect(),
        leaving: request.leaving,
    }
}

fn hello(hello: WorkerHello, tenant: TenantId) -> Hello {
    let names = |mut names: Vec<String>| {
        names.sort();
        names.dedup();
        names
    };
    Hello {
        worker: WorkerId(hello.id),
        tenant,
        name: hello.name,
        version: hello.version,
        offer: Offer {
            queues: names(hello.queues),
            traits: names(hello.traits),
            handlers: names(hello.handlers),
            kinds: names(hello.kinds),
        },
        slots: hello.slots,
        draining: hello.draining,
    }
}

/// What a worker reports of an attempt.
///
/// A report that says too little is a failure of its attempt: refused, it would take
/// along all that is reported beside it, and be made again for ever.
fn report(finished: Finished) -> Report {
    let outcome = match finished.outcome {
        AttemptOutcome::Succeeded => {
            let output = finished.output.filter(|output| !output.is_null());
            Outcome::Succeeded { output: output.map(|output| output.to_string().into()) }
        }
        AttemptOutcome::Failed => match finished.error {
            Some(error) => failed(error),
            None => misreported("the attempt failed, and its worker did not report an error"),
        },
        AttemptOutcome::Cancelled => Outcome::Cancelled,
        AttemptOutcome::HandedBack => return Report::HandedBack,
        AttemptOutcome::Deferred => match finished.until {
            Some(until) => {
                let reason = finished.reason.unwrap_or_else(|| "deferred by its worker".to_owned());
                Outcome::Deferred { until, reason }
            }
            None => misreported("its worker deferred it without `until`"),
        },
    };
    Report::Outcome(outcome.bounded())
}

fn misreported(message: &str) -> Outcome {
    Outcome::Failed(Failure::new(ErrorKind::Handler, message))
}

fn failed(mut error: AttemptError) -> Outcome {
    let kind = error.kind.take();
    let known = kind.as_deref().map_or(Some(ErrorKind::Handler), kind_named);
    if let (None, Some(name)) = (known, kind) {
        error.message = format!("unknown error kind `{}`: {}", bytes::kept(&name, 64), error.message);
    }
    Outcome::Failed(failure(known.unwrap_or(ErrorKind::Handler), error))
}

fn kind_named(name: &str) -> Option<ErrorKind> {
    ErrorKind::ALL.iter().copied().find(|kind| kind.as_str() == name)
}

fn failure(kind: ErrorKind, error: AttemptError) -> Failure {
    let advice = match (error.retry, error.retry_after_ms) {
        (Some(false), _) => RetryAdvice::Never,
        (_, Some(wait)) => RetryAdvice::After(Span::millis(wait)),
        (_, None) => RetryAdvice::ByPolicy,
    };
    Failure { kind, status: error.status, message: error.message, advice }
}

fn progress(report: ProgressReport) -> (Lease, Progress) {
    let ProgressReport { percent, phase, message, .. } = report;
    (lease(report.run, report.fence), Progress { percent, phase, message }.bounded())
}

fn piece_of(piece: LogReport, now: jiff::Timestamp) -> LogPiece {
    let stream = |name: Option<&str>| {
        let named = Stream::ALL.iter().copied().find(|stream| Some(stream.as_str()) == name);
        named.unwrap_or(Stream::Stdout)
    };
    let line = |line: rota_api::worker::LogText| Line {
        // A clock that is far off must not put lines into another day.
        at: line.at.filter(|at| now.duration_since(*at).abs() < jiff::SignedDuration::from_hours(1)).unwrap_or(now),
        stream: stream(line.stream.as_deref()),
        text: bytes::kept(&line.text, bytes::LOG_LINE_BYTES_MAX).into_owned(),
    };
    let lines = piece.lines.into_iter().map(line).collect();
    LogPiece { lease: lease(piece.run, piece.fence), seq: piece.seq, lines }
}

fn told(answer: ExchangeAnswer, reported: &[LeaseRef], lease: Span, now: jiff::Timestamp) -> SyncAnswer {
    let status = |told: ReportAck| match told {
        ReportAck::Applied => ReportStatus::Applied,
        ReportAck::Stale => ReportStatus::Stale,
        ReportAck::Pending => ReportStatus::Pending,
    };
    let reports = reported.iter().zip(answer.reports).map(|(of, told)| {
        let status = status(told);
        ReportAnswer { run: of.run, fence: of.fence, status, code: status.code() }
    });
    let cancel = answer.stops.iter().map(|stop| CancelOrder {
        run: stop.lease.run.0,
        fence: stop.lease.fence.0,
        grace_ms: now.duration_until(stop.grace_until).as_millis().max(0) as u64,
    });
    let mut lost: Vec<LeaseRef> =
        answer.lost.iter().map(|lease| LeaseRef { run: lease.run.0, fence: lease.fence.0 }).collect();
    lost.sort_unstable_by_key(|lease| (lease.run, lease.fence));
    lost.dedup();
    SyncAnswer {
        reports: reports.collect(),
        cancel: cancel.collect(),
        lost,
        drain: answer.drain,
        lease_ms: lease.as_millis(),
        retry_after_ms: answer.elsewhere.then_some(ELSEWHERE_MS),
        attempts: answer.attempts.into_iter().map(attempt).collect(),
    }
}

fn attempt(work: Work) -> Attempt {
    let kind = work.attempt.step.name().to_owned();
    let run = work.attempt.lease.run.0;
    let (handler, payload, spec) = match work.attempt.step {
        StepKind::Handler(handler) => (Some(handler.name), handler.payload.unwrap_or(work.attempt.payload), None),
        step => (None, work.attempt.payload, spec(&work.step_id, step)),
    };
    Attempt {
        run,
        fence: work.attempt.lease.fence.0,
        attempt: work.attempt.number,
        job: JobRef { id: work.attempt.job.0, name: work.job_name },
        version: work.attempt.version,
        step: work.step_id,
        kind,
        handler,
        payload,
        spec,
        labels: work.labels,
        source: serde_json::to_value(work.trigger.source)
            .ok()
            .and_then(|source| source.as_str().map(str::to_owned))
            .unwrap_or_default(),
        planned_at: work.trigger.planned_at,
        timeout_ms: work.timeout.map(Span::as_millis),
        deadline_at: work.attempt.deadline_at,
        cancelable: work.cancelable,
        idempotency_key: run.to_string(),
        alone: work.alone,
        traceparent: work.attempt.traceparent.map(String::from),
    }
}

/// A built-in step as in a document, and nothing but what it does.
fn spec(id: &str, kind: StepKind) -> Option<serde_json::Value> {
    let step = Step {
        id: id.to_owned(),
        kind,
        needs: None,
        condition: None,
        on_failure: None,
        foreach: None,
        always: None,
        timeout: None,
        retry: None,
        queue: None,
        requires: None,
        cancelable: None,
    };
    serde_json::to_value(step).ok()
}
