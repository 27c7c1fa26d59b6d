//! Change: rows are locked, pure code decides over each, all is written.

use std::collections::HashSet;

use const_format::formatcp;
use rota_core::run::{Change, Refusal};
use uuid::Uuid;

use super::{
    fault::Fault,
    rows::{Locked, RUN, locked},
    tx::Tx,
};
use crate::codec::sql::BLOCKED;

/// Locks the slots that any of these runs wait for. Whoever admits holds the
/// slot first and the waiting run second; so must whoever ends one.
pub(super) const SLOTS_FIRST: &str = formatcp!(
    "SELECT 1 FROM slot WHERE key = ANY(ARRAY( \
     SELECT slot FROM run WHERE id = ANY($1::uuid[]) AND status = {BLOCKED})) ORDER BY key FOR UPDATE"
);

/// Locks these runs, in order, with those they wait for: whoever ends one of those
/// locks them in the same order, and one that ends while it waits passes its ties on.
pub(super) async fn lock_runs(tx: &Tx, ids: &[Uuid]) -> Result<Vec<Locked>, Fault> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let sql = formatcp!(
        "SELECT {RUN} FROM run r WHERE r.id = ANY(ARRAY(SELECT unnest($1::uuid[]) \
          UNION SELECT needed FROM need WHERE waiter = ANY($1))) ORDER BY r.id FOR UPDATE"
    );
    let needs = "SELECT r.id FROM need n JOIN run r ON r.id = n.needed WHERE n.waiter = ANY($1)";
    loop {
        let answers = tx.pipe(&[(SLOTS_FIRST, &[&ids]), (sql, &[&ids]), (needs, &[&ids])]).await?;
        let mut rows: Vec<Locked> = answers[1].iter().filter_map(|row| locked(&tx.notes, row)).collect();
        let held: HashSet<Uuid> = answers[1].iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let needed: HashSet<Uuid> = answers[2].iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        if needed.is_subset(&held) {
            let wanted: HashSet<Uuid> = ids.iter().copied().collect();
            rows.retain(|row| wanted.contains(&row.run.id.0));
            return Ok(rows);
        }
        // One of those waited for ended while its lock was waited for, and passed on its ties.
    }
}

/// Asks `decide` of each row and keeps the changes.
pub(super) fn decide(
    rows: Vec<Locked>,
    mut decide: impl FnMut(&Locked) -> Result<Change, Refusal>,
) -> Vec<(Locked, Change)> {
    rows.into_iter()
        .filter_map(|row| {
            let change = decide(&row).ok()?;
            Some((row, change))
        })
        .collect()
}
