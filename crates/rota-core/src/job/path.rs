//! Path: where one stands in a document, written down only when it is asked for.
//!
//! A walk over a large document meets many places and reports few. A path is a
//! chain of borrowed links on the walker's stack, so that going down costs
//! nothing, however long the keys on the way are.

use std::fmt;

/// A place in a document, as in `steps[1].http.url`.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub(super) fn key(&'a self, key: &'a str) -> Self {
        Self::Key(self, key)
    }

    pub(super) fn index(&'a self, index: usize) -> Self {
        Self::Index(self, index)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(Self::Root, key) => write!(f, "{}", Shown(key)),
            Self::Key(above, key) => write!(f, "{above}.{}", Shown(key)),
            Self::Index(above, index) => write!(f, "{above}[{index}]"),
        }
    }
}

/// A text from a stranger, without what would garble or flood an answer.
pub(super) struct Shown<'a>(pub(super) &'a str);

/// Longest text shown, in characters.
const SHOWN_MAX: usize = 400;

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The common case, in one piece.
        if self.0.len() <= SHOWN_MAX && self.0.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return f.write_str(self.0);
        }
        let mut rest = self.0.chars();
        for c in rest.by_ref().take(SHOWN_MAX) {
            let shown = if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
            write!(f, "{shown}")?;
        }
        if rest.next().is_some() { f.write_str("…") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_as_a_reader_would_look_for_them() {
        let root = Path::Root;
        let steps = root.key("steps");
        let second = steps.index(1);
        let http = second.key("http");
        assert_eq!(http.key("url").to_string(), "steps[1].http.url");
        assert_eq!((root.to_string(), root.index(0).to_string()), (String::new(), "[0]".to_owned()));
    }

    #[test]
    fn long_and_garbled_text_is_shown_short_and_plain() {
        assert_eq!(Shown("a\nb\u{7}é").to_string(), "a\u{fffd}b\u{fffd}é");
        assert_eq!(Shown(&"é".repeat(SHOWN_MAX)).to_string().chars().count(), SHOWN_MAX);
        assert_eq!(Shown(&"é".repeat(9_999)).to_string().chars().count(), SHOWN_MAX + 1);
    }
}
