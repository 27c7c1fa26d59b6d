//! What cannot be is found and put right.

use rota_core::{
    fire::{Progress, Stored},
    store::{SchedulePut, ScheduleSaved},
};
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
