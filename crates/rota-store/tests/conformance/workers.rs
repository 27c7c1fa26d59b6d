//! The registry of workers.

use rota_core::{
    ids::WorkerId,
    store::{Tend, WorkerBeat, WorkerInfo},
};

use crate::harness::*;

fn beat(h: &Harness, worker: WorkerId, name: &str, until_ms: i64) -> WorkerBeat {
    let info = WorkerInfo { handlers: vec!["mail".into()], slots: 4, ..WorkerInfo::default() };
    WorkerBeat { worker, tenant: Some(h.tenant), name: name.into(), info, until: at(until_ms), draining: false }
}

pub async fn a_worker_is_listed_as_it_last_said(h: &Harness) {
    let (one, two) = (h.worker(), h.worker());
    let beats = [beat(h, one, "one", 5_000), beat(h, two, "two", 5_000)];
    assert_eq!(h.store.beat_workers(&beats, at(0)).await.unwrap(), [false, false]);
    let mut later = beat(h, one, "uno", 7_000);
    (later.draining, later.info.busy) = (true, 3);
    h.store.beat_workers(std::slice::from_ref(&later), at(2_000)).await.unwrap();
    let listed = h.store.workers(Some(h.tenant), None, 10).await.unwrap();
    let found = listed.iter().find(|worker| worker.worker == one).unwrap();
    assert_eq!((found.name.as_str(), &found.info, found.draining), ("uno", &later.info, true));
    assert_eq!((found.began_at, found.seen_at, found.until), (at(0), at(2_000), at(7_000)));
    let mut pages = Vec::new();
    let mut after = None;
    while let Some(next) = h.store.workers(None, after, 1).await.unwrap().pop() {
        after = Some(next.worker);
        pages.push(next.worker);
    }
    assert_eq!(pages, listed.iter().map(|worker| worker.worker).collect::<Vec<_>>());
    h.store.forget_workers(&[one]).await.unwrap();
    assert_eq!(h.store.workers(None, None, 10).await.unwrap().len(), 1);
}

/// A wish that a beat overwrites would never be heard.
pub async fn a_worker_that_is_to_drain_is_told_with_its_next_beat(h: &Harness) {
    let worker = h.worker();
    assert!(!h.store.drain_worker(None, worker).await.unwrap(), "nobody is known by that name");
    let beat = beat(h, worker, "one", 5_000);
    h.store.beat_workers(std::slice::from_ref(&beat), at(0)).await.unwrap();
    assert!(h.store.drain_worker(Some(h.tenant), worker).await.unwrap());
    for now in [1_000, 2_000] {
        assert_eq!(h.store.beat_workers(std::slice::from_ref(&beat), at(now)).await.unwrap(), [true]);
    }
    assert!(h.store.workers(None, None, 10).await.unwrap()[0].drain_asked);
}

pub async fn a_tenants_workers_are_its_own_and_everybodys(h: &Harness) {
    let other = h.tenant("other").await;
    let (own, theirs, all) = (h.worker(), h.worker(), h.worker());
    let beats = [
        beat(h, own, "own", 5_000),
        WorkerBeat { tenant: Some(other), ..beat(h, theirs, "theirs", 5_000) },
        WorkerBeat { tenant: None, ..beat(h, all, "all", 5_000) },
    ];
    h.store.beat_workers(&beats, at(0)).await.unwrap();
    let names = |listed: Vec<rota_core::store::Worker>| {
        let mut names: Vec<_> = listed.into_iter().map(|worker| worker.name).collect();
        names.sort();
        names
    };
    assert_eq!(names(h.store.workers(Some(h.tenant), None, 10).await.unwrap()), ["all", "own"]);
    assert_eq!(names(h.store.workers(None, None, 10).await.unwrap()), ["all", "own", "theirs"]);
    assert!(!h.store.drain_worker(Some(h.tenant), theirs).await.unwrap());
    let forged = WorkerBeat { worker: theirs, ..beat(h, own, "forged", 9_000) };
    assert_eq!(h.store.beat_workers(&[forged], at(1)).await.unwrap(), [false]);
    assert_eq!(names(h.store.workers(Some(other), None, 10).await.unwrap()), ["all", "theirs"]);
}

pub async fn a_worker_that_died_is_listed_for_a_day(h: &Harness) {
    let worker = h.worker();
    h.store.beat_workers(&[beat(h, worker, "one", 5_000)], at(0)).await.unwrap();
    let keep = rota_core::duration::Span::secs(86_400);
    for (now, left) in [(86_000_000, 1), (86_406_000, 0)] {
        let tend = Tend { now: at(now), history_keep: keep, skips_keep: keep, batches_keep: keep, audit_keep: keep };
        h.store.tend(&tend).await.unwrap();
        assert_eq!(h.store.workers(None, None, 10).await.unwrap().len(), left);
    }
}
