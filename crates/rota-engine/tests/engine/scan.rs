//! What cannot be is found and put right.

use rota_core::{
    duration::Span,
    fire::{Progress, Stored},
    run::{Status, Verdict},
    store::{Pause, PauseTarget, SchedulePut, ScheduleSaved},
};
use rota_engine::{JobRef, Made, Redrive, RunAsk, backfill::Ask, making};
use serde_json::json;

use crate::bed::*;

/// Takes the cursor of a schedule away, as nothing in the house does.
async fn lose_cursor(bed: &Bed, hands: &Hands, id: rota_core::ids::ScheduleId) {
    let record = bed.store.schedules(&[id]).await.unwrap().remove(0).unwrap();
    let held = bed.store.cursors(&[id]).await.unwrap().remove(0).expect("it is armed");
    let stored = Stored { behind: Progress::before(held.cursor), ..Stored::default() };
    let put = SchedulePut { stored, ..SchedulePut::moving(record, Some(held.cursor), None) };
    let saved = bed.store.put_schedules(&hands.node.write(bed.now()), &[put]).await.unwrap();
    assert!(matches!(saved[..], [ScheduleSaved::Saved { .. }]));
}

/// Whoever deletes a job may die before its runs were told, and somebody who had read
/// the job before may make a run of it afterwards.
#[tokio::test]
async fn the_deletion_of_a_job_is_brought_to_its_end() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let (gone, kept) =
        (bed.save(&node.node, job("gone", "noop")).await, bed.save(&node.node, job("kept", "noop")).await);
    let early = node.enqueue(&bed, "gone").await;
    let late = making::plan(&node.node, vec![RunAsk::of(bed.tenant, JobRef::Id(gone.job))], bed.now()).await.unwrap();
    let late = late.into_iter().map(Result::unwrap).collect::<Vec<_>>();
    // It dies here.
    bed.store.delete_jobs(&node.node.write(bed.now()), &[deletion(gone.job)]).await.unwrap();
    node.scan().await;
    node.drain_cancelled().await;
    assert_eq!(bed.status(early).await, ended(Verdict::Cancelled));
    bed.store.enqueue(&node.node.write(bed.now()), &late, &[]).await.unwrap();
    node.scan().await;
    node.drain_cancelled().await;
    assert_eq!(bed.status(late[0].id).await, ended(Verdict::Cancelled));
    assert_eq!(bed.store.deletions(9).await.unwrap().len(), 1, "one more may come");
    node.beat_for(&bed, 301_000).await;
    node.scan().await;
    assert_eq!(bed.store.deletions(9).await.unwrap(), []);
    let other = node.enqueue(&bed, "kept").await;
    node.scan().await;
    assert_eq!(bed.status(other).await, Status::Queued, "{kept:?}");
}

/// What was deleted does not come back by a retry.
#[tokio::test]
async fn a_run_of_a_deleted_job_is_not_made_again() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let gone = bed.save(&node.node, job("gone", "noop")).await;
    let run = node.enqueue(&bed, "gone").await;
    node.work().await;
    assert_eq!(bed.status(run).await, ended(Verdict::Succeeded));
    node.handle().delete_job(&deletion(gone.job)).await.unwrap();
    for latest in [false, true] {
        let how = Redrive { latest, ..Redrive::default() };
        assert_eq!(node.handle().redrive(&[run], &how).await.unwrap(), [Some(Made::NoJob)]);
    }
}

/// The job takes one run of each payload a minute; a backfill makes each instant once
/// all the same, however long that is ago.
#[tokio::test]
async fn a_backfill_is_remembered_beside_the_unique_key_of_its_job() {
    let bed = Bed::new().await;
    bed.go(400_000_000);
    let node = bed.node().await;
    let payload = json!({ "day": "{{ schedule.planned_at | date }}" });
    let schedules = json!([{ "name": "half", "cron": "0 */12 * * *", "payload": payload, "enabled": false }]);
    let unique = json!({ "by": ["payload.day"], "within": "1m" });
    let saved =
        bed.save(&node.node, with(job("tick", "noop"), json!({ "unique": unique, "schedules": schedules }))).await;
    let schedule = bed.schedule(saved, "half").await;
    let ask = Ask { schedule, from: at(0), to: at(260_000_000), again: false, dry_run: false, by: None };
    let backfill = async || node.handle().backfill(ask.clone()).await.unwrap().unwrap();
    let first = backfill().await;
    assert_eq!((first.planned, first.runs), (6, 4), "the job takes one of each day");
    assert_eq!((first.fired_before, first.refused), (0, 2), "and nothing had fired");
    let again = backfill().await;
    assert_eq!((again.runs, again.fired_before, again.refused), (0, 4, 2), "the minute is not over");
    bed.go(61_000);
    let second = backfill().await;
    assert_eq!(first.runs + second.runs, first.planned, "the others of each day, and none twice");
    bed.go(61_000);
    assert_eq!(backfill().await.runs, 0);
}

/// A node that stood still knows neither the pause of a queue nor its end. What sleeps
/// because of it is as it should be: nobody is alarmed, and nothing is woken before.
#[tokio::test]
async fn a_pause_that_a_node_has_not_heard_of_is_no_finding() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let schedules = json!([{ "name": "every", "every": "10s", "anchor": at(0) }]);
    let saved = bed.save(&node.node, with(job("tick", "noop"), json!({ "schedules": schedules }))).await;
    let id = bed.schedule(saved, "every").await;
    assert_eq!(node.scan().await.done, 0);
    // Another node pauses the queue, and puts the schedule to sleep.
    let queue = [PauseTarget::Queue(bed.tenant, "default".into())];
    let pause = Pause { since: bed.now(), ..Pause::default() };
    bed.store.set_pauses(&node.node.write(bed.now()), &queue, Some(&pause)).await.unwrap();
    let held = bed.store.cursors(&[id]).await.unwrap().remove(0).unwrap();
    let asleep = Span::secs(3_600).after(bed.now());
    bed.store.wake_at(&node.node.write(bed.now()), &[(held, Some(asleep))]).await.unwrap();
    node.beat_for(&bed, 30_000).await;
    let due_at = async || bed.store.cursors(&[id]).await.unwrap().remove(0).unwrap().cursor.due_at;
    assert_eq!((node.scan().await.done, due_at().await), (0, asleep), "it is paused");
    bed.store.set_pauses(&node.node.write(bed.now()), &queue, None).await.unwrap();
    assert_eq!(node.scan().await.done, 0, "it was lifted a moment ago");
    assert_eq!(due_at().await, held.cursor.due_at, "and is woken");
}

/// Whatever its kind, and nothing else is touched by it.
#[tokio::test]
async fn a_schedule_that_nothing_would_fire_is_armed_again() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let schedules = json!([
        { "name": "cron", "cron": "* * * * *" },
        { "name": "every", "every": "10s", "anchor": at(0) },
        { "name": "after", "after_finish": "5s" },
        { "name": "once", "at": at(1_000) },
        { "name": "off", "every": "10s", "enabled": false },
    ]);
    let saved = bed.save(&node.node, with(job("tick", "noop"), json!({ "schedules": schedules }))).await;
    // Those that wait for a run, or have come to their end, are as they should be.
    node.beat_for(&bed, 1_500).await;
    node.fire().await;
    assert_eq!(node.scan().await.done, 0);
    node.work().await;
    assert_eq!(node.scan().await.done, 0);
    for name in ["cron", "every", "after"] {
        let id = bed.schedule(saved, name).await;
        lose_cursor(&bed, &node, id).await;
        assert_eq!(node.scan().await.done, 1, "{name}");
        let cursor = bed.store.cursors(&[id]).await.unwrap().remove(0);
        assert!(cursor.is_some_and(|due| due.cursor.planned_at >= bed.now()), "{name}: {cursor:?}");
        assert_eq!(node.scan().await.done, 0, "{name}");
    }
    for name in ["once", "off"] {
        assert_eq!(bed.store.cursors(&[bed.schedule(saved, name).await]).await.unwrap(), [None], "{name}");
    }
}
