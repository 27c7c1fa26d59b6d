//! Which schedules of a page deserve a closer look, decided once for both stores.
//!
//! Two lists are read side by side, each in order of partition and id and each up
//! to the same number: the enabled schedules, and the cursors. What a list that was
//! cut short says nothing of is left to the next page.

use std::collections::BTreeMap;

use rota_core::{
    ids::{Partition, ScheduleId},
    store::{DueCursor, ReviewPage},
};

/// What is known of one schedule.
#[derive(Default)]
struct Found {
    /// Its revision, if it is enabled.
    enabled: Option<i32>,
    armed: Option<DueCursor>,
}

impl Found {
    fn is_plainly_right(&self) -> bool {
        match (self.enabled, self.armed) {
            (Some(revision), Some(armed)) => {
                armed.revision == revision && armed.cursor.due_at == armed.cursor.planned_at
            }
            _ => false,
        }
    }
}

fn place(id: i64) -> (Partition, ScheduleId) {
    (Partition::of_schedule(ScheduleId(id)), ScheduleId(id))
}

/// `enabled` are ids and revisions, `armed` cursors by schedule; none is one that cannot be
/// read. Both lists were read up to `limit`.
pub fn review(enabled: &[(i64, Option<i32>)], armed: &[(i64, Option<DueCursor>)], limit: usize) -> ReviewPage {
    let mut found: BTreeMap<(Partition, ScheduleId), Found> = BTreeMap::new();
    for (id, revision) in enabled {
        found.entry(place(*id)).or_default().enabled = *revision;
    }
    for (id, armed) in armed {
        found.entry(place(*id)).or_default().armed = *armed;
    }
    let cut = |full: bool, last: Option<i64>| last.filter(|_| full).map(place);
    let ends = [
        cut(enabled.len() >= limit, enabled.last().map(|(id, _)| *id)),
        cut(armed.len() >= limit, armed.last().map(|(id, _)| *id)),
    ];
    let end = ends.into_iter().flatten().min();
    let judged = found.into_iter().filter(|(place, _)| end.is_none_or(|end| *place <= end));
    let doubtful = judged.filter(|(_, found)| !found.is_plainly_right());
    ReviewPage { schedules: doubtful.map(|((_, id), _)| id).collect(), next: end.map(|(_, id)| id) }
}
