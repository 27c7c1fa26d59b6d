//! Faults: what went wrong on the way, as a kind that policies know.

use std::{error::Error, fmt::Write as _, io};

use rota_core::job::failure::{ErrorKind, Failure};

use super::resolve::NoAddress;
use crate::executors::egress::Denied;

pub(super) fn denied(denied: &Denied) -> Failure {
    Failure::new(ErrorKind::EgressDenied, denied.to_string())
}

/// A call that got no answer, or only part of one.
pub(super) fn failure_of(error: &reqwest::Error) -> Failure {
    let mut kind = None;
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(link) = cause {
        if let Some(denied) = link.downcast_ref::<Denied>() {
            return self::denied(denied);
        }
        kind = kind_of(link).or(kind);
        cause = link.source();
    }
    let kind = kind.unwrap_or(if error.is_timeout() { ErrorKind::Timeout } else { ErrorKind::ConnectionReset });
    Failure::new(kind, words(error))
}

/// What one link of the chain of causes says.
fn kind_of(link: &(dyn Error + 'static)) -> Option<ErrorKind> {
    if link.is::<NoAddress>() {
        return Some(ErrorKind::Dns);
    }
    if link.is::<rustls::Error>() {
        return Some(ErrorKind::Tls);
    }
    let error = link.downcast_ref::<io::Error>()?;
    // An error inside of an I/O error is not a link of its own.
    if let Some(inner) = error.get_ref()
        && let Some(kind) = kind_of(inner)
    {
        return Some(kind);
    }
    match error.kind() {
        io::ErrorKind::TimedOut => Some(ErrorKind::Timeout),
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::AddrNotAvailable => Some(ErrorKind::ConnectionRefused),
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => Some(ErrorKind::ConnectionReset),
        _ => None,
    }
}

/// The chain of causes in one line, without the URL, which may hold secrets.
pub(super) fn words(error: &reqwest::Error) -> String {
    let mut words = if error.is_timeout() { "no response in time".to_owned() } else { "no answer".to_owned() };
    let mut cause = error.source();
    let mut last = String::new();
    while let Some(link) = cause {
        let text = link.to_string();
        // Wrappers tend to repeat what they wrap.
        if !last.contains(&text) {
            write!(words, ": {text}").unwrap_or_default();
        }
        last = text;
        cause = link.source();
    }
    words.truncate(words.floor_char_boundary(1_000));
    words
}
