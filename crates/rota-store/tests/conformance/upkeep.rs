//! Upkeep: folds, orders and purges in short slices, and changes no answer.

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::RunId,
    rollup::{Rollup, hour_of},
    run::{NewRun, Status},
    store::{LogChunk, LogQuery, Pause, PauseTarget, RunQuery, Tend},
};
use rota_store::bounds::{self, Left};

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
    tend_all(h, at(3 * DAY)).await;
    h.store.enqueue(&write, &[h.new_run(h.claimed)], &[]).await.unwrap();
    assert_eq!(h.list(RunQuery { limit: 50, ..Default::default() }).await.len(), 2, "the name was forgotten");
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

fn chunk(run: RunId, day: i64) -> LogChunk {
    LogChunk { run, attempt: 1, seq: day as i32, at: at(day * DAY), lines: "{}\n".into() }
}

/// No lines of any day.
const NONE: [i32; 0] = [];

async fn log_days(h: &Harness, run: RunId) -> Vec<i32> {
    let query = LogQuery { run, attempt: None, after: None, limit: 50 };
    h.store.logs(&query).await.unwrap().iter().map(|chunk| chunk.seq).collect()
}

/// A table that nothing bounds fills the disk of whoever runs Rota for years.
pub async fn every_table_has_a_stated_bound_and_keeps_it(h: &Harness) {
    let schedule = h.schedule("tick").await;
    h.make(h.keyed(7, 1), at(0)).await;
    day_of_runs(h, 0, 3).await;
    let late = h.claim(h.worker(), 5, at(10)).await;
    for run in &late {
        h.store.append_logs(&[chunk(run.id, 0)]).await.unwrap();
        h.succeed(run, at(20)).await;
    }
    h.store.enqueue(&h.write_keyed("k", 1, at(30), at(DAY)), &[h.new_run(h.claimed)], &[]).await.unwrap();
    h.beat(h.node_id(), at(1_000), at(0)).await;
    h.save(h.job_put("report", "{\"edited\":true}"), at(40)).await;
    h.end_schedules(&[schedule], at(50)).await;
    h.store.delete_jobs(&h.write(at(60)), &[deletion(h.job)]).await.unwrap();
    for record in h.list(RunQuery { statuses: vec![Status::Queued], limit: 50, ..Default::default() }).await {
        h.cancel(record.run.id, at(70)).await;
    }
    h.store.forget_deletions(&[h.job], at(80)).await.unwrap();
    h.reap(at(DAY), at(DAY)).await;
    let Some(filled) = h.place.rows().await else { return };
    for (table, _) in &filled {
        assert!(bounds::of(table).is_some(), "what bounds `{table}`? say it in bounds.rs");
    }
    let rows = |of: &[(String, i64)], table: &str| of.iter().find(|(name, _)| name == table).unwrap().1;
    for table in ["job", "job_version", "schedule", "log", "batch", "request"] {
        assert!(rows(&filled, table) > 0, "{table} has rows");
    }
    tend_all(h, at(900 * DAY)).await;
    tend_all(h, at(901 * DAY)).await;
    for (table, left) in h.place.rows().await.unwrap() {
        let bound = bounds::of(&table).unwrap();
        assert!(bound.left != Left::Nothing || left == 0, "{left} rows are left in {table}");
    }
}

/// Lines that go before their run are missed when it fails; lines that stay behind are
/// never read again, and never deleted.
pub async fn logs_live_as_long_as_their_runs(h: &Harness) {
    let runs = h.make_many(h.claimed, 3, at(0)).await;
    let held = h.claim(h.worker(), 3, at(0)).await;
    for run in &runs {
        h.store.append_logs(&[chunk(*run, 0)]).await.unwrap();
    }
    let of = |id: RunId| held.iter().find(|run| run.id == id).unwrap();
    h.succeed(of(runs[0]), at(5)).await;
    h.store.append_logs(&[chunk(runs[1], 3), chunk(runs[2], 3)]).await.unwrap();
    h.succeed(of(runs[1]), at(3 * DAY)).await;
    tend_all(h, at(9 * DAY)).await;
    assert_eq!(log_days(h, runs[0]).await, NONE, "went with its run");
    assert_eq!(log_days(h, runs[1]).await, [0, 3], "it ended later");
    assert_eq!(log_days(h, runs[2]).await, [0, 3], "it lives");
    tend_all(h, at(30 * DAY)).await;
    assert_eq!(log_days(h, runs[1]).await, NONE);
    assert_eq!(log_days(h, runs[2]).await, [0, 3], "it lives still");
    h.succeed(of(runs[2]), at(31 * DAY)).await;
    tend_all(h, at(37 * DAY)).await;
    assert_eq!(log_days(h, runs[2]).await, [0, 3]);
    tend_all(h, at(50 * DAY)).await;
    assert_eq!(log_days(h, runs[2]).await, NONE);
    h.store.append_logs(&[chunk(runs[2], 4)]).await.unwrap();
    tend_all(h, at(60 * DAY)).await;
    assert_eq!(log_days(h, runs[2]).await, NONE, "of a run that is gone nothing is kept");
}

/// A page of history must be able to say what its runs were of; years later nobody asks.
pub async fn a_deleted_job_goes_once_nothing_is_kept_of_its_runs(h: &Harness) {
    let schedule = h.schedule("tick").await;
    day_of_runs(h, 0, 2).await;
    h.store.delete_jobs(&h.write(at(100)), &[deletion(h.job)]).await.unwrap();
    tend_all(h, at(100 * DAY)).await;
    assert!(h.store.jobs(&[h.job]).await.unwrap()[0].is_some(), "something of it may live");
    h.store.forget_deletions(&[h.job], at(100 * DAY)).await.unwrap();
    tend_all(h, at(107 * DAY)).await;
    assert!(h.store.jobs(&[h.job]).await.unwrap()[0].is_some(), "its last runs are kept");
    tend_all(h, at(109 * DAY)).await;
    assert!(h.store.jobs(&[h.job]).await.unwrap()[0].is_none());
    assert!(h.store.schedules(&[schedule]).await.unwrap()[0].is_none());
    assert_eq!(h.store.job_document(h.job, 1).await.unwrap(), None);
    assert_eq!(h.store.job_versions(h.job, 10).await.unwrap(), []);
}

/// A run whose version is gone cannot be executed, nor shown for what it was.
pub async fn a_version_goes_once_nothing_uses_it(h: &Harness) {
    let delayed = h.make(NewRun { ready_at: at(100 * DAY), ..h.new_run(h.claimed) }, at(0)).await;
    for n in 1..=3 {
        h.save(h.job_put("report", &format!("{{\"n\":{n}}}")), at(n)).await;
    }
    let kept = async || {
        let versions = h.store.job_versions(h.job, 10).await.unwrap();
        versions.iter().map(|version| version.version).collect::<Vec<_>>()
    };
    tend_all(h, at(14 * DAY)).await;
    assert_eq!(kept().await, [4, 3, 2, 1], "a run of it may still be in history");
    tend_all(h, at(16 * DAY)).await;
    assert_eq!(kept().await, [4, 1], "the newest, and that of a run that lives");
    h.cancel(delayed, at(17 * DAY)).await;
    tend_all(h, at(30 * DAY)).await;
    assert_eq!(kept().await, [4, 1], "it was used until then");
    tend_all(h, at(40 * DAY)).await;
    assert_eq!(kept().await, [4]);
}

/// Statistics over the time that is kept are the same before and after a purge.
pub async fn old_roll_ups_go_and_kept_ones_count_as_before(h: &Harness) {
    for day in [0, 1, 30, 60] {
        day_of_runs(h, day, 4).await;
    }
    let total = async |from: i64, to: i64| {
        let hours = h.store.rollups(h.job, hour_of(at(from * DAY)), hour_of(at(to * DAY))).await.unwrap();
        hours.iter().fold(Rollup::default(), |mut sum, (_, hour)| {
            sum.merge(hour);
            sum
        })
    };
    let runs = |total: &Rollup| total.ended.iter().sum::<u64>();
    let kept = total(29, 61).await;
    assert_eq!((runs(&total(0, 61).await), runs(&kept)), (16, 8));
    tend_all(h, at(61 * DAY)).await;
    assert_eq!((total(0, 29).await, total(29, 61).await), (Rollup::default(), kept));
}

/// Instants inside a pause that were never decided must not be caught up with because
/// upkeep forgot the pause.
pub async fn an_ended_pause_goes_once_all_it_covered_is_decided(h: &Harness) {
    let schedule = h.schedule("tick").await;
    let targets = [PauseTarget::Tenant(h.tenant), PauseTarget::Queue(h.tenant, "default".into())];
    let pause = Pause { since: at(0), until: Some(at(20 * DAY)), ..Pause::default() };
    h.store.set_pauses(&h.write(at(0)), &targets[..1], Some(&pause)).await.unwrap();
    let goes_on = Pause { until: None, ..pause };
    h.store.set_pauses(&h.write(at(0)), &targets[1..], Some(&goes_on)).await.unwrap();
    let left = async || h.store.pauses().await.unwrap().pauses.len();
    tend_all(h, at(400 * DAY)).await;
    assert_eq!(left().await, 2, "the schedule's cursor is still inside");
    h.end_schedules(&[schedule], at(400 * DAY)).await;
    tend_all(h, at(380 * DAY)).await;
    assert_eq!(left().await, 2, "it ended less than a year ago");
    tend_all(h, at(401 * DAY)).await;
    assert_eq!(left().await, 1, "one that is in force stays");
}
