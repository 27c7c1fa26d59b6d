//! The request of a step: its address, headers and body, ready to be sent again
//! where a redirect asks for it.

use std::{collections::BTreeMap, fmt::Write as _};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use reqwest::{
    Method, Request,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use rota_core::{
    job::{
        effective::DEFAULT_SIGNATURE_HEADER,
        failure::{ErrorKind, Failure},
        kinds::{Http, HttpAuth, HttpBody, Signature, is_of_the_connection},
    },
    ports::Attempt,
    trace,
};
use serde_json::Value;
use sha2::Sha256;
use url::{Host, Url, form_urlencoded};

use super::redirect::is_harmless;

/// Longest name of a host, and longest part of one between dots (RFC 1035). A longer one
/// has no address and never will have.
const HOST_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;
/// A shorter text is in many answers by chance.
const SECRET_BYTES_MIN: usize = 4;

pub(super) struct Call {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Option<Bytes>,
    /// Whether every URL so far was of the step's own origin.
    pub at_home: bool,
}

impl Call {
    pub fn new(step: &Http, attempt: &Attempt, now: Timestamp) -> Result<Self, Failure> {
        let method =
            Method::from_bytes(step.method().as_bytes()).map_err(|_| invalid("http.method is not a valid method"))?;
        if method == Method::CONNECT {
            return Err(invalid("http.method CONNECT asks a proxy for a tunnel, which no step can use"));
        }
        let mut url = parsed(&step.url)?;
        add_query(&mut url, &step.query)?;
        let (body, content_type) = body_of(step.body.as_ref())?;
        let mut headers = HeaderMap::new();
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        add_written(&mut headers, &step.headers)?;
        if let Some(authorization) = authorization(step.auth.as_ref(), &mut url)? {
            headers.insert(AUTHORIZATION, authorization);
        }
        add_ours(&mut headers, attempt)?;
        if let Some(sign) = &step.sign {
            let run = attempt.lease.run.to_string();
            let value = signature(&sign.secret, &run, now, body.as_deref().unwrap_or_default());
            headers.insert(header_name(signature_header(sign))?, header_value("http.sign", &value)?);
        }
        Ok(Self { method, url, headers, body, at_home: true })
    }

    pub fn request(&self) -> Request {
        let mut request = Request::new(self.method.clone(), self.url.clone());
        *request.headers_mut() = self.headers.clone();
        *request.body_mut() = self.body.clone().map(reqwest::Body::from);
        request
    }

    /// What is sent and must not be repeated where people read what went wrong: the
    /// credentials, also as they were before they were encoded, and every header that may
    /// hold a key.
    pub fn secrets(&self) -> Vec<String> {
        let sent = self.headers.iter().filter(|(name, _)| !is_harmless(name));
        let mut secrets: Vec<String> =
            sent.map(|(_, value)| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect();
        let authorization = self.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        if let Some((_, credentials)) = authorization.and_then(|value| value.split_once(' ')) {
            secrets.push(credentials.to_owned());
            let login = STANDARD.decode(credentials).ok().and_then(|login| String::from_utf8(login).ok());
            if let Some(login) = login {
                secrets.extend(login.split_once(':').map(|(_, password)| password.to_owned()));
                secrets.push(login);
            }
        }
        secrets.retain(|secret| secret.len() >= SECRET_BYTES_MIN);
        // A secret that is part of another one must not leave the rest of that.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        secrets
    }

    /// The host and port that is asked.
    pub fn authority(&self) -> String {
        let port = self.url.port_or_known_default().unwrap_or_default();
        format!("{}:{port}", self.url.host_str().unwrap_or_default())
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::InvalidInput, message)
}

/// A URL that can be asked. The URL itself is not repeated: it may hold secrets.
fn parsed(text: &str) -> Result<Url, Failure> {
    let url = Url::parse(text).map_err(|error| invalid(format!("http.url is not a valid URL: {error}")))?;
    match url.scheme() {
        "http" | "https" if is_too_long(&url) => Err(invalid(format!(
            "the name of the host in http.url is too long: at most {HOST_BYTES_MAX} bytes, and {LABEL_BYTES_MAX} \
             between dots"
        ))),
        "http" | "https" if url.has_host() => Ok(url),
        scheme => Err(invalid(format!("http.url has the scheme {scheme}; it must be http or https"))),
    }
}

/// Whether no name server can know the host, so that asking again is of no use.
pub(super) fn is_too_long(url: &Url) -> bool {
    let Some(Host::Domain(name)) = url.host() else { return false };
    let name = name.trim_end_matches('.');
    name.len() > HOST_BYTES_MAX || name.split('.').any(|label| label.len() > LABEL_BYTES_MAX)
}

fn add_query(url: &mut Url, query: &BTreeMap<String, Value>) -> Result<(), Failure> {
    if query.is_empty() {
        return Ok(());
    }
    let pairs = pairs_of("http.query", query)?;
    url.query_pairs_mut().extend_pairs(pairs);
    Ok(())
}

/// Names and values, a list as one pair for each item.
fn pairs_of<'a>(field: &str, fields: &'a BTreeMap<String, Value>) -> Result<Vec<(&'a str, String)>, Failure> {
    let mut pairs = Vec::new();
    for (name, value) in fields {
        let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for item in items {
            match item {
                Value::Null => {}
                Value::String(text) => pairs.push((name.as_str(), text.clone())),
                Value::Bool(_) | Value::Number(_) => pairs.push((name.as_str(), item.to_string())),
                Value::Array(_) | Value::Object(_) => {
                    return Err(invalid(format!(
                        "{field}.{name} must be text, a number, a boolean or a list of these"
                    )));
                }
            }
        }
    }
    Ok(pairs)
}

fn body_of(body: Option<&HttpBody>) -> Result<(Option<Bytes>, Option<&'static str>), Failure> {
    Ok(match body {
        None => (None, None),
        Some(HttpBody::Json(json)) => (Some(json.to_string().into()), Some("application/json")),
        Some(HttpBody::Form(form)) => {
            let pairs = pairs_of("http.form", form)?;
            let encoded = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
            (Some(encoded.into()), Some("application/x-www-form-urlencoded"))
        }
        Some(HttpBody::Raw(text)) => (Some(text.clone().into()), Some("text/plain; charset=utf-8")),
    })
}

fn add_written(headers: &mut HeaderMap, written: &BTreeMap<String, String>) -> Result<(), Failure> {
    for (name, value) in written {
        let name = header_name(name)?;
        if is_of_the_connection(name.as_str()) {
            return Err(invalid(format!("http.headers.{name} belongs to the connection and cannot be set")));
        }
        let value = header_value(&format!("http.headers.{name}"), value)?;
        headers.insert(name, value);
    }
    Ok(())
}

fn header_name(name: &str) -> Result<HeaderName, Failure> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid("http.headers: not a valid header name"))
}

/// A value is one line. The value itself is not repeated: it may be a secret.
fn header_value(field: &str, value: &str) -> Result<HeaderValue, Failure> {
    let value = HeaderValue::from_bytes(value.as_bytes());
    value.map_err(|_| invalid(format!("{field} contains a line break or another control character")))
}

fn authorization(auth: Option<&HttpAuth>, url: &mut Url) -> Result<Option<HeaderValue>, Failure> {
    let in_url = taken_from(url);
    let text = match auth {
        Some(HttpAuth::Basic { username, .. }) if username.contains(':') => {
            return Err(invalid("http.auth.basic.username contains a colon"));
        }
        Some(HttpAuth::Basic { username, password }) => basic(username, password),
        Some(HttpAuth::Bearer(token)) => format!("Bearer {token}"),
        Some(HttpAuth::OAuth2(_)) | None => match in_url {
            Some((username, password)) => basic(&username, &password),
            None => return Ok(None),
        },
    };
    let mut value = header_value("http.auth", &text)?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn basic(username: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{username}:{password}")))
}

/// The credentials written into a URL, which leaves it without them.
fn taken_from(url: &mut Url) -> Option<(String, String)> {
    let decoded = |text: &str| percent_decoded(text);
    let found = (!url.username().is_empty() || url.password().is_some())
        .then(|| (decoded(url.username()), decoded(url.password().unwrap_or_default())));
    // Neither fails on a URL with a host.
    url.set_username("").and_then(|()| url.set_password(None)).ok()?;
    found
}

/// Percent-decoded, with `+` left alone.
fn percent_decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn add_ours(headers: &mut HeaderMap, attempt: &Attempt) -> Result<(), Failure> {
    let run = header_value("run", &attempt.lease.run.to_string())?;
    // A step may have a key of its own; who we are is ours to say.
    headers.entry("idempotency-key").or_insert_with(|| run.clone());
    headers.insert("x-rota-run", run);
    headers.insert("x-rota-job", HeaderValue::from(attempt.job.0));
    headers.insert("x-rota-attempt", HeaderValue::from(attempt.number));
    if let Some(trace) = attempt.traceparent {
        headers.entry(trace::HEADER).or_insert(header_value(trace::HEADER, &trace.to_string())?);
    }
    Ok(())
}

fn signature_header(sign: &Signature) -> &str {
    sign.header.as_deref().unwrap_or(DEFAULT_SIGNATURE_HEADER)
}

/// `t=<seconds>,v1=<hex>`: HMAC-SHA256 over the run, the time and the body, so
/// that neither an old request nor another run's body passes for this one.
fn signature(secret: &str, run: &str, now: Timestamp, body: &[u8]) -> String {
    let seconds = now.as_second();
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else {
        unreachable!("HMAC takes a key of any length");
    };
    mac.update(format!("{run}.{seconds}.").as_bytes());
    mac.update(body);
    let digest = mac.finalize().into_bytes();
    let mut value = format!("t={seconds},v1=");
    for byte in digest {
        // Writing into a text cannot fail.
        write!(value, "{byte:02x}").unwrap_or_default();
    }
    value
}
