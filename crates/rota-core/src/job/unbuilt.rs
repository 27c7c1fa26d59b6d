//! What a document can say and nobody executes yet.
//!
//! Documents are read and checked as a whole from the start, so that they need not be
//! written anew when a feature comes. Until then a job that relies on it is refused
//! when it is saved: it would be kept, look well, and never do what it says. Documents
//! that are stored already are read all the same. Each line here goes with its feature.

use super::{
    document::JobDocument,
    kinds::{Http, HttpAuth, Sleep},
    step::{Step, StepKind},
    template::templates,
};
use crate::problem::Problem;

pub const CODE: &str = "not_supported_yet";

/// Everything in a job that cannot be executed yet.
pub fn unbuilt(job: &JobDocument) -> Vec<Problem> {
    let mut found = Vec::new();
    if job.steps.len() > 1 {
        found.push(problem("steps", "jobs of several steps are not supported yet; use several jobs that start after each other (`triggers.after`)"));
    }
    for (index, step) in job.steps.iter().enumerate() {
        let at = format!("steps[{index}]");
        found.extend(in_step(step).into_iter().map(|problem| problem.within(&at)));
    }
    if job.triggers.as_ref().is_some_and(|triggers| triggers.webhook.is_some()) {
        found.push(problem(
            "triggers.webhook",
            "webhooks are not supported yet; call `POST /jobs/{job}/trigger` with a token",
        ));
    }
    if !job.notify.is_empty() {
        found.push(problem("notify", "notifications are not supported yet; use the event feed or the metrics"));
    }
    found.extend(secrets(job));
    found
}

fn problem(path: &str, message: &str) -> Problem {
    Problem::new(path, CODE, message)
}

fn in_step(step: &Step) -> Vec<Problem> {
    let mut found = Vec::new();
    if step.foreach.is_some() {
        found.push(problem("foreach", "`foreach` is not supported yet; trigger one run per item"));
    }
    if step.condition.is_some() {
        found.push(problem("if", "`if` is not supported yet"));
    }
    if step.on_failure.is_some() {
        found.push(problem(
            "on_failure",
            "`on_failure` is not supported yet: a failed step fails its run; start another job with `triggers.after`",
        ));
    }
    found.extend(in_kind(&step.kind).into_iter().map(|problem| problem.within(step.kind.name())));
    found
}

fn in_kind(kind: &StepKind) -> Vec<Problem> {
    match kind {
        StepKind::Command(_) | StepKind::Handler(_) | StepKind::Sleep(Sleep::For(_)) => Vec::new(),
        StepKind::Http(http) => in_http(http),
        StepKind::Sleep(Sleep::Until(_)) => vec![problem("until", "`until` is not supported yet; use `for`")],
        StepKind::Sql(_)
        | StepKind::File(_)
        | StepKind::Sftp(_)
        | StepKind::Job(_)
        | StepKind::Approval(_)
        | StepKind::Wait(_) => {
            let message = format!("`{}` steps are not supported yet; use `http`, `command` or `handler`", kind.name());
            vec![problem("", &message)]
        }
    }
}

fn in_http(http: &Http) -> Vec<Problem> {
    let mut found = Vec::new();
    if matches!(http.auth, Some(HttpAuth::OAuth2(_))) {
        found.push(problem("auth.oauth2", "OAuth2 is not supported yet; use `bearer` or `basic`"));
    }
    if http.callback.is_some() {
        found.push(problem("callback", "callbacks are not supported yet"));
    }
    found
}

/// References to secrets: there is none to be had, so that every attempt would fail.
fn secrets(job: &JobDocument) -> impl Iterator<Item = Problem> {
    let refers = |text: &str| text.split("{{").skip(1).any(|tag| tag.trim_start().starts_with("secrets."));
    templates(job)
        .into_iter()
        .filter(move |template| refers(&template.text))
        .map(|template| problem(&template.path, "secrets are not supported yet; pass the value in the run's payload"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(step: &Value, rest: &Value) -> Vec<String> {
        let mut job = json!({ "name": "a", "steps": [step] });
        for (field, value) in rest.as_object().into_iter().flatten() {
            job[field] = value.clone();
        }
        let job: JobDocument = serde_json::from_value(job).unwrap();
        unbuilt(&job).into_iter().map(|problem| problem.path).collect()
    }

    #[test]
    fn what_is_executed_is_let_through() {
        for step in [
            json!({ "id": "a", "http": { "url": "https://a.example", "auth": { "bearer": "{{ payload.secrets.a }}" } } }),
            json!({ "id": "a", "command": { "shell": "true" } }),
            json!({ "id": "a", "handler": { "name": "h" }, "needs": [], "always": true }),
            json!({ "id": "a", "sleep": { "for": "1s" } }),
        ] {
            assert_eq!(found(&step, &json!({ "triggers": { "after": { "jobs": ["b"] } } })), [""; 0], "{step}");
        }
    }

    #[test]
    fn what_nobody_executes_is_named_with_its_place() {
        let http = |more: Value| {
            let mut step = json!({ "id": "a", "http": { "url": "https://a.example" } });
            for (field, value) in more.as_object().into_iter().flatten() {
                step["http"][field] = value.clone();
            }
            step
        };
        let oauth2 = json!({ "token_url": "https://a.example", "client_id": "a", "client_secret": "{{ secrets.a }}" });
        let sftp =
            json!({ "host": "a", "username": "a", "password": "{{ vars.a }}", "host_key": "SHA256:a", "delete": "/a" });
        for (step, rest, paths) in [
            (
                json!({ "id": "a", "sql": { "connection": "c", "statement": "SELECT 1" } }),
                json!({}),
                vec!["steps[0].sql"],
            ),
            (json!({ "id": "a", "sftp": sftp }), json!({}), vec!["steps[0].sftp"]),
            (json!({ "id": "a", "approval": {} }), json!({}), vec!["steps[0].approval"]),
            (json!({ "id": "a", "wait": {} }), json!({}), vec!["steps[0].wait"]),
            (json!({ "id": "a", "job": { "name": "b" } }), json!({}), vec!["steps[0].job"]),
            (json!({ "id": "a", "sleep": { "until": "{{ payload.at }}" } }), json!({}), vec!["steps[0].sleep.until"]),
            (http(json!({ "callback": { "within": "1h" } })), json!({}), vec!["steps[0].http.callback"]),
            (
                http(json!({ "auth": { "oauth2": oauth2 } })),
                json!({}),
                vec!["steps[0].http.auth.oauth2", "steps[0].http.auth.oauth2.client_secret"],
            ),
            (
                json!({ "id": "a", "handler": { "name": "h" }, "if": "payload.a", "foreach": { "items": "payload.b" } }),
                json!({}),
                vec!["steps[0].foreach", "steps[0].if"],
            ),
            (
                http(json!({})),
                json!({ "notify": [{ "on": ["dead"], "channel": "c" }], "triggers": { "webhook": { "secret": "{{ vars.a }}" } } }),
                vec!["triggers.webhook", "notify"],
            ),
        ] {
            assert_eq!(found(&step, &rest), paths, "{step}");
        }
        let two =
            json!({ "steps": [{ "id": "a", "sleep": { "for": "1s" } }, { "id": "b", "sleep": { "for": "1s" } }] });
        assert_eq!(found(&json!({}), &two), ["steps"]);
    }
}
