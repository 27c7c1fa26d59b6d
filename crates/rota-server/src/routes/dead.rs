//! Dead letters: runs that used up their attempts and wait for somebody.
//!
//! A dead letter is a row of history, which never changes. What somebody did about
//! it stands beside it: a new run was made of it, or it was put away. Lists leave
//! those out unless asked.

use axum::{Json, http::StatusCode};
use jiff::Timestamp;
use rota_api::{
    bulk::{BulkDiscard, BulkDone, RunsFilter},
    page::Page,
    problem::Code,
    run::{DeadLetter, DeadState, Run},
};
use rota_core::{
    run::{RunState, Status, Verdict},
    store::{DeadFate, DeadMark, RunQuery, RunRecord},
};
use rota_engine::{Own, View};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use uuid::Uuid;

use super::{
    bulk::{PAGE, TOUCHED_MAX, told},
    runs::{bytes_of, find_run, query as runs_query, shown},
};
use crate::{
    access::{May, RunCancel, RunRead},
    body::Body,
    problem::Problem,
    query::{Id, Including, Listing, Paging},
};

/// So many looks are taken for one page before it is answered empty.
const LOOKS_MAX: u32 = 10;

/// A filter of dead letters; all fields are optional. Latest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeadFilter {
    /// Only those of this job, by id or name.
    job: Option<String>,
    /// Only those of jobs that have this tag now.
    tag: Option<String>,
    /// Only those created by this schedule.
    schedule: Option<i64>,
    /// Only those with all of these labels, each written `key=value`; may be repeated.
    #[serde(default)]
    #[param(style = Form, explode)]
    label: Vec<String>,
    /// Only those that died at this instant or later.
    #[serde(default, deserialize_with = "rota_api::instant::read_opt")]
    from: Option<Timestamp>,
    /// Only before this instant.
    #[serde(default, deserialize_with = "rota_api::instant::read_opt")]
    to: Option<Timestamp>,
    /// By default `open`: those that nobody has dealt with.
    state: Option<DeadState>,
}

impl DeadFilter {
    fn runs(&self) -> RunsFilter {
        let Self { job, tag, schedule, label, from, to, .. } = self.clone();
        RunsFilter { job, tag, schedule, label, from, to, status: Vec::new() }
    }
}

fn state_of(mark: Option<&DeadMark>) -> DeadState {
    match mark.map(|mark| mark.fate) {
        None => DeadState::Open,
        Some(DeadFate::Redriven) => DeadState::Redriven,
        Some(DeadFate::Discarded) => DeadState::Discarded,
    }
}

fn is_dead(record: &RunRecord) -> bool {
    matches!(record.run.state, RunState::Finished { verdict: Verdict::Dead, .. })
}

/// A filter of runs as one of dead letters.
async fn query<P>(filter: &RunsFilter, may: &May<P>) -> Result<RunQuery, Problem> {
    may.has_dead_letters()?;
    if !filter.status.is_empty() {
        return Err(Problem::bad_parameter("status", "every dead letter has the status dead; leave this filter out"));
    }
    let query = runs_query(filter, may).await?;
    Ok(RunQuery { statuses: vec![Status::Ended(Verdict::Dead)], ..query })
}

/// List dead letters: runs that used up their attempts.
///
/// By default those that nobody has dealt with; see `state`. Payloads and outputs are left out
/// unless `include` asks for them.
#[utoipa::path(get, path = "/dead-letters", tag = "dead letters", params(DeadFilter, Including, Paging),
    responses((status = OK, body = Page<DeadLetter>)))]
pub async fn list(may: May<RunRead>, listing: Listing<DeadFilter, true>) -> Result<Json<Page<DeadLetter>>, Problem> {
    let wanted = listing.filter.state.unwrap_or(DeadState::Open);
    let query = query(&listing.filter.runs(), &may).await?;
    let mut filling = listing.filling(LOOKS_MAX)?;
    while let Some((after, limit)) = filling.wanted() {
        let page = may.view.list_runs(RunQuery { after, limit, ..query.clone() }).await?;
        if filling.is_too_much(bytes_of(&page.items, listing.include)) {
            continue;
        }
        let marks = may.view.dead_marks(&page.items).await?;
        let fits = |mark: Option<&DeadMark>| wanted == DeadState::All || state_of(mark) == wanted;
        let (records, marks): (Vec<_>, Vec<_>) =
            page.items.into_iter().zip(marks).filter(|(_, mark)| fits(mark.as_ref())).unzip();
        let runs = shown(&may.view, records, listing.include).await?;
        let now = may.view.now();
        filling.take(runs.into_iter().zip(marks).map(|(run, mark)| letter(run, mark, now)).collect(), page.next);
    }
    Ok(Json(listing.filled(filling)))
}

fn letter(run: Run, mark: Option<DeadMark>, now: Timestamp) -> DeadLetter {
    let age = run.ended_at.map(|ended_at| ended_at.duration_until(now).as_millis().max(0) as u64);
    let state = state_of(mark.as_ref());
    let (settled_by, settled_at) = mark.map_or((None, None), |mark| (mark.by, Some(mark.at)));
    DeadLetter { run, age_ms: age.unwrap_or_default(), state, settled_by, settled_at }
}

/// Discard a dead letter.
///
/// The run stays in history, and is listed as discarded. Fails with a conflict if it was
/// redriven or is not a dead letter.
#[utoipa::path(post, path = "/dead-letters/{run}/discard", tag = "dead letters", params(("run" = Uuid, Path)),
    responses((status = NO_CONTENT)))]
pub async fn discard(may: May<RunCancel>, Id(run): Id<Uuid>) -> Result<StatusCode, Problem> {
    may.has_dead_letters()?;
    let record = find_run(&may, run).await?;
    if !is_dead(&record) {
        return Err(Problem::new(Code::Conflict, "the run is not a dead letter"));
    }
    match may.view.discard(&[record], &may.caller.who).await?[..] {
        [true] => {
            may.changed("dead.discard", format_args!("run/{run}"), None, None);
            Ok(StatusCode::NO_CONTENT)
        }
        _ => Err(Problem::new(Code::Conflict, "the run was already redriven")),
    }
}

/// Discard dead letters by a filter.
///
/// Those that nobody has dealt with, up to 100,000 at a time.
#[utoipa::path(post, path = "/bulk/discard", tag = "bulk", request_body = BulkDiscard, responses((status = OK, body = BulkDone)))]
pub async fn discard_many(may: May<RunCancel>, Body(request): Body<BulkDiscard>) -> Result<Json<BulkDone>, Problem> {
    let mut done = BulkDone { matched: 0, done: 0, more: false, dry_run: request.dry_run };
    let mut next = Some(query(&request.filter, &may).await?);
    while let Some(mut query) = next.take() {
        query.limit = PAGE;
        let page = may.view.list_runs(query.clone()).await?;
        let open = open(&may.view, page.items).await?;
        done.matched += open.len() as u64;
        // All that are open can be discarded.
        done.done += if request.dry_run || open.is_empty() {
            open.len() as u64
        } else {
            let discarded = may.view.discard(&open, &may.caller.who).await?;
            discarded.iter().filter(|discarded| **discarded).count() as u64
        };
        match page.next {
            Some(_) if done.matched >= TOUCHED_MAX => done.more = true,
            Some(after) => next = Some(RunQuery { after: Some(after), ..query }),
            None => {}
        }
    }
    told(&may, "dead.discard_many", "runs", &request.filter, &done);
    Ok(Json(done))
}

/// Those that nobody has dealt with.
async fn open(view: &View, runs: Vec<Own<RunRecord>>) -> Result<Vec<Own<RunRecord>>, Problem> {
    let marks = view.dead_marks(&runs).await?;
    Ok(runs.into_iter().zip(marks).filter(|(_, mark)| mark.is_none()).map(|(run, _)| run).collect())
}
