//! `rota doctor`: what is wrong is found, and said what to do about.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use super::{Desk, at_home, said};
use crate::node::Place;

/// The findings by their check.
fn grades(findings: &Value) -> Vec<(String, String)> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    findings.as_array().unwrap().iter().map(|one| (word(&one["check"]), word(&one["grade"]))).collect()
}

#[test]
fn a_healthy_node_gets_a_clean_bill() {
    let desk = Desk::open();
    let (data, listen) = (desk.place.text("data"), desk.node.address().to_string());
    let found =
        desk.rota(&["doctor", "--data", &data, "--listen", &listen, "--attempts-max", "10", "-o", "json"]).json();
    let grades = grades(&found);
    for check in ["configuration", "server", "server's clock", "store", "data", "disk", "open files"] {
        assert!(grades.iter().any(|(name, _)| name == check), "{check} is missing: {found:#}");
    }
    assert!(grades.iter().all(|(check, grade)| check == "disk" || grade == "good"), "{found:#}");
    assert!(desk.node.stop().0.success());
}

#[test]
fn each_thing_that_is_wrong_is_told_with_what_to_do() {
    let place = Place::new();
    place.write("data/rota.db", "this is no database, and long enough to have a header of its own, as SQLite's have");
    std::fs::set_permissions(place.path("data"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    // It takes what is asked, and closes without a word.
    std::thread::spawn(move || taken.incoming().for_each(drop));
    let data = place.text("data");
    let told = said(at_home(&place, &["doctor", "--data", &data, "--listen", &listen]));
    assert_eq!(told.code, 1, "{told:?}");
    for words in ["it is not Rota", "chmod 700", "cannot open", "→"] {
        assert!(told.out.contains(words), "{words}: {}", told.out);
    }
    assert!(told.err.contains("3 things are wrong"), "{}", told.err);
    let told = said(at_home(&place, &["doctor", "--leases-node", "nonsense"]));
    assert_eq!(told.code, 1);
    assert!(told.out.contains("leases.node"), "{}", told.out);
}

/// A doctor who changes what they look at is none.
#[test]
fn a_look_makes_nothing() {
    let place = Place::new();
    let data = place.text("data");
    let told = said(at_home(&place, &["doctor", "--data", &data, "--listen", "127.0.0.1:0", "--attempts-max", "10"]));
    assert!(told.out.contains("is not there yet"), "{told:?}");
    assert!(!place.path("data").exists());
}
