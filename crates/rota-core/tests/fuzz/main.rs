//! Whatever people, programs and attackers write is read or refused, and never a panic.
//!
//! Texts of the corpus are cut, repeated, mixed and spiced with what their grammar knows:
//! most of what comes of it is nearly right, which is where readers break. `ROTA_LONG=1`
//! tries a hundred times as many. A text that once broke something is added to its corpus.

use jiff::{Timestamp, tz::TimeZone};
use proptest::{prelude::*, sample::Index};
use rota_core::{
    cron::{Cron, DstPolicy, explain},
    duration::Span,
    job::{JobDocument, decode::PROBLEMS_MAX, size::Size},
    trace::TraceParent,
};

fn config() -> ProptestConfig {
    let cases = if std::env::var_os("ROTA_LONG").is_some() { 100_000 } else { 1_000 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// The texts of a corpus, which a line of three dashes parts.
fn corpus(text: &'static str) -> Vec<&'static str> {
    text.split("\n---\n").map(|one| one.trim_matches('\n')).collect()
}

/// One change of a text.
#[derive(Clone, Debug)]
enum Change {
    Cut(Index, Index),
    Repeat(Index, Index),
    Insert(Index, String),
    /// The end is another text's.
    Graft(Index, Index, Index),
}

fn change(words: &'static [&'static str]) -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        (at(), at()).prop_map(|(from, to)| Change::Cut(from, to)),
        (at(), at()).prop_map(|(from, to)| Change::Repeat(from, to)),
        (at(), prop::sample::select(words)).prop_map(|(place, word)| Change::Insert(place, word.to_owned())),
        (at(), any::<char>()).prop_map(|(place, any)| Change::Insert(place, any.to_string())),
        (at(), at(), at()).prop_map(|(place, other, from)| Change::Graft(place, other, from)),
    ]
}

/// A text of the corpus with a few changes.
fn changed(texts: Vec<&'static str>, words: &'static [&'static str]) -> impl Strategy<Value = String> {
    (any::<Index>(), prop::collection::vec(change(words), 0..6)).prop_map(move |(first, changes)| {
        let mut text = (*first.get(&texts)).to_owned();
        for change in changes {
            apply(&mut text, &change, &texts);
        }
        text
    })
}

fn apply(text: &mut String, change: &Change, texts: &[&str]) {
    let place = |text: &str, index: &Index| text.floor_char_boundary(index.index(text.len() + 1));
    let range = |from: &Index, to: &Index| {
        let (from, to) = (place(text, from), place(text, to));
        from.min(to)..from.max(to)
    };
    match change {
        Change::Cut(from, to) => {
            let range = range(from, to);
            // A little, or there is soon nothing left.
            let end = text.floor_char_boundary(range.end.min(range.start + 20));
            text.replace_range(range.start..end, "");
        }
        Change::Repeat(from, to) => {
            let piece = text[range(from, to)].to_owned();
            let at = place(text, to);
            text.insert_str(at, &piece);
        }
        Change::Insert(index, word) => text.insert_str(place(text, index), word),
        Change::Graft(index, other, from) => {
            let other = *other.get(texts);
            text.truncate(place(text, index));
            text.push_str(&other[place(other, from)..]);
        }
    }
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
    #![proptest_config(config())]

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
