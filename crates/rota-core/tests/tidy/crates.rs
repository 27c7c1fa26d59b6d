//! Which crate may build on which.

use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Every crate of the project, and those it may depend on.
///
/// `rota` is where all is put together, so it may use every other one. A crate
/// that has no row here needs one, and a reason.
const EDGES: &[(&str, &[&str])] = &[
    ("rota-core", &[]),
    ("rota-api", &[]),
    ("rota-store", &["rota-core"]),
    ("rota-cluster", &["rota-core"]),
    ("rota-engine", &["rota-core"]),
    ("rota-server", &["rota-core", "rota-engine", "rota-api"]),
    ("rota-client", &["rota-api"]),
    ("rota-embed", &["rota-core", "rota-engine", "rota-store", "rota-cluster"]),
    (
        "rota",
        &[
            "rota-core",
            "rota-api",
            "rota-store",
            "rota-cluster",
            "rota-engine",
            "rota-server",
            "rota-client",
            "rota-embed",
        ],
    ),
];

/// Edges that tests may have and the product may not.
///
/// The simulator's promise is that it runs the real stages on the real store, and
/// what the API promises is seen on a real one too.
/// The engine's tests plant bugs in it.
const TEST_EDGES: &[(&str, &str)] =
    &[("rota-engine", "rota-engine"), ("rota-engine", "rota-store"), ("rota-server", "rota-store")];

/// What code that decides must not reach, not even through another crate: a
/// runtime, a database or a network. An entry stands for its family too
/// (`tokio` for `tokio-util`).
const FOREIGN_TO_CORE: &[&str] = &[
    "async-nats",
    "async-std",
    "axum",
    "deadpool",
    "h2",
    "http",
    "hyper",
    "libsqlite3-sys",
    "mio",
    "mysql",
    "mysql_async",
    "object_store",
    "postgres",
    "reqwest",
    "rusqlite",
    "rustls",
    "smol",
    "sqlx",
    "tokio",
    "tonic",
    "tower",
    "ureq",
];

#[test]
fn crates_depend_only_on_what_their_row_allows() {
    super::refuse(&forbidden_edges(&super::metadata()));
}

#[test]
fn code_that_decides_reaches_no_runtime_database_or_network() {
    let asked = ["tree", "--package=rota-core", "--all-features", "--edges=normal", "--locked", "--target=all"];
    let tree = super::cargo(&[&asked[..], &["--prefix=none"]].concat());
    assert!(tree.starts_with("rota-core "), "cargo tree starts at the core");
    super::refuse(&reached_from_core(&tree));
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

fn forbidden_edges(metadata: &Value) -> Vec<String> {
    let members: BTreeSet<&str> = list(metadata, "workspace_members").filter_map(Value::as_str).collect();
    let mut offences = Vec::new();
    for package in list(metadata, "packages").filter(|package| members.contains(text(package, "id"))) {
        let (name, manifest) = (text(package, "name"), text(package, "manifest_path"));
        let Some((_, allowed)) = EDGES.iter().find(|(row, _)| *row == name) else {
            offences.push(format!("{manifest}:1: crate {name} has no row in the table of crates"));
            continue;
        };
        for dependency in list(package, "dependencies") {
            let target = text(dependency, "name");
            let ours = target == "rota" || target.starts_with("rota-");
            let in_tests = text(dependency, "kind") == "dev" && TEST_EDGES.contains(&(name, target));
            if ours && !in_tests && !allowed.contains(&target) {
                offences.push(format!("{manifest}:1: {name} must not depend on {target}"));
            }
        }
    }
    offences
}

/// Looks through `cargo tree`, one crate per line, the name first.
fn reached_from_core(tree: &str) -> Vec<String> {
    let is_of = |name: &str, family: &str| {
        name.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    let foreign = names.into_iter().filter(|name| FOREIGN_TO_CORE.iter().any(|family| is_of(name, family)));
    foreign.map(|name| format!("crates/rota-core/Cargo.toml:1: reaches {name} (cargo tree -i {name})")).collect()
}

fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
    let dependencies: Vec<Value> =
        dependencies.iter().map(|(name, kind)| json!({"name": name, "kind": kind})).collect();
    json!({"id": name, "name": name, "manifest_path": "Cargo.toml", "dependencies": dependencies})
}

#[test]
fn a_planted_edge_is_found() {
    let cases: &[(&str, &str, Option<&str>, usize)] = &[
        ("rota-engine", "rota-store", None, 1),
        ("rota-engine", "rota-store", Some("dev"), 0),
        ("rota-core", "rota-store", Some("dev"), 1),
        ("rota-server", "rota-store", Some("build"), 1),
        ("rota-store", "rota-core", None, 0),
        ("rota-util", "serde", None, 1),
        ("rota", "rota-server", None, 0),
    ];
    for (from, to, kind, offences) in cases {
        let metadata = json!({"workspace_members": [from], "packages": [package(from, &[(to, *kind)])]});
        assert_eq!(forbidden_edges(&metadata).len(), *offences, "{from} -> {to} {kind:?}");
    }
}

#[test]
fn a_planted_runtime_is_found_behind_another_crate() {
    let offence = "crates/rota-core/Cargo.toml:1: reaches tokio-util (cargo tree -i tokio-util)";
    assert_eq!(reached_from_core("rota-core v0.1.0\ntokio-util v0.7.1\ntokio-util v0.7.1 (*)\n"), [offence]);
    assert!(reached_from_core("rota-core v0.1.0\nhttpdate v1.0.0\n").is_empty());
}
