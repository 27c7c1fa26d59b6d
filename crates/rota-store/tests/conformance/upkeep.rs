//! Upkeep: folds, orders and purges in short slices, and changes no answer.

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    run::Status,
    store::{RunQuery, Tend},
};

use crate::harness::*;

const DAY: i64 = 86_400_000;

pub fn keep(now: Timestamp) -> Tend {
    Tend {
        now,
        history_keep: Span::secs(7 * 86_400),
        skips_keep: Span::secs(7 * 86_400),
        batches_keep: Span::secs(3_600),
        audit_keep: Span::secs(30 * 86_400),
    }
}

/// All the upkeep there is to do.
pub async fn tend_all(h: &Harness, now: Timestamp) {
    for _ in 0..10_000 {
        if !h.store.tend(&keep(now)).await.unwrap().more {
            return;
        }
    }
    panic!("upkeep has no end");
}

async fn day_of_runs(h: &Harness, day: i64, count: usize) {
    h.make_many(h.claimed, count, at(day * DAY)).await;
    for run in h.claim(h.worker(), count as u32, at(day * DAY)).await {
        h.succeed(&run, at(day * DAY + 5)).await;
    }
}

/// Nothing to do says so.
pub async fn upkeep_of_an_empty_store_ends(h: &Harness) {
    tend_all(h, at(0)).await;
}

/// Folding and ordering must not change what a list answers.
pub async fn listing_is_the_same_before_and_after_upkeep(h: &Harness) {
    for day in 0..3 {
        day_of_runs(h, day, 20).await;
    }
    let lists = async || {
        let by_job = RunQuery { job: Some(h.job), limit: 7, ..Default::default() };
        let all = RunQuery { limit: 11, ..Default::default() };
        let some =
            RunQuery { job: Some(h.job), from: Some(at(DAY)), to: Some(at(2 * DAY)), limit: 4, ..Default::default() };
        (h.list(by_job).await, h.list(all).await, h.list(some).await)
    };
    let before = lists().await;
    assert_eq!((before.0.len(), before.1.len(), before.2.len()), (60, 60, 20));
    tend_all(h, at(3 * DAY)).await;
    assert_eq!(lists().await, before);
    day_of_runs(h, 3, 5).await;
    assert_eq!(lists().await.0.len(), 65, "what ends after upkeep is found as well");
}

/// History is kept as long as was asked, and no longer.
pub async fn days_that_are_too_old_are_purged_and_others_kept(h: &Harness) {
    for day in [0, 1, 8, 9] {
        day_of_runs(h, day, 6).await;
    }
    let delayed = h.make(rota_core::run::NewRun { ready_at: at(100 * DAY), ..h.new_run(h.claimed) }, at(0));
    let delayed = delayed.await;
    tend_all(h, at(10 * DAY)).await;
    let left = h.list(RunQuery { statuses: vec![], limit: 50, ..Default::default() }).await;
    let old = left.iter().filter(|record| record.run.created_at < at(2 * DAY) && record.run.id != delayed).count();
    assert_eq!((left.len(), old), (13, 0));
    assert_eq!(h.status(delayed).await, Status::Scheduled, "a live run is kept, however old");
    assert_eq!(h.list(RunQuery { job: Some(h.job), limit: 50, ..Default::default() }).await.len(), 13);
    day_of_runs(h, 10, 2).await;
    tend_all(h, at(10 * DAY)).await;
    assert_eq!(h.list(RunQuery { limit: 50, ..Default::default() }).await.len(), 15);
}

/// Roll-ups outlive the rows they were counted from.
pub async fn roll_ups_outlive_the_purge(h: &Harness) {
    day_of_runs(h, 0, 6).await;
    let hour = rota_core::rollup::hour_of(at(0));
    let before = h.store.rollups(h.job, hour, hour + 1).await.unwrap();
    tend_all(h, at(30 * DAY)).await;
    assert_eq!(h.list(RunQuery { limit: 50, ..Default::default() }).await, []);
    assert_eq!(h.store.rollups(h.job, hour, hour + 1).await.unwrap(), before);
}

/// An old batch name is forgotten; a young one answers.
pub async fn batches_are_kept_as_long_as_asked(h: &Harness) {
    let run = [h.new_run(h.claimed)];
    let write = h.write(at(0));
    let first = h.store.enqueue(&write, &run, &[]).await.unwrap();
    tend_all(h, at(1_800_000)).await;
    assert_eq!(h.store.enqueue(&write, &run, &[]).await.unwrap(), first);
    assert_eq!(h.list(RunQuery { limit: 50, ..Default::default() }).await.len(), 1);
}

/// A request key is remembered until it expires, whatever upkeep does.
pub async fn a_request_key_outlives_the_batches(h: &Harness) {
    let write = |ms| h.write_keyed("k", 1, at(ms), at(DAY));
    h.store.enqueue(&write(0), &[h.new_run(h.claimed)], &[]).await.unwrap();
    tend_all(h, at(DAY / 2)).await;
    h.store.enqueue(&write(DAY / 2), &[h.new_run(h.claimed)], &[]).await.unwrap();
    assert_eq!(h.list(RunQuery { limit: 50, ..Default::default() }).await.len(), 1);
}

/// Upkeep beside real work: nothing is lost, nothing waits for it.
pub async fn upkeep_beside_work_loses_nothing(h: &Harness) {
    let store = h.store.clone();
    let tending = tokio::spawn(async move {
        for n in 0..60 {
            store.tend(&keep(at(n))).await.unwrap();
        }
    });
    for n in 0..12 {
        h.make_many(h.claimed, 10, at(n)).await;
        let held = h.claim(h.worker(), 10, at(n)).await;
        let ends: Vec<_> = held.iter().map(|run| by_lease(run, succeeded(), at(n))).collect();
        h.settle_all(&ends, at(n)).await;
    }
    tending.await.unwrap();
    tend_all(h, at(100)).await;
    assert_eq!(h.list(RunQuery { job: Some(h.job), limit: 50, ..Default::default() }).await.len(), 120);
}
