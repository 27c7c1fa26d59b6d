//! Lists: a page at a time.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Items of one page where nobody says how many.
pub const PAGE: u32 = 100;
/// Most items of one page; whoever asks for more gets this many.
pub const PAGE_MAX: u32 = 1_000;

/// A page of a list. It may hold fewer items than asked for, or none, and still
/// have a next one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Give this as `after`, with the same filters, to get the next page. None
    /// on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
