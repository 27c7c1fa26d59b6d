//! Logging in, and which server is asked.

use std::{
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
};

use super::{Desk, at_home, said};
use crate::node::Place;

#[test]
fn a_context_is_kept_for_its_owner_alone_and_is_asked_from_then_on() {
    let desk = Desk::open();
    let home = |arguments: &[&str]| said(at_home(&desk.place, arguments));
    let server = desk.server();
    let token = token(&server);
    let mut login = at_home(&desk.place, &["login", &server, "--name", "here", "--token", "-"]);
    let mut child = login.stdin(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("{token}\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains(&token), "{output:?}");

    let file = desk.place.path("home/.config/rota/contexts.toml");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(std::fs::read_to_string(&file).unwrap().contains(&token));
    assert_eq!(home(&["job", "list", "-o", "json"]).json(), serde_json::json!([]));

    let listed = home(&["context", "list"]).ok();
    assert!(listed.contains("here") && listed.contains(&server) && listed.contains('*'), "{listed}");
    let listed = home(&["context", "list", "-o", "json"]).ok();
    assert!(listed.contains("\"token\": true") && !listed.contains(&token), "{listed}");

    assert!(home(&["context", "use", "there"]).failed(3).contains("there is no context `there`"));
    assert!(home(&["logout"]).ok().contains("removed `here`"));
    assert!(!std::fs::read_to_string(&file).unwrap().contains(&token));
}

/// A token of the server's own: one that it does not know is refused, open or not.
fn token(server: &str) -> String {
    let asked = serde_json::json!({ "name": "ann", "role": "editor" }).to_string();
    let (host, body) = (server.trim_start_matches("http://"), asked.len());
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    let head = "content-type: application/json\r\nconnection: close";
    write!(stream, "POST /api/v1/tokens HTTP/1.1\r\nhost: {host}\r\n{head}\r\ncontent-length: {body}\r\n\r\n{asked}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let made: serde_json::Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    made["secret"].as_str().unwrap().to_owned()
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
             hint: start a server with `rota serve`, or choose another with --server or `rota login URL`\n"
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
