//! Dead letters: what was done about runs that had ended.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use rota_core::{ids::RunId, run::NewRun, store::DeadFate};
use uuid::Uuid;

use super::tx::{Late, params};
use crate::codec::{fate_code, micros};

/// Marks the runs that these new ones are made of again, with the commit.
pub(super) fn mark_redriven<'r>(now: Timestamp, made: impl IntoIterator<Item = &'r NewRun>) -> Option<Late> {
    let from = |new: &NewRun| {
        let version = (new.job.0, new.version);
        Some((new.trigger.redrives()?.0, (new.trigger.by.clone(), version)))
    };
    let redriven: BTreeMap<Uuid, (Option<String>, (i64, i32))> = made.into_iter().filter_map(from).collect();
    if redriven.is_empty() {
        return None;
    }
    let versions: BTreeSet<(i64, i32)> = redriven.values().map(|(_, version)| *version).collect();
    let (jobs, versions): (Vec<i64>, Vec<i32>) = versions.into_iter().unzip();
    let (ids, by): (Vec<Uuid>, Vec<Option<String>>) = redriven.into_iter().map(|(id, (by, _))| (id, by)).unzip();
    // Their versions are in use again, however old they are.
    let sql = "WITH closed AS (DELETE FROM open_dead WHERE run = ANY($1::uuid[])), \
               used AS (UPDATE job_version v SET unused_since = $2 \
                        FROM unnest($5::bigint[], $6::int[]) u (job, version) \
                        WHERE v.job = u.job AND v.version = u.version AND v.unused_since < $2) \
               INSERT INTO dead_mark (run, at, fate, by_whom) \
               SELECT run, $2, $3, by_whom FROM unnest($1::uuid[], $4::text[]) asked (run, by_whom) \
               ON CONFLICT (run) DO UPDATE SET at = excluded.at, fate = excluded.fate, by_whom = excluded.by_whom";
    Some(Late { sql, params: params![ids, micros(now), fate_code(DeadFate::Redriven), by, jobs, versions] })
}

/// Notes runs that have died and wait for somebody, with the commit.
pub(super) fn note_open(dead: &[(RunId, Timestamp)]) -> Option<Late> {
    let sql =
        "INSERT INTO open_dead (run, ended_at) SELECT * FROM unnest($1::uuid[], $2::bigint[]) ON CONFLICT DO NOTHING";
    let (runs, ends): (Vec<Uuid>, Vec<i64>) = dead.iter().map(|(run, ended_at)| (run.0, micros(*ended_at))).unzip();
    (!runs.is_empty()).then(|| Late { sql, params: params![runs, ends] })
}
