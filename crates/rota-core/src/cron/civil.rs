//! Day numbers, years and months of the proleptic Gregorian calendar.
//!
//! The search for the next day runs over whole months as bit masks; these few
//! formulas are all it needs, and a test compares every day with jiff.

/// One month of one year.
#[derive(Clone, Copy)]
pub(super) struct Month {
    pub(super) length: u32,
    /// The weekday of day 0, Sunday being 0.
    weekday_before: u32,
}

impl Month {
    pub(super) fn new(year: i64, month: i64) -> Self {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = match month {
            2 if leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        Self { length, weekday_before: (day_of(year, month, 1) + 3).rem_euclid(7) as u32 }
    }

    pub(super) const fn weekday(self, day: u32) -> u32 {
        (self.weekday_before + day) % 7
    }

    /// The days of the month; bit n is day n.
    pub(super) const fn all(self) -> u32 {
        (u32::MAX >> (31 - self.length)) & !1
    }

    /// The day from Monday to Friday nearest `day`, without leaving the month.
    pub(super) const fn nearest_weekday(self, day: u32) -> u32 {
        match self.weekday(day) {
            6 if day == 1 => 3,
            6 => day - 1,
            0 if day == self.length => day - 2,
            0 => day + 1,
            _ => day,
        }
    }
}

/// Days since 1970-01-01 of a date.
pub(super) const fn day_of(year: i64, month: i64, day: i64) -> i64 {
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let year_of_era = shifted.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The year, month and day of a number of days since 1970-01-01.
pub(super) const fn month_of(day: i64) -> (i64, i64, i64) {
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era;
    (if month <= 2 { year + 1 } else { year }, month, day)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn every_supported_day_agrees_with_jiff() {
        let mut known = date(1970, 1, 1);
        let mut number = 0;
        while known.year() < 2201 {
            let (year, month, day) = (i64::from(known.year()), i64::from(known.month()), i64::from(known.day()));
            assert_eq!(month_of(number), (year, month, day));
            assert_eq!(day_of(year, month, day), number);
            let found = Month::new(year, month);
            assert_eq!(found.length, u32::from(known.days_in_month().unsigned_abs()), "{known}");
            assert_eq!(
                found.weekday(day as u32),
                u32::from(known.weekday().to_sunday_zero_offset().unsigned_abs()),
                "{known}"
            );
            known = known.tomorrow().unwrap();
            number += 1;
        }
    }
}
