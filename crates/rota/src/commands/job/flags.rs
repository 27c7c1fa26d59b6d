//! A job document from flags or from a file.
//!
//! Flags make the small jobs that fit on a line; everything else is a file. The
//! document is sent as it was written, so that the server says what is wrong with
//! it and where.
//!
//! Over a job that is there, flags change what they name: its one schedule, its one
//! step, a setting. What they do not name stays.

use std::path::PathBuf;

use clap::Args;
use jiff::tz::TimeZone;
use rota_core::{duration::Span, job::step::StepKind};
use serde_json::{Map, Value, json};

use crate::{clock, documents, failure::Failure, times};

#[derive(Args)]
pub struct DocumentArgs {
    /// The job document, in YAML or JSON; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["name", "url", "command", "shell", "handler"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    flags: JobFlags,
}

#[derive(Args)]
#[command(next_help_heading = "A job from flags")]
pub struct JobFlags {
    /// The job's name, unique in its tenant
    #[arg(long)]
    name: Option<String>,
    /// A description for people
    #[arg(long, value_name = "TEXT", requires = "name")]
    description: Option<String>,
    /// A tag; may be repeated
    #[arg(long = "tag", value_name = "TAG", requires = "name")]
    tags: Vec<String>,
    /// The queue of its runs
    #[arg(long, requires = "name")]
    queue: Option<String>,
    /// Run at the instants of this cron expression, such as "0 9 * * MON-FRI"
    #[arg(long, value_name = "EXPR", requires = "name", conflicts_with_all = ["every", "at"])]
    cron: Option<String>,
    /// Run at this interval, such as 90s
    #[arg(long, value_name = "DURATION", requires = "name", conflicts_with = "at")]
    every: Option<String>,
    /// Run once at this time, such as 2030-01-01T09:00
    #[arg(long, value_name = "TIME", requires = "name")]
    at: Option<String>,
    /// The time zone of --cron and --at, by its IANA name
    #[arg(long = "tz", value_name = "ZONE", requires = "name")]
    zone: Option<String>,
    /// Send an HTTP request to this URL
    #[arg(long, requires = "name", conflicts_with_all = ["command", "shell", "handler"])]
    url: Option<String>,
    /// The method of the request [default: GET, or POST with --json]
    #[arg(long, requires = "url")]
    method: Option<String>,
    /// A header of the request; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE", requires = "url")]
    headers: Vec<String>,
    /// The JSON body of the request
    #[arg(long, value_name = "JSON", requires = "url")]
    json: Option<String>,
    /// Run this text with the shell
    #[arg(long, value_name = "TEXT", requires = "name", conflicts_with_all = ["command", "handler"])]
    shell: Option<String>,
    /// Call this handler of a worker
    #[arg(long, value_name = "NAME", requires = "name", conflicts_with = "command")]
    handler: Option<String>,
    /// How long an attempt may take
    #[arg(long, value_name = "DURATION", requires = "name")]
    timeout: Option<String>,
    /// Total number of attempts
    #[arg(long, value_name = "N", requires = "name")]
    attempts: Option<u32>,
    /// Run this program; everything after it is its arguments, so give this flag last
    #[arg(long, value_name = "PROGRAM", num_args = 1.., allow_hyphen_values = true, requires = "name")]
    command: Vec<String>,
}

/// What a command is given to save.
pub enum Given<'a> {
    Flags(&'a JobFlags),
    /// As they were written.
    Documents(Vec<Value>),
}

impl DocumentArgs {
    pub fn given(&self) -> Result<Given<'_>, Failure> {
        match &self.file {
            Some(path) => Ok(Given::Documents(documents::values(path)?)),
            None => Ok(Given::Flags(&self.flags)),
        }
    }

    /// The documents of new jobs.
    pub fn documents(&self) -> Result<Vec<Value>, Failure> {
        match self.given()? {
            Given::Documents(documents) => Ok(documents),
            Given::Flags(flags) => Ok(vec![flags.document()?]),
        }
    }
}

/// The fields of which a schedule has one.
const SCHEDULE_KINDS: [&str; 4] = ["cron", "every", "at", "after_finish"];

impl JobFlags {
    pub fn name(&self) -> Result<&str, Failure> {
        let name = self.name.as_deref();
        name.ok_or_else(|| {
            wrong("no job given: use -f FILE for a document, or --name with --url, --command, --shell or --handler")
        })
    }

    /// The document of a new job.
    pub fn document(&self) -> Result<Value, Failure> {
        let mut job = Map::new();
        job.insert("name".into(), self.name()?.into());
        self.settings(&mut job);
        if let Some(schedule) = self.schedule()? {
            job.insert("schedules".into(), json!([schedule]));
        }
        let step = self.step()?.ok_or_else(|| {
            wrong("the job has no step: give --url, --command, --shell or --handler, or a document with -f")
        })?;
        job.insert("steps".into(), json!([step]));
        Ok(job.into())
    }

    /// A stored document with what the flags name changed.
    pub fn change(&self, stored: &Value) -> Result<Value, Failure> {
        let mut job = stored.as_object().cloned().unwrap_or_default();
        self.settings(&mut job);
        let has_kind = self.cron.is_some() || self.every.is_some() || self.at.is_some();
        if has_kind || self.zone.is_some() {
            match self.only(&mut job, "schedules", "schedule")? {
                Some(schedule) => self.change_schedule(schedule, has_kind),
                None => drop(job.insert("schedules".into(), json!([self.schedule()?]))),
            }
        }
        if let Some(new) = self.step()? {
            match self.only(&mut job, "steps", "step")? {
                Some(step) => change_step(step, new),
                None => drop(job.insert("steps".into(), json!([new]))),
            }
        }
        Ok(job.into())
    }

    /// The one item of a stored list; none where the list is empty.
    fn only<'a>(
        &self,
        job: &'a mut Map<String, Value>,
        list: &str,
        what: &str,
    ) -> Result<Option<&'a mut Map<String, Value>>, Failure> {
        let items = job.get_mut(list).and_then(Value::as_array_mut);
        match items.map(Vec::as_mut_slice) {
            None | Some([]) => Ok(None),
            Some([one]) => Ok(one.as_object_mut()),
            Some(items) => {
                let name = self.name()?;
                let count = items.len();
                Err(wrong(&format!(
                    "`{name}` has {count} {what}s, and flags cannot choose one of them: use `rota job edit {name}`, or -f FILE"
                )))
            }
        }
    }

    /// The fields of the job itself.
    fn settings(&self, job: &mut Map<String, Value>) {
        put(job, "description", self.description.as_ref());
        put(job, "queue", self.queue.as_ref());
        put(job, "timeout", self.timeout.as_ref());
        if !self.tags.is_empty() {
            job.insert("tags".into(), json!(self.tags));
        }
        if let Some(attempts) = self.attempts {
            match job.get_mut("retry").and_then(Value::as_object_mut) {
                Some(retry) => drop(retry.insert("max_attempts".into(), attempts.into())),
                None => drop(job.insert("retry".into(), json!({ "max_attempts": attempts }))),
            }
        }
    }

    fn change_schedule(&self, schedule: &mut Map<String, Value>, has_kind: bool) {
        if has_kind {
            for kind in SCHEDULE_KINDS {
                schedule.remove(kind);
            }
            if self.every.is_none() {
                schedule.remove("anchor");
            }
        }
        self.put_schedule(schedule);
        put(schedule, "timezone", self.zone.as_ref());
    }

    fn put_schedule(&self, schedule: &mut Map<String, Value>) {
        put(schedule, "cron", self.cron.as_ref());
        put(schedule, "every", self.every.as_ref());
        put(schedule, "at", self.at.as_deref().map(|at| self.instant(at)).as_ref());
    }

    /// The instant that `--at` means. What cannot be read is left to the check of the document,
    /// and so is a bare length of time: it would mean one that has gone by.
    fn instant(&self, text: &str) -> String {
        if text.parse::<Span>().is_ok() {
            return text.to_owned();
        }
        let zone = self.zone.as_deref().map_or_else(|| Ok(TimeZone::system()), TimeZone::get);
        let instant = zone.ok().and_then(|zone| times::parse_in(text, clock::now(), &zone).ok());
        instant.map_or_else(|| text.to_owned(), |instant| instant.to_string())
    }

    fn schedule(&self) -> Result<Option<Value>, Failure> {
        let mut schedule = Map::new();
        self.put_schedule(&mut schedule);
        match (schedule.is_empty(), &self.zone) {
            (true, Some(_)) => Err(wrong("--tz needs --cron or --at")),
            (true, None) => Ok(None),
            (false, zone) => {
                put(&mut schedule, "timezone", zone.as_ref());
                Ok(Some(schedule.into()))
            }
        }
    }

    /// The step that the flags describe, if they do.
    fn step(&self) -> Result<Option<Value>, Failure> {
        if let Some(url) = &self.url {
            return Ok(Some(json!({ "id": "call", "http": self.http(url)? })));
        }
        let kind = match (&self.shell, &self.handler, self.command.as_slice()) {
            (Some(text), _, _) => json!({ "command": { "shell": text } }),
            (None, Some(name), _) => json!({ "handler": { "name": name } }),
            (None, None, []) => return Ok(None),
            (None, None, [program]) => json!({ "command": { "program": program } }),
            (None, None, [program, arguments @ ..]) => json!({ "command": { "program": program, "args": arguments } }),
        };
        let mut step = kind;
        step["id"] = "run".into();
        Ok(Some(step))
    }

    fn http(&self, url: &str) -> Result<Value, Failure> {
        let mut http = Map::new();
        put(&mut http, "url", Some(&url.to_owned()));
        put(&mut http, "method", self.method.as_ref());
        let mut headers = Map::new();
        for header in &self.headers {
            let (name, value) = header
                .split_once(':')
                .ok_or_else(|| wrong(&format!("--header: `{header}` must have the form NAME: VALUE")))?;
            headers.insert(name.trim().to_owned(), value.trim().into());
        }
        if !headers.is_empty() {
            http.insert("headers".into(), headers.into());
        }
        if let Some(text) = &self.json {
            let body: Value =
                serde_json::from_str(text).map_err(|error| wrong(&format!("--json: not valid JSON: {error}")))?;
            http.insert("json".into(), body);
        }
        Ok(http.into())
    }
}

/// Makes a stored step do what `new` does. Its id and its other settings stay; so do
/// those of its kind where that is the same.
fn change_step(step: &mut Map<String, Value>, new: Value) {
    let Value::Object(new) = new else { return };
    for (kind, told) in new.into_iter().filter(|(key, _)| key != "id") {
        let mut old = step.get(&kind).and_then(Value::as_object).cloned().unwrap_or_default();
        for other in StepKind::NAMES {
            step.remove(other);
        }
        // What to run and what to send are each told in one way.
        let replaced: &[&str] = match kind.as_str() {
            "command" => &["program", "args", "shell"],
            "http" if told.get("json").is_some() => &["json", "body", "form"],
            _ => &[],
        };
        old.retain(|key, _| !replaced.contains(&key.as_str()));
        merge(&mut old, told);
        step.insert(kind, old.into());
    }
}

fn merge(old: &mut Map<String, Value>, new: Value) {
    let Value::Object(new) = new else { return };
    for (key, value) in new {
        match (old.get_mut(&key), value) {
            (Some(Value::Object(old)), value @ Value::Object(_)) if key == "headers" => merge(old, value),
            (_, value) => drop(old.insert(key, value)),
        }
    }
}

fn put(map: &mut Map<String, Value>, key: &str, value: Option<&String>) {
    if let Some(value) = value {
        map.insert(key.to_owned(), value.as_str().into());
    }
}

fn wrong(message: &str) -> Failure {
    Failure::bad_input("bad_flags", message.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: JobFlags,
    }

    fn changed(stored: &Value, flags: &[&str]) -> Result<Value, Failure> {
        let line = ["rota", "--name", "a"].into_iter().chain(flags.iter().copied());
        Line::try_parse_from(line).unwrap().flags.change(stored)
    }

    fn stored() -> Value {
        json!({
            "name": "a", "tags": ["x"], "retry": { "max_attempts": 3, "backoff": "fixed" },
            "schedules": [{ "name": "day", "cron": "0 9 * * *", "timezone": "Europe/Paris", "labels": { "k": "v" } }],
            "steps": [{ "id": "say", "timeout": "5s", "command": { "program": "echo", "args": ["a"], "env": { "A": "1" } } }],
        })
    }

    /// A save by flags deleted whatever they did not name.
    #[test]
    fn flags_change_what_they_name_and_nothing_else() {
        let with = |path: &str, value: Value| {
            let mut job = stored();
            *job.pointer_mut(path).unwrap() = value;
            job
        };
        let command = json!({ "shell": "ls", "env": { "A": "1" } });
        let schedule = json!({ "name": "day", "every": "1h", "timezone": "Europe/Paris", "labels": { "k": "v" } });
        for (flags, expected) in [
            (&["--shell", "ls"][..], with("/steps/0/command", command)),
            (&["--attempts", "1"], with("/retry/max_attempts", json!(1))),
            (&["--every", "1h"], with("/schedules/0", schedule)),
            (&["--tz", "UTC"], with("/schedules/0/timezone", json!("UTC"))),
            (&["--tag", "y"], with("/tags", json!(["y"]))),
            (
                &["--handler", "h"],
                with("/steps/0", json!({ "id": "say", "timeout": "5s", "handler": { "name": "h" } })),
            ),
            (&[], stored()),
        ] {
            assert_eq!(changed(&stored(), flags).unwrap(), expected, "{flags:?}");
        }
    }

    #[test]
    fn flags_do_not_guess_which_of_several_is_meant() {
        let mut job = stored();
        job["schedules"] = json!([{ "name": "day", "cron": "0 9 * * *" }, { "name": "night", "every": "1h" }]);
        assert!(changed(&job, &["--every", "2h"]).is_err_and(|failure| failure.exit_code() == 2));
        assert!(changed(&job, &["--shell", "ls"]).is_ok());
    }

    #[test]
    fn a_header_joins_those_that_are_there() {
        let job =
            json!({ "name": "a", "steps": [{ "id": "call", "http": { "url": "http://a", "headers": { "A": "1" } } }] });
        let changed = changed(&job, &["--url", "http://b", "--header", "B: 2"]).unwrap();
        assert_eq!(changed["steps"][0]["http"], json!({ "url": "http://b", "headers": { "A": "1", "B": "2" } }));
    }
}
