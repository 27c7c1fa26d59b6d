//! Rows that cannot be read: left out, named, discarded, and in nobody's way.

use rota_core::{
    access::{Permissions, Role, SecretDigest},
    dispatch::{Pair, Window},
    ids::{AuditId, TokenId, UserId},
    ids::{Partition, RunId},
    lane::{LaneKey, LaneMode},
    run::{NewRun, Status, Verdict},
    store::{
        AuditEntry, AuditQuery, CalendarPut, CancelAnswer, Discarded, JobQuery, LogChunk, LogQuery, Pause, PauseTarget,
        RunQuery, SchedulePut, ScheduleQuery, ScheduleSaved, Session, StoreError, TenantPut, Tier, Token, TokenQuery,
        UserPut, UserQuery, UserWish, WorkerBeat, WorkerInfo,
    },
};

use crate::{harness::*, upkeep::tend_all};

/// What may be wrong with a live run's row, as SQL.
const WRONGS: [&str; 4] = ["status = 42", "source = 99", "extra = '{\"labels\": 7'", "cancel = 'asked'"];

async fn spoil(h: &Harness, run: RunId, wrong: &str) {
    assert!(h.place.sql(&format!("UPDATE run SET {wrong} WHERE id = {}", h.place.id(run))).await);
}

/// The live runs that the store names as unreadable.
async fn named(h: &Harness) -> Vec<RunId> {
    let rows = h.store.unreadable().await.unwrap();
    let runs = rows.iter().filter(|row| row.table == "run");
    runs.map(|row| RunId(row.key.parse().unwrap())).collect()
}

/// One worker asks for one run at a time: a row that it is given again and again, or
/// that fails its claim, would stop the whole lane.
pub async fn a_claim_goes_on_beside_an_unreadable_run(h: &Harness) {
    for wrong in WRONGS {
        let runs = h.make_many(h.claimed, 3, at(0)).await;
        spoil(h, runs[0], wrong).await;
        let worker = h.worker();
        let mut claimed = Vec::new();
        for n in 0..4 {
            claimed.extend(h.claim(worker, 1, at(n)).await.into_iter().map(|run| run.id));
        }
        assert_eq!(claimed, runs[1..], "{wrong}");
        h.store.runs(&[runs[0]]).await.unwrap();
        assert!(named(h).await.contains(&runs[0]), "{wrong}");
        h.store.release(&h.write(at(5)), worker).await.unwrap();
        h.claim(h.worker(), 10, at(6)).await;
    }
}

/// The owner of a partition reads its runs in pages and by notices.
pub async fn an_owner_reads_on_beside_an_unreadable_run(h: &Harness) {
    for wrong in WRONGS {
        let runs = h.make_many(h.owned, 3, at(0)).await;
        spoil(h, runs[0], wrong).await;
        let pair = Pair { lane: h.owned, tenant: h.tenant };
        let window = Window { pair, after: None, limit: 10 };
        let parts: Vec<Partition> = all_parts();
        let found = h.store.own(&parts, &[window]).await.unwrap().remove(0);
        let found: Vec<RunId> = found.iter().map(|run| run.id).collect();
        assert!(found.ends_with(&runs[1..]) && !found.contains(&runs[0]), "{wrong}: {found:?}");
        let noticed = h.store.notices(&parts, 100).await.unwrap();
        assert!(noticed.iter().all(|run| run.id != runs[0]), "{wrong}");
        assert!(noticed.iter().any(|run| run.id == runs[1]), "{wrong}");
        assert_eq!(h.cancel(runs[1], at(1)).await, CancelAnswer::Asked);
        assert_eq!(h.cancel(runs[0], at(1)).await, CancelAnswer::NotFound);
    }
}

/// A delayed run whose time has come, and that cannot be read, must neither fail the
/// promotion of the others nor be due for ever.
pub async fn promotion_goes_on_beside_an_unreadable_run(h: &Harness) {
    let owner = h.owner(at(0)).await;
    for (n, wrong) in WRONGS.iter().enumerate() {
        let due = at(1_000 + n as i64);
        let delayed = || NewRun { ready_at: due, ..h.new_run(h.owned) };
        let broken = h.make(delayed(), at(0)).await;
        let sound = h.make(delayed(), at(0)).await;
        spoil(h, broken, wrong).await;
        let promoted = h.store.promote(&h.write_of(owner.node, due), &all_parts(), 100).await.unwrap();
        assert_eq!(promoted.woken.iter().map(|woken| woken.run.id).collect::<Vec<_>>(), [sound], "{wrong}");
        let again = h.store.promote(&h.write_of(owner.node, due), &all_parts(), 100).await.unwrap();
        assert_eq!((again.moved, again.next_at), (0, None), "it is not due for ever: {wrong}");
    }
}

/// A worker that vanished with an unreadable run is still reaped of the others, and is
/// forgotten.
pub async fn reaping_goes_on_beside_an_unreadable_run(h: &Harness) {
    for wrong in ["source = 99", "extra = '{'"] {
        let runs = h.make_many(h.claimed, 2, at(0)).await;
        let worker = h.worker();
        assert_eq!(h.claim(worker, 2, at(0)).await.len(), 2);
        spoil(h, runs[0], wrong).await;
        let gone = at(LEASE_MS + 1);
        let reaped = h.reap(gone, gone).await;
        assert_eq!(reaped.iter().map(|one| one.id).collect::<Vec<_>>(), [runs[1]], "{wrong}");
        assert_eq!(h.reap(gone, gone).await, [], "{wrong}");
        assert!(named(h).await.contains(&runs[0]), "{wrong}");
    }
}

/// Expired runs are swept although one beside them cannot be read.
pub async fn sweeping_goes_on_beside_an_unreadable_run(h: &Harness) {
    let short = || NewRun { expires_at: Some(at(10)), ..h.new_run(h.claimed) };
    let broken = h.make(short(), at(0)).await;
    let sound = h.make(short(), at(0)).await;
    spoil(h, broken, "extra = '{'").await;
    let swept = h.sweep(at(20)).await;
    assert_eq!(swept.iter().map(|one| one.id).collect::<Vec<_>>(), [sound]);
    assert_eq!(h.status(sound).await, Status::Ended(Verdict::Expired));
    assert_eq!(h.sweep(at(21)).await, []);
}

/// A run that cannot be read must not hold its slot against those who wait for it, and
/// its discard must leave the counters right.
pub async fn an_unreadable_run_gives_its_slot_back(h: &Harness) {
    let holder = h.make(h.keyed(7, 1), at(0)).await;
    let waiting = h.make(h.keyed(7, 1), at(0)).await;
    assert_eq!(h.status(waiting).await, Status::Blocked);
    spoil(h, holder, "extra = 'x'").await;
    assert_eq!(h.store.runs(&[holder]).await.unwrap(), [None]);
    assert_eq!(named(h).await, [holder]);
    h.store.recount_slots(&h.write(at(1))).await.unwrap();
    assert_eq!(h.status(waiting).await, Status::Queued, "who waited has the slot");
    assert_eq!(h.store.discard_row("run", &holder.to_string()).await.unwrap(), Discarded::Gone);
    assert_eq!(h.store.recount_slots(&h.write(at(2))).await.unwrap(), 0, "nothing is left to put right");
    assert_eq!(named(h).await, []);
    assert_eq!(h.store.discard_row("run", &holder.to_string()).await.unwrap(), Discarded::NotFound);
}

/// Only what cannot be read is discarded: the command must not be a way to delete runs.
pub async fn a_readable_run_is_not_discarded(h: &Harness) {
    let run = h.make(h.new_run(h.claimed), at(0)).await;
    assert_eq!(h.store.discard_row("run", &run.to_string()).await.unwrap(), Discarded::NotFound);
    assert_eq!(h.store.discard_row("run", "nonsense").await.unwrap(), Discarded::NotFound);
    assert_eq!(h.status(run).await, Status::Queued);
}

/// Whoever is to decide about a row has to see what is in it.
pub async fn an_unreadable_run_is_shown_as_it_is_stored(h: &Harness) {
    let run = h.make(h.new_run(h.claimed), at(0)).await;
    spoil(h, run, "extra = 'nonsense'").await;
    assert_eq!(h.store.runs(&[run]).await.unwrap(), [None]);
    let row = h.store.raw_row("run", &run.to_string()).await.unwrap().unwrap();
    assert_eq!((row["extra"].as_str(), row["id"].as_str()), (Some("nonsense"), Some(run.to_string().as_str())));
    assert_eq!(h.store.raw_row("run", &h.run_id().to_string()).await.unwrap(), None);
    let reason = &h.store.unreadable().await.unwrap()[0].reason;
    assert!(reason.contains("a run's extra"), "it says what is wrong: {reason}");
}

/// A page of runs goes on past live and ended ones that cannot be read, and says where
/// the next page begins.
pub async fn lists_of_runs_go_on_past_unreadable_ones(h: &Harness) {
    let mut ended = Vec::new();
    for n in 1..5 {
        let (_, run) = h.leased(at(n)).await;
        h.succeed(&run, at(n)).await;
        ended.push(run.id);
    }
    let live = h.make_many(h.claimed, 5, at(5)).await;
    spoil(h, live[0], "status = 42").await;
    let history = format!("WHERE id = {}", h.place.id(ended[1]));
    spoil_history(h, &format!("SET failure = 'nonsense' {history}")).await;
    let (mut seen, mut after) = (Vec::new(), None);
    for _ in 0..20 {
        let query = RunQuery { limit: 1, after, now: Some(at(10)), ..RunQuery::default() };
        let page = h.store.list_runs(&query).await.unwrap();
        seen.extend(page.runs.iter().map(|record| record.run.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    seen.sort_unstable();
    let mut expected: Vec<RunId> = live[1..].iter().chain(&ended).copied().filter(|id| *id != ended[1]).collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
    assert_eq!(h.store.runs(&[ended[1]]).await.unwrap(), [None]);
    let rows = h.store.unreadable().await.unwrap();
    assert!(rows.iter().any(|row| row.table == "history" && row.key == ended[1].to_string()), "{rows:?}");
    let row = h.store.raw_row("history", &ended[1].to_string()).await.unwrap().unwrap();
    assert_eq!(row["failure"], "nonsense");
}

async fn spoil_history(h: &Harness, change: &str) {
    let table = match h.backend {
        Backend::Postgres => "history".to_owned(),
        Backend::SqliteMemory | Backend::SqliteFile => {
            format!("history_{}", at(0).as_microsecond().div_euclid(86_400_000_000))
        }
    };
    assert!(h.place.sql(&format!("UPDATE {table} {change}")).await);
}

/// One broken definition must not hide the others, on whichever page they are.
pub async fn lists_of_definitions_go_on_past_unreadable_ones(h: &Harness) {
    let second = h.job("second").await;
    let third = h.job("third").await;
    let schedules = [h.schedule("a").await, h.schedule("b").await, h.schedule("c").await];
    assert!(h.place.sql(&format!("UPDATE job SET pause = 'x' WHERE id = {}", second.0)).await);
    assert!(h.place.sql(&format!("UPDATE schedule SET pause = 'x' WHERE id = {}", schedules[1].0)).await);
    let (mut jobs, mut after) = (Vec::new(), None);
    loop {
        let page = h.store.list_jobs(&JobQuery { limit: 1, after, ..JobQuery::default() }).await.unwrap();
        jobs.extend(page.jobs.iter().map(|job| job.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(jobs, [h.job, third]);
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let query = ScheduleQuery { limit: 1, after, ..ScheduleQuery::default() };
        let page = h.store.list_schedules(&query).await.unwrap();
        found.extend(page.schedules.iter().map(|schedule| schedule.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, [schedules[0], schedules[2]]);
    assert_eq!(
        h.store.jobs(&[second, third]).await.unwrap().iter().map(Option::is_some).collect::<Vec<_>>(),
        [false, true]
    );
    let read = h.store.schedules(&schedules).await.unwrap();
    assert_eq!(read.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
    let rows = h.store.unreadable().await.unwrap();
    let names: Vec<(&str, String)> = rows.iter().map(|row| (row.table.as_str(), row.key.clone())).collect();
    assert_eq!(names, [("job", second.0.to_string()), ("schedule", schedules[1].0.to_string())]);
}

/// The rows of a table that the store names as unreadable.
async fn named_in(h: &Harness, table: &str) -> Vec<String> {
    let rows = h.store.unreadable().await.unwrap();
    rows.into_iter().filter(|row| row.table == table).map(|row| row.key).collect()
}

/// An instant that no clock shows.
const NO_TIME: i64 = i64::MAX - 1;

/// The scanner goes through all cursors, and firing through those that are due: one that
/// cannot be read must stop neither, and must not keep its schedule from being armed anew.
pub async fn a_schedule_with_an_unreadable_cursor_is_armed_anew(h: &Harness) {
    let mut wrongs = vec![
        format!("planned_at = {NO_TIME}"),
        format!("due_at = {NO_TIME}, planned_at = {NO_TIME}"),
        format!("due_at = {}", i64::MIN),
    ];
    if h.backend != Backend::Postgres {
        wrongs.extend(["planned_at", "due_at", "fired", "revision"].map(|column| format!("{column} = 'x'")));
    }
    for wrong in wrongs {
        let [broken, sound] = [h.schedule("broken").await, h.schedule("sound").await];
        let spoil = async || h.place.sql(&format!("UPDATE cursor SET {wrong} WHERE schedule = {}", broken.0)).await;
        assert!(spoil().await);
        let due = h.store.due(&all_parts(), at(0), 10).await.unwrap();
        assert_eq!(due.iter().map(|due| due.schedule).collect::<Vec<_>>(), [sound], "{wrong}");
        let page = h.store.review(&all_parts(), None, 100).await.unwrap();
        assert_eq!(page.schedules, [broken], "{wrong}");
        assert_eq!(h.cursors(&[broken, sound]).await, [None, Some(cursor(at(0), 0))], "{wrong}");
        assert_eq!(named_in(h, "cursor").await, [broken.0.to_string()], "{wrong}");

        let record = h.store.schedules(&[broken]).await.unwrap().remove(0).unwrap();
        let put = SchedulePut::moving(record, None, Some(cursor(at(60_000), 0)));
        assert_eq!(h.save_schedule(&put, at(1)).await, ScheduleSaved::Saved { revision: 2 }, "{wrong}");
        assert_eq!(h.cursors(&[broken]).await, [Some(cursor(at(60_000), 0))], "{wrong}");
        assert_eq!(named_in(h, "cursor").await, Vec::<String>::new(), "it can be read by now: {wrong}");

        assert!(spoil().await);
        h.end_schedules(&[broken, sound], at(2)).await;
        let page = h.store.review(&all_parts(), None, 100).await.unwrap();
        assert_eq!(page.schedules, [], "no cursor is left behind: {wrong}");
    }
}

/// One broken column of a schedule must not keep the scanner from the others, nor whoever
/// pauses or deletes several at once.
pub async fn an_unreadable_schedule_is_in_nobodys_way(h: &Harness) {
    let mut wrongs = vec!["pause = 'x'".to_owned(), format!("decided_to = {NO_TIME}")];
    if h.backend != Backend::Postgres {
        wrongs.push("revision = 'x'".to_owned());
    }
    for wrong in wrongs {
        let [broken, sound] = [h.schedule("broken").await, h.schedule("sound").await];
        assert!(h.place.sql(&format!("UPDATE schedule SET {wrong} WHERE id = {}", broken.0)).await);
        h.store.review(&all_parts(), None, 100).await.unwrap();
        let pause = Pause { since: at(0), ..Pause::default() };
        let targets = [broken, sound].map(PauseTarget::Schedule);
        let paused = h.store.set_pauses(&h.write(at(1)), &targets, Some(&pause)).await.unwrap();
        assert!(paused[1], "{wrong}");
        h.end_schedules(&[broken, sound], at(2)).await;
        assert_eq!(h.cursors(&[broken, sound]).await, [None, None], "{wrong}");
        assert!(h.place.sql(&format!("DELETE FROM schedule WHERE id = {}", broken.0)).await);
    }
}

/// A status that no version has written, or that is not even a number, cannot have 100 added
/// to it and taken away again: it stays as it is, and the run can still be discarded.
pub async fn a_run_of_a_broken_status_is_left_as_it_is(h: &Harness) {
    let mut statuses = vec![("-5", serde_json::json!(-5))];
    if h.backend != Backend::Postgres {
        statuses.push(("'x'", serde_json::json!("x")));
    }
    for (sql, shown) in statuses {
        let run = h.make(h.new_run(h.claimed), at(0)).await;
        spoil(h, run, &format!("status = {sql}")).await;
        for _ in 0..2 {
            assert_eq!(h.store.runs(&[run]).await.unwrap(), [None]);
            assert_eq!(named(h).await, [run], "{sql}");
        }
        assert_eq!(h.claim(h.worker(), 1, at(1)).await, [], "{sql}");
        let row = h.store.raw_row("run", &run.to_string()).await.unwrap().unwrap();
        assert_eq!(row["status"], shown);
        assert_eq!(h.store.discard_row("run", &run.to_string()).await.unwrap(), Discarded::Gone);
        assert_eq!(named(h).await, [], "{sql}");
    }
}

/// Whoever repairs a row puts it back by subtracting 100 from its status, however often it was
/// met meanwhile.
pub async fn setting_a_run_aside_adds_100_to_its_status_once(h: &Harness) {
    let mut wrongs = vec!["source = 99"];
    if h.backend != Backend::Postgres {
        wrongs.push("attempt = 'x'");
    }
    for wrong in wrongs {
        let run = h.make(h.new_run(h.claimed), at(0)).await;
        spoil(h, run, wrong).await;
        for _ in 0..3 {
            assert_eq!(h.store.runs(&[run]).await.unwrap(), [None]);
            assert_eq!(named(h).await, [run], "{wrong}");
        }
        let row = h.store.raw_row("run", &run.to_string()).await.unwrap().unwrap();
        assert_eq!(row["status"], 102, "{wrong}");
        spoil(h, run, "status = status - 100, source = 1, attempt = 0").await;
        assert_eq!(h.claim(h.worker(), 1, at(1)).await.iter().map(|run| run.id).collect::<Vec<_>>(), [run], "{wrong}");
    }
}

/// In a rolling upgrade a newer node may write a status that this one does not know. To
/// set the run aside would take it from the node that knows what to do with it.
pub async fn a_run_of_an_unknown_status_is_left_as_it_is(h: &Harness) {
    let run = h.make(h.new_run(h.claimed), at(0)).await;
    spoil(h, run, "status = 7").await;
    for _ in 0..2 {
        assert_eq!(h.store.runs(&[run]).await.unwrap(), [None]);
        assert_eq!(named(h).await, [run]);
    }
    let row = h.store.raw_row("run", &run.to_string()).await.unwrap().unwrap();
    assert_eq!(row["status"], 7, "it is as it was written");
    spoil(h, run, "status = 2").await;
    assert_eq!(named(h).await, [], "it can be read by now");
    assert_eq!(h.claim(h.worker(), 1, at(1)).await.iter().map(|run| run.id).collect::<Vec<_>>(), [run]);
}

/// Every node reads all tenants, lanes, pauses and calendars: one broken row must not keep
/// it from the others.
pub async fn what_every_node_reads_goes_on_past_unreadable_rows(h: &Harness) {
    let put = |name: &str| TenantPut { name: name.to_owned(), tier: Tier::Pro, quotas: None };
    let tenants = h.store.put_tenants(&[put("broken"), put("sound")], at(0)).await.unwrap();
    let tier = if h.backend == Backend::Postgres { "77" } else { "'x'" };
    assert!(h.place.sql(&format!("UPDATE tenant SET tier = {tier} WHERE id = {}", tenants[0].0)).await);
    let found: Vec<_> = h.store.tenants().await.unwrap().into_iter().map(|tenant| tenant.id).collect();
    assert!(!found.contains(&tenants[0]) && found.contains(&tenants[1]));
    assert_eq!(named_in(h, "tenant").await, [tenants[0].0.to_string()]);

    let keys = [LaneKey::new("broken", None, &[]), LaneKey::new("sound", None, &[])];
    let lanes = h.store.lanes(&keys, LaneMode::Owned).await.unwrap();
    assert!(h.place.sql(&format!("UPDATE lane SET mode = 77 WHERE id = {}", lanes[0].id.0)).await);
    let found: Vec<_> = h.store.all_lanes().await.unwrap().into_iter().map(|lane| lane.id).collect();
    assert!(!found.contains(&lanes[0].id) && found.contains(&lanes[1].id));
    assert_eq!(named_in(h, "lane").await, [lanes[0].id.0.to_string()]);
    let again = h.store.lanes(&keys[..1], LaneMode::Owned).await;
    assert!(matches!(again, Err(StoreError::Corrupt(_))), "no second lane in its place: {again:?}");

    let put = |name: &str| CalendarPut { tenant: h.tenant, name: name.to_owned(), spec: "{}".to_owned() };
    h.store.put_calendars(&[put("broken"), put("sound")], at(0)).await.unwrap();
    assert!(h.place.sql("UPDATE calendar SET spec = 'x' WHERE name = 'broken'").await);
    let found: Vec<_> = h.store.calendars(h.tenant).await.unwrap().into_iter().map(|calendar| calendar.name).collect();
    assert_eq!(found, ["sound"]);
    assert_eq!(named_in(h, "calendar").await, [format!("{}/broken", h.tenant)]);

    let queues = ["broken", "sound"].map(|queue| PauseTarget::Queue(h.tenant, queue.to_owned()));
    let pause = Pause { since: at(0), ..Pause::default() };
    h.store.set_pauses(&h.write(at(0)), &queues, Some(&pause)).await.unwrap();
    let spoil = match h.backend {
        Backend::Postgres => "UPDATE pause SET body = 'x' WHERE queue = 'broken'",
        Backend::SqliteMemory | Backend::SqliteFile => "UPDATE pause SET pause = 'x' WHERE target LIKE '%broken%'",
    };
    assert!(h.place.sql(spoil).await);
    let read = async || -> Vec<PauseTarget> {
        h.store.pauses().await.unwrap().pauses.into_iter().map(|(target, _)| target).collect()
    };
    assert_eq!(read().await, queues[1..]);
    assert_eq!(named_in(h, "pause").await.len(), 1);
    every_named_row_is_shown(h).await;
    tend_all(h, at(10)).await;
    let done = h.store.set_pauses(&h.write(at(1)), &queues, Some(&pause)).await.unwrap();
    assert_eq!((done, read().await.len()), (vec![true, true], 2), "it is replaced by a new one");
}

/// One broken token or person must not hide the others, nor let anybody in.
pub async fn lists_of_who_may_ask_go_on_past_unreadable_rows(h: &Harness) {
    let token = |n: u8| Token {
        id: TokenId(uuid::Uuid::from_u128(u128::from(n))),
        tenant: h.tenant,
        installation: false,
        name: format!("t{n}"),
        digest: SecretDigest([n; 32]),
        permissions: Permissions::default(),
        created_at: at(0),
        created_by: "ann".to_owned(),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    };
    let tokens = [token(1), token(2), token(3)];
    h.store.put_tokens(&tokens).await.unwrap();
    assert!(h.place.sql("UPDATE token SET permissions = 'x' WHERE name = 't2'").await);
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = h.store.list_tokens(&TokenQuery { tenant: h.tenant, after, limit: 1 }).await.unwrap();
        names.extend(page.tokens.into_iter().map(|token| token.name));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names, ["t3", "t1"]);
    let by_digest = h.store.find_tokens(&tokens.clone().map(|token| token.digest)).await.unwrap();
    let by_id = h.store.tokens(&tokens.clone().map(|token| token.id)).await.unwrap();
    for found in [by_digest, by_id] {
        assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
    }
    assert_eq!(named_in(h, "token").await, [tokens[1].id.to_string()]);

    let user = |n: u8| UserPut {
        id: UserId(uuid::Uuid::from_u128(u128::from(n))),
        tenant: h.tenant,
        name: format!("u{n}"),
        role: Role::Viewer,
        installation: false,
        password: Some("x".to_owned()),
        wish: UserWish::New,
    };
    let users = [user(1), user(2), user(3)];
    h.store.put_users(&users, at(0)).await.unwrap();
    let session = |n: u8| Session {
        digest: SecretDigest([n; 32]),
        user: users[usize::from(n) - 1].id,
        created_at: at(1),
        expires_at: at(9_000),
    };
    h.store.put_sessions(&[session(2), session(3)]).await.unwrap();
    assert!(h.place.sql("UPDATE person SET role = 'x' WHERE name = 'u2'").await);
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = h.store.list_users(&UserQuery { tenant: h.tenant, after, limit: 1 }).await.unwrap();
        names.extend(page.users.into_iter().map(|user| user.name));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names, ["u1", "u3"]);
    let found = h.store.users(&users.clone().map(|user| (h.tenant, user.name))).await.unwrap();
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
    let found = h.store.find_sessions(&[session(2).digest, session(3).digest]).await.unwrap();
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
    assert_eq!(named_in(h, "person").await, [users[1].id.to_string()]);
    assert_eq!(named_in(h, "session").await, [format!("{}/{}", users[1].id, at(1).as_microsecond())]);
    every_named_row_is_shown(h).await;
    let person = h.store.raw_row("person", &users[1].id.to_string()).await.unwrap().unwrap();
    assert_eq!(person["password"], "hidden", "a secret is nobody's business");
}

/// Whoever reads the list decides about what it names, and has to see it.
async fn every_named_row_is_shown(h: &Harness) {
    for row in h.store.unreadable().await.unwrap() {
        assert!(h.store.raw_row(&row.table, &row.key).await.unwrap().is_some(), "{row:?}");
    }
}

/// What nothing depends on can be discarded when it is broken, and only then; what else is
/// broken is refused, with the way out.
pub async fn what_nothing_depends_on_is_discarded(h: &Harness) {
    let schedule = h.schedule("a").await;
    let beat = WorkerBeat {
        worker: h.worker(),
        tenant: None,
        name: "w".to_owned(),
        info: WorkerInfo::default(),
        until: at(LEASE_MS),
        draining: false,
    };
    h.store.beat_workers(std::slice::from_ref(&beat), at(0)).await.unwrap();
    assert!(h.place.sql("INSERT INTO inbox (at, body) VALUES (0, 'x')").await);
    let inbox = h.store.inbox(10).await.unwrap()[0].id;
    let queue = PauseTarget::Queue(h.tenant, "q".to_owned());
    let pause = Pause { since: at(0), ..Pause::default() };
    h.store.set_pauses(&h.write(at(0)), std::slice::from_ref(&queue), Some(&pause)).await.unwrap();
    let (target, body) = match h.backend {
        Backend::Postgres => (format!("{}/q", h.tenant.0), "body"),
        Backend::SqliteMemory | Backend::SqliteFile => (serde_json::to_string(&queue).unwrap(), "pause"),
    };
    let rows = [
        ("cursor", schedule.0.to_string(), format!("planned_at = {NO_TIME}")),
        ("worker", beat.worker.to_string(), "info = 'x'".to_owned()),
        ("inbox", inbox.to_string(), format!("at = {NO_TIME}")),
        ("pause", target, format!("{body} = 'x'")),
    ];
    for (table, key, wrong) in &rows {
        let discard = async || h.store.discard_row(table, key).await.unwrap();
        assert_eq!(discard().await, Discarded::NotFound, "it can be read: {table}");
        assert!(h.store.raw_row(table, key).await.unwrap().is_some(), "{table}");
        assert!(h.place.sql(&format!("UPDATE {table} SET {wrong}")).await);
        assert_eq!(discard().await, Discarded::Gone, "nobody need have met it before: {table}");
        assert_eq!(discard().await, Discarded::NotFound, "{table}");
        assert_eq!(named_in(h, table).await, Vec::<String>::new());
        assert_eq!(h.store.raw_row(table, key).await.unwrap(), None, "{table}");
    }
    for (table, key) in
        [("job", h.job.0.to_string()), ("lane", h.owned.0.to_string()), ("tenant", h.tenant.to_string())]
    {
        let answer = h.store.discard_row(table, &key).await.unwrap();
        assert!(matches!(answer, Discarded::Refused(_)), "{table}: {answer:?}");
        assert!(h.store.raw_row(table, &key).await.unwrap().is_some(), "{table}");
    }
    assert_eq!(h.store.discard_row("no such table", "1").await.unwrap(), Discarded::NotFound);
}

/// What happened is read on past one broken row, and the inbox is worked through.
pub async fn records_are_read_on_past_unreadable_rows(h: &Harness) {
    let entry = |n: i64| AuditEntry {
        id: AuditId(uuid::Uuid::from_u128(n as u128)),
        at: at(n),
        tenant: h.tenant,
        who: "ann".to_owned(),
        action: format!("a{n}"),
        object: "job/1".to_owned(),
        before: None,
        after: None,
        address: None,
    };
    h.store.append_audit(&[entry(1), entry(2), entry(3)]).await.unwrap();
    assert!(h.place.sql(&format!("UPDATE audit SET at = {NO_TIME} WHERE action = 'a2'")).await);
    let page = h.store.list_audit(&AuditQuery::of(h.tenant, 10)).await.unwrap();
    assert_eq!(page.entries.iter().map(|entry| entry.action.as_str()).collect::<Vec<_>>(), ["a3", "a1"]);
    assert_eq!(named_in(h, "audit").await, [entry(2).id.to_string()]);

    let (_, run) = h.leased(at(0)).await;
    h.succeed(&run, at(1)).await;
    h.store.discard(&[run.id], "ann", at(2)).await.unwrap();
    assert!(h.place.sql("UPDATE dead_mark SET fate = 77").await);
    assert_eq!(h.store.dead_marks(&[run.id]).await.unwrap(), [None]);
    assert_eq!(named_in(h, "dead_mark").await, [run.id.to_string()]);

    let live = h.make(h.new_run(h.claimed), at(0)).await;
    let chunk = |seq: i32| LogChunk { run: live, attempt: 1, seq, at: at(0), lines: format!("{seq}") };
    h.store.append_logs(&[chunk(1), chunk(2), chunk(3)]).await.unwrap();
    // The day of a line is where PostgreSQL keeps it, so there its time cannot be spoiled.
    if h.backend != Backend::Postgres {
        assert!(h.place.sql(&format!("UPDATE log SET at = {NO_TIME} WHERE seq = 2")).await);
        let query = LogQuery { run: live, attempt: None, after: None, limit: 10 };
        let found: Vec<i32> = h.store.logs(&query).await.unwrap().iter().map(|chunk| chunk.seq).collect();
        assert_eq!(found, [1, 3]);
        assert_eq!(named_in(h, "log").await, [format!("{live}/1/2")]);
    }

    for at in [NO_TIME, 0] {
        assert!(h.place.sql(&format!("INSERT INTO inbox (at, body) VALUES ({at}, 'x')")).await);
    }
    assert_eq!(h.store.inbox(10).await.unwrap().len(), 1);
    assert_eq!(named_in(h, "inbox").await.len(), 1);
    every_named_row_is_shown(h).await;
}
