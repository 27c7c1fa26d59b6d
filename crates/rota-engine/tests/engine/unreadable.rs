//! Rows that cannot be read: every stage goes on beside them.

use rota_core::{
    ids::RunId,
    run::{Status, Verdict},
    store::{CalendarPut, Discarded},
};
use serde_json::json;

use crate::bed::*;

async fn spoil(bed: &Bed, run: RunId, wrong: &str) {
    bed.sql(&format!("UPDATE run SET {wrong} WHERE id = x'{}'", run.0.simple())).await;
}

/// An owner that takes over reads what lies there. One row that cannot be read must not
/// keep it from the others for ever.
#[tokio::test]
async fn a_new_owner_starts_the_runs_beside_an_unreadable_one() {
    let bed = Bed::new().await;
    let mut first = bed.node().await;
    bed.save(&first.node, job("hello", "noop")).await;
    let ids =
        [first.enqueue(&bed, "hello").await, first.enqueue(&bed, "hello").await, first.enqueue(&bed, "hello").await];
    spoil(&bed, ids[0], "extra = '{'").await;
    spoil(&bed, ids[1], "source = 99").await;
    bed.go(60_000);
    let mut second = bed.node().await;
    second.look().await;
    second.work().await;
    assert_eq!(bed.status(ids[2]).await, ended(Verdict::Succeeded));
    assert_eq!(bed.work.order(), [ids[2]]);
    second.scan().await;
    assert_eq!(second.node.stats.unreadable.get(), 2, "they are counted");
    first.withdraw().await;
}

/// A retry that is due, a worker that vanished and a run past its start deadline: each
/// stage meets an unreadable row first and goes on.
#[tokio::test]
async fn delayed_runs_are_promoted_beside_an_unreadable_one() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("fails", "fail")).await;
    let ids = [node.enqueue(&bed, "fails").await, node.enqueue(&bed, "fails").await];
    node.work().await;
    assert_eq!(bed.status(ids[1]).await, Status::Scheduled);
    spoil(&bed, ids[0], "source = 77").await;
    node.beat_for(&bed, 5_000).await;
    node.promote().await;
    let report = node.promote().await;
    assert_eq!(report.done, 0);
    node.work().await;
    assert_eq!((bed.work.calls_of(ids[0]), bed.work.calls_of(ids[1])), (1, 2));
}

/// An attempt whose run became unreadable while it was under way ends for nobody, and
/// takes no other settlement with it.
#[tokio::test]
async fn a_settlement_goes_on_beside_an_unreadable_run() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("fails", "fail")).await;
    let ids = [node.enqueue(&bed, "fails").await, node.enqueue(&bed, "fails").await];
    node.dispatch().await;
    node.drain().await;
    spoil(&bed, ids[0], "extra = '{'").await;
    node.settle().await;
    assert_eq!(bed.status(ids[1]).await, Status::Scheduled, "its retry is written");
    assert_eq!(node.settle().await.done, 0, "nothing is tried for ever");
}

/// A definition that cannot be read must not stop the firing of its partition.
#[tokio::test]
async fn schedules_fire_beside_an_unreadable_one() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let every = |name: &str| json!({ "name": name, "every": "1m" });
    let rules = json!({ "schedules": [every("spec"), every("pause"), every("sound")] });
    let saved = bed.save(&node.node, with(job("hello", "noop"), rules)).await;
    let [spec, pause, sound] =
        [bed.schedule(saved, "spec").await, bed.schedule(saved, "pause").await, bed.schedule(saved, "sound").await];
    bed.sql(&format!("UPDATE schedule SET spec = '{{', revision = revision + 1 WHERE id = {}", spec.0)).await;
    bed.sql(&format!("UPDATE schedule SET pause = '{{', revision = revision + 1 WHERE id = {}", pause.0)).await;
    for _ in 0..3 {
        node.beat_for(&bed, 60_000).await;
        node.fire().await;
        node.scan().await;
        node.work().await;
    }
    let fired = bed.runs().await;
    assert!(fired.iter().all(|record| record.run.trigger.schedule == Some(sound)));
    assert_eq!(fired.len(), 3);
}

/// A schedule whose calendar cannot be read would fire on every holiday. It fires nothing
/// until the calendar is there again, says so, and then owes by its catch-up policy.
#[tokio::test]
async fn a_schedule_does_not_fire_while_its_calendar_cannot_be_read() {
    for spoil in ["DELETE FROM calendar", "UPDATE calendar SET spec = '{'", "UPDATE calendar SET spec = '[]'"] {
        let bed = Bed::new().await;
        let mut node = bed.node().await;
        bed.go(1);
        let spec = json!({ "name": "days", "weekdays": ["SUN"] }).to_string();
        let put = CalendarPut { tenant: bed.tenant, name: "days".into(), spec };
        bed.store.put_calendars(std::slice::from_ref(&put), bed.now()).await.unwrap();
        let rules = json!({ "schedules": [{ "name": "beat", "every": "1m", "calendars": ["days"] }] });
        let saved = bed.save(&node.node, with(job("hello", "noop"), rules)).await;
        let schedule = bed.schedule(saved, "beat").await;
        bed.sql(spoil).await;
        for _ in 0..3 {
            node.beat_for(&bed, 60_000).await;
            node.fire().await;
            node.scan().await;
        }
        assert_eq!(bed.planned().await, [0_i64; 0], "{spoil}");
        assert_eq!(bed.skips(schedule).await, [], "{spoil}");
        let record = bed.store.schedules(&[schedule]).await.unwrap().pop().flatten().unwrap();
        let why = node.handle().why_schedule(&record).await.unwrap().unwrap();
        assert!(format!("{why:?}").contains("days"), "{spoil}: {why:?}");
        bed.store.put_calendars(&[put], bed.now()).await.unwrap();
        node.beat_for(&bed, 2_000).await;
        node.fire().await;
        assert_eq!(bed.planned().await, [180_000], "{spoil}: the newest");
        let skipped: u64 = bed.skips(schedule).await.iter().map(|skip| skip.range.count).sum();
        assert_eq!(skipped, 2, "{spoil}: and the others have an end too");
    }
}

/// A cursor that cannot be read is not due for anybody: its schedule would never fire again,
/// unless the scanner puts another in its place.
#[tokio::test]
async fn the_scanner_replaces_a_cursor_that_cannot_be_read() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let every = |name: &str| json!({ "name": name, "every": "1m" });
    let saved =
        bed.save(&node.node, with(job("hello", "noop"), json!({ "schedules": [every("a"), every("b")] }))).await;
    let broken = bed.schedule(saved, "a").await;
    bed.sql(&format!("UPDATE cursor SET planned_at = 'x' WHERE schedule = {}", broken.0)).await;
    node.scan().await;
    assert_eq!(node.node.stats.unreadable.get(), 0, "there is nothing left to be done");
    for _ in 0..2 {
        node.beat_for(&bed, 60_000).await;
        node.fire().await;
    }
    let fired = bed.runs().await;
    assert!(fired.iter().any(|record| record.run.trigger.schedule == Some(broken)));
}

/// While a job cannot be read, the cursors of its schedules say how far they have come: taken
/// away, that would be forgotten when the job is saved again.
#[tokio::test]
async fn the_schedules_of_an_unreadable_job_keep_their_cursors() {
    let bed = Bed::new().await;
    let first = bed.node().await;
    let rules = json!({ "schedules": [{ "name": "a", "every": "1m" }] });
    let saved = bed.save(&first.node, with(job("hello", "noop"), rules)).await;
    let id = bed.schedule(saved, "a").await;
    bed.go(60_000);
    let mut node = bed.node().await;
    node.look().await;
    for sql in ["UPDATE job SET document = '{'", "UPDATE schedule SET pause = '{'"] {
        // One that sleeps is looked at closely.
        bed.sql("UPDATE cursor SET due_at = due_at + 1").await;
        bed.sql(sql).await;
        node.scan().await;
        assert!(bed.store.cursors(&[id]).await.unwrap()[0].is_some(), "{sql}");
        bed.sql("UPDATE schedule SET pause = NULL").await;
    }
}

/// A broken document is met whenever its job is: said every time, it would fill the log, and
/// whoever asks for the list must find it there until the job is saved again.
#[tokio::test]
async fn a_broken_document_is_listed_until_its_job_is_saved_again() {
    let bed = Bed::new().await;
    let first = bed.node().await;
    let saved = bed.save(&first.node, job("hello", "noop")).await;
    bed.sql("UPDATE job SET document = '{}'").await;
    let mut node = bed.node().await;
    let listed = async || {
        let rows = bed.store.unreadable().await.unwrap();
        rows.into_iter().map(|row| (row.table, row.key)).collect::<Vec<_>>()
    };
    let name = ("job".to_owned(), saved.job.0.to_string());
    for _ in 0..2 {
        assert!(node.node.catalog.jobs_anew([saved.job].into_iter()).await.unwrap().is_empty());
        assert_eq!(bed.store.jobs(&[saved.job]).await.unwrap().len(), 1);
        assert_eq!(listed().await, std::slice::from_ref(&name));
    }
    assert_eq!(bed.store.raw_row("job", &name.1).await.unwrap().unwrap()["document"], "{}");
    node.scan().await;
    assert_eq!(node.node.stats.unreadable.get(), 1, "it is counted");
    bed.save(&node.node, with(job("hello", "noop"), json!({ "description": "mended" }))).await;
    node.node.catalog.jobs_anew([saved.job].into_iter()).await.unwrap();
    assert_eq!(listed().await, []);
}

/// A broken version ends the runs that were made from it, and no others.
#[tokio::test]
async fn a_broken_job_version_fails_its_own_runs_alone() {
    let bed = Bed::new().await;
    let first = bed.node().await;
    bed.save(&first.node, job("broken", "noop")).await;
    bed.save(&first.node, job("sound", "noop")).await;
    let broken = first.enqueue(&bed, "broken").await;
    let sound = first.enqueue(&bed, "sound").await;
    bed.sql(&format!("UPDATE job_version SET document = '{{' WHERE job = {}", bed.record(broken).await.run.job.0))
        .await;
    bed.go(60_000);
    let mut node = bed.node().await;
    node.look().await;
    node.work().await;
    assert_eq!(bed.status(sound).await, ended(Verdict::Succeeded));
    assert_eq!(bed.status(broken).await, ended(Verdict::Failed));
    assert!(bed.record(broken).await.failure.unwrap().message.contains("cannot be read"));
}

/// A discarded run gives back its slot, and who waited for it starts.
#[tokio::test]
async fn a_discarded_run_frees_its_slot() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, with(job("one", "noop"), json!({ "concurrency": { "limit": 1 } }))).await;
    let ids = [node.enqueue(&bed, "one").await, node.enqueue(&bed, "one").await];
    assert_eq!(bed.status(ids[1]).await, Status::Blocked);
    spoil(&bed, ids[0], "extra = '{'").await;
    assert_eq!(bed.store.runs(&[ids[0]]).await.unwrap(), [None]);
    let key = ids[0].to_string();
    assert_eq!(node.handle().discard_row("run", &key).await.unwrap(), Discarded::Gone);
    assert_eq!(bed.status(ids[1]).await, Status::Queued);
    node.scan().await;
    assert_eq!(node.node.stats.unreadable.get(), 0);
}
