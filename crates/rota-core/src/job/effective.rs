//! Effective: what a document means where it says nothing.
//!
//! All defaults of a job stand on this page (those of retrying in `retry`),
//! and are functions of the document: nothing here is ever written back, so a
//! saved document keeps its words and takes part in better defaults.
//!
//! Quotas of a tier are applied by whoever knows the tenant.

use super::{
    document::{AfterEnd, Concurrency, Dead, JobDocument, Match},
    kinds::{Http, HttpBody},
    retry::{RetryPolicy, RetryRule, StatusPattern},
    step::{Foreach, OnFailure, Step},
};
use crate::{duration::Span, lane::LaneKey, order::Priority, run::Source, slot::WhenFull};

pub const DEFAULT_QUEUE: &str = "default";
pub const DEFAULT_TIMEOUT: Span = Span::secs(300);
pub const DEFAULT_GRACE: Span = Span::secs(30);
/// Runs that may wait for the slots of one key.
pub const DEFAULT_QUEUED_MAX: u32 = 10_000;
/// How often a dead letter is made again by itself, where it is at all.
pub const DEFAULT_REDRIVES: u16 = 1;
/// One item after the other, so that nobody floods a target by leaving it out.
pub const DEFAULT_PARALLELISM: u32 = 1;
/// Rows that a step hands on as output.
pub const DEFAULT_ROWS_MAX: u32 = 10_000;
pub const DEFAULT_RESPONSE_BYTES_MAX: u64 = 10_000_000;
pub const DEFAULT_SIGNATURE_HEADER: &str = "X-Rota-Signature";
pub const DEFAULT_SFTP_PORT: u16 = 22;

/// Under which rules one step is executed.
#[derive(Clone, Debug, PartialEq)]
pub struct StepPolicy {
    /// Of one attempt; none for a step that only parks.
    pub timeout: Option<Span>,
    pub retry: RetryPolicy,
    /// Where its run waits.
    pub lane: LaneKey,
    pub cancelable: bool,
}

impl JobDocument {
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    pub fn is_exclusive(&self) -> bool {
        self.exclusive.unwrap_or(false)
    }

    pub fn queue_name(&self) -> &str {
        self.queue.as_deref().unwrap_or(DEFAULT_QUEUE)
    }

    /// The priority for a tenant whose tier allows `best` at best.
    ///
    /// Only the default gives way to the tier: a priority somebody wrote is
    /// refused on save where the tier does not allow it.
    pub fn priority_within(&self, best: Priority) -> Priority {
        // A lower priority is a greater number.
        self.priority.and_then(Priority::new).unwrap_or_else(|| Priority::default().max(best))
    }

    pub fn cancel_grace(&self) -> Span {
        self.grace_for(None)
    }

    /// How long an attempt has to stop where somebody asks for `asked`: one that no cancel
    /// stops has as long as it may take at all.
    pub fn grace_for(&self, asked: Option<Span>) -> Span {
        let own = || self.cancel.as_ref().and_then(|cancel| cancel.grace).unwrap_or(DEFAULT_GRACE);
        let asked = asked.unwrap_or_else(own);
        let policy = self.lone_step().map(|step| self.step_policy(step));
        let goes_on = policy.filter(|policy| !policy.cancelable).and_then(|policy| policy.timeout);
        goes_on.map_or(asked, |timeout| timeout.max(asked))
    }

    /// Whether a person or the API may start it.
    pub fn is_manual(&self) -> bool {
        self.triggers.as_ref().and_then(|triggers| triggers.manual).unwrap_or(true)
    }

    /// Whether runs may be made that come from there. What makes a run again, or for a
    /// past instant, starts nothing that a schedule or another job had not.
    pub fn is_open_to(&self, source: Source) -> bool {
        match source {
            Source::Manual | Source::Api => self.is_manual(),
            Source::Schedule | Source::Webhook | Source::Job | Source::Backfill | Source::Redrive | Source::Retry => {
                true
            }
        }
    }

    /// The step that is the run itself, where it is not executed as a flow.
    ///
    /// One step that fans out is a flow all the same: each of its items is a
    /// run with attempts of its own.
    pub fn lone_step(&self) -> Option<&Step> {
        match self.steps.as_slice() {
            [step] if step.foreach.is_none() => Some(step),
            _ => None,
        }
    }

    pub fn is_flow(&self) -> bool {
        self.lone_step().is_none()
    }

    /// How the run itself is retried: as its one step, or not at all.
    pub fn run_retry(&self) -> RetryPolicy {
        self.lone_step().map_or_else(RetryPolicy::once, |step| self.step_policy(step).retry)
    }

    /// The step's own rules, over the job's, over the defaults.
    pub fn step_policy(&self, step: &Step) -> StepPolicy {
        let timeout = step.timeout.or(self.timeout).unwrap_or(DEFAULT_TIMEOUT);
        let queue = step.queue.as_deref().unwrap_or(self.queue_name());
        let requires = step.requires.as_ref().unwrap_or(&self.requires);
        StepPolicy {
            timeout: (!step.kind.parks()).then_some(timeout),
            retry: self.retry_rule_of(step).policy(),
            lane: LaneKey::new(queue, step.kind.handler(), requires),
            cancelable: step.cancelable.unwrap_or(true),
        }
    }

    pub(super) fn retry_rule_of(&self, step: &Step) -> RetryRule {
        let job = self.retry.clone().unwrap_or_default();
        step.retry.as_ref().map_or_else(|| job.clone(), |own| own.over(&job))
    }

    /// How the ends of the jobs named in `after` are counted.
    pub fn after_rule(&self) -> Option<(Match, AfterEnd)> {
        let after = self.triggers.as_ref()?.after.as_ref()?;
        Some((after.matching.unwrap_or(Match::All), after.on.unwrap_or(AfterEnd::Succeeded)))
    }
}

impl Dead {
    pub fn times(&self) -> u16 {
        self.times.unwrap_or(DEFAULT_REDRIVES)
    }
}

impl Concurrency {
    pub fn when_full(&self) -> WhenFull {
        self.when_full.unwrap_or_default()
    }

    pub fn queued_max(&self) -> u32 {
        self.max_queued.unwrap_or(DEFAULT_QUEUED_MAX)
    }
}

impl Step {
    pub fn is_always(&self) -> bool {
        self.always.unwrap_or(false)
    }

    pub fn on_failure(&self) -> &OnFailure {
        self.on_failure.as_ref().unwrap_or(&OnFailure::Stop)
    }
}

impl Foreach {
    pub fn parallelism(&self) -> u32 {
        self.parallelism.unwrap_or(DEFAULT_PARALLELISM)
    }
}

impl Http {
    /// The method; a body without one is posted.
    pub fn method(&self) -> &str {
        let default = match self.body {
            None => "GET",
            Some(HttpBody::Json(_) | HttpBody::Form(_) | HttpBody::Raw(_)) => "POST",
        };
        self.method.as_deref().unwrap_or(default)
    }

    pub fn expects(&self, status: u16) -> bool {
        match &self.expect {
            Some(patterns) => patterns.iter().any(|pattern| pattern.matches(status)),
            None => StatusPattern::Class(2).matches(status),
        }
    }

    pub fn response_bytes_max(&self) -> u64 {
        self.response_max.map_or(DEFAULT_RESPONSE_BYTES_MAX, super::size::Size::bytes)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(value: Value) -> JobDocument {
        serde_json::from_value(value).unwrap()
    }

    /// An attempt that no cancel stops must not be given up while it may still go on.
    #[test]
    fn the_grace_of_what_no_cancel_stops_is_its_timeout() {
        let of = |step: Value| job(json!({ "name": "a", "cancel": { "grace": "2s" }, "steps": [step] }));
        let plain = of(json!({ "id": "s", "handler": { "name": "h" }, "timeout": "1m" }));
        let stubborn = of(json!({ "id": "s", "handler": { "name": "h" }, "timeout": "1m", "cancelable": false }));
        assert_eq!((plain.cancel_grace(), plain.grace_for(Some(Span::secs(5)))), (Span::secs(2), Span::secs(5)));
        assert_eq!(
            (stubborn.cancel_grace(), stubborn.grace_for(Some(Span::secs(5)))),
            (Span::secs(60), Span::secs(60))
        );
        assert_eq!(stubborn.grace_for(Some(Span::secs(90))), Span::secs(90));
    }

    #[test]
    fn short_document_gets_the_defaults_of_the_reference() {
        let job = job(json!({ "name": "a", "steps": [{ "id": "s", "http": { "url": "http://x" } }] }));
        assert!(job.is_enabled() && job.is_manual() && !job.is_exclusive() && !job.is_flow());
        assert_eq!((job.queue_name(), job.cancel_grace()), ("default", Span::secs(30)));
        let policy = job.step_policy(&job.steps[0]);
        let expected = StepPolicy {
            timeout: Some(Span::secs(300)),
            retry: RetryPolicy::default(),
            lane: LaneKey::new("default", None, &[]),
            cancelable: true,
        };
        assert_eq!(policy, expected);
        assert_eq!(job.run_retry().max_attempts(), 4);
    }

    #[test]
    fn default_priority_gives_way_to_the_tier_and_a_written_one_does_not() {
        let mut job = job(json!({ "name": "a", "steps": [] }));
        let [first, third, fifth, eighth] = [1, 3, 5, 8].map(|n| Priority::new(n).unwrap());
        assert_eq!((job.priority_within(first), job.priority_within(eighth)), (fifth, eighth));
        job.priority = Some(3);
        assert_eq!(job.priority_within(eighth), third);
    }

    /// A flow that were retried whole would repeat the steps that succeeded.
    #[test]
    fn rules_of_a_flow_are_the_defaults_of_its_steps_and_the_run_has_one_attempt() {
        let job = job(json!({
            "name": "a", "timeout": "1m", "queue": "slow", "requires": ["gpu"],
            "retry": { "max_attempts": 2, "initial": "9s", "jitter": 0.0 },
            "steps": [
                { "id": "plain", "handler": { "name": "h" } },
                { "id": "own", "handler": { "name": "h" }, "timeout": "2m", "retry": { "max_attempts": 6 },
                  "queue": "fast", "requires": [], "cancelable": false },
                { "id": "rest", "sleep": { "for": "1d" } },
            ],
        }));
        assert_eq!(job.run_retry().max_attempts(), 1);
        let [plain, own, rest] = [0, 1, 2].map(|index| job.step_policy(&job.steps[index]));
        assert_eq!((plain.timeout, plain.retry.max_attempts()), (Some(Span::secs(60)), 2));
        assert_eq!(plain.lane, LaneKey::new("slow", Some("h"), &["gpu".to_owned()]));
        assert_eq!((own.timeout, own.retry.max_attempts()), (Some(Span::secs(120)), 6));
        assert_eq!((own.lane, own.cancelable), (LaneKey::new("fast", Some("h"), &[]), false));
        assert_eq!(rest.timeout, None, "a day of sleep must not time out after a minute");
        assert_eq!(own.retry, job.retry_rule_of(&job.steps[1]).policy());
    }

    #[test]
    fn request_with_a_body_is_posted_and_2xx_is_good() {
        let get: Http = serde_json::from_value(json!({ "url": "http://x" })).unwrap();
        let post: Http = serde_json::from_value(json!({ "url": "http://x", "form": {}, "expect": [304] })).unwrap();
        assert_eq!((get.method(), post.method()), ("GET", "POST"));
        assert!(get.expects(204) && !get.expects(301) && post.expects(304) && !post.expects(200));
    }
}
