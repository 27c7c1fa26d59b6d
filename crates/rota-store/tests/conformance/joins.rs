//! Joins: a run that waits for others becomes ready when the last has ended.

use rota_core::{
    ids::RunId,
    run::{NewRun, Outcome, Parent, RunState, Status, Verdict, WaitFor},
    store::{CancelAnswer, Guarded},
};

use crate::harness::*;

fn after(h: &Harness, runs: &[RunId]) -> NewRun {
    NewRun { after: runs.to_vec(), ..h.new_run(h.claimed) }
}

/// The join opens with the last of its needs, and not before.
pub async fn a_join_opens_with_the_last_of_its_needs(h: &Harness) {
    let needs = h.make_many(h.claimed, 3, at(0)).await;
    let join = h.make(after(h, &needs), at(0)).await;
    assert_eq!(h.status(join).await, Status::Blocked);
    let runs = h.claim(h.worker(), 3, at(0)).await;
    for (n, run) in runs.iter().enumerate() {
        let settled = h.settle_all(&[by_lease(run, succeeded(), at(1 + n as i64))], at(1 + n as i64)).await;
        let woken: Vec<_> = settled.woken.iter().map(|woken| woken.run.id).collect();
        assert_eq!(woken, if n == 2 { vec![join] } else { vec![] });
    }
    let opened = h.record(join).await.run;
    assert_eq!((opened.state.status(), opened.ready_at), (Status::Queued, at(3)));
}

/// All needs settled in one batch open the join once.
pub async fn needs_settled_in_one_batch_open_the_join_once(h: &Harness) {
    let needs = h.make_many(h.claimed, 4, at(0)).await;
    let join = h.make(after(h, &needs), at(0)).await;
    let ends: Vec<_> =
        h.claim(h.worker(), 4, at(0)).await.iter().map(|run| by_lease(run, succeeded(), at(1))).collect();
    let settled = h.settle_all(&ends, at(1)).await;
    assert_eq!(settled.woken.iter().map(|woken| woken.run.id).collect::<Vec<_>>(), [join]);
}

/// Any end counts: what comes next is decided when the child starts.
pub async fn every_kind_of_end_opens_the_join(h: &Harness) {
    for outcome in [succeeded(), broken(), Outcome::Cancelled] {
        let (_, need) = h.leased(at(0)).await;
        let join = h.make(after(h, &[need.id]), at(0)).await;
        h.settle(&need, outcome, at(1)).await;
        assert_eq!(h.status(join).await, Status::Queued);
        assert_eq!(h.cancel(join, at(1)).await, CancelAnswer::Cancelled);
    }
    let cancelled = h.make(h.new_run(h.claimed), at(0)).await;
    let join = h.make(after(h, &[cancelled]), at(0)).await;
    assert_eq!(h.cancel(cancelled, at(1)).await, CancelAnswer::Cancelled);
    assert_eq!(h.status(join).await, Status::Queued, "cancelled before it ran");
    let expired = h.make(NewRun { expires_at: Some(at(10)), ..h.new_run(h.claimed) }, at(0)).await;
    let join = h.make(after(h, &[expired]), at(0)).await;
    h.sweep(at(10)).await;
    assert_eq!(h.status(join).await, Status::Queued, "expired");
    let (holder, waiting) = (h.keyed(1, 1), h.keyed(1, 1));
    h.enqueue(&[holder, waiting.clone()], at(0)).await;
    let join = h.make(after(h, &[waiting.id]), at(0)).await;
    let mut newest = h.keyed(1, 1);
    newest.slot.as_mut().unwrap().when_full = rota_core::slot::WhenFull::Replace;
    h.make(newest, at(1)).await;
    assert_eq!(h.status(waiting.id).await, Status::Ended(Verdict::Skipped));
    assert_eq!(h.status(join).await, Status::Queued, "displaced");
}

/// A lost run that is dead opens its joins; one that is retried does not.
pub async fn a_retry_opens_nothing(h: &Harness) {
    let (_, need) = h.leased(at(0)).await;
    let join = h.make(after(h, &[need.id]), at(0)).await;
    h.settle(&need, failed(), at(1)).await;
    assert_eq!(h.status(join).await, Status::Blocked);
    assert_eq!(h.cancel(need.id, at(2)).await, CancelAnswer::Cancelled);
    assert_eq!(h.status(join).await, Status::Queued);
    assert_eq!(h.cancel(join, at(2)).await, CancelAnswer::Cancelled);
    let (_, need) = h.leased(at(3)).await;
    let join = h.make(after(h, &[need.id]), at(3)).await;
    let reap = rota_core::store::Reap { before: at(60_000), losses_max: 1, limit: 10 };
    h.store.reap(&h.write(at(60_000)), &reap).await.unwrap();
    assert_eq!(h.statuses(&[need.id, join]).await, [Status::Ended(Verdict::Dead), Status::Queued]);
}

/// A need that has ended before counts as such, else the join waits for ever.
pub async fn needs_that_ended_before_count_as_ended(h: &Harness) {
    let (_, ended) = h.leased(at(0)).await;
    h.succeed(&ended, at(1)).await;
    let live = h.make(h.new_run(h.claimed), at(2)).await;
    let unknown = h.run_id();
    let ready = h.make(after(h, &[ended.id]), at(2)).await;
    assert_eq!(h.status(ready).await, Status::Queued);
    let join = h.make(after(h, &[ended.id, live, unknown]), at(2)).await;
    assert_eq!(h.status(join).await, Status::Blocked);
    assert_eq!(h.cancel(live, at(3)).await, CancelAnswer::Cancelled);
    assert_eq!(h.status(join).await, Status::Queued);
}

/// A need named twice is one need.
pub async fn a_need_named_twice_is_one_need(h: &Harness) {
    let (_, need) = h.leased(at(0)).await;
    let join = h.make(after(h, &[need.id, need.id]), at(0)).await;
    assert_eq!(h.status(join).await, Status::Blocked);
    h.succeed(&need, at(1)).await;
    assert_eq!(h.status(join).await, Status::Queued);
}

/// A whole flow enqueued in one batch: steps may need those named before them.
pub async fn a_chain_in_one_batch_opens_link_by_link(h: &Harness) {
    let first = h.new_run(h.claimed);
    let second = after(h, &[first.id]);
    let third = after(h, &[second.id]);
    h.enqueue(&[first.clone(), second.clone(), third.clone()], at(0)).await;
    let ids = [first.id, second.id, third.id];
    assert_eq!(h.statuses(&ids).await, [Status::Queued, Status::Blocked, Status::Blocked]);
    for (n, id) in ids.iter().enumerate() {
        let runs = h.claim(h.worker(), 10, at(n as i64)).await;
        assert_eq!(runs.iter().map(|run| run.id).collect::<Vec<_>>(), [*id]);
        h.succeed(&runs[0], at(n as i64)).await;
    }
}

/// Another tenant's run is none that could be waited for, living or made in the same batch:
/// to wait for it would tell when it ends.
pub async fn a_run_waits_for_no_other_tenants_run(h: &Harness) {
    let other = h.tenant("other").await;
    let theirs = |needed: RunId| NewRun { tenant: other, ..after(h, &[needed]) };
    let living = h.make(h.new_run(h.claimed), at(0)).await;
    let new = h.new_run(h.claimed);
    let (first, second, ours) = (theirs(living), theirs(new.id), after(h, &[living, new.id]));
    h.enqueue(&[new.clone(), first.clone(), second.clone(), ours.clone()], at(1)).await;
    let statuses = h.statuses(&[first.id, second.id, ours.id]).await;
    assert_eq!(statuses, [Status::Queued, Status::Queued, Status::Blocked]);
}

/// A cancelled join leaves no one waiting behind it.
pub async fn a_cancelled_join_opens_those_behind_it(h: &Harness) {
    let need = h.make(h.new_run(h.claimed), at(0)).await;
    let join = h.make(after(h, &[need]), at(0)).await;
    let last = h.make(after(h, &[join]), at(0)).await;
    assert_eq!(h.cancel(join, at(1)).await, CancelAnswer::Cancelled);
    assert_eq!(h.status(last).await, Status::Queued);
    let run = h.claim(h.worker(), 1, at(2)).await.remove(0);
    assert_eq!(h.settle(&run, succeeded(), at(2)).await, Guarded::Applied, "the need ends without its join");
}

/// A join under a concurrency key asks for its slot when it opens.
pub async fn a_join_asks_for_its_slot_when_it_opens(h: &Harness) {
    let (_, need) = h.leased(at(0)).await;
    let join = NewRun { after: vec![need.id], ..h.keyed(1, 1) };
    h.make(join.clone(), at(0)).await;
    let holder = h.make(h.keyed(1, 1), at(1)).await;
    assert_eq!(h.status(holder).await, Status::Queued, "a join that waits holds nothing");
    h.succeed(&need, at(2)).await;
    assert_eq!(h.status(join.id).await, Status::Blocked);
    let run = h.claim(h.worker(), 10, at(3)).await;
    assert_eq!(run.iter().map(|run| run.id).collect::<Vec<_>>(), [holder]);
    h.succeed(&run[0], at(4)).await;
    assert_eq!(h.status(join.id).await, Status::Queued);
    crate::slots::nothing_to_repair(h).await;
}

/// A join with a delay keeps to both.
pub async fn a_delayed_join_waits_for_its_time_too(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let (_, need) = h.leased(at(0)).await;
    let join = NewRun { after: vec![need.id], ready_at: at(5_000), ..h.keyed(1, 1) };
    h.make(join.clone(), at(0)).await;
    h.succeed(&need, at(2)).await;
    assert_eq!(h.status(join.id).await, Status::Scheduled);
    crate::slots::nothing_to_repair(h).await;
    h.store.promote(&h.write_of(owner.node, at(5_000)), &owner.parts(), 10).await.unwrap();
    assert_eq!(h.status(join.id).await, Status::Queued);
    crate::slots::nothing_to_repair(h).await;
}

/// Two last siblings that each see the other unfinished never open the join;
/// two that both see zero open it twice.
pub async fn last_siblings_settling_at_once_open_the_join_once(h: &Harness) {
    let second = h.second().await;
    for _ in 0..12 {
        let needs = h.make_many(h.claimed, 4, at(0)).await;
        let join = h.make(after(h, &needs), at(0)).await;
        let runs = h.claim(h.worker(), 4, at(0)).await;
        let mut settlers = tokio::task::JoinSet::new();
        for (n, run) in runs.into_iter().enumerate() {
            let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
            let (write, end) = (h.write(at(1)), by_lease(&run, succeeded(), at(1)));
            settlers.spawn(async move { store.settle(&write, &[end]).await.unwrap().woken });
        }
        let woken: Vec<_> = settlers.join_all().await.into_iter().flatten().map(|woken| woken.run.id).collect();
        assert_eq!(woken, [join], "opened exactly once");
        let run = h.claim(h.worker(), 10, at(2)).await;
        assert_eq!(run.len(), 1);
        h.succeed(&run[0], at(2)).await;
    }
}

/// A need that ends while its join is being made is seen by one of the two.
pub async fn a_need_that_ends_while_the_join_is_made_is_not_missed(h: &Harness) {
    let second = h.second().await;
    for _ in 0..15 {
        let (_, need) = h.leased(at(0)).await;
        let join = after(h, &[need.id]);
        let id = join.id;
        let (made, ended) = (h.write(at(1)), h.write(at(1)));
        let (store, end) = (second.clone(), by_lease(&need, succeeded(), at(1)));
        let settling = tokio::spawn(async move { store.settle(&ended, &[end]).await.unwrap().answers });
        h.store.enqueue(&made, &[join], &[]).await.unwrap();
        assert_eq!(settling.await.unwrap(), [Guarded::Applied]);
        assert_eq!(h.status(id).await, Status::Queued, "the join is open, whoever was first");
        h.cancel(id, at(2)).await;
    }
}

fn child(h: &Harness, parent: RunId) -> NewRun {
    NewRun { parent: Some(Parent { run: parent, step: 0, item: None }), ..h.new_run(h.claimed) }
}

fn for_children(count: u32) -> Outcome {
    Outcome::Parked { on: WaitFor::Children(count), until: None }
}

/// A parent that waits for its steps is ready when the last of them has ended.
pub async fn a_parent_is_ready_when_its_last_child_ends(h: &Harness) {
    let (_, parent) = h.leased(at(0)).await;
    let children = [child(h, parent.id), child(h, parent.id)];
    h.enqueue(&children, at(0)).await;
    assert_eq!(h.settle(&parent, for_children(2), at(1)).await, Guarded::Applied);
    let runs = h.claim(h.worker(), 2, at(1)).await;
    assert_eq!(h.settle(&runs[0], failed(), at(2)).await, Guarded::Applied, "a retry is no end");
    assert_eq!(h.cancel(runs[0].id, at(3)).await, CancelAnswer::Cancelled);
    assert_eq!(h.status(parent.id).await, Status::Waiting);
    let settled = h.settle_all(&[by_lease(&runs[1], succeeded(), at(4))], at(4)).await;
    assert_eq!(settled.woken.iter().map(|woken| woken.run.id).collect::<Vec<_>>(), [parent.id]);
    assert_eq!(h.status(parent.id).await, Status::Queued);
}

/// A list of 10,000 items is a step for each.
pub async fn a_parent_waits_for_ten_thousand_children(h: &Harness) {
    let (_, parent) = h.leased(at(0)).await;
    let item =
        |item| NewRun { parent: Some(Parent { run: parent.id, step: 2, item: Some(item) }), ..child(h, parent.id) };
    let children: Vec<NewRun> = (0..10_000).map(item).collect();
    for batch in children.chunks(1_000) {
        h.enqueue(batch, at(0)).await;
    }
    assert_eq!(h.settle(&parent, for_children(10_000), at(1)).await, Guarded::Applied);
    for left in (0..10).rev() {
        let runs = h.claim(h.worker(), 1_000, at(1)).await;
        let ends: Vec<_> = runs.iter().map(|run| by_lease(run, succeeded(), at(2))).collect();
        assert_eq!(h.settle_all(&ends, at(2)).await.answers, vec![Guarded::Applied; 1_000]);
        let on = WaitFor::Children(left * 1_000);
        match h.record(parent.id).await.run.state {
            RunState::Waiting { on: found, .. } => assert_eq!(found, on),
            state => assert_eq!((left, state), (0, RunState::Queued)),
        }
    }
    let last = h.record(children[9_999].id).await.run;
    assert_eq!(last.parent, Some(Parent { run: parent.id, step: 2, item: Some(9_999) }), "which item it was");
}

/// A child may end before its parent has parked; a parent that is not told
/// waits for ever.
pub async fn a_child_that_ends_before_its_parent_parks_is_counted(h: &Harness) {
    let (_, parent) = h.leased(at(0)).await;
    let children = [child(h, parent.id), child(h, parent.id)];
    h.enqueue(&children, at(0)).await;
    let runs = h.claim(h.worker(), 2, at(0)).await;
    h.succeed(&runs[0], at(1)).await;
    assert_eq!(h.settle(&parent, for_children(2), at(2)).await, Guarded::Applied);
    assert_eq!(h.status(parent.id).await, Status::Waiting);
    h.succeed(&runs[1], at(3)).await;
    assert_eq!(h.status(parent.id).await, Status::Queued);
    let again = h.claim(h.worker(), 1, at(3)).await.remove(0);
    let last = h.make(child(h, parent.id), at(3)).await;
    assert_eq!(h.cancel(last, at(4)).await, CancelAnswer::Cancelled);
    let settled = h.settle_all(&[by_lease(&again, for_children(1), at(5))], at(5)).await;
    assert_eq!(settled.answers, [Guarded::Applied]);
    assert_eq!(h.status(parent.id).await, Status::Queued, "there is nothing left to wait for");
}

/// A child counted twice would open its parent while another still runs.
pub async fn a_child_that_ends_in_the_write_that_parks_its_parent_counts_once(h: &Harness) {
    let (_, parent) = h.leased(at(0)).await;
    h.enqueue(&[child(h, parent.id), child(h, parent.id), child(h, parent.id)], at(0)).await;
    let runs = h.claim(h.worker(), 3, at(0)).await;
    let ends = [
        by_lease(&runs[0], succeeded(), at(1)),
        by_lease(&parent, for_children(3), at(1)),
        by_lease(&runs[1], succeeded(), at(1)),
    ];
    assert_eq!(h.settle_all(&ends, at(1)).await.answers, [Guarded::Applied; 3]);
    assert_eq!(h.status(parent.id).await, Status::Waiting, "one of three still runs");
    h.succeed(&runs[2], at(2)).await;
    assert_eq!(h.status(parent.id).await, Status::Queued);
}

/// The same, racing: whoever is first, the parent is ready in the end.
pub async fn children_ending_while_their_parent_parks_are_counted(h: &Harness) {
    let second = h.second().await;
    for _ in 0..12 {
        let (_, parent) = h.leased(at(0)).await;
        h.enqueue(&[child(h, parent.id), child(h, parent.id)], at(0)).await;
        let runs = h.claim(h.worker(), 2, at(0)).await;
        let mut settlers = tokio::task::JoinSet::new();
        let mut ends = vec![by_lease(&parent, for_children(2), at(1))];
        ends.extend(runs.iter().map(|run| by_lease(run, succeeded(), at(1))));
        for (n, end) in ends.into_iter().enumerate() {
            let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
            let write = h.write(at(1));
            settlers.spawn(async move { store.settle(&write, &[end]).await.unwrap().answers });
        }
        assert_eq!(settlers.join_all().await, [[Guarded::Applied]; 3]);
        assert_eq!(h.status(parent.id).await, Status::Queued);
        let run = h.claim(h.worker(), 1, at(2)).await.remove(0);
        h.succeed(&run, at(2)).await;
    }
}

/// A run that waits for what is gone would wait for ever.
pub async fn a_join_that_should_have_opened_is_opened(h: &Harness) {
    let nothing_wrong = async |now| assert_eq!(h.store.mend_joins(&h.write(now)).await.unwrap(), 0);
    let (_, need) = h.leased(at(0)).await;
    let join = h.make(after(h, &[need.id]), at(0)).await;
    nothing_wrong(at(1)).await;
    if !h.place.tie_to_nobody(join).await {
        return;
    }
    assert_eq!(h.store.mend_joins(&h.write(at(1))).await.unwrap(), 1);
    nothing_wrong(at(1)).await;
    assert_eq!(h.status(join).await, Status::Blocked, "its other need lives");
    h.settle(&need, succeeded(), at(2)).await;
    assert_eq!(h.status(join).await, Status::Queued);
    assert_eq!(h.cancel(join, at(2)).await, CancelAnswer::Cancelled);

    let (_, need) = h.leased(at(3)).await;
    let join = h.make(after(h, &[need.id]), at(3)).await;
    h.place.spoil_joins().await;
    h.settle(&need, succeeded(), at(4)).await;
    assert_eq!(h.status(join).await, Status::Blocked, "nobody told it");
    assert_eq!(h.store.mend_joins(&h.write(at(5))).await.unwrap(), 1);
    assert_eq!(h.status(join).await, Status::Queued);
    nothing_wrong(at(6)).await;
}
