//! `rota doctor`: what is wrong is found, and said what to do about.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use super::{Desk, at_home, hello, said};
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
    for check in ["configuration", "server", "server's clock", "rows", "store", "data", "disk", "open files"] {
        assert!(grades.iter().any(|(name, _)| name == check), "{check} is missing: {found:#}");
    }
    assert!(grades.iter().all(|(check, grade)| check == "disk" || grade == "good"), "{found:#}");
    assert!(desk.node.stop().0.success());
}

/// A row that cannot be read is left out everywhere: unless it is named here, nobody notices
/// what it held.
#[test]
fn rows_that_cannot_be_read_are_named() {
    let desk = Desk::open();
    desk.write("hello.yaml", &hello("hello"));
    desk.rota(&["apply", "-f", "hello.yaml"]).ok();
    let database = rusqlite::Connection::open(desk.place.path("data/rota.db")).unwrap();
    database.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    database.execute("UPDATE job SET tags = 'nonsense' WHERE name = 'hello'", []).unwrap();
    desk.rota(&["job", "list"]).ok();
    let (data, listen) = (desk.place.text("data"), desk.node.address().to_string());
    let told = desk.rota(&["doctor", "--data", &data, "--listen", &listen]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.out.contains("job.") && told.out.contains("rota rows show"), "{}", told.out);
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
    assert!(told.err.contains("3 problems found"), "{}", told.err);
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
    assert!(told.out.contains("does not exist yet"), "{told:?}");
    assert!(!place.path("data").exists());
}
