//! Problem documents (RFC 9457): the only form in which anything is refused.
//!
//! Here alone what went wrong inside becomes a code, and so a status.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use rota_api::problem::{Code, FieldError, Problem as Document};
use rota_core::{limits::LimitReached, quota::Refusal, store::StoreError};
use rota_engine::{EngineError, definitions::SaveError};

use crate::access::too_many;

/// Why a request was not answered as it wished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    document: Box<Document>,
    /// Seconds after which asking again may help.
    retry_after: Option<u64>,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { document: Box::new(Document::new(code, detail)), retry_after: None }
    }

    pub fn document(&self) -> &Document {
        &self.document
    }

    /// After how many seconds asking again may help.
    pub fn seconds(&self) -> Option<u64> {
        self.retry_after
    }

    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// Wrong in these places.
    #[must_use]
    pub fn at(mut self, errors: Vec<FieldError>) -> Self {
        self.document.errors = errors;
        self
    }

    pub fn not_found() -> Self {
        Self::new(Code::NotFound, "there is nothing at this address; / lists the addresses")
    }

    /// There is no such thing, or it is another tenant's.
    pub fn no_such(what: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no such {what}"))
    }

    pub fn method_not_allowed() -> Self {
        let detail = "this address does not support this method; the Allow header lists the methods it supports";
        Self::new(Code::MethodNotAllowed, detail)
    }

    pub fn wrong_host(host: &str) -> Self {
        let host: String = host.chars().take(100).collect();
        let detail = format!(
            "`{}` is not one of this node's names; use an IP address or localhost, or add the name to the `hosts` setting",
            host.escape_debug()
        );
        Self::new(Code::WrongHost, detail)
    }

    pub fn wrong_origin() -> Self {
        Self::new(
            Code::WrongOrigin,
            "the request comes from a web page that was not served by this node; if the page is yours, add its host to the `hosts` setting",
        )
    }

    pub fn too_large(bytes_max: usize) -> Self {
        Self::new(Code::TooLarge, format!("the body is too large; the maximum is {bytes_max} bytes"))
    }

    pub fn too_slow() -> Self {
        Self::new(Code::TooSlow, "the answer was not ready in time; trying again may help")
    }

    pub fn slow_body() -> Self {
        Self::new(Code::SlowBody, "the body did not arrive in time; send it again")
    }

    pub fn busy() -> Self {
        Self::new(Code::Busy, "the node has reached its maximum number of requests; try again in a moment")
            .retry_after(1)
    }

    pub fn not_ready(why: impl Into<String>) -> Self {
        Self::new(Code::NotReady, why).retry_after(1)
    }

    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, detail)
    }

    /// A parameter of the path or the query that has no such form.
    pub fn bad_parameter(name: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        let error = FieldError { path: name.to_owned(), code: "bad_parameter".to_owned(), message: message.clone() };
        Self::bad_request(format!("{name}: {message}")).at(vec![error])
    }

    /// Beyond the tenant's quotas; where time helps, it says how much.
    pub fn over_quota(what: &str, refusals: &[Refusal], now: Timestamp) -> Self {
        let detail = match refusals {
            [one] => format!("{what}: {one}"),
            many => format!("{what}: {} fields exceed the tenant's quotas", many.len()),
        };
        let errors = refusals.iter().map(|refusal| field_error(refusal.problem())).collect();
        match refusals.iter().filter_map(|refusal| refusal.retry_at).max() {
            Some(at) => too_many(detail, at, now).at(errors),
            None => Self::new(Code::QuotaExceeded, detail).at(errors),
        }
    }

    /// What the tenant's tier does not have at all.
    pub fn not_in_tier(refusal: &Refusal) -> Self {
        Self::new(Code::NotInTier, refusal.to_string()).at(vec![field_error(refusal.problem())])
    }

    /// A document that was read and cannot be used.
    pub fn bad_document(what: &str, problems: Vec<rota_core::problem::Problem>) -> Self {
        let detail = match problems.as_slice() {
            [one] => format!("{what} is not valid: {one}"),
            many => format!("{what} is not valid: {} errors", many.len()),
        };
        Self::new(Code::BadDocument, detail).at(problems.into_iter().map(field_error).collect())
    }
}

pub fn field_error(problem: rota_core::problem::Problem) -> FieldError {
    FieldError { path: problem.path, code: problem.code.to_owned(), message: problem.message }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotApplied { what, .. } => {
                tracing::warn!(error = &error as &dyn std::error::Error, what, "the store did not answer a request");
                Self::new(Code::StoreAway, "the store does not answer; nothing was changed").retry_after(1)
            }
            StoreError::OutcomeUnknown { what, .. } => {
                tracing::warn!(error = &error as &dyn std::error::Error, what, "the store's answer was lost");
                let detail = "the store's answer was lost: the change may or may not have been made. Check, or send the request again with the same Idempotency-Key";
                Self::new(Code::StoreAway, detail).retry_after(1)
            }
            StoreError::RequestDiffers => Self::new(
                Code::KeyReused,
                "this Idempotency-Key was used before with another body; use a new key for a new request",
            ),
            StoreError::Moved { .. } => {
                Self::new(Code::StoreAway, "the data that this depends on kept changing; try again").retry_after(1)
            }
            StoreError::Corrupt(what) => {
                tracing::error!(what, "the store contains a row that cannot be read");
                Self::new(Code::Internal, "the store contains a row that cannot be read; the server's log names it")
            }
        }
    }
}

impl From<SaveError> for Problem {
    fn from(error: SaveError) -> Self {
        match error {
            SaveError::Conflict { version } => {
                let stored = version
                    .map_or("it does not exist".to_owned(), |version| format!("its stored version is {version}"));
                Self::new(
                    Code::PreconditionFailed,
                    format!("the job is not in the state that the request expects: {stored}"),
                )
            }
            SaveError::BadSchedule { name, problems } => {
                Self::bad_document(&format!("the schedule `{name}`"), problems)
            }
            SaveError::OverQuota { refusals, now } => Self::over_quota("the job was not saved", &refusals, now),
            SaveError::LimitReached(reached) => reached.into(),
            SaveError::BadDocument { problems } => Self::bad_document("the job document", problems),
            SaveError::Busy => {
                Self::new(Code::Conflict, "the job's schedules kept changing while they were saved; try again")
                    .retry_after(1)
            }
            SaveError::Store(error) => error.into(),
        }
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(error) => error.into(),
            EngineError::Save(error) => error.into(),
            EngineError::LimitReached(reached) => reached.into(),
            EngineError::OverQuota { refusal, now } => Self::over_quota("nothing was saved", &[refusal], now),
        }
    }
}

impl From<LimitReached> for Problem {
    fn from(reached: LimitReached) -> Self {
        Self::new(Code::LimitReached, format!("{reached}. Nothing was changed"))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.document.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Plain data always has a JSON form.
        let body = serde_json::to_vec(&self.document).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
