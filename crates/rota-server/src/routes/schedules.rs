//! Schedules: listed, previewed, paused, explained, backfilled.

use std::collections::HashMap;

use axum::{Json, http::StatusCode};
use jiff::Timestamp;
use rota_api::{
    PauseRequest,
    page::Page,
    problem::Code,
    run::Why,
    schedule::{BackfillRequest, Backfilled, Schedule, Skip, Upcoming},
};
use rota_core::{
    calendar::{Calendar, named},
    ids::ScheduleId,
    preview::{PREVIEW_MAX, preview},
    schedule::ScheduleSpec,
    store::{JobRecord, Pause, PauseTarget, ScheduleQuery, ScheduleRecord},
    stored, timing,
    why::Level,
};
use rota_engine::{Own, View};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::jobs;
use crate::{
    access::{JobExecute, JobRead, May},
    body::Body,
    problem::Problem,
    query::{Id, Listing, Paging, Query},
    wire,
};

const SHOWN: usize = 10;

/// Which schedules to list.
#[derive(Clone, Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ScheduleFilter {
    /// Only those of this job, by id or name.
    job: Option<String>,
    enabled: Option<bool>,
}

/// List schedules.
#[utoipa::path(get, path = "/schedules", tag = "schedules", params(ScheduleFilter, Paging),
    responses((status = OK, body = Page<Schedule>)))]
pub async fn list(may: May<JobRead>, listing: Listing<ScheduleFilter>) -> Result<Json<Page<Schedule>>, Problem> {
    let job = match &listing.filter.job {
        Some(job) => Some(jobs::find(&may.view, &jobs::job_ref(job)).await?.id),
        None => None,
    };
    let query = ScheduleQuery {
        tenant: None,
        job,
        enabled: listing.filter.enabled,
        after: listing.cursor()?,
        limit: listing.limit,
    };
    let page = may.view.list_schedules(query).await?;
    let items = shown(&may.view, page.items).await?;
    Ok(Json(listing.page(items, page.next.as_ref())))
}

/// Schedules as they are answered.
pub async fn shown(view: &View, schedules: Vec<Own<ScheduleRecord>>) -> Result<Vec<Schedule>, Problem> {
    if schedules.is_empty() {
        return Ok(Vec::new());
    }
    let cursors = view.cursors(&schedules).await?;
    let jobs = view.jobs(schedules.iter().map(|record| record.job)).await?;
    let names = jobs.iter().map(|(id, job)| (*id, job.name.clone())).collect();
    let wide = view.pauses().await?;
    let calendars = calendars(view).await?;
    let now = view.now();
    let mut shown = Vec::with_capacity(schedules.len());
    for (record, due) in schedules.into_iter().zip(cursors) {
        let hold = jobs.get(&record.job).and_then(|job| Hold::of(pauses_over(&record, job, &wide), now));
        let spec = record.spec.clone();
        let mut schedule = wire::schedule(record.into_inner(), due.map(|due| due.cursor), &names, now);
        if let Some(hold) = hold {
            schedule.paused_by = Some(wire::word(&hold.level));
            schedule.next_at = schedule.next_at.and_then(|at| hold.next(schedule.id, &spec, at, &calendars));
        }
        shown.push(schedule);
    }
    Ok(shown)
}

/// The pauses that a schedule is under, the widest first.
fn pauses_over<'a>(
    schedule: &'a ScheduleRecord,
    job: &'a JobRecord,
    wide: &'a [(PauseTarget, Pause)],
) -> [(Level, Option<&'a Pause>); 4] {
    let of = |target| wide.iter().find(|(paused, _)| *paused == target).map(|(_, pause)| pause);
    [
        (Level::Tenant, of(PauseTarget::Tenant(schedule.tenant))),
        (Level::Queue, of(PauseTarget::Queue(schedule.tenant, job.queue.clone()))),
        (Level::Job, job.pause.as_ref()),
        (Level::Schedule, schedule.pause.as_ref()),
    ]
}

/// What keeps a schedule from firing: all pauses in force that it is under.
struct Hold {
    /// The widest of them.
    level: Level,
    /// When the last of them ends.
    until: Option<Timestamp>,
}

impl Hold {
    fn of(pauses: [(Level, Option<&Pause>); 4], now: Timestamp) -> Option<Self> {
        let set = pauses.into_iter().filter_map(|(level, pause)| Some((level, pause?)));
        let in_force = set.filter(|(_, pause)| pause.holds(now));
        in_force.map(|(level, pause)| Self { level, until: pause.until }).reduce(|first, other| Self {
            until: first.until.zip(other.until).map(|(one, other)| one.max(other)),
            ..first
        })
    }

    /// The first instant from `planned_at` on that will fire.
    fn next(&self, id: i64, spec: &str, planned_at: Timestamp, calendars: &Calendars) -> Option<Timestamp> {
        let until = self.until?;
        if planned_at >= until {
            return Some(planned_at);
        }
        let spec: ScheduleSpec = stored::read(spec).ok()?;
        let schedule = timing::Schedule::compile(&spec, &ScheduleId(id).seed()).ok()?;
        let before = until.checked_sub(jiff::SignedDuration::from_micros(1)).ok()?;
        let next = preview(&schedule, ScheduleId(id), &calendars.of(&spec).ok()?, before, 1);
        next.first().map(|next| next.planned_at)
    }
}

/// The caller's own schedule.
pub async fn find(view: &View, id: i64) -> Result<Own<ScheduleRecord>, Problem> {
    view.schedule(ScheduleId(id)).await?.ok_or_else(|| Problem::no_such("schedule"))
}

/// Read a schedule.
#[utoipa::path(get, path = "/schedules/{schedule}", tag = "schedules", params(("schedule" = i64, Path)),
    responses((status = OK, body = Schedule)))]
pub async fn read(may: May<JobRead>, Id(id): Id<i64>) -> Result<Json<Schedule>, Problem> {
    let record = find(&may.view, id).await?;
    let mut shown = shown(&may.view, vec![record]).await?;
    shown.pop().map(Json).ok_or_else(|| Problem::no_such("schedule"))
}

/// A tenant's calendars by name.
pub struct Calendars(HashMap<String, Calendar>);

impl Calendars {
    /// Those that a schedule names, or each that is not there.
    pub fn of(&self, spec: &ScheduleSpec) -> Result<Vec<&Calendar>, Vec<rota_core::problem::Problem>> {
        named(&spec.calendars, &self.0)
    }
}

pub async fn calendars(view: &View) -> Result<Calendars, Problem> {
    let stored = view.calendars().await?;
    let read = stored.into_iter().filter_map(|stored| Some((stored.name, stored::read(&stored.spec).ok()?)));
    Ok(Calendars(read.collect()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PreviewQuery {
    /// Only instants after this one; by default now.
    #[serde(default, deserialize_with = "rota_api::instant::read_opt")]
    after: Option<jiff::Timestamp>,
    /// The number of instants: 10 by default, 1000 at most.
    #[param(minimum = 1)]
    n: Option<u64>,
}

impl PreviewQuery {
    fn count(&self) -> usize {
        self.n.map_or(SHOWN, |n| n.clamp(1, PREVIEW_MAX as u64) as usize)
    }
}

/// The next instants of a schedule.
///
/// In UTC and in the schedule's time zone, with a note if a clock change or a calendar
/// affects an instant.
#[utoipa::path(get, path = "/schedules/{schedule}/preview", tag = "schedules", params(("schedule" = i64, Path), PreviewQuery),
    responses((status = OK, body = Vec<Upcoming>)))]
pub async fn show_next(
    may: May<JobRead>,
    Id(id): Id<i64>,
    Query(query): Query<PreviewQuery>,
) -> Result<Json<Vec<Upcoming>>, Problem> {
    let record = find(&may.view, id).await?;
    let spec: ScheduleSpec =
        stored::read(&record.spec).map_err(|error| rota_core::store::StoreError::Corrupt(error.to_string()))?;
    next_of(&may, &spec, record.id, &query).await
}

/// The next instants of a schedule that is not saved.
#[utoipa::path(post, path = "/preview", tag = "schedules", params(PreviewQuery), request_body = Object,
    responses((status = OK, body = Vec<Upcoming>)))]
pub async fn show_next_of(
    may: May<JobRead>,
    Query(query): Query<PreviewQuery>,
    Body(spec): Body<ScheduleSpec>,
) -> Result<Json<Vec<Upcoming>>, Problem> {
    may.changed_nothing();
    next_of(&may, &spec, ScheduleId(0), &query).await
}

async fn next_of(
    may: &May<JobRead>,
    spec: &ScheduleSpec,
    id: ScheduleId,
    query: &PreviewQuery,
) -> Result<Json<Vec<Upcoming>>, Problem> {
    let problems = spec.validate();
    if !problems.is_empty() {
        return Err(Problem::bad_document("the schedule", problems));
    }
    let schedule = timing::Schedule::compile(spec, &id.seed());
    let schedule = schedule.map_err(|problems| Problem::bad_document("the schedule", problems))?;
    let calendars = calendars(&may.view).await?;
    let calendars = calendars.of(spec).map_err(|missing| Problem::bad_document("the schedule", missing))?;
    let after = query.after.unwrap_or_else(|| may.view.now());
    let next = preview(&schedule, id, &calendars, after, query.count());
    Ok(Json(next.iter().map(wire::upcoming).collect()))
}

/// Why a schedule did not fire, and what it does next.
///
/// In words and data; whether the next instant fires is computed by the planner itself.
#[utoipa::path(get, path = "/schedules/{schedule}/why", tag = "schedules", params(("schedule" = i64, Path)),
    responses((status = OK, body = Why)))]
pub async fn why(may: May<JobRead>, Id(id): Id<i64>) -> Result<Json<Why>, Problem> {
    let record = find(&may.view, id).await?;
    let reasons = may.view.why_schedule(&record).await?;
    let reasons = reasons.ok_or_else(|| Problem::new(Code::Conflict, "the schedule is being changed; try again"))?;
    Ok(Json(wire::why(&reasons)))
}

/// The instants of a schedule that were skipped, and why.
///
/// Newest first, as ranges.
#[utoipa::path(get, path = "/schedules/{schedule}/skips", tag = "schedules", params(("schedule" = i64, Path), Paging),
    responses((status = OK, body = Page<Skip>)))]
pub async fn skips(
    may: May<JobRead>,
    Id(id): Id<i64>,
    listing: Listing<super::NoFilter>,
) -> Result<Json<Page<Skip>>, Problem> {
    let record = find(&may.view, id).await?;
    let found = may.view.skips(&record, listing.cursor()?, listing.limit).await?;
    let next = if found.len() < listing.limit as usize { None } else { found.last().map(|skip| skip.range.from) };
    Ok(Json(listing.page(found.iter().map(wire::skip).collect(), next.as_ref())))
}

/// Pause a schedule.
#[utoipa::path(post, path = "/schedules/{schedule}/pause", tag = "schedules", params(("schedule" = i64, Path)),
    request_body = PauseRequest, responses((status = NO_CONTENT)))]
pub async fn pause(
    may: May<JobExecute>,
    Id(id): Id<i64>,
    Body(request): Body<PauseRequest>,
) -> Result<StatusCode, Problem> {
    let record = find(&may.view, id).await?;
    super::pause(&may, record.target(), record.into_inner().pause, request).await
}

/// Resume a schedule.
///
/// Instants inside the pause are recorded as skipped.
#[utoipa::path(post, path = "/schedules/{schedule}/resume", tag = "schedules", params(("schedule" = i64, Path)),
    responses((status = NO_CONTENT)))]
pub async fn resume(may: May<JobExecute>, Id(id): Id<i64>) -> Result<StatusCode, Problem> {
    let record = find(&may.view, id).await?;
    super::resume(&may, record.target(), record.into_inner().pause).await
}

/// Create runs for past instants of a schedule.
///
/// Instants that already have a run are left out unless `again` is set. With `dry_run`
/// they are only counted.
#[utoipa::path(post, path = "/schedules/{schedule}/backfill", tag = "schedules", params(("schedule" = i64, Path)),
    request_body = BackfillRequest, responses((status = OK, body = Backfilled)))]
pub async fn backfill(
    may: May<JobExecute>,
    Id(id): Id<i64>,
    Body(request): Body<BackfillRequest>,
) -> Result<Json<Backfilled>, Problem> {
    let record = find(&may.view, id).await?;
    let ask = rota_engine::backfill::Ask {
        schedule: record.id,
        from: request.from,
        to: request.to,
        again: request.again,
        dry_run: request.dry_run,
        by: Some(may.caller.who.clone()),
    };
    let done = may.view.backfill(&record, ask).await?;
    let done = done.map_err(|refusal| {
        let problem = rota_core::problem::Problem::new(refusal.path(), "out_of_bounds", refusal.to_string());
        Problem::bad_document("the request", vec![problem])
    })?;
    let done = Backfilled {
        planned: done.planned,
        fired_before: done.fired_before,
        runs: done.runs,
        refused: done.refused,
        refusal: done.refusal,
        dry_run: request.dry_run,
    };
    if request.dry_run {
        may.changed_nothing();
    } else {
        let after = serde_json::json!({ "asked": request, "done": done });
        may.changed("schedule.backfill", format_args!("schedule/{id}"), None, Some(after));
    }
    Ok(Json(done))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A schedule is shown as paused exactly while it would not fire, whatever is paused;
    /// and its next instant is one that fires.
    #[test]
    fn a_schedule_is_held_until_the_last_pause_over_it_ends() {
        let pause = |until: Option<i64>| Pause { since: at(0), until: until.map(at), ..Pause::default() };
        let (early, late, open) = (pause(Some(60)), pause(Some(90)), pause(None));
        let levels = [Level::Tenant, Level::Queue, Level::Job, Level::Schedule];
        let held = |set: [Option<&Pause>; 4], now| {
            let pauses = [0, 1, 2, 3].map(|n| (levels[n], set[n]));
            Hold::of(pauses, now).map(|hold| (hold.level, hold.until))
        };
        let moment = jiff::SignedDuration::from_micros(1);
        for n in 0..4 {
            let mut set = [None; 4];
            set[n] = Some(&early);
            assert_eq!(held(set, at(60) - moment), Some((levels[n], Some(at(60)))));
            assert_eq!(held(set, at(60)), None, "it is over at its end");
        }
        assert_eq!(held([None, Some(&early), None, Some(&late)], at(0)), Some((Level::Queue, Some(at(90)))));
        assert_eq!(held([None, Some(&early), None, Some(&late)], at(60)), Some((Level::Schedule, Some(at(90)))));
        assert_eq!(held([Some(&late), None, Some(&open), None], at(0)), Some((Level::Tenant, None)));
        assert_eq!(held([Some(&late), None, Some(&open), None], at(90)), Some((Level::Job, None)));
        let every = "{\"name\":\"s\",\"every\":\"1m\",\"anchor\":\"1970-01-01T00:00:00Z\"}";
        let next = |until: Option<i64>, planned: i64| {
            let under_pause = Hold { level: Level::Job, until: until.map(at) };
            under_pause.next(1, every, at(planned), &Calendars(HashMap::new()))
        };
        assert_eq!(next(None, 60), None);
        assert_eq!(next(Some(60), 60), Some(at(60)), "an instant at its end is not covered");
        assert_eq!(next(Some(120), 60), Some(at(120)));
        assert_eq!(next(Some(121), 60), Some(at(180)));
    }
}
