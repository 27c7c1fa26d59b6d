//! A job document from flags or from a file.
//!
//! Flags make the small jobs that fit on a line; everything else is a file. The
//! document is sent as it was written, so that the server says what is wrong with
//! it and where.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::{documents, failure::Failure};

#[derive(Args)]
pub struct DocumentArgs {
    /// The job document, in YAML or JSON; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["name", "url", "command", "shell", "handler"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    flags: JobFlags,
}

#[derive(Args)]
#[command(next_help_heading = "A job by flags")]
struct JobFlags {
    /// Its name, unique in its tenant
    #[arg(long)]
    name: Option<String>,
    /// For people
    #[arg(long, value_name = "TEXT", requires = "name")]
    description: Option<String>,
    /// A tag; may be given several times
    #[arg(long = "tag", value_name = "TAG", requires = "name")]
    tags: Vec<String>,
    /// The queue it goes to
    #[arg(long, requires = "name")]
    queue: Option<String>,
    /// Run by this cron expression, such as "0 9 * * MON-FRI"
    #[arg(long, value_name = "EXPR", requires = "name", conflicts_with_all = ["every", "at"])]
    cron: Option<String>,
    /// Run every so often, such as 90s
    #[arg(long, value_name = "DURATION", requires = "name", conflicts_with = "at")]
    every: Option<String>,
    /// Run once at this time, such as 2030-01-01T09:00
    #[arg(long, value_name = "TIME", requires = "name")]
    at: Option<String>,
    /// The time zone of --cron and --at, by its IANA name
    #[arg(long = "tz", value_name = "ZONE", requires = "name")]
    zone: Option<String>,
    /// Call this address
    #[arg(long, requires = "name", conflicts_with_all = ["command", "shell", "handler"])]
    url: Option<String>,
    /// The method of the call [default: GET, with --json POST]
    #[arg(long, requires = "url")]
    method: Option<String>,
    /// A header of the call; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", requires = "url")]
    headers: Vec<String>,
    /// The JSON body of the call
    #[arg(long, value_name = "JSON", requires = "url")]
    json: Option<String>,
    /// Run this text by the shell
    #[arg(long, value_name = "TEXT", requires = "name", conflicts_with_all = ["command", "handler"])]
    shell: Option<String>,
    /// Call this handler of a worker
    #[arg(long, value_name = "NAME", requires = "name", conflicts_with = "command")]
    handler: Option<String>,
    /// How long an attempt may take
    #[arg(long, value_name = "DURATION", requires = "name")]
    timeout: Option<String>,
    /// Attempts in all
    #[arg(long, value_name = "N", requires = "name")]
    attempts: Option<u32>,
    /// Run this program; what follows are its arguments, so this comes last
    #[arg(long, value_name = "PROGRAM", num_args = 1.., allow_hyphen_values = true, requires = "name")]
    command: Vec<String>,
}

impl DocumentArgs {
    /// The documents, as they were written.
    pub fn documents(&self) -> Result<Vec<Value>, Failure> {
        match &self.file {
            Some(path) => documents::values(path),
            None => Ok(vec![self.flags.document()?]),
        }
    }
}

impl JobFlags {
    fn document(&self) -> Result<Value, Failure> {
        if self.name.is_none() {
            return Err(wrong("which job? Give a document with -f FILE, or --name and what it is to do"));
        }
        let mut job = Map::new();
        put(&mut job, "name", self.name.as_ref());
        put(&mut job, "description", self.description.as_ref());
        put(&mut job, "queue", self.queue.as_ref());
        put(&mut job, "timeout", self.timeout.as_ref());
        if !self.tags.is_empty() {
            job.insert("tags".into(), json!(self.tags));
        }
        if let Some(attempts) = self.attempts {
            job.insert("retry".into(), json!({ "max_attempts": attempts }));
        }
        if let Some(schedule) = self.schedule()? {
            job.insert("schedules".into(), json!([schedule]));
        }
        job.insert("steps".into(), json!([self.step()?]));
        Ok(job.into())
    }

    fn schedule(&self) -> Result<Option<Value>, Failure> {
        let mut schedule = Map::new();
        put(&mut schedule, "cron", self.cron.as_ref());
        put(&mut schedule, "every", self.every.as_ref());
        put(&mut schedule, "at", self.at.as_ref());
        match (schedule.is_empty(), &self.zone) {
            (true, Some(_)) => Err(wrong("--tz: there is no --cron or --at that it could belong to")),
            (true, None) => Ok(None),
            (false, zone) => {
                put(&mut schedule, "timezone", zone.as_ref());
                Ok(Some(schedule.into()))
            }
        }
    }

    fn step(&self) -> Result<Value, Failure> {
        if let Some(url) = &self.url {
            return Ok(json!({ "id": "call", "http": self.http(url)? }));
        }
        if let Some(text) = &self.shell {
            return Ok(json!({ "id": "run", "command": { "shell": text } }));
        }
        if let Some(name) = &self.handler {
            return Ok(json!({ "id": "run", "handler": { "name": name } }));
        }
        match self.command.as_slice() {
            [] => Err(wrong("what is it to do? Give --url, --command, --shell or --handler, or a document with -f")),
            [program] => Ok(json!({ "id": "run", "command": { "program": program } })),
            [program, arguments @ ..] => {
                Ok(json!({ "id": "run", "command": { "program": program, "args": arguments } }))
            }
        }
    }

    fn http(&self, url: &str) -> Result<Value, Failure> {
        let mut http = Map::new();
        put(&mut http, "url", Some(&url.to_owned()));
        put(&mut http, "method", self.method.as_ref());
        let mut headers = Map::new();
        for header in &self.headers {
            let (name, value) =
                header.split_once(':').ok_or_else(|| wrong(&format!("--header: `{header}` is not NAME: VALUE")))?;
            headers.insert(name.trim().to_owned(), value.trim().into());
        }
        if !headers.is_empty() {
            http.insert("headers".into(), headers.into());
        }
        if let Some(text) = &self.json {
            let body: Value =
                serde_json::from_str(text).map_err(|error| wrong(&format!("--json: it is no JSON: {error}")))?;
            http.insert("json".into(), body);
        }
        Ok(http.into())
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
