//! Tenants, for whoever speaks for the installation.

use axum::{Json, extract::State};
use rota_api::{
    access::{Tenant, TenantRequest},
    page::Page,
};
use rota_core::{
    access::check_name,
    quota::Quotas,
    store::{self, TenantPut, Tier},
};

use super::NoFilter;
use crate::{
    Node,
    access::{Installation, May, audit::kept, wire},
    body::Body,
    problem::Problem,
    query::{Id, Listing, Paging},
};

/// Bytes of a tenant's own quotas.
const QUOTAS_BYTES_MAX: usize = 4 << 10;

/// List tenants by name.
#[utoipa::path(get, path = "/tenants", tag = "access", params(Paging), responses((status = OK, body = Page<Tenant>)))]
pub async fn list(may: May<Installation>, listing: Listing<NoFilter>) -> Result<Json<Page<Tenant>>, Problem> {
    let page = listing.page_of(may.engine().store().tenants().await?, |tenant| &tenant.name)?;
    let items = page.items.into_iter().map(wire::tenant).collect::<Result<_, _>>()?;
    Ok(Json(Page { items, next: page.next }))
}

/// Read a tenant.
#[utoipa::path(get, path = "/tenants/{name}", tag = "access", params(("name" = String, Path)),
    responses((status = OK, body = Tenant)))]
pub async fn read(may: May<Installation>, Id(name): Id<String>) -> Result<Json<Tenant>, Problem> {
    let found = find(&may, &name).await?.ok_or_else(|| Problem::no_such("tenant"))?;
    wire::tenant(found).map(Json)
}

/// Create or change a tenant.
///
/// An installation may have at most 10,000 tenants (422, `limit_reached`).
#[utoipa::path(put, path = "/tenants/{name}", tag = "access", params(("name" = String, Path)),
    request_body = TenantRequest, responses((status = OK, body = Tenant)))]
pub async fn put(
    may: May<Installation>,
    State(node): State<Node>,
    Id(name): Id<String>,
    body: Body<TenantRequest>,
) -> Result<Json<Tenant>, Problem> {
    let Body(request) = body;
    check_name(&name).map_err(|why| Problem::bad_parameter("name", why))?;
    let tier = tier(&request.tier)?;
    let put = TenantPut { name: name.clone(), tier, quotas: quotas(&request)? };
    let before = may.engine().save_tenant(put).await?.map(wire::tenant).transpose()?;
    node.access().tenants.forget();
    let after = find(&may, &name).await?.ok_or_else(|| Problem::no_such("tenant"))?;
    let after = wire::tenant(after)?;
    may.changed("tenant.save", format_args!("tenant/{name}"), before.as_ref().and_then(kept), kept(&after));
    Ok(Json(after))
}

fn tier(text: &str) -> Result<Tier, Problem> {
    let read = serde_json::from_value(text.into());
    read.map_err(|_| Problem::bad_parameter("tier", "not one of free, pro, enterprise, unlimited"))
}

fn quotas(request: &TenantRequest) -> Result<Option<String>, Problem> {
    let Some(quotas) = &request.quotas else { return Ok(None) };
    let text = quotas.to_string();
    if !quotas.is_object() || text.len() > QUOTAS_BYTES_MAX {
        let why = format!("quotas must be an object of at most {QUOTAS_BYTES_MAX} bytes");
        return Err(Problem::bad_parameter("quotas", why));
    }
    if let Err(problems) = Quotas::NONE.under(quotas) {
        let problems = problems.into_iter().map(|problem| problem.within("quotas")).collect();
        return Err(Problem::bad_document("the tenant", problems));
    }
    Ok(Some(text))
}

async fn find(may: &May<Installation>, name: &str) -> Result<Option<store::Tenant>, Problem> {
    Ok(may.engine().store().tenants().await?.into_iter().find(|tenant| tenant.name == name))
}
