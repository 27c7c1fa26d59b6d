//! The jobs of a life: something for every write of a node to be about.
//!
//! Each execution writes into the ledger that it began and that it ended, with
//! the schedule, the planned instant, its lease and the process that started
//! it. Nothing of that passes through Rota.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
};

use jiff::{SignedDuration, Timestamp};

use crate::node::Place;

/// Schedules of which each instant must be executed to its end, and how many
/// seconds lie between two.
pub const STRICT: [(&str, i64); 5] = [("quick", 2), ("fails-once", 3), ("limited", 3), ("claimed", 3), ("long", 3)];

/// Writes the documents of the `life`-th node. `firing` is turned off in the
/// end, so that everything can drain.
pub fn documents(place: &Place, life: usize, firing: bool) {
    let ledger = place.text("ledger");
    let mut jobs = String::new();
    job(&mut jobs, &ledger, "quick", "", &strict("quick", firing), "");
    let retry = "retry: { max_attempts: 3, backoff: fixed, initial: 100ms, jitter: 0, on: { kinds: [exit_code] } }\n";
    job(&mut jobs, &ledger, "fails-once", retry, &strict("fails-once", firing), "[ $ROTA_ATTEMPT -gt 1 ] || exit 1; ");
    let limits = "concurrency: { limit: 1, key: '{{ payload.name }}' }\nrate_limit: { runs: 1000, per: 1s }\n";
    job(&mut jobs, &ledger, "limited", limits, &strict("limited", firing), "");
    // A lease in writing, and long enough to be extended.
    job(&mut jobs, &ledger, "claimed", "requires: [gpu]\n", &strict("claimed", firing), "sleep 0.9; ");
    // Long enough to be marked.
    job(&mut jobs, &ledger, "long", "", &strict("long", firing), "sleep 1.2; ");
    let replaced = format!(
        "  - {{ name: replaced, every: 3s, overlap: cancel_running, enabled: {firing}, payload: {{ name: replaced }} }}\n"
    );
    job(&mut jobs, &ledger, "replaced", "", &replaced, "sleep 3.4; ");
    let again = format!("  - {{ name: again, after_finish: 3s, enabled: {firing}, payload: {{ name: again }} }}\n");
    job(&mut jobs, &ledger, "again", "", &again, "");
    // A new schedule and a new lane with every life.
    let new = format!("  - {{ name: new-{life}, every: 3s, enabled: {firing}, payload: {{ name: new-{life} }} }}\n");
    job(&mut jobs, &ledger, "new", &format!("queue: queue-{life}\n"), &new, "");
    write!(
        jobs,
        "name: parked\nschedules: [{{ name: parked, every: 3s, enabled: {firing} }}]\nsteps: [{{ id: s, sleep: {{ for: 300ms }} }}]\n"
    )
    .unwrap();
    place.write("jobs/all.yaml", &jobs);
}

fn strict(name: &str, firing: bool) -> String {
    let (_, seconds) = STRICT.iter().find(|(known, _)| *known == name).unwrap();
    format!(
        "  - {{ name: {name}, every: {seconds}s, overlap: allow, catch_up: {{ mode: all }}, enabled: {firing}, payload: {{ name: {name} }} }}\n"
    )
}

fn job(jobs: &mut String, ledger: &str, name: &str, policy: &str, schedules: &str, work: &str) {
    let line = "$NAME $PLANNED $ROTA_LEASE $ROTA_ATTEMPT $PPID";
    write!(
        jobs,
        "\
name: {name}
{policy}schedules:
{schedules}steps:
  - id: write
    command:
      shell: 'echo \"begin {line}\" >> {ledger}; {work}echo \"end {line}\" >> {ledger}; echo said'
      env: {{ NAME: '{{{{ payload.name }}}}', PLANNED: '{{{{ run.planned_at }}}}' }}
---
"
    )
    .unwrap();
}

/// A line that a job wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub began: bool,
    pub schedule: String,
    pub planned_at: Timestamp,
    pub run: String,
    pub fence: i32,
    pub attempt: u32,
    pub process: u32,
}

impl Line {
    fn read(line: &str) -> Self {
        let fields: Vec<&str> = line.split(' ').collect();
        let [what, schedule, planned_at, lease, attempt, process] = fields[..] else { panic!("`{line}` is no line") };
        let (run, fence) = lease.rsplit_once('.').unwrap();
        Self {
            began: what == "begin",
            schedule: schedule.to_owned(),
            planned_at: planned_at.parse().unwrap(),
            run: run.to_owned(),
            fence: fence.parse().unwrap(),
            attempt: attempt.parse().unwrap(),
            process: process.parse().unwrap(),
        }
    }
}

/// What the jobs wrote, in the order in which they did.
#[derive(Default)]
pub struct Ledger {
    pub lines: Vec<Line>,
    /// How much of the file that was.
    bytes: u64,
    begun: BTreeMap<String, BTreeSet<Timestamp>>,
    ended: BTreeMap<String, BTreeSet<Timestamp>>,
}

impl Ledger {
    /// Reads what was written since.
    pub fn read_on(&mut self, place: &Place) {
        let Ok(mut file) = File::open(place.path("ledger")) else { return };
        let mut text = String::new();
        file.seek(SeekFrom::Start(self.bytes)).unwrap();
        file.read_to_string(&mut text).unwrap();
        // The last line may be on its way.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        self.bytes += whole.len() as u64;
        for line in whole.lines().map(Line::read) {
            let instants = if line.began { &mut self.begun } else { &mut self.ended };
            instants.entry(line.schedule.clone()).or_default().insert(line.planned_at);
            self.lines.push(line);
        }
    }

    /// The instants of a schedule whose execution began.
    fn begun(&self, schedule: &str) -> BTreeSet<Timestamp> {
        self.begun.get(schedule).cloned().unwrap_or_default()
    }

    /// The instants of a schedule whose execution ended.
    pub fn ended(&self, schedule: &str) -> BTreeSet<Timestamp> {
        self.ended.get(schedule).cloned().unwrap_or_default()
    }

    /// The latest instant of each strict schedule that anything is known of.
    pub fn last(&self) -> BTreeMap<&'static str, Timestamp> {
        let last = |name| Some((name, self.begun(name).last().copied()?));
        STRICT.iter().filter_map(|(name, _)| last(*name)).collect()
    }

    /// Whether each instant of the strict schedules, from the first to one
    /// later than `last`, was executed to its end.
    pub fn has_caught_up_with(&self, last: &BTreeMap<&'static str, Timestamp>) -> bool {
        STRICT.iter().all(|(name, seconds)| {
            let ended = self.ended(name);
            let Some(mut at) = ended.first().copied() else { return false };
            while ended.contains(&at) {
                at += SignedDuration::from_secs(*seconds);
            }
            // `at` is the first that is missing.
            last.get(name).is_none_or(|last| at > *last + SignedDuration::from_secs(*seconds))
        })
    }

    /// Whether the last execution that takes seconds was begun by this process, by right of
    /// its partition: it is no second try, and has not ended.
    pub fn is_long_in_flight(&self, process: u32) -> bool {
        let last = self.lines.iter().rev().find(|line| line.schedule == "replaced");
        last.is_some_and(|line| line.began && line.process == process && line.fence == 0)
    }

    /// An execution is under way in a claimed lane, and one that is marked.
    pub fn is_busy(&self) -> bool {
        ["claimed", "long"].iter().all(|name| {
            let ended = self.ended(name);
            self.begun(name).iter().any(|at| !ended.contains(at))
        })
    }
}
