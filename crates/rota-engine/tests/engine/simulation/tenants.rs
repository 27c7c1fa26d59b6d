//! Tenants beside each other: one without limits, and one whose quotas are far below
//! what it asks for. What the second asks for must not stop the first.

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    fire::SkipReason,
    ids::TenantId,
    run::{NewRun, Source},
    schedule::{CatchUpMode, ScheduleSpec},
    store::{FireItem, JobPut, Store, TenantPut, Tier, Write},
};
use serde_json::json;

use super::clients::{Job, retry, step};
use crate::faulty::wait;

pub const NAMES: [&str; 2] = ["acme", "small"];
/// What the second may have and do.
const RUNS_PER_MINUTE: u64 = 8;
const SCHEDULES_MAX: usize = 4;
/// How long its instants wait for its rate.
const WINDOW: &str = "10s";

pub fn put(store: &dyn Store, now: Timestamp) -> Vec<TenantId> {
    let quotas = json!({ "runs_per_minute": RUNS_PER_MINUTE, "active_schedules": SCHEDULES_MAX });
    let puts = [
        TenantPut { name: NAMES[0].into(), tier: Tier::Unlimited, quotas: None },
        TenantPut { name: NAMES[1].into(), tier: Tier::Enterprise, quotas: Some(quotas.to_string()) },
    ];
    wait(store.put_tenants(&puts, now)).unwrap()
}

/// A job that fires four times as often as its tenant may.
pub fn jobs() -> Vec<Job> {
    let every = |seconds: u64| json!({ "every": format!("{seconds}s"), "overlap": "allow", "catch_up": { "window": WINDOW, "mode": "all" } });
    let body = json!({ "steps": step("act"), "retry": retry(2), "cancel": { "grace": "1s" } });
    vec![Job::new("tick", body, vec![every(3), every(5)]).of(1)]
}

/// A job of more schedules than its tenant may have.
pub fn too_many() -> Job {
    let schedules = vec![json!({ "every": "1h" }); SCHEDULES_MAX + 1];
    Job::new("many", json!({ "steps": step("act") }), schedules).of(1)
}

/// What was created of a tenant that has a rate.
#[derive(Default)]
pub struct Rates {
    limited: Option<TenantId>,
    runs: u64,
    /// Each time the clock was set the bucket may have been filled.
    pub clock_steps: u64,
}

impl Rates {
    pub fn of(tenants: &[TenantId]) -> Self {
        Self { limited: Some(tenants[1]), ..Self::default() }
    }

    pub fn is_limited(&self, tenant: TenantId) -> bool {
        self.limited == Some(tenant)
    }

    /// A run was created, so long after the beginning.
    pub fn made(&mut self, run: &NewRun, elapsed: Span) -> Result<(), String> {
        let counts = matches!(run.trigger.source, Source::Schedule | Source::Api | Source::Manual | Source::Redrive);
        if !self.is_limited(run.tenant) || !counts || run.trigger.delay.is_some() {
            return Ok(());
        }
        self.runs += 1;
        let burst = 2 * RUNS_PER_MINUTE * (1 + self.clock_steps);
        // Clocks are off by up to a second, and a minute ends anywhere.
        let most = burst + RUNS_PER_MINUTE * (elapsed.as_millis() + 2_000) / 60_000 + 2;
        if self.runs > most {
            return Err(format!("{} runs of {} were created, where {most} were allowed", self.runs, run.tenant));
        }
        Ok(())
    }

    /// Over the rate is later, and lost only past the window.
    pub fn fired(write: &Write, item: &FireItem, spec: &ScheduleSpec) -> Result<(), String> {
        let window = spec.catch_up.window;
        let early =
            item.skips.iter().find(|skip| skip.reason == SkipReason::Quota && window.after(skip.to) > write.now);
        match early.filter(|_| spec.catch_up.mode == CatchUpMode::All) {
            Some(skip) => Err(format!("{skip:?} was given up at {}, within its window", write.now)),
            None => Ok(()),
        }
    }

    pub fn saved(&self, put: &JobPut) -> Result<(), String> {
        let schedules = put.schedules.iter().flat_map(|schedules| &schedules.saved);
        let enabled = schedules.filter(|schedule| schedule.enabled).count();
        if self.is_limited(put.tenant) && enabled > SCHEDULES_MAX {
            return Err(format!("`{}` was saved with {enabled} schedules of {SCHEDULES_MAX}", put.name));
        }
        Ok(())
    }
}
