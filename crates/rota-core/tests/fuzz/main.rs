//! Whatever people, programs and attackers write is read or refused, and never a panic.
//!
//! Texts of the corpus are cut, repeated, mixed and spiced with what their grammar knows:
//! most of what comes of it is nearly right, which is where readers break. `ROTA_LONG=1`
//! tries a hundred times as many. A text that once broke something is added to its corpus.

mod changed;

use jiff::{Timestamp, tz::TimeZone};
use proptest::prelude::*;
use rota_core::{
    cron::{Cron, DstPolicy, explain},
    duration::Span,
    job::{JobDocument, decode::PROBLEMS_MAX, size::Size},
    trace::TraceParent,
};

use self::changed::{changed, config};

/// The texts of a corpus, which a line of three dashes parts.
fn corpus(text: &'static str) -> Vec<&'static str> {
    text.split("\n---\n").map(|one| one.trim_matches('\n')).collect()
}

fn documents() -> impl Strategy<Value = String> {
    const WORDS: &[&str] = &[
        "\n",
        "\n  ",
        ": ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "&a ",
        "*a",
        "<<: *a",
        "!!binary ",
        "|\n",
        ">-\n",
        "#",
        "? ",
        "null",
        "~",
        "1e999",
        "-0",
        "0x1F",
        ".inf",
        "2026-02-30",
        "steps:",
        "name:",
        "schedules:",
        "{{ payload.x }}",
        "{%",
        "{{",
        "\u{feff}",
        "\u{0}",
        "\t",
        "every: 1ms",
        "cron: '* * * * *'",
        "tz: Mars/Base",
        "max_attempts: -1",
    ];
    changed(corpus(include_str!("corpus/documents.yaml")), WORDS)
}

fn lines(text: &'static str) -> Vec<&'static str> {
    text.lines().collect()
}

proptest! {
    #![proptest_config(config(1_000))]

    /// What is read is written in one form, which is read as the same.
    #[test]
    fn documents_are_read_or_refused(text in documents()) {
        match JobDocument::from_yaml(text.as_bytes()) {
            Ok(document) => {
                let canonical = document.canonical_json();
                let again = JobDocument::from_json(canonical.as_bytes());
                prop_assert_eq!(again.map(|again| again.canonical_json()), Ok(canonical));
            }
            Err(problems) => {
                prop_assert!(!problems.is_empty() && problems.len() <= PROBLEMS_MAX);
                prop_assert!(problems.iter().all(|problem| !problem.code.is_empty() && problem.to_string().len() < 10_000));
            }
        }
        drop(JobDocument::from_json(text.as_bytes()));
    }

    /// What an expression means can be told, and its instants only go on.
    #[test]
    fn expressions_are_read_or_refused(text in changed(
        lines(include_str!("corpus/cron.txt")),
        &["*", "/", "-", ",", "?", "L", "W", "#", "H", "H(0-9)", "@", "@every ", "MON", "FEB", "60", "0", "~", " ", "99999999999"],
    )) {
        if let Ok(cron) = Cron::parse(&text, b"seed") {
            prop_assert!(explain(&text, b"seed").is_ok_and(|words| !words.is_empty()), "{text}");
            let zone = TimeZone::get("Europe/Berlin").unwrap();
            let mut at = Timestamp::from_second(1_774_000_000).unwrap();
            for _ in 0..3 {
                let Some(next) = cron.next(at, &zone, DstPolicy::default()) else { break };
                prop_assert!(next > at, "{text}: {next} after {at}");
                at = next;
            }
        }
    }

    /// What is read is told so that it is read as the same.
    #[test]
    fn words_are_read_or_refused(text in changed(
        lines(include_str!("corpus/words.txt")),
        &["1", "0", "-", ".", "ms", "h", "d", "KB", "MiB", "00", "ff", " ", "e", "99999999999999999999", "µ"],
    )) {
        if let Ok(span) = text.parse::<Span>() {
            prop_assert_eq!(span.to_string().parse::<Span>(), Ok(span));
        }
        if let Some(trace) = TraceParent::parse(&text) {
            prop_assert_eq!(TraceParent::parse(&trace.to_string()), Some(trace));
        }
        drop(text.parse::<Size>());
    }
}
