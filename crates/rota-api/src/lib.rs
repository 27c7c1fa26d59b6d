//! What Rota says and hears over HTTP.
//!
//! Wire types and problem codes, and nothing else: the server maps the domain
//! to them, clients use them as they are. A field that is none is left out of
//! an answer. A request with an unknown field is refused, so that a mistyped
//! name is not silently ignored.

pub mod access;
pub mod bulk;
pub mod instant;
pub mod job;
pub mod page;
pub mod problem;
pub mod run;
pub mod schedule;
pub mod worker;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where everything lives.
pub const PREFIX: &str = "/api/v1";

/// The header under which a request may be sent again and is done once.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header by which an administrator of the installation chooses a tenant.
pub const TENANT: &str = "x-tenant-id";

/// A pause in force, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pause {
    pub since: jiff::Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<jiff::Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Pause something, with a reason and perhaps an end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// When the pause ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "instant::read_opt")]
    pub until: Option<jiff::Timestamp>,
    /// A note for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000)]
    pub note: Option<String>,
}
