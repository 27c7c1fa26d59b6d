//! What one schedule that is due makes, with all that has to be known for it at hand.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use rota_core::{
    calendar::{Calendar, named},
    fire::{self, Allowance, Input, Live, Start},
    ids::{JobId, LaneId, Partition, ScheduleId, TenantId},
    job::template::has_tags,
    quota::Quotas,
    run::{CancelAsk, NewRun, Source, Status, Trigger},
    store::{DueCursor, FireItem, LiveRun, Pauses},
};
use serde_json::{Value, json};

use crate::{
    catalog::{JobEntry, ScheduleEntry},
    executors::render::{RenderError, Values},
    making::{Blueprint, Keys, Unfit, refused_run},
    node::Node,
};

/// All that planning a batch needs.
pub(super) struct Knowledge {
    pub jobs: HashMap<JobId, Arc<JobEntry>>,
    pub lanes: HashMap<JobId, LaneId>,
    pub live: HashMap<ScheduleId, Vec<LiveRun>>,
    pub calendars: HashMap<TenantId, Arc<HashMap<String, Calendar>>>,
    /// Of the tenants that have any.
    pub quotas: HashMap<TenantId, Arc<Quotas>>,
    pub pauses: Arc<Pauses>,
    pub part: Partition,
}

/// Of what a run is made.
#[derive(Clone, Copy)]
struct Definition<'a> {
    job: &'a JobEntry,
    entry: &'a ScheduleEntry,
    lane: LaneId,
}

/// Why a schedule that is due is left as it is. What it owes it goes on owing.
pub(super) enum Unfireable {
    NoJob,
    NoCalendar(String),
}

impl Knowledge {
    pub fn item(
        &self,
        node: &Node,
        due: DueCursor,
        entry: &ScheduleEntry,
        allowance: Option<Allowance>,
        now: Timestamp,
    ) -> Result<FireItem, Unfireable> {
        let job = self.jobs.get(&entry.record.job).ok_or(Unfireable::NoJob)?;
        let lane = *self.lanes.get(&entry.record.job).ok_or(Unfireable::NoJob)?;
        let of = Definition { job, entry, lane };
        let pauses = entry.pauses(job, &self.pauses);
        let empty = Vec::new();
        let live = self.live.get(&due.schedule).unwrap_or(&empty);
        let waiting = live.iter().filter(|run| run.status == Status::Blocked).count() as u64;
        let calendars = self.calendars_of(entry)?;
        let input = Input {
            schedule: &entry.schedule,
            id: due.schedule,
            cursor: due.cursor,
            pauses: &pauses,
            live: Live { active: live.len() as u64 - waiting, waiting },
            calendars: &calendars,
            allowance,
        };
        let plan = fire::plan(&input, now);
        let (mut cancel, mut runs) = (HashSet::new(), Vec::with_capacity(plan.runs.len()));
        for planned in &plan.runs {
            if planned.start == Start::Replacing {
                cancel.extend(live.iter().map(|run| run.id));
            }
            let follows = planned.start != Start::Free;
            runs.push(NewRun { follows, ..self.run(node, &of, planned, now) });
        }
        let ask = || CancelAsk {
            by: None,
            reason: Some("a newer run of the same schedule".into()),
            grace: job.version.document.cancel_grace(),
        };
        Ok(FireItem {
            due,
            job: job.record.id,
            job_revision: job.record.revision,
            next: plan.next,
            next_if_refused: plan.next_if_refused,
            runs,
            skips: plan.skips,
            cancel_ask: (!cancel.is_empty()).then(ask),
            cancel: cancel.into_iter().collect(),
        })
    }

    fn calendars_of(&self, entry: &ScheduleEntry) -> Result<Vec<&Calendar>, Unfireable> {
        // Those of its tenant were read if it names any.
        let Some(all) = self.calendars.get(&entry.record.tenant) else { return Ok(Vec::new()) };
        named(&entry.spec.calendars, all)
            .map_err(|missing| Unfireable::NoCalendar(missing.first().map(ToString::to_string).unwrap_or_default()))
    }

    fn run(&self, node: &Node, of: &Definition<'_>, planned: &fire::PlannedRun, now: Timestamp) -> NewRun {
        let Definition { job, entry, lane } = *of;
        let trigger = Trigger {
            schedule: Some(entry.record.id),
            planned_at: Some(planned.planned_at),
            ..Trigger::plain(Source::Schedule)
        };
        let payload = payload_of(node, job, entry, planned.planned_at);
        let refused = payload.as_ref().err().map(ToString::to_string);
        let blueprint = Blueprint {
            tenant: entry.record.tenant,
            job: &job.version,
            lane,
            part: self.part,
            quotas: self.quotas.get(&entry.record.tenant).map(|quotas| &**quotas),
            payload: payload.unwrap_or(None),
            labels: entry.spec.labels.clone(),
            ready_at: planned.due_at,
            trigger,
            priority: None,
        };
        let keys = match refused {
            Some(why) => Err(Unfit::Payload(why)),
            None => blueprint.keys(node, now),
        };
        let rearms = entry.spec.after_finish.is_some();
        match keys {
            Ok(keys) => NewRun { rearms, ..blueprint.run(node, keys, now) },
            // The instant is not lost: its run is made, and fails with the reason.
            Err(why) => NewRun { rearms, ..refused_run(blueprint.run(node, Keys::default(), now), &why) },
        }
    }
}

/// A schedule's payload, with what its templates say of this instant.
pub(crate) fn payload_of(
    node: &Node,
    job: &JobEntry,
    entry: &ScheduleEntry,
    planned_at: Timestamp,
) -> Result<Option<Value>, RenderError> {
    let payload = &entry.spec.payload;
    if payload.is_null() || !has_tags(&payload.to_string()) {
        return Ok((!payload.is_null()).then(|| payload.clone()));
    }
    let about = json!({ "name": entry.spec.name, "planned_at": planned_at, "timezone": entry.spec.timezone });
    let values = Values::new()
        .with("schedule", about)
        .with("labels", &entry.spec.labels)
        .with("vars", &job.version.document.vars);
    node.renderer.value(payload, &values).map(Some)
}
