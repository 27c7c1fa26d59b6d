//! Holds what was planned, asked for and called against each other. It knows nothing of
//! how Rota works: plans come from the core's own arithmetic, all else from what people
//! wrote down, what the ledger heard and what the store holds in the end.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use rota_core::{
    fire::{SkipRange, SkipReason},
    ids::ScheduleId,
    run::{RunState, Source, TrailKind, Verdict},
    schedule::ScheduleSpec,
    store::{RunRecord, SkipRecord},
    timing::Schedule,
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    ledger::{Answer, Callback},
    people::{Diary, ECHO, Era, JobLife, Pause},
    world::{Hurt, NODES, Seat, World},
};

/// So long after somebody was hurt its leases may still run out.
const AFTERMATH: SignedDuration = SignedDuration::from_secs(10);
/// A run that has lost so many workers is rightly given up.
const LOSSES_MAX: u16 = 3;

/// Everything that is known in the end.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    pub diary: &'a Diary,
    pub runs: &'a [RunRecord],
    pub skips: &'a [SkipRecord],
    pub callbacks: &'a [Callback],
    pub hurts: &'a [Hurt],
    /// Everything planned until then was to be decided before schedules were turned off.
    pub calm_at: Timestamp,
    pub several_nodes: bool,
    /// How far the clocks of nodes may be off.
    pub clocks: SignedDuration,
}

/// What was counted and what is wrong.
#[derive(Default)]
pub struct Finding {
    pub planned: usize,
    pub fired: usize,
    pub skipped: BTreeMap<&'static str, usize>,
    pub given_up: usize,
    pub repeated: usize,
    pub latest: SignedDuration,
    pub violations: Vec<String>,
}

/// What an instant came to.
#[derive(Clone, Debug)]
enum End<'a> {
    Run(&'a RunRecord),
    Skip(SkipReason),
}

impl<'a> Case<'a> {
    pub fn find(&'a self) -> Finding {
        let mut finding = Finding::default();
        let mut runs: BTreeMap<String, &RunRecord> = BTreeMap::new();
        for record in self.runs {
            if runs.insert(record.run.id.to_string(), record).is_some() {
                finding.violations.push(format!("run {} is in the store twice", record.run.id));
            }
        }
        self.every_instant_has_one_end(&mut finding);
        self.every_run_ended_as_it_may(&runs, &mut finding);
        self.every_trigger_made_one_run(&runs, &mut finding);
        self.nothing_was_made_again_twice(&mut finding);
        self.cancelled_runs_stay_cancelled(&runs, &mut finding);
        self.every_callback_was_due(&runs, &mut finding);
        self.every_success_was_heard(&runs, &mut finding);
        finding
    }

    fn every_instant_has_one_end(&'a self, finding: &mut Finding) {
        let mut fired: BTreeMap<ScheduleId, Vec<&RunRecord>> = BTreeMap::new();
        for record in self.runs {
            if let Some(schedule) =
                record.run.trigger.schedule.filter(|_| record.run.trigger.source == Source::Schedule)
            {
                fired.entry(schedule).or_default().push(record);
            }
        }
        for job in &self.diary.jobs {
            for (name, id) in &job.schedules {
                let schedule = ScheduleId(*id);
                let runs = fired.remove(&schedule).unwrap_or_default();
                Plan::of(job, name, schedule, self.clocks).hold_against(self, &runs, finding);
            }
        }
        for (schedule, runs) in fired {
            finding.violations.push(format!("{} runs are of schedule {schedule}, which nobody saved", runs.len()));
        }
    }

    fn skips(&self, schedule: ScheduleId) -> impl Iterator<Item = &SkipRecord> {
        self.skips.iter().filter(move |record| record.schedule == schedule)
    }

    fn every_run_ended_as_it_may(&self, runs: &BTreeMap<String, &RunRecord>, finding: &mut Finding) {
        let maybe = self.diary.maybe_cancelled.iter().map(String::as_str);
        let cancelled: BTreeSet<&str> =
            self.diary.cancels.iter().map(|cancel| cancel.run.as_str()).chain(maybe).collect();
        let deleted: BTreeSet<i64> = self.diary.jobs.iter().filter(|job| job.deleted).map(|job| job.id).collect();
        let fails: BTreeSet<i64> =
            self.diary.jobs.iter().filter(|job| job.name.starts_with("fails")).map(|job| job.id).collect();
        for (id, record) in runs {
            let run = &record.run;
            let RunState::Finished { verdict, .. } = run.state else {
                finding.violations.push(format!("run {id} has not ended: {:?}\n{record:?}", run.state));
                continue;
            };
            let fine = match verdict {
                Verdict::Succeeded => true,
                Verdict::Cancelled => cancelled.contains(id.as_str()) || deleted.contains(&run.job.0),
                Verdict::Dead => run.losses >= LOSSES_MAX || fails.contains(&run.job.0),
                Verdict::Failed | Verdict::TimedOut | Verdict::Expired | Verdict::Skipped => false,
            };
            if verdict == Verdict::Dead && run.losses >= LOSSES_MAX {
                finding.given_up += 1;
            }
            if !fine {
                finding
                    .violations
                    .push(format!("run {id} ended as {verdict}, for no reason that is known\n{record:?}"));
            }
        }
    }

    fn every_trigger_made_one_run(&self, runs: &BTreeMap<String, &RunRecord>, finding: &mut Finding) {
        let mut by_key: BTreeMap<&str, Vec<&RunRecord>> = BTreeMap::new();
        let asked_for = |record: &&&RunRecord| matches!(record.run.trigger.source, Source::Api | Source::Manual);
        for record in runs.values().filter(asked_for) {
            by_key.entry(label(record, "key").unwrap_or_default()).or_default().push(record);
        }
        for trigger in &self.diary.triggers {
            let made = by_key.remove(trigger.key.as_str()).unwrap_or_default();
            let ids: Vec<String> = made.iter().map(|record| record.run.id.to_string()).collect();
            if ids != [trigger.run.clone()] {
                let (key, run) = (&trigger.key, &trigger.run);
                finding.violations.push(format!("the trigger {key} was answered with run {run}, and made {ids:?}"));
            }
        }
        for (key, made) in by_key {
            let ids: Vec<String> = made.iter().map(|record| record.run.id.to_string()).collect();
            finding.violations.push(format!("nobody got an answer to trigger `{key}`, which made {ids:?}"));
        }
    }

    fn nothing_was_made_again_twice(&self, finding: &mut Finding) {
        let mut made: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for record in self.runs {
            if let Some(of) = record.run.trigger.redrives() {
                made.entry(of.to_string()).or_default().push(record.run.id.to_string());
            }
        }
        for (of, made) in made.iter().filter(|(_, made)| made.len() > 1) {
            finding.violations.push(format!("run {of} was made again more than once: {made:?}"));
        }
        for retry in &self.diary.retries {
            let found = made.get(&retry.of).is_some_and(|made| made.contains(&retry.made));
            if !found {
                finding
                    .violations
                    .push(format!("the retry of {} was answered with {}, which is not there", retry.of, retry.made));
            }
            if retry.of_deleted {
                finding.violations.push(format!("run {} of a deleted job was made again as {}", retry.of, retry.made));
            }
        }
    }

    /// A cancel that was granted is not followed by a start; one that was passed on leaves
    /// its worker the attempt it had.
    fn cancelled_runs_stay_cancelled(&self, runs: &BTreeMap<String, &RunRecord>, finding: &mut Finding) {
        for cancel in &self.diary.cancels {
            let Some(record) = runs.get(&cancel.run) else {
                finding.violations.push(format!("run {} was cancelled and is not in the store", cancel.run));
                continue;
            };
            let granted = cancel.answer == "cancelled";
            let RunState::Finished { verdict, .. } = record.run.state else { continue };
            let fine = verdict == Verdict::Cancelled || (!granted && verdict == Verdict::Succeeded);
            if !fine {
                let (run, answer) = (&cancel.run, &cancel.answer);
                finding
                    .violations
                    .push(format!("the cancel of run {run} was answered `{answer}`, and it ended as {verdict}"));
            }
            let later = |call: &&Callback| call.run == cancel.run && call.at > cancel.window.answered;
            let later: Vec<&Callback> = self.callbacks.iter().filter(later).collect();
            let allowed = usize::from(!granted);
            let excused = later.iter().any(|call| self.was_hurt(call.by, record.run.created_at, call.at));
            if later.len() > allowed && !excused {
                finding
                    .violations
                    .push(format!("run {} was cancelled ({cancel:?}) and started after that: {later:?}", cancel.run));
            }
        }
    }

    fn every_callback_was_due(&'a self, runs: &BTreeMap<String, &RunRecord>, finding: &mut Finding) {
        let mut of_run: BTreeMap<&str, Vec<&Callback>> = BTreeMap::new();
        self.callbacks.iter().for_each(|call| of_run.entry(call.run.as_str()).or_default().push(call));
        let later: BTreeMap<&str, Timestamp> =
            self.diary.triggers.iter().filter_map(|made| Some((made.run.as_str(), made.run_at?))).collect();
        for (run, mut calls) in of_run {
            calls.sort_by_key(|call| call.at);
            let Some(record) = runs.get(run) else {
                finding.violations.push(format!("run {run} was executed and is not in the store: {calls:?}"));
                continue;
            };
            let not_before = record.run.trigger.planned_at.or(later.get(run).copied());
            if let Some(early) = calls.iter().find(|call| not_before.is_some_and(|at| call.at + self.clocks < at)) {
                finding.violations.push(format!("run {run} was executed before {not_before:?}: {early:?}"));
            }
            self.repeats_have_a_reason(record, &calls, finding);
        }
    }

    /// An attempt is made again only where somebody was lost, and never under one lease.
    fn repeats_have_a_reason(&self, record: &RunRecord, calls: &[&Callback], finding: &mut Finding) {
        let lost = record
            .trail
            .iter()
            .any(|entry| matches!(entry.kind, TrailKind::WorkerLost { .. } | TrailKind::HandedBack { .. }));
        for (n, call) in calls.iter().enumerate() {
            let before = calls[..n].iter().rev();
            let Some(first) = before.clone().find(|before| before.attempt == call.attempt) else { continue };
            finding.repeated += 1;
            if call.fence.is_some() && before.clone().any(|before| before.fence == call.fence) {
                finding
                    .violations
                    .push(format!("run {} was executed twice under one lease: {first:?}, {call:?}", record.run.id));
            } else if !lost && !self.was_hurt(first.by, first.at, call.at) {
                finding.violations.push(format!(
                    "attempt {} of run {} was made twice, and nobody was hurt: {first:?}, {call:?}\n{record:?}",
                    call.attempt, record.run.id
                ));
            }
        }
    }

    fn every_success_was_heard(&self, runs: &BTreeMap<String, &RunRecord>, finding: &mut Finding) {
        let good = |call: &&Callback| call.answer == Answer::Good;
        let heard: BTreeSet<(&str, u32)> =
            self.callbacks.iter().filter(good).map(|call| (call.run.as_str(), call.attempt)).collect();
        for (id, record) in runs {
            let RunState::Finished { verdict: Verdict::Succeeded, .. } = record.run.state else { continue };
            let attempt = u32::from(record.run.attempts_used) + 1;
            if !heard.contains(&(id.as_str(), attempt)) {
                finding
                    .violations
                    .push(format!("run {id} succeeded, and its attempt {attempt} was never heard\n{record:?}"));
            }
        }
    }

    /// Whether somebody, or whom they depend on, was hurt or had just been in this time.
    /// Nobody knows who called where that process was gone when it was looked for.
    fn was_hurt(&self, whom: Option<Seat>, from: Timestamp, to: Timestamp) -> bool {
        let Some(whom) = whom else { return true };
        let mut seats = vec![whom, Seat::Database];
        if let Seat::Worker(worker) = whom {
            let nodes = if self.several_nodes { (0..NODES).collect() } else { vec![World::home(worker)] };
            seats.extend(nodes.into_iter().map(Seat::Node));
        }
        self.hurts.iter().any(|hurt| {
            let over = hurt.to.map_or(Timestamp::MAX, |to| to + AFTERMATH);
            seats.contains(&hurt.whom) && hurt.from <= to && over >= from
        })
    }
}

fn label<'a>(record: &'a RunRecord, name: &str) -> Option<&'a str> {
    record.run.labels.iter().find(|(key, _)| key.as_str() == name).map(|(_, value)| value.as_str())
}

/// What a schedule planned, as far as people know what it was.
struct Plan<'a> {
    job: &'a JobLife,
    name: &'a str,
    schedule: ScheduleId,
    /// Each definition with from when to when it may have been in force, and was for certain.
    eras: Vec<Definition>,
}

struct Definition {
    plans: Option<Schedule>,
    may: (Timestamp, Timestamp),
    must: (Timestamp, Timestamp),
}

impl Definition {
    fn instants(&self, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let Some(schedule) = &self.plans else { return Vec::new() };
        let mut found = Vec::new();
        let mut at = before(from);
        while let Some(next) = schedule.next(at).filter(|next| *next <= to) {
            found.push(next);
            at = next;
        }
        found
    }

    /// The next instant that it may have planned.
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let next = self.plans.as_ref()?.next(after.max(before(self.may.0)))?;
        (next <= self.may.1).then_some(next)
    }

    /// The instants after this one that may have been its first: nobody knows when between
    /// the request and the answer it came into force.
    fn firsts(&self, after: Timestamp) -> Vec<Timestamp> {
        let mut firsts: Vec<Timestamp> = Vec::new();
        while let Some(next) = self.next(firsts.last().copied().unwrap_or(after)) {
            firsts.push(next);
            if next >= self.must.0 {
                break;
            }
        }
        firsts
    }
}

fn before(at: Timestamp) -> Timestamp {
    at - SignedDuration::from_micros(1)
}

impl<'a> Plan<'a> {
    fn of(job: &'a JobLife, name: &'a str, schedule: ScheduleId, clocks: SignedDuration) -> Self {
        let compiled =
            |spec: &Value| Schedule::compile(&ScheduleSpec::deserialize(spec).unwrap(), &schedule.seed()).unwrap();
        let definition = |(n, era): (usize, &Era)| {
            let next = job.eras.get(n + 1).map(|next| next.since);
            let end = job.eras.last().unwrap().since.answered;
            Definition {
                plans: era.schedules.get(name).map(compiled),
                may: (era.since.asked - clocks, next.map_or(end, |next| next.answered) + clocks),
                must: (era.since.answered + clocks, next.map_or(end, |next| next.asked) - clocks),
            }
        };
        Self { job, name, schedule, eras: job.eras.iter().enumerate().map(definition).collect() }
    }

    fn told(&self, at: Timestamp) -> String {
        format!("{at} of schedule {} ({} of job {} `{}`)", self.schedule, self.name, self.job.id, self.job.name)
    }

    fn hold_against(&self, case: &'a Case<'a>, runs: &[&'a RunRecord], finding: &mut Finding) {
        let ends = self.ends(case, runs, finding);
        let within = |span: &dyn Fn(&Definition) -> (Timestamp, Timestamp)| -> BTreeSet<Timestamp> {
            self.eras.iter().flat_map(|era| era.instants(span(era).0, span(era).1)).collect()
        };
        let (may, must) = (within(&|era| era.may), within(&|era| era.must));
        for at in &must {
            if !ends.contains_key(at) {
                finding.violations.push(format!("{} made no run and is no recorded skip", self.told(*at)));
            }
        }
        finding.planned += must.len();
        for (at, ends) in &ends {
            if ends.len() > 1 {
                finding.violations.push(format!("{} ended {} times: {ends:?}", self.told(*at), ends.len()));
            } else if !may.contains(at) {
                finding.violations.push(format!("{} was not planned: {ends:?}", self.told(*at)));
            }
            self.judge(case, *at, &ends[0], finding);
        }
    }

    fn ends(
        &self,
        case: &'a Case<'a>,
        runs: &[&'a RunRecord],
        finding: &mut Finding,
    ) -> BTreeMap<Timestamp, Vec<End<'a>>> {
        let mut ends: BTreeMap<Timestamp, Vec<End<'a>>> = BTreeMap::new();
        for record in runs {
            let Some(at) = record.run.trigger.planned_at else { continue };
            ends.entry(at).or_default().push(End::Run(record));
        }
        for SkipRecord { range, .. } in case.skips(self.schedule) {
            let Some(instants) = self.meant(*range) else {
                finding
                    .violations
                    .push(format!("no plan of {} has so many instants: {range:?}", self.told(range.from)));
                continue;
            };
            for at in instants {
                ends.entry(at).or_default().push(End::Skip(range.reason));
            }
        }
        ends
    }

    /// The instants of a recorded stretch, which may reach over several definitions.
    fn meant(&self, range: SkipRange) -> Option<Vec<Timestamp>> {
        let mut hopeless = BTreeSet::new();
        (0..self.eras.len()).find_map(|era| {
            let first = self.eras[era].next(before(range.from)).filter(|first| *first == range.from)?;
            self.walk(era, first, range.count, range.to, &mut hopeless)
        })
    }

    /// So many instants from one of an era to another, with no way back to an earlier era.
    fn walk(
        &self,
        era: usize,
        at: Timestamp,
        count: u64,
        to: Timestamp,
        hopeless: &mut BTreeSet<(usize, Timestamp, u64)>,
    ) -> Option<Vec<Timestamp>> {
        if count == 1 && at == to {
            return Some(vec![at]);
        }
        if count <= 1 || at >= to || !hopeless.insert((era, at, count)) {
            return None;
        }
        let within = self.eras[era].next(at).map(|at| (era, at)).into_iter();
        let beyond = (era + 1..self.eras.len())
            .flat_map(|later| self.eras[later].firsts(at).into_iter().map(move |at| (later, at)));
        let mut ways = within.chain(beyond);
        let rest = ways.find_map(|(era, at)| self.walk(era, at, count - 1, to, hopeless))?;
        Some([vec![at], rest].concat())
    }

    fn judge(&self, case: &Case<'_>, at: Timestamp, end: &End<'_>, finding: &mut Finding) {
        let pauses: Vec<&Pause> = case.diary.pauses.iter().filter(|pause| self.is_of(pause)).collect();
        match end {
            End::Run(record) => {
                finding.fired += 1;
                finding.latest = finding.latest.max(at.duration_until(record.run.created_at));
                if let Some(pause) = surely_paused(&pauses, at, case.clocks) {
                    finding.violations.push(format!(
                        "{} made run {} although it was paused: {pause:?}",
                        self.told(at),
                        record.run.id
                    ));
                }
            }
            End::Skip(reason) => {
                *finding.skipped.entry(reason.as_str()).or_default() += 1;
                if !self.may_skip(&pauses, at, *reason, case) {
                    finding.violations.push(format!(
                        "{} was skipped as {} for no reason; pauses: {pauses:?}",
                        self.told(at),
                        reason.as_str()
                    ));
                }
            }
        }
    }

    fn is_of(&self, pause: &Pause) -> bool {
        pause.job == self.job.id && pause.schedule.is_none_or(|schedule| schedule == self.schedule.0)
    }

    fn may_skip(&self, pauses: &[&Pause], at: Timestamp, reason: SkipReason, case: &Case<'_>) -> bool {
        let is_loose = self
            .job
            .eras
            .iter()
            .any(|era| era.schedules.get(self.name).is_some_and(|spec| spec.get("overlap").is_none()));
        match reason {
            SkipReason::Overlap | SkipReason::CatchUp => is_loose,
            SkipReason::Paused => pauses
                .iter()
                .any(|pause| pause.window.asked <= at + case.clocks && pause.until.is_some_and(|until| at < until)),
            // Whoever is not touched owes nothing when it is turned off in the end.
            SkipReason::Edited => at > case.calm_at || (!self.job.steady && self.is_followed(at)),
            SkipReason::Deleted => self.job.deleted && self.is_followed(at),
            SkipReason::Calendar | SkipReason::Quota | SkipReason::Unique | SkipReason::Ended => false,
        }
    }

    /// A later edit may have found it owed.
    fn is_followed(&self, at: Timestamp) -> bool {
        self.job.eras.iter().skip(1).any(|era| at <= era.since.answered)
    }
}

/// The pause that an instant lies in whatever became of late tries, if there is one.
fn surely_paused<'a>(pauses: &[&'a Pause], at: Timestamp, clocks: SignedDuration) -> Option<&'a Pause> {
    let sure = |n: &usize| {
        let pause = pauses[*n];
        let Some(until) = pause.until else { return false };
        let next =
            pauses[*n + 1..].iter().filter(|next| next.schedule == pause.schedule).map(|next| next.window.asked).min();
        let unclear = pauses[..=*n].iter().any(|one| one.window.echoes && at < one.window.asked + ECHO);
        !unclear
            && pause.window.answered + clocks <= at
            && at + clocks < until
            && next.is_none_or(|next| at + clocks < next)
    };
    (0..pauses.len()).find(sure).map(|n| pauses[n])
}
