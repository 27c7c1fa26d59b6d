//! Lists: live then ended, each run once, filters holding on every page.

use std::collections::{BTreeMap, BTreeSet};

use rota_core::{
    ids::{RunId, ScheduleId},
    run::{NewRun, RunState, Source, Status, Trigger, Verdict},
    store::{RunQuery, RunRecord},
};

use crate::harness::*;

/// Forty runs: some live, some ended, of two tenants, two jobs, two schedules.
async fn forty(h: &Harness) -> Vec<NewRun> {
    let other_tenant = h.tenant("other").await;
    let mut put = h.job_put("second", "{\"v\":1}");
    put.tags = vec!["nightly".into()];
    h.save(put, at(0)).await;
    let other_job = h.store.find_jobs(&[(h.tenant, "second".into())]).await.unwrap()[0].as_ref().unwrap().id;
    let mut runs = Vec::new();
    for n in 0..40_i64 {
        let trigger = Trigger {
            schedule: (n % 3 > 0).then_some(ScheduleId(n % 3)),
            ..Trigger::plain(if n % 3 > 0 { Source::Schedule } else { Source::Api })
        };
        let run = NewRun {
            tenant: if n % 4 == 0 { other_tenant } else { h.tenant },
            job: if n % 5 == 0 { other_job } else { h.job },
            trigger,
            labels: BTreeMap::from([("mod".into(), (n % 2).to_string()), ("n".into(), n.to_string())]),
            ..h.new_run(h.claimed)
        };
        h.make(run.clone(), at(n)).await;
        runs.push(run);
    }
    for tenant in [h.tenant, other_tenant] {
        let mut claim = h.claim_of(h.worker(), 12, at(50));
        claim.shares[0].pair.tenant = tenant;
        let held = h.store.claim(&h.write(at(50)), std::slice::from_ref(&claim)).await.unwrap();
        for (n, run) in held.iter().take(8).enumerate() {
            // Pairs that end at the same instant.
            let outcome = if n % 3 == 0 { broken() } else { succeeded() };
            h.settle(run, outcome, at(100 + (n as i64) / 2)).await;
        }
    }
    runs
}

fn ids(records: &[RunRecord]) -> Vec<RunId> {
    records.iter().map(|record| record.run.id).collect()
}

async fn all(h: &Harness) -> Vec<RunRecord> {
    h.list(RunQuery { limit: 1_000, ..Default::default() }).await
}

/// Live first, newest first; then ended, latest first.
pub async fn live_runs_come_first_then_ended_ones_by_their_end(h: &Harness) {
    forty(h).await;
    let listed = all(h).await;
    assert_eq!(listed.len(), 40);
    let split = listed.iter().position(|record| matches!(record.run.state, RunState::Finished { .. })).unwrap();
    assert_eq!(split, 24);
    let live: Vec<_> = listed[..split].iter().map(|record| record.run.id).collect();
    assert!(live.is_sorted_by(|a, b| a > b), "newest first");
    let ended: Vec<_> = listed[split..]
        .iter()
        .map(|record| match record.run.state {
            RunState::Finished { at, .. } => (at, record.run.id),
            _ => panic!("a live run among the ended"),
        })
        .collect();
    assert!(ended.is_sorted_by(|a, b| a > b), "latest end first: {ended:?}");
}

/// Pages of any size hold each run once, in the same order.
pub async fn pages_are_complete_and_without_repeats(h: &Harness) {
    forty(h).await;
    let whole = ids(&all(h).await);
    for limit in [1, 2, 3, 7, 39, 40, 41] {
        let paged = h.list(RunQuery { limit, ..Default::default() }).await;
        assert_eq!(ids(&paged), whole, "pages of {limit}");
    }
}

/// A filter finds what a look through everything finds.
pub async fn every_filter_finds_what_a_full_look_finds(h: &Harness) {
    forty(h).await;
    let whole = all(h).await;
    let other = h.tenant("other").await;
    let check = async |query: RunQuery, keep: &dyn Fn(&RunRecord) -> bool, what: &str| {
        let expected: Vec<_> = whole.iter().filter(|record| keep(record)).map(|record| record.run.id).collect();
        assert!(!expected.is_empty() && expected.len() < 40, "{what}: the case has something to leave out");
        for limit in [3, 100] {
            let found = h.list(RunQuery { limit, ..query.clone() }).await;
            assert_eq!(ids(&found), expected, "{what}, pages of {limit}");
        }
    };
    let none = RunQuery::default;
    check(RunQuery { tenant: Some(other), ..none() }, &|r| r.run.tenant == other, "tenant").await;
    check(RunQuery { job: Some(h.job), ..none() }, &|r| r.run.job == h.job, "job").await;
    check(RunQuery { tag: Some("nightly".into()), ..none() }, &|r| r.run.job != h.job, "tag").await;
    check(
        RunQuery { schedule: Some(ScheduleId(2)), ..none() },
        &|r| r.run.trigger.schedule == Some(ScheduleId(2)),
        "schedule",
    )
    .await;
    for statuses in [
        vec![Status::Queued],
        vec![Status::Running],
        vec![Status::Ended(Verdict::Failed)],
        vec![Status::Running, Status::Ended(Verdict::Succeeded)],
    ] {
        let wanted = statuses.clone();
        check(
            RunQuery { statuses, ..none() },
            &|r| wanted.contains(&r.run.state.status()),
            &format!("statuses {wanted:?}"),
        )
        .await;
    }
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let has = |r: &RunRecord, key: &str, value: &str| r.run.labels.get(key).is_some_and(|v| v == value);
    check(RunQuery { labels: vec![label("mod", "1")], ..none() }, &|r| has(r, "mod", "1"), "label").await;
    check(RunQuery { labels: vec![label("mod", "1"), label("n", "7")], ..none() }, &|r| has(r, "n", "7"), "two labels")
        .await;
    let time = |r: &RunRecord| match r.run.state {
        RunState::Finished { at, .. } => at,
        _ => r.run.created_at,
    };
    check(
        RunQuery { from: Some(at(20)), to: Some(at(102)), ..none() },
        &|r| time(r) >= at(20) && time(r) < at(102),
        "time: from inclusive, to exclusive",
    )
    .await;
    check(
        RunQuery { ended_from: Some(at(101)), ..none() },
        &|r| !matches!(r.run.state, RunState::Finished { .. }) || time(r) >= at(101),
        "a bounded history hides no live run",
    )
    .await;
    check(
        RunQuery {
            tenant: Some(h.tenant),
            job: Some(h.job),
            labels: vec![label("mod", "0")],
            statuses: vec![Status::Queued, Status::Ended(Verdict::Succeeded)],
            ..none()
        },
        &|r| {
            r.run.tenant == h.tenant
                && r.run.job == h.job
                && has(r, "mod", "0")
                && matches!(r.run.state.status(), Status::Queued | Status::Ended(Verdict::Succeeded))
        },
        "all together",
    )
    .await;
}

/// Blocked for a slot and blocked for others are one status to people.
pub async fn both_kinds_of_blocked_are_blocked(h: &Harness) {
    let (holder, waiting) = (h.keyed(1, 1), h.keyed(1, 1));
    h.enqueue(&[holder.clone(), waiting.clone()], at(0)).await;
    let joined = h.make(NewRun { after: vec![holder.id], ..h.new_run(h.claimed) }, at(0)).await;
    let found = h.list(RunQuery { statuses: vec![Status::Blocked], limit: 10, ..Default::default() }).await;
    assert_eq!(ids(&found).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([waiting.id, joined]));
}

/// Whoever executes a run knows before the store does: a list by status goes by that, and
/// a filter of other statuses, or a run that is not queued, is none the wiser for it.
pub async fn a_run_that_is_known_to_have_begun_counts_as_running(h: &Harness) {
    let begun = h.make_many(h.claimed, 4, at(0)).await;
    let leased = h.claim(h.worker(), 1, at(0)).await.remove(0).id;
    let later = h.make(NewRun { ready_at: at(60_000), ..h.new_run(h.claimed) }, at(0)).await;
    let [known, queued] = [0, 1].map(|skip| *begun.iter().filter(|id| **id != leased).nth(skip).unwrap());
    let found = async |statuses: &[Status], limit| {
        let query =
            RunQuery { statuses: statuses.to_vec(), begun: vec![known, leased, later], limit, ..Default::default() };
        ids(&h.list(query).await).into_iter().collect::<BTreeSet<_>>()
    };
    for limit in [1, 100] {
        assert_eq!(found(&[Status::Running], limit).await, BTreeSet::from([known, leased]), "pages of {limit}");
        let still = found(&[Status::Queued], limit).await;
        assert!(still.len() == 2 && still.contains(&queued) && !still.contains(&known), "pages of {limit}: {still:?}");
        assert_eq!(found(&[Status::Scheduled], limit).await, BTreeSet::from([later]), "pages of {limit}");
        assert_eq!(found(&[], limit).await.len(), 5, "pages of {limit}");
    }
}

/// A limit of nothing is no endless loop, one of everything no endless answer.
pub async fn limits_are_clamped(h: &Harness) {
    h.make_many(h.claimed, 5, at(0)).await;
    let none = h.store.list_runs(&RunQuery { limit: 0, ..Default::default() }).await.unwrap();
    assert!(none.runs.len() <= 1);
    let most = h.store.list_runs(&RunQuery { limit: u32::MAX, ..Default::default() }).await.unwrap();
    assert_eq!(most.runs.len(), 5);
}

/// What matches nothing is an empty list that ends.
pub async fn a_query_that_matches_nothing_ends(h: &Harness) {
    forty(h).await;
    for query in [
        RunQuery { tag: Some("no such tag".into()), ..Default::default() },
        RunQuery { labels: vec![("no".into(), "such".into())], ..Default::default() },
        RunQuery { labels: vec![("mod".into(), "1".into()), ("mod".into(), "0".into())], ..Default::default() },
        RunQuery { from: Some(at(1_000_000)), ..Default::default() },
        RunQuery { to: Some(at(-1)), ..Default::default() },
        RunQuery { statuses: vec![Status::Waiting], ..Default::default() },
    ] {
        assert_eq!(h.list(RunQuery { limit: 5, ..query.clone() }).await, [], "{query:?}");
    }
}

/// Runs by id, live and ended, in the order asked.
pub async fn runs_are_found_by_id_live_and_ended(h: &Harness) {
    let runs = forty(h).await;
    let unknown = h.run_id();
    let asked = [runs[39].id, unknown, runs[1].id, runs[39].id, runs[0].id];
    let found = h.store.runs(&asked).await.unwrap();
    let names: Vec<_> = found.iter().map(|record| record.as_ref().map(|record| record.run.id)).collect();
    assert_eq!(names, [Some(asked[0]), None, Some(asked[2]), Some(asked[3]), Some(asked[4])]);
    let whole: BTreeMap<_, _> = all(h).await.into_iter().map(|record| (record.run.id, record)).collect();
    for record in found.into_iter().flatten() {
        assert_eq!(record, whole[&record.run.id], "the list and the look by id agree");
    }
}

/// A run that ends between two pages is on one page, not on none and not on two;
/// whether it was shown before, and whenever its end was.
pub async fn a_run_that_ends_between_pages_is_on_one_page(h: &Harness) {
    h.make_many(h.claimed, 15, at(0)).await;
    let held = h.claim(h.worker(), 15, at(0)).await;
    for run in &held[..3] {
        h.succeed(run, at(50)).await;
    }
    for (limit, now) in [(3, None), (2, Some(at(60)))] {
        let mut query = RunQuery { limit, now, ..Default::default() };
        let mut seen = Vec::new();
        let mut ending = held[3..].iter().enumerate().skip(if now.is_some() { 6 } else { 0 }).take(6);
        loop {
            let page = h.store.list_runs(&query).await.unwrap();
            seen.extend(page.runs.iter().map(|record| record.run.id));
            // From both sides of the list, with ends before and after others.
            if let Some((n, run)) = ending.next() {
                h.succeed(run, at(if n % 2 == 0 { 40 } else { 70 })).await;
            }
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen.len(), 15, "pages of {limit}: {seen:?}");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>().len(), 15, "pages of {limit}");
    }
}

/// Under load a page is read while runs end: it shows each once.
pub async fn runs_that_end_as_they_are_listed_are_listed_once(h: &Harness) {
    h.make_many(h.claimed, 60, at(0)).await;
    let held = h.claim(h.worker(), 60, at(0)).await;
    let end_all = async {
        for run in &held {
            h.succeed(run, at(1)).await;
        }
    };
    let list = async {
        for limit in [1_000, 20, 1_000, 7, 1_000, 20, 1_000] {
            let listed = ids(&h.list(RunQuery { limit, now: Some(at(1)), ..Default::default() }).await);
            assert_eq!(listed.len(), 60, "pages of {limit}");
            assert_eq!(listed.into_iter().collect::<BTreeSet<_>>().len(), 60, "pages of {limit}");
        }
    };
    tokio::join!(end_all, list);
}
