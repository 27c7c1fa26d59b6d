//! Texts of a corpus, cut, repeated, mixed and spiced with what their grammar knows.
//!
//! The tests of other crates use it too, by its path.

use proptest::{prelude::*, sample::Index};

/// So many cases where nothing is said, and a hundred times as many with `ROTA_LONG=1`.
pub fn config(cases: u32) -> ProptestConfig {
    let times = if std::env::var_os("ROTA_LONG").is_some() { 100 } else { 1 };
    ProptestConfig { cases: cases * times, failure_persistence: None, ..ProptestConfig::default() }
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
pub fn changed(texts: Vec<&'static str>, words: &'static [&'static str]) -> impl Strategy<Value = String> {
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
