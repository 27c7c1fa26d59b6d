//! What may be built in: permissive licences, and none of the banned crates.
//!
//! The lists are those of `deny.toml`, read line by line, so that there is one
//! policy. cargo-deny does more (advisories, licence texts); this test is what
//! holds on a machine that has nothing but Rust.

use std::collections::BTreeSet;
use std::iter::Peekable;

#[test]
fn every_crate_has_a_permissive_licence() {
    let (policy, tree) = (policy(), tree());
    super::refuse(&unlicensed(&packages(&tree), &listed(&policy, "allow = [")));
}

#[test]
fn banned_crates_stay_out() {
    let (policy, tree) = (policy(), tree());
    super::refuse(&banned(&packages(&tree), &listed(&policy, "deny = [")));
}

/// Everything that is built, on any platform: `name version ...|licence` per line.
///
/// `cargo metadata` would not do: it lists crates that no enabled feature asks for.
fn tree() -> String {
    let asked =
        ["tree", "--workspace", "--all-features", "--locked", "--target=all", "--prefix=none", "--format={p}|{l}"];
    super::cargo(&asked)
}

fn policy() -> String {
    std::fs::read_to_string(super::root().join("deny.toml")).expect("deny.toml can be read")
}

/// The first quoted string of each line of the list that starts with `head`.
fn listed<'a>(policy: &'a str, head: &str) -> Vec<&'a str> {
    let entries = policy.lines().skip_while(|line| *line != head).skip(1).take_while(|line| *line != "]");
    let names: Vec<&str> = entries.filter_map(|line| line.split('"').nth(1)).collect();
    assert!(!names.is_empty(), "deny.toml has no list that starts with `{head}`");
    names
}

/// A crate's name and version, and its licence, which may be empty.
type Package<'a> = (&'a str, &'a str);

fn packages(tree: &str) -> BTreeSet<Package<'_>> {
    let packages: BTreeSet<Package> = tree.lines().filter_map(|line| line.rsplit_once('|')).collect();
    assert!(packages.iter().any(|(name, _)| name.starts_with("rota-core ")), "cargo tree lists this workspace");
    packages
}

fn unlicensed(packages: &BTreeSet<Package>, allowed: &[&str]) -> Vec<String> {
    let offenders = packages.iter().filter(|(_, licence)| !permits(licence.trim_end_matches(" (*)"), allowed));
    offenders.map(|(name, licence)| format!("Cargo.lock:1: {name} has licence `{licence}`")).collect()
}

fn banned(packages: &BTreeSet<Package>, names: &[&str]) -> Vec<String> {
    let offenders = packages.iter().filter(|(name, _)| names.contains(&name.split(' ').next().unwrap_or_default()));
    offenders.map(|(name, _)| format!("Cargo.lock:1: {name} is banned, see deny.toml")).collect()
}

/// Whether an SPDX expression can be met with the allowed licences alone.
///
/// `AND` binds closer than `OR`; an exception (`WITH`) is part of its licence's
/// name. Old crates write `/` for `OR`.
fn permits(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let met = any_of(&mut words, allowed);
    met && words.next().is_none()
}

fn any_of<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, allowed: &[&str]) -> bool {
    let mut met = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all_of(words, allowed);
    }
    met
}

fn all_of<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, allowed: &[&str]) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, allowed: &[&str]) -> bool {
    match words.next() {
        Some("(") => {
            let met = any_of(words, allowed);
            words.next_if_eq(&")").is_some() && met
        }
        Some(licence) if words.next_if_eq(&"WITH").is_some() => {
            let exception = words.next().unwrap_or_default();
            allowed.contains(&licence) && allowed.contains(&format!("{licence} WITH {exception}").as_str())
        }
        Some(licence) => allowed.contains(&licence),
        None => false,
    }
}

#[test]
fn licence_expressions_are_read_as_spdx_means_them() {
    let allowed = ["MIT", "ISC", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];
    let cases = [
        ("MIT", true),
        ("MIT OR GPL-3.0", true),
        ("MIT/GPL-3.0", true),
        ("MIT AND GPL-3.0", false),
        ("GPL-3.0 OR MIT AND ISC", true),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("(GPL-3.0 OR LGPL-2.1) AND ISC", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
        ("MIT WITH LLVM-exception", false),
        ("(MIT", false),
        ("MIT ISC", false),
        ("", false),
    ];
    for (expression, expected) in cases {
        assert_eq!(permits(expression, &allowed), expected, "{expression}");
    }
}

#[test]
fn a_planted_crate_is_found() {
    let tree = "rota-core v0.1.0|MIT\nsqlx v0.8.0|MIT (*)\ncopyleft v2.0.0|GPL-3.0\n\nsilent v3.0.0 (proc-macro)|\n";
    let packages = packages(tree);
    assert_eq!(banned(&packages, &["sqlx", "rota"]), ["Cargo.lock:1: sqlx v0.8.0 is banned, see deny.toml"]);
    let offences = unlicensed(&packages, &["MIT"]);
    assert_eq!(
        offences,
        [
            "Cargo.lock:1: copyleft v2.0.0 has licence `GPL-3.0`",
            "Cargo.lock:1: silent v3.0.0 (proc-macro) has licence ``"
        ]
    );
}
