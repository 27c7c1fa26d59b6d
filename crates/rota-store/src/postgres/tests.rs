//! What only this backend can get wrong: its SQL under a real server, races
//! between connections, and what opening leaves behind.
//!
//! They need a server: `ROTA_TEST_POSTGRES` is its address. Each test has a
//! schema of its own.

use std::time::Duration;

use jiff::Timestamp;
use rota_core::{
    dispatch::{Pair, Share, Window},
    duration::Span,
    fire::{Cursor, Stored},
    ids::{BatchId, JobId, LaneId, NodeId, Partition, RunId, ScheduleId, TenantId, WorkerId},
    lane::{LaneKey, LaneMode},
    order::{OrderKey, Priority},
    run::{CancelAsk, Change, Finish, Lease, NewRun, Run, RunState, Source, Status, Trigger, UniqueAsk, Verdict},
    slot::{SlotAsk, SlotKey, UniqueKey, WhenFull},
    store::{
        By, CancelAnswer, CancelStore, Claim, ClaimStore, Ends, EnqueueStore, Enqueued, Epoch, Expect, ExtendStore,
        FireItem, FireStore, Fired, Guarded, JobChanges, JobPut, JobSaved, LaneStore, NodeBeat, NodeStore, OwnLease,
        OwnStore, PartitionStore, PauseStore, PromoteStore, QueueStore, Reap, ReapStore, Request, RollupStore,
        RunQuery, RunStore, RunningMark, ScheduleChanges, SchedulePut, ScheduleSaved, ScheduleStore, SettleStore,
        Settlement, SlotStore, StoreError, TenantPut, TenantStore, Tend, Tier, UpkeepStore, WorkerStore, Write,
    },
};
use uuid::Uuid;

use super::{
    Limits, OpenError, Options, PostgresStore,
    cut::{Cut, Lines},
    days::DAILY,
    fault::Fault,
};

fn url() -> String {
    std::env::var("ROTA_TEST_POSTGRES")
        .expect("set ROTA_TEST_POSTGRES to the address of a PostgreSQL server that tests may make schemas in")
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_760_000_000_000 + millis).unwrap()
}

/// A store with a tenant, a job, an owned and a claimed lane, and a node that
/// holds partition 0.
struct Bed {
    store: PostgresStore,
    tenant: TenantId,
    job: JobId,
    job_revision: i32,
    owned: LaneId,
    claimed: LaneId,
    node: NodeId,
    epoch: Epoch,
}

async fn store() -> PostgresStore {
    let schema = Some(format!("t_{}", Uuid::now_v7().simple()));
    PostgresStore::open(&url(), Options { schema, ..Options::default() }).await.unwrap()
}

fn batch(millis: i64) -> Write {
    Write {
        batch: BatchId(Uuid::now_v7()),
        now: at(millis),
        node: None,
        generation: 0,
        request: None,
        ends: Ends::default(),
        dry_run: false,
    }
}

impl Bed {
    async fn new() -> Self {
        let store = store().await;
        let put = TenantPut { name: "default".into(), tier: Tier::Unlimited, quotas: None };
        let tenant = store.put_tenants(&[put], at(0)).await.unwrap()[0];
        let lanes = |name: &str| [LaneKey::new(name, None, &[])];
        let owned = store.lanes(&lanes("here"), LaneMode::Owned).await.unwrap()[0].id;
        let claimed = store.lanes(&lanes("away"), LaneMode::Claimed).await.unwrap()[0].id;
        let saved = store.put_jobs(&batch(0), &[job_put(tenant, "j", 1)]).await.unwrap();
        let JobSaved::Saved { id: job, revision: job_revision, .. } = saved[0] else { panic!("{saved:?}") };
        let node = NodeId(Uuid::now_v7());
        let beat = NodeBeat { node, name: "n".into(), info: "{}".into(), until: at(1_000_000) };
        assert_eq!(store.beat(&beat, at(0)).await.unwrap(), Guarded::Stale);
        let epoch = store.take_partitions(node, &[Partition(0)], at(0)).await.unwrap()[0].unwrap();
        Self { store, tenant, job, job_revision, owned, claimed, node, epoch }
    }

    fn write(&self, millis: i64) -> Write {
        Write { node: Some(self.node), ..batch(millis) }
    }

    fn run(&self, lane: LaneId, millis: i64) -> NewRun {
        NewRun {
            id: RunId(Uuid::now_v7()),
            tenant: self.tenant,
            job: self.job,
            version: 1,
            lane,
            part: Partition(0),
            priority: Priority::default(),
            ready_at: at(millis),
            expires_at: None,
            deadline_at: None,
            trigger: Trigger::plain(Source::Api),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            payload: Some("{\"n\":1}".into()),
            slot: None,
            unique: None,
            once: None,
            parent: None,
            after: Vec::new(),
            follows: false,
            rearms: false,
            redrive: None,
        }
    }

    fn keyed(&self, when_full: WhenFull) -> NewRun {
        let slot = SlotAsk { key: SlotKey(7), limit: 1, when_full, max_queued: None, grace: Span::secs(30) };
        NewRun { slot: Some(slot), ..self.run(self.owned, 0) }
    }

    async fn make(&self, runs: &[NewRun]) -> Vec<Enqueued> {
        self.store.enqueue(&self.write(1), runs, &[]).await.unwrap()
    }

    fn settled(&self, run: &NewRun, verdict: Verdict, millis: i64) -> Settlement {
        let lease = Lease { run: run.id, fence: rota_core::run::Fence(0) };
        Settlement { lease, part: run.part, by: By::Owner(self.epoch), change: finish(verdict, millis) }
    }

    async fn live(&self, id: RunId) -> Run {
        self.store.runs(&[id]).await.unwrap()[0].clone().unwrap().run
    }

    async fn done(self) {
        self.store.drop_schema().await.unwrap();
    }
}

fn job_put(tenant: TenantId, name: &str, hash: u8) -> JobPut {
    JobPut {
        tenant,
        name: name.into(),
        document: format!("{{\"v\":{hash}}}"),
        hash: [hash; 32],
        queue: "here".into(),
        tags: vec!["x".into(), "y".into()],
        enabled: true,
        by: None,
        expect: Expect::Anything,
        after: None,
        schedules: None,
    }
}

fn finish(verdict: Verdict, millis: i64) -> Change {
    Change::Finish(Finish {
        verdict,
        started_at: Some(at(millis - 1)),
        ended_at: at(millis),
        attempts_used: 0,
        losses: 0,
        failure: None,
        output: Some("1".into()),
        trail: None,
        follower: None,
    })
}

const READY: Enqueued = Enqueued::Made { status: Status::Queued, handed: true };
const BLOCKED: Enqueued = Enqueued::Made { status: Status::Blocked, handed: false };

#[tokio::test]
async fn a_run_is_made_settled_and_found_in_history() {
    let bed = Bed::new().await;
    let runs = [bed.run(bed.owned, 0), bed.run(bed.owned, 0)];
    assert_eq!(bed.make(&runs).await, [READY, READY]);
    assert_eq!(bed.live(runs[0].id).await.state, RunState::Queued);
    let write = bed.write(9);
    let settlements = [bed.settled(&runs[0], Verdict::Succeeded, 9)];
    let settled = bed.store.settle(&write, &settlements).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Applied]);
    let again = bed.store.settle(&write, &settlements).await.unwrap();
    assert_eq!(again.answers, [Guarded::Applied], "the same write is answered as before");
    let other = bed.store.settle(&bed.write(9), &settlements).await.unwrap();
    assert_eq!(other.answers, [Guarded::Stale]);
    let record = bed.store.runs(&[runs[0].id]).await.unwrap()[0].clone().unwrap();
    assert_eq!(record.run.state, RunState::Finished { at: at(9), verdict: Verdict::Succeeded });
    assert_eq!((record.output.as_deref(), record.run.labels["a"].as_str()), (Some("1"), "b"));
    let hour = rota_core::rollup::hour_of(at(9));
    for _ in 0..2 {
        let rollups = bed.store.rollups(bed.job, hour, hour + 1).await.unwrap();
        assert_eq!(rollups[0].1.of(Verdict::Succeeded), 1);
        let keep = Span::secs(3_600);
        let tend = Tend { now: at(10), history_keep: keep, skips_keep: keep, batches_keep: keep, audit_keep: keep };
        bed.store.tend(&tend).await.unwrap();
    }
    let query = RunQuery { limit: 1, ..RunQuery::default() };
    let first = bed.store.list_runs(&query).await.unwrap();
    assert_eq!(first.runs[0].run.id, runs[1].id);
    let second = bed.store.list_runs(&RunQuery { after: first.next, ..query.clone() }).await.unwrap();
    assert_eq!(second.runs[0].run.id, runs[0].id);
    for statuses in [vec![Status::Ended(Verdict::Succeeded)], vec![Status::Ended(Verdict::Dead)], vec![Status::Queued]]
    {
        let labels = vec![("a".to_owned(), "b".to_owned())];
        let query = RunQuery { statuses: statuses.clone(), labels, tag: Some("y".into()), limit: 9, ..query.clone() };
        let page = bed.store.list_runs(&query).await.unwrap();
        let expected = usize::from(statuses[0] != Status::Ended(Verdict::Dead));
        assert_eq!((page.runs.len(), page.next), (expected, None), "{statuses:?}");
        let query = RunQuery { job: Some(bed.job), tenant: Some(bed.tenant), ..query };
        assert_eq!(bed.store.list_runs(&query).await.unwrap().runs.len(), expected, "{statuses:?}");
    }
    bed.done().await;
}

/// A zombie's settlement must change nothing, and must not spoil its
/// neighbours'.
#[tokio::test]
async fn a_lost_partition_is_stale_and_the_rest_is_settled() {
    let bed = Bed::new().await;
    let one = bed.store.take_partitions(bed.node, &[Partition(1)], at(0)).await.unwrap()[0].unwrap();
    let runs = [bed.run(bed.owned, 0), NewRun { part: Partition(1), ..bed.run(bed.owned, 0) }];
    bed.make(&runs).await;
    bed.store.give_partitions(bed.node, &[(Partition(1), one)]).await.unwrap();
    let mut settlements = [0, 1].map(|n| bed.settled(&runs[n], Verdict::Succeeded, 5));
    settlements[1].by = By::Owner(one);
    let settled = bed.store.settle(&bed.write(5), &settlements).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Applied, Guarded::Stale]);
    assert_eq!(bed.live(runs[1].id).await.state, RunState::Queued);
    bed.done().await;
}

#[tokio::test]
async fn slots_admit_in_order_and_replace_displaces() {
    let bed = Bed::new().await;
    let runs: Vec<NewRun> = (0..3).map(|_| bed.keyed(WhenFull::Queue)).collect();
    assert_eq!(bed.make(&runs).await, [READY, BLOCKED, BLOCKED]);
    let write = bed.write(5);
    let settlements = [bed.settled(&runs[0], Verdict::Failed, 5)];
    let settled = bed.store.settle(&write, &settlements).await.unwrap();
    assert_eq!(settled.woken.iter().map(|w| (w.run.id, w.handed)).collect::<Vec<_>>(), [(runs[1].id, true)]);
    let again = bed.store.settle(&write, &settlements).await.unwrap();
    assert_eq!(again.woken, settled.woken);
    assert_eq!(bed.make(&[bed.keyed(WhenFull::Skip)]).await, [Enqueued::Full]);
    let newest = bed.keyed(WhenFull::Replace);
    assert_eq!(bed.make(std::slice::from_ref(&newest)).await, [BLOCKED]);
    let displaced = bed.live(runs[2].id).await;
    assert_eq!(displaced.state, RunState::Finished { at: at(1), verdict: Verdict::Skipped });
    assert_eq!(bed.make(&[bed.keyed(WhenFull::CancelRunning)]).await, [BLOCKED]);
    let stopping = bed.live(runs[1].id).await;
    assert!(matches!(stopping.state, RunState::Cancelling { hold: None, .. }), "{stopping:?}");
    let noticed = bed.store.notices(&[Partition(0)], 9).await.unwrap();
    assert_eq!(noticed.iter().map(|run| run.id).collect::<Vec<_>>(), [runs[1].id]);
    let failed = bed.store.settle(&bed.write(6), &[bed.settled(&runs[1], Verdict::Failed, 6)]).await.unwrap();
    assert_eq!(failed.answers, [Guarded::CancelAsked]);
    assert_eq!(bed.store.recount_slots(&bed.write(6)).await.unwrap(), 0);
    let settled = bed.store.settle(&bed.write(7), &[bed.settled(&runs[1], Verdict::Cancelled, 7)]).await.unwrap();
    assert_eq!(settled.woken[0].run.id, newest.id);
    assert_eq!(bed.store.recount_slots(&bed.write(7)).await.unwrap(), 0);
    bed.done().await;
}

#[tokio::test]
async fn joins_open_once_when_the_last_ends() {
    let bed = Bed::new().await;
    let mut runs: Vec<NewRun> = (0..3).map(|_| bed.run(bed.owned, 0)).collect();
    runs[2].after = vec![runs[0].id, runs[1].id, RunId(Uuid::now_v7())];
    runs[2].slot = bed.keyed(WhenFull::Queue).slot;
    assert_eq!(bed.make(&runs).await, [READY, READY, BLOCKED]);
    let other = {
        let mut run = bed.run(bed.owned, 0);
        run.after = vec![runs[1].id];
        run
    };
    assert_eq!(bed.make(std::slice::from_ref(&other)).await, [BLOCKED]);
    let settle = |n: usize, ms| {
        let settlement = bed.settled(&runs[n], Verdict::Succeeded, ms);
        let write = bed.write(ms);
        let store = &bed.store;
        async move { store.settle(&write, &[settlement]).await.unwrap() }
    };
    let (first, second) = tokio::join!(settle(0, 5), settle(1, 6));
    let mut woken: Vec<RunId> = first.woken.iter().chain(&second.woken).map(|woken| woken.run.id).collect();
    woken.sort_unstable();
    let mut expected = [runs[2].id, other.id];
    expected.sort_unstable();
    assert_eq!(woken, expected);
    bed.done().await;
}

#[tokio::test]
async fn unique_keys_hold_until_they_expire() {
    let bed = Bed::new().await;
    let unique =
        |until| NewRun { unique: Some(UniqueAsk { key: UniqueKey(3), until: at(until) }), ..bed.run(bed.owned, 0) };
    let runs = [unique(100), unique(100)];
    let of = runs[0].id;
    assert_eq!(bed.make(&runs).await, [READY, Enqueued::Duplicate { of }]);
    assert_eq!(bed.make(&[unique(100)]).await, [Enqueued::Duplicate { of }]);
    let later = bed.store.enqueue(&bed.write(100), &[unique(200)], &[]).await.unwrap();
    assert_eq!(later, [READY]);
    bed.done().await;
}

#[tokio::test]
async fn a_request_key_answers_again_and_tells_another_body() {
    let bed = Bed::new().await;
    let request =
        |print: u8| Request { tenant: bed.tenant, key: "k".into(), fingerprint: [print; 32], expires_at: at(1_000) };
    let write = |print, ms| Write { request: Some(request(print)), ..bed.write(ms) };
    let run = bed.run(bed.claimed, 0);
    let first = bed.store.enqueue(&write(1, 1), std::slice::from_ref(&run), &[]).await.unwrap();
    let again = bed.store.enqueue(&write(1, 2), &[bed.run(bed.claimed, 0)], &[]).await.unwrap();
    assert_eq!(again, [first[0].kept_for(run.id)]);
    let other = bed.store.enqueue(&write(2, 2), &[bed.run(bed.claimed, 0)], &[]).await;
    assert!(matches!(other, Err(StoreError::RequestDiffers)), "{other:?}");
    let page = bed.store.list_runs(&RunQuery { limit: 9, ..RunQuery::default() }).await.unwrap();
    assert_eq!(page.runs.len(), 1);
    let later = bed.store.enqueue(&write(2, 1_000), &[bed.run(bed.claimed, 0)], &[]).await;
    assert!(later.is_ok(), "an expired key is free: {later:?}");
    bed.done().await;
}

#[tokio::test]
async fn claims_repeat_extend_and_are_reaped() {
    let bed = Bed::new().await;
    let runs: Vec<NewRun> = (0..5).map(|_| bed.run(bed.claimed, 0)).collect();
    bed.make(&runs).await;
    let pair = Pair { lane: bed.claimed, tenant: bed.tenant };
    assert_eq!(bed.store.ready_pairs(&[bed.claimed, bed.owned]).await.unwrap()[0].0, pair);
    let worker = WorkerId(Uuid::now_v7());
    let shares = vec![Share { pair, low: OrderKey::MIN, runs: 3 }];
    let claim = Claim { worker, until: at(100), shares, most: 9 };
    let write = bed.write(10);
    let claimed = bed.store.claim(&write, std::slice::from_ref(&claim)).await.unwrap();
    assert_eq!(
        claimed.iter().map(|run| run.id).collect::<Vec<_>>(),
        runs[..3].iter().map(|r| r.id).collect::<Vec<_>>()
    );
    assert_eq!(
        bed.store.claim(&write, std::slice::from_ref(&claim)).await.unwrap(),
        claimed,
        "the same claim brings the same runs"
    );
    let cancel = CancelAsk { by: None, reason: None, grace: Span::secs(1) };
    let asked = [claimed[1].id, runs[4].id, RunId(Uuid::now_v7())];
    let answers = bed.store.request_cancel(&bed.write(11), &asked, &cancel).await.unwrap();
    assert_eq!(answers, [CancelAnswer::Asked, CancelAnswer::Cancelled, CancelAnswer::NotFound]);
    let held = [claimed[0].lease(), claimed[1].lease(), Lease { run: runs[3].id, fence: claimed[0].fence }];
    let extended = bed.store.extend(worker, at(200), &held, at(12)).await.unwrap();
    assert_eq!(extended.lost, [runs[3].id]);
    assert_eq!(extended.cancelling, [claimed[1].id]);
    assert_eq!(extended.unlisted, [claimed[2].lease()]);
    let reap = Reap { before: at(150), losses_max: 3, limit: 9 };
    assert_eq!(bed.store.reap(&bed.write(13), &reap).await.unwrap(), []);
    let reaped = bed.store.reap(&bed.write(300), &Reap { before: at(300), ..reap }).await.unwrap();
    assert_eq!(reaped.len(), 3);
    let again = bed.store.extend(worker, at(500), &[claimed[0].lease()], at(301)).await.unwrap();
    assert_eq!(again.lost, [claimed[0].id]);
    let promoted = bed.store.promote(&bed.write(2_000), &[Partition(0)], 9).await.unwrap();
    assert_eq!((promoted.moved, promoted.next_at), (2, None));
    bed.done().await;
}

#[tokio::test]
async fn an_owner_leases_marks_and_inherits() {
    let bed = Bed::new().await;
    let runs: Vec<NewRun> = (0..2).map(|_| bed.run(bed.owned, 0)).collect();
    bed.make(&runs).await;
    let pair = Pair { lane: bed.owned, tenant: bed.tenant };
    let window = Window { pair, after: None, limit: 9 };
    let own = bed.store.own(&[Partition(0)], &[window]).await.unwrap();
    assert_eq!(own[0].len(), 2);
    let worker = WorkerId(Uuid::now_v7());
    let ask = OwnLease { lease: own[0][0].lease(), part: Partition(0), epoch: bed.epoch };
    let leased = bed.store.lease_owned(&bed.write(2), worker, at(50), &[ask, ask]).await.unwrap();
    assert_eq!(leased.iter().filter(|answer| **answer == Guarded::Applied).count(), 1);
    let mark = RunningMark { lease: own[0][1].lease(), part: Partition(0), epoch: bed.epoch, started_at: at(2) };
    assert_eq!(bed.store.mark_running(&bed.write(3), &[mark]).await.unwrap(), [Guarded::Applied]);
    let stale = RunningMark { epoch: Epoch(bed.epoch.0 - 1), ..mark };
    assert_eq!(bed.store.mark_running(&bed.write(3), &[stale]).await.unwrap(), [Guarded::Stale]);
    let inherited = bed.store.inherited(&[Partition(0)], 9).await.unwrap();
    assert_eq!(inherited.iter().map(|run| run.id).collect::<Vec<_>>(), [runs[1].id]);
    let report = (own[0][1].lease(), "{\"percent\":5}".to_owned());
    assert_eq!(bed.store.progress(&[report]).await.unwrap(), [Guarded::Applied]);
    let woken = bed.store.release(&bed.write(4), worker).await.unwrap();
    assert_eq!((woken[0].run.id, woken[0].handed), (runs[0].id, true));
    bed.done().await;
}

#[tokio::test]
async fn firing_is_guarded_and_after_finish_re_arms() {
    let bed = Bed::new().await;
    let first = bed.store.reserve_schedules(10).await.unwrap();
    let second = bed.store.reserve_schedules(1).await.unwrap();
    assert_eq!(second.0, first.0 + 10);
    let cursor = |ms| Cursor { planned_at: at(ms), due_at: at(ms), fired: 0 };
    let put = |id: ScheduleId, spec: &str| SchedulePut {
        id,
        job: bed.job,
        tenant: bed.tenant,
        name: format!("s{id}"),
        spec: spec.into(),
        enabled: true,
        stored: Stored { cursor: Some(cursor(10)), ..Stored::default() },
        skips: Vec::new(),
        guard: None,
    };
    let puts = [put(first, "{\"every\":\"10ms\"}"), put(second, "{\"after_finish\":\"1s\"}")];
    let saved = bed.store.put_schedules(&bed.write(1), &puts).await.unwrap();
    assert_eq!(saved, [ScheduleSaved::Saved { revision: 1 }; 2]);
    let parts: Vec<Partition> = Partition::all().collect();
    let due = bed.store.due(&parts, at(10), 100).await.unwrap();
    assert_eq!(due.len(), 2);
    let pauses = bed.store.pauses().await.unwrap().revision;
    let item = |due: rota_core::store::DueCursor| {
        let rearms = due.schedule == second;
        let trigger =
            Trigger { schedule: Some(due.schedule), planned_at: Some(at(10)), ..Trigger::plain(Source::Schedule) };
        FireItem {
            due,
            job: bed.job,
            job_revision: bed.job_revision,
            next_if_refused: None,
            next: (!rearms).then(|| Cursor { fired: 1, ..cursor(20) }),
            runs: vec![NewRun { trigger, rearms, ..bed.run(bed.owned, 10) }],
            skips: Vec::new(),
            cancel: Vec::new(),
            cancel_ask: None,
        }
    };
    let items: Vec<FireItem> = due.iter().map(|due| item(*due)).collect();
    assert_eq!(bed.store.fire(&bed.write(10), pauses + 1, &items).await.unwrap(), [Fired::Stale, Fired::Stale]);
    let write = bed.write(10);
    let fired = bed.store.fire(&write, pauses, &items).await.unwrap();
    assert_eq!(fired, [Fired::Fired(vec![READY]), Fired::Fired(vec![READY])]);
    assert_eq!(bed.store.fire(&write, pauses, &items).await.unwrap(), fired);
    assert_eq!(bed.store.fire(&bed.write(10), pauses, &items).await.unwrap(), [Fired::Stale, Fired::Stale]);
    let cursors = async |ids: &[ScheduleId]| -> Vec<Option<Cursor>> {
        bed.store.cursors(ids).await.unwrap().into_iter().map(|due| due.map(|due| due.cursor)).collect()
    };
    assert_eq!(cursors(&[first, second]).await, [Some(Cursor { fired: 1, ..cursor(20) }), None]);
    let armed = items.iter().find(|item| item.due.schedule == second).unwrap().runs[0].clone();
    assert_eq!(bed.store.schedules(&[second]).await.unwrap()[0].as_ref().unwrap().armed_by, Some(armed.id));
    assert_eq!(bed.store.live_of(&[first, second], 10).await.unwrap()[1][0].id, armed.id);
    bed.store.settle(&bed.write(30), &[bed.settled(&armed, Verdict::Failed, 30)]).await.unwrap();
    assert_eq!(cursors(&[second]).await, [Some(Cursor { fired: 1, ..cursor(1_030) })]);
    let ask = CancelAsk { by: None, reason: None, grace: Span::secs(1) };
    let deletion = rota_core::store::Deletion { job: bed.job, ask, keep_running: false };
    let deleted = bed.store.delete_jobs(&bed.write(1_100), &[deletion]).await.unwrap();
    assert_eq!(deleted, [Guarded::Applied]);
    assert_eq!(bed.store.due(&parts, at(9_999), 100).await.unwrap(), []);
    assert_eq!(bed.store.skips(second, None, 9).await.unwrap()[0].range.from, at(1_030));
    bed.done().await;
}

/// History is cut by days; a day that nobody made must not stop a settlement.
#[tokio::test]
async fn any_day_can_be_settled_in_and_old_days_go() {
    let bed = Bed::new().await;
    let day = 86_400_000;
    for ahead in [0, 1, 400] {
        let run = bed.run(bed.owned, 0);
        bed.make(std::slice::from_ref(&run)).await;
        let settlement = bed.settled(&run, Verdict::Succeeded, ahead * day);
        let settled = bed.store.settle(&bed.write(ahead * day), &[settlement]).await.unwrap();
        assert_eq!(settled.answers, [Guarded::Applied]);
    }
    let keep = Span::secs(86_400);
    let tend = Tend { now: at(10 * day), history_keep: keep, skips_keep: keep, batches_keep: keep, audit_keep: keep };
    while bed.store.tend(&tend).await.unwrap().more {}
    let page = bed.store.list_runs(&RunQuery { limit: 9, ..RunQuery::default() }).await.unwrap();
    assert_eq!(page.runs.len(), 1);
    let run = bed.run(bed.owned, 0);
    bed.make(std::slice::from_ref(&run)).await;
    let settled = bed.store.settle(&bed.write(1), &[bed.settled(&run, Verdict::Succeeded, 1)]).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Applied], "a dropped day is made again");
    bed.done().await;
}

/// A day is detached before it is dropped: a process that dies in between must not leave
/// the table behind for ever.
#[tokio::test]
async fn a_day_that_was_detached_and_not_dropped_goes() {
    let bed = Bed::new().await;
    for daily in DAILY {
        let sql = format!("CREATE TABLE {daily}_20250101 (LIKE {daily}); CREATE TABLE {daily}_2025 (LIKE {daily})");
        bed.store.work.get().await.unwrap().batch_execute(&sql).await.unwrap();
    }
    let keep = Span::secs(86_400);
    let tend = Tend { now: at(0), history_keep: keep, skips_keep: keep, batches_keep: keep, audit_keep: keep };
    while bed.store.tend(&tend).await.unwrap().more {}
    let sql = "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace \
               AND relname ~ '_2025(0101)?$' ORDER BY relname";
    let left = bed.store.read(sql, &[]).await.unwrap();
    let left: Vec<String> = left.iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["history_2025", "log_2025"], "and nothing that is not a day");
    bed.done().await;
}

#[tokio::test]
async fn many_nodes_open_at_once_and_a_newer_schema_is_refused() {
    let schema = format!("t_{}", Uuid::now_v7().simple());
    let url = url();
    let options = || Options { schema: Some(schema.clone()), ..Options::default() };
    let (a, b, c) = tokio::join!(
        PostgresStore::open(&url, options()),
        PostgresStore::open(&url, options()),
        PostgresStore::open(&url, options())
    );
    let store = a.unwrap();
    assert!(b.is_ok() && c.is_ok());
    let client = store.work.get().await.unwrap();
    let later = "INSERT INTO migration VALUES (999, 0); UPDATE compatibility SET oldest = 999";
    client.batch_execute(later).await.unwrap();
    let refused = PostgresStore::open(&url, options()).await;
    assert!(matches!(refused, Err(OpenError::Newer { found: 999, .. })));
    drop(client);
    store.drop_schema().await.unwrap();
}

/// The server's certificate is for `localhost` and signed by the tests' authority.
#[tokio::test]
async fn the_address_says_how_tls_is_checked() {
    let root = |name: &str| format!("&sslrootcert={}/tests/tls/{name}.pem", env!("CARGO_MANIFEST_DIR"));
    let (ours, theirs) = (root("authority"), root("stranger"));
    let plain = url().replace("?sslmode=disable", "");
    let by_name = plain.replace("@127.0.0.1:", "@localhost:");
    let cases = [
        (plain.clone(), Some(true)),
        (format!("{plain}?sslmode=disable"), Some(false)),
        (format!("{plain}?sslmode=prefer"), Some(true)),
        (format!("{plain}?sslmode=require"), Some(true)),
        (format!("{plain}?sslmode=require{ours}"), Some(true)),
        (format!("{plain}?sslmode=require{theirs}"), None),
        (format!("{plain}?sslmode=verify-ca{ours}"), Some(true)),
        (format!("{plain}?sslmode=verify-ca{theirs}"), None),
        (format!("{plain}?sslmode=verify-full{ours}"), None),
        (format!("{by_name}?sslmode=verify-full{ours}"), Some(true)),
        (format!("{by_name}?sslmode=verify-full{theirs}"), None),
        (format!("{by_name}?sslmode=verify-full"), None),
        (format!("{by_name}?sslmode=verify-full&sslrootcert=/nowhere"), None),
        (format!("{plain}?sslmode=maybe"), None),
    ];
    for (url, encrypted) in cases {
        let case = url.rsplit_once('@').expect("an address with a user").1;
        let options = Options { schema: Some(format!("t_{}", Uuid::now_v7().simple())), ..Options::default() };
        match (PostgresStore::open(&url, options).await, encrypted) {
            (Ok(store), Some(encrypted)) => {
                let client = store.work.get().await.unwrap();
                let row = client.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]).await;
                assert_eq!(row.unwrap().get::<_, bool>(0), encrypted, "{case}");
                store.drop_schema().await.unwrap();
            }
            (Err(OpenError::Connect(_) | OpenError::Tls(_)), None) => {}
            (Ok(_), None) => panic!("{case}: it opened"),
            (Err(error), _) => panic!("{case}: {error:?}"),
        }
    }
}

/// Anyone may enqueue from their own transaction, and nulls in their payload
/// are theirs.
#[tokio::test]
async fn a_callers_own_transaction_can_enqueue() {
    let bed = Bed::new().await;
    let client = bed.store.work.get().await.unwrap();
    client.batch_execute("SELECT rota_enqueue('j', '{\"a\": null}', labels => '{\"x\": \"y\"}')").await.unwrap();
    let items = bed.store.inbox(9).await.unwrap();
    let body: serde_json::Value = serde_json::from_str(&items[0].body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({ "tenant": "default", "job": "j", "payload": { "a": null }, "labels": { "x": "y" } })
    );
    bed.store.enqueue(&bed.write(1), &[bed.run(bed.owned, 0)], &[items[0].id]).await.unwrap();
    assert_eq!(bed.store.inbox(9).await.unwrap(), []);
    drop(client);
    bed.done().await;
}

/// Nodes measure their clocks by the server's, so it must be one that goes on.
#[tokio::test]
async fn the_servers_clock_can_be_read_and_goes_on() {
    let bed = Bed::new().await;
    let first = bed.store.time().await.unwrap().expect("the server has a clock");
    let second = bed.store.time().await.unwrap().expect("the server has a clock");
    assert!(first <= second);
    bed.done().await;
}

/// A commit whose answer is lost may have happened: asked again under its own
/// name it answers as it did, and where it did not happen, it does then.
#[tokio::test]
async fn a_commit_whose_answer_is_lost_happens_once() {
    let (lines, bed) = (lines().await, Bed::new().await);
    let options = Options { schema: bed.store.schema.clone(), ..Options::default() };
    let store = PostgresStore::open(&through(&lines), options).await.unwrap();
    for how in [Cut::AfterCommit, Cut::HalfWay, Cut::BeforeCommit] {
        let (write, run) = (bed.write(1), bed.run(bed.owned, 0));
        let runs = [run.clone()];
        lines.cut(how);
        let lost = store.enqueue(&write, &runs, &[]).await;
        assert!(matches!(lost, Err(StoreError::OutcomeUnknown { .. })), "{how:?}: {lost:?}");
        let there = bed.store.runs(&[run.id]).await.unwrap()[0].is_some();
        assert_eq!(there, how != Cut::BeforeCommit, "{how:?}");
        let made = store.enqueue(&write, &runs, &[]).await.unwrap();
        assert_eq!(made, [Enqueued::Made { status: Status::Queued, handed: true }], "{how:?}");

        let (write, ends) = (bed.write(2), [bed.settled(&run, Verdict::Succeeded, 2)]);
        lines.cut(how);
        let lost = store.settle(&write, &ends).await;
        assert!(matches!(lost, Err(StoreError::OutcomeUnknown { .. })), "{how:?}");
        assert_eq!(store.settle(&write, &ends).await.unwrap().answers, [Guarded::Applied], "{how:?}");
        assert_eq!(store.settle(&bed.write(3), &ends).await.unwrap().answers, [Guarded::Stale], "{how:?}");
    }
    let all = bed.store.list_runs(&RunQuery { tenant: Some(bed.tenant), limit: 10, ..RunQuery::default() }).await;
    assert_eq!(all.unwrap().runs.len(), 3, "each run once");
    drop(store);
    bed.done().await;
}

/// The address of the test server by way of these lines.
fn through(lines: &Lines) -> String {
    let url = url();
    let (before, rest) = url.split_once('@').expect("an address with a user");
    let (_, database) = rest.split_once('/').expect("an address with a database");
    format!("{before}@127.0.0.1:{}/{database}", lines.port)
}

async fn lines() -> Lines {
    let url = url();
    let (_, rest) = url.split_once('@').expect("an address with a user");
    let (server, _) = rest.split_once('/').expect("an address with a database");
    Lines::to(server.to_owned()).await
}

/// A server that is gone without a word, or a box on the way that answers for it, must
/// not hold anybody for ever: not a beat, not a write, not who connects. What it may
/// have done is asked again under its own name, over another line.
#[tokio::test]
async fn a_server_that_falls_silent_is_given_up_in_time() {
    let (lines, bed) = (lines().await, Bed::new().await);
    let second = Duration::from_secs(1);
    let limits = Limits { leases: second, work: second, guests: second, upkeep: second };
    let options = || Options { schema: bed.store.schema.clone(), limits, wait: second * 2, ..Options::default() };
    let store = PostgresStore::open(&through(&lines), options()).await.unwrap();
    store.time().await.unwrap();
    let (write, run) = (bed.write(1), bed.run(bed.owned, 0));
    let first = store.enqueue(&write, std::slice::from_ref(&run), &[]).await.unwrap();
    lines.swallow(true);
    let silent = |error: &StoreError| {
        let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        source.contains("did not answer") || source.to_lowercase().contains("timeout")
    };
    let read = store.time().await.unwrap_err();
    assert!(matches!(&read, StoreError::NotApplied { .. }) && silent(&read), "{read:?}");
    let written = store.drain_worker(None, WorkerId(Uuid::nil())).await.unwrap_err();
    assert!(silent(&written), "a write on its own: {written:?}");
    let asked_again = store.enqueue(&write, std::slice::from_ref(&run), &[]).await.unwrap_err();
    assert!(silent(&asked_again), "a write in a transaction: {asked_again:?}");
    let opened = PostgresStore::open(&through(&lines), options()).await;
    assert!(matches!(opened, Err(OpenError::Connect(_))), "one who connects");
    lines.swallow(false);
    assert!(store.time().await.unwrap().is_some(), "over a new line");
    assert_eq!(store.enqueue(&write, &[run], &[]).await.unwrap(), first, "it was done, once");
    drop(store);
    bed.done().await;
}

/// A statement that the server does not end in time must not hold who waits for it,
/// nor go on at the server.
#[tokio::test]
async fn a_statement_over_its_limit_is_ended_by_the_server() {
    let bed = Bed::new().await;
    let limits = Limits { work: Duration::from_millis(200), ..Limits::default() };
    let options = Options { schema: bed.store.schema.clone(), limits, ..Options::default() };
    let store = PostgresStore::open(&url(), options).await.unwrap();
    let ended = store.read("SELECT pg_sleep(3600)", &[]).await.unwrap_err();
    let Fault::Db(error) = ended else { panic!("{ended:?}") };
    assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::QUERY_CANCELED));
    assert_eq!(store.read("SELECT 1", &[]).await.unwrap().len(), 1, "its connection is as good as ever");
    drop(store);
    bed.done().await;
}

/// A write holds its partitions, its node and the pauses until it is committed. Whoever takes
/// over a dead node's partitions, pauses a job or leaves must not wait for other nodes' writes.
#[tokio::test]
async fn what_concerns_one_node_or_job_waits_for_no_other_nodes_writes() {
    let bed = Bed::new().await;
    let client = bed.store.work.get().await.unwrap();
    let under_way = "BEGIN; SELECT 1 FROM partition WHERE part = 0 FOR SHARE; SELECT 1 FROM node FOR SHARE; \
                     SELECT 1 FROM meta FOR SHARE";
    client.batch_execute(under_way).await.unwrap();
    let other = NodeId(Uuid::now_v7());
    let beat = NodeBeat { node: other, name: "o".into(), info: "{}".into(), until: at(1_000_000) };
    bed.store.beat(&beat, at(0)).await.unwrap();
    let epochs = bed.store.take_partitions(other, &[Partition(1), Partition(2)], at(0)).await.unwrap();
    assert!(epochs.iter().all(Option::is_some), "{epochs:?}");
    let (target, pause) = (rota_core::store::PauseTarget::Job(bed.job), rota_core::store::Pause::default());
    assert_eq!(bed.store.set_pauses(&batch(1), &[target], Some(&pause)).await.unwrap(), [true]);
    bed.store.leave(other).await.unwrap();
    client.batch_execute("ROLLBACK").await.unwrap();
    drop(client);
    bed.done().await;
}

/// The kernel notices a server whose packets vanish, unless the address says how.
#[test]
fn connections_notice_a_server_that_vanishes() {
    let address = |more: &str| super::open::Address::parse(&format!("postgres://u@h/d{more}")).unwrap().config;
    let plain = address("");
    let seconds = |span: Option<&Duration>| span.map(Duration::as_secs);
    assert_eq!((seconds(plain.get_connect_timeout()), seconds(plain.get_tcp_user_timeout())), (Some(3), Some(6)));
    assert_eq!((plain.get_keepalives(), plain.get_keepalives_idle().as_secs()), (true, 3));
    let own = address("?connect_timeout=20&tcp_user_timeout=30&keepalives_idle=40");
    assert_eq!((seconds(own.get_connect_timeout()), seconds(own.get_tcp_user_timeout())), (Some(20), Some(30)));
    assert_eq!(own.get_keepalives_idle().as_secs(), 40);
}

/// A plan is made once and kept for as long as its connection lives. One made while
/// there were no live runs, which an idle system is most of the time, must not read
/// the whole table ever after.
#[tokio::test]
async fn plans_made_while_no_run_is_live_look_rows_up() {
    let store = store().await;
    for table in ["run", "slot", "partition"] {
        store.execute_raw(&format!("VACUUM ANALYZE {table}")).await.unwrap();
    }
    let hot = [
        super::finish::FINISH,
        super::apply::MOVE,
        super::slots::ADMIT,
        super::slots::WRITE,
        super::claim::CLAIM,
        super::promote::DELAYED,
        super::promote::NEXT,
    ];
    for sql in hot {
        let plan = generic_plan(&store, sql).await;
        let mut whole = Vec::new();
        read_whole(&plan, &mut whole);
        assert!(whole.is_empty(), "all of {whole:?} is read by\n{sql}\n{plan:#}");
    }
    store.drop_schema().await.unwrap();
}

async fn generic_plan(store: &PostgresStore, sql: &str) -> serde_json::Value {
    let params = (1..=99).take_while(|n| sql.contains(&format!("${n}"))).map(|_| "NULL").collect::<Vec<_>>().join(", ");
    let client = store.work.get().await.unwrap();
    client.batch_execute(&format!("PREPARE looked AS {sql}")).await.unwrap();
    let explain = format!("EXPLAIN (FORMAT JSON) EXECUTE looked({params})");
    let told = client.simple_query(&explain).await.unwrap();
    client.batch_execute("DEALLOCATE looked").await.unwrap();
    let text = told.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    serde_json::from_str(text.unwrap()).unwrap()
}

/// The tables of which a plan reads every row.
fn read_whole(plan: &serde_json::Value, found: &mut Vec<String>) {
    for part in plan.as_array().into_iter().flatten() {
        read_whole(part, found);
    }
    let Some(node) = plan.as_object() else { return };
    let text = |key: &str| node.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
    let whole = match text("Node Type") {
        "Seq Scan" => true,
        "Index Scan" | "Index Only Scan" => !node.contains_key("Index Cond"),
        _ => false,
    };
    if whole {
        found.push(text("Relation Name").to_owned());
    }
    for value in node.values() {
        read_whole(value, found);
    }
}

/// What ended runs leave in the live table is cleared away without waiting for the
/// server to look, and only when there is enough of it.
#[tokio::test]
async fn upkeep_clears_away_what_ended_runs_left() {
    let bed = Bed::new().await;
    let run = bed.run(bed.owned, 0);
    bed.make(std::slice::from_ref(&run)).await;
    bed.store.settle(&bed.write(2), &[bed.settled(&run, Verdict::Succeeded, 2)]).await.unwrap();
    let counted = "SELECT reltuples::bigint FROM pg_class WHERE oid = 'run'::regclass";
    let rows = async || bed.store.read(counted, &[]).await.unwrap()[0].get::<_, i64>(0);
    assert!(!bed.store.clear(1_000_000).await.unwrap());
    assert_eq!(rows().await, -1, "nobody has looked at the table yet");
    assert!(bed.store.clear(0).await.unwrap());
    assert_eq!(rows().await, 0);
    bed.done().await;
}

/// A runtime whose threads are guests'.
fn guests_threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .on_thread_start(crate::guests::mark_thread)
        .enable_all()
        .build()
        .unwrap()
}

/// However many guests ask, and however long, a stage finds a connection.
#[tokio::test]
async fn guests_take_no_connection_of_the_stages() {
    let bed = std::sync::Arc::new(Bed::new().await);
    let api = guests_threads();
    let theirs = std::sync::Arc::clone(&bed);
    let held = api.spawn(async move {
        let mut held = Vec::new();
        for _ in 0..Options::default().work_connections / 2 {
            held.push(theirs.store.work.get().await.unwrap());
        }
        held
    });
    let held = held.await.unwrap();
    let theirs = std::sync::Arc::clone(&bed);
    let waiting = api.spawn(async move { drop(theirs.store.work.get().await.unwrap()) });
    let mut ours = Vec::new();
    for _ in 0..Options::default().work_connections {
        ours.push(bed.store.work.get().await.unwrap());
    }
    assert!(!waiting.is_finished(), "a guest took more than its share");
    drop(held);
    waiting.await.unwrap();
    drop(ours);
    api.shutdown_background();
    std::sync::Arc::into_inner(bed).unwrap().done().await;
}

/// A connection that somebody elsewhere was the first to need is a stage's all the
/// same, and goes on when that somebody is gone.
#[tokio::test]
async fn a_connection_lives_where_its_store_was_opened() {
    let bed = std::sync::Arc::new(Bed::new().await);
    let elsewhere = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let all = Options::default().work_connections;
    let theirs = std::sync::Arc::clone(&bed);
    let held = elsewhere.spawn(async move {
        let mut held = Vec::new();
        for _ in 0..all {
            held.push(theirs.store.work.get().await.unwrap());
        }
        held
    });
    let held = held.await.unwrap();
    tokio::task::spawn_blocking(move || drop(elsewhere)).await.unwrap();
    for client in &held {
        client.batch_execute("SELECT 1").await.unwrap();
    }
    drop(held);
    std::sync::Arc::into_inner(bed).unwrap().done().await;
}

async fn raw(schema: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path = {schema}; SET statement_timeout = '20s'")).await.unwrap();
    client
}

/// A node of the new release that starts would stop the old ones for as long as somebody's
/// longest query takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_waits_for_a_table_lets_others_pass() {
    let (schema, url) = (format!("t_{}", Uuid::now_v7().simple()), url());
    let open = || PostgresStore::open(&url, Options { schema: Some(schema.clone()), ..Options::default() });
    drop(open().await.unwrap());
    let (reader, other) = (raw(&schema).await, raw(&schema).await);
    let back = "ALTER TABLE run DROP COLUMN first_started_at, DROP COLUMN item; \
         ALTER TABLE history DROP COLUMN first_started_at, DROP COLUMN item; DELETE FROM migration WHERE version = 19";
    other.batch_execute(back).await.unwrap();
    reader.batch_execute("BEGIN; SELECT count(*) FROM history").await.unwrap();
    let opened = async {
        let store = open().await.unwrap();
        store.drop_schema().await.unwrap();
    };
    let meanwhile = async {
        let waits = "SELECT 1 FROM pg_locks WHERE relation = 'history'::regclass AND NOT granted";
        while other.query(waits, &[]).await.unwrap().is_empty() {}
        other.query("SELECT count(*) FROM history", &[]).await.expect("others read while the step waits");
        reader.batch_execute("COMMIT").await.unwrap();
    };
    tokio::join!(opened, meanwhile);
}
