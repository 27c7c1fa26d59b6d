//! Chain: starts the jobs that come after others.
//!
//! The end of a run is written down, in its own transaction, for each job that
//! waits for it. A pass reads what was written down, asks
//! [`decide`](rota_core::after::decide) what each job owes, and has the store make
//! the runs and take the ends away in one commit. The commit is guarded by the
//! ends and by the job's revision: a crash at any point leaves the ends where they
//! were, and two nodes that overlap for a moment still make each run once.
//!
//! A job that is paused, disabled or deleted, or has no room, gets a run that
//! ended as skipped, with the reason: what did not start is on record. What the
//! tenant's rate does not allow yet is made for later.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    after::{self, JobEnd},
    ids::JobId,
    run::{Labels, NewRun, Source, Trigger},
    store::{FollowEnds, Followed, JobRecord, StoreError, Write},
};
use serde_json::json;

use super::{PassReport, Stage, is_unknown};
use crate::{
    catalog::JobVersion,
    making::{Blueprint, Keys, refused_run, take_made},
    node::Node,
    quota,
};

/// Ends looked at in one go.
const BATCH: u32 = 500;

pub struct Chain {
    node: Arc<Node>,
    pending: Option<(Write, Vec<FollowEnds>)>,
}

impl Chain {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, pending: None }
    }

    async fn plan(&self, ends: Vec<JobEnd>, now: Timestamp) -> Result<Vec<FollowEnds>, StoreError> {
        let mut ids: Vec<JobId> = ends.iter().map(|end| end.downstream).collect();
        ids.dedup();
        let mut waiting: HashMap<JobId, Vec<JobEnd>> = HashMap::with_capacity(ids.len());
        for end in ends {
            waiting.entry(end.downstream).or_default().push(end);
        }
        let mut items = Vec::with_capacity(ids.len());
        // Read anew, so that an edit or a pause counts from its acknowledgement on.
        for record in self.node.store.jobs(&ids).await?.into_iter().flatten() {
            let Some(ends) = waiting.remove(&record.id) else { continue };
            if let Some(job) = self.node.catalog.version(record.id, record.version).await? {
                items.extend(self.item(&record, &job, ends, now).await?);
            } else {
                items.push(set_aside(&record, &ends));
            }
        }
        quota::delay_over_rate(&self.node, items.iter_mut().flat_map(|item| &mut item.runs).collect(), now).await?;
        Ok(items)
    }

    async fn item(
        &self,
        record: &JobRecord,
        job: &JobVersion,
        ends: Vec<JobEnd>,
        now: Timestamp,
    ) -> Result<Option<FollowEnds>, StoreError> {
        let node = &self.node;
        let lanes = node.catalog.lanes(&[&job.terms.lane], |key| node.lane_mode(key), |key| node.is_able(key)).await?;
        let Some(lane) = lanes.first().copied().flatten() else { return Ok(None) };
        let asked = job.document.triggers.as_ref().and_then(|triggers| triggers.after.as_ref());
        let due = after::decide(asked, &ends);
        let quotas = node.catalog.quotas(record.tenant);
        let make = |ends: &[JobEnd]| {
            let blueprint = Blueprint {
                tenant: record.tenant,
                job,
                lane,
                part: node.partition_for_new(),
                quotas: quotas.as_deref(),
                payload: None,
                labels: Labels::new(),
                ready_at: now,
                trigger: trigger(ends),
                priority: None,
            };
            match blueprint.keys(node, now) {
                Ok(keys) => blueprint.run(node, keys, now),
                Err(why) => refused_run(blueprint.run(node, Keys::default(), now), &why),
            }
        };
        let stands_still = standstill(record, now);
        let (runs, mut skips): (Vec<NewRun>, Vec<(NewRun, String)>) = match stands_still {
            None => (due.runs.iter().map(|ends| make(ends)).collect(), Vec::new()),
            Some(why) => (Vec::new(), due.runs.iter().map(|ends| (make(ends), why.to_owned())).collect()),
        };
        skips.extend(due.unwanted.chunks(1).map(|end| (make(end), "edited".to_owned())));
        let used = due.runs.iter().flatten().chain(&due.superseded).chain(&due.unwanted);
        Ok(Some(FollowEnds {
            downstream: record.id,
            job_revision: record.revision,
            used: used.map(|end| end.run).collect(),
            held: due.held.iter().map(|end| end.run).collect(),
            runs,
            skips,
        }))
    }

    async fn commit(&mut self, write: Write, items: Vec<FollowEnds>) -> Result<usize, StoreError> {
        match self.node.store.follow_ends(&write, &items).await {
            Ok(answers) => Ok(self.take_followed(&write, items, answers)),
            Err(error) => {
                if is_unknown(&error) {
                    self.pending = Some((write, items));
                }
                Err(error)
            }
        }
    }

    fn take_followed(&self, write: &Write, items: Vec<FollowEnds>, answers: Vec<Followed>) -> usize {
        let (mut made, mut made_answers, mut done) = (Vec::new(), Vec::new(), 0);
        for (item, answer) in items.into_iter().zip(answers) {
            match answer {
                Followed::Done(answers) => {
                    done += 1;
                    made.extend(item.runs);
                    made_answers.extend(answers);
                }
                Followed::Stale => self.node.catalog.forget_job(item.downstream),
            }
        }
        self.node.stats.enqueued.add(made.len());
        take_made(&self.node, write, made, &made_answers);
        done
    }
}

/// Keeps ends that nothing can be made of now, out of the way of the others'.
fn set_aside(record: &JobRecord, ends: &[JobEnd]) -> FollowEnds {
    FollowEnds {
        downstream: record.id,
        job_revision: record.revision,
        used: Vec::new(),
        held: ends.iter().map(|end| end.run).collect(),
        runs: Vec::new(),
        skips: Vec::new(),
    }
}

/// Where a run that comes after others comes from.
fn trigger(ends: &[JobEnd]) -> Trigger {
    let after = ends.iter().map(|end| json!({ "job": end.upstream, "run": end.run, "verdict": end.verdict }));
    let metadata = json!({ "after": after.collect::<Vec<_>>() });
    Trigger { metadata: Some(metadata), ..Trigger::plain(Source::Job) }
}

/// Why a job does not start anything now.
fn standstill(record: &JobRecord, now: Timestamp) -> Option<&'static str> {
    let paused =
        record.pause.as_ref().is_some_and(|pause| pause.since <= now && pause.until.is_none_or(|until| now < until));
    match (record.deleted, !record.enabled || paused) {
        (true, _) => Some("deleted"),
        (false, true) => Some("paused"),
        (false, false) => None,
    }
}

#[async_trait]
impl Stage for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let mut done = 0;
        if let Some((write, items)) = self.pending.take() {
            done += self.commit(write, items).await?;
        }
        let next_at = Some(self.node.options.look_every.after(now));
        let found = self.node.store.job_ends(BATCH).await?;
        self.node.coming.set_chained(found.waited_for);
        if !self.node.territory.is_steward() || found.ends.is_empty() {
            return Ok(PassReport { done, more: false, next_at });
        }
        let more = found.ends.len() >= BATCH as usize;
        let items = self.plan(found.ends, now).await?;
        if !items.is_empty() {
            done += self.commit(self.node.write(now), items).await?;
        }
        Ok(PassReport { done, more: more && done > 0, next_at })
    }
}
