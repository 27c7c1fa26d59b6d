//! The two stores have the same files for the same things.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{refuse, root};

/// What only one database needs, and why.
const ALONE: &[(&str, &str, &str)] = &[
    ("sqlite", "checkpoint.rs", "the log of one file is moved into it beside the writer"),
    ("sqlite", "many.rs", "a statement over many rows, where PostgreSQL takes arrays"),
    ("sqlite", "writer.rs", "one thread writes"),
    ("postgres", "change.rs", "rows are locked before it is decided about them"),
    ("postgres", "cut.rs", "a connection that breaks, for tests"),
    ("postgres", "days.rs", "history has partitions"),
    ("postgres", "fault.rs", "what went wrong inside a transaction that may be tried again"),
    ("postgres", "finish.rs", "ended runs move to history in one statement"),
    ("postgres", "hints.rs", "word between processes"),
    ("postgres", "line.rs", "a connection, and how long the server may take"),
    ("postgres", "open.rs", "pools, TLS and roles of a server"),
    ("postgres", "skips.rs", "skips of a batch are recorded at once"),
    ("postgres", "tests.rs", "what only happens between two connections"),
    ("postgres", "tx.rs", "a transaction in as few round trips as it takes"),
];

fn offences(sqlite: &BTreeSet<String>, postgres: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (store, own, other) in [("sqlite", sqlite, postgres), ("postgres", postgres, sqlite)] {
        let stated: BTreeSet<&str> = ALONE.iter().filter(|(of, ..)| *of == store).map(|(_, file, _)| *file).collect();
        for file in own.difference(other).filter(|file| !stated.contains(file.as_str())) {
            found.push(format!("rota-store/src/{store}/{file}: the other store has no file of that name"));
        }
        for file in stated.iter().filter(|file| !own.contains(**file) || other.contains(**file)) {
            found.push(format!("rota-store/src/{store}/{file}: is stated to stand alone, and does not"));
        }
    }
    found
}

fn files(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("the folder of a store can be read");
    let paths = entries.map(|entry| entry.expect("its entries too").path());
    let sources = paths.filter(|path| path.extension().is_some_and(|end| end == "rs"));
    sources.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect()
}

#[test]
fn both_stores_have_the_same_files_but_for_those_that_are_stated() {
    let source = root().join("crates/rota-store/src");
    refuse(&offences(&files(&source.join("sqlite")), &files(&source.join("postgres"))));
}

#[test]
fn a_file_that_only_one_store_has_is_an_offence() {
    let of = |store: &str, more: &[&str]| {
        let alone = ALONE.iter().filter(|(of, ..)| *of == store).map(|(_, file, _)| *file);
        alone.chain(["jobs.rs"]).chain(more.iter().copied()).map(str::to_owned).collect::<BTreeSet<String>>()
    };
    assert!(offences(&of("sqlite", &[]), &of("postgres", &[])).is_empty());
    assert_eq!(offences(&of("sqlite", &["port.rs"]), &of("postgres", &[])).len(), 1);
    assert_eq!(offences(&of("sqlite", &[]), &of("postgres", &["many.rs"])).len(), 1);
}
