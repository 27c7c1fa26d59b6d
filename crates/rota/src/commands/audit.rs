//! `rota audit`: who changed what, when, and how it was before and after.

use std::{collections::BTreeSet, io};

use clap::Args;
use jiff::Timestamp;
use rota_api::access::AuditEntry;
use rota_client::Query;
use serde_json::Value;

use crate::{
    clock,
    failure::Failure,
    printer::Printer,
    session::{ListArgs, Session, SessionArgs, block_on},
    table::Table,
    times,
};

#[derive(Args)]
#[command(
    after_help = "The table shows which fields changed; -o json and -o yaml print the complete state before and after."
)]
pub struct AuditArgs {
    #[command(flatten)]
    session: SessionArgs,
    /// Only changes made by this caller, such as ann or token:ci
    #[arg(long)]
    who: Option<String>,
    /// Only this action, such as job.save
    #[arg(long)]
    action: Option<String>,
    /// Only changes of this object, such as job/12
    #[arg(long)]
    object: Option<String>,
    /// Only at this time or later: an instant, or 2h for two hours ago
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

pub fn run(args: &AuditArgs, printer: &mut Printer) -> Result<(), Failure> {
    let mut session = Session::open(&args.session, printer)?;
    let now = clock::now();
    let mut query = Query::new();
    query.extend(args.who.clone().map(|who| ("who", who)));
    query.extend(args.action.clone().map(|action| ("action", action)));
    query.extend(args.object.clone().map(|object| ("object", object)));
    query.extend(times::of_flag("from", args.from.as_deref(), now)?.map(|at| ("from", at.to_string())));
    query.extend(times::of_flag("to", args.to.as_deref(), now)?.map(|at| ("to", at.to_string())));
    block_on(session.list(&args.list, &["audit"], &query, drawn))
}

fn drawn(entries: &[AuditEntry], now: Timestamp, printer: &mut Printer) -> io::Result<()> {
    if entries.is_empty() {
        return printer.note("nothing was changed");
    }
    let mut table = Table::new(&["WHEN", "WHO", "ACTION", "OBJECT", "CHANGED"]).narrowed(&["CHANGED"], "CHANGED");
    for entry in entries {
        table.row([
            times::from_now(entry.at, now).into(),
            entry.who.clone().into(),
            entry.action.clone().into(),
            entry.object.clone().into(),
            changed(entry.before.as_ref(), entry.after.as_ref()).into(),
        ]);
    }
    printer.table(table)
}

/// The fields that differ, with what they became. Of what was made or is gone only
/// that: the rest would be all of it.
fn changed(before: Option<&Value>, after: Option<&Value>) -> String {
    match (before, after) {
        (None, None) => String::new(),
        (None, Some(_)) => "created".to_owned(),
        (Some(_), None) => "gone".to_owned(),
        (Some(before), Some(after)) => {
            let mut parts = Vec::new();
            differences("", before, after, &mut parts);
            if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
        }
    }
}

fn differences(path: &str, before: &Value, after: &Value, parts: &mut Vec<String>) {
    if before == after {
        return;
    }
    let (Some(old), Some(new)) = (before.as_object(), after.as_object()) else {
        let name = if path.is_empty() { String::new() } else { format!("{path}: ") };
        parts.push(format!("{name}{} → {}", brief(before), brief(after)));
        return;
    };
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let value = |of: &serde_json::Map<String, Value>| of.get(name).cloned().unwrap_or(Value::Null);
        differences(&path, &value(old), &value(new), parts);
    }
}

/// A value in a few characters.
fn brief(value: &Value) -> String {
    const LONG: usize = 24;
    let text = match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.chars().count() <= LONG { text } else { format!("{}…", text.chars().take(LONG - 1).collect::<String>()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_changed_is_told_by_its_fields() {
        for (before, after, told) in [
            (None, None, ""),
            (None, Some(json!({ "tier": "free" })), "created"),
            (Some(json!({ "tier": "free" })), None, "gone"),
            (Some(json!({ "a": 1 })), Some(json!({ "a": 1 })), "nothing"),
            (
                Some(json!({ "tier": "free", "name": "x", "quotas": { "jobs": 1, "rate": 2 } })),
                Some(json!({ "tier": "pro", "name": "x", "quotas": { "jobs": 5, "rate": 2 } })),
                "quotas.jobs: 1 → 5, tier: free → pro",
            ),
            (Some(json!({ "note": "a" })), Some(json!({})), "note: a → none"),
            (Some(json!([1])), Some(json!(["a text that is longer than a line"])), "[1] → [\"a text that is longer…"),
        ] {
            assert_eq!(changed(before.as_ref(), after.as_ref()), told);
        }
    }
}
