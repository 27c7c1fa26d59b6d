//! Problem documents (RFC 9457), and every code there is.
//!
//! A code never changes once released, so that programs can branch on it while
//! the words improve. The table is also the docs page `docs/problems.md`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The address of the explanation of the code, on the server that answered.
    pub r#type: String,
    pub title: String,
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// The error code for programs: stable, in `snake_case`.
    pub code: String,
    /// The message for people.
    pub detail: String,
    /// Each error in the request, if errors can be assigned to fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// One error in one field of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// The path of the field, such as `schedules[0].cron`; empty for the whole document.
    pub path: String,
    /// The error code for programs.
    pub code: String,
    /// The message for people.
    pub message: String,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            r#type: format!("/docs/problems/{}", code.as_str()),
            title: code.title().to_owned(),
            status: code.status(),
            code: code.as_str().to_owned(),
            detail: detail.into(),
            errors: Vec::new(),
        }
    }

    /// With the places that are wrong.
    #[must_use]
    pub fn at(self, errors: Vec<FieldError>) -> Self {
        Self { errors, ..self }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)?;
        for error in &self.errors {
            let at = if error.path.is_empty() { "" } else { ": " };
            write!(f, "\n  {}{at}{}", error.path, error.message)?;
        }
        Ok(())
    }
}

macro_rules! codes {
    ($($name:ident $code:literal $status:literal $title:literal $about:literal)*) => {
        /// Every code there is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($name,)* }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// What it means and what to do, for the docs page.
            pub const fn about(self) -> &'static str {
                match self { $(Self::$name => $about,)* }
            }
        }
    };
}

codes! {
    BadRequest "bad_request" 400 "Bad request"
        "The request cannot be parsed: the body is not JSON or is nested too deeply, or a path or query parameter is not valid. `detail` says which. Correct it and send the request again."
    BadCursor "bad_cursor" 400 "Bad cursor"
        "`after` is not the `next` of a previous page, or the filters differ from those of that page. Start again without `after`."
    BadDocument "bad_document" 422 "Bad document"
        "The document was read, but is not valid. `errors` lists every error in it with its path. Nothing was changed."
    Unauthenticated "unauthenticated" 401 "Not logged in"
        "The request carries no token or session, or one that is unknown, expired or revoked. Send `Authorization: Bearer TOKEN`; `rota token create` creates a token."
    Forbidden "forbidden" 403 "Forbidden"
        "The caller is logged in, but does not have the permission for this. `detail` names the missing permission; an administrator of the tenant can grant it."
    NotInTier "not_in_tier" 403 "Not in the tier"
        "The tenant's tier does not include this, for example dead letters; `detail` names the quota. The operator of the installation can change the tier, or give the tenant its own quota."
    WrongOrigin "wrong_origin" 403 "Wrong origin"
        "The request comes from a web page that was not served by this node. If the page is yours, list its host under `hosts`."
    NotFound "not_found" 404 "Not found"
        "The object does not exist, or belongs to another tenant. Check the id or the name, and the tenant."
    MethodNotAllowed "method_not_allowed" 405 "Method not allowed"
        "The address exists, but does not support this method; the `Allow` header lists the methods it supports."
    NotAcceptable "not_acceptable" 406 "Not acceptable"
        "The answer is not available in any format that the `Accept` header allows."
    SlowBody "slow_body" 408 "Slow body"
        "The body, or the next line of a stream, did not arrive in time, and was not processed. Send it again."
    Conflict "conflict" 409 "Conflict"
        "The request conflicts with the current state, for example because a name already exists. `detail` says what the conflict is."
    RunEnded "run_ended" 409 "The run has ended"
        "The verdict of a run that has ended does not change. Retry the run (`POST /runs/{id}/retry`) to create a new one."
    RunLive "run_live" 409 "The run has not ended"
        "Only a run that has ended can be retried or redriven. Wait for its end, or cancel it first."
    Duplicate "duplicate" 409 "Duplicate"
        "Another run with the same `unique` key exists; `detail` names it."
    Full "full" 409 "Full"
        "All slots of the job's concurrency key are taken, and the job does not queue further runs, or `max_queued` runs are already waiting. Try again when a run has ended."
    NotManual "not_manual" 409 "Cannot be triggered manually"
        "The job has `triggers.manual: false`. Its schedules and other triggers still start it; to trigger it by hand, change that field."
    PreconditionFailed "precondition_failed" 412 "Changed meanwhile"
        "`If-Match` does not name the stored version, because somebody has saved the object since you read it; or `If-None-Match: *` was sent and the object exists. Read it again, apply your change, and save."
    TooLarge "too_large" 413 "Too large"
        "The body, or one line of it, is too large. `detail` gives the maximum size."
    UnsupportedMediaType "unsupported_media_type" 415 "Unsupported media type"
        "This address does not accept the body's `Content-Type`. Send documents as `application/json` or `application/yaml`, and bulk requests as `application/x-ndjson`."
    WrongHost "wrong_host" 421 "Wrong host"
        "The request's host is not one of this node's names, so it may come from a page of another site. Use an IP address or `localhost`, or list the name under `hosts`."
    KeyReused "key_reused" 422 "Key already used"
        "The `Idempotency-Key` was used within the last 24 hours with another body. Use a new key for a new request."
    BadPayload "bad_payload" 422 "Bad payload"
        "The payload does not satisfy the job's `input.schema`, or a key of the job cannot be computed from it."
    QuotaExceeded "quota_exceeded" 422 "Quota exceeded"
        "The request exceeds the tenant's quotas. `errors` lists every field that exceeds one, with the quota's name as its code; `detail` gives the limit. Nothing was changed."
    LimitReached "limit_reached" 422 "Limit reached"
        "The maximum number of tenants, lanes, calendars or paused queues exists already. The limit does not depend on the tenant's tier. `detail` gives the limit and what to do instead; what exists can still be changed. Nothing was changed."
    TooMany "too_many_requests" 429 "Too many requests"
        "The tenant's rate of requests or of runs is used up; `detail` names the quota. `Retry-After` says when to try again."
    TooManyConnections "too_many_connections" 429 "Too many connections"
        "The caller's address has reached the maximum number of connections to the node (`http.connections_per_address`), and none of them is idle. The request was not processed. Close some connections, or have the operator raise the setting: behind a proxy all callers have one address."
    TooManyHeaders "too_many_headers" 431 "Too many headers"
        "The request has too many headers, or headers that are too long. Send fewer or shorter ones."
    Internal "internal" 500 "Internal error"
        "An unexpected error. The server's log has the details at the time of the request."
    StoreAway "store_away" 503 "The store does not answer"
        "As far as is known, nothing was changed. Send the request again; with the same `Idempotency-Key` it takes effect only once."
    NotReady "not_ready" 503 "Not ready"
        "The node is starting or draining. Try again, or use another node."
    Busy "busy" 503 "Busy"
        "The node has reached its maximum number of connections, requests in progress or feeds. The request was not processed. `Retry-After` says when to try again; other nodes may have capacity."
    TooSlow "too_slow" 503 "Too slow"
        "The answer was not ready in time. Trying again may help."
}

/// The page `docs/problems.md`.
pub fn reference() -> String {
    let mut page = String::from(
        "# Problems\n\n*Generated from the table in `rota-api`; a test compares this page with it.*\n\nEvery error is a problem document (RFC 9457, `application/problem+json`).\n`type` is the address of the explanation on the server that answered; `code` is\nstable and meant for programs; `detail` and `errors` are meant for people. Each entry\nof `errors` has the `path` of the invalid field.\n",
    );
    for code in Code::ALL {
        let (name, status, title, about) = (code.as_str(), code.status(), code.title(), code.about());
        page.extend(["\n## `", name, "`\n\n**", &status.to_string(), " ", title, ".** ", about, "\n"]);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that branches on a code must not find two things under it.
    #[test]
    fn codes_are_unique_and_plain() {
        let mut seen = std::collections::BTreeSet::new();
        for code in Code::ALL {
            assert!(seen.insert(code.as_str()), "{code:?}");
            assert!(code.as_str().chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{code:?}");
            assert!((400..600).contains(&code.status()), "{code:?}");
        }
    }
}
