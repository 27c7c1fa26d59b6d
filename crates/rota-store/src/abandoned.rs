//! What a deleted schedule still owed.

use jiff::Timestamp;
use rota_core::{
    fire::{Cursor, SkipRange, SkipReason, abandon},
    ids::ScheduleId,
    schedule::ScheduleSpec,
    timing::Schedule,
};

/// The instants owed up to `now`, to be recorded as deleted. A spec that can no
/// longer be read still owes the one instant its cursor names.
pub fn abandoned(id: ScheduleId, spec: &str, cursor: Cursor, now: Timestamp) -> Option<SkipRange> {
    let reason = SkipReason::Deleted;
    let compiled =
        serde_json::from_str::<ScheduleSpec>(spec).ok().and_then(|spec| Schedule::compile(&spec, &id.seed()).ok());
    match compiled {
        Some(schedule) => abandon(&schedule, cursor, now, reason),
        None if cursor.planned_at <= now => {
            Some(SkipRange { from: cursor.planned_at, to: cursor.planned_at, count: 1, reason })
        }
        None => None,
    }
}
