//! Fire: decides what becomes of the instants a schedule owes.
//!
//! [`plan`] looks at everything planned from the cursor up to now and gives
//! each instant exactly one end: a run, a place in a skip range with a reason,
//! or it is still owed by the next cursor. It is the only place where catch-up,
//! pause, end, overlap, `max_runs` and calendars are decided. The answer is a
//! function of its arguments, so two nodes that plan from one cursor plan the
//! same thing, and the store's guard on the cursor lets one of them commit. A
//! clock that steps back finds the cursor ahead of it and makes nothing.
//!
//! Work per call is bounded: instants that cannot fire are counted by the day,
//! not visited, at most [`RUNS_MAX`] runs are made, and what remains is left to
//! the next call.
//!
//! What a tenant's rate of runs does not allow yet stays owed: the cursor is put
//! off to the time at which the rate has room. Only the catch-up policy ends such
//! an instant without a run, and then its reason is the quota.
//!
//! This module does not count runs, and does not know unique keys or the queue:
//! those refuse a run later and record their own skip.

mod planner;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use self::planner::{Planner, joined};
use crate::{
    calendar::Calendar,
    choice::choices,
    cron::Block,
    duration::Span,
    ids::ScheduleId,
    timing::{Schedule, before, micros, next_tick},
};

/// Most runs one call makes; catching up goes on after [`PACE`].
pub const RUNS_MAX: usize = 1_000;
/// Pause between two calls that each made [`RUNS_MAX`] runs, so that a backlog
/// does not push everything else aside.
pub const PACE: SignedDuration = SignedDuration::from_secs(1);
/// So many runs of a schedule that queues may be alive; further instants are skipped.
pub const QUEUE_MAX: u64 = 1_000;
/// No cursor is put off further than this at a time. Whatever holds it (a pause, a
/// rate) is then looked at again, although nobody said that it has changed.
pub const PUT_OFF_MAX: Span = Span::secs(3_600);

choices! {
    /// Why a planned instant made no run.
    SkipReason {
        /// An earlier run of the same schedule was still alive.
        Overlap = "overlap",
        /// Missed during a downtime, and left out by the catch-up policy.
        CatchUp = "catch_up",
        /// The schedule, its job, queue or tenant was paused.
        Paused = "paused",
        /// A calendar does not allow the day.
        Calendar = "calendar",
        /// Over the tenant's rate for longer than the catch-up policy waits.
        Quota = "quota",
        /// A run with the same unique key existed.
        Unique = "unique",
        /// The schedule was changed before the instant was decided.
        Edited = "edited",
        /// The schedule was deleted before the instant was decided.
        Deleted = "deleted",
        /// The schedule had made all its runs.
        Ended = "ended",
    }
}

impl SkipReason {
    /// The number that stands for this reason in stored rows; never changes.
    pub const fn code(self) -> i16 {
        match self {
            Self::Overlap => 1,
            Self::CatchUp => 2,
            Self::Paused => 3,
            Self::Calendar => 4,
            Self::Quota => 5,
            Self::Unique => 6,
            Self::Edited => 7,
            Self::Deleted => 8,
            Self::Ended => 9,
        }
    }

    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

/// Planned instants that made no run: `count` of them, the first at `from`, the
/// last at `to`, and no other instant of the schedule between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkipRange {
    pub from: Timestamp,
    pub to: Timestamp,
    pub count: u64,
    pub reason: SkipReason,
}

/// What the store keeps of a schedule's progress in its narrow cursor row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cursor {
    /// The next instant owed; its identity.
    pub planned_at: Timestamp,
    /// When to wake for it: planned plus jitter, or a pause's end. Before its instant where an
    /// `after_finish` schedule waits for a day that its calendars allow, and looks at them.
    pub due_at: Timestamp,
    /// Runs made so far, for `max_runs`.
    pub fired: u64,
}

/// A time in which nothing starts, from `since` up to, not including, `until`:
/// what planning needs of a [`crate::store::Pause`].
///
/// Keep giving it to [`plan`] after its end until the cursor has passed `until`,
/// so that the instants inside it are recorded as paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub since: Timestamp,
    pub until: Option<Timestamp>,
}

impl Pause {
    /// To the microsecond, as everything that is planned: what a clock adds to it must
    /// not make a pause reach over the instants behind its end.
    pub fn covers(&self, at: Timestamp) -> bool {
        micros(self.since) <= at && self.until.is_none_or(|until| at < micros(until))
    }
}

/// What of this schedule's own earlier runs is not finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Runs that have started or are free to.
    pub active: u64,
    /// Runs that wait behind the active one because of `overlap`.
    pub waiting: u64,
}

/// How a planned run stands to the schedule's earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// It may start.
    Free,
    /// It starts when the earlier ones have ended.
    Behind,
    /// The earlier ones are cancelled, then it starts.
    Replacing,
}

/// A run to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRun {
    pub planned_at: Timestamp,
    /// When it was to start, jitter included; the base of its lateness.
    pub due_at: Timestamp,
    pub start: Start,
}

/// What the tenant's rate of runs has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// What the tenant's quota is.
    pub per_minute: u32,
    /// Runs that may be made now.
    pub runs: u64,
    /// When there is room for more.
    pub more_at: Timestamp,
}

/// All that a plan depends on, besides the time.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub schedule: &'a Schedule,
    pub id: ScheduleId,
    pub cursor: Cursor,
    /// Those of the schedule, its job, its queue and its tenant, in any order;
    /// they may overlap.
    pub pauses: &'a [Pause],
    pub live: Live,
    /// The calendars that the schedule names.
    pub calendars: &'a [&'a Calendar],
    /// None where the tenant's rate is not limited.
    pub allowance: Option<Allowance>,
}

impl Input<'_> {
    /// Until when the instant owed next is put off by the tenant's rate, as far
    /// as the cursor tells. A pause puts off too, and ends where it says.
    pub fn put_off_until(&self) -> Option<Timestamp> {
        let Cursor { planned_at, due_at, .. } = self.cursor;
        let by_pause = || self.pauses.iter().any(|pause| pause.covers(before(due_at)));
        let later = self.allowance.is_some() && due_at > self.schedule.due_at(self.id, planned_at);
        (later && !by_pause()).then_some(due_at)
    }
}

/// What to commit together: runs, skips and the cursor after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// In order of their planned instants.
    pub runs: Vec<PlannedRun>,
    /// In order, not touching each other.
    pub skips: Vec<SkipRange>,
    /// Nothing when the schedule has ended, or when it is an `after_finish`
    /// one whose run has just been made: then the run's end calls [`rearm`].
    pub next: Option<Cursor>,
    /// The same, where one of the runs is refused as it is made: it does not count
    /// towards `max_runs`, and there is no end of it that could arm the schedule.
    pub next_if_refused: Option<Cursor>,
    /// Runs made so far, these included; kept by the store when `next` is empty.
    pub fired: u64,
}

impl Plan {
    fn waiting(cursor: Cursor) -> Self {
        Self {
            runs: Vec::new(),
            skips: Vec::new(),
            next: Some(cursor),
            next_if_refused: Some(cursor),
            fired: cursor.fired,
        }
    }

    /// A schedule that is off owes nothing more, and what it owed ends as edited.
    fn turned_off(input: &Input<'_>, now: Timestamp) -> Self {
        Self {
            runs: Vec::new(),
            skips: owed(input.schedule, input.cursor, input.pauses, now, SkipReason::Edited),
            next: None,
            next_if_refused: None,
            fired: input.cursor.fired,
        }
    }
}

/// What is behind a schedule that is armed: nothing for a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Runs made so far.
    pub fired: u64,
    /// The last instant that was given an end. None up to here is planned
    /// again, so neither an edit nor a clock that steps back fires it twice.
    /// While a cursor is owed this tells of the definitions before the present
    /// one; what that one decided lies before the cursor.
    pub decided_to: Option<Timestamp>,
}

impl Progress {
    /// What is behind a schedule that still owes `cursor`.
    pub fn before(cursor: Cursor) -> Self {
        Self { fired: cursor.fired, decided_to: Some(before(cursor.planned_at)) }
    }

    /// `at`, or the first instant that is not yet decided.
    fn undecided(&self, at: Timestamp) -> Timestamp {
        self.decided_to.map_or(at, |decided| at.max(next_tick(decided)))
    }
}

/// The first cursor of a schedule that is new, enabled or edited at `now`.
///
/// A recurring schedule looks ahead only: catch-up is for downtime, and a range
/// in the past is a backfill. An `at` keeps its moment even in the past, for
/// [`plan`] to fire or skip.
pub fn arm(schedule: &Schedule, id: ScheduleId, behind: Progress, now: Timestamp) -> Option<Cursor> {
    if !schedule.enabled || is_spent(schedule, behind.fired) {
        return None;
    }
    let from = behind.undecided(micros(now));
    let planned_at = match (schedule.moment(), schedule.delay()) {
        (Some(moment), _) => schedule.next(before(moment)).filter(|at| behind.undecided(*at) == *at),
        (None, Some(_)) => schedule.within_bounds(from),
        (None, None) => schedule.next(before(from)),
    };
    planned_at.map(|planned_at| cursor(schedule, id, planned_at, behind.fired))
}

/// The next cursor of an `after_finish` schedule whose last run ended, in
/// whatever way; nothing for other kinds and at the schedule's end.
///
/// A run that ended by a clock which is behind does not lead back to an instant
/// that was decided before.
pub fn rearm(schedule: &Schedule, id: ScheduleId, behind: Progress, ended_at: Timestamp) -> Option<Cursor> {
    let delay = schedule.delay().filter(|_| schedule.enabled && !is_spent(schedule, behind.fired))?;
    let planned_at = schedule.within_bounds(behind.undecided(delay.after(micros(ended_at))))?;
    Some(cursor(schedule, id, planned_at, behind.fired))
}

/// Ends the instants owed up to `now` without running them, because the
/// schedule was edited, deleted or the like.
pub fn abandon(schedule: &Schedule, held: Cursor, now: Timestamp, reason: SkipReason) -> Option<SkipRange> {
    owed(schedule, held, &[], now, reason).pop()
}

/// The same, where what a pause covers ends as paused, for whatever reason the rest does.
fn owed(schedule: &Schedule, held: Cursor, pauses: &[Pause], now: Timestamp, reason: SkipReason) -> Vec<SkipRange> {
    let reason_at = |at| if is_paused(pauses, at) { SkipReason::Paused } else { reason };
    let first = held.planned_at;
    if schedule.delay().is_some() {
        let one = SkipRange { from: first, to: first, count: 1, reason: reason_at(first) };
        return if first <= now { vec![one] } else { Vec::new() };
    }
    let pieces = pieces(first, micros(now), pauses, None);
    let ranges = pieces.into_iter().flat_map(|(from, until)| {
        let blocks = schedule.blocks(before(from), until, false);
        blocks.map(move |block| range(block, reason_at(from)))
    });
    joined(&ranges.collect::<Vec<_>>(), &[])
}

fn is_paused(pauses: &[Pause], at: Timestamp) -> bool {
    pauses.iter().any(|pause| pause.covers(at))
}

/// The time from `from` to `until`, cut where a pause begins or ends and at `also`: the
/// first and the last moment of each piece.
fn pieces(from: Timestamp, until: Timestamp, pauses: &[Pause], also: Option<Timestamp>) -> Vec<(Timestamp, Timestamp)> {
    let of_pauses = pauses.iter().flat_map(|pause| [Some(pause.since), pause.until]).flatten().map(micros);
    let mut cuts: Vec<Timestamp> = of_pauses.chain(also).filter(|cut| from < *cut && *cut <= until).collect();
    cuts.push(from);
    cuts.sort_unstable();
    cuts.dedup();
    let ends: Vec<Timestamp> = cuts[1..].iter().map(|next| before(*next)).chain([until]).collect();
    cuts.into_iter().zip(ends).collect()
}

/// A schedule as it is stored, for one who changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub cursor: Option<Cursor>,
    /// What it keeps of itself beside its cursor.
    pub behind: Progress,
    /// It counts from the end of its last run, which has not ended.
    pub waits_for_run: bool,
}

/// What an edit leaves: the new schedule as it is to be stored, and what the old
/// one owed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    pub stored: Stored,
    pub owed: Vec<SkipRange>,
}

/// Puts `new` in the place of a schedule at `now`; `old` is none where what was
/// stored cannot be read any more.
///
/// What the old one owed ends as edited, and as paused where one of the `pauses` over it
/// (as in [`Input`]) held it. No instant that it decided is planned
/// again, nor one that the definitions before it decided, not even by a clock
/// ahead of this one. One that waits for the end of its run goes on doing so, also
/// while it is off.
pub fn edit(
    old: Option<&Schedule>,
    new: &Schedule,
    id: ScheduleId,
    stored: Stored,
    pauses: &[Pause],
    now: Timestamp,
) -> Edited {
    let Stored { cursor: held, behind: kept, waits_for_run } = stored;
    let own = match (held, old) {
        (None, _) => kept,
        (Some(held), None) => Progress::before(held),
        (Some(held), Some(old)) => Progress { fired: held.fired, decided_to: Some(decided_to(old, held, now)) },
    };
    let owed = held.zip(old).map(|(held, old)| owed(old, held, pauses, now, SkipReason::Edited)).unwrap_or_default();
    let decided_to = owed.last().map(|owed| owed.to).max(own.decided_to).max(kept.decided_to);
    let behind = Progress { decided_to, ..own };
    let waits_for_run = waits_for_run && new.delay().is_some();
    let cursor = match last_end(old, new, held, now) {
        _ if waits_for_run => None,
        Some(ended_at) => rearm(new, id, behind, ended_at),
        None => arm(new, id, behind, now),
    };
    Edited { stored: Stored { cursor, behind, waits_for_run }, owed }
}

/// When the last run of an `after_finish` schedule ended, where its next instant counts from
/// that and is yet to come: an edit moves it by the change of the delay, and makes no run of
/// its own.
fn last_end(old: Option<&Schedule>, new: &Schedule, held: Option<Cursor>, now: Timestamp) -> Option<Timestamp> {
    let delay = old.filter(|old| old.enabled && new.enabled)?.delay().filter(|_| new.delay().is_some())?;
    // One that is due before its instant waits for a day, which says nothing of the last run.
    let counts = |held: &Cursor| held.fired > 0 && held.planned_at > now && held.due_at >= held.planned_at;
    held.filter(counts).map(|held| delay.before(held.planned_at))
}

/// The last run of an `after_finish` schedule, whose end arms it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastRun {
    /// There is none that it waits for.
    None,
    Lives,
    Ended(Timestamp),
}

/// What decides when a schedule wakes, besides its definition.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    pub last_run: LastRun,
    /// As in [`Input`].
    pub pauses: &'a [Pause],
    /// Its tenant's rate is limited, and may have put it off.
    pub rated: bool,
}

/// The cursor that a schedule must have at `now`, by its definition, its job (which
/// may turn it off), its last run and the pauses: what one who looks after schedules
/// compares the stored one with.
///
/// What lies behind a cursor is decided, so its instant is taken as it is; when it
/// wakes is worked out anew.
pub fn implied(
    schedule: &Schedule,
    id: ScheduleId,
    stored: Stored,
    around: &Around<'_>,
    now: Timestamp,
) -> Option<Cursor> {
    if !schedule.enabled {
        return None;
    }
    let Some(held) = stored.cursor else {
        return match around.last_run {
            LastRun::Lives => None,
            LastRun::None => arm(schedule, id, stored.behind, now),
            LastRun::Ended(at) => rearm(schedule, id, stored.behind, at),
        };
    };
    let own = schedule.due_at(id, held.planned_at);
    let asleep = asleep_until(around.pauses, now);
    let latest = match asleep {
        Some(until) => until,
        None if around.rated => PUT_OFF_MAX.after(now),
        // Whatever else puts a cursor off does so for no longer.
        None => now.saturating_add(PACE).unwrap_or(now),
    };
    if held.due_at <= own.max(latest) {
        return Some(held);
    }
    Some(Cursor { due_at: own.max(asleep.unwrap_or(own)), ..held })
}

/// Until when pauses in force at `now` put a schedule to sleep, as far as that may
/// be at a time.
fn asleep_until(pauses: &[Pause], now: Timestamp) -> Option<Timestamp> {
    let longest = PUT_OFF_MAX.after(now);
    let until = |pause: &Pause| pause.until.map_or(longest, |until| until.min(longest));
    pauses.iter().filter(|pause| pause.covers(now)).map(until).max().map(micros)
}

/// Instants looked through that were decided by a clock ahead of this one.
const AHEAD_MAX: usize = 1_000;

/// Up to when a schedule has decided. It had nothing to decide between its last
/// instant and its cursor, where its successor may have.
fn decided_to(schedule: &Schedule, held: Cursor, now: Timestamp) -> Timestamp {
    let limit = before(held.planned_at);
    let mut last = limit.min(now);
    for _ in 0..AHEAD_MAX {
        match schedule.next(last) {
            Some(next) if next < held.planned_at => last = next,
            _ => return last,
        }
    }
    limit
}

/// Decides every instant owed at `now`; see the module.
pub fn plan(input: &Input<'_>, now: Timestamp) -> Plan {
    let now = micros(now);
    if now < input.cursor.due_at {
        return Plan::waiting(input.cursor);
    }
    if !input.schedule.enabled {
        return Plan::turned_off(input, now);
    }
    if let Some(due_at) = asleep_until(input.pauses, now) {
        return Plan::waiting(Cursor { due_at, ..input.cursor });
    }
    let planner = Planner::new(input, now);
    match input.schedule.delay() {
        Some(delay) => planner.plan_after_finish(delay),
        None => planner.plan_stream(),
    }
}

fn is_spent(schedule: &Schedule, fired: u64) -> bool {
    schedule.max_runs.is_some_and(|max| fired >= max)
}

fn cursor(schedule: &Schedule, id: ScheduleId, planned_at: Timestamp, fired: u64) -> Cursor {
    Cursor { planned_at, due_at: schedule.due_at(id, planned_at), fired }
}

fn range(block: Block, reason: SkipReason) -> SkipRange {
    SkipRange { from: block.first, to: block.last, count: block.count, reason }
}

#[cfg(test)]
mod tests;
