//! Reaping and sweeping: what vanished workers held, and what waited too long.

use rota_core::{
    run::{NewRun, Outcome, RunState, Status, TrailKind, Verdict, WaitFor},
    store::{Guarded, Reap},
};

use crate::harness::*;

/// A loss costs no attempt: the run comes back, fenced, after a short delay.
pub async fn a_lost_run_comes_back_at_no_cost_of_an_attempt(h: &Harness) {
    let (worker, run) = h.leased(at(0)).await;
    assert_eq!(h.reap(at(5_999), at(5_999)).await, [], "its lease holds");
    let reaped = h.reap(at(6_001), at(6_001)).await;
    assert_eq!(reaped.len(), 1);
    assert_eq!((reaped[0].id, reaped[0].status), (run.id, Status::Scheduled));
    let record = h.record(run.id).await;
    let mut expected = run.clone();
    expected.apply(&run.lose(3, at(6_001)).unwrap());
    assert_eq!(record.run, expected, "as the state machine decides");
    assert!(record.trail.iter().any(|entry| entry.kind == TrailKind::WorkerLost { worker: Some(worker), losses: 1 }));
    assert_eq!(h.reap(at(60_000), at(60_000)).await, [], "once");
}

/// The limit is on losses: a run that keeps killing its worker is a dead letter.
pub async fn a_run_that_keeps_losing_its_worker_is_dead(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let (_, run) = h.leased(at(0)).await;
    let mut now = 0;
    for _ in 0..2 {
        now += 60_000;
        assert_eq!(h.reap(at(now), at(now)).await[0].status, Status::Scheduled);
        now += 60_000;
        h.store.promote(&h.write_of(owner.node, at(now)), &owner.parts(), 10).await.unwrap();
        assert_eq!(h.claim(h.worker(), 1, at(now)).await.len(), 1);
    }
    now += 60_000;
    assert_eq!(h.reap(at(now), at(now)).await[0].status, Status::Ended(Verdict::Dead));
    let record = h.record(run.id).await;
    assert_eq!((record.run.losses, record.run.attempts_used), (3, 0));
    assert!(record.failure.is_some());
}

/// One worker's death must cost its neighbours nothing.
pub async fn only_the_vanished_workers_runs_are_reaped(h: &Harness) {
    let (_, lost) = h.leased(at(0)).await;
    let (_, kept) = h.leased(at(5_000)).await;
    let reaped = h.reap(at(7_000), at(7_000)).await;
    assert_eq!(reaped.iter().map(|reaped| reaped.id).collect::<Vec<_>>(), [lost.id]);
    h.succeed(&kept, at(7_001)).await;
}

/// A lost run that was asked to stop has stopped.
pub async fn a_lost_run_that_was_asked_to_stop_is_cancelled(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    h.cancel(run.id, at(1)).await;
    let reaped = h.reap(at(10_000), at(10_000)).await;
    assert_eq!(reaped[0].status, Status::Ended(Verdict::Cancelled));
    assert_eq!(h.status(run.id).await, Status::Ended(Verdict::Cancelled));
}

/// A pass is bounded; what is left is found by the next one.
pub async fn reaping_keeps_to_its_limit_and_finds_the_rest(h: &Harness) {
    h.make_many(h.claimed, 10, at(0)).await;
    h.claim(h.worker(), 6, at(0)).await;
    h.claim(h.worker(), 4, at(0)).await;
    let mut reaped = std::collections::BTreeSet::new();
    for _ in 0..10 {
        let reap = Reap { before: at(60_000), losses_max: 3, limit: 3 };
        let pass = h.store.reap(&h.write(at(60_000)), &reap).await.unwrap();
        assert!(pass.len() <= 3);
        for run in pass {
            assert!(reaped.insert(run.id), "once");
        }
    }
    assert_eq!(reaped.len(), 10);
}

/// Whoever wins, the run has one fate.
pub async fn reap_against_settle_gives_one_fate(h: &Harness) {
    let second = h.second().await;
    for _ in 0..15 {
        let (_, run) = h.leased(at(0)).await;
        let (reap, settle) = (h.write(at(60_000)), h.write(at(60_000)));
        let (store, end) = (second.clone(), by_lease(&run, succeeded(), at(60_000)));
        let settling = tokio::spawn(async move { store.settle(&settle, &[end]).await.unwrap().answers[0] });
        let asked = Reap { before: at(60_000), losses_max: 3, limit: 100 };
        let reaped = h.store.reap(&reap, &asked).await.unwrap();
        let expected = match settling.await.unwrap() {
            Guarded::Applied => {
                assert_eq!(reaped, []);
                Status::Ended(Verdict::Succeeded)
            }
            Guarded::Stale => {
                assert_eq!(reaped.len(), 1);
                Status::Scheduled
            }
            Guarded::CancelAsked => panic!("nobody asked"),
        };
        assert_eq!(h.status(run.id).await, expected);
    }
}

/// Two nodes reaping at once must count one loss.
pub async fn two_reapers_count_one_loss(h: &Harness) {
    let second = h.second().await;
    h.make_many(h.claimed, 20, at(0)).await;
    let runs = h.claim(h.worker(), 20, at(0)).await;
    let asked = Reap { before: at(60_000), losses_max: 5, limit: 100 };
    let (a, b) = (h.write(at(60_000)), h.write(at(60_000)));
    let (left, right) = tokio::join!(h.store.reap(&a, &asked), second.reap(&b, &asked));
    assert_eq!(left.unwrap().len() + right.unwrap().len(), 20);
    for run in runs {
        let record = h.record(run.id).await.run;
        assert_eq!((record.losses, record.fence.0), (1, run.fence.0 + 1));
    }
}

/// Start deadlines end what waits, in every waiting state.
pub async fn a_start_deadline_ends_what_still_waits(h: &Harness) {
    let expiring = |run: NewRun| NewRun { expires_at: Some(at(1_000)), ..run };
    let queued = h.make(expiring(h.new_run(h.claimed)), at(0)).await;
    let delayed = h.make(NewRun { ready_at: at(5_000), ..expiring(h.new_run(h.owned)) }, at(0)).await;
    let joined = h.make(NewRun { after: vec![delayed], ..expiring(h.new_run(h.owned)) }, at(0)).await;
    h.make(h.keyed(1, 1), at(0)).await;
    let blocked = h.make(expiring(h.keyed(1, 1)), at(0)).await;
    let patient = h.make(h.new_run(h.claimed), at(0)).await;
    assert_eq!(h.sweep(at(999)).await, []);
    let mut swept: Vec<_> = h.sweep(at(1_000)).await.iter().map(|reaped| reaped.id).collect();
    swept.sort();
    let mut expected = vec![queued, delayed, joined, blocked];
    expected.sort();
    assert_eq!(swept, expected);
    for id in expected {
        assert_eq!(h.record(id).await.run.state, RunState::Finished { at: at(1_000), verdict: Verdict::Expired });
    }
    assert_eq!(h.status(patient).await, Status::Queued);
    crate::slots::nothing_to_repair(h).await;
}

/// A deadline ends what waits, in every state and however often it was tried, and is
/// there to be read.
pub async fn a_deadline_ends_whatever_waits(h: &Harness) {
    let timed = |run: NewRun| NewRun { deadline_at: Some(at(1_000)), ..run };
    let queued = h.make(timed(h.new_run(h.claimed)), at(0)).await;
    let delayed = h.make(NewRun { ready_at: at(5_000), ..timed(h.new_run(h.owned)) }, at(0)).await;
    let joined = h.make(NewRun { after: vec![delayed], ..timed(h.new_run(h.owned)) }, at(0)).await;
    h.make(h.keyed(1, 1), at(0)).await;
    let blocked = h.make(timed(h.keyed(1, 1)), at(0)).await;
    let (parked, napping, running) =
        (timed(h.new_run(h.claimed)), timed(h.new_run(h.claimed)), timed(h.new_run(h.claimed)));
    let waits = [parked.id, napping.id, running.id];
    h.store.request_cancel(&h.write(at(0)), &[queued], &ask()).await.unwrap();
    h.enqueue(&[parked, napping, running], at(0)).await;
    let runs = h.claim(h.worker(), 4, at(1)).await;
    let of = |id| runs.iter().find(|run| run.id == id).unwrap();
    h.settle(of(waits[0]), Outcome::Parked { on: WaitFor::Callback, until: None }, at(2)).await;
    h.settle(of(waits[1]), Outcome::Parked { on: WaitFor::Sleep, until: Some(at(60_000)) }, at(2)).await;
    for id in [delayed, joined, blocked, waits[0], waits[2]] {
        assert_eq!(h.record(id).await.run.deadline_at, Some(at(1_000)));
    }
    let waiting = h.record(waits[0]).await.run.state;
    assert!(matches!(waiting, RunState::Waiting { until: None, .. }), "{waiting:?}");
    assert_eq!(h.sweep(at(999)).await, []);
    let mut swept: Vec<_> = h.sweep(at(1_000)).await.iter().map(|reaped| reaped.id).collect();
    swept.sort();
    let mut expected = vec![delayed, joined, blocked, waits[0], waits[1]];
    expected.sort();
    assert_eq!(swept, expected, "and not the one that is executed");
    for id in expected {
        let record = h.record(id).await;
        assert_eq!(record.run.state, RunState::Finished { at: at(1_000), verdict: Verdict::TimedOut });
        assert_eq!(record.run.deadline_at, Some(at(1_000)));
        assert!(record.failure.unwrap().message.contains("deadline"));
    }
    crate::slots::nothing_to_repair(h).await;
}

/// Handed back or deferred before its attempt began, a run has not been started.
pub async fn a_run_given_back_before_it_began_still_expires(h: &Harness) {
    let make = || NewRun { expires_at: Some(at(1_000)), ..h.new_run(h.claimed) };
    let (unread, stopped, deferred, released) = (make(), make(), make(), make());
    let ids = [unread.id, stopped.id, deferred.id, released.id];
    h.enqueue(&[unread, stopped, deferred, released], at(0)).await;
    let runs = h.claim(h.worker(), 3, at(1)).await;
    let last = h.worker();
    h.claim(last, 1, at(1)).await;
    let back = |run: &rota_core::run::Run, began| rota_core::store::Settlement {
        lease: run.lease(),
        part: run.part,
        by: rota_core::store::By::Lease,
        change: run.hand_back(run.lease(), began, at(2)).unwrap(),
    };
    let of = |n: usize| runs.iter().find(|run| run.id == ids[n]).unwrap();
    h.settle_all(&[back(of(0), false), back(of(1), true)], at(2)).await;
    h.settle(of(2), Outcome::Deferred { until: at(50), reason: "closed".into() }, at(2)).await;
    h.store.release(&h.write(at(2)), last).await.unwrap();
    let started = [false, true, false, false];
    for (id, started) in ids.into_iter().zip(started) {
        assert_eq!(h.record(id).await.run.started, started);
    }
    h.sweep(at(1_000)).await;
    for (id, started) in ids.into_iter().zip(started) {
        let expected = if started { Status::Queued } else { Status::Ended(Verdict::Expired) };
        assert_eq!(h.status(id).await, expected);
    }
}

/// A run that was started is no longer held to its start deadline.
pub async fn a_started_run_does_not_expire(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let make = || NewRun { expires_at: Some(at(1_000)), ..h.new_run(h.claimed) };
    let (retried, parked, running) = (make(), make(), make());
    h.enqueue(&[retried.clone(), parked.clone(), running.clone()], at(0)).await;
    let runs = h.claim(h.worker(), 3, at(0)).await;
    h.settle(&runs[0], failed(), at(1)).await;
    h.settle(&runs[1], Outcome::Parked { on: WaitFor::Sleep, until: Some(at(500)) }, at(1)).await;
    let woken = h.sweep(at(500)).await;
    assert_eq!(woken.iter().map(|woken| (woken.id, woken.status)).collect::<Vec<_>>(), [(runs[1].id, Status::Queued)]);
    assert_eq!(h.sweep(at(5_000)).await, []);
    h.store.promote(&h.write_of(owner.node, at(5_000)), &owner.parts(), 10).await.unwrap();
    assert_eq!(h.sweep(at(5_001)).await, []);
    let ids: Vec<_> = runs.iter().map(|run| run.id).collect();
    assert_eq!(h.statuses(&ids).await, [Status::Queued, Status::Queued, Status::Running]);
}

/// The end of a sleep makes the run ready again, under a fence of its own.
pub async fn a_sleep_that_is_over_wakes_the_run(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    h.settle(&run, Outcome::Parked { on: WaitFor::Sleep, until: Some(at(100)) }, at(1)).await;
    assert_eq!(h.sweep(at(99)).await, []);
    assert_eq!(h.sweep(at(100)).await.len(), 1);
    assert_eq!(h.sweep(at(101)).await, []);
    let again = h.claim(h.worker(), 1, at(101)).await.remove(0);
    assert_eq!(again.id, run.id);
    assert!(again.fence > run.fence);
    assert_eq!(h.settle(&run, succeeded(), at(102)).await, Guarded::Stale);
}

/// A signal opens a wait once; one that does not wait is told.
pub async fn a_wait_is_opened_once(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    let id = run.id;
    let wake = async |now| h.store.wake(&h.write(at(now)), &[id]).await.unwrap()[0];
    assert_eq!(wake(1).await, Guarded::Stale, "it runs");
    h.settle(&run, Outcome::Parked { on: WaitFor::Signal, until: None }, at(2)).await;
    assert_eq!(wake(3).await, Guarded::Applied);
    assert_eq!(wake(4).await, Guarded::Stale);
    let both = h.store.wake(&h.write(at(5)), &[h.run_id(), id]).await.unwrap();
    assert_eq!(both, [Guarded::Stale; 2]);
    assert_eq!(h.status(id).await, Status::Queued);
}

/// Its owner may be executing it: nobody else may say that it never started.
pub async fn a_sweep_leaves_owned_runs_to_their_owner(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let expiring = |lane| NewRun { expires_at: Some(at(1_000)), ..h.new_run(lane) };
    let queued = expiring(h.owned);
    let asked = h.new_run(h.owned);
    h.store.enqueue(&h.write_of(owner.node, at(0)), &[queued.clone(), asked.clone()], &[]).await.unwrap();
    h.cancel(asked.id, at(1)).await;
    assert_eq!(h.sweep(at(100_000)).await, []);
    assert_eq!(h.statuses(&[queued.id, asked.id]).await, [Status::Queued, Status::Cancelling]);
}

/// What is left to owners must not use up the sweep's limit for the others.
pub async fn a_sweep_is_not_stopped_by_what_it_leaves_alone(h: &Harness) {
    let expiring = |lane, ms| NewRun { expires_at: Some(at(ms)), ..h.new_run(lane) };
    let theirs: Vec<_> = (0..20).map(|_| expiring(h.owned, 500)).collect();
    h.enqueue(&theirs, at(0)).await;
    let ours = h.make(expiring(h.claimed, 900), at(0)).await;
    let swept = h.store.sweep(&h.write(at(1_000)), 5).await.unwrap();
    assert_eq!(swept.iter().map(|swept| swept.id).collect::<Vec<_>>(), [ours]);
}

/// A sweep is bounded, earliest first.
pub async fn a_sweep_keeps_to_its_limit(h: &Harness) {
    let runs: Vec<_> =
        [300, 100, 200].iter().map(|ms| NewRun { expires_at: Some(at(*ms)), ..h.new_run(h.claimed) }).collect();
    h.enqueue(&runs, at(0)).await;
    let swept = h.store.sweep(&h.write(at(1_000)), 2).await.unwrap();
    let mut ids: Vec<_> = swept.iter().map(|swept| swept.id).collect();
    ids.sort();
    assert_eq!(ids, [runs[1].id, runs[2].id]);
    assert_eq!(h.sweep(at(1_000)).await.len(), 1);
}
