//! What every run needs before its attempt begins, whoever executes it.
//!
//! Its start is not overdue, its job's version can be read, and its rate has a token for it.
//! What cannot be had yet holds the run here; what can never be had ends it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{RunId, WorkerId},
    rate::Taken,
    run::{Hold, Run},
    store::{By, StoreError, TokenAsk},
};
use serde_json::Value;

use super::ends::{overdue, unreadable};
use crate::{
    catalog::JobVersion, making::rate_key, node::Node, outbox::Ended, render::Scope, runs::TakenRun, supervise::running,
};

/// A run on its way to its start.
pub(crate) trait Startable {
    fn run(&self) -> &Run;

    fn by(&self) -> By;

    /// The run as if its attempt had begun.
    fn into_running(self, now: Timestamp) -> Run;

    /// It is held back from now on.
    fn held(&self, node: &Node);
}

impl Startable for TakenRun {
    fn run(&self) -> &Run {
        &self.run
    }

    fn by(&self) -> By {
        self.by
    }

    fn into_running(self, now: Timestamp) -> Run {
        running(self.run, Hold::Owned, now)
    }

    fn held(&self, _node: &Node) {}
}

/// A run that is leased to a remote worker.
pub(crate) struct LeasedRun {
    pub worker: WorkerId,
    pub run: Run,
}

impl Startable for LeasedRun {
    fn run(&self) -> &Run {
        &self.run
    }

    fn by(&self) -> By {
        By::Lease
    }

    fn into_running(self, _now: Timestamp) -> Run {
        self.run
    }

    fn held(&self, node: &Node) {
        if let Some(session) = node.remote.sessions().get_mut(self.worker) {
            session.held.insert(self.run.lease());
        }
    }
}

/// A run that waits for nothing but its start.
pub(crate) struct Able<T> {
    pub taken: T,
    pub job: Arc<JobVersion>,
}

/// See the module.
pub(crate) struct Pipeline<T> {
    node: Arc<Node>,
    /// Runs that may go on at a later time.
    held: BTreeMap<(Timestamp, RunId), T>,
}

impl<T: Startable> Pipeline<T> {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, held: BTreeMap::new() }
    }

    /// How many are held back.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn next_at(&self) -> Option<Timestamp> {
        self.held.keys().next().map(|(at, _)| *at)
    }

    pub fn held_runs(&self) -> impl Iterator<Item = &RunId> {
        self.held.keys().map(|(_, run)| run)
    }

    /// Holds a run back, no longer than it may be started at all.
    pub fn hold(&mut self, taken: T, until: Timestamp) {
        taken.held(&self.node);
        let until = taken.run().start_by().map_or(until, |by| until.min(by));
        self.held.insert((until, taken.run().id), taken);
    }

    /// Takes those whose time has come.
    pub fn take_due(&mut self, now: Timestamp) -> Vec<T> {
        let mut due = Vec::new();
        while let Some(first) = self.held.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        due
    }

    /// Takes those among these runs, as `pick` says.
    pub fn take_picked(&mut self, pick: impl Fn(&RunId) -> bool) -> Vec<T> {
        let keys: Vec<_> = self.held.keys().filter(|(_, id)| pick(id)).copied().collect();
        keys.iter().filter_map(|key| self.held.remove(key)).collect()
    }

    pub fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.held).into_values()
    }

    /// The clock was set: what waits for its turn asks for it again.
    pub fn stepped(&mut self, now: Timestamp) {
        self.held = std::mem::take(&mut self.held).into_iter().map(|((_, run), held)| ((now, run), held)).collect();
    }

    /// Ends those that must not be started any more.
    pub fn without_overdue(&self, mut taken: Vec<T>, now: Timestamp) -> Vec<T> {
        let mut ended = Vec::new();
        taken.retain(|one| match overdue(one.run(), one.by(), now) {
            Some(end) => {
                ended.push(end);
                false
            }
            None => true,
        });
        self.node.post(ended);
        taken
    }

    /// With the versions of their jobs. What has none that can be read is ended.
    pub async fn with_versions(&mut self, taken: Vec<T>, now: Timestamp) -> Result<Vec<Able<T>>, StoreError> {
        let found = match self.versions(&taken).await {
            Ok(found) => found,
            Err(error) => {
                self.hold_all(taken, now);
                return Err(error);
            }
        };
        let mut able = Vec::with_capacity(taken.len());
        let mut ended: Vec<Ended> = Vec::new();
        for (taken, job) in taken.into_iter().zip(found) {
            if let Some(job) = job {
                able.push(Able { taken, job });
            } else {
                let by = taken.by();
                ended.push(unreadable(taken.into_running(now), by, now));
            }
        }
        self.node.post(ended);
        Ok(able)
    }

    async fn versions(&self, taken: &[T]) -> Result<Vec<Option<Arc<JobVersion>>>, StoreError> {
        let catalog = &self.node.catalog;
        let mut found = catalog.versions(taken.iter().map(|one| (one.run().job, one.run().version)));
        for (slot, one) in found.iter_mut().zip(taken) {
            if slot.is_none() {
                *slot = catalog.version(one.run().job, one.run().version).await?;
            }
        }
        Ok(found)
    }

    /// Holds back what its rate does not allow yet.
    pub async fn with_tokens(&mut self, able: Vec<Able<T>>, now: Timestamp) -> Result<Vec<Able<T>>, StoreError> {
        let limited: Vec<(&Run, &JobVersion)> = able.iter().map(|able| (able.taken.run(), &*able.job)).collect();
        let not_before = match not_before(&self.node, &limited, now).await {
            Ok(not_before) if not_before.is_empty() => return Ok(able),
            Ok(not_before) => not_before,
            Err(error) => {
                self.hold_all(able.into_iter().map(|able| able.taken), now);
                return Err(error);
            }
        };
        let mut free = Vec::with_capacity(able.len());
        for (n, able) in able.into_iter().enumerate() {
            match not_before.get(&n) {
                None => free.push(able),
                Some(at) => self.hold(able.taken, *at),
            }
        }
        Ok(free)
    }

    /// The store did not answer: they go on when it does.
    fn hold_all(&mut self, taken: impl IntoIterator<Item = T>, now: Timestamp) {
        for one in taken {
            self.hold(one, now);
        }
    }
}

/// When those of these begin, by their place, that their rate does not let begin now. A token
/// is taken for each that may.
async fn not_before(
    node: &Node,
    runs: &[(&Run, &JobVersion)],
    now: Timestamp,
) -> Result<HashMap<usize, Timestamp>, StoreError> {
    let mut by_key: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (n, (run, job)) in runs.iter().enumerate().filter(|(_, (_, job))| job.rate.is_some()) {
        by_key.entry(rate_key_of(node, run, job)).or_default().push(n);
    }
    if by_key.is_empty() {
        return Ok(HashMap::new());
    }
    let ask = |(key, limited): (&String, &Vec<usize>)| {
        Some(TokenAsk { key: key.clone(), rate: runs[limited[0]].1.rate?, want: limited.len() as u32, ahead: false })
    };
    let asks: Vec<TokenAsk> = by_key.iter().filter_map(ask).collect();
    let taken = node.store.take_tokens(&asks, now).await?;
    let mut not_before = HashMap::new();
    for (limited, Taken { tokens, next_at }) in by_key.into_values().zip(taken) {
        let over = limited.into_iter().skip(tokens as usize);
        not_before.extend(over.map(|n| (n, next_at.max(Span::millis(1).after(now)))));
    }
    Ok(not_before)
}

fn rate_key_of(node: &Node, run: &Run, job: &JobVersion) -> String {
    let parsed: Option<Value> = run.payload.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let payload = parsed.as_ref().unwrap_or(&job.payload);
    let scope = Scope { payload, labels: &run.labels, vars: &job.document.vars, run: &Value::Null };
    // A key that cannot be made counts with all others that cannot.
    rate_key(node, job, run.tenant, &scope).unwrap_or_else(|_| format!("{}/{}/", run.tenant, run.job))
}
