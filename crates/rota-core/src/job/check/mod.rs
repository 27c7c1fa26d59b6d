//! Check: what is wrong with a document whose every field has the right type.
//!
//! All problems are named in one answer, each with its path and a stable code,
//! so that one look is enough to repair a document. Every list and text has a
//! bound, so that a document cannot grow into a danger for those who read it.
//!
//! Not checked here: what needs other objects of the tenant (jobs, channels,
//! connections, calendars, quotas), whether the default payload satisfies the
//! schema, and whether template expressions parse. Others hold those parts.

mod kinds;
mod report;
mod retry;
mod steps;

use std::ops::RangeInclusive;

use self::report::Report;
pub use self::{
    kinds::{ENTRIES_MAX, ROWS_MAX, STATEMENT_BYTES_MAX, URL_BYTES_MAX},
    retry::{ATTEMPTS_MAX, DELAYS_MAX},
    steps::{FOREACH_ITEMS_MAX, PARALLELISM_MAX},
};
use super::{
    document::{Concurrency, JobDocument, Notify, Triggers, Unique},
    path::Shown,
    template::{TEMPLATES_MAX, open_tag, templates},
};
use crate::{duration::Span, ids::reads_as_number, problem::Problem, slot::WhenFull};

pub const STEPS_MAX: usize = 500;
pub const SCHEDULES_MAX: usize = 100;
pub const TAGS_MAX: usize = 50;
pub const TRAITS_MAX: usize = 20;
pub const VARS_MAX: usize = 200;
pub const NOTIFY_MAX: usize = 20;
pub const AFTER_JOBS_MAX: usize = 50;
pub const UNIQUE_PATHS_MAX: usize = 16;
pub const DESCRIPTION_BYTES_MAX: usize = 10_000;
pub const KEY_BYTES_MAX: usize = 1_000;
pub const CONCURRENCY_MAX: u32 = 100_000;
pub const QUEUED_MAX: u32 = 1_000_000;
pub const RATE_RUNS_MAX: u32 = 1_000_000;
pub const REDRIVES_MAX: u16 = 10;
/// Sooner, it would be one more attempt; later, its history may be gone.
pub const REDRIVE_AFTER: RangeInclusive<Span> = Span::secs(1)..=Span::secs(30 * 86_400);

/// Everything that is wrong with a job.
pub fn check(job: &JobDocument) -> Vec<Problem> {
    let mut report = Report::default();
    check_heading(job, &mut report);
    check_limits(job, &mut report);
    check_schedules(job, &mut report);
    if let Some(triggers) = &job.triggers {
        check_triggers(&job.name, triggers, &mut report);
    }
    steps::check(job, &mut report);
    check_notify(&job.notify, &mut report);
    check_templates(job, &mut report);
    report.finish()
}

/// Places where a document may hold a secret as it is. It is right and can be saved, and
/// somebody should know: versions of a document are kept and shown to all who may read jobs.
pub(super) fn warnings(job: &JobDocument) -> Vec<Problem> {
    let places =
        job.steps.iter().enumerate().flat_map(|(index, step)| {
            kinds::secrets_written(&format!("steps[{index}].{}", step.kind.name()), &step.kind)
        });
    let message = "this is a secret in the document, which everybody who may read jobs can read in all of its \
                   versions; use `auth` with a reference such as {{ secrets.name }}, or {{ payload.name }} as long as \
                   there are no secrets";
    places.map(|place| Problem::new(place, "secret_in_document", message)).collect()
}

fn check_heading(job: &JobDocument, report: &mut Report) {
    report.name("name", &job.name);
    if reads_as_number(&job.name) {
        let message = format!(
            "`{0}` reads as a number, which would be taken for the id of a job; add a letter, as in job-{0}",
            Shown(&job.name)
        );
        report.add("name", "bad_name", message);
    }
    if let Some(description) = &job.description {
        report.text("description", description, DESCRIPTION_BYTES_MAX);
    }
    report.names("tags", &job.tags, TAGS_MAX);
    if let Some(queue) = &job.queue {
        report.name("queue", queue);
    }
    report.traits("requires", &job.requires);
    if let Some(priority) = job.priority {
        report.within("priority", priority, 1..=10);
    }
    if let Some(schema) = job.input.as_ref().and_then(|input| input.schema.as_ref())
        && !(schema.is_object() || schema.is_boolean())
    {
        report.add("input.schema", "wrong_type", "a JSON Schema must be a map, true or false");
    }
    report.at_most("vars", job.vars.len(), VARS_MAX);
    for name in job.vars.keys() {
        report.identifier("vars", name, "bad_var_name");
    }
}

fn check_limits(job: &JobDocument, report: &mut Report) {
    if let Some(rule) = &job.retry {
        retry::check("retry", rule, report);
    }
    if let Some(dead) = &job.dead {
        report.within("dead.redrive_after", dead.redrive_after, REDRIVE_AFTER);
        report.within("dead.times", dead.times(), 1..=REDRIVES_MAX);
    }
    if let Some(concurrency) = &job.concurrency {
        check_concurrency(concurrency, report);
    }
    if let Some(limit) = &job.rate_limit {
        report.within("rate_limit.runs", limit.runs, 1..=RATE_RUNS_MAX);
        if let Some(key) = &limit.key {
            report.filled_text("rate_limit.key", key, KEY_BYTES_MAX);
        }
    }
    if let Some(unique) = &job.unique {
        check_unique(unique, report);
    }
}

fn check_concurrency(concurrency: &Concurrency, report: &mut Report) {
    report.within("concurrency.limit", concurrency.limit, 1..=CONCURRENCY_MAX);
    if let Some(key) = &concurrency.key {
        report.filled_text("concurrency.key", key, KEY_BYTES_MAX);
    }
    if let Some(queued) = concurrency.max_queued {
        report.within("concurrency.max_queued", queued, 1..=QUEUED_MAX);
        if concurrency.when_full() != WhenFull::Queue {
            let message = format!("has no effect with `when_full: {}`, because no runs wait", concurrency.when_full());
            report.add("concurrency.max_queued", "no_meaning", message);
        }
    }
}

fn check_unique(unique: &Unique, report: &mut Report) {
    report.filled("unique.by", unique.by.len(), UNIQUE_PATHS_MAX);
    report.no_duplicates("unique.by", &unique.by);
    for (index, path) in unique.by.iter().enumerate() {
        if !is_run_path(path) {
            let message = "a path must start with `payload` or `labels`, followed by names, as in payload.account";
            report.add(format!("unique.by[{index}]"), "bad_reference", message);
        }
    }
}

/// Whether a text is a path into what a run is given.
fn is_run_path(path: &str) -> bool {
    let mut parts = path.split('.');
    let root = parts.next();
    let plain = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
    path.len() <= KEY_BYTES_MAX && matches!(root, Some("payload" | "labels")) && parts.all(plain)
}

fn check_schedules(job: &JobDocument, report: &mut Report) {
    report.at_most("schedules", job.schedules.len(), SCHEDULES_MAX);
    let names: Vec<_> = job.schedules.iter().map(|schedule| schedule.name.as_str()).collect();
    report.no_duplicates_in("schedules", "name", &names);
    for (index, schedule) in job.schedules.iter().enumerate() {
        for problem in schedule.validate() {
            report.push(problem.within(&format!("schedules[{index}]")));
        }
    }
}

fn check_triggers(job: &str, triggers: &Triggers, report: &mut Report) {
    if let Some(webhook) = &triggers.webhook {
        report.secret("triggers.webhook.secret", &webhook.secret);
    }
    let Some(after) = &triggers.after else { return };
    report.filled("triggers.after.jobs", after.jobs.len(), AFTER_JOBS_MAX);
    report.no_duplicates("triggers.after.jobs", &after.jobs);
    for (index, name) in after.jobs.iter().enumerate() {
        let path = format!("triggers.after.jobs[{index}]");
        report.name(&path, name);
        if name == job {
            report.add(path, "cycle", "a job cannot start after itself; use a schedule with `after_finish`");
        }
    }
}

fn check_notify(notify: &[Notify], report: &mut Report) {
    report.at_most("notify", notify.len(), NOTIFY_MAX);
    for (index, notice) in notify.iter().enumerate() {
        report.name(&format!("notify[{index}].channel"), &notice.channel);
        let path = format!("notify[{index}].on");
        report.filled(&path, notice.on.len(), NOTIFY_MAX);
        report.no_duplicates(&path, &notice.on);
    }
}

fn check_templates(job: &JobDocument, report: &mut Report) {
    let templates = templates(job);
    report.at_most("", templates.len(), TEMPLATES_MAX);
    for template in templates {
        if let Some(tag) = open_tag(&template.text) {
            report.add(template.path, "bad_template", format!("a `{tag}` is not closed"));
        }
    }
}
