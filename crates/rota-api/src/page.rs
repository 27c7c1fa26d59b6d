//! Lists: a page at a time.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The default number of items on a page.
pub const PAGE: u32 = 100;
/// The maximum number of items on a page; larger limits are reduced to it.
pub const PAGE_MAX: u32 = 1_000;

/// A page of a list. It may have fewer items than `limit`, or none, and still be
/// followed by another page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Pass this as `after`, with the same filters, to get the next page. Absent on
    /// the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
