//! What firing a schedule leaves besides its runs, decided once for both stores.

use jiff::Timestamp;
use rota_core::{
    duration::Span,
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
/// `after_finish_ms` is the delay of a schedule that its run's end re-arms.
pub fn leaves(item: &FireItem, after_finish_ms: Option<i64>, answers: &[Enqueued], now: Timestamp) -> Leaves {
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
    Leaves {
        skips: ranges.into_iter().map(with_made_before).collect(),
        next: next(item, after_finish_ms, made_at.len() as u64, now),
        progress: Progress {
            fired: before + made_at.len() as u64,
            decided_to: Some(decided_to.unwrap_or(item.due.cursor.planned_at)),
        },
    }
}

/// The cursor after firing. The plan counted on every run; and an
/// `after_finish` schedule whose run was refused has nobody whose end could arm
/// it, so it waits from now on instead of falling silent.
fn next(item: &FireItem, after_finish_ms: Option<i64>, made: u64, now: Timestamp) -> Option<Cursor> {
    let refused = item.runs.len() as u64 - made;
    match (item.next, after_finish_ms) {
        (Some(next), _) => Some(Cursor { fired: next.fired.saturating_sub(refused), ..next }),
        (None, Some(delay_ms)) if made == 0 && refused > 0 => {
            let due_at = Span::millis(delay_ms.max(0) as u64).after(now);
            Some(Cursor { planned_at: due_at, due_at, fired: item.due.cursor.fired })
        }
        (None, _) => None,
    }
}
