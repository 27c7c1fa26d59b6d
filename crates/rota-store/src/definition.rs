//! What stored definitions say. Of a deleted job, what its live runs are told; of a
//! schedule, where a store has to ask: what a
//! deleted one still owed, and what the end of its run leaves an `after_finish` one.

use jiff::Timestamp;
use rota_core::{
    fire::{self, Cursor, Progress, SkipRange, SkipReason},
    ids::ScheduleId,
    schedule::ScheduleSpec,
    store::Deletion,
    stored,
    timing::Schedule,
};

use crate::codec::time;

/// What is remembered of a deletion.
pub fn deletion_text(deletion: &Deletion) -> String {
    serde_json::to_string(deletion).unwrap_or_default()
}

/// The deletions of these rows: when, and what was remembered. One that cannot be read
/// is passed over.
pub fn deletions(rows: Vec<(i64, String)>) -> Vec<(Timestamp, Deletion)> {
    let read = |(at, text): (i64, String)| Some((time(at).ok()?, stored::read(&text).ok()?));
    rows.into_iter().filter_map(read).collect()
}

/// A schedule as it is stored; none where what is stored cannot be read.
fn compiled(id: ScheduleId, spec: &str, enabled: bool) -> Option<Schedule> {
    let spec: ScheduleSpec = stored::read(spec).ok()?;
    Schedule::compile(&spec, &id.seed()).ok().map(|schedule| schedule.of_job(enabled))
}

/// The instants owed up to `now`, to be recorded as deleted. A spec that can no
/// longer be read still owes the one instant its cursor names.
pub fn abandoned(id: ScheduleId, spec: &str, cursor: Cursor, now: Timestamp) -> Option<SkipRange> {
    let reason = SkipReason::Deleted;
    match compiled(id, spec, true) {
        Some(schedule) => fire::abandon(&schedule, cursor, now, reason),
        None if cursor.planned_at <= now => {
            Some(SkipRange { from: cursor.planned_at, to: cursor.planned_at, count: 1, reason })
        }
        None => None,
    }
}

/// The cursor that the end of its run leaves a schedule.
pub fn rearmed(id: ScheduleId, spec: &str, enabled: bool, behind: Progress, ended_at: Timestamp) -> Option<Cursor> {
    compiled(id, spec, enabled).and_then(|schedule| fire::rearm(&schedule, id, behind, ended_at))
}
