use rota_core::{
    ids::{JobId, LaneId},
    order::Priority,
    ports::Seeded,
    run::{Labels, NewRun, Source, Trigger},
};

use super::*;
use rota_core::store::Epoch;

fn run() -> Run {
    let now = Timestamp::from_second(1_767_607_200).unwrap();
    let new = NewRun {
        id: RunId::new(&Seeded::new(1), now),
        tenant: TenantId(1),
        job: JobId(1),
        version: 1,
        lane: LaneId(1),
        part: Partition(7),
        priority: Priority::default(),
        ready_at: now,
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
    new.born(RunState::Queued, now)
}

fn runs() -> (LocalRuns, Territory) {
    let territory = Territory::default();
    territory.take(&[(Partition(7), Epoch(3))], Timestamp::UNIX_EPOCH);
    (LocalRuns::new(100), territory)
}

fn offer(runs: &LocalRuns, run: &Run) -> usize {
    let territory = Territory::default();
    territory.take(&[(run.part, Epoch(3))], Timestamp::UNIX_EPOCH);
    offer_asked_in(runs, run, 1, &territory)
}

fn offer_asked_in(runs: &LocalRuns, run: &Run, generation: u64, territory: &Territory) -> usize {
    runs.offer([ReadyRun { run: run.clone(), suspect: false }], generation, territory)
}

/// Between the question and its answer another node may have held the partition, begun the
/// run and given the partition back: the run's fence is the same, and it is over.
#[test]
fn what_was_asked_for_before_a_partition_was_taken_is_not_offered() {
    let (runs, territory) = runs();
    let (run, asked_in) = (run(), territory.generation());
    territory.lose(&[run.part]);
    assert_eq!(offer_asked_in(&runs, &run, asked_in, &territory), 0, "the partition is another node's");
    territory.take(&[(run.part, Epoch(5))], Timestamp::UNIX_EPOCH);
    assert_eq!(offer_asked_in(&runs, &run, asked_in, &territory), 0, "and came back");
    runs.read(&window_of(&runs, &run), vec![ReadyRun { run: run.clone(), suspect: false }], asked_in, &territory);
    assert_eq!(runs.take(10, &territory, |_| true).len(), 0);
    let reads_it_again = runs.wanted().iter().any(|window| window.pair == pair_of(&run));
    assert!(reads_it_again, "it may as well be ready still");
    assert_eq!(offer_asked_in(&runs, &run, territory.generation(), &territory), 1);
}

/// The stretch of a run's pair that is worth reading.
fn window_of(runs: &LocalRuns, run: &Run) -> Window {
    runs.doubt([pair_of(run)]);
    runs.wanted().into_iter().find(|window| window.pair == pair_of(run)).unwrap()
}

/// A look that began before a settlement still sees the run as ready.
#[test]
fn what_was_settled_a_moment_ago_is_not_offered_again() {
    let (runs, territory) = runs();
    let run = run();
    assert_eq!(offer(&runs, &run), 1);
    let taken = runs.take(10, &territory, |_| true);
    assert_eq!((taken.len(), taken[0].by), (1, By::Owner(Epoch(3))));
    assert_eq!(offer(&runs, &run), 0, "it is in flight");
    assert!(!runs.settled([run.lease()]));
    assert_eq!(offer(&runs, &run), 0, "it was settled");
    let retried = Run { fence: run.fence.next(), ..run };
    assert_eq!(offer(&runs, &retried), 1, "under a new lease it is another try");
}

#[test]
fn what_was_not_settled_may_be_offered_again() {
    let (runs, territory) = runs();
    let run = run();
    offer(&runs, &run);
    runs.take(10, &territory, |_| true);
    assert!(!runs.drop_in_flight([run.lease()]));
    assert_eq!(offer(&runs, &run), 1);
}

/// Another node took the partition, and this one has yet to hear of it: what it would
/// do again is the other's to do.
#[test]
fn what_the_store_refused_to_settle_is_not_tried_again_by_the_same_right() {
    let (runs, territory) = runs();
    let run = run();
    offer(&runs, &run);
    let taken = runs.take(10, &territory, |_| true);
    runs.refuse(taken.iter().map(|ready| (ready.run.lease(), ready.by)));
    assert!(!runs.drop_in_flight([run.lease()]));
    offer(&runs, &run);
    assert_eq!(runs.take(10, &territory, |_| true).len(), 0);
    assert!(!runs.add(&run, By::Owner(Epoch(3))));
    territory.take(&[(Partition(7), Epoch(4))], Timestamp::UNIX_EPOCH);
    offer(&runs, &run);
    assert_eq!(runs.take(10, &territory, |_| true).len(), 1, "the partition is its own again");
}

/// A run of a partition that went, or is about to go, is its next owner's.
#[test]
fn nothing_is_taken_from_a_partition_that_is_lost_or_leaving() {
    for leaving in [false, true] {
        let (runs, territory) = runs();
        offer(&runs, &run());
        if leaving {
            territory.set_leaving(&[Partition(7)], true);
        } else {
            territory.lose(&[Partition(7)]);
        }
        assert_eq!(runs.take(10, &territory, |_| true).len(), 0);
    }
}

/// What is begun after its partition's attempts were asked for would be executed here
/// and by the next owner.
#[test]
fn nothing_is_begun_in_a_partition_that_is_lost_or_leaving() {
    let parts = [Partition(7)];
    for leaving in [false, true] {
        let (runs, territory) = runs();
        offer(&runs, &run());
        let taken = runs.take(10, &territory, |_| true);
        if leaving {
            territory.set_leaving(&parts, true);
        } else {
            territory.lose(&parts);
        }
        assert_eq!(runs.begin_handover(&parts, 10), [], "it has not begun");
        assert_eq!(runs.begin(taken.iter(), &territory, Timestamp::UNIX_EPOCH), [Begin::Gone]);
        assert_eq!(runs.in_flight(taken[0].run.id), None);
    }
}

/// An attempt whose lease was asked for is not lost with its partition: the answer tells.
#[test]
fn an_attempt_is_asked_for_once_and_kept_by_its_lease() {
    let (runs, territory) = runs();
    let (parts, run) = ([Partition(7)], run());
    offer(&runs, &run);
    let taken = runs.take(10, &territory, |_| true);
    assert_eq!(runs.handovers([run.lease()].into_iter()), []);
    assert_eq!(runs.begin(taken.iter(), &territory, Timestamp::UNIX_EPOCH), [Begin::Go]);
    let asked = OwnedAttempt { lease: run.lease(), part: parts[0], epoch: Epoch(3) };
    assert_eq!((runs.begin_handover(&parts, 10), runs.begin_handover(&parts, 10)), (vec![asked], vec![]));
    assert_eq!(runs.forget_parts(&parts), []);
    runs.set_handover([run.lease()], Handover::No);
    assert_eq!(runs.forget_parts(&parts), [run.lease()], "nobody keeps it");
    assert_eq!(runs.begin_handover(&parts, 10).len(), 1);
    runs.set_handover([run.lease()], Handover::Leased);
    assert_eq!((runs.forget_parts(&parts), runs.leases()), (vec![], vec![run.lease()]));
    assert_eq!(runs.handovers([run.lease()].into_iter()), [Handover::Leased]);
    assert!(!runs.settled([run.lease()]));
    assert_eq!(runs.handovers([run.lease()].into_iter()), []);
}

/// A retry with a short backoff may be promoted before the answer to its
/// settlement is heard; forgotten, it would wait for the next full look.
#[test]
fn a_run_that_is_ready_again_before_its_settlement_is_answered_is_not_forgotten() {
    let (runs, run) = (LocalRuns::new(10), run());
    assert!(runs.add(&run, By::Owner(Epoch(1))));
    let mut again = run.clone();
    again.fence = again.fence.next();
    assert_eq!(offer(&runs, &again), 0, "not beside its own one");
    assert_eq!(runs.len(), 0);
    assert!(runs.settled([run.lease()]));
    assert_eq!(runs.len(), 1);
}

#[test]
fn a_run_claimed_again_before_its_settlement_is_answered_is_in_flight_under_its_new_lease() {
    let (runs, run) = (LocalRuns::new(10), run());
    assert!(runs.add(&run, By::Lease));
    assert!(!runs.replace(&run, By::Lease), "the same lease is no news");
    let mut again = run.clone();
    again.fence = again.fence.next();
    assert!(!runs.add(&again, By::Lease) && runs.replace(&again, By::Lease));
    assert!(!runs.settled([run.lease()]));
    assert_eq!(runs.in_flight(run.id), Some(again.lease()));
}
