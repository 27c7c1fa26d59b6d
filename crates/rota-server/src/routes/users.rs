//! People who log in with a password.

use axum::{Json, http::StatusCode};
use rota_api::{
    access::{User, UserPatch, UserRequest},
    page::Page,
    problem::Code,
};
use rota_core::{
    access::{Role, check_name},
    store::{self, UserPut, UserQuery, UserWish},
};
use rota_engine::Own;

use super::{NoFilter, tokens::may_give};
use crate::{
    Node,
    access::{Admin, May, audit::kept, wire},
    body::Body,
    problem::Problem,
    query::{Id, Listing, Paging},
};

fn role(text: &str) -> Result<Role, Problem> {
    text.parse().map_err(|why: String| Problem::bad_parameter("role", why))
}

/// Create a user.
#[utoipa::path(post, path = "/users", tag = "access", request_body = UserRequest,
    responses((status = CREATED, body = User)))]
pub async fn create(
    may: May<Admin>,
    axum::extract::State(node): axum::extract::State<Node>,
    body: Body<UserRequest>,
) -> Result<(StatusCode, Json<User>), Problem> {
    let Body(request) = body;
    check_name(&request.name).map_err(|why| Problem::bad_parameter("name", why))?;
    let role = role(&request.role)?;
    may_give(&may.caller, role.permissions(), request.installation)?;
    let put = UserPut {
        id: may.view.user_id(),
        tenant: may.caller.tenant,
        name: request.name,
        role,
        installation: request.installation,
        password: Some(node.access().passwords.hash(request.password).await?),
        wish: UserWish::New,
    };
    if !may.view.put_user(put.clone()).await? {
        return Err(Problem::new(Code::Conflict, "a user with this name already exists"));
    }
    let user = find(&may, &put.name).await?;
    let user = wire::user(&user);
    may.changed("user.create", format_args!("user/{}", put.name), None, kept(&user));
    Ok((StatusCode::CREATED, Json(user)))
}

/// List users by name.
#[utoipa::path(get, path = "/users", tag = "access", params(Paging), responses((status = OK, body = Page<User>)))]
pub async fn list(may: May<Admin>, listing: Listing<NoFilter>) -> Result<Json<Page<User>>, Problem> {
    let query = UserQuery { tenant: may.caller.tenant, after: listing.cursor()?, limit: listing.limit };
    let page = may.view.list_users(query).await?;
    let shown = page.users.iter().filter(|user| !user.installation || may.caller.installation);
    Ok(Json(listing.page(shown.map(wire::user).collect(), page.next.as_ref())))
}

/// Read a user's properties.
#[utoipa::path(get, path = "/users/{name}", tag = "access", params(("name" = String, Path)),
    responses((status = OK, body = User)))]
pub async fn read(may: May<Admin>, Id(name): Id<String>) -> Result<Json<User>, Problem> {
    let user = find(&may, &name).await?;
    Ok(Json(wire::user(&user)))
}

/// Change a user. A new password ends all their sessions; a new role takes effect with
/// their next request.
#[utoipa::path(patch, path = "/users/{name}", tag = "access", params(("name" = String, Path)),
    request_body = UserPatch, responses((status = OK, body = User)))]
pub async fn change(
    may: May<Admin>,
    axum::extract::State(node): axum::extract::State<Node>,
    Id(name): Id<String>,
    body: Body<UserPatch>,
) -> Result<Json<User>, Problem> {
    let Body(patch) = body;
    let before = find(&may, &name).await?;
    let role = patch.role.as_deref().map(role).transpose()?.unwrap_or(before.role);
    let installation = patch.installation.unwrap_or(before.installation);
    may_give(&may.caller, role.permissions(), installation)?;
    let has_new_password = patch.password.is_some();
    let password = match patch.password {
        Some(password) => Some(node.access().passwords.hash(password).await?),
        None => None,
    };
    let (id, tenant) = (before.id, before.tenant);
    let put = UserPut { id, tenant, name: name.clone(), role, installation, password, wish: UserWish::Known };
    if !may.view.put_user(put).await? {
        return Err(Problem::no_such("user"));
    }
    let user = find(&may, &name).await?;
    let user = wire::user(&user);
    let mut after = kept(&user);
    if let Some(after) = after.as_mut().filter(|_| has_new_password) {
        after["password"] = "changed".into();
    }
    may.changed("user.change", format_args!("user/{name}"), kept(&wire::user(&before)), after);
    Ok(Json(user))
}

/// Delete a user, with their sessions.
#[utoipa::path(delete, path = "/users/{name}", tag = "access", params(("name" = String, Path)),
    responses((status = NO_CONTENT)))]
pub async fn delete(may: May<Admin>, Id(name): Id<String>) -> Result<StatusCode, Problem> {
    let user = find(&may, &name).await?;
    may.view.delete_user(&user).await?;
    may.changed("user.delete", format_args!("user/{name}"), kept(&wire::user(&user)), None);
    Ok(StatusCode::NO_CONTENT)
}

/// A person of the caller's tenant. Those of the installation are for those who
/// speak for it: else an administrator of their tenant could set their password.
async fn find(may: &May<Admin>, name: &str) -> Result<Own<store::User>, Problem> {
    let no_such = || Problem::no_such("user");
    check_name(name).map_err(|_| no_such())?;
    let found = may.view.user(name).await?;
    found.filter(|user| !user.installation || may.caller.installation).ok_or_else(no_such)
}
