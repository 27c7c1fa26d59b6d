//! What may be built in: permissive licences, and none of the banned crates.
//!
//! The lists are those of `deny.toml`, read line by line, so that there is one
//! policy. cargo-deny does more (advisories, licence texts); this test is what
//! holds on a machine that has nothing but Rust.

use serde_json::{Value, json};
use std::iter::Peekable;

#[test]
fn every_crate_has_a_permissive_licence() {
    let policy = policy();
    super::refuse(&unlicensed(&super::metadata(), &listed(&policy, "allow = [")));
}

#[test]
fn banned_crates_stay_out() {
    let policy = policy();
    super::refuse(&banned(&super::metadata(), &listed(&policy, "deny = [")));
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

fn packages(metadata: &Value) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
    metadata["packages"].as_array().into_iter().flatten().map(|package| {
        let text = |field: &str| package[field].as_str();
        (text("name").unwrap_or_default(), text("version").unwrap_or_default(), text("license"))
    })
}

fn unlicensed(metadata: &Value, allowed: &[&str]) -> Vec<String> {
    packages(metadata)
        .filter(|(_, _, licence)| !licence.is_some_and(|expression| permits(expression, allowed)))
        .map(|(name, version, licence)| format!("Cargo.lock:1: {name} {version} has licence {licence:?}"))
        .collect()
}

fn banned(metadata: &Value, names: &[&str]) -> Vec<String> {
    packages(metadata)
        .filter(|(name, ..)| names.contains(name))
        .map(|(name, version, _)| format!("Cargo.lock:1: {name} {version} is banned, see deny.toml"))
        .collect()
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
    let metadata = json!({"packages": [
        {"name": "fine", "version": "1.0.0", "license": "MIT"},
        {"name": "sqlx", "version": "0.8.0", "license": "MIT"},
        {"name": "copyleft", "version": "2.0.0", "license": "GPL-3.0"},
        {"name": "silent", "version": "3.0.0", "license": null},
    ]});
    assert_eq!(banned(&metadata, &["sqlx"]), ["Cargo.lock:1: sqlx 0.8.0 is banned, see deny.toml"]);
    let silent = unlicensed(&metadata, &["MIT"]);
    assert_eq!(silent.len(), 2, "{silent:?}");
}
