//! What is wrong with a document, and where.
//!
//! Checks collect every [`Problem`] instead of stopping at the first, so that
//! one answer is enough to repair a document. A path is written as a reader
//! would look for it (`schedules[0].catch_up.window`); a code never changes
//! once released, so that programs can branch on it while messages improve.
//!
//! A problem does not know its HTTP status or its docs page: the server does.

use serde::Serialize;

/// One thing that is wrong at one place of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where, from the root of the document; empty for the document itself.
    pub path: String,
    /// What, for programs: stable, `snake_case`.
    pub code: &'static str,
    /// What, for people: lower-case, and says what would be right.
    pub message: String,
}

impl Problem {
    pub fn new(path: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self { path: path.into(), code, message: message.into() }
    }

    /// The same problem seen from the document that holds this one at `prefix`.
    #[must_use]
    pub fn within(mut self, prefix: &str) -> Self {
        self.path = match (prefix.is_empty(), self.path.is_empty()) {
            (true, _) => self.path,
            (false, true) => prefix.to_owned(),
            (false, false) if self.path.starts_with('[') => format!("{prefix}{}", self.path),
            (false, false) => format!("{prefix}.{}", self.path),
        };
        self
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.path.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.path, self.message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_from_the_root_of_the_outer_document() {
        for (inner, prefix, whole) in [
            ("cron", "schedules[0]", "schedules[0].cron"),
            ("", "schedules[0]", "schedules[0]"),
            ("[2]", "calendars", "calendars[2]"),
            ("cron", "", "cron"),
        ] {
            assert_eq!(Problem::new(inner, "code", "message").within(prefix).path, whole);
        }
    }
}
