//! Jobs, tenants, lanes, pauses, calendars.

use rota_core::{
    fire::Cursor,
    ids::{JobId, TenantId},
    lane::{LaneKey, LaneMode},
    store::{
        CalendarPut, Deletion, Expect, Guarded, JobPut, JobQuery, JobSaved, Pause, PauseTarget, RunQuery, SchedulePut,
        ScheduleQuery, TenantPut, Tier, Write,
    },
};

use crate::harness::*;

fn saved(answer: &JobSaved) -> (JobId, i32, i32, bool) {
    match answer {
        JobSaved::Saved { id, version, revision, changed } => (*id, *version, *revision, *changed),
        JobSaved::Conflict { .. } | JobSaved::Refused(_) => panic!("{answer:?}"),
    }
}

/// A run is pinned to its version: what that says must never change.
pub async fn versions_are_immutable_and_listed_newest_first(h: &Harness) {
    let first = saved(&h.save(h.job_put("a", "{\"v\":1}"), at(1)).await);
    let second = saved(&h.save(h.job_put("a", "{\"v\":2}"), at(2)).await);
    assert_eq!((second.0, second.1, second.3), (first.0, first.1 + 1, true));
    assert!(second.2 > first.2, "an edit bumps the revision that guards firing");
    let versions = h.store.job_versions(first.0, 10).await.unwrap();
    let documents: Vec<_> = versions.iter().map(|v| (v.version, v.document.as_str(), v.at)).collect();
    assert_eq!(documents, [(second.1, "{\"v\":2}", at(2)), (first.1, "{\"v\":1}", at(1))]);
    assert_eq!(versions[0].by.as_deref(), Some("ann"));
    assert_eq!(h.store.job_versions(first.0, 1).await.unwrap().len(), 1);
    assert_eq!(h.store.job_document(first.0, first.1).await.unwrap().as_deref(), Some("{\"v\":1}"));
    assert_eq!(h.store.job_document(first.0, 99).await.unwrap(), None);
    let record = h.store.jobs(&[first.0]).await.unwrap().remove(0).unwrap();
    assert_eq!((record.document.as_str(), record.version, record.revision), ("{\"v\":2}", second.1, second.2));
    assert_eq!((record.created_at, record.updated_at), (at(1), at(2)));
}

/// Applying the same files every minute must not make a version a minute.
pub async fn an_identical_document_makes_no_new_version(h: &Harness) {
    let first = saved(&h.save(h.job_put("a", "{\"v\":1}"), at(1)).await);
    let again = saved(&h.save(h.job_put("a", "{\"v\":1}"), at(2)).await);
    assert_eq!(again, (first.0, first.1, first.2, false));
    assert_eq!(h.store.job_versions(first.0, 10).await.unwrap().len(), 1);
}

/// A document that goes back to what it was is a new version all the same.
pub async fn going_back_is_a_new_version(h: &Harness) {
    let mut versions = Vec::new();
    for document in ["{\"v\":1}", "{\"v\":2}", "{\"v\":1}"] {
        versions.push(saved(&h.save(h.job_put("a", document), at(1)).await).1);
    }
    assert_eq!(versions, [versions[0], versions[0] + 1, versions[0] + 2]);
}

/// Two editors at once: the second learns of the first.
pub async fn what_the_saver_expects_is_respected(h: &Harness) {
    let put = |expect, document: &str| rota_core::store::JobPut { expect, ..h.job_put("a", document) };
    let missing = h.save(put(Expect::Version(1), "{}"), at(0)).await;
    assert_eq!(missing, JobSaved::Conflict { version: None });
    let first = saved(&h.save(put(Expect::Nothing, "{\"v\":1}"), at(0)).await);
    assert_eq!(h.save(put(Expect::Nothing, "{\"v\":2}"), at(0)).await, JobSaved::Conflict { version: Some(first.1) });
    let second = saved(&h.save(put(Expect::Version(first.1), "{\"v\":2}"), at(0)).await);
    assert_eq!(
        h.save(put(Expect::Version(first.1), "{\"v\":3}"), at(0)).await,
        JobSaved::Conflict { version: Some(second.1) }
    );
    let record = h.store.jobs(&[first.0]).await.unwrap().remove(0).unwrap();
    assert_eq!(record.document, "{\"v\":2}", "a conflict changes nothing");
}

/// Racing editors that expect the same version: one wins.
pub async fn racing_editors_make_one_version(h: &Harness) {
    let first = saved(&h.save(h.job_put("a", "{\"v\":0}"), at(0)).await);
    let second = h.second().await;
    let mut editors = tokio::task::JoinSet::new();
    for n in 1..=8 {
        let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
        let mut put = h.job_put("a", &format!("{{\"v\":{n}}}"));
        put.expect = Expect::Version(first.1);
        let write = h.write(at(1));
        editors.spawn(async move { store.put_jobs(&write, &[put]).await.unwrap().remove(0) });
    }
    let answers = editors.join_all().await;
    let won = answers.iter().filter(|answer| matches!(answer, JobSaved::Saved { .. })).count();
    assert_eq!(won, 1, "{answers:?}");
    assert_eq!(h.store.job_versions(first.0, 10).await.unwrap().len(), 2);
}

/// Makers of one new name at once make one job.
pub async fn racing_makers_of_one_name_make_one_job(h: &Harness) {
    let second = h.second().await;
    let mut makers = tokio::task::JoinSet::new();
    for n in 0..8 {
        let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
        let (write, put) = (h.write(at(1)), h.job_put("new", "{\"v\":1}"));
        makers.spawn(async move { store.put_jobs(&write, &[put]).await.unwrap().remove(0) });
    }
    let answers: Vec<_> = makers.join_all().await.iter().map(saved).collect();
    assert!(answers.iter().all(|answer| answer.0 == answers[0].0 && answer.1 == answers[0].1), "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.3).count(), 1);
}

/// Whoever deletes a job may die before its runs were told: what they are to be told
/// is kept until somebody has done it.
pub async fn what_a_deletion_asks_of_the_runs_is_kept(h: &Harness) {
    let other = saved(&h.store.put_jobs(&h.write(at(0)), &[h.job_put("other", "{}")]).await.unwrap()[0]).0;
    assert_eq!(h.store.deletions(10).await.unwrap(), []);
    let kept = Deletion { keep_running: true, ..deletion(other) };
    h.store.delete_jobs(&h.write(at(1)), &[deletion(h.job), deletion(JobId(-1))]).await.unwrap();
    h.store.delete_jobs(&h.write(at(2)), std::slice::from_ref(&kept)).await.unwrap();
    let expected = [(at(1), deletion(h.job)), (at(2), kept)];
    assert_eq!(h.store.deletions(10).await.unwrap(), expected);
    assert_eq!(h.store.deletions(1).await.unwrap(), expected[..1], "as many as were asked for");
    h.store.forget_deletions(&[h.job, JobId(-1)], at(3)).await.unwrap();
    assert_eq!(h.store.deletions(10).await.unwrap(), expected[1..]);
    assert!(h.store.jobs(&[h.job]).await.unwrap()[0].as_ref().unwrap().deleted, "it stays deleted");
}

/// Deleting ends a job and its schedules; its history and versions stay.
pub async fn deleting_a_job_ends_its_schedules_and_keeps_its_history(h: &Harness) {
    let schedule = h.schedule("s").await;
    let (_, run) = h.leased(at(0)).await;
    h.succeed(&run, at(1)).await;
    assert_eq!(
        h.store.delete_jobs(&h.write(at(2)), &[deletion(h.job), deletion(JobId(-1))]).await.unwrap(),
        [Guarded::Applied, Guarded::Stale]
    );
    assert_eq!(h.store.delete_jobs(&h.write(at(3)), &[deletion(h.job)]).await.unwrap(), [Guarded::Stale], "once");
    let record = h.store.jobs(&[h.job]).await.unwrap().remove(0).unwrap();
    assert!(record.deleted);
    assert_eq!(h.store.find_jobs(&[(h.tenant, "report".into())]).await.unwrap(), [None]);
    assert_eq!(h.store.list_jobs(&JobQuery { limit: 10, ..Default::default() }).await.unwrap().jobs, []);
    assert_eq!(h.cursors(&[schedule]).await, [None]);
    assert_eq!(h.store.due(&all_parts(), jiff::Timestamp::MAX, 10).await.unwrap(), []);
    assert!(h.store.schedules(&[schedule]).await.unwrap()[0].as_ref().unwrap().deleted);
    let listed = h.store.list_schedules(&ScheduleQuery { limit: 10, ..Default::default() }).await.unwrap();
    assert_eq!(listed.schedules, []);
    let query = RunQuery { job: Some(h.job), limit: 10, ..Default::default() };
    assert_eq!(h.list(query).await.len(), 1, "history stays");
    assert!(h.store.job_document(h.job, 1).await.unwrap().is_some(), "a run is pinned to its version");
    let skips = h.store.skips(schedule, None, 10).await.unwrap();
    assert_eq!(skips.len(), 1, "what it still owed is recorded");
    assert_eq!(skips[0].range.reason, rota_core::fire::SkipReason::Deleted);
}

/// The name of a deleted job is free; the new job is another one.
pub async fn a_deleted_jobs_name_is_free(h: &Harness) {
    h.store.delete_jobs(&h.write(at(1)), &[deletion(h.job)]).await.unwrap();
    let mut put = h.job_put("report", "{\"v\":1}");
    put.expect = Expect::Nothing;
    let new = saved(&h.save(put, at(2)).await);
    assert_ne!(new.0, h.job);
    let found = h.store.find_jobs(&[(h.tenant, "report".into())]).await.unwrap().remove(0).unwrap();
    assert_eq!(found.id, new.0);
    assert!(h.store.jobs(&[h.job]).await.unwrap()[0].as_ref().unwrap().deleted);
}

/// Names are a tenant's own.
pub async fn names_are_unique_in_their_tenant(h: &Harness) {
    let other = h.tenant("other").await;
    let mut put = h.job_put("report", "{\"v\":1}");
    put.tenant = other;
    let theirs = saved(&h.save(put, at(0)).await);
    assert_ne!(theirs.0, h.job);
    let found = h.store.find_jobs(&[(other, "report".into()), (h.tenant, "report".into())]).await.unwrap();
    let ids: Vec<_> = found.iter().map(|job| job.as_ref().unwrap().id).collect();
    assert_eq!(ids, [theirs.0, h.job]);
    assert_eq!(
        h.store.find_jobs(&[(TenantId(-1), "report".into()), (other, "none".into())]).await.unwrap(),
        [None, None]
    );
}

/// A job saved twice in one batch is saved in order.
pub async fn a_job_named_twice_in_a_batch_is_saved_in_order(h: &Harness) {
    let puts = [h.job_put("a", "{\"v\":1}"), h.job_put("a", "{\"v\":2}")];
    let answers = h.store.put_jobs(&h.write(at(0)), &puts).await.unwrap();
    let (first, second) = (saved(&answers[0]), saved(&answers[1]));
    assert_eq!((second.0, second.1), (first.0, first.1 + 1));
    assert_eq!(h.store.jobs(&[first.0]).await.unwrap()[0].as_ref().unwrap().document, "{\"v\":2}");
}

/// Filters hold on every page, and every job is on one.
pub async fn jobs_are_listed_by_name_with_filters_and_pages(h: &Harness) {
    let other = h.tenant("other").await;
    for n in 0..7 {
        let mut put = h.job_put(&format!("job-{n}"), &format!("{{\"n\":{n}}}"));
        put.tags = if n % 2 == 0 { vec!["even".into(), "x".into()] } else { vec!["odd".into()] };
        put.enabled = n != 3;
        put.queue = if n == 5 { "slow".into() } else { "default".into() };
        put.tenant = if n == 6 { other } else { h.tenant };
        h.save(put, at(0)).await;
    }
    let names = async |query: JobQuery| {
        let mut query = JobQuery { limit: 2, ..query };
        let mut names = Vec::new();
        loop {
            let page = h.store.list_jobs(&query).await.unwrap();
            assert!(page.jobs.len() <= 2);
            names.extend(page.jobs.into_iter().map(|job| job.name));
            match page.next {
                Some(next) => query.after = Some(next),
                None => break names,
            }
        }
    };
    let all = names(JobQuery { tenant: Some(h.tenant), ..Default::default() }).await;
    assert_eq!(all, ["job-0", "job-1", "job-2", "job-3", "job-4", "job-5", "report"]);
    assert_eq!(names(JobQuery::default()).await.len(), 8);
    let even = JobQuery { tag: Some("even".into()), ..Default::default() };
    assert_eq!(names(even).await, ["job-0", "job-2", "job-4", "job-6"]);
    let off = JobQuery { enabled: Some(false), ..Default::default() };
    assert_eq!(names(off).await, ["job-3"]);
    let slow = JobQuery { queue: Some("slow".into()), ..Default::default() };
    assert_eq!(names(slow).await, ["job-5"]);
    let prefix = JobQuery { prefix: Some("job-".into()), tenant: Some(other), ..Default::default() };
    assert_eq!(names(prefix).await, ["job-6"]);
    let wild = JobQuery { prefix: Some("job_".into()), ..Default::default() };
    assert_eq!(names(wild).await, Vec::<String>::new(), "a prefix is no pattern");
}

/// A pause is on the job's page, with who and why, until it is lifted.
pub async fn pauses_are_kept_with_their_note(h: &Harness) {
    let schedule = h.schedule("s").await;
    let (note, by) = (Some("moving".into()), Some("ann".into()));
    let pause = Pause { since: at(1), until: Some(at(99)), note, by, ..Pause::default() };
    let before = h.store.jobs(&[h.job]).await.unwrap().remove(0).unwrap().revision;
    let targets = [
        PauseTarget::Job(h.job),
        PauseTarget::Schedule(schedule),
        PauseTarget::Job(JobId(-1)),
        PauseTarget::Schedule(rota_core::ids::ScheduleId(-1)),
    ];
    let set = h.store.set_pauses(&h.write(at(1)), &targets, Some(&pause)).await.unwrap();
    assert_eq!(set, [true, true, false, false]);
    let job = h.store.jobs(&[h.job]).await.unwrap().remove(0).unwrap();
    assert_eq!(job.pause, Some(pause.clone()));
    assert!(job.revision > before);
    let record = h.store.schedules(&[schedule]).await.unwrap().remove(0).unwrap();
    assert_eq!(record.pause, Some(pause.clone()));
    let lifted = h.store.set_pauses(&h.write(at(2)), &targets, None).await.unwrap();
    assert_eq!(lifted, [true, true, false, false]);
    // It is kept with its end: what it covered is told from what was missed.
    let lifted = Some(Pause { until: Some(at(2)), ..pause });
    assert_eq!(h.store.jobs(&[h.job]).await.unwrap()[0].as_ref().unwrap().pause, lifted);
    assert_eq!(h.store.schedules(&[schedule]).await.unwrap()[0].as_ref().unwrap().pause, lifted);
    let again = h.store.set_pauses(&h.write(at(3)), &targets, None).await.unwrap();
    assert_eq!(again, [false; 4], "nothing is paused any more");
}

/// Whatever is paused, and whoever reads the pause: one that is given another end
/// covers what it has covered, and one after it does not hide it.
pub async fn a_pause_that_is_set_again_forgets_nothing(h: &Harness) {
    let schedule = h.schedule("s").await;
    let targets = [
        PauseTarget::Job(h.job),
        PauseTarget::Schedule(schedule),
        PauseTarget::Tenant(h.tenant),
        PauseTarget::Queue(h.tenant, "default".into()),
    ];
    let pause = |since, until: Option<i64>| Pause { since: at(since), until: until.map(at), ..Pause::default() };
    for (set, spans) in [
        (pause(10, None), vec![(10, None)]),
        (pause(20, Some(30)), vec![(10, Some(30))]),
        (pause(50, Some(60)), vec![(10, Some(30)), (50, Some(60))]),
    ] {
        let done = h.store.set_pauses(&h.write(set.since), &targets, Some(&set)).await.unwrap();
        assert_eq!(done, [true; 4]);
        let wide = h.store.pauses().await.unwrap().pauses;
        let job = h.store.jobs(&[h.job]).await.unwrap().remove(0).unwrap().pause;
        let own = h.store.schedules(&[schedule]).await.unwrap().remove(0).unwrap().pause;
        assert_eq!(wide.len(), 2);
        let expected: Vec<_> = spans.into_iter().map(|(since, until)| (at(since), until.map(at))).collect();
        for stored in wide.into_iter().map(|(_, pause)| pause).chain(job).chain(own) {
            let spans: Vec<_> = stored.spans().map(|span| (span.since, span.until)).collect();
            assert_eq!(spans, expected);
        }
    }
}

/// Whoever asks first what a pause or a resume would do is told what it does, those that
/// it would leave alone included, and has changed nothing.
pub async fn a_pause_in_a_dry_run_answers_as_the_act_and_pauses_nothing(h: &Harness) {
    let schedule = h.schedule("s").await;
    let targets = [PauseTarget::Job(h.job), PauseTarget::Schedule(schedule), PauseTarget::Job(JobId(-1))];
    let stored = async || {
        let job = h.store.jobs(&[h.job]).await.unwrap().remove(0).unwrap();
        let own = h.store.schedules(&[schedule]).await.unwrap().remove(0).unwrap();
        (job.pause, job.revision, own.pause, own.revision)
    };
    let pause = Pause { since: at(1), until: Some(at(99)), ..Pause::default() };
    for (now, wish) in [(at(1), Some(&pause)), (at(2), None), (at(3), None)] {
        let before = stored().await;
        let dry = Write { dry_run: true, ..h.write(now) };
        let would = h.store.set_pauses(&dry, &targets, wish).await.unwrap();
        assert_eq!(stored().await, before);
        assert_eq!(h.store.set_pauses(&h.write(now), &targets, wish).await.unwrap(), would, "{wish:?}");
        assert_eq!(would[..2] == [true, true], stored().await != before, "{wish:?}");
    }
    assert_eq!(stored().await.0, Some(Pause { until: Some(at(2)), ..pause }));
}

/// A schedule that sleeps because of its own pause, or its job's, must not sleep on
/// when that is changed, whoever dies afterwards.
pub async fn a_change_of_a_pause_wakes_what_it_holds(h: &Harness) {
    let asleep = Cursor { due_at: at(3_600_000), ..cursor(at(5), 3) };
    let mut put = h.schedule_put("s").await;
    put.stored = armed(Some(asleep));
    h.save_schedule(&put, at(0)).await;
    let other = SchedulePut { job: h.job("other").await, ..h.schedule_put("other").await };
    h.save_schedule(&SchedulePut { stored: armed(Some(asleep)), ..other.clone() }, at(0)).await;
    let pause = Pause { since: at(1), ..Pause::default() };
    for target in [PauseTarget::Schedule(put.id), PauseTarget::Job(h.job)] {
        for pause in [Some(&pause), Some(&pause), None] {
            let due = h.store.cursors(&[put.id]).await.unwrap()[0].unwrap();
            h.store.wake_at(&h.write(at(2)), &[(due, Some(asleep.due_at))]).await.unwrap();
            let done = h.store.set_pauses(&h.write(at(2)), std::slice::from_ref(&target), pause).await.unwrap();
            assert_eq!(done, [true]);
            assert_eq!(h.cursors(&[put.id]).await, [Some(cursor(at(5), 3))], "{target:?} {pause:?}");
            let record = h.store.schedules(&[put.id]).await.unwrap().remove(0).unwrap();
            assert_eq!(h.store.cursors(&[put.id]).await.unwrap()[0].unwrap().revision, record.revision);
        }
    }
    assert_eq!(h.cursors(&[other.id]).await, [Some(asleep)], "others sleep on");
}

/// Tenants are saved by name; a new tier takes effect, the id stays.
pub async fn tenants_are_saved_by_name(h: &Harness) {
    let put = |tier, quotas: Option<&str>| TenantPut { name: "t".into(), tier, quotas: quotas.map(Into::into) };
    let first = h.store.put_tenants(&[put(Tier::Free, None)], at(0)).await.unwrap();
    let again = h.store.put_tenants(&[put(Tier::Pro, Some("{\"x\":1}"))], at(1)).await.unwrap();
    assert_eq!(first, again);
    let tenants = h.store.tenants().await.unwrap();
    let tenant = tenants.iter().find(|tenant| tenant.id == first[0]).unwrap();
    assert_eq!((tenant.name.as_str(), tenant.tier, tenant.quotas.as_deref()), ("t", Tier::Pro, Some("{\"x\":1}")));
    let two = [put(Tier::Free, None), TenantPut { name: "u".into(), tier: Tier::Free, quotas: None }];
    let ids = h.store.put_tenants(&two, at(2)).await.unwrap();
    assert_eq!(ids[0], first[0]);
    assert_ne!(ids[1], first[0]);
}

/// A lane keeps its mode for ever, so no run is both owned and claimed.
pub async fn a_lane_keeps_its_mode(h: &Harness) {
    let key = LaneKey::new("q", Some("f"), &["gpu".into(), "arm".into(), "gpu".into()]);
    let first = h.store.lanes(std::slice::from_ref(&key), LaneMode::Owned).await.unwrap().remove(0);
    assert_eq!((first.mode, first.retired, &first.key), (LaneMode::Owned, false, &key));
    let again = h.store.lanes(&[key.clone(), key.clone()], LaneMode::Claimed).await.unwrap();
    assert_eq!(again, [first.clone(), first.clone()], "asked with another mode it is still the same lane");
    let second = h.second().await;
    assert_eq!(second.lanes(&[key], LaneMode::Owned).await.unwrap(), [first]);
}

/// Nodes that meet a new queue at once agree on one lane.
pub async fn racing_makers_of_one_lane_agree(h: &Harness) {
    let second = h.second().await;
    for n in 0..5 {
        let key = [LaneKey::new(&format!("q{n}"), None, &[])];
        let both = tokio::join!(h.store.lanes(&key, LaneMode::Owned), second.lanes(&key, LaneMode::Claimed));
        assert_eq!(both.0.unwrap(), both.1.unwrap());
    }
}

/// Calendars are named objects of a tenant.
pub async fn calendars_are_saved_by_name(h: &Harness) {
    let put = |spec: &str| CalendarPut { tenant: h.tenant, name: "holidays".into(), spec: spec.into() };
    h.store.put_calendars(&[put("{\"v\":1}")], at(0)).await.unwrap();
    let first = h.store.calendars(h.tenant).await.unwrap();
    h.store.put_calendars(&[put("{\"v\":2}")], at(1)).await.unwrap();
    let second = h.store.calendars(h.tenant).await.unwrap();
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_eq!(second[0].spec, "{\"v\":2}");
    assert!(second[0].revision > first[0].revision);
    assert_eq!(h.store.calendars(TenantId(-1)).await.unwrap(), []);
}

/// What a job's check says is what saving it does, and nothing is saved.
pub async fn a_job_that_is_saved_in_a_dry_run_is_not_there(h: &Harness) {
    let dry = |now| Write { dry_run: true, ..h.write(now) };
    let new = h.job_put("new", "{}");
    let answers = h.store.put_jobs(&dry(at(0)), std::slice::from_ref(&new)).await.unwrap();
    assert!(matches!(answers[..], [JobSaved::Saved { version: 1, changed: true, .. }]), "{answers:?}");
    assert_eq!(h.store.find_jobs(&[(h.tenant, "new".into())]).await.unwrap(), [None]);
    let late = JobPut { expect: Expect::Nothing, ..new.clone() };
    h.save(new, at(1)).await;
    let answers = h.store.put_jobs(&dry(at(2)), &[late]).await.unwrap();
    assert_eq!(answers, [JobSaved::Conflict { version: Some(1) }]);
}
