//! Redirects: where an answer sends the request on to, and what goes along.

use reqwest::{
    Method, Response, StatusCode,
    header::{ACCEPT, ACCEPT_LANGUAGE, CONTENT_LANGUAGE, CONTENT_TYPE, HeaderMap, HeaderName, LOCATION, USER_AGENT},
};
use rota_core::{
    job::failure::{Failure, RetryAdvice},
    trace,
};
use url::Url;

use super::request::{Call, is_too_long};

/// What goes along to another origin: nothing that could open a door there.
/// Any header of the step may hold a key, so the list names what stays.
const GO_ALONG: [&str; 5] = ["idempotency-key", "x-rota-run", "x-rota-job", "x-rota-attempt", trace::HEADER];

pub(super) enum Hop {
    /// `call` now asks the next URL.
    Follow,
    /// The answer sends nobody on.
    None,
}

/// Turns `call` into what `response` asks for.
pub(super) fn next(call: &mut Call, response: &Response) -> Result<Hop, Failure> {
    let status = response.status();
    let keeps_body = match status {
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => call.method != Method::POST,
        StatusCode::SEE_OTHER => call.method == Method::HEAD,
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
        _ => return Ok(Hop::None),
    };
    let Some(location) = response.headers().get(LOCATION) else { return Ok(Hop::None) };
    let refused = |why: &str| Failure::http(status.as_u16(), why).advising(RetryAdvice::Never);
    let location = location.to_str().map_err(|_| refused("redirected to an address that is not a URL"))?;
    let mut url = call.url.join(location).map_err(|_| refused("redirected to an address that is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(refused("redirected to a URL that is neither http nor https"));
    }
    if is_too_long(&url) {
        return Err(refused("sent on to a host whose name is too long"));
    }
    if call.url.scheme() == "https" && url.scheme() == "http" {
        return Err(refused("redirected from https to http"));
    }
    // Credentials that the answer chose are nobody's.
    url.set_username("")
        .and_then(|()| url.set_password(None))
        .map_err(|()| refused("redirected to an address that is not a URL"))?;
    leave_behind(call, &url, keeps_body);
    call.url = url;
    Ok(Hop::Follow)
}

fn leave_behind(call: &mut Call, url: &Url, keeps_body: bool) {
    if !keeps_body {
        call.method = Method::GET;
        call.body = None;
        call.headers.remove(CONTENT_TYPE);
    }
    if call.at_home && call.url.origin() != url.origin() {
        call.at_home = false;
        call.headers = harmless(&call.headers);
    }
}

/// Whether a header holds nothing that could open a door.
pub(super) fn is_harmless(name: &HeaderName) -> bool {
    let plain = [ACCEPT, ACCEPT_LANGUAGE, CONTENT_LANGUAGE, CONTENT_TYPE, USER_AGENT];
    GO_ALONG.contains(&name.as_str()) || plain.contains(name)
}

fn harmless(headers: &HeaderMap) -> HeaderMap {
    headers.iter().filter(|(name, _)| is_harmless(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}
