//! The transport: how requests are put together, sent, sent again and understood.
//!
//! A token goes to the server it was given for and nowhere else: redirects are not
//! followed. A question is asked again when nobody answered or the server said that
//! it is not ready; so is a request under an `Idempotency-Key`, which the server does
//! once however often it is sent, and one that cannot have reached it. Anything else
//! that was sent and not answered is left to the caller.

use std::{io, net::IpAddr, time::Duration};

use futures_util::Stream;
use reqwest::{
    Method, RequestBuilder, Response, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue},
};
use rota_api::{PREFIX, TENANT, problem::Problem};
use serde::{Serialize, de::DeserializeOwned};

use crate::error::Error;

/// So often is something tried that may be tried again, where nobody says how often.
pub const TRIES: u32 = 5;
/// The first wait between two tries; it doubles.
const WAIT: Duration = Duration::from_millis(100);
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// No answer of the server takes longer than 30 seconds.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(40);
/// What is read of an answer that is no problem document.
const SAID_MAX: usize = 200;

/// Names and values in order, a name as often as it has values.
pub type Query<'a> = Vec<(&'a str, String)>;

/// The address of a server; `host:port` means http.
pub fn parse_address(text: &str) -> Result<Url, Error> {
    let wrong = |why: &str| Error::BadAddress(format!("`{text}` is not a server address: {why}"));
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = Url::parse(&whole).map_err(|error| wrong(&error.to_string()))?;
    if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none() {
        return Err(wrong("write http://HOST:PORT or https://HOST"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        // Not repeated, for it is secret.
        let why = "a name or password in the address could be seen by others; log in with a token instead";
        return Err(Error::BadAddress(format!("the server's address is not valid: {why}")));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("it must not have a query or a fragment"));
    }
    Ok(url)
}

/// Whether an address is one of this machine's own.
pub fn is_here(address: &Url) -> bool {
    let host = address.host_str().unwrap_or_default();
    let number = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || number.is_ok_and(|number| number.is_loopback() || number.is_unspecified())
}

/// Which server, as whom, and how patiently.
#[derive(Clone, Debug)]
pub struct Terms {
    pub server: Url,
    pub token: Option<String>,
    pub tenant: Option<String>,
    pub agent: String,
    pub tries: u32,
}

/// One request under the API's prefix, so that it can be sent again.
#[derive(Debug)]
pub struct Ask<'a> {
    method: Method,
    path: &'a [&'a str],
    query: &'a [(&'a str, String)],
    body: Option<Vec<u8>>,
    header: Option<(HeaderName, HeaderValue)>,
    once: bool,
}

impl<'a> Ask<'a> {
    pub fn new(method: Method, path: &'a [&'a str]) -> Self {
        let once = method == Method::GET;
        Self { method, path, query: &[], body: None, header: None, once }
    }

    pub fn query(self, query: &'a [(&'a str, String)]) -> Self {
        Self { query, ..self }
    }

    pub fn json(self, body: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_vec(body).map_err(|error| Error::BadBody(error.to_string()))?;
        Ok(Self { body: Some(body), ..self })
    }

    pub fn header(self, name: HeaderName, value: HeaderValue) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    /// Sent several times it is done once, so it may be.
    pub fn once(self, name: HeaderName, key: &str) -> Result<Self, Error> {
        let value = HeaderValue::from_str(key).map_err(|_| Error::BadKey)?;
        Ok(Self { once: true, ..self.header(name, value) })
    }
}

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Why it takes no requests, where it does not.
    pub why_not: Option<String>,
    /// Its clock, as HTTP writes it.
    pub date: Option<String>,
}

/// Clones share their connections.
#[derive(Clone, Debug)]
pub struct Transport {
    http: reqwest::Client,
    server: Url,
    /// The same for people, without a slash at its end.
    address: String,
    tries: u32,
}

impl Transport {
    pub fn new(terms: &Terms) -> Result<Self, Error> {
        let builder = reqwest::Client::builder()
            .default_headers(headers(terms)?)
            .connect_timeout(CONNECT_TIME_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(&terms.agent);
        // A proxy cannot know this machine's own addresses.
        let builder = if is_here(&terms.server) { builder.no_proxy() } else { builder };
        let address = terms.server.as_str().trim_end_matches('/').to_owned();
        let http = builder.build().map_err(|error| Error::BadAddress(format!("{address}: {error}")))?;
        Ok(Self { http, server: terms.server.clone(), address, tries: terms.tries.max(1) })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    fn url(&self, ask: &Ask<'_>) -> Url {
        let mut url = self.server.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(PREFIX.split('/').filter(|part| !part.is_empty())).extend(ask.path);
        }
        if !ask.query.is_empty() {
            url.query_pairs_mut().extend_pairs(ask.query);
        }
        url
    }

    fn request(&self, ask: &Ask<'_>) -> RequestBuilder {
        let mut request = self.http.request(ask.method.clone(), self.url(ask));
        if let Some(body) = &ask.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        if let Some((name, value)) = &ask.header {
            request = request.header(name, value);
        }
        request
    }

    /// Asks, again where that is safe and may help.
    pub async fn tried<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Result<T, Error> {
        let mut wait = WAIT;
        for _ in 1..self.tries {
            match self.once(&ask).await {
                Err(error) if error.is_passing() && (ask.once || error.was_not_sent()) => {
                    tokio::time::sleep(wait).await;
                }
                answer => return answer,
            }
            wait *= 2;
        }
        self.once(&ask).await
    }

    /// Asks one time.
    pub async fn once<T: DeserializeOwned>(&self, ask: &Ask<'_>) -> Result<T, Error> {
        let response = self.send(self.request(ask).timeout(ANSWER_TIME_MAX)).await?;
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        // Where there is nothing to say, nothing is said.
        let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(text).map_err(|error| self.not_understood(&error))
    }

    /// Sends a stream of lines; the answers come as it is read.
    pub async fn lines(
        &self,
        path: &[&str],
        lines: impl Stream<Item = io::Result<Vec<u8>>> + Send + 'static,
    ) -> Result<Lines, Error> {
        let ask = Ask::new(Method::POST, path);
        let request = self.request(&ask).header(CONTENT_TYPE, "application/x-ndjson");
        let response = self.send(request.body(reqwest::Body::wrap_stream(lines))).await?;
        Ok(Lines { response, transport: self.clone(), text: Vec::new(), read: 0 })
    }

    /// Asks the server, one time, whether it is ready.
    pub async fn ready(&self, within: Duration) -> Result<Ready, Error> {
        let mut url = self.server.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("readyz");
        }
        let request = self.http.get(url).timeout(within);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let date = response.headers().get(DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
        if response.status().is_success() {
            let text = response.text().await.map_err(|error| self.unreachable(&error))?;
            let strange = || Error::Strange { address: self.address.clone(), status: 200, said: String::new() };
            return if text.trim() == "ready" { Ok(Ready { why_not: None, date }) } else { Err(strange()) };
        }
        match self.refusal(response).await {
            Error::Refused(problem) if problem.status == 503 => Ok(Ready { why_not: Some(problem.detail), date }),
            error => Err(error),
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(response).await) }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        let why = if error.is_timeout() { "it did not answer in time".to_owned() } else { innermost(error) };
        Error::Unreachable { address: self.address.clone(), why, sent: !error.is_connect() }
    }

    fn not_understood(&self, error: &serde_json::Error) -> Error {
        Error::BadAnswer { address: self.address.clone(), why: error.to_string() }
    }

    /// What the server said; something in between may have said something else.
    async fn refusal(&self, response: Response) -> Error {
        let status = response.status().as_u16();
        let path = response.url().path().split_once(PREFIX).map(|(_, path)| path.trim_start_matches('/').to_owned());
        let bytes = response.bytes().await.unwrap_or_default();
        if let Ok(mut problem) = serde_json::from_slice::<Problem>(&bytes) {
            // Of several that were named, which is it?
            if let Some(path) = path.filter(|_| status == 404) {
                problem.detail = format!("{} ({path})", problem.detail);
            }
            return Error::Refused(Box::new(problem));
        }
        let said = String::from_utf8_lossy(&bytes).chars().filter(|c| !c.is_control()).take(SAID_MAX).collect();
        Error::Strange { address: self.address.clone(), status, said }
    }
}

/// What every request says of whom it is from.
fn headers(terms: &Terms) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    if let Some(token) = &terms.token {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| Error::BadToken)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    if let Some(tenant) = &terms.tenant {
        headers.insert(TENANT, HeaderValue::from_str(tenant).map_err(|_| Error::BadTenant)?);
    }
    Ok(headers)
}

/// The cause at the bottom: "connection refused", not what was being tried.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let text = cause.to_string();
    if text.contains("InvalidContentType") {
        return "the server does not use TLS; use http:// instead".to_owned();
    }
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// A server's answers to a stream, a line at a time, as they come.
#[derive(Debug)]
pub struct Lines {
    response: Response,
    transport: Transport,
    text: Vec<u8>,
    /// Bytes of the text that were told.
    read: usize,
}

impl Lines {
    /// The next answer; none when the stream has ended. Memory does not grow with
    /// the stream: what was told is forgotten.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        loop {
            while let Some(line) = self.line() {
                if !line.is_empty() {
                    let answer = serde_json::from_slice(&self.text[line]);
                    return answer.map(Some).map_err(|error| self.transport.not_understood(&error));
                }
            }
            self.text.drain(..self.read);
            self.read = 0;
            let chunk = self.response.chunk().await.map_err(|error| self.transport.unreachable(&error))?;
            let Some(chunk) = chunk else { return Ok(None) };
            self.text.extend_from_slice(&chunk);
        }
    }

    /// Where the next whole line stands, without its end.
    fn line(&mut self) -> Option<std::ops::Range<usize>> {
        let length = self.text[self.read..].iter().position(|byte| *byte == b'\n')?;
        let line = self.read..self.read + length;
        self.read = line.end + 1;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_address() {
        for (text, good) in [
            ("http://127.0.0.1:7070", true),
            ("localhost:7070", true),
            ("https://rota.example/prefix", true),
            ("ftp://x", false),
            ("http://ann:secret@x", false),
            ("http://x?y", false),
            ("", false),
        ] {
            assert_eq!(parse_address(text).is_ok(), good, "{text}");
        }
        let error = parse_address("http://ann:s3cret@x").unwrap_err().to_string();
        assert!(!error.contains("s3cret"), "{error}");
    }

    /// A name with a slash in it must not become another address.
    #[test]
    fn a_name_stays_one_part_of_the_address() {
        let terms = Terms {
            server: parse_address("http://x/rota/").unwrap(),
            token: None,
            tenant: None,
            agent: "test".to_owned(),
            tries: 1,
        };
        let transport = Transport::new(&terms).unwrap();
        let query = [("label", "a=b&c".to_owned())];
        let path = ["jobs", "../a?b", "runs"];
        let url = transport.url(&Ask::new(Method::GET, &path).query(&query));
        assert_eq!(url.as_str(), "http://x/rota/api/v1/jobs/..%2Fa%3Fb/runs?label=a%3Db%26c");
    }

    #[test]
    fn this_machine_is_known_by_its_addresses() {
        for (text, here) in [
            ("http://127.0.0.2:1", true),
            ("http://[::1]:1", true),
            ("localhost:1", true),
            ("http://0.0.0.0:1", true),
            ("http://rota.example", false),
        ] {
            assert_eq!(is_here(&parse_address(text).unwrap()), here, "{text}");
        }
    }
}
