//! What people and operators do besides triggering, cancelling and editing: toggles
//! in a row, jobs deleted and created again, dead letters redriven and discarded,
//! backfills, requests repeated under their key, and rows put into the inbox.
//!
//! Whatever has a dry run is asked for it first. If nothing happened between the two,
//! the dry run must have counted what the act then did.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{RunId, ScheduleId, TenantId},
    job::JobDocument,
    run::{NewRun, RunState, Source, Verdict},
    store::*,
};
use rota_engine::{Cancel, EngineError, Handle, JobRef, Made, Redrive, RunAsk, backfill};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    clients::{self, Job},
    planted::Bug,
    tenants,
    weather::Dice,
    witness::{Seen, Witness},
    world::{Op, done},
};
use crate::faulty::wait;

/// A request under a key of its caller's.
#[derive(Clone, Debug)]
struct Keyed {
    tenant: TenantId,
    key: String,
    job: String,
    k: u64,
}

/// What people have asked for, so that they can ask again.
#[derive(Default)]
pub struct People {
    keyed: Vec<Keyed>,
}

/// Who does something, and to what.
pub struct Scene<'a> {
    pub dice: &'a Dice,
    pub witness: &'a Arc<Witness>,
    pub jobs: &'a mut [Job],
    pub tenants: &'a [TenantId],
    /// The nodes that can be asked.
    pub handles: Vec<Handle>,
}

impl Scene<'_> {
    /// Any node: people do not know which they speak to.
    fn node(&self) -> (usize, Handle) {
        let n = self.dice.below(self.handles.len() as u64) as usize;
        (n, self.handles[n].clone())
    }
}

impl People {
    /// One act, as requests to some of the nodes.
    pub fn act(&mut self, scene: &mut Scene<'_>) -> Vec<(usize, Op)> {
        let n = scene.dice.below(scene.jobs.len() as u64) as usize;
        let tenant = scene.tenants[scene.jobs[n].owner];
        match scene.dice.below(15) {
            0..3 => Self::toggle_in_a_row(scene, n, tenant),
            3 => Self::create_again(scene, n, tenant),
            4 | 5 => Self::redrive(scene),
            6 => Self::discard(scene),
            7 | 8 => Self::backfill(scene),
            9..12 => self.ask_under_a_key(scene, n, tenant),
            12 => Self::put_into_the_inbox(scene, n),
            13 => Self::cancel_some(scene, tenant),
            _ => Self::save_too_many(scene),
        }
    }

    /// Several changes of mind within a moment, through any nodes.
    fn toggle_in_a_row(scene: &mut Scene<'_>, n: usize, tenant: TenantId) -> Vec<(usize, Op)> {
        let mut saves = Vec::new();
        for _ in 0..scene.dice.between(2, 6) {
            let job = &mut scene.jobs[n];
            if scene.dice.percent(50) {
                job.toggle();
            } else {
                job.toggle_schedule(scene.dice);
            }
            let document = job.document();
            let (node, handle) = scene.node();
            saves.push((node, done(save(handle, Arc::clone(scene.witness), tenant, document))));
        }
        saves
    }

    fn create_again(scene: &Scene<'_>, n: usize, tenant: TenantId) -> Vec<(usize, Op)> {
        let (node, handle) = scene.node();
        let (name, document, keep) = (scene.jobs[n].name.clone(), scene.jobs[n].document(), scene.dice.percent(50));
        let act = async move {
            clients::delete_job(handle.clone(), tenant, name, keep).await?;
            clients::save(handle, tenant, document).await
        };
        vec![(node, done(act))]
    }

    fn redrive(scene: &Scene<'_>) -> Vec<(usize, Op)> {
        let (node, handle) = scene.node();
        let how = Redrive {
            by: Some("ann".into()),
            latest: scene.dice.percent(50),
            again: scene.dice.percent(15),
            dry_run: false,
        };
        // Dead letters of one job, as a filter finds them, or any run that ended.
        let dead = scene.witness.dead();
        let ended = if dead.is_empty() || scene.dice.percent(30) { scene.witness.ended() } else { dead };
        let Some(first) = scene.dice.pick(&ended).copied() else { return Vec::new() };
        let mut runs = vec![first.1];
        if scene.dice.percent(50) {
            runs = ended.iter().filter(|(job, _)| *job == first.0).map(|(_, run)| *run).take(4).collect();
        }
        vec![(node, done(redrive(handle, Arc::clone(scene.witness), runs, how)))]
    }

    fn discard(scene: &Scene<'_>) -> Vec<(usize, Op)> {
        let (node, handle) = scene.node();
        let Some((_, run)) = scene.dice.pick(&scene.witness.dead()).copied() else { return Vec::new() };
        vec![(node, done(async move { handle.discard(&[run], "ben").await }))]
    }

    fn backfill(scene: &Scene<'_>) -> Vec<(usize, Op)> {
        let (node, handle) = scene.node();
        let Some(schedule) = scene.dice.pick(&scene.witness.schedules()).copied() else { return Vec::new() };
        let to = Span::millis(scene.dice.between(0, 20_000)).before(handle.now());
        let from = Span::millis(scene.dice.between(1_000, 20_000)).before(to);
        let again = scene.dice.percent(20);
        let ask = backfill::Ask { schedule, from, to, again, dry_run: false, by: None };
        vec![(node, done(fill(handle, Arc::clone(scene.witness), ask)))]
    }

    /// The same request is asked again as often as not, by one who does not know
    /// what became of it.
    fn ask_under_a_key(&mut self, scene: &Scene<'_>, n: usize, tenant: TenantId) -> Vec<(usize, Op)> {
        let again = scene.dice.pick(&self.keyed).filter(|_| scene.dice.percent(60)).cloned();
        let keyed = again.unwrap_or_else(|| {
            let key = format!("request {}", self.keyed.len());
            let job = if scene.jobs[n].name == "poison" { "beat".into() } else { scene.jobs[n].name.clone() };
            let tenant = if job == "beat" { scene.tenants[0] } else { tenant };
            Keyed { tenant, key, job, k: scene.dice.below(2) }
        });
        self.keyed.push(keyed.clone());
        let (node, handle) = scene.node();
        vec![(node, done(once(handle, Arc::clone(scene.witness), keyed)))]
    }

    fn put_into_the_inbox(scene: &Scene<'_>, n: usize) -> Vec<(usize, Op)> {
        let job = &scene.jobs[n];
        if job.name != "poison" {
            let keyed = scene.dice.percent(30).then(|| scene.dice.below(3));
            scene.witness.put_inbox(tenants::NAMES[job.owner], &job.name, keyed);
        }
        Vec::new()
    }

    fn cancel_some(scene: &Scene<'_>, tenant: TenantId) -> Vec<(usize, Op)> {
        let (node, handle) = scene.node();
        let ask = Cancel { by: None, reason: None, grace: Some(Span::secs(1)) };
        let query = RunQuery { tenant: Some(tenant), ..RunQuery::default() };
        vec![(node, done(async move { handle.cancel_all(query, &ask, 3, false).await }))]
    }

    fn save_too_many(scene: &Scene<'_>) -> Vec<(usize, Op)> {
        let (node, handle) = scene.node();
        let (tenant, document) = (scene.tenants[1], tenants::too_many().document());
        vec![(node, done(clients::save(handle, tenant, document)))]
    }
}

/// Checks a document, then saves it.
async fn save(
    handle: Handle,
    witness: Arc<Witness>,
    tenant: TenantId,
    document: JobDocument,
) -> Result<(), EngineError> {
    let turn = witness.turn();
    let checked = handle.check_job(tenant, &document, Expect::Anything).await?;
    let saved = handle.save_job(tenant, &document, None, Expect::Anything).await?;
    if witness.turn() == turn {
        let told = |saved: &rota_engine::definitions::Saved| (saved.version, saved.changed);
        witness.expect_same("a save", &told(&checked), &told(&saved));
    }
    Ok(())
}

async fn redrive(handle: Handle, witness: Arc<Witness>, runs: Vec<RunId>, how: Redrive) -> Result<(), EngineError> {
    let turn = witness.turn();
    let asked = handle.redrive(&runs, &Redrive { dry_run: true, ..how.clone() }).await?;
    let made = handle.redrive(&runs, &how).await?;
    if witness.turn() == turn {
        let told = |made: &[Option<Made>]| made.iter().map(|made| made.as_ref().map(shape)).collect::<Vec<_>>();
        witness.expect_same("a redrive", &told(&asked), &told(&made));
    }
    Ok(())
}

/// What was answered, without the ids that two runs cannot share.
fn shape(made: &Made) -> String {
    match made {
        Made::Run { status, .. } => format!("{status:?}"),
        other => other.to_string(),
    }
}

async fn fill(handle: Handle, witness: Arc<Witness>, ask: backfill::Ask) -> Result<(), EngineError> {
    let turn = witness.turn();
    let asked = handle.backfill(backfill::Ask { dry_run: true, ..ask.clone() }).await?;
    let filled = handle.backfill(ask).await?;
    if witness.turn() == turn {
        witness.expect_same("a backfill", &asked, &filled);
    }
    Ok(())
}

async fn once(handle: Handle, witness: Arc<Witness>, keyed: Keyed) -> Result<(), EngineError> {
    let Keyed { tenant, key, job, k } = keyed;
    let fingerprint = [xxh3_64_with_seed(key.as_bytes(), 0) as u8; 32];
    let request = Request { tenant, key: key.clone(), fingerprint, expires_at: Span::secs(90_000).after(handle.now()) };
    let ask = RunAsk::of(tenant, JobRef::Name(job)).with_payload(json!({ "k": k }));
    let made = handle.enqueue_once(vec![ask], Some(request)).await?;
    if let Some(Made::Run { id, .. }) = made.first() {
        witness.answered(tenant, &key, *id);
    }
    Ok(())
}

/// What the witness knows of all this.
#[derive(Default)]
pub struct Acts {
    /// Rows of the inbox, as others' transactions left them.
    inbox: BTreeMap<i64, InboxItem>,
    rows: i64,
    /// How often a request of the inbox was made a run of.
    admitted: BTreeMap<String, usize>,
    /// What was created under a request's key, and what was answered for it.
    created: BTreeMap<(TenantId, String), RunId>,
    answers: BTreeMap<(TenantId, String), RunId>,
    redriven: BTreeSet<RunId>,
    discarded: BTreeSet<RunId>,
    /// Instants that were backfilled, each once unless somebody wanted it again.
    filled: BTreeSet<(ScheduleId, Timestamp)>,
}

/// The request of the inbox that a run was created for.
fn row_of(run: &NewRun) -> Option<String> {
    let payload = run.payload.as_deref().filter(|_| run.trigger.source == Source::Api)?;
    serde_json::from_str::<Value>(payload).ok()?.get("row")?.as_str().map(str::to_owned)
}

impl Acts {
    /// A write created a run.
    pub fn made(&mut self, write: &Write, run: &NewRun) -> Result<(), String> {
        if let Some(from) = run.trigger.redrives() {
            self.redriven.insert(from);
        }
        if let Some(row) = row_of(run) {
            let count = self.admitted.entry(row.clone()).or_default();
            *count += 1;
            if *count > 1 {
                return Err(format!("the inbox's {row} was admitted {count} times"));
            }
        }
        if let Some(request) = &write.request
            && let Some(other) = self.created.insert((request.tenant, request.key.clone()), run.id)
        {
            return Err(format!("the key `{}` created {} after {other}", request.key, run.id));
        }
        let schedule = run.trigger.metadata.as_ref().and_then(|metadata| metadata.get("schedule")?.as_i64());
        if let (Some(schedule), Some(planned_at), true) = (schedule, run.trigger.planned_at, run.once.is_some())
            && !self.filled.insert((ScheduleId(schedule), planned_at))
        {
            return Err(format!("schedule {schedule}: the instant {planned_at} was backfilled twice"));
        }
        Ok(())
    }
}

impl Witness {
    /// Changes whenever anybody gets on: what is the same before and after happened at
    /// one moment.
    pub fn turn(&self) -> u64 {
        self.weather.turn()
    }

    pub fn expect_same<T: PartialEq + Debug>(&self, what: &str, dry: &T, done: &T) {
        if dry != done {
            self.with(|seen| seen.wrong(format!("the dry run of {what} answered {dry:?}, the act {done:?}")));
        }
    }

    pub fn answered(&self, tenant: TenantId, key: &str, run: RunId) {
        self.with(|seen| {
            let first = *seen.acts.answers.entry((tenant, key.into())).or_insert(run);
            if first != run {
                seen.wrong(format!("the key `{key}` was answered with {run} after {first}"));
            }
        });
    }

    /// Somebody's own transaction puts a request into the inbox. A key is that of
    /// others, too: their requests are the same but for their row.
    pub fn put_inbox(&self, tenant: &str, job: &str, key: Option<u64>) {
        let at = self.weather.store_now();
        self.with(|seen| {
            seen.acts.rows += 1;
            let id = seen.acts.rows;
            // One key is one request, so it says the same each time.
            let key = key.map(|key| format!("key {key} of {job}"));
            let row = key.clone().unwrap_or_else(|| format!("row {id}"));
            let mut body = json!({ "tenant": tenant, "job": job, "payload": { "k": 0, "row": row } });
            if let Some(key) = key {
                body["key"] = json!(key);
            }
            seen.acts.inbox.insert(id, InboxItem { id, at, body: body.to_string() });
        });
    }

    pub fn inbox_rows(&self, limit: u32) -> Vec<InboxItem> {
        self.with(|seen| seen.acts.inbox.values().take(limit as usize).cloned().collect())
    }

    /// Whether the rows are there to be taken by a write, as the store guards it.
    pub fn may_take(&self, write: &Write, rows: &[i64]) -> Result<(), StoreError> {
        let free = self.with(|seen| seen.knows(write) || rows.iter().all(|row| seen.acts.inbox.contains_key(row)));
        let source = "a row of the inbox was taken by another".into();
        if free { Ok(()) } else { Err(StoreError::NotApplied { what: "enqueue runs", source }) }
    }

    pub fn take_rows(&self, seen: &mut Seen, rows: &[i64]) {
        if self.planted.bug != Some(Bug::InboxRowKept) {
            seen.acts.inbox.retain(|row, _| !rows.contains(row));
        }
    }

    /// A dry run leaves no trace.
    pub fn dry(
        &self,
        runs: &[NewRun],
        work: impl FnOnce() -> Result<Vec<Enqueued>, StoreError>,
    ) -> Result<Vec<Enqueued>, StoreError> {
        let mut ids = self.live();
        ids.extend(runs.iter().map(|run| run.id));
        let before = wait(self.store.runs(&ids))?;
        let answers = work()?;
        if wait(self.store.runs(&ids))? != before {
            self.with(|seen| seen.wrong("a dry run changed something"));
        }
        Ok(answers)
    }

    pub fn put_away(&self, runs: &[RunId], answers: &[bool]) {
        let discarded = runs.iter().zip(answers).filter(|(_, done)| **done).map(|(run, _)| *run);
        self.with(|seen| seen.acts.discarded.extend(discarded));
    }

    /// What was done about runs that had ended is marked beside them, and no dead
    /// letter is forgotten that nobody dealt with.
    pub fn review_dead(&self, at_rest: bool) {
        let (redriven, discarded, rows) = self.with(|seen| {
            let acts = &seen.acts;
            let all = |runs: &BTreeSet<RunId>| runs.iter().copied().collect::<Vec<_>>();
            (all(&acts.redriven), all(&acts.discarded), acts.inbox.len())
        });
        let marks = wait(self.store.dead_marks(&redriven)).unwrap();
        let unmarked = redriven
            .iter()
            .zip(marks)
            .find(|(_, mark)| mark.as_ref().is_none_or(|mark| mark.fate != DeadFate::Redriven));
        if let Some((run, mark)) = unmarked {
            self.with(|seen| seen.wrong(format!("run {run} was redriven, and its mark is {mark:?}")));
        }
        let marks = wait(self.store.dead_marks(&discarded)).unwrap();
        if let Some((run, _)) = discarded.iter().zip(marks).find(|(_, mark)| mark.is_none()) {
            self.with(|seen| seen.wrong(format!("run {run} was discarded, and is not marked")));
        }
        let open = wait(self.store.open_dead(10_000)).unwrap().count;
        let waiting = self.open_dead();
        if open != waiting as u64 {
            self.with(|seen| seen.wrong(format!("{open} dead letters are open, and {waiting} wait for somebody")));
        }
        if at_rest && rows > 0 {
            self.with(|seen| seen.wrong(format!("{rows} rows of the inbox were not admitted")));
        }
    }

    /// Dead letters that nobody has dealt with.
    fn open_dead(&self) -> usize {
        self.with(|seen| {
            let dealt = |run: &RunId| seen.acts.redriven.contains(run) || seen.acts.discarded.contains(run);
            let open = |run: &rota_core::run::Run| {
                matches!(run.state, RunState::Finished { verdict: Verdict::Dead, .. }) && run.followed_by().is_none()
            };
            seen.finished().filter(|run| open(run) && !dealt(&run.id)).count()
        })
    }
}
