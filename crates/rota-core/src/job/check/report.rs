//! The report: problems as they are found, and the checks that many fields share.

use std::{collections::BTreeSet, fmt, ops::RangeInclusive};

use super::{
    super::{decode::PROBLEMS_MAX, path::Shown, template::has_tags},
    TRAITS_MAX,
};
use crate::{problem::Problem, schedule};

/// Longest id of a step, name of a variable or trait, in bytes.
const WORD_BYTES_MAX: usize = 64;

const EXPRESSION_BYTES_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct Report {
    problems: Vec<Problem>,
}

impl Report {
    pub(super) fn finish(mut self) -> Vec<Problem> {
        self.problems.truncate(PROBLEMS_MAX);
        self.problems
    }

    pub(super) fn push(&mut self, problem: Problem) {
        // A document of a thousand faults is not better explained by a thousand lines.
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    pub(super) fn add(&mut self, path: impl Into<String>, code: &'static str, message: impl Into<String>) {
        self.push(Problem::new(path, code, message));
    }

    pub(super) fn name(&mut self, path: &str, name: &str) {
        let mut found = Vec::new();
        schedule::check_name(path, name, &mut found);
        for problem in found {
            self.push(problem);
        }
    }

    pub(super) fn names(&mut self, path: &str, names: &[String], count_max: usize) {
        self.at_most(path, names.len(), count_max);
        self.no_duplicates(path, names);
        for (index, name) in names.iter().enumerate() {
            self.name(&format!("{path}[{index}]"), name);
        }
    }

    /// A name that templates use as it stands, where `-` would subtract.
    pub(super) fn identifier(&mut self, path: &str, name: &str, code: &'static str) {
        let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !starts_well || !plain || name.len() > WORD_BYTES_MAX {
            let message = format!(
                "`{}` must have 1 to {WORD_BYTES_MAX} of the characters a-z, A-Z, 0-9 and `_`, and not start with a digit",
                Shown(name)
            );
            self.add(path, code, message);
        }
    }

    pub(super) fn traits(&mut self, path: &str, traits: &[String]) {
        self.at_most(path, traits.len(), TRAITS_MAX);
        self.no_duplicates(path, traits);
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '=' | '/');
        for (index, text) in traits.iter().enumerate() {
            if text.is_empty() || text.len() > WORD_BYTES_MAX || !text.chars().all(plain) {
                let message = format!("a trait must have 1 to {WORD_BYTES_MAX} letters, digits and any of - _ . : = /");
                self.add(format!("{path}[{index}]"), "bad_name", message);
            }
        }
    }

    pub(super) fn within<T: Copy + PartialOrd + fmt::Display>(
        &mut self,
        path: &str,
        value: T,
        range: RangeInclusive<T>,
    ) {
        if !range.contains(&value) {
            let message = format!("{value} is not between {} and {}", range.start(), range.end());
            self.add(path, "out_of_range", message);
        }
    }

    pub(super) fn at_most(&mut self, path: &str, count: usize, count_max: usize) {
        if count > count_max {
            self.add(path, "too_many", format!("there are {count}; at most {count_max} are allowed"));
        }
    }

    /// At least one, and at most so many.
    pub(super) fn filled(&mut self, path: &str, count: usize, count_max: usize) {
        if count == 0 {
            self.add(path, "empty", "must have at least one entry");
        }
        self.at_most(path, count, count_max);
    }

    pub(super) fn text(&mut self, path: &str, text: &str, bytes_max: usize) {
        if text.len() > bytes_max {
            self.add(path, "too_long", format!("the text has {} bytes; at most {bytes_max} are allowed", text.len()));
        }
    }

    pub(super) fn filled_text(&mut self, path: &str, text: &str, bytes_max: usize) {
        if text.trim().is_empty() {
            self.add(path, "empty", "must not be empty");
        }
        self.text(path, text, bytes_max);
    }

    pub(super) fn expression(&mut self, path: &str, text: &str) {
        self.filled_text(path, text, EXPRESSION_BYTES_MAX);
        if has_tags(text) {
            self.add(path, "bad_template", "an expression is written without {{ }}");
        }
    }

    /// A secret is referred to. Versions of a document are kept and shown for ever.
    pub(super) fn secret(&mut self, path: &str, text: &str) {
        if !has_tags(text) {
            let message = "use a reference such as {{ secrets.name }}, not the secret itself";
            self.add(path, "secret_in_document", message);
        }
    }

    pub(super) fn no_duplicates<T: Ord>(&mut self, path: &str, values: &[T]) {
        for index in repeated(values) {
            self.add(format!("{path}[{index}]"), "duplicate", "appears twice");
        }
    }

    /// The same for one field of each item of a list.
    pub(super) fn no_duplicates_in<T: Ord>(&mut self, path: &str, field: &str, values: &[T]) {
        for index in repeated(values) {
            self.add(format!("{path}[{index}].{field}"), "duplicate", format!("another entry has the same {field}"));
        }
    }
}

fn repeated<T: Ord>(values: &[T]) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    (0..values.len()).filter(|index| !seen.insert(&values[*index])).collect()
}
