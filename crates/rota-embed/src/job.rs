//! A job written in code: the few fields that most jobs have, and a way to set
//! every other. What it makes is checked as any document when it is saved.

use serde_json::{Map, Value, json};

/// A job document under construction. [`Job::set`] reaches every field of it.
///
/// ```
/// # use rota_embed::Job;
/// # use serde_json::{Value, json};
/// let job = Job::new("report")
///     .handler("report")
///     .cron("weekdays", "0 9 * * MON-FRI")
///     .set("retry", json!({ "max_attempts": 5 }));
/// # rota_embed::JobDocument::from_value(Value::from(job)).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    document: Map<String, Value>,
    schedules: Vec<Value>,
}

impl Job {
    /// A job by this name, unique in its tenant.
    pub fn new(name: &str) -> Self {
        Self { document: Map::new(), schedules: Vec::new() }.set("name", name)
    }

    /// Its one step calls this handler with the run's payload.
    #[must_use]
    pub fn handler(self, name: &str) -> Self {
        self.set("steps", json!([{ "id": "main", "handler": { "name": name } }]))
    }

    /// The payload of runs that are given none, those of schedules among them.
    #[must_use]
    pub fn payload(self, default: impl Into<Value>) -> Self {
        self.set("input", json!({ "default": default.into() }))
    }

    /// Runs when a cron expression says so, in UTC.
    #[must_use]
    pub fn cron(self, name: &str, expression: &str) -> Self {
        self.schedule(json!({ "name": name, "cron": expression }))
    }

    /// Runs each time such a while has passed, `10s` or `1h30m`.
    #[must_use]
    pub fn every(self, name: &str, interval: &str) -> Self {
        self.schedule(json!({ "name": name, "every": interval }))
    }

    /// Adds a schedule as the job document has them.
    #[must_use]
    pub fn schedule(mut self, schedule: Value) -> Self {
        self.schedules.push(schedule);
        self
    }

    /// Sets a field of the job document.
    #[must_use]
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.document.insert(field.to_owned(), value.into());
        self
    }
}

impl From<Job> for Value {
    fn from(job: Job) -> Self {
        let mut document = job.document;
        if !job.schedules.is_empty() {
            document.insert("schedules".to_owned(), Self::Array(job.schedules));
        }
        Self::Object(document)
    }
}
