//! Jobs that start after others: who waits for whom, which ends were waited for,
//! and the runs they lead to.
//!
//! An end is written down in the transaction that ends its run, for each job that
//! waits for it then. Whether anybody waits for anything is asked with the
//! statement that ends runs; only where somebody does is more to be done.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use rota_core::{
    after::{AfterRefusal, JobEnd, refusals},
    ids::{JobId, RunId, TenantId},
    run::{NewRun, Slots},
    store::{FollowEnds, FollowStore, Followed, JobEnds, JobPut, StoreError, Write},
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    PostgresStore,
    apply::apply,
    change::{decide, lock_runs},
    fault::Fault,
    follow::Aftermath,
    once::Once,
    tx::{Ending, Tx},
};
use crate::{
    codec::{ends_mask, micros, time, verdict, verdict_code},
    kept,
};

/// Whether any job waits for another.
pub(super) const WAITED_FOR: &str = "SELECT EXISTS (SELECT 1 FROM after_edge)";

/// Writes down the ends that jobs wait for.
pub(super) async fn note(tx: &Tx, after: &mut Aftermath) -> Result<(), Fault> {
    let over = std::mem::take(&mut after.effects.over);
    if !std::mem::take(&mut after.waited_for) || over.is_empty() {
        return Ok(());
    }
    let jobs: Vec<i64> = over.iter().map(|one| one.job.0).collect::<HashSet<_>>().into_iter().collect();
    let sql = "SELECT j.id, e.downstream, e.ends, j.name FROM job j \
         JOIN after_edge e ON e.tenant = j.tenant AND e.upstream = j.name WHERE j.id = ANY($1) AND NOT j.deleted";
    let mut waiting: HashMap<i64, Vec<(i64, i16, String)>> = HashMap::new();
    for row in tx.rows(sql, &[&jobs]).await? {
        waiting.entry(row.try_get(0)?).or_default().push((row.try_get(1)?, row.try_get(2)?, row.try_get(3)?));
    }
    let (mut downstreams, mut upstreams, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut verdicts, mut ends) = (Vec::new(), Vec::new());
    for one in &over {
        let verdict = verdict_code(one.verdict);
        let counts = |(_, mask, _): &&(i64, i16, String)| mask & (1 << verdict) != 0;
        for (downstream, _, upstream) in waiting.get(&one.job.0).into_iter().flatten().filter(counts) {
            downstreams.push(*downstream);
            upstreams.push(upstream.as_str());
            runs.push(one.run.0);
            verdicts.push(verdict);
            ends.push(micros(one.at));
        }
    }
    if runs.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO after_end (downstream, upstream, run, verdict, at) \
         SELECT * FROM unnest($1::bigint[], $2::text[], $3::uuid[], $4::smallint[], $5::bigint[]) \
         ON CONFLICT DO NOTHING";
    tx.rows(sql, &[&downstreams, &upstreams, &runs, &verdicts, &ends]).await?;
    Ok(())
}

/// Which of the jobs to be saved cannot be, for what they start after. Savers of
/// such jobs wait for each other, so that no two make a circle between them.
pub(super) async fn refused(tx: &Tx, jobs: &[JobPut]) -> Result<Vec<Option<AfterRefusal>>, Fault> {
    let mut refused = vec![None; jobs.len()];
    let tenants: HashSet<TenantId> = jobs.iter().filter(|put| put.after.is_some()).map(|put| put.tenant).collect();
    if tenants.is_empty() {
        return Ok(refused);
    }
    tx.rows("SELECT pg_advisory_xact_lock(hashtextextended('rota after ' || current_schema(), 0))", &[]).await?;
    for tenant in tenants {
        let places: Vec<usize> = (0..jobs.len()).filter(|n| jobs[*n].tenant == tenant).collect();
        let saved: Vec<(&str, &[String])> = places.iter().map(|n| (jobs[*n].name.as_str(), jobs[*n].after())).collect();
        let spoken: Vec<&str> = saved.iter().flat_map(|(_, after)| after.iter().map(String::as_str)).collect();
        let answers = tx
            .pipe(&[
                ("SELECT name FROM job WHERE tenant = $1 AND name = ANY($2) AND NOT deleted", &[&tenant.0, &spoken]),
                (
                    "SELECT j.name, e.upstream FROM after_edge e JOIN job j ON j.id = e.downstream WHERE e.tenant = $1",
                    &[&tenant.0],
                ),
            ])
            .await?;
        let known = answers[0].iter().map(|row| row.try_get(0)).collect::<Result<BTreeSet<String>, _>>()?;
        let edges = answers[1].iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let edges = edges.collect::<Result<Vec<(String, String)>, tokio_postgres::Error>>()?;
        let answers = refusals(&edges, &known, &saved);
        places.into_iter().zip(answers).for_each(|(n, answer)| refused[n] = answer);
    }
    Ok(refused)
}

/// Replaces what jobs wait for.
pub(super) async fn put_edges(tx: &Tx, saved: &[(i64, &JobPut)]) -> Result<(), Fault> {
    if saved.is_empty() {
        return Ok(());
    }
    let jobs: Vec<i64> = saved.iter().map(|(job, _)| *job).collect();
    let (mut tenants, mut upstreams, mut downstreams, mut masks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (job, put) in saved {
        let Some(after) = &put.after else { continue };
        for upstream in &after.jobs {
            tenants.push(put.tenant.0);
            upstreams.push(upstream.as_str());
            downstreams.push(*job);
            masks.push(ends_mask(after));
        }
    }
    tx.rows("DELETE FROM after_edge WHERE downstream = ANY($1)", &[&jobs]).await?;
    if !tenants.is_empty() {
        let sql = "INSERT INTO after_edge (tenant, upstream, downstream, ends) \
             SELECT * FROM unnest($1::int[], $2::text[], $3::bigint[], $4::smallint[])";
        tx.rows(sql, &[&tenants, &upstreams, &downstreams, &masks]).await?;
    }
    Ok(())
}

impl PostgresStore {
    pub(super) async fn ends_waited_for(&self, limit: u32) -> Result<JobEnds, Fault> {
        let sql = "WITH new AS (SELECT downstream, upstream, run, verdict, at, held FROM after_end WHERE NOT held \
                                ORDER BY at, run LIMIT $1) \
             SELECT * FROM new UNION ALL \
             SELECT downstream, upstream, run, verdict, at, held FROM after_end \
             WHERE held AND downstream IN (SELECT downstream FROM new) ORDER BY 1, 5, 3";
        let mut ends = Vec::new();
        for row in self.read(sql, &[&i64::from(limit)]).await? {
            let (downstream, run): (i64, Uuid) = (row.try_get(0)?, row.try_get(2)?);
            ends.extend(self.notes.readable("after_end", format_args!("{downstream}/{run}"), job_end(&row)));
        }
        let rows = self.read(WAITED_FOR, &[]).await?;
        let waited_for = rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false);
        Ok(JobEnds { ends, waited_for })
    }

    async fn follow_once(
        &self,
        tx: Arc<Tx>,
        write: &Write,
        items: &[FollowEnds],
    ) -> Result<(Vec<Followed>, Ending), Fault> {
        let won = take_ends(&tx, items).await?;
        let mut after = Aftermath { changed: won.contains(&true), ..Aftermath::default() };
        let won_items = || items.iter().zip(&won).filter(|(_, won)| **won).map(|(item, _)| item);
        let runs: Vec<&NewRun> = won_items().flat_map(|item| &item.runs).collect();
        let made = self.insert(&tx, write, &runs, &mut after).await?;
        let refused = runs
            .iter()
            .zip(&made)
            .filter_map(|(run, answer)| Some((run.bare(write.now), answer.refusal()?.to_owned())));
        let asked = won_items().flat_map(|item| item.skips.iter().map(|(run, why)| (run.bare(write.now), why.clone())));
        let skips: BTreeMap<RunId, (NewRun, String)> = refused.chain(asked).map(|one| (one.0.id, one)).collect();
        self.skip(&tx, write, &skips, &mut after).await?;
        let mut made = made.into_iter();
        let answers: Vec<Followed> = items
            .iter()
            .zip(&won)
            .map(|(item, won)| match won {
                true => Followed::Done(made.by_ref().take(item.runs.len()).collect()),
                false => Followed::Stale,
            })
            .collect();
        let ending = after.ending(kept::json(&answers)?);
        Ok((answers, ending))
    }

    /// Makes runs that have ended as skipped, so that they are on record.
    async fn skip(
        &self,
        tx: &Tx,
        write: &Write,
        skips: &BTreeMap<RunId, (NewRun, String)>,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        if skips.is_empty() {
            return Ok(());
        }
        let runs: Vec<&NewRun> = skips.values().map(|(run, _)| run).collect();
        self.insert(tx, write, &runs, after).await?;
        let ids: Vec<Uuid> = runs.iter().map(|run| run.id.0).collect();
        let rows = lock_runs(tx, &ids).await?;
        let changes = decide(rows, |row| {
            let why = skips.get(&row.run.id).map_or("", |(_, why)| why.as_str());
            row.run.skip(why, write.now)
        });
        apply(tx, write.now, &changes, Slots::ToCount, after).await?;
        self.follow(tx, write.now, after).await
    }
}

/// Takes the ends of those items whose job is as read and whose ends are all
/// still written down, locked against others until the commit.
async fn take_ends(tx: &Tx, items: &[FollowEnds]) -> Result<Vec<bool>, Fault> {
    let jobs: Vec<i64> = items.iter().map(|item| item.downstream.0).collect();
    let of = |item: &FollowEnds, runs: &[RunId]| runs.iter().map(|run| (item.downstream.0, run.0)).collect::<Vec<_>>();
    let named = |item: &FollowEnds| [of(item, &item.used), of(item, &item.held)].concat();
    let (downstreams, runs): (Vec<i64>, Vec<Uuid>) = items.iter().flat_map(named).unzip();
    let answers = tx
        .pipe(&[
            ("SELECT id, revision FROM job WHERE id = ANY($1) ORDER BY id FOR SHARE", &[&jobs]),
            (
                "SELECT a.downstream, a.run FROM after_end a \
                 JOIN unnest($1::bigint[], $2::uuid[]) u (downstream, run) ON a.downstream = u.downstream AND a.run = u.run \
                 ORDER BY a.downstream, a.run FOR UPDATE OF a",
                &[&downstreams, &runs],
            ),
        ])
        .await?;
    let revisions = answers[0].iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let revisions = revisions.collect::<Result<HashMap<i64, i32>, tokio_postgres::Error>>()?;
    let there = answers[1].iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let there = there.collect::<Result<HashSet<(i64, Uuid)>, tokio_postgres::Error>>()?;
    let is_as_read = |item: &FollowEnds| {
        revisions.get(&item.downstream.0) == Some(&item.job_revision)
            && named(item).iter().all(|end| there.contains(end))
    };
    let won: Vec<bool> = items.iter().map(is_as_read).collect();
    let winners = || items.iter().zip(&won).filter(|(_, won)| **won).map(|(item, _)| item);
    let (used_of, used): (Vec<i64>, Vec<Uuid>) = winners().flat_map(|item| of(item, &item.used)).unzip();
    let (held_of, held): (Vec<i64>, Vec<Uuid>) = winners().flat_map(|item| of(item, &item.held)).unzip();
    tx.pipe(&[
        (
            "DELETE FROM after_end a USING unnest($1::bigint[], $2::uuid[]) u (downstream, run) \
             WHERE a.downstream = u.downstream AND a.run = u.run",
            &[&used_of, &used],
        ),
        (
            "UPDATE after_end a SET held = true FROM unnest($1::bigint[], $2::uuid[]) u (downstream, run) \
             WHERE a.downstream = u.downstream AND a.run = u.run",
            &[&held_of, &held],
        ),
    ])
    .await?;
    Ok(won)
}

fn job_end(row: &Row) -> Result<JobEnd, Fault> {
    Ok(JobEnd {
        downstream: JobId(row.try_get(0)?),
        upstream: row.try_get(1)?,
        run: RunId(row.try_get(2)?),
        verdict: verdict(row.try_get(3)?)?,
        at: time(row.try_get(4)?)?,
        held: row.try_get(5)?,
    })
}

#[async_trait]
impl FollowStore for PostgresStore {
    async fn job_ends(&self, limit: u32) -> Result<JobEnds, StoreError> {
        tried!("read the ends that jobs wait for", self.ends_waited_for(limit))
    }

    async fn follow_ends(&self, write: &Write, items: &[FollowEnds]) -> Result<Vec<Followed>, StoreError> {
        match self.once(write, "start jobs after others", |tx| self.follow_once(tx, write, items)).await? {
            Once::New(answers, _) => Ok(answers),
            Once::Known(kept) => kept::json_again(kept.as_deref()),
        }
    }
}
