//! The rules of the project that no compiler checks.
//!
//! Each rule is a function from what it looks at to a list of offences, and a
//! test that finds none in this project. Beside each rule a test plants an
//! offence, because a rule that cannot fail is no rule.
//!
//! Nothing here looks at style: rustfmt and clippy do.

mod crates;
mod licences;
mod text;
mod twins;

use std::path::{Path, PathBuf};

/// Fails with every offence on a line of its own, as `file:line: what is wrong`.
fn refuse(offences: &[String]) {
    assert!(offences.is_empty(), "{} offences:\n{}", offences.len(), offences.join("\n"));
}

/// The root of the checkout.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).expect("this package lies in crates/<name>").to_path_buf()
}

/// What cargo prints when asked from the root.
fn cargo(asked: &[&str]) -> String {
    let answer = std::process::Command::new(env!("CARGO")).args(asked).current_dir(root()).output();
    let answer = answer.expect("cargo can be started");
    assert!(answer.status.success(), "cargo {asked:?} failed: {}", String::from_utf8_lossy(&answer.stderr));
    String::from_utf8(answer.stdout).expect("cargo prints UTF-8")
}

/// What `cargo metadata` says of the workspace and everything it builds on.
fn metadata() -> serde_json::Value {
    serde_json::from_str(&cargo(&["metadata", "--format-version=1", "--locked"])).expect("cargo metadata prints JSON")
}
