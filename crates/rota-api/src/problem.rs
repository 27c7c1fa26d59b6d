//! Problem documents (RFC 9457), and every code there is.
//!
//! A code never changes once released, so that programs can branch on it while
//! the words improve. The table is also the docs page `docs/problems.md`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request was not answered as it wished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Where the code is explained, on the server that answered.
    pub r#type: String,
    pub title: String,
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// What, for programs: stable, `snake_case`.
    pub code: String,
    /// What, for people.
    pub detail: String,
    /// Each thing that is wrong with the request, where there are places to name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// One thing that is wrong at one place of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// Where, such as `schedules[0].cron`; empty for the whole.
    pub path: String,
    /// What, for programs.
    pub code: String,
    /// What, for people.
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
        "The request cannot be read: it is no JSON, is nested too deeply, or a path or query parameter has no such form. `detail` says which."
    BadCursor "bad_cursor" 400 "Bad cursor"
        "`after` is not what the page before gave as `next`, or the filters are not those of that page. Begin again without `after`."
    BadDocument "bad_document" 422 "Bad document"
        "The document was read and cannot be used. `errors` lists every place that is wrong, so that one answer is enough to repair it. Nothing was changed."
    Unauthenticated "unauthenticated" 401 "Not logged in"
        "The request carries no token or session, or one that is unknown, expired or revoked. Send `Authorization: Bearer TOKEN`; `rota token create` makes one."
    Forbidden "forbidden" 403 "Forbidden"
        "Whoever asks is known and may not do this. `detail` names the permission that is missing; an administrator of the tenant can give it."
    NotInTier "not_in_tier" 403 "Not in the tier"
        "The tenant's tier does not have this at all, such as dead letters; `detail` names the quota. Whoever runs the installation can change the tier, or give the tenant a quota of its own."
    WrongOrigin "wrong_origin" 403 "Wrong origin"
        "A page in a browser asked that was not served by this node. List its host under `hosts` if it is one of yours."
    NotFound "not_found" 404 "Not found"
        "There is no such thing, or it belongs to another tenant."
    MethodNotAllowed "method_not_allowed" 405 "Method not allowed"
        "The address exists and does not answer that method; the `Allow` header lists those it does."
    NotAcceptable "not_acceptable" 406 "Not acceptable"
        "The answer has no form that the `Accept` header admits."
    SlowBody "slow_body" 408 "Slow body"
        "The body, or the next line of a stream, did not come in time. Nothing of it was done."
    Conflict "conflict" 409 "Conflict"
        "What the request wants does not go together with how things stand, such as a name that is taken. `detail` says what stands in the way."
    RunEnded "run_ended" 409 "The run has ended"
        "A run that has ended has one verdict for ever. Retry it (`POST /runs/{id}/retry`) to make another."
    RunLive "run_live" 409 "The run has not ended"
        "Only a run that has ended can be retried or redriven."
    Duplicate "duplicate" 409 "Duplicate"
        "Another run under the same `unique` key stands in the way; `detail` names it."
    Full "full" 409 "Full"
        "The job's concurrency key has no room for another run, and its policy is not to queue it, or its queue is full."
    NotManual "not_manual" 409 "Not to be triggered"
        "The job says `triggers.manual: false`."
    PreconditionFailed "precondition_failed" 412 "Changed meanwhile"
        "`If-Match` names another version than the stored one: somebody saved meanwhile. Read it again, and save what you want on top of it."
    TooLarge "too_large" 413 "Too large"
        "The body or one of its lines is larger than is read. `detail` gives the bound."
    UnsupportedMediaType "unsupported_media_type" 415 "Unsupported media type"
        "The body's `Content-Type` is none that this address reads. Documents are read as `application/json` and `application/yaml`, bulk requests as `application/x-ndjson`."
    WrongHost "wrong_host" 421 "Wrong host"
        "The request's host is no name that this node goes by (`hosts` lists names besides addresses and `localhost`). This keeps pages of other sites out."
    KeyReused "key_reused" 422 "Key used before"
        "The `Idempotency-Key` was used before with another body, and is remembered for 24 hours. Use a new key for a new request."
    BadPayload "bad_payload" 422 "Bad payload"
        "The payload does not satisfy the job's `input.schema`, or a key of the job cannot be made from it."
    QuotaExceeded "quota_exceeded" 422 "Quota exceeded"
        "The tenant's quotas do not allow it. `errors` lists every place that is beyond one, with the quota's name as its code; `detail` gives the limit. Nothing was changed."
    LimitReached "limit_reached" 422 "Limit reached"
        "There are as many tenants, lanes, calendars or paused queues as there may be, whatever the tenant's tier. `detail` gives the limit and what to do instead; what exists can still be changed. Nothing was changed."
    TooMany "too_many_requests" 429 "Too many requests"
        "The tenant's rate of requests or of runs is used up; `detail` names the quota. `Retry-After` says when to ask again."
    TooManyHeaders "too_many_headers" 431 "Too many headers"
        "The request has more or longer headers than are read."
    Internal "internal" 500 "Internal error"
        "This should not happen. The server's log has the details under the request's time."
    StoreAway "store_away" 503 "The store does not answer"
        "Nothing was changed as far as is known. Ask again; with the same `Idempotency-Key`, asking again does nothing twice."
    NotReady "not_ready" 503 "Not ready"
        "The node is starting or draining. Ask again, or ask another node."
    Busy "busy" 503 "Busy"
        "The node has as many connections, requests in work or feeds as it takes at once; nothing was done. `Retry-After` says when to ask again; other nodes may have room."
    TooSlow "too_slow" 503 "Too slow"
        "The answer was not ready in time; asking again may help."
}

/// The page `docs/problems.md`.
pub fn reference() -> String {
    let mut page = String::from(
        "# Problems\n\n*Made from the table in `rota-api`; a test holds this page to it.*\n\nEverything that is refused is refused with a problem document\n(RFC 9457, `application/problem+json`): `type` is the address of the explanation\non the server that answered, `code` is stable and for programs, `detail` and\n`errors` are for people. Each entry of `errors` has the `path` of the bad field.\n",
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
