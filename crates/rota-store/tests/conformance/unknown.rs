//! Lost answers: a write asked again under its name answers as it did, and does
//! nothing more.

use rota_core::{
    ids::{Partition, RunId},
    run::{NewRun, Outcome, Run, Status, Verdict, WaitFor},
    store::{Claim, Enqueued, FireItem, Guarded, OwnLease, Pause, PauseTarget, Reap, RunQuery, RunningMark, Woken},
};

use crate::{fire::due_item, harness::*};

fn ids(woken: &[Woken]) -> Vec<(RunId, bool)> {
    woken.iter().map(|woken| (woken.run.id, woken.handed)).collect()
}

async fn listing(h: &Harness) -> Vec<(RunId, Status, i32)> {
    let all = h.list(RunQuery { limit: 200, ..Default::default() }).await;
    all.iter().map(|record| (record.run.id, record.run.state.status(), record.run.fence.0)).collect()
}

/// Insert commits, the reply is lost, the run ends and moves to history, the
/// retry inserts it again: it runs twice.
pub async fn enqueue_asked_again_makes_one_run_even_after_it_ended(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let runs = [h.new_run(h.claimed), h.new_run(h.owned), h.keyed(1, 1), h.keyed(1, 1)];
    let write = h.write_of(owner.node, at(0));
    let first = h.store.enqueue(&write, &runs, &[]).await.unwrap();
    assert_eq!(h.store.enqueue(&write, &runs, &[]).await.unwrap(), first);
    assert_eq!(h.list(RunQuery { limit: 100, ..Default::default() }).await.len(), 4);
    let held = h.claim(h.worker(), 10, at(1)).await;
    for run in &held {
        h.succeed(run, at(2)).await;
    }
    let before = listing(h).await;
    assert_eq!(h.store.enqueue(&write, &runs, &[]).await.unwrap(), first, "also after they ended");
    assert_eq!(listing(h).await, before);
    let second = h.second().await;
    assert_eq!(second.enqueue(&write, &runs, &[]).await.unwrap(), first, "also through another connection");
    assert_eq!(listing(h).await, before);
    crate::slots::nothing_to_repair(h).await;
}

/// A refused run is refused again, although there is room by now.
pub async fn enqueue_asked_again_refuses_what_it_refused(h: &Harness) {
    let mut ask = slot(1, 1);
    ask.when_full = rota_core::slot::WhenFull::Reject;
    let run = || NewRun { slot: Some(ask), ..h.new_run(h.claimed) };
    let holder = run();
    h.make(holder.clone(), at(0)).await;
    let (write, refused) = (h.write(at(1)), [run()]);
    assert_eq!(h.store.enqueue(&write, &refused, &[]).await.unwrap(), [Enqueued::Full]);
    h.cancel(holder.id, at(2)).await;
    assert_eq!(h.store.enqueue(&write, &refused, &[]).await.unwrap(), [Enqueued::Full]);
    assert_eq!(h.store.runs(&[refused[0].id]).await.unwrap(), [None]);
}

/// A settlement asked again must not be told that its lease is stale: its
/// caller would believe that someone else had the run. What it woke is named
/// again, because the node that was to keep it in memory never heard of it.
pub async fn settle_asked_again_answers_and_wakes_as_before(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let run = || NewRun { slot: Some(slot(1, 1)), ..h.new_run(h.owned) };
    let runs = [run(), run()];
    h.store.enqueue(&h.write_of(owner.node, at(0)), &runs, &[]).await.unwrap();
    let held = h.own(&owner.parts(), 10).await;
    assert_eq!(held.len(), 1);
    let ended = h.make(h.new_run(h.claimed), at(0)).await;
    let stale = h.claim(h.worker(), 1, at(0)).await.remove(0);
    assert_eq!(ended, stale.id);
    h.succeed(&stale, at(1)).await;
    let write = h.write_of(owner.node, at(2));
    let ends = [owner.executes(&held[0], succeeded(), at(2)), by_lease(&stale, broken(), at(2))];
    let first = h.store.settle(&write, &ends).await.unwrap();
    assert_eq!(first.answers, [Guarded::Applied, Guarded::Stale]);
    assert_eq!(ids(&first.woken), [(runs[1].id, true)]);
    let before = listing(h).await;
    let again = h.store.settle(&write, &ends).await.unwrap();
    assert_eq!(again.answers, first.answers);
    assert_eq!(ids(&again.woken), ids(&first.woken), "what it was handed is handed again");
    assert_eq!(listing(h).await, before);
    crate::slots::nothing_to_repair(h).await;
}

/// A retry settled twice must not cost two attempts.
pub async fn a_retry_asked_again_costs_one_attempt(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    let (write, end) = (h.write(at(1)), [by_lease(&run, failed(), at(1))]);
    for _ in 0..3 {
        assert_eq!(h.store.settle(&write, &end).await.unwrap().answers, [Guarded::Applied]);
    }
    let stored = h.record(run.id).await;
    assert_eq!((stored.run.attempts_used, stored.run.fence.0, stored.trail.len()), (1, run.fence.0 + 1, 1));
}

/// A fire asked again is the same fire: told as done, not as stale.
pub async fn fire_asked_again_answers_as_before(h: &Harness) {
    let schedule = h.schedule("s").await;
    let item: FireItem = due_item(h, schedule, at(0), Some(at(60_000))).await;
    let revision = h.store.pauses().await.unwrap().revision;
    let write = h.write(at(0));
    let first = h.store.fire(&write, revision, std::slice::from_ref(&item)).await.unwrap();
    let again = h.store.fire(&write, revision, std::slice::from_ref(&item)).await.unwrap();
    assert_eq!(again, first);
    let run = h.claim(h.worker(), 10, at(1)).await;
    assert_eq!(run.len(), 1, "one run");
    h.succeed(&run[0], at(2)).await;
    assert_eq!(h.store.fire(&write, revision, &[item]).await.unwrap(), first, "also after it ended");
    assert_eq!(h.list(RunQuery { limit: 100, ..Default::default() }).await.len(), 1);
}

/// Promoted runs that were handed over in a lost answer are handed over again.
pub async fn promote_asked_again_hands_over_the_same(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let runs: Vec<_> = (1..=4).map(|n| NewRun { ready_at: at(n), ..h.new_run(h.owned) }).collect();
    h.enqueue(&runs, at(0)).await;
    let write = h.write_of(owner.node, at(10));
    let first = h.store.promote(&write, &owner.parts(), 2).await.unwrap();
    let again = h.store.promote(&write, &owner.parts(), 2).await.unwrap();
    assert_eq!((first.moved, again.moved), (2, 2));
    assert_eq!(ids(&again.woken), ids(&first.woken));
    let waiting = RunQuery { statuses: vec![Status::Scheduled], limit: 10, ..Default::default() };
    assert_eq!(h.list(waiting).await.len(), 2, "nothing more was moved");
}

/// A claim asked again leases nothing more; see also `claim`.
pub async fn claim_asked_again_through_another_connection_is_the_same(h: &Harness) {
    h.make_many(h.claimed, 6, at(0)).await;
    let second = h.second().await;
    let (write, claim): (_, Claim) = (h.write(at(1)), h.claim_of(h.worker(), 3, at(1)));
    let first = h.store.claim(&write, std::slice::from_ref(&claim)).await.unwrap();
    assert_same(&second.claim(&write, std::slice::from_ref(&claim)).await.unwrap(), &first, "the same runs");
    assert_eq!(h.claim(h.worker(), 10, at(2)).await.len(), 3);
}

/// The same claim sent twice at once, because the first seemed to hang.
pub async fn one_claim_sent_twice_at_once_leases_once(h: &Harness) {
    let second = h.second().await;
    for _ in 0..8 {
        h.make_many(h.claimed, 6, at(0)).await;
        let (write, claim) = (h.write(at(1)), h.claim_of(h.worker(), 3, at(1)));
        let (left, right) = tokio::join!(
            h.store.claim(&write, std::slice::from_ref(&claim)),
            second.claim(&write, std::slice::from_ref(&claim))
        );
        // One of the two may be refused and asked again; it must not lease.
        let mut answers = Vec::new();
        for answer in [left, right] {
            match answer {
                Ok(runs) => answers.push(runs),
                Err(_) => answers.push(h.store.claim(&write, std::slice::from_ref(&claim)).await.unwrap()),
            }
        }
        assert_same(&answers[0], &answers[1], "the same runs");
        let rest = h.claim(h.worker(), 10, at(2)).await;
        assert_eq!((answers[0].len(), rest.len()), (3, 3));
        for run in answers.remove(0).iter().chain(&rest) {
            h.succeed(run, at(3)).await;
        }
    }
}

/// The same enqueue sent twice at once makes its runs once.
pub async fn one_enqueue_sent_twice_at_once_makes_once(h: &Harness) {
    let second = h.second().await;
    for n in 1..=10 {
        let (write, runs) = (h.write(at(1)), [h.new_run(h.claimed), h.keyed(n, 1)]);
        let (left, right) = tokio::join!(h.store.enqueue(&write, &runs, &[]), second.enqueue(&write, &runs, &[]));
        let mut answers = Vec::new();
        for answer in [left, right] {
            match answer {
                Ok(made) => answers.push(made),
                Err(_) => answers.push(h.store.enqueue(&write, &runs, &[]).await.unwrap()),
            }
        }
        assert_eq!(answers[0], answers[1]);
        assert_eq!(h.list(RunQuery { limit: 100, ..Default::default() }).await.len(), 2 * n as usize);
    }
    crate::slots::nothing_to_repair(h).await;
}

/// An owner's marks and written leases, asked again.
pub async fn marks_and_written_leases_asked_again_are_applied_still(h: &Harness) {
    let owner = h.owner(at(0)).await;
    h.make_many(h.owned, 2, at(0)).await;
    let runs = h.own(&owner.parts(), 10).await;
    let part = Partition(7);
    let mark = [RunningMark { lease: runs[0].lease(), part, epoch: owner.epoch(part), started_at: at(1) }];
    let lease = [OwnLease { lease: runs[1].lease(), part, epoch: owner.epoch(part) }];
    let (marking, leasing, worker) = (h.write_of(owner.node, at(1)), h.write_of(owner.node, at(1)), h.worker());
    for _ in 0..2 {
        assert_eq!(h.store.mark_running(&marking, &mark).await.unwrap(), [Guarded::Applied]);
        let answers = h.store.lease_owned(&leasing, worker, at(6_000), &lease).await.unwrap();
        assert_eq!(answers, [Guarded::Applied]);
    }
    assert_eq!(h.record(runs[1].id).await.run.fence.0, 1, "leased once");
}

/// Whoever gives partitions away asks again before it does: the answer must be the first.
pub async fn attempts_leased_are_leased_once_however_often_asked(h: &Harness) {
    let owner = h.owner(at(0)).await;
    h.make_many(h.owned, 2, at(0)).await;
    let runs = h.own(&owner.parts(), 10).await;
    let part = Partition(7);
    let attempt = |run: &Run| RunningMark { lease: run.lease(), part, epoch: owner.epoch(part), started_at: at(1) };
    h.settle_as(&owner, &[owner.executes(&runs[1], succeeded(), at(1))], at(1)).await;
    let attempts = [attempt(&runs[0]), attempt(&runs[1])];
    let (leasing, worker) = (h.write_of(owner.node, at(1)), h.worker());
    for until in [6_000, 7_000] {
        let answers = h.store.lease_running(&leasing, worker, at(until), &attempts).await.unwrap();
        assert_eq!(answers, [Guarded::Applied, Guarded::Stale]);
        // What came of it meanwhile changes nothing about the answer.
        h.store.leave(owner.node).await.unwrap();
    }
    let leased = h.record(runs[0].id).await.run;
    assert_eq!((leased.fence, h.settle(&leased, succeeded(), at(8_000)).await), (runs[0].fence, Guarded::Applied));
}

/// Cancels, wakes, reaps, sweeps and releases, asked again.
pub async fn every_other_run_write_asked_again_answers_as_before(h: &Harness) {
    let (_, running) = h.leased(at(0)).await;
    let queued = h.make(h.new_run(h.claimed), at(0)).await;
    let write = h.write(at(1));
    let first = h.store.request_cancel(&write, &[running.id, queued], &ask()).await.unwrap();
    let again = h.store.request_cancel(&write, &[running.id, queued], &ask()).await.unwrap();
    assert_eq!(again, first, "not: already asked, ended");
    let (_, parked) = h.leased(at(0)).await;
    h.settle(&parked, Outcome::Parked { on: WaitFor::Signal, until: None }, at(1)).await;
    let write = h.write(at(2));
    for _ in 0..2 {
        assert_eq!(h.store.wake(&write, &[parked.id]).await.unwrap(), [Guarded::Applied]);
    }
    let worker = h.worker();
    assert_eq!(h.claim(worker, 1, at(3)).await.len(), 1);
    let write = h.write(at(4));
    let first = h.store.release(&write, worker).await.unwrap();
    let again = h.store.release(&write, worker).await.unwrap();
    assert_eq!(ids(&again), ids(&first));
    assert_eq!(first.len(), 1);
    assert_eq!(h.claim(worker, 1, at(5)).await.len(), 1, "the worker claims anew");
    h.store.release(&write, worker).await.unwrap();
    assert_eq!(h.status(parked.id).await, Status::Running, "and the old word is not heard again");
    let (write, reap) = (h.write(at(60_000)), Reap { before: at(60_000), losses_max: 3, limit: 10 });
    let first = h.store.reap(&write, &reap).await.unwrap();
    assert_eq!(first.len(), 2);
    assert_same(&h.store.reap(&write, &reap).await.unwrap(), &first, "reap");
    let expiring = h.make(NewRun { expires_at: Some(at(60_001)), ..h.new_run(h.claimed) }, at(60_000)).await;
    let write = h.write(at(60_001));
    let first = h.store.sweep(&write, 10).await.unwrap();
    assert_eq!(first.len(), 1);
    assert_same(&h.store.sweep(&write, 10).await.unwrap(), &first, "sweep");
    assert_eq!(h.status(expiring).await, Status::Ended(Verdict::Expired));
}

/// Definitions, asked again: one version, one revision, one schedule.
pub async fn every_definition_write_asked_again_answers_as_before(h: &Harness) {
    let put = [h.job_put("again", "{\"v\":1}"), h.job_put("report", "{\"v\":2}")];
    let write = h.write(at(1));
    let first = h.store.put_jobs(&write, &put).await.unwrap();
    assert_eq!(h.store.put_jobs(&write, &put).await.unwrap(), first);
    assert_eq!(h.store.job_versions(h.job, 10).await.unwrap().len(), 2);
    let schedule = h.schedule_put("s").await;
    let write = h.write(at(2));
    let first = h.store.put_schedules(&write, std::slice::from_ref(&schedule)).await.unwrap();
    let again = h.store.put_schedules(&write, std::slice::from_ref(&schedule)).await.unwrap();
    assert_eq!(again, first, "not: stale");
    let pause = Pause { since: at(3), note: Some("wait".into()), ..Pause::default() };
    let targets = [PauseTarget::Schedule(schedule.id), PauseTarget::Tenant(h.tenant)];
    let write = h.write(at(3));
    let first = h.store.set_pauses(&write, &targets, Some(&pause)).await.unwrap();
    let revision = h.store.pauses().await.unwrap().revision;
    assert_eq!(h.store.set_pauses(&write, &targets, Some(&pause)).await.unwrap(), first);
    assert_eq!(h.store.pauses().await.unwrap().revision, revision);
    let put = h.with_schedules(vec![h.schedule_put("t").await], &[schedule.id]).await;
    let write = h.write(at(4));
    let first = h.store.put_jobs(&write, std::slice::from_ref(&put)).await.unwrap();
    let again = h.store.put_jobs(&write, std::slice::from_ref(&put)).await.unwrap();
    assert_eq!(again, first, "not: moved");
    let write = h.write(at(5));
    for _ in 0..2 {
        assert_eq!(h.store.delete_jobs(&write, &[deletion(h.job)]).await.unwrap(), [Guarded::Applied]);
    }
}
