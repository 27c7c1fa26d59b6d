//! Bodies: read within bounds, and refused with the path of what is wrong.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header},
};
use hyper::body::Body as _;
use rota_api::problem::Code;
use rota_core::job::{decode::decode, read};
use rota_engine::elsewhere::elsewhere;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    BODY_BYTES_MAX,
    bounds::{Bounds, Place},
    memory::SMALL,
    problem::Problem,
};

/// A JSON body as a typed request. An empty body is an empty object.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned + Serialize, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = kind(request.headers())?;
        let bytes = bytes(request, state).await?;
        if bytes.is_empty() {
            return typed(Value::Object(serde_json::Map::new())).map(Self);
        }
        if kind != Some(Kind::Json) {
            return Err(Problem::new(Code::UnsupportedMediaType, "the body must be application/json, and say so"));
        }
        aside(bytes.len(), || typed(value(Kind::Json, &bytes)?)).map(Self)
    }
}

/// A document in JSON or YAML, as a plain value, with the bytes it was read from.
pub struct Document {
    pub value: Value,
    pub bytes: Bytes,
}

impl<S: Send + Sync> FromRequest<S> for Document {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = kind(request.headers())?;
        let bytes = bytes(request, state).await?;
        if kind.is_none() && !bytes.is_empty() {
            return Err(unsupported());
        }
        let value = aside(bytes.len(), || value(kind.unwrap_or(Kind::Json), &bytes))?;
        Ok(Self { value, bytes })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Json,
    Yaml,
}

/// What the body is said to be. A body of which nothing is said is refused: a page of
/// another site can send one without asking.
fn kind(headers: &HeaderMap) -> Result<Option<Kind>, Problem> {
    let Some(said) = headers.get(header::CONTENT_TYPE) else { return Ok(None) };
    let said = said.to_str().unwrap_or_default();
    let essence = said.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "" => Ok(None),
        "application/json" | "application/merge-patch+json" => Ok(Some(Kind::Json)),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Some(Kind::Yaml)),
        _ => Err(unsupported()),
    }
}

fn unsupported() -> Problem {
    let detail = "the header Content-Type must say application/json, or application/yaml where a document is saved";
    Problem::new(Code::UnsupportedMediaType, detail)
}

/// The whole body, within its time. While it is waited for, the request is not in
/// work: a slow client takes nobody's place.
async fn bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    let time = request.extensions().get::<Bounds>().copied().unwrap_or_default().body_time;
    let place = request.extensions().get::<Place>().cloned();
    if let Some(place) = &place {
        place.leave();
    }
    // A body that is not read yet takes no memory here.
    let arriving = match &place {
        Some(place) => {
            timeout(time, place.arriving(request.body().size_hint().upper())).await.map_err(|_| Problem::busy())?
        }
        None => None,
    };
    let read = timeout(time, Bytes::from_request(request, state)).await.map_err(|_| Problem::slow_body())?;
    let bytes = read.map_err(|rejection: BytesRejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            Problem::too_large(BODY_BYTES_MAX)
        } else {
            Problem::bad_request("the body ended early")
        }
    })?;
    if let Some(place) = &place {
        // Whoever waits for its turn takes nobody's place either.
        place.work(bytes.len()).await;
        place.back()?;
    }
    drop(arriving);
    Ok(bytes)
}

/// Works on a text of so many bytes; on a large one not on the thread that others wait for.
pub fn aside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes > SMALL { elsewhere(work) } else { work() }
}

fn value(kind: Kind, bytes: &[u8]) -> Result<Value, Problem> {
    let read = match kind {
        Kind::Json => read::json(bytes),
        Kind::Yaml => read::yaml(bytes),
    };
    read.map_err(|problem| {
        let detail = format!("the body is not valid: {problem}");
        Problem::bad_request(detail).at(vec![crate::problem::field_error(problem)])
    })
}

/// A value as a request, or the paths of all that does not fit.
pub fn typed<T: DeserializeOwned + Serialize>(value: Value) -> Result<T, Problem> {
    decode(value).map_err(|problems| Problem::bad_document("the request", problems))
}
