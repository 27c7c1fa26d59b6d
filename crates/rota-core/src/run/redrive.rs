//! A dead letter that is made again by itself.
//!
//! The terms travel with the run, so that whatever ends it (an attempt, a loss, a
//! sweep of the store) knows them without asking for its job. The new run is part
//! of the end: the store writes both in one transaction, and its id follows from
//! the run that died, so it cannot be made twice.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{NewRun, Run, RunState, Source, Trigger, UniqueAsk, Verdict};
use crate::{
    duration::Span,
    ids::{JobId, RunId, TenantId},
    ports::uuid_of,
    slot::{SlotAsk, UniqueKey, WhenFull},
};

/// How long it is known that a run was made again.
const KNOWN_FOR: Span = Span::secs(365 * 86_400);

/// How a run is made again by itself once it has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redrive {
    /// So long after its death.
    pub after: Span,
    /// How many runs may still follow one another.
    pub left: u16,
    /// How long each may wait to be started, counted from when it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_within: Option<Span>,
    /// How long each may take in all, counted alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_within: Option<Span>,
}

impl UniqueAsk {
    /// That a run is made again once, by whomever.
    pub fn redrive(tenant: TenantId, job: JobId, run: RunId, now: Timestamp) -> Self {
        Self { key: UniqueKey::new(tenant, job, &format!("redrive/{run}")), until: KNOWN_FOR.after(now) }
    }
}

impl Trigger {
    /// Of a run that is made of another again.
    pub fn redrive(from: RunId, by: Option<String>) -> Self {
        let metadata = Some(serde_json::json!({ "from": from }));
        Self { by, metadata, ..Self::plain(Source::Redrive) }
    }

    /// The run that this one is made of again.
    pub fn redrives(&self) -> Option<RunId> {
        let metadata = self.metadata.as_ref().filter(|_| self.source == Source::Redrive)?;
        metadata.get("from")?.as_str()?.parse().ok().map(RunId)
    }
}

impl Run {
    /// The run that follows this one by itself, where it has died at `at` and its
    /// terms allow another.
    ///
    /// It is the same work under the same version, key and payload. It has held no
    /// slot, so it waits for one like any delayed run, and is not refused.
    pub(super) fn follower(&self, at: Timestamp) -> Option<NewRun> {
        let redrive = self.redrive.filter(|redrive| redrive.left > 0 && self.parent.is_none())?;
        let ready_at = redrive.after.after(at);
        Some(NewRun {
            id: follower_id(self.id, at),
            tenant: self.tenant,
            job: self.job,
            version: self.version,
            lane: self.lane,
            part: self.part,
            priority: self.priority,
            ready_at,
            expires_at: redrive.start_within.map(|within| within.after(ready_at)),
            deadline_at: redrive.end_within.map(|within| within.after(ready_at)),
            trigger: Trigger { traceparent: self.trigger.traceparent, ..Trigger::redrive(self.id, None) },
            labels: self.labels.clone(),
            payload: self.payload.clone(),
            slot: self.slot.map(|claim| SlotAsk {
                key: claim.key,
                limit: claim.limit,
                when_full: WhenFull::Queue,
                max_queued: None,
                grace: Span::secs(0),
            }),
            unique: Some(UniqueAsk::redrive(self.tenant, self.job, self.id, at)),
            once: None,
            parent: None,
            after: Vec::new(),
            follows: false,
            rearms: false,
            redrive: Some(Redrive { left: redrive.left - 1, ..redrive }),
        })
    }

    /// Of a run that has died: the run that followed it by itself, and when that
    /// was to start.
    pub fn followed_by(&self) -> Option<(RunId, Timestamp)> {
        match self.state {
            RunState::Finished { at, verdict: Verdict::Dead } => {
                self.follower(at).map(|follower| (follower.id, follower.ready_at))
            }
            _ => None,
        }
    }
}

/// The id of the one run that follows another: the same, whoever works it out.
fn follower_id(run: RunId, at: Timestamp) -> RunId {
    let digest = Sha256::new().chain_update(b"redrive").chain_update(run.0.as_bytes()).finalize();
    let bits = digest.iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte));
    RunId(uuid_of(bits, at))
}
