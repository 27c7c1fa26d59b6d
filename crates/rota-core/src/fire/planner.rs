//! One pass over the instants that a schedule owes.
//!
//! The owed time is cut where the answer changes (a pause, the catch-up
//! window), and each piece is taken in groups that share a local day. A group
//! that cannot fire becomes a skip without being visited. Of those that can,
//! either each fires as far as overlap lets it, or only the newest.
//!
//! Nothing here is remembered: the planner lives for one call of `plan`.

use jiff::Timestamp;

use super::{
    Cursor, Input, Live, PACE, Plan, PlannedRun, QUEUE_MAX, RUNS_MAX, SkipRange, SkipReason, Start, cursor, is_paused,
    is_spent, pieces, range,
};
use crate::{
    calendar::all_allow,
    cron::Block,
    duration::Span,
    schedule::{CatchUpMode, Overlap},
    timing::{before, micros},
};

/// Most days of skips older than the catch-up window that one call counts.
const OLD_BLOCKS_MAX: usize = 4_000;
/// How late an instant may be to still fire when nothing is to be caught up.
const LATE_MAX: Span = Span::secs(60);
/// A schedule that waits for a day that its calendars allow looks at them this often.
const CALENDAR_LOOK: Span = Span::secs(60);
/// How far ahead a day is sought that the calendars allow.
const DAYS_SOUGHT_MAX: usize = 3_660;

/// A stretch of owed time in which one answer holds for all instants.
struct Region {
    after: Timestamp,
    until: Timestamp,
    /// Why nothing fires in it, whatever the day.
    skip: Option<SkipReason>,
    /// Lies before the catch-up window, so it has no bound of its own.
    old: bool,
}

/// Which of the instants that may fire do.
#[derive(Clone, Copy)]
enum Take {
    /// Each, as far as overlap lets it.
    Each,
    /// The newest; the others are skips for this reason.
    Newest(SkipReason),
}

/// Why a walk ended before the horizon: the first instant it left undecided.
struct Stopped {
    at: Option<Timestamp>,
    due_at: Timestamp,
}

pub(super) struct Planner<'a> {
    input: &'a Input<'a>,
    now: Timestamp,
    take: Take,
    live: Live,
    fired: u64,
    runs: Vec<PlannedRun>,
    skips: Vec<SkipRange>,
    /// Why an instant that is left out is late.
    late: SkipReason,
    /// The newest group that may fire, while a newer one may still be found.
    newest: Option<Block>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(input: &'a Input<'a>, now: Timestamp) -> Self {
        let late = if input.put_off_until().is_some() { SkipReason::Quota } else { SkipReason::CatchUp };
        let take = match (input.schedule.catch_up.mode, input.schedule.overlap) {
            (CatchUpMode::Latest | CatchUpMode::None, _) => Take::Newest(late),
            // Each would be cancelled by the one after it, before it began.
            (CatchUpMode::All, Overlap::CancelRunning) => Take::Newest(SkipReason::Overlap),
            (CatchUpMode::All, Overlap::Skip | Overlap::QueueOne | Overlap::QueueAll | Overlap::Allow) => Take::Each,
        };
        let (live, fired) = (input.live, input.cursor.fired);
        Self { input, now, take, live, fired, runs: Vec::new(), skips: Vec::new(), late, newest: None }
    }

    /// Plans a schedule whose instants are known beforehand.
    pub(super) fn plan_stream(self) -> Plan {
        let planned_at = self.input.cursor.planned_at;
        match self.input.schedule.next(planned_at) {
            Some(next) if next <= self.now => self.plan_many(),
            next => self.plan_single(planned_at, next),
        }
    }

    /// The common case, an instant on its time, with one search instead of many.
    fn plan_single(mut self, planned_at: Timestamp, next: Option<Timestamp>) -> Plan {
        let (schedule, id) = (self.input.schedule, self.input.id);
        let own = cursor(schedule, id, planned_at, self.fired);
        if own.due_at > self.now {
            return self.into_plan(Some(own));
        }
        let block = Block { first: planned_at, last: planned_at, count: 1, date: schedule.date(planned_at) };
        let stopped = self.decide(block, self.blanket_skip(planned_at));
        if let Some(Stopped { due_at, .. }) = stopped.or_else(|| self.decide_newest()) {
            return self.into_plan(Some(Cursor { due_at, ..own }));
        }
        let next = next.map(|planned_at| cursor(schedule, id, planned_at, self.fired));
        self.go_on(next)
    }

    /// A schedule that has made all its runs ends, unless one of them is refused.
    fn go_on(self, next: Option<Cursor>) -> Plan {
        let spent = is_spent(self.input.schedule, self.fired);
        Plan { next: next.filter(|_| !spent), ..self.into_plan(next) }
    }

    fn plan_many(mut self) -> Plan {
        let horizon = self.horizon();
        if let Some(stopped) = self.walk(horizon) {
            let next = stopped.at.map(|planned_at| Cursor { planned_at, due_at: stopped.due_at, fired: self.fired });
            return self.into_plan(next);
        }
        let mut decided_to = horizon.max(before(self.input.cursor.planned_at));
        if is_spent(self.input.schedule, self.fired) {
            self.end_everything_after(decided_to);
            decided_to = decided_to.max(self.now);
        }
        let next = self.input.schedule.next(decided_to);
        let next = next.map(|planned_at| cursor(self.input.schedule, self.input.id, planned_at, self.fired));
        self.go_on(next)
    }

    /// The last moment whose instants are due. Only the last instant before now
    /// can still be waiting for its jitter, because jitter never passes the
    /// next instant.
    fn horizon(&self) -> Timestamp {
        let schedule = self.input.schedule;
        let Some(jitter) = schedule.jitter() else { return self.now };
        let recent = schedule.blocks(before(jitter.before(self.now)), self.now, false);
        match recent.last() {
            Some(block) if schedule.due_at(self.input.id, block.last) > self.now => before(block.last),
            _ => self.now,
        }
    }

    /// Decides the instants up to the horizon, or as many as one call may.
    fn walk(&mut self, horizon: Timestamp) -> Option<Stopped> {
        let by_day = !self.input.calendars.is_empty();
        let mut old_blocks = 0;
        for region in self.regions(horizon) {
            for block in self.input.schedule.blocks(region.after, region.until, by_day) {
                if let Some(stopped) = self.decide(block, region.skip) {
                    return Some(stopped);
                }
                old_blocks += usize::from(region.old);
                if old_blocks == OLD_BLOCKS_MAX {
                    return Some(Stopped { at: self.input.schedule.next(block.last), due_at: self.now });
                }
            }
        }
        self.decide_newest()
    }

    /// The owed time, cut wherever another answer begins.
    fn regions(&self, horizon: Timestamp) -> Vec<Region> {
        let window_start = self.window_start();
        let pieces = pieces(self.input.cursor.planned_at, horizon, self.input.pauses, Some(window_start));
        let region = |(start, until): (Timestamp, Timestamp)| {
            let skip = self.blanket_skip(start);
            Region { after: before(start), until, skip, old: start < window_start }
        };
        pieces.into_iter().map(region).collect()
    }

    /// Why nothing fires at `at`, whatever the day.
    fn blanket_skip(&self, at: Timestamp) -> Option<SkipReason> {
        if is_paused(self.input.pauses, at) {
            return Some(SkipReason::Paused);
        }
        (at < self.window_start()).then_some(self.late)
    }

    /// Instants before this are too old to fire.
    fn window_start(&self) -> Timestamp {
        let catch_up = self.input.schedule.catch_up;
        let window = if catch_up.mode == CatchUpMode::None { LATE_MAX } else { catch_up.window };
        // An instant is late from the time its jitter lets it start.
        let start = window.before(self.now);
        self.input.schedule.jitter().map_or(start, |jitter| jitter.before(start))
    }

    fn decide(&mut self, block: Block, blanket: Option<SkipReason>) -> Option<Stopped> {
        if is_spent(self.input.schedule, self.fired) {
            self.skips.push(range(block, SkipReason::Ended));
            return None;
        }
        let allowed = all_allow(self.input.calendars.iter().copied(), block.date);
        match (blanket, allowed) {
            (Some(SkipReason::Paused), _) => self.skips.push(range(block, SkipReason::Paused)),
            (_, false) => self.skips.push(range(block, SkipReason::Calendar)),
            (Some(reason), true) => self.skips.push(range(block, reason)),
            (None, true) => return self.owe(block),
        }
        None
    }

    /// Takes a group whose instants may all fire.
    fn owe(&mut self, block: Block) -> Option<Stopped> {
        match self.take {
            Take::Each => self.fire_each(block),
            Take::Newest(reason) => {
                let older = self.newest.replace(block);
                self.skips.extend(older.map(|older| range(older, reason)));
                None
            }
        }
    }

    fn fire_each(&mut self, block: Block) -> Option<Stopped> {
        let mut rest = block;
        loop {
            let start = match self.admit() {
                Ok(start) => start,
                Err(reason) => {
                    self.skips.push(range(rest, reason));
                    return None;
                }
            };
            let full = if self.runs.len() == RUNS_MAX {
                Some(self.now.checked_add(PACE).unwrap_or(self.now))
            } else {
                self.over_rate()
            };
            if let Some(due_at) = full {
                return Some(Stopped { at: Some(rest.first), due_at });
            }
            self.fire(rest.first, start);
            rest.count -= 1;
            if rest.count == 0 {
                return None;
            }
            rest.first = self.input.schedule.next(rest.first)?;
        }
    }

    /// Fires the newest instant found, and skips those that share its group.
    /// Where the rate does not allow it, it alone is still owed.
    fn decide_newest(&mut self) -> Option<Stopped> {
        let (Some(block), Take::Newest(reason)) = (self.newest.take(), self.take) else { return None };
        if block.count > 1 {
            let older = self.input.schedule.blocks(before(block.first), before(block.last), false);
            self.skips.extend(older.map(|older| range(older, reason)));
        }
        match (self.admit(), self.over_rate()) {
            (Ok(_), Some(due_at)) => {
                // What lies behind it is decided after it, or it would be twice.
                self.skips.retain(|skip| skip.from < block.last);
                return Some(Stopped { at: Some(block.last), due_at });
            }
            (Ok(start), None) => self.fire(block.last, start),
            (Err(reason), _) => self.skips.push(SkipRange { from: block.last, to: block.last, count: 1, reason }),
        }
        None
    }

    /// When the tenant's rate has room for another run, where it has none now.
    fn over_rate(&self) -> Option<Timestamp> {
        let allowance = self.input.allowance?;
        let spent = self.runs.len() as u64 >= allowance.runs;
        // Later by a little at least, or the cursor would be due for ever.
        spent.then(|| micros(allowance.more_at).max(Span::millis(1).after(self.now)))
    }

    /// How the next run may start, or why there is none.
    fn admit(&self) -> Result<Start, SkipReason> {
        if is_spent(self.input.schedule, self.fired) {
            return Err(SkipReason::Ended);
        }
        if self.live.active + self.live.waiting == 0 {
            return Ok(Start::Free);
        }
        match self.input.schedule.overlap {
            Overlap::Allow => Ok(Start::Free),
            Overlap::Skip => Err(SkipReason::Overlap),
            Overlap::QueueOne if self.live.waiting > 0 => Err(SkipReason::Overlap),
            Overlap::QueueAll if self.live.active + self.live.waiting >= QUEUE_MAX => Err(SkipReason::Overlap),
            Overlap::QueueOne | Overlap::QueueAll => Ok(Start::Behind),
            Overlap::CancelRunning => Ok(Start::Replacing),
        }
    }

    fn fire(&mut self, planned_at: Timestamp, start: Start) {
        match start {
            Start::Free => self.live.active += 1,
            Start::Behind => self.live.waiting += 1,
            Start::Replacing => self.live = Live { active: 1, waiting: 0 },
        }
        self.fired += 1;
        let due_at = self.input.schedule.due_at(self.input.id, planned_at);
        self.runs.push(PlannedRun { planned_at, due_at, start });
    }

    /// A schedule that has ended owes nothing, not even what waits for jitter.
    fn end_everything_after(&mut self, after: Timestamp) {
        let blocks = self.input.schedule.blocks(after, self.now, false);
        self.skips.extend(blocks.map(|block| range(block, SkipReason::Ended)));
    }

    /// Plans a schedule that owes one instant at a time.
    ///
    /// A skip counts as an end: it re-arms, so that no skip can be the last
    /// thing such a schedule ever does.
    pub(super) fn plan_after_finish(mut self, delay: Span) -> Plan {
        let planned_at = self.input.cursor.planned_at;
        if self.input.schedule.within_bounds(planned_at).is_none() {
            return self.into_plan(None);
        }
        if planned_at > self.now {
            // It waits for a day that its calendars allow, and they may have changed.
            let next = self.from(self.first_allowed(self.now)).map(|next| self.to_be_looked_at(next));
            return self.into_plan(next);
        }
        let reason = match (self.admit_one(planned_at), self.over_rate()) {
            (Ok(_), Some(due_at)) => {
                let put_off = Cursor { due_at, ..self.input.cursor };
                return self.into_plan(Some(put_off));
            }
            (Ok(start), None) => {
                let next_if_refused = self.from(delay.after(self.now));
                self.fire(planned_at, start);
                return Plan { next_if_refused, ..self.into_plan(None) };
            }
            (Err(reason), _) => reason,
        };
        self.skips.push(SkipRange { from: planned_at, to: planned_at, count: 1, reason });
        let next = match reason {
            SkipReason::Ended => None,
            SkipReason::Calendar => {
                let next = self.from(self.first_allowed(delay.after(self.now)));
                next.map(|next| self.to_be_looked_at(next))
            }
            _ => self.from(delay.after(self.now)),
        };
        self.into_plan(next)
    }

    /// The cursor for an instant of an `after_finish` schedule, unless it is over.
    fn from(&self, at: Timestamp) -> Option<Cursor> {
        let planned_at = self.input.schedule.within_bounds(at)?;
        Some(cursor(self.input.schedule, self.input.id, planned_at, self.fired))
    }

    fn admit_one(&self, planned_at: Timestamp) -> Result<Start, SkipReason> {
        if is_spent(self.input.schedule, self.fired) {
            return Err(SkipReason::Ended);
        }
        let allowed = all_allow(self.input.calendars.iter().copied(), self.input.schedule.date(planned_at));
        match (self.blanket_skip(planned_at), allowed) {
            (Some(SkipReason::Paused), _) => Err(SkipReason::Paused),
            (_, false) => Err(SkipReason::Calendar),
            (Some(reason), true) => Err(reason),
            (None, true) => self.admit(),
        }
    }

    /// `at`, or the first moment of the next day that the calendars allow, so that a
    /// holiday is one skip and not one per delay.
    fn first_allowed(&self, mut at: Timestamp) -> Timestamp {
        for _ in 0..DAYS_SOUGHT_MAX {
            let date = self.input.schedule.date(at);
            if all_allow(self.input.calendars.iter().copied(), date) {
                break;
            }
            at = self.input.schedule.midnight_after(date);
        }
        at
    }

    /// A cursor that waits for a day wakes before it, to follow a calendar that is changed.
    fn to_be_looked_at(&self, next: Cursor) -> Cursor {
        Cursor { due_at: next.due_at.min(CALENDAR_LOOK.after(self.now)), ..next }
    }

    fn into_plan(mut self, next: Option<Cursor>) -> Plan {
        self.skips.sort_unstable_by_key(|skip| skip.from);
        let skips = joined(&self.skips, &self.runs);
        Plan { runs: self.runs, skips, next, next_if_refused: next, fired: self.fired }
    }
}

/// Joins neighbours with one reason, unless a run lies between them.
pub(super) fn joined(skips: &[SkipRange], runs: &[PlannedRun]) -> Vec<SkipRange> {
    let mut joined: Vec<SkipRange> = Vec::new();
    for skip in skips {
        match joined.last_mut() {
            Some(last) if last.reason == skip.reason && !run_between(runs, last.to, skip.from) => {
                last.to = skip.to;
                last.count += skip.count;
            }
            _ => joined.push(*skip),
        }
    }
    joined
}

fn run_between(runs: &[PlannedRun], after: Timestamp, until: Timestamp) -> bool {
    let next = runs.partition_point(|run| run.planned_at <= after);
    runs.get(next).is_some_and(|run| run.planned_at < until)
}
