//! Finds the instants of a pattern in a time zone, in order.
//!
//! The time line is cut into segments in which the zone's offset is constant.
//! Inside a segment local time is elapsed time, so a bit-set search is exact.
//! What a clock change does is decided at the cut: a fold hides one of the two
//! passes from fixed times, a gap may add one shifted instant, and an interval
//! pattern just goes on. So each instant appears once and in order by
//! construction, with nothing to sort and nothing to drop.
//!
//! Long empty stretches are jumped over; no loop here runs by the second.

use jiff::{Timestamp, tz::TimeZone};

use super::{
    DstPolicy,
    pattern::{DAY, Pattern},
};
use crate::schedule::{Fold, Gap};

/// More than any offset from UTC plus any gap (Samoa skipped a day).
const OFFSET_MARGIN: i64 = 3 * DAY;

/// A stretch of time with one offset, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: i64,
    end: i64,
    offset: i64,
    offset_before: i64,
    offset_after: i64,
}

impl Segment {
    /// The segment that holds `at`.
    fn holding(zone: &TimeZone, at: i64) -> Self {
        if let Ok(fixed) = zone.to_fixed_offset() {
            let offset = i64::from(fixed.seconds());
            return Self { start: i64::MIN, end: i64::MAX, offset, offset_before: offset, offset_after: offset };
        }
        let here = stamp(at);
        let offset = i64::from(zone.to_offset(here).seconds());
        let following = zone.following(here).next();
        let preceding = zone.preceding(stamp(at + 1)).next().map(|cut| cut.timestamp().as_second());
        Self {
            start: preceding.unwrap_or(i64::MIN),
            end: following.as_ref().map_or(i64::MAX, |cut| cut.timestamp().as_second()),
            offset,
            offset_before: preceding.map_or(offset, |cut| i64::from(zone.to_offset(stamp(cut - 1)).seconds())),
            offset_after: following.map_or(offset, |cut| i64::from(cut.offset().seconds())),
        }
    }

    /// The local times of this segment that fixed times may use.
    fn local_range(&self, fold: Fold) -> (i64, i64) {
        let start = self.start.saturating_add(self.offset);
        let end = self.end.saturating_add(self.offset);
        let after_repeat = self.start.saturating_add(self.offset_before).max(start);
        let before_repeat = self.end.saturating_add(self.offset_after).min(end);
        match fold {
            Fold::First => (after_repeat, end),
            Fold::Last => (start, before_repeat),
            Fold::Both => (start, end),
        }
    }

    /// The local times that the cut at this segment's start left out.
    fn gap(&self) -> Option<(i64, i64)> {
        let left_out = (self.start != i64::MIN && self.offset_before < self.offset)
            .then(|| (self.start + self.offset_before, self.start + self.offset))?;
        Some(left_out)
    }

    /// The least local time at or after the end of this segment, gap included.
    fn local_after(&self) -> i64 {
        self.end.saturating_add(self.offset.min(self.offset_after))
    }
}

/// How an instant came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The local clock shows a time of the pattern.
    Local,
    /// The pattern's first local time in the gap that ends here.
    Gap(i64),
}

/// Instants of one local day and one offset, of which there is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) count: u64,
    pub(super) offset: i64,
}

/// A walk through a pattern's instants, forwards from a place.
#[derive(Clone, Debug)]
pub(super) struct Walk<'a> {
    pattern: &'a Pattern,
    zone: &'a TimeZone,
    policy: DstPolicy,
    /// Everything before this is behind the walk.
    from: i64,
    segment: Segment,
    /// The first local time passed over because a clock change left it out.
    pub(super) left_out: Option<i64>,
}

impl<'a> Walk<'a> {
    /// A walk over the instants strictly after `after`.
    pub(super) fn after(pattern: &'a Pattern, zone: &'a TimeZone, policy: DstPolicy, after: Timestamp) -> Self {
        // Floored, so that a fraction of a second still counts as before.
        let floor = after.as_second() - i64::from(after.subsec_nanosecond() < 0);
        let from = (floor + 1).max(-OFFSET_MARGIN);
        Self { pattern, zone, policy, from, segment: Segment::holding(zone, from), left_out: None }
    }

    /// The next instant before `end`, and leaves it behind.
    pub(super) fn step(&mut self, end: i64) -> Option<(i64, Origin)> {
        let found = self.seek(end)?;
        self.from = found.0 + 1;
        Some(found)
    }

    /// The next instants before `end` that share a day, and leaves them behind.
    pub(super) fn block(&mut self, end: i64) -> Option<Block> {
        let (first, origin) = self.seek(end)?;
        let offset = self.segment.offset;
        if origin != Origin::Local {
            self.from = first + 1;
            return Some(Block { first, last: first, count: 1, offset });
        }
        let local = first + offset;
        let midnight = local - local.rem_euclid(DAY);
        let stop = self.local_end().min(end.saturating_add(offset)).min(midnight + DAY) - midnight;
        let last = self.pattern.times.last(stop).map_or(first, |time| midnight + time - offset);
        self.from = last + 1;
        Some(Block { first, last, count: self.pattern.times.count(local - midnight, stop), offset })
    }

    /// The first instant at or after `from` and before `end`.
    fn seek(&mut self, end: i64) -> Option<(i64, Origin)> {
        while self.from < end {
            if self.from >= self.segment.end {
                self.segment = Segment::holding(self.zone, self.from);
            }
            if let Some(local) = self.gap_instant() {
                return (self.segment.start < end).then_some((self.segment.start, Origin::Gap(local)));
            }
            let local = self.pattern.first((self.from + self.segment.offset).max(self.local_start()));
            if let Some(local) = local.filter(|local| *local < self.local_end()) {
                let at = local - self.segment.offset;
                return (at < end).then_some((at, Origin::Local));
            }
            self.leave_segment()?;
        }
        None
    }

    /// The local time that is owed at the very start of this segment, if the
    /// clock change there left it out.
    fn gap_instant(&mut self) -> Option<i64> {
        if self.pattern.interval || self.from > self.segment.start {
            return None;
        }
        let (start, end) = self.segment.gap()?;
        let local = self.pattern.first(start).filter(|local| *local < end)?;
        match self.policy.gap {
            Gap::Shift => Some(local),
            Gap::Skip => {
                self.left_out.get_or_insert(local);
                None
            }
        }
    }

    /// Goes to the next segment that can hold an instant.
    fn leave_segment(&mut self) -> Option<()> {
        if self.segment.end == i64::MAX {
            return None;
        }
        let next = self.pattern.first(self.segment.local_after())?;
        self.from = (next - OFFSET_MARGIN).max(self.segment.end);
        Some(())
    }

    fn local_start(&self) -> i64 {
        if self.pattern.interval { i64::MIN } else { self.segment.local_range(self.policy.fold).0 }
    }

    fn local_end(&self) -> i64 {
        if self.pattern.interval {
            return self.segment.end.saturating_add(self.segment.offset);
        }
        self.segment.local_range(self.policy.fold).1
    }
}

/// The instant of a second, or the nearest one that can be written.
pub(super) fn stamp(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX })
}
