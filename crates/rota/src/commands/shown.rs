//! How runs, schedules and pauses look in tables; several commands show them.

use std::io;

use jiff::Timestamp;
use rota_api::{
    Pause,
    run::{Run, Status, Why},
    schedule::{Schedule, Upcoming},
};
use rota_core::access::{Permission, Permissions, Role};
use serde::Serialize;
use serde_json::Value;

use crate::{
    printer::{Printer, plain},
    table::{Cell, Table, Tone},
    times,
};

/// A value of the API as the one word it is written as.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// What is set where it is set, and nothing else.
pub fn json(value: Option<&Value>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// What somebody may do: the role that may do just that, or each thing by its name.
pub fn permissions(names: &[String]) -> String {
    let known: Result<Permissions, String> = names.iter().map(|name| name.parse::<Permission>()).collect();
    let role = known.ok().and_then(|known| Role::ALL.into_iter().find(|role| role.permissions() == known));
    role.map_or_else(|| names.join(" "), |role| role.to_string())
}

pub fn status(status: Status) -> Cell {
    let tone = match status {
        Status::Succeeded => Tone::Good,
        Status::Failed | Status::TimedOut | Status::Dead | Status::Expired => Tone::Bad,
        Status::Running | Status::Cancelling | Status::Blocked | Status::Waiting => Tone::Busy,
        Status::Queued | Status::Scheduled => Tone::Plain,
        Status::Cancelled | Status::Skipped => Tone::Quiet,
    };
    Cell::toned(word(&status), tone)
}

/// How long a run has taken since its first attempt began, or took.
pub fn duration(run: &Run, now: Timestamp) -> String {
    let Some(started) = run.first_started_at.or(run.started_at) else { return String::new() };
    let until = run.ended_at.unwrap_or(now);
    times::span(until.duration_since(started).as_millis().max(0) as u64)
}

/// What made a run, in a few words.
pub fn trigger(run: &Run) -> String {
    match (&run.trigger.by, run.trigger.planned_at) {
        (_, Some(planned_at)) => format!("{} for {planned_at}", run.trigger.source),
        (Some(by), None) => format!("{} by {by}", run.trigger.source),
        (None, None) => run.trigger.source.clone(),
    }
}

/// Why it failed, or what it waits for.
fn remark(run: &Run, now: Timestamp) -> String {
    if let Some(failure) = &run.failure {
        return format!("{}: {}", failure.kind, failure.message.replace('\n', " "));
    }
    match run.status {
        Status::Scheduled => format!("ready {}", times::from_now(run.ready_at, now)),
        _ => String::new(),
    }
}

pub fn runs(runs: &[Run], now: Timestamp, printer: &mut Printer) -> io::Result<()> {
    if runs.is_empty() {
        return printer.note("no runs");
    }
    let mut table = Table::new(&["RUN", "JOB", "STATUS", "TRIGGER", "CREATED", "TOOK", "FAILED", "REMARK"])
        .narrowed(&["FAILED", "TRIGGER", "TOOK", "CREATED"], "REMARK");
    for run in runs {
        table.row([
            run.id.to_string().into(),
            run.job.name.clone().into(),
            status(run.status),
            run.trigger.source.clone().into(),
            times::from_now(run.created_at, now).into(),
            duration(run, now).into(),
            Cell::number(if run.attempts_used == 0 { String::new() } else { run.attempts_used.to_string() }),
            remark(run, now).into(),
        ]);
    }
    printer.table(table)
}

/// A pause in a few words, or nothing.
pub fn pause(pause: Option<&Pause>, now: Timestamp) -> String {
    let Some(pause) = pause else { return String::new() };
    let until = pause.until.map(|until| format!(", ends {}", times::from_now(until, now))).unwrap_or_default();
    let by = pause.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let note = pause.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
    format!("paused {}{by}{until}{note}", times::from_now(pause.since, now))
}

/// Whether something fires: paused, by definition off, or on.
pub fn state(enabled: bool, paused: bool) -> Cell {
    match (enabled, paused) {
        (_, true) => Cell::toned("paused", Tone::Busy),
        (false, false) => Cell::toned("off", Tone::Quiet),
        (true, false) => Cell::toned("on", Tone::Good),
    }
}

pub fn schedules(schedules: &[Schedule], now: Timestamp, printer: &mut Printer) -> io::Result<()> {
    if schedules.is_empty() {
        return printer.note("no schedules");
    }
    let mut table =
        Table::new(&["ID", "SCHEDULE", "STATE", "WHEN", "NEXT", "FIRED"]).narrowed(&["FIRED", "NEXT"], "WHEN");
    for schedule in schedules {
        table.row([
            Cell::number(schedule.id),
            format!("{}/{}", schedule.job.name, schedule.name).into(),
            state(schedule.enabled, schedule.paused_by.is_some()),
            schedule.description.clone().into(),
            schedule.next_at.map(|at| times::from_now(at, now)).unwrap_or_default().into(),
            Cell::number(schedule.fired),
        ]);
    }
    printer.table(table)
}

pub fn upcoming(instants: &[Upcoming], now: Timestamp, printer: &mut Printer) -> io::Result<()> {
    if instants.is_empty() {
        return printer.note("no future instants");
    }
    let mut table = Table::new(&["PLANNED (UTC)", "LOCAL", "DUE", "NOTE"]);
    for instant in instants {
        table.row([
            instant.planned_at.to_string().into(),
            instant.local.clone().into(),
            times::from_now(instant.due_at, now).into(),
            instant.note.clone().unwrap_or_default().into(),
        ]);
    }
    printer.table(table)
}

/// Why something waits or did not happen: what holds now, then what comes to bear
/// once that is gone.
pub fn why(why: &Why, printer: &mut Printer) -> io::Result<()> {
    printer.line(&plain(&why.answer))?;
    for reason in why.reasons.iter().skip(1) {
        let code = printer.toned(Tone::Quiet, &reason.code);
        printer.line(&format!("  then {code}: {}", plain(&reason.text)))?;
    }
    Ok(())
}
