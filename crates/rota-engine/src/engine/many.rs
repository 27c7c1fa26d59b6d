//! Many runs at once, by a filter: stopped, or made again.

use rota_core::{
    ids::RunId,
    quota::Refusal,
    run::{CancelAsk, Run, RunState, Status, Verdict},
    store::{CancelAnswer, DeadFate, DeadMark, Deletion, RunCursor, RunPlace, RunQuery, StoreError},
};

use super::{Cancel, EngineError, Handle, MANY};
use crate::making::{Made, Redrive};

/// What became of a wish to stop many runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CancelledMany {
    /// Live runs that were found.
    pub found: u64,
    /// Those that ended by it, or were asked to stop; the others had been asked
    /// before, or ended meanwhile.
    pub asked: u64,
    /// There are more than were to be found.
    pub more: bool,
}

/// What became of a wish to make many runs again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedrivenMany {
    /// Ended runs that were found.
    pub found: u64,
    /// Runs that were made of them.
    pub made: u64,
    /// There are more than were to be found, or than the tenant's rate allows now.
    pub more: bool,
    /// What the rate refused, if it did.
    pub over_rate: Option<Refusal>,
}

impl Handle {
    /// Stops the runs of a deleted job, as far as they are to be; answers how many
    /// were told.
    pub(crate) async fn stop_deleted(&self, deletion: &Deletion) -> Result<u64, StoreError> {
        let query = RunQuery { job: Some(deletion.job), statuses: deletion.stops(), ..RunQuery::default() };
        let CancelAsk { by, reason, grace } = deletion.ask.clone();
        Ok(self.stop_all(query, &Cancel { by, reason, grace: Some(grace) }, u64::MAX, false).await?.asked)
    }

    /// Asks the live runs that `query` finds to stop, up to `most` of them. They are
    /// counted as they are asked, so what is answered is what was done. In a dry run the
    /// store undoes it, and nobody is told.
    pub async fn cancel_all(
        &self,
        query: RunQuery,
        cancel: &Cancel,
        most: u64,
        dry_run: bool,
    ) -> Result<CancelledMany, EngineError> {
        Ok(self.stop_all(query, cancel, most, dry_run).await?)
    }

    async fn stop_all(
        &self,
        query: RunQuery,
        cancel: &Cancel,
        most: u64,
        dry_run: bool,
    ) -> Result<CancelledMany, StoreError> {
        let mut query = query;
        let mut done = CancelledMany::default();
        loop {
            query.limit = u32::try_from(most - done.found).unwrap_or(MANY).min(MANY);
            let page = self.page_of_runs(&query).await?;
            let runs: Vec<&Run> = page.runs.iter().map(|record| &record.run).collect();
            done.found += runs.len() as u64;
            for (ask, runs) in self.cancel_asks(cancel, runs).await? {
                let answers = self.stop_runs(&runs, &ask, dry_run).await?;
                let hit = |answer: &&CancelAnswer| matches!(answer, CancelAnswer::Cancelled | CancelAnswer::Asked);
                done.asked += answers.iter().filter(hit).count() as u64;
            }
            match page.next {
                // What ended is beyond the live ones, and there is nothing to stop.
                Some(next @ RunCursor { place: RunPlace::Live(_), .. }) if done.found < most => {
                    query.after = Some(next);
                }
                next => {
                    done.more = next.is_some_and(|next| matches!(next.place, RunPlace::Live(_)));
                    return Ok(done);
                }
            }
        }
    }

    /// Makes new runs of the ended runs that `query` finds, up to `most` of them; dead letters
    /// where it names no status. What was discarded is left alone, and so is what was made
    /// again before unless `how` says otherwise.
    pub async fn redrive_all(&self, query: RunQuery, how: &Redrive, most: u64) -> Result<RedrivenMany, EngineError> {
        let mut query = query;
        if query.statuses.is_empty() {
            query.statuses = vec![Status::Ended(Verdict::Dead)];
        }
        // What is made here must not be found again by the same request.
        query.to = Some(query.to.unwrap_or_else(|| self.now()));
        query.limit = MANY;
        let (mut done, mut touched) = (RedrivenMany::default(), 0);
        loop {
            let page = self.node.store.list_runs(&query).await?;
            let ended = page.runs.iter().filter(|record| matches!(record.run.state, RunState::Finished { .. }));
            let (found, ids) = self.to_redrive(ended.map(|record| record.run.id).collect(), how).await?;
            done.found += found;
            if !ids.is_empty() {
                let made = self.redrive(&ids, how).await?;
                touched += ids.len() as u64;
                done.made += made.iter().filter(|made| matches!(made, Some(Made::Run { .. }))).count() as u64;
                // The rest can only wait as well. What was made stays made, and is
                // left alone when the same is asked again.
                done.over_rate = made.into_iter().find_map(|made| match made {
                    Some(Made::OverQuota(refusal)) if refusal.retry_at.is_some() => Some(refusal),
                    _ => None,
                });
            }
            let full = touched >= most && page.next.is_some();
            if done.over_rate.is_some() || full {
                return Ok(RedrivenMany { more: true, ..done });
            }
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(done),
            }
        }
    }

    /// How many of these were not discarded, and those that are to be made again: what was made
    /// again before would only be answered with what was made of it then, and a job that has
    /// failed for long has many of them.
    async fn to_redrive(&self, runs: Vec<RunId>, how: &Redrive) -> Result<(u64, Vec<RunId>), StoreError> {
        let marks = self.node.store.dead_marks(&runs).await?;
        let fate = |mark: Option<DeadMark>| mark.map(|mark| mark.fate);
        let kept: Vec<(RunId, Option<DeadFate>)> = runs
            .into_iter()
            .zip(marks.into_iter().map(fate))
            .filter(|(_, fate)| *fate != Some(DeadFate::Discarded))
            .collect();
        let wanted = kept.iter().filter(|(_, fate)| how.again || fate.is_none());
        Ok((kept.len() as u64, wanted.map(|(run, _)| *run).collect()))
    }
}
