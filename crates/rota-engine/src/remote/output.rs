//! What remote attempts log, as it is stored.

use jiff::Timestamp;
use rota_core::{ports::Stream, store::LogChunk};
use serde_json::json;

use super::LogPiece;
use crate::reports;

/// Of one line so much is kept.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// Log pieces of one attempt are numbered below this; see [`seq_of`].
const SEQ_BITS: u32 = 20;

/// Lines as they are stored, up to what an attempt may write.
pub(super) fn chunk(piece: &LogPiece, attempt: u16, bytes: &mut usize, bytes_max: usize) -> Option<LogChunk> {
    let mut lines = String::new();
    let mut add = |at: Timestamp, stream: Stream, text: &str| {
        lines.push_str(&json!({ "at": at, "stream": stream, "text": text }).to_string());
        lines.push('\n');
    };
    for line in &piece.lines {
        if *bytes >= bytes_max {
            break;
        }
        let text = cut(&line.text, LINE_BYTES_MAX);
        add(line.at, line.stream, text);
        *bytes += text.len() + 1;
        if *bytes >= bytes_max {
            add(line.at, Stream::System, reports::CUT);
        }
    }
    let at = piece.lines.first()?.at;
    let seq = seq_of(piece);
    (!lines.is_empty()).then_some(LogChunk { run: piece.lease.run, attempt, seq, at, lines })
}

/// A lost attempt is tried again under the same number, so the fence has a part
/// in the order of pieces.
fn seq_of(piece: &LogPiece) -> i32 {
    let fence = piece.lease.fence.0 as u32 & ((1 << (31 - SEQ_BITS)) - 1);
    ((fence << SEQ_BITS) | (piece.seq & ((1 << SEQ_BITS) - 1))) as i32
}

fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=text.len().min(bytes_max)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}
