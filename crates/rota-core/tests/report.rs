//! What a worker is told of a report that it makes again: a table of what became
//! of the run against what the worker says.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use jiff::Timestamp;
use rota_core::{
    ids::{JobId, LaneId, Partition, RunId, TenantId, WorkerId},
    job::failure::{ErrorKind, Failure},
    job::retry::RetryRule,
    order::Priority,
    run::{Change, Fence, Hold, Labels, Lease, NewRun, Outcome, Report, Run, RunState, SettlePolicy, Source, Trigger},
    store::RunRecord,
};
use uuid::Uuid;

fn now() -> Timestamp {
    Timestamp::from_second(1_760_000_000).unwrap()
}

fn leased() -> Run {
    let new = NewRun {
        id: RunId(Uuid::from_u64_pair(0, 1)),
        tenant: TenantId(1),
        job: JobId(1),
        version: 1,
        lane: LaneId(1),
        part: Partition(3),
        priority: Priority::default(),
        ready_at: now(),
        expires_at: None,
        deadline_at: None,
        trigger: Trigger::plain(Source::Api),
        labels: Labels::new(),
        payload: None,
        slot: None,
        unique: None,
        once: None,
        parent: None,
        after: Vec::new(),
        follows: false,
        rearms: false,
        redrive: None,
    };
    let mut run = new.born(RunState::Queued, now());
    let claim = run.claim(WorkerId(Uuid::from_u64_pair(0, 7)), now()).unwrap();
    run.apply(&claim);
    assert!(matches!(run.state, RunState::Running { hold: Hold::Leased(_), .. }));
    run
}

/// The run after a change, as the store would show it.
fn record(mut run: Run, change: &Change) -> RunRecord {
    run.apply(change);
    let (failure, trail) = match change {
        Change::Finish(finish) => (finish.failure.clone(), finish.trail.clone()),
        Change::Move(next) => (None, next.trail.clone()),
    };
    RunRecord { run, started_at: None, failure, output: None, progress: None, trail: trail.into_iter().collect() }
}

fn policy(max_attempts: u32) -> SettlePolicy {
    let rule = RetryRule { max_attempts: Some(max_attempts), ..RetryRule::default() };
    SettlePolicy { retry: rule.policy(), losses_max: 3 }
}

fn failed(message: &str) -> Outcome {
    Outcome::Failed(Failure::new(ErrorKind::Handler, message))
}

fn settled(outcome: Outcome, attempts: u32) -> RunRecord {
    let run = leased();
    let change = run.settle(run.lease(), outcome, &policy(attempts), 0.5, now()).unwrap();
    record(run, &change)
}

/// Told "stale" of what stands, a worker believes its work was in vain; told
/// "applied" of what does not, it believes the opposite.
#[test]
fn a_report_stands_where_it_is_what_became_of_the_attempt() {
    let lease = leased().lease();
    let succeeded = || Outcome::Succeeded { output: None };
    let run = leased();
    let handed_back = record(run.clone(), &run.hand_back(run.lease(), true, now()).unwrap());
    let lost = record(run.clone(), &run.lose(3, now()).unwrap());
    let lost_for_good = record(run.clone(), &run.lose(1, now()).unwrap());
    let cases = [
        ("succeeded", settled(succeeded(), 1), [true, false, false, false]),
        ("failed for good", settled(failed("a"), 1), [false, true, false, false]),
        ("failed, to be tried again", settled(failed("a"), 3), [false, true, false, false]),
        ("cancelled", settled(Outcome::Cancelled, 1), [false, false, true, true]),
        ("handed back", handed_back, [false, false, false, true]),
        ("lost", lost, [false, false, false, false]),
        ("lost once too often", lost_for_good, [false, false, false, false]),
    ];
    for (what, record, stands) in cases {
        let reports = [
            Report::Outcome(succeeded()),
            Report::Outcome(failed("a")),
            Report::Outcome(Outcome::Cancelled),
            Report::HandedBack,
        ];
        for (report, stands) in reports.iter().zip(stands) {
            assert_eq!(report.stands(lease, &record), stands, "{what}: {report:?}");
        }
        let other = Report::Outcome(failed("b"));
        assert!(!other.stands(lease, &record), "{what}: another failure");
        let earlier = Lease { fence: Fence(lease.fence.0 - 1), ..lease };
        assert!(reports.iter().all(|report| !report.stands(earlier, &record)), "{what}: another attempt's");
    }
}
