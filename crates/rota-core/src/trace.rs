//! Trace context: the trace that a run is part of, as W3C's `traceparent` says it.
//!
//! Whoever asks for a run may say which trace the request belongs to. It is stored with the
//! run, and each attempt hands it on with a span id of its own, so that what the attempt
//! calls is found under the trace of whoever asked. Nothing here decides or measures
//! anything, and a text that is not valid counts as absent, as the standard asks for.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::run::Lease;

/// The header's name, and the field's.
pub const HEADER: &str = "traceparent";

/// Bytes of a `traceparent` of version 00.
const LEN: usize = 55;
/// The flags that are handed on: sampled, and that the trace id is random.
const FLAGS: u8 = 0b11;

/// A valid `traceparent` of version 00.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TraceParent {
    trace: u128,
    span: u64,
    flags: u8,
}

impl TraceParent {
    /// None where the text is not exactly one of version 00: lower-case hexadecimal, and
    /// neither id all zeros.
    pub fn parse(text: &str) -> Option<Self> {
        let fields = text.strip_prefix("00-").filter(|_| text.len() == LEN)?;
        let (trace, rest) = fields.split_once('-')?;
        let (span, flags) = rest.split_once('-')?;
        let trace = hex(trace, 32)?;
        let span = u64::try_from(hex(span, 16)?).ok()?;
        let flags = u8::try_from(hex(flags, 2)?).ok()? & FLAGS;
        (trace != 0 && span != 0).then_some(Self { trace, span, flags })
    }

    /// The same trace, with the span of one attempt: the same, whoever works it out. A run
    /// that was started again under another lease is another span.
    #[must_use]
    pub fn attempt(self, lease: Lease) -> Self {
        let digest = Sha256::new()
            .chain_update(b"span")
            .chain_update(lease.run.0.as_bytes())
            .chain_update(lease.fence.0.to_be_bytes())
            .finalize();
        let span = digest.iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte));
        Self { span: span.max(1), ..self }
    }
}

/// A number of exactly so many lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let plain = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| u128::from_str_radix(text, 16).ok())?
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

impl From<TraceParent> for String {
    fn from(trace: TraceParent) -> Self {
        trace.to_string()
    }
}

impl TryFrom<String> for TraceParent {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not a traceparent of version 00")
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{ids::RunId, run::Fence};

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_text_is_read_and_written_as_it_was() {
        assert_eq!(TraceParent::parse(GOOD).unwrap().to_string(), GOOD);
        let flags = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff";
        let known = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03";
        assert_eq!(TraceParent::parse(flags).unwrap().to_string(), known, "flags of later versions are not handed on");
    }

    /// What the standard calls invalid must not be handed on.
    #[test]
    fn an_invalid_text_counts_as_absent() {
        for text in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b77-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
        ] {
            assert_eq!(TraceParent::parse(text), None, "{text}");
        }
    }

    #[test]
    fn each_attempt_is_a_span_of_its_own_in_the_same_trace() {
        let trace = TraceParent::parse(GOOD).unwrap();
        let lease = |run, fence| Lease { run: RunId(Uuid::from_u128(run)), fence: Fence(fence) };
        let first = trace.attempt(lease(7, 1));
        assert_eq!(first, trace.attempt(lease(7, 1)));
        let others = [trace, trace.attempt(lease(7, 2)), trace.attempt(lease(8, 1))];
        for other in others {
            assert_ne!(first.span, other.span);
            assert_eq!((first.trace, first.flags), (other.trace, other.flags));
        }
        assert_eq!(TraceParent::parse(&first.to_string()), Some(first));
    }
}
