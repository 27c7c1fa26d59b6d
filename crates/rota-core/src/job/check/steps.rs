//! Checks of the steps, and of how they hang together.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{STEPS_MAX, kinds, report::Report, retry};
use crate::job::{
    document::JobDocument,
    flow::{step_cycle, written},
    path::Shown,
    step::{Foreach, OnFailure, Step},
    template::has_tags,
};

pub const FOREACH_ITEMS_MAX: usize = 10_000;
pub const PARALLELISM_MAX: u32 = 1_000;

pub(super) fn check(job: &JobDocument, report: &mut Report) {
    report.filled("steps", job.steps.len(), STEPS_MAX);
    if job.steps.len() > STEPS_MAX {
        return;
    }
    let ids: Vec<_> = job.steps.iter().map(|step| step.id.as_str()).collect();
    report.no_duplicates_in("steps", "id", &ids);
    let known: BTreeSet<_> = ids.into_iter().collect();
    for (index, step) in job.steps.iter().enumerate() {
        let path = format!("steps[{index}]");
        report.identifier(&format!("{path}.id"), &step.id, "bad_step_id");
        check_references(&path, step, &known, report);
        check_policies(&path, step, report);
        check_retry(&path, step, job, report);
        kinds::check(&format!("{path}.{}", step.kind.name()), &step.kind, report);
    }
    if let Some(cycle) = step_cycle(&job.steps) {
        let at = job.steps.iter().position(|step| Some(&step.id.as_str()) == cycle.first()).unwrap_or_default();
        let message = format!("these steps wait for each other: {}", written(&cycle));
        report.add(format!("steps[{at}].needs"), "cycle", message);
    }
}

fn check_references(path: &str, step: &Step, known: &BTreeSet<&str>, report: &mut Report) {
    for (index, need) in step.needs.iter().flatten().enumerate() {
        if !known.contains(need.as_str()) {
            report.add(format!("{path}.needs[{index}]"), "unknown_step", unknown(need));
        }
    }
    report.no_duplicates(&format!("{path}.needs"), step.needs.as_deref().unwrap_or_default());
    if let Some(OnFailure::Run(rescuer)) = &step.on_failure
        && !known.contains(rescuer.as_str())
    {
        report.add(format!("{path}.on_failure"), "unknown_step", unknown(rescuer));
    }
}

fn unknown(step: &str) -> String {
    format!("there is no step `{}`", Shown(step))
}

fn check_policies(path: &str, step: &Step, report: &mut Report) {
    if let Some(condition) = &step.condition {
        report.expression(&format!("{path}.if"), condition);
    }
    if let Some(queue) = &step.queue {
        report.name(&format!("{path}.queue"), queue);
    }
    report.traits(&format!("{path}.requires"), step.requires.as_deref().unwrap_or_default());
    if let Some(foreach) = &step.foreach {
        check_foreach(&format!("{path}.foreach"), foreach, report);
    }
    if step.kind.parks() {
        check_parked(path, step, report);
    }
}

fn check_retry(path: &str, step: &Step, job: &JobDocument, report: &mut Report) {
    let Some(own) = &step.retry else { return };
    let path = format!("{path}.retry");
    retry::check(&path, own, report);
    // A cap that does not suit what the job says about the rest is found here.
    if own.max.is_some() != own.initial.is_some() && job.retry.is_some() {
        retry::check_cap(&path, &job.retry_rule_of(step), report);
    }
}

fn check_foreach(path: &str, foreach: &Foreach, report: &mut Report) {
    if let Some(parallelism) = foreach.parallelism {
        report.within(&format!("{path}.parallelism"), parallelism, 1..=PARALLELISM_MAX);
    }
    let items = format!("{path}.items");
    match &foreach.items {
        Value::Array(list) => report.at_most(&items, list.len(), FOREACH_ITEMS_MAX),
        Value::String(text) if has_tags(text) => {}
        _ => report.add(
            items,
            "wrong_type",
            "must be a list, or a template that yields one, as in {{ payload.accounts }}",
        ),
    }
}

/// A step that only parks is never executed, so rules for executing it are a mistake.
fn check_parked(path: &str, step: &Step, report: &mut Report) {
    for (field, is_written) in [
        ("timeout", step.timeout.is_some()),
        ("retry", step.retry.is_some()),
        ("queue", step.queue.is_some()),
        ("requires", step.requires.is_some()),
    ] {
        if is_written {
            let message = format!("has no effect, because no worker executes a `{}` step", step.kind.name());
            report.add(format!("{path}.{field}"), "no_meaning", message);
        }
    }
}
