//! Checks of retry rules.

use super::report::Report;
use crate::job::retry::{Backoff, DEFAULT_INITIAL, ErrorKind, RetryOn, RetryRule};

pub const ATTEMPTS_MAX: u32 = 100;
pub const DELAYS_MAX: usize = 100;
/// Patterns or kinds in one list of `on`.
const PATTERNS_MAX: usize = 50;

pub(super) fn check(path: &str, rule: &RetryRule, report: &mut Report) {
    if let Some(attempts) = rule.max_attempts {
        report.within(&format!("{path}.max_attempts"), attempts, 1..=ATTEMPTS_MAX);
    }
    if let Some(jitter) = rule.jitter {
        report.within(&format!("{path}.jitter"), jitter, 0.0..=1.0);
    }
    if let Some(Backoff::Delays(delays)) = &rule.backoff {
        report.filled(&format!("{path}.backoff"), delays.len(), DELAYS_MAX);
        if rule.initial.is_some() {
            report.add(
                format!("{path}.initial"),
                "no_meaning",
                "has no effect with a list of delays; write the first delay into the list",
            );
        }
    }
    if let Some(on) = &rule.on {
        check_on(path, on, report);
    }
    check_cap(path, rule, report);
}

/// A delay that the cap always cuts was not meant; `rule` may be laid over another.
pub(super) fn check_cap(path: &str, rule: &RetryRule, report: &mut Report) {
    let Some(max) = rule.max else { return };
    let initial = rule.initial.unwrap_or(DEFAULT_INITIAL);
    let longest = rule.backoff.as_ref().map_or(initial, |backoff| backoff.longest_written(initial));
    let is_written = rule.initial.is_some() || matches!(rule.backoff, Some(Backoff::Delays(_)));
    if is_written && longest > max {
        report.add(
            format!("{path}.max"),
            "above_cap",
            format!("the delay of {longest} is longer than `max`, which is {max}"),
        );
    }
}

fn check_on(path: &str, on: &RetryOn, report: &mut Report) {
    if let Some(status) = &on.status {
        report.at_most(&format!("{path}.on.status"), status.len(), PATTERNS_MAX);
    }
    let Some(kinds) = &on.kinds else { return };
    report.at_most(&format!("{path}.on.kinds"), kinds.len(), PATTERNS_MAX);
    for (index, kind) in kinds.iter().enumerate() {
        if *kind == ErrorKind::HttpStatus {
            let message = "use `on.status` for HTTP statuses, as in [429, 5xx]";
            report.add(format!("{path}.on.kinds[{index}]"), "use_status", message);
        }
    }
}
