//! From the domain to the wire.

use std::collections::HashMap;

use jiff::Timestamp;
use rota_api::{
    Pause,
    job::{HourStats, Job, JobVersion, Spread, Stats},
    run::{Cancel, Failure, Follower, JobRef, Reason, Run, RunEvent, Status, Trigger, Why},
    schedule::{Schedule, Skip, Upcoming},
};
use rota_core::{
    fire::{Cursor, SkipReason},
    ids::JobId,
    job::failure,
    preview::{self, describe_note},
    rollup::Rollup,
    run::{self, Hold, RunState, TrailEntry, TrailKind, Verdict},
    schedule::ScheduleSpec,
    store::{self, JobRecord, RunRecord, ScheduleRecord, SkipRecord, StoreError},
    stored, why,
};
use serde_json::{Value, json};

use crate::problem::Problem;

/// A pause, while it is in force.
pub fn pause(pause: Option<store::Pause>, now: Timestamp) -> Option<Pause> {
    let store::Pause { since, until, note, by, .. } = pause.filter(|pause| pause.holds(now))?;
    Some(Pause { since, until, note, by })
}

/// What was stored as JSON.
pub fn json(stored: &str) -> Result<Value, Problem> {
    serde_json::from_str(stored).map_err(|error| StoreError::Corrupt(error.to_string()).into())
}

/// What was stored as JSON, for people: what is not JSON is shown as the text it is, so
/// that one broken document does not cost a page its others.
fn shown(stored: &str) -> Value {
    serde_json::from_str(stored).unwrap_or_else(|_| stored.into())
}

pub fn job(record: JobRecord, now: Timestamp) -> Job {
    Job {
        id: record.id.0,
        name: record.name,
        version: record.version,
        queue: record.queue,
        tags: record.tags,
        enabled: record.enabled,
        pause: pause(record.pause, now),
        created_at: record.created_at,
        updated_at: record.updated_at,
        deleted: record.deleted,
        document: shown(&record.document),
    }
}

pub fn version(version: store::JobVersion) -> JobVersion {
    let document = shown(&version.document);
    JobVersion { version: version.version, at: version.at, by: version.by, document }
}

pub const fn status(status: run::Status) -> Status {
    match status {
        run::Status::Scheduled => Status::Scheduled,
        run::Status::Blocked => Status::Blocked,
        run::Status::Queued => Status::Queued,
        run::Status::Running => Status::Running,
        run::Status::Waiting => Status::Waiting,
        run::Status::Cancelling => Status::Cancelling,
        run::Status::Ended(verdict) => ended(verdict),
    }
}

pub const fn ended(verdict: Verdict) -> Status {
    match verdict {
        Verdict::Succeeded => Status::Succeeded,
        Verdict::Failed => Status::Failed,
        Verdict::TimedOut => Status::TimedOut,
        Verdict::Cancelled => Status::Cancelled,
        Verdict::Dead => Status::Dead,
        Verdict::Expired => Status::Expired,
        Verdict::Skipped => Status::Skipped,
    }
}

pub const fn status_of_wire(status: Status) -> run::Status {
    match status {
        Status::Scheduled => run::Status::Scheduled,
        Status::Blocked => run::Status::Blocked,
        Status::Queued => run::Status::Queued,
        Status::Running => run::Status::Running,
        Status::Waiting => run::Status::Waiting,
        Status::Cancelling => run::Status::Cancelling,
        Status::Succeeded => run::Status::Ended(Verdict::Succeeded),
        Status::Failed => run::Status::Ended(Verdict::Failed),
        Status::TimedOut => run::Status::Ended(Verdict::TimedOut),
        Status::Cancelled => run::Status::Ended(Verdict::Cancelled),
        Status::Dead => run::Status::Ended(Verdict::Dead),
        Status::Expired => run::Status::Ended(Verdict::Expired),
        Status::Skipped => run::Status::Ended(Verdict::Skipped),
    }
}

/// The names of jobs, for the runs and schedules that belong to them.
pub type Names = HashMap<JobId, String>;

pub fn job_ref(names: &Names, job: JobId) -> JobRef {
    // A job's row outlives its runs.
    JobRef { id: job.0, name: names.get(&job).cloned().unwrap_or_default() }
}

pub fn failure(failure: failure::Failure) -> Failure {
    Failure { kind: failure.kind.as_str().to_owned(), status: failure.status, message: failure.message }
}

pub fn run(record: RunRecord, names: &Names) -> Run {
    let first_started_at = record.first_started_at();
    let run = record.run;
    let worker = match &run.state {
        RunState::Running { hold: Hold::Leased(worker), .. }
        | RunState::Cancelling { hold: Some(Hold::Leased(worker)), .. } => Some(worker.0),
        _ => None,
    };
    let ended_at = if let RunState::Finished { at, .. } = run.state { Some(at) } else { None };
    let follower = run.followed_by().map(|(run, at)| Follower { run: run.0, at });
    let trigger = run.trigger;
    Run {
        id: run.id.0,
        job: job_ref(names, run.job),
        version: run.version,
        status: status(run.state.status()),
        priority: run.priority.get(),
        trigger: Trigger {
            source: word(&trigger.source),
            schedule: trigger.schedule.map(|schedule| schedule.0),
            planned_at: trigger.planned_at,
            by: trigger.by,
            metadata: trigger.metadata,
            traceparent: trigger.traceparent.map(String::from),
        },
        labels: run.labels,
        payload: run.payload.as_deref().map(shown),
        created_at: run.created_at,
        ready_at: run.ready_at,
        expires_at: run.expires_at,
        deadline_at: run.deadline_at,
        first_started_at,
        started_at: record.started_at,
        ended_at,
        attempts_used: run.attempts_used,
        losses: run.losses,
        fence: run.fence.0,
        parent: run.parent.map(|parent| parent.run.0),
        worker,
        cancel: run.cancel.map(|cancel| Cancel {
            at: cancel.at,
            grace_until: cancel.grace_until,
            by: cancel.by,
            reason: cancel.reason,
        }),
        failure: record.failure.map(failure),
        output: record.output.as_deref().map(shown),
        progress: record.progress.as_deref().map(shown),
        follower,
    }
}

/// A word of the domain, as it is written everywhere.
pub fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}

/// Reasons in words and data.
pub fn why(reasons: &[why::Reason]) -> Why {
    let told = reasons.iter().map(|reason| {
        let mut data = serde_json::to_value(reason).unwrap_or_default();
        let code = data.as_object_mut().and_then(|data| data.remove("code"));
        let code = code.and_then(|code| code.as_str().map(str::to_owned)).unwrap_or_default();
        let data = Some(data).filter(|data| data.as_object().is_some_and(|data| !data.is_empty()));
        Reason { code, text: reason.text(), data }
    });
    let reasons: Vec<Reason> = told.collect();
    Why { answer: reasons.first().map_or(String::new(), |reason| reason.text.clone()), reasons }
}

/// What happened to a run, oldest first.
pub fn events(record: &RunRecord) -> Vec<RunEvent> {
    let run = &record.run;
    let plain = |at, event: &str, text: String| RunEvent { at, event: event.to_owned(), text, data: None };
    let of = run.trigger.redrives().map_or(String::new(), |of| format!(" of {of}"));
    let made = format!("created by {}{of}", word(&run.trigger.source));
    let mut events = vec![plain(run.created_at, "created", made)];
    events.extend(record.trail.iter().map(trail_event));
    if let Some(at) = record.started_at {
        events.push(plain(at, "started", format!("attempt {} started", attempt_shown(run))));
    }
    if let RunState::Finished { at, verdict } = run.state {
        events.push(plain(at, "ended", format!("ended as {}", verdict.as_str())));
        let follows =
            |(run, ready_at)| plain(at, "redriven", format!("redriven automatically as {run}, to start at {ready_at}"));
        events.extend(run.followed_by().map(follows));
    }
    events.sort_by_key(|event| event.at);
    events
}

/// The number of the attempt that `started_at` speaks of.
fn attempt_shown(run: &run::Run) -> u16 {
    match run.state {
        RunState::Finished { verdict: Verdict::Succeeded, .. } => run.attempts_used + 1,
        RunState::Finished { .. } => run.attempts_used.max(1),
        _ => run.attempts_used + 1,
    }
}

fn trail_event(entry: &TrailEntry) -> RunEvent {
    let by = |by: &Option<String>| by.as_ref().map_or(String::new(), |by| format!(" by {by}"));
    let (event, text) = match &entry.kind {
        TrailKind::AttemptFailed { attempt, failure, retry_at, .. } => {
            let then = retry_at.map_or(String::new(), |at| format!("; retried at {at}"));
            (
                "attempt_failed",
                format!("attempt {attempt} failed ({}): {}{then}", failure.kind.as_str(), failure.message),
            )
        }
        TrailKind::Deferred { until, reason } => ("deferred", format!("deferred until {until}: {reason}")),
        TrailKind::WorkerLost { losses, .. } => ("worker_lost", format!("its worker was lost (loss {losses})")),
        TrailKind::HandedBack { .. } => ("handed_back", "handed back by its worker; no attempt is used up".to_owned()),
        TrailKind::CancelRequested { by: who, reason } => {
            let why = reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
            ("cancel_requested", format!("cancel requested{}{why}", by(who)))
        }
        TrailKind::GraceOver => {
            ("grace_over", "did not stop within its grace, and was cancelled without its worker".to_owned())
        }
        TrailKind::Displaced { by } => ("displaced", format!("displaced by the newer run {by}")),
        TrailKind::Skipped { reason } => ("skipped", format!("skipped: {reason}")),
        TrailKind::ParentEnded { verdict } => ("parent_ended", format!("its parent run ended as {}", verdict.as_str())),
    };
    let data = serde_json::to_value(&entry.kind).ok();
    RunEvent { at: entry.at, event: event.to_owned(), text, data }
}

pub fn schedule(record: ScheduleRecord, cursor: Option<Cursor>, names: &Names, now: Timestamp) -> Schedule {
    let spec = shown(&record.spec);
    let description = stored::read::<ScheduleSpec>(&record.spec).map(|spec| describe(&spec)).unwrap_or_default();
    Schedule {
        id: record.id.0,
        job: job_ref(names, record.job),
        name: record.name,
        description,
        enabled: record.enabled,
        pause: pause(record.pause, now),
        paused_by: None,
        next_at: cursor.map(|cursor| cursor.planned_at),
        fired: cursor.map_or(record.progress.fired, |cursor| cursor.fired),
        spec,
    }
}

/// When a schedule fires, in words.
pub fn describe(spec: &ScheduleSpec) -> String {
    let zone = if spec.timezone == "UTC" { String::new() } else { format!(", {}", spec.timezone) };
    if let Some(cron) = &spec.cron {
        let words = rota_core::cron::explain(cron, b"");
        return format!("{}{zone}", words.unwrap_or_else(|_| cron.clone()));
    }
    if let Some(every) = spec.every {
        return format!("every {every}");
    }
    if let Some(delay) = spec.after_finish {
        return format!("{delay} after the end of its last run");
    }
    spec.at.as_ref().map_or(String::new(), |at| format!("once, at {}", json!(at).as_str().unwrap_or_default()))
}

pub fn upcoming(upcoming: &preview::Upcoming) -> Upcoming {
    let calendar = upcoming.after_excluded_days.then(|| "calendars excluded days before this".to_owned());
    let notes: Vec<String> = upcoming.note.map(describe_note).into_iter().chain(calendar).collect();
    Upcoming {
        planned_at: upcoming.planned_at,
        due_at: upcoming.due_at,
        local: upcoming.local.to_string(),
        note: (!notes.is_empty()).then(|| notes.join("; ")),
    }
}

pub fn skip(record: &SkipRecord) -> Skip {
    let range = record.range;
    Skip {
        from: range.from,
        to: range.to,
        count: range.count,
        reason: range.reason.as_str().to_owned(),
        why: skip_words(range.reason).to_owned(),
    }
}

/// Why instants made no run, in words.
pub const fn skip_words(reason: SkipReason) -> &'static str {
    match reason {
        SkipReason::Overlap => "an earlier run of the same schedule was still live, or its concurrency key had no room",
        SkipReason::CatchUp => "missed while no scheduler was running, and left out by the catch-up policy",
        SkipReason::Paused => "the schedule, its job, its queue or its tenant was paused",
        SkipReason::Calendar => "a calendar does not allow the day",
        SkipReason::Quota => "the tenant's rate was used up for longer than the catch-up window",
        SkipReason::Unique => "a run with the same unique key existed",
        SkipReason::Edited => "the schedule was changed before the instant was decided",
        SkipReason::Deleted => "the schedule was deleted before the instant was decided",
        SkipReason::Ended => "the schedule had created all of its runs",
    }
}

pub fn stats(rollup: &Rollup) -> Stats {
    let runs = rollup.runs();
    let to_run = runs - rollup.of(Verdict::Skipped) - rollup.of(Verdict::Cancelled);
    let started: u64 = rollup.durations.iter().sum();
    let mean = |sum: u64| (started > 0).then(|| sum as f64 / started as f64);
    Stats {
        runs,
        succeeded: rollup.of(Verdict::Succeeded),
        failed: rollup.of(Verdict::Failed),
        timed_out: rollup.of(Verdict::TimedOut),
        cancelled: rollup.of(Verdict::Cancelled),
        dead: rollup.of(Verdict::Dead),
        expired: rollup.of(Verdict::Expired),
        skipped: rollup.of(Verdict::Skipped),
        attempts: rollup.attempts,
        losses: rollup.losses,
        success_rate: (to_run > 0).then(|| rollup.of(Verdict::Succeeded) as f64 / to_run as f64),
        duration: Spread {
            mean_ms: mean(rollup.duration_ms),
            p50_ms: rollup.duration_quantile(0.5),
            p99_ms: rollup.duration_quantile(0.99),
            max_ms: rollup.duration_max_ms,
        },
        start_delay: Spread {
            mean_ms: mean(rollup.delay_ms),
            p50_ms: rollup.delay_quantile(0.5),
            p99_ms: rollup.delay_quantile(0.99),
            max_ms: rollup.delay_max_ms,
        },
    }
}

pub fn hour(hour: i64, rollup: &Rollup) -> HourStats {
    let at = jiff::Timestamp::from_second(hour * 3_600).unwrap_or(jiff::Timestamp::MAX);
    HourStats { at, stats: stats(rollup) }
}
