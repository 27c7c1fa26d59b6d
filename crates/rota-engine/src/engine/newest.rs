//! The newest run: the one of a list that was created last.
//!
//! A list has live runs first, by their creation, and then ended ones by their end. A run
//! that was created later than another has not ended before that was created: so only what
//! has ended since then is compared, and that becomes less with each run that is found.

use jiff::Timestamp;
use rota_core::{
    ids::RunId,
    run::{Status, Verdict},
    store::{RunQuery, RunRecord},
};

use super::{EngineError, Handle};

/// Live runs that are compared: nodes whose clocks differ a little number theirs by them.
const LIVE: u32 = 20;
/// Pages of live runs that are looked through for one: each walks a stretch of all runs, other
/// jobs' and tenants' too. Beyond them only ended ones are compared.
const LIVE_PAGES: usize = 20;
/// Ended runs read in one go, and those that are compared at most. Where more have ended since
/// the newest live run was created, they are a backlog, and that run is its last.
const PAGE: u32 = 50;
const COMPARED_MAX: usize = 10_000;

impl Handle {
    /// The run of those that a filter finds that was created last, as it stands.
    pub async fn newest_run(&self, query: &RunQuery) -> Result<Option<RunRecord>, EngineError> {
        let mut look = RunQuery { limit: LIVE, after: None, ..query.clone() };
        let mut newest: Option<RunRecord> = None;
        for _ in 0..LIVE_PAGES {
            let page = self.list_runs(&look).await?;
            newest = page.runs.into_iter().max_by_key(place);
            // A page may be empty that has a next one.
            match (&newest, page.next) {
                (None, Some(next)) => look.after = Some(next),
                _ => break,
            }
        }
        let statuses: Vec<Status> = Verdict::ALL.into_iter().map(Status::Ended).collect();
        let mut look = RunQuery { statuses, limit: PAGE, after: None, ..query.clone() };
        let mut compared = 0;
        while compared < COMPARED_MAX {
            look.from = newest.as_ref().map(|newest| newest.run.created_at);
            let page = self.list_runs(&look).await?;
            compared += page.runs.len();
            newest = newest.into_iter().chain(page.runs).max_by_key(place);
            match page.next {
                Some(next) => look.after = Some(next),
                None => break,
            }
        }
        Ok(newest)
    }
}

fn place(record: &RunRecord) -> (Timestamp, RunId) {
    (record.run.created_at, record.run.id)
}
