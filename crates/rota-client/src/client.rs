//! The client: the API as calls.
//!
//! What has a method of its own is typed; everything else is reached by [`Client::get`]
//! and its like, by the parts of its path under `/api/v1`, in the types of
//! `rota-api` or as plain JSON. A part of a path is one part, whatever is in it.

use std::time::Duration;

use futures_util::Stream;
use reqwest::{
    Method, Url,
    header::{HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH},
};
use rota_api::{
    IDEMPOTENCY_KEY,
    job::{Job, JobSaved},
    page::{PAGE_MAX, Page},
    run::{CancelRequest, CancelResult, Run, RunMade, TriggerRequest},
    worker::{SyncAnswer, SyncRequest, Worker},
};
use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::{
    error::Error,
    transport::{Ask, Lines, Ready, TRIES, Terms, Transport, parse_address},
};

/// What a saver believes is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Believes {
    Anything,
    Nothing,
    Version(i32),
}

/// Puts a client together.
#[derive(Debug)]
pub struct ClientBuilder {
    address: String,
    token: Option<String>,
    tenant: Option<String>,
    agent: String,
    tries: u32,
}

impl ClientBuilder {
    /// An API token to log in with.
    #[must_use]
    pub fn token(self, token: impl Into<String>) -> Self {
        Self { token: Some(token.into()), ..self }
    }

    /// The tenant to act for, by a caller that speaks for the installation.
    #[must_use]
    pub fn tenant(self, tenant: impl Into<String>) -> Self {
        Self { tenant: Some(tenant.into()), ..self }
    }

    /// What asks, for the server's log.
    #[must_use]
    pub fn agent(self, agent: impl Into<String>) -> Self {
        Self { agent: agent.into(), ..self }
    }

    /// How often something is tried that may be tried again: five times, over a
    /// second and a half, where nothing is said.
    #[must_use]
    pub fn tries(self, tries: u32) -> Self {
        Self { tries, ..self }
    }

    pub fn build(self) -> Result<Client, Error> {
        let server: Url = parse_address(&self.address)?;
        let Self { token, tenant, agent, tries, .. } = self;
        Ok(Client { transport: Transport::new(&Terms { server, token, tenant, agent, tries })? })
    }
}

/// A client of one server. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Transport,
}

impl Client {
    pub fn new(address: impl Into<String>) -> Result<Self, Error> {
        Self::builder(address).build()
    }

    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        let agent = concat!("rota-client/", env!("CARGO_PKG_VERSION")).to_owned();
        ClientBuilder { address: address.into(), token: None, tenant: None, agent, tries: TRIES }
    }

    pub fn address(&self) -> &str {
        self.transport.address()
    }

    /// Asks the server, one time, whether it is ready; who is at work behind the address
    /// and is no Rota is an error.
    pub async fn ready(&self, within: Duration) -> Result<Ready, Error> {
        self.transport.ready(within).await
    }

    /// Jobs by name, a page at a time.
    pub async fn jobs(&self, after: Option<&str>) -> Result<Page<Job>, Error> {
        self.get(&["jobs"], &paged(after)).await
    }

    /// Saves a job document.
    pub async fn save_job(&self, document: &serde_json::Value) -> Result<JobSaved, Error> {
        self.post_once(&["jobs"], document, None).await
    }

    /// A run of a job. Asked again under the same key, it is the same run; a
    /// key is made where there is none, so that the client's own tries are one.
    pub async fn trigger(&self, job: i64, request: &TriggerRequest, key: Option<&str>) -> Result<RunMade, Error> {
        self.post_once(&["jobs", &job.to_string(), "trigger"], request, key).await
    }

    pub async fn run(&self, run: Uuid) -> Result<Run, Error> {
        self.get(&["runs", &run.to_string()], &[]).await
    }

    /// Asks a run to stop. Asking twice changes nothing.
    pub async fn cancel(&self, run: Uuid, request: &CancelRequest) -> Result<CancelResult, Error> {
        self.post_once(&["runs", &run.to_string(), "cancel"], request, None).await
    }

    pub async fn workers(&self, after: Option<&str>) -> Result<Page<Worker>, Error> {
        self.get(&["workers"], &paged(after)).await
    }

    /// Asks a worker to take no more work and to leave.
    pub async fn drain_worker(&self, worker: Uuid) -> Result<(), Error> {
        self.transport.tried(Ask::new(Method::POST, &["workers", &worker.to_string(), "drain"])).await
    }

    /// One exchange of a remote worker; [`crate::Worker`] does this for you.
    /// Not tried again here: a worker says something newer instead.
    pub async fn sync(&self, request: &SyncRequest) -> Result<SyncAnswer, Error> {
        self.transport.once(&Ask::new(Method::POST, &["workers", "sync"]).json(request)?).await
    }

    /// The answer to a question.
    pub async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, String)]) -> Result<T, Error> {
        self.transport.tried(Ask::new(Method::GET, path).query(query)).await
    }

    /// Items of a list, page by page: up to `limit`, and whether there are more.
    pub async fn list<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        limit: usize,
    ) -> Result<(Vec<T>, bool), Error> {
        let mut items: Vec<T> = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let mut asked = query.to_vec();
            let wanted = (limit - items.len()).min(PAGE_MAX as usize);
            asked.push(("limit", wanted.to_string()));
            asked.extend(after.map(|after| ("after", after)));
            let page: Page<T> = self.get(path, &asked).await?;
            items.extend(page.items);
            match page.next {
                Some(next) if items.len() < limit => after = Some(next),
                next => {
                    let more = next.is_some() || items.len() > limit;
                    items.truncate(limit);
                    return Ok((items, more));
                }
            }
        }
    }

    /// Sends something that may be done again by whoever sends it again.
    pub async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &(impl Serialize + Sync)) -> Result<T, Error> {
        self.transport.tried(Ask::new(Method::POST, path).json(body)?).await
    }

    /// Sends something that is to be done once, under a key: one is made where
    /// there is none.
    pub async fn post_once<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &(impl Serialize + Sync),
        key: Option<&str>,
    ) -> Result<T, Error> {
        let key = key.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
        let name = HeaderName::from_static(IDEMPOTENCY_KEY);
        self.transport.tried(Ask::new(Method::POST, path).json(body)?.once(name, &key)?).await
    }

    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &(impl Serialize + Sync),
        believes: Believes,
    ) -> Result<T, Error> {
        self.transport.tried(believing(Ask::new(Method::PUT, path).json(body)?, believes)?).await
    }

    /// Asks what would become of something that is saved.
    pub async fn post_believing<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &(impl Serialize + Sync),
        believes: Believes,
    ) -> Result<T, Error> {
        self.transport.tried(believing(Ask::new(Method::POST, path).json(body)?, believes)?).await
    }

    /// Changes what is said and leaves the rest.
    pub async fn patch<T: DeserializeOwned>(&self, path: &[&str], body: &(impl Serialize + Sync)) -> Result<T, Error> {
        self.transport.tried(Ask::new(Method::PATCH, path).json(body)?).await
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, String)]) -> Result<T, Error> {
        self.transport.tried(Ask::new(Method::DELETE, path).query(query)).await
    }

    /// Sends a stream of lines; the server answers each as it comes.
    pub async fn lines(
        &self,
        path: &[&str],
        lines: impl Stream<Item = std::io::Result<Vec<u8>>> + Send + 'static,
    ) -> Result<Lines, Error> {
        self.transport.lines(path, lines).await
    }
}

/// A request that holds only for what its sender believes is stored.
fn believing(ask: Ask<'_>, believes: Believes) -> Result<Ask<'_>, Error> {
    Ok(match believes {
        Believes::Anything => ask,
        Believes::Nothing => ask.header(IF_NONE_MATCH, HeaderValue::from_static("*")),
        Believes::Version(version) => {
            let tag = HeaderValue::from_str(&format!("\"{version}\"")).map_err(|_| Error::BadKey)?;
            ask.header(IF_MATCH, tag)
        }
    })
}

fn paged(after: Option<&str>) -> Vec<(&'static str, String)> {
    after.map(|after| ("after", after.to_owned())).into_iter().collect()
}
