//! Cron expressions: parsed once, then asked for their instants.
//!
//! An expression becomes bit sets of times and days, and the search for the
//! next instant works on the stretches of constant offset of its time zone, so
//! one answer takes about a microsecond whatever the pattern. What cannot be
//! meant (out of range, trailing characters, patterns that never fire) is
//! refused with a stable code and the place in the text.
//!
//! Instants lie in the years 1970 to 2199. There is no clock here, and no
//! schedule: bounds, jitter and catch-up belong to `fire`.

mod civil;
mod error;
mod explain;
mod field;
mod pattern;
mod search;
mod zone;

use jiff::{Timestamp, civil::Date, tz::TimeZone};

pub use self::{
    error::{CronError, CronErrorKind},
    explain::explain,
    field::{Field, YEARS},
    zone::{BadZone, zone},
};
use self::{
    field::{Item, is_interval, parse_field},
    pattern::{DAY, Days, Pattern, Times},
    search::{Origin, Walk, stamp},
};
use crate::{
    duration::Span,
    schedule::{Fold, Gap, INTERVAL_MIN},
};

/// Longest expression accepted, in bytes. Every minute, hour and day written out takes
/// 319; with seconds, months, weekdays and some years it is less than this.
pub const EXPRESSION_BYTES_MAX: usize = 1_024;

/// What happens to fixed local times around a clock change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DstPolicy {
    pub gap: Gap,
    pub fold: Fold,
}

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron(Rule);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Pattern(Box<Pattern>),
    /// `@every 90s`, counted from the Unix epoch.
    Every(Span),
}

/// The fields of an expression as items, before they become bit sets.
struct Tree {
    second: Option<Vec<Item>>,
    minute: Vec<Item>,
    hour: Vec<Item>,
    day: Vec<Item>,
    month: Vec<Item>,
    weekday: Vec<Item>,
    year: Option<Vec<Item>>,
}

enum Parsed {
    Tree(Tree),
    Every(Span),
}

/// Instants that share a local day and an offset; there is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub first: Timestamp,
    pub last: Timestamp,
    pub count: u64,
    /// The local day of all of them.
    pub date: Date,
}

/// What a clock change did to an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DstNote {
    /// The local time does not exist that day; this is the first one after it.
    Shifted { from: jiff::civil::DateTime },
    /// A local time before this instant does not exist that day and was skipped.
    Skipped { missing: jiff::civil::DateTime },
    /// The first of the two times the local clock shows this.
    FirstPass,
    /// The second of the two times the local clock shows this.
    SecondPass,
}

impl Cron {
    /// Parses an expression; `seed` decides where `H` falls.
    pub fn parse(text: &str, seed: &[u8]) -> Result<Self, CronError> {
        let tree = match parse(text, seed)? {
            Parsed::Every(span) => return Ok(Self(Rule::Every(span))),
            Parsed::Tree(tree) => tree,
        };
        let pattern = tree.pattern();
        if pattern.first(0).is_none() {
            let message =
                format!("no day from {} to {} matches, so the expression never fires", YEARS.start, YEARS.end - 1);
            return Err(CronError::new(CronErrorKind::NeverFires, 0..text.len(), message));
        }
        Ok(Self(Rule::Pattern(Box::new(pattern))))
    }

    /// The interval of an `@every` expression.
    pub fn every(&self) -> Option<Span> {
        match self.0 {
            Rule::Every(span) => Some(span),
            Rule::Pattern(_) => None,
        }
    }

    /// The first instant strictly after `after`.
    pub fn next(&self, after: Timestamp, zone: &TimeZone, policy: DstPolicy) -> Option<Timestamp> {
        self.instants(after, Timestamp::MAX, zone, policy).next()
    }

    /// The instants in `(after, until]`, in order.
    pub fn instants<'a>(
        &'a self,
        after: Timestamp,
        until: Timestamp,
        zone: &'a TimeZone,
        policy: DstPolicy,
    ) -> Instants<'a> {
        let source = match &self.0 {
            Rule::Pattern(pattern) => Source::Walk(Walk::after(pattern, zone, policy, after)),
            Rule::Every(span) => Source::Every { span: *span, after },
        };
        Instants { source, until, zone }
    }

    /// The instants in `(after, until]`, grouped by local day and offset.
    ///
    /// Counting does not visit the instants, so a year of seconds costs as much
    /// as a year of days. `None` for `@every`, which needs no groups.
    pub fn blocks<'a>(
        &'a self,
        after: Timestamp,
        until: Timestamp,
        zone: &'a TimeZone,
        policy: DstPolicy,
    ) -> Option<impl Iterator<Item = Block> + use<'a>> {
        let Rule::Pattern(pattern) = &self.0 else { return None };
        let mut walk = Walk::after(pattern, zone, policy, after);
        let end = end_of(until);
        Some(std::iter::from_fn(move || walk.block(end)).map(|block| Block {
            first: stamp(block.first),
            last: stamp(block.last),
            count: block.count,
            date: date_of(block.first + block.offset),
        }))
    }

    /// The shortest distance between two instants on the local clock, as far as
    /// the first ones show: enough to judge a jitter or a tier's limit.
    pub fn shortest_interval(&self) -> Option<Span> {
        /// More than half the seconds of a day, so a denser one has neighbours.
        const EXAMINED_MAX: usize = 50_000;
        let pattern = match &self.0 {
            Rule::Every(span) => return Some(*span),
            Rule::Pattern(pattern) => pattern,
        };
        let utc = TimeZone::UTC;
        let mut walk = Walk::after(pattern, &utc, DstPolicy::default(), stamp(-1));
        let mut shortest = i64::MAX;
        let mut before = walk.step(i64::MAX)?.0;
        for _ in 0..EXAMINED_MAX {
            let Some((at, _)) = walk.step(i64::MAX) else { break };
            shortest = shortest.min(at - before);
            before = at;
            if shortest == 1 {
                break;
            }
        }
        (shortest != i64::MAX).then(|| Span::secs(shortest as u64))
    }

    /// The shortest interval, where it is below `min`. An expression that names
    /// one second of each minute has none below a minute, and is not walked.
    pub fn interval_below(&self, min: Span) -> Option<Span> {
        let once_a_minute = matches!(&self.0, Rule::Pattern(pattern) if pattern.times.is_once_a_minute());
        if once_a_minute && min <= Span::secs(60) {
            return None;
        }
        self.shortest_interval().filter(|span| *span < min)
    }
}

/// Instants in order; see [`Cron::instants`].
#[derive(Clone, Debug)]
pub struct Instants<'a> {
    source: Source<'a>,
    until: Timestamp,
    zone: &'a TimeZone,
}

#[derive(Clone, Debug)]
enum Source<'a> {
    Walk(Walk<'a>),
    Every { span: Span, after: Timestamp },
}

impl Instants<'_> {
    /// The next instant with what a clock change did to it.
    pub fn next_noted(&mut self) -> Option<(Timestamp, Option<DstNote>)> {
        let walk = match &mut self.source {
            Source::Walk(walk) => walk,
            Source::Every { .. } => return self.next().map(|at| (at, None)),
        };
        walk.left_out = None;
        let (at, origin) = walk.step(end_of(self.until))?;
        let left_out = walk.left_out.map(|missing| DstNote::Skipped { missing: datetime_of(missing) });
        let note = match origin {
            Origin::Gap(local) => Some(DstNote::Shifted { from: datetime_of(local) }),
            Origin::Local => left_out.or_else(|| pass(self.zone, stamp(at))),
        };
        Some((stamp(at), note))
    }
}

impl Iterator for Instants<'_> {
    type Item = Timestamp;

    fn next(&mut self) -> Option<Timestamp> {
        match &mut self.source {
            Source::Walk(walk) => walk.step(end_of(self.until)).map(|(at, _)| stamp(at)),
            Source::Every { span, after } => {
                let at = next_beat(Timestamp::UNIX_EPOCH, *span, *after)?;
                *after = at;
                (at <= self.until).then_some(at)
            }
        }
    }
}

/// The first `anchor + k * span` strictly after `after`, for whole k >= 0.
pub(crate) fn next_beat(anchor: Timestamp, span: Span, after: Timestamp) -> Option<Timestamp> {
    if after < anchor {
        return Some(anchor);
    }
    let step = i128::from(span.as_millis()) * 1_000_000;
    let gone = after.as_nanosecond() - anchor.as_nanosecond();
    let at = Timestamp::from_nanosecond(anchor.as_nanosecond() + (gone / step + 1) * step).ok()?;
    (at < last_instant()).then_some(at)
}

/// Nothing fires at or after this.
pub(crate) fn last_instant() -> Timestamp {
    stamp(civil::day_of(i64::from(YEARS.end), 1, 1) * DAY)
}

/// Which of two passes an instant belongs to, if its local time is repeated.
fn pass(zone: &TimeZone, at: Timestamp) -> Option<DstNote> {
    let offset = zone.to_offset(at);
    match zone.to_ambiguous_timestamp(offset.to_datetime(at)).offset() {
        jiff::tz::AmbiguousOffset::Fold { before, .. } if before == offset => Some(DstNote::FirstPass),
        jiff::tz::AmbiguousOffset::Fold { .. } => Some(DstNote::SecondPass),
        jiff::tz::AmbiguousOffset::Unambiguous { .. } | jiff::tz::AmbiguousOffset::Gap { .. } => None,
    }
}

/// The first second after every instant up to `until`.
fn end_of(until: Timestamp) -> i64 {
    until.as_second() - i64::from(until.subsec_nanosecond() < 0) + 1
}

fn datetime_of(local: i64) -> jiff::civil::DateTime {
    jiff::tz::Offset::UTC.to_datetime(stamp(local))
}

fn date_of(local: i64) -> Date {
    datetime_of(local).date()
}

impl Tree {
    fn pattern(&self) -> Pattern {
        let zero = [Item::Single(0)];
        let every = [Item::Any];
        let second = self.second.as_deref().unwrap_or(&zero);
        let year = self.year.as_deref().unwrap_or(&every);
        Pattern {
            times: Times::new(second, &self.minute, &self.hour),
            days: Days::new(&self.day, &self.month, &self.weekday, year),
            interval: is_interval(second) || is_interval(&self.minute) || is_interval(&self.hour),
        }
    }
}

fn parse(text: &str, seed: &[u8]) -> Result<Parsed, CronError> {
    if text.len() > EXPRESSION_BYTES_MAX {
        let message = format!("the expression has {} bytes; at most {EXPRESSION_BYTES_MAX} are allowed", text.len());
        return Err(CronError::new(CronErrorKind::TooLong, 0..text.len(), message));
    }
    if let Some((at, c)) = text.char_indices().find(|(_, c)| !c.is_ascii()) {
        let message = format!("`{}` is not an ASCII character", c.escape_debug());
        return Err(CronError::new(CronErrorKind::NotAscii, at..at + c.len_utf8(), message));
    }
    let trimmed = text.trim_ascii();
    let start = text.len() - text.trim_ascii_start().len();
    match trimmed.strip_prefix('@') {
        Some(word) => parse_word(word, start..start + trimmed.len(), seed),
        None => parse_fields(trimmed, start, seed).map(Parsed::Tree),
    }
}

/// An expression that starts with `@`.
fn parse_word(word: &str, place: std::ops::Range<usize>, seed: &[u8]) -> Result<Parsed, CronError> {
    let (name, rest) = word.split_once([' ', '\t']).unwrap_or((word, ""));
    let name = name.to_ascii_lowercase();
    if name == "every" {
        return parse_every(rest, place);
    }
    let fields = match name.as_str() {
        "hourly" => "0 * * * *",
        "daily" | "midnight" => "0 0 * * *",
        "weekly" => "0 0 * * 0",
        "monthly" => "0 0 1 * *",
        "yearly" | "annually" => "0 0 1 1 *",
        _ => "",
    };
    if fields.is_empty() || !rest.is_empty() {
        let message = format!(
            "`@{}` is not a known shorthand: write @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually or @every 90s",
            word.escape_debug()
        );
        return Err(CronError::new(CronErrorKind::UnknownWord, place, message));
    }
    parse_fields(fields, 0, seed).map(Parsed::Tree)
}

fn parse_every(text: &str, place: std::ops::Range<usize>) -> Result<Parsed, CronError> {
    let span: Span = text.parse().map_err(|error: crate::duration::BadSpan| {
        CronError::new(CronErrorKind::BadInterval, place.clone(), error.to_string())
    })?;
    if span < INTERVAL_MIN {
        return Err(CronError::new(
            CronErrorKind::BadInterval,
            place,
            format!("the shortest interval is {INTERVAL_MIN}"),
        ));
    }
    Ok(Parsed::Every(span))
}

/// Parses fields that begin at byte `start` of the expression.
fn parse_fields(text: &str, start: usize, seed: &[u8]) -> Result<Tree, CronError> {
    let parts = split_fields(text);
    if parts.is_empty() {
        return Err(CronError::new(CronErrorKind::Empty, 0..start, "the expression is empty"));
    }
    if !(5..=7).contains(&parts.len()) {
        let message = format!(
            "the expression has {} fields, but must have 5 (minute, hour, day of month, month, day of week), 6 with seconds first, or 7 with the year last",
            parts.len()
        );
        return Err(CronError::new(CronErrorKind::FieldCount, start..start + text.len(), message));
    }
    let skipped = usize::from(parts.len() == 5);
    let mut fields = Field::ALL[skipped..]
        .iter()
        .zip(&parts)
        .map(|(field, (at, part))| parse_field(*field, part, start + at, seed))
        .collect::<Result<Vec<_>, _>>()?
        .into_iter();
    let second = if skipped == 0 { fields.next() } else { None };
    let mut next = || fields.next().unwrap_or_default();
    let (minute, hour, day, month, weekday) = (next(), next(), next(), next(), next());
    Ok(Tree { second, minute, hour, day, month, weekday, year: fields.next() })
}

/// The fields with the byte each starts at.
fn split_fields(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let mut at = 0;
    for part in text.split([' ', '\t']) {
        if !part.is_empty() {
            parts.push((at, part));
        }
        at += part.len() + 1;
    }
    parts
}

#[cfg(test)]
mod tests;
