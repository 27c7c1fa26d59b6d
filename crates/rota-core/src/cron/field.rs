//! The seven fields of a cron expression: their ranges and names, and how one
//! field's text becomes a list of items.
//!
//! Every character must be used by exactly one item, so nothing trailing is
//! ever ignored. A list is bounded by the bound on the whole expression.
//!
//! What the items mean for days and times is decided by `pattern`.

use std::{fmt, ops::Range};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::error::{CronError, CronErrorKind};

/// First and last year an expression can name, and in which it can fire.
pub const YEARS: Range<u16> = 1970..2200;

/// One of the seven places in an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    Second,
    Minute,
    Hour,
    DayOfMonth,
    Month,
    DayOfWeek,
    Year,
}

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl Field {
    pub(super) const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::DayOfMonth, Self::Month, Self::DayOfWeek, Self::Year];

    pub(super) const fn min(self) -> u16 {
        match self {
            Self::Second | Self::Minute | Self::Hour | Self::DayOfWeek => 0,
            Self::DayOfMonth | Self::Month => 1,
            Self::Year => YEARS.start,
        }
    }

    /// The greatest value; Sunday's other number, 7, is folded onto 0 before.
    pub(super) const fn max(self) -> u16 {
        match self {
            Self::Second | Self::Minute => 59,
            Self::Hour => 23,
            Self::DayOfMonth => 31,
            Self::Month => 12,
            Self::DayOfWeek => 6,
            Self::Year => YEARS.end - 1,
        }
    }

    const fn size(self) -> u16 {
        self.max() - self.min() + 1
    }

    /// The greatest number that may be written.
    const fn written_max(self) -> u16 {
        if matches!(self, Self::DayOfWeek) { 7 } else { self.max() }
    }

    const fn is_time(self) -> bool {
        matches!(self, Self::Second | Self::Minute | Self::Hour)
    }

    fn named(self, name: &str) -> Option<u16> {
        let (names, first): (&[&str], u16) = match self {
            Self::Month => (&MONTHS, 1),
            Self::DayOfWeek => (&WEEKDAYS, 0),
            _ => return None,
        };
        let index = names.iter().position(|known| known.eq_ignore_ascii_case(name))?;
        Some(first + index as u16)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
            Self::Year => "year",
        })
    }
}

/// One part of a field's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// `*` or `?`
    Any,
    Single(u16),
    /// Wraps around when `first` is greater than `last`.
    Range {
        first: u16,
        last: u16,
    },
    /// `whole` says that it was written as `*/step`.
    Stepped {
        first: u16,
        last: u16,
        step: u16,
        whole: bool,
    },
    /// `L` and `L-3`: days before the month's last day.
    FromEnd(u16),
    /// `15W`
    NearestWeekday(u16),
    /// `LW`
    LastWeekday,
    /// `5L`
    LastOfMonth(u16),
    /// `2#3`
    NthOfMonth {
        weekday: u16,
        nth: u16,
    },
}

impl Item {
    /// The values this item names directly, in order from its first.
    pub fn values(self, field: Field) -> impl Iterator<Item = u16> {
        let (first, last, step) = match self {
            Self::Any => (field.min(), field.max(), 1),
            Self::Single(value) => (value, value, 1),
            Self::Range { first, last } => (first, last, 1),
            Self::Stepped { first, last, step, .. } => (first, last, step),
            Self::FromEnd(_)
            | Self::NearestWeekday(_)
            | Self::LastWeekday
            | Self::LastOfMonth(_)
            | Self::NthOfMonth { .. } => (1, 0, 0),
        };
        let length = match (step, first <= last) {
            (0, _) => 0,
            (_, true) => last - first + 1,
            (_, false) => field.size() - (first - last) + 1,
        };
        let wrap = move |offset: u16| field.min() + (first - field.min() + offset) % field.size();
        (0..length).step_by(usize::from(step.max(1))).map(wrap)
    }
}

/// Parses one field's text, which starts at byte `start` of the expression.
pub(super) fn parse_field(field: Field, text: &str, start: usize, seed: &[u8]) -> Result<Vec<Item>, CronError> {
    let mut items = Vec::new();
    let mut at = start;
    for part in text.split(',') {
        let parser = ItemParser { field, text: part, start: at, seed };
        items.push(parser.item().map_err(|error| CronError { field: Some(field), ..error })?);
        at += part.len() + 1;
    }
    let lone = |item: &str| text.contains(item) && items.len() > 1;
    if lone("?") {
        let message = "`?` cannot be part of a list";
        let error = CronError::new(CronErrorKind::NotAllowed, start..start + text.len(), message);
        return Err(CronError { field: Some(field), ..error });
    }
    Ok(items)
}

struct ItemParser<'a> {
    field: Field,
    text: &'a str,
    start: usize,
    seed: &'a [u8],
}

impl ItemParser<'_> {
    fn item(&self) -> Result<Item, CronError> {
        if self.text.is_empty() {
            return Err(self.error(CronErrorKind::EmptyItem, "an item of the list is empty"));
        }
        let (base, step) = match self.text.split_once('/') {
            Some((base, step)) => (base, Some(self.step(step)?)),
            None => (self.text, None),
        };
        match (base, step) {
            ("*", None) => Ok(Item::Any),
            // Every value of a time is an interval pattern, however written;
            // for the other fields `*/1` says the same as `*`.
            ("*", Some(1)) if !self.field.is_time() => Ok(Item::Any),
            ("*", Some(step)) => Ok(self.stepped(self.field.min(), self.field.max(), step, true)),
            ("?", None) => self.question(),
            _ if base.starts_with(['H', 'h']) => self.hashed(base, step),
            _ => match (self.special(base)?, step) {
                (Some(item), None) => Ok(item),
                (Some(_), Some(_)) => {
                    Err(self.error(CronErrorKind::BadStep, "a step needs `*`, a number or a range before the `/`"))
                }
                (None, step) => self.range_item(base, step),
            },
        }
    }

    fn question(&self) -> Result<Item, CronError> {
        if matches!(self.field, Field::DayOfMonth | Field::DayOfWeek) {
            return Ok(Item::Any);
        }
        Err(self.error(CronErrorKind::NotAllowed, "`?` is only allowed for days"))
    }

    fn range_item(&self, base: &str, step: Option<u16>) -> Result<Item, CronError> {
        match (base.split_once('-'), step) {
            (None, None) => Ok(Item::Single(self.value(base)?)),
            (None, Some(step)) => Ok(self.stepped(self.value(base)?, self.field.max(), step, false)),
            (Some((first, last)), None) => {
                let (first, last) = self.range(first, last)?;
                Ok(if first == last { Item::Single(first) } else { Item::Range { first, last } })
            }
            (Some((first, last)), Some(step)) => {
                let (first, last) = self.range(first, last)?;
                Ok(self.stepped(first, last, step, false))
            }
        }
    }

    fn stepped(&self, first: u16, last: u16, step: u16, whole: bool) -> Item {
        Item::Stepped { first, last, step, whole: whole || (first, last) == (self.field.min(), self.field.max()) }
    }

    fn range(&self, first: &str, last: &str) -> Result<(u16, u16), CronError> {
        let from = self.number_or_name(first)?;
        let to = self.number_or_name(last)?;
        if self.field == Field::Year && from > to {
            return Err(self.error(CronErrorKind::BadRange, format!("the range {from}-{to} goes backwards")));
        }
        // Sunday is 7 at the end of a week and 0 at its start.
        match (self.field, from, to) {
            (Field::DayOfWeek, 0, 7) => Ok((0, 6)),
            (Field::DayOfWeek, _, _) => Ok((from % 7, to % 7)),
            _ => Ok((from, to)),
        }
    }

    fn value(&self, text: &str) -> Result<u16, CronError> {
        let value = self.number_or_name(text)?;
        Ok(if self.field == Field::DayOfWeek { value % 7 } else { value })
    }

    fn number_or_name(&self, text: &str) -> Result<u16, CronError> {
        if text.is_empty() {
            return Err(self.error(CronErrorKind::BadItem, format!("`{}` is incomplete", self.text.escape_debug())));
        }
        if let Some(number) = digits(text) {
            return self.in_range(number, self.field.min(), self.field.written_max());
        }
        if let Some(value) = self.field.named(text) {
            return Ok(value);
        }
        if text.bytes().all(|b| b.is_ascii_alphabetic()) {
            let message = match self.field {
                Field::Month => format!("`{text}` is not a month: write JAN to DEC"),
                Field::DayOfWeek => format!("`{text}` is not a day of the week: write SUN to SAT"),
                _ => format!("`{text}` is not a number"),
            };
            return Err(self.error(CronErrorKind::UnknownName, message));
        }
        Err(self.error(CronErrorKind::BadItem, format!("`{}` is not valid here", self.text.escape_debug())))
    }

    fn in_range(&self, number: u32, min: u16, max: u16) -> Result<u16, CronError> {
        match u16::try_from(number) {
            Ok(value) if (min..=max).contains(&value) => Ok(value),
            _ => Err(self.error(CronErrorKind::OutOfRange, format!("{number} is not between {min} and {max}"))),
        }
    }

    fn step(&self, text: &str) -> Result<u16, CronError> {
        let size = self.field.size();
        match digits(text) {
            Some(0) => Err(self.error(CronErrorKind::BadStep, "a step must be at least 1")),
            // A longer step names one value only, which is never what was meant.
            Some(step) if step > u32::from(size) => Err(self.error(
                CronErrorKind::BadStep,
                format!("a step of {step} is larger than the {size} values of the field"),
            )),
            Some(step) => Ok(step as u16),
            None => Err(self.error(CronErrorKind::BadStep, format!("`{}` is not a step", text.escape_debug()))),
        }
    }

    /// The items that only exist for days: `L`, `L-3`, `15W`, `LW`, `5L`, `2#3`.
    fn special(&self, text: &str) -> Result<Option<Item>, CronError> {
        match self.field {
            Field::DayOfMonth => self.special_day(text),
            Field::DayOfWeek => self.special_weekday(text),
            _ => Ok(None),
        }
    }

    fn special_day(&self, text: &str) -> Result<Option<Item>, CronError> {
        if text.eq_ignore_ascii_case("L") {
            return Ok(Some(Item::FromEnd(0)));
        }
        if text.eq_ignore_ascii_case("LW") || text.eq_ignore_ascii_case("WL") {
            return Ok(Some(Item::LastWeekday));
        }
        if let Some(days) = text.strip_prefix("L-").or_else(|| text.strip_prefix("l-")) {
            let days = digits(days).ok_or_else(|| {
                self.error(CronErrorKind::BadItem, format!("`{}` is not L-1 to L-30", text.escape_debug()))
            })?;
            return self.in_range(days, 1, 30).map(|days| Some(Item::FromEnd(days)));
        }
        match text.strip_suffix(['W', 'w']).map(digits) {
            Some(Some(day)) => self.in_range(day, 1, 31).map(|day| Some(Item::NearestWeekday(day))),
            Some(None) => Err(self.error(CronErrorKind::BadItem, "`W` must follow a single day number, such as 15W")),
            None => Ok(None),
        }
    }

    fn special_weekday(&self, text: &str) -> Result<Option<Item>, CronError> {
        if text.eq_ignore_ascii_case("L") {
            let message = "a bare `L` does not name a day: write SAT for Saturday, or 5L for the month's last Friday";
            return Err(self.error(CronErrorKind::NotAllowed, message));
        }
        if let Some((weekday, nth)) = text.split_once('#') {
            let weekday = self.value(weekday)?;
            let nth = digits(nth)
                .ok_or_else(|| self.error(CronErrorKind::BadItem, "`#` must be followed by a number from 1 to 5"))?;
            return self.in_range(nth, 1, 5).map(|nth| Some(Item::NthOfMonth { weekday, nth }));
        }
        match text.strip_suffix(['L', 'l']) {
            Some(weekday) => self.value(weekday).map(|weekday| Some(Item::LastOfMonth(weekday))),
            None => Ok(None),
        }
    }

    /// `H`, `H(a-b)` and both with a step: a place that the seed chooses.
    fn hashed(&self, base: &str, step: Option<u16>) -> Result<Item, CronError> {
        if self.field == Field::Year {
            return Err(self.error(CronErrorKind::NotAllowed, "`H` is not allowed for years"));
        }
        let (first, last) = self.hash_range(&base[1..])?;
        let spread = step.unwrap_or(u16::MAX).min(last - first + 1);
        let first = first + (self.hash() % u64::from(spread)) as u16;
        Ok(match step {
            Some(step) => Item::Stepped { first, last, step, whole: false },
            None => Item::Single(first),
        })
    }

    fn hash_range(&self, text: &str) -> Result<(u16, u16), CronError> {
        // A day that every month has, so that `H` never skips a month.
        let last = if self.field == Field::DayOfMonth { 28 } else { self.field.max() };
        if text.is_empty() {
            return Ok((self.field.min(), last));
        }
        let inner =
            text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).and_then(|text| text.split_once('-'));
        let Some((first, last)) = inner else {
            return Err(self.error(CronErrorKind::BadItem, "write H, H/15, H(0-29) or H(0-29)/10"));
        };
        let (first, last) = self.range(first, last)?;
        if first > last {
            return Err(self.error(CronErrorKind::BadRange, format!("the range {first}-{last} of `H` goes backwards")));
        }
        Ok((first, last))
    }

    /// Differs by field, so that `H H * * *` is not on the diagonal.
    fn hash(&self) -> u64 {
        xxh3_64_with_seed(self.seed, self.field as u64 + 1)
    }

    fn error(&self, kind: CronErrorKind, message: impl Into<String>) -> CronError {
        let end = self.start + self.text.len().max(1);
        CronError::new(kind, self.start..end, message)
    }
}

/// The number that ASCII digits spell, or `None` for anything else.
fn digits(text: &str) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(text.bytes().fold(0, |number: u32, b| number.saturating_mul(10).saturating_add(u32::from(b - b'0'))))
}

/// Whether the items of a time field make a pattern follow elapsed time.
pub(super) fn is_interval(items: &[Item]) -> bool {
    items.iter().any(|item| matches!(item, Item::Any | Item::Stepped { .. }))
}
