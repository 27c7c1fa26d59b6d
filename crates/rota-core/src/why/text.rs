//! Reasons in words.

use std::fmt::Display;

use super::{AHEAD_MAX, Level, Reason};
use crate::dispatch::WAIT;

impl Reason {
    /// In words.
    #[allow(clippy::too_many_lines, reason = "a flat table: a sentence for each reason")]
    pub fn text(&self) -> String {
        match self {
            Self::NotYet { at } => format!("it starts at {at}"),
            Self::Redrive { at, of } => format!("it is the automatic redrive of the dead run {of}, and starts at {at}"),
            Self::Backoff { at, attempt, error: None } => format!("attempt {attempt} failed; it is retried at {at}"),
            Self::Backoff { at, attempt, error: Some(error) } => {
                format!("attempt {attempt} failed ({error}); it is retried at {at}")
            }
            Self::Deferred { at, reason } => format!("it was deferred until {at}, which uses up no attempt: {reason}"),
            Self::Slot { limit, held, waiting, ahead } => format!(
                "{held} of {limit} slots of its concurrency key are taken; {waiting} runs wait for one, {} of them before it",
                shown(*ahead)
            ),
            Self::Needs { runs } => {
                format!("it waits for {runs} other {} to end", if *runs == 1 { "run" } else { "runs" })
            }
            Self::Paused { level, until, note, by } => {
                let whose = if *level == Level::Schedule { "the" } else { "its" };
                let by = suffix(" by ", by.as_ref());
                format!(
                    "{whose} {} is paused{by}{}{}",
                    level.word(),
                    suffix(" until ", *until),
                    suffix(": ", note.as_ref())
                )
            }
            Self::NoWorker { queue, handler, requires } => no_worker(queue, handler.as_deref(), requires),
            Self::RateLimit { at } => format!("its rate limit is used up; the next run may start at {at}"),
            Self::Quota { quota, limit, at } => {
                format!("its tenant's quota {quota} ({limit}) is used up until {at}")
            }
            Self::Alone { losses } => format!(
                "its worker was lost {losses} times while it was running, so it runs alone: it waits up to {} s for \
                 other attempts to end, and runs like it take turns",
                WAIT.as_millis() / 1_000
            ),
            Self::Place { ahead: 0 } => "it is next in its queue and starts as soon as a worker is free".to_owned(),
            Self::Place { ahead } => format!("{} runs of its queue and tenant come before it", shown(*ahead)),
            Self::PlaceElsewhere { ahead: 0 } => {
                "it is next in its queue: the node that owns its partition starts it, or has just started it".to_owned()
            }
            Self::PlaceElsewhere { ahead } => format!(
                "up to {} runs of its queue and tenant come before it, unless the node that owns its partition has \
                 just started it",
                shown(*ahead)
            ),
            Self::Running { since, attempt } => format!("attempt {attempt} has been running since {since}"),
            Self::Parked { on, until } => {
                let latest = if until.is_some() { " at the latest" } else { "" };
                format!("it is parked and waits for {on}{}{latest}", suffix(", until ", *until))
            }
            Self::Cancelling { since, grace_until } => {
                format!(
                    "its cancel was requested at {since}; if it has not stopped by {grace_until}, it is cancelled without its worker"
                )
            }
            Self::Ended { at, verdict, error } => {
                format!("it ended as {} at {at}{}", verdict.as_str(), suffix(": ", error.as_ref()))
            }
            Self::Follower { run, at } => {
                format!("it is redriven automatically: the run {run} starts at {at} or later")
            }
            Self::Disabled { level } => format!("the {} is disabled", level.word()),
            Self::Over { fired } => format!("it has ended: it created {fired} runs, and has no more instants"),
            Self::NoCalendar { calendar } => format!(
                "its calendar `{calendar}` is missing or cannot be read, and the schedule does not fire without it; save it \
                 again, and the catch-up policy decides about the instants owed until then"
            ),
            Self::OwnRun => "its last run has not ended, and the next instant is counted from its end".to_owned(),
            Self::Next { at } => format!("it fires next at {at}"),
            Self::NextSkipped { at, reason } => format!("the instant {at} will be skipped ({})", reason.as_str()),
            Self::Overdue { since, scheduler: true } => {
                format!("it was due at {since}; its scheduler is late or cannot reach the store")
            }
            Self::Overdue { since, scheduler: false } => {
                format!(
                    "it was due at {since}, but no scheduler owns its partition: start a node with the scheduler role"
                )
            }
            Self::Skipped { from, to, reason, .. } if from == to => {
                format!("the instant {from} was skipped ({})", reason.as_str())
            }
            Self::Skipped { from, to, count, reason } => {
                format!("{count} instants from {from} to {to} were skipped ({})", reason.as_str())
            }
        }
    }
}

fn no_worker(queue: &str, handler: Option<&str>, requires: &[String]) -> String {
    let handler = handler.map(|name| format!("the handler `{name}`"));
    let traits = (!requires.is_empty()).then(|| format!("the traits {}", requires.join(", ")));
    let missing: Vec<String> = handler.into_iter().chain(traits).collect();
    let offers =
        if missing.is_empty() { "executes runs".to_owned() } else { format!("offers {}", missing.join(" and ")) };
    format!("no known worker {offers} on the queue `{queue}`; start one, or change the job")
}

/// What is added to a sentence if it is known.
fn suffix(before: &str, known: Option<impl Display>) -> String {
    known.map_or_else(String::new, |known| format!("{before}{known}"))
}

fn shown(ahead: u32) -> String {
    if ahead > AHEAD_MAX { format!("{AHEAD_MAX}+") } else { ahead.to_string() }
}
