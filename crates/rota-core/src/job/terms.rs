//! Terms: what the making of a run needs to know of its job.
//!
//! The document is read once, with its defaults filled in, and gives the values
//! that go into the run's row. What depends on the run itself (the rendered
//! key, its instant, its tenant) is put in by whoever makes it; templates are
//! rendered elsewhere.

use jiff::Timestamp;

use super::{
    document::{Concurrency, JobDocument},
    retry::RetryPolicy,
};
use crate::{
    duration::Span,
    ids::{JobId, TenantId},
    lane::LaneKey,
    order::Priority,
    run::Redrive,
    slot::{SlotAsk, SlotKey, WhenFull},
};

/// Under which terms the runs of a job are made.
#[derive(Clone, Debug, PartialEq)]
pub struct RunTerms {
    pub lane: LaneKey,
    pub priority: Priority,
    pub start_deadline: Option<Span>,
    pub deadline: Option<Span>,
    pub slot: Option<SlotTerms>,
    pub retry: RetryPolicy,
    pub redrive: Option<Redrive>,
}

/// What a run asks of its slot, but for the key's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotTerms {
    /// A template; none where the whole job shares the slots.
    pub key: Option<String>,
    pub limit: u32,
    pub when_full: WhenFull,
    /// None where runs do not queue up.
    pub max_queued: Option<u32>,
    /// How long those have to stop that a run asks to.
    pub grace: Span,
}

impl JobDocument {
    /// The terms for a tenant whose tier allows the priority `best` at best.
    pub fn run_terms(&self, best: Priority) -> RunTerms {
        RunTerms {
            lane: self.run_lane(),
            priority: self.priority_within(best),
            start_deadline: self.start_deadline,
            deadline: self.deadline,
            slot: self.concurrency.as_ref().map(|one| one.terms(self.cancel_grace())),
            retry: self.run_retry(),
            redrive: self.dead.as_ref().map(|dead| Redrive {
                after: dead.redrive_after,
                left: dead.times(),
                start_within: self.start_deadline,
                end_within: self.deadline,
            }),
        }
    }

    /// Where the run itself waits: as its one step, or, for a flow, for any
    /// node, because what the steps require is no concern of who conducts them.
    pub fn run_lane(&self) -> LaneKey {
        match self.lone_step() {
            Some(step) => self.step_policy(step).lane,
            None => LaneKey::new(self.queue_name(), None, &[]),
        }
    }
}

impl RunTerms {
    /// By when a run must be started that is ready at `ready_at`.
    pub fn expires_at(&self, ready_at: Timestamp) -> Option<Timestamp> {
        self.start_deadline.map(|deadline| deadline.after(ready_at))
    }

    /// By when a run must have ended that is ready at `ready_at`.
    pub fn deadline_at(&self, ready_at: Timestamp) -> Option<Timestamp> {
        self.deadline.map(|deadline| deadline.after(ready_at))
    }
}

impl SlotTerms {
    /// The ask of one run, whose key reads `rendered`; empty without a key.
    pub fn ask(&self, tenant: TenantId, job: JobId, rendered: &str) -> SlotAsk {
        SlotAsk {
            key: SlotKey::new(tenant, job, rendered),
            limit: self.limit,
            when_full: self.when_full,
            max_queued: self.max_queued,
            grace: self.grace,
        }
    }
}

impl Concurrency {
    fn terms(&self, grace: Span) -> SlotTerms {
        let when_full = self.when_full();
        SlotTerms {
            key: self.key.clone(),
            limit: self.limit,
            when_full,
            max_queued: (when_full == WhenFull::Queue).then(|| self.queued_max()),
            grace,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn terms(value: Value) -> RunTerms {
        serde_json::from_value::<JobDocument>(value).unwrap().run_terms(Priority::HIGHEST)
    }

    #[test]
    fn short_job_asks_for_nothing_and_waits_in_the_default_queue() {
        let short = terms(json!({ "name": "a", "steps": [{ "id": "s", "http": { "url": "http://x" } }] }));
        let expected = RunTerms {
            lane: LaneKey::new("default", None, &[]),
            priority: Priority::default(),
            start_deadline: None,
            deadline: None,
            slot: None,
            retry: RetryPolicy::default(),
            redrive: None,
        };
        assert_eq!(short, expected);
        assert_eq!(short.expires_at(Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn one_step_is_the_run_and_a_flow_waits_for_any_node() {
        let step = json!({ "id": "s", "handler": { "name": "h" }, "queue": "fast", "retry": { "max_attempts": 2 } });
        let mut job = json!({ "name": "a", "queue": "slow", "requires": ["gpu", "big", "gpu"], "steps": [step] });
        let lone = terms(job.clone());
        assert_eq!(lone.lane, LaneKey::new("fast", Some("h"), &["big".into(), "gpu".into()]));
        assert_eq!(lone.retry.max_attempts(), 2);

        let mut spread = job.clone();
        spread["steps"][0]["foreach"] = json!({ "items": [1, 2] });
        job["steps"].as_array_mut().unwrap().push(json!({ "id": "t", "sleep": { "for": "1s" } }));
        for flow in [job, spread] {
            let flow = terms(flow);
            assert_eq!(flow.lane, LaneKey::new("slow", None, &[]));
            assert_eq!(flow.retry.max_attempts(), 1, "its steps do the retrying");
        }
    }

    #[test]
    fn deadline_counts_from_the_moment_the_run_is_ready() {
        let job = json!({ "name": "a", "start_deadline": "1h", "steps": [] });
        let ready_at = Timestamp::from_second(100).unwrap();
        assert_eq!(terms(job).expires_at(ready_at), Some(Timestamp::from_second(3_700).unwrap()));
    }

    #[test]
    fn a_dead_run_is_made_again_once_unless_the_job_says_more() {
        for (written, left) in
            [(json!({ "redrive_after": "1h" }), 1), (json!({ "redrive_after": "1h", "times": 3 }), 3)]
        {
            let job = json!({ "name": "a", "dead": written, "start_deadline": "5m", "steps": [] });
            let expected =
                Redrive { after: Span::secs(3_600), left, start_within: Some(Span::secs(300)), end_within: None };
            assert_eq!(terms(job).redrive, Some(expected));
        }
    }

    #[test]
    fn only_a_queue_for_slots_has_a_bound() {
        for (written, when_full, max_queued) in [
            (json!({ "limit": 2 }), WhenFull::Queue, Some(10_000)),
            (json!({ "limit": 2, "max_queued": 7 }), WhenFull::Queue, Some(7)),
            (json!({ "limit": 2, "when_full": "skip" }), WhenFull::Skip, None),
            (json!({ "limit": 2, "when_full": "replace" }), WhenFull::Replace, None),
        ] {
            let slot = terms(json!({ "name": "a", "concurrency": written, "steps": [] })).slot.unwrap();
            let ask = slot.ask(TenantId(1), JobId(2), "x");
            let grace = Span::secs(30);
            let expected =
                SlotAsk { key: SlotKey::new(TenantId(1), JobId(2), "x"), limit: 2, when_full, max_queued, grace };
            assert_eq!(ask, expected);
        }
    }
}
