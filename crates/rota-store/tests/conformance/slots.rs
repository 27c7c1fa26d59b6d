//! Slots: never more held than the limit, and none leaked on any way out.

use rota_core::{
    ids::RunId,
    run::{NewRun, Outcome, Run, RunState, Status, TrailKind, Verdict, WaitFor},
    slot::{Slot, SlotAsk, WhenFull},
    store::{CancelAnswer, Enqueued, Guarded, Standing},
    why::AHEAD_MAX,
};

use crate::harness::*;

const BLOCKED: Enqueued = Enqueued::Made { status: Status::Blocked, handed: false };
const QUEUED: Enqueued = Enqueued::Made { status: Status::Queued, handed: false };

fn full(h: &Harness, when_full: WhenFull, max_queued: Option<u32>) -> NewRun {
    NewRun { slot: Some(SlotAsk { when_full, max_queued, ..slot(1, 1) }), ..h.new_run(h.claimed) }
}

/// A holder of key 1 (limit 1) and `waiting` runs behind it.
async fn holder_and(h: &Harness, waiting: usize) -> (Run, Vec<RunId>) {
    let runs: Vec<_> = (0..=waiting).map(|_| h.keyed(1, 1)).collect();
    h.enqueue(&runs, at(0)).await;
    let holder = h.claim(h.worker(), 10, at(0)).await;
    assert_eq!(holder.len(), 1, "one holds, the others wait");
    (holder.into_iter().next().unwrap(), runs[1..].iter().map(|run| run.id).collect())
}

/// The counters must fit the live runs after all that a case did.
pub async fn nothing_to_repair(h: &Harness) {
    assert_eq!(h.store.recount_slots(&h.write(at(0))).await.unwrap(), 0, "a counter does not fit the live runs");
}

/// More than the limit at once is what the key is there to prevent.
pub async fn no_more_than_the_limit_hold_a_slot(h: &Harness) {
    let runs: Vec<_> = (0..7).map(|_| h.keyed(1, 3)).collect();
    let answers = h.enqueue(&runs, at(0)).await;
    assert_eq!(answers, [QUEUED, QUEUED, QUEUED, BLOCKED, BLOCKED, BLOCKED, BLOCKED]);
    let held = h.claim(h.worker(), 10, at(0)).await;
    assert_eq!(
        held.iter().map(|run| run.id).collect::<Vec<_>>(),
        runs[..3].iter().map(|run| run.id).collect::<Vec<_>>()
    );
    for (n, run) in held.iter().enumerate() {
        let settled = h.settle_all(&[by_lease(run, succeeded(), at(1))], at(1)).await;
        assert_eq!(settled.woken.iter().map(|woken| woken.run.id).collect::<Vec<_>>(), [runs[3 + n].id]);
        assert!(settled.woken.iter().all(|woken| woken.run.state == RunState::Queued));
    }
    assert_eq!(h.status(runs[6].id).await, Status::Blocked);
    nothing_to_repair(h).await;
}

/// Whoever wonders why a run waits is told how many come before it, and that
/// counting ends somewhere.
pub async fn what_stands_before_a_run_is_told(h: &Harness) {
    let runs: Vec<_> = (0..4).map(|_| h.keyed(1, 1)).collect();
    for (n, run) in runs.iter().enumerate() {
        h.enqueue(&[NewRun { ready_at: at(n as i64), ..run.clone() }], at(10)).await;
    }
    let plain: Vec<_> = (0..3).map(|n| NewRun { ready_at: at(100 + n), ..h.new_run(h.claimed) }).collect();
    h.enqueue(&plain, at(200)).await;
    let held = Slot { limit: 1, held: 1, waiting: 3 };
    let standing = h.store.standing(runs[3].id).await.unwrap();
    assert_eq!((standing.slot, standing.ahead_for_slot), (Some(held), 2));
    let standing = h.store.standing(plain[2].id).await.unwrap();
    assert_eq!((standing.slot, standing.ahead), (None, 3), "the holder and two more are queued before it");
    assert_eq!(h.store.standing(h.new_run(h.claimed).id).await.unwrap(), Standing::default(), "nobody knows it");
    let many: Vec<_> = (0..1_100).map(|_| NewRun { ready_at: at(50), ..h.new_run(h.claimed) }).collect();
    h.enqueue(&many, at(200)).await;
    assert_eq!(h.store.standing(plain[2].id).await.unwrap().ahead, AHEAD_MAX + 1);
}

/// Keys do not stand in each other's way.
pub async fn keys_are_apart(h: &Harness) {
    let runs = [h.keyed(1, 1), h.keyed(2, 1), h.keyed(1, 1), h.keyed(-3, 1), h.new_run(h.claimed)];
    assert_eq!(h.enqueue(&runs, at(0)).await, [QUEUED, QUEUED, BLOCKED, QUEUED, QUEUED]);
    nothing_to_repair(h).await;
}

/// Several released in one batch admit several, in order.
pub async fn a_batch_of_releases_admits_as_many_in_order(h: &Harness) {
    let mut runs: Vec<_> = (0..4).map(|_| h.keyed(1, 2)).collect();
    // The later made is the older: it goes first.
    let old = NewRun { ready_at: at(-60_000), ..h.keyed(1, 2) };
    runs.push(old.clone());
    h.enqueue(&runs, at(0)).await;
    let held = h.claim(h.worker(), 10, at(0)).await;
    let settlements: Vec<_> = held.iter().map(|run| by_lease(run, succeeded(), at(1))).collect();
    let mut woken: Vec<_> = h.settle_all(&settlements, at(1)).await.woken.iter().map(|w| w.run.id).collect();
    woken.sort();
    let mut expected = [old.id, runs[2].id];
    expected.sort();
    assert_eq!(woken, expected);
    assert_eq!(h.status(runs[3].id).await, Status::Blocked);
    nothing_to_repair(h).await;
}

/// `queue` waits, but no more than `max_queued`.
pub async fn a_full_queue_refuses(h: &Harness) {
    let ask = |h: &Harness| full(h, WhenFull::Queue, Some(2));
    let runs = [ask(h), ask(h), ask(h), ask(h)];
    assert_eq!(h.enqueue(&runs, at(0)).await, [QUEUED, BLOCKED, BLOCKED, Enqueued::Full]);
    assert_eq!(h.store.runs(&[runs[3].id]).await.unwrap(), [None], "what was refused is not there");
    assert_eq!(h.enqueue(&[ask(h)], at(1)).await, [Enqueued::Full]);
    nothing_to_repair(h).await;
}

/// `skip` and `reject` make no run while the key is full.
pub async fn skip_and_reject_make_no_run(h: &Harness) {
    for when_full in [WhenFull::Skip, WhenFull::Reject] {
        let first = full(h, when_full, None);
        let answers = h.enqueue(&[first.clone(), full(h, when_full, None)], at(0)).await;
        assert_eq!(answers, [QUEUED, Enqueued::Full]);
        let run = h.claim(h.worker(), 1, at(0)).await.remove(0);
        assert_eq!(run.id, first.id);
        h.succeed(&run, at(1)).await;
    }
    nothing_to_repair(h).await;
}

/// `replace` takes the place of all that waited; they end, and say why.
pub async fn replace_displaces_all_that_waited(h: &Harness) {
    let (holder, waiting) = holder_and(h, 3).await;
    let newest = full(h, WhenFull::Replace, None);
    assert_eq!(h.enqueue(std::slice::from_ref(&newest), at(1)).await, [BLOCKED]);
    for id in &waiting {
        let record = h.record(*id).await;
        assert_eq!(record.run.state, RunState::Finished { at: at(1), verdict: Verdict::Skipped });
        assert!(record.trail.iter().any(|entry| entry.kind == TrailKind::Displaced { by: newest.id }));
    }
    assert_eq!(h.status(holder.id).await, Status::Running, "who holds a slot is left alone");
    let settled = h.settle_all(&[by_lease(&holder, succeeded(), at(2))], at(2)).await;
    assert_eq!(settled.woken.iter().map(|woken| woken.run.id).collect::<Vec<_>>(), [newest.id]);
    nothing_to_repair(h).await;
}

/// Several that replace, in one batch: the last one waits, each of the others
/// ends once.
pub async fn replacing_within_a_batch_leaves_the_last(h: &Harness) {
    let runs: Vec<_> = (0..4).map(|_| full(h, WhenFull::Replace, None)).collect();
    let answers = h.enqueue(&runs, at(0)).await;
    assert!(answers.iter().all(|answer| matches!(answer, Enqueued::Made { .. })), "{answers:?}");
    let skipped = Status::Ended(Verdict::Skipped);
    let ids: Vec<_> = runs.iter().map(|run| run.id).collect();
    assert_eq!(h.statuses(&ids).await, [Status::Queued, skipped, skipped, Status::Blocked]);
    nothing_to_repair(h).await;
}

/// `cancel_running` asks the holders to stop, and waits for it.
pub async fn cancel_running_asks_the_holders_to_stop(h: &Harness) {
    let (holder, _) = holder_and(h, 0).await;
    let newest = full(h, WhenFull::CancelRunning, None);
    assert_eq!(h.enqueue(std::slice::from_ref(&newest), at(1)).await, [BLOCKED]);
    assert_eq!(h.status(holder.id).await, Status::Cancelling);
    let asked = h.record(holder.id).await.run;
    let settled = h.settle_all(&[by_lease(&asked, Outcome::Cancelled, at(2))], at(2)).await;
    assert_eq!(settled.answers, [Guarded::Applied]);
    assert_eq!(settled.woken.iter().map(|woken| woken.run.id).collect::<Vec<_>>(), [newest.id]);
    nothing_to_repair(h).await;
}

/// A holder that nobody executes ends at once, and its slot goes on.
pub async fn cancel_running_ends_a_queued_holder_at_once(h: &Harness) {
    let holder = h.make(h.keyed(1, 1), at(0)).await;
    let newest = full(h, WhenFull::CancelRunning, None);
    let answers = h.enqueue(std::slice::from_ref(&newest), at(1)).await;
    assert_eq!(h.status(holder).await, Status::Ended(Verdict::Cancelled));
    assert_eq!(h.status(newest.id).await, Status::Queued, "the slot is free, so the newest has it");
    assert_eq!(answers, [QUEUED], "and its maker is told so");
    nothing_to_repair(h).await;
}

/// Every way out of a slot lets the next one in, in its own transaction.
pub async fn every_end_of_a_holder_admits_the_next(h: &Harness) {
    let outcomes = [
        succeeded(),
        broken(),
        failed(),
        Outcome::Cancelled,
        Outcome::Deferred { until: at(900_000), reason: "x".into() },
    ];
    for outcome in outcomes {
        let (holder, waiting) = holder_and(h, 1).await;
        let settled = h.settle_all(&[by_lease(&holder, outcome.clone(), at(1))], at(1)).await;
        assert_eq!(settled.answers, [Guarded::Applied]);
        assert_eq!(settled.woken.iter().map(|w| w.run.id).collect::<Vec<_>>(), waiting, "{outcome:?}");
        let next = h.claim(h.worker(), 1, at(1)).await.remove(0);
        assert_eq!(next.id, waiting[0]);
        h.succeed(&next, at(2)).await;
        nothing_to_repair(h).await;
        if h.status(holder.id).await == Status::Scheduled {
            assert_eq!(h.cancel(holder.id, at(3)).await, CancelAnswer::Cancelled);
        }
    }
    nothing_to_repair(h).await;
}

/// A parked run keeps its slot: it has not let go of what the key protects.
pub async fn a_parked_run_keeps_its_slot(h: &Harness) {
    let (holder, waiting) = holder_and(h, 1).await;
    let parked = Outcome::Parked { on: WaitFor::Approval, until: None };
    let settled = h.settle_all(&[by_lease(&holder, parked, at(1))], at(1)).await;
    assert_eq!(settled.woken, []);
    assert_eq!(h.statuses(&waiting).await, [Status::Blocked]);
    assert_eq!(h.store.wake(&h.write(at(2)), &[holder.id]).await.unwrap(), [Guarded::Applied]);
    assert_eq!(h.statuses(&[holder.id, waiting[0]]).await, [Status::Queued, Status::Blocked]);
    nothing_to_repair(h).await;
}

/// Cancelling, sweeping, reaping and releasing let go of slots as settling does.
pub async fn cancel_sweep_reap_and_release_admit_the_next(h: &Harness) {
    // A parked holder is cancelled at once.
    let (holder, waiting) = holder_and(h, 1).await;
    h.settle(&holder, Outcome::Parked { on: WaitFor::Approval, until: None }, at(1)).await;
    assert_eq!(h.cancel(holder.id, at(2)).await, CancelAnswer::Cancelled);
    assert_eq!(h.statuses(&waiting).await, [Status::Queued], "cancel");
    // A lost holder goes into backoff.
    let lost = h.claim(h.worker(), 1, at(2)).await.remove(0);
    let next = h.make(h.keyed(1, 1), at(3)).await;
    assert_eq!(h.status(next).await, Status::Blocked);
    h.reap(at(60_000), at(60_000)).await;
    assert_eq!(h.statuses(&[lost.id, next]).await, [Status::Scheduled, Status::Queued], "reap");
    assert_eq!(h.cancel(lost.id, at(60_001)).await, CancelAnswer::Cancelled);
    // A worker that was asked to stop hands back.
    let worker = h.worker();
    let held = h.claim(worker, 1, at(60_001)).await.remove(0);
    assert_eq!(held.id, next);
    let next = h.make(h.keyed(1, 1), at(60_002)).await;
    h.cancel(held.id, at(60_002)).await;
    h.store.release(&h.write(at(60_003)), worker).await.unwrap();
    assert_eq!(h.status(next).await, Status::Queued, "release");
    // A queued holder expires.
    let held = h.claim(h.worker(), 1, at(60_003)).await.remove(0);
    let expiring = h.make(NewRun { expires_at: Some(at(70_000)), ..h.keyed(1, 1) }, at(60_004)).await;
    h.succeed(&held, at(60_005)).await;
    let next = h.make(h.keyed(1, 1), at(60_006)).await;
    assert_eq!(h.statuses(&[expiring, next]).await, [Status::Queued, Status::Blocked]);
    h.sweep(at(70_000)).await;
    assert_eq!(h.statuses(&[expiring, next]).await, [Status::Ended(Verdict::Expired), Status::Queued], "sweep");
    nothing_to_repair(h).await;
}

/// One that waited and went must not be counted as waiting for ever.
pub async fn one_that_waited_and_went_is_not_counted(h: &Harness) {
    let (holder, waiting) = holder_and(h, 3).await;
    assert_eq!(h.cancel(waiting[0], at(1)).await, CancelAnswer::Cancelled);
    let settled = h.settle_all(&[by_lease(&holder, succeeded(), at(2))], at(2)).await;
    assert_eq!(settled.woken.iter().map(|w| w.run.id).collect::<Vec<_>>(), [waiting[1]]);
    let holder = h.claim(h.worker(), 1, at(2)).await.remove(0);
    assert_eq!(h.cancel(waiting[2], at(3)).await, CancelAnswer::Cancelled);
    assert_eq!(h.settle_all(&[by_lease(&holder, succeeded(), at(4))], at(4)).await.woken, []);
    assert_eq!(h.enqueue(&[h.keyed(1, 1)], at(5)).await, [QUEUED]);
    nothing_to_repair(h).await;
}

/// A retry comes back to its key as one who waits its turn, never refused.
pub async fn a_promoted_run_waits_its_turn(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let holder = h.make(full(h, WhenFull::Reject, None), at(0)).await;
    let run = h.claim(h.worker(), 1, at(0)).await.remove(0);
    assert_eq!(h.settle(&run, failed(), at(1)).await, Guarded::Applied);
    let other = h.make(full(h, WhenFull::Reject, None), at(2)).await;
    assert_eq!(h.status(other).await, Status::Queued, "backoff holds no slot");
    let promoted = h.store.promote(&h.write_of(owner.node, at(5_000)), &owner.parts(), 10).await.unwrap();
    assert_eq!((promoted.moved, promoted.woken.len()), (1, 0));
    assert_eq!(h.status(holder).await, Status::Blocked);
    let run = h.claim(h.worker(), 1, at(5_000)).await.remove(0);
    let settled = h.settle_all(&[by_lease(&run, succeeded(), at(5_001))], at(5_001)).await;
    assert_eq!(settled.woken.iter().map(|w| w.run.id).collect::<Vec<_>>(), [holder]);
    nothing_to_repair(h).await;
}

/// An edited limit takes effect at the next run: up at once, down as they leave.
pub async fn the_newest_limit_holds(h: &Harness) {
    let (holder, waiting) = holder_and(h, 2).await;
    let newest = h.keyed(1, 3);
    let third = newest.id;
    assert_eq!(h.enqueue(&[newest], at(1)).await, [BLOCKED]);
    let mut ready: Vec<_> = waiting.clone();
    ready.push(third);
    assert_eq!(
        h.statuses(&ready).await,
        [Status::Queued, Status::Queued, Status::Blocked],
        "three may hold it now, in order"
    );
    let fourth = h.make(h.keyed(1, 1), at(2)).await;
    assert_eq!(h.status(fourth).await, Status::Blocked);
    h.succeed(&holder, at(3)).await;
    assert_eq!(h.status(third).await, Status::Blocked, "two hold it, one may");
    for run in h.claim(h.worker(), 10, at(4)).await {
        h.succeed(&run, at(4)).await;
    }
    assert_eq!(h.statuses(&[third, fourth]).await, [Status::Queued, Status::Blocked]);
    nothing_to_repair(h).await;
}

/// A raised limit and a holder that ended in one write: every free slot is
/// given out, or someone waits beside an empty one.
pub async fn a_raised_limit_and_a_cancelled_holder_leave_no_slot_empty(h: &Harness) {
    let runs: Vec<_> = (0..4).map(|_| h.keyed(1, 1)).collect();
    h.enqueue(&runs, at(0)).await;
    let newest = NewRun { slot: Some(SlotAsk { when_full: WhenFull::CancelRunning, ..slot(1, 3) }), ..h.keyed(1, 3) };
    h.enqueue(std::slice::from_ref(&newest), at(1)).await;
    let ids: Vec<_> = runs.iter().map(|run| run.id).chain([newest.id]).collect();
    let cancelled = Status::Ended(Verdict::Cancelled);
    assert_eq!(h.statuses(&ids).await, [cancelled, Status::Queued, Status::Queued, Status::Queued, Status::Blocked]);
    nothing_to_repair(h).await;
}

/// A new run that is let in at once, by a raised limit or a holder that ended,
/// is handed to its maker; one that believes it blocked leaves it lying.
pub async fn a_new_run_that_is_let_in_at_once_is_handed_over(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let keyed = |limit| NewRun { slot: Some(slot(1, limit)), lane: h.owned, ..h.new_run(h.owned) };
    let enqueue = async |run: NewRun, now| {
        h.store.enqueue(&h.write_of(owner.node, at(now)), &[run], &[]).await.unwrap().remove(0)
    };
    let handed = Enqueued::Made { status: Status::Queued, handed: true };
    assert_eq!(enqueue(keyed(1), 0).await, handed);
    let waiting = keyed(1);
    assert_eq!(enqueue(waiting.clone(), 0).await, BLOCKED);
    assert_eq!(enqueue(keyed(3), 1).await, handed);
    let notices = h.store.notices(&owner.parts(), 10).await.unwrap();
    assert_eq!(notices.iter().map(|run| run.id).collect::<Vec<_>>(), [waiting.id], "the other one is noticed");
    nothing_to_repair(h).await;
}

/// Nodes that settle and enqueue one key at once must neither both admit nor
/// leave a free slot with a queue behind it.
pub async fn slots_released_and_taken_at_once_neither_leak_nor_overflow(h: &Harness) {
    let second = h.second().await;
    let mut players = tokio::task::JoinSet::new();
    for n in 0..4 {
        let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
        let batches: Vec<Vec<NewRun>> = (0..10).map(|k| (0..3).map(|j| h.keyed((j + k) % 2, 2)).collect()).collect();
        let writes: Vec<_> = (0..60).map(|_| h.write(at(1))).collect();
        let claim = h.claim_of(h.worker(), 4, at(1));
        players.spawn(async move {
            let mut writes = writes.into_iter();
            for runs in batches {
                store.enqueue(&writes.next().unwrap(), &runs, &[]).await.unwrap();
                let held = store.claim(&writes.next().unwrap(), std::slice::from_ref(&claim)).await.unwrap();
                let ends: Vec<_> = held
                    .iter()
                    .enumerate()
                    .map(|(k, run)| by_lease(run, if k % 2 == 0 { succeeded() } else { failed() }, at(1)))
                    .collect();
                let settled = store.settle(&writes.next().unwrap(), &ends).await.unwrap();
                assert!(settled.answers.iter().all(|answer| *answer == Guarded::Applied));
            }
        });
    }
    players.join_all().await;
    nothing_to_repair(h).await;
    // Everything drains: a slot that leaked would leave someone blocked.
    let owner = h.owner(at(2)).await;
    for round in 0..200 {
        let now = at(60_000 * (round + 1));
        h.store.promote(&h.write_of(owner.node, now), &owner.parts(), 1_000).await.unwrap();
        for run in h.claim(h.worker(), 1_000, now).await {
            h.succeed(&run, now).await;
        }
        let query = rota_core::store::RunQuery {
            statuses: vec![Status::Blocked, Status::Scheduled, Status::Queued],
            limit: 1_000,
            ..Default::default()
        };
        if h.list(query).await.is_empty() {
            return nothing_to_repair(h).await;
        }
    }
    panic!("some runs never got their slot");
}

/// A recount looks; a key that nobody has asked for yet must not be given a
/// limit by it.
pub async fn a_recount_leaves_keys_of_delayed_runs_alone(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let runs: Vec<_> = (0..3).map(|_| NewRun { ready_at: at(1_000), ..h.keyed(1, 2) }).collect();
    h.enqueue(&runs, at(0)).await;
    nothing_to_repair(h).await;
    h.store.promote(&h.write_of(owner.node, at(1_000)), &owner.parts(), 10).await.unwrap();
    let ids: Vec<_> = runs.iter().map(|run| run.id).collect();
    assert_eq!(h.statuses(&ids).await, [Status::Queued, Status::Queued, Status::Blocked]);
    nothing_to_repair(h).await;
}

/// A counter that went wrong would starve its key for ever, or let it overflow.
pub async fn a_wrong_counter_is_repaired_and_admits(h: &Harness) {
    let (holder, waiting) = holder_and(h, 2).await;
    if !h.place.spoil_slots().await {
        return;
    }
    assert_eq!(h.store.recount_slots(&h.write(at(1))).await.unwrap(), 1);
    nothing_to_repair(h).await;
    h.succeed(&holder, at(2)).await;
    assert_eq!(h.statuses(&waiting).await, [Status::Queued, Status::Blocked]);
    nothing_to_repair(h).await;
}
