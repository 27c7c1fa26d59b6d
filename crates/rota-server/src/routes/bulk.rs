//! Many at once: as a stream of lines, or by a filter.
//!
//! A stream is read as it comes and answered line by line, in order; a line that
//! is refused takes no other along. Lines are taken in batches, each one
//! transaction, and the next batch is read while one is being written. A batch is
//! bounded in lines and in bytes. Answers that nobody reads are kept up to a number of
//! bytes, then the stream waits: a client that sends everything before it reads must keep
//! its request under about 100,000 lines, fewer where many streams are not read, or ask for
//! refusals only.
//!
//! A stream takes a place among those in work for each batch that is written, and one
//! among the streams for as long as it lasts. What its caller proved is asked again
//! meanwhile.

use axum::{
    Json,
    body::{Body as HttpBody, Bytes},
    extract::{Request, State},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;
use rota_api::{
    PauseRequest,
    bulk::{BulkCancel, BulkDone, BulkPause, BulkRedrive, BulkResume, JobLine, JobsFilter, RunLine, TriggerLine},
    problem::Code,
    run::CancelRequest,
};
use rota_core::{
    ids::TenantId,
    job::read,
    run::Source,
    store::{JobQuery, JobRecord, PauseTarget, RunQuery},
    trace::TraceParent,
};
use rota_engine::{CancelledMany, Made, Own, Redrive, RedrivenMany, RunAsk};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout_at},
};
use utoipa::IntoParams;

use super::{
    jobs::{job_ref, made_run, run_ask, save_one},
    runs::{cancel_of, query as runs_query},
};
use crate::{
    Node,
    access::{self, JobExecute, JobWrite, May, Need, Recheck, RunCancel},
    body::{self, Body},
    bounds::Place,
    memory::{Memory, Share},
    problem::Problem,
    query::Query,
};

/// Lines that are taken together.
const LINES: usize = 1_000;
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Bytes of lines that are taken together; one line is, however long it is.
const BATCH_BYTES_MAX: usize = 1 << 20;
const NUL: &[u8] = b"\\u0000";
/// Bytes of answers that wait for their reader, besides those of one batch, where the node
/// has room for so many.
const ANSWER_BYTES_KEPT: usize = 16 << 20;
/// Bytes of answers for which there is always room.
const OWN_ANSWER_BYTES: usize = 64 << 10;
/// Bytes of lines for which there is always room.
const OWN_LINE_BYTES: usize = 64 << 10;
/// Batches of answers that wait for their reader, however short they are.
const ANSWERS_KEPT: usize = 10_000;
/// Runs or jobs that one request by filter touches; it says so where there are more.
pub const TOUCHED_MAX: u64 = 100_000;
pub const PAGE: u32 = 1_000;

#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Answers {
    /// Answer only the lines that were refused.
    #[serde(default)]
    refused_only: bool,
}

/// Trigger jobs, one per line.
///
/// Every line of the body is a JSON object: the fields of a trigger, and `job`.
/// Every line of the answer has the number of the line, and the run or the
/// problem.
#[utoipa::path(post, path = "/bulk/runs", tag = "bulk", params(Answers),
    request_body(content = TriggerLine, content_type = "application/x-ndjson"),
    responses((status = OK, body = RunLine, content_type = "application/x-ndjson")))]
pub async fn runs(
    may: May<JobExecute>,
    State(node): State<Node>,
    Query(answers): Query<Answers>,
    request: Request,
) -> Result<Response, Problem> {
    must_be_lines(request.headers())?;
    let mut lines = Lines::of::<JobExecute>(request, node.clone(), may.caller.tenant)?;
    // Once for the stream: each run says itself who made it.
    may.changed("job.trigger_many", "jobs", None, None);
    let (sender, answer) = answering(&node);
    tokio::spawn(async move {
        loop {
            let batch = lines.next().await;
            let place = lines.place(&batch).await;
            let batch = lines.allowed(batch).await;
            let end = batch.is_end;
            let told = trigger_batch(&may, batch, answers.refused_only).await;
            drop(place);
            if sender.send(told).await.is_err() || end {
                return;
            }
        }
    });
    Ok(answer)
}

async fn trigger_batch(may: &May<JobExecute>, batch: Batch, refused_only: bool) -> Bytes {
    let mut refused: Vec<(u64, Problem)> = Vec::new();
    let mut asks: Vec<(u64, RunAsk)> = Vec::with_capacity(batch.lines.len());
    let weight = batch.weight();
    body::aside(weight, || {
        for (line, text) in batch.lines {
            match ask_of(may, &text) {
                Ok(ask) => asks.push((line, ask)),
                Err(problem) => refused.push((line, problem)),
            }
        }
    });
    refused.extend(batch.broken);
    let (numbers, asks): (Vec<u64>, Vec<RunAsk>) = asks.into_iter().unzip();
    let made = if asks.is_empty() { Ok(Vec::new()) } else { may.view.enqueue(asks, None).await };
    let now = may.view.now();
    let mut answers: Vec<RunLine> = match made {
        Ok(made) => numbers.into_iter().zip(made).map(|(line, made)| run_line(line, made, now)).collect(),
        Err(error) => {
            let problem = Problem::from(error);
            numbers.into_iter().map(|line| refused_line(line, &problem)).collect()
        }
    };
    body::aside(weight, || {
        answers.extend(refused.iter().map(|(line, problem)| refused_line(*line, problem)));
        answers.sort_by_key(|answer| answer.line);
        written(answers.iter().filter(|answer| !refused_only || answer.error.is_some()))
    })
}

fn ask_of(may: &May<JobExecute>, text: &[u8]) -> Result<RunAsk, Problem> {
    let line: TriggerLine = parsed(text)?;
    let (job, request, traceparent) = line.split();
    let mut ask = run_ask(may.caller.tenant, job_ref(&job), request, Source::Api, &may.caller.who)?;
    ask.trigger.traceparent = traceparent.as_deref().and_then(TraceParent::parse);
    Ok(ask)
}

/// Read straight into its type, which is what makes 100,000 lines a second
/// possible; what cannot be read so is read again for a better message.
///
/// Serde would also take a list for the fields in their order; only a map is a line.
fn parsed<T: serde::de::DeserializeOwned + Serialize>(text: &[u8]) -> Result<T, Problem> {
    if text.first() == Some(&b'{')
        && !may_hold_nul(text)
        && let Ok(parsed) = serde_json::from_slice(text)
    {
        return Ok(parsed);
    }
    body::typed(value(text)?)
}

/// A NUL inside of a text, which no store keeps: a batch that holds one would fail as a
/// whole. It can only be written as an escape.
fn may_hold_nul(text: &[u8]) -> bool {
    text.windows(NUL.len()).any(|part| part == NUL)
}

fn value(text: &[u8]) -> Result<Value, Problem> {
    read::json(text).map_err(|problem| Problem::bad_request(format!("the line is not valid: {problem}")))
}

fn run_line(line: u64, made: Made, now: jiff::Timestamp) -> RunLine {
    match made_run(made, now) {
        Ok(made) => RunLine { line, id: Some(made.id), status: Some(made.status), error: None },
        Err(problem) => refused_line(line, &problem),
    }
}

fn refused_line(line: u64, problem: &Problem) -> RunLine {
    RunLine { line, id: None, status: None, error: Some(problem.document().clone()) }
}

/// Save jobs, one per line.
///
/// Every line of the body is a job document, which is saved as with PUT. Every
/// line of the answer has the number of the line, and what was saved or the
/// problem.
#[utoipa::path(post, path = "/bulk/jobs", tag = "bulk", params(Answers),
    request_body(content = Object, content_type = "application/x-ndjson"),
    responses((status = OK, body = JobLine, content_type = "application/x-ndjson")))]
pub async fn jobs(
    may: May<JobWrite>,
    State(node): State<Node>,
    Query(answers): Query<Answers>,
    request: Request,
) -> Result<Response, Problem> {
    must_be_lines(request.headers())?;
    let mut lines = Lines::of::<JobWrite>(request, node.clone(), may.caller.tenant)?;
    // Each job that is saved is written down as it is saved.
    may.changed_nothing();
    let (sender, answer) = answering(&node);
    tokio::spawn(async move {
        loop {
            let batch = lines.next().await;
            let place = lines.place(&batch).await;
            let batch = lines.allowed(batch).await;
            let end = batch.is_end;
            let mut told = Vec::with_capacity(batch.lines.len());
            for (line, text) in batch.lines {
                let saved = match body::aside(text.len(), || value(&text)) {
                    Ok(value) => save_one(&may, value).await,
                    Err(problem) => Err(problem),
                };
                told.push(match saved {
                    Ok(saved) => JobLine { line, saved: Some(saved), error: None },
                    Err(problem) => JobLine { line, saved: None, error: Some(problem.document().clone()) },
                });
            }
            // The answer has begun to leave, so nobody else keeps them.
            may.keep_changes().await;
            drop(place);
            let broken = batch.broken.into_iter();
            told.extend(broken.map(|(line, problem)| JobLine {
                line,
                saved: None,
                error: Some(problem.document().clone()),
            }));
            told.sort_by_key(|answer| answer.line);
            let told = written(told.iter().filter(|answer| !answers.refused_only || answer.error.is_some()));
            if sender.send(told).await.is_err() || end {
                return;
            }
        }
    });
    Ok(answer)
}

fn must_be_lines(headers: &HeaderMap) -> Result<(), Problem> {
    let said = headers.get(header::CONTENT_TYPE).and_then(|said| said.to_str().ok()).unwrap_or_default();
    let essence = said.split(';').next().unwrap_or_default().trim();
    if ["application/x-ndjson", "application/jsonl"].contains(&essence) {
        return Ok(());
    }
    Err(Problem::new(
        Code::UnsupportedMediaType,
        "the Content-Type must be application/x-ndjson: one JSON document per line",
    ))
}

/// What an answer takes up until it is on its way: of what its stream may keep, and of what
/// all streams may keep or what this one always may.
type Room = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// Where answers are written, and the response that carries them.
fn answering(node: &Node) -> (Answering, Response) {
    let (sender, mut receiver) = mpsc::channel::<(Bytes, Room)>(ANSWERS_KEPT);
    let stream = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
    // The room of an answer is free again when it is on its way.
    let body = HttpBody::from_stream(stream.map(|(told, _)| Ok::<_, std::convert::Infallible>(told)));
    let room = |bytes| Arc::new(Semaphore::new(bytes));
    let memory = node.memory().clone();
    let sender = Answering { sender, kept: room(ANSWER_BYTES_KEPT), own: room(OWN_ANSWER_BYTES), memory };
    (sender, ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// Answers on their way to a client, which may be slow to read them.
struct Answering {
    sender: mpsc::Sender<(Bytes, Room)>,
    kept: Arc<Semaphore>,
    own: Arc<Semaphore>,
    memory: Memory,
}

impl Answering {
    /// Waits until there is room. Fails when nobody reads any more.
    async fn send(&self, told: Bytes) -> Result<(), Gone> {
        let room = tokio::select! {
            room = self.room(told.len()) => room?,
            () = self.sender.closed() => return Err(Gone),
        };
        self.sender.send((told, room)).await.map_err(|_| Gone)
    }

    async fn room(&self, bytes: usize) -> Result<Room, Gone> {
        let wait = async |room: &Arc<Semaphore>, bytes: usize| {
            Arc::clone(room).acquire_many_owned(bytes as u32).await.map_err(|_| Gone)
        };
        let kept = wait(&self.kept, bytes.min(ANSWER_BYTES_KEPT)).await?;
        let room = match self.memory.unread(bytes) {
            Some(room) => room,
            None => wait(&self.own, bytes.min(OWN_ANSWER_BYTES)).await?,
        };
        Ok((kept, room))
    }
}

/// The client has gone.
struct Gone;

fn written<'a, T: Serialize + 'a>(answers: impl Iterator<Item = &'a T>) -> Bytes {
    let mut text = Vec::new();
    for answer in answers {
        // Plain data always has a JSON form.
        drop(serde_json::to_writer(&mut text, answer));
        text.push(b'\n');
    }
    text.into()
}

/// Some lines of a stream, by their numbers.
struct Batch {
    lines: Vec<(u64, Bytes)>,
    /// Lines that could not be read, the last thing that was read among them.
    broken: Option<(u64, Problem)>,
    is_end: bool,
}

/// What a line counts besides its bytes: it is looked up, and answered.
const LINE_WEIGHT: usize = 100;

impl Batch {
    /// What the batch counts among what is worked on.
    fn weight(&self) -> usize {
        self.lines.iter().map(|(_, text)| text.len() + LINE_WEIGHT).sum()
    }
}

/// What was read of a body, from which lines are taken. Each byte is searched once, however
/// many chunks a line comes in and however many batches a chunk is taken in.
#[derive(Default)]
struct Unread {
    bytes: Vec<u8>,
    /// The lines that end before this were taken.
    taken: usize,
    /// No line that is left ends before this.
    searched: usize,
}

impl Unread {
    fn push(&mut self, chunk: &[u8]) {
        self.bytes.drain(..self.taken);
        if self.bytes.len() < OWN_LINE_BYTES {
            // What a long line took is not kept for short ones.
            self.bytes.shrink_to(OWN_LINE_BYTES);
        }
        self.searched -= self.taken;
        self.taken = 0;
        self.bytes.extend_from_slice(chunk);
    }

    /// Takes the next whole line, if it has no more bytes than that.
    fn line(&mut self, most: usize) -> Option<&[u8]> {
        let Some(length) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return None;
        };
        let (start, end) = (self.taken, self.searched + length);
        if end - start > most {
            self.searched = end;
            return None;
        }
        self.taken = end + 1;
        self.searched = self.taken;
        Some(self.bytes[start..end].trim_ascii())
    }

    /// Whether a whole line is left that was found and not taken.
    fn has_line(&self) -> bool {
        self.searched < self.bytes.len()
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }
}

/// The lines of a body, a batch at a time.
struct Lines {
    chunks: axum::body::BodyDataStream,
    unread: Unread,
    line: u64,
    ended: bool,
    /// The next line must have come within this time.
    line_time: Duration,
    place: Option<Place>,
    /// Of what may arrive at once, where this stream has much in hand.
    arriving: Share,
    recheck: Recheck,
    /// Among the streams; given back with this.
    _stream: Option<OwnedSemaphorePermit>,
}

impl Lines {
    fn of<P: Need>(request: Request, node: Node, tenant: TenantId) -> Result<Self, Problem> {
        let (asked, body) = request.into_parts();
        let line_time = node.bounds().body_time;
        let place = asked.extensions.get::<Place>().cloned();
        let stream = place.as_ref().map(Place::stream).transpose()?;
        let recheck = Recheck::begin::<P>(node, asked, tenant);
        let chunks = body.into_data_stream();
        Ok(Self {
            chunks,
            unread: Unread::default(),
            line: 0,
            ended: false,
            line_time,
            place,
            arriving: None,
            recheck,
            _stream: stream,
        })
    }

    /// A place among the requests in work, and a share of memory, for one batch: between
    /// batches the stream waits for its client, and takes nobody's.
    async fn place(&mut self, batch: &Batch) -> Option<(OwnedSemaphorePermit, Share)> {
        let place = self.place.clone()?;
        let counted = place.wait().await?;
        Some((counted, place.memory().work(batch.weight()).await))
    }

    /// The batch, if its caller may still have it done; else none of it, and the end.
    async fn allowed(&mut self, batch: Batch) -> Batch {
        if self.recheck.holds().await {
            return batch;
        }
        let first = batch.lines.first().map_or(self.line + 1, |(line, _)| *line);
        Batch { lines: Vec::new(), broken: Some((first, access::unknown())), is_end: true }
    }

    async fn next(&mut self) -> Batch {
        let mut lines = Vec::new();
        let mut bytes = 0;
        let mut line_by = Instant::now() + self.line_time;
        self.arriving = None;
        loop {
            let before = self.line;
            let split = self.split(&mut lines, &mut bytes);
            if split == Split::TooLong {
                return self.broken_off(lines, Problem::too_large(LINE_BYTES_MAX));
            }
            if self.line > before {
                line_by = Instant::now() + self.line_time;
            }
            if split == Split::Full || self.ended {
                return Batch { lines, broken: None, is_end: self.ended && self.unread.len() == 0 };
            }
            if self.unread.len() > LINE_BYTES_MAX {
                return self.broken_off(lines, Problem::too_large(LINE_BYTES_MAX));
            }
            if bytes + self.unread.len() > OWN_LINE_BYTES
                && self.arriving.is_none()
                && timeout_at(line_by, self.arrive()).await.is_err()
            {
                return self.broken_off(lines, Problem::busy());
            }
            let read = tokio::select! {
                biased;
                () = self.recheck.due() => {
                    if !self.recheck.holds().await {
                        return Batch { lines, broken: None, is_end: true };
                    }
                    continue;
                }
                read = timeout_at(line_by, self.chunks.next()) => read,
            };
            match read {
                Ok(Some(Ok(chunk))) => self.unread.push(&chunk),
                Ok(None) => {
                    self.ended = true;
                    if self.unread.len() > 0 {
                        self.unread.push(b"\n");
                    }
                }
                Ok(Some(Err(_))) => return self.broken_off(lines, Problem::bad_request("the body ended early")),
                Err(_) => return self.broken_off(lines, Problem::slow_body()),
            }
        }
    }

    /// Waits until this stream may have as much in hand as a stream may.
    async fn arrive(&mut self) {
        if let Some(place) = &self.place {
            self.arriving = place.arriving(None).await;
        }
    }

    fn broken_off(&mut self, lines: Vec<(u64, Bytes)>, problem: Problem) -> Batch {
        self.ended = true;
        self.unread = Unread::default();
        Batch { lines, broken: Some((self.line + 1, problem)), is_end: true }
    }

    /// Takes whole lines off what was read, as many as are taken together. Empty ones are
    /// counted and left out.
    fn split(&mut self, lines: &mut Vec<(u64, Bytes)>, bytes: &mut usize) -> Split {
        while lines.len() < LINES {
            let room = if lines.is_empty() { usize::MAX } else { BATCH_BYTES_MAX - *bytes };
            let Some(text) = self.unread.line(room) else {
                return if self.unread.has_line() { Split::Full } else { Split::Wanting };
            };
            if text.len() > LINE_BYTES_MAX {
                return Split::TooLong;
            }
            self.line += 1;
            if !text.is_empty() {
                *bytes += text.len();
                lines.push((self.line, Bytes::copy_from_slice(text)));
            }
        }
        Split::Full
    }
}

/// What came of taking lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// No more are taken together.
    Full,
    /// There is room for more than has come.
    Wanting,
    /// The next one is longer than a line may be, however it came.
    TooLong,
}

/// Cancel runs by a filter.
///
/// Cancels the live runs that the filter finds, up to 100,000 at a time. Runs that are
/// already cancelling are found and left unchanged.
#[utoipa::path(post, path = "/bulk/cancel", tag = "bulk", request_body = BulkCancel, responses((status = OK, body = BulkDone)))]
pub async fn cancel(may: May<RunCancel>, Body(request): Body<BulkCancel>) -> Result<Json<BulkDone>, Problem> {
    let query = runs_query(&request.filter, &may).await?;
    let cancel = cancel_of(&may.caller.who, CancelRequest { reason: request.reason, grace: request.grace })?;
    let query = only_live(query);
    if query.statuses.is_empty() {
        may.changed_nothing();
        return Ok(Json(BulkDone { matched: 0, done: 0, more: false, dry_run: request.dry_run }));
    }
    let CancelledMany { found, asked, more } =
        may.view.cancel_all(query, &cancel, TOUCHED_MAX, request.dry_run).await?;
    let done = BulkDone { matched: found, done: asked, more, dry_run: request.dry_run };
    told(&may, "run.cancel_many", "runs", &request.filter, &done);
    Ok(Json(done))
}

/// Writes down what a request by filter did; a dry run did nothing.
pub fn told<P>(may: &May<P>, action: &'static str, object: &str, filter: &impl Serialize, done: &BulkDone) {
    if done.dry_run {
        return may.changed_nothing();
    }
    let after = serde_json::json!({ "filter": filter, "matched": done.matched, "done": done.done });
    may.changed(action, object, None, Some(after));
}

/// What has ended cannot be stopped.
fn only_live(query: RunQuery) -> RunQuery {
    use rota_core::run::Status::{Blocked, Cancelling, Queued, Running, Scheduled, Waiting};
    let live = [Scheduled, Blocked, Queued, Running, Waiting, Cancelling];
    let all = query.statuses.is_empty();
    let statuses = live.into_iter().filter(|status| all || query.statuses.contains(status)).collect();
    RunQuery { statuses, ..query }
}

/// Redrive runs by a filter.
///
/// Redrives the ended runs that the filter finds; dead letters unless it names a status.
/// A run that was redriven before is left alone unless `again` is set; one that was
/// discarded is always left alone.
#[utoipa::path(post, path = "/bulk/redrive", tag = "bulk", request_body = BulkRedrive, responses((status = OK, body = BulkDone)))]
pub async fn redrive(may: May<RunCancel>, Body(request): Body<BulkRedrive>) -> Result<Json<BulkDone>, Problem> {
    if request.filter.status.is_empty() || request.filter.status.contains(&rota_api::run::Status::Dead) {
        may.has_dead_letters()?;
    }
    let query = runs_query(&request.filter, &may).await?;
    let (latest, again, dry_run) = (request.latest, request.again, request.dry_run);
    let how = Redrive { by: Some(may.caller.who.clone()), latest, again, dry_run };
    let RedrivenMany { found, made, more, over_rate } = may.view.redrive_all(query, &how, TOUCHED_MAX).await?;
    if let Some(refusal) = over_rate.filter(|_| made == 0) {
        return Err(Problem::over_quota("no run was created", &[refusal], may.view.now()));
    }
    let done = BulkDone { matched: found, done: made, more, dry_run };
    told(&may, "run.redrive_many", "runs", &request.filter, &done);
    Ok(Json(done))
}

/// Pause jobs by a filter.
///
/// A job that is already paused gets the new end and note.
#[utoipa::path(post, path = "/bulk/pause", tag = "bulk", request_body = BulkPause, responses((status = OK, body = BulkDone)))]
pub async fn pause(may: May<JobExecute>, Body(request): Body<BulkPause>) -> Result<Json<BulkDone>, Problem> {
    let pause = super::pause_of(&may, PauseRequest { until: request.until, note: request.note.clone() })?;
    let mut done = BulkDone { matched: 0, done: 0, more: false, dry_run: request.dry_run };
    let mut query = jobs_query(&request.filter)?;
    while let Some(jobs) = next_jobs(&may, &mut query, &mut done).await? {
        let paused = if request.dry_run {
            may.view.check_pauses(&jobs, Some(&pause)).await?
        } else {
            may.view.pause(&jobs, &pause).await?
        };
        done.done += paused.iter().filter(|paused| **paused).count() as u64;
    }
    told(&may, "job.pause_many", "jobs", &request.filter, &done);
    Ok(Json(done))
}

/// Resume jobs by a filter.
///
/// Jobs that are not paused are found and left unchanged.
#[utoipa::path(post, path = "/bulk/resume", tag = "bulk", request_body = BulkResume, responses((status = OK, body = BulkDone)))]
pub async fn resume(may: May<JobExecute>, Body(request): Body<BulkResume>) -> Result<Json<BulkDone>, Problem> {
    let mut done = BulkDone { matched: 0, done: 0, more: false, dry_run: request.dry_run };
    let mut query = jobs_query(&request.filter)?;
    while let Some(jobs) = next_jobs(&may, &mut query, &mut done).await? {
        let resumed =
            if request.dry_run { may.view.check_pauses(&jobs, None).await? } else { may.view.resume(&jobs).await? };
        done.done += resumed.iter().filter(|resumed| **resumed).count() as u64;
    }
    told(&may, "job.resume_many", "jobs", &request.filter, &done);
    Ok(Json(done))
}

/// None when everything was read.
fn jobs_query(filter: &JobsFilter) -> Result<Option<JobQuery>, Problem> {
    let texts = [&filter.tag, &filter.queue, &filter.prefix];
    if texts.iter().any(|text| text.as_ref().is_some_and(|text| text.contains('\0'))) {
        return Err(Problem::bad_request("a filter cannot contain NUL"));
    }
    Ok(Some(JobQuery {
        tenant: None,
        tag: filter.tag.clone(),
        queue: filter.queue.clone(),
        prefix: filter.prefix.clone(),
        enabled: None,
        after: None,
        limit: PAGE,
    }))
}

async fn next_jobs(
    may: &May<JobExecute>,
    query: &mut Option<JobQuery>,
    done: &mut BulkDone,
) -> Result<Option<Vec<Own<PauseTarget>>>, Problem> {
    let Some(wanted) = query else { return Ok(None) };
    let page = may.view.list_jobs(wanted.clone()).await?;
    done.matched += page.items.len() as u64;
    match page.next {
        Some(_) if done.matched >= TOUCHED_MAX => {
            done.more = true;
            *query = None;
        }
        Some(next) => wanted.after = Some(next),
        None => *query = None,
    }
    Ok(Some(page.items.iter().map(Own::<JobRecord>::target).collect()))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::{Access, Bounds, Shares};

    /// A line of a megabyte, sent byte by byte, was searched from its beginning for each.
    #[test]
    fn what_was_searched_for_the_end_of_a_line_is_not_searched_again() {
        let mut unread = Unread::default();
        unread.push(b"one\n");
        assert_eq!(unread.line(usize::MAX), Some(&b"one"[..]));
        for chunk in [&b"tw"[..], b"o, three", b", four"] {
            unread.push(chunk);
            assert_eq!(unread.line(usize::MAX), None);
            assert_eq!(unread.searched, unread.bytes.len());
            // It would find these if it looked.
            let searched = unread.searched;
            unread.bytes[..searched].fill(b'\n');
        }
        unread.push(b"!\nlast");
        assert_eq!(unread.line(usize::MAX), Some(&b"!"[..]));
        assert_eq!(unread.line(usize::MAX), None);
        assert_eq!(unread.len(), 4);
    }

    /// Batches were as large as wanted and one line more, of which a node has many.
    #[test]
    fn a_line_that_does_not_fit_is_left_for_the_next_batch() {
        let mut unread = Unread::default();
        unread.push(b"four\nfive!\n");
        assert_eq!(unread.line(4), Some(&b"four"[..]));
        assert_eq!((unread.line(4).is_some(), unread.has_line()), (false, true));
        unread.push(b"more");
        assert_eq!((unread.line(4).is_some(), unread.has_line()), (false, true));
        assert_eq!(unread.line(usize::MAX), Some(&b"five!"[..]));
        assert!(unread.line(usize::MAX).is_none() && !unread.has_line());
        assert_eq!(unread.len(), 4);
    }

    /// 64 streams that nobody reads kept a gigabyte.
    #[test]
    fn answers_that_nobody_reads_are_bounded_for_all_streams_together() {
        let unread = 1 << 20;
        let bounds = Bounds { memory: Shares { unread, ..Shares::default() }, ..Bounds::default() };
        let node = Node::new(Access::default(), bounds);
        let streams: Vec<_> = (0..8).map(|_| answering(&node)).collect();
        let answer = Bytes::from(vec![b'a'; 64 << 10]);
        let mut kept = 0;
        for (sender, _response) in &streams {
            while sender.send(answer.clone()).now_or_never().is_some() {
                kept += answer.len();
            }
        }
        assert_eq!(kept, unread + streams.len() * OWN_ANSWER_BYTES);
        // What one has read is room for another.
        let mut streams = streams.into_iter();
        let (_, first) = streams.next().unwrap();
        drop(first);
        let (second, _response) = streams.next().unwrap();
        assert!(second.send(answer).now_or_never().is_some());
    }

    #[test]
    fn lines_are_the_same_however_they_are_cut_into_chunks() {
        let body = b"one\n\n  two \r\n\nthree\nfour";
        for size in 1..=body.len() {
            let (mut unread, mut lines) = (Unread::default(), Vec::new());
            for chunk in body.chunks(size) {
                unread.push(chunk);
                while let Some(line) = unread.line(usize::MAX) {
                    lines.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            assert_eq!(
                (lines, unread.len()),
                (["one", "", "two", "", "three"].map(str::to_owned).to_vec(), 4),
                "{size}"
            );
        }
    }
}
