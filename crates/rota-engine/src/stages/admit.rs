//! Admit: makes runs of the requests that lie in the inbox.
//!
//! A request was written inside somebody's own transaction, in any language.
//! It becomes a run by the same code as everybody's, and its row goes in the
//! same transaction. What its tenant's rate does not allow yet is made for later,
//! so that it stands in nobody's way. One that cannot be made into a run is taken away and told
//! of, so that it does not stand in the way of those behind it.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::TenantId,
    run::{Labels, NewRun, Source, Trigger},
    store::{InboxItem, Request, StoreError, Write},
};
use serde::Deserialize;
use serde_json::Value;

use super::{PassReport, Stage, is_unknown};
use crate::{
    events::Event,
    making::{self, JobRef, RunAsk, take_made},
    node::Node,
    quota,
};

/// Requests admitted in one go.
const BATCH: u32 = 500;
/// A request's key is remembered this long.
const KEY_KEPT: Span = Span::secs(24 * 3_600);

#[derive(Debug, Deserialize)]
struct Body {
    tenant: String,
    job: String,
    payload: Option<Value>,
    #[serde(default)]
    labels: Labels,
    run_at: Option<Timestamp>,
    key: Option<String>,
}

/// Requests that are made into runs by one write.
struct InboxBatch {
    write: Write,
    runs: Vec<NewRun>,
    rows: Vec<i64>,
}

pub struct Admit {
    node: Arc<Node>,
    pending: Vec<InboxBatch>,
}

impl Admit {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, pending: Vec::new() }
    }

    async fn plan(&self, items: Vec<InboxItem>, now: Timestamp) -> Result<Vec<InboxBatch>, StoreError> {
        let (mut asks, mut asked) = (Vec::new(), Vec::new());
        let mut plain = InboxBatch { write: self.node.write(now), runs: Vec::new(), rows: Vec::new() };
        for item in items {
            match self.read(&item) {
                Ok((ask, request)) => {
                    asks.push(ask);
                    asked.push((item.id, request));
                }
                Err(why) => {
                    self.refuse(item.id, why);
                    plain.rows.push(item.id);
                }
            }
        }
        let mut groups = Vec::new();
        let mut all = making::plan(&self.node, asks, now).await?;
        quota::delay_over_rate(&self.node, all.iter_mut().filter_map(|one| one.as_mut().ok()).collect(), now).await?;
        for ((row, request), planned) in asked.into_iter().zip(all) {
            match (planned, request) {
                (Ok(run), None) => {
                    plain.rows.push(row);
                    plain.runs.push(run);
                }
                // A key is one row per request, so it needs a write of its own.
                (Ok(run), Some(request)) => groups.push(InboxBatch {
                    write: Write { request: Some(request), ..self.node.write(now) },
                    runs: vec![run],
                    rows: vec![row],
                }),
                (Err(made), _) => {
                    self.refuse(row, made.to_string());
                    plain.rows.push(row);
                }
            }
        }
        if !plain.rows.is_empty() {
            groups.push(plain);
        }
        Ok(groups)
    }

    fn read(&self, item: &InboxItem) -> Result<(RunAsk, Option<Request>), String> {
        let body: Body = serde_json::from_str(&item.body).map_err(|error| error.to_string())?;
        let tenant = self.node.catalog.tenant_named(&body.tenant);
        let tenant = tenant.ok_or_else(|| format!("there is no tenant `{}`", body.tenant))?;
        let request = body.key.map(|key| request(tenant, key, item));
        let ask = RunAsk {
            payload: body.payload,
            labels: body.labels,
            run_at: body.run_at,
            trigger: Trigger::plain(Source::Api),
            ..RunAsk::of(tenant, JobRef::Name(body.job))
        };
        Ok((ask, request))
    }

    fn refuse(&self, inbox: i64, why: String) {
        tracing::warn!(inbox, why, "a request in the inbox was refused");
        self.node.stats.refused.add(1);
        self.node.events.emit(|| Event::RequestRefused { inbox, why });
    }

    async fn commit(&mut self, group: InboxBatch) -> Result<usize, StoreError> {
        let write = self.node.store.enqueue(&group.write, &group.runs, &group.rows);
        match self.node.timed(group.runs.len(), write).await {
            Ok(answers) => {
                let count = group.runs.len();
                self.node.stats.enqueued.add(count);
                take_made(&self.node, &group.write, group.runs, &answers);
                Ok(count)
            }
            Err(StoreError::RequestDiffers) => {
                group.rows.iter().for_each(|row| self.refuse(*row, "its key was used before with another body".into()));
                let write = self.node.write(group.write.now);
                self.pending.push(InboxBatch { write, runs: Vec::new(), rows: group.rows });
                Ok(0)
            }
            Err(error) => {
                if is_unknown(&error) {
                    self.pending.push(group);
                }
                Err(error)
            }
        }
    }
}

/// The same body, whoever wrote it: the key's own row tells two apart.
fn request(tenant: TenantId, key: String, item: &InboxItem) -> Request {
    let mut fingerprint = [0; 32];
    for (n, part) in fingerprint.chunks_mut(8).enumerate() {
        part.copy_from_slice(&xxhash_rust::xxh3::xxh3_64_with_seed(item.body.as_bytes(), n as u64).to_le_bytes());
    }
    Request { tenant, key, fingerprint, expires_at: KEY_KEPT.after(item.at) }
}

#[async_trait]
impl Stage for Admit {
    fn name(&self) -> &'static str {
        "admit"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let mut done = 0;
        while let Some(group) = self.pending.pop() {
            done += self.commit(group).await?;
        }
        if !self.node.territory.is_steward() {
            return Ok(PassReport::until(self.node.options.look_every.after(now)));
        }
        let items = self.node.store.inbox(BATCH).await?;
        let more = items.len() >= BATCH as usize;
        if !items.is_empty() {
            self.node.catalog.read_tenants().await?;
            for group in self.plan(items, now).await? {
                done += self.commit(group).await?;
            }
        }
        Ok(PassReport { done, more, next_at: Some(self.node.options.look_every.after(now)) })
    }
}
