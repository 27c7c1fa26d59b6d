//! Attempts under way: deadline, panic, cancellation and loss.
//!
//! Starting an attempt means making its future and polling it once. What ends
//! there and then, as short handlers do, costs no task of its own: a whole
//! chunk of attempts shares one. What does not is given a task, a deadline and
//! an ear for those who want it to stop. To stop an attempt is to drop it.

use std::{
    any::Any,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll, Waker},
};

use futures_util::FutureExt;
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    job::{
        failure::{ErrorKind, Failure},
        kinds::Sleep,
        step::StepKind,
    },
    ports::{Attempt, Context, Executor},
    run::{Lease, Outcome, Run, RunState, WaitFor},
    store::By,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    catalog::JobVersion,
    events::Event,
    executing::{Slow, Why},
    making::refusal,
    node::Node,
    outbox::{End, Ended, Origin},
    render::Scope,
    reports::AttemptReports,
    runs::Handover,
};

/// Attempts that share a task while they end at once.
const CHUNK: usize = 32;
/// An attempt that keeps its chunk longer than this is no neighbour: those
/// behind it get tasks of their own.
const CHUNK_PATIENCE_MICROS: i64 = 1_000;

/// A run whose attempt begins.
pub struct Start {
    /// As running.
    pub run: Run,
    pub by: By,
    pub job: Arc<JobVersion>,
}

type Going = Pin<Box<dyn Future<Output = Result<Outcome, Box<dyn Any + Send>>> + Send>>;

/// Begins attempts; their ends come to the outbox.
pub fn start(node: &Arc<Node>, starts: Vec<Start>) {
    node.executing.begin(starts.len());
    node.stats.started.add(starts.len());
    node.stats.executing.set(node.executing.running());
    let chunk = if starts.len() <= 8 { 1 } else { CHUNK };
    let mut starts = starts.into_iter().peekable();
    while starts.peek().is_some() {
        let chunk: Vec<Start> = starts.by_ref().take(chunk).collect();
        spawn_all(node, chunk);
    }
}

fn spawn_all(node: &Arc<Node>, starts: Vec<Start>) {
    let node = Arc::clone(node);
    tokio::spawn(async move { begin_all(&node, starts) });
}

fn begin_all(node: &Arc<Node>, starts: Vec<Start>) {
    let mut ended = Vec::with_capacity(starts.len());
    let mut starts = starts.into_iter();
    while let Some(start) = starts.next() {
        let begun_at = node.clock.now();
        match begin(node, start, begun_at) {
            Begun::Ended(one) => ended.push(*one),
            Begun::Going(attempt) => drop(tokio::spawn(go_on(Arc::clone(node), *attempt))),
        }
        let took = node.clock.now().as_microsecond() - begun_at.as_microsecond();
        if took > CHUNK_PATIENCE_MICROS {
            starts.by_ref().for_each(|start| spawn_all(node, vec![start]));
        }
    }
    finish(node, ended);
}

fn finish(node: &Node, ended: Vec<Ended>) {
    if ended.is_empty() {
        return;
    }
    node.executing.end(ended.len());
    node.stats.executing.set(node.executing.running());
    node.post(ended);
    node.wake.dispatch.notify_one();
    node.wake.claim.notify_one();
}

enum Begun {
    Ended(Box<Ended>),
    Going(Box<Underway>),
}

/// An attempt that did not end at once.
struct Underway {
    start: Start,
    going: Going,
    executor: Arc<dyn Executor>,
}

fn begin(node: &Arc<Node>, mut start: Start, now: Timestamp) -> Begun {
    if !node.runs.cancels(std::iter::once(&start.run.id)).is_empty() {
        // Asked to stop since it was taken: it has not begun, and does not.
        start.run.state = RunState::Cancelling { hold: None, started_at: None };
        return Begun::Ended(Box::new(ended(start, End::Outcome(Outcome::Cancelled), now)));
    }
    emit_started(node, &start.run, now);
    let (executor, attempt) = match attempt_of(node, &start, now) {
        Ok(found) => found,
        Err(outcome) => return Begun::Ended(Box::new(ended(start, End::Outcome(outcome), now))),
    };
    let reports =
        AttemptReports::new(Arc::clone(&node.reports), Arc::clone(&node.clock), attempt.lease, attempt.number);
    let context = Context { clock: Arc::clone(&node.clock), reports: Arc::new(reports) };
    let by = Arc::clone(&executor);
    let mut going: Going =
        Box::pin(AssertUnwindSafe(async move { by.execute(&attempt, &context).await }).catch_unwind());
    // Whoever is not done yet is polled again, with a waker, by its own task.
    match going.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
        Poll::Ready(result) => Begun::Ended(Box::new(ended(start, End::Outcome(outcome_of(result)), node.clock.now()))),
        Poll::Pending => Begun::Going(Box::new(Underway { start, going, executor })),
    }
}

pub(crate) fn emit_started(node: &Node, run: &Run, now: Timestamp) {
    node.stats.start_delay.add(run.ready_at.duration_until(now));
    let attempt = run.attempts_used.saturating_add(1);
    node.events.emit(|| Event::RunStarted { run: run.id, job: run.job, tenant: run.tenant, attempt, at: now });
}

fn ended(start: Start, end: End, at: Timestamp) -> Ended {
    let Start { run, by, job } = start;
    Ended { run, by, end, at, job: Some(job), origin: Origin::Executed }
}

/// What is to be done, and by whom; or how the attempt ended before it began.
fn attempt_of(node: &Node, start: &Start, now: Timestamp) -> Result<(Arc<dyn Executor>, Attempt), Outcome> {
    let Prepared { attempt, .. } = prepare(node, &start.run, &start.job, now)?;
    let kind = attempt.step.name();
    let executor =
        node.executors.get(kind).ok_or_else(|| invalid(format!("nobody here executes steps of kind {kind}")))?;
    Ok((executor, attempt))
}

/// An attempt that may begin.
pub(crate) struct Prepared {
    pub attempt: Attempt,
    pub step_id: String,
}

/// What is said of an attempt that met the deadline of its run.
const DEADLINE_OVER: &str = "the deadline of its run has passed";

fn timed_out(message: &str) -> Outcome {
    Outcome::Failed(Failure::new(ErrorKind::Timeout, message))
}

fn invalid(message: String) -> Outcome {
    Outcome::Failed(Failure::new(ErrorKind::InvalidInput, message))
}

/// What is to be done, whoever does it; or how the attempt ended before it
/// began.
pub(crate) fn prepare(node: &Node, run: &Run, job: &JobVersion, now: Timestamp) -> Result<Prepared, Outcome> {
    if let Some(why) = refusal(&run.trigger) {
        return Err(invalid(why.to_owned()));
    }
    let (Some(step), Some(policy)) = (job.document.lone_step(), &job.step) else {
        return Err(invalid("this node cannot execute jobs of several steps".into()));
    };
    if let StepKind::Sleep(Sleep::For(span)) = &step.kind {
        let until = span.after(run.ready_at);
        let parked = Outcome::Parked { on: WaitFor::Sleep, until: Some(until) };
        return Err(if now >= until { Outcome::Succeeded { output: None } } else { parked });
    }
    let payload: Value = match &run.payload {
        None => job.payload.clone(),
        Some(text) => {
            serde_json::from_str(text).map_err(|error| invalid(format!("the payload is not JSON: {error}")))?
        }
    };
    let number = run.attempts_used.saturating_add(1);
    let kind = if job.templated {
        let about = json!({ "id": run.id, "attempt": number, "created_at": run.created_at, "planned_at": run.trigger.planned_at });
        let scope = Scope { payload: &payload, labels: &run.labels, vars: &job.document.vars, run: &about };
        node.renderer.step(&step.kind, || scope.values())?
    } else {
        step.kind.clone()
    };
    if run.is_over_at(now) {
        return Err(timed_out(DEADLINE_OVER));
    }
    let timeout_at = policy.timeout.map(|timeout| timeout.after(now));
    let deadline_at = [timeout_at, run.deadline_at].into_iter().flatten().min();
    let (lease, tenant) = (run.lease(), run.tenant);
    let attempt = Attempt {
        lease,
        number,
        tenant,
        job: run.job,
        version: run.version,
        step: kind,
        payload,
        deadline_at,
        traceparent: run.trigger.traceparent.map(|trace| trace.attempt(lease)),
    };
    Ok(Prepared { attempt, step_id: step.id.clone() })
}

fn outcome_of(result: Result<Outcome, Box<dyn Any + Send>>) -> Outcome {
    let outcome = result.unwrap_or_else(|panic| {
        let told = panic.downcast_ref::<&str>().map(ToString::to_string);
        let told = told.or_else(|| panic.downcast_ref::<String>().cloned());
        let message = told.unwrap_or_else(|| "it panicked".to_owned());
        Outcome::Failed(Failure::new(ErrorKind::Panic, message))
    });
    outcome.bounded()
}

/// Goes on with an attempt that did not end at once.
async fn go_on(node: Arc<Node>, attempt: Underway) {
    let Underway { start, mut going, executor } = attempt;
    let (stop, mut told) = watch::channel(None);
    let run = &start.run;
    let lease = run.lease();
    let slow = Slow {
        lease,
        part: run.part,
        by: start.by,
        started_at: run.state.started_at().unwrap_or(run.created_at),
        marked: start.by == By::Lease,
        exclusive: start.job.document.is_exclusive(),
        stop,
    };
    let exclusive = slow.exclusive;
    node.executing.slow(|all| all.insert(run.id, slow));
    // Its partition may have been given away before it could be found here.
    if node.runs.handover(lease) == Handover::Leased {
        node.executing.leased(lease);
    }
    if exclusive {
        node.wake.withdraw.notify_one();
    }
    // A cancel that came while nobody could be told.
    for (run, request) in node.runs.cancels(std::iter::once(&run.id)) {
        node.executing.stop(run, Why::Cancelled { grace_until: request.grace_until });
    }
    let policy = start.job.step.as_ref();
    let limits = Limits {
        lease,
        timeout: policy.and_then(|policy| policy.timeout),
        deadline_at: run.deadline_at,
        cancelable: policy.is_none_or(|policy| policy.cancelable),
    };
    let end = supervise(&node, &mut going, executor.as_ref(), &mut told, &limits).await;
    drop(going);
    node.executing.slow(|all| all.remove(&lease.run));
    match end {
        Some(end) => finish(&node, vec![ended(start, end, node.clock.now())]),
        None => lost(&node, lease),
    }
}

/// Nothing is settled for a run that is not ours any more.
fn lost(node: &Node, lease: Lease) {
    node.stats.lost.add(1);
    node.drop_in_flight([lease]);
    node.executing.end(1);
    node.executing.settle(1);
    node.wake.dispatch.notify_one();
}

/// What an attempt is held to.
struct Limits {
    lease: Lease,
    /// How long it may take, whatever the clock is set to meanwhile.
    timeout: Option<Span>,
    /// Of its run.
    deadline_at: Option<Timestamp>,
    cancelable: bool,
}

async fn supervise(
    node: &Node,
    going: &mut Going,
    executor: &dyn Executor,
    told: &mut watch::Receiver<Option<Why>>,
    limits: &Limits,
) -> Option<End> {
    let (timeout, deadline) = (pass(node, limits.timeout), until(node, limits.deadline_at));
    // None until it is asked to stop.
    let mut grace = Box::pin(pass(node, None));
    tokio::pin!(timeout, deadline);
    loop {
        tokio::select! {
            biased;
            result = &mut *going => return Some(End::Outcome(outcome_of(result))),
            why = next_word(told) => match why {
                Why::Lost => return None,
                Why::HandBack => return Some(End::Stopped),
                Why::Cancelled { .. } if !limits.cancelable => {}
                Why::Cancelled { grace_until: until } if executor.ask_to_stop(limits.lease) => {
                    grace.set(pass(node, Some(left_until(node, until))));
                }
                Why::Cancelled { .. } => return Some(End::Outcome(Outcome::Cancelled)),
            },
            () = &mut deadline => return Some(End::Outcome(timed_out(DEADLINE_OVER))),
            () = &mut timeout => return Some(End::Outcome(timed_out("it did not end within its time"))),
            () = &mut grace => return Some(End::GraceOver),
        }
    }
}

async fn until(node: &Node, at: Option<Timestamp>) {
    match at {
        Some(at) => node.clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn pass(node: &Node, span: Option<Span>) {
    match span {
        Some(span) => node.clock.sleep(span).await,
        None => std::future::pending().await,
    }
}

fn left_until(node: &Node, at: Timestamp) -> Span {
    Span::millis(node.clock.now().duration_until(at).as_millis().clamp(0, i64::MAX.into()) as u64)
}

async fn next_word(told: &mut watch::Receiver<Option<Why>>) -> Why {
    loop {
        if told.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Some(why) = *told.borrow_and_update() {
            return why;
        }
    }
}

/// A run as its executor holds it from now on.
pub fn running(mut run: Run, hold: rota_core::run::Hold, now: Timestamp) -> Run {
    run.state = RunState::Running { hold, started_at: now };
    run
}
