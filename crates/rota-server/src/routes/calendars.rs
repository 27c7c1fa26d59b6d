//! Calendars: named days on which schedules do or do not fire.

use axum::Json;
use rota_api::page::Page;
use rota_core::calendar::Calendar;
use serde_json::Value;

use super::NoFilter;
use crate::{
    access::{JobRead, JobWrite, May},
    body::{self, Document},
    problem::Problem,
    query::{Id, Listing, Paging},
    wire,
};

/// List calendars by name.
#[utoipa::path(get, path = "/calendars", tag = "calendars", params(Paging),
    responses((status = OK, body = Page<Object>)))]
pub async fn list(may: May<JobRead>, listing: Listing<NoFilter>) -> Result<Json<Page<Value>>, Problem> {
    let page = listing.page_of(may.view.calendars().await?, |stored| &stored.name)?;
    let items = page.items.iter().map(|stored| wire::json(&stored.spec)).collect::<Result<_, _>>()?;
    Ok(Json(Page { items, next: page.next }))
}

/// Read a calendar.
#[utoipa::path(get, path = "/calendars/{calendar}", tag = "calendars", params(("calendar" = String, Path)),
    responses((status = OK, body = Object)))]
pub async fn read(may: May<JobRead>, Id(name): Id<String>) -> Result<Json<Value>, Problem> {
    let stored = may.view.calendars().await?;
    let found = stored.iter().find(|stored| stored.name == name).ok_or_else(|| Problem::no_such("calendar"))?;
    Ok(Json(wire::json(&found.spec)?))
}

/// Save a calendar.
///
/// Schedules that name it follow within a second. A tenant may have at most 1,000 calendars
/// (422, `limit_reached`).
#[utoipa::path(put, path = "/calendars/{calendar}", tag = "calendars", params(("calendar" = String, Path)),
    request_body(content((Object = "application/json"), (Object = "application/yaml"))),
    responses((status = OK, body = Object)))]
pub async fn save(may: May<JobWrite>, Id(name): Id<String>, document: Document) -> Result<Json<Value>, Problem> {
    let calendar: Calendar = body::typed(document.value)?;
    let mut problems = calendar.validate();
    if calendar.name != name {
        let message =
            format!("the calendar is named `{}`, but the address says `{name}`; use the same name", calendar.name);
        problems.push(rota_core::problem::Problem::new("name", "wrong_name", message));
    }
    if !problems.is_empty() {
        return Err(Problem::bad_document("the calendar", problems));
    }
    let value = serde_json::to_value(&calendar).unwrap_or_default();
    let object = format!("calendar/{name}");
    let before =
        may.view.save_calendar(name, value.to_string()).await?.map(|stored| wire::json(&stored.spec)).transpose()?;
    may.changed("calendar.save", object, before, Some(value.clone()));
    Ok(Json(value))
}
