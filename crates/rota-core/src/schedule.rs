//! The schedule document: when a job is to run, and under which policies.
//!
//! A [`ScheduleSpec`] is exactly what a person wrote, with the defaults filled
//! in; it is kept inside its job's version and round-trips through JSON.
//! [`ScheduleSpec::validate`] names everything that is wrong with it at once.
//!
//! It knows no instants: `fire` turns a valid document into them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    choice::choices,
    cron::{Cron, YEARS, last_instant},
    duration::Span,
    instant,
    problem::Problem,
    timing::Schedule,
};

/// Longest name of a schedule or a calendar, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Most labels on one schedule.
pub const LABELS_MAX: usize = 64;
/// Longest key of a label, in bytes.
pub const LABEL_KEY_BYTES_MAX: usize = 63;
/// Longest value of a label, in bytes.
pub const LABEL_VALUE_BYTES_MAX: usize = 256;
/// Most calendars that one schedule may consult.
pub const CALENDARS_MAX: usize = 16;
/// Shortest interval of `every` and `after_finish`; a tier may ask for more.
pub const INTERVAL_MIN: Span = Span::secs(1);

choices! {
    /// What becomes of a local time that a clock change leaves out.
    #[derive(Default)]
    Gap {
        /// Fire once, at the first valid instant after the gap.
        #[default]
        Shift = "shift",
        /// Do not fire.
        Skip = "skip",
    }
}

choices! {
    /// What becomes of a local time that a clock change repeats.
    #[derive(Default)]
    Fold {
        /// Fire at its first pass.
        #[default]
        First = "first",
        /// Fire at its second pass.
        Last = "last",
        /// Fire at both.
        Both = "both",
    }
}

choices! {
    /// What an instant does when an earlier run of the same schedule lives.
    #[derive(Default)]
    Overlap {
        /// The instant is a recorded skip.
        #[default]
        Skip = "skip",
        /// One run waits behind the running one; more are recorded skips.
        QueueOne = "queue_one",
        /// Every run waits its turn.
        QueueAll = "queue_all",
        /// The earlier runs are cancelled, then the new one starts.
        CancelRunning = "cancel_running",
        /// They run side by side.
        Allow = "allow",
    }
}

choices! {
    /// Which of the instants missed during a downtime fire afterwards.
    #[derive(Default)]
    CatchUpMode {
        /// The newest one inside the window.
        #[default]
        Latest = "latest",
        /// All inside the window, paced.
        All = "all",
        /// None: only an instant at most a minute late still fires.
        None = "none",
    }
}

/// How far back missed instants still count, and which of them fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CatchUp {
    pub window: Span,
    pub mode: CatchUpMode,
}

impl Default for CatchUp {
    fn default() -> Self {
        Self { window: Span::secs(365 * 86_400), mode: CatchUpMode::Latest }
    }
}

/// When a job is to run, as written.
///
/// Exactly one of `cron`, `every`, `after_finish` and `at` is set in a valid
/// document; [`ScheduleSpec::kind`] gives it as one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSpec {
    /// Unique among the schedules of its job.
    pub name: String,
    /// A cron expression: 5 to 7 fields, or an `@` word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// A fixed rate, counted from `anchor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// Where the rate of `every` is counted from; `starts_at` or else the Unix
    /// epoch when absent, so that an edit does not move the beat.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "instant::read_opt")]
    pub anchor: Option<Timestamp>,
    /// A fixed delay after the last run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_finish: Option<Span>,
    /// Once.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "instant::read_opt")]
    pub at: Option<Timestamp>,
    /// An IANA name; local times and calendar days are in it.
    pub timezone: String,
    pub gap: Gap,
    pub fold: Fold,
    /// No instant before this one.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "instant::read_opt")]
    pub starts_at: Option<Timestamp>,
    /// No instant after this one.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "instant::read_opt")]
    pub ends_at: Option<Timestamp>,
    /// The schedule ends when it has made this many runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_runs: Option<u64>,
    pub enabled: bool,
    pub overlap: Overlap,
    pub catch_up: CatchUp,
    /// Spreads starts over this long after each planned instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Span>,
    /// Names of calendars; an instant fires only on days all of them allow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calendars: Vec<String>,
    /// Input of the runs; null means the job's default.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub payload: Value,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            cron: None,
            every: None,
            anchor: None,
            after_finish: None,
            at: None,
            timezone: "UTC".to_owned(),
            gap: Gap::default(),
            fold: Fold::default(),
            starts_at: None,
            ends_at: None,
            max_runs: None,
            enabled: true,
            overlap: Overlap::default(),
            catch_up: CatchUp::default(),
            jitter: None,
            calendars: Vec::new(),
            payload: Value::Null,
            labels: BTreeMap::new(),
        }
    }
}

/// The one way in which a schedule finds its instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    Cron(&'a str),
    Every(Span),
    AfterFinish(Span),
    At(Timestamp),
}

impl ScheduleSpec {
    /// The kind, or nothing when the document names none or several.
    pub fn kind(&self) -> Option<Kind<'_>> {
        match (self.cron.as_deref(), self.every, self.after_finish, self.at) {
            (Some(expression), None, None, None) => Some(Kind::Cron(expression)),
            (None, Some(span), None, None) => Some(Kind::Every(span)),
            (None, None, Some(span), None) => Some(Kind::AfterFinish(span)),
            (None, None, None, Some(at)) => Some(Kind::At(at)),
            _ => None,
        }
    }

    /// Everything that is wrong with this document, each with its path in it.
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        self.check_kind(&mut problems);
        check_name("name", &self.name, &mut problems);
        self.check_cron(&mut problems);
        problems.extend(self.zone().err());
        self.check_bounds(&mut problems);
        self.check_labels(&mut problems);
        self.check_calendars(&mut problems);
        if problems.is_empty() {
            self.check_it_fires(&mut problems);
        }
        problems
    }

    pub(crate) fn kind_problem() -> Problem {
        Problem::new(
            "",
            "schedule_kind",
            "a schedule must have exactly one of `cron`, `every`, `after_finish` and `at`",
        )
    }

    fn check_cron(&self, problems: &mut Vec<Problem>) {
        let Some(text) = &self.cron else { return };
        match Cron::parse(text, self.name.as_bytes()) {
            Err(error) => problems.push(Problem::new("cron", error.code(), error.to_string())),
            Ok(cron) => {
                let shortest = self.jitter.and_then(|jitter| cron.shortest_interval().filter(|span| jitter >= *span));
                problems.extend(shortest.map(jitter_too_long));
            }
        }
    }

    /// A schedule with no instant between its bounds is a mistake, whatever
    /// the time is now.
    fn check_it_fires(&self, problems: &mut Vec<Problem>) {
        let path = match self.kind() {
            Some(Kind::Cron(_)) => "cron",
            Some(Kind::Every(_)) => "every",
            Some(Kind::At(_)) => "at",
            Some(Kind::AfterFinish(_)) | None => return,
        };
        match Schedule::build(self, self.name.as_bytes()) {
            Err(problem) => problems.push(problem),
            Ok(schedule) if schedule.next(Timestamp::MIN).is_none() => {
                let message = "the schedule never fires: there is no instant between `starts_at` and `ends_at` that its clock change policy allows";
                problems.push(Problem::new(path, "never_fires", message));
            }
            Ok(_) => {}
        }
    }

    fn check_kind(&self, problems: &mut Vec<Problem>) {
        if self.kind().is_none() {
            problems.push(Self::kind_problem());
        }
        for (path, span) in [("every", self.every), ("after_finish", self.after_finish)] {
            if span.is_some_and(|span| span < INTERVAL_MIN) {
                problems.push(Problem::new(path, "interval_too_short", "the shortest interval is 1s"));
            }
        }
        if self.anchor.is_some() && self.every.is_none() {
            problems.push(Problem::new("anchor", "anchor_without_every", "an anchor can be used only with `every`"));
        }
        if let (Some(jitter), Some(every)) = (self.jitter, self.every)
            && jitter >= every
        {
            problems.push(jitter_too_long(every));
        }
    }

    fn check_bounds(&self, problems: &mut Vec<Problem>) {
        if let (Some(starts), Some(ends)) = (self.starts_at, self.ends_at)
            && ends < starts
        {
            problems.push(Problem::new("ends_at", "ends_before_start", "the end is before `starts_at`"));
        }
        for (path, at) in [("at", self.at), ("anchor", self.anchor), ("starts_at", self.starts_at)] {
            if at.is_some_and(|at| at < Timestamp::UNIX_EPOCH || at >= last_instant()) {
                let message = format!("an instant must be in the years {} to {}", YEARS.start, YEARS.end - 1);
                problems.push(Problem::new(path, "instant_out_of_range", message));
            }
        }
        if self.max_runs == Some(0) {
            problems.push(Problem::new(
                "max_runs",
                "max_runs_zero",
                "must be at least 1; use `enabled: false` to stop the schedule",
            ));
        }
    }

    fn check_labels(&self, problems: &mut Vec<Problem>) {
        if self.labels.len() > LABELS_MAX {
            problems.push(Problem::new("labels", "too_many_labels", format!("may have at most {LABELS_MAX} labels")));
        }
        for (key, value) in self.labels.iter().take(LABELS_MAX) {
            if key.is_empty() || key.len() > LABEL_KEY_BYTES_MAX || key.chars().any(char::is_control) {
                let shown: String = key.escape_debug().take(LABEL_KEY_BYTES_MAX).collect();
                let message = format!("the key `{shown}` is not 1 to {LABEL_KEY_BYTES_MAX} bytes of plain text");
                problems.push(Problem::new("labels", "bad_label", message));
            } else if value.len() > LABEL_VALUE_BYTES_MAX {
                let message = format!("a value may have at most {LABEL_VALUE_BYTES_MAX} bytes");
                problems.push(Problem::new(format!("labels.{key}"), "bad_label", message));
            }
        }
    }

    fn check_calendars(&self, problems: &mut Vec<Problem>) {
        if self.calendars.len() > CALENDARS_MAX {
            let message = format!("may have at most {CALENDARS_MAX} calendars");
            problems.push(Problem::new("calendars", "too_many_calendars", message));
        }
        let mut seen = BTreeSet::new();
        for (index, name) in self.calendars.iter().enumerate().take(CALENDARS_MAX) {
            check_name(&format!("calendars[{index}]"), name, problems);
            if !seen.insert(name) {
                problems.push(Problem::new(format!("calendars[{index}]"), "duplicate", "appears twice"));
            }
        }
    }
}

fn jitter_too_long(interval: Span) -> Problem {
    Problem::new("jitter", "jitter_too_long", format!("the jitter must be shorter than the interval of {interval}"))
}

/// Names go into paths, metrics and file names, so they are plain.
pub(crate) fn check_name(path: &str, name: &str, problems: &mut Vec<Problem>) {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !starts_well || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
        let message = format!(
            "a name must have 1 to {NAME_BYTES_MAX} of the characters a-z, A-Z, 0-9, `-`, `_` and `.`, and start with a letter or digit"
        );
        problems.push(Problem::new(path, "bad_name", message));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: Value) -> ScheduleSpec {
        serde_json::from_value(value).unwrap()
    }

    fn codes(value: Value) -> Vec<(String, &'static str)> {
        parse(value).validate().into_iter().map(|problem| (problem.path, problem.code)).collect()
    }

    #[test]
    fn a_short_document_gets_the_defaults() {
        let spec = parse(json!({ "cron": "0 9 * * MON-FRI" }));
        assert_eq!(spec.validate(), []);
        assert_eq!((spec.name.as_str(), spec.timezone.as_str(), spec.enabled), ("default", "UTC", true));
        assert_eq!((spec.gap, spec.fold, spec.overlap), (Gap::Shift, Fold::First, Overlap::Skip));
        assert_eq!(spec.catch_up, CatchUp { window: "1y".parse().unwrap(), mode: CatchUpMode::Latest });
    }

    #[test]
    fn documents_round_trip_through_json() {
        for document in [
            json!({ "cron": "0 9 * * MON-FRI" }),
            json!({ "name": "full", "every": "90s", "anchor": "2025-01-01T00:00:00Z", "timezone": "Asia/Kathmandu",
                "gap": "skip", "fold": "both", "starts_at": "2025-01-01T00:00:00Z", "ends_at": "2026-01-01T00:00:00Z",
                "max_runs": 3, "enabled": false, "overlap": "cancel_running",
                "catch_up": { "window": "2d", "mode": "all" }, "jitter": "30s", "calendars": ["vn-holidays"],
                "payload": { "day": "{{ schedule.planned_at | date }}" }, "labels": { "scope": "user" } }),
            json!({ "after_finish": "10m", "catch_up": { "mode": "none" } }),
            json!({ "at": "2025-01-01T09:00:00+07:00" }),
        ] {
            let spec = parse(document);
            let text = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<ScheduleSpec>(&text).unwrap(), spec, "{text}");
        }
    }

    #[test]
    fn unknown_fields_and_words_are_refused() {
        for document in [
            json!({ "cron": "0 9 * * *", "timezon": "UTC" }),
            json!({ "every": "1m", "catch_up": { "windows": "1d" } }),
            json!({ "every": "1m", "overlap": "maybe" }),
            json!({ "every": "0s" }),
            json!({ "at": "tomorrow" }),
        ] {
            assert!(serde_json::from_value::<ScheduleSpec>(document.clone()).is_err(), "{document}");
        }
    }

    #[test]
    fn every_problem_is_named_with_its_path() {
        let problems = codes(json!({
            "name": "no spaces", "cron": "0 9 * * *", "every": "10ms", "jitter": "1s", "max_runs": 0,
            "starts_at": "2025-01-02T00:00:00Z", "ends_at": "2025-01-01T00:00:00Z",
            "calendars": ["a", "a", ""], "labels": { "": "x", "long": "x".repeat(257) },
        }));
        for expected in [
            ("", "schedule_kind"),
            ("every", "interval_too_short"),
            ("jitter", "jitter_too_long"),
            ("name", "bad_name"),
            ("ends_at", "ends_before_start"),
            ("max_runs", "max_runs_zero"),
            ("labels", "bad_label"),
            ("labels.long", "bad_label"),
            ("calendars[1]", "duplicate"),
            ("calendars[2]", "bad_name"),
        ] {
            assert!(
                problems.iter().any(|(path, code)| (path.as_str(), *code) == expected),
                "{expected:?}: {problems:?}"
            );
        }
    }

    /// What could never fire is refused on save, not found out by waiting.
    #[test]
    fn bad_cron_zones_and_empty_bounds_are_named() {
        for (document, path, code) in [
            (json!({ "cron": "0 25 * * *" }), "cron", "cron_out_of_range"),
            (json!({ "cron": "0 0 30 2 *" }), "cron", "cron_never_fires"),
            (json!({ "cron": "0 9 * * *", "timezone": "../etc/passwd" }), "timezone", "unknown_timezone"),
            (json!({ "every": "1m", "timezone": "" }), "timezone", "unknown_timezone"),
            (json!({ "cron": "*/5 * * * *", "jitter": "5m" }), "jitter", "jitter_too_long"),
            (json!({ "cron": "@every 30s", "jitter": "30s" }), "jitter", "jitter_too_long"),
            (json!({ "cron": "0 0 0 1 1 ? 2030", "ends_at": "2029-06-01T00:00:00Z" }), "cron", "never_fires"),
            (
                json!({ "cron": "0 30 2 9 3 ? 2025", "timezone": "America/New_York", "gap": "skip" }),
                "cron",
                "never_fires",
            ),
            (json!({ "at": "1969-01-02T00:00:00Z" }), "at", "instant_out_of_range"),
            (json!({ "at": "2025-01-02T00:00:00Z", "ends_at": "2025-01-01T00:00:00Z" }), "at", "never_fires"),
            (
                json!({ "every": "1d", "starts_at": "2025-01-01T01:00:00Z", "ends_at": "2025-01-01T02:00:00Z",
                    "anchor": "2025-01-01T00:00:00Z" }),
                "every",
                "never_fires",
            ),
        ] {
            assert_eq!(codes(document.clone()), [(path.to_owned(), code)], "{document}");
        }
        assert_eq!(codes(json!({ "cron": "*/5 * * * *", "jitter": "299s" })), []);
    }

    #[test]
    fn words_read_the_same_in_flags_and_documents() {
        for overlap in Overlap::ALL {
            assert_eq!(overlap.as_str().parse(), Ok(overlap));
            assert_eq!(serde_json::to_value(overlap).unwrap(), json!(overlap.as_str()));
        }
        assert!("Skip".parse::<Gap>().is_err());
    }
}
