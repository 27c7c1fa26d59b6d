//! Which runs a listing wants, decided on the decoded row, so that both stores
//! agree to the letter; and where a walk through partitions goes on.

use std::collections::HashSet;

use jiff::Timestamp;
use rota_core::{
    ids::{JobId, Partition, RunId, ScheduleId},
    run::{RunState, Status},
    store::{Pause, RunQuery, RunRecord},
};

/// The longest page.
pub const PAGE_MAX: u32 = 1_000;

/// The most rows that one page looks at.
pub const LOOK_MAX: usize = 10_000;

/// The partitions of a walk that are not wholly behind `after`, in order.
pub fn parts_from(parts: &[Partition], after: Option<ScheduleId>) -> Vec<Partition> {
    let from = after.map(Partition::of_schedule);
    let mut parts: Vec<Partition> =
        parts.iter().copied().filter(|part| from.is_none_or(|from| *part >= from)).collect();
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// The pause that a wish leaves in the place of `old`; none where there is nothing to
/// be lifted.
pub fn changed_pause(wish: Option<&Pause>, old: Option<Pause>, now: Timestamp) -> Option<Pause> {
    match wish {
        Some(pause) => Some(pause.clone().over(old)),
        None => old.filter(|old| old.holds(now)).map(|old| old.lifted(now)),
    }
}

/// A query, with what had to be looked up for it.
pub struct Sought {
    tagged: Option<HashSet<JobId>>,
    begun: HashSet<RunId>,
    live: bool,
    ended: bool,
}

impl Sought {
    /// `tagged` are the jobs with the query's tag, if it names one.
    pub fn new(query: &RunQuery, tagged: Option<HashSet<JobId>>) -> Self {
        let any = query.statuses.is_empty();
        let ended = |status: &Status| matches!(status, Status::Ended(_));
        let begun = query.begun.iter().copied().collect();
        let (live, ended) = (!query.statuses.iter().all(ended), query.statuses.iter().any(ended));
        Self { tagged, begun, live: any || live, ended: any || ended }
    }

    /// Whether live runs can match.
    pub fn live(&self) -> bool {
        self.live
    }

    /// Whether ended runs can match.
    pub fn ended(&self) -> bool {
        self.ended
    }

    fn status(&self, record: &RunRecord) -> Status {
        match record.run.state.status() {
            Status::Queued if self.begun.contains(&record.run.id) => Status::Running,
            status => status,
        }
    }

    pub fn has(&self, query: &RunQuery, record: &RunRecord) -> bool {
        let run = &record.run;
        let (at, from) = match run.state {
            RunState::Finished { at, .. } => (at, query.earliest_end()),
            _ => (run.created_at, query.from),
        };
        query.tenant.is_none_or(|tenant| run.tenant == tenant)
            && query.job.is_none_or(|job| run.job == job)
            && self.tagged.as_ref().is_none_or(|jobs| jobs.contains(&run.job))
            && query.schedule.is_none_or(|schedule| run.trigger.schedule == Some(schedule))
            && (query.statuses.is_empty() || query.statuses.contains(&self.status(record)))
            && query.labels.iter().all(|(name, value)| run.labels.get(name) == Some(value))
            && from.is_none_or(|from| at >= from)
            && query.to.is_none_or(|to| at < to)
    }
}
