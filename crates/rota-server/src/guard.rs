//! Guard: what every request must pass before a route sees it.
//!
//! Where no login is asked for, whoever reaches the port may ask. A page in a
//! browser on the same machine reaches it too, and by answering for its own
//! name with this node's address it may even read the answers (DNS rebinding).
//! Such a request carries the page's name as its host, so a host is an address,
//! `localhost`, or a name that the operator listed; and where a browser says
//! from which page it asks, that page must have been served by this node, or by one of
//! the listed names. Another program's page on the same machine was not.
//!
//! What a browser gets here must not be used against it either: no page embeds it, and
//! nothing that is shown is executed.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{BODY_BYTES_MAX, bounds::Bounds, problem::Problem};

/// Bodies under this address are read as they come, line by line.
const STREAMED: &str = "/api/v1/bulk/";

/// Where pages are that load scripts and styles of this node.
const PAGES: &str = "/docs";
const PAGES_UNDER: &str = "/docs/";
/// Of such pages: what they load comes from here. The viewer of the description writes
/// styles into its elements.
const PAGE_POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                           base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Of data, which loads nothing.
const DATA_POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The hosts that a node goes by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// Names besides `localhost`, in lower case.
    pub names: Vec<String>,
    /// It listens on more than this machine's own addresses.
    pub beyond_loopback: bool,
}

impl Hosts {
    /// Whether a host with or without a port is one of ours.
    fn admits(&self, authority: &str) -> bool {
        let Some(host) = host_of(authority) else { return false };
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return self.beyond_loopback || address.is_loopback();
        }
        name_of(authority).is_some_and(|name| name == "localhost" || self.names.contains(&name))
    }

    /// Whether the page that asks is one of ours, such as `http://localhost:7070`, where
    /// this node is asked as `asked`: of a listed name, or of this very host and port.
    fn admits_origin(&self, origin: &str, asked: &str) -> bool {
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        rest.is_some_and(|page| {
            let is_named = name_of(page).is_some_and(|name| self.names.contains(&name));
            is_named
                || page.eq_ignore_ascii_case(asked)
                || (is_loopback(page) && is_loopback(asked) && port_of(page) == port_of(asked))
        })
    }
}

/// Whether an authority names this very machine.
pub fn is_loopback(authority: &str) -> bool {
    Hosts::default().admits(authority)
}

/// The host of an authority as names are compared.
fn name_of(authority: &str) -> Option<String> {
    Some(host_of(authority)?.trim_end_matches('.').to_ascii_lowercase())
}

/// The port that an authority names; none is the one of HTTP.
fn port_of(authority: &str) -> Option<u16> {
    let host = host_of(authority)?;
    authority[host.len()..].strip_prefix(':').map_or(Some(80), |port| port.parse().ok())
}

/// The host of `host`, `host:port`, `[address]` or `[address]:port`.
fn host_of(authority: &str) -> Option<&str> {
    if authority.starts_with('[') {
        let end = authority.find(']')?;
        let rest = &authority[end + 1..];
        return (rest.is_empty() || is_port(rest.strip_prefix(':')?)).then(|| &authority[..=end]);
    }
    let (host, port) = authority.split_once(':').unwrap_or((authority, "0"));
    (!host.is_empty() && is_port(port)).then_some(host)
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

/// What the guard goes by.
#[derive(Clone)]
pub struct Guard {
    pub hosts: Arc<Hosts>,
    pub bounds: Bounds,
}

/// Refuses what must not come in, and bounds the time of the rest.
pub async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let policy = policy_of(request.uri().path());
    let mut response = answer(&guard, request, next).await;
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        response.headers_mut().insert(name, header::HeaderValue::from_static(value));
    }
    response
}

/// What a page may load. Only the description of the API is one that loads anything.
fn policy_of(path: &str) -> &'static str {
    if path == PAGES || path.starts_with(PAGES_UNDER) { PAGE_POLICY } else { DATA_POLICY }
}

async fn answer(guard: &Guard, mut request: Request, next: Next) -> Response {
    if let Some(problem) = refusal(&guard.hosts, &request) {
        let mut response = problem.into_response();
        if has_two_hosts(&request) {
            // Whoever sends such a request and others behind it does not agree with a proxy on
            // whose they are.
            response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        }
        return response;
    }
    // Whoever reads the body knows how long it may take.
    request.extensions_mut().insert(guard.bounds);
    match tokio::time::timeout(guard.bounds.answer_time, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::too_slow().into_response(),
    }
}

fn has_two_hosts(request: &Request) -> bool {
    request.headers().get_all(header::HOST).iter().nth(1).is_some()
}

fn refusal(hosts: &Hosts, request: &Request) -> Option<Problem> {
    let headers = request.headers();
    if has_two_hosts(request) {
        return Some(Problem::bad_request("the request has more than one Host header"));
    }
    let text = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or_default());
    // A whole address in the request line counts before the header.
    let host = request.uri().authority().map(axum::http::uri::Authority::as_str).or_else(|| text(header::HOST));
    let host = host.unwrap_or_default();
    if !hosts.admits(host) {
        return Some(Problem::wrong_host(host));
    }
    if text(header::ORIGIN).is_some_and(|origin| !hosts.admits_origin(origin, host)) {
        return Some(Problem::wrong_origin());
    }
    if request.uri().path().starts_with(STREAMED) {
        return None;
    }
    let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    (length > Some(BODY_BYTES_MAX as u64)).then(|| Problem::too_large(BODY_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page whose name resolves to this machine must not be answered.
    #[test]
    fn a_host_is_an_address_of_ours_or_a_listed_name() {
        let hosts = Hosts { names: vec!["rota.internal".into()], beyond_loopback: false };
        for (host, admitted) in [
            ("localhost", true),
            ("localhost:7070", true),
            ("LOCALHOST.:7070", true),
            ("127.0.0.1:7070", true),
            ("127.9.9.9", true),
            ("[::1]:7070", true),
            ("[::1]", true),
            ("rota.internal:80", true),
            ("10.0.0.1", false),
            ("attacker.example:7070", false),
            ("localhost.attacker.example", false),
            ("127.0.0.1.attacker.example", false),
            ("localhost:7070:80", false),
            ("localhost:http", false),
            ("user@localhost", false),
            ("[::1]attacker.example", false),
            ("[::1", false),
            ("", false),
        ] {
            assert_eq!(hosts.admits(host), admitted, "{host}");
        }
        let open = Hosts { beyond_loopback: true, ..hosts };
        assert!(open.admits("10.0.0.1:7070") && open.admits("[fd00::1]"));
        assert!(!open.admits("attacker.example"));
    }

    #[test]
    fn a_page_of_another_site_may_not_ask() {
        let hosts = Hosts { names: vec!["rota.internal".into()], beyond_loopback: true };
        for (origin, asked, admitted) in [
            ("http://localhost:7070", "localhost:7070", true),
            ("http://127.0.0.1:7070", "localhost:7070", true),
            ("http://[::1]:7070", "localhost:7070", true),
            ("http://10.0.0.1:7070", "10.0.0.1:7070", true),
            ("https://rota.internal", "10.0.0.1:7070", true),
            // Another program's page on this machine, or on one of the network.
            ("http://localhost:3000", "localhost:7070", false),
            ("http://127.0.0.1", "127.0.0.1:7070", false),
            ("http://10.0.0.1:8080", "10.0.0.1:7070", false),
            ("http://10.0.0.2:7070", "10.0.0.1:7070", false),
            ("http://localhost:7070", "10.0.0.1:7070", false),
            ("https://attacker.example", "localhost:7070", false),
            ("null", "localhost:7070", false),
            ("file://", "localhost:7070", false),
        ] {
            assert_eq!(hosts.admits_origin(origin, asked), admitted, "{origin} asks {asked}");
        }
    }
}
