//! Rows that the store cannot read, for whoever speaks for the installation.

use axum::Json;
use rota_api::{
    access::{RawRow, UnreadableRow},
    page::Page,
    problem::Code,
};
use rota_core::store::{self, Discarded};
use serde_json::json;

use super::NoFilter;
use crate::{
    access::{Installation, May},
    problem::Problem,
    query::{Id, Listing, Paging},
};

/// List the rows that cannot be read.
///
/// Lists the live runs that were set aside, and other rows that this node has read since it
/// started, up to a hundred.
#[utoipa::path(get, path = "/rows", tag = "access", params(Paging), responses((status = OK, body = Page<UnreadableRow>)))]
pub async fn list(may: May<Installation>, listing: Listing<NoFilter>) -> Result<Json<Page<UnreadableRow>>, Problem> {
    let mut rows: Vec<UnreadableRow> = may.engine().store().unreadable().await?.into_iter().map(row).collect();
    rows.truncate(listing.limit as usize);
    Ok(Json(listing.page(rows, None::<&String>)))
}

/// Read a row as it is stored.
///
/// By its table and its key, as in the list: `run.0199…`.
#[utoipa::path(get, path = "/rows/{row}", tag = "access", params(("row" = String, Path)),
    responses((status = OK, body = RawRow)))]
pub async fn read(may: May<Installation>, Id(name): Id<String>) -> Result<Json<RawRow>, Problem> {
    let (table, key) = place(&name)?;
    let columns = may.engine().store().raw_row(table, key).await?.ok_or_else(|| Problem::no_such("row"))?;
    Ok(Json(RawRow { id: name, columns }))
}

/// Discard a row that cannot be read.
///
/// Discarding a live run releases its slot and the runs that wait for it; a schedule whose
/// cursor is discarded gets another. A row that others depend on is refused with
/// `conflict`, and the answer says what to do instead.
#[utoipa::path(delete, path = "/rows/{row}", tag = "access", params(("row" = String, Path)),
    responses((status = OK, body = RawRow)))]
pub async fn discard(may: May<Installation>, Id(name): Id<String>) -> Result<Json<RawRow>, Problem> {
    let (table, key) = place(&name)?;
    let columns = may.engine().store().raw_row(table, key).await?.ok_or_else(|| Problem::no_such("row"))?;
    match may.engine().discard_row(table, key).await? {
        Discarded::Gone => {}
        Discarded::NotFound => return Err(Problem::no_such("unreadable row")),
        Discarded::Refused(why) => {
            return Err(Problem::new(Code::Conflict, format!("{name} was not discarded: {why}")));
        }
    }
    let before = json!({ "table": table, "key": key, "job": columns["job"], "tenant": columns["tenant"] });
    may.changed("row.discard", format_args!("row/{name}"), Some(before), None);
    Ok(Json(RawRow { id: name, columns }))
}

/// The table and the key that a row's name is made of.
fn place(name: &str) -> Result<(&str, &str), Problem> {
    name.split_once('.').ok_or_else(|| Problem::no_such("row"))
}

fn row(row: store::UnreadableRow) -> UnreadableRow {
    let store::UnreadableRow { table, key, reason } = row;
    UnreadableRow { id: format!("{table}.{key}"), table, key, reason }
}
