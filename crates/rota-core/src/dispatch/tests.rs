//! Order, shares and the bounds of memory.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::*;
use crate::ports::{Random, Seeded};

fn pair(tenant: i32) -> Pair {
    Pair { lane: LaneId(1), tenant: TenantId(tenant) }
}

fn place(n: u64) -> Place {
    (OrderKey(n as i64), RunId(Uuid::from_u64_pair(0, n)))
}

fn counts(taken: &[(Pair, Place)]) -> BTreeMap<i32, usize> {
    let mut counts = BTreeMap::new();
    for (pair, _) in taken {
        *counts.entry(pair.tenant.0).or_default() += 1;
    }
    counts
}

/// One tenant's long queue must not delay another's first run.
#[test]
fn a_newcomer_is_served_at_once() {
    let mut backlog = Backlog::new(100_000);
    for n in 0..50_000 {
        backlog.offer(pair(1), place(n));
    }
    backlog.take(10_000, |_| true);
    backlog.offer(pair(2), place(1_000_000));
    let next: Vec<i32> = backlog.take(2, |_| true).iter().map(|(pair, _)| pair.tenant.0).collect();
    assert!(next.contains(&2), "{next:?}");
}

#[test]
fn shares_follow_the_weights() {
    let mut backlog = Backlog::new(100_000);
    for (tenant, weight) in [(1, 1), (2, 3), (3, 10)] {
        backlog.shares().weigh(TenantId(tenant), weight);
        for n in 0..5_000 {
            backlog.offer(pair(tenant), place(u64::from(tenant as u32) * 1_000_000 + n));
        }
    }
    let counts = counts(&backlog.take(1_400, |_| true));
    assert_eq!(counts, BTreeMap::from([(1, 100), (2, 300), (3, 1_000)]));
}

#[test]
fn within_a_tenant_the_order_key_decides_across_lanes() {
    let mut backlog = Backlog::new(100);
    for n in [5, 1, 4, 2, 3] {
        let lane = LaneId(if n % 2 == 0 { 1 } else { 2 });
        backlog.offer(Pair { lane, tenant: TenantId(1) }, place(n));
    }
    let keys: Vec<i64> = backlog.take(9, |_| true).iter().map(|(_, place)| place.0.0).collect();
    assert_eq!(keys, [1, 2, 3, 4, 5]);
}

#[test]
fn a_closed_pair_is_passed_over_and_kept() {
    let mut backlog = Backlog::new(100);
    backlog.offer(pair(1), place(1));
    backlog.offer(pair(2), place(2));
    assert_eq!(counts(&backlog.take(9, |pair| pair.tenant.0 == 2)), BTreeMap::from([(2, 1)]));
    backlog.reopen();
    assert_eq!(counts(&backlog.take(9, |_| true)), BTreeMap::from([(1, 1)]));
}

/// A tenant whose one queue is paused must not wait with its others.
#[test]
fn a_closed_tenant_is_served_again_as_soon_as_another_lane_has_a_run() {
    let (paused, other) = (LaneId(1), LaneId(2));
    let mut backlog = Backlog::new(100);
    let of = |lane| Pair { lane, tenant: TenantId(1) };
    backlog.offer(of(paused), place(1));
    assert!(backlog.take(9, |pair| pair.lane != paused).is_empty());
    backlog.offer(of(other), place(2));
    assert_eq!(backlog.take(9, |pair| pair.lane != paused), [(of(other), place(2))]);
    backlog.reopen();
    assert_eq!(backlog.take(9, |_| true), [(of(paused), place(1))]);
    assert!(backlog.is_empty());
}

/// With many tenants, a call that looks at all of them is the whole cost.
#[test]
fn a_call_asks_about_what_it_hands_out_and_no_more() {
    let tenants = 10_000;
    let mut backlog = Backlog::new(1_000_000);
    let mut plan = ClaimPlan::default();
    for tenant in 0..tenants {
        for lane in 1..=3 {
            let pair = Pair { lane: LaneId(lane), tenant: TenantId(tenant) };
            for n in 0..2 {
                backlog.offer(pair, place(n * 3 + lane as u64));
            }
            plan.note(pair, OrderKey(i64::from(lane)));
        }
    }
    let mut asked = 0;
    let mut served = BTreeSet::new();
    for _ in 0..tenants {
        let taken = backlog.take(1, |_| {
            asked += 1;
            true
        });
        served.insert(taken[0].0.tenant);
    }
    assert_eq!((asked, served.len()), (tenants, tenants as usize), "each tenant once before any twice");
    asked = 0;
    plan.shares_of(10, |_| {
        asked += 1;
        true
    });
    assert!(asked <= 3 * 11, "{asked}");
}

/// A paused queue may hold the runs of every tenant.
#[test]
fn closed_tenants_are_asked_once_not_at_every_call() {
    let mut backlog = Backlog::new(1_000_000);
    for tenant in 0..1_000 {
        backlog.offer(pair(tenant), place(1));
    }
    let mut asked = 0;
    for _ in 0..100 {
        backlog.take(1, |_| {
            asked += 1;
            false
        });
    }
    assert_eq!(asked, 1_000);
    backlog.reopen();
    assert_eq!(backlog.take(2_000, |_| true).len(), 1_000);
}

/// Every run is taken once and in order, however small the memory.
#[test]
fn what_does_not_fit_is_read_back_in_order() {
    let all: Vec<Place> = (0..5_000).map(place).collect();
    let mut backlog = Backlog::new(100);
    let kept = all.iter().filter(|place| backlog.offer(pair(1), **place)).count();
    assert_eq!(kept, 100);
    let mut taken = Vec::new();
    while taken.len() < all.len() {
        let got = backlog.take(7, |_| true);
        assert!(!got.is_empty() || !backlog.wanted().is_empty(), "stuck after {}", taken.len());
        taken.extend(got.into_iter().map(|(_, place)| place));
        for window in backlog.wanted() {
            let start = all.partition_point(|place| window.after.is_some_and(|after| *place <= after));
            let stretch: Vec<Place> = all[start..].iter().copied().take(window.limit as usize).collect();
            backlog.read(&window, &stretch, |_| false);
        }
        assert!(backlog.len() <= 200);
    }
    assert_eq!(taken, all);
    assert!(backlog.is_empty());
}

/// An older run that arrives while the pair is cut must not be lost.
#[test]
fn an_older_run_is_kept_though_the_pair_was_cut() {
    let mut backlog = Backlog::new(16);
    for n in 100..200 {
        backlog.offer(pair(1), place(n));
    }
    assert!(backlog.offer(pair(1), place(1)));
    assert!(!backlog.offer(pair(1), place(150)));
    assert_eq!(backlog.take(1, |_| true)[0].1, place(1));
}

/// A run that becomes ready while its pair is being read is in no one's
/// answer: turned away and then thought to be nowhere, it would wait for the
/// next full look.
#[test]
fn a_run_offered_during_a_read_is_not_lost() {
    let mut backlog = Backlog::new(16);
    for n in 0..20 {
        backlog.offer(pair(1), place(n));
    }
    assert_eq!(backlog.take(16, |_| true).len(), 16);
    let window = backlog.wanted()[0];
    let answer: Vec<Place> = (16..20).map(place).collect();
    for n in 20..30 {
        assert!(backlog.offer(pair(1), place(n)), "kept until the answer comes");
    }
    assert!(backlog.take(9, |_| true).is_empty(), "what is read comes before it");
    backlog.read(&window, &answer, |_| false);
    let taken: Vec<Place> = backlog.take(99, |_| true).into_iter().map(|(_, place)| place).collect();
    assert_eq!(taken, (16..30).map(place).collect::<Vec<_>>());
    assert!(backlog.is_empty() && backlog.wanted().is_empty());
}

/// More than may be kept during a read stays in the store, and is asked for.
#[test]
fn runs_turned_away_during_a_read_are_read_next() {
    let mut backlog = Backlog::new(16);
    backlog.doubt(pair(1));
    let window = backlog.wanted()[0];
    let kept = (0..40).filter(|n| backlog.offer(pair(1), place(*n))).count();
    assert_eq!(kept, 16);
    backlog.read(&window, &[], |_| false);
    assert!(backlog.take(99, |_| true).is_empty());
    let window = backlog.wanted()[0];
    backlog.read(&window, &(0..16).map(place).collect::<Vec<_>>(), |_| false);
    assert_eq!(backlog.take(99, |_| true).len(), 16);
    let window = backlog.wanted()[0];
    backlog.read(&window, &(16..31).map(place).collect::<Vec<_>>(), |_| false);
    assert_eq!(backlog.take(99, |_| true).len(), 15);
    assert!(backlog.is_empty() && backlog.wanted().is_empty());
}

/// The store as a set for each pair, with answers that come late, and runs
/// that are made, cancelled and taken meanwhile: each is taken once, or was
/// cancelled.
#[test]
fn whatever_the_order_of_events_each_run_is_taken_once() {
    for seed in 0..300 {
        let dice = Seeded::new(seed);
        let roll = |sides: u64| dice.bits() % sides;
        let mut backlog = Backlog::new(40);
        let mut store: BTreeMap<Pair, BTreeSet<Place>> = BTreeMap::new();
        let mut answers: Vec<(Window, Vec<Place>)> = Vec::new();
        let mut flying: BTreeMap<Place, Pair> = BTreeMap::new();
        let (mut made, mut ended) = (0, BTreeSet::new());
        for turn in 0..600 {
            let of = Pair { lane: LaneId(roll(2) as i32), tenant: TenantId(roll(3) as i32) };
            let settling = turn > 400;
            match roll(9) {
                0..=3 if !settling => {
                    made += 1;
                    let place = (OrderKey(made + roll(9) as i64), RunId(Uuid::from_u64_pair(0, made as u64)));
                    store.entry(of).or_default().insert(place);
                    // One in ten is made by another node, and found by a look.
                    if roll(10) == 0 {
                        backlog.doubt(of);
                    } else {
                        backlog.offer(of, place);
                    }
                }
                4 => {
                    let cancelled = store.get(&of).and_then(|runs| runs.iter().nth(roll(20) as usize)).copied();
                    if let Some(place) = cancelled.filter(|place| !flying.contains_key(place)) {
                        store.entry(of).or_default().remove(&place);
                        backlog.remove(of, &place);
                        assert!(ended.insert(place), "seed {seed}");
                    }
                }
                5 => answers = backlog.wanted().into_iter().map(|window| (window, stretch(&store, &window))).collect(),
                6 if !answers.is_empty() => {
                    let (window, places) = answers.remove(roll(answers.len() as u64) as usize);
                    backlog.read(&window, &places, |place| flying.contains_key(place));
                }
                7 => {
                    if let Some((place, pair)) = flying.pop_first() {
                        store.entry(pair).or_default().remove(&place);
                        assert!(!backlog.remove(pair, &place), "seed {seed}: taken and still there");
                    }
                }
                _ => {
                    for (pair, place) in backlog.take(roll(4) as usize + 1, |pair| pair.lane.0 == 0 || turn % 2 == 0) {
                        flying.insert(place, pair);
                        assert!(ended.insert(place), "seed {seed}: taken twice");
                    }
                    backlog.reopen();
                }
            }
        }
        while ended.len() < made as usize {
            let taken = backlog.take(99, |_| true);
            let windows = backlog.wanted();
            assert!(!taken.is_empty() || !windows.is_empty(), "seed {seed}: {} of {made}", ended.len());
            for (pair, place) in taken {
                flying.insert(place, pair);
                assert!(ended.insert(place), "seed {seed}: taken twice");
            }
            for window in windows {
                backlog.read(&window, &stretch(&store, &window), |place| flying.contains_key(place));
            }
        }
        assert!(backlog.is_empty(), "seed {seed}");
    }
}

fn stretch(store: &BTreeMap<Pair, BTreeSet<Place>>, window: &Window) -> Vec<Place> {
    let runs = store.get(&window.pair).into_iter().flatten();
    runs.filter(|place| window.after.is_none_or(|after| **place > after)).take(window.limit as usize).copied().collect()
}

/// A long queue in one lane must not keep a worker from its other lanes.
#[test]
fn the_lane_with_the_oldest_run_is_claimed_from_first() {
    let mut plan = ClaimPlan::default();
    let of = |lane| Pair { lane: LaneId(lane), tenant: TenantId(1) };
    plan.looked([(of(1), OrderKey(100)), (of(2), OrderKey(150))]);
    let mut lanes = Vec::new();
    for key in [100, 200, 300] {
        let share = plan.shares_of(1, |_| true)[0];
        lanes.push(share.pair.lane.0);
        plan.claimed(&share, &[OrderKey(key)]);
        plan.note(share.pair, OrderKey(key + 100));
    }
    assert_eq!(lanes, [1, 1, 2], "the key of lane 1 passes that of lane 2");
}

#[test]
fn a_full_look_replaces_what_was_known() {
    let mut plan = ClaimPlan::default();
    plan.note(pair(1), OrderKey(1));
    let _asked = plan.shares_of(10, |_| true);
    plan.looked([(pair(2), OrderKey(2))]);
    let pairs: Vec<Pair> = plan.shares_of(9, |_| true).iter().map(|share| share.pair).collect();
    assert_eq!(pairs, [pair(2)]);
    plan.looked([]);
    assert!(plan.is_idle() && plan.shares_of(9, |_| true).is_empty());
}

#[test]
fn every_pair_gets_one_before_weights_count() {
    let mut plan = ClaimPlan::default();
    plan.shares().weigh(TenantId(1), 10);
    plan.looked((1..=50).map(|tenant| (pair(tenant), OrderKey(i64::from(tenant)))));
    let shares = plan.shares_of(200, |_| true);
    assert_eq!(shares.len(), 50);
    assert_eq!(shares.iter().map(|share| share.runs).sum::<u32>(), 200);
    assert!(shares[0].runs > shares[1].runs);
}

/// A low-water key that never fell would hide a promoted run for ever.
#[test]
fn an_older_key_lowers_the_low_water_mark() {
    let mut plan = ClaimPlan::default();
    plan.looked([(pair(1), OrderKey(500))]);
    let share = plan.shares_of(1, |_| true)[0];
    plan.claimed(&share, &[OrderKey(700)]);
    assert_eq!(plan.shares_of(1, |_| true)[0].low, OrderKey(700));
    plan.note(pair(1), OrderKey(100));
    assert_eq!(plan.shares_of(1, |_| true)[0].low, OrderKey(100));
}

#[test]
fn a_drained_pair_is_not_asked_again_until_noted() {
    let mut plan = ClaimPlan::default();
    plan.note(pair(1), OrderKey(1));
    let share = plan.shares_of(10, |_| true)[0];
    plan.claimed(&share, &[OrderKey(1)]);
    assert!(plan.is_idle());
    plan.note(pair(1), OrderKey(2));
    assert!(!plan.is_idle());
}

/// What a small pair cannot give would be missing from the large one's share,
/// and a claim for a thousand would come back half empty.
#[test]
fn a_pair_is_asked_for_no_more_than_was_told_of() {
    let mut plan = ClaimPlan::default();
    plan.note(pair(1), OrderKey(1));
    for key in 0..100 {
        plan.note(pair(2), OrderKey(key));
    }
    let shares = plan.shares_of(50, |_| true);
    assert_eq!(shares.iter().map(|share| share.runs).collect::<Vec<_>>(), [1, 49]);
    plan.claimed(&shares[0], &[OrderKey(1)]);
    plan.claimed(&shares[1], &(0..49).map(OrderKey).collect::<Vec<_>>());
    let shares = plan.shares_of(100, |_| true);
    assert_eq!(shares.iter().map(|share| (share.pair, share.runs)).collect::<Vec<_>>(), [(pair(2), 51)]);
}

/// A run that came while a claim was under way would wait for the next look.
#[test]
fn a_run_noted_during_a_claim_is_not_lost_with_a_short_answer() {
    let mut plan = ClaimPlan::default();
    plan.note(pair(1), OrderKey(1));
    let share = plan.shares_of(10, |_| true)[0];
    plan.note(pair(1), OrderKey(2));
    plan.claimed(&share, &[]);
    assert_eq!(plan.shares_of(10, |_| true)[0].runs, 1);
}

/// One that was admitted late has an older key than those claimed meanwhile.
#[test]
fn an_old_run_noted_during_a_claim_is_not_passed_by_the_answer() {
    let mut plan = ClaimPlan::default();
    for key in 10..20 {
        plan.note(pair(1), OrderKey(key));
    }
    let share = plan.shares_of(5, |_| true)[0];
    plan.note(pair(1), OrderKey(3));
    plan.claimed(&share, &(10..15).map(OrderKey).collect::<Vec<_>>());
    let share = plan.shares_of(10, |_| true)[0];
    assert_eq!((share.low, share.runs), (OrderKey(3), 6));
    plan.claimed(&share, &[3, 15, 16, 17, 18, 19].map(OrderKey));
    assert!(plan.is_idle());
}

/// The store was read before it was made, and the answer comes after.
#[test]
fn a_run_noted_during_a_look_is_not_lost_with_it() {
    let mut plan = ClaimPlan::default();
    plan.note(pair(1), OrderKey(5));
    plan.looked([]);
    assert_eq!(plan.shares_of(10, |_| true)[0].low, OrderKey(5));
    plan.looked([]);
    assert!(plan.is_idle(), "what was asked for since is the look's to know");
    plan.note(pair(1), OrderKey(5));
    plan.looked([(pair(1), OrderKey(7))]);
    assert_eq!(plan.shares_of(10, |_| true)[0].low, OrderKey(5));
}

/// Slots of short runs must not stand empty while a claim is written, and a node
/// must not keep runs to itself that it cannot start.
#[test]
fn what_will_have_ended_when_a_claim_is_answered_is_claimed_ahead() {
    assert_eq!(ahead(0, 1_000, 0, false), 0, "long ones");
    assert_eq!(ahead(0, 1_000, 200, false), 200, "a fifth of them ends within a claim");
    assert_eq!(ahead(3_000, 1_000, 200, false), 200, "they have become longer");
    assert_eq!(ahead(0, 1_000, 1_000, false), 2_000, "all are shorter than a claim");
    assert_eq!(ahead(2_000, 1_000, 1_000, false), 4_000);
    assert_eq!(ahead(0, 0, 0, false), 0, "nothing is known of them");
    assert_eq!(ahead(300, 0, 0, false), 600, "they had ended before it was asked for");
    assert_eq!(ahead(2_000, 1_000, 1_000, true), 0, "one of them may kill the process");
}
