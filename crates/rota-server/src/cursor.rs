//! Cursors: where the next page begins, opaque to clients.
//!
//! A cursor is what the store gave, with a check that covers it and the filters
//! of its page: one that was tampered with, or is used with other filters, is
//! refused instead of skipping things. It grants nothing: the tenant of a page
//! is always its caller's own.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rota_api::problem::Code;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use crate::problem::Problem;

const CHECK_BYTES: usize = 8;
/// A list of runs names the transactions in flight when it began, up to 128 of them.
const BYTES_MAX: usize = 4_096;

/// The text of a cursor into the list that `filters` describe.
pub fn write<F: Serialize, C: Serialize>(filters: &F, cursor: &C) -> String {
    let json = serde_json::to_vec(cursor).unwrap_or_default();
    let mut bytes = check(filters, &json).to_vec();
    bytes.extend(json);
    URL_SAFE_NO_PAD.encode(bytes)
}

pub fn read<F: Serialize, C: DeserializeOwned>(filters: &F, text: &str) -> Result<C, Problem> {
    let bad = || {
        Problem::new(Code::BadCursor, "after: not the `next` of a page with these filters; start again without `after`")
    };
    let bytes = URL_SAFE_NO_PAD.decode(text).ok().filter(|bytes| bytes.len() < BYTES_MAX).ok_or_else(bad)?;
    let (found, json) = bytes.split_at_checked(CHECK_BYTES).ok_or_else(bad)?;
    if found != check(filters, json) {
        return Err(bad());
    }
    serde_json::from_slice(json).map_err(|_| bad())
}

fn check<F: Serialize>(filters: &F, json: &[u8]) -> [u8; CHECK_BYTES] {
    let filters = serde_json::to_vec(filters).unwrap_or_default();
    let digest = Sha256::new()
        .chain_update((filters.len() as u64).to_be_bytes())
        .chain_update(filters)
        .chain_update(json)
        .finalize();
    std::array::from_fn(|n| digest[n])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that silently began elsewhere would hide runs.
    #[test]
    fn a_tampered_cursor_or_other_filters_are_refused() {
        let text = write(&("job", 7), &(1, "b"));
        assert_eq!(read::<_, (i32, String)>(&("job", 7), &text).unwrap(), (1, "b".to_owned()));
        assert!(read::<_, (i32, String)>(&("job", 8), &text).is_err());
        for n in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[n] = if bytes[n] == b'A' { b'B' } else { b'A' };
            let tampered = String::from_utf8(bytes).unwrap();
            assert!(tampered == text || read::<_, (i32, String)>(&("job", 7), &tampered).is_err(), "{tampered}");
        }
        for nonsense in ["", "A", "!!!!", &"A".repeat(8_000)] {
            assert!(read::<_, (i32, String)>(&("job", 7), nonsense).is_err(), "{nonsense}");
        }
    }
}
