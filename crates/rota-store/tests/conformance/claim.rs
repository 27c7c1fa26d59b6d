//! Claimed lanes: written leases, each run to one worker at a time.

use std::collections::BTreeSet;

use rota_core::{
    dispatch::{Pair, Share},
    order::{OrderKey, Priority},
    run::{Fence, Hold, NewRun, Outcome, RunState, Status, Verdict, WaitFor},
    store::{Claim, Extended, Guarded},
};

use crate::harness::*;

/// A claim that does not say what it leased leaves its worker without a fence.
pub async fn a_claim_leases_with_a_raised_fence(h: &Harness) {
    let id = h.make(h.new_run(h.claimed), at(0)).await;
    let worker = h.worker();
    let runs = h.claim(worker, 10, at(5)).await;
    assert_eq!(runs.len(), 1);
    assert_eq!((runs[0].id, runs[0].fence), (id, Fence(1)));
    assert_eq!(runs[0].state, RunState::Running { hold: Hold::Leased(worker), started_at: at(5) });
    assert_eq!(h.record(id).await.run, runs[0], "what was answered is what is stored");
}

/// A statement per worker would make a thousand waiting workers a thousand
/// commits; and what each was leased must be its own.
pub async fn one_write_leases_to_many_workers(h: &Harness) {
    let made = h.make_many(h.claimed, 5, at(0)).await;
    let (first, second, third) = (h.worker(), h.worker(), h.worker());
    let claims = [h.claim_of(first, 2, at(1)), h.claim_of(second, 2, at(1)), h.claim_of(third, 9, at(1))];
    let write = h.write(at(1));
    let runs = h.store.claim(&write, &claims).await.unwrap();
    let held: Vec<_> = runs.iter().map(|run| (run.id, run.state.clone())).collect();
    let holder = |worker| RunState::Running { hold: Hold::Leased(worker), started_at: at(1) };
    let expected: Vec<_> = made.iter().copied().zip([first, first, second, second, third].map(holder)).collect();
    assert_eq!(held, expected);
    let mut again = h.store.claim(&write, &claims).await.unwrap();
    again.sort_by_key(|run| run.id);
    assert_eq!(again, runs, "asked again, it leases nothing more");
    for (worker, count) in [(first, 2), (second, 2), (third, 1)] {
        let extended = h.store.extend(worker, at(9_000), &[], at(2)).await.unwrap();
        assert_eq!(extended.unlisted.len(), count);
    }
}

/// Priority and age are the order; a claim that ignores it starves the urgent.
pub async fn a_share_is_leased_in_order(h: &Harness) {
    let run = |ready_ms, priority| NewRun {
        ready_at: at(ready_ms),
        priority: Priority::new(priority).unwrap(),
        ..h.new_run(h.claimed)
    };
    // A minute of waiting is worth one level.
    let runs = [run(120_000, 3), run(0, 5), run(61_000, 4), run(0, 4), run(0, 10), run(120_000, 1)];
    h.enqueue(&runs, at(120_000)).await;
    let mut expected: Vec<_> = runs.iter().map(|run| (OrderKey::new(run.ready_at, run.priority), run.id)).collect();
    expected.sort();
    let leased = h.claim(h.worker(), 3, at(120_000)).await;
    let keys: Vec<_> = leased.iter().map(|run| (run.order_key(), run.id)).collect();
    assert_eq!(keys, expected[..3]);
    let rest = h.claim(h.worker(), 10, at(120_000)).await;
    assert_eq!(rest.iter().map(|run| (run.order_key(), run.id)).collect::<Vec<_>>(), expected[3..]);
}

/// One tenant's share must not be filled with another's runs.
pub async fn each_share_is_kept_to_its_pair_and_number(h: &Harness) {
    let other = h.tenant("other").await;
    let mut runs: Vec<_> = (0..6).map(|_| h.new_run(h.claimed)).collect();
    for run in &mut runs[3..] {
        run.tenant = other;
    }
    h.enqueue(&runs, at(0)).await;
    let share = |tenant, runs| Share { pair: Pair { lane: h.claimed, tenant }, low: OrderKey::MIN, runs };
    let claim =
        Claim { worker: h.worker(), until: at(6_000), shares: vec![share(h.tenant, 2), share(other, 1)], most: 10 };
    let leased = h.store.claim(&h.write(at(0)), std::slice::from_ref(&claim)).await.unwrap();
    let of = |tenant| leased.iter().filter(|run| run.tenant == tenant).count();
    assert_eq!((of(h.tenant), of(other)), (2, 1));
}

/// A worker that asks for two and is sent ten drops eight.
pub async fn no_more_than_asked_for_are_leased(h: &Harness) {
    let other = h.tenant("other").await;
    let mut runs: Vec<_> = (0..10).map(|_| h.new_run(h.claimed)).collect();
    for run in &mut runs[5..] {
        run.tenant = other;
    }
    h.enqueue(&runs, at(0)).await;
    let share = |tenant| Share { pair: Pair { lane: h.claimed, tenant }, low: OrderKey::MIN, runs: 5 };
    let claim = Claim { worker: h.worker(), until: at(6_000), shares: vec![share(h.tenant), share(other)], most: 7 };
    assert_eq!(h.store.claim(&h.write(at(0)), std::slice::from_ref(&claim)).await.unwrap().len(), 7);
    assert_eq!(h.claim(h.worker(), 0, at(0)).await.len(), 0);
    let none = Claim { worker: h.worker(), until: at(6_000), shares: Vec::new(), most: 5 };
    assert_eq!(h.store.claim(&h.write(at(0)), std::slice::from_ref(&none)).await.unwrap().len(), 0);
}

/// The low-water key spares the index its dead front; it must cut nothing else.
pub async fn a_share_does_not_look_below_its_low_key(h: &Harness) {
    let early = h.new_run(h.claimed);
    let late = NewRun { ready_at: at(10), ..h.new_run(h.claimed) };
    h.enqueue(&[early.clone(), late.clone()], at(10)).await;
    let low = OrderKey::new(late.ready_at, late.priority);
    let pair = Pair { lane: h.claimed, tenant: h.tenant };
    let claim = Claim { worker: h.worker(), until: at(6_000), shares: vec![Share { pair, low, runs: 5 }], most: 5 };
    let leased = h.store.claim(&h.write(at(10)), std::slice::from_ref(&claim)).await.unwrap();
    assert_eq!(leased.iter().map(|run| run.id).collect::<Vec<_>>(), [late.id]);
    assert_eq!(h.claim(h.worker(), 5, at(10)).await[0].id, early.id);
}

/// Its owner may be executing it: a claim would make it run twice at once.
pub async fn a_run_of_an_owned_lane_cannot_be_claimed(h: &Harness) {
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let pair = Pair { lane: h.owned, tenant: h.tenant };
    let share = Share { pair, low: OrderKey::MIN, runs: 5 };
    let claim = Claim { worker: h.worker(), until: at(6_000), shares: vec![share], most: 5 };
    assert_eq!(h.store.claim(&h.write(at(0)), std::slice::from_ref(&claim)).await.unwrap(), Vec::new());
    assert_eq!(h.status(id).await, Status::Queued);
}

/// Delayed, blocked, parked, cancelled and ended runs are nobody's to start.
pub async fn only_queued_runs_are_leased(h: &Harness) {
    let delayed = h.make(NewRun { ready_at: at(60_000), ..h.new_run(h.claimed) }, at(0)).await;
    let first = h.keyed(1, 1);
    let blocked = h.keyed(1, 1);
    h.enqueue(&[first.clone(), blocked.clone()], at(0)).await;
    let joined = h.make(NewRun { after: vec![delayed], ..h.new_run(h.claimed) }, at(0)).await;
    let leased = h.claim(h.worker(), 10, at(0)).await;
    assert_eq!(leased.iter().map(|run| run.id).collect::<Vec<_>>(), [first.id]);
    let parked = Outcome::Parked { on: WaitFor::Approval, until: None };
    assert_eq!(h.settle(&leased[0], parked, at(1)).await, Guarded::Applied);
    assert_eq!(h.claim(h.worker(), 10, at(2)).await.len(), 0);
    assert_eq!(
        h.statuses(&[delayed, first.id, blocked.id, joined]).await,
        [Status::Scheduled, Status::Waiting, Status::Blocked, Status::Blocked]
    );
}

/// Two leases of one run at once are two executions.
pub async fn no_run_is_leased_twice_by_many_claimers_at_once(h: &Harness) {
    let made = h.make_many(h.claimed, 400, at(0)).await;
    let second = h.second().await;
    let mut claimers = tokio::task::JoinSet::new();
    for n in 0..8 {
        let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
        let worker = h.worker();
        let claims: Vec<_> = (0..12).map(|_| (h.write(at(1)), h.claim_of(worker, 7, at(1)))).collect();
        claimers.spawn(async move {
            let mut leased = Vec::new();
            for (write, claim) in claims {
                for run in store.claim(&write, std::slice::from_ref(&claim)).await.unwrap() {
                    leased.push((worker, run));
                }
            }
            leased
        });
    }
    let mut seen = BTreeSet::new();
    for (worker, run) in claimers.join_all().await.into_iter().flatten() {
        assert!(seen.insert(run.id), "{} was leased twice", run.id);
        assert_eq!(run.fence, Fence(1));
        let RunState::Running { hold: Hold::Leased(holder), .. } = h.record(run.id).await.run.state else {
            panic!("a leased run is running");
        };
        assert_eq!(holder, worker, "the holder is who was told so");
    }
    let rest = h.claim(h.worker(), 1_000, at(2)).await;
    assert_eq!(seen.len() + rest.len(), made.len(), "nothing is lost between claimers");
}

/// A claim whose answer was lost must not lease a second helping.
pub async fn a_claim_asked_again_returns_the_same_runs(h: &Harness) {
    h.make_many(h.claimed, 10, at(0)).await;
    let worker = h.worker();
    let write = h.write(at(1));
    let claim = h.claim_of(worker, 4, at(1));
    let first = h.store.claim(&write, std::slice::from_ref(&claim)).await.unwrap();
    let again = h.store.claim(&write, std::slice::from_ref(&claim)).await.unwrap();
    assert_eq!(first.len(), 4);
    assert_same(&first, &again, "the same claim");
    assert_eq!(h.claim(h.worker(), 100, at(2)).await.len(), 6, "nothing more was leased");
    h.succeed(&first[0], at(3)).await;
    let late = h.store.claim(&write, std::slice::from_ref(&claim)).await.unwrap();
    for run in &first[1..] {
        assert!(late.contains(run), "what is still held is named again");
    }
    assert!(late.iter().all(|run| first.contains(run)), "and nothing else");
}

/// A claim that found nothing must find nothing again: its caller has moved on.
pub async fn an_empty_claim_asked_again_stays_empty(h: &Harness) {
    let write = h.write(at(0));
    let claim = h.claim_of(h.worker(), 4, at(0));
    assert_eq!(h.store.claim(&write, std::slice::from_ref(&claim)).await.unwrap().len(), 0);
    h.make_many(h.claimed, 3, at(1)).await;
    assert_eq!(h.store.claim(&write, std::slice::from_ref(&claim)).await.unwrap().len(), 0);
}

/// Only a lease and its extension are a worker's word; asking in vain is none.
pub async fn a_claim_in_vain_extends_nothing(h: &Harness) {
    let (worker, run) = h.leased(at(0)).await;
    assert_eq!(h.claim(worker, 5, at(5_000)).await, []);
    assert_eq!(h.reap(at(6_001), at(6_001)).await.len(), 1);
    assert_eq!(h.status(run.id).await, rota_core::run::Status::Scheduled);
}

/// A worker's list and the store's must be made to agree, in both directions.
pub async fn extending_tells_lost_unlisted_and_cancelling(h: &Harness) {
    h.make_many(h.claimed, 4, at(0)).await;
    let worker = h.worker();
    let runs = h.claim(worker, 4, at(0)).await;
    let held: Vec<_> = runs.iter().map(rota_core::run::Run::lease).collect();
    assert_eq!(h.store.extend(worker, at(10_000), &held, at(1)).await.unwrap(), Extended::default());
    h.succeed(&runs[0], at(2)).await;
    h.cancel(runs[1].id, at(2)).await;
    let answer = h.store.extend(worker, at(10_000), &held[..3], at(3)).await.unwrap();
    assert_eq!(answer.lost, [runs[0].id]);
    assert_eq!(answer.cancelling, [runs[1].id]);
    assert_eq!(answer.unlisted, [held[3]]);
}

/// The lease lasts as long as the last word of its worker.
pub async fn an_extended_lease_is_not_reaped(h: &Harness) {
    let (worker, run) = h.leased(at(0)).await;
    h.store.extend(worker, at(20_000), &[run.lease()], at(5_000)).await.unwrap();
    assert_eq!(h.reap(at(10_000), at(10_000)).await, Vec::new());
    assert_eq!(h.reap(at(20_001), at(20_001)).await.len(), 1);
    let answer = h.store.extend(worker, at(30_000), &[run.lease()], at(21_000)).await.unwrap();
    assert_eq!(answer.lost, [run.id], "what was reaped is lost, whatever its worker says");
    assert_eq!(h.settle(&run, succeeded(), at(21_001)).await, Guarded::Stale);
}

/// A drained worker's runs must start elsewhere at once, at no cost.
pub async fn release_hands_back_everything_a_worker_holds(h: &Harness) {
    h.make_many(h.claimed, 3, at(0)).await;
    let worker = h.worker();
    let runs = h.claim(worker, 3, at(0)).await;
    h.cancel(runs[2].id, at(1)).await;
    let woken = h.store.release(&h.write(at(2)), worker).await.unwrap();
    let mut ids: Vec<_> = woken.iter().map(|woken| woken.run.id).collect();
    ids.sort();
    assert_eq!(ids, [runs[0].id, runs[1].id]);
    assert!(woken.iter().all(|woken| !woken.handed && woken.run.state == RunState::Queued));
    assert_eq!(h.status(runs[2].id).await, Status::Ended(Verdict::Cancelled));
    assert_eq!(h.settle(&runs[0], succeeded(), at(3)).await, Guarded::Stale, "the old lease is void");
    let again = h.claim(h.worker(), 10, at(3)).await;
    assert_eq!(again.len(), 2);
    assert!(again.iter().all(|run| run.fence == Fence(3) && run.attempts_used == 0 && run.losses == 0));
}

/// The full look must name every pair with ready runs and its first key.
pub async fn ready_pairs_name_each_pair_with_its_first_key(h: &Harness) {
    let other = h.tenant("other").await;
    let late = NewRun { ready_at: at(5), ..h.new_run(h.claimed) };
    let early = h.new_run(h.claimed);
    let theirs = NewRun { tenant: other, ready_at: at(3), ..h.new_run(h.claimed) };
    let delayed = NewRun { tenant: other, ready_at: at(60_000), ..h.new_run(h.claimed) };
    h.enqueue(&[late, early.clone(), theirs.clone(), delayed, h.new_run(h.owned)], at(5)).await;
    let mut pairs = h.store.ready_pairs(&[h.claimed]).await.unwrap();
    pairs.sort();
    let key = |run: &NewRun| OrderKey::new(run.ready_at, run.priority);
    let pair = |tenant| Pair { lane: h.claimed, tenant };
    let mut expected = [(pair(h.tenant), key(&early)), (pair(other), key(&theirs))];
    expected.sort();
    assert_eq!(pairs, expected);
    h.claim(h.worker(), 10, at(5)).await;
    assert_eq!(h.store.ready_pairs(&[h.claimed]).await.unwrap(), [(pair(other), key(&theirs))]);
    assert_eq!(h.store.ready_pairs(&[]).await.unwrap(), []);
}
