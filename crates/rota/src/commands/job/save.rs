//! `rota job save`: a job made, or a new version of one that is there.
//!
//! Flags change what they name and leave the rest of the job as it is stored. A file
//! is the whole job. Whatever is stored and would go is shown before anything is
//! saved, and a schedule that would go is asked for: nobody misses an instant that
//! does not come. A job is saved over the version that was looked at and no other.

use rota_api::job::{Job, JobSaved};
use rota_client::Believes;
use rota_core::job::JobDocument;
use serde_json::Value;

use super::{
    SaveArgs,
    flags::{DocumentArgs, Given},
    write::{check_all, name_of, told},
};
use crate::{failure::Failure, printer::plain, session::Session};

/// Bytes of a removed value that are shown.
const SHOWN_MAX: usize = 100;

pub async fn save(session: &mut Session<'_>, args: &SaveArgs) -> Result<(), Failure> {
    if args.write.dry_run {
        return check(session, &args.write.document).await;
    }
    let drafts = drafts(session, &args.write.document).await?;
    let gone = shown(session, &drafts)?;
    let schedules: Vec<String> = gone.iter().filter(|gone| gone.is_schedule()).map(Gone::place).collect();
    if !schedules.is_empty() {
        let question = format!("Save, and remove {}?", schedules.join(", "));
        session.confirm(args.yes, &question)?;
    }
    let mut saved = Vec::new();
    for draft in &drafts {
        let path = ["jobs", name_of(&draft.document)?];
        saved.push(session.client.put::<JobSaved>(&path, &draft.document, draft.believes()).await?);
    }
    told(session, &saved, "saved")
}

/// Says what a save would do.
pub async fn check(session: &mut Session<'_>, args: &DocumentArgs) -> Result<(), Failure> {
    let drafts = drafts(session, args).await?;
    shown(session, &drafts)?;
    let documents: Vec<Value> = drafts.into_iter().map(|draft| draft.document).collect();
    check_all(session, &documents, Believes::Anything).await
}

/// Shows what goes.
fn shown(session: &mut Session<'_>, drafts: &[Draft]) -> Result<Vec<Gone>, Failure> {
    let gone: Vec<Gone> = drafts.iter().flat_map(Draft::gone).collect();
    for gone in &gone {
        session.printer.note(&gone.to_string())?;
    }
    Ok(gone)
}

async fn drafts(session: &Session<'_>, args: &DocumentArgs) -> Result<Vec<Draft>, Failure> {
    match args.given()? {
        Given::Flags(flags) => {
            let stored = stored(session, flags.name()?).await?;
            let document = match &stored {
                Some(job) => flags.change(&job.document)?,
                None => flags.document()?,
            };
            Ok(vec![Draft { document, stored }])
        }
        Given::Documents(documents) => {
            let mut drafts = Vec::new();
            for document in documents {
                let stored = stored(session, name_of(&document)?).await?;
                drafts.push(Draft { document, stored });
            }
            Ok(drafts)
        }
    }
}

async fn stored(session: &Session<'_>, name: &str) -> Result<Option<Job>, Failure> {
    match session.client.get::<Job>(&["jobs", name], &[]).await {
        Ok(job) => Ok(Some(job).filter(|job| !job.deleted && job.name == name)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A document to be saved, and what it is saved over.
struct Draft {
    document: Value,
    stored: Option<Job>,
}

impl Draft {
    fn believes(&self) -> Believes {
        self.stored.as_ref().map_or(Believes::Nothing, |job| Believes::Version(job.version))
    }

    /// What is stored and not in the document. One that cannot be read is the
    /// server's to refuse.
    fn gone(&self) -> Vec<Gone> {
        let (Some(job), Ok(document)) = (&self.stored, JobDocument::from_value(self.document.clone())) else {
            return Vec::new();
        };
        let Ok(new) = serde_json::from_str::<Value>(&document.canonical_json()) else { return Vec::new() };
        let mut found = Vec::new();
        removed("", &job.document, &new, &mut found);
        found.into_iter().map(|(path, value)| Gone { job: job.name.clone(), path, value }).collect()
    }
}

/// A part of a stored job that a save removes.
struct Gone {
    job: String,
    path: String,
    value: Value,
}

impl Gone {
    fn is_schedule(&self) -> bool {
        let name = self.path.strip_prefix("schedules[").and_then(|rest| rest.strip_suffix(']'));
        name.is_some_and(|name| !name.contains(']'))
    }

    fn place(&self) -> String {
        format!("{} of {}", self.path, self.job)
    }
}

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = plain(&self.value.to_string()).to_string();
        let cut = value.char_indices().nth(SHOWN_MAX).map_or(value.len(), |(at, _)| at);
        let more = if cut < value.len() { "…" } else { "" };
        write!(f, "{}: removes {}: {}{more}", self.job, plain(&self.path), &value[..cut])
    }
}

/// Collects what `old` has and `new` has not, by path. Schedules and steps are told
/// apart by name and id, other lists by their items.
fn removed(path: &str, old: &Value, new: &Value, found: &mut Vec<(String, Value)>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in old {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match new.get(key) {
                    Some(new) => removed(&path, value, new, found),
                    // Each of a list that is left out.
                    None if value.is_array() => removed(&path, value, &Value::Array(Vec::new()), found),
                    None => found.push((path, value.clone())),
                }
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            for (n, item) in old.iter().enumerate() {
                let name = name(item);
                let path = format!("{path}[{}]", name.map_or(n.to_string(), str::to_owned));
                match new.iter().find(|new| name.map_or(*new == item, |name| self::name(new) == Some(name))) {
                    Some(new) => removed(&path, item, new, found),
                    None => found.push((path, item.clone())),
                }
            }
        }
        _ => {}
    }
}

fn name(item: &Value) -> Option<&str> {
    item.get("name").or_else(|| item.get("id"))?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(old: &Value, new: &Value) -> Vec<String> {
        let mut found = Vec::new();
        removed("", old, new, &mut found);
        found.into_iter().map(|(path, _)| path).collect()
    }

    /// A calendar of a schedule is no schedule.
    #[test]
    fn only_a_whole_schedule_is_asked_for() {
        let gone = |path: &str| Gone { job: "a".into(), path: path.into(), value: Value::Null };
        assert!(gone("schedules[day]").is_schedule());
        assert!(!gone("schedules[day].calendars[0]").is_schedule());
        assert!(!gone("schedules[day].payload").is_schedule());
    }

    #[test]
    fn what_goes_is_found_by_its_place_and_what_changes_is_not() {
        let old = json!({
            "name": "a", "description": "x", "tags": ["one", "two"],
            "schedules": [{ "name": "day", "cron": "0 9 * * *" }, { "name": "night", "every": "1h" }],
            "steps": [{ "id": "run", "command": { "shell": "true", "env": { "A": "1" } } }],
        });
        let new = json!({
            "name": "a", "tags": ["two"],
            "schedules": [{ "name": "night", "every": "2h" }],
            "steps": [{ "id": "run", "command": { "shell": "false", "env": {} } }],
        });
        assert_eq!(paths(&old, &old), [""; 0]);
        let expected = ["description", "schedules[day]", "steps[run].command.env.A", "tags[0]"];
        let mut found = paths(&old, &new);
        found.sort();
        assert_eq!(found, expected);
        let without = json!({ "name": "a", "description": "x", "tags": ["one", "two"], "steps": old["steps"] });
        assert_eq!(paths(&old, &without), ["schedules[day]", "schedules[night]"], "a list that is left out");
    }
}
