//! The document as a whole: what is taken, what is refused and by which name.

#![allow(clippy::needless_pass_by_value, reason = "tables of documents read better without ampersands")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{document::*, retry::*, step::StepKind, *};
use crate::{run::Verdict, slot::WhenFull};

fn job(changes: Value) -> Value {
    let mut document = json!({ "name": "a", "steps": [{ "id": "s", "handler": { "name": "h" } }] });
    for (field, value) in changes.as_object().cloned().unwrap_or_default() {
        document[field] = value;
    }
    document
}

/// A job of one step, which has these fields besides its id.
fn step(fields: Value) -> Value {
    let mut step = fields;
    step["id"] = json!("s");
    job(json!({ "steps": [step] }))
}

fn http(fields: Value) -> Value {
    let mut http = json!({ "url": "https://example.com" });
    for (field, value) in fields.as_object().cloned().unwrap_or_default() {
        http[field] = value;
    }
    step(json!({ "http": http }))
}

fn sftp(fields: Value) -> Value {
    let mut sftp = json!({ "host": "h", "username": "u", "host_key": "SHA256:x", "list": "/" });
    for (field, value) in fields.as_object().cloned().unwrap_or_default() {
        sftp[field] = value;
    }
    step(json!({ "sftp": sftp }))
}

fn problems(document: Value) -> Vec<(String, &'static str)> {
    match JobDocument::from_value(document) {
        Ok(_) => vec![],
        Err(problems) => problems.into_iter().map(|problem| (problem.path, problem.code)).collect(),
    }
}

/// A document, and the one problem it has.
type Case = (Value, &'static str, &'static str);

fn refused(cases: Vec<Case>) {
    for (document, path, code) in cases {
        assert_eq!(problems(document.clone()), [(path.to_owned(), code)], "{document}");
    }
}

const EVERYTHING: &str = r#"
name: daily-sales-report
description: Make and mail the sales report
enabled: true
tags: [reporting, finance]
queue: default
requires: [gpu, region=eu]
priority: 3
input: { schema: { type: object }, default: { report: sales } }
vars: { region: eu, limits: [1, 2] }
timeout: 10m
deadline: 2h
start_deadline: 1h
retry: { max_attempts: 4, backoff: exponential, initial: 1s, max: 60s, jitter: 0.25, on: { status: [429, 5xx], kinds: [timeout, dns] } }
dead: { redrive_after: 1h, times: 2 }
cancel: { grace: 30s }
concurrency: { limit: 5, key: "{{ payload.account }}", when_full: queue, max_queued: 100 }
rate_limit: { runs: 100, per: 1m, key: "{{ payload.account }}" }
unique: { by: [payload.account], within: 24h }
exclusive: true
schedules:
  - name: weekdays
    cron: "0 9 * * MON-FRI"
    timezone: Asia/Ho_Chi_Minh
    overlap: skip
    payload: { report: sales, day: "{{ schedule.planned_at | date }}" }
    labels: { scope: user, scope_id: user_123 }
triggers: { manual: true, webhook: { secret: "{{ secrets.hook }}" }, after: { jobs: [load-orders], match: all, on: succeeded } }
steps:
  - id: fetch
    http:
      url: "https://reports.example/api"
      method: POST
      headers: { Accept: application/json }
      query: { page: 1, tag: [a, b] }
      json: { kind: "{{ payload.report }}" }
      auth: { oauth2: { token_url: "https://id.example/token", client_id: rota, client_secret: "{{ secrets.id }}", scopes: [read] } }
      expect: [200, 202]
      response_max: 5MB
      tls: { ca: "{{ vars.ca }}", certificate: "{{ vars.certificate }}", key: "{{ secrets.key }}", verify: true }
      sign: { secret: "{{ secrets.sign }}", header: X-Signature }
      callback: { within: 1h }
    timeout: 30s
    retry: { max_attempts: 6 }
    on_failure: run tell
  - id: store
    needs: [fetch]
    if: "steps.fetch.output.rows | length > 0"
    sql: { connection: warehouse, statement: "insert into t values ($1, '{{1,2}}')", params: ["{{ steps.fetch.output.id }}"], rows_max: 10, exactly_once: true }
    cancelable: false
  - id: reshape
    file:
      read: { path: in.csv, delimiter: ";", header: true }
      columns: [{ from: Order ID, to: order_id, type: integer }, { from: total, type: decimal }]
      filter: "row.total > 0"
      write: { path: out.parquet }
  - id: send
    foreach: { items: "{{ payload.partners }}", parallelism: 4 }
    sftp: { host: "{{ item.host }}", port: 2222, username: rota, key: "{{ secrets.ssh }}", passphrase: "{{ secrets.pass }}", host_key: "SHA256:abc", upload: { from: "*.parquet", to: /in }, recursive: true }
  - id: index
    needs: []
    queue: heavy
    requires: []
    command: { program: /usr/bin/index, args: [--all], env: { LEVEL: "1" }, stdin: "{{ payload.text }}", directory: work, expect: [0, 3] }
  - id: script
    command: { shell: "sort < in > out" }
    on_failure: continue
  - id: call
    handler: { name: send-mail, payload: { to: ops } }
  - id: child
    job: { name: other-job, payload: { a: 1 }, labels: { by: flow } }
  - id: rest
    sleep: { for: 10m }
  - id: until
    sleep: { until: "2030-01-01T00:00:00Z" }
  - id: ask
    approval: { message: Go on?, by: [anna], within: 1d }
  - id: signal
    wait: { token: "{{ run.id }}", within: 2h }
  - id: tell
    handler: { name: tell }
  - id: tidy
    always: true
    handler: { name: tidy }
notify: [{ on: [dead, late], channel: ops }]
"#;

#[test]
fn every_field_of_the_document_is_read() {
    let job = JobDocument::from_yaml(EVERYTHING.as_bytes()).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let kinds: Vec<_> = job.steps.iter().map(|step| step.kind.name()).collect();
    for name in StepKind::NAMES {
        assert!(kinds.contains(&name), "{name}");
    }
    assert_eq!(job.notify[0].on, [NotifyOn::Dead, NotifyOn::Late]);
    assert_eq!(job.after_rule(), Some((Match::All, AfterEnd::Succeeded)));
}

/// A verdict without its word could be neither awaited nor told of.
#[test]
fn every_verdict_can_be_awaited_and_told() {
    for verdict in Verdict::ALL {
        let word = verdict.as_str();
        let end: AfterEnd = word.parse().unwrap();
        assert!(end.counts(verdict) && AfterEnd::Ended.counts(verdict));
        assert_eq!(Verdict::ALL.into_iter().filter(|other| end.counts(*other)).count(), 1, "{word}");
        assert_eq!(word.parse::<NotifyOn>().unwrap().as_str(), word);
    }
}

/// A field that is read but not written back would vanish with the next save.
#[test]
fn document_reads_back_as_it_was_saved() {
    let job = JobDocument::from_yaml(EVERYTHING.as_bytes()).unwrap();
    let text = job.canonical_json();
    let again = JobDocument::from_json(text.as_bytes()).unwrap();
    assert_eq!(again, job);
    assert_eq!(again.canonical_json(), text);
    assert_eq!(again.content_hash(), job.content_hash());
}

/// A number that reads back as its neighbour makes a new version on every save.
#[test]
fn numbers_read_back_to_the_last_digit() {
    for number in [1.529_705_709_286_811_1e29, 0.1 + 0.2, f64::MIN_POSITIVE, f64::MAX] {
        let job = JobDocument::from_value(job(json!({ "vars": { "n": number } }))).unwrap();
        assert_eq!(JobDocument::from_json(job.canonical_json().as_bytes()), Ok(job));
    }
}

#[test]
fn json_and_yaml_are_one_document() {
    let value = read::yaml(EVERYTHING.as_bytes()).unwrap();
    let from_json = JobDocument::from_json(value.to_string().as_bytes());
    assert_eq!(from_json, JobDocument::from_yaml(EVERYTHING.as_bytes()));
}

#[test]
fn unknown_fields_are_refused_everywhere() {
    let full = read::yaml(EVERYTHING.as_bytes()).unwrap();
    let mut tried = 0;
    for path in maps_of(&full, "") {
        // The one key of `auth` is a choice, and a second one is refused as such.
        if at(&mut full.clone(), &path).get("oauth2").is_some() {
            continue;
        }
        if is_free(&path) {
            continue;
        }
        let mut changed = full.clone();
        at(&mut changed, &path)["surprise"] = json!(1);
        let expected = if path.is_empty() { "surprise".to_owned() } else { format!("{path}.surprise") };
        let found = problems(changed);
        assert!(found.contains(&(expected, "unknown_field")), "{path}: {found:?}");
        tried += 1;
    }
    assert!(tried > 40, "{tried}");
}

/// Whether a map belongs to whoever writes the job.
fn is_free(path: &str) -> bool {
    let free = ["schema", "default", "vars", "payload", "labels", "headers", "query", "json", "env"];
    free.iter().any(|name| path.contains(name))
}

/// The paths of all maps in a value.
fn maps_of(value: &Value, path: &str) -> Vec<String> {
    let mut paths = Vec::new();
    match value {
        Value::Object(map) => {
            paths.push(path.to_owned());
            for (key, value) in map {
                paths.extend(maps_of(value, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }));
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                paths.extend(maps_of(item, &format!("{path}[{index}]")));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    paths
}

fn at<'a>(value: &'a mut Value, path: &str) -> &'a mut Value {
    let pointer: String = path
        .split(['.', '['])
        .filter(|part| !part.is_empty())
        .fold(String::new(), |way, part| format!("{way}/{}", part.trim_end_matches(']')));
    value.pointer_mut(&pointer).unwrap()
}

#[test]
fn faults_of_form_are_named_with_their_path() {
    refused(faults_of_form());
}

#[test]
fn faults_of_sense_are_named_with_their_path() {
    refused(faults_of_sense());
}

fn faults_of_form() -> Vec<Case> {
    vec![
        (json!({ "steps": [] }), "name", "missing_field"),
        (json!([]), "", "wrong_type"),
        (json!("text"), "", "wrong_type"),
        (job(json!({ "timeout": "soon" })), "timeout", "invalid_value"),
        (job(json!({ "timeout": 30 })), "timeout", "wrong_type"),
        (job(json!({ "priority": 300 })), "priority", "invalid_value"),
        (job(json!({ "cancel": ["30s"] })), "cancel", "wrong_type"),
        (job(json!({ "retry": { "on": { "status": ["6xx"] } } })), "retry.on.status[0]", "invalid_value"),
        (job(json!({ "retry": { "on": { "kinds": ["dns", "gremlins"] } } })), "retry.on.kinds[1]", "invalid_value"),
        (job(json!({ "retry": { "backoff": "quadratic" } })), "retry.backoff", "invalid_value"),
        (job(json!({ "retry": { "backoff": ["1s", "x"] } })), "retry.backoff[1]", "invalid_value"),
        (job(json!({ "dead": { "times": 1 } })), "dead.redrive_after", "missing_field"),
        (job(json!({ "concurrency": { "key": "k" } })), "concurrency.limit", "missing_field"),
        (job(json!({ "concurrency": { "limit": 1, "when_full": "panic" } })), "concurrency.when_full", "invalid_value"),
        (job(json!({ "schedules": [{ "every": "often" }] })), "schedules[0].every", "invalid_value"),
        (job(json!({ "schedules": [{ "at": "2026-12-31T23:59:60Z" }] })), "schedules[0].at", "invalid_value"),
        (
            job(json!({ "schedules": [{ "every": "1h", "ends_at": "2026-12-31T23:59:60Z" }] })),
            "schedules[0].ends_at",
            "invalid_value",
        ),
        (step(json!({})), "steps[0]", "invalid_value"),
        (step(json!({ "http": {}, })), "steps[0].http.url", "missing_field"),
        (http(json!({ "json": 1, "body": "x" })), "steps[0].http", "invalid_value"),
        (http(json!({ "auth": { "magic": "x" } })), "steps[0].http.auth", "invalid_value"),
        (
            http(json!({ "auth": { "basic": { "username": "u" } } })),
            "steps[0].http.auth.basic.password",
            "missing_field",
        ),
        (sftp(json!({})), "steps[0].sftp", "invalid_value"),
        (sftp(json!({ "password": "{{ secrets.p }}", "delete": "x" })), "steps[0].sftp", "invalid_value"),
        (sftp(json!({ "password": "{{ secrets.p }}", "passphrase": "x" })), "steps[0].sftp", "invalid_value"),
        (step(json!({ "command": {} })), "steps[0].command", "invalid_value"),
        (step(json!({ "command": { "shell": "x", "args": ["y"] } })), "steps[0].command", "invalid_value"),
        (step(json!({ "sleep": { "for": "1s", "until": "x" } })), "steps[0].sleep", "invalid_value"),
        (step(json!({ "on_failure": "explode", "wait": {} })), "steps[0].on_failure", "invalid_value"),
    ]
}

fn faults_of_sense() -> Vec<Case> {
    let secret = "{{ secrets.p }}";
    vec![
        (job(json!({ "name": "no spaces" })), "name", "bad_name"),
        (job(json!({ "name": "-flag" })), "name", "bad_name"),
        (job(json!({ "name": "../up" })), "name", "bad_name"),
        (job(json!({ "name": "a".repeat(129) })), "name", "bad_name"),
        (job(json!({ "name": "42" })), "name", "bad_name"),
        (job(json!({ "name": "007" })), "name", "bad_name"),
        (job(json!({ "name": "99999999999999999999" })), "name", "bad_name"),
        (job(json!({ "description": "x".repeat(10_001) })), "description", "too_long"),
        (job(json!({ "tags": ["a", "b", "a"] })), "tags[2]", "duplicate"),
        (job(json!({ "queue": "" })), "queue", "bad_name"),
        (job(json!({ "requires": ["g p u"] })), "requires[0]", "bad_name"),
        (job(json!({ "priority": 0 })), "priority", "out_of_range"),
        (job(json!({ "priority": 11 })), "priority", "out_of_range"),
        (job(json!({ "input": { "schema": "object" } })), "input.schema", "wrong_type"),
        (job(json!({ "vars": { "a-b": 1 } })), "vars", "bad_var_name"),
        (job(json!({ "retry": { "max_attempts": 0 } })), "retry.max_attempts", "out_of_range"),
        (job(json!({ "retry": { "max_attempts": 101 } })), "retry.max_attempts", "out_of_range"),
        (job(json!({ "retry": { "jitter": 1.5 } })), "retry.jitter", "out_of_range"),
        (job(json!({ "retry": { "backoff": [] } })), "retry.backoff", "empty"),
        (job(json!({ "retry": { "backoff": ["1s"], "initial": "1s" } })), "retry.initial", "no_meaning"),
        (job(json!({ "retry": { "initial": "5m", "max": "1m" } })), "retry.max", "above_cap"),
        (job(json!({ "retry": { "backoff": ["5m"], "max": "1m" } })), "retry.max", "above_cap"),
        (job(json!({ "retry": { "on": { "kinds": ["http_status"] } } })), "retry.on.kinds[0]", "use_status"),
        (job(json!({ "dead": { "redrive_after": "999ms" } })), "dead.redrive_after", "out_of_range"),
        (job(json!({ "dead": { "redrive_after": "31d" } })), "dead.redrive_after", "out_of_range"),
        (job(json!({ "dead": { "redrive_after": "1h", "times": 0 } })), "dead.times", "out_of_range"),
        (job(json!({ "dead": { "redrive_after": "1h", "times": 11 } })), "dead.times", "out_of_range"),
        (job(json!({ "concurrency": { "limit": 0 } })), "concurrency.limit", "out_of_range"),
        (job(json!({ "concurrency": { "limit": 1, "key": " " } })), "concurrency.key", "empty"),
        (job(json!({ "concurrency": { "limit": 1, "key": "{{ payload.a" } })), "concurrency.key", "bad_template"),
        (
            job(json!({ "concurrency": { "limit": 1, "when_full": "skip", "max_queued": 5 } })),
            "concurrency.max_queued",
            "no_meaning",
        ),
        (job(json!({ "rate_limit": { "runs": 0, "per": "1m" } })), "rate_limit.runs", "out_of_range"),
        (job(json!({ "unique": { "by": [], "within": "1h" } })), "unique.by", "empty"),
        (job(json!({ "unique": { "by": ["payload..a"], "within": "1h" } })), "unique.by[0]", "bad_reference"),
        (job(json!({ "unique": { "by": ["secrets.a"], "within": "1h" } })), "unique.by[0]", "bad_reference"),
        (job(json!({ "schedules": [{ "every": "1m" }, { "every": "2m" }] })), "schedules[1].name", "duplicate"),
        (job(json!({ "schedules": [{ "name": "x" }] })), "schedules[0]", "schedule_kind"),
        (
            job(json!({ "triggers": { "webhook": { "secret": "hunter2" } } })),
            "triggers.webhook.secret",
            "secret_in_document",
        ),
        (job(json!({ "triggers": { "after": { "jobs": [] } } })), "triggers.after.jobs", "empty"),
        (job(json!({ "triggers": { "after": { "jobs": ["b", "a"] } } })), "triggers.after.jobs[1]", "cycle"),
        (job(json!({ "notify": [{ "on": [], "channel": "c" }] })), "notify[0].on", "empty"),
        (job(json!({ "steps": [] })), "steps", "empty"),
        (http(json!({ "url": "ftp://x" })), "steps[0].http.url", "bad_url"),
        (http(json!({ "url": "https://" })), "steps[0].http.url", "bad_url"),
        (http(json!({ "url": "https://a b" })), "steps[0].http.url", "bad_url"),
        (http(json!({ "url": "https://{{ vars.host }" })), "steps[0].http.url", "bad_template"),
        (http(json!({ "method": "GET it" })), "steps[0].http.method", "bad_method"),
        (http(json!({ "headers": { "A B": "x" } })), "steps[0].http.headers", "bad_header"),
        (http(json!({ "method": "connect" })), "steps[0].http.method", "bad_method"),
        (http(json!({ "headers": { "host": "inner.example" } })), "steps[0].http.headers.host", "bad_header"),
        (
            http(json!({ "headers": { "Transfer-Encoding": "chunked" } })),
            "steps[0].http.headers.Transfer-Encoding",
            "bad_header",
        ),
        (http(json!({ "headers": { "A": "x\r\nB: y" } })), "steps[0].http.headers.A", "bad_header"),
        (http(json!({ "query": { "a": { "b": 1 } } })), "steps[0].http.query.a", "wrong_type"),
        (http(json!({ "form": { "a": [[1]] } })), "steps[0].http.form.a", "wrong_type"),
        (http(json!({ "expect": [] })), "steps[0].http.expect", "empty"),
        (http(json!({ "auth": { "bearer": "abc" } })), "steps[0].http.auth.bearer", "secret_in_document"),
        (http(json!({ "tls": { "key": secret } })), "steps[0].http.tls", "incomplete"),
        (step(json!({ "sql": { "connection": "c", "statement": " " } })), "steps[0].sql.statement", "empty"),
        (
            step(json!({ "sql": { "connection": "c", "statement": "select '{{ payload.a }}'" } })),
            "steps[0].sql.statement",
            "template_in_statement",
        ),
        (step(json!({ "file": { "read": { "path": "data" } } })), "steps[0].file.read.format", "missing_field"),
        (step(json!({ "file": { "read": { "path": "../a.csv" } } })), "steps[0].file.read.path", "bad_path"),
        (
            step(json!({ "file": { "read": { "path": "a.json", "delimiter": ";" } } })),
            "steps[0].file.read.delimiter",
            "no_meaning",
        ),
        (sftp(json!({ "password": "hunter2" })), "steps[0].sftp.password", "secret_in_document"),
        (sftp(json!({ "password": secret, "port": 0 })), "steps[0].sftp.port", "out_of_range"),
        (
            step(json!({ "command": { "shell": "echo {{ payload.a }}" } })),
            "steps[0].command.shell",
            "template_in_shell",
        ),
        (step(json!({ "command": { "program": "x", "env": { "A=B": "" } } })), "steps[0].command.env", "bad_name"),
        (step(json!({ "sleep": { "until": "tomorrow" } })), "steps[0].sleep.until", "invalid_value"),
        (step(json!({ "wait": {}, "timeout": "1h" })), "steps[0].timeout", "no_meaning"),
        (step(json!({ "wait": {}, "if": "{{ payload.a }}" })), "steps[0].if", "bad_template"),
        (
            step(json!({ "file": { "read": { "path": "a.csv" }, "filter": "{{ row.a }}" } })),
            "steps[0].file.filter",
            "bad_template",
        ),
        (step(json!({ "wait": {}, "needs": ["ghost"] })), "steps[0].needs[0]", "unknown_step"),
        (step(json!({ "wait": {}, "on_failure": "run ghost" })), "steps[0].on_failure", "unknown_step"),
        (step(json!({ "wait": {}, "needs": ["s"] })), "steps[0].needs", "cycle"),
        (step(json!({ "wait": {}, "foreach": { "items": "payload.a" } })), "steps[0].foreach.items", "wrong_type"),
        (
            step(json!({ "wait": {}, "foreach": { "items": [1], "parallelism": 0 } })),
            "steps[0].foreach.parallelism",
            "out_of_range",
        ),
        (job(json!({ "steps": [{ "id": "kebab-case", "wait": {} }] })), "steps[0].id", "bad_step_id"),
        (job(json!({ "steps": [{ "id": "a", "wait": {} }, { "id": "a", "wait": {} }] })), "steps[1].id", "duplicate"),
        (
            job(json!({ "retry": { "initial": "5m" },
                "steps": [{ "id": "a", "handler": { "name": "h" }, "retry": { "max": "1m" } }] })),
            "steps[0].retry.max",
            "above_cap",
        ),
    ]
}

const REFERENCE: &str = include_str!("../../../../docs/job.md");
const STEP_PAGES: [&str; 2] =
    [include_str!("../../../../docs/steps/http.md"), include_str!("../../../../docs/steps/command.md")];

fn examples(page: &str) -> Vec<&str> {
    page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// An example that is refused teaches a lie.
#[test]
fn every_example_of_the_reference_is_a_good_job() {
    assert!(examples(REFERENCE).len() >= 12 && STEP_PAGES.iter().all(|page| !examples(page).is_empty()));
    for example in STEP_PAGES.iter().flat_map(|page| examples(page)).chain(examples(REFERENCE)) {
        // Most examples show a part; the rest of the job is added to them.
        let document = job(read::yaml(example.as_bytes()).unwrap());
        let found = JobDocument::from_value(document);
        assert!(found.is_ok(), "{example}\n{found:?}");
    }
}

#[test]
fn every_field_word_and_code_is_in_the_reference() {
    let full = read::yaml(EVERYTHING.as_bytes()).unwrap();
    let document = serde_json::to_value(JobDocument::from_value(full.clone()).unwrap()).unwrap();
    let mut missing: Vec<String> = Vec::new();
    for path in maps_of(&full, "").iter().filter(|path| !is_free(path)) {
        let fields: Vec<_> =
            at(&mut document.clone(), path).as_object().cloned().unwrap_or_default().into_iter().collect();
        missing.extend(fields.into_iter().map(|(field, _)| field).filter(|_| !path.starts_with("schedules")));
    }
    missing.extend(ErrorKind::ALL.iter().map(ToString::to_string));
    missing.extend(WhenFull::ALL.iter().map(ToString::to_string));
    missing.extend(AfterEnd::ALL.iter().map(ToString::to_string));
    missing.extend(NotifyOn::ALL.iter().map(ToString::to_string));
    missing.extend(faults_of_form().into_iter().chain(faults_of_sense()).map(|(_, _, code)| code.to_owned()));
    // A field is named alone or as a part of a path.
    let forms = |word: &str| [format!("`{word}`"), format!("`{word}."), format!(".{word}`"), format!(".{word}.")];
    missing.retain(|word| !forms(word).iter().any(|form| REFERENCE.contains(form)));
    assert_eq!(missing, Vec::<String>::new());
}

/// A bound that is stated wrong sends people into refusals.
#[test]
fn bounds_of_the_reference_are_those_of_the_code() {
    for (row, bound) in [
        ("steps", check::STEPS_MAX),
        ("schedules", check::SCHEDULES_MAX),
        ("tags", check::TAGS_MAX),
        ("requires", check::TRAITS_MAX),
        ("vars", check::VARS_MAX),
        ("notify", check::NOTIFY_MAX),
        ("description", check::DESCRIPTION_BYTES_MAX),
        ("triggers.after.jobs", check::AFTER_JOBS_MAX),
        ("unique.by", check::UNIQUE_PATHS_MAX),
        ("concurrency.limit", check::CONCURRENCY_MAX as usize),
        ("concurrency.max_queued", check::QUEUED_MAX as usize),
        ("rate_limit.runs", check::RATE_RUNS_MAX as usize),
        ("url", check::URL_BYTES_MAX),
        ("statement", check::STATEMENT_BYTES_MAX),
        ("rows_max", check::ROWS_MAX as usize),
        ("foreach.items", check::FOREACH_ITEMS_MAX),
        ("foreach.parallelism", check::PARALLELISM_MAX as usize),
        ("max_attempts", check::ATTEMPTS_MAX as usize),
        ("times", usize::from(check::REDRIVES_MAX)),
    ] {
        let line = REFERENCE.lines().find(|line| line.starts_with(&format!("| `{row}` |"))).unwrap_or_default();
        let stated = line.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default().replace(',', "");
        assert!(stated.split_whitespace().any(|word| word == bound.to_string()), "{row}: {bound} in `{line}`");
    }
}

#[test]
fn cycle_of_steps_is_spelt_out() {
    let document = job(json!({ "steps": [
        { "id": "a", "needs": ["c"], "wait": {} }, { "id": "b", "wait": {} }, { "id": "c", "wait": {} },
    ] }));
    let found = JobDocument::from_value(document).unwrap_err();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].to_string(), "steps[0].needs: these steps wait for each other: a -> c -> b -> a");
}

#[test]
fn all_problems_come_in_one_answer() {
    let found = problems(json!({
        "name": "no spaces", "priority": 0, "retry": { "jitter": 2.0 },
        "steps": [
            { "id": "a", "needs": ["x"], "http": { "url": "nope" } },
            { "id": "a", "sql": { "connection": "", "statement": "" } },
        ],
    }));
    assert_eq!(found.len(), 8, "{found:?}");
    let found = problems(
        json!({ "nmae": "a", "name": "a", "prioritty": 1, "timeout": 5, "steps": [{ "id": "a", "wait": { "x": 1 } }] }),
    );
    assert_eq!(found.len(), 4, "{found:?}");
}

#[test]
fn lists_are_bounded_and_answers_too() {
    let steps = |count: usize| {
        let list: Vec<_> = (0..count).map(|index| json!({ "id": format!("s{index}"), "wait": {} })).collect();
        job(json!({ "steps": list }))
    };
    assert_eq!(problems(steps(check::STEPS_MAX)), []);
    assert_eq!(problems(steps(check::STEPS_MAX + 1)), [("steps".to_owned(), "too_many")]);
    let bad: Vec<_> = (0..400).map(|_| json!({ "id": "!", "wait": {} })).collect();
    assert_eq!(problems(job(json!({ "steps": bad }))).len(), decode::PROBLEMS_MAX);
    let tags: Vec<_> = (0..51).map(|index| format!("t{index}")).collect();
    assert_eq!(problems(job(json!({ "tags": tags }))), [("tags".to_owned(), "too_many")]);
}

/// Long keys stand in every path below them: a document must not grow by being checked.
#[test]
fn many_templates_under_long_keys_are_refused_quickly() {
    let mut payload = json!(vec!["{{"; 100_000]);
    for _ in 0..20 {
        payload = json!({ "k".repeat(256): payload });
    }
    let found = problems(step(json!({ "handler": { "name": "h", "payload": payload } })));
    assert_eq!(found[0], (String::new(), "too_many"));
    assert_eq!(found.len(), decode::PROBLEMS_MAX);
}

/// Any JSON value, with the words of the document in it so that parsing goes deep.
fn any_value() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "name",
        "steps",
        "id",
        "http",
        "url",
        "sql",
        "retry",
        "on",
        "status",
        "kinds",
        "backoff",
        "concurrency",
        "limit",
        "schedules",
        "cron",
        "triggers",
        "after",
        "jobs",
        "needs",
        "if",
        "wait",
        "sleep",
        "for",
        "foreach",
        "items",
        "5xx",
        "1s",
        "10m",
        "a",
        "{{ payload.a }}",
        "{{",
        "run a",
        "stop",
        "",
        "é",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
        r"[^\x00]{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::vec((word.clone(), inner), 0..6).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            )),
        ]
    })
}

fn any_retry() -> impl Strategy<Value = Value> {
    let backoff = prop_oneof![
        Just(json!("fixed")),
        Just(json!("linear")),
        prop::collection::vec(1..1_000_u64, 1..4)
            .prop_map(|delays| delays.iter().map(|delay| json!(format!("{delay}ms"))).collect()),
    ];
    let on = (prop::collection::vec(100..600_u16, 0..3), prop::sample::subsequence(&ErrorKind::ALL[2..], 0..4))
        .prop_map(|(status, kinds)| json!({ "status": status, "kinds": kinds }));
    (prop::option::of(1..100_u32), prop::option::of(backoff), prop::option::of(0.0..=1.0), prop::option::of(on)).prop_map(
        |(max_attempts, backoff, jitter, on)| {
            json!({ "max_attempts": max_attempts, "backoff": backoff, "jitter": jitter, "on": on })
        },
    )
}

fn any_step() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![
        any_value().prop_map(|value| json!({ "http": { "url": "https://x", "json": value } })),
        any_value().prop_map(|value| json!({ "sql": { "connection": "c", "statement": "s", "params": [value] } })),
        "[a-z]{1,9}".prop_map(|name| json!({ "handler": { "name": name } })),
        (1..u64::from(u32::MAX)).prop_map(|millis| json!({ "sleep": { "for": format!("{millis}ms") } })),
        any::<[u8; 2]>().prop_map(|codes| json!({ "command": { "program": "x", "expect": codes } })),
        (1..u64::from(u32::MAX)).prop_map(|bytes| json!({ "http": { "url": "https://x", "response_max": bytes } })),
    ];
    let flags = (
        any::<Option<bool>>(),
        any::<Option<bool>>(),
        prop::option::of(Just(json!([]))),
        prop::option::of(any_retry()),
    );
    (kind, flags).prop_map(|(mut step, (always, cancelable, needs, retry))| {
        step["always"] = json!(always);
        step["cancelable"] = json!(cancelable);
        step["needs"] = json!(needs);
        if step.get("sleep").is_none() {
            step["retry"] = json!(retry);
        }
        step
    })
}

fn any_job() -> impl Strategy<Value = Value> {
    let heading = (any::<Option<bool>>(), prop::option::of(1..=10_u8), prop::option::of(r"[^\x00]{0,30}"));
    let limits = (prop::option::of(1..100_u32), prop::option::of(prop::sample::select(&WhenFull::ALL)), any_retry());
    (heading, limits, any_value(), prop::collection::vec(any_step(), 1..5)).prop_map(
        |((enabled, priority, description), (limit, when_full, retry), default, mut steps)| {
            for (index, step) in steps.iter_mut().enumerate() {
                step["id"] = json!(format!("s{index}"));
            }
            json!({
                "name": "a", "enabled": enabled, "priority": priority, "description": description, "retry": retry,
                "concurrency": limit.map(|limit| json!({ "limit": limit, "when_full": when_full })),
                "input": { "default": default }, "steps": steps,
            })
        },
    )
}

proptest! {
    #[test]
    fn no_value_makes_reading_panic(value in any_value(), place in 0..4) {
        let document = match place {
            0 => value,
            1 => job(json!({ "retry": value, "steps": value })),
            2 => job(json!({ "steps": [value] })),
            _ => job(json!({ "schedules": [value], "triggers": value, "concurrency": value, "unique": value })),
        };
        if let Err(problems) = JobDocument::from_value(document) {
            prop_assert!(!problems.is_empty() && problems.len() <= decode::PROBLEMS_MAX);
        }
    }

    #[test]
    fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(JobDocument::from_json(&bytes).is_err());
        prop_assert!(JobDocument::from_yaml(&bytes).is_err());
    }

    #[test]
    fn no_text_like_yaml_makes_reading_panic(text in r#"([-:?&*!|>{}\[\],#"'\\%@` \n\t]|name|a|<<|[0-9]|é|---|\.\.\.){0,60}"#) {
        prop_assert!(JobDocument::from_yaml(text.as_bytes()).is_err());
    }

    #[test]
    fn what_is_saved_is_what_was_read(document in any_job()) {
        // A template that is left open is the one fault these documents can have.
        let job = match JobDocument::from_value(document) {
            Ok(job) => job,
            Err(problems) => {
                prop_assert!(problems.iter().all(|problem| problem.code == "bad_template"), "{:?}", problems);
                return Ok(());
            }
        };
        let again = JobDocument::from_json(job.canonical_json().as_bytes());
        prop_assert_eq!(again.as_ref(), Ok(&job));
        prop_assert_eq!(again.map(|again| again.content_hash()), Ok(job.content_hash()));
    }
}

/// A secret that is written down is in every version, and the database and its copies.
#[test]
fn a_literal_secret_is_warned_of_with_its_place() {
    for (http, places) in [
        (json!({ "url": "https://ann:secret@a.example/x" }), vec!["steps[0].http.url"]),
        (json!({ "url": "https://ann@a.example/b:c@d" }), vec![]),
        (json!({ "url": "https://a.example/?a=b:c@d" }), vec![]),
        (json!({ "url": "https://ann:{{ secrets.a }}@a.example/" }), vec![]),
        (
            json!({ "url": "https://a.example/", "headers": { "authorization": "Bearer abc", "X-Other": "abc" } }),
            vec!["steps[0].http.headers.authorization"],
        ),
        (json!({ "url": "https://a.example/", "headers": { "Authorization": "Bearer {{ secrets.a }}" } }), vec![]),
    ] {
        let job = json!({ "name": "j", "steps": [{ "id": "s", "http": http }] });
        let warnings = JobDocument::from_value(job).unwrap().warnings();
        assert!(warnings.iter().all(|warning| warning.code == "secret_in_document"), "{warnings:?}");
        let found: Vec<&str> = warnings.iter().map(|warning| warning.path.as_str()).collect();
        assert_eq!(found, places, "{http}");
    }
}
