//! Jobs that start after others.

use rota_core::{
    ids::RunId,
    run::{Source, TrailKind, Verdict},
    store::{Expect, Pause, PauseTarget, RunRecord},
};
use rota_engine::definitions::{self, SaveError, Saved};
use serde_json::{Value, json};

use crate::bed::*;

fn then(name: &str, after: &Value) -> Value {
    with(job(name, "noop"), json!({ "triggers": { "after": after } }))
}

/// The runs of a job, oldest first.
async fn runs_of(bed: &Bed, saved: Saved) -> Vec<RunRecord> {
    bed.runs().await.into_iter().filter(|record| record.run.job == saved.job).collect()
}

fn upstreams(record: &RunRecord) -> Vec<RunId> {
    let metadata = record.run.trigger.metadata.as_ref().unwrap();
    let after = metadata["after"].as_array().unwrap();
    after.iter().map(|end| serde_json::from_value(end["run"].clone()).unwrap()).collect()
}

#[tokio::test]
async fn a_job_starts_after_another_with_its_own_payload_and_says_after_which_run() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("load", "noop")).await;
    let report =
        with(then("report", &json!({ "jobs": ["load"] })), json!({ "input": { "default": { "kind": "sales" } } }));
    let report = bed.save(&node.node, report).await;
    let load = node.enqueue(&bed, "load").await;
    node.work().await;
    node.chain().await;
    node.work().await;
    let made = runs_of(&bed, report).await;
    assert_eq!(made.len(), 1);
    assert_eq!((made[0].run.trigger.source, upstreams(&made[0])), (Source::Job, vec![load]));
    assert_eq!(made[0].run.state.status(), ended(Verdict::Succeeded));
    assert_eq!(made[0].output.as_deref(), Some("{\"seen\":{\"kind\":\"sales\"}}"));
    node.chain().await;
    assert_eq!(runs_of(&bed, report).await.len(), 1, "an end counts once");
}

#[tokio::test]
async fn all_waits_for_the_last_and_any_for_none() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    for name in ["a", "b"] {
        bed.save(&node.node, job(name, "noop")).await;
    }
    let all = bed.save(&node.node, then("all", &json!({ "jobs": ["a", "b"], "match": "all" }))).await;
    let any = bed.save(&node.node, then("any", &json!({ "jobs": ["a", "b"], "match": "any" }))).await;
    let mut made = Vec::new();
    for name in ["a", "a", "b", "b"] {
        node.enqueue(&bed, name).await;
        node.work().await;
        node.chain().await;
        made.push((runs_of(&bed, all).await.len(), runs_of(&bed, any).await.len()));
    }
    assert_eq!(made, [(0, 1), (0, 2), (1, 3), (1, 4)], "the second b waits for another a");
}

/// Prevents: a crash, or a lost answer, between the end of one run and the start
/// of the next losing the next or making it twice.
#[tokio::test]
async fn a_crash_between_the_end_and_the_start_loses_nothing_and_makes_nothing_twice() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("load", "noop")).await;
    let report = bed.save(&node.node, then("report", &json!({ "jobs": ["load"] }))).await;
    node.enqueue(&bed, "load").await;
    node.work().await;
    // The one that settled it is gone; another goes on.
    node.node.store.leave(node.node.id).await.unwrap();
    let mut next = bed.node().await;
    bed.faults.lose_answers(1);
    assert!(rota_engine::stages::Stage::pass(&mut next.chain, bed.now()).await.is_err());
    next.chain().await;
    next.chain().await;
    assert_eq!(runs_of(&bed, report).await.len(), 1);
}

/// What did not start is on record, with the reason.
#[tokio::test]
async fn a_paused_disabled_or_deleted_job_is_kept_as_skipped() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    bed.save(&node.node, job("load", "noop")).await;
    let after = json!({ "jobs": ["load"] });
    let paused = bed.save(&node.node, then("paused", &after)).await;
    let disabled = bed.save(&node.node, with(then("disabled", &after), json!({ "enabled": false }))).await;
    let deleted = bed.save(&node.node, then("deleted", &after)).await;
    let pause = Pause { since: bed.now(), ..Pause::default() };
    let write = node.node.write(bed.now());
    bed.store.set_pauses(&write, &[PauseTarget::Job(paused.job)], Some(&pause)).await.unwrap();
    node.enqueue(&bed, "load").await;
    node.work().await;
    bed.store.delete_jobs(&node.node.write(bed.now()), &[deletion(deleted.job)]).await.unwrap();
    node.chain().await;
    for (saved, why) in [(paused, "paused"), (disabled, "paused"), (deleted, "deleted")] {
        let made = runs_of(&bed, saved).await;
        assert_eq!(made.len(), 1, "{why}");
        assert_eq!(made[0].run.state.status(), ended(Verdict::Skipped), "{why}");
        assert!(made[0].trail.iter().any(|entry| entry.kind == TrailKind::Skipped { reason: why.into() }));
    }
    assert_eq!(node.work().await, 0);
}

#[tokio::test]
async fn jobs_that_start_each_other_are_refused_with_their_path() {
    let bed = Bed::new().await;
    let node = bed.node().await;
    let documents = [then("a", &json!({ "jobs": ["b"] })), then("b", &json!({ "jobs": ["c"] })), job("c", "noop")];
    let documents: Vec<_> =
        documents.map(|value| rota_core::job::JobDocument::from_value(value).unwrap()).into_iter().collect();
    let all: Vec<&_> = documents.iter().collect();
    let saved =
        definitions::save_jobs(&node.node, bed.tenant, &all, None, Expect::Anything, &node.node.write(bed.now()))
            .await
            .unwrap();
    assert!(saved.iter().all(Result::is_ok), "whatever their order: {saved:?}");
    let back = rota_core::job::JobDocument::from_value(then("c", &json!({ "jobs": ["a"] }))).unwrap();
    let refused =
        definitions::save_job(&node.node, bed.tenant, &back, None, Expect::Anything, &node.node.write(bed.now())).await;
    let Err(SaveError::BadDocument { problems }) = refused else { panic!("{refused:?}") };
    assert_eq!((problems[0].path.as_str(), problems[0].code), ("triggers.after.jobs", "cycle"));
    assert!(problems[0].message.contains("c -> a -> b -> c"), "{}", problems[0].message);
}
