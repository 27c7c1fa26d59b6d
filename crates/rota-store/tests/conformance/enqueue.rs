//! Making runs: each once, as asked, under its keys.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{Partition, ScheduleId},
    order::Priority,
    quota::Delay,
    run::{NewRun, Parent, Redrive, RunState, Source, Status, Trigger, UniqueAsk, Verdict},
    slot::UniqueKey,
    store::{Enqueued, RunQuery, StoreError, Write},
    trace::TraceParent,
};
use serde_json::json;

use crate::harness::*;

const QUEUED: Enqueued = Enqueued::Made { status: Status::Queued, handed: false };

fn rich(h: &Harness) -> NewRun {
    NewRun {
        part: Partition(255),
        priority: Priority::new(2).unwrap(),
        ready_at: at(-5),
        expires_at: Some(at(600_000)),
        trigger: Trigger {
            source: Source::Webhook,
            schedule: Some(ScheduleId(77)),
            planned_at: Some(at(-10)),
            by: Some("ann".into()),
            metadata: Some(json!({ "ip": "::1", "n": [1, 2.5, null] })),
            delay: Some(Delay { until: at(7), runs_per_minute: 100 }),
            traceparent: TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        },
        labels: BTreeMap::from([("scope".into(), "user".into()), ("ключ".into(), "значение \u{1f600}".into())]),
        payload: Some("{\"report\":\"sales\",\"text\":\"a 'quoted' \\\"line\\\" \\u0000\"}".into()),
        slot: Some(slot(i64::MIN, 9)),
        parent: Some(Parent { run: h.run_id(), step: 3, item: Some(u32::MAX) }),
        redrive: Some(Redrive { after: Span::secs(90), left: 2, start_within: Some(Span::secs(1)), end_within: None }),
        ..h.new_run(h.claimed)
    }
}

/// What is enqueued is what is read back, to the last field.
pub async fn every_field_survives_the_store(h: &Harness) {
    let new = rich(h);
    h.make(new.clone(), at(0)).await;
    let expected = new.clone().born(RunState::Queued, at(0));
    assert_eq!(h.record(new.id).await.run, expected);
    let leased = h.claim(h.worker(), 1, at(1)).await.remove(0);
    assert_eq!((&leased.trigger, &leased.labels, &leased.payload), (&new.trigger, &new.labels, &new.payload));
    assert_eq!((leased.parent, leased.priority, leased.expires_at), (new.parent, new.priority, new.expires_at));
}

/// The same once it has ended: history is where people look for it.
pub async fn every_field_survives_the_move_to_history(h: &Harness) {
    let new = rich(h);
    h.make(new.clone(), at(0)).await;
    let run = h.claim(h.worker(), 1, at(1)).await.remove(0);
    h.store.progress(&[(run.lease(), "{\"percent\":50}".into())]).await.unwrap();
    h.succeed(&run, at(2)).await;
    let ended = h.record(new.id).await;
    let born = new.born(RunState::Finished { at: at(2), verdict: Verdict::Succeeded }, at(0));
    assert_eq!(ended.run.trigger, born.trigger);
    assert_eq!(ended.run.labels, born.labels);
    assert_eq!(ended.run.payload, born.payload);
    assert_eq!((ended.run.parent, ended.run.version, ended.run.job), (born.parent, born.version, born.job));
    assert_eq!((ended.run.priority, ended.run.ready_at, ended.run.created_at), (born.priority, born.ready_at, at(0)));
    assert_eq!(ended.run.state, born.state);
    assert_eq!(ended.started_at, Some(at(1)));
}

/// Readiness decides the first state.
pub async fn a_delayed_run_is_scheduled(h: &Harness) {
    let due = NewRun { ready_at: at(10), ..h.new_run(h.claimed) };
    let later = NewRun { ready_at: at(11), ..h.new_run(h.claimed) };
    let answers = h.enqueue(&[due, later], at(10)).await;
    assert_eq!(answers, [QUEUED, Enqueued::Made { status: Status::Scheduled, handed: false }]);
}

fn unique(h: &Harness, key: i64, until: Timestamp) -> NewRun {
    NewRun { unique: Some(UniqueAsk { key: UniqueKey(key), until }), ..h.new_run(h.claimed) }
}

/// Either key of another stands in its way, and then it holds neither.
pub async fn a_run_may_have_two_unique_keys(h: &Harness) {
    let ask = |key| Some(UniqueAsk { key: UniqueKey(key), until: at(1_000) });
    let both = |one, two| NewRun { unique: ask(one), once: ask(two), ..h.new_run(h.claimed) };
    let (first, third) = (both(1, 11), both(3, 13));
    let made = h.enqueue(&[first.clone(), both(2, 11), both(1, 12), both(2, 12), third.clone()], at(0)).await;
    let duplicate = Enqueued::Duplicate { of: first.id };
    assert_eq!(made, [QUEUED, duplicate, duplicate, QUEUED, QUEUED], "one batch");
    assert_eq!(h.enqueue(&[both(4, 13), both(4, 14)], at(1)).await, [Enqueued::Duplicate { of: third.id }, QUEUED]);
    assert_eq!(h.enqueue(&[both(3, 15)], at(2)).await, [Enqueued::Duplicate { of: third.id }]);
    assert_eq!(h.enqueue(&[both(5, 15)], at(3)).await, [QUEUED], "the refused one holds nothing");
}

/// A second run under a unique key is what `unique` is there to prevent.
pub async fn a_unique_key_admits_one_until_its_time(h: &Harness) {
    let first = unique(h, 1, at(1_000));
    let answers = h
        .enqueue(&[first.clone(), unique(h, 1, at(1_000)), unique(h, 2, at(1_000)), h.new_run(h.claimed)], at(0))
        .await;
    assert_eq!(answers, [QUEUED, Enqueued::Duplicate { of: first.id }, QUEUED, QUEUED]);
    assert_eq!(h.enqueue(&[unique(h, 1, at(9_000))], at(999)).await, [Enqueued::Duplicate { of: first.id }]);
    let next = unique(h, 1, at(5_000));
    assert_eq!(h.enqueue(std::slice::from_ref(&next), at(1_000)).await, [QUEUED], "its time is over");
    assert_eq!(h.enqueue(&[unique(h, 1, at(9_000))], at(1_001)).await, [Enqueued::Duplicate { of: next.id }]);
}

/// The key holds although its run has ended: `within: 24h` means 24 hours.
pub async fn a_unique_key_outlives_its_run(h: &Harness) {
    let first = unique(h, 1, at(10_000));
    h.make(first.clone(), at(0)).await;
    let run = h.claim(h.worker(), 1, at(0)).await.remove(0);
    h.succeed(&run, at(1)).await;
    assert_eq!(h.enqueue(&[unique(h, 1, at(10_000))], at(2)).await, [Enqueued::Duplicate { of: first.id }]);
}

/// A run that was refused for its slot must not keep others out by its key.
pub async fn a_refused_run_holds_no_unique_key(h: &Harness) {
    let mut refused = unique(h, 1, at(10_000));
    let mut ask = slot(5, 1);
    ask.when_full = rota_core::slot::WhenFull::Reject;
    refused.slot = Some(ask);
    let holder = NewRun { slot: Some(ask), ..h.new_run(h.claimed) };
    assert_eq!(h.enqueue(&[holder, refused], at(0)).await, [QUEUED, Enqueued::Full]);
    assert_eq!(h.enqueue(&[unique(h, 1, at(10_000))], at(1)).await, [QUEUED]);
}

/// A duplicate must not take a slot.
pub async fn a_duplicate_takes_no_slot(h: &Harness) {
    let run = || NewRun { slot: Some(slot(5, 2)), ..unique(h, 1, at(10_000)) };
    let answers = h.enqueue(&[run(), run()], at(0)).await;
    assert!(matches!(answers[1], Enqueued::Duplicate { .. }));
    assert_eq!(h.enqueue(&[h.keyed(5, 2), h.keyed(5, 2)], at(0)).await[0], QUEUED);
    crate::slots::nothing_to_repair(h).await;
}

/// A dry run that decides by itself what would be made says what is not so.
pub async fn a_dry_run_is_answered_as_the_act_and_makes_nothing(h: &Harness) {
    let dry = |now| Write { dry_run: true, ..h.write(now) };
    let runs = [unique(h, 1, at(1_000)), unique(h, 1, at(1_000)), h.keyed(1, 1)];
    let answers = h.store.enqueue(&dry(at(0)), &runs, &[]).await.unwrap();
    assert_eq!(h.list(RunQuery { limit: 10, ..Default::default() }).await, []);
    assert_eq!(answers, h.enqueue(&runs, at(0)).await);
    assert_eq!(answers[1], Enqueued::Duplicate { of: runs[0].id });
    let again = h.store.enqueue(&dry(at(1)), &[unique(h, 1, at(1_000))], &[]).await.unwrap();
    assert_eq!(again, [Enqueued::Duplicate { of: runs[0].id }]);
    assert_eq!(h.list(RunQuery { limit: 10, ..Default::default() }).await.len(), 2);
}

/// Many makers under one unique key at once make one run.
pub async fn many_makers_of_one_unique_key_make_one_run(h: &Harness) {
    let second = h.second().await;
    let mut makers = tokio::task::JoinSet::new();
    for n in 0..12 {
        let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
        let (write, run) = (h.write(at(0)), unique(h, 1, at(10_000)));
        makers.spawn(async move { (run.id, store.enqueue(&write, &[run], &[]).await.unwrap()[0]) });
    }
    let answers = makers.join_all().await;
    let made: Vec<_> = answers.iter().filter(|(_, answer)| *answer == QUEUED).map(|(id, _)| *id).collect();
    assert_eq!(made.len(), 1, "{answers:?}");
    for (_, answer) in answers.iter().filter(|(_, answer)| *answer != QUEUED) {
        assert_eq!(*answer, Enqueued::Duplicate { of: made[0] });
    }
    assert_eq!(h.list(RunQuery { limit: 100, ..Default::default() }).await.len(), 1);
}

async fn ask_keyed(h: &Harness, write: &Write, run: &NewRun) -> Result<Vec<Enqueued>, StoreError> {
    h.store.enqueue(write, std::slice::from_ref(run), &[]).await
}

fn again_of(run: &NewRun) -> [Enqueued; 1] {
    [QUEUED.kept_for(run.id)]
}

/// The caller's own retry, after an answer was lost, is told that its run was
/// made, or nobody would start it.
pub async fn a_keyed_write_asked_again_is_answered_as_it_was(h: &Harness) {
    let run = h.new_run(h.claimed);
    let write = h.write_keyed("k", 1, at(0), at(86_400_000));
    assert_eq!(ask_keyed(h, &write, &run).await.unwrap(), [QUEUED]);
    assert_eq!(ask_keyed(h, &write, &run).await.unwrap(), [QUEUED]);
}

/// A client that asks again under its key gets its first answer.
pub async fn a_request_key_answers_as_it_did(h: &Harness) {
    let first = h.new_run(h.claimed);
    let write = |body, ms| h.write_keyed("k", body, at(ms), at(86_400_000));
    assert_eq!(ask_keyed(h, &write(1, 0), &first).await.unwrap(), [QUEUED]);
    let again = NewRun { ready_at: at(60_000), ..h.new_run(h.claimed) };
    let known = again_of(&first);
    assert_eq!(ask_keyed(h, &write(1, 5), &again).await.unwrap(), known, "the first answer, and whose it is");
    assert_eq!(h.list(RunQuery { limit: 100, ..Default::default() }).await.len(), 1);
    let run = h.claim(h.worker(), 1, at(6)).await.remove(0);
    h.succeed(&run, at(7)).await;
    assert_eq!(ask_keyed(h, &write(1, 8), &again).await.unwrap(), known, "also after the run has ended");
    assert_eq!(h.list(RunQuery { limit: 100, ..Default::default() }).await.len(), 1);
}

/// Whoever asks before it writes finds what a write would find.
pub async fn a_request_key_is_known_to_be_answered_while_it_counts(h: &Harness) {
    let write = |body, ms| h.write_keyed("k", body, at(ms), at(1_000));
    let asked = async |body, ms| h.store.is_answered(&write(body, ms).request.unwrap(), at(ms)).await;
    assert!(!asked(1, 0).await.unwrap());
    ask_keyed(h, &write(1, 0), &h.new_run(h.claimed)).await.unwrap();
    assert!(asked(1, 999).await.unwrap());
    assert!(matches!(asked(2, 999).await, Err(StoreError::RequestDiffers)));
    assert!(!asked(1, 1_000).await.unwrap(), "its time is over");
}

/// A key reused for something else must not swallow it silently.
pub async fn a_request_key_with_another_body_is_refused(h: &Harness) {
    let write = |body| h.write_keyed("k", body, at(0), at(86_400_000));
    ask_keyed(h, &write(1), &h.new_run(h.claimed)).await.unwrap();
    let answer = ask_keyed(h, &write(2), &h.new_run(h.claimed)).await;
    assert!(matches!(answer, Err(StoreError::RequestDiffers)), "{answer:?}");
    assert_eq!(h.list(RunQuery { limit: 100, ..Default::default() }).await.len(), 1);
}

/// Keys are a tenant's own, and end with their time.
pub async fn a_request_key_is_its_tenants_and_ends(h: &Harness) {
    let other = h.tenant("other").await;
    let write = |ms| h.write_keyed("k", 1, at(ms), at(ms + 1_000));
    ask_keyed(h, &write(0), &h.new_run(h.claimed)).await.unwrap();
    let mut theirs = write(0);
    theirs.request.as_mut().unwrap().tenant = other;
    theirs.request.as_mut().unwrap().fingerprint = [9; 32];
    assert_eq!(ask_keyed(h, &theirs, &h.new_run(h.claimed)).await.unwrap(), [QUEUED]);
    let mut late = write(1_000);
    late.request.as_mut().unwrap().fingerprint = [3; 32];
    assert_eq!(ask_keyed(h, &late, &h.new_run(h.claimed)).await.unwrap(), [QUEUED], "an expired key is new");
    assert_eq!(h.list(RunQuery { limit: 100, ..Default::default() }).await.len(), 3);
    let again = ask_keyed(h, &write(1_001), &h.new_run(h.claimed)).await;
    assert!(matches!(again, Err(StoreError::RequestDiffers)), "and its new body is remembered: {again:?}");
}

/// A double click, fifty times: one run.
pub async fn fifty_requests_under_one_key_at_once_make_one(h: &Harness) {
    let second = h.second().await;
    let mut askers = tokio::task::JoinSet::new();
    for n in 0..50 {
        let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
        let (write, run) = (h.write_keyed("k", 1, at(0), at(86_400_000)), h.new_run(h.claimed));
        askers.spawn(async move { store.enqueue(&write, &[run], &[]).await.unwrap() });
    }
    let answers = askers.join_all().await;
    let made = h.list(RunQuery { limit: 100, ..Default::default() }).await;
    assert_eq!(made.len(), 1);
    assert_eq!(answers.iter().filter(|answer| **answer == [QUEUED]).count(), 1, "{answers:?}");
    let again = [QUEUED.kept_for(made[0].run.id)];
    assert!(answers.iter().all(|answer| *answer == [QUEUED] || *answer == again), "{answers:?}");
}

/// A request written in a caller's transaction becomes runs exactly once.
pub async fn an_inbox_row_is_consumed_with_its_runs_exactly_once(h: &Harness) {
    for n in 0..3 {
        if !h.place.put_inbox(at(n), &format!("{{\"n\":{n}}}")).await {
            return;
        }
    }
    let items = h.store.inbox(2).await.unwrap();
    assert_eq!(items.iter().map(|item| item.body.as_str()).collect::<Vec<_>>(), ["{\"n\":0}", "{\"n\":1}"]);
    let ids: Vec<_> = items.iter().map(|item| item.id).collect();
    let write = h.write(at(5));
    let runs = [h.new_run(h.claimed), h.new_run(h.claimed)];
    let first = h.store.enqueue(&write, &runs, &ids).await.unwrap();
    let again = h.store.enqueue(&write, &runs, &ids).await.unwrap();
    assert_eq!(first, again);
    let left = h.store.inbox(10).await.unwrap();
    assert_eq!(left.iter().map(|item| item.body.as_str()).collect::<Vec<_>>(), ["{\"n\":2}"]);
    assert_eq!(h.list(RunQuery { limit: 100, ..Default::default() }).await.len(), 2);
}

/// Two stages that read the same inbox rows at once must make their runs once.
pub async fn two_nodes_consuming_one_inbox_row_make_its_run_once(h: &Harness) {
    let second = h.second().await;
    for n in 0..8 {
        if !h.place.put_inbox(at(n), "{}").await {
            return;
        }
        let ids: Vec<_> = h.store.inbox(10).await.unwrap().iter().map(|item| item.id).collect();
        assert_eq!(ids.len(), 1);
        let (a, b) = (h.write(at(1)), h.write(at(1)));
        let (left, right) = ([h.new_run(h.claimed)], [h.new_run(h.claimed)]);
        let both = tokio::join!(h.store.enqueue(&a, &left, &ids), second.enqueue(&b, &right, &ids));
        let made = [both.0, both.1].iter().filter(|answer| answer.is_ok()).count();
        let live = h.list(RunQuery { limit: 100, ..Default::default() }).await.len();
        assert_eq!(live, n as usize + 1, "{made} said that they made it");
        assert_eq!(h.store.inbox(10).await.unwrap(), []);
    }
}

/// Nothing to do is not a fault.
pub async fn empty_batches_are_answered(h: &Harness) {
    let write = || h.write(at(0));
    assert_eq!(h.store.enqueue(&write(), &[], &[]).await.unwrap(), []);
    assert_eq!(h.store.fire(&write(), 0, &[]).await.unwrap(), []);
    assert_eq!(h.settle_all(&[], at(0)).await.answers, []);
    assert_eq!(h.store.request_cancel(&write(), &[], &ask()).await.unwrap(), []);
    assert_eq!(h.store.wake(&write(), &[]).await.unwrap(), []);
    assert_eq!(h.store.mark_running(&write(), &[]).await.unwrap(), []);
    assert_eq!(h.store.lease_owned(&write(), h.worker(), at(1), &[]).await.unwrap(), []);
    assert_eq!(h.store.lease_running(&write(), h.worker(), at(1), &[]).await.unwrap(), []);
    assert_eq!(h.store.progress(&[]).await.unwrap(), []);
    assert_eq!(h.store.promote(&write(), &[], 10).await.unwrap().moved, 0);
    assert_eq!(h.store.own(&[], &[]).await.unwrap(), Vec::<Vec<_>>::new());
    assert_eq!(h.store.own(&all_parts(), &[]).await.unwrap(), Vec::<Vec<_>>::new());
    assert_eq!(h.store.notices(&[], 10).await.unwrap(), []);
    assert_eq!(h.store.inherited(&[], 10).await.unwrap(), []);
    h.store.clear_notices(&[]).await.unwrap();
    assert_eq!(h.store.runs(&[]).await.unwrap(), []);
    assert_eq!(h.store.due(&[], at(0), 10).await.unwrap(), []);
    assert_eq!(h.store.due(&all_parts(), at(0), 0).await.unwrap(), []);
    assert_eq!(h.store.live_of(&[], 10).await.unwrap(), Vec::<Vec<_>>::new());
    assert_eq!(h.store.take_tokens(&[], at(0)).await.unwrap(), []);
    assert_eq!(h.store.put_jobs(&write(), &[]).await.unwrap(), []);
    assert_eq!(h.store.put_schedules(&write(), &[]).await.unwrap(), []);
    assert_eq!(h.store.delete_jobs(&write(), &[]).await.unwrap(), []);
    assert_eq!(h.store.set_pauses(&write(), &[], None).await.unwrap(), Vec::<bool>::new());
    assert_eq!(h.store.take_partitions(h.node_id(), &[], at(0)).await.unwrap(), []);
    assert_eq!(h.store.give_partitions(h.node_id(), &[]).await.unwrap(), []);
    h.store.append_logs(&[]).await.unwrap();
    assert_eq!(h.store.release(&write(), h.worker()).await.unwrap(), []);
    assert_eq!(h.reap(at(0), at(0)).await, []);
    assert_eq!(h.sweep(at(0)).await, []);
}

/// A run's id is its name: a second run of that name must not take its place.
pub async fn a_run_id_that_is_taken_is_refused(h: &Harness) {
    let run = NewRun { payload: Some("1".into()), ..h.new_run(h.claimed) };
    h.make(run.clone(), at(0)).await;
    let other = NewRun { payload: Some("2".into()), ..run.clone() };
    let answer = h.store.enqueue(&h.write(at(1)), std::slice::from_ref(&other), &[]).await;
    assert!(not_applied(&answer), "a clear error");
    let twice = NewRun { id: h.run_id(), ..other };
    let answer = h.store.enqueue(&h.write(at(1)), &[twice.clone(), twice.clone()], &[]).await;
    assert!(not_applied(&answer), "also within a batch");
    assert_eq!(h.record(run.id).await.run.payload.as_deref(), Some("1"));
    assert_eq!(h.store.runs(&[twice.id]).await.unwrap(), [None], "all of a batch, or nothing");
    h.make(h.new_run(h.claimed), at(2)).await;
}

/// PostgreSQL cannot hold a NUL in a text: the batch is refused, clearly, and
/// whoever else writes is none the worse. What SQLite could hold it refuses too.
pub async fn a_nul_in_a_text_is_refused_and_harms_nobody(h: &Harness) {
    let labels = BTreeMap::from([("a".to_owned(), "b\0c".to_owned())]);
    // Labels travel as JSON, where a NUL is written as an escape: accepted.
    let labelled = h.make(NewRun { labels: labels.clone(), ..h.new_run(h.claimed) }, at(0)).await;
    assert_eq!(h.record(labelled).await.run.labels, labels);
    let payload = NewRun { payload: Some("a\0b".into()), ..h.new_run(h.claimed) };
    let answer = h.store.enqueue(&h.write(at(0)), std::slice::from_ref(&payload), &[]).await;
    assert!(not_applied(&answer), "a payload is JSON, which has no NUL");
    assert_eq!(h.store.runs(&[payload.id]).await.unwrap(), [None]);
    let mut put = h.job_put("a\0b", "{}");
    put.expect = rota_core::store::Expect::Nothing;
    assert!(not_applied(&h.store.put_jobs(&h.write(at(0)), &[put]).await));
    h.make(h.new_run(h.claimed), at(1)).await;
}

/// The ends of time are times like others.
pub async fn extreme_times_are_stored(h: &Harness) {
    let last = Timestamp::new(Timestamp::MAX.as_second(), 999_999_000).unwrap();
    for ready_at in [Timestamp::MIN, Timestamp::UNIX_EPOCH, last] {
        let run = NewRun { ready_at, expires_at: Some(ready_at), ..h.new_run(h.claimed) };
        let id = h.make(run.clone(), at(0)).await;
        let stored = h.record(id).await.run;
        assert_eq!((stored.ready_at, stored.expires_at, stored.priority), (ready_at, Some(ready_at), run.priority));
    }
}

/// A thousand in one batch are a thousand runs, in order.
pub async fn a_large_batch_is_made_whole(h: &Harness) {
    let ids = h.make_many(h.claimed, 2_000, at(0)).await;
    let leased = h.claim(h.worker(), 2_000, at(1)).await;
    assert_eq!(leased.iter().map(|run| run.id).collect::<Vec<_>>(), ids);
    let ends: Vec<_> = leased.iter().map(|run| by_lease(run, succeeded(), at(2))).collect();
    let settled = h.settle_all(&ends, at(2)).await;
    assert!(settled.answers.iter().all(|answer| *answer == rota_core::store::Guarded::Applied));
    let listed = h.list(RunQuery { limit: 500, ..Default::default() }).await;
    assert_eq!(listed.len(), 2_000);
}
