//! What people do meanwhile: they trigger, cancel, retry, pause, edit, turn off and on,
//! delete and create. Each wish is repeated until a node has given a definite answer, and
//! written down with when it was asked and when it was answered.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    chance::{Chance, Over, now},
    world::{Request, ask},
};

/// Every act, by the name that turns it on and off.
pub const ACTS: [&str; 13] = [
    "trigger",
    "trigger-later",
    "cancel",
    "retry",
    "redrive",
    "retry-deleted",
    "edit",
    "toggle",
    "pause",
    "shorten",
    "lift",
    "pause-schedule",
    "delete",
];

/// A wish that no node has answered for so long fails the storm.
const PATIENCE: Duration = Duration::from_mins(3);

/// A wish that was not answered may still be granted for so long.
pub const ECHO: SignedDuration = SignedDuration::from_secs(60);

/// When a wish was asked for and when it was answered: it took effect between the two.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub asked: Timestamp,
    pub answered: Timestamp,
    /// A try of it was not answered: its node may still grant it.
    pub echoes: bool,
}

/// From when on a job's schedules are these.
#[derive(Clone, Debug)]
pub struct Era {
    pub since: Window,
    /// By name; none while the job is off or deleted.
    pub schedules: BTreeMap<String, Value>,
}

/// A job from its creation to its deletion.
#[derive(Clone, Debug)]
pub struct JobLife {
    pub id: i64,
    pub name: String,
    /// Nobody touches it.
    pub steady: bool,
    pub deleted: bool,
    pub version: i64,
    pub document: Value,
    pub schedules: BTreeMap<String, i64>,
    pub eras: Vec<Era>,
}

#[derive(Clone, Debug)]
pub struct Trigger {
    pub key: String,
    pub run: String,
    pub run_at: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub struct Cancel {
    pub run: String,
    pub window: Window,
    /// What the answer said: `cancelled`, `asked`, `already_asked`.
    pub answer: String,
}

#[derive(Clone, Debug)]
pub struct Retry {
    pub of: String,
    pub made: String,
    pub of_deleted: bool,
}

#[derive(Clone, Debug)]
pub struct Pause {
    pub job: i64,
    /// Of this schedule alone.
    pub schedule: Option<i64>,
    pub window: Window,
    /// None where it was lifted.
    pub until: Option<Timestamp>,
}

/// Everything that was asked for.
#[derive(Clone, Default)]
pub struct Diary {
    pub jobs: Vec<JobLife>,
    pub triggers: Vec<Trigger>,
    pub cancels: Vec<Cancel>,
    /// Runs that had ended when a second try asked for it.
    pub maybe_cancelled: Vec<String>,
    pub retries: Vec<Retry>,
    pub pauses: Vec<Pause>,
    pub acts: BTreeMap<&'static str, usize>,
    /// Answers that no wish should get.
    pub oddities: Vec<String>,
}

impl Diary {
    pub fn add(&mut self, other: Self) {
        self.jobs.extend(other.jobs);
        self.triggers.extend(other.triggers);
        self.cancels.extend(other.cancels);
        self.maybe_cancelled.extend(other.maybe_cancelled);
        self.retries.extend(other.retries);
        self.pauses.extend(other.pauses);
        self.oddities.extend(other.oddities);
        for (act, count) in other.acts {
            *self.acts.entry(act).or_default() += count;
        }
    }
}

/// Who executes a job's one step.
#[derive(Clone, Copy)]
pub enum By {
    Nodes,
    RustWorkers,
    PythonWorkers,
}

pub const ALL: [(By, &str); 3] = [(By::Nodes, "near"), (By::RustWorkers, "far"), (By::PythonWorkers, "python")];

pub fn document(name: &str, by: By, ledger: &str, schedules: &[Value]) -> Value {
    let call = json!({ "url": ledger, "json": { "fails": "{{ payload.fails }}" } });
    let step = match by {
        By::Nodes | By::RustWorkers => json!({ "id": "call", "http": call }),
        By::PythonWorkers => json!({ "id": "call", "handler": { "name": "call" } }),
    };
    let mut document = json!({
        "name": name, "queue": name, "timeout": "90s", "cancel": { "grace": "2s" },
        "input": { "default": { "fails": false, "ledger": ledger } },
        "retry": { "max_attempts": 50, "backoff": "fixed", "initial": "200ms", "jitter": 0.0 },
        "schedules": schedules, "steps": [step],
    });
    if let By::RustWorkers = by {
        document["requires"] = json!(["far"]);
    }
    document
}

/// Every instant of it makes a run, unless somebody changes or pauses it.
pub fn strict(name: &str, every: u64) -> Value {
    json!({ "name": name, "every": format!("{every}s"), "overlap": "allow", "catch_up": { "mode": "all" } })
}

/// Instants that are late or overlap are skipped.
pub fn loose(name: &str, every: u64) -> Value {
    json!({ "name": name, "every": format!("{every}s") })
}

pub struct Person {
    nodes: Vec<SocketAddr>,
    ledger: String,
    chance: Chance,
    acts: Vec<&'static str>,
    /// Pauses end at any nanosecond.
    nanoseconds: bool,
    over: Over,
    pub diary: Diary,
    keys: u64,
    who: u64,
}

impl Person {
    pub fn new(nodes: Vec<SocketAddr>, ledger: String, seed: u64, who: u64, over: Over) -> Self {
        let chance = Chance::new(seed, 100 + who);
        Self {
            nodes,
            ledger,
            chance,
            acts: Vec::new(),
            nanoseconds: false,
            over,
            diary: Diary::default(),
            keys: 0,
            who,
        }
    }

    pub fn doing(mut self, among: &[&'static str], on: &BTreeSet<String>) -> Self {
        self.nanoseconds = on.contains("pauses-to-the-nanosecond");
        self.acts = among.iter().copied().filter(|act| on.contains(*act)).collect();
        self
    }

    /// Does one thing after another until it is over.
    pub fn live(&mut self) {
        loop {
            let pause = self.chance.millis(50, 700);
            if self.acts.is_empty() || self.over.within(pause) {
                return;
            }
            let act = *self.chance.pick(&self.acts);
            if self.act(act).is_some() {
                *self.diary.acts.entry(act).or_default() += 1;
            }
        }
    }

    /// None where there was nothing to do it to.
    fn act(&mut self, act: &str) -> Option<()> {
        match act {
            "trigger" => {
                self.trigger(None);
                Some(())
            }
            "trigger-later" => {
                let later = self.chance.millis(1_500, 5_000);
                self.trigger(Some(now() + SignedDuration::try_from(later).unwrap()));
                Some(())
            }
            "cancel" => self.cancel(),
            "retry" => self.retry(),
            "redrive" => {
                self.redrive();
                Some(())
            }
            "retry-deleted" => self.retry_of_a_deleted_job(),
            "edit" | "toggle" => self.change(act == "toggle"),
            "pause" => self.pause(Some(4_000), false),
            "shorten" => self.pause(Some(600), false),
            "lift" => self.pause(None, false),
            "pause-schedule" => self.pause(Some(3_000), true),
            "delete" => self.delete_and_create(),
            other => unreachable!("{other} is not in the list"),
        }
    }

    /// An instant in so many milliseconds, for a pause to end at.
    fn later(&mut self, from: u64, to: u64) -> Timestamp {
        let at = now() + SignedDuration::try_from(self.chance.millis(from, to)).unwrap();
        if self.nanoseconds { at } else { Timestamp::from_millisecond(at.as_millisecond()).unwrap() }
    }

    fn key(&mut self) -> String {
        self.keys += 1;
        format!("{}-{}", self.who, self.keys)
    }

    /// Asks one node after another until one has given a definite answer.
    pub fn ask(&mut self, request: &Request) -> (u16, Value, Window) {
        let (asked, begun, pause) = (now(), Instant::now(), Over::default());
        let mut echoes = false;
        loop {
            let node = *self.chance.pick(&self.nodes);
            match ask(node, request) {
                Some((status, body)) if status < 500 && status != 429 && status != 408 => {
                    return (status, body, Window { asked, answered: now(), echoes });
                }
                Some((429 | 408, _)) => {}
                _ => echoes = true,
            }
            assert!(begun.elapsed() < PATIENCE, "no node has answered {request:?}");
            pause.within(self.chance.millis(50, 300));
        }
    }

    fn odd(&mut self, request: &Request, status: u16, body: &Value) {
        self.diary.oddities.push(format!("{} {} was answered {status}: {body}", request.method, request.path));
    }

    /// Saves a job that is not there; its key keeps a late try from doing it again.
    pub fn create(&mut self, document: &Value, steady: bool) {
        let key = format!("create-{}", self.key());
        let request = Request::post("/api/v1/jobs", document.clone()).with("Idempotency-Key", &key);
        let (status, saved, since) = self.ask(&request);
        let Some(id) = saved["id"].as_i64().filter(|_| status < 300) else {
            return self.odd(&request, status, &saved);
        };
        let (_, found, _) = self.ask(&Request::get(&format!("/api/v1/jobs/{id}/schedules?limit=100")));
        let named = |one: &Value| Some((one["name"].as_str()?.to_owned(), one["id"].as_i64()?));
        let schedules = found["items"].as_array().into_iter().flatten().filter_map(named).collect();
        let eras = vec![Era { since, schedules: specs(document) }];
        self.diary.jobs.push(JobLife {
            id,
            name: document["name"].as_str().unwrap().to_owned(),
            steady,
            deleted: false,
            version: saved["version"].as_i64().unwrap_or(1),
            document: document.clone(),
            schedules,
            eras,
        });
    }

    /// A job that may be changed, and is there.
    fn changeable(&mut self) -> Option<usize> {
        let jobs = &self.diary.jobs;
        let there: Vec<usize> = (0..jobs.len()).filter(|n| !jobs[*n].deleted && !jobs[*n].steady).collect();
        (!there.is_empty()).then(|| *self.chance.pick(&there))
    }

    fn change(&mut self, toggle: bool) -> Option<()> {
        let job = self.changeable()?;
        let mut document = self.diary.jobs[job].document.clone();
        if toggle {
            document["enabled"] = json!(document["enabled"] == false);
        } else {
            let (strict_every, loose_every) = (*self.chance.pick(&[1, 2, 3]), *self.chance.pick(&[2, 3, 5]));
            document["schedules"] = json!([strict("a", strict_every), loose("b", loose_every)]);
            document["description"] = json!(self.key());
        }
        self.save(job, document);
        Some(())
    }

    /// Saves over the version that is known: a late try finds it gone.
    pub fn save(&mut self, job: usize, document: Value) {
        let JobLife { id, version, .. } = self.diary.jobs[job];
        let request = Request {
            method: "PUT",
            path: format!("/api/v1/jobs/{id}"),
            headers: format!("If-Match: \"{version}\"\r\n"),
            body: Some(document.clone()),
        };
        let (status, saved, since) = self.ask(&request);
        // Refused where an earlier try has done it.
        if !(status < 300 || (status == 412 && since.echoes)) {
            return self.odd(&request, status, &saved);
        }
        let job = &mut self.diary.jobs[job];
        job.version += 1;
        job.eras.push(Era { since, schedules: specs(&document) });
        job.document = document;
    }

    /// Pauses for so long, again perhaps, or lifts what pause there is.
    fn pause(&mut self, millis: Option<u64>, schedule: bool) -> Option<()> {
        let job = self.changeable()?;
        let JobLife { id, schedules, .. } = &self.diary.jobs[job];
        let (id, schedule) = (*id, if schedule { schedules.values().next().copied() } else { None });
        let at = schedule.map_or(format!("jobs/{id}"), |schedule| format!("schedules/{schedule}"));
        let until = millis.map(|millis| self.later(millis / 2, millis * 2));
        let request = match until {
            Some(until) => Request::post(&format!("/api/v1/{at}/pause"), json!({ "until": until })),
            None => Request { method: "POST", path: format!("/api/v1/{at}/resume"), ..Request::default() },
        };
        let (status, body, window) = self.ask(&request);
        // It took so long that the pause would have been over.
        let too_late = until.is_some_and(|until| until <= window.answered);
        if status >= 300 && !too_late {
            self.odd(&request, status, &body);
        }
        self.diary.pauses.push(Pause { job: id, schedule, window, until });
        Some(())
    }

    fn delete_and_create(&mut self) -> Option<()> {
        let job = self.changeable()?;
        let JobLife { id, document, .. } = self.diary.jobs[job].clone();
        let keep = self.chance.one_in(2);
        let path = format!("/api/v1/jobs/{id}?keep_running={keep}");
        let request = Request { method: "DELETE", path, ..Request::default() };
        let (status, body, since) = self.ask(&request);
        if !(status < 300 || (status == 404 && since.echoes)) {
            self.odd(&request, status, &body);
            return None;
        }
        let gone = &mut self.diary.jobs[job];
        gone.deleted = true;
        gone.eras.push(Era { since, schedules: BTreeMap::new() });
        self.over.within(self.chance.millis(0, 2_000));
        self.create(&document, false);
        Some(())
    }

    fn trigger(&mut self, run_at: Option<Timestamp>) {
        let (_, kind) = *self.chance.pick(&ALL);
        let fails = self.chance.one_in(6);
        let (key, job) = (self.key(), if fails { format!("fails-{kind}") } else { format!("hand-{kind}") });
        let mut body = json!({ "labels": { "key": key }, "payload": { "fails": fails, "ledger": self.ledger } });
        if let Some(run_at) = run_at {
            body["run_at"] = json!(run_at);
        }
        let request = Request::post(&format!("/api/v1/jobs/{job}/trigger"), body).with("Idempotency-Key", &key);
        let (status, made, _) = self.ask(&request);
        match made["id"].as_str() {
            Some(run) if status < 300 => self.diary.triggers.push(Trigger { key, run: run.to_owned(), run_at }),
            _ => self.odd(&request, status, &made),
        }
    }

    /// One of the last runs that were asked for, or one that some schedule has made.
    fn some_run(&mut self) -> Option<String> {
        if self.chance.one_in(2) {
            let recent: Vec<String> = self.diary.triggers.iter().rev().take(5).map(|made| made.run.clone()).collect();
            return (!recent.is_empty()).then(|| self.chance.pick(&recent).clone());
        }
        let (_, page, _) = self.ask(&Request::get("/api/v1/runs?limit=20"));
        let runs: Vec<&Value> = page["items"]
            .as_array()?
            .iter()
            .filter(|run| run["job"]["name"].as_str().is_some_and(|name| !name.starts_with("steady")))
            .collect();
        if runs.is_empty() { None } else { self.chance.pick(&runs)["id"].as_str().map(str::to_owned) }
    }

    fn cancel(&mut self) -> Option<()> {
        let run = self.some_run()?;
        let request = Request::post(&format!("/api/v1/runs/{run}/cancel"), json!({ "reason": "the storm" }));
        let (status, body, window) = self.ask(&request);
        match body["answer"].as_str() {
            Some(answer) if status < 300 => {
                self.diary.cancels.push(Cancel { run, window, answer: answer.to_owned() });
            }
            // It had ended; perhaps by a first try whose answer was lost.
            _ if status == 409 && window.echoes => self.diary.maybe_cancelled.push(run),
            _ if status == 409 => {}
            _ => self.odd(&request, status, &body),
        }
        Some(())
    }

    fn retry(&mut self) -> Option<()> {
        let made: Vec<String> = self.diary.triggers.iter().rev().take(30).map(|made| made.run.clone()).collect();
        if made.is_empty() {
            return None;
        }
        let of = self.chance.pick(&made).clone();
        self.make_again(of, false);
        Some(())
    }

    fn make_again(&mut self, of: String, of_deleted: bool) {
        let request = Request::post(&format!("/api/v1/runs/{of}/retry"), json!({}));
        let (status, body, _) = self.ask(&request);
        match body["id"].as_str() {
            Some(made) if status < 300 => self.diary.retries.push(Retry { of, made: made.to_owned(), of_deleted }),
            // It lives, was made again before, or its job is gone.
            _ if status == 409 || of_deleted => {}
            _ => self.odd(&request, status, &body),
        }
    }

    fn retry_of_a_deleted_job(&mut self) -> Option<()> {
        let gone: Vec<i64> = self.diary.jobs.iter().filter(|job| job.deleted).map(|job| job.id).collect();
        if gone.is_empty() {
            return None;
        }
        let job = *self.chance.pick(&gone);
        let (_, page, _) = self.ask(&Request::get(&format!("/api/v1/runs?limit=20&job={job}")));
        let run = page["items"].as_array()?.first()?["id"].as_str()?.to_owned();
        self.make_again(run, true);
        Some(())
    }

    fn redrive(&mut self) {
        let (_, kind) = *self.chance.pick(&ALL);
        let filter = json!({ "filter": { "job": format!("fails-{kind}"), "status": ["dead"] } });
        let request = Request::post("/api/v1/bulk/redrive", filter);
        let (status, body, _) = self.ask(&request);
        if status >= 300 {
            self.odd(&request, status, &body);
        }
    }
}

/// The schedules of a document that are in force.
fn specs(document: &Value) -> BTreeMap<String, Value> {
    if document["enabled"] == false {
        return BTreeMap::new();
    }
    let all = document["schedules"].as_array().into_iter().flatten();
    all.map(|schedule| (schedule["name"].as_str().unwrap().to_owned(), schedule.clone())).collect()
}
