//! Firing: each planned instant once, and never on what was read too long ago.

use jiff::Timestamp;
use rota_core::{
    fire::{SkipRange, SkipReason},
    ids::{Partition, RunId, ScheduleId},
    run::{Block, Change, NewRun, Outcome, Run, RunState, Source, Status, Trigger, UniqueAsk, Verdict},
    slot::{UniqueKey, WhenFull},
    store::{
        DueCursor, Enqueued, FireItem, Fired, Guarded, LiveRun, Pause, PauseTarget, RunQuery, SchedulePut,
        ScheduleSaved,
    },
};

use crate::harness::*;

/// The run of a schedule's instant.
pub fn run_of(h: &Harness, schedule: ScheduleId, planned_at: Timestamp) -> NewRun {
    let trigger =
        Trigger { schedule: Some(schedule), planned_at: Some(planned_at), ..Trigger::plain(Source::Schedule) };
    NewRun { trigger, ready_at: planned_at, ..h.new_run(h.claimed) }
}

pub async fn due_of(h: &Harness, schedule: ScheduleId) -> DueCursor {
    let due = h.store.due(&[Partition::of_schedule(schedule)], Timestamp::MAX, 10_000).await.unwrap();
    *due.iter().find(|due| due.schedule == schedule).expect("the schedule has a cursor")
}

pub async fn item(h: &Harness, schedule: ScheduleId, next: Option<Timestamp>, runs: Vec<NewRun>) -> FireItem {
    let due = due_of(h, schedule).await;
    let record = h.store.schedules(&[schedule]).await.unwrap().remove(0).unwrap();
    let job = h.store.jobs(&[record.job]).await.unwrap().remove(0).unwrap();
    let next = next.map(|at| cursor(at, due.cursor.fired + runs.len() as u64));
    FireItem {
        due,
        job: record.job,
        job_revision: job.revision,
        next,
        next_if_refused: next,
        runs,
        skips: Vec::new(),
        cancel: Vec::new(),
        cancel_ask: None,
    }
}

/// What a plan makes of one due instant: its run, and the next instant.
pub async fn due_item(h: &Harness, schedule: ScheduleId, planned_at: Timestamp, next: Option<Timestamp>) -> FireItem {
    item(h, schedule, next, vec![run_of(h, schedule, planned_at)]).await
}

pub async fn fire(h: &Harness, item: &FireItem, now: Timestamp) -> Fired {
    let revision = h.store.pauses().await.unwrap().revision;
    h.store.fire(&h.write(now), revision, std::slice::from_ref(item)).await.unwrap().remove(0)
}

async fn runs(h: &Harness) -> usize {
    h.list(RunQuery { limit: 200, ..Default::default() }).await.len()
}

const MADE: Enqueued = Enqueued::Made { status: Status::Queued, handed: false };

/// The run and the advanced cursor commit together.
pub async fn a_fire_makes_the_run_and_advances_the_cursor(h: &Harness) {
    let schedule = h.schedule("s").await;
    let item = due_item(h, schedule, at(0), Some(at(60_000))).await;
    assert_eq!(item.due.cursor, cursor(at(0), 0));
    assert_eq!(fire(h, &item, at(0)).await, Fired::Fired(vec![MADE]));
    assert_eq!(h.cursors(&[schedule]).await, [Some(cursor(at(60_000), 1))]);
    let run = h.record(item.runs[0].id).await.run;
    assert_eq!((run.trigger.schedule, run.trigger.planned_at), (Some(schedule), Some(at(0))));
    let live = h.store.live_of(&[ScheduleId(-1), schedule], 10).await.unwrap();
    assert_eq!(live, [vec![], vec![LiveRun { id: run.id, status: Status::Queued, planned_at: Some(at(0)) }]]);
    h.claim(h.worker(), 1, at(0)).await;
    let running = h.record(run.id).await.run;
    h.succeed(&running, at(1)).await;
    assert_eq!(h.store.live_of(&[schedule], 10).await.unwrap(), [vec![]]);
}

/// A schedule whose runs nobody executes must not fill a node's memory when it fires.
pub async fn live_runs_of_a_schedule_are_read_up_to_the_limit(h: &Harness) {
    let schedules = [h.schedule("a").await, h.schedule("b").await];
    let of = |schedule| {
        let trigger = Trigger { schedule: Some(schedule), ..Trigger::plain(Source::Schedule) };
        NewRun { trigger, ..h.new_run(h.claimed) }
    };
    let runs = [of(schedules[0]), of(schedules[0]), of(schedules[0]), of(schedules[1])];
    h.enqueue(&runs, at(0)).await;
    let live = h.store.live_of(&schedules, 2).await.unwrap();
    let ids: Vec<Vec<RunId>> = live.iter().map(|live| live.iter().map(|run| run.id).collect()).collect();
    assert_eq!(ids, [vec![runs[0].id, runs[1].id], vec![runs[3].id]]);
}

/// A schedule that has ended owes nothing.
pub async fn a_last_fire_leaves_no_cursor(h: &Harness) {
    let schedule = h.schedule("s").await;
    let item = due_item(h, schedule, at(0), None).await;
    assert_eq!(fire(h, &item, at(0)).await, Fired::Fired(vec![MADE]));
    assert_eq!(h.cursors(&[schedule]).await, [None]);
    assert_eq!(h.store.due(&all_parts(), Timestamp::MAX, 100).await.unwrap(), []);
}

/// Two nodes that overlap for a moment make each run once, and the second is
/// told.
pub async fn a_repeated_fire_makes_no_second_run(h: &Harness) {
    let schedule = h.schedule("s").await;
    let first = due_item(h, schedule, at(0), Some(at(60_000))).await;
    let second = FireItem { runs: vec![run_of(h, schedule, at(0))], ..first.clone() };
    assert!(matches!(fire(h, &first, at(0)).await, Fired::Fired(_)));
    assert_eq!(fire(h, &first, at(1)).await, Fired::Stale, "the same node under another name");
    assert_eq!(fire(h, &second, at(1)).await, Fired::Stale, "another node with a run of its own");
    assert_eq!(runs(h).await, 1);
    assert_eq!(h.cursors(&[schedule]).await, [Some(cursor(at(60_000), 1))]);
}

/// Two items for one schedule in one batch: one of them is stale.
pub async fn a_schedule_named_twice_in_a_batch_fires_once(h: &Harness) {
    let schedule = h.schedule("s").await;
    let first = due_item(h, schedule, at(0), Some(at(60_000))).await;
    let second = FireItem { runs: vec![run_of(h, schedule, at(0))], ..first.clone() };
    let revision = h.store.pauses().await.unwrap().revision;
    let answers = h.store.fire(&h.write(at(0)), revision, &[first, second]).await.unwrap();
    assert_eq!(answers, [Fired::Fired(vec![MADE]), Fired::Stale]);
    assert_eq!(runs(h).await, 1);
}

/// Racing for real: as many runs as instants, whoever wins each.
pub async fn nodes_firing_at_once_make_each_run_once(h: &Harness) {
    let second = h.second().await;
    let mut schedules = Vec::new();
    for n in 0..12 {
        schedules.push(h.schedule(&format!("s{n}")).await);
    }
    let revision = h.store.pauses().await.unwrap().revision;
    for round in 0..4 {
        let now = at(round * 60_000);
        let mut plans = Vec::new();
        for node in 0..3 {
            let mut items = Vec::new();
            for schedule in &schedules {
                items.push(due_item(h, *schedule, now, Some(plus(now, 60_000))).await);
            }
            if node == 1 {
                items.reverse();
            }
            plans.push(items);
        }
        let mut nodes = tokio::task::JoinSet::new();
        for (node, items) in plans.into_iter().enumerate() {
            let store = if node == 0 { h.store.clone() } else { second.clone() };
            let write = h.write(now);
            nodes.spawn(async move { store.fire(&write, revision, &items).await.unwrap() });
        }
        let answers: Vec<_> = nodes.join_all().await.into_iter().flatten().collect();
        let fired = answers.iter().filter(|answer| matches!(answer, Fired::Fired(_))).count();
        assert_eq!(fired, schedules.len(), "{answers:?}");
        assert_eq!(runs(h).await, schedules.len() * (round as usize + 1));
    }
}

/// A stale item must not take its neighbours with it.
pub async fn each_item_stands_for_itself(h: &Harness) {
    let (good, stale) = (h.schedule("good").await, h.schedule("stale").await);
    let spent = due_item(h, stale, at(0), Some(at(60_000))).await;
    fire(h, &spent, at(0)).await;
    let fresh = due_item(h, good, at(0), Some(at(60_000))).await;
    let revision = h.store.pauses().await.unwrap().revision;
    let answers = h.store.fire(&h.write(at(1)), revision, &[spent, fresh]).await.unwrap();
    assert_eq!(answers, [Fired::Stale, Fired::Fired(vec![MADE])]);
}

async fn edit(h: &Harness, schedule: ScheduleId, change: impl FnOnce(&mut SchedulePut)) -> ScheduleSaved {
    let record = h.store.schedules(&[schedule]).await.unwrap().remove(0).unwrap();
    let current = h.cursors(&[schedule]).await[0];
    let mut put = SchedulePut::moving(record, current, current);
    change(&mut put);
    h.save_schedule(&put, at(1)).await
}

async fn assert_stale(h: &Harness, item: &FireItem, why: &str) {
    let before = h.cursors(&[item.due.schedule]).await;
    assert_eq!(fire(h, item, at(2)).await, Fired::Stale, "{why}");
    assert_eq!(runs(h).await, 0, "{why}");
    assert_eq!(h.cursors(&[item.due.schedule]).await, before, "{why}");
}

/// A payload edit leaves the cursor as it was; firing the old payload after the
/// edit was acknowledged is a broken promise all the same.
pub async fn a_fire_planned_before_an_edit_is_stale(h: &Harness) {
    let schedule = h.schedule("s").await;
    let item = due_item(h, schedule, at(0), Some(at(60_000))).await;
    let saved = edit(h, schedule, |put| put.spec = "{\"every\":\"1m\",\"payload\":{\"new\":1}}".into()).await;
    assert!(matches!(saved, ScheduleSaved::Saved { .. }));
    assert_stale(h, &item, "a payload edit").await;
    let fresh = due_item(h, schedule, at(0), Some(at(60_000))).await;
    assert_eq!(fire(h, &fresh, at(3)).await, Fired::Fired(vec![MADE]), "read again, it fires");
}

/// The same for an edit of its job.
pub async fn a_fire_planned_before_its_job_was_edited_is_stale(h: &Harness) {
    let schedule = h.schedule("s").await;
    let item = due_item(h, schedule, at(0), Some(at(60_000))).await;
    h.save(h.job_put("report", "{\"v\":2}"), at(1)).await;
    assert_stale(h, &item, "a job edit").await;
    let fresh = due_item(h, schedule, at(0), Some(at(60_000))).await;
    assert_eq!(fire(h, &fresh, at(3)).await, Fired::Fired(vec![MADE]));
}

/// Deleted means that it fires no more.
pub async fn a_fire_planned_before_a_delete_is_stale(h: &Harness) {
    let schedule = h.schedule("s").await;
    let item = due_item(h, schedule, at(0), Some(at(60_000))).await;
    h.end_schedules(&[schedule], at(1)).await;
    assert_stale(h, &item, "a deleted schedule").await;
    let schedule = h.schedule("t").await;
    let item = due_item(h, schedule, at(0), Some(at(60_000))).await;
    assert_eq!(h.store.delete_jobs(&h.write(at(1)), &[deletion(h.job)]).await.unwrap(), [Guarded::Applied]);
    assert_stale(h, &item, "a deleted job").await;
    assert_eq!(h.store.due(&all_parts(), Timestamp::MAX, 100).await.unwrap(), [], "what was deleted is never due");
}

/// A pause that was acknowledged holds, whatever was planned before.
pub async fn a_fire_planned_before_a_pause_is_stale(h: &Harness) {
    let schedule = h.schedule("s").await;
    let pause = Pause { since: at(1), ..Pause::default() };
    for target in [PauseTarget::Schedule(schedule), PauseTarget::Job(h.job)] {
        let item = due_item(h, schedule, at(0), Some(at(60_000))).await;
        let set = h.store.set_pauses(&h.write(at(1)), std::slice::from_ref(&target), Some(&pause)).await.unwrap();
        assert_eq!(set, [true]);
        assert_stale(h, &item, &format!("{target:?} paused")).await;
        let item = due_item(h, schedule, at(0), Some(at(60_000))).await;
        h.store.set_pauses(&h.write(at(1)), std::slice::from_ref(&target), None).await.unwrap();
        assert_stale(h, &item, &format!("{target:?} resumed")).await;
    }
    let fresh = due_item(h, schedule, at(0), Some(at(60_000))).await;
    assert_eq!(fire(h, &fresh, at(3)).await, Fired::Fired(vec![MADE]));
}

/// Tenants and queues are paused apart from schedules; the plan says which
/// pauses it knew.
pub async fn a_fire_that_knows_old_pauses_is_stale(h: &Harness) {
    let schedule = h.schedule("s").await;
    let pause = Pause { since: at(1), ..Pause::default() };
    for target in [PauseTarget::Tenant(h.tenant), PauseTarget::Queue(h.tenant, "default".into())] {
        let item = due_item(h, schedule, at(0), Some(at(60_000))).await;
        let known = h.store.pauses().await.unwrap().revision;
        h.store.set_pauses(&h.write(at(1)), std::slice::from_ref(&target), Some(&pause)).await.unwrap();
        let answers = h.store.fire(&h.write(at(2)), known, std::slice::from_ref(&item)).await.unwrap();
        assert_eq!(answers, [Fired::Stale]);
        assert_eq!(runs(h).await, 0);
        let known = h.store.pauses().await.unwrap();
        assert!(known.pauses.contains(&(target.clone(), pause.clone())), "{known:?}");
        h.store.set_pauses(&h.write(at(3)), std::slice::from_ref(&target), None).await.unwrap();
        let answers = h.store.fire(&h.write(at(4)), known.revision, &[item]).await.unwrap();
        assert_eq!(answers, [Fired::Stale], "lifting counts as well");
        let lifted = h.store.pauses().await.unwrap().pauses;
        assert!(lifted.iter().all(|(_, pause)| !pause.holds(at(3))), "{lifted:?}");
    }
    let fresh = due_item(h, schedule, at(0), Some(at(60_000))).await;
    assert_eq!(fire(h, &fresh, at(5)).await, Fired::Fired(vec![MADE]));
}

/// Cursor, revision and job revision each guard by themselves.
pub async fn each_part_of_the_guard_counts(h: &Harness) {
    let schedule = h.schedule("s").await;
    let good = due_item(h, schedule, at(0), Some(at(60_000))).await;
    let mut wrong = [good.clone(), good.clone(), good.clone(), good.clone(), good.clone()];
    wrong[0].due.cursor.planned_at = at(-1);
    wrong[1].due.cursor.due_at = at(1);
    wrong[2].due.revision += 1;
    wrong[3].job_revision += 1;
    wrong[4].due.schedule = ScheduleId(i64::MAX);
    for (n, item) in wrong.iter().enumerate() {
        assert_eq!(fire(h, item, at(0)).await, Fired::Stale, "guard {n}");
    }
    assert_eq!(runs(h).await, 0);
    assert_eq!(fire(h, &good, at(0)).await, Fired::Fired(vec![MADE]));
}

/// A fire reaches its owner like any other new run.
pub async fn a_fired_run_of_an_owned_lane_is_handed_to_the_firing_owner(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let schedule = h.schedule("s").await;
    let mut item = due_item(h, schedule, at(0), Some(at(60_000))).await;
    item.runs[0].lane = h.owned;
    let revision = h.store.pauses().await.unwrap().revision;
    let answers = h.store.fire(&h.write_of(owner.node, at(0)), revision, &[item]).await.unwrap();
    assert_eq!(answers, [Fired::Fired(vec![Enqueued::Made { status: Status::Queued, handed: true }])]);
    assert_eq!(h.store.notices(&owner.parts(), 10).await.unwrap(), []);
}

/// The instant of a refused run is recorded, not lost.
pub async fn a_refused_run_is_a_recorded_skip(h: &Harness) {
    let schedule = h.schedule("s").await;
    let mut full = run_of(h, schedule, at(0));
    full.slot = Some(rota_core::slot::SlotAsk { when_full: WhenFull::Skip, ..slot(1, 1) });
    let holder = NewRun { slot: full.slot, ..h.new_run(h.claimed) };
    h.make(holder, at(0)).await;
    let first = item(h, schedule, Some(at(60_000)), vec![full]).await;
    assert_eq!(fire(h, &first, at(0)).await, Fired::Fired(vec![Enqueued::Full]));
    let skips = h.store.skips(schedule, None, 10).await.unwrap();
    assert_eq!(skips.len(), 1);
    assert_eq!((skips[0].range.from, skips[0].range.to, skips[0].range.count), (at(0), at(0), 1));
    let mut duplicate = run_of(h, schedule, at(60_000));
    duplicate.unique = Some(UniqueAsk { key: UniqueKey(1), until: at(900_000) });
    let holder = NewRun { unique: duplicate.unique, ..h.new_run(h.claimed) };
    let of = h.make(holder, at(1)).await;
    let second = item(h, schedule, Some(at(120_000)), vec![duplicate]).await;
    assert_eq!(fire(h, &second, at(60_000)).await, Fired::Fired(vec![Enqueued::Duplicate { of }]));
    let skips = h.store.skips(schedule, None, 10).await.unwrap();
    assert_eq!(skips[0].range, range(60_000, 60_000, 1, SkipReason::Unique), "newest first");
    let counted = h.cursors(&[schedule]).await;
    assert_eq!(counted, [Some(cursor(at(120_000), 0))], "a refused run counts for no `max_runs`");
}

fn range(from: i64, to: i64, count: u64, reason: SkipReason) -> SkipRange {
    SkipRange { from: at(from), to: at(to), count, reason }
}

async fn skip(h: &Harness, schedule: ScheduleId, skips: Vec<SkipRange>, next: i64) {
    let mut item = item(h, schedule, Some(at(next)), Vec::new()).await;
    item.skips = skips;
    assert_eq!(fire(h, &item, at(next - 1)).await, Fired::Fired(Vec::new()));
}

/// A schedule paused for a year at one a second must not make 30 M rows.
pub async fn skips_in_a_row_are_kept_as_one_range(h: &Harness) {
    let schedule = h.schedule("s").await;
    skip(h, schedule, vec![range(0, 60_000, 2, SkipReason::Overlap)], 120_000).await;
    skip(h, schedule, vec![range(120_000, 120_000, 1, SkipReason::Overlap)], 180_000).await;
    let merged = range(0, 120_000, 3, SkipReason::Overlap);
    let stored = h.store.skips(schedule, None, 10).await.unwrap();
    assert_eq!(stored.iter().map(|skip| skip.range).collect::<Vec<_>>(), [merged]);
    skip(h, schedule, vec![range(180_000, 180_000, 1, SkipReason::Paused)], 240_000).await;
    let stored = h.store.skips(schedule, None, 10).await.unwrap();
    let other = range(180_000, 180_000, 1, SkipReason::Paused);
    assert_eq!(stored.iter().map(|skip| skip.range).collect::<Vec<_>>(), [other, merged], "another reason is apart");
}

/// An instant that fired lies between: the ranges around it stay apart.
pub async fn a_fire_between_keeps_skips_apart(h: &Harness) {
    let schedule = h.schedule("s").await;
    skip(h, schedule, vec![range(0, 0, 1, SkipReason::Overlap)], 60_000).await;
    let fired = due_item(h, schedule, at(60_000), Some(at(120_000))).await;
    assert_eq!(fire(h, &fired, at(60_000)).await, Fired::Fired(vec![MADE]));
    skip(h, schedule, vec![range(120_000, 120_000, 1, SkipReason::Overlap)], 180_000).await;
    let stored = h.store.skips(schedule, None, 10).await.unwrap();
    assert_eq!(
        stored.iter().map(|skip| skip.range).collect::<Vec<_>>(),
        [range(120_000, 120_000, 1, SkipReason::Overlap), range(0, 0, 1, SkipReason::Overlap)]
    );
    let total: u64 = stored.iter().map(|skip| skip.range.count).sum();
    assert_eq!(total, 2, "each instant has one recorded end");
}

/// Skips are paged, newest first.
pub async fn skips_are_listed_newest_first(h: &Harness) {
    let schedule = h.schedule("s").await;
    let reasons = [SkipReason::Overlap, SkipReason::CatchUp, SkipReason::Calendar, SkipReason::Quota];
    let mut all = Vec::new();
    for (n, reason) in reasons.into_iter().enumerate() {
        all.push(range(n as i64 * 1_000, n as i64 * 1_000, 1, reason));
    }
    skip(h, schedule, all.clone(), 60_000).await;
    all.reverse();
    let stored = h.store.skips(schedule, None, 2).await.unwrap();
    assert_eq!(stored.iter().map(|skip| skip.range).collect::<Vec<_>>(), all[..2]);
    assert!(stored.iter().all(|skip| skip.schedule == schedule));
    let rest = h.store.skips(schedule, Some(stored[1].range.from), 10).await.unwrap();
    assert_eq!(rest.iter().map(|skip| skip.range).collect::<Vec<_>>(), all[2..]);
    assert_eq!(h.store.skips(ScheduleId(-5), None, 10).await.unwrap(), []);
}

/// `cancel_running` of the overlap policy: the earlier run is asked, in the
/// same commit.
pub async fn a_fire_asks_earlier_runs_to_stop(h: &Harness) {
    let schedule = h.schedule("s").await;
    let first = due_item(h, schedule, at(0), Some(at(60_000))).await;
    fire(h, &first, at(0)).await;
    let running = h.claim(h.worker(), 1, at(0)).await.remove(0);
    let mut second = due_item(h, schedule, at(60_000), Some(at(120_000))).await;
    second.cancel = vec![running.id];
    second.cancel_ask = Some(ask());
    let stale = FireItem { job_revision: second.job_revision + 1, ..second.clone() };
    assert_eq!(fire(h, &stale, at(60_000)).await, Fired::Stale);
    assert_eq!(h.status(running.id).await, Status::Running, "a stale item asks nobody");
    assert_eq!(fire(h, &second, at(60_000)).await, Fired::Fired(vec![MADE]));
    assert_eq!(h.status(running.id).await, Status::Cancelling);
}

/// Due cursors come in the order of their time, limited, of these partitions.
pub async fn due_cursors_come_in_order_and_limited(h: &Harness) {
    let mut puts = Vec::new();
    for (n, ms) in [500, 100, 300, 200, 400].into_iter().enumerate() {
        let mut put = h.schedule_put(&format!("s{n}")).await;
        put.stored.cursor = Some(cursor(at(ms), 0));
        puts.push(put);
    }
    h.store.put_schedules(&h.write(at(0)), &puts).await.unwrap();
    let due = h.store.due(&all_parts(), at(400), 3).await.unwrap();
    assert_eq!(due.iter().map(|due| due.cursor.due_at).collect::<Vec<_>>(), [at(100), at(200), at(300)]);
    let all = h.store.due(&all_parts(), at(400), 100).await.unwrap();
    assert_eq!(all.len(), 4, "up to and with `until`");
    assert!(all.iter().all(|due| due.part == Partition::of_schedule(due.schedule)));
    let parts: Vec<_> = all_parts().into_iter().filter(|part| *part != all[0].part).collect();
    let others = h.store.due(&parts, at(400), 100).await.unwrap();
    assert!(others.iter().all(|due| due.part != all[0].part));
    let expected = all.iter().filter(|due| due.part != all[0].part).count();
    assert_eq!(others.len(), expected);
}

/// When to wake is not what to fire: the guard and the order use their own.
pub async fn a_jittered_cursor_is_due_later_than_planned(h: &Harness) {
    let mut put = h.schedule_put("s").await;
    let jittered = rota_core::fire::Cursor { planned_at: at(0), due_at: at(700), fired: 5 };
    put.stored.cursor = Some(jittered);
    h.save_schedule(&put, at(0)).await;
    assert_eq!(h.store.due(&all_parts(), at(699), 10).await.unwrap(), []);
    let due = h.store.due(&all_parts(), at(700), 10).await.unwrap();
    assert_eq!(due.iter().map(|due| due.cursor).collect::<Vec<_>>(), [jittered]);
    assert_eq!(h.cursors(&[put.id]).await, [Some(jittered)]);
}

/// Runs of a schedule that queues, each behind the one before.
async fn chain(h: &Harness, schedule: ScheduleId, count: i64) -> Vec<RunId> {
    let mut made = Vec::new();
    for n in 0..count {
        let mut item = due_item(h, schedule, at(n * 1_000), Some(at(n * 1_000 + 1_000))).await;
        item.runs[0].follows = true;
        let status = if n == 0 { Status::Queued } else { Status::Blocked };
        assert_eq!(fire(h, &item, at(n * 1_000)).await, Fired::Fired(vec![Enqueued::Made { status, handed: false }]));
        made.push(item.runs[0].id);
    }
    made
}

/// Forty live runs must not be tied to each other by seven hundred rows.
pub async fn a_chain_of_runs_has_a_tie_for_each(h: &Harness) {
    let schedule = h.schedule("s").await;
    let runs = chain(h, schedule, 40).await;
    for run in &runs[1..] {
        assert_eq!(h.record(*run).await.run.state, RunState::Blocked(Block::Needs(1)));
    }
    // They start one after the other, in order.
    for (n, id) in runs.iter().enumerate().take(4) {
        let claimed = h.claim(h.worker(), 9, at(50_000)).await;
        assert_eq!(claimed.iter().map(|run| run.id).collect::<Vec<_>>(), [*id], "{n}");
        h.succeed(&claimed[0], at(50_000)).await;
    }
}

/// One of the chain that ends early must not let the next one past those before it.
pub async fn the_end_of_a_waiting_run_lets_nobody_past_those_before_it(h: &Harness) {
    let schedule = h.schedule("s").await;
    let runs = chain(h, schedule, 7).await;
    let cancel = async |ids: &[usize]| {
        let ids: Vec<RunId> = ids.iter().map(|n| runs[*n]).collect();
        h.store.request_cancel(&h.write(at(20_000)), &ids, &ask()).await.unwrap();
    };
    cancel(&[2]).await;
    cancel(&[4, 3]).await;
    // And one that is made afterwards waits for the last.
    let mut item = due_item(h, schedule, at(7_000), Some(at(8_000))).await;
    item.runs[0].follows = true;
    fire(h, &item, at(20_000)).await;
    for id in [runs[0], runs[1], runs[5], runs[6], item.runs[0].id] {
        let claimed = h.claim(h.worker(), 9, at(50_000)).await;
        assert_eq!(claimed.iter().map(|run| run.id).collect::<Vec<_>>(), [id]);
        h.succeed(&claimed[0], at(50_000)).await;
    }
    assert_eq!(h.store.mend_joins(&h.write(at(60_000))).await.unwrap(), 0);
}

/// Several of one fire follow each other, one that was refused among them, and all of
/// them those before.
pub async fn runs_of_one_fire_follow_each_other(h: &Harness) {
    let schedule = h.schedule("s").await;
    let first = chain(h, schedule, 1).await.remove(0);
    let mut runs: Vec<NewRun> = (1..5).map(|n| run_of(h, schedule, at(n * 1_000))).collect();
    for run in &mut runs {
        run.follows = true;
    }
    let holder = h.make(h.keyed(1, 1), at(0)).await;
    runs[1].unique = Some(UniqueAsk { key: UniqueKey(1), until: at(900_000) });
    let taken = NewRun { unique: runs[1].unique, ..h.new_run(h.owned) };
    h.make(taken, at(0)).await;
    let item = item(h, schedule, Some(at(9_000)), runs).await;
    let Fired::Fired(answers) = fire(h, &item, at(5_000)).await else { panic!("stale") };
    assert!(matches!(answers[1], Enqueued::Duplicate { .. }), "{answers:?}");
    h.store.request_cancel(&h.write(at(5_000)), &[holder], &ask()).await.unwrap();
    for id in [first, item.runs[0].id, item.runs[2].id, item.runs[3].id] {
        let claimed = h.claim(h.worker(), 9, at(50_000)).await;
        assert_eq!(claimed.iter().map(|run| run.id).collect::<Vec<_>>(), [id]);
        h.succeed(&claimed[0], at(50_000)).await;
    }
}

/// Whoever ends one of a chain while another is made: nobody is let past.
pub async fn a_chain_holds_while_its_runs_end_and_are_made_at_once(h: &Harness) {
    let second = h.second().await;
    for round in 0..10 {
        let schedule = h.schedule(&format!("s{round}")).await;
        let runs = chain(h, schedule, 4).await;
        let mut item = due_item(h, schedule, at(4_000), Some(at(5_000))).await;
        item.runs[0].follows = true;
        let revision = h.store.pauses().await.unwrap().revision;
        let (a, b, c) = (h.write(at(20_000)), h.write(at(20_000)), h.write(at(20_000)));
        let (items, last, middle) = ([item.clone()], [runs[3]], [runs[2], runs[1]]);
        let stop = ask();
        let (made, one, two) = tokio::join!(
            h.store.fire(&a, revision, &items),
            second.request_cancel(&b, &last, &stop),
            second.request_cancel(&c, &middle, &stop),
        );
        made.unwrap();
        one.unwrap();
        two.unwrap();
        assert_eq!(h.status(item.runs[0].id).await, Status::Blocked, "the first has not ended");
        assert_eq!(h.store.mend_joins(&h.write(at(30_000))).await.unwrap(), 0);
        for id in [runs[0], item.runs[0].id] {
            let claimed = h.claim(h.worker(), 9, at(50_000)).await;
            assert_eq!(claimed.iter().map(|run| run.id).collect::<Vec<_>>(), [id]);
            h.succeed(&claimed[0], at(50_000)).await;
        }
    }
}

/// An `after_finish` schedule that is armed, and the run of its first fire.
pub async fn after_finish(h: &Harness, name: &str) -> (ScheduleId, Run) {
    let mut put = h.schedule_put(name).await;
    put.spec = "{\"after_finish\":\"5s\"}".into();
    h.save_schedule(&put, at(0)).await;
    let mut first = due_item(h, put.id, at(0), None).await;
    first.runs[0].rearms = true;
    assert_eq!(fire(h, &first, at(0)).await, Fired::Fired(vec![MADE]));
    assert_eq!(h.cursors(&[put.id]).await, [None], "nothing is owed until it ends");
    let record = h.store.schedules(&[put.id]).await.unwrap().remove(0).unwrap();
    assert_eq!(record.armed_by, Some(first.runs[0].id), "the schedule knows which run arms it");
    (put.id, h.record(first.runs[0].id).await.run)
}

async fn assert_armed(h: &Harness, schedule: ScheduleId, at_ms: i64, why: &str) {
    let armed = h.cursors(&[schedule]).await[0].unwrap_or_else(|| panic!("not armed: {why}"));
    assert_eq!((armed.planned_at, armed.due_at), (at(at_ms), at(at_ms)), "{why}");
    assert_eq!(armed.fired, 1, "{why}");
    assert_eq!(due_of(h, schedule).await.cursor, armed);
}

/// "The next occurrence is made by the last one" is how schedules silently die:
/// every end of a run arms the schedule it came from.
pub async fn every_kind_of_end_rearms_an_after_finish_schedule(h: &Harness) {
    let claim = async || h.claim(h.worker(), 1, at(100)).await.remove(0);
    for (name, outcome) in [("succeeded", succeeded()), ("failed", broken()), ("cancelled", Outcome::Cancelled)] {
        let (schedule, _) = after_finish(h, name).await;
        h.settle(&claim().await, outcome, at(1_000)).await;
        assert_armed(h, schedule, 6_000, name).await;
    }
    let (schedule, run) = after_finish(h, "cancelled before").await;
    h.cancel(run.id, at(2_000)).await;
    assert_armed(h, schedule, 7_000, "cancelled before it ran").await;
    let (schedule, run) = after_finish(h, "lost").await;
    claim().await;
    let reap = rota_core::store::Reap { before: at(60_000), losses_max: 1, limit: 10 };
    h.store.reap(&h.write(at(60_000)), &reap).await.unwrap();
    assert_eq!(h.status(run.id).await, Status::Ended(Verdict::Dead));
    assert_armed(h, schedule, 65_000, "dead by losses").await;
    let (schedule, run) = after_finish(h, "grace").await;
    claim().await;
    h.cancel(run.id, at(200)).await;
    h.sweep(at(90_000)).await;
    assert_armed(h, schedule, 95_000, "cancelled by grace").await;
    let (schedule, run) = after_finish(h, "released").await;
    let worker = h.worker();
    h.claim(worker, 1, at(100)).await;
    h.cancel(run.id, at(200)).await;
    h.store.release(&h.write(at(300)), worker).await.unwrap();
    assert_armed(h, schedule, 5_300, "handed back while cancelling").await;
}

/// A cursor that stands where the end of a run puts one must not fail the settlement, and
/// with it every other one of its batch.
pub async fn the_end_of_a_run_counts_although_a_cursor_stands_in_its_way(h: &Harness) {
    let (schedule, _) = after_finish(h, "s").await;
    let run = h.claim(h.worker(), 1, at(100)).await.remove(0);
    let part = Partition::of_schedule(schedule).0;
    let stray = "INSERT INTO cursor (part, due_at, schedule, planned_at, fired, revision)";
    assert!(h.place.sql(&format!("{stray} VALUES ({part}, 0, {}, 9223372036854775807, 1, 1)", schedule.0)).await);
    h.settle(&run, succeeded(), at(1_000)).await;
    assert_eq!(h.status(run.id).await, Status::Ended(Verdict::Succeeded));
}

/// Whatever is said of when a run ended: the instant it was made for is not made
/// again.
pub async fn an_end_in_the_past_does_not_lead_back_to_a_decided_instant(h: &Harness) {
    let (schedule, _) = after_finish(h, "s").await;
    let run = h.claim(h.worker(), 1, at(100)).await.remove(0);
    let mut settlement = by_lease(&run, succeeded(), at(200));
    if let Change::Finish(finish) = &mut settlement.change {
        finish.ended_at = at(-60_000);
    }
    h.settle_all(&[settlement], at(200)).await;
    let armed = h.cursors(&[schedule]).await[0].expect("it is armed");
    assert_eq!((armed.planned_at, armed.fired), (Timestamp::from_microsecond(at(0).as_microsecond() + 1).unwrap(), 1));
}

/// Also those ends that nobody executes: expired, displaced, refused.
pub async fn ends_without_a_start_rearm_too(h: &Harness) {
    let armed = async |name: &str, change: &dyn Fn(&mut NewRun)| {
        let mut put = h.schedule_put(name).await;
        put.spec = "{\"after_finish\":\"5s\"}".into();
        h.save_schedule(&put, at(0)).await;
        let mut first = due_item(h, put.id, at(0), None).await;
        first.runs[0].rearms = true;
        change(&mut first.runs[0]);
        let fired = fire(h, &first, at(0)).await;
        (put.id, first.runs[0].id, fired)
    };
    let (schedule, run, _) = armed("expired", &|run| run.expires_at = Some(at(1_000))).await;
    h.sweep(at(2_000)).await;
    assert_eq!(h.status(run).await, Status::Ended(Verdict::Expired));
    assert_armed(h, schedule, 7_000, "expired").await;
    h.make(h.keyed(1, 1), at(0)).await;
    let (schedule, run, _) = armed("displaced", &|run| run.slot = Some(slot(1, 1))).await;
    let mut newest = h.keyed(1, 1);
    newest.slot.as_mut().unwrap().when_full = WhenFull::Replace;
    h.make(newest, at(3_000)).await;
    assert_eq!(h.status(run).await, Status::Ended(Verdict::Skipped));
    assert_armed(h, schedule, 8_000, "displaced").await;
}

/// A refused run has no end that could arm its schedule: the fire itself must.
pub async fn a_refused_rearming_run_does_not_kill_its_schedule(h: &Harness) {
    h.make(h.keyed(1, 1), at(0)).await;
    let mut put = h.schedule_put("refused").await;
    put.spec = "{\"after_finish\":\"5s\"}".into();
    h.save_schedule(&put, at(0)).await;
    let mut first = due_item(h, put.id, at(0), None).await;
    first.runs[0].rearms = true;
    first.runs[0].slot = Some(rota_core::slot::SlotAsk { when_full: WhenFull::Skip, ..slot(1, 1) });
    first.next_if_refused = Some(cursor(at(5_010), 9));
    assert_eq!(fire(h, &first, at(10)).await, Fired::Fired(vec![Enqueued::Full]));
    let armed = h.cursors(&[put.id]).await[0].expect("a schedule whose run was refused is armed");
    assert_eq!(armed, cursor(at(5_010), 0), "it was not made, and does not count");
}

/// A retry is no end.
pub async fn a_retry_does_not_rearm(h: &Harness) {
    let (schedule, _) = after_finish(h, "s").await;
    let run = h.claim(h.worker(), 1, at(100)).await.remove(0);
    h.settle(&run, failed(), at(200)).await;
    assert_eq!(h.cursors(&[schedule]).await, [None]);
    h.cancel(run.id, at(1_000)).await;
    assert_armed(h, schedule, 6_000, "at its end").await;
}

/// What was deleted stays unarmed, whenever its last run ends.
pub async fn the_end_of_a_run_arms_no_deleted_schedule(h: &Harness) {
    let (schedule, _) = after_finish(h, "s").await;
    let (of_job, _) = after_finish(h, "t").await;
    let runs = h.claim(h.worker(), 2, at(100)).await;
    h.end_schedules(&[schedule], at(200)).await;
    h.store.delete_jobs(&h.write(at(200)), &[deletion(h.job)]).await.unwrap();
    for run in &runs {
        assert!(matches!(h.settle(run, succeeded(), at(300)).await, Guarded::Applied));
    }
    assert_eq!(h.cursors(&[schedule, of_job]).await, [None, None]);
    assert_eq!(h.store.due(&all_parts(), Timestamp::MAX, 10).await.unwrap(), []);
}

/// Turned off while its run lived, or over by then: the run's end is not where it
/// begins anew.
pub async fn the_end_of_a_run_arms_no_schedule_that_is_off_or_over(h: &Harness) {
    let (off, _) = after_finish(h, "off").await;
    let (over, _) = after_finish(h, "over").await;
    edit(h, off, |put| (put.enabled, put.stored.waits_for_run) = (false, true)).await;
    let ends = "{\"after_finish\":\"5s\",\"ends_at\":\"2026-01-05T10:00:03Z\"}";
    edit(h, over, |put| (put.spec, put.stored.waits_for_run) = (ends.into(), true)).await;
    for run in h.claim(h.worker(), 2, at(100)).await {
        h.succeed(&run, at(200)).await;
    }
    assert_eq!(h.cursors(&[off, over]).await, [None, None]);
    let records = h.store.schedules(&[off, over]).await.unwrap();
    assert!(records.into_iter().flatten().all(|record| record.armed_by.is_none()), "they wait for nobody any more");
}

/// An edit that leaves it to its run to arm a schedule is stale once that has ended.
pub async fn an_edit_that_counts_on_a_run_is_stale_after_its_end(h: &Harness) {
    let (schedule, _) = after_finish(h, "s").await;
    edit(h, schedule, |put| (put.enabled, put.stored.waits_for_run) = (false, true)).await;
    let record = h.store.schedules(&[schedule]).await.unwrap().remove(0).unwrap();
    let run = h.claim(h.worker(), 1, at(100)).await.remove(0);
    h.succeed(&run, at(200)).await;
    let mut put = SchedulePut::moving(record, None, None);
    (put.enabled, put.stored.waits_for_run) = (true, true);
    assert_eq!(h.save_schedule(&put, at(300)).await, ScheduleSaved::Stale);
}

/// A re-armed schedule fires again, and so on.
pub async fn a_rearmed_schedule_fires_again(h: &Harness) {
    let (schedule, _) = after_finish(h, "s").await;
    let mut now = 100;
    for round in 1..=3_u64 {
        let run = h.claim(h.worker(), 1, at(now)).await.remove(0);
        h.succeed(&run, at(now)).await;
        now += 5_000;
        let armed = h.cursors(&[schedule]).await[0].unwrap();
        assert_eq!((armed.planned_at, armed.fired), (at(now), round));
        let mut next = due_item(h, schedule, at(now), None).await;
        next.runs[0].rearms = true;
        assert_eq!(fire(h, &next, at(now)).await, Fired::Fired(vec![MADE]));
    }
}
