//! Databases as released schemas left them: today's code migrates, reads and goes on with
//! each.
//!
//! `tests/frozen/<schema>` holds a sample in the form of either store and what was in it.
//! A sample is taken once, when its schema is released, and never changed: see
//! `scripts/freeze`. What is read of it is written down field by field, and a field that came
//! later only where it is there, so that it changes nothing here.

use std::{fmt::Write as _, path::PathBuf};

use jiff::Timestamp;
use rota_core::{
    access::{Permission, Role, SecretDigest},
    dispatch::{Pair, Share, Window},
    duration::Span,
    fire::{SkipRange, SkipReason},
    ids::{AuditId, Partition, TokenId, UserId},
    job::{After, AfterEnd, Match},
    order::OrderKey,
    rate::Rate,
    run::{NewRun, Parent, Run, RunState, Source, Status, Trigger, UniqueAsk},
    slot::UniqueKey,
    store::{
        AuditEntry, AuditQuery, CalendarPut, Claim, Enqueued, FireItem, Fired, FollowEnds, Guarded, JobPut, JobQuery,
        LogChunk, LogQuery, Pause, PauseTarget, RunQuery, SchedulePut, ScheduleQuery, Session, TenantPut, Tier, Token,
        TokenAsk, TokenQuery, UserPut, UserQuery, UserWish, WorkerBeat, WorkerInfo,
    },
    trace::TraceParent,
};

use crate::{dead::dies, harness::*, play, upkeep::tend_all};

const DAY: i64 = 86_400_000;
/// When the sample is taken: after everything that was done to it.
const TAKEN: i64 = 3 * DAY;

/// The schemas that have a sample.
pub const SCHEMAS: &[i64] = &[18, 19];

/// Where the samples are.
pub fn folder(schema: i64) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/frozen/{schema:04}"))
}

/// Tables of which a sample has no row, and why.
const EMPTY: &[&str] = &[
    // Cleared by whoever changes them, before a sample can be taken.
    "going",
    "log_kept",
    "unreadable",
];

/// Something of everything that a store can hold.
async fn fill(h: &Harness) {
    play::some(h, 7, 240).await;
    // Ends that another job waits for.
    let after = After { jobs: vec!["report".into()], matching: Some(Match::Any), on: Some(AfterEnd::Succeeded) };
    h.save(JobPut { after: Some(after), ..h.job_put("then", "{\"then\":1}") }, at(DAY)).await;
    let run = leased(h, at(DAY)).await;
    h.store.append_logs(&[log(&run, 1), log(&run, 2)]).await.unwrap();
    h.succeed(&run, at(DAY + 10)).await;
    // A failure that was dealt with, and one that was not.
    let mut ended = Vec::new();
    for _ in 0..2 {
        let run = leased(h, at(DAY + 20)).await;
        h.settle(&run, broken(), at(DAY + 30)).await;
        ended.push(run.id);
    }
    h.store.discard(&ended[..1], "ann", at(DAY + 40)).await.unwrap();
    tend_all(h, at(2 * DAY)).await;
    let dead = leased(h, at(2 * DAY)).await;
    assert_eq!(h.settle_all(&[dies(&dead, 2 * DAY + 1)], at(2 * DAY + 1)).await.answers, [Guarded::Applied]);
    fill_definitions(h).await;
    fill_access(h).await;
    let parent = leased(h, at(TAKEN - 100)).await.id;
    let parent = Some(Parent { run: parent, step: 1, item: Some(40_000) });
    h.make(NewRun { parent, ready_at: at(TAKEN - 90), ..h.new_run(h.claimed) }, at(TAKEN - 90)).await;
    h.store.enqueue(&h.write_keyed("asked", 1, at(TAKEN - 50), at(9 * DAY)), &[keyed(h)], &[]).await.unwrap();
    h.place.put_inbox(at(TAKEN), "{}").await;
}

/// A run in a worker's hands, and whatever else was ready.
async fn leased(h: &Harness, now: Timestamp) -> Run {
    let id = h.make(NewRun { ready_at: now, ..h.new_run(h.claimed) }, now).await;
    let claimed = h.claim(h.worker(), 1_000, now).await;
    claimed.into_iter().find(|run| run.id == id).unwrap()
}

fn keyed(h: &Harness) -> NewRun {
    let labels = [("scope".to_owned(), "user".to_owned())].into_iter().collect();
    let unique = Some(UniqueAsk { key: UniqueKey(77), until: at(9 * DAY) });
    let traceparent = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let trigger = Trigger { traceparent, ..Trigger::plain(Source::Api) };
    NewRun { labels, unique, trigger, payload: Some("{\"a\":1}".into()), ready_at: at(TAKEN), ..h.new_run(h.owned) }
}

fn log(run: &Run, seq: i32) -> LogChunk {
    LogChunk { run: run.id, attempt: 1, seq, at: at(DAY + i64::from(seq)), lines: format!("{{\"n\":{seq}}}\n") }
}

async fn fill_definitions(h: &Harness) {
    h.save(h.job_put("report", "{\"v\":2}"), at(DAY + 100)).await;
    let put = TenantPut { name: "small".into(), tier: Tier::Free, quotas: Some("{\"payload\":\"2 KB\"}".into()) };
    h.store.put_tenants(&[put], at(DAY)).await.unwrap();
    let calendar = CalendarPut { tenant: h.tenant, name: "holidays".into(), spec: "{\"dates\":[]}".into() };
    h.store.put_calendars(&[calendar], at(DAY)).await.unwrap();
    let daily = h.schedule_put("daily").await;
    h.save_schedule(&daily, at(DAY)).await;
    let skips = vec![SkipRange { from: at(DAY), to: at(DAY + 60_000), count: 2, reason: SkipReason::Edited }];
    let stored = armed(Some(cursor(at(TAKEN + 5), 3)));
    let guard = h.store.schedules(&[daily.id]).await.unwrap()[0].as_ref().unwrap().guard(daily.stored.cursor);
    let edited = SchedulePut { skips, stored, guard: Some(guard), ..daily };
    h.save_schedule(&edited, at(DAY + 1)).await;
    let pause = Pause { since: at(DAY), note: Some("moving".into()), by: Some("ann".into()), ..Pause::default() };
    let targets = [PauseTarget::Queue(h.tenant, "slow".into()), PauseTarget::Schedule(edited.id)];
    h.store.set_pauses(&h.write(at(DAY + 2)), &targets, Some(&pause)).await.unwrap();
    h.save(h.job_put("gone", "{}"), at(DAY)).await;
    let gone = h.store.find_jobs(&[(h.tenant, "gone".into())]).await.unwrap()[0].as_ref().unwrap().id;
    h.store.delete_jobs(&h.write(at(DAY + 3)), &[deletion(gone)]).await.unwrap();
    let rate = Rate { runs: 10, per: Span::secs(1) };
    let ask = TokenAsk { key: "rate".into(), rate, want: 4, ahead: false };
    h.store.take_tokens(&[ask], at(TAKEN)).await.unwrap();
    let info = WorkerInfo { handlers: vec!["mail".into()], slots: 4, ..WorkerInfo::default() };
    let (worker, tenant) = (h.worker(), Some(h.tenant));
    let beat = WorkerBeat { worker, tenant, name: "w".into(), info, until: at(TAKEN + 9), draining: false };
    h.store.beat_workers(&[beat], at(TAKEN)).await.unwrap();
}

async fn fill_access(h: &Harness) {
    let token = Token {
        id: TokenId(h.run_id().0),
        tenant: h.tenant,
        installation: false,
        name: "ci".into(),
        digest: SecretDigest::of("ci"),
        permissions: [Permission::JobRead, Permission::RunCancel].into_iter().collect(),
        created_at: at(DAY),
        created_by: "ann".into(),
        expires_at: Some(at(90 * DAY)),
        revoked_at: None,
        last_used_at: None,
    };
    h.store.put_tokens(&[token]).await.unwrap();
    let user = UserPut {
        id: UserId(h.run_id().0),
        tenant: h.tenant,
        name: "ann".into(),
        role: Role::Operator,
        installation: false,
        password: Some("$argon2id$".into()),
        wish: UserWish::New,
    };
    h.store.put_users(std::slice::from_ref(&user), at(DAY)).await.unwrap();
    let (digest, created_at, expires_at) = (SecretDigest::of("session"), at(DAY), at(90 * DAY));
    h.store.put_sessions(&[Session { digest, user: user.id, created_at, expires_at }]).await.unwrap();
    let entry = AuditEntry {
        id: AuditId(h.run_id().0),
        at: at(DAY),
        tenant: h.tenant,
        who: "ann".into(),
        action: "job.save".into(),
        object: "job/report".into(),
        before: None,
        after: Some("{}".into()),
        address: Some("10.0.0.7".into()),
    };
    h.store.append_audit(&[entry]).await.unwrap();
}

/// What is in a store, in an order and a form that do not change with the release.
async fn inventory(h: &Harness) -> String {
    let mut text = String::new();
    runs(h, &mut text).await;
    definitions(h, &mut text).await;
    access(h, &mut text).await;
    text
}

async fn runs(h: &Harness, text: &mut String) {
    for record in h.list(RunQuery { limit: 100, ..Default::default() }).await {
        let run = &record.run;
        let end = match &run.state {
            RunState::Finished { at, verdict } => format!("{verdict} at {at}"),
            state => format!("{:?}", state.status()),
        };
        let failure = record.failure.as_ref().map(|failure| format!("{}: {}", failure.kind, failure.message));
        writeln!(
            text,
            "run {} part {} v{} {end}, created {}, started {:?}, fence {}, attempt {}, losses {}, priority {}, \
             trail {}, failure {failure:?}, output {:?}, labels {:?}, payload {:?}",
            run.id,
            run.part.0,
            run.version,
            run.created_at,
            record.started_at.map(|at| at.to_string()),
            run.fence.0,
            run.attempts_used,
            run.losses,
            run.priority.get(),
            record.trail.len(),
            record.output,
            run.labels,
            run.payload,
        )
        .unwrap();
        let (first, item) = (run.first_started_at, run.parent.and_then(|parent| parent.item));
        if let Some(first) = first {
            writeln!(text, "  first started {first}").unwrap();
        }
        if let Some(item) = item {
            writeln!(text, "  item {item}").unwrap();
        }
        if let Some(trace) = run.trigger.traceparent {
            writeln!(text, "  traceparent {trace}").unwrap();
        }
        let query = LogQuery { run: run.id, attempt: None, after: None, limit: 100 };
        for chunk in h.store.logs(&query).await.unwrap() {
            writeln!(text, "  log {}/{} at {}: {:?}", chunk.attempt, chunk.seq, chunk.at, chunk.lines).unwrap();
        }
    }
    let open = h.store.open_dead(1_000).await.unwrap();
    writeln!(text, "open dead letters {}, the oldest {:?}", open.count, open.oldest_at.map(|at| at.to_string()))
        .unwrap();
    let ends = h.store.job_ends(100).await.unwrap().ends;
    for end in ends {
        writeln!(text, "end of {} run {} {} at {}", end.upstream, end.run, end.verdict, end.at).unwrap();
    }
}

async fn definitions(h: &Harness, text: &mut String) {
    for tenant in h.store.tenants().await.unwrap() {
        let Ok(tier) = serde_json::to_string(&tenant.tier) else { continue };
        writeln!(text, "tenant {} tier {tier} quotas {:?}", tenant.name, tenant.quotas).unwrap();
        for calendar in h.store.calendars(tenant.id).await.unwrap() {
            writeln!(text, "  calendar {} {}", calendar.name, calendar.spec).unwrap();
        }
    }
    for job in h.store.list_jobs(&JobQuery { limit: 100, ..Default::default() }).await.unwrap().jobs {
        let (note, enabled) = (job.pause.as_ref().and_then(|pause| pause.note.clone()), job.enabled);
        writeln!(
            text,
            "job {} v{} {} tags {:?} enabled {enabled} pause {note:?}",
            job.name, job.version, job.document, job.tags
        )
        .unwrap();
        for version in h.store.job_versions(job.id, 10).await.unwrap() {
            writeln!(text, "  version {} {} at {} by {:?}", version.version, version.document, version.at, version.by)
                .unwrap();
        }
        let query = ScheduleQuery { job: Some(job.id), limit: 100, ..Default::default() };
        for schedule in h.store.list_schedules(&query).await.unwrap().schedules {
            let cursor = h.cursors(&[schedule.id]).await.remove(0);
            let cursor = cursor.map(|cursor| format!("{} fired {}", cursor.planned_at, cursor.fired));
            let note = schedule.pause.as_ref().and_then(|pause| pause.note.clone());
            let armed = schedule.armed_by.is_some();
            writeln!(text, "  schedule {} {} {cursor:?} waits {armed} pause {note:?}", schedule.name, schedule.spec)
                .unwrap();
            for skip in h.store.skips(schedule.id, None, 10).await.unwrap() {
                let range = skip.range;
                writeln!(text, "    skip {} to {} count {} {}", range.from, range.to, range.count, range.reason)
                    .unwrap();
            }
        }
    }
    for (target, pause) in h.store.pauses().await.unwrap().pauses {
        let what = match target {
            PauseTarget::Queue(_, name) => format!("queue {name}"),
            PauseTarget::Tenant(_) => "tenant".into(),
            PauseTarget::Job(_) | PauseTarget::Schedule(_) => "a definition".into(),
        };
        writeln!(text, "pause of {what} since {} {:?} by {:?}", pause.since, pause.note, pause.by).unwrap();
    }
    for lane in h.store.all_lanes().await.unwrap() {
        writeln!(text, "lane {} {:?} {:?}", lane.key.queue, lane.key.handler, lane.mode).unwrap();
    }
}

async fn access(h: &Harness, text: &mut String) {
    let token = h.store.find_tokens(&[SecretDigest::of("ci")]).await.unwrap().remove(0).unwrap();
    let listed = h.store.list_tokens(&TokenQuery { tenant: h.tenant, after: None, limit: 10 }).await;
    assert_eq!(listed.unwrap().tokens.len(), 1);
    let permissions = token.permissions;
    writeln!(
        text,
        "token {} {permissions:?} by {} until {:?}",
        token.name,
        token.created_by,
        token.expires_at.map(|at| at.to_string())
    )
    .unwrap();
    for user in h.store.list_users(&UserQuery { tenant: h.tenant, after: None, limit: 10 }).await.unwrap().users {
        writeln!(text, "user {} {} {:?}", user.name, user.role, user.password).unwrap();
    }
    let session = h.store.find_sessions(&[SecretDigest::of("session")]).await.unwrap().remove(0).unwrap();
    writeln!(text, "session of {}", session.1.name).unwrap();
    for entry in h.store.list_audit(&AuditQuery::of(h.tenant, 10)).await.unwrap().entries {
        writeln!(text, "audit {} {} {} {:?} {:?}", entry.at, entry.who, entry.action, entry.after, entry.address)
            .unwrap();
    }
}

/// Everything that lives comes to its end, and every schedule that is due fires.
async fn goes_on(h: &Harness) {
    let mut now = at(TAKEN + 3_600_000);
    let owner = h.owner(now).await;
    let due = h.store.due(&owner.parts(), now, 100).await.unwrap();
    assert!(!due.is_empty(), "a schedule is due");
    for (n, due) in due.into_iter().enumerate() {
        let schedule = h.store.schedules(&[due.schedule]).await.unwrap().remove(0).unwrap();
        let job = h.store.jobs(&[schedule.job]).await.unwrap().remove(0).unwrap();
        let after = schedule.spec.contains("after_finish");
        let item = FireItem {
            due,
            job: schedule.job,
            job_revision: job.revision,
            next: (!after).then(|| cursor(plus(now, 86_400_000), due.cursor.fired + 1)),
            next_if_refused: None,
            runs: vec![NewRun { rearms: after, ready_at: now, part: Partition(n as u8), ..h.new_run(h.owned) }],
            skips: Vec::new(),
            cancel: Vec::new(),
            cancel_ask: None,
        };
        let pauses = h.store.pauses().await.unwrap().revision;
        let fired = h.store.fire(&h.write_of(owner.node, now), pauses, &[item]).await.unwrap();
        assert!(matches!(fired[0], Fired::Fired(_)), "{fired:?}");
    }
    let asked = h.store.enqueue(&h.write_keyed("asked", 1, now, at(9 * DAY)), &[keyed(h)], &[]).await.unwrap();
    assert!(matches!(asked[..], [Enqueued::Made { .. } | Enqueued::Again { .. }]), "answered as it was: {asked:?}");
    for _ in 0..200 {
        now = plus(now, 10_000);
        if turn(h, &owner, now).await == 0 {
            assert_eq!(h.store.recount_slots(&h.write(now)).await.unwrap(), 0, "slots are free");
            assert!(h.store.open_dead(1_000).await.unwrap().count > 0, "dead letters are still there");
            return;
        }
    }
    panic!("these never end: {:#?}", h.list(live()).await);
}

fn live() -> RunQuery {
    let statuses =
        [Status::Scheduled, Status::Blocked, Status::Queued, Status::Running, Status::Waiting, Status::Cancelling];
    RunQuery { statuses: statuses.to_vec(), limit: 100, ..Default::default() }
}

/// One turn of what the stages of a node do; how many runs live afterwards.
async fn turn(h: &Harness, owner: &Owner, now: Timestamp) -> usize {
    h.reap(now, now).await;
    h.sweep(now).await;
    let write = || h.write_of(owner.node, now);
    h.store.promote(&write(), &owner.parts(), 1_000).await.unwrap();
    for end in h.store.job_ends(100).await.unwrap().ends {
        let job = h.store.jobs(&[end.downstream]).await.unwrap().remove(0).unwrap();
        let runs = vec![NewRun { job: job.id, ready_at: now, ..h.new_run(h.owned) }];
        let (used, held, skips) = (vec![end.run], Vec::new(), Vec::new());
        let item = FollowEnds { downstream: job.id, job_revision: job.revision, used, held, runs, skips };
        h.store.follow_ends(&write(), &[item]).await.unwrap();
    }
    let mut ends = Vec::new();
    let lanes: Vec<_> = h.store.all_lanes().await.unwrap().iter().map(|lane| lane.id).collect();
    let tenants = h.store.tenants().await.unwrap();
    for pair in lanes.iter().flat_map(|lane| tenants.iter().map(|tenant| Pair { lane: *lane, tenant: tenant.id })) {
        if pair.lane == h.claimed {
            let shares = vec![Share { pair, low: OrderKey::MIN, runs: 100 }];
            let claim = Claim { worker: h.worker(), until: plus(now, LEASE_MS), shares, most: 100 };
            let claimed = h.store.claim(&write(), std::slice::from_ref(&claim)).await.unwrap();
            ends.extend(claimed.iter().map(|run| by_lease(run, succeeded(), now)));
        } else {
            let window = Window { pair, after: None, limit: 100 };
            let ready = h.store.own(&owner.parts(), &[window]).await.unwrap().remove(0);
            ends.extend(ready.iter().map(|run| owner.executes(run, succeeded(), now)));
        }
    }
    for run in h.store.inherited(&owner.parts(), 1_000).await.unwrap() {
        ends.push(owner.executes(&run, succeeded(), now));
    }
    h.settle_as(owner, &ends, now).await;
    let lives = h.list(live()).await;
    let parked = lives.iter().filter(|record| matches!(record.run.state, RunState::Waiting { .. }));
    let parked: Vec<_> = parked.map(|record| record.run.id).collect();
    h.store.wake(&write(), &parked).await.unwrap();
    lives.len()
}

/// A sample of today's schema holds something of everything, and both stores hold the same.
/// `ROTA_FREEZE` names the folder where it is left for `scripts/freeze`.
pub async fn a_sample_holds_something_of_everything_and_goes_on(h: &Harness) {
    fill(h).await;
    if let Some(tables) = h.place.rows().await {
        let filled_later = |name: &str| EMPTY.contains(&name) || name.starts_with("history_2");
        let empty: Vec<_> = tables.iter().filter(|(name, rows)| *rows == 0 && !filled_later(name)).collect();
        assert!(empty.is_empty(), "of these a sample has nothing: {empty:?}");
    }
    let inventory = inventory(h).await;
    if let Ok(folder) = std::env::var("ROTA_FREEZE") {
        h.place.freeze(&PathBuf::from(folder), &inventory);
    }
    goes_on(h).await;
}

/// Each database that a release left behind is read as it was written, and lives on.
pub async fn a_database_of_every_schema_is_read_and_goes_on(h: &Harness) {
    for schema in SCHEMAS {
        let Some(frozen) = Harness::open_frozen(h.backend, *schema).await else { return };
        let found = inventory(&frozen).await;
        let expected = std::fs::read_to_string(folder(*schema).join("inventory.txt")).unwrap();
        assert_same_text(&found, &expected, *schema);
        goes_on(&frozen).await;
        frozen.close().await;
    }
}

fn assert_same_text(found: &str, expected: &str, schema: i64) {
    let gone: Vec<_> = expected.lines().filter(|line| !found.lines().any(|other| other == *line)).collect();
    let new: Vec<_> = found.lines().filter(|line| !expected.lines().any(|other| other == *line)).collect();
    assert!(gone.is_empty() && new.is_empty(), "schema {schema}\nwritten: {gone:#?}\nread: {new:#?}");
}
