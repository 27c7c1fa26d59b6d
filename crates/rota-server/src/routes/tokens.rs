//! Tokens for the API.

use axum::{Json, http::StatusCode};
use rota_api::{
    access::{Token, TokenMade, TokenRequest},
    page::Page,
    problem::Code,
};
use rota_core::{
    access::{Permission, Permissions, Role, SecretKind, Standing, check_name, standing},
    ids::TokenId,
    store::{self, TokenQuery},
};
use rota_engine::Own;
use uuid::Uuid;

use super::NoFilter;
use crate::{
    access::{Admin, Caller, May, audit::kept, new_secret, wire},
    body::Body,
    problem::Problem,
    query::{Id, Listing, Paging},
};

/// Create a token. Its secret is only in this answer.
#[utoipa::path(post, path = "/tokens", tag = "access", request_body = TokenRequest,
    responses((status = CREATED, body = TokenMade)))]
pub async fn create(may: May<Admin>, body: Body<TokenRequest>) -> Result<(StatusCode, Json<TokenMade>), Problem> {
    let now = may.view.now();
    let Body(request) = body;
    check_name(&request.name).map_err(|why| Problem::bad_parameter("name", why))?;
    if standing(request.expires_at, None, now) == Standing::Expired {
        return Err(Problem::bad_parameter("expires_at", "is in the past"));
    }
    let permissions = permissions(&request)?;
    may_give(&may.caller, permissions, request.installation)?;
    let secret = new_secret(SecretKind::Token);
    let token = store::Token {
        id: may.view.token_id(),
        tenant: may.caller.tenant,
        installation: request.installation,
        name: request.name,
        digest: secret.digest(),
        permissions,
        created_at: now,
        created_by: may.caller.who.clone(),
        expires_at: request.expires_at,
        revoked_at: None,
        last_used_at: None,
    };
    let token = may.view.put_token(token).await?;
    let token = wire::token(&token);
    may.changed("token.create", format_args!("token/{}", token.id), None, kept(&token));
    Ok((StatusCode::CREATED, Json(TokenMade { secret: secret.expose().to_owned(), token })))
}

fn permissions(request: &TokenRequest) -> Result<Permissions, Problem> {
    let role = request.role.as_deref().map(str::parse::<Role>).transpose();
    let role = role.map_err(|why| Problem::bad_parameter("role", why))?;
    let named: Result<Permissions, String> =
        request.permissions.iter().map(|name| name.parse::<Permission>()).collect();
    let named = named.map_err(|why| Problem::bad_parameter("permissions", why))?;
    match (role, named.is_empty()) {
        (Some(role), true) => Ok(role.permissions()),
        (None, false) => Ok(named),
        _ => Err(Problem::bad_parameter("role", "give either a role or permissions")),
    }
}

/// Nobody gives away more than they have.
pub fn may_give(caller: &Caller, permissions: Permissions, installation: bool) -> Result<(), Problem> {
    if !caller.permissions.covers(permissions) || (installation && !caller.installation) {
        return Err(Problem::new(Code::Forbidden, "you cannot grant permissions that you do not have yourself"));
    }
    Ok(())
}

/// List tokens, newest first, including expired and revoked ones.
#[utoipa::path(get, path = "/tokens", tag = "access", params(Paging), responses((status = OK, body = Page<Token>)))]
pub async fn list(may: May<Admin>, listing: Listing<NoFilter>) -> Result<Json<Page<Token>>, Problem> {
    let query = TokenQuery { tenant: may.caller.tenant, after: listing.cursor()?, limit: listing.limit };
    let page = may.view.list_tokens(query).await?;
    let shown = page.tokens.iter().filter(|token| !token.installation || may.caller.installation);
    Ok(Json(listing.page(shown.map(wire::token).collect(), page.next.as_ref())))
}

/// Read a token's properties.
#[utoipa::path(get, path = "/tokens/{id}", tag = "access", params(("id" = Uuid, Path)),
    responses((status = OK, body = Token)))]
pub async fn read(may: May<Admin>, Id(id): Id<Uuid>) -> Result<Json<Token>, Problem> {
    let token = found(&may, id).await?;
    Ok(Json(wire::token(&token)))
}

/// Revoke a token: the next request with it is refused, on every node.
#[utoipa::path(delete, path = "/tokens/{id}", tag = "access", params(("id" = Uuid, Path)),
    responses((status = NO_CONTENT)))]
pub async fn revoke(may: May<Admin>, Id(id): Id<Uuid>) -> Result<StatusCode, Problem> {
    let token = found(&may, id).await?;
    let now = may.view.now();
    may.view.revoke_token(&token, now).await?;
    let after = store::Token { revoked_at: token.revoked_at.or(Some(now)), ..store::Token::clone(&token) };
    may.changed("token.revoke", format_args!("token/{id}"), kept(&wire::token(&token)), kept(&wire::token(&after)));
    Ok(StatusCode::NO_CONTENT)
}

/// A token of the caller's tenant. Those of the installation are for those who
/// speak for it.
async fn found(may: &May<Admin>, id: Uuid) -> Result<Own<store::Token>, Problem> {
    let found = may.view.token(TokenId(id)).await?;
    found.filter(|token| !token.installation || may.caller.installation).ok_or_else(|| Problem::no_such("token"))
}
