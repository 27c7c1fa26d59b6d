//! Owned lanes: the partition's owner executes from memory, fenced by its epoch.

use std::collections::BTreeSet;

use rota_core::{
    dispatch::{Pair, Window},
    ids::{Partition, RunId},
    order::Priority,
    run::{Fence, Hold, NewRun, Outcome, Run, RunState, Status, Verdict, WaitFor},
    store::{CancelAnswer, Enqueued, Extended, Guarded, OwnLease, RunningMark},
};

use crate::harness::*;

fn made(status: Status, handed: bool) -> Enqueued {
    Enqueued::Made { status, handed }
}

/// A run that is handed over must not be left a notice for, or it starts twice.
pub async fn a_run_in_a_held_partition_is_handed_to_its_maker(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let runs = [h.new_run(h.owned), h.new_run(h.claimed)];
    let answers = h.store.enqueue(&h.write_of(owner.node, at(0)), &runs, &[]).await.unwrap();
    assert_eq!(answers, [made(Status::Queued, true), made(Status::Queued, false)]);
    assert_eq!(h.store.notices(&all_parts(), 100).await.unwrap(), []);
}

/// Without a notice the run waits for the owner's next look.
pub async fn a_run_in_anothers_partition_leaves_a_notice_exactly_there(h: &Harness) {
    let mine = h.owner_of(&[Partition(1)], at(0)).await;
    let theirs = h.owner_of(&[Partition(2)], at(0)).await;
    let run = |part, lane| NewRun { part: Partition(part), ..h.new_run(lane) };
    let runs = [run(2, h.owned), run(1, h.owned), run(2, h.claimed)];
    let answers = h.store.enqueue(&h.write_of(mine.node, at(0)), &runs, &[]).await.unwrap();
    assert_eq!(answers, [made(Status::Queued, false), made(Status::Queued, true), made(Status::Queued, false)]);
    assert_eq!(h.store.notices(&mine.parts(), 100).await.unwrap(), []);
    let seen = h.store.notices(&theirs.parts(), 100).await.unwrap();
    assert_eq!(seen.iter().map(|run| run.id).collect::<Vec<_>>(), [runs[0].id]);
    assert_eq!(seen[0], h.record(runs[0].id).await.run);
    assert_eq!(h.store.notices(&theirs.parts(), 100).await.unwrap().len(), 1, "looking clears nothing");
    h.store.clear_notices(&[(Partition(2), runs[0].id)]).await.unwrap();
    assert_eq!(h.store.notices(&theirs.parts(), 100).await.unwrap(), []);
}

/// A writer without partitions is handed nothing.
pub async fn a_writer_that_holds_nothing_is_handed_nothing(h: &Harness) {
    let owner = h.owner_of(&[Partition(7)], at(0)).await;
    assert_eq!(h.enqueue(&[h.new_run(h.owned)], at(0)).await, [made(Status::Queued, false)]);
    let stranger = h.node_id();
    let answers = h.store.enqueue(&h.write_of(stranger, at(0)), &[h.new_run(h.owned)], &[]).await.unwrap();
    assert_eq!(answers, [made(Status::Queued, false)]);
    assert_eq!(h.store.notices(&owner.parts(), 100).await.unwrap().len(), 2);
}

/// A former owner that is handed a run keeps it from the new one.
pub async fn a_former_owner_is_handed_nothing(h: &Harness) {
    let node = h.node_id();
    h.beat(node, at(1_000), at(0)).await;
    h.store.take_partitions(node, &[Partition(7)], at(0)).await.unwrap();
    let new = h.owner_of(&[Partition(7)], at(2_000)).await;
    let answers = h.store.enqueue(&h.write_of(node, at(2_001)), &[h.new_run(h.owned)], &[]).await.unwrap();
    assert_eq!(answers, [made(Status::Queued, false)]);
    assert_eq!(h.store.notices(&new.parts(), 10).await.unwrap().len(), 1);
}

/// The whole way of an owned run: no written claim, one settlement.
pub async fn an_owner_settles_a_queued_run_without_a_claim(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let run = h.own(&owner.parts(), 10).await.remove(0);
    let settled = h.settle_as(&owner, &[owner.executes(&run, succeeded(), at(5))], at(5)).await;
    assert_eq!(settled.answers, [Guarded::Applied]);
    let record = h.record(id).await;
    assert_eq!(record.run.state, RunState::Finished { at: at(5), verdict: Verdict::Succeeded });
    assert_eq!(record.started_at, Some(at(5)), "the start is what its executor says");
    assert_eq!(h.own(&owner.parts(), 10).await, []);
}

/// A retry of an owned run must come back to its owner, fenced anew.
pub async fn an_owned_run_is_retried_and_handed_over_again(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let run = h.own(&owner.parts(), 10).await.remove(0);
    let write = h.write_of(owner.node, at(1));
    let settled = h.store.settle(&write, &[owner.executes(&run, failed(), at(1))]).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Applied]);
    assert_eq!(h.own(&owner.parts(), 10).await, []);
    let promoted = h.store.promote(&h.write_of(owner.node, at(2_000)), &owner.parts(), 10).await.unwrap();
    assert_eq!(promoted.woken.len(), 1);
    assert!(promoted.woken[0].handed);
    let again = &promoted.woken[0].run;
    assert_eq!((again.id, again.fence, again.attempts_used), (id, Fence(1), 1));
    let write = h.write_of(owner.node, at(2_001));
    let settlements = [owner.executes(&run, succeeded(), at(2_001)), owner.executes(again, succeeded(), at(2_001))];
    let settled = h.store.settle(&write, &settlements).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Stale, Guarded::Applied]);
}

/// A mark says who executes for long; it must not void the executor's right.
pub async fn a_marked_run_is_running_and_settles_under_the_same_lease(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let run = h.own(&owner.parts(), 10).await.remove(0);
    let mark = RunningMark { lease: run.lease(), part: run.part, epoch: owner.epoch(run.part), started_at: at(1) };
    let write = h.write_of(owner.node, at(1_000));
    assert_eq!(h.store.mark_running(&write, &[mark]).await.unwrap(), [Guarded::Applied]);
    let marked = h.record(id).await.run;
    assert_eq!(marked.state, RunState::Running { hold: Hold::Owned, started_at: at(1) });
    assert_eq!(h.own(&owner.parts(), 10).await, [], "it is not offered again");
    let inherited = h.store.inherited(&owner.parts(), 10).await.unwrap();
    assert_eq!(inherited, std::slice::from_ref(&marked));
    assert_eq!(h.store.inherited(&[Partition(200)], 10).await.unwrap(), []);
    let write = h.write_of(owner.node, at(2_000));
    let settled = h.store.settle(&write, &[owner.executes(&run, succeeded(), at(2_000))]).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Applied]);
}

/// A mark that comes late must not bring back a run that ended or moved on.
pub async fn a_stale_mark_changes_nothing(h: &Harness) {
    let owner = h.owner(at(0)).await;
    h.make_many(h.owned, 2, at(0)).await;
    let runs = h.own(&owner.parts(), 10).await;
    let mark = |run: &rota_core::run::Run| RunningMark {
        lease: run.lease(),
        part: run.part,
        epoch: owner.epoch(run.part),
        started_at: at(1),
    };
    let write = h.write_of(owner.node, at(1));
    let ends = [owner.executes(&runs[0], succeeded(), at(1)), owner.executes(&runs[1], failed(), at(1))];
    assert_eq!(h.store.settle(&write, &ends).await.unwrap().answers, [Guarded::Applied; 2]);
    let write = h.write_of(owner.node, at(2));
    let marks = [mark(&runs[0]), mark(&runs[1])];
    assert_eq!(h.store.mark_running(&write, &marks).await.unwrap(), [Guarded::Stale; 2]);
    assert_eq!(h.status(runs[0].id).await, Status::Ended(Verdict::Succeeded));
    assert_eq!(h.status(runs[1].id).await, Status::Scheduled);
}

/// What a dead owner had in memory must be found by the next one.
pub async fn a_new_owner_finds_the_runs_still_queued(h: &Harness) {
    let part = Partition(7);
    let node = h.node_id();
    h.beat(node, at(3_000), at(0)).await;
    h.store.take_partitions(node, &[part], at(0)).await.unwrap();
    let runs: Vec<_> = (0..5).map(|_| h.new_run(h.owned)).collect();
    h.store.enqueue(&h.write_of(node, at(0)), &runs, &[]).await.unwrap();
    let new = h.owner_of(&[part], at(10_000)).await;
    let found: Vec<_> = h.own(&new.parts(), 100).await.iter().map(|run| run.id).collect();
    assert_eq!(found, runs.iter().map(|run| run.id).collect::<Vec<_>>());
}

/// A suspect is leased in writing, so that a second death names it.
pub async fn an_inherited_run_can_be_leased_in_writing(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let run = h.own(&owner.parts(), 10).await.remove(0);
    let worker = h.worker();
    let lease = OwnLease { lease: run.lease(), part: run.part, epoch: owner.epoch(run.part) };
    let write = h.write_of(owner.node, at(1));
    let answers = h.store.lease_owned(&write, worker, at(6_001), &[lease]).await.unwrap();
    assert_eq!(answers, [Guarded::Applied]);
    let leased = h.record(id).await.run;
    assert_eq!(leased.state, RunState::Running { hold: Hold::Leased(worker), started_at: at(1) });
    assert_eq!(leased.fence, Fence(1));
    let stale = owner.executes(&run, succeeded(), at(2));
    let settled = h.store.settle(&h.write_of(owner.node, at(2)), &[stale]).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Stale], "the unwritten right is gone");
    let write = h.write_of(owner.node, at(2));
    assert_eq!(h.store.lease_owned(&write, h.worker(), at(9_000), &[lease]).await.unwrap(), [Guarded::Stale]);
    let reaped = h.reap(at(60_000), at(60_000)).await;
    assert_eq!(reaped.len(), 1, "its second death is noticed");
    assert_eq!(h.record(id).await.run.losses, 1);
}

fn attempt(owner: &Owner, run: &Run) -> RunningMark {
    RunningMark { lease: run.lease(), part: run.part, epoch: owner.epoch(run.part), started_at: at(1) }
}

/// A node that gives a partition away keeps what it executes: the attempt must go on and
/// be settled under the fence it has, and nobody else may start it.
pub async fn an_attempt_in_flight_becomes_a_lease_under_the_same_fence(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let run = h.own(&owner.parts(), 10).await.remove(0);
    let (worker, write) = (h.worker(), h.write_of(owner.node, at(2)));
    let answers = h.store.lease_running(&write, worker, at(6_000), &[attempt(&owner, &run)]).await.unwrap();
    assert_eq!(answers, [Guarded::Applied]);
    let leased = h.record(id).await.run;
    assert_eq!(leased.state, RunState::Running { hold: Hold::Leased(worker), started_at: at(1) });
    assert_eq!(leased.lease(), run.lease());
    let by_epoch = owner.executes(&run, succeeded(), at(3));
    assert_eq!(h.settle_as(&owner, &[by_epoch], at(3)).await.answers, [Guarded::Stale], "it is a lease's to settle");

    h.store.leave(owner.node).await.unwrap();
    let next = h.owner(at(4)).await;
    assert_eq!(h.own(&next.parts(), 10).await, []);
    assert_eq!(h.store.inherited(&next.parts(), 10).await.unwrap(), []);
    assert_eq!(h.reap(at(5_000), at(5_000)).await, []);
    let extended = h.store.extend(worker, at(11_000), &[run.lease()], at(5_000)).await.unwrap();
    assert_eq!(extended, Extended::default());
    assert_eq!(h.settle(&leased, succeeded(), at(9_000)).await, Guarded::Applied);
    assert_eq!(h.status(id).await, Status::Ended(Verdict::Succeeded));
}

/// A cancel that was asked for before the partition went must reach the attempt after.
pub async fn an_attempt_that_was_marked_or_asked_to_stop_becomes_a_lease_too(h: &Harness) {
    let owner = h.owner(at(0)).await;
    h.make_many(h.owned, 3, at(0)).await;
    let runs = h.own(&owner.parts(), 10).await;
    let attempts: Vec<_> = runs.iter().map(|run| attempt(&owner, run)).collect();
    let marks = [RunningMark { started_at: at(0), ..attempts[0] }, RunningMark { started_at: at(0), ..attempts[1] }];
    assert_eq!(h.store.mark_running(&h.write_of(owner.node, at(2)), &marks).await.unwrap(), [Guarded::Applied; 2]);
    for run in &runs[1..] {
        assert_eq!(h.cancel(run.id, at(3)).await, CancelAnswer::Asked);
    }
    let (worker, write) = (h.worker(), h.write_of(owner.node, at(4)));
    let answers = h.store.lease_running(&write, worker, at(6_000), &attempts).await.unwrap();
    assert_eq!(answers, [Guarded::Applied; 3]);
    let hold = Hold::Leased(worker);
    let cancelling = |started| RunState::Cancelling { hold: Some(hold), started_at: Some(at(started)) };
    assert_eq!(h.record(runs[0].id).await.run.state, RunState::Running { hold, started_at: at(0) });
    assert_eq!(h.record(runs[1].id).await.run.state, cancelling(0));
    assert_eq!(h.record(runs[2].id).await.run.state, cancelling(1));

    let leases: Vec<_> = runs.iter().map(Run::lease).collect();
    let extended = h.store.extend(worker, at(10_000), &leases, at(5)).await.unwrap();
    let told: BTreeSet<_> = extended.cancelling.into_iter().collect();
    assert_eq!(told, runs[1..].iter().map(|run| run.id).collect());
    let asked = h.record(runs[1].id).await.run;
    assert_eq!(h.settle(&asked, Outcome::Cancelled, at(6)).await, Guarded::Applied);
    // The other does not answer: its grace ends it, as that of any leased run.
    let grace_until = h.record(runs[2].id).await.run.cancel.unwrap().grace_until;
    assert_eq!(h.sweep(grace_until).await.len(), 1);
    assert_eq!(h.status(runs[2].id).await, Status::Ended(Verdict::Cancelled));
}

/// A node that was presumed dead must not lease what another may have started.
pub async fn only_the_owner_turns_attempts_into_leases(h: &Harness) {
    let owner = h.owner(at(0)).await;
    h.make_many(h.owned, 4, at(0)).await;
    let runs = h.own(&owner.parts(), 10).await;
    let attempts: Vec<_> = runs.iter().map(|run| attempt(&owner, run)).collect();
    let ends = [owner.executes(&runs[0], succeeded(), at(1)), owner.executes(&runs[1], failed(), at(1))];
    h.settle_as(&owner, &ends, at(1)).await;
    let suspect = OwnLease { lease: runs[2].lease(), part: runs[2].part, epoch: owner.epoch(runs[2].part) };
    h.store.lease_owned(&h.write_of(owner.node, at(1)), h.worker(), at(6_000), &[suspect]).await.unwrap();
    let write = h.write_of(owner.node, at(2));
    let answers = h.store.lease_running(&write, h.worker(), at(6_000), &attempts[..3]).await.unwrap();
    assert_eq!(answers, [Guarded::Stale; 3], "ended, to be retried, leased before");

    h.store.leave(owner.node).await.unwrap();
    let before = h.record(runs[3].id).await.run;
    let write = h.write_of(owner.node, at(3));
    let answers = h.store.lease_running(&write, h.worker(), at(6_000), &attempts[3..]).await.unwrap();
    assert_eq!(answers, [Guarded::Stale], "the partition is not its own any more");
    assert_eq!(h.record(runs[3].id).await.run, before);
}

/// A node that dies after it gave its partitions away: its attempts must start elsewhere.
pub async fn a_leased_attempt_that_vanishes_is_lost(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let run = h.own(&owner.parts(), 10).await.remove(0);
    let (worker, write) = (h.worker(), h.write_of(owner.node, at(2)));
    h.store.lease_running(&write, worker, at(6_000), &[attempt(&owner, &run)]).await.unwrap();
    let leased = h.record(id).await.run;
    assert_eq!(h.reap(at(6_000), at(6_000)).await, []);
    assert_eq!(h.reap(at(6_001), at(6_001)).await.len(), 1);
    let lost = h.record(id).await.run;
    assert_eq!((lost.state.status(), lost.losses, lost.fence), (Status::Scheduled, 1, run.fence.next()));
    assert_eq!(h.settle(&leased, succeeded(), at(6_002)).await, Guarded::Stale, "it is another's by now");
}

/// A slot that leaks, or is freed too early, when its run changes hands.
pub async fn leasing_attempts_leaves_slots_as_they_were(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let keyed = || NewRun { lane: h.owned, ..h.keyed(1, 1) };
    let (first, second) = (h.make(keyed(), at(0)).await, h.make(keyed(), at(0)).await);
    let run = h.own(&owner.parts(), 10).await.remove(0);
    let (worker, write) = (h.worker(), h.write_of(owner.node, at(2)));
    h.store.lease_running(&write, worker, at(6_000), &[attempt(&owner, &run)]).await.unwrap();
    assert_eq!(h.statuses(&[first, second]).await, [Status::Running, Status::Blocked]);
    crate::slots::nothing_to_repair(h).await;
    let leased = h.record(first).await.run;
    h.settle(&leased, succeeded(), at(3)).await;
    assert_eq!(h.status(second).await, Status::Queued);
    crate::slots::nothing_to_repair(h).await;
}

/// A takeover makes suspects of what was marked running: they are leased next.
pub async fn a_marked_run_of_a_dead_owner_can_be_leased_by_the_next(h: &Harness) {
    let part = Partition(7);
    let node = h.node_id();
    h.beat(node, at(3_000), at(0)).await;
    let epoch = h.store.take_partitions(node, &[part], at(0)).await.unwrap()[0].unwrap();
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let run = h.own(&[part], 10).await.remove(0);
    let mark = RunningMark { lease: run.lease(), part, epoch, started_at: at(1) };
    assert_eq!(h.store.mark_running(&h.write_of(node, at(1)), &[mark]).await.unwrap(), [Guarded::Applied]);
    let new = h.owner_of(&[part], at(10_000)).await;
    let inherited = h.store.inherited(&[part], 10).await.unwrap();
    assert_eq!(inherited.iter().map(|run| run.id).collect::<Vec<_>>(), [id]);
    let old = Owner { node, epochs: [(part, epoch)].into() };
    let zombie = old.executes(&inherited[0], succeeded(), at(10_001));
    let settled = h.store.settle(&h.write_of(node, at(10_001)), &[zombie]).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Stale]);
    // The new owner settles it as lost, in its own right.
    let lost = inherited[0].lose(3, at(10_002)).unwrap();
    let settlement = rota_core::store::Settlement {
        lease: inherited[0].lease(),
        part,
        by: rota_core::store::By::Owner(new.epoch(part)),
        change: lost,
    };
    let settled = h.store.settle(&h.write_of(new.node, at(10_002)), &[settlement]).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Applied]);
    assert_eq!(h.record(id).await.run.losses, 1);
}

/// Windows over equal keys: a cursor that is only a key loses or repeats runs.
pub async fn windows_over_equal_keys_return_each_run_once_and_in_order(h: &Harness) {
    let other = h.tenant("other").await;
    let mut runs: Vec<_> = (0..120).map(|_| h.new_run(h.owned)).collect();
    for (n, run) in runs.iter_mut().enumerate() {
        run.part = Partition((n % 3) as u8);
        run.tenant = if n % 4 == 0 { other } else { h.tenant };
    }
    runs.reverse();
    h.enqueue(&runs, at(0)).await;
    let parts = [Partition(0), Partition(1)];
    for tenant in [h.tenant, other] {
        let pair = Pair { lane: h.owned, tenant };
        let mut after = None;
        let mut found: Vec<RunId> = Vec::new();
        loop {
            let window = Window { pair, after, limit: 7 };
            let page = h.store.own(&parts, &[window]).await.unwrap().remove(0);
            assert!(page.len() <= 7);
            let Some(last) = page.last() else { break };
            after = Some((last.order_key(), last.id));
            found.extend(page.iter().map(|run| run.id));
        }
        let expected: BTreeSet<_> =
            runs.iter().filter(|run| run.tenant == tenant && run.part.0 < 2).map(|run| run.id).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "each once, by key and then by id");
    }
}

/// Several windows in one look: each answers for itself, in the order asked.
pub async fn each_window_answers_for_itself(h: &Harness) {
    let other = h.tenant("other").await;
    let run = |tenant, priority| NewRun { tenant, priority: Priority::new(priority).unwrap(), ..h.new_run(h.owned) };
    let runs = [run(h.tenant, 9), run(h.tenant, 1), run(other, 5), run(h.tenant, 4)];
    h.enqueue(&runs, at(0)).await;
    h.make(NewRun { ready_at: at(60_000), ..h.new_run(h.owned) }, at(0)).await;
    h.make(h.new_run(h.claimed), at(0)).await;
    let window = |tenant, limit| Window { pair: Pair { lane: h.owned, tenant }, after: None, limit };
    let nobody = rota_core::ids::TenantId(-1);
    let windows = [window(other, 10), window(h.tenant, 2), window(nobody, 10), window(h.tenant, 10)];
    let found = h.store.own(&all_parts(), &windows).await.unwrap();
    let ids: Vec<Vec<_>> = found.iter().map(|runs| runs.iter().map(|run| run.id).collect()).collect();
    let [low, high, theirs, middle] = runs.map(|run| run.id);
    assert_eq!(ids, [vec![theirs], vec![high, middle], vec![], vec![high, middle, low]]);
}

/// Delayed runs start in the order of their time, and keep it as their place.
pub async fn promotion_goes_by_time_and_keeps_it(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let delays = [500, 100, 300, 200, 900];
    let runs: Vec<_> = delays.iter().map(|delay| NewRun { ready_at: at(*delay), ..h.new_run(h.owned) }).collect();
    let answers = h.store.enqueue(&h.write_of(owner.node, at(0)), &runs, &[]).await.unwrap();
    assert_eq!(answers, [made(Status::Scheduled, false); 5]);
    let promote =
        async |now, limit| h.store.promote(&h.write_of(owner.node, at(now)), &owner.parts(), limit).await.unwrap();
    let early = promote(50, 10).await;
    assert_eq!((early.moved, early.woken.len(), early.next_at), (0, 0, Some(at(100))));
    let first = promote(600, 2).await;
    assert_eq!(first.moved, 2);
    assert_eq!(first.woken.iter().map(|woken| woken.run.ready_at).collect::<Vec<_>>(), [at(100), at(200)]);
    assert!(first.woken.iter().all(|woken| woken.handed && woken.run.state == RunState::Queued));
    assert_eq!(first.next_at, Some(at(300)));
    let rest = promote(600, 10).await;
    assert_eq!((rest.moved, rest.next_at), (2, Some(at(900))));
    let order: Vec<_> = h.own(&owner.parts(), 10).await.iter().map(|run| run.id).collect();
    assert_eq!(order, [runs[1].id, runs[3].id, runs[2].id, runs[0].id], "ready_at stays in the order key");
    let last = promote(900, 10).await;
    assert_eq!((last.moved, last.next_at), (1, None));
}

/// Two owners promoting one run would both start it.
pub async fn only_the_holder_of_a_partition_promotes_there(h: &Harness) {
    let owner = h.owner_of(&[Partition(1)], at(0)).await;
    let other = h.owner_of(&[Partition(2)], at(0)).await;
    let run = |part| NewRun { part: Partition(part), ready_at: at(10), ..h.new_run(h.owned) };
    let runs = [run(1), run(2)];
    h.enqueue(&runs, at(0)).await;
    let parts = [Partition(1), Partition(2)];
    let nobody = h.store.promote(&h.write(at(20)), &parts, 10).await.unwrap();
    assert_eq!((nobody.moved, nobody.woken.len()), (0, 0));
    let promoted = h.store.promote(&h.write_of(owner.node, at(20)), &parts, 10).await.unwrap();
    assert_eq!(promoted.woken.iter().map(|woken| woken.run.id).collect::<Vec<_>>(), [runs[0].id]);
    let promoted = h.store.promote(&h.write_of(other.node, at(20)), &parts, 10).await.unwrap();
    assert_eq!(promoted.woken.iter().map(|woken| woken.run.id).collect::<Vec<_>>(), [runs[1].id]);
}

/// Someone else's wish to stop an owned run reaches the one who can.
pub async fn a_cancel_of_an_owned_run_is_left_to_its_owner(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let run = h.new_run(h.owned);
    h.store.enqueue(&h.write_of(owner.node, at(0)), std::slice::from_ref(&run), &[]).await.unwrap();
    assert_eq!(h.cancel(run.id, at(1)).await, CancelAnswer::Asked);
    let asked = h.record(run.id).await.run;
    assert_eq!(asked.state, RunState::Cancelling { hold: None, started_at: None });
    let notices = h.store.notices(&owner.parts(), 10).await.unwrap();
    assert_eq!(notices, std::slice::from_ref(&asked));
    assert_eq!(h.own(&owner.parts(), 10).await, [], "nobody starts it now");
    let end = owner.executes(&asked, rota_core::run::Outcome::Cancelled, at(2));
    assert_eq!(h.settle_as(&owner, &[end], at(2)).await.answers, [Guarded::Applied]);
    assert_eq!(h.status(run.id).await, Status::Ended(Verdict::Cancelled));
}

/// The next look is seconds away: a run that became ready by a write whose
/// answer does not name it would wait that long, though its owner wrote it.
pub async fn what_becomes_ready_unnamed_leaves_a_notice_for_the_writer_too(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let write = |now| h.write_of(owner.node, at(now));
    let keyed = |key, limit| NewRun { slot: Some(slot(key, limit)), ..h.new_run(h.owned) };
    let noticed = async |id: RunId, what: &str| {
        let seen = h.store.notices(&owner.parts(), 10).await.unwrap();
        assert_eq!(
            seen.iter().map(|run| (run.id, run.state.clone())).collect::<Vec<_>>(),
            [(id, RunState::Queued)],
            "{what}"
        );
        h.store.clear_notices(&[(seen[0].part, id)]).await.unwrap();
    };
    let parked = async |run: NewRun| {
        let answers = h.store.enqueue(&write(0), std::slice::from_ref(&run), &[]).await.unwrap();
        assert_eq!(answers, [made(Status::Queued, true)]);
        let run = h.record(run.id).await.run;
        let sleep = Outcome::Parked { on: WaitFor::Sleep, until: Some(at(5_000)) };
        assert_eq!(h.settle_as(&owner, &[owner.executes(&run, sleep, at(1))], at(1)).await.answers, [Guarded::Applied]);
        run
    };
    let holder = parked(keyed(1, 1)).await;
    let waiting = keyed(1, 1);
    h.store.enqueue(&write(2), std::slice::from_ref(&waiting), &[]).await.unwrap();
    h.store.request_cancel(&write(3), &[holder.id], &ask()).await.unwrap();
    noticed(waiting.id, "a cancel let it in").await;
    let run = parked(h.new_run(h.owned)).await;
    h.store.wake(&write(4), &[run.id]).await.unwrap();
    noticed(run.id, "a wake").await;
    let run = parked(h.new_run(h.owned)).await;
    h.store.sweep(&write(5_000), 10).await.unwrap();
    noticed(run.id, "the end of its sleep").await;
    let runs = [keyed(2, 1), keyed(2, 1)];
    h.store.enqueue(&write(6_000), &runs, &[]).await.unwrap();
    let mut raise = NewRun { lane: h.claimed, ..keyed(2, 2) };
    raise.ready_at = at(6_000);
    h.store.enqueue(&write(6_000), &[raise], &[]).await.unwrap();
    noticed(runs[1].id, "a raised limit").await;
}

/// Whoever watches a queue asks how long its oldest run waits.
pub async fn the_run_that_waits_longest_is_found(h: &Harness) {
    assert_eq!(h.store.oldest_queued().await.unwrap(), None);
    let run = |ready: i64| rota_core::run::NewRun { ready_at: at(ready), ..h.new_run(h.owned) };
    h.enqueue(&[run(500), run(300), run(900_000)], at(1_000)).await;
    assert_eq!(h.store.oldest_queued().await.unwrap(), Some(at(300)), "a delayed run is not queued");
}
