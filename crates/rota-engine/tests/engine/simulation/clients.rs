//! What people want of a world: jobs of many kinds, and changes of mind at any
//! moment.

use rota_core::{
    duration::Span,
    ids::{RunId, TenantId},
    job::JobDocument,
    run::CancelAsk,
    store::{Deletion, Expect, Pause, PauseTarget},
};
use rota_engine::{Cancel, EngineError, Handle, JobRef, RunAsk};
use serde_json::{Value, json};

use super::weather::Dice;

/// A job as its author sees it.
#[derive(Clone, Debug)]
pub struct Job {
    pub name: String,
    body: Value,
    schedules: Vec<Value>,
    edition: u64,
    enabled: bool,
    /// Which of the tenants it belongs to.
    pub owner: usize,
}

impl Job {
    pub fn new(name: &str, body: Value, schedules: Vec<Value>) -> Self {
        Self { name: name.into(), body, schedules, edition: 0, enabled: true, owner: 0 }
    }

    pub fn of(self, owner: usize) -> Self {
        Self { owner, ..self }
    }

    pub fn document(&self) -> JobDocument {
        let mut document = self.body.clone();
        let fields = document.as_object_mut().unwrap();
        fields.insert("name".into(), json!(self.name));
        fields.insert("description".into(), json!(format!("edition {}", self.edition)));
        fields.insert("enabled".into(), json!(self.enabled));
        let schedules = self.schedules.iter().enumerate().map(|(n, schedule)| {
            let mut schedule = schedule.clone();
            let fields = schedule.as_object_mut().unwrap();
            fields.insert("name".into(), json!(format!("s{n}")));
            fields.insert("payload".into(), json!({ "k": n, "edition": self.edition }));
            schedule
        });
        fields.insert("schedules".into(), schedules.collect());
        JobDocument::from_value(document).unwrap()
    }

    /// Another payload, and now and then another rhythm.
    pub fn edit(&mut self, dice: &Dice) {
        self.edition += 1;
        for schedule in &mut self.schedules {
            if schedule.get("every").is_some() && dice.percent(30) {
                schedule["every"] = json!(format!("{}s", dice.between(2, 8)));
            }
            if dice.percent(15) {
                let enabled = schedule["enabled"].as_bool().unwrap_or(true);
                schedule["enabled"] = json!(!enabled);
            }
        }
    }

    /// One of its schedules is switched off, or on again.
    pub fn toggle_schedule(&mut self, dice: &Dice) {
        let n = dice.below(self.schedules.len() as u64) as usize;
        if let Some(schedule) = self.schedules.get_mut(n) {
            let enabled = schedule["enabled"].as_bool().unwrap_or(true);
            schedule["enabled"] = json!(!enabled);
        }
    }

    /// Switched off, or on again, and nothing else.
    pub fn toggle(&mut self) {
        self.enabled = !self.enabled;
    }
}

pub fn step(handler: &str) -> Value {
    json!([{ "id": "s", "handler": { "name": handler } }])
}

pub fn retry(attempts: u64) -> Value {
    json!({ "max_attempts": attempts, "backoff": "fixed", "initial": "400ms", "on": { "kinds": ["handler", "timeout"] } })
}

/// The jobs of one world: some of each sort.
pub fn jobs(dice: &Dice) -> Vec<Job> {
    let overlap = *dice.pick(&["skip", "queue_one", "queue_all", "cancel_running"]).unwrap();
    let catch_up = *dice.pick(&["all", "latest", "none"]).unwrap();
    let window = *dice.pick(&["8s", "1m"]).unwrap();
    let when_full = *dice.pick(&["queue", "skip", "reject", "replace", "cancel_running"]).unwrap();
    let every = |seconds| format!("{seconds}s");
    let mut jobs = vec![
        Job::new(
            "beat",
            json!({ "steps": step("act"), "retry": retry(3), "cancel": { "grace": "2s" } }),
            vec![
                json!({ "every": every(dice.between(2, 6)), "overlap": "allow", "catch_up": { "window": window, "mode": catch_up } }),
            ],
        ),
        Job::new(
            "cron",
            json!({ "steps": step("act"), "retry": retry(2), "cancel": { "grace": "1s" } }),
            vec![json!({ "cron": "*/4 * * * * *", "overlap": overlap })],
        ),
        Job::new(
            "chain",
            json!({ "steps": step("act"), "retry": retry(2) }),
            vec![json!({ "after_finish": every(dice.between(1, 4)) })],
        ),
        Job::new(
            "slots",
            json!({ "steps": step("act"), "retry": retry(2), "cancel": { "grace": "1s" },
                "dead": { "redrive_after": "1s", "times": dice.between(1, 3) },
                "concurrency": { "limit": dice.between(1, 3), "key": "{{ payload.k }}", "when_full": when_full } }),
            vec![json!({ "every": every(dice.between(3, 7)), "overlap": "allow" })],
        ),
        Job::new(
            "poison",
            json!({ "steps": step("poison"), "retry": retry(3), "dead": { "redrive_after": "2s" } }),
            Vec::new(),
        ),
        Job::new(
            "far",
            json!({ "steps": step("act"), "retry": retry(3), "requires": ["gpu"], "cancel": { "grace": "1s" } }),
            vec![json!({ "every": every(dice.between(3, 7)), "overlap": "allow" })],
        ),
    ];
    let mut alone =
        json!({ "steps": step("alone"), "retry": retry(3), "exclusive": true, "cancel": { "grace": "1s" } });
    if dice.percent(50) {
        alone["requires"] = json!(["gpu"]);
    }
    jobs.push(Job::new("alone", alone, vec![json!({ "every": every(dice.between(3, 7)), "overlap": "allow" })]));
    let on = *dice.pick(&["succeeded", "cancelled", "ended"]).unwrap();
    jobs.push(Job::new(
        "next",
        json!({ "steps": step("act"), "retry": retry(2),
            "triggers": { "after": { "jobs": ["cron", "slots", "far"], "match": "any", "on": on } } }),
        Vec::new(),
    ));
    if dice.percent(50) {
        jobs.push(Job::new(
            "last",
            json!({ "steps": step("act"), "triggers": { "after": { "jobs": ["next"] } } }),
            Vec::new(),
        ));
    }
    if dice.percent(50) {
        jobs.push(Job::new(
            "once",
            json!({ "steps": step("act"), "unique": { "by": ["payload.k"], "within": "5s" }, "retry": retry(2) }),
            vec![json!({ "every": "4s", "overlap": "allow" })],
        ));
    }
    if dice.percent(50) {
        jobs.push(Job::new(
            "hurry",
            json!({ "steps": step("act"), "start_deadline": "2s", "deadline": "4s", "timeout": "1500ms", "retry": retry(3) }),
            vec![json!({ "every": "5s", "overlap": "allow" })],
        ));
    }
    if dice.percent(50) {
        jobs.push(Job::new(
            "line",
            json!({ "steps": step("act"), "retry": retry(2),
                "concurrency": { "limit": 1, "when_full": "queue", "max_queued": 4 } }),
            vec![json!({ "cron": "*/6 * * * * *", "overlap": "allow" }), json!({ "after_finish": "3s" })],
        ));
    }
    jobs
}

/// Saves a job as it is now.
pub async fn save(handle: Handle, tenant: TenantId, document: JobDocument) -> Result<(), EngineError> {
    handle.save_job(tenant, &document, None, Expect::Anything).await.map(drop)
}

/// Asks for a run.
pub async fn trigger(handle: Handle, tenant: TenantId, job: String, key: u64, later: u64) -> Result<(), EngineError> {
    let mut ask = RunAsk::of(tenant, JobRef::Name(job)).with_payload(json!({ "k": key }));
    if later > 0 {
        ask = ask.at(Span::millis(later).after(handle.now()));
    }
    handle.enqueue(vec![ask]).await.map(drop)
}

pub async fn cancel(handle: Handle, run: RunId) -> Result<(), EngineError> {
    let ask = Cancel { by: None, reason: None, grace: Some(Span::secs(1)) };
    handle.cancel(&[run], &ask).await.map(drop)
}

pub async fn pause(handle: Handle, target: PauseTarget, until: Option<u64>) -> Result<(), EngineError> {
    let now = handle.now();
    let until = until.map(|millis| Span::millis(millis).after(now));
    handle.pause(&[target], &Pause { since: now, until, ..Pause::default() }).await.map(drop)
}

pub async fn resume(handle: Handle, target: PauseTarget) -> Result<(), EngineError> {
    handle.resume(&[target]).await.map(drop)
}

pub async fn delete_job(handle: Handle, tenant: TenantId, job: String, keep: bool) -> Result<(), EngineError> {
    let Some(job) = handle.store().find_jobs(&[(tenant, job)]).await?.remove(0) else { return Ok(()) };
    let ask = CancelAsk { by: None, reason: None, grace: Span::secs(1) };
    handle.delete_job(&Deletion { job: job.id, ask, keep_running: keep }).await.map(drop)
}
