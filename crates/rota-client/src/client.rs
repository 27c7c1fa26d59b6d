//! The client: requests and answers as types, tried again where that is safe.
//!
//! A question is asked again when nobody answered or the server said that it is
//! not ready. So is a request under an `Idempotency-Key`, which the server does
//! once however often it is sent; the client makes one where the caller has
//! none. Anything else that was sent and not answered is left to the caller.

use std::time::Duration;

use reqwest::{Method, StatusCode, header};
use rota_api::{
    IDEMPOTENCY_KEY, PREFIX,
    job::{Job, JobSaved},
    page::Page,
    problem::Problem,
    run::{CancelRequest, CancelResult, Run, RunMade, TriggerRequest},
    worker::{SyncAnswer, SyncRequest, Worker},
};
use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

/// So often is something tried that may be tried again.
const TRIES: u32 = 5;
/// The first wait between two tries; it doubles.
const WAIT: Duration = Duration::from_millis(100);
/// No answer of the server takes longer than 30 seconds.
const ANSWER_MAX: Duration = Duration::from_secs(40);
/// A problem document is not longer than this.
const PROBLEM_BYTES_MAX: usize = 64 << 10;

/// Why a request did not do what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{0}` is not the address of a server, such as http://localhost:7070")]
    BadAddress(String),
    /// Nobody answered, or the answer broke off: it may have been done.
    #[error("the server at {address} did not answer")]
    Unreachable { address: String, source: reqwest::Error },
    /// The server refused it.
    #[error("{0}")]
    Refused(Box<Problem>),
    #[error("the server's answer cannot be read")]
    BadAnswer(#[from] serde_json::Error),
}

impl Error {
    /// Whether asking again may help.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused(problem) => matches!(problem.status, 429 | 500..=599),
            Self::BadAddress(_) | Self::BadAnswer(_) => false,
        }
    }

    /// The code of the server's refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(problem) => Some(&problem.code),
            Self::BadAddress(_) | Self::Unreachable { .. } | Self::BadAnswer(_) => None,
        }
    }
}

/// Puts a client together.
#[derive(Debug)]
pub struct ClientBuilder {
    address: String,
    token: Option<String>,
}

impl ClientBuilder {
    /// An API token to log in with.
    #[must_use]
    pub fn token(self, token: impl Into<String>) -> Self {
        Self { token: Some(token.into()), ..self }
    }

    pub fn build(self) -> Result<Client, Error> {
        let address = self.address.trim_end_matches('/').to_owned();
        let bad = || Error::BadAddress(self.address.clone());
        if !(address.starts_with("http://") || address.starts_with("https://")) {
            return Err(bad());
        }
        let mut headers = header::HeaderMap::new();
        if let Some(token) = &self.token {
            let mut value = header::HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| bad())?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .timeout(ANSWER_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|_| bad())?;
        Ok(Client { http, address })
    }
}

/// A client of one server. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    address: String,
}

impl Client {
    pub fn new(address: impl Into<String>) -> Result<Self, Error> {
        Self::builder(address).build()
    }

    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        ClientBuilder { address: address.into(), token: None }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Jobs by name, a page at a time.
    pub async fn jobs(&self, after: Option<&str>) -> Result<Page<Job>, Error> {
        self.get(&paged("/jobs", after)).await
    }

    /// Saves a job document.
    pub async fn save_job(&self, document: &serde_json::Value) -> Result<JobSaved, Error> {
        self.post_once("/jobs", document, None).await
    }

    /// A run of a job. Asked again under the same key, it is the same run; a
    /// key is made where there is none, so that the client's own tries are one.
    pub async fn trigger(&self, job: i64, request: &TriggerRequest, key: Option<&str>) -> Result<RunMade, Error> {
        self.post_once(&format!("/jobs/{job}/trigger"), request, key).await
    }

    pub async fn run(&self, run: Uuid) -> Result<Run, Error> {
        self.get(&format!("/runs/{run}")).await
    }

    /// Asks a run to stop. Asking twice changes nothing.
    pub async fn cancel(&self, run: Uuid, request: &CancelRequest) -> Result<CancelResult, Error> {
        self.post_once(&format!("/runs/{run}/cancel"), request, None).await
    }

    pub async fn workers(&self, after: Option<&str>) -> Result<Page<Worker>, Error> {
        self.get(&paged("/workers", after)).await
    }

    /// Asks a worker to take no more work and to leave.
    pub async fn drain_worker(&self, worker: Uuid) -> Result<(), Error> {
        let answer = self.once(Method::POST, &format!("/workers/{worker}/drain"), None, None).await?;
        drop(answer);
        Ok(())
    }

    /// One exchange of a remote worker; [`crate::Worker`] does this for you.
    /// Not tried again here: a worker says something newer instead.
    pub async fn sync(&self, request: &SyncRequest) -> Result<SyncAnswer, Error> {
        let body = serde_json::to_vec(request)?;
        Ok(serde_json::from_slice(&self.once(Method::POST, "/workers/sync", Some(body), None).await?)?)
    }

    /// The answer to a question under `/api/v1`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        Ok(serde_json::from_slice(&self.tried(&Method::GET, path, None, None).await?)?)
    }

    /// Sends something under `/api/v1` that is to be done once.
    pub async fn post_once<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        key: Option<&str>,
    ) -> Result<T, Error> {
        let body = serde_json::to_vec(body)?;
        let key = key.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
        Ok(serde_json::from_slice(&self.tried(&Method::POST, path, Some(body), Some(&key)).await?)?)
    }

    async fn tried(
        &self,
        method: &Method,
        path: &str,
        body: Option<Vec<u8>>,
        key: Option<&str>,
    ) -> Result<Vec<u8>, Error> {
        let mut wait = WAIT;
        for _ in 1..TRIES {
            match self.once(method.clone(), path, body.clone(), key).await {
                Err(error) if error.is_passing() => tokio::time::sleep(wait).await,
                answer => return answer,
            }
            wait *= 2;
        }
        self.once(method.clone(), path, body, key).await
    }

    async fn once(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        key: Option<&str>,
    ) -> Result<Vec<u8>, Error> {
        let unreachable = |source| Error::Unreachable { address: self.address.clone(), source };
        let mut request = self.http.request(method, format!("{}{PREFIX}{path}", self.address));
        if let Some(body) = body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        }
        if let Some(key) = key {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(unreachable)?;
        if status.is_success() { Ok(bytes.to_vec()) } else { Err(Error::Refused(Box::new(problem(status, &bytes)))) }
    }
}

fn paged(path: &str, after: Option<&str>) -> String {
    // A cursor is made of characters that need no escaping.
    after.map_or_else(|| path.to_owned(), |after| format!("{path}?after={after}"))
}

/// What the server said; something in between may have said something else.
fn problem(status: StatusCode, body: &[u8]) -> Problem {
    let body = &body[..body.len().min(PROBLEM_BYTES_MAX)];
    serde_json::from_slice(body).unwrap_or_else(|_| Problem {
        r#type: "about:blank".into(),
        title: status.canonical_reason().unwrap_or("Refused").into(),
        status: status.as_u16(),
        code: "unknown".into(),
        detail: format!("the server answered {status}"),
        errors: Vec::new(),
    })
}
