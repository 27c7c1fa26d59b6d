//! Problem documents (RFC 9457): the only form in which anything is refused.
//!
//! This module alone knows status codes.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

/// Why a request was not answered as it wished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    title: &'static str,
    status: u16,
    /// What, for programs: stable, `snake_case`.
    code: &'static str,
    detail: String,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self { title, status: status.as_u16(), code, detail: detail.into() }
    }

    pub fn not_found() -> Self {
        let detail = "there is nothing at this address; / lists what there is";
        Self::new(StatusCode::NOT_FOUND, "not_found", "Not found", detail)
    }

    pub fn method_not_allowed() -> Self {
        let detail = "this address does not answer that method; the Allow header lists those it does";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Method not allowed", detail)
    }

    pub fn wrong_host(host: &str) -> Self {
        let host: String = host.chars().take(100).collect();
        let detail = format!("this node does not go by `{}`; `hosts` lists the names it does", host.escape_debug());
        Self::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", "Wrong host", detail)
    }

    pub fn wrong_origin() -> Self {
        let detail = "the page that asks was not served by this node";
        Self::new(StatusCode::FORBIDDEN, "wrong_origin", "Wrong origin", detail)
    }

    pub fn too_large(bytes_max: usize) -> Self {
        let detail = format!("a body may have at most {bytes_max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "Too large", detail)
    }

    pub fn too_slow() -> Self {
        let detail = "the answer was not ready in time; asking again may help";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too_slow", "Too slow", detail)
    }

    pub fn not_ready(why: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", "Not ready", why)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Plain data always has a JSON form.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        (status, [(header::CONTENT_TYPE, kind)], body).into_response()
    }
}
