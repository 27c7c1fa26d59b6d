//! What firing a schedule leaves besides its runs, decided once for both stores.

use rota_core::{
    fire::{Cursor, Progress, SkipRange, SkipReason},
    store::{Enqueued, FireItem},
};

/// What to write after the runs of an item were made or refused.
pub struct Leaves {
    /// In order, each with the runs made before it: two ranges with the same
    /// number have nothing fired between them.
    pub skips: Vec<(SkipRange, u64)>,
    pub next: Option<Cursor>,
    /// What is behind the schedule now.
    pub progress: Progress,
}

/// A run that was refused is a skipped instant, and does not count as made.
pub fn leaves(item: &FireItem, answers: &[Enqueued]) -> Leaves {
    let before = item.due.cursor.fired;
    let mut made_at = Vec::new();
    let mut ranges = item.skips.clone();
    for (run, answer) in item.runs.iter().zip(answers) {
        let at = run.trigger.planned_at.unwrap_or(item.due.cursor.planned_at);
        let reason = match answer {
            Enqueued::Made { .. } | Enqueued::Again { .. } => {
                made_at.push(at);
                continue;
            }
            Enqueued::Full => SkipReason::Overlap,
            Enqueued::Duplicate { .. } => SkipReason::Unique,
        };
        ranges.push(SkipRange { from: at, to: at, count: 1, reason });
    }
    ranges.sort_by_key(|range| range.from);
    let decided_to = ranges.iter().map(|range| range.to).chain(made_at.iter().copied()).max();
    let with_made_before = |range: SkipRange| {
        let made_before = made_at.iter().filter(|at| **at < range.from).count() as u64;
        (range, before + made_before)
    };
    let fired = before + made_at.len() as u64;
    let next = if made_at.len() == item.runs.len() {
        item.next
    } else {
        item.next_if_refused.map(|next| Cursor { fired, ..next })
    };
    Leaves {
        skips: ranges.into_iter().map(with_made_before).collect(),
        next,
        progress: Progress { fired, decided_to: Some(decided_to.unwrap_or(item.due.cursor.planned_at)) },
    }
}
