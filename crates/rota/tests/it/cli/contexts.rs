//! Logging in, and which server is asked.

use std::os::unix::fs::PermissionsExt as _;

use super::{Desk, at_home, said};
use crate::node::Place;

#[test]
fn a_context_is_kept_for_its_owner_alone_and_is_asked_from_then_on() {
    let desk = Desk::open();
    let home = |arguments: &[&str]| said(at_home(&desk.place, arguments));
    let server = desk.server();
    let mut login = at_home(&desk.place, &["login", &server, "--name", "here", "--token", "-"]);
    let mut child = login.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"t0ken-of-ann\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("t0ken"), "{output:?}");

    let file = desk.place.path("home/.config/rota/contexts.toml");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(std::fs::read_to_string(&file).unwrap().contains("t0ken-of-ann"));
    assert_eq!(home(&["job", "list", "-o", "json"]).json(), serde_json::json!([]));

    let listed = home(&["context", "list"]).ok();
    assert!(listed.contains("here") && listed.contains(&server) && listed.contains('*'), "{listed}");
    let listed = home(&["context", "list", "-o", "json"]).ok();
    assert!(listed.contains("\"token\": true") && !listed.contains("t0ken"), "{listed}");

    assert!(home(&["context", "use", "there"]).failed(3).contains("there is no context `there`"));
    assert!(home(&["logout"]).ok().contains("forgot `here`"));
    assert!(!std::fs::read_to_string(&file).unwrap().contains("t0ken"));
}

/// A token in the list of processes is a token given away.
#[test]
fn a_token_is_not_taken_from_the_command_line() {
    let place = Place::new();
    let error = said(at_home(&place, &["login", "localhost:1", "--token", "s3cret"])).failed(2);
    assert!(error.contains("--token-file"), "{error}");
    let error = said(at_home(&place, &["job", "list", "--server", "http://ann:s3cret@localhost:1"])).failed(2);
    assert!(error.contains("log in with a token") && !error.contains("s3cret"), "{error}");
}

#[test]
fn a_server_that_does_not_answer_is_not_kept_and_says_how_to_start_one() {
    let place = Place::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = format!("http://{closed}");
    let error = said(at_home(&place, &["login", &server])).failed(5);
    assert_eq!(
        error,
        format!(
            "error: {server} does not answer: connection refused\n\
             hint: start a server with `rota serve`, or name another with --server or `rota login URL`\n"
        )
    );
    assert!(!place.path("home/.config/rota/contexts.toml").exists());
}

/// The variables of the command line are no settings of a node, and no mistakes.
#[test]
fn a_node_does_not_warn_of_the_variables_of_the_command_line() {
    let place = Place::new();
    let mut check = at_home(&place, &["config", "check"]);
    check.env("ROTA_SERVER", "http://x").env("ROTA_TOKEN", "y").env("ROTA_TYPO", "z");
    let told = said(check).ok();
    assert!(told.contains("ROTA_TYPO") && !told.contains("ROTA_SERVER") && !told.contains("ROTA_TOKEN"), "{told}");
}
