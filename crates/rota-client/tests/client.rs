//! What the client promises of requests, against a server that says what it is told.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use rota_client::{Believes, Client, Error};
use serde_json::{Value, json};

/// A server that gives these answers, one to a connection, and keeps what it heard.
struct Server {
    address: String,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn answering(answers: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (answers, keeps) = (answers.iter().map(ToString::to_string).collect::<Vec<_>>(), Arc::clone(&heard));
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                keeps.lock().unwrap().push(request(&stream));
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        Self { address, heard }
    }

    fn client(&self) -> Client {
        Client::builder(&self.address).token("secret").tenant("acme").build().unwrap()
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

/// The whole of a request.
fn request(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") && reader.read_line(&mut text).unwrap() > 0 {}
    // A stream's own end.
    while line(&text, "transfer-encoding").is_some() && !text.ends_with("\r\n0\r\n\r\n") {
        reader.read_line(&mut text).unwrap();
    }
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    text + std::str::from_utf8(&body).unwrap()
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn line<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

const AWAY: &str = r#"{"type":"x","title":"Not ready","status":503,"code":"not_ready","detail":"it starts"}"#;

#[tokio::test]
async fn a_question_is_asked_again_until_the_server_is_ready() {
    let (away, good) = (answer("503 Service Unavailable", AWAY), answer("200 OK", "[1]"));
    let server = Server::answering(&[&away, &away, &good]);
    let numbers: Vec<i32> = server.client().get(&["jobs", "a/b"], &[("tag", "x y".to_owned())]).await.unwrap();
    assert_eq!(numbers, [1]);
    let heard = server.heard();
    assert_eq!(heard.len(), 3);
    assert!(heard[0].starts_with("GET /api/v1/jobs/a%2Fb?tag=x+y HTTP/1.1\r\n"), "{}", heard[0]);
    assert_eq!(
        (line(&heard[0], "authorization"), line(&heard[0], "x-tenant-id")),
        (Some("Bearer secret"), Some("acme"))
    );
}

/// A server that does something twice because its answer was lost is what the key is for.
#[tokio::test]
async fn what_has_a_key_is_sent_again_under_the_same_one() {
    let (away, good) = (answer("503 Service Unavailable", AWAY), answer("200 OK", "{}"));
    let server = Server::answering(&[&away, &good]);
    let _done: Value = server.client().post_once(&["jobs"], &json!({ "name": "a" }), None).await.unwrap();
    let heard = server.heard();
    let keys: Vec<_> = heard.iter().map(|request| line(request, "idempotency-key").unwrap()).collect();
    assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
    assert!(heard[1].ends_with(r#"{"name":"a"}"#), "{}", heard[1]);
}

#[tokio::test]
async fn what_has_no_key_is_sent_once() {
    let away = answer("503 Service Unavailable", AWAY);
    let server = Server::answering(&[&away, &away]);
    let refused = server.client().post::<Value>(&["bulk", "pause"], &json!({})).await.unwrap_err();
    assert!(refused.is_passing() && refused.code() == Some("not_ready"), "{refused}");
    assert_eq!(server.heard().len(), 1);
}

/// What cannot have arrived may be sent again, whatever it is.
#[tokio::test]
async fn whoever_is_not_there_was_sent_nothing() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Client::builder(closed.to_string()).tries(2).build().unwrap();
    let error = client.put::<Value>(&["jobs", "a"], &json!({}), Believes::Version(3)).await.unwrap_err();
    assert!(error.was_not_sent() && error.is_passing(), "{error}");
    assert_eq!(error.to_string(), format!("http://{closed} does not answer: connection refused"));
}

/// A token that follows a redirect is a token given away.
#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::answering(&[&answer("200 OK", "{}")]);
    let moved = format!("HTTP/1.1 302 Found\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", elsewhere.address);
    let server = Server::answering(&[&moved]);
    let error = server.client().get::<Value>(&["jobs"], &[]).await.unwrap_err();
    assert!(matches!(error, Error::Strange { status: 302, .. }), "{error}");
    assert_eq!(elsewhere.heard(), Vec::<String>::new());
}

#[tokio::test]
async fn what_is_not_found_is_named_and_what_is_no_rota_is_suspected() {
    let missing = AWAY.replace("503", "404").replace("not_ready", "not_found").replace("it starts", "no such job");
    let server = Server::answering(&[&answer("404 Not Found", &missing), &answer("404 Not Found", "<html>\x1b[2J")]);
    let client = server.client();
    let error = client.delete::<Value>(&["jobs", "a"], &[]).await.unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("no such job (jobs/a)"), "{error}");
    let Error::Strange { said, .. } = client.get::<Value>(&["jobs"], &[]).await.unwrap_err() else { panic!() };
    assert_eq!(said, "<html>[2J");
}

#[tokio::test]
async fn answers_to_lines_come_one_by_one_however_they_are_cut() {
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let server =
        Server::answering(&[&format!("{head}3\r\n{{\"a\r\n6\r\n\":1}}\n\n\r\n8\r\n{{\"a\":2}}\n\r\n0\r\n\r\n")]);
    let sent = futures_util::stream::iter([Ok(b"{}\n".to_vec())]);
    let mut lines = server.client().lines(&["bulk", "runs"], sent).await.unwrap();
    assert_eq!(lines.next::<Value>().await.unwrap(), Some(json!({ "a": 1 })));
    assert_eq!(lines.next::<Value>().await.unwrap(), Some(json!({ "a": 2 })));
    assert_eq!(lines.next::<Value>().await.unwrap(), None);
}

#[test]
fn what_cannot_be_sent_is_refused_before() {
    assert!(matches!(Client::new("ftp://x"), Err(Error::BadAddress(_))));
    assert!(matches!(Client::builder("localhost:1").token("a\nb").build(), Err(Error::BadToken)));
    assert!(matches!(Client::builder("localhost:1").tenant("a\nb").build(), Err(Error::BadTenant)));
}
