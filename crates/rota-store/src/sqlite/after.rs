//! Jobs that start after others: who waits for whom, which ends were waited for,
//! and the runs they lead to.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use async_trait::async_trait;
use rota_core::{
    after::{AfterRefusal, JobEnd, refusals},
    ids::{JobId, RunId, TenantId},
    run::{NewRun, Over, RunState, Slots},
    store::{Enqueued, FollowEnds, FollowStore, Followed, JobEnds, JobPut, StoreError, Write},
};
use rusqlite::{Connection, Row, params};

use super::{
    SqliteStore,
    apply::Work,
    failed,
    insert::{make, new_row},
    once::once,
    rows::{all, change, exists, text_at, uuid_at},
    writer::Urgency,
};
use crate::{
    codec::{self, ends_mask, micros, time, verdict, verdict_code},
    kept,
    unreadable::readable,
};

fn is_waited_for(connection: &Connection) -> Result<bool, StoreError> {
    exists(connection, "SELECT 1 FROM after_edge LIMIT 1", [])
}

fn ends(connection: &Connection, limit: u32) -> Result<Vec<JobEnd>, StoreError> {
    let sql = "WITH new AS (SELECT downstream, upstream, run, verdict, at, held FROM after_end WHERE held = 0 \
                            ORDER BY at, run LIMIT ?1) \
         SELECT * FROM new UNION ALL \
         SELECT downstream, upstream, run, verdict, at, held FROM after_end \
         WHERE held = 1 AND downstream IN (SELECT downstream FROM new) ORDER BY 1, 5, 3";
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let mut rows = select.query([limit]).map_err(failed)?;
    let mut ends = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let run = uuid_at(row, 2).map_err(failed)?;
        ends.extend(readable("after_end", format_args!("{}/{run}", text_at(row, 0)), job_end(row)));
    }
    Ok(ends)
}

fn job_end(row: &Row<'_>) -> Result<JobEnd, StoreError> {
    Ok(JobEnd {
        downstream: JobId(row.get(0).map_err(failed)?),
        upstream: row.get(1).map_err(failed)?,
        run: RunId(uuid_at(row, 2).map_err(failed)?),
        verdict: verdict(row.get(3).map_err(failed)?)?,
        at: time(row.get(4).map_err(failed)?)?,
        held: row.get(5).map_err(failed)?,
    })
}

/// Writes down the ends that jobs wait for.
pub fn note(connection: &Connection, over: &[Over]) -> Result<(), StoreError> {
    if over.is_empty() || !is_waited_for(connection)? {
        return Ok(());
    }
    let mut waiting: BTreeMap<i64, Vec<(i64, i16, String)>> = over.iter().map(|one| (one.job.0, Vec::new())).collect();
    let sql = "SELECT e.downstream, e.ends, j.name FROM job j \
         JOIN after_edge e ON e.tenant = j.tenant AND e.upstream = j.name WHERE j.id = ?1 AND j.deleted = 0";
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    for (job, found) in &mut waiting {
        let rows = select.query_map([job], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).map_err(failed)?;
        *found = rows.collect::<Result<_, _>>().map_err(failed)?;
    }
    let sql = "INSERT OR IGNORE INTO after_end (downstream, upstream, run, verdict, at, held) \
         VALUES (?1, ?2, ?3, ?4, ?5, 0)";
    let mut insert = connection.prepare_cached(sql).map_err(failed)?;
    for one in over {
        for (downstream, ends, upstream) in waiting.get(&one.job.0).into_iter().flatten() {
            let verdict = verdict_code(one.verdict);
            if ends & (1 << verdict) != 0 {
                insert
                    .execute(params![downstream, upstream, one.run.0.as_bytes(), verdict, micros(one.at)])
                    .map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// Which of the jobs to be saved cannot be, for what they start after.
pub fn refused(connection: &Connection, jobs: &[JobPut]) -> Result<Vec<Option<AfterRefusal>>, StoreError> {
    let mut refused = vec![None; jobs.len()];
    let tenants: HashSet<TenantId> = jobs.iter().filter(|put| put.after.is_some()).map(|put| put.tenant).collect();
    for tenant in tenants {
        let places: Vec<usize> = (0..jobs.len()).filter(|n| jobs[*n].tenant == tenant).collect();
        let saved: Vec<(&str, &[String])> = places.iter().map(|n| (jobs[*n].name.as_str(), jobs[*n].after())).collect();
        let mut known = BTreeSet::new();
        let mut exists = connection
            .prepare_cached("SELECT 1 FROM job WHERE tenant = ?1 AND name = ?2 AND deleted = 0")
            .map_err(failed)?;
        for name in saved.iter().flat_map(|(_, after)| after.iter()) {
            if exists.exists(params![tenant.0, name]).map_err(failed)? {
                known.insert(name.clone());
            }
        }
        let answers = refusals(&edges(connection, tenant)?, &known, &saved);
        places.into_iter().zip(answers).for_each(|(n, answer)| refused[n] = answer);
    }
    Ok(refused)
}

fn edges(connection: &Connection, tenant: TenantId) -> Result<Vec<(String, String)>, StoreError> {
    let sql = "SELECT j.name, e.upstream FROM after_edge e JOIN job j ON j.id = e.downstream WHERE e.tenant = ?1";
    all(connection, sql, [tenant.0], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Replaces what a job waits for; `None` for one that is deleted.
pub fn put_edges(connection: &Connection, job: i64, put: Option<&JobPut>) -> Result<(), StoreError> {
    change(connection, "DELETE FROM after_edge WHERE downstream = ?1", [job])?;
    let Some((put, after)) = put.and_then(|put| Some((put, put.after.as_ref()?))) else { return Ok(()) };
    let sql = "INSERT INTO after_edge (tenant, upstream, downstream, ends) VALUES (?1, ?2, ?3, ?4)";
    let mut insert = connection.prepare_cached(sql).map_err(failed)?;
    for upstream in &after.jobs {
        insert.execute(params![put.tenant.0, upstream, job, ends_mask(after)]).map_err(failed)?;
    }
    Ok(())
}

fn follow(connection: &Connection, write: &Write, items: &[FollowEnds]) -> Result<Vec<Followed>, StoreError> {
    let mut work = Work::new(connection, write);
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        if !is_as_read(connection, item)? {
            answers.push(Followed::Stale);
            continue;
        }
        let mut delete =
            connection.prepare_cached("DELETE FROM after_end WHERE downstream = ?1 AND run = ?2").map_err(failed)?;
        let mut hold = connection
            .prepare_cached("UPDATE after_end SET held = 1 WHERE downstream = ?1 AND run = ?2")
            .map_err(failed)?;
        for run in &item.used {
            delete.execute(params![item.downstream.0, run.0.as_bytes()]).map_err(failed)?;
        }
        for run in &item.held {
            hold.execute(params![item.downstream.0, run.0.as_bytes()]).map_err(failed)?;
        }
        let mut made = Vec::with_capacity(item.runs.len());
        for run in &item.runs {
            let answer = make(&mut work, run, run.version)?;
            if let Some(why) = answer.refusal() {
                skip(&mut work, run, why)?;
            }
            made.push(answer);
        }
        for (run, why) in &item.skips {
            skip(&mut work, run, why)?;
        }
        answers.push(Followed::Done(made));
    }
    let runs = items.iter().zip(&mut answers).filter_map(|(item, answer)| match answer {
        Followed::Done(made) => Some(item.runs.iter().map(|run| run.id).zip(made)),
        Followed::Stale => None,
    });
    work.done_made(&mut runs.flatten().collect::<Vec<(RunId, &mut Enqueued)>>())?;
    Ok(answers)
}

/// Whether every end is still written down, and the job as its planner knew it.
fn is_as_read(connection: &Connection, item: &FollowEnds) -> Result<bool, StoreError> {
    let job = params![item.downstream.0, item.job_revision];
    let known = exists(connection, "SELECT 1 FROM job WHERE id = ?1 AND revision = ?2", job)?;
    let mut select =
        connection.prepare_cached("SELECT 1 FROM after_end WHERE downstream = ?1 AND run = ?2").map_err(failed)?;
    for run in item.used.iter().chain(&item.held) {
        if !select.exists(params![item.downstream.0, run.0.as_bytes()]).map_err(failed)? {
            return Ok(false);
        }
    }
    Ok(known)
}

/// Makes a run that has ended as skipped, so that it is on record.
fn skip(work: &mut Work<'_>, new: &NewRun, why: &str) -> Result<(), StoreError> {
    let new = new.bare(work.now);
    let row = new_row(work, &new, new.version, &RunState::Scheduled)?;
    work.insert(row);
    let Some(row) = work.row(new.id.0)? else { return Err(codec::corrupt("a new run", new.id)) };
    let run = row.run.clone();
    match run.skip(why, work.now) {
        Ok(change) => work.change(&row, &run, &change, Slots::ToCount),
        Err(refusal) => Err(codec::corrupt("a run to be skipped", refusal)),
    }
}

#[async_trait]
impl FollowStore for SqliteStore {
    async fn job_ends(&self, limit: u32) -> Result<JobEnds, StoreError> {
        self.read("read the ends that jobs wait for", move |connection| {
            Ok(JobEnds { ends: ends(connection, limit)?, waited_for: is_waited_for(connection)? })
        })
        .await
    }

    async fn follow_ends(&self, write: &Write, items: &[FollowEnds]) -> Result<Vec<Followed>, StoreError> {
        let (write, items) = (write.clone(), items.to_vec());
        self.writer
            .write("start jobs after others", Urgency::Prompt, move |connection| {
                once(
                    connection,
                    &write,
                    |answers: &Vec<Followed>| kept::json(answers),
                    |_, kept| kept::json_again(kept),
                    |connection| follow(connection, &write, &items),
                )
            })
            .await
    }
}
