//! What time it is by another clock, as far as asking it can tell.
//!
//! A clock that is asked over a way of unknown length answers with what it read
//! somewhere between the question and the answer. So each comparison gives two
//! bounds and no more: the other clock is at least at what it said when its
//! answer is heard, and it was at most at that when it was asked. Which half of
//! the way was the slow one cannot be known, and is not guessed at. The bounds
//! of several comparisons together are tighter than those of any one of them;
//! an old one counts for less, because two clocks drift apart.
//!
//! It is safe because nothing is done before its instant has come by the earliest
//! bound, and nothing of another's is presumed over before that either; what one
//! may do only up to an instant is judged by the latest.
//!
//! A comparison that contradicts the earlier ones means that one of the clocks
//! was set: the earlier ones are forgotten, and the new one holds at once. A step
//! too small to be seen between the bounds is forgotten with the window.

use std::{collections::VecDeque, time::Duration};

use jiff::{SignedDuration, Timestamp};

use crate::duration::Span;

/// Comparisons that count: a step that hides between the bounds lasts no longer.
pub const WINDOW: usize = 8;

/// How far two clocks may drift apart, in millionths. Quartz is good for a tenth
/// of it.
pub const DRIFT_PPM: i64 = 200;

/// A change of the time that is worth telling of, in microseconds: what is paced
/// by it must be paced anew. Leases are judged with a larger margin than this.
pub const STEP_MIN: i64 = 250_000;

/// One comparison, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When the other clock was asked, by our own steady one.
    pub asked: i64,
    /// When its answer was heard, by the same.
    pub heard: i64,
    /// What it said.
    pub said: i64,
}

/// What the other clock is ahead of ours, in microseconds: somewhere between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub least: i64,
    pub most: i64,
}

impl Bounds {
    fn meets(self, other: Self) -> bool {
        self.least <= other.most && other.least <= self.most
    }

    fn and(self, other: Self) -> Self {
        Self { least: self.least.max(other.least), most: self.most.min(other.most) }
    }

    /// How much is not known.
    pub fn width(self) -> i64 {
        self.most.saturating_sub(self.least)
    }
}

impl Sample {
    /// What this comparison alone tells at `at` by our own clock. What was said is cut
    /// to whole microseconds: it may have been almost one more.
    fn bounds(self, at: i64, drift_ppm: i64) -> Bounds {
        let drift = |since: i64| (at.saturating_sub(since).max(0).saturating_mul(drift_ppm) + 999_999) / 1_000_000;
        Bounds {
            least: self.said - self.heard - drift(self.heard),
            most: self.said + 1 - self.asked + drift(self.asked),
        }
    }
}

/// How far another clock is from our own, by the last comparisons.
#[derive(Clone, Debug)]
pub struct Offset {
    drift_ppm: i64,
    samples: VecDeque<Sample>,
}

impl Offset {
    /// Of two clocks that drift apart by no more than `drift_ppm`.
    pub fn new(drift_ppm: i64) -> Self {
        Self { drift_ppm, samples: VecDeque::with_capacity(WINDOW) }
    }

    /// Takes in a comparison. True where it contradicts the earlier ones: one of
    /// the clocks was set, and they are forgotten.
    pub fn take(&mut self, sample: Sample) -> bool {
        let news = sample.bounds(sample.heard, self.drift_ppm);
        let was_set = self.bounds(sample.heard).is_some_and(|known| !known.meets(news));
        if was_set {
            self.samples.clear();
        }
        if self.samples.len() >= WINDOW {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        was_set
    }

    /// What is known at `at` by our own clock; nothing before the first comparison.
    pub fn bounds(&self, at: i64) -> Option<Bounds> {
        self.samples.iter().map(|sample| sample.bounds(at, self.drift_ppm)).reduce(Bounds::and)
    }
}

/// By how much a clock was set ahead lately, seen beside the time that really passed.
///
/// A clock that is set ahead makes everything old at once: history, and the batches whose
/// lost answers may still be asked for. By as much as it was set, everything is kept for
/// longer, until the clock has stood for a while or is put right. Who has just begun to read
/// a clock cannot know what it was before: for [`Ahead::NEW_FOR`] everything is kept.
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    /// The uptime of the first reading.
    first: Option<Duration>,
    /// The uptime and the time of the last reading.
    last: Option<(Duration, Timestamp)>,
    by: SignedDuration,
    /// The uptime from which the clock is believed.
    believed_from: Duration,
}

impl Ahead {
    /// How long a machine that starts with a wrong clock has to put it right.
    pub const NEW_FOR: Duration = Duration::from_mins(10);

    /// Takes in a reading of the clock at this uptime. A step that it shows is believed
    /// after `doubt`.
    pub fn read(&mut self, uptime: Duration, now: Timestamp, doubt: Span) {
        self.first.get_or_insert(uptime);
        let last = self.last.replace((uptime, now));
        let passed = |then: Duration| SignedDuration::try_from(uptime.saturating_sub(then)).ok();
        let set_by = last.and_then(|(then, said)| Some(said.duration_until(now).saturating_sub(passed(then)?)));
        // Smaller ones are the measurement's.
        if let Some(set_by) = set_by.filter(|by| by.as_micros().abs() >= i128::from(STEP_MIN)) {
            self.by = self.by.saturating_add(set_by).max(SignedDuration::ZERO);
            if set_by.is_positive() {
                self.believed_from = uptime + Duration::from_millis(doubt.as_millis());
            }
        }
        if self.believed_from <= uptime {
            self.by = SignedDuration::ZERO;
        }
    }

    /// For how long that is kept which is to be kept for `span`.
    pub fn kept(&self, span: Span) -> Span {
        let read_for = self.first.zip(self.last).map(|(first, (last, _))| last.saturating_sub(first));
        if read_for.is_none_or(|read_for| read_for < Self::NEW_FOR) {
            return Span::LONGEST;
        }
        Span::millis(span.as_millis().saturating_add(u64::try_from(self.by.as_millis()).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests;
