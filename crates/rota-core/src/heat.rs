//! Heat: seconds in which very many schedules are due at once.
//!
//! Nine in the morning is everybody's favourite, and nobody sees that everybody
//! else chose it too. Whoever saves a schedule for a second that is crowded is told
//! so, with how to step aside: `H` in a cron expression, or a `jitter`.
//!
//! Only the instants that schedules owe next are known, and they are counted up to
//! a bound: this is advice, and refuses nothing.

use jiff::Timestamp;

use crate::problem::Problem;

/// A crowded second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotSecond {
    pub at: Timestamp,
    /// Schedules that are due in it, those that were just saved included.
    pub schedules: u64,
    /// There are more than were counted.
    pub more: bool,
}

impl HotSecond {
    /// As a place of the document that may surprise.
    pub fn warning(&self) -> Problem {
        let more = if self.more { "+" } else { "" };
        let message = format!(
            "{}{more} schedules are due at {}: spread them with `H` in the expression or with `jitter`",
            self.schedules, self.at
        );
        Problem::new("schedules", "hot_second", message)
    }
}

/// The second that an instant lies in.
pub fn second_of(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// The most crowded of these seconds, where it has at least `hot` schedules, of
/// which at most `counted` were counted.
pub fn hottest(seconds: impl IntoIterator<Item = (Timestamp, u64)>, hot: u64, counted: u64) -> Option<HotSecond> {
    let crowded = seconds.into_iter().filter(|(_, schedules)| *schedules >= hot);
    // Of equal ones the first to come.
    let found = crowded.max_by_key(|(at, schedules)| (*schedules, std::cmp::Reverse(*at)));
    found.map(|(at, schedules)| HotSecond { at, schedules, more: schedules >= counted })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_760_000_000 + second).unwrap()
    }

    #[test]
    fn the_most_crowded_second_is_named_from_the_threshold_on() {
        let seconds = [(at(1), 999), (at(3), 1_500), (at(2), 1_500)];
        assert_eq!(hottest(seconds, 2_000, 9_999), None);
        let found = hottest(seconds, 1_000, 9_999).unwrap();
        assert_eq!(found, HotSecond { at: at(2), schedules: 1_500, more: false });
        assert!(hottest(seconds, 1_000, 1_500).unwrap().more, "counting ended there");
        assert_eq!(hottest([], 1, 9_999), None);
    }

    #[test]
    fn a_warning_says_how_to_step_aside() {
        let hot = HotSecond { at: at(0), schedules: 2_000, more: true };
        let warning = hot.warning();
        assert_eq!((warning.path.as_str(), warning.code), ("schedules", "hot_second"));
        assert!(warning.message.starts_with("2000+ schedules are due at 2025-10-09T08:53:20Z: spread"), "{warning}");
        assert_eq!(second_of("2025-10-09T08:53:20.999Z".parse().unwrap()), at(0));
    }
}
