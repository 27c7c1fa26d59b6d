//! Why: what keeps a run waiting, and a schedule from firing, in words and data.
//!
//! The answer is made from the facts that the deciding code goes by, and where
//! it can be asked, by that code itself: what will become of a schedule's next
//! instant is the word of [`fire::plan`](crate::fire::plan). The first reason is
//! the one that holds now; those after it come to bear once it is gone.
//!
//! Nothing here looks anything up: whoever asks brings the facts.

mod text;

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    fire::{self, Cursor, Input, SkipReason},
    ids::RunId,
    lane::LaneKey,
    quota::Quota,
    run::{Block, Run, RunState, TrailEntry, TrailKind, Verdict, WaitFor},
    slot::Slot,
    store::{Pause, Standing},
    timing::Schedule,
};

/// Beyond so many, a place in a queue is not counted.
pub const AHEAD_MAX: u32 = 1_000;

/// What was paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Tenant,
    Queue,
    Job,
    Schedule,
}

impl Level {
    const fn word(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Queue => "queue",
            Self::Job => "job",
            Self::Schedule => "schedule",
        }
    }
}

/// One thing that keeps something from happening, or how it stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Reason {
    /// It was to be made later.
    NotYet {
        at: Timestamp,
    },
    /// The run that it is made of again has died, and its time is to come.
    Redrive {
        at: Timestamp,
        of: RunId,
    },
    /// An attempt failed; the next one waits.
    Backoff {
        at: Timestamp,
        attempt: u16,
        error: Option<String>,
    },
    /// Put off at no cost, such as by an open circuit.
    Deferred {
        at: Timestamp,
        reason: String,
    },
    Slot {
        limit: u32,
        held: u32,
        waiting: u32,
        ahead: u32,
    },
    Needs {
        runs: u32,
    },
    Paused {
        level: Level,
        until: Option<Timestamp>,
        note: Option<String>,
        by: Option<String>,
    },
    /// Nobody that is known offers what it needs.
    NoWorker {
        queue: String,
        handler: Option<String>,
        requires: Vec<String>,
    },
    RateLimit {
        at: Timestamp,
    },
    /// Its tenant's quota of runs is used up until then.
    Quota {
        quota: Quota,
        limit: u32,
        at: Timestamp,
    },
    /// It lost its worker so often that it is executed with nothing beside it, once what
    /// is under way has ended or some seconds have passed.
    Alone {
        losses: u16,
    },
    /// So many runs come before it.
    Place {
        ahead: u32,
    },
    /// Another node starts it, and writes a little later that it did: it may have begun.
    /// So many runs at most come before it.
    PlaceElsewhere {
        ahead: u32,
    },
    Running {
        since: Timestamp,
        attempt: u16,
    },
    Parked {
        on: &'static str,
        until: Option<Timestamp>,
    },
    Cancelling {
        since: Timestamp,
        grace_until: Timestamp,
    },
    Ended {
        at: Timestamp,
        verdict: Verdict,
        error: Option<String>,
    },
    /// It has died, and a new run follows it by itself.
    Follower {
        run: RunId,
        at: Timestamp,
    },
    Disabled {
        level: Level,
    },
    /// It made all its runs, or its time is over.
    Over {
        fired: u64,
    },
    /// A calendar that it names is not there or cannot be read; nothing fires until it is.
    NoCalendar {
        calendar: String,
    },
    /// Its last run has not ended, and it counts from there.
    OwnRun,
    /// It will fire.
    Next {
        at: Timestamp,
    },
    /// The next instant will make no run.
    NextSkipped {
        at: Timestamp,
        reason: SkipReason,
    },
    /// It should have fired by now, and nobody did.
    Overdue {
        since: Timestamp,
        scheduler: bool,
    },
    /// The newest instants that made no run.
    Skipped {
        from: Timestamp,
        to: Timestamp,
        count: u64,
        reason: SkipReason,
    },
}

/// All that is known of a run that somebody wonders about.
#[derive(Clone, Debug)]
pub struct RunFacts<'a> {
    pub run: &'a Run,
    pub trail: &'a [TrailEntry],
    pub error: Option<&'a str>,
    pub standing: &'a Standing,
    /// Pauses in force of its tenant and its queue.
    pub pauses: &'a [(Level, Pause)],
    pub lane: Option<&'a LaneKey>,
    /// Somebody who lives can execute it.
    pub offered: bool,
    /// When its rate lets it start; none where that is now.
    pub rate_until: Option<Timestamp>,
    /// Another node than the one that is asked starts it.
    pub elsewhere: bool,
    /// It is executed with nothing beside it.
    pub alone: bool,
}

/// Why a run stands where it stands.
pub fn run(facts: &RunFacts<'_>, now: Timestamp) -> Vec<Reason> {
    let run = facts.run;
    match &run.state {
        RunState::Finished { at, verdict } => {
            let ended = Reason::Ended { at: *at, verdict: *verdict, error: facts.error.map(Into::into) };
            let follower = run.followed_by().map(|(run, at)| Reason::Follower { run, at });
            std::iter::once(ended).chain(follower).collect()
        }
        RunState::Running { started_at, .. } => {
            vec![Reason::Running { since: *started_at, attempt: run.attempts_used + 1 }]
        }
        RunState::Waiting { on, until, .. } => vec![Reason::Parked { on: parked(*on), until: *until }],
        RunState::Cancelling { .. } => run.cancel.iter().map(cancelling).collect(),
        RunState::Scheduled => {
            let mut reasons = vec![later(facts)];
            reasons.extend(before_start(facts, now));
            reasons
        }
        RunState::Blocked(Block::Needs(runs)) => vec![Reason::Needs { runs: *runs }],
        RunState::Blocked(Block::Slot) => {
            let mut reasons: Vec<Reason> =
                facts.standing.slot.map(|slot| no_room(slot, facts.standing)).into_iter().collect();
            reasons.extend(before_start(facts, now));
            reasons
        }
        RunState::Queued => {
            let mut reasons = before_start(facts, now);
            reasons.extend(facts.alone.then_some(Reason::Alone { losses: run.losses }));
            let ahead = facts.standing.ahead;
            reasons.push(if facts.elsewhere { Reason::PlaceElsewhere { ahead } } else { Reason::Place { ahead } });
            reasons
        }
    }
}

fn cancelling(request: &crate::run::CancelRequest) -> Reason {
    Reason::Cancelling { since: request.at, grace_until: request.grace_until }
}

const fn parked(on: WaitFor) -> &'static str {
    match on {
        WaitFor::Callback => "callback",
        WaitFor::Approval => "approval",
        WaitFor::Sleep => "sleep",
        WaitFor::Children(_) => "children",
        WaitFor::Signal => "signal",
    }
}

/// Why a run is not ready: the newest line of its trail that says so.
fn later(facts: &RunFacts<'_>) -> Reason {
    let at = facts.run.ready_at;
    let said = facts.trail.iter().rev().find_map(|entry| match &entry.kind {
        TrailKind::AttemptFailed { attempt, failure, .. } => {
            Some(Reason::Backoff { at, attempt: *attempt, error: Some(failure.message.clone()) })
        }
        TrailKind::Deferred { reason, .. } => Some(Reason::Deferred { at, reason: reason.clone() }),
        _ => None,
    });
    let over = || facts.run.trigger.delay.filter(|delay| delay.until == at);
    said.or_else(|| over().map(|delay| over_quota(delay.runs_per_minute, at)))
        .or_else(|| facts.run.trigger.redrives().map(|of| Reason::Redrive { at, of }))
        .unwrap_or(Reason::NotYet { at })
}

const fn over_quota(limit: u32, at: Timestamp) -> Reason {
    Reason::Quota { quota: Quota::RunsPerMinute, limit, at }
}

const fn no_room(slot: Slot, standing: &Standing) -> Reason {
    Reason::Slot { limit: slot.limit, held: slot.held, waiting: slot.waiting, ahead: standing.ahead_for_slot }
}

fn before_start(facts: &RunFacts<'_>, now: Timestamp) -> Vec<Reason> {
    let mut reasons = paused(facts.pauses, now);
    if let Some(lane) = facts.lane.filter(|_| !facts.offered) {
        reasons.push(Reason::NoWorker {
            queue: lane.queue.clone(),
            handler: lane.handler.clone(),
            requires: lane.requires.clone(),
        });
    }
    reasons.extend(facts.rate_until.filter(|at| *at > now).map(|at| Reason::RateLimit { at }));
    reasons
}

fn paused(pauses: &[(Level, Pause)], now: Timestamp) -> Vec<Reason> {
    let in_force = pauses.iter().filter(|(_, pause)| pause.holds(now));
    in_force
        .map(|(level, pause)| Reason::Paused {
            level: *level,
            until: pause.until,
            note: pause.note.clone(),
            by: pause.by.clone(),
        })
        .collect()
}

/// All that is known of a schedule that somebody wonders about.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct ScheduleFacts<'a> {
    pub schedule: &'a Schedule,
    /// What firing would go by; none where it owes nothing.
    pub input: Option<Input<'a>>,
    pub fired: u64,
    pub enabled: bool,
    pub job_enabled: bool,
    /// It counts from its last run's end, and that run lives.
    pub own_run_lives: bool,
    pub pauses: &'a [(Level, Pause)],
    /// The first calendar that it names and that cannot be had.
    pub no_calendar: Option<&'a str>,
    /// Somebody holds its partition.
    pub scheduler: bool,
    /// The newest recorded skip.
    pub skipped: Option<fire::SkipRange>,
}

/// An instant that is this late should have been fired.
const LATE_MAX: jiff::SignedDuration = jiff::SignedDuration::from_secs(5);

/// Why a schedule does what it does next.
pub fn schedule(facts: &ScheduleFacts<'_>, now: Timestamp) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if !facts.enabled {
        reasons.push(Reason::Disabled { level: Level::Schedule });
    }
    if !facts.job_enabled {
        reasons.push(Reason::Disabled { level: Level::Job });
    }
    reasons.extend(paused(facts.pauses, now));
    reasons.extend(facts.no_calendar.map(|calendar| Reason::NoCalendar { calendar: calendar.to_owned() }));
    match &facts.input {
        // What would become of it is not known without the calendar.
        Some(_) if facts.no_calendar.is_some() => {}
        None if facts.own_run_lives => reasons.push(Reason::OwnRun),
        None if facts.enabled && facts.job_enabled => reasons.push(Reason::Over { fired: facts.fired }),
        None => {}
        Some(input) => reasons.extend(next(facts, input, reasons.is_empty(), now)),
    }
    reasons.extend(facts.skipped.map(|range| Reason::Skipped {
        from: range.from,
        to: range.to,
        count: range.count,
        reason: range.reason,
    }));
    reasons
}

/// What becomes of the instant that a schedule owes next.
fn next(facts: &ScheduleFacts<'_>, input: &Input<'_>, free: bool, now: Timestamp) -> Vec<Reason> {
    let Cursor { planned_at, due_at, .. } = input.cursor;
    let mut reasons = Vec::new();
    if free && due_at.saturating_add(LATE_MAX).is_ok_and(|late| late < now) {
        reasons.push(Reason::Overdue { since: due_at, scheduler: facts.scheduler });
    }
    if let Some((allowance, at)) = input.allowance.zip(input.put_off_until()).filter(|(_, at)| *at > now) {
        reasons.push(over_quota(allowance.per_minute, at));
        return reasons;
    }
    // What the rate has room for now says nothing of an instant to come.
    let allowance = input.allowance.filter(|_| due_at <= now);
    let plan = fire::plan(&Input { allowance, ..*input }, now.max(due_at));
    let put_off = plan.next.filter(|next| plan.runs.is_empty() && next.planned_at == planned_at);
    if let (Some(allowance), Some(next)) = (allowance, put_off.filter(|_| free)) {
        reasons.push(over_quota(allowance.per_minute, next.due_at));
        return reasons;
    }
    let skip = plan.skips.iter().find(|skip| skip.from <= planned_at && planned_at <= skip.to);
    match skip {
        Some(skip) => reasons.push(Reason::NextSkipped { at: planned_at, reason: skip.reason }),
        None if free => reasons.push(Reason::Next { at: planned_at }),
        None => {}
    }
    reasons
}

#[cfg(test)]
mod tests;
