//! History: what is kept of a run that ended, and what is counted.

use rota_core::{
    ids::JobId,
    rollup::{Ended, Rollup, hour_of},
    run::{NewRun, Outcome, RunState, TrailKind, Verdict},
    store::{Guarded, RunQuery},
};

use crate::harness::*;

/// Output, failure and trail are why people look at history at all.
pub async fn output_failure_and_trail_survive_the_move(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let (_, run) = h.leased(at(0)).await;
    h.settle(&run, failed(), at(1)).await;
    h.store.promote(&h.write_of(owner.node, at(5_000)), &owner.parts(), 10).await.unwrap();
    let run = h.claim(h.worker(), 1, at(5_000)).await.remove(0);
    h.cancel(run.id, at(5_001)).await;
    let asked = h.record(run.id).await.run;
    let Outcome::Failed(failure) = broken() else { panic!() };
    h.settle(&asked, Outcome::Failed(failure.clone()), at(5_002)).await;
    let record = h.record(run.id).await;
    assert_eq!(record.run.state, RunState::Finished { at: at(5_002), verdict: Verdict::Cancelled });
    assert_eq!(record.failure, Some(failure));
    let kinds: Vec<_> = record.trail.iter().map(|entry| (entry.at, std::mem::discriminant(&entry.kind))).collect();
    let sample = |kind: TrailKind| std::mem::discriminant(&kind);
    let first = sample(TrailKind::AttemptFailed {
        attempt: 1,
        started_at: None,
        failure: rota_core::job::failure::Failure::new(rota_core::job::failure::ErrorKind::Dns, ""),
        retry_at: None,
        fence: None,
    });
    let second = sample(TrailKind::CancelRequested { by: None, reason: None });
    assert_eq!(kinds, [(at(1), first), (at(5_001), second)], "in the order it happened");
    assert_eq!((record.run.attempts_used, record.started_at), (2, Some(at(5_000))));
}

/// A trail is bounded; a run that fails for a year must not grow without end.
pub async fn a_long_trail_is_bounded(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let id = h.make(h.new_run(h.owned), at(0)).await;
    for n in 0..12 {
        let run = h.record(id).await.run;
        let reason = "x".repeat(20_000);
        let end = owner.executes(&run, Outcome::Deferred { until: at(n), reason }, at(n));
        let settled = h.store.settle(&h.write_of(owner.node, at(n)), &[end]).await.unwrap();
        assert_eq!(settled.answers, [Guarded::Applied]);
        h.store.promote(&h.write_of(owner.node, at(n)), &owner.parts(), 10).await.unwrap();
    }
    let trail = h.record(id).await.trail;
    let bytes: usize = trail.iter().map(|entry| entry.line().len()).sum();
    assert!(!trail.is_empty() && bytes <= rota_core::run::TRAIL_BYTES_MAX + 25_000, "{bytes} bytes");
}

async fn counted(h: &Harness, job: JobId, from: i64, to: i64) -> Vec<(i64, Rollup)> {
    let query = RunQuery { job: Some(job), limit: 1_000, ..Default::default() };
    let mut hours = std::collections::BTreeMap::<i64, Rollup>::new();
    for record in h.list(query).await {
        let RunState::Finished { at: ended_at, verdict } = record.run.state else { continue };
        hours.entry(hour_of(ended_at)).or_default().add(&Ended {
            verdict,
            ready_at: record.run.ready_at,
            started_at: record.started_at,
            ended_at,
            attempts: record.run.attempts_used,
            losses: record.run.losses,
        });
    }
    hours.into_iter().filter(|(hour, _)| (from..to).contains(hour)).collect()
}

/// Roll-ups must equal what counting the rows would give, folded or not.
pub async fn roll_ups_equal_a_count(h: &Harness) {
    let other = h.job("other").await;
    let hour = hour_of(at(0));
    for n in 0..30_i64 {
        let job = if n % 4 == 0 { other } else { h.job };
        let now = n * 400_000;
        h.make(NewRun { job, ready_at: at(now), ..h.new_run(h.claimed) }, at(now)).await;
        let run = h.claim(h.worker(), 1, at(now + 7 * n)).await.remove(0);
        match n % 5 {
            0 => h.settle(&run, broken(), at(now + 9 * n)).await,
            1 => h.settle(&run, Outcome::Cancelled, at(now + 9 * n)).await,
            _ => h.settle(&run, succeeded(), at(now + 8 * n)).await,
        };
    }
    // One that ended without a start, and one by loss.
    let id = h.make(NewRun { expires_at: Some(at(10)), ..h.new_run(h.claimed) }, at(0)).await;
    h.sweep(at(10)).await;
    h.cancel(h.make(h.new_run(h.claimed), at(0)).await, at(20)).await;
    assert!(matches!(h.record(id).await.run.state, RunState::Finished { .. }));
    for folded in [false, true] {
        for job in [h.job, other] {
            let stored = h.store.rollups(job, hour, hour + 100).await.unwrap();
            let expected = counted(h, job, hour, hour + 100).await;
            assert_eq!(without_attempts(&stored), without_attempts(&expected), "folded: {folded}");
            let part = h.store.rollups(job, hour + 1, hour + 2).await.unwrap();
            assert_eq!(without_attempts(&part), without_attempts(&counted(h, job, hour + 1, hour + 2).await));
        }
        crate::upkeep::tend_all(h, at(12_000_000)).await;
    }
    assert_eq!(h.store.rollups(JobId(-1), 0, i64::MAX).await.unwrap(), []);
}

/// Whether an attempt that succeeded counts as one is the store's and the
/// engine's to agree on; here both must count the same runs.
fn without_attempts(rollups: &[(i64, Rollup)]) -> Vec<(i64, Rollup)> {
    rollups.iter().map(|(hour, rollup)| (*hour, Rollup { attempts: 0, ..rollup.clone() })).collect()
}

/// Settling in parallel must not lose a count.
pub async fn roll_ups_of_many_settling_at_once_lose_nothing(h: &Harness) {
    let second = h.second().await;
    h.make_many(h.claimed, 120, at(0)).await;
    let held = h.claim(h.worker(), 120, at(0)).await;
    let mut settlers = tokio::task::JoinSet::new();
    for (n, chunk) in held.chunks(10).enumerate() {
        let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
        let ends: Vec<_> = chunk.iter().map(|run| by_lease(run, succeeded(), at(50))).collect();
        let write = h.write(at(50));
        let (tender, tend) = (h.store.clone(), crate::upkeep::keep(at(60)));
        settlers.spawn(async move {
            store.settle(&write, &ends).await.unwrap();
            tender.tend(&tend).await.unwrap();
        });
    }
    settlers.join_all().await;
    let hour = hour_of(at(0));
    let total: u64 = h.store.rollups(h.job, hour, hour + 1).await.unwrap().iter().map(|(_, r)| r.runs()).sum();
    assert_eq!(total, 120);
}
