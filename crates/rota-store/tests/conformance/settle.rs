//! Settling: by the current right only, once, with everything that hangs on it.

use jiff::Timestamp;
use rota_core::{
    ids::RunId,
    job::failure::{ErrorKind, Failure},
    run::{Change, Fence, Lease, Outcome, RunState, Status, TrailKind, Verdict, WaitFor},
    store::{By, Epoch, Guarded, OwnLease, RunQuery, RunningMark, Settlement},
};
use uuid::Uuid;

use crate::harness::*;

/// The plain way of a run.
pub async fn a_settled_run_moves_to_history_with_its_verdict(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    let outcome = Outcome::Succeeded { output: Some("{\"rows\":3}".into()) };
    assert_eq!(h.settle(&run, outcome, at(7)).await, Guarded::Applied);
    let record = h.record(run.id).await;
    assert_eq!(record.run.state, RunState::Finished { at: at(7), verdict: Verdict::Succeeded });
    assert_eq!(record.output.as_deref(), Some("{\"rows\":3}"));
    assert_eq!(record.started_at, Some(at(0)));
}

/// A worker presumed dead must not settle the attempt that replaced its own.
pub async fn a_lease_that_was_reaped_cannot_settle(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    assert_eq!(h.reap(at(10_000), at(10_000)).await.len(), 1);
    let before = h.record(run.id).await;
    for outcome in [succeeded(), failed(), broken(), Outcome::Cancelled] {
        assert_eq!(h.settle(&run, outcome, at(10_001)).await, Guarded::Stale);
    }
    assert_eq!(h.record(run.id).await, before, "nothing was changed");
}

/// The same after the run went on to another worker: that one's attempt counts.
pub async fn a_lease_that_was_replaced_cannot_settle(h: &Harness) {
    let (_, old) = h.leased(at(0)).await;
    h.reap(at(10_000), at(10_000)).await;
    let owner = h.owner(at(10_000)).await;
    h.store.promote(&h.write_of(owner.node, at(11_000)), &owner.parts(), 10).await.unwrap();
    let new = h.claim(h.worker(), 1, at(11_000)).await.remove(0);
    assert_eq!(new.id, old.id);
    assert_eq!(h.settle(&old, succeeded(), at(11_001)).await, Guarded::Stale);
    assert_eq!(h.settle(&old, failed(), at(11_001)).await, Guarded::Stale);
    assert_eq!(h.record(old.id).await.run, new);
    h.succeed(&new, at(11_002)).await;
}

/// An attempt that was settled has no second end.
pub async fn a_lease_settles_once(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    h.succeed(&run, at(1)).await;
    let before = h.record(run.id).await;
    assert_eq!(h.settle(&run, broken(), at(2)).await, Guarded::Stale);
    assert_eq!(h.settle(&run, failed(), at(2)).await, Guarded::Stale);
    assert_eq!(h.record(run.id).await, before);
}

/// A retry takes the lease with it.
pub async fn a_retried_attempt_cannot_be_settled_again(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    assert_eq!(h.settle(&run, failed(), at(1)).await, Guarded::Applied);
    assert_eq!(h.settle(&run, succeeded(), at(2)).await, Guarded::Stale);
    let record = h.record(run.id).await;
    assert_eq!(record.run.state, RunState::Scheduled);
    assert_eq!((record.run.attempts_used, record.run.ready_at), (1, at(1_001)));
}

/// Progress, extension and marks are as void as a settlement.
pub async fn a_stale_lease_reports_no_progress(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    let report = |run: &rota_core::run::Run, text: &str| (run.lease(), text.to_owned());
    assert_eq!(h.store.progress(&[report(&run, "{\"percent\":10}")]).await.unwrap(), [Guarded::Applied]);
    h.reap(at(10_000), at(10_000)).await;
    assert_eq!(h.store.progress(&[report(&run, "{\"percent\":99}")]).await.unwrap(), [Guarded::Stale]);
    assert_ne!(h.record(run.id).await.progress.as_deref(), Some("{\"percent\":99}"));
}

/// A lease names a run and a fence; half of it is nothing.
pub async fn a_forged_lease_changes_nothing(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    let good = by_lease(&run, succeeded(), at(1));
    let unknown = RunId(Uuid::from_u64_pair(1, 1));
    for lease in [
        Lease { fence: Fence(run.fence.0 + 1), ..run.lease() },
        Lease { fence: Fence(0), ..run.lease() },
        Lease { run: unknown, ..run.lease() },
    ] {
        let forged = Settlement { lease, ..good.clone() };
        assert_eq!(h.settle_all(&[forged], at(1)).await.answers, [Guarded::Stale]);
    }
    assert_eq!(h.status(run.id).await, Status::Running);
}

/// Guessing the first fence must not complete a run that nobody claimed.
pub async fn a_run_that_nobody_claimed_cannot_be_settled_by_lease(h: &Harness) {
    let queued = h.make(h.new_run(h.claimed), at(0)).await;
    let owned = h.make(h.new_run(h.owned), at(0)).await;
    for id in [queued, owned] {
        let mut run = h.record(id).await.run;
        let mark = run.mark_running(run.lease(), at(0)).unwrap();
        run.apply(&mark);
        assert_eq!(h.settle(&run, succeeded(), at(1)).await, Guarded::Stale);
        assert_eq!(h.status(id).await, Status::Queued);
    }
}

/// Being owner of a partition is no right to what a worker holds there.
pub async fn a_leased_run_cannot_be_settled_as_its_partitions_owner(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let (_, run) = h.leased(at(0)).await;
    let settlement = Settlement { by: By::Owner(owner.epoch(run.part)), ..by_lease(&run, succeeded(), at(1)) };
    let settled = h.store.settle(&h.write_of(owner.node, at(1)), &[settlement]).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Stale]);
    assert_eq!(h.status(run.id).await, Status::Running);
}

/// A stale item is news for its caller, not a failure of its neighbours.
pub async fn answers_come_in_the_order_asked(h: &Harness) {
    h.make_many(h.claimed, 5, at(0)).await;
    let runs = h.claim(h.worker(), 5, at(0)).await;
    h.succeed(&runs[2], at(1)).await;
    h.succeed(&runs[4], at(1)).await;
    let settlements: Vec<_> = runs.iter().rev().map(|run| by_lease(run, succeeded(), at(2))).collect();
    let answers = h.settle_all(&settlements, at(2)).await.answers;
    use Guarded::{Applied, Stale};
    assert_eq!(answers, [Stale, Applied, Stale, Applied, Applied]);
}

/// Two ends of one attempt in one batch: the first one stands.
pub async fn a_run_named_twice_in_a_batch_is_settled_once(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    let twice = [by_lease(&run, succeeded(), at(1)), by_lease(&run, broken(), at(1))];
    assert_eq!(h.settle_all(&twice, at(1)).await.answers, [Guarded::Applied, Guarded::Stale]);
    assert_eq!(h.status(run.id).await, Status::Ended(Verdict::Succeeded));
    let all = h.list(rota_core::store::RunQuery { limit: 100, ..Default::default() }).await;
    assert_eq!(all.len(), 1, "one row");
    let (_, run) = h.leased(at(2)).await;
    let twice = [by_lease(&run, failed(), at(3)), by_lease(&run, succeeded(), at(3))];
    assert_eq!(h.settle_all(&twice, at(3)).await.answers, [Guarded::Applied, Guarded::Stale]);
    assert_eq!(h.status(run.id).await, Status::Scheduled, "also where the first one goes on");
}

/// A zombie's settlement beside the rightful one, in one batch and in either
/// order, must not take its place.
pub async fn a_stale_settlement_beside_a_good_one_does_not_spoil_it(h: &Harness) {
    let owner = h.owner(at(0)).await;
    for (stale_first, outcome) in
        [(true, succeeded()), (false, succeeded()), (true, failed()), (false, failed()), (true, broken())]
    {
        let (_, old) = h.leased(at(0)).await;
        h.reap(at(10_000), at(10_000)).await;
        h.store.promote(&h.write_of(owner.node, at(20_000)), &owner.parts(), 10).await.unwrap();
        let new = h.claim(h.worker(), 1, at(20_000)).await.remove(0);
        assert_eq!(new.id, old.id);
        let mut ends = [by_lease(&old, failed(), at(20_001)), by_lease(&new, outcome.clone(), at(20_001))];
        let decided = change(&new, outcome, at(20_001));
        let mut expected = [Guarded::Stale, Guarded::Applied];
        if !stale_first {
            ends.reverse();
            expected.reverse();
        }
        assert_eq!(h.settle_all(&ends, at(20_001)).await.answers, expected);
        let mut after = new.clone();
        after.apply(&decided);
        assert_eq!(h.status(new.id).await, after.state.status());
        h.cancel(new.id, at(20_002)).await;
    }
    let (_, run) = h.leased(at(30_000)).await;
    let good = by_lease(&run, succeeded(), at(30_001));
    let forged = Settlement { by: By::Owner(owner.epoch(run.part)), ..good.clone() };
    assert_eq!(h.settle_all(&[forged, good], at(30_001)).await.answers, [Guarded::Stale, Guarded::Applied]);
}

/// Every outcome is stored as the state machine decided it.
pub async fn each_outcome_is_stored_as_decided(h: &Harness) {
    let cases = [
        (succeeded(), Status::Ended(Verdict::Succeeded)),
        (failed(), Status::Scheduled),
        (broken(), Status::Ended(Verdict::Failed)),
        (Outcome::Cancelled, Status::Ended(Verdict::Cancelled)),
        (Outcome::Parked { on: WaitFor::Callback, until: Some(at(900)) }, Status::Waiting),
        (Outcome::Deferred { until: at(500), reason: "its target is down".into() }, Status::Scheduled),
    ];
    for (outcome, status) in cases {
        let (_, run) = h.leased(at(0)).await;
        let decided = change(&run, outcome.clone(), at(9));
        assert_eq!(h.settle(&run, outcome, at(9)).await, Guarded::Applied);
        let stored = h.record(run.id).await;
        assert_eq!(stored.run.state.status(), status);
        match decided {
            Change::Move(_) => {
                let mut expected = run.clone();
                expected.apply(&decided);
                assert_eq!(stored.run, expected);
            }
            Change::Finish(finish) => {
                assert_eq!(stored.run.state, RunState::Finished { at: at(9), verdict: finish.verdict });
                assert_eq!(stored.failure, finish.failure);
                assert_eq!(stored.run.attempts_used, finish.attempts_used);
            }
        }
    }
}

/// A retryable failure goes on to its last attempt and then waits for a person.
pub async fn a_run_out_of_attempts_is_dead_with_the_trail_of_all(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let (_, mut run) = h.leased(at(0)).await;
    let mut now = 0;
    for attempt in 1..=3_u16 {
        assert_eq!(h.settle(&run, failed(), at(now)).await, Guarded::Applied);
        if attempt < 3 {
            now += 10_000;
            h.store.promote(&h.write_of(owner.node, at(now)), &owner.parts(), 10).await.unwrap();
            run = h.claim(h.worker(), 1, at(now)).await.remove(0);
            assert_eq!(run.attempts_used, attempt);
        }
    }
    let record = h.record(run.id).await;
    assert_eq!(record.run.state.status(), Status::Ended(Verdict::Dead));
    assert_eq!(record.failure, Some(Failure::new(ErrorKind::ConnectionRefused, "nobody there")));
    let failed = record.trail.iter().filter(|entry| matches!(entry.kind, TrailKind::AttemptFailed { .. }));
    assert_eq!(failed.count(), 2, "the attempts before the last are in the trail");
    assert_eq!(record.run.attempts_used, 3);
}

/// An owner that was replaced is a zombie: whatever it did counts for nothing.
pub async fn a_former_owners_epoch_cannot_settle(h: &Harness) {
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let part = h.record(id).await.run.part;
    let node = h.node_id();
    h.beat(node, at(3_000), at(0)).await;
    let old = h.store.take_partitions(node, &[part], at(0)).await.unwrap()[0].unwrap();
    let old = Owner { node, epochs: [(part, old)].into() };
    let new = h.owner_of(&[part], at(5_000)).await;
    assert!(new.epoch(part) > old.epoch(part));
    let run = h.own(&[part], 10).await.remove(0);
    let stale = old.executes(&run, succeeded(), at(5_001));
    let settled = h.store.settle(&h.write_of(node, at(5_001)), &[stale]).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Stale]);
    let mark = RunningMark { lease: run.lease(), part, epoch: old.epoch(part), started_at: at(5_001) };
    assert_eq!(h.store.mark_running(&h.write_of(node, at(5_001)), &[mark]).await.unwrap(), [Guarded::Stale]);
    let lease = OwnLease { lease: run.lease(), part, epoch: old.epoch(part) };
    let leased = h.store.lease_owned(&h.write_of(node, at(5_001)), h.worker(), at(9_000), &[lease]).await.unwrap();
    assert_eq!(leased, [Guarded::Stale]);
    assert_eq!(h.record(id).await.run, run, "nothing was changed");
    let settled = h.settle_as(&new, &[new.executes(&run, succeeded(), at(5_002))], at(5_002)).await;
    assert_eq!(settled.answers, [Guarded::Applied]);
}

/// An epoch of another partition, or one that never was, opens nothing.
pub async fn a_forged_epoch_changes_nothing(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let run = h.record(id).await.run;
    let good = owner.executes(&run, succeeded(), at(1));
    let other = rota_core::ids::Partition(run.part.0.wrapping_add(1));
    for forged in [
        Settlement { by: By::Owner(Epoch(owner.epoch(run.part).0 + 1)), ..good.clone() },
        Settlement { by: By::Owner(Epoch(0)), ..good.clone() },
        Settlement { by: By::Owner(owner.epoch(other)), part: other, ..good.clone() },
    ] {
        let settled = h.store.settle(&h.write_of(owner.node, at(1)), &[forged]).await.unwrap();
        assert_eq!(settled.answers, [Guarded::Stale]);
    }
    assert_eq!(h.status(id).await, Status::Queued);
}

/// One verdict, however many settle at once.
pub async fn many_settling_one_lease_at_once_give_one_verdict(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    let second = h.second().await;
    let mut settlers = tokio::task::JoinSet::new();
    for n in 0..8 {
        let outcome = if n % 2 == 0 { succeeded() } else { broken() };
        let store = if n % 3 == 0 { second.clone() } else { h.store.clone() };
        let (write, settlement) = (h.write(at(1)), by_lease(&run, outcome, at(1)));
        settlers.spawn(async move { (n, store.settle(&write, &[settlement]).await.unwrap().answers[0]) });
    }
    let answers = settlers.join_all().await;
    let applied: Vec<_> = answers.iter().filter(|(_, answer)| *answer == Guarded::Applied).collect();
    assert_eq!(applied.len(), 1, "{answers:?}");
    let verdict = if applied[0].0 % 2 == 0 { Verdict::Succeeded } else { Verdict::Failed };
    assert_eq!(h.status(run.id).await, Status::Ended(verdict), "the answer is what is stored");
}

async fn starts(h: &Harness, id: RunId) -> (Option<Timestamp>, Option<Timestamp>) {
    let record = h.record(id).await;
    let listed = h.list(RunQuery { limit: 10, ..RunQuery::default() }).await;
    let listed = listed.into_iter().find(|record| record.run.id == id).unwrap();
    assert_same(&listed, &record, "a run in a list");
    (record.first_started_at(), record.started_at)
}

/// A run of three attempts over six seconds was shown as if it had taken the seven
/// milliseconds of the last one.
pub async fn the_first_start_of_a_leased_run_stays_known(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let (_, run) = h.leased(at(5)).await;
    assert_eq!(starts(h, run.id).await, (Some(at(5)), Some(at(5))));
    assert_eq!(h.settle(&run, failed(), at(10)).await, Guarded::Applied);
    assert_eq!(starts(h, run.id).await, (Some(at(5)), None));
    h.store.promote(&h.write_of(owner.node, at(2_000)), &owner.parts(), 10).await.unwrap();
    let run = h.claim(h.worker(), 1, at(2_000)).await.remove(0);
    assert_eq!(starts(h, run.id).await, (Some(at(5)), Some(at(2_000))));
    h.reap(at(9_000), at(9_000)).await;
    h.store.promote(&h.write_of(owner.node, at(20_000)), &owner.parts(), 10).await.unwrap();
    let run = h.claim(h.worker(), 1, at(20_000)).await.remove(0);
    h.succeed(&run, at(20_007)).await;
    assert_eq!(starts(h, run.id).await, (Some(at(5)), Some(at(20_000))));
}

/// The same where the start is in its owner's memory.
pub async fn the_first_start_of_an_owned_run_stays_known(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let run = h.own(&owner.parts(), 10).await.remove(0);
    h.settle_as(&owner, &[owner.executes(&run, failed(), at(5))], at(5)).await;
    h.store.promote(&h.write_of(owner.node, at(2_000)), &owner.parts(), 10).await.unwrap();
    let run = h.own(&owner.parts(), 10).await.remove(0);
    let (lease, part, epoch) = (run.lease(), run.part, owner.epoch(run.part));
    let mark = RunningMark { lease, part, epoch, started_at: at(2_001) };
    h.store.mark_running(&h.write_of(owner.node, at(2_300)), &[mark]).await.unwrap();
    assert_eq!(starts(h, id).await, (Some(at(5)), Some(at(2_001))));
    let run = h.record(id).await.run;
    h.settle_as(&owner, &[owner.executes(&run, succeeded(), at(2_400))], at(2_400)).await;
    assert_eq!(starts(h, id).await, (Some(at(5)), Some(at(2_001))));
}

/// A release that does not know the first start moves a run on during an upgrade.
pub async fn the_first_failed_attempt_tells_what_the_release_before_did_not_write(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let (_, run) = h.leased(at(5)).await;
    assert_eq!(h.settle(&run, failed(), at(10)).await, Guarded::Applied);
    assert!(h.place.sql("UPDATE run SET first_started_at = NULL").await);
    assert_eq!(starts(h, run.id).await, (Some(at(5)), None));
    h.store.promote(&h.write_of(owner.node, at(2_000)), &owner.parts(), 10).await.unwrap();
    let run = h.claim(h.worker(), 1, at(2_000)).await.remove(0);
    h.succeed(&run, at(2_001)).await;
    assert_eq!(starts(h, run.id).await, (Some(at(5)), Some(at(2_000))));
}
