//! `sql`: one statement on a named connection.

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sql {
    /// The name of a connection of the tenant.
    pub connection: String,
    /// Not a template: values are bound through `params`, never spliced.
    pub statement: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub params: Vec<Value>,
    /// More rows than this are a failure, not a cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_max: Option<u32>,
    /// Records the run's key in the target, in the statement's transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exactly_once: Option<bool>,
}
