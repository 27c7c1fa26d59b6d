//! Dead letters: what was done about runs that had ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use rota_core::{
    ids::RunId,
    run::NewRun,
    store::{DeadFate, DeadMark, OpenDead},
};
use uuid::Uuid;

use super::{
    PostgresStore,
    fault::Fault,
    tx::{Late, params},
};
use crate::codec::{fate, fate_code, micros, time, time_opt};

impl PostgresStore {
    pub(super) async fn open_letters(&self, most: u32) -> Result<OpenDead, Fault> {
        let sql = "SELECT (SELECT count(*) FROM (SELECT 1 FROM open_dead LIMIT $1) counted), \
             (SELECT ended_at FROM open_dead ORDER BY ended_at LIMIT 1)";
        let rows = self.read(sql, &[&i64::from(most)]).await?;
        let Some(row) = rows.first() else { return Ok(OpenDead::default()) };
        Ok(OpenDead { count: row.try_get::<_, i64>(0)?.max(0) as u64, oldest_at: time_opt(row.try_get(1)?)? })
    }

    pub(super) async fn marks_of(&self, runs: &[RunId]) -> Result<Vec<Option<DeadMark>>, Fault> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let sql = "SELECT run, fate, by_whom, at FROM dead_mark WHERE run = ANY($1)";
        let mut found = HashMap::new();
        for row in self.read(sql, &[&ids]).await? {
            let read = || -> Result<DeadMark, Fault> {
                Ok(DeadMark { fate: fate(row.try_get(1)?)?, by: row.try_get(2)?, at: time(row.try_get(3)?)? })
            };
            let run: Uuid = row.try_get(0)?;
            found.extend(self.notes.readable("dead_mark", run, read()).map(|mark| (run, mark)));
        }
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }

    pub(super) async fn put_away(&self, runs: &[RunId], by: &str, now: Timestamp) -> Result<Vec<bool>, Fault> {
        let mut ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        ids.sort_unstable();
        ids.dedup();
        let sql = "WITH closed AS (DELETE FROM open_dead WHERE run = ANY($1)) \
                   INSERT INTO dead_mark (run, at, fate, by_whom) SELECT run, $2, $3, $4 FROM unnest($1::uuid[]) run \
                   ORDER BY run ON CONFLICT (run) DO NOTHING";
        self.write_alone(&self.work, sql, &[&ids, &micros(now), &fate_code(DeadFate::Discarded), &by]).await?;
        let marks = self.marks_of(runs).await?;
        Ok(marks.iter().map(|mark| mark.as_ref().is_some_and(|mark| mark.fate == DeadFate::Discarded)).collect())
    }
}

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
