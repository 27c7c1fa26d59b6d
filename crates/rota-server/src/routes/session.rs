//! Logging in and out, and who one is.

use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use rota_api::{
    access::{LoginRequest, TenantRef, Whoami},
    problem::Code,
};
use rota_core::{
    access::{SecretKind, check_name},
    ids::TenantId,
    store::{Guarded, Session, User},
};

use super::NoFilter;
use crate::{
    Node,
    access::{COOKIE, Caller, Known, May, Peer, Via, audit::Trail, is_foreign_page, new_secret},
    body::Body,
    guard,
    problem::Problem,
    query::Query,
};

/// Log in with a password. The answer sets a cookie that scripts cannot read.
#[utoipa::path(post, path = "/session", tag = "access", request_body = LoginRequest,
    responses((status = OK, body = Whoami)))]
pub async fn create(
    State(node): State<Node>,
    trail: Option<Extension<Trail>>,
    parts: Parts,
    body: Body<LoginRequest>,
) -> Result<Response, Problem> {
    // A page of another site must not log somebody in as somebody else.
    if is_foreign_page(&parts) {
        return Err(Problem::wrong_origin());
    }
    let peer = parts.extensions.get::<Peer>().copied();
    let Body(request) = body;
    let (user, tenant) = verified(&node, request, peer).await?;
    let engine = node.engine().ok_or_else(|| Problem::not_ready("the node is starting"))?;
    let secret = new_secret(SecretKind::Session);
    let created_at = engine.now();
    let expires_at = node.access().session_keep().after(created_at);
    let digest = secret.digest();
    let session = Session { digest, user: user.id, created_at, expires_at };
    if engine.store().put_sessions(&[session]).await? != [Guarded::Applied] {
        return Err(refused());
    }
    let caller = Caller {
        tenant: user.tenant,
        who: user.name.clone(),
        permissions: user.role.permissions(),
        installation: user.installation,
        via: Via::Session { digest, expires_at },
    };
    if let Some(Extension(trail)) = trail {
        trail.asked_by(&caller);
        trail.changed("session.create", format!("user/{}", user.name), None, None);
    }
    let keep = node.access().session_keep().as_millis() / 1_000;
    let cookie = set_cookie(&parts.headers, secret.expose(), keep);
    Ok(([(header::SET_COOKIE, cookie)], Json(whoami(&caller, tenant))).into_response())
}

/// The same answer for a wrong password, an unknown name and an unknown tenant.
fn refused() -> Problem {
    Problem::new(Code::Unauthenticated, "the user name or the password is wrong")
}

async fn verified(node: &Node, request: LoginRequest, peer: Option<Peer>) -> Result<(User, TenantRef), Problem> {
    let engine = node.engine().ok_or_else(|| Problem::not_ready("the node is starting"))?;
    // A name that nobody can have is refused before anything is counted or stored.
    check_name(&request.user).map_err(|why| Problem::bad_parameter("user", why))?;
    let access = node.access();
    let tenant = match &request.tenant {
        Some(name) => access.tenants.named(name, engine).await?,
        None => access.tenants.by_id(node.tenant()?, engine).await?,
    };
    // Guesses at a tenant that does not exist are counted like the others.
    let counted = tenant.as_ref().map_or(TenantId(0), |tenant| tenant.id);
    access.passwords.count(counted, &request.user, peer, engine.now())?;
    let user = match &tenant {
        Some(tenant) => engine.store().users(&[(tenant.id, request.user.clone())]).await?.pop().flatten(),
        None => None,
    };
    let hash = user.as_ref().map(|user| user.password.clone());
    let right = access.passwords.is_right(request.password, hash).await?;
    match (user, tenant) {
        (Some(user), Some(tenant)) if right => Ok((user, TenantRef { id: tenant.id.0, name: tenant.name.clone() })),
        _ => {
            let address = peer.map(|Peer(address)| address.to_string());
            tracing::warn!(address, "failed login");
            Err(refused())
        }
    }
}

/// `Secure` wherever there can be TLS: a browser would drop such a cookie of
/// plain `http://127.0.0.1`.
fn set_cookie(headers: &HeaderMap, value: &str, seconds: u64) -> HeaderValue {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let secure = if guard::is_loopback(host) { "" } else { "; Secure" };
    let text = format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Log out: the session ends on every node.
#[utoipa::path(delete, path = "/session", tag = "access", responses((status = NO_CONTENT)))]
pub async fn delete(may: May<Known>, headers: HeaderMap) -> Result<Response, Problem> {
    if let Via::Session { digest, .. } = may.caller.via {
        may.view.end_session(digest).await?;
        may.changed("session.delete", format_args!("user/{}", may.caller.who), None, None);
    } else {
        may.changed_nothing();
    }
    let cookie = set_cookie(&headers, "", 0);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// The caller, as this server identifies it.
#[utoipa::path(get, path = "/whoami", tag = "access", responses((status = OK, body = Whoami)))]
pub async fn read(
    may: May<Known>,
    State(node): State<Node>,
    Query(NoFilter {}): Query<NoFilter>,
) -> Result<Json<Whoami>, Problem> {
    let tenant = may.tenant(&node).await?;
    Ok(Json(whoami(&may.caller, TenantRef { id: tenant.id.0, name: tenant.name.clone() })))
}

fn whoami(caller: &Caller, tenant: TenantRef) -> Whoami {
    let expires_at = match caller.via {
        Via::Session { expires_at, .. } => Some(expires_at),
        Via::Token | Via::Jwt | Via::Open => None,
    };
    Whoami {
        who: caller.who.clone(),
        via: caller.via.as_str().to_owned(),
        tenant,
        permissions: caller.permissions.list().iter().map(ToString::to_string).collect(),
        installation: caller.installation,
        expires_at,
    }
}
