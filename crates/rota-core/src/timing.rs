//! A schedule ready to be asked for its instants.
//!
//! [`Schedule`] is a valid document made quick: the expression parsed, the zone
//! found, instants cut to the microseconds that stores keep. The planned
//! instants are a pure function of it, so every node and every restart sees
//! the same ones, and jitter moves only the waking, never the identity.
//!
//! What becomes of an instant (a run, a skip) is decided in `fire`.

use jiff::{SignedDuration, Timestamp, civil::Date, tz::TimeZone};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    cron::{Block, Cron, DstNote, DstPolicy, next_beat, zone},
    duration::Span,
    ids::ScheduleId,
    problem::Problem,
    schedule::{CatchUp, Kind, Overlap, ScheduleSpec},
};

/// The least distance between two instants that a store can tell apart.
const TICK: SignedDuration = SignedDuration::from_micros(1);

/// How a schedule finds its instants.
#[derive(Clone, Debug)]
enum Timing {
    Cron(Cron),
    Every { anchor: Timestamp, span: Span },
    AfterFinish(Span),
    At(Timestamp),
}

/// A compiled schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    timing: Timing,
    zone: TimeZone,
    policy: DstPolicy,
    starts_at: Option<Timestamp>,
    ends_at: Option<Timestamp>,
    jitter: Option<Span>,
    pub(crate) max_runs: Option<u64>,
    pub(crate) enabled: bool,
    pub(crate) overlap: Overlap,
    pub(crate) catch_up: CatchUp,
}

impl Schedule {
    /// Compiles a document, or names everything that is wrong with it.
    ///
    /// `seed` decides where `H` falls; give it the schedule's identity, and the
    /// same one for as long as the schedule lives.
    pub fn compile(spec: &ScheduleSpec, seed: &[u8]) -> Result<Self, Vec<Problem>> {
        let problems = spec.validate();
        if problems.is_empty() { Self::build(spec, seed).map_err(|problem| vec![problem]) } else { Err(problems) }
    }

    /// Compiles what can be compiled; bounds between fields are not checked.
    pub(crate) fn build(spec: &ScheduleSpec, seed: &[u8]) -> Result<Self, Problem> {
        Ok(Self {
            timing: timing(spec, seed)?,
            zone: spec.zone()?,
            policy: DstPolicy { gap: spec.gap, fold: spec.fold },
            starts_at: spec.starts_at.map(micros),
            ends_at: spec.ends_at.map(micros),
            jitter: spec.jitter,
            max_runs: spec.max_runs,
            enabled: spec.enabled,
            overlap: spec.overlap,
            catch_up: spec.catch_up,
        })
    }

    /// The same schedule as far as its job allows: of a job that is off, none is on.
    #[must_use]
    pub fn of_job(self, job_enabled: bool) -> Self {
        Self { enabled: self.enabled && job_enabled, ..self }
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub fn zone(&self) -> &TimeZone {
        &self.zone
    }

    /// The first planned instant strictly after `after`.
    ///
    /// Nothing for `after_finish`, whose instants depend on its runs.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let at = self.next_unbounded(self.clamp_after(after))?;
        self.ends_at.is_none_or(|ends| at <= ends).then_some(at)
    }

    /// Whether no instant is left: nothing comes of it any more, whatever its runs do.
    pub fn is_over(&self, now: Timestamp) -> bool {
        match self.timing {
            Timing::AfterFinish(_) => self.ends_at.is_some_and(|ends| ends <= now),
            Timing::Cron(_) | Timing::Every { .. } | Timing::At(_) => self.next(now).is_none(),
        }
    }

    fn next_unbounded(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.timing {
            Timing::Cron(cron) => cron.next(after, &self.zone, self.policy),
            Timing::Every { anchor, span } => next_beat(*anchor, *span, after),
            Timing::At(at) => (*at > after).then_some(*at),
            Timing::AfterFinish(_) => None,
        }
    }

    fn clamp_after(&self, after: Timestamp) -> Timestamp {
        self.starts_at.map_or(after, |starts| after.max(before(starts)))
    }

    /// The planned instants in `(after, until]` in groups, without visiting
    /// them; with `by_day` no group crosses a local midnight.
    pub(crate) fn blocks(
        &self,
        after: Timestamp,
        until: Timestamp,
        by_day: bool,
    ) -> Box<dyn Iterator<Item = Block> + '_> {
        let after = self.clamp_after(after);
        let until = self.ends_at.map_or(until, |ends| until.min(ends));
        match &self.timing {
            Timing::Cron(cron) => Box::new(cron.blocks(after, until, &self.zone, self.policy).into_iter().flatten()),
            Timing::Every { anchor, span } => self.beats(*anchor, *span, (after, until), by_day),
            Timing::At(at) => {
                let single = Block { first: *at, last: *at, count: 1, date: self.date(*at) };
                Box::new((after < *at && *at <= until).then_some(single).into_iter())
            }
            Timing::AfterFinish(_) => Box::new(std::iter::empty()),
        }
    }

    fn beats(
        &self,
        anchor: Timestamp,
        span: Span,
        (mut after, until): (Timestamp, Timestamp),
        by_day: bool,
    ) -> Box<dyn Iterator<Item = Block> + '_> {
        Box::new(std::iter::from_fn(move || {
            let first = next_beat(anchor, span, after).filter(|first| *first <= until)?;
            let date = self.date(first);
            let end = if by_day { until.min(before(self.midnight_after(date))) } else { until };
            let count = beats_up_to(first, span, end);
            let last = first + span.signed() * i32::try_from(count - 1).unwrap_or(i32::MAX);
            after = last;
            Some(Block { first, last, count, date })
        }))
    }

    /// The local day of an instant.
    pub fn date(&self, at: Timestamp) -> Date {
        self.zone.to_datetime(at).date()
    }

    /// The first instant of the day after `date`.
    pub(crate) fn midnight_after(&self, date: Date) -> Timestamp {
        let start = date.tomorrow().and_then(|next| self.zone.to_zoned(next.at(0, 0, 0, 0)));
        start.map_or(Timestamp::MAX, |zoned| zoned.timestamp())
    }

    /// When to wake for a planned instant: the same on every node, and never
    /// later than the next planned instant.
    pub fn due_at(&self, id: ScheduleId, planned_at: Timestamp) -> Timestamp {
        let Some(jitter) = self.jitter else { return planned_at };
        let until_next = self.next_unbounded(planned_at).map(|next| next.duration_since(planned_at).as_millis());
        let room = until_next.map_or(jitter.as_millis(), |millis| jitter.as_millis().min(millis.max(1) as u64));
        let hash = xxh3_64_with_seed(&planned_at.as_microsecond().to_le_bytes(), id.0 as u64);
        let moved = SignedDuration::from_millis((hash % room) as i64);
        planned_at.checked_add(moved).unwrap_or(planned_at)
    }

    pub(crate) fn jitter(&self) -> Option<Span> {
        self.jitter
    }

    /// The delay of an `after_finish` schedule.
    pub(crate) fn delay(&self) -> Option<Span> {
        if let Timing::AfterFinish(delay) = self.timing { Some(delay) } else { None }
    }

    /// The moment of an `at` schedule.
    pub(crate) fn moment(&self) -> Option<Timestamp> {
        if let Timing::At(at) = self.timing { Some(at) } else { None }
    }

    /// `at`, moved into the bounds of this schedule, or nothing after its end.
    pub(crate) fn within_bounds(&self, at: Timestamp) -> Option<Timestamp> {
        let at = self.starts_at.map_or(at, |starts| at.max(starts));
        self.ends_at.is_none_or(|ends| at <= ends).then_some(at)
    }

    /// The first planned instant strictly after `after`, with what a clock
    /// change did to it.
    pub(crate) fn next_noted(&self, after: Timestamp) -> Option<(Timestamp, Option<DstNote>)> {
        let Timing::Cron(cron) = &self.timing else { return self.next(after).map(|at| (at, None)) };
        let until = self.ends_at.unwrap_or(Timestamp::MAX);
        cron.instants(self.clamp_after(after), until, &self.zone, self.policy).next_noted()
    }
}

fn timing(spec: &ScheduleSpec, seed: &[u8]) -> Result<Timing, Problem> {
    let anchor = spec.anchor.or(spec.starts_at).map_or(Timestamp::UNIX_EPOCH, micros);
    match spec.kind() {
        Some(Kind::Cron(text)) => {
            let cron =
                Cron::parse(text, seed).map_err(|error| Problem::new("cron", error.code(), error.to_string()))?;
            Ok(cron.every().map_or(Timing::Cron(cron), |span| Timing::Every { anchor, span }))
        }
        Some(Kind::Every(span)) => Ok(Timing::Every { anchor, span }),
        Some(Kind::AfterFinish(span)) => Ok(Timing::AfterFinish(span)),
        Some(Kind::At(at)) => Ok(Timing::At(micros(at))),
        None => Err(ScheduleSpec::kind_problem()),
    }
}

impl ScheduleSpec {
    pub(crate) fn zone(&self) -> Result<TimeZone, Problem> {
        zone(&self.timezone).map_err(|error| Problem::new("timezone", crate::cron::BadZone::CODE, error.to_string()))
    }
}

/// How many of `first`, `first + span`, ... are not after `end`.
fn beats_up_to(first: Timestamp, span: Span, end: Timestamp) -> u64 {
    let millis = end.duration_since(first).as_millis().max(0) as u64;
    // The last one is computed with a 32-bit factor; more than that waits.
    (millis / span.as_millis() + 1).min(i32::MAX as u64)
}

/// The last instant before `at` that a store can tell from it.
pub(crate) fn before(at: Timestamp) -> Timestamp {
    at.checked_sub(TICK).unwrap_or(Timestamp::MIN)
}

/// The first instant after `at` that a store can tell from it.
pub(crate) fn next_tick(at: Timestamp) -> Timestamp {
    at.checked_add(TICK).unwrap_or(Timestamp::MAX)
}

/// The instant cut to whole microseconds, which is what stores keep.
pub(crate) fn micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}
