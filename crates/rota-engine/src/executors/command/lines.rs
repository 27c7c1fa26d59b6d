//! Lines: a program's output cut into log lines, whatever it writes.

use rota_core::bytes::CUT_MARK;

/// Bytes of a line that are kept; the rest of it is dropped.
pub const LINE_BYTES_MAX: usize = 8_192;
const _: () = assert!(LINE_BYTES_MAX + CUT_MARK.len() <= rota_core::bytes::LOG_LINE_BYTES_MAX);

/// Gathers bytes until a line is whole.
#[derive(Default)]
pub(super) struct Lines {
    line: Vec<u8>,
    cut: bool,
}

impl Lines {
    /// Takes what was read and hands on each line that it ends.
    pub fn push(&mut self, bytes: &[u8], mut line: impl FnMut(&str)) {
        let mut parts = bytes.split(|byte| *byte == b'\n');
        let last = parts.next_back().unwrap_or_default();
        for part in parts {
            self.keep(part);
            self.end(&mut line);
        }
        self.keep(last);
    }

    /// Hands on what is left without a line end.
    pub fn finish(&mut self, line: impl FnMut(&str)) {
        if !self.line.is_empty() || self.cut {
            self.end(line);
        }
    }

    fn keep(&mut self, part: &[u8]) {
        let room = LINE_BYTES_MAX - self.line.len();
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        self.cut |= part.len() > room;
    }

    fn end(&mut self, mut line: impl FnMut(&str)) {
        line(&text_of(&self.line, self.cut));
        self.line.clear();
        self.cut = false;
    }
}

/// Bytes as text that every store can hold: no broken UTF-8, and no NUL.
pub(super) fn text_of(bytes: &[u8], cut: bool) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut text = text.trim_end_matches('\r').replace('\0', "\u{fffd}");
    if cut {
        text.push_str(CUT_MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for part in parts {
            lines.push(part, |line| found.push(line.to_owned()));
        }
        lines.finish(|line| found.push(line.to_owned()));
        found
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        assert_eq!(lines(&[b"a\nb", b"c\r\n", b"\n", b"d"]), ["a", "bc", "", "d"]);
        assert_eq!(lines(&[b"a\n"]), ["a"]);
        assert_eq!(lines(&[]), [""; 0]);
        assert_eq!(lines(&["ü".as_bytes().split_at(1).0, "ü".as_bytes().split_at(1).1]), ["ü"]);
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_and_not_stumbled_over() {
        assert_eq!(lines(&[b"a\xff\xfeb\0c\n"]), ["a\u{fffd}\u{fffd}b\u{fffd}c"]);
    }

    /// A progress bar without a line end must not fill the memory.
    #[test]
    fn a_line_without_end_is_cut() {
        let long = vec![b'x'; 3 * LINE_BYTES_MAX];
        let found = lines(&[&long, &long, b"\nnext\n"]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].len(), LINE_BYTES_MAX + " [cut]".len());
        assert_eq!(found[1], "next");
        assert_eq!(lines(&[&long[..LINE_BYTES_MAX], b"\n"])[0].len(), LINE_BYTES_MAX);
    }
}
