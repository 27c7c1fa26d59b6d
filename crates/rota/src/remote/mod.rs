//! A server, asked over HTTP.
//!
//! Which server and as whom is worked out in [`target`]; every refusal becomes a
//! [`Failure`] with the problem document it came with. A token goes to the server
//! it belongs to and nowhere else: redirects are not followed, and the token of a
//! context is not used with another server.

mod contexts;
mod target;

use std::time::Duration;

use reqwest::{
    Body, Client, Method, RequestBuilder, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, IF_MATCH, IF_NONE_MATCH},
};
use rota_api::{
    IDEMPOTENCY_KEY, PREFIX, TENANT,
    page::{PAGE_MAX, Page},
    problem::Problem,
};
use serde::{Serialize, de::DeserializeOwned};
use url::Url;

pub use self::{
    contexts::{Context, Contexts},
    target::{SERVER_VARIABLE, ServerArgs, TOKEN_VARIABLE, Target, parse_server, token_from, token_from_stdin},
};
use crate::failure::Failure;

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// A server answers within 30 seconds or says that it could not.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(40);
/// What is shown of an answer that is no problem document.
const SHOWN_MAX: usize = 200;

/// A query: names and values in order, a name as often as it has values.
pub type Query<'a> = Vec<(&'a str, String)>;

/// What a saver believes is stored.
#[derive(Clone, Copy, Debug)]
pub enum Believes {
    Anything,
    Nothing,
    Version(i32),
}

#[derive(Clone)]
pub struct Remote {
    http: Client,
    target: Target,
}

impl Remote {
    pub fn new(target: Target) -> Result<Self, Failure> {
        let builder = Client::builder()
            .connect_timeout(CONNECT_TIME_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("rota/", env!("CARGO_PKG_VERSION")));
        // A proxy cannot know this machine's own addresses.
        let builder = if target.is_here() { builder.no_proxy() } else { builder };
        let http = builder.build().map_err(|error| Failure::Other(anyhow::anyhow!(error)))?;
        Ok(Self { http, target })
    }

    /// The address of something under the API's prefix.
    fn url(&self, path: &[&str], query: &Query<'_>) -> Url {
        let mut url = self.target.server.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(PREFIX.split('/').filter(|part| !part.is_empty())).extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    fn ask(&self, method: Method, path: &[&str]) -> RequestBuilder {
        self.ask_with(method, path, &Vec::new())
    }

    fn ask_with(&self, method: Method, path: &[&str], query: &Query<'_>) -> RequestBuilder {
        let mut request = self.http.request(method, self.url(path, query)).header(ACCEPT, "application/json");
        if let Some(token) = &self.target.token
            && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}"))
        {
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if let Some(tenant) = &self.target.tenant {
            request = request.header(TENANT, tenant);
        }
        request
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(response).await) }
    }

    async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Failure> {
        let response = self.send(request.timeout(ANSWER_TIME_MAX)).await?;
        let nothing = response.status() == StatusCode::NO_CONTENT;
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        let text: &[u8] = if nothing { b"null" } else { &bytes };
        serde_json::from_slice(text).map_err(|error| {
            let server = &self.target.server;
            Failure::Other(anyhow::anyhow!(
                "{server} gave an answer that is not understood ({error}); is it Rota, and as new as this command?"
            ))
        })
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &Query<'_>) -> Result<T, Failure> {
        self.answer(self.ask_with(Method::GET, path, query)).await
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> Result<T, Failure> {
        self.answer(json(self.ask(Method::POST, path), body)?).await
    }

    /// As [`Self::post`]; under the same key it is done once.
    pub async fn post_once<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
        key: &str,
    ) -> Result<T, Failure> {
        let key = HeaderValue::from_str(key)
            .map_err(|_| Failure::bad_input("bad_key", "--key: a key is made of visible characters".to_owned()))?;
        self.answer(json(self.ask(Method::POST, path), body)?.header(IDEMPOTENCY_KEY, key)).await
    }

    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
        believes: Believes,
    ) -> Result<T, Failure> {
        let request = json(self.ask(Method::PUT, path), body)?;
        self.answer(match believes {
            Believes::Anything => request,
            Believes::Nothing => request.header(IF_NONE_MATCH, "*"),
            Believes::Version(version) => request.header(IF_MATCH, format!("\"{version}\"")),
        })
        .await
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &[&str], query: &Query<'_>) -> Result<T, Failure> {
        self.answer(self.ask_with(Method::DELETE, path, query)).await
    }

    /// Items of a list, page by page: up to `limit`, and whether there are more.
    pub async fn list<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &Query<'_>,
        limit: usize,
    ) -> Result<(Vec<T>, bool), Failure> {
        let mut items: Vec<T> = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let mut asked = query.clone();
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

    /// Sends a stream of lines, and answers the stream of answers.
    pub async fn stream(&self, path: &[&str], body: Body) -> Result<Response, Failure> {
        let request = self.ask(Method::POST, path).header(CONTENT_TYPE, "application/x-ndjson");
        self.send(request.body(body)).await
    }

    pub fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let why = if error.is_timeout() { "it did not answer in time".to_owned() } else { innermost(error) };
        Failure::Unreachable { server: self.target.server.to_string().trim_end_matches('/').to_owned(), why }
    }

    async fn refusal(&self, response: Response) -> Failure {
        let status = response.status();
        let path = response.url().path().split_once(PREFIX).map(|(_, path)| path.trim_start_matches('/').to_owned());
        let bytes = response.bytes().await.unwrap_or_default();
        if let Ok(mut problem) = serde_json::from_slice::<Problem>(&bytes) {
            // Of several that were named, which is it?
            if let Some(path) = path.filter(|_| status == StatusCode::NOT_FOUND) {
                problem.detail = format!("{} ({path})", problem.detail);
            }
            return Failure::Refused(Box::new(problem));
        }
        let server = &self.target.server;
        let said: String =
            String::from_utf8_lossy(&bytes).chars().filter(|c| !c.is_control()).take(SHOWN_MAX).collect();
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        Failure::Other(anyhow::anyhow!(
            "{server} answered {status} and no problem document, so it may not be Rota{said}"
        ))
    }
}

fn json(request: RequestBuilder, body: &impl Serialize) -> Result<RequestBuilder, Failure> {
    let bytes = serde_json::to_vec(body).map_err(|error| Failure::Other(error.into()))?;
    Ok(request.header(CONTENT_TYPE, "application/json").body(bytes))
}

/// The cause at the bottom: "Connection refused", not what was being tried.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let text = cause.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}
