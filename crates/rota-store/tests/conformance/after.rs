//! Jobs that start after others: ends are written down with the end itself, and
//! lead to runs exactly once.

use rota_core::{
    after::{AfterRefusal, JobEnd},
    ids::{JobId, RunId},
    job::{After, AfterEnd, Match},
    run::{NewRun, Outcome, Source, Status, TrailKind, Trigger, Verdict},
    slot::{SlotAsk, WhenFull},
    store::{Enqueued, FollowEnds, Followed, Guarded, JobEnds, JobPut, JobSaved, Reap},
};

use crate::harness::*;

fn after(jobs: &[&str], on: AfterEnd) -> After {
    After { jobs: jobs.iter().map(|name| (*name).into()).collect(), matching: Some(Match::Any), on: Some(on) }
}

fn put(h: &Harness, name: &str, jobs: &[&str], on: AfterEnd) -> JobPut {
    JobPut { after: Some(after(jobs, on)), ..h.job_put(name, &format!("{{\"after\":{jobs:?},\"on\":\"{on}\"}}")) }
}

fn id(saved: &JobSaved) -> JobId {
    let JobSaved::Saved { id, .. } = saved else { panic!("{saved:?}") };
    *id
}

/// A job that starts after `report`, the harness's own.
async fn waits(h: &Harness, on: AfterEnd) -> JobId {
    id(&h.save(put(h, "then", &["report"], on), at(0)).await)
}

async fn ends(h: &Harness) -> Vec<JobEnd> {
    h.store.job_ends(100).await.unwrap().ends
}

async fn revision(h: &Harness, job: JobId) -> i32 {
    h.store.jobs(&[job]).await.unwrap().remove(0).unwrap().revision
}

fn next(h: &Harness, job: JobId) -> NewRun {
    NewRun { job, trigger: Trigger::plain(Source::Job), ..h.new_run(h.owned) }
}

/// Turns ends into one run.
async fn item(h: &Harness, job: JobId, used: &[RunId]) -> FollowEnds {
    let (job_revision, runs) = (revision(h, job).await, vec![next(h, job)]);
    FollowEnds { downstream: job, job_revision, used: used.to_vec(), held: Vec::new(), runs, skips: Vec::new() }
}

const DONE: Enqueued = Enqueued::Made { status: Status::Queued, handed: false };

pub async fn an_end_is_written_down_for_those_who_wait_for_it(h: &Harness) {
    let (_, before) = h.leased(at(0)).await;
    h.succeed(&before, at(1)).await;
    assert_eq!(h.store.job_ends(100).await.unwrap(), JobEnds::default(), "nobody waits");
    let job = waits(h, AfterEnd::Succeeded).await;
    let (_, good) = h.leased(at(2)).await;
    h.succeed(&good, at(3)).await;
    let (_, bad) = h.leased(at(4)).await;
    h.settle(&bad, broken(), at(5)).await;
    let found = h.store.job_ends(100).await.unwrap();
    let (upstream, verdict) = ("report".to_owned(), Verdict::Succeeded);
    let end = JobEnd { downstream: job, upstream, run: good.id, verdict, at: at(3), held: false };
    assert_eq!(found.ends, [end]);
    assert!(found.waited_for);
}

/// Whatever ends a run, those who wait for it are told in the same commit.
pub async fn every_kind_of_end_counts(h: &Harness) {
    let job = waits(h, AfterEnd::Ended).await;
    let mut ended = Vec::new();
    for outcome in [succeeded(), broken(), Outcome::Cancelled] {
        let (_, run) = h.leased(at(0)).await;
        assert_eq!(h.settle(&run, outcome, at(1)).await, Guarded::Applied);
        ended.push(run.id);
    }
    let owner = h.owner(at(0)).await;
    ended.push(h.make(h.new_run(h.owned), at(0)).await);
    let run = h.own(&owner.epochs.keys().copied().collect::<Vec<_>>(), 10).await.remove(0);
    h.settle_as(&owner, &[owner.executes(&run, succeeded(), at(1))], at(1)).await;
    let delayed = h.make(NewRun { ready_at: at(60_000), ..h.new_run(h.owned) }, at(0)).await;
    h.cancel(delayed, at(1)).await;
    ended.push(delayed);
    ended.push(h.make(NewRun { ready_at: at(50_000), expires_at: Some(at(5)), ..h.new_run(h.owned) }, at(0)).await);
    h.sweep(at(10)).await;
    let (_, lost) = h.leased(at(0)).await;
    h.store.reap(&h.write(at(60_000)), &Reap { before: at(60_000), losses_max: 1, limit: 10 }).await.unwrap();
    ended.push(lost.id);
    h.make(h.keyed(1, 1), at(0)).await;
    ended.push(h.make(h.keyed(1, 1), at(0)).await);
    let replace = SlotAsk { when_full: WhenFull::Replace, ..slot(1, 1) };
    h.make(NewRun { slot: Some(replace), ..h.new_run(h.claimed) }, at(1)).await;
    let mut found: Vec<RunId> = ends(h).await.iter().map(|end| end.run).collect();
    found.sort();
    ended.sort();
    assert_eq!(found, ended);
    assert!(ends(h).await.iter().all(|end| end.downstream == job));
}

pub async fn an_end_leads_to_a_run_exactly_once(h: &Harness) {
    let job = waits(h, AfterEnd::Succeeded).await;
    let (_, run) = h.leased(at(0)).await;
    h.succeed(&run, at(1)).await;
    let item = item(h, job, &[run.id]).await;
    let write = h.write(at(2));
    let first = h.store.follow_ends(&write, std::slice::from_ref(&item)).await.unwrap();
    assert_eq!(first, [Followed::Done(vec![DONE])]);
    assert_eq!(h.store.follow_ends(&write, std::slice::from_ref(&item)).await.unwrap(), first, "asked again");
    let again = FollowEnds { runs: vec![next(h, job)], ..item.clone() };
    assert_eq!(h.store.follow_ends(&h.write(at(3)), &[again]).await.unwrap(), [Followed::Stale], "by another");
    assert_eq!(ends(h).await, []);
    let record = h.record(item.runs[0].id).await;
    assert_eq!((record.run.job, record.run.trigger.source), (job, Source::Job));
}

/// Two nodes that both believe it is theirs to do.
pub async fn two_nodes_make_one_run_of_one_end(h: &Harness) {
    let job = waits(h, AfterEnd::Succeeded).await;
    let second = h.second().await;
    for _ in 0..10 {
        let (_, run) = h.leased(at(0)).await;
        h.succeed(&run, at(1)).await;
        let (left, right) = ([item(h, job, &[run.id]).await], [item(h, job, &[run.id]).await]);
        let (a, b) = (h.write(at(2)), h.write(at(2)));
        let (one, other) = tokio::join!(h.store.follow_ends(&a, &left), second.follow_ends(&b, &right));
        let answers = [one.unwrap().remove(0), other.unwrap().remove(0)];
        assert_eq!(answers.iter().filter(|answer| **answer == Followed::Stale).count(), 1, "{answers:?}");
    }
}

pub async fn a_job_that_was_changed_meanwhile_is_read_again(h: &Harness) {
    let job = waits(h, AfterEnd::Succeeded).await;
    let (_, run) = h.leased(at(0)).await;
    h.succeed(&run, at(1)).await;
    let old = item(h, job, &[run.id]).await;
    h.save(put(h, "then", &["report"], AfterEnd::Ended), at(2)).await;
    assert_eq!(h.store.follow_ends(&h.write(at(3)), &[old]).await.unwrap(), [Followed::Stale]);
    assert_eq!(ends(h).await.len(), 1, "nothing is lost by it");
}

pub async fn a_held_end_waits_for_the_next(h: &Harness) {
    let job = id(&h.save(put(h, "then", &["report"], AfterEnd::Succeeded), at(0)).await);
    let (_, first) = h.leased(at(0)).await;
    h.succeed(&first, at(1)).await;
    let hold = FollowEnds { used: Vec::new(), held: vec![first.id], runs: Vec::new(), ..item(h, job, &[]).await };
    assert_eq!(h.store.follow_ends(&h.write(at(2)), &[hold]).await.unwrap(), [Followed::Done(Vec::new())]);
    assert_eq!(ends(h).await, [], "nothing new");
    let (_, second) = h.leased(at(3)).await;
    h.succeed(&second, at(4)).await;
    let found: Vec<(RunId, bool)> = ends(h).await.iter().map(|end| (end.run, end.held)).collect();
    assert_eq!(found, [(first.id, true), (second.id, false)]);
}

/// What did not start is on record, with the reason.
pub async fn a_refused_or_skipped_run_is_kept_as_skipped(h: &Harness) {
    let job = waits(h, AfterEnd::Succeeded).await;
    let (_, run) = h.leased(at(0)).await;
    h.succeed(&run, at(1)).await;
    h.make(h.keyed(1, 1), at(1)).await;
    let full = NewRun { slot: Some(SlotAsk { when_full: WhenFull::Skip, ..slot(1, 1) }), ..next(h, job) };
    let paused = next(h, job);
    let (skips, runs) = (vec![(paused.clone(), "paused".to_owned())], vec![full.clone()]);
    let item = FollowEnds { runs, skips, ..item(h, job, &[run.id]).await };
    let write = h.write(at(2));
    assert_eq!(h.store.follow_ends(&write, &[item]).await.unwrap(), [Followed::Done(vec![Enqueued::Full])]);
    for (id, why) in [(full.id, "overlap"), (paused.id, "paused")] {
        let record = h.record(id).await;
        assert_eq!(record.run.state.status(), Status::Ended(Verdict::Skipped));
        assert!(record.trail.iter().any(|entry| entry.kind == TrailKind::Skipped { reason: why.into() }));
    }
    assert_eq!(write.ends.take().len(), 2, "and told of");
    assert_eq!(h.store.recount_slots(&h.write(at(3))).await.unwrap(), 0);
}

/// Also when each half of the circle is saved by itself, or both at once.
pub async fn jobs_that_would_start_each_other_are_refused(h: &Harness) {
    waits(h, AfterEnd::Succeeded).await;
    let cycle = |names: &[&str]| JobSaved::Refused(AfterRefusal::Cycle(names.iter().map(|n| (*n).into()).collect()));
    let back = put(h, "report", &["then"], AfterEnd::Succeeded);
    assert_eq!(h.save(back, at(1)).await, cycle(&["report", "then"]));
    let gone = h.save(put(h, "x", &["nobody"], AfterEnd::Succeeded), at(1)).await;
    assert_eq!(gone, JobSaved::Refused(AfterRefusal::NoSuchJob("nobody".into())));
    let batch = [
        put(h, "x", &["y"], AfterEnd::Succeeded),
        put(h, "free", &["y"], AfterEnd::Succeeded),
        put(h, "y", &["x"], AfterEnd::Succeeded),
    ];
    let saved = h.store.put_jobs(&h.write(at(2)), &batch).await.unwrap();
    assert_eq!((&saved[0], &saved[2]), (&cycle(&["x", "y"]), &cycle(&["y", "x"])));
    id(&saved[1]);
    let names = [(h.tenant, "x".to_owned()), (h.tenant, "free".to_owned())];
    let found = h.store.find_jobs(&names).await.unwrap();
    assert!(found[0].is_none() && found[1].is_some(), "one that is refused takes nobody along");
    // Both halves at once: one of them comes second.
    h.job("a").await;
    h.job("b").await;
    let (there, back) = ([put(h, "a", &["b"], AfterEnd::Ended)], [put(h, "b", &["a"], AfterEnd::Ended)]);
    let (second, first, other) = (h.second().await, h.write(at(3)), h.write(at(3)));
    let (one, two) = tokio::join!(h.store.put_jobs(&first, &there), second.put_jobs(&other, &back));
    let refused = [one.unwrap().remove(0), two.unwrap().remove(0)];
    let refused = refused.iter().filter(|saved| matches!(saved, JobSaved::Refused(_))).count();
    assert_eq!(refused, 1);
}

pub async fn an_edit_or_a_delete_ends_the_waiting(h: &Harness) {
    let job = waits(h, AfterEnd::Succeeded).await;
    h.save(h.job_put("then", "{\"v\":2}"), at(1)).await;
    let (_, run) = h.leased(at(2)).await;
    h.succeed(&run, at(3)).await;
    assert_eq!(h.store.job_ends(100).await.unwrap(), JobEnds::default(), "after an edit");
    h.save(put(h, "then", &["report"], AfterEnd::Succeeded), at(4)).await;
    h.store.delete_jobs(&h.write(at(5)), &[deletion(job)]).await.unwrap();
    let (_, run) = h.leased(at(6)).await;
    h.succeed(&run, at(7)).await;
    assert_eq!(h.store.job_ends(100).await.unwrap(), JobEnds::default(), "after a delete");
}
