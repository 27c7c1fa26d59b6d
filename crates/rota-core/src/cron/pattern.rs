//! Which local times a cron expression names, without any time zone.
//!
//! Times of day and days are bit sets, so that the next match is found by
//! counting trailing zeros and matches are counted by population counts,
//! never by walking. A local time is a number of seconds since 1970-01-01
//! 00:00 on the local clock; a day is such a number divided by 86,400.
//!
//! Clock changes are `search`'s business.

use super::{
    civil::{Month, day_of, month_of},
    field::{Field, Item, YEARS},
};

pub(super) const DAY: i64 = 86_400;

/// A set of times of day, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    seconds: u64,
    minutes: u64,
    hours: u64,
}

impl Times {
    pub(super) fn new(second: &[Item], minute: &[Item], hour: &[Item]) -> Self {
        Self {
            seconds: mask(Field::Second, second),
            minutes: mask(Field::Minute, minute),
            hours: mask(Field::Hour, hour),
        }
    }

    /// Whether no minute has two of them.
    pub(super) fn is_once_a_minute(self) -> bool {
        self.seconds.is_power_of_two()
    }

    /// The first time of day at or after `from`.
    pub(super) fn first(self, from: i64) -> Option<i64> {
        let (hour, minute, second) = split(from);
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = lowest(self.seconds, second)
            {
                return Some(join(hour, minute, second));
            }
            if let Some(minute) = lowest(self.minutes, minute + 1) {
                return Some(join(hour, minute, lowest(self.seconds, 0)?));
            }
        }
        Some(join(lowest(self.hours, hour + 1)?, lowest(self.minutes, 0)?, lowest(self.seconds, 0)?))
    }

    /// The last time of day before `end`.
    pub(super) fn last(self, end: i64) -> Option<i64> {
        let (hour, minute, second) = split(end);
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = highest(self.seconds, second)
            {
                return Some(join(hour, minute, second));
            }
            if let Some(minute) = highest(self.minutes, minute) {
                return Some(join(hour, minute, highest(self.seconds, 60)?));
            }
        }
        Some(join(highest(self.hours, hour)?, highest(self.minutes, 60)?, highest(self.seconds, 60)?))
    }

    /// How many times of day there are from `from` up to, not including, `end`.
    pub(super) fn count(self, from: i64, end: i64) -> u64 {
        self.count_below(end).saturating_sub(self.count_below(from))
    }

    fn count_below(self, end: i64) -> u64 {
        let (hour, minute, second) = split(end);
        let per_minute = u64::from(self.seconds.count_ones());
        let per_hour = per_minute * u64::from(self.minutes.count_ones());
        let mut count = per_hour * below(self.hours, hour);
        if has(self.hours, hour) {
            count += per_minute * below(self.minutes, minute);
            if has(self.minutes, minute) {
                count += below(self.seconds, second);
            }
        }
        count
    }
}

/// A set of days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Days {
    years: [u64; 4],
    months: u16,
    /// Bit n is day n of the month.
    of_month: u32,
    /// Bit n is the day n days before the month's last.
    from_end: u32,
    /// Bit n is the weekday nearest day n.
    nearest: u32,
    last_weekday: bool,
    /// Bit 0 is Sunday.
    weekdays: u8,
    last_of_month: u8,
    /// By occurrence in the month, first to fifth, a set of weekdays.
    nth: [u8; 5],
    any_day: bool,
    any_weekday: bool,
}

impl Days {
    pub(super) fn new(day: &[Item], month: &[Item], weekday: &[Item], year: &[Item]) -> Self {
        let mut days = Self {
            years: [0; 4],
            months: mask(Field::Month, month) as u16,
            of_month: mask(Field::DayOfMonth, day) as u32,
            from_end: 0,
            nearest: 0,
            last_weekday: day.contains(&Item::LastWeekday),
            weekdays: mask(Field::DayOfWeek, weekday) as u8,
            last_of_month: 0,
            nth: [0; 5],
            any_day: day.contains(&Item::Any),
            any_weekday: weekday.contains(&Item::Any),
        };
        for value in year.iter().flat_map(|item| item.values(Field::Year)) {
            let index = value - YEARS.start;
            days.years[usize::from(index / 64)] |= 1 << (index % 64);
        }
        for item in day.iter().chain(weekday) {
            days.add_special(*item);
        }
        days
    }

    fn add_special(&mut self, item: Item) {
        match item {
            Item::FromEnd(days) => self.from_end |= 1 << days,
            Item::NearestWeekday(day) => self.nearest |= 1 << day,
            Item::LastOfMonth(weekday) => self.last_of_month |= 1 << weekday,
            Item::NthOfMonth { weekday, nth } => self.nth[usize::from(nth - 1)] |= 1 << weekday,
            Item::Any | Item::Single(_) | Item::Range { .. } | Item::Stepped { .. } | Item::LastWeekday => {}
        }
    }

    /// The first day at or after `from`.
    pub(super) fn first(&self, from: i64) -> Option<i64> {
        let (mut year, mut month, mut day) = month_of(from.max(0));
        while year < i64::from(YEARS.end) {
            if !self.has_year(year) {
                (year, month, day) = (year + 1, 1, 1);
                continue;
            }
            if self.months >> month & 1 == 1 {
                let left = self.in_month(Month::new(year, month)) & (u32::MAX << day);
                if left != 0 {
                    return Some(day_of(year, month, i64::from(left.trailing_zeros())));
                }
            }
            day = 1;
            month += 1;
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        None
    }

    fn has_year(&self, year: i64) -> bool {
        let index = year - i64::from(YEARS.start);
        (0..256).contains(&index) && self.years[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    /// The matching days of one month; bit n is day n.
    fn in_month(&self, month: Month) -> u32 {
        match (self.any_day, self.any_weekday) {
            (true, true) => month.all(),
            (true, false) => self.by_weekday(month),
            (false, true) => self.by_day(month),
            (false, false) => self.by_day(month) | self.by_weekday(month),
        }
    }

    fn by_day(&self, month: Month) -> u32 {
        let mut found = self.of_month & month.all();
        for back in bits(self.from_end) {
            if back < month.length {
                found |= 1 << (month.length - back);
            }
        }
        for day in bits(self.nearest) {
            if day <= month.length {
                found |= 1 << month.nearest_weekday(day);
            }
        }
        if self.last_weekday {
            found |= 1 << month.nearest_weekday(month.length);
        }
        found
    }

    fn by_weekday(&self, month: Month) -> u32 {
        let mut found = 0;
        for weekday in 0..7 {
            let first = (weekday + 7 - month.weekday(1)) % 7 + 1;
            let days = (EVERY_SEVENTH << first) & month.all();
            if self.weekdays >> weekday & 1 == 1 {
                found |= days;
            }
            if self.last_of_month >> weekday & 1 == 1 {
                found |= 1 << days.ilog2();
            }
            for (index, weekdays) in self.nth.iter().enumerate() {
                if weekdays >> weekday & 1 == 1 {
                    found |= days & 1_u32.unbounded_shl(first + 7 * index as u32);
                }
            }
        }
        found
    }
}

/// Bits 0, 7, 14, 21 and 28.
const EVERY_SEVENTH: u32 = 0b1_0000001_0000001_0000001_0000001;

/// The local times an expression names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    pub(super) times: Times,
    pub(super) days: Days,
    /// Follows elapsed time through clock changes, instead of the local clock.
    pub(super) interval: bool,
}

impl Pattern {
    /// The first local time at or after `from`.
    pub(super) fn first(&self, from: i64) -> Option<i64> {
        let day = self.days.first(from.div_euclid(DAY))?;
        let time = if day == from.div_euclid(DAY) { from.rem_euclid(DAY) } else { 0 };
        if let Some(time) = self.times.first(time) {
            return Some(day * DAY + time);
        }
        Some(self.days.first(day + 1)? * DAY + self.times.first(0)?)
    }
}

fn mask(field: Field, items: &[Item]) -> u64 {
    items.iter().flat_map(|item| item.values(field)).fold(0, |mask, value| mask | 1 << value)
}

fn bits(mut mask: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros())?;
        mask &= mask - 1;
        Some(bit)
    })
}

const fn split(time: i64) -> (u32, u32, u32) {
    ((time / 3_600) as u32, (time / 60 % 60) as u32, (time % 60) as u32)
}

const fn join(hour: u32, minute: u32, second: u32) -> i64 {
    hour as i64 * 3_600 + minute as i64 * 60 + second as i64
}

const fn has(mask: u64, value: u32) -> bool {
    mask >> value & 1 == 1
}

/// The lowest member at or above `from`, which is at most 63.
const fn lowest(mask: u64, from: u32) -> Option<u32> {
    let left = mask & (u64::MAX << from);
    if left == 0 { None } else { Some(left.trailing_zeros()) }
}

/// The highest member below `end`, which is at most 63.
const fn highest(mask: u64, end: u32) -> Option<u32> {
    let left = mask & ((1 << end) - 1);
    left.checked_ilog2()
}

const fn below(mask: u64, end: u32) -> u64 {
    (mask & ((1 << end) - 1)).count_ones() as u64
}
