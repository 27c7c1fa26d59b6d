//! Tokens, people, sessions, tenants and the audit log on the wire.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

/// What a caller may do: `job:read`, `job:write`, `job:execute`, `job:delete`,
/// `run:read`, `run:cancel`, `secret:write`, or `admin`, which includes the rest.
pub type Permission = String;

/// A token for the API, without the token itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    pub id: Uuid,
    pub name: String,
    pub permissions: Vec<Permission>,
    /// True if it may act for every tenant.
    pub installation: bool,
    pub created_at: Timestamp,
    pub created_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
}

/// Create a token. Give either a role or permissions, and no more than you have yourself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// A name for people, such as what it is for.
    #[schema(max_length = 100)]
    pub name: String,
    /// `viewer`, `operator`, `editor` or `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<Permission>,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::instant::read_opt")]
    pub expires_at: Option<Timestamp>,
    /// True if it may act for every tenant.
    #[serde(default)]
    pub installation: bool,
}

/// A token that was just created. This is the only time it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenMade {
    /// Send it as `Authorization: Bearer …`.
    pub secret: String,
    pub token: Token,
}

/// A user who logs in with a password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct User {
    pub name: String,
    /// `viewer`, `operator`, `editor` or `admin`.
    pub role: String,
    /// True if the role applies in every tenant.
    pub installation: bool,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserRequest {
    #[schema(max_length = 100)]
    pub name: String,
    #[schema(min_length = 8, max_length = 1000)]
    pub password: String,
    /// `viewer`, `operator`, `editor` or `admin`.
    pub role: String,
    /// True if the role applies in every tenant.
    #[serde(default)]
    pub installation: bool,
}

/// Change a user; what is left out stays as it is.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserPatch {
    /// A new password ends every session of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 8, max_length = 1000)]
    pub password: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<bool>,
}

/// Log in. The answer sets a cookie.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginRequest {
    pub user: String,
    pub password: String,
    /// The tenant's name; the default tenant if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// The caller, as this server identifies it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Whoami {
    /// The caller's name as in the audit log.
    pub who: String,
    /// How the caller is logged in: `token`, `jwt`, `session`, or `open` if no login is
    /// required.
    pub via: String,
    pub tenant: TenantRef,
    pub permissions: Vec<Permission>,
    /// True if the caller may act for every tenant.
    pub installation: bool,
    /// When the session expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantRef {
    pub id: i32,
    pub name: String,
}

/// An isolated customer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    pub id: i32,
    pub name: String,
    /// `free`, `pro`, `enterprise` or `unlimited`.
    pub tier: String,
    /// What differs from the tier's quotas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub quotas: Option<Value>,
}

/// Create or change a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantRequest {
    /// `free`, `pro`, `enterprise` or `unlimited`.
    pub tier: String,
    /// What differs from the tier's quotas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub quotas: Option<Value>,
}

/// One change: who made it, from where, and the state before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    pub id: Uuid,
    pub at: Timestamp,
    pub who: String,
    /// Such as `job.save`.
    pub action: String,
    /// Such as `job/12`.
    pub object: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub before: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub after: Option<Value>,
    /// The address of the connection; that of the proxy if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// These never contain a password.
macro_rules! without_password {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

without_password!(UserRequest, UserPatch, LoginRequest);

/// A row in the store that cannot be read and is left out everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnreadableRow {
    /// Its table and its key.
    pub id: String,
    pub table: String,
    pub key: String,
    /// Why it cannot be read.
    pub reason: String,
}

/// A row in the store, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RawRow {
    /// Its table and its key.
    pub id: String,
    /// Its columns by name.
    pub columns: Value,
}
