//! What was changed, by whom.

use axum::Json;
use jiff::Timestamp;
use rota_api::{access::AuditEntry, page::Page};
use rota_core::store::AuditQuery;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use crate::{
    access::{Admin, May, wire},
    problem::Problem,
    query::{Listing, Paging},
};

/// Which entries to list, newest first.
#[derive(Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditFilter {
    /// Only changes by this caller, such as `ann` or `token:ci`.
    who: Option<String>,
    /// Such as `job.save`.
    action: Option<String>,
    /// Such as `job/12`.
    object: Option<String>,
    /// Only at this instant or later.
    #[serde(default, deserialize_with = "rota_api::instant::read_opt")]
    from: Option<Timestamp>,
    /// Only before this instant.
    #[serde(default, deserialize_with = "rota_api::instant::read_opt")]
    to: Option<Timestamp>,
}

/// List changes.
#[utoipa::path(get, path = "/audit", tag = "access", params(AuditFilter, Paging),
    responses((status = OK, body = Page<AuditEntry>)))]
pub async fn list(may: May<Admin>, listing: Listing<AuditFilter>) -> Result<Json<Page<AuditEntry>>, Problem> {
    let filter = &listing.filter;
    let query = AuditQuery {
        tenant: may.caller.tenant,
        who: filter.who.clone(),
        action: filter.action.clone(),
        object: filter.object.clone(),
        from: filter.from,
        to: filter.to,
        after: listing.cursor()?,
        limit: listing.limit,
    };
    let page = may.view.list_audit(query).await?;
    let entries = page.entries.into_iter().map(wire::audit_entry).collect::<Result<_, _>>()?;
    Ok(Json(listing.page(entries, page.next.as_ref())))
}
