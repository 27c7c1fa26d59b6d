//! Retry: whether a failed attempt is tried again, and when.
//!
//! A [`RetryRule`] is what a document says, each field optional; rules are laid
//! over each other (a step's over its job's) and the gaps filled from the
//! defaults of this page, which gives a [`RetryPolicy`]. The delay is computed
//! from the backoff, spread by the jitter, then capped.
//!
//! It is safe to call with anything: the arithmetic saturates, a jitter outside
//! its range is drawn into it, and no answer is below a millisecond or above
//! the bound of [`Span`].
//!
//! This module does not count attempts, does not draw the jitter and knows no
//! time: who asks hands these in. Losses and their own limit are the state
//! machine's; here a loss is one more kind of failure.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, SeqAccess, Visitor},
};

pub use super::failure::{ErrorKind, Failure, RetryAdvice};
use crate::duration::Span;

/// Three retries: the most that every tier allows.
pub const DEFAULT_ATTEMPTS: u32 = 4;
pub const DEFAULT_INITIAL: Span = Span::secs(1);
pub const DEFAULT_CAP: Span = Span::secs(60);
pub const DEFAULT_JITTER: f64 = 0.25;

/// What a document says about retrying; what it leaves out is left to others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryRule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<RetryOn>,
}

/// Which failures are retried. Each list given takes the place of its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryOn {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Vec<StatusPattern>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<ErrorKind>>,
}

impl RetryRule {
    /// This rule, with its gaps filled from `under`.
    #[must_use]
    pub fn over(&self, under: &Self) -> Self {
        Self {
            max_attempts: self.max_attempts.or(under.max_attempts),
            backoff: self.backoff.clone().or_else(|| under.backoff.clone()),
            initial: self.initial.or(under.initial),
            max: self.max.or(under.max),
            jitter: self.jitter.or(under.jitter),
            on: match (&self.on, &under.on) {
                (Some(own), Some(under)) => Some(own.over(under)),
                (own, under) => own.clone().or_else(|| under.clone()),
            },
        }
    }

    /// The policy this rule makes once its gaps are filled from the defaults.
    pub fn policy(&self) -> RetryPolicy {
        let backoff = self.backoff.clone().unwrap_or(Backoff::Exponential);
        let initial = self.initial.unwrap_or(DEFAULT_INITIAL);
        let jitter = within_unit(self.jitter.unwrap_or(DEFAULT_JITTER));
        let longest = backoff.longest_written(initial);
        RetryPolicy {
            max_attempts: self.max_attempts.unwrap_or(DEFAULT_ATTEMPTS).max(1),
            // A delay somebody wrote must not be cut by a cap nobody wrote.
            max: self.max.unwrap_or_else(|| DEFAULT_CAP.max(stretched(longest, 1.0 + jitter))),
            on: self.on.clone().unwrap_or_default(),
            backoff,
            initial,
            jitter,
        }
    }
}

impl RetryOn {
    fn over(&self, under: &Self) -> Self {
        Self {
            status: self.status.clone().or_else(|| under.status.clone()),
            kinds: self.kinds.clone().or_else(|| under.kinds.clone()),
        }
    }
}

/// A retry rule with nothing left open.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    max_attempts: u32,
    backoff: Backoff,
    initial: Span,
    max: Span,
    jitter: f64,
    on: RetryOn,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryRule::default().policy()
    }
}

impl RetryPolicy {
    /// One attempt and no more: the policy of a run whose steps do the retrying.
    pub fn once() -> Self {
        RetryRule { max_attempts: Some(1), ..RetryRule::default() }.policy()
    }

    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// Whether this failure is of a sort that is tried again, attempts permitting.
    ///
    /// A handler's "retry after" is an order. Anyone else's is only a delay: a
    /// `Retry-After` on a 404 does not make it worth asking again.
    pub fn retries(&self, failure: &Failure) -> bool {
        match failure.advice {
            RetryAdvice::Never => false,
            RetryAdvice::After(_) if failure.kind == ErrorKind::Handler => true,
            RetryAdvice::After(_) | RetryAdvice::ByPolicy => self.covers(failure),
        }
    }

    /// How long to wait after attempt `attempt` (from 1) failed.
    ///
    /// `jitter` is in `[0, 1)`: 0 waits the shortest, 0.5 the computed time. A
    /// delay the other side asked for is not spread, so that nobody comes early;
    /// it is capped, except where our own handler asked.
    pub fn delay(&self, attempt: u32, jitter: f64, failure: &Failure) -> Span {
        match failure.advice {
            RetryAdvice::After(wait) if failure.kind == ErrorKind::Handler => wait,
            RetryAdvice::After(wait) => wait.min(self.max),
            RetryAdvice::ByPolicy | RetryAdvice::Never => {
                let spread = self.jitter.mul_add(2.0 * within_unit(jitter) - 1.0, 1.0);
                stretched(self.backoff.delay(attempt.max(1), self.initial), spread).min(self.max)
            }
        }
    }

    fn covers(&self, failure: &Failure) -> bool {
        if failure.kind == ErrorKind::HttpStatus {
            return failure.status.is_some_and(|status| self.covers_status(status));
        }
        match &self.on.kinds {
            Some(kinds) => kinds.contains(&failure.kind),
            None => retried_by_default(failure.kind),
        }
    }

    fn covers_status(&self, status: u16) -> bool {
        match &self.on.status {
            Some(patterns) => patterns.iter().any(|pattern| pattern.matches(status)),
            None => status == 429 || (500..600).contains(&status),
        }
    }
}

/// Whether a kind is retried where the document does not say.
///
/// What may pass on its own is; what is sure to fail the same way is not. A
/// certificate does not mend within a minute.
const fn retried_by_default(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Timeout
        | ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::Dns
        | ErrorKind::Lost
        | ErrorKind::ExitCode
        | ErrorKind::Signal
        | ErrorKind::Panic
        | ErrorKind::Handler
        | ErrorKind::Sql
        | ErrorKind::File
        | ErrorKind::Sftp => true,
        // A status is judged by its number, never by its kind.
        ErrorKind::HttpStatus
        | ErrorKind::Tls
        | ErrorKind::EgressDenied
        | ErrorKind::InvalidInput
        | ErrorKind::OutputTooLarge => false,
    }
}

/// How the delay grows from one attempt to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// Always the initial delay.
    Fixed,
    /// The initial delay times the number of attempts made.
    Linear,
    /// The initial delay, doubled for each attempt after the first.
    Exponential,
    /// One delay per attempt; the last one goes on.
    Delays(Vec<Span>),
}

impl Backoff {
    fn delay(&self, attempt: u32, initial: Span) -> Span {
        let factor = match self {
            Self::Fixed => 1,
            Self::Linear => u64::from(attempt),
            Self::Exponential => 1_u64.checked_shl(attempt - 1).unwrap_or(u64::MAX),
            Self::Delays(delays) => {
                return delays.get(attempt as usize - 1).or(delays.last()).copied().unwrap_or(initial);
            }
        };
        Span::millis(initial.as_millis().saturating_mul(factor))
    }

    /// The longest delay that stands in the document itself.
    pub(super) fn longest_written(&self, initial: Span) -> Span {
        match self {
            Self::Fixed | Self::Linear | Self::Exponential => initial,
            Self::Delays(delays) => delays.iter().copied().max().unwrap_or(initial),
        }
    }
}

impl Serialize for Backoff {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed => serializer.serialize_str("fixed"),
            Self::Linear => serializer.serialize_str("linear"),
            Self::Exponential => serializer.serialize_str("exponential"),
            Self::Delays(delays) => delays.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Backoff {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BackoffVisitor)
    }
}

struct BackoffVisitor;

impl<'de> Visitor<'de> for BackoffVisitor {
    type Value = Backoff;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fixed, linear, exponential or a list of delays")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Backoff, E> {
        match text {
            "fixed" => Ok(Backoff::Fixed),
            "linear" => Ok(Backoff::Linear),
            "exponential" => Ok(Backoff::Exponential),
            other => Err(E::unknown_variant(other, &["fixed", "linear", "exponential"])),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Backoff, A::Error> {
        let mut delays = Vec::new();
        while let Some(delay) = items.next_element()? {
            delays.push(delay);
        }
        Ok(Backoff::Delays(delays))
    }
}

/// One HTTP status (`429`) or a hundred of them (`5xx`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusPattern {
    /// From 100 to 599.
    Code(u16),
    /// The first digit, from 1 to 5.
    Class(u8),
}

impl StatusPattern {
    pub fn matches(self, status: u16) -> bool {
        match self {
            Self::Code(code) => status == code,
            Self::Class(class) => status / 100 == u16::from(class),
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        u16::try_from(number).ok().filter(|code| (100..600).contains(code)).map(Self::Code)
    }

    fn from_text(text: &str) -> Option<Self> {
        match text.as_bytes() {
            [class @ b'1'..=b'5', b'x' | b'X', b'x' | b'X'] => Some(Self::Class(class - b'0')),
            [b'1'..=b'5', _, _] => text.parse().ok().and_then(Self::from_number),
            _ => None,
        }
    }
}

impl Serialize for StatusPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Code(code) => serializer.serialize_u16(*code),
            Self::Class(class) => serializer.collect_str(&format_args!("{class}xx")),
        }
    }
}

impl<'de> Deserialize<'de> for StatusPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StatusVisitor)
    }
}

struct StatusVisitor;

impl Visitor<'_> for StatusVisitor {
    type Value = StatusPattern;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a status such as 429, or a class such as 5xx")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<StatusPattern, E> {
        StatusPattern::from_number(number).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<StatusPattern, E> {
        u64::try_from(number)
            .ok()
            .and_then(StatusPattern::from_number)
            .ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<StatusPattern, E> {
        StatusPattern::from_text(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

/// Into `[0, 1]`; what is not a number becomes the middle.
fn within_unit(value: f64) -> f64 {
    if value.is_nan() { 0.5 } else { value.clamp(0.0, 1.0) }
}

fn stretched(span: Span, factor: f64) -> Span {
    // A float that does not fit saturates, and `millis` clamps.
    Span::millis((span.as_millis() as f64 * factor).round() as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rule(value: Value) -> RetryRule {
        serde_json::from_value(value).unwrap()
    }

    fn delays(policy: &RetryPolicy, attempts: u32) -> Vec<u64> {
        let failure = Failure::new(ErrorKind::Timeout, "slow");
        (1..=attempts).map(|attempt| policy.delay(attempt, 0.5, &failure).as_millis()).collect()
    }

    #[test]
    fn each_backoff_grows_as_it_says_up_to_the_cap() {
        for (written, expected) in [
            (json!({}), [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]),
            (json!({ "backoff": "fixed" }), [1_000; 8]),
            (
                json!({ "backoff": "linear", "initial": "2s", "max": "11s" }),
                [2_000, 4_000, 6_000, 8_000, 10_000, 11_000, 11_000, 11_000],
            ),
            (
                json!({ "backoff": "exponential", "max": "3s" }),
                [1_000, 2_000, 3_000, 3_000, 3_000, 3_000, 3_000, 3_000],
            ),
            (
                json!({ "backoff": ["1s", "1m", "5m"] }),
                [1_000, 60_000, 300_000, 300_000, 300_000, 300_000, 300_000, 300_000],
            ),
        ] {
            assert_eq!(delays(&rule(written.clone()).policy(), 8), expected, "{written}");
        }
    }

    /// `initial: 5m` without a cap must not be cut to the default minute.
    #[test]
    fn cap_nobody_wrote_never_cuts_a_delay_somebody_wrote() {
        let failure = Failure::new(ErrorKind::Timeout, "slow");
        for written in [json!({ "backoff": "fixed", "initial": "5m" }), json!({ "backoff": ["5m"] })] {
            let policy = rule(written).policy();
            assert_eq!(policy.delay(1, 0.5, &failure), Span::secs(300));
            assert!(policy.delay(1, 0.99, &failure) > Span::secs(370));
        }
    }

    #[test]
    fn jitter_spreads_a_quarter_each_way_and_then_the_cap_cuts() {
        let policy = RetryPolicy::default();
        let failure = Failure::new(ErrorKind::Timeout, "slow");
        assert_eq!(policy.delay(1, 0.0, &failure), Span::millis(750));
        assert_eq!(policy.delay(1, 0.999_999_9, &failure), Span::millis(1_250));
        assert_eq!(policy.delay(30, 0.999_999_9, &failure), Span::secs(60));
        let still = rule(json!({ "jitter": 0.0 })).policy();
        assert_eq!(still.delay(1, 0.0, &failure), still.delay(1, 0.9, &failure));
    }

    /// Attempt numbers and jitter come from stored rows and other nodes.
    #[test]
    fn no_argument_makes_a_delay_overflow_or_panic() {
        let failure = Failure::new(ErrorKind::Timeout, "slow");
        for backoff in [json!("fixed"), json!("linear"), json!("exponential"), json!([]), json!(["10y"])] {
            let policy = rule(json!({ "backoff": backoff, "initial": "10y", "jitter": 1.0 })).policy();
            for attempt in [0, 1, 2, 31, 32, 63, 64, 65, 1_000, u32::MAX] {
                for jitter in [0.0, 0.5, 1.0, -3.0, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                    let delay = policy.delay(attempt, jitter, &failure);
                    assert!(delay >= Span::millis(1) && delay <= Span::millis(u64::MAX));
                }
            }
        }
    }

    #[test]
    fn statuses_are_retried_by_their_number() {
        let policy = RetryPolicy::default();
        for (status, retried) in
            [(429, true), (500, true), (503, true), (599, true), (400, false), (404, false), (408, false), (302, false)]
        {
            assert_eq!(policy.retries(&Failure::http(status, "no")), retried, "{status}");
        }
        assert!(!policy.retries(&Failure::new(ErrorKind::HttpStatus, "no status")));
    }

    #[test]
    fn kinds_that_cannot_mend_are_not_retried() {
        let policy = RetryPolicy::default();
        let refused: Vec<_> =
            ErrorKind::ALL.iter().filter(|kind| !policy.retries(&Failure::new(**kind, "no"))).copied().collect();
        let never = [
            ErrorKind::HttpStatus,
            ErrorKind::Tls,
            ErrorKind::EgressDenied,
            ErrorKind::InvalidInput,
            ErrorKind::OutputTooLarge,
        ];
        assert_eq!(refused, never);
    }

    #[test]
    fn each_list_of_on_takes_the_place_of_its_own_default_only() {
        let policy = rule(json!({ "on": { "status": [404, "5xx"] } })).policy();
        assert!(policy.retries(&Failure::http(404, "soon")));
        assert!(policy.retries(&Failure::http(502, "away")));
        assert!(!policy.retries(&Failure::http(429, "many")));
        assert!(policy.retries(&Failure::new(ErrorKind::Dns, "no such host")));

        let policy = rule(json!({ "on": { "kinds": ["tls"] } })).policy();
        assert!(policy.retries(&Failure::new(ErrorKind::Tls, "expired")));
        assert!(!policy.retries(&Failure::new(ErrorKind::Lost, "gone")));
        assert!(policy.retries(&Failure::http(500, "away")));
    }

    #[test]
    fn retry_after_is_honoured_within_the_cap_and_never_early() {
        let policy = RetryPolicy::default();
        for (asked, waited) in [(7, 7), (3_600, 60)] {
            let failure = Failure::http(429, "many").advising(RetryAdvice::After(Span::secs(asked)));
            assert!(policy.retries(&failure));
            assert_eq!(policy.delay(1, 0.0, &failure), Span::secs(waited));
        }
        let gone = Failure::http(404, "gone").advising(RetryAdvice::After(Span::secs(1)));
        assert!(!policy.retries(&gone), "a delay does not make a 404 worth asking again");
    }

    #[test]
    fn handler_has_the_last_word_on_its_own_failure() {
        let policy = rule(json!({ "on": { "kinds": ["timeout"] } })).policy();
        let after = Failure::new(ErrorKind::Handler, "later").advising(RetryAdvice::After(Span::secs(7_200)));
        assert!(policy.retries(&after));
        assert_eq!(policy.delay(1, 0.9, &after), Span::secs(7_200));
        for kind in ErrorKind::ALL {
            assert!(!RetryPolicy::default().retries(&Failure::new(kind, "no").advising(RetryAdvice::Never)));
        }
    }

    #[test]
    fn step_rule_is_laid_over_the_job_rule_field_by_field() {
        let job = rule(json!({ "max_attempts": 2, "initial": "3s", "on": { "status": [500] } }));
        let step = rule(json!({ "max_attempts": 6, "on": { "kinds": ["dns"] } }));
        let both = rule(json!({ "max_attempts": 6, "initial": "3s", "on": { "status": [500], "kinds": ["dns"] } }));
        assert_eq!(step.over(&job), both);
        assert_eq!(RetryRule::default().over(&job), job);
        assert_eq!(job.over(&RetryRule::default()), job);
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        assert_eq!(RetryPolicy::default().max_attempts(), 4);
        assert_eq!(RetryPolicy::once().max_attempts(), 1);
        assert_eq!(rule(json!({ "max_attempts": 0 })).policy().max_attempts(), 1);
    }

    #[test]
    fn rules_round_trip_and_status_patterns_are_checked() {
        for value in [
            json!({}),
            json!({ "backoff": "linear", "jitter": 0.5, "on": { "status": [429, "5xx"], "kinds": [] } }),
            json!({ "backoff": ["1s", "1m"], "initial": "1s", "max": "1h" }),
        ] {
            assert_eq!(json!(rule(value.clone())), value);
        }
        assert_eq!(
            rule(json!({ "on": { "status": ["429", "4XX"] } })),
            rule(json!({ "on": { "status": [429, "4xx"] } }))
        );
        for bad in
            [json!(99), json!(600), json!(-1), json!("6xx"), json!("5x"), json!("+42"), json!("5xxx"), json!(4.5)]
        {
            assert!(serde_json::from_value::<StatusPattern>(bad.clone()).is_err(), "{bad}");
        }
        for bad in [json!("quadratic"), json!(3), json!(["soon"])] {
            assert!(serde_json::from_value::<Backoff>(bad.clone()).is_err(), "{bad}");
        }
    }
}
