//! Mistakes that are planted into what a storm has left: a checker that is blind to one
//! of them would have found nothing in the storm either.

use jiff::SignedDuration;
use rota_core::{
    fire::{SkipRange, SkipReason},
    ids::RunId,
    run::{RunState, Verdict},
    store::{RunRecord, SkipRecord},
};

use super::{
    check::Case,
    ledger::{Answer, Callback},
    people::{Cancel, Diary, Window},
    world::Seat,
};

/// Changes what is known, and says what must be found then.
type Mistake = fn(&mut Evidence) -> &'static str;

const MISTAKES: [(&str, Mistake); 9] = [
    ("a run that was never made", |evidence| {
        let lost = evidence.fired();
        evidence.runs.retain(|record| record.run.id != lost.run.id);
        "made no run and is no recorded skip"
    }),
    ("an instant that fired twice", |evidence| {
        let mut twin = evidence.fired();
        twin.run.id = RunId(uuid::Uuid::now_v7());
        evidence.runs.push(twin);
        "ended 2 times"
    }),
    ("an instant that fired and was skipped", |evidence| {
        let record = evidence.fired();
        let (schedule, at) = (record.run.trigger.schedule.unwrap(), record.run.trigger.planned_at.unwrap());
        let range = SkipRange { from: at, to: at, count: 1, reason: SkipReason::Paused };
        evidence.skips.push(SkipRecord { schedule, range });
        "ended 2 times"
    }),
    ("a run that was left behind", |evidence| {
        let left = evidence.fired();
        let record = evidence.runs.iter_mut().find(|record| record.run.id == left.run.id).unwrap();
        record.run.state = RunState::Queued;
        "has not ended"
    }),
    ("a success that nobody heard of", |evidence| {
        let unheard = evidence.fired().run.id.to_string();
        evidence.callbacks.retain(|call| call.run != unheard);
        "was never heard"
    }),
    ("a start before its time", |evidence| {
        let record = evidence.fired();
        let (run, planned_at) = (record.run.id.to_string(), record.run.trigger.planned_at.unwrap());
        let early = planned_at - SignedDuration::from_mins(1);
        evidence.call(run, 1, early);
        "was executed before"
    }),
    ("an attempt that was made twice", |evidence| {
        let call = evidence.callbacks.iter().find(|call| call.attempt == 1 && call.answer == Answer::Good).cloned();
        let Callback { run, at, .. } = call.unwrap();
        evidence.callbacks.retain(|call| call.run != run);
        evidence
            .runs
            .iter_mut()
            .filter(|record| record.run.id.to_string() == run)
            .for_each(|record| record.trail.clear());
        evidence.call(run.clone(), 1, at);
        evidence.call(run, 1, at + SignedDuration::from_millis(1));
        "was made twice, and nobody was hurt"
    }),
    ("a trigger that made nothing", |evidence| {
        let run = evidence.diary.triggers[0].run.clone();
        evidence.runs.retain(|record| record.run.id.to_string() != run);
        "was answered with run"
    }),
    ("a start after a cancel", |evidence| {
        let left = evidence.fired();
        let record = evidence.runs.iter_mut().find(|record| record.run.id == left.run.id).unwrap();
        let RunState::Finished { at, .. } = record.run.state else { unreachable!("it has fired") };
        record.run.state = RunState::Finished { at, verdict: Verdict::Cancelled };
        let (run, window) = (record.run.id.to_string(), Window { asked: at, answered: at, echoes: false });
        evidence.diary.cancels.push(Cancel { run: run.clone(), window, answer: "cancelled".to_owned() });
        evidence.call(run, 2, at + SignedDuration::from_secs(1));
        "started after that"
    }),
];

/// A copy of all that is known, with nobody hurt.
struct Evidence {
    diary: Diary,
    runs: Vec<RunRecord>,
    skips: Vec<SkipRecord>,
    callbacks: Vec<Callback>,
}

impl Evidence {
    /// A run of a schedule that nobody touches, from the midst of the storm.
    fn fired(&self) -> RunRecord {
        let steady: Vec<i64> =
            self.diary.jobs.iter().filter(|job| job.steady).flat_map(|job| job.schedules.values().copied()).collect();
        let mut fired: Vec<&RunRecord> = self
            .runs
            .iter()
            .filter(|record| record.run.trigger.schedule.is_some_and(|schedule| steady.contains(&schedule.0)))
            .filter(|record| matches!(record.run.state, RunState::Finished { verdict: Verdict::Succeeded, .. }))
            .collect();
        fired.sort_by_key(|record| record.run.trigger.planned_at);
        fired[fired.len() / 2].clone()
    }

    fn call(&mut self, run: String, attempt: u32, at: jiff::Timestamp) {
        let by = Some(Seat::Node(0));
        self.callbacks.push(Callback { at, by, run, attempt, fence: None, answer: Answer::Good });
    }
}

/// Plants each mistake by itself into a case in which nothing is wrong.
pub fn every_mistake_is_found(case: &Case<'_>) {
    for (name, mistake) in MISTAKES {
        let (runs, skips, callbacks) = (case.runs.to_vec(), case.skips.to_vec(), case.callbacks.to_vec());
        let mut evidence = Evidence { diary: case.diary.clone(), runs, skips, callbacks };
        let wanted = mistake(&mut evidence);
        let Evidence { diary, runs, skips, callbacks } = &evidence;
        let found = Case { diary, runs, skips, callbacks, hurts: &[], ..*case }.find().violations;
        assert!(found.iter().any(|told| told.contains(wanted)), "the checker is blind to {name}: {found:?}");
    }
}
