//! Heads: what comes in, looked at for line breaks that a head must not have.
//!
//! The lines of a head end with CR and LF. The parser also takes a lone LF, and a proxy in
//! front that does not would see one request where this node sees two. So a lone LF in a
//! head is made a character that the parser refuses, and the request is answered with 400.
//! So is the end of a line that says the length of a body whose other line says that it comes
//! in chunks: two readers may believe one each.
//!
//! To tell heads from bodies the length of each body is read here. After a body that does
//! not say its length nothing more is looked at, and nothing more is answered: whoever
//! asked for it must close the connection ([`Heads::is_open_ended`]).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// What no head may hold.
const REFUSED: u8 = 0;
const LENGTH: &[u8] = b"content-length";
const FRAMING: &[u8] = b"transfer-encoding";
/// Bytes of a line that are looked at; the names that matter here and a length are shorter.
const LINE_BYTES_MAX: usize = 64;

#[derive(Debug, Default)]
pub struct Heads {
    at: At,
    /// The beginning of the line that is being read.
    line: Vec<u8>,
    before: u8,
    /// Of the body that follows the head, if the head says one.
    length: Option<u64>,
    /// A line of this head was not empty.
    has_begun: bool,
    open_ended: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Head,
    /// So many bytes are still to come.
    Body(u64),
    /// Nothing more can be told apart.
    Beyond,
}

impl Heads {
    /// Whether a request has come after which the connection must be closed.
    pub fn is_open_ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.open_ended)
    }

    /// Looks at what came next.
    pub fn look(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            match self.at {
                At::Head => {
                    let (byte, rest) = bytes.split_first_mut().unwrap_or_else(|| unreachable!("it is not empty"));
                    self.take(byte);
                    bytes = rest;
                }
                At::Body(left) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &mut bytes[here..];
                    let left = left - here as u64;
                    self.at = if left == 0 { At::Head } else { At::Body(left) };
                }
                At::Beyond => return,
            }
        }
    }

    fn take(&mut self, byte: &mut u8) {
        let before = std::mem::replace(&mut self.before, *byte);
        if *byte == b'\n' {
            if before != b'\r' || !self.end_line() {
                self.refuse(byte);
            }
        } else if self.line.len() < LINE_BYTES_MAX {
            self.line.push(*byte);
        } else if *byte != b'\r' && self.line.len() > LENGTH.len() && is_named(&self.line, LENGTH) {
            // A length that is padded until nobody but the parser reads it.
            self.refuse(byte);
        }
    }

    fn refuse(&mut self, byte: &mut u8) {
        *byte = REFUSED;
        self.at = At::Beyond;
        // The parser closes the connection, after what was asked before is answered.
        self.open_ended.store(false, Ordering::Relaxed);
    }

    /// Whether the line may stand where it does.
    fn end_line(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        let line = line.trim_ascii();
        if !line.is_empty() {
            self.has_begun = true;
            let mut parts = line.splitn(2, |byte| *byte == b':');
            let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default().trim_ascii());
            if name.eq_ignore_ascii_case(FRAMING) {
                self.open_ended.store(true, Ordering::Relaxed);
                return self.length.is_none();
            }
            if name.eq_ignore_ascii_case(LENGTH) {
                // One that cannot be read is refused by the parser.
                let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                self.length = Some(length.unwrap_or_default());
                return !self.open_ended.load(Ordering::Relaxed);
            }
        } else if self.has_begun {
            self.has_begun = false;
            self.at = match self.length.take() {
                _ if self.open_ended.load(Ordering::Relaxed) => At::Beyond,
                None | Some(0) => At::Head,
                Some(length) => At::Body(length),
            };
        }
        true
    }
}

fn is_named(line: &[u8], name: &[u8]) -> bool {
    line.split(|byte| *byte == b':').next().is_some_and(|found| found.trim_ascii().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the parser sees, however it is cut up on the way.
    fn seen(text: &str, step: usize) -> (String, bool) {
        let mut heads = Heads::default();
        let mut bytes = text.as_bytes().to_vec();
        for part in bytes.chunks_mut(step) {
            heads.look(part);
        }
        (String::from_utf8(bytes).unwrap(), heads.is_open_ended().load(Ordering::Relaxed))
    }

    #[test]
    fn a_lone_line_feed_is_refused_in_heads_and_nowhere_else() {
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let post = "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\na\n\nb";
        let stream = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na\n\r\n";
        for (text, refused, open_ended) in [
            (get.to_owned(), false, false),
            (format!("\r\n{get}{get}"), false, false),
            (format!("{post}{get}{post}"), false, false),
            (format!("{get}{stream}"), false, true),
            ("GET / HTTP/1.1\nHost: a\r\n\r\n".to_owned(), true, false),
            ("GET / HTTP/1.1\r\nHost: a\n\r\n".to_owned(), true, false),
            ("GET / HTTP/1.1\r\nHost: a\r\n\n".to_owned(), true, false),
            (format!("\n{get}"), true, false),
            (format!("POST / HTTP/1.1\r\nContent-Length: {}4\r\n\r\nabcd", " ".repeat(80)), true, false),
            (format!("{post}GET / HTTP/1.1\nHost: a\r\n\r\n"), true, false),
            (format!("{post}{stream}"), false, true),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n".to_owned(), true, false),
            ("POST / HTTP/1.1\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(), true, false),
            (format!("{}\nX: {}\r\n\r\n", get.trim_end(), "x".repeat(1_000)), true, false),
        ] {
            for step in [1, 3, 1_000] {
                let (seen, found) = seen(&text, step);
                assert_eq!((seen.contains('\0'), found), (refused, open_ended), "{text:?} by {step}");
                assert!(refused || seen == text, "{text:?} by {step}");
            }
        }
    }
}
