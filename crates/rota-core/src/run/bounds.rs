//! What a caller may say about a run, at most, whichever way it came in.

use serde_json::Value;

use super::Labels;
use crate::{
    problem::Problem,
    schedule::{LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX},
};

/// Bytes of a trigger's metadata, as JSON.
pub const METADATA_BYTES_MAX: usize = 4 << 10;
/// Runs that one may wait for.
pub const AFTER_MAX: usize = 100;

/// Runs that one waits for, its steps included: what both stores can count, also where the
/// release before this one counts with them.
pub const WAITS_MAX: u32 = i16::MAX as u32;

/// What is out of bounds of what a caller says about a run that it asks for.
pub fn out_of_bounds(labels: &Labels, metadata: Option<&Value>, after: usize) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut wrong = |path: &str, message: String| problems.push(Problem::new(path, "out_of_bounds", message));
    if labels.len() > LABELS_MAX {
        wrong("labels", format!("a run has at most {LABELS_MAX} labels"));
    }
    for (key, value) in labels {
        let plain = !key.is_empty() && !key.contains('\0') && !value.contains('\0');
        if !plain || key.len() > LABEL_KEY_BYTES_MAX || value.len() > LABEL_VALUE_BYTES_MAX {
            let bounds = format!("a key has 1 to {LABEL_KEY_BYTES_MAX} bytes, a value at most {LABEL_VALUE_BYTES_MAX}");
            wrong(&format!("labels.{}", key.replace('\0', "")), bounds);
        }
    }
    if metadata.is_some_and(|metadata| metadata.to_string().len() > METADATA_BYTES_MAX) {
        wrong("metadata", format!("at most {METADATA_BYTES_MAX} bytes as JSON"));
    }
    if after > AFTER_MAX {
        wrong("after", format!("a run waits for at most {AFTER_MAX} others"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(labels: &[(String, String)], metadata: usize, after: usize) -> Vec<String> {
        let labels = labels.iter().cloned().collect();
        // Two quotes are bytes as well.
        let metadata = Value::String("x".repeat(metadata - 2));
        out_of_bounds(&labels, Some(&metadata), after).into_iter().map(|problem| problem.path).collect()
    }

    fn many(count: usize) -> Vec<(String, String)> {
        (0..count).map(|n| (format!("k{n}"), String::new())).collect()
    }

    fn one(key: usize, value: usize) -> Vec<(String, String)> {
        vec![("k".repeat(key), "v".repeat(value))]
    }

    #[test]
    fn each_bound_is_kept_and_the_next_beyond_it_is_refused() {
        assert_eq!(paths(&many(LABELS_MAX), METADATA_BYTES_MAX, AFTER_MAX), [""; 0]);
        assert_eq!(paths(&one(LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX), 2, 0), [""; 0]);
        assert_eq!(
            paths(&many(LABELS_MAX + 1), METADATA_BYTES_MAX + 1, AFTER_MAX + 1),
            ["labels", "metadata", "after"]
        );
        let long = "k".repeat(LABEL_KEY_BYTES_MAX + 1);
        assert_eq!(paths(&one(LABEL_KEY_BYTES_MAX + 1, 0), 2, 0), [format!("labels.{long}")]);
        assert_eq!(paths(&one(1, LABEL_VALUE_BYTES_MAX + 1), 2, 0), ["labels.k"]);
        assert_eq!(paths(&[(String::new(), String::new())], 2, 0), ["labels."]);
        assert_eq!(paths(&[("a\0".to_owned(), String::new())], 2, 0), ["labels.a"]);
        assert_eq!(paths(&[("a".to_owned(), "\0".to_owned())], 2, 0), ["labels.a"]);
    }
}
