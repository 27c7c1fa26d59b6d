//! Schedules: saved under a guard, found, listed, ended.

use jiff::Timestamp;
use rota_core::{
    fire::{Cursor, Progress, SkipRange, SkipReason, Stored},
    ids::{Partition, ScheduleId, TenantId},
    quota::Held,
    store::{
        DueCursor, Guarded, JobSaved, ReviewPage, ScheduleGuard, SchedulePut, ScheduleQuery, ScheduleRecord,
        ScheduleSaved, StoreError, Tier,
    },
};

use crate::harness::*;

fn revision(saved: ScheduleSaved) -> i32 {
    match saved {
        ScheduleSaved::Saved { revision } => revision,
        ScheduleSaved::Stale => panic!("stale"),
    }
}

/// What was saved is what is read.
pub async fn a_saved_schedule_is_found_by_id_and_job(h: &Harness) {
    let put = h.schedule_put("nightly").await;
    let revision = revision(h.save_schedule(&put, at(0)).await);
    let record = h.store.schedules(&[put.id]).await.unwrap().remove(0).unwrap();
    assert_eq!((record.id, record.job, record.tenant), (put.id, h.job, h.tenant));
    assert_eq!((record.name.as_str(), record.spec.as_str()), ("nightly", put.spec.as_str()));
    assert_eq!((record.revision, record.enabled, record.deleted), (revision, true, false));
    assert_eq!((record.part, record.pause.clone(), record.armed_by), (Partition::of_schedule(put.id), None, None));
    let query = ScheduleQuery { job: Some(h.job), limit: 10, ..ScheduleQuery::default() };
    assert_eq!(h.store.list_schedules(&query).await.unwrap().schedules, [record]);
    assert_eq!(h.store.schedules(&[ScheduleId(-1)]).await.unwrap(), [None]);
    assert_eq!(h.cursors(&[ScheduleId(-1), put.id]).await, [None, put.stored.cursor]);
}

/// Ids are reserved in a row, and never twice.
pub async fn reserved_ids_are_apart(h: &Harness) {
    let second = h.second().await;
    let first = h.store.reserve_schedules(10).await.unwrap().0;
    let next = second.reserve_schedules(5).await.unwrap().0;
    let last = h.store.reserve_schedules(1).await.unwrap().0;
    assert!(next >= first + 10 && last >= next + 5, "{first} {next} {last}");
}

/// An edit over a change made meanwhile must not undo it.
pub async fn an_edit_is_guarded_by_what_its_saver_read(h: &Harness) {
    let put = h.schedule_put("s").await;
    let first = revision(h.save_schedule(&put, at(0)).await);
    let edit = |guard| SchedulePut { spec: "{\"every\":\"2m\"}".into(), guard: Some(guard), ..put.clone() };
    let good = ScheduleGuard { revision: first, cursor: put.stored.cursor, behind: put.stored.behind, armed_by: None };
    for wrong in [
        ScheduleGuard { revision: first + 1, ..good },
        ScheduleGuard { cursor: None, ..good },
        ScheduleGuard { cursor: Some(cursor(at(1), 0)), ..good },
        ScheduleGuard { behind: Progress { fired: 1, ..good.behind }, ..good },
        ScheduleGuard { behind: Progress { decided_to: Some(at(0)), ..good.behind }, ..good },
        ScheduleGuard { armed_by: Some(h.new_run(h.claimed).id), ..good },
    ] {
        assert_eq!(h.save_schedule(&edit(wrong), at(1)).await, ScheduleSaved::Stale);
    }
    let second = revision(h.save_schedule(&edit(good), at(1)).await);
    assert!(second > first);
    assert_eq!(h.save_schedule(&edit(good), at(2)).await, ScheduleSaved::Stale, "once");
    let record = h.store.schedules(&[put.id]).await.unwrap().remove(0).unwrap();
    assert_eq!(record.spec, "{\"every\":\"2m\"}");
}

/// A fire since the edit was begun is a change made meanwhile.
pub async fn an_edit_after_a_fire_is_stale(h: &Harness) {
    let schedule = h.schedule("s").await;
    let record = h.store.schedules(&[schedule]).await.unwrap().remove(0).unwrap();
    let read = record.guard(Some(cursor(at(0), 0)));
    let item = crate::fire::due_item(h, schedule, at(0), Some(at(60_000))).await;
    let pauses = h.store.pauses().await.unwrap().revision;
    h.store.fire(&h.write(at(0)), pauses, &[item]).await.unwrap();
    let put = SchedulePut { id: schedule, guard: Some(read), ..h.schedule_put("s").await };
    assert_eq!(h.save_schedule(&put, at(1)).await, ScheduleSaved::Stale);
    assert_eq!(h.cursors(&[schedule]).await, [Some(cursor(at(60_000), 1))]);
}

/// So is a fire and the end of its run: no cursor before and none after looks as if
/// nothing had happened, but for what is behind.
pub async fn an_edit_after_a_round_of_after_finish_is_stale(h: &Harness) {
    let (schedule, _) = crate::fire::after_finish(h, "s").await;
    let record = h.store.schedules(&[schedule]).await.unwrap().remove(0).unwrap();
    let run = h.claim(h.worker(), 1, at(100)).await.remove(0);
    h.succeed(&run, at(100)).await;
    let mut next = crate::fire::due_item(h, schedule, at(5_100), None).await;
    next.runs[0].rearms = true;
    crate::fire::fire(h, &next, at(5_100)).await;
    let now = h.store.schedules(&[schedule]).await.unwrap().remove(0).unwrap();
    assert_eq!(record.progress, Progress { fired: 1, decided_to: Some(at(0)) });
    assert_eq!((now.revision, now.progress), (record.revision, Progress { fired: 2, decided_to: Some(at(5_100)) }));
    let edit = |read: &ScheduleRecord, put| SchedulePut {
        id: schedule,
        stored: Stored { behind: read.progress, ..armed(Some(cursor(at(6_000), read.progress.fired))) },
        guard: Some(read.guard(None)),
        ..put
    };
    let put = h.schedule_put("s").await;
    assert_eq!(h.save_schedule(&edit(&record, put.clone()), at(5_200)).await, ScheduleSaved::Stale);
    assert_eq!(h.cursors(&[schedule]).await, [None]);
    revision(h.save_schedule(&edit(&now, put), at(5_300)).await);
    assert_eq!(h.cursors(&[schedule]).await, [Some(cursor(at(6_000), 2))]);
}

/// What an edit says is behind the schedule is there for the next one, be it armed
/// or not: what a former definition decided is known by nothing else.
pub async fn what_is_behind_an_edited_schedule_is_kept(h: &Harness) {
    let put = h.schedule_put("s").await;
    revision(h.save_schedule(&put, at(0)).await);
    let held =
        [put.stored.cursor, Some(cursor(at(9_000), 3)), None, Some(cursor(at(20_000), 5)), Some(cursor(at(30_000), 5))];
    let behind = [(3, Some(7_000)), (4, Some(9_500)), (5, Some(9_500)), (5, None)];
    for (n, (fired, decided)) in behind.into_iter().enumerate() {
        let record = h.store.schedules(&[put.id]).await.unwrap().remove(0).unwrap();
        let behind = Progress { fired, decided_to: decided.map(at) };
        let guard = Some(record.guard(held[n]));
        let edit = SchedulePut { stored: Stored { behind, ..armed(held[n + 1]) }, guard, ..put.clone() };
        revision(h.save_schedule(&edit, at(1)).await);
        let record = h.store.schedules(&[put.id]).await.unwrap().remove(0).unwrap();
        assert_eq!(record.progress, behind, "edit {n}");
        assert_eq!(h.cursors(&[put.id]).await, [held[n + 1]], "edit {n}");
    }
}

/// An edit moves the cursor; the old one must not fire as well.
pub async fn an_edit_moves_the_cursor(h: &Harness) {
    let put = h.schedule_put("s").await;
    let first = revision(h.save_schedule(&put, at(0)).await);
    let guard =
        Some(ScheduleGuard { revision: first, cursor: put.stored.cursor, behind: put.stored.behind, armed_by: None });
    let skip = SkipRange { from: at(0), to: at(0), count: 1, reason: SkipReason::Edited };
    let moved = SchedulePut { stored: armed(Some(cursor(at(9_000), 0))), guard, skips: vec![skip], ..put.clone() };
    let second = revision(h.save_schedule(&moved, at(1)).await);
    let due = h.store.due(&all_parts(), Timestamp::MAX, 10).await.unwrap();
    assert_eq!(
        due.iter().map(|due| (due.schedule, due.revision, due.cursor)).collect::<Vec<_>>(),
        [(put.id, second, cursor(at(9_000), 0))]
    );
    let skips = h.store.skips(put.id, None, 10).await.unwrap();
    assert_eq!(skips.iter().map(|skip| skip.range).collect::<Vec<_>>(), [skip], "what the edit left out is recorded");
    let guard = Some(ScheduleGuard {
        revision: second,
        cursor: moved.stored.cursor,
        behind: moved.stored.behind,
        armed_by: None,
    });
    let unarmed = SchedulePut { stored: armed(None), enabled: false, guard, skips: Vec::new(), ..put.clone() };
    revision(h.save_schedule(&unarmed, at(2)).await);
    assert_eq!(h.store.due(&all_parts(), Timestamp::MAX, 10).await.unwrap(), []);
    assert!(!h.store.schedules(&[put.id]).await.unwrap()[0].as_ref().unwrap().enabled);
}

/// A name is one schedule's within its job.
pub async fn a_taken_name_is_stale(h: &Harness) {
    h.schedule("s").await;
    let again = h.schedule_put("s").await;
    assert_eq!(h.save_schedule(&again, at(1)).await, ScheduleSaved::Stale);
    assert_eq!(h.store.schedules(&[again.id]).await.unwrap(), [None]);
    let other = h.job("other").await;
    let elsewhere = SchedulePut { job: other, ..h.schedule_put("s").await };
    revision(h.save_schedule(&elsewhere, at(1)).await);
    let (a, b) = (h.schedule_put("twice").await, h.schedule_put("twice").await);
    let answers = h.store.put_schedules(&h.write(at(2)), &[a, b]).await.unwrap();
    assert!(matches!(answers[0], ScheduleSaved::Saved { .. }));
    assert_eq!(answers[1], ScheduleSaved::Stale, "also within a batch");
}

/// What a deleted schedule still owed is recorded; its name is free.
pub async fn a_deleted_schedule_owes_nothing_and_frees_its_name(h: &Harness) {
    let schedule = h.schedule("s").await;
    h.end_schedules(&[schedule, ScheduleId(-1), schedule], at(5)).await;
    assert_eq!(h.cursors(&[schedule]).await, [None]);
    assert!(h.store.schedules(&[schedule]).await.unwrap()[0].as_ref().unwrap().deleted);
    let query = ScheduleQuery { job: Some(h.job), limit: 10, ..ScheduleQuery::default() };
    assert_eq!(h.store.list_schedules(&query).await.unwrap().schedules, []);
    let skips = h.store.skips(schedule, None, 10).await.unwrap();
    assert_eq!(skips.len(), 1);
    assert_eq!((skips[0].range.from, skips[0].range.reason), (at(0), SkipReason::Deleted));
    let new = h.schedule("s").await;
    assert_ne!(new, schedule);
}

/// A job and its schedules are one: what fires or changes between the look and the
/// save undoes all of it, and of those that are saved with it.
pub async fn a_job_is_saved_with_its_schedules_or_not_at_all(h: &Harness) {
    let kept = h.schedule("kept").await;
    let record = |id| async move { h.store.schedules(&[id]).await.unwrap().remove(0).unwrap() };
    let held = h.cursors(&[kept]).await[0];
    let guard = record(kept).await.guard(held);
    let edit = SchedulePut {
        id: kept,
        guard: Some(guard),
        stored: armed(Some(cursor(at(9_000), 0))),
        ..h.schedule_put("kept").await
    };
    let new = SchedulePut { job: rota_core::ids::JobId(0), ..h.schedule_put("new").await };
    let other = h.job_put("other", "{\"v\":1}");
    let put = rota_core::store::JobPut {
        document: "{\"v\":2}".into(),
        hash: [7; 32],
        ..h.with_schedules(vec![edit, new.clone()], &[]).await
    };
    let moved = |answer: Result<Vec<JobSaved>, StoreError>| assert!(matches!(answer, Err(StoreError::Moved { .. })));
    // Fired since.
    let item = crate::fire::due_item(h, kept, at(0), Some(at(60_000))).await;
    crate::fire::fire(h, &item, at(1)).await;
    moved(h.store.put_jobs(&h.write(at(2)), &[other.clone(), put.clone()]).await);
    assert_eq!(h.store.find_jobs(&[(h.tenant, "other".into())]).await.unwrap(), [None]);
    assert_eq!(h.store.schedules(&[new.id]).await.unwrap(), [None]);
    assert_eq!(h.store.job_versions(h.job, 10).await.unwrap().len(), 1);
    // Read again, and saved.
    let held = h.cursors(&[kept]).await[0];
    let mut put = put;
    let schedules = put.schedules.as_mut().unwrap();
    schedules.saved[0].guard = Some(record(kept).await.guard(held));
    let write = h.write(at(3));
    let saved = h.store.put_jobs(&write, &[other, put.clone()]).await.unwrap();
    assert!(saved.iter().all(|saved| matches!(saved, JobSaved::Saved { changed: true, .. })), "{saved:?}");
    assert_eq!(h.cursors(&[kept, new.id]).await, [Some(cursor(at(9_000), 0)), new.stored.cursor]);
    assert_eq!(record(new.id).await.job, h.job, "whatever job it named");
    assert_eq!(h.store.job_versions(h.job, 10).await.unwrap().len(), 2);
    // Edited since, by somebody who saw the same.
    moved(h.store.put_jobs(&h.write(at(4)), std::slice::from_ref(&put)).await);
    // Deleted since: it would be another job.
    h.store.delete_jobs(&h.write(at(5)), &[deletion(h.job)]).await.unwrap();
    moved(h.store.put_jobs(&h.write(at(6)), &[put]).await);
}

/// A thousand in one batch, all armed, listed page by page.
pub async fn a_thousand_schedules_are_saved_at_once(h: &Harness) {
    let first = h.store.reserve_schedules(1_000).await.unwrap();
    let template = h.schedule_put("x").await;
    let puts: Vec<_> = (0..1_000)
        .map(|n| SchedulePut {
            id: ScheduleId(first.0 + n),
            name: format!("s{n}"),
            stored: armed(Some(cursor(at(n), 0))),
            ..template.clone()
        })
        .collect();
    let answers = h.store.put_schedules(&h.write(at(0)), &puts).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, ScheduleSaved::Saved { .. })));
    let ids: Vec<_> = puts.iter().map(|put| put.id).collect();
    let cursors = h.cursors(&ids).await;
    assert_eq!(cursors, puts.iter().map(|put| put.stored.cursor).collect::<Vec<_>>());
    let due = h.store.due(&all_parts(), at(499), 10_000).await.unwrap();
    assert_eq!(due.len(), 500);
    let mut query = ScheduleQuery { job: Some(h.job), limit: 300, ..Default::default() };
    let mut listed = Vec::new();
    loop {
        let page = h.store.list_schedules(&query).await.unwrap();
        listed.extend(page.schedules.iter().map(|schedule| schedule.id));
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    assert_eq!(listed, ids);
}

/// A walk in small steps meets each schedule of its partitions once, and names those
/// whose cursor is not plainly right.
pub async fn a_walk_finds_the_schedules_that_deserve_a_closer_look(h: &Harness) {
    let first = h.store.reserve_schedules(600).await.unwrap();
    let template = h.schedule_put("x").await;
    let asleep = |n: i64| Cursor { due_at: at(n + 1), ..cursor(at(n), 0) };
    let put = |n: i64| SchedulePut {
        id: ScheduleId(first.0 + n),
        name: format!("s{n}"),
        enabled: n % 7 != 0,
        stored: armed(match n % 5 {
            0 => None,
            1 if n % 3 == 0 => Some(asleep(n)),
            _ => (n % 7 != 0 || n % 11 == 0).then(|| cursor(at(n), 0)),
        }),
        ..template.clone()
    };
    let puts: Vec<_> = (0..600).map(put).collect();
    h.store.put_schedules(&h.write(at(0)), &puts).await.unwrap();
    let gone = puts[5].id;
    h.end_schedules(&[gone], at(0)).await;
    let parts: Vec<Partition> = all_parts().into_iter().filter(|part| part.0 % 3 != 0).collect();
    let right = |cursor: &Cursor| cursor.due_at == cursor.planned_at;
    let wanted = |put: &&SchedulePut| match put.stored.cursor {
        None => put.enabled && put.id != gone,
        Some(cursor) => !put.enabled || !right(&cursor),
    };
    let ours = puts.iter().filter(wanted).map(|put| put.id);
    let mut ours: Vec<_> = ours.filter(|id| parts.contains(&Partition::of_schedule(*id))).collect();
    ours.sort_unstable_by_key(|id| (Partition::of_schedule(*id), *id));
    assert!(ours.len() > 60);
    for limit in [1, 7, 100, 10_000] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = h.store.review(&parts, after, limit).await.unwrap();
            found.extend(page.schedules);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, ours, "{limit} at a time");
    }
    assert_eq!(h.store.review(&[], None, 10).await.unwrap(), ReviewPage::default());
}

/// Whoever wakes a schedule must not undo a fire or an edit made meanwhile.
pub async fn a_cursor_is_moved_or_taken_away_only_as_it_was_read(h: &Harness) {
    let (moved, gone) = (h.schedule("moved").await, h.schedule("gone").await);
    let due = h.store.cursors(&[moved, gone]).await.unwrap();
    let (moved, gone) = (due[0].unwrap(), due[1].unwrap());
    for wrong in [
        DueCursor { revision: moved.revision + 1, ..moved },
        DueCursor { cursor: Cursor { fired: 1, ..moved.cursor }, ..moved },
        DueCursor { cursor: Cursor { planned_at: at(1), ..moved.cursor }, ..moved },
        DueCursor { cursor: Cursor { due_at: at(1), ..moved.cursor }, ..moved },
    ] {
        for to in [Some(at(9)), None] {
            let answers = h.store.wake_at(&h.write(at(1)), &[(wrong, to)]).await.unwrap();
            assert_eq!(answers, [Guarded::Stale], "{wrong:?}");
        }
    }
    let write = h.write(at(1));
    let asked = [(moved, Some(at(700))), (gone, None)];
    let answers = h.store.wake_at(&write, &asked).await.unwrap();
    assert_eq!(answers, [Guarded::Applied, Guarded::Applied]);
    assert_eq!(h.store.wake_at(&write, &asked).await.unwrap(), answers, "asked again");
    let expected = Cursor { due_at: at(700), ..moved.cursor };
    assert_eq!(h.cursors(&[moved.schedule, gone.schedule]).await, [Some(expected), None]);
    assert_eq!(h.store.due(&all_parts(), Timestamp::MAX, 10).await.unwrap().len(), 1);
}

/// Filters of the list hold.
pub async fn schedules_are_listed_with_filters(h: &Harness) {
    let other_tenant = h.tenant("other").await;
    let other_job = h.job("other").await;
    let mine = h.schedule_put("a").await;
    let off = SchedulePut { enabled: false, stored: armed(None), ..h.schedule_put("b").await };
    let theirs = SchedulePut { tenant: other_tenant, job: other_job, ..h.schedule_put("c").await };
    h.store.put_schedules(&h.write(at(0)), &[mine.clone(), off.clone(), theirs.clone()]).await.unwrap();
    let list = async |query: ScheduleQuery| {
        let page = h.store.list_schedules(&ScheduleQuery { limit: 10, ..query }).await.unwrap();
        page.schedules.iter().map(|schedule| schedule.id).collect::<Vec<_>>()
    };
    assert_eq!(list(ScheduleQuery::default()).await, [mine.id, off.id, theirs.id]);
    assert_eq!(list(ScheduleQuery { tenant: Some(other_tenant), ..Default::default() }).await, [theirs.id]);
    assert_eq!(list(ScheduleQuery { job: Some(h.job), ..Default::default() }).await, [mine.id, off.id]);
    assert_eq!(list(ScheduleQuery { enabled: Some(false), ..Default::default() }).await, [off.id]);
    assert_eq!(list(ScheduleQuery { after: Some(off.id), ..Default::default() }).await, [theirs.id]);
}

/// What a tenant may have is counted, and counting is bounded.
pub async fn active_schedules_of_a_tenant_are_counted_up_to_a_bound(h: &Harness) {
    assert_eq!(h.store.count_held(h.tenant, Held::ActiveSchedules, 10, at(0)).await.unwrap(), 0);
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(h.schedule(&format!("s{n}")).await);
    }
    let off = SchedulePut { enabled: false, stored: armed(None), ..h.schedule_put("off").await };
    revision(h.save_schedule(&off, at(0)).await);
    assert_eq!(h.store.count_held(h.tenant, Held::ActiveSchedules, 10, at(0)).await.unwrap(), 4);
    assert_eq!(h.store.count_held(h.tenant, Held::ActiveSchedules, 3, at(0)).await.unwrap(), 3);
    h.end_schedules(&ids[..1], at(1)).await;
    assert_eq!(h.store.count_held(h.tenant, Held::ActiveSchedules, 10, at(0)).await.unwrap(), 3);
    assert_eq!(h.store.count_held(TenantId(-1), Held::ActiveSchedules, 10, at(0)).await.unwrap(), 0);
}

/// A crowded second is seen before it comes, wherever its schedules lie.
pub async fn schedules_due_in_a_second_are_counted_up_to_a_bound(h: &Harness) {
    let mut puts = Vec::new();
    for n in 0..20 {
        let due = if n < 12 { 60_000 + n * 80 } else { 61_000 };
        let put = h.schedule_put(&format!("s{n}")).await;
        puts.push(SchedulePut { stored: armed(Some(cursor(at(due), 0))), ..put });
    }
    h.store.put_schedules(&h.write(at(0)), &puts).await.unwrap();
    let seconds = [at(61_000), at(60_000), at(59_000)];
    assert_eq!(h.store.count_due(&seconds, 100).await.unwrap(), [8, 12, 0]);
    assert_eq!(h.store.count_due(&seconds, 10).await.unwrap(), [8, 10, 0]);
    assert!(h.store.count_due(&[], 10).await.unwrap().is_empty());
}

/// From the next release on both stores write codes, and this one runs beside it.
pub async fn codes_are_read_where_names_are_written(h: &Harness) {
    let put = h.schedule_put("daily").await;
    h.save_schedule(&put, at(0)).await;
    for n in 0..2 {
        let stored = h.store.schedules(&[put.id]).await.unwrap().remove(0).unwrap();
        let guard = Some(stored.guard(h.cursors(&[put.id]).await[0]));
        let skips = vec![SkipRange { from: at(n), to: at(n), count: 1, reason: SkipReason::Edited }];
        let moved = SchedulePut { stored: armed(Some(cursor(at(9_000 + n), 0))), guard, skips, ..put.clone() };
        assert!(matches!(h.save_schedule(&moved, at(n)).await, ScheduleSaved::Saved { .. }));
        assert!(h.place.sql("UPDATE skip SET reason = 6; UPDATE tenant SET tier = 1").await);
    }
    let skips = h.store.skips(put.id, None, 10).await.unwrap();
    let both = SkipRange { from: at(0), to: at(1), count: 2, reason: SkipReason::Edited };
    assert_eq!(skips.iter().map(|skip| skip.range).collect::<Vec<_>>(), [both], "a stretch goes on");
    assert_eq!(h.store.tenants().await.unwrap().remove(0).tier, Tier::Pro);
}
